"""`SolveEach` and `SparseSolve` as compiled loops, for numba and for Python."""

import math

import numba
import numpy as np

from pymc_vsgp.ops.cholesky import FIRST_STEP, LARGEST

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 2


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def factorize(C, jitter, L):
    """Fill in the Cholesky factor, and return whether there is one."""
    m = len(C)
    for j in range(m):
        d = C[j, j] + jitter
        for k in range(j):
            d -= L[j, k] * L[j, k]
        if not (d > 0.0 and d < math.inf):
            return False
        d = math.sqrt(d)
        L[j, j] = d
        for i in range(j + 1, m):
            s = C[i, j]
            for k in range(j):
                s -= L[i, k] * L[j, k]
            L[i, j] = s / d
    return True


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def solve_each(C, c):
    """Solve small systems, of any number of dimensions in front."""
    m = c.shape[-1]
    n = c.size // m
    C, c = np.ascontiguousarray(C), np.ascontiguousarray(c)
    return solve_one_by_one(C.reshape((n, m, m)), c.reshape((n, m))).reshape(c.shape)


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def solve_one_by_one(C, c):
    """Solve a small system after another."""
    n, m = c.shape
    out, L = np.empty((n, m)), np.empty((m, m))
    for r in range(n):
        mean = 0.0
        for i in range(m):
            mean += C[r, i, i] / m
        level = 0.0
        good = factorize(C[r], 0.0, L)
        while not good and level < LARGEST / 10.0:
            level = max(10.0 * level, FIRST_STEP)
            good = factorize(C[r], level * mean, L)
        x = out[r]
        if not good:
            x[:] = math.nan
            continue
        for i in range(m):
            s = c[r, i]
            for k in range(i):
                s -= L[i, k] * x[k]
            x[i] = s / L[i, i]
        for i in range(m - 1, -1, -1):
            x[i] /= L[i, i]
            for k in range(i):
                x[k] -= L[i, k] * x[i]
    return out


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def solve_forth(a, weights, neighbors, order):
    """Solve with the triangle: each row after its neighbors."""
    w = a.copy()
    m = weights.shape[1]
    for i in order:
        for k in range(m):
            j = neighbors[i, k]
            if j >= 0:
                w[i] += weights[i, k] * w[j]
    return w


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def solve_back(a, weights, neighbors, order):
    """Solve with the transpose: each row before its neighbors."""
    w = a.copy()
    m = weights.shape[1]
    for r in range(len(order) - 1, -1, -1):
        i = order[r]
        for k in range(m):
            j = neighbors[i, k]
            if j >= 0:
                w[j] += weights[i, k] * w[i]
    return w
