"""p(f | u) of values at pairs of places, such as sites and times; see `kronecker`."""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad, grad
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import known_value
from pymc_vsgp.inducing.base import (
    Conditional,
    Contribution,
    gradients_of,
    pull_spread,
    spread_of,
    surrogate_of,
)
from pymc_vsgp.inducing.features import by_column
from pymc_vsgp.inducing.graphs import FLOOR, Moments, inline
from pymc_vsgp.inducing.grids import Panel
from pymc_vsgp.inducing.products import PairProducts

__all__ = ["KEPT", "GivenPairs", "PairsLayout"]

LARGEST = 1000  # pairs whose correlations are followed: a point then takes a tenth of a second
W, SCALE, ROOTS, TURNS, PLACES, THETA = 0, 1, 2, 4, 6, 8
"""Positions among the args; of roots, turns and places there are two."""

KEPT = ("places_0", "places_1", "turns_0", "turns_1", "pairs")


class PairsLayout:
    """A panel of the data, and which of its places are those of the variables."""

    def __init__(self, panel: Panel, places: Sequence[np.ndarray]):
        self.rows, self.of_rows, self.at = panel.rows, panel.of_rows, panel.at
        self.panel = panel
        self.own = [_positions(x, z) for x, z in zip(panel.places, places, strict=True)]
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
        self, process, sizes: Sequence[int], n_columns, parts, kernels, across, single, layout=None
    ):
        super().__init__(process, n_columns, sorted(sum(parts, [])))
        self.parts, self.sizes = parts, sizes
        self.kernels, self.across, self.single, self.layout = kernels, across, single, layout
        self.end = THETA + len(single.inner_inputs) - 1

    def turns(self, args):
        """Values in the places' fixed rotations, as a factor of K with unit diagonal has them.

        Only u turns with theta, as the factors do.
        """
        return [L / pt.diagonal(L) for L in args[ROOTS:TURNS]]

    @property
    def n_inducing(self) -> int:
        """Number of pairs."""
        return int(np.prod(self.sizes))

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
        """Variance of the mean of f where the variables have the covariance ``root root^T``.

        Where they are independent `root` is its diagonal. It may also be the weights of products
        of two of the functions that f is a sum of; see `products`.
        """
        if self._is_folded(root):
            return self._spread_of_products(args, pieces, root)
        if self.diagonal(args, root):
            return self._spread(pieces, root**2)
        return spread_of(self._matrix(pieces), root)

    @cached_property
    def products(self):
        """Products of two of the functions that f is a sum of, where these are not too many."""
        return PairProducts(*self.sizes) if self.n_inducing <= LARGEST else None

    def _is_folded(self, root) -> bool:
        if self.products is None:
            return False
        # Of one pair of places the product is its square, and a root is a root.
        return root.type.shape[-1] == int(np.prod(self.products.double)) != self.n_inducing

    def _spread_of_products(self, args, pieces, weights):
        # Of the variables that do not turn.
        triples = zip(pieces[:2], self.turns(args), self.products.pairs, strict=True)
        still = ((solve_triangular(C.T, A, lower=False, b_ndim=2), at) for A, C, at in triples)
        each = [A[i] * A[j] for A, (i, j) in still]

        def of_one(weights, w):
            first, second = weights
            half = pt.dot(w.reshape(self.products.double), second)
            if self.layout is None:
                return pt.sum(first * half, axis=0)
            return self.layout.of_rows(pt.dot(first.T, half))

        return by_column(of_one, each, weights if weights.type.ndim == 1 else weights.T)

    def _spread(self, pieces, squares):
        weights = [b**2 for b in pieces[:2]]
        return self._sum(weights, squares if squares.type.ndim == 1 else squares.T)

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient."""
        surrogate = surrogate_of(moments, adjoints)
        gram, folded = None, root is not None and self._is_folded(root)
        if folded:
            weights = disconnected_grad(root)
            spread = self._spread_of_products(args, pieces, weights)
            spread = pt.sum(disconnected_grad(of_spread) * spread)
            gram = 2.0 * grad(spread, weights)
            surrogate = surrogate + spread
        elif root is not None and self.diagonal(args, root):
            squares = disconnected_grad(root) ** 2
            spread = pt.sum(disconnected_grad(of_spread) * self._spread(pieces, squares))
            gram = 2.0 * grad(spread, squares)
            surrogate = surrogate + spread
        elif root is not None:
            A = self._matrix(pieces)
            of_A, gram = pull_spread(A, root, of_spread)
            surrogate = surrogate + pt.sum(disconnected_grad(of_A) * A)
        at = [W, *range(THETA, self.end)]
        if self.layout is not None:
            at += range(self.end + 1, self.end + 5)
        if self.layout is None or folded:
            at += [ROOTS, ROOTS + 1]
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
