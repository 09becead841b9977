"""An exponential that numba turns into vector instructions.

Without Intel's SVML, which pip does not install, numba calls the C library for every element, and a
kernel matrix spends more time in exp than a block spends in half of its linear algebra.
"""

import numpy as np

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.scalar import register_scalar_funcify, scalar_op_cache_key
from pytensor.scalar.basic import Exp, UnaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import Elemwise

VERSION = 2  # of the code below, for the cache of compiled functions


class VectorExp(UnaryScalarOp):
    """exp of a float64, to a few units in the last place."""

    nfunc_spec = ("exp", 1, 1)

    def impl(self, x):
        """Evaluate in Python."""
        return np.exp(x)

    def c_code_cache_version(self):
        """Return a version; numba only, but PyTensor asks."""
        return (VERSION,)


vector_exp = Elemwise(VectorExp(upgrade_to_float, name="vector_exp"))


@intrinsic
def _as_float(typingctx, bits):
    """Read the bits of an integer as those of a float."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@register_scalar_funcify(VectorExp)
def numba_funcify_vector_exp(op, node, **kwargs):
    """Write x = n log 2 + r, take the series in r, and put n into the exponent."""

    @numba_njit
    def vector_exp(x):
        y = min(max(x, -708.0), 709.0)
        n = np.floor(y * 1.4426950408889634 + 0.5)
        r = y - n * 0.6931471805599453
        r2 = r * r
        r4 = r2 * r2
        low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0))
        middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
        high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (
            1.0 / 3628800.0 + r * (1.0 / 39916800.0)
        )
        power = _as_float((np.int64(n) + 1023) << 52)
        value = (low + r4 * (middle + r4 * high)) * power
        if x > 709.0:
            return np.inf
        if x < -708.0:
            return 0.0
        return value if x == x else x

    return vector_exp, scalar_op_cache_key(op, version=VERSION)


def vectorized(node):
    """Return the output of a node that takes an exponential, or None."""
    op = node.op
    if (
        isinstance(op, Elemwise)
        and type(op.scalar_op) is Exp
        and node.inputs[0].type.ndim > 0
        and node.inputs[0].type.dtype == "float64"
    ):
        return [vector_exp(node.inputs[0])]
    return None
