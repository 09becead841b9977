"""`FromGrid` and `ToGrid` as compiled loops, for numba and for Python."""

import math

import numba
import numpy as np

from pymc_vsgp.ops.window import WIDTH, window_coefficients

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 1

COEFFICIENTS = window_coefficients()
HIGHEST = len(COEFFICIENTS)
FARTHEST = 1e12  # steps; farther, and what is left of a place between two is rounding


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def window(place, n, weights):
    """Fill in the weights of the places around one, and return the first of these."""
    first = math.ceil(place - WIDTH / 2)
    z = 2.0 * (first - place + WIDTH / 2) - 1.0
    for a in range(WIDTH):
        weights[a] = COEFFICIENTS[0, a]
    for k in range(1, HIGHEST):
        for a in range(WIDTH):
            weights[a] = weights[a] * z + COEFFICIENTS[k, a]
    return int(first - n * math.floor(first / n))


@numba.njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def from_line(places, values):
    """Values at places on a circle."""
    n = len(values)
    around = np.empty(n + WIDTH)
    for i in range(n + WIDTH):
        around[i] = values[i % n]
    out, w = np.empty(len(places)), np.empty(WIDTH)
    for i in range(len(places)):
        if not abs(places[i, 0]) < FARTHEST:
            out[i] = math.nan
            continue
        at = window(places[i, 0], n, w)
        total = 0.0
        for a in range(WIDTH):
            total += w[a] * around[at + a]
        out[i] = total
    return out


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def to_line(places, values, n):
    """Sums on a circle."""
    around, w = np.zeros(n + WIDTH), np.empty(WIDTH)
    for i in range(len(places)):
        if not abs(places[i, 0]) < FARTHEST:
            around[:] = math.nan
            break
        at = window(places[i, 0], n, w)
        for a in range(WIDTH):
            around[at + a] += values[i] * w[a]
    out = np.zeros(n)
    for i in range(n + WIDTH):
        out[i % n] += around[i]
    return out


@numba.njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def from_plane(places, values):
    """Values at places on a torus."""
    n1, n2 = values.shape
    around = np.empty((n1 + WIDTH, n2 + WIDTH))
    for i in range(n1 + WIDTH):
        for j in range(n2 + WIDTH):
            around[i, j] = values[i % n1, j % n2]
    out, w1, w2 = np.empty(len(places)), np.empty(WIDTH), np.empty(WIDTH)
    for i in range(len(places)):
        if not abs(places[i, 0]) + abs(places[i, 1]) < FARTHEST:
            out[i] = math.nan
            continue
        at1 = window(places[i, 0], n1, w1)
        at2 = window(places[i, 1], n2, w2)
        total = 0.0
        for a in range(WIDTH):
            row = 0.0
            for b in range(WIDTH):
                row += w2[b] * around[at1 + a, at2 + b]
            total += w1[a] * row
        out[i] = total
    return out


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def to_plane(places, values, n1, n2):
    """Sums on a torus."""
    around = np.zeros((n1 + WIDTH, n2 + WIDTH))
    w1, w2 = np.empty(WIDTH), np.empty(WIDTH)
    for i in range(len(places)):
        if not abs(places[i, 0]) + abs(places[i, 1]) < FARTHEST:
            around[:] = math.nan
            break
        at1 = window(places[i, 0], n1, w1)
        at2 = window(places[i, 1], n2, w2)
        for a in range(WIDTH):
            weight = values[i] * w1[a]
            for b in range(WIDTH):
                around[at1 + a, at2 + b] += weight * w2[b]
    out = np.zeros((n1, n2))
    for i in range(n1 + WIDTH):
        for j in range(n2 + WIDTH):
            out[i % n1, j % n2] += around[i, j]
    return out
