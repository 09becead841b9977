"""Graphs of a model at many points at once, on numpy: the value alone, and nothing compiled.

A proposal needs no gradient, and no proposal waits for another. So the graph of the log density is
vectorized over points, and numpy's loops take as many of them at a time as the cache holds. Several
coordinates of the inducing values at the same parameters share the kernel and the solve, which most
of the time goes into.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter

from pymc_vsgp.compile import ONCE, function, no_collection, simplify
from pymc_vsgp.engine.sharded import AXIS, DRAWS, Placed, gathered, on_devices
from pymc_vsgp.engine.streaming import block_sums, drop_unused_outputs
from pymc_vsgp.engine.vectorized import AT_ONCE, BATCH_BYTES, over
from pymc_vsgp.fit.bound import split
from pymc_vsgp.fit.newton import refined_logp
from pymc_vsgp.inducing.graphs import frontier
from pymc_vsgp.model.variable import inducing_variables
from pymc_vsgp.ops.nodes import Nodes
from pymc_vsgp.ops.numpy_only import numpy_only

MANY = 64  # points that a device is given
TYPICAL = 20  # nodes of a quadrature that takes no more than it needs


class Points:
    """Points of a model: theta, and epsilon, which stands for its inducing values.

    Both are unconstrained. A model whose inducing values are integrated out has no epsilon. With a
    mesh of devices of JAX these evaluate the log density, and have the rows of the data.
    """

    def __init__(self, model: Model, mesh: Any = None):
        self.model, self.mesh = model, mesh
        self._functions: dict[Any, Any] = {}
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

    def log_density(self) -> Any:
        """Return the log density as a function of theta, S x d, and epsilon, S x K x m: S x K."""
        return self._known("plain", lambda: [simplify(self.model.logp())], self.mesh)

    def refined(self) -> Any:
        """Return the same for epsilon in coordinates that are fitted to the data at each theta.

        Those of the Gaussian stage have sites of one theta. A natural-gradient step from them is a
        Newton step where the posterior of the inducing values is normal. Returns the log density,
        and epsilon in the coordinates of the stage.
        """
        return self._known("refined", lambda: refined_logp(self.model), self.mesh)

    def variables(self, variables: Sequence[Variable]) -> Any:
        """Return variables of the model as a function of theta, S x d, and epsilon, S x 1 x m."""
        variables = list(variables)
        key = tuple(v.name for v in variables)
        return self._known(key, lambda: self.model.replace_rvs_by_values(variables))

    @no_collection
    def _known(self, key, build, mesh=None) -> Any:
        """Compile what is asked for the first time. Sites and data may change after that."""
        if key not in self._functions:
            self._functions[key] = self.function(build(), mesh)
        return self._functions[key]

    def function(self, outputs, mesh=None) -> Any:
        """Vectorize a graph of the model's values, and compile it.

        With `advance`, which is told how many are done, it returns less than was asked for if it
        is interrupted. Its `cost` is that of a theta, and of an epsilon, in about the same unit.
        """
        spread, most = None, 0
        if mesh is not None:
            spread, most = _on_devices(self.outer, self.inner, outputs, mesh)
        outputs = _value_alone(outputs)
        # First over epsilon, then over theta: what depends on theta alone is computed once.
        many = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in self.inner]
        outputs = over(outputs, self.inner, many)
        values = [*self.outer, *many]
        batched = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in values]
        outputs = over(outputs, values, batched)
        sizes = _sizes(outputs, mesh)
        # Such as which rows are near which: once for all points.
        fixed = computed_first(outputs, batched)
        first = function([], fixed)
        fn = spread or function([*batched, *fixed], numpy_only(outputs))
        widest = max((max(s) for s in self.shapes.values() if s), default=1)

        def evaluate(theta, epsilon, advance=None):
            K, known = epsilon.shape[1], [] if spread else first()
            largest = max([widest**2, *(max(a, K * b) for a, b in sizes)])
            step = most or max(1, BATCH_BYTES // (8 * largest))
            parts: list[list] = []
            for i in range(0, len(theta), step):
                at = slice(i, i + step)
                try:
                    found = fn(*self._split(theta[at], epsilon[at]), *known)
                except KeyboardInterrupt:
                    if advance is None or not parts:
                        raise
                    break
                if advance is not None:
                    advance(len(theta[at]))
                lead = (len(theta[at]), K)
                parts.append([np.broadcast_to(x, (*lead, *x.shape[2:])) for x in found])
            return [np.concatenate(column) for column in zip(*parts, strict=True)]

        a, b = (sum(x) for x in zip(*sizes, strict=True)) if sizes else (1, 0)
        cost = (a * (3.0 + widest / 8.0), 10.0 * b + a / 4.0)
        evaluate.cost = cost  # type: ignore[attr-defined]  # of a function
        return evaluate

    def _split(self, theta, epsilon) -> list[np.ndarray]:
        """Return the values of variables at many points."""
        out = []
        for flat, values in ((theta, self.outer), (epsilon, self.inner)):
            parts = split(flat, (self.shapes[v] for v in values))
            out += [x.astype(v.dtype) for x, v in zip(parts, values, strict=True)]
        return out


def computed_first(outputs, inputs) -> list[Variable]:
    """Return what graphs need beside the inputs, other than what is only looked up."""
    return [v for v in frontier(outputs, inputs) if not isinstance(v, SharedVariable)]


def _on_devices(outer, inner, outputs, mesh) -> Any:
    """Return a function of points, and of some epsilon at each, that devices evaluate."""
    import jax

    from jax.sharding import PartitionSpec as P

    fn = function([*outer, *inner], on_devices(outputs, mesh, AT_ONCE), "JAX")
    places = [P(AXIS) if isinstance(s, Placed) else P() for s in fn.get_shared()]

    def part(thetas, epsilons, shared):
        def at_theta(point):
            theta, some = point
            return jax.vmap(lambda epsilon: fn.vm.jit_fn(*theta, *epsilon, *shared))(some)

        found = jax.lax.map(at_theta, (thetas, epsilons), batch_size=AT_ONCE)
        return jax.lax.all_gather(found, DRAWS, tiled=True)

    specs = {"in_specs": (P(DRAWS), P(DRAWS), places), "out_specs": P(), "check_vma": False}
    at_all = jax.jit(jax.shard_map(part, mesh=mesh, **specs))
    most = MANY * mesh.shape[DRAWS]

    def evaluate(*arrays):
        n = len(arrays[0])
        # XLA compiles for each number of points anew.
        filled = [np.concatenate([x, np.repeat(x[-1:], most - n, axis=0)]) for x in arrays]
        shared = [s.get_value(borrow=True) for s in fn.get_shared()]
        found = at_all(filled[: len(outer)], filled[len(outer) :], shared)
        return [np.asarray(x)[:n] for x in found]

    return evaluate, most


def _sizes(outputs, mesh=None) -> list[tuple[int, int]]:
    """Return the entries of the largest arrays of the loops in vectorized graphs."""
    loops = block_sums(*outputs)
    rows = function([], [n.inputs[0].shape[0] for n in loops])()
    # Of all processes: these have to take the same decisions.
    rows = gathered(mesh, rows).sum(axis=0)
    return [_entries(node, int(n)) for node, n in zip(loops, rows, strict=True)]


def _entries(node, n: int) -> tuple[int, int]:
    """Entries of the largest arrays of a block: for each theta, and for each epsilon."""
    n = min(n, node.op.block_size or n)
    found, graph = [n, n], node.op.fgraph
    # How many nodes a quadrature takes is open, too.
    rules = [a.inputs[2].type.shape[0] for a in graph.apply_nodes if isinstance(a.op, Nodes)]
    rule = min(max(rules, default=1), TYPICAL)
    for v in graph.variables:
        shape = getattr(v.type, "shape", ())
        # Points, points and epsilon, or points and rows: what else is open is as wide as most are.
        known = int(np.prod([d for d in shape if d]))
        unknown = shape.count(None)
        if unknown >= 3:
            found[1] = max(found[1], n * known * (rule if unknown > 3 else 1))
        elif unknown == 2:
            found[0] = max(found[0], n * known)
    return found[0], found[1]


def _value_alone(outputs) -> list[Variable]:
    """Compute nothing in loops over the data but what is used; see `streaming`."""
    fgraph = FunctionGraph(outputs=list(outputs), clone=False)
    fgraph._compile_mode = ONCE
    dfs_rewriter(drop_unused_outputs).rewrite(fgraph)
    return list(fgraph.outputs)
