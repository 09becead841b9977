r"""Values of the function at every pair of two sets of places, such as sites and times.

Where the kernel is a product, :math:`k(x, x') = k_1(x_1, x_1') k_2(x_2, x_2')`, their covariance is
a Kronecker product, and so is a factor of it:

.. math::

   K_{uu} = K_1 \otimes K_2, \qquad Q_i^\top K_i Q_i = L_i L_i^\top = U_i D_i^2 U_i^\top

with the diagonal :math:`D_i` of :math:`L_i`. The rotations Q are fixed: the eigenvectors of the
kernel's mean under its prior. They are data of the model, so draws keep those that they were made
with. So the variables

.. math:: u = m_u + D_1 v D_2, \qquad f(Z) = Q_1 U_1 u (Q_2 U_2)^\top

are independent a priori, with deviations that follow theta. No matrix has more rows than there are
places in one set. U is nearly the identity, but u turns with it where theta moves, and data of
large counts hold the function. So sites are of values before that turn; see `fit.turns`.

Their mean is that of f at all pairs, rotated alike. So u is about f itself, which the data inform
whatever the mean's parameters are, as they inform values at points.

References
----------
Saatci, Y. (2012). Scalable inference for structured Gaussian process models. PhD thesis, Cambridge.
"""

from collections.abc import Sequence
from copy import copy
from functools import reduce
from operator import index, mul
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.gp.cov import BaseCovariance, Prod
from pytensor.graph.replace import graph_replace
from pytensor.tensor.linalg import solve_triangular

from pymc_vsgp.checks import as_inputs, check_distinct, column_names
from pymc_vsgp.inducing.base import (
    InducingPrior,
    InducingVariables,
    keep,
)
from pymc_vsgp.inducing.covariates import Covariates
from pymc_vsgp.inducing.graphs import as_ops
from pymc_vsgp.inducing.grids import Panel
from pymc_vsgp.inducing.kernel_values import draws_or_start
from pymc_vsgp.inducing.kernels import codes_of
from pymc_vsgp.inducing.pairs import KEPT, GivenPairs, PairsLayout
from pymc_vsgp.inducing.spectrum import active_columns, used_columns
from pymc_vsgp.ops.cholesky import factor
from pymc_vsgp.ops.distance import pass_gradients, warn_of_offset

__all__ = ["Kronecker"]

DRAWS = 20  # of the prior, for the mean kernel
PRODUCT = 1e-6  # relative error of a product, within which a kernel is one
APART = 1e-7  # of the mean variance, which tells equal eigenvalues apart


class Kronecker(InducingVariables):
    r"""
    Values at every pair of two sets of places: sites and times, for a product of two kernels.

    With all sites and times of the data this is the exact process, for any likelihood and with any
    of the pairs unobserved. Fewer of either make it sparse. The cost of an evaluation is that of a
    Cholesky factor for each set, and of products of matrices with as many rows.

    The function may have more inputs: those that the kernel leaves out, by ``active_dims``, are
    for the mean function alone. `likelihood` gives each pair averages of them over the
    observations nearest to it.

    Parameters
    ----------
    first, second : array_like or DataFrame, shapes (M1, D1) and (M2, D2)
        The places: inputs of the first kernel of the product, and of the second.
    columns : pair of sequences of int, optional
        Columns of X that these are. By default those that the kernel uses, in their order: first
        those of `first`, then those of `second`.

    Examples
    --------
    .. code-block:: python

        space = pm.gp.cov.Matern52(3, ls=lengthscale, active_dims=[0, 1])
        time = pm.gp.cov.Matern32(3, ls=5.0, active_dims=[2])
        gp = vsgp.VariationalSparse(cov_func=variance * space * time)
        gp.prior("u", inducing=vsgp.inducing.Kronecker(sites, times))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=counts)  # columns of X: two of space, and time
    """

    def __init__(self, first: Any, second: Any, *, columns: Sequence[Sequence[int]] | None = None):
        names = [column_names(first, "first") or (), column_names(second, "second") or ()]
        self.places = [as_inputs(first, "first"), as_inputs(second, "second")]
        for places in self.places:
            check_distinct(places)
        sizes = [places.shape[1] for places in self.places]
        self.given = columns
        self.parts = _parts(columns, sizes)
        self._n_columns = max(max(part) for part in self.parts) + 1
        if all(names) and self._n_columns == sum(sizes):
            by_place = dict(zip(sum(self.parts, []), [*names[0], *names[1]], strict=True))
            self.columns = tuple(by_place[d] for d in range(self._n_columns))

    @property
    def n_columns(self) -> int:
        """Number of inputs of the function."""
        return self._n_columns

    @property
    def n_inducing(self) -> int:
        """Number of pairs."""
        return len(self.places[0]) * len(self.places[1])

    @property
    def example(self) -> np.ndarray:
        """The pairs of a few places, the first of each set among them."""
        return self.few().pairs()

    def rows(self, i: int) -> np.ndarray:
        """Return the places of one set as inputs of f, with the first place of the other."""
        out = np.zeros((len(self.places[i]), self.n_columns))
        out[:, self.parts[i]] = self.places[i]
        out[:, self.parts[1 - i]] = self.places[1 - i][0]
        return out

    def pairs(self) -> np.ndarray:
        """Return all pairs as inputs of f, the second place moving fastest."""
        first, second = self.places
        out = np.zeros((self.n_inducing, self.n_columns))
        out[:, self.parts[0]] = np.repeat(first, len(second), axis=0)
        out[:, self.parts[1]] = np.tile(second, (len(first), 1))
        return out

    def few(self) -> "Kronecker":
        """Return the same for four places of each set, or all where there are fewer."""
        found = copy(self)
        found.places = [
            x[np.unique(np.linspace(0, len(x) - 1, 4).astype(int))] for x in self.places
        ]
        return found

    def of_kernel(self, cov_func) -> "Kronecker":
        """Return the same, with the columns that the kernel uses."""
        found, own = copy(self), sum(self.parts, [])
        found._n_columns = getattr(cov_func, "input_dim", self._n_columns)
        active = active_columns(cov_func, found._n_columns)
        if self.given is None and len(active) == len(own):
            size = len(self.parts[0])
            found.parts = [active[:size], active[size:]]
        if sorted(sum(found.parts, [])) != sorted(active):
            raise ValueError(
                f"The kernel uses the columns {active} of {found._n_columns}, and the places are "
                f"of {found.parts}. Pass columns=(of the first, of the second)."
            )
        if found._n_columns != len(own):
            found.columns = None
        return found

    def under(self, name, cov_func, mean_at, jitter):
        """Return the variables of a process with this kernel and mean."""
        kind = self.of_kernel(cov_func)
        for i in range(2):
            warn_of_offset(kind.rows(i), "the places")
        return KroneckerPrior(kind, name, cov_func, mean_at, jitter)


def _parts(columns, sizes: list[int]) -> list[list[int]]:
    """Return the columns of the places of each set, in their order where they were not given."""
    if columns is None:
        return [list(range(sizes[0])), list(range(sizes[0], sum(sizes)))]
    try:
        parts = [[index(d) for d in part] for part in columns]
    except TypeError:
        parts = []
    flat = [d for part in parts for d in part]
    if list(map(len, parts)) != sizes or len(set(flat)) != len(flat) or min(flat) < 0:
        raise ValueError(
            f"columns is {columns!r}, and the places have {sizes} columns. "
            "Pass the different positions in X of each, as in ([0, 1], [2])."
        )
    return parts


class KroneckerPrior(InducingPrior):
    """Rotated values at all pairs, under a kernel and a mean."""

    def __init__(self, kind: Kronecker, name: str, cov_func, mean_at, jitter):
        self.kind, self.name, self.cov_func = kind, name, cov_func
        rows = [kind.rows(i) for i in range(2)]
        _check_product(cov_func, kind)
        self.kernels = kernels_of(cov_func, kind)
        drawn = draws_or_start(
            [k(*[pt.constant(x)] * 2) for k, x in zip(self.kernels, rows, strict=True)], DRAWS
        )
        values = [*rows, *(_turn(k.mean(axis=0)) for k in drawn), kind.pairs()]
        data = keep(name, dict(zip(KEPT, values, strict=True)))
        self.places, self.turns, pairs = data[:2], data[2:4], data[4]
        z = self.places[0].type.clone(shape=(None, kind.n_columns))()
        of_z = pass_gradients([kernel(z, z) for kernel in self.kernels], [z])
        K = [
            graph_replace([k], {z: x}, strict=False)[0]
            for k, x in zip(of_z, self.places, strict=True)
        ]
        self.roots = [
            factor(pt.dot(q.T, pt.dot(k, q)), jitter)[0] for k, q in zip(K, self.turns, strict=True)
        ]
        scale = pt.outer(*(pt.diagonal(L) for L in self.roots))
        self.covariates = Covariates.of(pairs, sum(kind.parts, []))
        mean = mean_at(pairs).reshape([len(places) for places in kind.places])
        for L, Q in zip(self.roots, self.turns, strict=True):
            turned = solve_triangular(L, pt.dot(Q.T, mean), lower=True, b_ndim=2)
            mean = (pt.diagonal(L)[:, None] * turned).T
        shape = (kind.n_inducing,)
        super().__init__(
            pt.specify_shape(mean.ravel(), shape), pt.specify_shape(scale.ravel(), shape)
        )

    def given(self, u, cov_func, mean_at, X, layout=None):
        """Return p(f | u), and its args."""
        if cov_func is not self.cov_func:
            raise NotImplementedError(
                f"{self.name!r} has the values of a sum, whose parts have no product of kernels in "
                "common. Give each part a process of its own, and sum them by vsgp.Coregionalized."
            )
        x, z = (pt.tensor(dtype="float64", shape=(None, self.kind.n_columns)) for _ in range(2))
        outputs = [kernel(z, x) for kernel in self.kernels] + [cov_func(z, x)]
        outputs += [cov_func(x, diag=True).astype("float64"), mean_at(x)]
        outputs = pass_gradients(outputs, [x, z])
        graphs = [([z, x], [k]) for k in outputs[:3]] + [([x], outputs[3:])]
        (*kernels, across, single), theta = as_ops(*graphs)
        kind = self.kind
        sizes = [len(places) for places in kind.places]
        conditional = GivenPairs(
            u.name, sizes, kind.n_columns, kind.parts, kernels, across, single, layout
        )
        conditional.codes = codes_of(cov_func)
        args = [self.linear(u), self.factor, *self.roots, *self.turns, *self.places, *theta]
        return conditional, args

    def cover(self, X):
        """Give the pairs the covariates of these data."""
        if self.covariates is not None and X is not None:
            self.covariates.fill(X)

    def layout(self, X):
        """Return the places of the rows, where they are pairs of few."""
        panel = Panel(X, self.kind.parts)
        return PairsLayout(panel, self.kind.places) if panel.pays else None


def _turn(K: np.ndarray) -> np.ndarray:
    """Return the eigenvectors of a matrix, those of the largest eigenvalues first.

    A Cholesky factor of these is nearly diagonal. Where eigenvalues are equal, as those of a grid,
    each machine has other eigenvectors: a little of a fixed diagonal tells them apart.
    """
    n, fixed = len(K), np.random.RandomState(0)
    apart = APART * np.trace(K) / n * fixed.uniform(size=n)
    Q = np.linalg.eigh(K + np.diag(apart))[1][:, ::-1]
    return np.ascontiguousarray(Q * np.where(fixed.normal(size=n) @ Q < 0.0, -1.0, 1.0))


def kernels_of(cov_func, kind: Kronecker):
    """Return the kernel of each set of places, as functions of rows that are inputs of f."""
    factors = getattr(cov_func, "_factor_list", ()) if isinstance(cov_func, Prod) else [cov_func]
    first, second = map(set, kind.parts)
    uses = [used_columns(f, kind.n_columns) for f in factors]
    if any(u & first and u & second for u in uses):
        # One that is a product by itself, such as ExpQuad: the other places stay where they are.
        origin = pt.constant(kind.example[:1])
        return [cov_func, lambda *rows: cov_func(*rows) / cov_func(origin, origin)[0, 0]]

    def of(mine):
        def kernel(*rows):
            return reduce(mul, [f(*rows) if isinstance(f, BaseCovariance) else f for f in mine])

        return kernel

    of_second = [bool(u & second) for u in uses]
    return [
        of([f for f, other in zip(factors, of_second, strict=True) if other == which])
        for which in (False, True)
    ]


def _check_product(cov_func, kind: Kronecker) -> None:
    """Raise where the kernel is no product of one for each set of places."""
    few = kind.few()
    kernels = kernels_of(cov_func, few)
    graphs = [k(*[pt.constant(few.rows(i))] * 2) for i, k in enumerate(kernels)]
    drawn = draws_or_start([cov_func(pt.constant(few.pairs())), *graphs], 3)
    for K, *parts in zip(*drawn, strict=True):
        if np.isfinite(K).all() and not np.isfinite(parts[1]).all():
            raise ValueError(
                "The kernel has the variance 0 at the first pair of places, of which the others "
                "are multiples. Put places with a positive variance first."
            )
        if not np.abs(np.kron(*parts) - K).max() <= PRODUCT * np.abs(K).max():
            raise ValueError(
                "The kernel is no product of one of the first places and one of the second, such "
                "as Matern52(3, ls=a, active_dims=[0, 1]) * Matern52(3, ls=b, active_dims=[2]). "
                "Pass such a product without white noise, or other inducing variables."
            )
