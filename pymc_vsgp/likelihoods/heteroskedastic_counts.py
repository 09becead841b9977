"""Counts whose dispersion, or whose share of zeros, is a function too."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import expit

from pymc_vsgp.likelihoods.base import POSITIVE, WHOLE
from pymc_vsgp.likelihoods.binomial import check_successes, trials
from pymc_vsgp.likelihoods.heteroskedastic import TwoFunctions
from pymc_vsgp.likelihoods.links import LOGIT, expected_softplus, safe_exp
from pymc_vsgp.likelihoods.negative_binomial import log_rising, overdispersed
from pymc_vsgp.likelihoods.poisson import Poisson
from pymc_vsgp.likelihoods.quadrature import LEAN, expectation, log_expectation


class Dispersed(TwoFunctions):
    """A family that takes two-dimensional quadrature: g outside, f inside."""

    n_inner, n_outer = 28, 28

    def expected_logp(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, ndim = self._columns(mu, gamma, y)

        def given_dispersion(g):
            bend, n = self.bend_at(g), self.n_inner
            return expectation(lambda f: self.log_prob_at(f, g, y), m, v, ndim + 1, bend, n)

        # Poles are along +- i pi, and nodes near those that are the nearest to the mean.
        bend = pt.clip(mu_g, *self.poles(m, y)), np.float64(np.pi)
        return expectation(given_dispersion, mu_g, gamma_g, ndim, bend, self.n_outer)

    def log_predictive(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, ndim = self._columns(mu, gamma, y)

        def given_dispersion(g):
            return log_expectation(
                lambda f: self.log_prob_at(f, g, y), m, v, ndim + 1, self.bend_at(g), sizes=LEAN
            )

        return log_expectation(given_dispersion, mu_g, gamma_g, ndim, sizes=LEAN)

    def bend_at(self, g):
        """Where the log density bends in f, given g."""
        raise NotImplementedError

    def poles(self, m, y):
        """From where to where in g the log density has poles, where f is about m."""
        raise NotImplementedError


class HeteroskedasticNegativeBinomial(Dispersed):
    r"""Negative binomial counts of mean ``m = exposure * exp(f)`` and ``alpha = exp(g)``.

    Their variance is :math:`m + m^2 e^{-g}`: where g is large they are Poisson.

    Parameters
    ----------
    exposure : tensor_like
        Time or area that each count was collected over.
    """

    of_noise = "alpha", np.exp
    rules = {"exposure": POSITIVE}
    support = WHOLE

    def __init__(self, exposure=1.0):
        super().__init__(exposure=exposure)

    def log_prob_at(self, f, g, y):
        odds = f + pt.log(self.exposure) - g
        # exp(g) softplus(odds), which is exp(f) where exp(g) overflows.
        far = odds < -30.0
        rate = pt.exp(pt.switch(far, f + pt.log(self.exposure), 0.0))
        softplus = pt.softplus(odds)
        none = pt.switch(far, rate, pt.exp(pt.switch(far, 0.0, g)) * softplus)
        return log_rising(g, y) - pt.gammaln(y + 1.0) + y * (odds - softplus) - none

    def dist(self, f, **kwargs):
        return overdispersed(self.conditional_mean(f), pt.exp(f[..., 1]), **kwargs)

    def conditional_mean(self, f):
        return self.exposure * pt.exp(f[..., 0])

    def mean(self, mu, gamma):
        return self.conditional_mean(mu + gamma / 2.0)

    def bend_at(self, g):
        """Where the log odds are 0."""
        return g - pt.log(self.exposure), np.pi

    def poles(self, m, y):
        """Of gamma functions from 0 to log(y), and where the log odds are 0."""
        even = m + pt.log(self.exposure)
        return pt.minimum(even, np.float64(0.0)), pt.maximum(even, pt.log1p(y))


class HeteroskedasticBetaBinomial(Dispersed):
    r"""Successes out of n trials of a probability that varies.

    The probability follows a beta distribution of mean ``1 / (1 + exp(-f))`` and concentration
    ``exp(g)``: where g is large they are binomial.

    Parameters
    ----------
    n : tensor_like
        Number of trials: one number, or one for each observation.
    """

    of_noise = "concentration", np.exp
    rules = {"n": WHOLE}

    def __init__(self, n):
        super().__init__(n=n)

    def log_prob_at(self, f, g, y):
        choose = pt.gammaln(self.n + 1.0) - pt.gammaln(y + 1.0) - pt.gammaln(self.n - y + 1.0)
        log_a, log_b = g - pt.softplus(-f), g - pt.softplus(f)
        successes, failures = log_rising(log_a, y), log_rising(log_b, self.n - y)
        return choose + successes + failures - log_rising(g, self.n)

    def dist(self, f, **kwargs):
        p, total = f[..., 0], pt.clip(f[..., 1], -550.0, 600.0)  # of their logarithms
        a, b = (pt.exp(pt.maximum(total - pt.softplus(x), -600.0)) for x in (-p, p))
        return pm.BetaBinomial.dist(alpha=a, beta=b, n=pt.cast(self.n, "int64"), **kwargs)

    def conditional_mean(self, f):
        return self.n * pt.sigmoid(f[..., 0])

    def mean(self, mu, gamma):
        return self.n * LOGIT.mean(mu[..., 0], gamma[..., 0])

    def log_predictive(self, mu, gamma, y):
        return pt.switch(pt.le(y, self.n), super().log_predictive(mu, gamma, y), -np.inf)

    def bend_at(self, g):
        """Along +- i pi, for log(1 + exp(f))."""
        return 0.0, np.pi

    def poles(self, m, y):
        """Of gamma functions from 0 to log(n), and of those of the smaller share."""
        return np.float64(0.0), pt.log1p(self.n) + pt.softplus(pt.abs(m))

    def check_observed(self, y):
        check_successes(self, y, trials(self))

    def check_values(self, y):
        check_successes(self, y, np.max(trials(self)))


class HeteroskedasticZeroInflatedPoisson(TwoFunctions):
    r"""A Poisson count of mean ``exposure * exp(f)``, but 0 with probability ``1 / (1 + exp(-g))``.

    .. math:: \log p(0) = g + \log(1 + e^{-g - r}) - \log(1 + e^g), \quad
              \log p(y) = \log \mathrm{Poisson}(y; r) - \log(1 + e^g)

    with r the Poisson's mean. Expectations are in closed form, but for that over f where y is 0,
    which is one integral.

    Parameters
    ----------
    exposure : tensor_like
        Time or area that each count was collected over.
    """

    of_noise = "probability of a structural zero", expit
    rules = {"exposure": POSITIVE}
    support = WHOLE

    def __init__(self, exposure=1.0):
        super().__init__(exposure=exposure)

    @property
    def poisson(self):
        """The count where there is one."""
        return Poisson(exposure=self.exposure)

    def log_prob_at(self, f, g, y):
        zero = g + pt.softplus(-g - self.exposure * safe_exp(f))
        count = self.poisson.log_prob(f, y)
        return pt.switch(pt.eq(y, 0.0), zero, count) - pt.softplus(g)

    def dist(self, f, **kwargs):
        rate = self.exposure * pt.exp(f[..., 0])
        return pm.ZeroInflatedPoisson.dist(psi=pt.sigmoid(-f[..., 1]), mu=rate, **kwargs)

    def conditional_mean(self, f):
        return self.exposure * pt.exp(f[..., 0]) * pt.sigmoid(-f[..., 1])

    def mean(self, mu, gamma):
        """``E[y]``: the two functions are independent."""
        counted = LOGIT.mean(-mu[..., 1], gamma[..., 1])
        return self.poisson.mean(mu[..., 0], gamma[..., 0]) * counted

    def expected_logp(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, ndim = self._columns(mu, gamma, y)

        def more_than_inflated(f):
            return expected_softplus(-(mu_g + self.exposure * safe_exp(f)), gamma_g)

        # exp(f) + g = +- i pi, less sharp if g varies
        bend = (
            pt.log(mu_g**2 + np.pi**2) / 2.0 - pt.log(self.exposure),
            pt.arctan2(np.pi, -mu_g),
        )
        zero = mu_g + expectation(more_than_inflated, m, v, ndim, bend)
        count = self.poisson.expected_logp(m, v, y)
        return pt.switch(pt.eq(y, 0.0), zero, count) - expected_softplus(mu_g, gamma_g)

    def log_predictive(self, mu, gamma, y):
        """``log E[p(y | f, g)]``: the two functions are independent."""
        m, v, mu_g, gamma_g, y, _ = self._columns(mu, gamma, y)
        inflated = LOGIT.log_mean(mu_g, gamma_g)
        count = LOGIT.log_mean(-mu_g, gamma_g) + self.poisson.log_predictive(m, v, y)
        return pt.switch(pt.eq(y, 0.0), pt.logaddexp(inflated, count), count)
