"""Draws of the prior in place of a posterior, for tests that need labels and shapes only."""

import pymc as pm
import xarray as xr


def prior_draws(model, draws=6):
    """A tree with the groups that a sampler leaves."""
    values = pm.draw(model.free_RVs, draws, random_seed=1, mode="FAST_COMPILE")
    tree = xr.DataTree()
    posterior = {}
    for rv, v in zip(model.free_RVs, values, strict=True):
        dims = model.named_vars_to_dims.get(rv.name) or [
            f"{rv.name}_{i}" for i in range(v.ndim - 1)
        ]
        posterior[rv.name] = (("chain", "draw", *dims), v[None])
    tree["posterior"] = xr.DataTree(xr.Dataset(posterior))
    data = {}
    for v in model.data_vars:
        default = [f"{v.name}_dim_{i}" for i in range(v.type.ndim)]
        data[v.name] = (model.named_vars_to_dims.get(v.name) or default, v.get_value())
    tree["constant_data"] = xr.DataTree(xr.Dataset(data))
    return tree
