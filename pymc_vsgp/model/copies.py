"""Copies of a model whose variables may have initial values, which PyMC refuses to copy."""

import threading
import warnings

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import xarray as xr

from pymc.backends.arviz import find_constants, find_observations
from pymc.exceptions import ShapeError, ShapeWarning
from pymc.model.core import Model
from pymc.model.fgraph import clone_model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise

from pymc_vsgp.model.observation import processes

__all__ = [
    "as_sampled",
    "copy_of",
    "data_of",
    "forget",
    "same_data",
    "with_data",
    "without_initial_values",
    "without_later",
]


_COPYING = threading.RLock()  # another thread would take the values that are away for the model's


@contextmanager
def without_initial_values(model: Model) -> Iterator[None]:
    """Context in which a model has no initial values."""
    with _COPYING:
        known = dict(model.rvs_to_initial_values)
        model.rvs_to_initial_values.update(dict.fromkeys(known))
        try:
            yield
        finally:
            model.rvs_to_initial_values.update(known)


def copy_of(model: Model) -> Model:
    """Return a copy of a model, with its initial values."""
    if model.root is not model:
        raise ValueError(
            f"The model {model.name!r} is nested in another, and can't be copied alone. "
            "Set its data to what they were, or fit and sample the outer model."
        )
    with without_initial_values(model):
        new = clone_model(model)
    for rv, value in model.rvs_to_initial_values.items():
        new.rvs_to_initial_values[new[rv.name]] = value
    return new


def as_sampled(model: Model, *kept: xr.Dataset, but: Collection[str] = ()) -> Model:
    """Return the model with data that were kept with draws: a copy, where it has others.

    Names in `but` stay as they are.
    """
    groups: dict[str, xr.DataArray] = {str(k): v for group in kept for k, v in group.items()}
    for name, p in processes(model).items():
        own = {f"{name}_{what}" for what in p.conditional.kept}.difference(but)
        if text := p.conditional.other_draws({n: v for n, v in groups.items() if n in own}):
            raise ValueError(text)
    changed: dict[str, xr.DataArray] = {}
    for name, now in find_observations(model).items():
        if name in groups and not same_data(now, groups[name].values):
            changed[_data_of(model.rvs_to_values[model[name]]) or name] = groups[name]
    for name, now in find_constants(model).items():
        if name in groups and name not in but and not same_data(now, groups[name].values):
            changed[name] = groups[name]
    if not changed:
        return model
    new = copy_of(model)
    for name, array in changed.items():
        dims = [d for d in array.dims if d in array.coords and new.coords.get(str(d)) is not None]
        coords = {str(d): array[d].values for d in dims}
        try:
            _set(new, name, array.values.astype(new[name].type.dtype), coords)
        except (KeyError, TypeError, ValueError, ShapeError):
            raise ValueError(
                f"The model has other values of {array.name!r} than its draws were made with, and "
                "they can't be set. Build the model with the data of the draws."
            ) from None
    return new


def without_later(model: Model, known: Collection[str]) -> Model:
    """Return the model with these free variables alone, of which it has draws.

    A copy, where others were added since, as `conditional` and `predictive` do.
    """
    if all(rv.name in known for rv in model.free_RVs):
        return model
    new = copy_of(model)
    later = {rv for rv in new.free_RVs if rv.name not in known}
    for v in (*new.basic_RVs, *new.deterministics, *new.potentials):
        if later & set(ancestors([v])):
            forget(new, v)
    return new


def forget(model: Model, variable: Variable) -> None:
    """Take a variable out of a model."""
    for group in (model.free_RVs, model.observed_RVs, model.deterministics, model.potentials):
        if variable in group:
            group.remove(variable)
    model.named_vars.pop(variable.name)
    model.named_vars_to_dims.pop(variable.name, None)
    value = model.rvs_to_values.pop(variable, None)
    model.values_to_rvs.pop(value, None)
    model.rvs_to_transforms.pop(variable, None)
    model.rvs_to_initial_values.pop(variable, None)


def same_data(value: np.ndarray, kept: np.ndarray) -> bool:
    """Whether data are what was kept of them, in the precision of that."""
    if value is kept:
        return True
    if kept.dtype.kind == "f" and value.dtype.kind == "f":
        value = value.astype(kept.dtype)
    numbers = kept.dtype.kind == value.dtype.kind == "f"
    return np.array_equal(value, kept, equal_nan=numbers)


def data_of(model: Model) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the values of data that can be set, which are no copies, and the coords of a model."""
    shared = [v for v in model.data_vars if isinstance(v, SharedVariable)]
    return {v.name: v.get_value(borrow=True) for v in shared}, dict(model.coords)


def with_data(model: Model, data: dict[str, np.ndarray], coords: dict[str, Any]) -> Model:
    """Return the model with data and coords that it had before: a copy, where it has others now."""
    changed = [n for n, v in data.items() if not same_data(model[n].get_value(borrow=True), v)]
    if not changed and all(model.coords.get(d) == labels for d, labels in coords.items()):
        return model
    new = copy_of(model)
    new._coords.update(coords)
    for name in changed:
        dims = [d for d in new.named_vars_to_dims.get(name, ()) if d is not None]
        labels = {d: coords[d] for d in dims if coords.get(d) is not None}
        _set(new, name, data[name], labels)
    return new


def _set(model: Model, name: str, value: np.ndarray, coords: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="ignore", category=ShapeWarning):
        model.set_data(name, value, coords)


def _data_of(value: Variable) -> str | None:
    """Return the name of the data that observations are, if they can be set."""
    if value.owner is not None and isinstance(value.owner.op, Elemwise):  # of another dtype
        (value, *_) = value.owner.inputs
    return value.name if isinstance(value, SharedVariable) else None
