"""The Gaussian stage: its bound, its fit, and what it does to a model."""

import time

from itertools import chain, product, repeat
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import reference
import reference_gp

from marks import long
from modes import RAW
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.conditional import ifelse
from scipy import integrate, stats

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Bound, Variables
from pymc_vsgp.fit.compiled import OneOnJax, OneOnNumba
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.fit.minibatch import Minibatches, judge
from pymc_vsgp.fit.natural import Natural
from pymc_vsgp.inducing.coordinates import Sites, sites_of

N, M, D = 40, 6, 2
SIGMA = 0.3


@pytest.fixture
def data(rng):
    X = rng.uniform(-2.0, 2.0, size=(N, D))
    f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
    return X, rng.permutation(X)[:M], f


def build(likelihood, X, Xu, y, n_columns=D):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3.0, 2.0, shape=n_columns)
        variance = pm.Gamma("variance", 3.0, 2.0)
        c = pm.Normal("c")
        gp = pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(c), cov_func=variance * pm.gp.cov.ExpQuad(D, ls=ls)
        )
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


THETA = {
    "ls_log__": np.log([1.1, 1.6]),
    "variance_log__": np.log(1.3),
    "c": 0.2,
}


def log_prior(point):
    """Density of the unconstrained parameters, Jacobian included."""
    ls, variance = np.exp(point["ls_log__"]), np.exp(point["variance_log__"])
    value = np.sum(stats.gamma.logpdf(ls, 3.0, scale=0.5) + np.log(ls))
    value += stats.gamma.logpdf(variance, 3.0, scale=0.5) + np.log(variance)
    return value + stats.norm.logpdf(point["c"])


def random_sites(rng, n_functions=1, m=M):
    root = rng.normal(size=(n_functions, m, m))
    return Sites(rng.normal(size=(n_functions, m)), root)


FAMILIES = {
    "poisson": (
        vsgp.Poisson,
        lambda f, rng: rng.poisson(np.exp(f)),
        reference.poisson,
        (1.0, "log"),
    ),
    "probit": (
        lambda: vsgp.Bernoulli("probit"),
        lambda f, rng: (rng.random(len(f)) < stats.norm.cdf(f)).astype(int),
        reference.bernoulli,
        ("probit",),
    ),
    "student_t": (
        lambda: vsgp.StudentT(nu=4.0, sigma=SIGMA),
        lambda f, rng: f + SIGMA * rng.standard_t(4.0, size=len(f)),
        reference.student_t,
        (4.0, SIGMA),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_bound_equals_an_independent_one(family, data, rng):
    """Dense matrices and scipy's quadrature, for any sites, at any theta."""
    X, Xu, f = data
    make, draw, logpdf, args = FAMILIES[family]
    y = draw(f, rng)
    model = build(make(), X, Xu, y)
    bound = Bound(model, mode=RAW)
    sites = random_sites(rng)
    value = bound(bound.ravel(THETA), [sites]).value

    ls, variance, c = np.exp(THETA["ls_log__"]), np.exp(THETA["variance_log__"]), THETA["c"]
    Kuu = reference_gp.ard_kernel(Xu, Xu, ls, variance) + reference_gp.JITTER * variance * np.eye(M)
    Kuf = reference_gp.ard_kernel(Xu, X, ls, variance)
    # q(u): the prior times the sites, which are exp(linear u - u root root^T u / 2).
    precision = np.linalg.inv(Kuu)
    S = np.linalg.inv(precision + sites.root[0] @ sites.root[0].T)
    mean = S @ (precision @ np.full(M, c) + sites.linear[0])
    W = np.linalg.solve(Kuu, Kuf)
    mu = c + W.T @ (mean - c)
    gamma = variance - np.sum(Kuf * W, axis=0) + np.sum(W * (S @ W), axis=0)

    def expectation(n):
        sd = np.sqrt(gamma[n])
        inside = lambda t: stats.norm.pdf(t) * logpdf(mu[n] + sd * t, y[n], *args)  # noqa: E731  (short, and used once)
        return integrate.quad(inside, -12.0, 12.0, epsabs=1e-10, limit=200)[0]

    kl = stats.multivariate_normal(mean, S).entropy()
    cross = (
        stats.multivariate_normal.logpdf(mean, np.full(M, c), Kuu) - np.trace(precision @ S) / 2.0
    )
    expected = sum(expectation(n) for n in range(N)) + kl + cross + log_prior(THETA)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.slow
def test_gradient_of_the_bound(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    bound = Bound(model, move_inducing=True, mode=RAW)
    sites, theta = [random_sites(rng)], bound.ravel(THETA)
    evaluation = bound(theta, sites, [Xu])
    x = np.concatenate([theta, Xu.ravel()])
    h = 1e-5
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        difference = [
            bound(z[: len(theta)], sites, [z[len(theta) :].reshape(Xu.shape)]).value
            for z in (up, down)
        ]
        slope = (difference[0] - difference[1]) / (2.0 * h)
        np.testing.assert_allclose(evaluation.gradient[i], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gaussian_likelihood_reaches_the_collapsed_bound(data, rng):
    """One natural-gradient step is exact, and theta is then at a maximum of Titsias's bound."""
    X, Xu, f = data
    y = f + SIGMA * rng.normal(size=N)
    model = build(vsgp.Gaussian(SIGMA), X, Xu, y)
    stage = vsgp.fit_gaussian(model=model, progressbar=False, tol=1e-8)
    assert stage.converged
    point = stage.theta_unconstrained

    def collapsed(point):
        ls, variance, c = np.exp(point["ls_log__"]), np.exp(point["variance_log__"]), point["c"]
        mean = lambda x: np.full(len(x), c)  # noqa: E731  (short, and used once)
        value = reference_gp.collapsed_bound(X, y, Xu, ls, variance, mean, SIGMA)
        return value + log_prior(point)

    best = collapsed(point)
    np.testing.assert_allclose(stage.elbo, best, rtol=1e-8)
    for name, value in point.items():
        for sign in (-1.0, 1.0):
            moved = point | {name: value + sign * 0.05}
            assert collapsed(moved) < best


@pytest.mark.slow
def test_curvature_is_that_of_the_bound_at_its_best(data, rng):
    """The dense bound of Titsias, which has the best q(u) of each theta, by differences."""
    X, Xu, f = data
    y = f + 0.5 * rng.normal(size=N)
    with pm.Model():
        s, ls = pm.HalfNormal("s"), pm.Gamma("ls", 3.0, 2.0)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(D, ls=ls))
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(s), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False, tol=1e-6)
    assert list(stage.theta_unconstrained) == ["s_log__", "ls_log__"]

    def best(theta):
        sigma, ls = np.exp(theta)
        mean = lambda x: np.zeros(len(x))  # noqa: E731  (short, and used once)
        value = reference_gp.collapsed_bound(X, y, Xu, np.array([ls, ls]), 1.0, mean, sigma)
        prior = stats.halfnorm.logpdf(sigma) + stats.gamma.logpdf(ls, 3.0, scale=0.5)
        return value + prior + theta.sum()

    center, h = stage._theta_normal()[0], 1e-3 * np.eye(2)
    hessian = [
        [
            (
                best(center + a + b)
                - best(center + a - b)
                - best(center - a + b)
                + best(center - a - b)
            )
            for a in h
        ]
        for b in h
    ]
    precision = np.linalg.inv(stage.theta_covariance)
    np.testing.assert_allclose(precision, -np.array(hessian) / 4e-6, rtol=2e-3, atol=0.05)


@pytest.mark.slow
def test_time_is_told_in_two_parts(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    began = time.perf_counter()
    stage = vsgp.fit_gaussian(model=model, progressbar=False, maxiter=1)
    total = time.perf_counter() - began
    # To build and to compile takes most of such a short fit.
    assert 0.3 * total < stage.compile_seconds < total
    assert 0.0 < stage.seconds < total - stage.compile_seconds


@pytest.mark.slow
def test_report_of_minibatches(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f + 2.0)))
    settings = {"batch_size": 20, "random_seed": 1, "progressbar": False, "model": model}
    few = vsgp.fit_gaussian("minibatch", maxiter=60, **settings)
    assert "after 60 steps, NOT converged" in repr(few)
    assert "In the last quarter of the steps the ELBO rose by" in repr(few)
    assert "Raise maxiter." in repr(few)
    assert judge(np.zeros(3)) == (False, "These steps are too few. Raise maxiter.")
    noise = rng.normal(size=400)
    assert judge(noise)[0]
    assert not judge(noise + 0.01 * np.arange(400))[0]
    assert "rose by 1 ± 0 nats. Raise maxiter." in judge(np.repeat([0.0, 1.0], [300, 100]))[1]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "move_inducing"),
    [("poisson", False), ("poisson", True)],
)
def test_inducing_inputs_move_where_that_is_asked(family, move_inducing, data, rng):
    X, Xu, f = data
    make, draw, _, _ = FAMILIES[family]
    model = build(make(), X, Xu, draw(f, rng))
    stage = vsgp.fit_gaussian(model=model, progressbar=False, move_inducing=move_inducing)
    moved = np.abs(stage.Xu["u_Xu"] - Xu).max()
    assert (moved > 0.0) == move_inducing
    np.testing.assert_array_equal(model["u_Xu"].get_value(), stage.Xu["u_Xu"])
    vsgp.reset(model)
    np.testing.assert_array_equal(model["u_Xu"].get_value(), Xu)


@pytest.mark.slow
def test_restart_continues(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    first = vsgp.fit_gaussian(model=model, progressbar=False, maxiter=1)
    assert not first.converged
    assert "NOT converged" in repr(first)
    second = vsgp.fit_gaussian(model=model, progressbar=False, start=first)
    assert second.converged
    assert second.elbo >= first.elbo
    again = vsgp.fit_gaussian(model=model, progressbar=False, start=second)
    assert len(again.elbo_history) == 1
    np.testing.assert_allclose(again.elbo, second.elbo, atol=1e-2)


@pytest.mark.long
def test_other_routes_find_the_same_posterior(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(1.0 + f)))
    best = vsgp.fit_gaussian(model=model, progressbar=False)
    stage = vsgp.fit_gaussian(
        "minibatch", model=model, progressbar=False, maxiter=1500, batch_size=20, random_seed=1
    )
    sd = np.sqrt(np.diag(best.covariance["u"][0]))
    assert np.abs(stage.mean["u"][0] - best.mean["u"][0]).max() < np.max(sd)
    assert abs(stage.elbo - best.elbo) < 3.0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("method", ["advi", "fullrank_advi"])
def test_advi_gives_the_same_kind_of_result(method, data, rng, default_mode):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(1.0 + f)))
    best = vsgp.fit_gaussian(model=model, progressbar=False)
    stage = vsgp.fit_gaussian(method, model=model, progressbar=False, random_seed=rng)
    assert stage.method == method
    sd = np.sqrt(np.diag(best.covariance["u"][0]))
    assert np.median(np.abs(stage.mean["u"][0] - best.mean["u"][0]) / sd) < 1.0
    # ADVI averages over theta, the other route takes its best value: it is never far above.
    assert stage.elbo < best.elbo + 3.0
    tree = stage.to_datatree(50, random_seed=1)
    assert tree["posterior"]["u"].shape == (1, 50, M)


@pytest.mark.slow
def test_advi_is_compiled_and_seeded_as_asked(data, rng, monkeypatch):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(1.0 + f)))
    seen = {}

    def fit(n, **kwargs):
        seen.update(kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(pm, "fit", fit)
    asked = {"compile_kwargs": {"mode": RAW}}
    with pytest.raises(KeyboardInterrupt):
        vsgp.fit_gaussian("advi", model=model, progressbar=False, **asked)
    assert seen["compile_kwargs"] == asked["compile_kwargs"]
    for seed, passed in ((None, None), (7, 7), (2**70, int), (np.int64(3), int), (rng, int)):
        with pytest.raises(KeyboardInterrupt):
            vsgp.fit_gaussian("advi", model=model, progressbar=False, random_seed=seed)
        assert seen["random_seed"] == passed or isinstance(seen["random_seed"], passed)


def test_a_reset_leaves_inputs_that_were_set_since(data):
    """They went back to those before the first of two stages."""
    X, Xu, f = data
    model = build(vsgp.Gaussian(SIGMA), X, Xu, f)
    vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    with model:
        pm.set_data({"u_Xu": Xu + 0.1})
    moved = vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    moved.Xu["u_Xu"] = Xu + 0.5  # as of a stage that moves them
    moved.apply()
    moved.to_datatree(2, random_seed=1)
    vsgp.reset(model)
    np.testing.assert_array_equal(model["u_Xu"].get_value(), Xu + 0.1)
    moved.apply()
    with model:
        pm.set_data({"u_Xu": Xu + 0.2})
    vsgp.reset(model)
    np.testing.assert_array_equal(model["u_Xu"].get_value(), Xu + 0.2)


@pytest.mark.parametrize("method", ["conditional", "predictive"])
def test_draws_of_a_stage_whose_model_has_more_since(method, data):
    X, Xu, f = data
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(D, ls=pm.Gamma("ls", 3.0, 2.0)))
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=f)
        stage = vsgp.fit_gaussian(maxiter=1, progressbar=False)
        before = stage.to_datatree(3, random_seed=1)["posterior"].to_dataset()
        new = getattr(gp, method)("new", X[:2])
        pm.Deterministic("sum", new.sum())
        after = stage.to_datatree(3, random_seed=1)["posterior"].to_dataset()
    assert set(after) == {"ls", "u"}
    np.testing.assert_array_equal(after["u"], before["u"])
    assert "sum" in model.named_vars


@pytest.mark.slow
def test_draws_of_the_stage(data, rng):
    """As a sampler's: named, labelled, with the moments that the stage reports."""
    X, Xu, f = data
    model = build(vsgp.Gaussian(SIGMA), X, Xu, f + SIGMA * rng.normal(size=N))
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    vsgp.reset(model)
    stage.theta_covariance = 1e-12 * np.eye(len(stage.theta_covariance))
    tree = stage.to_datatree(3000, random_seed=1)
    u = tree["posterior"]["u"]
    assert u.dims == ("chain", "draw", "u_inducing")
    spread = np.sqrt(np.diag(stage.covariance["u"][0]))
    np.testing.assert_allclose(
        u.mean(("chain", "draw")), stage.mean["u"][0], atol=4 * spread.max() / 50
    )
    np.testing.assert_allclose(u.std(("chain", "draw")), spread, rtol=0.1)
    assert {"posterior", "observed_data", "constant_data"} <= set(tree.children)
    np.testing.assert_allclose(tree["posterior"]["ls"].mean(("chain", "draw")), stage.theta["ls"])


@pytest.mark.parametrize("one_by_one", [*long(False), True])
@pytest.mark.slow
def test_draws_of_what_depends_on_variables(one_by_one, data, rng):
    """With graphs that take many points at a time, and with one that does not."""
    X, Xu, f = data
    with build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(1.0 + f))) as model:
        ls = model["ls"].sum()
        larger = ifelse(pt.gt(ls, 1.0), 2.0 * ls, ls) if one_by_one else ls * (1.0 + pt.gt(ls, 1.0))
        pm.Deterministic("larger", larger)
        pm.Deterministic("last", model["u"][-1] * ls)
        stage = vsgp.fit_gaussian(maxiter=3, progressbar=False)
    draws = stage.to_datatree(20, random_seed=1)["posterior"].isel(chain=0)
    ls = draws["ls"].values.reshape(20, -1).sum(axis=1)
    assert len(set(ls)) == 20
    np.testing.assert_allclose(draws["larger"], np.where(ls > 1.0, 2.0 * ls, ls))
    np.testing.assert_allclose(draws["last"], draws["u"].values[:, -1] * ls)


@pytest.mark.slow
def test_what_it_can_not_do(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    with pytest.raises(ValueError, match="no method 'laplace'.*Choose one of"):
        vsgp.fit_gaussian("laplace", model=model)
    with pytest.raises(TypeError, match="only ADVI takes"):
        vsgp.fit_gaussian(model=model, obj_optimizer=1)
    with pytest.raises(ValueError, match="ADVI does not move inducing inputs"):
        vsgp.fit_gaussian("advi", model=model, move_inducing=True)
    with pytest.raises(TypeError, match="not a GaussianStage"):
        vsgp.sample(stage=500, model=model)
    with pytest.raises(TypeError, match="start is of type int, not a GaussianStage"):
        vsgp.fit_gaussian(start=3, model=model)
    other = build(vsgp.Poisson(), X, Xu[1:], rng.poisson(np.exp(f)))
    stage = vsgp.fit_gaussian(maxiter=1, model=other, progressbar=False)
    with pytest.raises(ValueError, match="start is of a model with other variables"):
        vsgp.fit_gaussian(start=stage, model=model, progressbar=False)
    with pytest.raises(ValueError, match="draws is 0. Pass a whole number"):
        stage.to_datatree(0)
    with pm.Model() as empty:
        pm.Normal("x")
    with pytest.raises(ValueError, match="no variationally sparse process"):
        vsgp.fit_gaussian(model=empty)
    with model:
        pm.Normal("z", model["u"].sum(), 1.0, observed=0.3)
    with pytest.raises(ValueError, match="outside of a likelihood.*method='advi'"):
        vsgp.fit_gaussian(model=model, progressbar=False)


def test_what_it_can_not_do_with_changed_models(data, rng):
    """Each says why: what is missing was there once."""
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    quiet = {"progressbar": False}
    with pytest.raises(ValueError, match="'u' have lost their transform.* Leave 'u' out of"):
        vsgp.fit_gaussian(model=remove_value_transforms(model), **quiet)
    with pytest.raises(ValueError, match="points are constants.*before you freeze it"):
        vsgp.fit_gaussian(model=freeze_dims_and_data(model), move_inducing=True, **quiet)
    for change in (pm.do, pm.observe):
        fixed = change(model, {"u": np.zeros(M)})
        with pytest.raises(ValueError, match="inducing values 'u' are fixed.*pm.sample()"):
            vsgp.sample(model=fixed, **quiet)


@pytest.mark.slow
def test_a_model_that_was_frozen_after_a_stage_is_fitted_again(rng):
    """Its sites are constants, so the fit makes data of its own."""
    X = np.linspace(0.0, 5.0, 20)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::4])
        gp.likelihood("y", vsgp.Gaussian(0.4), X=X, y=np.sin(X[:, 0]) + 0.4 * rng.normal(size=20))
    before, quiet = freeze_dims_and_data(model), {"progressbar": False}
    stage = vsgp.fit_gaussian(model=model, **quiet)
    frozen = freeze_dims_and_data(model)
    found = vsgp.fit_gaussian(model=frozen, start=stage, **quiet)
    np.testing.assert_allclose(found.elbo, stage.elbo, rtol=1e-8)
    names = {"u_sites_linear", "u_sites_root"}
    assert names <= {v.name for v in frozen.data_vars if isinstance(v, SharedVariable)}
    vsgp.reset(frozen)
    assert not names & {v.name for v in frozen.data_vars}
    point = before.initial_point()
    logps = [m.compile_logp(mode=RAW)(point) for m in (frozen, before)]
    np.testing.assert_allclose(*logps, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, at a lengthscale of zero
@pytest.mark.parametrize("lik", [vsgp.Gaussian(0.4), vsgp.Poisson()])
def test_an_initial_point_of_no_density_is_told(lik, data, rng):
    """A support point of zero, of a distribution that has none of its own: log(0) is no number."""
    X, Xu, f = data
    with pm.Model() as model:
        ls = pm.CustomDist("ls", logp=lambda v: -v, transform=pm.distributions.transforms.log)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(X.shape[1], ls=ls))
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", lik, X=X, y=rng.poisson(1.0, len(X)))
    with pytest.raises(ValueError, match="not finite at the model's initial point.*initval"):
        vsgp.fit_gaussian(model=model, progressbar=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_likelihood_that_is_not_log_concave():
    """Natural gradients with negative curvature, over which the fit once got lost (-1855)."""
    rng = np.random.default_rng(1)
    y = np.arange(1000) % 10
    X = 1.5 * rng.normal(size=(10, 8))[y] + rng.normal(size=(1000, 8))
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(8, ls=4.0) + pm.gp.cov.WhiteNoise(0.3)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=vsgp.inducing.kmeans(X, 20, random_seed=1), n_outputs=10)
        gp.likelihood("y", vsgp.RobustMax(10), X=X, y=y)
        bound = Bound(model, mode=RAW)
        whole = vsgp.fit_gaussian(maxiter=10, progressbar=False)
        vsgp.reset(model)
        few = vsgp.fit_gaussian(
            "minibatch", maxiter=100, batch_size=200, random_seed=1, progressbar=False
        )
    assert whole.elbo > -1660
    assert bound(np.empty(0), [few.sites["u"]]).value > 1.05 * whole.elbo


@pytest.mark.slow
def test_a_copy_leaves_the_model_alone(data, rng):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    point = model.initial_point()
    before = model.compile_logp(mode="FAST_COMPILE")(point)
    settings = {"maxiter": 4, "move_inducing": True, "progressbar": False}
    stage = vsgp.fit_gaussian(model=model, copy=True, **settings)
    np.testing.assert_array_equal(model["u_Xu"].get_value(), Xu)
    np.testing.assert_array_equal(model.compile_logp(mode="FAST_COMPILE")(point), before)
    assert stage.model is not model
    assert np.abs(stage.model["u_Xu"].get_value() - Xu).max() > 0.0
    # It goes on from there, in a copy as in the model.
    again = vsgp.fit_gaussian(model=model, start=stage, copy=True, **settings)
    assert again.elbo >= stage.elbo
    np.testing.assert_array_equal(model["u_Xu"].get_value(), Xu)
    np.testing.assert_array_equal(stage.model["u_Xu"].get_value(), stage.Xu["u_Xu"])
    assert vsgp.fit_gaussian(model=model, start=stage, **settings).elbo >= stage.elbo
    assert np.abs(model["u_Xu"].get_value() - Xu).max() > 0.0


def test_the_number_of_iterations_is_checked(data):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, np.ones(len(X)))
    for wrong in (
        {"maxiter": 0},
        {"maxiter": -1, "method": "advi"},
        {"tol": np.nan},
        {"n_starts": "a"},
        {"batch_size": True},
    ):
        name, value = next(iter(wrong.items()))
        with pytest.raises(ValueError, match=f"{name} is {value!r}. Pass a"):
            vsgp.fit_gaussian(model=model, progressbar=False, **wrong)
    with pytest.raises(TypeError, match="maxiter here"):
        vsgp.fit_gaussian("advi", n=10, model=model, progressbar=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_model_within_another(data, rng):
    """Sites are taken out of both, so that the next stage can put its own in."""
    X, Xu, f = data
    with pm.Model() as outer:
        model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
        stage = vsgp.fit_gaussian(model=model, maxiter=3, progressbar=False)
        assert "u_sites_root" in outer.named_vars
        assert stage.to_datatree(3, random_seed=1)["posterior"].sizes["draw"] == 3
        vsgp.reset(model)
        for m in (model, outer):
            assert "u_sites_root" not in m.named_vars
            assert not any(d.name == "u_sites_root" for d in m.data_vars)
        vsgp.fit_gaussian(model=model, maxiter=3, progressbar=False)


def test_a_curvature_that_is_not_finite_is_told():
    fit = Natural.__new__(Natural)
    fit.theta = np.zeros(2)
    own = np.array([False, True])
    fit.bound = SimpleNamespace(has_units=lambda: own, in_units=lambda theta: {}, others=[])
    fit._slope = lambda theta: np.full(2, np.nan)
    with pytest.raises(ValueError, match="not finite around .* Start it elsewhere"):
        fit.curvature()


def test_effects_that_draw_their_own_scale_to_zero():
    """They have no joint mode: the message has what to write, and numpy has nothing to say."""
    X, site = np.linspace(0.0, 5.0, 8)[:, None], np.repeat(np.arange(4), 2)
    with pm.Model() as model:
        ls, tau = pm.LogNormal("ls"), pm.HalfNormal("tau")
        effect = pm.Normal("effect", 0.0, tau, shape=4)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", Xu=X[::2])
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(effect[site])), X=X, y=site)
    fit = Natural.__new__(Natural)
    fit.bound, fit.theta = Variables(model), np.array([0.0, -350.0, 0.0, 0.0, 0.0, 0.0])
    fit._slope = lambda theta: np.full(6, np.inf)  # as far from the data as that
    with pytest.raises(ValueError, match=r"'tau' went to zero: .* tau \* pm.Normal\('z'"):
        fit.curvature()
    fit.theta = np.array([-350.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # of a kernel, which has no effects
    with pytest.raises(ValueError, match="Start it elsewhere"):
        fit.curvature()


@pytest.mark.slow
def test_normal_noise_has_the_best_q_of_each_theta(data, rng):
    """Steps of the sites gain nothing, and the bound of both is the same."""
    X, Xu, f = data
    y = f + SIGMA * rng.normal(size=N)
    model = build(vsgp.Gaussian(sigma=0.1 + 0.4 * rng.random(N)), X, Xu, y)
    fitter = Fitter(model)
    stage = fitter(tol=1e-8)
    assert stage.converged and stage.n_steps <= 3
    bound = Bound(model, mode=RAW)
    theta, sites = bound.ravel(stage.theta_unconstrained), [stage.sites["u"]]
    ev = bound(theta, sites)
    np.testing.assert_allclose(ev.value, stage.elbo, rtol=1e-9)
    np.testing.assert_allclose(ev.gradient, 0.0, atol=1e-3)
    other = Natural(bound, theta, sites, [], 1e-8, lambda *args: None)
    other.run(3)
    assert other.evaluation.value - stage.elbo < 1e-6
    R, mean = ev.R[0], ev.prior_mean[0]
    np.testing.assert_allclose(stage.mean["u"][0], mean + R @ ev.mean[0][0], rtol=1e-7)
    np.testing.assert_allclose(stage.theta_covariance, other.curvature(), rtol=2e-3, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("lik", ["poisson", "normal"])
def test_jax_takes_over_a_long_fit(lik, data, rng, monkeypatch):
    pytest.importorskip("jax")
    X, Xu, f = data
    y = rng.poisson(np.exp(f)) if lik == "poisson" else f + SIGMA * rng.normal(size=N)
    likelihood = vsgp.Poisson() if lik == "poisson" else vsgp.Gaussian(SIGMA)
    model = build(likelihood, X, Xu, y)
    plain = Fitter(model)(tol=1e-6)
    # Each evaluation takes less time than the one before it.
    clock = iter(np.cumsum(1000.0 / np.arange(1, 10_000)))
    monkeypatch.setattr("pymc_vsgp.fit.compiled.perf_counter", lambda: next(clock))
    fitter = Fitter(model)
    assert not isinstance(fitter.bound._fn.fn, OneOnJax)
    stage = fitter(tol=1e-6)
    assert isinstance(fitter.bound._fn.fn, OneOnJax)
    np.testing.assert_allclose(stage.elbo, plain.elbo, rtol=1e-7)
    for name, x in plain.theta_unconstrained.items():
        np.testing.assert_allclose(stage.theta_unconstrained[name], x, atol=1e-3)


def test_an_evaluation_that_waited_is_no_reason_to_compile(data, rng, monkeypatch):
    X, Xu, f = data
    fitter = Fitter(build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f))))
    monkeypatch.setattr(
        "pymc_vsgp.fit.compiled.Switching._switch", lambda *args: pytest.fail("compiles")
    )
    # The clock is read twice an evaluation: the fourth of them takes a second, all others none.
    clock = chain([0.0] * 7, repeat(1.0))
    monkeypatch.setattr("pymc_vsgp.fit.compiled.perf_counter", lambda: next(clock))
    assert fitter().converged
    assert next(clock) == 1.0


@pytest.mark.long
def test_numba_takes_over_what_jax_cannot_do(data, rng, monkeypatch):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    plain = Fitter(model)(tol=1e-6)

    def refuse(self, inputs, outputs):
        raise NotImplementedError("Dispatch not implemented.")

    monkeypatch.setattr(OneOnJax, "__init__", refuse)
    clock = iter(np.cumsum(1000.0 / np.arange(1, 10_000)))
    monkeypatch.setattr("pymc_vsgp.fit.compiled.perf_counter", lambda: next(clock))
    fitter = Fitter(model)
    stage = fitter(tol=1e-6)
    assert isinstance(fitter.bound._fn.fn, OneOnNumba)
    np.testing.assert_allclose(stage.elbo, plain.elbo, rtol=1e-7)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Loop fusion failed")
def test_numba_has_loops_of_scalars_from_the_start(data, rng):
    """Such as derivatives of an incomplete beta function, which take numpy minutes."""
    X, Xu, f = data
    with pm.Model() as model:
        alpha = pm.Gamma("alpha", 4.0, 2.0)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=Xu)

        def hurdle(f):
            return pm.HurdleNegativeBinomial.dist(psi=0.7, mu=pm.math.exp(f), alpha=alpha)

        gp.likelihood("y", hurdle, X=X, y=rng.poisson(np.exp(f)))
    assert isinstance(Fitter(model).bound._fn.fn, OneOnNumba)


@pytest.mark.long
def test_numpy_goes_on_where_jax_was_refused(data, rng, monkeypatch):
    """JAX makes the constants that it was given read-only, and numpy has the same."""
    pytest.importorskip("jax")
    X, Xu, f = data
    y = rng.random(N) < stats.norm.cdf(f)
    arguments = {"move_inducing": True, "maxiter": 5, "progressbar": False}
    plain = vsgp.fit_gaussian(model=build(vsgp.Bernoulli(), X, Xu, y), **arguments)
    refused = []
    monkeypatch.setattr(OneOnJax, "pays", 0.0)
    monkeypatch.setattr(OneOnJax, "seconds", lambda self, *args: refused.append(self) or np.inf)
    stage = vsgp.fit_gaussian(model=build(vsgp.Bernoulli(), X, Xu, y), **arguments)
    assert refused
    np.testing.assert_allclose(stage.elbo, plain.elbo, rtol=1e-9)


LARGE = {
    "points": lambda X: {"Xu": X[::4]},
    "coefficients": lambda X: {"inducing": vsgp.inducing.Fourier(60.0, 90, center=5.0)},
    "neighbors": lambda X: {"inducing": vsgp.inducing.NearestNeighbors(X, 8)},
}
LARGE_RATES = [("points", 600.0), *long(("points", 1e6))]
LARGE_RATES += long(*product(("coefficients", "neighbors"), (600.0, 1e6)))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rate"), LARGE_RATES)
def test_large_counts_without_an_intercept(kind, rate):
    """From a rate of one, where a fit starts, whole steps overshoot by factors of exp(1000)."""
    X = np.linspace(0.0, 10.0, 60)[:, None]
    f = np.log(rate) + 0.5 * np.sin(X[:, 0])
    with pm.Model() as model:
        ls, scale = pm.LogNormal("ls", 1.0, 0.5), pm.HalfNormal("scale", 2.0)
        gp = vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", **LARGE[kind](X))
        y = np.random.default_rng(0).poisson(np.exp(f))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert stage.converged
    # Each datum costs about half the logarithm of its variance, and the points what they leave out.
    assert -60 * (0.5 * np.log(2.0 * np.pi * rate) + 12.0) < stage.elbo < -30 * np.log(rate)
    draws = stage.to_datatree(100, random_seed=1)
    with model:
        found = vsgp.predict(draws, X, progressbar=False)
    np.testing.assert_allclose(found.mean(axis=(0, 1)), f, atol=0.3)


NARROWER = {
    "points": {"Xu": np.linspace(0.0, 3.0, 8)[:, None]},
    "few": {"inducing": vsgp.inducing.Fourier(6.0, 10)},
    "many": {"inducing": vsgp.inducing.Fourier(6.0, 80)},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", "many", "points"])
def test_it_begins_where_the_prior_has_no_elbo(kind, monkeypatch):
    """The last with minibatches, whose q stays; some coefficients have next to no variance."""
    X = np.linspace(0.0, 3.0, 12)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", **NARROWER[kind])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.arange(12))
    held, whole = kind == "points", Bound.__call__

    def of_narrow(self, *args):
        found = whole(self, *args)
        return found if np.max(found.factor[0]) > 2.0 else found._replace(value=-np.inf)

    monkeypatch.setattr(Bound, "__call__", of_narrow)
    bound = Bound(model, n_rows=12 if held else None, mode=RAW, held=held)
    assert bound.processes[0].diagonal == (kind == "many")
    start, report = bound.no_sites(), lambda *args: None
    if not held:
        fit = Natural(bound, bound.start, start, [], 1e-3, report)
        assert np.isfinite(fit.evaluation.value)
        return
    fit = Minibatches(bound, bound.start, start, [], 1e-3, report, np.random.default_rng(0), 12)
    assert np.isfinite(fit.evaluation.value)
    # A good start needs no ELBO of the prior.
    (q,), (R,), (mean,) = fit.sites, fit.evaluation.R, fit.evaluation.prior_mean
    P = q.precision[0]
    found = sites_of(R, mean, P @ q.linear[0], P - np.eye(len(R)))
    start = [Sites(found.linear[None] + 0.1, found.root[None])]
    again = Minibatches(bound, bound.start, start, [], 1e-3, report, np.random.default_rng(0), 12)
    assert np.isfinite(again.evaluation.value)
    assert again.evaluation.value != fit.evaluation.value


@pytest.mark.slow
def test_no_class_of_many_is_given_up():
    """Whole steps from the prior put one of these ten where robust-max has no gradient."""
    K, D, n = 10, 20, 300
    rng = np.random.default_rng(4)
    centers, y = rng.uniform(size=(K, D)), rng.integers(0, K, n)
    X = centers[y] + 0.35 * rng.normal(size=(n, D))
    with pm.Model():
        white = pm.Gamma("white", 3.0, 10.0)
        cov = pm.gp.cov.ExpQuad(D, ls=pm.Gamma("ls", 4.0, 1.5)) + pm.gp.cov.WhiteNoise(white)
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=vsgp.inducing.kmeans(X, 20, random_seed=1), n_outputs=K)
        gp.likelihood("y", vsgp.RobustMax(K), X=X, y=y)
        stage = vsgp.fit_gaussian(maxiter=4, move_inducing=False, random_seed=1, progressbar=False)
    assert stage.elbo > -460.0  # -569 before


@pytest.mark.long
def test_what_was_compiled_before_another_fit_is_of_the_same_coordinates():
    """Its own are in the model meanwhile. Sites are data of the model, which graphs look at."""
    X = np.linspace(0.0, 5.0, 12)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=pm.LogNormal("ls")))
        u = gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, 3))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.arange(12) % 4)
        vsgp.fit_gaussian(maxiter=2, progressbar=False)
    names = ["u_sites_linear", "u_sites_root"]
    before = [model[name] for name in names], list(u.owner.inputs), list(model.named_vars)
    values = [x.get_value() for x in before[0]]
    Fitter(model)
    after = [model[name] for name in names], list(u.owner.inputs), list(model.named_vars)
    for a, b in zip(before, after, strict=True):
        assert len(a) == len(b)
    assert all(a is b for a, b in zip(before[0] + before[1], after[0] + after[1], strict=True))
    assert set(before[2]) == set(after[2])
    for x, value in zip(after[0], values, strict=True):
        np.testing.assert_array_equal(x.get_value(), value)
        assert sum(x is d for d in model.data_vars) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["start", "tol"])
def test_advi_starts_at_the_initial_point(name):
    """It continues from no stage, and does not stop by a tolerance."""
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=1.0))
        gp.prior("u", Xu=np.linspace(0.0, 5.0, 4)[:, None])
        gp.likelihood("y", vsgp.Poisson(), X=np.arange(5.0)[:, None], y=np.arange(5))
        asked = {"start": vsgp.fit_gaussian(maxiter=1, progressbar=False), "tol": 1.0}
    with pytest.raises(ValueError, match="takes neither start= nor tol="):
        vsgp.fit_gaussian("advi", model=model, **{name: asked[name]})


@pytest.mark.slow
def test_initial_values_of_the_prior_are_the_same_each_time():
    histories = []
    for _ in range(2):
        with pm.Model():
            ls = pm.LogNormal("ls", initval="prior")
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=ls))
            gp.prior("u", Xu=np.linspace(0.0, 5.0, 4)[:, None])
            gp.likelihood("y", vsgp.Poisson(), X=np.arange(5.0)[:, None], y=np.arange(5))
            histories.append(vsgp.fit_gaussian(maxiter=1, progressbar=False).elbo_history)
    np.testing.assert_array_equal(*histories)


@pytest.mark.slow
def test_a_slope_that_promises_more_is_no_convergence(data, rng, monkeypatch):
    X, Xu, f = data
    model = build(vsgp.Poisson(), X, Xu, rng.poisson(np.exp(f)))
    monkeypatch.setattr(Natural, "_step_rest", lambda *_: None)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert not stage.converged
    assert "Parameters did not move" in stage.message


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [vsgp.Gaussian(0.3), *long(vsgp.Poisson())])
def test_a_fit_goes_on_where_its_slope_promises_more(data, rng, monkeypatch, likelihood):
    """Along the axes of its covariance, where L-BFGS had gone nowhere."""
    X, Xu, f = data
    model = build(likelihood, X, Xu, rng.poisson(np.exp(f)))
    expected = vsgp.fit_gaussian(model=model, progressbar=False)
    step = Natural._step_rest
    monkeypatch.setattr(
        Natural, "_step_rest", lambda fit, *args: step(fit, *args) if fit.turned else None
    )
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert stage.converged
    assert stage.elbo == pytest.approx(expected.elbo, abs=1e-2)
    for name, value in expected.theta_unconstrained.items():
        np.testing.assert_allclose(stage.theta_unconstrained[name], value, atol=0.05)
    np.testing.assert_allclose(stage.theta_covariance, expected.theta_covariance, rtol=0.1)


@pytest.mark.long
@pytest.mark.slow
def test_functions_of_classes_find_each_other_where_the_elbo_is_curved():
    """Whole steps of robust-max lead past each other: the deviation was too small, or 2."""
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.normal(-1.5, 0.7, (60, 2)), rng.normal(1.5, 0.7, (60, 2))])
    y = np.repeat([0, 1], 60)

    def fit(log_lengthscale=None):
        with pm.Model() as model:
            ls = pm.LogNormal("ls", 0, 1) if log_lengthscale is None else np.exp(log_lengthscale)
            cov = 100.0 * pm.gp.cov.ExpQuad(2, ls=ls) + pm.gp.cov.WhiteNoise(1.0)
            gp = vsgp.VariationalSparse(cov_func=cov)
            gp.prior("u", Xu=X[::8], n_outputs=2)
            gp.likelihood("y", vsgp.RobustMax(2), X=X, y=y)
        return vsgp.fit_gaussian(model=model, move_inducing=False, progressbar=False, tol=1e-9)

    stage = fit()
    (at,), h = stage.theta_unconstrained.values(), 0.05
    low, middle, high = (fit(float(at) + d).elbo for d in (-h, 0.0, h))
    bend = 1.0 - (low - 2.0 * middle + high) / h**2  # with that of the prior
    deviation = np.sqrt(float(stage.theta_covariance[0, 0]))
    np.testing.assert_allclose(deviation, 1.0 / np.sqrt(bend), rtol=0.07)
