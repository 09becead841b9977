"""The free-form stage: importance weights, or PyMC's NUTS, from the Gaussian stage."""

import importlib.util
import logging
import os
import time

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc.model.core import Model
from pytensor.compile.mode import get_mode
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from threadpoolctl import threadpool_limits

from pymc_vsgp.checks import check_mode, check_number, check_real, model_of
from pymc_vsgp.engine.sharded import generator, mesh_of, together
from pymc_vsgp.fit import store as disk
from pymc_vsgp.fit.arguments import check_kwargs
from pymc_vsgp.fit.backend import asked_for, at_once, choose, takes_long, warn_of_file
from pymc_vsgp.fit.collapsed import Collapsed, can_collapse
from pymc_vsgp.fit.collapsed import collapse as collapse_model
from pymc_vsgp.fit.convergence import warn_of_convergence
from pymc_vsgp.fit.gaussian import Fitter, fit_gaussian, fits
from pymc_vsgp.fit.importance import weigh
from pymc_vsgp.fit.initial import of_target, starts_of_chains
from pymc_vsgp.fit.spread import for_devices, on_rows_of, spread
from pymc_vsgp.fit.stage import GaussianStage, add_data, dataset_of, insist
from pymc_vsgp.fit.starts import all_of, search
from pymc_vsgp.fit.turns import for_nuts
from pymc_vsgp.fit.walk import disagreement, draws_of
from pymc_vsgp.fit.weigher import Weigher
from pymc_vsgp.model.data import check_data
from pymc_vsgp.model.places import checksums
from pymc_vsgp.model.variable import inducing_variables, is_sparse

# Inducing values at all proposals, up to which they are drawn while these are weighed.
DRAWN = 3_000_000

FEW = 25  # numbers that are sampled, up to which a few divergences cost more than smaller steps
SEARCHES = 2  # for other optima, where weights are refused

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

# Those that choose no method.
EITHER = {"quiet", "cores", "blas_cores", "compute_convergence_checks", "var_names"}
METHODS = ("auto", "importance", "nuts")

# Settings of nutpie that say how it finds its metric.
METRICS = {
    "adaptation",
    "low_rank_modified_mass_matrix",
    "transform_adapt",
    "use_grad_based_mass_matrix",
}
SAMPLERS = ["nutpie", "pymc", "numpyro", "blackjax"]
# Those that are about the model that is sampled, inducing values included.
WHOLE_ONLY = {"step", "trace", "callback", "return_inferencedata", "idata_kwargs"}


def sample(
    draws: int = 1000,
    *,
    stage: GaussianStage | None = None,
    method: str = "auto",
    tune: int = 500,
    chains: int = 4,
    random_seed=None,
    nuts_sampler: str | None = None,
    progressbar: bool = True,
    target_accept: float | None = None,
    collapse: bool | None = None,
    fit_kwargs: dict[str, Any] | None = None,
    store: str | os.PathLike | None = None,
    devices: Sequence[Any] | None = None,
    model: Model | None = None,
    **kwargs,
) -> xr.DataTree:
    """
    Sample the posterior of the sparse model.

    A Gaussian stage comes first. By default the draws then come from importance sampling. NUTS
    takes over where the weights are not good enough. It moves in coordinates in which the
    posterior is close to a standard normal, so it needs little tuning. The stage sets these
    coordinates in the model.

    Parameters
    ----------
    draws, tune, chains : int
        Draws and tuning draws of each chain, and number of chains. `tune` is for NUTS alone, and
        500 are enough in the stage's coordinates.
    stage : GaussianStage, optional
        Result of :func:`fit_gaussian`. By default it is run first.
    method : {"auto", "importance", "nuts"}
        "importance" draws proposals from the Gaussian stage and weights them by the posterior
        density of the sparse model, which takes seconds. "auto" tries that. It takes NUTS if the
        weights are not good enough, or if you pass `store` or settings of NUTS.
    random_seed : int, sequence of int, Generator or RandomState, optional
        As in ``pm.sample``; the starts follow from it, too.
    nuts_sampler : {"nutpie", "pymc", "numpyro", "blackjax"}, optional
        By default nutpie if it is installed, else PyMC's own.
    progressbar : bool
        Whether to show progress.
    target_accept : float, optional
        Acceptance that the step size is tuned to. By default 0.9, and 0.8 where more than 25
        numbers are sampled: in so many dimensions smaller steps cost more than they give.
    collapse : bool, optional
        Whether to integrate the inducing values out, sample the parameters alone, and draw the
        inducing values afterwards from their exact conditional. By default wherever that is
        possible: one process, normal noise, and nutpie or PyMC's sampler.
    fit_kwargs : dict, optional
        Passed to :func:`fit_gaussian` where it is run here.
    store : str or path-like, optional
        Folder that draws are written to as they are drawn, so that a run that is killed loses
        nothing: :func:`open_draws` reads it. Takes nutpie, zarr and obstore.
    devices : sequence of jax.Device, array of them, or jax.sharding.Mesh, optional
        Devices of JAX to spread the rows of the data over, such as ``jax.devices()``, for the
        stage, the proposals and nutpie. Each row of a table of devices, or of a mesh with the axes
        "draws" and "rows", has all data, and takes its part of the proposals and chains. Inducing
        values are not integrated out then. In several processes each model has its own rows, and
        chains take turns: see :func:`local_rows`.
    model : Model, optional
        By default the model on the context stack.
    **kwargs
        Passed to ``pm.sample``, for example ``cores``, ``backend``, ``init``, ``initvals`` or
        ``nuts``. ``blas_cores`` is the number of BLAS threads of the process, one by default.
        With ``step``, ``trace``, ``callback``, ``idata_kwargs`` or ``return_inferencedata`` the
        inducing values are not integrated out. With `store`, sampling takes fewer of them.

    Returns
    -------
    DataTree
        What ``pm.sample`` returns, with the group ``gaussian_stage``: ELBO, inducing inputs and
        sites.
    """
    model = model_of(model)
    if isinstance(draws, GaussianStage):
        raise TypeError("draws is a GaussianStage, not a number. Pass it as sample(stage=...).")
    if method not in METHODS:
        raise ValueError(f"There is no method {method!r}. Choose one of {list(METHODS)}.")
    # None is the default of pm.sample, but for threads of BLAS: as many as there are.
    kwargs = {k: v for k, v in kwargs.items() if v is not None or k == "blas_cores"}
    asked = {"nuts_sampler": nuts_sampler, "target_accept": target_accept, **kwargs}
    of_nuts = [k for k, v in asked.items() if v is not None and k not in EITHER]
    if method == "importance" and of_nuts:
        raise ValueError(
            f"{of_nuts} are settings of NUTS, and the method is 'importance'. Drop one of them."
        )
    of_nuts += ["store"] if store is not None else []
    if method == "auto" and of_nuts:
        method = "nuts"
        _log.info("NUTS draws, as you passed %s", ", ".join(of_nuts))
    if stage is not None and not isinstance(stage, GaussianStage):
        raise TypeError(
            f"stage is of type {type(stage).__name__}, not a GaussianStage. "
            "Pass the result of fit_gaussian."
        )
    if stage is not None and stage.model is not model:
        raise ValueError(
            "The stage was fitted to another model. Run fit_gaussian in the context of this one."
        )
    if target_accept is not None:
        check_real("target_accept", target_accept, 0.0, 1.0)
    if nuts_sampler not in (None, *SAMPLERS):
        raise ValueError(f"There is no sampler {nuts_sampler!r}. Choose one of {SAMPLERS}.")
    tune, chains = 500 if tune is None else tune, 4 if chains is None else chains
    check_kwargs(kwargs, fit_kwargs, model, stage, target_accept, store)
    check_mode(asked_for(kwargs))
    nuts_sampler = nuts_sampler or _default_sampler(kwargs)
    if store is not None:
        disk.check_new(store)
        if method == "nuts" and nuts_sampler != "nutpie":
            raise ValueError(
                f"Only nutpie writes draws as they are drawn, and the sampler is {nuts_sampler}. "
                "Drop store, and save the draws with idata.to_zarr."
            )
        disk.check_packages("zarr", *(["nutpie", "obstore"] if method == "nuts" else []))
    mesh = None
    if devices is not None:
        mesh = mesh_of(devices)
        kwargs |= for_devices(mesh, kwargs, nuts_sampler, collapse)
        fit_kwargs, collapse = {"devices": devices, **(fit_kwargs or {})}, False
        disk.check_stores(store, mesh)
    check_number("draws", draws)
    check_number("chains", chains)
    # nutpie panics without a step to tune in, and blackjax fails.
    least = int(nuts_sampler in ("nutpie", "blackjax") and method != "importance")
    check_number("tune", tune, least)
    rng = generator(mesh, random_seed)
    if kwargs.get("quiet"):
        progressbar = False
    warns = kwargs.get("compute_convergence_checks", True) and not kwargs.get("quiet")
    if stage is None:
        settings = {"progressbar": progressbar, "random_seed": rng, **(fit_kwargs or {})}
        stage = fit_gaussian(model=model, **settings)
        if stage.interrupted:
            raise KeyboardInterrupt("In the Gaussian stage.")
    else:
        check_data(model)
        if not fits(stage, model):
            raise ValueError(
                "The stage has other variables than the model has now, or other sizes of them. "
                "Run fit_gaussian again."
            )
    stage.apply()
    starts, refused = stage, ""
    if method != "nuts":
        with together(mesh):
            how: dict[str, Any] = {"give_up": method == "auto", "progressbar": progressbar}
            if method == "auto":
                how["walk"] = lambda m: takes_long(model, m is not model, (draws + tune) * chains)
            found = _by_importance(stage, draws, chains, collapse, store, rng, mesh, how)
        if isinstance(found, xr.DataTree):
            if warns and not found["posterior"].attrs["refused"]:
                warn_of_convergence(found, model, tuned=False)
            return _picked(found, kwargs.get("var_names"))
        if found is not None:
            stage, starts, refused = found.stage, found.better, found.refused
    stage, starts = for_nuts(stage), for_nuts(starts)
    stage.apply()
    # The gradient of the collapsed density is PyTensor's; these two samplers take JAX's own.
    whole_only = sorted(WHOLE_ONLY & set(kwargs))
    # Without parameters nothing would be left to sample.
    possible = nuts_sampler in ("nutpie", "pymc") and len(model.free_RVs) > 1
    possible = possible and can_collapse(model)
    if collapse and (whole_only or not possible):
        raise _no_collapse(f"{whole_only} are of the whole model" if whole_only else None)
    possible = possible and not whole_only
    whole: Collapsed | None = collapse_model(model) if possible and collapse is not False else None
    target = model if whole is None else whole.model
    if mesh is not None:
        target = spread(model, mesh)
    choice = None
    warn_of_file(target, nuts_sampler, kwargs)
    if nuts_sampler in ("nutpie", "pymc") and not {"backend", "compile_kwargs"} & set(kwargs):
        choice = choose(model, target, whole is not None, nuts_sampler, (draws + tune) * chains)
        kwargs["backend"] = choice.backend
        _log.info("%s", choice)
    if kwargs.get("initvals") is None:
        compile_kwargs = kwargs.get("compile_kwargs")
        kwargs |= starts_of_chains(target, starts, chains, nuts_sampler, rng, compile_kwargs)
        if nuts_sampler == "pymc":  # no jitter of starts that are dispersed already
            kwargs.setdefault("init", "adapt_diag")
    elif whole is not None:
        kwargs["initvals"] = of_target(kwargs["initvals"], target)
    # The inducing values are drawn from all that was sampled, so names are picked in the end.
    var_names = kwargs.pop("var_names", None) if whole is not None else None
    nuts = dict(kwargs.pop("nuts", None) or {})
    if target_accept is not None:
        nuts["target_accept"] = target_accept
    elif "step" not in kwargs:
        sampled = [
            *stage.theta_unconstrained.values(),
            *(stage.mean.values() if whole is None else ()),
        ]
        nuts.setdefault("target_accept", 0.9 if sum(map(np.size, sampled)) <= FEW else 0.8)
    many = any(sites.root.ndim == 2 or sites.rotated for sites in stage.sites.values())
    if nuts_sampler == "nutpie" and not (many or METRICS & set(nuts)):
        # The stage has functions that share data independent. Classes tell their differences alone.
        nuts["adaptation"] = "low_rank"
    if nuts_sampler == "nutpie" and kwargs.get("backend") == "numba":
        kwargs.setdefault("cores", at_once(chains))
    # Its pmap takes no more chains than there are devices.
    if nuts_sampler == "blackjax" and import_module("jax").local_device_count() < chains:
        nuts.setdefault("chain_method", "vectorized")
    # Chains fill the cores: threads of BLAS on top of them wait for one another.
    blas = kwargs.get("blas_cores", "auto")
    began = time.perf_counter()
    callables = nullcontext()
    if nuts_sampler == "nutpie":
        callables = import_module("pymc_vsgp.fit.callables").lean_callables()  # loads numba
    with (
        together(mesh, store),
        threadpool_limits(1 if blas == "auto" else blas, user_api="blas"),
        target,
        callables,
        on_rows_of(mesh),
    ):
        if store is not None:
            kwargs |= {"draws": draws, "tune": tune, "chains": chains, "nuts": nuts}
            kwargs |= {"progressbar": bool(progressbar), "random_seed": int(rng.integers(2**31))}
            for name in ("blas_cores", "quiet"):
                kwargs.pop(name, None)
            # What is integrated out is not written: with this it is drawn again, the same.
            rng = np.random.default_rng(seed := int(rng.integers(2**31)))
            found = dataset_of(stage).assign_attrs(inducing_seed=seed)
            idata = disk.sample_to_disk(store, model, target, found, **kwargs)
        else:
            idata = pm.sample(
                draws=draws,
                tune=tune,
                chains=chains,
                random_seed=int(rng.integers(2**31)),
                nuts_sampler=nuts_sampler,
                progressbar=progressbar,
                **({"nuts": nuts} if nuts else {}),
                **kwargs,
            )
    total = time.perf_counter() - began
    if not isinstance(idata, xr.DataTree):
        return idata
    if nuts_sampler == "nutpie" and store is None:
        disk.keep_written(idata)
    if nuts_sampler == "nutpie" and warns:  # PyMC does after the others
        warn_of_convergence(idata, target)
    attrs = idata["posterior"].attrs
    kept = idata["posterior"].sizes["draw"]
    attrs |= {"method": "nuts", "refused": refused, "interrupted": int(kept < draws)}
    attrs |= checksums(model)
    if kept < draws:
        _say_interrupted(idata)
    attrs["compile_time"] = max(total - float(attrs.get("sampling_time", np.nan)), 0.0)
    if choice is not None and nuts_sampler == "nutpie":  # others do more than compile
        choice.remember(attrs["compile_time"])
    if whole is not None:
        insist(disk.complete, idata, model, whole, rng)
    if mesh is not None:
        add_data(idata, model)
    idata["gaussian_stage"] = xr.DataTree(dataset_of(stage))
    return _picked(idata, var_names)


def _picked(idata: xr.DataTree, var_names) -> xr.DataTree:
    """Return draws of these variables alone, if there are names."""
    if var_names is not None:
        idata["posterior"] = xr.DataTree(idata["posterior"].to_dataset()[list(var_names)])
    return idata


def _by_importance(stage, draws, chains, collapse, store, rng, mesh, how):
    """Return draws by importance weights; where they do not prove to be good, the weights.

    None where the density of many points can't be computed at once.
    """
    model = stage.model
    possible = can_collapse(model)
    if collapse and not possible:
        raise _no_collapse()
    whole = collapse_model(model, False) if collapse is not False and possible else None
    target = model if whole is None else whole.model
    fitter: Fitter | None = None
    with threadpool_limits(1, user_api="blas"):
        try:
            joint = whole is not None and _drawn_with(whole, model, draws * chains)
            weigher = Weigher(target, mesh, whole if joint else None)
        except NotImplementedError as error:
            if not how["give_up"]:
                raise NotImplementedError(f"{error} Use method='nuts'.") from error
            _log.info("importance: %s NUTS takes over", error)
            return None
        for left in reversed(range(SEARCHES + 1)):
            found = weigh(stage, weigher, draws * chains, rng, **how)
            if found.interrupted and len(found.log_weight) < chains * found.thin:
                raise KeyboardInterrupt("Before each chain had a draw.")
            stays = not how["give_up"] or found.interrupted
            if stays or not found.refused:
                idata = insist(draws_of, found, model, whole, chains, rng)
                found = replace(found, refused=found.refused or disagreement(idata, found))
            natural = stage.method == "natural" and mesh is None
            if not (left and natural and found.may_be_elsewhere):
                break
            fitter = fitter or Fitter(model)
            other = search(stage, found.highest, fitter, rng, how["progressbar"])
            if other is None:
                break
            levels = " and ".join(f"{s.elbo:.2f}" for s in all_of(other))
            _log.info("%s. Another start ended at ELBO %s: proposing from there", found, levels)
            stage = other
            stage.apply()
        if found.refused and not stays:
            _log.info("%s: NUTS takes over", found)
            return found
    _log.info("%s", found)
    if found.interrupted:
        _say_interrupted(idata)
    if found.refused:
        _log.warning("The draws are not to be trusted: %s. Use method='nuts'.", found.refused)
    idata["posterior"].attrs |= found.attrs | checksums(model)
    idata["sample_stats"].attrs |= found.attrs
    idata["gaussian_stage"] = xr.DataTree(dataset_of(found.stage))
    if store is not None:
        disk.write(idata, store)
    return idata


def _drawn_with(whole: Collapsed, model: Model, n: int) -> bool:
    """Whether inducing values are drawn while n of theta are weighed, in the same pass.

    Those given neighbors take several times as long as a weight, and share nothing with it.
    """
    few = whole.noise.type.shape[0] * n < DRAWN
    return few and not any(map(is_sparse, inducing_variables(model)))


def _say_interrupted(idata) -> None:
    kept = idata["posterior"].sizes["draw"]
    _log.warning("Interrupted: %d draws of each chain are kept.", kept)


def _no_collapse(why: str | None = None) -> ValueError:
    why = why or (
        "that takes one process that is seen by vsgp.Gaussian alone, parameters beside it, and "
        "nutpie or PyMC's sampler"
    )
    return ValueError(f"The inducing values don't integrate out: {why}. Drop collapse=True.")


def _default_sampler(kwargs) -> str:
    """Nutpie where it is installed and nothing asked for rules it out, as PyMC itself decides."""
    rules_out = {"step", "callback", "trace", "init", "return_inferencedata"} & set(kwargs)
    linker = get_mode(asked_for(kwargs)).linker
    fits = isinstance(linker, NumbaLinker | JAXLinker)
    fits = fits and isinstance(kwargs.get("initvals"), dict | None)
    if importlib.util.find_spec("nutpie") and fits and not rules_out:
        return "nutpie"
    return "pymc"
