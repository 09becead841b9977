"""Nodes of quadrature against a normal density: no more of them than a block of rows needs.

Gauss-Hermite quadrature is right to 1e-10 where the singularities of the integrand are far from the
real axis, in standard deviations. So the largest of these decides, and only where that is large a
rule takes over that holds for any.
"""

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad, disconnected_type
from pytensor.graph import Apply
from pytensor.graph.replace import _vectorize_node

from pymc_vsgp.ops.loop import Loop

REACH = 7.0  # standard deviations on either side of the mean; 3e-12 of the mass is beyond
# Variances below this are treated as this: the square root needs a finite slope. Functions have
# units, so it is far below any variance that is more than a rounding error.
LEAST = 1e-100
NARROW = 1e-10  # of the distance from a bend: nodes are the same for any deviation below
N_BEND = 48
# Gauss-Hermite nodes that do, by standard deviations over the distance of singularities.
RULES = {0.053: 6, 0.142: 10, 0.285: 20, 0.392: 32}


def stack(nodes, ndim):
    """Put constant nodes on a new leading axis in front of `ndim` others."""
    return np.asarray(nodes).reshape((-1,) + (1,) * ndim)


def standard_deviation(gamma):
    """Square root of a variance that may be zero, or a rounding error below it."""
    return pt.sqrt(pt.maximum(gamma, np.float64(LEAST)))


def of_one_shape(a, b):
    """Broadcast two tensors, if they need it."""
    a, b = pt.as_tensor(a), pt.as_tensor(b)
    same = a.type.broadcastable == b.type.broadcastable
    return (a, b) if same else pt.broadcast_arrays(a, b)


class Nodes(Loop):
    """Nodes t and weights for N(0, 1), by the largest standard deviation.

    Takes the distance of the mean from a bend, and the standard deviation, both in widths of the
    bend and of one shape (B, C); and columns of the nodes and weights of the rule for large
    deviations, Gauss-Legendre after a sinh stretch around the bend. Returns two of shape (B, n, C),
    with no gradient.
    """

    module = "nodes"
    loop = "nodes"

    def make_node(self, a, b, x, w):
        """Return the node for two matrices and two columns."""
        inputs = [pt.as_tensor(v).astype("float64") for v in (a, b, x, w)]
        shape = (a.type.shape[0], None, a.type.shape[1])
        return Apply(self, inputs, [pt.tensor(dtype="float64", shape=shape) for _ in range(2)])

    def connection_pattern(self, node):
        """Say that nodes are chosen, not differentiated."""
        return [[False] * 2 for _ in node.inputs]

    def pullback(self, inputs, outputs, cotangents):
        """Return nothing."""
        return [disconnected_type() for _ in inputs]

    def graph(self, a, b, x, w):
        """Return the rule for large deviations, which does for any."""
        return list(stretched(a[:, None, :], b[:, None, :], x, w, -2))


def bend_nodes(mu, sd, center, width, n_nodes, ndim):
    """Nodes t and weights for N(0, 1), dense where ``mu + sd * t`` is near `center`."""
    a, b = (mu - center) / width, sd / width
    b = pt.maximum(b, NARROW * (1.0 + pt.abs(a)))
    x, of_x = np.polynomial.legendre.leggauss(n_nodes)
    if ndim > 1:  # PyTensor asks for the shapes of open nodes within open nodes for ever
        found = stretched(a, b, stack(x, ndim), stack(of_x, ndim), 0)
        return tuple(map(disconnected_grad, found))
    a, b = (v.reshape((-1,))[None, :] for v in of_one_shape(a, b))
    t, w = (v[0] for v in Nodes()(a, b, stack(x, 1), stack(of_x, 1)))
    return (t, w) if ndim else (t[:, 0], w[:, 0])


def stretched(a, b, x, w, axis):
    """Return the rule for large deviations, as a graph, with the nodes on this axis.

    With ``mu + sd * t = center + width * sinh(z)`` it is Gauss-Legendre in z: the Gaussian drops
    from one to nothing close to the ends, where Legendre's nodes are dense. Everything is written
    as a difference from ``z0``, the z of the mean, so that nothing cancels when sd is far below
    ``|mu - center|``.
    """
    z0 = pt.arcsinh(a)
    lo = pt.arcsinh(a - REACH * b) - z0
    hi = pt.arcsinh(a + REACH * b) - z0
    # Both hyperbolic functions from one exponential: they are most of the work.
    step = pt.expm1((lo + hi + (hi - lo) * x) / 4.0)  # of half of z - z0
    growth = pt.exp(z0) * (1.0 + step)
    t = (growth + 1.0 / growth) * (step + step / (1.0 + step)) / (2.0 * b)
    growth = growth * (1.0 + step)
    w = w * (growth + 1.0 / growth) * pt.exp(-(t**2) / 2.0)
    w = w / w.sum(axis=axis, keepdims=True)
    # Make the first two moments exact: the gradient in gamma divides by sd, and would magnify
    # what is left of them.
    t = t - (w * t).sum(axis=axis, keepdims=True)
    return t / pt.sqrt((w * t**2).sum(axis=axis, keepdims=True)), w


@_vectorize_node.register(Nodes)
def _vectorize_nodes(op, node, a, b, x, w):
    """Take all points at once."""
    a, b = of_one_shape(a, b)
    lead = [a.shape[i] for i in range(a.type.ndim - 1)]
    found = op(*(v.reshape((-1, v.shape[-1])) for v in (a, b)), x, w)
    shape = [*lead, found[0].shape[1], a.shape[-1]]
    out = [v.reshape(shape, ndim=a.type.ndim + 1) for v in found]
    return [pt.specify_shape(v, (*a.type.shape[:-1], None, a.type.shape[-1])) for v in out]
