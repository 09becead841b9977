"""Point processes: windows and bins against plain numpy, and bins against none."""

import sys
import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference
import reference_gp
import xarray as xr

from marks import long
from modes import RAW
from prior_draws import prior_draws
from scipy import integrate

import pymc_vsgp as vsgp

from pymc_vsgp.point_processes.compare import _label
from pymc_vsgp.point_processes.window import as_window

BOX = [(0.0, 4.0), (-1.0, 1.0)]
# Not convex, with a hole, and with corners that are no grid points.
OUTER = [(0.1, -0.9), (3.9, -0.5), (2.0, 0.1), (3.5, 0.95), (0.4, 0.8), (0.9, 0.0)]
HOLE = [(1.5, -0.35), (1.5, -0.1), (1.9, -0.1), (1.9, -0.35)]


def shoelace(corners):
    """Area and first moments of a polygon, signed."""
    x, y = np.array(corners).T
    x1, y1 = np.roll(x, -1), np.roll(y, -1)
    cross = x * y1 - x1 * y
    return np.array([cross.sum() / 2, ((x + x1) * cross).sum() / 6, ((y + y1) * cross).sum() / 6])


def clip(corners, box):
    """Part of a polygon inside a box, by Sutherland and Hodgman."""
    for axis, bound, sign in [
        (0, box[0][0], 1), (0, box[0][1], -1), (1, box[1][0], 1), (1, box[1][1], -1)
    ]:  # fmt: skip
        kept = []
        for a, b in zip(corners, [*corners[1:], *corners[:1]], strict=True):
            da, db = sign * (a[axis] - bound), sign * (b[axis] - bound)
            if da >= 0:
                kept.append(a)
            if da * db < 0:
                t = da / (da - db)
                kept.append(tuple(np.array(a) + t * (np.array(b) - np.array(a))))
        corners = kept
        if not corners:
            return []
    return corners


def moments_in(box):
    """Area and first moments of the polygon with its hole, inside a box."""
    total = np.zeros(3)
    for ring, sign in [(OUTER, 1.0), (HOLE, -1.0)]:
        part = clip(ring, box)
        m = shoelace(part) if part else np.zeros(3)
        total += sign * m * np.sign(m[0] or 1.0)
    return total


@pytest.fixture
def polygon():
    shapely = pytest.importorskip("shapely", reason="shapely is not installed")
    return shapely.Polygon(OUTER, [HOLE])


@pytest.fixture
def events(rng):
    return rng.uniform([0.0, -1.0], [4.0, 1.0], size=(150, 2))


def counted(pattern):
    """Sum of counts and of volumes are those of the window."""
    assert pattern.counts.sum() == len(pattern.events)
    np.testing.assert_allclose(pattern.volume.sum(), pattern.window.volume, rtol=1e-12)
    return pattern


# --- windows and bins ----------------------------------------------------------------------------


def test_box_is_a_histogram(events):
    pattern = counted(vsgp.point_process(events, BOX, bins=(8, 5)))
    expected, x, y = np.histogram2d(*events.T, bins=(8, 5), range=BOX)
    np.testing.assert_array_equal(pattern.to_grid(pattern.counts), expected)
    np.testing.assert_allclose(pattern.edges[0], x)
    np.testing.assert_allclose(pattern.volume, 0.5 * 0.4)
    middles = np.stack(np.meshgrid((x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2, indexing="ij"), -1)
    np.testing.assert_allclose(pattern.X, middles.reshape(-1, 2))
    assert pattern.window.volume == 8.0


def test_one_dimension_with_edges_beyond_the_window():
    times = np.array([0.5, 1.0, 1.0, 2.5, 4.0])
    pattern = counted(vsgp.point_process(times, (0.5, 4.0), bins=[0, 1, 2, 5], repeated="keep"))
    np.testing.assert_array_equal(pattern.counts, [1, 2, 2])
    np.testing.assert_allclose(pattern.volume, [0.5, 1.0, 2.0])
    np.testing.assert_allclose(pattern.X[:, 0], [0.75, 1.5, 3.0])
    np.testing.assert_allclose(pattern.coords["bin"], pattern.X[:, 0])


@pytest.mark.parametrize(("width", "widths"), [(1.0, [1, 1, 1, 0.5]), (0.7, [0.7] * 5)])
def test_resolution_is_the_width_of_a_bin(width, widths):
    pattern = counted(vsgp.point_process([1.0, 2.0], (0.0, 3.5), resolution=width))
    np.testing.assert_allclose(pattern.volume, widths)


def test_polygon_cells_are_exact(polygon, events):
    pattern = counted(vsgp.point_process(events, polygon, bins=(11, 7), outside="drop"))
    x, y = pattern.edges
    volume = pattern.to_grid(pattern.volume).fillna(0.0).to_numpy()
    middle = [pattern.to_grid(c).to_numpy() for c in pattern.X.T]
    for i in range(11):
        for j in range(7):
            area, *first = moments_in([x[i : i + 2], y[j : j + 2]])
            np.testing.assert_allclose(volume[i, j], area, atol=1e-12)
            if area > 1e-9:
                got = [m[i, j] for m in middle]
                np.testing.assert_allclose(got, np.array(first) / area, atol=1e-7)
    assert 11 * 7 > len(pattern.X)
    np.testing.assert_allclose(polygon.area, moments_in(BOX)[0])


def test_events_on_the_border_are_counted(polygon):
    # A triangle whose long side goes through corners of cells: some of these have no area inside.
    import shapely

    triangle = shapely.Polygon([(0, 0), (1, 0), (0, 1)])
    on_border = np.column_stack([np.arange(5) / 4, 1 - np.arange(5) / 4])
    pattern = counted(vsgp.point_process(on_border, triangle, bins=4))
    assert len(pattern.X) == 10 and pattern.counts.sum() == 5
    np.testing.assert_allclose(np.sort(pattern.volume), [1 / 32] * 4 + [1 / 16] * 6)


def test_space_and_time(polygon, rng):
    at = rng.uniform([0.0, -1.0, 5.0], [4.0, 1.0, 7.0], size=(200, 3))
    pattern = vsgp.point_process(
        at, (polygon, (5.0, 7.0)), bins=(6, 5, [5.0, 5.5, 7.0]), outside="drop",
        unit=("km", "km", "day"),
    )  # fmt: skip
    counted(pattern)
    flat = vsgp.point_process(at[:, :2], polygon, bins=(6, 5), outside="drop")
    np.testing.assert_array_equal(
        pattern.to_grid(pattern.counts).sum("t").to_numpy(),
        flat.to_grid(flat.counts).fillna(0.0).to_numpy(),
    )
    grid = pattern.to_grid(pattern.volume)
    np.testing.assert_allclose(grid[..., 1], 3 * grid[..., 0])
    np.testing.assert_allclose(grid[..., 0] * 2, flat.to_grid(flat.volume))
    assert pattern.units == "events per km² day"
    # Space alone, as a region, is all of the time.
    region = [(0.0, 2.0), (-1.0, 1.0)]
    left = pattern.expected_count(np.full(len(pattern.X), 2.0), region)
    assert float(left) == pytest.approx(2.0 * 2.0 * moments_in(region)[0])
    late = pattern.expected_count(np.full(len(pattern.X), 2.0), (5.25, 7.0))
    assert float(late) == pytest.approx(2.0 * 1.75 * polygon.area)
    for one in ({"t": (5.25, 7.0)}, (polygon, (5.25, 7.0)), [BOX, (5.25, 7.0)]):
        np.testing.assert_allclose(pattern.expected_count(np.full(len(pattern.X), 2.0), one), late)
        assert pattern.count(one) == pattern.count((5.25, 7.0))
    named = {"x": region[0], "y": region[1]}
    assert float(pattern.expected_count(np.full(len(pattern.X), 2.0), named)) == float(left)
    assert pattern.count((5.25, 7.0)) == (pattern.events[:, 2] >= 5.25).sum()
    q = pattern.quadrature(16)
    assert q.weights.sum() == pytest.approx(2.0 * polygon.area)
    box = vsgp.point_process(at, [BOX, (5.0, 7.0)], bins=4)
    assert box.window.volume == 16.0 and box.counts.sum() == 200


def test_mask(events):
    mask = np.ones((8, 5), dtype=bool)
    mask[2:4, 1] = mask[7] = False
    pattern = vsgp.point_process(events, BOX, mask=mask, outside="drop")
    full = vsgp.point_process(events, BOX, bins=(8, 5))
    np.testing.assert_array_equal(pattern.counts, full.counts[mask.ravel()])
    assert len(pattern.events) == pattern.counts.sum() < 150
    np.testing.assert_allclose(pattern.volume.sum(), mask.sum() * 0.2)
    grid = pattern.to_grid(pattern.volume)
    np.testing.assert_array_equal(np.isnan(grid), ~mask)
    labelled = xr.DataArray(
        mask.T,
        dims=["y", "x"],
        coords={"x": full.to_grid(full.counts).x, "y": full.to_grid(full.counts).y},
    )
    for other in (
        vsgp.point_process(events, mask=labelled, dims=["x", "y"], outside="drop"),
        vsgp.point_process(events, labelled, dims=["x", "y"], outside="drop"),
    ):
        np.testing.assert_array_equal(other.counts, pattern.counts)
        np.testing.assert_allclose(other.X, pattern.X)
    q = pattern.quadrature(20)
    assert q.weights.sum() == pytest.approx(mask.sum() * 0.2)


def labelled_mask(dtype="float64"):
    """A mask on the cells of ``bins=(8, 5)`` that is its own mirror image along no axis."""
    mask = np.ones((8, 5), dtype=bool)
    mask[:3, :2] = mask[7] = False
    x, y = 0.25 + np.arange(8) / 2, -0.8 + np.arange(5) * 0.4
    coords = {"x": x.astype(dtype), "y": y.astype(dtype)}
    return xr.DataArray(mask, dims=["x", "y"], coords=coords)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_mask_is_placed_by_its_coordinates(events, dtype):
    mask = labelled_mask(dtype)
    wanted = vsgp.point_process(events, BOX, mask=mask.to_numpy(), outside="drop")
    falling = mask.isel(y=slice(None, None, -1))  # as rasters are
    for other in (mask, falling, falling.T, mask.isel(x=[3, 0, 7, 1, 2, 4, 6, 5])):
        for kwargs in ({"window": BOX}, {"window": BOX, "bins": (8, 5)}, {}):
            got = vsgp.point_process(events, mask=other, dims=["x", "y"], outside="drop", **kwargs)
            np.testing.assert_array_equal(got.counts, wanted.counts)
            np.testing.assert_allclose(got.X, wanted.X, atol=1e-5)
    # Without coordinates axes are cells, in order.
    bare = falling.drop_vars(["x", "y"])
    flipped = vsgp.point_process(events, BOX, mask=bare, outside="drop")
    np.testing.assert_array_equal(flipped._mask, mask.to_numpy()[:, ::-1])


def test_mask_elsewhere_is_refused(events):
    mask = labelled_mask()
    with pytest.raises(ValueError, match="along 'x' go from 1.25 to 4.75, and the middles of the"):
        vsgp.point_process(events, BOX, mask=mask.assign_coords(x=mask.x + 1))
    uneven = mask.assign_coords(x=mask.x**2)
    with pytest.raises(ValueError, match="not in equal steps"):
        vsgp.point_process(events, mask=uneven)
    with pytest.raises(TypeError, match="coordinate 'x' of mask"):
        vsgp.point_process(events, BOX, mask=mask.assign_coords(x=list("abcdefgh")))
    with pytest.raises(ValueError, match="Rename those of the mask"):
        vsgp.point_process(events, mask=mask, dims=["east", "north"])
    with pytest.raises(ValueError, match="as one mask"):
        vsgp.point_process(events, mask, mask=mask)


def test_region_is_placed_by_its_coordinates(events, rng):
    pattern = vsgp.point_process(events, BOX, bins=(8, 5))
    rate, region = rng.uniform(1, 2, 40), labelled_mask()
    falling = region.isel(y=slice(None, None, -1)).T
    wanted = (rate * pattern.exposure)[region.to_numpy().ravel()].sum()
    assert float(pattern.expected_count(rate, falling)) == pytest.approx(wanted)
    assert pattern.count(falling) == pattern.counts[region.to_numpy().ravel()].sum()
    line = vsgp.point_process(events[:, 0], BOX[0], bins=8)
    half = xr.DataArray(np.arange(8) < 2, dims=["x"], coords={"x": line.X[:, 0]})
    assert line.count(half[::-1]) == line.count(half) == (events[:, 0] < 1.0).sum()
    with pytest.raises(ValueError, match="coordinates of region along 'y'"):
        pattern.count(region.assign_coords(y=region.y + 1))


def test_mask_of_a_table_with_axes_in_another_order(polygon, events):
    mask, table = labelled_mask(), pd.DataFrame(events, columns=["x", "y"])
    edges = [np.linspace(*b, n + 1) for b, n in zip(BOX, (8, 5), strict=True)]
    for window, bins in ((BOX, None), (polygon, edges)):
        wanted = vsgp.point_process(events, window, bins=bins, mask=mask.to_numpy(), outside="drop")
        for other in (mask.T, mask.T.drop_vars(["x", "y"])):
            got = vsgp.point_process(table, window, bins=bins, mask=other, outside="drop")
            np.testing.assert_array_equal(got.counts, wanted.counts)
            np.testing.assert_allclose(got.X, wanted.X)


def test_mask_of_a_polygon_in_time(polygon, rng):
    at = rng.uniform([0.0, -1.0, 5.0], [4.0, 1.0, 7.0], size=(200, 3))
    mask = rng.uniform(size=(6, 5, 4)) < 0.6
    pattern = vsgp.point_process(at, (polygon, (5.0, 7.0)), mask=mask, outside="drop")
    full = vsgp.point_process(at, (polygon, (5.0, 7.0)), bins=(6, 5, 4), outside="drop")
    np.testing.assert_array_equal(
        pattern.to_grid(pattern.counts),
        np.where(mask, full.to_grid(full.counts), np.nan),
    )
    q = pattern.quadrature(12)
    assert q.weights.sum() == pytest.approx(pattern.volume.sum())
    # Linear functions are exact in each cell.
    first = (pattern.volume[:, None] * pattern.X).sum(axis=0)
    np.testing.assert_allclose(q.weights[q.n_events :] @ q.nodes, first)


def test_tables_and_arrays_agree(events):
    wanted = vsgp.point_process(events, BOX, bins=4)
    table = pd.DataFrame(events[:, ::-1], columns=["north", "east"]).assign(height=1.0)
    array = xr.DataArray(events, dims=["event", "axis"], coords={"axis": ["east", "north"]})
    data = xr.Dataset({"east": ("event", events[:, 0]), "north": ("event", events[:, 1])})
    window = {"east": BOX[0], "north": BOX[1]}
    for got in (
        vsgp.point_process(table, BOX, bins=4, dims=["east", "north"]),
        vsgp.point_process(table, window, bins=4),
        vsgp.point_process(array, BOX, bins=4),
        vsgp.point_process(data, window, bins=4),
        vsgp.point_process(data, BOX, bins=4),
    ):
        np.testing.assert_array_equal(got.counts, wanted.counts)
        assert got.dims == ("east", "north")
    assert wanted.dims == ("x", "y")
    series = pd.Series([1.0, 2.0], name="year")
    assert vsgp.point_process(series, (0, 3)).dims == ("year",)


def test_names_in_space_and_time(events, rng):
    t = rng.uniform(0.0, 5.0, 150)
    wanted = vsgp.point_process(np.column_stack([events, t]), [BOX, (0.0, 5.0)], bins=3)
    table = pd.DataFrame({"t": t, "y": events[:, 1], "x": events[:, 0]})
    window = ({"x": BOX[0], "y": BOX[1]}, (0.0, 5.0))
    columns = {n: ("event", c.to_numpy()) for n, c in table.rename(columns={"t": "day"}).items()}
    data = xr.Dataset({n: columns[n] for n in ("y", "x")}, coords={"day": columns["day"]})
    for thing, time in (
        (table, "t"),
        (table.assign(size=1.0), "t"),
        (table.rename(columns={"t": "day"}), "day"),
        (data, "day"),
        (np.column_stack([events, t]), "t"),
    ):
        got = vsgp.point_process(thing, window, bins=3)
        assert got.dims == ("x", "y", time)
        np.testing.assert_array_equal(got.counts, wanted.counts)
    two = table.assign(size=1.0).rename(columns={"t": "day"})
    got = vsgp.point_process(two, window, bins=3, dims=["x", "y", "day"])
    np.testing.assert_array_equal(got.counts, wanted.counts)
    for thing in (two, table[["x", "y"]]):
        with pytest.raises(ValueError, match="no name for time. Pass dims="):
            vsgp.point_process(thing, window)
    # A region takes names in the same way.
    late = ({"y": (0.0, 1.0)}, (2.0, 5.0))
    assert got.count(late) == got.count({"y": (0.0, 1.0), "day": (2.0, 5.0)})
    assert got.count(late) == ((events[:, 1] >= 0) & (t >= 2.0)).sum()
    with pytest.raises(ValueError, match="by the names of the window"):
        got.count(({"north": (0.0, 1.0)}, (2.0, 5.0)))


def test_bounds_go_by_their_names(events, rng):
    table = pd.DataFrame(events, columns=["x", "y"]).assign(t=rng.uniform(0.0, 5.0, 150))
    window, flipped = {"x": BOX[0], "y": BOX[1]}, (BOX[1], BOX[0])
    got = vsgp.point_process(table[["x", "y"]], window, dims=["y", "x"], bins=(5, 8))
    assert got.window.bounds == flipped and len(got.events) == 150
    got = vsgp.point_process(table, (window, (0.0, 5.0)), dims=["y", "x", "t"], bins=3)
    assert got.window.bounds == (*flipped, (0.0, 5.0)) and len(got.events) == 150
    # Other names are in order, unless they are some of the same.
    got = vsgp.point_process(events, window, dims=["east", "north"], bins=4)
    assert got.window.bounds == tuple(BOX)
    with pytest.raises(ValueError, match=r"\['x', 'y'\], and dims is \['t', 'x'\]. Pass the same"):
        vsgp.point_process(table, (window, (0.0, 5.0)), dims=["t", "x", "y"])


def test_columns_that_have_some_of_the_names(events):
    table = pd.DataFrame(events, columns=["y", "east"])
    with pytest.raises(ValueError, match=r"columns \['y', 'east'\].*\['x', 'y'\]"):
        vsgp.point_process(table, {"x": BOX[0], "y": BOX[1]})
    with pytest.raises(ValueError, match="columns"):
        vsgp.point_process(xr.Dataset({"x": ("e", [1.0])}), BOX, dims=["x", "y"])


def test_other_kinds_of_polygons(polygon):
    import shapely

    geojson = shapely.geometry.mapping(polygon)
    halves = [
        shapely.geometry.mapping(shapely.intersection(polygon, shapely.box(a, -1, b, 1)))
        for a, b in [(0, 2), (2, 4)]
    ]
    features = [{"type": "Feature", "geometry": h, "properties": {}} for h in halves]
    for window in (geojson, {"type": "FeatureCollection", "features": features}):
        assert as_window(window).volume == pytest.approx(polygon.area)


def test_points_as_geometries(events):
    wanted = vsgp.point_process(events, BOX, bins=4)
    many = {"type": "MultiPoint", "coordinates": events.tolist()}
    each = [
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": tuple(e)}} for e in events
    ]
    for geo in (many, {"type": "FeatureCollection", "features": each}):
        table = pd.DataFrame({"height": np.ones(150)})
        object.__setattr__(table, "__geo_interface__", geo)  # as geopandas has it
        for thing in (geo, table):
            got = vsgp.point_process(thing, BOX, bins=4)
            np.testing.assert_array_equal(got.counts, wanted.counts)
    with pytest.raises(TypeError, match="LineString"):
        vsgp.point_process({"type": "LineString", "coordinates": [(0, 0), (1, 1)]}, BOX)


def test_geometries_are_x_and_y(polygon, events):
    """Whatever the order of the dimensions; numbers without names are in that order."""
    points = {"type": "MultiPoint", "coordinates": events.tolist()}
    window = {"y": BOX[1], "x": BOX[0]}
    wanted = vsgp.point_process(events, BOX, bins=(8, 5))
    for thing in (points, events[:, ::-1], pd.DataFrame(events, columns=["x", "y"])):
        got = vsgp.point_process(thing, window, bins=(5, 8))
        assert got.dims == ("y", "x")
        np.testing.assert_array_equal(got.to_grid(got.counts).T, wanted.to_grid(wanted.counts))
    mask = labelled_mask()
    masked = vsgp.point_process(points, mask=mask.T, outside="drop")
    flat = vsgp.point_process(events, BOX, mask=mask.to_numpy(), outside="drop")
    np.testing.assert_array_equal(masked.to_grid(masked.counts).T, flat.to_grid(flat.counts))
    # Polygons, too, as regions and as windows.
    assert got.count(polygon) == wanted.count(polygon)
    one = np.ones(40)
    assert float(got.expected_count(one, polygon)) == pytest.approx(polygon.area)
    assert got.count(got.window) == 150
    inside = vsgp.point_process(points, polygon, bins=(5, 8), dims=["y", "x"], outside="drop")
    other = vsgp.point_process(events, polygon, bins=(8, 5), outside="drop")
    np.testing.assert_allclose(inside.to_grid(inside.counts).T, other.to_grid(other.counts))
    again = vsgp.point_process(events[:, ::-1], inside.window, bins=(5, 8), dims=["y", "x"],
                               outside="drop")  # fmt: skip
    np.testing.assert_array_equal(again.counts, inside.counts)
    in_time = np.column_stack([np.ones(150), events])
    with pytest.raises(ValueError, match="x and y first"):
        vsgp.point_process(in_time, (polygon, (0, 2)), dims=["t", "x", "y"])
    deep = {"type": "MultiPoint", "coordinates": np.column_stack([events, -events[:, 1]]).tolist()}
    box = {"z": (-1, 1), "y": BOX[1], "x": BOX[0]}
    assert vsgp.point_process(deep, box, bins=4).counts.sum() == 150


# --- values over the window ----------------------------------------------------------------------


def test_covariates_and_exposure(events):
    def slope(X):
        return X[:, 0] - 2.0 * X[:, 1]

    plain = vsgp.point_process(events, BOX, bins=(4, 3))
    wanted = slope(plain.X)
    grid = plain.to_grid(wanted)
    for covariates in (
        {"slope": slope},
        slope,
        {"slope": grid.to_numpy()},
        {"slope": wanted},
        {"slope": grid.transpose("y", "x")},
        xr.Dataset({"slope": grid}),
        pd.DataFrame({"slope": wanted}),
        grid.rename("slope"),
    ):
        pattern = vsgp.point_process(
            events, BOX, bins=(4, 3), covariates=covariates, exposure=lambda X: 1 + X[:, 0]
        )
        assert list(pattern.covariates) == ["slope"]
        np.testing.assert_allclose(pattern.covariates["slope"], wanted)
        np.testing.assert_allclose(pattern.inputs, np.column_stack([pattern.X, wanted]))
        np.testing.assert_allclose(pattern.exposure, pattern.volume * (1 + pattern.X[:, 0]))
    half = vsgp.point_process(events, BOX, bins=(4, 3), exposure=0.5, covariates=slope)
    np.testing.assert_allclose(half.exposure, half.volume / 2)
    # Values in cells stay where they are in other bins and at quadrature nodes.
    coarse = vsgp.point_process(events, BOX, bins=(4, 3), covariates={"c": wanted}, exposure=0.5)
    fine = coarse.rebin((8, 6))
    np.testing.assert_allclose(
        fine.to_grid(fine.covariates["c"]).to_numpy(), np.kron(grid, np.ones((2, 2)))
    )
    np.testing.assert_allclose(fine.exposure, fine.volume / 2)
    q = half.quadrature(6)
    np.testing.assert_allclose(q.X[:, 2], slope(q.X[:, :2]))
    np.testing.assert_allclose(q.weights.sum(), 4.0)


def test_exposure_of_bins_is_integrated(rng):
    """Over other bins, and over nodes: by sums of the cells."""
    effort = np.tile([1.0, 1.0, 0.1, 0.1], 25)
    pattern = vsgp.point_process(rng.uniform(0, 100, 30), (0, 100), bins=100, exposure=effort)
    total = np.append(0.0, np.cumsum(effort))
    for bins in (25, 30, 200, [0.0, 1.5, 33.3, 100.0]):
        other = pattern.rebin(bins)
        wanted = np.diff(np.interp(other.edges[0], np.arange(101), total))
        np.testing.assert_allclose(other.exposure, wanted)
    np.testing.assert_allclose(other.rebin(1).exposure, total[-1:])
    for n in (10, 250):
        q = pattern.quadrature(n)
        node = np.floor(q.nodes[:, 0]).astype(int)
        np.testing.assert_allclose(np.bincount(node, q.weights[30:]), effort)


def test_exposure_of_bins_of_a_polygon_is_integrated(polygon, events, rng):
    effort = rng.uniform(0.5, 2.0, (11, 7))
    pattern = vsgp.point_process(events, polygon, bins=(11, 7), exposure=effort, outside="drop")
    other = pattern.rebin((4, 5))
    x, y = other.edges
    found = other.to_grid(other.exposure).fillna(0.0).to_numpy()
    for i, j in ((0, 0), (1, 2), (3, 4)):
        wanted, sides = 0.0, (x[i : i + 2], y[j : j + 2])
        for k in np.ndindex(11, 7):
            own = [pattern.edges[d][k[d] : k[d] + 2] for d in range(2)]
            box = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(own, sides, strict=True)]
            if all(low < high for low, high in box):
                wanted += effort[k] * moments_in(box)[0]
        np.testing.assert_allclose(found[i, j], wanted, atol=1e-12)
    for n in (6, 40):
        np.testing.assert_allclose(pattern.quadrature(n).weights.sum(), pattern.exposure.sum())


def test_values_from_elsewhere(events):
    """A step beyond the middles of cells is no matter, and other units are."""
    field = xr.DataArray(1.0 + np.arange(8), dims=["x"], coords={"x": 0.25 + np.arange(8) / 2})
    vsgp.point_process(events, BOX, bins=(64, 1), covariates={"depth": field})
    metres = field.assign_coords(x=1000 * field.x)
    with pytest.warns(UserWarning, match="'x' of depth .* all 4 points get the value at 250"):
        vsgp.point_process(events, BOX, bins=(4, 1), covariates={"depth": metres})
    with pytest.raises(ValueError, match="from 1250 to 3750, and 4 of 4 points .* same units"):
        vsgp.point_process(events, BOX, bins=(4, 1), covariates={"depth": metres[2:]})
    with pytest.warns(UserWarning, match=r"2 of 6 points .* the first at \(2.5, 0\)") as caught:
        vsgp.point_process(events, BOX, bins=(4, 1), exposure=field[3::-1])
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="coordinate 'x' of exposure is .*Pass numbers"):
        words = field.assign_coords(x=list("abcdefgh"))
        vsgp.point_process(events, BOX, bins=(4, 1), exposure=words)


def test_exposure_by_coordinates_is_averaged_over_bins(rng):
    """Its total is that of its cells, for any bins, after `rebin`, and in a quadrature rule."""
    values = rng.uniform(0.0, 3.0, (7, 9))
    x, y = (np.arange(7) + 0.5) / 7, (np.arange(9) + 0.5) / 3
    effort = xr.DataArray(values.T, dims=["y", "x"], coords={"x": x, "y": y})
    window = {"x": (0.0, 1.0), "y": (0.0, 3.0)}
    places = rng.uniform(size=(5, 2))
    for bins in ((7, 9), (3, 4), (20, 2)):
        pattern = vsgp.point_process(places, window, bins=bins, exposure=effort.sortby("x", False))
        for each in (pattern, pattern.rebin((2, 5))):
            np.testing.assert_allclose(each.exposure.sum(), 3.0 * values.mean())
        np.testing.assert_allclose(pattern.quadrature(6).weights.sum(), 3.0 * values.mean())
    fine = vsgp.point_process(places, window, bins=(14, 9), exposure=effort)
    coarse = vsgp.point_process(places, window, bins=(2, 1), exposure=effort)
    on_grid = fine.to_grid(fine.exposure).to_numpy()
    wanted = [on_grid[:7].sum(), on_grid[7:].sum()]
    np.testing.assert_allclose(coarse.exposure, wanted)
    missing = effort.where(effort.x > 0.5)  # half a bin of what is not known is an error
    with pytest.raises(ValueError, match="exposure is not finite"):
        vsgp.point_process(places, window, bins=(1, 1), exposure=missing)
    seen = xr.DataArray([False] * 4 + [True] * 3, dims=["x"]).to_numpy()[:, None] & np.ones(9, bool)
    masked = vsgp.point_process(
        places + [[0.6, 0.0]] * 5, window, mask=seen, exposure=missing, outside="drop"
    )
    np.testing.assert_allclose(masked.exposure.sum(), 3.0 * values[4:].sum() / 63)


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ([0.1, 0.1, 0.5], ValueError, "coordinate along 'x' twice. Average over them"),
        (["a", "b", "c"], TypeError, "coordinate 'x' of exposure is .* numbers are needed"),
        (None, TypeError, "exposure is .* numbers are needed"),
    ],
)
def test_coordinates_that_are_no_places_are_refused(values, error, match):
    effort = xr.DataArray([1.0, 3.0, 2.0], dims="x", coords={"x": [0.1, 0.9, 0.5]})
    if values is None:
        effort = effort.astype("datetime64[ns]")
    else:
        effort = effort.assign_coords(x=values)
    with pytest.raises(error, match=match):
        vsgp.point_process([0.1, 0.2], (0, 1), bins=3, dims=["x"], exposure=effort)


def test_covariates_by_coordinates_in_any_order():
    field = xr.DataArray([1.0, 3.0, 2.0], dims="x", coords={"x": [0.1, 0.9, 0.5]})
    pattern = vsgp.point_process([0.1], (0, 1), bins=3, dims=["x"], covariates={"c": field})
    assert pattern.covariates["c"].tolist() == [1.0, 2.0, 3.0]


def test_series_in_another_order_than_the_bins_are_refused():
    window = {"x": (0, 1), "y": (0, 1)}
    options = {"bins": 2, "covariates": {"s": lambda X: X[:, 0] + 10 * X[:, 1]}}
    pattern = vsgp.point_process([[0.1, 0.2]], window, **options)
    turned = pattern.covariates.sort_values("s", ascending=False)
    for call in (
        lambda: pattern.to_grid(turned["s"]),
        lambda: pattern.expected_count(turned["s"]),
        lambda: vsgp.point_process([[0.1, 0.2]], window, bins=2, exposure=turned["s"]),
        lambda: vsgp.point_process([[0.1, 0.2]], window, bins=2, covariates=turned),
    ):
        with pytest.raises(ValueError, match="in another order. Sort both alike"):
            call()
    np.testing.assert_allclose(
        pattern.to_grid(pattern.covariates["s"]), [[2.75, 7.75], [3.25, 8.25]]
    )


NULL = {"type": "Feature", "properties": {}, "geometry": None}


@pytest.mark.parametrize(
    "events",
    [
        {"type": "FeatureCollection", "features": []},
        pd.DataFrame(columns=["x", "y"]),
        np.empty((0, 2), dtype=object),
        [],
    ],
    ids=["GeoJSON", "table", "objects", "list"],
)
def test_no_events_of_any_kind(events):
    with pytest.warns(UserWarning, match="There are no events in the window"):
        pattern = vsgp.point_process(events, [(0, 1), (0, 1)], bins=2)
    assert pattern.counts.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("events", "error", "match"),
    [
        ({"type": "FeatureCollection", "features": [NULL]}, TypeError, "without a geometry"),
        (
            {"type": "MultiPoint", "coordinates": [[0.1, 0.2], [0.1, 0.2, 3]]},
            ValueError,
            "two coordinates, and with three",
        ),
        (
            xr.Dataset({"x": ("event", [0.1]), "y": ("event", [0.1]), "h": ("site", [1, 2])}),
            ValueError,
            "several dimensions",
        ),
    ],
)
def test_events_without_a_place_say_so(events, error, match):
    with pytest.raises(error, match=match):
        vsgp.point_process(events, [(0, 1), (0, 1)], bins=2)


def test_events_as_points_and_as_a_row_for_each_coordinate():
    import shapely

    wanted = np.array([[0.1, 0.2], [0.3, 0.7]])
    labels = {"coord": ["y", "x"]}
    for events in (
        [shapely.Point(p) for p in wanted],
        np.array([shapely.Point(p) for p in wanted]),
        xr.DataArray(wanted.T[::-1], dims=["coord", "event"], coords=labels),
        xr.Dataset(
            {
                "x": ("event", wanted[:, 0]),
                "y": ("event", wanted[:, 1]),
                "site": ("site", [1, 2, 3]),
            }
        ),
    ):
        pattern = vsgp.point_process(events, {"x": (0, 1), "y": (0, 1)}, bins=2)
        np.testing.assert_array_equal(pattern.events, wanted)


def test_a_window_of_another_pattern_has_its_dimensions_in_order(rng):
    table = pd.DataFrame(rng.uniform(0, 1, (30, 2)) * [1.0, 2.0], columns=["x", "y"])
    turned = vsgp.point_process(table, {"y": (0, 2), "x": (0, 1)}, bins=2)
    straight = vsgp.point_process(table, {"x": (0, 1), "y": (0, 2)}, bins=2)
    with pytest.raises(ValueError, match=r"window is of \['y', 'x'\], in that order"):
        vsgp.point_process(table, turned.window, bins=2)
    with pytest.raises(ValueError, match=r"region is of \['y', 'x'\], in that order"):
        straight.count(turned.window)
    again = vsgp.point_process(table, turned.window, bins=2, dims=["y", "x"])
    np.testing.assert_array_equal(again.counts, turned.counts)
    assert straight.count(straight.window) == 30
    other = table.rename(columns={"x": "lon", "y": "lat"})
    assert vsgp.point_process(other, straight.window, bins=2).dims == ("lon", "lat")


@pytest.mark.parametrize("window", [{"type": "Polygon"}, {"type": "Cube", "coordinates": []}])
def test_broken_geojson_says_so(window):
    with pytest.raises(ValueError, match="window is no valid GeoJSON"):
        vsgp.point_process([[0.1, 0.2]], window)


def test_names_of_regions():
    import shapely

    west, east = shapely.box(0, 0, 0.5, 1), shapely.box(0.5, 0, 1, 1)
    pattern = vsgp.point_process([[0.1, 0.2], [0.3, 0.7], [0.7, 0.1]], [(0, 1), (0, 1)], bins=2)
    for names in ([("a", 1), ("a", 2)], ["type", "b"], ["a", 2]):
        regions = dict(zip(names, (west, east), strict=True))
        for found, wanted in (
            (pattern.count(regions), [2, 1]),
            (pattern.expected_count(np.ones(4), regions), [0.5, 0.5]),
        ):
            assert list(found.region.to_numpy()) == names
            np.testing.assert_allclose(found, wanted)
    with pytest.raises(ValueError, match="Region 'far': The region does not meet the window"):
        pattern.expected_count(np.ones(4), {"west": west, "far": shapely.box(5, 5, 6, 6)})
    assert pattern.count([[True, True], [False, False]]) == 2


def test_a_time_region_with_a_mistyped_name_is_no_region_of_its_own():
    space = {"x": (0, 1), "y": (0, 1)}
    pattern = vsgp.point_process([[0.1, 0.2, 0.3]], (space, (0, 1)), bins=2)
    with pytest.raises(ValueError, match="the name 'time', and the window has .*'t'"):
        pattern.expected_count(np.ones(8), {"x": (0, 0.5), "time": (0, 0.5)})
    first = vsgp.point_process(
        pd.DataFrame({"t": [0.1], "x": [0.2], "y": [0.3]}), {"t": (0, 5), **space}, bins=2
    )
    with pytest.raises(ValueError, match="Pass bounds by the names"):
        first.expected_count(np.ones(8), [(0, 0.5), (0, 0.5)])


def test_a_region_that_touches_a_window_along_a_line():
    """Area and border in common are a collection of geometries, of which the area counts."""
    import shapely

    points = [(0, 0), (0.1, 0), (0.1, 0.05), (0.075, 0.075), (0.1, 0.1), (0, 0.1), (0.025, 0.05)]
    pattern = vsgp.point_process([[0.05, 0.05]], shapely.Polygon(points), bins=3)
    region = [(0, 0.0125), (0, 0.075000000000000011)]
    found = pattern.expected_count(np.ones(len(pattern.X)), region)
    np.testing.assert_allclose(found, 0.00015625)


def test_an_intensity_leaves_out_covariates_that_the_model_has_not(rng):
    pattern = vsgp.point_process(
        rng.uniform(0, 1, (60, 2)),
        {"x": (0, 1), "y": (0, 1)},
        bins=(4, 3),
        covariates={"s": lambda X: X[:, 0]},
    )
    turned = pd.DataFrame(pattern.X, columns=["x", "y"])[["y", "x"]]

    def model_of(X, likelihood):
        with pm.Model() as model:
            b = pm.Normal("b")
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[0.2, 5.0]))
            gp.prior("u", Xu=np.asarray(X)[::3])
            gp.likelihood("y", likelihood(b), X=X, y=pattern.counts)
        return model

    model = model_of(turned, lambda b: vsgp.Poisson(pattern.exposure))
    draws = prior_draws(model)
    wanted = pattern.intensity(draws, turned, model=model)
    with model:
        container = pm.Data("places", pattern.X)
    for X in (None, pattern.X, pattern.inputs, turned[["x", "y"]], container):
        np.testing.assert_allclose(pattern.intensity(draws, X, model=model), wanted)
    # The recipe for a covariate that is part of the exposure.
    slope = pattern.covariates["s"].to_numpy()
    factor = lambda b: pm.math.exp(slope * b)  # noqa: E731  (short, and used twice)
    model = model_of(pattern.X, lambda b: vsgp.Poisson(pattern.exposure * factor(b)))
    draws = prior_draws(model)
    rate = vsgp.Poisson(factor(model["b"]))
    found = pattern.expected_count(draws, model=model, likelihood=rate)
    each = pattern.intensity(draws, model=model, likelihood=rate)
    assert each.dims == ("chain", "draw", "bin")
    np.testing.assert_allclose(found, each.dot(xr.DataArray(pattern.exposure, dims="bin")))


def test_a_likelihood_without_an_exposure_is_told_of(rng):
    pattern = vsgp.point_process(rng.uniform(0, 100, 50), (0, 100), bins=20)
    for exposure, n in ((1.0, 1), (5.0, 0), (pattern.exposure, 0)):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=20.0))
            gp.prior("u", Xu=pattern.X[::4])
            gp.likelihood("y", vsgp.Poisson(exposure), X=pattern.X, y=pattern.counts)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pattern.intensity(prior_draws(model), model=model)
        said = [w for w in caught if "expected counts are wrong" in str(w.message)]
        assert len(said) == n


def test_values_of_bins_reach_places_outside_of_all_bins(polygon):
    import shapely

    # The centroid of all of the shape is in the notch; the event is on the long side.
    shape = shapely.Polygon(
        [(0, 0), (4, 0), (4, 4), (0, 4), (0, 3.8), (3.8, 3.8), (3.8, 0.2), (0, 0.2)]
    )
    pattern = vsgp.point_process([[4.0, 2.0]], shape, bins=8)
    own = np.arange(len(pattern.X), dtype=float)
    pattern = vsgp.point_process(
        [[4.0, 2.0]], shape, bins=8, covariates={"own": own}, exposure=own + 1
    )
    one = pattern.rebin(1)
    assert not shape.contains(shapely.Point(one.X[0]))
    nearest = np.argmin(((pattern.X - one.X[0]) ** 2).sum(axis=1))
    assert one.covariates["own"][0] == nearest
    q = pattern.quadrature(2)
    np.testing.assert_allclose(q.weights.sum(), pattern.exposure.sum())
    np.testing.assert_allclose(one.exposure, pattern.exposure.sum())


def test_grid_keeps_dimensions_in_front(polygon, events, rng):
    pattern = vsgp.point_process(events, polygon, bins=6, outside="drop")
    draws = xr.DataArray(
        rng.normal(size=(2, len(pattern.X), 3)),
        dims=["chain", "point", "draw"],
        coords={"chain": [0, 4]},
        attrs={"units": "per acre"},
    )
    grid = pattern.to_grid(draws)
    assert grid.dims == ("chain", "draw", "x", "y") and grid.attrs["units"] == "per acre"
    assert list(grid.chain) == [0, 4]
    back = grid.stack(cell=["x", "y"]).isel(cell=pattern.cell)
    np.testing.assert_array_equal(back.to_numpy(), draws.transpose("chain", "draw", "point"))
    assert int(np.isnan(grid[0, 0]).sum()) == 36 - len(pattern.X)


def test_expected_counts(polygon, events, rng):
    pattern = vsgp.point_process(events, polygon, bins=(11, 7), outside="drop", exposure=0.5)
    rate = xr.DataArray(rng.uniform(1, 3, (2, 4, len(pattern.X))), dims=["chain", "draw", "bin"])
    whole = pattern.expected_count(rate)
    assert whole.dims == ("chain", "draw")
    np.testing.assert_allclose(whole, (rate.to_numpy() * pattern.exposure).sum(-1))
    np.testing.assert_allclose(pattern.expected_count(rate, polygon), whole)
    # Halves that cut through bins, and through the border of the polygon.
    halves = {"west": [(0.0, 1.7), (-1.0, 1.0)], "east": [(1.7, 9.0), (-1.0, 1.0)]}
    both = pattern.expected_count(rate, halves)
    np.testing.assert_allclose(both.sum("region"), whole)
    assert list(both.region) == ["west", "east"]
    one = pattern.expected_count(xr.ones_like(rate), halves["west"])
    np.testing.assert_allclose(one, 0.5 * moments_in(halves["west"])[0])
    assert pattern.count(halves["west"]) == (pattern.events[:, 0] <= 1.7).sum()
    chosen = pattern.X[:, 0] < 1.0
    np.testing.assert_allclose(
        pattern.expected_count(rate, chosen),
        (rate.to_numpy() * pattern.exposure)[..., chosen].sum(-1),
    )
    assert pattern.count(chosen) == pattern.counts[chosen].sum()
    on_grid = pattern.to_grid(chosen.astype(float)).to_numpy() == 1.0
    np.testing.assert_allclose(
        pattern.expected_count(rate, on_grid), pattern.expected_count(rate, chosen)
    )
    assert pattern.count(polygon) == pattern.count() == len(pattern.events)


def test_counts_of_several_regions(events):
    pattern = vsgp.point_process(events, BOX, bins=(8, 5))
    found = pattern.count({"west": [(0.0, 1.7), (-1.0, 1.0)], "north": {"y": (0.0, 1.0)}})
    assert found.dims == ("region",) and list(found.region) == ["west", "north"]
    assert list(found) == [(events[:, 0] <= 1.7).sum(), (events[:, 1] >= 0.0).sum()]
    line = vsgp.point_process(events[:, 0], BOX[0], bins=8)
    assert list(line.count({"early": (0.0, 1.0)})) == [(events[:, 0] <= 1.0).sum()]
    with pytest.raises(ValueError, match=r"'lon': .*\['x', 'y'\]. Pass .* bounds by their names"):
        pattern.count({"lon": (0.0, 1.0)})
    with pytest.raises(ValueError, match="the name 'lat', and the window has .* names than 'x'"):
        pattern.count({"x": (0.0, 1.0), "lat": (0.0, 1.0)})
    with pytest.raises(ValueError, match="the name 'lon', and the window has"):
        pattern.count({"west": {"lon": (0.0, 1.0)}})


def test_an_event_on_a_border_counts_once():
    """Regions that are bins hold what the bins do, the end of the window included."""
    years = vsgp.point_process(np.arange(1, 11), (1, 10), bins=9)
    assert list(years.count({"a": (1, 5), "b": (5, 10)})) == [4, 6]
    assert list(years.count({"a": (0, 5), "b": (5, 9), "c": (9, 12)})) == [4, 4, 2]
    corners = np.stack(np.meshgrid(np.arange(5.0), np.arange(-1.0, 1.1, 0.5)), -1).reshape(-1, 2)
    pattern = vsgp.point_process(corners, BOX, bins=(2, 2))
    sides = [[(0, 2), (2, 4)], [(-1, 0), (0, 1)]]
    boxes = {f"{i}{j}": [sides[0][i], sides[1][j]] for i in range(2) for j in range(2)}
    np.testing.assert_array_equal(pattern.count(boxes), pattern.counts)
    named = {k: {"x": x, "y": y} for k, (x, y) in boxes.items()}
    np.testing.assert_array_equal(pattern.count(named), pattern.counts)
    in_time = np.column_stack([corners, np.arange(25) % 3])
    timed = vsgp.point_process(in_time, [BOX, (0, 2)], bins=(2, 2, 2))
    halves = {"early": (0, 1), "late": (1, 2)}
    assert list(timed.count(halves)) == [(in_time[:, 2] < 1).sum(), (in_time[:, 2] >= 1).sum()]


def test_an_event_on_a_border_of_polygons_counts_once():
    shapely = pytest.importorskip("shapely", reason="shapely is not installed")
    corners = np.stack(np.meshgrid(np.arange(5.0), np.arange(-1.0, 1.1, 0.5)), -1).reshape(-1, 2)
    pattern = vsgp.point_process(corners, BOX, bins=(2, 2))
    boxes = {f"{x}{y}": shapely.box(x, y, x + 2, y + 1) for x in (0, 2) for y in (-1, 0)}
    np.testing.assert_array_equal(pattern.count(boxes), pattern.counts)
    # Triangles around the middle, where four of them meet.
    ring = [(0, -1), (4, -1), (4, 1), (0, 1), (0, -1)]
    parts = {str(i): shapely.Polygon([*ring[i : i + 2], (2, 0)]) for i in range(4)}
    assert pattern.count(parts).sum() == 25
    # A window that is not convex has ends that are none of its bounds.
    window = shapely.box(0, -1, 4, 0) | shapely.box(0, 0, 2, 1)
    shape = vsgp.point_process(corners, window, bins=(2, 2), outside="drop")
    assert shape.count(window) == len(shape.events) == 21
    upper = {"polygon": shapely.box(0, 0, 2, 1), "box": [(0, 2), (0, 1)]}
    assert list(shape.count(upper)) == [8, 8]  # of nine: the notch is at (2, 0)
    halves = {"west": {"x": (0, 2)}, "east": {"x": (2, 4)}}
    assert shape.count(halves).sum() == 21
    # A sharp corner, at the border of two regions.
    wedge = shapely.Polygon([(0, 0), (4, 0.8), (4, -0.1)])
    sharp = vsgp.point_process(np.array([[0.0, 0.0], [2.0, 0.1]]), wedge, bins=(2, 2))
    assert sharp.count({"up": shapely.box(0, 0, 4, 1), "down": shapely.box(0, -1, 4, 0)}).sum() == 2


def test_booleans_of_bins_of_any_kind(rng):
    for n in (2, 5):  # two booleans are no interval from 0 to 1
        pattern = vsgp.point_process(
            rng.uniform(0, 10, 50), (0, 10), bins=n, covariates={"c": lambda X: X[:, 0] - 5}
        )
        keep = pattern.covariates["c"] > 0
        wanted = (np.arange(1, n + 1) * pattern.exposure)[keep.to_numpy()].sum()
        for region in (keep, keep.astype("boolean"), keep.tolist(), list(keep.to_numpy())):
            assert float(pattern.expected_count(np.arange(1, n + 1), region)) == wanted
            assert pattern.count(region) == pattern.counts[keep.to_numpy()].sum()
        with pytest.raises(ValueError, match=r"another index .* Pass region.to_numpy\(\)"):
            pattern.count(keep[::-1])
        with pytest.raises(ValueError, match=rf"shape \(3,\), and the grid \({n},\)"):
            pattern.count([True, False, True])
    with pytest.raises(TypeError, match="not a window"):
        pattern.count((False, True))


def test_the_dimension_of_bins_is_never_guessed(events):
    pattern = vsgp.point_process(events, BOX, bins=(3, 1))
    numbers = np.arange(12.0).reshape(2, 2, 3)
    for dims in (["chain", "draw", "bin"], ["chain", "draw", "y_obs"]):
        rate = xr.DataArray(numbers, dims=dims)
        np.testing.assert_array_equal(pattern.expected_count(rate), numbers @ pattern.exposure)
    square = np.arange(9.0).reshape(3, 3)
    rate = xr.DataArray(square, dims=["bin", "species"])
    got = pattern.expected_count(rate)
    assert got.dims == ("species",)
    np.testing.assert_allclose(got, pattern.exposure @ square)
    rate = xr.DataArray(square, dims=["draw", "y_obs"])
    np.testing.assert_allclose(pattern.expected_count(rate), square @ pattern.exposure)
    for dims, shape in (
        (["y_obs", "species"], (3, 3)), (["draw"], (3,)), (["bin", "species"], (4, 3))
    ):  # fmt: skip
        with pytest.raises(ValueError, match="on the dimension 'bin'"):
            pattern.expected_count(xr.DataArray(np.ones(shape), dims=dims))


@pytest.mark.parametrize("bins", [5, (4, 3)])
def test_labels_of_bins_say_which_they_are(events, bins):
    at = events[:, :1] if bins == 5 else events
    pattern = vsgp.point_process(at, BOX[:1] if bins == 5 else BOX, bins=bins)
    n = len(pattern.X)
    numbers = np.arange(2.0 * n).reshape(2, n)
    rate = xr.DataArray(numbers, dims=["draw", "bin"], coords=pattern.coords)
    turned = rate.isel(bin=np.random.default_rng(3).permutation(n))
    wanted = numbers @ pattern.exposure
    np.testing.assert_allclose(pattern.expected_count(turned), wanted)
    np.testing.assert_array_equal(pattern.to_grid(turned), numbers.reshape(2, *pattern.shape))
    # A region, too: of the first bins by their labels.
    first = turned[0] < 2.0
    np.testing.assert_allclose(
        pattern.expected_count(turned, first), numbers[:, :2] @ pattern.exposure[:2]
    )
    assert pattern.count(first) == pattern.counts[:2].sum()
    # A dimension of another name has labels of its own.
    renamed = rate.rename(bin="y_obs").assign_coords(y_obs=np.arange(n)[::-1])
    np.testing.assert_allclose(pattern.expected_count(renamed), wanted)
    twice = rate.bin.to_numpy()[[0, *range(n - 1)]]
    for labels in (twice, np.arange(n) + 0.123, list("abcdefghijkl")[:n]):
        other = rate.assign_coords(bin=labels)
        with pytest.raises(ValueError, match=r"not those of pattern.coords.* values.drop_vars"):
            pattern.expected_count(other)
        np.testing.assert_allclose(pattern.expected_count(other.drop_vars("bin")), wanted)


def test_arguments_that_have_no_use(events):
    pytest.importorskip("matplotlib")
    pattern = vsgp.point_process(events, BOX, bins=4)
    rate = xr.DataArray(np.ones((2, 16)), dims=["draw", "bin"])
    for call in (pattern.expected_count, lambda r, **k: vsgp.plot_intensity(pattern, r, **k)):
        with pytest.raises(TypeError, match=r"\['num_samples', 'colour'\] would go to"):
            call(rate, num_samples=3, colour="red")


def test_looks(events):
    pattern = vsgp.point_process(events, BOX, bins=(4, 3), unit="km", covariates={"c": 1.0})
    for text in (repr(pattern), pattern._repr_html_()):
        assert "150" in text and "4 x 3" in text and "events per km²" in text and "c" in text
    # As the intensity is: per unit of exposure.
    half = vsgp.point_process(
        events, BOX, bins=(4, 3), exposure=lambda X: np.where(X[:, 0] < 2, 0.5, 1.0)
    )
    assert f"{150 / 6.0:.4g} events per area on average" in repr(half)
    assert f"{150 / 8.0:.4g} events per km² on average" in repr(pattern)


# --- the likelihood without bins -----------------------------------------------------------------


def log_density(link, y, weight):
    """Log density of a row, as a function of f."""

    def at(f):
        rates = {"log": np.exp, "square": np.square, "softplus": lambda f: np.logaddexp(0.0, f)}
        logs = {
            "log": lambda f: f,
            "square": lambda f: 2 * np.log(np.maximum(np.abs(f), 1e-16)),
            # The log of a softplus that underflows is f.
            "softplus": lambda f: np.where(
                f < -40, f, np.log(np.logaddexp(0.0, np.maximum(f, -40)))
            ),
        }
        event = y * logs[link](f) if y else 0.0
        return event - weight * rates[link](f) if weight else event + 0.0 * f

    return at


@pytest.mark.parametrize("link", ["log", "square", "softplus"])
def test_rows_against_reference(link):
    mu, gamma, y, w = (
        a.ravel() for a in np.meshgrid([-2.3, 0.4, 3.0], [1e-2, 1.0, 10.0], [0.0, 1.0], [0.0, 0.7])
    )
    symbols = [pt.dvector(n) for n in ("mu", "gamma", "y", "w")]
    lik = vsgp.PoissonProcess(symbols[3], link)
    value = lik.expected_logp(*symbols[:3])
    outputs = [value, lik.log_predictive(*symbols[:3]), *pt.grad(value.sum(), symbols[:2])]
    got = pytensor.function(symbols, outputs, mode=RAW)(mu, gamma, y, w)
    for i in range(len(mu)):
        logp = log_density(link, y[i], w[i])
        wanted = reference.expected_logp(logp, mu[i], gamma[i])
        predictive = reference.log_predictive(logp, mu[i], gamma[i])
        np.testing.assert_allclose(
            [got[0][i], got[2][i], got[3][i]], wanted, rtol=1e-6, atol=1e-6, err_msg=str(i)
        )
        np.testing.assert_allclose(got[1][i], predictive, rtol=1e-6, atol=1e-6, err_msg=str(i))


def test_a_draw_is_a_count_of_the_stretch():
    weights = np.r_[np.zeros(3), np.full(2000, 0.7)]
    lik = vsgp.PoissonProcess(weights, "softplus")
    f = np.full(2003, 0.4)
    draws = pm.draw(lik.dist(f), random_seed=1)
    assert (draws[:3] == 0).all()
    mean = 0.7 * np.log1p(np.exp(0.4))
    assert abs(draws[3:].mean() - mean) < 5 * np.sqrt(mean / 2000)
    np.testing.assert_allclose(lik.conditional_mean(f).eval(), np.r_[0.0, 0.0, 0.0, [mean] * 2000])


LS, VARIANCE, LEVEL = 1.3, 0.8, 0.7
WINDOW = (0.0, 6.0)
XU = np.linspace(0.0, 6.0, 9)[:, None]


def model_of(X, y, likelihood, block_size=None):
    with pm.Model() as model:
        ls, variance = pm.Gamma("ls", 2, 1), pm.Gamma("variance", 2, 1)
        level = pm.Normal("level")
        gp = pm.gp.VariationalSparse(
            cov_func=variance * pm.gp.cov.ExpQuad(1, ls=ls), mean_func=pm.gp.mean.Constant(level)
        )
        gp.prior("u", Xu=XU)
        gp.likelihood("y", likelihood, X=X, y=y, block_size=block_size)
    return model


def term_of(model):
    """The data's part of the log density, at points of the model, and its gradient."""
    value = model.logp(vars=model.observed_RVs)
    slopes = pt.grad(value, model.continuous_value_vars)
    return model.compile_fn([value, *slopes], mode=RAW, on_unused_input="ignore")


def point_at(ls, variance, level, v):
    return {"ls_log__": np.log(ls), "variance_log__": np.log(variance), "level": level,
            "u_whitened__": v}  # fmt: skip


def points(rng):
    v = rng.normal(size=(2, len(XU)))
    return [(LS, VARIANCE, LEVEL, v[0]), (0.6, 1.9, -0.2, v[1])]


def density_of(at, events, link):
    """Log density of a pattern: a sum over events and an integral, by scipy."""
    ls, variance, level, v = at

    def moments(x):
        X = np.atleast_1d(x)[:, None]
        mean = lambda Z: np.full(len(Z), level)  # noqa: E731
        return reference_gp.moments(X, XU, np.array([ls]), variance, mean, v)[:2]

    def expected(y, weight, mu, gamma):
        logp = log_density(link, y, weight)
        return [reference.expected_logp(logp, m, g)[0] for m, g in zip(mu, gamma, strict=True)]

    at_events = np.sum(expected(1.0, 0.0, *moments(events)))
    integral, error = integrate.quad(
        lambda x: -expected(0.0, 1.0, *moments(x))[0], *WINDOW, epsabs=1e-7, limit=200
    )
    assert error < 1e-6
    return at_events - integral


@pytest.mark.slow
@pytest.mark.parametrize("link", ["log", "square", "softplus"])
def test_without_bins_is_the_density_of_the_points(link, rng):
    times = np.sort(rng.uniform(*WINDOW, size=25))
    q = vsgp.point_process(times, WINDOW).quadrature(60)
    assert q.n_events == 25 and len(q.nodes) == 60 and q.y.sum() == 25
    term = term_of(model_of(q.X, q.y, vsgp.PoissonProcess(q.weights, link)))
    for at in points(rng):
        got = term(point_at(*at))[0]
        assert got == pytest.approx(density_of(at, times, link), abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["log", *long("square", "softplus")])
def test_fine_bins_converge_to_none(link, rng):
    """Differences of log densities between parameters, which is all that a posterior has."""
    times = np.sort(rng.uniform(*WINDOW, size=40))
    pattern = vsgp.point_process(times, WINDOW)
    # Away from the zeros of the function, which a square has to resolve.
    at = [point_at(ls, s, level + 2.2, 0.4 * v) for ls, s, level, v in points(rng)]

    def difference(X, y, likelihood):
        term = term_of(model_of(X, y, likelihood))
        one, two = (np.concatenate([np.ravel(t) for t in term(p)]) for p in at)
        return np.r_[one[0] - two[0], one[1:], two[1:]]

    q = pattern.quadrature(60)
    limit = difference(q.X, q.y, vsgp.PoissonProcess(q.weights, link))
    errors = []
    for bins in (100, 1000, 10_000):
        p = pattern.rebin(bins)
        got = difference(p.X, p.counts, vsgp.Poisson(p.exposure, link))
        errors.append(np.abs(got - limit).max())
    # Events move by half a bin at most, so the error goes with the width of bins.
    assert errors[1] < errors[0] / 4 and errors[2] < errors[0] / 30, errors
    assert errors[2] < 1e-3 * np.abs(limit).max(), errors


@pytest.mark.slow
def test_goes_through_one_pass(rng):
    q = vsgp.point_process(rng.uniform(*WINDOW, 30), WINDOW).quadrature(40)
    at = [point_at(*p) for p in points(rng)]
    lik = vsgp.PoissonProcess(q.weights)
    streamed, whole = (term_of(model_of(q.X, q.y, lik, block_size=b)) for b in (7, False))
    from pymc_vsgp.engine.streaming import BlockSum

    loops = [n for n in streamed.f.maker.fgraph.apply_nodes if isinstance(n.op, BlockSum)]
    assert len(loops) == 1
    for p in at:
        for a, b in zip(streamed(p), whole(p), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_quadrature_rules(polygon, events):
    def f(X):
        return np.exp(np.sin(X[:, 0]) + X[:, 1] / 2)

    box = vsgp.point_process(events, BOX).quadrature(12)
    wanted, _ = integrate.dblquad(lambda y, x: f(np.array([[x, y]]))[0], *BOX[0], *BOX[1])
    assert box.weights[150:] @ f(box.nodes) == pytest.approx(wanted, rel=1e-9)
    # Over the polygon, by way of triangles from its first corner.
    inside = vsgp.point_process(events, polygon, outside="drop")
    t, w = np.polynomial.legendre.leggauss(20)
    s, r = (a.ravel() for a in np.meshgrid((t + 1) / 2, (t + 1) / 2))
    weights = np.outer(w, w).ravel() / 4
    wanted = 0.0
    for ring, sign in [(OUTER, 1.0), (HOLE, 1.0)]:
        a = np.array(ring[0])
        for b, c in zip(ring[1:-1], ring[2:], strict=True):
            b, c = np.array(b), np.array(c)
            det = (b - a)[0] * (c - a)[1] - (b - a)[1] * (c - a)[0]
            X = a + r[:, None] * ((b - a) + s[:, None] * (c - b))
            wanted += sign * det * (weights * r) @ f(X)
    errors = []
    for n in (20, 80):
        q = inside.quadrature(n)
        assert q.weights.sum() == pytest.approx(polygon.area)
        # Linear functions are exact, whatever is cut.
        np.testing.assert_allclose(q.weights[q.n_events :] @ q.nodes, moments_in(BOX)[1:])
        errors.append(abs(q.weights[q.n_events :] @ f(q.nodes) - wanted))
    assert errors[1] < errors[0] / 16 and errors[1] < 1e-4 * wanted


def test_nodes_of_a_polygon_with_a_mask_are_in_its_cells(polygon, events, rng):
    """With as many cells along each side, their axes could be taken for each other."""
    mask = rng.uniform(size=(9, 9)) < 0.6
    pattern = vsgp.point_process(events, polygon, mask=mask, outside="drop")
    q = pattern.quadrature(9)
    found, *_ = np.histogram2d(*q.nodes.T, pattern.edges, weights=q.weights[q.n_events :])
    np.testing.assert_allclose(found, pattern.to_grid(pattern.volume).fillna(0.0), atol=1e-12)


# --- with a posterior ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coal():
    pattern = vsgp.point_process(
        vsgp.datasets.load_coal(), (1851, 1963), bins=40, repeated="keep", unit="year"
    )
    Xu = np.linspace(1851, 1963, 14)[:, None]

    def build(X, y, likelihood):
        with pm.Model() as model:
            ls = pm.Gamma("ls", 4, 0.15)
            mean = pm.gp.mean.Constant(pm.Normal("level", 0.0, 2.0))
            gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls), mean_func=mean)
            gp.prior("u", Xu=Xu)
            gp.likelihood("y", likelihood, X=X, y=y)
        return model

    return pattern, build


@pytest.fixture(scope="module")
def fitted(coal):
    pattern, build = coal
    model = build(pattern.X, pattern.counts, vsgp.Poisson(pattern.exposure))
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    return model, stage.to_datatree(60, random_seed=1)


@pytest.mark.slow
def test_intensity_of_a_fit(coal, fitted):
    pattern, (model, tree) = coal[0], fitted
    rate = pattern.intensity(tree, model=model)
    assert rate.dims == ("chain", "draw", "bin") and rate.attrs["units"] == "events per year"
    moments = vsgp.predict(
        tree, pattern.X, "moments", likelihood=vsgp.Poisson(), model=model, progressbar=False
    )
    wanted = np.exp(moments["mean"] + moments["variance"] / 2)
    np.testing.assert_allclose(rate, wanted)
    total = pattern.expected_count(tree, model=model)
    alone = tree["posterior"].to_dataset()
    np.testing.assert_array_equal(total, pattern.expected_count(alone, model=model))
    with pytest.raises(ValueError, match="random_seed is 'a'"):
        pattern.intensity(tree, model=model, random_seed="a")
    total = pattern.expected_count(rate)
    assert abs(float(total.mean()) - 191) < 3 * float(total.std()) < 60
    np.testing.assert_allclose(pattern.expected_count(tree, model=model), total)
    joint = pattern.intensity(tree, model=model, joint=True, random_seed=1)
    f = vsgp.predict(
        tree, pattern.X, "f", likelihood=vsgp.Poisson(), joint=True, random_seed=1, model=model,
        progressbar=False,
    )  # fmt: skip
    np.testing.assert_allclose(joint, np.exp(f))
    at = pattern.intensity(tree, [[1900.0]], model=model)
    assert at.dims == ("chain", "draw", "point")


@pytest.mark.slow
def test_intensity_of_other_likelihoods(coal, fitted):
    pattern, build = coal
    model, tree = fitted
    lik = vsgp.NegativeBinomial(3.0, exposure=pattern.exposure)
    other = build(pattern.X, pattern.counts, lik)
    np.testing.assert_allclose(
        pattern.intensity(tree, model=other), pattern.intensity(tree, model=model), rtol=1e-6
    )
    q = pattern.quadrature(20)
    free = build(q.X, q.y, vsgp.PoissonProcess(q.weights))
    np.testing.assert_allclose(
        pattern.intensity(tree, model=free), pattern.intensity(tree, model=model)
    )
    for score in (vsgp.loo, vsgp.compute_log_likelihood, vsgp.compute_pointwise):
        with pytest.raises(TypeError, match="Entries of a PoissonProcess are no observations"):
            score(tree, model=free, progressbar=False)
    joint = [pattern.intensity(tree, model=m, joint=True, random_seed=1) for m in (other, model)]
    np.testing.assert_allclose(*joint)
    normal = build(pattern.X, pattern.counts, vsgp.Gaussian(1.0))
    with pytest.raises(TypeError, match="has no exposure"):
        pattern.intensity(tree, model=normal)


def several_outputs(pattern, P, rng):
    """A model of P counts in each bin, and draws of it."""
    N = len(pattern.X)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[1.0, 2.0]))
        gp.prior("u", Xu=pattern.X[:3] + 0.1, n_outputs=2)
        f = vsgp.Coregionalized(rng.normal(size=(P, 2)), gp)
        likelihood = vsgp.Poisson(exposure=pattern.exposure[:, None])
        f.likelihood("y", likelihood, X=pattern.X, y=rng.poisson(1.0, (N, P)))
    return model, prior_draws(model, 2)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["counts", "no bins", "outputs"])
def test_factors_of_a_random_exposure_are_not_left_out(events, rng, what):
    pattern = vsgp.point_process(events, BOX, bins=(4, 3))
    q = pattern.quadrature(5)
    P = 2 if what == "outputs" else None
    with pm.Model() as model:
        level = pm.Normal("level", 1.0, shape=P)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[1.0, 2.0]))
        gp.prior("u", Xu=pattern.X[:3] + 0.1)
        factor = pm.math.exp(level)
        if what == "no bins":
            gp.likelihood("y", vsgp.PoissonProcess(q.weights * factor), X=q.X, y=q.y)
        elif what == "counts":
            poisson = vsgp.Poisson(exposure=pattern.exposure * factor)
            gp.likelihood("y", poisson, X=pattern.X, y=pattern.counts)
        else:
            poisson = vsgp.Poisson(exposure=pattern.exposure[:, None] * factor)
            f = vsgp.Coregionalized(np.ones((2, 1)), gp)
            f.likelihood("y", poisson, X=pattern.X, y=rng.poisson(1.0, (len(pattern.X), 2)))
    idata = prior_draws(model, 3)
    for kwargs in ({}, {"joint": True, "random_seed": 1}):
        kwargs["model"] = model
        with pytest.raises(ValueError, match="exposure depends on 'level'.*Pass likelihood="):
            pattern.intensity(idata, **kwargs)
        base = pattern.intensity(idata, likelihood=vsgp.Poisson(), **kwargs)
        rate = pattern.intensity(idata, likelihood=vsgp.Poisson(exposure=factor), **kwargs)
        level_of = np.exp(idata["posterior"]["level"].to_numpy())
        np.testing.assert_allclose(
            rate, base * (level_of[:, :, None] if P else level_of[..., None])
        )


@pytest.mark.slow
def test_an_exposure_that_the_pattern_does_not_know(coal, fitted):
    pattern, build = coal
    model, tree = fitted
    people = build(pattern.X, pattern.counts, vsgp.Poisson(1000.0 * pattern.exposure))
    with pytest.warns(UserWarning, match="sum to .*Pass exposure= to point_process"):
        rate = pattern.intensity(tree, model=people)
    np.testing.assert_allclose(rate, pattern.intensity(tree, model=model))
    # Said of none: it is given, or these are other rows.
    pattern.intensity(tree, model=people, likelihood=vsgp.Poisson())
    pattern.rebin(7).intensity(tree, model=people)


@pytest.mark.slow
@pytest.mark.parametrize(("bins", "P"), [((4, 2), 2), ((3, 1), 3)])
def test_intensity_of_several_outputs(events, rng, bins, P):
    pattern = vsgp.point_process(events, BOX, bins=bins)
    model, idata = several_outputs(pattern, P, rng)
    wanted = vsgp.predict(
        idata, pattern.X, "mean", likelihood=vsgp.Poisson(), model=model, progressbar=False
    )
    rate = pattern.intensity(idata, model=model)
    assert rate.dims == ("chain", "draw", "bin", "y_output")
    np.testing.assert_array_equal(rate.bin, pattern.coords["bin"])
    np.testing.assert_allclose(rate, wanted)
    for intensity, kwargs in ((rate, {}), (idata, {"model": model})):
        total = pattern.expected_count(intensity, **kwargs)
        assert total.dims == ("chain", "draw", "y_output")
        np.testing.assert_allclose(total, np.einsum("cdnp,n->cdp", wanted, pattern.exposure))
    halves = {"a": {"x": (0.0, 2.0)}, "b": {"x": (2.0, 4.0)}}
    parts = pattern.expected_count(rate, halves)
    assert parts.dims == ("chain", "draw", "y_output", "region")
    np.testing.assert_allclose(parts.sum("region"), total)
    plt = pytest.importorskip("matplotlib.pyplot")
    with pytest.raises(ValueError, match=r"'y_output'.*isel\(y_output=0\)"):
        vsgp.plot_intensity(pattern, rate)
    ax = vsgp.plot_intensity(pattern, rate.isel(y_output=0))
    shown = ax.collections[0].get_array()
    np.testing.assert_allclose(
        np.ravel(shown),
        pattern.to_grid(wanted[..., 0].mean(["chain", "draw"])).T.to_numpy().ravel(),
    )
    plt.close(ax.figure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("P", "free"),
    [(None, True), (None, False), (2, True)],
    ids=["sum, no bins", "sum", "random W, no bins"],
)
def test_intensity_of_mixed_functions(events, P, free):
    pattern = vsgp.point_process(events, BOX, bins=(4, 2))
    q = pattern.quadrature(3)
    X, y, weights = (q.X, q.y, q.weights) if free else (pattern.X, pattern.counts, pattern.exposure)
    if P:
        y, weights = np.stack([y] * P, axis=1), weights[:, None]
    with pm.Model() as model:
        W = pm.Normal("W", shape=(P, 2)) if P else np.array([1.0, -0.5])
        gps = [
            vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=ls)) for ls in ([1, 2], [3, 1])
        ]
        for name, gp in zip("uv", gps, strict=True):
            gp.prior(name, Xu=pattern.X[:3] + 0.1)
        likelihood = vsgp.PoissonProcess(weights) if free else vsgp.Poisson(weights)
        vsgp.Coregionalized(W, gps).likelihood("y", likelihood, X=X, y=y)
    idata = prior_draws(model, 3)
    W = idata["posterior"]["W"].values if P else np.broadcast_to(W, (1, 3, 1, 2))
    dims = ("chain", "draw", "bin", "y_output")[: 4 if P else 3]

    def mixed(functions, W):
        out = np.einsum("cdnq,cdpq->cdnp", functions, W)
        return out if P else out[..., 0]

    kwargs = {"random_seed": 1, "model": model}
    f = vsgp.predict(idata, pattern.X, "f", joint=True, progressbar=False, **kwargs)
    m = vsgp.predict(idata, pattern.X, "moments", progressbar=False, model=model)
    mean = np.exp(mixed(m["mean"], W) + mixed(m["variance"], W**2) / 2)
    for wanted, joint in ((mean, False), (np.exp(mixed(f, W)), True)):
        rate = pattern.intensity(idata, joint=joint, **kwargs)
        assert rate.dims == dims
        np.testing.assert_allclose(rate, wanted, rtol=1e-6)
    total = pattern.expected_count(idata, model=model)
    np.testing.assert_allclose(total, np.moveaxis(mean, 2, -1) @ pattern.exposure, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "rate"), [("square", np.square), ("softplus", lambda f: np.log1p(np.exp(f)))]
)
def test_joint_draws_of_an_intensity(link, rate, events):
    pattern = vsgp.point_process(events, BOX, bins=(4, 2))
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[1.0, 2.0]))
        gp.prior("u", Xu=pattern.X[:3] + 0.1)
        likelihood = vsgp.Poisson(pattern.exposure, link)
        gp.likelihood("y", likelihood, X=pattern.X, y=pattern.counts)
    idata, kwargs = prior_draws(model, 3), {"joint": True, "random_seed": 1, "model": model}
    f = vsgp.predict(idata, pattern.X, "f", progressbar=False, **kwargs)
    np.testing.assert_allclose(pattern.intensity(idata, **kwargs), rate(f))
    # With a likelihood of one's own it is the mean of that, as without joint.
    own = pattern.intensity(idata, likelihood=vsgp.Poisson(3.0, link), **kwargs)
    np.testing.assert_allclose(own, 3.0 * rate(f))
    unclear = vsgp.as_likelihood(lambda f: pm.Poisson.dist(pm.math.exp(f)))
    for likelihood, X, match in (
        (unclear, None, "does not define the mean of y given f. Pass a likelihood"),
        (vsgp.Poisson(np.ones(5)), None, "exposure of Poisson has 5 entries, but Xnew has 8 rows"),
        (None, np.zeros((4001, 2)), "4001 rows, .* Pass at most 4000"),
    ):
        with pytest.raises(ValueError, match=match):
            pattern.intensity(idata, X, likelihood=likelihood, **kwargs)


@pytest.mark.slow
def test_intensity_of_columns_in_another_order(events):
    pattern = vsgp.point_process(
        events, BOX, bins=(4, 3), covariates={"depth": lambda X: X[:, 0] ** 2}
    )
    table = pd.DataFrame(pattern.inputs, columns=["x", "y", "depth"])
    orders = (["depth", "y", "x"], ["x", "y", "depth"], None)
    found = []
    for order in orders:
        X = pattern.inputs if order is None else table[order]
        ls = dict(zip(table.columns, [1.0, 3.0, 9.0], strict=True))
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(
                cov_func=pm.gp.cov.ExpQuad(3, ls=[ls[n] for n in order or table.columns])
            )
            gp.prior("u", Xu=X[:4])
            lik = vsgp.Poisson(exposure=pattern.exposure)
            gp.likelihood("y", lik, X=X, y=pattern.counts)
        idata = prior_draws(model, 2)
        idata["posterior"]["u"].values[:] = [[0.1, 0.5, -0.4, 0.2], [0.3, -0.1, 0.2, 0.0]]
        found.append(pattern.intensity(idata, model=model))
        labelled = table[["y", "x", "depth"]].set_axis(
            pd.Index([f"s{i}" for i in range(12)], name="site")
        )
        for Xnew in (pattern.inputs, table[["y", "x", "depth"]], labelled):
            got = pattern.intensity(idata, Xnew, model=model)
            np.testing.assert_allclose(got, found[-1], rtol=1e-12)
        assert got.dims == ("chain", "draw", "site") and list(got.site) == list(labelled.index)
        with pytest.raises(ValueError, match="has 2 columns"):
            pattern.intensity(idata, pattern.X, model=model)
        with pytest.raises(ValueError, match="Pass a table with these names"):
            wrong = table.rename(columns={"x": "lon"})
            pattern.intensity(idata, wrong, model=model)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-12)
    # Other names than those of the model are no names of its columns.
    other = vsgp.point_process(events, BOX, bins=(4, 3), dims=["lat", "lon"])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[1.0, 3.0]))
        gp.prior("u", Xu=table[["x", "y"]][:4])
        lik = vsgp.Poisson(exposure=pattern.exposure)
        gp.likelihood("y", lik, X=table[["x", "y"]], y=pattern.counts)
    idata = prior_draws(model, 2)
    with pytest.raises(ValueError, match=r"\['lat', 'lon'\], but those of the model"):
        other.intensity(idata, model=model)
    plain = vsgp.predict(
        idata, table[["x", "y"]], "mean", likelihood=vsgp.Poisson(), model=model, progressbar=False
    )
    np.testing.assert_allclose(other.intensity(idata, other.X, model=model), plain)


@pytest.mark.parametrize("named", [False, True])
def test_intensity_of_one_type_of_events(named, events):
    """The type is a column of the model, and none of the pattern."""
    pattern = vsgp.point_process(events, BOX, bins=(4, 3))
    table = pd.DataFrame(pattern.inputs, columns=["x", "y"]).assign(kind="b")
    both = pd.concat([table.assign(kind="a"), table])
    X = np.column_stack([np.tile(pattern.inputs, (2, 1)), np.repeat([0, 1], 12)])
    with pm.Model(coords={"kind": ["a", "b"]}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[1.0, 3.0]))
        gp.prior("u", Xu=pattern.inputs[:4], by="kind")
        gp.likelihood("z", vsgp.Poisson(), X=both if named else X, y=np.tile(pattern.counts, 2))
    idata = prior_draws(model, 2)
    wanted = vsgp.predict(
        idata, X[12:], "mean", likelihood=vsgp.Poisson(), model=model, progressbar=False
    )
    for Xnew in (X[12:], table, table[["kind", "y", "x"]]):
        got = pattern.intensity(idata, Xnew, model=model)
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("bins", "ndim", "label"),
    [
        (20, 1, "20 bins"),
        ([20], 1, "20 bins"),
        ([1851, 1900, 1963], 1, "bins with edges"),
        (np.array([1851, 1963]), 1, "bins with edges"),
        (20, 2, "20 bins"),
        ((4, 3), 2, "4 x 3 bins"),
        (np.array([4, 3]), 2, "4 x 3 bins"),
        ([4, [0, 1, 2]], 2, "bins with edges"),
        ([[0, 1], [0, 1, 2]], 2, "bins with edges"),
        ([4, 3, 2], 3, "4 x 3 x 2 bins"),
    ],
)
def test_labels_of_bins(bins, ndim, label):
    assert _label(bins, ndim) == label


@pytest.mark.long
@pytest.mark.slow
def test_compare_bins(coal):
    pattern, build = coal
    table = vsgp.compare_bins(
        pattern, build, [14, 60, 1000], quadrature=[60], draws=50, random_seed=0
    )
    assert list(table["observations"]) == [14, 60, 1000, 251]
    bound = table["elbo"].to_numpy()
    # The density of the pattern does not depend on how it was counted.
    assert abs(bound[2] - bound[3]) < 0.02 < abs(bound[0] - bound[3]) < 1.0
    np.testing.assert_allclose(table["expected count"], 191, atol=8)
    np.testing.assert_allclose(table["ls"].iloc[2], table["ls"].iloc[3], rtol=0.02)
    with pytest.raises(TypeError, match="not a model"):
        vsgp.compare_bins(pattern, lambda X, y, likelihood: None, [20])
    with pytest.raises(TypeError, match="bins of its own. Pass build"):
        vsgp.compare_bins(pattern, build, [20], model=pm.Model())


def test_plots(polygon, events, coal, fitted):
    plt = pytest.importorskip("matplotlib.pyplot")
    fig, axes = plt.subplots(1, 2)
    model, tree = fitted
    assert vsgp.plot_intensity(coal[0], tree, model=model, ax=axes[0]) is axes[0]
    assert axes[0].get_ylabel() == "events per year" and axes[0].get_xlabel() == "date, year"
    line = next(line for line in axes[0].lines if line.get_label() == "mean")
    np.testing.assert_allclose(
        line.get_ydata(), coal[0].intensity(tree, model=model).mean(["chain", "draw"])
    )
    pattern = vsgp.point_process(events, polygon, bins=6, outside="drop")
    draws = np.linspace(0, 1, 3)[:, None] * np.ones(len(pattern.X))
    vsgp.plot_intensity(pattern, draws, what="sd", ax=axes[1])
    shown = axes[1].collections[0].get_array()
    np.testing.assert_allclose(shown.compressed(), np.std([0, 0.5, 1]))
    assert shown.count() == len(pattern.X)
    # An estimate has no draws.
    for p, ax in zip((coal[0], pattern), axes, strict=True):
        vsgp.plot_intensity(p, np.ones(len(p.X)), ax=ax)
    with pytest.raises(ValueError, match="no plot of 'sd' over 1"):
        vsgp.plot_intensity(coal[0], tree, what="sd", model=model)
    plt.close(fig)


def test_a_plot_of_one_bin_has_its_level():
    plt = pytest.importorskip("matplotlib.pyplot")
    pattern = vsgp.point_process([[1.0], [2.0]], (0.0, 5.0), bins=1)
    ax = vsgp.plot_intensity(pattern, [[3.0], [5.0]], ci_prob=0.5)
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[0.0, 4.0], [5.0, 4.0]])
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose([band.min(axis=0), band.max(axis=0)], [[0.0, 3.5], [5.0, 4.5]])
    plt.close(ax.figure)


def test_a_plot_has_gaps_where_the_window_has():
    plt = pytest.importorskip("matplotlib.pyplot")
    mask = np.array([1, 1, 0, 0, 1, 0, 1, 1, 1, 0], bool)
    pattern = vsgp.point_process([[1.0], [7.0]], (0.0, 10.0), bins=10, mask=mask)
    rate = np.array([[1.0], [3.0]]) * np.arange(1.0, 7.0)
    ax = vsgp.plot_intensity(pattern, rate, ci_prob=0.5)
    line = ax.lines[0].get_xydata()
    np.testing.assert_array_equal(line[:, 0], [0.5, 1.5, np.nan, 4, 5, np.nan, 6.5, 7.5, 8.5])
    shown = ~np.isnan(line[:, 0])  # of a bin alone its level, from end to end
    np.testing.assert_allclose(line[shown, 1], [2, 4, 6, 6, 8, 10, 12])
    spans = [p.vertices[:, 0] for p in ax.collections[0].get_paths()]
    assert [(s.min(), s.max()) for s in spans] == [(0.5, 1.5), (4, 5), (6.5, 8.5)]
    plt.close(ax.figure)


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"events": [[1.0, 0.0], [9.0, 0.0]]}, "1 of 2 events are outside.*row 1, at \\(9, 0\\)"),
        ({"events": [[1.0, 0.0], [2.0, 0.5], [1.0, 0.0]]}, "1 of 3 events repeat.*row 2"),
        (
            {"events": [[9.0, 0.0], [1.0, 0.0], [2.0, 0.5], [1.0, 0.0]], "outside": "drop"},
            "1 of 3 events repeat.*row 3, at \\(1, 0\\)",
        ),
        ({"events": np.empty((0, 2))}, "no events in the window"),
        ({"events": [[1.0 + i * 1e-4, 0.1 * i] for i in range(10)]}, "span 0.0009 in x"),
        ({"events": [[1.0, 0.0]], "resolution": 0.008, "bins": None}, "125000 bins for 1 events"),
    ],
    ids=["outside", "repeated", "repeated and outside", "none", "units", "fine"],
)
def test_warnings(kwargs, match):
    with pytest.warns(UserWarning, match=match):
        vsgp.point_process(**{"window": BOX, "bins": 4} | kwargs)


def test_what_is_done_about_warnings():
    at = [[1.0, 0.0], [2.0, 0.5], [1.0, 0.0], [9.0, 0.0]]
    kept = vsgp.point_process(at, BOX, bins=4, outside="drop", repeated="keep")
    assert kept.counts.sum() == 3
    dropped = vsgp.point_process(at, BOX, bins=4, outside="drop", repeated="drop")
    np.testing.assert_array_equal(dropped.events, at[:2])


GOOD = [[1.0, 0.0], [2.0, 0.5]]
BAD = {
    "nan": ({"events": [[1.0, np.nan]]}, ValueError, "row 0"),
    "text": ({"events": [["a", "b"]]}, TypeError, "decimal years"),
    "dates": ({"events": pd.to_datetime(["2020-01-01"])}, TypeError, "decimal years"),
    "masked": (
        {"events": np.ma.MaskedArray(GOOD, [[0, 0], [1, 1]])}, TypeError, "events is a masked"
    ),
    "masked exposure": (
        {"exposure": np.ma.MaskedArray(np.ones(16), np.arange(16) == 3)}, TypeError, "is a masked"
    ),
    "one dim twice": (
        {"events": pd.DataFrame(GOOD, columns=["a", "b"]), "dims": ["a", "a"]},
        ValueError,
        "one name twice",
    ),
    "numbers as dims": ({"dims": [1, 2]}, TypeError, "dims is .* names are needed"),
    "nan bins": ({"bins": np.nan}, ValueError, "bins is nan"),
    "words as edges": ({"bins": (["a", "b"], 2)}, TypeError, "bins is of type list"),
    "one column": ({"events": [1.0, 2.0]}, ValueError, "shape \\(2,\\)"),
    "columns": ({"events": pd.DataFrame({"x": [1.0]})}, ValueError, "columns"),
    "all outside": ({"events": [[100.0, 0.0]]}, ValueError, "same units"),
    "raise outside": (
        {"events": [*GOOD, [9.0, 0.0]], "outside": "raise"}, ValueError, "outside='drop'"
    ),
    "raise repeated": ({"events": GOOD * 2, "repeated": "raise"}, ValueError, "repeated='drop'"),
    "no window": ({"window": None}, ValueError, "could have been seen"),
    "empty window": ({"window": [(0, 4), (1, 1)]}, ValueError, "empty"),
    "infinite": ({"window": [(0, np.inf), (0, 1)]}, ValueError, "finite"),
    "odd window": ({"window": "here"}, TypeError, "not a window"),
    "long window": ({"window": (0, 1, 2)}, ValueError, "shape"),
    "boolean bounds": ({"window": (False, True)}, TypeError, "not a window"),
    "boolean window": ({"window": np.ones((4, 4), bool)}, ValueError, "as mask"),
    "no bins": ({"bins": 0}, ValueError, "whole number"),
    "half bins": ({"bins": 2.5}, ValueError, "whole number"),
    "three bins": ({"bins": (1, 2, 3)}, ValueError, "3 entries"),
    "both": ({"bins": 3, "resolution": 1.0}, ValueError, "one of them"),
    "short edges": ({"bins": ([0, 1], [-1, 1])}, ValueError, "cover the window"),
    "edges": ({"bins": ([0, 5, 2], 3)}, ValueError, "increase"),
    "resolution": ({"bins": None, "resolution": -1.0}, ValueError, "number above 0"),
    "far too fine": ({"bins": None, "resolution": 1e-6}, ValueError, "too fine"),
    "mask type": ({"mask": np.ones((4, 4))}, TypeError, "not bool"),
    "mask shape": ({"mask": np.ones((3, 4), bool)}, ValueError, "shape \\(3, 4\\)"),
    "mask empty": ({"mask": np.zeros((4, 4), bool)}, ValueError, "outside the window"),
    "mask bare": (
        {"window": None, "mask": xr.DataArray(np.ones((4, 4), bool))}, ValueError, "no coordinates"
    ),
    "exposure": ({"exposure": 0.0}, ValueError, "not positive in 16"),
    "covariate nan": ({"covariates": {"c": np.full(16, np.nan)}}, ValueError, "c is not finite"),
    "covariate shape": ({"covariates": {"c": np.ones(3)}}, ValueError, "shape \\(3,\\)"),
    "covariate call": ({"covariates": lambda X: X}, ValueError, "gave shape"),
    "covariate name": ({"covariates": {"x": 1.0}}, ValueError, "name of a dimension"),
    "covariate dims": (
        {"covariates": xr.DataArray(np.ones(4), dims=["east"])}, ValueError, "'east'"
    ),
    "units": ({"unit": ("m", "m", "day")}, ValueError, "and the window has 2 dimensions"),
    "dims": ({"dims": ["x"]}, ValueError, "1 dimensions"),
    "outside": ({"outside": "ignore"}, ValueError, "outside is"),
    "repeated": ({"repeated": "ignore"}, ValueError, "repeated is"),
}  # fmt: skip


@pytest.mark.parametrize(("kwargs", "error", "match"), BAD.values(), ids=BAD)
def test_bad_input(kwargs, error, match):
    with pytest.raises(error, match=match) as caught:
        vsgp.point_process(**{"events": GOOD, "window": BOX, "bins": 4} | kwargs)
    assert str(caught.value).count(". ") >= 1


def test_bad_polygons(polygon):
    import shapely

    bow_tie = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])
    with pytest.raises(ValueError, match="make_valid"):
        vsgp.point_process(GOOD, bow_tie)
    with pytest.raises(TypeError, match="LineString"):
        vsgp.point_process(GOOD, shapely.LineString([(0, 0), (1, 1)]))
    with pytest.raises(ValueError, match="empty"):
        vsgp.point_process(GOOD, shapely.Polygon())

    class Degrees:
        __geo_interface__ = shapely.geometry.mapping(shapely.box(0, -1, 4, 1))

        class crs:
            is_geographic = True

    with pytest.warns(UserWarning, match="square degrees"):
        vsgp.point_process(GOOD, Degrees())


def test_polygons_need_shapely(monkeypatch):
    monkeypatch.setitem(sys.modules, "shapely", None)
    square = {"type": "Polygon", "coordinates": [[(0, 0), (4, 0), (4, 1), (0, 0)]]}
    with pytest.raises(ImportError, match=r"In a checkout .*pip install '\.\[maps\]'"):
        vsgp.point_process(GOOD, square)
    assert vsgp.point_process(GOOD, BOX, bins=3).counts.sum() == 2


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: p.to_grid(np.ones(3)), "one value for each bin"),
        (lambda p: p.expected_count(np.ones(16), (0, 1)), "1 dimensions"),
        (lambda p: p.expected_count(np.ones(16), [(7, 9), (0, 1)]), "does not meet"),
        (lambda p: p.quadrature(0), "whole number"),
        (lambda p: vsgp.plot_intensity(p, np.ones((2, 16)), what="max"), "Choose one of"),
        (lambda p: vsgp.compare_bins(p, lambda X, y, lik: None, []), "Pass at least one entry"),
        (lambda p: vsgp.point_process(GOOD, BOX, bins=3, unit=["km"]), "one unit for all"),
        (lambda p: vsgp.point_process(GOOD, BOX, bins=3, unit=["km", ""]), "one unit for all"),
        (lambda p: vsgp.point_process(GOOD, BOX, bins=3, unit=("km", None)), "one unit for all"),
        (
            lambda p: vsgp.point_process(GOOD, BOX, mask=np.ones((4, 4), bool)).rebin(3),
            "Pass a polygon",
        ),
    ],
)
def test_bad_calls(call, match):
    with pytest.raises(ValueError, match=match):
        call(vsgp.point_process(GOOD, BOX, bins=4))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: vsgp.PoissonProcess([0.0, -1.0]), "0 or positive"),
        (lambda: vsgp.PoissonProcess(1.0, "identity"), "softplus"),
        (lambda: vsgp.PoissonProcess(1.0).check_observed([0.5]), "1 for an event"),
    ],
)
def test_bad_likelihood(make, match):
    with pytest.raises(ValueError, match=match):
        make()
