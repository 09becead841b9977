"""How to compile."""

import gc
import operator
import threading

from collections.abc import Mapping, Sequence
from contextlib import ContextDecorator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.model.core import Model
from pymc.pytensorf import compile as compile_pymc
from pymc.pytensorf import pregrad_inner_graphs
from pytensor import config
from pytensor.compile.builders import SymbolicOp
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise

__all__ = [
    "ONCE",
    "SEARCHES",
    "at_points",
    "building",
    "check_precision",
    "evaluate",
    "function",
    "simplify",
    "simplify_block",
]

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


def check_precision() -> None:
    """Raise where PyTensor makes variables in single precision."""
    if config.floatX != "float64":
        raise ValueError(
            f"pytensor.config.floatX is {config.floatX!r}, in which kernel matrices lose "
            "positive definiteness. Set it to 'float64' before you build the model."
        )


@node_rewriter([SymbolicOp, Blockwise])
def without_symbolic(fgraph, node):
    """Write an Op that is a graph as that graph: within it PyTensor would run a C compiler."""
    op = getattr(node.op, "core_op", node.op)
    if not isinstance(op, SymbolicOp):
        return None
    inner = op.fgraph.unfreeze()
    return vectorize_graph(inner.outputs, dict(zip(inner.inputs, node.inputs, strict=True)))


optdb.register("without_symbolic", dfs_rewriter(without_symbolic), position=48.6)


@node_rewriter([Elemwise])
def constants_in_double(fgraph, node):
    """Compute what is made of constants in double precision: kernels divide 1 by a lengthscale."""
    inputs = [_in_double(x) for x in node.inputs]
    if node.outputs[0].type.dtype != "float64" or all(map(operator.is_, inputs, node.inputs)):
        return None
    return node.op.make_node(*inputs).outputs


def _in_double(x: Variable) -> Variable:
    if x.type.dtype != "float32" or x.owner is None:
        return x
    if isinstance(x.owner.op, Alloc):  # whose shape stays whole numbers
        value, *shape = x.owner.inputs
        found = _in_double(value)
        return x if found is value else pt.alloc(found, *shape)
    leaves = list(graph_inputs([x]))
    ops = [v.owner.op for v in ancestors([x]) if v.owner is not None]
    if not (
        all(isinstance(leaf, Constant) for leaf in leaves)
        and all(isinstance(op, Elemwise | DimShuffle) for op in ops)
    ):
        return x
    double = {leaf: pt.constant(leaf.data.astype("float64")) for leaf in leaves}
    try:
        found = clone_replace(x, double, rebuild_strict=False)
    except TypeError:  # of bits, which numbers in double precision lack
        return x
    # What is cast to single precision stays: it would be replaced again without end.
    return found if found.type.dtype == "float64" else x


optdb.register("constants_in_double", dfs_rewriter(constants_in_double), position=0.5)

# For BLAS PyTensor would ask a C compiler what to link to.
ONCE = Mode(linker="py", optimizer="fast_compile")
# What makes graphs alike takes longer than it saves: `simplify` has done it before gradients.
ONCE = ONCE.excluding("canonicalize", *SEARCHES, "BlasOpt")
ONCE = ONCE.including("without_symbolic", "constants_in_double", "filled", "sum_of_products")
"""For what is evaluated some hundred times: compiling for speed would take longer than all that."""


class _Building(ContextDecorator):
    """Context in which graphs are built and compiled, without what takes a quarter of that time.

    Nearly all of a graph stays, so Python need not look for garbage: each search goes through all
    that PyTensor and numba hold. Nor need PyTensor note the lines that made each variable: they
    are lines of this package.
    """

    def __init__(self):
        self.lock, self.users, self.enabled, self.limit = threading.Lock(), 0, False, 0

    def __enter__(self):
        with self.lock:
            if not self.users:
                self.enabled, self.limit = gc.isenabled(), config.traceback__limit
                gc.disable()
                config.traceback__limit = 0
            self.users += 1

    def __exit__(self, *error):
        with self.lock:
            self.users -= 1
            if not self.users:
                config.traceback__limit = self.limit
                if self.enabled:
                    gc.enable()


building = _Building()


@building
def simplify(graph: Any) -> Any:
    """Do what PyMC does before it takes gradients, less what never pays here."""
    fgraph = FunctionGraph(outputs=graph if isinstance(graph, list) else [graph], clone=False)
    # With the shapes that are known, for more of the graph may be vectorized over points then. A
    # parameter out of bounds is one point without density, and not an error of all of them.
    first = ("ShapeOpt", "constants_in_double", "local_check_parameter_to_ninf_switch")
    rewrite_graph(fgraph, include=(*first, "canonicalize", "stabilize"), exclude=SEARCHES)
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


@building
def function(inputs: Sequence[Variable], outputs: Any, mode: Any = ONCE, **kwargs) -> Any:
    """Return a function of variables, some of which may not be needed."""
    return compile_pymc(inputs, outputs, mode=mode, on_unused_input="ignore", **kwargs)


def evaluate(graphs: Any, values: Mapping[Variable, Any] | None = None) -> Any:
    """Evaluate graphs where variables have these values."""
    values = values or {}
    # With canonicalization: without it a random variable is drawn for its shape.
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
    fn = function(inputs, model.replace_rvs_by_values(graphs))
    return [[np.asarray(x) for x in fn(*(point[v.name] for v in inputs))] for point in points]
