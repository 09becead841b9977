"""The loop over blocks of rows, for numba, called by its address."""

import numpy as np

from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)

from pymc_vsgp.ops.backends.linked_numba import by_address
from pymc_vsgp.ops.rows import UNEQUAL, Rows, automatic_block

VERSION = 7  # of the code below, for the cache of compiled functions


@register_funcify_and_cache_key(Rows)
def numba_funcify_rows(op, node=None, ofg_memo=None, **kwargs):
    """Compile the block and the loop, and return a function that calls it."""
    block, key = numba_funcify_and_cache_key(op.fgraph, fgraph_name="block")
    names = {**globals(), "np": np, "block": block, "automatic_block": numba_njit(automatic_block)}
    loop = compile_numba_function_src(_source(op, node), "rows", names)
    known_by = None if key is None else (VERSION, key, op.settings)
    return by_address(loop, node.inputs, "rows", known_by)


def _source(op, node):
    """Call the block for each stretch of rows."""
    args = [f"x{i}" for i in range(len(node.inputs))]
    widths = [f"x{i}.shape[0]" for i in range(op.n_rows, len(args)) if node.inputs[i].ndim]
    widest = op.width or f"max(({', '.join(widths)}, 1, 1))"
    at = "start:stop" if op.order is None else "at"
    rows = [f"{x}[{at}]" if i < op.n_rows else x for i, x in enumerate(args)]
    repeats = 1
    if op.order is not None:
        repeats, rows[op.order.input] = op.order.repeats, "at"
    results = [f"b{i}" for i in range(len(node.outputs))]
    lines = [f"def rows({', '.join(args)}):", "n, start = x0.shape[0], 0"]
    lines.append(f"step = {op.block_size or f'automatic_block({widest} // {repeats})'}")
    # Numba takes what there is of a slice, and says nothing.
    others = [i for i in range(1, op.n_rows) if op.order is None or i != op.order.input]
    if unequal := " or ".join(f"len({args[i]}) != n" for i in others):
        lines += [f"if {unequal}:", f"    raise ValueError({UNEQUAL!r})"]
    body = ["stop = min(start + step, n)"]
    if op.order is not None:
        order = args[op.order.input]
        lines.append(f"order = {order} if len({order}) == n else np.arange(n)")
        body.append("at = order[start:stop]")
    body.append(f"{', '.join(results)}, = block({', '.join(rows)})")
    for i, output in enumerate(node.outputs):
        if i >= op.n_sums:
            body += ["if start == 0:", f"    y{i} = np.empty((n,) + b{i}.shape[1:], b{i}.dtype)"]
            if op.order is None:
                body.append(f"y{i}[start:stop] = b{i}")
            else:
                body += ["for j in range(stop - start):", f"    y{i}[at[j]] = b{i}[j]"]
            continue
        add = f"y{i} += b{i}" if output.ndim else f"y{i}[()] += b{i}[()]"
        body += ["if start == 0:", f"    y{i} = b{i}.copy()", "else:", f"    {add}"]
    body += ["start = stop", "if start >= n:", "    break"]
    lines += ["while True:", *(f"    {line}" for line in body)]
    outputs = ", ".join(f"y{i}" for i in range(len(node.outputs)))
    return "\n    ".join([*lines, f"return ({outputs},)"])
