"""What a block of rows needs to know of one process, by the kind of its inducing variables.

A group says where the inputs of a process are among those of a block. It builds the moments of the
block's rows, and from the adjoints of these what the block adds to the gradient.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.engine.features import FeatureMoments, feature_moments
from pymc_vsgp.engine.moments import ConditionalMoments, Kernel, Moments, inline, moments_of
from pymc_vsgp.inducing.fourier import Fourier
from pymc_vsgp.inducing.grids import Layout
from pymc_vsgp.ops.linalg import weighted_gram

__all__ = ["Contribution", "FeatureGroup", "Group", "PointGroup", "group_of", "unchecked"]


class Contribution(NamedTuple):
    """What a block adds to the gradient, by input: sums over rows, and entries of each row."""

    sums: dict[int, TensorVariable]
    outer: TensorVariable | None = None
    """Of the factor R, without the part of v."""
    gram: TensorVariable | None = None
    """The matrix, or its diagonal, that a root is multiplied with."""


class Group(Protocol):
    """One process in a block."""

    process: str
    X: int
    v: int
    """Whitened values, or coefficients: what the moments are linear in."""

    @property
    def width(self) -> int | None:
        """Columns of the widest matrix, where the inputs do not tell."""

    @property
    def whole(self) -> bool:
        """Whether all rows make one block."""

    def by_rows(self) -> "Group":
        """Return the same without anything that holds for all rows together."""

    def moments(self, inputs) -> tuple[Any, Moments]:
        """Build the moments, and what they are computed from."""

    def spread(self, inputs, pieces, root: Variable) -> TensorVariable:
        """Variance of the mean of f where v has the covariance ``root root^T``."""

    def wrt(self, pieces, moments: Moments) -> list[TensorVariable]:
        """Return what `pull` needs the adjoints of."""

    def pull(self, inputs, pieces, moments, adjoints, root, of_spread) -> Contribution:
        """Return what the block adds to the gradient."""


class PointGroup(NamedTuple):
    """Values at inducing points: the three products of M^2 B operations."""

    process: str
    """Name of its inducing values."""
    kernel: Kernel
    X: int
    Xu: int
    R: int
    v: int
    theta: range

    @property
    def width(self):
        """Columns of the widest matrix: the inputs tell."""
        return None

    @property
    def whole(self):
        """Whether all rows make one block."""
        return False

    def by_rows(self):
        """Return the same: each row stands for itself."""
        return self

    def moments(self, inputs):
        """Build the moments, and what they are computed from."""
        theta = (inputs[i] for i in self.theta)
        return moments_of(
            self.kernel, inputs[self.X], inputs[self.Xu], inputs[self.R], inputs[self.v], *theta
        )

    def spread(self, inputs, pieces, root):
        """Variance of the mean of f where v has the covariance ``root root^T``."""
        return _spread(pieces.A, root)

    def wrt(self, pieces, moments):
        """Return what `pull` needs the adjoints of."""
        return [moments.mu, pieces.explained, pieces.prior]

    def pull(self, inputs, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient."""
        g_mu, g_explained, g_prior = adjoints
        v, A, R = inputs[self.v], pieces.A, inputs[self.R]
        sums = {self.v: pt.dot(A, g_mu)}
        A_bar = A * (2.0 * g_explained)
        outer = weighted_gram(A, 2.0 * g_explained)
        if v.type.ndim == 1:
            A_bar += pt.outer(v, g_mu)
            g_mean = g_mu
        else:
            A_bar += pt.dot(v, g_mu.T)
            g_mean = pt.sum(g_mu, axis=1)
        gram = None
        if root is not None:
            w = 2.0 * of_spread
            if root.type.ndim == 2:
                gram = weighted_gram(A, w)
                A_bar += pt.dot(root, pt.dot(root.T, A * w))
                outer += pt.dot(root, pt.dot(root.T, gram))
            else:
                each = []
                for k in range(root.type.shape[0]):
                    each.append(weighted_gram(A, w[:, k]))
                    A_bar += pt.dot(root[k], pt.dot(root[k].T, A * w[:, k]))
                    outer += pt.dot(root[k], pt.dot(root[k].T, each[-1]))
                gram = pt.stack(each)
        K_bar = solve_triangular(R, A_bar, trans=1, lower=True, b_ndim=2)
        # The kernel's part: the adjoints are numbers by now.
        surrogate = (
            pt.sum(disconnected_grad(K_bar) * pieces.Kuf)
            + pt.sum(disconnected_grad(g_prior) * pieces.prior)
            + pt.sum(
                disconnected_grad(g_mean) * (pieces.mean if v.type.ndim == 1 else pieces.mean[:, 0])
            )
        )
        sums |= _gradients(surrogate, inputs, (self.X, self.Xu, *self.theta))
        return Contribution(sums, outer, gram)


class FeatureGroup(NamedTuple):
    """Coefficients of waves: products of N M operations, and PyTensor's gradients."""

    process: str
    """Name of its coefficients."""
    features: Fourier
    mean: Kernel
    covariance: Kernel
    layout: Layout | None
    X: int
    axes: range
    v: int
    residual: int
    window: int
    theta: range
    prior: range

    @property
    def width(self):
        """Columns of the widest matrix."""
        return self.features.width

    @property
    def whole(self):
        """Whether all rows make one block."""
        return self.layout is not None

    def by_rows(self):
        """Return the same, whatever way the rows lie."""
        return self._replace(layout=None)

    def moments(self, inputs):
        """Build the moments, and the waves."""
        if self.layout is None:
            waves = self.features.waves(inputs[self.X])
        else:
            waves = self.layout.waves(self.features, [inputs[i] for i in self.axes])
        (mean,) = inline(self.mean, inputs[self.X], *(inputs[i] for i in self.theta))
        v, residual = inputs[self.v], inputs[self.residual]
        return waves, feature_moments(self._combine(waves, v), mean, residual)

    def _combine(self, waves, w):
        if self.layout is None:
            return self.features.combine(waves, w)
        return self.layout.combine(self.features, waves, w)

    def spread(self, inputs, pieces, root):
        """Variance of the mean of f where the coefficients have the covariance ``root root^T``.

        Where they are independent `root` is its diagonal.
        """
        if self.diagonal(inputs, root):
            return self._combine_squares(pieces, root**2)
        return _spread(self._matrix(inputs).T, root)

    def diagonal(self, inputs, root) -> bool:
        """Whether coefficients with this root are independent."""
        return root.type.ndim == inputs[self.v].type.ndim

    def _matrix(self, inputs):
        return self.features.matrix(self.features.waves(inputs[self.X]))

    def _combine_squares(self, waves, squares):
        weights = squares if squares.type.ndim == 1 else squares.T
        if self.layout is None:
            return self.features.combine([b**2 for b in waves], weights)
        return self.layout.combine_squares(self.features, waves, weights)

    def wrt(self, pieces, moments):
        """Return what `pull` needs the adjoints of."""
        return [moments.mu, moments.gamma]

    def pull(self, inputs, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient."""
        surrogate = sum(
            pt.sum(disconnected_grad(g) * m) for g, m in zip(adjoints, moments, strict=True)
        )
        gram = None
        if root is not None and not self.diagonal(inputs, root):
            A, w = self._matrix(inputs).T, 2.0 * of_spread
            if root.type.ndim == 2:
                gram = weighted_gram(A, w)
            else:
                gram = pt.stack([weighted_gram(A, w[:, k]) for k in range(root.type.shape[0])])
        elif root is not None:
            squares = disconnected_grad(root) ** 2
            spread = self._combine_squares(pieces, squares)
            gram = 2.0 * grad(pt.sum(disconnected_grad(of_spread) * spread), squares)
        at = (self.v, self.residual, *self.theta)
        return Contribution(_gradients(surrogate, inputs, at), None, gram)


def _spread(A, root) -> TensorVariable:
    """Variance of ``A^T v`` where v has the covariance ``root root^T``, for each function."""
    if root.type.ndim == 2:
        return pt.sum(pt.dot(root.T, A) ** 2, axis=0)
    K = root.type.shape[0]
    return pt.stack([pt.sum(pt.dot(root[k].T, A) ** 2, axis=0) for k in range(K)], axis=1)


def _gradients(surrogate, inputs, at) -> dict[int, TensorVariable]:
    at = [i for i in at if inputs[i].dtype.startswith("float")]
    found = grad(surrogate, [inputs[i] for i in at], disconnected_inputs="ignore")
    return dict(zip(at, found, strict=True))


def group_of(node: Apply, rows: list[Variable], shared: list[Variable], n_rows: int):
    """Return the group of a process, and append its inputs to those of a block."""
    op = node.op
    at = n_rows + len(shared)
    X, *rest = node.inputs
    if isinstance(op, ConditionalMoments):
        shared += rest
        return PointGroup(
            op.process,
            op.kernel,
            rows.index(X),
            at,
            at + 1,
            at + 2,
            range(at + 3, at + len(rest)),
        )
    assert isinstance(op, FeatureMoments)
    w, residual, window, *more = rest
    axes = []
    if op.layout is not None:
        axes = op.layout.axes(X)
        residual = op.layout.checked(X, axes, residual)
    inside = pt.ge(pt.min(X, axis=0), window[0]) & pt.le(pt.max(X, axis=0), window[1])
    residual = pt.switch(pt.all(inside), residual, np.float64(np.nan))
    shared += [*axes, w, residual, window, *more]
    k = at + len(axes)
    middle = k + 3 + len(op.mean.inner_inputs) - 1
    theta, prior = range(k + 3, middle), range(middle, k + 3 + len(more))
    return FeatureGroup(
        op.process,
        op.features,
        op.mean,
        op.covariance,
        op.layout,
        rows.index(X),
        range(at, k),
        k,
        k + 1,
        k + 2,
        theta,
        prior,
    )


def unchecked(residual: Variable, group: FeatureGroup) -> tuple[Variable, list[Variable]]:
    """Return a residual variance without its conditions on the rows of the data, and these."""
    conditions = []
    for _ in range(1 if group.layout is None or group.layout.any_places else 2):
        condition, residual, _ = residual.owner.inputs
        conditions.append(condition)
    return residual, conditions
