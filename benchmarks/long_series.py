"""A long series in one dimension: trend, seasons and a local part, with normal noise.

Usage: ``python long_series.py [--rows 100000] [--kind neighbors|features]``. Hourly values, in
days: a trend and two seasons are linear in the mean function, with harmonics of a year and of a
day; the local part is a process. By neighbors it may be rough; by Fourier features it has to be
smooth on the scale of weeks. Each run adds its line to `results/long_series.md`. Seconds are of all
threads.
"""

import argparse
import json
import time

import envs
import numpy as np

from rough_map import Clock, add

RESULTS = envs.HERE / "results" / "long_series.json"
YEAR, YEARLY, DAILY = 365.25, 3, 3  # harmonics
SIGMA, SD = 0.3, 1.0
LS = {"neighbors": 0.5, "features": 30.0}  # days


def table(t):
    """Inputs: time, and what the mean is linear in."""
    waves = [2.0 * np.pi * k * t / YEAR for k in range(1, YEARLY + 1)]
    waves += [2.0 * np.pi * k * t for k in range(1, DAILY + 1)]
    return np.column_stack([t, t / t[-1] - 0.5, *map(np.sin, waves), *map(np.cos, waves)])


def simulate(n, ls):
    """The table, the truth of the coefficients, the local part, and the values."""
    rng = np.random.default_rng(1)
    X = table(np.arange(n) / 24.0)
    beta = rng.normal(size=X.shape[1] - 1)
    # A Matern-3/2 process at equal steps is a linear recursion of its value and slope.
    lam, dt = np.sqrt(3.0) / ls, 1.0 / 24.0
    A = np.exp(-lam * dt) * np.array([[1 + lam * dt, dt], [-(lam**2) * dt, 1 - lam * dt]])
    still = SD**2 * np.diag([1.0, lam**2])
    root = np.linalg.cholesky(still - A @ still @ A.T + 1e-15 * np.eye(2))
    state, f = np.linalg.cholesky(still) @ rng.normal(size=2), np.empty(n)
    noise = rng.normal(size=(n, 2)) @ root.T
    for i in range(n):
        f[i] = state[0]
        state = A @ state + noise[i]
    return X, beta, f, X[:, 1:] @ beta + f + SIGMA * rng.normal(size=n)


def fit(X, y, kind, draws):
    """The posterior of all parameters, and the local part."""
    import pymc as pm

    import pymc_vsgp as vsgp

    clock = Clock()
    d = X.shape[1]
    with pm.Model():
        beta = pm.Normal("beta", 0.0, 3.0, shape=d - 1)
        sd, sigma = pm.HalfNormal("sd", 2.0), pm.HalfNormal("sigma", 1.0)
        ls = pm.LogNormal("ls", np.log(LS[kind]), 0.5)
        cov = sd**2 * pm.gp.cov.Matern32(d, ls=ls, active_dims=[0])
        mean = pm.gp.mean.Linear(coeffs=pm.math.concatenate([np.zeros(1), beta]))
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
        if kind == "neighbors":
            inducing = vsgp.inducing.NearestNeighbors(X)
        else:
            inducing = vsgp.inducing.Fourier.for_data(X, cov)
        gp.prior("u", inducing=inducing)
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=y)
        clock("model")
        stage = vsgp.fit_gaussian(progressbar=False)
        print(stage, flush=True)
        clock("stage")
        idata = vsgp.sample(draws // 4, chains=4, stage=stage, random_seed=1, progressbar=False)
        clock("sample")
        few = np.linspace(0, len(X) - 1, 1000).astype(int)
        f = vsgp.predict(idata, X[few], "f", num_samples=200, random_seed=2, progressbar=False)
        clock("predict")
    return inducing.n_inducing, idata, few, np.asarray(f), clock.seconds


def main():
    """Run one of them."""
    import arviz as az

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kind", choices=list(LS), default="neighbors")
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args()
    X, beta, local, y = simulate(args.rows, LS[args.kind])
    start = time.perf_counter()
    M, idata, few, f, seconds = fit(X, y, args.kind, args.draws)
    seconds["by the clock"] = round(time.perf_counter() - start, 1)
    summary = az.summary(idata, var_names=["beta", "sd", "ls", "sigma"], round_to="none")
    print(summary, idata["posterior"].attrs, flush=True)
    truth = X[few, 1:] @ beta + local[few]
    f = f.reshape(-1, len(few))
    inside = np.abs(truth - f.mean(axis=0)) <= 1.959963984540054 * f.std(axis=0)
    result = {
        "RMSE": float(np.sqrt(np.mean((truth - f.mean(axis=0)) ** 2))),
        "coverage": float(inside.mean()),
        **{n: float(summary["mean"][n]) for n in ("sd", "ls", "sigma")},
        "R-hat": float(summary.r_hat.max()),
        "ESS": float(summary.ess_bulk.min()),
    }
    result["seconds"] = seconds
    name = f"{args.kind}, {M} values, {args.rows} rows, by {idata['posterior'].attrs['method']}"
    print(name, json.dumps(result, indent=1), flush=True)
    add(RESULTS, name, result)


if __name__ == "__main__":
    main()
