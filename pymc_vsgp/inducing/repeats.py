"""Rows of the data that share their inputs: moments are computed once for each distinct input.

What the kernel depends on decides which are equal; means are added row by row.

Rows are taken in an order that puts equal inputs next to each other, and a block of them finds out
which are equal. So the numbers are right whatever data come later; the order only saves work.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import disconnected_grad
from pytensor.graph.traversal import ancestors

from pymc_vsgp.inducing.base import Conditional, gradients_of
from pymc_vsgp.inducing.graphs import Moments
from pymc_vsgp.ops.runs import by_value, runs


class ByValue(NamedTuple):
    """An order of the rows of the data."""

    rows: SharedVariable
    repeats: int
    """Rows for each distinct input, on average."""

    @classmethod
    def of(cls, X: np.ndarray, name: str, columns: Sequence[int]) -> "ByValue | None":
        """Return the order that puts rows together that are equal in these, where many are."""
        order, distinct = by_value(X, columns)
        repeats = len(X) // distinct
        # Not data of the model: it says how its density is computed.
        return cls(pytensor.shared(order, name=name), repeats) if repeats > 1 else None


class Pieces(NamedTuple):
    """What the moments at distinct inputs are computed from, and where the rows have them."""

    X: pt.TensorVariable
    args: list
    pieces: tuple
    moments: Moments
    rank: pt.TensorVariable
    further: pt.TensorVariable | None
    """Mean of f at each row less that at the distinct input, where it has inputs of its own."""


class AtDistinct:
    """p(f | u) at rows of which many are equal: what a block of the loop over the data asks of it.

    `rows` are the positions of those args that go with the rows of X.
    """

    def __init__(self, base: Conditional, rows: tuple[int, ...]):
        self.base, self.rows = base, rows

    def moments(self, X, args):
        """Look up the moments at the distinct inputs."""
        starts, rank = runs(self.base.own(X))
        distinct = [a[starts] if k in self.rows else a for k, a in enumerate(args)]
        pieces, (mu, gamma) = self.base.moments(X[starts], distinct)
        further, at_rows = None, mu[rank]
        if len(self.base.active) < self.base.n_columns:
            mean = self.base.prior_mean
            further = mean(X, args) - mean(X[starts], distinct)[rank]
            at_rows += further
        kept = Pieces(X[starts], distinct, pieces, Moments(mu, gamma), rank, further)
        return kept, Moments(at_rows, gamma[rank])

    def loadings(self, pieces):
        """Look up what the mean is made of."""
        return self.base.loadings(pieces.pieces)[:, pieces.rank]

    def spread(self, X, args, pieces, root):
        """Look up the variance of the mean."""
        return self.base.spread(pieces.X, pieces.args, pieces.pieces, root)[pieces.rank]

    def diagonal(self, args, root):
        """Whether variables with this root are independent."""
        return self.base.diagonal(args, root)

    def wrt(self, pieces, moments):
        """Return what `pull` needs the adjoints of: they are those at distinct inputs."""
        of_mean = [] if pieces.further is None else [pieces.further]
        return of_mean + self.base.wrt(pieces.pieces, pieces.moments)

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient, but that in X."""
        of_mean = {}
        if pieces.further is not None:
            of_further, *adjoints = adjoints
            surrogate = pt.sum(disconnected_grad(of_further) * pieces.further)
            needed = set(ancestors([surrogate]))
            of_mean = gradients_of(surrogate, {k: a for k, a in enumerate(args) if a in needed})
        if of_spread is not None:
            zero = pt.zeros((pieces.X.shape[0], *of_spread.shape[1:]), dtype="float64")
            of_spread = pt.inc_subtensor(zero[pieces.rank], of_spread)
        found = self.base.pull(
            pieces.X, pieces.args, pieces.pieces, pieces.moments, adjoints, root, of_spread
        )
        of_args = found.of_args | {k: found.of_args.get(k, 0.0) + g for k, g in of_mean.items()}
        return found._replace(of_args=of_args, of_X=None)
