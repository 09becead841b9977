"""The Ops that are a compiled loop, for numba: the loops themselves serve Python as well."""

import numba
import numpy as np

from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_and_cache_key,
    register_funcify_default_op_cache_key,
)

from pymc_vsgp.ops.backends.interpolation_numba import VERSION as INTERPOLATION
from pymc_vsgp.ops.backends.interpolation_numba import from_line, from_plane, to_line, to_plane
from pymc_vsgp.ops.backends.log_sum_exp_numba import VERSION as LOG_SUM_EXP
from pymc_vsgp.ops.backends.log_sum_exp_numba import log_sum_exp
from pymc_vsgp.ops.backends.neighbors_numba import VERSION as NEIGHBORS
from pymc_vsgp.ops.backends.neighbors_numba import solve_back, solve_each, solve_forth
from pymc_vsgp.ops.backends.precision_numba import VERSION as PRECISION
from pymc_vsgp.ops.backends.precision_numba import conjugate, eliminate, eliminate_back
from pymc_vsgp.ops.backends.robust_max_numba import VERSION as ROBUST_MAX
from pymc_vsgp.ops.backends.robust_max_numba import robust_max
from pymc_vsgp.ops.interpolation import FromGrid, ToGrid
from pymc_vsgp.ops.log_sum_exp import ExpectedLogSumExp
from pymc_vsgp.ops.neighbors import Nearest, SolveEach, SparseSolve
from pymc_vsgp.ops.precision import IncompleteFactor, PrecisionSolve, PullFactor
from pymc_vsgp.ops.robust_max import RobustMaxProbability
from pymc_vsgp.ops.runs import Runs


@register_funcify_default_op_cache_key(RobustMaxProbability)
def numba_funcify_robust_max(op, node, **kwargs):
    """Call the loop."""
    return robust_max, ROBUST_MAX


@register_funcify_default_op_cache_key(ExpectedLogSumExp)
def numba_funcify_log_sum_exp(op, node, **kwargs):
    """Call the loop."""
    return log_sum_exp, LOG_SUM_EXP


@register_funcify_default_op_cache_key(FromGrid)
def numba_funcify_from_grid(op, node, **kwargs):
    """Call the loop."""
    return (from_line if len(op.shape) == 1 else from_plane), INTERPOLATION


@register_funcify_default_op_cache_key(ToGrid)
def numba_funcify_to_grid(op, node, **kwargs):
    """Call the loop."""
    if len(op.shape) == 1:
        (n,) = op.shape

        @numba_njit
        def spread(places, values):
            return to_line(places, values, n)

    else:
        n1, n2 = op.shape

        @numba_njit
        def spread(places, values):
            return to_plane(places, values, n1, n2)

    return spread, INTERPOLATION


@register_funcify_default_op_cache_key(SolveEach)
def numba_funcify_solve_each(op, node, **kwargs):
    """Call the loop, for any number of dimensions in front."""

    @numba_njit
    def solve(C, c):
        m = c.shape[-1]
        n = c.size // m
        C, c = np.ascontiguousarray(C), np.ascontiguousarray(c)
        return solve_each(C.reshape((n, m, m)), c.reshape((n, m))).reshape(c.shape)

    return solve, NEIGHBORS


@register_funcify_default_op_cache_key(SparseSolve)
def numba_funcify_sparse_solve(op, node, **kwargs):
    """Call the loop."""
    return (solve_back if op.transposed else solve_forth), NEIGHBORS


@register_funcify_default_op_cache_key(IncompleteFactor)
def numba_funcify_incomplete_factor(op, node, **kwargs):
    """Call the loop."""
    return eliminate, PRECISION


@register_funcify_default_op_cache_key(PullFactor)
def numba_funcify_pull_factor(op, node, **kwargs):
    """Call the loop."""
    return eliminate_back, PRECISION


@register_funcify_default_op_cache_key(PrecisionSolve)
def numba_funcify_precision_solve(op, node, **kwargs):
    """Call the loop."""
    return conjugate, PRECISION


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
