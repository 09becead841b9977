"""Models whose data are on several devices of JAX."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from queue import SimpleQueue
from typing import Any

import pymc as pm

from pymc.model.core import Model
from pytensor.graph.replace import graph_replace

from pymc_vsgp.compile import simplify
from pymc_vsgp.engine.sharded import AXIS, DRAWS, on_devices
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.collapsed import forget
from pymc_vsgp.model.copies import copy_of

__all__ = ["for_devices", "on_rows_of", "spread"]


def spread(model: Model, mesh: Any) -> Model:
    """Return a copy of a model that has a potential in place of the data of its processes.

    It is the same log density, of data that live on the devices of a mesh.
    """
    new = copy_of(model)
    terms = {rv: pm.logp(rv, new.rvs_to_values[rv]).sum() for rv in new.observed_RVs}
    terms |= {potential: potential.sum() for potential in new.potentials}
    terms = {v: term for v, term in terms.items() if block_sums(term)}
    if not terms:
        raise NotImplementedError(
            "No likelihood of the model is a sum over blocks of rows, so there is nothing to "
            "spread over devices. Drop devices, or block_size=False."
        )
    # Simplifying changes graphs in place, and those of random variables are the model's.
    others = {rv: rv.type() for rv in new.free_RVs}
    simple = simplify(graph_replace(list(terms.values()), others, strict=False))
    back = {x: rv for rv, x in others.items()}
    (total,) = graph_replace([sum(on_devices(simple, mesh))], back, strict=False)
    for v in terms:
        forget(new, v)
    with new:
        pm.Potential("data_on_devices", total)
    order = [rv.name for rv in model.free_RVs]
    list.sort(new.free_RVs, key=lambda rv: order.index(rv.name))
    return new


def for_devices(mesh: Any, kwargs, nuts_sampler: str, collapse: bool | None) -> dict[str, Any]:
    """Return arguments of nutpie for data on devices; refuse what does not go with them."""
    refused = sorted({"step", "trace", "callback", "init", "return_inferencedata"} & set(kwargs))
    if nuts_sampler != "nutpie":
        refused.append(f"nuts_sampler={nuts_sampler!r}")
    if collapse:
        refused.append("collapse=True")
    if (backend := kwargs.get("backend") or "jax") != "jax":
        refused.append(f"backend={backend!r}")
    if refused:
        raise ValueError(
            f"With devices nutpie samples the whole model on JAX, and sample got {refused}. "
            "Drop these, or devices."
        )
    most = _chains_at_once(mesh)
    if (cores := kwargs.get("cores") or most) > most:
        raise ValueError(
            f"cores is {cores}, but {most} is how many chains devices run at once: one on each row "
            "of a table of them, in one process. Drop cores, or pass such a table."
        )
    return {"backend": "jax", "cores": cores}


def _chains_at_once(mesh: Any) -> int:
    """How many; in several processes each would choose its own rows of the table."""
    return 1 if mesh.is_multi_process else mesh.shape[DRAWS]


@contextmanager
def on_rows_of(mesh: Any) -> Iterator[None]:
    """Context in which chains of nutpie run at the same time, on rows of a table of devices."""
    if mesh is None or _chains_at_once(mesh) == 1:
        yield
        return
    import jax

    nutpie = import_module("nutpie.compile_pymc")
    theirs = nutpie.from_pyfunc
    rows = [jax.sharding.Mesh(some, (AXIS,)) for some in mesh.devices]

    def from_pyfunc(*, make_logp_fn, shared_data, **kwargs):
        free: SimpleQueue = SimpleQueue()
        for row in rows:
            free.put((row, {name: _on_row(x, row) for name, x in shared_data.items()}))

        def make():
            logp = make_logp_fn()

            def on_row(x, **shared):
                row, data = found = free.get()  # two chains on one row would wait for each other
                try:
                    with jax.set_mesh(row):
                        return logp(x, **data)
                finally:
                    free.put(found)

            return on_row

        return theirs(make_logp_fn=make, shared_data=shared_data, **kwargs)

    vars(nutpie)["from_pyfunc"] = from_pyfunc
    try:
        yield
    finally:
        vars(nutpie)["from_pyfunc"] = theirs


def _on_row(x: Any, row: Any) -> Any:
    """Return what these devices have of an array; what is not on them they are given."""
    import jax

    from jax.sharding import NamedSharding, PartitionSpec

    parts = {s.device: s.data for s in x.addressable_shards}
    if not {*row.devices.flat} <= {*parts}:
        return jax.device_put(x, NamedSharding(row, PartitionSpec()))
    place = NamedSharding(row, PartitionSpec(AXIS))
    return jax.make_array_from_single_device_arrays(
        x.shape, place, [parts[d] for d in row.devices.flat]
    )
