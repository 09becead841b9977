r"""Classes by the softmax, with a deterministic expectation.

With independent standard Gumbel variables G, :math:`f_j + G_j` is the largest of all with the
probability of class j. For normal f the distribution function of each is a mixture of normal ones;
see :mod:`pymc_vsgp.ops.log_sum_exp`.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad

from pymc_vsgp.likelihoods.classes import OfClasses, check_n_classes
from pymc_vsgp.likelihoods.links import ndtr
from pymc_vsgp.ops.gumbel import LEFT, MIXTURE, N_POINTS, REACH, RIGHT, TINY
from pymc_vsgp.ops.log_sum_exp import expected_log_sum_exp, expected_softmax
from pymc_vsgp.ops.nodes import stack


def _mixture(x, mu, gamma, fn):
    """Sum over the mixture; x has the points on the first axis."""
    ndim = 1 + mu.type.ndim  # points, rows, functions
    p, m, s = (stack(c, ndim) for c in MIXTURE)
    scale = pt.sqrt(s**2 + gamma)
    return (p * fn((x[..., None] - mu - m) / scale, scale)).sum(axis=0)


def gumbel_cdf(x, mu, gamma):
    """Distribution functions of f_j + G_j at the points x, for each function (last axis)."""
    return _mixture(x, mu, gamma, lambda z, scale: ndtr(z))


def gumbel_density(x, mu, gamma):
    """Densities of f_j + G_j at the points x, for each function (last axis)."""
    return _mixture(
        x, mu, gamma, lambda z, scale: pt.exp(-(z**2) / 2.0) / scale / np.sqrt(2.0 * np.pi)
    )


def points(mu, gamma, n_points):
    """Points over which the maximum of f + G may be, and the step between them."""
    sd2 = REACH**2 * pt.maximum(gamma, np.float64(TINY))
    left = pt.max(mu - pt.sqrt(LEFT**2 + sd2), axis=-1)
    right = pt.max(mu + pt.sqrt(RIGHT**2 + sd2), axis=-1)
    unit = stack((np.arange(n_points) + 0.5) / n_points, mu.type.ndim - 1)
    # Chosen, not differentiated: the integrand is flat at both ends.
    left, right = disconnected_grad(left), disconnected_grad(right)
    return left + (right - left) * unit, (right - left) / n_points


class Softmax(OfClasses):
    r"""Classes with the probabilities ``exp(f_y) / sum_j exp(f_j)``.

    .. math:: E \log p(y | f) = \mu_y - E \log \sum_j e^{f_j}

    The second term is an integral over one variable, whatever the number of classes is. Its error
    is below 1e-7 for three classes and 3e-7 for ten, whatever the variances are.

    Parameters
    ----------
    n_classes : int
        Number of classes and of latent functions, K.
    """

    def __init__(self, n_classes):
        self.n_classes = self.n_latent = check_n_classes(n_classes)
        super().__init__()

    def _of_class(self, values, y):
        """Entry of the observed class on the last axis."""
        return (values * self._is_class(y)).sum(axis=-1)

    def _is_class(self, y):
        return pt.eq(pt.as_tensor(y)[..., None], pt.arange(self.n_classes))

    def log_prob(self, f, y):
        return self._known(y, self._of_class(f, y) - pt.logsumexp(f, axis=-1))

    def conditional_probabilities(self, f):
        """Probability of each class given f, on the last axis."""
        return pt.special.softmax(f, axis=-1)

    def dist(self, f, **kwargs):
        return pm.Categorical.dist(logit_p=f, **kwargs)

    def expected_logp(self, mu, gamma, y):
        mu = pt.as_tensor(mu)
        gamma = pt.broadcast_to(gamma, mu.shape)
        return self._known(y, self._of_class(mu, y) - expected_log_sum_exp(mu, gamma))

    def log_predictive(self, mu, gamma, y):
        r"""``log E[p(y | f)]`` for independent normal f.

        The probability that :math:`f_y + G_y` is the largest. Its density there is
        :math:`e^{\mu_y + \gamma_y / 2 - x}` times a distribution function with the mean
        :math:`\mu_y + \gamma_y`, which keeps small probabilities accurate.
        """
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        x, step = points(mu, gamma, 2 * N_POINTS)
        below = pt.log(gumbel_cdf(x, mu, gamma))
        others = pt.switch(self._is_class(y), np.float64(0.0), below).sum(axis=-1)
        m, v = (self._of_class(a, y)[..., None] for a in (mu, gamma))
        tilted = pt.log(gumbel_cdf(x, m + v, v))[..., 0] + (m + v / 2.0)[..., 0] - x
        rare = pt.logsumexp(tilted + others, axis=0) + pt.log(step)
        density = pt.log(gumbel_density(x, m, v))[..., 0]
        common = pt.logsumexp(density + others, axis=0) + pt.log(step)
        # So far below its mean as the largest v take it, a distribution function underflows.
        direct = pt.gt(common, np.log(1e-2)) | pt.gt(v[..., 0], 900.0)
        return self._known(y, pt.switch(direct, common, rare))

    def mean(self, mu, gamma):
        """Probability of each class, on the last axis."""
        mu = pt.as_tensor(mu)
        return expected_softmax(mu, pt.broadcast_to(gamma, mu.shape))

    def __repr__(self):
        """Show the constructor call."""
        return f"Softmax(n_classes={self.n_classes})"
