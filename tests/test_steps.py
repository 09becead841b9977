"""Step methods against NUTS on the same model, and both against quadrature."""

import functools

import arviz as az
import numpy as np
import pymc as pm
import pytest
import reference_steps as reference

from marks import long
from modes import RAW, REWRITTEN
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.steps import EllipticalSlice, Interweaving, ProbitAugmentation, PseudoMarginal

FAST = {"compile_kwargs": {"mode": REWRITTEN}}
QUICK = {"compile_kwargs": {"mode": RAW}}
QUIET = {"progressbar": False, "compute_convergence_checks": False}
XU = np.array([[0.2], [1.0], [1.9]])
X = np.array([[-0.7], [0.0], [0.7], [1.4], [2.0], [3.2]])
LABELS = np.array([0, 1, 0, 1, 1, 1])
LENGTHSCALE, PRIOR = 0.8, (0.5, 0.5)  # of the deviation's logarithm: mean and sd


def build():
    """Labels with a probit, which every step method takes."""
    with pm.Model() as model:
        sd = pm.LogNormal("sd", *PRIOR)
        gp = vsgp.VariationalSparse(cov_func=sd**2 * pm.gp.cov.ExpQuad(1, ls=LENGTHSCALE))
        gp.prior("u", Xu=XU, jitter=reference.JITTER)
        gp.likelihood("y", vsgp.Bernoulli("probit"), X=X, y=LABELS)
    return model


@functools.cache
def means_by_quadrature():
    """Of log sd and u: whitened values and all else by Gauss-Hermite quadrature."""
    t, w = np.polynomial.hermite_e.hermegauss(40)
    v, weights = reference.nodes(n=24)
    signs, total, sums = 2.0 * LABELS - 1.0, 0.0, 0.0
    for log_sd in np.linspace(PRIOR[0] - 4 * PRIOR[1], PRIOR[0] + 4 * PRIOR[1], 25):
        sd = np.exp(log_sd)
        jitter = reference.JITTER * sd**2 * np.eye(len(XU))
        R = np.linalg.cholesky(reference.kernel(XU, XU, LENGTHSCALE, sd) + jitter)
        A = np.linalg.solve(R, reference.kernel(XU, X, LENGTHSCALE, sd))
        gamma = sd**2 - (A**2).sum(axis=0)
        at = (v @ A)[..., None] + np.sqrt(gamma)[:, None] * t
        terms = special.log_ndtr(signs[:, None] * at) @ (w / w.sum())
        p = weights * np.exp(terms.sum(axis=1)) * stats.norm.pdf(log_sd, *PRIOR)
        total += p.sum()
        sums = sums + np.r_[log_sd * p.sum(), p @ v @ R.T]
    return sums / total


def columns(idata):
    """Chains by draws, of log sd and each of u."""
    found = idata["posterior"]
    return [np.log(found["sd"].values), *np.moveaxis(found["u"].values, -1, 0)]


@pytest.fixture(scope="module")
def nuts():
    """The model in the coordinates of its Gaussian stage, and draws by NUTS."""
    with build() as model:
        settings = {"nuts_sampler": "pymc", "cores": 1, "random_seed": 4} | QUIET
        idata = vsgp.sample(700, method="nuts", tune=300, chains=2, **settings)
    return model, columns(idata)


def walk(model, scheme, **kwargs):
    kwargs = {"n_updates": 3, "target_accept": 0.4} | kwargs
    return Interweaving([model["sd"]], schemes=scheme, model=model, **kwargs, **FAST)


def marginal(model, approximation):
    kwargs = {"approximation": approximation, "n_importance": 4, "target_accept": 0.4}
    return PseudoMarginal([model["sd"]], model=model, **kwargs, **FAST)


STEPS = {
    "elliptical slice": lambda m: [
        EllipticalSlice([m["u"]], n_updates=5, model=m, **FAST),
        walk(m, "ancillary", n_updates=1),
    ],
    "augmentation": lambda m: [
        ProbitAugmentation([m["u"]], n_updates=5, model=m, **FAST),
        walk(m, "ancillary", n_updates=1),
    ],
    "sufficient": lambda m: walk(m, ("sufficient", "ancillary")),
    "surrogate": lambda m: walk(m, "surrogate"),
    "laplace": lambda m: marginal(m, "laplace"),
    "ep": lambda m: marginal(m, "ep"),
}
DRAWS = {"laplace": 1500, "ep": 1500}


def agree(ours, theirs):
    """Assert that chains are of one distribution, and have one mean."""
    for a, b in zip(ours, theirs, strict=True):
        n = min(a.shape[1], b.shape[1])
        assert float(az.rhat(np.concatenate([a[:, -n:], b[:, -n:]]))) <= 1.01
        error = np.hypot(float(az.mcse(a)), float(az.mcse(b)))
        assert abs(a.mean() - b.mean()) < 4.0 * error, (a.mean(), b.mean(), error)
        assert error < 0.1 * b.std()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("which", STEPS)
def test_posterior(which, nuts):
    model, theirs = nuts
    with model:
        idata = pm.sample(
            DRAWS.get(which, 2000),
            tune=200,
            chains=2,
            cores=1,
            step=STEPS[which](model),
            random_seed=2,
            **QUIET,
        )
    ours = columns(idata)
    agree(ours, theirs)
    for x, mean in zip(ours, means_by_quadrature(), strict=True):
        assert abs(x.mean() - mean) < 4.0 * float(az.mcse(x)), (x.mean(), mean)


@pytest.mark.long
@pytest.mark.slow
def test_nuts(nuts):
    """What step methods are compared with."""
    for x, mean in zip(nuts[1], means_by_quadrature(), strict=True):
        assert abs(x.mean() - mean) < 4.0 * float(az.mcse(x)), (x.mean(), mean)
        assert float(az.rhat(x)) <= 1.01


@pytest.mark.slow
def test_a_kernel_without_a_factor_is_rejected():
    """As NUTS does, by the log density of u, which steps of standard normals leave out."""
    with pm.Model() as model:
        a = pm.Normal("a", 1.0, 1.0)
        gp = vsgp.VariationalSparse(cov_func=a * pm.gp.cov.Matern52(1, ls=LENGTHSCALE))
        gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=LABELS)
        walk = Interweaving([a], schemes="ancillary", **QUICK)
        marginal = PseudoMarginal([a], **QUICK)
    here = model.initial_point()
    there = here | {"a": np.array(-0.5)}
    assert np.isneginf(model.compile_logp(mode=RAW)(there))
    assert walk._place(there) is None
    assert walk._place(here) is not None
    assert np.isneginf(marginal._try(there).log_evidence)
    assert np.isfinite(marginal._try(here).log_evidence)


@pytest.mark.slow
@pytest.mark.parametrize(
    "which", ["elliptical slice", *long("augmentation", "surrogate", "laplace")]
)
def test_chains_in_processes(which):
    """Draws and statistics follow from the seed: in processes, one after another, and again."""
    found = []
    for cores in (2, 1):
        with build() as model:
            settings = {"tune": 4, "chains": 2, "random_seed": 3} | FAST
            found.append(pm.sample(6, cores=cores, step=STEPS[which](model), **settings))
    one, two = found
    for group in ("posterior", "sample_stats"):
        for name, x in one[group].data_vars.items():
            np.testing.assert_array_equal(x, two[group][name], err_msg=name)
    sd = one["posterior"]["sd"].values
    assert (sd[0] != sd[1]).any()
    accept = one["sample_stats"]["accept"].values
    assert ((accept >= 0.0) & (accept <= 1.0)).all()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["surrogate", *long("laplace")])
def test_a_later_step_in_processes(which):
    """What another step has moved is seen, though PyMC moves it in place there."""
    found = []
    for cores in (2, 1):
        with reference.latent() as model:
            ls, sd = model["ls"], model["sd"]
            kept = (
                Interweaving([ls], **FAST) if which == "surrogate" else PseudoMarginal([ls], **FAST)
            )
            settings = {"tune": 20, "chains": 2, "random_seed": 3, "cores": cores} | FAST
            found.append(pm.sample(20, step=[kept, pm.Metropolis([sd], **FAST)], **settings))
    one, two = found
    for name, x in one["posterior"].data_vars.items():
        np.testing.assert_array_equal(x, two["posterior"][name], err_msg=name)


@pytest.mark.parametrize(
    "step", [EllipticalSlice, Interweaving, ProbitAugmentation, PseudoMarginal]
)
@pytest.mark.parametrize("vars", [[], ()])
def test_no_variables(step, vars):
    """PyMC said that the model had none."""
    model = build()
    for given in ({"vars": vars, "model": model}, {"model": model}):
        args = () if "vars" in given else (vars,)
        with pytest.raises(TypeError, match=r"vars is .*Pass a list of random variables"):
            step(*args, **given)
