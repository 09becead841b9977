"""The environments of the baselines, built under benchmarks/.envs on first use; result files.

Standard library only.

Set PYMC_VSGP_BENCH_PYMC or PYMC_VSGP_BENCH_GPFLOW to the Python of an environment of your own to
use that instead.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUNS = HERE / "results" / "runs.json"  # what made each result file
PACKAGES = ("pymc", "pytensor", "numpy", "scipy", "numba", "jax", "nutpie", "gpboost")

REQUIREMENTS = {
    "pymc": ["-e", f"{ROOT}[jax,nutpie]"],
    "gpflow": ["gpflow==2.11.2", "matplotlib", "tensorflow-cpu==2.21.0", "setuptools<81"],
    "flow": ["-e", f"{ROOT}[jax,nutpie]", "flowjax==19.1.2"],
    "blackjax": ["blackjax==1.7.1", "jax", "scipy"],  # PyMC wants an older one
}
ENVIRONMENTS = {"gpflow": "gpflow", "nutpie_flow": "flow", "blackjax_laplace": "blackjax"}


def environment_of(baseline):
    """Name of the environment that a baseline runs in."""
    return ENVIRONMENTS.get(baseline, "pymc")


def python(name):
    """Path of the environment's Python; the environment is built if need be."""
    own = os.environ.get(f"PYMC_VSGP_BENCH_{name.upper()}")
    if own:
        return own
    folder = HERE / ".envs" / name
    executable, stamp = folder / "bin" / "python", folder / ".built"
    key = " ".join(REQUIREMENTS[name])
    if stamp.exists() and stamp.read_text() == key:
        return str(executable)
    print(f"Building benchmarks/.envs/{name}; this takes some minutes, once.", flush=True)
    uv = shutil.which("uv")
    if uv:
        subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.12", folder], check=True)
        install = [uv, "pip", "install", "-q", "--python", executable]
    else:
        subprocess.run([_python312(), "-m", "venv", "--clear", folder], check=True)
        install = [executable, "-m", "pip", "install", "-q"]
    subprocess.run([*install, *REQUIREMENTS[name]], check=True)
    stamp.write_text(key)
    return str(executable)


def _python312():
    if sys.version_info[:2] == (3, 12):
        return sys.executable
    found = shutil.which("python3.12")
    if not found:
        raise SystemExit("Python 3.12 was not found. Install it, or install uv.")
    return found


def variables(threads, cache):
    """Environment variables of a worker: the same threads for every library, a compile cache."""
    t = str(threads)
    env = dict(os.environ)
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "NUMEXPR", "VECLIB_MAXIMUM"):
        suffix = "_THREADS" if library == "VECLIB_MAXIMUM" else "_NUM_THREADS"
        env[library + suffix] = t
    env["TF_NUM_INTRAOP_THREADS"], env["TF_NUM_INTEROP_THREADS"] = t, "1"
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"
    env["JAX_PLATFORMS"], env["CUDA_VISIBLE_DEVICES"] = "cpu", ""
    env["NPROC"] = t
    eigen = "false" if threads == 1 else "true"
    env["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={threads}"
    )
    env["PYTENSOR_FLAGS"] = f"base_compiledir={cache}"
    env["NUMBA_CACHE_DIR"] = str(Path(cache) / "numba-functions")
    paths = [str(ROOT), env.get("PYTHONPATH")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    return env


def fresh_cache():
    """Return a new empty folder for compiled code; the caller removes it."""
    parent = HERE / ".cache"
    parent.mkdir(exist_ok=True)
    return tempfile.mkdtemp(dir=parent, prefix="compiled-")


def machine():
    """Return what the numbers depend on: processor, cores, memory, load."""
    model = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def commit():
    """Return the last commit of the package, with a + where its files differ from it."""
    git, package = ["git", "-C", str(ROOT)], ["--", "pymc_vsgp"]
    try:
        log = [*git, "log", "-1", "--format=%h", *package]
        found = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not recorded"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", *package]).returncode
    return found + "+" * bool(changed)


def this_run():
    """Return what a result depends on: arguments with their seeds, commit, versions, machine."""
    path = Path(sys.argv[0]).resolve()
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            pass
    found = {"command": shlex.join(["python", str(name), *sys.argv[1:]]), "commit": commit()}
    found |= {"date": time.strftime("%Y-%m-%d"), "versions": versions}
    return found | {k: v for k, v in machine().items() if k != "load"}


def save(path, text, kept=False):
    """Write a result file, and what made it: to runs.json, and below a table.

    Where a script has `kept` results of earlier runs in the file, those are told of, too: all, or
    where the file says what commits its results are of, the runs of these.
    """
    path, runs = Path(path), json.loads(RUNS.read_text()) if RUNS.exists() else {}
    run = this_run()
    if not path.stem.startswith("smoke"):
        earlier = runs.get(path.stem, []) if kept else []
        if isinstance(kept, set):
            earlier = [r for r in earlier if r.get("commit") in kept]
        runs[path.stem] = [r for r in earlier if r.get("command") != run["command"]] + [run]
        RUNS.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n")
    if path.suffix == ".md":
        text = text.rstrip("\n") + "\n\n" + footer(runs.get(path.stem, [run]))
    path.write_text(text, encoding="utf-8")


def footer(runs):
    """Return a line for each run that made a table."""
    made: dict[str, list[str]] = {}
    for r in runs:
        if "versions" not in r:  # before this was kept
            what = f" of {r['of']}" if "of" in r else ""
            made[f"runs{what} whose commit and versions were not recorded."] = []
            continue
        versions = ", ".join(f"{k} {v}" for k, v in r["versions"].items())
        where = f"{r['processor']}, {r['cores']} cores"
        by = f"{r['date']}, commit {r['commit']}; {versions}; {where}."
        made.setdefault(by, []).append(r["command"])
    lines = [f"*Made by* {_commands(c) + ', ' if c else ''}{by}" for by, c in made.items()]
    return "\n\n".join(lines) + "\n"


def _commands(commands):
    """Return commands in one line: what they have in common, and then the rest of each."""
    split = [shlex.split(c) for c in commands]
    n = len(os.path.commonprefix(split))
    if len(commands) == 1 or n < 2:
        return ", ".join(f"`{c}`" for c in commands)
    rest = ", ".join(f"`{shlex.join(s[n:])}`" if s[n:] else "nothing more" for s in split)
    return f"`{shlex.join(split[0][:n])}` with {rest}"


def two_digits(x):
    """Return a number to two digits, without an exponent."""
    return f"{float(f'{x:.2g}'):,.12g}"


def available_bytes():
    """Return the memory that can be used without swapping."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
