"""The Ops of `neighbors` for JAX. Import only where JAX is in use.

Samplers of JAX take its own gradients. It has none of loops that end when they are done, and those
of others hold what each step had, so gradients are here as in the Ops.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jax.scipy.linalg import cho_solve

from pymc_vsgp.ops.cholesky import FIRST_STEP, LARGEST


@jax.custom_vjp
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


def _solve_each_forth(C, c):
    b = solve_each(C, c)
    return b, (C, b)


def _solve_each_back(kept, g):
    C, b = kept
    z = solve_each(C, g)
    return -z[..., :, None] * b[..., None, :], z


solve_each.defvjp(_solve_each_forth, _solve_each_back)


def gather(w, neighbors):
    """Entries of a vector at the neighbors, zero where there is none."""
    return jnp.where(neighbors >= 0, w[neighbors], 0.0)


@jax.custom_vjp
def solve_forth(a, weights, neighbors, order):
    """Solve with the triangle: each row after its neighbors."""
    weights = jnp.where(neighbors >= 0, weights, 0.0)

    def step(r, w):
        i = order[r]
        return w.at[i].add(jnp.dot(weights[i], w[neighbors[i]]))

    return jax.lax.fori_loop(0, a.shape[0], step, jnp.asarray(a))


@jax.custom_vjp
def solve_back(a, weights, neighbors, order):
    """Solve with the transpose: each row before its neighbors."""
    weights = jnp.where(neighbors >= 0, weights, 0.0)
    n = a.shape[0]

    def step(r, w):
        i = order[n - 1 - r]
        return w.at[neighbors[i]].add(weights[i] * w[i])

    return jax.lax.fori_loop(0, n, step, jnp.asarray(a))


def _solved(solve):
    def forth(a, weights, neighbors, order):
        w = solve(a, weights, neighbors, order)
        return w, (w, weights, neighbors, order)

    return forth


def _pull_forth(kept, g):
    w, weights, neighbors, order = kept
    z = solve_back(g, weights, neighbors, order)
    return z, z[:, None] * gather(w, neighbors), None, None


def _pull_back(kept, g):
    w, weights, neighbors, order = kept
    z = solve_forth(g, weights, neighbors, order)
    return z, w[:, None] * gather(z, neighbors), None, None


solve_forth.defvjp(_solved(solve_forth), _pull_forth)
solve_back.defvjp(_solved(solve_back), _pull_back)


def call(search, shape, *inputs):
    """Let Python compute whole numbers, in an array of this shape."""
    result = jax.ShapeDtypeStruct(shape, jnp.int64)

    def on_numpy(*inputs):
        return search(*map(np.asarray, inputs))

    return jax.pure_callback(on_numpy, result, *inputs, vmap_method="sequential")
