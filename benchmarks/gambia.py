"""Malaria in 65 villages of the Gambia: 15 nearest neighbors against all villages as points.

2035 children have covariates, those of their nets and of their village, which the mean function
takes, and a process of the village's place. It is sampled with each village as an inducing point,
which is exact, and with its 15 nearest neighbors. Results are the differences of posterior means in
posterior standard deviations, beside the error that sampling alone makes of them. Rows that share
all inputs are looked up; `repeated_inputs.py` has the same by rows, which is equal to rounding.
``python gambia.py`` writes ``results/gambia.md``.
"""

import os
import time

from pathlib import Path

import arviz as az
import envs
import numpy as np
import pandas as pd
import pymc as pm

import pymc_vsgp as vsgp

HERE = Path(__file__).parent
COVARIATES = ["green", "phc", "netuse", "treated"]
NEIGHBORS, DRAWS = 15, 3000


def read():
    """Return the table: places in units of 10 km, covariates standardized."""
    table = pd.read_csv(Path(os.environ["PYMC_VSGP_DATA"]) / "gambia.csv.gz")
    place = (table[["x", "y"]] - table[["x", "y"]].mean()) / 1e4
    covariates = table[COVARIATES]
    return place.join((covariates - covariates.mean()) / covariates.std()), table["pos"].astype(int)


def model_of(X, y, exact):
    """Build the model, with points or neighbors."""
    villages = X.drop_duplicates(["x", "y"])
    names = list(X.columns[2:])
    with pm.Model(coords={"covariate": names}) as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=3.0, sigma=3.0)
        scale = pm.HalfNormal("scale", 1.0)
        beta = pm.Normal("beta", 0.0, 1.0, dims="covariate")
        intercept = pm.Normal("intercept", 0.0, 2.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(
                coeffs=pm.math.concatenate([np.zeros(2), beta]), intercept=intercept
            ),
            cov_func=scale**2 * pm.gp.cov.Matern32(X.shape[1], ls=lengthscale, active_dims=[0, 1]),
        )
        if exact:
            gp.prior("u", Xu=villages)
        else:
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(villages, m=NEIGHBORS))
        gp.likelihood("y", vsgp.Bernoulli(), X=X, y=y)
    return model


def sample(X, y, exact):
    """Return draws of everything, village effects among them, and CPU seconds."""
    began = time.process_time()
    with model_of(X, y, exact) as model:
        idata = vsgp.sample(DRAWS, random_seed=1, progressbar=False)
        places = X.drop_duplicates(["x", "y"]).copy()
        places[list(X.columns[2:])] = 0.0
        effects = vsgp.predict(idata, places, "moments", progressbar=False, model=model)["mean"]
    post = idata.posterior.dataset.drop_vars("u")
    effects = effects - post["intercept"]
    return post.assign(village=effects), time.process_time() - began


def compare(name, X, y):
    """Return the lines of a model."""
    (a, slow), (b, fast) = (sample(X, y, exact) for exact in (True, False))
    lines = [
        f"{name}; exact {slow:.0f} CPU s, {NEIGHBORS} neighbors {fast:.0f} CPU s, R-hat at most "
        f"{max(float(az.rhat(d[v]).max()) for d in (a, b) for v in d.data_vars):.3f}:\n\n",
        "| | exact | neighbors | difference, sd | of it by sampling |\n|---|---|---|---|---|\n",
    ]
    for v in a.data_vars:
        mean, sd = (np.atleast_1d(getattr(a[v], f)(["chain", "draw"])) for f in ("mean", "std"))
        other = np.atleast_1d(b[v].mean(["chain", "draw"]))
        other_sd = np.atleast_1d(b[v].std(["chain", "draw"]))
        error = np.hypot(*(np.atleast_1d(az.mcse(d[v], method="mean")) for d in (a, b)))
        off, error = np.abs(other - mean) / sd, error / sd
        if v == "village":
            i = int(np.argmax(off))
            lines.append(
                f"| village effects, the one furthest off | {mean[i]:.3f} ± {sd[i]:.3f} | "
            )
            lines.append(f"{other[i]:.3f} ± {other_sd[i]:.3f} | {off[i]:.3f} | {error[i]:.3f} |\n")
            continue
        labels = a[v].coords["covariate"].values if "covariate" in a[v].dims else [v]
        for label, *x in zip(labels, mean, sd, other, other_sd, off, error, strict=True):
            lines.append("| {} | {:.3f} ± {:.3f} | {:.3f} ± {:.3f} | ".format(label, *x[:4]))
            lines.append("{:.3f} | {:.3f} |\n".format(*x[4:]))
    print("".join(lines), flush=True)
    return "".join(lines)


def main():
    """Compare both models, and write the tables."""
    X, y = read()
    distinct = len(X.drop_duplicates())
    envs.save(HERE / "results" / "gambia.md", compare(f"{distinct} distinct inputs", X, y))


if __name__ == "__main__":
    main()
