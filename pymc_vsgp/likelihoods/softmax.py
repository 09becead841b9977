r"""Classes by the softmax, with a deterministic expectation.

With independent standard Gumbel variables G, :math:`f_j + G_j` is the largest of all with the
probability of class j. For normal f the distribution function of each is a mixture of normal ones;
see :mod:`pymc_vsgp.ops.log_sum_exp`.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad

from pymc_vsgp.likelihoods.classes import OfClasses, check_n_classes
from pymc_vsgp.ops.log_sum_exp import expected_log_sum_exp, expected_softmax


class Softmax(OfClasses):
    r"""Classes with the probabilities ``exp(f_y) / sum_j exp(f_j)``.

    .. math:: E \log p(y | f) = \mu_y - E \log \sum_j e^{f_j}

    The second term is an integral over one variable, whatever the number of classes is. Its error
    is below 1e-7 for three classes and 3e-7 for ten, whatever the variances are.

    Parameters
    ----------
    n_classes : int
        Number of classes and of latent functions, K.
    """

    def __init__(self, n_classes):
        self.n_classes = self.n_latent = check_n_classes(n_classes)
        super().__init__()

    def _of_class(self, values, y):
        """Entry of the observed class on the last axis."""
        return (values * self._is_class(y)).sum(axis=-1)

    def _is_class(self, y):
        return pt.eq(pt.as_tensor(y)[..., None], pt.arange(self.n_classes))

    def log_prob(self, f, y):
        # Derivatives of `pt.logsumexp` take many points one by one.
        top = disconnected_grad(pt.max(f, axis=-1, keepdims=True))
        rest = pt.log(pt.exp(f - top).sum(axis=-1))
        return self._known(y, self._of_class(f, y) - top[..., 0] - rest)

    def conditional_probabilities(self, f):
        """Probability of each class given f, on the last axis."""
        return pt.special.softmax(f, axis=-1)

    def conditional_mean(self, f):
        return self.conditional_probabilities(f)

    def dist(self, f, **kwargs):
        return pm.Categorical.dist(logit_p=f, **kwargs)

    def expected_logp(self, mu, gamma, y):
        mu = pt.as_tensor(mu)
        gamma = pt.broadcast_to(gamma, mu.shape)
        return self._known(y, self._of_class(mu, y) - expected_log_sum_exp(mu, gamma))

    def log_predictive(self, mu, gamma, y):
        r"""``log E[p(y | f)]`` for independent normal f.

        Let k be the likeliest other class. Then :math:`p_y = e^{f_y - f_k} p_k`, so its expectation
        is :math:`e^{\mu_y - \mu_k + (\gamma_y + \gamma_k) / 2}` times that of :math:`p_k` where the
        means of f are :math:`\mu_y + \gamma_y` and :math:`\mu_k - \gamma_k`. A rare class comes
        from that, as the error is relative to the larger of the two.
        """
        mu = pt.as_tensor(mu)
        gamma = pt.broadcast_to(gamma, mu.shape)
        own = self._is_class(y)
        best = pt.argmax(pt.switch(own, -np.inf, mu), axis=-1)
        other = pt.eq(best[..., None], pt.arange(self.n_classes))
        turn = pt.cast(own, "float64") - pt.cast(other, "float64")
        log_scale = (turn * mu + (own | other) * gamma / 2.0).sum(axis=-1)
        p = (own * expected_softmax(mu, gamma)).sum(axis=-1)
        of_other = (other * expected_softmax(mu + turn * gamma, gamma)).sum(axis=-1)
        rare = pt.log(of_other) + log_scale
        return self._known(y, pt.switch(p > of_other, pt.log(p), rare))

    def mean(self, mu, gamma):
        """Probability of each class, on the last axis."""
        mu = pt.as_tensor(mu)
        return expected_softmax(mu, pt.broadcast_to(gamma, mu.shape))

    def __repr__(self):
        """Show the constructor call."""
        return f"Softmax(n_classes={self.n_classes})"
