"""How to compile."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor

from pymc.model.core import Model
from pymc.pytensorf import compile as compile_pymc
from pymc.pytensorf import pregrad_inner_graphs
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.rewriting.utils import rewrite_graph

__all__ = ["ONCE", "SEARCHES", "at_points", "evaluate", "function", "simplify", "simplify_block"]

SEARCHES = (
    "cholesky_of_diag",
    "diagonal_solve_to_division",
    "dot_diag_to_elemwise",
    "orthogonal_dot_transpose_to_eye",
    "orthogonal_solve_to_transpose_matmul",
    "selection_dot_to_indexing",
    "useless_symmetric_transpose",
)
"""Rewrites that look for diagonal, orthogonal and symmetric matrices, which a kernel's are not."""

ONCE = Mode(linker="py", optimizer="fast_compile").excluding(*SEARCHES)
"""For what is evaluated some hundred times: compiling for speed would take longer than all that."""


def simplify(graph: Any) -> Any:
    """Do what PyMC does before it takes gradients, less what never pays here."""
    fgraph = FunctionGraph(outputs=graph if isinstance(graph, list) else [graph], clone=False)
    rewrite_graph(fgraph, include=("canonicalize", "stabilize"), exclude=SEARCHES)
    within = [n.op for n in fgraph.apply_nodes if isinstance(n.op, HasInnerGraph)]
    if not all(getattr(op, "is_simple", False) for op in within):
        pregrad_inner_graphs.rewrite(fgraph)
    return list(fgraph.outputs) if isinstance(graph, list) else fgraph.outputs[0]


def simplify_block(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> FunctionGraph:
    """Do to the graph of a block of rows, within an Op, what PyMC does to that of a log density."""
    inner = FunctionGraph(inputs, outputs, clone=False)
    # Equal nodes are merged first: left side by side, PyMC's pass would take one of them away.
    rewrite_graph(inner, include=("merge", "canonicalize", "stabilize"), exclude=SEARCHES)
    return inner


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
