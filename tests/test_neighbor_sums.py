"""Sums of processes of which one is given neighbors: the Gaussian stage, and what follows it."""

import numpy as np
import pymc as pm
import pytest

from modes import RAW

import pymc_vsgp as vsgp

from pymc_vsgp.fit.neighbors import NeighborsBound

RNG = np.random.default_rng(2)
X = np.sort(RNG.uniform(0.0, 10.0, size=(40, 1)), axis=0)
Y = RNG.poisson(np.exp(1.0 + np.sin(X[:, 0] / 2.0) + 0.5 * RNG.normal(size=40)))


def build(rough, smooth=None, y=None):
    """A smooth function, and a rough one."""
    with pm.Model() as model:
        sd, level = pm.HalfNormal("sd", 1.0), pm.Normal("level")
        a = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.Matern52(1, ls=3.0)
        )
        b = vsgp.VariationalSparse(
            cov_func=sd**2 * pm.gp.cov.Matern12(1, ls=pm.LogNormal("ls", -1.0, 0.5))
        )
        a.prior("smooth", **(smooth or {"Xu": np.linspace(0.0, 10.0, 8)[:, None]}))
        b.prior("rough", **rough)
        both = vsgp.Coregionalized([1.0, 1.0], [a, b])
        both.likelihood("y", vsgp.Poisson(), X=X, y=Y if y is None else y)
    return model


def neighbors(m):
    return {"inducing": vsgp.inducing.NearestNeighbors(X, m)}


@pytest.fixture(scope="module")
def stages():
    """With all neighbors, and with points."""
    found = []
    for rough in (neighbors(39), {"Xu": X}):
        with build(rough):
            found.append(vsgp.fit_gaussian(progressbar=False))
    return found


@pytest.mark.long
def test_the_stage_is_that_of_points(stages):
    """With all neighbors it is the same process."""
    near, exact = stages
    assert near.converged
    np.testing.assert_allclose(near.elbo, exact.elbo, atol=5e-3)  # variances of draws
    sd = np.sqrt(np.diag(exact.theta_covariance))
    away = [
        (near.theta_unconstrained[n] - exact.theta_unconstrained[n]) / s
        for n, s in zip(exact.theta_unconstrained, sd, strict=True)
    ]
    assert np.abs(away).max() < 0.15
    np.testing.assert_allclose(np.sqrt(np.diag(near.theta_covariance)), sd, rtol=0.15)
    for name in ("smooth", "rough"):
        of_u = np.sqrt(np.diagonal(exact.covariance[name][0]))
        means = [s.mean[name][0] - s.theta["level"] * (name == "smooth") for s in stages]
        assert np.abs((means[0] - means[1]) / of_u).max() < 0.2
    assert "40 values given neighbors" in str(near) and "8 inducing inputs" in str(near)


@pytest.mark.slow
def test_gradient_of_the_elbo(rng):
    """In theta, and in offsets of features, where q of the values stays."""
    features = {"inducing": vsgp.inducing.Fourier([30.0], 160, [5.0])}
    for smooth, n_offsets in ((None, 0), (features, 2)):
        bound = NeighborsBound(build(neighbors(5), smooth), RAW)
        theta = bound.start + 0.1 * rng.normal(size=bound.start.size)
        sites, moved = bound.no_sites(), bound.no_offsets()
        for s in sites:
            s.linear[:] = 0.3 * rng.normal(size=s.linear.shape)
            s.root[:] = 0.5 * np.eye(s.root.shape[1]) if s.root.ndim == 3 else 0.5
        assert len(moved) == n_offsets
        moved = [0.1 * rng.normal(size=x.shape) for x in moved]
        q = bound(theta, sites, moved)
        x = np.concatenate([theta, *(m.ravel() for m in moved)])

        def at(x, sites=sites, moved=moved, q=q, bound=bound, d=theta.size):
            parts = np.split(x[d:], len(moved)) if moved else []
            shaped = [p.reshape(m.shape) for p, m in zip(parts, moved, strict=True)]
            return bound.held(x[:d], sites, shaped, q)

        np.testing.assert_allclose(at(x).value, q.value, rtol=1e-10)
        for i in {*range(theta.size), x.size - 1}:
            h = 1e-5 * np.eye(x.size)[i]
            slope = (at(x + h).value - at(x - h).value) / 2e-5
            np.testing.assert_allclose(at(x).gradient[i], slope, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_downstream(stages):
    """Draws of the stage predict what those with points do."""
    found = []
    for stage in stages:
        with stage.model:
            draws = stage.to_datatree(400, random_seed=1)
            found.append(vsgp.predict(draws, X + 0.05, "f", progressbar=False))
    near, exact = (f.sum("function") for f in found)
    assert list(found[0]["function"].values) == ["smooth", "rough"]
    sd = exact.std(["chain", "draw"])
    away = (near - exact).mean(["chain", "draw"]) / sd
    assert np.abs(away).max() < 0.35  # of 400 draws


@pytest.mark.long
def test_nuts(stages):
    stage = stages[0]
    with stage.model:
        idata = vsgp.sample(
            100, tune=150, chains=2, stage=stage, method="nuts", random_seed=1, progressbar=False
        )
    assert idata["posterior"]["rough"].shape == (2, 100, 40)
    assert not idata["sample_stats"]["diverging"].any()
