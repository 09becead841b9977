"""`FromGrid` and `ToGrid` for JAX. Import only where JAX is in use."""

import jax.numpy as jnp

from pymc_vsgp.ops.window import WIDTH, window_coefficients


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


def from_line(places, values):
    """Values at places on a circle."""
    at, w = window(places[:, 0], len(values))
    return jnp.sum(values[at] * w, axis=1)


def to_line(places, values, n):
    """Sums on a circle."""
    at, w = window(places[:, 0], n)
    return jnp.zeros(n).at[at].add(w * values[:, None])


def from_plane(places, values):
    """Values at places on a torus."""
    (at1, w1), (at2, w2) = (window(places[:, d], n) for d, n in enumerate(values.shape))
    rows = [jnp.sum(values[at1[:, a, None], at2] * w2, axis=1) * w1[:, a] for a in range(WIDTH)]
    return sum(rows[1:], rows[0])


def to_plane(places, values, n1, n2):
    """Sums on a torus."""
    (at1, w1), (at2, w2) = (window(places[:, d], n) for d, n in enumerate((n1, n2)))
    w1, out = w1 * values[:, None], jnp.zeros((n1, n2))
    for a in range(WIDTH):
        out = out.at[at1[:, a, None], at2].add(w1[:, a, None] * w2)
    return out
