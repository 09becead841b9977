"""Calls by address, for numba.

numba optimizes a function together with all that it calls, and again at each level of calls above
it: PyTensor has four, and nutpie two more, which it can't keep on disk. What is called by its
address is optimized once, and kept.
"""

from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from uuid import uuid4
from weakref import WeakValueDictionary

import llvmlite.binding
import numpy as np

from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from pytensor import config
from pytensor.compile.aliasing import insert_deepcopy
from pytensor.compile.io import In, Out
from pytensor.graph.basic import Apply, Constant, clone_get_equiv
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS, compile_numba_function_src
from pytensor.link.numba.dispatch import basic
from pytensor.link.numba.dispatch.basic import (
    get_numba_type,
    numba_funcify_and_cache_key,
    numba_funcify_ensure_cache,
    numba_njit,
    register_funcify_and_cache_key,
)
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.type import DenseTensorType

from pymc_vsgp.ops.backends.lazy_numba import compiled_once
from pymc_vsgp.ops.backends.linalg_numba import (
    InvertPanels,
    LeanDot,
    LeanSolve,
    PanelSolve,
)
from pymc_vsgp.ops.backends.sums_numba import sum_over_axis
from pymc_vsgp.ops.cholesky import SafeCholesky
from pymc_vsgp.ops.linalg import WeightedGram
from pymc_vsgp.ops.mapped import mapped_array

# Of these there are few, and all models have the same.
LinearAlgebra = LeanDot | LeanSolve | InvertPanels | PanelSolve | WeightedGram | SafeCholesky

VERSION = 2  # of the code below, for the cache of compiled functions

# What is compiled, by symbol, for as long as there is a function that calls it.
_COMPILED: WeakValueDictionary = WeakValueDictionary()
_FUNCTIONS: WeakValueDictionary = WeakValueDictionary()  # of Ops, by their keys


def by_address(function, inputs, name: str, known_by, layout: str = "C"):
    """Compile a Python function of these variables, as contiguous arrays by default.

    Returns a function that calls it, and a key of it, where `known_by` is not None but something
    that tells the function from all others: what is compiled is kept on disk under that.
    """
    arguments = tuple(get_numba_type(x.type, layout=layout) for x in inputs)
    key = None
    if known_by is not None:
        # With types: PyTensor's keys leave these to numba, which does not see them in a symbol.
        known = (VERSION, name, known_by, arguments, config.numba__fastmath)
        key = sha256(repr(known).encode()).hexdigest()
    # Where there is no key, a name that no other function ever has: numba links by name.
    symbol = f"pymc_vsgp_{name}_{key or uuid4().hex}"
    compiled = _COMPILED.get(symbol)
    if compiled is None:
        if key is not None:
            CACHED_SRC_FUNCTIONS[function] = f"{key}_{name}"
            # That of a graph is a temporary file, whose name would be part of the key.
            function.__code__ = function.__code__.replace(co_filename="<string>")
        compiled = numba_njit(function, cache=key is not None)
        with compiled_once():
            compiled.compile(arguments)
        result = compiled.overloads[arguments]
        address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
        llvmlite.binding.add_symbol(symbol, address)
        _COMPILED[symbol] = compiled
    names = [f"x{i}" for i in range(len(inputs))]
    given = [
        f"np.ascontiguousarray({x})" if v.ndim and layout == "C" else x
        for x, v in zip(names, inputs, strict=True)
    ]
    result = compiled.overloads[arguments].signature.return_type
    # A node returns no tuple of one.
    first = "[0]" if getattr(result, "count", 0) == 1 else ""
    call = compile_numba_function_src(
        f"def call_{name}({', '.join(names)}): return call({_tuple(given)}){first}",
        f"call_{name}",
        {
            **globals(),
            "np": np,
            "call": _caller(symbol, compiled.overloads[arguments].signature),
            "compiled": compiled,  # its address must outlive the function
        },
    )
    return numba_njit(call), key


def _tuple(given: list[str]) -> str:
    """Write a tuple, which may be empty."""
    return f"({', '.join(given)},)" if given else "()"


def _caller(symbol: str, signature):
    """Return a function of a tuple that calls what the symbol stands for, as numba itself would."""
    result, expected = signature.return_type, signature.args

    def generate(context, builder, _, args):
        values = cgutils.unpack_tuple(builder, args[0])
        kind = context.call_conv.get_function_type(result, expected)
        target = cgutils.get_or_insert_function(builder.module, kind, symbol)
        status, value = context.call_conv.call_function(builder, target, result, expected, values)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return value

    @intrinsic
    def call(typingctx, args):
        # Constants are read-only, which makes no difference to their layout in memory.
        for have, want in zip(args, expected, strict=True):
            # Of any layout is any array; and one number has all of them.
            layout = want.layout if want.layout == "A" or not want.ndim else have.layout
            if have.copy(readonly=False, layout=layout) != want:
                raise TypingError(f"{symbol} takes {want}, and got {have}")
        return result(args), generate

    return call


class Linked(Op):
    """A whole graph, as one function that is called by its address."""

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph

    def __setstate__(self, state):
        """Register our Ops with numba: the graph of an unpickled function is not rewritten."""
        self.__dict__.update(state)
        import_module("pymc_vsgp.engine.backends").register_with(NumbaLinker())

    def make_node(self, *inputs):
        """Return the node for the inputs of the graph."""
        return Apply(self, list(inputs), [x.type() for x in self.fgraph.outputs])

    def perform(self, node, inputs, outputs):
        """Numba compiles it."""
        raise NotImplementedError("Linked is for numba.")


@register_funcify_and_cache_key(Linked)
def numba_funcify_linked(op, node=None, **kwargs):
    """Compile the graph, and return a function that calls it."""
    with few_functions():
        graph, key = numba_funcify_and_cache_key(op.fgraph, **kwargs)
    return by_address(graph.py_func, node.inputs, "linked", key)


@contextmanager
def few_functions():
    """Let PyTensor write no function around each Op, to keep it on disk: all is kept together."""
    known = basic.numba_funcify_ensure_cache
    if known is not numba_funcify_ensure_cache:
        yield
        return
    basic.numba_funcify_ensure_cache = _function_of
    try:
        yield
    finally:
        basic.numba_funcify_ensure_cache = known


def _function_of(op, *args, **kwargs):
    """Return the function of an Op, and a key of it."""
    if not config.numba__cache:
        return numba_funcify_ensure_cache(op, *args, **kwargs)
    function, key = numba_funcify_and_cache_key(op, *args, **kwargs)
    node = kwargs.get("node")
    if key is None or node is None:
        return function, key
    # One function for all nodes that have the same; a key leaves the arguments to numba.
    arguments = tuple(
        (type(x.type), getattr(x.type, "dtype", None), getattr(x.type, "ndim", 0))
        for x in node.inputs
    )
    function = _FUNCTIONS.setdefault((key, arguments, config.numba__fastmath), function)
    if not isinstance(op, LinearAlgebra):
        return function, key
    name = type(op).__name__
    names = ", ".join(f"x{i}" for i in range(len(node.inputs)))
    hoisted = compile_numba_function_src(
        f"def {name}({names}): return function({names})", name, {**globals(), "function": function}
    )
    return by_address(hoisted, node.inputs, name, key, layout="A")


def link(fgraph: FunctionGraph) -> None:
    """Make of a graph that is ready to compile one node, which its callers don't compile again."""
    ends = (*fgraph.inputs, *fgraph.outputs)
    # None: the graph within an Op. Not empty: what a function updates may be in its own memory.
    if fgraph.update_mapping != {} or not all(isinstance(x.type, DenseTensorType) for x in ends):
        return
    # Numbers come in as arguments: what is compiled serves other data.
    data = dict.fromkeys(x for node in fgraph.toposort() for x in node.inputs if _is_data(x))
    memo = {x: x.type() for x in data}
    # An input that is an output stays one: in its place the node would be its own input.
    outputs = [x for x in dict.fromkeys(fgraph.outputs) if x.owner is not None]
    clone_get_equiv(fgraph.inputs, outputs, memo=memo)
    inputs = [*fgraph.inputs, *data]
    inner = FunctionGraph([memo[x] for x in inputs], [memo[x] for x in outputs], clone=False)
    for node in inner.toposort():
        total = sum_over_axis(node)
        if total is not None:
            inner.replace(node.outputs[0], total)
    inner.attach_feature(DestroyHandler())  # whose order of nodes is the right one
    insert_deepcopy(inner, [In(x) for x in inner.inputs], [Out(x) for x in inner.outputs])
    node = Linked(inner).make_node(*inputs)
    pairs = list(zip(outputs, node.outputs, strict=True))
    fgraph.replace_all(pairs, reason="link")


def _is_data(x):
    """Whether this is an array of numbers, not one of places or shapes."""
    known = isinstance(x, Constant) or mapped_array(x) is not None
    # A constant may be None, which stands for an array in a file.
    return known and getattr(x.type, "ndim", 0) and x.type.dtype == "float64"
