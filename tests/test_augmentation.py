"""Data augmentation of probit models."""

import numpy as np
import pymc as pm
import pytest
import reference_steps as reference

from modes import RAW, REWRITTEN
from scipy import special

import pymc_vsgp as vsgp

from pymc_vsgp.steps import ProbitAugmentation

FAST = {"compile_kwargs": {"mode": REWRITTEN}}
QUICK = {"compile_kwargs": {"mode": RAW}}
XU = np.array([[0.2], [1.0], [1.9]])
X = np.array([[-0.7], [0.0], [0.7], [1.4], [2.0], [3.2]])
LABELS = np.array([0, 1, 0, 1, 1, 1])


def sparse(link="probit", sd=2.0):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=sd**2 * pm.gp.cov.ExpQuad(1, ls=0.8))
        gp.prior("u", Xu=XU, jitter=reference.JITTER)
        gp.likelihood("y", vsgp.Bernoulli(link), X=X, y=LABELS)
    return model


def terms_of_sparse(ls, sd, v):
    """Expected log probabilities by quadrature, and u."""
    jitter = reference.JITTER * sd**2 * np.eye(len(XU))
    R = np.linalg.cholesky(reference.kernel(XU, XU, ls, sd) + jitter)
    A = np.linalg.solve(R, reference.kernel(XU, X, ls, sd))
    mu, gamma = v @ A, sd**2 - (A**2).sum(axis=0)
    t, w = np.polynomial.hermite_e.hermegauss(40)
    signs = 2.0 * LABELS - 1.0
    logs = special.log_ndtr(signs * (mu[..., None, :] + np.sqrt(gamma) * t[:, None]))
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


def test_exact_posterior():
    model = reference.latent(fixed=True)
    step = ProbitAugmentation([model["f"]], n_updates=10, model=model, **FAST)
    draws, accept = run(step, model.initial_point(), "f", 600)
    assert accept == 1.0
    _, mean = reference.evidence(reference.terms_of_latent("probit"), 1.0, 1.0, n=40)
    for i in range(3):
        reference.check_mean(draws[..., i], mean[i])


@pytest.mark.slow
def test_sparse_posterior():
    """With variances of f given u of up to the prior's, proposals are weighed."""
    model = sparse()
    step = ProbitAugmentation([model["u"]], n_updates=10, model=model, **FAST)
    draws, accept = run(step, model.initial_point(), "u_whitened__", 100)
    assert 0.3 < accept < 0.99
    _, u = reference.evidence(terms_of_sparse, 0.8, 2.0, n=30)
    R = np.linalg.cholesky(
        reference.kernel(XU, XU, 0.8, 2.0) + reference.JITTER * 4.0 * np.eye(len(XU))
    )
    for i, mean in enumerate(np.linalg.solve(R, u)):
        reference.check_mean(draws[..., i], mean, largest=0.12, rhat=1.05)


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
    model = sparse("logit")
    with model, pytest.raises(ValueError, match="not the probit of one function"):
        ProbitAugmentation([model["u"]], **QUICK)
    counts = reference.sparse()
    with counts:
        with pytest.raises(ValueError, match="not the probit of one function"):
            ProbitAugmentation([counts["u"]], **QUICK)
        with pytest.raises(ValueError, match="n_updates is 0"):
            ProbitAugmentation([counts["u"]], n_updates=0)
