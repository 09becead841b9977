"""Expectations of functions of one normal variable, against quadrature of its own."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW
from pytensor.gradient import DisconnectedInputError, verify_grad
from pytensor.graph.replace import vectorize_graph
from scipy import special

from pymc_vsgp.ops.expectations import WIDTH, Expectation, expected_log_ndtr, expected_softplus
from pymc_vsgp.ops.nodes import RULES, bend_nodes

MODES = [pytest.param("NUMBA", marks=pytest.mark.slow), RAW, "JAX"]


def mills(f):
    return np.exp(-(f**2) / 2.0 - special.log_ndtr(f)) / np.sqrt(2.0 * np.pi)


# Of each: the function, its slope, the slope of that, what it is right to, and its slopes.
FUNCTIONS = {
    "log_ndtr": (
        expected_log_ndtr,
        special.log_ndtr,
        mills,
        lambda f: -mills(f) * (f + mills(f)),
        1e-10,
        1e-9,
    ),
    "softplus": (
        expected_softplus,
        lambda f: np.logaddexp(0.0, f),
        special.expit,
        lambda f: special.expit(f) * special.expit(-f),
        7e-9,
        4e-8,
    ),
}
# On both sides of the limits of each rule, and without a variance that counts.
SDS = [1e-6, *(WIDTH * sd * side for sd in RULES for side in (0.999, 1.001)), 3.0]
MEANS = [-40.0, -5.0, -1.2, 0.0, 0.7, 3.0, 20.0]


def reference(g, mu, sd):
    """Gauss-Legendre quadrature in panels of a quarter of a standard deviation."""
    x, w = np.polynomial.legendre.leggauss(20)
    z = (np.arange(-10.0, 10.0, 0.25)[:, None] + (x + 1.0) / 8.0).ravel()
    w = np.tile(w / 8.0, 80) * np.exp(-(z**2) / 2.0) / np.sqrt(2.0 * np.pi)
    return w @ g(mu + sd * z)


def compiled(expected, mode):
    if mode == "JAX":
        pytest.importorskip("jax")
    mu, gamma = pt.dvectors("mu", "gamma")
    value = expected(mu, gamma)
    return pytensor.function([mu, gamma], [value, *pt.grad(value.sum(), [mu, gamma])], mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=["numba", "raw", "jax"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_gradient(name, mode):
    expected, g, slope, bend, right_to, slopes_to = FUNCTIONS[name]
    mu, sd = (x.ravel() for x in np.meshgrid(MEANS, SDS))
    found, dmu, dgamma = compiled(expected, mode)(mu, sd**2)
    pairs = list(zip(mu, sd, strict=True))
    wanted = [reference(g, *p) for p in pairs]
    np.testing.assert_allclose(found, wanted, rtol=right_to, atol=right_to)
    of_mu = [reference(slope, *p) for p in pairs]
    np.testing.assert_allclose(dmu, of_mu, rtol=slopes_to, atol=slopes_to)
    # By Stein's lemma; of hardly any variance that is a difference of rounding errors.
    of_gamma = [
        reference(lambda f, m=m, s=s: slope(f) * (f - m) / (2.0 * s**2), m, s)
        if s > 1e-3
        else bend(m) / 2.0
        for m, s in pairs
    ]
    np.testing.assert_allclose(dgamma, of_gamma, rtol=slopes_to, atol=slopes_to)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name, rng):
    expected = FUNCTIONS[name][0]
    mu, gamma = rng.normal(size=5), rng.uniform(0.1, 4.0, size=5)
    verify_grad(expected, [mu, gamma], rng=rng, mode=RAW)
    for i in (1, 2):
        op = Expectation(f"expected_{name}")
        verify_grad(lambda m, v, op=op, i=i: op(m, v)[i], [mu, gamma], rng=rng, mode=RAW)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_shapes_and_what_is_not_finite(name, rng):
    expected = FUNCTIONS[name][0]
    flat = compiled(expected, RAW)
    mu, gamma = rng.normal(size=(4, 3, 300)), rng.uniform(0.0, 3.0, size=(4, 1, 300))
    wanted = flat(mu.ravel(), np.broadcast_to(gamma, mu.shape).ravel())[0].reshape(mu.shape)
    m, v = pt.dvectors("m", "v")
    many = pt.dtensor3("mu"), pt.tensor("gamma", dtype="float64", shape=(None, 1, None))
    vectorized = vectorize_graph(expected(m, v), dict(zip((m, v), many, strict=True)))
    for graph in (vectorized, expected(*many)):
        found = pytensor.function(many, graph, mode=RAW)(mu, gamma)
        np.testing.assert_array_equal(found, wanted)
    column = pt.col("column", dtype="float64")
    outer = pytensor.function([column, v], expected(column, v), mode=RAW)
    np.testing.assert_array_equal(
        outer(mu[0, :, :1], gamma[0, 0])[:, 0], flat(mu[0, :, 0], [gamma[0, 0, 0]] * 3)[0]
    )
    mu, gamma = np.array([0.0, np.nan, 1.0]), np.array([1.0, 1.0, np.nan])
    np.testing.assert_array_equal(np.isnan(flat(mu, gamma)[0]), [False, True, True])
    with pytest.raises(ValueError):
        flat(np.zeros(3), np.ones(2))


def test_nodes_where_a_deviation_is_lost_beside_the_distance_of_a_bend():
    """All nodes were at nan: a deviation of 1e-12 a bend away, beside one that is large."""
    m, s = pt.dvectors("m", "s")
    outputs = bend_nodes(m, s, np.float64(0.0), np.float64(1.0), 48, 1)
    for mode in (RAW, "FAST_COMPILE"):
        t, w = pytensor.function([m, s], outputs, mode=mode)([0.3, 1e4, 1.0], [1e-50, 1e-12, 2.0])
        for power, moment in enumerate([1.0, 0.0, 1.0, 0.0, 3.0]):
            np.testing.assert_allclose((w * t**power).sum(axis=0), moment, atol=1e-8)


def test_nodes_are_as_many_as_the_largest_deviation_needs(rng):
    """And integrate polynomials of the normal variable; nodes of many points are those of each."""
    mu, sd = rng.normal(size=(2, 3, 40)) * 3.0, np.full((2, 3, 40), 0.01)
    m, s, z = pt.dvectors("m", "s", "z")
    t, w = bend_nodes(m, s, 0.3 * z, 1.5, 48, 1)
    each = pytensor.function([m, s, z], [t, w], mode=RAW)
    widest = [0.05 * 1.5, 0.14 * 1.5, 0.28 * 1.5, 0.39 * 1.5, 0.5 * 1.5, np.nan]
    for largest, n in zip(widest, [6, 10, 20, 32, 48, 48], strict=True):
        sd[1, 1, 7] = largest
        found_t, found_w = each(mu[1, 1], sd[1, 1], mu[0, 0])
        assert found_t.shape == (n, 40)
        good = ~np.isnan(found_t).any(axis=0)
        assert good.sum() == 40 - np.isnan(largest)
        for power, moment in enumerate([1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 15.0]):
            np.testing.assert_allclose(
                (found_w * found_t**power).sum(axis=0)[good], moment, atol=1e-8
            )
    sd[1, 1, 7] = 0.2
    batched = [pt.dtensor3(name) for name in "msz"]
    many = vectorize_graph([t, w], dict(zip((m, s, z), batched, strict=True)))
    found = pytensor.function(batched, many, mode=RAW)(mu, sd, mu)
    for i in range(2):
        for j in range(3):
            wanted = each(mu[i, j], sd[i, j], mu[i, j])
            a, b = (
                (w * np.cos(mu[i, j] + sd[i, j] * t)).sum(axis=0)
                for t, w in ([x[i, j] for x in found], wanted)
            )
            np.testing.assert_allclose(a, b, atol=1e-9)
    with pytest.raises(DisconnectedInputError):
        pt.grad(t.sum(), m, disconnected_inputs="raise")
