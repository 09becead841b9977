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
        found = [_weighted_gram(A, row) for row in np.atleast_2d(w)]
        outputs[0][0] = found[0] if w.ndim == 1 else np.stack(found)


weighted_gram = WeightedGram()


def _weighted_gram(A, w):
    negative = w < 0.0
    if not negative.any():
        scaled = A * np.sqrt(w)
        return scaled @ scaled.T
    # Mostly few, as where a likelihood is not log-concave.
    gram = _weighted_gram(A[:, negative], -w[negative])
    return _weighted_gram(A, np.where(negative, 0.0, w)) - gram


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
