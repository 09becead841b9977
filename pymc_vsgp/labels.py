"""Dims of variables, and labels of rows: these are in the same order wherever rows go together."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

import pandas as pd
import pymc as pm
import xarray as xr

from pytensor.graph.basic import Variable

__all__ = [
    "all_labels",
    "check_order",
    "coord_labels",
    "differ_in_order",
    "dims_of",
    "output_labels",
    "own_dims",
    "row_labels",
]


def dims_of(model: pm.Model, value: Any) -> tuple[str | None, ...] | None:
    """Return the dims of a variable of the model: the name of anything else tells nothing."""
    return model.named_vars_to_dims.get(value.name) if isinstance(value, Variable) else None


def own_dims(model: pm.Model, value: Any) -> tuple[Any, ...]:
    """Return the dims of a variable of the model, of a DataArray, or of a tensor made of one."""
    if isinstance(value, xr.DataArray):
        return value.dims
    return getattr(getattr(value, "tag", None), "dims", None) or dims_of(model, value) or ()


def row_labels(value: Any) -> pd.Index | None:
    """Return the labels of the rows of a table, a series or a DataArray, if it has such."""
    if isinstance(value, pd.Index):
        return value
    if isinstance(value, pd.DataFrame | pd.Series):
        return value.index
    if isinstance(value, xr.DataArray) and value.ndim:
        return value.indexes.get(value.dims[0])
    return getattr(getattr(value, "tag", None), "labels", None)


def all_labels(value: Any) -> dict[Any, pd.Index]:
    """Return labels by dims; those of columns, or of a series, without a dim."""
    if isinstance(value, pd.DataFrame | pd.Series):
        return {None: value.columns if isinstance(value, pd.DataFrame) else value.index}
    if isinstance(value, xr.DataArray):
        return dict(value.indexes)
    return getattr(getattr(value, "tag", None), "all_labels", {})


def output_labels(value: Any, dim: str | None) -> pd.Index | None:
    """Return the labels of several outputs: columns of a table, or entries along their dim."""
    if isinstance(value, pd.Index):
        return value
    known = all_labels(value)
    return known.get(None, known.get(dim))


def coord_labels(coords: Mapping[str, Any], dims: Any) -> pd.Index | None:
    """Return the coords of the first of `dims`, unless they are mere numbers of rows."""
    first = dims[0] if isinstance(dims, list | tuple) and dims else dims
    labels = coords.get(first) if isinstance(first, str) else None
    if labels is None or list(labels) == list(range(len(labels))):
        return None
    return pd.Index(labels)


def check_order(labels: Iterable[tuple[str, pd.Index | None]], what: str = "Rows") -> None:
    """Raise ValueError where two have the same labels of rows, in different orders."""
    known = [(name, index) for name, index in labels if index is not None]
    for (first, one), (second, other) in combinations(known, 2):
        if differ_in_order(one, other):
            raise ValueError(
                f"{what} of {second} have the labels of {first} in another order. "
                f"Sort both alike, or pass arrays whose {what.lower()} go together."
            )


def differ_in_order(one: pd.Index, other: pd.Index) -> bool:
    """Whether two have the same labels, in different orders."""
    if len(one) != len(other) or one.nlevels != other.nlevels or one.equals(other):
        return False
    return not len(one.symmetric_difference(other, sort=False))
