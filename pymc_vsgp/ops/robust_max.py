r"""Probability that one of several independent normal variables is the largest.

.. math:: P = \int \phi(t) \prod_{j \ne y} \Phi(a_j + b_j t) \, dt, \qquad
          a_j = \frac{\mu_y - \mu_j}{\sqrt{\gamma_j}}, \quad b_j = \sqrt{\gamma_y / \gamma_j}

Where a latent variance :math:`\gamma_j` is far below that of y, its factor is a step between two
nodes of Gauss-Hermite quadrature, which is then wrong by several hundredths. The rules used here
follow the steps; see :mod:`pymc_vsgp.ops.backends.robust_max_numba`.
"""

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph import Apply
from pytensor.link.jax.ops import JAXOp
from pytensor.tensor.type import discrete_dtypes
from pytensor.tensor.variable import TensorVariable

__all__ = ["RobustMaxProbability", "largest_probability"]


# JAXOp is how PyTensor finds `perform_jax` without this module importing JAX to register it.
class RobustMaxProbability(JAXOp):
    """P(f_y > f_k for all k other than y), for each row of independent normal f.

    Takes the means and variances (N x K) and the class of each row (N). Returns the probabilities
    (N) and their gradients with respect to the means and the variances (both N x K): the value
    and both gradients share nearly all of the work. Absolute errors are below 2e-9, those of the
    gradients on the scale of ``1 / sqrt(gamma)`` and ``1 / gamma``.

    Rows that are not finite, and classes outside 0, ..., K - 1, give nan.
    """

    __props__ = ()
    gufunc_signature = "(n,k),(n,k),(n)->(n),(n,k),(n,k)"

    def __init__(self):
        # Not JAXOp's, which takes the JAX function and so needs JAX.
        self.name = None

    def __repr__(self):
        return "RobustMaxProbability"

    def make_node(self, mu, gamma, y):
        """Return the node for two matrices and a vector of integers."""
        mu, gamma = (pt.as_tensor(v).astype("float64") for v in (mu, gamma))
        y = pt.as_tensor(y)
        if (mu.type.ndim, gamma.type.ndim, y.type.ndim) != (2, 2, 1):
            raise TypeError(
                "mu and gamma must be matrices, and y a vector. They have "
                f"{mu.type.ndim}, {gamma.type.ndim} and {y.type.ndim} dimensions."
            )
        if y.type.dtype not in discrete_dtypes:
            raise TypeError(f"y must be integers. It has dtype {y.type.dtype}.")
        p = pt.tensor(dtype="float64", shape=mu.type.shape[:1])
        grads = [pt.tensor(dtype="float64", shape=mu.type.shape) for _ in range(2)]
        return Apply(self, [mu, gamma, y.astype("int64")], [p, *grads])

    def infer_shape(self, node, shapes):
        """One probability a row, and gradients as large as the inputs."""
        return [shapes[0][:1], shapes[0], shapes[0]]

    def perform(self, node, inputs, outputs):
        """Run the compiled loop."""
        # Contiguous, so that it is compiled once.
        # Imported here: numba takes a second to import.
        from pymc_vsgp.ops.backends import robust_max_numba

        results = robust_max_numba.robust_max(*(np.ascontiguousarray(v) for v in inputs))
        for output, result in zip(outputs, results, strict=True):
            output[0] = result

    def perform_jax(self, mu, gamma, y):
        """Integrate in JAX; PyTensor traces this."""
        from pymc_vsgp.ops.backends.robust_max_jax import robust_max

        return robust_max(mu, gamma, y)

    def connection_pattern(self, node):
        """Say that y has no gradient."""
        return [[True, True, True], [True, True, True], [False, False, False]]

    def pullback(self, inputs, outputs, cotangents):
        """Scale the gradients that were computed with the value."""
        _, dmu, dgamma = outputs
        g, *rest = cotangents
        if not all(isinstance(c.type, DisconnectedType) for c in rest):
            raise NotImplementedError(
                "RobustMaxProbability has no second derivatives. "
                "Use a sampler that needs gradients only."
            )
        if isinstance(g.type, DisconnectedType):
            return [disconnected_type() for _ in inputs]
        return [g[:, None] * dmu, g[:, None] * dgamma, disconnected_type()]


def largest_probability(mu, gamma, y) -> TensorVariable:
    """Probability that the latent function of the observed class is the largest.

    Parameters
    ----------
    mu, gamma : tensor_like
        Means and variances of the latent functions, N x K.
    y : tensor_like of int
        Observed classes, N of them, from 0 to K - 1.
    """
    return RobustMaxProbability()(mu, gamma, y)[0]
