"""Public functions with inputs of every kind: what is right, what is refused, what is neither.

    python benchmarks/fuzz.py
    python benchmarks/fuzz.py --examples 5000 --functions predict inducing.kmeans

Examples are drawn by hypothesis with a fixed seed. `tests/fuzzing.py` has the inputs and says what
a right answer is, and `tests/fuzz_*.py` call the functions. Faults are printed with the shortest
list of what was drawn.
"""

import argparse
import collections
import importlib
import json
import logging
import os
import sys
import time

from pathlib import Path

import envs
import pytensor

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pymc_vsgp.compile import ONCE
from pymc_vsgp.fit import approximation, correlated

RESULTS = Path(__file__).resolve().parent / "results"
sys.path.insert(0, str(envs.ROOT / "tests"))

# They fill the cases, and are in a folder that is no package.
for part in ("fits", "inducing", "models", "results"):
    importlib.import_module(f"fuzz_{part}")
CASES = importlib.import_module("fuzzing").CASES

# Part of the examples where one builds a model, or fits it.
PARTS = {
    "inducing.greedy_variance": 0.25,
    "inducing.Fourier.for_data": 0.15,
    "suggest_inducing": 0.1,
    "likelihoods": 0.25,
    "VariationalSparse VariationalSparse.prior VariationalSparse.likelihood": 0.15,
    "VariationalSparse.predict": 0.1,
    "VariationalSparse.conditional VariationalSparse.predictive": 0.15,
    "Coregionalized likelihood predictive": 0.03,
    "check_model reset": 0.05,
    "predict": 0.5,
    "log_predictive_density": 0.25,
    "loo compute_log_likelihood compute_pointwise check_inducing exact_weights": 0.15,
    "plot_function plot_inducing plot_elbo plot_calibration plot_intensity": 0.15,
    "fit_gaussian GaussianStage": 0.03,
    "sample": 0.06,
    "sample(method='nuts')": 0.03,
    "kfold": 0.01,
    "calibrate compare_bins local_rows": 0.05,
    "open_draws": 0.1,
    "steps": 0.05,
}


def one(name, examples, start=0):
    """Go through examples of a function; return what came of them, and the faults."""
    counts, faults = collections.Counter(), collections.defaultdict(list)

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data):
        drawn = []

        def draw(strategy):
            drawn.append(data.draw(strategy))
            return drawn[-1]

        try:
            counts[CASES[name](draw)] += 1
        except Exception as fault:
            counts["faults"] += 1
            faults[f"{type(fault).__name__}: {fault}"[:200]].append(repr(drawn))

    run()
    return counts, faults


def main(names, examples, start):
    """Go through functions, and write the table."""
    pytensor.config.mode, pytensor.config.cxx = ONCE, ""
    # A stage of a few coefficients is like one of thousands, and finds them correlated.
    approximation.MOST_DENSE, correlated.INFORMED, correlated.APART = 10, 0.0, 0.0
    os.environ.pop("PYMC_VSGP_DATA", None)  # whose names would make a long message
    logging.disable()
    path = RESULTS / "fuzz.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        began = time.process_time()
        counts, faults = one(name, max(int(examples * PARTS.get(name, 1.0)), 1), start)
        row = {k: counts[k] for k in ("right", "refused", "faults")}
        row = {"examples": counts.total(), **row, "cpu": round(time.process_time() - began, 1)}
        print(name, row, flush=True)
        for text, each in sorted(faults.items(), key=lambda x: -len(x[1])):
            print(f"   {len(each)} times: {text}\n      {min(each, key=len)[:400]}", flush=True)
        known[name] = row
        known = {n: known[n] for n in CASES if n in known}
        envs.save(path, json.dumps(known, indent=1) + "\n", kept=True)
    head = ["examples", "right", "refused", "faults"]
    lines = ["| functions | " + " | ".join(head) + " |", "|---" * 5 + "|"]
    for name, row in known.items():
        each = ", ".join(f"`{n}`" for n in name.split())
        lines.append(f"| {each} | " + " | ".join(str(row[k]) for k in head) + " |")
    total = [sum(row[k] for row in known.values()) for k in head]
    lines.append("| all | " + " | ".join(map(str, total)) + " |")
    envs.save(RESULTS / "fuzz.md", "\n".join(lines) + "\n", kept=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--functions", nargs="+", default=list(CASES), choices=list(CASES))
    asked = parser.parse_args()
    main(asked.functions, asked.examples, asked.seed)
