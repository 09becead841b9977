"""Rows of the data that share their inputs: moments are computed once for each distinct input.

Rows are taken in an order that puts equal inputs next to each other, and a block of them finds out
which are equal. So the numbers are right whatever data come later; the order only saves work.
"""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable

from pymc_vsgp.inducing.base import Conditional
from pymc_vsgp.inducing.graphs import Moments
from pymc_vsgp.ops.runs import by_value, runs


class ByValue(NamedTuple):
    """An order of the rows of the data."""

    rows: SharedVariable
    repeats: int
    """Rows for each distinct input, on average."""

    @classmethod
    def of(cls, X: np.ndarray, name: str, n: int) -> "ByValue | None":
        """Return the order that puts rows with n equal columns together, where there are many."""
        order, distinct = by_value(X, n)
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


class AtDistinct:
    """p(f | u) at rows of which many are equal: what a block of the loop over the data asks of it.

    `rows` are the positions of those args that go with the rows of X.
    """

    def __init__(self, base: Conditional, rows: tuple[int, ...]):
        self.base, self.rows = base, rows

    def moments(self, X, args):
        """Look up the moments at the distinct inputs."""
        starts, rank = runs(X)
        distinct = [a[starts] if k in self.rows else a for k, a in enumerate(args)]
        pieces, (mu, gamma) = self.base.moments(X[starts], distinct)
        kept = Pieces(X[starts], distinct, pieces, Moments(mu, gamma), rank)
        return kept, Moments(mu[rank], gamma[rank])

    def spread(self, X, args, pieces, root):
        """Look up the variance of the mean."""
        return self.base.spread(pieces.X, pieces.args, pieces.pieces, root)[pieces.rank]

    def diagonal(self, args, root):
        """Whether variables with this root are independent."""
        return self.base.diagonal(args, root)

    def wrt(self, pieces, moments):
        """Return what `pull` needs the adjoints of: they are those at distinct inputs."""
        return self.base.wrt(pieces.pieces, pieces.moments)

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the distinct inputs of the block add to the gradient, but that in X."""
        if of_spread is not None:
            zero = pt.zeros((pieces.X.shape[0], *of_spread.shape[1:]), dtype="float64")
            of_spread = pt.inc_subtensor(zero[pieces.rank], of_spread)
        found = self.base.pull(
            pieces.X, pieces.args, pieces.pieces, pieces.moments, adjoints, root, of_spread
        )
        return found._replace(of_X=None)
