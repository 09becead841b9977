"""What users pass as events and as values over space, as arrays; and what looks wrong with it."""

import warnings

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_vsgp.checks import as_array, as_real, names_of
from pymc_vsgp.labels import check_order
from pymc_vsgp.point_processes.grid import in_order
from pymc_vsgp.point_processes.window import Window, is_geometry, points_of

__all__ = ["Field", "as_events", "as_fields", "check_units", "drop_outside", "drop_repeated"]

DEFAULT_DIMS = ("x", "y", "z")
ENOUGH_EVENTS = 10  # to say that they all are in a corner
CORNER = 0.02  # of the window's side
WHAT_TO_DO = ("warn", "drop", "raise")


def as_events(
    events: Any, window: Window, dims: Sequence[str | None] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the positions of events, one in a row, and the names of the dimensions."""
    ndim = window.ndim
    events = _as_table(events, dims)
    if dims is not None and len(dims) != ndim:
        raise ValueError(
            f"dims names {len(dims)} dimensions, and the window has {ndim}. "
            "Pass one name for each dimension of the window."
        )
    if window.timed and dims is not None and dims[-1] is None:
        dims = (*dims[:-1], _time_of(events, dims[:-1]))
    names = None if dims is None else tuple(str(d) for d in dims)
    if names is not None and len(set(names)) < ndim:
        raise ValueError(f"dims is {list(names)}, with one name twice. Give each its own name.")
    if is_geometry(events):
        events = points_of(events)
        if names is not None and {"x", "y"} <= set(names) and events.shape[1:] == (ndim,):
            # A point has x first, whatever the order of the dimensions.
            columns = ["x", "y", *(n for n in names if n not in ("x", "y"))]
            events = pd.DataFrame(events, columns=columns)
    if isinstance(events, pd.Series):
        names = names or ((str(events.name),) if events.name is not None else None)
    if isinstance(events, pd.DataFrame):
        known = set(dims or ()) & set(events.columns)
        if dims is not None and known == set(dims):
            events = events[list(dims)]
        elif known or events.shape[1] != ndim:
            raise ValueError(
                f"events has the columns {list(events.columns)}, and the window has {ndim} "
                f"dimensions{f', {list(dims)}' if dims else ''}. "
                "Pass those columns only, or their names as dims."
            )
        names = names or tuple(str(c) for c in events.columns)
    points = as_array(events, "events")
    if np.ma.is_masked(points):
        raise TypeError(
            "events is a masked array, and a masked place is no event. Drop the masked rows first."
        )
    if points.size and points.dtype.kind not in "fiub":
        raise TypeError(
            f"events has dtype {points.dtype}, but positions are numbers. "
            "Convert dates to decimal years or days first."
        )
    points = points.astype("float64")
    if points.size == 0 and points.ndim <= 1:
        points = points.reshape(0, ndim)
    if points.ndim == 1 and ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or points.shape[1] != ndim:
        raise ValueError(
            f"events has shape {points.shape}, and the window has {ndim} dimensions. "
            "Put one event in a row and one coordinate in a column."
        )
    if not np.isfinite(points).all():
        row = int(np.argmax(~np.isfinite(points).all(axis=1)))
        raise ValueError(f"events holds {points[row]} in row {row}. Correct or drop that row.")
    default = ("x", "y", "t") if window.timed else DEFAULT_DIMS[:ndim]
    return points, names or default


def _as_table(events: Any, dims: Sequence[str | None] | None) -> Any:
    """Return labeled arrays as a DataFrame, and what else there is as it is."""
    if isinstance(events, xr.Dataset):
        named = [d for d in dims or () if d is not None]
        chosen = list(events.data_vars)
        if named and set(named) <= set(events.variables):  # with what is along the same dimension
            along = events[named[0]].dims
            chosen = [n for n, v in events.variables.items() if v.dims == along or n in named]
        if len({events[n].dims for n in chosen}) > 1:
            raise ValueError(
                f"events has variables along several dimensions, {list(events.sizes)}. "
                "Pass those of the events only."
            )
        return events[chosen].to_dataframe().reset_index()[chosen]
    if isinstance(events, list | tuple | np.ndarray) and len(events):
        if all(hasattr(e, "__geo_interface__") for e in events):
            return {"type": "FeatureCollection", "features": [e.__geo_interface__ for e in events]}
    if isinstance(events, xr.DataArray) and events.ndim == 2:
        first, last = (names_of(events.indexes.get(d)) for d in events.dims)
        if last is None and first and set(first) <= set(dims or (*DEFAULT_DIMS, "t")):
            events = events.T  # a row for each coordinate
        labels = events.coords.get(events.dims[1])
        columns = None if labels is None else [str(v) for v in labels.values]
        return pd.DataFrame(events.values, columns=columns)
    return events


def _time_of(events: Any, space: Sequence[str | None]) -> str:
    """Return the column of time in a table that has those of space: t, or the only other."""
    columns: list[Any] = list(getattr(events, "columns", ())) if not is_geometry(events) else []
    others = [c for c in columns if c not in space]
    if "t" in others or len(others) == len(columns):  # the names of space are not those of columns
        return "t"
    if len(others) == 1:
        return others[0]
    raise ValueError(
        f"events has the columns {columns}, and the window has no name for time. "
        f"Pass dims={[*space, '...']}, with the column of time last."
    )


def drop_outside(points: np.ndarray, inside: np.ndarray, outside: str) -> np.ndarray:
    """Return the events inside the window, and say how many are not."""
    if outside not in WHAT_TO_DO:
        raise ValueError(f"outside is {outside!r}. Choose one of {list(WHAT_TO_DO)}.")
    number = int((~inside).sum())
    if number == 0:
        return points
    if number == len(points):
        raise ValueError(
            f"All {number} events are outside the window; the first is at "
            f"{_place(points[0])}. Check that both have the same units and order of coordinates."
        )
    row = int(np.argmax(~inside))
    message = (
        f"{number} of {len(points)} events are outside the window; the first is row {row}, at "
        f"{_place(points[row])}."
    )
    if outside == "raise":
        raise ValueError(f"{message} Correct the window, or pass outside='drop'.")
    if outside == "warn":
        warnings.warn(
            f"{message} They are left out; pass outside='drop' if that is right.", stacklevel=3
        )
    return points[inside]


def drop_repeated(points: np.ndarray, repeated: str, rows: np.ndarray) -> np.ndarray:
    """Return the events, and say how many are at the place of another; `rows` are the user's."""
    if repeated not in ("warn", "keep", "drop", "raise"):
        raise ValueError(f"repeated is {repeated!r}. Choose 'warn', 'keep', 'drop' or 'raise'.")
    if repeated == "keep":
        return points
    _, first = np.unique(points, axis=0, return_index=True)
    number = len(points) - len(first)
    if number == 0:
        return points
    if repeated == "drop":
        return points[np.sort(first)]
    at = int(np.setdiff1d(np.arange(len(points)), first)[0])
    message = (
        f"{number} of {len(points)} events repeat the place of another; the first is row "
        f"{rows[at]}, at {_place(points[at])}. A Poisson process never does that: rows may be "
        "doubled, or places rounded."
    )
    if repeated == "raise":
        raise ValueError(f"{message} Pass repeated='drop' or 'keep'.")
    warnings.warn(f"{message} They are kept; pass repeated='drop' or 'keep'.", stacklevel=3)
    return points


def check_units(points: np.ndarray, window: Window, dims: Sequence[str]) -> None:
    """Warn where there are no events, or all of them in a corner of the window."""
    if len(points) == 0:
        warnings.warn(
            "There are no events in the window, so the data only say that the intensity is low. "
            "Check the events if you expected some.",
            stacklevel=3,
        )
        return
    for d, (low, high) in enumerate(window.bounds):
        spread = float(np.ptp(points[:, d]))
        if len(points) >= ENOUGH_EVENTS and spread < CORNER * (high - low):
            warnings.warn(
                f"The {len(points)} events span {spread:.3g} in {dims[d]}, and the window "
                f"{high - low:.3g}. Check that both have the same units.",
                stacklevel=3,
            )


def _place(point: np.ndarray) -> str:
    return f"({', '.join(f'{v:.6g}' for v in point)})"


class Field:
    """A value at each place: of a function, or of the cell of a grid."""

    def __init__(
        self, name: str, values: Any, shape: tuple[int, ...], kept: np.ndarray, dims: Sequence[str]
    ):
        self.name, self.dims = name, dims
        self.function: Callable | None = values if callable(values) else None
        self.array: xr.DataArray | None = None
        self.cells: np.ndarray | None = None
        if self.function is not None:
            return
        if isinstance(values, xr.DataArray) and set(values.dims) <= set(dims):
            if missing := [d for d in values.dims if d not in values.coords]:
                raise ValueError(
                    f"{name} has no coordinates along {missing[0]!r}, so it has no place. "
                    "Give it some, or pass the values on the grid as an array."
                )
            for d in values.dims:
                as_real(
                    values.coords[d].to_numpy(), f"The coordinate {d!r} of {name}", "Pass numbers."
                )
                if not values.indexes[d].is_unique:
                    raise ValueError(
                        f"{name} has a coordinate along {d!r} twice. "
                        f"Average over them, as by groupby({d!r}).mean()."
                    )
            # The type of one tells that of all, which may be on disk.
            as_real(values[(slice(1),) * values.ndim].to_numpy(), name)
            self.array = in_order(values, values.dims)
            return
        if isinstance(values, xr.DataArray):
            raise ValueError(
                f"{name} has the dimensions {list(values.dims)}, and the events have {list(dims)}. "
                "Rename those of the covariate, or pass dims."
            )
        array = as_real(values, name, "Pass a value for each cell or bin.")
        if isinstance(values, pd.Series):
            check_order([("the bins", pd.RangeIndex(len(values))), (name, values.index)])
        if array.ndim == 0:
            self.cells = np.full(int(np.prod(shape)), float(array))
        elif array.shape == shape or array.shape == (kept.size,):
            self.cells = array.ravel()
        elif array.shape == (int(kept.sum()),):
            self.cells = np.full(kept.size, np.nan)
            self.cells[kept] = array
        else:
            raise ValueError(
                f"{name} has shape {array.shape}, the grid {shape} and {int(kept.sum())} bins. "
                "Pass a value for each cell or bin, a DataArray with coordinates, or a function."
            )

    @property
    def jumps(self) -> bool:
        """Whether it changes from cell to cell, and not within one."""
        return self.cells is not None and bool(np.nanmin(self.cells) < np.nanmax(self.cells))

    def at(self, points: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Values at points, which are in these cells."""
        if self.function is not None:
            values = as_real(self.function(points), self.name, "Return one for each row.")
            if values.shape not in ((len(points),), (len(points), 1)):
                raise ValueError(
                    f"{self.name} gave shape {values.shape} for {len(points)} points. "
                    "Return one number for each row."
                )
            values = values.ravel()
        elif self.cells is not None:
            values = self.cells[cell]
        else:
            return self.nearest(points)
        return self._finite(values, points)

    def nearest(self, points: np.ndarray) -> np.ndarray:
        """Values of an array at the coordinates that are nearest to points."""
        assert self.array is not None
        columns = {
            d: xr.DataArray(points[:, self.dims.index(d)], dims="point") for d in self.array.dims
        }
        self._check_places(points)
        nearest = self.array.sel(columns, method="nearest")
        values = np.broadcast_to(np.asarray(nearest, dtype="float64"), (len(points),))
        return self._finite(values, points)

    def own_edges(self, bounds: Sequence[tuple[float, float]]) -> list[np.ndarray]:
        """Return where the nearest coordinate of an array changes, in a window."""
        assert self.array is not None
        edges = []
        for d, (low, high) in zip(self.dims, bounds, strict=True):
            c = self._along(d) if d in self.array.dims else np.zeros(1)
            between = (c[1:] + c[:-1]) / 2.0
            between = between[(between > low) & (between < high)]
            edges.append(np.concatenate([[low], between, [high]]))
        return edges

    def _finite(self, values: np.ndarray, points: np.ndarray) -> np.ndarray:
        bad = ~np.isfinite(values)
        if bad.any():
            raise ValueError(
                f"{self.name} is not finite at {int(bad.sum())} of {len(points)} points, first at "
                f"{_place(points[bad][0])}. Fill it in, or take those places out with mask."
            )
        return values

    def _along(self, dim: Any) -> np.ndarray:
        """Coordinates of an array, which rise."""
        assert self.array is not None
        return self.array.coords[dim].to_numpy().astype("float64")

    def _check_places(self, points: np.ndarray) -> None:
        """Raise or warn where places are not those of the points, as in other units."""
        assert self.array is not None
        for dim in self.array.dims:
            name = f"The coordinate {dim!r} of {self.name}"
            c, x = self._along(dim), points[:, self.dims.index(dim)]
            if len(c) < 2:  # a constant along it
                continue
            far = (x < 2.0 * c[0] - c[1]) | (x > 2.0 * c[-1] - c[-2])
            message = (
                f"{name} goes from {c[0]:.6g} to {c[-1]:.6g}, and {int(far.sum())} of {len(x)} "
                "points are more than a step away"
            )
            if far.all() and len(x):
                raise ValueError(f"{message}. Check that both have the same units.")
            if far.any():
                warnings.warn(
                    f"{message}, the first at {_place(points[far][0])}. They get the nearest "
                    "value; pass values over all of the window.",
                    stacklevel=6,
                )
            cell = np.searchsorted((c[1:] + c[:-1]) / 2.0, x)
            if not far.any() and np.ptp(cell) == 0 < np.ptp(x):
                warnings.warn(
                    f"{name} goes from {c[0]:.6g} to {c[-1]:.6g}, and all {len(x)} points get the "
                    f"value at {c[cell[0]]:.6g}. Check that both have the same units.",
                    stacklevel=6,
                )


def as_fields(
    covariates: Any, shape: tuple[int, ...], kept: np.ndarray, dims: Sequence[str]
) -> tuple[Field, ...]:
    """Return covariates by name."""
    if covariates is None:
        return ()
    if isinstance(covariates, pd.DataFrame | xr.Dataset):
        names = list(covariates.columns if hasattr(covariates, "columns") else covariates.data_vars)
        covariates = {str(n): covariates[n] for n in names}
    if not isinstance(covariates, dict):
        name = getattr(covariates, "name", None) or getattr(covariates, "__name__", None)
        name = "covariate" if name in (None, "<lambda>") else str(name)
        covariates = {name: covariates}
    if clash := set(covariates) & set(dims):
        raise ValueError(
            f"The covariate {sorted(clash)[0]!r} has the name of a dimension. Rename it."
        )
    return tuple(Field(str(n), v, shape, kept, dims) for n, v in covariates.items())
