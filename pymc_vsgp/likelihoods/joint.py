r"""The joint density of several outputs that share latent functions, given the inducing values.

Outputs are taken one after the other, each given those before. The functions given these are taken
as normal, with the mean and the variance that the density of the output has in them: assumed
density filtering [1]_. With normal noise that is exact. For others it says where the functions are
given all outputs, and Gauss-Hermite quadrature there is the integral over up to five of them.

References
----------
.. [1] Minka, T. P. (2001). A family of algorithms for approximate Bayesian inference. PhD thesis,
   MIT.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt

from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.ops.nodes import LEAST, stack, standard_deviation

N_NODES = {2: 16, 3: 8, 4: 5, 5: 4}  # by the number of functions, for each of them

# Functions in standard units: their mean, a root of their covariance, the log of its determinant.
Normal = tuple[TensorVariable, TensorVariable, TensorVariable]


def filtered(
    log_density: Callable, W, mu, gamma, n_outputs: int, precision: Callable | None = None
) -> tuple[TensorVariable, Normal]:
    """Log density of the outputs one after the other, and the functions given all of them.

    `log_density` takes the number of an output, and mean and variance of its function. There is a
    row for each input, and a column for each function. Of normal noise, `precision` takes the
    number of an output.
    """
    sd = standard_deviation(gamma)
    x, root = pt.zeros_like(mu), pt.eye(int(W.type.shape[1]))[None]
    total = log_det = pt.zeros_like(mu[:, 0])
    for p in range(n_outputs):
        loads = W[p] * sd
        c = (root * loads[:, :, None]).sum(axis=1)
        mean = (W[p] * mu + loads * x).sum(axis=1)
        variance = (c**2).sum(axis=1)
        if precision is None:
            variance = pt.maximum(variance, np.float64(LEAST))
        log_p = log_density(p, mean, variance)
        slope, of_variance = pt.grad(log_p.sum(), [mean, variance])
        # The second derivative in the mean: the density solves the heat equation.
        bend = 2.0 * of_variance - slope**2
        known = pt.isfinite(slope) & pt.isfinite(bend)  # not so where y is impossible
        slope, bend = (pt.switch(known, d, np.float64(0.0)) for d in (slope, bend))
        if precision is None:
            left = pt.sqrt(pt.maximum(1.0 + variance * bend, np.float64(1e-14)))
            less = (left - 1.0) / variance
        else:  # the same, but the difference would lose its digits where the noise is small
            left = 1.0 / pt.sqrt(1.0 + variance * precision(p))
            less = -precision(p) * left**2 / (1.0 + left)
        step = (root * c[:, None, :]).sum(axis=2)
        x = x + step * slope[:, None]
        root = root + step[:, :, None] * (c * less[:, None])[:, None, :]
        total, log_det = total + log_p, log_det + pt.log(left)
    return total, (x, root, log_det)


def integrated(log_prob: Callable, mu, gamma, given: Normal) -> TensorVariable:
    """Log of the integral of the density over the functions, by quadrature where its mass is.

    `log_prob` takes a list of the functions, with the nodes on a new first axis.
    """
    x, root, log_det = given
    number = int(mu.type.shape[1])
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES[number])
    z = [stack(g, 1) for g in np.meshgrid(*[nodes] * number, indexing="ij")]
    w = np.prod(np.meshgrid(*[weights / weights.sum()] * number, indexing="ij"), axis=0)
    # Sums over a short axis take numpy long.
    at = [x[:, k] + sum(z[q] * root[:, k, q] for q in range(number)) for k in range(number)]
    height = stack(np.log(w), 1) + sum(each**2 for each in z) / 2.0
    height = height - sum(each**2 for each in at) / 2.0
    sd = standard_deviation(gamma)
    height += log_prob([mu[:, k] + sd[:, k] * at[k] for k in range(number)])
    # Far out there may be NaN, as of 0 * inf.
    height = pt.switch(pt.lt(height, np.inf), height, -np.inf)
    return pt.logsumexp(height, axis=0) + log_det
