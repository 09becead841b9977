"""Logarithms of distribution functions that stay finite, with finite slopes, in the tails.

PyMC writes the log of a survival function as ``log(1 - exp(logcdf))``. That is the log of 0 where
the distribution function rounds to 1, as it does a few scales from the data. Of two branches PyMC
takes one, and far away the other one overflows: its slope is nan.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.dist_math import betaln, log_diff_normal_cdf, normal_lccdf, normal_lcdf
from pymc.logprob.utils import CheckParameterValue
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter, walking_rewriter
from pytensor.scalar import basic, math
from pytensor.tensor.basic import Alloc, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise

from pymc_vsgp.ops.normal import log_diff_ndtr, log_ndtr

TINY = np.float64(-575.0)
"""Logarithm of nearly the least number. Below it the first terms of a continued fraction are right
to 1e-7, for a and b up to 1,000. With more of them slopes have more terms than NumPy adds up."""


class ByShape(basic.ScalarOp):
    """Slopes of incomplete functions by their shapes, from finite differences.

    Those of PyTensor are of a series, term by term: they take thousands of times as long as the
    function where nothing is compiled, minutes to compile in numba, and JAX has none.
    """

    def pullback(self, inputs, outputs, grads):
        *shapes, x = inputs
        by_shape = [outputs[0] * self._relative(inputs, i) for i in range(len(shapes))]
        return [grads[0] * slope for slope in (*by_shape, self._by_x(*shapes, x))]

    def _by_x(self, *inputs):
        raise NotImplementedError

    def _relative(self, inputs, i):
        shape = inputs[i]
        # As a share of the standard deviation, on whose scale a slope is right to 1e-10 then:
        # both the rest of Taylor's series and what the function rounds to are small.
        step = 1e-3 * shape / basic.sqrt(1.0 + shape)

        def over(k):
            above, below = (self(*inputs[:i], shape + s * step, *inputs[i + 1 :]) for s in (k, -k))
            return basic.log(above / below)

        return (8.0 * over(1.0) - over(2.0)) / (12.0 * step)


class GammaInc(ByShape, math.GammaInc):
    """The regularized lower incomplete gamma function."""

    def _by_x(self, a, x):
        return basic.exp((a - 1.0) * basic.log(x) - x - math.gammaln(a))


class GammaIncC(ByShape, math.GammaIncC):
    """The regularized upper incomplete gamma function."""

    def _by_x(self, a, x):
        return -basic.exp((a - 1.0) * basic.log(x) - x - math.gammaln(a))


class BetaInc(ByShape, math.BetaInc):
    """The regularized incomplete beta function."""

    def _by_x(self, a, b, x):
        log_density = (a - 1.0) * basic.log(x) + (b - 1.0) * basic.log1p(-x) - math.betaln(a, b)
        return basic.exp(log_density)


gammainc = Elemwise(GammaInc(basic.upgrade_to_float, name="gammainc"))
gammaincc = Elemwise(GammaIncC(basic.upgrade_to_float, name="gammaincc"))
betainc = Elemwise(BetaInc(basic.upgrade_to_float_no_complex, name="betainc"))


def log_gammainc(a, x):
    """Log of the regularized lower incomplete gamma function."""
    constant = pt.gammaln(a + 1)

    def lead(x):
        return a * pt.log(x) - x - constant

    far, x, near = _halves(x, x < a, lead(x), a / 2, a)
    t = a + 1 + x / (a + 2)  # Gauss's, of Kummer's function
    return pt.switch(far, lead(x) - pt.log1p(-x / t), pt.log(gammainc(a, near)))


def log_gammaincc(a, x):
    """Log of the regularized upper incomplete gamma function."""
    constant = pt.gammaln(a)

    def lead(x):
        return a * pt.log(x) - x - constant

    far, x, near = _halves(x, x > a, lead(x), a + 1, a)
    t = x + 1 - a - (1 - a) / (x + 3 - a)  # Legendre's
    return pt.switch(far, lead(x) - pt.log(t), pt.log(gammaincc(a, near)))


def log_betainc(a, b, x):
    """Log of the regularized incomplete beta function."""
    a, b = (pt.switch(v > 0, v, 1) for v in (a, b))  # 0 in branches that PyMC does not take
    constant = pt.log(a) + betaln(a, b)

    def lead(x):
        return a * pt.log(x) + b * pt.log1p(-x) - constant

    middle = (a + 1) / (a + b + 2)
    far, x, near = _halves(x, x < middle, lead(x), middle / 2, middle)
    t = 1 - (a + b) * x / (a + 1) / (1 + (b - 1) * x / ((a + 1) * (a + 2)))  # Gauss's
    near = pt.minimum(near, np.nextafter(1.0, 0.0))  # the slope at 1 may be nan
    return pt.switch(far, lead(x) - pt.log(t), pt.log(betainc(a, b, near)))


FUNCTIONS: dict[type, tuple[Callable, Callable]] = {
    math.GammaInc: (log_gammainc, log_gammaincc),
    math.GammaIncC: (log_gammaincc, log_gammainc),
    math.BetaInc: (log_betainc, lambda a, b, x: log_betainc(b, a, _rest(x))),
}
"""Logarithms of each, and of what it lacks to 1."""


def _halves(x, left, lead, *harmless):
    """Return where the function is tiny, and what each branch sees: only what it is good for."""
    # Without a gradient, which would be 0 times infinity.
    lead, low, high = (disconnected_grad(pt.as_tensor(v)) for v in (lead, *harmless))
    far = pt.and_(left, lead < TINY)
    return far, pt.switch(far, x, low), pt.switch(far, high, x)


def with_finite_slopes(var):
    """Return a graph whose distribution functions are finite, with finite slopes, in the tails."""
    graph = FunctionGraph(outputs=[var], clone=False)
    # Of the rest first: it is of what the others would change. What is new has no need of either.
    rewriters = local_log_of_rest, local_log_of_tails
    walking_rewriter("out_to_in", *rewriters, ignore_newtrees=True).rewrite(graph)
    return graph.outputs[0]


@node_rewriter([Elemwise])
def local_log_of_rest(fgraph, node):
    """Write ``log(1 - exp(x))``, and the log of a difference, without what rounds to 0 or 1."""
    if of := _operands(node.outputs[0], math.Log1mexp):
        rest = _log_of_rest(of[0])
        return None if rest is None else [rest]
    # The log of exp(a) - exp(b) is a + log1mexp(b - a).
    a, *added = _operands(node.outputs[0], basic.Add) or [None]
    of = added and _operands(added[0], math.Log1mexp)
    diff = of and _operands(of[0], basic.Sub)
    if not diff or diff[1] is not a:
        return None
    rests = [_log_of_rest(x) for x in diff]
    if any(r is None for r in rests):
        return None
    right = diff[0] > np.log(0.5)  # there the survival function has the digits
    larger, smaller = (pt.switch(right, r, x) for r, x in zip(rests, diff[::-1], strict=True))
    return [larger + pt.log1mexp(smaller - larger)]


def _log_of_rest(x):
    """Return ``log(1 - exp(x))`` of the log of a distribution function, or None of what is none."""
    if (limit := _constant(x)) is not None:
        return {0.0: pt.constant(-np.inf), -np.inf: pt.constant(0.0)}.get(limit)
    op = x.owner and x.owner.op
    if isinstance(op, CheckParameterValue | Alloc):
        rest = _log_of_rest(x.owner.inputs[0])
        return None if rest is None else op(rest, *x.owner.inputs[1:])
    if (z := _normal(x)) is not None:
        return log_ndtr(-z)
    if of := _operands(x, basic.Switch):
        rests = [_log_of_rest(branch) for branch in of[1:]]
        return None if any(r is None for r in rests) else pt.switch(of[0], *rests)
    if of := _operands(x, math.Log1mexp):
        return of[0]
    if (of := _operands(x, basic.Neg)) and (of := _operands(of[0], math.Softplus)):
        return -pt.softplus(-of[0])
    if (of := _operands(x, basic.Log1p)) and (of := _operands(of[0], basic.Neg)):
        return pt.log(of[0])
    if not (of := _operands(x, basic.Log)):
        return None
    if (diff := _operands(of[0], basic.Sub)) and _constant(diff[0]) == 1.0:
        return pt.log(diff[1])
    for op, (_, log_of_rest) in FUNCTIONS.items():
        if found := _operands(of[0], op):
            return log_of_rest(*found)
    return None


def _rest(p):
    """Return ``1 - p`` with the digits that it has where p is nearly 1."""
    if of := _operands(p, math.Sigmoid):
        return pt.sigmoid(-of[0])
    of = _operands(p, basic.Sub)
    return of[1] if of and _constant(of[0]) == 1.0 else 1.0 - p


def _constant(x):
    """Return the number that all entries are, or None."""
    value = get_underlying_scalar_constant_value(x, raise_not_constant=False)
    return None if isinstance(value, Variable) else float(value)


@node_rewriter([Elemwise])
def local_log_of_tails(fgraph, node):
    """Write logarithms of distribution functions as those of this module."""
    out = node.outputs[0]
    if (z := _normal(out)) is not None:
        return [log_ndtr(z)]
    if of := _operands(out, basic.Log):
        for op, (log, _) in FUNCTIONS.items():
            if found := _operands(of[0], op):
                return [log(*found)]
        return None
    # Of a normal difference: a logarithm of 1/2, and a branch of three, of limits over a root of 2.
    if (added := _operands(out, basic.Add)) is None or (low := _compared(added[-1])) is None:
        return None
    if (high := _compared(added[-1].owner.inputs[2])) is None:
        return None
    limits = [(z := _operands(x, basic.TrueDiv)) and _standardized(z[0]) for x in (high, low)]
    if None in limits:
        return None
    (mu, sigma, high), (_, _, low) = limits
    if equal_computations([out], [log_diff_normal_cdf(mu, sigma, high, low)]):
        return [log_diff_ndtr(mu, sigma, high, low)]
    return None


def _normal(x):
    """Return z where x is PyMC's log of the normal distribution function of z."""
    if (z := _compared(x)) is None or (found := _standardized(z)) is None:
        return None
    for function, out in ((normal_lcdf, z), (normal_lccdf, -z)):
        if equal_computations([x], [function(*found)]):
            return out
    return None


def _compared(x):
    """Return the variable that chooses the branch of a switch."""
    branches = _operands(x, basic.Switch)
    limits = branches and _operands(branches[0], basic.LT | basic.GT)
    return limits and limits[0]


def _standardized(z):
    """Return mu, sigma and x of ``(x - mu) / sigma``."""
    ratio = _operands(z, basic.TrueDiv)
    diff = ratio and _operands(ratio[0], basic.Sub)
    return diff and (diff[1], ratio[1], diff[0])


def _operands(x, op):
    """Return what an elementwise operation is of, or None where it is another."""
    scalar_op = x.owner and getattr(x.owner.op, "scalar_op", None)
    return x.owner.inputs if isinstance(scalar_op, op) else None
