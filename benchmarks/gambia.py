"""Malaria in 65 villages of the Gambia: the exact process, and 15 neighbors, by village and by row.

2035 children at 65 distinct inputs. ``OMP_NUM_THREADS=1 python gambia.py`` writes
``results/gambia.md``.
"""

import os
import sys
import time

from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm

import pymc_vsgp as vsgp

from pymc_vsgp.inducing.repeats import ByValue

HERE = Path(__file__).parent
DRAWS, CHAINS = 1000, 2


def data():
    """Return place, greenness and health centre of each child's village, and the children."""
    table = pd.read_csv(Path(os.environ["PYMC_VSGP_DATA"]) / "gambia.csv.gz")
    X = table[["x", "y", "green", "phc"]].to_numpy()
    X = (X - X.mean(axis=0)) / [1e5, 1e5, 10.0, 1.0]
    return X, table["pos"].to_numpy().astype(int)


def build(X, y, neighbors, by_rows):
    """Return the model: logistic regression on two covariates, and a function of the place."""
    villages, of = np.unique(X, axis=0), ByValue.of
    if by_rows:
        ByValue.of = lambda X, name, n: None
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=0.3, sigma=0.3)
        scale = pm.HalfNormal("scale", 1.0)
        slopes = pm.Normal("slopes", 0.0, 1.0, shape=2)
        level = pm.Normal("level", 0.0, 1.0)
        cov = scale**2 * pm.gp.cov.Exponential(4, ls=lengthscale, active_dims=[0, 1])
        mean = pm.gp.mean.Linear(pm.math.concatenate([np.zeros(2), slopes]), level)
        gp = vsgp.VariationalSparse(cov_func=cov, mean_func=mean)
        if neighbors:  # near in place
            at = vsgp.inducing.NearestNeighbors(villages, m=15, scale=[1.0, 1.0, 1e9, 1e9])
            gp.prior("u", inducing=at)
        else:
            gp.prior("u", Xu=villages)
        gp.likelihood("y", vsgp.Bernoulli(), X=X, y=y)
    ByValue.of = of
    return model, villages


def summary(idata, villages):
    """Return the draws of all that is compared, a column each."""
    post = idata["posterior"]
    parts = [np.log(post[n].values)[..., None] for n in ("lengthscale", "scale")]
    parts += [post["level"].values[..., None], post["slopes"].values, post["u"].values]
    return np.concatenate(parts, axis=-1).reshape(-1, 5 + len(villages))


def main():
    """Sample the four models, and write how far they are from the exact one."""
    X, y = data()
    lines = [
        "| process | rows | theta | covariates | village effects | sd, largest ratio | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    first = None
    for neighbors in (False, True):
        for by_rows in (False, True):
            model, villages = build(X, y, neighbors, by_rows)
            start = time.process_time()
            with model:
                idata = vsgp.sample(DRAWS, chains=CHAINS, random_seed=1, progressbar=False)
            spent = time.process_time() - start
            found = summary(idata, villages)
            first = found if first is None else first
            off = np.abs(found.mean(axis=0) - first.mean(axis=0)) / first.std(axis=0)
            ratio = found.std(axis=0) / first.std(axis=0)
            widest = ratio[np.argmax(np.abs(np.log(ratio)))]
            cells = [f"{off[at].max():.3f}" for at in (slice(2), slice(2, 5), slice(5, None))]
            what = "15 neighbors" if neighbors else "exact"
            how = "each" if by_rows else "distinct inputs"
            line = f"| {what} | {how} | {' | '.join(cells)} | {widest:.2f} | {spent:.0f} |"
            print(line, flush=True)
            lines.append(line)
    head = (
        "Largest difference of posterior means from the first line, in its posterior standard "
        f"deviations, and the ratio of standard deviations. {CHAINS} chains of {DRAWS} draws; "
        "CPU seconds with compilation, on one thread."
    )
    text = "\n".join([head, "", *lines, "", f"Python {sys.version.split()[0]}.", ""])
    (HERE / "results" / "gambia.md").write_text(text)


if __name__ == "__main__":
    main()
