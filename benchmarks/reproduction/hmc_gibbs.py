"""The paper's samplers, HMC of all variables and Gibbs, on the image data: its comparison of both.

Hensman et al. (2015), section 4.1: HMC of v and theta together, against HMC of v and Metropolis
steps of theta in turns, in whitened coordinates. Both are tuned as there: 30 runs of 30 iterations
at settings that Bayesian optimisation chooses, for the largest expected squared jump. That of HMC
is divided by the root of the most leapfrog steps, whose number is uniform up to that. That of Gibbs
is the geometric mean of those of v and of theta. Chains have 2000 draws in place of 10,000, and
1000 where M is 50 or more; a tenth is discarded, as there.

    python benchmarks/reproduction/hmc_gibbs.py                # resumes, setting by setting
    python benchmarks/reproduction/hmc_gibbs.py --largest 10   # M = 5 and 10
"""

import argparse
import json
import pathlib
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytensor
import pytensor.tensor as pt

from common import PAGES, envs, original_permutation, standardised
from image import N_TRAIN, model_of
from pytensor.graph.replace import graph_replace
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

import pymc_vsgp as vsgp

from pymc_vsgp.compile import function, simplify
from pymc_vsgp.steps.latents import Latents

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
MODE = None  # of PyTensor, which is numba
SIZES = (5, 10, 20, 50, 100)
RUNS, ITERATIONS, FIRST = 30, 30, 6
DRAWS, DISCARDED = {5: 2000, 10: 2000, 20: 2000, 50: 1000, 100: 1000}, 0.1  # a share
SMALLEST, LARGEST, MOST_STEPS = 1e-3, 1.0, 20
# ESS and ESS per second at M = 100, isotropic and ARD; where published.
PUBLISHED = {
    ("isotropic", "HMC"): (11, 1.0e-3),
    ("isotropic", "Gibbs"): (53, 5.1e-3),
    ("ARD", "HMC"): (14, 5.1e-3),
    ("ARD", "Gibbs"): (1.6, 1.5e-4),
}


def leapfrog(x, gradient, slope, step, n, rng):
    """Make a trajectory of Hamiltonian Monte Carlo: where it ends, and the change of energy."""
    value, g = slope
    p = rng.normal(size=x.shape)
    energy = value - p @ p / 2.0
    p = p + 0.5 * step * g
    for i in range(n):
        x = x + step * p
        value, g = gradient(x)
        if not np.isfinite(value):
            return x, -np.inf, (value, g)
        p = p + (step if i < n - 1 else 0.5 * step) * g
    return x, value - p @ p / 2.0 - energy, (value, g)


class Joint:
    """HMC of v and theta together. Settings are the step and the most leapfrog steps."""

    box = np.log([[SMALLEST, LARGEST], [1.0, MOST_STEPS]])

    def __init__(self, model):
        values = model.value_vars
        start = model.initial_point()
        shapes = [np.shape(start[v.name]) for v in values]
        ends = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
        self.theta = np.concatenate(
            [
                np.arange(a, b)
                for v, a, b in zip(values, ends, ends[1:], strict=False)
                if not v.name.startswith("u_")
            ]
        )
        self.places = list(zip(values, ends, ends[1:], shapes, strict=False))
        self.start = np.concatenate([np.ravel(start[v.name]) for v in values])
        self.compile(model)

    def compile(self, model):
        x = pt.dvector("x")
        parts = {v: x[a:b].reshape(shape) for v, a, b, shape in self.places}
        (logp,) = graph_replace([simplify(model.logp())], parts, strict=False)
        fn = function([x], [logp, pytensor.grad(logp, x)], MODE)
        self.gradient = lambda x: tuple(np.asarray(r) for r in fn(x))

    def chain(self, x, n, settings, rng):
        """Return draws, and how many were accepted."""
        step, most = np.exp(settings)
        slope, draws, accepted = self.gradient(x), [], 0
        for _ in range(n):
            number = rng.integers(1, int(round(most)) + 1)
            new, change, there = leapfrog(x, self.gradient, slope, step, number, rng)
            if np.log(rng.random()) < change:
                x, slope, accepted = new, there, accepted + 1
            draws.append(x)
        return np.array(draws), accepted / n

    def worth(self, draws, settings):
        """Return the expected squared jump, for the leapfrog steps that it takes."""
        return np.mean((np.diff(draws, axis=0) ** 2).sum(axis=1)) / np.sqrt(np.exp(settings[1]))


class Gibbs(Joint):
    """HMC of v given theta, whose kernel is computed once, and Metropolis of theta given v.

    Settings are the step, the most leapfrog steps, and the step of theta.
    """

    box = np.vstack([Joint.box, np.log([[1e-3, 2.0]])])

    def compile(self, model):
        latents = Latents([model["u"]], model, {"mode": MODE})
        logp = latents.log_likelihood
        self.prepare, given = latents.given_others([logp, pytensor.grad(logp, latents.nu)])
        self.given = lambda v, known: [np.asarray(r) for r in given(v, *known)]
        self.v = np.setdiff1d(np.arange(len(self.start)), self.theta)

    def point(self, x):
        """Return the values of the model's variables."""
        return {v.name: x[a:b].reshape(shape) for v, a, b, shape in self.places}

    def chain(self, x, n, settings, rng):
        """Return draws, and how many were accepted, of v and of theta."""
        step, most, of_theta = np.exp(settings)
        v, *known = self.prepare(self.point(x))
        draws, accepted = [], np.zeros(2)
        here = None

        def gradient(v, known):
            value, g = self.given(v, known)
            return value - v @ v / 2.0, g - v

        for _ in range(n):
            number = rng.integers(1, int(round(most)) + 1)
            here = here or gradient(v, known)
            new, change, there = leapfrog(
                v, lambda w, known=known: gradient(w, known), here, step, number, rng
            )
            if np.log(rng.random()) < change:
                v, here, accepted[0] = new, there, accepted[0] + 1
            proposed = x.copy()
            proposed[self.v] = v
            x = proposed.copy()
            proposed[self.theta] += of_theta * rng.normal(size=len(self.theta))
            _, *other = self.prepare(self.point(proposed))
            found = gradient(v, other)
            if np.log(rng.random()) < found[0] - here[0]:
                x, known, here, accepted[1] = proposed, other, found, accepted[1] + 1
            draws.append(x)
        return np.array(draws), accepted / n

    def worth(self, draws, settings):
        """Return the geometric mean of the expected squared jumps of v and of theta.

        Their sum is that of v, and leaves the step of theta to chance.
        """
        jumps = np.mean(np.diff(draws, axis=0) ** 2, axis=0)
        return np.sqrt(jumps[self.v].sum() * jumps[self.theta].sum())


def tune(sampler, x, rng):
    """Choose settings by Bayesian optimisation; return them, and where the last chain was."""
    low, high = sampler.box.T
    tried, worth = [], []
    for i in range(RUNS):
        at = rng.uniform(size=len(low)) if i < FIRST else propose(np.array(tried), worth, rng)
        settings = low + at * (high - low)
        with np.errstate(all="ignore"):
            draws, _ = sampler.chain(x, ITERATIONS, settings, rng)
        x = draws[-1]
        tried.append(at)
        worth.append(float(sampler.worth(draws, settings)))
    best = expectation(np.array(tried), worth, np.array(tried))[0].argmax()
    return low + tried[best] * (high - low), x


def expectation(tried, worth, at):
    """Mean and deviation of a Gaussian process of the worth."""
    scale = np.std(worth) or 1.0
    y = (np.array(worth) - np.mean(worth)) / scale

    def kernel(a, b):
        return np.exp(-((a[:, None] - b) ** 2).sum(axis=-1) / (2.0 * 0.25**2))

    factor = cho_factor(kernel(tried, tried) + 0.1 * np.eye(len(tried)))
    k = kernel(tried, at)
    mean = k.T @ cho_solve(factor, y)
    variance = 1.0 - (k * cho_solve(factor, k)).sum(axis=0)
    return mean, np.sqrt(np.maximum(variance, 1e-12))


def propose(tried, worth, rng):
    """Return the settings of the largest expected improvement."""
    at = rng.uniform(size=(2000, tried.shape[1]))
    mean, sd = expectation(tried, worth, at)
    best = expectation(tried, worth, tried)[0].max()
    z = (mean - best) / sd
    return at[np.argmax(sd * (z * norm.cdf(z) + norm.pdf(z)))]


def fit(kernel, M, seed=0):
    """Return the model, and where the Gaussian stage ends."""
    data = vsgp.datasets.load("raetsch_image")
    rows = data["unique_idx"][original_permutation(len(data["unique_idx"]), seed)]
    train = rows[:N_TRAIN]
    X, _ = standardised(data["X"][train].astype(float), data["X"][train].astype(float))
    Z = vsgp.inducing.kmeans(X, M, random_seed=seed)
    model = model_of(X, data["y"][train], Z, kernel == "ARD")
    with model:
        stage = vsgp.fit_gaussian(random_seed=1, progressbar=False)
    vsgp.reset(model)  # v of the paper in place of the stage's coordinates
    theta = np.concatenate([np.ravel(v) for v in stage.theta_unconstrained.values()])
    return model, theta, np.linalg.solve(root_of(model, stage), stage.mean["u"][0])


def one(model, theta, v, M, name, seed=0):
    sampler = {"HMC": Joint, "Gibbs": Gibbs}[name](model)
    rng = np.random.default_rng(seed)
    x = sampler.start.copy()
    x[sampler.theta] = theta
    x[np.setdiff1d(np.arange(len(x)), sampler.theta)] = v
    sampler.chain(x, 1, sampler.box[:, 0], rng)  # compiles
    began = time.process_time()
    settings, x = tune(sampler, x, rng)
    tuned = time.process_time() - began
    began = time.process_time()
    with np.errstate(all="ignore"):
        draws, accept = sampler.chain(x, DRAWS[M], settings, rng)
    seconds = time.process_time() - began
    draws = draws[int(DISCARDED * len(draws)) :]
    ess = np.array([float(az.ess(column[None])) for column in draws.T])
    return {
        "settings": np.exp(settings).tolist(),
        "accept": np.atleast_1d(accept).tolist(),
        "ess": float(ess.min()),
        "ess_theta": float(ess[sampler.theta].min()),
        "mean_theta": draws[:, sampler.theta].mean(axis=0).tolist(),
        "draws": len(draws),
        "seconds": seconds,
        "tuning_seconds": tuned,
    }


def root_of(model, stage):
    """Return the Cholesky factor of the prior of u at the stage's estimate."""
    R = model["u"].owner.inputs[2]
    (R,) = model.replace_rvs_by_values([R])
    values = [v for v in model.value_vars if v.name in stage.theta_unconstrained]
    return function(values, R)(*(stage.theta_unconstrained[v.name] for v in values))


def ordered(found):
    """Return what was found, by kernel, M and sampler."""
    keys = [(k, M, n) for k in ("isotropic", "ARD") for M in SIZES for n in ("HMC", "Gibbs")]
    named = {key: ",".join(map(str, key)) for key in keys}
    return {key: found[name] for key, name in named.items() if name in found}


def page(found):
    lines = [
        "| kernel | M | sampler | step, most leapfrog steps, step of theta | accepted | draws "
        "| ESS of theta | per 10,000 draws | per CPU second | published ESS | per second |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (kernel, M, name), r in ordered(found).items():
        published = PUBLISHED[kernel, name] if M == SIZES[-1] else ("", "")
        per = r["ess_theta"] / r["draws"] * 10_000
        rate = envs.two_digits(r["ess_theta"] / r["seconds"])
        lines.append(
            f"| {kernel} | {M} | {name} | {', '.join(f'{s:.3g}' for s in r['settings'])} "
            f"| {', '.join(f'{a:.2f}' for a in r['accept'])} | {r['draws']} "
            f"| {r['ess_theta']:.0f} | {per:.0f} | {rate} "
            f"| {published[0]} | {published[1]} |"
        )
    return "\n".join(lines) + "\n"


def draw(found):
    """Time-normalised ESS against M."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, constrained_layout=True)
    for ax, kernel in zip(axes, ("isotropic", "ARD"), strict=True):
        for name, color in (("HMC", "C0"), ("Gibbs", "C1")):
            rows = {M: r for (k, M, n), r in ordered(found).items() if (k, n) == (kernel, name)}
            rate = [r["ess_theta"] / r["seconds"] for r in rows.values()]
            ax.loglog(list(rows), rate, "o-", color=color, label=name)
            ax.plot(SIZES[-1], PUBLISHED[kernel, name][1], "x", color=color)
        ax.set(title=kernel, xlabel="inducing inputs")
        ax.set_xticks(SIZES, [str(M) for M in SIZES], minor=False)
        ax.minorticks_off()
    axes[0].set(ylabel="ESS of theta per CPU second")
    axes[0].plot([], [], "kx", label="published")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(PAGES / "hmc_gibbs.png", dpi=80, bbox_inches="tight")
    plt.close(figure)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--kernels", nargs="+", default=["isotropic", "ARD"])
    options = parser.parse_args(argv)
    store = RESULTS / "hmc_gibbs.json"
    found = json.loads(store.read_text()) if store.exists() else {}
    for M in [M for M in SIZES if M <= options.largest]:
        for kernel in options.kernels:
            keys = {name: f"{kernel},{M},{name}" for name in ("HMC", "Gibbs")}
            fitted = None
            for name, key in keys.items():
                if key not in found:
                    fitted = fitted or fit(kernel, M)
                    found[key] = one(*fitted, M, name)
                    envs.save(store, json.dumps(found, indent=1) + "\n", kept=True)
                    print(key, found[key], flush=True)
    envs.save(RESULTS / "hmc_gibbs.md", page(found), kept=True)
    draw(found)


if __name__ == "__main__":
    main()
