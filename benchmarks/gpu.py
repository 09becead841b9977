"""A GPU: value and gradient of MNIST, a batch of proposals, and the cases of gradient.py, on JAX.

``python benchmarks/gpu.py`` runs on what JAX finds, in the environment that it is started in, and
writes results/gpu.md and results/gpu.json. ``JAX_PLATFORMS=cpu python benchmarks/gpu.py --tiny``
tries it anywhere. Everything is in float64. No GPU was at hand so far: it has run with ``--tiny``
on a CPU alone. MNIST is read from the folder PYMC_VSGP_DATA, or is random numbers: as fast.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from pathlib import Path

import cases
import envs
import numpy as np

HERE = Path(__file__).resolve().parent
SIZES = {"N": 60_000, "M": 500, "K": 10, "D": 784}
TINY = {"N": 600, "M": 20, "K": 10, "D": 784}
THETA, EPSILON = 64, 4  # proposals


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

    model, source = model_of_digits(sizes)
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


def case_of_gradient(name, tiny, repeat):
    """Time a case of gradient.py on JAX, and compare it with its numpy baseline."""
    found = {}
    for baseline in ("vsgp_jax", "numpy"):
        command = [sys.executable, HERE / "worker.py", baseline, name, *["--tiny"] * tiny]
        orders = f"time {repeat}\nquit\n" if baseline == "vsgp_jax" else "quit\n"
        paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        done = subprocess.run(
            command, input=orders, stdout=subprocess.PIPE, text=True, env=env, cwd=HERE, check=True
        )
        found[baseline] = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    (first, timed), (exact,) = found["vsgp_jax"], found["numpy"]
    a, b = (np.array(r["gradient"]) for r in (first, exact))
    settings = cases.settings(name, tiny)
    return {
        "what": f"({name}) {cases.TITLES[name]}",
        **{k: settings[k] for k in ("N", "M", "K", "D")},
        "first": first["to_first_gradient_s"],
        "median": float(np.median(timed["wall"])),
        "least": min(timed["wall"]),
        "error": float(np.abs(a - b).max() / np.abs(b).max()),
        "peak_bytes": None,
    }


def main():
    """Run all, and write the result files after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small cases: a smoke test")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--cases", default="a,b,c,d,e")
    parser.add_argument("--output", default="gpu", help="name of the files in results/")
    options = parser.parse_args()
    # Of the workers, too: JAX would take most of the memory of a GPU at once.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    device = jax.devices()[0]
    head = [
        "# On a GPU",
        "",
        f"{time.strftime('%Y-%m-%d')}; {device.platform}, {device.device_kind}, float64, "
        f"JAX {jax.__version__}; host: {envs.machine()['processor']}."
        + (" **Tiny cases: a smoke test, not a measurement.**" if options.tiny else ""),
        "",
        f"Wall seconds of {options.repeat} evaluations; *first*: with compiling, for the cases of "
        "gradients from the start of Python. *difference*: of MNIST from differences of values, of "
        "proposals from numpy, of the cases from the numpy baseline.",
        "",
        "| what | N | M | K | D | first s | median s | least s | difference | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    jobs = [
        lambda: gradient(TINY if options.tiny else SIZES, options.repeat),
        lambda: proposals(options.tiny, options.repeat),
        *(
            lambda name=name: case_of_gradient(name, options.tiny, options.repeat)
            for name in options.cases.split(",")
        ),
    ]
    results, folder = [], HERE / "results"
    for job in jobs:
        results.append(r := job())
        peak = f"{r['peak_bytes'] / 1e6:.0f}" if r["peak_bytes"] else ""
        head.append(
            f"| {r['what']} | {r['N']} | {r['M']} | {r['K']} | {r['D']} | {r['first']:.1f} "
            f"| {r['median']:.4f} | {r['least']:.4f} | {r['error']:.0e} | {peak} |"
        )
        print(head[-1], flush=True)
        envs.save(folder / f"{options.output}.json", json.dumps(results, indent=1))
        envs.save(folder / f"{options.output}.md", "\n".join([*head, ""]))


if __name__ == "__main__":
    main()
