"""The grid of bins over a window."""

import math

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from scipy.spatial import KDTree

from pymc_vsgp.checks import as_real, check_number, check_real
from pymc_vsgp.point_processes.window import Window

__all__ = ["as_grid", "cell_of", "distinct", "find_edges", "in_order", "nearest_kept", "take_mask"]

DEFAULT_BINS = {1: 100, 2: 32, 3: 12}
LARGEST_GRID = 5_000_000
ROUNDING = 1e-9
ALIKE = 1e-3  # of a cell's width: coordinates are often float32


def find_edges(window: Window, bins: Any = None, resolution: Any = None) -> list[np.ndarray]:
    """Return edges of bins along each dimension of a window."""
    if bins is not None and resolution is not None:
        raise ValueError("Both bins and resolution are given. Pass one of them.")
    if resolution is not None:
        widths = _one_each(resolution, window.ndim, "resolution")
        per_side: list[Any] = [_of_width(w, b) for w, b in zip(widths, window.bounds, strict=True)]
    else:
        bins = DEFAULT_BINS[window.ndim] if bins is None else bins
        per_side = _one_each(bins, window.ndim, "bins")
    per_side = [_number(n) if np.ndim(n) == 0 else n for n in per_side]
    sizes = [n if np.ndim(n) == 0 else len(n) - 1 for n in per_side]
    # Before anything of that size is made.
    if math.prod(max(float(s), 0.0) for s in sizes) > LARGEST_GRID:
        raise ValueError(
            f"The grid has {' x '.join(f'{s:.4g}' for s in sizes)} cells, which is too fine. "
            f"Use larger bins, at most {LARGEST_GRID} in all; check the units of resolution."
        )
    return [_edges(n, b) for n, b in zip(per_side, window.bounds, strict=True)]


def _one_each(value: Any, ndim: int, what: str) -> list[Any]:
    if getattr(value, "shape", None) == () or not hasattr(value, "__len__"):
        return [value] * ndim
    if ndim == 1 and len(value) > 1:
        return [np.asarray(value)]
    if len(value) != ndim:
        raise ValueError(
            f"{what} has {len(value)} entries, and the window {ndim} dimensions. "
            "Pass one for all dimensions, or one for each."
        )
    return list(value)


def _number(n: Any) -> int:
    """Return a number of bins, which may be a float."""
    n = n.item() if isinstance(n, np.ndarray) else n
    return check_number("bins", int(n) if isinstance(n, float) and n.is_integer() else n)


def _of_width(width: Any, bounds: tuple[float, float]) -> np.ndarray | float:
    """Edges of bins of that width, or their number where that is far too large."""
    low, high = bounds
    check_real("resolution", width, above=True)
    number = math.ceil((high - low) / width - ROUNDING)
    if number > LARGEST_GRID:
        return float(number)
    return np.append(low + width * np.arange(number), high)


def _edges(n: Any, bounds: tuple[float, float]) -> np.ndarray:
    low, high = bounds
    if np.ndim(n) == 0:
        return np.linspace(low, high, n + 1)
    edges = as_real(n, "bins", "Pass the edges of bins.")
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ValueError("Edges of bins must increase, two or more of them. Sort them.")
    slack = ROUNDING * (high - low)
    if edges[0] > low + slack or edges[-1] < high - slack:
        raise ValueError(
            f"The bins go from {edges[0]:.6g} to {edges[-1]:.6g}, and the window from {low:.6g} to "
            f"{high:.6g}. Let the bins cover the window, or make the window smaller."
        )
    return edges


def distinct(edges: np.ndarray) -> np.ndarray:
    """Return rising edges without those that differ by rounding from the one before."""
    apart = np.diff(edges) > ROUNDING * (edges[-1] - edges[0])
    return edges[np.append(True, apart)]


def cell_of(points: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    """Return the cell of each point, in C order; the last edge belongs to the last cell."""
    index = [
        np.clip(np.searchsorted(e, points[:, d], side="right") - 1, 0, len(e) - 2)
        for d, e in enumerate(edges)
    ]
    return np.ravel_multi_index(index, tuple(len(e) - 1 for e in edges))


def nearest_kept(
    points: np.ndarray, edges: Sequence[np.ndarray], kept: np.ndarray, centroids: np.ndarray
) -> np.ndarray:
    """Return the cell of each point, or the nearest of the cells that are kept.

    On a border a point may be in a cell that has nothing but this border in common with the window,
    and the centroid of a part may be in another cell.
    """
    cell = cell_of(points, edges)
    elsewhere = ~np.isin(cell, kept)
    if elsewhere.any():
        cell[elsewhere] = kept[KDTree(centroids).query(points[elsewhere])[1]]
    return cell


def in_order(values: Any, dims: Sequence[str | None]) -> Any:
    """Return a DataArray with its dimensions in that order and its coordinates rising."""
    if not isinstance(values, xr.DataArray):
        return values
    if set(values.dims) == set(dims):
        values = values.transpose(*dims)
    return values.sortby([d for d in values.dims if d in values.coords])


def as_grid(values: Any, edges: Sequence[np.ndarray], dims: Sequence[str], what: str) -> np.ndarray:
    """Return booleans as an array with the shape of the grid, by coordinates if they have any."""
    values = in_order(values, dims)
    shape = tuple(len(e) - 1 for e in edges)
    array = np.asarray(values)
    if array.dtype != bool:
        raise TypeError(
            f"{what} has dtype {array.dtype}, not bool. Pass True for cells inside the window."
        )
    if array.shape != shape:
        raise ValueError(
            f"{what} has shape {array.shape}, and the grid {shape}. "
            f"Pass a value for each cell, with the axes in the order {list(dims)}."
        )
    if isinstance(values, xr.DataArray):
        for dim, e in zip(values.dims, edges, strict=True):
            if dim in values.coords:
                _check_middles(_middles(values, dim, what), e, f"{what} along {dim!r}")
    return array


def _middles(values: xr.DataArray, dim: Any, what: str) -> np.ndarray:
    """Coordinates along a dimension, which are the middles of cells."""
    name = f"The coordinate {dim!r} of {what}"
    return as_real(values.coords[dim].to_numpy(), name, "Pass the middles of the cells.")


def _check_middles(middles: np.ndarray, edges: np.ndarray, what: str) -> None:
    wanted = (edges[1:] + edges[:-1]) / 2.0
    if not (np.abs(middles - wanted) <= ALIKE * np.diff(edges)).all():
        raise ValueError(
            f"The coordinates of {what} go from {middles[0]:.6g} to {middles[-1]:.6g}, and the "
            f"middles of the bins from {wanted[0]:.6g} to {wanted[-1]:.6g}. "
            "Put it on the cells of the grid, or pass the edges of its cells as bins."
        )


def take_mask(mask: xr.DataArray) -> tuple[list[tuple[float, float]], list[np.ndarray]]:
    """Return bounds and edges of a mask, from the middles of cells that are its coordinates."""
    edges = []
    for dim in mask.dims:
        if dim not in mask.coords:
            raise ValueError(
                f"mask has no coordinates along {dim!r}, so it has no place. "
                "Pass its bounds as window."
            )
        middle = _middles(mask, dim, "mask")
        n = len(middle)
        step = np.ptp(middle) / (n - 1) if n > 1 else 0.0
        even = np.linspace(middle[0], middle[-1], n) if n else middle
        if step == 0.0 or not (np.abs(middle - even) <= ALIKE * step).all():
            raise ValueError(
                f"The coordinates of mask along {dim!r} are not in equal steps. "
                "Pass the edges as bins and the bounds as window."
            )
        edges.append(np.linspace(middle[0] - step / 2.0, middle[-1] + step / 2.0, n + 1))
    return [(e[0], e[-1]) for e in edges], edges
