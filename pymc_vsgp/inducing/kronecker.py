r"""Values of the function at every pair of two sets of places, such as sites and times.

Where the kernel is a product, :math:`k(x, x') = k_1(x_1, x_1') k_2(x_2, x_2')`, their covariance is
a Kronecker product, and so is a factor of it:

.. math::

   K_{uu} = K_1 \otimes K_2, \qquad Q_i^\top K_i Q_i = L_i L_i^\top = U_i D_i^2 U_i^\top

with the diagonal :math:`D_i` of :math:`L_i`. The rotations Q are fixed: the eigenvectors of the
kernel's mean under its prior. They are data of the model, so draws keep those that they were made
with. So the variables

.. math:: u = m_u + D_1 v D_2, \qquad f(Z) = Q_1 U_1 u (Q_2 U_2)^\top

are independent a priori, with deviations that follow theta, and U is nearly the identity: about as
under a principal component analysis, the data hardly make them correlate. No matrix has more rows
than there are places in one set.

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
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc.gp.cov import BaseCovariance, Prod
from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.replace import graph_replace
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import as_inputs, check_distinct, column_names, known_value
from pymc_vsgp.inducing.base import (
    Conditional,
    Contribution,
    InducingPrior,
    InducingVariables,
    gradients_of,
    keep,
    pull_spread,
    spread_of,
)
from pymc_vsgp.inducing.covariates import Covariates
from pymc_vsgp.inducing.features import by_column
from pymc_vsgp.inducing.graphs import FLOOR, Kernel, Moments, as_ops, inline
from pymc_vsgp.inducing.grids import Panel
from pymc_vsgp.inducing.kernel_values import draws_or_start
from pymc_vsgp.inducing.kernels import codes_of
from pymc_vsgp.inducing.spectrum import active_columns, used_columns
from pymc_vsgp.ops.cholesky import factor
from pymc_vsgp.ops.distance import pass_gradients, warn_of_offset

__all__ = ["Kronecker"]

W, SCALE, ROOTS, TURNS, PLACES, THETA = 0, 1, 2, 4, 6, 8
"""Positions among the args; of roots, turns and places there are two."""

DRAWS = 20  # of the prior, for the mean kernel
PRODUCT = 1e-6  # relative error of a product, within which a kernel is one
APART = 1e-7  # of the mean variance, which tells equal eigenvalues apart
KEPT = ("places_0", "places_1", "turns_0", "turns_1", "pairs")


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
        conditional = GivenPairs(u.name, self.kind, kernels, across, single, layout)
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
        return PairsLayout(panel, self.kind) if panel.pays else None


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


class PairsLayout:
    """A panel of the data, and which of its places are those of the variables."""

    def __init__(self, panel: Panel, kind: Kronecker):
        self.rows, self.of_rows, self.at = panel.rows, panel.of_rows, panel.at
        self.panel = panel
        self.own = [_positions(x, z) for x, z in zip(panel.places, kind.places, strict=True)]
        """Of each place its position among those of the variables, unless some are others."""

    def holds(self, X, args) -> TensorVariable:
        """Whether the rows of `X` still are like this."""
        same = [self.panel.holds(X)]
        for i, own in enumerate(self.own):
            if own is not None:
                columns = self.panel.parts[i]
                x, z = X[self.rows[i]], args[PLACES + i][own]
                same += [pt.all(pt.eq(x[:, d], z[:, d])) for d in columns]
        return pt.all(pt.stack(same))


def _positions(places: np.ndarray, among: np.ndarray) -> np.ndarray | None:
    known = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(among))}
    found = [known.get(row.tobytes()) for row in np.ascontiguousarray(places)]
    return None if None in found else np.array(found, dtype=int)


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


class Pieces(NamedTuple):
    """Weights of the variables at places of each set, a row for each of them, and their sizes."""

    first: TensorVariable
    second: TensorVariable
    of_first: TensorVariable
    """Share of the variance that they explain, for each place."""
    of_second: TensorVariable


class GivenPairs(Conditional):
    """p(f | u) for values at pairs of places: products of small matrices, and PyTensor's gradients.

    The args are the variables less their means, their deviations, two factors, two rotations, the
    places of two sets, and the parameters of kernel and mean. In the loop over the data come,
    behind them, a number that is nan where the rows are no longer those of the layout, and the
    `Pieces` at its places.
    """

    noun = "pairs of places"
    follows_X = False
    kept = KEPT

    def __init__(
        self, process, kind: Kronecker, kernels, across: Kernel, single: Kernel, layout=None
    ):
        super().__init__(process, kind.n_columns, sorted(sum(kind.parts, [])))
        self.parts, self.sizes = kind.parts, [len(places) for places in kind.places]
        self.kernels, self.across, self.single, self.layout = kernels, across, single, layout
        self.end = THETA + len(single.inner_inputs) - 1

    @property
    def width(self):
        """Places of both sets: a row takes a column of each."""
        return sum(self.sizes)

    @property
    def whole(self):
        """Whether all rows make one block."""
        return self.layout is not None

    def by_rows(self):
        """Return the same for rows that lie in any way."""
        found = copy(self)
        found.layout = None
        return found

    def block_args(self, X, args):
        """Append whether the rows lie as they should, and the pieces of the layout."""
        if self.layout is None:
            return args
        valid = pt.switch(self.layout.holds(X, args), 1.0, np.nan).astype("float64")
        places = [X[rows] for rows in self.layout.rows]
        return [*args, valid, *self._pieces(places, args)]

    def user_args(self, args):
        """Drop them."""
        return args[: self.end]

    def complaint(self, X, args):
        """Say that rows are not those that the model was made for."""
        if wrong := super().complaint(X, args):
            return wrong
        try:
            same: Any = self.layout is None or known_value(self.layout.holds(pt.constant(X), args))
        except (ValueError, IndexError, AssertionError):  # a different number of rows
            same = False
        if same:
            return None
        return (
            "has other pairs of places than the model was made for. Make the model again with "
            "these data, or pass block_size=1000 to likelihood: rows may then change."
        )

    def _pieces(self, places, args) -> Pieces:
        """Return the pieces for places of each set, which are inputs of f."""
        theta = args[THETA : self.end]
        found = []
        for i, x in enumerate(places):
            z, L, Q = args[PLACES + i], args[ROOTS + i], args[TURNS + i]
            if self.layout is not None and self.layout.own[i] is not None:
                # K is L L^T, once rotated, so that neither is needed again.
                found.append(pt.dot(L.T, Q[self.layout.own[i]].T))
                continue
            other = np.isin(np.arange(self.n_columns), self.parts[1 - i])
            x = pt.switch(other, z[:1], x)  # all at the first place of the other set
            k = inline(self.kernels[i], z, x, *theta)[0]
            found.append(solve_triangular(L, pt.dot(Q.T, k), lower=True, b_ndim=2))
        weights = [A / pt.diagonal(args[ROOTS + i])[:, None] for i, A in enumerate(found)]
        return Pieces(*weights, *(pt.sum(A**2, axis=0) for A in found))

    def moments(self, X, args):
        """Build the moments in a block, and the pieces."""
        if self.layout is None:
            pieces, valid = self._pieces([X, X], args), np.float64(1.0)
        else:
            valid, *rest = args[self.end :]
            pieces = Pieces(*rest)
        prior, mean = inline(self.single, X, *args[THETA : self.end])
        f = self._sum(pieces[:2], args[W])
        if self.layout is None:
            explained = pieces.of_first * pieces.of_second
        else:
            explained = self.layout.of_rows(pt.outer(pieces.of_first, pieces.of_second))
        gamma = pt.maximum(prior - explained, FLOOR * prior) * valid
        return pieces, Moments((mean if f.type.ndim == 1 else mean[:, None]) + f, gamma)

    def _sum(self, weights, w):
        """Sum of the variables with these weights, at each row."""
        return by_column(self._sum_of_one, weights, w)

    def _sum_of_one(self, weights, w):
        first, second = weights
        w = w.reshape(self.sizes)
        half = pt.dot(w.T, first)
        if self.layout is None:
            return pt.sum(half * second, axis=0)
        return self.layout.of_rows(pt.dot(half.T, second))

    def _matrix(self, pieces):
        """Return the weights of each variable at each row."""
        first, second = pieces[:2]
        if self.layout is not None:
            first, second = first[:, self.layout.at[:, 0]], second[:, self.layout.at[:, 1]]
        return (first[:, None, :] * second[None, :, :]).reshape((-1, first.shape[1]))

    def spread(self, X, args, pieces, root):
        """Variance of the mean of f where the variables have the covariance ``root root^T``."""
        if self.diagonal(args, root):
            return self._spread(pieces, root**2)
        return spread_of(self._matrix(pieces), root)

    def _spread(self, pieces, squares):
        weights = [b**2 for b in pieces[:2]]
        return self._sum(weights, squares if squares.type.ndim == 1 else squares.T)

    def wrt(self, pieces, moments):
        """Return what `pull` needs the adjoints of."""
        return [moments.mu, moments.gamma]

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient."""
        surrogate = sum(
            pt.sum(disconnected_grad(g) * m) for g, m in zip(adjoints, moments, strict=True)
        )
        gram = None
        if root is not None and self.diagonal(args, root):
            squares = disconnected_grad(root) ** 2
            spread = pt.sum(disconnected_grad(of_spread) * self._spread(pieces, squares))
            gram = 2.0 * grad(spread, squares)
            surrogate = surrogate + spread
        elif root is not None:
            A = self._matrix(pieces)
            of_A, gram = pull_spread(A, root, of_spread)
            surrogate = surrogate + pt.sum(disconnected_grad(of_A) * A)
        at = [W, *range(THETA, self.end)]
        at += [ROOTS, ROOTS + 1] if self.layout is None else range(self.end + 1, self.end + 5)
        return Contribution(gradients_of(surrogate, {i: args[i] for i in at}), gram=gram)

    def anywhere(self, X, args):
        """Moments at each row of any X on its own."""
        return self.by_rows().moments(X, self.user_args(args))[1]

    def prior_mean(self, X, args):
        """Prior mean of f at the rows of X."""
        mean = inline(self.single, X, *args[THETA : self.end])[1]
        several = args[W].type.ndim == 2
        return mean[:, None] + pt.zeros((1, args[W].shape[1])) if several else mean

    def cross(self, X, Z, args):
        """Covariance of f between the rows of Z and of X, and its variance at X."""
        theta = args[THETA : self.end]
        return inline(self.across, Z, X, *theta)[0], inline(self.single, X, *theta)[0]

    def solve(self, X, args):
        """Return A such that the covariance that u explains is ``A^T A``: dense, M x N."""
        rows = self.by_rows()
        return rows._matrix(rows._pieces([X, X], args)) * args[SCALE][:, None]
