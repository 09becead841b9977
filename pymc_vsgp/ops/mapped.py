"""Arrays in files, as constants of a graph that nobody copies."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type_other import NoneConst
from pytensor.tensor.variable import TensorVariable


class Mapped(Op):
    """An array in a file, mapped into memory.

    A constant or a shared variable would do, but PyTensor hashes the one, and samplers copy the
    other. Copies of a graph share the array.
    """

    view_map = {0: [0]}  # of a constant, so that nothing works in its place

    def __init__(self, data: np.memmap):
        self.data = data.view(np.ndarray)

    def make_node(self):
        """Return the node; its input stands for the array."""
        out = pt.tensor(dtype=self.data.dtype.name, shape=(None,) * self.data.ndim)
        return Apply(self, [NoneConst], [out])

    def perform(self, node, inputs, outputs):
        """Return the array."""
        outputs[0][0] = self.data

    def do_constant_folding(self, fgraph, node):
        """Keep it what it is."""
        return False


def mapped(data: np.memmap) -> TensorVariable:
    """Return an array in a file as a variable."""
    return Mapped(data)()


def mapped_array(x: Any) -> np.ndarray | None:
    """Return the array behind what `mapped` returned, or None for anything else."""
    if isinstance(x, Variable) and x.owner is not None and isinstance(x.owner.op, Mapped):
        return x.owner.op.data
    return None
