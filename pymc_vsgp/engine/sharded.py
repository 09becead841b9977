"""The sum over the data on several devices of JAX, of one process or of several.

Rows live on their device and never move. An evaluation sends parameters and inducing values out,
and adds up the values and gradients of the devices: some M^2 numbers, however many rows there are.
A mesh has a second axis, of one device unless the user gives it more, that draws are spread over.
"""

import importlib.util

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any

import numpy as np

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.sharedvar import TensorSharedVariable

from pymc_vsgp.checks import check_number, generator_of, known_value
from pymc_vsgp.engine.streaming import BlockSum, block_sums

__all__ = [
    "AXIS",
    "DRAWS",
    "Placed",
    "ShardedSum",
    "gathered",
    "generator",
    "local_rows",
    "mesh_of",
    "on_devices",
    "placed",
    "together",
]

AXIS, DRAWS = "rows", "draws"  # of a mesh

APART = (
    "The processes of this run are at different parameters. Pass the same random_seed to all of "
    "them, and run them on machines and packages of one kind."
)


class ShardedSum(BlockSum):
    """A `BlockSum` whose rows are spread over a mesh of devices.

    Parameters
    ----------
    mesh : jax.sharding.Mesh
        The devices.
    at_once : int, optional
        Number of points that a device evaluates it at, all at once: they share the room of a block.
        Whoever evaluates it there has mapped over the devices. By default it does so itself.
    *args, **kwargs
        Of `BlockSum`.
    """

    def __init__(self, *args, mesh: Any, at_once: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.mesh, self.at_once = mesh, at_once

    @property
    def arguments(self):
        """What it was made with, beside the graph."""
        return super().arguments | {"mesh": self.mesh, "at_once": self.at_once}


class Placed(TensorSharedVariable):
    """Data on devices of JAX, whose arrays do not change, so they are not copied."""

    def bring(self, value: Any) -> None:
        """Put an array where JAX computes."""
        import jax.numpy as jnp

        self.container.storage[0] = jnp.asarray(value)

    def get_value(self, borrow=False, return_internal_type=False):
        """Return the array of JAX: the filter of the type would bring it back to the host."""
        return self.container.storage[0]


def local_rows(n: int) -> slice:
    """
    Return the rows that this process of several loads: as many for each device of JAX.

    Call ``jax.distributed.initialize`` before. Each process then builds the model with its rows,
    and ``devices=jax.devices()`` adds up over all of them.

    Parameters
    ----------
    n : int
        Number of rows of the whole data.

    Returns
    -------
    slice
        All of them where there is one process.

    Examples
    --------
    .. code-block:: python

        rows = vsgp.local_rows(len(X))
        X, y = X[rows], y[rows]
    """
    _require_jax()
    import jax

    n = check_number("n", n, 0)
    owners = np.array([d.process_index for d in jax.devices()])
    start, stop = ((owners < jax.process_index() + i).sum() for i in range(2))
    return slice(int(n * start // len(owners)), int(n * stop // len(owners)))


def mesh_of(devices: Any) -> Any:
    """Return a mesh of devices, with the axes of draws and of rows.

    Raise where they are none, or not of all processes that run.
    """
    _require_jax()
    import jax

    # It turns on 64 bits, without which the data would lose digits.
    import_module("pytensor.link.jax.dispatch")
    found = devices
    if isinstance(devices, jax.sharding.Mesh):
        names, found = devices.axis_names, devices.devices
        if names not in ((AXIS,), (DRAWS,), (DRAWS, AXIS), (AXIS, DRAWS)):
            raise ValueError(
                f"The axes of the mesh are {names}. "
                f"Name them {AXIS!r} and {DRAWS!r}, after what is to be spread over each."
            )
        found = found[:, None] if names == (DRAWS,) else found
        found = found.T if names == (AXIS, DRAWS) else found
    found = np.atleast_2d(np.array(found, dtype=object))
    different = set(found.flat) if all(isinstance(d, jax.Device) for d in found.flat) else ()
    if found.ndim > 2 or not 0 < found.size == len(different):
        raise TypeError(
            f"devices is {devices!r}, but different devices of JAX are needed. "
            "Pass jax.devices(), some of them, or a table with a row for each part of the draws."
        )
    owners, n = np.array([[d.process_index for d in some] for some in found]), jax.process_count()
    known = set(owners.flat)
    if known not in ({jax.process_index()}, set(range(n))):
        raise ValueError(
            f"devices are of the processes {sorted(known)}, and {n} run. "
            "Pass jax.devices(), or jax.local_devices()."
        )
    if (owners != owners[0]).any():
        raise ValueError(
            "A column of devices has the same rows of the data, and one is of several processes. "
            "Put devices of one process into each column."
        )
    return jax.sharding.Mesh(found, (DRAWS, AXIS))


def _require_jax() -> None:
    if importlib.util.find_spec("jax") is None:
        raise ImportError("Devices are those of JAX, which is not installed. Run pip install jax.")


def gathered(mesh: Any, numbers: Any) -> np.ndarray:
    """Return what each process has of some numbers, a row for each."""
    numbers = np.atleast_1d(numbers)
    if mesh is None or not mesh.is_multi_process:
        return numbers[None]
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(numbers)).reshape(-1, numbers.size)


def generator(mesh: Any, random_seed: Any) -> np.random.Generator:
    """Return a generator; without a seed all processes take that of the first."""
    if mesh is not None and mesh.is_multi_process and random_seed is None:
        random_seed = int(gathered(mesh, np.random.default_rng().integers(2**62))[0, 0])
    return generator_of(random_seed)


@contextmanager
def together(mesh: Any, store: Any = None) -> Iterator[None]:
    """Context that says what has happened where another process has ended."""
    try:
        yield
    except Exception as error:
        if mesh is None or not mesh.is_multi_process:
            raise
        text = str(error)
        if APART in text:
            raise RuntimeError(APART) from error
        signs = ("gloo", "nccl", "connection", "distributed service", "deadline", "unavailable")
        if not any(sign in text.lower() for sign in signs):
            raise
        kept = "" if store is None else f" The draws so far: vsgp.open_draws({str(store)!r})."
        raise RuntimeError(
            "Another process of this run has ended or can't be reached, and the sum over the data "
            f"takes all of them. Look at its output, and start all of them again.{kept}"
        ) from error


def on_devices(
    outputs: Sequence[Variable], mesh: Any, at_once: int | None = None
) -> list[Variable]:
    """Let the loops over the data in graphs run on the devices of a mesh; see `ShardedSum`.

    A process has its own rows, and all else is the same for all of them.
    """
    placed: dict[Variable, Variable] = {}
    swaps: dict[Variable, Variable] = {}
    several = mesh.is_multi_process
    for node in block_sums(*outputs):
        op = node.op
        if any(p.conditional.whole for p in op.recipe.parts):
            raise NotImplementedError(
                "Data on a grid are worked on at once, so they do not spread over devices. "
                "Pass block_size to gp.likelihood, or drop devices."
            )
        rows = node.inputs[: op.n_rows]
        n = len(_known(rows[1]))
        if several:
            _check_own_rows(rows, mesh)
        for i, x in enumerate(rows):
            if x not in placed:
                name = f"{x.name or 'rows'}_{len(placed)}_on_devices"
                placed[x] = _placed(x, i == 0, mesh, name)
        inner = op.fgraph.unfreeze()
        # JAX takes rows as they come.
        arguments = op.arguments | {"mesh": mesh, "at_once": at_once, "order": None}
        sums = ShardedSum(
            list(inner.inputs), list(inner.outputs), on_unused_input="ignore", **arguments
        )
        new = sums(*(placed[x] for x in rows), *node.inputs[op.n_rows :], return_list=True)
        for i, (old, x) in enumerate(zip(node.outputs, new, strict=True)):
            if i < op.n_sums:
                swaps[old] = x
            elif not several:  # else they are in other processes
                swaps[old] = x[:n]
    new = graph_replace(list(outputs), swaps, strict=False)
    if several:
        if any(not isinstance(node.op, ShardedSum) for node in block_sums(*new)):
            raise NotImplementedError(
                "The model uses terms of single observations, and other processes have some. "
                "Use one process, or the sum of the terms alone."
            )
        _check_same(new, mesh)
    return new


def _known(x: Variable) -> np.ndarray:
    value = known_value(x)
    if value is None:
        raise NotImplementedError(
            "Inputs, observations or parameters of a row depend on random variables, so they "
            "change place with every evaluation. Drop devices."
        )
    return value


def placed(shared: SharedVariable) -> Placed:
    """Return a variable that takes the place of a shared one, and gets values by `bring`."""
    value = shared.get_value(borrow=True)
    return Placed(type=shared.type, value=value, strict=False, name=shared.name)


def _placed(x: Variable, is_weights: bool, mesh: Any, name: str) -> Variable:
    """Return data with each row on its device; rows that fill up the last one have no weight."""
    import jax

    from jax.sharding import NamedSharding, PartitionSpec

    value = _known(x)
    here = [d.process_index == jax.process_index() for d in mesh.devices[0]]
    n, own = len(value), sum(here)
    # The same number on all devices, so that of the process with the most for each.
    size = int(gathered(mesh, -(-n // own)).max())
    if n < own:
        raise ValueError(
            f"There are {n} rows of the data for {own} devices. Pass at most {n} devices."
        )
    shape = (size * len(here), *value.shape[1:])
    first = {i * size: k * size for k, i in enumerate(np.flatnonzero(here))}

    def part(index):
        at = first[index[0].indices(shape[0])[0]] + np.arange(size)
        found = np.array(value[np.minimum(at, n - 1)])
        return np.where(at < n, found, 0.0) if is_weights else found

    rows = jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(AXIS)), part)
    if rows.dtype != value.dtype:
        raise RuntimeError(
            f"JAX made {rows.dtype} of {value.dtype}. "
            "Call jax.config.update('jax_enable_x64', True) first."
        )
    shared = Placed(
        type=x.type.clone(shape=(None, *value.shape[1:])),
        value=np.zeros((0, *value.shape[1:]), value.dtype),
        strict=True,
        name=name,
    )
    shared.container.storage[0] = rows
    return shared


def _check_own_rows(rows: Sequence[Variable], mesh: Any) -> None:
    """Raise where all processes have the same rows, which would count once for each."""
    each = gathered(mesh, _digest([_known(x) for x in rows]))
    if (each == each[0]).all():
        raise ValueError(
            "All processes have the same rows of the data, so each would count several times. "
            "Pass those of vsgp.local_rows(n) to the model of each process."
        )


def _check_same(outputs: Sequence[Variable], mesh: Any) -> None:
    """Raise where processes differ in more than their rows."""
    each = gathered(mesh, _digest(_constants(outputs)))
    if (each != each[0]).any():
        raise ValueError(
            "The models of the processes differ in more than their rows: in inducing inputs, "
            "priors, other constants, or data outside of a likelihood of a process. "
            "Make these of what all processes have, and not of the rows of one."
        )


def _constants(outputs: Sequence[Variable]) -> Iterator[Any]:
    """Give the numbers in graphs, less the rows of the data."""
    seen = set()
    for v in ancestors(outputs):
        if isinstance(v, Constant):
            yield v.data
        elif isinstance(v, SharedVariable):
            if not isinstance(v, Placed):
                yield v.get_value(borrow=True)
        elif v.owner is not None and v.owner not in seen:
            seen.add(v.owner)
            if (inner := getattr(v.owner.op, "fgraph", None)) is not None:
                yield from _constants(inner.outputs)


def _digest(values) -> int:
    """Return a number of these values in any order."""
    total = 0
    for x in values:
        known = isinstance(x, np.ndarray | np.generic | int | float)
        # Not a copy of what may be in a file.
        text = np.ascontiguousarray(x).ravel().view("u1") if known else repr(x).encode()
        total += int.from_bytes(sha256(text).digest()[:7])
    return total % 2**62
