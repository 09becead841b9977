"""How far the Vecchia approximation is from the exact process: by kernel, and number of neighbors.

Usage: ``python neighbors_divergence.py``, in the environment that the package is installed in.
The divergence of the density of 1000 values from the exact one, in nats, at uniform random inputs
of the unit square. Conditional variances are exact, so it is half of their summed logarithms less
those of all neighbors: no estimate. With noise it is that of the data, as where the values
integrate out.
"""

import json
import pathlib

import envs
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_vsgp.ops.neighbors import maximin, predecessors

RESULTS = pathlib.Path(__file__).parent / "results"
KERNELS = ("Exponential", "Matern32", "Matern52", "ExpQuad")
LENGTHSCALES = (0.05, 0.2)
NUMBERS = (5, 10, 15, 20, 30, 50)
NOISE = (0.0, 0.3)
JITTER = 1e-8


def log_variances(K, order, neighbors):
    """Return the summed logarithms of the variances of values given their neighbors."""
    total = 0.0
    for i in order:
        near = neighbors[i][neighbors[i] >= 0]
        C, c = K[np.ix_(near, near)], K[near, i]
        total += np.log(K[i, i] - c @ np.linalg.solve(C, c))
    return total


def one(kernel, ls, numbers=NUMBERS):
    """Return rows of the table for a kernel and a lengthscale: without noise, and with."""
    X, rows = np.random.default_rng(0).uniform(size=(1000, 2)), []
    order = maximin(X)
    near = {m: predecessors(X, order, m) for m in numbers}
    K = getattr(pm.gp.cov, kernel)(2, ls=ls)(pt.constant(X)).eval(mode="FAST_COMPILE")
    for noise in NOISE:
        C = K + (JITTER + noise**2) * np.eye(len(X))
        exact = np.linalg.slogdet(C)[1]
        found = [0.5 * (log_variances(C, order, near[m]) - exact) for m in numbers]
        rows.append([kernel, ls, noise, *(round(x, 3) for x in found)])
        print(rows[-1], flush=True)
    return rows


def main():
    """Make the table."""
    rows = [row for kernel in KERNELS for ls in LENGTHSCALES for row in one(kernel, ls)]
    envs.save(RESULTS / "neighbors_divergence.json", json.dumps(rows, indent=1) + "\n")
    head = ["kernel", "lengthscale", "noise", *(f"m = {m}" for m in NUMBERS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for kernel, ls, noise, *found in rows:
        shown = (f"{x:.3f}" if x < 1.0 else f"{x:.1f}" if x < 100.0 else f"{x:.0f}" for x in found)
        lines.append(f"| {kernel} | {ls} | {noise or 'none'} | " + " | ".join(shown) + " |")
    envs.save(RESULTS / "neighbors_divergence.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
