"""A figure of an intensity."""

from typing import Any

import numpy as np

from arviz_base import rcParams

from pymc_vsgp.checks import check_real
from pymc_vsgp.point_processes.process import PointProcess
from pymc_vsgp.results.plots.style import BLUE, GRAY, ink, legend, new_axes, plain, strokes

__all__ = ["plot_intensity"]

DRAWS = ("chain", "draw", "sample")


def plot_intensity(
    pattern: PointProcess,
    intensity: Any,
    *,
    what: str = "mean",
    ci_prob: float | None = None,
    events: bool = True,
    ax: Any = None,
    **kwargs,
) -> Any:
    """
    Plot an intensity over its window, with the events.

    Parameters
    ----------
    pattern : PointProcess
        The events and their bins.
    intensity : DataArray, DataTree or Dataset
        Draws of the intensity in the bins, or of the posterior. Bands and "sd" are those of the
        draws: far from all inducing points only draws with ``joint=True`` vary as they should.
    what : {"mean", "sd", "median"}
        What of the draws a map shows. Over one dimension it is the line; "sd" is for maps.
    ci_prob : float, optional
        Probability of the band, over one dimension. By default ``rcParams["stats.ci_prob"]`` of
        ArviZ.
    events : bool
        Whether to plot the events.
    ax : Axes, optional
        By default of a new figure.
    **kwargs
        Passed to :meth:`PointProcess.intensity`, for a posterior.

    Returns
    -------
    Axes
    """
    if what not in ("mean", "sd", "median"):
        raise ValueError(f"what is {what!r}. Choose one of ['mean', 'sd', 'median'].")
    n_dims = len(pattern.dims)
    if n_dims > 2 or (n_dims == 1 and what == "sd"):
        raise ValueError(
            f"There is no plot of {what!r} over {n_dims} dimensions. "
            "Use to_grid, and plot slices of the result."
        )
    values = pattern._of_bins(pattern._drawn(intensity, kwargs))
    values = values.expand_dims("draw") if values.ndim == 1 else values
    draws = list(values.dims[:-1])
    if others := [d for d in draws if d not in DRAWS]:
        raise ValueError(
            f"The intensity has the dimension {others[0]!r}, which is not one of draws. "
            f"Plot one entry of it, as in intensity.isel({others[0]}=0), or rename it."
        )
    ci_prob = rcParams["stats.ci_prob"] if ci_prob is None else ci_prob
    tail = (1.0 - check_real("ci_prob", ci_prob, 0.0, 1.0)) / 2.0
    if n_dims == 1:
        ax = new_axes(ax)
        x, at = _line(pattern)
        values = values.isel({values.dims[-1]: at})
        low, high = values.quantile([tail, 1.0 - tail], draws).to_numpy()
        ax.fill_between(x, low, high, color=BLUE, alpha=0.22, lw=0, label=f"{ci_prob:.0%}")
        ax.plot(x, getattr(values, what)(draws), color=BLUE, lw=1.8, label=what)
        if events:
            strokes(ax, pattern.events[:, 0], ink(), "events")
        ax.set_ylim(bottom=0.0)
        ax.set_ylabel(pattern.units)
        legend(ax)
    else:
        ax = new_axes(ax, (5.6, 4.6))
        grid = pattern.to_grid(values)
        summary = grid.std(draws) if what == "sd" else getattr(grid, what)(draws)
        image = ax.pcolormesh(
            *pattern.edges, summary.to_numpy().T, cmap="viridis", vmin=0.0, rasterized=True
        )
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.85)
        bar.set_label(f"{what}, {pattern.units}")
        bar.outline.set_visible(False)
        if events:
            at = pattern.events
            ax.scatter(*at.T, s=9, color="white", edgecolors="black", lw=0.5, zorder=3)
        if pattern.window.polygon is not None:
            _outline(ax, image, pattern.window.polygon)
        # A map has the same scale on both axes.
        if len(set(pattern.unit)) <= 1:
            ax.set_aspect("equal")
        ax.set_ylabel(_axis_label(pattern, 1))
    ax.set_xlabel(_axis_label(pattern, 0))
    plain(ax)
    return ax


def _line(pattern: PointProcess) -> tuple[np.ndarray, np.ndarray]:
    """Where the line is, nan at a hole of the window, and the bin that it has the value of."""
    x: list[np.ndarray] = []
    at: list[np.ndarray] = []
    holes = np.flatnonzero(np.diff(pattern.cell) > 1) + 1
    for bins in np.split(np.arange(len(pattern.cell)), holes):
        where = pattern.X[bins, 0]
        if len(bins) == 1:  # its level, from end to end
            (cell,) = pattern.cell[bins]
            bins, where = np.repeat(bins, 2), pattern.edges[0][cell : cell + 2]
        x += [where, np.array([np.nan])]
        at += [bins, bins[-1:]]
    return np.concatenate(x)[:-1], np.concatenate(at)[:-1]


def _axis_label(pattern: PointProcess, d: int) -> str:
    unit = f", {pattern.unit[d]}" if pattern.unit else ""
    return f"{pattern.dims[d]}{unit}"


def _outline(ax: Any, image: Any, polygon: Any) -> None:
    """Draw a polygon, and cut the cells of an image at its border."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    rings = [
        Path(np.asarray(ring.coords), closed=True)
        for part in getattr(polygon, "geoms", [polygon])
        for ring in (part.exterior, *part.interiors)
    ]
    outline = PathPatch(Path.make_compound_path(*rings), fill=False, ec=GRAY, lw=1.2)
    ax.add_patch(outline)
    image.set_clip_path(outline)
