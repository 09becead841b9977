"""Proportions."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, Likelihood, Rule
from pymc_vsgp.likelihoods.links import LOGIT


class Beta(Likelihood):
    r"""Beta observations of mean ``m = 1 / (1 + exp(-f))`` and concentration phi.

    .. math:: \log p(y | f) = \log \frac{\Gamma(\phi)}{\Gamma(\phi m) \Gamma(\phi (1 - m))}
              + (\phi m - 1) \log y + (\phi (1 - m) - 1) \log(1 - y)

    Parameters
    ----------
    phi : tensor_like
        Concentration: the variance is ``m (1 - m) / (phi + 1)``.
    """

    n_nodes = 72  # the poles of two gamma functions, far apart when phi is large

    rules = {"phi": POSITIVE}
    of_spread = {"phi": -0.5}
    support = Rule(
        lambda y: (y > 0) & (y < 1),
        "above 0 and below 1",
        "Move exact zeros and ones inside, or model them apart.",
    )

    def __init__(self, phi):
        super().__init__(phi=phi)

    def log_prob(self, f, y):
        # log Gamma(x) = log Gamma(x + 1) - log x, with log x linear in f where x underflows.
        total = pt.gammaln(self.phi) + 2.0 * pt.log(self.phi) - pt.softplus(f) - pt.softplus(-f)
        a, b = self.phi * pt.sigmoid(f), self.phi * pt.sigmoid(-f)
        total -= pt.gammaln(a + 1.0) + pt.gammaln(b + 1.0)
        return total + (a - 1.0) * pt.log(y) + (b - 1.0) * pt.log1p(-y)

    def dist(self, f, **kwargs):
        a, b = self.phi * pt.sigmoid(f), self.phi * pt.sigmoid(-f)
        return pm.Beta.dist(alpha=a, beta=b, **kwargs)

    def conditional_mean(self, f):
        return pt.sigmoid(f)

    def mean(self, mu, gamma):
        return LOGIT.mean(mu, gamma)

    def bend(self, y):
        """Poles of the gamma functions: along +- i pi, from -log(1 + phi) to log(1 + phi)."""
        return 0.0, np.pi
