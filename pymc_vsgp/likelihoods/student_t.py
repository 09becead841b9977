"""Normal noise with outliers."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad

from pymc_vsgp.likelihoods.base import POSITIVE, Located
from pymc_vsgp.likelihoods.gaussian import normal_logp
from pymc_vsgp.likelihoods.quadrature import region_nodes

LARGEST = 1e8  # nu: a t is a normal there, and its constant is a difference of large numbers
SIZES = (61, 13, 5, 96)  # of the search for the region, and of the rule on it


class StudentT(Located):
    r"""Student-t observations around f.

    .. math:: \log p(y | f) = -\tfrac{\nu + 1}{2} \log(1 + (y - f)^2 / (\nu \sigma^2))
              + \mathrm{const}

    Parameters
    ----------
    nu : tensor_like
        Degrees of freedom.
    sigma : tensor_like
        Scale of the noise.
    """

    rules = {"nu": POSITIVE, "sigma": POSITIVE}
    of_spread = {"sigma": 1.0}

    def __init__(self, nu, sigma):
        super().__init__(nu=nu, sigma=sigma)

    @property
    def log_norm(self):
        """Logarithm of the normalizing constant."""
        half = self._nu / 2.0
        return (
            pt.gammaln(half + 0.5)
            - pt.gammaln(half)
            - pt.log(np.pi * self._nu * self.sigma**2) / 2.0
        )

    @property
    def _nu(self):
        return pt.minimum(self.nu, LARGEST)

    def log_prob(self, f, y):
        squared = ((y - f) / self.sigma) ** 2 / self._nu
        return self.log_norm - (self._nu + 1.0) / 2.0 * pt.log1p(squared)

    def dist(self, f, **kwargs):
        return pm.StudentT.dist(nu=self.nu, mu=f, sigma=self.sigma, **kwargs)

    def bend(self, y):
        """Peak at y."""
        return y, self.sigma * pt.sqrt(self._nu)

    def log_predictive(self, mu, gamma, y):
        r"""``log E[p(y | f)]`` for f ~ N(mu, gamma).

        The t is a mixture of normals over a gamma-distributed precision, so in x = log precision

        .. math:: E p = \int Ga(e^x; \nu/2, \nu/2) e^x N(y; \mu, \gamma + \sigma^2 e^{-x}) dx,

        a smooth integral whatever gamma is. (In f it may have two peaks of unlike widths.)
        """
        mu, gamma, y = (pt.as_tensor(v) for v in (mu, gamma, y))
        half = self._nu / 2.0
        unit = pt.sqrt(2.0 / self._nu)

        def height(t):
            x = unit * t
            log_gamma = half * (pt.log(half) + x - pt.exp(x)) - pt.gammaln(half)
            return log_gamma + normal_logp(y - mu, gamma + self.sigma**2 * pt.exp(-x))

        # It lives around x = 0, or where the normal is as wide as the residual, or between.
        ndim = self._ndim(mu, gamma, y)
        t, slope = region_nodes(height, np.float64(0.0), unit, ndim, sizes=SIZES)
        t, log_w = disconnected_grad(t), disconnected_grad(pt.log(slope * unit))
        return pt.logsumexp(height(t) + log_w, axis=0)
