"""The Ops that are a compiled loop, for numba: the loops themselves serve Python as well."""

import numba
import numpy as np

from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_and_cache_key,
    register_funcify_default_op_cache_key,
)

from pymc_vsgp.ops.loop import Loop
from pymc_vsgp.ops.neighbors import Apart, Nearest
from pymc_vsgp.ops.runs import Chosen, Runs


@register_funcify_default_op_cache_key(Loop)
def numba_funcify_loop(op, node, **kwargs):
    """Call the loop."""
    module = op.of_backend("numba")
    loop, settings = getattr(module, op.loop), op.settings
    if not settings:
        return loop, module.VERSION

    @numba_njit
    def with_settings(*inputs):
        return loop(*(inputs + settings))

    return with_settings, module.VERSION


@register_funcify_and_cache_key(Nearest)
def numba_funcify_nearest(op, node, **kwargs):
    """Leave the search to Python: where the inputs are constants it takes place once."""
    search = op.search

    @numba_njit
    def nearest(X, Z, scale):
        with numba.objmode(found="int64[:,::1]"):
            found = search(X, Z, scale)
        return found

    return nearest, None


@register_funcify_default_op_cache_key(Apart)
def numba_funcify_apart(op, node, **kwargs):
    """Count the rows."""

    @numba_njit
    def apart(here):
        n, k = len(here), 0
        rows, at = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
        for i in range(n):
            if not here[i]:
                rows[k], at[i] = i, k
                k += 1
        for i in range(n):
            if here[i]:
                at[i] = k
        return rows[: k + min(n, 1)].copy(), at

    return apart, 1


@register_funcify_default_op_cache_key(Chosen)
def numba_funcify_chosen(op, node, **kwargs):
    """Look for the rows."""

    @numba_njit
    def chosen(here):
        return np.flatnonzero(here), np.cumsum(here) - 1

    return chosen, 1


@register_funcify_default_op_cache_key(Runs)
def numba_funcify_runs(op, node, **kwargs):
    """Compare each row with the one before it."""

    @numba_njit
    def runs(X):
        n, d = X.shape
        starts, rank, k = np.empty(n, np.int64), np.empty(n, np.int64), -1
        for i in range(n):
            new = i == 0
            for j in range(d):
                new |= X[i, j] != X[i - 1, j]
            if new:
                k += 1
                starts[k] = i
            rank[i] = k
        return starts[: k + 1].copy(), rank

    return runs, 1
