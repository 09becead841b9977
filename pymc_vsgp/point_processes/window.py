"""Where events could have been seen: an interval, a box, a polygon, or one of these times time.

A window knows its bounds, what is inside, how much of each cell of a grid is, and a quadrature
rule. Shapely is imported when there is a polygon.
"""

import warnings

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Nodes",
    "Window",
    "as_window",
    "check_dims",
    "dims_of",
    "is_geometry",
    "points_of",
    "sorted_by",
    "turned",
]

FULL = 1.0 - 1e-9  # fraction of a cell above which its cut is rounding
HOW = (
    "Pass (low, high), a list of one such pair for each dimension, a polygon, "
    "or (polygon or box, (start, end)) for space and time."
)


class Nodes(NamedTuple):
    """A quadrature rule: points in the window, their weights, and the cell that each is in."""

    X: np.ndarray
    weights: np.ndarray
    cell: np.ndarray


@dataclass(frozen=True, eq=False)
class Window:
    """A box; with a polygon, which then is the first two dimensions of it.

    `timed` says that the last dimension is time. The window of a pattern has names of its `dims`.
    """

    bounds: tuple[tuple[float, float], ...]
    polygon: Any = None
    timed: bool = False
    dims: tuple[str, ...] | None = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.bounds)

    @property
    def volume(self) -> float:
        """Length, area or volume."""
        sides = [high - low for low, high in self.bounds]
        if self.polygon is None:
            return float(np.prod(sides))
        return float(self.polygon.area * np.prod(sides[2:]))

    def contains(self, points: np.ndarray) -> np.ndarray:
        """Whether each point is inside or on the border."""
        low, high = np.array(self.bounds).T
        inside = ((points >= low) & (points <= high)).all(axis=1)
        if self.polygon is not None:
            inside &= import_shapely().intersects_xy(self.polygon, points[:, 0], points[:, 1])
        return inside

    def cells(self, edges: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Volume and centroid of the part of each cell of a grid that is inside.

        Returns
        -------
        volume : ndarray, with an axis for each dimension
        centroid : ndarray, with one more axis
        """
        sides = [_clip(e, b) for e, b in zip(edges, self.bounds, strict=True)]
        shape = tuple(len(low) for low, _ in sides)
        volume, centroid = np.ones(shape), np.empty((*shape, self.ndim))
        first = 0
        if self.polygon is not None:
            area, middle = _cut(self.polygon, *edges[:2])
            rest = (1,) * (self.ndim - 2)
            volume *= area.reshape(*area.shape, *rest)
            centroid[..., :2] = middle.reshape(*area.shape, *rest, 2)
            first = 2
        for d in range(first, self.ndim):
            low, high = sides[d]
            along = tuple(-1 if i == d else 1 for i in range(self.ndim))
            volume = volume * (high - low).reshape(along)
            centroid[..., d] = ((low + high) / 2.0).reshape(along)
        return volume, centroid

    def rule(self, edges: Sequence[np.ndarray], per_cell: Sequence[int]) -> Nodes:
        """Gauss-Legendre rule in each cell of a grid; the centroid where a polygon cuts it."""
        rules = [
            _legendre(*_clip(e, b), n) for e, b, n in zip(edges, self.bounds, per_cell, strict=True)
        ]
        axes: list[Nodes] = rules
        if self.polygon is not None:
            axes = [_polygon_rule(self.polygon, edges[:2], rules[:2]), *rules[2:]]
        sizes = [np.prod([len(e) - 1 for e in edges[:2]])] if self.polygon is not None else []
        sizes += [len(e) - 1 for e in edges[len(sizes) * 2 :]]
        each = np.indices([len(a.weights) for a in axes])
        rows = each.reshape(len(axes), -1)
        X = np.concatenate([a.X[r] for a, r in zip(axes, rows, strict=True)], axis=1)
        weights = np.prod([a.weights[r] for a, r in zip(axes, rows, strict=True)], axis=0)
        cell = np.ravel_multi_index(
            [a.cell[r] for a, r in zip(axes, rows, strict=True)], [int(s) for s in sizes]
        )
        return Nodes(X, weights, cell)

    def intersect(self, other: "Window") -> "Window | None":
        """Return what the two have in common, None if that has no volume."""
        bounds = tuple(
            (max(a[0], b[0]), min(a[1], b[1]))
            for a, b in zip(self.bounds, other.bounds, strict=True)
        )
        if any(low >= high for low, high in bounds):
            return None
        if self.polygon is None and other.polygon is None:
            return Window(bounds)
        shapely = import_shapely()
        (x0, x1), (y0, y1) = bounds[:2]
        both = shapely.box(x0, y0, x1, y1)
        for polygon in (self.polygon, other.polygon):
            if polygon is not None:
                both = shapely.intersection(both, polygon)
        if both.area == 0.0:
            return None
        if both.geom_type == "GeometryCollection":  # of an area, and of borders in common
            both = shapely.union_all([g for g in both.geoms if g.area > 0.0])
        return Window((*_bounds_of(both), *bounds[2:]), both)

    def __repr__(self) -> str:
        """Show the sides."""
        sides = " x ".join(f"[{low:.6g}, {high:.6g}]" for low, high in self.bounds)
        return sides if self.polygon is None else f"polygon in {sides}"


def as_window(window: Any, what: str = "window") -> Window:
    """Return a window of what a user may pass."""
    if isinstance(window, Window):
        return window
    if window is None:
        raise ValueError(
            f"There is no {what}. Pass where events could have been seen, "
            "not the range of those that were."
        )
    if is_geometry(window):
        polygon = _as_polygon(window, what)
        return Window(_bounds_of(polygon), polygon)
    if isinstance(window, dict):
        window = list(window.values())
    if isinstance(window, list | tuple) and len(window) == 2:
        space, time = window
        if is_geometry(space) or (isinstance(space, list | tuple | dict) and _nested(space)):
            space, (interval,) = as_window(space, what), _box(time, what, 1)
            if space.ndim != 2:
                raise ValueError(f"The first part of {what} has {space.ndim} dimensions. {HOW}")
            return Window((*space.bounds, interval), space.polygon, timed=True)
    return Window(_box(window, what))


def dims_of(window: Any) -> tuple[str | None, ...] | None:
    """Return the names of the dimensions, where a window has them; None for time beside space."""
    if isinstance(window, dict) and not is_geometry(window):
        return tuple(str(name) for name in window)
    if isinstance(window, list | tuple) and len(window) == 2 and isinstance(window[0], dict):
        space = dims_of(window[0])
        return None if space is None else (*space, None)
    return None


def sorted_by(window: Any, dims: Sequence[str | None] | None) -> Any:
    """Return a window whose bounds, where they have the names `dims`, are in that order."""
    names = dims_of(window)
    if not dims or not names:
        return window
    if names[-1] is None:  # of space by name, and of time
        space, time = window
        return sorted_by(space, dims[:-1]), time
    if set(names) == set(dims):
        bounds = dict(zip(names, window.values(), strict=True))
        return {d: bounds[d] for d in dims}
    if any(n in dims and dims.index(n) != i for i, n in enumerate(names)):
        raise ValueError(
            f"window has the names {list(names)}, and dims is {list(dims)}. "
            "Pass the same names in both."
        )
    return window


def turned(window: Window, dims: Sequence[str]) -> Window:
    """Return a window whose polygon, which is of x and y, has its axes in the order of `dims`."""
    if window.polygon is None or not {"x", "y"} <= set(dims) or tuple(dims[:2]) == ("x", "y"):
        return window
    if tuple(dims[:2]) != ("y", "x"):
        raise ValueError(
            f"The dimensions are {list(dims)}, and a polygon is of x and y. "
            "Pass dims with x and y first."
        )
    polygon = import_shapely().transform(window.polygon, lambda at: at[:, ::-1])
    return replace(window, bounds=(*window.bounds[1::-1], *window.bounds[2:]), polygon=polygon)


def check_dims(window: Window, dims: Sequence[str], what: str) -> None:
    """Raise ValueError if the window of another pattern has these dimensions in another order."""
    if window.dims and set(window.dims) == set(dims) and window.dims != tuple(dims):
        raise ValueError(
            f"The {what} is of {list(window.dims)}, in that order, and the events of {list(dims)}. "
            "Pass dims in the order of the window, or other bounds."
        )


def import_shapely() -> Any:
    """Import shapely, or say how to get it."""
    try:
        import shapely
        import shapely.geometry
    except ImportError:
        raise ImportError(
            "Polygons need shapely, which is not installed. "
            "In a checkout of pymc-vsgp, run: pip install '.[maps]'."
        ) from None
    return shapely


def _nested(space: Any) -> bool:
    if isinstance(space, dict):
        return True
    return all(isinstance(side, list | tuple | np.ndarray) for side in space)


def _box(window: Any, what: str, ndim: int | None = None) -> tuple[tuple[float, float], ...]:
    try:
        if np.asarray(window).dtype.kind == "b":
            raise TypeError
        sides = np.asarray(window, dtype="float64")
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {window!r}, which is not a window. {HOW}") from None
    sides = sides[None] if sides.shape == (2,) else sides
    if sides.ndim != 2 or sides.shape[1] != 2 or not 1 <= len(sides) <= 3:
        raise ValueError(f"{what} has shape {sides.shape}. {HOW}")
    if ndim is not None and len(sides) != ndim:
        raise ValueError(f"A part of {what} has {len(sides)} dimensions, not {ndim}. {HOW}")
    if not np.isfinite(sides).all():
        raise ValueError(f"{what} is {window!r}, which is not finite. Pass finite bounds.")
    if (sides[:, 0] >= sides[:, 1]).any():
        raise ValueError(f"{what} is {window!r}, which is empty. Pass (low, high), low first.")
    return tuple((float(low), float(high)) for low, high in sides)


def is_geometry(thing: Any) -> bool:
    """Whether it is a geometry, or several, or GeoJSON."""
    if isinstance(thing, type):
        return False
    named = isinstance(thing, dict) and isinstance(thing.get("type"), str)
    return named or hasattr(thing, "__geo_interface__")


def points_of(thing: Any) -> np.ndarray:
    """Return the places of points, one in a row."""
    geo = thing if isinstance(thing, dict) else thing.__geo_interface__
    places: list[Any] = []
    for g in _geometries(geo):
        if g["type"] not in ("Point", "MultiPoint"):
            raise TypeError(f"events holds a {g['type']}, which has no place. Pass points only.")
        places += [g["coordinates"]] if g["type"] == "Point" else list(g["coordinates"])
    if len({len(p) for p in places}) > 1:
        raise ValueError(
            "events holds points with two coordinates, and with three. Give all the same number."
        )
    return np.asarray(places, dtype="float64").reshape(len(places), -1) if places else np.empty(0)


def _geometries(geo: Any) -> list[Any]:
    """Geometries of a GeoJSON mapping."""
    if not geo or "type" not in geo:
        raise TypeError("GeoJSON holds a feature without a geometry. Drop it, or give it one.")
    if geo["type"] == "FeatureCollection":
        return [g for f in geo["features"] for g in _geometries(f)]
    if geo["type"] == "Feature":
        return _geometries(geo["geometry"])
    return [geo]


def _as_polygon(thing: Any, what: str) -> Any:
    shapely = import_shapely()
    if getattr(getattr(thing, "crs", None), "is_geographic", False):
        warnings.warn(
            f"{what} is in degrees, so its area is in square degrees, which differ in size. "
            "Project it and the events first, for example with to_crs.",
            stacklevel=4,
        )
    geo = thing if isinstance(thing, dict) else thing.__geo_interface__
    try:
        parts = [shapely.force_2d(shapely.geometry.shape(g)) for g in _geometries(geo)]
    except (KeyError, shapely.errors.ShapelyError) as error:
        raise ValueError(f"{what} is no valid GeoJSON: {error}. Pass a polygon.") from None
    wrong = [p.geom_type for p in parts if p.geom_type not in ("Polygon", "MultiPolygon")]
    if wrong:
        raise TypeError(f"{what} holds a {wrong[0]}, which has no area. Pass polygons only.")
    if bad := [p for p in parts if not p.is_valid]:
        raise ValueError(
            f"{what} is not a valid polygon: {shapely.is_valid_reason(bad[0])}. "
            "Repair it with shapely.make_valid."
        )
    polygon = parts[0] if len(parts) == 1 else shapely.union_all(parts)
    if polygon.area == 0.0:
        raise ValueError(f"{what} is empty. Pass a polygon that has an area.")
    return polygon


def _bounds_of(polygon: Any) -> tuple[tuple[float, float], ...]:
    x0, y0, x1, y1 = (float(b) for b in polygon.bounds)
    return (x0, x1), (y0, y1)


def _clip(edges: np.ndarray, bounds: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Ends of each interval between edges, inside the bounds."""
    cut = np.clip(edges, *bounds)
    return cut[:-1], cut[1:]


def _cut(polygon: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Area and centroid of each cell's part inside a polygon."""
    shapely = import_shapely()
    shapely.prepare(polygon)
    boxes = shapely.box(x[:-1, None], y[None, :-1], x[1:, None], y[None, 1:])
    inside = shapely.covers(polygon, boxes)
    # Only cells on the border need the intersection itself, which is slow.
    border = ~inside & shapely.intersects(polygon, boxes)
    parts = boxes.copy()
    parts[border] = shapely.intersection(polygon, boxes[border])
    area = np.where(inside | border, shapely.area(parts), 0.0)
    middle = shapely.centroid(np.where(area > 0.0, parts, boxes))  # an empty part has none
    return area, np.stack([shapely.get_x(middle), shapely.get_y(middle)], axis=-1)


def _legendre(low: np.ndarray, high: np.ndarray, n: int) -> Nodes:
    """Gauss-Legendre rule in each interval."""
    at, weight = np.polynomial.legendre.leggauss(n)
    half, middle = (high - low)[:, None] / 2.0, (high + low)[:, None] / 2.0
    points, weights = middle + half * at, half * weight
    return Nodes(points.reshape(-1, 1), weights.ravel(), np.repeat(np.arange(len(low)), n))


def _polygon_rule(polygon: Any, edges: Sequence[np.ndarray], rules: Sequence[Nodes]) -> Nodes:
    """Product rule in the cells inside a polygon, the centroid of what is inside in others.

    The total is the area, and linear functions are exact, whatever the polygon.
    """
    area, middle = _cut(polygon, *edges)
    full = area >= FULL * np.outer(*(np.diff(e) for e in edges))
    x, y = rules
    i, j = (k.ravel() for k in np.indices((len(x.weights), len(y.weights))))
    keep = full[x.cell[i], y.cell[j]]
    i, j = i[keep], j[keep]
    cut = (area > 0.0) & ~full
    number = np.arange(area.size).reshape(area.shape)
    return Nodes(
        np.concatenate([np.column_stack([x.X[i, 0], y.X[j, 0]]), middle[cut]]),
        np.concatenate([x.weights[i] * y.weights[j], area[cut]]),
        np.concatenate([number[x.cell[i], y.cell[j]], number[cut]]),
    )
