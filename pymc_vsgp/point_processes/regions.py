"""Parts of a window: how much of each bin is in one, and which events."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_vsgp.point_processes.grid import as_grid
from pymc_vsgp.point_processes.window import (
    Window,
    as_window,
    check_dims,
    dims_of,
    import_shapely,
    is_geometry,
    turned,
)

__all__ = ["are_several", "events_of", "labels_of", "of_each", "volume_of"]

# Directions from a border to the inside, as angles. Up along both axes comes first, and down along
# both last, as it does for bins; none is along the side of a box.
AROUND = [0.6 + np.pi * k / 128.0 for k in sorted(range(-127, 129), key=abs)]
BESIDE = 1e-10  # of the largest coordinate: how far from the border


def are_several(region: Any, dims: Sequence[str]) -> bool:
    """Whether it is a dictionary of regions, and not one of bounds."""
    if not isinstance(region, dict) or is_geometry(region) or set(region) <= set(dims):
        return False
    bounds = [n for n, r in region.items() if n in dims and np.shape(r) == (2,)]
    if bounds:
        other = next(n for n in region if n not in dims)
        raise ValueError(
            f"The region has the name {other!r}, and the window has {list(dims)}. Pass bounds by "
            f"the names of the window, or regions with other names than {bounds[0]!r}."
        )
    return True


def labels_of(region: dict) -> pd.Index:
    """Return the names of several regions, which may be tuples."""
    return pd.Index(list(region), name="region", tupleize_cols=False)


def of_each(region: dict, fn: Callable) -> list[Any]:
    """Call a function for each of several regions, and name the one that it fails for."""
    found = []
    for name, each in region.items():
        try:
            found.append(fn(each))
        except (TypeError, ValueError) as error:
            raise type(error)(f"Region {name!r}: {error}") from None
    return found


def volume_of(pattern: Any, region: Any) -> np.ndarray:
    """Volume of each bin's part inside a region."""
    if region is None:
        return pattern.volume
    if (keep := _of_bins(pattern, region)) is not None:
        return np.where(keep, pattern.volume, 0.0)
    common = pattern.window.intersect(_as_region(pattern, region))
    if common is None:
        raise ValueError(
            f"The region does not meet the window, {pattern.window}. "
            "Pass a region inside it, in the same units."
        )
    return common.cells(pattern.edges)[0].ravel()[pattern.cell]


def events_of(pattern: Any, region: Any) -> np.ndarray:
    """Whether each event is in a region: in one of those that the window is cut into, as bins."""
    if region is None:
        return np.ones(len(pattern.events), dtype=bool)
    if (keep := _of_bins(pattern, region)) is not None:
        chosen = pattern.cell[keep]
        return np.isin(pattern.cell_of(pattern.events), chosen)
    region, own, events = _as_region(pattern, region), pattern.window, pattern.events
    low, high = np.array(region.bounds).T
    last = high == np.array(own.bounds)[:, 1]
    inside = (events >= low) & ((events < high) | (last & (events == high)))
    if own.polygon is None and region.polygon is None:
        return inside.all(axis=1)
    area = _area(region)
    x, y = _off_border(area, _area(own), events[:, :2]).T
    return inside[:, 2:].all(axis=1) & import_shapely().intersects_xy(area, x, y)


def _area(window: Window) -> Any:
    (x0, x1), (y0, y1) = window.bounds[:2]
    return window.polygon or import_shapely().box(x0, y0, x1, y1)


def _off_border(area: Any, window: Any, points: np.ndarray) -> np.ndarray:
    """Move points that are on the border of an area off it, to the same place for all areas."""
    shapely, points = import_shapely(), points.copy()
    border = shapely.boundary(area)
    shapely.prepare([area, border])
    at = np.flatnonzero(shapely.intersects_xy(border, *points.T))
    step = BESIDE * np.abs(window.bounds).max()
    for angle in AROUND:  # until it is in the window
        if not at.size:
            break
        moved = points[at] + step * np.array([np.cos(angle), np.sin(angle)])
        inside = shapely.contains_xy(window, *moved.T)
        points[at[inside]], at = moved[inside], at[~inside]
    return points


def _of_bins(pattern: Any, region: Any) -> np.ndarray | None:
    """Return a region that is a boolean for each bin, None if it is of another kind."""
    if isinstance(region, pd.Series) and region.dtype.kind == "b":
        if not region.index.equals(pattern.covariates.index):
            raise ValueError(
                "The region is a Series with another index than pattern.covariates has. "
                "Pass region.to_numpy() if its entries are in the order of the bins."
            )
        region = region.to_numpy()
    if isinstance(region, list) and _are_booleans(region):
        region = np.asarray(region)
    if not isinstance(region, np.ndarray | xr.DataArray) or region.dtype.kind != "b":
        return None
    of_cells = region.shape == pattern.shape and getattr(region, "dims", ()) == pattern.dims
    if region.shape == pattern.counts.shape and not of_cells:
        return pattern._of_bins(region).to_numpy()
    return as_grid(region, pattern.edges, pattern.dims, "region").ravel()[pattern.cell]


def _are_booleans(values: list) -> bool:
    """Whether a list, or a list of lists, holds booleans alone."""
    return bool(values) and all(
        _are_booleans(v) if isinstance(v, list) else isinstance(v, bool | np.bool_) for v in values
    )


def _as_region(pattern: Any, region: Any) -> Window:
    own = pattern.window
    if (names := dims_of(region)) and names[-1] is None:  # of space by name, and of time
        space, time = region
        if own.ndim < 3 or not set(space) <= set(pattern.dims[:2]):
            raise ValueError(
                f"The region has the names {list(space)} and time, and the window has "
                f"{list(pattern.dims)}. Pass bounds by the names of the window."
            )
        region = {**space, pattern.dims[2]: time}
    if isinstance(region, dict) and not is_geometry(region):
        if wrong := [name for name in region if name not in pattern.dims]:
            raise ValueError(
                f"The region has the name {wrong[0]!r}, and the window has {list(pattern.dims)}. "
                "Pass bounds by the names of the window."
            )
        sides = [region.get(d, own.bounds[i]) for i, d in enumerate(pattern.dims)]
        return as_window(sides, "region")
    if isinstance(region, Window):  # which has its axes in order
        check_dims(region, pattern.dims, "region")
    else:
        region = turned(as_window(region, "region"), pattern.dims)
    if own.ndim == 3 and region.ndim == 2:
        if region.polygon is None and not own.timed and "t" in pattern.dims[:2]:
            raise ValueError(
                f"The region has two dimensions, and the window has {list(pattern.dims)}. "
                "Pass bounds by the names of the window."
            )
        return Window((*region.bounds, own.bounds[2]), region.polygon)
    if own.timed and region.ndim == 1:
        return Window((*own.bounds[:2], *region.bounds))
    if region.ndim != own.ndim:
        raise ValueError(
            f"The region has {region.ndim} dimensions, and the window has {list(pattern.dims)}. "
            "Pass a region with these, or bounds by their names."
        )
    return region
