"""Time one value and gradient of the log density, this package against its baselines.

``python benchmarks/gradient.py`` builds the baselines' environments, runs every case and writes
results/gradient.md and results/gradient.json. Standard library only; see README.md.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import tempfile
import time

from pathlib import Path

import cases
import envs

HERE = Path(__file__).resolve().parent
BASELINES = [
    "vsgp_numba",
    "vsgp_jax",
    "vsgp_c",
    "pymc_numba",
    "pymc_jax",
    "numpyro",
    "gpflow",
    "numpy",
]
NOTE = """\
Wall and CPU time: median over all evaluations; spread: half the interquartile range over the
median. The baselines of a case were alive at once and took turns. *x best*: ratio of the medians to
the fastest baseline, with the spread of the two. *first gradient*: from the start of the process,
imports included, with an empty and with a filled cache of compiled code. *peak*: resident memory
above that after the imports, while building and compiling, and while evaluating. *difference*:
relative to the numpy baseline, of value and gradient, at the first point. *floor*: the least
number of flops at the measured speed of dgemm, and of each BLAS routine, plus the special
functions at numpy's and scipy's speed.
"""


def measure_limits(sizes, threads):
    """Run limits.py on the threads that the baselines have."""
    command = [envs.python("pymc"), HERE / "limits.py", *map(str, sizes)]
    env = envs.variables(threads, envs.HERE / ".cache")
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def ideal(work, limits, M, threads):
    """Seconds for `cases.work` at the speed of dgemm, and with each routine at its own."""
    functions, speeds = limits["ns"], limits["blas"][str(M)]
    scalar = sum(n * functions[f] * 1e-9 for f, n in work["functions"].items()) / threads
    flops = work["flops"]
    at_gemm = sum(flops.values()) / (speeds["gemm"]["best"] * 1e9)
    at_own = sum(flops[r] / (speeds[r]["best"] * 1e9) for r in flops)
    return at_gemm + scalar, at_own + scalar


def launch(command, env, errors):
    """Start a process that answers what it is asked on its standard input."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=env,
        cwd=HERE,
    )


class Worker:
    """A baseline's process."""

    def __init__(self, baseline, case, tiny, threads, cache, memory_limit):
        env = envs.variables(threads, cache)
        env["BENCH_MEMORY_LIMIT"] = str(memory_limit)
        command = [envs.python(envs.environment_of(baseline)), HERE / "worker.py", baseline, case]
        self.baseline = baseline
        self.errors = tempfile.TemporaryFile("w+")
        self.process = launch(command + (["--tiny"] if tiny else []), env, self.errors)

    def read(self):
        """Return the next answer, or why there is none."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        code = self.process.wait()
        self.errors.seek(0)
        last = [x.strip() for x in self.errors.read().splitlines() if x.strip()][-1:]
        if code == -9:
            last = ["killed, probably for its memory"]
        return {"baseline": self.baseline, "skipped": f"failed ({code}): {' '.join(last)[:300]}"}

    def time(self, repeat):
        """Time some evaluations."""
        try:
            self.process.stdin.write(f"time {repeat}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.read()

    def close(self):
        """End the process."""
        try:
            self.process.stdin.write("quit\n")
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def start(baseline, case, options):
    """Start one twice, with an empty and a filled compile cache; the second one stays alive."""
    settings = cases.settings(case, options.tiny)
    available = envs.available_bytes()
    # This package and the floor stream over the data, or are to; a failure is reported as one.
    dense = baseline != "numpy" and not baseline.startswith("vsgp")
    if dense and cases.dense_bytes(settings) > 0.9 * available:
        need = cases.dense_bytes(settings) / 2**30
        reason = f"whole M x N matrices need about {need:.0f} GiB, {available / 2**30:.0f} are free"
        return None, {"baseline": baseline, "case": case, "skipped": reason}
    cache = envs.fresh_cache()
    try:
        cold = peak = None
        for attempt in ("cold", "warm")[: 1 if options.once else 2]:
            worker = Worker(
                baseline, case, options.tiny, options.threads, cache, int(0.9 * available)
            )
            result = worker.read()
            if "skipped" in result:
                worker.close()
                return None, result
            if attempt == "cold":
                cold = result["to_first_gradient_s"]
                peak = result["peak_mb"]
                if not options.once:
                    worker.close()
        result["cold_s"] = cold
        result["peak_mb"] = max(peak, result["peak_mb"])  # compiling for the first time
        result.update(wall=[], cpu=[])
        return worker, result
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def take_time(worker, result, repeat):
    """Add some evaluations to a baseline's result; say whether it is still alive."""
    answer = worker.time(repeat)
    if "skipped" in answer:
        result["skipped"] = answer["skipped"]
        return False
    result["wall"] += answer.pop("wall")
    result["cpu"] += answer.pop("cpu")
    result.update(answer)
    return True


def run_case(case, baselines, options):
    """Run the baselines of a case in turn, `rounds` times."""
    results, alive = {}, {}
    # Baselines of a large case would not fit in memory side by side.
    alone = cases.dense_bytes(cases.settings(case, options.tiny)) > 0.1 * envs.available_bytes()
    for baseline in baselines:
        worker, result = start(baseline, case, options)
        results[baseline] = result
        status = result.get("skipped") or f"first gradient {result['to_first_gradient_s']:.1f} s"
        print(f"{case} {baseline:11s} {status}", flush=True)
        if worker is None:
            continue
        if alone:
            for _ in range(options.rounds):
                if not take_time(worker, result, options.evaluations):
                    break
            worker.close()
        else:
            alive[baseline] = worker
    compare(results, cases.settings(case, options.tiny))
    for _ in range(options.rounds):
        for baseline, worker in list(alive.items()):
            if not take_time(worker, results[baseline], options.evaluations):
                alive.pop(baseline).close()
    for worker in alive.values():
        worker.close()
    return {"results": results, "interleaved": not alone, "load": envs.machine()["load"]}


def compare(results, settings):
    """Compare value and gradient of all baselines with those of one that does not use PyTensor."""
    known = {p: r for p, r in results.items() if "gradient" in r}
    reference = known.get("numpy") or next(iter(known.values()), None)
    tolerance = cases.TOLERANCE[settings["lik"]]
    for baseline, result in known.items():
        g, h = reference["gradient"], result["gradient"]
        scale = max(abs(x) for x in g)
        result["value_difference"] = abs(result["value"] / reference["value"] - 1)
        result["gradient_difference"] = max(abs(a - b) for a, b in zip(g, h, strict=True)) / scale
        worst = max(result["value_difference"], result["gradient_difference"])
        result["agrees"] = worst <= tolerance
        if not result["agrees"]:
            print(
                f"  {baseline} DISAGREES: relative difference {worst:.1e}, allowed {tolerance:.0e}"
            )
    for result in known.values():
        del result["gradient"]


def spread(values):
    """Half the interquartile range over the median."""
    quartiles = statistics.quantiles(values, n=4)
    return (quartiles[2] - quartiles[0]) / 2 / statistics.median(values)


def table(case, outcome, limits, options):
    """Markdown of one case."""
    settings = cases.settings(case, options.tiny)
    work = cases.work(settings)
    gemm, own = ideal(work, limits, settings["M"], options.threads)
    flops = sum(work["flops"].values())
    head = ", ".join(f"{k}={settings[k]}" for k in ("N", "M", "D", "K"))
    turns = "in turn" if outcome["interleaved"] else "one after another, for memory"
    lines = [
        f"## ({case}) {cases.TITLES[case]}: {head}",
        "",
        f"{options.rounds} rounds of {options.evaluations} evaluations, baselines {turns}; "
        f"{options.threads} thread(s); load {outcome['load'][0]}.",
        "",
        "| baseline | wall ms | spread | CPU ms | x best | first gradient s: cold | warm "
        "| peak MB: building | evaluating | difference: value | gradient |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    timed = {p: r for p, r in outcome["results"].items() if r.get("wall") and "skipped" not in r}
    best = min(timed, key=lambda p: statistics.median(timed[p]["wall"]), default=None)
    for baseline, r in outcome["results"].items():
        if baseline not in timed:
            lines.append(f"| {baseline} | {r.get('skipped', 'not timed')} |" + " |" * 9)
            continue
        wall = statistics.median(r["wall"])
        r["median_wall_s"], r["median_cpu_s"] = wall, statistics.median(r["cpu"])
        r["spread"] = spread(r["wall"])
        r["ratio"] = wall / statistics.median(timed[best]["wall"])
        both = 0.0 if baseline == best else math.hypot(r["spread"], spread(timed[best]["wall"]))
        flag = "" if r["agrees"] else " **disagrees**"
        warm = "" if options.once else f"{r['to_first_gradient_s']:.1f}"
        lines.append(
            f"| {baseline} | {1e3 * wall:.2f} | {100 * r['spread']:.0f} % "
            f"| {1e3 * r['median_cpu_s']:.2f} "
            f"| {r['ratio']:.2f} ± {both * r['ratio']:.2f} | {r['cold_s']:.1f} "
            f"| {warm} | {r['peak_mb']:.0f} "
            f"| {r.get('evaluation_mb', math.nan):.0f} "
            f"| {r['value_difference']:.0e} | {r['gradient_difference']:.0e}{flag} |"
        )
    lines += [
        f"| *floor* | {1e3 * gemm:.2f} to {1e3 * own:.2f} |" + " |" * 9,
        "",
        f"{flops / 1e9:.2f} GFLOP. "
        + "GFLOP/s of each baseline, on that count: "
        + ", ".join(f"{p} {flops / 1e9 / r['median_wall_s']:.1f}" for p, r in timed.items())
        + ".",
        "",
    ]
    outcome["floor_s"], outcome["gflop"] = [gemm, own], flops / 1e9
    return "\n".join(lines)


def write(outcomes, limits, options):
    """Write both result files; called after every case, so that a stop loses nothing."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    stem = options.output
    machine = envs.machine()
    text = [
        "# Value and gradient",
        "",
        f"{time.strftime('%Y-%m-%d')}; {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; {options.threads} thread(s)."
        + (" **Tiny cases: a smoke test, not a measurement.**" if options.tiny else ""),
        "",
        NOTE,
    ]
    text += [table(case, outcome, limits, options) for case, outcome in outcomes.items()]
    versions = {}
    for outcome in outcomes.values():
        for r in outcome["results"].values():
            group = versions.setdefault(envs.environment_of(r["baseline"]), {})
            group.update(r.get("versions", {}))
    for name, group in versions.items():
        text.append(f"{name} environment: " + ", ".join(f"{k} {v}" for k, v in group.items()) + ".")
        text.append("")
    envs.save(folder / f"{stem}.md", "\n".join(text))
    everything = {
        "machine": machine,
        "options": vars(options),
        "limits": limits,
        "cases": outcomes,
    }
    envs.save(folder / f"{stem}.json", json.dumps(everything, indent=1))


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="a,b,c,d,e")
    parser.add_argument("--baselines", default=",".join(BASELINES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=5, help="of each baseline in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="small cases: a smoke test")
    parser.add_argument("--once", action="store_true", help="start each baseline once, cold")
    parser.add_argument("--output", default="gradient", help="name of the files in results/")
    options = parser.parse_args()
    names, baselines = options.cases.split(","), options.baselines.split(",")
    for kind, given, known in (("case", names, cases.CASES), ("baseline", baselines, BASELINES)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"unknown {kind} {unknown}; choose from {list(known)}")
    for name in dict.fromkeys(envs.environment_of(p) for p in baselines):
        envs.python(name)
    sizes = [cases.settings(name, options.tiny)["M"] for name in names]
    limits = measure_limits(sizes, options.threads)
    outcomes = {}
    for name in names:
        outcomes[name] = run_case(name, baselines, options)
        write(outcomes, limits, options)
    print((HERE / "results" / f"{options.output}.md").read_text())


if __name__ == "__main__":
    main()
