"""Graphs of a kernel and a mean as Ops of their own, and what goes with them."""

from typing import NamedTuple

import numpy as np

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.shape import Reshape
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

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
    """What a process knows of a few inputs: ``[X, ..., *theta] -> [Kuf, diag(Kff), mean]``, say."""


def inline(op: OpFromGraph, *arguments: Variable) -> list[TensorVariable]:
    """Return the outputs of `op` as a graph of its arguments."""
    inputs = op.fgraph.inputs
    return op.fgraph.bind(
        [i.type.filter_variable(a) for i, a in zip(inputs, arguments, strict=True)]
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


def as_ops(*graphs) -> tuple[list[Kernel], list[Variable]]:
    """Return graphs as Ops of their arguments, and of everything else that any of them depends on.

    Each graph is its arguments and its outputs; what else there is comes behind its arguments.
    """
    arguments = [a for inputs, _ in graphs for a in inputs]
    theta = frontier([o for _, outputs in graphs for o in outputs], arguments)
    stand_ins = [t.type() for t in theta]
    ops = []
    for inputs, outputs in graphs:
        if theta:
            swaps = dict(zip(theta, stand_ins, strict=True))
            outputs = graph_replace(list(outputs), swaps, strict=False)
        ops.append(Kernel([*inputs, *stand_ins], list(outputs), on_unused_input="ignore"))
    return ops, theta


def without_reshapes(outputs: list[Variable], inputs: list[Variable]) -> list[Variable]:
    """Write vectors that kernels reshape to matrices with an axis of one, which batches keep."""
    swaps = {}
    for node in io_toposort(inputs, outputs):
        if isinstance(node.op, Reshape) and node.inputs[0].type.ndim == 1:
            vector, shape = node.inputs
            known = shape.data.tolist() if isinstance(shape, Constant) else None
            if known == [-1, 1]:
                swaps[node.outputs[0]] = vector[:, None]
            elif known == [1, -1]:
                swaps[node.outputs[0]] = vector[None, :]
    return graph_replace(outputs, swaps, strict=False) if swaps else outputs
