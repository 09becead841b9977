"""Gaussian variables that depend on a few others each: batches of small solves, sparse triangles.

A sparse unit triangular matrix is held by rows: ``weights`` and ``neighbors``, both M x m, are the
entries and their columns, a column of -1 being none; ``order`` is an order of the rows in which
each comes after its neighbors. The matrix is :math:`I - B` with B those entries.
"""

import hashlib
import threading

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_type
from pytensor.graph import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.variable import TensorVariable
from scipy.spatial import cKDTree

from pymc_vsgp.ops.loop import Loop, WithJAX
from pymc_vsgp.ops.runs import SomeRows

NEARLY = 0.9  # of the largest distance


class SolveEach(Loop):
    """Solutions b of ``C b = c`` for many small, symmetric, positive definite C.

    A matrix without a Cholesky factor gets 1e-10 of its mean diagonal on the diagonal, then ten
    times as much, up to a hundredth; the solution is nan where that does not help either.
    """

    module, loop = "neighbors", "solve_each"

    def make_node(self, C, c):
        """Return the node for (..., m, m) and (..., m)."""
        C, c = (pt.as_tensor(x).astype("float64") for x in (C, c))
        if C.type.ndim != c.type.ndim + 1:
            raise TypeError(
                "SolveEach takes a matrix for each vector. "
                f"It got {C.type.ndim} and {c.type.ndim} dimensions."
            )
        return Apply(self, [C, c], [c.type()])

    def infer_shape(self, node, shapes):
        """As c."""
        return [shapes[1]]

    def pullback(self, inputs, outputs, cotangents):
        """Solve with the cotangent: ``z = C^-1 g``, of c, and ``-z b^T``, of C."""
        (b,), z = outputs, self(inputs[0], cotangents[0])
        return [-z[..., :, None] * b[..., None, :], z]


@_vectorize_node.register(SolveEach)
def _vectorize_solves(op, node, C, c):
    """Solve more of them."""
    lead = c.type.ndim - node.inputs[1].type.ndim, C.type.ndim - node.inputs[0].type.ndim
    if lead[0] < lead[1]:
        c = pt.broadcast_to(c, C.shape[:-1])
    elif lead[0] > lead[1]:
        C = pt.broadcast_to(C, (*c.shape, c.shape[-1]))
    return [op(C, c)]


solve_each = SolveEach()


class SparseSolve(Loop):
    """Solution w of ``(I - B) w = a``, or of ``(I - B)^T w = a``, for a sparse triangle."""

    __props__ = ("transposed",)
    module = "neighbors"
    gufunc_signature = "(m),(m,p),(m,p),(m)->(m)"

    def __init__(self, transposed: bool = False):
        super().__init__()
        self.transposed = transposed
        self.loop = "solve_back" if transposed else "solve_forth"

    def make_node(self, a, weights, neighbors, order):
        a, weights = (pt.as_tensor(x).astype("float64") for x in (a, weights))
        neighbors, order = (pt.as_tensor(x).astype("int64") for x in (neighbors, order))
        if [x.type.ndim for x in (a, weights, neighbors, order)] != [1, 2, 2, 1]:
            raise TypeError("SparseSolve takes a vector, two matrices and a vector.")
        return Apply(self, [a, weights, neighbors, order], [pt.dvector()])

    def infer_shape(self, node, shapes):
        """As a."""
        return [shapes[0]]

    def pullback(self, inputs, outputs, cotangents):
        """Solve with the other triangle."""
        _, weights, neighbors, order = inputs
        z = SparseSolve(not self.transposed)(cotangents[0], weights, neighbors, order)
        left, right = (outputs[0], z) if self.transposed else (z, outputs[0])
        of_weights = left[:, None] * gather(right, neighbors)
        return [z, of_weights, disconnected_type(), disconnected_type()]


def sparse_solve(a, weights, neighbors, order, transposed=False) -> TensorVariable:
    """Return w such that ``w = a + B w``; with more dimensions of a in front, for each."""
    op = SparseSolve(transposed)
    return (op if a.type.ndim == 1 else Blockwise(op))(a, weights, neighbors, order)


def gather(w: TensorVariable, neighbors) -> TensorVariable:
    """Return the entries of a vector at the neighbors, zero where there is none."""
    return pt.switch(pt.ge(neighbors, 0), w[pt.maximum(neighbors, 0)], np.float64(0.0))


LARGEST_D = 3
"""Columns with few orthants."""

ROWS = 4096  # of which candidates are held at once

REMEMBERED_BYTES = 100_000_000
"""Of the last searches together."""

_searched: dict[Any, np.ndarray] = {}
_searching = threading.Lock()

CANDIDATES = 10
"""Times as many are looked at as are taken, where they are to lie all around."""


def _hash_of(x: np.ndarray) -> tuple:
    """Return the same for arrays with the same numbers."""
    return x.shape, hashlib.blake2b(x.tobytes(), digest_size=16).digest()


def in_units(X: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the inputs that have a distance, in units of their scales; others are infinite."""
    used = np.isfinite(scale)
    return X[:, used] / scale[used]


class Nearest(WithJAX):
    """The rows of Z that are nearest to each row of X, in units of `scale`; nearest first.

    Those that lie `around` are the nearest of each orthant in turn: at the edge of a gap all of the
    nearest lie on one side, and say little about the middle. Rows that are among those of Z have
    the nearest, and so has more than three columns. Columns with an infinite scale do not count.
    """

    __props__ = ("number", "around")
    gufunc_signature = "(n,d),(m,d),(d)->(n,k)"

    def __init__(self, number: int, around: bool = False):
        super().__init__()
        self.number, self.around = number, around

    def make_node(self, X, Z, scale):
        """Return the node for two matrices, and a vector with an entry for each column."""
        X, Z, scale = (pt.as_tensor(x).astype("float64") for x in (X, Z, scale))
        return Apply(
            self, [X, Z, scale], [pt.tensor(dtype="int64", shape=(X.type.shape[0], self.number))]
        )

    def infer_shape(self, node, shapes):
        """A row for each of X."""
        return [(shapes[0][0], pt.constant(self.number, dtype="int64"))]

    def perform(self, node, inputs, outputs):
        """Search a tree."""
        outputs[0][0] = self.search(*inputs)

    def search(self, X, Z, scale):
        """Return the numbers of rows of Z; of nothing for inputs that are not finite.

        Draws of a posterior ask for the same again and again: the last answers are remembered.
        """
        key = (self, *(_hash_of(x) for x in (X, Z, scale)))
        found = _searched.get(key)
        if found is None:
            found = self._search(X, Z, scale)
            with _searching:
                _searched[key] = found
                while sum(x.nbytes for x in _searched.values()) > REMEMBERED_BYTES:
                    del _searched[next(iter(_searched))]
        return found.copy()

    def _search(self, X, Z, scale):
        X, Z = in_units(X, scale), in_units(Z, scale)
        if not np.isfinite(Z).all():
            return np.zeros((len(X), self.number), dtype="int64")
        X, tree = np.nan_to_num(X), cKDTree(Z)
        away, found = tree.query(X, k=np.arange(1, self.number + 1))
        if self.around and X.shape[1] <= LARGEST_D and self.number > 1:
            apart = np.flatnonzero(away[:, 0] > 0.0)
            more = np.arange(1, min(CANDIDATES * self.number, len(Z)) + 1)
            for rows in np.array_split(apart, len(apart) // ROWS + 1):
                found[rows] = all_around(X[rows], Z, tree.query(X[rows], k=more)[1], self.number)
        return np.ascontiguousarray(found, dtype="int64")

    def perform_jax(self, X, Z, scale):
        """Call back into Python; PyTensor traces this."""
        from pymc_vsgp.ops.backends import neighbors_jax

        return neighbors_jax.call(self.search, (X.shape[0], self.number), X, Z, scale)

    def connection_pattern(self, node):
        return [[False], [False], [False]]

    def pullback(self, inputs, outputs, cotangents):
        return [disconnected_type() for _ in inputs]


class Apart(SomeRows):
    """The rows that a vector does not say are `here`, and the first; any other is at the last."""

    def perform(self, node, inputs, outputs):
        """Count them."""
        away = ~inputs[0]
        rows = np.flatnonzero(away)
        outputs[0][0] = np.append(rows, np.zeros(min(len(away), 1), rows.dtype))
        outputs[1][0] = np.where(away, np.cumsum(away) - 1, len(rows))


apart = Apart()


def all_around(X, Z, found, number: int) -> np.ndarray:
    """Return so many of the rows of Z that were found near each of X: of each orthant in turn."""
    orthant = ((Z[found] >= X[:, None]) @ (2 ** np.arange(X.shape[1]))).astype("int64")
    turn = np.empty_like(found)
    for k in range(2 ** X.shape[1]):
        here = orthant == k
        turn[here] = np.cumsum(here, axis=1)[here]
    first = np.argsort(turn, axis=1, kind="stable")[:, :number]
    return np.take_along_axis(found, first, axis=1)


def maximin(X: np.ndarray) -> np.ndarray:
    """Return an order in which each row is as far as can be from all before it.

    A single column is sorted. Otherwise distances are within a tenth of the largest: rows that are
    at most that far apart take turns by the distance they had, so no heap is needed. Orders that
    let neighbors in early make incomplete factors unstable.
    """
    if X.shape[1] == 1:
        return np.argsort(X[:, 0], kind="stable")
    tree = cKDTree(X)
    near = np.full(len(X), np.inf)  # how far the nearest of the chosen is; -1 for those
    order: list[int] = []

    def choose(i, reach):
        order.append(i)
        ball = tree.query_ball_point(X[i], reach, return_sorted=False)
        near[ball] = np.minimum(near[ball], np.sqrt(((X[ball] - X[i]) ** 2).sum(axis=1)))
        near[i] = -1.0

    choose(int(np.argmin(((X - X.mean(axis=0)) ** 2).sum(axis=1))), np.inf)
    while (reach := near.max()) > 0.0:
        (far,) = np.nonzero(near >= NEARLY * reach)
        for i in far[np.argsort(-near[far], kind="stable")]:
            if near[i] >= NEARLY * reach:
                choose(i, reach)
    return np.concatenate([order, np.flatnonzero(near == 0.0)]).astype(np.int64)


def predecessors(X: np.ndarray, order: np.ndarray, m: int) -> np.ndarray:
    """Return, for each row of X, the m nearest of those before it in the order; -1 for none."""
    n = len(X)
    m = max(min(m, n - 1), 1)
    out = np.full((n, m), -1, dtype="int64")
    if n == 1:
        return out
    ranked = X[order]
    out[order[: m + 1]] = np.where(np.tri(m + 1, m, -1), order[:m], -1)
    start = m + 1
    while start < n:
        # Half of the rows in the tree, or more, are before any of these.
        stop = min(2 * start, n)
        tree, rows, k = cKDTree(ranked[:stop]), np.arange(start, stop), min(3 * m, stop)
        while len(rows):
            _, found = tree.query(ranked[rows], k=k)
            before = found < rows[:, None]
            enough = before.sum(axis=1) >= m
            # The m first of those before, in the order of their distance.
            first = np.argsort(~before[enough], axis=1, kind="stable")[:, :m]
            out[order[rows[enough]]] = order[np.take_along_axis(found[enough], first, axis=1)]
            rows, k = rows[~enough], min(2 * k, stop)
        start = stop
    return out
