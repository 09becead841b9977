"""Draws figures of `how_it_works.md` and `which_gp.md` into `docs/_static`.

Usage: python docs/make_figures.py. Plain numpy, so that the figures show the mathematics and not
this package's own answer to it; times are those of `benchmarks/results`.
"""

import json
import pathlib

import matplotlib.pyplot as plt
import numpy as np

plt.style.use(pathlib.Path(__file__).resolve().with_name("matplotlibrc"))
FOLDER = pathlib.Path(__file__).resolve().parent / "_static"
INK, RUST, GREY = "C0", "C1", "gray"


def kernel(a, b, lengthscale, variance=1.0):
    """Squared exponential covariance between two sets of numbers."""
    return variance * np.exp(-0.5 * ((a[:, None] - b[None, :]) / lengthscale) ** 2)


def given_inducing_values(x, z, v, lengthscale, variance=1.0):
    """Return mean and variance of the function at x, given whitened values v at z."""
    R = np.linalg.cholesky(kernel(z, z, lengthscale, variance) + 1e-8 * variance * np.eye(len(z)))
    A = np.linalg.solve(R, kernel(z, x, lengthscale, variance))
    return A.T @ v, variance - (A**2).sum(axis=0), A, R


def clean(ax):
    """Take off what a figure this small does not need."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def expectation(path):
    """What is known of f given u, and the expected log density of a count."""
    x = np.linspace(0, 10, 400)
    truth = np.sin(x) + 0.4 * np.sin(2.3 * x)
    fig, axes = plt.subplots(
        1, 3, figsize=(10, 2.9), layout="constrained", width_ratios=[1, 1, 0.9]
    )
    for ax, M in zip(axes, (7, 10), strict=False):
        z = np.linspace(0.3, 9.7, M)
        R = np.linalg.cholesky(kernel(z, z, 0.9) + 1e-8 * np.eye(M))
        v = np.linalg.solve(R, np.interp(z, x, truth))
        mu, gamma, *_ = given_inducing_values(x, z, v, 0.9)
        band = 2 * np.sqrt(np.maximum(gamma, 0))
        ax.fill_between(x, mu - band, mu + band, color=INK, alpha=0.18, lw=0)
        ax.plot(x, truth, color=GREY, lw=1, ls="--", label="a function")
        ax.plot(x, mu, color=INK, lw=1.6, label=r"$\mu$, with $\pm 2\sqrt{\gamma}$")
        ax.plot(z, np.interp(z, x, truth), "o", color=RUST, ms=4, label="$u$ at $X_u$")
        ax.set_title(f"$f$ given $u$, $M = {M}$", fontsize=10)
        ax.set(xlabel="x", ylim=(-3.2, 2.6))
        clean(ax)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right", ncols=3, columnspacing=1)

    mu, count = np.linspace(-1.5, 2.7, 300), 3
    for gamma, alpha in ((0.0, 1.0), (0.25, 0.7), (1.0, 0.4)):
        phi = count * mu - np.exp(mu + gamma / 2) - np.log(6)
        axes[2].plot(mu, phi, color=INK, alpha=alpha, lw=1.6, label=rf"$\gamma = {gamma:g}$")
        axes[2].plot(*max(zip(mu, phi, strict=True), key=lambda p: p[1]), "o", color=RUST, ms=4)
    axes[2].set_title(r"$\phi = \mathrm{E}\,\log\,\mathrm{Poisson}(3; e^f)$", fontsize=10)
    axes[2].set(xlabel=r"$\mu$", ylim=(-8, 0))
    axes[2].legend(frameon=False, fontsize=8)
    clean(axes[2])
    fig.savefig(path, dpi=110)
    plt.close(fig)


def conditional_posterior(y, A, weight):
    """Return mode and covariance of v given the lengthscale, for Poisson counts, by Newton."""
    v, gamma = np.zeros(len(A)), 1.0 - (A**2).sum(axis=0)
    for _ in range(50):
        rate = weight * np.exp(A.T @ v + gamma / 2)
        precision = np.eye(len(A)) + (A * rate) @ A.T
        step = np.linalg.solve(precision, A @ (y - rate) - v)
        v = v + step / max(1.0, np.abs(step).max())
    return v, np.linalg.inv(precision), rate


def coordinates(path):
    """Posterior of one coordinate for each lengthscale: whitened, and with sites."""
    rng = np.random.default_rng(3)
    x, z = np.sort(rng.uniform(0, 10, 300)), np.linspace(0, 10, 15)
    y, weight, middle = rng.poisson(10 * np.exp(np.sin(x))), 10.0, 1.6
    _, _, A, R = given_inducing_values(x, z, np.zeros(15), middle)
    v, _, rate = conditional_posterior(y, A, weight)
    # Sites: the data's Gaussian pseudo-observations of u, made at one lengthscale and kept.
    B = np.linalg.solve(R.T, A)
    precision = (B * rate) @ B.T
    linear = B @ (y - rate) + precision @ (R @ v)

    lengthscales = np.geomspace(1.0, 2.5, 60)
    summaries = {"whitened: $v$": [], "following the lengthscale: $\\epsilon$": []}
    j = 2
    for lengthscale in lengthscales:
        _, _, A, R = given_inducing_values(x, z, np.zeros(15), lengthscale)
        v, S, _ = conditional_posterior(y, A, weight)
        P = np.eye(15) + R.T @ precision @ R
        L = np.linalg.cholesky(P)
        mean, cov = L.T @ (v - np.linalg.solve(P, R.T @ linear)), L.T @ S @ L
        whitened, following = summaries.values()
        whitened.append((v[j], np.sqrt(S[j, j])))
        following.append((mean[j], np.sqrt(cov[j, j])))

    fig, axes = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained", sharex=True, sharey=True)
    for ax, (title, values) in zip(axes, summaries.items(), strict=True):
        mean, sd = np.array(values).T
        for k, alpha in ((2, 0.18), (1, 0.3)):
            ax.fill_between(
                lengthscales, mean - k * sd, mean + k * sd, color=INK, alpha=alpha, lw=0
            )
        ax.plot(lengthscales, mean, color=INK, lw=1.6)
        ax.axvline(middle, color=RUST, lw=1, ls=":")
        ax.set_title(title, fontsize=10)
        ax.set(xlabel="lengthscale", ylabel="third coordinate")
        clean(ax)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def accuracy(path):
    """CPU time of an effective sample against the distance to the exact process."""
    results = FOLDER.parents[1] / "benchmarks" / "results" / "features.json"
    runs = json.loads(results.read_text(encoding="utf-8"))
    cases = {"coal": "coal, 100 bins", "pines32": "pines, 32 × 32", "pines128": "pines, 128 × 128"}
    kinds = {
        "points": ("inducing points", "o", RUST),
        "Fourier": ("Fourier features", "s", INK),
        "hsgp": ("HSGP", "^", GREY),
        "latent": ("exact", "*", "C2"),
        "kron": (None, "*", "C2"),
    }
    fig, axes = plt.subplots(1, 3, figsize=(10, 3.1), layout="constrained", sharey=True)
    for ax, (case, title) in zip(axes, cases.items(), strict=True):
        for kind, (label, marker, color) in kinds.items():
            of = [r for r in runs if (r["case"], r["kind"]) == (case, kind)]
            cost = [1e3 * r["cpu_seconds"] / r["min_ess"] for r in of]
            ax.plot([r["mean_gap"] for r in of], cost, marker, color=color, label=label)
        ax.axvspan(-0.01, 0.08, color=GREY, alpha=0.15, lw=0)
        ax.set(xlabel="mean of the function off, posterior sd", yscale="log", xlim=(-0.01, None))
        ax.set_title(title, fontsize=10)
        clean(ax)
    axes[0].set_ylabel("CPU ms an effective sample")
    axes[0].legend(frameon=False, fontsize=8, loc="upper right")
    axes[0].set_ylim(15, 20_000)
    fig.savefig(path, dpi=110)
    plt.close(fig)


if __name__ == "__main__":
    accuracy(FOLDER / "accuracy.png")
    expectation(FOLDER / "expectation.png")
    coordinates(FOLDER / "coordinates.png")
