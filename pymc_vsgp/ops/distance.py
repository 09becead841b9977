"""Squared distances that round to zero or below.

`pm.gp.cov` clips them at zero. The gradient of a clip is a mask, and on the diagonal of a
covariance, or where an input is also an inducing input, the mask hangs on the last bit of a zero.
XLA computes it several times, rounds it differently each time, and the gradient is wrong in the
first digit. A squared distance is not negative: what was rounded is clipped here too, but the
gradient passes.
"""

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, get_active_mode, node_rewriter
from pytensor.graph.traversal import io_toposort
from pytensor.link.jax.linker import JAXLinker
from pytensor.scalar.basic import Clip, UnaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import Elemwise


class NotNegative(UnaryScalarOp):
    """``max(x, 0)`` for an x that is not negative but for rounding: its gradient is one."""

    def impl(self, x):
        """Evaluate in Python."""
        return np.maximum(x, 0.0)

    nfunc_spec = None

    def pullback(self, inputs, outputs, cotangents):
        """Pass the cotangent."""
        return [cotangents[0]]


not_negative = Elemwise(NotNegative(upgrade_to_float, name="not_negative"))


def pass_gradients(outputs: list[Variable], inputs: list[Variable]) -> list[Variable]:
    """Let gradients pass where a graph of `inputs` clips a matrix at zero."""
    depends = set(inputs)
    swaps = {}
    for node in io_toposort(inputs, outputs):
        if not depends & set(node.inputs):
            continue
        depends.update(node.outputs)
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Clip):
            x, low, high = node.inputs
            bounds = [b.owner.inputs[0] if b.owner else b for b in (low, high)]
            known = [np.asarray(b.data).item() for b in bounds if isinstance(b, Constant)]
            if known == [0.0, np.inf] and x.type.ndim == 2:
                swaps[node.outputs[0]] = not_negative(x)
    return graph_replace(outputs, swaps, strict=False) if swaps else outputs


@node_rewriter([Elemwise])
def local_plain_maximum(fgraph, node):
    """Clip by an Op that every backend is fast at, once gradients have been taken."""
    if not isinstance(node.op.scalar_op, NotNegative):
        return None
    if isinstance(get_active_mode(fgraph).linker, JAXLinker):
        # JAX may take the gradient later.
        return None
    return [pt.maximum(node.inputs[0], np.float64(0.0))]


optdb.register(
    "plain_maximum_of_distances",
    dfs_rewriter(local_plain_maximum),
    "fast_compile",
    "fast_run",
    position=48.3,
)
