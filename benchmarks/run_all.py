"""Run everything of benchmarks/ and benchmarks/reproduction/, one after another, for days.

    python benchmarks/run_all.py                   # what has not finished with today's package
    python benchmarks/run_all.py evidence image    # some
    python benchmarks/run_all.py evidence --again  # what has finished, too

A script that was interrupted starts again, and goes on in its results where it can. What has
finished is kept in .cache/run_all.json, by the last commit of the package. Results are in git: look
at `git diff benchmarks/results docs/reproduction` before you commit them.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

import envs

STATE = envs.HERE / ".cache" / "run_all.json"
# Each line of arguments is a run of the script.
SCRIPTS = {
    "evidence": [""],
    "reliability": [""],
    "fuzz": [""],
    "neighbors_divergence": [""],
    "repeated_inputs": [""],
    "neighbors_rows": [""],
    "gambia": [""],
    "importance": [""],
    "importance_exact": [""],
    "khat": [""],
    "optima": [""],
    "following": [""],
    "sums": [""],
    "improve_inducing": [""],
    "inducing_check": [""],
    "bins": [""],
    "softmax_expectation": [""],
    "soft_borders": [""],
    "compiling": [""],
    "rough_counts": [
        "vsgp",
        "vsgp --method importance",
        "features",
        "features --frequencies 24 --method nuts",
        "gpboost",
    ],
    "rough_map": ["vsgp", "gpboost"],
    "long_series": ["", "--rows 3000"],
    "space_time": [
        "kron --sites 15 --times 30",
        "kronecker --sites 15 --times 30",
        "kron",
        "kronecker",
        "features --sites 15 --times 30",
    ],
    "calibration": [""],
    "classes_accuracy": [""],
    "classes": [""],
    "features": ["--references", ""],
    "features_cost": ["--mode JAX", "--mode NUMBA"],
    "types_of_features": [""],
    "prediction": [""],
    "after_sampling": [""],
    "waiting": ["--rounds 5", "--samplers gradient nuts hsgp latent numpyro gpflow --rounds 5"],
    "gradient": [
        "",
        # The peers would take hours, or do not fit in memory.
        "--cases e --baselines vsgp_numba,vsgp_jax,numpy --once --rounds 2 --evaluations 3 "
        "--output gradient_million",
    ],
    "sampling": ["--chains 4 --cores 1"],
    "scaling": [""],
    "reproduction/dense": [""],
    "reproduction/snelson": [""],
    "reproduction/coal": [""],
    "reproduction/three_classes": [""],
    "reproduction/raetsch": ["", "--gamma 1 --splits 3 --free 3 --sets 5"],
    "reproduction/pines": [""],
    "reproduction/pseudo_marginal": [""],
    "reproduction/hmc_gibbs": [""],
    "reproduction/image": [""],
    "reproduction/mnist": ["--minutes 60"],
    "reproduction/make_page": [""],
}
# These go on where their results end, so results of an earlier package are taken away first.
CONTINUE = {
    *("importance", "importance_exact", "improve_inducing", "calibration", "classes_accuracy"),
    *("features", "features_cost", "types_of_features", "waiting", "following", "sums"),
    *("reproduction/raetsch", "reproduction/mnist", "reproduction/image"),
    *("reproduction/pseudo_marginal", "reproduction/hmc_gibbs"),  # into results/
}


def forget(name):
    """Empty the results of a script that would go on in them; git has them."""
    stem = name.rpartition("/")[2]
    pages = envs.ROOT / "docs" / "reproduction"
    empty = {pages: '{"results": {}}', envs.HERE / "results": "{}"}
    for folder, text in empty.items() if name in CONTINUE else ():
        path = folder / f"{stem}.json"
        if path.exists():
            path.write_text(("[]" if path.read_text().startswith("[") else text) + "\n")
    runs = json.loads(envs.RUNS.read_text()) if envs.RUNS.exists() else {}
    if runs.pop(stem, None):
        envs.RUNS.write_text(json.dumps(runs, indent=1) + "\n")


def run(name):
    """Run a script, and return whether all of its runs ended well."""
    for arguments in SCRIPTS[name]:
        if arguments == "gpboost" and not importlib.util.find_spec("gpboost"):
            print("  gpboost is not installed: its lines stay", flush=True)
            continue
        command = [sys.executable, envs.HERE / f"{name}.py", *arguments.split()]
        if subprocess.run(command, cwd=envs.ROOT).returncode:
            return False
    return True


def main():
    """Run what is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--again", action="store_true", help="run what has finished, too")
    parser.add_argument("--list", action="store_true", help="say what is left, and run nothing")
    options = parser.parse_args()
    names = {n.removeprefix("reproduction/"): n for n in SCRIPTS}
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    os.environ.setdefault("PYMC_VSGP_BENCH_PYMC", sys.executable)
    state, commit = json.loads(STATE.read_text()) if STATE.exists() else {}, envs.commit()
    chosen = [names[n] for n in options.names or names]
    left = [n for n in chosen if options.again or state.get(n) != f"{commit} finished"]
    failed = []
    for i, name in enumerate(left, start=1):
        print(f"[{i}/{len(left)}] {name}, {time.strftime('%H:%M:%S')}", flush=True)
        if options.list:
            continue
        if options.again or state.get(name) != f"{commit} begun":
            forget(name)
        for step in ("begun", "finished"):
            if step == "finished" and not run(name):
                failed.append(name)
                break
            state[name] = f"{commit} {step}"
            STATE.parent.mkdir(exist_ok=True)
            STATE.write_text(json.dumps(state, indent=1) + "\n")
    print(f"{len(chosen) - len(left)} had finished before, failed: {', '.join(failed) or 'none'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
