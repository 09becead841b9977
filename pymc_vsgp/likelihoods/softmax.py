r"""Classes by the softmax, with a deterministic expectation.

The expectation of the logarithm of a sum of exponentials is that of a maximum. With independent
standard Gumbel variables G,

.. math:: \log \sum_j e^{f_j} + \gamma_E = E \max_j (f_j + G_j), \qquad
          P(\max_j (f_j + G_j) < x) = \prod_j L_j(x)

with :math:`L_j` the distribution function of :math:`f_j + G_j`: for independent normal f what was
an integral over K functions is one over x. The Gumbel distribution is a mixture of 20 normals to
1e-8, so L is a mixture of normal distribution functions, whatever the variance of f is.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad

from pymc_vsgp.likelihoods.classes import OfClasses, check_n_classes
from pymc_vsgp.likelihoods.links import ndtr
from pymc_vsgp.likelihoods.quadrature import TINY, stack

# exp(-exp(-x)) = sum_i p_i Phi((x - m_i) / s_i). Largest error 1.2e-8, and no larger for f + G.
_P, _M, _S = np.array(
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


def gumbel_density(x, mu, gamma):
    """Densities of f_j + G_j at the points x, for each function (last axis)."""
    return _mixture(
        x, mu, gamma, lambda z, scale: pt.exp(-(z**2) / 2.0) / scale / np.sqrt(2.0 * np.pi)
    )


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
        """Log probability of y given f."""
        return self._known(y, self._of_class(f, y) - pt.logsumexp(f, axis=-1))

    def conditional_probabilities(self, f):
        """Probability of each class given f, on the last axis."""
        return pt.special.softmax(f, axis=-1)

    def dist(self, f, **kwargs):
        """PyMC distribution of y given f."""
        return pm.Categorical.dist(logit_p=f, **kwargs)

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for independent normal f."""
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        return self._known(y, self._of_class(mu, y) - expected_logsumexp(mu, gamma))

    def log_predictive(self, mu, gamma, y):
        r"""``log E[p(y | f)]`` for independent normal f.

        The probability that :math:`f_y + G_y` is the largest. Its density there is
        :math:`e^{\mu_y + \gamma_y / 2 - x}` times a distribution function with the mean
        :math:`\mu_y + \gamma_y`, which keeps small probabilities accurate.
        """
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        x, _, step = points(mu, gamma, 2 * N_POINTS)
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
        """Probability of each class, on the last axis: the integrands have most in common."""
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        x, _, step = points(mu, gamma, 2 * N_POINTS)
        log_cdf = pt.log(pt.maximum(gumbel_cdf(x, mu, gamma), np.float64(1e-300)))
        others = log_cdf.sum(axis=-1, keepdims=True) - log_cdf
        return step[..., None] * (gumbel_density(x, mu, gamma) * pt.exp(others)).sum(axis=0)

    def __repr__(self):
        """Show the constructor call."""
        return f"Softmax(n_classes={self.n_classes})"
