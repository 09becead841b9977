"""Expectations of likelihoods of several functions, beside sums over fine grids in numpy.

Of ten functions there is no grid: there it is the mean of ten million draws.
"""

import functools

from functools import partial

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_latents

from scipy import special, stats

from pymc_vsgp import likelihoods
from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.likelihoods.quadrature import roughly

N_DRAWS, CHUNK = 10_000_000, 250_000
W = np.array([[1.0, -0.4], [0.3, 0.8]])


def log_rising(a, y):
    return special.gammaln(a + y) - special.gammaln(a)


def softmax(f, y):
    top = f.max(axis=0)
    return f[y] - top - np.log(np.exp(f - top).sum(axis=0))


def student_t(f, y, nu=4.0):
    constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - np.log(nu * np.pi) / 2
    z = (y - f[0]) * np.exp(-f[1])
    return constant - f[1] - (nu + 1) / 2 * np.log1p(z * z / nu)


def normal(f, y):
    return -np.log(2 * np.pi) / 2 - f[1] - ((y - f[0]) * np.exp(-f[1])) ** 2 / 2


def negative_binomial(f, y):
    a, m = np.exp(f[1]), 2.0 * np.exp(f[0])
    counted = log_rising(a, y) - special.gammaln(y + 1) + y * np.log(m / (a + m))
    return counted - a * np.log1p(m / a)


def beta_binomial(f, y, n=12):
    p, total = 1 / (1 + np.exp(-f[0])), np.exp(f[1])
    rising = log_rising(total * p, y) + log_rising(total * (1 - p), n - y) - log_rising(total, n)
    return np.log(special.comb(n, y)) + rising


def zero_inflated_poisson(f, y):
    inflated, rate = 1 / (1 + np.exp(-f[1])), 2.0 * np.exp(f[0])
    if y == 0:
        return np.log(inflated + (1 - inflated) * np.exp(-rate))
    return np.log1p(-inflated) + y * np.log(rate) - rate - special.gammaln(y + 1)


def custom_gamma(f, y):
    return reference_latents.custom_gamma(*f, y)


def mixed_poisson(f, y):
    logs = (W @ f) * np.c_[y] - np.exp(W @ f) - special.gammaln(np.c_[y] + 1)
    return logs.sum(axis=0)


def gamma_of_two(f, g):
    return pm.Gamma.dist(mu=pm.math.exp(f), sigma=pm.math.exp(g))


# name: (likelihood, log density of f, one function a row, and y; y, means, variances)
CASES = {
    "Softmax 3": (likelihoods.Softmax(3), softmax, 1, [0.4, -0.3, 1.0], [1.0, 0.5, 2.0]),
    "Softmax 10": (
        likelihoods.Softmax(10),
        softmax,
        4,
        np.linspace(-1.5, 1.5, 10),
        np.linspace(0.2, 3.0, 10),
    ),
    "RobustMax 3": (
        likelihoods.RobustMax(3, epsilon=0.05),
        None,
        2,
        [0.4, -0.3, 0.5],
        [1.0, 0.01, 2.0],
    ),
    "RobustMax 10": (
        likelihoods.RobustMax(10, epsilon=0.05),
        None,
        8,
        np.linspace(-1.5, 1.5, 10),
        np.linspace(0.2, 3.0, 10),
    ),
    "HeteroskedasticGaussian": (
        likelihoods.HeteroskedasticGaussian(),
        normal,
        1.2,
        [0.3, -0.2],
        [0.5, 0.1],
    ),
    "HeteroskedasticStudentT": (
        likelihoods.HeteroskedasticStudentT(nu=4.0),
        student_t,
        3.0,
        [0.3, -0.2],
        [0.5, 0.4],
    ),
    "HeteroskedasticNegativeBinomial": (
        likelihoods.HeteroskedasticNegativeBinomial(exposure=2.0),
        negative_binomial,
        3,
        [0.3, 0.5],
        [0.3, 0.4],
    ),
    "HeteroskedasticBetaBinomial": (
        likelihoods.HeteroskedasticBetaBinomial(n=12),
        beta_binomial,
        4,
        [0.3, 1.0],
        [0.5, 0.4],
    ),
    "HeteroskedasticZeroInflatedPoisson, zero": (
        likelihoods.HeteroskedasticZeroInflatedPoisson(exposure=2.0),
        zero_inflated_poisson,
        0,
        [0.3, 0.5],
        [0.8, 2.0],
    ),
    "HeteroskedasticZeroInflatedPoisson, three": (
        likelihoods.HeteroskedasticZeroInflatedPoisson(exposure=2.0),
        zero_inflated_poisson,
        3,
        [0.3, -0.5],
        [0.3, 0.8],
    ),
    "Custom": (
        likelihoods.Custom(gamma_of_two),
        custom_gamma,
        1.3,
        [0.5, -0.6],
        [0.05, 0.1],
    ),
    "Coregionalized": (
        Mixed(likelihoods.Poisson(), W),
        mixed_poisson,
        [2.0, 1.0],
        [0.3, -0.4],
        [0.3, 0.5],
    ),
}


def monte_carlo(logp, y, mu, gamma, seed):
    """Mean of the log density over draws, and its standard error."""
    rng = np.random.default_rng(seed)
    mu, sd = np.c_[mu], np.sqrt(np.c_[gamma])
    n_chunks = N_DRAWS // CHUNK
    total = square = origin = 0.0
    for i in range(n_chunks):
        f = rng.standard_normal((len(mu), CHUNK))
        f *= sd
        f += mu
        values = logp(f, y)
        origin = values.mean() if i == 0 else origin
        values -= origin
        total += values.sum()
        square += values @ values
    mean = total / N_DRAWS
    return origin + mean, np.sqrt((square / N_DRAWS - mean**2) / N_DRAWS)


def on_a_grid(logp, y, mu, gamma):
    """The trapezoidal rule in standard units, which converges at once for smooth functions."""
    z = np.linspace(-9.0, 9.0, {2: 361, 3: 91}[len(mu)])
    p = np.exp(-(z**2) / 2.0)
    p /= p.sum()
    f = np.stack(
        np.meshgrid(*(m + np.sqrt(g) * z for m, g in zip(mu, gamma, strict=True)), indexing="ij")
    )
    weights = functools.reduce(np.multiply.outer, [p] * len(mu))
    return weights.ravel() @ logp(f.reshape(len(mu), -1), y)


def largest(mu, gamma, y):
    """Probability that f_y is the largest, by the other distribution functions on a fine line."""
    sd = np.sqrt(gamma)
    f = mu[y] + sd[y] * np.linspace(-9.0, 9.0, 200_001)
    others = [
        stats.norm.cdf(f, m, s) for k, (m, s) in enumerate(zip(mu, sd, strict=True)) if k != y
    ]
    return np.trapezoid(stats.norm.pdf(f, mu[y], sd[y]) * np.prod(others, axis=0), f)


def expectation(name):
    """What the library says, and the case."""
    lik, logp, y, mu, gamma = CASES[name]
    m, g = pt.dmatrices("mu", "gamma")
    expected = lik.expected_logp(m, g, pt.as_tensor(np.array([y])))
    fn = pytensor.function([m, g], expected, mode="FAST_COMPILE")
    mu, gamma = np.asarray(mu, dtype=float), np.asarray(gamma, dtype=float)
    return fn(mu[None], gamma[None])[0], logp, y, mu, gamma


@pytest.mark.parametrize("name", [n for n in CASES if "RobustMax" not in n and "10" not in n])
def test_expectation_is_the_sum_over_a_grid(name):
    got, *case = expectation(name)
    np.testing.assert_allclose(got, on_a_grid(*case), atol=1e-4)


@pytest.mark.parametrize(
    ("lik", "logp", "y", "mu", "sd"),
    [
        (likelihoods.HeteroskedasticNegativeBinomial(2.0), negative_binomial, 10_000, [8, 4], 2),
        (likelihoods.HeteroskedasticNegativeBinomial(2.0), negative_binomial, 1, [1, -5], 3),
        (
            likelihoods.HeteroskedasticBetaBinomial(300),
            partial(beta_binomial, n=300),
            30,
            [0, 4],
            2,
        ),
        (likelihoods.HeteroskedasticStudentT(1000.0), partial(student_t, nu=1000.0), 0, [0, 0], 1),
    ],
    ids=["many counts", "few counts", "successes", "nearly normal"],
)
def test_a_noise_that_varies_much(lik, logp, y, mu, sd):
    """Nodes of the quadrature are near the mean, and near where the log density bends."""
    gamma = [0.25, sd**2]
    args = (np.array([x], dtype=float) for x in (mu, gamma, y))
    found = lik.expected_logp(*args).eval(mode="FAST_COMPILE")
    np.testing.assert_allclose(found, on_a_grid(logp, y, mu, gamma), rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in CASES if "RobustMax" in n])
def test_expectation_of_robust_max(name):
    got, logp, y, mu, gamma = expectation(name)
    p = largest(mu, gamma, y)
    hit, miss = np.log1p(-0.05), np.log(0.05 / (len(mu) - 1))
    np.testing.assert_allclose(got, p * hit + (1.0 - p) * miss, atol=1e-6)


@pytest.mark.slow
def test_expectation_is_the_mean_of_ten_million_draws():
    got, *case = expectation("Softmax 10")
    mean, error = monte_carlo(*case, seed=20150612)
    # Without the variances most means would be off by a tenth and more.
    assert 0.0 < error < 1e-3
    assert abs(got - mean) < 5 * error


def about(fn, mu, gamma):
    """What `roughly` says."""
    m, g = pt.matrix("mu", shape=mu.shape), pt.matrix("gamma", shape=mu.shape)
    graph = list(roughly(fn, m, g))
    return pytensor.function([m, g], graph, mode="FAST_COMPILE")(mu, gamma)


@pytest.mark.parametrize("K", [2, 3, 7])
def test_rough_expectations_of_quadratics_are_exact(K, rng):
    B, c = rng.normal(size=(K, K)), rng.normal(size=K)
    mu, gamma = rng.normal(size=(5, K)), rng.gamma(1.0, size=(5, K))
    value, bend = about(lambda f: pt.sum(f * c - f * pt.dot(f, B), axis=-1), mu, gamma)
    exact = mu @ c - np.einsum("ni,ij,nj->n", mu, B, mu) - gamma @ np.diag(B)
    np.testing.assert_allclose(value, exact, rtol=1e-10)
    np.testing.assert_allclose(bend, np.broadcast_to(-B - B.T, (5, K, K)), rtol=1e-10)


@pytest.mark.parametrize("K", [3, 6])
def test_rough_expectations_of_classes(K, rng):
    """Coordinates of inducing values need no more: 400,000 draws tell how far off they are."""
    mu, gamma = rng.normal(size=(1, K)), rng.gamma(1.0, size=(1, K))
    lik = likelihoods.Softmax(K)
    value, bend = about(lambda f: lik.log_prob(f, np.array([1])), mu, gamma)
    f = mu + np.sqrt(gamma) * rng.normal(size=(400_000, K))
    p = np.exp(f - special.logsumexp(f, axis=1, keepdims=True))
    exact = p.T @ p / len(p) - np.diag(p.mean(axis=0))
    assert abs(value[0] - np.log(p[:, 1]).mean()) < 0.05
    assert np.abs(bend[0] - exact).max() < 0.15 * np.abs(exact).max()
    np.testing.assert_allclose(bend[0].sum(axis=1), 0.0, atol=1e-12)  # differences alone count
