"""Data augmentation of probit models."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
import reference_steps as reference

from marks import long
from modes import RAW, REWRITTEN
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.steps import ProbitAugmentation
from pymc_vsgp.steps.augmentation import _tails, _truncated

FAST = {"compile_kwargs": {"mode": REWRITTEN}}
QUICK = {"compile_kwargs": {"mode": RAW}}
XU = np.array([[0.2], [1.0], [1.9]])
X = np.array([[-0.7], [0.0], [0.7], [1.4], [2.0], [3.2]])
LABELS = np.array([0, 1, 0, 1, 1, 1])


CLASSES = np.array([0, 1, 0, 2, 1, 2])
CUTS = np.array([-0.4, 0.9])


def sparse(link="probit", sd=2.0, ordinal=False):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=sd**2 * pm.gp.cov.ExpQuad(1, ls=0.8))
        gp.prior("u", Xu=XU, jitter=reference.JITTER)
        if ordinal:
            # Not constants: bounds are those of the current point.
            ordered = pm.distributions.transforms.ordered
            cuts = pm.Normal("c", 0.0, 2.0, shape=2, transform=ordered, initval=[-1.0, 1.0])
            gp.likelihood("y", vsgp.Ordinal(cuts, link=link), X=X, y=CLASSES)
        else:
            gp.likelihood("y", vsgp.Bernoulli(link), X=X, y=LABELS)
    return model


def log_of_labels(f):
    return special.log_ndtr((2.0 * LABELS - 1.0) * f)


def log_of_classes(f):
    edges = np.r_[-np.inf, CUTS, np.inf]
    a, b = edges[CLASSES] - f, edges[CLASSES + 1] - f
    a, b = np.where(a > 0.0, -b, a), np.where(a > 0.0, -a, b)
    return special.log_ndtr(b) + np.log1p(-np.exp(special.log_ndtr(a) - special.log_ndtr(b)))


def terms_of_sparse(log_p, ls, sd, v):
    """Expected log probabilities by quadrature, and u."""
    jitter = reference.JITTER * sd**2 * np.eye(len(XU))
    R = np.linalg.cholesky(reference.kernel(XU, XU, ls, sd) + jitter)
    A = np.linalg.solve(R, reference.kernel(XU, X, ls, sd))
    mu, gamma = v @ A, sd**2 - (A**2).sum(axis=0)
    t, w = np.polynomial.hermite_e.hermegauss(40)
    logs = log_p(mu[..., None, :] + np.sqrt(gamma) * t[:, None])
    return np.einsum("...qn,q->...", logs, w / w.sum()), v @ R.T


def run(step, point, name, n, seeds=(1, 2)):
    chains, accept = [], []
    for seed in seeds:
        step.setup_chain(np.random.default_rng(seed), 0, n)
        draws = []
        for _ in range(n):
            point, (stats,) = step.step(point)
            draws.append(point[name])
            accept.append(stats["accept"])
        chains.append(draws)
    return np.array(chains), np.mean(accept)


@pytest.mark.slow
def test_exact_posterior():
    model = reference.latent(fixed=True)
    step = ProbitAugmentation([model["f"]], n_updates=10, model=model, **FAST)
    draws, accept = run(step, model.initial_point(), "f", 600)
    assert accept == 1.0
    _, mean = reference.evidence(reference.terms_of_latent("probit"), 1.0, 1.0, n=40)
    for i in range(3):
        reference.check_mean(draws[..., i], mean[i])


@pytest.mark.slow
@pytest.mark.parametrize("ordinal", [False, *long(True)])
def test_sparse_posterior(ordinal):
    """With variances of f given u of up to the prior's, proposals are weighed."""
    model = sparse(ordinal=ordinal)
    step = ProbitAugmentation([model["u"]], n_updates=10, model=model, **FAST)
    point = model.initial_point()
    if ordinal:
        point["c_ordered__"] = np.array([CUTS[0], np.log(CUTS[1] - CUTS[0])])
    draws, accept = run(step, point, "u_whitened__", 100)
    assert 0.3 < accept < 0.99
    log_p = log_of_classes if ordinal else log_of_labels
    _, u = reference.evidence(partial(terms_of_sparse, log_p), 0.8, 2.0, n=30)
    R = np.linalg.cholesky(
        reference.kernel(XU, XU, 0.8, 2.0) + reference.JITTER * 4.0 * np.eye(len(XU))
    )
    for i, mean in enumerate(np.linalg.solve(R, u)):
        reference.check_mean(draws[..., i], mean, largest=0.12, rhat=1.05)


@pytest.mark.parametrize(
    "bounds",
    [(-np.inf, 0.0), (0.0, np.inf), (-30.0, -29.9), (40.0, np.inf), (7.0, 7.5), (-1.0, 9.0)],
)
def test_normals_between_bounds(bounds, rng):
    """Of any distance from the mean; the log probability is that of the interval."""
    n, mean = 4000, 0.3
    sign, lower, upper = tails = _tails(np.full(n, mean), *(np.full(n, b) for b in bounds))
    z = _truncated(np.full(n, mean), tails, rng)
    assert (z >= bounds[0]).all() and (z <= bounds[1]).all()
    expected = stats.truncnorm(bounds[0] - mean, bounds[1] - mean, loc=mean)
    assert stats.kstest(z, expected.cdf).pvalue > 1e-3
    mass = upper + np.log(-np.expm1(lower - upper))
    density = stats.norm(mean).logpdf(z) - expected.logpdf(z)
    np.testing.assert_allclose(mass, density, rtol=1e-9, atol=1e-9)


def test_parameters_move(rng):
    """Signs, kernel and variances are those of the current point; far tails are drawn."""
    model = reference.latent(True)
    step = ProbitAugmentation([model["f"]], model=model, **FAST)
    step.setup_chain(rng, 0, 1)
    far = {"f_rotated_": np.array([-30.0, 30.0, -30.0]), "sd_log__": np.array(2.0)}
    point, _ = step.step(model.initial_point() | far)
    assert np.isfinite(point["f_rotated_"]).all()
    assert abs(point["f_rotated_"]).max() < 30.0
    np.testing.assert_array_equal(point["sd_log__"], 2.0)


@pytest.mark.slow
def test_errors():
    logit = reference.latent(likelihood="logit")
    with logit, pytest.raises(ValueError, match="not the probit of one function.*EllipticalSlice"):
        ProbitAugmentation([logit["f"]], **QUICK)
    for ordinal in (False, True):
        model = sparse("logit", ordinal=ordinal)
        with model, pytest.raises(ValueError, match="not the probit of one function"):
            ProbitAugmentation([model["u"]], **QUICK)
    counts = reference.sparse()
    with counts:
        with pytest.raises(ValueError, match="not the probit of one function"):
            ProbitAugmentation([counts["u"]], **QUICK)
        with pytest.raises(ValueError, match="n_updates is 0"):
            ProbitAugmentation([counts["u"]], n_updates=0)
