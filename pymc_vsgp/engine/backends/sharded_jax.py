"""The loop over blocks of rows on several devices: each has its rows, and sums are all-reduced."""

from functools import partial

import jax

from jax.sharding import PartitionSpec as P
from pytensor.link.jax.dispatch import jax_funcify

from pymc_vsgp.engine.backends.block_sum_jax import jax_funcify_block_sum
from pymc_vsgp.engine.sharded import AXIS, ShardedSum


@jax_funcify.register(ShardedSum)
def jax_funcify_sharded_sum(op, node=None, **kwargs):
    """Run the loop on each device, over its own rows."""
    n_rows, n_sums, n_outputs = op.n_rows, op.n_sums, len(op.fgraph.outputs)
    loop = jax_funcify_block_sum(op, node=node, **kwargs)

    @partial(
        jax.shard_map,
        mesh=op.mesh,
        in_specs=tuple(P(AXIS) if i < n_rows else P() for i in range(len(op.fgraph.inputs))),
        out_specs=tuple(P() if i < n_sums else P(AXIS) for i in range(n_outputs)),
        # The gradients are outputs of the loop: none is taken through it.
        check_vma=False,
    )
    def sharded(*inputs):
        outputs = loop(*inputs)
        sums = jax.lax.psum(tuple(outputs[:n_sums]), AXIS)
        return (*sums, *outputs[n_sums:])

    return sharded
