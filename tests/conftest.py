"""What every test may use: one BLAS thread, a seeded generator, and the shared data sets."""

import os

# Before numpy is imported: BLAS reads these once, and test workers already fill the cores.
for _name in (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import gc  # noqa: E402  (after the settings above)
import pathlib  # noqa: E402  (after the settings above)

import numpy as np  # noqa: E402  (after the settings above)
import pytensor  # noqa: E402  (after the settings above)
import pytest  # noqa: E402  (after the settings above)

from modes import of_users  # noqa: E402  (after the settings above)
from pytensor.graph.rewriting.basic import Rewriter  # noqa: E402  (after the settings above)

from pymc_vsgp.compile import ONCE  # noqa: E402  (after the settings above)

# What tests share has no doctests; pytest would import it a second time to look for them.
collect_ignore_glob = ["[!t]*.py"]

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Graphs are most of the work here, and of a graph a good part is where each node was made, and
# the search for garbage among the thousands of its nodes.
pytensor.config.traceback__limit = 0
gc.set_threshold(200_000, 20, 20)


def pytest_collection_finish():
    """What was imported stays: no search for garbage looks at it again."""
    gc.collect()
    gc.freeze()


# A rewrite that fails is an error of ours, or of what we rewrite.
pytensor.config.on_opt_error = "raise"

# What is compiled without naming a mode is evaluated by numpy: numba would take seconds for each.
# Tests of what users get name NUMBA, or take the fixture below.
pytensor.config.mode = ONCE

# These say what Python does by itself, in Python: a fifth of the time that rewriting takes.
Rewriter.__eq__, Rewriter.__hash__ = object.__eq__, object.__hash__

# No C compiler but for the tests of that backend, which ask for it.
COMPILER = pytensor.config.cxx
pytensor.config.cxx = ""


@pytest.fixture
def c_compiler():
    """The C compiler, for the length of a test."""
    if not COMPILER:
        pytest.skip("there is no C compiler")
    with pytensor.config.change_flags(cxx=COMPILER):
        yield


@pytest.fixture
def default_mode():
    """What users get who name no mode, for the length of a test: numba."""
    with of_users():
        yield


@pytest.fixture
def root():
    """The root of the repository."""
    return ROOT


@pytest.fixture
def rng():
    """A generator that starts from the same state in every test."""
    return np.random.default_rng(20150612)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of larger data sets, which do not ship; tests that need it skip without it."""
    named = os.environ.get("PYMC_VSGP_DATA")
    folder = pathlib.Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; name their folder in PYMC_VSGP_DATA")
    return folder
