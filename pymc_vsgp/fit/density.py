"""Graphs of a model at many points at once: the value alone, and as a rule nothing compiled.

A proposal needs no gradient, and no proposal waits for another. So the graph of the log density is
vectorized over points, and numpy's loops take as many of them at a time as the cache holds. Several
coordinates of the inducing values at the same parameters share the kernel and the solve, which most
of the time goes into. Where that takes longer than compiling, see `compiled`.
"""

import logging

from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.traversal import ancestors

from pymc_vsgp.compile import ONCE, at_points, building, function, simplify
from pymc_vsgp.engine.sharded import gathered
from pymc_vsgp.engine.streaming import block_sums, drop_unused_outputs
from pymc_vsgp.engine.vectorized import BATCH_BYTES, over
from pymc_vsgp.fit.bound import split
from pymc_vsgp.fit.compiled import Compiled, Jax, Numba, OnDevices, adopted, compiler
from pymc_vsgp.fit.newton import refined_logp
from pymc_vsgp.inducing.coordinates import has_matrix
from pymc_vsgp.inducing.graphs import frontier
from pymc_vsgp.model.variable import (
    inducing_variables,
    is_independent,
    is_sparse,
    number_together,
    value_shapes,
)
from pymc_vsgp.ops.nodes import Nodes
from pymc_vsgp.ops.numpy_only import numpy_only
from pymc_vsgp.ops.row_integral import RowIntegral
from pymc_vsgp.ops.rows import Rows

_log = logging.getLogger("pymc.vsgp")

SHARE = 0.1  # of what compiling takes, before numpy's time is known
INTEGRAL = 0.05  # of what an entry of an array costs: an operation within an integral
LESS = 0.8  # of numpy's time: what gains less may lose where there are more epsilon at a theta
TYPICAL = 20  # nodes of a quadrature that takes no more than it needs


class Values:
    """Variables with a value at each point: the outer ones, and some of the inner ones at each."""

    def __init__(self, model: Model, outer, inner, shapes):
        self.model, self.outer, self.inner, self.shapes = model, list(outer), list(inner), shapes

    def function(self, outputs, mesh=None, compiling=False) -> "AtPoints":
        """Vectorize graphs of the variables, and compile them where that may pay."""
        return AtPoints(self, outputs, mesh, compiling)

    def split(self, theta, epsilon) -> list[np.ndarray]:
        """Return the values of variables at many points."""
        out = []
        for flat, values in ((theta, self.outer), (epsilon, self.inner)):
            parts = split(flat, (self.shapes[v] for v in values))
            out += [x.astype(v.dtype) for x, v in zip(parts, values, strict=True)]
        return out


class Points(Values):
    """Points of a model: theta, and epsilon, which stands for its inducing values.

    Both are unconstrained. A model whose inducing values are integrated out has no epsilon. With a
    mesh of devices of JAX these evaluate the log density, and have the rows of the data.
    """

    def __init__(self, model: Model, mesh: Any = None):
        of = value_shapes(model)
        inner = [model.rvs_to_values[u] for u in inducing_variables(model)]
        outer = [v for v in model.value_vars if v not in inner]
        shapes = {v: of[v.name] for v in model.value_vars}
        super().__init__(model, outer, inner, shapes)
        self.mesh = mesh
        self._functions: dict[Any, Any] = {}
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

    def with_draws(self, draw: Variable, noise: Variable) -> Any:
        """Return the log density of theta, and draws of what was integrated out, from noise.

        The latter is S x K x the shape of `noise`. Both take the same pass over the data.
        """
        shapes = {**self.shapes, noise: noise.type.shape}
        values = Values(self.model, self.outer, [noise], shapes)
        (draw,) = self.model.replace_rvs_by_values([draw])
        return values.function(simplify([self.model.logp(), draw]), compiling=True)

    def variables(self, variables: Sequence[Variable]) -> Any:
        """Return variables of the model as a function of theta, S x d, and epsilon, S x 1 x m."""
        variables = list(variables)
        key = tuple(v.name for v in variables)
        return self._known(key, lambda: self.model.replace_rvs_by_values(variables))

    def at(self, variables: Sequence[Variable], points: Sequence[Mapping]) -> list[np.ndarray]:
        """Return variables of the model at points by name."""
        theta = np.array([self.ravel(point) for point in points])
        parts = [[np.empty(0), *(np.ravel(p[v.name]) for v in self.inner)] for p in points]
        return self.drawn(variables, theta, np.array([np.concatenate(each) for each in parts]))

    def drawn(self, variables: Sequence[Variable], theta, epsilon) -> list[np.ndarray]:
        """Return variables of the model at theta, S x d, and epsilon, S x m."""
        try:
            return [x[:, 0] for x in self.variables(variables)(theta, epsilon[:, None])]
        except NotImplementedError:  # a graph that takes one point at a time
            names = [v.name for v in (*self.outer, *self.inner)]
            columns = self.split(theta, epsilon)
            points = [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
            return [
                np.stack(x) for x in zip(*at_points(self.model, variables, points), strict=True)
            ]

    @building
    def _known(self, key, build, mesh=None) -> Any:
        """Compile what is asked for the first time. Sites and data may change after that."""
        if key not in self._functions:
            self._functions[key] = self.function(build(), mesh, compiling=True)
        return self._functions[key]


class AtPoints:
    """Graphs of the values of a model, as a function of many points.

    Attributes
    ----------
    outputs : list of Variable
        The graphs.
    cost : tuple of float
        That of a theta, and of an epsilon, in about the same unit.
    """

    def __init__(self, points: Values, outputs, mesh=None, compiling=False):
        self.points, self.outputs = points, outputs
        outer, inner = points.outer, points.inner
        self.compiled: Compiled | None = None
        self._compiler: Any = None
        if mesh is not None:
            self.compiled = OnDevices(outer, inner, outputs, mesh)
        # First over epsilon, then over theta: what depends on theta alone is computed once.
        many = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in inner]
        vectorized = over(_value_alone(outputs), inner, many)
        values = [*outer, *many]
        batched = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in values]
        vectorized = over(vectorized, values, batched)
        loops = block_sums(*vectorized)
        others = [v.owner for v in ancestors(vectorized) if v.owner and type(v.owner.op) is Rows]
        rows = _numbers([*loops, *others], mesh)
        sizes = [_entries(node, n) for node, n in zip([*loops, *others], rows, strict=True)]
        integrals = [_integrals(*of) for of in zip(loops, rows, strict=False)]
        self._sizes = [_entries(*of, exact=True) for of in zip(loops, rows, strict=False)]
        self._rows = max((size for size, _ in sizes[len(loops) :]), default=1)
        self._widest = _widest(points.shapes.values())
        alone = _alone(points.model)
        square = [s for v, s in points.shapes.items() if v not in alone]
        self._square = _widest([*square, (number_together(points.model, points.shapes),)])
        a, b = (sum(x) for x in zip(*sizes[: len(loops)], strict=True)) if loops else (1, 0)
        of_theta, of_epsilon = (INTEGRAL * sum(x[k] for x in integrals) for k in (0, 1))
        of_theta += a * (3.0 + self._widest / 8.0)
        self.cost = of_theta, of_epsilon + 10.0 * b + a / 4.0
        if mesh is None:
            # Such as which rows are near which: once for all points.
            fixed = computed_first(vectorized, batched)
            self._first = function([], fixed)
            self._on_numpy = function([*batched, *fixed], numpy_only(vectorized))
            self._compiler = compiler(points.model, outputs) if compiling else None
        self._spent, self._cold, self._next = 0.0, True, 1
        self._fastest: dict[int, float] = {}

    def __call__(self, theta, epsilon, advance=None) -> list[np.ndarray]:
        """Evaluate at theta, S x d, and epsilon, S x K x m: arrays with S x K in front.

        With `advance`, which is told how many are done, it returns less than was asked for if it
        is interrupted.
        """
        n, K = epsilon.shape[:2]
        largest = max([self._square**2, self._rows, *(max(a, K * b) for a, b in self._sizes)])
        on_numpy = max(1, BATCH_BYTES // (8 * largest))
        known = self._first() if self.compiled is None else []
        parts: list[list] = []
        done = 0
        while done < n:
            step = self.compiled.most if self.compiled else on_numpy
            if self._compiler is not None:  # a few tell whether numpy takes too long for all
                step, self._next = min(step, self._next), 2 * self._next
            at, began = slice(done, done + step), perf_counter()
            try:
                arrays = self.points.split(theta[at], epsilon[at])
                found = self.compiled(*arrays) if self.compiled else self._on_numpy(*arrays, *known)
                lead = (len(theta[at]), K)
                parts.append([np.broadcast_to(x, (*lead, *x.shape[2:])) for x in found])
                done += lead[0]
                if advance is not None:
                    advance(lead[0])
                if self._compiler is not None and arrays:
                    seconds = (perf_counter() - began) / lead[0]
                    self._choose(seconds, n - done, arrays, parts[-1])
            except KeyboardInterrupt:
                if advance is None or not parts:
                    raise
                break
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _choose(self, seconds, left, arrays, known) -> None:
        """Compile, where numpy takes that many seconds for a theta."""
        cold, self._cold = self._cold, False
        if cold:  # loops of numba compile then
            return
        self._spent += seconds * len(arrays[0])
        # One that waited for other work of the machine says nothing of the next ones.
        K = known[0].shape[1]
        seconds = self._fastest[K] = min(seconds, self._fastest.get(K, np.inf))
        pays = self._compiler.pays
        # A few take longer, each, than many do.
        if self._spent < SHARE * pays or self._spent + seconds * left < pays:
            return
        compiler, self._compiler = self._compiler, None
        _log.info("compiling with %s: numpy takes %.2g s a point", compiler.name, seconds)
        graph = self.points.outer, self.points.inner, self.outputs
        some, known = ([x[: compiler.part] for x in of] for of in (arrays, known))
        self.compiled = adopted(
            compiler.name, partial(compiler, *graph), some, known, LESS * seconds
        )
        if self.compiled is None and compiler is Jax:
            self._compiler = Numba


def computed_first(outputs, inputs) -> list[Variable]:
    """Return what graphs need beside the inputs, other than what is only looked up."""
    return [v for v in frontier(outputs, inputs) if not isinstance(v, SharedVariable)]


def _numbers(nodes, mesh=None) -> list[int]:
    """Return the numbers of rows of some loops in vectorized graphs."""
    rows = function([], [n.inputs[0].shape[0] for n in nodes])()
    # Of all processes: these have to take the same decisions.
    return [int(n) for n in gathered(mesh, rows).sum(axis=0)]


def _widest(shapes) -> int:
    return max((max(s) for s in shapes if s), default=1)


def _alone(model: Model) -> set[Variable]:
    """Return the inducing values that no matrix of M x M is made for."""
    return {
        model.rvs_to_values[u]
        for u in inducing_variables(model)
        if is_sparse(u) or (is_independent(u) and not has_matrix(model.rvs_to_transforms[u]))
    }


def _integrals(node, n: int) -> tuple[float, float]:
    """Operations of the integrals of a loop: for each theta, and for each epsilon."""
    found = [0.0, 0.0]
    for a in node.op.fgraph.apply_nodes:
        op = getattr(a.op, "core_op", a.op)
        if isinstance(op, RowIntegral):  # of points, rows and functions, or of epsilon, too
            found[a.inputs[0].type.ndim > 3] += n * op.operations
    return found[0], found[1]


def _entries(node, n: int, exact: bool = False) -> tuple[int, int]:
    """Entries of the largest arrays of a block: for each theta, and for each epsilon.

    All of them have an axis of rows, as those that take the most time have; or, where it is to be
    exact, those alone that depend on rows.
    """
    n = min(n, node.op.block_size or n)
    found, graph = [n, n], node.op.fgraph
    # How many nodes a quadrature takes is open, too.
    rules = [a.inputs[2].type.shape[0] for a in graph.apply_nodes if isinstance(a.op, Nodes)]
    rule = min(max(rules, default=1), TYPICAL)
    of_rows = set(graph.inputs[: node.op.n_rows]) if exact else graph.variables
    for inner in graph.toposort() if exact else ():
        if not of_rows.isdisjoint(inner.inputs):
            of_rows.update(inner.outputs)
    for v in graph.variables:
        shape = getattr(v.type, "shape", ())
        # Points, points and epsilon, or points and rows: what else is open is as wide as most are.
        known = int(np.prod([d for d in shape if d]))
        unknown = shape.count(None)
        if unknown < 2:
            continue
        if v not in of_rows:
            found[1] = max(found[1], known)
        elif unknown > 2:
            found[1] = max(found[1], n * known * (rule if unknown > 3 else 1))
        else:
            found[0] = max(found[0], n * known)
    return found[0], found[1]


def _value_alone(outputs) -> list[Variable]:
    """Compute nothing in loops over the data but what is used; see `streaming`."""
    fgraph = FunctionGraph(outputs=clone_replace(list(outputs)), clone=False)
    fgraph._compile_mode = ONCE
    dfs_rewriter(drop_unused_outputs).rewrite(fgraph)
    return list(fgraph.outputs)
