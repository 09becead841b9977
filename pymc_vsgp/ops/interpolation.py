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

import pytensor.tensor as pt

from pytensor.gradient import disconnected_type
from pytensor.graph import Apply

from pymc_vsgp.ops.loop import Loop


class _OfGrid(Loop):
    """A linear map between values on a grid, and at places; and its transpose.

    Places are in steps of the grid, which is that of a torus, one column for each input.
    """

    __props__: tuple[str, ...] = ("shape",)
    module = "interpolation"
    direction: str

    def __init__(self, shape):
        super().__init__()
        self.shape = tuple(shape)
        self.loop = f"{self.direction}_{'line' if len(self.shape) == 1 else 'plane'}"

    def connection_pattern(self, node):
        """Say that the places have no gradient."""
        return [[False], [True]]


class FromGrid(_OfGrid):
    """Values at places, from those on the grid."""

    direction = "from"

    def make_node(self, places, values):
        """Return the node for a matrix of places, and values in the shape of the grid."""
        places, values = (pt.as_tensor(x).astype("float64") for x in (places, values))
        return Apply(
            self, [places, values], [pt.tensor(dtype="float64", shape=(places.type.shape[0],))]
        )

    def infer_shape(self, node, shapes):
        """One value for each place."""
        return [shapes[0][:1]]

    def pullback(self, inputs, outputs, cotangents):
        """Apply the transpose."""
        return [disconnected_type(), ToGrid(self.shape)(inputs[0], cotangents[0])]


class ToGrid(_OfGrid):
    """Sums of values at places, each spread over the places of the grid around it."""

    direction = "to"

    def __init__(self, shape):
        super().__init__(shape)
        self.settings = self.shape

    def make_node(self, places, values):
        """Return the node for a matrix of places, and a value at each."""
        places, values = (pt.as_tensor(x).astype("float64") for x in (places, values))
        return Apply(self, [places, values], [pt.tensor(dtype="float64", shape=self.shape)])

    def infer_shape(self, node, shapes):
        """The shape of the grid."""
        return [tuple(pt.constant(n, dtype="int64") for n in self.shape)]

    def pullback(self, inputs, outputs, cotangents):
        """Apply the transpose."""
        return [disconnected_type(), FromGrid(self.shape)(inputs[0], cotangents[0])]
