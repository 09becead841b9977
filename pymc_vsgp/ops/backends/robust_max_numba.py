"""`RobustMaxProbability` as one compiled loop, for numba and for Python.

The integrand ``phi(t) prod_j Phi(a_j + b_j t)`` is log-concave and analytic. Two rules:

* the trapezoid rule. The Fourier transform of the integrand decays like
  ``exp(-w^2 / (2 (1 + sum b_j^2)))``, which gives the step that is needed: about 25 nodes for ten
  classes of equal variance;
* where the latent variances differ so much that this takes too many nodes, Gauss-Legendre on
  panels that end where a factor bends.

Phi comes from a table: it is needed to an absolute accuracy only, and `erfc` would take most of
the time.
"""

import math

import numba
import numpy as np

# Raise this with any change below, or of constants that are imported: PyTensor and numba keep what
# they compiled.
VERSION = 2

REACH = 6.3  # in standard deviations; 3e-10 of the mass is beyond
LOWEST = -7.0  # a factor below Phi(LOWEST) = 1e-12 makes the integrand vanish
SMALL = 1e-11  # the integrand is left out where it is smaller
STEP = 0.96  # over sqrt(1 + sum b_j^2): an error of 2 exp(-2 (pi / STEP)^2) = 1e-9 at most
FINEST = 0.05  # panels take over below this step
BENDS = np.array([-6.0, -1.5, 1.5, 6.0])  # where panels end around a bend, in its widths
ENDS = np.array([-3.0, -1.0, 1.0, 3.0])  # and around the bell of phi(t)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)

# Taylor series of Phi around the points of a grid: 1e-14 for Phi, 1e-11 for phi.
FAR = 8.5
PER_UNIT = 16
ORDER = 6
ROOT_2PI = math.sqrt(2.0 * math.pi)


def _table():
    x = np.arange(-FAR * PER_UNIT, FAR * PER_UNIT + 1) / PER_UNIT
    table = np.empty((len(x), ORDER + 1))
    table[:, 0] = [math.erfc(-v / math.sqrt(2.0)) / 2.0 for v in x]
    # Derivatives of phi are phi times Hermite polynomials.
    before, hermite = np.zeros_like(x), np.exp(-(x**2) / 2.0) / ROOT_2PI
    for k in range(1, ORDER + 1):
        table[:, k] = hermite / math.factorial(k)
        before, hermite = hermite, -x * hermite - (k - 1) * before
    return table


TABLE = _table()


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def normal(u):
    """Phi(u) and phi(u), to an absolute accuracy."""
    if u >= FAR:
        return 1.0, 0.0
    if u <= -FAR:
        return 0.0, 0.0
    at = (u + FAR) * PER_UNIT
    i = np.uint64(at + 0.5)
    d = (at - np.float64(i)) / PER_UNIT
    c1, c2, c3 = TABLE[i, 1], TABLE[i, 2], TABLE[i, 3]
    c4, c5, c6 = TABLE[i, 4], TABLE[i, 5], TABLE[i, 6]
    value = TABLE[i, 0] + d * (c1 + d * (c2 + d * (c3 + d * (c4 + d * (c5 + d * c6)))))
    slope = c1 + d * (2.0 * c2 + d * (3.0 * c3 + d * (4.0 * c4 + d * (5.0 * c5 + d * 6.0 * c6))))
    return value, slope


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def add_node(t, w, n, a, b, cdf, pdf, sums):
    """Add the node t to the sums; return the integrand times `w`.

    `sums` has a row for each factor: the integrals of phi(u) and t phi(u) times phi(t) and the
    other factors, with u = a + b t. The first entry of one more row is the integral itself.
    """
    w = w * math.exp(-t * t / 2.0) / ROOT_2PI
    before = w
    for j in range(n):
        cdf[j], pdf[j] = normal(a[j] + b[j] * t)
        # The product of the factors before j, until those after it are there as well.
        p = pdf[j]
        pdf[j] = p * before
        before *= cdf[j]
    sums[n, 0] += before
    after = 1.0
    for j in range(n - 1, -1, -1):
        d = pdf[j] * after
        after *= cdf[j]
        sums[j, 0] += d
        sums[j, 1] += d * t
    return before


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def by_trapezoid(step, lo, n, a, b, cdf, pdf, sums):
    """Integrate from `lo` to `REACH` with nodes at multiples of `step`."""
    i = math.floor(REACH / step)
    seen = False
    while i * step > lo:
        t = i * step
        # Per unit of t, so that the step does not come into the comparison.
        height = add_node(t, step, n, a, b, cdf, pdf, sums) / step
        # The integrand has one peak, and that is not below zero.
        if height > SMALL:
            seen = True
        elif seen or t < 0.0:
            break
        i -= 1


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def by_panels(lo, n, a, b, cdf, pdf, sums, edges):
    """Integrate from `lo` to `REACH` by panels that end where a factor bends."""
    m = 2
    edges[0], edges[1] = lo, REACH
    for x in ENDS:
        if lo < x < REACH:
            edges[m] = x
            m += 1
    for j in range(n):
        for x in BENDS:
            at = (x - a[j]) / b[j]
            if lo < at < REACH:
                edges[m] = at
                m += 1
    edges[:m].sort()
    for i in range(m - 1):
        center, half = (edges[i + 1] + edges[i]) / 2.0, (edges[i + 1] - edges[i]) / 2.0
        if half > 0.0:
            for k in range(len(NODES)):
                add_node(center + half * NODES[k], half * WEIGHTS[k], n, a, b, cdf, pdf, sums)


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def two_classes(mu, gamma, y, dmu, dgamma):
    """Closed form for two classes; fills in the gradients and returns the probability."""
    other = 1 - y
    var = max(gamma[0] + gamma[1], 1e-300)
    sd = math.sqrt(var)
    z = (mu[y] - mu[other]) / sd
    density = math.exp(-z * z / 2.0) / ROOT_2PI
    dmu[y] = density / sd
    dmu[other] = -dmu[y]
    dgamma[:] = -density * z / (2.0 * var)
    return math.erfc(-z / math.sqrt(2.0)) / 2.0


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def one_row(mu, gamma, y, dmu, dgamma, others, a, b, s, cdf, pdf, sums, edges):
    """Fill in the gradients for one datum, and return its probability."""
    K = len(mu)
    dmu[:] = 0.0
    dgamma[:] = 0.0
    total = 0.0
    for k in range(K):
        total += mu[k] + gamma[k]
    if not (math.isfinite(total) and 0 <= y < K):
        dmu[:] = math.nan
        dgamma[:] = math.nan
        return math.nan
    if K == 2:
        return two_classes(mu, gamma, y, dmu, dgamma)
    largest = 1e-280
    for k in range(K):
        largest = max(largest, gamma[k])
    floor = 1e-14 * largest
    sy = math.sqrt(max(gamma[y], floor))
    n = 0
    square = 1.0
    lo = -REACH
    for k in range(K):
        if k == y:
            continue
        sk = math.sqrt(max(gamma[k], floor))
        aj, bj = (mu[y] - mu[k]) / sk, sy / sk
        # A factor that is 1 wherever the integrand counts is left out.
        if aj - bj * REACH > -LOWEST:
            continue
        others[n], s[n], a[n], b[n] = k, sk, aj, bj
        square += bj * bj
        lo = max(lo, (LOWEST - aj) / bj)
        n += 1
    if n == 0:
        return 1.0
    if lo >= REACH:
        return 0.0
    sums[: n + 1] = 0.0
    step = STEP / math.sqrt(square)
    if step > FINEST:
        by_trapezoid(step, lo, n, a, b, cdf, pdf, sums)
    else:
        by_panels(lo, n, a, b, cdf, pdf, sums, edges)
    for j in range(n):
        k = others[j]
        slope = sums[j, 0] / s[j]
        dmu[k] = -slope
        dmu[y] += slope
        # The integral of u phi(u), with u = a + b t.
        dgamma[k] = -(a[j] * sums[j, 0] + b[j] * sums[j, 1]) / (2.0 * s[j] * s[j])
        dgamma[y] += sums[j, 1] / (2.0 * sy * s[j])
    return sums[n, 0]


@numba.njit(cache=True, error_model="numpy", fastmath={"contract"})
def robust_max(mu, gamma, y):
    """Return P, dP/dmu and dP/dgamma; see `RobustMaxProbability`."""
    N, K = mu.shape
    if gamma.shape != mu.shape or y.shape[0] != N:
        raise ValueError("mu and gamma must have one shape, and y as many entries as they rows.")
    mu, gamma = np.ascontiguousarray(mu), np.ascontiguousarray(gamma)
    p, dmu, dgamma = np.empty(N), np.empty((N, K)), np.empty((N, K))
    others = np.empty(K, dtype=np.int64)
    a, b, s, cdf, pdf = np.empty(K), np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    sums = np.empty((K + 1, 2))
    edges = np.empty(len(BENDS) * K + len(ENDS) + 2)
    for i in range(N):
        p[i] = one_row(
            mu[i], gamma[i], y[i], dmu[i], dgamma[i], others, a, b, s, cdf, pdf, sums, edges
        )
    return p, dmu, dgamma
