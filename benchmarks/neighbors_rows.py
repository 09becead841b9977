"""What nearest neighbors take as the rows of the data grow: seconds, and the most memory.

Usage: ``python neighbors_rows.py [--rows 10000 30000 100000 1000000]``. Each number of rows is a
process of its own: Poisson counts at random places of the unit square, each place an inducing
input, and a lengthscale that has 25 pi places within it whatever their number. It makes the model,
and evaluates the log density with its gradient, as a step of NUTS does. Seconds are of one core, as
the process itself counts them, without those that compile. Results go to
`results/neighbors_rows.md`.
"""

import argparse
import json
import multiprocessing
import pathlib
import resource
import time

import envs
import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"
COLUMNS = ["rows", "model and neighbors, s", "value and gradient, s", "memory, GB"]
REPEATS = 3


def rough(X, ls, rng, n_waves=400):
    """Sum of waves whose frequencies are those of a Matern-3/2 process."""
    omega = rng.standard_t(3, size=n_waves)[:, None] * _directions(n_waves, rng) / ls
    f, phase = np.zeros(len(X)), rng.uniform(0.0, 2.0 * np.pi, n_waves)
    for w, p in zip(omega, phase, strict=True):
        f += np.cos(X @ w + p)
    return f * np.sqrt(2.0 / n_waves)


def _directions(n, rng):
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def memory():
    """Return the most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(n, m, queue):
    """Build the model, and evaluate it."""
    import pymc as pm

    import pymc_vsgp as vsgp

    rng, clock = np.random.default_rng(1), time.process_time
    X, ls = rng.uniform(size=(n, 2)), 5.0 / np.sqrt(n)
    y = rng.poisson(np.exp(1.0 + 0.7 * rough(X, ls, rng)))
    began = clock()
    with pm.Model() as model:
        scale, level = pm.HalfNormal("scale", 2.0), pm.Normal("level", 0.0, 3.0)
        lengthscale = pm.LogNormal("lengthscale", np.log(ls), 1.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level),
            cov_func=scale**2 * pm.gp.cov.Matern32(2, ls=lengthscale),
        )
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, m))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    found = {"rows": n, "model and neighbors, s": clock() - began}
    fn = model.logp_dlogp_function(ravel_inputs=True, mode="NUMBA")
    fn.set_extra_values({})
    start = pm.blocking.DictToArrayBijection.map(model.initial_point())
    assert np.isfinite(fn(start)[0])  # and compile
    began = clock()
    for _ in range(REPEATS):
        fn(start)
    found["value and gradient, s"] = (clock() - began) / REPEATS
    found["memory, GB"] = memory()
    queue.put(found)


def main():
    """Measure each, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--neighbors", type=int, default=10)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    lines = [" | ".join(COLUMNS), "|".join(["---"] * len(COLUMNS))]
    for n in args.rows:
        queue = context.Queue()
        worker = context.Process(target=measure, args=(n, args.neighbors, queue))
        worker.start()
        found = queue.get()
        worker.join()
        print(json.dumps(found), flush=True)
        cells = [f"{found[c]:.3g}" for c in COLUMNS[1:]]
        lines.append(" | ".join([f"{n:,}", *cells]))
        envs.save(RESULTS / "neighbors_rows.md", "".join(f"| {line} |\n" for line in lines))


if __name__ == "__main__":
    main()
