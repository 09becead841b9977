"""A GPU: MNIST's gradient, a batch of proposals, and gradient.py's cases beside other packages.

``python benchmarks/gpu.py`` runs on what JAX finds, in the environment that it is started in, and
writes results/gpu.md and results/gpu.json. The baselines on JAX run on the GPU, those on numba and
numpy on one core of the host. The processes of all cases compile at once, and are idle while
anything is timed; then the baselines of a case take turns. Everything is in float64. MNIST is read
from the folder PYMC_VSGP_DATA, or is random numbers: as fast. ``JAX_PLATFORMS=cpu python
benchmarks/gpu.py --tiny`` tries it without a GPU.
"""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cases
import envs
import numpy as np

from gradient import launch, spread

HERE = Path(__file__).resolve().parent
SIZES = {"N": 60_000, "M": 500, "K": 10, "D": 784}
TINY = {"N": 600, "M": 20, "K": 10, "D": 784}
THETA, EPSILON = 64, 4  # proposals
ON_GPU = ("vsgp_jax", "pymc_jax", "numpyro")
ON_CORE = ("vsgp_numba", "numpy")
PARTS = ("mnist", "proposals", "cases")
PACKAGES = ("pymc", "pytensor", "numpy", "numpyro", "numba", "jax", "jaxlib")
ROUNDS = 5
SECONDS = 6.0  # of evaluations, for each baseline of a case
PATIENCE = 120.0  # seconds; who does not answer is killed
# What may have been short only because the baselines of all cases were on the GPU at once.
SHORT = ("RESOURCE_EXHAUSTED", "INTERNAL", "memory")


def digits(n, d):
    """Images, each a row, and their digits."""
    path = Path(os.environ.get("PYMC_VSGP_DATA", "")) / "mnist.npz"
    if path.is_file():
        with np.load(path) as data:
            names = {k.lower(): k for k in data}
            X = data[names.get("x_train", names.get("x"))].reshape(-1, d)[:n] / 255.0
            return X, data[names.get("y_train", names.get("y"))][:n].astype(int), "MNIST"
    rng = np.random.default_rng(1)
    return rng.uniform(size=(n, d)), rng.integers(10, size=n), "random numbers"


def model_of_digits(sizes):
    """Return robust-max of ten processes with one kernel, as published."""
    import pymc as pm

    import pymc_vsgp as vsgp

    X, y, source = digits(sizes["N"], sizes["D"])
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        ls, scale = pm.Gamma("ls", 4, 1), pm.Gamma("scale", 4, 4)
        gp = vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.ExpQuad(sizes["D"], ls=ls))
        gp.prior("u", X[rng.choice(len(X), sizes["M"], replace=False)], n_outputs=sizes["K"])
        gp.likelihood("y", vsgp.RobustMax(sizes["K"]), X=X, y=y)
    return model, source


def times(function, repeat):
    """Return the first wall time, and those of more evaluations."""
    seconds = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return {"first": seconds[0], "median": float(np.median(seconds[1:])), "least": min(seconds)}


def gradient(sizes, repeat):
    """Time value and gradient of MNIST, and compare them with a difference of values."""
    import jax

    from pymc_vsgp.engine.sharded import mesh_of
    from pymc_vsgp.fit.spread import spread as on_devices

    model, source = model_of_digits(sizes)
    # Images that stay on the GPU, as they do while it samples.
    model = on_devices(model, mesh_of(jax.devices()))
    fn = model.logp_dlogp_function(ravel_inputs=True, mode="JAX")
    rng = np.random.default_rng(3)
    x = 0.1 * rng.normal(size=sum(np.size(v) for v in model.initial_point().values()))
    found = times(lambda: np.asarray(fn(x)[1]), repeat)
    along = rng.normal(size=x.size) / np.sqrt(x.size)
    up, down = (float(fn(x + h * along)[0]) for h in (1e-5, -1e-5))
    slope = float(np.asarray(fn(x)[1]) @ along)
    memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    error = abs((up - down) / 2e-5 / slope - 1.0)
    return {"what": f"MNIST ({source})", **sizes, **found, "error": error, "peak_bytes": memory}


def proposals(tiny, repeat):
    """Time a batch of proposals of a Poisson model, and compare some with numpy."""
    import jax
    import pymc as pm

    import pymc_vsgp as vsgp

    from pymc_vsgp.engine.sharded import mesh_of
    from pymc_vsgp.fit.density import Points

    case = cases.make("b", tiny)
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(case["D"], ls=pm.Gamma("ls", 4, 4, shape=case["D"]))
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", case["Z"])
        gp.likelihood("y", vsgp.Poisson(), X=case["X"], y=case["y"])
    points = Points(model, mesh_of(jax.devices()))
    rng = np.random.default_rng(3)
    theta = 0.1 * rng.normal(size=(THETA, points.n_theta))
    epsilon = 0.1 * rng.normal(size=(THETA, EPSILON, points.n_epsilon))
    density = points.log_density()
    found = times(lambda: density(theta, epsilon), repeat)
    (expected,) = Points(model).log_density()(theta[:2], epsilon[:2])
    error = np.abs(density(theta, epsilon)[0][:2] / expected - 1.0).max()
    what = f"{THETA} x {EPSILON} proposals, Poisson"
    sizes = {k: case[k] for k in ("N", "M", "K", "D")}
    return {"what": what, **sizes, **found, "error": float(error), "peak_bytes": None}


class Worker:
    """A baseline's process, as in gradient.py; but its answers are awaited for a while only."""

    def __init__(self, baseline, case, tiny):
        self.cache = envs.fresh_cache()
        env = dict(os.environ) if baseline in ON_GPU else envs.variables(1, self.cache)
        # One cache each: nobody waits for another's lock, and everybody compiles everything.
        flags = [os.environ.get("PYTENSOR_FLAGS"), f"base_compiledir={self.cache}"]
        env["PYTENSOR_FLAGS"] = ",".join(filter(None, flags))
        env["NUMBA_CACHE_DIR"] = str(Path(self.cache) / "numba-functions")
        paths = [str(HERE.parent), os.environ.get("PYTHONPATH")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        command = [sys.executable, HERE / "worker.py", baseline, case, *["--tiny"] * tiny]
        self.process = launch(command, env, self.errors)
        self.asked = time.monotonic()
        self.answers = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    self.answers.put(json.loads(line))
        finally:
            self.answers.put(None)

    def ask(self, order):
        """Send a line."""
        self.asked = time.monotonic()
        try:
            self.process.stdin.write(f"{order}\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass

    def read(self, patience=PATIENCE):
        """Return the next answer, or why there is none."""
        try:
            left = self.asked + patience - time.monotonic()
            answer = self.answers.get(timeout=max(0.0, left))
        except queue.Empty:
            self.process.kill()
            return {"skipped": f"killed: it did not answer for {patience:.0f} s"}
        return answer or {"skipped": self._failure()}

    def _failure(self):
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "failed, and did not end"
        name = signal.Signals(-code).name if code < 0 else code
        self.errors.seek(0)
        lines = [x.strip() for x in self.errors.read().splitlines() if x.strip()]
        # JAX and PyTensor write hints below the error.
        named = [x for x in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", x)] or lines
        return f"failed ({name}): {' '.join(named[-1:])[:300]}"

    def close(self):
        """End the process; one that hangs in its driver is left."""
        self.ask("quit")
        for seconds in (5, 2):
            try:
                self.process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                self.process.kill()
        shutil.rmtree(self.cache, ignore_errors=True)


def on_one_line(text):
    """Return what fits into a cell of a table."""
    return " ".join(text.replace("|", "/").split())


def start(names, tiny):
    """Start the baselines of all cases."""
    return {
        name: {baseline: Worker(baseline, name, tiny) for baseline in (*ON_GPU, *ON_CORE)}
        for name in names
    }


def first_gradients(workers, patience):
    """Wait until each has its first gradient; those without are taken out of workers."""
    results = {}
    for baseline, worker in list(workers.items()):
        results[baseline] = result = {"baseline": baseline, **worker.read(patience)}
        if "skipped" in result:
            workers.pop(baseline).close()
    return results


def rest(workers, results):
    """Wait until each has ended what it does after its first gradient, and is idle."""
    for worker in workers.values():
        worker.ask("time 1")
    for baseline, worker in list(workers.items()):
        answer = worker.read()
        if "skipped" in answer:
            results[baseline]["skipped"] = answer["skipped"]
            workers.pop(baseline).close()
        else:
            results[baseline].update(wall=[], cpu=[], last=answer["wall"][0])


def ready(workers):
    """Wait for all workers; return their first results."""
    n = sum(len(w) for w in workers.values())
    # With few cores they compile one after another.
    patience = PATIENCE * max(1.0, n / (2 * os.cpu_count()))
    results = {name: first_gradients(w, patience) for name, w in workers.items()}
    for name in workers:
        rest(workers[name], results[name])
    return results


def take_turns(workers, results, evaluations):
    """Time the baselines of a case in turns."""
    for left in range(ROUNDS, 0, -1):
        for baseline, worker in list(workers.items()):
            result = results[baseline]
            seconds = SECONDS - sum(result["wall"])
            if seconds <= 0:
                continue
            count = min(evaluations, max(1, int(seconds / left / result["last"])))
            worker.ask(f"time {count}")
            answer = worker.read()
            if "skipped" in answer:
                result["skipped"] = answer["skipped"]
                workers.pop(baseline).close()
                continue
            result["wall"] += answer["wall"]
            result["cpu"] += answer["cpu"]
            result["last"] = min(answer["wall"])


def summarize(name, results):
    """Add medians, spreads and differences; drop the gradients."""
    tolerance = cases.TOLERANCE[cases.settings(name)["lik"]]
    exact = results["numpy"].get("gradient")
    for result in results.values():
        found = result.pop("gradient", None)
        result.pop("last", None)
        if exact and found:
            difference = float(np.abs(np.subtract(found, exact)).max() / np.abs(exact).max())
            result["gradient_difference"] = difference
            result["agrees"] = difference <= tolerance
        if result.get("wall"):
            result["median_wall_s"] = float(np.median(result["wall"]))
            if len(result["wall"]) > 1:
                result["spread"] = spread(result["wall"])


def run_case(name, workers, results, options):
    """Time the baselines of a case, which then end."""
    try:
        for baseline, result in results.items():
            reason = result.get("skipped", "")
            if baseline in ON_GPU and any(x in reason for x in SHORT):
                again = {baseline: Worker(baseline, name, options.tiny)}
                results[baseline] = first_gradients(again, PATIENCE)[baseline]
                workers.update(again)
                rest(again, results)
                results[baseline]["earlier"] = reason
                if not again:
                    workers.pop(baseline, None)
        order = [b for b in results if b in workers]
        take_turns({b: workers[b] for b in order}, results, max(1, options.repeat // ROUNDS))
        summarize(name, results)
    except Exception as reason:  # the other cases are to run
        for result in results.values():
            result.setdefault("skipped", f"failed: {type(reason).__name__}: {reason}"[:300])
    finally:
        for worker in workers.values():
            worker.ask("quit")
        for worker in workers.values():
            worker.close()
    return results


def rows_of_case(name, results, gpu):
    """Return lines of the table."""
    lines = []
    base = results["vsgp_jax"]
    base = None if "skipped" in base else base.get("median_wall_s")
    for baseline, r in results.items():
        line = f"| ({name}) | {baseline} | {gpu if baseline in ON_GPU else 'one core'} "
        if "skipped" in r or "median_wall_s" not in r:
            lines.append(f"{line}| {on_one_line(r.get('skipped', 'not timed'))} |" + " |" * 5)
            continue
        wall = r["median_wall_s"]
        ratio = f"{wall / base:.2f}" if base else ""
        scatter = f"{100 * r['spread']:.0f} %" if "spread" in r else ""
        difference = ""
        if "agrees" in r:
            difference = f"{r['gradient_difference']:.0e}" + " **disagrees**" * (not r["agrees"])
        lines.append(
            f"{line}| {1e3 * wall:.2f} | {scatter} | {len(r['wall'])} | {ratio} "
            f"| {r['to_first_gradient_s']:.1f} | {difference} |"
        )
    return lines


def row_of_job(r):
    """Return a line of the table."""
    if "skipped" in r:
        return f"| {r['what']} | {on_one_line(r['skipped'])} |" + " |" * 8
    peak = f"{r['peak_bytes'] / 1e6:.0f}" if r["peak_bytes"] else ""
    return (
        f"| {r['what']} | {r['N']} | {r['M']} | {r['K']} | {r['D']} | {r['first']:.1f} "
        f"| {r['median']:.4f} | {r['least']:.4f} | {r['error']:.0e} | {peak} |"
    )


def about():
    """Return what the numbers depend on."""
    import jax

    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    device = jax.devices()[0]
    found = {
        "platform": device.platform,
        "device": device.device_kind,
        "n_devices": len(jax.devices()),
    }
    return {**found, "versions": versions, **envs.machine()}


def write(machine, jobs, outcomes, options):
    """Write both result files; called after every part, so that a stop loses nothing."""
    gpu = machine["platform"].upper()
    text = [
        "# On a GPU",
        "",
        f"{time.strftime('%Y-%m-%d')}; {machine['platform']}, {machine['device']}, float64; host: "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; "
        + ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
        + "."
        + (" **Tiny cases: a smoke test, not a measurement.**" if options.tiny else ""),
        "",
    ]
    if jobs:
        text += [
            f"Wall seconds of {options.repeat} evaluations; *first*: with compiling. *difference*: "
            "of MNIST from differences of values, of proposals from numpy.",
            "",
            "| what | N | M | K | D | first s | median s | least s | difference | peak MB |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(row_of_job, jobs),
            "",
        ]
    if outcomes:
        sizes = {name: cases.settings(name, options.tiny) for name in outcomes}
        text += [
            "One value and gradient: "
            + "; ".join(
                f"({name}) {cases.TITLES[name]}, " + ", ".join(f"{k}={s[k]}" for k in "NMDK")
                for name, s in sizes.items()
            )
            + ".",
            "",
            f"Wall time: median; the baselines of a case took turns, in {ROUNDS} rounds of up to "
            f"{max(1, options.repeat // ROUNDS)} evaluations, each for {SECONDS:.0f} s or little "
            "more. *spread*: half the interquartile range over the median. *first gradient*: from "
            "the start of the process, imports included, while the others compiled, too. "
            "*difference*: of the gradient from that of numpy, at the first point.",
            "",
            "| case | baseline | on | wall ms | spread | evaluations | x vsgp_jax "
            "| first gradient s | difference |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name, results in outcomes.items():
            text += rows_of_case(name, results, gpu)
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    everything = {"machine": machine, "options": vars(options), "jobs": jobs, "cases": outcomes}
    envs.save(folder / f"{options.output}.json", json.dumps(everything, indent=1))
    envs.save(folder / f"{options.output}.md", "\n".join([*text, ""]))


def attempt(what, job):
    """Return a job's result, or why there is none: the other jobs are to run."""
    try:
        return job()
    except Exception as reason:
        return {"what": what, "skipped": f"failed: {type(reason).__name__}: {reason}"[:300]}


def run(options, machine, names, parts, workers):
    """Time everything, and write the result files after each part."""
    jobs, outcomes = [], {}
    began = time.monotonic()
    first = ready(workers)
    print(f"Ready after {time.monotonic() - began:.0f} s.", flush=True)
    todo = {
        "mnist": lambda: gradient(TINY if options.tiny else SIZES, options.repeat),
        "proposals": lambda: proposals(options.tiny, options.repeat),
    }
    for part, job in todo.items():
        if part in parts:
            jobs.append(attempt(part, job))
            print(row_of_job(jobs[-1]), flush=True)
            write(machine, jobs, outcomes, options)
    for name in names:
        outcomes[name] = run_case(name, workers[name], first[name], options)
        print("\n".join(rows_of_case(name, outcomes[name], machine["platform"])), flush=True)
        write(machine, jobs, outcomes, options)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small cases: a smoke test")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--cases", default=",".join(cases.CASES))
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the three")
    parser.add_argument("--output", default="gpu", help="name of the files in results/")
    options = parser.parse_args()
    names, parts = options.cases.split(","), options.parts.split(",")
    for kind, given, known in (("case", names, cases.CASES), ("part", parts, PARTS)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"unknown {kind} {unknown}; choose from {list(known)}")
    names = names if "cases" in parts else []
    # Of the workers, too: JAX would take most of the memory of a GPU at once.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    machine = about()
    print(machine, flush=True)
    asked = os.environ.get("JAX_PLATFORMS")
    if machine["platform"] == "cpu" and "cpu" not in (asked or ""):
        raise SystemExit("JAX found no GPU. With JAX_PLATFORMS=cpu it runs without one.")
    if machine["platform"] == "gpu" and not asked:
        import jax

        # A worker that gets no GPU is to fail, not to be timed on the host.
        rocm = "rocm" in jax.devices()[0].client.platform_version.lower()
        os.environ["JAX_PLATFORMS"] = "rocm,cpu" if rocm else "cuda,cpu"
    workers = start(names, options.tiny)
    try:
        run(options, machine, names, parts, workers)
    finally:
        for worker in (w for case in workers.values() for w in case.values()):
            if worker.process.poll() is None:
                worker.process.kill()


if __name__ == "__main__":
    main()
