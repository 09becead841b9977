"""Checks of `types_of_features.py`: each against a reference that is computed in another way."""

import numpy as np
import scipy.linalg

from scipy.interpolate import BSpline

from feature_types.bases import (
    DENSITY,
    Interval,
    Torus,
    band_factor,
    band_of_inverse,
    decay_of,
    matern,
    point_residual,
    spline_gram,
    spline_residual,
    spline_values,
    start_precision,
)
from feature_types.rows import plane_rows
from feature_types.times import Dense, Gridded, makers, spline_table


def inner(p, decay, first, second, breaks):
    """Inner product in the kernel's space, by quadrature between breaks.

    `first` and `second` return derivatives 0 to p at places inside the pieces, one row each.
    """
    nodes, weights = np.polynomial.legendre.leggauss(24)
    binom = np.poly1d([1.0, decay]) ** p
    coefficients = binom.coef[::-1]  # of derivatives 0 to p
    total = 0.0
    for a, b in zip(breaks[:-1], breaks[1:], strict=True):
        s = a + (b - a) * (nodes + 1.0) / 2.0
        total += (b - a) / 2.0 * weights @ ((coefficients @ first(s)) * (coefficients @ second(s)))
    start = np.array([breaks[0] + 1e-13])
    scales = decay ** -np.arange(p)
    precision = start_precision(p) * np.outer(scales, scales)
    total /= DENSITY[p] * decay ** (2 * p - 1)
    return total + first(start)[:p, 0] @ precision @ second(start)[:p, 0]


def kernel_at(p, decay, x):
    """Derivatives by s of k(x, s)."""
    poly = [np.poly1d(c) for c in ([1.0], [1.0, 1.0], [1.0 / 3.0, 1.0, 1.0])][p - 1]
    powers = [poly]
    for _ in range(p):
        powers.append(powers[-1].deriv() - powers[-1])

    def derivatives(s):
        r = decay * np.abs(s - x)
        sign = np.sign(s - x) * decay
        return np.array([q(r) * np.exp(-r) * sign**a for a, q in enumerate(powers)])

    return derivatives


def wave(p, omega, left, phase):
    return lambda s: np.array(
        [omega**a * np.cos(omega * (s - left) + a * np.pi / 2 - phase) for a in range(p + 1)]
    )


def spline(p, d, n_cells, i):
    """Derivatives 0 to p of a spline of degree d."""
    knots = np.arange(-d, n_cells + d + 1) / n_cells
    basis = BSpline.basis_element(knots[i : i + d + 2], extrapolate=False)
    each = [basis] + [basis.derivative(a) for a in range(1, p + 1)]
    return lambda s: np.array([np.nan_to_num(f(s)) for f in each])


def full_of(band):
    """The symmetric matrix of which a band is kept."""
    lower = sum(np.diag(band[j:, j], -j) for j in range(band.shape[1]))
    return np.tril(lower) + np.tril(lower, -1).T


def check():
    """Raise if any kind is not what it should be. Returns the largest errors, by name."""
    worst: dict[str, float] = {}

    def record(name, found, wanted, tolerance):
        wanted = np.asarray(wanted)
        error = np.max(np.abs(np.asarray(found) - wanted)) / max(1.0, np.max(np.abs(wanted)))
        assert error < tolerance, f"{name}: {error}"
        worst[name] = max(worst.get(name, 0.0), float(error))

    for p in (1, 2, 3):
        for d in sorted({p, 2 * p - 1}):
            check_splines(record, p, d)
        check_waves(record, p)
        check_values(record, p)
    check_window(record)
    check_plane(record)
    return worst


def check_splines(record, p, d, lengthscale=0.2, n_cells=9):
    x = np.random.default_rng(1).uniform(size=40)
    decay, grid = decay_of(p, lengthscale), np.linspace(0.0, 1.0, n_cells + 1)
    pieces = np.unique(np.r_[grid, 0.37, 0.71])
    k, other = kernel_at(p, decay, 0.37), kernel_at(p, decay, 0.71)
    record("reproducing", inner(p, decay, k, other, pieces), matern(p, decay, 0.34), 1e-10)
    each = [spline(p, d, n_cells, i) for i in range(n_cells + d)]
    values = [inner(p, decay, k, f, pieces) for f in each]
    record("reproducing", values, [f(np.array([0.37]))[0, 0] for f in each], 1e-10)
    band, slope = spline_gram(p, d, decay / n_cells, n_cells)
    dense = np.array([[inner(p, decay, f, g, grid) for f in each] for g in each])
    record("spline gram", full_of(band), dense, 1e-10)
    c, B = spline_values(d, n_cells, x)
    wanted = np.array([f(x)[0] for f in each])
    record("spline gram", B.T, wanted[c + np.arange(d + 1)[:, None], np.arange(len(x))], 1e-12)
    Z, dZ = band_of_inverse(*band_factor(band, slope))
    inverse = np.linalg.inv(full_of(band))
    for j in range(d + 1):
        record("band of inverse", Z[j:, j], np.diag(inverse, -j), 1e-9)
    ends = [spline_gram(p, d, decay / n_cells * np.exp(-e), n_cells)[0] for e in (1e-5, -1e-5)]
    up, down = (band_of_inverse(*band_factor(b, slope))[0] for b in ends)
    record("its derivative", dZ, (up - down) / 2e-5, 1e-6)
    record("limit", spline_residual(p, d, lengthscale, {1: 3000, 2: 600, 3: 100}[p], x), 0.0, 1e-3)


def check_waves(record, p, lengthscale=0.2):
    x = np.random.default_rng(1).uniform(size=40)
    decay = decay_of(p, lengthscale)
    kind = Interval(p, lengthscale, 11, 0.5)
    breaks = np.linspace(kind.left, kind.left + kind.period, 30)
    alpha, C, S = kind.gram(decay)
    for phase, W in ((0.0, C), (np.pi / 2, S)):
        first = int(phase > 0)
        waves = [wave(p, w, kind.left, phase) for w in kind.omega[first:]]
        full = np.array([[inner(p, decay, f, g, breaks) for f in waves] for g in waves])
        record("interval gram", (np.diag(alpha) + W @ W.T)[first:, first:], full, 1e-9)
    # Periodic waves do not span the space of an interval: its ends have to be far away.
    for many in (Torus(p, lengthscale, 6001), Interval(p, lengthscale, 6001, 8.0)):
        V, C, S, _ = many.parts(decay)
        t = np.outer(x - many.left, many.omega)
        Q = (np.cos(t) * V) @ np.cos(t).T + (np.sin(t) * V) @ np.sin(t).T
        for W, f in ((C, np.cos(t)), (S, np.sin(t))):
            Q -= (f @ W) @ (f @ W).T
        copies = many.period * np.arange(-4, 5) if isinstance(many, Torus) else np.zeros(1)
        K = matern(p, decay, (x[:, None] - x)[:, :, None] + copies).sum(2)
        record("limit", Q, K, 2e-3)
    record("limit", point_residual(p, lengthscale, {1: 2500, 2: 500, 3: 120}[p], x), 0.0, 1e-3)


def check_values(record, p, lengthscale=0.2, n=41, scale=1.3, e=1e-5):
    rng = np.random.default_rng(2)
    x, v, direction = rng.uniform(size=40), rng.normal(size=n), rng.normal(size=n)
    y = rng.poisson(2.0, len(x)).astype(float)
    needed = dict.fromkeys(["torus", "interval", "splines", "splines, high"], n)
    values, decay = {}, decay_of(p, lengthscale)
    for name, make in makers(p, lengthscale, needed, 0.5).items():
        f = make(x, y)
        values[name], gv, g_length, g_scale = f(v, lengthscale, scale)
        up, down = (
            f(v + s * direction, lengthscale * np.exp(s), scale * np.exp(2.0 * s))[0]
            for s in (e, -e)
        )
        record("gradient", gv @ direction + g_length + 2.0 * g_scale, (up - down) / (2 * e), 1e-6)

    def dense(A):
        """The value from features at the rows, in coordinates in which they are independent."""
        mu, gamma = scale * v @ A, scale**2 * (1.0 - (A**2).sum(0))
        return (y * mu - np.exp(mu + gamma / 2.0)).sum()

    for name, d in (("splines", p), ("splines, high", 2 * p - 1)):
        c, B = spline_values(d, n - d, x)
        full = np.zeros((n, len(x)))
        full[c + np.arange(d + 1)[:, None], np.arange(len(x))] = B.T
        factor = np.linalg.cholesky(full_of(spline_gram(p, d, decay / (n - d), n - d)[0]))
        record("value", values[name], dense(np.linalg.solve(factor, full)), 1e-9)
    kind = Torus(p, lengthscale, n)
    V, _, _, rest = kind.parts(decay)
    t = np.outer(kind.omega, x)
    A = np.sqrt(np.r_[V, V[1:]])[:, None] * np.vstack([np.cos(t), np.sin(t)[1:]])
    mu, gamma = scale * v @ A, scale**2 * (rest + V.sum() - (A**2).sum(0))
    wanted = (y * mu - np.exp(mu + gamma / 2.0)).sum()
    record("value", values["torus, dense"], wanted, 1e-9)
    for form in ("cells", "window", "stored"):
        record("value by a grid", values[f"torus, {form}"], wanted, 1e-6)
    kind = Interval(p, lengthscale, n, 0.5)
    alpha, C, S = kind.gram(decay)
    t = np.outer(kind.omega, x - kind.left)
    waves = np.vstack([np.cos(t), np.sin(t)[1:]])
    W = scipy.linalg.block_diag(C, S[1:])
    inverse = np.linalg.inv(np.diag(np.r_[alpha, alpha[1:]]) + W @ W.T)
    each = [Dense(kind, x, y).weights(u, lengthscale) for u in np.eye(n)]
    T = np.array([np.r_[c[0], s[0, 1:]] for c, s, _ in each]).T
    record("whitening", T @ T.T, inverse, 1e-9)
    mu = scale * (T @ v) @ waves
    gamma = scale**2 * (1.0 - (waves * (inverse @ waves)).sum(0))
    wanted = (y * mu - np.exp(mu + gamma / 2.0)).sum()
    record("value", values["interval, dense"], wanted, 1e-9)


def check_window(record):
    """The sum of 401 waves at rows."""
    rng = np.random.default_rng(3)
    kind, x = Torus(2, 0.03, 401), rng.uniform(size=40)
    c, s = rng.normal(size=(2, 201)) * np.sqrt(kind.parts(decay_of(2, 0.03))[0])
    t = np.outer(x, kind.omega)
    exact = np.cos(t) @ c + np.sin(t) @ s
    record("window", Gridded(kind, x, 0 * x).mean(c, s), exact, 1e-6)


def check_plane(record, d=2, side=5, rest=1.2, e=1e-5):
    """Rows of two inputs, beside products of splines by scipy."""
    rng = np.random.default_rng(4)
    X, grid = rng.uniform(0.0, side, size=(30, 2)), rng.normal(size=(2, side + d, side + d))
    y, G = rng.poisson(2.0, 30).astype(float), rng.normal(size=(2, 2, side, 2 * d + 1)) / 3.0
    each = [spline(0, d, side, i) for i in range(side + d)]
    F = np.array([f(X.ravel() / side)[0] for f in each]).T.reshape(30, 2, -1)
    mu = np.einsum("ni,nj,ij->n", F[:, 0], F[:, 1], grid[0])
    c = X.astype(int)
    powers = (X - c - 0.5)[:, :, None] ** np.arange(2 * d + 1)
    q = [(powers[:, k] * G[0, k, c[:, k]]).sum(1) for k in range(2)]
    wanted = (y * mu - np.exp(mu + 0.5 * (rest - q[0] * q[1]))).sum()
    T, none = spline_table(d), np.zeros((0, 2, d + 1))
    stored = (X - c - 0.5)[:, :, None] ** np.arange(d + 1) @ T
    rows = plane_rows(d + 1, d + 1, 2 * d + 1)
    for weights in (none, stored):
        value, g_grid, gG, g_rest = rows(X, y, grid[0], T, G[0], rest, weights)
        record("value, two inputs", value, wanted, 1e-12)
        up, down = (
            rows(X, y, grid[0] + s * grid[1], T, G[0] + s * G[1], rest + s, weights)[0]
            for s in (e, -e)
        )
        slope = (g_grid * grid[1]).sum() + (gG * G[1]).sum() + g_rest
        record("gradient, two inputs", slope, (up - down) / (2 * e), 1e-6)
