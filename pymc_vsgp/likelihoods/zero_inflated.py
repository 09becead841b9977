"""Counts with more zeros than a Poisson's, or a negative binomial's."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, WHOLE, LogLink, Rule
from pymc_vsgp.likelihoods.links import safe_exp
from pymc_vsgp.likelihoods.negative_binomial import NegativeBinomial, that_numpy_takes

SHARE = Rule(lambda x: (x > 0) & (x <= 1), "above 0 and at most 1")


def log_odds(psi):
    """``log(psi / (1 - psi))``, finite for psi = 1."""
    return pt.log(psi) - pt.log(pt.maximum(1.0 - psi, np.float64(1e-16)))


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
    rules = {"psi": SHARE, "exposure": POSITIVE}

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
        odds = log_odds(self.psi)
        center = pt.log(odds**2 + np.pi**2) / 2.0 - pt.log(self.exposure)
        return center, pt.arctan2(np.pi, odds)

    def expected_logp(self, mu, gamma, y):
        zero = self._expect(self._zero, mu, gamma, y, self.bend(y))
        positive = self._positive(mu, self.exposure * safe_exp(mu + gamma / 2.0), y)
        return pt.switch(pt.eq(y, 0.0), zero, positive)


class ZeroInflatedNegativeBinomial(NegativeBinomial):
    r"""With probability psi a `NegativeBinomial` count of mean ``exposure * exp(f)``, otherwise 0.

    With :math:`g = f + \log(exposure / \alpha)`,

    .. math:: \log p(0 | f) = \log(1 - \psi + \psi (1 + e^g)^{-\alpha}), \quad
              \log p(y | f) = \log \psi + \log \mathrm{NegativeBinomial}(y; f)

    Parameters
    ----------
    psi : tensor_like
        Probability that the count process is on (PyMC's convention), in (0, 1].
    alpha : tensor_like
        Shape (`size` in R): the larger, the closer to `ZeroInflatedPoisson`.
    exposure : tensor_like
        Time or area that each count was collected over.
    """

    n_nodes = 81  # zeros have a bend where counts begin, and one where those that are off take over
    sizes = None  # and may have two peaks: the count process is on, or off

    rules = {"psi": SHARE, "alpha": POSITIVE, "exposure": POSITIVE}

    def __init__(self, psi, alpha, exposure=1.0):
        super(NegativeBinomial, self).__init__(psi=psi, alpha=alpha, exposure=exposure)

    def _zero(self, f):
        """Log probability of a 0."""
        on = pt.log(self.psi) - self.alpha * pt.softplus(f + self.shift)
        return pt.logaddexp(pt.log1p(-self.psi), on)

    def log_prob(self, f, y):
        on = pt.log(self.psi) + super().log_prob(f, y)
        return pt.switch(pt.eq(y, 0.0), self._zero(f), on)

    def dist(self, f, **kwargs):
        mu = super().conditional_mean(f)
        alpha = that_numpy_takes(self.alpha, mu)
        return pm.ZeroInflatedNegativeBinomial.dist(self.psi, mu=mu, alpha=alpha, **kwargs)

    def conditional_mean(self, f):
        return self.psi * super().conditional_mean(f)

    def expected_logp(self, mu, gamma, y):
        zero = self._expect(self._zero, mu, gamma, y, self.bend(y))
        on = pt.log(self.psi) + super().expected_logp(mu, gamma, y)
        return pt.switch(pt.eq(y, 0.0), zero, on)

    def bend(self, y):
        """Where the zeros of the counts become fewer than the others.

        There ``(1 + exp(g))^alpha = -psi / (1 - psi)``. For alpha below 1 no g is as near as those
        of ``exp(g) = -1``.
        """
        a, b = log_odds(self.psi) / self.alpha, np.pi / self.alpha
        top = pt.maximum(a, 0.0)
        real, imaginary = pt.exp(a - top) * pt.cos(b) - pt.exp(-top), pt.exp(a - top) * pt.sin(b)
        center = top + pt.log(real**2 + imaginary**2) / 2.0
        near = pt.eq(y, 0.0) & (self.alpha > 1.0)
        center = pt.switch(near, center, 0.0)
        width = pt.switch(near, pt.arctan2(imaginary, real), np.pi)
        return center - self.shift, width
