"""What the inducing values leave of each row: variance, residuals, and what follows from these."""

from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from scipy.spatial import cKDTree

from pymc_vsgp.results.draws import Fitted
from pymc_vsgp.results.nested import columns_of, prior_of, slopes_of

NEIGHBORS = 4
FARTHER = 1e6  # standard deviations that groups are apart


class Seen(NamedTuple):
    """Of a few rows, at some draws."""

    phi: np.ndarray
    residual: np.ndarray
    nats: np.ndarray
    fraction: np.ndarray
    of_process: np.ndarray


def look(fit: Fitted, at: slice, X, y, start) -> Seen:
    """Look at a few rows, at some draws."""
    mu, gamma = fit.moments(at, X)
    phi = fit.expected_logp(at, mu, gamma, y, start)
    residual, slope = slopes_of(fit, at, mu, gamma, y, start)
    shape = (*gamma.shape[:2], -1)
    nats = (-slope * gamma).reshape(shape)
    fraction = (gamma / prior_of(fit, at, X)).reshape(shape)
    sizes = [(columns_of(fit, i) or (1,))[0] for i in range(len(fit.observation.parts))]
    starts = np.cumsum([0, *sizes[:-1]])
    of_process = np.add.reduceat(nats.sum(axis=(0, 1)), starts)
    return Seen(phi, residual.reshape(shape), nats.sum(axis=2), fraction.max(axis=2), of_process)


def points_are_exact(numbers: dict[str, int], parts, X) -> bool:
    """Whether Xu = X takes no more inducing variables than Fourier coefficients, and is exact."""
    found = []
    for p in parts:
        if (given := p.conditional).noun == "Fourier coefficients":
            distinct = len(np.unique(X[:, given.active], axis=0))
            found.append(numbers[p.u.name] >= distinct and not given.repeats)
    return bool(found) and all(found)


def wrap_of(fit: Fitted, X) -> float:
    """Correlation of opposite ends of the data around a torus."""
    low, high = X.min(axis=0), X.max(axis=0)
    ends = np.vstack([low, np.where(np.eye(len(low), dtype=bool), high, low)])

    def build():
        x = fit.X_symbol
        found = [p.conditional.wrap(x, p.args) for p in fit.observation.parts]
        largest = pt.max(pt.stack([pt.zeros(()), *(w for w in found if w is not None)]))
        return [], [x], [largest]

    (found,) = fit.call("wrap", slice(0, fit.draws.n), build, same=[ends])
    return float(np.quantile(np.broadcast_to(found, fit.draws.n), 0.9))


def structure_of(X: np.ndarray, residual: np.ndarray, grouped: bool) -> float:
    """How alike the residuals of neighbors are, in standard deviations: those of one group.

    Where too few points made the function too smooth, little is missing by its own account:
    the residuals tell.
    """
    spread = X.std(axis=0)
    points = X / np.where(spread > 0, spread, 1.0)
    group = X[:, -1] if grouped else np.zeros(len(X))
    points = np.column_stack([points, FARTHER * group])
    k = min(NEIGHBORS, len(X) - 1)
    if k < 1:
        return 0.0
    _, near = cKDTree(points).query(points, k + 1)
    i, j = np.repeat(np.arange(len(X)), k), near[:, 1:].ravel()
    pairs = np.unique(np.sort(np.stack([i, j], axis=1), axis=1), axis=0)
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & (group[pairs[:, 0]] == group[pairs[:, 1]])]
    products = residual[pairs[:, 0]] * residual[pairs[:, 1]]
    products = products.reshape(len(pairs), -1).sum(axis=1)
    return float(products.sum() / max(np.sqrt((products**2).sum()), 1e-300))
