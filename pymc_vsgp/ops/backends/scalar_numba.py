"""Elementwise functions that numba turns into vector instructions.

Without Intel's SVML, which pip does not install, numba calls the C library for every element, and a
kernel matrix spends more time in exp than a block spends in half of its linear algebra, a
quadrature nearly all of it in its integrand.

Vector instructions need code without branches and without calls: hence `select`, series that hold
on both sides of it, and `forceinline`. Errors are a few units in the last place.
"""

import numpy as np

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.scalar import register_scalar_funcify, scalar_op_cache_key
from pytensor.scalar.basic import Exp, Expm1, Log, Log1p, UnaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import Elemwise

from pymc_vsgp.ops.normal import InverseMills, LogNdtr

VERSION = 3  # of the code below, for the cache of compiled functions

LOG_2 = 0.6931471805599453
ROOT_2 = 1.4142135623730951
ROOT_2PI = 2.5066282746310002
SHIFT = 6755399441055744.0  # 1.5 * 2^52: its sum with a small integer has that in its last bits
CENTER = 3.75  # of the series for erfcx


def inlined(function):
    """Compile a function into each of its callers."""
    # PyTensor's fastmath would cancel what `log1p` takes from rounding.
    return numba_njit(function, forceinline=True, error_model="numpy", fastmath={"contract", "nsz"})


@intrinsic
def as_float(typingctx, bits):
    """Read the bits of an integer as those of a float."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def as_integer(typingctx, x):
    """Read the bits of a float as those of an integer."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def select(typingctx, condition, x, y):
    """`x` where the condition holds, else `y`; both are computed."""

    def codegen(context, builder, signature, args):
        return builder.select(*args)

    return types.float64(types.boolean, types.float64, types.float64), codegen


@inlined
def expm1_and_power(x):
    """Return ``2^n`` and ``exp(r) - 1``, where ``x = n log 2 + r``, for x from -708 to 709."""
    n = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693145751953125) - n * 1.4286068203094172e-06  # the first product is exact
    r2 = r * r
    r4 = r2 * r2
    low = r + r2 * (0.5 + r * (1.0 / 6.0))
    middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
    high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0 + r * (1.0 / 39916800.0))
    high = high + r4 * (1.0 / 479001600.0)
    # Integers by their bits: not every processor converts vectors of 64 bits.
    power = as_float(as_integer(n + (SHIFT + 1023.0)) << 52)
    return power, low + r4 * (middle + r4 * high)


@inlined
def exp(x):
    """Return the exponential."""
    power, rest = expm1_and_power(min(max(x, -708.0), 709.0))
    value = select(x > 709.0, np.inf, (1.0 + rest) * power)
    return select(x == x, select(x < -708.0, 0.0, value), x)


@inlined
def expm1(x):
    """``exp(x) - 1``."""
    power, rest = expm1_and_power(min(max(x, -708.0), 709.0))
    value = select(x > 709.0, np.inf, rest * power + (power - 1.0))
    return select(x == x, value, x)


@inlined
def two_atanh(z):
    """``2 atanh(z) = log((1 + z) / (1 - z))``, for z up to 0.18 on either side."""
    z2 = z * z
    z4 = z2 * z2
    low = (1.0 + z2 * (1.0 / 3.0)) + z4 * (1.0 / 5.0 + z2 * (1.0 / 7.0))
    middle = (1.0 / 9.0 + z2 * (1.0 / 11.0)) + z4 * (1.0 / 13.0 + z2 * (1.0 / 15.0))
    high = (1.0 / 17.0 + z2 * (1.0 / 19.0)) + z4 * (1.0 / 21.0)
    z8 = z4 * z4
    return 2.0 * z * (low + z8 * (middle + z8 * high))


@inlined
def split(x):
    """Return n and m with ``x = 2^n m``, m around 1, for a positive x that is not subnormal."""
    # sqrt(1/2) <= m < sqrt(2): the constant carries into the exponent from sqrt(2) on.
    n = (as_integer(x) + 0x00095F619980C433) >> 52
    m = as_float(as_integer(x) - ((n - 1023) << 52))
    return as_float(n | 0x4330000000000000) - (2.0**52 + 1023.0), m


@inlined
def log(x):
    """Return the natural logarithm."""
    tiny = x < 2.3e-308
    n, m = split(select(tiny, x * 2.0**54, x))
    value = select(tiny, n - 54.0, n) * LOG_2 + two_atanh((m - 1.0) / (m + 1.0))
    value = select(x == 0.0, -np.inf, select(x == np.inf, np.inf, value))
    return select(x >= 0.0, value, np.nan)


@inlined
def log1p(x):
    """``log(1 + x)``."""
    u = 1.0 + x
    # What rounding took from u, to first order.
    rest = select(np.abs(x) < 1e15, (x - (u - 1.0)) / u, 0.0)
    return select(x == -1.0, -np.inf, log(u) + rest)


@inlined
def series_of_erfcx(s):
    """``(1 + 2 y) erfcx(y)`` at ``y = CENTER (1 + s) / (1 - s)``, from its Chebyshev series."""
    c0 = 1.2375126308378275 - s * 0.14024059858554702
    c1 = 0.003585415485479575 + s * 0.08227673849014977
    c2 = -0.10880393014246645 + s * 0.09230432116025894
    c3 = -0.05869339857631061 + s * 0.028362277420377335
    c4 = -0.00974657968596218 + s * 0.0017556258434318571
    c5 = 0.0002937143905788932 - s * 0.00029015404203348974
    c6 = 5.164649340990656e-05 + s * 2.2384138525534283e-05
    c7 = -1.1437980374239475e-05 - s * 9.73387516492806e-07
    c8 = 1.7419011941768343e-06 - s * 5.741076107347652e-08
    c9 = -2.4851108621898e-07 + s * 2.3398534596775472e-08
    c10 = 3.195398598898818e-08 - s * 3.798189929608559e-09
    c11 = -2.6185201302076403e-09 + s * 3.2052626014481747e-10
    s2 = s * s
    s4 = s2 * s2
    s8 = s4 * s4
    low = (c0 + s2 * c1) + s4 * (c2 + s2 * c3)
    middle = (c4 + s2 * c5) + s4 * (c6 + s2 * c7)
    high = (c8 + s2 * c9) + s4 * (c10 + s2 * c11)
    return low + s8 * (middle + s8 * high)


@inlined
def erfcx_of(x):
    """``exp(y^2) erfc(y)`` at ``y = |x| / sqrt(2)``."""
    y = np.abs(x) / ROOT_2
    # At infinity y / y would be nan.
    y = min(y, 1e300)
    return series_of_erfcx((y - CENTER) / (y + CENTER)) / (1.0 + 2.0 * y)


@inlined
def log_ndtr_from(x, e, bell):
    """``log Phi(x)``: of the tail on the left, of one less the tail on the right."""
    left = x < 0.0
    tail = e * bell
    near = tail < 0.25  # where the logarithm of 1 - tail would lose digits
    n, m = split(select(left, e, 1.0 - tail))
    series = (not left) & near
    z = select(series, -tail, m - 1.0) / select(series, 2.0 - tail, m + 1.0)
    value = select(series, 0.0, n) * LOG_2 + two_atanh(z)
    return select(left, value - 0.5 * x * x, value)


@inlined
def inverse_mills_from(x, e, bell):
    """``phi(x) / Phi(x)``."""
    left = x < 0.0
    return select(left, 1.0, bell) / (ROOT_2PI * select(left, e, 1.0 - e * bell))


@inlined
def log_ndtr(x):
    """``log Phi(x)``."""
    return log_ndtr_from(x, erfcx_of(x) / 2.0, exp(-0.5 * x * x))


@inlined
def inverse_mills(x):
    """``phi(x) / Phi(x)``."""
    return inverse_mills_from(x, erfcx_of(x) / 2.0, exp(-0.5 * x * x))


class Vectorized(UnaryScalarOp):
    """A function of a float64 by vector instructions."""

    # There is no C code, so PyTensor's fusion leaves each its own loop. Within a longer one the
    # compiler would call the function, and not make vectors.

    def __init__(self, function, of_numpy):
        self.function, self.of_numpy = function, of_numpy
        super().__init__(upgrade_to_float, name=f"vector_{function.py_func.__name__}")

    def __eq__(self, other):
        return type(self) is type(other) and self.function is other.function

    def __hash__(self):
        return hash((type(self), self.function))

    def impl(self, x):
        """Evaluate in Python."""
        return self.of_numpy(x)


VECTORIZED = {
    Exp: Elemwise(Vectorized(exp, np.exp)),
    Expm1: Elemwise(Vectorized(expm1, np.expm1)),
    Log: Elemwise(Vectorized(log, np.log)),
    Log1p: Elemwise(Vectorized(log1p, np.log1p)),
}


@register_scalar_funcify(Vectorized)
def numba_funcify_vectorized(op, node, **kwargs):
    """Return the function."""
    return op.function, scalar_op_cache_key(op, name=op.name, version=VERSION)


@register_scalar_funcify(LogNdtr)
def numba_funcify_log_ndtr(op, node, **kwargs):
    """Return the function."""
    return log_ndtr, scalar_op_cache_key(op, version=VERSION)


@register_scalar_funcify(InverseMills)
def numba_funcify_inverse_mills(op, node, **kwargs):
    """Return the function."""
    return inverse_mills, scalar_op_cache_key(op, version=VERSION)


def vectorized(node):
    """Return the output of a node by vector instructions, or None."""
    op = node.op
    if (
        isinstance(op, Elemwise)
        and type(op.scalar_op) in VECTORIZED
        and node.inputs[0].type.ndim > 0
        and node.inputs[0].type.dtype == "float64"
    ):
        return [VECTORIZED[type(op.scalar_op)](node.inputs[0])]
    return None
