"""The bound at the best q of each theta, where that is known.

With normal noise it is so for Fourier coefficients, where the data are a few sums, and for values
given neighbors. The bound is then a function of theta alone.
"""

from typing import Any

import numpy as np
import scipy.linalg

from pymc.model.core import Model
from pytensor.gradient import grad
from pytensor.graph.replace import graph_replace

from pymc_vsgp.compile import function, simplify
from pymc_vsgp.fit.bound import Bound, Evaluation, Variables
from pymc_vsgp.fit.collapsed import Loop, integrate
from pymc_vsgp.fit.responses import Responses
from pymc_vsgp.inducing.coordinates import Sites, root_of
from pymc_vsgp.ops.neighbors import SparseSolve

DRAWS = 32, 512  # of values given neighbors, that variances are found from, at least and at most
DRAWN = 1_000_000  # values in all of these


class ExactBound:
    """As `Bound`, of theta alone: for Fourier coefficients, which take no pass over the data."""

    def __init__(self, bound: Bound, model: Model, loop: Loop):
        self.bound = bound
        u, rest, node = loop
        value = model.rvs_to_values[u]
        whole = integrate(node, value, bound.processes[0].n_inducing, model.value_vars)
        self.refresh = whole.refresh
        mean, scale = model.replace_rvs_by_values(u.owner.inputs[1:3])
        (logp,) = graph_replace([rest], {node.outputs[0]: whole.logp}, strict=False)
        theta = [v for v in model.value_vars if v is not value]
        outputs = [
            logp,
            *grad(logp, theta),
            whole.half,
            whole.L,
            whole.linear,
            whole.precision,
            mean,
            scale,
        ]
        self.names = [v.name for v in theta]
        self._fn = function(theta, outputs)

    def __call__(self, theta: np.ndarray) -> Evaluation:
        """Evaluate at theta."""
        point = self.bound.unravel(theta)
        value, *rest = self._fn(*(point[name] for name in self.names))
        gradient = dict(zip(self.names, rest, strict=False))
        half, L, linear, precision, mean, scale = rest[len(self.names) :]
        m = scipy.linalg.solve_triangular(L, half, lower=True, trans=1)
        linear = linear + precision @ mean
        (p,) = self.bound.processes
        if p.diagonal:
            # Of all normal densities with independent coefficients the closest to q.
            precision = np.diag(precision)
            L = np.sqrt(np.diag(L @ L.T))
            linear = L**2 * m / scale + precision * mean
        return Evaluation(
            float(value),
            self.bound.ravel(gradient),
            [linear[None]],
            [precision[None]],
            [m[None]],
            [L[None]],
            [scale],
            [mean],
        )

    @staticmethod
    def sites(ev: Evaluation) -> list[Sites]:
        """Return the sites that say what the data do."""
        (linear,), (precision,) = ev.linear[0], ev.precision[0]
        if precision.ndim == 1:
            return [Sites(linear[None], np.sqrt(precision)[None])]
        return [Sites(linear[None], root_of(precision)[None])]


class ResponseBound(Variables):
    """As `ExactBound`, for values given neighbors, whose density is that of the data itself."""

    sites = staticmethod(ExactBound.sites)

    def __init__(self, model: Model, loop: Loop, mode: Any = None):
        super().__init__(model)
        self.moving: list = []
        u, rest, node = loop
        whole = Responses(node)
        self.refresh = whole.refresh
        self.pattern = [x.get_value() for x in u.owner.inputs[5:7]]
        logp = graph_replace([rest], {node.outputs[0]: whole.logp()}, strict=False)
        logp, linear, root, mean, columns = simplify(
            [*logp, *whole.sites(), whole.mean(), whole.coordinates()]
        )
        slopes = grad(logp, self.values, disconnected_inputs="ignore")
        self._fn = function(self.values, [logp, linear, root**2, *slopes], mode)
        self._moments = function(self.values, [mean, columns])

    def __call__(self, theta: np.ndarray) -> Evaluation:
        """Evaluate at theta."""
        value, linear, precision, *rest = self._fn(*self.unravel(theta).values())
        gradient = self.ravel(dict(zip(self.names, rest, strict=True)))
        return Evaluation(float(value), gradient, [linear[None]], [precision[None]], [], [], [], [])

    def with_q(self, theta: np.ndarray) -> Evaluation:
        """Evaluate at theta, with means and variances of the values."""
        mean, columns = self._moments(*self.unravel(theta).values())
        w, spread = moments_of(columns, self.pattern, standard_normals(len(mean)))
        q = [w[None]], [1.0 / spread[None]], [np.ones_like(w)], [mean]
        return Evaluation(*self(theta)[:4], *q)


def standard_normals(n: int) -> np.ndarray:
    """Return draws of n standard normal variables, always the same."""
    n_draws = int(np.clip(DRAWN // n, *DRAWS))
    return np.random.default_rng(0).normal(size=(n_draws, n))


def moments_of(columns, pattern, draws) -> tuple[np.ndarray, np.ndarray]:
    """Return means and deviations of values in the coordinates `SparseTied`.

    What neighbors leave of the variance of each value is known, the rest is that of draws.
    """

    def solve(a):
        out: list[list] = [[None]]
        SparseSolve().perform(None, [a, weights, *pattern], out)
        return out[0][0]

    weights, center, sd = columns[:, :-2], columns[:, -2], columns[:, -1]
    squares = sum((solve(sd * e) - sd * e) ** 2 for e in draws)
    return solve(center), np.sqrt(sd**2 + squares / len(draws))
