"""Values of the function at inducing points, and other variables with a covariance matrix."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad
from pytensor.graph.replace import graph_replace
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.inducing.base import (
    Conditional,
    Contribution,
    InducingPrior,
    InducingVariables,
    gradients_of,
    pull_spread,
    spread_of,
)
from pymc_vsgp.inducing.graphs import FLOOR, Kernel, Moments, as_ops, inline
from pymc_vsgp.inducing.kernels import codes_of
from pymc_vsgp.inducing.spectrum import active_columns, distinct_columns
from pymc_vsgp.ops.cholesky import factor
from pymc_vsgp.ops.distance import pass_gradients
from pymc_vsgp.ops.linalg import weighted_gram


class Dense(InducingVariables):
    """
    Linear functionals of f with a covariance matrix.

    Subclass it for inducing variables of your own, such as averages over bins. Define `n_columns`,
    `n_inducing`, `covariance`, `cross` and `mean`. The last three return graphs of PyTensor. An
    instance goes to ``gp.prior("u", inducing=...)``.

    See Also
    --------
    InducingVariables : The interface without a covariance matrix.

    Notes
    -----
    The page "Design" has one in fifteen lines.
    """

    @property
    def places(self) -> tuple[TensorVariable, ...]:
        """Variables of the model that `cross` takes after X, and has gradients in."""
        return ()

    @abstractmethod
    def covariance(self, cov_func) -> TensorVariable:
        """Covariance of u, M x M."""

    @abstractmethod
    def cross(self, cov_func, X, *places) -> TensorVariable:
        """Covariance of u and f at the rows of X, M x N."""

    @abstractmethod
    def mean(self, mean_at) -> TensorVariable:
        """Mean of u, where `mean_at` is the mean of f."""

    def active(self, cov_func) -> Sequence[int]:
        """Columns of X that `cross` depends on."""
        return range(self.n_columns)

    def distinct(self, cov_func) -> Sequence[int]:
        """Columns in which no two of the places may be equal."""
        return ()

    def under(self, name, cov_func, mean_at, jitter):
        R, _ = factor(self.covariance(cov_func), jitter)
        return DensePrior(self, self.mean(mean_at), R, self.distinct(cov_func))


class DensePrior(InducingPrior):
    """Variables with a covariance matrix, under a kernel and a mean."""

    def __init__(self, kind: Dense, mean, R, distinct: Sequence[int]):
        super().__init__(mean, R)
        self.kind, self.distinct = kind, distinct

    @property
    def inputs(self):
        return self.kind.places

    def given(self, u, cov_func, mean_at, X, layout=None):
        places = self.kind.places
        x, *z = (pt.tensor(dtype="float64", shape=(None, a.type.shape[1])) for a in (X, *places))
        other = x.type()
        # Some kernels of pm.gp give their diagonal in float32.
        outputs = [
            self.kind.cross(cov_func, x, *z),
            cov_func(x, diag=True).astype("float64"),
            mean_at(x),
        ]
        outputs = pass_gradients([*outputs, cov_func(other, x)], [x, other, *z])
        (kernel, covariance), theta = as_ops(([x, *z], outputs[:3]), ([x, other], outputs[3:]))
        n_columns, active = self.kind.n_columns, self.kind.active(cov_func)
        conditional = GivenDense(u.name, n_columns, active, kernel, covariance, len(z))
        conditional.distinct, conditional.codes = self.distinct, codes_of(cov_func)
        return conditional, [self.linear(u), self.factor, *places, *theta]


class Points(Dense):
    """Values of the function at the rows of Xu."""

    def __init__(self, Xu: TensorVariable, n_inducing: int, n_columns: int):
        self.Xu, self._shape = Xu, (n_inducing, n_columns)

    @property
    def n_inducing(self):
        return self._shape[0]

    @property
    def n_columns(self):
        return self._shape[1]

    @property
    def places(self):
        return (self.Xu,)

    def covariance(self, cov_func):
        z = self.Xu.type()
        Kuu = pass_gradients([cov_func(z)], [z])
        return graph_replace(Kuu, {z: self.Xu}, strict=False)[0]

    def active(self, cov_func):
        return active_columns(cov_func, self.n_columns)

    def distinct(self, cov_func):
        return distinct_columns(cov_func, self.n_columns)

    def cross(self, cov_func, X, Z):
        return cov_func(Z, X)

    def mean(self, mean_at):
        return mean_at(self.Xu)


class Pieces(NamedTuple):
    """What the moments of a block are computed from."""

    Kuf: TensorVariable
    A: TensorVariable
    prior: TensorVariable
    mean: TensorVariable
    explained: TensorVariable


class GivenDense(Conditional):
    r"""p(f | u), with args v, R, places, and the parameters of kernel and mean.

    =====================================  ===========  ====================================
    on paper                               in code      what
    =====================================  ===========  ====================================
    :math:`R R^\top = K_{uu} + j I`       ``R``        factor of the inducing covariance
    :math:`v = R^{-1}(u - m(Z))`           ``v``        whitened inducing variables
    :math:`A = R^{-1} K_{uf}`              ``A``        M x N
    :math:`\mu = m(X) + A^\top v`        ``mu``       mean of f given u
    :math:`\gamma = k_{nn} - |A_n|^2`     ``gamma``    variance of f given u
    =====================================  ===========  ====================================
    """

    takes_covariance = True

    def __init__(
        self, process, n_columns, active, kernel: Kernel, covariance: Kernel, n_places: int
    ):
        super().__init__(process, n_columns, active)
        self.noun = "points" if n_places else "inducing variables"
        self.kernel, self.covariance, self.theta = kernel, covariance, 2 + n_places

    def moments(self, X, args):
        v, R = args[:2]
        Kuf, prior, mean = inline(self.kernel, X, *args[2:])
        A = solve_triangular(R, Kuf, lower=True, b_ndim=2)
        explained = pt.sum(A**2, axis=0)
        if v.type.ndim == 2:
            mean = mean[:, None]
        mu = mean + pt.dot(A.T, v)
        gamma = pt.maximum(prior - explained, FLOOR * prior)
        return Pieces(Kuf, A, prior, mean, explained), Moments(mu, gamma)

    def loadings(self, pieces):
        return pieces.A

    def spread(self, X, args, pieces, root):
        return spread_of(pieces.A, root)

    def wrt(self, pieces, moments):
        return [moments.mu, pieces.explained, pieces.prior]

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient: the three products of M^2 B operations."""
        g_mu, g_explained, g_prior = adjoints
        v, A = args[0], pieces.A
        of_args = {0: pt.dot(A, g_mu)}
        A_bar = A * (2.0 * g_explained)
        outer = weighted_gram(A, 2.0 * g_explained)
        several = v.type.ndim == 2
        A_bar += pt.dot(v, g_mu.T) if several else pt.outer(v, g_mu)
        g_mean = pt.sum(g_mu, axis=1) if several else g_mu
        gram = None
        if root is not None:
            of_root, gram = pull_spread(A, root, of_spread)
            A_bar += of_root
        found, of_X = self.through_kernel(X, args, pieces, A_bar, g_prior, g_mean)
        return Contribution(of_args | found, of_X, outer, pt.dot(A_bar, A.T), gram)

    def through_kernel(self, X, args, pieces, A_bar, g_prior, g_mean):
        """Return the gradients in Xu and the parameters by position, and that in X."""
        K_bar = solve_triangular(args[1], A_bar, trans=1, lower=True, b_ndim=2)
        # The kernel's part: the adjoints are numbers by now.
        mean = pieces.mean if pieces.mean.type.ndim == 1 else pieces.mean[:, 0]
        surrogate = (
            pt.sum(disconnected_grad(K_bar) * pieces.Kuf)
            + pt.sum(disconnected_grad(g_prior) * pieces.prior)
            + pt.sum(disconnected_grad(g_mean) * mean)
        )
        found = gradients_of(surrogate, {-1: X} | {i: args[i] for i in range(2, len(args))})
        return found, found.pop(-1)

    def points(self, args):
        return args[2] if self.theta > 2 else super().points(args)

    def prior_mean(self, X, args):
        mean = inline(self.kernel, X, *args[2:])[2]
        several = args[0].type.ndim == 2
        return mean[:, None] + pt.zeros((1, args[0].shape[1])) if several else mean

    def cross(self, X, Z, args):
        (K,) = inline(self.covariance, X, Z, *args[self.theta :])
        return K, inline(self.kernel, X, *args[2:])[1]

    def solve(self, X, args):
        """``A = R^-1 Kuf``."""
        Kuf = inline(self.kernel, X, *args[2:])[0]
        return solve_triangular(args[1], Kuf, lower=True, b_ndim=2)
