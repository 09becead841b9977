"""Data on a grid: sums of waves as products of small matrices."""

import itertools

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytensor.tensor as pt

from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.inducing.features import Features, by_column

SHORTEST_SERIES = 256  # rows, below which nothing is gained
MOST_CELLS = 3  # of a grid for each row, beyond which the waves of the rows take less
SAME_PLACE = 1e-9  # of the step of a series: what rounding does to it


class Layout(ABC):
    """How places lie, where that makes sums of waves faster than a matrix of all waves."""

    @abstractmethod
    def axes(self, X) -> list[TensorVariable]:
        """Return what of the places X the waves are computed from."""

    @abstractmethod
    def holds(self, X, axes) -> TensorVariable:
        """Whether the rows of `X` still lie like this."""

    @abstractmethod
    def waves(self, features: Features, axes: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return what `combine` needs of the waves, from the axes."""

    def combine(self, features: Features, waves, w) -> TensorVariable:
        """Sum of the waves, with weights, in the order of the rows."""
        return by_column(partial(self._sum, features), waves, w)

    def combine_squares(self, features: Features, waves, s) -> TensorVariable:
        """Return the same of the squares of the waves."""
        return by_column(partial(self._sum_of_squares, features), waves, s)

    def beside_rows(self, features: Features) -> int:
        """Products that a sum takes beside those of its rows."""
        return 0

    @abstractmethod
    def _sum(self, features: Features, waves, w) -> TensorVariable:
        """Do the former for a vector of weights."""

    def _sum_of_squares(self, features: Features, waves, s) -> TensorVariable:
        return self._sum(features, [b**2 for b in waves], s)


@dataclass(frozen=True)
class Grid(Layout):
    """A grid in two or three dimensions whose places are the rows of a matrix."""

    shape: tuple[int, ...]
    """Length of each column's axis."""
    order: tuple[int, ...]
    """The columns, the one that moves slowest first."""

    def axes(self, X):
        out = []
        for d in range(len(self.shape)):
            at = self.order.index(d)
            step = int(np.prod([self.shape[c] for c in self.order[at + 1 :]]))
            out.append(X[: step * self.shape[d] : step, d])
        return out

    def holds(self, X, axes):
        shape = [self.shape[c] for c in self.order]
        same = []
        for at, c in enumerate(self.order):
            n_before, n_after = int(np.prod(shape[:at])), int(np.prod(shape[at + 1 :]))
            places = pt.tile(pt.repeat(axes[c], n_after), n_before)
            same.append(pt.all(pt.eq(X[:, c], places)))
        return pt.all(pt.stack(same))

    def waves(self, features, axes):
        return features.waves_at(axes)

    def _sum(self, features, waves, w):
        (first, *rest), sizes = waves, features.sizes
        f = pt.dot(first, w.reshape((sizes[0], -1)))
        if len(rest) == 1:
            f = pt.dot(f, rest[0].T)
        else:
            n1, n2, n3 = self.shape
            f = pt.dot(f.reshape((n1 * sizes[1], sizes[2])), rest[1].T)
            f = f.reshape((n1, sizes[1], n3)).transpose(0, 2, 1)
            f = pt.dot(f.reshape((n1 * n3, sizes[1])), rest[0].T)
            f = f.reshape((n1, n3, n2)).transpose(0, 2, 1)
        return f.transpose(*self.order).reshape((-1,))


class Cells(Layout):
    """Rows that are some of the cells of a grid, in any order: some may be missing, or repeated.

    The sums are those of the whole grid.
    """

    def __init__(self, grid: Grid, at: np.ndarray):
        self.grid = grid
        self.at = at
        """Place of each row on each column's axis."""
        self.rows = [np.unique(at[:, d], return_index=True)[1] for d in range(at.shape[1])]
        """A row for each place on each column's axis."""

    def axes(self, X):
        return [X[rows, d] for d, rows in enumerate(self.rows)]

    def holds(self, X, axes):
        same = [pt.all(pt.eq(X[:, d], a[self.at[:, d]])) for d, a in enumerate(axes)]
        return pt.all(pt.stack(same))

    def waves(self, features, axes):
        return self.grid.waves(features, axes)

    def _sum(self, features, waves, w):
        cells = np.ravel_multi_index(tuple(self.at.T), self.grid.shape)
        return self.grid._sum(features, waves, w)[cells]


class Panel:
    """Rows that are some of the pairs of places in two groups of columns, in any order."""

    def __init__(self, X: np.ndarray, parts: Sequence[Sequence[int]]):
        self.parts = [list(columns) for columns in parts]
        found = [
            np.unique(X[:, columns], axis=0, return_index=True, return_inverse=True)
            for columns in self.parts
        ]
        self.places = [places for places, *_ in found]
        self.rows = [rows for _, rows, _ in found]
        """A row for each place in each group of columns."""
        self.at = np.stack([place.ravel() for *_, place in found], axis=1)
        """Places of each row."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of places in each group of columns."""
        return len(self.rows[0]), len(self.rows[1])

    @property
    def pays(self) -> bool:
        """Whether sums over all pairs take less than those over the rows."""
        n = len(self.at)
        return self.shape[0] * self.shape[1] <= MOST_CELLS * n and 2 * min(self.shape) <= n

    def holds(self, X) -> TensorVariable:
        """Whether the rows of `X` still are these pairs."""
        same = []
        for i, columns in enumerate(self.parts):
            places = self.rows[i][self.at[:, i]]
            same += [pt.all(pt.eq(X[:, d], X[:, d][places])) for d in columns]
        return pt.all(pt.stack(same))

    def of_rows(self, pairs: TensorVariable) -> TensorVariable:
        """Return the entries of the rows, from a matrix of all pairs."""
        return pairs.reshape((-1,))[np.ravel_multi_index(tuple(self.at.T), self.shape)]


class Product(Layout):
    """Sites in two of three inputs at times in the third: a `Panel`.

    The sums are those of all sites at all times: first over waves of the sites, then over those of
    time.
    """

    def __init__(self, panel: Panel):
        self.panel = panel
        self.space, (self.time,) = panel.parts

    def axes(self, X):
        return [X[self.panel.rows[int(d == self.time)], d] for d in range(3)]

    def holds(self, X, axes):
        return self.panel.holds(X)

    def waves(self, features, axes):
        return features.waves_at(axes)

    def _sum(self, features, waves, w):
        a, b = self.space
        sizes = [features.sizes[d] for d in (a, b, self.time)]
        w = w.reshape(features.sizes).transpose(a, b, self.time)
        f = pt.dot(waves[a], w.reshape((sizes[0], sizes[1] * sizes[2])))
        f = f.reshape((self.panel.shape[0], sizes[1], sizes[2]))
        f = pt.sum(f * waves[b][:, :, None], axis=1)
        return self.panel.of_rows(pt.dot(f, waves[self.time].T))


@dataclass(frozen=True)
class Series(Layout):
    """Places at equal distances, in their order: a grid of stretches, and places in a stretch."""

    n_rows: int

    @property
    def length(self) -> int:
        """Places in a stretch; the last stretch may have fewer."""
        return int(np.ceil(np.sqrt(self.n_rows)))

    def axes(self, X):
        # Where each stretch begins, and the places in it from there.
        return [X[:: self.length, 0], X[: self.length, 0] - X[0, 0]]

    def holds(self, X, axes):
        off = pt.max(pt.abs(X[:, 0] - self._places(axes)))
        return pt.le(off, SAME_PLACE * pt.abs(axes[1][1]))

    def _places(self, axes):
        return (axes[0][:, None] + axes[1][None, :]).reshape((-1,))[: self.n_rows]

    def waves(self, features, axes):
        # Cosines and sines of the beginnings, and of the places.
        k = np.arange(1.0, features.n_frequencies[0] + 1.0)
        k = k * (2.0 * np.pi / features.period[0])
        begin, place = axes[0] - np.float64(features.center[0]), axes[1]
        return [f(x[:, None] * k) for x in (begin, place) for f in (pt.cos, pt.sin)]

    def _sum(self, features, waves, w):
        # cos(a + b) = cos a cos b - sin a sin b and sin(a + b) = sin a cos b + cos a sin b
        ca, sa, cb, sb = waves
        n = (w.shape[0] - 1) // 2
        of_cos, of_sin = np.sqrt(2.0) * w[1 : n + 1], np.sqrt(2.0) * w[n + 1 :]
        f = pt.dot(ca * of_cos + sa * of_sin, cb.T) + pt.dot(ca * of_sin - sa * of_cos, sb.T)
        return w[0] + f.reshape((-1,))[: self.n_rows]

    def _sum_of_squares(self, features, waves, s):
        # 2 cos^2 t = 1 + cos 2t and 2 sin^2 t = 1 - cos 2t
        ca, sa, cb, sb = waves
        n = (s.shape[0] - 1) // 2
        w = s[1 : n + 1] - s[n + 1 :]
        f = pt.dot((ca**2 - sa**2) * w, (cb**2 - sb**2).T) - pt.dot(
            2.0 * sa * ca * w, (2.0 * sb * cb).T
        )
        return pt.sum(s) + f.reshape((-1,))[: self.n_rows]


def find_grid(X: np.ndarray) -> Grid | Cells | Product | Series | None:
    """Return the grid that the rows of X are, or some cells of, or None."""
    if X.shape[1] == 1:
        return _find_series(X)
    return _find_cells(X) or (_find_product(X) if X.shape[1] == 3 else None)


def _find_cells(X):
    found = [np.unique(X[:, d], return_inverse=True) for d in range(X.shape[1])]
    shape = tuple(len(places) for places, _ in found)
    if np.prod(shape, dtype=float) > MOST_CELLS * len(X) or min(shape) == 1:
        return None
    for order in itertools.permutations(range(len(shape))):
        grid = Grid(shape, order)
        if np.prod(shape) != len(X):
            break
        axes = np.meshgrid(*(grid.axes(X)[c] for c in order), indexing="ij")
        if all(np.array_equal(axes[i].ravel(), X[:, c]) for i, c in enumerate(order)):
            return grid
    at = np.stack([place.ravel() for _, place in found], axis=1)
    return Cells(Grid(shape, tuple(range(len(shape)))), at)


def _find_product(X):
    panels = [Panel(X, ([d for d in range(3) if d != time], [time])) for time in range(3)]
    found = min(panels, key=lambda p: p.shape[0])
    return Product(found) if found.pays and 2 * found.shape[0] <= len(X) else None


def _find_series(X):
    if len(X) < SHORTEST_SERIES:
        return None
    series = Series(len(X))
    begin, place = series.axes(X)
    off = np.abs((begin[:, None] + place).ravel()[: len(X)] - X[:, 0]).max()
    equal = np.ptp(np.diff(X[:, 0])) <= SAME_PLACE * abs(place[1])
    return series if equal and off <= 0.5 * SAME_PLACE * abs(place[1]) else None
