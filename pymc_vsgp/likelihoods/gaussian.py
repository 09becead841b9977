"""Normal noise."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import Likelihood, check_positive

LOG_2PI = np.log(2.0 * np.pi)


def normal_logp(residual, variance):
    """Log density of N(0, variance)."""
    return -(LOG_2PI + pt.log(variance) + residual**2 / variance) / 2.0


class Gaussian(Likelihood):
    r"""Normal observations, :math:`y \sim N(f, \sigma^2)`.

    .. math:: E \log p(y | f) = \log N(y; \mu, \sigma^2) - \gamma / (2 \sigma^2)

    Parameters
    ----------
    sigma : tensor_like
        Standard deviation of the noise.
    """

    def __init__(self, sigma):
        check_positive(sigma=sigma)
        super().__init__(sigma=sigma)

    def log_prob(self, f, y):
        """Log density of y given f."""
        return normal_logp(y - f, self.sigma**2)

    def dist(self, f, **kwargs):
        """PyMC distribution of y given f."""
        return pm.Normal.dist(mu=f, sigma=self.sigma, **kwargs)

    def conditional_mean(self, f):
        """Mean of y given f."""
        return f

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for f ~ N(mu, gamma)."""
        return normal_logp(y - mu, self.sigma**2) - gamma / (2.0 * self.sigma**2)

    def log_predictive(self, mu, gamma, y):
        """``log E[p(y | f)]`` for f ~ N(mu, gamma)."""
        return normal_logp(y - mu, self.sigma**2 + gamma)
