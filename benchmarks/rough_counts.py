"""10,000 Poisson counts of a rough function of two inputs: nearest neighbors, beside GPBoost.

Usage: ``python rough_counts.py [vsgp|features|gpboost] [--rows 10000] [--method importance|nuts]``.
Each package runs in the environment that it is installed in, and adds its line to
`results/rough_counts.md`; `features` has Fourier features in place of neighbors. Without a method
it is the Gaussian stage alone; with one, the posterior of the parameters and of all values. Seconds
are of one core, as the process itself counts them. The function is a draw of a Matern-3/2 process
with a lengthscale of 0.05 in the unit square; scores are of the logarithm of the rate, at the data.
"""

import argparse
import json
import pathlib

import numpy as np

from rough_map import Clock, add

RESULTS = pathlib.Path(__file__).parent / "results" / "rough_counts.json"
PERIOD = 1.2  # of Fourier features: four lengthscales longer than the range
LS, LEVEL, SD = 0.05, 1.0, 0.7


def simulate(n):
    """Inputs, counts, and the function: exact, by a Cholesky factor."""
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(n, 2))
    r = np.sqrt(3.0) * np.sqrt(np.maximum(_square(X), 0.0)) / LS
    K = SD**2 * (1.0 + r) * np.exp(-r)
    K[np.diag_indices(n)] += 1e-8
    f = LEVEL + np.linalg.cholesky(K) @ rng.normal(size=n)
    return X, rng.poisson(np.exp(f)), f


def _square(X):
    s = (X**2).sum(axis=1)
    return s[:, None] + s - 2.0 * X @ X.T


def scores(f, mean, sd):
    """Of 95 % intervals, and of the mean."""
    inside = np.abs(f - mean) <= 1.959963984540054 * sd
    return {
        "RMSE": float(np.sqrt(np.mean((f - mean) ** 2))),
        "coverage": float(inside.mean()),
        "width": float(np.mean(2.0 * 1.959963984540054 * sd)),
    }


def vsgp(X, y, args):
    """Draws of the Gaussian stage, or of the posterior."""
    import arviz as az
    import pymc as pm

    import pymc_vsgp as vsgp

    clock, method = Clock(), args.method
    with pm.Model():
        level, sd = pm.Normal("level", 0.0, 3.0), pm.HalfNormal("sd", 2.0)
        ls = pm.LogNormal("ls", -2.0, 1.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=sd**2 * pm.gp.cov.Matern32(2, ls=ls)
        )
        if args.which == "features":
            kind = vsgp.inducing.Fourier(PERIOD, (args.frequencies,) * 2, 0.5)
            name = f"vsgp, {kind.n_features} Fourier features"
        else:
            kind = vsgp.inducing.NearestNeighbors(X, args.neighbors)
            name = f"vsgp, {args.neighbors} neighbors"
        gp.prior("u", inducing=kind)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        clock("model")
        stage = vsgp.fit_gaussian(progressbar=False)
        print(stage, flush=True)
        clock("stage")
        if method == "stage":
            idata = stage.to_datatree(args.draws, random_seed=1)
            mean, spread = of_function(idata, X)
            clock("draws")
            return f"{name}, stage", mean, spread, clock.seconds
        nuts = {"cores": 1, "chains": 2, "tune": args.tune} if method == "nuts" else {}
        idata = vsgp.sample(
            args.draws // nuts.get("chains", 4),
            method=method,
            stage=stage,
            random_seed=1,
            progressbar=False,
            **nuts,
        )
        clock("sample")
        mean, spread = of_function(idata, X)
    posterior = idata["posterior"]
    table = az.summary(idata, var_names=["level", "sd", "ls"], round_to="none")
    print(table, posterior.attrs, flush=True)
    said = f"R-hat at most {table.r_hat.max():.3f}, ESS at least {table.ess_bulk.min():.0f}"
    if args.which == "features":
        each = az.ess(idata, var_names=["u"])["u"]
        said += f", of a coefficient {float(each.min()):.0f}"
    if method == "nuts":
        said += f", {float(idata['sample_stats']['n_steps'].mean()):.1f} gradients a draw"
    else:
        said += f", k-hat {posterior.attrs['khat']:.2f}"
    return f"{name}, {args.draws} draws by {method} ({said})", mean, spread, clock.seconds


def of_function(idata, X):
    """Mean and deviation of the function: values given neighbors are the function itself."""
    import pymc_vsgp as vsgp

    draws = idata["posterior"]["u"].values
    if draws.shape[-1] != len(X):
        draws = vsgp.predict(idata, X, "f", random_seed=1, progressbar=False).values
    draws = draws.reshape(-1, len(X))
    return draws.mean(axis=0), draws.std(axis=0)


def gpboost(X, y, args):
    """Parameters maximised, Laplace."""
    import gpboost as gpb

    clock = Clock()
    model = gpb.GPModel(
        likelihood="poisson",
        gp_coords=X,
        cov_function="matern",
        cov_fct_shape=1.5,
        gp_approx="vecchia",
        num_neighbors=args.neighbors,
        num_parallel_threads=1,
    )
    model.fit(y=y.astype(float), X=np.ones((len(y), 1)))
    clock("fit")
    ones = np.ones((len(y), 1))
    found = model.predict(gp_coords_pred=X, X_pred=ones, predict_var=True, predict_response=False)
    clock("predict")
    return f"GPBoost, {args.neighbors} neighbors", found["mu"], np.sqrt(found["var"]), clock.seconds


def arguments(argv=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["vsgp", "features", "gpboost"])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--frequencies", type=int, default=30, help="of features, in each input")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tune", type=int, default=500, help="of each of two chains of NUTS")
    parser.add_argument("--method", choices=["stage", "importance", "nuts"], default="stage")
    return parser.parse_args(argv)


def main():
    """Run one of them."""
    args = arguments()
    X, y, f = simulate(args.rows)
    name, mean, sd, seconds = {"gpboost": gpboost}.get(args.which, vsgp)(X, y, args)
    result = scores(f, mean, sd) | {"seconds": seconds}
    name += f", {args.rows} rows"
    print(name, json.dumps(result, indent=1), flush=True)
    add(RESULTS, name, result)


if __name__ == "__main__":
    main()
