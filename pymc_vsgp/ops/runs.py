"""Equal rows of a matrix that follow one another."""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_type
from pytensor.graph import Apply

from pymc_vsgp.ops.loop import WithJAX


class SomeRows(WithJAX):
    """Numbers of some of the rows, and where each row is among these.

    In JAX, where no shape may depend on values, they are all rows.
    """

    def make_node(self, x):
        """Return the node for what says which rows they are."""
        return Apply(self, [pt.as_tensor(x)], [pt.lvector(), pt.lvector()])

    def perform_jax(self, x):
        """Return the numbers of all rows; PyTensor traces this."""
        import jax.numpy as jnp

        return (jnp.arange(x.shape[0]),) * 2

    def connection_pattern(self, node):
        return [[False, False]]

    def pullback(self, inputs, outputs, cotangents):
        return [disconnected_type()]


class Runs(SomeRows):
    """Where runs of equal rows of a matrix start, and the number of the run that each row is in."""

    def perform(self, node, inputs, outputs):
        """Compare each row with the one before it."""
        (X,) = inputs
        new = np.ones(len(X), dtype=bool)
        new[1:] = (X[1:] != X[:-1]).any(axis=1)
        outputs[0][0], outputs[1][0] = np.flatnonzero(new), np.cumsum(new) - 1


class Chosen(SomeRows):
    """The rows that a vector says are chosen."""

    def perform(self, node, inputs, outputs):
        """Look for them."""
        (here,) = inputs
        outputs[0][0], outputs[1][0] = np.flatnonzero(here), np.cumsum(here) - 1


runs, chosen = Runs(), Chosen()


def by_value(X: np.ndarray, columns: Sequence[int]) -> tuple[np.ndarray, int]:
    """Return an order of rows, by these columns first, and how many of them differ in these."""
    first = X[:, columns]
    order = np.lexsort([*np.delete(X, columns, axis=1).T, *first.T[::-1]])
    ranked = first[order]
    return order, 1 + int((ranked[1:] != ranked[:-1]).any(axis=1).sum())
