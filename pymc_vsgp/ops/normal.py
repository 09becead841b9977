"""The logarithm of the normal distribution function, and its slope."""

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import dfs_rewriter, get_active_mode, node_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import UnaryScalarOp, upgrade_to_float
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from scipy import special


class LogNdtr(UnaryScalarOp):
    """``log Phi(x)``, finite with a finite slope for every x."""

    nfunc_spec = ("scipy.special.log_ndtr", 1, 1)

    def impl(self, x):
        """Evaluate in Python."""
        return special.log_ndtr(x)

    def pullback(self, inputs, outputs, cotangents):
        """Scale the inverse Mills ratio."""
        return [cotangents[0] * inverse_mills.scalar_op(inputs[0])]


class InverseMills(UnaryScalarOp):
    """``phi(x) / Phi(x)``, the slope of `LogNdtr`."""

    def impl(self, x):
        """Evaluate in Python."""
        if x < 0.0:
            return np.sqrt(2.0 / np.pi) / special.erfcx(-x / np.sqrt(2.0))
        return np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi) / special.ndtr(x)

    def pullback(self, inputs, outputs, cotangents):
        """Return the slope ``-m (x + m)``."""
        m = outputs[0]
        return [-cotangents[0] * m * (inputs[0] + m)]


inverse_mills = Elemwise(InverseMills(upgrade_to_float, name="inverse_mills"))
log_ndtr = Elemwise(LogNdtr(upgrade_to_float, name="log_ndtr"))


def log_diff_ndtr(mu, sigma, high, low):
    """Log of the probability between two limits, with a finite slope for all of them."""
    if _always(high, np.inf):
        return log_ndtr((mu - low) / sigma)
    if _always(low, -np.inf):
        return log_ndtr((high - mu) / sigma)
    far = np.float64(1e50)  # stands for infinity, whose product with a slope of 0 is nan
    a, b = ((pt.clip(x, -far, far) - mu) / sigma for x in (high, low))
    right = a + b > 0.0  # there the right tail has what the left one has elsewhere
    larger, smaller = (log_ndtr(pt.switch(right, -p, q)) for p, q in ((b, a), (a, b)))
    return larger + pt.log(-pt.expm1(smaller - larger))


def _always(x, value):
    return get_underlying_scalar_constant_value(x, raise_not_constant=False) == value


def ndtr(x):
    """Return the standard normal distribution function, accurate in the left tail."""
    return pt.erfc(-x / np.sqrt(2.0)) / 2.0


def inverse_mills_graph(x):
    """``phi(x) / Phi(x)`` in Ops that every backend has."""
    left, right = _halves(x)
    tail = np.sqrt(2.0 / np.pi) / pt.erfcx(-left / np.sqrt(2.0))
    ratio = pt.exp(-(right**2) / 2.0) / np.sqrt(2.0 * np.pi) / ndtr(right)
    return pt.switch(x < 0.0, tail, ratio)


def log_ndtr_graph(x):
    """``log Phi(x)`` in Ops that every backend has."""
    left, right = _halves(x)
    tail = pt.log(pt.erfcx(-left / np.sqrt(2.0)) / 2.0) - left**2 / 2.0
    return pt.switch(x < 0.0, tail, pt.log1p(-ndtr(-right)))


def _halves(x):
    """Return what each branch sees: only the arguments that it is good for."""
    zero = np.float64(0.0)
    return pt.minimum(x, zero), pt.maximum(x, zero)


@node_rewriter([Elemwise])
def local_normal_functions(fgraph, node):
    """Write both in Ops that the backend has. On numba each is one loop."""
    linker = getattr(get_active_mode(fgraph), "linker", None)
    if isinstance(node.op.scalar_op, InverseMills) and not isinstance(linker, NumbaLinker):
        return [inverse_mills_graph(node.inputs[0])]
    if isinstance(node.op.scalar_op, LogNdtr) and isinstance(linker, JAXLinker):
        return [log_ndtr_graph(node.inputs[0])]  # JAX's own is right to 1e-11
    return None


optdb.register(
    "normal_functions_of_pymc_vsgp",
    dfs_rewriter(local_normal_functions),
    "minimum_compile",
    "fast_compile",
    "fast_run",
    position=48.3,
)
