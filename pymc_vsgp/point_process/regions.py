"""Parts of a window: how much of each bin is in one, and which events."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_vsgp.point_process.grid import as_grid
from pymc_vsgp.point_process.window import Window, as_window, dims_of, is_geometry, turned

__all__ = ["are_several", "events_of", "volume_of"]


def are_several(region: Any, dims: Sequence[str]) -> bool:
    """Whether it is a dictionary of regions, and not one of bounds."""
    return isinstance(region, dict) and not is_geometry(region) and not set(region) <= set(dims)


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
    """Whether each event is in a region."""
    if region is None:
        return np.ones(len(pattern.events), dtype=bool)
    if (keep := _of_bins(pattern, region)) is not None:
        chosen = pattern.cell[keep]
        return np.isin(pattern.cell_of(pattern.events), chosen)
    return _as_region(pattern, region).contains(pattern.events)


def _of_bins(pattern: Any, region: Any) -> np.ndarray | None:
    """Return a region that is a boolean for each bin, None if it is of another kind."""
    if not isinstance(region, np.ndarray | xr.DataArray) or region.dtype.kind != "b":
        return None
    of_cells = region.shape == pattern.shape and getattr(region, "dims", ()) == pattern.dims
    if region.shape == pattern.counts.shape and not of_cells:
        return np.asarray(region)
    return as_grid(region, pattern.edges, pattern.dims, "region").ravel()[pattern.cell]


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
        return Window(as_window(sides, "region").bounds, own.polygon)
    if not isinstance(region, Window):  # which has its axes in order
        region = turned(as_window(region, "region"), pattern.dims)
    if own.ndim == 3 and region.ndim == 2:
        return Window((*region.bounds, own.bounds[2]), region.polygon)
    if own.timed and region.ndim == 1:
        return Window((*own.bounds[:2], *region.bounds), own.polygon)
    if region.ndim != own.ndim:
        raise ValueError(
            f"The region has {region.ndim} dimensions, and the window has {list(pattern.dims)}. "
            "Pass a region with these, or bounds by their names."
        )
    return region
