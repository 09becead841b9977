"""Expectation of the logarithm of a sum of exponentials, against quadrature of its own."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW
from pytensor.gradient import verify_grad
from scipy.stats import norm

from pymc_vsgp.ops.log_sum_exp import ExpectedLogSumExp, expected_log_sum_exp

MODES = [pytest.param("NUMBA", marks=pytest.mark.slow), RAW, "JAX"]


def reference(mu, gamma):
    """From Laplace transforms of log-normal variables: E log S = int (e^-t - E e^-tS) / t dt."""
    far = 7.0 * np.sqrt(gamma.max())
    x = np.linspace(min(mu.min() - far, 0.0) - 5.0, max(mu.max() + far, 0.0) + 25.0, 1201)
    z = np.linspace(-9.0, 9.0, 801)
    density = norm.pdf(z) * (z[1] - z[0])
    each = [
        np.exp(-np.exp(np.minimum(m + np.sqrt(g) * z - x[:, None], 700.0))) @ density
        for m, g in zip(mu, gamma, strict=True)
    ]
    # With t = exp(-x).
    return np.sum(np.exp(-np.exp(-x)) - np.prod(each, axis=0)) * (x[1] - x[0])


def compiled(mode):
    if mode == "JAX":
        pytest.importorskip("jax")
    mu, gamma = pt.dmatrices("mu", "gamma")
    found = expected_log_sum_exp(mu, gamma)
    weights = 1.0 + pt.arange(mu.shape[0])
    gradients = pt.grad((weights * found).sum(), [mu, gamma])
    return pytensor.function([mu, gamma], [found, *gradients], mode=mode)


def rows(rng):
    mu = rng.normal(size=(4, 3)) * [[1.0], [3.0], [10.0], [1.0]]
    return mu, rng.uniform(0.5, 1.5, size=(4, 3)) * [[0.01], [1.0], [1.0], [9.0]]


@pytest.mark.slow
@pytest.mark.parametrize("smaller", [1.0, 1e-4, [[1.0], [1e-1], [1e-3], [1e-4]]], ids=str)
@pytest.mark.parametrize("mode", MODES, ids=["numba", "raw", "jax"])
def test_value_and_gradient(mode, smaller, rng):
    """Of variances for the mixture, the series, and nodes of every number beside the series."""
    mu, gamma = rows(rng)
    gamma *= smaller
    if isinstance(smaller, list):
        gamma[0] = [0.0, 0.03, 1e-4]
    function = compiled(mode)
    found, dmu, dgamma = function(mu, gamma)
    wanted = [reference(*row) for row in zip(mu, gamma, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-7)
    # Of softmax probabilities there is one in all.
    np.testing.assert_allclose(dmu.sum(axis=1), 1.0 + np.arange(4), rtol=1e-7)
    step = 1e-5 * np.min(smaller) ** 0.5  # no variance becomes negative
    for d, which in ((dmu, 0), (dgamma, 1)):
        ends = []
        for sign in (1.0, -1.0):
            moved = [mu.copy(), gamma.copy()]
            moved[which][:, 1] += sign * step
            ends.append(function(*moved)[0])
        slope = (ends[0] - ends[1]) / (2.0 * step)
        np.testing.assert_allclose(d[:, 1], slope * (1.0 + np.arange(4)), rtol=1e-5, atol=1e-7)


def test_verify_grad(rng):
    mu, gamma = rows(rng)
    with pytensor.config.change_flags(mode="FAST_COMPILE", floatX="float64"):
        verify_grad(expected_log_sum_exp, [mu[:2], gamma[:2]], rng=np.random.RandomState(1))


def test_other_shapes_and_what_is_not_finite(rng):
    mu, gamma = rows(rng)
    m, g = pt.dtensor3("m"), pt.dtensor3("g")
    function = pytensor.function([m, g], expected_log_sum_exp(m, g), mode=RAW)
    flat = compiled(RAW)(mu, gamma)[0]
    np.testing.assert_allclose(
        function(mu.reshape(2, 2, 3), gamma.reshape(2, 2, 3)), flat.reshape(2, 2)
    )
    mu[1, 2] = np.nan
    found = compiled(RAW)(mu, gamma)[0]
    np.testing.assert_array_equal(np.isnan(found), [False, True, False, False])
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        pt.grad(ExpectedLogSumExp()(m[0], g[0])[1].sum(), m)
