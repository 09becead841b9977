"""What `vsgp.check_inducing` says of too few inducing points, and how far their parameters are off.

Usage: ``python inducing_check.py [--cases A B ...]``. Runs in the environment that it is started
in, in some minutes. Draws are of the Gaussian stage. The truth is the stage of the same model with
many more points, or with a point at each row, which is the exact process. Each check looks at 50
draws, with three seeds.
"""

import argparse
import json
import pathlib

import envs
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

RESULTS = pathlib.Path(__file__).parent / "results"
SEEDS = (1, 2, 3)
QUIET = {"progressbar": False}


def drawn(kernel, lengthscale=0.4, n=200):
    """Draw a function of the prior, with normal noise."""
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(0.0, 10.0, n))[:, None]
    K = np.asarray(KERNELS[kernel](1, ls=lengthscale)(X).eval()) + 1e-8 * np.eye(n)
    return X, np.linalg.cholesky(K) @ rng.normal(size=n) + 0.3 * rng.normal(size=n)


def snelson():
    data = vsgp.datasets.load_snelson1d()
    x, y = (data[c].to_numpy() for c in data.columns)
    return x[:, None], y


def coal():
    counts = vsgp.datasets.coal_counts(bins=100)
    return (counts[["year"]].to_numpy() - 1907.0) / 10.0, counts["count"].to_numpy()


def banana():
    data = vsgp.datasets.load("raetsch_banana")
    rows = data["train_idx"][0]
    return data["X"][rows], (data["y"][rows] > 0).astype(int)


def air():
    """Particles in Beijing, day by day: half a year in which they change within days."""
    values = np.log(vsgp.datasets.load_air()["PM2.5"].to_numpy())
    seen = np.isfinite(values)
    return (np.arange(len(values)) / 10.0)[seen, None], (values - values[seen].mean())[seen]


def glass():
    """Glass of windows, or not."""
    table = vsgp.datasets.load_glass()
    X = table.drop(columns=["type", "window"]).to_numpy()
    return (X - X.mean(axis=0)) / X.std(axis=0), table["window"].to_numpy().astype(int)


def sine(counts):
    """Draw from twelve periods."""
    rng = np.random.default_rng(6)
    X = np.sort(rng.uniform(0.0, 10.0, 300))[:, None]
    f = np.sin(2.0 * np.pi * 1.2 * X[:, 0])
    return X, rng.poisson(np.exp(f)) if counts else f + 0.3 * rng.normal(size=300)


KERNELS = {k: getattr(pm.gp.cov, k) for k in ("ExpQuad", "Matern32", "Matern52")}
# Data, kernel, numbers of points, and that of the truth: None for a point at each row.
CASES = {
    "drawn, 200, normal noise, smooth": (lambda: drawn("ExpQuad"), "ExpQuad", (20, 28, 40), None),
    "drawn, 200, normal noise, rough": (lambda: drawn("Matern32"), "Matern32", (20, 40, 80), None),
    "Snelson, 200, normal noise": (snelson, "ExpQuad", (5, 9, 12, 20), None),
    "coal, 100 counts": (coal, "Matern32", (4, 8, 15, 30), 100),
    "banana, 400, two classes": (banana, "ExpQuad", (16, 32, 64), 150),
    "sine, 300, normal noise": (lambda: sine(False), "Matern52", (20, 40, 80), None),
    "sine, 300 counts": (lambda: sine(True), "ExpQuad", (6, 20, 40), 100),
    "air, 181 days, normal noise": (air, "Matern32", (10, 30, 60, 90), None),
    "glass, 214, two classes": (glass, "Matern52", (10, 30, 60), 150),
}


def stage(case, n_inducing):
    """Fit the model of a case with so many inducing points."""
    data, kernel, *_ = CASES[case]
    X, y = data()
    columns = X.shape[1]
    with pm.Model():
        lengthscale = pm.InverseGamma("lengthscale", mu=1.0, sigma=1.0)
        scale = pm.HalfNormal("scale", 2.0)
        gp = vsgp.VariationalSparse(cov_func=scale**2 * KERNELS[kernel](columns, ls=lengthscale))
        if n_inducing is None:
            Xu = X
        elif columns == 1:
            Xu = vsgp.inducing.grid(X, n_inducing)
        else:
            Xu = vsgp.inducing.kmeans(X, n_inducing, random_seed=1)
        gp.prior("u", Xu=Xu)
        if y.dtype.kind == "f":
            likelihood = vsgp.Gaussian(pm.HalfNormal("noise", 1.0))
        else:
            likelihood = vsgp.Bernoulli() if y.max() == 1 else vsgp.Poisson()
        gp.likelihood("y", likelihood, X=X, y=y)
        return vsgp.fit_gaussian(**QUIET)


def parameters(fit):
    """Mean and standard deviation of each unconstrained parameter."""
    sd = np.sqrt(np.diag(fit.theta_covariance))
    return {n: (float(v), s) for (n, v), s in zip(fit.theta_unconstrained.items(), sd, strict=True)}


def run(case, seeds=SEEDS, numbers=None):
    """Check a case with each number of points; yield a row for each."""
    *_, numbers_of_case, many = CASES[case]
    truth = stage(case, many)
    known = parameters(truth)
    for n in numbers or numbers_of_case:
        fit = stage(case, n)
        off = {k: abs(known[k][0] - v) / s for k, (v, s) in parameters(fit).items()}
        row = {"M": n, "shift": float(max(off.values())), "elbo": truth.elbo - fit.elbo}
        row["checks"] = []
        for seed in seeds:
            draws = fit.to_datatree(50, random_seed=seed)
            check = vsgp.check_inducing(draws, model=fit.model, random_seed=seed, **QUIET)
            row["checks"].append(
                {
                    "verdict": check.verdict,
                    "missing": float(np.median(check.missing)),
                    "high": float(np.quantile(check.missing, 0.95)),
                    "gain": float(check.gain),
                    "shift": max(check.shift.values()),
                    "structure": float(check.structure),
                }
            )
        yield row


def several(values):
    """Return what there is, or the range of it."""
    shown = sorted({f"{v:.2f}" if abs(v) < 10 else f"{v:.0f}" for v in values}, key=float)
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def table(results):
    lines = [
        "| data | kernel | M | verdict | missing, nats | 95 % of draws below "
        "| gained by twice as many | predicted shift, sd | true shift, sd "
        "| true gain of the ELBO |",
        "|---" * 10 + "|",
    ]
    for case, rows in results.items():
        for r in rows:
            of = {k: [c[k] for c in r["checks"]] for k in r["checks"][0]}
            verdicts = " or ".join(sorted(set(of["verdict"])))
            cells = [several(of[k]) for k in ("missing", "high", "gain", "shift")]
            true = [several([r["shift"]]), several([r["elbo"]])]
            cells = [case, CASES[case][1], str(r["M"]), verdicts, *cells, *true]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    results = {}
    for case in options.cases:
        results[case] = []
        for row in run(case):
            print(case, row, flush=True)
            results[case].append(row)
    envs.save(RESULTS / "inducing_check.json", json.dumps(results, indent=1) + "\n")
    envs.save(RESULTS / "inducing_check.md", table(results))


if __name__ == "__main__":
    main()
