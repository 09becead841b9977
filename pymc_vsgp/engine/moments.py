r"""Moments of the function at data points, given the inducing values.

=====================================  ===========  ====================================
on paper                               in code      what
=====================================  ===========  ====================================
:math:`R R^\top = K_{uu} + j I`        ``R``        factor of the inducing covariance
:math:`v = R^{-1}(u - m(Z))`           ``v``        whitened inducing values
:math:`A = R^{-1} K_{uf}`              ``A``        M x N
:math:`\mu = m(X) + A^\top v`          ``mu``       mean of f given u
:math:`\gamma = k_{nn} - |A_n|^2`      ``gamma``    variance of f given u
=====================================  ===========  ====================================
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.ops.cholesky import factor
from pymc_vsgp.ops.distance import pass_gradients

__all__ = [
    "JITTER",
    "ConditionalMoments",
    "Kernel",
    "Moments",
    "as_op",
    "conditional_moments",
    "joint_moments",
    "prior_factor",
]

JITTER = 1e-8
"""Default jitter, as a fraction of the mean prior variance at the inducing inputs.

More blurs the posterior: with Xu = X by about N j k / (2 s^2) nats for noise of variance s^2. Less
lets the rounding of ill-conditioned kernels into the log density: with a noise of a hundredth of
the function, a step of 1e-6 in log lengthscale showed errors of 1e-5 at 1e-6, 1e-3 at 1e-8, and
0.2 nats at 1e-10. From 1e-12 on a Cholesky factor may fail, and the jitter would jump.
"""

# Rounding can take a residual variance that is zero slightly below it.
FLOOR = np.float64(1e-12)


class Moments(NamedTuple):
    """Mean and variance (or covariance) of f given u."""

    mu: TensorVariable
    gamma: TensorVariable


class Kernel(OpFromGraph):
    """What a process knows of a few inputs: ``[X, Xu, *theta] -> [Kuf, diag(Kff), mean]``.

    Of waves the mean and the kernel alone: ``[X, *theta] -> [mean]``, ``[X, Z, *theta] -> [K]``.
    """


class ConditionalMoments(OpFromGraph):
    """Moments at each input on its own: ``[X, Xu, R, v, *theta] -> [mu, gamma]``.

    An ordinary graph, inlined before compilation. It is a node of its own so that a log density
    can see what the moments are made of, and stream over the data instead of holding them. The
    process goes by the name of its inducing values, which a copy of the model keeps.
    """

    def __init__(self, *args, kernel: Kernel, process: str, **kwargs):
        super().__init__(*args, inline=True, **kwargs)
        self.kernel, self.process = kernel, process


def prior_factor(cov_func, Xu: TensorVariable, jitter: float) -> TensorVariable:
    """Return R, the Cholesky factor of the prior covariance at the inducing inputs."""
    z = Xu.type()
    Kuu = pass_gradients([cov_func(z)], [z])
    (K,) = graph_replace(Kuu, {z: Xu}, strict=False)
    R, _ = factor(K, jitter)
    return R


def conditional_moments(
    mean_at: Callable[[TensorVariable], TensorVariable], cov_func, X, Xu, R, v, process: str
) -> Moments:
    """Mean and variance of f at each row of `X`, given the whitened inducing values `v`.

    With a matrix v, one column for each of several functions with this kernel, mu has those
    columns too.
    """
    kernel, theta = _kernel(mean_at, cov_func, X, Xu)
    arguments = [X, Xu, R, v, *theta]
    inputs = [pt.tensor(dtype="float64", shape=(None, X.type.shape[1]))]
    inputs += [a.type() for a in arguments[1:]]
    _, moments = moments_of(kernel, *inputs)
    op = ConditionalMoments(inputs, list(moments), kernel=kernel, process=process)
    return Moments(*op(*arguments, return_list=True))


class Pieces(NamedTuple):
    """What the moments of a few inputs are computed from."""

    Kuf: TensorVariable
    A: TensorVariable
    prior: TensorVariable
    mean: TensorVariable
    explained: TensorVariable


def moments_of(kernel: Kernel, X, Xu, R, v, *theta) -> tuple[Pieces, Moments]:
    """Build the moments from a kernel."""
    Kuf, prior, mean = inline(kernel, X, Xu, *theta)
    A = solve_triangular(R, Kuf, lower=True, b_ndim=2)
    explained = pt.sum(A**2, axis=0)
    if v.type.ndim == 2:
        mean = mean[:, None]
    mu = mean + pt.dot(A.T, v)
    gamma = pt.maximum(prior - explained, FLOOR * prior)
    return Pieces(Kuf, A, prior, mean, explained), Moments(mu, gamma)


def joint_moments(mean_at, cov_func, X, Xu, R, v) -> Moments:
    """Mean and full covariance of f at the rows of `X`, given `v`."""
    A = solve_triangular(R, cov_func(Xu, X), lower=True, b_ndim=2)
    mean = mean_at(X) if v.type.ndim == 1 else mean_at(X)[:, None]
    return Moments(mean + pt.dot(A.T, v), cov_func(X) - pt.dot(A.T, A))


def inline(op: OpFromGraph, *arguments: Variable) -> list[TensorVariable]:
    """Return the outputs of `op` as a graph of its arguments."""
    inner = op.fgraph.unfreeze()
    return graph_replace(
        list(inner.outputs), dict(zip(inner.inputs, arguments, strict=True)), strict=False
    )


def frontier(outputs: list[Variable], inputs: list[Variable]) -> list[Variable]:
    """Return the variables, other than constants, that `outputs` need beside `inputs`.

    They are the last ones that do not depend on the inputs, so that nothing about them is computed
    again for each block of the data.
    """
    depends: set[Variable] = set(inputs)
    fixed: set[Variable] = set()
    found: dict[Variable, None] = {}

    def is_fixed(variable):
        return isinstance(variable, Constant) or variable in fixed

    for node in io_toposort([], outputs):
        if depends & set(node.inputs):
            depends.update(node.outputs)
            for i in node.inputs:
                if i not in depends and not is_fixed(i) and isinstance(i.type, TensorType):
                    found[i] = None
        elif all(is_fixed(i) for i in node.inputs):
            fixed.update(node.outputs)
    for output in outputs:
        if output not in depends and not is_fixed(output):
            found[output] = None
    return list(found)


def _kernel(mean_at, cov_func, X: TensorVariable, Xu: TensorVariable) -> tuple[Kernel, list]:
    """Return the kernel as an Op, and the parameters to call it with."""
    x, z = (pt.tensor(dtype="float64", shape=(None, a.type.shape[1])) for a in (X, Xu))
    # Some kernels of pm.gp give their diagonal in float32.
    outputs = [cov_func(z, x), cov_func(x, diag=True).astype("float64"), mean_at(x)]
    return as_op([x, z], pass_gradients(outputs, [x, z]))


def as_op(arguments, outputs) -> tuple[Kernel, list]:
    """Return the graph as an Op of its arguments and of everything else that it depends on."""
    theta = frontier(outputs, arguments)
    inputs = [t.type() for t in theta]
    if theta:
        outputs = graph_replace(outputs, dict(zip(theta, inputs, strict=True)), strict=False)
    return Kernel([*arguments, *inputs], outputs), theta
