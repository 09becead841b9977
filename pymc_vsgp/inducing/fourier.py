r"""Fourier features: the function's coefficients on a torus.

On a torus of periods :math:`L_d`, longer than the range of the data, a stationary process is a sum
of independent waves,

.. math:: f(x) = m(x) - m(c) + \sum_j u_j \phi_j(x), \qquad u_j \sim N(m_j, S_j),

with products over the inputs of :math:`1, \sqrt 2 \cos(2\pi k x/L), \sqrt 2 \sin(2\pi k x/L)` for
:math:`\phi_j` and the spectral density over the volume for :math:`S_j`. The first, constant one has
the mean at the center c, :math:`m_0 = m(c)`, the others have the mean zero. The waves do not
depend on the kernel's parameters and the prior is diagonal, so an evaluation costs :math:`N M`.
What the waves that are left out contribute to the variance is known exactly and the same
everywhere.
"""

import itertools

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.conditional.op import ifelse
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import as_inputs
from pymc_vsgp.compile import ONCE
from pymc_vsgp.inducing.spectrum import Spectrum, spectral_density, spectrum

__all__ = ["Fourier", "by_column"]

# Added to the variance of each wave, as a fraction of the function's: smooth kernels have waves
# whose variance is below the smallest number, and its logarithm is wanted.
LEAST = np.float64(1e-24)

# Copies of the torus on either side that add to a covariance, by the number of inputs.
NEAR = {1: 4, 2: 2, 3: 1}
MORE = {1: 200, 2: 8, 3: 2}  # waves, where that takes more copies

# Copies on either side, and steps around the torus, from which the number of waves is found.
COPIES, FEWEST_STEPS, MOST_STEPS = 2, 256, 2**15


@dataclass(frozen=True)
class Fourier:
    r"""
    Fourier coefficients as inducing variables, for one to three inputs and stationary kernels.

    Parameters
    ----------
    period : float or sequence of float
        Length of the torus in each input. Beyond the range of the data it should leave room for a
        few lengthscales: what is a period apart is taken to be the same place.
    n_frequencies : int or sequence of int
        Waves in each input, without the constant. With :math:`k_d` of them there are
        :math:`\prod_d (2 k_d + 1)` coefficients. Single numbers are those of every input.
    center : float or sequence of float
        Where phases are counted from, and where the mean function is that of the first coefficient.
        The posterior of the function does not depend on it.

    See Also
    --------
    Fourier.for_data : Choose period and frequencies from the data and the prior.

    Examples
    --------
    .. code-block:: python

        cov = variance * pm.gp.cov.Matern52(2, ls=lengthscale)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.Fourier.for_data(X, cov))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=counts)
    """

    period: tuple[float, ...]
    n_frequencies: tuple[int, ...]
    center: tuple[float, ...] = (0.0,)

    def __post_init__(self):
        """Check, and give each input its own numbers."""
        periods, counts, centers = (
            tuple(np.atleast_1d(x).tolist()) for x in (self.period, self.n_frequencies, self.center)
        )
        n = max(len(periods), len(counts), len(centers))
        if n > 3:
            raise ValueError(
                f"There are {n} inputs, and Fourier features grow too many beyond three. "
                "Use inducing points: gp.prior(name, Xu=...)."
            )
        for name, value in (("period", periods), ("n_frequencies", counts), ("center", centers)):
            if len(value) not in (1, n):
                raise ValueError(
                    f"{name} has {len(value)} entries, but there are {n} inputs. "
                    "Pass one number, or one for each input."
                )
        periods, counts, centers = (v * n if len(v) == 1 else v for v in (periods, counts, centers))
        if not all(np.isfinite(p) and p > 0 for p in periods):
            raise ValueError(
                f"period is {self.period}, but a length is needed. Pass positive numbers."
            )
        if not all(float(k).is_integer() and k >= 0 for k in counts):
            raise ValueError(
                f"n_frequencies is {self.n_frequencies}, but it counts waves. "
                "Pass whole numbers, 0 or more."
            )
        object.__setattr__(self, "period", tuple(map(float, periods)))
        object.__setattr__(self, "n_frequencies", tuple(map(int, counts)))
        object.__setattr__(self, "center", tuple(map(float, centers)))

    @classmethod
    def for_data(
        cls,
        X: Any,
        cov_func: Any,
        *,
        residual: float = 0.005,
        wrap: float = 0.02,
        quantile: float = 0.9,
        max_features: int = 4000,
        draws: int = 400,
        random_seed=None,
    ) -> "Fourier":
        """
        Choose period and frequencies for the range of the data and the prior of the kernel.

        Parameters
        ----------
        X : array_like, shape (N, D)
            Inputs.
        cov_func : Covariance
            The kernel. Its parameters may be random variables.
        residual : float
            Share of the variance that may be left out.
        wrap : float
            Correlation that opposite ends of the data may have around the torus.
        quantile : float
            Part of the prior for which both hold: lengthscales may be arbitrarily short and long
            under a prior, and no features would do for all of them.
        max_features : int
            At most so many coefficients, though they may leave out more: see
            :func:`suggest_inducing` and :func:`check_inducing`.
        draws : int
            Draws from the prior.
        random_seed : int or Generator, optional
            Of the draws.
        """
        X = as_inputs(X, "X")
        low, high = X.min(axis=0), X.max(axis=0)
        width = np.where(high > low, high - low, 1.0)
        n_columns = len(width)
        if n_columns > 3:
            raise ValueError(
                f"X has {n_columns} columns, and Fourier features grow too many beyond three. "
                "Use inducing points: gp.prior(name, Xu=...)."
            )
        # The kernel along each input, in units of the range.
        lags = np.linspace(0.0, 8.0, 1025)
        axes = width * np.eye(n_columns)
        rng = np.random.default_rng(random_seed)
        period, counts = [], []
        for axis in axes:
            k = np.abs(_draws_along(cov_func, lags[:, None] * axis, draws, rng))
            # The longest correlation at this lag or beyond it: kernels may oscillate.
            tail = np.maximum.accumulate((k / k[:, :1])[:, ::-1], axis=1)[:, ::-1]
            apart = np.quantile(tail, quantile, axis=0) <= wrap
            gap = lags[np.argmax(apart)] if apart.any() else lags[-1] / 2.0
            size = 1.0 + max(gap, 0.05)
            period.append(size * axis.sum())
            share = residual / n_columns
            counts.append(_frequencies(cov_func, size * axis, share, quantile, draws, rng))
        return cls(tuple(period), tuple(counts), tuple((low + high) / 2.0)).at_most(max_features)

    def at_most(self, n: int) -> "Fourier":
        """Return the same with fewer frequencies if there are more than `n` coefficients."""
        if self.n_features <= n:
            return self
        counts = np.array(self.n_frequencies, dtype=float)
        while np.prod(2 * np.floor(counts) + 1) > n:
            counts *= 0.98
        return Fourier(self.period, tuple(np.floor(counts).astype(int)), self.center)

    def of_columns(self, n: int) -> "Fourier":
        """Return the same for n inputs, where it was made from single numbers."""
        if self.n_columns > 1 or n == 1:
            return self
        return Fourier(self.period * n, self.n_frequencies * n, self.center * n)

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
        copies = np.array(list(itertools.product(range(-n, n + 1), repeat=self.n_columns)))
        shifts = copies * np.array(self.period)
        center, origin = np.array(self.center), pt.zeros((1, self.n_columns))
        total, left = self.spectrum(cov_func)
        near = pt.sum(cov_func(pt.constant(shifts), origin))
        enough = pt.abs(near - total) <= np.float64(1e-3) * left + np.float64(2e-6) * total
        images = sum(cov_func(X - center, Z - center + pt.constant(s)) for s in shifts)
        return ifelse(enough, images.astype("float64"), self._of_more(cov_func, X, Z, total))

    def _of_more(self, cov_func, X, Z, total):
        """Return the same by more waves, where lengthscales are long against the period.

        What these leave out in turn is white noise: equal places have it in common.
        """
        n = MORE[self.n_columns]
        more = Fourier(self.period, tuple(k + n for k in self.n_frequencies), self.center)
        S = more.variances(cov_func)
        both = [more.matrix(more.waves(a)) for a in (X, Z)]
        same = pt.all(pt.eq(X[:, None, :], Z[None, :, :]), axis=2)
        return pt.dot(both[0] * S, both[1].T) + same * (total - pt.sum(S))

    def window(self, X: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the lowest and the highest place at which waves stand for the function.

        That is the range of X, and of the data that the window `before` was for, and a quarter of
        what the period leaves on either side.
        """
        period = np.array(self.period)
        low, high = X.min(axis=0), X.max(axis=0)
        if np.isfinite(before).all():
            margin = (period - (before[1] - before[0])) / 2.0
            low, high = np.minimum(low, before[0] + margin), np.maximum(high, before[1] - margin)
        gap = period - (high - low)
        if (gap <= 0.0).any():
            d = int(np.argmin(gap / period))
            raise ValueError(
                f"Column {d} of X has the range {high[d] - low[d]:g}, but the period of the "
                f"Fourier features is {period[d]:g}: places a period apart are the same. Pass "
                "Fourier(period=...) longer than the range by some lengthscales, or use "
                "Fourier.for_data."
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


def _draws_along(cov_func, places, draws, rng) -> np.ndarray:
    """Return the kernel between places and the origin, one row for each draw of its parameters."""
    origin = pt.zeros((1, places.shape[1]))
    along = cov_func(pt.constant(places), origin)[:, 0]
    return pm.draw(along, draws=draws, random_seed=rng, mode=ONCE).reshape(draws, -1)


def _frequencies(cov_func, period, share, quantile, draws, rng) -> int:
    """Return how many waves along one input leave out a share at most, for most draws."""
    n = FEWEST_STEPS
    while True:
        # The kernel on the torus is the sum over its copies: cut off at half a period it would
        # have a kink, and the waves of the kink would be counted.
        copies = np.arange(n) / n - np.arange(-COPIES, COPIES + 1)[:, None]
        k = _draws_along(cov_func, copies.reshape(-1, 1) * period, draws, rng)
        torus = k.reshape(draws, -1, n).sum(axis=1)
        mass = np.clip(np.fft.rfft(torus).real, 0.0, None)
        mass[:, 1:] *= 2.0
        left = 1.0 - np.cumsum(mass, axis=1) / mass.sum(axis=1, keepdims=True)
        enough = np.quantile(left, quantile, axis=0) <= share
        count = int(np.argmax(enough)) if enough.any() else n // 2
        # Waves that steps so wide can't tell apart are counted as slower ones.
        if 4 * count <= n or n >= MOST_STEPS:
            return count
        n *= 2


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
