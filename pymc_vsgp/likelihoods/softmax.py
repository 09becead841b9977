r"""Classes by the softmax, with a deterministic expectation.

The expectation of the logarithm of a sum of exponentials is that of a maximum. With independent
standard Gumbel variables G,

.. math:: \log \sum_j e^{f_j} + \gamma_E = E \max_j (f_j + G_j), \qquad
          P(\max_j (f_j + G_j) < x) = \prod_j L_j(x)

with :math:`L_j` the distribution function of :math:`f_j + G_j`: for independent normal f what was
an integral over K functions is one over x. The Gumbel distribution is a mixture of 14 normals to
5e-7, so L is a mixture of normal distribution functions, whatever the variance of f is.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.classes import check_classes, check_n_classes, code_labels
from pymc_vsgp.likelihoods.links import ndtr
from pymc_vsgp.likelihoods.quadrature import TINY, stack

# exp(-exp(-x)) = sum_i p_i Phi((x - m_i) / s_i). Largest error 5.2e-7, and no larger for f + G.
_P, _M, _S = np.array(
    [
        [5.9056677828e-04, -1.8091492560e00, 2.5577693774e-01],
        [1.7465605513e-02, -1.3918804104e00, 3.0648391416e-01],
        [1.9792427388e-02, -1.1065601663e00, 2.9666367149e-01],
        [7.1488242766e-02, -8.2843482603e-01, 3.4589044399e-01],
        [8.0053306682e-02, -4.8446265139e-01, 3.7729366695e-01],
        [1.4120075862e-01, -1.7213352163e-01, 4.5123730295e-01],
        [1.4430671852e-01, 2.2370013036e-01, 5.2566559249e-01],
        [2.0768575052e-01, 6.1461204868e-01, 6.5427782963e-01],
        [1.3802573154e-01, 1.2153966999e00, 7.6303733664e-01],
        [1.0820356166e-01, 1.8187848240e00, 9.4032017531e-01],
        [4.8431245864e-02, 2.7010692409e00, 1.1236824713e00],
        [1.8046837830e-02, 3.7193130623e00, 1.3829020218e00],
        [4.2600949371e-03, 5.0213035720e00, 1.7489548842e00],
        [4.4915139717e-04, 6.6651766737e00, 2.3785898768e00],
    ]
).T
_P = _P / _P.sum()
_MEAN = np.float64(_P @ _M)
N_POINTS = 64
REACH = 6.0  # standard deviations of f
LEFT, RIGHT = np.float64(3.2), np.float64(18.5)  # where a Gumbel's tails are below 1e-8


def _mixture(x, mu, gamma, fn):
    """Sum over the mixture; x has the points on the first axis."""
    ndim = 1 + mu.type.ndim  # points, rows, functions
    p, m, s = (stack(c, ndim) for c in (_P, _M, _S))
    scale = pt.sqrt(s**2 + gamma)
    return (p * fn((x[..., None] - mu - m) / scale, scale)).sum(axis=0)


def gumbel_cdf(x, mu, gamma):
    """Distribution functions of f_j + G_j at the points x, for each function (last axis)."""
    return _mixture(x, mu, gamma, lambda z, scale: ndtr(z))


def points(mu, gamma, n_points=N_POINTS):
    """Points over which the maximum of f + G may be, and the step between them."""
    sd2 = REACH**2 * pt.maximum(gamma, np.float64(TINY))
    left = pt.max(mu - pt.sqrt(LEFT**2 + sd2), axis=-1)
    right = pt.max(mu + pt.sqrt(RIGHT**2 + sd2), axis=-1)
    unit = stack((np.arange(n_points) + 0.5) / n_points, mu.type.ndim - 1)
    # Chosen, not differentiated: the integrand is flat at both ends.
    left, right = disconnected_grad(left), disconnected_grad(right)
    return left + (right - left) * unit, right, (right - left) / n_points


def expected_logsumexp(mu, gamma):
    """``E[log sum_j exp(f_j)]`` for independent normal f, on the last axis."""
    x, right, step = points(mu, gamma)
    below = pt.exp(pt.log(gumbel_cdf(x, mu, gamma)).sum(axis=-1))
    return right - step * below.sum(axis=0) - _MEAN


class Softmax(Likelihood):
    r"""Classes with the probabilities ``exp(f_y) / sum_j exp(f_j)``.

    .. math:: E \log p(y | f) = \mu_y - E \log \sum_j e^{f_j}

    The second term is an integral over one variable, whatever the number of classes is; errors are
    below 3e-6 for three
    classes, whatever the variances are.

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
        """Log probability of y given f."""
        return self._of_class(f, y) - pt.logsumexp(f, axis=-1)

    def conditional_probabilities(self, f):
        """Probability of each class given f, on the last axis."""
        return pt.special.softmax(f, axis=-1)

    def dist(self, f, **kwargs):
        """PyMC distribution of y given f."""
        return pm.Categorical.dist(logit_p=f, **kwargs)

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for independent normal f."""
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        return self._of_class(mu, y) - expected_logsumexp(mu, gamma)

    def log_predictive(self, mu, gamma, y):
        r"""``log E[p(y | f)]`` for independent normal f.

        The probability that :math:`f_y + G_y` is the largest. Its density there is
        :math:`e^{\mu_y + \gamma_y / 2 - x}` times a distribution function with the mean
        :math:`\mu_y + \gamma_y`, which keeps small probabilities accurate.
        """
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        observed = self._is_class(y)
        tilted = pt.switch(observed, mu + gamma, mu)
        log_weight = self._of_class(mu + gamma / 2.0, y)
        x, _, step = points(tilted, gamma, 2 * N_POINTS)
        log_cdf = pt.log(gumbel_cdf(x, tilted, gamma)).sum(axis=-1)
        rare = pt.logsumexp(log_weight - x + log_cdf, axis=0) + pt.log(step)

        x, _, step = points(mu, gamma, 2 * N_POINTS)
        log_cdf = pt.log(gumbel_cdf(x, mu, gamma))
        density = _mixture(
            x, mu, gamma, lambda z, scale: pt.exp(-(z**2) / 2.0) / scale / np.sqrt(2.0 * np.pi)
        )
        log_terms = pt.switch(observed, pt.log(density), log_cdf).sum(axis=-1)
        common = pt.logsumexp(log_terms, axis=0) + pt.log(step)
        return pt.switch(common > np.log(1e-2), common, rare)

    def encode(self, y, classes=None):
        """Return labels as integers, and the names of the classes."""
        return code_labels(y, self.n_classes, classes, type(self).__name__)

    def check_observed(self, y):
        """Raise ValueError unless y is a class."""
        check_classes(self, y, self.n_classes)

    def __repr__(self):
        """Show the constructor call."""
        return f"Softmax(n_classes={self.n_classes})"
