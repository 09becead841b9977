"""A function of blocks of rows, one after another: what goes with rows is joined, the rest summed.

No array that has more than its result for each row is ever held for all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.inner_function import link_only_mode
from pytensor.gradient import DisconnectedType, disconnected_type, grad
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.compile import simplify_block

# Bytes of one M x B buffer. A handful of them are alive at once and should stay in the L2 cache,
# and a block below 128 rows wastes its time in overhead.
BLOCK_BYTES = 400_000
SMALLEST_BLOCK, LARGEST_BLOCK = 128, 4096


UNEQUAL = (
    "Inputs, observations and parameters that go with the rows have different lengths. "
    "Set all of them anew, in one call of pm.set_data."
)


class Order(NamedTuple):
    """An order in which to take rows: any will do, and equal ones next to each other save work.

    JAX takes them as they come.
    """

    input: int
    """Which of the inputs with rows it is. Of the wrong length it does not count."""
    repeats: int
    """Equal rows for each distinct one, on average."""


class Rows(OpFromGraph):
    """Evaluate a graph for blocks of rows.

    Parameters
    ----------
    inputs, outputs : list of Variable
        The graph of one block.
    n_rows : int
        How many of the inputs, the first ones, have rows.
    n_sums : int
        How many of the outputs, the first ones, are sums over rows; the others have rows.
    block_size : int, optional
        Rows in a block. By default what makes an M x B matrix fit into the cache.
    width : int, optional
        What M is in this. By default the largest of the inputs that all rows share.
    order : Order, optional
        An order to take the rows in. By default as they come.
    """

    is_simple = True  # its graph; see `pymc_vsgp.compile.simplify`

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        *,
        n_rows: int,
        n_sums: int,
        block_size: int | None = None,
        width: int | None = None,
        order: Order | None = None,
        **kwargs,
    ):
        super().__init__(list(inputs), list(outputs), **kwargs)
        self.n_rows = n_rows
        self.n_sums = n_sums
        self.block_size = block_size
        self.width = width
        self.order = order

    @property
    def arguments(self) -> dict[str, Any]:
        """What it was made with, beside the graph."""
        names = ("n_rows", "n_sums", "block_size", "width", "order")
        return {name: getattr(self, name) for name in names}

    @property
    def settings(self) -> tuple:
        """What makes it differ from another one with the same graph."""
        return tuple(self.arguments.values())

    def like(self, inputs, outputs, **changes) -> "Rows":
        """Return the same for another graph, without what is known of its gradient."""
        return type(self)(inputs, outputs, **self.arguments | changes)

    def __eq__(self, other):
        """Compare the graphs and the settings."""
        return super().__eq__(other) and self.settings == other.settings

    def __hash__(self):
        """Hash the graph and the settings."""
        return hash((super().__hash__(), self.settings))

    def __str__(self):
        """Name it in printed graphs."""
        return f"{type(self).__name__}{{{self.n_sums} sums}}"

    def pullback(self, inputs, outputs, cotangents):
        """Pull back in each block, in another pass over them."""
        inner = self.fgraph.unfreeze()
        known = {
            y: c.type()
            for y, c in zip(inner.outputs, cotangents, strict=True)
            if not isinstance(c.type, DisconnectedType)
        }
        given = [c for c in cotangents if not isinstance(c.type, DisconnectedType)]
        n = sum(y in known for y in inner.outputs[: self.n_sums])
        sums, rows = list(known.values())[:n], list(known.values())[n:]
        real = [i for i, x in enumerate(inner.inputs) if x.dtype.startswith("float")]
        found = grad(
            None,
            [inner.inputs[i] for i in real],
            known_grads=known,
            disconnected_inputs="ignore",
            return_disconnected="disconnected",
        )
        pairs = zip(real, found, strict=True)
        by_input = {i: g for i, g in pairs if not isinstance(g.type, DisconnectedType)}
        real = sorted(by_input, key=lambda i: i < self.n_rows)
        block = simplify_block(
            [*inner.inputs[: self.n_rows], *rows, *inner.inputs[self.n_rows :], *sums],
            [by_input[i] for i in real],
        )
        op = Rows(
            block.inputs,
            block.outputs,
            n_rows=self.n_rows + len(rows),
            n_sums=sum(i >= self.n_rows for i in real),
            block_size=self.block_size,
            width=self.width,
            on_unused_input="ignore",
        )
        arguments = [*inputs[: self.n_rows], *given[n:], *inputs[self.n_rows :], *given[:n]]
        pulled = dict(zip(real, op(*arguments, return_list=True), strict=True))
        return [pulled.get(i, disconnected_type()) for i in range(len(inputs))]

    def connection_pattern(self, node):
        """Say that whole numbers have no gradient."""
        pairs = zip(node.inputs, super().connection_pattern(node), strict=True)
        return [[c and x.dtype.startswith("float") for c in row] for x, row in pairs]

    def rows_per_block(self, *inputs: np.ndarray) -> int:
        """Return the number of rows in a block for these inputs."""
        if self.block_size:
            return self.block_size
        width = self.width or max((x.shape[0] for x in inputs[self.n_rows :] if x.ndim), default=1)
        return automatic_block(width // (self.order.repeats if self.order else 1))

    def link_mode(self, impl):
        """Run the block in Python where the loop does: what runs a few times is not compiled."""
        return link_only_mode("py") if impl == "py" else super().link_mode(impl)

    def perform(self, node, inputs, outputs):
        """Loop in Python over a compiled block."""
        n = inputs[0].shape[0]
        step = self.rows_per_block(*inputs)
        rows, shared = inputs[: self.n_rows], inputs[self.n_rows :]
        order = None if self.order is None else rows[self.order.input]
        if any(len(r) != n for r in rows if r is not order):
            raise ValueError(UNEQUAL)
        if order is not None and len(order) == n:
            rows = [r if r is order else r[order] for r in rows]
        else:
            order = None
        sums: list[np.ndarray] = []
        parts: list[list[np.ndarray]] = []
        for start in range(0, max(n, 1), step):
            block = self.fn(*(np.asarray(r[start : start + step]) for r in rows), *shared)
            if not parts:
                sums = [np.array(s, copy=True) for s in block[: self.n_sums]]
            else:
                for total, s in zip(sums, block[: self.n_sums], strict=True):
                    total += s
            parts.append(block[self.n_sums :])
        whole = [np.concatenate(p) for p in zip(*parts, strict=True)]
        if order is not None:
            for x in whole:
                x[order] = x.copy()
        for storage, result in zip(outputs, (*sums, *whole), strict=True):
            storage[0] = result


def by_rows(
    build: Callable, rows: Sequence[Variable], shared: Sequence[Variable], width: int
) -> TensorVariable:
    """Return the graph that `build` makes of rows and what they share, evaluated in blocks.

    It has an entry for each row. `width` is the number of entries of the largest array for one.
    """
    given = [pt.as_tensor(x) for x in (*rows, *shared)]
    inputs = [
        pt.tensor(dtype=x.dtype, shape=(None, *x.type.shape[1:]) if i < len(rows) else x.type.shape)
        for i, x in enumerate(given)
    ]
    block = simplify_block(inputs, [build(*inputs)])
    needed = set(ancestors(block.outputs))
    used = [i for i, x in enumerate(block.inputs) if x in needed]
    op = Rows(
        [block.inputs[i] for i in used],
        block.outputs,
        n_rows=sum(i < len(rows) for i in used),
        n_sums=0,
        width=width,
    )
    return op(*(given[i] for i in used))


def automatic_block(n_inducing: int) -> int:
    """Rows in a block for M inducing inputs: an M x B matrix should stay in the cache."""
    rows = BLOCK_BYTES // (8 * max(n_inducing, 1))
    return int(min(max(rows // 64 * 64, SMALLEST_BLOCK), LARGEST_BLOCK))
