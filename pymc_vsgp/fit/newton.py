r"""Coordinates of the inducing values that are fitted to the data at each theta.

Those of the Gaussian stage have the sites of one theta. A natural-gradient step from them, by the
same pass over the data that the stage takes, gives

.. math:: P = I - G, \qquad h = a - G m, \qquad v = P^{-1} h + P^{-1/2} \epsilon

with a and G the gradient, and twice the gradient in the covariance, of the expected log density
under :math:`v \sim N(m, C)` of the stage. Where the posterior of v is normal that is exact. Where
it is not, a second step from there saves more draws than its pass over the data costs.

Several functions take one step together. The stage has them independent, and data may correlate
them: classes tell only differences, an observation of a sum only the sum.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_vsgp.compile import simplify
from pymc_vsgp.engine.blocks import Expected, stream_gaussian
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.approximation import of_coefficients
from pymc_vsgp.fit.bound import split, whitened_coordinates
from pymc_vsgp.fit.sites import given_sites, of_all
from pymc_vsgp.inducing.coordinates import (
    Diagonal,
    Together,
    apply_sites,
    divide,
    has_matrix,
    inverse_transpose,
    times,
)
from pymc_vsgp.model.variable import inducing_variables, is_independent, is_sparse

STEPS = 1.0, 0.7  # the second is shorter: where classes are separable whole ones go back and forth
JOINT = 400  # numbers in inducing values that are correlated across functions


class _Normal(NamedTuple):
    """Normal densities of v, K x M, by the factors L of the precisions and ``half = L^-1 h``."""

    half: Variable
    L: Variable
    R: Variable | None = None
    """Of coefficients, their deviations."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.half.type.shape

    def at(self, epsilon):
        return divide(self.half + epsilon, self.L)

    def in_loop(self) -> tuple[Variable, Variable]:
        """Return mean and root of the covariance of what a loop over the data takes."""
        mean, root = divide(self.half, self.L), inverse_transpose(self.L)
        return (mean, root) if self.R is None else of_coefficients(self.R, mean, root)

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
        return _Normal(pt.switch(good[:, None], half, self.half), L, self.R)


def refined_logp(model: Model) -> list[Variable]:
    """Return the log density in such coordinates, and what they are in those of the stage.

    Both are graphs of the values of the model, those of the inducing values being epsilon.
    """
    us = inducing_variables(model)
    before, to_stage = _of_stage(model, us)
    with whitened_coordinates(model):
        logp = simplify(model.logp())
    values = {u.name: model.rvs_to_values[u] for u in us}
    # Variables of their own: the values stand for v in the log density.
    epsilon = {name: value.type() for name, value in values.items()}
    if joint := _joint(logp, before):
        names, normal = joint
        flat = pt.concatenate([epsilon[name].ravel() for name in names])
        parts = split(normal.at(flat[None])[0], [before[name].shape for name in names])
        v, factors = dict(zip(names, parts, strict=True)), [normal.L]
    else:
        after = before
        for length in STEPS:
            after = _stepped(logp, after, length)
        v = {n: q.at(epsilon[n].reshape(before[n].shape)) for n, q in after.items()}
        factors = [n.L for n in after.values()]
    log_det = sum(pt.log(pt.diagonal(L, axis1=1, axis2=2)).sum() for L in factors)
    stage = to_stage(v)
    placed = {value: v[n] if value.type.ndim == 2 else v[n][0] for n, value in values.items()}
    (logp,) = graph_replace([logp], placed)
    moved = {epsilon[name]: value for name, value in values.items()}
    return list(simplify(graph_replace([logp - log_det, stage], moved, strict=False)))


def _of_stage(model: Model, us) -> tuple[dict[str, _Normal], Callable]:
    """Return densities of v that the sites of the model make at theta, and what makes epsilon of v.

    Of functions that share sites the densities are those of each, given the others.
    """
    if any(is_sparse(u) or not _has_matrix(model, u) for u in us):
        raise NotImplementedError("Steps of many coefficients, or given neighbors, are left out.")
    graphs = [x for u in us for x in (*u.owner.inputs[1:3], *given_sites(model, u))]
    shared = [u for u in us if isinstance(model.rvs_to_transforms[u], Together)]
    where: list[slice] = []
    if shared:
        *normal, where = of_all(model, shared)
        graphs += normal
    graphs = model.replace_rvs_by_values(graphs)
    found = {}
    for i, u in enumerate(us):
        of_u = graphs[4 * i : 4 * i + 4]
        found[u.name] = _Normal(*apply_sites(*of_u), *(of_u[1:2] if is_independent(u) else ()))
    names = [u.name for u in shared]
    for name, at in zip(names, where, strict=True):
        L, center = found[name].L, divide(graphs[-2], graphs[-1])
        half = times(center[at].reshape(L.type.shape[:2]), L)
        found[name] = found[name]._replace(half=half)

    def to_stage(v) -> Variable:
        epsilon = {n: times(v[n], old.L) - old.half for n, old in found.items() if n not in names}
        if names:
            flat = pt.concatenate([v[name].ravel() for name in names])
            flat = times(flat, graphs[-1]) - graphs[-2]
            epsilon |= {name: flat[at] for name, at in zip(names, where, strict=True)}
        return pt.concatenate([epsilon[u.name].ravel() for u in us])

    return found, to_stage


def _has_matrix(model: Model, u) -> bool:
    """Whether coordinates of inducing values have a matrix for all of them."""
    transform = model.rvs_to_transforms[u]
    tied = has_matrix(transform) and not isinstance(transform, Diagonal)
    return tied or not is_independent(u)


def _stepped(logp, before: dict[str, _Normal], length) -> dict[str, _Normal]:
    """Return where a step of each process leads, on its own."""
    found: dict[str, list] = {name: [] for name in before}
    for node in block_sums(logp):
        names, new = _expected(node, before)
        for name, *step in zip(names, new.slopes, new.grams, strict=True):
            found[name].append(step)
    if not all(found.values()):
        raise NotImplementedError("A process has no loop over the data.")
    steps = {n: [sum(x) for x in zip(*steps, strict=True)] for n, steps in found.items()}
    return {name: normal.stepped(length, *steps[name]) for name, normal in before.items()}


def _joint(logp, before: dict[str, _Normal]) -> tuple[list[str], _Normal] | None:
    """Return the processes of a loop, and where a step of all their functions together leads.

    They are one vector there. None where there is one function, or no such step.
    """
    shapes = [normal.shape for normal in before.values()]
    several = sum(K for K, _ in shapes) > 1 and sum(K * M for K, M in shapes) <= JOINT
    loops = block_sums(logp)
    if not several or len(loops) != 1 or not loops[0].op.recipe.likelihood.coupled:
        return None
    try:
        names, new = _expected(loops[0], before, joint=True)
    except NotImplementedError:
        return None
    if len(names) < len(before) or new.joint is None:
        return None
    center = pt.concatenate([divide(before[n].half, before[n].L).ravel() for n in names])
    slope = pt.concatenate([a.ravel() for a in new.slopes])
    eye = pt.eye(center.type.shape[0], dtype="float64")
    return names, _Normal(center[None], eye[None]).stepped(1.0, slope[None], new.joint[None])


def _expected(node, before: dict[str, _Normal], joint=False) -> tuple[list[str], Expected]:
    """Return the processes of a loop, and one like it where they have these densities."""
    names = [p.conditional.process for p in node.op.recipe.parts]
    if not set(names) <= set(before):
        raise NotImplementedError("Inducing values are fixed.")
    means, roots = zip(*(before[n].in_loop() for n in names), strict=True)
    new = stream_gaussian(node, means, roots, joint=joint)
    if all(before[n].R is None for n in names):
        return names, new
    # Of coefficients the loop has derivatives in u.
    scales = [pt.ones(q.shape[1]) if q.R is None else q.R for q in (before[n] for n in names)]
    slopes = [s * a for s, a in zip(scales, new.slopes, strict=True)]
    grams = [pt.outer(s, s) * G for s, G in zip(scales, new.grams, strict=True)]
    if new.joint is not None:
        pairs = zip(scales, names, strict=True)
        flat = pt.concatenate([pt.tile(s, before[n].shape[0]) for s, n in pairs])
        new = new._replace(joint=pt.outer(flat, flat) * new.joint)
    return names, new._replace(slopes=slopes, grams=grams)
