"""What families of classes share: labels, and the check of them."""

from typing import Any

import numpy as np
import pandas as pd

from pytensor.graph.basic import Constant

from pymc_vsgp.likelihoods.base import is_count, require


def code_labels(y: Any, n_classes: int | None, classes: Any, name: str) -> tuple[Any, Any]:
    """Return labels as integers from 0, and the names of the classes; integers as they are.

    The names are `classes` if they are known, else the categories of a pandas categorical, else
    the labels in sorted order.
    """
    kind = getattr(y, "dtype", None)
    categorical = isinstance(kind, pd.CategoricalDtype)
    if not categorical and np.asarray(y).dtype.kind not in "OUST":
        return y, None
    labels = pd.Categorical(y)
    if labels.isna().any():
        row = int(np.argmax(labels.isna()))
        raise ValueError(
            f"y has no label in row {row}. "
            "Drop that row of X and y, as a missing observation carries no information."
        )
    if classes is not None:
        unknown = [c for c in labels.unique() if c not in list(classes)]
        if unknown:
            raise ValueError(
                f"y has the label {unknown[0]!r}, which is not among the coords of the classes, "
                f"{list(classes)}. Add it to them, or correct y."
            )
        labels = labels.set_categories(list(classes))
    found = list(labels.categories)
    if n_classes is not None and len(found) != n_classes:
        raise ValueError(
            f"y has {len(found)} classes, {found}, but {name} has {n_classes}. Pass n_classes="
            f"{len(found)}, or y as a pandas categorical with all the categories."
        )
    return np.asarray(labels.codes, dtype="int64"), found


def check_classes(likelihood: Any, y: Any, n_classes: int | None) -> None:
    """Raise ValueError unless y are whole numbers below n_classes."""
    top = np.inf if n_classes is None else n_classes
    wanted = "a class, a whole number from 0" + ("" if n_classes is None else f" to {top - 1}")
    hint = "Code the classes as 0, 1, 2, ..., or pass their names."
    require(likelihood, y, is_count(y) & (y < top), wanted, hint)


def check_n_classes(n_classes: Any) -> int:
    """Return the number of classes as an int."""
    value = n_classes.data if isinstance(n_classes, Constant) else n_classes
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 2:
        raise ValueError(
            f"n_classes is {n_classes!r}, but it is a number of classes. "
            "Pass a whole number, 2 or more."
        )
    return int(value)
