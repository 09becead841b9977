"""Kinds of inducing variables: each gives the moments of the function given their values."""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.inducing.coordinates import whiten
from pymc_vsgp.inducing.fourier import LEAST, Fourier
from pymc_vsgp.inducing.grids import Layout
from pymc_vsgp.potential.features import (
    conditional_feature_moments,
    joint_feature_moments,
    residual_of,
)
from pymc_vsgp.potential.moments import Moments, conditional_moments, joint_moments

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
        moments = conditional_moments if diag else joint_moments
        return moments(mean_at, cov_func, X, self.Xu, self.R, v)


class OfWaves(NamedTuple):
    """Fourier coefficients of the function.

    The coefficient of the constant wave includes the mean at the center. So what the data say of
    it does not depend on the mean's level, and coordinates that the data gave follow that, too.
    """

    features: Fourier
    cov_func: Any
    mean: TensorVariable
    """Prior means of the coefficients."""
    total: TensorVariable
    """Variance of the function."""
    variances: TensorVariable
    """Prior variances of the coefficients."""

    @classmethod
    def of(cls, features: Fourier, cov_func, mean_at) -> "OfWaves":
        """Return the coefficients of a process with this kernel and mean."""
        constant = np.eye(1, features.n_features)[0]
        mean = mean_at(pt.constant(np.array([features.center])))[0] * constant
        total = features.total_variance(cov_func)
        return cls(features, cov_func, mean, total, features.variances(cov_func) + LEAST * total)

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
        total, explained = self.total, self.variances
        if cov_func is not self.cov_func:
            component = OfWaves.of(self.features, cov_func, mean_at)
            share = component.variances / self.variances
            w = w * (share if w.type.ndim == 1 else share[:, None])
            total, explained = component.total, share * component.variances
        if not diag:
            return joint_feature_moments(mean_at, cov_func, self.features, X, w, explained)
        residual = residual_of(total, pt.sum(explained))
        return conditional_feature_moments(mean_at, cov_func, self.features, X, w, residual, layout)
