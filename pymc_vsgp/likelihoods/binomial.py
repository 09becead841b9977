"""Successes out of n trials."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.checks import known_value
from pymc_vsgp.likelihoods.base import WHOLE, Likelihood, is_count, require
from pymc_vsgp.likelihoods.links import BINARY_LINKS, find_link
from pymc_vsgp.likelihoods.quadrature import ONE_PEAK


class Binomial(Likelihood):
    r"""Successes out of n trials, each with probability ``p = link^-1(f)``.

    .. math:: E \log p(y | f) = y E \log p + (n - y) E \log(1 - p) + \log \binom{n}{y}

    Parameters
    ----------
    n : tensor_like
        Number of trials: one number, or one for each observation.
    link : {"logit", "probit", "cloglog"}
        How f becomes a probability. For the logit the expectation is a short sum, right to 6e-9.
    """

    sizes = ONE_PEAK

    rules = {"n": WHOLE}

    def __init__(self, n, link="logit"):
        self.link = find_link(link, BINARY_LINKS)
        super().__init__(n=n)

    def log_choose(self, y):
        """Logarithm of the binomial coefficient."""
        return pt.gammaln(self.n + 1.0) - pt.gammaln(y + 1.0) - pt.gammaln(self.n - y + 1.0)

    def log_prob(self, f, y):
        successes, failures = y * self.link.log_p(f), (self.n - y) * self.link.log_q(f)
        return successes + failures + self.log_choose(y)

    def dist(self, f, **kwargs):
        return pm.Binomial.dist(n=pt.cast(self.n, "int64"), p=self.link.inverse(f), **kwargs)

    def conditional_mean(self, f):
        return self.n * self.link.inverse(f)

    def mean(self, mu, gamma):
        return self.n * self.link.mean(mu, gamma)

    def expected_logp(self, mu, gamma, y):
        log_p, log_q = self.link.expected_log_p(mu, gamma), self.link.expected_log_q(mu, gamma)
        return y * log_p + (self.n - y) * log_q + self.log_choose(y)

    def log_predictive(self, mu, gamma, y):
        return pt.switch(pt.le(y, self.n), super().log_predictive(mu, gamma, y), -np.inf)

    def bend(self, y):
        return self.link.bend

    def check_observed(self, y):
        check_successes(self, y, trials(self))

    def check_values(self, y):
        check_successes(self, y, np.max(trials(self)))


def trials(likelihood):
    """Return the numbers of trials, which are infinite where they depend on random variables."""
    known = known_value(likelihood.n)
    return np.inf if known is None else known


def check_successes(likelihood, y, n):
    """Raise ValueError unless y is a whole number from 0 to n."""
    require(likelihood, y, is_count(y) & (y <= n), "a whole number from 0 to n")
