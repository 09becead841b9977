"""Fourier coefficients integrated out: against dense normal densities in plain numpy."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_torus
import xarray as xr

from differences import slopes
from marks import long
from modes import RAW
from scipy import stats

import pymc_vsgp as vsgp
import pymc_vsgp.fit.bound

from pymc_vsgp.fit import sums
from pymc_vsgp.fit.collapsed import can_collapse, collapse, recover
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.inducing.torus import GivenCoefficients

short = pytest.mark.filterwarnings("ignore:The period of .* leaves too little room:UserWarning")

PERIOD, COUNTS, CENTER = (2.5, 3.0), (4, 3), (0.4, 0.1)
N = 40
POINT = {
    "ls_log__": np.log([0.25, 0.4]),
    "variance_log__": np.log(1.3),
    "slope": np.array([0.5, -0.8]),
    "level": np.array(0.2),
    "s_log__": np.log(0.35),
}


def data_of(shift=0.0):
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, size=(N, 2))
    return X, shift + X[:, 0] + np.sin(6 * X[:, 1]) + 0.3 * rng.normal(size=N)


def build(X, y, approx="VFE", sigma=None, mean=None, counts=COUNTS):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3, 8, shape=2)
        variance = pm.Gamma("variance", 2, 1)
        slope, level = pm.Normal("slope", shape=2), pm.Normal("level", 0.0, 100.0)
        mean = mean(slope, level) if mean else pm.gp.mean.Linear(coeffs=slope, intercept=level)
        cov = variance * pm.gp.cov.Matern52(2, ls=ls)
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.Fourier(PERIOD, counts, CENTER))
        s = pm.HalfNormal("s")
        gp.likelihood("y", vsgp.Gaussian(s if sigma is None else sigma(s), approx), X=X, y=y)
    return model


def pieces(X, y, point):
    """Residual, waves, their variances, variance left out, and the noise's."""
    ls, variance = np.exp(point["ls_log__"]), np.exp(point["variance_log__"])
    nothing = np.zeros(np.prod(2 * np.array(COUNTS) + 1))
    _, gamma, Phi, S = reference_torus.moments(
        X, ls, variance, np.array(PERIOD), COUNTS, CENTER, nothing
    )
    residual = y - X @ point["slope"] - point["level"]
    return residual, Phi, S, gamma, np.exp(2.0 * point["s_log__"])


def log_evidence(X, y, point, approx):
    r, Phi, S, gamma, v = pieces(X, y, point)
    noise = np.full(N, v) + (gamma if approx == "FITC" else 0.0)
    value = stats.multivariate_normal.logpdf(r, np.zeros(N), (Phi * S) @ Phi.T + np.diag(noise))
    if approx == "VFE":
        return value - gamma.sum() / (2.0 * v)
    return value - np.log1p(gamma / v).sum() / 2.0 if approx == "tight" else value


@pytest.mark.slow
@pytest.mark.parametrize("approx", ["VFE", "FITC", *long("tight", "DTC")])
def test_density_and_gradient(approx):
    X, y = data_of()
    model = build(X, y, approx)
    new = collapse(model).model
    assert [rv.name for rv in new.free_RVs] == ["ls", "variance", "slope", "level", "s"]
    logp, prior = new.compile_logp(mode=RAW), new.compile_logp(vars=new.free_RVs, mode=RAW)
    # pm.gp has the gamma function of the spectral density's constant in float32.
    expected = log_evidence(X, y, POINT, approx)
    np.testing.assert_allclose(logp(POINT) - prior(POINT), expected, rtol=1e-7)

    gradient = new.compile_dlogp(mode=RAW)(POINT)
    found = slopes(logp, POINT, [v.name for v in new.value_vars])
    np.testing.assert_allclose(gradient, found, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_data_far_from_zero_keep_their_digits():
    """The sums are those of deviations from the best mean."""
    X, y = data_of(shift=1e6)
    point = POINT | {"level": np.array(1e6 + 0.2)}
    new = collapse(build(X, y)).model
    logp, prior = new.compile_logp(mode=RAW), new.compile_logp(vars=new.free_RVs, mode=RAW)
    expected = log_evidence(X, y, point, "VFE")
    np.testing.assert_allclose(logp(point) - prior(point), expected, rtol=1e-7)


@pytest.mark.slow
def test_coefficients_are_drawn_from_their_conditional():
    X, y = data_of()
    model, n = build(X, y), 2000
    draws = {
        name: (("chain", "draw", *"abc"[: np.ndim(x)]), np.broadcast_to(x, (1, n, *np.shape(x))))
        for name, x in (
            ("ls", np.exp(POINT["ls_log__"])),
            ("variance", np.exp(POINT["variance_log__"])),
            ("slope", POINT["slope"]),
            ("level", POINT["level"]),
            ("s", np.exp(POINT["s_log__"])),
        )
    }
    u = recover(collapse(model), xr.Dataset(draws), random_seed=1)["u"][0]

    r, Phi, S, _, v = pieces(X, y, POINT)
    covariance = np.linalg.inv(np.diag(1.0 / S) + Phi.T @ Phi / v)
    mean = covariance @ Phi.T @ r / v
    mean[0] += np.array(CENTER) @ POINT["slope"] + POINT["level"]  # the first carries the mean
    sd = np.sqrt(np.diag(covariance))
    assert np.abs((u.mean(axis=0) - mean) / sd).max() < 5.0 / np.sqrt(n)
    np.testing.assert_allclose(u.std(axis=0) / sd, 1.0, atol=5.0 / np.sqrt(2 * n))
    # Along the direction that the data know best, too.
    w, V = np.linalg.eigh(covariance / np.outer(sd, sd))
    along = ((u - mean) / sd) @ V[:, 0]
    np.testing.assert_allclose(along.std() / np.sqrt(w[0]), 1.0, atol=5.0 / np.sqrt(2 * n))


@pytest.mark.slow
@short
def test_data_may_change():
    X, y = data_of()
    shared = pytensor.shared(y)
    model = build(X, shared)
    whole, fitter = collapse(model), Fitter(model)
    logp = whole.model.compile_logp(mode=RAW)
    shared.set_value(data_of(2.0)[1][::-1].copy())
    whole.refresh()
    fresh = collapse(build(X, shared.get_value())).model.compile_logp(mode=RAW)
    np.testing.assert_allclose(logp(POINT), fresh(POINT), rtol=1e-12)
    stage = fitter(maxiter=1)
    np.testing.assert_allclose(stage.elbo, fresh(stage.theta_unconstrained), rtol=1e-9)


@pytest.mark.slow
@short
def test_a_pass_over_the_data_gives_the_same(monkeypatch):
    X, y = data_of()
    by_sums = collapse(build(X, y)).model.compile_logp(mode=RAW)(POINT)
    monkeypatch.setattr(GivenCoefficients, "basis", None)
    model = build(X, y)
    assert can_collapse(model)
    whole = collapse(model)
    np.testing.assert_allclose(whole.model.compile_logp(mode=RAW)(POINT), by_sums, rtol=1e-9)


# The period is short, and so is the fit.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The period of .* leaves too little room:UserWarning")
@pytest.mark.parametrize("many", [*long(False), True])
def test_the_stage_is_at_the_maximum(many, monkeypatch):
    X, y = data_of()
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5 if many else 100)
    model = build(X, y)
    stage = vsgp.fit_gaussian(progressbar=False, model=model)
    assert stage.converged
    logp = collapse(model).model.compile_logp(mode=RAW)
    best = {name: np.asarray(x) for name, x in stage.theta_unconstrained.items()}
    np.testing.assert_allclose(stage.elbo, logp(best), rtol=1e-9)
    for name, value in best.items():
        for sign in (-1.0, 1.0):
            assert logp(best | {name: value + 0.02 * sign}) < stage.elbo
    # Given theta, q is the posterior of the coefficients.
    r, Phi, S, _, v = pieces(X, y, best)
    precision = np.diag(1.0 / S) + Phi.T @ Phi / v
    mean = np.linalg.solve(precision, Phi.T @ r / v)
    mean[0] += np.array(CENTER) @ best["slope"] + best["level"]
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.abs((stage.mean["u"][0] - mean) / sd).max() < 1e-5
    if many:
        np.testing.assert_allclose(stage.covariance["u"][0], sd**2, rtol=1e-5)
    else:
        np.testing.assert_allclose(
            stage.covariance["u"][0] / np.outer(sd, sd),
            np.linalg.inv(precision) / np.outer(sd, sd),
            atol=1e-5,
        )
    # What it says of theta is the curvature there.
    log_s, h = best["s_log__"], 1e-3
    at = [logp(best | {"s_log__": log_s + k * h}) for k in (-1, 0, 1)]
    curvature = (2 * at[1] - at[0] - at[2]) / h**2
    precision = np.linalg.inv(stage.theta_covariance)
    np.testing.assert_allclose(precision[-1, -1], curvature, rtol=1e-3)


class Wave(pm.gp.mean.Mean):
    def __init__(self, slope, level):
        self.slope, self.level = slope, level

    def __call__(self, X):
        return pt.sin(X[:, 0] * self.slope[0]) + self.level


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"mean": lambda slope, level: pm.gp.mean.Constant(level)}, True),
        ({"mean": lambda slope, level: pm.gp.mean.Zero()}, True),
        ({"mean": Wave}, False),
        ({"sigma": lambda s: s * np.linspace(1.0, 2.0, N)}, False),
        ({"counts": (10, 10)}, False),
    ],
    ids=["linear", "constant", "zero", "not linear", "noise of each row", "too many"],
)
def test_what_has_sums(settings, expected):
    if settings.get("counts"):
        assert 21 * 21 > sums.MOST_COEFFICIENTS
    assert can_collapse(build(*data_of(), **settings)) is expected


@pytest.mark.long
@pytest.mark.slow
def test_posterior():
    """As the posterior of theta on a fine grid of two parameters."""
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0.0, 1.0, size=(60, 1)), axis=0)
    y = np.sin(6.0 * X[:, 0]) + 0.4 * rng.normal(size=60)
    with pm.Model():
        ls = pm.LogNormal("ls", np.log(0.3), 0.5)
        s = pm.LogNormal("s", np.log(0.4), 0.5)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", inducing=vsgp.inducing.Fourier(4.0, 30, 0.5))
        gp.likelihood("y", vsgp.Gaussian(s), X=X, y=y)
        kwargs = {"nuts_sampler": "nutpie", "backend": "jax", "progressbar": False}
        idata = vsgp.sample(draws=600, tune=400, chains=2, random_seed=2, **kwargs)
    assert idata["posterior"]["u"].shape == (2, 600, 61)
    grid = [np.log(m) + np.linspace(-2.0, 2.0, 61) for m in (0.3, 0.4)]
    Phi, omega = reference_torus.waves(X, [4.0], (30,), (0.5,))
    origin = np.zeros((1, 1))
    logp = np.empty((61, 61))
    for i, log_ls in enumerate(grid[0]):
        scale = np.exp([log_ls])
        S = reference_torus.matern52_density(omega, scale) / 4.0
        left = reference_torus.torus_kernel(origin, origin, scale, 1.0, np.array([4.0]))[0, 0]
        w, V = np.linalg.eigh((Phi * S) @ Phi.T)
        for j, log_s in enumerate(grid[1]):
            v = np.exp(2.0 * log_s)
            value = stats.norm.logpdf(V.T @ y, 0.0, np.sqrt(np.clip(w, 0, None) + v)).sum()
            logp[i, j] = value - 60 * (left - S.sum()) / (2.0 * v)
            logp[i, j] += stats.norm.logpdf(log_ls, np.log(0.3), 0.5)
            logp[i, j] += stats.norm.logpdf(log_s, np.log(0.4), 0.5)
    p = np.exp(logp - logp.max())
    p /= p.sum()
    for axis, name in enumerate(("ls", "s")):
        marginal = p.sum(axis=1 - axis)
        mean = marginal @ grid[axis]
        sd = np.sqrt(marginal @ (grid[axis] - mean) ** 2)
        drawn = np.log(idata["posterior"][name].values)
        assert abs(drawn.mean() - mean) < 0.12 * sd
        np.testing.assert_allclose(drawn.std(), sd, rtol=0.1)
