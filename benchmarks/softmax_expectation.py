"""E log sum exp(f) over independent normal functions: bounds and rules beside an accurate integral.

Usage: ``python softmax_expectation.py``. The largest error over 20 random means of three functions.
Seconds.
"""

import json
import pathlib

import envs
import numpy as np
import pytensor
import pytensor.tensor as pt

from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

import pymc_vsgp as vsgp

RESULTS = pathlib.Path(__file__).parent / "results"
K, GAMMAS = 3, (0.01, 0.1, 1.0, 4.0, 16.0)
MEANS = np.random.default_rng(1).normal(size=(20, K)) * 2.0


def nodes(n):
    """Gauss-Hermite nodes and weights for a standard normal."""
    t, w = np.polynomial.hermite_e.hermegauss(n)
    return t, w / w.sum()


def largest_of_gumbels(mu, gamma, t, w):
    """The mean of the largest of f + Gumbel noise, less that of the noise: the same expectation."""
    x = np.linspace(-60.0, 80.0, 2801)
    at = mu[:, None] + np.sqrt(gamma) * t
    below = np.prod((np.exp(-np.exp(at[:, None] - x[:, None])) @ w), axis=0)
    # The mean of a variable by its distribution function.
    return x[-1] - np.trapezoid(below, x) - np.euler_gamma


def exact(mu, gamma):
    t = np.linspace(-9.0, 9.0, 401)
    w = np.exp(-(t**2) / 2.0)
    return largest_of_gumbels(mu, gamma, t, w / w.sum())


def jensen(mu, gamma):
    return logsumexp(mu + gamma / 2.0)


def second_order(mu, gamma):
    p = softmax(mu)
    return logsumexp(mu) + gamma / 2.0 * (p * (1.0 - p)).sum()


def tilted(mu, gamma):
    """Knowles and Minka (2011): the least over a."""

    def bound(a):
        return gamma / 2.0 * (a**2).sum() + logsumexp(mu + (1.0 - 2.0 * a) * gamma / 2.0)

    return minimize(bound, softmax(mu), method="BFGS", options={"gtol": 1e-9}).fun


def bouchard(mu, gamma):
    """Bouchard (2007): the least over a shift and a slope for each function."""

    def bound(v):
        a, xi = v[0], np.abs(v[1:]) + 1e-9
        slope = np.tanh(xi / 2.0) / (4.0 * xi)
        each = (mu - a - xi) / 2.0 + slope * ((mu - a) ** 2 + gamma - xi**2)
        return a + (each + np.logaddexp(0.0, xi)).sum()

    start = np.r_[logsumexp(mu) - np.log(2.0), np.sqrt(mu**2 + gamma)]
    options = {"maxiter": 20_000, "maxfev": 20_000, "xatol": 1e-8, "fatol": 1e-10}
    return minimize(bound, start, method="Nelder-Mead", options=options).fun


def product_rule(mu, gamma, n=10):
    t, w = nodes(n)
    f = np.stack(np.meshgrid(*(m + np.sqrt(gamma) * t for m in mu), indexing="ij"))
    return np.einsum("i,j,k,ijk->", w, w, w, logsumexp(f, axis=0))


def one_integral(mu, gamma):
    return largest_of_gumbels(mu, gamma, *nodes(20))


def ours():
    m, g = pt.dmatrix(), pt.dmatrix()
    y = pt.zeros(m.shape[0], dtype="int64")
    fn = pytensor.function([m, g], m[:, 0] - vsgp.Softmax(K).expected_logp(m, g, y), mode="NUMBA")
    return lambda mu, gamma: fn(mu[None], np.full((1, K), gamma))[0]


RULES = {
    "log of the mean (Jensen's bound)": (jensen, "K"),
    "second-order expansion": (second_order, "K"),
    "tilted bound": (tilted, "K a step"),
    "Bouchard's bound": (bouchard, "K a step"),
    "product of 10 Gauss-Hermite nodes": (product_rule, "10^K"),
    "one integral, 20 Gauss-Hermite nodes a class": (one_integral, "20 K a node"),
}


def run():
    """Return the largest errors of each rule, by gamma."""
    rules = {name: rule for name, (rule, _) in RULES.items()}
    rules["**one integral, normal mixtures** (ours)"] = ours()
    known = {gamma: [exact(mu, gamma) for mu in MEANS] for gamma in GAMMAS}
    return {
        name: [
            float(max(abs(rule(mu, gamma) - e) for mu, e in zip(MEANS, of, strict=True)))
            for gamma, of in known.items()
        ]
        for name, rule in rules.items()
    }


def main():
    found = run()
    heads = [f"gamma {gamma:g}" for gamma in GAMMAS]
    lines = [f"| | {' | '.join(heads)} | functions evaluated an observation |"]
    lines.append("|---" * (len(GAMMAS) + 2) + "|")
    for name, row in found.items():
        cost = RULES[name][1] if name in RULES else "1280 K"
        lines.append(f"| {name} | {' | '.join(f'{e:.0e}' for e in row)} | {cost} |")
    print("\n".join(lines))
    envs.save(RESULTS / "softmax_expectation.json", json.dumps(found, indent=1) + "\n")
    envs.save(RESULTS / "softmax_expectation.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
