"""Sums over an axis for numba that compile fast."""

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)
from pytensor.tensor.math import Sum

from pymc_vsgp.ops.backends.linalg_numba import NumbaOp

VERSION = 1  # of the code below, for the cache of compiled functions


class AxisSum(NumbaOp):
    """Sum of a matrix, or several, over an axis. PyTensor's sorts strides: seconds to compile."""

    __props__ = ("axis",)

    def __init__(self, axis: int):
        self.axis = axis

    def make_node(self, A):
        shape = list(A.type.shape)
        del shape[self.axis]
        return Apply(self, [A], [pt.tensor(dtype="float64", shape=tuple(shape))])

    def infer_shape(self, node, shapes):
        """Drop the axis."""
        return [tuple(n for i, n in enumerate(shapes[0]) if i != self.axis)]


@register_funcify_default_op_cache_key(AxisSum)
def numba_funcify_axis_sum(op, node, **kwargs):
    """Add row by row."""
    axis = op.axis

    if node.inputs[0].type.ndim == 3:

        @numba_njit
        def axis_sum_of_several(A):
            K, m, n = A.shape
            total = np.zeros((m if axis == 0 else K, m if axis == 2 else n))
            for k in range(K):
                for i in range(m):
                    for j in range(n):
                        total[i if axis == 0 else k, i if axis == 2 else j] += A[k, i, j]
            return total

        return axis_sum_of_several, VERSION

    @numba_njit
    def axis_sum(A):
        total = np.zeros(A.shape[1 - axis])
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                total[i if axis else j] += A[i, j]
        return total

    return axis_sum, VERSION


def sum_over_axis(node):
    """Return the lean sum for a node that is left of fusion, or None."""
    types = [v.type for v in (*node.inputs, *node.outputs)]
    if isinstance(node.op, Sum) and [t.ndim for t in types] in ([2, 1], [3, 2]):
        if all(t.dtype == "float64" for t in types):
            return AxisSum(*node.op.axis)(node.inputs[0])
    return None
