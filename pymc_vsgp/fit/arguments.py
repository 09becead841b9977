"""Arguments of `sample` that are passed on."""

import inspect
import warnings

import pymc as pm

from pymc.step_methods import STEP_METHODS
from pymc.step_methods.hmc.base_hmc import BaseHMC

from pymc_vsgp.checks import check_number, kind
from pymc_vsgp.fit.initial import check_initvals

__all__ = ["check_kwargs"]

# Arguments of pm.sample, which takes those of its step methods too, without a look at them.
KNOWN = {m.name for m in STEP_METHODS}.union(
    *(inspect.signature(f).parameters for f in (pm.sample, pm.NUTS, BaseHMC))
) - {"self", "args", "kwargs", "vars"}
DICTS = {"compile_kwargs", "fit_kwargs", "idata_kwargs", "nuts"}
# Those that nutpie can use while it writes to disk.
TO_DISK = {
    "backend",
    "blas_cores",
    "compile_kwargs",
    "cores",
    "discard_tuned_samples",
    "initvals",
    "nuts",
    "quiet",
}


def check_kwargs(kwargs, fit_kwargs, model, stage, target_accept, store) -> None:
    """Refuse by name what can't be passed on."""
    for name, given in {"fit_kwargs": fit_kwargs, **kwargs}.items():
        if name in DICTS and not isinstance(given, dict | None):
            raise TypeError(f"{name} is {kind(given)}. Pass a dict, or drop it.")
    if "step" in kwargs and stage is None:
        raise ValueError(
            "step was built before the Gaussian stage set the sampler's coordinates. "
            "Run fit_gaussian first, then build the step, and pass both."
        )
    if fit_kwargs and stage is not None:
        raise ValueError(
            "fit_kwargs is for a Gaussian stage that is run here, and stage is given. Drop one."
        )
    if taken := sorted({"copy", "model"} & set(fit_kwargs or ())):
        raise ValueError(
            f"fit_kwargs has {taken}, and the stage is of the model that is sampled. Drop them."
        )
    if unknown := sorted(set(kwargs) - KNOWN):
        raise TypeError(
            f"Neither sample nor pm.sample takes {unknown}. "
            "Check the spelling; settings of the sampler go into nuts={...}."
        )
    if kwargs.get("idata_kwargs", {}).get("log_likelihood"):
        warnings.warn(
            "az.loo of this log likelihood is pessimistic: it holds E[log p(y | f)]. "
            "Use vsgp.compute_log_likelihood(idata).",
            UserWarning,
            stacklevel=3,
        )
    if "nuts_sampler_kwargs" in kwargs:
        raise TypeError("sample doesn't take nuts_sampler_kwargs. Pass nuts={...} instead.")
    if target_accept is not None and "target_accept" in kwargs.get("nuts", {}):
        raise ValueError(
            "target_accept is given twice. Pass it to sample, or in nuts={...}, but not both."
        )
    if "cores" in kwargs:
        check_number("cores", kwargs["cores"])
    names = kwargs.get("var_names")
    known = [v.name for v in model.unobserved_RVs]
    if names is not None and (isinstance(names, str) or not all(n in known for n in names)):
        raise ValueError(f"var_names is {names!r}. Pass a list of names, of {known}.")
    check_initvals(kwargs.get("initvals"), model)
    refused = sorted(set(kwargs) - TO_DISK) if store is not None else []
    if refused:
        raise TypeError(
            f"sample doesn't take {refused} together with store, as nutpie then writes the draws "
            "on its own. Drop them, or drop store and save the draws with idata.to_zarr."
        )
