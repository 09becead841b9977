"""Predictions from several threads at once are those of one."""

import gc

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from prior_draws import prior_draws

import pymc_vsgp as vsgp

from pymc_vsgp.engine.streaming import BlockSum

N, M = 60, 8
XNEW = [np.linspace(a, a + 9.0, 40)[:, None] for a in range(8)]
quiet = {"progressbar": False}


@pytest.fixture
def fitted():
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4, 2)
        gp = vsgp.VariationalSparse(cov_func=1.3 * pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(exposure=2.0), X=X, y=rng.poisson(2.0, N))
    return model, prior_draws(model, 40)


def arrays(result):
    return np.stack([*result.data_vars.values()]) if isinstance(result, xr.Dataset) else result


@pytest.mark.slow
def test_stress(fitted):
    """A fresh model: threads compile at the same time, too."""
    model, idata = fitted
    jobs = [(X, what) for _ in range(3) for X in XNEW for what in ("moments", "mean", "y")]

    def run(job):
        X, what = job
        return arrays(vsgp.predict(idata, X, what, model=model, random_seed=1, **quiet))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, jobs))
    for job, result in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(result, run(job))


def test_two_lazy_predictions(fitted):
    dask = pytest.importorskip("dask", reason="dask is not installed")
    model, idata = fitted
    big = np.concatenate(XNEW)
    lazy = xr.DataArray(big, dims=["point", "k"]).chunk(point=20)
    both = [vsgp.predict(idata, lazy, what, model=model, **quiet) for what in ("mean", "f")]
    mean, f = dask.compute(*both, scheduler="threads")
    plain = vsgp.predict(idata, big, "mean", model=model, **quiet)
    np.testing.assert_allclose(mean, plain, rtol=1e-12)
    moments = vsgp.predict(idata, big, "moments", model=model, **quiet)
    z = (f - moments["mean"]) / np.sqrt(moments["variance"])
    assert abs(float(z.std()) - 1.0) < 0.05


@pytest.mark.long
@pytest.mark.slow
def test_compiled_loops_are_told_apart_and_go_with_their_functions(monkeypatch):
    """Where PyTensor has no key for a block, as if all had the same place in memory."""
    pytest.importorskip("numba", reason="numba is not installed")
    from pymc_vsgp.ops.backends import rows_numba as backend
    from pymc_vsgp.ops.backends.linked_numba import _COMPILED as loops

    uncached = backend.numba_funcify_and_cache_key
    monkeypatch.setattr(
        backend, "numba_funcify_and_cache_key", lambda *a, **k: (uncached(*a, **k)[0], None)
    )
    monkeypatch.setattr(backend, "id", lambda op: 1, raising=False)
    x, y = np.arange(5.0), pt.vector("y")

    def compiled(power):
        block = pt.vector("block")
        outputs = [pt.sum(block**power), block]
        op = BlockSum([block], outputs, n_rows=1, n_sums=1, rules=[None], block_size=8)
        return pytensor.function([y], op(y, return_list=True), mode="NUMBA")

    before = set(loops)
    functions = [compiled(2), compiled(3)]
    for power, fn in zip((2, 3), functions, strict=True):
        assert fn(x)[0] == (x**power).sum()
    assert len(set(loops) - before) == 4  # and the graph around each
    del functions, fn
    gc.collect()
    assert set(loops) <= before
