r"""Moments of the function at data points, given its coefficients.

With waves :math:`\phi_j` and coefficients :math:`u_j \sim N(0, S_j)`

.. math:: \mu = m(X) + \Phi u, \qquad \gamma = k(0) - \sum_j S_j,

where gamma is the variance of the waves that are left out, the same for every x.
"""

import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.inducing.fourier import Fourier
from pymc_vsgp.inducing.grids import Layout
from pymc_vsgp.potential.moments import FLOOR, Kernel, Moments, as_op

__all__ = [
    "FeatureMoments",
    "conditional_feature_moments",
    "feature_moments",
    "joint_feature_moments",
]


class FeatureMoments(OpFromGraph):
    """Moments at each input on its own: ``[X, w, residual, *theta, *prior] -> [mu, gamma]``.

    As `ConditionalMoments` an ordinary graph until a log density sees what it is made of. There the
    rows of X may lie in a way that makes sums of waves fast, as they did when the model was made.
    The last
    inputs are the parameters of the prior covariance, which joint draws at other inputs need.
    """

    def __init__(
        self,
        *args,
        features: Fourier,
        mean: Kernel,
        covariance: Kernel,
        layout: Layout | None,
        **kwargs,
    ):
        super().__init__(*args, inline=True, on_unused_input="ignore", **kwargs)
        self.features, self.mean, self.covariance, self.layout = features, mean, covariance, layout


def feature_moments(f, mean, residual) -> Moments:
    """Put the moments together."""
    gamma = pt.ones_like(mean) * residual
    return Moments((mean if f.type.ndim == 1 else mean[:, None]) + f, gamma)


def residual_of(total, explained) -> TensorVariable:
    """Return the variance that is left out; the sum may exceed the total by rounding."""
    return pt.maximum(total - explained, FLOOR * total)


def conditional_feature_moments(
    mean_at, cov_func, features: Fourier, X, w, residual, layout: Layout | None = None
) -> Moments:
    """Mean and variance of f at each row of `X`, given the coefficients `w`.

    With a matrix w, one column for each of several functions with this kernel, mu has those
    columns too.
    """
    x, z = (pt.tensor(dtype="float64", shape=(None, X.type.shape[1])) for _ in range(2))
    mean, theta = as_op([x], [mean_at(x)])
    covariance, prior = as_op([x, z], [features.covariance(cov_func, x, z), cov_func(x, z)])
    arguments = [X, w, residual, *theta, *prior]
    inputs = [pt.tensor(dtype="float64", shape=(None, X.type.shape[1]))]
    inputs += [a.type() for a in arguments[1:]]
    x, w_, residual_, *theta_ = inputs[: 3 + len(theta)]
    f = features.combine(features.waves(x), w_)
    (m,) = mean(x, *theta_, return_list=True)
    moments = feature_moments(f, m, residual_)
    op = FeatureMoments(
        inputs, list(moments), features=features, mean=mean, covariance=covariance, layout=layout
    )
    return Moments(*op(*arguments, return_list=True))


def joint_feature_moments(mean_at, cov_func, features: Fourier, X, w, explained) -> Moments:
    """Mean and full covariance of f at the rows of `X`, where the waves explain `explained`."""
    waves = features.waves(X)
    f = features.combine(waves, w)
    mean = mean_at(X) if f.type.ndim == 1 else mean_at(X)[:, None]
    full = features.matrix(waves)
    covariance = features.covariance(cov_func, X, X) - pt.dot(full * explained, full.T)
    return Moments(mean + f, covariance)
