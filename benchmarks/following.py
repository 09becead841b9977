"""What it gives that sites follow parameters of likelihoods and of mean functions.

Usage: ``python following.py [--cases A B ...] [--seeds 3] [--limit 200] [--again]``. Each model is
fitted and sampled by ``vsgp.sample(method="auto")`` as it is, and with the constant of the package
that says how many numbers sites follow set to zero. Each run is a process of its own on one thread,
which is stopped after `limit` seconds. What is in `results/following.json` is kept, so that the
table can be made in parts.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import envs
import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"
DATA = pathlib.Path(os.environ.get("PYMC_VSGP_DATA", "../shared/data"))
WINE = DATA / "uci_wine_red.npz"


def regression(seed, kind, n=500, in_mean=False):
    """Counts at places, with an intercept and three coefficients."""
    import pymc as pm
    import pytensor.tensor as pt

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 10.0, (n, 2))
    W = np.column_stack([np.cos(0.6 * X[:, 0]), X[:, 1] / 3.0 - 1.6, rng.normal(size=n)])
    f = np.sin(X[:, 0]) * np.cos(0.7 * X[:, 1])
    y = rng.poisson(np.exp(0.7 + f + W @ [0.5, -0.4, 0.3]))
    ls, scale = pm.InverseGamma("ls", 3, 6), pm.HalfNormal("scale", 1)
    b0, b = pm.Normal("b0", 0, 2), pm.Normal("b", 0, 2, shape=3)
    mean, data, lik = pm.gp.mean.Zero(), X, vsgp.Poisson(exposure=pm.math.exp(b0 + pt.dot(W, b)))
    if in_mean:
        coefficients = pt.concatenate([np.zeros(2), b])
        mean = pm.gp.mean.Linear(coeffs=coefficients, intercept=b0)
        data, lik = np.column_stack([X, W]), vsgp.Poisson()
    D = data.shape[1]

    def cov(ls, scale):
        return scale**2 * pm.gp.cov.Matern52(D, ls=ls, active_dims=[0, 1])

    gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov(ls, scale))
    if kind == "points":
        gp.prior("u", Xu=vsgp.inducing.kmeans(X, 64, random_seed=1))
    elif kind == "neighbors":
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(data, 15))
    else:
        given = {"residual": 0.1, "max_features": 1000, "random_seed": 1}
        features = vsgp.inducing.Fourier.for_data(data, cov(1.0, 1.0), **given)
        gp.prior("u", inducing=features)
    gp.likelihood("y", lik, X=data, y=y)


def wine(seed):
    """Scores of red wine in six classes, with unknown cut-points."""
    import pymc as pm

    import pymc_vsgp as vsgp

    data = np.load(WINE)
    X, y = (np.asarray(data[k], dtype="float64") for k in data.files[:2])
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), y.ravel().astype(int)
    ls, scale = pm.InverseGamma("ls", 3, 6), pm.HalfNormal("scale", 1)
    ordered = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", 0, 3, shape=5, transform=ordered, initval=np.linspace(-2, 2, 5))
    gp = vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.Matern52(X.shape[1], ls=ls))
    gp.prior("u", Xu=vsgp.inducing.kmeans(X, 60, random_seed=seed))
    gp.likelihood("y", vsgp.Ordinal(cuts), X=X, y=y - y.min())


CASES = {
    "counts, 64 points": lambda seed: regression(seed, "points"),
    "counts, 15 neighbors of 500": lambda seed: regression(seed, "neighbors"),
    "counts, Fourier features": lambda seed: regression(seed, "fourier", 2000),
    "counts, Fourier features, in the mean": lambda seed: regression(seed, "fourier", 2000, True),
    "scores of wine, 60 points": wine,
}


def run(name, seed, following=True):
    """Fit and sample a model."""
    import arviz as az
    import pymc as pm

    import pymc_vsgp as vsgp

    from pymc_vsgp.model import observation

    if not following:
        observation.MOST_PARAMETERS = 0
    with pm.Model() as model:
        CASES[name](seed)
    began = time.process_time()
    with model:
        stage = vsgp.fit_gaussian(progressbar=False, random_seed=seed)
        cpu_stage = time.process_time() - began
        idata = vsgp.sample(
            500, stage=stage, cores=1, random_seed=seed, progressbar=False, quiet=True
        )
    cpu = time.process_time() - began
    names = [rv.name for rv in model.free_RVs if rv.name != "u"]
    posterior = idata["posterior"]
    return {
        "rounds": stage.n_steps,
        "converged": bool(stage.converged),
        "elbo": stage.elbo,
        "cpu_stage": cpu_stage,
        "cpu": cpu,
        "method": posterior.attrs["method"],
        "ess": min(float(az.ess(posterior[n]).min()) for n in names),
        "rhat": max(float(az.rhat(posterior[n]).max()) for n in names),
    }


def stopped_after(name, seed, how, limit, script=__file__):
    """Run it in a process of its own."""
    env = envs.variables(1, str(RESULTS.parent / ".cache"))
    work = [sys.executable, script, "--worker", name, str(seed), str(how)]
    try:
        done = subprocess.run(work, env=env, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"stopped": limit}
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def in_parts(stem, work, one, table, again=False):
    """Run each piece of work, unless its result is there already, and write what is known."""
    path = RESULTS / f"{stem}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for part in work:
        key = "; ".join(map(str, part))
        if key in results and not again:
            continue
        results[key] = one(*part)
        envs.save(path, json.dumps(results, indent=1) + "\n", kept=True)
        envs.save(path.with_suffix(".md"), table(results), kept=True)
        print(key, results[key], flush=True)
    print(table(results))


def spread(values, digits=0):
    """Return the least and the largest number."""
    low, high = (f"{v:.{digits}f}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def row(name, following, runs):
    """Return a line of the table."""
    ended = [r for r in runs if "stopped" not in r]
    cells = [name, "yes" if following else "no", f"{len(ended)} of {len(runs)}"]
    if not ended:
        return [*cells, *[""] * 6]
    converged = sum(r["converged"] for r in ended)
    cells += [spread([r["rounds"] for r in ended]), f"{converged} of {len(ended)}"]
    cells += [spread([r["cpu"] for r in ended])]
    cells += [", ".join(sorted({r["method"] for r in ended}))]
    cells += [spread([r["ess"] / r["cpu"] for r in ended], 1)]
    return [*cells, spread([r["rhat"] for r in ended], 2)]


def table(results):
    """Write the table."""
    lines = [
        "| model | sites follow | ended in time | rounds of the stage | converged | CPU seconds, "
        "with the stage | method | smallest ESS of a parameter for each | largest R-hat |",
        "|---" * 9 + "|",
    ]
    for name in CASES:
        for following in (True, False):
            runs = [r for k, r in results.items() if k.startswith(f"{name}; {int(following)};")]
            if runs:
                lines.append("| " + " | ".join(map(str, row(name, following, runs))) + " |")
    limits = {r["limit"] for r in results.values()}
    text = ", ".join(f"{x:g}" for x in sorted(limits))
    lines += ["", f"One thread. Runs were stopped after {text} seconds. Ranges are of seeds."]
    return "\n".join(lines) + "\n"


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=200.0)
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, seed, following = arguments.worker
        print(json.dumps(run(name, int(seed), following == "1")))
        return
    work = []
    for seed in range(1, arguments.seeds + 1):
        for name in arguments.cases:
            if name.startswith("scores") and not WINE.exists():
                print(f"{name}: no {WINE}. Set PYMC_VSGP_DATA.")
                continue
            for following in (True, False):
                work.append((name, int(following), seed))

    def one(name, how, seed):
        found = stopped_after(name, seed, how, arguments.limit)
        return found | {"limit": arguments.limit}

    in_parts("following", work, one, table, arguments.again)


if __name__ == "__main__":
    main()
