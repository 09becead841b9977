"""Columns of inputs: their names, and the groups in one of them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pymc as pm

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import as_matrix, coded, column_names, match_columns, names_of
from pymc_vsgp.inducing.kernels import check_codes, codes_of


def grouped_by(gps: Sequence) -> str | None:
    """Return the dimension of the groups of processes, if any has one; all see the same column."""
    dims = {gp._prior.kind.by: None for gp in gps if gp._prior.kind.by is not None}
    if len(dims) > 1:
        raise ValueError(
            f"The processes have groups by {' and by '.join(map(repr, dims))}, but the inputs have "
            "one column with the group. Pass processes with the same `by`."
        )
    return next(iter(dims), None)


def coded_with(model: pm.Model, gps: Sequence, X: Any) -> Any:
    """Return inputs of data with numbers for labels of groups, in the last column of a table.

    Where it has names, a process without groups has to have that column last, too.
    """
    by = grouped_by(gps)
    for gp in gps:
        names = names_of(model.coords.get(gp._prior.feature_dim)) or ()
        if gp._prior.kind.by is None and by in names[:-1]:
            raise ValueError(
                f"The column {by!r} is the group of each row, and {gp._prior.u.name!r} has it "
                "before others. Put it last in the Xu of that process."
            )
    return coded_for(model, gps, X, by, "X")


def coded_for(model: pm.Model, gps: Sequence, X: Any, by: str | None, what: str) -> Any:
    """Return inputs with numbers for labels of groups; raise where columns are unknown.

    Before a look at what is in them, which may be no numbers.
    """
    X = coded(X, by, model.coords, what)
    names = column_names(X, what, model)
    for gp in gps:
        match_columns(names, names_of(model.coords.get(gp._prior.feature_dim)), what)
    return X


def coded_for_all(model: pm.Model, gps: Sequence, Xnew: Any) -> Any:
    """Return new inputs with numbers for labels of groups, which only some processes may know."""
    by = grouped_by(gps)
    if by is None or not isinstance(Xnew, pd.DataFrame):
        return Xnew
    Xnew = coded(Xnew, by, model.coords, "Xnew")
    names = column_names(Xnew, "Xnew", model, numbers=True)
    return in_order(model, gps, names, *as_matrix(Xnew, "Xnew"), "Xnew")[1]


def in_order(model, gps: Sequence, names, X, value, what: str):
    """Return inputs with their columns as the processes have them, by name where there are names.

    The model keeps the names as the coordinate of ``{u}_feature``.
    """
    labels = [model.coords.get(gp._prior.feature_dim) for gp in gps]
    numbers = any(n is not None and names_of(n) is None for n in labels)  # of a table of Xu
    known = {n for n in map(names_of, labels) if n is not None}
    if len(known) > 1 or (numbers and any(_are_numbers(n) for n in known)):
        raise ValueError(
            f"The processes have their columns in different orders: {sorted(known)}. "
            "Put the columns of each Xu in the same order."
        )
    # Data give the columns their order; labels of new inputs may then be the numbers of these.
    numbers = numbers or what == "Xnew"
    order = match_columns(names, next(iter(known), None), what, numbers=numbers)
    if order is not None:
        X, value = X[:, order], None if value is None else value[:, order]
    for gp in gps if value is not None else ():
        check_codes(value, codes_of(gp.cov_func), what)
    return X, value


def _are_numbers(names: Sequence[str]) -> bool:
    return set(names) == set(map(str, range(len(names))))


def name_columns(model: pm.Model, dim: str, length: int, names) -> None:
    """Keep the names of the inputs in the model, unless it has some.

    The numbers 0, 1, ... of a table are kept until there are names: another table with them may
    have them in another order.
    """
    if names is not None and names_of(names) is None:
        names = tuple(range(length))
    if dim not in model.dim_lengths:
        model.add_coord(dim, names, length=length)
    elif names is not None and names_of(model.coords.get(dim)) is None:
        model.set_dim(dim, length, names)
    elif match_columns(names, names_of(model.coords.get(dim)), "Xu"):
        raise ValueError(
            f"Xu has the columns {list(names)}, but the dimension {dim!r} of the model has "
            f"{list(model.coords[dim])}. Put them in the same order."
        )


def keep_names(model: pm.Model, gps: Sequence, names) -> None:
    """Keep the names that inputs of data have, for processes that have none."""
    for gp in gps:
        dim = gp._prior.feature_dim
        known = model.coords.get(dim)
        has_them = known is not None and (names_of(known) or _are_numbers(names or ()))
        name_columns(model, dim, gp._prior.n_columns, None if has_them else names)


def check_own_data(inducing: list, inputs: list) -> None:
    """Raise if inducing inputs are data that inputs of a likelihood are made of, too.

    Moving the ones would move the others.
    """
    used = set(ancestors(inputs))
    for Xu in inducing:
        if isinstance(Xu, SharedVariable) and Xu in used:
            raise ValueError(
                f"The data {Xu.name!r} are inputs of observations and inducing inputs at once, so "
                f"a change of the ones would change the others. Pass Xu={Xu.name}.get_value() to "
                "prior."
            )
