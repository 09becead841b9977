r"""Epsilon of the posterior at one theta, by Hamiltonian Monte Carlo.

Where data are many, epsilon is nearly normal given theta, but in so many dimensions that weights of
normal proposals tell nothing. In coordinates that follow theta, however, its posterior is almost
the same at all theta that are likely. So draws of a chain at one of them are proposals for all:

.. math:: w = \frac{p(\theta, \epsilon, y)}{q(\theta)\, p(\epsilon \mid \theta_0, y)}
   \propto \frac{p(\theta, \epsilon, y)}{q(\theta)\, p(\theta_0, \epsilon, y)}

It is the mean of theta, once some proposals tell it: weights vary by more the further from there.
Where its posterior differs too much, coordinates are fitted at each theta, as in `newton`.

Steps of the chains solve the equations of the normal part exactly, so what is left decides how
large they can be, and not the number of dimensions.

References
----------
Beskos, A., Pinski, F. J., Sanz-Serna, J. M. and Stuart, A. M. (2011). Hybrid Monte Carlo on Hilbert
spaces. Stochastic Processes and their Applications 121.
"""

import numpy as np

from arviz_stats.base import array_stats
from pytensor.gradient import grad
from pytensor.graph.basic import Variable

from pymc_vsgp.compile import building, function
from pymc_vsgp.fit.bound import split
from pymc_vsgp.fit.density import Points, computed_first

__all__ = ["Chains", "parts"]

CHAINS, TUNE, MORE = 4, 40, 10
ACCEPTANCE, SHORTEST = 0.8, 0.2  # what needs shorter steps is for NUTS
QUARTER = np.pi / 2.0  # of a period, after which draws of a normal density are independent
LONGER = 0.15  # of a step that may be left out, where all others become longer
LARGEST_RHAT = 1.05


def parts(n: int) -> np.ndarray:
    """Which chain draws each of n proposals: one after another, so that draws show how they mix."""
    return np.arange(n) * CHAINS // max(n, 1)


class Chains:
    """Chains of epsilon of `points`, at a theta that they are started at.

    `logp` is a graph of the log density, which says in which coordinates they are.
    """

    @building
    def __init__(self, points: Points, logp: Variable):
        self.points = points
        outputs = [logp, *grad(logp, points.inner)]
        # What depends on theta alone is computed once.
        fixed = computed_first(outputs, points.inner)
        self._fixed = function(points.outer, fixed)
        # Evaluated some thousand times: with the backend of the user.
        self._density = function([*points.inner, *fixed], outputs, None)

    def start(self, theta: np.ndarray, rng) -> None:
        """Start at this theta, and tune the size of the steps."""
        self.rng, self.n_gradients, self._step = rng, 0, 0.5
        size = self.points.n_epsilon
        self._settle(theta, [1.5 * rng.normal(size=size) for _ in range(CHAINS)], range(TUNE))

    def go_on(self, theta: np.ndarray) -> None:
        """Go on at another theta, where the posterior is about the same."""
        last = [epsilon for epsilon, *_ in self._states]
        self._settle(theta, last, range(TUNE, TUNE + MORE))

    def _settle(self, theta, epsilon, steps) -> None:
        """Let chains go from some epsilon to the posterior at this theta."""
        self.theta = theta
        self._known = self._fixed(*self._split(theta, self.points.outer))
        self._drawn: list[list[float]] = [[] for _ in range(CHAINS)]
        self._states = [self._at(e) for e in epsilon]
        for i in steps:
            chance = np.mean([self._move(k) for k in range(CHAINS)])
            step = self._step * np.exp((chance - ACCEPTANCE) * 2.0 / np.sqrt(i + 1.0))
            self._step = float(np.clip(step, SHORTEST, QUARTER))
        # Not the number of steps that fits best: draws 60 degrees apart are correlated by a half.
        self._step = QUARTER / _steps(self._step)

    def draw(self, chains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw epsilon, the next of each of these chains; log densities lack a constant."""
        epsilon = np.empty((len(chains), self.points.n_epsilon))
        logp = np.empty(len(chains))
        for i, k in enumerate(chains):
            self._move(k)
            epsilon[i], rest, _ = self._states[k]
            logp[i] = -rest - epsilon[i] @ epsilon[i] / 2.0
            self._drawn[k].append(rest)
        return epsilon, logp

    def complaint(self) -> str:
        """Say that chains are not of one distribution, or nothing."""
        n = min(map(len, self._drawn))
        if n < 4:
            return ""
        each = np.array([drawn[-n:] for drawn in self._drawn])
        rhat = float(array_stats.rhat(each, chain_axis=0, draw_axis=1))
        good = rhat <= LARGEST_RHAT
        return "" if good else f"R-hat {rhat:.2f} of chains at the estimate of the parameters"

    def _split(self, flat, variables):
        parts = split(flat[None], (self.points.shapes[v] for v in variables))
        return [x[0].astype(v.dtype) for x, v in zip(parts, variables, strict=True)]

    def _at(self, epsilon):
        """Return epsilon with the energy that a standard normal leaves, and its gradient."""
        self.n_gradients += 1
        values = self._split(epsilon, self.points.inner)
        logp, *slopes = self._density(*values, *self._known)
        slope = np.concatenate([np.ravel(g) for g in slopes])
        return epsilon, -float(logp) - epsilon @ epsilon / 2.0, -slope - epsilon

    def _move(self, k: int) -> float:
        """Move a chain by a quarter of a period, and return the chance of that."""
        epsilon, rest, slope = before = self._states[k]
        p, h = self.rng.normal(size=epsilon.size), self._step
        energy = rest + (epsilon @ epsilon + p @ p) / 2.0
        cos, sin = np.cos(h), np.sin(h)
        for _ in range(_steps(h)):
            p = p - h / 2.0 * slope
            epsilon, p = cos * epsilon + sin * p, cos * p - sin * epsilon
            epsilon, rest, slope = self._at(epsilon)
            p -= h / 2.0 * slope
        after = rest + (epsilon @ epsilon + p @ p) / 2.0
        chance = np.exp(min(energy - after, 0.0)) if np.isfinite(after) else 0.0
        accepted = self.rng.random() < chance
        self._states[k] = (epsilon, rest, slope) if accepted else before
        return float(chance)


def _steps(h: float) -> int:
    """How many steps of about this size make a quarter of a period."""
    return max(1, int(np.ceil(QUARTER / h - LONGER)))
