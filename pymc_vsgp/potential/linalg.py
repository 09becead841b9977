"""The products of one block."""

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

__all__ = ["WeightedGram"]


class WeightedGram(Op):
    """``A diag(w) A^T`` for A of shape (M, B), as a symmetric product where w allows it.

    That takes half the work of a general product. It has no gradient: it is itself part of one.
    """

    __props__ = ()

    def make_node(self, A, w):
        """Build the node."""
        A, w = pt.as_tensor(A), pt.as_tensor(w)
        n = A.type.shape[0]
        return Apply(self, [A, w], [pt.tensor(dtype="float64", shape=(n, n))])

    def infer_shape(self, node, shapes):
        """M x M."""
        ((n, _), _) = shapes
        return [(n, n)]

    def perform(self, node, inputs, outputs):
        """Evaluate with numpy, which sees a product with its own transpose and calls dsyrk."""
        A, w = inputs
        if (w >= 0.0).all():
            scaled = A * np.sqrt(w)
            outputs[0][0] = scaled @ scaled.T
        else:
            outputs[0][0] = (A * w) @ A.T


weighted_gram = WeightedGram()
