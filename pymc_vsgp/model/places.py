"""Where inducing variables are: data of a model, without which draws of them say little."""

from typing import Any

import numpy as np

from pymc.model.core import Model

from pymc_vsgp.checks import known_value
from pymc_vsgp.inducing.base import Process
from pymc_vsgp.model.observation import processes

__all__ = ["checksums", "kept_data", "other_places"]

SAME = 1e-9  # between machines


def kept_data(p: Process, model: Model) -> list[Any]:
    """Return data of the model that say which variables these are, such as inducing inputs."""
    names = [f"{p.u.name}_{what}" for what in p.conditional.kept]
    return [p.points, *(model.named_vars[n] for n in names if n in model.named_vars)]


def checksums(model: Model) -> dict[str, float]:
    """Return attributes for draws, by which these are known from draws with other such data."""
    found = [_checksums(p, model) for p in processes(model).values()]
    return {f"checksum_{name}": value for each in found for name, (value, _) in each.items()}


def other_places(p: Process, model: Model, attrs: dict) -> list[str]:
    """Return the names of data that are not those of draws with these attributes."""
    found = _checksums(p, model).items()
    then = ((name, *value, attrs.get(f"checksum_{name}")) for name, value in found)
    return [n for n, now, size, x in then if x is not None and abs(now - x) > SAME * size]


def _checksums(p: Process, model: Model) -> dict[str, tuple[float, float]]:
    """Return a sum with weights of each of the data, and how large it could be."""
    found = {}
    for data in kept_data(p, model):
        if (value := known_value(data)) is not None:  # inputs may be random variables
            x = np.asarray(value, dtype="float64").ravel()
            found[data.name] = float(x @ np.cos(np.arange(1.0, 1.0 + x.size))), np.abs(x).sum()
    return found
