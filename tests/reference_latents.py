"""Independent reference for several latents: numpy and scipy only, integrals on dense grids."""

import numpy as np

from scipy import special, stats


def heteroskedastic_gaussian(f, g, y):
    return stats.norm.logpdf(y, f, np.exp(g))


def heteroskedastic_student_t(f, g, y, nu):
    return stats.t.logpdf((y - f) * np.exp(-g), nu) - g


def log_rising(a, y):
    """Log of a (a + 1) ... (a + y - 1)."""
    return sum((np.log(a + i) for i in range(int(y))), np.zeros_like(a))


def heteroskedastic_negative_binomial(f, g, y, exposure):
    a, m = np.exp(g), exposure * np.exp(f)
    none = -a * np.log1p(m / a)
    return log_rising(a, y) - special.gammaln(y + 1) + y * np.log(m / (a + m)) + none


def heteroskedastic_beta_binomial(f, g, y, n):
    a, b = np.exp(g) * special.expit(f), np.exp(g) * special.expit(-f)
    rising = log_rising(a, y) + log_rising(b, n - y) - log_rising(a + b, n)
    return np.log(special.comb(n, y)) + rising


def heteroskedastic_zero_inflated_poisson(f, g, y, exposure):
    rate = exposure * np.exp(f)
    if y == 0:
        return np.log(special.expit(g) + special.expit(-g) * np.exp(-rate))
    return special.log_expit(-g) + y * np.log(rate) - rate - special.gammaln(y + 1)


def custom_gamma(f, g, y):
    mean, sd = np.exp(f), np.exp(g)
    shape = mean**2 / sd**2
    return stats.gamma.logpdf(y, shape, scale=mean / shape)


def _rule(n, reach):
    t = np.linspace(-reach, reach, n)
    w = np.exp(-(t**2) / 2)
    return t, w / w.sum()


def two(logpdf, mu, gamma, n=(1501, 121), reach=8.0):
    """``E log p`` and ``log E p`` of two independent normal functions, on a dense grid."""
    (s, w), (t, v) = (_rule(k, reach) for k in n)
    f, g = mu[0] + np.sqrt(gamma[0]) * s[:, None], mu[1] + np.sqrt(gamma[1]) * t
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        values = logpdf(f, g) + np.zeros((n[0], n[1]))
    return w @ values @ v, special.logsumexp(values, b=w[:, None] * v)


def softmax(mu, gamma, y, n=201, reach=8.5):
    """``E log p`` and ``log E p`` of the softmax of three functions: two differences matter."""
    # d_j = f_j - f_y has a common part: integrate f_y last.
    order = [y, *(j for j in range(3) if j != y)]
    t, w = _rule(n, reach)
    f = [mu[j] + np.sqrt(gamma[j]) * t for j in order]
    grids = np.meshgrid(*f, indexing="ij", sparse=True)
    top = np.maximum(np.maximum(*grids[:2]), grids[2])
    logp = grids[0] - top - np.log(sum(np.exp(g - top) for g in grids))
    expected = np.einsum("ijk,i,j,k", logp, w, w, w)
    return expected, np.log(np.einsum("ijk,i,j,k", np.exp(logp), w, w, w))
