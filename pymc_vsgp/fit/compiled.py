"""Graphs at many points, compiled: where numpy would take longer than compiling does.

numpy's loops go through memory once for each operation. JAX, which joins them, takes a half to a
thirtieth of its time, and numba a half; but compiling takes three to five seconds, or some ten.
"""

import importlib.util
import logging

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs, io_toposort
from pytensor.scalar.loop import ScalarLoop

from pymc_vsgp.compile import ONCE, building, function
from pymc_vsgp.engine.sharded import AXIS, DRAWS, Placed, on_devices
from pymc_vsgp.engine.vectorized import AT_ONCE, one_thread
from pymc_vsgp.fit.backend import in_file, processors
from pymc_vsgp.inducing.graphs import frontier
from pymc_vsgp.ops.neighbors import SolveEach
from pymc_vsgp.ops.row_integral import RowIntegral

__all__ = ["Compiled", "OnDevices", "adopted", "compiler", "of_stage"]

_log = logging.getLogger("pymc.vsgp")

PART, PART_OF_DEVICE = 32, 64  # points, of which XLA compiles for one number
FEWEST = 30  # evaluations of a stage


class Compiled:
    """Graphs of theta, and of some epsilon at each, at up to `most` points."""

    name: str
    pays: float
    """Seconds of numpy from which compiling pays."""
    part = most = PART
    whole = False
    """Whether fewer points take as long as a part."""

    def __call__(self, *arrays) -> list[np.ndarray]:
        """Evaluate at theta, S x ..., and at epsilon, S x K x ...: arrays of S x K, or S x 1."""
        raise NotImplementedError

    def seconds(self, *arrays) -> float:
        """Return what a theta takes."""
        return _seconds(self, arrays) / (self.part if self.whole else len(arrays[0]))


class Jax(Compiled):
    """On JAX, which leaves processors idle where loops are small: each takes a part of its own."""

    name, pays, whole = "JAX", 5.0, True
    most = PART * processors()

    def __init__(self, outer, inner, outputs):
        import jax

        self.n_outer = len(outer)
        self.at_once = 1 if jax.default_backend() == "cpu" else AT_ONCE
        self.shared, outputs = _of_known_shapes(outputs)
        fixed = [v for v, _ in self.shared]
        self.fn = function([*outer, *inner, *fixed], outputs, "JAX")
        self.at_all = jax.jit(self._at_all)

    def _at_all(self, thetas, epsilons, shared):
        import jax

        fn = self.fn.vm.jit_fn

        def at_theta(point):
            theta, some = point
            if not some:
                return [x[None] for x in fn(*theta, *shared)]
            return jax.vmap(lambda epsilon: fn(*theta, *epsilon, *shared))(some)

        return jax.lax.map(at_theta, (thetas, epsilons), batch_size=self.at_once)

    def values(self) -> list[Any]:
        """Return data and sites, which may have changed."""
        return [known.get_value(borrow=True) for _, known in self.shared]

    def __call__(self, *arrays):
        n, part = len(arrays[0]), self.part
        parts = [[x[i : i + part] for x in arrays] for i in range(0, n, part)]
        found = [self._part(parts[0])] if n <= part else list(_threads().map(self._part, parts))
        return [np.concatenate(column) for column in zip(*found, strict=True)]

    def _part(self, arrays) -> list[np.ndarray]:
        n, part = len(arrays[0]), self.part
        # XLA compiles for each number of points anew.
        filled = [np.concatenate([x, np.repeat(x[-1:], part - n, axis=0)]) for x in arrays]
        found = self.at_all(filled[: self.n_outer], filled[self.n_outer :], self.values())
        return [np.asarray(x)[:n] for x in found]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(processors())


class OnDevices(Jax):
    """On the devices of a mesh, which have the rows of the data."""

    def __init__(self, outer, inner, outputs, mesh):
        import jax

        from jax.sharding import PartitionSpec as P

        self.n_outer, self.at_once = len(outer), AT_ONCE
        self.part = self.most = PART_OF_DEVICE * mesh.shape[DRAWS]
        self.fn = function([*outer, *inner], on_devices(outputs, mesh, AT_ONCE), "JAX")
        places = [P(AXIS) if isinstance(s, Placed) else P() for s in self.fn.get_shared()]

        def part(thetas, epsilons, shared):
            found = self._at_all(thetas, epsilons, shared)
            return jax.lax.all_gather(found, DRAWS, tiled=True)

        specs = {"in_specs": (P(DRAWS), P(DRAWS), places), "out_specs": P(), "check_vma": False}
        self.at_all = jax.jit(jax.shard_map(part, mesh=mesh, **specs))

    def values(self):
        return [s.get_value(borrow=True) for s in self.fn.get_shared()]


class Numba(Compiled):
    """On numba, for those who have no JAX, and for what JAX is slow at."""

    name, pays = "numba", 30.0

    def __init__(self, outer, inner, outputs):
        self.n_outer = len(outer)
        # What depends on theta alone is computed once, for all epsilon.
        found = frontier(outputs, inner) if inner else []
        known = [v for v in found if not isinstance(v, SharedVariable)]
        stand_ins = [v.type() for v in known]
        swaps = dict(zip(known, stand_ins, strict=True))
        given = graph_replace(list(outputs), swaps, strict=False) if swaps else outputs
        self.of_theta = function(outer, known, "NUMBA")
        self.fn = function([*outer, *inner, *stand_ins], given, "NUMBA")

    def __call__(self, *arrays):
        thetas, epsilons = arrays[: self.n_outer], arrays[self.n_outer :]
        K = epsilons[0].shape[1] if epsilons else 1
        found = []
        for i in range(len(arrays[0])):
            theta = [x[i] for x in thetas]
            known = self.of_theta(*theta)
            found += [self.fn(*theta, *(x[i, k] for x in epsilons), *known) for k in range(K)]
        columns = (np.stack([np.array(x) for x in column]) for column in zip(*found, strict=True))
        return [x.reshape(-1, K, *x.shape[1:]) for x in columns]


class Switching:
    """A function of a model that is on numpy until that has taken longer than others compile.

    Where JAX can't do it, or is no faster, numba may.
    """

    def __init__(self, model: Model, inputs, outputs):
        self._spent, self._fastest, self._cold = 0.0, np.inf, True
        self._graph = inputs, outputs
        known = compiler(model, outputs)
        self._others: list[Any] = [] if known is None else [OneOnNumba]
        if known is Jax:
            self._others.insert(0, OneOnJax)
        # Loops of scalars, such as derivatives of an incomplete beta function, take numpy minutes.
        first = OneOnNumba if any(map(_is_scalar_loop, _ops_of(outputs))) else function
        self.fn: Any = first(inputs, outputs)

    def __call__(self, *args):
        began = perf_counter()
        with one_thread:
            found = self.fn(*args)
        seconds = perf_counter() - began
        self._spent += seconds
        # The first one takes longer than all others: modules are imported, loops compiled.
        if self._cold:
            self._cold = False
            return found
        # One that waited for other work of the machine says nothing of the next ones.
        self._fastest = min(self._fastest, seconds)
        while self._others:
            other = self._others[0]
            if max(self._spent, FEWEST * self._fastest) <= other.pays:
                break
            del self._others[0]
            self._switch(other, args, found, self._fastest)
        return found

    def _switch(self, other, args, found, seconds) -> None:
        _log.info("compiling with %s: numpy takes %.2g s an evaluation", other.name, seconds)
        fn = adopted(other.name, partial(other, *self._graph), args, found, seconds, _scale)
        if fn is not None:
            self.fn, self._others = fn, []


class One:
    """Graphs at one point, compiled."""

    name: str
    pays: float
    """Seconds of numpy from which compiling pays."""

    def __call__(self, *args) -> list[np.ndarray]:
        """Evaluate at the values of the inputs."""
        raise NotImplementedError

    def seconds(self, *args) -> float:
        """Return what an evaluation takes."""
        return _seconds(self, args)


class OneOnJax(One):
    """Graphs at one point, on JAX."""

    name, pays = "JAX", 8.0

    def __init__(self, inputs, outputs):
        self.shared, outputs = _of_known_shapes(outputs)
        self.fn = function([*inputs, *(v for v, _ in self.shared)], outputs, "JAX")

    def __call__(self, *args):
        shared = (known.get_value(borrow=True) for _, known in self.shared)
        return [np.asarray(x) for x in self.fn(*args, *shared)]


class OneOnNumba(One):
    """Graphs at one point, on numba, for what JAX has no counterpart of."""

    name, pays = "numba", Numba.pays

    def __init__(self, inputs, outputs):
        self.fn = function(inputs, outputs, "NUMBA")

    def __call__(self, *args):
        return [np.asarray(x) for x in self.fn(*args)]


def of_stage(model: Model, inputs, outputs, mode: Any) -> Any:
    """Return a function that a Gaussian stage evaluates often, and that may change its backend."""
    return Switching(model, inputs, outputs) if mode is ONCE else function(inputs, outputs, mode)


def adopted(name, make, arguments, known, seconds, scale=lambda x: 1.0) -> Any:
    """Return what `make` compiles, if it finds what numpy found, and sooner than in `seconds`.

    What it finds may be off by rounding, in units of the `scale` of what is known.
    """
    try:
        with building:
            compiled = make()
        found = compiled(*arguments)  # as XLA compiles when it is called
    except Exception as error:
        # Whatever a backend lacks is no reason to lose draws, or a fit.
        _log.info("%s can't compile this graph (%s)", name, type(error).__name__)
        _log.debug("%s", error)
        return None
    pairs = zip(found, map(np.asarray, known), strict=True)
    same = all(np.allclose(a, b, 1e-6, 1e-6 * scale(b), equal_nan=True) for a, b in pairs)
    return compiled if same and compiled.seconds(*arguments) < seconds else None


def _scale(x) -> float:
    return np.abs(x[np.isfinite(x)]).max(initial=0.0)


def _seconds(fn, arguments) -> float:
    began = perf_counter()
    fn(*arguments)
    return perf_counter() - began


def compiler(model: Model, outputs) -> type[Compiled] | None:
    """Return what compiles graphs of a model, if that can pay."""
    inside = list(_ops_of(outputs))
    if any(isinstance(op, RowIntegral) for op in inside):
        return None  # numpy takes loops of numba for these, and JAX ten times as long
    if any(isinstance(op, SolveEach) or _is_scalar_loop(op) for op in inside):
        return Numba  # in a sixth of the time of JAX, which has no loops for small matrices
    # JAX would copy what is in a file.
    return Numba if importlib.util.find_spec("jax") is None or in_file(model) else Jax


def _is_scalar_loop(op: Op) -> bool:
    return isinstance(getattr(op, "scalar_op", None), ScalarLoop)


def _ops_of(outputs) -> Iterator[Op]:
    """Return the Ops of graphs, and of graphs within them."""
    for node in io_toposort([], outputs):
        yield node.op
        if isinstance(node.op, HasInnerGraph):
            yield from _ops_of(node.op.fgraph.outputs)


def _of_known_shapes(outputs) -> tuple[list[tuple[Variable, Any]], list[Variable]]:
    """Replace what is shared by inputs with the shapes that it has, as JAX wants to know them.

    Numbers of rows and the like become constants.
    """
    swaps: dict[Any, Variable] = {}
    for v in graph_inputs(outputs):
        if isinstance(v, SharedVariable):
            value = np.asarray(v.get_value(borrow=True))
            count = value.ndim == 0 and value.dtype.kind == "i"
            swaps[v] = pt.constant(value) if count else pt.tensor(dtype=v.dtype, shape=value.shape)
    given = [(new, v) for v, new in swaps.items() if not isinstance(new, Constant)]
    return given, graph_replace(list(outputs), swaps, strict=False)
