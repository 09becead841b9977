r"""Moments of the function at data points, given its coefficients.

With waves :math:`\phi_j` and coefficients :math:`u_j \sim N(0, S_j)`

.. math:: \mu = m(X) + \Phi u, \qquad \gamma = \sum_{j\ \text{left out}} S_j,

where gamma is the variance of the waves that are left out, the same for every x.

Waves repeat after a period, and the function does not. The window is where they stand for it: the
range of the data, and a quarter of the gap that the period leaves on either side. Beyond it f
follows from its value at the nearest place p of the window alone, by the kernel on the plane,

.. math:: f(x) = m(x) + \rho(x) (f(p) - m(p)) + \epsilon(x), \qquad \rho(x) = k(x, p) / k(p, p),

with :math:`\epsilon` what regression on f(p) leaves of f: far away this is the prior.
"""

from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.engine.moments import Kernel, Moments, as_op, inline
from pymc_vsgp.inducing.fourier import Fourier
from pymc_vsgp.inducing.grids import Layout

__all__ = [
    "FeatureMoments",
    "Nearest",
    "conditional_feature_moments",
    "correlated_ends",
    "feature_moments",
    "joint_feature_moments",
    "plane_of",
    "short_period",
]

WRAPPED = 0.1  # correlation of the ends of the data, from which the torus shows


class FeatureMoments(OpFromGraph):
    """Moments at each input: ``[X, w, residual, window, *theta, *prior] -> [mu, gamma]``.

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
        process: str,
        **kwargs,
    ):
        super().__init__(*args, inline=True, on_unused_input="ignore", **kwargs)
        self.process = process
        self.features, self.mean, self.covariance, self.layout = features, mean, covariance, layout


def feature_moments(f, mean, residual) -> Moments:
    """Put the moments together."""
    gamma = pt.ones_like(mean) * residual
    return Moments((mean if f.type.ndim == 1 else mean[:, None]) + f, gamma)


class Nearest(NamedTuple):
    """The nearest places of the window, and how much f there says of f at the rows of X."""

    places: TensorVariable
    rho: TensorVariable
    """Exactly one within the window."""
    variance: TensorVariable
    """Of f on the plane."""

    @classmethod
    def to(cls, features: Fourier, X, window, plane) -> "Nearest":
        """Return the nearest places to the rows of X, where `plane` is the kernel."""
        places = pt.clip(X, window[0], window[1])
        origin = pt.zeros((1, features.n_columns))
        variance = plane(origin, origin)[0, 0]
        return cls(places, plane(X - places, origin)[:, 0] / variance, variance)

    def moments(self, features: Fourier, w, mean, residual) -> Moments:
        """Moments of f at each row on its own."""
        f = features.combine(features.waves(self.places), w)
        rho = self.rho if f.type.ndim == 1 else self.rho[:, None]
        mu, gamma = feature_moments(rho * f, mean, residual)
        return Moments(mu, self.rho**2 * gamma + (1.0 - self.rho**2) * self.variance)

    def covariance(self, X, plane, within) -> TensorVariable:
        """Covariance of f at the rows of X, from that at the places."""
        p, rho = self.places, self.rho
        center = pt.mean(p, axis=0)
        X, p = X - center, p - center
        across = rho * plane(X, p)
        rest = plane(X, X) - across - across.T + pt.outer(rho, rho) * plane(p, p)
        return pt.outer(rho, rho) * within + rest


def conditional_feature_moments(
    mean_at,
    cov_func,
    features: Fourier,
    X,
    w,
    residual,
    window,
    process: str,
    layout: Layout | None = None,
) -> Moments:
    """Mean and variance of f at each row of `X`, given the coefficients `w`.

    With a matrix w, one column for each of several functions with this kernel, mu has those
    columns too.
    """
    x, z = (pt.tensor(dtype="float64", shape=(None, X.type.shape[1])) for _ in range(2))
    mean, theta = as_op([x], [mean_at(x)])
    covariance, prior = as_op([x, z], [features.covariance(cov_func, x, z), cov_func(x, z)])
    arguments = [X, w, residual, window, *theta, *prior]
    inputs = [pt.tensor(dtype="float64", shape=(None, X.type.shape[1]))]
    inputs += [a.type() for a in arguments[1:]]
    x, w_, residual_, window_, *more = inputs
    (m,) = mean(x, *more[: len(theta)], return_list=True)
    nearest = Nearest.to(features, x, window_, plane_of(covariance, more[len(theta) :]))
    moments = nearest.moments(features, w_, m, residual_)
    op = FeatureMoments(
        inputs,
        list(moments),
        features=features,
        mean=mean,
        covariance=covariance,
        layout=layout,
        process=process,
    )
    return Moments(*op(*arguments, return_list=True))


def correlated_ends(features: Fourier, window, plane) -> TensorVariable:
    """Correlation of opposite ends of the data around the torus, in the input with the largest."""
    gap = 2.0 * (np.array(features.period) - (window[1] - window[0]))
    origin = pt.zeros((1, features.n_columns))
    return pt.max(plane(pt.diag(gap), origin)) / plane(origin, origin)[0, 0]


def short_period(name: str, correlation: float) -> str | None:
    """Say that the period of some coefficients is short, where it is."""
    if not correlation > WRAPPED:
        return None
    return (
        f"The period of {name!r} leaves too little room beyond the data: their ends are correlated "
        f"by {correlation:.2f} around it. Pass Fourier(period=...) longer than the range of X by "
        "some lengthscales, or use Fourier.for_data."
    )


def plane_of(covariance: Kernel, prior):
    """Return the kernel on the plane, from an Op of those on the torus and on the plane."""
    return lambda X, Z: inline(covariance, X, Z, *prior)[1]


def joint_feature_moments(mean_at, cov_func, features: Fourier, X, w, explained, window) -> Moments:
    """Mean and full covariance of f at the rows of `X`, where the waves explain `explained`."""
    nearest = Nearest.to(features, X, window, cov_func)
    mu, _ = nearest.moments(features, w, mean_at(X), np.float64(0.0))
    full = features.matrix(features.waves(nearest.places))
    within = features.covariance(cov_func, nearest.places, nearest.places)
    within = within - pt.dot(full * explained, full.T)
    return Moments(mu, nearest.covariance(X, cov_func, within))
