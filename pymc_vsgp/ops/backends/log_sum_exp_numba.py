"""`ExpectedLogSumExp` as one compiled loop, for numba and for Python."""

import math

import numba
import numpy as np

from pymc_vsgp.ops.backends.robust_max_numba import FAR, normal
from pymc_vsgp.ops.gumbel import (
    LEFT,
    MEAN,
    MIXTURE,
    MOST_POINTS,
    N_POINTS,
    REACH,
    RIGHT,
    RULES,
    STEP,
    TINY,
)
from pymc_vsgp.ops.log_sum_exp import SERIES

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 5

WEIGHTS, CENTERS, WIDTHS = (np.ascontiguousarray(x) for x in MIXTURE)
N_NORMALS = len(WEIGHTS)
SMALL = 1e-17  # a factor below it makes the integrand vanish

LIMITS = np.array(list(RULES))
N_NODES = np.array([len(nodes) for nodes, _ in RULES.values()])
NODES, SHARES = (
    np.array([np.pad(rule[i], (0, N_NORMALS - len(rule[i]))) for rule in RULES.values()])
    for i in range(2)
)
FLAT = 1e-2  # below it exp(-t) is its series, and moments of t need no nodes
NONE = 40.0  # exp(-t) beyond it is none


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def of_mixture(x, scale):
    """Return P(f + G < x + E f), its derivative in x and twice that in the variance of f."""
    value, of_x, of_var = 0.0, 0.0, 0.0
    for i in range(N_NORMALS):
        s = scale[i]
        z = (x - CENTERS[i]) * s
        if z >= FAR:
            value += WEIGHTS[i]
        elif z > -FAR:
            p, slope = normal(z)
            value += WEIGHTS[i] * p
            slope *= WEIGHTS[i] * s
            of_x += slope
            of_var -= slope * z * s
    return value, of_x, of_var


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def of_nodes(t, growth, rule, moment):
    """Return the same from t = exp(-x), by nodes, where t grows by `growth`.

    `moment` is the mean growth: that of its powers are powers of it.
    """
    if t < FLAT:
        a, b, c, d = t * moment, t**2 * moment**4, t**3 * moment**9, t**4 * moment**16
        value = 1.0 - a + b / 2.0 - c / 6.0 + d / 24.0
        return value, a - b + c / 2.0 - d / 6.0, -a + 2.0 * b - 1.5 * c + d / 1.5
    value, of_x, of_var = 0.0, 0.0, 0.0
    for i in range(N_NODES[rule]):
        s = t * growth[i]
        if s < NONE:
            p = SHARES[rule, i] * math.exp(-s)
            value += p
            p *= s
            of_x += p
            of_var += p * (s - 1.0)
    return value, of_x, of_var


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def by_series(mu, gamma, p, dmu, dgamma):
    """Fill in the gradients for one datum of small variances, and return the expectation."""
    K, largest, total, a, b = len(mu), mu.max(), 0.0, 0.0, 0.0
    for j in range(K):
        p[j] = math.exp(mu[j] - largest)
        total += p[j]
    squares, with_a, with_b, cubes = 0.0, 0.0, 0.0, 0.0
    for j in range(K):
        p[j] /= total
        g, q = gamma[j], p[j]
        a += g * q
        b += g * q**2
        squares += g**2 * q * (1.0 + q * (-6.0 + 8.0 * q))
        with_a += g**2 * q * (-3.0 + q * (36.0 - 72.0 * q))
        with_b += g**2 * q * (6.0 + q * (-108.0 + 288.0 * q))
        cubes += g**3 * q * (1.0 + q * (-28.0 + q * (136.0 - 192.0 * q)))
    value = (a - b) / 2.0 + (4.0 * a * b - a**2 - 6.0 * b**2 + squares) / 8.0
    third = 2.0 * a**3 - 18.0 * a**2 * b + 72.0 * a * b**2 - 120.0 * b**3
    value += (third + a * with_a + b * with_b + cubes) / 48.0
    third = 6.0 * a**2 - 36.0 * a * b + 72.0 * b**2 + with_a
    of_a = 0.5 + (4.0 * b - 2.0 * a) / 8.0 + third / 48.0
    third = -18.0 * a**2 + 144.0 * a * b - 360.0 * b**2 + with_b
    of_b = -0.5 + (4.0 * a - 12.0 * b) / 8.0 + third / 48.0
    mean = 0.0
    for j in range(K):
        g, q = gamma[j], p[j]
        third = a * (-6.0 + q * (72.0 - 144.0 * q)) + b * (12.0 + q * (-216.0 + 576.0 * q))
        third += 3.0 * g * (1.0 + q * (-28.0 + q * (136.0 - 192.0 * q)))
        second = (1.0 + q * (-6.0 + 8.0 * q)) / 4.0
        dgamma[j] = q * (of_a + of_b * q + g * (second + third / 48.0))
        third = a * (-3.0 + q * (72.0 - 216.0 * q)) + b * (6.0 + q * (-216.0 + 864.0 * q))
        third += g * (1.0 + q * (-56.0 + q * (408.0 - 768.0 * q)))
        second = (1.0 + q * (-12.0 + 24.0 * q)) / 8.0
        dmu[j] = g * (of_a + 2.0 * of_b * q + g * (second + third / 48.0))
        mean += q * dmu[j]
    for j in range(K):
        dmu[j] = p[j] * (1.0 + dmu[j] - mean)
    return largest + math.log(total) + value


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def one_row(mu, gamma, order, rule, scale, t, moment, cdf, d_x, d_var, dmu, dgamma):
    """Fill in the gradients for one datum, and return the expectation."""
    K = len(mu)
    dmu[:] = 0.0
    dgamma[:] = 0.0
    left, right = -np.inf, -np.inf
    for j in range(K):
        var = max(gamma[j], TINY)
        left = max(left, mu[j] - math.sqrt(LEFT**2 + REACH**2 * var))
        right = max(right, mu[j] + math.sqrt(RIGHT**2 + REACH**2 * var))
    n_points = int(min(max(N_POINTS, math.ceil((right - left) / STEP)), MOST_POINTS))
    step, below = (right - left) / n_points, 0.0
    fall = math.exp(-step)
    for j in range(K):
        rule[j] = np.searchsorted(LIMITS, gamma[j])
        if rule[j] == len(LIMITS):
            for i in range(N_NORMALS):
                scale[j, i] = 1.0 / math.sqrt(WIDTHS[i] ** 2 + gamma[j])
            continue
        var = max(gamma[j], TINY)
        sd, moment[j] = math.sqrt(var), math.exp(var / 2.0)
        for i in range(N_NODES[rule[j]]):
            scale[j, i] = math.exp(sd * NODES[rule[j], i])
        t[j] = math.exp(mu[j] - left + 0.5 * step)
    # The largest first: where it is surely above x, the others need not be looked at.
    top = 0
    for j in range(K):
        if mu[j] > mu[top]:
            top = j
    for j in range(K):
        order[j] = j
    order[0], order[top] = top, 0
    for n in range(n_points):
        x = left + (n + 0.5) * step
        for j in range(K):
            t[j] *= fall
        product = 1.0
        for j in order:
            if rule[j] == len(LIMITS):
                value, of_x, of_var = of_mixture(x - mu[j], scale[j])
            else:
                value, of_x, of_var = of_nodes(t[j], scale[j], rule[j], moment[j])
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
    order, rule = np.empty(K, dtype=np.int64), np.empty(K, dtype=np.int64)
    scale, t, moment = np.empty((K, N_NORMALS)), np.zeros(K), np.empty(K)
    cdf, d_x, d_var = np.empty(K), np.empty(K), np.empty(K)
    for n in range(N):
        if not math.isfinite(mu[n].sum() + gamma[n].sum()):
            value[n], dmu[n], dgamma[n] = math.nan, math.nan, math.nan
        elif gamma[n].max() <= SERIES:
            value[n] = by_series(mu[n], gamma[n], cdf, dmu[n], dgamma[n])
        else:
            value[n] = one_row(
                *(mu[n], gamma[n], order, rule, scale, t, moment, cdf, d_x, d_var),
                *(dmu[n], dgamma[n]),
            )
    return value, dmu, dgamma
