"""Times to an event, some of them not seen to the end."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import POSITIVE, LogLink, Rule
from pymc_vsgp.likelihoods.links import safe_exp


class Weibull(LogLink):
    r"""Weibull times of shape alpha and scale ``exp(f)``, possibly right-censored.

    With :math:`h = \alpha (\log y - f)` an event contributes
    :math:`\log \alpha - \log y + h - e^h`, a censored time :math:`-e^h`; and

    .. math:: E e^h = \exp(\alpha (\log y - \mu) + \alpha^2 \gamma / 2)

    Parameters
    ----------
    alpha : tensor_like
        Shape: the hazard rises with time if above 1, falls if below.
    censored : array_like of bool, optional
        True where the event had not happened by the time y. Random draws are times of events.
    """

    of_spread = {"alpha": -1.0}
    rules = {"alpha": POSITIVE, "censored": Rule(lambda x: np.isin(x, (0, 1)), "0 or 1")}
    support = POSITIVE

    def __init__(self, alpha, censored=None):
        if censored is None:
            super().__init__(alpha=alpha)
        else:
            super().__init__(alpha=alpha, censored=censored)

    @property
    def of_draws(self):
        """Times of events alone."""
        return self.replace(censored=0.0) if "censored" in self.params else self

    def _call_for_others(self, name):
        if name != "censored":
            return super()._call_for_others(name)
        return (
            "Pass likelihood=vsgp.Weibull(alpha), with censored of Xnew "
            "only to score times that are censored."
        )

    def _combine(self, h, hazard, y):
        event = pt.log(self.alpha) - pt.log(y) + h
        if "censored" in self.params:
            event = (1.0 - self.censored) * event
        return event - hazard

    def log_prob(self, f, y):
        """Log density of the event at y given f, or log probability that it comes after y."""
        h = self.alpha * (pt.log(y) - f)
        return self._combine(h, pt.exp(h), y)

    def dist(self, f, **kwargs):
        """PyMC distribution of the time of the event given f."""
        return pm.Weibull.dist(alpha=self.alpha, beta=pt.exp(f), **kwargs)

    def conditional_mean(self, f):
        """Mean time of the event given f."""
        return pt.exp(f + pt.gammaln(1.0 + 1.0 / self.alpha))

    def expected_logp(self, mu, gamma, y):
        h = self.alpha * (pt.log(y) - mu)
        return self._combine(h, safe_exp(h + self.alpha**2 * gamma / 2.0), y)

    def bend(self, y):
        """Where the scale is y; for `log_predictive`."""
        return pt.log(y), np.pi / (2.0 * self.alpha)
