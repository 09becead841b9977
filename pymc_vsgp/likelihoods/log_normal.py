"""Positive observations, normal on the log scale."""

import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, LogLink
from pymc_vsgp.likelihoods.gaussian import normal_logp


class LogNormal(LogLink):
    r"""Log-normal observations, :math:`\log y \sim N(f, \sigma^2)`.

    .. math:: E \log p(y | f) = \log N(\log y; \mu, \sigma^2) - \log y - \gamma / (2 \sigma^2)

    Parameters
    ----------
    sigma : tensor_like
        Standard deviation of log y.
    """

    rules = {"sigma": POSITIVE}
    of_spread = {"sigma": 1.0}
    support = POSITIVE

    def __init__(self, sigma):
        super().__init__(sigma=sigma)

    def log_prob(self, f, y):
        return normal_logp(pt.log(y) - f, self.sigma**2) - pt.log(y)

    def dist(self, f, **kwargs):
        return pm.LogNormal.dist(mu=f, sigma=self.sigma, **kwargs)

    def conditional_mean(self, f):
        return pt.exp(f + self.sigma**2 / 2.0)

    def expected_logp(self, mu, gamma, y):
        return self.log_prob(mu, y) - gamma / (2.0 * self.sigma**2)

    def log_predictive(self, mu, gamma, y):
        return normal_logp(pt.log(y) - mu, self.sigma**2 + gamma) - pt.log(y)
