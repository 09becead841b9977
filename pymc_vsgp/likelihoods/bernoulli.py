"""Two classes."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import Likelihood, Rule
from pymc_vsgp.likelihoods.links import BINARY_LINKS, find_link
from pymc_vsgp.likelihoods.quadrature import WIDE


class Bernoulli(Likelihood):
    """Zeros and ones, ``P(y = 1) = link^-1(f)``.

    Parameters
    ----------
    link : {"logit", "probit", "cloglog"}
        How f becomes a probability. For the logit the expectation is a short sum, right to 6e-9.
    """

    sizes = WIDE
    binary = True

    support = Rule(lambda y: np.isin(y, (0, 1)), "0 or 1", "Code the two classes as 0 and 1.")

    def __init__(self, link="logit"):
        self.link = find_link(link, BINARY_LINKS)
        super().__init__()

    def log_prob(self, f, y):
        if self.link.symmetric:
            return _of_two(y, self.link.log_p((2.0 * y - 1.0) * f))
        return _of_two(y, y * self.link.log_p(f) + (1.0 - y) * self.link.log_q(f))

    def dist(self, f, **kwargs):
        return pm.Bernoulli.dist(p=self.link.inverse(f), **kwargs)

    def conditional_mean(self, f):
        """Probability of a one given f."""
        return self.link.inverse(f)

    def mean(self, mu, gamma):
        return self.link.mean(mu, gamma)

    def expected_logp(self, mu, gamma, y):
        if self.link.symmetric:
            return _of_two(y, self.link.expected_log_p((2.0 * y - 1.0) * mu, gamma))
        log_p, log_q = self.link.expected_log_p(mu, gamma), self.link.expected_log_q(mu, gamma)
        return _of_two(y, y * log_p + (1.0 - y) * log_q)

    def log_predictive(self, mu, gamma, y):
        if not self.link.symmetric:
            return super().log_predictive(mu, gamma, y)
        return _of_two(y, self.link.log_mean((2.0 * y - 1.0) * mu, gamma))

    def bend(self, y):
        return self.link.bend

    def interval(self, y):
        if self.link.name != "probit":
            return None
        return pt.switch(pt.eq(y, 1), 0.0, -np.inf), pt.switch(pt.eq(y, 1), np.inf, 0.0)


def _of_two(y, log_p):
    """`log_p` where y is 0 or 1, else minus infinity."""
    return pt.switch(pt.eq(y * (1.0 - y), 0.0), log_p, -np.inf)
