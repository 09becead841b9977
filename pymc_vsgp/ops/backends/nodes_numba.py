"""`Nodes` as a compiled loop, for numba and for Python."""

import math

import numba
import numpy as np

from pymc_vsgp.ops.backends.scalar_numba import exp, expm1
from pymc_vsgp.ops.nodes import REACH, RULES

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 2

LIMITS = np.array(list(RULES))
COUNTS = np.array(list(RULES.values()))
NODES, WEIGHTS = np.zeros((2, len(COUNTS), max(COUNTS)))
for _i, _n in enumerate(COUNTS):
    _t, _w = np.polynomial.hermite_e.hermegauss(_n)
    NODES[_i, :_n], WEIGHTS[_i, :_n] = _t, _w / _w.sum()


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def rule_of(b):
    """Which rule does up to this standard deviation; the last one does for any, and for nan."""
    for i in range(len(LIMITS)):
        if b <= LIMITS[i]:
            return i
    return len(LIMITS)


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def stretched(a, b, x, of_x, t, w):
    """Fill in the nodes and weights of the rule for large deviations; see `ops.nodes.stretched`."""
    n = len(a)
    lo, hi, of_zero = np.empty(n), np.empty(n), np.empty(n)
    total, first, second = np.zeros(n), np.zeros(n), np.zeros(n)
    for i in range(n):
        zero = math.asinh(a[i])
        lo[i], hi[i] = (
            math.asinh(a[i] - REACH * b[i]) - zero,
            math.asinh(a[i] + REACH * b[i]) - zero,
        )
        of_zero[i] = math.exp(zero)
    for j in range(len(x)):
        for i in range(n):
            step = expm1((lo[i] + hi[i] + (hi[i] - lo[i]) * x[j]) / 4.0)
            growth = of_zero[i] * (1.0 + step)
            node = (growth + 1.0 / growth) * (step + step / (1.0 + step)) / (2.0 * b[i])
            growth *= 1.0 + step
            weight = of_x[j] * (growth + 1.0 / growth) * exp(-0.5 * node * node)
            t[j, i], w[j, i] = node, weight
            total[i] += weight
            first[i] += weight * node
    for j in range(len(x)):
        for i in range(n):
            w[j, i] /= total[i]
            t[j, i] -= first[i] / total[i]
            second[i] += w[j, i] * t[j, i] ** 2
    for j in range(len(x)):
        for i in range(n):
            t[j, i] /= math.sqrt(second[i])


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def nodes(a, b, x, of_x):
    """Return nodes and weights; see `Nodes`."""
    (B, C), rule, n = a.shape, 0, len(x)
    for i in range(B):
        for j in range(C):
            rule = max(rule, rule_of(b[i, j]))
    if rule < len(LIMITS) and COUNTS[rule] < n:
        n = COUNTS[rule]
    else:
        rule = len(LIMITS)
    t, w = np.empty((B, n, C)), np.empty((B, n, C))
    for i in range(B):
        if rule == len(LIMITS):
            stretched(a[i], b[i], x[:, 0], of_x[:, 0], t[i], w[i])
            continue
        for j in range(n):
            t[i, j], w[i, j] = NODES[rule, j], WEIGHTS[rule, j]
    return t, w
