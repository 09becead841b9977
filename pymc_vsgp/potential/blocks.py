"""One block of the data: its terms, and what it adds to the gradient of their sum.

With the gradients of the terms in the moments at hand, what is left is three products of M^2 B
operations: the solve for A, the symmetric product A diag(w) A^T, and the solve that brings the
adjoint of A back to the kernel. The kernel's own gradient is taken by PyTensor within the block, so
any kernel works.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.potential.linalg import weighted_gram
from pymc_vsgp.potential.moments import (
    ConditionalMoments,
    Kernel,
    Moments,
    frontier,
    moments_of,
)
from pymc_vsgp.potential.streaming import BlockSum, Factor, Root, Rule

__all__ = ["stack_latents", "stream", "stream_gaussian"]


def stack_latents(moments: Sequence[Moments]) -> Moments:
    """Return the moments of all functions together, as a likelihood takes them.

    Vectors for one function; for several, matrices with a column for each.
    """
    (mu, gamma), *more = moments
    if not more and mu.type.ndim == 1:
        return Moments(mu, gamma)
    columns = [[x if x.type.ndim == 2 else x[:, None] for x in pair] for pair in moments]
    return Moments(
        pt.concatenate([m for m, _ in columns], axis=1),
        pt.concatenate([pt.broadcast_to(g, m.shape) for m, g in columns], axis=1),
    )


class Group(NamedTuple):
    """Positions of the inputs of one process among the inputs of a block."""

    kernel: Kernel
    X: int
    Xu: int
    R: int
    v: int
    theta: range


class Recipe(NamedTuple):
    """What a loop over the data was built from: enough to build another one like it."""

    likelihood: Likelihood
    groups: tuple[Group, ...]
    params: dict[str, int]
    n_rows: int


def stream(
    likelihood: Likelihood,
    moments: Sequence[Moments],
    y: TensorVariable,
    block_size: int | None = None,
) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the sum of the expected log densities and its terms, from one pass over blocks.

    None where the moments, or the likelihood's parameters, are not of a kind that goes with the
    rows of the data one by one.
    """
    nodes = [m.mu.owner for m in moments]
    for node, m in zip(nodes, moments, strict=True):
        if node is None or not isinstance(node.op, ConditionalMoments) or m.gamma.owner is not node:
            return None
    # Inputs: weights, y, X of each process and parameters of each row; then what all rows share.
    rows: list[Variable] = [pt.ones((y.shape[0],), dtype="float64"), y]
    for node in nodes:
        if node.inputs[0] not in rows:
            rows.append(node.inputs[0])
    params = {}
    for name, param in likelihood.params.items():
        if likelihood.goes_with_rows(name):
            params[name] = len(rows)
            rows.append(param)
    arguments = list(rows)
    groups = []
    for node in nodes:
        X, Xu, R, v, *theta = node.inputs
        at = len(arguments)
        arguments += [Xu, R, v, *theta]
        stop = len(arguments)
        groups.append(Group(node.op.kernel, rows.index(X), at, at + 1, at + 2, range(at + 3, stop)))
    for name, param in likelihood.params.items():
        if name not in params:
            params[name] = len(arguments)
            arguments.append(param)
    node = _node(Recipe(likelihood, tuple(groups), params, len(rows)), arguments, block_size)
    return None if node is None else (node.outputs[0], node.outputs[node.op.n_sums])


def stream_gaussian(
    node: Apply,
    means: Sequence[Variable],
    roots: Sequence[Variable],
    rows: Variable | None = None,
) -> Apply:
    r"""Return a loop like that of `node` for whitened inducing values with a Gaussian density.

    Its terms are expectations under :math:`v \sim N(m, C C^\top)`: of what the terms of `node` are,
    given v. `means` and `roots` are m and C for each process of the node; with `rows`, only those
    rows of the data count, for all of them.

    The outputs that the last rules refer to are, for each process, the matrix
    :math:`A\, \mathrm{diag}(2 \partial / \partial \gamma) A^\top` of the natural gradient.
    """
    recipe = node.op.recipe
    arguments = list(node.inputs)
    for group, mean in zip(recipe.groups, means, strict=True):
        arguments[group.v] = mean
    if rows is not None:
        scale = arguments[0].shape[0] / rows.shape[0].astype("float64")
        arguments[: recipe.n_rows] = [a[rows] for a in arguments[: recipe.n_rows]]
        arguments[0] = arguments[0] * scale
    new = _node(recipe, [*arguments, *roots], node.op.block_size, n_roots=len(roots))
    assert new is not None
    return new


def _node(recipe, arguments, block_size, n_roots=0) -> Apply | None:
    """Apply the loop of a recipe to its arguments; the last of them are roots."""
    inputs = [_row_type(a) if i < recipe.n_rows else a.type() for i, a in enumerate(arguments)]
    block = _block(recipe, inputs, range(len(inputs) - n_roots, len(inputs)))
    if block is None:
        return None
    outputs, n_sums, shapes, rules = block
    # PyMC simplifies a log density before it takes gradients, and the graph within an Op with it.
    # Done here already, the loop of a log density and that of its gradient are one and the same.
    inner = FunctionGraph(inputs, outputs, clone=False)
    rewrite_graph(inner, include=("canonicalize", "stabilize"))
    op = BlockSum(
        inner.inputs,
        inner.outputs,
        n_rows=recipe.n_rows,
        n_sums=n_sums,
        shapes=shapes,
        rules=rules,
        block_size=block_size,
    )
    op.recipe = recipe
    return op.make_node(*arguments)


def _row_type(variable: Variable) -> Variable:
    """Return a stand-in for a few of the rows of `variable`."""
    kind = variable.type
    return pt.tensor(dtype=kind.dtype, shape=(None, *kind.shape[1:]))


def _holds_rows(terms, known) -> bool:
    """Whether a constant of the likelihood may have one entry for each row of the data."""
    return any(
        isinstance(i, Constant) and i.type.ndim and i.type.shape[-1] != 1
        for node in io_toposort(known, [terms])
        for i in node.inputs
    )


def _block(recipe: Recipe, inputs, roots_at):
    """Build ``[value, gradient..., terms, row gradients...]`` and the rules that they follow."""
    groups, n_rows = recipe.groups, recipe.n_rows
    lik = recipe.likelihood.replace(**{name: inputs[i] for name, i in recipe.params.items()})
    weights, y = inputs[:2]
    pieces, moments = [], []
    for g in groups:
        theta = (inputs[i] for i in g.theta)
        p, m = moments_of(g.kernel, inputs[g.X], inputs[g.Xu], inputs[g.R], inputs[g.v], *theta)
        pieces.append(p)
        moments.append(m)
    # Variance of f from that of v, one for each function.
    extra = []
    for j, i in enumerate(roots_at):
        A, C = pieces[j].A, inputs[i]
        if C.type.ndim == 2:
            extra.append(pt.sum(pt.dot(C.T, A) ** 2, axis=0))
        else:
            K = C.type.shape[0]
            each = [pt.sum(pt.dot(C[k].T, A) ** 2, axis=0) for k in range(K)]
            extra.append(pt.stack(each, axis=1))
    mu, gamma = stack_latents(moments)
    if extra:
        spread = stack_latents([Moments(m.mu, e) for m, e in zip(moments, extra, strict=True)])[1]
        terms = lik.expected_over_means(mu, gamma, spread, y)
    else:
        terms = lik.expected_logp(mu, gamma, y)
    if (
        terms.type.ndim != 1
        or frontier([terms], inputs)
        or _holds_rows(terms, [*extra, *(x for pair in moments for x in pair)])
    ):
        return None
    value = pt.sum(weights * terms)

    smooth = [i.dtype.startswith("float") for i in inputs]
    param_at = [i for i in recipe.params.values() if smooth[i]]
    wrt = [inputs[i] for i in param_at]
    for p, m in zip(pieces, moments, strict=True):
        wrt += [m.mu, p.explained, p.prior]
    gradients = iter(grad(value, [*wrt, *extra], disconnected_inputs="ignore"))
    sums: dict[int, TensorVariable] = {}
    row_outputs: dict[int, TensorVariable] = {}
    for i in param_at:
        (row_outputs if i < n_rows else sums)[i] = next(gradients)
    of_moments = [[next(gradients) for _ in range(3)] for _ in groups]
    of_extra = list(gradients)

    outer, grams = [], []
    for j, (g, p) in enumerate(zip(groups, pieces, strict=True)):
        g_mu, g_explained, g_prior = of_moments[j]
        v, A, R = inputs[g.v], p.A, inputs[g.R]
        sums[g.v] = pt.dot(A, g_mu)
        A_bar = A * (2.0 * g_explained)
        A_bar_At = weighted_gram(A, 2.0 * g_explained)
        if v.type.ndim == 1:
            A_bar += pt.outer(v, g_mu)
            g_mean = g_mu
        else:
            A_bar += pt.dot(v, g_mu.T)
            g_mean = pt.sum(g_mu, axis=1)
        if of_extra:
            C, w = inputs[roots_at[j]], 2.0 * of_extra[j]
            if C.type.ndim == 2:
                gram = weighted_gram(A, w)
                A_bar += pt.dot(C, pt.dot(C.T, A * w))
                A_bar_At += pt.dot(C, pt.dot(C.T, gram))
            else:
                each = []
                for k in range(C.type.shape[0]):
                    each.append(weighted_gram(A, w[:, k]))
                    A_bar += pt.dot(C[k], pt.dot(C[k].T, A * w[:, k]))
                    A_bar_At += pt.dot(C[k], pt.dot(C[k].T, each[-1]))
                gram = pt.stack(each)
            grams.append(gram)
        outer.append(A_bar_At)
        K_bar = solve_triangular(R, A_bar, trans=1, lower=True, b_ndim=2)
        # The kernel's part: the adjoints are numbers by now.
        surrogate = (
            pt.sum(disconnected_grad(K_bar) * p.Kuf)
            + pt.sum(disconnected_grad(g_prior) * p.prior)
            + pt.sum(disconnected_grad(g_mean) * (p.mean if v.type.ndim == 1 else p.mean[:, 0]))
        )
        at = [i for i in (g.X, g.Xu, *g.theta) if smooth[i]]
        of_kernel = grad(surrogate, [inputs[i] for i in at], disconnected_inputs="ignore")
        for i, d in zip(at, of_kernel, strict=True):
            into = row_outputs if i < n_rows else sums
            into[i] = into[i] + d if i in into else d

    outputs, shapes = [value], [0]
    rules: list[Rule] = [None] * len(inputs)
    at_output: dict[int, int] = {}
    for i, s in sums.items():
        rules[i] = at_output[i] = len(outputs)
        outputs.append(s)
        shapes.append(i)
    for g, o in zip(groups, outer, strict=True):
        rules[g.R] = Factor(g.v, at_output[g.v], len(outputs))
        outputs.append(o)
        shapes.append(g.R)
    for i, g, gram in zip(roots_at, groups, grams, strict=False):
        rules[i] = Root(len(outputs))
        outputs.append(gram)
        # A root may have fewer columns than rows.
        shapes.append(g.R if gram.type.ndim == 2 else i)
    n_sums = len(outputs)
    outputs.append(terms)
    shapes.append(0)
    rules[0] = n_sums
    for i, r in row_outputs.items():
        rules[i] = len(outputs)
        outputs.append(r)
        shapes.append(i)
    return outputs, n_sums, shapes, rules
