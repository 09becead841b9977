"""Optima of the Gaussian stage: the search for others, and chains that start at each."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from marks import long
from pymc.distributions.transforms import ordered
from pymc.initial_point import make_initial_point_fn
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.fit import adaptation
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.fit.initial import random_start, starts_of_chains
from pymc_vsgp.fit.natural import Natural
from pymc_vsgp.fit.starts import (
    _best,
    _distance,
    _of_prior,
    search,
    with_shorter_lengthscales,
)

D, N = 6, 40


def of_three_inputs(initval=None):
    """Few data, of which the first three inputs of six tell, as those with `initval` know."""
    X = np.random.default_rng(6).uniform(0.0, 10.0, (N, D))
    rng = np.random.default_rng(126)
    k = rng.integers(1, 4)
    f = sum(np.sin(X[:, j] * rng.uniform(0.3, 1.5) + rng.uniform(0.0, 6.0)) for j in range(k))
    y = f + 0.4 * rng.normal(size=N)
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 1.5, 1.0, shape=D, initval=initval)
        sd = pm.HalfNormal("sd", 3.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.2), cov_func=sd**2 * pm.gp.cov.Matern52(D, ls=ls)
        )
        gp.prior("u", Xu=vsgp.inducing.kmeans(X, 30, random_seed=1))
        gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("sigma", 1.0)), X=X, y=y)
    return model


def two_optima(share):
    """A stage, and another of a share of the posterior ten standard deviations away."""
    X = np.linspace(0.0, 5.0, 12)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.LogNormal("ls", 0.0, 1.0)))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.arange(12) % 4)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    ((name, at),) = stage.theta_unconstrained.items()
    away = {name: at + 10.0 * np.sqrt(stage.theta_covariance[0, 0])}
    elbo = stage.elbo + np.log(share / (1.0 - share))
    other = replace(stage, theta_unconstrained=away, elbo=elbo)
    return replace(stage, elsewhere=(other,)), name


@pytest.mark.long
@pytest.mark.parametrize("bent", [False, True])
def test_weights_lead_to_a_better_optimum(bent, monkeypatch):
    """From the initial point, nearly all of y is noise. Proposals that bend get there alone."""
    if not bent:
        monkeypatch.setattr(adaptation, "TOLD", np.inf)
    model = of_three_inputs()
    known = of_three_inputs(initval=[2.0, 2.0, 2.0, 20.0, 20.0, 20.0])
    with known:
        best = vsgp.fit_gaussian(progressbar=False)
        expected = vsgp.sample(stage=best, method="importance", random_seed=2, progressbar=False)
    with model:
        stage = vsgp.fit_gaussian(progressbar=False)
        idata = vsgp.sample(stage=stage, random_seed=2, progressbar=False)
    assert best.elbo > stage.elbo + 5.0
    attrs = idata["posterior"].attrs
    assert attrs["method"] == "importance"
    assert attrs["refused"] == ""
    if not bent:
        assert idata["gaussian_stage"].attrs["elbo"] == pytest.approx(best.elbo, abs=0.05)
    log_evidence = expected["posterior"].attrs["log_evidence"]
    assert attrs["log_evidence"] == pytest.approx(log_evidence, abs=0.2)
    for name in ("ls", "sd", "sigma"):
        a, b = (np.log(i["posterior"][name]) for i in (idata, expected))
        off = np.abs(a.mean(["chain", "draw"]) - b.mean(["chain", "draw"]))
        assert float((off / b.std(["chain", "draw"])).max()) < 0.25
    # The model has the coordinates that its draws are of.
    root = idata["gaussian_stage"]["u_sites_root"]
    np.testing.assert_array_equal(model["u_sites_root"].get_value(), root)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "frequency"), [(2, 4.0), *long((0, 3.0), (4, 3.0))])
def test_a_function_that_one_start_takes_for_noise(seed, frequency):
    """The prior hardly expects so short a lengthscale: the evidence is that of a grid, by numpy."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 10.0, (N, 1))
    y = np.sin(frequency * X[:, 0]) + 0.1 * rng.normal(size=N)
    with pm.Model() as model:
        ls, sd = pm.InverseGamma("ls", mu=4, sigma=3), pm.HalfNormal("sd", 1.0)
        gp = vsgp.VariationalSparse(cov_func=sd**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=X)
        gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("sigma", 1.0)), X=X, y=y)
    found = vsgp.sample(200, chains=2, model=model, random_seed=1, progressbar=False)["posterior"]
    a = 2.0 + (4.0 / 3.0) ** 2
    prior = stats.invgamma(a, scale=4.0 * (a - 1.0)), stats.halfnorm(), stats.halfnorm()
    ranges = (0.2, 9.0, 90), (0.1, 4.0, 70), (0.03, 2.0, 90)
    grids, logs = [np.geomspace(*r) for r in ranges], []
    for density, grid in zip(prior, grids, strict=True):
        logs.append(density.logpdf(grid) + np.log(grid * np.log(grid[1] / grid[0])))
    of_ls = []
    for scale in grids[0]:
        w, V = np.linalg.eigh(np.exp(-0.5 * ((X - X.T) / scale) ** 2))
        values = np.clip(w, 0.0, None) * grids[1][:, None, None] ** 2 + grids[2][:, None] ** 2
        terms = (V.T @ y) ** 2 / values + np.log(2.0 * np.pi * values)
        of_ls.append(-0.5 * terms.sum(axis=-1) + logs[1][:, None] + logs[2])
    wanted = special.logsumexp(np.array(of_ls) + logs[0][:, None, None])
    np.testing.assert_allclose(found.attrs["log_evidence"], wanted, atol=0.1)
    assert found["sigma"].mean() < 0.2
    # Draws of the prior that end elsewhere do not take its place.
    stage = vsgp.fit_gaussian(model=model, n_starts=2, random_seed=0, progressbar=False)
    assert stage.theta["sigma"] < 0.2


def by_callable(sigma):
    return lambda f: pm.Normal.dist(f, sigma)


OBSERVED = {
    "student": lambda: vsgp.StudentT(4.0, pm.HalfNormal("sigma", 1.0)),
    "log noise": lambda: vsgp.Gaussian(pm.math.exp(pm.Normal("log_sigma"))),
    "of groups": lambda: vsgp.Gaussian(pm.HalfNormal("sigma", 1.0, shape=2)[np.arange(N) % 2]),
    "beta": lambda: vsgp.Beta(pm.HalfNormal("phi", 30.0)),
    "poisson": vsgp.Poisson,
    "callable": lambda: by_callable(pm.HalfNormal("sigma", 1.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["poisson", *long(*(k for k in OBSERVED if k != "poisson"))])
def test_the_best_of_two_optima_for_other_likelihoods(kind):
    """A start at the short lengthscale of the function ends there, too."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (N, 1))
    f = np.sin(4.0 * X[:, 0])
    y = f + 0.1 * rng.standard_t(4, N)
    if kind == "beta":
        mean = special.expit(1.5 * f)
        y = rng.beta(40.0 * mean, 40.0 * (1.0 - mean))
    elif kind == "poisson":
        y = np.random.default_rng(7).poisson(np.exp(1.5 * f + 1.0))
    elbos = []
    for start in (None, 0.4):
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", mu=4, sigma=3, initval=start)
            log_sd = pm.Normal("log_sd", 0.0, 1.0)
            kernel = pm.math.exp(2.0 * log_sd) * pm.gp.cov.ExpQuad(1, ls=ls)
            gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(0.1), cov_func=kernel)
            gp.prior("u", Xu=X)
            gp.likelihood("y", OBSERVED[kind](), X=X, y=y)
        initval = {} if start is None else {"sigma": 0.15, "log_sigma": -2.0, "phi": 40.0}
        for rv in model.free_RVs:
            if rv.name in initval:
                model.rvs_to_initial_values[rv] = np.full(rv.shape.eval(), initval[rv.name])
        elbos.append(vsgp.fit_gaussian(model=model, progressbar=False).elbo)
    np.testing.assert_allclose(*elbos, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("separate", [True, *long(False)])
@pytest.mark.parametrize("prior", [pm.LogNormal, *long(pm.Uniform)])
def test_a_function_of_one_input_of_two(prior, separate):
    """A short lengthscale of one alone: a fit that starts there ends at the same optimum."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (60, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.2 * rng.normal(size=60)
    elbos = []
    for start in (None, [0.8, 6.0]):
        with pm.Model() as model:
            of = (1.0, 0.7) if prior is pm.LogNormal else (0.05, 9.0)
            if separate:
                each = start or [None, None]
                ls = pm.math.stack([prior(f"l{i}", *of, initval=each[i]) for i in range(2)])
            else:
                ls = prior("ls", *of, shape=2, initval=start)
            kernel = pm.HalfNormal("sd", 1.0) ** 2 * pm.gp.cov.Matern52(2, ls=ls)
            gp = vsgp.VariationalSparse(cov_func=kernel)
            gp.prior("u", Xu=vsgp.inducing.kmeans(X, 30, random_seed=1))
            sigma = pm.HalfNormal("sigma", 1.0, initval=start and 0.2)
            gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=y)
        elbos.append(vsgp.fit_gaussian(model=model, progressbar=False).elbo)
    np.testing.assert_allclose(*elbos, atol=1e-3)


@pytest.mark.slow
def test_search_where_there_is_one_optimum():
    stage, name = two_optima(0.5)
    stage = replace(stage, elsewhere=())
    fitter = Fitter(stage.model)
    for away in (0.0, 2.0):
        theta = np.atleast_1d(stage.theta_unconstrained[name]) + away
        assert search(stage, theta, fitter, 1, False) is None


@pytest.mark.slow
def test_search_that_ends_without_a_fit():
    """No number at a theta, or Ctrl-C."""
    stage, name = two_optima(0.5)

    class Fails:
        bound = None

        def __call__(self, **kwargs):
            raise ValueError("The ELBO is not finite.")

    class Interrupted(Fails):
        def __call__(self, **kwargs):
            return replace(stage, interrupted=True)

    theta = np.atleast_1d(stage.theta_unconstrained[name])
    assert search(stage, theta, Fails(), 1, False) is None
    with pytest.raises(KeyboardInterrupt, match="In the search for other optima"):
        search(stage, theta, Interrupted(), 1, False)


@pytest.mark.slow
def test_ctrl_c_in_another_start_keeps_the_first():
    """Before its first round has ended, or after it."""
    stage = replace(two_optima(0.5)[0], elsewhere=())
    bound = Fitter(stage.model).bound

    def before(theta, promising):
        raise KeyboardInterrupt

    for fit in (before, lambda theta, promising: replace(stage, elbo=1e3, interrupted=True)):
        found = with_shorter_lengthscales(stage, bound, fit)
        assert found.interrupted and found.elbo == stage.elbo
        assert "What earlier ones found is kept" in found.message


@pytest.mark.slow
def test_optima_of_other_coordinates_are_left_out():
    """What is compiled for sites of one size is not valid for others."""
    stage, name = two_optima(0.5)
    main, (other,) = replace(stage, elsewhere=()), stage.elsewhere
    better = replace(other, elbo=other.elbo + 5.0)
    wider = {k: s._replace(root=s.root[:, :, :1]) for k, s in other.sites.items()}

    class Fitted:
        bound = None

        def __init__(self, found):
            self.found = found

        def __call__(self, **kwargs):
            return self.found

    theta = np.atleast_1d(stage.theta_unconstrained[name])
    for found, elbo in ((better, better.elbo), (replace(better, sites=wider), None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pymc_vsgp.fit.starts.best_of", lambda first, *_: (first, ""))
            new = search(main, theta, Fitted(found), 1, False)
        assert (None if new is None else new.elbo) == elbo


@pytest.mark.slow
def test_a_variance_that_rounding_took(rng):
    """An optimum is not the same as another because it has a direction of no variance."""
    stage = replace(two_optima(0.5)[0], elsewhere=())
    A = rng.normal(size=(3, 3)) * [1e-6, 1.0, 1e6]
    at, other = (replace(stage, theta_unconstrained={"a": x}) for x in rng.normal(size=(2, 3)))
    at, other = (replace(s, theta_covariance=c * A.T @ A) for s, c in ((at, 1.0), (other, 4.0)))
    away = at.theta_unconstrained["a"] - other.theta_unconstrained["a"]
    wanted = np.linalg.norm(np.linalg.solve(A.T, away)) / 2.0
    assert _distance(at, other) == pytest.approx(wanted, rel=1e-6)
    mass = stage.elbo + np.log(np.abs(np.linalg.det(A)))
    assert at.log_mass == pytest.approx(mass, rel=1e-10)

    more = 1.0 + 2.0**-52  # the eigenvalues are 2, and -2**-52
    covariance = np.array([[1.0, more], [more, 1.0]])
    flat = replace(stage, theta_unconstrained={"a": np.zeros(2)}, theta_covariance=covariance)
    near = replace(flat, theta_unconstrained={"a": np.array([1.0, -1.0])})
    wide = replace(near, theta_covariance=0.01 * np.eye(2))
    assert _distance(flat, wide) == pytest.approx(np.sqrt(200.0))
    assert _distance(flat, near) > 1e7
    assert len(_best([flat, wide])[1]) == 2


@pytest.mark.parametrize("seed", range(5))
def test_covariances_have_a_root(seed):
    """Also where the ELBO curves so much that rounding would leave less than no variance."""

    class Bent(Natural):
        def __init__(self, H):
            self.H, self.theta = H, np.zeros(len(H))
            self.bound = SimpleNamespace(has_units=lambda: np.zeros(len(H), bool))

        def _bend(self, i, own):
            return self.H[i]

    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(4, 4)))[0]
    H = (Q * [1.0, 10.0, 1e3, 1e5]) @ Q.T
    np.testing.assert_allclose(Bent(H).curvature(), np.linalg.inv(H), rtol=1e-8, atol=1e-12)
    found = Bent((Q * [1.0, 10.0, 1e3, 1e20]) @ Q.T).curvature()
    np.linalg.cholesky(found)
    assert Q[:, 3] @ found @ Q[:, 3] < 1e-11


@pytest.mark.slow
def test_chains_start_at_each_optimum():
    stage, name = two_optima(0.25)
    model, n = stage.model, 400
    start = make_initial_point_fn(
        model=model, overrides=random_start(model, stage), jitter_rvs=set()
    )
    expressions = np.array([start(seed)[name] for seed in range(n)])
    points = starts_of_chains(model, stage, n, "pymc", np.random.default_rng(1), None)["initvals"]
    numbers = np.log([p["ls"] for p in points])
    center, sd = float(stage.theta_unconstrained[name]), np.sqrt(stage.theta_covariance[0, 0])
    for found in (expressions, numbers):
        away = (found - center) / sd > 5.0
        assert abs(away.mean() - 0.25) < 4.0 * np.sqrt(0.25 * 0.75 / n)
        for at, part in ((0.0, found[~away]), (10.0, found[away])):
            z = (part - center) / sd - at
            assert abs(z.mean()) < 4.0 * 1.5 / np.sqrt(len(z))
            assert abs(z.std() / 1.5 - 1.0) < 4.0 / np.sqrt(2.0 * len(z))


@pytest.mark.slow
def test_starts_of_ordered_variables():
    """PyMC draws them in any order: those in order are taken."""
    X = np.linspace(0.0, 5.0, 12)[:, None]
    with pm.Model() as model:
        cuts = pm.Normal("cuts", 0.0, 2.0, shape=4, transform=ordered, initval=[-2, -1, 1, 2])
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Ordinal(cuts), X=X, y=np.arange(12) % 5)
    found = _of_prior(Fitter(model).bound, 6, np.random.default_rng(1))
    assert found.shape == (6, 4)
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == 6
