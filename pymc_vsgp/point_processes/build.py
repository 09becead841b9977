"""Events and their window as users pass them, made into a point process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_vsgp.checks import check_names
from pymc_vsgp.point_processes.events import as_events, check_units, drop_outside, drop_repeated
from pymc_vsgp.point_processes.grid import as_grid, cell_of, find_edges, in_order, take_mask
from pymc_vsgp.point_processes.process import PointProcess
from pymc_vsgp.point_processes.window import (
    as_window,
    check_dims,
    dims_of,
    sorted_by,
    turned,
)

__all__ = ["point_process"]


def point_process(
    events: Any,
    window: Any = None,
    *,
    bins: Any = None,
    resolution: Any = None,
    mask: Any = None,
    exposure: Any = None,
    covariates: Any = None,
    dims: Sequence[str] | None = None,
    unit: str | Sequence[str] = (),
    outside: str = "warn",
    repeated: str = "warn",
) -> PointProcess:
    r"""
    Prepare events in a window for a Poisson process with a Gaussian process inside.

    Events are counted in bins, whose counts are Poisson with mean exposure times intensity. As bins
    shrink the likelihood becomes that of the points themselves, which
    :meth:`PointProcess.quadrature` gives directly.

    Parameters
    ----------
    events : array_like, Series, DataFrame, DataArray, Dataset or points, shape (n, D)
        Positions of the events: one, two or three coordinates, or two and time. Columns of an array
        are in the order of the dimensions. Points are geometries, as of a GeoSeries, and have x and
        y by name.
    window : optional
        Where events could have been seen:

        * ``(low, high)``, or a list of such pairs, or a dictionary of them by name;
        * a polygon: a shapely geometry, a GeoSeries or other object with ``__geo_interface__``, or
          GeoJSON. Its area is exact in every bin. Needs shapely: ``pip install ".[maps]"`` in a
          checkout;
        * ``(polygon or box, (start, end))``: space and time. Where the box has names, time is the
          column ``t`` of a table, or the only other column.

        Needed, unless `mask` has coordinates.
    bins : int, tuple or arrays, optional
        Number of bins along each dimension, or their edges. By default 100 in one dimension, 32 in
        two and 12 in three.
    resolution : float or tuple, optional
        Width of the bins along each dimension, in place of `bins`. The last may be narrower.
    mask : array_like of bool or DataArray, optional
        Which cells of the grid are in the window, an axis for each dimension. The coordinates of a
        DataArray, rising or falling, are the middles of the cells.
    exposure : float, array_like, DataArray or callable, optional
        Effort or fraction seen, by which the intensity is multiplied: a number, one for each cell
        or bin, values with coordinates, which are averaged over each bin, or a function of
        positions.
    covariates : callable, array_like, DataArray, DataFrame, Dataset or dict of these, optional
        Values over the window, which become columns: of :attr:`PointProcess.covariates`, and of
        ``inputs`` after the coordinates.
    dims : sequence of str, optional
        Names of the dimensions; columns of `events` where that has names.
    unit : str or sequence of str
        Unit of length, or one for each dimension.
    outside : {"warn", "drop", "raise"}
        What to do where events are outside the window. They are left out.
    repeated : {"warn", "keep", "drop", "raise"}
        What to do where several events are at the same place. "warn" keeps them.

    Returns
    -------
    PointProcess

    Examples
    --------
    >>> import pymc_vsgp as vsgp
    >>> quakes = vsgp.datasets.load_kilauea()
    >>> vsgp.point_process(quakes, quakes.attrs["window"], bins=16, unit="km")
    PointProcess
      events: 185 in x, y
      window: [-3.5, 3.5] x [-3.5, 3.5]
      bins: 16 x 16
      counts: 0 to 7, mean 0.723
      intensity: 3.776 events per km² on average
    """
    check_names("dims", dims)
    check_names("unit", unit)
    chosen = dims or dims_of(window)
    if isinstance(window, xr.DataArray) and window.dtype.kind == "b":
        if mask is not None:
            raise ValueError("window is a mask, and there is another. Pass both as one mask.")
        window, mask = None, window
    elif isinstance(window, np.ndarray) and window.dtype.kind == "b":
        raise ValueError(
            "window is a boolean array, which has no place and no units. "
            "Pass it as mask, and its bounds as window."
        )
    if isinstance(mask, xr.DataArray) and window is None:
        chosen = chosen or [str(d) for d in mask.dims]
        if set(chosen) != set(mask.dims):
            raise ValueError(
                f"mask has the dimensions {list(mask.dims)}, and dims is {list(chosen)}. "
                "Rename those of the mask, or pass a window."
            )
        window, mask_edges = take_mask(in_order(mask, chosen))
        bins = mask_edges if bins is None and resolution is None else bins
    window = sorted_by(window, chosen)
    region = as_window(window)
    points, names = as_events(events, region, chosen)
    check_dims(region, names, "window")
    if region is not window:  # a Window already has its axes in order
        region = turned(region, names)
    if mask is not None and bins is None and resolution is None:
        bins = np.shape(in_order(mask, names))
    edges = find_edges(region, bins, resolution)
    if mask is not None:
        mask = as_grid(mask, edges, names, "mask")
    inside = region.contains(points)
    if mask is not None:
        inside &= mask.ravel()[cell_of(points, edges)]
    points = drop_outside(points, inside, outside)
    points = drop_repeated(points, repeated, np.flatnonzero(inside))
    check_units(points, region, names)
    units = (unit,) * region.ndim if unit and isinstance(unit, str) else tuple(unit or ())
    if units and (len(units) != region.ndim or not all(units)):
        raise ValueError(
            f"unit is {unit!r}, and the window has {region.ndim} dimensions. "
            "Pass one unit for all, or one for each."
        )
    return PointProcess._counted(points, region, edges, mask, exposure, covariates, names, units)
