r"""Fourier features: the function's coefficients on a torus.

On a torus of periods :math:`L_d`, longer than the range of the data, a stationary process is a sum
of sines and cosines with independent coefficients,

.. math:: f(x) = m(x) - m(c) + \sum_j u_j \phi_j(x), \qquad u_j \sim N(m_j, S_j),

with products over the inputs of :math:`1, \sqrt 2 \cos(2\pi k x/L), \sqrt 2 \sin(2\pi k x/L)` for
:math:`\phi_j` and the spectral density over the volume for :math:`S_j`. The first, constant one has
the mean at the center c, :math:`m_0 = m(c)`, the others have the mean zero. The features do not
depend on the kernel's parameters and the prior is diagonal, so an evaluation costs :math:`N M`.
What the features that are left out contribute to the variance is known exactly and the same
everywhere.
"""

import warnings

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_vsgp.checks import (
    LARGEST,
    as_inputs,
    as_real,
    check_kernel,
    check_number,
    check_real,
    column_names,
    generator_of,
)
from pymc_vsgp.inducing.base import InducingVariables
from pymc_vsgp.inducing.features import Features
from pymc_vsgp.inducing.kernel_values import draws_of
from pymc_vsgp.inducing.kernels import check_methods
from pymc_vsgp.inducing.spectrum import active_columns, of_columns, spectral_density
from pymc_vsgp.inducing.torus import FourierPrior

# Copies on either side, and steps around the torus, from which the number of waves is found.
COPIES, FEWEST_STEPS, MOST_STEPS = 4, 256, 2**15
# Along an input, in units of the range of the data. A torus beyond the first lags has few features.
LAGS, LONGEST = np.linspace(0.0, 8.0, 1025), 1e4
FEW_FEATURES = 256
MOST_FEATURES = 4000
MUCH = 0.05  # of the variance, to leave out: then a function is another one


@dataclass(frozen=True)
class Fourier(Features, InducingVariables):
    r"""
    Fourier coefficients as inducing variables, for stationary kernels of one to three inputs.

    The function may have more inputs: those that the kernel leaves out, by ``active_dims``, are
    for the mean function alone.

    Parameters
    ----------
    period : float or sequence of float
        Length of the torus in each input of the kernel. Beyond the range of the data it should
        leave room for a few lengthscales: what is a period apart is taken to be the same point.
    n_frequencies : int or sequence of int
        Frequencies in each input, without the constant. With :math:`k_d` of them there are
        :math:`\prod_d (2 k_d + 1)` coefficients. Single numbers are those of every input.
    center : float or sequence of float
        Where phases are counted from, and where the mean function is that of the first coefficient.
        The posterior of the function does not depend on it.
    periodic : bool or sequence of bool
        Whether the function repeats after the period, as over the hours of a day. There is then no
        end of the data in that input, and no return to the prior beyond it. The kernel becomes the
        sum over its copies a period apart.
    columns : sequence of str, optional
        Names of all inputs of the function, by which those of X and Xnew are matched; `for_data`
        takes those of a table.
    covariates : sequence of float, optional
        A value of each input that only the mean function uses: there the mean is that of the first
        coefficient. By default zeros; `for_data` takes averages. The posterior of the function
        does not depend on it, and the sampler moves best near the average.

    See Also
    --------
    Fourier.for_data : Choose period and frequencies from the data and the prior.

    Examples
    --------
    .. code-block:: python

        cov = variance * pm.gp.cov.Matern52(2, ls=lengthscale)
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.Fourier.for_data(X, cov))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=counts)
    """

    covariates: tuple[float, ...] | None = None

    def __post_init__(self):
        """Check the covariates, too."""
        super().__post_init__()
        if self.covariates is None:
            return
        values = np.ravel(as_real(self.covariates, "covariates", "Pass one for each covariate."))
        if not np.isfinite(values).all():
            raise ValueError(
                f"covariates is {self.covariates}, but the mean is taken there. "
                "Pass finite numbers."
            )
        object.__setattr__(self, "covariates", tuple(values.tolist()))

    @classmethod
    def for_data(
        cls,
        X: Any,
        cov_func: Any,
        *,
        periodic: Mapping[int | str, float] | None = None,
        residual: float = 0.005,
        wrap: float = 0.02,
        quantile: float = 0.9,
        max_features: int | None = MOST_FEATURES,
        draws: int = 400,
        random_seed=None,
    ) -> "Fourier":
        """
        Choose period and frequencies for the range of the data and the prior of the kernel.

        Parameters
        ----------
        X : array_like, DataFrame or DataArray, shape (N, D)
            All inputs of the function, those that only the mean uses included. Names of columns
            are kept.
        cov_func : Covariance
            The kernel. Its parameters may be random variables.
        periodic : mapping, optional
            Period of each input that the function repeats in, by the input's name or position in
            X: ``{"hour": 24.0}``.
        residual : float
            Share of the variance that may stay unexplained.
        wrap : float
            Correlation that opposite ends of the data may have around the torus.
        quantile : float
            Part of the prior for which both hold: lengthscales may be arbitrarily short and long
            under a prior, and no features would do for all of them.
        max_features : int, optional
            At most so many coefficients. Where they leave out much more than `residual`, a warning
            says so. None is no limit.
        draws : int
            Draws from the prior.
        random_seed : int or Generator, optional
            Of the draws. By default a fixed one: the same data have the same features, and what was
            compiled for them serves again.
        """
        for name, share in (("residual", residual), ("wrap", wrap), ("quantile", quantile)):
            check_real(name, share, 0.0, 1.0)
        check_number("draws", draws)
        if max_features is not None:
            check_number("max_features", max_features)
        names = column_names(X, "X", numbers=True)
        X = as_inputs(X, "X")
        check_kernel(cov_func, X)
        check_methods(cov_func)
        active = few_columns(cov_func, X.shape[1])
        known = _periods(periodic or {}, names, active, X.shape[1])
        covariates = tuple(np.delete(X, active, axis=1).mean(axis=0).tolist())
        X, cov_func = X[:, active], of_columns(cov_func, active)
        spectral_density(cov_func, pt.ones((1, len(active))))  # refuses kernels that have none
        low, high = X.min(axis=0), X.max(axis=0)
        width = np.where(high - low > 1.0 / LARGEST, high - low, 1.0)
        n_columns = len(width)
        axes = width * np.eye(n_columns)
        rng = generator_of(0 if random_seed is None else random_seed)
        period, counts = [], []
        for i, axis in enumerate(axes):
            share = residual / n_columns
            if i in known:
                period.append(known[i])
                turn = axis / axis.sum() * known[i]
                counts.append(_frequencies(cov_func, turn, share, quantile, draws, rng))
                continue
            size = 1.0 + max(_gap(cov_func, axis, wrap, share, quantile, draws, rng), 0.05)
            period.append(size * axis.sum())
            counts.append(_frequencies(cov_func, size * axis, share, quantile, draws, rng))
        center = tuple((low + high) / 2.0)
        repeats = tuple(i in known for i in range(n_columns))
        found = cls(tuple(period), tuple(counts), center, repeats, names, covariates)
        few = found if max_features is None else found.at_most(max_features)
        if few is not found:
            left = left_out(few, cov_func, quantile, draws, rng)
            if left > max(MUCH, 2.0 * residual):
                warnings.warn(
                    f"{few.n_features} coefficients leave out {left:.0%} of the variance, and "
                    f"residual={residual:g} asks for less. Raise max_features, narrow the prior of "
                    "the lengthscale, or let vsgp.suggest_inducing choose.",
                    stacklevel=2,
                )
        return few

    def at_most(self, n: int) -> "Fourier":
        """Return the same with fewer frequencies if there are more than `n` coefficients."""
        if self.n_features <= n:
            return self
        counts = np.array(self.n_frequencies, dtype=float)
        while np.prod(2 * np.floor(counts) + 1) > n:
            counts *= 0.98
        return replace(self, n_frequencies=tuple(np.floor(counts).astype(int)))

    def of_kernel(self, cov_func) -> "FourierOfKernel":
        active = few_columns(cov_func, self.n_columns)
        n, found = len(active), self
        if self.n_columns == 1 < n:
            each = ("period", "n_frequencies", "center", "periodic")
            found = replace(self, **{name: getattr(self, name) * n for name in each})
        return FourierOfKernel(found, cov_func, active)

    @property
    def n_inducing(self) -> int:
        return self.n_features

    def under(self, name, cov_func, mean_at, jitter):
        return self.of_kernel(cov_func).under(name, cov_func, mean_at, jitter)


class FourierOfKernel(InducingVariables):
    """Fourier coefficients of a function whose kernel has some of the inputs, and its mean any."""

    def __init__(self, features: Fourier, cov_func, active: list[int]):
        self.features, self.active = features, active
        self._n_columns = getattr(cov_func, "input_dim", len(active))
        self.columns = features.columns
        n_others = self._n_columns - len(active)
        for name, given, n in (
            ("period", features.period, len(active)),
            ("covariates", features.covariates, n_others),
            ("columns", features.columns, self._n_columns),
        ):
            if given is not None and len(given) != n:
                raise ValueError(
                    f"{name} of the Fourier features has {len(given)} entries, and the kernel has "
                    f"the columns {active} of {self._n_columns}. Pass {n}, or use Fourier.for_data "
                    "with all columns of X."
                )

    @property
    def n_columns(self) -> int:
        return self._n_columns

    @property
    def n_inducing(self) -> int:
        return self.features.n_features

    @property
    def example(self) -> np.ndarray:
        row = np.zeros(self.n_columns)
        row[np.setdiff1d(np.arange(self.n_columns), self.active)] = self.features.covariates or 0.0
        row[self.active] = self.features.center
        return row[None, :]

    def under(self, name, cov_func, mean_at, jitter):
        return FourierPrior(self.features, name, cov_func, mean_at, self.active, self.example)


def few_columns(cov_func, n_columns: int) -> list[int]:
    """Return the columns that a kernel uses, of which there may be three."""
    active = active_columns(cov_func, getattr(cov_func, "input_dim", n_columns))
    if len(active) > 3:
        raise ValueError(
            f"The kernel has {len(active)} inputs, and Fourier features grow too many beyond "
            "three. Use inducing points, gp.prior(name, Xu=...), or leave covariates to the mean "
            "function by active_dims."
        )
    return active


def _periods(periodic, names, active, n_columns) -> dict[int, float]:
    """Return the periods that were given by the position of the input among the active ones."""
    every = {**{i: i for i in range(n_columns)}, **{n: i for i, n in enumerate(names or ())}}
    places = {name: active.index(i) for name, i in every.items() if i in active}
    if not isinstance(periodic, Mapping) or set(periodic) - set(places):
        inputs = [names[i] for i in active] if names else active
        raise ValueError(
            f"periodic is {periodic!r}, but the inputs of the kernel are {inputs}. "
            "Pass the period of each input that repeats, as in periodic={0: 24.0}."
        )
    for i, length in periodic.items():
        check_real(f"The period of input {i}", length, above=True)
    return {places[name]: float(length) for name, length in periodic.items()}


def _draws_along(cov_func, places, draws, rng) -> np.ndarray:
    """Return the kernel between places and the origin, one row for each draw of its parameters.

    The first place is the origin. Draws without variance are left out.
    """
    origin = pt.zeros((1, places.shape[1]))
    along = cov_func(pt.constant(places), origin)[:, 0]
    k = draws_of(along, draws, rng).reshape(draws, -1)
    return k[k[:, 0] > 0.0]


def _gap(cov_func, axis, wrap, share, quantile, draws, rng) -> float:
    """Return how far apart the ends of the data have to be around the torus, in ranges of them."""
    lags = LAGS
    while lags[-1] <= LONGEST:
        k = np.abs(_draws_along(cov_func, lags[:, None] * axis, draws, rng))
        # The longest correlation at this lag or beyond it: kernels may oscillate.
        tail = np.maximum.accumulate((k / k[:, :1])[:, ::-1], axis=1)[:, ::-1]
        apart = np.quantile(tail, quantile, axis=0) <= wrap
        if apart.any():
            gap = lags[np.argmax(apart)]
            period = (1.0 + gap) * axis
            if lags is LAGS or _is_cheap(cov_func, period, share, quantile, draws, rng):
                return gap
            break
        # A longer torus takes more waves of short lengthscales. It takes few where all are long.
        if np.quantile(tail[:, len(lags) // 2], 1.0 - quantile) <= wrap:
            break
        lags = 2.0 * lags
    return LAGS[-1] / 2.0


def _is_cheap(cov_func, period, share, quantile, draws, rng) -> bool:
    """Whether a torus takes few waves. Beside a long part, a kernel may have a short one."""
    few = (FEW_FEATURES ** (1.0 / len(period)) - 1.0) / 2.0
    most = 2 ** int(np.ceil(np.log2(4.0 * few)))
    return _frequencies(cov_func, period, share, quantile, draws, rng, most) <= few


def _frequencies(cov_func, period, share, quantile, draws, rng, most=MOST_STEPS) -> int:
    """Return how many waves along one input leave out a share at most, for most draws.

    The kernel is evaluated at `most` steps at most, which tell half as many waves apart.
    """
    n = min(FEWEST_STEPS, most)
    while True:
        # The kernel on the torus is the sum over its copies. Cut off at half a period, or between
        # copies, it would have a kink, and the waves of the kink would be counted: it fades out.
        copies = np.arange(n // 2 + 1) / n - np.r_[0 : COPIES + 1, 1 - COPIES : 0][:, None]
        fades = np.clip(2.0 * np.abs(copies) / COPIES - 1.0, 0.0, 1.0)
        k = _draws_along(cov_func, copies.reshape(-1, 1) * period, draws, rng)
        half = np.einsum("dcn,cn->dn", k.reshape(-1, *copies.shape), np.cos(np.pi / 2 * fades) ** 2)
        mass = np.clip(np.fft.rfft(np.hstack([half, half[:, -2:0:-1]])).real, 0.0, None)
        mass[:, 1:] *= 2.0
        left = 1.0 - np.cumsum(mass, axis=1) / mass.sum(axis=1, keepdims=True)
        enough = np.quantile(left, quantile, axis=0) <= share
        count = int(np.argmax(enough)) if enough.any() else n // 2
        # Waves that steps so wide can't tell apart are counted as slower ones.
        if 4 * count <= n or n >= most:
            return count
        n *= 2


def left_out(features: Features, cov_func, quantile: float, draws: int, rng) -> float:
    """Return the share of the variance that features leave out, for this part of the prior."""
    total, left = features.spectrum(cov_func)
    return float(np.quantile(draws_of(left / total, draws, rng), quantile))
