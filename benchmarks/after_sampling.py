"""What comes after sampling: predictions, cross-validation, checks, in seconds of CPU time.

Usage: ``python after_sampling.py [--before CHECKOUT] [--cases a,b] [--repeats R] [--output NAME]``.
Each case runs in a process of its own. The first call has whatever is compiled; the second has not.
With the path of another checkout both take turns. Writes ``results/NAME.md`` and ``.json``.
"""

import argparse
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

import envs

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = ("first call", "next call", "memory, MB")
quiet = {"progressbar": False}
seeded = {"random_seed": 1, **quiet}


def coal(draws=4000):
    """The example of the README, with draws of its Gaussian stage."""
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    counts = vsgp.datasets.coal_counts(bins=100)
    X = counts["year"].to_numpy()[:, None]
    with pm.Model(coords={"bin": counts["year"]}) as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=20, sigma=10)
        scale = pm.HalfNormal("scale", 1)
        intercept = pm.Normal("intercept", 0, 1)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(intercept),
            cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=lengthscale),
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, 30))
        poisson = vsgp.Poisson(exposure=counts["width"][0])
        gp.likelihood("y", poisson, X=X, y=counts["count"], dims="bin")
    return model, _drawn(model, draws), np.linspace(1851, 1963, 113)[:, None]


def heteroskedastic(draws=2000):
    """133 measurements whose noise varies: two processes."""
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 10, 133))[:, None]
    y = np.sin(X[:, 0]) + np.exp(0.5 * np.cos(X[:, 0]) - 1.5) * rng.normal(size=133)
    Xu = vsgp.inducing.grid(X, 25)
    with pm.Model() as model:
        gps = []
        for name in ("u_mean", "u_scale"):
            ls = pm.InverseGamma(f"{name}_ls", 5, 10)
            scale = pm.HalfNormal(f"{name}_sd", 1)
            gps.append(vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=ls)))
            gps[-1].prior(name, Xu=Xu)
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), gps, X=X, y=y)
    return model, _drawn(model, draws), np.linspace(0, 10, 200)[:, None]


def classes(draws=8, rows=2145, kind="Softmax"):
    """Six classes over two inputs."""
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2))
    y = (np.arctan2(X[:, 1], X[:, 0]) // (np.pi / 3) + 3).astype(int)
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        gp = vsgp.VariationalSparse(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=ls))
        gp.prior("u", Xu=X[:40], n_outputs=6)
        gp.likelihood("y", getattr(vsgp, kind)(6), X=X, y=y)
    return model, _prior(model, draws), rng.normal(size=(rows, 2))


def waves(n, draws=1000, rows=2000):
    """A series of counts with about n Fourier coefficients."""
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(1)
    X = np.arange(3000.0)[:, None]
    y = rng.poisson(np.exp(np.sin(X[:, 0] / 100)))
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 100)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", inducing=vsgp.inducing.Fourier(4000.0, n // 2))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model, _prior(model, draws), np.linspace(0, 2999, rows)[:, None]


def _drawn(model, draws):
    import pymc_vsgp as vsgp

    return vsgp.fit_gaussian(model=model, **seeded).to_datatree(draws, random_seed=1)


def _prior(model, draws):
    """Draws of the prior, where a Gaussian stage would take longer than what is measured."""
    import pymc as pm
    import xarray as xr

    values = pm.draw(model.free_RVs, draws, random_seed=1, mode="FAST_COMPILE")
    names = [rv.name for rv in model.free_RVs]
    arrays = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 1))), v[None])
        for name, v in zip(names, values, strict=True)
    }
    return xr.DataTree(children={"posterior": xr.DataTree(xr.Dataset(arrays))})


def _predict(build, *args, **kwargs):
    def case():
        import pymc_vsgp as vsgp

        model, idata, Xnew = build()
        return lambda: vsgp.predict(idata, Xnew, *args, model=model, **seeded, **kwargs)

    return case


def _call(build, name, **kwargs):
    def case():
        import pymc_vsgp as vsgp

        model, idata, _ = build()
        return lambda: getattr(vsgp, name)(idata, model=model, **kwargs)

    return case


def lazily():
    """A hundred thousand inputs in chunks of dask."""
    import dask
    import numpy as np
    import xarray as xr

    import pymc_vsgp as vsgp

    model, idata, _ = coal(200)
    X = xr.DataArray(np.linspace(1851, 1963, 100_000)[:, None], dims=["point", "k"])
    X = X.chunk(point=10_000)

    def run():
        found = vsgp.predict(idata, X, "quantiles", of="mean", model=model, **seeded)
        with dask.config.set(scheduler="synchronous"):
            return found.compute()

    return run


def held_out():
    """What k-fold does with each fold after sampling."""
    import numpy as np

    import pymc_vsgp as vsgp

    model, idata, X = coal(2000)
    y = np.arange(len(X)) % 4
    return lambda: vsgp.log_predictive_density(idata, X, y, model=model, **quiet)


def recovered():
    """Inducing values for draws of the parameters, where noise is normal."""
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    from pymc_vsgp.fit.collapsed import collapse, recover

    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 10, 200))[:, None]
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        sigma = pm.HalfNormal("sigma", 1)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 30))
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=np.sin(X[:, 0]) + rng.normal(size=200))
    posterior = _prior(model, 4000)["posterior"].to_dataset().drop_vars("u")
    whole = collapse(model)
    return lambda: recover(whole, posterior, 1)


CASES = {
    "README, f": _predict(coal, "f"),
    "README, mean": _predict(coal, "mean"),
    "README, y": _predict(coal, "y"),
    "README, summary": _predict(coal, "summary"),
    "README, quantiles": _predict(coal, "quantiles"),
    "README, density": _predict(coal, "density", at=range(6)),
    "README, joint f": _predict(lambda: coal(1000), "f", joint=True),
    "README, loo": _call(coal, "loo", **quiet),
    "README, compute_log_likelihood": _call(
        coal, "compute_log_likelihood", extend_inferencedata=False, **quiet
    ),
    "README, check_inducing": _call(coal, "check_inducing", **seeded),
    "README, exact_weights": _call(coal, "exact_weights", **seeded),
    "README, plot_function": _call(coal, "plot_function"),
    "a fold of k-fold": held_out,
    "100,000 inputs in chunks of dask": lazily,
    "two processes, loo": _call(heteroskedastic, "loo", **quiet),
    "two processes, plot_function": _call(heteroskedastic, "plot_function"),
    "two processes, quantiles of y": _predict(heteroskedastic, "quantiles"),
    "softmax, mean": _predict(classes, "mean"),
    "robust-max, mean": _predict(lambda: classes(200, 500, "RobustMax"), "mean"),
    "501 waves, f": _predict(lambda: waves(500), "f"),
    "1501 waves, summary": _predict(lambda: waves(1500), "summary"),
    "recovered inducing values": recovered,
}


def measure(case):
    run = CASES[case]()
    seconds, before = [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [*seconds, (peak - before) / 1e3]


def run(case, checkout, timeout):
    path = os.pathsep.join(p for p in (str(checkout), os.environ.get("PYTHONPATH")) if p)
    command = [sys.executable, __file__, "--worker", case]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | {"PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def said(values, at):
    """Median, and the range where there are several."""
    found = [v[at] for v in values if v is not None]
    if not found:
        return "not done"
    middle = statistics.median(found)
    text = f"{middle:.2f}" if middle < 10 else f"{middle:.0f}"
    if len(found) == 1:
        return text
    low, high = (f"{x:.2f}" if middle < 10 else f"{x:.0f}" for x in (min(found), max(found)))
    return f"{text} ({low} to {high})"


def report(results, trees, timeout):
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    heads = [f"{c}, {t}" if len(trees) > 1 else c for c in COLUMNS for t in trees]
    lines = [
        "# After sampling",
        "",
        f"`python after_sampling.py`; {platform.machine()}, {os.cpu_count()} cores, BLAS threads: "
        f"{threads}. Seconds of CPU time of a call, medians and ranges; the first call compiles. "
        f"Memory is the growth of the peak during both. Nothing ran longer than {timeout:.0f} s.",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---" * (1 + len(heads)) + "|",
    ]
    for case, found in results.items():
        cells = [said(found[t], i) for i in range(len(COLUMNS)) for t in trees]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="another checkout, to take turns with")
    parser.add_argument("--cases", help="some of them, separated by semicolons")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--output", default="after_sampling")
    parser.add_argument("--worker")
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(measure(asked.worker)))
        return
    trees = {"before": asked.before} if asked.before else {}
    trees["now"] = str(HERE.parent)
    results = {}
    for case in asked.cases.split(";") if asked.cases else CASES:
        results[case] = {tree: [] for tree in trees}
        for _ in range(asked.repeats):
            for tree, checkout in trees.items():
                results[case][tree].append(run(case, checkout, asked.timeout))
        print(case, results[case], flush=True)
    text = report(results, list(trees), asked.timeout)
    for ending, content in (("md", text), ("json", json.dumps(results, indent=1) + "\n")):
        path = HERE / "results" / f"{asked.output}.{ending}"
        envs.save(path, content)
    print(text)


if __name__ == "__main__":
    main()
