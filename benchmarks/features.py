"""Fourier features, inducing points, HSGP and exact processes on the same data and priors.

Each run is a process of its own, from its start to its last draw, compiling included, and the
kinds take turns:

    export PYMC_VSGP_DATA=folder
    python benchmarks/features.py --cases coal,pines32 --references
    python benchmarks/features.py --cases coal,pines32 --repeats 2

Every kind has a ladder of sizes. How far the posterior of the function is from a reference says
which rungs are good enough, and the cheapest of those stand beside each other. CPU seconds are
those of the process, which other work on the machine changes less than the time on the clock.
What is in the file of results is not run again: remove it to start anew.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import envs

from features_table import write

HERE = pathlib.Path(__file__).parent
WORKER = HERE / "features_worker.py"
FUNCTIONS = HERE / ".cache" / "features"  # what the references and the runs found

FOURIER = [("Fourier", r) for r in (0.05, 0.02, 0.005, 0.001)]
HSGP = [("hsgp", r) for r in (0.7, 1.0, 1.5)]
LADDERS = {
    "coal": [*FOURIER[:3], *HSGP, ("points", 15), ("points", 30), ("latent", 0)],
    "pines32": [*FOURIER, ("Fourier", 1e-5), *HSGP, ("points", 15)],
    "pines64": [*FOURIER[1:], ("Fourier", 1e-5), HSGP[0], ("points", 15)],
    "pines128": [FOURIER[2], HSGP[0]],
    "pines64_long": [FOURIER[2], HSGP[0]],
    "pines128_long": [FOURIER[2]],
    "beijing_air": [FOURIER[2], HSGP[0]],
    "rows1e5": [FOURIER[1], HSGP[0]],
    "rows1e6": [FOURIER[1]],
}
# The exact process where it can be had, else the finest of any kind; with more draws.
REFERENCES = {
    "coal": ("latent", 0, 2000),
    "pines32": ("kron", 0, 2000),
    "pines64": ("kron", 0, 800),
    "pines128": ("Fourier", 0.0001, 100),
    "pines64_long": ("kron", 0, 800),
    "pines128_long": ("Fourier", 0.0001, 1000),
    "beijing_air": ("Fourier", 0.0002, 60),
    "rows1e5": ("Fourier", 0.001, 150),
}
DRAWS = {"coal": 400, "pines32": 250, "pines64": 200, "pines64_long": 1000, "pines128_long": 1000}
LARGE = ("pines64_long", "pines128_long", "rows1e5", "rows1e6")
BACKEND = dict.fromkeys(LARGE, "numba")  # of Fourier features: what `vsgp.sample` takes there
FEW = 75  # draws where one takes long


def run(case, kind, rung, draws, seed, args):
    """Run one in a process of its own; None where it failed or took too long."""
    FUNCTIONS.mkdir(parents=True, exist_ok=True)
    out = FUNCTIONS / f"{case}-{kind}-{rung}-{seed}.npz"
    command = [sys.executable, str(WORKER), case, kind, str(rung), str(out)]
    command += ["--draws", str(draws), "--tune", str(draws), "--seed", str(seed)]
    command += ["--chains", str(args.chains)]
    command += ["--backend", BACKEND.get(case, "jax") if kind == "Fourier" else "jax"]
    # Chains fill the cores: threads inside an evaluation only wait for one another.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    row = {"case": case, "kind": kind, "rung": rung, "seed": seed, "draws": draws}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=args.timeout,
            env={**os.environ, **threads},
        )
    except subprocess.TimeoutExpired:
        return row | {"not_done_after": args.timeout}
    if done.returncode:
        print(done.stderr[-2000:], flush=True)
        return row | {"failed": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"function": out.name}


def main():
    """Run what was asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(LADDERS))
    parser.add_argument("--kinds", default="Fourier,hsgp,points,latent")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=900)
    parser.add_argument("--output", default="features")
    parser.add_argument("--references", action="store_true", help="run the references alone")
    parser.add_argument("--table", action="store_true", help="write the page from what was run")
    args = parser.parse_args()
    path = HERE / "results" / f"{args.output}.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for case in [] if args.table else args.cases.split(","):
        n = DRAWS.get(case, FEW)
        jobs = [
            (k, r, n, args.first_seed + i) for i in range(args.repeats) for k, r in LADDERS[case]
        ]
        if args.references:
            jobs = [(*REFERENCES[case], 0)]
        for kind, rung, draws, seed in jobs:
            if not args.references and kind not in args.kinds.split(","):
                continue
            same = ("case", "kind", "rung", "seed")
            if kind == "points" and len(case) > 4:
                draws = min(draws, FEW)
            job = dict(zip(same, (case, kind, rung, seed), strict=True))
            if any(all(r[k] == job[k] for k in same) for r in rows):
                continue
            row = run(case, kind, rung, draws, seed, args)
            print(row, flush=True)
            rows.append(row)
            path.parent.mkdir(exist_ok=True)
            envs.save(path, json.dumps(rows, indent=1) + "\n", kept=True)
    write(rows, REFERENCES, FUNCTIONS, path)


if __name__ == "__main__":
    main()
