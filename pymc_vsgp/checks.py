"""What users pass in, checked once at the edge.

Labels (pandas, xarray, ``pm.Data``) stop here: the rest of the package sees float64 arrays and
tensor variables. Every message has two sentences: what is wrong, and what to do.
"""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.random.op import RNGConsumerOp

__all__ = [
    "as_inputs",
    "as_matrix",
    "as_target",
    "check_columns",
    "check_jitter",
    "depends_on_random",
    "known_value",
]


def depends_on_random(variable: Variable) -> bool:
    """Whether a random variable is among the ancestors of `variable`."""
    return any(
        node.owner is not None and isinstance(node.owner.op, RNGConsumerOp)
        for node in ancestors([variable])
    )


def known_value(value: Any) -> np.ndarray | None:
    """Return the array behind `value`, or None if it depends on random variables.

    A graph over ``pm.Data`` containers has a value; one over parameters of the model has not.
    """
    if not isinstance(value, Variable):
        return value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    if isinstance(value, Constant):
        return np.asarray(value.data)
    if isinstance(value, SharedVariable):
        return np.asarray(value.get_value(borrow=True))
    inputs = explicit_graph_inputs([value])
    if depends_on_random(value) or any(
        not isinstance(i, Constant | SharedVariable) for i in inputs
    ):
        return None
    # Evaluated once while the model is built, so compiling is not worth its time.
    return np.asarray(pytensor.function([], value, mode="FAST_COMPILE", on_unused_input="ignore")())


def _check_matrix(array: np.ndarray, what: str) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a masked array. Drop the masked rows first, for example "
            f"with {what}[~{what}.mask.any(axis=1)]."
        )
    if array.ndim == 1:
        raise ValueError(
            f"{what} has one dimension, shape {array.shape}, but one row per point and one "
            f"column per input are needed. If there is a single input, pass "
            f"np.asarray({what})[:, None]."
        )
    if array.ndim != 2:
        raise ValueError(
            f"{what} has {array.ndim} dimensions, shape {array.shape}, but two are needed. "
            "Put one point in a row and one input in a column."
        )
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"{what} is empty, shape {array.shape}. Pass at least one row and column.")
    if array.dtype == np.float32:
        raise TypeError(
            f"{what} is float32, in which the Cholesky factor of a kernel matrix fails. "
            f"Convert it with {what}.astype('float64')."
        )
    if array.dtype.kind != "f":
        labels = array.dtype.kind not in "iub"
        todo = "Code categories as numbers and convert them" if labels else "Convert it"
        raise TypeError(
            f"{what} has dtype {array.dtype}, but a kernel needs real numbers. "
            f"{todo} with {what}.astype('float64')."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{what} holds {array[row, column]} in row {row}, column {column}. "
            "Drop that row, or fill in a number."
        )


def as_inputs(X: Any, what: str = "X") -> np.ndarray:
    """Return `X` as a float64 array with one row per point and one column per input.

    Parameters
    ----------
    X : array_like, DataFrame, DataArray or pm.Data
        The inputs.
    what : str
        The name that error messages use.
    """
    array = known_value(X)
    if array is None:
        raise TypeError(
            f"{what} depends on random variables of the model, so it has no value yet. "
            "Pass numbers or a pm.Data container."
        )
    _check_matrix(array, what)
    return array


def as_target(y: Any, n_rows: int | None, what: str = "y") -> np.ndarray:
    """Return `y` as a finite vector with `n_rows` entries."""
    array = known_value(y)
    if array is None:
        raise TypeError(
            f"{what} depends on random variables of the model, so it is not observed. "
            "Pass numbers or a pm.Data container."
        )
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a masked array, but missing observations carry no information here. "
            f"Drop the masked rows of X and {what}."
        )
    if array.ndim != 1:
        column = array.ndim == 2 and array.shape[1] == 1
        todo = f"np.ravel({what})" if column else "one number for each row of X"
        raise ValueError(
            f"{what} has {array.ndim} dimensions, shape {array.shape}, but it must be a vector. "
            f"Pass {todo}."
        )
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{what} has dtype {array.dtype}, but numbers are needed. "
            "Encode labels as integers first."
        )
    if n_rows is not None and len(array) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows but {what} has {len(array)} entries. "
            "Pass one observation for each row of X."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        row = int(np.argmax(bad))
        why = ", as a missing observation carries no information" if np.isnan(array[row]) else ""
        raise ValueError(
            f"{what} holds {array[row]} in row {row}. Drop that row of X and {what}{why}."
        )
    return array


def check_columns(X: np.ndarray, n_columns: int, what: str, reference: str) -> None:
    """Raise unless `X` has the columns that `reference` has."""
    if X.shape[1] != n_columns:
        columns = "column" if X.shape[1] == 1 else "columns"
        raise ValueError(
            f"{what} has {X.shape[1]} {columns}, shape {X.shape}, but {reference} has {n_columns}. "
            "Pass the same inputs in the same order to both."
        )


def check_jitter(jitter: Any) -> None:
    """Raise unless `jitter` is finite and not negative."""
    value = known_value(jitter)
    if value is not None and not (np.isfinite(value) & (value >= 0)).all():
        raise ValueError(
            f"jitter is {jitter}, but it is added to variances. "
            "Pass a small number that is not negative, such as 1e-6."
        )


def as_matrix(X: Any, what: str) -> tuple[pt.TensorVariable, np.ndarray | None]:
    """Return `X` as a tensor, with its value where it has one.

    Inputs that depend on random variables (a warped or latent input) are allowed: they can only be
    checked for their number of dimensions.
    """
    if isinstance(X, Variable):
        value = known_value(X)
        if value is None:
            if X.type.ndim != 2:
                dimensions = "one dimension" if X.type.ndim == 1 else f"{X.type.ndim} dimensions"
                raise ValueError(
                    f"{what} has {dimensions}, but two are needed. "
                    "Put one point in a row and one input in a column."
                )
            return X, None
        _check_matrix(value, what)
        return X, value
    value = as_inputs(X, what)
    return pt.as_tensor_variable(value), value
