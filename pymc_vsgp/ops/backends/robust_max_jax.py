"""`RobustMaxProbability` for JAX. Import only where JAX is in use.

The rules are those of the compiled loop, with one number of nodes for all rows: the trapezoid rule
with as many as the worst row needs, and panels in all rows where that would be more than panels
take.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import erf, ndtr

from pymc_vsgp.ops.backends.robust_max_numba import (
    BENDS,
    ENDS,
    LOWEST,
    NODES,
    REACH,
    STEP,
    WEIGHTS,
)

MOST = 256  # nodes of the trapezoid rule
AT_ONCE = 8  # nodes, of which a GPU takes some in the time of one, ...
LARGEST = 30_000_000  # ... where there is room: numbers of an array


def bell(t):
    """Density of N(0, 1)."""
    return jnp.exp(-(t**2) / 2.0) / np.sqrt(2.0 * np.pi)


def normal_cdf(u):
    """Distribution function of N(0, 1), to an absolute accuracy: half the time of `ndtr`."""
    return (1.0 + erf(u / np.sqrt(2.0))) / 2.0


def integrate(node, n_nodes, a, b, own):
    """Sum over nodes: the integral, and those of phi(u) and t phi(u) for each factor.

    `node` takes the numbers of some nodes, and returns the nodes and weights of all rows.
    """
    N, K = a.shape
    some = max(1, min(AT_ONCE, LARGEST // (N * K)))
    a, b, own = a.T[:, None], b.T[:, None], own.T[:, None]  # rows last: they are next to each other

    def body(i, sums):
        at = i * some + jnp.arange(some)
        t, w = node(at)
        w = jnp.where((at < n_nodes)[:, None], w, 0.0)
        u = a + b * t
        cdf, pdf = jnp.where(own, 1.0, normal_cdf(u)), jnp.where(own, 0.0, bell(u))
        before, after = [w * bell(t)], [jnp.ones_like(w)]
        for k in range(K):
            before.append(before[-1] * cdf[k])
            after.append(after[-1] * cdf[K - 1 - k])
        d = jnp.stack([before[k] * after[K - 1 - k] for k in range(K)]) * pdf
        found = (before[K].sum(axis=0), d.sum(axis=1), (d * t).sum(axis=1))
        return jax.tree.map(jnp.add, sums, found)

    nothing = (jnp.zeros(N), jnp.zeros((K, N)), jnp.zeros((K, N)))
    p, flat, tilted = jax.lax.fori_loop(0, -(-n_nodes // some), body, nothing)
    return p, flat.T, tilted.T


def panel_edges(lo, a, b, own):
    """Ends of the panels, sorted: where a factor bends, and around the bell of phi(t)."""
    N = len(lo)
    ends = jnp.broadcast_to(jnp.asarray([-REACH, *ENDS, REACH])[:, None], (len(ENDS) + 2, N))
    bends = (BENDS[:, None, None] - a.T) / jnp.where(own, 1.0, b).T
    edges = jnp.concatenate([ends, bends.reshape(-1, N)])
    return jnp.sort(jnp.clip(edges, lo, REACH), axis=0)


def two_classes(mu, gamma, own):
    """Closed form for two classes."""
    sign = jnp.where(own, 1.0, -1.0)
    var = jnp.maximum(jnp.sum(gamma, axis=1, keepdims=True), 1e-300)
    z = jnp.sum(sign * mu, axis=1, keepdims=True) / jnp.sqrt(var)
    dgamma = jnp.broadcast_to(-bell(z) * z / (2.0 * var), mu.shape)
    return ndtr(z[:, 0]), sign * bell(z) / jnp.sqrt(var), dgamma


def any_classes(mu, gamma, own):
    """Quadrature for any number of classes."""
    N, K = mu.shape
    gamma = jnp.maximum(gamma, 1e-14 * jnp.maximum(gamma.max(axis=1, keepdims=True), 1e-280))
    s = jnp.sqrt(gamma)
    mu_y = jnp.sum(jnp.where(own, mu, 0.0), axis=1, keepdims=True)
    s_y = jnp.sum(jnp.where(own, s, 0.0), axis=1, keepdims=True)
    a = jnp.where(own, 0.0, (mu_y - mu) / s)
    b = jnp.where(own, 0.0, s_y / s)
    lowest = jnp.where(own, -REACH, (LOWEST - a) / jnp.where(own, 1.0, b))
    lo = jnp.clip(lowest.max(axis=1), -REACH, REACH)
    # A factor that is 1 wherever the integrand counts needs no nodes.
    active = a - b * REACH <= -LOWEST
    step = STEP / jnp.sqrt(1.0 + jnp.sum(jnp.where(active, b, 0.0) ** 2, axis=1))
    # At least two nodes, also where the integrand vanishes in every row.
    n_even = jnp.ceil(jnp.max((REACH - lo) / step, initial=1.0)).astype(int) + 1
    fine = n_even <= MOST
    n_panels = len(BENDS) * K + len(ENDS) + 1
    # Sorting is worth leaving out; under vmap it is not left out, but the nodes still are.
    edges = jax.lax.cond(
        fine, lambda *args: jnp.zeros((n_panels + 1, N)), panel_edges, lo, a, b, own
    )
    center, half = (edges[1:] + edges[:-1]) / 2.0, (edges[1:] - edges[:-1]) / 2.0
    spacing = (REACH - lo) / (n_even - 1)
    x, w = jnp.asarray(NODES), jnp.asarray(WEIGHTS)

    def node(i):
        panel, k = i // len(NODES), i % len(NODES)
        t = lo + i[:, None] * spacing
        t = jnp.where(fine, t, center[panel] + half[panel] * x[k][:, None])
        return t, jnp.where(fine, spacing, half[panel] * w[k][:, None])

    n_nodes = jnp.where(fine, n_even, len(NODES) * n_panels)
    p, flat, tilted = integrate(node, n_nodes, a, b, own)
    slope = flat / s
    dmu = jnp.where(own, jnp.sum(slope, axis=1, keepdims=True), -slope)
    at_y = jnp.sum(tilted / s, axis=1, keepdims=True) / (2.0 * s_y)
    return p, dmu, jnp.where(own, at_y, -(a * flat + b * tilted) / (2.0 * gamma))


def with_gradients(integral, name, n_others=0):
    """Make a function that returns values and gradients in mu and gamma have those gradients."""
    function = jax.custom_vjp(integral)

    def forward(mu, gamma, *others):
        results = function(mu.value, gamma.value, *(x.value for x in others))
        return results, results[1:]

    def backward(residuals, cotangents):
        dmu, dgamma = residuals
        g, *rest = cotangents
        if not all(isinstance(c, SymbolicZero) for c in rest):
            raise NotImplementedError(
                f"{name} has no second derivatives. Use a sampler that needs gradients only."
            )
        if isinstance(g, SymbolicZero):
            return jnp.zeros_like(dmu), jnp.zeros_like(dgamma), *[None] * n_others
        return g[:, None] * dmu, g[:, None] * dgamma, *[None] * n_others

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def _robust_max(mu, gamma, y):
    if mu.shape != gamma.shape or y.shape != mu.shape[:1]:
        raise ValueError("mu and gamma must have one shape, and y as many entries as they rows.")
    N, K = mu.shape
    if N == 0:
        return jnp.zeros(0), mu, gamma
    own = y[:, None] == jnp.arange(K)
    valid = jnp.isfinite(jnp.sum(mu + gamma, axis=1)) & (y >= 0) & (y < K)
    # One bad row must not decide on the nodes of the others.
    mu, gamma = jnp.where(valid[:, None], mu, 0.0), jnp.where(valid[:, None], gamma, 1.0)
    results = (two_classes if K == 2 else any_classes)(mu, gamma, own)
    return tuple(
        jnp.where(jnp.expand_dims(valid, range(1, out.ndim)), out, jnp.nan) for out in results
    )


robust_max = with_gradients(_robust_max, "RobustMaxProbability", n_others=1)
"""Return P, dP/dmu and dP/dgamma; see `RobustMaxProbability`."""
