r"""Spectral densities of the kernels of pm.gp, and what Fourier coefficients leave out of them.

The radial kernels are mixtures of exponentiated quadratic ones,

.. math:: k(r) = \int e^{-s r^2 / 2} p(s) ds,

with :math:`1/s` (Matérn) or s (rational quadratic) from a gamma distribution. On a torus an
exponentiated quadratic kernel is a product over the inputs, and what frequencies beyond K add to
one input is :math:`2 \sum_{k > K} e^{-b^2 k^2 / 2} b / \sqrt{2 \pi}` with
:math:`b = 2 \pi \ell / (L \sqrt s)`: a few terms, and the rest by the Euler-Maclaurin formula. All
are positive, and so is their sum: nothing is subtracted that could cancel.
"""

import itertools

from collections.abc import Sequence
from copy import copy
from functools import cache, reduce
from operator import mul
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc.gp import cov as pm_cov
from pymc.gp.cov import Add, BaseCovariance, Combination, Covariance, Prod
from pytensor.graph.basic import Constant
from pytensor.tensor.variable import TensorVariable
from scipy import special

from pymc_vsgp.inducing.kernel_values import draws_or_start
from pymc_vsgp.inducing.kernels import has_noise_of_its_own
from pymc_vsgp.rvs import depends_on_random

# The smoothness of Matérn kernels, and the lengthscale of each in units of its `ls`.
MATERN = {
    pm_cov.Matern12: (0.5, 1.0),
    pm_cov.Exponential: (0.5, 2.0),
    pm_cov.Matern32: (1.5, 1.0),
    pm_cov.Matern52: (2.5, 1.0),
}
# Steps of log s: the trapezoidal rule is then right to 1e-11.
STEP, STEPS = 0.28, 96
SMALLEST = 40.0  # nats below the mode, where densities of log s are cut off

ALPHAS = 200  # draws from a prior
EVEN = 1e-6  # relative error of a spectral density, within which it is even in each input
TERMS = 12  # beyond the last frequency, before the Euler-Maclaurin formula
PSD = "power_spectral_density"
CORRECTIONS = (-1 / 24, 7 / 5760, -31 / 967680, 127 / 154828800)
IMAGES = {1: 16, 2: 8, 3: 6}  # of the torus, for kernels that only their own class knows


class Spectrum(NamedTuple):
    """A kernel on a torus: its variance, and that of the frequencies that are left out."""

    total: TensorVariable
    left_out: TensorVariable


def active_columns(cov_func: BaseCovariance, n_columns: int) -> list[int]:
    """Return the columns that a kernel uses, of so many where it does not say."""
    return sorted(used_columns(cov_func, n_columns) or range(n_columns))


def distinct_columns(cov_func: BaseCovariance, n_columns: int) -> list[int]:
    """Return the columns in which no two inducing inputs may be equal: the kernel's.

    White noise is another value at each of them, so they need not differ.
    """
    return [] if has_noise_of_its_own(cov_func) else active_columns(cov_func, n_columns)


def used_columns(cov_func, n_columns: int) -> set[int]:
    """Return the same as a set, which is empty for a constant.

    What pm.gp says of a sum or product leaves out kernels without `active_dims`, which use all.
    """
    if isinstance(cov_func, Combination):
        return set().union(*(used_columns(f, n_columns) for f in cov_func._factor_list))
    if isinstance(cov_func, pm_cov.Exponentiated):
        return used_columns(cov_func.kernel, n_columns)
    plain = type(cov_func) in (pm_cov.Constant, pm_cov.WhiteNoise)
    if plain or not isinstance(cov_func, BaseCovariance):
        return set()
    return set(_columns(getattr(cov_func, "active_dims", range(n_columns)), n_columns))


def _columns(active_dims, n_columns: int) -> list[int]:
    """Count from the first of the columns what is counted from the last."""
    return [int(d) if d >= 0 else n_columns + int(d) for d in active_dims]


def of_columns(cov_func: BaseCovariance, active: Sequence[int]) -> BaseCovariance:
    """Return a kernel as one of these columns alone, in increasing order."""
    if not isinstance(cov_func, Covariance):
        return cov_func
    columns = _columns(cov_func.active_dims, cov_func.input_dim)
    if not set(columns) <= set(active):
        raise ValueError(
            f"The kernel depends on the columns {columns}, and the Fourier features are of the "
            f"columns {list(active)}. Pass features of the kernel's columns."
        )
    own = copy(cov_func)
    own.input_dim, own.active_dims = len(active), np.searchsorted(active, columns)
    if isinstance(cov_func, Add | Prod):
        own._factor_list = [of_columns(f, active) for f in cov_func._factor_list]
    return own


def spectral_density(cov_func: BaseCovariance, omega: TensorVariable) -> TensorVariable:
    r"""Return the spectral density of a stationary kernel at the rows of `omega`.

    With the convention :math:`k(x) = (2\pi)^{-D} \int S(\omega) e^{i \omega x} d\omega`. What
    pm.gp's own method lacks are the product of kernels of separate inputs, the Matérn-1/2 kernel,
    constants in double precision, and the gradient in alpha of the rational quadratic kernel.
    """
    omega = pt.as_tensor(omega).astype("float64")
    n = omega.type.shape[1]
    return _combine(
        cov_func, n, lambda leaf, d: _density(leaf, omega[:, d]), sum, lambda p: reduce(mul, p)
    )


def spectrum(cov_func: BaseCovariance, counts, periods) -> Spectrum:
    """Return the variance on a torus, and what is left of it beyond `counts` frequencies."""

    def of_leaf(leaf, dims):
        sides = [(counts[d], periods[d]) for d in dims]
        return _on_torus(leaf, *zip(*sides, strict=True))

    def added(parts):
        return Spectrum(*(sum(x) for x in zip(*parts, strict=True)))

    return _combine(cov_func, len(counts), of_leaf, added, _multiplied)


def _multiplied(parts) -> Spectrum:
    """Multiply kernels of separate inputs, or the inputs of one; scalars leave nothing out."""
    total, left = np.float64(1.0), np.float64(0.0)
    for part in parts:
        t, o = part if isinstance(part, Spectrum) else (part, None)
        # Left out is what is beyond the frequencies of the first, or else of the others.
        left = left * t if o is None else left * t + (total - left) * o
        total = total * t
    return Spectrum(total, left)


def _combine(cov_func, n_columns, of_leaf, add, multiply):
    """Put together what `of_leaf` says of each kernel of a sum or product."""
    found, dims = _walk(cov_func, of_leaf, add, multiply)
    every = set(range(n_columns))
    if dims != every:
        raise ValueError(
            f"The kernel depends on the columns {sorted(dims)} of {len(every)} alone, so its "
            "spectral density in all of them does not exist. Use a process for those columns: "
            "one for each term of an additive kernel."
        )
    return found


def _walk(cov, of_leaf, add, multiply):
    """Return what is said of a kernel, and the inputs that it depends on."""
    if isinstance(cov, Add | Prod):
        factors = cov._factor_list
        parts = [_walk(f, of_leaf, add, multiply) for f in factors if isinstance(f, BaseCovariance)]
        scalars = [pt.as_tensor(f) for f in factors if not isinstance(f, BaseCovariance)]
        if parts and all(s.type.ndim == 0 or s.type.broadcastable == (True,) for s in scalars):
            found, dims = [d for d, _ in parts], [s for _, s in parts]
            scalars = [s.reshape(()).astype("float64") for s in scalars]
            if isinstance(cov, Add) and not scalars and all(d == dims[0] for d in dims):
                return add(found), dims[0]
            if isinstance(cov, Prod) and sum(map(len, dims)) == len(set().union(*dims)):
                return multiply([*found, *scalars]), set().union(*dims)
    elif isinstance(cov, Covariance) and (_is_radial(cov) or _has_own_density(cov)):
        dims = [int(d) for d in cov.active_dims]
        try:
            return of_leaf(cov, dims), set(dims)
        except NotImplementedError:
            pass
    raise ValueError(
        f"The kernel has no spectral density in closed form: {type(cov).__name__}. Use stationary "
        "ones of pm.gp.cov: their multiples, sums, and products over separate columns."
    )


def _is_radial(cov) -> bool:
    # Not a subclass, which may be another kernel.
    return type(cov) in (*MATERN, pm_cov.ExpQuad, pm_cov.RatQuad)


def _has_own_density(cov) -> bool:
    """Whether no class below the one with the density makes another kernel of it."""
    of_density, *others = (
        next((i for i, c in enumerate(type(cov).__mro__) if name in vars(c)), np.inf)
        for name in (PSD, "__call__", "full", "full_from_distance", "square_dist")
    )
    return np.isfinite(of_density) and of_density <= min(others)


def _lengthscales(cov) -> TensorVariable:
    ls = pt.ones(cov.n_dims, dtype="float64") * pt.as_tensor(cov.ls).astype("float64")
    return ls * np.float64(MATERN.get(type(cov), (0.0, 1.0))[1])


def _density(cov, omega) -> TensorVariable:
    if not _is_radial(cov):
        return cov.power_spectral_density(omega)
    ls, D = _lengthscales(cov), cov.n_dims
    # No product of matrices, which takes numba ten seconds to compile and XLA a call.
    z = pt.sum(pt.square(omega * ls), axis=1)
    if type(cov) is pm_cov.ExpQuad:
        return np.float64((2.0 * np.pi) ** (D / 2)) * pt.prod(ls) * pt.exp(-z / 2.0)
    if type(cov) in MATERN:
        nu, _ = MATERN[type(cov)]
        log_c = D * np.log(2.0) + np.log(np.pi) * D / 2 + nu * np.log(2.0 * nu)
        log_c += special.gammaln(nu + D / 2) - special.gammaln(nu)
        power = np.float64(-(nu + D / 2))
        return np.float64(np.exp(log_c)) * pt.prod(ls) * (np.float64(2.0 * nu) + z) ** power
    alpha = pt.as_tensor(cov.alpha)
    if isinstance(alpha, Constant) and np.any(alpha.data <= D / 2):
        raise ValueError(
            f"RatQuad with alpha {float(alpha.data):g} has tails too heavy for a spectral density. "
            f"Use alpha above {D / 2:g}, half the number of inputs, or inducing points: Xu=..."
        )
    alpha = alpha.astype("float64")
    c = pt.prod(ls) * (np.float64(2.0 * np.pi) ** np.float64(D / 2))
    constant = pt.eq(z, 0.0)
    smallest = pt.min(pt.switch(constant, np.float64(np.inf), z)) / (2.0 * SMALLEST)
    s, p = _rational(alpha, pt.switch(pt.isinf(smallest), np.float64(0.0), smallest))
    # In place of 0 something whose terms do not overflow.
    z_ = pt.switch(constant, pt.max(z) + 1.0, z)
    terms = p * s ** np.float64(-D / 2) * pt.exp(-z_[:, None] / (2.0 * s))
    # Without bound where alpha <= D / 2: the kernel's tails are then too heavy for a density.
    half = np.float64(D / 2)
    at_zero = alpha**half * pt.exp(pt.gammaln(pt.maximum(alpha - half, 0.0)) - pt.gammaln(alpha))
    return c * pt.switch(constant, at_zero, pt.sum(terms, axis=1))


def heavy_tails(cov_func) -> str | None:
    """Say that the prior of a RatQuad's alpha reaches where it has no density, if it does."""
    if isinstance(cov_func, Add | Prod):
        factors = [f for f in cov_func._factor_list if isinstance(f, BaseCovariance)]
        return next(filter(None, map(heavy_tails, factors)), None)
    if type(cov_func) is not pm_cov.RatQuad:
        return None
    alpha, least = pt.as_tensor(cov_func.alpha), len(cov_func.active_dims) / 2
    if not depends_on_random(alpha):
        return None
    share = np.mean(draws_or_start([alpha], ALPHAS)[0] <= least)
    if share == 0.0:
        return None
    return (
        f"alpha of RatQuad is at most {least:g} in {share:.0%} of the draws from its prior, where "
        "Fourier features have no spectral density and the log density is nan. Give it a prior "
        f"above {least:g}, or use inducing points: Xu=..."
    )


def check_even(cov_func, periods) -> None:
    """Raise where a class of one's own has another density as one frequency changes its sign.

    Features are products of waves of each input, so all signs of frequencies have one variance.
    """
    if isinstance(cov_func, Add | Prod):
        for factor in cov_func._factor_list:
            check_even(factor, periods)
    dims = [int(d) for d in getattr(cov_func, "active_dims", ())]
    if type(cov_func).__module__ == pm_cov.__name__ or len(dims) < 2:
        return
    waves = 1.0 + np.indices([3] * len(dims)).reshape(len(dims), -1).T
    omega = 2.0 * np.pi * waves / np.asarray(periods)[dims]
    signs = itertools.product([1.0, -1.0], repeat=len(dims))
    densities = pt.stack([_density(cov_func, pt.constant(omega * sign)) for sign in signs])
    for S in draws_or_start([densities], 3)[0]:
        if np.abs(S - S[0]).max() > EVEN * np.abs(S).max():
            raise ValueError(
                f"The spectral density of {type(cov_func).__name__} is another one where one of "
                "the frequencies changes its sign, which Fourier features cannot show. "
                "Use inducing points, gp.prior(name, Xu=...), or NearestNeighbors."
            )


@cache
def _matern_nodes(nu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return s and the weights of a Matérn kernel as a mixture, where 1/s is gamma."""
    y = 2.0 * SMALLEST / nu
    t = np.arange(-np.log1p(y + np.sqrt(2.0 * y)), SMALLEST / nu, STEP)
    log_p = -nu * t - nu * np.exp(-t)
    p = np.exp(log_p - log_p.max())
    return np.exp(t), p / p.sum()


def _rational(alpha, least) -> tuple[TensorVariable, TensorVariable]:
    """Return s and the weights of a rational quadratic kernel as a mixture, for s from `least`."""
    y = 2.0 * SMALLEST / alpha
    high = pt.log1p(y + pt.sqrt(2.0 * y))
    low = pt.maximum(-(y / 2.0 + pt.sqrt(y)), pt.log(least))
    low = pt.minimum(low, high - 1.0)
    step = (high - low) / np.float64(STEPS - 1)
    t = low + step * np.arange(STEPS, dtype="float64")
    log_p = alpha * (t - pt.exp(t)) + alpha * pt.log(alpha) - pt.gammaln(alpha)
    return pt.exp(t), step * pt.exp(log_p)


def _on_torus(cov, counts, periods) -> Spectrum:
    if not _is_radial(cov):
        return _of_images(cov, counts, periods)
    circles = np.float64(2.0 * np.pi) / np.array(periods) * _lengthscales(cov)
    s, p = pt.ones(1, dtype="float64"), pt.ones(1, dtype="float64")
    if type(cov) in MATERN:
        s, p = (pt.constant(x) for x in _matern_nodes(MATERN[type(cov)][0]))
    elif type(cov) is pm_cov.RatQuad:
        # Smaller ones add nothing beyond the frequencies.
        least = pt.min((circles * (np.array(counts) + 1.0)) ** 2) / (2.0 * SMALLEST)
        s, p = _rational(pt.as_tensor(cov.alpha).astype("float64"), least)
    sides = [_of_one_input(circles[i] / pt.sqrt(s), k) for i, k in enumerate(counts)]
    found = _multiplied(sides)
    left = pt.sum(p * found.left_out)
    if type(cov) is pm_cov.RatQuad:
        return Spectrum(left + _kept(cov, counts, periods), left)
    return Spectrum(pt.sum(p * found.total), left)


def _kept(cov, counts, periods) -> TensorVariable:
    """Variance of the frequencies that are kept."""
    each = [2.0 * np.pi / L * np.arange(k + 1) for k, L in zip(counts, periods, strict=True)]
    omega = np.stack([w.ravel() for w in np.meshgrid(*each, indexing="ij")], axis=1)
    times = 2.0 ** np.sum(omega > 0.0, axis=1)
    return pt.sum(_density(cov, pt.constant(omega)) * times) / np.prod(periods)


def _of_one_input(b, count: int) -> Spectrum:
    """Sum of exp(-b^2 k^2 / 2) over all k, and over those beyond `count`; a density in k."""
    root = np.float64(np.sqrt(2.0 * np.pi))
    # Poisson's formula: one of the two sums converges at once.
    n = np.arange(1.0, 5.0)
    wide = pt.gt(b, root)
    slow = 1.0 + 2.0 * pt.sum(_gaussian((2.0 * np.pi / pt.minimum(b, root))[:, None] * n), axis=1)
    fast = b / root * (1.0 + 2.0 * pt.sum(_gaussian(pt.maximum(b, root)[:, None] * n), axis=1))
    total = pt.switch(wide, fast, slow)
    k = np.arange(count + 1.0, count + TERMS + 1.0)
    left = 2.0 * b / root * pt.sum(_gaussian(b[:, None] * k), axis=1)
    # The polynomials would overflow, where their product with the density is nothing.
    x = pt.minimum(b * np.float64(count + TERMS + 0.5), np.float64(40.0))
    b = x / np.float64(count + TERMS + 0.5)
    x2, b2 = x**2, b**2
    hermite = (1.0, x2 - 3.0, x2**2 - 10.0 * x2 + 15.0, x2**3 - 21.0 * x2**2 + 105.0 * x2 - 105.0)
    series = sum(
        np.float64(c) * b2**i * h for i, (c, h) in enumerate(zip(CORRECTIONS, hermite, strict=True))
    )
    rest = pt.erfc(x / np.float64(np.sqrt(2.0)))
    rest = rest + np.float64(2.0) / root * b2 * x * series * _gaussian(x)
    return Spectrum(total, left + rest)


def _gaussian(x):
    return pt.exp(-0.5 * x**2)


def _of_images(cov, counts, periods) -> Spectrum:
    """Return the same of a kernel that only its own class knows: all images less what is kept.

    A difference below zero by more than rounding is nan: where lengthscales are long against the
    period it takes more images.
    """
    n = IMAGES[len(counts)]
    copies = np.array(list(itertools.product(range(-n, n + 1), repeat=len(counts))))
    places = np.zeros((len(copies), cov.input_dim))
    places[:, [int(d) for d in cov.active_dims]] = copies * np.array(periods)
    total = pt.sum(cov(pt.constant(places), pt.zeros((1, cov.input_dim)))).astype("float64")
    left = total - _kept(cov, counts, periods)
    rounding = np.float64(1e-9) * total
    return Spectrum(total, pt.switch(left < -rounding, np.float64(np.nan), pt.maximum(left, 0.0)))
