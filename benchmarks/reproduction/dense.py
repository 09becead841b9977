"""What the priors of the kernel do to small classification sets: all rows, numpy and no package.

A Gaussian posterior of f with a full covariance, probit link, fitted by its KL divergence as the
column KL of Matthews' thesis, table 4.3, with or without Gamma(1.1, 1) priors on the parameters. It
shares no code with the package: a check of `raetsch.py` and of what its scores depend on.
"""

import time

import numpy as np
import scipy.linalg
import scipy.optimize

from common import arguments, command, standardised, write
from raetsch import PUBLISHED, SETS, split_of
from scipy.special import log_ndtr

import pymc_vsgp as vsgp

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
JITTER = 1e-6
LARGEST = 12.0  # of a logarithm of a parameter
KINDS = {
    "isotropic, no priors": (False, False),
    "isotropic, priors": (False, True),
    "ARD, no priors": (True, False),
    "ARD, priors": (True, True),
}


def posterior(K, sign, sites):
    """Fit q(f) given the kernel matrix, from sites; returns the bound, sites, and what predicts."""
    linear, precision = sites
    for _ in range(150):
        root = np.sqrt(precision)
        L = np.linalg.cholesky(np.eye(len(K)) + root[:, None] * K * root)
        half = scipy.linalg.solve_triangular(L, root[:, None] * K, lower=True)
        S = K - half.T @ half
        mean = S @ linear
        z = sign[:, None] * (mean[:, None] + np.sqrt(np.diag(S))[:, None] * NODES)
        log_p = log_ndtr(z)
        ratio = np.exp(-0.5 * z**2 - log_p) / np.sqrt(2.0 * np.pi)
        new_precision = (ratio * (z + ratio)) @ WEIGHTS
        new_linear = (sign[:, None] * ratio) @ WEIGHTS + new_precision * mean
        change = max(np.abs(new_linear - linear).max(), np.abs(new_precision - precision).max())
        linear = linear + 0.9 * (new_linear - linear)
        precision = precision + 0.9 * (new_precision - precision)
        if change < 1e-7:
            break
    inverse = scipy.linalg.cho_solve((L, True), np.eye(len(K)))
    a = linear - precision * mean  # K^-1 mean
    kl = 0.5 * (np.trace(inverse) + mean @ a - len(K)) + np.log(np.diag(L)).sum()
    return (log_p @ WEIGHTS).sum() - kl, (linear, precision), (a, L, root, inverse)


def squares(X, Z):
    """Squared distance in each column."""
    return (X[:, None] - Z) ** 2


def fit(X, sign, ard, priors):
    """Maximise over variance and lengthscales; returns their logarithms and what predicts."""
    d2 = squares(X, X)
    sites = np.zeros(len(X)), np.full(len(X), 0.5)

    def kernel(theta):
        K = np.exp(theta[0] - 0.5 * (d2 * np.exp(-2.0 * theta[1:])).sum(axis=-1))
        return K, K + JITTER * np.exp(theta[0]) * np.eye(len(X))

    def objective(theta):
        nonlocal sites
        if np.abs(theta).max() > LARGEST:
            return 1e6, np.zeros_like(theta)
        K, jittered = kernel(theta)
        bound, sites, (a, _, root, inverse) = posterior(jittered, sign, sites)
        dK = 0.5 * (np.outer(a, a) - root[:, None] * inverse * root) * K
        by_column = np.einsum("ij,ijd->d", dK, d2) * np.exp(-2.0 * theta[1:])
        gradient = np.concatenate([[dK.sum()], by_column if ard else [by_column.sum()]])
        if priors:  # Gamma(1.1, 1), in logarithms
            bound = bound + np.sum(1.1 * theta - np.exp(theta))
            gradient = gradient + 1.1 - np.exp(theta)
        return -bound, -gradient

    start = np.array([1.0] + [np.log(1.5)] * (X.shape[1] if ard else 1))
    theta = scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 60, "maxfun": 120}
    ).x
    _, _, parts = posterior(kernel(theta)[1], sign, sites)
    return theta, parts


def score(theta, parts, X, Xtest, sign):
    """Mean negative log probability of held-out classes."""
    a, L, root, _ = parts
    K = np.exp(theta[0] - 0.5 * (squares(X, Xtest) * np.exp(-2.0 * theta[1:])).sum(axis=-1))
    half = scipy.linalg.solve_triangular(L, root[:, None] * K, lower=True)
    variance = np.exp(theta[0]) - (half**2).sum(axis=0)
    return -float(log_ndtr(sign * (K.T @ a) / np.sqrt(1.0 + variance)).mean())


def main(argv=None):
    options = arguments(__doc__, argv, splits=10, sets=3)
    began = time.perf_counter()
    results = {}
    names = ["thyroid"] if options.smoke else list(SETS)[: options.sets]
    for name in names:
        file, n_train = SETS[name]
        data, rows = vsgp.datasets.load(file), {}
        for kind, (ard, priors) in list(KINDS.items())[: None if name == "thyroid" else 2]:
            each, variances = [], []
            for seed in range(1 if options.smoke else options.splits):
                train, test = split_of(data, seed, n_train)
                inputs = (data["X"][rows].astype(float) for rows in (train, test))
                X, Xtest = standardised(*inputs)
                sign = np.where(data["y"] > 0, 1.0, -1.0)
                if options.smoke:
                    X, train = X[:20], train[:20]
                theta, parts = fit(X, sign[train], ard, priors)
                each.append(score(theta, parts, X, Xtest, sign[test]))
                variances.append(float(np.exp(theta[0])))
            rows[kind] = {"median": np.median(each), "two_sd": 2 * np.std(each), "each": each}
            rows[kind]["variance_median"] = np.median(variances)
            print(name, kind, {k: v for k, v in rows[kind].items() if k != "each"}, flush=True)
        results[name] = {"published": PUBLISHED.get(name, {}).get("KL"), "kinds": rows}
        write("dense", options, {"command": command("dense")}, results, began)
    return results


if __name__ == "__main__":
    main()
