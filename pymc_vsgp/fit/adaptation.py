"""Proposal densities, and how weighted proposals fit them to the target."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from scipy.linalg import solve_triangular
from scipy.special import expit, logsumexp

from pymc_vsgp.fit.proposals import FAR, Along, Bent, Mixture, StudentT
from pymc_vsgp.fit.weights import finite, smooth_weights

__all__ = [
    "Moments",
    "Near",
    "adapt",
    "mixture",
    "moments",
    "of_epsilon",
    "of_moments",
    "of_theta",
    "without_noise",
]

WIDER = 0.6  # proposals of epsilon, by this over the root of their number: see `of_epsilon`
# Parts of the proposals that see to the tails. Where data say little of a scale, or of how much a
# function varies, much of the posterior is a long tail of its logarithm.
WIDE, TAILS, PRIOR = 0.05, 0.25, 0.05
OTHERS = 0.4  # and to optima elsewhere
NARROWEST = 0.05  # variance of epsilon, over that of the stage
FEW = 2.0  # draws for each number of a mean, that a covariance is not told by
DRAWS, STEPS = 2000, 20
GAIN = 0.05  # nats: a second density also makes up for the tails of the first
BENDS, NEWTON = 3, 4  # steps that fit a density which is bent, ...
FLATTEST, STEEPEST = 0.2, 1.0  # ... what keeps them short ...
TOLD = 5.0  # ... and draws for each parameter that tell it
NOISE = 2.0  # of a mean of weighted draws, over that of as many as their sample is worth
CHANCE = 2.0  # quantile of Tracy and Widom: one largest eigenvalue of noise in a hundred
GRID = 400  # points of what edges are found on, and weights that are taken alone


class Near(NamedTuple):
    """Where most of theta is: a few normal densities, by their shares, means and covariances.

    Or one that is bent, with the mean and the covariance of all.
    """

    shares: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    bent: Bent | None = None

    @classmethod
    def one(cls, mean, cov) -> "Near":
        """Return a single one."""
        return cls(np.ones(1), mean[None], cov[None])

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of all."""
        mean = self.shares @ self.means
        away = self.means - mean
        between = (away.T * self.shares) @ away
        return mean, np.tensordot(self.shares, self.covariances, axes=1) + between

    @property
    def densities(self) -> list[tuple[float, Any]]:
        """What theta is proposed from there, with its shares."""
        if self.bent is not None:
            return [(1.0, self.bent)]
        return [(p, of_theta(m, _root(cov))) for p, m, cov in zip(*self[:3], strict=True)]

    def level(self, theta) -> float:
        """Mean log density."""
        return float(Mixture(self.densities).logpdf(theta).mean())


def mixture(near: Near, prior, elsewhere) -> Mixture:
    """Return proposals of theta that are near, and some that are not."""
    center, cov = near.moments
    d, root = len(center), _root(cov)
    parts: list[tuple[float, Any]] = [(WIDE, StudentT(center, 2.0 * root, 3.0))]
    if d:
        parts += [(TAILS, Along(center, root, 5.0 + d))]
    if d and prior is not None:
        parts += [(PRIOR, prior)]
    parts += [(OTHERS / len(elsewhere), q) for q in elsewhere]
    rest = 1.0 - sum(share for share, _ in parts)
    return Mixture([*((rest * share, q) for share, q in near.densities), *parts])


def _root(cov):
    return np.linalg.cholesky(cov) if len(cov) else cov


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


def adapt(rounds, first) -> Near:
    """Find where theta is under the weights of all rounds, as one mixture.

    `first` is the covariance of the stage.
    """
    theta = np.concatenate([b.theta for _, b in rounds])
    d = theta.shape[1]
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
    cov = (ess * cov + FEW * (d + 1) * first) / (ess + FEW * (d + 1))
    near = Near.one(center, cov)
    if d == 0:
        return near
    # As many draws as tell what there is to tell, at equal distances along the weights.
    at = np.searchsorted(np.cumsum(w), (np.arange(DRAWS) + 0.5) / DRAWS).clip(max=len(w) - 1)
    worth = min(ess, DRAWS)
    root = np.linalg.cholesky(cov)
    two = _two(solve_triangular(root, away[at].T, lower=True).T, worth)
    if two is not None:
        covariances = root @ two.covariances @ root.T
        two = Near(two.shares, center + two.means @ root.T, covariances)
    # As Akaike: what they have more of is fitted to the same draws.
    level, best = near.level(theta[at]) + GAIN, near
    others = ((two, (d + 1.0) * (d + 2.0) / 2.0), (_bent(near, away[at], worth), 2.0 * (d - 1.0)))
    for other, n_more in others:
        if other is not None and (found := other.level(theta[at]) - n_more / worth) >= level:
            level, best = found, other
    return best


def _bent(near: Near, away, worth) -> Near | None:
    """One density that is bent along the parameter which does most to the others.

    Parameters that scale others make the posterior a funnel, or a banana.
    """
    n, d = away.shape
    if d == 1 or worth < TOLD * d:
        return None
    scale = np.sqrt(np.diagonal(near.covariances[0]))
    x = away / scale
    k = int(np.argmax([_bend(x, j) for j in range(d)]))
    basis, t = Bent.basis(x[:, k])
    others = np.delete(x, k, axis=1)
    slopes = np.zeros(d - 1)
    for _ in range(BENDS):
        precise = np.exp(-2.0 * t * slopes)
        weighed = basis.T[None] * precise.T[:, None]
        curve = np.linalg.solve(weighed @ basis, weighed @ others.T[..., None])[..., 0].T
        squares = (others - basis @ curve) ** 2
        for _ in range(NEWTON):
            each = squares * np.exp(-2.0 * t * slopes)
            each /= each.mean(axis=0)
            first = (t * each).mean(axis=0)
            second = 2.0 * ((t**2 * each).mean(axis=0) - first**2)
            step = (first - t.mean()) / np.maximum(second, FLATTEST)
            slopes = np.clip(slopes + step, -STEEPEST, STEEPEST)
    left = (others - basis @ curve) * np.exp(-t * slopes)
    prior = FEW * (d + 1)
    found = left.T @ left / n
    cov = (worth * found + prior * np.diag(np.diagonal(found))) / (worth + prior)
    bent = Bent(near.means[0], scale, k, curve, slopes, np.linalg.cholesky(cov))
    return near._replace(bent=bent)


def _bend(x, k) -> float:
    """How much an entry bends and scales the others, to first order; entries have variance one."""
    t = np.clip(x[:, k], -FAR, FAR)
    line = np.column_stack([np.ones_like(t), t])
    others = np.column_stack([t**2, np.delete(x, k, axis=1)])
    others -= line @ np.linalg.lstsq(line, others)[0]
    others /= others.std(axis=0)
    bends = others[:, :1].T @ others[:, 1:] / len(x)
    scales = (t - t.mean()) @ (others[:, 1:] ** 2) / len(x)
    return float((bends**2).sum() + (scales**2).sum() / 2.0)


def _two(z, worth) -> Near | None:
    """Two densities of draws with about unit covariance, where so many tell them.

    Weak data make the posterior lopsided.
    """
    d = z.shape[1]
    splits = (z[:, k] > np.median(z[:, k]) for k in range(d))
    _, near, of_first = max((_em(z, split, worth, 3) for split in splits), key=itemgetter(0))
    return near if near is None else _em(z, of_first, worth, STEPS)[1]


def _em(z, of_first, worth, steps):
    """Return mean log density, densities, and which draws the first one has, after some steps.

    The log density is minus infinity where one of them has too few draws.
    """
    n, d = z.shape
    for _ in range(steps):
        of = np.stack([of_first, 1.0 - of_first])
        shares = of.mean(axis=1)
        if shares.min() * worth < d + 1.0:
            return -np.inf, None, of_first
        means = of @ z / (n * shares[:, None])
        away = z - means[:, None]
        sums = np.einsum("jn,jna,jnb->jab", of, away, away, optimize=True) * (worth / n)
        number = (shares * worth)[:, None, None]
        covariances = (sums + FEW * (d + 1) * np.eye(d)) / (number + FEW * (d + 1))
        near = Near(shares, means, covariances)
        each = np.stack([np.log(share) + q.logpdf(z) for share, q in near.densities])
        log_q = logsumexp(each, axis=0)
        of_first = np.exp(each[0] - log_q)
    return log_q.mean(), near, of_first


class Moments(NamedTuple):
    """What weighted vectors are worth, their mean and their covariance, and the weights."""

    ess: float
    mean: np.ndarray
    covariance: np.ndarray
    weights: np.ndarray


def moments(x: np.ndarray, log_w: np.ndarray) -> Moments:
    """Return the moments of vectors with these log weights, which are smoothed."""
    log_w = finite(log_w)
    if np.isnan(log_w).any():
        m = x.shape[1]
        return Moments(0.0, np.zeros(m), np.eye(m), np.zeros(len(x)))
    log_w = smooth_weights(log_w)[0]
    w = np.exp(log_w - logsumexp(log_w))
    mean = w @ x
    away = x - mean
    return Moments(float(1.0 / (w**2).sum()), mean, away.T @ (away * w[:, None]), w)


def of_moments(found: Sequence[Moments]) -> StudentT | None:
    """Return proposals with the moments of epsilon that some rounds found.

    They differ from a standard normal only where that is more than the noise of these moments.
    Returns None where there are none, or nothing is known.
    """
    total = sum(x.ess for x in found)
    if not total > 0.0:
        return None
    shares = np.array([x.ess / total for x in found])
    mean = shares @ np.stack([x.mean for x in found])
    seconds = np.stack([x.covariance + np.outer(x.mean, x.mean) for x in found])
    second = np.tensordot(shares, seconds, axes=1)
    # As James and Stein: a mean of noise is as long as that.
    shrink = 1.0 - NOISE * len(mean) / total / max(mean @ mean, 1e-300)
    values, vectors = np.linalg.eigh(second - np.outer(mean, mean))
    weights = np.concatenate([p * x.weights for p, x in zip(shares, found, strict=True)])
    true = np.maximum(without_noise(values, weights), NARROWEST)
    if shrink < 0.5 and (true == 1.0).all():
        return None
    root = np.linalg.cholesky(vectors * true @ vectors.T)
    return of_epsilon(max(shrink, 0.0) * mean, root)


def without_noise(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Free eigenvalues of the covariance of weighted vectors of their noise.

    Vectors of :math:`N(0, I_m)` with weights :math:`w_i` have a covariance whose eigenvalues spread
    between two edges. A few large weights move these far out. The edges are the extremes of

    .. math:: \lambda(s) = -1/s + h(s), \qquad h(s) = \sum_i \frac{w_i}{1 + m w_i s},

    between the pole of the largest weight and zero, and above zero. An eigenvalue beyond them is of
    a direction with the variance :math:`\lambda / h`. All others become one.

    References
    ----------
    Silverstein, J. W. and Bai, Z. D. (1995). On the empirical distribution of eigenvalues of a
    class of large dimensional random matrices. Journal of Multivariate Analysis 54.
    Johnstone, I. M. (2001). On the distribution of the largest eigenvalue in principal components
    analysis. Annals of Statistics 29.
    Baik, J. and Silverstein, J. W. (2006). Eigenvalues of large sample covariance matrices of
    spiked population models. Journal of Multivariate Analysis 97.
    """
    m, true = len(values), np.ones(len(values))
    w, number = _grouped(weights)
    # How far chance moves the largest one of as many equal draws as they are worth.
    a, b = 1.0 / np.sqrt(number @ w**2), np.sqrt(m)
    chance = 1.0 + CHANCE * (1.0 / a + 1.0 / b) ** (1.0 / 3.0) / (a + b)
    top, largest = m * w[0], max(values[-1], 1.0)
    # Of the pole: near zero lambda is as large as any value, and near one the pole is close.
    of_pole = expit(np.linspace(np.log(min(top / (10.0 * largest), 1e-3)), 12.0, GRID))
    for s, side in ((-of_pole / top, 1.0), (np.geomspace(0.1, 1e6, GRID), -1.0)):
        h = np.array([number @ (w / (1.0 + m * w * x)) for x in s])
        height = side * (h - 1.0 / s)
        edge = int(np.argmin(height))
        # From far out to the edge, where lambda turns round.
        height, h = height[: edge + 1], h[: edge + 1]
        limit = height[-1] * (chance if side > 0.0 else 1.0 / chance)
        beyond = (side * values > limit) & ((side > 0.0) | (limit < 0.0))
        true[beyond] = values[beyond] / np.interp(side * values[beyond], height[::-1], h[::-1])
    return true


def _grouped(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights from the largest on, and how many there are of each: small ones in groups."""
    w = np.sort(weights[weights > 0.0])[::-1]
    parts = [*w[:GRID, None], *(p for p in np.array_split(w[GRID:], GRID) if len(p))]
    return np.array([p.mean() for p in parts]), np.array([len(p) for p in parts])
