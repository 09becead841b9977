"""The satellite map of Heaton et al. (2019), all of it: nearest neighbors, beside GPBoost.

Usage: ``python rough_map.py [vsgp|gpboost] [--rows 105569]``. Each package runs in the environment
that it is installed in, and adds its line to `results/rough_map.md`. Seconds are of one core, as
the process itself counts them: they do not depend on what else the machine does.

The model is that of the published comparison: a constant, an exponential kernel and a nugget.
"""

import argparse
import json
import os
import pathlib
import time

import envs
import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results" / "rough_map.json"
DATA = pathlib.Path(os.environ.get("PYMC_VSGP_DATA", "data")) / "heaton_satellite.npz"
Z = 1.959963984540054
PREDICTED = 100  # draws that the map is predicted from
OF_WEIGHTS = {"k-hat": 2, "ESS": 0, "R-hat": 3}  # digits


def read(n_rows):
    """Inputs in degrees, from the south-west corner, and temperatures."""
    d = np.load(DATA)
    at = np.stack([d["lon"].ravel(), d["lat"].ravel()], axis=1)
    at -= at.min(axis=0)
    train, truth = d["train"].ravel(), d["truth"].ravel()
    seen, held = np.flatnonzero(np.isfinite(train)), np.isfinite(truth) & ~np.isfinite(train)
    if n_rows < len(seen):
        seen = np.sort(np.random.default_rng(0).permutation(seen)[:n_rows])
    return at[seen], train[seen], at[held], truth[held]


def scores(y, mean, sd):
    """Scores of normal predictive densities, as in the comparison."""
    from scipy.stats import norm

    z, a = (y - mean) / sd, 0.05
    low, high = mean - Z * sd, mean + Z * sd
    below, above = np.maximum(low - y, 0.0), np.maximum(y - high, 0.0)
    crps = sd * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / np.sqrt(np.pi))
    return {
        "MAE": float(np.abs(y - mean).mean()),
        "RMSE": float(np.sqrt(((y - mean) ** 2).mean())),
        "CRPS": float(crps.mean()),
        "interval score": float((high - low + 2.0 / a * (below + above)).mean()),
        "coverage": float(np.mean((y >= low) & (y <= high))),
    }


class Clock:
    """Seconds of the processor, from one call to the next."""

    def __init__(self):
        self.last, self.seconds = time.process_time(), {}

    def __call__(self, what):
        now = time.process_time()
        self.seconds[what], self.last = round(now - self.last, 1), now
        print(what, self.seconds[what], flush=True)


def vsgp(X, y, Xnew, truth, m, draws, method):
    """Temperatures from draws of theta, by importance weights or the stage, and of the values."""
    import pymc as pm

    import pymc_vsgp as vsgp

    clock = Clock()
    with pm.Model():
        level = pm.Normal("level", float(y.mean()), 10.0)
        sd = pm.HalfNormal("sd", 10.0)
        ls = pm.LogNormal("ls", 0.0, 1.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=sd**2 * pm.gp.cov.Exponential(2, ls=ls)
        )
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, m))
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=y)
        clock("model")
        stage = vsgp.fit_gaussian(progressbar=False)
        print(stage, flush=True)
        clock("stage")
        if method == "stage":
            idata = stage.to_datatree(draws, random_seed=1)
        else:
            settings = {"method": "importance", "random_seed": 1, "progressbar": False}
            idata = vsgp.sample(draws // 2, chains=2, stage=stage, **settings)
        clock("draws")
        # A hundredth of what varies between draws is left of their mean's variance.
        some = idata.isel(draw=slice(None, None, max(1, draws // PREDICTED)))
        found = vsgp.predict(some, Xnew, "moments", progressbar=False)
        clock("predict")
    posterior, attrs = idata["posterior"], idata["posterior"].attrs
    # Mean and variance given each draw, and over draws.
    means, variances = (np.asarray(found[n]).reshape(-1, len(Xnew)) for n in ("mean", "variance"))
    noise = float((posterior["sigma"] ** 2).mean())
    result = scores(
        truth, means.mean(axis=0), np.sqrt(means.var(axis=0) + variances.mean(axis=0) + noise)
    )
    result["seconds"] = clock.seconds
    if method != "stage":
        result["k-hat"], result["ESS"] = attrs["khat"], attrs["importance_ess"]
        result["R-hat"] = idata["sample_stats"].attrs["rhat"]
    result["theta"] = {
        n: [float(posterior[n].mean()), float(posterior[n].std())]
        for n in ("level", "sd", "ls", "sigma")
    }
    return f"vsgp, {m} neighbors, {draws} draws ({method})", result


def gpboost(X, y, Xnew, truth, m, *_):
    """Theta maximised."""
    import gpboost as gpb

    clock = Clock()
    model = gpb.GPModel(
        gp_coords=X,
        cov_function="exponential",
        gp_approx="vecchia",
        num_neighbors=m,
        num_parallel_threads=1,
    )
    model.fit(y=y, X=np.ones((len(y), 1)))
    clock("fit")
    found = model.predict(
        gp_coords_pred=Xnew, X_pred=np.ones((len(Xnew), 1)), predict_var=True, predict_response=True
    )
    clock("predict")
    result = scores(truth, found["mu"], np.sqrt(found["var"]))
    result["seconds"] = clock.seconds
    return f"GPBoost, {m} neighbors", result


def add(path, name, result):
    """Keep a result beside those that there are, and make a table of all."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {name: result}
    envs.save(path, json.dumps(known, indent=1) + "\n", kept=True)
    columns = [c for c in result if isinstance(result[c], float) and c not in OF_WEIGHTS]
    lines = [" | ".join(["", *columns, "seconds"]), "|".join(["---"] * (len(columns) + 2))]
    for each, row in known.items():
        seconds = ", ".join(f"{what} {t:.0f}" for what, t in row["seconds"].items())
        said = "".join(f", {c} {row[c]:.{n}f}" for c, n in OF_WEIGHTS.items() if c in row)
        lines.append(" | ".join([each + said, *(f"{row[c]:.3f}" for c in columns), seconds]))
    envs.save(path.with_suffix(".md"), "".join(f"| {line} |\n" for line in lines), kept=True)


def main():
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["vsgp", "gpboost"])
    parser.add_argument("--rows", type=int, default=105_569)
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--method", choices=["importance", "stage"], default="importance")
    args = parser.parse_args()
    X, y, Xnew, truth = read(args.rows)
    print(len(y), "rows,", len(truth), "held out", flush=True)
    name, result = {"vsgp": vsgp, "gpboost": gpboost}[args.which](
        X, y, Xnew, truth, args.neighbors, args.draws, args.method
    )
    if len(y) < 105_569:
        name += f", {len(y)} rows"
    print(name, json.dumps(result, indent=1), flush=True)
    add(RESULTS, name, result)


if __name__ == "__main__":
    main()
