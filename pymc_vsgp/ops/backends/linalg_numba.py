"""Dense products and solves for numba that compile fast.

PyTensor's own handle every type and layout, and take ten seconds to compile for each combination of
layouts; a log density has six. These are for float64 matrices, hand plain addresses to BLAS, and
compile in well under a second.
"""

import llvmlite.binding
import numpy as np
import pytensor.tensor as pt

from numba.core import types
from numba.extending import get_cython_function_address
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)
from pytensor.tensor.basic import AllocDiag, ExtractDiag
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import SpecifyShape

from pymc_vsgp.ops.linalg import WeightedGram, solves_with

VERSION = 7  # of the code below, for the cache of compiled functions


def _blas(name: str, n_arguments: int):
    """Return a BLAS routine as a function of addresses, by a symbol that a cache can refer to."""
    symbol = f"pymc_vsgp_{name}"
    address = get_cython_function_address("scipy.linalg.cython_blas", name)
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, types.void(*[types.intp] * n_arguments))


dgemm = _blas("dgemm", 13)
dgemv = _blas("dgemv", 11)
dtrsm = _blas("dtrsm", 11)
dsyrk = _blas("dsyrk", 10)


@numba_njit
def keep(*arrays):
    """Keep arrays alive up to here: numba frees one after its last use, and an address is none."""


@numba_njit(cache=True)
def _gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """C = alpha op(A) op(B) + beta C, column-major."""
    i = np.array([m, n, k, lda, ldb, ldc], dtype=np.int32)
    f = np.array([alpha, beta])
    s = np.array([ta, tb], dtype=np.uint8)
    i_, f_, s_ = i.ctypes.data, f.ctypes.data, s.ctypes.data
    dgemm(s_, s_ + 1, i_, i_ + 4, i_ + 8, f_, a, i_ + 12, b, i_ + 16, f_ + 8, c, i_ + 20)
    keep(i, f, s)


@numba_njit(cache=True)
def _gemv(t, m, n, a, lda, x, incx, y):
    """Y = op(A) x, column-major."""
    i = np.array([m, n, lda, incx, 1], dtype=np.int32)
    f = np.array([1.0, 0.0])
    s = np.array([t], dtype=np.uint8)
    i_, f_, s_ = i.ctypes.data, f.ctypes.data, s.ctypes.data
    dgemv(s_, i_, i_ + 4, f_, a, i_ + 8, x, i_ + 12, f_ + 8, y, i_ + 16)
    keep(i, f, s)


@numba_njit(cache=True)
def _trsm(side, uplo, t, diag, m, n, a, lda, b, ldb):
    """Solve in place, column-major."""
    i = np.array([m, n, lda, ldb], dtype=np.int32)
    f = np.array([1.0])
    s = np.array([side, uplo, t, diag], dtype=np.uint8)
    i_, s_ = i.ctypes.data, s.ctypes.data
    dtrsm(s_, s_ + 1, s_ + 2, s_ + 3, i_, i_ + 4, f.ctypes.data, a, i_ + 8, b, i_ + 12)
    keep(i, f, s)


@numba_njit(cache=True)
def _syrk(n, k, a, lda, c, ldc):
    """Upper triangle of C = A^T A, column-major."""
    i = np.array([n, k, lda, ldc], dtype=np.int32)
    f = np.array([1.0, 0.0])
    s = np.array([85, 84], dtype=np.uint8)  # U, T
    i_, f_, s_ = i.ctypes.data, f.ctypes.data, s.ctypes.data
    dsyrk(s_, s_ + 1, i_, i_ + 4, f_, a, i_ + 8, f_ + 8, c, i_ + 12)
    keep(i, f, s)


class NumbaOp(Op):
    """An Op that a rewrite for numba puts into a graph, and nothing else does."""

    def infer_shape(self, node, shapes):
        """Return the shape of the last input."""
        return [shapes[-1]]

    def perform(self, node, inputs, outputs):
        """Nobody calls this."""
        raise NotImplementedError(f"{type(self).__name__} is for numba only.")


def _how_many(A, B) -> int | None:
    """Return of how many matrices stacks of them are, where that is known: all, or one, of each.

    What lacks it would get a `SpecifyShape` with a message that numba compiles for a second.
    """
    a, b = A.type.shape[0], B.type.shape[0]
    return b if a in (1, None) and b != 1 else a


class LeanDot(NumbaOp):
    """Product of two float64 matrices, of a matrix and a vector, or of several matrices."""

    __props__ = ()

    def make_node(self, A, B):
        if A.type.ndim == 3:
            shape = (_how_many(A, B), A.type.shape[1], B.type.shape[2])
            return Apply(self, [A, B], [pt.tensor(dtype="float64", shape=shape)])
        shape = A.type.shape[:-1] + (B.type.shape[1:] if B.type.ndim == 2 else ())
        return Apply(self, [A, B], [pt.tensor(dtype="float64", shape=shape)])

    def infer_shape(self, node, shapes):
        """Drop the axes that are summed over."""
        a, b = shapes
        if len(a) == 3:
            return [(pt.maximum(a[0], b[0]), a[1], b[2])]
        return [(*a[:-1], *b[1:])]


@numba_njit
def _dense(A):
    """Whether BLAS can read A as it is, by rows or by columns."""
    item = A.itemsize
    m, n = A.shape
    return (A.strides[1] == item and A.strides[0] >= item * n) or (
        A.strides[0] == item and A.strides[1] >= item * m
    )


@numba_njit
def _by_rows(A):
    return A.strides[1] == A.itemsize and A.strides[0] >= A.itemsize * A.shape[1]


@numba_njit
def _matmul(A, B, C):
    # Row-major C = A B is column-major C^T = B^T A^T.
    a_rows, b_rows = _by_rows(A), _by_rows(B)
    _gemm(
        78 if b_rows else 84,
        78 if a_rows else 84,
        C.shape[1],
        C.shape[0],
        A.shape[1],
        1.0,
        B.ctypes.data,
        max(B.strides[0 if b_rows else 1] // 8, 1),
        A.ctypes.data,
        max(A.strides[0 if a_rows else 1] // 8, 1),
        0.0,
        C.ctypes.data,
        max(C.shape[1], 1),
    )


@numba_njit
def _matvec(A, x):
    y = np.zeros(A.shape[0])
    if y.size and x.size:
        M = A if _dense(A) else A.copy()
        rows = _by_rows(M)
        m, n = (M.shape[1], M.shape[0]) if rows else M.shape
        ld = max(M.strides[0 if rows else 1] // 8, 1)
        z = x if x.strides[0] > 0 else x.copy()
        _gemv(
            84 if rows else 78,
            m,
            n,
            M.ctypes.data,
            ld,
            z.ctypes.data,
            z.strides[0] // 8,
            y.ctypes.data,
        )
        keep(M, z)
    return y


@register_funcify_default_op_cache_key(LeanDot)
def numba_funcify_lean_dot(op, node, **kwargs):
    """Call dgemm or dgemv."""
    a_ndim, b_ndim = (i.type.ndim for i in node.inputs)

    if b_ndim == 1:

        @numba_njit
        def dot(A, x):
            return _matvec(A, x)

        return dot, VERSION

    if a_ndim == 1:

        @numba_njit
        def dot_from_left(x, A):
            return _matvec(A.T, x)

        return dot_from_left, VERSION

    @numba_njit
    def dot_matrices(A, B):
        C = np.zeros((A.shape[0], B.shape[1]))
        if C.size and A.size:
            _matmul(A if _dense(A) else A.copy(), B if _dense(B) else B.copy(), C)
        return C

    if a_ndim == 2:
        return dot_matrices, VERSION

    return _of_several(dot_matrices), VERSION


@numba_njit
def _put(X, start, part, k):
    """Copy k rows: where shapes are checked, numba compiles the message of an error for seconds."""
    for i in range(k):
        for j in range(X.shape[1]):
            X[start + i, j] = part[i, j]


def _of_several(product):
    """Return the function of stacks of matrices that makes one product after the other."""

    @numba_njit
    def of_several(A, B):
        a, b = A.shape[0], B.shape[0]  # the same, or one is 1
        C = np.empty((max(a, b), A.shape[1], B.shape[2]))
        for k in range(len(C)):
            _put(C[k], 0, product(A[k % a], B[k % b]), C.shape[1])
        return C

    return of_several


class LeanSolve(NumbaOp):
    """``A^-1 B`` for a triangular float64 A and a matrix B, or for several of each."""

    __props__ = ("lower",)

    def __init__(self, lower: bool):
        self.lower = lower

    def make_node(self, A, B):
        shape = B.type.shape if B.type.ndim == 2 else (_how_many(A, B), *B.type.shape[1:])
        return Apply(self, [A, B], [pt.tensor(dtype="float64", shape=shape)])

    def infer_shape(self, node, shapes):
        """Return the shape of B, of as many as there are of either."""
        a, b = shapes
        return [b if len(b) == 2 else (pt.maximum(a[0], b[0]), *b[1:])]


@register_funcify_default_op_cache_key(LeanSolve)
def numba_funcify_lean_solve(op, node, **kwargs):
    """Call dtrsm from the right on a row-major B: the side on which it is twice as fast."""
    lower = op.lower

    @numba_njit
    def solve(A, B):
        X = B.copy()
        if X.size:
            T = A if _dense(A) else A.copy()
            rows = _by_rows(T)
            # Column-major X^T op(A^T) = B^T; a row-major A is A^T already.
            _trsm(
                82,
                85 if lower == rows else 76,
                78 if rows else 84,
                78,
                X.shape[1],
                X.shape[0],
                T.ctypes.data,
                max(T.strides[0 if rows else 1] // 8, 1),
                X.ctypes.data,
                X.shape[1],
            )
            keep(T)
        return X

    if node.inputs[1].type.ndim == 2:
        return solve, VERSION

    return _of_several(solve), VERSION


class CheckShape(NumbaOp):
    """An array, where it has this shape. No error says it in numbers: these compile for seconds."""

    __props__ = ("shape",)
    view_map = {0: [0]}

    def __init__(self, shape: tuple[int | None, ...]):
        self.shape = shape

    def make_node(self, x):
        return Apply(self, [x], [x.type.clone(shape=self.shape)()])


@register_funcify_default_op_cache_key(CheckShape)
def numba_funcify_check_shape(op, node, **kwargs):
    """Compare what is known."""
    known = tuple((i, n) for i, n in enumerate(op.shape) if n is not None)

    @numba_njit
    def check_shape(x):
        for i, n in known:
            if x.shape[i] != n:
                raise ValueError("An array has another shape than its model says.")
        return x

    return check_shape, VERSION


# Rows of a panel. BLAS multiplies matrices twice as fast as it solves, so panels below the diagonal
# are products, and those on it are inverted once, before the loop over the data.
PANEL = 64


class InvertPanels(NumbaOp):
    """A lower triangular factor with the square panels on its diagonal inverted."""

    __props__ = ()

    def make_node(self, R):
        return Apply(self, [R], [R.type()])


class PanelSolve(NumbaOp):
    """``R^-1 B``, or ``R^-T B``, for a factor that went through `InvertPanels`."""

    __props__ = ("transposed",)

    def __init__(self, transposed: bool):
        self.transposed = transposed

    def make_node(self, P, B):
        return Apply(self, [P, B], [pt.tensor(dtype="float64", shape=B.type.shape)])


@register_funcify_default_op_cache_key(InvertPanels)
def numba_funcify_invert_panels(op, **kwargs):
    """Solve for the identity on each panel."""

    @numba_njit
    def invert_panels(R):
        m, P = R.shape[0], R.copy()
        for start in range(0, m, PANEL):
            n = min(PANEL, m - start)
            inverse = np.eye(n)
            # The panel by rows is its transpose by columns; so is the identity.
            _trsm(
                82,
                85,
                78,
                78,
                n,
                n,
                P.ctypes.data + 8 * (start * m + start),
                m,
                inverse.ctypes.data,
                n,
            )
            for i in range(n):
                for j in range(n):
                    P[start + i, start + j] = inverse[i, j]
        return P

    return invert_panels, VERSION


@register_funcify_default_op_cache_key(PanelSolve)
def numba_funcify_panel_solve(op, **kwargs):
    """Substitute panel by panel. Column-major, everything here is its transpose."""
    if op.transposed:

        @numba_njit
        def solve(P, B):
            m, n = B.shape
            X = B.copy()
            part = np.empty((min(PANEL, m), n))
            p, x, w = P.ctypes.data, X.ctypes.data, part.ctypes.data
            for start in range((m - 1) // PANEL * PANEL, -1, -PANEL):
                k = min(PANEL, m - start)
                stop = start + k
                here = x + 8 * start * n
                if stop < m:
                    below = p + 8 * (stop * m + start)
                    _gemm(78, 84, n, k, m - stop, -1.0, x + 8 * stop * n, n, below, m, 1.0, here, n)
                panel = p + 8 * (start * m + start)
                _gemm(78, 84, n, k, k, 1.0, here, n, panel, m, 0.0, w, n)
                _put(X, start, part, k)
            return X

        return solve, VERSION

    @numba_njit
    def solve_forward(P, B):
        m, n = B.shape
        X = B.copy()
        part = np.empty((min(PANEL, m), n))
        p, x, w = P.ctypes.data, X.ctypes.data, part.ctypes.data
        for start in range(0, m, PANEL):
            k = min(PANEL, m - start)
            here = x + 8 * start * n
            if start > 0:
                _gemm(78, 78, n, k, start, -1.0, x, n, p + 8 * start * m, m, 1.0, here, n)
            panel = p + 8 * (start * m + start)
            _gemm(78, 78, n, k, k, 1.0, here, n, panel, m, 0.0, w, n)
            _put(X, start, part, k)
        return X

    return solve_forward, VERSION


def solve_by_panels(node):
    """Return a `BlockSum` node whose block solves by panels, or None if it has no solves.

    Each factor is prepared once, outside the loop.
    """
    inner = node.op.fgraph.unfreeze()
    arguments = list(node.inputs)
    for i, R in enumerate(tuple(inner.inputs)):
        solves = solves_with(inner, R)
        if not solves:
            continue
        for solve, lower in solves:
            new = PanelSolve(not lower)(R, solve.inputs[1])
            inner.replace(solve.outputs[0], new)
        # What is left of the transposed factor has no clients, and goes.
        arguments[i] = InvertPanels()(node.inputs[i])
        others = [
            (client, k)
            for client, k in inner.clients[R]
            if k or not isinstance(client.op, PanelSolve)
        ]
        if others:  # such as its diagonal: they take the factor itself, as one more input
            factor = R.type()
            inner.add_input(factor)
            for client, k in others:
                inner.change_node_input(client, k, factor)
            arguments.append(node.inputs[i])
    if arguments == list(node.inputs):
        return None
    op = node.op.clone_with_inner_graph(inner)
    op.rules += (None,) * (len(arguments) - len(op.rules))  # no gradient is taken after this
    return op.make_node(*arguments)


@register_funcify_default_op_cache_key(WeightedGram)
def numba_funcify_weighted_gram(op, node, **kwargs):
    """Call dsyrk where no weight is negative, else dgemm."""

    @numba_njit
    def weighted_gram(A, w):
        m, n = A.shape
        C = np.zeros((m, m))
        if A.size == 0:
            return C
        scaled = np.empty((m, n))
        positive = True
        for j in range(n):
            positive = positive and w[j] >= 0.0
        if positive:
            root = np.sqrt(w)
            for i in range(m):
                for j in range(n):
                    scaled[i, j] = A[i, j] * root[j]
            _syrk(m, n, scaled.ctypes.data, n, C.ctypes.data, m)
            keep(scaled)
            # The upper triangle by columns is the lower one by rows.
            for i in range(m):
                for j in range(i):
                    C[j, i] = C[i, j]
        else:
            for i in range(m):
                for j in range(n):
                    scaled[i, j] = A[i, j] * w[j]
            _matmul(scaled, (A if _dense(A) else A.copy()).T, C)
        return C

    if node.inputs[1].type.ndim == 1:
        return weighted_gram, VERSION

    @numba_njit
    def several(A, w):
        C = np.empty((w.shape[0], A.shape[0], A.shape[0]))
        for k in range(w.shape[0]):
            C[k] = weighted_gram(A, w[k])
        return C

    return several, VERSION


def _is_real(*variables):
    return all(v.type.dtype == "float64" for v in variables)


def lean(node):
    """Return the lean outputs for a node, or None."""
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, SpecifyShape):
        sizes = [getattr(n, "data", n) for n in node.inputs[1:]]
        if all(n is None or isinstance(n, int | np.ndarray | np.integer) for n in sizes):
            return [CheckShape(tuple(None if n is None else int(n) for n in sizes))(node.inputs[0])]
    if isinstance(op, BatchedDot | Dot) and _is_real(*node.inputs):
        ndims = tuple(i.type.ndim for i in node.inputs)
        if ndims in ((2, 2), (2, 1), (1, 2), (3, 3)):
            return [LeanDot()(*node.inputs)]
    if (
        isinstance(op, SolveTriangular)
        and _is_real(*node.inputs)
        and not op.unit_diagonal
        and op.b_ndim == 2
        and [i.type.ndim for i in node.inputs] in ([2, 2], [3, 3])
    ):
        return [LeanSolve(op.lower)(*node.inputs)]
    if isinstance(op, AllocDiag | ExtractDiag) and op.offset == 0:
        # Of several matrices, as in the gradient of a Cholesky factor: numba would ask Python.
        (x,) = node.inputs
        if (op.axis1, op.axis2) == ((0, 1) if op is not node.op else (1, 2)):
            eye = pt.eye(x.shape[-1], dtype="float64")
            return [x[..., None] * eye if isinstance(op, AllocDiag) else pt.sum(x * eye, axis=-1)]
    return None
