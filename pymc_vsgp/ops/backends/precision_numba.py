"""The Ops of `precision` as compiled loops, for numba and for Python."""

import math

import numba
import numpy as np

from pymc_vsgp.ops.backends.neighbors_numba import solve_back, solve_forth

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 4

TOLERANCE, STEPS = 1e-10, 500  # of conjugate gradients, relative to the right side


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def eliminate(weights, sd, precision, neighbors, order):
    """Eliminate one value after another, the last in the order first."""
    n, m = weights.shape
    C, t = np.zeros((n, m)), np.empty(n)
    # What the rows after this one add to its entries, the diagonal last.
    off = np.zeros((n, m + 1))
    place = np.full(n, -1)  # of a value among the neighbors of the row that is eliminated
    for r in range(n - 1, -1, -1):
        i = order[r]
        w = 1.0 / (sd[i] * sd[i])
        d = w + max(off[i, m] + precision[i], 0.0)
        t[i] = 1.0 / math.sqrt(d)
        for a in range(m):
            if neighbors[i, a] >= 0:
                place[neighbors[i, a]] = a
                off[i, a] -= weights[i, a] * w
                C[i, a] = -off[i, a] / d
        for a in range(m):
            j = neighbors[i, a]
            if j < 0:
                continue
            off[j, m] += weights[i, a] * weights[i, a] * w - off[i, a] * off[i, a] / d
            for e in range(m):
                k = neighbors[j, e]
                b = place[k] if k >= 0 else -1
                if b >= 0:
                    off[j, e] += weights[i, a] * weights[i, b] * w - off[i, a] * off[i, b] / d
        for a in range(m):
            if neighbors[i, a] >= 0:
                place[neighbors[i, a]] = -1
    return C, t


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def eliminate_back(weights, sd, precision, neighbors, order, C, t, of_C, of_t):
    """Take adjoints back: the rows that others added to come first."""
    n, m = weights.shape
    of_weights, of_sd, of_precision = np.zeros((n, m)), np.empty(n), np.empty(n)
    # Adjoints of what the rows after this one add to its entries, the diagonal last.
    of_off, place = np.zeros((n, m + 1)), np.full(n, -1)
    off = np.empty(m)
    for i in order:
        w, d = 1.0 / (sd[i] * sd[i]), 1.0 / (t[i] * t[i])
        of_w, of_d = 0.0, -0.5 * of_t[i] * t[i] / d
        for a in range(m):
            off[a] = -C[i, a] * d
            of_off[i, a] = -of_C[i, a] / d
            of_d += of_C[i, a] * off[a] / (d * d)
            if neighbors[i, a] >= 0:
                place[neighbors[i, a]] = a
        for a in range(m):
            j = neighbors[i, a]
            if j < 0:
                continue
            for e in range(m + 1):
                k = neighbors[j, e] if e < m else j
                b = place[k] if k >= 0 else -1
                if b < 0:
                    continue
                g = of_off[j, e]
                of_weights[i, a] += g * weights[i, b] * w
                of_weights[i, b] += g * weights[i, a] * w
                of_w += g * weights[i, a] * weights[i, b]
                of_off[i, a] -= g * off[b] / d
                of_off[i, b] -= g * off[a] / d
                of_d += g * off[a] * off[b] / (d * d)
        for a in range(m):
            if neighbors[i, a] < 0:
                of_off[i, a] = 0.0
                continue
            place[neighbors[i, a]] = -1
            of_weights[i, a] -= of_off[i, a] * w
            of_w -= of_off[i, a] * weights[i, a]
        of_off[i, m] = of_precision[i] = of_d if d >= w else 0.0
        of_sd[i] = -2.0 * (of_w + of_d) * w / sd[i]
    return of_weights, of_sd, of_precision


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def times(w, weights, sd, precision, neighbors):
    """Multiply with the precision matrix."""
    out = precision * w
    n, m = weights.shape
    for i in range(n):
        e = w[i]
        for k in range(m):
            j = neighbors[i, k]
            if j >= 0:
                e -= weights[i, k] * w[j]
        e /= sd[i] * sd[i]
        out[i] += e
        for k in range(m):
            j = neighbors[i, k]
            if j >= 0:
                out[j] -= weights[i, k] * e
    return out


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def conjugate(right, weights, sd, precision, C, t, neighbors, order):
    """Take steps of conjugate gradients, from what the incomplete factor says.

    Rounding ends what they can do for nearly singular matrices: the best of all steps counts.
    """

    def divided(x):
        return solve_forth(solve_back(x, C, neighbors, order) * t**2, C, neighbors, order)

    w = divided(right)
    left = right - times(w, weights, sd, precision, neighbors)
    z = divided(left)
    p, size = z.copy(), np.sum(left * z)
    enough, best, smallest = TOLERANCE**2 * np.sum(right * w), w.copy(), size
    for _ in range(STEPS):
        # Nor where a number is not finite.
        if not size > enough:
            break
        q = times(p, weights, sd, precision, neighbors)
        curvature = np.sum(p * q)
        if not curvature > 0.0:
            break
        step = size / curvature
        w += step * p
        left -= step * q
        z = divided(left)
        before, size = size, np.sum(left * z)
        if size < smallest:
            best, smallest = w.copy(), size
        p = z + (size / before) * p
    return best
