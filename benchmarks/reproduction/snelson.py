"""Snelson's data, normal noise: how the divergence falls with the number of inducing inputs.

Matthews' thesis, section 2.5: 100 of the 200 rows to train on, the others held out, M = 2 to 16
inducing inputs that the bound places. Everything is known in closed form, so the divergences are
numbers and not estimates: of the process from the exact posterior, and the other way round. The
parameters are those of the exact evidence's maximum, which the thesis prints; the published
split is not known, but the even rows have its parameters and its evidence.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import scipy.linalg
import scipy.optimize

from common import QUIET, arguments, save, write
from scipy.stats import norm

import pymc_vsgp as vsgp

PUBLISHED = {"sd": 0.87, "lengthscale": 0.61, "noise_sd": 0.27, "log_evidence": -33.8}
STARTS = 2
JITTER = 1e-8


def kernel(a, b, sd, lengthscale):
    return sd**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / lengthscale) ** 2)


def log_evidence(theta, x, y):
    sd, lengthscale, noise = np.exp(theta)
    K = kernel(x, x, sd, lengthscale) + noise**2 * np.eye(len(x))
    factor = scipy.linalg.cho_factor(K, lower=True)
    half_log_det = np.log(np.diag(factor[0])).sum()
    return -0.5 * (y @ scipy.linalg.cho_solve(factor, y) + len(x) * np.log(2 * np.pi)) - (
        half_log_det
    )


def exact_prediction(at, x, y, sd, lengthscale, noise):
    """Mean and covariance of the function."""
    K = kernel(x, x, sd, lengthscale) + noise**2 * np.eye(len(x))
    cross = kernel(x, at, sd, lengthscale)
    solved = np.linalg.solve(K, cross)
    return solved.T @ y, kernel(at, at, sd, lengthscale) - cross.T @ solved


def reverse_divergence(m, S, z, x, y, sd, lengthscale, noise, evidence):
    """KL of the exact posterior from the sparse one with q(u) = N(m, S).

    The conditional of everything else given u is the prior's in both, but for the likelihood:
    E_p log p(y | f) - log p(y) + E_p [log p(u) - log q(u)].
    """
    mean, covariance = exact_prediction(x, x, y, sd, lengthscale, noise)
    residual = (y - mean) ** 2 + np.diag(covariance)
    fit = -0.5 * len(x) * np.log(2 * np.pi * noise**2) - residual.sum() / (2 * noise**2)
    mean_u, covariance_u = exact_prediction(z, x, y, sd, lengthscale, noise)
    prior = kernel(z, z, sd, lengthscale) + JITTER * sd**2 * np.eye(len(z))
    covariance_u = covariance_u + JITTER * sd**2 * np.eye(len(z))

    def expected_log_normal(center, spread):
        factor = scipy.linalg.cho_factor(spread, lower=True)
        difference = mean_u - center
        square = difference @ scipy.linalg.cho_solve(factor, difference)
        trace = np.trace(scipy.linalg.cho_solve(factor, covariance_u))
        return -np.log(np.diag(factor[0])).sum() - 0.5 * (square + trace)

    return fit - evidence + expected_log_normal(0.0, prior) - expected_log_normal(m, S)


def titsias_bound(z, x, y, sd, lengthscale, noise):
    """Return the collapsed bound, written out densely: a check on the package's."""
    Kuu = kernel(z, z, sd, lengthscale) + JITTER * sd**2 * np.eye(len(z))
    A = scipy.linalg.solve_triangular(
        np.linalg.cholesky(Kuu), kernel(z, x, sd, lengthscale), lower=True
    )
    Q = A.T @ A
    factor = scipy.linalg.cho_factor(Q + noise**2 * np.eye(len(x)), lower=True)
    log_normal = -0.5 * (y @ scipy.linalg.cho_solve(factor, y) + len(x) * np.log(2 * np.pi))
    log_normal -= np.log(np.diag(factor[0])).sum()
    return log_normal - (sd**2 * len(x) - np.trace(Q)) / (2 * noise**2)


def fit(n_inducing, seed, x, y, sd, lengthscale, noise):
    """Place the inducing inputs by the bound, from one start."""
    X = x[:, None]
    if seed == 0:
        Z = vsgp.inducing.grid(X, n_inducing)
    else:
        Z = vsgp.inducing.kmeans(X, n_inducing, random_seed=seed)
    with pm.Model():
        cov = sd**2 * pm.gp.cov.ExpQuad(1, ls=lengthscale)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=Z, jitter=JITTER)
        gp.likelihood("y", vsgp.Gaussian(noise), X=X, y=y)
        return vsgp.fit_gaussian(move_inducing=True, maxiter=200, tol=1e-5, **QUIET)


def main(argv=None):
    options = arguments(__doc__, argv, starts=STARTS)
    began = time.perf_counter()
    table = vsgp.datasets.load_snelson1d()
    x, y = table["x"].to_numpy(), table["y"].to_numpy()
    x_train, y_train, x_test, y_test = x[::2], y[::2], x[1::2], y[1::2]
    if options.smoke:
        x_train, y_train = x_train[::4], y_train[::4]
    start = np.log([PUBLISHED[k] for k in ("sd", "lengthscale", "noise_sd")])
    best = scipy.optimize.minimize(lambda t: -log_evidence(t, x_train, y_train), start)
    theta = tuple(np.exp(best.x))
    evidence = -float(best.fun)
    noise = theta[2]

    def held_out(mean, variance):
        scale = np.sqrt(variance + noise**2)
        return -float(norm.logpdf(y_test, mean, scale).mean())

    mean, covariance = exact_prediction(x_test, x_train, y_train, *theta)
    exact = held_out(mean, np.diag(covariance))
    rows = []
    for n_inducing in (3,) if options.smoke else range(2, 17):
        tries = [
            fit(n_inducing, seed, x_train, y_train, *theta)
            for seed in range(1 if options.smoke else options.starts)
        ]
        bounds = [stage.elbo for stage in tries]
        stage = tries[int(np.argmax(bounds))]
        z = stage.Xu["u_Xu"][:, 0]
        m, S = stage.mean["u"][0], stage.covariance["u"][0]
        A = np.linalg.solve(
            kernel(z, z, *theta[:2]) + JITTER * theta[0] ** 2 * np.eye(n_inducing),
            kernel(z, x_test, *theta[:2]),
        )
        variance = theta[0] ** 2 - np.sum(A * kernel(z, x_test, *theta[:2]), axis=0)
        variance = variance + np.sum(A * (S @ A), axis=0)
        rows.append(
            {
                "M": n_inducing,
                "kl_sparse_from_exact": evidence - stage.elbo,
                "kl_exact_from_sparse": float(
                    reverse_divergence(m, S, z, x_train, y_train, *theta, evidence)
                ),
                "held_out_negative_log_density": held_out(A.T @ m, variance),
                "bound": stage.elbo,
                "bound_in_numpy": float(titsias_bound(z, x_train, y_train, *theta)),
                "bounds_of_all_starts": bounds,
                "converged": bool(stage.converged),
            }
        )
        print({k: v for k, v in rows[-1].items() if "starts" not in k}, flush=True)
    kl = np.array([row["kl_sparse_from_exact"] for row in rows])
    results = {
        "theta": dict(zip(("sd", "lengthscale", "noise_sd"), theta, strict=True)),
        "log_evidence": evidence,
        "published": PUBLISHED,
        "held_out_negative_log_density_exact": exact,
        "kl_is_monotone": bool((np.diff(kl) < 1e-3).all()),
        "rows": rows,
    }
    draw(rows, exact, options)
    settings = {"train": "even rows", "starts": options.starts, "jitter": JITTER}
    print(write("snelson", options, settings, results, began))
    return results


def draw(rows, exact, options):
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), constrained_layout=True)
    M = [row["M"] for row in rows]
    for key, label in (
        ("kl_sparse_from_exact", "KL of sparse from exact"),
        ("kl_exact_from_sparse", "KL of exact from sparse"),
    ):
        axes[0].semilogy(M, [max(row[key], 1e-6) for row in rows], "o-", ms=4, label=label)
    axes[0].set(xlabel="inducing inputs", ylabel="nats")
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].plot(M, [row["held_out_negative_log_density"] for row in rows], "o-", ms=4)
    axes[1].axhline(exact, color="0.5", lw=1)
    axes[1].set(xlabel="inducing inputs", ylabel="held-out negative log density")
    save(figure, options, "snelson")
    plt.close(figure)


if __name__ == "__main__":
    main()
