"""Positive observations with a constant coefficient of variation; the exponential is shape 1."""

import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, LogLink
from pymc_vsgp.likelihoods.links import safe_exp


class Gamma(LogLink):
    r"""Gamma observations of shape alpha and mean ``exp(f)``.

    .. math:: E \log p(y | f) = \alpha (\log \alpha - \mu) - \log \Gamma(\alpha)
              + (\alpha - 1) \log y - \alpha y \exp(-\mu + \gamma / 2)

    Parameters
    ----------
    alpha : tensor_like
        Shape; the coefficient of variation is ``1 / sqrt(alpha)``.
    """

    rules = {"alpha": POSITIVE}
    of_spread = {"alpha": -0.5}
    support = POSITIVE

    def __init__(self, alpha):
        super().__init__(alpha=alpha)

    def _combine(self, mu, inverse_mean, y):
        a = self.alpha
        const = a * pt.log(a) - pt.gammaln(a) + (a - 1.0) * pt.log(y)
        return const - a * mu - a * y * inverse_mean

    def log_prob(self, f, y):
        return self._combine(f, pt.exp(-f), y)

    def dist(self, f, **kwargs):
        return pm.Gamma.dist(alpha=self.alpha, beta=self.alpha * pt.exp(-f), **kwargs)

    def conditional_mean(self, f):
        return pt.exp(f)

    def expected_logp(self, mu, gamma, y):
        return self._combine(mu, safe_exp(-mu + gamma / 2.0), y)
