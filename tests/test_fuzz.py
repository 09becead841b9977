"""Some inputs of every kind to public functions; `benchmarks/fuzz.py` has thousands."""

import fuzz_inducing  # noqa: F401  (cases)
import fuzz_models  # noqa: F401
import fuzz_results
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fuzzing import CASES, LIKE, NONE, SAME, WHOLE, Fault, Given, attempt, equal, plainly, spelled
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from marks import long

import pymc_vsgp as vsgp

# Examples of each, in a second or two.
EXAMPLES = {
    "inducing.subset": 300,
    "inducing.kmeans": 300,
    "inducing.grid": 300,
    "inducing.Fourier": 300,
    "inducing.Fourier.for_data": 5,
    "inducing.NearestNeighbors": 300,
    "inducing.Kronecker": 300,
    "point_process PointProcess": 200,
    "predict": 80,
    "log_predictive_density": 80,
    "VariationalSparse.predict": 4,
    "VariationalSparse VariationalSparse.prior VariationalSparse.likelihood": 4,
}
LONG = [
    *("inducing.subset", "inducing.kmeans", "inducing.Fourier.for_data"),
    *("inducing.NearestNeighbors", "inducing.Kronecker", "point_process PointProcess"),
]


@pytest.mark.parametrize("name", [*(n for n in EXAMPLES if n not in LONG), *long(*LONG)])
@pytest.mark.slow
def test_an_exception_of_ours_or_a_right_answer(name, monkeypatch):
    monkeypatch.setattr(fuzz_results, "MODELS", [fuzz_results.normal])  # one is fitted, not eleven

    @settings(
        max_examples=EXAMPLES[name],
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data):
        assert CASES[name](data.draw) in ("right", "refused")

    run()


X = np.linspace(-1.0, 1.0, 6).reshape(3, 2)


@pytest.mark.parametrize("kind", [*SAME, *WHOLE, *LIKE, *NONE])
def test_kinds_of_inputs(kind):
    """What is the same numbers is accepted by all, what is none by nobody."""
    given = spelled(X, kind)
    outcome, _ = plainly(given, lambda X: vsgp.inducing.grid(X, 2))
    assert outcome == ("refused" if kind in NONE else "right") or kind in LIKE


def raised(error):
    raise error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x is 3. Pass another."),  # not raised by the package
        IndexError("list index out of range"),
    ],
)
def test_exceptions_of_others_are_faults(error):
    with pytest.raises(Fault, match="raised in test_fuzz.py"):
        attempt(lambda: raised(error))
    assert attempt(lambda: vsgp.inducing.grid(X, 0))[1] == "n is 0. Pass a whole number, 1 or more."


def test_other_numbers_are_faults():
    equal(X, X + 1e-12, "a list")
    for other in (X + 1e-3, X[:2], np.where(X > 0.9, np.nan, X)):
        with pytest.raises(Fault):
            equal(X, other, "a list")
    with pytest.raises(Fault, match="accepts nothing"):
        plainly(Given(3, None, "nothing"), lambda x: x)
    with pytest.raises(Fault, match="gives other numbers"):
        plainly(Given(X[::-1], X, "rows backwards"), lambda X: X)


def test_kinds_are_what_they_say():
    assert isinstance(SAME["a data frame"](X), pd.DataFrame)
    assert isinstance(SAME["a labelled data array"](X), xr.DataArray)
    assert not SAME["negative strides"](X).flags.c_contiguous
    assert not SAME["read-only"](X).flags.writeable
