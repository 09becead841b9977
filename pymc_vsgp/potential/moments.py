r"""Moments of the function at data points, given the inducing values.

=====================================  ===========  ====================================
on paper                               in code      what
=====================================  ===========  ====================================
:math:`R R^\top = K_{uu} + j I`        ``R``        factor of the inducing covariance
:math:`v = R^{-1}(u - m(Z))`           ``v``        whitened inducing values
:math:`A = R^{-1} K_{uf}`              ``A``        M x N
:math:`\mu = m(X) + A^\top v`          ``mu``       mean of f given u
:math:`\gamma = k_{nn} - |A_n|^2`      ``gamma``    variance of f given u
=====================================  ===========  ====================================
"""

from typing import NamedTuple

import pytensor.tensor as pt

from pytensor.tensor.linalg import cholesky, solve_triangular
from pytensor.tensor.variable import TensorVariable

__all__ = ["JITTER", "Moments", "conditional_moments", "joint_moments", "prior_factor"]

JITTER = 1e-6
"""Default jitter, as a fraction of the mean prior variance at the inducing inputs."""

# Rounding can take a residual variance that is zero slightly below it.
FLOOR = 1e-12


class Moments(NamedTuple):
    """Mean and variance (or covariance) of f given u."""

    mu: TensorVariable
    gamma: TensorVariable


def prior_factor(cov_func, Xu: TensorVariable, jitter: float) -> TensorVariable:
    """Return R, the Cholesky factor of the prior covariance at the inducing inputs."""
    Kuu = cov_func(Xu)
    scale = pt.mean(pt.diagonal(Kuu))
    return cholesky(Kuu + jitter * scale * pt.eye(Xu.shape[0], dtype=Kuu.dtype), lower=True)


def conditional_moments(mean_func, cov_func, X, Xu, R, v) -> Moments:
    """Mean and variance of f at each row of `X`, given the whitened inducing values `v`."""
    A = solve_triangular(R, cov_func(Xu, X), lower=True, b_ndim=2)
    # Some kernels of pm.gp give their diagonal in float32.
    prior = cov_func(X, diag=True).astype("float64")
    mu = mean_func(X) + pt.dot(A.T, v)
    gamma = pt.maximum(prior - pt.sum(A**2, axis=0), FLOOR * prior)
    return Moments(mu, gamma)


def joint_moments(mean_func, cov_func, X, Xu, R, v) -> Moments:
    """Mean and full covariance of f at the rows of `X`, given `v`."""
    A = solve_triangular(R, cov_func(Xu, X), lower=True, b_ndim=2)
    return Moments(mean_func(X) + pt.dot(A.T, v), cov_func(X) - pt.dot(A.T, A))
