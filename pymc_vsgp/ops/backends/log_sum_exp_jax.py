"""`ExpectedLogSumExp` for JAX. Import only where JAX is in use."""

import jax
import jax.numpy as jnp
import numpy as np

from jax.scipy.special import ndtr

from pymc_vsgp.ops.backends.robust_max_jax import bell, with_gradients
from pymc_vsgp.ops.gumbel import (
    LEFT,
    MEAN,
    MIXTURE,
    MOST_POINTS,
    N_POINTS,
    REACH,
    RIGHT,
    RULES,
    STEP,
    TINY,
)
from pymc_vsgp.ops.log_sum_exp import SERIES

LIMIT = max(RULES)


def _of_mixture(x, gamma):
    """Return P(f + G < x + E f) and its derivatives in x and in the variance of f."""
    weights, centers, widths = (jnp.asarray(x) for x in np.array(MIXTURE))
    scale = 1.0 / jnp.sqrt(widths**2 + gamma[..., None])
    z = (x[..., None] - centers) * scale
    slope = weights * bell(z) * scale
    parts = weights * ndtr(z), slope, -slope * z * scale / 2.0
    return tuple(jnp.sum(p, axis=-1) for p in parts)


def _of_nodes(x, gamma):
    """Return the same for variances up to `LIMIT`."""
    nodes, weights = (jnp.asarray(x) for x in RULES[LIMIT])
    sd = jnp.sqrt(jnp.clip(gamma, TINY, LIMIT))
    t = jnp.exp(sd[..., None] * nodes - x[..., None])
    p = weights * jnp.exp(-t)
    # Where exp(-t) is zero, t may be infinite.
    slope = jnp.where(p > 0.0, p * t, 0.0)
    parts = p, slope, jnp.where(p > 0.0, slope * (t - 1.0), 0.0) / 2.0
    return tuple(jnp.sum(p, axis=-1) for p in parts)


def _of_both(x, gamma):
    small, any_ = _of_nodes(x, gamma), _of_mixture(x, gamma)
    return tuple(jnp.where(gamma <= LIMIT, a, b) for a, b in zip(small, any_, strict=True))


def _series(mu, gamma):
    p = jax.nn.softmax(mu)
    a, b, squares, with_a, with_b, cubes = (
        (gamma**power * sum(c * p**n for n, c in enumerate(of_p, 1))).sum(axis=1)
        for power, of_p in (
            (1, (1.0,)),
            (1, (0.0, 1.0)),
            (2, (1.0, -6.0, 8.0)),
            (2, (-3.0, 36.0, -72.0)),
            (2, (6.0, -108.0, 288.0)),
            (3, (1.0, -28.0, 136.0, -192.0)),
        )
    )
    second = 4.0 * a * b - a**2 - 6.0 * b**2 + squares
    third = 2.0 * a**3 - 18.0 * a**2 * b + 72.0 * a * b**2 - 120.0 * b**3
    third += a * with_a + b * with_b + cubes
    value = jax.nn.logsumexp(mu, axis=1) + (a - b) / 2.0 + second / 8.0 + third / 48.0
    return value.sum(), value


def _by_series(mu, gamma):
    gradients, value = jax.grad(_series, argnums=(0, 1), has_aux=True)(mu, gamma)
    return value, *gradients


def _by_integral(mu, gamma):
    sd2 = REACH**2 * jnp.maximum(gamma, TINY)
    left = jnp.max(mu - jnp.sqrt(LEFT**2 + sd2), axis=1)
    right = jnp.max(mu + jnp.sqrt(RIGHT**2 + sd2), axis=1)
    widest = jnp.nan_to_num(jnp.max(right - left), posinf=0.0)
    n_points = jnp.clip(jnp.ceil(widest / STEP), N_POINTS, MOST_POINTS).astype(int)
    step = (right - left) / n_points
    all_small = jnp.all(gamma <= LIMIT)

    def body(n, sums):
        x = (left + (n + 0.5) * step)[:, None] - mu
        cdf, dmu, dgamma = jax.lax.cond(all_small, _of_nodes, _of_both, x, gamma)
        # A product of them without one: no factor is zero where the product counts.
        below = jnp.prod(cdf, axis=1)
        others = jnp.where(below[:, None] > 0.0, below[:, None] / jnp.maximum(cdf, 1e-300), 0.0)
        return sums[0] + below, sums[1] + others * dmu, sums[2] - others * dgamma

    zeros = (jnp.zeros(len(mu)), jnp.zeros_like(mu), jnp.zeros_like(mu))
    below, dmu, dgamma = jax.lax.fori_loop(0, n_points, body, zeros)
    return right - step * below - MEAN, step[:, None] * dmu, step[:, None] * dgamma


def _by_both(mu, gamma):
    small = jnp.all(gamma <= SERIES, axis=1)
    series, integral = _by_series(mu, gamma), _by_integral(mu, gamma)
    pairs = zip(series, integral, strict=True)
    return tuple(jnp.where(small.reshape((-1,) + (1,) * (a.ndim - 1)), a, b) for a, b in pairs)


def _log_sum_exp(mu, gamma):
    if mu.shape != gamma.shape:
        raise ValueError("mu and gamma must have one shape.")
    return jax.lax.cond(jnp.all(gamma <= SERIES), _by_series, _by_both, mu, gamma)


log_sum_exp = with_gradients(_log_sum_exp, "ExpectedLogSumExp")
"""Return the expectation and its gradients; see `ExpectedLogSumExp`."""
