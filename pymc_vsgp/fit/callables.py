"""What nutpie calls, in a form that numba compiles in a tenth of a second.

nutpie 0.16 copies a gradient by ``out[...] = gradient``. numba compiles the message of an error of
shapes with that, integers as strings included: three seconds in each process, as what holds an
address stays in no cache. Loops over numbers need none of it.
"""

import inspect

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numba
import numpy as np

from numba import types

from pymc_vsgp.compile import building
from pymc_vsgp.engine.backends import of_our_model

COMPILE = "_compile_pymc_model_numba"
SIZE, NUMBERS, DATA = types.uint64, types.CPointer(types.double), types.voidptr


def _make_c_logp_func(n_dim, logp_fn, user_data, shared_keys, shared_data):
    """Return nutpie's log density with its gradient, and the types that it takes."""
    inner = _with_shared(logp_fn, user_data, shared_keys, shared_data)

    def logp_numba(dim, x, out, logp, user_data):
        if dim != n_dim:
            return -1
        try:
            value, gradient = inner(numba.carray(x, (n_dim,)), user_data)
            logp[0] = value.item()
            finite = True
            for i in range(n_dim):
                out[i] = gradient[i]
                finite = finite and np.isfinite(gradient[i])
            if not finite:
                return 3
            if not np.isfinite(logp[0]):
                return 4
        except Exception:
            return 1
        return 0

    return logp_numba, types.int64(SIZE, NUMBERS, NUMBERS, NUMBERS, DATA)


def _make_c_expand_func(n_dim, n_expanded, expand_fn, user_data, shared_var_keys, shared_data):
    """Return nutpie's expansion of draws, and the types that it takes."""
    inner = _with_shared(expand_fn, user_data, shared_var_keys, shared_data)

    def expand_numba(dim, expanded, x, out, user_data):
        if dim != n_dim or expanded != n_expanded:
            return -1
        try:
            (values,) = inner(numba.carray(x, (n_dim,)), user_data)
            for i in range(n_expanded):
                out[i] = values[i]
        except Exception:
            return -2
        return 0

    return expand_numba, types.int64(SIZE, SIZE, NUMBERS, NUMBERS, DATA)


def _with_shared(function, user_data, keys, shared_data):
    nutpie = import_module("nutpie.compile_pymc")
    return nutpie.make_extraction_fn(function, shared_data, keys, user_data.dtype)


@contextmanager
def lean_callables() -> Iterator[None]:
    """Let nutpie compile these in place of its own, and lean products for all of a model of ours.

    Nutpie's own stay if it is not the nutpie that these are for.
    """
    nutpie = import_module("nutpie.compile_pymc")
    ours: tuple[Callable, ...] = (_make_c_logp_func, _make_c_expand_func)
    theirs = [getattr(nutpie, f.__name__, None) for f in ours]
    same = all(f and _takes(f) == _takes(g) for f, g in zip(theirs, ours, strict=True))
    known: dict[str, Any] = {}
    # Another thread may be here, too, and puts theirs back.
    if same and theirs[0] is not ours[0] and hasattr(nutpie, "make_extraction_fn"):
        new: dict[str, Any] = {f.__name__: f for f in ours}
        known = dict(zip(new, theirs, strict=True))
        if (whole := getattr(nutpie, COMPILE, None)) is not None:
            known[COMPILE], new[COMPILE] = whole, building(whole)
        vars(nutpie).update(new)
    try:
        with of_our_model():
            yield
    finally:
        vars(nutpie).update(known)


def _takes(function):
    return list(inspect.signature(function).parameters)
