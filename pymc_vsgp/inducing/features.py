"""Fourier features: sines and cosines on a torus, their frequencies, and sums of them."""

import itertools

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.conditional.op import ifelse
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import as_real, kind
from pymc_vsgp.compile import simplify_block
from pymc_vsgp.inducing.graphs import as_ops
from pymc_vsgp.inducing.spectrum import Spectrum, spectral_density, spectrum
from pymc_vsgp.ops.rows import Rows
from pymc_vsgp.ops.runs import chosen

# Added to the variance of each wave, as a fraction of the function's: smooth kernels have waves
# whose variance is below the smallest number, and its logarithm is wanted.
LEAST = np.float64(1e-24)

# Copies of the torus on either side that add to a covariance, by the number of inputs.
NEAR = {1: 4, 2: 2, 3: 1}
MORE = {1: 200, 2: 8, 3: 2}  # waves, where that takes more copies

# On the plane, by the number of inputs that repeat: where stretches of copies end, on either side,
# and from how many of each their sum follows. Far away the kernel is smooth.
STRETCHES = {1: ((1, 2, 4, 9, 19, 39, 79, 159, 319), 5), 2: ((1, 2, 4, 9, 19, 39, 79), 4)}
ENOUGH = np.float64(1e-7)  # share of the variance that further copies may add
APART = 1e3  # periods between copies of inputs that do not repeat, in a sum that has such copies


class Copies(NamedTuple):
    """Copies of a place, or places between them, with weights that make sums over all copies."""

    shifts: np.ndarray
    weights: np.ndarray
    stretch: np.ndarray
    """How far away each is."""


@dataclass(frozen=True)
class Features:
    """Products over the inputs of 1, cosines and sines on a torus.

    Parameters
    ----------
    period : float or sequence of float
        Length of the torus in each input.
    n_frequencies : int or sequence of int
        Frequencies in each input, without the constant.
    center : float or sequence of float
        Where phases are counted from.
    periodic : bool or sequence of bool
        Whether the function repeats after a period.
    columns : sequence of str, optional
        Names of the inputs.
    """

    period: tuple[float, ...]
    n_frequencies: tuple[int, ...]
    center: tuple[float, ...] = (0.0,)
    periodic: tuple[bool, ...] = (False,)
    columns: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self):
        """Check, and give each input its own numbers."""
        names = ("period", "n_frequencies", "center", "periodic")
        given = [
            tuple(np.ravel(as_real(getattr(self, name), name, "Pass one for each input.")).tolist())
            for name in names
        ]
        if self.columns is not None and not isinstance(self.columns, list | tuple):
            raise TypeError(
                f"columns is {kind(self.columns)}. Pass a list of names, one for each input."
            )
        n = max(map(len, given))
        if n > 3:
            raise ValueError(
                f"There are {n} inputs, and Fourier features grow too many beyond three. "
                "Use inducing points: gp.prior(name, Xu=...)."
            )
        for name, value in zip(names, given, strict=True):
            if len(value) not in (1, n):
                raise ValueError(
                    f"{name} has {len(value)} entries, but there are {n} inputs. "
                    "Pass one number, or one for each input."
                )
        periods, counts, centers, repeats = (v * n if len(v) == 1 else v for v in given)
        if not all(np.isfinite(p) and p > 0 for p in periods):
            raise ValueError(
                f"period is {self.period}, but a length is needed. Pass positive numbers."
            )
        if not all(float(k).is_integer() and k >= 0 for k in counts):
            raise ValueError(
                f"n_frequencies is {self.n_frequencies}, but it is a number of frequencies. "
                "Pass whole numbers, 0 or more."
            )
        if not np.isfinite(centers).all():
            raise ValueError(f"center is {self.center}, but it is a place. Pass finite numbers.")
        object.__setattr__(self, "period", tuple(map(float, periods)))
        object.__setattr__(self, "n_frequencies", tuple(map(int, counts)))
        object.__setattr__(self, "center", tuple(map(float, centers)))
        object.__setattr__(self, "periodic", tuple(map(bool, repeats)))

    @property
    def n_columns(self) -> int:
        """Number of inputs."""
        return len(self.period)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of functions of each input."""
        return tuple(2 * k + 1 for k in self.n_frequencies)

    @property
    def n_features(self) -> int:
        """Number of coefficients."""
        return int(np.prod(self.sizes))

    @property
    def width(self) -> int:
        """Columns of the widest matrix that a block of rows needs."""
        return max(self.sizes[0], self.n_features // self.sizes[0])

    @cached_property
    def doubled(self) -> "Features":
        """The same with twice the frequencies, of which products of two features are sums."""
        return Features(self.period, tuple(2 * k for k in self.n_frequencies), self.center)

    @cached_property
    def omega(self) -> np.ndarray:
        """Angular frequencies, one row for each coefficient."""
        each = [
            2.0 * np.pi / length * np.r_[np.arange(k + 1), np.arange(1, k + 1)]
            for length, k in zip(self.period, self.n_frequencies, strict=True)
        ]
        return np.stack([w.ravel() for w in np.meshgrid(*each, indexing="ij")], axis=1)

    def variances(self, cov_func) -> TensorVariable:
        """Prior variances of the coefficients."""
        # Sines and cosines have the same frequencies.
        omega, at = np.unique(self.omega, axis=0, return_inverse=True)
        S = spectral_density(cov_func, pt.constant(omega))[at.ravel()]
        return (S / np.prod(self.period)).astype("float64")

    def spectrum(self, cov_func) -> Spectrum:
        """Variance of the function on the torus, and of the waves that are left out."""
        return spectrum(cov_func, self.n_frequencies, self.period)

    def covariance(self, cov_func, X: TensorVariable, Z: TensorVariable) -> TensorVariable:
        """Prior covariance of the function on the torus."""
        n = NEAR[self.n_columns]
        shifts = self._copies([n] * self.n_columns)
        center, origin = np.array(self.center), pt.zeros((1, self.n_columns))
        X, Z = self._in_one_period(X), self._in_one_period(Z)
        total, left = self.spectrum(cov_func)
        near = pt.sum(cov_func(pt.constant(shifts), origin))
        enough = pt.abs(near - total) <= np.float64(1e-3) * left + np.float64(2e-6) * total
        images = sum(cov_func(X - center, Z - center + pt.constant(s)) for s in shifts)
        return ifelse(enough, images.astype("float64"), self._of_more(cov_func, X, Z, total))

    def on_plane(self, cov_func, X: TensorVariable, Z: TensorVariable) -> TensorVariable:
        """Prior covariance of a function that repeats in its periodic inputs alone."""
        if all(self.periodic):
            return self.covariance(cov_func, X, Z)
        X, Z = self._in_one_period(X), self._in_one_period(Z)
        if not any(self.periodic):
            return cov_func(X, Z).astype("float64")
        copies, origin = self._copies_on_plane(), pt.zeros((1, self.n_columns))
        each = cov_func(pt.constant(copies.shifts), origin)[:, 0] * copies.weights
        last = np.arange(copies.stretch.max() + 1)
        sums = pt.sum(pt.switch(copies.stretch <= last[:, None], each, np.float64(0.0)), axis=1)
        periods = np.where(self.periodic, self.period, APART * np.array(self.period))
        total = spectrum(cov_func, self.n_frequencies, periods.tolist()).total
        number = pt.sum(pt.gt(pt.abs(sums - sums[-1]), ENOUGH * pt.abs(sums[-1])))
        used = pt.ge(number, copies.stretch)
        kept, _ = chosen(used)
        weights = (copies.weights * used)[kept]
        found = add_copies(cov_func, pt.constant(copies.shifts)[kept], weights, X, Z)
        # What no copy is near enough to add. Kernels of one's own have a total of fewer copies.
        return found * pt.switch(pt.gt(total, sums[number]), total / sums[number], np.float64(1.0))

    def _in_one_period(self, X: TensorVariable) -> TensorVariable:
        """Return the same places, where copies around zero are those that matter."""
        if not any(self.periodic):
            return X
        periods = pt.floor((X - np.array(self.center)) / np.array(self.period) + np.float64(0.5))
        return X - periods * np.where(self.periodic, self.period, 0.0)

    def _copies_on_plane(self) -> Copies:
        """Return copies in the inputs that repeat: all near ones, and of those far away a few."""
        ends, number = STRETCHES[sum(self.periodic)]
        places, weights, stretch = [np.zeros(1)], [np.ones(1)], [np.zeros(1, int)]
        for k, (before, end) in enumerate(zip((0, *ends), ends, strict=False)):
            x, w = _nodes(before + 1, end, number)
            places, weights = [*places, x, -x], [*weights, w, w]
            stretch.append(np.full(2 * len(x), k))
        sides, none = [np.concatenate(x) for x in (places, weights, stretch)], ([0.0], [1.0], [0])
        each = [sides if repeats else none for repeats in self.periodic]
        grids = [
            np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
            for axes in zip(*each, strict=True)
        ]
        return Copies(grids[0] * self.period, grids[1].prod(axis=1), grids[2].max(axis=1))

    def _copies(self, n: Sequence[int]) -> np.ndarray:
        """Return where the copies of the torus are, so many on either side in each input."""
        each = [np.arange(-k, k + 1) * length for k, length in zip(n, self.period, strict=True)]
        return np.array(list(itertools.product(*each)))

    def _of_more(self, cov_func, X, Z, total):
        """Return the same by more waves, where lengthscales are long against the period.

        What these leave out in turn is white noise: equal places have it in common.
        """
        n = MORE[self.n_columns]
        more = Features(self.period, tuple(k + n for k in self.n_frequencies), self.center)
        S = more.variances(cov_func)
        both = [more.matrix(more.waves(a)) for a in (X, Z)]
        same = pt.all(pt.eq(X[:, None, :], Z[None, :, :]), axis=2)
        return pt.dot(both[0] * S, both[1].T) + same * (total - pt.sum(S))

    def window(self, X: np.ndarray, before: np.ndarray, active: Sequence[int]) -> np.ndarray:
        """Return the lowest and the highest place at which waves stand for the function.

        That is the range of these columns of X, and of the data that the window `before` was for,
        and a quarter of what the period leaves on either side. Periodic inputs have no bounds.
        """
        X, repeats = X[:, active], np.array(self.periodic)
        period = np.where(repeats, np.inf, self.period)
        low, high = X.min(axis=0), X.max(axis=0)
        if np.isfinite(before[:, ~repeats]).all() and not repeats.all():
            before = np.where(repeats, [low, high], before)
            margin = (period - (before[1] - before[0])) / 2.0
            low, high = np.minimum(low, before[0] + margin), np.maximum(high, before[1] - margin)
        gap = period - (high - low)
        if (gap <= 0.0).any():
            d = int(np.argmin(np.where(repeats, 1.0, gap / self.period)))
            raise ValueError(
                f"Column {active[d]} of X has the range {high[d] - low[d]:g}, but the period of "
                f"the Fourier features is {period[d]:g}: places a period apart are the same. Pass "
                "Fourier(period=...) longer than the range by some lengthscales, or use "
                "Fourier.for_data. If the function does repeat, pass periodic=True."
            )
        return np.stack([low - gap / 4.0, high + gap / 4.0])

    def waves(self, X: TensorVariable) -> list[TensorVariable]:
        """Functions of each input, at each row of `X`."""
        return self.waves_at([X[:, d] for d in range(self.n_columns)])

    def waves_at(self, axes: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Functions of each input, at numbers of their own for each."""
        return [
            _waves((x - np.float64(c)) * np.float64(2.0 * np.pi / length), k)
            for x, c, length, k in zip(
                axes, self.center, self.period, self.n_frequencies, strict=True
            )
        ]

    def matrix(self, waves: Sequence[TensorVariable]) -> TensorVariable:
        """All products of waves, one column for each coefficient."""
        at = np.indices(self.sizes).reshape(self.n_columns, -1)
        full = waves[0][:, at[0]]
        for b, i in zip(waves[1:], at[1:], strict=True):
            full = full * b[:, i]
        return full

    def combine(self, waves: Sequence[TensorVariable], w: TensorVariable) -> TensorVariable:
        """Sum of the products of waves, with weights: one for each row.

        With a matrix of weights, one for each row and column.
        """
        return by_column(self._combine, waves, w)

    def _combine(self, waves, w):
        first, *rest = waves
        if not rest:
            return pt.dot(first, w)
        other = rest[0]
        if len(rest) == 2:
            # By index and not by shape, which JAX would have to know.
            i, j = np.indices(self.sizes[1:]).reshape(2, -1)
            other = other[:, i] * rest[1][:, j]
        return pt.sum(pt.dot(first, w.reshape((self.sizes[0], -1))) * other, axis=1)


def add_copies(cov_func, shifts, weights, X, Z) -> TensorVariable:
    """Add up covariances of the rows of X and of copies of Z, of which one matrix is held."""
    n = X.type.shape[1]
    x, z, s = (pt.tensor(dtype="float64", shape=(None, n)) for _ in range(3))
    w = pt.tensor(dtype="float64", shape=(None,))
    one = (cov_func(x, z + s[0]) * w[0]).astype("float64")
    (kernel,), theta = as_ops(([s, w, x, z], [one]))
    block = kernel.fgraph.unfreeze()
    block = simplify_block(block.inputs, block.outputs)
    op = Rows(
        block.inputs, block.outputs, n_rows=2, n_sums=1, block_size=1, on_unused_input="ignore"
    )
    return op(shifts, weights, X, Z, *theta)


def _nodes(low: int, high: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places and weights of a sum over whole numbers, by Gauss's rule where they are many.

    The matrix is that of the discrete Chebyshev polynomials.
    """
    n = high - low + 1
    if n <= number:
        return np.arange(low, high + 1.0), np.ones(n)
    k = np.arange(1.0, number) ** 2
    beside = np.sqrt(k * (n**2 - k) / (4.0 * (4.0 * k - 1.0)))
    values, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return (low + high) / 2.0 + values, n * vectors[0] ** 2


def by_column(function, waves, w):
    """Apply a function of waves and weights to each column of a matrix of weights."""
    if w.type.ndim == 1:
        return function(waves, w)
    return pt.stack([function(waves, w[:, k]) for k in range(w.type.shape[1])], axis=1)


def _waves(t: TensorVariable, n: int) -> TensorVariable:
    """Return 1, cosines and sines of multiples of `t`, one row for each of its entries.

    By the addition theorems from about 4 sqrt(n) of them, by products with matrices of a few ones:
    a cosine takes as long as ten products.
    """
    amplitude = np.r_[1.0, np.full(2 * n, np.sqrt(2.0))]
    sine = np.arange(2 * n + 1) > n
    k = np.r_[np.arange(n + 1), np.arange(1, n + 1)]
    if n < 4:
        return pt.cos(t[:, None] * k - sine * np.pi / 2) * amplitude
    q = int(np.ceil(np.sqrt(n + 1)))
    coarse, fine = k // q, k % q

    def parts(size, step):
        quarter = np.repeat([0.0, np.pi / 2], size)
        return pt.cos(t[:, None] * np.tile(np.arange(size) * float(step), 2) - quarter)

    def choose(size, at, sines, weights=1.0):
        matrix = np.zeros((2 * size, 2 * n + 1))
        matrix[at + size * sines, np.arange(2 * n + 1)] = weights
        return pt.constant(matrix)

    p = int(coarse.max()) + 1
    A, B = parts(p, q), parts(q, 1)
    # cos(a + b) = cos a cos b - sin a sin b and sin(a + b) = sin a cos b + cos a sin b
    first = pt.dot(A, choose(p, coarse, sine, amplitude)) * pt.dot(
        B, choose(q, fine, np.zeros_like(sine))
    )
    sign = np.where(sine, amplitude, -amplitude)
    return first + pt.dot(A, choose(p, coarse, ~sine, sign)) * pt.dot(
        B, choose(q, fine, np.ones_like(sine))
    )
