"""How to compile."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor

from pymc.model.core import Model
from pymc.pytensorf import compile as compile_pymc
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable

__all__ = ["ONCE", "at_points", "evaluate", "function"]

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
