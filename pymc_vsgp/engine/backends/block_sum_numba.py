"""The loop over blocks of rows, for numba.

The loop is compiled on its own, as a C function, and the log density calls it by its address. As a
function of the same module it would be optimised again at each of the four levels of calls that
PyTensor puts around it, which took longer than everything else together.
"""

from hashlib import sha256
from uuid import uuid4
from weakref import WeakValueDictionary

import llvmlite.binding
import numba
import numpy as np

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)

from pymc_vsgp.engine.streaming import BlockSum, automatic_block
from pymc_vsgp.ops.backends.linalg_numba import keep

VERSION = 2  # of the code below, for the cache of compiled functions

# The compiled loops, by symbol, for as long as there is a function that calls them.
_LOOPS: WeakValueDictionary = WeakValueDictionary()


_automatic_block = numba_njit(automatic_block)


@intrinsic
def _pointer(typingctx, address):
    """Return an address as a pointer."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), codegen


@register_funcify_and_cache_key(BlockSum)
def numba_funcify_block_sum(op, node=None, ofg_memo=None, **kwargs):
    """Compile the block and the loop, and return a function that hands them addresses."""
    block, block_key = numba_funcify_and_cache_key(op.fgraph, fgraph_name="block")
    key = None
    if block_key is not None:
        key = sha256(repr((VERSION, block_key, op.settings)).encode()).hexdigest()
    # Where there is no key, a name that no other loop ever has: numba links by name.
    symbol = f"pymc_vsgp_block_sum_{key or uuid4().hex}"
    compiled = _LOOPS.get(symbol)
    if compiled is None:
        names = {**globals(), "np": np, "numba": numba, "block": block}
        loop = compile_numba_function_src(
            _loop_source(op, node), "loop", names, cache_key=key and f"{key}_loop"
        )
        signature = types.void(types.CPointer(types.intp))  # type: ignore[attr-defined]
        compiled = numba.cfunc(signature, cache=key is not None, nopython=True)(loop)
        llvmlite.binding.add_symbol(symbol, compiled.address)
        _LOOPS[symbol] = compiled
    call = compile_numba_function_src(
        _call_source(op, node),
        "block_sum",
        {
            **globals(),
            "np": np,
            "keep": keep,
            "compiled": compiled,  # its address must outlive the function
            "loop": types.ExternalFunction(symbol, types.void(types.intp)),
        },
    )
    return numba_njit(call), key


def _call_source(op, node):
    """Allocate the outputs, and write down where everything is."""
    args = [f"x{i}" for i in range(len(node.inputs))]
    lines = [f"def block_sum({', '.join(args)}):", "n = x0.shape[0]"]
    lines += [f"x{i} = np.ascontiguousarray(x{i})" for i, x in enumerate(node.inputs) if x.ndim]
    widths = [f"x{i}.shape[0]" for i in range(op.n_rows, len(args)) if node.inputs[i].ndim]
    widest = op.width or f"max(({', '.join(widths)}, 1, 1))"
    step = op.block_size or f"_automatic_block({widest})"
    for i, (output, like) in enumerate(zip(node.outputs, op.shapes, strict=True)):
        shape = "()" if output.ndim == 0 else f"x{like}.shape"
        lines.append(f"y{i} = np.full({shape}, np.nan)")
    entries = ["n", str(step)]
    for i, x in enumerate(node.inputs):
        entries += [f"x{i}.ctypes.data", *(f"x{i}.shape[{d}]" for d in range(x.ndim))]
    entries += [f"y{i}.ctypes.data" for i in range(len(node.outputs))]
    lines.append(f"table = np.array([{', '.join(entries)}], dtype=np.intp)")
    lines.append("loop(table.ctypes.data)")
    arrays = [f"x{i}" for i, x in enumerate(node.inputs) if x.ndim]
    lines.append(f"keep(table, {', '.join(arrays)})")
    outputs = ", ".join(f"y{i}" for i in range(len(node.outputs)))
    lines.append(f"return {outputs}")
    return "\n    ".join(lines)


def _loop_source(op, node):
    """Read the table, and call the block for each stretch of rows."""
    names, at = [], 2
    head = ["n, step = table[0], table[1]"]
    shapes = {}
    for i, x in enumerate(node.inputs):
        shapes[i] = tuple(f"table[{at + 1 + d}]" for d in range(x.ndim))
        head.append(_array(f"x{i}", at, shapes[i], x.dtype))
        names.append(f"x{i}[start:stop]" if i < op.n_rows else f"x{i}")
        at += 1 + x.ndim
    body = []
    for i, (output, like) in enumerate(zip(node.outputs, op.shapes, strict=True)):
        shape = () if output.ndim == 0 else shapes[like]
        head.append(_array(f"y{i}", at, shape, "float64"))
        at += 1
        if i >= op.n_sums:
            body.append(f"y{i}[start:stop] = b{i}")
        else:
            head.append(f"y{i}[...] = 0.0" if output.ndim else f"y{i}[()] = 0.0")
            body.append(f"y{i} += b{i}" if output.ndim else f"y{i}[()] += b{i}[()]")
    results = ", ".join(f"b{i}" for i in range(len(node.outputs)))
    head += ["start = 0", "while True:"]
    loop = ["stop = min(start + step, n)", f"{results}, = block({', '.join(names)})", *body]
    loop += ["start = stop", "if start >= n:", "    break"]
    return "\n    ".join(["def loop(table):", *head, *(f"    {line}" for line in loop)])


def _array(name, at, shape, dtype):
    shape = f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"
    return f"{name} = numba.carray(_pointer(table[{at}]), {shape}, np.{dtype})"
