r"""The coordinates in which a sampler moves the inducing values.

On paper: :math:`u = m(Z) + R v` with :math:`v \sim N(0, I)` a priori. NUTS works on an
unconstrained value; here that value is :math:`v`, so the target looks like a standard normal until
data speak. A coordinate system is a change of variables and nothing more: the density of the
user's variables does not depend on it.
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
import scipy.linalg

from pymc.logprob.transforms import Transform
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg import cholesky, solve_triangular
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting.basic import register_canonicalize
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.ops.cholesky import SafeCholesky
from pymc_vsgp.ops.neighbors import gather, sparse_solve


def whiten(u: TensorVariable, mean: TensorVariable, R: TensorVariable) -> TensorVariable:
    """Return v such that ``u = mean + R v``; with a matrix u, for each of its rows.

    A vector R stands for a diagonal matrix.
    """
    if R.type.ndim == 1:
        return (u - mean) / R
    if u.type.ndim == 1:
        return solve_triangular(R, u - mean, lower=True, b_ndim=1)
    return solve_triangular(R, (u - mean).T, lower=True, b_ndim=2).T


def unwhiten(v: TensorVariable, mean: TensorVariable, R: TensorVariable) -> TensorVariable:
    """Return ``mean + R v``; with a matrix v, for each of its rows."""
    if R.type.ndim == 1:
        return mean + R * v
    if v.type.ndim == 1:
        return mean + pt.dot(R, v)
    return mean + pt.dot(R, v.T).T


def log_determinant(R: TensorVariable) -> TensorVariable:
    """Return ``log |R|`` of a triangular or diagonal factor."""
    return pt.log(R if R.type.ndim == 1 else pt.diagonal(R)).sum()


class Whitened(Transform):
    """Whitened coordinates of an :class:`~pymc_vsgp.model.variable.Inducing` variable.

    The variable's own inputs (its mean and the factor R) follow the kernel's parameters, and
    PyMC hands them to every method, so the map moves with the parameters.
    """

    name = "whitened"
    ndim_supp = 1

    def forward(self, value, *inputs):
        """Return the whitened value."""
        _, mean, R, *_ = inputs
        return whiten(value, mean, R)

    def backward(self, value, *inputs):
        """Return the inducing values."""
        _, mean, R, *_ = inputs
        return unwhiten(value, mean, R)

    def log_jac_det(self, value, *inputs):
        """Return ``log |du / dv|``, one for each row of a matrix of values."""
        _, _, R, *_ = inputs
        logdet = log_determinant(R)
        return logdet if value.type.ndim == 1 else pt.broadcast_to(logdet, value.shape[:-1])


def sparse_whiten(u, mean, factor, neighbors) -> TensorVariable:
    """Return v such that ``u = mean + R v`` for a sparse factor; with a matrix u, for its rows.

    Row i of `factor` has the weights of the neighbors of u_i, and its deviation given them.
    """
    w, (weights, sd) = u - mean, (factor[:, :-1], factor[:, -1])
    rows = [w] if w.type.ndim == 1 else [w[k] for k in range(w.type.shape[0])]
    out = [(r - pt.sum(weights * gather(r, neighbors), axis=1)) / sd for r in rows]
    return out[0] if w.type.ndim == 1 else pt.stack(out)


def sparse_unwhiten(v, mean, factor, neighbors, order) -> TensorVariable:
    """Return ``mean + R v`` for a sparse factor; with a matrix v, for its rows."""
    return mean + sparse_solve(factor[:, -1] * v, factor[:, :-1], neighbors, order)


class Sparse(Whitened):
    """Whitened coordinates of values that depend on a few others each."""

    def forward(self, value, *inputs):
        _, mean, factor, _, _, neighbors, *_ = inputs
        return sparse_whiten(value, mean, factor, neighbors)

    def backward(self, value, *inputs):
        _, mean, factor, _, _, neighbors, order, _ = inputs
        return sparse_unwhiten(value, mean, factor, neighbors, order)

    def log_jac_det(self, value, *inputs):
        return super().log_jac_det(value, None, None, inputs[2][:, -1])


class SparseTied(Sparse):
    r"""Coordinates in which the posterior of such values looks like a standard normal.

    Each value is regressed on those of its neighbors before it and on what the sites of the inputs
    around it say, which makes

    .. math:: u_i = m_i + c_i + b_i^\top (u_{N(i)} - m_{N(i)}) + s_i \epsilon_i

    the posterior, but for what neighbors leave out. The last input of the variable has b, c and s,
    which follow theta. A change of variables as any other: it may cost speed, never correctness.
    """

    def forward(self, value, *inputs):
        mean, neighbors, (b, center, sd) = inputs[1], inputs[5], _columns(inputs[7])
        w = value - mean
        return (w - pt.sum(b * gather(w, neighbors), axis=1) - center) / sd

    def backward(self, value, *inputs):
        _, mean, _, _, _, neighbors, order, columns = inputs
        b, center, sd = _columns(columns)
        return mean + sparse_solve(center + sd * value, b, neighbors, order)

    def log_jac_det(self, value, *inputs):
        return pt.log(_columns(inputs[7])[2]).sum()


def _columns(x):
    return x[:, :-2], x[:, -2], x[:, -1]


class Sites(NamedTuple):
    r"""Gaussian pseudo-observations of the inducing values.

    The density :math:`\exp(\lambda^\top u - u^\top B B^\top u / 2)`, for each of K functions:
    `linear` is K x M and `root` K x M x M, or K x M for a diagonal B. Of functions that share data
    it has the rows of B for all of them, K x M x n. With a `slope`, K x M x d,
    :math:`\lambda` is ``linear + slope @ theta``: it follows what parameters of the likelihoods
    make of the data, such as a coefficient of a regression, or cut-points.
    """

    linear: np.ndarray
    root: np.ndarray
    slope: Any = None

    def at(self, theta: np.ndarray) -> "Sites":
        """Return what they are at these parameters, without a slope."""
        if self.slope is None:
            return self
        return Sites(self.linear + self.slope @ theta, self.root)

    def following(self, slope: Any, theta: np.ndarray) -> "Sites":
        """Return sites with this slope, which are these at `theta`."""
        if slope is None:
            return self
        return Sites(self.linear - slope @ theta, self.root, slope)

    @property
    def rotated(self) -> bool:
        """Whether these are of `Rotated`, whose root has a row more."""
        return self.root.ndim == 3 and self.root.shape[1] == self.root.shape[2] + 1

    @property
    def dense(self) -> bool:
        """Whether their root has a row for each value, and no more."""
        return self.root.ndim == 3 and not self.rotated

    @property
    def shared(self) -> bool:
        """Whether these are of `Together`, whose root has columns for all values."""
        return self.root.ndim == 3 and self.root.shape[1] < self.root.shape[2]


class Tied(Whitened):
    r"""Coordinates in which the posterior of u looks like a standard normal, for every theta.

    With sites :math:`\lambda, B` from a Gaussian fit, and R and the mean m(Z) at theta,

    .. math::

       P = I + R^\top B B^\top R = L L^\top, \quad
       v = P^{-1} R^\top (\lambda - B B^\top m(Z)) + L^{-\top} \epsilon, \quad u = m(Z) + R v

    P has no eigenvalue below one, whatever the sites are. Without sites this is `Whitened`, and
    with any it is a change of variables: bad sites cost speed, never correctness.
    """

    def _maps(self, value, inputs):
        """Return ``L^T`` times the center, and L, for each function."""
        _, mean, R, linear, root = inputs
        if value.type.ndim == 1:
            linear, root = linear[0], root[0]
        return apply_sites(mean, R, linear, root)

    def forward(self, value, *inputs):
        half, L = self._maps(value, inputs)
        return times(whiten(value, *inputs[1:3]), L) - half

    def backward(self, value, *inputs):
        half, L = self._maps(value, inputs)
        return unwhiten(divide(value + half, L), *inputs[1:3])

    def log_jac_det(self, value, *inputs):
        _, L = self._maps(value, inputs)
        L = L if L.type.ndim == value.type.ndim else diagonal(L)
        return super().log_jac_det(value, *inputs) - pt.log(L).sum(axis=-1)


class Together(Whitened):
    r"""Coordinates of functions that share data, as in `Tied`, by the sites of all of them.

    Data of a sum say little of a function alone: one may be higher where the other is lower. With
    B that has rows of all inducing values and a block diagonal R, P is that of all v. So by blocks
    of L, epsilon of each function is

    .. math:: \epsilon_i = L_{ii}^\top v_i + \sum_{j > i} L_{ji}^\top v_j - (L^{-1} h)_i

    The last but one input of the variable is :math:`(L^{-1} h)_i` less the sum, and the last one
    :math:`L_{ii}`.
    """

    def forward(self, value, *inputs):
        _, mean, R, half, L = inputs
        v = whiten(value, mean, R)
        return (pt.dot(v.ravel(), L[0]) - half.ravel()).reshape(value.shape)

    def backward(self, value, *inputs):
        _, mean, R, half, L = inputs
        v = divide(value.ravel() + half.ravel(), L[0])
        return unwhiten(v.reshape(value.shape), mean, R)

    def log_jac_det(self, value, *inputs):
        logs = pt.log(pt.diagonal(inputs[4][0])).reshape(value.shape)
        return super().log_jac_det(value, *inputs) - logs.sum(axis=-1)


class Diagonal(Tied):
    r"""Coordinates of independent coefficients, with sites that keep them independent.

    `Tied` with a diagonal B, at the cost of M: where the data say about as much everywhere, waves
    of different frequencies hardly correlate under the posterior. The sites' root, which has the
    axes of that of `Tied`, holds the diagonal in a column.
    """

    def _maps(self, value, inputs):
        _, mean, scale, linear, root = inputs
        root = root[:, :, 0]
        if value.type.ndim == 1:
            linear, root = linear[0], root[0]
        return apply_diagonal_sites(mean, scale, linear, root)


class Known(Tied):
    r"""Coordinates of independent coefficients, as in `Tied`, by the precision of their sites.

    In place of a root the variable has :math:`B B^\top`: less work where theta turns it.
    """

    def _maps(self, value, inputs):
        _, mean, scale, linear, precision = inputs
        if value.type.ndim == 1:
            linear, precision = linear[0], precision[0]
        return apply_precision(mean, scale, linear, precision)


class Rotated(Diagonal):
    r"""Coordinates of independent coefficients that are correlated under the posterior.

    As `Diagonal`, with a fixed root T of their correlations: :math:`v = \text{center} + T \epsilon
    / L`. Scales follow theta and correlations do not, so a step costs M squared. The sites' root
    has the diagonal in its first row, and below it T.
    """

    def _maps(self, value, inputs):
        rng, mean, scale, linear, root = inputs
        return super()._maps(value, (rng, mean, scale, linear, root[:, 0, :, None]))

    def _rotation(self, value, inputs):
        T = inputs[4][:, 1:]
        return T[0] if value.type.ndim == 1 else T

    def forward(self, value, *inputs):
        turned = super().forward(value, *inputs)
        T = self._rotation(value, inputs)
        return solve_triangular(T, turned[..., None], lower=True, b_ndim=2)[..., 0]

    def backward(self, value, *inputs):
        T = self._rotation(value, inputs)
        turned = pt.dot(T, value) if T.type.ndim == 2 else pt.matmul(T, value[..., None])[..., 0]
        return super().backward(turned, *inputs)

    def log_jac_det(self, value, *inputs):
        T = self._rotation(value, inputs)
        diagonals = diagonal(T) if T.type.ndim > 2 else pt.diagonal(T)
        return super().log_jac_det(value, *inputs) + pt.log(diagonals).sum(axis=-1)


def has_matrix(transform: Transform) -> bool:
    """Whether coordinates have a matrix for all inducing values."""
    if isinstance(transform, Diagonal):
        return isinstance(transform, Rotated)
    return isinstance(transform, Tied | Together)


def apply_diagonal_sites(mean, scale, linear, root):
    """Return what `apply_sites` does, as vectors, or matrices with a row for each function."""
    L = pt.sqrt(np.float64(1.0) + (scale * root) ** 2)
    return scale * (linear - root**2 * mean) / L, L


def root_of(precision: np.ndarray) -> np.ndarray:
    """Return B of the precision ``B B^T``, without the directions of negative ones."""
    try:
        return np.linalg.cholesky(precision)  # in a sixth of the time
    except np.linalg.LinAlgError:
        w, V = np.linalg.eigh((precision + precision.T) / 2.0)
    return V * np.sqrt(np.clip(w, 0.0, None))


def sites_of(R, mean, h, precision) -> Sites:
    """Return the sites of u, of one function, that are ``exp(h v - v precision v / 2)`` in v."""
    root = scipy.linalg.solve_triangular(R, root_of(precision), lower=True, trans=1)
    linear = scipy.linalg.solve_triangular(R, h, lower=True, trans=1) + root @ (root.T @ mean)
    return Sites(linear, root)


def turned(turns: list, x):
    """Return ``C^T x``, for each function, with the Kronecker product C of two matrices.

    With sites of C u, x is turned into what it is of those of u.
    """
    n, m = (c.type.shape[0] for c in turns)
    K, _, columns = x.type.shape
    first = pt.matmul(turns[0].T, x.reshape((K, n, m * columns)))
    return pt.matmul(turns[1].T, first.reshape((K, n, m, columns))).reshape((K, n * m, columns))


def unturned(turns: list, x):
    """Return ``C^-1 x``, for each function: u of the variables that do not turn."""
    n, m = (c.type.shape[0] for c in turns)
    K, _, columns = x.type.shape
    first = solve_triangular(turns[0], x.reshape((K, n, m * columns)), lower=True, b_ndim=2)
    second = first.reshape((K * n, m, columns))
    return solve_triangular(turns[1], second, lower=True, b_ndim=2).reshape((K, n * m, columns))


def apply_precision(mean, scale, linear, precision):
    """Return what `apply_sites` does, for independent coefficients and a precision."""
    rest = linear - pt.matmul(precision, mean[..., None])[..., 0]
    P = scale[:, None] * precision * scale + pt.eye(scale.shape[0], dtype="float64")
    L = cholesky(P, lower=True)
    return solve_triangular(L, (scale * rest)[..., None], lower=True, b_ndim=2)[..., 0], L


def apply_sites(mean, R, linear, root):
    """Return ``L^T`` times the center of v, and L, for the sites of each function; see `Tied`.

    The functions are on the first axis of the sites, or there is one and no such axis. A vector R
    stands for a diagonal matrix.
    """
    rest = linear - pt.matmul(root, pt.matmul(mean, root)[..., None])[..., 0]
    if R.type.ndim == 1:
        G, h = R[:, None] * root, R * rest
    else:
        G, h = pt.matmul(R.T, root), pt.dot(rest, R)
    L = cholesky(pt.matmul(G, G.mT) + pt.eye(R.shape[0], dtype="float64"), lower=True)
    return solve_triangular(L, h[..., None], lower=True, b_ndim=2)[..., 0], L


def apply_shared_sites(means, factors, linear, root):
    """Return the same for the sites of functions that share data, as one vector and one matrix.

    Each argument has a part for each process; see `Together`.
    """
    pairs = list(zip(means, root, strict=True))
    known = sum(pt.matmul(m, B).sum(axis=0) for m, B in pairs)
    n = root[0].type.shape[-1]
    G, h = [], []
    for R, a, B in zip(factors, linear, root, strict=True):
        rest, independent = a - pt.dot(B, known), R.type.ndim == 1
        G.append((R[:, None] * B if independent else pt.matmul(R.T, B)).reshape((-1, n)))
        h.append((R * rest if independent else pt.dot(rest, R)).ravel())
    G, h = pt.concatenate(G), pt.concatenate(h)
    L = cholesky(pt.dot(G, G.T) + pt.eye(G.shape[0], dtype="float64"), lower=True)
    return solve_triangular(L, h, lower=True, b_ndim=1), L


def diagonal(L):
    """Return the diagonal of each function's L."""
    # Unlike `pt.diagonal` this has a gradient that numba compiles fast, for several.
    return pt.sum(L * pt.eye(L.shape[-1], dtype="float64"), axis=-1)


def times(x, L):
    """Return ``L^T x`` of each function; an L with the axes of x holds diagonals."""
    if L.type.ndim == x.type.ndim:
        return L * x
    return pt.dot(x, L) if x.type.ndim == 1 else pt.matmul(x[:, None], L)[:, 0]


def divide(x, L):
    """Return ``L^-T x`` of each function; an L with the axes of x holds diagonals."""
    if L.type.ndim == x.type.ndim:
        return x / L
    return solve_triangular(L.mT, x[..., None], lower=False, b_ndim=2)[..., 0]


def inverse_transpose(L):
    """Return ``L^-T`` of each function."""
    eye = pt.eye(L.shape[-1], dtype="float64")
    return solve_triangular(L.mT, eye, lower=False, b_ndim=2)


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
    """Rewrite ``R^-1 (R v)`` as ``v`` for a factor R that `SafeCholesky` made.

    The potential and the prior take v from u, and in the log density u is itself ``m + R v``. PyMC
    canonicalizes the log density before it takes gradients, so neither the product, nor the solve,
    nor their adjoints are left in what is compiled.
    """
    op = _core_op(node.op)
    if not (isinstance(op, SolveTriangular) and op.lower and not op.unit_diagonal):
        return None
    R, b = node.inputs
    if not (R.owner and isinstance(_core_op(R.owner.op), SafeCholesky)):
        return None
    x = _divide_by_factor(b, R)
    return None if x is None else [x]
