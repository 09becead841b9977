"""The loop over blocks of rows, for JAX."""

import jax
import jax.numpy as jnp

from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.raise_op import CheckAndRaise

from pymc_vsgp.ops.rows import UNEQUAL, Rows

# Bytes of one M x B buffer. XLA splits large products over cores, and each turn of a loop costs it
# time, so its blocks are larger than those of other backends.
BLOCK_BYTES = {"cpu": 2_000_000, "gpu": 2_000_000_000}
SMALLEST_BLOCK = 256


@jax_funcify.register(Rows)
def jax_funcify_rows(op, node=None, **kwargs):
    """Loop over blocks; JAX takes no gradient of them that PyTensor has not taken."""
    kwargs.pop("storage_map", None)
    block = jax_funcify(without_checks(op.fgraph.unfreeze()), **kwargs)

    def rows(*inputs):
        arrays = [jnp.asarray(i) for i in inputs]
        with_rows, shared = arrays[: op.n_rows], arrays[op.n_rows :]
        step = op.block_size or automatic_block(op.width, shared)
        found = loop_over_blocks(block, with_rows, shared, op.n_sums, step)
        return found if len(found) > 1 else found[0]

    return rows


def without_checks(fgraph: FunctionGraph) -> FunctionGraph:
    """Leave out checks of sizes; JAX would, too, and warn of each."""
    for node in fgraph.toposort():
        if isinstance(node.op, CheckAndRaise):
            fgraph.replace(node.outputs[0], node.inputs[0])
    return fgraph


def loop_over_blocks(block, rows, shared, n_sums, step):
    """Add up the first outputs of `block` over blocks of rows, and join the others."""
    n = rows[0].shape[0]
    # JAX would leave out, or repeat, rows that others lack.
    if any(r.shape[0] != n for r in rows):
        raise ValueError(UNEQUAL)
    if n <= step:
        return block(*rows, *shared)
    count = n // step
    whole = [jnp.reshape(r[: count * step], (count, step, *r.shape[1:])) for r in rows]

    def turn(sums, some):
        outputs = block(*some, *shared)
        added = tuple(s + o for s, o in zip(sums, outputs[:n_sums], strict=True))
        return added, tuple(outputs[n_sums:])

    if n > count * step:
        outputs = block(*(r[count * step :] for r in rows), *shared)
        sums, last = tuple(outputs[:n_sums]), outputs[n_sums:]
    else:
        shapes = jax.eval_shape(lambda *some: block(*some, *shared), *(w[0] for w in whole))
        sums, last = tuple(jnp.zeros(s.shape, s.dtype) for s in shapes[:n_sums]), None
    sums, parts = jax.lax.scan(turn, sums, tuple(whole))
    parts = [jnp.reshape(p, (count * step, *p.shape[2:])) for p in parts]
    if last is not None:
        parts = [jnp.concatenate([p, q]) for p, q in zip(parts, last, strict=True)]
    return (*sums, *parts)


def automatic_block(width, shared, at_once=1):
    """Rows in a block: `width` is that of an M x B buffer, by default the largest of `shared`.

    There are `at_once` of these buffers.
    """
    n_inducing = width or max((s.shape[0] for s in shared if s.ndim), default=1)
    limit = BLOCK_BYTES.get(jax.default_backend(), BLOCK_BYTES["gpu"])
    return max(limit // (8 * n_inducing * at_once), SMALLEST_BLOCK)
