"""Squared distances, which are differences of squares: what rounding does to them.

`pm.gp.cov` clips them at zero. The gradient of a clip is a mask, and on the diagonal of a
covariance, or where an input is also an inducing input, the mask hangs on the last bit of a zero.
XLA computes it several times, rounds it differently each time, and the gradient is wrong in the
first digit. A squared distance is not negative: what was rounded is clipped here too, but the
gradient passes.

Far from zero, as in years or UTM coordinates, differences of squares lose the digits that a smooth
kernel needs. So inputs are taken about their mean.
"""

import warnings

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, get_active_mode, node_rewriter
from pytensor.graph.traversal import io_toposort
from pytensor.link.jax.linker import JAXLinker
from pytensor.scalar.basic import Add, Clip, Mul, Sqr, UnaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape

FAR = 1e6  # times its range that a column may be from zero


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


def pass_gradients(
    outputs: list[Variable], inputs: list[Variable], near_zero: bool = False
) -> list[Variable]:
    """Let gradients pass where a graph of `inputs` clips a squared distance of pm.gp at zero.

    Distances are those of inputs about their mean, unless they are `near_zero` already.
    """
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
            if known == [0.0, np.inf] and (rows := _rows_of_distance(x)):
                swaps[node.outputs[0]] = not_negative(x if near_zero else _from_the_middle(*rows))
    return graph_replace(outputs, swaps, strict=False) if swaps else outputs


def _rows_of_distance(x: Variable) -> tuple[Variable, ...]:
    """Return A and B of ``-2 A B^T + (a + b)``, with the squares of the rows of A and of B.

    Other matrices are clipped by users, in a mean or a warp of inputs: there the mask is right.
    """
    terms = _made_of(x, Add)
    if len(terms) != 2:
        return ()
    factors = [_made_of(factor, Dot) for factor in _made_of(terms[0], Mul)]
    A, B = next(filter(None, factors), (x, x))
    squares = [s for side in _made_of(terms[1], Add) for s in _made_of(side, Reshape, Sum, Sqr)]
    rows = (A, *_made_of(B, DimShuffle))
    return rows if squares == list(rows) else ()


def _from_the_middle(A: Variable, B: Variable) -> Variable:
    """Return squared distances of rows of A and of B, as differences of squares about zero."""
    middle = A.sum(axis=0) / pt.maximum(A.shape[0], 1).astype("float64")
    a = A - middle
    b = a if A is B else B - middle
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :]
    return np.float64(-2.0) * pt.dot(a, b.T) + squares


def _made_of(x: Variable, *kinds: type) -> list[Variable]:
    """Return what Ops of these kinds, the last one first, made x of; nothing if others made it."""
    found = [x]
    for kind in kinds:
        op = getattr(found[0].owner, "op", None)
        if not isinstance(op, kind) and not isinstance(getattr(op, "scalar_op", None), kind):
            return []
        found = list(found[0].owner.inputs)
    return found


def warn_of_offset(X: np.ndarray, what: str = "Xu") -> None:
    """Warn where inputs are so far from zero that their distances lose digits."""
    far = np.abs(X).max(axis=0) > FAR * np.ptp(X, axis=0)
    far &= np.ptp(X, axis=0) > 0.0
    if far.any():
        d = int(np.argmax(far))
        warnings.warn(
            f"Column {d} of {what} is about {X[0, d]:.3g} with a range of {np.ptp(X[:, d]):.3g}, "
            "so distances lose digits in the kernel. Subtract a constant from that column of X "
            f"and {what}, for example the smallest X.",
            UserWarning,
            stacklevel=4,
        )


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
