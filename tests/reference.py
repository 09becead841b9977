"""Independent reference: numpy and scipy only, nothing of the library.

Log densities are written by hand as functions of f, and expectations over f ~ N(mu, gamma) are by
Gauss-Legendre quadrature in panels, short ones wherever the integrand may change.
"""

import numpy as np

from scipy import optimize, special, stats

# --- log p(y | f), one function a family; keywords are the family's parameters -------------------


def gaussian(f, y, sigma):
    return stats.norm.logpdf(y, f, sigma)


def log_normal(f, y, sigma):
    return stats.norm.logpdf(np.log(y), f, sigma) - np.log(y)


def student_t(f, y, nu, sigma):
    r = (y - f) / sigma
    norm = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(np.pi * nu)
    return norm - np.log(sigma) - (nu + 1) / 2 * np.log1p(r * r / nu)


def gumbel(f, y, beta):
    z = (y - f) / beta
    return -z - np.exp(-z) - np.log(beta)


def log_success(f, link):
    if link == "logit":
        return special.log_expit(f)
    if link == "probit":
        return special.log_ndtr(f)
    with np.errstate(divide="ignore", over="ignore"):
        small = f - np.exp(np.minimum(f, 0.0)) / 2  # log(1 - exp(-x)) for x -> 0
        return np.where(f < -20, small, np.log(-np.expm1(-np.exp(np.maximum(f, -20.0)))))


def log_failure(f, link):
    return -np.exp(f) if link == "cloglog" else log_success(-f, link)


def bernoulli(f, y, link):
    return log_success(f, link) if y == 1 else log_failure(f, link)


def binomial(f, y, n, link):
    choose = special.gammaln(n + 1) - special.gammaln(y + 1) - special.gammaln(n - y + 1)
    return choose + special.xlogy(y, 1) + y * log_success(f, link) + (n - y) * log_failure(f, link)


def poisson(f, y, exposure, link):
    if link == "log":
        log_rate, rate = f, np.exp(f)
    elif link == "square":
        with np.errstate(divide="ignore"):
            log_rate, rate = 2 * np.log(np.maximum(np.abs(f), 1e-16)), f * f
    else:
        rate = np.logaddexp(0, f)
        log_rate = np.where(f < -40, f, np.log(np.logaddexp(0, np.maximum(f, -40.0))))
    count = y * (log_rate + np.log(exposure)) if y > 0 else 0.0
    return count - exposure * rate - special.gammaln(y + 1)


def negative_binomial(f, y, alpha, exposure):
    log_p = special.log_expit(f + np.log(exposure / alpha))
    log_q = special.log_expit(-f - np.log(exposure / alpha))
    choose = special.gammaln(y + alpha) - special.gammaln(alpha) - special.gammaln(y + 1)
    return choose + y * log_p + alpha * log_q


def zero_inflated_poisson(f, y, psi, exposure):
    on = np.log(psi) + poisson(f, y, exposure, "log")
    return np.logaddexp(np.log1p(-psi), on) if y == 0 else on


def zero_inflated_negative_binomial(f, y, psi, alpha, exposure):
    on = np.log(psi) + negative_binomial(f, y, alpha, exposure)
    return np.logaddexp(np.log1p(-psi), on) if y == 0 else on


def exponential(f, y):
    return -f - y * np.exp(-f)


def gamma(f, y, alpha):
    scaled = np.log(alpha * y) - f
    return alpha * scaled - alpha * y * np.exp(-f) - special.gammaln(alpha) - np.log(y)


def weibull(f, y, alpha, censored=0.0):
    log_hazard = alpha * (np.log(y) - f)
    event = np.log(alpha) + log_hazard - np.log(y)
    return (1 - censored) * event - np.exp(log_hazard)


def beta(f, y, nu):
    a, b = nu * special.expit(f), nu * special.expit(-f)
    # gammaln(a) = gammaln(a + 1) - log(a), with log(a) written so that it cannot underflow.
    lga = special.gammaln(a + 1) - np.log(nu) - special.log_expit(f)
    lgb = special.gammaln(b + 1) - np.log(nu) - special.log_expit(-f)
    return special.gammaln(nu) - lga - lgb + (a - 1) * np.log(y) + (b - 1) * np.log1p(-y)


# --- expectations --------------------------------------------------------------------------------


GAUSS = [np.polynomial.legendre.leggauss(n) for n in (24, 40)]


def integral(fn, lo, hi, points):
    """Integral of fn over (lo, hi): Gauss-Legendre between break points, at two orders."""
    edges = np.r_[lo, np.unique(points[(points > lo) & (points < hi)]), hi]
    middle, half = (edges[1:] + edges[:-1])[:, None] / 2, np.diff(edges)[:, None] / 2
    coarse, fine = ((fn(middle + half * x) * half * w).sum() for x, w in GAUSS)
    assert abs(fine - coarse) < 1e-9 * max(1.0, abs(fine)), fine - coarse
    return fine


def break_points(mu, sd, center, width):
    """In standard units: every few standard deviations, and geometrically around the center."""
    steps = width * np.geomspace(1e-13, 100.0, 46)
    around = (center + np.r_[-steps, 0.0, steps] - mu) / sd
    return np.r_[np.arange(-29.0, 30.0), around]


def expected_logp(logpdf, mu, gamma, center=0.0, width=1.0, reach=30.0):
    """``E[logpdf(f)]`` for f ~ N(mu, gamma), and its derivatives in mu and in gamma.

    The derivatives are by Stein's identities, so they need none of logpdf:
    ``E[g t] / sd`` and ``E[g (t^2 - 1)] / (2 gamma)`` with f = mu + sd t.
    """
    sd = np.sqrt(gamma)
    base = logpdf(mu)
    base = base if np.isfinite(base) else 0.0  # integrate the difference: less to cancel
    points = break_points(mu, sd, center, width)

    def expect(weight):
        def integrand(t):
            return weight(t) * stats_normal(t) * (logpdf(mu + sd * t) - base)

        return integral(integrand, -reach, reach, points)

    value = base + expect(lambda t: 1.0)
    return value, expect(lambda t: t) / sd, expect(lambda t: t * t - 1) / (2 * gamma)


def stats_normal(t):
    return np.exp(-t * t / 2) / np.sqrt(2 * np.pi)


def log_predictive(logpdf, mu, gamma, center=0.0, width=1.0):
    """``log E[exp(logpdf(f))]`` for f ~ N(mu, gamma)."""
    sd = np.sqrt(gamma)

    def height(t):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            h = logpdf(mu + sd * t) - t * t / 2
        return np.where(np.isnan(h), -np.inf, h)

    spread = np.sinh(np.linspace(-9, 9, 1201))
    grid = np.unique(np.r_[spread, (center + width * spread - mu) / sd])
    h = height(grid)
    k = int(np.argmax(h))
    peak = optimize.minimize_scalar(
        lambda t: -height(t), bounds=(grid[k - 1], grid[k + 1]), method="bounded"
    )
    top, at = -peak.fun, peak.x
    points = grid[h > top - 40]
    if len(points) < 40:  # narrow: the grid around mu says little, so spread out from the peak
        points = np.r_[points, at + 1e-3 * np.sinh(np.linspace(-9, 9, 61))]
        points = points[height(points) > top - 40]
    lo, hi = points.min() - np.ptp(points) / 10, points.max() + np.ptp(points) / 10
    breaks = np.r_[points[:: max(1, len(points) // 30)], at]
    value = integral(lambda t: np.exp(height(t) - top), lo, hi, breaks)
    return top + np.log(value / np.sqrt(2 * np.pi))


def log_mean(logm, mu, gamma):
    """``log E[exp(logm(f))]`` for f ~ N(mu, gamma), for a mean that may grow like ``exp(f)``.

    In log space, in panels around the peak of the integrand, wherever that is.
    """
    sd = np.sqrt(gamma)

    def height(t):
        return logm(mu + sd * t) - t * t / 2

    grid = np.linspace(-60, 60, 24001)
    h = height(grid)
    near = grid[h > h.max() - 45]
    edges = np.linspace(near.min() - 0.01, near.max() + 0.01, 801)
    middle, half = (edges[1:] + edges[:-1])[:, None] / 2, np.diff(edges)[:, None] / 2
    x, w = GAUSS[0]
    value = (np.exp(height(middle + half * x) - h.max()) * half * w).sum()
    return h.max() + np.log(value / np.sqrt(2 * np.pi))
