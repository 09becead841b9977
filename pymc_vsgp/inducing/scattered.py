"""Data at any places: sums of waves by interpolation, where that is faster than the waves."""

from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt

from pymc_vsgp.inducing.features import Features
from pymc_vsgp.inducing.grids import Cells, Grid, Layout, Series
from pymc_vsgp.ops.interpolation import FromGrid
from pymc_vsgp.ops.window import WIDTH, transform

FINER = 2  # than waves need
# By the number of inputs; in three a window has 512 places.
FEWEST_WAVES = {1: 16, 2: 100}
FEWEST_OF_A_SERIES = {1: 300}
FEWEST_ENTRIES = {1: 32_000, 2: 200_000}  # of a matrix of all waves at all rows


@dataclass(frozen=True)
class Scattered(Layout):
    """Any places in one or two dimensions. Unlike on a grid they may be replaced."""

    @classmethod
    def pays(cls, features: Features, n_rows: int, other: Layout | None = None) -> bool:
        """Whether interpolation is faster than another layout, or than the waves themselves."""
        if isinstance(other, Grid | Cells):
            return False
        fewest = FEWEST_WAVES if other is None else FEWEST_OF_A_SERIES
        n, d = features.n_features, features.n_columns
        return n >= fewest.get(d, np.inf) and n_rows * n >= FEWEST_ENTRIES[d]

    def axes(self, X):
        return [X]

    def holds(self, X, axes):
        return pt.constant(np.array(True))  # of a bool alone PyTensor makes an int8

    def waves(self, features, axes):
        return axes  # which may be in a file

    def beside_rows(self, features):
        sizes, fine = features.sizes, _fine(features)
        return sum(int(np.prod(fine[: d + 1])) * int(np.prod(sizes[d:])) for d in range(len(sizes)))

    def _sum(self, features, waves, w):
        return _at(features, waves[0], w)

    def _sum_of_squares(self, features, waves, s):
        # 2 cos^2 t = 1 + cos 2t and 2 sin^2 t = 1 - cos 2t: waves of half the period.
        half = replace(features, period=tuple(p / 2.0 for p in features.period))
        return _at(half, waves[0], _of_squares(features.sizes, s))


def _fine(features: Features) -> tuple[int, ...]:
    """Places of the fine grid along each input."""
    return tuple(max(FINER * size, 2 * WIDTH) for size in features.sizes)


def _at(features: Features, X, w):
    """Sum of waves at the rows of X, by the values at the places of a fine grid."""
    shape = _fine(features)
    places = (X - np.array(features.center)) * (np.array(shape) / np.array(features.period))
    step = 2.0 * np.pi / np.array(shape)
    each = [
        transform(h * np.r_[np.arange(k + 1), np.arange(1, k + 1)])
        for h, k in zip(step, features.n_frequencies, strict=True)
    ]
    damping = each[0] if len(each) == 1 else np.outer(*each).ravel()
    axes = [np.arange(n) * (length / n) for n, length in zip(shape, features.period, strict=True)]
    centered = Features(features.period, features.n_frequencies)
    if len(shape) == 1:
        fine: Layout = Series(shape[0])
        start = fine.axes(pt.constant(axes[0][:, None]))
    else:
        fine, start = Grid(shape, (0, 1)), [pt.constant(a) for a in axes]
    values = fine.combine(centered, fine.waves(centered, start), w / damping)
    return FromGrid(shape)(places, values.reshape(shape))


def _of_squares(sizes, s):
    """Return the weights of waves of twice the frequency, for those of squares of waves."""
    for d, size in enumerate(sizes):
        k = (size - 1) // 2
        s = s.reshape((int(np.prod(sizes[:d])), size, int(np.prod(sizes[d + 1 :]))))
        total = pt.sum(s, axis=1, keepdims=True)
        cosines = (s[:, 1 : k + 1] - s[:, k + 1 :]) / np.sqrt(2.0)
        s = pt.concatenate([total, cosines, pt.zeros_like(cosines)], axis=1)
    return s.reshape((-1,))
