r"""Expectations of functions of one normal variable, elementwise, that come with their gradients.

For numba and Python each is one loop that makes vector instructions, whatever model it is in; JAX
has a graph of its own Ops.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType, pullback
from pytensor.graph import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.ops.loop import Loop
from pymc_vsgp.ops.nodes import N_BEND, bend_nodes, of_one_shape, stack
from pymc_vsgp.ops.normal import inverse_mills, log_ndtr, ndtr

# log Phi has its singularities nearest to the real axis at CENTER +- i WIDTH.
CENTER, WIDTH = 1.9, 2.8
NONE = 1e-5  # a standard deviation that is as good as none
TINY = 1e-14  # variances below this are treated as this: log Phi bends on the scale of one

# softplus(f) = sum_i SHARES_i E[(f + x / SLOPES_i)^+], x ~ N(0, 1): ramps smoothed by Gaussians
# (Monahan and Stefanski's idea for the logistic). Largest error 6e-9, and no larger for any
# expectation.
SLOPES = np.array(
    [1.32532, 1.02565203, 0.80577439, 0.63338582, 0.49511586, 0.3855902, 0.30014767, 0.23162754]
)
SHARES = np.array(
    [0.00513077, 0.06584307, 0.21232932, 0.31556407, 0.26190918, 0.11658509, 0.02172314, 0.00091537]
)
SHARES = SHARES / SHARES.sum()
FAR_LEFT = -23.0  # 5 mu + 12.5 gamma, below which a series in exp(f) takes over


class Expectation(Loop):
    """``E[g(f)]`` for normal f, elementwise, with its derivatives.

    Takes the means and variances, of one shape. Returns the expectations, and their derivatives
    with respect to the means and to the variances. Entries that are not finite give nan.

    Parameters
    ----------
    loop : str
        What g is, by the name of the loop.
    """

    __props__ = ("loop",)
    module = "expectations"

    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def make_node(self, mu, gamma):
        """Return the node for two tensors of one shape."""
        mu, gamma = (pt.as_tensor(v).astype("float64") for v in (mu, gamma))
        return Apply(self, [mu, gamma], [mu.type() for _ in range(3)])

    def infer_shape(self, node, shapes):
        """Return the shape of the means, three times."""
        return shapes[:1] * 3

    def pullback(self, inputs, outputs, cotangents):
        """Scale the derivatives that were computed with the value."""
        g, *rest = cotangents
        if all(isinstance(c.type, DisconnectedType) for c in rest):
            return [g * d for d in outputs[1:]]
        pairs = zip(self.graph(*inputs), cotangents, strict=True)
        known = [(x, c) for x, c in pairs if not isinstance(c.type, DisconnectedType)]
        return pullback([x for x, _ in known], list(inputs), [c for _, c in known])

    def graph(self, mu, gamma):
        """Return the same without a loop."""
        return list(GRAPHS[self.loop](mu, gamma))


def expected_log_ndtr(mu, gamma) -> TensorVariable:
    """``E[log Phi(f)]`` for f ~ N(mu, gamma), by quadrature."""
    return _of("expected_log_ndtr", mu, gamma)


def expected_softplus(mu, gamma) -> TensorVariable:
    r"""``E[log(1 + exp(f))]`` for f ~ N(mu, gamma), by eight terms; right to 6e-9.

    .. math:: \sum_i p_i [\mu \Phi(a_i) + (d_i / s_i) \varphi(a_i)],
              \quad d_i = \sqrt{1 + s_i^2 \gamma}, \quad a_i = s_i \mu / d_i
    """
    return _of("expected_softplus", mu, gamma)


def _of(loop, mu, gamma):
    return Expectation(loop)(*of_one_shape(mu, gamma))[0]


def log_ndtr_graph(mu, gamma):
    """Return the expectation of `log_ndtr` and its derivatives, with one rule for all variances."""
    sd = pt.sqrt(pt.maximum(gamma, np.float64(TINY)))
    t, w = bend_nodes(mu, sd, CENTER, WIDTH, N_BEND, mu.type.ndim)
    f = mu + sd * t
    slope = w * inverse_mills(f)
    of_mu, of_gamma = slope.sum(axis=0), (slope * t).sum(axis=0) / (2.0 * sd)
    # Half of the second derivative in mu, without the difference of nodes.
    of_none = -of_mu * (mu + of_mu) / 2.0
    return (w * log_ndtr(f)).sum(axis=0), of_mu, pt.switch(sd > NONE, of_gamma, of_none)


def softplus_graph(mu, gamma):
    """Return the expectation of the softplus and its derivatives."""
    s, p = stack(SLOPES, mu.type.ndim), stack(SHARES, mu.type.ndim)
    d = pt.sqrt(1.0 + s**2 * gamma)
    a = s * mu / d
    below, density = p * ndtr(a), p * pt.exp(-(a**2) / 2.0) / np.sqrt(2.0 * np.pi)
    ramps = mu * below + d / s * density, below, s / d * density / 2.0
    # Far on the left log(1 + e^f) = e^f - e^2f / 2 + ..., where the ramps are wrong by more than
    # the value: a dispersion of 1e8, which multiplies it, would show. The error is below the next
    # term.
    left = 5.0 * mu + 12.5 * gamma < FAR_LEFT
    m, v = pt.switch(left, mu, np.float64(-30.0)), pt.switch(left, gamma, np.float64(0.0))
    k = stack(np.array([1.0, 2.0, 3.0, 4.0]), mu.type.ndim)
    terms = stack(np.array([1.0, -1.0, 1.0, -1.0]), mu.type.ndim) * pt.exp(k * m + k**2 / 2.0 * v)
    series = terms / k, terms, terms * k / 2.0
    return tuple(
        pt.switch(left, x.sum(axis=0), y.sum(axis=0)) for x, y in zip(series, ramps, strict=True)
    )


GRAPHS: dict[str, Callable] = {
    "expected_log_ndtr": log_ndtr_graph,
    "expected_softplus": softplus_graph,
}


@_vectorize_node.register(Expectation)
def _vectorize_elementwise(op, node, mu, gamma):
    """Take arrays of any shape."""
    return op.make_node(*of_one_shape(mu, gamma))
