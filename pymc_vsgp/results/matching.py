"""Whether draws are of the inducing variables that a model has."""

from typing import Any

import numpy as np

from pymc.model.core import Model
from pytensor.graph.basic import Constant

from pymc_vsgp.inducing.base import Process
from pymc_vsgp.results.posterior import Draws

SAME = 1e-9  # between machines
TODO = "Build the model as it was sampled."


def kept_data(p: Process, model: Model) -> list[Any]:
    """Return data of the model that say which variables these are, such as inducing inputs."""
    names = [f"{p.u.name}_{what}" for what in p.conditional.kept]
    return [p.points, *(model.named_vars[n] for n in names if n in model.named_vars)]


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


def _check_shape(name: str, now: tuple[int | None, ...], then: tuple[int, ...]) -> None:
    if len(now) != len(then) or any(n not in (None, m) for n, m in zip(now, then, strict=True)):
        raise ValueError(
            f"{name!r} of the model has the shape {now}, and that of the draws {then}. {TODO}"
        )
