"""What numba compiles for one log density with its gradient: how many functions, and whose.

Usage: ``python compiling.py``. Each model in a process of its own: one with an empty cache of
compiled code, another after the first, the same again. Takes two minutes.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

import envs

RESULTS = pathlib.Path(__file__).parent / "results"
# What runs with which cache: of two models, another kernel, likelihood and number of parameters.
RUNS = (
    ("first model", "counts"),
    ("another model after it", "classes"),
    ("the first model again", "counts"),
)


def model_of(name):
    import numpy as np
    import pymc as pm

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(1)
    X = rng.uniform(size=(500, 2))
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", mu=0.5, sigma=0.3)
        if name == "counts":
            sd = pm.HalfNormal("sd", 1.0)
            cov, likelihood = sd**2 * pm.gp.cov.Matern52(2, ls=ls), vsgp.Poisson()
        else:
            cov, likelihood = 4.0 * pm.gp.cov.ExpQuad(2, ls=ls), vsgp.Bernoulli()
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", X[:30])
        gp.likelihood("y", likelihood, X=X, y=rng.integers(2, size=500))
    return model


def whose(dispatcher):
    """Return whose function it is, by the module that it was written in."""
    module = dispatcher.py_func.__module__ or ""
    for start, name in (("pymc_vsgp", "ours"), ("numba", "numba"), ("nutpie", "nutpie")):
        if module.startswith(start):
            return name
    # The code of a graph is written as it is compiled, and has no module.
    return "the graph" if "graph" in dispatcher.py_func.__name__ else "PyTensor"


def count(events):
    """Return functions and seconds by whose they are, without what each of them needs."""
    stack, found = [], {}
    for at, event in events:
        if event.is_start:
            stack.append([at, 0.0])
            continue
        began, inner = stack.pop()
        seconds = at - began
        if stack:
            stack[-1][1] += seconds
        row = found.setdefault(whose(event.data["dispatcher"]), [0, 0.0])
        row[0] += 1
        row[1] += seconds - inner
    return found


def measure(name):
    """Compile a model, and print what that took."""
    import pymc as pm  # so that imports are not counted

    from numba.core import event

    model = model_of(name)
    began = time.process_time()
    with event.install_recorder("numba:compile") as recorder:
        function = model.logp_dlogp_function(ravel_inputs=True, mode="NUMBA")
        function.set_extra_values({})
        start = pm.blocking.DictToArrayBijection.map(model.initial_point()).data
        function._pytensor_function(start)
    found = count(recorder.buffer)
    print(json.dumps({"all": time.process_time() - began, "numba": found}))


def run():
    """Return a row for each of the runs."""
    cache, rows = envs.fresh_cache(), []
    try:
        for what, name in RUNS:
            command = [sys.executable, __file__, "--model", name]
            env = envs.variables(1, cache)
            done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
            rows.append({"what": what, **json.loads(done.stdout.splitlines()[-1])})
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["counts", "classes"], help="one, in this process")
    if name := parser.parse_args().model:
        measure(name)
        return
    rows = run()
    kinds = sorted({kind for row in rows for kind in row["numba"]})
    lines = [f"| | CPU s | functions | {' | '.join(kinds)} |", "|---" * (len(kinds) + 3) + "|"]
    for row in rows:
        known = row["numba"]
        total = sum(s for _, s in known.values())
        told = (f"{known[k][0]} ({known[k][1] / total:.0%})" if k in known else "0" for k in kinds)
        n = sum(n for n, _ in known.values())
        lines.append(f"| {row['what']} | {row['all']:.0f} | {n} | {' | '.join(told)} |")
    print("\n".join(lines))
    envs.save(RESULTS / "compiling.json", json.dumps(rows, indent=1) + "\n")
    envs.save(RESULTS / "compiling.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
