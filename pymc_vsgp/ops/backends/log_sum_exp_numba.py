"""`ExpectedLogSumExp` as one compiled loop, for numba and for Python."""

import math

import numba
import numpy as np

from pymc_vsgp.ops.backends.robust_max_numba import FAR, normal
from pymc_vsgp.ops.gumbel import LEFT, MEAN, MIXTURE, N_POINTS, REACH, RIGHT, TINY

# Raise this with any change below: PyTensor keeps what it compiled under this number.
VERSION = 1

WEIGHTS, CENTERS, WIDTHS = (np.ascontiguousarray(x) for x in MIXTURE)
N_NORMALS = len(WEIGHTS)
SMALL = 1e-17  # a factor below it makes the integrand vanish


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def one_row(mu, gamma, order, scale, cdf, d_x, d_var, dmu, dgamma):
    """Fill in the gradients for one datum, and return the expectation."""
    K = len(mu)
    dmu[:] = 0.0
    dgamma[:] = 0.0
    left, right, total = -np.inf, -np.inf, 0.0
    for j in range(K):
        total += mu[j] + gamma[j]
        var = max(gamma[j], TINY)
        left = max(left, mu[j] - math.sqrt(LEFT**2 + REACH**2 * var))
        right = max(right, mu[j] + math.sqrt(RIGHT**2 + REACH**2 * var))
        for i in range(N_NORMALS):
            scale[j, i] = 1.0 / math.sqrt(WIDTHS[i] ** 2 + gamma[j])
    if not math.isfinite(total):
        dmu[:] = math.nan
        dgamma[:] = math.nan
        return math.nan
    # The largest first: where it is surely above x, the others need not be looked at.
    top = 0
    for j in range(K):
        if mu[j] > mu[top]:
            top = j
    for j in range(K):
        order[j] = j
    order[0], order[top] = top, 0
    step, below = (right - left) / N_POINTS, 0.0
    for n in range(N_POINTS):
        x = left + (n + 0.5) * step
        product = 1.0
        for j in order:
            value, of_x, of_var = 0.0, 0.0, 0.0
            for i in range(N_NORMALS):
                s = scale[j, i]
                z = (x - mu[j] - CENTERS[i]) * s
                if z >= FAR:
                    value += WEIGHTS[i]
                elif z > -FAR:
                    p, slope = normal(z)
                    value += WEIGHTS[i] * p
                    slope *= WEIGHTS[i] * s
                    of_x += slope
                    of_var -= slope * z * s
            cdf[j], d_x[j], d_var[j] = value, of_x, of_var / 2.0
            product *= value
            if product < SMALL:
                break
        if product < SMALL:
            continue
        below += product
        for j in range(K):
            others = step * product / cdf[j]
            dmu[j] += others * d_x[j]
            dgamma[j] -= others * d_var[j]
    return right - step * below - MEAN


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def log_sum_exp(mu, gamma):
    """Return the expectation and its gradients; see `ExpectedLogSumExp`."""
    N, K = mu.shape
    if gamma.shape != mu.shape:
        raise ValueError("mu and gamma must have one shape.")
    mu, gamma = np.ascontiguousarray(mu), np.ascontiguousarray(gamma)
    value, dmu, dgamma = np.empty(N), np.empty((N, K)), np.empty((N, K))
    order, scale = np.empty(K, dtype=np.int64), np.empty((K, N_NORMALS))
    cdf, d_x, d_var = np.empty(K), np.empty(K), np.empty(K)
    for n in range(N):
        value[n] = one_row(mu[n], gamma[n], order, scale, cdf, d_x, d_var, dmu[n], dgamma[n])
    return value, dmu, dgamma
