"""Small solves, sparse triangles, and who is near, on each backend."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import reference_neighbors as reference

from modes import RAW
from pytensor.gradient import verify_grad

from pymc_vsgp.ops.neighbors import (
    Nearest,
    SparseSolve,
    in_units,
    maximin,
    predecessors,
    solve_each,
)
from pymc_vsgp.ops.rows import by_rows

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 3.0, size=(40, 2))
Z = RNG.uniform(0.0, 3.0, size=(12, 2))
U = RNG.normal(size=12)
BACKENDS = [RAW, *(pytest.param(b, marks=pytest.mark.slow) for b in ("NUMBA", "JAX"))]


@pytest.mark.parametrize("mode", BACKENDS)
def test_small_systems(mode, rng):
    A, c = rng.normal(size=(5, 4, 4)), rng.normal(size=(5, 4))
    C = A @ A.transpose(0, 2, 1) + np.eye(4)
    found = pytensor.function([], solve_each(C, c), mode=mode)()
    np.testing.assert_allclose(found, np.linalg.solve(C, c[..., None])[..., 0], rtol=1e-12)


@pytest.mark.parametrize("mode", BACKENDS)
def test_a_singular_system_gets_jitter(mode):
    C = np.stack([np.ones((3, 3)), 2.0 * np.eye(3)])
    C[0, 2] = C[0, :, 2] = 1.0 + 1e-12  # no factor without
    found = np.asarray(pytensor.function([], solve_each(C, np.ones((2, 3))), mode=mode)())
    np.testing.assert_allclose(found[0].sum(), 1.0, rtol=1e-4)
    np.testing.assert_allclose(found[1], 0.5, rtol=1e-15)


def test_adjoints_of_small_systems(rng):
    def solve(A, c):
        return solve_each(pt.matmul(A, pt.swapaxes(A, 1, 2)) + np.eye(3), c)

    verify_grad(solve, [rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3))], rng=rng, mode=RAW)


def sparse_triangle(rng):
    order = maximin(Z)
    neighbors = predecessors(Z, order, 3)
    weights = 0.5 * rng.normal(size=neighbors.shape)
    B = np.zeros((12, 12))
    for i, row in enumerate(neighbors):
        for k, j in enumerate(row):
            if j >= 0:
                B[i, j] = weights[i, k]
    return weights, neighbors, order, np.eye(12) - B


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mode", BACKENDS)
def test_sparse_triangles(mode, transposed, rng):
    weights, neighbors, order, dense = sparse_triangle(rng)
    solve = SparseSolve(transposed)
    found = pytensor.function([], solve(U, weights, neighbors, order), mode=mode)()
    np.testing.assert_allclose(
        found, np.linalg.solve(dense.T if transposed else dense, U), rtol=1e-10
    )
    if mode is RAW:
        verify_grad(lambda a, w: solve(a, w, neighbors, order), [U, weights], rng=rng, mode=RAW)


@pytest.mark.parametrize("mode", BACKENDS)
def test_nearest(mode):
    scale = np.array([1.0, 5.0])
    found = np.asarray(pytensor.function([], Nearest(4)(X, Z, scale), mode=mode)())
    for x, row in zip(X, found, strict=True):
        assert list(row) == list(reference.nearest(Z / scale, x / scale, 4))


@pytest.mark.parametrize("n_columns", [1, 2, 3, 5])
def test_all_around(n_columns, rng):
    """The nearest of each orthant in turn; of five columns the nearest."""
    Z = rng.normal(size=(30, n_columns))
    X, scale = np.r_[rng.normal(size=(8, n_columns)), Z[:2]], np.full(n_columns, 2.0)
    found = Nearest(4, around=True).search(X, Z, scale)
    expected = reference.nearest if n_columns > 3 else reference.around
    for x, row in zip(X, found, strict=True):
        assert list(row) == list(expected(Z, x, 4))


def test_columns_that_have_no_distance_do_not_count(rng):
    """Four of them take nothing away: neighbors still lie all around."""
    Z, X = rng.normal(size=(60, 6)), rng.normal(size=(9, 6))
    scale = np.where(np.isin(np.arange(6), [1, 4]), [9.0, 0.5, 9.0, 9.0, 2.0, 9.0], np.inf)
    found = Nearest(5, around=True).search(X, Z, scale)
    own = [1, 4]
    alone = Nearest(5, around=True).search(X[:, own], Z[:, own], scale[own])
    np.testing.assert_array_equal(found, alone)
    nearest = Nearest(5).search(X[:, own], Z[:, own], scale[own])
    assert (found != nearest).any()
    np.testing.assert_array_equal(in_units(Z, scale), Z[:, own] / scale[own])


def test_the_middle_of_a_gap_has_both_sides():
    """Where all of the nearest are on one side."""
    Z = np.r_[np.linspace(0.0, 1.0, 20), np.linspace(2.1, 3.0, 20)][:, None]
    near = Nearest(6, around=True).search(np.array([[1.5]]), Z, np.ones(1))[0]
    assert (Z[near] > 2.0).sum() == 3


@pytest.mark.parametrize("n_columns", [1, 2, 5])
def test_predecessors(n_columns, rng):
    A = rng.normal(size=(150, n_columns))
    order = maximin(A)
    assert sorted(order) == list(range(150))
    found = predecessors(A, order, 6)
    for rank, i in enumerate(order):
        before = order[:rank]
        expected = before[reference.nearest(A[before], A[i], 6)]
        assert sorted(found[i][found[i] >= 0]) == sorted(expected)


@pytest.mark.parametrize("n_columns", [2, 3])
def test_each_in_order_is_nearly_the_farthest_of_what_is_left(n_columns, rng):
    A = rng.uniform(size=(300, n_columns))
    A[200:] = A[:100].round(1)  # a part of a grid, and rows that are equal
    order = maximin(A)
    apart = np.sqrt(((A[:, None] - A) ** 2).sum(axis=-1))
    assert sorted(order) == list(range(300))
    for r in range(1, 300):
        near = apart[order[r:]][:, order[:r]].min(axis=1)
        assert near[0] >= 0.9 * near.max() - 1e-12
    np.testing.assert_array_equal(maximin(np.ones((4, 2)))[1:], [1, 2, 3])


@pytest.mark.parametrize("mode", BACKENDS)
def test_what_is_computed_by_rows_is_the_same(mode, rng):
    """In blocks as in one piece, the gradient in what has rows and in what they share included."""
    a, near, b = pt.vector(), pt.lmatrix(), pt.vector()

    def build(a, near, b):
        return pt.exp(-(a**2)) * pt.sum(b[near.ravel()].reshape((-1, 3)), axis=1)

    point = [rng.normal(size=300), rng.integers(7, size=(300, 3)), rng.normal(size=7)]
    found = []
    # JAX leaves out checks of shapes in the plain graph, and PyTensor warns of that.
    for graph, on in ((build(a, near, b), RAW), (by_rows(build, [a, near], [b], 10**6), mode)):
        outputs = [graph, *pytensor.grad(pt.sum(graph**3), [a, b])]
        found.append(pytensor.function([a, near, b], outputs, mode=on)(*point))
    for whole, blocks in zip(*found, strict=True):
        np.testing.assert_allclose(blocks, whole, rtol=1e-12)


def test_searches_are_remembered(rng, monkeypatch):
    X, Z, scale = rng.normal(size=(7, 2)), rng.normal(size=(9, 2)), np.ones(2)
    searches = []
    search = Nearest._search
    monkeypatch.setattr(Nearest, "_search", lambda self, *a: searches.append(a) or search(self, *a))
    op = Nearest(3)
    first = op.search(X, Z, scale)
    known = first.copy()
    first[:] = -1  # whoever asks may write into what it got
    for same in (op, Nearest(3)):
        np.testing.assert_array_equal(same.search(X.copy(), np.asfortranarray(Z), scale), known)
    assert len(searches) == 1
    # Other numbers, another number of neighbors, and another rule are other questions.
    others = [(Nearest(3), X + 1.0, Z, scale), (Nearest(3), X, 2.0 * Z, scale)]
    others += [(Nearest(3), X, Z, np.array([1.0, 9.0])), (Nearest(4), X, Z, scale)]
    others += [(Nearest(3, around=True), X, Z, scale), (Nearest(3), X[:, ::-1], Z, scale)]
    for other, *inputs in others:
        np.testing.assert_array_equal(other.search(*inputs), search(other, *inputs))
    assert len(searches) == 1 + len(others)
    assert other.search(X[:0], Z, scale).shape == (0, 3)
