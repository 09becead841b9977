"""Effective samples per gradient and per second, this package's samplers against their baselines.

``python benchmarks/sampling.py`` writes results/sampling.md and results/sampling.json. Standard
library only; see README.md.
"""

import argparse
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from pathlib import Path

import envs

HERE = Path(__file__).resolve().parent
CASES = {
    "coal": "coal mining, Poisson",
    "pines": "pine saplings, Poisson on a grid",
    "banana": "banana, probit",
    "image_iso": "image, probit, one lengthscale",
    "image_ard": "image, probit, a lengthscale for each input",
    "nmes": "visits to a physician, negative binomial",
    "poisson1": "simulated Poisson, mean count 1",
    "poisson50": "simulated Poisson, mean count 50",
    "probit18": "simulated probit, 18 inputs, weak data",
}
BASELINES = [
    "vsgp",
    "vsgp_nuts",
    "vsgp_features",
    "vsgp_whitened",
    "vsgp_whitened_lowrank",
    "numpyro",
    "gpflow",
    "nutpie_flow",
    "latent",
    "hsgp",
    "blackjax_laplace",
]
OURS = ("vsgp", "vsgp_nuts", "vsgp_features")
OTHERS = (
    "vsgp_features",
    "latent",
    "hsgp",
    "blackjax_laplace",
)  # which have a posterior of their own
NOTE = """\
ESS: smallest bulk effective sample size over the parameters (theta), and over the function at 20
inputs (f; for the sparse models its mean given u). *per 1000 gradients*: of theta, counting all
leapfrog steps of all chains with warm-up, and those of the draws alone; importance weights take
none. *total*: from the start of the process to the last draw, with imports, compilation from an
empty cache, the Gaussian stage and warm-up. *CPU*: the same in seconds of processors, which other
processes stretch less; *per CPU s* divides by that. *compile*: for PyMC all that is neither the
Gaussian stage nor sampling; for numpyro XLA's own account; for gpflow the tracing. *theta off*:
largest difference of a parameter's mean from that of the first baseline, in standard errors of the
difference: above 4 the two do not sample the same posterior, which is as it should be for
`vsgp_features`, `latent`, `hsgp` and `blackjax_laplace`. *commit*: of the package; more is below
the tables. A baseline that is stopped has no draws that could be counted.
"""


def write_case(name, folder, tiny):
    """Return the case's file and sizes, or why it cannot be had."""
    path = folder / f"{name}.npz"
    env = envs.variables(1, folder / "compiled-cases")
    command = [envs.python("pymc"), HERE / "sampling_cases.py", name, path]
    done = subprocess.run(
        command + (["--tiny"] if tiny else []), env=env, cwd=HERE, text=True, capture_output=True
    )
    if done.returncode == 0:
        return path, done.stdout.strip().splitlines()[-1]
    if done.returncode == 3:
        return None, f"Skipped: {done.stdout.strip()}"
    return None, f"Failed: {done.stderr.strip().splitlines()[-1]}"


def last_json(text):
    """Last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return None


def run(baseline, case, folder, options):
    """Run one baseline in its own process, from an empty compile cache."""
    out = folder / f"draws-{baseline}.npz"
    cache = envs.fresh_cache()
    command = [
        envs.python(envs.environment_of(baseline)),
        HERE / "sampling_worker.py",
        *(baseline, case, out),
        *("--draws", str(options.draws), "--tune", str(options.tune)),
        *("--chains", str(options.chains), "--cores", str(options.cores)),
        *("--seed", str(options.seed), "--backend", options.backend),
    ]
    env = envs.variables(options.threads, cache)

    def limit():
        # Seconds of processors: other processes of the machine take none of them.
        resource.setrlimit(resource.RLIMIT_CPU, (options.timeout, options.timeout + 5))

    try:
        done = subprocess.run(
            command, env=env, cwd=HERE, text=True, capture_output=True, preexec_fn=limit
        )
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    if done.returncode == -signal.SIGXCPU:  # one that is killed is another: memory may be short
        return {"skipped": f"stopped after {options.timeout} CPU s"}
    result = last_json(done.stdout)
    if result is None:
        lines = [x for x in done.stderr.strip().splitlines() if x.strip()] or ["no message"]
        return {"skipped": f"failed ({done.returncode}): {lines[-1][:300]}"}
    if "skipped" in result:
        return result
    command = [envs.python("pymc"), HERE / "sampling_worker.py", "summary", out]
    env = envs.variables(1, folder / "compiled-summary")
    done = subprocess.run(command, env=env, cwd=HERE, text=True, capture_output=True)
    more = last_json(done.stdout) or {"skipped": f"no summary: {done.stderr[-300:]}"}
    return result | more | {"load": os.getloadavg()[0]}


def derive(result, reference):
    """Add ratios to a result."""
    if "skipped" in result:
        return
    warmup, draws = result.get("gradients_warmup"), result.get("gradients_draws")
    for name in ("theta", "f"):
        ess = result[f"ess_{name}"]
        result[f"{name}_per_s"] = ess / result["cpu_s"]
        if draws:
            result[f"{name}_per_1000_draws"] = 1e3 * ess / draws
        if draws and warmup is not None:
            result[f"{name}_per_1000"] = 1e3 * ess / (draws + warmup)
    if reference is not None and reference is not result:
        off = []
        for mean, sd, mean0, sd0 in zip(
            result["mean_theta"],
            result["sd_theta"],
            reference["mean_theta"],
            reference["sd_theta"],
            strict=True,
        ):
            error = math.hypot(
                sd / math.sqrt(result["ess_theta"]), sd0 / math.sqrt(reference["ess_theta"])
            )
            off.append(abs(mean - mean0) / error if error else math.nan)
        result["theta_off"] = max(off)


def number(result, key, digits):
    """Format an entry that may be missing."""
    value = result.get(key)
    return "" if value is None else f"{value:.{digits}f}"


def table(name, outcome, options):
    """Markdown of one case."""
    lines = [f"## {name}: {CASES[name]}", "", outcome["sizes"] + ".", ""]
    if not outcome["results"]:
        return "\n".join(lines)
    lines += [
        "| baseline | ESS theta | ESS f | theta per 1000 gradients | without warm-up "
        "| f per 1000 gradients | theta per CPU s | f per CPU s | CPU s | total s | compile s "
        "| Gaussian stage s | gradients a draw | R-hat | divergences | theta off | load | commit |",
        "|" + "---|" * 18,
    ]
    for baseline, r in outcome["results"].items():
        if "skipped" in r:
            lines.append(f"| {baseline} | {r['skipped']} |" + " |" * 15 + f" {r['commit']} |")
            continue
        each = r["gradients_draws"] or math.nan
        by = f" ({r['method']})" if "method" in r else ""
        row = [
            baseline + by,
            number(r, "ess_theta", 0),
            number(r, "ess_f", 0),
            number(r, "theta_per_1000", 1),
            number(r, "theta_per_1000_draws", 1),
            number(r, "f_per_1000", 1),
            number(r, "theta_per_s", 2),
            number(r, "f_per_s", 2),
            number(r, "cpu_s", 1),
            number(r, "total_s", 1),
            number(r, "compile_s", 1),
            number(r, "stage_s", 1),
            "" if math.isnan(each) else f"{each / options.draws / options.chains:.1f}",
            number(r, "rhat", 3),
            number(r, "divergences", 0),
            number(r, "theta_off", 1),
            number(r, "load", 0),
            r["commit"],
        ]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, ""])


def summary(outcomes):
    """Markdown of all cases: this package, the best of the others, and their ratios."""
    lines = [
        "| case | by | CPU s | ESS theta per CPU s | f | by NUTS: theta | f | by features*: theta "
        "| f | best other, theta | per CPU s | R-hat | ours, times | best other, f | per CPU s "
        "| R-hat | ours, times | did not finish |",
        "|" + "---|" * 18,
    ]
    for name, outcome in outcomes.items():
        results = outcome["results"]
        ours = results.get("vsgp", {})
        if "theta_per_s" not in ours:
            continue
        row = [name, ours["method"], number(ours, "cpu_s", 0)]
        row += [number(ours, f"{k}_per_s", 1) for k in ("theta", "f")]
        for kind in ("vsgp_nuts", "vsgp_features"):
            row += [number(results.get(kind, {}), f"{k}_per_s", 1) for k in ("theta", "f")]
        others = {b: results[b] for b in BASELINES if b in results and b not in OURS}
        for k in ("theta_per_s", "f_per_s"):
            best = max(
                (b for b in others if k in others[b]), key=lambda b: others[b][k], default=""
            )
            if not best:
                row += ["none finished", "", "", ""]
                continue
            mark = "*" * (best in OTHERS)
            row += [best + mark, number(others[best], k, 2), number(others[best], "rhat", 2)]
            row += [envs.two_digits(ours[k] / others[best][k])]
        row += [", ".join(b for b, r in others.items() if "stopped" in r.get("skipped", ""))]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "", "\\* of a posterior of its own.", ""])


def runs_of(outcome):
    """Return the results of each seed of a case, those of the first seed first."""
    return [outcome["results"], *outcome.get("seeds", {}).values()]


def over_seeds(outcomes):
    """Markdown of what other seeds find, beside the first: the smallest and the largest."""
    lines = [
        "| case | baseline | seeds | CPU s | ESS theta per CPU s | ESS f per CPU s | R-hat at most "
        "| theta off at most | ours, times theirs: theta | f |",
        "|" + "---|" * 10,
    ]
    for name, outcome in outcomes.items():
        runs = runs_of(outcome)
        for baseline in BASELINES:
            pairs = [(run.get("vsgp", {}), run.get(baseline, {})) for run in runs]
            found = [b for _, b in pairs if "cpu_s" in b]
            if len(found) < 2:
                continue
            row = [name, baseline, str(len(found))]
            row += [between([b[k] for b in found]) for k in ("cpu_s", "theta_per_s", "f_per_s")]
            row += [f"{max(b['rhat'] for b in found):.3f}"]
            off = [b["theta_off"] for b in found if "theta_off" in b]
            row += [f"{max(off):.1f}" if off else ""]
            both = [(a, b) for a, b in pairs if "cpu_s" in a and "cpu_s" in b and a is not b]
            for k in ("theta_per_s", "f_per_s"):
                row += [between([a[k] / b[k] for a, b in both]) if both else ""]
            lines.append("| " + " | ".join(row) + " |")
    if len(lines) == 2:
        return ""
    said = "From the smallest to the largest of the seeds. Ratios are of one seed."
    return "\n".join(["## Other seeds", "", said, "", *lines, ""])


def between(values):
    """Return the smallest and the largest of some numbers, to three digits."""
    return " to ".join(f"{v:.3g}" if v < 1e3 else f"{v:.0f}" for v in (min(values), max(values)))


def write(outcomes, options):
    """Write both result files; called after every baseline, so that a stop loses nothing."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    machine = envs.machine()
    text = [
        "# Sampling",
        "",
        f"{time.strftime('%Y-%m-%d')}; {machine['processor']}, {machine['cores']} cores; "
        f"{options.chains} chains of {options.tune} + {options.draws}, {options.cores} at a time, "
        f"{options.timeout} CPU s at most, "
        f"{options.threads} BLAS thread(s), PyTensor backend {options.backend}, "
        f"seed {options.first_seed}."
        + (" **Tiny cases: a smoke test, not a measurement.**" if options.tiny else ""),
        "",
        NOTE,
        summary(outcomes),
        *(table(name, outcome, options) for name, outcome in outcomes.items()),
        over_seeds(outcomes),
    ]
    done = {(case, b) for case, outcome in outcomes.items() for b in outcome["results"]}
    left: dict[str, list[str]] = {}
    for case in CASES:
        if names := [b for b in BASELINES if (case, b) not in done]:
            left.setdefault(", ".join(names), []).append(case)
    text += [f"Not run: {', '.join(cases)}: {names}.\n" for names, cases in left.items()]
    runs = [run for outcome in outcomes.values() for run in runs_of(outcome)]
    commits = {result["commit"] for run in runs for result in run.values()}
    everything = {"machine": machine, "options": vars(options), "cases": outcomes}
    record = json.dumps(everything, indent=1)
    for kind, content in (("md", "\n".join(text)), ("json", record)):
        envs.save(folder / f"{options.output}.{kind}", content, kept=options.add and commits)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--baselines", default=",".join(BASELINES))
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--cores", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--threads", type=int, default=1, help="of BLAS")
    parser.add_argument("--seed", type=int, default=1, help="with --add, another than the first")
    parser.add_argument("--backend", choices=("numba", "jax"), default="numba")
    parser.add_argument("--timeout", type=int, default=3600, help="CPU seconds of a baseline")
    parser.add_argument("--tiny", action="store_true", help="small cases: a smoke test")
    parser.add_argument("--add", action="store_true", help="to the results that are there")
    parser.add_argument("--output", default="sampling", help="name of the files in results/")
    options = parser.parse_args()
    names, baselines = options.cases.split(","), options.baselines.split(",")
    for kind, given, known in (("case", names, CASES), ("baseline", baselines, BASELINES)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"unknown {kind} {unknown}; choose from {list(known)}")
    for name in dict.fromkeys(["pymc", *(envs.environment_of(p) for p in baselines)]):
        envs.python(name)
    cache = HERE / ".cache"
    cache.mkdir(exist_ok=True)
    known = HERE / "results" / f"{options.output}.json"
    record = json.loads(known.read_text()) if options.add and known.exists() else {}
    outcomes, earlier = record.get("cases", {}), record.get("options", {})
    options.first_seed = earlier.get("first_seed", earlier.get("seed", options.seed))
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        for name in names:
            path, sizes = write_case(name, Path(temporary), options.tiny)
            print(f"{name}: {sizes}", flush=True)
            outcome = outcomes.setdefault(name, {"results": {}})
            outcome["sizes"] = sizes
            results = outcome["results"]
            if options.seed != options.first_seed:
                results = outcome.setdefault("seeds", {}).setdefault(str(options.seed), {})
            write(outcomes, options)
            if path is None:
                continue
            for baseline in baselines:
                result = run(baseline, path, Path(temporary), options) | {"commit": envs.commit()}
                results[baseline] = result
                # The first of those with the posterior of the case.
                same = (results.get(b, {}) for b in BASELINES if b not in OTHERS)
                reference = next((r for r in same if "mean_theta" in r), None)
                for found in results.values():
                    derive(found, reference)
                status = result.get("skipped") or f"{result['total_s']:.1f} s"
                print(f"  {baseline:22s} {status}", flush=True)
                write(outcomes, options)
    print((HERE / "results" / f"{options.output}.md").read_text())


if __name__ == "__main__":
    main()
