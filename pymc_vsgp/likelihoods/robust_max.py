"""Classes, each the largest of the latent functions but for a rare error."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.likelihoods.base import Rule
from pymc_vsgp.likelihoods.classes import OfClasses, check_n_classes
from pymc_vsgp.ops.robust_max import largest_probability


class RobustMax(OfClasses):
    r"""The class whose latent function is largest, with probability ``1 - epsilon``.

    Any other class has the probability ``epsilon / (K - 1)``. With P the probability that the
    function of the observed class is the largest,

    .. math:: E \log p(y | f) = P \log(1 - \epsilon) + (1 - P) \log \frac{\epsilon}{K - 1}

    Only differences in the order of the functions count: their scale has no meaning of its own
    but through the kernel's variance, and no observation is more certain than epsilon allows.

    Parameters
    ----------
    n_classes : int
        Number of classes and of latent functions, K.
    epsilon : tensor_like
        Probability of an error, between 0 and 1.
    """

    rules = {"epsilon": Rule(lambda x: (x > 0) & (x < 1), "between 0 and 1")}
    takes_white_noise = True  # it makes the borders of classes soft

    def __init__(self, n_classes, epsilon=1e-3):
        self.n_classes = self.n_latent = check_n_classes(n_classes)
        super().__init__(epsilon=epsilon)

    def _log_probs(self):
        """Log probability of the largest, and of each other."""
        return pt.log1p(-self.epsilon), pt.log(self.epsilon) - np.log(self.n_classes - 1.0)

    def log_prob(self, f, y):
        hit, miss = self._log_probs()
        return self._known(y, pt.switch(pt.eq(pt.argmax(f, axis=-1), y), hit, miss))

    def conditional_probabilities(self, f):
        """Probability of each class given f, on the last axis."""
        largest = pt.eq(pt.argmax(f, axis=-1, keepdims=True), pt.arange(self.n_classes))
        epsilon = self.epsilon if self.epsilon.type.ndim == 0 else self.epsilon[..., None]
        return pt.switch(largest, 1.0 - epsilon, epsilon / (self.n_classes - 1.0))

    def dist(self, f, **kwargs):
        return pm.Categorical.dist(p=self.conditional_probabilities(f), **kwargs)

    def _largest(self, mu, gamma, y):
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        return largest_probability(mu, pt.broadcast_to(gamma, mu.shape), pt.cast(y, "int64"))

    def expected_logp(self, mu, gamma, y):
        hit, miss = self._log_probs()
        p = self._largest(mu, gamma, y)
        return self._known(y, miss + p * (hit - miss))

    def log_predictive(self, mu, gamma, y):
        other = self.epsilon / (self.n_classes - 1.0)
        return pt.log(other + self._largest(mu, gamma, y) * (1.0 - self.epsilon - other))

    def __repr__(self):
        """Show the constructor call."""
        return super().__repr__().replace("(", f"(n_classes={self.n_classes}, ", 1)
