r"""Expectation of the logarithm of a sum of exponentials of normal functions.

It is that of a maximum. With independent standard Gumbel variables G,

.. math:: \log \sum_j e^{f_j} + \gamma_E = E \max_j (f_j + G_j), \qquad
          P(\max_j (f_j + G_j) < x) = \prod_j L_j(x)

with :math:`L_j` the distribution function of :math:`f_j + G_j`: for independent normal f what was
an integral over K functions is one over x. The Gumbel distribution is a mixture of 20 normals to
1e-8, so L is a mixture of normal distribution functions, whatever the variance of f is.
"""

import numpy as np
import pytensor.tensor as pt

from pytensor.graph import Apply
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.ops.row_integral import RowIntegral

__all__ = [
    "LEFT",
    "MEAN",
    "MIXTURE",
    "N_POINTS",
    "REACH",
    "RIGHT",
    "TINY",
    "ExpectedLogSumExp",
    "expected_log_sum_exp",
]

# exp(-exp(-x)) = sum_i p_i Phi((x - m_i) / s_i). Largest error 1.2e-8, and no larger for f + G.
MIXTURE = np.array(
    [
        [7.8284214035e-05, -2.0074899250e00, 2.3347622435e-01],
        [1.3220835031e-03, -1.7161820939e00, 2.6366299994e-01],
        [1.3128008391e-02, -1.3953586898e00, 3.0031336671e-01],
        [6.7383162555e-02, -1.0185902455e00, 3.3026752363e-01],
        [7.6928530536e-02, -6.8954058023e-01, 3.2155420753e-01],
        [6.9115742362e-02, -4.1307874204e-01, 3.2841087106e-01],
        [7.2168840782e-02, -1.6664244634e-01, 3.5897686255e-01],
        [8.5183902718e-02, 6.2932996472e-02, 4.1578472034e-01],
        [7.5058949529e-02, 1.9594483765e-01, 4.8288661755e-01],
        [1.0427166455e-01, 4.1490016479e-01, 4.9981973022e-01],
        [7.6398903942e-02, 7.4277222500e-01, 5.3654504642e-01],
        [1.1704914441e-01, 1.0067885395e00, 6.2115889736e-01],
        [8.7108010217e-02, 1.4712153382e00, 7.0306271781e-01],
        [7.5161923174e-02, 1.9487515510e00, 8.3633643987e-01],
        [4.9263585980e-02, 2.5988463394e00, 9.9496422813e-01],
        [2.0780872794e-02, 3.4977256151e00, 1.1535866833e00],
        [7.1763713420e-03, 4.5375030005e00, 1.3511941340e00],
        [2.0494555935e-03, 5.7020602582e00, 1.6356078971e00],
        [3.4968380245e-04, 7.1526602386e00, 2.0365884080e00],
        [2.2879599918e-05, 8.9838655049e00, 2.6842278279e00],
    ]
).T
MIXTURE[0] /= MIXTURE[0].sum()
MEAN = np.float64(MIXTURE[0] @ MIXTURE[1])
N_POINTS = 64
REACH = 6.0  # standard deviations of f
LEFT, RIGHT = np.float64(3.2), np.float64(18.5)  # where a Gumbel's tails are below 1e-8
TINY = 1e-14  # variances below this are treated as this


class ExpectedLogSumExp(RowIntegral):
    """``E[log sum_j exp(f_j)]`` for each row of independent normal f.

    Takes the means and variances (N x K). Returns the expectations (N) and their gradients with
    respect to the means and the variances (both N x K). Rows that are not finite give nan.
    """

    gufunc_signature = "(n,k),(n,k)->(n),(n,k),(n,k)"

    def make_node(self, mu, gamma):
        """Return the node for two matrices."""
        mu, gamma = (pt.as_tensor(v).astype("float64") for v in (mu, gamma))
        return Apply(self, [mu, gamma], self.outputs_of(mu))

    def perform(self, node, inputs, outputs):
        """Run the compiled loop."""
        # Imported here: numba takes a second to import.
        from pymc_vsgp.ops.backends import log_sum_exp_numba

        results = log_sum_exp_numba.log_sum_exp(*(np.ascontiguousarray(v) for v in inputs))
        for output, result in zip(outputs, results, strict=True):
            output[0] = result

    def perform_jax(self, mu, gamma):
        """Integrate in JAX; PyTensor traces this."""
        from pymc_vsgp.ops.backends.log_sum_exp_jax import log_sum_exp

        return log_sum_exp(mu, gamma)


def expected_log_sum_exp(mu, gamma) -> TensorVariable:
    """``E[log sum_j exp(f_j)]`` for independent normal f, on the last axis.

    Parameters
    ----------
    mu, gamma : tensor_like
        Means and variances of the functions, of one shape.
    """
    mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
    if mu.type.ndim == 2:
        return ExpectedLogSumExp()(mu, gamma)[0]
    flat = (x.reshape((-1, mu.shape[-1])) for x in (mu, gamma))
    return ExpectedLogSumExp()(*flat)[0].reshape(mu.shape[:-1], ndim=mu.type.ndim - 1)
