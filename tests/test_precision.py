"""Sparse precision matrices: incomplete factors and solves, against dense ones, on each backend."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW
from pytensor.gradient import verify_grad

from pymc_vsgp.ops.neighbors import maximin, predecessors
from pymc_vsgp.ops.precision import incomplete_factor, precision_solve

N = 14
RNG = np.random.default_rng(0)
Z = RNG.uniform(0.0, 3.0, size=(N, 2))
ORDER = maximin(Z)
SD, PRECISION, RIGHT = RNG.uniform(0.4, 1.5, N), RNG.uniform(0.0, 3.0, N), RNG.normal(size=N)
BACKENDS = [RAW, *(pytest.param(b, marks=pytest.mark.slow) for b in ("NUMBA", "JAX"))]


def pattern(m):
    neighbors = predecessors(Z, ORDER, m)
    weights = 0.4 * np.random.default_rng(1).normal(size=neighbors.shape)
    return weights, neighbors


def dense(weights, neighbors):
    """I - B."""
    out = np.eye(N)
    for i, row in enumerate(neighbors):
        for k, j in enumerate(row):
            if j >= 0:
                out[i, j] -= weights[i, k]
    return out


def matrix(weights, sd, neighbors, precision):
    root = dense(weights, neighbors) / sd[:, None]
    return root.T @ root + np.diag(precision)


def incomplete(A, neighbors, order, weights, sd, precision):
    """Gaussian elimination of a dense matrix, without what has no place."""
    last = (dense(weights, neighbors) / sd[:, None]).T
    S, more = np.zeros((N, N)), {frozenset((i, j)) for i in range(N) for j in neighbors[i]}
    C, t = np.eye(N), np.empty(N)
    for i in order[::-1]:
        own = np.outer(last[:, i], last[:, i])
        row = S[i] + own[i]
        d = row[i] + precision[i]
        before = [j for j in neighbors[i] if j >= 0]
        t[i], C[i, before] = d**-0.5, row[before] / d
        for j in before:
            for k in before:
                if j == k or frozenset((j, k)) in more:
                    S[j, k] += own[j, k] - row[j] * row[k] / d
    return C, t


@pytest.mark.parametrize("mode", BACKENDS)
@pytest.mark.parametrize("m", [1, 4, N - 1])
def test_incomplete_factor(m, mode):
    """That of numpy; and the Cholesky factor, where there is a place for all entries."""
    weights, neighbors = pattern(m)
    A = matrix(weights, SD, neighbors, PRECISION)
    C, t = pytensor.function(
        [], incomplete_factor(weights, SD, PRECISION, neighbors, ORDER), mode=mode
    )()
    expected = incomplete(A, neighbors, ORDER, weights, SD, PRECISION)
    np.testing.assert_allclose(dense(C, neighbors), expected[0], atol=1e-12)
    np.testing.assert_allclose(t, expected[1], rtol=1e-12)
    if m == N - 1:
        np.testing.assert_allclose(matrix(C, t, neighbors, 0.0 * t), A, atol=1e-12)
    assert (t <= SD).all()


def test_without_data_nothing_changes():
    weights, neighbors = pattern(3)
    C, t = pytensor.function(
        [], incomplete_factor(weights, SD, np.zeros(N), neighbors, ORDER), mode=RAW
    )()
    np.testing.assert_allclose(dense(C, neighbors), dense(weights, neighbors), atol=1e-12)
    np.testing.assert_allclose(t, SD, rtol=1e-12)


@pytest.mark.parametrize("mode", BACKENDS)
def test_solutions(mode):
    weights, neighbors = pattern(4)
    C, t = incomplete_factor(weights, SD, PRECISION, neighbors, ORDER)
    w = precision_solve(RIGHT, weights, SD, PRECISION, C, t, neighbors, ORDER)
    expected = np.linalg.solve(matrix(weights, SD, neighbors, PRECISION), RIGHT)
    np.testing.assert_allclose(pytensor.function([], w, mode=mode)(), expected, rtol=1e-8)


def test_what_is_not_finite_stays_so():
    weights, neighbors = pattern(4)
    C, t = incomplete_factor(np.nan * weights, SD, PRECISION, neighbors, ORDER)
    w = precision_solve(RIGHT, weights, SD, PRECISION, C, t, neighbors, ORDER)
    assert np.isnan(pytensor.function([], w, mode=RAW)()).any()


def test_gradients(rng):
    weights, neighbors = pattern(4)
    of = weights, SD, PRECISION + 0.1

    def factor(*x):
        return pt.concatenate([y.ravel() for y in incomplete_factor(*x, neighbors, ORDER)])

    def solve(right, *x):
        factor = incomplete_factor(*x, neighbors, ORDER)
        return precision_solve(right, *x, *factor, neighbors, ORDER)

    verify_grad(factor, list(of), rng=rng, mode=RAW)
    verify_grad(solve, [RIGHT, *of], rng=rng, mode=RAW)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_backends_have_the_same_gradients(mode):
    weights, neighbors = pattern(4)
    inputs = [pt.matrix(), pt.vector(), pt.vector()]
    C, t = incomplete_factor(*inputs, neighbors, ORDER)
    w = precision_solve(RIGHT, *inputs, C, t, neighbors, ORDER)
    slopes = pytensor.grad(pt.sum(C**3) + pt.sum(t**3) + pt.sum(w**3), inputs)
    found, expected = (
        pytensor.function(inputs, slopes, mode=x)(weights, SD, PRECISION) for x in (mode, RAW)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
