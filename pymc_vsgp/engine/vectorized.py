"""Graphs at many points at once, on numpy, and nothing compiled.

Most graphs here are evaluated some thousand times, at points that do not wait for each other: draws
of a posterior, or proposals. So a graph is vectorized over points, and numpy's loops take as many
of them at a time as the cache holds. A graph that does not vectorize takes them one by one.
"""

import functools
import logging
import threading

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.mode import Mode
from pytensor.conditional.op import IfElse
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import _vectorize_node, vectorize_graph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors
from pytensor.link.vm import VMLinker
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from threadpoolctl import ThreadpoolController

from pymc_vsgp.compile import ONCE, building, function
from pymc_vsgp.engine.streaming import BlockSum, Held
from pymc_vsgp.inducing.base import ConditionalMoments
from pymc_vsgp.inducing.graphs import Kernel
from pymc_vsgp.ops.numpy_only import numpy_only
from pymc_vsgp.ops.rows import Rows, automatic_block

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

BATCH_BYTES = 2_000_000  # of the largest array of a batch of points
AT_ONCE = 8  # points that a device of JAX takes at once

# No more rewriting than that: it takes longer than what it would save.
MANY = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    RewriteDatabaseQuery(
        include=["merge", "constants_in_double", "drop_unused_outputs_of_block_sums"]
    ),
)


class _OneThread:
    """Context in which BLAS has one thread: for small matrices two would wait for each other.

    Limits are those of the process, so the first who comes sets them, and the last one sets back.
    """

    def __init__(self):
        self.lock, self.users = threading.Lock(), 0
        self.limit: Any = None

    def __enter__(self):
        with self.lock:
            if not self.users:
                self.limit = _libraries().limit(limits=1, user_api="blas")
            self.users += 1

    def __exit__(self, *error):
        with self.lock:
            self.users -= 1
            if not self.users:
                self.limit.restore_original_limits()


_libraries = functools.cache(ThreadpoolController)
one_thread = _OneThread()


class Batched:
    """A function of what has an entry for each point, and of what is the same for all of them.

    Parameters
    ----------
    each : sequence of Variable
        Variables that have an entry for each point.
    same : sequence of Variable
        Other inputs.
    outputs : sequence of Variable
        Graphs of them, of one point.
    mode : Mode, optional
        How to compile. With one of its own, points are taken one by one. Random numbers are drawn
        by numpy all the same.
    compiling : Lock, optional
        To be held while it compiles.
    mesh : jax.sharding.Mesh, optional
        Devices of JAX that points are spread over, where nothing is drawn and JAX can do it.
    """

    def __init__(self, each, same, outputs, mode=None, compiling=None, mesh=None):
        self.each, self.same, self.outputs, self.mode = list(each), list(same), outputs, mode
        self.mesh = mesh if each else None
        self.largest = 0
        """Number of points that were evaluated at once on devices."""
        self.compiling = compiling or threading.RLock()
        # A function keeps its arguments in itself, so one thread at a time may call it.
        self.calling = threading.Lock()
        self.many, self.fn = mode is None, None
        self.bytes: dict[Any, int] = {}
        """Of the largest array for one point, by the shapes of what is the same for all."""

    def __call__(self, each, same, rng=None) -> list[np.ndarray]:
        """Evaluate at all points; `rng` seeds what is random."""
        seed = None if rng is None else int(rng.integers(2**63))
        if seed is not None and self.mode is not None:
            # Backends have generators of their own, some of which take no seed from outside.
            self.mode, self.many, self.fn = None, True, None
        if self.mesh is not None and seed is None:
            try:
                return self._on_devices(self.mesh, each, same)
            except (TypeError, NotImplementedError, IndexError):
                # JAX wants to know how many rows there are, and has no form of some Ops.
                if self.largest:
                    raise
                self.mesh, self.fn = None, None
        if self.many:
            try:
                return self._evaluate(each, same, seed)
            except (TypeError, ValueError, NotImplementedError, IndexError):
                # Ops of others may take one point at a time. What is wrong with the arguments
                # shows once more.
                if self.bytes:
                    raise
                self.many, self.fn = False, None
        try:
            return self._evaluate(each, same, seed)
        except (TypeError, NotImplementedError, IndexError) as error:
            # A backend that was asked for may lack what numpy has.
            if self.mode is None or self.bytes:
                raise
            _log.info("numpy evaluates, as the mode can't (%s)", type(error).__name__)
            self.mode, self.many, self.fn = None, True, None
        return self(each, same)

    @building
    def _compile(self):
        each, outputs = self.each, self.outputs
        if self.mode is None:
            outputs = numpy_only(outputs)
        if self.many:
            each = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in each]
            outputs = one_product(over(outputs, self.each, each))
        fn = function([*each, *self.same], outputs, MANY if self.many else self.mode or ONCE)
        fn.trust_input = False
        return fn

    def _on_devices(self, mesh, each, same) -> list[np.ndarray]:
        with self.compiling:
            if self.fn is None:
                self.fn = _spread([*self.each, *self.same], self.outputs, mesh)
            fn, n = self.fn, len(each[0])
        # XLA compiles for each number of points anew.
        more = -(-max(self.largest, n) // mesh.size) * mesh.size - n
        each = [np.concatenate([x, np.repeat(x[-1:], more, axis=0)]) for x in each]
        found = [np.asarray(x)[:n] for x in fn(each, same)]
        self.largest = n + more
        return found

    def _evaluate(self, each, same, seed):
        with self.compiling:
            if self.fn is None:
                self.fn = self._compile()
            fn, many = self.fn, self.many
        with self.calling, one_thread:
            _seed(fn, seed)
            parts = list((self._batches if many else _one_by_one)(fn, each, same))
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _batches(self, fn, each, same):
        n = len(each[0]) if each else 1
        at, key = 0, tuple(np.shape(x) for x in same)
        while at < n:
            known = self.bytes.get(key)
            # The first point says how large its arrays are.
            stop = min(at + (1 if known is None else max(1, BATCH_BYTES // known)), n)
            arguments = [*(x[at:stop] for x in each), *same]
            if known is None:
                found, self.bytes[key] = _measured(fn, arguments, len(each))
            else:
                found = fn(*arguments)
            found = _with_all_axes(fn, found)
            yield [np.broadcast_to(x, (stop - at, *x.shape[1:])) for x in found]
            at = stop


def _spread(inputs, outputs, mesh) -> Any:
    """Return a function of points that each device of a mesh has its part of."""
    import jax

    from jax.sharding import PartitionSpec as P

    fn = function(inputs, outputs, "JAX").vm.jit_fn

    def part(each, same):
        return jax.lax.map(lambda point: fn(*point, *same), each, batch_size=AT_ONCE)

    everywhere = P(mesh.axis_names)
    specs = {"in_specs": (everywhere, P()), "out_specs": everywhere, "check_vma": False}
    return jax.jit(jax.shard_map(part, mesh=mesh, **specs))


def _one_by_one(fn, each, same):
    for i in range(len(each[0]) if each else 1):
        found = fn(*(x[i] for x in each), *same)
        yield [x[None] for x in _with_all_axes(fn, found)]


def _with_all_axes(fn, found) -> list[np.ndarray]:
    """Put back axes of length one, which scipy's draws lack in front."""
    out = []
    for v, x in zip(fn.maker.fgraph.outputs, found, strict=False):  # then come updates of the seed
        out.append(np.asarray(x)[(None,) * (v.type.ndim - np.ndim(x))])
    return out


def _measured(fn, arguments, n_each):
    """Evaluate at one point, and return how large the largest array is that depends on it."""
    thunks, depends, sizes = fn.vm.thunks, set(fn.maker.fgraph.inputs[:n_each]), [8]

    def measured(node, thunk):
        @functools.wraps(thunk)
        def run():
            lacking = thunk()
            found = (storage[0] for storage in thunk.outputs)
            sizes.extend(x.nbytes for x in found if isinstance(x, np.ndarray))
            return lacking

        if depends.isdisjoint(node.inputs):
            return thunk
        depends.update(node.outputs)
        return run

    fn.vm.thunks = [measured(*pair) for pair in zip(fn.vm.nodes, thunks, strict=True)]
    try:
        return fn(*arguments), max(sizes)
    finally:
        fn.vm.thunks = thunks


def _seed(fn, seed) -> None:
    if seed is None:
        return
    rng = np.random.default_rng(seed)
    for shared in fn.get_shared():
        if isinstance(shared.get_value(borrow=True), np.random.Generator):
            shared.set_value(np.random.default_rng(rng.integers(2**63)), borrow=True)


def over(outputs: Sequence[Variable], values, batched) -> list[Variable]:
    """Vectorize graphs; what does not depend on the values has one entry for all."""
    outputs = list(outputs)
    drawn = [v for v in ancestors(outputs, blockers=values) if _is_drawn(v)]
    new = vectorize_graph([*outputs, *drawn], dict(zip(values, batched, strict=True)))
    for x, old in zip(new[len(outputs) :], drawn, strict=True):
        if x.type.ndim == old.type.ndim:
            raise NotImplementedError("All points would have the same draw.")
    return [
        x if x.type.ndim > old.type.ndim else x[None] for x, old in zip(new, outputs, strict=False)
    ]


def one_product(outputs: Sequence[Variable]) -> list[Variable]:
    """Multiply a matrix that is the same for all points with vectors of all of them at once.

    numpy would read the matrix again for each point.
    """
    fgraph = FunctionGraph(outputs=list(outputs), clone=False)
    for node in fgraph.toposort():
        if not (isinstance(node.op, Blockwise) and isinstance(node.op.core_op, Dot)):
            continue
        x, y = node.inputs
        if x.type.ndim == 3 and x.type.shape[0] == 1 and y.type.shape[0] != 1:
            columns = pt.moveaxis(y, 0, -1)  # M x K x S
            flat = pt.dot(x[0], columns.reshape((columns.shape[0], -1)))
            new = flat.reshape((x.shape[1], *columns.shape[1:]))
            new = pt.specify_shape(pt.moveaxis(new, -1, 0), node.outputs[0].type.shape)
            fgraph.replace(node.outputs[0], new, import_missing=True)
    return list(fgraph.outputs)


def _is_drawn(v: Variable) -> bool:
    node = v.owner
    return node is not None and isinstance(node.op, RandomVariable) and v is node.outputs[1]


@_vectorize_node.register(Rows)
@_vectorize_node.register(BlockSum)
def _vectorize_loop(op, node, *inputs):
    """Let a loop take many points. Parameters of rows have an axis of points after that of rows."""
    inner = op.fgraph.unfreeze()
    variables, given, swaps, widths = list(inner.inputs), list(inputs), {}, []
    for i, (new, old) in enumerate(zip(inputs, node.inputs, strict=True)):
        if i >= op.n_rows:
            widths += [n for n in old.type.shape[:1] if n]
        if new.type.ndim == old.type.ndim:
            continue
        if i < op.n_rows:
            given[i] = pt.moveaxis(new, 1, 0)
            shape = (None, *given[i].type.shape[1:])
            variables[i] = pt.tensor(dtype=new.type.dtype, shape=shape)
            swaps[inner.inputs[i]] = pt.moveaxis(variables[i], 0, 1)
        else:
            swaps[inner.inputs[i]] = variables[i] = new.type()
    outputs = numpy_only(vectorize_graph(list(inner.outputs), swaps))
    n_points = [x.type.ndim - o.type.ndim for x, o in zip(outputs, node.outputs, strict=True)]
    # What is joined has the rows first.
    for i in range(op.n_sums, len(outputs)):
        outputs[i] = pt.moveaxis(outputs[i], n_points[i], 0)
    width = op.width or max(widths, default=100)
    loop = op.like(
        variables,
        outputs,
        block_size=op.block_size or automatic_block(width // (op.order.repeats if op.order else 1)),
        on_unused_input="ignore",
    ).make_node(*given)
    found = [
        pt.moveaxis(x, 0, k) if i >= op.n_sums and k else x
        for i, (x, k) in enumerate(zip(loop.outputs, n_points, strict=True))
    ]
    return found


@_vectorize_node.register(Held)
@_vectorize_node.register(Kernel)
@_vectorize_node.register(ConditionalMoments)
def _vectorize_inlined(op, node, *inputs):
    """Vectorize what an Op stands for."""
    inner = op.fgraph.unfreeze()
    return vectorize_graph(list(inner.outputs), dict(zip(inner.inputs, inputs, strict=True)))


@_vectorize_node.register(IfElse)
def _vectorize_choice(op, node, *inputs):
    """Choose once for all points, if that can be done."""
    if any(new.type.ndim != old.type.ndim for new, old in zip(inputs, node.inputs, strict=True)):
        raise NotImplementedError("Points may differ in which graph they take.")
    return op.make_node(*inputs)
