"""Counts that vary more than a Poisson's."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, WHOLE, LogLink
from pymc_vsgp.likelihoods.links import expected_softplus
from pymc_vsgp.likelihoods.quadrature import ONE_PEAK

POISSON = 1e9  # of alpha over the mean, with which counts are those of a Poisson


def log_rising(log_a, y):
    r"""``log Gamma(a + y) - log Gamma(a)`` for ``a = exp(log_a)``, whatever its size, and y >= 0.

    For a far above y by the expansion :math:`y \log a + y (y - 1) / 2 a - \ldots`, as the two terms
    would cancel; :math:`\log \Gamma(a) = \log \Gamma(a + 1) - \log a` where a underflows.
    """
    y = pt.as_tensor(y)
    edge = np.log(1e4) + pt.log1p(y)
    small, large = pt.exp(pt.minimum(log_a, edge)), pt.exp(-pt.maximum(log_a, edge))
    near = pt.gammaln(small + pt.maximum(y, 1.0)) - pt.gammaln(small + 1.0) + log_a
    pairs = y * (y - 1.0) * large / 2.0
    far = y * log_a + pairs * (1.0 - (2.0 * y - 1.0) * large / 6.0)
    return pt.switch(y < 0.5, 0.0, pt.switch(log_a < edge, near, far))


def overdispersed(mu, alpha, **kwargs):
    """Return the distribution of such counts."""
    return pm.NegativeBinomial.dist(mu=mu, alpha=that_numpy_takes(alpha, mu), **kwargs)


def that_numpy_takes(alpha, mu):
    """Return alpha between bounds beyond which counts of mean mu are the same.

    For a larger alpha the probability that numpy takes rounds to one, and all draws are zero. For a
    smaller one they are zero in any case.
    """
    return pt.maximum(pt.minimum(alpha, POISSON * mu), 1e-20)


class NegativeBinomial(LogLink):
    r"""Negative binomial counts of mean ``m = exposure * exp(f)``, variance ``m + m^2 / alpha``.

    With :math:`g = f + \log(exposure / \alpha)` the log odds,

    .. math:: E \log p(y | f) = y E g - (y + \alpha) E \log(1 + e^g)
              + \log \frac{\Gamma(y + \alpha)}{\Gamma(\alpha) y!}

    Parameters
    ----------
    alpha : tensor_like
        Shape (`size` in R): the larger, the closer to a Poisson.
    exposure : tensor_like
        Time or area that each count was collected over.
    """

    sizes: tuple | None = ONE_PEAK

    rules = {"alpha": POSITIVE, "exposure": POSITIVE}
    of_spread = {"alpha": -0.5}
    support = WHOLE

    def __init__(self, alpha, exposure=1.0):
        super().__init__(alpha=alpha, exposure=exposure)

    @property
    def shift(self):
        """What f lacks to be the log odds."""
        return pt.log(self.exposure) - pt.log(self.alpha)

    def _combine(self, log_odds, softplus, y):
        const = log_rising(pt.log(self.alpha), y) - pt.gammaln(y + 1.0)
        return const + y * log_odds - (y + self.alpha) * softplus

    def log_prob(self, f, y):
        g = f + self.shift
        return self._combine(g, pt.softplus(g), y)

    def dist(self, f, **kwargs):
        return overdispersed(self.conditional_mean(f), self.alpha, **kwargs)

    def conditional_mean(self, f):
        return self.exposure * pt.exp(f)

    def expected_logp(self, mu, gamma, y):
        g = mu + self.shift
        return self._combine(g, expected_softplus(g, gamma), y)

    def bend(self, y):
        """Where the log odds are 0; for `log_predictive`."""
        return -self.shift, np.pi
