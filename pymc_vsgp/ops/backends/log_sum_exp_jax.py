"""`ExpectedLogSumExp` for JAX. Import only where JAX is in use."""

import jax
import jax.numpy as jnp
import numpy as np

from jax.scipy.special import ndtr

from pymc_vsgp.ops.backends.robust_max_jax import bell, with_gradients
from pymc_vsgp.ops.gumbel import LEFT, MEAN, MIXTURE, N_POINTS, REACH, RIGHT, TINY


def _log_sum_exp(mu, gamma):
    if mu.shape != gamma.shape:
        raise ValueError("mu and gamma must have one shape.")
    weights, centers, widths = (jnp.asarray(x) for x in np.array(MIXTURE))
    sd2 = REACH**2 * jnp.maximum(gamma, TINY)
    left = jnp.max(mu - jnp.sqrt(LEFT**2 + sd2), axis=1)
    right = jnp.max(mu + jnp.sqrt(RIGHT**2 + sd2), axis=1)
    step = (right - left) / N_POINTS
    scale = 1.0 / jnp.sqrt(widths**2 + gamma[..., None])

    def body(n, sums):
        x = left + (n + 0.5) * step
        z = ((x[:, None] - mu)[..., None] - centers) * scale
        cdf = jnp.sum(weights * ndtr(z), axis=-1)
        slope = weights * bell(z) * scale
        # A product of them without one: no factor is zero where the product counts.
        below = jnp.prod(cdf, axis=1)
        others = jnp.where(below[:, None] > 0.0, below[:, None] / jnp.maximum(cdf, 1e-300), 0.0)
        dmu, dgamma = slope.sum(axis=-1), jnp.sum(slope * z * scale, axis=-1) / 2.0
        return sums[0] + below, sums[1] + others * dmu, sums[2] + others * dgamma

    zeros = (jnp.zeros(len(mu)), jnp.zeros_like(mu), jnp.zeros_like(mu))
    below, dmu, dgamma = jax.lax.fori_loop(0, N_POINTS, body, zeros)
    return right - step * below - MEAN, step[:, None] * dmu, step[:, None] * dgamma


log_sum_exp = with_gradients(_log_sum_exp, "ExpectedLogSumExp")
"""Return the expectation and its gradients; see `ExpectedLogSumExp`."""
