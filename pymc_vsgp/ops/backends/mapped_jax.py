"""Arrays in files, for JAX."""

import jax.numpy as jnp

from pytensor.link.jax.dispatch import jax_funcify

from pymc_vsgp.ops.mapped import Mapped


@jax_funcify.register(Mapped)
def jax_funcify_mapped(op, **kwargs):
    """Return the array, which JAX copies to its device once."""
    data = jnp.asarray(op.data)
    return lambda token: data
