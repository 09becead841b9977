"""Where chains of NUTS start."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_vsgp.checks import as_real, kind, known_value
from pymc_vsgp.compile import at_points
from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.fit.starts import all_of, shares
from pymc_vsgp.model.variable import inducing_variables

__all__ = ["check_initvals", "of_target", "starts_of_chains"]

# Starts are drawn from the Gaussian stage, somewhat wider, so that R-hat can tell if chains agree.
DISPERSION = 1.5
STRATEGIES = ["support_point", "prior"]  # of PyMC, for an initial value


def check_initvals(initvals: Any, model: Model) -> None:
    """Raise unless initial values, of all chains or of each, are of variables of the model."""
    known = {v.name for v in (*model.unobserved_RVs, *model.value_vars)}
    shapes = model.eval_rv_shapes() if initvals is not None else {}
    for point in initvals if isinstance(initvals, list | tuple | np.ndarray) else [initvals]:
        if not isinstance(point, dict | None):
            raise TypeError(f"initvals is {kind(point)}. Pass a dict of values by name.")
        for key, value in (point or {}).items():
            name = getattr(key, "name", key)
            if name not in known and model.name_for(str(name)) not in known:
                names = [v.name for v in model.free_RVs]
                raise ValueError(f"initvals has {name!r}. Pass values by name, of {names}.")
            if isinstance(value, str) and value not in STRATEGIES:
                raise ValueError(f"initvals has {value!r}. Pass numbers, or one of {STRATEGIES}.")
            rv = model.named_vars.get(model.name_for(str(name)))
            if rv in model.free_RVs and not isinstance(value, str | Variable | None):
                start = as_real(value, f"The initial value of {rv.name!r}")
                _check_initval(model, rv, start, tuple(int(n) for n in shapes[rv.name]))


def _check_initval(model: Model, rv: Variable, value: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise unless a value has the shape of its variable, and is one that it can have."""
    if value.shape != shape:
        raise ValueError(
            f"The initial value of {rv.name!r} has shape {value.shape}, and the variable {shape}. "
            "Pass a value for each entry."
        )
    if (transform := model.rvs_to_transforms[rv]) is not None:
        moved = known_value(transform.forward(pt.constant(value), *rv.owner.inputs))
        if moved is not None and not np.isfinite(moved).all():
            raise ValueError(
                f"The initial value of {rv.name!r} is {value}, which it can't have. "
                "Pass one with a density above zero."
            )


def of_target(initvals, target: Model):
    """Initial values, less those of inducing values that are integrated out."""
    if not isinstance(initvals, dict):
        return [point and of_target(point, target) for point in initvals]
    known = {v.name for v in (*target.free_RVs, *target.value_vars)}
    return {k: x for k, x in initvals.items() if getattr(k, "name", k) in known}


def starts_of_chains(
    model: Model, stage: GaussianStage, chains: int, nuts_sampler: str, rng, compile_kwargs
) -> dict[str, Any]:
    """Return the arguments of ``pm.sample`` for dispersed starts.

    Where there are several optima, each is the start of its share of the chains: those that can't
    get from one to another are seen to disagree.
    """
    if nuts_sampler == "nutpie":
        # One expression, of which nutpie takes a draw for each chain.
        expressions = random_start(model, stage)
        settings = {
            "initial_points": expressions,
            "jitter_rvs": set(),
            "gradient_backend": "pytensor",
            # Shared variables take nutpie seconds to compile, each time.
            "freeze_model": True,
            **(compile_kwargs or {}),
        }
        return {"compile_kwargs": settings}
    optima = all_of(stage)
    at = rng.choice(len(optima), size=chains, p=shares(optima))
    theta = np.concatenate([optima[k]._draw_theta(1, rng, DISPERSION) for k in at])
    points = stage._points(theta, DISPERSION, rng)
    names = [rv.name for rv in model.free_RVs]
    found = at_points(model, model.free_RVs, points)
    return {"initvals": [dict(zip(names, values, strict=True)) for values in found]}


def random_start(model: Model, stage: GaussianStage) -> dict[str, Any]:
    """Return, by variable, an expression for a draw from the Gaussian stage.

    By name, for nutpie compiles a copy of the model for JAX.
    """
    optima = all_of(stage)
    center, root = (np.stack(x) for x in zip(*(s._theta_normal() for s in optima), strict=True))
    at = pm.Categorical.dist(shares(optima)) if len(optima) > 1 else 0
    theta = pt.constant(center)[at]
    if (d := center.shape[1]) > 0:
        noise = pm.Normal.dist(0.0, 1.0, size=d)
        theta = theta + pt.dot(pt.constant(DISPERSION * root)[at], noise)
    values = stage._split_theta(theta)
    for u in inducing_variables(model):
        epsilon = pm.Normal.dist(0.0, DISPERSION, size=stage._shape_of_epsilon(u))
        values[model.rvs_to_values[u].name] = epsilon
    outputs = model.replace_rvs_by_values(model.free_RVs)
    swaps = {v: values[v.name].astype(v.dtype) for v in model.value_vars if v.name in values}
    outputs = graph_replace(outputs, swaps, strict=False)
    return {rv.name: x for rv, x in zip(model.free_RVs, outputs, strict=True)}
