"""The products of one block."""

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular


class WeightedGram(Op):
    """``A diag(w) A^T`` for A of shape (M, B), as symmetric products of what has one sign.

    They take half the work of a general product. With w of shape (K, B) there are K of them. It
    has no gradient: it is itself part of one.
    """

    __props__ = ()

    def make_node(self, A, w):
        A, w = pt.as_tensor(A), pt.as_tensor(w)
        n = A.type.shape[0]
        shape = (*w.type.shape[:-1], n, n)
        return Apply(self, [A, w], [pt.tensor(dtype="float64", shape=shape)])

    def infer_shape(self, node, shapes):
        """M x M, for each w."""
        ((n, _), (*several, _)) = shapes
        return [(*several, n, n)]

    def perform(self, node, inputs, outputs):
        """Evaluate with numpy, which sees a product with its own transpose and calls dsyrk."""
        A, w = inputs
        out = np.empty((*w.shape[:-1], len(A), len(A)))
        for k in np.ndindex(w.shape[:-1]):
            _weighted_gram(A, w[k], out[k])
        outputs[0][0] = out


weighted_gram = WeightedGram()


def _weighted_gram(A, w, out):
    negative = w < 0.0
    n = np.count_nonzero(negative)
    if n == 0:
        rest = A * np.sqrt(w)
    elif n < w.size / 4:  # as where a likelihood is not log-concave
        rest = A * np.sqrt(np.where(negative, 0.0, w))
    else:
        rest = A[:, ~negative] * np.sqrt(w[~negative])
    np.matmul(rest, rest.T, out=out)
    if n:
        rest = A[:, negative] * np.sqrt(-w[negative])
        out -= rest @ rest.T


def solves_with(fgraph: FunctionGraph, R: Variable) -> list[tuple[Apply, bool]]:
    """Return the nodes that solve with the lower factor R or, marked False, its transpose.

    Only those for a float64 matrix, which a backend may replace by what it does faster.
    """
    if R.type.ndim != 2 or R.type.dtype != "float64":
        return []
    found = [(node, True) for node in _solves(fgraph, R, True)]
    for client, _ in fgraph.clients[R]:
        if isinstance(client.op, DimShuffle) and client.op.is_matrix_transpose:
            found += [(node, False) for node in _solves(fgraph, client.outputs[0], False)]
    return found


def _solves(fgraph, A, lower):
    for client, position in fgraph.clients[A]:
        op = getattr(client.op, "core_op", client.op)
        if (
            isinstance(op, SolveTriangular)
            and position == 0
            and op.lower == lower
            and not op.unit_diagonal
            and client.inputs[1].type.ndim == 2
            and client.inputs[1].type.dtype == "float64"
        ):
            yield client
