"""Elementwise functions of our own: of the normal distribution, and numba's vector versions."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW
from pytensor.gradient import verify_grad
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from scipy import special

from pymc_vsgp.compile import function
from pymc_vsgp.ops.normal import inverse_mills, log_ndtr
from pymc_vsgp.ops.numpy_only import SumOfProducts, numpy_only

pytest.importorskip("numba")

from pymc_vsgp.ops.backends import scalar_numba

EVERYWHERE = np.r_[
    np.linspace(-40.0, 40.0, 4001), np.outer([-1.0, 1.0], 10.0 ** np.arange(-300, 9, 7)).ravel()
]
SPECIAL = np.array([0.0, -0.0, -1.0, np.inf, -np.inf, np.nan])
TINY = 1e-305  # below it a loop may give zero


def slope_of_log_ndtr(x):
    """Of the two tails, each where it keeps its digits."""
    with np.errstate(all="ignore"):
        right = np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi) / special.ndtr(x)
        return np.where(x < 0.0, np.sqrt(2.0 / np.pi) / special.erfcx(-x / np.sqrt(2.0)), right)


NORMAL = {"log_ndtr": (log_ndtr, special.log_ndtr), "slope": (inverse_mills, slope_of_log_ndtr)}


@pytest.mark.parametrize("name", NORMAL)
@pytest.mark.parametrize("mode", ["RAW", "FAST_COMPILE", "NUMBA", "JAX"])
def test_normal_distribution(name, mode):
    """Both against scipy, on every backend, with a gradient that is finite everywhere."""
    if mode == "JAX":
        pytest.importorskip("jax")
    fn, reference = NORMAL[name]
    x = pt.vector("x")
    y = fn(x)
    mode = RAW if mode == "RAW" else mode
    f = pytensor.function([x], [y, pytensor.grad(y.sum(), x)], mode=mode)
    m = slope_of_log_ndtr(EVERYWHERE)
    slope = m if name == "log_ndtr" else -m * (EVERYWHERE + m)
    # An exponential magnifies the rounding of x^2; the curvature is a difference of large numbers.
    rtol = 1e-15 * (3.0 + np.minimum(EVERYWHERE**2, 1500.0))
    atol = TINY if name == "log_ndtr" else 1e-14 * m**2 + 50.0 * TINY
    for found, expected, least in zip(
        f(EVERYWHERE), (reference(EVERYWHERE), slope), (TINY, atol), strict=True
    ):
        assert np.all(np.abs(found - expected) <= rtol * np.abs(expected) + least)


def test_slopes(rng):
    for fn in (log_ndtr, inverse_mills):
        verify_grad(fn, [rng.normal(size=8) * 2.0], rng=rng, mode=RAW)


def test_numpy_has_a_loop_for_them():
    x = pt.vector("x")
    outputs = numpy_only([pytensor.grad(log_ndtr(x).sum(), x)])
    found = pytensor.function([x], outputs, mode=RAW)(EVERYWHERE)[0]
    np.testing.assert_allclose(found, slope_of_log_ndtr(EVERYWHERE), rtol=1e-13, atol=1e-300)


def test_numpy_calls_no_function_for_each_entry():
    x, y = pt.vectors("x", "y")
    at = -np.geomspace(1e-12, 700.0, 50)
    graphs = [pt.log1mexp(x), pt.softplus(x), pt.clip(x, -3.0, -1.0), pt.second(x, y)]
    graphs += [pt.clip(x, -3.0, x), pt.clip(x, x, -3.0)]  # as pm.Censored has it, with one limit
    outputs = numpy_only(graphs)
    scalars = [v.owner.op.scalar_op for v in ancestors(outputs) if is_elementwise(v)]
    assert all(op.nfunc_spec for op in scalars if op.name not in ("switch",))
    found = pytensor.function([x, y], outputs, mode=RAW)(at, at)
    wanted = pytensor.function([x, y], graphs, mode=RAW)(at, at)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-300)


def is_elementwise(v):
    return v.owner is not None and isinstance(v.owner.op, Elemwise)


AROUND_ONE = 1.0 + np.linspace(-0.6, 1.5, 2001)
ALL_SIZES = np.outer([-1.0, 1.0], 10.0 ** np.linspace(-307.0, 307.0, 2001)).ravel()
VECTORS = {
    pt.exp: np.r_[np.linspace(-707.0, 708.0, 4001), EVERYWHERE],
    pt.expm1: np.r_[np.linspace(-707.0, 708.0, 4001), EVERYWHERE],
    pt.log: np.r_[AROUND_ONE, ALL_SIZES, 5e-324, 1e-310],
    pt.log1p: np.r_[AROUND_ONE - 1.0, ALL_SIZES, -1.0 + 1e-16],
}


@pytest.mark.parametrize("fn", VECTORS, ids=lambda f: f.name)
def test_vector_instructions(fn):
    """A few units in the last place, and what is not finite as numpy has it."""
    x = pt.vector("x")
    vector = scalar_numba.VECTORIZED[type(fn.scalar_op)]
    f = pytensor.function([x], vector(x), mode="NUMBA")
    values = np.r_[VECTORS[fn], SPECIAL]
    with np.errstate(all="ignore"):
        expected = getattr(np, fn.scalar_op.nfunc_spec[0])(values)
    np.testing.assert_allclose(f(values), expected, rtol=2e-15, atol=5e-308)
    np.testing.assert_array_equal(vector(x).eval({x: SPECIAL}, mode=RAW), expected[-6:])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shapes", [[(1, 4, 5), (3, 4, 5)], [(1, 1, 1), (3, 4, 5), (3, 1, 5)]])
def test_sums_of_products_hold_no_product(shapes, axis, rng):
    values = [rng.normal(size=shape) for shape in shapes]
    inputs = [pt.tensor(dtype="float64", shape=shape) for shape in shapes]
    fn = function(inputs, pt.sum(pt.mul(*inputs), axis=axis))
    assert any(isinstance(node.op, SumOfProducts) for node in fn.maker.fgraph.apply_nodes)
    np.testing.assert_allclose(fn(*values), np.prod(np.broadcast_arrays(*values), 0).sum(axis))
    # Of no functions, and of one: an axis of one number is in no index then.
    for n in (0, 1):
        some = [v[:n] if len(v) > 1 else v for v in values]
        kinds = [tuple(1 if k == 1 else None for k in shape) for shape in shapes]
        inputs = [pt.tensor(dtype="float64", shape=kind) for kind in kinds]
        fn = function(inputs, pt.sum(pt.mul(*inputs), axis=axis))
        np.testing.assert_allclose(fn(*some), np.prod(np.broadcast_arrays(*some), 0).sum(axis))
