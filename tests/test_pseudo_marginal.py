"""Pseudo-marginal steps, and the Gaussian approximations that they draw from."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import reference_steps as reference

from marks import long
from modes import RAW, REWRITTEN
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.steps import ProbitAugmentation, PseudoMarginal
from pymc_vsgp.steps.latents import Latents
from pymc_vsgp.steps.predictor import Predictor, expectation_propagation, laplace
from pymc_vsgp.steps.random_walk import RandomWalk

FAST = {"compile_kwargs": {"mode": REWRITTEN}}
QUICK = {"compile_kwargs": {"mode": RAW}}
LOG_THETA = 0.2, 0.3

CASES = {
    "exact": (reference.latent, "f", reference.terms_of_latent("probit")),
    "whitened": (lambda: reference.latent(True, "logit"), "f", reference.terms_of_latent("logit")),
    "sparse": (reference.sparse, "u", reference.terms_of_sparse),
}


def predictor(model, name, by_rows=False, mode=RAW):
    return Predictor(Latents([model[name]], model, {"mode": mode}), by_rows)


def point_of(model):
    return model.initial_point() | {
        name: np.array(x) for name, x in zip(("ls_log__", "sd_log__"), LOG_THETA, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("which", CASES)
def test_evidence(which):
    """Close to the evidence by quadrature; the mean of the weights is that evidence."""
    build, name, terms = CASES[which]
    model = build()
    found = predictor(model, name, by_rows=True)
    at = found.at(point_of(model))
    p, f = reference.evidence(terms, *np.exp(LOG_THETA), n=48)
    log_prior = sum(
        stats.norm.logpdf(x, *prior) for x, prior in zip(LOG_THETA, reference.PRIORS, strict=True)
    )
    exact = np.log(p) + log_prior
    la, ep = laplace(found, at), expectation_propagation(found, at)
    assert abs(la.log_evidence - exact) < 0.1
    assert abs(ep.log_evidence - exact) < 0.02
    for q in (la, ep):
        nu, log_q = q.draw(40_000, np.random.default_rng(5))
        np.testing.assert_allclose(log_q[:9], q.log_density(nu[:9]), rtol=1e-9)
        w = np.exp(found.log_density(at, nu) - log_q - exact)
        assert abs(w.mean() - 1.0) < 4.0 * w.std() / np.sqrt(len(w))
        assert w.std() / np.sqrt(len(w)) < 0.005
    eta = at.eta(ep.mean)[:, 0]
    if which != "sparse":
        np.testing.assert_allclose(eta, f, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["exact", "sparse", *long("whitened")])
def test_extreme_parameters(which):
    """Wherever a random walk may go, both approximations find the mass."""
    build, name, _ = CASES[which]
    model = build()
    found = predictor(model, name, by_rows=True)
    for log_ls in (-4.0, 3.0):
        for log_sd in (-4.0, 1.0, 2.0):
            logs = {"ls_log__": np.array(log_ls), "sd_log__": np.array(log_sd)}
            at = found.at(model.initial_point() | logs)
            la, ep = laplace(found, at), expectation_propagation(found, at)
            assert abs(la.log_evidence - ep.log_evidence) < 1.0
            nu, log_q = ep.draw(2000, np.random.default_rng(5))
            w = np.exp(found.log_density(at, nu) - log_q - ep.log_evidence)
            assert abs(w.mean() - 1.0) < 0.05


def test_gaussian_likelihood_is_exact():
    """Where the posterior is normal, so are both approximations, and weights are equal."""
    y = np.array([0.3, -0.5, 1.2])
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=2.0 * pm.gp.cov.ExpQuad(1, ls=0.8))
        f = gp.prior("f", reference.X, jitter=0.0)
        pm.Normal("y", f, 0.5, observed=y)
    found = predictor(model, "f", by_rows=True)
    at = found.at(model.initial_point())
    K = reference.kernel(reference.X, reference.X, 0.8, np.sqrt(2.0))
    exact = stats.multivariate_normal.logpdf(y, np.zeros(3), K + 0.25 * np.eye(3))
    for approximate in (laplace, expectation_propagation):
        q = approximate(found, at)
        np.testing.assert_allclose(q.log_evidence, exact, rtol=1e-7)
        nu, log_q = q.draw(5, np.random.default_rng(1))
        np.testing.assert_allclose(found.log_density(at, nu) - log_q, exact, rtol=1e-7)
        np.testing.assert_allclose(
            at.eta(q.mean)[:, 0], K @ np.linalg.solve(K + 0.25 * np.eye(3), y), rtol=1e-5
        )


def test_ep_that_diverges_is_laplace():
    """No evidence at such parameters would take them out of the posterior."""
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=reference.parameters(False))
        f = gp.prior("f", reference.X, jitter=reference.JITTER)
        pm.Laplace("y", f, 0.3, observed=[1.0, -1.0, 1.0])
    found = predictor(model, "f", by_rows=True)
    for log_ls in (0.0, 1.0):  # variances of zero, and a precision that is not positive definite
        logs = {"ls_log__": np.array(log_ls), "sd_log__": np.array(2.0)}
        at = found.at(model.initial_point() | logs)
        with np.errstate(all="ignore"):
            la, ep = laplace(found, at), expectation_propagation(found, at)
        np.testing.assert_array_equal(ep.mean, la.mean)
        np.testing.assert_array_equal(ep.L, la.L)


@pytest.mark.slow
@pytest.mark.parametrize("which", [*long("laplace"), "ep"])
def test_estimates_are_unbiased(which):
    """With five labels, whose probability is that of an orthant."""
    X = np.linspace(0.0, 2.0, 5)[:, None]
    signs = np.array([1.0, 1.0, -1.0, 1.0, -1.0])
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 1.0)
        f = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X)
        pm.Bernoulli("y", p=0.5 * pm.math.erfc(-f / np.sqrt(2.0)), observed=signs > 0)
    K = reference.kernel(X, X, 1.0, 2.0) + np.eye(5)
    exact = stats.multivariate_normal.cdf(
        np.zeros(5), cov=signs[:, None] * K * signs, abseps=1e-8, releps=1e-8
    ) * stats.norm.pdf(0.0)
    step = PseudoMarginal([ls], approximation=which, n_importance=12, model=model, **FAST)
    step.setup_chain(np.random.default_rng(4), 0, 1)
    at = step.predictor.at(model.initial_point() | {"ls_log__": np.array(0.0)})
    q = step.approximate(step.predictor, at)
    found = np.exp([step._estimate(at, q).log_evidence for _ in range(2000)])
    assert abs(found.mean() - exact) < 4.0 * found.std() / np.sqrt(len(found))
    assert found.std() / np.sqrt(len(found)) < 0.003 * exact


def test_several_functions():
    """Newton's method with a block of curvature for each row finds the mode."""
    y = np.array([[0.2, -0.3, 0.5], [1.5, -2.0, 3.0]])
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        gp = pm.gp.Latent(cov_func=sd**2 * pm.gp.cov.ExpQuad(1, ls=0.8))
        f = gp.prior("f", reference.X, n_outputs=2)
        pm.Poisson("y", pm.math.exp(f[0] + 0.5 * f[1]), observed=[1, 0, 3])
        pm.Normal("z", f, 1.0, observed=y)
    found = predictor(model, "f")
    point = model.initial_point()
    at = found.at(point)
    q = laplace(found, at)
    np.testing.assert_allclose(found.values_at(point, q.mean)["f_rotated_"].ravel(), q.mean)
    base = found.log_density(at, q.mean[None])[0]
    near = q.mean + 1e-4 * np.random.default_rng(1).normal(size=(50, 6))
    differences = found.log_density(at, near) - base
    expected = -0.5 * (((near - q.mean) @ q.L) ** 2).sum(axis=1)
    assert (differences < 0.0).all()
    np.testing.assert_allclose(differences, expected, rtol=2e-2, atol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_posterior():
    model = reference.latent()
    with model:
        step = PseudoMarginal([model["ls"], model["sd"]], n_importance=4, **FAST)
        idata = pm.sample(
            500,
            tune=300,
            chains=2,
            cores=2,
            step=step,
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
            **FAST,
        )
    reference.check(idata, "probit", largest=0.2, rhat=1.1)
    found = idata["sample_stats"]
    assert 0.1 < float(found["accept"].mean()) < 0.45
    assert (found["importance_ess"] <= 4.0 + 1e-9).all()
    same = np.diff(found["log_evidence"], axis=1) == 0.0
    assert (same == (found["accepted"].values[:, 1:] == 0.0)).all()


def moved_by_another(n, rng):
    """A step, and the point to which another one has taken latent values since."""
    model = reference.latent()
    step = PseudoMarginal([model["ls"]], n_importance=n, model=model, **FAST)
    step.setup_chain(rng, 0, 10)
    step._leave(point_of(model))
    point = point_of(model) | {"f": np.array([0.3, -0.2, 0.5])}
    step._refresh(point)
    return step, point


@pytest.mark.slow
def test_latent_values_of_others_are_kept(rng):
    """Where another step has moved, the current latent values are one of the samples."""
    step, point = moved_by_another(1, rng)
    kept = step.predictor.values_at(point, step.current.nu[0])
    np.testing.assert_allclose(kept["f"], point["f"])
    after, _ = step.step(point)
    np.testing.assert_array_equal(after["sd_log__"], point["sd_log__"])
    before = step.current
    step.step(after)
    moved = after | {"sd_log__": np.array(0.5)}
    step.step(moved)
    assert step.current.log_evidence != before.log_evidence


@pytest.mark.slow
def test_a_value_that_is_kept_has_its_own_weight(rng):
    """It is no draw, so it was not drawn with the density of the one whose place it takes."""
    step, point = moved_by_another(5, rng)
    found, at = step.current, step.predictor.at(point)
    q = laplace(step.predictor, at)
    log_q = stats.multivariate_normal.logpdf(found.nu, q.mean, np.linalg.inv(q.L @ q.L.T))
    log_w = step.predictor.log_density(at, found.nu) - log_q
    np.testing.assert_allclose(found.weights, special.softmax(log_w), rtol=1e-6)
    wanted = special.logsumexp(log_w) - np.log(5.0)
    np.testing.assert_allclose(found.log_evidence, wanted, rtol=1e-8)


@pytest.mark.long
@pytest.mark.slow
def test_a_step_that_may_stay_is_right_beside_it(rng):
    """Values were drawn anew only where the other step had moved, so those that hold it were lost.

    Parameters hardly move here, so nothing else draws them.
    """
    n, jump, sigma = 4, 1.0, 0.8
    x = np.linspace(0.0, 3.0, n)[:, None]
    y = np.array([0.6, 1.4, 0.9, 0.2])
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 1e-3)
        k = pm.Bernoulli("k", 0.5)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", x, jitter=1e-6)
        pm.Normal("y", f + jump * k, sigma, observed=y)
        steps = [PseudoMarginal([ls], tune=False, **FAST), pm.BinaryMetropolis([k], **QUICK)]
    covariance = np.exp(-0.5 * (x - x.T) ** 2) + sigma**2 * np.eye(n)
    p = [stats.multivariate_normal.pdf(y, np.full(n, jump * at), covariance) for at in (0, 1)]
    point, found = model.initial_point(), []
    for step in steps:
        step.setup_chain(rng, 0, 2000)
    for _ in range(2000):
        for step in steps:
            point, _ = step.step(point)
        found.append(float(point["k"]))
    error = np.std(found) / np.sqrt(az.ess(np.array([found])))
    assert error < 0.03
    assert abs(np.mean(found) - p[1] / sum(p)) < 4.0 * error


@pytest.mark.slow
def test_seed_and_pickle():
    model = reference.latent()
    step = PseudoMarginal([model["ls"]], model=model, **FAST)
    reference.same_chain(step, model)


@pytest.mark.slow
def test_beside_other_steps(tmp_path):
    """Statistics have the types of PyMC's own; parameters that are named twice are one."""
    with reference.latent() as model:
        pm.Deterministic("twice", 2.0 * model["f"])
        step = PseudoMarginal([model["ls"], model["ls"]], **QUICK)
        idata = pm.sample(
            3,
            tune=3,
            chains=2,
            cores=1,
            step=[step, pm.Metropolis([model["sd"]], **QUICK)],
            random_seed=3,
            compute_convergence_checks=False,
        )
    assert step.parameters.size == 1
    idata.to_netcdf(tmp_path / "idata.nc")
    again = az.from_netcdf(tmp_path / "idata.nc")
    assert again["sample_stats"]["accepted"].shape == (2, 3, 2)
    twice, f = again["posterior"]["twice"], again["posterior"]["f"]
    np.testing.assert_array_equal(twice.values, 2.0 * f.values)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_without_tuning_nothing_is_tuned(cores):
    """PyMC sets `tune` of a step that is alone, where chains run one after another."""
    with reference.latent() as model:
        step = PseudoMarginal([model["ls"], model["sd"]], tune=False, **QUICK)
        settings = {"chains": 2, "cores": cores, "compute_convergence_checks": False}
        idata = pm.sample(3, tune=5, step=step, random_seed=3, **settings)
    assert (idata["sample_stats"]["scaling"] == step.walks[0].scale).all()


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 0, 1, 2], *long([1, 2, 3, 0])])
def test_observations_in_another_order(order):
    """Laplace takes them, and EP would give one's site to another."""
    X = np.arange(4.0)[:, None]
    with pm.Model():
        s = pm.HalfNormal("s")
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=s)).prior("f", X)
        p = 0.5 * pm.math.erfc(-f[np.array(order)] / np.sqrt(2.0))
        pm.Bernoulli("y", p=p, observed=[1, 0, 1, 0])
        PseudoMarginal([s], **QUICK)
        with pytest.raises(ValueError, match="in the order of its values, one for each"):
            PseudoMarginal([s], approximation="ep", **QUICK)
        with pytest.raises(ValueError, match="in the order of its values, one for each"):
            ProbitAugmentation([f], **QUICK)


def test_several_functions_have_no_ep():
    """Inducing values of them have a loop whose rows depend on each."""
    with pm.Model():
        s = pm.HalfNormal("s")
        gp = vsgp.VariationalSparse(cov_func=s**2 * pm.gp.cov.ExpQuad(1, ls=0.8))
        gp.prior("u", Xu=reference.XU, n_outputs=2)
        gp.likelihood("y", vsgp.HeteroskedasticGaussian(), X=reference.X, y=[0.0, 1.0, 0.5])
        with pytest.raises(ValueError, match="need one function.*approximation='laplace'"):
            PseudoMarginal([s], approximation="ep", **QUICK)


def test_changed_data():
    """New labels are looked at; another number of values is an error."""
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        x, y = pm.Data("x", reference.X), pm.Data("labels", reference.LABELS)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=s)).prior("f", x)
        pm.Bernoulli("y", logit_p=f, observed=y)
        step = PseudoMarginal([s], **QUICK)
        point = {k: v.tolist() for k, v in model.initial_point().items()}  # lists will do
        before = laplace(step.predictor, step.predictor.at(point)).log_evidence
        pm.set_data({"labels": np.zeros(3, dtype=int)})
        after = laplace(step.predictor, step.predictor.at(point)).log_evidence
        assert after > before + 0.1
        pm.set_data({"x": reference.X[:2], "labels": np.zeros(2, dtype=int)})
        with pytest.raises(
            ValueError, match="had \\(3,\\) when the step was built. Build the step"
        ):
            step.step(model.initial_point())


def test_random_walk_learns(rng):
    """The scale that gives the acceptance rate, on correlated parameters of unlike scale."""
    cov = np.array([[4.0, 0.019], [0.019, 1e-4]])
    precision, walk, theta = np.linalg.inv(cov), RandomWalk(2, 0.25), np.zeros(2)
    rates = []
    for i in range(6000):
        new = walk.propose(theta, rng)
        accept = np.exp(min(0.0, 0.5 * (theta @ precision @ theta - new @ precision @ new)))
        theta = new if rng.random() < accept else theta
        if i < 3000:
            walk.learn(theta, accept)
        else:
            rates.append(accept)
    assert abs(np.mean(rates) - 0.25) < 0.05


@pytest.mark.slow
def test_errors():
    model = reference.latent()
    with model:
        with pytest.raises(ValueError, match="approximation is 'vb'. Pass one of"):
            PseudoMarginal([model["ls"]], approximation="vb")
        for n in (0, 2.5):
            with pytest.raises(ValueError, match=f"n_importance is {n}. Pass a whole number"):
                PseudoMarginal([model["ls"]], n_importance=n, **QUICK)
        with pytest.raises(ValueError, match="target_accept is 1.5. Pass a rate between 0 and 1"):
            PseudoMarginal([model["ls"]], target_accept=1.5, **QUICK)
        with pytest.raises(ValueError, match="vars has latent values.*Pass the parameters"):
            PseudoMarginal([model["f"]], **QUICK)
    with pm.Model() as student:
        s = pm.HalfNormal("s")
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=s)).prior("f", reference.X)
        pm.StudentT("y", nu=3.0, mu=f, sigma=0.2, observed=[5.0, -4.0, 3.0])
        step = PseudoMarginal([s], **QUICK)
    with pytest.raises(ValueError, match="not log-concave.*Use EllipticalSlice or NUTS"):
        step.step(student.initial_point())
    with pm.Model():
        s = pm.HalfNormal("s")
        with pytest.raises(ValueError, match="no inducing values, and no values of.*pass latents"):
            PseudoMarginal([s], **QUICK)
    with pm.Model():
        s = pm.HalfNormal("s")
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=s)).prior("f", reference.X)
        pm.Normal("y", f.sum(), 1.0, observed=1.0)
        with pytest.raises(ValueError, match="need one function.*approximation='laplace'"):
            PseudoMarginal([s], approximation="ep", **QUICK)
        with pytest.raises(ValueError, match="not a product.*Use EllipticalSlice"):
            PseudoMarginal([s], **QUICK)
    with pm.Model():
        s = pm.HalfNormal("s")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=s))
        u = gp.prior("u", Xu=reference.XU)
        gp.likelihood("y", vsgp.Poisson(), X=reference.X_COUNTS, y=reference.COUNTS)
        pm.Normal("z", u[0], 1.0, observed=0.0)
        with pytest.raises(ValueError, match="outside of a likelihood.*Use EllipticalSlice"):
            PseudoMarginal([s], **QUICK)
