"""A check before draws, for JAX."""

from pytensor.link.jax.dispatch import jax_funcify

from pymc_vsgp.engine.pointwise import Drawable


@jax_funcify.register(Drawable)
def jax_funcify_drawable(op, **kwargs):
    """Leave the check out, as JAX leaves out all, but without a warning."""
    return lambda mu, *conditions: mu
