"""The log density of a sparse model, in plain numpy: nothing here comes from the library."""

import numpy as np

from scipy import stats
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

# The library's default, as a fraction of the prior variance.
JITTER = 1e-8


def ard_kernel(X, Y, lengthscales, variance):
    """Exponentiated quadratic kernel with one lengthscale a column."""
    difference = X[:, None, :] / lengthscales - Y[None, :, :] / lengthscales
    return variance * np.exp(-0.5 * np.sum(difference**2, axis=-1))


def moments(X, Xu, lengthscales, variance, mean, v, jitter=JITTER):
    """Mean and variance of f(X), given u = mean(Xu) + R v, by dense inverses."""
    Kuu = ard_kernel(Xu, Xu, lengthscales, variance)
    Kuu = Kuu + jitter * variance * np.eye(len(Xu))
    Kuf = ard_kernel(Xu, X, lengthscales, variance)
    u = mean(Xu) + cholesky(Kuu, lower=True) @ v
    weights = cho_solve(cho_factor(Kuu), Kuf)
    mu = mean(X) + weights.T @ (u - mean(Xu))
    gamma = variance - np.sum(Kuf * weights, axis=0)
    return mu, gamma, u


def joint_log_density(expected, v, log_prior_theta):
    """Target of the sampler in (v, theta): the whitened form, eq. 7 of Hensman et al. (2015)."""
    return np.sum(expected) + np.sum(stats.norm.logpdf(v)) + log_prior_theta


def collapsed_bound(X, y, Xu, lengthscales, variance, mean, sigma, jitter=JITTER):
    """Titsias (2009), from dense N x N matrices."""
    Kuu = ard_kernel(Xu, Xu, lengthscales, variance) + jitter * variance * np.eye(len(Xu))
    Kuf = ard_kernel(Xu, X, lengthscales, variance)
    A = solve_triangular(cholesky(Kuu, lower=True), Kuf, lower=True)
    Q = A.T @ A
    marginal = stats.multivariate_normal.logpdf(y, mean(X), Q + sigma**2 * np.eye(len(X)))
    return marginal - np.sum(variance - np.diag(Q)) / (2 * sigma**2)
