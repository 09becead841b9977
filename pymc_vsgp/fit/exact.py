"""The bound at the best q(v) of each theta, where the data are a few sums.

That is so for Fourier coefficients and normal noise. The bound is then a function of theta alone,
which takes no pass over the data.
"""

import numpy as np
import scipy.linalg

from pymc.model.core import Model
from pytensor.gradient import grad
from pytensor.graph.replace import graph_replace

from pymc_vsgp.compile import function
from pymc_vsgp.fit.bound import Bound, Evaluation
from pymc_vsgp.fit.collapsed import can_collapse, integrate, loops
from pymc_vsgp.inducing.coordinates import Sites, root_of
from pymc_vsgp.model.variable import inducing_variables, is_independent

__all__ = ["ExactBound", "is_exact"]


def is_exact(model: Model) -> bool:
    """Whether the best q(v) has a closed form that takes no pass over the data."""
    if not all(is_independent(u) for u in inducing_variables(model)) or not can_collapse(model):
        return False
    _, _, (node,) = loops(model)
    return node.op.recipe.parts[0].conditional.basis is not None


class ExactBound:
    """As `Bound`, of theta alone."""

    def __init__(self, bound: Bound, model: Model):
        self.bound = bound
        u, rest, (node,) = loops(model)
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
