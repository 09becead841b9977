"""Functions that share data have sites together: they make up for one another."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW
from scipy.special import logsumexp

import pymc_vsgp as vsgp

from pymc_vsgp.fit import joint
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.density import Points
from pymc_vsgp.fit.stage import hand_over
from pymc_vsgp.fit.turns import of_model
from pymc_vsgp.inducing.coordinates import Sites, Tied, Together, Whitened
from pymc_vsgp.model.variable import inducing_variables

X = np.linspace(0.0, 4.0, 8)[:, None]
Y = np.random.default_rng(2).normal(size=8) + 1.0
NOISE = 0.3


def quadratic(ls, sd):
    return sd**2 * np.exp(-0.5 * (X - X.T) ** 2 / ls**2)


POINTS = {"Xu": X, "jitter": 1e-9}
WAVES = {"inducing": vsgp.inducing.Fourier(20.0, 20, center=2.0)}
KINDS = {"points": (POINTS,) * 2, "coefficients": (WAVES,) * 2, "both": (WAVES, POINTS)}


def summed(likelihood=None, y=Y, kind="points"):
    """A sum of two functions and an intercept; each is exact where its inducing points are X."""
    likelihood = likelihood or (lambda f, g, eta: pm.Normal.dist(f + g + eta, NOISE))
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 3.0)
        sd = pm.HalfNormal("sd", 1.0, shape=2)
        slope, gps = pm.Normal("slope"), []
        for i, (name, ls) in enumerate((("u", 0.7), ("w", 3.0))):
            gps.append(
                pm.gp.VariationalSparse(
                    mean_func=pm.gp.mean.Linear(slope, 0.2),
                    cov_func=sd[i] ** 2 * pm.gp.cov.ExpQuad(1, ls=ls),
                )
            )
            gps[-1].prior(name, **KINDS[kind][i])
        if likelihood is vsgp.Poisson:
            lik = likelihood(exposure=pm.math.exp(b))
            vsgp.Coregionalized([1.0, 1.0], gps).likelihood("y", lik, X=X, y=y)
        else:
            vsgp.likelihood("y", lambda f, g: likelihood(f, g, b), gps, X=X, y=y)
    return model


def fitted(model, **kwargs):
    return vsgp.fit_gaussian(model=model, progressbar=False, random_seed=1, **kwargs)


def transforms(model):
    return {type(model.rvs_to_transforms[u]) for u in inducing_variables(model)}


def points(model, rng, n=3):
    """Return unconstrained points of a model."""
    start = model.initial_point()
    return [{k: 0.5 * rng.normal(size=np.shape(v)) for k, v in start.items()} for _ in range(n)]


@pytest.fixture
def as_if_many(monkeypatch):
    """Forty coefficients are as many as are independent under the q of a stage."""
    monkeypatch.setattr("pymc_vsgp.fit.approximation.MOST_DENSE", 20)


@pytest.fixture
def as_if_informed(as_if_many, monkeypatch):
    """And these are correlated under q, however little the data say."""
    monkeypatch.setattr("pymc_vsgp.fit.correlated.INFORMED", -np.inf)
    monkeypatch.setattr("pymc_vsgp.fit.correlated.APART", -np.inf)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("both", ""),
        pytest.param("both", "as_if_many", marks=pytest.mark.long),
        *long(("points", ""), ("coefficients", ""), ("coefficients", "as_if_many")),
        pytest.param("both", "as_if_informed", marks=pytest.mark.long),
    ],
)
def test_epsilon_of_a_sum_is_standard_normal_for_every_theta(kind, how, rng, request):
    """Of normal noise, at any scales, intercept and slope of the means: all of them together."""
    if how:
        request.getfixturevalue(how)
    model = summed(kind=kind)
    fitted(model, maxiter=8)
    assert transforms(model) == {Together}
    logp = model.compile_logp(mode=RAW)
    values = [model.rvs_to_values[u] for u in inducing_variables(model)]
    names = [v.name for v in values]
    for point in points(model, rng):
        center = logp(point | {v.name: np.zeros(v.type.shape) for v in values})
        epsilon = np.concatenate([point[name] for name in names])
        np.testing.assert_allclose(center - logp(point), epsilon @ epsilon / 2.0, rtol=1e-5)


@pytest.mark.parametrize("kind", ["both", *long("points", "coefficients")])
@pytest.mark.parametrize("together", [True, *long(False)])
def test_a_step_from_bad_sites_is_exact_for_normal_noise(kind, together, rng, monkeypatch):
    """Importance weights take it at each theta, where the stage's coordinates do not fit."""
    if not together:
        monkeypatch.setattr(joint, "_says_as_much", lambda *args: False)
    model = summed(kind=kind)
    stage = fitted(model, maxiter=2)
    assert transforms(model) == {Together if together else Tied}
    bad = {
        name: s._replace(linear=rng.normal(size=s.linear.shape), root=0.6 * s.root)
        for name, s in stage.sites.items()
    }
    hand_over(model, bad, {})
    at = Points(model)
    theta, epsilon = 0.5 * rng.normal(size=(3, at.n_theta)), rng.normal(size=(3, 2, at.n_epsilon))
    found, center = at.refined()(theta, epsilon)[0], at.refined()(theta, 0.0 * epsilon)[0]
    np.testing.assert_allclose(center - found, (epsilon**2).sum(axis=-1) / 2.0, rtol=1e-5)


def of_sizes(rng, second="points"):
    """Two functions of one process, and one of another, and sites of all of them."""
    with pm.Model() as model:
        ls, slope = pm.Gamma("ls", 3.0, 5.0), pm.Normal("slope")
        gps = []
        waves = {"inducing": vsgp.inducing.Fourier(20.0, 2, center=2.0)}
        given = {"Xu": X[:5]}, waves if second == "coefficients" else {"Xu": X[:5]}
        for name, kwargs, K in zip("uw", given, (2, 1), strict=True):
            gps.append(
                pm.gp.VariationalSparse(
                    mean_func=pm.gp.mean.Linear(slope, 0.7),
                    cov_func=pm.gp.cov.Matern52(1, ls=ls),
                )
            )
            gps[-1].prior(name, **kwargs, n_outputs=K)
        vsgp.likelihood("y", vsgp.Softmax(3), gps, X=X, y=np.arange(8) % 3)
    root = rng.uniform(0.1, 3.0) * rng.normal(size=(15, 15))
    rows = {"u": root[:10].reshape(2, 5, 15), "w": root[10:].reshape(1, 5, 15)}
    sites = {name: Sites(rng.normal(size=B.shape[:2]), B) for name, B in rows.items()}
    return model, sites


@pytest.mark.parametrize("mode", [RAW, *long("NUMBA", "JAX")])
@pytest.mark.parametrize("second", ["points", "coefficients"])
def test_the_density_does_not_depend_on_sites(second, mode, rng):
    if mode == "JAX":
        pytest.importorskip("jax")
    model, _ = of_sizes(rng, second)
    us = inducing_variables(model)
    values = [model.rvs_to_values[u] for u in us]
    theta = points(model, rng, 1)[0]
    target, densities = None, []
    for i in range(3):
        if i:
            hand_over(model, of_sizes(rng, second)[1], {})
            assert transforms(model) == {Together}
        graphs = model.replace_rvs_by_values(us)
        flat = pt.concatenate([g.ravel() for g in graphs])
        settings = {"inputs": model.value_vars, "mode": RAW, "on_unused_input": "ignore"}
        back = model.compile_fn([flat], **settings)

        def at(epsilon):
            parts = np.split(epsilon, [10])
            shapes = zip(values, parts, ((2, 5), (5,)), strict=True)
            return theta | {v.name: x.reshape(shape) for v, x, shape in shapes}

        zero = back(at(np.zeros(15)))[0]
        J = np.stack([back(at(e))[0] - zero for e in np.eye(15)], axis=1)
        target = zero + J @ rng.normal(size=15) if target is None else target
        epsilon = np.linalg.solve(J, target - zero)
        logp = model.compile_logp(mode=mode if i == 2 else RAW)
        densities.append(logp(at(epsilon)) - np.linalg.slogdet(J)[1])
    np.testing.assert_allclose(densities[1:], densities[0], rtol=1e-8)


@pytest.mark.parametrize("second", ["points", "coefficients"])
def test_forward_is_the_inverse_of_backward(second, rng):
    model, sites = of_sizes(rng, second)
    hand_over(model, sites, {})
    point = points(model, rng, 1)[0]
    graphs = []
    for u in inducing_variables(model):
        inputs = [u.owner.inputs[0], *model.replace_rvs_by_values(list(u.owner.inputs[1:]))]
        transform, value = model.rvs_to_transforms[u], model.rvs_to_values[u]
        graphs.append(transform.forward(transform.backward(value, *inputs), *inputs) - value)
    fn = model.compile_fn(graphs, inputs=model.value_vars, mode=RAW, on_unused_input="ignore")
    for gap in fn(point):
        np.testing.assert_allclose(gap, 0.0, atol=1e-9)


def classes(inducing=None, **kwargs):
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0), **kwargs)
        gp.prior("u", None if inducing else X, inducing=inducing, n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=np.arange(8) % 3)
    return model


@pytest.mark.parametrize("many", [None, *long(False, True)])
def test_a_fit_goes_on_from_sites_of_each(many, request):
    if many:
        request.getfixturevalue("as_if_many")
    inducing = None if many is None else vsgp.inducing.Fourier(12.0, 12, center=2.0)
    model = classes(inducing, mean_func=pm.gp.mean.Constant(0.4))
    stage = fitted(model)
    bound = Bound(model, mode=RAW)
    theta = bound.ravel(stage.theta_unconstrained)
    sites = of_model(bound, theta, stage)
    M = 8 if many is None else 25
    assert stage.sites["u"].root.shape == (3, M, 3 * M)
    assert sites[0].root.shape == ((3, M) if many else (3, M, M))
    found = bound(theta, sites, bound.no_offsets())
    # The precision of q is that of the rough expectation, which a step makes right.
    np.testing.assert_allclose(found.value, stage.elbo, atol=0.01)
    v, R = found.mean[0], found.R[0]
    q = found.prior_mean[0] + (v @ R.T if many is None else R * v)
    np.testing.assert_allclose(q, stage.mean["u"], atol=0.01)
    again = fitted(model, start=stage, maxiter=1)
    np.testing.assert_allclose(again.elbo, stage.elbo, atol=0.001)


@pytest.mark.slow
def test_draws_of_a_stage_have_the_spread_of_a_sum():
    """Independent functions make it too wide, and each of them too narrow."""
    with pm.Model():
        gps = []
        for name, ls in (("u", 0.7), ("w", 3.0)):
            gps.append(pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)))
            gps[-1].prior(name, Xu=X, jitter=1e-9)
        vsgp.likelihood("y", lambda f, g: pm.Normal.dist(f + g, NOISE), gps, X=X, y=Y)
        stage = vsgp.fit_gaussian(progressbar=False)
    draws = stage.to_datatree(8000, random_seed=1)["posterior"]
    u, w = draws["u"].values[0], draws["w"].values[0]
    K = quadratic(0.7, 1.0), quadratic(3.0, 1.0)
    gain = np.linalg.inv(K[0] + K[1] + NOISE**2 * np.eye(8))
    for x, prior in ((u, K[0]), (w, K[1]), (u + w, K[0] + K[1])):
        sd = np.sqrt(np.diagonal(prior - prior @ gain @ prior))
        np.testing.assert_allclose(x.std(axis=0), sd, rtol=0.04)
        np.testing.assert_allclose(x.mean(axis=0), prior @ gain @ Y, atol=0.05)
    between = -K[0] @ gain @ K[1]
    np.testing.assert_allclose((u - u.mean(0)).T @ (w - w.mean(0)) / 8000, between, atol=0.04)


def location_and_scale():
    with pm.Model() as model:
        gps = [pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0)) for _ in range(2)]
        for name, gp in zip("uw", gps, strict=True):
            gp.prior(name, X)
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), gps, X=X, y=Y)
    return model


def kinks():
    return summed(lambda f, g, eta: pm.Laplace.dist(f + g + eta, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "kind"),
    [(classes, Together), (location_and_scale, Tied), *long((kinks, Tied))],
)
def test_who_has_sites_together(build, kind):
    """Not where data tell each function alone, and of a density that is linear."""
    model = build()
    stage = fitted(model, maxiter=2)
    assert transforms(model) == {kind}
    assert all(s.shared == (kind is Together) for s in stage.sites.values())


@pytest.mark.slow
def test_too_many_values_for_the_data(monkeypatch):
    monkeypatch.setattr(joint, "FEW", 0)
    model = classes()
    fitted(model, maxiter=2)
    assert transforms(model) == {Tied}
    monkeypatch.setattr(joint, "FACTOR", 0.0)
    fitted(model, maxiter=2)
    assert transforms(model) == {Together}


@pytest.mark.long
def test_minibatches_have_them_too():
    model = summed(vsgp.Poisson, np.arange(8))
    stage = fitted(model, batch_size=4, maxiter=50)
    assert transforms(model) == {Together}
    assert all(s.shared for s in stage.sites.values())


@pytest.mark.slow
def test_coordinates_come_and_go(rng):
    """After a reset, in a copy, in a frozen model, and where other sites are put in."""
    model, sites = of_sizes(rng)
    plain = model.compile_logp(mode=RAW)
    point = points(model, rng, 1)[0]
    hand_over(model, sites, {})
    tied = model.compile_logp(mode=RAW)
    # The same variables: functions that are compiled look at new sites.
    other = of_sizes(rng)[1]
    before = tied(point)
    hand_over(model, other, {})
    np.testing.assert_allclose(tied(point), model.compile_logp(mode=RAW)(point), rtol=1e-12)
    assert abs(tied(point) - before) > 1e-3
    for made in (
        pm.model.fgraph.clone_model(model),
        pm.model.transform.optimization.freeze_dims_and_data(model),
    ):
        assert transforms(made) == {Together}
        np.testing.assert_allclose(made.compile_logp(mode=RAW)(point), tied(point), rtol=1e-10)
    alone = {name: Sites(s.linear, s.root[:, :, : s.root.shape[1]]) for name, s in sites.items()}
    hand_over(model, alone, {})
    assert transforms(model) == {Tied}
    hand_over(model, sites, {})
    vsgp.reset(model)
    assert transforms(model) == {Whitened}
    assert not {v.name for v in model.data_vars if "sites" in v.name}
    np.testing.assert_allclose(model.compile_logp(mode=RAW)(point), plain(point), rtol=1e-12)


def test_the_prior_is_drawn_as_before(rng):
    model, sites = of_sizes(rng)
    with model:
        settings = {"random_seed": 1, "compile_kwargs": {"mode": RAW}}
        before = pm.sample_prior_predictive(5, **settings)["prior"]
        hand_over(model, sites, {})
        after = pm.sample_prior_predictive(5, **settings)["prior"]
    for name in "uw":
        np.testing.assert_allclose(after[name], before[name], rtol=1e-10)


def marginal_moments(n=60):
    """Means and deviations of the scales and the level, by quadrature over both scales."""
    grid = (np.arange(n) + 0.5) * 5.0 / n
    logp, level = np.empty((n, n)), np.empty((n, n))
    for i, a in enumerate(grid):
        for j, c in enumerate(grid):
            K = quadratic(0.7, a) + quadratic(3.0, c) + NOISE**2 * np.eye(8) + 9.0
            # Means of both have a slope of the inputs, with a prior, and a level.
            K += 4.0 * X @ X.T
            gap = Y - 0.4
            logp[i, j] = -0.5 * gap @ np.linalg.solve(K, gap) - np.linalg.slogdet(K)[1] / 2.0
            logp[i, j] -= (a**2 + c**2) / 2.0
            level[i, j] = 9.0 * np.ones(8) @ np.linalg.solve(K, gap)
    p = np.exp(logp - logsumexp(logp))
    sd = [np.average(grid, weights=p.sum(axis=1 - k)) for k in range(2)]
    return np.array([*sd, (p * level).sum()])


@pytest.mark.long
@pytest.mark.parametrize(
    ("sampler", "kind"), [("nutpie", "points"), ("nutpie", "both"), ("pymc", "points")]
)
def test_nuts_of_a_sum_mixes(sampler, kind):
    """In coordinates of each function alone it did not: effective draws were a tenth."""
    if sampler == "nutpie":
        pytest.importorskip("nutpie")
    with summed(kind=kind) as model:
        settings = {"random_seed": 1, "progressbar": False, "nuts_sampler": sampler}
        idata = vsgp.sample(1000, tune=500, chains=2, method="nuts", **settings)
    assert transforms(model) == {Together}
    draws = idata["posterior"].to_dataset()[["sd", "b"]]
    found = az.summary(draws, kind="all", round_to="none")
    assert (found["ess_bulk"] > 400).all() and (found["r_hat"] < 1.02).all()
    gap = found["mean"].loc[["sd[0]", "sd[1]", "b"]] - marginal_moments()
    np.testing.assert_array_less(np.abs(gap), 4.0 * found["mcse_mean"].loc[gap.index] + 0.02)
