"""Counts with more zeros than a Poisson's."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, WHOLE, LogLink, Rule
from pymc_vsgp.likelihoods.links import safe_exp


class ZeroInflatedPoisson(LogLink):
    r"""With probability psi a Poisson count of mean ``r = exposure * exp(f)``, otherwise 0.

    .. math:: \log p(0 | f) = \log(1 - \psi + \psi e^{-r}), \quad
              \log p(y | f) = \log \psi + \log \mathrm{Poisson}(y; r)

    The second is integrated in closed form.

    Parameters
    ----------
    psi : tensor_like
        Probability that the Poisson process is on (PyMC's convention), in (0, 1].
    exposure : tensor_like
        Time or area that each count was collected over.
    """

    support = WHOLE
    rules = {
        "psi": Rule(lambda x: (x > 0) & (x <= 1), "above 0 and at most 1"),
        "exposure": POSITIVE,
    }

    def __init__(self, psi, exposure=1.0):
        super().__init__(psi=psi, exposure=exposure)

    def _positive(self, mu, rate, y):
        """Log probability, or its mean, of a count above 0."""
        return pt.log(self.psi) + y * (mu + pt.log(self.exposure)) - rate - pt.gammaln(y + 1.0)

    def _zero(self, f):
        """Log probability of a 0."""
        return pt.logaddexp(pt.log1p(-self.psi), pt.log(self.psi) - self.exposure * safe_exp(f))

    def conditional_rate(self, f):
        """Mean of the Poisson process at f."""
        return self.exposure * pt.exp(f)

    def log_prob(self, f, y):
        positive = self._positive(f, self.conditional_rate(f), y)
        return pt.switch(pt.eq(y, 0.0), self._zero(f), positive)

    def dist(self, f, **kwargs):
        return pm.ZeroInflatedPoisson.dist(psi=self.psi, mu=self.conditional_rate(f), **kwargs)

    def conditional_mean(self, f):
        return self.psi * self.conditional_rate(f)

    def bend(self, y):
        """Where the Poisson's zeros become fewer than the others: exp(-r) = -(1 - psi) / psi."""
        odds = pt.log(self.psi) - pt.log(pt.maximum(1.0 - self.psi, np.float64(1e-16)))
        center = pt.log(odds**2 + np.pi**2) / 2.0 - pt.log(self.exposure)
        return center, pt.arctan2(np.pi, odds)

    def expected_logp(self, mu, gamma, y):
        zero = self._expect(self._zero, mu, gamma, y, self.bend(y))
        positive = self._positive(mu, self.exposure * safe_exp(mu + gamma / 2.0), y)
        return pt.switch(pt.eq(y, 0.0), zero, positive)
