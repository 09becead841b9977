"""Ops that PyTensor has no form of: loops that numba compiles, and their form for JAX."""

from importlib import import_module

import numpy as np

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import dfs_rewriter, get_active_mode, node_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.jax.ops import JAXOp


class WithJAX(JAXOp):
    """An Op whose `perform_jax` JAX traces, made without JAX. PyTensor knows it by its base."""

    __props__: tuple[str, ...] = ()

    def __init__(self):
        # Not JAXOp's, which takes the JAX function and so needs JAX.
        self.name = None

    def __repr__(self):
        return str(self)

    def connection_pattern(self, node):
        """Say that whole numbers have no gradient."""
        return [[x.dtype.startswith("float")] * len(node.outputs) for x in node.inputs]


class Loop(WithJAX):
    """An Op that is the function `loop` of ``backends/{module}_numba.py`` and ``_jax.py``.

    numba compiles the first one for Python, too. One that has a `graph` needs no second.
    """

    module: str
    loop: str
    settings: tuple = ()
    """What it takes after the inputs."""

    def of_backend(self, backend: str):
        """Return the module for a backend, which is imported where it is needed."""
        return import_module(f"pymc_vsgp.ops.backends.{self.module}_{backend}")

    def perform(self, node, inputs, outputs):
        """Run the compiled loop."""
        loop = getattr(self.of_backend("numba"), self.loop)
        # Not ascontiguousarray, which makes an array of a number.
        found = loop(*(np.asarray(x, order="C") for x in inputs), *self.settings)
        for storage, x in zip(outputs, found if len(outputs) > 1 else (found,), strict=True):
            storage[0] = x

    def perform_jax(self, *inputs):
        """Loop in JAX; PyTensor traces this."""
        return getattr(self.of_backend("jax"), self.loop)(*inputs, *self.settings)

    def graph(self, *inputs):
        """Return the outputs in Ops that JAX has, or None. Shapes of arrays are known there."""
        return None


@node_rewriter([Loop])
def local_graph_of_loop(fgraph, node):
    """Write a loop in Ops that JAX has."""
    if not isinstance(getattr(get_active_mode(fgraph), "linker", None), JAXLinker):
        return None
    return node.op.graph(*node.inputs)


optdb.register(
    "loops_of_pymc_vsgp",
    dfs_rewriter(local_graph_of_loop),
    "minimum_compile",
    "fast_compile",
    "fast_run",
    position=48.1,
)
