"""The interface of inducing variables: all that the rest of the package asks of a kind.

An `InducingVariables` is what ``gp.prior`` takes: what u is. Under a kernel and a mean it has an
`InducingPrior`. A `Conditional` is p(f | u) of one process: how the moments of f follow from u, at
rows of the data and anywhere else, and what a block of rows adds to the gradient.

A conditional holds no variables of a model. It works on `args`, the list of those of its process,
of which the first is what the moments are linear in and the second the factor of the prior. So it
is the same for a copy of the model, for draws of the posterior, and within the loop over the data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import check_new_name
from pymc_vsgp.inducing.coordinates import whiten
from pymc_vsgp.inducing.graphs import Kernel, Moments
from pymc_vsgp.inducing.kernels import wrong_codes
from pymc_vsgp.ops.linalg import weighted_gram


class InducingVariables(ABC):
    """
    What the inducing variables u of a process are: the interface of all types.

    Pass an instance to ``gp.prior("u", inducing=...)``. To write a type of your own, subclass
    :class:`Dense` if u has a covariance matrix. Subclass this one otherwise: it has to define
    `n_columns`, `n_inducing` and `under`.

    See Also
    --------
    Dense : Linear functionals of f with a covariance matrix.
    Fourier : Fourier coefficients.
    NearestNeighbors : Values at all inputs, each given its neighbors.
    Kronecker : Values at all pairs of two sets of inputs.
    """

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """Number of inputs of the function."""

    @property
    @abstractmethod
    def n_inducing(self) -> int:
        """Number of inducing variables."""

    columns: tuple[str, ...] | None = None
    """Names of the inputs."""

    @property
    def example(self) -> np.ndarray:
        """Inputs at which kernel and mean can be tried."""
        return np.outer([0.0, 1.0], np.ones(self.n_columns))

    def of_kernel(self, cov_func) -> "InducingVariables":
        """Return the same for the inputs of a kernel, where it was made without saying which."""
        return self

    @abstractmethod
    def under(self, name: str, cov_func, mean_at, jitter: float) -> "InducingPrior":
        """Return the inducing variables `name` of a process with this kernel and mean.

        The model that they are for is on the context stack.

        Parameters
        ----------
        name : str
            Name of u in the model.
        cov_func : Covariance
            The kernel.
        mean_at : callable
            Gives the mean of f at the rows of a matrix.
        jitter : float
            Added to the diagonal of the prior covariance, as a share of the prior variance.

        Returns
        -------
        InducingPrior
        """


class InducingPrior(ABC):
    """Inducing variables under a kernel and a mean.

    Parameters
    ----------
    mean : TensorVariable, shape (M,)
        Prior mean of u.
    factor : TensorVariable, shape (M, M), (M,) or (M, m + 1)
        Cholesky factor of the prior covariance. A vector holds the standard deviations of
        independent variables; with a `pattern`, rows hold the weights of neighbors, and a
        deviation.
    """

    by: str | None = None
    """Dimension of the groups that have a function each; see `groups`."""

    def __init__(self, mean: TensorVariable, factor: TensorVariable):
        self.mean, self.factor = mean, factor

    @abstractmethod
    def given(
        self, u, cov_func, mean_at, X, layout: Any = None
    ) -> "tuple[Conditional, list[Variable]]":
        """Return p(f | u) of the process with this kernel and mean, and its args.

        They may be those of a component of the process that u belongs to.
        """

    def linear(self, u) -> TensorVariable:
        """Return what moments are linear in: v for a factor, ``u - mean`` for deviations.

        With a row of u for each function, a column for each.
        """
        w = whiten(u, self.mean, self.factor) if self.factor.type.ndim == 2 else u - self.mean
        return w if u.type.ndim == 1 else w.T

    @property
    def pattern(self) -> tuple[Variable, ...]:
        """Of a sparse factor: the neighbors of each variable, M x m, and an order to go in."""
        return ()

    @property
    def inputs(self) -> tuple[Variable, ...]:
        """Variables of the model that say where the inducing variables are."""
        return ()

    def layout(self, X: np.ndarray) -> Any:
        """Return how the rows of X lie, where that makes the sum over the data faster."""
        return None

    def cover(self, X: np.ndarray | None) -> None:
        """Take note of the inputs of a likelihood; raise where they do not fit.

        They are None where they depend on random variables.
        """
        return


def keep(name: str, values: Mapping[str, np.ndarray]) -> list[SharedVariable]:
    """Make these data of the model on the context stack: draws of `name` depend on them.

    By the end of their names, which `Conditional.kept` has. Whole numbers stay as wide as they are,
    unlike those of ``pm.Data``.
    """
    model = pm.modelcontext(None)
    for what in values:
        check_new_name(model, f"{name}_{what}")
    found = []
    for what, x in values.items():
        shared = pytensor.shared(x, name=model.name_for(f"{name}_{what}"), shape=x.shape)
        model.register_data_var(shared)
        found.append(shared)
    return found


class Contribution(NamedTuple):
    """What a block of rows adds to the gradient."""

    of_args: dict[int, TensorVariable]
    """By position among the args."""
    of_X: TensorVariable | None = None
    outer: TensorVariable | None = None
    """Of the factor R, without the parts of v and root; see `engine.streaming.Factor`."""
    whole: TensorVariable | None = None
    """The same with these parts, which pays where the block is all there is."""
    gram: Any = None
    """The matrix, or its diagonal, that a root of the covariance of u is multiplied with."""


class Basis(NamedTuple):
    """Functions of x alone that f is a sum of, and a residual variance, the same anywhere."""

    functions: Any
    """Returns the matrix of them at the rows of X."""
    number: int
    residual: int
    """Position of the residual variance among the args."""
    valid: int
    """Position of a number that is nan where the rows of the data do not fit."""
    mean: Kernel
    theta: slice
    """Positions of the parameters of the mean."""


class Conditional(ABC):
    """p(f | u) of one process.

    Parameters
    ----------
    process : str
        Name of u, which copies of the model keep.
    n_columns : int
        Number of inputs of f.
    active : sequence of int, optional
        Those that anything but the mean depends on. By default all.
    """

    noun: str = "inducing variables"
    """What they are, in reports."""
    layout: Any = None
    """How the rows of the data lie, if that is made use of: they are one block then."""
    follows_X: bool = True
    """Whether `pull` gives the gradient in X."""
    takes_covariance: bool = False
    """Whether `spread` and `pull` take a `Covariance` in place of a root."""
    by: str | None = None
    """Dimension of the groups that have a function each."""
    repeats: bool = False
    """Whether f repeats, as it would not with points."""
    distinct: Sequence[int] = ()
    """Columns in which no two points may be equal."""
    codes: Mapping[int, int] = {}
    """Columns that have codes of outputs, with how many there are."""
    kept: Sequence[str] = ()
    """Data of the model that draws depend on, by the end of their names."""

    def __init__(self, process: str, n_columns: int, active: Sequence[int] | None = None):
        self.process, self.n_columns = process, n_columns
        self.active = list(range(n_columns) if active is None else active)

    def own(self, X):
        """Return the active columns of X."""
        if len(self.active) == self.n_columns:
            return X
        return pt.stack([X[:, d] for d in self.active], axis=1)

    @property
    def width(self) -> int | None:
        """Columns of the widest matrix in a block, where the args do not tell."""
        return None

    @property
    def whole(self) -> bool:
        """Whether all rows make one block."""
        return False

    @property
    def beside_rows(self) -> int:
        """Products that a block takes beside those of its rows."""
        return 0

    def several(self, args) -> bool:
        """Whether a row sees several functions, each a row of u."""
        return args[0].type.ndim == 2

    def by_rows(self) -> "Conditional":
        """Return the same for rows that lie in any way."""
        return self

    def block_args(self, X: Variable, args: list[Variable]) -> list[Variable]:
        """Return the args that the loop over the data takes."""
        return args

    def row_args(self, X: Variable, args: list[Variable]) -> list[Variable]:
        """Return more of them, that go with the rows of X and come last."""
        return []

    def user_args(self, args: list[Variable]) -> list[Variable]:
        """Undo `block_args` and `row_args`."""
        return args

    def complaint(self, X: np.ndarray, args: list[Variable]) -> str | None:
        """Say why the rows of the data can't be replaced by these, where they can't."""
        return wrong_codes(X, self.codes)

    def other_draws(self, kept: Mapping[str, Any]) -> str | None:
        """Say that draws with these data are of other variables, where they are."""
        return None

    @abstractmethod
    def moments(self, X, args) -> tuple[Any, Moments]:
        """Build the moments in a block, and what they are computed from.

        The mean is a vector, or a matrix with a column for each of several functions.
        """

    def loadings(self, pieces) -> TensorVariable:
        """Return A, M x B, such that the mean of f is that of the prior and ``A^T v``."""
        raise NotImplementedError(f"Functions of {self.noun} are not coupled.")

    @abstractmethod
    def spread(self, X, args, pieces, root) -> TensorVariable:
        """Variance of the mean of f where the first arg has the covariance ``root root^T``."""

    def diagonal(self, args, root) -> bool:
        """Whether variables with this root are independent."""
        return root.type.ndim == args[0].type.ndim

    def wrt(self, pieces, moments: Moments) -> list[TensorVariable]:
        """Return what `pull` needs the adjoints of."""
        return list(moments)

    @abstractmethod
    def pull(self, X, args, pieces, moments, adjoints, root, of_spread) -> Contribution:
        """Return what the block adds to the gradient."""

    def anywhere(self, X, args) -> Moments:
        """Moments at each row of any X on its own."""
        return self.moments(X, args)[1]

    def points(self, args) -> TensorVariable:
        """Where the inducing variables are; no rows where they are not at points."""
        return pt.zeros((0, self.n_columns))

    @property
    def basis(self) -> Any:
        """A `Basis` of functions that f is a sum of, where they are free of parameters, or None."""
        return None

    @property
    def products(self) -> Any:
        """The `products.Products` of features that f is a sum of, or None."""
        return None

    def warnings(self, args) -> list[tuple[TensorVariable, Any]]:
        """Return numbers of theta, each with a function that says what is wrong with it."""
        return []

    @abstractmethod
    def prior_mean(self, X, args) -> TensorVariable:
        """Prior mean of f at the rows of X."""

    @abstractmethod
    def cross(self, X, Z, args) -> tuple[TensorVariable, TensorVariable]:
        """Covariance of f between the rows of Z and of X, and its variance at X."""

    @abstractmethod
    def solve(self, X, args) -> TensorVariable:
        """Return A such that the covariance that u explains is ``A^T A``."""

    def prior_covariance(self, X, args) -> TensorVariable:
        """Prior covariance of f at the rows of X, white noise included."""
        K, prior = self.cross(X, X, args)
        return K - pt.diag(pt.diagonal(K)) + pt.diag(prior)

    def residual(self, X, Z, args) -> TensorVariable:
        """Covariance of f between the rows of Z and of X that u leaves."""
        return self.cross(X, Z, args)[0] - pt.dot(self.solve(Z, args).T, self.solve(X, args))

    def joint(self, X, args) -> Moments:
        """Mean and covariance of f at the rows of X."""
        A = self.solve(X, args)
        return Moments(self.anywhere(X, args).mu, self.prior_covariance(X, args) - pt.dot(A.T, A))

    def turns(self, args) -> list[TensorVariable] | None:
        """Matrices, whose Kronecker product takes u to variables that do not turn with theta.

        None where u itself does not. Sites with a root of all variables are of these.
        """
        return None

    def coordinates(self, args, mean, linear, root) -> TensorVariable:
        """Return what `coordinates.SparseTied` takes, where the prior of u has a pattern."""
        raise NotImplementedError

    def wrap(self, X, args) -> TensorVariable | None:
        """Correlation of the first row of X with the others that is an artifact of the kind."""
        return None


class Process(NamedTuple):
    """A conditional with the variables of a model: one process at a likelihood of it."""

    u: Variable
    conditional: Conditional
    args: list[Variable]

    @property
    def several(self) -> bool:
        """Whether a row of the data sees several functions, each a row of u."""
        return self.conditional.several(self.args)

    @property
    def points(self) -> TensorVariable:
        """Where the inducing variables are; no rows where they are not at points."""
        return self.conditional.points(self.args)

    @property
    def turns(self) -> list[TensorVariable] | None:
        """What takes u to variables that do not turn with theta, where u does."""
        return self.conditional.turns(self.args)

    def moments(self, X) -> Moments:
        """Moments of f at each row of X on its own."""
        return self.conditional.anywhere(X, self.args)

    def joint(self, X) -> Moments:
        """Mean and covariance of f at the rows of X."""
        return self.conditional.joint(X, self.args)

    def prior_mean(self, X) -> TensorVariable:
        """Prior mean of f at the rows of X."""
        return self.conditional.prior_mean(X, self.args)

    def cross(self, X, Z) -> tuple[TensorVariable, TensorVariable]:
        """Covariance of f between the rows of Z and of X, and its variance at X."""
        return self.conditional.cross(X, Z, self.args)

    def solve(self, X) -> TensorVariable:
        """Return A such that the covariance that u explains is ``A^T A``."""
        return self.conditional.solve(X, self.args)

    def residual(self, X, Z) -> TensorVariable:
        """Covariance of f between the rows of Z and of X that u leaves."""
        return self.conditional.residual(X, Z, self.args)


class ConditionalMoments(OpFromGraph):
    """Moments at each input on its own: ``[X, *args] -> [mu, gamma]``.

    An ordinary graph, inlined before compilation. It is a node of its own so that a log density
    can see what the moments are made of, and stream over the data instead of holding them.
    """

    def __init__(self, *args, conditional: Conditional, order=None, **kwargs):
        super().__init__(*args, inline=True, on_unused_input="ignore", **kwargs)
        self.conditional, self.order = conditional, order

    @classmethod
    def at(cls, conditional: Conditional, X, args, order=None) -> Moments:
        """Return the moments at the rows of X; see `repeats.ByValue` of their order."""
        x = pt.tensor(dtype="float64", shape=(None, X.type.shape[1]))
        inner = [a.type() for a in args]
        moments = conditional.anywhere(x, inner)
        op = cls([x, *inner], list(moments), conditional=conditional, order=order)
        return Moments(*op(X, *args, return_list=True))


class Covariance(NamedTuple):
    """A covariance, in place of its root: one product with the rows where a root takes two."""

    matrix: TensorVariable


def spread_of(A, root) -> TensorVariable:
    """Variance of ``A^T v`` where v has the covariance ``root root^T``, for each function."""
    if isinstance(root, Covariance):
        return pt.sum(A * pt.matmul(root.matrix, A), axis=-2).T
    return pt.sum(pt.matmul(root.mT, A) ** 2, axis=-2).T


def pull_spread(A, root, of_spread) -> tuple[TensorVariable, TensorVariable]:
    """Return the adjoint of A in `spread_of`, and twice that of the covariance."""
    w = 2.0 * of_spread.T  # of log densities, mostly negative
    gram = -weighted_gram(A, -w)
    each = w if w.type.ndim == 1 else w[:, None, :]
    if isinstance(root, Covariance):
        A_bar = pt.matmul(root.matrix, A) * each
    else:
        A_bar = pt.matmul(root, pt.matmul(root.mT, A) * each)
    return A_bar if A_bar.type.ndim == 2 else A_bar.sum(axis=0), gram


def surrogate_of(moments: Moments, adjoints) -> Any:
    """Return what has the gradient that these adjoints of the moments make."""
    return sum(pt.sum(disconnected_grad(g) * m) for g, m in zip(adjoints, moments, strict=True))


def gradients_of(surrogate, variables: dict[Any, Variable]) -> dict[Any, TensorVariable]:
    """Return the gradients in those of the variables that are real numbers."""
    real = {k: v for k, v in variables.items() if v.dtype.startswith("float")}
    found = grad(surrogate, list(real.values()), disconnected_inputs="ignore")
    return dict(zip(real, found, strict=True))
