"""The sum over rows, with its gradient, as compiled programs.

Per row there are two. Dense waves: cosines and sines of a block of rows by rotation, once for the
values and once for the gradient. Or polynomials within cells: splines are polynomials, and so is
what stands for the sum of waves that a fast Fourier transform puts on a fine grid.
"""

from functools import cache

import numba
import numpy as np

BLOCK = 256


@cache
def dense_rows(nc, ns):
    """Rows with waves: the mean, and nc functions of cosines and ns of sines whose squares add."""
    n_all = 1 + nc + ns

    @numba.njit(fastmath=True, error_model="numpy")
    def rows(x, y, step, C, S, rest):
        gC, gS = np.zeros_like(C), np.zeros_like(S)
        value, g_rest = 0.0, 0.0
        acc = np.empty((n_all, BLOCK))
        c1, s1, c, s = (np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK))
        for low in range(0, len(x), BLOCK):
            b = min(BLOCK, len(x) - low)
            for i in range(b):
                c1[i], s1[i] = np.cos(step * x[low + i]), np.sin(step * x[low + i])
            for back in range(2):
                for i in range(b):
                    c[i], s[i] = 1.0, 0.0
                if back == 0:
                    acc[:] = 0.0
                for k in range(C.shape[1]):
                    if back == 0:
                        for i in range(b):
                            acc[0, i] += C[0, k] * c[i] + S[0, k] * s[i]
                        for j in range(nc):
                            for i in range(b):
                                acc[1 + j, i] += C[1 + j, k] * c[i]
                        for j in range(ns):
                            for i in range(b):
                                acc[1 + nc + j, i] += S[1 + j, k] * s[i]
                    else:
                        one, two = 0.0, 0.0
                        for i in range(b):
                            one += acc[0, i] * c[i]
                            two += acc[0, i] * s[i]
                        gC[0, k] += one
                        gS[0, k] += two
                        for j in range(nc):
                            one = 0.0
                            for i in range(b):
                                one += acc[1 + j, i] * c[i]
                            gC[1 + j, k] += one
                        for j in range(ns):
                            one = 0.0
                            for i in range(b):
                                one += acc[1 + nc + j, i] * s[i]
                            gS[1 + j, k] += one
                    for i in range(b):
                        turned = c[i] * c1[i] - s[i] * s1[i]
                        s[i] = s[i] * c1[i] + c[i] * s1[i]
                        c[i] = turned
                if back == 0:
                    for i in range(b):
                        gamma = rest
                        for j in range(1, n_all):
                            gamma += acc[j, i] ** 2
                        rate = np.exp(acc[0, i] + 0.5 * gamma)
                        value += y[low + i] * acc[0, i] - rate
                        g_rest -= 0.5 * rate
                        for j in range(1, n_all):
                            acc[j, i] *= -rate
                        acc[0, i] = y[low + i] - rate
        return value, gC, gS, g_rest

    return rows


@cache
def cell_rows(dm, dg):
    """Rows with polynomials of degree dm for the mean and dg for the variance in each cell."""
    nm, ng = dm + 1, dg + 1

    @numba.njit(fastmath=True, error_model="numpy")
    def rows(x, y, scale, P, G, rest):
        gP, gG = np.zeros_like(P), np.zeros_like(G)
        value, g_rest = 0.0, 0.0
        for n in range(len(x)):
            at = x[n] * scale
            c = min(int(at), P.shape[0] - 1)
            t = at - c - 0.5
            mu = P[c, dm]
            for k in range(dm - 1, -1, -1):
                mu = mu * t + P[c, k]
            gamma = rest
            if ng > 0:
                variance = G[c, dg]
                for k in range(dg - 1, -1, -1):
                    variance = variance * t + G[c, k]
                gamma += variance
            rate = np.exp(mu + 0.5 * gamma)
            value += y[n] * mu - rate
            g_rest -= 0.5 * rate
            power = y[n] - rate
            for k in range(nm):
                gP[c, k] += power
                power *= t
            power = -0.5 * rate
            for k in range(ng):
                gG[c, k] += power
                power *= t
        return value, gP, gG, g_rest

    return rows


@cache
def window_rows(width, degree):
    """Rows that weigh `width` places of the fine grid; weights by polynomials, or stored ones."""

    @numba.njit(fastmath=True, error_model="numpy")
    def rows(x, y, scale, grid, T, rest, stored):
        g_grid = np.zeros_like(grid)
        value, g_rest = 0.0, 0.0
        w = np.empty(width)
        for n in range(len(x)):
            at = x[n] * scale
            c = int(at)
            if stored.shape[0] > 0:
                for j in range(width):
                    w[j] = stored[n, j]
            else:
                t = at - c - 0.5
                for j in range(width):
                    w[j] = T[degree, j]
                for k in range(degree - 1, -1, -1):
                    for j in range(width):
                        w[j] = w[j] * t + T[k, j]
            mu = 0.0
            for j in range(width):
                mu += w[j] * grid[c + j]
            rate = np.exp(mu + 0.5 * rest)
            value += y[n] * mu - rate
            g_rest -= 0.5 * rate
            slope = y[n] - rate
            for j in range(width):
                g_grid[c + j] += slope * w[j]
        return value, g_grid, g_rest

    return rows


@cache
def plane_rows(width, powers, variance):
    """Rows of two inputs: `width` squared places of a grid, with weights that are products.

    `variance` counts the coefficients, in each cell and input, of the polynomials whose product is
    taken from the variance: splines have them, waves do not.
    """

    @numba.njit(fastmath=True, error_model="numpy")
    def rows(X, y, grid, T, G, rest, stored):
        g_grid, gG = np.zeros_like(grid), np.zeros_like(G)
        value, g_rest = 0.0, 0.0
        w, q, t, at = np.empty((2, width)), np.zeros(2), np.empty(2), np.empty(2, np.int64)
        for n in range(len(X)):
            for d in range(2):
                at[d] = int(X[n, d])
                t[d] = X[n, d] - at[d] - 0.5
                if stored.shape[0] > 0:
                    for j in range(width):
                        w[d, j] = stored[n, d, j]
                else:
                    for j in range(width):
                        w[d, j] = T[powers - 1, j]
                    for k in range(powers - 2, -1, -1):
                        for j in range(width):
                            w[d, j] = w[d, j] * t[d] + T[k, j]
                if variance > 0:
                    q[d] = G[d, at[d], variance - 1]
                    for k in range(variance - 2, -1, -1):
                        q[d] = q[d] * t[d] + G[d, at[d], k]
            mu = 0.0
            for i in range(width):
                one = 0.0
                for j in range(width):
                    one += w[1, j] * grid[at[0] + i, at[1] + j]
                mu += w[0, i] * one
            rate = np.exp(mu + 0.5 * (rest - q[0] * q[1]))
            value += y[n] * mu - rate
            g_rest -= 0.5 * rate
            slope = y[n] - rate
            for i in range(width):
                one = slope * w[0, i]
                for j in range(width):
                    g_grid[at[0] + i, at[1] + j] += one * w[1, j]
            if variance > 0:
                for d in range(2):
                    power = 0.5 * rate * q[1 - d]
                    for k in range(variance):
                        gG[d, at[d], k] += power
                        power *= t[d]
        return value, g_grid, gG, g_rest

    return rows
