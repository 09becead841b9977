"""`Runs` for JAX. Import only where JAX is in use."""

import jax.numpy as jnp

__all__ = ["every_row"]


def every_row(X):
    """Return the numbers of the rows, twice."""
    at = jnp.arange(X.shape[0])
    return at, at
