"""The types of inducing features that `types_of_features.py` compares."""

from functools import cache
from math import comb

import numba
import numpy as np

from scipy.interpolate import BSpline
from scipy.linalg import cholesky, solve_triangular, solveh_banded
from scipy.optimize import brentq

NAMES = {1: "Matern 1/2", 2: "Matern 3/2", 3: "Matern 5/2"}
DENSITY = {1: 2.0, 2: 4.0, 3: 16.0 / 3.0}  # spectral density / decay^(2p-1) * (decay^2 + w^2)^p
WIDTH = 8  # of the interpolation's kernel, in places of the fine grid
DEGREE = 11  # of the polynomial that stands for it within a cell
PADDINGS = (1.0, 2.0)  # lengthscales on either side, of the interval


def matern(p, decay, lag):
    r = decay * np.abs(lag)
    return np.exp(-r) * (1.0, 1.0 + r, 1.0 + r + r**2 / 3.0)[p - 1]


def decay_of(p, lengthscale):
    return np.sqrt(2.0 * p - 1.0) / lengthscale


def density(p, decay, omega):
    return DENSITY[p] * decay ** (2 * p - 1) / (decay**2 + omega**2) ** p


def start_precision(p):
    """Inverse covariance of f and its p - 1 derivatives, where the decay is 1."""
    if p < 3:
        return np.eye(p)
    return np.array([[9.0, 0.0, 3.0], [0.0, 24.0, 0.0], [3.0, 0.0, 9.0]]) / 8.0


def gap_of(p, decay, correlation=0.02):
    return brentq(lambda lag: matern(p, decay, lag) - correlation, 0.0, 20.0 / decay)


# Waves: weights of the mean, and of the functions whose squares the variance has beside a constant.


class Torus:
    """Independent coefficients; period as `Fourier.for_data` chooses it."""

    def __init__(self, p, longest, n):
        self.p = p
        self.left, self.period = 0.0, 1.0 + max(gap_of(p, decay_of(p, longest)), 0.05)
        self.omega = 2.0 * np.pi / self.period * np.arange(n // 2 + 1)

    def parts(self, decay):
        """Variances of the waves, variance of the rest, and no further functions."""
        S = density(self.p, decay, self.omega) / self.period
        S[1:] *= 2.0
        copies = self.period * np.arange(-60, 61)
        rest = matern(self.p, decay, copies).sum() - S[0] - S[1:].sum()
        return S, np.zeros((len(S), 0)), np.zeros((len(S), 0)), rest

    def residual(self, lengthscale, x):
        decay = decay_of(self.p, lengthscale)
        return self.parts(decay)[-1] / matern(self.p, decay, self.period * np.arange(-60, 61)).sum()


class Interval:
    """Variational Fourier features: a Gram matrix that is diagonal plus low rank."""

    def __init__(self, p, lengthscale, n, padding):
        self.p = p
        self.left, self.period = -padding * lengthscale, 1.0 + 2.0 * padding * lengthscale
        self.omega = 2.0 * np.pi / self.period * np.arange(n // 2 + 1)

    def gram(self, decay):
        """Diagonal, and the columns that add to it: of the cosines and of the sines."""
        p, w = self.p, self.omega / decay
        alpha = self.period / 2.0 / density(p, decay, self.omega)
        alpha[0] *= 2.0
        cosines = [np.ones_like(w)]
        if p == 3:
            cosines.append((3.0 * w**2 - 1.0) / np.sqrt(8.0))
        sines = [np.sqrt(2.0 * p - 3.0) * w] if p > 1 else []
        return alpha, np.array(cosines).T, np.array(sines).reshape(len(sines), len(w)).T

    def parts(self, decay):
        alpha, cosines, sines = self.gram(decay)

        def columns(W):
            V = W / alpha[:, None]
            return V @ np.linalg.inv(np.linalg.cholesky(np.eye(W.shape[1]) + W.T @ V)).T

        rest = 1.0 - (1.0 / alpha).sum()
        return 1.0 / alpha, columns(cosines), columns(sines), rest

    def whiten(self, decay, v, W, transpose=False):
        """Multiply by a factor of the inverse of the Gram matrix, or by its transpose."""
        alpha = self.gram(decay)[0]
        root = np.sqrt(alpha)
        lam, Q = np.linalg.eigh((W / root[:, None]).T @ (W / root[:, None]))
        V = W / root[:, None] @ Q
        f = (1.0 - 1.0 / np.sqrt(1.0 + lam)) / lam
        u = v / root if transpose else v
        u = u - V @ (f * (V.T @ u))
        return u if transpose else u / root

    def residual(self, lengthscale, x):
        _, C, S, rest = self.parts(decay_of(self.p, lengthscale))
        out = np.full(len(x), rest)
        for at in np.array_split(np.arange(len(x)), max(1, len(x) // 100)):
            t = np.outer(x[at] - self.left, self.omega)
            out[at] += ((np.cos(t) @ C) ** 2).sum(1) + ((np.sin(t) @ S) ** 2).sum(1)
        return out.mean()


# Splines: polynomials of degree d within n_cells cells; splines c to c + d are alive in cell c.


@cache
def spline_powers(d):
    """Coefficients in t in [0, 1] of the d + 1 splines of a cell, one row for each."""
    t = (np.arange(d + 1) + 0.5) / (d + 1)
    whole = BSpline.basis_element(np.arange(d + 2), extrapolate=False)
    values = np.array([whole(t + d - i) for i in range(d + 1)])
    return np.linalg.solve(t[:, None] ** np.arange(d + 1), values.T).T


@cache
def spline_derivatives(d, order):
    """Coefficients of the derivatives, order by order."""
    out = [spline_powers(d)]
    for _ in range(order):
        D = np.zeros_like(out[0])
        D[:, :-1] = out[-1][:, 1:] * np.arange(1, d + 1)
        out.append(D)
    return np.array(out)


@cache
def spline_products(p, d):
    """Integrals over a cell of products of derivatives, and products at its start."""
    nodes, weights = np.polynomial.legendre.leggauss(d + 1)
    D = spline_derivatives(d, p)
    at = D @ ((nodes + 1.0) / 2.0) ** np.arange(d + 1)[:, None]  # order, spline, node
    binom = np.array([comb(p, a) for a in range(p + 1)], dtype=float)
    E = np.einsum("a,b,aiq,bjq,q->abij", binom, binom, at, at, weights / 2.0) / DENSITY[p]
    return E, np.einsum("ab,ai,bj->abij", start_precision(p), D[:p, :, 0], D[:p, :, 0])


def spline_gram(p, d, scaled, n_cells):
    """Inner products of the splines, by diagonals, and their derivative by log lengthscale.

    `scaled` is the decay times the length of a cell. In the space of the kernel the squared norm
    is the integral of ((d/dx + decay)^p g)^2 over the white noise's density, and the density of g
    and its derivatives at the start.
    """
    E, start = spline_products(p, d)
    order = np.add.outer(np.arange(p + 1), np.arange(p + 1))[:, :, None, None]
    first = order[:p, :p]
    cells = E * scaled ** (1.0 - order)
    start = start * scaled ** -(1.0 * first)
    out = []
    # By log lengthscale, which is minus that by log decay.
    for cell, begin in (
        (cells.sum((0, 1)), start.sum((0, 1))),
        ((cells * (order - 1.0)).sum((0, 1)), (start * first).sum((0, 1))),
    ):
        band = np.zeros((n_cells + d, d + 1))  # [i, j] is the entry of i and i - j
        for i in range(d + 1):
            for j in range(i + 1):
                band[i : i + n_cells, i - j] += cell[i, j]
                band[i, i - j] += begin[i, j]
        out.append(band)
    return out


@numba.njit(cache=True)
def band_factor(K, dK):
    """Cholesky factor by diagonals, and its derivative."""
    n, p = K.shape[0], K.shape[1] - 1
    L, dL = np.zeros_like(K), np.zeros_like(K)
    for i in range(n):
        for j in range(max(0, i - p), i + 1):
            s, ds = K[i, i - j], dK[i, i - j]
            for k in range(max(0, i - p), j):
                if j - k <= p:
                    s -= L[i, i - k] * L[j, j - k]
                    ds -= dL[i, i - k] * L[j, j - k] + L[i, i - k] * dL[j, j - k]
            if i == j:
                L[i, 0] = np.sqrt(s)
                dL[i, 0] = ds / (2.0 * L[i, 0])
            else:
                L[i, i - j] = s / L[j, 0]
                dL[i, i - j] = (ds - L[i, i - j] * dL[j, 0]) / L[j, 0]
    return L, dL


@numba.njit(cache=True)
def band_of_inverse(L, dL):
    """The inverse within the band (Takahashi's recursion), and its derivative."""
    n, p = L.shape[0], L.shape[1] - 1
    S, dS = np.zeros_like(L), np.zeros_like(L)
    for j in range(n - 1, -1, -1):
        for i in range(min(n - 1, j + p), j - 1, -1):
            s, ds = 0.0, 0.0
            if i == j:
                s, ds = 1.0 / L[j, 0], -dL[j, 0] / L[j, 0] ** 2
            for k in range(j + 1, min(n - 1, j + p) + 1):
                high, low = max(i, k), min(i, k)
                s -= L[k, k - j] * S[high, high - low]
                ds -= dL[k, k - j] * S[high, high - low] + L[k, k - j] * dS[high, high - low]
            S[i, i - j] = s / L[j, 0]
            dS[i, i - j] = (ds - S[i, i - j] * dL[j, 0]) / L[j, 0]
    return S, dS


@numba.njit(cache=True)
def band_solve(L, b, transpose):
    """Solve with the factor, or with its transpose."""
    n, p = L.shape[0], L.shape[1] - 1
    x = b.copy()
    if transpose:
        for i in range(n - 1, -1, -1):
            for k in range(i + 1, min(n - 1, i + p) + 1):
                x[i] -= L[k, k - i] * x[k]
            x[i] /= L[i, 0]
    else:
        for i in range(n):
            for k in range(max(0, i - p), i):
                x[i] -= L[i, i - k] * x[k]
            x[i] /= L[i, 0]
    return x


@numba.njit(cache=True)
def band_product(dL, a):
    """The transpose of a banded factor times a vector."""
    n, p = dL.shape[0], dL.shape[1] - 1
    out = np.zeros(n)
    for i in range(n):
        for k in range(i, min(n - 1, i + p) + 1):
            out[i] += dL[k, k - i] * a[k]
    return out


def spline_values(d, n_cells, x):
    """Index of the first spline that is alive at each x, and the values of d + 1 of them."""
    c = np.minimum((x * n_cells).astype(int), n_cells - 1)
    t = x * n_cells - c
    return c, (t[:, None] ** np.arange(d + 1)) @ spline_powers(d).T


def spline_residual(p, d, lengthscale, n, x):
    n_cells = n - d
    K, _ = spline_gram(p, d, decay_of(p, lengthscale) / n_cells, n_cells)
    lower = np.array([np.r_[K[j:, j], np.zeros(j)] for j in range(d + 1)])
    c, B = spline_values(d, n_cells, x)
    total = 0.0
    for at in np.array_split(np.arange(len(x)), max(1, len(x) // 200)):
        full = np.zeros((n, len(at)))
        full[c[at] + np.arange(d + 1)[:, None], np.arange(len(at))] = B[at].T
        total += (full * solveh_banded(lower, full, lower=True)).sum()
    return 1.0 - total / len(x)


def point_residual(p, lengthscale, n, x, jitter=1e-10):
    decay, Z = decay_of(p, lengthscale), np.linspace(0.0, 1.0, n)
    K = matern(p, decay, Z[:, None] - Z) + jitter * np.eye(n)
    A = solve_triangular(cholesky(K, lower=True), matern(p, decay, Z[:, None] - x), lower=True)
    return 1.0 - (A**2).sum() / len(x)


KINDS = {
    "torus": lambda p, s, n, x: Torus(p, s, n).residual(s, x),
    "torus, wide prior": lambda p, s, n, x: Torus(p, 10.0 * s, n).residual(s, x),
    "interval, short": lambda p, s, n, x: Interval(p, s, n, PADDINGS[0]).residual(s, x),
    "interval, long": lambda p, s, n, x: Interval(p, s, n, PADDINGS[1]).residual(s, x),
    "splines": lambda p, s, n, x: spline_residual(p, p, s, n, x),
    "splines, high": lambda p, s, n, x: spline_residual(p, 2 * p - 1, s, n, x),
    "points": point_residual,
}
