"""Sums of waves by interpolation: against the waves themselves in plain numpy."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_torus

from differences import slopes
from marks import long
from modes import RAW
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.inducing import scattered
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.inducing.scattered import Scattered
from pymc_vsgp.ops.interpolation import FromGrid, ToGrid

PERIOD = {1: (2.5,), 2: (2.5, 3.0)}
COUNTS = {1: (40,), 2: (7, 5)}
CENTER = {1: (0.4,), 2: (0.4, 0.1)}


def features_of(D):
    return vsgp.inducing.Fourier(PERIOD[D], COUNTS[D], CENTER[D])


@pytest.fixture
def everywhere(monkeypatch):
    """Interpolate small data, too."""
    monkeypatch.setattr(scattered, "FEWEST_ENTRIES", {1: 1, 2: 1})


@pytest.mark.parametrize(
    ("mode", "D"),
    [(RAW, 1), (RAW, 2)]
    # numba's loops are those that Python runs, and take long to compile with what is around them.
    + [
        pytest.param(m, d, marks=mark)
        for m, d, mark in (
            ("NUMBA", 2, pytest.mark.long),
            ("JAX", 1, pytest.mark.slow),
            ("JAX", 2, pytest.mark.long),
        )
    ],
)
def test_sums_equal_those_of_the_waves(mode, D, rng):
    features, layout = features_of(D), Scattered()
    X = rng.uniform(-4.0, 6.0, size=(60, D))  # some periods
    X[0] = CENTER[D]
    w, s = rng.normal(size=(2, features.n_features))
    x, v = pt.matrix(shape=(None, D)), pt.vector(shape=(features.n_features,))
    waves = layout.waves(features, layout.axes(x))
    g = rng.normal(size=60)
    outputs = [layout.combine(features, waves, v), layout.combine_squares(features, waves, v**2)]
    outputs += [pytensor.grad(pt.dot(g, f), v) for f in outputs]
    f, squares, of_f, of_squares = pytensor.function([x, v], outputs, mode=mode)(X, w)
    Phi, _ = reference_torus.waves(X, PERIOD[D], COUNTS[D], CENTER[D])
    for ours, exact in (
        (f, Phi @ w),
        (squares, Phi**2 @ w**2),
        (of_f, Phi.T @ g),
        (of_squares, 2.0 * w * (Phi.T**2 @ g)),
    ):
        np.testing.assert_allclose(ours, exact, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("shape", [(16,), (23,), (17, 30)])
def test_the_transpose_is_exact(shape, rng):
    places = rng.uniform(-50.0, 50.0, size=(40, len(shape)))
    places[0] = 0.0
    F, g = rng.normal(size=shape), rng.normal(size=40)
    there = FromGrid(shape)(places, F).eval()
    back = ToGrid(shape)(places, g).eval()
    np.testing.assert_allclose(there @ g, np.sum(F * back), rtol=1e-12)
    pytensor.gradient.verify_grad(lambda values: FromGrid(shape)(places, values), [F], rng=rng)
    pytensor.gradient.verify_grad(lambda values: ToGrid(shape)(places, values), [g], rng=rng)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("D", [1, 2])
def test_places_that_are_none(D, bad):
    shape = (20,) * D
    places = np.ones((3, D))
    places[1, -1] = bad
    values = FromGrid(shape)(places, np.ones(shape)).eval()
    assert np.isnan(values).tolist() == [False, True, False]
    assert np.isnan(ToGrid(shape)(places, np.ones(3)).eval()).all()


def build(X, y, features):
    D = X.shape[1]
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3, 8, shape=D)
        mean = pm.gp.mean.Linear(coeffs=pm.Normal("slope", shape=D), intercept=0.3)
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=1.3 * pm.gp.cov.Matern52(D, ls=ls))
        gp.prior("u", inducing=features)
        gp.likelihood("y", vsgp.Poisson(), X=pm.Data("X", X), y=pm.Data("counts", y))
    return model


def log_density(X, y, features, point):
    ls, v = np.exp(point["ls_log__"]), point["u_whitened__"]
    f, gamma, *_ = reference_torus.moments(
        X, ls, 1.3, np.array(features.period), features.n_frequencies, features.center, v
    )
    mu = X @ point["slope"] + 0.3 + f
    total = np.sum(y * mu - np.exp(mu + gamma / 2.0) - special.gammaln(y + 1.0))
    total += stats.norm.logpdf(v).sum() + stats.norm.logpdf(point["slope"]).sum()
    return total + np.sum(stats.gamma.logpdf(ls, 3, scale=1 / 8) + np.log(ls))


def data_of(D, n):
    rng = np.random.default_rng(n)
    return rng.uniform(0.0, 1.0, size=(n, D)), rng.poisson(2.0, size=n).astype(float)


@pytest.mark.slow
@pytest.mark.parametrize("D", [*long(1), 2])
def test_log_density_and_gradient(D, everywhere, rng):
    X, y = data_of(D, 50)
    model = build(X, y, features_of(D))
    start = model.initial_point()
    point = {n: 0.4 * rng.normal(size=np.shape(start[n])) for n in sorted(start)}
    point["ls_log__"] -= 1.5
    logp, dlogp = model.compile_logp(mode=RAW), model.compile_dlogp(mode=RAW)
    expected = log_density(X, y, features_of(D), point)
    assert logp(point) != expected  # or nothing was interpolated
    np.testing.assert_allclose(logp(point), expected, rtol=1e-6)
    found = slopes(logp, point, [v.name for v in model.value_vars])
    np.testing.assert_allclose(dlogp(point), found, rtol=1e-5, atol=1e-5)
    # Other rows, and another number of them.
    X, y = data_of(D, 70)
    with model:
        pm.set_data({"X": X, "counts": y})
    expected = log_density(X, y, features_of(D), point)
    np.testing.assert_allclose(logp(point), expected, rtol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_bound_equals_that_of_the_waves(monkeypatch):
    """With hundreds of coefficients, whose squares are interpolated, too."""
    X, y = data_of(2, 50)
    found = []
    for fewest in (1, 10**6):
        monkeypatch.setattr(scattered, "FEWEST_ENTRIES", {2: fewest})
        bound = Bound(build(X, y, features_of(2)), mode=RAW)
        rng = np.random.default_rng(1)
        sites = [Sites(*(rng.normal(size=x.shape) for x in s[:2])) for s in bound.no_sites()]
        offsets = [0.3 * rng.normal(size=x.shape) for x in bound.no_offsets()]
        evaluation = bound(bound.start, sites, offsets)
        found.append([evaluation.value, evaluation.gradient, *evaluation.precision])
    assert found[0][0] != found[1][0]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.abs(b).max())
