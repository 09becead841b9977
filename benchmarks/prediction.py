"""Predictions at very many inputs, beside ``gp.conditional`` and draws of it by PyMC.

Usage: ``python prediction.py [--rows N] [--draws S] [--tiny] [--output NAME]``. Each measurement is
a process of its own, so that its peak memory is its own. Writes ``results/NAME.md``.

The naive way draws f jointly: a matrix of all new inputs for each draw. It is measured at sizes
that it can do; what it would take for all rows is extrapolated from the largest, and said to be.
"""

import argparse
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import time

import envs

HERE = pathlib.Path(__file__).resolve().parent
N, M = 500, 30
NAIVE = (250, 500, 1000)


def build():
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    y = rng.poisson(np.exp(1 + np.sin(1.5 * X[:, 0])))
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 4, 2)
        scale = pm.HalfNormal("scale", 1)
        gp = vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=lengthscale))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model, gp


def memory():
    """Peak of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def measure(kind, rows, draws):
    """Seconds, and bytes of memory beyond what the model and the draws take."""
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    model, gp = build()
    idata = vsgp.fit_gaussian(model=model, progressbar=False).to_datatree(draws, random_seed=1)
    Xnew = np.linspace(0, 10, rows)[:, None]
    with model:
        if kind == "conditional":
            gp.conditional("f_new", Xnew)
            # The first call compiles.
            few = {"var_names": ["f_new"], "predictions": True, "progressbar": False}
            few |= {"random_seed": 1}
            pm.sample_posterior_predictive(idata.isel(draw=slice(1)), **few)
            before, start = memory(), time.perf_counter()
            pm.sample_posterior_predictive(idata, **few)
        else:
            options = {"random_seed": 1, "progressbar": False}
            vsgp.predict(idata, Xnew[:300], kind, **options)
            before, start = memory(), time.perf_counter()
            vsgp.predict(idata, Xnew, kind, **options)
    return {"seconds": time.perf_counter() - start, "bytes": memory() - before}


def run(kind, rows, draws, timeout):
    command = [sys.executable, __file__, "--worker", kind, str(rows), str(draws)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def size(n):
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}"
        n /= 1000
    return f"{n:.0f} TB"


def report(results, rows, draws):
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    lines = [
        "# Predictions at many inputs",
        "",
        f"`python prediction.py --rows {rows} --draws {draws}`; {platform.machine()}, "
        f"{os.cpu_count()} cores, BLAS threads: {threads}. {N} counts, M = {M}, Matern 5/2, "
        f"{draws} draws. Time is that of the call, compiled already; memory is the growth of the "
        "peak of the process during it.",
        "",
        "| | new inputs | seconds | memory | microseconds an input and draw |",
        "|---|---|---|---|---|",
    ]
    for kind, n, found in results:
        name = "`gp.conditional`" if kind == "conditional" else f"`vsgp.predict`, {kind}"
        if found is None:
            lines.append(f"| {name} | {n} | failed | | |")
            continue
        rate = found["seconds"] / n / draws * 1e6
        seconds, memory = f"{found['seconds']:.1f}", size(found["bytes"])
        lines.append(f"| {name} | {n:,} | {seconds} | {memory} | {envs.two_digits(rate)} |")
    naive = [(n, f) for kind, n, f in results if kind == "conditional" and f]
    if naive:
        n, found = naive[-1]
        days, more = found["seconds"] * (rows / n) ** 2 / 86400, rows / n
        least, most = envs.two_digits(days), envs.two_digits(days * more / 365)
        hours = envs.two_digits(found["seconds"] * more / 3600)
        lines += [
            "",
            f"Extrapolated from {n:,} inputs, not measured: `gp.conditional` at {rows:,} would "
            f"need a matrix of {size(8.0 * rows**2)}, and from {least} days (time as the "
            f"square of the inputs) to {most} years (as the cube, which the factorisation "
            f"is). Cut by hand into pieces of {n:,}, each a joint draw of its own: {hours} hours.",
        ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--timeout", type=float, default=1800)
    parser.add_argument("--output", default="prediction")
    parser.add_argument("--worker", nargs=3)
    asked = parser.parse_args()
    if asked.worker:
        kind, rows, draws = asked.worker
        print(json.dumps(measure(kind, int(rows), int(draws))))
        return
    rows, naive = (3000, (100, 200)) if asked.tiny else (asked.rows, NAIVE)
    cases = [("summary", rows // 10), ("summary", rows), ("quantiles", rows)]
    cases += [("conditional", n) for n in naive]
    results = []
    for kind, n in cases:
        results.append((kind, n, run(kind, n, asked.draws, asked.timeout)))
        print(*results[-1], flush=True)
    text = report(results, rows, asked.draws)
    envs.save(HERE / "results" / f"{asked.output}.md", text)
    print(text)


if __name__ == "__main__":
    main()
