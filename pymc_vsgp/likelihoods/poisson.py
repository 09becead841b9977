"""Counts with a Poisson distribution, under three links."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, WHOLE, Likelihood
from pymc_vsgp.likelihoods.links import (
    expected_softplus,
    find_link,
    log_softplus,
    safe_exp,
)
from pymc_vsgp.likelihoods.quadrature import (
    ONE_PEAK,
    expectation,
    expected_log_square,
    folded_log_expectation,
)


class LogRate:
    """``rate = exp(f)``."""

    name = "log"

    def rate(self, f):
        """Rate at f."""
        return pt.exp(f)

    def log_rate(self, f, y):
        """Logarithm of the rate, or anything finite where y is 0 and it does not count."""
        return f

    def expected_rate(self, mu, gamma):
        """``E[rate]`` for f ~ N(mu, gamma)."""
        return safe_exp(mu + gamma / 2.0)

    def expected_log_rate(self, mu, gamma):
        """``E[log rate]`` for f ~ N(mu, gamma)."""
        return mu


class SquareRate:
    """``rate = f**2``: polynomial where the log link is exponential, but blind to f's sign."""

    name = "square"

    def rate(self, f):
        """Rate at f."""
        return f**2

    def log_rate(self, f, y):
        """Logarithm of the rate, or anything finite where y is 0 and it does not count."""
        return pt.log(pt.switch(pt.eq(y, 0.0), 1.0, f**2))

    def expected_rate(self, mu, gamma):
        """``E[rate]`` for f ~ N(mu, gamma)."""
        return mu**2 + gamma

    def expected_log_rate(self, mu, gamma):
        """``E[log rate]`` for f ~ N(mu, gamma)."""
        return expected_log_square(mu, gamma)


class SoftplusRate:
    """``rate = log(1 + exp(f))``: linear on the right."""

    name = "softplus"

    def rate(self, f):
        """Rate at f."""
        return pt.softplus(f)

    def log_rate(self, f, y):
        """Logarithm of the rate."""
        return log_softplus(f)

    def expected_rate(self, mu, gamma):
        """``E[rate]`` for f ~ N(mu, gamma)."""
        return expected_softplus(mu, gamma)

    def expected_log_rate(self, mu, gamma):
        """``E[log rate]`` for f ~ N(mu, gamma)."""
        ndim = max(pt.as_tensor(mu).ndim, pt.as_tensor(gamma).ndim)
        return expectation(log_softplus, mu, gamma, ndim, bend=(0.0, np.pi))


RATE_LINKS = {link.name: link for link in (LogRate(), SquareRate(), SoftplusRate())}


class Poisson(Likelihood):
    r"""Counts, ``y ~ Poisson(exposure * rate)`` with ``rate = link^-1(f)``.

    .. math:: E \log p(y | f) = y (E \log rate + \log e) - e\, E\, rate - \log y!

    with e the exposure. For the log link this is
    :math:`y (\mu + \log e) - e \exp(\mu + \gamma / 2) - \log y!`.

    Parameters
    ----------
    exposure : tensor_like
        Time or area that each count was collected over.
    link : {"log", "square", "softplus"}
        ``rate = exp(f)``, ``f**2`` or ``log(1 + exp(f))``.
    """

    sizes = ONE_PEAK

    rules = {"exposure": POSITIVE}
    support = WHOLE

    def __init__(self, exposure=1.0, link="log"):
        self.link = find_link(link, RATE_LINKS)
        super().__init__(exposure=exposure)

    def _combine(self, rate, log_rate, y):
        return y * (log_rate + pt.log(self.exposure)) - self.exposure * rate - pt.gammaln(y + 1.0)

    def log_prob(self, f, y):
        return self._combine(self.link.rate(f), self.link.log_rate(f, y), y)

    def dist(self, f, **kwargs):
        return pm.Poisson.dist(mu=self.exposure * self.link.rate(f), **kwargs)

    def conditional_mean(self, f):
        return self.exposure * self.link.rate(f)

    def mean(self, mu, gamma):
        if self.link.name == "log":
            return self.exposure * pt.exp(mu + gamma / 2.0)
        if self.link.name == "square":
            return self.exposure * self.link.expected_rate(mu, gamma)
        return super().mean(mu, gamma)  # the sum of normals misses a rate far below 1e-8

    def expected_logp(self, mu, gamma, y):
        mean, mean_log = self.link.expected_rate(mu, gamma), self.link.expected_log_rate(mu, gamma)
        return self._combine(mean, mean_log, y)

    def log_predictive(self, mu, gamma, y):
        if self.link.name != "square":
            return super().log_predictive(mu, gamma, y)
        mu, gamma, y = (pt.as_tensor(v) for v in (mu, gamma, y))
        ndim = self._ndim(mu, gamma, y)
        count = folded_log_expectation(lambda f: self.log_prob(f, y), mu, gamma, ndim)
        shrink = 1.0 + 2.0 * self.exposure * gamma
        none = -self.exposure * mu**2 / shrink - pt.log(shrink) / 2.0
        return pt.switch(pt.eq(y, 0.0), none, count)

    def bend(self, y):
        """Where the likelihood of the count falls off on the right; for `log_predictive`."""
        if self.link.name == "log":
            return pt.log((y + 1.0) / self.exposure), np.pi / 2.0
        return (0.0, np.pi) if self.link.name == "softplus" else None
