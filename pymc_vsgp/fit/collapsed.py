r"""Gaussian likelihoods: the inducing values integrated out.

Given theta, the density of u is Gaussian,

.. math:: P = I + A W A^\top, \quad v \sim N(P^{-1} A W (y - m),\; P^{-1}),

with W the precisions of the observations, so theta is sampled alone and u is drawn afterwards, from
its exact conditional. The integral over v equals the bound of the Gaussian stage at this optimum;
there its gradient in the optimum vanishes, so that of theta alone is the gradient of the integral.
One pass over the data gives the optimum, another the value and the gradient; the first is enough
for the value alone. Of Fourier coefficients see `sums`, of values given neighbors `responses`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg import cholesky, solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.compile import simplify
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.pointwise import ObservationRV
from pymc_vsgp.engine.streaming import block_sums, held
from pymc_vsgp.engine.vectorized import Batched
from pymc_vsgp.fit.bound import unconstrained, whitened_coordinates
from pymc_vsgp.fit.density import Values
from pymc_vsgp.fit.responses import Responses, has_responses
from pymc_vsgp.fit.sums import Sums, has_sums
from pymc_vsgp.inducing.coordinates import SparseTied, unwhiten
from pymc_vsgp.likelihoods import Gaussian
from pymc_vsgp.model.copies import copy_of, forget
from pymc_vsgp.model.variable import inducing_variables, is_independent, is_sparse, value_shapes
from pymc_vsgp.ops.cholesky import guarded

# Draws of u at a theta, of which a chain may have many: one after another. Thinned chains look at
# every fourth, so not four.
TOGETHER = 3


class Collapsed(NamedTuple):
    """A model of theta alone, and how to get back to the whole."""

    model: Model
    draws: dict[str, TensorVariable]
    """u given theta, and what the whole model has beside: graphs of the variables of `model`."""
    noise: TensorVariable
    """What u is drawn with, standard normal."""
    refresh: Callable[[], None]
    """To be called where the data have changed."""

    @property
    def inducing(self) -> TensorVariable:
        """The draw of u."""
        return next(iter(self.draws.values()))

    def missing(self, posterior, graphs) -> list[str]:
        """Return the variables that graphs depend on, and that a posterior has no draws of."""
        others = [rv for rv in self.model.free_RVs if rv.name not in posterior]
        needed = set(ancestors(graphs, blockers=others)) if others else set()
        return [rv.name for rv in others if rv in needed]


class Loop(NamedTuple):
    """The loop over the data that the inducing values integrate out of."""

    u: TensorVariable
    logp: TensorVariable
    """The log density of all but u, given u."""
    node: Apply


def integrable(model: Model) -> Loop | None:
    """Return the loop, where the model has one process, seen by normal noise alone."""
    us = inducing_variables(model)
    if len(us) != 1 or us[0].type.ndim != 1:
        return None
    ops = [rv.owner.op for rv in model.observed_RVs]
    families = [op.likelihood for op in ops if isinstance(op, ObservationRV)]
    if not all(isinstance(family, Gaussian) for family in families):
        return None  # before the graph of the density is built
    (u,) = us
    value = model.rvs_to_values[u]
    logp, nodes = loops(model, u)
    if len(nodes) != 1 or not isinstance(nodes[0].op.recipe.likelihood, Gaussian):
        return None
    (node,) = nodes
    if len(node.op.recipe.parts) != 1:
        return None
    (part,) = node.op.recipe.parts
    if is_sparse(u):
        if not has_responses(node, model):
            return None
    elif part.conditional.basis is not None:
        if not has_sums(node, model.value_vars):
            return None
    elif not is_independent(u) and node.inputs[part.v] is not value:
        return None
    # Nothing else of the model may depend on u, and the loop has to count once.
    term = pt.dscalar()
    (rest,) = graph_replace([logp], {node.outputs[0]: term}, strict=False)
    (slope,) = rewrite_graph([grad(rest, term)], include=("canonicalize",))
    once = isinstance(slope, Constant) and slope.data == 1.0
    return Loop(u, logp, node) if once and value not in ancestors([rest]) else None


def loops(model: Model, u: TensorVariable) -> tuple[TensorVariable, list[Apply]]:
    """Return the log density of all but u, and the loops over the data in it."""
    others = [rv for rv in model.free_RVs if rv is not u]
    with whitened_coordinates(model):
        terms = [*others, *model.observed_RVs, *model.potentials]
        logp = simplify(model.logp(vars=terms))
    return logp, block_sums(logp)


def can_collapse(model: Model) -> bool:
    """Whether the inducing values integrate out."""
    return integrable(model) is not None


def collapse(model: Model, gradient: bool = True) -> Collapsed:
    """Return the model without its inducing values.

    Its density of theta is that of `model`, integrated over them. Without a gradient it takes half
    as long.
    """
    new = copy_of(model)
    (u,) = inducing_variables(new)
    _, (node,) = loops(new, u)
    # The graph of the log density is one of unconstrained values; a potential wants variables.
    others = [rv for rv in new.free_RVs if rv is not u]
    values = (new.rvs_to_values[rv] for rv in others)
    backward = dict(zip(values, unconstrained(new, others), strict=True))

    value = new.rvs_to_values[u]
    (n,) = value_shapes(new)[value.name]
    noise = pt.tensor("noise", dtype="float64", shape=(n,))
    whole: Any
    if is_sparse(u):
        whole = Responses(node)
        logp, columns = graph_replace([whole.logp(), whole.coordinates()], backward, strict=False)
        draw = SparseTied().backward(noise, *u.owner.inputs[:-1], columns)
    else:
        whole = integrate(node, value, n, new.value_vars, gradient)
        v = solve_triangular(whole.L.T, whole.half + noise, lower=False, b_ndim=1)
        logp, v = graph_replace([whole.logp, v], backward, strict=False)
        draw = unwhiten(v, *u.owner.inputs[1:3])

    for term in (u, *new.observed_RVs, *new.potentials):
        if u in ancestors([term]):
            forget(new, term)
    # A clone has its variables in any order, and the same seed should give the same draws.
    order = [rv.name for rv in model.free_RVs]
    list.sort(new.free_RVs, key=lambda rv: order.index(rv.name))
    draws = {u.name: draw}
    for deterministic in list(new.deterministics):
        if u in ancestors([deterministic]):
            forget(new, deterministic)
            (draws[deterministic.name],) = graph_replace([deterministic], {u: draw}, strict=False)
    with new:
        pm.Potential("collapsed_data", logp)
    return Collapsed(new, draws, noise, whole.refresh)


class Integrated(NamedTuple):
    """The log density of the data given theta, and that of the inducing values given both."""

    logp: TensorVariable
    half: TensorVariable
    """``L^-1`` times the linear term, with ``L L^T`` the precision of v."""
    L: TensorVariable
    linear: TensorVariable
    """What the data say of that which moments are linear in: the linear term, ..."""
    precision: TensorVariable
    refresh: Callable[[], None]


def integrate(
    node: Apply, value, n: int, values: list[TensorVariable], gradient: bool = True
) -> Integrated:
    """Integrate the n inducing values, whitened `value`, out of a loop with normal noise.

    `values` are what the log density is a function of.
    """
    (part,) = node.op.recipe.parts
    expected: Any = partial(stream_gaussian, node)
    refresh = _nothing
    if part.conditional.basis is not None:
        sums = Sums(node, values)
        expected, refresh = sums.expected, sums.refresh
    start = expected([pt.zeros((1, n))], [pt.zeros((1, n, 1))])
    slope, gram = linear, precision = start.slopes[0][0], -start.grams[0][0]
    scale = np.ones(n)
    if node.inputs[part.v] is not value:  # independent coefficients, by their deviations
        (scale,) = graph_replace([node.inputs[part.v]], {value: pt.ones(n)})
        slope, gram = scale * slope, scale[:, None] * gram * scale
    eye = pt.eye(n, dtype="float64")
    L = cholesky(eye + gram, lower=True)
    half = solve_triangular(L, slope, lower=True, b_ndim=1)
    if not gradient:
        logp = start.value + pt.sum(half**2) / 2.0 - pt.log(pt.diagonal(L)).sum()
        logp = guarded(logp, node.inputs[part.at[1]])
        return Integrated(logp, half, L, linear, precision, refresh)
    m = solve_triangular(L.T, half, lower=False, b_ndim=1)
    C = solve_triangular(L.T, eye, lower=False, b_ndim=2)
    m_, C_, L_ = (held(x) for x in (m, C, L))
    best = expected([(scale * m_)[None]], [(scale[:, None] * C_)[None]])
    divergence = (pt.sum(C_**2) + pt.sum(m_**2) - n) / 2.0 + pt.log(pt.diagonal(L_)).sum()
    logp = guarded(best.value - divergence, node.inputs[part.at[1]])
    return Integrated(logp, half, L, linear, precision, refresh)


def _nothing() -> None:
    """Do what is to be done for a loop where the data have changed."""


def recover(collapsed: Collapsed, posterior, random_seed: int) -> dict[str, np.ndarray]:
    """Draw the inducing values for each draw of theta, from their exact conditional.

    Chains that stay at a theta take one pass over the data for some draws there. Returns arrays
    with the dimensions chain and draw in front.
    """
    n = posterior.sizes["chain"] * posterior.sizes["draw"]
    noise = np.random.default_rng(random_seed).normal(size=(n, *collapsed.noise.type.shape))
    return _at_draws(collapsed, posterior, collapsed.noise, noise, collapsed.draws)


def with_inducing(collapsed: Collapsed, posterior, u: np.ndarray) -> dict[str, np.ndarray]:
    """Return inducing values that are drawn already for each theta, and what depends on them."""
    (name, draw), *others = collapsed.draws.items()
    flat = u.reshape(-1, u.shape[-1])
    return {name: u, **_at_draws(collapsed, posterior, draw, flat, dict(others))}


def _at_draws(collapsed, posterior, variable, of_variable, graphs) -> dict[str, np.ndarray]:
    """Evaluate graphs at each draw of theta, with a value of one more variable."""
    if not graphs:
        return {}
    if missing := collapsed.missing(posterior, list(graphs.values())):
        raise ValueError(
            f"The inducing values depend on {missing}, and the posterior has no draws of them. "
            "Sample them, too."
        )
    variables = [rv for rv in collapsed.model.free_RVs if rv.name in posterior]
    known = [*variables, variable]
    inputs = [v.type() for v in known]
    swaps = dict(zip(known, inputs, strict=True))
    outputs = graph_replace(list(graphs.values()), swaps, strict=False)
    lead = posterior.sizes["chain"], posterior.sizes["draw"]
    n = lead[0] * lead[1]
    values = [
        posterior[rv.name].values.reshape(n, *posterior[rv.name].shape[2:]) for rv in variables
    ]
    theta = np.concatenate([np.empty((n, 0)), *(v.reshape(n, -1) for v in values)], axis=1)
    shapes = {x: v.shape[1:] for x, v in zip(inputs, [*values, of_variable], strict=True)}
    try:
        fn = Values(collapsed.model, inputs[:-1], inputs[-1:], shapes).function(
            outputs, compiling=True
        )
        found = _at_each(fn, theta, of_variable)
    except (TypeError, ValueError, NotImplementedError, IndexError):
        # Ops of others may take one point at a time.
        found = Batched(inputs, [], outputs)([*values, of_variable], [])
    return {name: x.reshape(*lead, *x.shape[1:]) for name, x in zip(graphs, found, strict=True)}


def _at_each(fn, theta, noise) -> list[np.ndarray]:
    """Evaluate at each theta with its noise; up to `TOGETHER` of the same theta at once."""
    order = np.lexsort(theta.T) if theta.size else np.arange(len(theta))
    same = (theta[order[1:]] == theta[order[:-1]]).all(axis=1)
    begins = np.flatnonzero(~np.concatenate([[False], same]))
    number = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    column = number % min(TOGETHER, int(number.max()) + 1)
    row = np.cumsum(column == 0) - 1
    some = np.zeros((row[-1] + 1, column.max() + 1, noise.shape[1]))
    some[row, column] = noise[order]
    out = []
    for x in fn(theta[order[column == 0]], some):
        each = np.empty((len(theta), *x.shape[2:]))
        each[order] = x[row, column]
        out.append(each)
    return out
