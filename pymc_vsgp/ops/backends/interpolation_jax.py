"""`FromGrid` and `ToGrid` for JAX. Import only where JAX is in use."""

import jax.numpy as jnp

from pymc_vsgp.ops.window import WIDTH, window_coefficients

__all__ = ["from_grid", "to_grid"]


def window(place, n):
    """Places of the grid around each place, and their weights."""
    first = jnp.ceil(place - WIDTH / 2)
    z = 2.0 * (first - place + WIDTH / 2) - 1.0
    highest, *others = window_coefficients()
    weights = jnp.broadcast_to(highest, (len(place), WIDTH))
    for row in others:
        weights = weights * z[:, None] + row
    at = jnp.mod(first, n).astype(int)[:, None] + jnp.arange(WIDTH)
    # An index that is not a number would be one of the grid's all the same.
    return jnp.where(at >= n, at - n, at), jnp.where(jnp.isfinite(place)[:, None], weights, jnp.nan)


def from_grid(places, values):
    """Values at places, for one or two inputs."""
    at, w = window(places[:, 0], values.shape[0])
    if values.ndim == 1:
        return jnp.sum(values[at] * w, axis=1)
    at2, w2 = window(places[:, 1], values.shape[1])
    rows = [jnp.sum(values[at[:, a, None], at2] * w2, axis=1) * w[:, a] for a in range(WIDTH)]
    return sum(rows[1:], rows[0])


def to_grid(places, values, shape):
    """Sums on the grid, for one or two inputs."""
    at, w = window(places[:, 0], shape[0])
    w = w * values[:, None]
    out = jnp.zeros(shape)
    if len(shape) == 1:
        return out.at[at].add(w)
    at2, w2 = window(places[:, 1], shape[1])
    for a in range(WIDTH):
        out = out.at[at[:, a, None], at2].add(w[:, a, None] * w2)
    return out
