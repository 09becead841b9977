"""A pattern of events in a window, as counts in bins or as points with a quadrature rule."""

import html
import math
import warnings

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_vsgp.labels import check_order, row_labels
from pymc_vsgp.point_processes import regions
from pymc_vsgp.point_processes.events import Field, as_fields
from pymc_vsgp.point_processes.grid import LARGEST_GRID, cell_of, distinct, find_edges, nearest_kept
from pymc_vsgp.point_processes.quadrature import Quadrature, quadrature_of
from pymc_vsgp.point_processes.rates import draw_intensity
from pymc_vsgp.point_processes.window import Window

__all__ = ["PointProcess"]

SLIVER = 1e-10  # of a cell's volume: less is rounding


@dataclass(frozen=True, eq=False, repr=False)
class PointProcess:
    """Events in a window, counted in bins. :func:`point_process` makes one.

    Attributes
    ----------
    X : ndarray, shape (N, D)
        Centroid of each bin's part inside the window. Bins outside are left out.
    counts : ndarray, shape (N,)
        Events in each bin.
    volume : ndarray, shape (N,)
        Length, area or volume of each bin's part inside the window.
    exposure : ndarray, shape (N,)
        The volume, times the exposure that was passed.
    covariates : DataFrame
        One entry for each bin.
    events : ndarray
        Positions of the events inside the window.
    window : Window
        The window.
    edges : tuple of ndarray
        Edges of the grid along each dimension.
    cell : ndarray
        Number of each bin among all cells of the grid, in C order.
    dims : tuple of str
        Names of the dimensions.
    unit : tuple of str
        Their units, empty if not known.
    """

    X: np.ndarray
    counts: np.ndarray
    volume: np.ndarray
    exposure: np.ndarray
    covariates: pd.DataFrame
    events: np.ndarray
    window: Window
    edges: tuple[np.ndarray, ...]
    cell: np.ndarray
    dims: tuple[str, ...]
    unit: tuple[str, ...] = ()
    _fields: tuple[Field, ...] = field(default=())
    _effort: Field | None = None
    _mask: np.ndarray | None = None

    @classmethod
    def _counted(
        cls, points, window, edges, mask, exposure, covariates, dims, unit
    ) -> "PointProcess":
        """Count events, which are inside the window, in the bins of a grid."""
        volume, middle = window.cells(edges)
        widths = np.ones(())
        for e in edges:
            widths = np.multiply.outer(widths, np.diff(e))
        kept = volume > SLIVER * widths
        if mask is not None:
            kept &= mask
        if not kept.any():
            raise ValueError("No bin is inside the window. Check the mask, or use smaller bins.")
        cell = np.flatnonzero(kept)
        X = middle.reshape(-1, window.ndim)[cell]
        index = np.full(kept.size, -1)
        index[cell] = np.arange(len(cell))
        at = index[nearest_kept(points, edges, cell, X)]
        fields = as_fields(covariates, kept.shape, kept.ravel(), dims)
        effort = None
        volume = volume.ravel()[cell]
        total = volume
        if exposure is not None:
            effort = Field("exposure", exposure, kept.shape, kept.ravel(), dims)
            if effort.array is not None:  # constant in its own cells
                own = effort.own_edges(window.bounds)
                effort.cells = _means(window, own, effort.nearest, edges, kept.ravel())
            amount = effort.at(X, cell)
            if (amount <= 0.0).any():
                raise ValueError(
                    f"exposure is not positive in {int((amount <= 0.0).sum())} of {len(X)} bins. "
                    "Take out with mask what was not looked at."
                )
            total = volume * amount
        columns = pd.DataFrame({f.name: f.at(X, cell) for f in fields}, index=range(len(X)))
        if len(X) > 100_000:
            warnings.warn(
                f"There are {len(X)} bins for {len(points)} events, and the work is proportional "
                "to them. Use larger bins, or quadrature, which needs none.",
                stacklevel=3,
            )
        return cls(
            X=X,
            counts=np.bincount(at, minlength=len(X)),
            volume=volume,
            exposure=total,
            covariates=columns,
            events=points,
            window=replace(window, dims=tuple(dims)),
            edges=tuple(edges),
            cell=cell,
            dims=tuple(dims),
            unit=tuple(unit),
            _fields=fields,
            _effort=effort,
            _mask=mask,
        )

    @property
    def inputs(self) -> np.ndarray:
        """`X`, with a column for each covariate after it."""
        return np.column_stack([self.X, self.covariates.to_numpy()])

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells along each dimension of the grid."""
        return tuple(len(e) - 1 for e in self.edges)

    @property
    def coords(self) -> dict[str, np.ndarray]:
        """The dimension of the bins, for ``pm.Model(coords=...)``."""
        return {"bin": self.X[:, 0] if len(self.dims) == 1 else np.arange(len(self.X))}

    @property
    def units(self) -> str:
        """Units of the intensity."""
        powers: dict[str, int] = {}
        for u in self.unit:
            powers[u] = powers.get(u, 0) + 1
        per = " ".join(u + {1: "", 2: "²", 3: "³"}[n] for u, n in powers.items())
        return f"events per {per or ('length', 'area', 'volume')[len(self.dims) - 1]}"

    def rebin(self, bins: Any = None, resolution: Any = None) -> "PointProcess":
        """Count the same events in other bins.

        Covariates of the bins keep their place. An exposure of them is averaged over each new bin,
        so that the total stays.

        Parameters
        ----------
        bins, resolution
            As in :func:`point_process`.

        Returns
        -------
        PointProcess
        """
        if self._mask is not None:
            raise ValueError(
                "The window is a mask on the grid, which other bins would cut. "
                "Pass a polygon as the window, or make another mask."
            )
        edges = find_edges(self.window, bins, resolution)

        def moved(old: Field) -> Any:
            if old.function is not None or old.array is not None:
                return old.array if old.function is None else old.function
            return lambda points: old.at(points, self.cell_of(points))

        covariates = {f.name: moved(f) for f in self._fields} or None
        old, effort = self._effort, None
        if old is not None and old.array is None and old.jumps:
            at = moved(old)
            effort = _means(self.window, self.edges, at, edges).reshape([len(e) - 1 for e in edges])
        elif old is not None:
            effort = moved(old)
        return PointProcess._counted(
            self.events, self.window, edges, None, effort, covariates, self.dims, self.unit
        )

    def cell_of(self, points: np.ndarray) -> np.ndarray:
        """Cell of the nearest bin, for points in the window."""
        return nearest_kept(points, self.edges, self.cell, self.X)

    def quadrature(self, n: int | None = None) -> Quadrature:
        """Events and quadrature nodes, for a likelihood that has no bins.

        Parameters
        ----------
        n : int, optional
            Number of nodes along each dimension: enough of them when twice as many give the same
            bound. By default 100, 40 or 16 in one, two or three dimensions. At least two in each
            bin where there is a mask, or an exposure or a covariate with a value for each bin.

        Returns
        -------
        Quadrature
            With the nodes of Gauss and Legendre in a box. A polygon has them in the squares of a
            grid that are inside, and the centroids of the others.

        Examples
        --------
        .. code-block:: python

            q = pattern.quadrature()
            gp.likelihood("y", vsgp.PoissonProcess(q.weights), X=q.X, y=q.y)
        """
        return quadrature_of(self, n)

    def to_grid(self, values: Any) -> xr.DataArray:
        """Put values of the bins on the grid.

        Parameters
        ----------
        values : array_like or DataArray, shape (..., N)
            A value for each bin on the last axis of an array; of a DataArray on ``bin`` or
            ``point``, or on its only dimension of that length. Labels of ``bin`` are those of
            `coords`, in any order. Other dimensions, such as chain and draw, stay in front.

        Returns
        -------
        DataArray
            With a dimension for each of `dims`, labeled by the middle of each cell, and nan
            outside the window.
        """
        values = self._of_bins(values)
        numbers = values.to_numpy()
        out = np.full((*numbers.shape[:-1], int(np.prod(self.shape))), np.nan)
        out[..., self.cell] = numbers
        front = [str(d) for d in values.dims[:-1]]
        middles = {d: (e[:-1] + e[1:]) / 2.0 for d, e in zip(self.dims, self.edges, strict=True)}
        grid = xr.DataArray(
            out.reshape(*numbers.shape[:-1], *self.shape),
            dims=[*front, *self.dims],
            coords={d: values.coords[d] for d in front if d in values.coords} | middles,
            name=values.name,
            attrs=values.attrs,
        )
        for d, unit in zip(self.dims, self.unit, strict=False):
            grid[d].attrs["units"] = unit
        return grid

    def _of_bins(self, values: Any) -> xr.DataArray:
        """Return values with the dimension of bins last."""
        if isinstance(values, xr.DataArray):
            named = [d for d in ("bin", "point") if d in values.dims]
            others = [d for d in values.dims if d not in ("chain", "draw")]
            found = [d for d in named or others if values.sizes[d] == len(self.X)]
            if found and (named or len(found) == 1):
                values = self._in_order(values) if found[0] == "bin" else values
                return values.transpose(..., found[0])
            shape: tuple[int, ...] = tuple(values.shape)
        else:
            of_rows = values if isinstance(values, pd.Series) else getattr(values, "columns", None)
            check_order(
                [("pattern.covariates", self.covariates.index), ("values", row_labels(of_rows))]
            )
            values = np.asarray(values)
            shape = values.shape
            if shape and shape[-1] == len(self.X):
                names = {1: (), 2: ("draw",), 3: ("chain", "draw")}
                front = names.get(len(shape), [f"dim_{i}" for i in range(len(shape) - 1)])
                return xr.DataArray(values, dims=[*front, "bin"])
        raise ValueError(
            f"The values have shape {shape}, and there are {len(self.X)} bins. "
            "Pass one value for each bin: on the last axis, or on the dimension 'bin'."
        )

    def _in_order(self, values: xr.DataArray) -> xr.DataArray:
        """Return values with the labels of bins, where they have such, in the order of `coords`."""
        labels, own = values.indexes.get("bin"), pd.Index(self.coords["bin"])
        if labels is None or labels.equals(own):
            return values
        order = own.get_indexer(labels)
        if not np.array_equal(np.sort(order), np.arange(len(self.X))):
            raise ValueError(
                "The labels of 'bin' are not those of pattern.coords. "
                "Pass values.drop_vars('bin') if they are in the order of the bins."
            )
        return values.isel(bin=np.argsort(order))

    def intensity(self, idata: Any, Xnew: Any = None, **kwargs) -> xr.DataArray:
        """
        Draw the intensity: events per unit of exposure.

        Parameters
        ----------
        idata : DataTree or Dataset
            Draws, from :func:`sample` or from ``to_datatree`` of a Gaussian stage.
        Xnew : array_like, optional
            Where, with a column for each covariate after the coordinates: those of a table are
            found by name. By default in the bins, whose columns have the names of `dims` and of
            `covariates`.
        **kwargs
            ``joint=True`` draws the function jointly at all inputs. By default each draw has the
            mean intensity given the inducing values, which leaves out what these don't determine:
            far from all inducing points the draws hardly vary.
            Others are those of :func:`predict`: `var_name`, `likelihood`, `num_samples`,
            `random_seed`, `progressbar`, `model`.

        Returns
        -------
        DataArray
            Dimensions chain, draw and ``bin``, then that of outputs where there are several.
            ``attrs["units"]`` has its units.
        """
        columns = (*self.dims, *self.covariates.columns)
        if Xnew is None:
            # One column is in order, whatever the model calls it.
            labels = {"input": list(columns)} if len(columns) > 1 else {}
            Xnew = xr.DataArray(self.inputs, dims=["bin", "input"], coords=self.coords | labels)
        out = draw_intensity(idata, Xnew, columns, len(self.dims), self.exposure, **kwargs)
        return out.assign_attrs(units=self.units, long_name="intensity")

    def _drawn(self, intensity: Any, kwargs: dict[str, Any]) -> Any:
        """Return draws of the intensity, of a posterior if it is one."""
        if isinstance(intensity, xr.DataTree | xr.Dataset):
            return self.intensity(intensity, **kwargs)
        if kwargs:
            raise TypeError(
                f"{list(kwargs)} would go to PointProcess.intensity, and the intensity is drawn "
                "already. Drop that, or pass the posterior."
            )
        return intensity

    def expected_count(self, intensity: Any, region: Any = None, **kwargs) -> xr.DataArray:
        """
        Draws of the expected number of events in a region.

        Parameters
        ----------
        intensity : DataArray, DataTree or Dataset
            Draws of the :meth:`intensity` in the bins, or of the posterior.
        region : optional
            What a window can be; in space-time also of space or time alone. ``{"x": (0, 1)}``
            bounds some of `dims`. Or a boolean for each bin or cell: an array, a list, a DataArray,
            or a Series with the index of `covariates`. By default all of the window. A dictionary
            with other names has several regions.
        **kwargs
            Passed to :meth:`intensity`, for a posterior.

        Returns
        -------
        DataArray
            Dimensions chain and draw, that of outputs, and ``region`` for several regions. It is
            the mean of a Poisson count: for a count itself, draw one with that mean.

        Notes
        -----
        Within a bin the intensity is constant, and so is the exposure. What is outside the window
        does not count.
        """
        values = self._of_bins(self._drawn(intensity, kwargs))
        if regions.are_several(region, self.dims):
            parts = regions.of_each(region, lambda r: self.expected_count(values, r))
            out = xr.concat(parts, dim=regions.labels_of(region))
            return out.transpose(..., "region").rename("expected_count")
        weights = self.exposure * (regions.volume_of(self, region) / self.volume)
        total = values.dot(xr.DataArray(weights, dims=values.dims[-1]), dim=values.dims[-1])
        attrs = {"units": "events", "long_name": "expected count"}
        return total.rename("expected_count").assign_attrs(attrs)

    def count(self, region: Any = None) -> int | xr.DataArray:
        """Count the events in a region.

        Parameters
        ----------
        region : optional
            As in :meth:`expected_count`.

        Returns
        -------
        int or DataArray
            Of several regions a number for each, with the dimension ``region``.

        Notes
        -----
        As bins do, ``(low, high)`` has events at `low`, and none at `high` unless the window ends
        there. An event on the border of two regions counts in one of them, so counts add up. At
        the border of a window that is a polygon this may be another one than that of its bin.
        """
        if regions.are_several(region, self.dims):
            numbers = regions.of_each(region, lambda r: int(regions.events_of(self, r).sum()))
            labels = {"region": regions.labels_of(region)}
            return xr.DataArray(numbers, coords=labels, dims=["region"], name="count")
        return int(regions.events_of(self, region).sum())

    def _facts(self) -> dict[str, str]:
        grid = " x ".join(map(str, self.shape))
        outside = int(np.prod(self.shape)) - len(self.X)
        total = float(self.exposure.sum())
        facts = {
            "events": f"{len(self.events)} in {', '.join(self.dims)}",
            "window": f"{self.window}",
            "bins": f"{len(self.X)} of {grid}" if outside else grid,
            "counts": f"{self.counts.min()} to {self.counts.max()}, mean {self.counts.mean():.3g}",
            "intensity": f"{len(self.events) / total:.4g} {self.units} on average",
        }
        if len(self.covariates.columns):
            facts["covariates"] = ", ".join(map(str, self.covariates.columns))
        return facts

    def __repr__(self) -> str:
        """Say what is in it."""
        return "PointProcess\n" + "\n".join(f"  {k}: {v}" for k, v in self._facts().items())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{k}</th><td style='text-align:left'>"
            f"{html.escape(v)}</td></tr>"
            for k, v in self._facts().items()
        )
        return f"<table><caption>PointProcess</caption>{rows}</table>"


def _means(
    window: Window,
    own: Sequence[np.ndarray],
    value_at: Callable,
    edges: Sequence[np.ndarray],
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """Mean over each cell of a grid, if it is kept, of what is constant in the cells of its own."""
    # Each cell of both grids together is in one of either.
    both = [distinct(np.union1d(*pair)) for pair in zip(own, edges, strict=True)]
    if (number := math.prod(len(e) - 1 for e in both)) > LARGEST_GRID:
        raise ValueError(
            f"The values of exposure and the bins cut the window into {number} cells, at most "
            f"{LARGEST_GRID} are possible. Average exposure over larger cells, as by coarsen."
        )
    volume, middle = window.cells(both)
    weight, at = volume.ravel(), middle.reshape(-1, window.ndim)
    inside = weight > 0.0
    weight, at = weight[inside], at[inside]
    cell = cell_of(at, edges)
    if kept is not None:
        weight, at, cell = (x[kept[cell]] for x in (weight, at, cell))
    size = math.prod(len(e) - 1 for e in edges)
    total, part = (np.bincount(cell, w, size) for w in (weight * value_at(at), weight))
    return np.divide(total, part, out=np.full(size, np.nan), where=part > 0)
