"""Value and gradient of each kind: from whitened coefficients to those that the rows need."""

import numpy as np

from scipy.fft import irfft, next_fast_len, rfft

from feature_types.bases import (
    DEGREE,
    WIDTH,
    Interval,
    Torus,
    band_factor,
    band_of_inverse,
    band_product,
    band_solve,
    decay_of,
    spline_gram,
    spline_powers,
)
from feature_types.rows import cell_rows, dense_rows, window_rows


def spline_table(d):
    """Polynomials in t - 1/2 of the splines of a cell: by power and spline."""
    shift = np.poly1d([1.0, 0.5])
    each = [np.poly1d(q[::-1])(shift).coef[::-1] for q in spline_powers(d)]
    return np.array([np.r_[q, np.zeros(d + 1 - len(q))] for q in each]).T


def slope(function, lengthscale, step=1e-5):
    """Derivative by log lengthscale of a tuple of arrays, by central differences.

    Of the weights alone, of which there are M: what this costs does not show.
    """
    up, down = (function(lengthscale * np.exp(s * step)) for s in (1, -1))
    return [(a - b) / (2.0 * step) for a, b in zip(up, down, strict=True)]


class Dense:
    """Waves of a torus or an interval, at each row."""

    def __init__(self, kind, x, y):
        self.kind, self.x, self.y = kind, x - kind.left, y
        self.n = 2 * len(kind.omega) - 1

    def weights(self, v, lengthscale):
        decay = decay_of(self.kind.p, lengthscale)
        variances, C, S, rest = self.kind.parts(decay)
        n = len(variances)
        c, s = v[:n], np.r_[0.0, v[n:]]
        if isinstance(self.kind, Torus):
            root = np.sqrt(variances)
            c, s = root * c, root * s
        else:
            _, cosines, sines = self.kind.gram(decay)
            c = self.kind.whiten(decay, c, cosines)
            s = self.kind.whiten(decay, s, sines) if sines.shape[1] else s * np.sqrt(variances)
        return np.vstack([c, C.T]), np.vstack([s, S.T]), np.float64(rest)

    def unwhiten(self, gc, gs, lengthscale):
        decay = decay_of(self.kind.p, lengthscale)
        variances = self.kind.parts(decay)[0]
        if isinstance(self.kind, Torus):
            root = np.sqrt(variances)
            return np.r_[root * gc, (root * gs)[1:]]
        _, cosines, sines = self.kind.gram(decay)
        gc = self.kind.whiten(decay, gc, cosines, transpose=True)
        if sines.shape[1]:
            gs = self.kind.whiten(decay, gs, sines, transpose=True)
        else:
            gs = gs * np.sqrt(variances)
        return np.r_[gc, gs[1:]]

    def __call__(self, v, lengthscale, scale):
        C, S, rest = self.weights(scale * v, lengthscale)
        C[1:], S[1:], rest = scale * C[1:], scale * S[1:], scale**2 * rest
        rows = dense_rows(C.shape[0] - 1, S.shape[0] - 1)
        value, gC, gS, g_rest = rows(self.x, self.y, self.kind.omega[1], C, S, rest)
        dC, dS, d_rest = slope(lambda q: self.weights(scale * v, q), lengthscale)
        dC[1:], dS[1:] = scale * dC[1:], scale * dS[1:]
        g_length = (gC * dC).sum() + (gS * dS).sum() + g_rest * scale**2 * d_rest
        g_scale = (gC * C).sum() + (gS * S).sum() + 2.0 * g_rest * rest
        return value, scale * self.unwhiten(gC[0], gS[0], lengthscale), g_length, g_scale


def window_polynomials(width, degree):
    """Exponential of semicircle: its transform, and its polynomials, by grid place and power."""
    beta = 2.3 * width
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def window(z):
        return np.exp(beta * (np.sqrt(np.clip(1.0 - z**2, 0.0, None)) - 1.0))

    def transform(turn):  # turn: radians a place of the fine grid
        s = nodes * width / 2.0
        return np.cos(np.outer(turn, s)) @ (weights * window(nodes) * width / 2.0)

    t = np.cos(np.pi * (np.arange(3 * degree) + 0.5) / (3 * degree)) / 2.0
    place = np.arange(width) - (width // 2 - 1)
    values = window((t[:, None] + 0.5 - place) / (width / 2.0))
    chebyshev = np.polynomial.chebyshev.chebfit(2.0 * t, values, degree)
    powers = [np.polynomial.chebyshev.cheb2poly(c) for c in chebyshev.T]
    powers = [
        np.r_[q, np.zeros(degree + 1 - len(q))] * 2.0 ** np.arange(degree + 1) for q in powers
    ]
    return transform, np.array(powers)


class Gridded(Dense):
    """Waves of a torus, summed on a fine grid and interpolated at the rows."""

    def __init__(self, kind, x, y, form="cells", width=WIDTH, degree=DEGREE):
        super().__init__(kind, x, y)
        self.form, self.width, self.degree = form, width, degree
        self.size = next_fast_len(max(2 * self.n, 2 * width), real=True)
        self.scale = self.size / kind.period
        transform, self.T = window_polynomials(width, degree)
        self.deconvolve = 1.0 / transform(kind.omega / self.scale)
        self.n_cells = int(self.scale) + 1
        lead = width // 2 - 1
        self.wrap = np.arange(-lead, self.n_cells + width - lead) % self.size
        self.stored = np.zeros((0, width))
        if form == "stored":
            at = self.x * self.scale
            t = at - np.floor(at) - 0.5
            self.stored = t[:, None] ** np.arange(degree + 1) @ self.T.T

    def to_grid(self, c, s):
        F = np.zeros(self.size // 2 + 1, dtype=complex)
        F[: len(c)] = self.deconvolve * (c - 1j * s) * (self.size / 2.0)
        F[0] *= 2.0
        return irfft(F, self.size)[self.wrap]

    def from_grid(self, g):
        full = np.bincount(self.wrap, g, self.size)
        F = rfft(full)[: len(self.deconvolve)] * self.deconvolve
        return F.real, -F.imag

    def mean(self, c, s):
        """The sum of waves at the rows: the accuracy of the interpolation."""
        windows = np.lib.stride_tricks.sliding_window_view(self.to_grid(c, s), self.width) @ self.T
        at = self.x * self.scale
        t = at - np.floor(at) - 0.5
        return (windows[at.astype(int)] * t[:, None] ** np.arange(self.degree + 1)).sum(1)

    def __call__(self, v, lengthscale, scale):
        C, S, rest = self.weights(scale * v, lengthscale)
        rest = scale**2 * rest
        grid = self.to_grid(C[0], S[0])
        if self.form == "cells":
            P = np.lib.stride_tricks.sliding_window_view(grid, self.width) @ self.T
            rows = cell_rows(self.degree, -1)
            value, gP, _, g_rest = rows(self.x, self.y, self.scale, P, np.zeros((1, 1)), rest)
            spread = gP @ self.T.T
            g_grid = np.zeros_like(grid)
            for j in range(self.width):
                g_grid[j : j + len(spread)] += spread[:, j]
        else:
            rows = window_rows(self.width, self.degree)
            T = np.ascontiguousarray(self.T.T)
            value, g_grid, g_rest = rows(self.x, self.y, self.scale, grid, T, rest, self.stored)
        gc, gs = self.from_grid(g_grid)
        dC, dS, d_rest = slope(lambda q: self.weights(scale * v, q), lengthscale)
        g_length = gc @ dC[0] + gs @ dS[0] + g_rest * scale**2 * d_rest
        g_scale = gc @ C[0] + gs @ S[0] + 2.0 * g_rest * rest
        return value, scale * self.unwhiten(gc, gs, lengthscale), g_length, g_scale


class Splines:
    """B-splines: banded factor in each evaluation, polynomials in each cell."""

    def __init__(self, p, d, n, x, y):
        self.p, self.d, self.n, self.n_cells, self.x, self.y = p, d, n, n - d, x, y
        self.one = spline_table(d).T
        spline = [np.poly1d(q[::-1]) for q in self.one]
        self.pairs = [(i, j) for i in range(d + 1) for j in range(i + 1)]
        self.two = np.zeros((len(self.pairs), 2 * d + 1))
        for r, (i, j) in enumerate(self.pairs):
            q = (spline[i] * spline[j]).coef[::-1] * (1.0 if i == j else 2.0)
            self.two[r, : len(q)] = q

    def __call__(self, v, lengthscale, scale):
        d, n_cells = self.d, self.n_cells
        scaled = decay_of(self.p, lengthscale) / n_cells
        L, dL = band_factor(*spline_gram(self.p, d, scaled, n_cells))
        S, dS = band_of_inverse(L, dL)
        a = band_solve(L, scale * v, True)
        da = -band_solve(L, band_product(dL, a), True)
        alive = np.lib.stride_tricks.sliding_window_view

        def cells(band):
            return np.array([band[i : i + n_cells, i - j] for i, j in self.pairs]).T @ self.two

        P = alive(a, d + 1) @ self.one
        G = -(scale**2) * cells(S)
        rows = cell_rows(d, 2 * d)
        value, gP, gG, g_rest = rows(self.x, self.y, float(n_cells), P, G, scale**2)
        spread = gP @ self.one.T
        ga = np.zeros(self.n)
        for j in range(d + 1):
            ga[j : j + n_cells] += spread[:, j]
        g_length = ga @ da - scale**2 * (gG * cells(dS)).sum()
        g_scale = ga @ a + 2.0 * (gG * G).sum() + 2.0 * g_rest * scale**2
        return value, scale * band_solve(L, ga, False), g_length, g_scale


def makers(p, lengthscale, needed, padding):
    """Each way to evaluate, as a function of the rows; None where no number is enough."""
    torus = Torus(p, lengthscale, needed["torus"])
    ways = {
        "torus, dense": lambda x, y: Dense(torus, x, y),
        "torus, cells": lambda x, y: Gridded(torus, x, y, "cells"),
        "torus, window": lambda x, y: Gridded(torus, x, y, "window"),
        "torus, stored": lambda x, y: Gridded(torus, x, y, "stored"),
        "interval, dense": None,
    }
    if needed["interval"]:
        interval = Interval(p, lengthscale, needed["interval"], padding)
        ways["interval, dense"] = lambda x, y: Dense(interval, x, y)
    for name, d in (("splines", p), ("splines, high", 2 * p - 1)):
        n = needed[name]
        ways[name] = n and (lambda x, y, n=n, d=d: Splines(p, d, n, x, y))
    return ways
