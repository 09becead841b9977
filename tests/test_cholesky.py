"""A Cholesky factor with as much jitter as it takes, on every backend."""

import functools

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW
from pytensor.graph.replace import vectorize_graph

from pymc_vsgp.ops.cholesky import LARGEST_JITTER, SafeCholesky, factor, failed

MODES = ["NUMBA", RAW, "JAX"]
M = 6


@pytest.fixture(params=MODES)
def mode(request):
    if request.param == "JAX":
        pytest.importorskip("jax")
    return request.param


def rbf(X, ls=1.0, variance=1.0):
    return variance * np.exp(-0.5 * np.sum((X[:, None] - X[None]) ** 2, -1) / ls**2)


# A sum over the factor that weighs each of its entries differently.
WEIGHTS = np.random.default_rng(7).normal(size=(M, M))


def ordinary(K, jitter):
    """The factor as an ordinary graph."""
    eye = pt.eye(K.shape[0], dtype="float64")
    return pt.linalg.cholesky(K + jitter * pt.mean(pt.diagonal(K)) * eye, lower=True)


def symbols():
    return [pt.tensor("K", shape=(M, M), dtype="float64"), pt.dscalar("jitter")]


@functools.cache
def compiled(mode):
    """Function of K and jitter: L, added, failed, and the gradients of a sum over L."""
    inputs = symbols()
    L, added = factor(*inputs)
    grads = pt.grad(pt.sum(WEIGHTS * L), inputs)
    return pytensor.function(inputs, [L, added, failed(L), *grads], mode=mode)


@functools.cache
def reference():
    """The same without SafeCholesky: L and the gradients."""
    inputs = symbols()
    L = ordinary(*inputs)
    return pytensor.function(inputs, [L, *pt.grad(pt.sum(WEIGHTS * L), inputs)], mode=RAW)


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [1e-6, 0.3])
def test_equals_the_ordinary_graph(mode, rng, jitter):
    value = rbf(rng.normal(size=(M, 2))) + 0.1 * np.eye(M)
    L, dK, dj = reference()(value, jitter)
    got = compiled(mode)(value, jitter)
    np.testing.assert_allclose(got[0], L, rtol=0, atol=1e-12)
    assert got[1] == jitter
    assert not got[2]
    np.testing.assert_allclose(got[3], dK, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(got[4], dj, rtol=1e-10)


def test_gradient_against_differences(rng):
    X = rng.normal(size=(5, 2))
    lower = np.tril(rng.normal(size=(5, 5)))

    def fn(ls, jitter):
        delta = X[:, None] - X[None]
        K = pt.exp(-0.5 * pt.sum(delta**2, -1) / ls**2)
        return pt.sum(lower * factor(K, jitter)[0])

    pytensor.gradient.verify_grad(fn, [np.array(0.9), np.array(0.02)], rng=rng, mode=RAW)


@pytest.mark.parametrize("jitter", [0.0, 1e-6])
def test_rises_until_it_is_enough(mode, rng, jitter):
    X = rng.normal(size=(M // 2, 1))
    # Just not positive definite: an eigenvalue of -1e-5.
    value = rbf(np.r_[X, X], ls=2.0) - 1e-5 * np.eye(M)
    L, added, bad, dK, dj = compiled(mode)(value, jitter)
    assert added == pytest.approx(1e-4)
    assert not bad
    # It is the ordinary graph at the jitter that it reports.
    R, dR, _ = reference()(value, added)
    np.testing.assert_allclose(L, R, atol=1e-10)
    np.testing.assert_allclose(dK, dR, rtol=1e-8, atol=1e-8 * np.abs(dR).max())
    assert dj == 0.0


def test_duplicates_without_jitter(mode, rng):
    X = rng.normal(size=(M // 3, 1))
    value = rbf(np.r_[X, X, X + 1e-10], ls=3.0)
    L, added, bad, dK, _ = compiled(mode)(value, 0.0)
    assert 0.0 < added <= 1e-6
    assert not bad
    np.testing.assert_allclose(L @ L.T, value + added * np.eye(M), atol=1e-12)
    assert np.all(np.triu(L, 1) == 0.0)
    assert np.all(np.isfinite(dK))


def broken():
    indefinite = np.eye(M)
    indefinite[4, 4] = -3.0
    not_a_number = np.eye(M)
    not_a_number[3, 1] = not_a_number[1, 3] = np.nan
    on_diagonal = np.diag([1.0, np.nan, 1.0, 1.0, 1.0, 1.0])
    infinite = np.eye(M)
    infinite[2, 2] = np.inf
    return [indefinite, not_a_number, on_diagonal, infinite, -np.eye(M), np.full((M, M), np.nan)]


def test_failure_is_finite_and_said(mode):
    fn = compiled(mode)
    for value in broken():
        L, added, bad, dK, dj = fn(value, 1e-6)
        assert added == np.inf
        assert bad
        np.testing.assert_array_equal(L, np.eye(M))
        np.testing.assert_array_equal(dK, 0.0)
        assert dj == 0.0
    for jitter in (np.nan, np.inf):
        assert fn(np.eye(M), jitter)[1] == np.inf
    # Not raised beyond the largest, and used as given when given above it.
    slightly = np.diag([1.0, 1.0, 1.0, 1.0, 1.0, -2.0 * LARGEST_JITTER])
    assert fn(slightly, 0.0)[2]
    assert fn(slightly, 0.5)[1] == 0.5


@pytest.mark.slow
def test_jax_differentiates_it_like_pytensor(rng):
    jax = pytest.importorskip("jax")
    from pytensor.link.jax.dispatch import jax_funcify

    X = rng.normal(size=(M, 1))
    ls, jitter = pt.dscalar("ls"), pt.dscalar("jitter")
    K = pt.exp(-0.5 * (X - X.T) ** 2 / ls**2) - pt.switch(ls > 50.0, 2.0, 0.0) * np.eye(M)
    L, _ = factor(K, jitter)
    total = pt.sum(WEIGHTS * L)
    graph = pytensor.graph.FunctionGraph([ls, jitter], [total], clone=True)
    pytensor.compile.mode.JAX.optimizer.rewrite(graph)
    run = jax_funcify(graph)
    by_jax = jax.jit(jax.grad(lambda *args: run(*args)[0], argnums=(0, 1)))
    by_pytensor = pytensor.function([ls, jitter], pt.grad(total, [ls, jitter]), mode=RAW)
    for at in [(0.8, 1e-6), (0.8, 0.1), (30.0, 0.0)]:
        np.testing.assert_allclose(by_jax(*at), by_pytensor(*at), rtol=1e-5, atol=1e-7)
    assert [float(g) for g in by_jax(60.0, 1e-6)] == [0.0, 0.0]
    # Vectorised chains.
    many = jax.vmap(by_jax)(np.array([0.8, 60.0]), np.array([1e-6, 1e-6]))
    np.testing.assert_allclose(many[0], [by_jax(0.8, 1e-6)[0], 0.0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NUMBA", RAW])
def test_a_stack_of_matrices(name, rng):
    X = rng.normal(size=(M, 1))
    values = np.stack([rbf(X), broken()[0], rbf(X, ls=2.0)])
    K, stacked = pt.dmatrix("K"), pt.dtensor3("K")
    outputs = vectorize_graph(list(factor(K, 1e-6)), {K: stacked})
    L, added = pytensor.function([stacked], outputs, mode=name)(values)
    np.testing.assert_allclose(added, [1e-6, np.inf, 1e-6])
    np.testing.assert_array_equal(L[1], np.eye(M))
    np.testing.assert_allclose(L[0] @ L[0].T, values[0] + 1e-6 * np.eye(M))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="takes a matrix and a scalar"):
        SafeCholesky()(pt.dvector(), 1e-6)
    with pytest.raises(TypeError, match=r"output of factor"):
        failed(pt.dmatrix())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [pm.gp.cov.ExpQuad, pm.gp.cov.Matern52])
def test_no_nan_over_ten_decades(kernel, rng):
    X, ls, variance = pt.dmatrix("X"), pt.dscalar("ls"), pt.dscalar("variance")
    L, added = factor(variance * kernel(1, ls=ls)(X), 1e-6)
    dls = pt.grad(pt.sum(pt.log(pt.diagonal(L))), ls)
    fn = pytensor.function([X, ls, variance], [L, added, dls], mode="NUMBA", trust_input=True)
    n_failed = 0
    for _ in range(10_000):
        x = rng.normal(size=(8, 1))
        x[1] = x[0]
        x[3] = x[2] + 10.0 ** rng.uniform(-16, -4)
        L, added, dls = fn(x, *(np.array(10.0**e) for e in rng.uniform(-5, 5, size=2)))
        assert np.all(np.isfinite(L))
        assert np.isfinite(dls)
        if np.isinf(added):
            n_failed += 1
            assert dls == 0.0
    assert n_failed == 0
