"""Proposal densities, and how weighted proposals fit them to the target."""

import numpy as np

from scipy.special import logsumexp

from pymc_vsgp.fit.proposals import Mixture, StudentT
from pymc_vsgp.fit.weights import finite, smooth_weights

__all__ = ["adapt", "mixture", "moments", "of_epsilon", "of_moments", "of_theta"]

WIDER = 0.6  # proposals of epsilon, by this over the root of their number: see `of_epsilon`
WIDE, PRIOR = 0.1, 0.05  # parts of the proposals that see to the tails
OTHERS = 0.4  # and to optima elsewhere
NARROWEST = 0.05  # variance of epsilon, over that of the stage
NOISE = 2.0  # of a covariance of weighted draws, over that of as many as their sample is worth


def mixture(center, cov, prior, elsewhere) -> Mixture:
    """Return proposals of theta with this center and covariance."""
    root = np.linalg.cholesky(cov) if len(cov) else cov
    parts = [(WIDE, StudentT(center, 2.0 * root, 3.0))]
    if len(center) and prior is not None:
        parts += [(PRIOR, prior)]
    parts += [(OTHERS / len(elsewhere), q) for q in elsewhere]
    rest = 1.0 - sum(share for share, _ in parts)
    return Mixture([(rest, of_theta(center, root)), *parts])


def of_theta(center, root) -> StudentT:
    """Return proposals around an estimate."""
    return StudentT(center, root, 5.0 + len(center))


def of_epsilon(center, root: np.ndarray | float = 1.0) -> StudentT:
    """Return proposals of epsilon that are wider than the normal which they nearly are.

    Weights of those far out are then bounded in every direction. For normal epsilon that costs the
    same in any dimension: weights vary by exp(2 c^2) - 1, with c from above.
    """
    m = len(center)
    return StudentT(center, (1.0 + WIDER / np.sqrt(max(m, 1))) * root, max(20.0, 4.0 * m))


def adapt(rounds, first, d):
    """Mean and covariance of theta under the weights of all rounds, as one mixture."""
    theta = np.concatenate([b.theta for _, b in rounds])
    marginal = np.concatenate([b.log_marginal for _, b in rounds])
    sizes = np.array([len(b.theta) for _, b in rounds])
    each = np.stack([q.logpdf(theta) for q, _ in rounds])
    log_q = logsumexp(each + np.log(sizes / sizes.sum())[:, None], axis=0)
    log_w, _ = smooth_weights(finite(marginal - log_q))
    power, enough = 1.0, min(3.0 * (d + 5), 0.2 * len(theta))
    w = np.exp(log_w - logsumexp(log_w))
    while 1.0 / (w**2).sum() < enough and power > 0.01:
        power *= 0.8
        w = np.exp(power * log_w - logsumexp(power * log_w))
    ess = 1.0 / (w**2).sum()
    center = w @ theta
    away = theta - center
    cov = away.T @ (away * w[:, None])
    # A small ESS does not tell a covariance: the curvature at the estimate fills in.
    prior_weight = 2.0 * (d + 1)
    cov = (ess * cov + prior_weight * first) / (ess + prior_weight)
    return center, cov


def moments(x: np.ndarray, log_w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """What weighted vectors are worth, their mean and their covariance."""
    log_w = finite(log_w)
    if np.isnan(log_w).any():
        m = x.shape[1]
        return 0.0, np.zeros(m), np.eye(m)
    log_w = smooth_weights(log_w)[0]
    w = np.exp(log_w - logsumexp(log_w))
    mean = w @ x
    away = x - mean
    return float(1.0 / (w**2).sum()), mean, away.T @ (away * w[:, None])


def of_moments(found) -> StudentT | None:
    """Return proposals with the `moments` of epsilon that some rounds found.

    They differ from a standard normal only where that is more than the noise of these moments: in
    the directions of eigenvalues that are outside of what random matrices have, which are freed of
    their bias. Returns None where there are none, or nothing is known.

    References
    ----------
    Baik, J. and Silverstein, J. W. (2006). Eigenvalues of large sample covariance matrices of
    spiked population models. Journal of Multivariate Analysis 97.
    """
    total = sum(ess for ess, _, _ in found)
    if not total > 0.0:
        return None
    mean = sum(ess * mean for ess, mean, _ in found) / total
    second = sum(ess * (cov + np.outer(mean, mean)) for ess, mean, cov in found) / total
    ratio = NOISE * len(mean) / total
    # As James and Stein: a mean of noise is as long as that.
    shrink = 1.0 - ratio / max(mean @ mean, 1e-300)
    values, vectors = np.linalg.eigh(second - np.outer(mean, mean))
    above = (1.0 + np.sqrt(ratio)) ** 2
    # A sample that is worth less than the dimensions has no variance in some directions.
    below = (1.0 - np.sqrt(ratio)) ** 2 if ratio < 1.0 else -np.inf
    half = (values + 1.0 - ratio) / 2.0
    with np.errstate(invalid="ignore"):
        apart = np.sqrt(half**2 - values)
    true = np.where(values > above, half + apart, np.where(values < below, half - apart, 1.0))
    true = np.maximum(true, NARROWEST)
    if shrink < 0.5 and (true == 1.0).all():
        return None
    root = np.linalg.cholesky(vectors * true @ vectors.T)
    return of_epsilon(max(shrink, 0.0) * mean, root)
