"""Graphs for numpy, which has no loop for some scalar Ops."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.mode import optdb
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scalar.basic import Clip, Mul, Pow, Second
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.special import LogSumExp

from pymc_vsgp.ops.distance import NotNegative
from pymc_vsgp.ops.normal import InverseMills, inverse_mills_graph


class Filled(Op):
    """The second input, in the shape that both have together.

    An `Alloc` would do, but PyTensor asks again and again what shape it has.
    """

    __props__: tuple[str, ...] = ()

    def make_node(self, x, y):
        """Return the node for two tensors that broadcast."""
        return Apply(self, [x, y], [pt.second(x, y).type()])

    def perform(self, node, inputs, outputs):
        """Copy it."""
        x, y = inputs
        # Not `broadcast_arrays`, which fails on constants that JAX has made read-only meanwhile.
        outputs[0][0] = np.broadcast_to(y, np.broadcast_shapes(x.shape, y.shape)).copy()


@_vectorize_node.register(Filled)
def _vectorize_filled(op, node, x, y):
    """Take arrays of any shape."""
    return op.make_node(x, y)


@node_rewriter([Elemwise])
def filled(fgraph, node):
    """Fill at once what numpy would ask PyTensor for, entry by entry."""
    return [Filled()(*node.inputs)] if isinstance(node.op.scalar_op, Second) else None


class SumOfProducts(Op):
    """The sum over an axis of a product, which is not held."""

    __props__ = ("axis",)

    def __init__(self, axis: int):
        self.axis = axis

    def make_node(self, *factors):
        """Return the node for tensors that broadcast."""
        return Apply(self, list(factors), [pt.sum(pt.mul(*factors), axis=self.axis).type()])

    def perform(self, node, inputs, outputs):
        """Multiply and add in one pass."""
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        operands: list[Any] = []
        for x in inputs:
            # An axis of one number is in no index, so that it is not asked for again and again.
            kept = [i for i, n in enumerate(x.shape) if n == shape[i]]
            operands += [x.reshape([x.shape[i] for i in kept]), kept]
        outputs[0][0] = np.einsum(*operands, [i for i in range(len(shape)) if i != self.axis])


@node_rewriter([Sum])
def sum_of_products(fgraph, node):
    """Sum a product of matrices of several functions, over functions or rows, in one pass."""
    product = node.inputs[0].owner
    if product is None or not isinstance(product.op, Elemwise):
        return None
    once = len(fgraph.clients[node.inputs[0]]) == 1
    real = all(x.dtype == "float64" for x in [*product.inputs, *node.outputs])
    if not (once and real and isinstance(product.op.scalar_op, Mul)):
        return None
    if node.inputs[0].type.ndim != 3 or node.op.axis not in ((0,), (1,)):
        return None
    return [SumOfProducts(node.op.axis[0])(*product.inputs)]


optdb.register("filled", dfs_rewriter(filled), position=48.7)
optdb.register("sum_of_products", dfs_rewriter(sum_of_products), position=48.7)


def numpy_only(outputs: Sequence[Variable]) -> list[Variable]:
    """Write what numpy has no loop for, or a slow one, with what it is fast at."""
    fgraph = FunctionGraph(outputs=list(outputs), clone=False)
    for node in fgraph.toposort():
        new = _new(node)
        if new is not None:
            fgraph.replace(node.outputs[0], new, import_missing=True)
    return list(fgraph.outputs)


def _new(node) -> Variable | None:
    if isinstance(node.op, ViewOp):
        return node.inputs[0]
    if isinstance(node.op, LogSumExp):
        return node.op.build_inner_graph(*node.inputs)[0]
    if not isinstance(node.op, Elemwise):
        return None
    x, *rest = node.inputs
    zero = np.zeros((1,) * node.outputs[0].type.ndim)
    if isinstance(node.op.scalar_op, Softplus):
        return pt.maximum(x, zero) + pt.log1p(pt.exp(-pt.abs(x)))
    if isinstance(node.op.scalar_op, Log1mexp):
        return pt.switch(x < -np.log(2.0), pt.log1p(-pt.exp(x)), pt.log(-pt.expm1(x)))
    if isinstance(node.op.scalar_op, InverseMills):
        return inverse_mills_graph(x)
    if isinstance(node.op.scalar_op, NotNegative):
        return pt.maximum(x, zero)
    if isinstance(node.op.scalar_op, Second):  # see `filled`
        return Filled()(x, rest[0])
    if isinstance(node.op.scalar_op, Clip):
        low, high = rest  # in this order, as PyMC writes x for the bound of a side that has none
        clipped = pt.switch(x < low, low, pt.switch(x > high, high, x))
        return clipped.astype(node.outputs[0].dtype)
    if isinstance(node.op.scalar_op, Pow) and x.dtype == node.outputs[0].dtype:
        power = get_underlying_scalar_constant_value(rest[0], raise_not_constant=False)
        return pt.sqr(x) if not isinstance(power, Variable) and power == 2 else None
    return None
