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
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.potential.linalg import weighted_gram
from pymc_vsgp.potential.moments import ConditionalMoments, Moments, frontier, moments_of
from pymc_vsgp.potential.streaming import BlockSum, Factor

__all__ = ["stream", "stack_latents"]


def stack_latents(moments: Sequence[Moments]) -> Moments:
    """Return the moments of all functions together, as a likelihood takes them.

    Vectors for one function; for several, matrices with a column for each.
    """
    (mu, gamma), *more = moments
    if not more and mu.type.ndim == 1:
        return Moments(mu, gamma)
    columns = [(m if m.type.ndim == 2 else m[:, None], g[:, None]) for m, g in moments]
    return Moments(
        pt.concatenate([m for m, _ in columns], axis=1),
        pt.concatenate([pt.broadcast_to(g, m.shape) for m, g in columns], axis=1),
    )


class _Group(NamedTuple):
    """Positions of the inputs of one process among the inputs of a block."""

    op: ConditionalMoments
    X: int
    Xu: int
    R: int
    v: int
    theta: range


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
    params = list(likelihood.params.values())
    by_row = [likelihood.goes_with_rows(name) for name in likelihood.params]

    # Inputs: weights, y, X of each process and parameters of each row; then what all rows share.
    rows: list[Variable] = [pt.ones((y.shape[0],), dtype="float64"), y]
    shared: list[Variable] = []
    row_params = [p for p, r in zip(params, by_row, strict=True) if r]
    shared_params = [p for p, r in zip(params, by_row, strict=True) if not r]
    places = []
    for node in nodes:
        X, Xu, R, v, *theta = node.inputs
        if X not in rows:
            rows.append(X)
        places.append((X, Xu, R, v, theta))
    rows += row_params
    groups = []
    for node, (X, Xu, R, v, theta) in zip(nodes, places, strict=True):
        at = len(rows) + len(shared)
        shared += [Xu, R, v, *theta]
        groups.append(
            _Group(node.op, rows.index(X), at, at + 1, at + 2, range(at + 3, at + 3 + len(theta)))
        )
    shared += shared_params

    arguments = [*rows, *shared]
    inputs = [_row_type(a) if i < len(rows) else a.type() for i, a in enumerate(arguments)]
    first_param = len(rows) - len(row_params)
    row_inputs = iter(inputs[first_param : len(rows)])
    shared_inputs = iter(inputs[len(inputs) - len(shared_params) :])
    values = {
        name: next(row_inputs) if r else next(shared_inputs)
        for name, r in zip(likelihood.params, by_row, strict=True)
    }
    lik = likelihood.replace(**values)

    block = _block(
        lik, groups, inputs, range(first_param, len(rows)), len(shared_params), len(rows)
    )
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
        n_rows=len(rows),
        n_sums=n_sums,
        shapes=shapes,
        rules=rules,
        block_size=block_size,
    )
    results = op(*arguments, return_list=True)
    return results[0], results[n_sums]


def _row_type(variable: Variable) -> Variable:
    """Return a stand-in for a few of the rows of `variable`."""
    kind = variable.type
    return pt.tensor(dtype=kind.dtype, shape=(None, *kind.shape[1:]))


def _holds_rows(terms, moments) -> bool:
    """Whether a constant of the likelihood may have one entry for each row of the data."""
    known = [m for pair in moments for m in pair]
    return any(
        isinstance(i, Constant) and i.type.ndim and i.type.shape[-1] != 1
        for node in io_toposort(known, [terms])
        for i in node.inputs
    )


def _block(lik, groups, inputs, row_params, n_shared_params, n_rows):
    """Build ``[value, gradient..., terms, row gradients...]`` and the rules that they follow."""
    weights, y = inputs[:2]
    pieces, moments = [], []
    for g in groups:
        p, m = moments_of(
            g.op.kernel,
            inputs[g.X],
            inputs[g.Xu],
            inputs[g.R],
            inputs[g.v],
            *(inputs[i] for i in g.theta),
        )
        pieces.append(p)
        moments.append(m)
    terms = lik.expected_logp(*stack_latents(moments), y)
    if terms.type.ndim != 1 or frontier([terms], inputs) or _holds_rows(terms, moments):
        return None
    value = pt.sum(weights * terms)

    smooth = [i.dtype.startswith("float") for i in inputs]
    param_at = [
        i for i in (*row_params, *range(len(inputs) - n_shared_params, len(inputs))) if smooth[i]
    ]
    wrt = [inputs[i] for i in param_at]
    for p, m in zip(pieces, moments, strict=True):
        wrt += [m.mu, p.explained, p.prior]
    gradients = iter(grad(value, wrt, disconnected_inputs="ignore"))
    sums, row_outputs = {}, {}
    for i in param_at:
        (row_outputs if i < n_rows else sums)[i] = next(gradients)

    outer = {}
    for g, p in zip(groups, pieces, strict=True):
        g_mu, g_explained, g_prior = (next(gradients) for _ in range(3))
        v = inputs[g.v]
        A, R = p.A, inputs[g.R]
        twice = 2.0 * g_explained
        outer[g] = weighted_gram(A, twice)
        if v.type.ndim == 1:
            sums[g.v] = pt.dot(A, g_mu)
            A_bar = pt.outer(v, g_mu) + A * twice
            g_mean = g_mu
        else:
            sums[g.v] = pt.dot(A, g_mu)
            A_bar = pt.dot(v, g_mu.T) + A * twice
            g_mean = pt.sum(g_mu, axis=1)
        K_bar = solve_triangular(R, A_bar, trans=1, lower=True, b_ndim=2)
        # The kernel's part: the adjoints are numbers by now.
        surrogate = (
            pt.sum(disconnected_grad(K_bar) * p.Kuf)
            + pt.sum(disconnected_grad(g_prior) * p.prior)
            + pt.sum(disconnected_grad(g_mean) * (p.mean if v.type.ndim == 1 else p.mean[:, 0]))
        )
        at = [g.X, g.Xu, *g.theta]
        at = [i for i in at if smooth[i]]
        for i, d in zip(
            at,
            grad(surrogate, [inputs[i] for i in at], disconnected_inputs="ignore"),
            strict=True,
        ):
            into = row_outputs if i < n_rows else sums
            into[i] = into[i] + d if i in into else d

    outputs, shapes, rules = [value], [0], [None] * len(inputs)
    for i, s in sums.items():
        rules[i] = len(outputs)
        outputs.append(s)
        shapes.append(i)
    for g in groups:
        rules[g.R] = Factor(g.v, rules[g.v], len(outputs))
        outputs.append(outer[g])
        shapes.append(g.R)
    n_sums = len(outputs)
    outputs.append(terms)
    shapes.append(0)
    rules[0] = n_sums
    for i, r in row_outputs.items():
        rules[i] = len(outputs)
        outputs.append(r)
        shapes.append(i)
    return outputs, n_sums, shapes, rules
