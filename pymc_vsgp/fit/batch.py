"""Proposals with the target at each of them."""

from dataclasses import dataclass

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import gammaincinv, logsumexp

from pymc_vsgp.fit.weights import finite

__all__ = ["Batch"]

MANY = 4000  # theta: more take seconds to compare, and tell no more
NEAR, TOGETHER = 25, 150  # of theta that are near one, and of epsilon at these, at least
WORTH = 0.02  # of their number, for estimates of the marginal to be of any use
LARGEST_POWER = 300.0


@dataclass
class Batch:
    """Proposals of theta, and the target over the density of each of K epsilon."""

    theta: np.ndarray
    inner: np.ndarray
    epsilon: np.ndarray
    """Some for each theta, n x R x m, each drawn by the weights: the largest plus Gumbel noise."""
    score: np.ndarray
    proposed: np.ndarray | None = None
    """All epsilon, as they were proposed, where these are kept: n x K x m."""

    @property
    def log_marginal(self) -> np.ndarray:
        """Logarithm of the mean over epsilon, for each theta."""
        return logsumexp(self.inner, axis=1) - np.log(self.inner.shape[1])

    def joined(self, other) -> "Batch":
        """Return the same theta with the epsilon of both."""
        better = other.score > self.score
        return Batch(
            self.theta,
            np.concatenate([self.inner, other.inner], axis=1),
            np.where(better[..., None], other.epsilon, self.epsilon),
            np.where(better, other.score, self.score),
        )

    def ordered(self, at) -> "Batch":
        """Return theta in this order."""
        return Batch(self.theta[at], self.inner[at], self.epsilon[at], self.score[at])

    @classmethod
    def concatenated(cls, parts) -> "Batch":
        """Return one theta after another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((b.theta, b.inner, b.epsilon, b.score) for b in parts), strict=True)
        return cls(*(np.concatenate(x) for x in columns))

    def inner_variance(self, log_w) -> float:
        """Relative variance of the weights of epsilon given theta, where theta is likely."""
        if self.inner.shape[1] == 1:
            return 0.0
        w = np.exp(finite(log_w) - logsumexp(finite(log_w)))
        with np.errstate(invalid="ignore"):  # of a theta with no weight
            inner = np.exp(self.inner - self.log_marginal[:, None])
        return float(w @ np.nan_to_num(inner.var(axis=1, ddof=1), nan=0.0))

    @property
    def log_variance(self) -> float:
        """Variance of log weights of epsilon given theta, which is typical of theta."""
        more = self.inner.shape[1] - 1
        if more == 0:
            return 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            each = self.inner.var(axis=1, ddof=1)
        # The median of variances of normal numbers is less than the variance.
        less = 2.0 * gammaincinv(more / 2.0, 0.5) / more
        return float(np.median(np.nan_to_num(each, nan=np.inf)) / less)

    def rough(self, log_w) -> np.ndarray:
        """Return which of the first theta are where epsilon hardly ever lands near its posterior.

        There the marginal is estimated too low as a rule, and no weight tells. One theta has too
        few of epsilon to show it: those that are near one another do together.
        """
        n, K = min(len(self.inner), MANY), self.inner.shape[1]
        near = max(NEAR, -(-TOGETHER // K))
        if K == 1 or n < 4 * near or not self.theta.shape[1]:
            return np.empty(0, int)
        theta, inner, log_w = self.theta[:n], self.inner[:n], finite(log_w[:n])
        w = np.exp(log_w - logsumexp(log_w))
        mean = w @ theta
        scale = np.sqrt(w @ (theta - mean) ** 2)
        if not np.isfinite(scale).all() or not scale.all():
            return np.empty(0, int)
        standard = (theta - mean) / scale
        of = cKDTree(standard).query(standard, k=near)[1]
        middle = np.median(inner, axis=1, keepdims=True)
        middle = np.where(np.isfinite(middle), middle, inner.max(axis=1, keepdims=True))
        with np.errstate(invalid="ignore"):  # of a theta with no weight
            size = np.nan_to_num(inner - middle, nan=-np.inf)
        size = np.exp(np.minimum(size, LARGEST_POWER))
        first, second = (x.sum(axis=1)[of].sum(axis=1) for x in (size, size**2))
        return np.flatnonzero(first**2 < WORTH * near * K * second)

    def single(self, log_w) -> np.ndarray:
        """Weights of each epsilon by itself, of which those of theta are the means."""
        with np.errstate(invalid="ignore"):
            single = (self.inner + (log_w - self.log_marginal)[:, None]).ravel()
        return np.where(np.isnan(single), -np.inf, single)  # of a theta with no weight
