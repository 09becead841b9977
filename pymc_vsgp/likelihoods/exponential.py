"""Waiting times."""

import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import LogLink, Rule
from pymc_vsgp.likelihoods.links import safe_exp


class Exponential(LogLink):
    r"""Exponential observations of mean ``exp(f)``.

    .. math:: E \log p(y | f) = -\mu - y \exp(-\mu + \gamma / 2)
    """

    support = Rule(lambda y: y >= 0, "0 or more, and finite")

    def __init__(self):
        super().__init__()

    def log_prob(self, f, y):
        """Log density of y given f."""
        return -f - y * pt.exp(-f)

    def dist(self, f, **kwargs):
        """PyMC distribution of y given f."""
        return pm.Exponential.dist(scale=pt.exp(f), **kwargs)

    def conditional_mean(self, f):
        """Mean of y given f."""
        return pt.exp(f)

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for f ~ N(mu, gamma)."""
        return -mu - y * safe_exp(-mu + gamma / 2.0)
