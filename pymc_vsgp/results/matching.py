"""Whether draws are of the inducing variables that a model has."""

from typing import Any

import numpy as np
import pandas as pd

from pymc.model.core import Model
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import known_value
from pymc_vsgp.inducing.base import Process
from pymc_vsgp.labels import differ_in_order
from pymc_vsgp.model.copies import same_data
from pymc_vsgp.model.places import SAME, kept_data, other_places
from pymc_vsgp.results.posterior import Draws

TODO = "Build the model as it was sampled."


def check_inducing(p: Process, model: Model, draws: Draws) -> None:
    """Raise where the draws can't be of these inducing variables.

    Places of the draws are used in place of the model's. So as many are needed, and they can't
    replace the constants of a frozen model.
    """
    kept = {} if draws.constant is None else draws.constant
    if text := p.conditional.other_draws(kept):
        raise ValueError(text)
    for data in kept_data(p, model):
        if data.name not in kept:
            continue
        then = kept[data.name]
        _check_shape(data.name, data.type.shape, then.shape)
        if isinstance(data, Constant) and not np.allclose(data.data, then, rtol=SAME, atol=0.0):
            raise ValueError(
                f"{data.name!r} of the frozen model has other values than the draws were made "
                f"with. {TODO}"
            )
    if p.u in model.free_RVs and p.u.name in draws.posterior:
        of_draws = draws.posterior[p.u.name].transpose("chain", "draw", ...).shape[2:]
        of_one = slice(0 if p.conditional.by is None else 1, None)  # groups have labels
        _check_shape(p.u.name, p.u.type.shape[of_one], of_draws[of_one])
    if draws.constant is None and (others := other_places(p, model, draws.posterior.attrs)):
        raise ValueError(
            f"The draws were made with other values of {others[0]!r} than the model has, and come "
            "without the group constant_data, which has them. Pass the whole DataTree."
        )


def check_labels(fit: Any) -> None:
    """Raise where draws have labels in an order that is not that of the numbers beside them.

    Outputs, and parameters with an entry for each row, are the model's, by their place.
    """
    o, draws = fit.observation, fit.draws
    _check_parameters(fit)
    rows, *outputs = fit.y_dims
    ordered: list[tuple] = [(dim, None) for dim in outputs]
    if o.row_params and fit.likelihood is fit.of_model:
        ordered.append((rows, None))
    # Where data have the codes that they have in the model, labels have its order. Those of a model
    # that was built again in another order have others.
    for p in o.parts:
        of_u, *_ = fit.model.named_vars_to_dims.get(p.u.name) or (None,)
        if p.conditional.by is not None:
            ordered.append((p.conditional.by, (draws.constant, o.X.name, o.X)))
        elif of_u is not None and fit.of_model.n_classes is not None:
            ordered.append((of_u, (draws.observed, fit.name, o.y)))
    for dim, codes in ordered:
        now, then = _labels_of(fit, dim)
        if now is None or then is None:
            continue
        if dim in outputs and len(now) != len(then):
            raise ValueError(
                f"The draws have {len(then)} labels along {dim!r}, and the model has {len(now)}. "
                f"{TODO}"
            )
        if differ_in_order(now, then) and (codes is None or _is_kept(*codes)):
            raise ValueError(_other_order(dim))


def _check_parameters(fit: Any) -> None:
    """Raise where draws of parameters do not have the entries of the model in their order.

    Data that pick their entries, such as the group of each row, are numbers.
    """
    parts, posterior = fit.observation.parts, fit.draws.posterior
    graphs = [*fit.likelihood.params.values(), *(a for p in parts for a in p.args)]
    needed = set(ancestors(graphs)) - {p.u for p in parts}
    matched = {p.conditional.by for p in parts}
    for rv in fit.model.free_RVs:
        if rv not in needed or rv.name not in posterior:
            continue
        dims = fit.model.named_vars_to_dims.get(rv.name) or ()
        if not matched & set(dims):  # of which draws may have fewer, or others
            known = [fit.model.coords.get(dim) for dim in dims]
            shape = tuple(map(len, known)) if dims and None not in known else rv.type.shape
            of_draws = posterior[rv.name].transpose("chain", "draw", ...).shape[2:]
            _check_shape(rv.name, shape, of_draws)
        for dim in dims:
            now, then = fit.model.coords.get(dim), posterior[rv.name].indexes.get(dim)
            if now is None or then is None or dim in matched:
                continue
            if differ_in_order(pd.Index(np.asarray(now)), then):
                raise ValueError(_other_order(dim))


def _other_order(dim: str) -> str:
    return (
        f"The draws have the labels of {dim!r} in another order than the model. "
        f"{TODO[:-1]}, and leave the draws in their order."
    )


def _labels_of(fit: Any, dim: str) -> list[pd.Index | None]:
    """Return the labels that the model has, and those of the draws."""
    both = fit.model.coords.get(dim), fit.coords_of([dim]).get(dim)
    return [None if x is None else pd.Index(np.asarray(x)) for x in both]


def _is_kept(kept: Any, name: str | None, variable: Any) -> bool:
    """Whether data that were kept with the draws are what the model has now."""
    if kept is None or name not in kept:
        return False
    return same_data(np.asarray(known_value(variable)), kept[name].values)


def _check_shape(name: str, now: tuple[int | None, ...], then: tuple[int, ...]) -> None:
    if len(now) != len(then) or any(n not in (None, m) for n, m in zip(now, then, strict=True)):
        raise ValueError(
            f"{name!r} of the model has the shape {now}, and that of the draws {then}. {TODO}"
        )
