"""Inducing points, Fourier features and HSGP on the same counts: time, effective samples, accuracy.

Each run is a process of its own, from its start to its last draw, compiling included:

    python benchmarks/features.py --cases pines32,coal --kinds Fourier,points,hsgp

The lengthscale and the mean rate of each are shown beside each other: a method that leaves much out
samples another posterior. CPU seconds are those of the process, which other work on the machine
changes less than the time on the clock.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

RESULTS = pathlib.Path(__file__).parent / "results"
KINDS = ("Fourier", "points", "hsgp")


def pines(n):
    """Counts of saplings in n x n cells."""
    import numpy as np

    import pymc_vsgp as vsgp

    cells = vsgp.point_process(
        vsgp.datasets.load_pines(),
        window={"x": (-5, 5), "y": (-8, 2)},
        bins=n,
        repeated="keep",
    )
    return np.asarray(cells.X), np.asarray(cells.counts), np.asarray(cells.exposure)


def coal():
    import numpy as np

    import pymc_vsgp as vsgp

    counts = vsgp.datasets.coal_counts(bins=100)
    return (
        counts["year"].to_numpy()[:, None],
        counts["count"].to_numpy(),
        np.asarray(counts["width"], dtype=float),
    )


def scattered(n):
    """Simulated counts at random places of a square."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, size=(n, 2))
    f = np.sin(X[:, 0]) * np.cos(0.7 * X[:, 1]) + 0.5 * np.sin(1.3 * X[:, 1])
    return X, rng.poisson(np.exp(f - 1.0)), np.ones(n)


CASES = {
    "coal": coal,
    "pines32": lambda: pines(32),
    "pines64": lambda: pines(64),
    "rows1e5": lambda: scattered(100_000),
    "rows1e6": lambda: scattered(1_000_000),
}
RANGE = {"coal": (5.0, 40.0)}


def run(case, kind, draws, tune, chains, seed):
    """Sample once, in this process."""
    import arviz as az
    import numpy as np
    import pymc as pm
    import pytensor.tensor as pt

    import pymc_vsgp as vsgp

    began = time.perf_counter()
    X, y, exposure = CASES[case]()
    D = X.shape[1]
    low, high = RANGE.get(case, (0.5, 3.0))
    out = {"case": case, "kind": kind, "n_rows": len(X)}
    with pm.Model() as model:
        mean = np.sqrt(low * high)
        ls = pm.LogNormal("ls", np.log(mean), np.log(high / low) / 3.3)
        variance = pm.Gamma("variance", 2.0, 1.5)
        level = pm.Normal("level", 0.0, 2.0)
        cov = variance * pm.gp.cov.Matern52(D, ls=ls)
        if kind == "hsgp":
            bounds = [[X[:, d].min(), X[:, d].max()] for d in range(D)]
            m, c = [], 1.2
            for bound in bounds:
                each = pm.gp.hsgp_approx.approx_hsgp_hyperparams(bound, [low, high], "matern52")
                m.append(int(each[0]))
                c = max(c, float(each[1]))
            gp = pm.gp.HSGP(m=m, c=c, cov_func=cov)
            f = gp.prior("f", X=X)
            pm.Poisson("y", pt.exp(level + f) * exposure, observed=y)
            out["n_inducing"] = int(np.prod(m))
            idata = pm.sample(
                draws=draws,
                tune=tune,
                chains=chains,
                random_seed=seed,
                nuts_sampler="nutpie",
                backend="jax",
                progressbar=False,
                nuts={"target_accept": 0.9},
            )
        else:
            gp = pm.gp.VariationalSparse(mean_func=pm.gp.mean.Constant(level), cov_func=cov)
            if kind == "points":
                number = 15 if D == 2 else 30
                gp.prior("u", Xu=vsgp.inducing.grid(X, number))
            else:
                gp.prior("u", inducing=vsgp.inducing.Fourier.for_data(X, cov, random_seed=seed))
            gp.likelihood("y", vsgp.Poisson(exposure=exposure), X=X, y=y)
            out["n_inducing"] = int(model["u"].shape.eval()[-1])
            stage = vsgp.fit_gaussian(progressbar=False)
            out["stage_seconds"] = time.perf_counter() - began
            idata = vsgp.sample(
                stage,
                draws,
                tune=tune,
                chains=chains,
                random_seed=seed,
                progressbar=False,
                backend="jax",
            )
    out["seconds"] = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    out["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    out["sampling_seconds"] = float(idata.posterior.attrs.get("sampling_time", np.nan))
    names = ["ls", "variance", "level"]
    ess = az.ess(idata, var_names=names)
    ess = getattr(ess, "dataset", ess)
    rhat = az.rhat(idata, var_names=names)
    rhat = getattr(rhat, "dataset", rhat)
    out["min_ess"] = min(float(ess[n]) for n in names)
    out["max_rhat"] = max(float(rhat[n]) for n in names)
    out["steps"] = float(idata.sample_stats["n_steps"].mean())
    out["divergences"] = int(idata.sample_stats["diverging"].sum())
    out["ls"] = [float(idata.posterior["ls"].mean()), float(idata.posterior["ls"].std())]
    out["variance"] = [
        float(idata.posterior["variance"].mean()),
        float(idata.posterior["variance"].std()),
    ]
    if kind != "hsgp":
        with model:
            check = vsgp.check_inducing(idata, 20, nested=False, progressbar=False)
        out["missing_nats"] = float(np.median(check.missing))
    return out


def table(rows, options):
    """Return the results as a page."""
    lines = [
        "# Inducing points, Fourier features, HSGP",
        "",
        f"`python benchmarks/features.py {options}`; each run a process of its own, from start to "
        "last draw, nutpie on JAX. ESS is the smallest of lengthscale, variance and level.",
        "",
        "| case | rows | kind | number | seconds | CPU s | min ESS | ms CPU an ESS | steps | "
        "R-hat | divergences | lengthscale | missing nats |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        missing = f"{r['missing_nats']:.2f}" if "missing_nats" in r else "not known"
        lines.append(
            f"| {r['case']} | {r['n_rows']} | {r['kind']} | {r['n_inducing']} "
            f"| {r['seconds']:.0f} | {r['cpu_seconds']:.0f} | {r['min_ess']:.0f} "
            f"| {1e3 * r['cpu_seconds'] / r['min_ess']:.0f} | {r['steps']:.0f} "
            f"| {r['max_rhat']:.3f} | {r['divergences']} "
            f"| {r['ls'][0]:.2f} ± {r['ls'][1]:.2f} | {missing} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="coal,pines32,pines64")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=1800)
    parser.add_argument("--output", default="features")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "KIND"))
    args = parser.parse_args()
    if args.one:
        result = run(*args.one, args.draws, args.tune, args.chains, args.seed)
        print(json.dumps(result))
        return
    rows = []
    settings = ["--draws", args.draws, "--tune", args.tune, "--chains", args.chains]
    settings = [str(s) for s in [*settings, "--seed", args.seed]]
    for case in args.cases.split(","):
        for kind in args.kinds.split(","):
            command = [sys.executable, __file__, "--one", case, kind, *settings]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=args.timeout,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            except subprocess.TimeoutExpired:
                print(f"{case} {kind}: not done after {args.timeout} s", flush=True)
                continue
            if done.returncode:
                print(f"{case} {kind}: failed\n{done.stderr[-2000:]}", flush=True)
                continue
            rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(rows[-1], flush=True)
            RESULTS.mkdir(exist_ok=True)
            options = f"--cases {args.cases} --kinds {args.kinds} {' '.join(settings)}"
            (RESULTS / f"{args.output}.md").write_text(table(rows, options))
            (RESULTS / f"{args.output}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
