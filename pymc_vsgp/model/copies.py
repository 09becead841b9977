"""Copies of a model whose variables may have initial values, which PyMC refuses to copy."""

import warnings

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import xarray as xr

from pymc.backends.arviz import find_constants, find_observations
from pymc.exceptions import ShapeError, ShapeWarning
from pymc.model.core import Model
from pymc.model.fgraph import clone_model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import Elemwise

__all__ = ["as_sampled", "copy_of", "without_initial_values"]


@contextmanager
def without_initial_values(model: Model) -> Iterator[None]:
    """Context in which a model has no initial values."""
    known = dict(model.rvs_to_initial_values)
    model.rvs_to_initial_values.update(dict.fromkeys(known))
    try:
        yield
    finally:
        model.rvs_to_initial_values.update(known)


def copy_of(model: Model) -> Model:
    """Return a copy of a model, with its initial values."""
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
    changed: dict[str, xr.DataArray] = {}
    for name, now in find_observations(model).items():
        if name in groups and not _same(groups[name], now):
            changed[_data_of(model.rvs_to_values[model[name]]) or name] = groups[name]
    for name, now in find_constants(model).items():
        if name in groups and name not in but and not _same(groups[name], now):
            changed[name] = groups[name]
    if not changed:
        return model
    new = copy_of(model)
    for name, array in changed.items():
        dims = [d for d in array.dims if d in array.coords and new.coords.get(str(d)) is not None]
        coords = {str(d): array[d].values for d in dims}
        try:
            with warnings.catch_warnings(action="ignore", category=ShapeWarning):
                new.set_data(name, array.values.astype(new[name].type.dtype), coords)
        except (KeyError, TypeError, ValueError, ShapeError):
            raise ValueError(
                f"The model has other values of {array.name!r} than its draws were made with, and "
                "they can't be set. Build the model with the data of the draws."
            ) from None
    return new


def _same(kept: xr.DataArray, now: np.ndarray) -> bool:
    return np.array_equal(kept.values, now, equal_nan=kept.dtype.kind == "f")


def _data_of(value: Variable) -> str | None:
    """Return the name of the data that observations are, if they can be set."""
    if value.owner is not None and isinstance(value.owner.op, Elemwise):  # of another dtype
        (value, *_) = value.owner.inputs
    return value.name if isinstance(value, SharedVariable) else None
