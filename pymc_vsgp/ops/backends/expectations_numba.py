"""`Expectation`s as compiled loops, for numba and for Python.

Rows that need the same rule go together, a chunk at a time: a loop over them, for each node, has no
branches, and so becomes vector instructions.
"""

import math

import numba
import numpy as np

from pymc_vsgp.ops.backends.nodes_numba import COUNTS, LIMITS, NODES, WEIGHTS, rule_of, stretched
from pymc_vsgp.ops.backends.scalar_numba import (
    ROOT_2PI,
    erfcx_of,
    exp,
    inverse_mills_from,
    log_ndtr_from,
    select,
)
from pymc_vsgp.ops.expectations import CENTER, FAR_LEFT, NONE, SHARES, SLOPES, TINY, WIDTH
from pymc_vsgp.ops.nodes import N_BEND

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 4

LEGENDRE, OF_LEGENDRE = np.polynomial.legendre.leggauss(N_BEND)
CHUNK = 128


@numba.njit(cache=True)
def flat(mu, gamma):
    """Return the entries of both."""
    if mu.shape != gamma.shape:
        raise ValueError("mu and gamma must have one shape.")
    return mu.ravel(), gamma.ravel()


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def add(t, w, mu, sd, sums):
    """Add what one node contributes, to the value and to the derivatives in mu and in sd."""
    for i in range(len(mu)):
        x = mu[i] + sd[i] * t[i]
        e, bell = erfcx_of(x) / 2.0, exp(-0.5 * x * x)
        slope = w[i] * inverse_mills_from(x, e, bell)
        sums[0, i] += w[i] * log_ndtr_from(x, e, bell)
        sums[1, i] += slope
        sums[2, i] += slope * t[i]


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def expected_log_ndtr(mu, gamma):
    """Return the expectation and its derivatives; see `Expectation`."""
    shape, (mu, gamma) = mu.shape, flat(mu, gamma)
    n = len(mu)
    value, dmu, dgamma = np.full(n, math.nan), np.full(n, math.nan), np.full(n, math.nan)
    sd, rules = np.empty(n), np.empty(n, np.int64)
    for i in range(n):
        sd[i] = math.sqrt(max(gamma[i], TINY))
        rules[i] = rule_of(sd[i] / WIDTH) if math.isfinite(mu[i] + gamma[i]) else -1
    t, w = np.empty((N_BEND, CHUNK)), np.empty((N_BEND, CHUNK))
    rows, sums = np.empty(CHUNK, np.int64), np.empty((3, CHUNK))
    m, s = np.empty(CHUNK), np.empty(CHUNK)
    for rule in range(len(LIMITS) + 1):
        at = 0
        while at < n:
            k = 0
            while at < n and k < CHUNK:
                if rules[at] == rule:
                    rows[k], m[k], s[k] = at, mu[at], sd[at]
                    k += 1
                at += 1
            if k == 0:
                break
            count = N_BEND
            if rule == len(LIMITS):
                a, b = (m[:k] - CENTER) / WIDTH, s[:k] / WIDTH
                stretched(a, b, LEGENDRE, OF_LEGENDRE, t, w)
            else:
                count = COUNTS[rule]
                for j in range(count):
                    t[j, :k], w[j, :k] = NODES[rule, j], WEIGHTS[rule, j]
            sums[:] = 0.0
            for j in range(count):
                add(t[j], w[j], m[:k], s[:k], sums)
            for i in range(k):
                at_row, slope = rows[i], sums[1, i]
                value[at_row], dmu[at_row] = sums[0, i], slope
                if s[i] > NONE:
                    dgamma[at_row] = sums[2, i] / (2.0 * s[i])
                else:  # half of the second derivative in mu, without the difference of nodes
                    dgamma[at_row] = -slope * (m[i] + slope) / 2.0
    return value.reshape(shape), dmu.reshape(shape), dgamma.reshape(shape)


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def add_ramp(s, p, mu, gamma, value, dmu, dgamma):
    """Add one smoothed ramp."""
    for i in range(len(mu)):
        d = math.sqrt(1.0 + s * s * gamma[i])
        a = s * mu[i] / d
        bell = exp(-0.5 * a * a)
        tail = erfcx_of(a) / 2.0 * bell
        below = p * select(a < 0.0, tail, 1.0 - tail)
        density = p / ROOT_2PI * bell
        value[i] += mu[i] * below + d / s * density
        dmu[i] += below
        dgamma[i] += s / d * density / 2.0


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def expected_softplus(mu, gamma):
    """Return the expectation and its derivatives; see `Expectation`."""
    shape, (mu, gamma) = mu.shape, flat(mu, gamma)
    n = len(mu)
    value, dmu, dgamma = np.zeros(n), np.zeros(n), np.zeros(n)
    for start in range(0, n, CHUNK):
        at = slice(start, min(start + CHUNK, n))
        for j in range(len(SLOPES)):
            add_ramp(SLOPES[j], SHARES[j], mu[at], gamma[at], value[at], dmu[at], dgamma[at])
    for i in range(n):
        if 5.0 * mu[i] + 12.5 * gamma[i] < FAR_LEFT:
            value[i], dmu[i], dgamma[i] = 0.0, 0.0, 0.0
            for k in range(1, 5):
                term = math.exp(k * mu[i] + k * k / 2.0 * gamma[i]) * (1.0 if k % 2 else -1.0)
                value[i] += term / k
                dmu[i] += term
                dgamma[i] += term * k / 2.0
    return value.reshape(shape), dmu.reshape(shape), dgamma.reshape(shape)
