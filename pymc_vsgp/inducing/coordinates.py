r"""The coordinates in which a sampler moves the inducing values.

On paper: :math:`u = m(Z) + R v` with :math:`v \sim N(0, I)` a priori. NUTS works on an
unconstrained value; here that value is :math:`v`, so the target looks like a standard normal until
data speak. A coordinate system is a change of variables and nothing more: the density of the
user's variables does not depend on it.
"""

import pytensor.tensor as pt

from pymc.logprob.transforms import Transform
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting.basic import register_canonicalize
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.potential.cholesky import SafeCholesky

__all__ = ["Whitened", "unwhiten", "whiten"]


def whiten(u: TensorVariable, mean: TensorVariable, R: TensorVariable) -> TensorVariable:
    """Return v such that ``u = mean + R v``."""
    return solve_triangular(R, u - mean, lower=True, b_ndim=1)


def unwhiten(v: TensorVariable, mean: TensorVariable, R: TensorVariable) -> TensorVariable:
    """Return ``mean + R v``."""
    return mean + pt.dot(R, v)


class Whitened(Transform):
    """Whitened coordinates of an :class:`~pymc_vsgp.inducing.variable.Inducing` variable.

    The variable's own inputs (its mean and the factor R) follow the kernel's parameters, and
    PyMC hands them to every method, so the map moves with the parameters.
    """

    name = "whitened"
    ndim_supp = 1

    def forward(self, value, *inputs):
        """Return the whitened value."""
        _, mean, R = inputs
        return whiten(value, mean, R)

    def backward(self, value, *inputs):
        """Return the inducing values."""
        _, mean, R = inputs
        return unwhiten(value, mean, R)

    def log_jac_det(self, value, *inputs):
        """Return ``log |du / dv|``."""
        _, _, R = inputs
        return pt.log(pt.diagonal(R)).sum()


def _core_op(op):
    return op.core_op if isinstance(op, Blockwise) else op


def _divide_by_factor(b, R):
    """Return x where `b` is the product ``R x``, else None."""
    if b.owner is None:
        return None
    if isinstance(b.owner.op, Dot) and b.owner.inputs[0] is R:
        return b.owner.inputs[1]
    if isinstance(b.owner.op, DimShuffle) and b.owner.op.is_squeeze:
        # PyTensor writes a matrix-vector product as that with a one-column matrix.
        x = _divide_by_factor(b.owner.inputs[0], R)
        return None if x is None else x.dimshuffle(b.owner.op.new_order)
    return None


@register_canonicalize
@node_rewriter([SolveTriangular, Blockwise])
def local_whiten_unwhiten(fgraph, node):
    """Rewrite ``R^-1 (R v)`` as ``v`` for a Cholesky factor R.

    The potential and the prior take v from u, and in the log density u is itself ``m + R v``. PyMC
    canonicalizes the log density before it takes gradients, so neither the product, nor the solve,
    nor their adjoints are left in what is compiled.
    """
    op = _core_op(node.op)
    if not (isinstance(op, SolveTriangular) and op.lower and not op.unit_diagonal):
        return None
    R, b = node.inputs
    if not (R.owner and isinstance(_core_op(R.owner.op), Cholesky | SafeCholesky)):
        return None
    x = _divide_by_factor(b, R)
    return None if x is None else [x]
