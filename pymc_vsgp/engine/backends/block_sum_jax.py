"""The loop over blocks of rows, for JAX."""

import jax
import jax.numpy as jnp
import pytensor.tensor as pt

from jax.custom_derivatives import SymbolicZero
from jax.scipy.linalg import solve_triangular
from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.dispatch import jax_funcify

from pymc_vsgp.engine.streaming import NO_SECOND_DERIVATIVES, BlockSum, Factor, Held, Root
from pymc_vsgp.ops.backends.rows_jax import automatic_block, loop_over_blocks, without_checks
from pymc_vsgp.ops.distance import NotNegative
from pymc_vsgp.ops.linalg import WeightedGram, solves_with


@jax_funcify.register(BlockSum)
def jax_funcify_block_sum(op, node=None, at_once=1, **kwargs):
    """Return a function with a gradient of its own: the outputs are the gradient."""
    kwargs.pop("storage_map", None)
    n_rows, n_sums, rules = op.n_rows, op.n_sums, op.rules
    n_outputs = len(op.fgraph.outputs)
    graph, factors = multiply_by_inverses(op.fgraph)

    def compute(inputs, wanted):
        """Return these of the outputs, and None in place of the others."""
        wanted = sorted(wanted)
        copy = graph.clone()
        some = FunctionGraph(copy.inputs, [copy.outputs[i] for i in wanted], clone=False)
        block = jax_funcify(without_checks(some), **kwargs)
        inverses = [_inverse(inputs[i]) for i in factors]
        found = loop_over_blocks(
            block,
            inputs[:n_rows],
            (*inputs[n_rows:], *inverses),
            sum(i < n_sums for i in wanted),
            op.block_size or automatic_block(op.width, inputs[n_rows:], at_once),
        )
        outputs = dict(zip(wanted, found, strict=True))
        return [outputs.get(i) for i in range(n_outputs)]

    @jax.custom_vjp
    def block_sum(*inputs):
        # What nobody uses of this XLA drops.
        return tuple(compute(inputs, range(n_outputs)))

    def forward(*primals):
        perturbed = [p.perturbed for p in primals]
        inputs = [p.value for p in primals]
        needed = {0, n_sums}
        for rule, moves in zip(rules, perturbed, strict=True):
            if moves and rule is not None:
                needed |= _needs(rule)
        # All of them: a graph may take gradients for values. What nobody uses XLA drops.
        outputs = compute(inputs, range(n_outputs))
        kept = [o if i in needed else None for i, o in enumerate(outputs)]
        return tuple(outputs), (inputs, kept, tuple(m or None for m in perturbed))

    def backward(kept, cotangents):
        inputs, outputs, perturbed = kept
        of_value, of_terms = cotangents[0], cotangents[n_sums]
        if not all(
            isinstance(c, SymbolicZero) for i, c in enumerate(cotangents) if i not in (0, n_sums)
        ):
            raise NotImplementedError(NO_SECOND_DERIVATIVES)
        moving = [i for i, p in enumerate(perturbed) if p is not None and rules[i] is not None]
        gradients = [None] * len(inputs)
        if not isinstance(of_value, SymbolicZero):
            for i in moving:
                gradients[i] = of_value * _follow(rules[i], inputs, outputs, inputs[i])
        if not isinstance(of_terms, SymbolicZero):
            # Terms with cotangents of their own: a sum with those weights, in another pass. The
            # terms do not depend on the weights of the value.
            weighted = [of_terms, *inputs[1:]]
            again = compute(weighted, [i for i, o in enumerate(outputs) if o is not None])
            for i in moving:
                if i == 0:
                    continue
                more = _follow(rules[i], inputs, again, inputs[i])
                gradients[i] = more if gradients[i] is None else gradients[i] + more
        return tuple(gradients)

    block_sum.defvjp(forward, backward, symbolic_zeros=True)

    def on_arrays(*inputs):
        # PyTensor turns constants into Python numbers.
        arrays = [jnp.asarray(i) for i in inputs]
        if op.order is not None:  # it takes rows as they come
            arrays[op.order.input] = jnp.arange(arrays[0].shape[0])
        return block_sum(*arrays)

    return on_arrays


def _needs(rule):
    """Return the outputs that `rule` makes a gradient of."""
    if isinstance(rule, Factor):
        return {rule.a, rule.outer, rule.gram} - {None}
    return {rule.gram if isinstance(rule, Root) else rule}


def _follow(rule, inputs, outputs, x):
    """Return the gradient with respect to `x` that `rule` says."""
    if isinstance(rule, Root):
        return rule.gradient(outputs[rule.gram], x)
    if not isinstance(rule, Factor):
        return outputs[rule]
    outer = outputs[rule.outer]
    if rule.v is not None:
        v, a = inputs[rule.v], outputs[rule.a]
        if v.ndim == 1:
            v, a = v[:, None], a[:, None]
        outer = v @ a.T + outer
    if rule.root is not None:
        root, gram = inputs[rule.root], outputs[rule.gram]
        more = root @ (gram @ root).mT
        outer += more if more.ndim == 2 else more.sum(axis=0)
    return -jnp.tril(solve_triangular(x, outer, trans=1, lower=True))


def _inverse(R):
    return solve_triangular(R, jnp.eye(R.shape[0], dtype=R.dtype), lower=True)


def multiply_by_inverses(fgraph):
    """Return a copy of the graph of a block that multiplies where it solved with a factor.

    XLA solves slowly: a triangular system at a quarter of the speed of a product, and it copies
    what it solves for. The inverses are more inputs, the last ones, of the factors with the numbers
    that are returned.
    """
    inner = fgraph.unfreeze()
    factors = []
    for i, R in enumerate(tuple(inner.inputs)):
        solves = solves_with(inner, R)
        if not solves:
            continue
        inverse = R.type()
        inner.add_input(inverse)
        for solve, lower in solves:
            new = pt.dot(inverse if lower else inverse.T, solve.inputs[1])
            inner.replace(solve.outputs[0], new)
        factors.append(i)
    return inner, factors


@jax_funcify.register(WeightedGram)
def jax_funcify_weighted_gram(op, **kwargs):
    """XLA has no symmetric product."""

    def weighted_gram(A, w):
        return (A * w[..., None, :]) @ A.T

    return weighted_gram


@jax_funcify.register(NotNegative)
def jax_funcify_not_negative(op, **kwargs):
    """Clip, with the gradient of x."""

    def not_negative(x):
        return x + jax.lax.stop_gradient(jnp.maximum(x, 0.0) - x)

    return not_negative


@jax_funcify.register(Held)
def jax_funcify_held(op, **kwargs):
    """Stop the gradient."""
    return jax.lax.stop_gradient
