r"""Links that families share, and expectations under them.

A binary link maps f to a probability. It knows ``log p`` and ``log (1 - p)`` as functions of f, and
the expectation of each under N(mu, gamma).
"""

import numpy as np
import pytensor.tensor as pt

from pymc_vsgp.likelihoods import quadrature
from pymc_vsgp.likelihoods.quadrature import expectation
from pymc_vsgp.ops.expectations import CENTER, WIDTH, expected_log_ndtr, expected_softplus
from pymc_vsgp.ops.nodes import stack
from pymc_vsgp.ops.normal import log_ndtr, ndtr

_LARGEST, _ZERO = np.float64(200.0), np.float64(0.0)  # Python floats would be float32 constants


def safe_exp(x):
    """``exp(x)`` up to 200, its tangent beyond: finite, with a finite gradient, for every x."""
    # E[exp(f)] = exp(mu + gamma / 2) overflows early in an optimization, and the gradient is NaN
    # from there on. Beyond 200 the log density is below -1e86 either way, and a finite slope lets
    # the optimizer come back.
    return pt.exp(pt.minimum(x, _LARGEST)) * (1.0 + pt.maximum(x - _LARGEST, _ZERO))


def log_softplus(f):
    """``log(log(1 + exp(f)))``, linear on the left."""
    # Below -40 the two agree to the last bit, and the softplus would underflow further on.
    return pt.switch(f < -40.0, f, pt.log(pt.softplus(pt.maximum(f, -40.0))))


class BinaryLink:
    """Probability p of a success as a function of f."""

    name = ""
    symmetric = True  # 1 - p(f) = p(-f)
    bend = (0.0, np.pi)  # of log p; see quadrature

    def inverse(self, f):
        """Probability at f."""
        raise NotImplementedError

    def mean(self, mu, gamma):
        """``E[p]`` for f ~ N(mu, gamma)."""
        return pt.exp(self.log_mean(mu, gamma))

    def log_mean(self, mu, gamma):
        """``log E[p]`` for f ~ N(mu, gamma)."""
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        ndim, sizes = max(mu.ndim, gamma.ndim), quadrature.LEAN
        return quadrature.log_expectation(self.log_p, mu, gamma, ndim, self.bend, sizes=sizes)

    def log_p(self, f):
        """``log p``."""
        raise NotImplementedError

    def log_q(self, f):
        """``log(1 - p)``."""
        return self.log_p(-f)

    def expected_log_p(self, mu, gamma):
        """``E[log p]`` for f ~ N(mu, gamma)."""
        ndim = max(pt.as_tensor(mu).ndim, pt.as_tensor(gamma).ndim)
        return expectation(self.log_p, mu, gamma, ndim, bend=self.bend)

    def expected_log_q(self, mu, gamma):
        """``E[log(1 - p)]`` for f ~ N(mu, gamma)."""
        return self.expected_log_p(-mu, gamma)


def logistic_scales():
    """Scales of normals, and their shares: together the logistic distribution.

    It is a mixture of normals whose scale is twice a variable of Kolmogorov's distribution
    (Stefanski, 1991). The trapezoid rule in the logarithm of that has an error of 1e-11.
    """
    log_k = np.linspace(np.log(0.21), np.log(3.4), 18)
    k, j = np.exp(log_k), np.arange(1.0, 41.0)[:, None]
    density = k * np.sum((-1.0) ** (j + 1.0) * j**2 * np.exp(-2.0 * (j * k) ** 2), axis=0)
    return 2.0 * k, k * density / np.sum(k * density)


class Logit(BinaryLink):
    """``p = 1 / (1 + exp(-f))``."""

    name = "logit"

    def inverse(self, f):
        return pt.sigmoid(f)

    def log_mean(self, mu, gamma):
        """``log E[p]`` for f ~ N(mu, gamma), from a sum of normal distribution functions."""
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        scales, shares = (stack(v, max(mu.ndim, gamma.ndim)) for v in logistic_scales())
        # p = exp(f) (1 - p), so E[p] = exp(mu + gamma / 2) E[1 - p] with gamma added to the mean.
        # A small p comes from that: the error of the sum is relative to a probability near one.
        log_scale = mu + gamma / 2.0
        mean = pt.switch(log_scale < 0.0, -mu - gamma, mu)
        # In logarithms, because Phi of the far left is zero.
        each = np.log(shares) + log_ndtr(mean / pt.sqrt(scales**2 + gamma))
        return pt.logsumexp(each, axis=0) + pt.minimum(log_scale, _ZERO)

    def log_p(self, f):
        return -pt.softplus(-f)

    def expected_log_p(self, mu, gamma):
        return -expected_softplus(-mu, gamma)


class Probit(BinaryLink):
    """``p = Phi(f)``, the standard normal distribution function."""

    name = "probit"
    bend = CENTER, WIDTH

    def inverse(self, f):
        return ndtr(f)

    def log_mean(self, mu, gamma):
        """``log E[p]`` for f ~ N(mu, gamma)."""
        return log_ndtr(pt.as_tensor(mu) / pt.sqrt(1.0 + pt.as_tensor(gamma)))

    def log_p(self, f):
        return log_ndtr(f)

    def expected_log_p(self, mu, gamma):
        return expected_log_ndtr(mu, gamma)


class CLogLog(BinaryLink):
    """``p = 1 - exp(-exp(f))``: at least one event of a Poisson count with log rate f."""

    name, symmetric = "cloglog", False
    bend = (np.log(2.0 * np.pi), np.pi / 2.0)  # exp(-exp(f)) = 1

    def inverse(self, f):
        return -pt.expm1(-pt.exp(f))

    def log_p(self, f):
        # Beyond 30 on either side the limits hold to the last bit: f on the left, 0 on the right.
        rate = pt.exp(pt.clip(f, -30.0, 30.0))
        return pt.switch(f < -30.0, f, pt.log(-pt.expm1(-rate)))

    def log_q(self, f):
        return -pt.exp(f)

    def expected_log_q(self, mu, gamma):
        """``E[log(1 - p)]`` for f ~ N(mu, gamma), a log-normal mean."""
        return -safe_exp(mu + gamma / 2.0)


LOGIT = Logit()
BINARY_LINKS = {link.name: link for link in (LOGIT, Probit(), CLogLog())}


def find_link(name, links):
    """Link of that name, or ValueError listing what there is."""
    if name not in links:
        raise ValueError(
            f"There is no link {name!r} for this likelihood. Choose one of {sorted(links)}."
        )
    return links[name]
