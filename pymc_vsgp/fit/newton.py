r"""Coordinates of the inducing values that are fitted to the data at each theta.

Those of the Gaussian stage have the sites of one theta. A natural-gradient step from them, by the
same pass over the data that the stage takes, gives

.. math:: P = I - G, \qquad h = a - G m, \qquad v = P^{-1} h + P^{-1/2} \epsilon

with a and G the gradient, and twice the gradient in the covariance, of the expected log density
under :math:`v \sim N(m, C)` of the stage. Where the posterior of v is normal that is exact.
"""

from typing import NamedTuple

import pytensor.tensor as pt

from pymc.model.core import Model
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.streaming import BlockSum, block_sums
from pymc_vsgp.fit.bound import inducing_variables, whitened_coordinates
from pymc_vsgp.inducing.coordinates import apply_sites

__all__ = ["is_loop", "refined_logp"]


class _Normal(NamedTuple):
    """A normal density of v, by the factor L of its precision and ``half = L^-1 h``."""

    half: Variable
    L: Variable

    @property
    def mean(self):
        return solve_triangular(self.L.T, self.half, lower=False, b_ndim=1)

    @property
    def root(self):
        eye = pt.eye(self.L.shape[0], dtype="float64")
        return solve_triangular(self.L.T, eye, lower=False, b_ndim=2)

    def at(self, epsilon):
        return solve_triangular(self.L.T, self.half + epsilon, lower=False, b_ndim=1)

    def stepped(self, a, G) -> "_Normal":
        """Return where a natural-gradient step leads."""
        L = cholesky(pt.eye(self.L.shape[0], dtype="float64") - G, lower=True)
        # Where the likelihood is not log-concave that may be nowhere.
        good = pt.all(pt.isfinite(pt.diagonal(L)))
        L = pt.switch(good, L, self.L)
        half = solve_triangular(L, a - pt.dot(G, self.mean), lower=True, b_ndim=1)
        return _Normal(pt.switch(good, half, self.half), L)


def refined_logp(model: Model) -> list[Variable]:
    """Return the log density in such coordinates, and what they are in those of the stage.

    Both are graphs of the values of the model, those of the inducing values being epsilon.
    """
    us = inducing_variables(model)
    values = [model.rvs_to_values[u] for u in us]
    before = [_of_stage(model, u) for u in us]
    with whitened_coordinates(model):
        logp = rewrite_pregrad(model.logp())
    moved, stage, log_det = {}, [], 0.0
    for value, normals, (a, G) in zip(values, before, _steps(logp, values, before), strict=True):
        after = [old.stepped(a[:, k], G[k]) for k, old in enumerate(normals)]
        # A variable of its own: the value stands for v in the log density.
        epsilon = value.type()
        moved[epsilon] = value
        rows = [epsilon] if value.type.ndim == 1 else [epsilon[k] for k in range(len(after))]
        vs = [new.at(e) for new, e in zip(after, rows, strict=True)]
        (logp,) = graph_replace([logp], {value: vs[0] if len(vs) == 1 else pt.stack(vs)})
        stage += [pt.dot(old.L.T, v) - old.half for old, v in zip(normals, vs, strict=True)]
        log_det += sum(pt.log(pt.diagonal(new.L)).sum() for new in after)
    outputs = graph_replace([logp - log_det, pt.concatenate(stage)], moved, strict=False)
    return list(rewrite_pregrad(outputs))


def _of_stage(model: Model, u) -> list[_Normal]:
    """Density of v that the sites of the model make at theta, for each function."""
    mean, R = model.replace_rvs_by_values(list(u.owner.inputs[1:3]))
    if R.type.ndim == 1:
        raise NotImplementedError("Steps of coefficients are left out.")
    linear, root = u.owner.inputs[3:5]
    K = u.type.shape[0] if u.type.ndim == 2 else 1
    return [_Normal(*apply_sites(mean, R, linear[k], root[k])) for k in range(K)]


def _steps(logp, values, before) -> list[tuple[Variable, Variable]]:
    """Return a and G of each process, from loops like those of a log density."""
    parts: list[list] = [[] for _ in values]
    for node in block_sums(logp):
        loop_parts = node.op.recipe.parts
        inputs = [_without_dims(node.inputs[p.v]) for p in loop_parts]
        if not set(inputs) <= set(values):
            raise NotImplementedError("Inducing values are transformed before a loop.")
        owners = [values.index(v) for v in inputs]
        single = [values[i].type.ndim == 1 for i in owners]
        means, roots = [], []
        for i, alone in zip(owners, single, strict=True):
            m, C = [q.mean for q in before[i]], [q.root for q in before[i]]
            means.append(m[0] if alone else pt.stack(m, axis=1))
            roots.append(C[0] if alone else pt.stack(C))
        new = stream_gaussian(node, means, roots)
        rules = new.op.rules
        last = rules[-len(loop_parts) :]
        for p, i, alone, rule in zip(loop_parts, owners, single, last, strict=True):
            a, G = new.outputs[rules[p.v]], new.outputs[rule.gram]
            parts[i].append((a[:, None], G[None]) if alone else (a, G))
    if not all(parts):
        raise NotImplementedError("A process has no loop over the data.")
    return [tuple(sum(x) for x in zip(*found, strict=True)) for found in parts]


def _without_dims(v):
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    return v


def is_loop(v) -> bool:
    """Whether a variable comes from a loop over the data."""
    return v.owner is not None and isinstance(v.owner.op, BlockSum)
