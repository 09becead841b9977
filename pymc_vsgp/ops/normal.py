"""The logarithm of the normal distribution function, and its slope."""

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.dist_math import log_diff_normal_cdf, normal_lccdf, normal_lcdf
from pytensor.compile.mode import optdb
from pytensor.graph.basic import equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, get_active_mode, node_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import GT, LT, Add, Sub, Switch, TrueDiv, UnaryScalarOp, upgrade_to_float
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


def with_finite_slopes(var):
    """Return a graph in which normal distribution functions of PyMC have finite slopes.

    PyMC takes one of two branches. Far away the other one overflows, and its slope is nan.
    """
    graph = FunctionGraph(outputs=[var], clone=False)
    dfs_rewriter(local_normal_functions_of_pymc).rewrite(graph)
    return graph.outputs[0]


@node_rewriter([Elemwise])
def local_normal_functions_of_pymc(fgraph, node):
    """Write logarithms of normal distribution functions as `log_ndtr`."""
    out = node.outputs[0]
    if (z := _compared(out)) is not None and (found := _standardized(z)) is not None:
        mu, sigma, x = found
        if equal_computations([out], [normal_lcdf(mu, sigma, x)]):
            return [log_ndtr(z)]
        if equal_computations([out], [normal_lccdf(mu, sigma, x)]):
            return [log_ndtr(-z)]
    # Of a difference: a logarithm of 1/2, and a branch of three, of limits over a root of 2.
    if (added := _operands(out, Add)) is None or (low := _compared(added[-1])) is None:
        return None
    if (high := _compared(added[-1].owner.inputs[2])) is None:
        return None
    limits = [(z := _operands(x, TrueDiv)) and _standardized(z[0]) for x in (high, low)]
    if None in limits:
        return None
    (mu, sigma, high), (_, _, low) = limits
    if equal_computations([out], [log_diff_normal_cdf(mu, sigma, high, low)]):
        return [log_diff_ndtr(mu, sigma, high, low)]
    return None


def _compared(x):
    """Return the variable that chooses the branch of a switch."""
    branches = _operands(x, Switch)
    limits = branches and _operands(branches[0], LT | GT)
    return limits and limits[0]


def _standardized(z):
    """Return mu, sigma and x of ``(x - mu) / sigma``."""
    ratio = _operands(z, TrueDiv)
    diff = ratio and _operands(ratio[0], Sub)
    return diff and (diff[1], ratio[1], diff[0])


def _operands(x, op):
    """Return what an elementwise operation is of, or None where it is another."""
    scalar_op = x.owner and getattr(x.owner.op, "scalar_op", None)
    return x.owner.inputs if isinstance(scalar_op, op) else None


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
