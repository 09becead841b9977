r"""A sum over the rows of the data, with its gradient, in one pass over blocks of rows.

The variational potential is a sum over data points, so the cotangent of every term is the same
number. Value and gradient can therefore be computed block by block: form the moments of a block,
its terms, and at once what it adds to the gradient, then forget it. :class:`BlockSum` is that loop.
Its inner graph maps one block to ``[value, gradient..., terms, gradients of row inputs...]``; the
pullback only scales the gradients that are already there, so a log density and its gradient share
one pass. What is asked for decides what is computed: outputs that nobody uses are dropped before
compilation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.rewriting.basic import (
    MergeOptimizer,
    dfs_rewriter,
    get_active_mode,
    graph_rewriter,
    node_rewriter,
)
from pytensor.graph.traversal import ancestors
from pytensor.link.jax.linker import JAXLinker
from pytensor.scalar.basic import Second
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.math import Sum
from pytensor.tensor.rewriting.basic import register_canonicalize

from pymc_vsgp.ops.rows import Rows

NO_SECOND_DERIVATIVES = (
    "Second derivatives through the one-pass sum over the data are not available. "
    "Pass block_size=False to gp.likelihood to have them, at the cost of memory."
)


class Factor(NamedTuple):
    """How the gradient of a triangular factor R follows from small outputs.

    With ``A = R^-1 K`` and ``Abar`` its adjoint, ``Rbar = -tril(R^-T Abar A^T)``: the output
    `outer` is ``Abar A^T``. Where `v` is known, it is without the parts that follow from other
    outputs: ``v a^T``, with `a` the gradient in v, and ``C C^T gram`` where there is a root C.
    """

    outer: int
    v: int | None = None
    a: int | None = None
    root: int | None = None
    gram: int | None = None


class Held(OpFromGraph):
    """Return the input, without a gradient.

    Unlike PyTensor's `disconnected_grad` it outlives the simplifications that PyMC makes before it
    takes gradients, and JAX knows of it, too.
    """

    def __init__(self, inputs, outputs):
        super().__init__(
            inputs,
            outputs,
            pullback=lambda inputs, outputs, cotangents: [disconnected_type()],
            connection_pattern=[[False]],
        )


def held(x: Variable) -> Variable:
    """Return x as something without a gradient."""
    inner = x.type()
    return Held([inner], [inner.copy()])(x)


class Root(NamedTuple):
    """How the gradient of a root C follows from a small output.

    C enters as ``sum((C^T A)**2)``, and the output is the matrix that C is multiplied with. A
    diagonal C is a vector, or a row for each function, and so is its output. In place of C may be
    its `covariance`.
    """

    gram: int
    diagonal: bool = False
    covariance: bool = False

    def gradient(self, gram: Any, root: Any) -> Any:
        """Return that of a root, from the output."""
        if self.covariance:
            return gram / 2.0
        return gram * root if self.diagonal else gram @ root


Rule = int | Factor | Root | None


class BlockSum(Rows):
    """Sum a function of blocks of rows.

    The first output is the value; the first row output the terms that the value sums, and the first
    input the weights of the terms. All other outputs are gradients.

    Parameters
    ----------
    rules : sequence
        For each input, how its gradient follows from the outputs: the index of an output, a
        `Factor`, a `Root`, or None for an input without a gradient.
    *args, **kwargs
        Of `Rows`.
    """

    def __init__(self, *args, rules: Sequence[Rule], **kwargs):
        super().__init__(*args, **kwargs)
        self.rules = tuple(rules)

    @property
    def arguments(self):
        return super().arguments | {"rules": self.rules}

    def like(self, inputs, outputs, **changes):
        """Return the same for another graph, without a gradient."""
        return super().like(inputs, outputs, rules=[None] * len(inputs), **changes)

    def pullback(self, inputs, outputs, cotangents):
        """Scale the gradients that the same node computes."""
        of_value, *others = cotangents
        terms = self.n_sums
        of_terms = cotangents[terms]
        if any(
            not isinstance(c.type, DisconnectedType)
            for i, c in enumerate(others, start=1)
            if i != terms
        ):
            raise NotImplementedError(NO_SECOND_DERIVATIVES)
        of_sum = _same_for_all(of_terms)
        if of_sum is not None and _all_one(inputs[0]):
            # The gradient of the sum of the terms: the value is that sum.
            alone = isinstance(of_value.type, DisconnectedType)
            of_value = of_sum if alone else of_value + of_sum
            of_terms = disconnected_type()
        grads = [disconnected_type() for _ in inputs]
        if not isinstance(of_value.type, DisconnectedType):
            grads = [
                of_value * g if g is not None else disconnected_type()
                for g in self._gradients(inputs, outputs)
            ]
        if not isinstance(of_terms.type, DisconnectedType):
            # Terms with cotangents of their own: a sum with those weights, in another pass. The
            # terms do not depend on the weights of the value.
            weighted = [of_terms, *inputs[1:]]
            again = self(*weighted, return_list=True)
            for i, g in enumerate(self._gradients(weighted, again)):
                if g is None or i == 0:
                    continue
                grads[i] = g if isinstance(grads[i].type, DisconnectedType) else grads[i] + g
            if isinstance(grads[0].type, DisconnectedType):
                grads[0] = inputs[0].zeros_like()
        return grads

    def _gradients(self, inputs, outputs):
        for i, rule in enumerate(self.rules):
            if rule is None:
                yield None
            elif isinstance(rule, Factor):
                outer = outputs[rule.outer]
                if rule.v is not None:
                    v, a = inputs[rule.v], outputs[rule.a]
                    if v.type.ndim == 1:
                        v, a = v[:, None], a[:, None]
                    outer = pt.dot(v, a.T) + outer
                if rule.root is not None:
                    root, gram = inputs[rule.root], outputs[rule.gram]
                    more = pt.matmul(root, pt.matmul(gram, root).mT)
                    outer += more if more.type.ndim == 2 else more.sum(axis=0)
                yield -pt.tril(solve_triangular(inputs[i], outer, trans=1, lower=True, b_ndim=2))
            elif isinstance(rule, Root):
                yield rule.gradient(outputs[rule.gram], inputs[i])
            else:
                yield outputs[rule]

    def connection_pattern(self, node):
        """Say that every output depends on the inputs that have a rule.

        The gradients among the outputs do so as well: left out here, a second derivative would
        silently lack them, and `pullback` would not get to refuse it.
        """
        return [[rule is not None for _ in node.outputs] for rule in self.rules]


def _same_for_all(cotangent: Variable) -> Variable | None:
    """Return the number that a vector repeats, if it is known to repeat one."""
    node = cotangent.owner
    if (
        node is not None
        and isinstance(node.op, Elemwise)
        and isinstance(node.op.scalar_op, Second)
        and node.inputs[1].type.broadcastable == (True,)
    ):
        return node.inputs[1][0]
    return None


def block_sums(*variables: Variable) -> list[Apply]:
    """Return the loops over the data in the graph of variables, in the order of the graph."""
    nodes = (v.owner for v in ancestors(variables))
    # Not a set: its order, and so that of sums over it, would differ from process to process.
    return list(dict.fromkeys(n for n in nodes if n is not None and isinstance(n.op, BlockSum)))


def _all_one(weights: Variable) -> bool:
    """Whether the weights of the terms are known to be one, so that the value is their sum."""
    one = get_underlying_scalar_constant_value(weights, raise_not_constant=False)
    return bool(one == 1.0) if not isinstance(one, Variable) else False


@register_canonicalize
@node_rewriter([Sum])
def local_sum_of_terms(fgraph, node):
    """Take the sum of the terms from the loop that computes them."""
    (terms,) = node.inputs
    if terms.owner is None or not isinstance(terms.owner.op, BlockSum):
        return None
    if (
        node.op.axis not in (None, (0,))
        or terms.owner.outputs.index(terms) != terms.owner.op.n_sums
        or not _all_one(terms.owner.inputs[0])
    ):
        return None
    return [terms.owner.outputs[0]]


@node_rewriter([Rows, BlockSum])
def drop_unused_outputs(fgraph, node):
    """Compute only what is used: a value without its gradient costs a third."""
    if isinstance(get_active_mode(fgraph).linker, JAXLinker):
        # XLA does the same, and JAX's own gradients need the whole.
        return None
    op = node.op
    used = [bool(fgraph.clients[o]) for o in node.outputs]
    if all(used):
        return None
    inner = op.fgraph.unfreeze()
    # No gradient is taken after this: the log density is final.
    smaller = op.like(
        list(inner.inputs),
        [o for o, u in zip(inner.outputs, used, strict=True) if u],
        n_sums=sum(used[: op.n_sums]),
        on_unused_input="ignore",
    )
    outputs = iter(smaller(*node.inputs, return_list=True))
    return {o: next(outputs) for o, u in zip(node.outputs, used, strict=True) if u}


@graph_rewriter
def merge(fgraph):
    """Merge loops that have become the same."""
    if any(isinstance(node.op, Rows) for node in fgraph.apply_nodes):
        MergeOptimizer().rewrite(fgraph)


# After everything that simplifies, before fusion (49) and the backend's own work on inner graphs.
# Two loops that have become the same are merged first, or each would drop what the other needs.
optdb.register("merge_block_sums", merge, "fast_run", "fast_compile", "merge", position=48.45)
optdb.register(
    "drop_unused_outputs_of_block_sums",
    dfs_rewriter(drop_unused_outputs),
    "fast_run",
    "fast_compile",
    position=48.5,
)
