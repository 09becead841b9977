"""Gumbel observations: maxima over blocks of time or space."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, Likelihood
from pymc_vsgp.likelihoods.links import safe_exp


class Gumbel(Likelihood):
    """Gumbel observations with mode f and scale beta: maxima of many measurements.

    Parameters
    ----------
    beta : float or tensor
        Scale. The standard deviation is ``pi / sqrt(6) * beta``.
    """

    in_units_of_f = True
    rules = {"beta": POSITIVE}
    of_spread = {"beta": 1.0}

    def __init__(self, beta):
        super().__init__(beta=beta)

    def log_prob(self, f, y):
        z = (y - f) / self.beta
        return -z - pt.exp(-z) - pt.log(self.beta)

    def dist(self, f, **kwargs):
        return pm.Gumbel.dist(mu=f, beta=self.beta, **kwargs)

    def conditional_mean(self, f):
        return f + np.float64(np.euler_gamma) * self.beta

    def mean(self, mu, gamma):
        return self.conditional_mean(mu)

    def bend(self, y):
        """Peak at y."""
        return y, self.beta

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for f ~ N(mu, gamma), from the moment generating function of f."""
        z = (y - mu) / self.beta
        return -z - safe_exp(-z + gamma / (2 * self.beta**2)) - pt.log(self.beta)
