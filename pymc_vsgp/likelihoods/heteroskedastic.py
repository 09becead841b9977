"""Noise whose scale is a function too: two latent functions, the mean and the log scale."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, Likelihood
from pymc_vsgp.likelihoods.gaussian import LOG_2PI, normal_logp
from pymc_vsgp.likelihoods.links import safe_exp
from pymc_vsgp.likelihoods.quadrature import LEAN, expectation, log_expectation
from pymc_vsgp.likelihoods.student_t import StudentT
from pymc_vsgp.ops.nodes import LEAST


class TwoFunctions(Likelihood):
    """A family of two latent functions: f, by default the mean, and g, of the noise."""

    n_latent = 2
    coupled = False  # what y says of location and of scale hardly depend on one another
    of_noise = "scale", np.exp

    def log_prob_at(self, f, g, y):
        """Log density of y given both functions."""
        raise NotImplementedError

    def log_prob(self, f, y):
        """Log density of y given the functions on the last axis of f."""
        return self.log_prob_at(f[..., 0], f[..., 1], y)

    def conditional_mean(self, f):
        return f[..., 0]

    def mean(self, mu, gamma):
        return mu[..., 0]

    def _columns(self, mu, gamma, y):
        mu, gamma, y = (pt.as_tensor(x) for x in (mu, gamma, y))
        columns = mu[..., 0], gamma[..., 0], mu[..., 1], gamma[..., 1]
        return *columns, y, self._ndim(columns[0], y)


class HeteroskedasticGaussian(TwoFunctions):
    r"""Normal observations around f, with the standard deviation ``exp(g)``.

    .. math:: E \log p(y | f, g) = -\tfrac12 \log 2\pi - \mu_g
              - \tfrac12 ((y - \mu_f)^2 + \gamma_f) \exp(-2 \mu_g + 2 \gamma_g)

    The predictive density is an integral over g alone.
    """

    of_noise = "standard deviation", np.exp

    def __init__(self):
        super().__init__()

    def log_prob_at(self, f, g, y):
        return -LOG_2PI / 2.0 - g - (y - f) ** 2 * pt.exp(-2.0 * g) / 2.0

    def dist(self, f, **kwargs):
        return pm.Normal.dist(mu=f[..., 0], sigma=pt.exp(f[..., 1]), **kwargs)

    def expected_logp(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, _ = self._columns(mu, gamma, y)
        precision = safe_exp(2.0 * (gamma_g - mu_g))
        return -LOG_2PI / 2.0 - mu_g - ((y - m) ** 2 + v) * precision / 2.0

    def log_predictive(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, ndim = self._columns(mu, gamma, y)

        def given_scale(g):
            return normal_logp(y - m, v + pt.exp(2.0 * g))

        return log_expectation(given_scale, mu_g, gamma_g, ndim)


class HeteroskedasticStudentT(TwoFunctions):
    r"""Student-t observations around f, with the scale ``exp(g)``.

    The expectation is :math:`E_g E_f`, by quadrature around y in f and around the scale of the
    residual in g: there is no closed form.

    Parameters
    ----------
    nu : tensor_like
        Degrees of freedom.
    """

    n_scales = 32

    rules = {"nu": POSITIVE}

    def __init__(self, nu):
        super().__init__(nu=nu)

    def _given_scale(self, g):
        # Unchecked: at nodes far out the scale of a constant g is 0.
        return StudentT(nu=self.nu, sigma=1.0).replace(sigma=pt.exp(g))

    def log_prob_at(self, f, g, y):
        return self._given_scale(g).log_prob(f, y)

    def dist(self, f, **kwargs):
        return pm.StudentT.dist(nu=self.nu, mu=f[..., 0], sigma=pt.exp(f[..., 1]), **kwargs)

    def expected_logp(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, ndim = self._columns(mu, gamma, y)

        def given_scale(g):
            return self._given_scale(g).expected_logp(m, v, y)

        residual = (y - m) ** 2 + pt.maximum(v, np.float64(LEAST))
        bend = pt.log(residual / self.nu) / 2.0, np.pi / 2.0
        return expectation(given_scale, mu_g, gamma_g, ndim, bend, self.n_scales)

    def log_predictive(self, mu, gamma, y):
        m, v, mu_g, gamma_g, y, ndim = self._columns(mu, gamma, y)

        def given_scale(g):
            return self._given_scale(g).log_predictive(m, v, y)

        return log_expectation(given_scale, mu_g, gamma_g, ndim, sizes=LEAN)
