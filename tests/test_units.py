"""Parameters with units of their own: what the Gaussian stage finds does not depend on them."""

from functools import partial

import numpy as np
import pymc as pm
import pytest

from marks import long
from modes import RAW
from reference_neighbors import matern32

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Bound, Variables
from pymc_vsgp.fit.following import following
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.fit.natural import Exact, Natural
from pymc_vsgp.fit.proposals import prior_widths

N = 40
X = np.linspace(0.0, 1.0, N)[:, None]
RNG = np.random.default_rng(5)
W, NOISE = RNG.normal(size=N), RNG.normal(size=N)


def quiet(*args):
    """Report nothing."""


@pytest.mark.slow
def test_a_mean_has_the_units_of_the_data():
    """Its standard deviation was never more than two."""
    y = 500.0 + 200.0 * np.sin(6.0 * X[:, 0]) + 30.0 * NOISE
    with pm.Model() as model:
        unit, seen = pm.Data("unit", 1.0), pm.Data("seen", y)
        mean = pm.gp.mean.Constant(pm.Normal("c", 500.0 * unit, 300.0 * unit))
        cov = (200.0 * unit) ** 2 * pm.gp.cov.Matern32(1, ls=0.3)
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", Xu=X)
        gp.likelihood("y", vsgp.Gaussian(30.0 * unit), X=X, y=seen)
    bound = Fitter(model, mode=RAW).bound
    covariance = matern32(X, X, 0.3, 200.0) + 30.0**2 * np.eye(N)
    precision = np.linalg.solve(covariance, np.ones(N)).sum() + 300.0**-2
    for scale in (1.0, 1e4):
        with model:
            pm.set_data({"unit": scale, "seen": scale * y})
        fit = Exact(bound, scale * bound.start, bound.no_sites(), [], 1e-3, quiet)
        np.testing.assert_allclose(fit.curvature() / scale**2, 1.0 / precision, rtol=1e-3)


@pytest.fixture(scope="module")
def regression():
    """A fit with a coefficient in the likelihood, whose covariate may have other units."""
    with pm.Model() as model:
        w, unit = pm.Data("w", W), pm.Data("unit", 1.0)
        b = pm.Normal("b", 0.0, 2.0 * unit)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0)))
        gp.prior("u", Xu=X[::5])
        y = RNG.poisson(np.exp(np.sin(6.0 * X[:, 0]) + 0.5 * W))
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(w * b)), X=X, y=y)
    bound = Bound(model, mode=RAW)
    assert bound.names == ["b", "ls_log__"]
    fit = Natural(bound, bound.start, bound.no_sites(), [], 1e-6, quiet)
    fit.run(20)
    return fit, fit.curvature()


def with_units(fit, unit):
    """The bound of a regression with its covariate in other units, and the units of theta."""
    with fit.bound.model:
        pm.set_data({"w": W / unit, "unit": unit})
    return fit.bound, np.array([unit, 1.0])


@pytest.mark.parametrize("unit", [1e-5, 1e-3, *long(1e3)])
def test_a_fit_arrives_in_all_units(unit, regression):
    """With a covariate in thousands it stayed where it began, and had converged."""
    fit, _ = regression
    bound, units = with_units(fit, unit)
    other = Natural(bound, bound.start, bound.no_sites(), [], 1e-6, quiet)
    other.run(20)
    np.testing.assert_allclose(other.theta / units, fit.theta, rtol=1e-2)
    assert other.evaluation.value + np.log(unit) > fit.evaluation.value - 1e-3


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_a_coefficient_has_those_of_its_covariate(unit, regression):
    """Differences of a thousandth moved f by ten, or the gradient by next to nothing."""
    fit, covariance = regression
    (sites,), (process,) = fit.sites, fit.bound.processes
    bound, units = with_units(fit, unit)
    here = sites.at(fit.theta[process.at])
    other = Natural(bound, units * fit.theta, [here], [], 1e-6, quiet)
    other.sites = following(other, other.sites)
    np.testing.assert_allclose(unit * other.sites[0].slope, sites.slope, rtol=1e-2, atol=1e-2)
    expected = covariance * units * units[:, None]
    np.testing.assert_allclose(other.curvature() / expected, 1.0, rtol=2e-3)


def test_a_fit_ends_where_the_covariance_has_no_root(regression):
    """Its parameters stay, and it says so: there are no axes to go on along."""
    fit, _ = regression
    bound, _ = with_units(fit, 1.0)
    other = Natural(bound, bound.start, bound.no_sites(), [], 1e-6, quiet)
    other.converged, before = True, other.theta
    assert not other.go_on(np.ones((2, 2)), 5)
    assert not other.turned
    assert other.theta is before
    other.look_back(np.ones((2, 2)))
    assert not other.converged
    assert "Parameters did not move" in other.message


def test_how_wide_priors_are():
    """Heavy tails don't count, and an improper prior has no width."""
    with pm.Model() as model:
        pm.Normal("a", 500.0, [10.0, 300.0])
        pm.StudentT("b", 1.0, sigma=pm.HalfNormal("s"))
        pm.Flat("c")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::10])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.ones(N, int))
    variables = Variables(model)
    own = variables.has_units()
    assert own.tolist() == [True, True, False, True, True]
    wide = dict(
        zip(variables.names, np.split(prior_widths(variables, own), [2, 3, 4]), strict=True)
    )
    np.testing.assert_allclose(wide["a"], [10.0, 300.0], rtol=0.15)
    assert 0.5 < wide["b"].item() < 3.0
    assert np.isinf(wide["c"]) and np.isinf(wide["s_log__"])


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["StudentT", "callable"])
def test_units_of_y_move_the_log_density_and_nothing_else(likelihood):
    """Variances of f had a floor of 1e-14, which is much for a function in other units."""
    rows = X[:15]
    with pm.Model() as model:
        unit = pm.Data("unit", 1.0)
        scale, sigma = unit * pm.LogNormal("scale", 0.0), 0.3 * unit
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(3.0 * unit),
            cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=0.3),
        )
        gp.prior("u", Xu=rows[::3])
        family = {"StudentT": vsgp.StudentT(4.0, sigma), "callable": partial(laplace, b=sigma)}
        gp.likelihood("y", family[likelihood], X=rows, y=unit * (3.0 + W[:15]))
    value, slope = (f(mode=RAW) for f in (model.compile_logp, model.compile_dlogp))
    point = model.initial_point()
    point = {n: np.full_like(v, 0.3) for n, v in point.items()}
    values, slopes = [], []
    for s in (1.0, 1e-6, 1e-10, 1e10):
        with model:
            pm.set_data({"unit": s})
        values.append(value(point) + len(rows) * np.log(s))
        slopes.append(slope(point))
    np.testing.assert_allclose(values, values[0], rtol=0, atol=1e-7)
    np.testing.assert_allclose(slopes, np.tile(slopes[0], (4, 1)), rtol=1e-6, atol=1e-7)


def laplace(f, b):
    return pm.Laplace.dist(f, b)
