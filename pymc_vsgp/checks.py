"""What users pass in, checked once at the edge.

Labels (pandas, xarray, ``pm.Data``) stop here: the rest of the package sees float64 arrays and
tensor variables. Every message has two sentences: what is wrong, and what to do.
"""

import functools

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from pymc.gp.cov import BaseCovariance
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs

from pymc_vsgp.compile import check_precision, evaluate
from pymc_vsgp.ops.mapped import mapped, mapped_array
from pymc_vsgp.rvs import is_drawn, refuse_minibatches

# Warnings name the line that called the package; properties are called by functools. Python does
# not skip a file whose whole name is the prefix.
PACKAGE = (str(Path(__file__).parent), functools.__file__.removesuffix(".py"))
LARGEST = 1e100  # of an input: kernels square it, and divide it by a lengthscale
ENTRIES = 1_000_000  # that are looked at at once: inputs may be in a file, and exceed the memory


def known_value(value: Any, what: str = "An argument") -> np.ndarray | None:
    """Return the array behind `value`, or None if it depends on random variables.

    A graph over ``pm.Data`` containers has a value; one over parameters of the model has not.
    """
    if not isinstance(value, Variable):
        return as_array(value, what)
    if isinstance(value, Constant):
        return np.asarray(value.data)
    if isinstance(value, SharedVariable):
        return np.asarray(value.get_value(borrow=True))
    if (array := mapped_array(value)) is not None:
        return array
    seen = list(ancestors([value]))
    refuse_minibatches(seen, what)
    inputs = explicit_graph_inputs([value])
    if any(map(is_drawn, seen)) or any(
        not isinstance(i, Constant | SharedVariable) for i in inputs
    ):
        return None
    return evaluate(value)


def as_array(value: Any, what: str = "An argument") -> np.ndarray:
    """Return an array, whatever is in it; one stays masked where something is."""
    try:
        if isinstance(value, np.ma.MaskedArray):
            return value if np.ma.is_masked(value) else value.data
        array = np.asarray(value)
        if array.dtype == object and isinstance(value, pd.Series | pd.DataFrame):
            kinds = value.dtypes if isinstance(value, pd.DataFrame) else [value.dtype]
            if all(map(pd.api.types.is_numeric_dtype, kinds)):  # those that may hold pd.NA
                return value.to_numpy("float64", na_value=np.nan)
        return array
    except Exception:  # of numpy, pandas, xarray, dask
        todo = "Pass numbers, one row per point."
        raise TypeError(f"{what} is {kind(value)}, no array can be made of it. {todo}") from None


def as_real(value: Any, what: str, todo: str = "Pass real numbers.") -> np.ndarray:
    """Return real numbers as float64; those of an array of objects, too."""
    array = as_array(value, what)
    if np.ma.is_masked(array):
        raise TypeError(
            f"{what} is a masked array, but each observation needs its own. "
            "Drop the masked rows of everything, or fill in numbers."
        )
    try:
        if value is None or array.dtype.kind not in "fiubO":
            raise TypeError
        return np.asarray(array, dtype="float64")
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} is {kind(value)}, but numbers are needed. {todo}") from None


def _check_matrix(array: np.ndarray, what: str) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a masked array. Drop the masked rows first, for example "
            f"with {what}[~{what}.mask.any(axis=1)]."
        )
    if array.ndim == 0 and what == "Xu":
        if hasattr(given := array.item(), "n_inducing"):
            name = type(given).__name__
            raise TypeError(f"Xu is of {name}, not of points. Pass it as inducing={name}(...).")
        raise ValueError(
            f"Xu is {array.item()!r}, but inducing points are needed. "
            "Pass for example vsgp.inducing.kmeans(X, 20)."
        )
    if array.ndim == 1 and array.dtype.kind in "mM":
        raise _not_numbers(array.dtype, what)
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
    if array.dtype in (np.float16, np.float32):
        raise TypeError(
            f"{what} is {array.dtype}, in which the Cholesky factor of a kernel matrix fails. "
            f"Convert it with {what}.astype('float64')."
        )
    if array.dtype != np.float64 and array.dtype.kind not in "iub":
        raise _not_numbers(array.dtype, what)
    step = max(1, ENTRIES // array.shape[1])
    for i in range(0, len(array), step):
        bad = ~(np.abs(array[i : i + step]) < LARGEST)  # NaN, too
        if bad.any():
            row, column = np.argwhere(bad)[0] + (i, 0)
            large = np.isfinite(array[row, column])
            raise ValueError(
                f"{what} holds {array[row, column]} in row {row}, column {column}. "
                + (
                    "Give that column another unit."
                    if large
                    else "Drop that row, or fill in a number."
                )
            )


def _not_numbers(dtype: Any, what: str, need: str = "a kernel needs float64") -> TypeError:
    todo = f"Convert it with {what}.astype('float64')."
    if dtype.kind in "mM":
        start = f"({what} - {what}.min())" if dtype.kind == "M" else what
        todo = f"Pass the time in a unit, such as {start} / np.timedelta64(1, 'D')."
    elif isinstance(dtype, pd.PeriodDtype):
        todo = f"With t = {what}.dt.to_timestamp(), pass (t - t.min()) / np.timedelta64(1, 'D')."
    elif dtype.kind != "f":
        todo = f"Code categories as numbers and convert them with {what}.astype('float64')."
    return TypeError(f"{what} has dtype {dtype}, but {need}. {todo}")


def as_inputs(X: Any, what: str = "X") -> np.ndarray:
    """Return `X` as a float64 array with one row per point; errors call it `what`."""
    if isinstance(X, pd.DataFrame):
        for name, dtype in X.dtypes.items():
            if not pd.api.types.is_numeric_dtype(dtype):
                raise _not_numbers(dtype, f"{what}[{name!r}]")
    array = known_value(X, what)
    if array is None:
        raise TypeError(
            f"{what} depends on random variables of the model, so it has no value yet. "
            "Pass numbers or a pm.Data container."
        )
    _check_matrix(array, what)
    return np.asarray(array, dtype="float64")  # years, say, are whole numbers


def as_target(
    y: Any, n_rows: int | None, what: str = "y", ndim: int = 1, rows_of: str = "X"
) -> np.ndarray:
    """Return `y` as a finite vector with `n_rows` entries.

    With ``ndim=2`` as a matrix with that many rows, in which nan or a mask is a missing entry.
    """
    array = known_value(y, what)
    if array is None:
        raise TypeError(
            f"{what} depends on random variables of the model, so it is not observed. "
            "Pass numbers or a pm.Data container."
        )
    if isinstance(array, np.ma.MaskedArray) and ndim == 2 and array.dtype.kind in "fiub":
        array = np.ma.filled(array.astype("float64"), np.nan)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{what} is a masked array, but missing observations carry no information here. "
            f"Drop the masked rows of X and {what}."
        )
    if ndim == 2 and array.ndim != 2:
        raise ValueError(
            f"{what} has shape {array.shape}, but there are several outputs. "
            "Pass a matrix with one row for each row of X and one column for each output."
        )
    if array.ndim != ndim:
        column = array.ndim == 2 and array.shape[1] == 1
        todo = f"np.ravel({what})" if column else "one number for each row of X"
        raise ValueError(
            f"{what} has {array.ndim} dimensions, shape {array.shape}, but it must be a vector. "
            f"Pass {todo}."
        )
    if array.dtype.kind not in "fiub":
        raise _not_numbers(array.dtype, what, "numbers are needed")
    if n_rows is not None and len(array) != n_rows:
        raise ValueError(
            f"{rows_of} has {n_rows} rows but {what} has {len(array)} entries. "
            f"Pass one observation for each row of {rows_of}."
        )
    if ndim == 2:
        if np.isinf(array).any():
            todo = "Correct it, or put nan for a missing entry."
            raise ValueError(f"{what} holds an infinite number. {todo}")
        return array
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


def names_of(labels: Any) -> tuple[str, ...] | None:
    """Return labels of columns as strings, or None where there are none, or mere numbers."""
    if labels is None:
        return None
    names = tuple(str(c) for c in labels)
    return None if names == tuple(map(str, range(len(names)))) else names


def column_names(
    X: Any, what: str, model: pm.Model | None = None, *, numbers: bool = False
) -> tuple[str, ...] | None:
    """Return the names of the columns of a table, or of a ``pm.Data`` of the model.

    With `numbers` the labels 0, 1, ... of a table are names, too.
    """
    labels = getattr(X, "columns", None)
    if isinstance(X, Variable) and model is not None:
        dims = tuple(model.named_vars_to_dims.get(X.name) or ())
        labels = model.coords.get(dims[1]) if len(dims) == 2 else None
    elif isinstance(X, xr.DataArray):
        labels = X.indexes.get(X.dims[1]) if X.ndim == 2 else None
    names = names_of(labels)
    if numbers and labels is not None and not isinstance(X, Variable):
        names = tuple(map(str, labels))
    if names is not None and len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"{what} has several columns named {twice!r}. Give each its own name.")
    return names


def match_columns(names: Any, known: Any, what: str, *, numbers: bool = False) -> list[int] | None:
    """Return where the columns `known` are among `names`, or None where they are in order.

    Columns without names on one of the two sides are taken to be in order. With `numbers` those of
    the model are 0, 1, ... where they have none, for tables with such labels.
    """
    own = tuple(map(str, range(len(names or ()))))
    if numbers and known is None and names and set(names) == set(own):
        known = own
    if names is None or known is None or names == known:
        return None
    if names == own and set(names) != set(known):
        return None
    if set(names) != set(known):
        raise ValueError(
            f"{what} has the columns {list(names)}, but those of the model are {list(known)}. "
            "Pass a table with these names, in any order, or an array with the columns in order."
        )
    return [names.index(n) for n in known]


def coded(X: Any, by: str | None, coords: Mapping[str, Any], what: str) -> Any:
    """Return a table with the labels of its groups, in the column `by`, as numbers, and last."""
    if by is None or not isinstance(X, pd.DataFrame):
        return X
    if by not in X.columns:
        raise ValueError(
            f"{what} has the columns {list(X.columns)}, and the group of each row is not among "
            f"them. Add the column {by!r}."
        )
    labels, group = coords.get(by), X[by]
    if labels is not None:
        at = pd.Index(labels).get_indexer(group)
        if (at < 0).any():
            first, *_ = group[at < 0].tolist()
            raise ValueError(
                f"{what} has {first!r} in the column {by!r}, but that is no {by!r} "
                f"of the model. Pass one of those in its coords, which has to have all of them."
            )
        group = at.astype("float64")
    return X.drop(columns=by).assign(**{by: group})


def check_jitter(jitter: Any) -> None:
    """Raise unless `jitter` is finite and not negative."""
    value = known_value(jitter, "jitter")
    if value is None:
        return
    if value.dtype.kind not in "fiu" or not (np.isfinite(value) & (value >= 0)).all():
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
        value = known_value(X, what)
        if value is None:
            if X.type.ndim != 2:
                dimensions = "one dimension" if X.type.ndim == 1 else f"{X.type.ndim} dimensions"
                raise ValueError(
                    f"{what} has {dimensions}, but two are needed. "
                    "Put one point in a row and one input in a column."
                )
            return X, None
        _check_matrix(value, what)
        if value.dtype == np.float64:
            return X, value
        if what == "Xu" and isinstance(X, SharedVariable):
            raise TypeError(
                f"{X.name} has dtype {value.dtype}, but inducing inputs are real numbers. "
                "Make pm.Data of numbers of dtype float64."
            )
        name, X = X.name, X.astype("float64")
        X.name = name  # by which the model knows the labels
        return X, value.astype("float64")
    value = as_inputs(X, what)
    if isinstance(X, np.memmap) and X.dtype == np.float64:
        return mapped(X), value
    return pt.as_tensor_variable(value), value


def check_new_name(model: pm.Model, name: str) -> None:
    """Raise unless `name` is a name that the model does not have yet."""
    if not isinstance(name, str):
        raise TypeError(
            f"The first argument is {kind(name)}, but it is the name of the new variable. "
            "Pass a string."
        )
    if model.name_for(name) in model.named_vars:
        raise ValueError(f"The model already has a variable named {name!r}. Choose another name.")


def check_dim(model: pm.Model, dim: str, length: int, what: str) -> None:
    """Raise if the model has that dimension with another length."""
    if dim not in model.dim_lengths:
        return
    known = known_value(model.dim_lengths[dim])
    if known is not None and int(known) != length:
        raise ValueError(
            f"Dimension {dim!r} has length {known}, but {what} has {length} rows. "
            "Choose another name for the dimension."
        )


def kind(thing: Any) -> str:
    """Return what `thing` is, for a message."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"of type {type(thing).__name__}"


def _said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else kind(value)


def model_of(model: Any) -> pm.Model:
    """Return the model, or that on the context stack."""
    check_precision()
    found = pm.modelcontext(model)
    if not isinstance(found, pm.Model):
        raise TypeError(
            f"model is {kind(found)}, not a PyMC model. Pass the pm.Model, or call in its context."
        )
    return found


def check_kernel(cov_func: Any, X: np.ndarray | None = None) -> None:
    """Raise unless it is a covariance function, of as many inputs as X has columns."""
    if not isinstance(cov_func, BaseCovariance):
        raise TypeError(
            f"cov_func is {kind(cov_func)}, not a covariance function. "
            "Pass one of pm.gp.cov, for example pm.gp.cov.Matern52(1, ls=1.0)."
        )
    if X is not None:
        columns: Any = getattr(cov_func, "input_dim", X.shape[1])
        check_columns(X, columns, "X", "the kernel")


def check_point(point: Any, nan: bool = True) -> dict[str, Any]:
    """Return values by name, or raise where that is no dict of numbers, or of NaN."""
    if not isinstance(point, Mapping | None):
        raise TypeError(f"point is {kind(point)}. Pass a dict of values by name.")
    found = {n: as_real(x, f"point[{n!r}]") for n, x in (point or {}).items()}
    for name, value in found.items():
        if not nan and np.isnan(value).any():
            raise ValueError(f"point[{name!r}] has NaN. Pass a number for each of its entries.")
    return found


def mode_of(compile_kwargs: Any, default: Any = None) -> Any:
    """Return the mode in arguments of the compilation, which takes nothing else."""
    if not isinstance(compile_kwargs, Mapping | None):
        raise TypeError(f"compile_kwargs is {kind(compile_kwargs)}. Pass a dict, or drop it.")
    others = [name for name in compile_kwargs or {} if name != "mode"]
    if others:
        raise TypeError(f"compile_kwargs holds {others}, and only mode is taken. Drop the others.")
    mode = (compile_kwargs or {}).get("mode", default)
    check_mode(mode)
    return mode


def check_mode(mode: Any) -> None:
    """Raise unless PyTensor has such a mode."""
    try:
        if isinstance(get_mode(mode), Mode):
            return
    except ValueError:
        pass
    raise ValueError(
        f"PyTensor has no mode {_said(mode)}. Pass 'numba', 'jax', 'cvm', or a mode that you made."
    )


def check_built(model: Any) -> None:
    """Raise unless what a user's function returned is a model."""
    if not isinstance(model, pm.Model):
        raise TypeError(
            f"build returned {type(model).__name__}, not a model. Let it end with: return model."
        )


def check_distinct(Xu: np.ndarray) -> None:
    """Raise if two rows of `Xu` are equal."""
    _, first, counts = np.unique(Xu, axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        row = int(first[counts > 1][0])
        twin = int(np.flatnonzero((Xu == Xu[row]).all(axis=1))[1])
        raise ValueError(
            f"Rows {row} and {twin} of Xu are equal, so its covariance is singular. "
            "Pass np.unique(Xu, axis=0), or vsgp.inducing.kmeans, which never repeats one."
        )


def check_dim_name(name: str, dim: Any) -> None:
    """Raise unless it is the name of a dimension, or None."""
    if not isinstance(dim, str | None):
        raise TypeError(f"{name} is {_said(dim)}. Pass the name of a dimension.")


def check_names(name: str, value: Any) -> None:
    """Raise unless there are names, or none at all."""
    names = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if value is not None and not all(isinstance(n, str | None) for n in names):
        raise TypeError(f"{name} is {value!r}, but names are needed. Pass strings.")


def check_real(
    name: str, value: Any, least: float = 0.0, most: float = np.inf, *, above: bool = False
) -> float:
    """Return a finite number from one to another, or `above` the first; else raise ValueError."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    inside = real and np.isfinite(value) and least <= value <= most
    if not inside or (above and value == least):
        wanted = f"from {least:g} to {most:g}"
        if most == np.inf:
            wanted = f"above {least:g}" if above else f"of at least {least:g}"
        raise ValueError(f"{name} is {_said(value)}. Pass a number {wanted}.")
    return float(value)


def generator_of(random_seed: Any) -> np.random.Generator:
    """Return a generator, or raise ValueError where that is no seed."""
    if isinstance(random_seed, np.random.RandomState):  # which makes no generators of its own
        random_seed = int(random_seed.randint(2**31))
    try:
        return np.random.default_rng(random_seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"random_seed is {_said(random_seed)}. Pass a whole number, 0 or more, or a Generator."
        ) from None


def check_number(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number, or raise ValueError where it is none, or not large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {_said(value)}. Pass a whole number, {least} or more.")
    return int(value)


def is_symbolic(y: Any) -> bool:
    """Whether `y` is a variable, not numbers."""
    return isinstance(y, Variable)
