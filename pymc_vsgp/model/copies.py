"""Copies of a model whose variables may have initial values, which PyMC refuses to copy."""

from collections.abc import Iterator
from contextlib import contextmanager

from pymc.model.core import Model
from pymc.model.fgraph import clone_model

__all__ = ["copy_of", "without_initial_values"]


@contextmanager
def without_initial_values(model: Model) -> Iterator[None]:
    """Context in which a model has no initial values."""
    known = dict(model.rvs_to_initial_values)
    model.rvs_to_initial_values.update(dict.fromkeys(known))
    try:
        yield
    finally:
        model.rvs_to_initial_values.update(known)


def copy_of(model: Model) -> Model:
    """Return a copy of a model, with its initial values."""
    with without_initial_values(model):
        new = clone_model(model)
    for rv, value in model.rvs_to_initial_values.items():
        new.rvs_to_initial_values[new[rv.name]] = value
    return new
