"""Models whose data are on several devices of JAX."""

from typing import Any

import pymc as pm

from pymc.model.core import Model
from pymc.model.fgraph import clone_model
from pytensor.graph.replace import graph_replace

from pymc_vsgp.compile import simplify
from pymc_vsgp.engine.sharded import on_devices
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.collapsed import forget

__all__ = ["spread"]


def spread(model: Model, mesh: Any) -> Model:
    """Return a copy of a model that has a potential in place of the data of its processes.

    It is the same log density, of data that live on the devices of a mesh.
    """
    new = clone_model(model)
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
