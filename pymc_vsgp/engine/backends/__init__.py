"""What each backend of PyTensor needs to run our Ops: loaded when one of them is compiled for it.

Importing numba or JAX takes a second, and most imports of the package use one of them at most.
"""

from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import get_active_mode, graph_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.ops.cholesky import SafeCholesky
from pymc_vsgp.ops.linalg import WeightedGram
from pymc_vsgp.ops.rows import Rows

MODULES = {
    NumbaLinker: (
        "ops.backends.linalg_numba",
        "ops.backends.scalar_numba",
        "ops.backends.rows_numba",
        "ops.backends.cholesky_numba",
        "ops.backends.loops_numba",
        "ops.backends.mapped_numba",
    ),
    JAXLinker: (
        "engine.backends.block_sum_jax",
        "engine.backends.sharded_jax",
        "engine.backends.pointwise_jax",
        "ops.backends.rows_jax",
        "ops.backends.mapped_jax",
    ),
}


_of_our_model = ContextVar("of_our_model", default=False)


@contextmanager
def of_our_model():
    """Say that all that is compiled is of a model of ours, where the graph may not tell.

    What turns draws into coefficients of Fourier features has none of our Ops.
    """
    token = _of_our_model.set(True)
    try:
        yield
    finally:
        _of_our_model.reset(token)


def is_ours(op) -> bool:
    """Whether this Op, or one inside of it, is of this package."""
    inner = getattr(op, "fgraph", None)
    within = [node.op for node in inner.apply_nodes] if inner is not None else []
    within += [x for x in (getattr(op, a, None) for a in ("core_op", "scalar_op")) if x is not None]
    return type(op).__module__.startswith("pymc_vsgp.") or any(map(is_ours, within))


@graph_rewriter
def load_backend(fgraph):
    """Register our Ops with the backend that this graph is compiled for."""
    if not any(is_ours(node.op) for node in fgraph.apply_nodes):
        return
    register_with(getattr(get_active_mode(fgraph), "linker", None))


def register_with(linker) -> None:
    """Register our Ops with the backend of a linker."""
    for kind, modules in MODULES.items():
        if isinstance(linker, kind):
            for module in modules:
                import_module(f"pymc_vsgp.{module}")


optdb.register("load_backend_of_pymc_vsgp", load_backend, "minimum_compile", position=48.4)


@graph_rewriter
def use_lean_products(fgraph):
    """On numba, replace products and solves of our log densities by ones that compile fast."""
    linker = getattr(get_active_mode(fgraph), "linker", None)
    if isinstance(linker, NumbaLinker) and (_of_our_model.get() or _has_lean_products(fgraph)):
        _replace_products(fgraph)


def _has_lean_products(fgraph) -> bool:
    return any(
        isinstance(node.op, Rows | WeightedGram | SafeCholesky) for node in fgraph.apply_nodes
    )


def _replace_products(fgraph) -> None:
    linalg = import_module("pymc_vsgp.ops.backends.linalg_numba")
    scalar = import_module("pymc_vsgp.ops.backends.scalar_numba")
    for node in fgraph.toposort():
        new = (linalg.solve_by_panels(node) if isinstance(node.op, BlockSum) else None) or node
        if isinstance(new.op, Rows) and not _has_lean_products(new.op.fgraph):
            # When its turn comes, nothing in this block says that it is ours.
            inner = new.op.fgraph.unfreeze()
            _replace_products(inner)
            new = new.op.clone_with_inner_graph(inner).make_node(*new.inputs)
        outputs = linalg.lean(node) or scalar.vectorized(node) if new is node else new.outputs
        if outputs is not None:
            fgraph.replace_all(
                list(zip(node.outputs, outputs, strict=True)), reason="use_lean_products"
            )


# After what PyTensor knows of products has been used, before fusion.
optdb.register("lean_products_of_pymc_vsgp", use_lean_products, "fast_run", position=48.6)


@graph_rewriter
def link_by_address(fgraph):
    """On numba, let callers of our log densities have their address, and not compile them again."""
    linker = getattr(get_active_mode(fgraph), "linker", None)
    if isinstance(linker, NumbaLinker) and any(is_ours(node.op) for node in fgraph.apply_nodes):
        import_module("pymc_vsgp.ops.backends.linked_numba").link(fgraph)


optdb.register("link_by_address_of_pymc_vsgp", link_by_address, "minimum_compile", position=1000)
