"""`SafeCholesky` for JAX. Import only where JAX is in use."""

from functools import partial

import jax
import jax.numpy as jnp

from jax.scipy.linalg import solve_triangular


def shifted(K, level):
    """K with the jitter `level` on its diagonal."""
    return K + level * jnp.mean(jnp.diagonal(K)) * jnp.eye(K.shape[0], dtype=K.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def safe_cholesky(K, jitter, first_step, largest):
    """Return L and the jitter added; see `SafeCholesky`."""
    eye = jnp.eye(K.shape[0], dtype=K.dtype)

    def attempt(level):
        L = jnp.linalg.cholesky(shifted(K, level), symmetrize_input=False)
        return L, level, jnp.all(jnp.isfinite(jnp.diagonal(L)))

    def pending(state):
        _, level, done = state
        return ~done & (level <= largest)

    def climb(state):
        _, level, _ = state
        level = jnp.maximum(10.0 * level, first_step)
        # Above the largest level nothing is tried: the loop ends there.
        return jax.lax.cond(level <= largest, attempt, lambda at: (eye, at, False), level)

    # A jitter that is given above the largest level is tried as well.
    start = attempt(jnp.asarray(jitter, dtype=K.dtype))
    L, level, done = jax.lax.while_loop(pending, climb, start)
    done = done & jnp.isfinite(level) & jnp.all(jnp.isfinite(K))
    return jnp.where(done, jnp.tril(L), eye), jnp.where(done, level, jnp.inf)


@safe_cholesky.defjvp
def _safe_cholesky_jvp(first_step, largest, primals, tangents):
    K, jitter = primals
    dK, djitter = tangents
    L, added = safe_cholesky(K, jitter, first_step, largest)
    failed = jnp.isinf(added)
    dA = shifted(dK, jnp.where(failed, 0.0, added))
    # Only a jitter that was enough as it was given is a function of its input.
    scale = jnp.where(added == jitter, jnp.mean(jnp.diagonal(K)), 0.0)
    dA = dA + djitter * scale * jnp.eye(K.shape[0], dtype=K.dtype)
    # As in LAPACK, the upper triangle of K is not looked at.
    dA = jnp.tril(dA) + jnp.tril(dA, -1).T
    half = solve_triangular(L, dA, lower=True)
    S = solve_triangular(L, half.T, lower=True)
    dL = L @ (jnp.tril(S) - jnp.diag(jnp.diagonal(S) / 2.0))
    return (L, added), (jnp.where(failed, 0.0, dL), jnp.zeros_like(added))
