"""A Gaussian process on a torus, in plain numpy: nothing here comes from the library."""

import itertools

import numpy as np

from scipy import special


def matern52(r):
    s = np.sqrt(5.0) * r
    return (1.0 + s + s * s / 3.0) * np.exp(-s)


def matern52_density(omega, ls):
    """Spectral density in D inputs: integral of k(x) exp(-i omega x)."""
    D = len(ls)
    const = (
        2.0**D
        * np.pi ** (D / 2)
        * special.gamma((D + 5) / 2)
        / (0.75 * np.sqrt(np.pi))
        * 5.0**2.5
        * np.prod(ls)
    )
    return const * (5.0 + np.sum((omega * ls) ** 2, axis=1)) ** (-(D + 5) / 2)


def torus_kernel(X, Y, ls, variance, period, n=6):
    """Sum over the images of each place."""
    total = 0.0
    for shift in itertools.product(range(-n, n + 1), repeat=len(period)):
        d = (X[:, None] - Y[None] + np.array(shift) * period) / ls
        total = total + variance * matern52(np.sqrt(np.sum(d**2, axis=-1)))
    return total


def waves(X, period, counts, center):
    """Products of 1, sqrt 2 cos and sqrt 2 sin, with their angular frequencies."""
    columns, omegas = [], []
    sides = []
    for d, K in enumerate(counts):
        t = 2.0 * np.pi * (X[:, d] - center[d]) / period[d]
        one = [(0, np.ones_like(t))]
        one += [(k, np.sqrt(2.0) * np.cos(k * t)) for k in range(1, K + 1)]
        one += [(k, np.sqrt(2.0) * np.sin(k * t)) for k in range(1, K + 1)]
        sides.append(one)
    for combination in itertools.product(*sides):
        columns.append(np.prod([b for _, b in combination], axis=0))
        omegas.append([2.0 * np.pi * k / p for (k, _), p in zip(combination, period, strict=True)])
    return np.stack(columns, axis=1), np.array(omegas)


def moments(X, ls, variance, period, counts, center, v):
    """Mean without the mean function, and variance, of f given whitened coefficients."""
    Phi, omega = waves(X, period, counts, center)
    S = variance * matern52_density(omega, np.asarray(ls)) / np.prod(period)
    origin = np.zeros((1, len(period)))
    total = torus_kernel(origin, origin, ls, variance, period)[0, 0]
    return Phi @ (np.sqrt(S) * v), np.full(len(X), total - S.sum()), Phi, S
