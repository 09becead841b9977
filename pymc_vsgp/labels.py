"""Dims of variables, and labels of rows: these are in the same order wherever rows go together."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd
import pymc as pm
import xarray as xr

from pytensor.graph.basic import Variable

__all__ = [
    "check_order",
    "check_outputs",
    "coord_labels",
    "differ_in_order",
    "dims_of",
    "labels_of",
    "output_coords",
    "output_labels",
    "own_dims",
    "row_labels",
]


def dims_of(model: pm.Model, value: Any) -> tuple[str | None, ...] | None:
    """Return the dims of a variable of the model: the name of anything else tells nothing."""
    return model.named_vars_to_dims.get(value.name) if isinstance(value, Variable) else None


class Labels(NamedTuple):
    """What a value says of its entries; of a tensor made of it they are in ``tag.labels``."""

    dims: tuple[Any, ...] = ()
    rows: pd.Index | None = None
    along: Mapping[Any, pd.Index] = {}  # by dims; of columns, or of a series, without a dim


def labels_of(value: Any) -> Labels:
    """Return the labels of a table, a series, a DataArray, or a tensor made of one."""
    if isinstance(value, pd.Index):
        return Labels((), value, {None: value})
    if isinstance(value, pd.DataFrame):
        return Labels((), value.index, {None: value.columns})
    if isinstance(value, pd.Series):
        return Labels((), value.index, {None: value.index})
    if isinstance(value, xr.DataArray):
        rows = value.indexes.get(value.dims[0]) if value.ndim else None
        return Labels(value.dims, rows, dict(value.indexes))
    return getattr(getattr(value, "tag", None), "labels", Labels())


def own_dims(model: pm.Model, value: Any) -> tuple[Any, ...]:
    """Return the dims of a variable of the model, of a DataArray, or of a tensor made of one."""
    return labels_of(value).dims or dims_of(model, value) or ()


def row_labels(value: Any) -> pd.Index | None:
    """Return the labels of the rows, if there are any."""
    return labels_of(value).rows


def output_labels(value: Any, dim: str | None) -> pd.Index | None:
    """Return the labels of several outputs: columns of a table, or entries along their dim."""
    known = labels_of(value).along
    return known.get(None, known.get(dim))


def output_coords(value: Any, dim: str) -> Any:
    """Return coords of several outputs, where their labels are names."""
    labels = output_labels(value, dim)
    return None if labels is None or labels.nlevels > 1 or are_counted(labels) else labels


def coord_labels(coords: Mapping[str, Any], dims: Any) -> pd.Index | None:
    """Return the coords of the first of `dims`, unless they are mere numbers of rows."""
    first = dims[0] if isinstance(dims, list | tuple) and dims else dims
    labels = coords.get(first) if isinstance(first, str) else None
    return None if labels is None or are_counted(labels) else pd.Index(labels)


def are_counted(labels: Any) -> bool:
    """Whether labels are 0, 1, ..., as PyMC and pandas have them by default."""
    return list(labels) == list(range(len(labels)))


def check_order(labels: Iterable[tuple[str, pd.Index | None]], what: str = "Rows") -> None:
    """Raise ValueError where two have the same labels of rows, in different orders."""
    known = [(name, index) for name, index in labels if index is not None]
    for (first, one), (second, other) in combinations(known, 2):
        if differ_in_order(one, other):
            raise ValueError(
                f"{what} of {second} have the labels of {first} in another order. "
                f"Sort both alike, or pass arrays whose {what.lower()} go together."
            )


def check_outputs(labels: Iterable[tuple[str, pd.Index | None]]) -> None:
    """Raise where two have other labels of outputs, or the same in different orders."""
    known = [(name, x) for name, x in labels if x is not None and not are_counted(x)]
    check_order(known, "Outputs")
    for (first, one), (second, other) in combinations(known, 2):
        if len(one) == len(other) and not one.equals(other):
            raise ValueError(
                f"Outputs of {second} are {list(other)}, but those of {first} are {list(one)}. "
                "Give both the same labels, or pass an array."
            )


def differ_in_order(one: pd.Index, other: pd.Index) -> bool:
    """Whether two have the same labels, in different orders."""
    if len(one) != len(other) or one.nlevels != other.nlevels or one.equals(other):
        return False
    return not len(one.symmetric_difference(other, sort=False))
