"""The ELBO of a point pattern by the size of its bins, and by the nodes of a quadrature.

Usage: ``python bins.py``. 126 Finnish pine saplings on 10 by 10, and a squared exponential kernel,
with the same inducing points throughout. Takes a minute.
"""

import json
import pathlib

import envs
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

RESULTS = pathlib.Path(__file__).parent / "results"
WINDOW = [(-5.0, 5.0), (-8.0, 2.0)]
BINS, NODES = (16, 32, 64), (12, 16, 20, 40)


def build(X, y, likelihood):
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=2, sigma=1)
        scale = pm.HalfNormal("scale", 1)
        gp = vsgp.VariationalSparse(
            cov_func=scale**2 * pm.gp.cov.ExpQuad(2, ls=lengthscale),
            mean_func=pm.gp.mean.Constant(pm.Normal("intercept", 0, 1)),
        )
        gp.prior("u", Xu=vsgp.inducing.grid(np.transpose(WINDOW), 12))
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


def run(bins=BINS, nodes=NODES):
    """Return the rows of the table: what there is, observations, ELBO, lengthscale."""
    events = vsgp.datasets.load("finpines")[["x", "y"]]
    pines = vsgp.point_process(events, WINDOW, bins=bins[0])
    found = vsgp.compare_bins(pines, build, bins, quadrature=nodes, draws=1000, random_seed=1)
    names = [f"{n} x {n} bins" for n in bins] + [f"no bins, {n} x {n} nodes" for n in nodes]
    columns = (found[c].to_list() for c in ("observations", "elbo", "lengthscale"))
    return [list(row) for row in zip(names, *columns, strict=True)]


def main():
    lines = ["| | observations | ELBO | lengthscale |", "|---|---|---|---|"]
    rows = run()
    lines += [f"| {name} | {n} | {elbo:.3f} | {ls:.3f} |" for name, n, elbo, ls in rows]
    print("\n".join(lines))
    envs.save(RESULTS / "bins.json", json.dumps(rows, indent=1) + "\n")
    envs.save(RESULTS / "bins.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
