"""Ordered classes."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.checks import as_array, known_value
from pymc_vsgp.likelihoods.base import known_shape
from pymc_vsgp.likelihoods.classes import OfClasses, as_labels, code_labels
from pymc_vsgp.likelihoods.links import BINARY_LINKS, find_link

LINKS = {name: BINARY_LINKS[name] for name in ("logit", "probit")}


class Ordinal(OfClasses):
    r"""Ordered classes 0, 1, ..., K - 1, separated by K - 1 cut-points on the function's scale.

    .. math:: P(y = k | f) = F(c_k - f) - F(c_{k-1} - f), \quad c_{-1} = -\infty, c_{K-1} = \infty

    For the logit this is :math:`(1 - e^{a - b})\, s(b - f)\, s(f - a)` with a and b the cut-points
    on either side, so the expectation is a short sum.

    Parameters
    ----------
    cutpoints : tensor_like, shape (K - 1,)
        Increasing. As a random variable give it an ordered transform::

            pm.Normal(
                "c",
                0,
                2,
                shape=3,
                transform=pm.distributions.transforms.ordered,
                initval=[-1, 0, 1],
            )

        With the cut-points free, fix the mean of the process (the default, zero, does).
    link : {"logit", "probit"}
        The distribution F of the noise, of scale one.
    classes : sequence, optional
        Names of the classes from the lowest to the highest, where y has names that are not those of
        an ordered pandas ``Categorical``.
    """

    shared_params = ("cutpoints",)

    def __init__(self, cutpoints, link="logit", classes=None):
        self.link = find_link(link, LINKS)
        super().__init__(cutpoints=cutpoints)
        self.classes = None if classes is None else tuple(np.asarray(classes, object).tolist())
        if self.cutpoints.type.ndim != 1:
            raise ValueError(
                f"cutpoints has {self.cutpoints.type.ndim} dimensions, but it must be a vector. "
                "Pass K - 1 increasing numbers for K classes."
            )
        if self.classes is not None and self.n_classes not in (None, len(self.classes)):
            raise ValueError(
                f"There are {len(self.classes)} classes, but cut-points for {self.n_classes}. "
                "Pass one cut-point less than classes."
            )

    def check_params(self):
        """Raise ValueError if cut-points with values don't increase."""
        values = known_value(self.cutpoints)
        if values is None or values.ndim != 1:
            return
        if not (len(values) and np.isfinite(values).all() and (np.diff(values) > 0).all()):
            raise ValueError(
                f"cutpoints is {values.tolist()}, but cut-points must be finite and increase. "
                "Sort them, and drop repeated ones."
            )

    @property
    def n_classes(self):
        """Number of classes, where it is known."""
        (n,) = known_shape(self.cutpoints)
        return None if n is None else n + 1

    def _known(self, y, log_p):
        # The number is a graph: within the sum over the data cut-points are of any number.
        return pt.switch(pt.ge(y, 0) & pt.le(y, self.cutpoints.shape[0]), log_p, -np.inf)

    def _edges(self, y):
        """Cut-points below and above, and whether there are any."""
        y = pt.cast(y, "int64")
        last = self.cutpoints.shape[0]
        lower = self.cutpoints[pt.clip(y - 1, 0, last - 1)]
        upper = self.cutpoints[pt.clip(y, 0, last - 1)]
        return lower, upper, pt.gt(y, 0), pt.lt(y, last)

    def _logit(self, log_below, log_above, lower, upper, has_lower, has_upper):
        inside = has_lower & has_upper
        width = pt.switch(inside, upper - lower, 1.0)
        between = pt.log(-pt.expm1(-width))
        return (
            pt.switch(inside, between, 0.0)
            + pt.switch(has_upper, log_below, 0.0)
            + pt.switch(has_lower, log_above, 0.0)
        )

    def log_prob(self, f, y):
        if self.link.name == "logit":
            edges = lower, upper, _, _ = self._edges(y)
            log_p = self._logit(-pt.softplus(f - upper), -pt.softplus(lower - f), *edges)
            return self._known(y, log_p)
        return self._difference(y, f, self.link.log_p)

    def _difference(self, y, f, log_cdf):
        """Log probability from the distribution function of a symmetric noise."""
        lower, upper, has_lower, has_upper = self._edges(y)
        # F(b) - F(a), on the side of zero where neither is near one.
        b, a = upper - f, lower - f
        flip = a + b > 0.0
        inside = has_lower & has_upper
        lo = pt.switch(inside, pt.switch(flip, -b, a), -1.0)
        # The larger one is all that there is below the first cut-point or above the last.
        hi = pt.switch(inside, pt.switch(flip, -a, b), pt.switch(has_upper, b, -a))
        log_hi = log_cdf(hi)
        below = pt.switch(inside, log_cdf(lo) - log_hi, -1.0)
        log_p = log_hi + pt.switch(inside, pt.log(-pt.expm1(below)), 0.0)
        return self._known(y, log_p)

    def conditional_probabilities(self, f):
        """Probability of each class given f, on a new last axis."""
        below = self.link.inverse(self.cutpoints - f[..., None])
        zero, one = pt.zeros_like(below[..., :1]), pt.ones_like(below[..., :1])
        return pt.diff(pt.concatenate([zero, below, one], axis=-1), axis=-1)

    def conditional_mean(self, f):
        return self.conditional_probabilities(f)

    def dist(self, f, **kwargs):
        return pm.Categorical.dist(p=self.conditional_probabilities(f), **kwargs)

    def log_predictive(self, mu, gamma, y):
        return self._difference(y, pt.as_tensor(mu), lambda x: self.link.log_mean(x, gamma))

    def expected_logp(self, mu, gamma, y):
        if self.link.name != "logit":
            return super().expected_logp(mu, gamma, y)
        mu = pt.as_tensor(mu)
        edges = lower, upper, _, _ = self._edges(y)
        link = self.link
        log_p = self._logit(
            link.expected_log_p(upper - mu, gamma), link.expected_log_p(mu - lower, gamma), *edges
        )
        return self._known(y, log_p)

    def interval(self, y):
        if self.link.name != "probit":
            return None
        lower, upper, has_lower, has_upper = self._edges(y)
        return pt.switch(has_lower, lower, -np.inf), pt.switch(has_upper, upper, np.inf)

    def _ndim(self, *args):
        return max(pt.as_tensor(x).ndim for x in args)

    def bend(self, y):
        """Between the cut-points, or at the only one."""
        lower, upper, has_lower, has_upper = self._edges(y)
        inside = has_lower & has_upper
        center, width = self.link.bend
        one_side = pt.switch(has_upper, upper - center, lower + center)
        return pt.switch(inside, (lower + upper) / 2.0, one_side), width

    def encode(self, y, classes=None):
        """Return labels as integers in the order of the classes; integers as they are."""
        classes = classes if self.classes is None else self.classes
        kind = getattr(y, "dtype", None)
        ordered = getattr(kind, "ordered", None)  # None unless categorical
        if ordered is None and as_array(y, "y").dtype.kind not in "OUST":
            if classes is None or isinstance(classes[0], str):
                return y, None
            y = pd.Categorical(as_labels(y))
        elif classes is None and not ordered:
            raise ValueError(
                "Ordinal needs the order of the classes, which these labels of y do not have. "
                "Pass the labels to Ordinal from the lowest to the highest as classes=[...], or "
                "y as an ordered pandas Categorical."
            )
        elif kind is not None and ordered and classes is not None:
            shared = [c for c in classes if c in kind.categories]
            if shared != [c for c in kind.categories if c in shared]:
                raise ValueError(
                    f"y has the classes in the order {list(kind.categories)}, and Ordinal in the "
                    f"order {list(classes)}. Make them the same, or drop one of the two."
                )
        return code_labels(y, self.n_classes, classes, "Ordinal")
