"""Arrays in files, for numba: large arrays of a closure stay where they are."""

from pytensor.link.numba.dispatch.basic import numba_funcify, numba_njit

from pymc_vsgp.ops.mapped import Mapped


@numba_funcify.register(Mapped)
def numba_funcify_mapped(op, **kwargs):
    """Return the array."""
    data = op.data

    @numba_njit
    def mapped(token):
        return data

    return mapped
