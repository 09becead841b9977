"""Data on devices of several processes, which are two on this machine."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import pymc_vsgp as vsgp

from pymc_vsgp.fit.gaussian import Fitter

pytest.importorskip("jax")
pytest.importorskip("zarr")
pytest.importorskip("obstore")

N, DRAWS = 53, 20  # an odd number of rows: one process has more
SETTINGS = {"tune": 20, "chains": 2, "random_seed": 3, "progressbar": False}

MODEL = """
import numpy as np, pymc as pm, pymc_vsgp as vsgp

def build(rows, Xu=np.linspace(0.0, 3.0, 6)[:, None]):
    rng = np.random.default_rng(1)
    X, exposure = rng.uniform(0.0, 3.0, size=(53, 1)), rng.uniform(1.0, 2.0, size=53)
    y = rng.poisson(exposure * np.exp(np.sin(2.0 * X[:, 0])))
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 4, 4))
        gp = vsgp.VariationalSparse(cov_func=cov, mean_func=pm.gp.mean.Constant(0.3))
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Poisson(exposure=exposure[rows]), X=X[rows], y=y[rows])
    return model
"""

PROCESS = (
    """
import os, signal, sys, threading, time, jax
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(
    f"127.0.0.1:{port}", num_processes=2, process_id=rank,
    heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10,
)
"""
    + MODEL
    + """
from pymc_vsgp.engine.sharded import mesh_of
from pymc_vsgp.fit.gaussian import Fitter

devices = jax.devices()
rows = vsgp.local_rows(53)
assert [d.process_index for d in devices] == [0, 1] and rows.stop - rows.start in (26, 27)
model = build(rows)

def refused(what, function):
    try:
        function()
    except (ValueError, RuntimeError) as error:
        print(what, "refused:", error, flush=True)

def fit(model):
    return Fitter(model, mesh=mesh_of(devices))

refused("rows", lambda: fit(build(slice(None))))
refused("points", lambda: fit(build(rows, np.linspace(rank, 3.0, 6)[:, None])))
sampling = {"draws": 100_000, "method": "nuts", "devices": devices, **SETTINGS}
refused("store", lambda: vsgp.sample(store=f"{folder}/one", model=model, **sampling))

fitter = fit(model)
bound = fitter.bound
at = bound(bound.start + 0.1, bound.no_sites())
refused("apart", lambda: bound(bound.start + 0.1 * rank, bound.no_sites()))
stage = fitter(progressbar=False)
stage.apply()
np.savez(f"{folder}/{rank}.npz", value=at.value, gradient=at.gradient, n=bound.n_data(),
         elbo=stage.elbo, ls=stage.theta["ls"], mean=stage.mean["u"])
sampling["stage"] = stage
found = vsgp.sample(model=model, **sampling | {"draws": 40, "method": "importance"})
np.savez(f"{folder}/{rank}_draws.npz", ls=found.posterior["ls"], u=found.posterior["u"])

store = f"{folder}/store_{rank}"
def die():
    while True:
        time.sleep(1.0)
        try:
            if vsgp.open_draws(store).posterior.sizes["draw"] >= 20:
                break
        except Exception:
            pass
    print("dies", time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    threading.Thread(target=die, daemon=True).start()
refused("sampling", lambda: vsgp.sample(model=model, store=store, **sampling))
"""
)


def has_gloo():
    """Whether processes can add up numbers on a CPU."""
    import jax

    return jax.config.jax_cpu_collectives_implementation == "gloo"


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes print and write, of which one is killed in the end."""
    if not has_gloo():
        pytest.skip("JAX has no gloo here, by which processes add up numbers on a CPU")
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = PROCESS.replace("**SETTINGS", f"**{SETTINGS}")
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(port), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        )
        for rank in range(2)
    ]
    try:
        said = [p.communicate(timeout=400)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    assert running[1].returncode == -signal.SIGKILL, said[1]
    return folder, said, time.time()


@pytest.fixture(scope="module")
def alone():
    """The model and its stage in one process, on numpy."""
    names = {}
    exec(MODEL, names)
    model = names["build"](slice(None))
    fitter = Fitter(model)
    at = fitter.bound(fitter.bound.start + 0.1, fitter.bound.no_sites())
    stage = fitter(progressbar=False)
    stage.apply()
    return model, at, stage


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.long
@pytest.mark.slow  # starts Python twice, and compiles on JAX
def test_two_processes_find_what_one_does(processes, alone):
    folder, _, _ = processes
    model, at, stage = alone
    for rank in range(2):
        with np.load(folder / f"{rank}.npz") as found:
            close(found["value"], at.value)
            close(found["gradient"], at.gradient)
            close(found["elbo"], stage.elbo)
            close(found["ls"], stage.theta["ls"])
            close(found["mean"], stage.mean["u"])
            assert found["n"] == N
    draws = vsgp.sample(40, method="importance", stage=stage, model=model, **SETTINGS).posterior
    for rank in range(2):
        with np.load(folder / f"{rank}_draws.npz") as found:
            close(found["ls"], draws["ls"].values)
            close(found["u"], draws["u"].values)


@pytest.mark.long
@pytest.mark.slow  # starts Python twice, and compiles on JAX
def test_nuts_of_two_processes_draws_what_that_of_one_does(processes, alone, tmp_path):
    folder, _, _ = processes
    model, _, stage = alone
    expected = vsgp.sample(
        DRAWS,
        method="nuts",
        backend="jax",
        cores=1,
        store=tmp_path / "store",
        stage=stage,
        model=model,
        **SETTINGS,
    ).posterior
    for rank in range(2):
        found = vsgp.open_draws(folder / f"store_{rank}").posterior
        chain = found["chain"].values[0]
        for name in ("ls", "u"):
            np.testing.assert_allclose(
                found[name].values[0, :DRAWS], expected[name].sel(chain=chain).values, rtol=1e-8
            )


@pytest.mark.long
@pytest.mark.slow  # starts Python twice
def test_process_that_ends_ends_the_run(processes):
    folder, (survivor, dead), ended = processes
    died = float(dead.splitlines()[-1].split()[1])
    assert ended - died < 60.0
    line = next(s for s in survivor.splitlines() if s.startswith("sampling refused"))
    assert "Another process of this run has ended" in line
    assert f"vsgp.open_draws('{folder}/store_0')" in line
    assert vsgp.open_draws(folder / "store_0").posterior.sizes["draw"] >= DRAWS


@pytest.mark.long
@pytest.mark.slow  # starts Python twice
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("rows", "All processes have the same rows of the data"),
        ("points", "The models of the processes differ in more than their rows"),
        ("store", "would write their draws to the same store"),
        ("apart", "The processes of this run are at different parameters"),
    ],
)
def test_processes_that_do_not_fit_are_refused(processes, what, why):
    for said in processes[1]:
        at = said.index(f"{what} refused:")
        assert why in said[at:], said


def test_one_process_has_all_rows():
    assert vsgp.local_rows(7) == slice(0, 7)
    for wrong in (None, -1, 2.5, "7"):
        with pytest.raises(ValueError, match="n is .* Pass a whole number, 0 or more"):
            vsgp.local_rows(wrong)
