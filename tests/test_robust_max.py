"""Probability of the largest of several normal variables, against quadrature of its own."""

import functools

from importlib import import_module

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW
from scipy.integrate import quad
from scipy.stats import norm

from pymc_vsgp.ops.robust_max import RobustMaxProbability, largest_probability

MODES = ["NUMBA", RAW, "JAX"]


@pytest.fixture(params=MODES)
def mode(request):
    if request.param == "JAX":
        pytest.importorskip("jax")
    return request.param


def reference(mu, gamma, y):
    """Adaptive quadrature over f_y itself, told where the other distribution functions step."""
    others = np.arange(len(mu)) != y
    m, s = mu[others], np.sqrt(gamma[others])
    sd = np.sqrt(gamma[y])
    lo, hi = mu[y] - 9.0 * sd, mu[y] + 9.0 * sd

    def integrand(f):
        return norm.pdf(f, mu[y], sd) * np.prod(norm.cdf(f, m, s))

    points = np.concatenate([mu[y] + sd * np.arange(-8, 9, 2), *[m + k * s for k in (-6, 0, 6)]])
    points = np.unique(np.r_[lo, points[(points > lo) & (points < hi)], hi])
    pieces = zip(points[:-1], points[1:], strict=True)
    return sum(quad(integrand, *ab, epsabs=1e-13, epsrel=1e-11, limit=200)[0] for ab in pieces)


def reference_gradient(mu, gamma, y, wrt, k):
    """Central differences, with Richardson's extrapolation."""

    def at(step):
        ends = []
        for sign in (1.0, -1.0):
            args = {"mu": mu.copy(), "gamma": gamma.copy()}
            args[wrt][k] += sign * step
            ends.append(reference(args["mu"], args["gamma"], y))
        return (ends[0] - ends[1]) / (2.0 * step)

    # P is smooth on the scale of the variable that moves.
    step = 0.04 * (gamma[k] if wrt == "gamma" else np.sqrt(gamma[k]))
    return (4.0 * at(step / 2.0) - at(step)) / 3.0


@functools.cache
def rows(K):
    """Equal variances, similar ones, and ones over six orders of magnitude in a row."""
    rng = np.random.default_rng(K)
    gamma = np.concatenate(
        [
            np.repeat(10.0 ** rng.uniform(-3, 3, size=(6, 1)), K, axis=1),
            10.0 ** rng.uniform(-0.5, 0.5, size=(6, K)),
            10.0 ** rng.uniform(-3, 3, size=(16, K)),
        ]
    )
    scale = np.sqrt(gamma.mean(axis=1, keepdims=True))
    mu = rng.normal(size=gamma.shape) * scale * 10.0 ** rng.uniform(-2, 0.5, size=(len(gamma), 1))
    y = rng.integers(0, K, size=len(gamma))
    # Both ends: the narrowest is y, and the widest is.
    y[-8:-4], y[-4:] = gamma[-8:-4].argmin(axis=1), gamma[-4:].argmax(axis=1)
    return mu, gamma, y


@functools.cache
def expected(K):
    return np.array([reference(*row) for row in zip(*rows(K), strict=True)])


@functools.cache
def compiled(mode):
    """Function of mu, gamma and y: P, and the gradients of P weighed by 1, 2, 3..."""
    mu, gamma, y, weight = pt.dmatrix("mu"), pt.dmatrix("gamma"), pt.lvector("y"), pt.dvector("w")
    p = largest_probability(mu, gamma, y)
    grads = pt.grad(pt.sum(weight * p), [mu, gamma])
    fn = pytensor.function([mu, gamma, y, weight], [p, *grads], mode=mode)
    return lambda mu, gamma, y: fn(mu, gamma, y, 1.0 + np.arange(len(mu)))


@pytest.mark.slow
@pytest.mark.parametrize("K", [3, *long(2, 5, 10)])
def test_value(mode, K):
    p, _, _ = compiled(mode)(*rows(K))
    np.testing.assert_allclose(p, expected(K), rtol=0, atol=2e-9)


@pytest.mark.slow
@pytest.mark.parametrize("K", [3, *long(2, 5)])
def test_gradient(K):
    mu, gamma, y = rows(K)
    gradients = {str(mode): compiled(mode)(mu, gamma, y)[1:] for mode in MODES}
    which = np.random.default_rng(1)
    for i in range(0, len(y), 3):
        for k in {int(y[i]), int(which.integers(K))}:
            for at, (wrt, power) in enumerate((("mu", -0.5), ("gamma", -1.0))):
                scale = max(1.0, gamma[i, k] ** power)
                # Quadrature takes far longer than what it checks: once for all modes.
                by_differences = reference_gradient(mu[i], gamma[i], y[i], wrt, k)
                for mode, of_mode in gradients.items():
                    got = of_mode[at][i, k] / (i + 1)
                    assert got == pytest.approx(by_differences, abs=1e-6 * scale), mode


@pytest.mark.slow
@pytest.mark.parametrize("K", [3, 10])
def test_backends_agree(K):
    pytest.importorskip("jax")
    results = [compiled(mode)(*rows(K)) for mode in MODES]
    weight = np.arange(1, len(rows(K)[2]) + 1)[:, None]
    scales = [np.maximum(1.0, rows(K)[1] ** -0.5), np.maximum(1.0, 1.0 / rows(K)[1])]
    for numba, c, by_jax in list(zip(*results, strict=True)):
        np.testing.assert_array_equal(numba, c)
        assert by_jax.shape == c.shape
    for scale, (numba, _, by_jax) in zip(scales, list(zip(*results, strict=True))[1:], strict=True):
        assert np.max(np.abs(numba - by_jax) / weight / scale) < 1e-7


def test_gradient_by_pytensor(rng):
    y = np.array([0, 2, 1])

    def fn(mu, gamma):
        return largest_probability(mu, gamma, y)

    point = [rng.normal(size=(3, 3)), rng.uniform(0.5, 2.0, size=(3, 3))]
    pytensor.gradient.verify_grad(fn, point, rng=rng, mode=RAW)


def test_probabilities_sum_to_one(rng):
    mu, gamma, _ = rows(5)
    total = sum(compiled(RAW)(mu, gamma, np.full(len(mu), k))[0] for k in range(5))
    np.testing.assert_allclose(total, 1.0, atol=3e-8)


@pytest.mark.slow
def test_exact_values(mode):
    run = compiled(mode)
    # By symmetry.
    for K in (2, 3, 10):
        p, dmu, dgamma = run(np.zeros((1, K)), np.full((1, K), 0.37), np.array([1]))
        np.testing.assert_allclose(p, 1.0 / K, atol=1e-9)
        assert np.abs(dmu.sum()) < 1e-9
    # Certain either way, and a variance of zero.
    mu = np.array([[50.0, 0.0, 0.0]])
    np.testing.assert_allclose(run(mu, np.ones((1, 3)), np.array([0]))[0], 1.0, atol=1e-9)
    np.testing.assert_allclose(run(mu, np.ones((1, 3)), np.array([2]))[0], 0.0, atol=1e-9)
    gamma = np.array([[1.0, 0.0, 0.0]])
    mu = np.array([[0.0, 0.3, -1.0]])
    p, dmu, dgamma = run(mu, gamma, np.array([0]))
    np.testing.assert_allclose(p, norm.sf(0.3), atol=1e-7)
    np.testing.assert_allclose(dmu[0, 0], norm.pdf(0.3), atol=1e-6)
    assert np.all(np.isfinite(dgamma))
    # Alone in its class.
    p, _, _ = run(np.zeros((1, 1)), np.ones((1, 1)), np.array([0]))
    np.testing.assert_allclose(p, [1.0], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("K", [2, 3])
def test_what_is_not_a_number_stays_so(mode, K):
    mu, gamma, y = (v[:5].copy() for v in rows(K))
    mu[0, 1], gamma[1, 0], y[2], y[3] = np.nan, np.inf, K, -1
    for result in compiled(mode)(mu, gamma, y):
        assert np.all(np.isnan(result[:4]))
        assert np.all(np.isfinite(result[4]))
    p, _, _ = compiled(mode)(mu, gamma, y)
    np.testing.assert_allclose(p[4], expected(K)[4], atol=1e-8)


def test_no_rows(mode):
    p, dmu, dgamma = compiled(mode)(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, dtype=int))
    assert p.shape == (0,)
    assert dmu.shape == dgamma.shape == (0, 3)


@pytest.mark.slow
def test_jax_differentiates_it_like_pytensor():
    jax = pytest.importorskip("jax")
    from pytensor.link.jax.dispatch import jax_funcify

    mu_value, gamma_value, y = rows(3)
    mu, gamma = pt.dmatrix("mu"), pt.dmatrix("gamma")
    p = largest_probability(mu, gamma, y)
    total = pt.sum(np.arange(1, len(y) + 1) * p)
    graph = pytensor.graph.FunctionGraph([mu, gamma], [total], clone=True)
    pytensor.compile.mode.JAX.optimizer.rewrite(graph)
    run = jax_funcify(graph)
    by_jax = jax.jit(jax.grad(lambda *args: run(*args)[0], argnums=(0, 1)))
    _, dmu, dgamma = compiled("JAX")(mu_value, gamma_value, y)
    grads = by_jax(mu_value, gamma_value)
    np.testing.assert_allclose(grads[0], dmu, rtol=1e-10)
    np.testing.assert_allclose(grads[1], dgamma, rtol=1e-10)
    # Vectorised chains.
    stacked = jax.vmap(by_jax)(np.stack([mu_value] * 2), np.stack([gamma_value] * 2))
    np.testing.assert_allclose(stacked[0][1], dmu, rtol=1e-7, atol=1e-9)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        jax.jacrev(jax.grad(lambda m: run(m, gamma_value)[0]))(mu_value)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 2.0], ids=["trapezoid", "panels"])
def test_nodes_one_by_one_are_the_same(spread, rng, monkeypatch):
    """So they are where some of them at once would take too much room."""
    pytest.importorskip("jax")
    jax = import_module("pymc_vsgp.ops.backends.robust_max_jax")
    import_module("pytensor.link.jax.dispatch")  # it turns double precision on
    mu, gamma = rng.normal(size=(9, 4)), np.exp(spread * rng.normal(size=(9, 4)))
    y = np.arange(9) % 4
    wanted = jax._robust_max(mu, gamma, y)
    monkeypatch.setattr(jax, "LARGEST", 1)
    for found, known in zip(jax._robust_max(mu, gamma, y), wanted, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-12, atol=1e-14)
    exact = [reference(*row) for row in zip(mu, gamma, y, strict=True)]
    np.testing.assert_allclose(wanted[0], exact, atol=1e-8)


def test_wrong_arguments():
    mu, gamma, y = pt.dmatrix("mu"), pt.dmatrix("gamma"), pt.lvector("y")
    with pytest.raises(TypeError, match="must be matrices"):
        largest_probability(mu[0], gamma, y)
    with pytest.raises(TypeError, match="must be integers"):
        largest_probability(mu, gamma, pt.dvector())
    _, dmu, _ = RobustMaxProbability()(mu, gamma, y)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        pt.grad(dmu.sum(), mu)
    with pytest.raises(ValueError, match="one shape"):
        compiled(RAW)(np.zeros((2, 3)), np.ones((2, 4)), np.array([0, 1]))
