"""Normal noise."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, Located

LOG_2PI = np.log(2.0 * np.pi)


def normal_logp(residual, variance):
    """Log density of N(0, variance)."""
    return -(LOG_2PI + pt.log(variance) + residual**2 / variance) / 2.0


APPROXIMATIONS = ("VFE", "tight", "FITC", "DTC")


class Gaussian(Located):
    r"""Normal observations, :math:`y \sim N(f, \sigma^2)`.

    .. math:: E \log p(y | f) = \log N(y; \mu, \sigma^2) - \gamma / (2 \sigma^2)

    Given the parameters the inducing values are Gaussian, so :func:`pymc_vsgp.sample` integrates
    them out.

    Parameters
    ----------
    sigma : tensor_like
        Standard deviation of the noise: one number, or one for each observation.
    approx : {"VFE", "tight", "FITC", "DTC"}
        What stands in for the exact density of an observation given the inducing values. "VFE" is
        the expectation above, the same as for all other families. "tight" replaces its last term by
        :math:`-\log(1 + \gamma / \sigma^2) / 2`, which is still a lower bound of the evidence and
        a closer one [1]_. "FITC" and "DTC" are those of ``pm.gp.MarginalApprox``,
        :math:`\log N(y; \mu, \sigma^2 + \gamma)` and :math:`\log N(y; \mu, \sigma^2)`: no bounds.

    References
    ----------
    .. [1] Titsias, M. (2025). New bounds for sparse variational Gaussian processes. ICML.
    """

    rules = {"sigma": POSITIVE}
    of_spread = {"sigma": 1.0}

    def __init__(self, sigma, approx="VFE"):
        if approx not in APPROXIMATIONS:
            raise ValueError(
                f"There is no approximation {approx!r}. Choose one of {list(APPROXIMATIONS)}."
            )
        self.approx = approx
        self.takes_white_noise = approx == "FITC"  # whose variances have it
        super().__init__(sigma=sigma)

    def log_prob(self, f, y):
        return normal_logp(y - f, self.sigma**2)

    def dist(self, f, **kwargs):
        return pm.Normal.dist(mu=f, sigma=self.sigma, **kwargs)

    @property
    def is_bound(self):
        """Whether the density of all observations is a lower bound of the evidence."""
        return self.approx in ("VFE", "tight")

    def left_out(self, gamma):
        """Twice what the variance gamma, in units of the noise's, takes from the log density."""
        return {"VFE": gamma, "tight": pt.log1p(gamma)}.get(self.approx, np.float64(0.0))

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for f ~ N(mu, gamma), or what stands in for it."""
        variance = self.sigma**2
        if self.approx == "FITC":
            return normal_logp(y - mu, variance + gamma)
        return normal_logp(y - mu, variance) - self.left_out(gamma / variance) / 2.0

    def _expected_over_means(self, mu, gamma, spread, y):
        variance = self.sigma**2 + (gamma if self.approx == "FITC" else np.float64(0.0))
        return self.expected_logp(mu, gamma, y) - spread / (2.0 * variance)

    def log_predictive(self, mu, gamma, y):
        return normal_logp(y - mu, self.sigma**2 + gamma)
