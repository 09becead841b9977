"""The loop over blocks of rows on several devices: each has its rows, and sums are all-reduced."""

import jax
import jax.numpy as jnp
import numpy as np

from jax.sharding import PartitionSpec as P
from pytensor.link.jax.dispatch import jax_funcify

from pymc_vsgp.engine.backends.block_sum_jax import jax_funcify_block_sum
from pymc_vsgp.engine.sharded import APART, AXIS, ShardedSum


@jax_funcify.register(ShardedSum)
def jax_funcify_sharded_sum(op, node=None, **kwargs):
    """Run the loop on each device, over its own rows."""
    n_rows, n_sums, n_outputs = op.n_rows, op.n_sums, len(op.fgraph.outputs)
    loop = jax_funcify_block_sum(op, node=node, at_once=op.at_once or 1, **kwargs)

    def on_device(*inputs):
        outputs = loop(*inputs)
        value, *sums = jax.lax.psum(tuple(outputs[:n_sums]), AXIS)
        if op.mesh.is_multi_process:
            value += _zero_if_same(inputs[n_rows:])
        return (value, *sums, *outputs[n_sums:])

    def with_all_rows(*inputs):
        outputs = on_device(*inputs)
        joined = jax.lax.all_gather(tuple(outputs[n_sums:]), AXIS, tiled=True)
        return (*outputs[:n_sums], *joined)

    if op.at_once is not None:
        return with_all_rows

    def everywhere(*inputs):
        # Of a table of devices, the row that the caller has named; else all of it.
        here = AXIS in jax.sharding.get_abstract_mesh().axis_names
        spread = jax.shard_map(
            on_device,
            mesh=None if here else op.mesh,
            in_specs=tuple(P(AXIS) if i < n_rows else P() for i in range(len(op.fgraph.inputs))),
            out_specs=tuple(P() if i < n_sums else P(AXIS) for i in range(n_outputs)),
            # The gradients are outputs of the loop: none is taken through it.
            check_vma=False,
        )
        return spread(*inputs)

    return everywhere


def _zero_if_same(arrays):
    """Return zero where all devices have the same arrays; else raise an error.

    Processes that take decisions of their own would add up values at different parameters.
    """
    sums = jnp.stack([jnp.where(jnp.isfinite(x), x, 0.0).sum(dtype="float64") for x in arrays])
    same = (jax.lax.pmax(sums, AXIS) == jax.lax.pmin(sums, AXIS)).all()

    def check(same):
        if not np.all(same):
            raise RuntimeError(APART)
        return np.zeros(np.shape(same))

    result = jax.ShapeDtypeStruct((), "float64")
    return jax.lax.cond(
        same,
        lambda same: jnp.zeros(()),
        lambda same: jax.pure_callback(check, result, same, vmap_method="broadcast_all"),
        same,
    )
