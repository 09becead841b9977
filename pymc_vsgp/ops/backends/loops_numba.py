"""The Ops that are a compiled loop, for numba: the loops themselves serve Python as well."""

from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from pymc_vsgp.ops.backends.interpolation_numba import VERSION as INTERPOLATION
from pymc_vsgp.ops.backends.interpolation_numba import from_line, from_plane, to_line, to_plane
from pymc_vsgp.ops.backends.robust_max_numba import VERSION as ROBUST_MAX
from pymc_vsgp.ops.backends.robust_max_numba import robust_max
from pymc_vsgp.ops.interpolation import FromGrid, ToGrid
from pymc_vsgp.ops.robust_max import RobustMaxProbability


@register_funcify_default_op_cache_key(RobustMaxProbability)
def numba_funcify_robust_max(op, node, **kwargs):
    """Call the loop."""
    return robust_max, ROBUST_MAX


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
