"""Events of a Poisson process, without bins."""

import numpy as np
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import Likelihood, Rule, is_count
from pymc_vsgp.likelihoods.links import find_link
from pymc_vsgp.likelihoods.poisson import RATE_LINKS, Poisson


class PoissonProcess(Poisson):
    r"""Events at points of a continuous window, with intensity ``rate = link^-1(f)``.

    Its entries are the events, and then the nodes of a quadrature rule for the integral of the
    intensity over the window. Let y = 1 and w = 0 for an event; for a node y = 0 and w is the
    weight of the rule. The entries then sum to the log density of the pattern,

    .. math:: \sum_n y_n E \log rate(f_n) - w_n E\, rate(f_n)
              \approx \sum_{events} E \log rate(f(x)) - \int E\, rate(f(x))\, dx.

    ``vsgp.point_process(...).quadrature()`` makes such entries. A single one is not an
    observation. A draw of y is a Poisson count of mean ``w * rate``: 0 at an event, and at a node
    the events of the stretch of window around it. The sum over all entries is a draw of the number
    of events. Leaving one entry out, as :func:`loo` does, has no meaning here; bins have.

    Parameters
    ----------
    weights : tensor_like
        Weights of the quadrature rule, in units of length, area or volume; 0 for events.
    link : {"log", "square", "softplus"}
        ``rate = exp(f)``, ``f**2`` or ``log(1 + exp(f))``.
    """

    rules = {"weights": Rule(lambda x: x >= 0, "0 or positive, and finite")}
    support = Rule(is_count, "1 for an event and 0 for a node")

    def __init__(self, weights, link="log"):
        self.link = find_link(link, RATE_LINKS)
        Likelihood.__init__(self, weights=weights)

    @property
    def exposure(self):
        """What the rate is multiplied by, under the name that it has for counts."""
        return self.weights

    def _combine(self, rate, log_rate, y):
        return y * log_rate - self.weights * rate

    def bend(self, y):
        """Where the density falls off on the right; nowhere for an event."""
        if self.link.name == "log":
            weights = pt.switch(self.weights > 0.0, self.weights, 1.0)
            return pt.log((y + 1.0) / weights), np.pi / 2.0
        return super().bend(y)
