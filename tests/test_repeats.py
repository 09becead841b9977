"""Rows that share their inputs: moments by distinct inputs are those by rows."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from marks import long
from modes import RAW, REWRITTEN
from prior_draws import prior_draws

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.inducing.repeats import ByValue
from pymc_vsgp.model.data import check_data
from pymc_vsgp.model.observation import observations
from pymc_vsgp.ops.runs import by_value, runs

N, DISTINCT = 60, 7
rng = np.random.default_rng(3)
PLACES = rng.normal(size=(DISTINCT, 2))
AT = rng.integers(0, DISTINCT, N)
X, Y = PLACES[AT], rng.poisson(2.0, N)

INDUCING = {
    "points": {"Xu": PLACES[:5]},
    "features": {"inducing": vsgp.inducing.Fourier(n_frequencies=3, period=12.0)},
    "neighbors": {"inducing": vsgp.inducing.NearestNeighbors(PLACES, m=4)},
}


def with_own(X, own):
    """Put a column between the two of X."""
    return np.insert(X, 1, own, axis=1)


OWN = with_own(X, rng.normal(size=N))
OF_KERNEL = {
    "points": {"Xu": with_own(PLACES[:5], 0.3)},
    "features": {"inducing": vsgp.inducing.Fourier(n_frequencies=3, period=12.0)},
    "neighbors": {"inducing": vsgp.inducing.NearestNeighbors(with_own(PLACES, -0.2), m=4)},
}


def build(inducing="points", several=False, block_size=16, own=False):
    """A model with a parameter of each row, whose inputs and observations can be replaced.

    With an input of its `own` for each row, which the kernel leaves out.
    """
    with pm.Model() as model:
        x = pm.Data("x", OWN if own else X, dims=("row", "column"))
        y = pm.Data("seen", Y, dims="row")
        ls, slope = pm.Gamma("ls", 3, 2), pm.Normal("slope", shape=2 + own)
        cov = pm.gp.cov.Matern52(2 + own, ls=ls, active_dims=[0, 2] if own else [0, 1])
        mean = pm.gp.mean.Linear(coeffs=slope)
        gp = vsgp.VariationalSparse(cov_func=cov, mean_func=mean)
        kind = (OF_KERNEL if own else INDUCING)[inducing]
        gp.prior("u", **kind, n_outputs=2 if several else 1)
        if several:
            likelihood = vsgp.HeteroskedasticNegativeBinomial(exposure=pm.Data("size", 1.0 + AT))
        else:
            likelihood = vsgp.Poisson(exposure=pm.LogNormal("size", dims="row"))
        gp.likelihood("y", likelihood, X=x, y=y, dims="row", block_size=block_size)
    return model


@pytest.fixture
def by_rows(monkeypatch):
    """Return what builds the same model without an order of its rows."""

    def build_plain(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(ByValue, "of", lambda X, name, n: None)
            return build(*args, **kwargs)

    return build_plain


def evaluate(model, mode=ONCE):
    """Log density, its gradient, and the terms, away from the start."""
    observed = model.logp(vars=model.observed_RVs, sum=False)
    fn = model.compile_fn([model.logp(), model.dlogp(), *observed], mode=mode)
    noise = np.random.default_rng(1)
    start = model.initial_point().items()
    return fn({k: v + 0.3 * noise.normal(size=np.shape(v)) for k, v in sorted(start)})


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(b).max())


def orders(model):
    return [node.op.order for node in block_sums(model.logp())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inducing", "several"),
    [
        ("points", True),
        *long(("points", False), ("features", True), ("features", False)),
        *long(("neighbors", True), ("neighbors", False)),
    ],
)
def test_values_gradients_and_terms_are_those_by_rows(inducing, several, by_rows):
    model, plain = build(inducing, several), by_rows(inducing, several)
    assert orders(model)[0].repeats == N // DISTINCT and orders(plain) == [None]
    same(evaluate(model), evaluate(plain))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inducing", "several"), [("neighbors", True), *long(("points", True), ("features", False))]
)
def test_rows_with_a_mean_of_their_own(inducing, several, by_rows):
    model, plain = build(inducing, several, own=True), by_rows(inducing, several, own=True)
    assert orders(model)[0].repeats == N // DISTINCT and orders(plain) == [None]
    same(evaluate(model), evaluate(plain))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "mode"), [(False, REWRITTEN), (True, REWRITTEN), (True, "NUMBA"), (True, "JAX")]
)
def test_backends_agree(own, mode, by_rows):
    same(evaluate(build(own=own), mode), evaluate(by_rows(own=own)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inducing", "own"),
    [*((kind, True) for kind in INDUCING), ("points", False)]
    + long(("features", False), ("neighbors", False)),
)
def test_moments_are_computed_once_for_each_distinct_input(inducing, own):
    (node,) = block_sums(build(inducing, own=own).logp())
    (conditional, *_, args), *_ = node.op.recipe.given(node.inputs)
    columns, rows = [0, 2] if own else [0, 1], OWN if own else X
    assert conditional.base.active == columns
    order, distinct = by_value(rows, columns)
    assert distinct == DISTINCT
    ranked = pt.constant(rows[order])
    args = [a[order] if k in conditional.rows else a for k, a in enumerate(args)]
    pieces, _ = conditional.moments(ranked, args)
    np.testing.assert_array_equal(pieces.X.eval()[:, columns], np.unique(X, axis=0))
    assert pieces.moments.mu.type.ndim == pieces.moments.gamma.type.ndim == 1
    np.testing.assert_array_equal(pieces.X.eval()[pieces.rank.eval()][:, columns], X[order])


@pytest.mark.parametrize("mode", ["py", pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_runs(mode):
    x = pt.dmatrix()
    fn = pytensor.function([x], runs(x), mode=RAW if mode == "py" else mode)
    for rows, starts in (
        ([[1, 2], [1, 2], [1, 3], [0, 3], [0, 3]], [0, 2, 3]),
        ([[np.nan, 1], [np.nan, 1]], [0, 1]),
        ([[4, 4]], [0]),
    ):
        found, rank = fn(np.array(rows, dtype=float))
        assert found.tolist() == starts
        np.testing.assert_array_equal(np.array(rows, float)[found][rank], rows)
    assert [len(v) for v in fn(np.empty((0, 2)))] == [0, 0]


@pytest.mark.long
@pytest.mark.slow
def test_gaussian_stage_and_its_minibatches_are_those_by_rows(by_rows):
    found = []
    for model in (build(own=True), by_rows(own=True)):
        bound = Bound(model, mode=ONCE)
        small = Bound(model, n_rows=20, mode=ONCE)
        theta = bound.ravel(model.initial_point()) + 0.1
        of = [bound(theta, bound.no_sites()), small(theta, bound.no_sites(), rows=np.arange(5, 25))]
        found.append([x for e in of for x in (e.value, e.gradient, e.linear[0], e.precision[0])])
    same(*found)


@pytest.mark.long
@pytest.mark.slow
def test_replaced_data_of_any_length_and_order(by_rows):
    model, plain = build("points", True, own=True), by_rows("points", True, own=True)
    fns = [
        m.compile_fn([m.logp(), m.dlogp(), *m.logp(vars=m.observed_RVs, sum=False)], mode=REWRITTEN)
        for m in (model, plain)
    ]
    other = np.random.default_rng(4)
    for n in (N, 25, 3 * N):
        at = other.integers(0, 4, n)
        rows = with_own(other.normal(size=(4, 2))[at], other.normal(size=n))
        new = {"x": rows, "seen": at + 1, "size": np.ones(n)}
        for checked in (False, True):
            for m in (model, plain):
                with m:
                    pm.set_data(new, coords={"row": np.arange(n)})
                if checked:
                    check_data(m)
            same(*(fn(m.initial_point()) for fn, m in zip(fns, (model, plain), strict=True)))
    (o,) = observations(model).values()
    ranked = new["x"][o.order.get_value()][:, [0, 2]]
    assert (ranked[1:] != ranked[:-1]).any(axis=1).sum() == 3


def test_inputs_that_hardly_repeat_stay_as_they_are():
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", PLACES[:5])
        gp.likelihood("y", vsgp.Poisson(), X=np.vstack([PLACES, PLACES[:2]]), y=np.ones(9, int))
    assert orders(model) == [None]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # of a few draws of the prior
def test_loo_and_draws_have_the_order_of_the_rows(by_rows):
    found = []
    model = build("points", True)
    idata = prior_draws(model, 40)
    idata["observed_data"] = xr.DataTree(xr.Dataset({"y": ("row", Y)}))
    for m in (model, by_rows("points", True)):
        with m:
            kept = pm.compute_log_likelihood(idata.copy(), progressbar=False)
            scores = vsgp.loo(idata, pointwise=True, progressbar=False)
        found.append([kept["log_likelihood"]["y"].values, scores.elpd_i.values])
    same(*found)
