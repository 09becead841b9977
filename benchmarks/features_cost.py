"""Processor milliseconds of one log density with its gradient.

    python benchmarks/features_cost.py --mode JAX

Points, Fourier features on grids, series and scattered rows, and HSGP, with a Poisson likelihood;
"blocks" are scattered rows without the nonuniform Fourier transform. With normal noise, of the
parameters alone: what a step of `vsgp.sample` takes.
One thread: the fewest processor seconds of several evaluations, since the machine may be busy.
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import envs
import numpy as np
import pymc as pm

from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_vsgp as vsgp

from pymc_vsgp.fit.collapsed import collapse

RESULTS = pathlib.Path(__file__).parent / "results" / "features_cost.json"

# kind, rows (or those of a side, on a grid), frequencies or points or functions of a side, inputs
JAX = [
    ("points", 100, 30, 1),
    ("points", 1000, 30, 1),
    ("points", 1024, 225, 2),
    ("points", 4096, 225, 2),
    ("points", 10_000, 100, 2),
    ("scattered", 10_000, 15, 2),
    ("scattered", 100_000, 15, 2),
    ("scattered", 1000, 20, 1),
    ("grid", 32, 22, 2),
    ("series", 8784, 565, 1),
    ("grid", 128, 23, 2),
    ("hsgp", 8784, 758, 1),
    ("hsgp", 100_000, 20, 2),
    ("grid", 256, 50, 2),
    ("series", 100_000, 500, 1),
    ("hsgp", 16_384, 34, 2),
    ("scattered", 100_000, 20, 1),
    ("points", 10_000, 300, 2),
    ("scattered", 10_000, 5, 3),
    ("points", 100_000, 100, 2),
]
NUMBA = [
    ("scattered", 100_000, 15, 2),
    ("points", 10_000, 100, 2),
    ("grid", 128, 23, 2),
    ("grid", 256, 50, 2),
    ("scattered", 100_000, 100, 1),
    ("blocks", 100_000, 100, 1),
    ("scattered", 100_000, 7, 2),
    ("blocks", 100_000, 7, 2),
    ("normal", 1000, 60, 1),
    ("normal", 1_000_000, 60, 1),
    ("normal", 100_000, 7, 2),
    ("normal", 100_000, 9, 2),
]


def model_of(kind, n, m, D):
    """Return the model of a setting, its rows and the number of its functions."""
    rng = np.random.default_rng(1)
    if kind == "grid":
        axis = np.linspace(0.0, 1.0, n)
        X = np.stack(np.meshgrid(*[axis] * D, indexing="ij"), axis=-1).reshape(-1, D)
    elif kind == "series":
        X = np.linspace(0.0, 1.0, n)[:, None]
    else:
        X = rng.uniform(size=(n, D))
    y = rng.poisson(1.0, size=len(X))
    with pm.Model() as model:
        ls = pm.Gamma("ls", 2.0, 10.0)
        variance = pm.Gamma("variance", 2.0, 1.5)
        cov = variance * pm.gp.cov.Matern52(D, ls=ls)
        if kind == "hsgp":
            gp = pm.gp.HSGP(m=[m] * D, c=1.5, cov_func=cov)
            phi, root = gp.prior_linearized(X=X)
            M = m**D
            pm.Poisson("y", pm.math.exp(phi @ (pm.Normal("beta", size=M) * root)), observed=y)
        else:
            gp = pm.gp.VariationalSparse(cov_func=cov)
            if kind == "points":
                gp.prior("u", Xu=rng.uniform(size=(m, D)))
                M = m
            else:
                features = vsgp.inducing.Fourier((1.5,) * D, (m,) * D, (0.5,) * D)
                gp.prior("u", inducing=features)
                M = features.n_features
            likelihood = vsgp.Gaussian(1.0) if kind == "normal" else vsgp.Poisson()
            size = 250 if kind == "blocks" else None  # what fits into the cache
            gp.likelihood("y", likelihood, X=X, y=y, block_size=size)
    return (collapse(model).model if kind == "normal" else model), len(X), M


def milliseconds(model, mode, seconds=1.5):
    """Return the fewest of some evaluations, and those of compiling."""
    began = time.perf_counter()
    model = freeze_dims_and_data(model)  # as nutpie does: JAX must know the shapes
    function = model.logp_dlogp_function(ravel_inputs=True, mode=mode)
    function.set_extra_values({})
    start = pm.blocking.DictToArrayBijection.map(model.initial_point()).data
    value, gradient = function._pytensor_function(start)
    assert np.isfinite(np.asarray(value)) and np.isfinite(np.asarray(gradient)).all()
    compiling = time.perf_counter() - began
    times: list[float] = []
    began = time.process_time()
    while len(times) < 5 or (time.process_time() - began < seconds and len(times) < 300):
        before = time.process_time()
        np.asarray(function._pytensor_function(start)[1])
        times.append(time.process_time() - before)
    return 1e3 * float(np.min(times)), compiling


def main():
    """Measure, and put the numbers in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["JAX", "NUMBA"], default="JAX")
    args = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    done = [(r["mode"], *r["setting"]) for r in rows]
    for setting in JAX if args.mode == "JAX" else NUMBA:
        if (args.mode, *setting) in done:
            continue
        kind, _, _, D = setting
        model, N, M = model_of(*setting)
        ms, compiling = milliseconds(model, args.mode)
        rows.append(
            {"mode": args.mode, "setting": setting, "kind": kind, "N": N, "M": M, "D": D, "ms": ms}
        )
        print(rows[-1], f"compiled in {compiling:.0f} s", flush=True)
        envs.save(RESULTS, json.dumps(rows, indent=1) + "\n", kept=True)


if __name__ == "__main__":
    main()
