"""What Pareto k-hat of importance weights says of the errors of means.

Usage: ``python khat.py [--batches 12]``. Runs in the environment that it is started in. Each case
is weighed several times, with other proposals each time, whatever their weights are like. Means and
variances of each batch are compared with those of all other batches, in units of the standard
errors that the weights themselves tell. Where k-hat is good these are about 1.
"""

import argparse
import json
import pathlib

from itertools import pairwise

import calibration
import envs
import importance
import numpy as np
import pymc as pm
import waiting

from scipy.special import logsumexp

import pymc_vsgp as vsgp

from pymc_vsgp.fit.importance import weigh
from pymc_vsgp.fit.weigher import Weigher
from pymc_vsgp.results.calibration import _from_prior

PATH = pathlib.Path(__file__).parent / "results" / "khat.json"
BINS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def of_prior(name, number):
    """Return a case of the calibration, with data drawn from its prior."""
    prior, build = calibration.CASES[name][0], calibration.build(name)
    with pm.Model() as model:
        calibration.CASES[name][1](prior)
    y = _from_prior(model, number + 1, np.random.default_rng(7))[1][number]
    return build(y)


def of_case(name):
    """Return a case of `importance.py`."""
    with pm.Model() as model:
        importance.CASES[name]()
    return model


CASES = {
    "groups": lambda: waiting.build("groups", "default")[0],
    "readme": lambda: waiting.build("readme", "default")[0],
    "outliers": lambda: of_case("outliers"),
    "separable": lambda: of_case("separable"),
    **{f"softmax {i}": lambda i=i: of_prior("Softmax", i) for i in range(3)},
}


def moments(x, log_w):
    """Means and variances under weights, and their standard errors."""
    w = np.exp(log_w - logsumexp(log_w))
    x, w = x[w > 0.0], w[w > 0.0]  # the rest may be too far away to be squared
    mean = w @ x
    squares = (x - mean) ** 2
    variance = w @ squares
    errors = np.sqrt(w**2 @ squares), np.sqrt(w**2 @ (squares - variance) ** 2)
    return np.concatenate([mean, variance]), np.concatenate(errors)


def measure(model, n_batches):
    """Return k-hat of each batch, and how far its means and variances are from all others."""
    with model:
        stage = vsgp.fit_gaussian(progressbar=False)
    weigher, batches = Weigher(model), []
    for seed in range(n_batches):
        rng = np.random.default_rng(seed)
        found = weigh(stage, weigher, 4000, rng, give_up=False, progressbar=False)
        x = np.concatenate([found.theta, found.epsilon[:, 0]], axis=1)
        batches.append((found.khat, found.ess / len(x), x, found.log_weight))
    out = []
    for i, (khat, share, x, log_w) in enumerate(batches):
        others = [b for j, b in enumerate(batches) if j != i]
        every = np.concatenate([b[2] for b in others]), np.concatenate([b[3] for b in others])
        (a, error), (b, rest) = moments(x, log_w), moments(*every)
        z = (a - b) / np.hypot(error, rest)
        mean, variance = (float(np.sqrt((part**2).mean())) for part in np.split(z, 2))
        out.append({"khat": khat, "ess": share, "mean": mean, "variance": variance})
    return out


def table(results):
    """Return the table in Markdown."""
    lines = [
        "Errors of means and of variances under the weights of a batch, in the standard errors",
        "that the same weights tell: root mean square over all variables, and over the batches",
        "whose k-hat is in the range. Weights are kept where k-hat is at most 0.6.",
        "",
        "| k-hat | batches | of | ESS over proposals | means | variances |",
        "|---|---|---|---|---|---|",
    ]
    rows = [(name, b) for name, of in results.items() for b in of]
    ranges = [f"to {BINS[0]}", *(f"{a}–{b}" for a, b in pairwise(BINS)), f"above {BINS[-1]}"]
    for of, (low, high) in zip(ranges, pairwise((-np.inf, *BINS, np.inf)), strict=True):
        some = [(name, b) for name, b in rows if low < b["khat"] <= high]
        if not some:
            continue
        names = ", ".join(dict.fromkeys(name.split()[0] for name, _ in some))
        share = np.mean([b["ess"] for _, b in some])
        errors = (np.sqrt(np.mean([b[k] ** 2 for _, b in some])) for k in ("mean", "variance"))
        numbers = " | ".join(f"{x:.2f}" for x in (share, *errors))
        lines.append(f"| {of} | {len(some)} | {names} | {numbers} |")
    return "\n".join(lines) + "\n"


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=12)
    arguments = parser.parse_args()
    results = {}
    for name, build in CASES.items():
        results[name] = measure(build(), arguments.batches)
        print(table(results), flush=True)
    envs.save(PATH, json.dumps(results) + "\n")
    envs.save(PATH.with_suffix(".md"), table(results))


if __name__ == "__main__":
    main()
