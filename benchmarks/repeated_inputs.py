"""Rows that share their inputs: the moments by distinct inputs, and by rows.

CPU seconds of one value and gradient, and of a step of the Gaussian stage. Both ways take turns, on
one thread; the spread is over the turns. ``OMP_NUM_THREADS=1 python repeated_inputs.py`` writes
``results/repeated_inputs.md``.
"""

import os
import sys
import time

from pathlib import Path

import envs
import numpy as np
import pandas as pd
import pymc as pm

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.inducing.repeats import ByValue

HERE = Path(__file__).parent
TURNS = 9


def gambia():
    """Malaria in 2035 children of 65 villages, and where these are."""
    table = pd.read_csv(Path(os.environ["PYMC_VSGP_DATA"]) / "gambia.csv.gz")
    X = table[["x", "y"]].to_numpy() / 1e5
    return X - X.mean(axis=0), table["pos"].to_numpy().astype(int), vsgp.Bernoulli()


def table(n=1_000_000, distinct=10_000):
    """Counts in rows that share their inputs, a hundred rows an input."""
    rng = np.random.default_rng(1)
    U = rng.uniform(0.0, 10.0, size=(distinct, 2))
    X = U[rng.integers(0, distinct, n)]
    return X, rng.poisson(np.exp(np.sin(X[:, 0]))), vsgp.Poisson()


def models(X, y, likelihood, inducing):
    """Return the model by distinct inputs, and by rows."""
    found, of = {}, ByValue.of
    for how in ("distinct", "rows"):
        ByValue.of = of if how == "distinct" else (lambda X, name, n: None)
        with pm.Model() as found[how]:
            lengthscale = pm.InverseGamma("lengthscale", mu=1, sigma=0.5)
            cov = pm.gp.cov.Matern52(2, ls=lengthscale)
            gp = vsgp.VariationalSparse(cov_func=cov, mean_func=pm.gp.mean.Constant(pm.Normal("b")))
            if isinstance(inducing, np.ndarray):
                gp.prior("u", inducing)
            else:
                gp.prior("u", inducing=inducing)
            gp.likelihood("y", likelihood, X=X, y=y)
    ByValue.of = of
    return found


def seconds(functions):
    """Let functions take turns; return the CPU seconds of each, and their values."""
    spent = {how: [] for how in functions}
    values = {how: f() for how, f in functions.items()}  # the first call is not counted
    for _ in range(TURNS):
        for how, f in functions.items():
            start = time.process_time()
            f()
            spent[how].append(time.process_time() - start)
    return spent, values


def row(what, functions):
    """Return a line of the table."""
    spent, values = seconds(functions)
    a, b = (np.concatenate([np.ravel(x) for x in values[how]]) for how in ("distinct", "rows"))
    off = np.abs(a - b).max() / np.abs(b).max()
    cells = []
    for how in ("distinct", "rows"):
        ms = np.array(spent[how]) * 1e3
        cells.append(f"{np.median(ms):.3g} ({ms.min():.3g} to {ms.max():.3g})")
    ratio = np.median(spent["rows"]) / np.median(spent["distinct"])
    line = f"| {what} | {cells[0]} | {cells[1]} | {ratio:.1f} | {off:.0e} |"
    print(line, flush=True)
    return line


def main():
    """Measure, and write the table."""
    lines = [
        "| rows, distinct inputs, inducing variables | by distinct inputs, ms | by rows, ms "
        "| ratio | largest difference |",
        "|---|---|---|---|---|",
    ]
    small, large = gambia(), table()
    villages = np.unique(small[0], axis=0)
    points = vsgp.inducing.kmeans(large[0][:5000], 100, random_seed=1)
    cases = [
        ("gambia: 2035, 65, all 65 as points", small, villages),
        ("gambia: 2035, 65, 15 neighbors", small, vsgp.inducing.NearestNeighbors(villages, m=15)),
        ("table: 10⁶, 10⁴, 100 points", large, points),
    ]
    for name, data, inducing in cases:
        built = models(*data, inducing)
        compiled = {}
        for how, model in built.items():
            f = model.compile_fn([model.logp(), model.dlogp()], mode="NUMBA")
            point = {k: np.asarray(v) + 0.1 for k, v in model.initial_point().items()}
            compiled[how] = lambda f=f, point=point: f(point)
        lines.append(row(f"{name}: value and gradient", compiled))
        if not isinstance(inducing, np.ndarray):
            continue
        steps = {}
        for how, model in built.items():
            bound = Bound(model, mode="NUMBA")
            theta, sites = bound.ravel(model.initial_point()), bound.no_sites()
            steps[how] = lambda b=bound, at=(theta, sites): [b(*at).value, b(*at).gradient]
        lines.append(row(f"{name}: ELBO of the Gaussian stage", steps))
    text = "\n".join(
        [
            "CPU milliseconds on one thread, numba: median and range of "
            f"{TURNS} turns. The two ways took turns.",
            "",
            *lines,
            "",
            "`OMP_NUM_THREADS=1 python benchmarks/repeated_inputs.py`, "
            f"Python {sys.version.split()[0]}.",
            "",
        ]
    )
    envs.save(HERE / "results" / "repeated_inputs.md", text)


if __name__ == "__main__":
    main()
