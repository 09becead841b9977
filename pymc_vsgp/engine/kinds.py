"""Kinds of inducing variables: each gives the moments of the function given their values."""

import warnings

from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import known_value
from pymc_vsgp.engine.features import (
    conditional_feature_moments,
    correlated_ends,
    joint_feature_moments,
    short_period,
)
from pymc_vsgp.engine.moments import FLOOR, Moments, conditional_moments, joint_moments
from pymc_vsgp.inducing.coordinates import whiten
from pymc_vsgp.inducing.fourier import LEAST, Fourier
from pymc_vsgp.inducing.grids import Layout

__all__ = ["AtPoints", "OfWaves"]


class AtPoints(NamedTuple):
    """Values of the function at inducing points."""

    Xu: TensorVariable
    R: TensorVariable
    mean: TensorVariable

    def given(
        self, u, mean_at, cov_func, X, diag: bool = True, layout: Layout | None = None
    ) -> Moments:
        """Moments of the function with this mean and kernel at the rows of X.

        The kernel may be that of a component of the process that the values belong to.
        """
        v = whiten(u, self.mean, self.R)
        v = v if u.type.ndim == 1 else v.T
        if not diag:
            return joint_moments(mean_at, cov_func, X, self.Xu, self.R, v)
        return conditional_moments(mean_at, cov_func, X, self.Xu, self.R, v, u.name)


class OfWaves(NamedTuple):
    """Fourier coefficients of the function.

    The coefficient of the constant wave includes the mean at the center. So what the data say of
    it does not depend on the mean's level, and coordinates that the data gave follow that, too.
    """

    features: Fourier
    cov_func: Any
    mean: TensorVariable
    """Prior means of the coefficients."""
    variances: TensorVariable
    """Prior variances of the coefficients."""
    residual: TensorVariable
    """Variance of the waves that are left out."""
    window: TensorSharedVariable
    """Lowest and highest place of each input that waves stand for; no bounds before `cover`."""

    @classmethod
    def of(cls, features: Fourier, cov_func, mean_at, name: str = "") -> "OfWaves":
        """Return the coefficients, to be called `name`, of a process with this kernel and mean."""
        constant = np.eye(1, features.n_features)[0]
        mean = mean_at(pt.constant(np.array([features.center])))[0] * constant
        total, residual = features.spectrum(cov_func)
        variances = features.variances(cov_func) + LEAST * total
        bounds = np.outer([-np.inf, np.inf], np.ones(features.n_columns))
        window = pytensor.shared(bounds, name=f"{name}_window")
        # Smooth kernels leave out less than the smallest number, and its root has a gradient.
        return cls(features, cov_func, mean, variances, residual + FLOOR * total, window)

    def cover(self, X: np.ndarray) -> None:
        """Widen the window to these data, and to a quarter of the gap around all data so far."""
        window = self.features.window(X, self.window.get_value())
        self.window.set_value(window)
        ends = known_value(correlated_ends(self.features, self.window, self.cov_func))
        name = self.window.name.removesuffix("_window")
        if ends is not None and (text := short_period(name, float(ends))):
            warnings.warn(text, stacklevel=4)

    @property
    def scale(self) -> TensorVariable:
        """Prior standard deviations of the coefficients."""
        return pt.sqrt(self.variances)

    def given(
        self, u, mean_at, cov_func, X, diag: bool = True, layout: Layout | None = None
    ) -> Moments:
        """Moments of the function with this mean and kernel at the rows of X.

        The kernel may be that of a component of the process that the coefficients belong to.
        """
        w = u - self.mean if u.type.ndim == 1 else (u - self.mean).T
        residual, explained = self.residual, self.variances
        if cov_func is not self.cov_func:
            component = OfWaves.of(self.features, cov_func, mean_at)
            share = component.variances / self.variances
            w = w * (share if w.type.ndim == 1 else share[:, None])
            # Less than all that these waves have of the component, where others share them.
            explained = share * component.variances
            residual = component.residual + pt.sum((1.0 - share) * component.variances)
        if not diag:
            return joint_feature_moments(
                mean_at, cov_func, self.features, X, w, explained, self.window
            )
        return conditional_feature_moments(
            mean_at, cov_func, self.features, X, w, residual, self.window, u.name, layout
        )
