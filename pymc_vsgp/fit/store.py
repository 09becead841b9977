"""Draws on disk: written while they are drawn, and read back, of a run that was killed too."""

import importlib.util
import logging
import os
import platform
import re
import time
import warnings

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pymc.backends.arviz import find_observations
from pymc.model.core import Model
from pymc.pytensorf import resolve_backend_compile_kwargs
from pytensor.compile.mode import get_mode
from pytensor.link.jax.linker import JAXLinker

from pymc_vsgp.checks import generator_of
from pymc_vsgp.engine.sharded import gathered
from pymc_vsgp.fit.checkpoint import as_path
from pymc_vsgp.fit.collapsed import Collapsed, can_collapse, collapse, recover, with_inducing
from pymc_vsgp.fit.sites import sites_of_all
from pymc_vsgp.fit.stage import add_data, label
from pymc_vsgp.model.copies import as_sampled, without_later
from pymc_vsgp.model.variable import inducing_variables

DATA = ("constant_data", "observed_data", "gaussian_stage")
FOLDER: dict[str, Any] = {"engine": "zarr", "consolidated": False}
POSTERIOR = ("posterior", "warmup_posterior")

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler


def open_draws(
    path: str | os.PathLike,
    *,
    random_seed: int | np.random.Generator | None = None,
    model: Model | None = None,
) -> xr.DataTree:
    """
    Open draws that were saved, or that :func:`sample` wrote to its `store`.

    If the run was killed, you get the draws up to then. Chains are then of different lengths, and
    as many draws are kept as a rectangle of chains and draws can hold.

    Parameters
    ----------
    path : str or path-like
        File of ``idata.to_netcdf``, or folder of ``idata.to_zarr`` or of ``sample(store=...)``.
    random_seed : int or Generator, optional
        Seed of the inducing values, where those were integrated out: they are not in the store,
        and are drawn from their exact conditional. By default that of the run.
    model : Model, optional
        Only needed in that case, and left as it is: the data are those that were kept with the
        draws. By default the model on the context stack, if there is one.

    Returns
    -------
    DataTree

    Examples
    --------
    .. code-block:: python

        idata = vsgp.open_draws("draws.zarr")
        vsgp.predict(idata, Xnew, "mean", model=build(X, y))
    """
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is nothing at {path}. Pass the path that was saved to.")
    try:
        tree = xr.open_datatree(path, **(FOLDER if path.is_dir() else {}))
    except Exception as error:  # xarray, zarr, h5py and json have their own
        raise _damaged(path, error) from error
    if "posterior" not in tree.children:
        raise ValueError(
            f"{path} has the groups {list(tree.children)}, but no posterior. "
            "Pass the path of draws, or wait until the sampler has begun."
        )
    if tree.attrs.get("sampler") == "nuts-rs":
        try:
            tree = _of_nutpie(tree, path)
        except (KeyError, OSError, RuntimeError) as error:
            raise _damaged(path, error) from error
    _look_for_gaps(tree["posterior"].to_dataset(), path)
    if model is None:
        model = Model.get_context(error_if_none=False)
    if model is not None and _lacks_inducing(tree, model):
        # Others that depend on them, such as those of `conditional`, would keep them.
        inducing = {u.name for u in inducing_variables(model)}
        model = without_later(model, inducing | set(tree["posterior"].data_vars))
    if model is not None and _lacks_inducing(tree, model) and can_collapse(model):
        if random_seed is None and "gaussian_stage" in tree.children:
            random_seed = tree["gaussian_stage"].attrs.get("inducing_seed")
        kept = (tree[g].to_dataset() for g in DATA[:2] if g in tree.children)
        model = as_sampled(model, *kept, but=sites_of_all(model))
        whole = collapse(model)
        if not whole.missing(tree["posterior"], list(whole.draws.values())):
            complete(tree, model, whole, generator_of(random_seed))
    return tree


def _look_for_gaps(posterior: xr.Dataset, path: Path) -> None:
    """Read all draws once, and warn of NaN: zarr fills what a lost file held with it."""
    for name, v in posterior.data_vars.items():
        try:
            n = int(np.isnan(v.values).sum()) if v.dtype.kind == "f" else 0
        except Exception as error:
            raise _damaged(path, error) from error
        if n:
            warnings.warn(
                f"{n} of {v.size} numbers of {name} in {path} are NaN. "
                "If the model does not give them, files were lost: sample again.",
                stacklevel=3,
            )


def _damaged(path: Path, error: Exception) -> ValueError:
    lines = str(error).splitlines() or [type(error).__name__]
    reason = lines[0].partition(". ")[0].rstrip(".")
    return ValueError(
        f"{path} can't be read: {reason}. "
        "Pass a path of draws; if it is one, files are damaged: sample again."
    )


def sample_to_disk(
    path: str | os.PathLike,
    model: Model,
    target: Model,
    stage: xr.Dataset,
    *,
    draws: int,
    tune: int,
    chains: int,
    random_seed: int,
    progressbar: bool,
    nuts: dict[str, Any],
    backend: str | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    cores: int | None = None,
    discard_tuned_samples: bool = True,
    initvals: dict[str, Any] | None = None,
) -> xr.DataTree:
    """Sample with nutpie into a zarr store, draws being written as they are drawn.

    What is sampled is `target`: the model, or that without its inducing values. The data come
    first, so that a run that is killed leaves all that predicting takes. `nuts` is passed to
    ``nutpie.sample``, and all else is as in ``pm.sample``.
    """
    import nutpie

    path = check_new(path)
    tree = xr.DataTree()
    add_data(tree, model)
    tree["gaussian_stage"] = xr.DataTree(stage)
    try:
        tree.to_zarr(path, consolidated=False)
    except OSError as error:
        raise OSError(
            f"Draws can't be written to {path}: {_reason(error)}. "
            "Make room, or pass a path that can be written to."
        ) from error
    settings = resolve_backend_compile_kwargs(backend, compile_kwargs)
    linker = get_mode(settings.pop("mode", None)).linker
    settings.setdefault("backend", "jax" if isinstance(linker, JAXLinker) else "numba")
    if initvals is not None:
        settings.setdefault("initial_points", initvals)
    if "max_treedepth" in nuts:
        nuts = {"maxdepth" if k == "max_treedepth" else k: v for k, v in nuts.items()}
    compiled = nutpie.compile_pymc_model(target, **settings)
    began = time.perf_counter()
    try:
        nutpie.sample(
            compiled,
            draws=draws,
            tune=tune,
            chains=chains,
            cores=cores,
            seed=random_seed,
            save_warmup=not discard_tuned_samples,
            progress_bar=progressbar,
            zarr_store=nutpie.zarr_store.LocalStore(str(path.resolve())),
            **nuts,
        )
    except RuntimeError as error:
        # nutpie ends with the causes and the stack of its own language.
        found = re.search(r"(?m)^\s*\d+: (.*) \(os error \d+\)$", str(error))
        if found is None:
            raise
        raise OSError(
            f"Draws can't be written to {path}: {found[1].rpartition(': ')[2]}. "
            "vsgp.open_draws gives those that were; make room and sample again."
        ) from None
    seconds = time.perf_counter() - began
    tree = xr.open_datatree(path, **FOLDER)
    try:
        tree = _of_nutpie(tree, path, not discard_tuned_samples)
    except (KeyError, ValueError):  # nutpie ends like that where it is interrupted
        raise KeyboardInterrupt("Before there was a draw after tuning.") from None
    tree["posterior"].attrs |= {"sampling_time": seconds, "tuning_steps": tune}
    return tree


def check_new(path: str | os.PathLike) -> Path:
    """Raise FileExistsError if there is something at a path that draws are to go to."""
    path = as_path(path, "store")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} exists, and draws would be mixed with what is there. "
            "Pass a new path, or read that one with vsgp.open_draws."
        )
    return path


def check_packages(*names: str) -> None:
    """Raise ImportError unless there is all that writing draws takes."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"Writing draws to disk takes {name}. Run pip install {name}.")


def write(idata: xr.DataTree, path: str | os.PathLike) -> None:
    """Write draws that are there; warn where that fails, so that they are not lost."""
    try:
        idata.to_zarr(path, consolidated=False)
    except OSError as error:
        _log.warning(
            "Draws can't be written to %s: %s. They are returned: save them elsewhere.",
            path,
            _reason(error),
        )


def _reason(error: OSError) -> str:
    """Say why nothing was written; another run may have come first since the path was checked."""
    if isinstance(error, FileExistsError):
        return "another run has written there"
    return error.strerror or str(error).rstrip(".")


def check_stores(path: str | os.PathLike | None, mesh: Any) -> None:
    """Raise ValueError if several processes would write draws to one path."""
    if path is None:
        return
    text = f"{platform.node()} {Path(path).resolve()}"
    each = gathered(mesh, int.from_bytes(sha256(text.encode()).digest()[:7])).tolist()
    if len({tuple(x) for x in each}) < len(each):
        raise ValueError(
            "Processes of the run would write their draws to the same store. "
            "Give each its own, such as store=f'draws_{jax.process_index()}.zarr'."
        )


def complete(idata: xr.DataTree, model: Model, whole: Collapsed, rng, u=None) -> None:
    """Add what was integrated out, unless it is drawn already, and the data."""
    for group in POSTERIOR:
        if group not in idata.children:
            continue
        theta = idata[group].to_dataset()
        if u is None:
            arrays = recover(whole, theta, int(rng.integers(2**31)))
        else:
            arrays = with_inducing(whole, theta, u)
        arrays |= {name: theta[name].values for name in theta.data_vars}
        names = [v.name for v in model.free_RVs + model.deterministics if v.name in arrays]
        data = label(model, {name: arrays[name] for name in names})
        data = data.assign_coords(chain=theta["chain"], draw=theta["draw"])
        idata[group] = xr.DataTree(data.assign_attrs(theta.attrs))
    idata["observed_data"] = xr.DataTree(label(model, find_observations(model), ()))


def keep_written(idata: xr.DataTree) -> None:
    """Cut what nutpie fills with nan where an interrupt left chains of different lengths."""
    stats = idata["sample_stats"].to_dataset()
    chains, n = _rectangle(_lengths(stats[["step_size"]])) if stats.sizes["draw"] else ([], 0)
    if not n:
        raise KeyboardInterrupt("Before there was a draw after tuning.")
    for group, node in idata.children.items():
        if "chain" in node.sizes:
            kept = node.to_dataset().isel(chain=chains)
            idata[group] = xr.DataTree(
                kept if group.startswith("warmup_") else kept.isel(draw=slice(0, n))
            )


def _lacks_inducing(tree: xr.DataTree, model: Model) -> bool:
    return any(u.name not in tree["posterior"] for u in inducing_variables(model))


def _of_nutpie(stored: xr.DataTree, path: Path, warmup: bool = False) -> xr.DataTree:
    """Give what nutpie wrote the shape of what ``pm.sample`` returns."""
    tree = xr.DataTree()
    for kind in ("", "warmup_") if warmup else ("",):
        kept, stats = (stored[f"{kind}{g}"].to_dataset() for g in ("posterior", "sample_stats"))
        stats = stats[[n for n, v in stats.data_vars.items() if v.dims == ("chain", "draw")]]
        own = [n for n in kept.data_vars if str(n).endswith("__")]
        lengths = _written(stats, kept, own)
        # Values on the sampler's scale are of no use to others, and take as much room again.
        kept = kept.drop_vars(own)
        chains, n = _rectangle(lengths)
        if not n:
            raise ValueError(
                f"No draw after tuning has been written to {path} yet. Wait, or sample again."
            )
        at = {"chain": chains, "draw": slice(0, n)}
        labels = {"chain": chains, "draw": np.arange(n)}
        used = {d for v in kept.data_vars.values() for d in v.dims}
        kept = kept.drop_vars([c for c in kept.coords if c not in used])
        kept, stats = (d.isel(at).assign_coords(labels) for d in (kept, stats))
        kept.attrs["inference_library"] = "nutpie"
        tree[f"{kind}posterior"] = xr.DataTree(kept)
        tree[f"{kind}sample_stats"] = xr.DataTree(stats)
    for group in DATA:
        if group in stored.children:
            tree[group] = xr.DataTree(stored[group].to_dataset())
    return tree


def _written(stats: xr.Dataset, kept: xr.Dataset, own: list) -> np.ndarray:
    """Draws that each chain has of all variables.

    What the sampler moves is always finite. What a model computes of it need not be, and counts
    where it ends with a chunk: a run may be killed between the chunks of two variables.
    """
    lengths = _lengths(xr.merge([stats[["step_size"]], kept[own]]))
    for name, v in kept.drop_vars(own).data_vars.items():
        if chunk := v.encoding.get("preferred_chunks", {}).get("draw"):
            ends = _lengths(kept[[name]])
            whole = (ends > 0) & (ends % chunk == 0)
            lengths = np.where(whole, np.minimum(lengths, ends), lengths)
    return lengths


def _lengths(finite: xr.Dataset) -> np.ndarray:
    """Draws that each chain has: what was not written reads as nan."""
    total = finite.sizes["draw"]
    lengths = np.full(finite.sizes["chain"], total)
    for v in finite.data_vars.values():
        if v.dtype.kind != "f":
            continue
        first = v.isel({d: 0 for d in v.dims if d not in ("chain", "draw")})
        written = np.isfinite(first.transpose("chain", "draw").values)
        last = np.where(written.any(axis=1), total - np.argmax(written[:, ::-1], axis=1), 0)
        lengths = np.minimum(lengths, last)
    return lengths


def _rectangle(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """Chains, and a number of draws that all of them have, with as many draws in all as can be."""
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order] * np.arange(1, len(order) + 1)
    best = len(sizes) - 1 - int(np.argmax(sizes[::-1]))
    return np.sort(order[: best + 1]), int(lengths[order[best]])
