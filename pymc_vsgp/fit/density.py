"""Graphs of a model at many points at once, on numpy: the value alone, and nothing compiled.

A proposal needs no gradient, and no proposal waits for another. So the graph of the log density is
vectorized over points, and numpy's loops take as many of them at a time as the cache holds. Several
coordinates of the inducing values at the same parameters share the kernel and the solve, which most
of the time goes into.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.model.core import Model
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import _vectorize_node, graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_vsgp.compile import ONCE, numpy_only
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.features import FeatureMoments
from pymc_vsgp.engine.moments import ConditionalMoments, Kernel
from pymc_vsgp.engine.streaming import (
    BlockSum,
    Held,
    automatic_block,
    drop_unused_outputs,
)
from pymc_vsgp.fit.bound import inducing_variables, whitened_coordinates
from pymc_vsgp.inducing.coordinates import apply_sites

__all__ = ["Points"]

BATCH_BYTES = 2_000_000  # of the largest array of a batch of points


class Points:
    """Points of a model: theta, and epsilon, which stands for its inducing values.

    Both are unconstrained. A model whose inducing values are integrated out has no epsilon.
    """

    def __init__(self, model: Model):
        self.model = model
        start = model.initial_point()
        self.inner = [model.rvs_to_values[u] for u in inducing_variables(model)]
        self.outer = [v for v in model.value_vars if v not in self.inner]
        self.shapes = {v: np.shape(start[v.name]) for v in model.value_vars}
        self.n_theta, self.n_epsilon = (
            sum(int(np.prod(self.shapes[v])) for v in values) for values in (self.outer, self.inner)
        )

    def ravel(self, point) -> np.ndarray:
        """Return theta of a point as a vector."""
        parts = [np.ravel(point[v.name]) for v in self.outer]
        return np.concatenate([np.empty(0), *parts])

    def log_density(self) -> Callable:
        """Return the log density as a function of theta, S x d, and epsilon, S x K x m: S x K."""
        logp = rewrite_pregrad(self.model.logp())
        return self.function(_value_alone([logp]))

    def refined(self) -> Callable:
        """Return the same for epsilon in coordinates that are fitted to the data at each theta.

        Those of the Gaussian stage have sites of one theta. A natural-gradient step from them is a
        Newton step where the posterior of the inducing values is normal. Returns the log density,
        and epsilon in the coordinates of the stage.
        """
        return self.function(_value_alone(refine(self.model)))

    def variables(self, variables: Sequence[Variable]) -> Callable:
        """Return variables of the model as a function of theta, S x d, and epsilon, S x 1 x m."""
        return self.function(self.model.replace_rvs_by_values(list(variables)))

    def function(self, outputs) -> Callable:
        """Vectorize a graph of the model's values, and compile it."""
        # First over epsilon, then over theta: what depends on theta alone is computed once.
        many = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in self.inner]
        outputs = _over(outputs, self.inner, many)
        values = [*self.outer, *many]
        batched = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in values]
        outputs = _over(outputs, values, batched)
        loops = [v.owner for v in ancestors(outputs) if _is_loop(v)]
        fn = pm.pytensorf.compile(batched, numpy_only(outputs), mode=ONCE, on_unused_input="ignore")
        rows = pm.pytensorf.compile([], [n.inputs[0].shape[0] for n in loops], mode=ONCE)()
        sizes = [_entries(node, int(n)) for node, n in zip(loops, rows, strict=True)]
        widest = max((max(s) for s in self.shapes.values() if s), default=1)

        def evaluate(theta, epsilon, advance=lambda n: None):
            K = epsilon.shape[1]
            largest = max([widest**2, *(max(a, K * b) for a, b in sizes)])
            step = max(1, BATCH_BYTES // (8 * largest))
            parts: list[list] = []
            for i in range(0, len(theta), step):
                at = slice(i, i + step)
                found = fn(*self._split(theta[at], epsilon[at]))
                advance(len(theta[at]))
                lead = (len(theta[at]), K)
                parts.append([np.broadcast_to(x, (*lead, *x.shape[2:])) for x in found])
            return [np.concatenate(column) for column in zip(*parts, strict=True)]

        return evaluate

    def _split(self, theta, epsilon) -> list[np.ndarray]:
        """Return the values of variables at many points."""
        out = []
        for flat, values in ((theta, self.outer), (epsilon, self.inner)):
            at = 0
            for v in values:
                shape = self.shapes[v]
                size = int(np.prod(shape))
                part = flat[..., at : at + size].reshape(*flat.shape[:-1], *shape)
                out.append(part.astype(v.dtype))
                at += size
        return out


def _over(outputs, values, batched) -> list[Variable]:
    """Vectorize graphs; what does not depend on the values has one entry for all."""
    new = vectorize_graph(list(outputs), dict(zip(values, batched, strict=True)))
    return [
        x if x.type.ndim > old.type.ndim else x[None] for x, old in zip(new, outputs, strict=True)
    ]


def _entries(node, n: int) -> tuple[int, int]:
    """Entries of the largest arrays of a block: for each theta, and for each epsilon."""
    n = min(n, node.op.block_size)
    found = [n, n]
    for v in node.op.fgraph.variables:
        shape = getattr(v.type, "shape", ())
        # Points, points and epsilon, or points and rows: what else is open is as wide as most are.
        known = int(np.prod([d for d in shape if d]))
        unknown = shape.count(None)
        if unknown >= 3:
            found[1] = max(found[1], n * known)
        elif unknown == 2:
            found[0] = max(found[0], n * known)
    return found[0], found[1]


def refine(model: Model) -> list[Variable]:
    """Log density with a natural-gradient step in it; see `Points.refined`."""
    us = inducing_variables(model)
    with whitened_coordinates(model):
        logp = rewrite_pregrad(model.logp())
    loops = {v.owner for v in ancestors([logp]) if _is_loop(v)}
    values = [model.rvs_to_values[u] for u in us]
    maps, swaps, epsilons = [], {}, []
    for u, value in zip(us, values, strict=True):
        mean, R = model.replace_rvs_by_values(list(u.owner.inputs[1:3]))
        if R.type.ndim == 1:
            raise NotImplementedError("Coefficients have no step.")
        linear, root = u.owner.inputs[3:5]
        K = 1 if value.type.ndim == 1 else value.type.shape[0]
        maps.append([apply_sites(mean, R, linear[k], root[k]) for k in range(K)])
    centers = [[solve_triangular(L.T, half, lower=False, b_ndim=1) for half, L in m] for m in maps]
    roots = [[_inverse_transpose(L) for _, L in m] for m in maps]

    steps: list[list] = [[] for _ in us]
    for node in loops:
        groups = node.op.recipe.groups
        owners = [values.index(_without_dims(node.inputs[g.v])) for g in groups]
        single = [values[i].type.ndim == 1 for i in owners]
        new = stream_gaussian(
            node,
            [centers[i][0] if s else pt.stack(centers[i], axis=1) for i, s in zip(owners, single)],
            [roots[i][0] if s else pt.stack(roots[i]) for i, s in zip(owners, single)],
        )
        for j, (g, i, s) in enumerate(zip(groups, owners, single)):
            a = new.outputs[new.op.rules[g.v]]
            gram = new.outputs[new.op.rules[len(new.op.rules) - len(groups) + j].gram]
            steps[i].append((a[:, None], gram[None]) if s else (a, gram))
    if not all(steps):
        raise NotImplementedError("A process has no loop over the data.")

    log_det, stage = 0.0, []
    for value, m, center, step in zip(values, maps, centers, steps):
        linear, gram = (sum(parts) for parts in zip(*step))
        epsilon = value.type()
        epsilons.append(epsilon)
        rows, before = [], []
        for k, ((half, L), c) in enumerate(zip(m, center)):
            P = pt.eye(L.shape[0], dtype="float64") - gram[k]
            new = cholesky(P, lower=True)
            # Where the likelihood is not log-concave the step may lead nowhere.
            good = pt.all(pt.isfinite(pt.diagonal(new)))
            new = pt.switch(good, new, L)
            h = solve_triangular(new, linear[:, k] - pt.dot(gram[k], c), lower=True, b_ndim=1)
            h = pt.switch(good, h, half)
            e = epsilon if value.type.ndim == 1 else epsilon[k]
            v = solve_triangular(new.T, h + e, lower=False, b_ndim=1)
            log_det = log_det + pt.log(pt.diagonal(new)).sum()
            rows.append(v)
            before.append(pt.dot(L.T, v) - half)
        swaps[value] = rows[0] if value.type.ndim == 1 else pt.stack(rows)
        stage.append(pt.stack(before).ravel() if len(before) > 1 else before[0])
    logp = graph_replace([logp], swaps, strict=False)[0] - log_det
    outputs = [logp, pt.concatenate(stage)]
    outputs = graph_replace(outputs, dict(zip(epsilons, values)), strict=False)
    return list(rewrite_pregrad(outputs))


def _without_dims(v):
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    return v


def _inverse_transpose(L):
    eye = pt.eye(L.shape[0], dtype="float64")
    return solve_triangular(L.T, eye, lower=False, b_ndim=2)


def _is_loop(v) -> bool:
    return v.owner is not None and isinstance(v.owner.op, BlockSum)


def _value_alone(outputs) -> list[Variable]:
    """Compute nothing in loops over the data but what is used; see `streaming`."""
    fgraph = FunctionGraph(outputs=list(outputs), clone=False)
    fgraph._compile_mode = ONCE
    dfs_rewriter(drop_unused_outputs).rewrite(fgraph)
    return list(fgraph.outputs)


@_vectorize_node.register(BlockSum)
def _vectorize_loop(op, node, *inputs):
    """Let a loop take many points: the rows are the same for all of them."""
    inner = op.fgraph.unfreeze()
    swaps, widths = {}, []
    for i, (new, old) in enumerate(zip(inputs, node.inputs, strict=True)):
        if i >= op.n_rows:
            widths += [n for n in old.type.shape[:1] if n]
        if new.type.ndim == old.type.ndim:
            continue
        if i < op.n_rows:
            raise NotImplementedError("The rows of the data depend on parameters.")
        swaps[inner.inputs[i]] = new.type()
    loop = BlockSum(
        [swaps.get(x, x) for x in inner.inputs],
        numpy_only(vectorize_graph(list(inner.outputs), swaps)),
        n_rows=op.n_rows,
        n_sums=op.n_sums,
        shapes=op.shapes,
        rules=[None] * len(inner.inputs),
        block_size=op.block_size or automatic_block(op.width or max(widths, default=100)),
    )
    return loop.make_node(*inputs)


@_vectorize_node.register(Held)
@_vectorize_node.register(Kernel)
@_vectorize_node.register(ConditionalMoments)
@_vectorize_node.register(FeatureMoments)
def _vectorize_inlined(op, node, *inputs):
    """Vectorize what an Op stands for."""
    inner = op.fgraph.unfreeze()
    return vectorize_graph(list(inner.outputs), dict(zip(inner.inputs, inputs, strict=True)))
