"""Graphs for numpy, which has no loop for some scalar Ops."""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.math import Softplus
from pytensor.tensor.elemwise import Elemwise

from pymc_vsgp.ops.distance import NotNegative

__all__ = ["numpy_only"]


def numpy_only(outputs: Sequence[Variable]) -> list[Variable]:
    """Write what numpy has no loop for with what it has."""
    fgraph = FunctionGraph(outputs=list(outputs), clone=False)
    for node in fgraph.toposort():
        if not isinstance(node.op, Elemwise):
            continue
        zero = np.zeros((1,) * node.outputs[0].type.ndim)
        if isinstance(node.op.scalar_op, Softplus):
            (x,) = node.inputs
            new = pt.maximum(x, zero) + pt.log1p(pt.exp(-pt.abs(x)))
        elif isinstance(node.op.scalar_op, NotNegative):
            new = pt.maximum(node.inputs[0], zero)
        else:
            continue
        fgraph.replace(node.outputs[0], new, import_missing=True)
    return list(fgraph.outputs)
