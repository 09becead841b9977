"""The Ops of `precision` for JAX. Import only where JAX is in use.

Their gradients are here as in the Ops, as in `neighbors_jax`.
"""

import jax
import jax.numpy as jnp

from pymc_vsgp.ops.backends.neighbors_jax import gather, solve_back, solve_forth
from pymc_vsgp.ops.backends.precision_numba import STEPS, TOLERANCE


def pairs(near, neighbors, rank):
    """Rows and places of the entries of pairs of neighbors, and which of the pairs have one."""
    j, k = near[:, None], near[None, :]
    later = jnp.where(rank[j] > rank[k], j, k)
    at = neighbors[later] == jnp.where(rank[j] > rank[k], k, j)[..., None]
    known = at.any(axis=-1) & jnp.tri(len(near), k=-1, dtype=bool) & (j >= 0) & (k >= 0)
    return later, at.argmax(axis=-1), known


@jax.custom_vjp
def eliminate(weights, sd, precision, neighbors, order):
    """Eliminate one value after another, the last in the order first."""
    n = len(sd)
    weights, rank = jnp.where(neighbors >= 0, weights, 0.0), jnp.argsort(order)

    def step(r, state):
        C, t, more, off = state
        i = order[n - 1 - r]
        w = 1.0 / sd[i] ** 2
        d = w + jnp.maximum(more[i] + precision[i], 0.0)
        row = off[i] - weights[i] * w
        net = weights[i][:, None] * weights[i] * w - row[:, None] * row / d
        near = neighbors[i]
        later, at, known = pairs(near, neighbors, rank)
        off = off.at[later, at].add(jnp.where(known, net, 0.0))
        more = more.at[near].add(jnp.where(near >= 0, jnp.diagonal(net), 0.0))
        return C.at[i].set(-row / d), t.at[i].set(1.0 / jnp.sqrt(d)), more, off

    zeros = jnp.zeros_like(weights), jnp.zeros_like(sd)
    return jax.lax.fori_loop(0, n, step, (*zeros, *zeros[::-1]))[:2]


def eliminate_back(weights, sd, precision, neighbors, order, C, t, of_C, of_t):
    """Take adjoints back: the rows that others added to come first."""
    n, there = len(sd), neighbors >= 0
    weights, of_C = jnp.where(there, weights, 0.0), jnp.where(there, of_C, 0.0)
    rank = jnp.argsort(order)

    def step(r, state):
        of_weights, of_sd, of_more, of_off = state
        i = order[r]
        w, d, b, near = 1.0 / sd[i] ** 2, 1.0 / t[i] ** 2, weights[i], neighbors[i]
        row = -C[i] * d
        later, at, known = pairs(near, neighbors, rank)
        g = jnp.where(known, of_off[later, at], 0.0)
        g = g + g.T + jnp.diag(jnp.where(near >= 0, 2.0 * of_more[near], 0.0))
        of_row = -of_C[i] / d - g @ row / d
        of_d = -0.5 * of_t[i] * t[i] / d + of_C[i] @ row / d**2 + row @ g @ row / (2.0 * d**2)
        of_row = jnp.where(near >= 0, of_row, 0.0)
        of_w = b @ g @ b / 2.0 - of_row @ b + of_d
        return (
            of_weights.at[i].set(jnp.where(near >= 0, g @ b * w - of_row * w, 0.0)),
            of_sd.at[i].set(-2.0 * of_w * w / sd[i]),
            of_more.at[i].set(jnp.where(d >= w, of_d, 0.0)),
            of_off.at[i].set(of_row),
        )

    zeros = jnp.zeros_like(weights), jnp.zeros_like(sd)
    found = jax.lax.fori_loop(0, n, step, (*zeros, *zeros[::-1]))
    return *found[:2], found[2]


def _eliminated(weights, sd, precision, neighbors, order):
    found = eliminate(weights, sd, precision, neighbors, order)
    return found, (weights, sd, precision, neighbors, order, *found)


def _pull_factor(kept, cotangents):
    return *eliminate_back(*kept, *cotangents), None, None


eliminate.defvjp(_eliminated, _pull_factor)


@jax.custom_vjp
def conjugate(right, weights, sd, precision, C, t, neighbors, order):
    """Take steps of conjugate gradients, from what the incomplete factor says.

    Rounding ends what they can do for nearly singular matrices: the best of all steps counts.
    """
    weights = jnp.where(neighbors >= 0, weights, 0.0)

    def divided(x):
        return solve_forth(solve_back(x, C, neighbors, order) * t**2, C, neighbors, order)

    def times(w):
        e = (w - jnp.sum(weights * w[neighbors], axis=1)) / sd**2
        return precision * w + e - jnp.zeros_like(w).at[neighbors].add(weights * e[:, None])

    def pending(state):
        number, _, _, p, q, size, _, _ = state
        return (size > enough) & (jnp.sum(p * q) > 0.0) & (number < STEPS)

    def step(state):
        number, w, left, p, q, size, best, smallest = state
        length = size / jnp.sum(p * q)
        w, left = w + length * p, left - length * q
        z = divided(left)
        new = jnp.sum(left * z)
        p = z + (new / size) * p
        best = jnp.where(new < smallest, w, best)
        return number + 1, w, left, p, times(p), new, best, jnp.minimum(new, smallest)

    w = divided(right)
    left = right - times(w)
    z = divided(left)
    size, enough = jnp.sum(left * z), TOLERANCE**2 * jnp.sum(right * w)
    return jax.lax.while_loop(pending, step, (0, w, left, z, times(z), size, w, size))[-2]


def _solved(right, weights, sd, precision, C, t, neighbors, order):
    w = conjugate(right, weights, sd, precision, C, t, neighbors, order)
    return w, (w, weights, sd, precision, C, t, neighbors, order)


def _pull_solution(kept, g):
    w, weights, sd, precision, C, t, neighbors, order = kept
    z = conjugate(g, weights, sd, precision, C, t, neighbors, order)
    of_w, of_z = gather(w, neighbors), gather(z, neighbors)
    e, d = w - jnp.sum(weights * of_w, axis=1), z - jnp.sum(weights * of_z, axis=1)
    of_weights = (d[:, None] * of_w + e[:, None] * of_z) / sd[:, None] ** 2
    zeros = jnp.zeros_like(C), jnp.zeros_like(t)
    return z, of_weights, 2.0 * e * d / sd**3, -z * w, *zeros, None, None


conjugate.defvjp(_solved, _pull_solution)
