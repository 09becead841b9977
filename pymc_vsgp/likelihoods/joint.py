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

from pymc_vsgp.likelihoods.quadrature import log_expectation, region_nodes
from pymc_vsgp.ops.nodes import TINY, stack, standard_deviation

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
            variance = pt.maximum(variance, np.float64(TINY))
        log_p = log_density(p, mean, variance)
        slope, of_variance = pt.grad(log_p.sum(), [mean, variance])
        # The second derivative in the mean: the density solves the heat equation.
        bend = 2.0 * of_variance - slope**2
        known = pt.isfinite(slope) & pt.isfinite(bend)  # not so where y is impossible
        slope, bend = (pt.switch(known, d, np.float64(0.0)) for d in (slope, bend))
        if precision is None:
            left = pt.sqrt(pt.maximum(1.0 + variance * bend, np.float64(TINY)))
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


def of_one_function(each: Callable, mu, gamma, sizes=None) -> TensorVariable:
    """Log of the integral of the density over the one function of a row.

    `each` is the log density of each output, on the last axis, and takes the function with such an
    axis. Heavy tails keep the region wide that carries the integral, however narrow the peak. So
    the nodes are dense where the density is highest, and that is near the peak of some output.
    """

    def log_prob(f):
        return each(f[..., None]).sum(axis=-1)

    ndim = mu.type.ndim
    if sizes is not None:  # the density of each output is concave, and so is their product
        return log_expectation(log_prob, mu, gamma, ndim, sizes=sizes)
    sd = standard_deviation(gamma)

    def height(t):
        return log_prob(mu + sd * t) - t**2 / 2.0

    m, s = mu[..., None], sd[..., None]
    of_each = _peak(lambda t: each(m + s * t) - t**2 / 2.0, m, ndim + 1)
    t, width = (pt.moveaxis(v, -1, 0) for v in of_each)
    h = height(t)
    highest = pt.ge(h, pt.switch(pt.lt(h, np.inf), h, -np.inf).max(axis=0))
    t = pt.max(pt.switch(highest, t, -np.inf), axis=0)
    width = pt.min(pt.switch(highest, width, np.inf), axis=0)
    z, of_z = _peak(lambda z: height(t + width * z), mu, ndim)
    bend = mu + sd * (t + width * z), sd * width * of_z
    return log_expectation(log_prob, mu, gamma, ndim, bend)


def _peak(height: Callable, like, ndim: int):
    """Return where a function is highest, and about how wide it is there."""
    # Times this, the region of the rule ends 2 nats below the peak.
    t, _ = region_nodes(lambda t: 15.0 * height(t), like, 1.0, ndim, sizes=(97, 13, 7, 2))
    return t.mean(axis=0), (t[1] - t[0]) / 2.0


def folded(log_prob: Callable, mu, gamma) -> TensorVariable:
    """Log of the integral of a density over the one function of a row, even in that."""
    m = pt.abs(mu)
    both = 2.0 * m / standard_deviation(gamma) ** 2

    def log_fn(f):
        return log_prob(f) + pt.softplus(-both * f)

    return log_expectation(log_fn, m, gamma, 1, lower=np.float64(0.0))
