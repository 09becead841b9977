"""Waiting times."""

import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import LogLink, Rule
from pymc_vsgp.likelihoods.links import safe_exp
from pymc_vsgp.likelihoods.quadrature import ONE_PEAK


class Exponential(LogLink):
    r"""Exponential observations of mean ``exp(f)``.

    .. math:: E \log p(y | f) = -\mu - y \exp(-\mu + \gamma / 2)
    """

    sizes = ONE_PEAK

    support = Rule(lambda y: y >= 0, "0 or more, and finite")

    def __init__(self):
        super().__init__()

    def log_prob(self, f, y):
        return -f - y * pt.exp(-f)

    def dist(self, f, **kwargs):
        return pm.Exponential.dist(scale=pt.exp(f), **kwargs)

    def conditional_mean(self, f):
        return pt.exp(f)

    def expected_logp(self, mu, gamma, y):
        return -mu - y * safe_exp(-mu + gamma / 2.0)
