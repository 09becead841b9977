"""Value and gradient over devices and processes, and a model of what they cost.

``python benchmarks/scaling.py`` measures on this machine, fits the model, checks it against points
that it was not fitted to, and writes results/scaling.md and results/scaling.json. Needs JAX with
gloo. A process has one device and one thread, so its CPU seconds are what an idle core takes; wall
times are those of the machine as it was, and only the least of many says something.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time

from pathlib import Path

import envs
import numpy as np

HERE = Path(__file__).resolve().parent
FIT = [(n, m) for m in (64, 128, 256) for n in (4096, 32_768)]
CHECKS = [(65_536, 192), (16_384, 256)]
STRONG = [(32_768, 128), (65_536, 192)]  # rows in all
WEAK = [(16_384, 192)]  # rows of a process
ALONE = [(4096, 64)]  # on 1, 2, 4 and 8 devices of one process
REDUCED = (1, 64**2, 256**2, 512**2, 1024**2)  # numbers
NETWORKS = {
    "10 Gbit/s": (50e-6, 1.25e9),
    "GPUs of one host": (10e-6, 1e11),
}
"""Seconds of a message, and bytes a second: assumed, not measured."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def make(n, m, rows):
    """Return a Poisson model of n rows with m inducing points, of which a process has `rows`."""
    import pymc as pm

    import pymc_vsgp as vsgp

    rng = np.random.default_rng(1)
    X = rng.uniform(0.0, 10.0, size=(n, 2))
    y = rng.poisson(np.exp(np.sin(X[:, 0])))
    with pm.Model() as model:
        ls, scale = pm.Gamma("ls", 4, 4, shape=2), pm.Gamma("scale", 4, 4)
        gp = vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.Matern52(2, ls=ls))
        gp.prior("u", Xu=X[rng.choice(n, m, replace=False)])
        gp.likelihood("y", vsgp.Poisson(), X=X[rows], y=y[rows])
    return model


def evaluate(n, m, seconds):
    """Time a value and gradient, and count what is all-reduced."""
    import jax

    import pymc_vsgp as vsgp

    from pymc_vsgp.engine.sharded import mesh_of
    from pymc_vsgp.fit.spread import spread

    model = spread(make(n, m, vsgp.local_rows(n)), mesh_of(jax.devices()))
    fn = model.logp_dlogp_function(ravel_inputs=True, mode="JAX")
    size = sum(np.size(x) for x in model.initial_point().values())
    x = 0.1 * np.random.default_rng(2).normal(size=size)
    value, gradient = (np.asarray(a) for a in fn(x))
    # All processes take the same number of them.
    repeat = max(3, int(seconds / (1e-3 + 8.0 * n * m**2 / jax.device_count() / 1e10)))
    cpu, wall = [], []
    for _ in range(repeat):
        began = time.process_time(), time.perf_counter()
        np.asarray(fn(x)[1])
        cpu.append(time.process_time() - began[0])
        wall.append(time.perf_counter() - began[1])
    inner = fn._pytensor_function
    arguments = [x, *(s.get_value(borrow=True) for s in inner.get_shared())]
    text = inner.vm.jit_fn.lower(*arguments).compile().as_text()
    return {
        "value": float(value),
        "norm": float(np.linalg.norm(gradient)),
        "cpu": float(np.median(cpu)),
        "spread": float(np.subtract(*np.percentile(cpu, [75, 25])) / 2 / np.median(cpu)),
        "wall": min(wall),
        "evaluations": repeat,
        "reduced": reduced(text),
    }


def reduced(text):
    """Return how many numbers a compiled program all-reduces."""
    total = 0
    for line in text.splitlines():
        if found := re.search(r"= (.*?) all-reduce(?:-start)?\(", line):
            shapes = re.findall(r"f64\[([\d,]*)\]", found.group(1))
            total += sum(int(np.prod([int(d) for d in s.split(",") if d])) for s in shapes)
    return total


def reduce_alone(sizes):
    """Time all-reduces of some numbers: the least wall time, and the CPU time."""
    import jax
    import jax.numpy as jnp

    from jax.sharding import NamedSharding, PartitionSpec

    from pymc_vsgp.engine.sharded import AXIS, mesh_of

    mesh = mesh_of(jax.devices())
    found = []
    for n in sizes:
        place, everywhere = (NamedSharding(mesh, PartitionSpec(*a)) for a in ([AXIS], []))
        shape = (mesh.size, n)
        x = jax.make_array_from_callback(shape, place, lambda at, n=n: np.ones((1, n)))
        total = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=everywhere)
        jax.block_until_ready(total(x))
        wall, cpu = [], time.process_time()
        for _ in range(100):
            began = time.perf_counter()
            jax.block_until_ready(total(x))
            wall.append(time.perf_counter() - began)
        found.append({"numbers": n, "wall": min(wall), "cpu": (time.process_time() - cpu) / 100})
    return found


def work(jobs, rank, processes, port, seconds):
    """Do the jobs of a process, and print what they gave."""
    import jax

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    for job in jobs:
        if job == "reduce":
            result = reduce_alone(REDUCED)
        else:
            result = evaluate(*job, seconds)
        print(json.dumps(result), flush=True)


def run(jobs, processes=1, devices=1, seconds=2.0):
    """Run jobs on so many processes, with devices each; a list of the results of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={devices} {ONE_THREAD}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps([jobs, r, processes, port, seconds])],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for r in range(processes)
    ]
    found = []
    for p in running:
        lines = [x for x in p.communicate()[0].splitlines() if x.startswith(("{", "[{"))]
        if p.returncode or len(lines) < len(jobs):
            raise RuntimeError(f"A process of {processes} ended with {p.returncode}.")
        found.append([json.loads(x) for x in lines])
    print(f"{len(jobs)} jobs on {processes} processes of {devices} devices", flush=True)
    return found


def parts(n, m):
    """What the seconds of a device are linear in: n are its rows."""
    return np.array([1.0, n * m**2, n * m, n, m**3])


def fit(points):
    """Return the coefficients of `parts`, none of them negative, by relative errors."""
    from scipy.optimize import nnls

    A = np.array([parts(p["n"], p["m"]) / p["cpu"] for p in points])
    scale = A.max(axis=0)
    return nnls(A / scale, np.ones(len(A)))[0] / scale


def fit_reduce(points):
    """Return seconds of a message and bytes a second, of two processes."""
    from scipy.optimize import nnls

    wall = np.array([p["wall"] for p in points])
    A = np.array([[1.0, 8.0 * p["numbers"]] for p in points]) / wall[:, None]
    latency, a_byte = nnls(A, np.ones(len(A)))[0]
    # Two processes: two messages, and each byte once there and once back.
    return latency / 2.0, 1.0 / a_byte


def all_reduce(m, devices, network):
    """Seconds of adding up m^2 + m numbers: a tree of messages, and bytes around a ring."""
    latency, speed = network
    if devices == 1:
        return 0.0
    n_bytes = 2 * 8 * (m**2 + m) * (devices - 1) / devices
    return 2.0 * np.ceil(np.log2(devices)) * latency + n_bytes / speed


def tables(result):
    """Return the result file."""
    c = np.array(result["coefficients"])
    a = result["machine"]
    lines = [
        "# Several devices",
        "",
        f"{result['date']}; {a['processor']}, {a['cores']} cores, load {a['load'][0]}. Value "
        "and gradient of a Poisson model with two inputs and a Matern 5/2 kernel, in float64, on "
        "JAX; a process has one device and one thread. CPU seconds of a process: median and half "
        "the interquartile range. Others used the machine, so wall times are left out.",
        "",
        "## Fitted to one process",
        "",
        "Seconds of a device with $n$ rows: "
        f"${c[0]:.1e} + {c[1]:.2e}\\,n M^2 + {c[2]:.2e}\\,n M + {c[3]:.2e}\\,n "
        f"+ {c[4]:.2e}\\,M^3$.",
        "",
        "| rows | M | fitted to it | CPU s | spread | model s | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in result["alone"]:
        model = c @ parts(p["n"], p["m"])
        lines.append(
            f"| {p['n']} | {p['m']} | {'yes' if p['fitted'] else 'no'} | {p['cpu']:.3f} "
            f"| {100 * p['spread']:.0f} % | {model:.3f} | {100 * (model / p['cpu'] - 1):+.0f} % |"
        )
    lines += [
        "",
        "## Two processes, by gloo over the loopback address",
        "",
        "| scaling | rows of a process | M | CPU s of each process | model s | error "
        "| CPU s of one process with all rows | numbers all-reduced | difference of value |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for p in result["two"]:
        model = c @ parts(p["n"], p["m"])
        lines.append(
            f"| {p['scaling']} | {p['n']} | {p['m']} | {p['cpu'][0]:.3f}, {p['cpu'][1]:.3f} "
            f"| {model:.3f} | {100 * (model / np.mean(p['cpu']) - 1):+.0f} % | {p['one']:.3f} "
            f"| {p['reduced']} | {p['difference']:.0e} |"
        )
    lines += [
        "",
        "An all-reduce of two processes, alone:",
        "",
        "| numbers | least wall s | CPU s of a process |",
        "|---|---|---|",
    ]
    lines += [f"| {p['numbers']} | {p['wall']:.1e} | {p['cpu']:.1e} |" for p in result["reduce"]]
    lines += [
        "",
        "## Devices of one process",
        "",
        "Threads of one processor: this says that they agree, and nothing of speed.",
        "",
        "| devices | relative difference of value | of the gradient's norm |",
        "|---|---|---|",
    ]
    lines += [f"| {p['devices']} | {p['value']:.0e} | {p['norm']:.0e} |" for p in result["devices"]]
    lines += [
        "",
        "## Predicted",
        "",
        "Seconds of a value and gradient on cores like this one, from the model above and networks "
        "whose numbers are assumed: "
        + "; ".join(f"{k}: {1e6 * a:.0f} µs, {b / 1e9:g} GB/s" for k, (a, b) in NETWORKS.items())
        + ". In parentheses the share of the all-reduce.",
        "",
        "| M | rows | devices | " + " | ".join(NETWORKS) + " | share of $M^3$ |",
        "|---" * (4 + len(NETWORKS)) + "|",
    ]
    for m in (200, 500):
        for n in (10**6, 10**8, 10**10):
            for devices in (1, 10, 100, 1000):
                local = c @ parts(n / devices, m)
                cells = []
                for network in NETWORKS.values():
                    more = all_reduce(m, devices, network)
                    cells.append(f"{local + more:.3g} ({100 * more / (local + more):.0f} %)")
                share = 100 * c[4] * m**3 / local
                lines.append(f"| {m} | {n:.0e} | {devices} | {' | '.join(cells)} | {share:.0f} % |")
    lines += [
        "",
        "Rows of a device at which the all-reduce takes as long as all else that grows with rows:",
        "",
        "| M | devices | " + " | ".join(NETWORKS) + " | of $M^3$ |",
        "|---" * (3 + len(NETWORKS)) + "|",
    ]
    for m in (200, 500):
        a_row = c[1] * m**2 + c[2] * m + c[3]
        for devices in (2, 1000):
            rows = [all_reduce(m, devices, w) / a_row for w in NETWORKS.values()]
            cells = " | ".join(f"{r:.0f}" for r in rows)
            lines.append(f"| {m} | {devices} | {cells} | {c[4] * m**3 / a_row:.0f} |")
    return "\n".join([*lines, ""])


def main():
    """Measure, fit, and write the result files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="of evaluations, for a point")
    parser.add_argument("--tiny", action="store_true", help="small cases: a smoke test")
    parser.add_argument("--output", default="scaling", help="name of the files in results/")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        jobs, *rest = json.loads(options.worker)
        return work(jobs, *rest)
    fitted, checks, strong, weak, alone = FIT, CHECKS, STRONG, WEAK, ALONE
    if options.tiny:
        fitted = [(n, m) for m in (16, 32) for n in (256, 1024, 2048)]
        checks, strong, weak, alone = [(4096, 32)], [(1024, 32)], [(512, 32)], [(256, 16)]
    together = [(2 * n, m) for n, m in weak]
    jobs = list(dict.fromkeys([*fitted, *checks, *strong, *together]))
    (one,) = run(jobs, seconds=options.seconds)
    by_size = dict(zip(jobs, one, strict=True))
    two = run(["reduce", *strong, *together], processes=2, seconds=options.seconds)
    result = {"machine": envs.machine(), "date": time.strftime("%Y-%m-%d")}
    result["alone"] = [
        {"n": n, "m": m, "fitted": (n, m) in fitted, **by_size[n, m]} for n, m in jobs
    ]
    result["coefficients"] = fit([p for p in result["alone"] if p["fitted"]]).tolist()
    result["reduce"] = two[0][0]
    result["latency_and_speed"] = fit_reduce(two[0][0])
    result["two"] = []
    for i, (n, m) in enumerate([*strong, *together], start=1):
        each, whole = [p[i] for p in two], by_size[n, m]
        result["two"].append(
            {
                "scaling": "strong" if i <= len(strong) else "weak",
                "n": n // 2,
                "m": m,
                "cpu": [p["cpu"] for p in each],
                "one": whole["cpu"],
                "reduced": each[0]["reduced"],
                "difference": abs(each[0]["value"] / whole["value"] - 1.0),
            }
        )
    n_devices = (1, 2, 4, 8)
    found = [run(alone, devices=d, seconds=0.0)[0][0] for d in n_devices]
    result["devices"] = [
        {"devices": d, **{k: abs(p[k] / found[0][k] - 1.0) for k in ("value", "norm")}}
        for d, p in zip(n_devices, found, strict=True)
    ]
    folder = HERE / "results"
    envs.save(folder / f"{options.output}.json", json.dumps(result, indent=1))
    text = tables(result)
    envs.save(folder / f"{options.output}.md", text)
    print(text)


if __name__ == "__main__":
    main()
