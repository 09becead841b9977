"""Graphs of a model at one point of its variables."""

from typing import Any

import numpy as np
import pymc as pm

from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import check_point, known_value
from pymc_vsgp.compile import evaluate
from pymc_vsgp.rvs import check_own

__all__ = ["evaluate_at"]


def evaluate_at(graphs: list, point: dict[str, Any] | None, model: pm.Model) -> list[np.ndarray]:
    """Evaluate graphs of the random variables of a model at their values in `point`."""
    known, model = check_point(point, nan=False), model.root
    values = {rv: known[rv.name] for rv in model.free_RVs if rv.name in known}
    shapes = model.eval_rv_shapes() if values else {}
    for rv, value in values.items():
        if value.shape != shapes[rv.name]:
            raise ValueError(
                f"point[{rv.name!r}] has shape {value.shape}, and the variable {shapes[rv.name]}. "
                "Pass one value of it, not draws."
            )
    needed = dict.fromkeys(ancestors(graphs, blockers=model.basic_RVs))
    check_own(needed, model, "Pass the model that this process was made in.")
    if missing := [rv.name for rv in model.free_RVs if rv in needed and rv not in values]:
        raise ValueError(
            f"point has no value for {missing}. Pass a value of each, or predict from draws with "
            "vsgp.predict(stage.to_datatree(), Xnew)."
        )
    fixed = [rv for rv in model.observed_RVs if rv in needed]
    return evaluate(graphs, values | {rv: known_value(model.rvs_to_values[rv]) for rv in fixed})
