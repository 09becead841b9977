"""Whether few data with many parameters get the right posterior, from one start of the stage.

Usage: ``python optima.py [--sets 12]``. Runs in the environment that it is started in. Each data
set is sampled with importance weights twice: from the Gaussian stage as it is by default, and from
the best of six starts. Log evidences of draws that are kept should agree.
"""

import argparse
import json
import pathlib
import time

import envs
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

PATH = pathlib.Path(__file__).parent / "results" / "optima.json"
STARTS, WORSE = 6, 1.0  # nats of the ELBO


def functions(X, rng):
    """One to three inputs count, each as a sine."""
    k = min(rng.integers(1, 4), X.shape[1])
    return sum(np.sin(X[:, j] * rng.uniform(0.3, 1.5) + rng.uniform(0.0, 6.0)) for j in range(k))


# Rows, inputs, likelihood, and observations of a function.
KINDS = {
    "normal noise": (
        (25, 2),
        lambda: vsgp.Gaussian(pm.HalfNormal("sigma", 1.0)),
        lambda f, rng: f + 0.4 * rng.normal(size=len(f)),
    ),
    "counts": ((60, 6), vsgp.Poisson, lambda f, rng: rng.poisson(np.exp(0.7 * f))),
    "binary": (
        (80, 8),
        vsgp.Bernoulli,
        lambda f, rng: (rng.uniform(size=len(f)) < 1.0 / (1.0 + np.exp(-2.0 * f))).astype(int),
    ),
}


def build(kind):
    """Return the model, and what draws a data set for it from a seed."""
    (n, d), likelihood, observe = KINDS[kind]
    X = np.random.default_rng(d).uniform(0.0, 10.0, (n, d))

    def draw(seed):
        rng = np.random.default_rng(100 + seed)
        return observe(functions(X, rng), rng)

    with pm.Model() as model:
        ls = pm.LogNormal("ls", 1.5, 1.0, shape=d)
        sd = pm.HalfNormal("sd", 3.0)
        gp = vsgp.VariationalSparse(cov_func=sd**2 * pm.gp.cov.Matern52(d, ls=ls))
        gp.prior("u", Xu=vsgp.inducing.kmeans(X, min(30, n), random_seed=1))
        gp.likelihood("y", likelihood(), X=X, y=pm.Data("observed", draw(0)))
    return model, draw


def sampled(model, n_starts):
    """Return what one call finds."""
    vsgp.reset(model)
    began = time.process_time()
    stage = vsgp.fit_gaussian(n_starts=n_starts, random_seed=1, progressbar=False)
    idata = vsgp.sample(500, stage=stage, method="importance", random_seed=1, progressbar=False)
    attrs = idata["posterior"].attrs
    return {
        "elbo_before": stage.elbo,
        "elbo": float(idata["gaussian_stage"].attrs["elbo"]),
        "cpu": time.process_time() - began,
        **{k: attrs[k] for k in ("khat", "importance_ess", "log_evidence", "refused")},
    }


def run(kind, sets):
    """Return, for each data set, what one start and what several find."""
    model, draw = build(kind)
    out = []
    with model:
        for seed in range(sets):
            pm.set_data({"observed": draw(seed)})
            out.append({"one": sampled(model, 1), "several": sampled(model, STARTS)})
    return out


NOTE = f"""\
Data sets of which one to three inputs tell. *worse*: the stage from the initial point ends more
than {WORSE:.0f} nat below the best of {STARTS} starts and of what `sample` finds. *then*: the same
after `sample`, which looks for other optima where weights are refused. *refused*: in the end, so
that NUTS takes over. *evidence off*: largest difference of log evidences from those of the best of
{STARTS} starts, where both are kept. CPU seconds are of a stage and its draws.

| data | N | inputs | sets | worse | then | refused | median k-hat | evidence off | CPU s |
|---|---|---|---|---|---|---|---|---|---|"""


def table(results):
    """Return the table in Markdown."""
    lines = [NOTE]
    for kind, rows in results.items():
        (n, d), *_ = KINDS[kind]
        best = [max(r["one"]["elbo"], r["several"]["elbo"]) - WORSE for r in rows]
        worse, then = (
            sum(r["one"][k] < b for r, b in zip(rows, best, strict=True))
            for k in ("elbo_before", "elbo")
        )
        refused = sum(bool(r["one"]["refused"]) for r in rows)
        kept = [r for r in rows if not (r["one"]["refused"] or r["several"]["refused"])]
        off = (abs(r["one"]["log_evidence"] - r["several"]["log_evidence"]) for r in kept)
        khat = np.median([r["one"]["khat"] for r in rows])
        cpu = np.median([r["one"]["cpu"] for r in rows])
        lines.append(
            f"| {kind} | {n} | {d} | {len(rows)} | {worse} | {then} | {refused} | {khat:.2f} | "
            f"{max(off):.2f} | {cpu:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=12)
    arguments = parser.parse_args()
    results = {}
    for kind in KINDS:
        results[kind] = run(kind, arguments.sets)
        print(table(results), flush=True)
    envs.save(PATH, json.dumps(results, indent=1) + "\n")
    envs.save(PATH.with_suffix(".md"), table(results))


if __name__ == "__main__":
    main()
