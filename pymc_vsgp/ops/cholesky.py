"""A Cholesky factorization that does not lie.

PyTensor's returns nan where the matrix is not positive definite; a sampler that meets one nan may
stop, or carry it on. `SafeCholesky` adds as much jitter as it takes, says how much that was, and
where even the largest does not help returns something finite and says that it failed.
"""

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable
from scipy.linalg.lapack import dpotrf

from pymc_vsgp.ops.loop import WithJAX

LARGEST_JITTER = 1e-2
"""No more than this is added unasked, as a fraction of the mean of the diagonal."""

FIRST_STEP = 1e-10  # what a jitter of zero is raised to first
# Powers of ten that are reached by multiplication may come out above the decimal.
LARGEST = LARGEST_JITTER * (1.0 + 1e-9)


def next_level(level: float) -> float:
    """Return the jitter to try after `level`."""
    return max(10.0 * level, FIRST_STEP)


def _factor(K, jitter) -> tuple[np.ndarray, np.ndarray]:
    """Factorize a matrix by LAPACK."""
    level = float(jitter)
    # LAPACK may let nan through without saying that it failed.
    if np.isfinite(level) and np.all(np.isfinite(K)):
        shift = np.mean(np.diagonal(K)) * np.eye(len(K))
        while True:
            L, info = dpotrf(K + level * shift, lower=True, clean=True)
            if info == 0 and np.all(np.isfinite(np.diagonal(L))):
                return L, np.asarray(level)
            level = next_level(level)
            if level > LARGEST:
                break
    return np.eye(len(K)), np.asarray(np.inf)


def factor_many(K: np.ndarray, jitter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factorize matrices, of which there are as many as the leading axes of both say."""
    lead, n = np.broadcast_shapes(K.shape[:-2], np.shape(jitter)), K.shape[-1]
    level = np.broadcast_to(jitter, lead)
    mean = np.mean(np.diagonal(K, axis1=-2, axis2=-1), axis=-1)
    try:
        # One loop for all of them; it stops where one fails, and lets nan through.
        L = np.linalg.cholesky(K + (level * mean)[..., None, None] * np.eye(n))
        if np.all(np.isfinite(L)):
            return L, level.copy()
    except np.linalg.LinAlgError:
        pass
    K, L, added = np.broadcast_to(K, (*lead, n, n)), np.empty((*lead, n, n)), np.empty(lead)
    for at in np.ndindex(lead):
        L[at], added[at] = _factor(K[at], level[at])
    return L, added


class SafeCholesky(WithJAX):
    r"""Lower Cholesky factor of a symmetric matrix with jitter on its diagonal.

    Takes K, of which only the lower triangle is read, and the relative jitter. Tries

    .. math:: L L^\top = K + j\, \mathrm{mean}(\mathrm{diag}\, K)\, I

    with j = jitter, then with 10, 100, ... times as much (a jitter of zero is raised to 1e-10
    first) up to 1e-2. Returns L and ``added``, the j that was used. Where none is enough, or K is
    not finite, L is the identity and ``added`` is infinite.

    The gradient with respect to K is that of L with j held constant; it is zero after a failure.
    jitter has a gradient where it was enough as given. ``added`` has none.
    """

    gufunc_signature = "(m,m),()->(m,m),()"
    gufunc_spec = ("pymc_vsgp.ops.cholesky.factor_many", 2, 2)

    def make_node(self, K, jitter):
        """Return the node for a matrix and a scalar."""
        K, jitter = (pt.as_tensor(v).astype("float64") for v in (K, jitter))
        if K.type.ndim != 2 or jitter.type.ndim != 0:
            raise TypeError(
                "SafeCholesky takes a matrix and a scalar. "
                f"It got {K.type.ndim} and {jitter.type.ndim} dimensions."
            )
        L = pt.tensor(dtype="float64", shape=K.type.shape)
        return Apply(self, [K, jitter], [L, pt.scalar(dtype="float64")])

    def infer_shape(self, node, shapes):
        """L is as large as K."""
        return [shapes[0], ()]

    def perform(self, node, inputs, outputs):
        """Factorize by LAPACK."""
        outputs[0][0], outputs[1][0] = _factor(*inputs)

    def perform_jax(self, K, jitter):
        """Factorize in JAX; PyTensor traces this."""
        from pymc_vsgp.ops.backends.cholesky_jax import safe_cholesky

        return safe_cholesky(K, jitter, FIRST_STEP, LARGEST)

    def connection_pattern(self, node):
        """Say that `added` has no gradient."""
        return [[True, False], [True, False]]

    def pullback(self, inputs, outputs, cotangents):
        """Reverse mode of the factor, by Murray (2016), arXiv:1602.07527."""
        K, jitter = inputs
        L, added = outputs
        dL, _ = cotangents
        if isinstance(dL.type, DisconnectedType):
            return [disconnected_type(), disconnected_type()]

        # By masks: JAX can't put a diagonal into a matrix whose shape it does not know.
        eye = pt.eye(K.shape[0], dtype="float64")

        def halve(P):
            return pt.tril(P) - P * eye / np.float64(2.0)

        def solve(P):
            return solve_triangular(L.T, P, lower=False, b_ndim=2)

        # After a failure L is the identity, and all of this is finite.
        S = solve(solve(halve(pt.dot(L.T, dL)).T).T)
        G = pt.tril(S + S.T) - S * eye
        G = pt.switch(pt.isinf(added), np.float64(0.0), G)
        trace = pt.sum(G * eye)
        through_mean = pt.switch(pt.isinf(added), np.float64(0.0), added) * trace / K.shape[0]
        dK = G + through_mean * eye
        mean = pt.sum(K * eye) / K.shape[0]
        djitter = pt.switch(pt.eq(added, jitter), trace * mean, np.float64(0.0))
        return [dK, djitter]


def factor(K: TensorVariable, jitter=1e-6) -> tuple[TensorVariable, TensorVariable]:
    """Return the lower Cholesky factor of K, and the relative jitter that it took: `SafeCholesky`.

    The second is infinite where K could not be factorized; the first is the identity then.
    """
    # A Python float would become a float32 constant.
    return SafeCholesky()(K, np.float64(jitter) if isinstance(jitter, float | int) else jitter)


def failed(R: TensorVariable) -> TensorVariable:
    """Whether the matrix that `factor` returned is not a factor of anything."""
    if R.owner is None or not isinstance(R.owner.op, SafeCholesky):
        raise TypeError("failed() takes the first output of factor(). It got another variable.")
    return pt.isinf(R.owner.outputs[1])


def guarded(logp: TensorVariable, R: TensorVariable) -> TensorVariable:
    """Return a log density, minus infinity where R is made of factors of which one failed.

    Everything else is finite there, so that no gradient is NaN.
    """
    made = (v.owner for v in ancestors([R]) if v.owner is not None)
    for node in dict.fromkeys(node for node in made if isinstance(node.op, SafeCholesky)):
        logp = pt.switch(failed(node.outputs[0]), np.float64(-np.inf), logp)
    return logp
