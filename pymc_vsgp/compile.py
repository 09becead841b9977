"""How to compile."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.model.core import Model
from pymc.pytensorf import compile as compile_pymc
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

__all__ = ["ONCE", "at_points", "evaluate", "function", "numpy_only"]

ONCE = Mode(linker="py", optimizer="fast_compile")
"""For what is evaluated some hundred times: compiling for speed would take longer than all that."""


def function(inputs: Sequence[Variable], outputs: Any, mode: Any = ONCE, **kwargs) -> Any:
    """Return a function of variables, some of which may not be needed."""
    return compile_pymc(inputs, outputs, mode=mode, on_unused_input="ignore", **kwargs)


def evaluate(graphs: Any, values: Mapping[Variable, Any] | None = None) -> Any:
    """Evaluate graphs where variables have these values."""
    values = values or {}
    fn = pytensor.function(
        list(values),
        graphs,
        mode="FAST_COMPILE",
        on_unused_input="ignore",
        allow_input_downcast=True,
    )
    found = fn(*values.values())
    return [np.asarray(x) for x in found] if isinstance(found, list) else np.asarray(found)


def at_points(model: Model, graphs: Sequence[Variable], points: Sequence[Mapping]) -> list:
    """Evaluate graphs of random variables of a model at unconstrained points, one after another."""
    inputs = [v for v in model.value_vars if v.name in points[0]]
    fn = function(inputs, model.replace_rvs_by_values(graphs), "FAST_COMPILE")
    return [[np.asarray(x) for x in fn(*(point[v.name] for v in inputs))] for point in points]


def numpy_only(outputs: Sequence[Variable]) -> list[Variable]:
    """Write what numpy has no loop for with what it has."""
    fgraph = FunctionGraph(outputs=list(outputs), clone=False)
    for node in fgraph.toposort():
        if not isinstance(node.op, Elemwise):
            continue
        kind = type(node.op.scalar_op).__name__
        zero = np.zeros((1,) * node.outputs[0].type.ndim)
        if kind == "Softplus":
            (x,) = node.inputs
            new = pt.maximum(x, zero) + pt.log1p(pt.exp(-pt.abs(x)))
        elif kind == "NotNegative":
            new = pt.maximum(node.inputs[0], zero)
        else:
            continue
        fgraph.replace(node.outputs[0], new, import_missing=True)
    return list(fgraph.outputs)
