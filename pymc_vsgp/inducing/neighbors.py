r"""Values of the function at many inputs, each given those of its nearest neighbors.

The prior of u is the Vecchia approximation: in the maximin order, each value depends on
those of the m nearest inputs before it alone,

.. math::

   u_i = m(z_i) + b_i^\top (u_{N(i)} - m(Z_{N(i)})) + \sqrt{d_i}\, v_i, \qquad
   b_i = K_{N(i)}^{-1} k_{N(i), i}, \quad d_i = k_{ii} - b_i^\top k_{N(i), i},

and f anywhere follows from the m nearest values, likewise. An evaluation costs
:math:`(N + M) m^3`, and no matrix has more than :math:`m^2` entries for each input.

References
----------
Katzfuss, M. and Guinness, J. (2021). A general framework for Vecchia approximations of Gaussian
processes. Statistical Science 36.
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import as_inputs, as_real, check_distinct, check_number, column_names
from pymc_vsgp.inducing.base import (
    Conditional,
    Contribution,
    InducingPrior,
    InducingVariables,
    gradients_of,
    keep,
    surrogate_of,
)
from pymc_vsgp.inducing.graphs import FLOOR, Kernel, Moments, as_ops, inline, without_reshapes
from pymc_vsgp.inducing.kernels import (
    check_distinct_places,
    codes_of,
    is_free_of_noise,
    is_stationary,
    parts_of,
)
from pymc_vsgp.inducing.spectrum import active_columns, distinct_columns
from pymc_vsgp.ops.distance import pass_gradients, warn_of_offset
from pymc_vsgp.ops.neighbors import (
    Nearest,
    apart,
    gather,
    in_units,
    maximin,
    predecessors,
    solve_each,
    sparse_solve,
)
from pymc_vsgp.ops.precision import incomplete_factor, precision_solve
from pymc_vsgp.ops.rows import by_rows

__all__ = ["NearestNeighbors"]

W, FACTOR, PLACES, SCALE, NEIGHBORS, ORDER, SHIFT, THETA = range(8)
"""Positions among the args; the last of them is where the parameters begin."""


ENOUGH, SMOOTH = {"Exponential": 15, "Matern12": 15, "Matern32": 20}, 30
"""Neighbors of each by default."""

KEPT = ("places", "neighbors", "order")


class NearestNeighbors(InducingVariables):
    r"""
    Values at many inputs, up to all of the data's, each given its nearest neighbors.

    For functions that are rough on the scale of the domain, where a few hundred inducing points or
    features leave much out: the Vecchia approximation, whose cost is linear in the number of
    inputs. Any kernel of ``pm.gp.cov`` and any mean.

    Parameters
    ----------
    Xu : array_like, DataFrame or DataArray, shape (M, D)
        Inducing inputs: the distinct inputs of the data, or as many as matter. They have to be
        distinct in the columns that the kernel uses. Names of columns are kept.
    m : int, optional
        Number of neighbors. Rough kernels need few, smooth ones more: by default 15 for
        ``Exponential`` and ``Matern12``, 20 for ``Matern32`` and 30 for others, and of the parts of
        a sum or product that of the roughest.
    scale : float or sequence of float, optional
        Units of the inputs in which neighbors are near: lengthscales, or guesses of them. By
        default the same for all inputs. Those that the kernel leaves out do not count.

    Examples
    --------
    .. code-block:: python

        gp = vsgp.VariationalSparse(cov_func=variance * pm.gp.cov.Matern32(1, ls=lengthscale))
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(np.unique(X, axis=0)))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=counts)
    """

    def __init__(self, Xu: Any, m: int | None = None, *, scale: Any = None):
        self.columns = column_names(Xu, "Xu", numbers=True)
        self.Xu = as_inputs(Xu, "Xu")
        check_distinct(self.Xu)
        if m is not None:
            check_number("m", m)
        self.m = m
        scale = as_real(1.0 if scale is None else scale, "scale", "Pass lengthscales.")
        if scale.shape not in ((), (self.n_columns,)) or not (
            np.isfinite(scale).all() and (scale > 0.0).all()
        ):
            raise ValueError(
                "scale has to be positive: one number, or one for each column of Xu. "
                "Pass lengthscales, or guesses of them."
            )
        self.scale = np.broadcast_to(scale, self.n_columns).copy()

    @property
    def n_columns(self) -> int:
        """Number of inputs of the function."""
        return self.Xu.shape[1]

    @property
    def n_inducing(self) -> int:
        """Number of inducing inputs."""
        return len(self.Xu)

    def number(self, cov_func) -> int:
        """Return the number of neighbors under a kernel."""
        return min(int(self.m or enough_neighbors(cov_func)), self.n_inducing)

    @property
    def example(self) -> np.ndarray:
        """All inducing inputs."""
        return self.Xu

    def of_kernel(self, cov_func):
        """Return the same; raise where neighbors would be copies of one place."""
        n = self.n_columns
        active = [d for d in distinct_columns(cov_func, n) if d < n]
        check_distinct_places(self.Xu, active, self.columns)
        return self

    def under(self, name, cov_func, mean_at, jitter):
        """Return the values `name` of a process with this kernel and mean."""
        if not is_stationary(cov_func):  # else neighbors are taken from where the row is
            own = np.isin(np.arange(self.n_columns), active_columns(cov_func, self.n_columns))
            warn_of_offset(self.Xu * own)
        return NeighborsPrior(self, name, cov_func, mean_at, jitter)


def enough_neighbors(cov_func) -> int:
    """Return how many neighbors a kernel needs; see `benchmarks/neighbors_divergence.py`."""
    return min(ENOUGH.get(type(part).__name__, SMOOTH) for part in parts_of(cov_func))


class Local(NamedTuple):
    """A kernel and a mean at a few inputs, as Ops."""

    within: Kernel
    """Covariance of the rows of a matrix, white noise included."""
    across: Kernel
    """Covariance of the rows of two."""
    single: Kernel
    """Variance and mean at the rows of one."""
    values: Kernel
    """Covariance of values at the rows of a matrix: of the process that this may be a part of."""
    centered: bool
    """Whether places are taken from the nearest neighbor: distances lose no digits then, as they do
    in a long series, whose places are large and whose neighbors are near."""

    @classmethod
    def of(
        cls, cov_func, mean_at, n_columns: int, of_values: Any = None
    ) -> "tuple[Local, list[Variable]]":
        """Return the Ops, and what they depend on beside their inputs.

        The values have the kernel `of_values`, by default the same.
        """
        z, x = (pt.tensor(dtype="float64", shape=(None, n_columns)) for _ in range(2))
        graphs = [cov_func(z), cov_func(z, x), cov_func(x, diag=True).astype("float64"), mean_at(x)]
        graphs += [] if of_values is None else [of_values(z)]
        centered = is_stationary(cov_func) and (of_values is None or is_stationary(of_values))
        graphs = pass_gradients(graphs, [z, x], near_zero=centered)
        within, across, *rest = without_reshapes(graphs, [z, x])
        given = [([z], [within]), ([z, x], [across]), ([x], rest[:2]), ([z], rest[2:])]
        ops, theta = as_ops(*given[: 3 + len(rest[2:])])
        within, across, single, *values = ops
        return cls(within, across, single, values[0] if values else within, centered), theta

    def regression(self, near, x, shift, theta, missing=None):
        """Return the weights of values at `near`, n x m x D, in regressions of f at x.

        With them come the covariances that they were found from, and the variance at x. Neighbors
        that are `missing` have the weight zero.
        """
        m = near.type.shape[1]
        near, x = self.seen_from(near, x)
        K, eye = self.covariances(near, x, theta), np.eye(m)
        C, c = K[:, :m, :m], K[:, :m, m]
        if self.values is not self.within:
            C = _of_each(self.values, near, theta)
        C = C + shift * eye
        if missing is not None:
            c = pt.switch(missing, np.float64(0.0), c)
            C = pt.switch(missing[:, :, None] | missing[:, None, :], eye, C)
        return solve_each(C, c), c, K[:, m, m]

    def seen_from(self, near, x):
        """Return places near each row of x and the row itself, from where the first of them is.

        From a row that is far away their own distances would be lost.
        """
        return (near - near[:, :1], x - near[:, 0]) if self.centered else (near, x)

    def covariances(self, near, x, theta):
        """Return the covariances of what is `near` to each row of x, and last of that row."""
        return _of_each(self.within, pt.concatenate([near, x[:, None, :]], axis=1), theta)


def _of_each(kernel, places, theta):
    """Return the covariances of the rows of many matrices."""
    one = pt.tensor(dtype="float64", shape=places.type.shape[1:])
    return vectorize_graph(inline(kernel, one, *theta)[0], {one: places})


class NeighborsPrior(InducingPrior):
    """Values that depend on their neighbors, under a kernel and a mean."""

    def __init__(self, kind: NearestNeighbors, name: str, cov_func, mean_at, jitter):
        self.kind, self.m, self.cov_func = kind, kind.number(cov_func), cov_func
        # Covariates that only the mean uses have no distance.
        active = active_columns(cov_func, kind.n_columns)
        scale = np.full(kind.n_columns, np.inf)
        scale[active] = kind.scale[active]
        places = in_units(kind.Xu, scale)
        order = maximin(places)
        neighbors = predecessors(places, order, self.m)
        values = [kind.Xu, neighbors, order]
        self.Xu, self.neighbors, self.order = keep(name, dict(zip(KEPT, values, strict=True)))
        self.scale = pt.constant(scale)
        local, theta = Local.of(cov_func, mean_at, kind.n_columns)
        prior, mean = inline(local.single, self.Xu, *theta)
        self.shift = np.float64(jitter) * pt.mean(prior)

        def given_neighbors(near, x, Z, shift, *theta):
            missing = pt.lt(near, 0)
            b, c, variance = local.regression(rows_at(Z, near), x, shift, theta, missing)
            sd = root_of(variance + shift - pt.sum(b * c, axis=1), variance)
            return pt.concatenate([b, sd[:, None]], axis=1)

        shared, width = [self.Xu, self.shift, *theta], (neighbors.shape[1] + 1) ** 2
        factor = by_rows(given_neighbors, [self.neighbors, self.Xu], shared, width)
        super().__init__(mean, factor)

    @property
    def pattern(self):
        """Neighbors, and an order of the rows in which each comes after its own."""
        return self.neighbors, self.order

    def linear(self, u):
        """Return ``u - mean``, with a column for each function."""
        return (u - self.mean).T

    def given(self, u, cov_func, mean_at, X, layout=None):
        """Return p(f | u) of the process with this kernel and mean, and its args."""
        n_columns, whole = self.kind.n_columns, cov_func is self.cov_func
        local, theta = Local.of(cov_func, mean_at, n_columns, None if whole else self.cov_func)
        active = active_columns(self.cov_func, n_columns)
        looks_up = whole and is_free_of_noise(cov_func)
        conditional = GivenNeighbors(u.name, n_columns, active, self.m, local, looks_up)
        conditional.codes = codes_of(cov_func)
        args = [self.linear(u), self.factor, self.Xu, self.scale, *self.pattern, self.shift]
        args += theta
        return conditional, args


def rows_at(Z, neighbors) -> TensorVariable:
    """Return the rows of Z at the neighbors, n x m x D; any of them where there is none."""
    rows = Z[pt.maximum(neighbors, 0).ravel()]
    return rows.reshape((neighbors.shape[0], neighbors.type.shape[1], Z.type.shape[1]))


def root_of(left, variance) -> TensorVariable:
    """Return the deviation of what is left of a variance, which may round to nothing."""
    return pt.sqrt(pt.maximum(left, FLOOR * variance))


class Pieces(NamedTuple):
    """What the moments of a block are computed from."""

    weights: TensorVariable
    neighbors: TensorVariable
    share: TensorVariable
    """What the values explain, over what they would if they were independent a priori."""


class Posterior(NamedTuple):
    """The values under their prior and sites."""

    weights: TensorVariable
    sd: TensorVariable
    """Those of neighbors before each, and what they leave: from an incomplete factor."""
    mean: TensorVariable
    """Exact, less that of the prior."""
    evidence: TensorVariable
    """Logarithm of the integral of the sites under the prior."""


class GivenNeighbors(Conditional):
    """p(f | u) from the m nearest values: PyTensor's gradients of a small regression for each row.

    The args are the values less their means, the factor of their prior, where they are, the units
    of distances, the neighbors of each and an order of them, what is added to variances, and the
    parameters of kernel and mean. In the loop over the data come, behind them, the neighbors of
    each row. Rows at an input of the values look these up, where that `looks_up` f.
    """

    noun = "nearest-neighbor inputs"
    follows_X = False
    kept = KEPT

    def __init__(self, process, n_columns, active, m: int, local: Local, looks_up: bool):
        super().__init__(process, n_columns, active)
        self.m, self.local, self.looks_up = m, local, looks_up

    @property
    def width(self):
        """Entries of what a row takes: a matrix, unless it looks values up."""
        return self.m if self.looks_up else self.m**2

    def row_args(self, X, args):
        """Return the neighbors of each row."""
        return [Nearest(self.m, around=True)(X, args[PLACES], args[SCALE])]

    def user_args(self, args):
        """Drop the neighbors."""
        return args[: self._end]

    @property
    def _end(self):
        return THETA + len(self.local.within.inner_inputs) - 1

    def moments(self, X, args):
        """Build the moments in a block, and the weights."""
        w, neighbors, theta = args[W], args[self._end], args[THETA : self._end]
        b, left = self._regressed(X, neighbors, args)
        prior, mean = inline(self.local.single, X, *theta)
        near = inline(self.local.single, args[PLACES][neighbors.ravel()], *theta)[0]
        alone = pt.sum(b**2 * near.reshape(b.shape), axis=1)
        share = (prior - left) / pt.maximum(alone, FLOOR * prior)
        gamma = pt.maximum(left, FLOOR * prior)
        values = w[neighbors.ravel()].reshape((-1, self.m, *w.shape[1:]))
        if w.type.ndim == 2:
            mean, weights = mean[:, None], b[:, :, None]
        else:
            weights = b
        mu = mean + pt.sum(weights * values, axis=1)
        return Pieces(b, neighbors, share), Moments(mu, gamma)

    def _regressed(self, X, neighbors, args):
        """Return the weights of neighbors at the rows of X, and the variance that they leave."""
        Z, theta = args[PLACES], args[THETA : self._end]
        prior = inline(self.local.single, X, *theta)[0]
        rows, near, x = prior, neighbors, X
        if self.looks_up:
            here = pt.all(pt.eq(self.own(Z[neighbors[:, 0]]), self.own(X)), axis=1)
            others, at = apart(here)
            rows, near, x = prior[others], neighbors[others], X[others]
        b, c, _ = self.local.regression(rows_at(Z, near), x, args[SHIFT], theta)
        left = rows - pt.sum(b * c, axis=1)
        if self.looks_up:
            b = pt.switch(here[:, None], np.eye(1, self.m), b[at])
            left = pt.switch(here, np.float64(0.0), left[at])
        return b, left

    def spread(self, X, args, pieces, root):
        """Variance of the mean of f where the values have these deviations.

        Near one another they correlate, and weights of them may be large and of both signs. What
        they explain of f falls by as much as their variances do, on average; that is exact at an
        input of a value.
        """
        return self._spread(pieces, root**2)

    def _spread(self, pieces, squares):
        b, neighbors, share = pieces
        if squares.type.ndim == 1:
            each = b**2 * squares[neighbors.ravel()].reshape(b.shape)
            return share * pt.sum(each, axis=1)
        each = [self._spread(pieces, squares[k]) for k in range(squares.type.shape[0])]
        return pt.stack(each, axis=1)

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient."""
        surrogate = surrogate_of(moments, adjoints)
        gram = None
        if root is not None:
            squares = disconnected_grad(root) ** 2
            terms = pt.sum(disconnected_grad(of_spread) * self._spread(pieces, squares))
            surrogate = surrogate + pt.sum(
                disconnected_grad(of_spread) * self._spread(pieces, disconnected_grad(root**2))
            )
            gram = 2.0 * pytensor.grad(terms, squares)
        at = (W, SHIFT, *range(THETA, self._end))
        return Contribution(gradients_of(surrogate, {i: args[i] for i in at}), gram=gram)

    def anywhere(self, X, args):
        """Moments at each row of any X on its own."""
        args = self.user_args(args)
        return self.moments(X, [*args, *self.row_args(X, args)])[1]

    def points(self, args):
        """Where the values are."""
        return args[PLACES]

    def prior_mean(self, X, args):
        """Prior mean of f at the rows of X."""
        mean = inline(self.local.single, X, *args[THETA : self._end])[1]
        several = args[W].type.ndim == 2
        return mean[:, None] + pt.zeros((1, args[W].shape[1])) if several else mean

    def cross(self, X, Z, args):
        """Covariance of f between the rows of Z and of X, and its variance at X."""
        theta = args[THETA : self._end]
        (K,) = inline(self.local.across, Z, X, *theta)
        return K, inline(self.local.single, X, *theta)[0]

    def residual(self, X, Z, args):
        """Covariance of what the regressions on u leave of f, between the rows of Z and of X.

        It is that under the exact process. So joint draws are of a covariance matrix, whose
        diagonal is the variance of f at each row. Of rows that look values up nothing is left.
        """
        sides = [self._weights(Z, args)] + ([] if X is Z else [self._weights(X, args)])
        flat = pt.concatenate([neighbors.ravel() for *_, neighbors in sides])
        used, where = pt.unique(flat, return_inverse=True)
        places, theta = args[PLACES][used], args[THETA : self._end]
        if self.local.centered:  # see `Local`
            X, Z, places = (x - X[0] for x in (X, Z, places))
        K = inline(self.local.values, places, *theta)[0]
        K = K + args[SHIFT] * pt.eye(used.shape[0], dtype="float64")
        rows, start = [], 0
        for b, _, neighbors in sides:
            stop = start + neighbors.size
            at = where[start:stop].reshape(neighbors.shape)
            zero = pt.zeros((b.shape[0], used.shape[0]), dtype="float64")
            rows.append(pt.set_subtensor(zero[pt.arange(b.shape[0])[:, None], at], b))
            start = stop
        B, A = rows[0], rows[-1]
        of_X, of_Z = (inline(self.local.across, places, a, *theta)[0] for a in (X, Z))
        explained = pt.dot(B, of_X) + pt.dot(A, of_Z).T - pt.dot(pt.dot(B, K), A.T)
        left = self.cross(X, Z, args)[0] - explained
        # The kernel where a row looks a value up lacks what is added to the variance of that.
        some = [pt.gt(of_row, np.float64(0.0)) for _, of_row, _ in sides]
        return pt.switch(some[0][:, None] & some[-1][None, :], left, np.float64(0.0))

    def solve(self, X, args):
        """Return A such that the covariance that u explains is ``A^T A``: dense, M x N."""
        b, _, neighbors = self._weights(X, args)
        rows = pt.arange(X.shape[0])[:, None]
        weights = pt.set_subtensor(pt.zeros((X.shape[0], args[W].shape[0]))[rows, neighbors], b)
        factor, pattern = args[FACTOR], (args[NEIGHBORS], args[ORDER])
        back = sparse_solve(weights.astype("float64"), factor[:, :-1], *pattern, transposed=True)
        return (back * factor[:, -1]).T

    def joint(self, X, args):
        """Mean and covariance of f at the rows of X."""
        mu, gamma = self.anywhere(X, args)
        K = self.residual(X, X, args)
        return Moments(mu, K + pt.diag(gamma - pt.diagonal(K)))

    def _weights(self, X, args):
        (neighbors,) = self.row_args(X, args)
        return (*self._regressed(X, neighbors, args), neighbors)

    def regressions(self, args, seen, neighbors, y, noise):
        """Return the log densities of observations of values, each given those of `neighbors`.

        There is one for each value that is `seen`; y and the variance of its noise are of all.
        """

        def terms(i, near, places, shift, y, noise, *theta):
            ids = pt.concatenate([pt.maximum(near, 0), i[:, None]], axis=1)
            flat, m = ids.ravel(), near.type.shape[1]
            mean = inline(self.local.single, places[flat], *theta)[1]
            away, extra = ((x.reshape((-1, m + 1))) for x in (y[flat] - mean, noise[flat] + shift))
            around, here = self.local.seen_from(rows_at(places, near), places[i])
            K = self.local.covariances(around, here, theta)
            missing, eye = pt.lt(near, 0), np.eye(m)
            c = pt.switch(missing, np.float64(0.0), K[:, :m, m])
            C = K[:, :m, :m] + extra[:, :m, None] * eye
            b = solve_each(pt.switch(missing[:, :, None] | missing[:, None, :], eye, C), c)
            left = K[:, m, m] + extra[:, m] - pt.sum(b * c, axis=1)
            rest = away[:, m] - pt.sum(b * away[:, :m], axis=1)
            return -(rest**2 / left + pt.log(2.0 * np.pi * left)) / 2.0

        shared = [args[PLACES], args[SHIFT], y, noise, *args[THETA : self._end]]
        return by_rows(terms, [seen, neighbors], shared, (self.m + 1) ** 2)

    def posterior(self, args, mean, linear, root) -> "Posterior":
        """Return what sites of each value make of the prior."""
        factor, pattern = args[FACTOR], (args[NEIGHBORS], args[ORDER])
        weights, sd, precision = factor[:, :-1], factor[:, -1], root**2
        C, t = incomplete_factor(weights, sd, precision, *pattern)
        right = linear - precision * mean
        w = precision_solve(right, weights, sd, precision, C, t, *pattern)
        # Largest at the solution w: it is never more than the evidence, and its gradient needs no
        # other solution.
        v = disconnected_grad(w)
        left = (v - pt.sum(weights * gather(v, args[NEIGHBORS]), axis=1)) / sd
        squares = pt.sum(left**2) + pt.sum(precision * v**2)
        evidence = pt.sum(mean * (linear + right)) / 2.0 + pt.sum(v * right) - squares / 2.0
        return Posterior(C, t, w, evidence + pt.log(t / sd).sum())

    def coordinates(self, args, mean, linear, root):
        """Return what `coordinates.SparseTied` takes, for sites of each value."""
        C, t, w, _ = self.posterior(args, mean, linear, root)
        center = w - pt.sum(C * gather(w, args[NEIGHBORS]), axis=1)
        return pt.concatenate([C, center[:, None], t[:, None]], axis=1)
