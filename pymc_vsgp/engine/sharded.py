"""The sum over the data on several devices of JAX.

Rows live on their device and never move. An evaluation sends parameters and inducing values out,
and adds up the values and gradients of the devices: some M^2 numbers, however many rows there are.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytensor

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_vsgp.checks import known_value
from pymc_vsgp.engine.streaming import BlockSum, block_sums

__all__ = ["AXIS", "ShardedSum", "on_devices"]

AXIS = "rows"


class ShardedSum(BlockSum):
    """A `BlockSum` whose rows are spread over a mesh of devices."""

    def __init__(self, *args, mesh: Any, **kwargs):
        super().__init__(*args, **kwargs)
        self.mesh = mesh

    @property
    def settings(self):
        """What makes it differ from another one with the same graph."""
        return (*super().settings, self.mesh)


def on_devices(outputs: Sequence[Variable], devices: Sequence[Any]) -> list[Variable]:
    """Let the loops over the data in graphs run on these devices.

    The graphs are those of values and gradients of sums: gradients are taken before.
    """
    import jax

    # It turns on 64 bits, without which the data would lose digits.
    import_module("pytensor.link.jax.dispatch")
    mesh = jax.make_mesh((len(devices),), (AXIS,), devices=devices)
    placed: dict[Variable, Variable] = {}
    swaps: dict[Variable, Variable] = {}
    for node in block_sums(*outputs):
        op = node.op
        if any(p.conditional.whole for p in op.recipe.parts):
            raise NotImplementedError(
                "Data on a grid are worked on at once, so they do not spread over devices. "
                "Pass block_size to gp.likelihood, or drop devices."
            )
        rows = [
            placed.setdefault(x, _placed(x, i == 0, mesh))
            for i, x in enumerate(node.inputs[: op.n_rows])
        ]
        inner = op.fgraph.unfreeze()
        new = ShardedSum(
            list(inner.inputs),
            list(inner.outputs),
            mesh=mesh,
            n_rows=op.n_rows,
            n_sums=op.n_sums,
            shapes=op.shapes,
            rules=op.rules,
            block_size=op.block_size,
            width=op.width,
            on_unused_input="ignore",
        )(*rows, *node.inputs[op.n_rows :], return_list=True)
        n = len(np.asarray(known_value(node.inputs[1])))
        for i, (old, x) in enumerate(zip(node.outputs, new, strict=True)):
            swaps[old] = x if i < op.n_sums else x[:n]
    return graph_replace(list(outputs), swaps, strict=False)


def _placed(x: Variable, is_weights: bool, mesh) -> Variable:
    """Return data with each row on its device; rows that fill up the last one have no weight."""
    import jax

    from jax.sharding import NamedSharding, PartitionSpec

    value = known_value(x)
    if value is None:
        raise NotImplementedError(
            "Inputs, observations or parameters of a row depend on random variables, so they "
            "change place with every evaluation. Drop devices."
        )
    n, size = len(value), -(-len(value) // mesh.size)

    def part(index):
        at = np.arange(*index[0].indices(size * mesh.size))
        found = np.array(value[np.minimum(at, n - 1)])
        return np.where(at < n, found, 0.0) if is_weights else found

    shape = (size * mesh.size, *value.shape[1:])
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    rows = jax.make_array_from_callback(shape, sharding, part)
    if rows.dtype != value.dtype:
        raise RuntimeError(
            f"JAX made {rows.dtype} of {value.dtype}. "
            "Call jax.config.update('jax_enable_x64', True) first."
        )
    shared = pytensor.shared(np.zeros((0,) * value.ndim, value.dtype), name=x.name)
    # Past the filter of the type, which would bring the rows back to the host.
    shared.container.storage[0] = rows
    return shared
