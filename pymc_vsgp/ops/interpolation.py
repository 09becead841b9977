r"""Sums of waves at any places, from their values on a grid twice as fine as they need.

The values between are sums over the nearest :math:`w = 8` places of the grid in each input,

.. math:: f(x) = \sum_l F_l \, \psi(x / h - l), \qquad
          F_l = \sum_j \frac{u_j}{\hat\psi_j} \phi_j(l h)

with the window of Barnett, Magland and af Klinteberg (2019), whose Fourier transform all but
vanishes where the grid cannot tell waves apart: a nonuniform fast Fourier transform, without the
transform. Sums are exact to 1e-7 of their size, and cost as much however many waves there are. The
transpose is exact, so a gradient is that of the value.

References
----------
Barnett, A., Magland, J., af Klinteberg, L. (2019). A parallel nonuniform fast Fourier transform
library based on an "exponential of semicircle" kernel. SIAM J. Sci. Comput. 41.
"""

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_type
from pytensor.graph import Apply
from pytensor.link.jax.ops import JAXOp

__all__ = ["FromGrid", "ToGrid"]


# JAXOp is how PyTensor finds `perform_jax` without this module importing JAX to register it.
class _OfGrid(JAXOp):
    """A linear map between values on a grid, and at places; and its transpose.

    Places are in steps of the grid, which is that of a torus, one column for each input.
    """

    __props__: tuple[str, ...] = ("shape",)

    def __init__(self, shape):
        # Not JAXOp's, which takes the JAX function and so needs JAX.
        self.name = None
        self.shape = tuple(shape)

    def connection_pattern(self, node):
        """Say that the places have no gradient."""
        return [[False], [True]]


class FromGrid(_OfGrid):
    """Values at places, from those on the grid."""

    def make_node(self, places, values):
        """Return the node for a matrix of places, and values in the shape of the grid."""
        places, values = (pt.as_tensor(x).astype("float64") for x in (places, values))
        return Apply(
            self, [places, values], [pt.tensor(dtype="float64", shape=(places.type.shape[0],))]
        )

    def infer_shape(self, node, shapes):
        """One value for each place."""
        return [shapes[0][:1]]

    def perform(self, node, inputs, outputs):
        """Run the compiled loop."""
        from pymc_vsgp.ops.backends import interpolation_numba

        outputs[0][0] = interpolation_numba.from_grid(*map(np.ascontiguousarray, inputs))

    def perform_jax(self, places, values):
        """Gather in JAX; PyTensor traces this."""
        from pymc_vsgp.ops.backends import interpolation_jax

        return interpolation_jax.from_grid(places, values)

    def pullback(self, inputs, outputs, cotangents):
        """Apply the transpose."""
        return [disconnected_type(), ToGrid(self.shape)(inputs[0], cotangents[0])]


class ToGrid(_OfGrid):
    """Sums of values at places, each spread over the places of the grid around it."""

    def make_node(self, places, values):
        """Return the node for a matrix of places, and a value at each."""
        places, values = (pt.as_tensor(x).astype("float64") for x in (places, values))
        return Apply(self, [places, values], [pt.tensor(dtype="float64", shape=self.shape)])

    def infer_shape(self, node, shapes):
        """The shape of the grid."""
        return [tuple(pt.constant(n, dtype="int64") for n in self.shape)]

    def perform(self, node, inputs, outputs):
        """Run the compiled loop."""
        from pymc_vsgp.ops.backends import interpolation_numba

        places, values = map(np.ascontiguousarray, inputs)
        outputs[0][0] = interpolation_numba.to_grid(places, values, self.shape)

    def perform_jax(self, places, values):
        """Scatter in JAX; PyTensor traces this."""
        from pymc_vsgp.ops.backends import interpolation_jax

        return interpolation_jax.to_grid(places, values, self.shape)

    def pullback(self, inputs, outputs, cotangents):
        """Apply the transpose."""
        return [disconnected_type(), FromGrid(self.shape)(inputs[0], cotangents[0])]
