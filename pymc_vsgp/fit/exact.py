"""The bound at the best q of each theta, where that is known.

With normal noise alone it is so, and the bound is a function of theta. Steps of theta that hold q
are short where data say much: 20,000 rows and 200 points take 63 rounds of them, and 2 of these.
"""

from typing import Any

import numpy as np
import scipy.linalg

from pymc.model.core import Model
from pytensor.gradient import grad
from pytensor.graph.replace import graph_replace

from pymc_vsgp.checks import known_value
from pymc_vsgp.compile import ONCE, evaluate, function, simplify
from pymc_vsgp.fit.bound import Evaluation, Variables
from pymc_vsgp.fit.collapsed import Loop, integrate
from pymc_vsgp.fit.compiled import of_stage
from pymc_vsgp.fit.correlated import Prior, q_of, rotated
from pymc_vsgp.fit.responses import Responses
from pymc_vsgp.inducing.coordinates import Sites, root_of, sites_of
from pymc_vsgp.ops.neighbors import SparseSolve

DRAWS = 32, 512  # of values given neighbors, that variances are found from, at least and at most
DRAWN = 1_000_000  # values in all of these


class ExactBound(Variables):
    """As `Bound`, of theta alone; for Fourier coefficients, it takes no pass over the data."""

    def __init__(self, model: Model, loop: Loop, mode: Any = ONCE):
        super().__init__(model)
        u, rest, node = loop
        value = model.rvs_to_values[u]
        n = int(evaluate(node.inputs[0].shape[0]))
        self.n_rows = n
        self.check_enough_data(0, n)
        whole = integrate(node, value, self.processes[0].n_inducing, model.value_vars)
        self.refresh = whole.refresh
        mean, scale = model.replace_rvs_by_values(u.owner.inputs[1:3])
        (logp,) = graph_replace([rest], {node.outputs[0]: whole.logp}, strict=False)
        outputs = [
            logp,
            *grad(logp, self.values, disconnected_inputs="ignore"),
            whole.half,
            whole.L,
            whole.linear,
            whole.precision,
            mean,
            scale,
        ]
        (part,) = node.op.recipe.parts
        M = self.processes[0].n_inducing
        n = M if part.conditional.basis is not None else n
        self.work = n * M**2
        if part.conditional.basis is not None:
            # Sums of the data are known before, and what is left is too little to compile.
            self._fn: Any = function(self.values, outputs)
        else:
            self._fn = of_stage(model, self.values, outputs, mode)

    def __call__(self, theta: np.ndarray) -> Evaluation:
        """Evaluate at theta."""
        value, *rest = self._fn(*self.unravel(theta).values())
        gradient = self.ravel(dict(zip(self.names, rest, strict=False)))
        half, L, linear, precision, mean, scale = rest[len(self.names) :]
        # Where the density is not finite, its value says so.
        m = scipy.linalg.solve_triangular(L, half, lower=True, trans=1, check_finite=False)
        if self.processes[0].independent:
            linear = linear + precision @ mean
        return Evaluation(
            float(value),
            gradient,
            [linear[None]],
            [precision[None]],
            [m[None]],
            [L[None]],
            [scale],
            [mean],
        )

    def prior_roots(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return a root of the prior covariance of the process."""
        return self(theta).R

    def with_q(self, theta: np.ndarray) -> Evaluation:
        """Evaluate at theta, with the density of many coefficients as other stages have it."""
        ev = self(theta)
        if not self.processes[0].diagonal:
            return ev
        q = q_of(ev.linear[0][0], ev.precision[0][0], Prior(ev.prior_mean[0], ev.R[0]))
        return ev._replace(whole=[[q]])

    def no_offsets(self) -> list[np.ndarray]:
        """Return nothing, as the best q needs none."""
        return []

    @staticmethod
    def sites(ev: Evaluation) -> list[Sites]:
        """Return the sites that say what the data do."""
        (linear,), (precision,) = ev.linear[0], ev.precision[0]
        if ev.whole:
            linear, root = rotated(linear, precision, ev.whole[0][0], ev.prior_mean[0], ev.R[0])
            return [Sites(linear[None], root[None])]
        if precision.ndim == 1:
            return [Sites(linear[None], np.sqrt(precision)[None])]
        if ev.R and ev.R[0].ndim == 2:
            found = sites_of(ev.R[0], ev.prior_mean[0], linear, precision)
        else:
            found = Sites(linear, root_of(precision))
        return [Sites(found.linear[None], found.root[None])]


class ResponseBound(Variables):
    """As `ExactBound`, for values given neighbors, whose density is that of the data itself."""

    sites = staticmethod(ExactBound.sites)

    def __init__(self, model: Model, loop: Loop, mode: Any = None):
        super().__init__(model)
        u, rest, node = loop
        whole = Responses(node)
        self.refresh = whole.refresh
        self.pattern = [np.asarray(known_value(x)) for x in u.owner.inputs[5:7]]
        logp = graph_replace([rest], {node.outputs[0]: whole.logp()}, strict=False)
        logp, linear, root, mean, columns = simplify(
            [*logp, *whole.sites()[:2], whole.mean(), whole.coordinates()]
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
