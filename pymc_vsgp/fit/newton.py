r"""Coordinates of the inducing values that are fitted to the data at each theta.

Those of the Gaussian stage have the sites of one theta. A natural-gradient step from them, by the
same pass over the data that the stage takes, gives

.. math:: P = I - G, \qquad h = a - G m, \qquad v = P^{-1} h + P^{-1/2} \epsilon

with a and G the gradient, and twice the gradient in the covariance, of the expected log density
under :math:`v \sim N(m, C)` of the stage. Where the posterior of v is normal that is exact. Where
it is not, a second step from there saves more draws than its pass over the data costs.
"""

from typing import NamedTuple

import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_vsgp.compile import simplify
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.bound import whitened_coordinates
from pymc_vsgp.inducing.coordinates import apply_sites, divide, inverse_transpose, times
from pymc_vsgp.model.variable import inducing_variables, is_sparse

STEPS = 1.0, 0.7  # the second is shorter: where classes are separable whole ones go back and forth


class _Normal(NamedTuple):
    """Normal densities of v, K x M, by the factors L of the precisions and ``half = L^-1 h``."""

    half: Variable
    L: Variable

    def at(self, epsilon):
        return divide(self.half + epsilon, self.L)

    def stepped(self, length, a, G) -> "_Normal":
        """Return where a natural-gradient step of this length leads."""
        old = pt.matmul(self.L, self.L.mT)
        P = old + length * (pt.eye(self.L.shape[-1], dtype="float64") - G - old)
        L = cholesky(P, lower=True)
        # Where the likelihood is not log-concave that may be nowhere.
        good = pt.all(pt.isfinite(pt.diagonal(L, axis1=1, axis2=2)), axis=1)
        L = pt.switch(good[:, None, None], L, self.L)
        h = a - pt.matmul(G, divide(self.half, self.L)[..., None])[..., 0]
        before = pt.matmul(self.L, self.half[..., None])[..., 0]
        half = solve_triangular(L, before + length * (h - before), lower=True, b_ndim=1)
        return _Normal(pt.switch(good[:, None], half, self.half), L)


def refined_logp(model: Model) -> list[Variable]:
    """Return the log density in such coordinates, and what they are in those of the stage.

    Both are graphs of the values of the model, those of the inducing values being epsilon.
    """
    us = inducing_variables(model)
    before = {u.name: _of_stage(model, u) for u in us}
    with whitened_coordinates(model):
        logp = simplify(model.logp())
    after = before
    for length in STEPS:
        steps = _steps(logp, after)
        after = {name: normal.stepped(length, *steps[name]) for name, normal in after.items()}
    moved, stage, log_det = {}, [], 0.0
    for u in us:
        value, old, new = model.rvs_to_values[u], before[u.name], after[u.name]
        # A variable of its own: the value stands for v in the log density.
        epsilon = value.type()
        moved[epsilon] = value
        one = value.type.ndim == 1
        v = new.at(epsilon[None] if one else epsilon)
        (logp,) = graph_replace([logp], {value: v[0] if one else v})
        stage.append((times(v, old.L) - old.half).ravel())
        log_det += pt.log(pt.diagonal(new.L, axis1=1, axis2=2)).sum()
    outputs = graph_replace([logp - log_det, pt.concatenate(stage)], moved, strict=False)
    return list(simplify(outputs))


def _of_stage(model: Model, u) -> _Normal:
    """Densities of v that the sites of the model make at theta."""
    mean, R, *sites = model.replace_rvs_by_values(list(u.owner.inputs[1:5]))
    if R.type.ndim == 1 or is_sparse(u):
        raise NotImplementedError("Steps of coefficients, and given neighbors, are left out.")
    return _Normal(*apply_sites(mean, R, *sites))


def _steps(logp, before: dict[str, _Normal]) -> dict[str, list]:
    """Return a and G of each process, from loops like those of a log density."""
    found: dict[str, list] = {name: [] for name in before}
    for node in block_sums(logp):
        names = [p.conditional.process for p in node.op.recipe.parts]
        if not set(names) <= set(before):
            raise NotImplementedError("Inducing values are fixed.")
        new = stream_gaussian(
            node,
            [divide(before[n].half, before[n].L) for n in names],
            [inverse_transpose(before[n].L) for n in names],
        )
        for name, *step in zip(names, new.slopes, new.grams, strict=True):
            found[name].append(step)
    if not all(found.values()):
        raise NotImplementedError("A process has no loop over the data.")
    return {n: [sum(x) for x in zip(*steps, strict=True)] for n, steps in found.items()}
