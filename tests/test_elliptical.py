"""Elliptical slice sampling of variables that are normal given the others."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import reference_steps as reference

from marks import long
from modes import RAW, REWRITTEN

import pymc_vsgp as vsgp

from pymc_vsgp.fit.stage import hand_over, reset
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.steps import EllipticalSlice
from pymc_vsgp.steps.latents import Latents

X = np.linspace(0.0, 3.0, 12)[:, None]
XU = X[::3]
COUNTS = np.arange(12) % 4
KERNEL = pm.gp.cov.Matern52(1, ls=0.7)


def points():
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3.0, 2.0)
        gp = vsgp.VariationalSparse(
            cov_func=pm.gp.cov.Matern52(1, ls=ls), mean_func=pm.gp.mean.Constant(ls)
        )
        u = gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=COUNTS)
    return model, [u]


def with_sites():
    model, us = points()
    rng = np.random.default_rng(2)
    hand_over(model, {"u": Sites(rng.normal(size=(1, 4)), rng.normal(size=(1, 4, 4)))}, {})
    return model, us


def unstreamed():
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=KERNEL)
        u = gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=COUNTS, block_size=False)
    return model, [u]


def potential():
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        gp = vsgp.VariationalSparse(cov_func=sd**2 * KERNEL)
        u = gp.prior("u", Xu=XU)
        gp.potential("y", vsgp.Poisson(), X=X, y=COUNTS)
        pm.Normal("level", u[0], 1.0, observed=0.4)
    return model, [u]


def features():
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        gp = vsgp.VariationalSparse(cov_func=sd**2 * KERNEL)
        u = gp.prior("u", inducing=vsgp.inducing.Fourier(6.0, 4))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=COUNTS)
    return model, [u]


def two_outputs():
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        gp = vsgp.VariationalSparse(cov_func=sd**2 * KERNEL)
        u = gp.prior("u", Xu=XU, n_outputs=2)
        gp.likelihood("y", vsgp.HeteroskedasticGaussian(), X=X, y=COUNTS + 0.1)
    return model, [u]


def two_processes():
    with pm.Model() as model:
        mean = vsgp.VariationalSparse(cov_func=KERNEL)
        noise = vsgp.VariationalSparse(cov_func=KERNEL)
        us = [mean.prior("u", Xu=XU), noise.prior("w", Xu=XU[:2])]
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [mean, noise], X=X, y=COUNTS + 0.1)
    return model, us


def one_of_two():
    """The other one has coordinates of a stage of its own."""
    model, us = two_processes()
    rng = np.random.default_rng(2)
    sites = {
        name: Sites(rng.normal(size=(1, n)), rng.normal(size=(1, n, n)))
        for name, n in (("u", 4), ("w", 2))
    }
    hand_over(model, sites, {})
    return model, us[:1]


def exact():
    model = reference.latent()
    return model, [model["f"]]


def rotated():
    model = reference.latent(reparameterize=True)
    return model, [model["f"]]


def several_normals():
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        f = pm.MvNormal("f", mu=[1.0, 2.0], cov=sd**2 * np.eye(2) + 0.5, shape=(3, 2))
        a = pm.Normal("a", 1.0, sd, shape=2)
        pm.Poisson("y", pt.exp(f + a), observed=np.arange(6).reshape(3, 2))
    return model, [a, f]


MODELS = [
    points,
    with_sites,
    features,
    two_outputs,
    one_of_two,
    exact,
    rotated,
    several_normals,
    *long(unstreamed, potential, two_processes),
]


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
def test_log_likelihood_is_what_the_prior_leaves(build, rng):
    """Log densities of two points with the same parameters differ by the prior and by it."""
    model, us = build()
    latents = Latents(us, model, {"mode": RAW})
    prepare, log_likelihood, values = latents.given_others(
        [latents.log_likelihood], latents.new_values
    )
    logp = model.compile_logp(mode=RAW)
    start = model.initial_point()
    start = {k: v + 0.3 * rng.normal(size=np.shape(v)) for k, v in start.items()}
    nu, *known = prepare(start)
    found = []
    for at in (nu, rng.normal(size=nu.shape)):
        new = {v.name: x for v, x in zip(latents.values, values(at, *known), strict=True)}
        point = start | new
        np.testing.assert_allclose(prepare(point)[0], at, atol=1e-8)
        found.append(logp(point) + at @ at / 2 - log_likelihood(at, *known)[0])
    assert np.isfinite(found[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_kernels_are_computed_once(rng):
    """What is evaluated again and again has no kernel and no factorization in it."""
    for build in (points, exact):
        model, us = build()
        latents = Latents(us, model, {"mode": RAW})
        _, log_likelihood = latents.given_others([latents.log_likelihood])
        ops = " ".join(str(n.op) for n in log_likelihood.maker.fgraph.toposort())
        assert "Cholesky" not in ops and "Sqr" not in ops and "SolveTriangular" not in ops


FAST = {"compile_kwargs": {"mode": REWRITTEN}}
QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.mark.long
@pytest.mark.slow
def test_posterior():
    """At fixed parameters; what moves with them is the log likelihood, above."""
    with reference.latent(fixed=True) as model:
        step = EllipticalSlice([model["f"]], n_updates=15, **FAST)
        idata = pm.sample(
            400, tune=10, chains=2, cores=2, step=step, random_seed=1, **QUIET, **FAST
        )
    _, mean = reference.evidence(reference.terms_of_latent("probit"), 1.0, 1.0, n=40)
    for i in range(3):
        reference.check_mean(np.asarray(idata["posterior"]["f"][..., i]), mean[i])
    assert (idata["sample_stats"]["n_evaluations"] >= 16).all()
    assert (abs(idata["sample_stats"]["angle"]) <= 2 * np.pi).all()


@pytest.mark.slow
def test_seed_and_pickle(rng):
    """Chains that begin alike go on alike, in another process too."""
    model, us = points()
    step = EllipticalSlice(us, model=model, **FAST)
    reference.same_chain(step, model, "u_whitened__", tune=0)


def test_new_data_count():
    """What was compiled looks at the data of the moment."""
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=KERNEL)
        u = gp.prior("u", Xu=XU)
        x, y = pm.Data("X", X, dims=("row", "column")), pm.Data("y_data", COUNTS, dims="row")
        gp.likelihood("y", vsgp.Poisson(), X=x, y=y, dims="row")
    step = EllipticalSlice([u], model=model, compile_kwargs={"mode": RAW})
    at = np.ones(4)
    before = step._log_likelihood(at, *step._prepare(model.initial_point())[1:])[0]
    with model:
        pm.set_data({"X": X[:5], "y_data": COUNTS[:5]}, coords={"row": range(5)})
    after = step._log_likelihood(at, *step._prepare(model.initial_point())[1:])[0]
    logp = model.compile_logp(mode=RAW)
    prior = -0.5 * at @ at - 2.0 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(after + prior, logp({"u_whitened__": at}))
    assert before < after


@pytest.mark.slow
def test_new_sites_are_refused():
    """What was compiled looks at the variables of the sites, which a reset takes away."""
    model, us = points()
    plain = EllipticalSlice(us, model=model, compile_kwargs={"mode": RAW})
    reset(model)
    plain.setup_chain(np.random.default_rng(1), 0, 1)
    sites = Sites(np.ones((1, 4)), np.ones((1, 4, 4)))
    hand_over(model, {"u": sites}, {})
    step = EllipticalSlice(us, model=model, compile_kwargs={"mode": RAW})
    hand_over(model, {"u": sites._replace(linear=np.zeros((1, 4)))}, {})
    step.setup_chain(np.random.default_rng(1), 0, 1)
    reset(model)
    hand_over(model, {"u": sites}, {})
    with pytest.raises(ValueError, match="built before a Gaussian stage.*Build the step after"):
        step.setup_chain(np.random.default_rng(1), 0, 1)


@pytest.mark.slow
def test_errors():
    model, us = points()
    with model:
        with pytest.raises(ValueError, match="ls is not normal given.*Pass inducing values"):
            EllipticalSlice([model["ls"]])
        with pytest.raises(ValueError, match="y is not a free random variable.*Pass inducing"):
            EllipticalSlice([model["y"]])
        with pytest.raises(TypeError, match="vars is None. Pass a list of random variables"):
            EllipticalSlice(None)
        with pytest.raises(ValueError, match="n_updates is 0. Pass a whole"):
            EllipticalSlice(us, n_updates=0)
        step = EllipticalSlice(us, compile_kwargs={"mode": RAW})
    hand_over(model, {"u": Sites(np.zeros((1, 4)), np.zeros((1, 4, 4)))}, {})
    with pytest.raises(ValueError, match="built before a Gaussian stage.*Build the step after"):
        step.setup_chain(1, 0, 1)
    model, us = two_processes()
    step = EllipticalSlice(us[:1], model=model, compile_kwargs={"mode": RAW})
    hand_over(model, {"w": Sites(np.zeros((1, 2)), np.zeros((1, 2, 2)))}, {})
    with pytest.raises(ValueError, match="built before a Gaussian stage.*Build the step after"):
        step.setup_chain(1, 0, 1)
    with pm.Model():
        alone = pm.Normal("alone")
        with pytest.raises(ValueError, match="Nothing in the model depends on"):
            EllipticalSlice([alone])
        child = pm.Normal("child", alone)
        pm.Normal("y", child, observed=1.0)
        with pytest.raises(ValueError, match="depends on another.*one step for each"):
            EllipticalSlice([alone, child])
    with pm.Model() as impossible:
        a = pm.Normal("a", 0.0, 1.0)
        pm.Potential("never", pt.switch(a > 5.0, 0.0, -np.inf))
        step = EllipticalSlice([a], compile_kwargs={"mode": RAW})
    with pytest.raises(ValueError, match="not finite at the current values. Pass initvals"):
        step.step(impossible.initial_point())
