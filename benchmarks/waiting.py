"""How long one waits: from the start of Python to a gradient, to draws, to a plot.

Ten everyday models, by this package and by others where they can say the model. Each run is a
process of its own with a cache of compiled code of its own: empty (cold), filled by the same run
(warm), or filled by another model (second). Runs are in a new order each round, and kept one by
one: the same command goes on where it was stopped.

    python benchmarks/waiting.py --rounds 5
    python benchmarks/waiting.py --models readme classes --samplers nuts hsgp --rounds 3
"""

import argparse
import functools
import json
import os
import random
import shutil
import subprocess
import sys

from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
MODELS = {
    "readme": "Poisson, Matern 5/2, 30 points, N = 100",
    "negative": "negative binomial, squared exponential, 30 points, N = 100",
    "normal": "normal noise, Matern 3/2, 30 points, N = 500",
    "student": "Student's t, Matern 3/2, 30 points, N = 200",
    "bernoulli": "Bernoulli, Matern 5/2, 40 points, two inputs, N = 300",
    "features": "Poisson, Matern 5/2, Fourier features, N = 100",
    "labels": "Bernoulli, squared exponential, Fourier features, N = 200",
    "two": "two processes: mean and log of the noise, N = 200",
    "classes": "softmax, K = 6 classes, 20 points, N = 300",
    "groups": "Poisson, Matern 5/2, 20 points, ten group effects, N = 200",
}
LARGER = {
    "poisson": "Poisson, N = 1000, M = 50, two inputs",
    "pines": "pines, 32 x 32 cells, Fourier features",
    "gaussian": "normal noise, N = 20,000, M = 200, eight inputs",
}
SAMPLERS = {
    "default": "vsgp.sample()",
    "nuts": "vsgp.sample(method='nuts', backend='numba')",
    "nuts-jax": "vsgp.sample(method='nuts', backend='jax')",
    "gradient": "value and gradient alone, numba",
    "hsgp": "pm.gp.HSGP, pm.sample()",
    "latent": "pm.gp.Latent, pm.sample()",
    "numpyro": "NumPyro by hand, NUTS",
    "gpflow": "GPflow SGPMC, HMC",
}
PEERS = ("hsgp", "latent")
BY_HAND = ("numpyro", "gpflow")
UNSAID = dict.fromkeys((*PEERS, *BY_HAND), {"features", "labels", "two", "classes", *LARGER})
UNSAID["gpflow"] = UNSAID["gpflow"] | {"negative", "groups"}
"""What peers have no process or likelihood for, or the same one as of another model here."""
STATES = ("cold", "warm", "second")
KEPT = dict.fromkeys(BY_HAND, STATES[:1])
"""States of those that keep nothing of what they compile."""
EVENTS = {
    "plot": "to the plot",
    "draws": "to 1000 draws of each of four chains",
    "draw": "to the first draw of NUTS; importance weights give all of them at once",
    "gradient": "to the first gradient",
}


def data(case):
    """Return inputs, the function, and a source of what is observed of it."""
    import numpy as np

    rng = np.random.default_rng(list(MODELS).index(case))
    n = {"normal": 500, "bernoulli": 300, "classes": 300}.get(case, 200)
    X = np.sort(rng.uniform(size=(n, 2 if case == "bernoulli" else 1)) * 10.0, axis=0)
    return X, np.sin(X).sum(axis=1), rng


def build(case, sampler):
    """Return the model of a case, by us or by a peer, and its inputs."""
    if case in LARGER:
        return build_larger(case)
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    kernels = {"negative": "ExpQuad", "labels": "ExpQuad", "normal": "Matern32"}
    kernel = getattr(pm.gp.cov, kernels.get(case, "Matern32" if case == "student" else "Matern52"))
    coal = case in ("readme", "negative", "features")
    if coal:
        counts = vsgp.datasets.coal_counts(bins=100)
        X, y = counts["year"].to_numpy()[:, None], counts["count"].to_numpy()
        width = counts["width"][0]
    else:
        X, f, rng = data(case)
    D = X.shape[1]
    points = {"bernoulli": 40, "classes": 20, "groups": 20}.get(case, 30)
    with pm.Model() as model:

        def process(name, **settings):
            """Return a process, or the values of a peer's."""
            mu, sigma = (20, 10) if coal else (2, 1)
            ls = pm.InverseGamma(f"lengthscale_{name}", mu=mu, sigma=sigma)
            scale = pm.HalfNormal(f"scale_{name}", 1)
            mean = pm.gp.mean.Constant(pm.Normal(f"mean_{name}", 0, 1))
            cov = scale**2 * kernel(D, ls=ls)
            if sampler in PEERS:
                how = {"m": [20 if D == 2 else 30] * D, "c": 1.5} if sampler == "hsgp" else {}
                gp = getattr(pm.gp, {"hsgp": "HSGP", "latent": "Latent"}[sampler])
                return gp(mean_func=mean, cov_func=cov, **how).prior(name, X)
            gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
            if case in ("features", "labels"):
                gp.prior(name, inducing=vsgp.inducing.Fourier.for_data(X, cov))
            else:
                Xu = vsgp.inducing.kmeans(X, points) if D == 2 else vsgp.inducing.grid(X, points)
                gp.prior(name, Xu=Xu, **settings)
            return gp

        gp = process("f", **({"n_outputs": 6} if case == "classes" else {}))

        def observe(likelihood, peer):
            if sampler in PEERS:
                peer()
            else:
                vsgp.likelihood("y", likelihood, gp, X=X, y=y)

        if case in ("readme", "features"):
            observe(
                vsgp.Poisson(exposure=width),
                lambda: pm.Poisson("y", pm.math.exp(gp) * width, observed=y),
            )
        elif case == "negative":
            alpha = pm.Exponential("alpha", 1)
            observe(
                vsgp.NegativeBinomial(alpha=alpha),
                lambda: pm.NegativeBinomial("y", mu=pm.math.exp(gp), alpha=alpha, observed=y),
            )
        elif case == "normal":
            sigma, y = pm.HalfNormal("sigma", 1), rng.normal(f, 0.3)
            observe(vsgp.Gaussian(sigma), lambda: pm.Normal("y", gp, sigma, observed=y))
        elif case == "student":
            sigma, y = pm.HalfNormal("sigma", 1), f + 0.3 * rng.standard_t(4, size=len(f))
            observe(
                vsgp.StudentT(4.0, sigma),
                lambda: pm.StudentT("y", nu=4.0, mu=gp, sigma=sigma, observed=y),
            )
        elif case in ("bernoulli", "labels"):
            y = rng.binomial(1, 1.0 / (1.0 + np.exp(-2.0 * f)))
            observe(vsgp.Bernoulli(), lambda: pm.Bernoulli("y", logit_p=gp, observed=y))
        elif case == "two":
            gp, y = [gp, process("g")], rng.normal(f, np.exp(0.5 * np.cos(X[:, 0]) - 1.0))
            observe(vsgp.HeteroskedasticGaussian(), None)
        elif case == "classes":
            scores = np.sin(X + np.arange(6.0)) + 0.3 * rng.gumbel(size=(len(X), 6))
            y = np.argmax(scores, axis=1)
            observe(vsgp.Softmax(6), None)
        else:
            group = np.arange(len(X)) % 10
            spread = pm.HalfNormal("spread", 1)
            effect = pm.Normal("effect", 0, 1, shape=10) * spread
            y = rng.poisson(np.exp(f + 0.5 * rng.normal(size=10)[group]))
            observe(
                vsgp.Poisson(exposure=pm.math.exp(effect[group])),
                lambda: pm.Poisson("y", pm.math.exp(gp + effect[group]), observed=y),
            )
    return model, X


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


def worker(case, sampler, draws):
    """Do what a user does, and say when what was done."""
    from waiting_peers import Clock

    clock = Clock()
    import matplotlib

    matplotlib.use("Agg")
    import arviz as az  # noqa: F401  (its import is part of what one waits for)
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    seen, tick, note = clock.seen, clock.tick, ""
    known = pm.sample

    @functools.wraps(known)
    def sample(*args, **kwargs):
        # Not before: a user whose draws are importance weights does not wait for this import.
        import nutpie

        draw = nutpie.sample
        nutpie.sample = lambda *args, **kwargs: (tick("draw"), draw(*args, **kwargs))[1]
        try:
            return known(*args, **kwargs)
        finally:
            nutpie.sample = draw

    pm.sample = sample
    tick("import")
    model, X = build(case, sampler)
    with model:
        if sampler == "gradient":
            point = model.initial_point()
            at = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars])
            model.logp_dlogp_function(ravel_inputs=True, mode="NUMBA")(at)
            tick("gradient")
        else:
            if sampler in PEERS:
                idata = pm.sample(draws, random_seed=1, progressbar=False, nuts_sampler="nutpie")
            else:
                settings = {"nuts": {"backend": "numba"}, "nuts-jax": {"backend": "jax"}}
                method = {"method": "nuts"} if sampler.startswith("nuts") else {}
                method |= settings.get(sampler, {})
                idata = vsgp.sample(draws, random_seed=1, progressbar=False, **method)
                note = idata["posterior"].attrs.get("method", "")
            tick("draws")
            seen.setdefault("draw", seen["draws"])
            if sampler in PEERS:
                _plot_values(idata, X)
            elif X.shape[1] > 2:
                vsgp.predict(idata, X[:200], "mean", random_seed=1, progressbar=False)
            else:
                vsgp.plot_function(idata, X if X.shape[1] == 1 else None, random_seed=1)
            tick("plot")
    print("RESULT " + json.dumps({"seen": seen, "method": note}), flush=True)


def save(case, file):
    """Keep the data of a case, for those that do not read it from PyMC's model."""
    import numpy as np

    model, X = build(case, "default")
    y, Z = model.rvs_to_values[model["y"]].eval(), model["f_Xu"].get_value()
    kernels = {"negative": "ExpQuad", "normal": "Matern32", "student": "Matern32"}
    width = X[1, 0] - X[0, 0] if case in ("readme", "negative") else 1.0
    kernel = kernels.get(case, "Matern52")
    np.savez(file, name=case, X=X, y=y, Z=Z, exposure=width, kernel=kernel)


def _plot_values(idata, X):
    """Plot what a peer has of the function: its values at the data."""
    import matplotlib.pyplot as plt

    f = idata["posterior"]["f"]
    low, middle, high = f.quantile([0.05, 0.5, 0.95], dim=["chain", "draw"])
    _, ax = plt.subplots()
    if X.shape[1] == 2:
        ax.scatter(*X.T, c=middle)
    else:
        ax.fill_between(X[:, 0], low, high, alpha=0.3)
        ax.plot(X[:, 0], middle)


def run(case, sampler, cache, limit, draws=1000):
    """Run one process; says what failed where it does not end in time."""
    sys.path.insert(0, str(HERE))
    from envs import python, variables

    # The larger ones have no peers to be compared with: they run as a user would run them.
    env = variables(2 if case in LARGER else 1, cache)
    # Modules are compiled once, as an installed package's are.
    env["PYTHONPYCACHEPREFIX"] = str(HERE / ".cache" / "modules")
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--draws", str(draws), "--worker", case, sampler]
    if sampler in BY_HAND:
        file = os.path.join(cache, "case.npz")
        save(case, file)
        of = python("gpflow") if sampler == "gpflow" else sys.executable
        command = [of, str(HERE / "waiting_peers.py"), sampler, file]
        command += ["--draws", str(draws)]
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
    """Run what was asked for and is not there yet, and keep it after each process."""
    from envs import fresh_cache, machine

    path = RESULTS / f"{args.output}.json"
    found = json.loads(path.read_text()) if path.exists() and not args.fresh else {}
    # Files of an earlier form have no rounds.
    found = {"machine": machine(), "runs": [r for r in found.get("runs", ()) if "round" in r]}
    filled: dict[tuple, str] = {}

    def cache_of(case, sampler):
        """Return a copy of the cache that another model has filled."""
        other = "negative" if case == "readme" else "readme"
        if (other, sampler) not in filled:
            filled[other, sampler] = fresh_cache()
            run(other, sampler, filled[other, sampler], args.limit, args.draws)
        cache = fresh_cache()
        shutil.copytree(filled[other, sampler], cache, dirs_exist_ok=True)
        return cache

    run("readme", "default", filled.setdefault(("", ""), fresh_cache()), args.limit, 10)
    try:
        for i in range(args.rounds):
            todo = [
                (c, s) for c in args.models for s in args.samplers if c not in UNSAID.get(s, ())
            ]
            random.Random(i).shuffle(todo)
            for case, sampler in todo:
                states = KEPT.get(sampler, STATES)
                keys = [{"model": case, "sampler": sampler, "state": s, "round": i} for s in states]
                done = [r for r in found["runs"] if any(r.items() >= k.items() for k in keys)]
                if len(done) == len(keys):
                    continue
                found["runs"] = [r for r in found["runs"] if r not in done]
                cold = fresh_cache()
                second = fresh_cache() if sampler in KEPT else cache_of(case, sampler)
                try:
                    for key, cache in zip(keys, (cold, cold, second), strict=False):
                        got = run(case, sampler, cache, args.limit, args.draws)
                        found["runs"].append(key | {"load": os.getloadavg()[0]} | got)
                        path.write_text(json.dumps(found, indent=1) + "\n")
                        print(found["runs"][-1], flush=True)
                        table(found, path.with_suffix(".md"))
                        if "failed" in got:
                            break
                finally:
                    for cache in (cold, second):
                        shutil.rmtree(cache, ignore_errors=True)
    finally:
        for cache in filled.values():
            shutil.rmtree(cache, ignore_errors=True)


def table(found, path):
    """Write a table for each event: a row a model and library, medians and ranges."""
    groups: dict[tuple, list] = {}
    for r in found["runs"]:
        groups.setdefault((r["model"], r["sampler"], r["state"]), []).append(r)
    rows = [
        (m, s) for m in MODELS | LARGER for s in SAMPLERS if any(g[:2] == (m, s) for g in groups)
    ]

    def cell(runs, event, clock):
        at = [r["seen"][event][clock] for r in runs if event in r.get("seen", ())]
        if not at:
            return next((r["failed"] for r in runs if "failed" in r), "")
        spread = f" ({min(at):.1f} to {max(at):.1f})" if len(at) > 1 else ""
        return f"{median(at):.1f}{spread}"

    used = {m: (MODELS | LARGER)[m] for m, _ in rows}
    m = found["machine"]
    load = median([r["load"] for r in found["runs"]])
    runs = max(len(g) for g in groups.values())
    lines = [
        "# Waiting",
        "",
        "From the start of Python, each run in a process of its own: with an empty cache of "
        "compiled code (cold), with\nthat of the same run (warm), with that of another model "
        "(second). Seconds of the clock, then CPU seconds of all\nthreads: medians, and ranges of "
        f"up to {runs} run{'s' * (runs > 1)}. {m['cores']} cores, {m['processor']}; the load was "
        f"{load:.1f} in the middle:\nabove the number of cores it stretches the clock. "
        f"Libraries have one thread, and two for {', '.join(LARGER)}.",
        "",
        *(f"* {name}: {text}" for name, text in used.items()),
    ]
    for event, title in EVENTS.items():
        some = [
            r
            for r in rows
            if any(event in x.get("seen", ()) for s in STATES for x in groups.get((*r, s), ()))
        ]
        some = some if event != "plot" else [r for r in rows if r[1] != "gradient"]
        if not some:
            continue
        head = ["model", "what", *STATES, *(f"{s}, CPU" for s in STATES), "by"]
        lines += ["", f"**{title[0].upper()}{title[1:]}**", ""]
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in some:
            each = [groups.get((*row, s), []) for s in STATES]
            by = sorted({r["method"] for g in each for r in g if r.get("method")})
            cells = [row[0], f"`{SAMPLERS[row[1]]}`" if row[1] != "gradient" else SAMPLERS[row[1]]]
            cells += [cell(g, event, clock) for clock in (0, 1) for g in each]
            lines.append("| " + " | ".join([*cells, ", ".join(by)]) + " |")
    left = [f"{n} ({text})" for n, text in (MODELS | LARGER).items() if n not in used]
    lines += ["", "Not run: " + "; ".join(left) + "."] if left else []
    import envs

    envs.save(path, "\n".join(lines) + "\n", kept=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", nargs=2)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=[*MODELS, *LARGER])
    parser.add_argument("--samplers", nargs="+", default=["default"], choices=list(SAMPLERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--output", default="waiting")
    parser.add_argument("--fresh", action="store_true", help="forget the results that are there")
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker, given.draws)
    else:
        sys.path.insert(0, str(HERE))
        measure(given)
