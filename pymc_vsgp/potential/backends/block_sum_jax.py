"""The loop over blocks of rows, for JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from pytensor.link.jax.dispatch import jax_funcify

from pymc_vsgp.potential.linalg import WeightedGram
from pymc_vsgp.potential.streaming import BlockSum, Factor

# XLA splits large products over cores and fuses what is elementwise, and each turn of a loop costs
# it time, so its blocks are larger.
BLOCK_BYTES = {"cpu": 8_000_000, "gpu": 2_000_000_000}


@jax_funcify.register(BlockSum)
def jax_funcify_block_sum(op, node=None, **kwargs):
    """Return a function with a gradient of its own: the outputs are the gradient."""
    kwargs.pop("storage_map", None)
    block = jax_funcify(op.fgraph, **kwargs)
    n_rows, n_sums, rules = op.n_rows, op.n_sums, op.rules

    def run(*inputs):
        n = inputs[0].shape[0]
        rows, shared = inputs[:n_rows], inputs[n_rows:]
        step = op.block_size or _automatic_block(shared)
        if n <= step:
            return tuple(block(*inputs))
        count = n // step
        whole = [jnp.reshape(r[: count * step], (count, step, *r.shape[1:])) for r in rows]

        def turn(sums, some):
            outputs = block(*some, *shared)
            added = tuple(s + o for s, o in zip(sums, outputs[:n_sums], strict=True))
            return added, tuple(outputs[n_sums:])

        rest = [r[count * step :] for r in rows]
        if n > count * step:
            outputs = block(*rest, *shared)
            sums, last = tuple(outputs[:n_sums]), outputs[n_sums:]
        else:
            shapes = jax.eval_shape(lambda *some: block(*some, *shared), *(w[0] for w in whole))
            sums, last = tuple(jnp.zeros(s.shape, s.dtype) for s in shapes[:n_sums]), None
        sums, parts = jax.lax.scan(turn, sums, tuple(whole))
        parts = [jnp.reshape(p, (count * step, *p.shape[2:])) for p in parts]
        if last is not None:
            parts = [jnp.concatenate([p, q]) for p, q in zip(parts, last, strict=True)]
        return (*sums, *parts)

    @jax.custom_vjp
    def block_sum(*inputs):
        return run(*inputs)

    def forward(*inputs):
        outputs = run(*inputs)
        return outputs, (inputs, outputs)

    def backward(kept, cotangents):
        inputs, outputs = kept
        weighted = run(inputs[0] * cotangents[n_sums], *inputs[1:])
        gradients = []
        for i, rule in enumerate(rules):
            x = inputs[i]
            if not jnp.issubdtype(x.dtype, jnp.floating):
                gradients.append(np.zeros(x.shape, dtype=jax.dtypes.float0))
            elif rule is None:
                gradients.append(jnp.zeros_like(x))
            elif i == 0:
                gradients.append((cotangents[0] + cotangents[n_sums]) * outputs[n_sums])
            else:
                gradients.append(
                    cotangents[0] * _follow(rule, inputs, outputs, x)
                    + _follow(rule, inputs, weighted, x)
                )
        return tuple(gradients)

    block_sum.defvjp(forward, backward)
    return block_sum


def _follow(rule, inputs, outputs, x):
    if not isinstance(rule, Factor):
        return outputs[rule]
    v, a = inputs[rule.v], outputs[rule.a]
    if v.ndim == 1:
        v, a = v[:, None], a[:, None]
    outer = v @ a.T + outputs[rule.outer]
    return -jnp.tril(jax.scipy.linalg.solve_triangular(x, outer, trans=1, lower=True))


def _automatic_block(shared):
    n_inducing = max((s.shape[0] for s in shared if s.ndim), default=1)
    limit = BLOCK_BYTES.get(jax.default_backend(), BLOCK_BYTES["gpu"])
    return max(limit // (8 * n_inducing), 256)


@jax_funcify.register(WeightedGram)
def jax_funcify_weighted_gram(op, **kwargs):
    """XLA has no symmetric product."""

    def weighted_gram(A, w):
        return (A * w) @ A.T

    return weighted_gram
