"""What families of classes share: labels, the check of them, and probabilities."""

from typing import Any

import numpy as np
import pandas as pd
import pytensor.tensor as pt

from pytensor.graph.basic import Constant

from pymc_vsgp.checks import as_array, as_target, check_number, kind
from pymc_vsgp.likelihoods.base import Likelihood, is_count, require


class OfClasses(Likelihood):
    """A family whose observations are the classes 0, 1, ..., K - 1; `n_classes` is K."""

    def mean(self, mu, gamma):
        """Probability of each class, on the last axis."""
        mu = pt.as_tensor(mu)
        zero = pt.zeros_like(mu if self.n_latent == 1 else mu[..., 0], dtype="int64")
        p = [pt.exp(self.log_predictive(mu, gamma, zero + k)) for k in range(self.n_classes)]
        return pt.stack(p, axis=-1)

    def _known(self, y, log_p):
        """`log_p` where y is a class, else minus infinity."""
        return pt.switch(pt.ge(y, 0) & pt.lt(y, self.n_classes), log_p, -np.inf)

    def encode(self, y, classes=None):
        """Return labels as integers, and the names of the classes; integers as they are."""
        return code_labels(y, self.n_classes, classes, type(self).__name__)

    def check_observed(self, y):
        check_classes(self, y, self.n_classes)


def code_labels(y: Any, n_classes: int | None, classes: Any, name: str) -> tuple[Any, Any]:
    """Return labels as integers from 0, and the names of the classes; integers as they are.

    The names are `classes` if they are known, else the categories of a pandas categorical, else
    the labels in sorted order.
    """
    categorical = isinstance(getattr(y, "dtype", None), pd.CategoricalDtype)
    if not categorical and as_array(y, "y").dtype.kind not in "OUST":
        return y, None
    labels = y if categorical else as_labels(y)
    labels = pd.Categorical(labels)
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
                f"y has the label {unknown[0]!r}, which is not among the classes, "
                f"{np.asarray(classes).tolist()}. Add it to them, or correct y."
            )
        labels = labels.set_categories(list(classes))
    found = list(labels.categories)
    if n_classes is not None and len(found) != n_classes:
        raise ValueError(
            f"y has {len(found)} classes, {found}, but {name} has {n_classes}. Make them the same "
            "number; where some do not occur, pass y as a pandas categorical that has them."
        )
    return np.asarray(labels.codes, dtype="int64"), found


def as_labels(y: Any) -> np.ndarray:
    """Return labels as a vector, or raise ValueError."""
    found = as_array(y, "y")
    if isinstance(found, np.ma.MaskedArray):
        as_target(found, None)  # which refuses it, as it does numbers
    if found.dtype.kind in "US" and isinstance(y, list | tuple):
        found = np.array(y, dtype=object)  # where numpy makes a word of nan
    if found.ndim != 1:
        what = f"has {found.ndim} dimensions" if found.ndim else f"is {kind(y)}"
        raise ValueError(f"y {what}. Pass a vector of labels, one for each row of X.")
    return found


def check_classes(likelihood: Any, y: Any, n_classes: int | None) -> None:
    """Raise ValueError unless y are whole numbers below n_classes."""
    top = np.inf if n_classes is None else n_classes
    wanted = "a class, a whole number from 0" + ("" if n_classes is None else f" to {top - 1}")
    hint = "Code the classes as 0, 1, 2, ..., or pass their names."
    require(likelihood, y, is_count(y) & (y < top), wanted, hint)


def check_n_classes(n_classes: Any) -> int:
    """Return the number of classes as an int."""
    return check_number(
        "n_classes", n_classes.data if isinstance(n_classes, Constant) else n_classes, least=2
    )
