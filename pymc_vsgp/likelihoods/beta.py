"""Proportions."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, Likelihood, Rule
from pymc_vsgp.likelihoods.links import LOGIT


class Beta(Likelihood):
    r"""Beta observations of mean ``m = 1 / (1 + exp(-f))`` and concentration nu.

    .. math:: \log p(y | f) = \log \frac{\Gamma(\nu)}{\Gamma(\nu m) \Gamma(\nu (1 - m))}
              + (\nu m - 1) \log y + (\nu (1 - m) - 1) \log(1 - y)

    Parameters
    ----------
    nu : tensor_like
        Concentration: the variance is ``m (1 - m) / (nu + 1)``.
    """

    n_nodes = 72  # the poles of two gamma functions, far apart when nu is large

    rules = {"nu": POSITIVE}
    of_spread = {"nu": -0.5}
    support = Rule(
        lambda y: (y > 0) & (y < 1),
        "above 0 and below 1",
        "Move exact zeros and ones inside, or model them apart.",
    )

    def __init__(self, nu):
        super().__init__(nu=nu)

    def log_prob(self, f, y):
        # log Gamma(x) = log Gamma(x + 1) - log x, with log x linear in f where x underflows.
        total = pt.gammaln(self.nu) + 2.0 * pt.log(self.nu) - pt.softplus(f) - pt.softplus(-f)
        a, b = self.nu * pt.sigmoid(f), self.nu * pt.sigmoid(-f)
        total -= pt.gammaln(a + 1.0) + pt.gammaln(b + 1.0)
        return total + (a - 1.0) * pt.log(y) + (b - 1.0) * pt.log1p(-y)

    def dist(self, f, **kwargs):
        a, b = self.nu * pt.sigmoid(f), self.nu * pt.sigmoid(-f)
        return pm.Beta.dist(alpha=a, beta=b, **kwargs)

    def conditional_mean(self, f):
        return pt.sigmoid(f)

    def mean(self, mu, gamma):
        return LOGIT.mean(mu, gamma)

    def bend(self, y):
        """Poles of the gamma functions: along +- i pi, from -log(1 + nu) to log(1 + nu)."""
        return 0.0, np.pi
