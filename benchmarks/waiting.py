"""How long one waits: from the start of Python to a gradient, to draws, to a plot.

Each run is a process of its own with a cache of compiled code of its own: empty (cold), filled by
the same run (warm), or filled by another model (second). CPU seconds, user and system, are what
counts: wall seconds depend on what else the machine does.

    python benchmarks/waiting.py --rounds 5 --cases readme second features
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time

from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
CASES = ("readme", "second", "features", "bernoulli")
LARGER = {
    "poisson": "Poisson, N = 1000, M = 50, two inputs",
    "pines": "pines, 32 x 32 cells, Fourier features",
    "gaussian": "normal noise, N = 20,000, M = 200, eight inputs",
}
EVENTS = ("import", "gradient", "start", "draws", "plot")
SAMPLERS = {
    "gradient": "value and gradient alone, numba",
    "default": "vsgp.sample()",
    "nuts": "vsgp.sample(method='nuts', backend='numba')",
    "nuts-jax": "vsgp.sample(method='nuts', backend='jax')",
    "hsgp": "pm.gp.HSGP, pm.sample()",
    "latent": "pm.gp.Latent, pm.sample()",
}


def build_larger(case):
    """Return the model of a larger case."""
    import numpy as np
    import pymc as pm
    import sampling_cases

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(20151207)
    with pm.Model() as model:
        if case == "gaussian":
            X = rng.standard_normal((20_000, 8))
            y = np.sin(X @ rng.standard_normal(8)) + 0.3 * rng.standard_normal(20_000)
            Z, likelihood = X[:200], vsgp.Gaussian(pm.HalfNormal("sigma", 1))
        else:
            data = sampling_cases.CASES["pines" if case == "pines" else "poisson1"](False)
            X, y, Z = data["X"], data["y"], data["Z"]
            likelihood = vsgp.Poisson(exposure=data["exposure"])
        D = X.shape[1]
        ard = {} if case == "pines" else {"shape": D}
        lengthscale = pm.InverseGamma("lengthscale", mu=2.0, sigma=1.0, **ard)
        scale = pm.HalfNormal("scale", 1)
        cov = scale**2 * pm.gp.cov.Matern52(D, ls=lengthscale)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(pm.Normal("c", 0, 2)), cov_func=cov
        )
        if case == "pines":
            gp.prior("u", inducing=vsgp.inducing.Fourier.for_data(X, cov))
        else:
            gp.prior("u", Xu=Z)
        gp.likelihood("y", likelihood, X=X, y=y)
    return model, X


def build(case, sampler):
    """Return the model of a case: ours, or the same by a peer."""
    if case in LARGER:
        return build_larger(case)
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    counts = vsgp.datasets.coal_counts(bins=100)
    X, y = counts["year"].to_numpy()[:, None], counts["count"].to_numpy()
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=20, sigma=10)
        scale = pm.HalfNormal("scale", 1)
        mean = pm.gp.mean.Constant(pm.Normal("intercept", 0, 1))
        kernel = pm.gp.cov.ExpQuad if case == "second" else pm.gp.cov.Matern52
        cov = scale**2 * kernel(1, ls=lengthscale)
        if sampler in ("hsgp", "latent"):
            settings = {"m": [30], "c": 1.5} if sampler == "hsgp" else {}
            gp = getattr(pm.gp, {"hsgp": "HSGP", "latent": "Latent"}[sampler])(
                mean_func=mean, cov_func=cov, **settings
            )
            f = gp.prior("f", X)
            if case == "second":
                alpha = pm.Exponential("alpha", 1)
                pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=alpha, observed=y)
            else:
                pm.Poisson("y", pm.math.exp(f) * counts["width"][0], observed=y)
            return model, X
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
        if case == "features":
            gp.prior("u", inducing=vsgp.inducing.Fourier.for_data(X, cov))
        else:
            gp.prior("u", Xu=vsgp.inducing.grid(X, 30))
        likelihood = {
            "second": lambda: vsgp.NegativeBinomial(alpha=pm.Exponential("alpha", 1)),
            "bernoulli": vsgp.Bernoulli,
        }.get(case, lambda: vsgp.Poisson(exposure=counts["width"][0]))()
        if case == "bernoulli":
            y = rng.integers(0, 2, len(y))
        gp.likelihood("y", likelihood, X=X, y=y)
    return model, X


def worker(case, sampler):
    """Do what a user does, and say when what was done."""
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + _started()
    import matplotlib

    matplotlib.use("Agg")
    import arviz as az  # noqa: F401  (its import is part of what one waits for)
    import numpy as np
    import nutpie
    import pymc as pm

    import pymc_vsgp as vsgp

    seen, note = {}, ""

    def tick(event):
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        seen[event] = [time.time() - began, sum(u.ru_utime + u.ru_stime for u in used)]

    def sample(*args, known=nutpie.sample, **kwargs):
        tick("start")
        return known(*args, **kwargs)

    nutpie.sample = sample

    tick("import")
    model, X = build(case, sampler)
    with model:
        if sampler == "gradient":
            point = model.initial_point()
            at = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars])
            model.logp_dlogp_function(ravel_inputs=True, mode="NUMBA")(at)
            tick("gradient")
        else:
            if sampler in ("hsgp", "latent"):
                idata = pm.sample(1000, random_seed=1, progressbar=False)
            else:
                settings = {"nuts": {"backend": "numba"}, "nuts-jax": {"backend": "jax"}}
                method = {"method": "nuts"} if sampler.startswith("nuts") else {}
                method |= settings.get(sampler, {})
                idata = vsgp.sample(1000, random_seed=1, progressbar=False, **method)
                note = idata["posterior"].attrs.get("method", "")
            tick("draws")
            if X.shape[1] > 2:
                vsgp.predict(idata, X[:200], "mean", random_seed=1, progressbar=False)
                tick("plot")
            elif sampler not in ("hsgp", "latent"):
                vsgp.plot_function(idata, X if X.shape[1] == 1 else None, random_seed=1)
                tick("plot")
    print("RESULT " + json.dumps({"seen": seen, "method": note}), flush=True)


def _started():
    """Return when this process began, in seconds of the monotonic clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def run(case, sampler, cache, limit):
    """Run one process; None where it does not end in time."""
    sys.path.insert(0, str(HERE))
    from envs import variables

    env = variables(1, cache)
    command = [sys.executable, __file__, "--worker", case, sampler]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {limit:.0f} s"}
    lines = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    if not lines:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(lines[-1][7:])


def measure(args):
    """Run what was asked for, in turns, and keep it after each process."""
    from envs import fresh_cache, machine

    path = RESULTS / f"{args.output}.json"
    found = json.loads(path.read_text()) if path.exists() and args.add else {"runs": []}
    found["machine"] = machine()
    for _ in range(args.rounds):
        for sampler in args.samplers:
            cache = fresh_cache()
            try:
                for state, case in [(s, c) for c in args.cases for s in ("cold", "warm")]:
                    # One cache for all cases: the first is cold, and others come second.
                    if state == "cold" and case != args.cases[0]:
                        state = "second"
                    got = run(case, sampler, cache, args.limit)
                    load = os.getloadavg()[0]
                    entry = {"case": case, "sampler": sampler, "state": state, "load": load}
                    found["runs"].append(entry | got)
                    path.write_text(json.dumps(found, indent=1) + "\n")
                    print(entry, got, flush=True)
            finally:
                shutil.rmtree(cache, ignore_errors=True)
    table(found, RESULTS / f"{args.output}.md")


def table(found, path):
    """Write the medians, and the range of the last event."""
    groups = {}
    for r in found["runs"]:
        groups.setdefault((r["case"], r["sampler"], r["state"]), []).append(r)
    head = ["case", "what", "cache", "runs", *EVENTS, "wall", "load"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (case, sampler, state), runs in groups.items():
        good = [r for r in runs if "seen" in r]
        cells = [case, SAMPLERS[sampler], state, str(len(runs))]
        if not good:
            lines.append("| " + " | ".join([*cells, runs[0]["failed"]]) + " |")
            continue
        for event in EVENTS:
            at = [r["seen"][event][1] for r in good if event in r["seen"]]
            spread = f" ({min(at):.1f} to {max(at):.1f})" if len(at) > 1 else ""
            cells.append(f"{median(at):.1f}{spread}" if at else "")
        wall = [max(t for t, _ in r["seen"].values()) for r in good]
        cells += [f"{median(wall):.0f}", f"{median([r['load'] for r in good]):.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    m, done = found["machine"], {(case, sampler) for case, sampler, _ in groups}
    wanted = [(c, s) for c in CASES for s in SAMPLERS] + [(c, "default") for c in LARGER]
    left = [f"{c}: {SAMPLERS[s]}" for c, s in wanted if (c, s) not in done]
    path.write_text(
        "# Waiting\n\nCPU seconds from the start of Python to the end of imports, the first "
        "gradient, the start of nutpie, 1000 draws\nof each of four chains, and a plot (with more "
        "than two inputs, predictions): medians, and ranges of several\nruns. NUTS takes both "
        "cores, importance weights one. "
        + "; ".join(f"{k}: {v}" for k, v in LARGER.items())
        + ".\nWall seconds are those of a "
        f"machine ({m['cores']} cores, {m['processor']}) that others used:\na load above the "
        "number of cores stretches them by about as much.\n\n"
        + "\n".join(lines)
        + ("\n\nNot run: " + "; ".join(left) + ".\n" if left else "\n")
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=2)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--output", default="waiting")
    parser.add_argument("--add", action="store_true", help="to the results that are there")
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
    else:
        sys.path.insert(0, str(HERE))
        measure(given)
