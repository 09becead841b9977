"""One function for each group: independent, with one kernel, one mean and one set of points.

The last input of the data is the number of the group. The matrices of points and data are those of
a single function, with one factor for all, and each row looks up the values of its own group.
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc_vsgp.inducing.base import Conditional, Contribution, InducingPrior, InducingVariables
from pymc_vsgp.inducing.graphs import Moments
from pymc_vsgp.inducing.points import GivenDense, Points
from pymc_vsgp.ops.linalg import weighted_gram
from pymc_vsgp.ops.runs import runs


class ByGroup(InducingVariables):
    """Values at points of a function for each group.

    Parameters
    ----------
    points : Points
        Those of each of the functions.
    by : str
        Dimension of the groups.
    n_groups : int
        Their number.
    """

    def __init__(self, points: Points, by: str, n_groups: int):
        self.base, self.by, self.n_groups = points, by, n_groups

    @property
    def n_inducing(self):
        return self.base.n_inducing

    @property
    def n_columns(self):
        """Number of inputs, the group among them."""
        return self.base.n_columns + 1

    def under(self, name, cov_func, mean_at, jitter):
        return ByGroupPrior(self, self.base.under(name, cov_func, mean_at, jitter))


class ByGroupPrior(InducingPrior):
    """The same values for each of the groups, under a kernel and a mean."""

    def __init__(self, kind: ByGroup, base: InducingPrior):
        super().__init__(base.mean, base.factor)
        self.kind, self.base, self.by = kind, base, kind.by

    @property
    def inputs(self):
        return self.base.inputs

    def given(self, u, cov_func, mean_at, X, layout=None):
        base, args = self.base.given(u, cov_func, mean_at, X[:, :-1])
        assert isinstance(base, GivenDense)
        return GivenByGroup(base, self.kind.by, self.kind.n_groups), args

    def cover(self, X, what="X"):
        """Raise where rows have no such group."""
        if X is not None and (wrong := wrong_groups(X, self.kind.by, self.kind.n_groups)):
            raise ValueError(f"{what} {wrong}")


def wrong_groups(X: np.ndarray, by: str, n_groups: int) -> str | None:
    """Say which of the rows has no group, if one has none."""
    g = X[:, -1]
    bad = np.flatnonzero(~((g >= 0) & (g < n_groups) & (g == np.floor(g))))
    if not bad.size:
        return None
    return (
        f"has {g[bad[0]]:g} in row {bad[0]} of its last column, which is the number of the "
        f"{by!r}: 0 to {n_groups - 1}. Pass one of these, or a DataFrame with labels in the "
        f"column {by!r}."
    )


class Pieces(NamedTuple):
    """What the moments of a block are computed from."""

    X: Any
    base: Any
    """At the distinct inputs."""
    rank: Any
    """Which of these a row has."""
    group: Any
    A: Any
    """``R^-1 Kuf`` of each row, in rows."""


class GivenByGroup(Conditional):
    """p(f | u) where each row sees the function of its group, with the args of `GivenDense`.

    The first of them, v, has a column for each group.
    """

    noun = "points"
    follows_X = False
    by: str

    def __init__(self, base: GivenDense, by: str, n_groups: int):
        super().__init__(base.process, base.n_columns + 1)
        self.base, self.by, self.n_groups = base, by, n_groups
        self.distinct = base.distinct

    def several(self, args):
        """Whether a row sees more than one function."""
        return False

    def complaint(self, X, args):
        return wrong_groups(X, self.by, self.n_groups)

    def _alone(self, args):
        """Return the args of the function of the first group."""
        return [args[0][:, 0], *args[1:]]

    def moments(self, X, args):
        """Look up the moments, with the values of each row's group."""
        starts, rank = runs(X[:, :-1])
        known = pt.clip(X[:, -1], np.float64(0.0), np.float64(self.n_groups - 1))
        group = known.astype("int64")
        x = X[:, :-1][starts]
        of, (_, gamma) = self.base.moments(x, self._alone(args))
        A = of.A.T[rank]
        mu = of.mean[rank] + pt.sum(A * args[0].T[group], axis=1)
        # Numbers of no group would read what is not there.
        mu = pt.switch(pt.eq(X[:, -1], group), mu, np.float64(np.nan))
        return Pieces(x, of, rank, group, A), Moments(mu, gamma[rank])

    def loadings(self, pieces):
        """Return A with the values of all groups, as `solve` does."""
        return self._of_groups(pieces.A.T, pieces.group)

    def _of_groups(self, A, group):
        own = pt.eq(pt.arange(self.n_groups)[:, None], group[None, :])
        return (own[:, None, :] * A[None, :, :]).reshape((-1, A.shape[1]))

    def spread(self, X, args, pieces, root):
        """Variance of the mean of f where the v of each group has its covariance."""
        return pt.sum(_times(pieces.A, root.mT[pieces.group]) ** 2, axis=1)

    def wrt(self, pieces, moments):
        return [moments.mu, pieces.base.explained, pieces.base.prior]

    def pull(self, X, args, pieces, moments, adjoints, root, of_spread):
        """Return what the block adds to the gradient, but that in X."""
        (g_mu, g_explained, g_prior), (v, _, *_) = adjoints, args
        x, of, rank, group, A = pieces
        weighted = A * g_mu[:, None]
        of_v = pt.inc_subtensor(pt.zeros_like(v.T)[group], weighted).T
        of_rows = v.T[group] * g_mu[:, None]
        gram = None
        if root is not None:
            w = 2.0 * of_spread
            of_group = root[group]
            back = _times(_times(A, of_group.mT), of_group)
            of_rows += back * w[:, None]
            outer = (A * w[:, None])[:, :, None] * A[:, None, :]
            # A root may have fewer columns than rows, and the matrix it is multiplied with not.
            zero = pt.zeros((root.shape[0], root.shape[1], root.shape[1]), dtype="float64")
            gram = pt.inc_subtensor(zero[group], outer)
        A_bar = of.A * (2.0 * g_explained)
        A_bar += pt.inc_subtensor(pt.zeros_like(of.A.T)[rank], of_rows).T
        g_mean = pt.inc_subtensor(pt.zeros_like(of.mean)[rank], g_mu)
        found, _ = self.base.through_kernel(x, args, of, A_bar, g_prior, g_mean)
        outer = weighted_gram(of.A, 2.0 * g_explained)
        return Contribution({0: of_v} | found, outer=outer, gram=gram)

    def points(self, args):
        return self.base.points(args)

    def prior_mean(self, X, args):
        return self.base.prior_mean(X[:, :-1], self._alone(args))

    def cross(self, X, Z, args):
        K, prior = self.base.cross(X[:, :-1], Z[:, :-1], args)
        return K * _same(Z, X), prior

    def solve(self, X, args):
        """Return A with the values of all groups, one after the other: zero but for the row's."""
        return self._of_groups(self.base.solve(X[:, :-1], args), X[:, -1])

    def residual(self, X, Z, args):
        return self.base.residual(X[:, :-1], Z[:, :-1], args) * _same(Z, X)

    def joint(self, X, args):
        A = self.base.solve(X[:, :-1], args)
        explained = pt.dot(A.T, A) * _same(X, X)
        return Moments(self.anywhere(X, args).mu, self.prior_covariance(X, args) - explained)


def _same(Z, X):
    """Whether rows are of the same group."""
    return pt.eq(Z[:, -1][:, None], X[:, -1][None, :])


def _times(a, B):
    """Return the product of each row of a matrix with a matrix of its own, ``B a``."""
    return pt.matmul(B, a[:, :, None])[:, :, 0]
