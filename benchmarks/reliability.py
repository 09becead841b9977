"""Values and gradients at random parameters over ten decades: how many are not finite.

Lengthscales, variances and parameters of likelihoods are 10**U(-5, 5), whitened values standard
normal. Data are repeated, two inducing inputs nearly so. What is counted must be zero: NaN in a
value or a gradient, a gradient that is not finite where the value is, and a value of plus infinity.
Minus infinity is an answer: the density is too small for a number.

    python benchmarks/reliability.py
    python benchmarks/reliability.py --thetas 1000 --backends NUMBA
"""

import argparse
import json

from pathlib import Path

import envs
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

RESULTS = Path(__file__).resolve().parent / "results"
LOG = np.log(10.0) * 5.0  # five decades
cov = pm.gp.cov
KERNELS = {
    "ExpQuad": lambda ls: cov.ExpQuad(1, ls=ls),
    "RatQuad": lambda ls: cov.RatQuad(1, ls=ls, alpha=0.7),
    "Matern52": lambda ls: cov.Matern52(1, ls=ls),
    "Matern32": lambda ls: cov.Matern32(1, ls=ls),
    "Matern12": lambda ls: cov.Matern12(1, ls=ls),
    "Exponential": lambda ls: cov.Exponential(1, ls=ls),
    "Cosine": lambda ls: cov.Cosine(1, ls=ls),
    "Periodic": lambda ls: cov.Periodic(1, period=1.3, ls=ls),
    "Linear": lambda ls: cov.Linear(1, c=0.3) * ls**-2.0,
    "Polynomial": lambda ls: cov.Polynomial(1, c=0.3, d=2, offset=1.0) * ls**-2.0,
    "sum": lambda ls: cov.ExpQuad(1, ls=ls) + cov.Matern12(1, ls=0.3),
    "product": lambda ls: cov.Matern32(1, ls=ls) * cov.Periodic(1, period=1.3, ls=1.0),
    "features": lambda ls: cov.Matern52(1, ls=ls),
    "neighbors": lambda ls: cov.Matern32(1, ls=ls),
}


def likelihoods():
    """Return likelihoods whose parameters go over ten decades, too."""
    a = pm.LogNormal("a", 0.0, 4.0)
    return {
        "counts": vsgp.Poisson(exposure=a),
        "labels": vsgp.Bernoulli("probit"),
        "StudentT": vsgp.StudentT(3.0, a),
        "NegativeBinomial": vsgp.NegativeBinomial(alpha=a),
        "Gaussian": vsgp.Gaussian(a),
    }


FAMILIES = "counts", "labels", "StudentT", "NegativeBinomial", "Gaussian"


def build(kernel, family):
    """Return a model with repeated inputs, and inducing inputs that nearly are."""
    rng = np.random.default_rng(1)
    X = np.repeat(rng.uniform(size=(12, 1)) * 3.0, 2, axis=0)
    Xu = np.r_[np.linspace(0.0, 3.0, 7), 1.0 + 1e-9][:, None]
    y = rng.binomial(1, 0.5, size=len(X))
    with pm.Model() as model:
        ls, scale = pm.LogNormal("ls", 0.0, 4.0), pm.LogNormal("scale", 0.0, 4.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(pm.Normal("c", 0.0, 1.0)),
            cov_func=scale * KERNELS[kernel](ls),
        )
        if kernel == "features":
            gp.prior("u", inducing=vsgp.inducing.Fourier((8.0,), (8,), center=(1.5,)))
        elif kernel == "neighbors":
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(np.unique(X, axis=0), m=4))
        else:
            gp.prior("u", Xu=Xu)
        gp.likelihood("y", likelihoods()[family], X=X, y=y)
    return model


def one(kernel, family, backend, n):
    """Count what is wrong at n random points."""
    model = build(kernel, family)
    function = model.logp_dlogp_function(ravel_inputs=True, mode=backend)
    point, rng = model.initial_point(), np.random.default_rng(2)
    sizes = {v.name: np.size(point[v.name]) for v in model.continuous_value_vars}
    wide = {"ls_log__", "scale_log__", "a_log__"}
    counts = {"NaN": 0, "gradient": 0, "plus infinity": 0, "minus infinity": 0}
    worst = None
    for _ in range(n):
        parts = [
            rng.uniform(-LOG, LOG, size=k) if name in wide else rng.normal(size=k)
            for name, k in sizes.items()
        ]
        at = np.concatenate(parts)
        value, gradient = function(at)
        finite = np.isfinite(gradient).all()
        found = {
            "NaN": np.isnan(value) or np.isnan(gradient).any(),
            "gradient": np.isfinite(value) and not finite,
            "plus infinity": value == np.inf,
            "minus infinity": value == -np.inf,
        }
        counts = {k: counts[k] + int(found[k]) for k in counts}
        if worst is None and any(found[k] for k in ("NaN", "gradient", "plus infinity")):
            worst = dict(zip(sizes, (p.tolist() for p in parts), strict=True))
    return counts | {"worst": worst}


def main(thetas, backends, kernels):
    """Go through kernels and backends, and write the table."""
    n, rows = -(-thetas // (len(kernels) * len(backends))), []
    for i, kernel in enumerate(kernels):
        for backend in backends:
            family = FAMILIES[i % len(FAMILIES)]
            row = {"kernel": kernel, "likelihood": family, "backend": backend, "points": n}
            rows.append(row | one(kernel, family, backend, n))
            print(rows[-1], flush=True)
    envs.save(RESULTS / "reliability.json", json.dumps(rows, indent=1) + "\n")
    head = ["kernel", "likelihood", "backend", "points", "NaN", "gradient", "plus infinity"]
    head.append("minus infinity")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(row[k]) for k in head) + " |" for row in rows]
    total = {k: sum(row[k] for row in rows) for k in head[3:]}
    lines.append("| all | | | " + " | ".join(str(v) for v in total.values()) + " |")
    envs.save(RESULTS / "reliability.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--thetas", type=int, default=100_000)
    parser.add_argument("--backends", nargs="+", default=["NUMBA", "JAX"])
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=list(KERNELS))
    given = parser.parse_args()
    main(given.thetas, given.backends, given.kernels)
