"""Compare speed with what was committed, in a few minutes: fails above 1.3 times as long.

Every time is a ratio to a reference of the same run, which a slower machine slows down too: value
and gradient, to the same by plain numpy; the example of README.md, to the import of PyMC.

    python benchmarks/check.py             # compare with results/check.json
    python benchmarks/check.py --record    # write it, on an idle machine
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys

from pathlib import Path

import envs
import gradient
import waiting

PATH = Path(__file__).resolve().parent / "results" / "check.json"
ALLOWED = 1.3
CASES = ("a", "b")


def gradients():
    """Seconds of value and gradient over those of numpy, in turns."""
    options = argparse.Namespace(tiny=False, once=True, threads=1, rounds=5, evaluations=20)
    out = {}
    for case in CASES:
        results = gradient.run_case(case, ["vsgp_numba", "numpy"], options)["results"]
        ours, floor = (statistics.median(results[b]["cpu"]) for b in ("vsgp_numba", "numpy"))
        out[f"value and gradient, case {case}, over numpy"] = ours / floor
    return out


def cpu_seconds(command, env):
    """User and system time of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def example(rounds=3):
    """CPU seconds of the example in README.md over those of importing PyMC, in turns."""
    cache = envs.fresh_cache()
    env = envs.variables(1, cache)
    ratios = []
    try:
        for _ in range(rounds):
            reference = cpu_seconds([sys.executable, "-c", "import pymc"], env)
            found = waiting.run("readme", "default", cache, limit=600)
            if "failed" in found:
                raise SystemExit(f"The example of README.md failed: {found['failed']}")
            ratios.append(found["seen"]["plot"][1] / reference)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    # The first run filled the cache.
    return {"example of README.md, over the import of PyMC": statistics.median(ratios[1:])}


def main():
    """Measure, then compare or record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the figures instead")
    options = parser.parse_args()
    os.environ.setdefault("PYMC_VSGP_BENCH_PYMC", sys.executable)
    found = gradients() | example()
    if options.record:
        PATH.write_text(json.dumps({"machine": envs.machine(), "ratios": found}, indent=1) + "\n")
    known = json.loads(PATH.read_text())["ratios"]
    slower = 0
    for name, ratio in found.items():
        change = ratio / known[name]
        slower += change > ALLOWED
        note = f"  slower than {ALLOWED} times" if change > ALLOWED else ""
        print(f"{name}: {ratio:.2f}, committed {known[name]:.2f}, {change:.2f} times{note}")
    if slower:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
