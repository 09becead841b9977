"""Inputs of every kind that users pass, and what has to come of them.

A call either raises an exception of ours, which says what is wrong and what to do, or its answer is
that for the same values in a plain array of float64.
"""

import pathlib
import re
import traceback
import warnings

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import scipy.sparse
import xarray as xr

from hypothesis import strategies as st

import pymc_vsgp as vsgp

PACKAGE = pathlib.Path(vsgp.__file__).parent
OURS = (ValueError, TypeError, NotImplementedError, KeyError, RuntimeError, OSError, ImportError)
LONGEST = 420  # characters of a message, whose values and lists of names are of any length
CASES: dict[str, Any] = {}


class Fault(AssertionError):
    """A call did neither what is documented nor refuse."""


def case(*names):
    """Register what goes through some public names: it takes hypothesis' ``draw``."""

    def register(f):
        CASES[" ".join(names)] = f
        return f

    return register


def attempt(act):
    """Call; return the answer and "", or None and the words of our refusal."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return act(), ""
        except Fault:
            raise
        except Exception as error:
            if why := foreign(error):
                raise Fault(f"{why}: {type(error).__name__}: {error}") from error
            return None, str(error)


def foreign(error):
    """Say why an exception is none of ours."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raised = (frame.line or "").startswith("raise")  # not what C code within the line raised
    text = str(error.args[0]) if error.args else ""
    if text.startswith("No model on context stack"):
        return ""
    own = PACKAGE in pathlib.Path(frame.filename).parents
    if not (isinstance(error, OURS) and own and raised):
        return f"raised in {pathlib.Path(frame.filename).name}:{frame.name}"
    parts = [p for p in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip()) if p]
    if len(parts) < 2 or not text.endswith((".", ")")):
        return "says not both what is wrong and what to do"
    return f"has {len(text)} characters" if len(text) > LONGEST else ""


class Given(NamedTuple):
    """An argument, and the plain array that it stands for: None where it stands for none."""

    thing: Any
    plain: Any
    kind: str
    documented: bool = True


def plainly(given, act, same=None):
    """Compare a call with that for the plain array, and return the outcome and the answer."""
    found, refused = attempt(lambda: act(given.thing))
    if given.plain is None:
        if not refused:
            raise Fault(f"accepts {given.kind}")
        return "refused", None
    expected, reason = attempt(lambda: act(given.plain))
    if refused:
        if given.documented and not reason:
            raise Fault(f"refuses {given.kind}: {refused}")
        return "refused", None
    if reason:
        raise Fault(f"accepts {given.kind}, but the plain array has: {reason}")
    (same or equal)(found, expected, given.kind)
    return "right", found


def equal(found, expected, kind, tolerance=1e-7):
    """Compare numbers."""
    a, b = np.asarray(found, dtype="float64"), np.asarray(expected, dtype="float64")
    if a.shape != b.shape:
        raise Fault(f"{kind} gives shape {a.shape}, the plain array {b.shape}")
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        raise Fault(f"{kind} gives other numbers than the plain array")


def finite(array, what="the answer"):
    """Raise where there is NaN or infinity."""
    if not np.isfinite(np.asarray(array, dtype="float64")).all():
        raise Fault(f"{what} is not finite")


def holds(condition, what):
    """Raise unless that holds."""
    if not condition:
        raise Fault(what)


# Values

SEEDS = [0, 3, np.int64(5), None, "generator"]
OTHER_SEEDS = [-1, True, 1.5, "a", [1, 2], [], [-1], 2**70, "state", {}, np.nan, np.ones((2, 2))]


def seed_of(draw):
    """Return a function that makes a seed anew, and whether it fixes what is drawn."""
    kind = one_of(draw, SEEDS, OTHER_SEEDS)
    if isinstance(kind, str) and kind == "generator":
        return lambda: np.random.default_rng(1), True
    if isinstance(kind, str) and kind == "state":
        return lambda: np.random.RandomState(1), True
    return lambda: kind, kind is not None


WRONG_COUNTS = [np.int64(5), 0, -1, True, 2.0, 2.5, np.nan, np.inf, "3", None, [3], 1e300, {}]
WRONG_NUMBERS = [0.0, -1.0, np.nan, np.inf, "a", None, [], [0.1, 0.2], True, 1e300, {}, 2, 0.5j]


WRONG_WORDS = [None, "", "no such", 0, True, [], b"log", "\N{SNOWMAN}"]


def one_of(draw, right, wrong):
    """One of the arguments that are right; one time in eight, of those that may not be."""
    return draw(st.sampled_from(wrong if draw(st.integers(0, 9)) == 5 else right))


def count(draw, right=(1, 2, 3, 4, 5, 6), wrong=(12, 13, *WRONG_COUNTS)):
    """A number of things, which may be none."""
    return one_of(draw, right, wrong)


def number(draw, right, wrong=WRONG_NUMBERS):
    """A real number, which may be none."""
    return one_of(draw, right, wrong)


def option(draw, right, wrong=WRONG_WORDS):
    """A word, which may be none."""
    return one_of(draw, right, wrong)


def rng_of(draw):
    """Random numbers that hypothesis can draw again."""
    return np.random.default_rng(draw(st.integers(0, 2**16)))


SCALES = [1e-9, 1e9, 1e-170, 1e170, 1e300]


def values(draw, rows=(12, 12, 12, 1, 2, 7), columns=(1, 2, 2, 3), scales=SCALES, hard=True):
    """Inputs in two dimensions, of which some are hard."""
    rng = rng_of(draw)
    n, d = draw(st.sampled_from(rows)), draw(st.sampled_from(columns))
    X = rng.uniform(-1.0, 1.0, size=(n, d))
    wrong = ["repeated", "constant", "equal", "far", "whole", "one far"] if hard else [""]
    how = one_of(draw, ["", "", "repeated"] if hard else [""], wrong)
    if how == "repeated":
        X = X[rng.integers(max(n // 2, 1), size=n)]
    elif how == "constant":
        X[:, -1] = X[0, -1]
    elif how == "equal":
        X[:] = X[0]
    elif how == "far":
        X = X + 1e7
    elif how == "whole":
        X = np.round(3.0 * X)
    elif how == "one far":
        X[-1] = 1e5
    return X * one_of(draw, [1.0], scales)


def _object(X):
    out = X.astype(object)
    out[0, 0] = None
    return out


def _masked(X):
    return np.ma.MaskedArray(X, np.arange(X.size).reshape(X.shape) == 0)


def _with_column(X, column):
    return pd.DataFrame(X[:, :-1]).assign(last=column)


def _labels(X, names=None):
    return pd.DataFrame(X, columns=names or list("abcdefgh")[: X.shape[1]])


# What stands for the same numbers, by name.
SAME = {
    "float64": lambda X: X,
    "Fortran order": np.asfortranarray,
    "negative strides": lambda X: X[::-1].copy()[::-1],
    "a view of columns": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "read-only": lambda X: np.frombuffer(X.tobytes()).reshape(X.shape),
    "lists": lambda X: X.tolist(),
    "tuples": lambda X: tuple(map(tuple, X.tolist())),
    "a list of arrays": list,
    "a data frame": _labels,
    "a data frame with numbers for names": pd.DataFrame,
    "a data frame with an odd index": lambda X: _labels(X).set_index(np.arange(len(X))[::-1] * 7),
    "a data frame with repeated labels": lambda X: _labels(X).set_index(np.zeros(len(X))),
    "a data frame with dates for labels": lambda X: _labels(X).set_index(
        pd.date_range("2020", periods=len(X), name="day")
    ),
    "a data frame with unicode names": lambda X: _labels(
        X, ["\N{GREEK SMALL LETTER THETA} 1", "größe", "日付"][: X.shape[1]]
    ),
    "a data array": lambda X: xr.DataArray(X, dims=("obs", "feature")),
    "a labelled data array": lambda X: xr.DataArray(
        X, dims=("day", "f"), coords={"f": list("abcdefgh")[: X.shape[1]]}
    ),
}
# The same numbers, in a type that may be refused.
LIKE = {
    "big-endian": lambda X: X.astype(">f8"),
    "long doubles": lambda X: X.astype(np.longdouble),
    "a mask of nothing": lambda X: np.ma.MaskedArray(X),
    "nullable floats": lambda X: pd.DataFrame(X).astype("Float64"),
    "objects": lambda X: X.astype(object),
    "a constant": pt.constant,
    "a chunked data array": lambda X: xr.DataArray(X, dims=("obs", "f")).chunk(obs=5),
    "a transposed data array": lambda X: xr.DataArray(X, dims=("obs", "f")).transpose("f", "obs").T,
    "a data frame with two levels of columns": lambda X: pd.DataFrame(
        X, columns=pd.MultiIndex.from_arrays([list("abcdefgh")[: X.shape[1]]] * 2)
    ),
}
# Other numbers, of a type that stands for them.
WHOLE = {
    "whole numbers": lambda X: np.clip(np.nan_to_num(3.0 * X), -9, 9).astype(int),
    "booleans": lambda X: X > 0,
}
# What is no matrix of real, finite numbers.
NONE = {
    "nan": lambda X: np.where(np.arange(X.size).reshape(X.shape) == X.size - 1, np.nan, X),
    "inf": lambda X: np.where(np.arange(X.size).reshape(X.shape) == 0, np.inf, X),
    "None": lambda X: None,
    "a word": lambda X: "X",
    "a number": lambda X: 3.5,
    "an array without dimensions": lambda X: np.array(1.0),
    "a vector": lambda X: X[:, 0],
    "three dimensions": lambda X: X[None],
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[:, :0],
    "an empty list": lambda X: [],
    "an empty data frame": lambda X: pd.DataFrame(),
    "ragged lists": lambda X: [[1.0, 2.0], [3.0]],
    "a dict": lambda X: {"a": X[:, 0]},
    "a set": lambda X: {1.0, 2.0},
    "a generator": lambda X: (row for row in X),
    "a class": lambda X: np.ndarray,
    "a function": lambda X: len,
    "float16": lambda X: np.clip(X, -9, 9).astype("float16"),
    "float32": lambda X: np.clip(X, -9, 9).astype("float32"),
    "complex numbers": lambda X: X + 0j,
    "words": lambda X: X.astype(str),
    "missing objects": _object,
    "a masked array": _masked,
    "a series": lambda X: pd.Series(X[:, 0]),
    "a column of words": lambda X: _with_column(X, ["a"] * len(X)),
    "a column of dates": lambda X: _with_column(X, pd.date_range("2020", periods=len(X))),
    "categories": lambda X: _with_column(X, pd.Categorical(["a"] * len(X))),
    "missing nullable": lambda X: pd.DataFrame({"a": pd.array([None] * len(X), "Float64")}),
    "a sparse matrix": scipy.sparse.csr_matrix,
    "a data set": lambda X: xr.Dataset({"a": ("row", X[:, 0])}),
    "a vector with dims": lambda X: xr.DataArray(X[:, 0], dims="row"),
}


def inputs(draw, X):
    """Return the inputs as one of many kinds of things."""
    return spelled(X, one_of(draw, [*SAME, *WHOLE], [*LIKE, *NONE]))


def spelled(X, kind):
    """Return the inputs as that kind of thing."""
    if kind in NONE:
        return Given(NONE[kind](X), None, kind)
    if kind in WHOLE:
        return Given(thing := WHOLE[kind](X), thing.astype("float64"), kind)
    return Given((SAME | LIKE)[kind](X), X, kind, kind in SAME)


VECTORS = {
    "floats": lambda y: y.astype("float64"),
    "a list": lambda y: y.tolist(),
    "a tuple": lambda y: tuple(y.tolist()),
    "a series": lambda y: pd.Series(y, index=np.arange(len(y))[::-1] * 3),
    "a data array": lambda y: xr.DataArray(y, dims="row"),
    "negative strides": lambda y: y[::-1].copy()[::-1],
    "small integers": lambda y: y.astype("int8") if y.dtype.kind in "iu" else y,
}
LIKE_VECTORS = {
    "float32": lambda y: y.astype("float32"),
    "nullable": lambda y: pd.Series(y).convert_dtypes(),
    "objects": lambda y: y.astype(object),
    "a mask of nothing": lambda y: np.ma.MaskedArray(y),
}
NO_VECTORS = {
    "None": lambda y: None,
    "a word": lambda y: "y",
    "a number": lambda y: 3,
    "a matrix": lambda y: np.stack([y, y, y], axis=1),
    "too few": lambda y: y[:-1],
    "too many": lambda y: np.concatenate([y, y]),
    "nan": lambda y: np.concatenate([y[:-1], [np.nan]]),
    "inf": lambda y: np.concatenate([[np.inf], y[1:]]),
    "complex numbers": lambda y: y + 0j,
    "dates": lambda y: pd.date_range("2020", periods=len(y)),
    "missing": lambda y: [None, *y[1:].tolist()],
    "missing nullable": lambda y: pd.Series([None, *y[1:].tolist()], dtype="Float64"),
    "a masked array": lambda y: np.ma.MaskedArray(y, np.arange(len(y)) == 0),
    "a dict": lambda y: dict(enumerate(y)),
    "ragged": lambda y: [[1, 2], *y[1:].tolist()],
    "empty": lambda y: y[:0],
}


def vector(draw, y):
    """Return a vector as one of many kinds of things."""
    kind = one_of(draw, list(VECTORS), [*LIKE_VECTORS, *NO_VECTORS])
    if kind in NO_VECTORS:
        return Given(NO_VECTORS[kind](y), None, kind)
    return Given((VECTORS | LIKE_VECTORS)[kind](y), y, kind, kind in VECTORS)


def kernel(draw, columns):
    """A kernel with numbers for parameters, some of them extreme."""
    ls = draw(st.sampled_from([0.3, 1.0, 1.0, 1e-6, 1e6]))
    which = draw(st.sampled_from(["ExpQuad", "Matern52", "Matern32", "Matern12"]))
    return draw(st.sampled_from([1.0, 4.0])) * getattr(pm.gp.cov, which)(columns, ls=ls)
