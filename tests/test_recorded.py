"""Today's code computes what was recorded in `recorded/recorded.npz`, to 1e-10.

Each model's log density and gradient, and all that is recorded of a few. For everything, and to
record again: see `recorded/record.py`.
"""

import os
import subprocess
import sys

import pytest

from marks import long
from recorded import record

# One of each kind, or of what has no reference in plain numpy elsewhere.
KINDS = [
    *("poisson", "two_likelihoods", "events_by_quadrature", "kernels", "containers"),
    *("hierarchical", "potential", "nothing_else", "features_scattered", "features_series"),
]
pytestmark = pytest.mark.filterwarnings("ignore:White noise in the kernel:UserWarning")
WHOLE = ["poisson"]
WHOLE_BUT_SLOW = ["softmax", "points_and_features", "features_diagonal", "features_gaussian"]


@pytest.fixture(scope="module")
def recorded():
    return record.load()


def compare(found, recorded):
    said = record.differences(found, recorded)
    assert not said, "\n".join([f"{len(said)} of {len(found)} quantities differ:", *said])


@pytest.mark.parametrize("name", [*KINDS, *long(*(n for n in record.MODELS if n not in KINDS))])
@pytest.mark.slow
def test_numbers_are_those_of_the_record(name, recorded):
    kinds = record.kinds_of(name) if name in WHOLE else ["density"]
    compare(record.evaluate(name, kinds), recorded)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE_BUT_SLOW)
def test_bounds_and_predictions_are_those_of_the_record(name, recorded):
    kinds = [kind for kind in record.kinds_of(name) if kind != "density"]
    compare(record.evaluate(name, kinds), recorded)


@pytest.mark.long
@pytest.mark.slow
def test_order_of_hashes_does_not_matter(root):
    """Sets of variables have another order in a process with another seed."""
    command = [sys.executable, "tests/recorded/record.py", "--check", "poisson", "features"]
    env = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_differences_are_named(recorded):
    """The comparison finds a change of one number, a lost shape, and a nan."""
    name = "poisson/density/logp"
    for change in (
        lambda x: x * [1.0, 1.0 + 1e-9, 1.0],
        lambda x: x[:2],
        lambda x: x * [1.0, float("nan"), 1.0],
    ):
        (said,) = record.differences({name: change(recorded[name])}, recorded)
        assert said.startswith(name)
    assert not record.differences({name: recorded[name] * (1.0 + 1e-12)}, recorded)
