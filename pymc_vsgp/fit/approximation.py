r"""q(v) of one process, in the graph of the bound of the Gaussian stage; see `bound`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.inducing.base import Process
from pymc_vsgp.inducing.coordinates import (
    Sites,
    apply_diagonal_sites,
    apply_sites,
    divide,
    inverse_transpose,
    unturned,
)
from pymc_vsgp.model.variable import is_independent, is_sparse

__all__ = ["Approximation", "Density", "approximation"]

MOST_DENSE = 150
"""More Fourier coefficients than this are independent under q: a factor would cost too much."""


@dataclass
class Approximation:
    """One process: its variables, and its place in the graph of the bound."""

    u: TensorVariable
    value: TensorVariable
    n_functions: int
    n_inducing: int
    Xu: TensorSharedVariable | None
    linear: TensorVariable
    root: TensorVariable
    offset: Sequence[TensorVariable] = ()
    """e and t, for many coefficients."""
    independent: bool = False
    """Whether these are independent a priori."""
    held: bool = False
    """Whether q(v) stays while theta moves: `linear` is its mean then, and `root` the factor L."""
    covariance: Sequence[TensorVariable] = ()
    """Of a q(v) that is held, where the loop over the data takes it."""
    takes_covariance: bool = False
    at: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    """Which of theta the likelihoods of the process have, where sites may follow them."""
    parameters: TensorVariable | None = None
    """These, ..."""
    slope: TensorVariable | None = None
    """... and how the sites follow them, where they do."""
    moments: Sequence[TensorVariable] = ()
    """Mean and variances of many coefficients that are correlated under q; see `correlated`."""
    turns: Sequence[TensorVariable] = ()
    """What takes these to variables that do not turn with theta, of which q is held then."""

    @property
    def diagonal(self) -> bool:
        """Whether these are so many coefficients that they are independent under q."""
        return bool(self.offset)

    @property
    def sparse(self) -> bool:
        """Whether these depend on a few others each.

        q(u) stays while theta moves: `linear` is its mean then, and `root` has its deviations. The
        mean alone follows the parameters of likelihoods, where it has a slope.
        """
        return is_sparse(self.u)

    @property
    def folded(self) -> bool:
        """Whether these are many coefficients that are correlated under q.

        `linear` is its mean then, and `root` what its covariance makes of the variance of f.
        """
        return bool(self.moments)

    def hold(self) -> None:
        """Let q(v) stay while theta moves."""
        self.held = True
        if self.takes_covariance:
            self.covariance = (self.root.type(),)

    @property
    def inputs(self) -> list[TensorVariable]:
        """What says what q is."""
        slope = [] if self.slope is None else [self.slope]
        return [self.linear, self.root, *slope, *self.covariance, *self.moments]

    def arguments(self, sites: Any, theta: np.ndarray) -> list[np.ndarray]:
        """Return the values of the inputs for these sites, at theta."""
        if not isinstance(sites, Sites):  # but for what is held: minibatches keep more with it
            return list(sites[: len(self.inputs)])
        if self.slope is None:
            return list(sites.at(theta[self.at])[:2])
        if sites.slope is None:
            return [*sites[:2], np.zeros((*sites.linear.shape, len(self.at)))]
        return list(sites)

    def q(self, mean, R) -> "Density":
        """Return q(v), under a prior with this mean and this factor."""
        linear = self.linear
        if self.folded:
            if self.turns:
                linear = unturned(list(self.turns), linear[:, :, None])[:, :, 0]
            return Density(linear - mean, self.root, self.root, R, mean)
        if self.slope is not None:
            linear = linear + pt.dot(self.slope, self.parameters)
        if self.sparse:
            away = linear - mean
            return Density(away, 1.0 / self.root, self.root, pt.ones_like(mean), mean)
        if self.held:
            root = None if self.covariance else inverse_transpose(self.root)
            return Density(self.linear, self.root, root, R, mean, *self.covariance)
        if not self.diagonal:
            half, L = apply_sites(mean, R, linear, self.root)
            return Density(divide(half, L), L, inverse_transpose(L), R, mean)
        half, L = apply_diagonal_sites(mean, R, self.linear, self.root)
        e, t = self.offset
        return Density((half + e) / L, L * pt.exp(-t), pt.exp(t) / L, R, mean)


class Density(NamedTuple):
    """The density q(v) of a process, and the prior of u."""

    mean: TensorVariable
    factor: TensorVariable
    """Of the precision; where the variables are independent under q its diagonal, as of `root`."""
    root: TensorVariable | None
    """Of the covariance."""
    R: TensorVariable
    prior_mean: TensorVariable
    covariance: TensorVariable | None = None
    """In place of its root."""

    def in_loop(self, p: Approximation) -> tuple[TensorVariable, TensorVariable]:
        """Mean and root of what moments are linear in: for coefficients, of u less its mean."""
        if self.covariance is not None:
            return self.mean, self.covariance
        if p.folded or not p.independent:
            return self.mean, self.root
        return of_coefficients(self.R, self.mean, self.root)

    def divergence(self, p: Approximation) -> TensorVariable:
        """KL divergence from the prior of v."""
        if self.root is not None:
            trace = pt.sum(self.root**2)
        else:
            trace = pt.sum(pt.diagonal(self.covariance, axis1=1, axis2=2))
        trace += pt.sum(self.mean**2) - p.n_functions * p.n_inducing
        diagonal = self.factor if p.diagonal else pt.diagonal(self.factor, axis1=1, axis2=2)
        return trace / 2.0 + pt.log(diagonal).sum()


def of_coefficients(R, mean, root) -> tuple[TensorVariable, TensorVariable]:
    """Return mean and root of u, less its prior mean, from those of v.

    A loop over the data takes these for coefficients, of which R has the deviations.
    """
    return R * mean, (R if root.type.ndim == 2 else R[:, None]) * root


def approximation(model, u, process: Process | None, start, whole=False) -> Approximation:
    """Return the place of q for the inducing values u, for a fit to the whole data or to parts."""
    value = model.rvs_to_values[u]
    shape = np.shape(start[value.name])
    K, M = (1, *shape) if len(shape) == 1 else shape
    Xu = None if process is None else process.points
    if not isinstance(Xu, TensorSharedVariable):
        Xu = None
    linear = pt.tensor(dtype="float64", shape=(K, M))
    if is_sparse(u):
        return Approximation(u, value, K, M, None, linear, pt.tensor(dtype="float64", shape=(K, M)))
    # Sites of all of them would be of one theta, where these turn.
    if is_independent(u) and (M > MOST_DENSE or (whole and M > 1 and _turn(process))):
        root, *offset = (pt.tensor(dtype="float64", shape=(K, M)) for _ in range(3))
        return Approximation(u, value, K, M, Xu, linear, root, offset, independent=True)
    found = Approximation(u, value, K, M, Xu, linear, pt.tensor(dtype="float64", shape=(K, M, M)))
    found.independent = is_independent(u)
    found.takes_covariance = process is not None and process.conditional.takes_covariance
    return found


def _turn(process: Process | None) -> bool:
    """Whether variables turn with theta, and their correlations are followed as they do."""
    if process is None or process.conditional.products is None:
        return False
    return process.turns is not None
