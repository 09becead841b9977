"""The Ops of `neighbors` for JAX. Import only where JAX is in use."""

import jax
import jax.numpy as jnp
import numpy as np

from jax.scipy.linalg import cho_solve

from pymc_vsgp.ops.cholesky import FIRST_STEP, LARGEST


def solve_each(C, c):
    """Solutions of many small systems."""
    mean = jnp.mean(jnp.diagonal(C, axis1=-2, axis2=-1), axis=-1)
    eye = jnp.eye(C.shape[-1], dtype=C.dtype)

    def attempt(level):
        shift = (level * mean)[..., None, None] * eye
        return jnp.linalg.cholesky(C + shift, symmetrize_input=False)

    def failed(L):
        return ~jnp.all(jnp.isfinite(jnp.diagonal(L, axis1=-2, axis2=-1)), axis=-1)

    def pending(state):
        level, L = state
        return jnp.any(failed(L) & (level < LARGEST / 10.0))

    def climb(state):
        level, L = state
        bad = failed(L)
        level = jnp.where(bad, jnp.maximum(10.0 * level, FIRST_STEP), level)
        return level, jnp.where(bad[..., None, None], attempt(level), L)

    none = jnp.zeros(mean.shape, C.dtype)
    L = jax.lax.while_loop(pending, climb, (none, attempt(none)))[1]
    return cho_solve((L, True), c[..., None])[..., 0]


def solve_forth(a, weights, neighbors, order):
    """Solve with the triangle: each row after its neighbors."""
    weights = jnp.where(neighbors >= 0, weights, 0.0)

    def step(r, w):
        i = order[r]
        return w.at[i].add(jnp.dot(weights[i], w[neighbors[i]]))

    return jax.lax.fori_loop(0, a.shape[0], step, jnp.asarray(a))


def solve_back(a, weights, neighbors, order):
    """Solve with the transpose: each row before its neighbors."""
    weights = jnp.where(neighbors >= 0, weights, 0.0)
    n = a.shape[0]

    def step(r, w):
        i = order[n - 1 - r]
        return w.at[neighbors[i]].add(weights[i] * w[i])

    return jax.lax.fori_loop(0, n, step, jnp.asarray(a))


def call(search, shape, *inputs):
    """Let Python compute whole numbers, in an array of this shape."""
    result = jax.ShapeDtypeStruct(shape, jnp.int64)

    def on_numpy(*inputs):
        return search(*map(np.asarray, inputs))

    return jax.pure_callback(on_numpy, result, *inputs, vmap_method="sequential")
