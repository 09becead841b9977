"""`SafeCholesky` for numba."""

import numpy as np

from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)
from pytensor.link.numba.dispatch.linalg.decomposition.cholesky import _cholesky

from pymc_vsgp.ops.cholesky import FIRST_STEP, LARGEST, SafeCholesky

# Raise this with any change below, or to the levels: PyTensor keeps what it compiled under it.
VERSION = 1


@register_funcify_default_op_cache_key(SafeCholesky)
def numba_funcify_safe_cholesky(op, node, **kwargs):
    """Return the compiled function of K and jitter; the arguments are those of `next_level`."""

    @numba_njit
    def safe_cholesky(K, jitter):
        M = K.shape[0]
        level = jitter.item()
        # LAPACK may let nan through without saying that it failed.
        if np.isfinite(level) and np.all(np.isfinite(K)):
            scale = 0.0
            for i in range(M):
                scale += K[i, i]
            scale /= M
            while True:
                A = K.copy()
                for i in range(M):
                    A[i, i] += level * scale
                L = _cholesky(A, True, False)
                finite = True
                for i in range(M):
                    finite = finite and np.isfinite(L[i, i])
                if finite:
                    return L, np.array(level)
                # This is `next_level`.
                level = max(10.0 * level, FIRST_STEP)
                if level > LARGEST:
                    break
        # In the layout that LAPACK returns: numba wants one type.
        return np.eye(M).T, np.array(np.inf)

    return safe_cholesky, VERSION
