r"""Moments of the function given its Fourier coefficients.

With Fourier features :math:`\phi_j` and coefficients :math:`u_j \sim N(m_j, S_j)`

.. math:: \mu = m(X) + \Phi (u - m), \qquad \gamma = \sum_{j\ \text{left out}} S_j,

where gamma is the variance of the frequencies that are left out, the same for every x.

Features repeat after a period, and the function does not. The window is where they stand for it:
the range of the data, and a quarter of the gap that the period leaves on either side; an input in
which the function does repeat has no bounds. Beyond it f
follows from its value at the nearest place p of the window alone, by the kernel on the plane,

.. math:: f(x) = m(x) + \rho(x) (f(p) - m(p)) + \epsilon(x), \qquad \rho(x) = k(x, p) / k(p, p),

with :math:`\epsilon` what regression on f(p) leaves of f: far away this is the prior.
"""

import warnings

from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad, grad
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import known_value
from pymc_vsgp.inducing.base import (
    Basis,
    Conditional,
    Contribution,
    InducingPrior,
    gradients_of,
    keep,
    pull_spread,
    spread_of,
    surrogate_of,
)
from pymc_vsgp.inducing.features import LEAST, Features
from pymc_vsgp.inducing.graphs import FLOOR, Kernel, Moments, as_ops, inline
from pymc_vsgp.inducing.grids import find_grid
from pymc_vsgp.inducing.products import Products
from pymc_vsgp.inducing.scattered import Scattered
from pymc_vsgp.inducing.spectrum import check_even, heavy_tails, of_columns
from pymc_vsgp.ops.neighbors import apart

# Correlation of the ends of the data around the torus, beyond which the period is called short.
WRAPPED = 0.1
SAME = 1e-9  # relative to the period, which differs by less between machines

W, SCALE, RESIDUAL, WINDOW, REST = range(5)
"""Positions among the args; the last of them is where the parameters begin."""

KEPT = ("window", "center", "period", "frequencies")
"""No graph has the last two: they say which waves draws are of."""


class FourierPrior(InducingPrior):
    """Fourier coefficients under a kernel and a mean.

    The first one has the mean at the center. So what the data say of it does not depend on the
    mean's level, and coordinates that the data gave follow that, too.
    """

    def __init__(self, features: Features, name: str, cov_func, mean_at, active, center):
        self.features, self.name, self.cov_func, self.active = features, name, cov_func, active
        self.n_columns = center.shape[1]
        self.variances, self.residual = self._spectrum(cov_func)
        check_even(of_columns(cov_func, active), features.period)
        if text := heavy_tails(cov_func):
            warnings.warn(text, stacklevel=4)
        bounds = np.outer([-np.inf, np.inf], np.ones(features.n_columns))
        waves = [np.array(features.period), np.array(features.n_frequencies)]
        data = keep(name, dict(zip(KEPT, [bounds, center, *waves], strict=True)))
        self.window, center = data[:2]
        constant = np.eye(1, features.n_features)[0]
        super().__init__(mean_at(center)[0] * constant, pt.sqrt(self.variances))

    def given(self, u, cov_func, mean_at, X, layout=None):
        w, scale, residual = self.linear(u), self.factor, self.residual
        if cov_func is not self.cov_func:
            variances, left = self._spectrum(cov_func)
            share = variances / self.variances
            w = w * (share if w.type.ndim == 1 else share[:, None])
            # Less than all that these features have of the component, where others share them.
            scale, residual = share * scale, left + pt.sum((1.0 - share) * variances)
        sizes = (self.n_columns, len(self.active), len(self.active))
        of_mean, x, z = (pt.tensor(dtype="float64", shape=(None, n)) for n in sizes)
        (mean,), theta = as_ops(([of_mean], [mean_at(of_mean)]))
        own = of_columns(cov_func, self.active)
        torus = self.features.covariance(own, x, z)
        plane = self.features.on_plane(own, x, z)
        (covariance,), prior = as_ops(([x, z], [torus, plane]))
        conditional = GivenCoefficients(
            u.name, self.n_columns, self.features, self.active, mean, covariance, layout
        )
        return conditional, [w, scale, residual, self.window, *theta, *prior]

    def layout(self, X):
        found = find_grid(X[:, list(self.active)])
        return Scattered() if Scattered.pays(self.features, len(X), found) else found

    def cover(self, X):
        """Widen the window to these data, and to a quarter of the gap around all data so far."""
        if X is None:
            if not all(self.features.periodic):
                raise ValueError(
                    "Inputs that are random variables take inducing points: Fourier features "
                    "need their range. Pass Xu=... to prior."
                )
            return
        window = self.features.window(X, self.window.get_value(), self.active)
        self.window.set_value(window)
        plane = partial(self.features.on_plane, of_columns(self.cov_func, self.active))
        ends = known_value(_correlated_ends(self.features, self.window, plane))
        if ends is not None and (text := short_period(self.name, float(ends))):
            warnings.warn(text, stacklevel=4)

    def _spectrum(self, cov_func) -> tuple[TensorVariable, TensorVariable]:
        """Return the prior variances of the coefficients, and that of what is left out."""
        own = of_columns(cov_func, self.active)
        total, residual = self.features.spectrum(own)
        # Smooth kernels leave out less than the smallest number, and its root has a gradient.
        return self.features.variances(own) + LEAST * total, residual + FLOOR * total


def _correlated_ends(features, window, plane) -> TensorVariable:
    """Correlation of opposite ends of the data around the torus, in the input with the largest.

    Periodic inputs have no ends.
    """
    if all(features.periodic):
        return pt.constant(np.float64(0.0))
    gap = 2.0 * (np.array(features.period) - (window[1] - window[0]))
    origin = pt.zeros((1, features.n_columns))
    ends = pt.diag(gap)[np.flatnonzero(~np.array(features.periodic))]
    return pt.max(plane(ends, origin)) / plane(origin, origin)[0, 0]


def short_period(name: str, correlation: float) -> str | None:
    """Say that the period of some coefficients is short, where it is."""
    if not correlation > WRAPPED:
        return None
    return (
        f"The period of {name!r} leaves too little room beyond the data: their ends are correlated "
        f"by {correlation:.2f} around it. Pass Fourier(period=...) longer than the range of X by "
        "some lengthscales, or Fourier.for_data(..., quantile=...) with a larger part of the "
        "prior. If the function does repeat, pass periodic=True."
    )


def _listed(numbers: np.ndarray) -> str:
    text = ", ".join(f"{x:.10g}" for x in numbers)
    return text if len(numbers) == 1 else f"({text})"


class Nearest(NamedTuple):
    """The nearest places of the window, and how much f there says of f at the rows of X."""

    places: TensorVariable
    rho: TensorVariable
    """Exactly one within the window."""
    variance: TensorVariable
    """Of f on the plane."""

    def covariance(self, X, plane, within) -> TensorVariable:
        """Covariance of f at the rows of X, from that at the places."""
        p, rho = self.places, self.rho
        center = pt.mean(p, axis=0)
        # Regression on f(p) leaves nothing of f(p) itself: most rows are often within the window.
        inside = pt.all(pt.eq(X, p), axis=1)
        beyond, at = apart(inside)
        n, own = beyond.shape[0], rho[beyond]
        both = pt.concatenate([X[beyond], p[beyond]]) - center
        K = plane(both, both)
        across = own * K[:n, n:]
        rest = K[:n, :n] - across - across.T + pt.outer(own, own) * K[n:, n:]
        rest = pt.switch(inside[:, None] | inside[None, :], np.float64(0.0), rest[at][:, at])
        return pt.outer(rho, rho) * within + rest


class GivenCoefficients(Conditional):
    """p(f | u) for Fourier coefficients: products of N M operations, and PyTensor's gradients.

    The args are the coefficients less their means, their standard deviations, the variance of what
    is left out, the window, the parameters of the mean and those of the kernel. In the loop over
    the data come, behind them, a number that is nan where the rows do not lie as the model was
    made for, and the waves of the layout. The features are of the `active` columns of X, the mean
    of all.
    """

    noun = "Fourier coefficients"
    follows_X = False
    kept = KEPT

    def __init__(
        self, process, n_columns, features, active, mean: Kernel, covariance: Kernel, layout=None
    ):
        super().__init__(process, n_columns, active)
        self.features, self.repeats = features, any(features.periodic)
        self.mean, self.covariance, self.layout = mean, covariance, layout
        n_mean, n_prior = len(mean.inner_inputs) - 1, len(covariance.inner_inputs) - 2
        self.theta = slice(REST, REST + n_mean)
        self.prior = slice(REST + n_mean, REST + n_mean + n_prior)
        self.valid = REST + n_mean + n_prior

    def other_draws(self, kept):
        own, near = self.features, SAME * min(self.features.period)
        for name in ("period", "n_frequencies", "center"):
            data = kept.get(f"{self.process}_{name.removeprefix('n_')}")
            if data is None:  # draws of a version that did not keep it
                continue
            now, then = np.array(getattr(own, name)), np.ravel(np.asarray(data))
            if name == "center" and len(then) == self.n_columns:
                then = then[self.active]
            atol = near if name == "center" else 0.0
            if then.shape != now.shape or not np.allclose(then, now, rtol=SAME, atol=atol):
                return (
                    f"The Fourier features of {self.process!r} have {name}={_listed(now)}, and the "
                    f"draws are of {name}={_listed(then)}. Build the model as it was sampled."
                )
        return None

    @property
    def width(self):
        return self.features.width

    @property
    def whole(self):
        return self.layout is not None

    @property
    def beside_rows(self):
        return 0 if self.layout is None else self.layout.beside_rows(self.features)

    def by_rows(self):
        found = copy(self)
        found.layout = None
        return found

    def block_args(self, X, args):
        """Append whether the rows lie as they should, and the waves of the layout.

        Constants where X is known, and outside of the loop: there each evaluation computes them.
        """
        X, (low, high) = self.own(X), (args[WINDOW][0], args[WINDOW][1])
        inside = pt.all(pt.ge(pt.min(X, axis=0), low) & pt.le(pt.max(X, axis=0), high))
        waves = []
        if self.layout is not None:
            axes = self.layout.axes(X)
            inside = inside & self.layout.holds(X, axes)
            waves = self.layout.waves(self.features, axes)
        return [*args, pt.switch(inside, 1.0, np.nan).astype("float64"), *waves]

    def complaint(self, X, args):
        """Say that rows are beyond the window, or do not lie as those of the model did."""
        X, (low, high) = X[:, self.active], np.asarray(known_value(args[WINDOW]))
        if (X.min(axis=0) < low).any() or (X.max(axis=0) > high).any():
            return (
                "has rows beyond the window that the Fourier features were set up for. "
                "Make the model again with these data."
            )
        rows = pt.constant(X)
        try:
            same: Any = self.layout is None or known_value(
                self.layout.holds(rows, self.layout.axes(rows))
            )
        except (ValueError, IndexError, AssertionError):  # a different number of rows
            same = False
        if same:
            return None
        return (
            "has other rows than the grid or series that the model was made for. Make the model "
            "again with these data, or pass block_size=1000 to likelihood: rows may then change."
        )

    def user_args(self, args):
        return args[: self.valid]

    def moments(self, X, args):
        """Build the moments in a block, and the features."""
        if self.layout is None:
            waves = self.features.waves(self.own(X))
        else:
            waves = args[self.valid + 1 :]
        f = self._combine(waves, args[W])
        return waves, self._moments(f, X, args, args[RESIDUAL] * args[self.valid])

    def _moments(self, f, X, args, residual):
        (mean,) = inline(self.mean, X, *args[self.theta])
        gamma = pt.ones_like(mean) * residual
        return Moments((mean if f.type.ndim == 1 else mean[:, None]) + f, gamma)

    def _combine(self, waves, w):
        if self.layout is None:
            return self.features.combine(waves, w)
        return self.layout.combine(self.features, waves, w)

    def spread(self, X, args, pieces, root):
        """Variance of the mean of f where the coefficients have the covariance ``root root^T``.

        Where they are independent `root` is its diagonal. It may also be the weights of features
        of twice the frequency that this variance is a sum of; see `products`.
        """
        if self._is_folded(root):
            return self._combine_double(X, root)
        if self.diagonal(args, root):
            return self._combine_squares(pieces, root**2)
        return spread_of(self._matrix(X).T, root)

    def _is_folded(self, root) -> bool:
        double = self.features.doubled.n_features
        # Of the constant alone the double is the same, and a root is a root.
        return root.type.shape[-1] == double != self.features.n_features

    def _combine_double(self, X, weights):
        double, own = self.features.doubled, self.own(X)
        weights = weights if weights.type.ndim == 1 else weights.T
        if self.layout is None:
            return double.combine(double.waves(own), weights)
        return self.layout.combine(
            double, self.layout.waves(double, self.layout.axes(own)), weights
        )

    def loadings(self, pieces):
        return self.features.matrix(pieces).T

    def _matrix(self, X):
        return self.features.matrix(self.features.waves(self.own(X)))

    def _combine_squares(self, waves, squares):
        weights = squares if squares.type.ndim == 1 else squares.T
        if self.layout is None:
            return self.features.combine([b**2 for b in waves], weights)
        return self.layout.combine_squares(self.features, waves, weights)

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        surrogate = surrogate_of(moments, adjoints)
        gram = None
        if root is not None and self._is_folded(root):
            weights = disconnected_grad(root)
            spread = self._combine_double(X, weights)
            gram = 2.0 * grad(pt.sum(disconnected_grad(of_spread) * spread), weights)
        elif root is not None and not self.diagonal(args, root):
            _, gram = pull_spread(self._matrix(X).T, root, of_spread)
        elif root is not None:
            squares = disconnected_grad(root) ** 2
            spread = self._combine_squares(pieces, squares)
            gram = 2.0 * grad(pt.sum(disconnected_grad(of_spread) * spread), squares)
        at = (W, RESIDUAL, *range(*self.theta.indices(len(args))))
        return Contribution(gradients_of(surrogate, {i: args[i] for i in at}), gram=gram)

    @cached_property
    def products(self):
        """Products of two features, as sums of others."""
        return Products(self.features.n_frequencies)

    @property
    def basis(self):
        """The features, the same for any parameters."""
        return Basis(
            self._matrix,
            self.features.n_features,
            RESIDUAL,
            self.valid,
            self.mean,
            self.theta,
        )

    def warnings(self, args):
        """Return the correlation of opposite ends of the data, and what to say of it."""
        ends = _correlated_ends(self.features, args[WINDOW], self._plane(args))
        return [(ends, lambda r: short_period(self.process, float(r)))]

    def _plane(self, args):
        return lambda X, Z: inline(self.covariance, X, Z, *args[self.prior])[1]

    def _nearest(self, X, args) -> Nearest:
        places = pt.clip(X, args[WINDOW][0], args[WINDOW][1])
        plane, origin = self._plane(args), pt.zeros((1, self.features.n_columns))
        # With the origin itself: one kernel to compile.
        K = plane(pt.concatenate([origin, X - places]), origin)[:, 0]
        inside = pt.all(pt.eq(X, places), axis=1)
        rho = pt.switch(inside, np.float64(1.0), K[1:] / K[0])
        return Nearest(places, rho, K[0])

    def anywhere(self, X, args):
        near = self._nearest(self.own(X), args)
        f = self.features.combine(self.features.waves(near.places), args[W])
        rho = near.rho if f.type.ndim == 1 else near.rho[:, None]
        mu, gamma = self._moments(rho * f, X, args, args[RESIDUAL])
        return Moments(mu, near.rho**2 * gamma + (1.0 - near.rho**2) * near.variance)

    def joint(self, X, args):
        own = self.own(X)
        near = self._nearest(own, args)
        p = near.places
        A = (self.features.matrix(self.features.waves(p)) * args[SCALE]).T
        within = inline(self.covariance, p, p, *args[self.prior])[0] - pt.dot(A.T, A)
        return Moments(self.anywhere(X, args).mu, near.covariance(own, self._plane(args), within))

    def prior_mean(self, X, args):
        (mean,) = inline(self.mean, X, *args[self.theta])
        several = args[W].type.ndim == 2
        return mean[:, None] + pt.zeros((1, args[W].shape[1])) if several else mean

    def cross(self, X, Z, args):
        K = inline(self.covariance, self.own(Z), self.own(X), *args[self.prior])[0]
        return K, pt.ones_like(X[:, 0]) * self._variance(args)

    def prior_covariance(self, X, args):
        return self.cross(X, X, args)[0]

    def _variance(self, args):
        return args[RESIDUAL] + pt.sum(args[SCALE] ** 2)

    def solve(self, X, args):
        return (self._matrix(X) * args[SCALE]).T

    def wrap(self, X, args):
        """Correlation of the first row of X with the others that is due to the torus alone."""
        X = self.own(X)
        torus, plane = inline(self.covariance, X[:1], X, *args[self.prior])
        return pt.max(pt.abs(torus - plane)[0, 1:]) / self._variance(args)
