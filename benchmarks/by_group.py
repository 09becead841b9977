"""One function for each group: CPU seconds against the number of groups.

``OMP_NUM_THREADS=1 python by_group.py`` writes ``results/by_group.md``.
"""

import sys
import time

from pathlib import Path

import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Bound

HERE = Path(__file__).parent
TURNS, ROWS, POINTS = 7, 20, 12


def build(n_groups):
    """Counts in twenty rows of each group."""
    rng = np.random.default_rng(1)
    n = ROWS * n_groups
    X = np.column_stack([rng.uniform(0.0, 10.0, n), rng.permutation(np.arange(n) % n_groups)])
    y = rng.poisson(np.exp(np.sin(X[:, 0] + X[:, 1])))
    with pm.Model(coords={"group": np.arange(n_groups)}) as model:
        lengthscale, level = pm.InverseGamma("lengthscale", mu=2, sigma=1), pm.Normal("level")
        cov, mean = pm.gp.cov.Matern52(1, ls=lengthscale), pm.gp.mean.Constant(level)
        gp = vsgp.VariationalSparse(cov_func=cov, mean_func=mean)
        gp.prior("u", np.linspace(0.0, 10.0, POINTS)[:, None], by="group")
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model


def main():
    """Measure, and write the table."""
    functions = {}
    for n_groups in (10, 100, 1000, 10_000):
        model = build(n_groups)
        fn = model.compile_fn([model.logp(), model.dlogp()], mode="NUMBA")
        start = model.initial_point()
        functions[n_groups, "value and gradient"] = lambda f=fn, p=start: f(p)
        bound = Bound(model, mode="NUMBA")
        at = bound.ravel(model.initial_point()), bound.no_sites()
        functions[n_groups, "ELBO of the stage"] = lambda b=bound, at=at: b(*at)
    spent = {key: [] for key in functions}
    for f in functions.values():
        f()
    for _ in range(TURNS):
        for key, f in functions.items():
            start = time.process_time()
            f()
            spent[key].append((time.process_time() - start) * 1e3)
    lines = [
        "| groups | rows | value and gradient, ms | ELBO of the Gaussian stage, ms |",
        "|---|---|---|---|",
    ]
    for n_groups in dict.fromkeys(n for n, _ in functions):
        cells = []
        for what in ("value and gradient", "ELBO of the stage"):
            ms = np.array(spent[n_groups, what])
            cells.append(f"{np.median(ms):.3g} ({ms.min():.3g} to {ms.max():.3g})")
        lines.append(f"| {n_groups} | {ROWS * n_groups} | {' | '.join(cells)} |")
    head = (
        f"{ROWS} counts and {POINTS} inducing inputs for each group. CPU milliseconds on one "
        f"thread, numba: median and range of {TURNS} turns; all cases took turns."
    )
    text = "\n".join([head, "", *lines, "", f"Python {sys.version.split()[0]}.", ""])
    print(text)
    (HERE / "results" / "by_group.md").write_text(text)


if __name__ == "__main__":
    main()
