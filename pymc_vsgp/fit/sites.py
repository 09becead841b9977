"""Sites as data of a model, and the coordinates of its inducing values from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_vsgp.fit.bound import unconstrained
from pymc_vsgp.inducing.coordinates import (
    Diagonal,
    Known,
    Rotated,
    Sites,
    SparseTied,
    Tied,
    Together,
    apply_shared_sites,
    turned,
    whiten,
)
from pymc_vsgp.model.observation import parameters, processes
from pymc_vsgp.model.variable import (
    NO_COLUMNS,
    NO_SITES,
    inducing_variables,
    is_sparse,
    whitened,
)


@contextmanager
def sites_put_in(model: Model, sites: dict[str, Sites]) -> Iterator[None]:
    """Context in which a model has sites of its own, apart from those that it has otherwise."""
    kept = {}
    for u in inducing_variables(model):
        data = [model[name] for name in site_names(u) if name in model.named_vars]
        kept[u] = model.rvs_to_transforms[u], list(u.owner.inputs), data
    take_sites(model)
    put_sites(model, sites)
    try:
        yield
    finally:
        # The variables themselves: what was compiled before looks at them.
        take_sites(model)
        for u, (transform, inputs, data) in kept.items():
            model.rvs_to_transforms[u] = transform
            u.owner.inputs[:] = inputs
            for x in data:
                model.register_data_var(x)


def site_names(u) -> list[str]:
    """Return the names of the data of a model that its sites are."""
    return [f"{u.name}_sites_{what}" for what in Sites._fields]


def sites_of_all(model: Model) -> set[str]:
    """Return the names of the data of a model that sites are."""
    return {name for u in inducing_variables(model) for name in site_names(u)}


def take_sites(model: Model) -> None:
    """Leave a model with whitened coordinates."""
    for u in inducing_variables(model):
        _forget(model, u)


def _forget(model: Any, u) -> None:
    model.rvs_to_transforms[u] = whitened(u)
    u.owner.inputs[3:5] = [pt.constant(zeros) for zeros in NO_SITES]
    if is_sparse(u):
        u.owner.inputs[7] = pt.constant(NO_COLUMNS)
    names = site_names(u)
    while model is not None:  # a model within another shares its variables with that
        for name in names:
            model.named_vars.pop(name, None)
        for data in [d for d in model.data_vars if d.name in names]:
            model.data_vars.remove(data)
        model = model.parent


def put_sites(model: Model, sites: dict[str, Sites]) -> None:
    """Give inducing values sites, and coordinates from them.

    They are data of the model, so that they are saved with the draws that were taken in their
    coordinates, and functions compiled for other sites can be used again.
    """
    us = [u for u in inducing_variables(model) if u.name in sites]
    new = [u for u in us if _put_data(model, u, sites[u.name])]
    shared = [u for u in us if sites[u.name].shared]
    for u in new:
        if u not in shared:
            _put_alone(model, u, sites[u.name])
    if set(new) & set(shared):
        _put_together(model, shared)


def _put_data(model: Model, u, sites: Sites) -> bool:
    """Set the data of a model, and return whether its variables are new."""
    if sites.root.ndim == 2:
        sites = sites._replace(root=sites.root[:, :, None])
    pairs = zip(site_names(u), sites, strict=True)
    values = {name: x for name, x in pairs if x is not None}
    shapes = {name: x.shape for name, x in values.items()}
    own = [model.named_vars[n] for n in site_names(u) if n in model.named_vars]
    # Of a model that was frozen they are constants, which can't be set.
    own = [v for v in own if isinstance(v, SharedVariable)]
    if shapes == {v.name: v.type.shape for v in own}:
        for name, value in values.items():
            model[name].set_value(value)
        return False
    _forget(model, u)
    with model:
        for name, x in values.items():
            pm.Data(name, x, shape=x.shape)  # with sizes, which JAX has to know
    return True


def given_sites(model: Model, u) -> tuple[Variable, Variable]:
    """Return the linear part and the root of sites of a model, as graphs of its variables."""
    if site_names(u)[0] not in model.named_vars:
        return tuple(u.owner.inputs[3:5])
    linear, root, *slope = (model[n] for n in site_names(u) if n in model.named_vars)
    for x in slope:
        theta = unconstrained(model, parameters(model, u))
        linear = linear + pt.dot(x, pt.concatenate([pt.as_tensor(t).ravel() for t in theta]))
    if (turns := _turns(model, u)) is not None:
        return turned(turns, linear[:, :, None])[:, :, 0], turned(turns, root)
    return linear, root


def _turns(model: Model, u) -> list | None:
    """Return what turns sites of variables of a model with theta, if anything does."""
    _, n, last = model[site_names(u)[1]].type.shape
    of = processes(model).get(u.name)
    if of is None or n != u.type.shape[-1] or (last == 1 < n):
        return None
    return of.turns


def _put_alone(model: Model, u, sites: Sites) -> None:
    """Give inducing values coordinates from their own sites."""
    linear, root = u.owner.inputs[3:5] = given_sites(model, u)
    if is_sparse(u):
        of, mean = processes(model)[u.name], u.owner.inputs[1]
        u.owner.inputs[7] = of.conditional.coordinates(of.args, mean, linear[0], root[0, :, 0])
        model.rvs_to_transforms[u] = SparseTied()
        return
    if (turns := _turns(model, u)) is not None:
        root = model[site_names(u)[1]]
        precision = turned(turns, turned(turns, pt.matmul(root, root.mT)).mT)
        u.owner.inputs[4] = precision
        model.rvs_to_transforms[u] = Known()
        return
    diagonal = sites.root.ndim == 2
    model.rvs_to_transforms[u] = Diagonal() if diagonal else Rotated() if sites.rotated else Tied()


def of_all(model: Model, us: list) -> tuple[Variable, Variable, list[slice]]:
    """Return what `apply_shared_sites` does for variables of a model, and where each one is."""
    sites = [given_sites(model, u) for u in us]
    linear, root = zip(*sites, strict=True)
    means, factors = zip(*(u.owner.inputs[1:3] for u in us), strict=True)
    ends = np.cumsum([0, *(np.prod(a.type.shape) for a in linear)]).tolist()
    where = [slice(*pair) for pair in pairwise(ends)]
    return *apply_shared_sites(means, factors, linear, root), where


def _put_together(model: Model, us: list) -> None:
    """Give inducing values of functions that share data coordinates from all their sites."""
    half, L, where = of_all(model, us)
    # The last one is on its own, and each one before it is given those after it.
    for i in reversed(range(len(us))):
        own, at = half[where[i]], where[i]
        for u, other in zip(us[i + 1 :], where[i + 1 :], strict=True):
            own = own - pt.dot(whiten(u, *u.owner.inputs[1:3]).ravel(), L[other, at])
        shape = model[site_names(us[i])[0]].type.shape
        us[i].owner.inputs[3:5] = [own.reshape(shape), L[at, at][None]]
        model.rvs_to_transforms[us[i]] = Together()
