"""Trend, seasons and a rough local part of a long series: by the hour, with normal noise.

Usage: ``python long_series.py [--rows 100000] [--method stage|auto]``, in the environment that the
package is installed in. The trend and the seasons of year and day are covariates of the mean
function, and what is left has nearest neighbors, whose values integrate out. The data are
simulated: the function is known, a twentieth of the hours is missing. Scores are of the function,
at the rows that are held out and at every tenth of the others. Seconds are of one core, as the
process itself counts them.
"""

import argparse
import json
import pathlib

import numpy as np

from rough_counts import scores
from rough_map import Clock, add

RESULTS = pathlib.Path(__file__).parent / "results" / "long_series.json"
YEAR, DAY = 24 * 365.25, 24.0
TRUE = {"sd": 1.0, "ls": 30.0, "sigma": 0.5}


def simulate(n):
    """Hours, the function and data: an Ornstein-Uhlenbeck process is the local part."""
    rng = np.random.default_rng(2)
    hours = np.arange(float(n))
    keep = np.exp(-1.0 / TRUE["ls"])
    e = rng.normal(size=n)
    local = np.empty(n)
    local[0] = e[0]
    for i in range(1, n):
        local[i] = keep * local[i - 1] + np.sqrt(1.0 - keep**2) * e[i]
    f = 1.5 * (hours / n) ** 2 + np.sin(2.0 * np.pi * hours / YEAR)
    f += 0.5 * np.cos(2.0 * np.pi * hours / DAY) + 0.2 * np.sin(4.0 * np.pi * hours / DAY)
    f += TRUE["sd"] * local
    return hours, f, f + TRUE["sigma"] * rng.normal(size=n)


def with_covariates(hours, n):
    """Columns: the hour, a line and a parabola, and two waves of each season."""
    columns = [hours, hours / n - 0.5, (hours / n - 0.5) ** 2]
    for period in (YEAR, DAY):
        for k in (1, 2):
            at = 2.0 * np.pi * k * hours / period
            columns += [np.sin(at), np.cos(at)]
    return np.stack(columns, axis=1)


def main():
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--method", choices=["stage", "auto"], default="stage")
    args = parser.parse_args()
    name, result = run(args.rows, args.draws, args.method)
    print(name, json.dumps(result, indent=1), flush=True)
    add(RESULTS, name, result)


def run(n, draws, method):
    """Fit it, and score draws."""
    import arviz as az
    import pymc as pm

    import pymc_vsgp as vsgp

    hours, f, y = simulate(n)
    X = with_covariates(hours, n)
    held = np.random.default_rng(3).uniform(size=n) < 0.05
    clock = Clock()
    with pm.Model():
        level = pm.Normal("level", 0.0, 3.0)
        slopes = pm.Normal("slopes", 0.0, 3.0, shape=X.shape[1] - 1)
        sd, sigma = pm.HalfNormal("sd", 2.0), pm.HalfNormal("sigma", 2.0)
        ls = pm.LogNormal("ls", np.log(24.0), 1.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(pm.math.concatenate([[0.0], slopes]), level),
            cov_func=sd**2 * pm.gp.cov.Matern12(X.shape[1], ls=ls, active_dims=[0]),
        )
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X[~held]))
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X[~held], y=y[~held])
        clock("model")
        stage = vsgp.fit_gaussian(progressbar=False)
        print(stage, flush=True)
        clock("stage")
        if method == "stage":
            idata = stage.to_datatree(draws, random_seed=1)
        else:
            idata = vsgp.sample(draws // 4, stage=stage, random_seed=1, progressbar=False, cores=1)
        clock("draws")
        at = np.flatnonzero(held | (np.arange(n) % 10 == 0))
        found = vsgp.predict(idata, X[at], "f", num_samples=200, random_seed=1, progressbar=False)
        clock("predict")
    draws_of_f = found.values.reshape(-1, len(at))
    posterior = idata["posterior"]
    result = scores(f[at], draws_of_f.mean(axis=0), draws_of_f.std(axis=0))
    for what in TRUE:
        mean, spread = float(posterior[what].mean()), float(posterior[what].std())
        result[f"{what}, truly {TRUE[what]:g}"], result[f"± of {what}"] = mean, spread
    said = "of the stage"
    if method != "stage":
        names = ["level", "slopes", "sd", "ls", "sigma"]
        table = az.summary(idata, var_names=names, round_to="none")
        said = f"by {posterior.attrs['method']} (R-hat at most {table.r_hat.max():.3f}, ESS at "
        said += f"least {table.ess_bulk.min():.0f})"
    return f"{n:,} hours, {draws} draws {said}", result | {"seconds": clock.seconds}


if __name__ == "__main__":
    main()
