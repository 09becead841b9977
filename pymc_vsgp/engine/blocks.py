"""One block of the data: its terms, and what it adds to the gradient of their sum.

With the gradients of the terms in the moments at hand, what is left is three products of M^2 B
operations: the solve for A, the symmetric product A diag(w) A^T, and the solve that brings the
adjoint of A back to the kernel. The kernel's own gradient is taken by PyTensor within the block, so
any kernel works.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FrozenFunctionGraph, FunctionGraph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.compile import simplify_block
from pymc_vsgp.engine.streaming import BlockSum, Factor, Root, Rule
from pymc_vsgp.inducing.base import Conditional, ConditionalMoments, Covariance
from pymc_vsgp.inducing.graphs import Moments, frontier
from pymc_vsgp.inducing.repeats import AtDistinct
from pymc_vsgp.likelihoods.base import Likelihood, not_of_rows
from pymc_vsgp.likelihoods.quadrature import roughly
from pymc_vsgp.ops.rows import SMALLEST_BLOCK, Order
from pymc_vsgp.rvs import depends_on_random

ALL_ROWS = 2**62  # a block of any number of rows
BATCH_BYTES = 64_000_000  # of one K x M x B buffer, of which a minibatch holds a handful


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


class Part(NamedTuple):
    """One process in a loop over the data: p(f | u), and where its variables are."""

    conditional: Conditional
    X: int
    at: tuple[int, ...]
    """Of its args among the inputs of the loop."""
    covariance: bool = False
    """Whether the density of v is given by its covariance, and not by a root."""

    @property
    def v(self) -> int:
        """Where that is which the moments are linear in."""
        return self.at[0]

    def args(self, inputs) -> list[Variable]:
        """Return its args."""
        return [inputs[i] for i in self.at]


class Recipe(NamedTuple):
    """What a loop over the data was built from: enough to build another one like it."""

    likelihood: Likelihood
    parts: tuple[Part, ...]
    params: dict[str, int]
    n_rows: int
    joint: bool = False
    """Whether one of the sums is `Expected.joint`, and expectations are those at a few points."""
    few: bool = False
    """Whether the rows are fewer than the entries of the factor count for, as in a minibatch."""
    order: Order | None = None
    """What puts rows with equal inputs next to each other, where there are many."""
    n_data: int | None = None
    """How many rows the data had when the loop was built, where that was known."""

    def given(self, inputs) -> list[tuple[Any, Variable, list[Variable]]]:
        """Return p(f | u), the inputs and the args of each process."""
        out = []
        for p in self.parts:
            c: Any = p.conditional
            if self.order is not None:
                c = AtDistinct(c, tuple(k for k, i in enumerate(p.at) if i < self.n_rows))
            out.append((c, inputs[p.X], p.args(inputs)))
        return out


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
        if node is None or m.gamma.owner is not node:
            return None
        if not isinstance(node.op, ConditionalMoments):
            return None
        if not node.op.conditional.follows_X and depends_on_random(node.inputs[0]):
            return None
    # Inputs: weights, y, X of each process and parameters of each row; then what all rows share.
    rows: list[Variable] = [pt.ones((y.shape[0],), dtype="float64"), y]
    for node in nodes:
        if node.inputs[0] not in rows:
            rows.append(node.inputs[0])
    params = {}
    for name, param in likelihood.params.items():
        if likelihood._goes_with_rows(name):
            params[name] = len(rows)
            rows.append(param)
    with_rows = []
    for node in nodes:
        X, *args = node.inputs
        found = node.op.conditional.row_args(X, args)
        with_rows.append(range(len(rows), len(rows) + len(found)))
        rows += found
    order = next((node.op.order for node in nodes if node.op.order is not None), None)
    if order is not None and not any(depends_on_random(node.inputs[0]) for node in nodes):
        rows.append(order.rows)
        order = Order(len(rows) - 1, order.repeats)
    else:
        order = None
    arguments, parts = list(rows), []
    for node, last in zip(nodes, with_rows, strict=True):
        X, *args = node.inputs
        args = node.op.conditional.block_args(X, args)
        at = (*range(len(arguments), len(arguments) + len(args)), *last)
        parts.append(Part(node.op.conditional, rows.index(X), at))
        arguments += args
    for name, param in likelihood.params.items():
        if name not in params:
            params[name] = len(arguments)
            arguments.append(param)
    recipe = Recipe(likelihood, tuple(parts), params, len(rows), order=order, n_data=_length(y))
    node = _node(recipe, arguments, block_size)
    return None if node is None else (node.outputs[0], node.outputs[node.op.n_sums])


class Expected(NamedTuple):
    """Expectations of the terms of a loop, and what a natural-gradient step needs of them."""

    value: TensorVariable
    """Their sum."""
    terms: TensorVariable
    slopes: list[TensorVariable]
    """For each process the gradient of the sum in the means, K x M."""
    grams: list[TensorVariable]
    """Twice that in the covariances, K x M x M: ``A diag(2 d/d gamma) A^T``; or the diagonals."""
    joint: TensorVariable | None = None
    """All of these in one matrix, with what is between functions."""


def stream_gaussian(
    node: Apply,
    means: Sequence[Variable],
    roots: Sequence[Variable],
    rows: Variable | None = None,
    whole: Sequence[bool] = (),
    joint: bool = False,
) -> Expected:
    r"""Return a loop like that of `node` for whitened inducing values with a Gaussian density.

    Its terms are expectations under :math:`v \sim N(m, C C^\top)`: of what the terms of `node` are,
    given v. `means` and `roots` are m and C for each process of the node, with an axis of its
    functions in front; with `rows`, only those rows of the data count, for all of them. Those that
    are `whole` are covariances in place of roots, and only a few rows take them. With `joint`
    there is a matrix of all functions, and expectations are rough: coordinates need no more.
    """
    recipe = node.op.recipe
    alone = [node.inputs[p.v].type.ndim == 1 for p in recipe.parts]
    means = [m[0] if one else m.T for m, one in zip(means, alone, strict=True)]
    roots = [C[0] if one else C for C, one in zip(roots, alone, strict=True)]
    pairs = list(zip(recipe.parts, roots, strict=True))
    arguments, block_size = list(node.inputs), node.op.block_size
    correlated = any(C.type.ndim > node.inputs[p.v].type.ndim for p, C in pairs)
    if rows is not None or joint or correlated:
        # A few rows of a grid are no grid; correlated coefficients take a matrix of all features.
        free = (p._replace(conditional=p.conditional.by_rows()) for p in recipe.parts)
        recipe = recipe._replace(parts=tuple(free))
        if block_size == ALL_ROWS:
            block_size = None
    if any(whole):
        given = zip(recipe.parts, whole, strict=True)
        recipe = recipe._replace(parts=tuple(p._replace(covariance=w) for p, w in given))
    recipe = recipe._replace(joint=joint)
    for part, mean in zip(recipe.parts, means, strict=True):
        arguments[part.v] = mean
    if rows is not None:
        recipe = recipe._replace(order=None)  # hardly any inputs of a few rows repeat
        scale = arguments[0].shape[0] / rows.shape[0].astype("float64")
        arguments[: recipe.n_rows] = [a[rows] for a in arguments[: recipe.n_rows]]
        arguments[0] = arguments[0] * scale
        recipe = recipe._replace(few=True)
        if block_size is None:
            # The roots are read once a block, and may take most of the memory.
            entries = max(int(np.prod(r.type.shape[:-1])) for r in roots)
            block_size = max(BATCH_BYTES // (8 * entries), SMALLEST_BLOCK)
    new = _node(recipe, [*arguments, *roots], block_size, n_roots=len(roots))
    assert new is not None
    rules, slopes, grams = new.op.rules, [], []
    for part, rule, one in zip(recipe.parts, rules[-len(roots) :], alone, strict=True):
        slope, gram = new.outputs[rules[part.v]], new.outputs[rule.gram]
        slopes.append(slope[None] if one else slope.T)
        grams.append(gram[None] if one else gram)
    all_of_them = new.outputs[new.op.n_sums - 1] if joint else None
    return Expected(new.outputs[0], new.outputs[new.op.n_sums], slopes, grams, all_of_them)


def _node(recipe, arguments, block_size, n_roots=0) -> Apply | None:
    """Apply the loop of a recipe to its arguments; the last of them are roots."""
    types = tuple(_row_type(a) if i < recipe.n_rows else a.type for i, a in enumerate(arguments))
    block = _block_of(_Same(recipe), types, n_roots)
    if block is None:
        return None
    inner, n_sums, rules = block
    widths = [p.conditional.width for p in recipe.parts]
    if any(p.conditional.whole for p in recipe.parts):
        block_size = ALL_ROWS
    op = BlockSum(
        inner.inputs,
        inner.outputs,
        n_rows=recipe.n_rows,
        n_sums=n_sums,
        rules=rules,
        block_size=block_size,
        width=None if None in widths else max(widths),
        order=recipe.order,
        on_unused_input="ignore",
    )
    op.recipe = recipe
    return op.make_node(*arguments)


class _Same:
    """A recipe that equals others whose blocks are the same: parameters are inputs of a block."""

    def __init__(self, recipe: Recipe):
        self.recipe, lik = recipe, recipe.likelihood
        settings = {n: v for n, v in vars(lik).items() if n != "_params" and n not in lik.params}
        # What is compared by identity is kept alive with the key.
        self.settings = settings
        self.key = (
            type(lik),
            tuple((name, id(value)) for name, value in settings.items()),
            recipe.parts,
            tuple(recipe.params.items()),
            recipe.n_rows,
            recipe.joint,
            recipe.few,
            recipe.order,
            recipe.n_data,
        )

    def __eq__(self, other):
        return self.key == other.key

    def __hash__(self):
        return hash(self.key)


@lru_cache(maxsize=32)
def _block_of(same: _Same, types, n_roots):
    """Return the graph of a block, simplified, and what goes with it: PyMC asks again and again."""
    inputs = [t() for t in types]
    block = _block(same.recipe, inputs, range(len(inputs) - n_roots, len(inputs)))
    if block is None:
        return None
    outputs, *rest = block
    return _simplified(FrozenFunctionGraph.from_io(inputs, outputs)), *rest


@lru_cache(maxsize=32)
def _simplified(block: FrozenFunctionGraph) -> FunctionGraph:
    """Simplify a block once, also for a model that is built again: its graph equals this one."""
    # PyMC simplifies a log density before it takes gradients, and the graph within an Op with it.
    # Done here already, the loop of a log density and that of its gradient are one and the same.
    graph = block.unfreeze()
    return simplify_block(graph.inputs, graph.outputs)


def _row_type(variable: Variable) -> TensorType:
    """Return the type of a few of the rows of `variable`."""
    kind = variable.type
    return TensorType(kind.dtype, shape=(None, *kind.shape[1:]))


def _length(y: Variable) -> int | None:
    if isinstance(y, SharedVariable):
        return len(y.get_value(borrow=True))
    return y.type.shape[0]


def _holds_rows(terms, known, n_data) -> bool:
    """Whether a constant of the likelihood may have one entry for each row of the data."""
    return any(
        isinstance(i, Constant) and i.type.ndim and i.type.shape[-1] != 1
        for node in io_toposort(known, [terms])
        for i in node.inputs
        if n_data is None or n_data in i.type.shape
    )


def _block(recipe: Recipe, inputs, roots_at):
    """Build ``[value, gradient..., terms, row gradients...]`` and the rules that they follow."""
    parts, n_rows = recipe.parts, recipe.n_rows
    lik = recipe.likelihood.replace(**{name: inputs[i] for name, i in recipe.params.items()})
    weights, y = inputs[:2]
    given = recipe.given(inputs)
    pieces, moments = zip(*(c.moments(X, args) for c, X, args in given), strict=True)
    roots: list[Any] = [inputs[i] for i in roots_at]
    roots = [Covariance(C) if p.covariance else C for C, p in zip(roots, parts, strict=False)]
    # Variance of f from that of v, one for each function.
    extra = [
        c.spread(X, args, of, C) for (c, X, args), of, C in zip(given, pieces, roots, strict=False)
    ]
    mu, gamma = stack_latents(moments)
    curvature: Any = None
    if extra:
        spread = stack_latents([Moments(m.mu, e) for m, e in zip(moments, extra, strict=True)])[1]
        if recipe.joint:
            terms, curvature = roughly(lambda f: lik.log_prob(f, y), mu, gamma + spread)
        else:
            terms = lik._expected_over_means(mu, gamma, spread, y)
    else:
        terms = lik.expected_logp(mu, gamma, y)
    if terms.type.ndim != 1 or frontier([terms], inputs):
        return None
    known = [*extra, *(x for pair in moments for x in pair)]
    # An Op may keep the length of an array, and a block of the rows is shorter.
    fixed = terms.type.shape[0] is not None and not any(p.conditional.whole for p in parts)
    # The loop that a rough one follows was looked at, and points of `roughly` are no rows.
    if fixed or (not recipe.joint and _holds_rows(terms, known, recipe.n_data)):
        if recipe.n_data is None:
            return None
        raise not_of_rows(lik)
    value = pt.sum(weights * terms)

    smooth = [i.dtype.startswith("float") for i in inputs]
    param_at = [i for i in recipe.params.values() if smooth[i]]
    wrt = [inputs[i] for i in param_at]
    wanted = [c.wrt(of, m) for (c, *_), of, m in zip(given, pieces, moments, strict=True)]
    for variables in wanted:
        wrt += variables
    gradients = iter(grad(value, [*wrt, *extra], disconnected_inputs="ignore"))
    sums: dict[int, TensorVariable] = {}
    row_outputs: dict[int, TensorVariable] = {}
    for i in param_at:
        (row_outputs if i < n_rows else sums)[i] = next(gradients)
    adjoints = [[next(gradients) for _ in variables] for variables in wanted]
    of_extra = list(gradients)

    found = []
    for j, (c, X, args) in enumerate(given):
        of_root = (roots[j], of_extra[j]) if roots else (None, None)
        found.append(c.pull(X, args, pieces[j], moments[j], adjoints[j], *of_root))
        at, adds = parts[j].at, found[-1]
        by_input = {at[k]: d for k, d in adds.of_args.items()}
        if adds.of_X is not None:
            by_input[parts[j].X] = adds.of_X
        for i, d in by_input.items():
            into = row_outputs if i < n_rows else sums
            into[i] = into[i] + d if i in into else d

    outputs = [value]
    rules: list[Rule] = [None] * len(inputs)
    at_output: dict[int, int] = {}
    for i, s in sums.items():
        rules[i] = at_output[i] = len(outputs)
        outputs.append(s)
    for j, (p, (c, _, args), adds) in enumerate(zip(parts, given, found, strict=True)):
        root = gram = None
        if roots:
            root, gram = roots_at[j], len(outputs)
            diagonal = not p.covariance and c.diagonal(args, roots[j])
            rules[root] = Root(gram, diagonal, p.covariance)
            outputs.append(adds.gram)
        if adds.outer is not None:
            if recipe.few and adds.whole is not None:
                rules[p.at[1]] = Factor(len(outputs))
                outputs.append(adds.whole)
            else:
                rules[p.at[1]] = Factor(len(outputs), p.v, at_output[p.v], root, gram)
                outputs.append(adds.outer)
    if curvature is not None:
        A = []
        for (c, *_), of, m in zip(given, pieces, moments, strict=True):
            A += [c.loadings(of)] * (m.mu.type.shape[1] if m.mu.type.ndim > 1 else 1)
        outputs.append(_joint(weights[:, None, None] * curvature, A))
    n_sums = len(outputs)
    outputs.append(terms)
    rules[0] = n_sums
    for i, r in row_outputs.items():
        rules[i] = len(outputs)
        outputs.append(r)
    return outputs, n_sums, rules


def _joint(curvature, A) -> TensorVariable:
    """Return the sum over rows of what second derivatives in f, N x K x K, are in all v."""
    columns = []
    for k, of_k in enumerate(A):
        rows = pt.concatenate([a * curvature[:, i, k] for i, a in enumerate(A)])
        columns.append(pt.dot(rows, of_k.T))
    return pt.concatenate(columns, axis=1)
