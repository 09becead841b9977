"""Draws on disk: round trips, a new process, and a run that is killed."""

import errno
import importlib.util
import pickle
import subprocess
import sys
import textwrap
import time

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from kept import SETTINGS, build, make_data, moments, quiet
from modes import of_users

import pymc_vsgp as vsgp
import pymc_vsgp.fit.store

from pymc_vsgp.fit.collapsed import collapse, recover
from pymc_vsgp.fit.stage import add_data
from pymc_vsgp.fit.store import (
    _lengths,
    _of_nutpie,
    _rectangle,
    _written,
    sample_to_disk,
    write,
)

pytest.importorskip("zarr", reason="zarr is not installed")
pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")


OPEN = r"no draws of 'u', which the model needs\. Open .* vsgp\.open_draws\(path, model=model\)"


def noisy():
    return vsgp.Gaussian(pm.HalfNormal("s"))


def child(script, folder, **popen):
    code = f"import sys; sys.path[:0] = {sys.path!r}\n" + textwrap.dedent(script)
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, **popen)


@pytest.fixture(scope="module")
def moved():
    """Draws whose inducing inputs are not where the code puts them."""
    model = build()
    stage = vsgp.fit_gaussian(model=model, move_inducing=True, maxiter=5, **quiet)
    assert np.abs(stage.Xu["u_Xu"] - stage.Xu_before["u_Xu"]).max() > 1e-3
    return stage.to_datatree(20, random_seed=1), model


def save(idata, path):
    if path.suffix == ".nc":
        idata.to_netcdf(path, engine="h5netcdf")
    else:
        idata.to_zarr(path, consolidated=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draws.nc", "draws.zarr"])
def test_round_trip(name, moved, tmp_path):
    idata, model = moved
    save(idata, tmp_path / name)
    loaded = vsgp.open_draws(tmp_path / name)
    for group in ("posterior", "observed_data", "constant_data"):
        xr.testing.assert_identical(loaded[group].to_dataset().load(), idata[group].to_dataset())
    xr.testing.assert_identical(moments(loaded, build()), moments(idata, model))
    loaded.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_new_process_predicts_the_same(moved, tmp_path):
    idata, model = moved
    for name in ("draws.nc", "draws.zarr"):
        save(idata, tmp_path / name)
    script = """
        import pymc_vsgp as vsgp
        from kept import build, moments
        for name in ("draws.nc", "draws.zarr"):
            moments(vsgp.open_draws(name), build()).to_netcdf(f"{name}.out", engine="h5netcdf")
    """
    assert child(script, tmp_path).wait() == 0
    for name in ("draws.nc", "draws.zarr"):
        there = xr.open_dataset(tmp_path / f"{name}.out", engine="h5netcdf")
        xr.testing.assert_allclose(there, moments(idata, model), rtol=1e-12)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    for name in ("nutpie", "obstore"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    path = tmp_path_factory.mktemp("runs") / "finished.zarr"
    model = build()
    with of_users():
        idata = vsgp.sample(draws=150, store=path, model=model, **SETTINGS)
    return model, idata, path


@pytest.mark.slow
def test_what_was_written_is_what_was_drawn(finished, default_mode):
    model, idata, path = finished
    assert idata["posterior"].sizes["draw"] == 150
    assert idata["posterior"].attrs["sampling_time"] > 0.0
    assert set(idata["posterior"].data_vars) == {"ls", "c", "u"}
    assert {"energy", "diverging", "n_steps"} <= set(idata["sample_stats"].data_vars)
    read = vsgp.open_draws(path)
    for group in ("posterior", "sample_stats", "constant_data", "observed_data"):
        xr.testing.assert_equal(read[group].to_dataset(), idata[group].to_dataset())
    np.testing.assert_array_equal(read["observed_data"]["y"], make_data()[1])
    with pytest.raises(FileExistsError, match=r"exists.*Pass a new path.*vsgp.open_draws"):
        vsgp.sample(draws=150, store=path, model=model, **SETTINGS)


FULL = """Chunk write operation failed

Caused by:
    0: Failed to store chunk for variable /posterior/u at chunk 3 with length 80
    1: Generic LocalFileSystem error: No space left on device (os error 28)

Stack backtrace:
   0: <unknown>
"""


@pytest.mark.long
def test_a_full_disk_says_so(monkeypatch, tmp_path, default_mode):
    """With what nutpie said on one. Other errors are passed on."""
    nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed")
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setattr(nutpie, "compile_pymc_model", lambda *args, **kwargs: None)
    for text, error, match in [
        (FULL, OSError, r"can't be written to .*: No space left on device\. vsgp.open_draws"),
        ("0: of the model", RuntimeError, "^0: of the model$"),
    ]:

        def fail(*args, text=text, **kwargs):
            raise RuntimeError(text)

        monkeypatch.setattr(nutpie, "sample", fail)
        with pytest.raises(error, match=match):
            vsgp.sample(store=tmp_path / error.__name__, model=build(), **SETTINGS)


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_run_keeps_its_draws(finished, tmp_path):
    _, whole, _ = finished
    script = """
        import pymc_vsgp as vsgp
        from kept import SETTINGS, build
        vsgp.sample(draws=20_000, store="draws.zarr", model=build(), **SETTINGS)
    """
    process = child(script, tmp_path)
    chunks, deadline = 0, time.monotonic() + 240.0
    try:
        while chunks < 4 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.2)
            folder = tmp_path / "draws.zarr" / "posterior" / "u" / "c"
            chunks = min(len(list(folder.glob(f"{chain}/*/*"))) for chain in (0, 1))
    finally:
        process.kill()
        assert process.wait() != 0
    idata = vsgp.open_draws(tmp_path / "draws.zarr")
    posterior = idata["posterior"].to_dataset().load()
    n_chains, num_samples = posterior.sizes["chain"], posterior.sizes["draw"]
    # nutpie writes a chunk of draws at a time; all that were on disk before the end are there.
    assert n_chains * num_samples >= 100
    assert all(np.isfinite(v).all() for v in posterior.data_vars.values())
    assert idata["sample_stats"].sizes == {"chain": n_chains, "draw": num_samples}
    # They are those of a run that was left alone.
    same = min(num_samples, 150)
    xr.testing.assert_allclose(
        posterior.isel(draw=slice(same)),
        whole["posterior"].to_dataset().sel(chain=posterior["chain"]).isel(draw=slice(same)),
    )
    f = moments(idata, build())["mean"]
    assert np.isfinite(f).all()
    assert vsgp.check_inducing(idata, 20, model=build(), **quiet).missing.shape == (20,)


@pytest.mark.long
def test_inducing_values_that_were_integrated_out_come_back(tmp_path, default_mode):
    for name in ("nutpie", "obstore"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    model = build(noisy)
    idata = vsgp.sample(draws=60, store=tmp_path / "draws.zarr", model=model, **SETTINGS)
    assert idata["posterior"]["u"].dims == ("chain", "draw", "u_inducing")
    alone = vsgp.open_draws(tmp_path / "draws.zarr")
    assert "u" not in alone["posterior"]
    with pytest.raises(ValueError, match=OPEN):
        moments(alone, model)
    read = vsgp.open_draws(tmp_path / "draws.zarr", model=model)
    xr.testing.assert_equal(read["posterior"]["u"], idata["posterior"]["u"])
    read = vsgp.open_draws(tmp_path / "draws.zarr", model=model, random_seed=1)
    xr.testing.assert_equal(read["posterior"]["ls"], idata["posterior"]["ls"])
    # Two draws of u given the same parameters.
    a, b = (moments(t, model)["mean"].mean(["chain", "draw"]) for t in (read, idata))
    spread = moments(idata, model)["mean"].std(["chain", "draw"])
    assert (np.abs(a - b) < 5.0 * spread * np.sqrt(2.0 / 120)).all()


def noisy_model(Xu, X, y):
    with pm.Model(coords={"row": np.arange(len(y))}) as model:
        x, seen = pm.Data("x", X, dims=("row", "column")), pm.Data("seen", y, dims="row")
        ls, c = pm.Gamma("ls", 4.0, 2.0), pm.Normal("c", 0.0, 2.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(c), cov_func=pm.gp.cov.Matern52(1, ls=ls)
        )
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("s")), X=x, y=seen)
    return model


@pytest.fixture
def collapsed_draws(tmp_path):
    """Draws without inducing values on disk, those values, and a model that has other data now."""
    X, y = make_data()
    Xu = vsgp.inducing.grid(X, 7)
    model = noisy_model(Xu + 0.3, X[:50], np.log1p(y[:50]))
    draws = {n: (("chain", "draw"), [[0.5, 1.0, 1.5]]) for n in ("ls", "c", "s")}
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})
    add_data(tree, model)
    save(tree, tmp_path / "draws.zarr")
    rng = np.random.default_rng(9)
    u = recover(collapse(model), tree["posterior"], 1)["u"]
    return tree, u, noisy_model(Xu, X, rng.normal(size=60))


@pytest.mark.slow
def test_inducing_values_are_of_the_data_of_the_draws(collapsed_draws, tmp_path, monkeypatch):
    """Not of those that the model has now: other inducing inputs, rows and observations."""
    tree, u, now = collapsed_draws
    before = {v.name: v.get_value() for v in now.data_vars}
    monkeypatch.setattr(pymc_vsgp.fit.store, "recover", lambda whole, x, _: recover(whole, x, 1))
    read = vsgp.open_draws(tmp_path / "draws.zarr", model=now)
    np.testing.assert_allclose(read["posterior"]["u"], u, rtol=1e-10)
    for group in ("constant_data", "observed_data"):
        xr.testing.assert_equal(read[group].to_dataset(), tree[group].to_dataset())
    assert set(before) == {v.name for v in now.data_vars}
    for name, value in before.items():
        np.testing.assert_array_equal(now[name].get_value(), value)
    assert len(now.coords["row"]) == 60


@pytest.mark.slow
def test_draws_that_lack_inducing_values_say_how_to_open_them(collapsed_draws, tmp_path):
    _, _, now = collapsed_draws
    with pytest.raises(ValueError, match="Sample it too, or fix it"):
        moments(vsgp.open_draws(tmp_path / "draws.zarr"), now)
    stage = xr.Dataset({"u_mean": np.zeros(7)}, attrs={"inducing_seed": 1})
    stage.to_zarr(tmp_path / "draws.zarr", group="gaussian_stage", consolidated=False)
    with pytest.raises(ValueError, match=OPEN):
        moments(vsgp.open_draws(tmp_path / "draws.zarr"), now)
    whole = vsgp.open_draws(tmp_path / "draws.zarr", model=now)
    assert np.isfinite(moments(whole, now)["mean"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["conditional", "predictive"])
def test_inducing_values_of_a_model_that_has_more_since(method, collapsed_draws, tmp_path):
    """Draws were opened without them, and the error said to open the draws."""
    _, u, now = collapsed_draws
    with pm.Model() as model:
        ls, c = pm.Gamma("ls", 4.0, 2.0), pm.Normal("c", 0.0, 2.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(c), cov_func=pm.gp.cov.Matern52(1, ls=ls)
        )
        gp.prior("u", Xu=now["u_Xu"].get_value())
        X, y = make_data()
        X, y = pm.Data("x", X), pm.Data("seen", y)
        gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("s")), X=X, y=y)
        getattr(gp, method)("new", [[1.0], [2.0]])
    read = vsgp.open_draws(tmp_path / "draws.zarr", model=model, random_seed=1)
    assert set(read["posterior"].data_vars) == {"ls", "c", "s", "u"}
    assert read["posterior"]["u"].shape == u.shape


def test_inducing_values_of_data_that_cannot_be_set(collapsed_draws, tmp_path):
    with pytest.raises(ValueError, match="other values of 'y' than its draws.*Build the model"):
        vsgp.open_draws(tmp_path / "draws.zarr", model=build(noisy))


@pytest.mark.slow
def test_no_inducing_values_without_their_parameters(collapsed_draws, tmp_path):
    tree, _, now = collapsed_draws
    few = xr.DataTree(tree["posterior"].to_dataset().drop_vars("s"))
    save(xr.DataTree.from_dict({"posterior": few.to_dataset()}), tmp_path / "few.zarr")
    read = vsgp.open_draws(tmp_path / "few.zarr", model=now)
    assert set(read["posterior"].data_vars) == {"ls", "c"}
    with pytest.raises(ValueError, match=r"depend on \['s'\].*Sample them, too"):
        recover(collapse(now), few, 1)


def test_lengths_of_chains():
    x = np.arange(12.0).reshape(2, 6)
    x[0, 4:] = np.nan
    x[1, 2:] = np.nan
    d = xr.Dataset({"a": (("chain", "draw"), x), "n": (("chain", "draw"), np.zeros((2, 6), int))})
    np.testing.assert_array_equal(_lengths(d), [4, 2])
    for lengths, chains, n in (
        ([4, 2], [0, 1], 2),
        ([10, 2, 9], [0, 2], 9),
        ([0, 5], [1], 5),
        ([7, 7, 7], [0, 1, 2], 7),
    ):
        kept, length = _rectangle(np.array(lengths))
        assert list(kept) == chains
        assert length == n


def test_a_run_that_was_killed_between_two_chunks():
    """All variables have as many draws; a mean that is NaN at times leaves them alone."""
    dims, found = ("chain", "draw"), np.random.default_rng(0).random((2, 32))
    own, ls, mean = (xr.DataArray(found.copy(), dims=dims) for _ in range(3))
    ls[0, 24:], mean[1, 30:], mean[0, 3] = np.nan, np.nan, np.nan
    kept = xr.Dataset({"ls_log__": own, "ls": ls, "mean": mean, "nothing": np.nan * own})
    for v in kept.data_vars.values():
        v.encoding["preferred_chunks"] = {"chain": 1, "draw": 8}
    stats = xr.Dataset({"step_size": own})
    np.testing.assert_array_equal(_written(stats, kept, ["ls_log__"]), [24, 32])


@pytest.fixture
def draws():
    values = np.random.default_rng(0).random((2, 50, 3))
    posterior = xr.Dataset({"u": (("chain", "draw", "u_inducing"), values)})
    return xr.DataTree.from_dict({"posterior": posterior})


def damage(path, what):
    """Do to draws in a folder what a full disk or a copy that ended does."""
    part = path / "posterior" / "u" / "c" / "0" / "0" / "0"
    if what == "chunk":
        part.write_bytes(part.read_bytes()[:20])
    elif what == "metadata":
        (path / "posterior" / "u" / "zarr.json").write_text("{")
    elif what == "no metadata":
        (path / "zarr.json").unlink()
    else:
        part.unlink()


@pytest.mark.parametrize("what", ["chunk", "metadata", "no metadata"])
def test_damaged_folders_say_so(what, draws, tmp_path):
    path = tmp_path / "draws.zarr"
    draws.to_zarr(path, consolidated=False)
    damage(path, what)
    with pytest.raises(ValueError, match=r"draws.zarr can't be read: .*sample again"):
        vsgp.open_draws(path)


def test_files_that_are_lost_are_told_of(draws, tmp_path):
    """Zarr reads them as NaN."""
    path = tmp_path / "draws.zarr"
    draws.to_zarr(path, consolidated=False)
    damage(path, "lost")
    with pytest.warns(UserWarning, match="300 of 300 numbers of u .*are NaN.*files were lost"):
        vsgp.open_draws(path)


@pytest.mark.parametrize("what", ["half", "text", "pickle"])
def test_other_files_say_so(what, draws, tmp_path):
    """No code in them runs."""

    class Code:
        def __reduce__(self):
            return pytest.fail, ("a file was executed",)

    path = tmp_path / "draws.nc"
    draws.to_netcdf(path)
    whole = path.read_bytes()
    content = {"half": whole[: len(whole) // 2], "text": b"hello", "pickle": pickle.dumps(Code())}
    path.write_bytes(content[what])
    with pytest.raises(ValueError, match=r"draws.nc can't be read: .*sample again"):
        vsgp.open_draws(path)


@pytest.mark.slow
def test_refusals(moved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing at .*Pass the path"):
        vsgp.open_draws(tmp_path / "missing.zarr")
    with pytest.raises(TypeError, match="path is None. Pass the path"):
        vsgp.open_draws(None)
    idata, _ = moved
    idata.drop_nodes("posterior").to_zarr(tmp_path / "empty.zarr", consolidated=False)
    with pytest.raises(ValueError, match="no posterior.*Pass the path of draws"):
        vsgp.open_draws(tmp_path / "empty.zarr")
    with pytest.raises(ValueError, match="Only nutpie writes draws.*Drop store"):
        vsgp.sample(store=tmp_path / "x.zarr", nuts_sampler="pymc", model=build(), **quiet)


def test_numbers_of_the_model_that_are_not_finite_are_draws(tmp_path):
    """What was not written is NaN, and so may be what a model computes."""
    dims = ("chain", "draw")
    written = np.where(np.arange(6) < np.array([[6], [5]]), 1.0, np.nan)
    posterior = {"a_log__": (dims, written), "a": (dims, np.exp(written))}
    posterior["borders"] = ((*dims, "cut"), np.stack([-np.inf * written, written], axis=-1))
    posterior["root"] = (dims, np.full((2, 6), np.nan))
    stored = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(posterior),
            "sample_stats": xr.Dataset({"step_size": (dims, written)}),
        }
    )
    found = _of_nutpie(stored, tmp_path)["posterior"]
    assert dict(found.sizes) == {"chain": 2, "draw": 5, "cut": 2}
    assert set(found.data_vars) == {"a", "borders", "root"}
    stored["sample_stats"] = xr.DataTree(xr.Dataset({"step_size": (dims, np.nan * written)}))
    with pytest.raises(ValueError, match="No draw after tuning has been written"):
        _of_nutpie(stored, tmp_path)


def test_a_full_disk_loses_no_draws_that_are_there(monkeypatch, tmp_path, caplog):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(xr.DataTree, "to_zarr", fail)
    write(xr.DataTree(), tmp_path / "draws.zarr")
    assert "draws.zarr: No space left on device. They are returned" in caplog.text


def test_draws_beside_those_of_another_run_are_not_lost(tmp_path, caplog):
    """As of two runs that began while there was nothing at their store."""
    tree = xr.DataTree(xr.Dataset({"a": ("draw", np.zeros(3))}))
    write(tree, tmp_path / "draws.zarr")
    assert not caplog.text
    write(tree, tmp_path / "draws.zarr")
    assert "draws.zarr: another run has written there. They are returned" in caplog.text


def test_data_that_do_not_fit_on_a_disk_say_so(tmp_path, monkeypatch):
    """Of NUTS, which writes them before there is a draw: zarr has a traceback of its own."""
    pytest.importorskip("nutpie", reason="nutpie is not installed")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(xr.DataTree, "to_zarr", fail)
    model, settings = build(), {"draws": 5, "tune": 5, "chains": 1, "random_seed": 1}
    with pytest.raises(OSError, match=r"can't be written to .*: No space left on device\. Make"):
        sample_to_disk(
            tmp_path / "a", model, model, xr.Dataset(), progressbar=False, nuts={}, **settings
        )


@pytest.mark.parametrize(("method", "missing"), [("importance", "zarr"), ("nuts", "obstore")])
def test_packages_are_looked_for_before_the_work(
    method, missing, monkeypatch, tmp_path, default_mode
):
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == missing else found(name, *_)
    )
    monkeypatch.setattr("pymc_vsgp.fit.sampling.fit_gaussian", None)  # which would be the work
    with pytest.raises(ImportError, match=f"takes {missing}. Run pip install {missing}."):
        vsgp.sample(store=tmp_path / "draws", method=method, model=build(), progressbar=False)
