"""Where to put the inducing points.

Each function takes the data inputs and returns ``Xu``, an (M, D) float64 array with exactly M
distinct rows. Two inducing points in one place make the kernel matrix singular, so a request that
the data cannot meet is an error and never a shorter answer. The names of columns are kept: a
DataFrame or a labeled DataArray in, the same out.
"""

import functools
import math

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pytensor.graph.basic import Variable
from scipy.cluster.vq import vq
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from pymc_vsgp.checks import as_inputs, as_real, check_number, check_real, generator_of
from pymc_vsgp.inducing.kernel_values import compile_kernel

# Lloyd's rounds cost rows x M: beyond this many rows the centers hardly move any more.
_KMEANS_ROWS = 20_000
_KMEANS_ROUNDS = 100
_GRID_POINTS = 10_000

RandomSeed = int | np.random.Generator | None


def _labeled(place: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of inputs keep the names of their columns."""

    @functools.wraps(place)
    def with_names(X: Any, *args: Any, **kwargs: Any) -> Any:
        Xu = place(X, *args, **kwargs)
        if isinstance(X, xr.DataArray):
            return xr.DataArray(Xu, dims=("inducing", X.dims[1]), coords=X[X.dims[1]].coords)
        columns = getattr(X, "columns", None)
        return Xu if columns is None else pd.DataFrame(Xu, columns=list(columns))

    return with_names


def _check_distinct(n_distinct: int, M: int, rows: str = "distinct rows") -> None:
    if n_distinct < M:
        raise ValueError(
            f"X has {n_distinct} {rows}, {M} inducing points were asked for. "
            f"Ask for at most {n_distinct}, or place points beside the data with `grid`."
        )


def _first_occurrences(X: np.ndarray) -> np.ndarray:
    """Return where the distinct rows of X first appear, in order."""
    return np.sort(np.unique(X, axis=0, return_index=True)[1])


@_labeled
def subset(X: Any, M: int, *, random_seed: RandomSeed = None) -> np.ndarray:
    """Choose M distinct inputs at random.

    Parameters
    ----------
    X : array_like, DataFrame, DataArray or pm.Data
        Inputs of the observations.
    M : int
        The number of inducing points.
    random_seed : int or numpy.random.Generator, optional
        Seed of the choice.

    Returns
    -------
    ndarray, DataFrame or DataArray
        M distinct inputs. One that is often repeated is more likely to be among them.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_vsgp.inducing.placement import subset
    >>> X = np.linspace(0.0, 1.0, 50)[:, None]
    >>> subset(X, 5, random_seed=1).shape
    (5, 1)
    """
    X, M = as_inputs(X), check_number("M", M)
    order = generator_of(random_seed).permutation(len(X))
    # Take the first M distinct rows of the shuffled data. Sorting all rows to find the repeats is
    # slow for millions of them, and a short prefix is nearly always enough.
    size = min(2 * M, len(X))
    while True:
        prefix = X[order[:size]]
        chosen = _first_occurrences(prefix)
        if len(chosen) >= M:
            return prefix[chosen[:M]]
        if size == len(X):
            _check_distinct(len(chosen), M)
        size = min(4 * size, len(X))


@_labeled
def grid(X: Any, n: int | Sequence[int], *, margin: float = 0.0) -> np.ndarray:
    """Lay a regular grid over the range of X.

    Parameters
    ----------
    X : array_like, DataFrame, DataArray or pm.Data
        Inputs of the observations.
    n : int or sequence of int
        Points along each column. A single number is used for every column, so D columns give
        ``n**D`` points.
    margin : float
        How far the grid goes beyond the data on either side, as a fraction of their range.

    Returns
    -------
    ndarray, DataFrame or DataArray
        The points, the last column running fastest. A column with one point has it in the middle.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_vsgp.inducing.placement import grid
    >>> X = np.array([[0.0, 0.0], [1.0, 4.0]])
    >>> grid(X, [2, 3])
    array([[0., 0.],
           [0., 2.],
           [0., 4.],
           [1., 0.],
           [1., 2.],
           [1., 4.]])
    """
    X = as_inputs(X)
    columns = X.shape[1]
    given: list[Any] = list(n) if isinstance(n, Sequence | np.ndarray) else [n] * columns
    if len(given) != columns:
        raise ValueError(
            f"n has {len(given)} entries, X has {columns} columns. Pass one number for each "
            "column, or a single one for all."
        )
    counts = [check_number("n", count) for count in given]
    check_real("margin", margin)
    total = math.prod(counts)  # exact: 50 points along each of 20 columns overflow a float
    if columns > 3 and total > _GRID_POINTS:
        raise ValueError(
            f"A grid of {' x '.join(map(str, counts))} has {total} points, more than "
            f"{_GRID_POINTS}. Use `kmeans` or `greedy_variance` with more than three columns."
        )
    low, high = X.min(axis=0), X.max(axis=0)
    axes = []
    for column, count in enumerate(counts):
        lo, hi = low[column], high[column]
        if count == 1:
            axes.append(np.array([lo + 0.5 * (hi - lo)]))
            continue
        beyond = margin * (hi - lo)
        axis = np.linspace(lo - beyond, hi + beyond, count)
        if not (np.diff(axis) > 0).all():
            raise ValueError(
                f"Column {column} of X runs from {lo:g} to {hi:g}, where {count} distinct points "
                "do not fit. Pass n as a sequence with 1 for that column."
            )
        axes.append(axis)
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, columns)


@_labeled
def kmeans(
    X: Any, M: int, *, random_seed: RandomSeed = None, weights: Any | None = None
) -> np.ndarray:
    """Place M inducing points at the centers of M clusters of X.

    Columns are divided by their standard deviation first, so units do not matter. Centers are
    seeded by k-means++ and moved by Lloyd's rounds. A cluster that runs empty starts again at the
    point farthest from its center, so M centers come back.

    Parameters
    ----------
    X : array_like, DataFrame, DataArray or pm.Data
        Inputs of the observations. Of more than 20000 observations (or 20 for each inducing
        point, if that is more) a random choice of that many is used.
    M : int
        The number of inducing points.
    random_seed : int or numpy.random.Generator, optional
        Seed of the choice of inputs and of the first centers.
    weights : array_like, optional
        How much each input counts, for example the number of events in a bin. Inputs with weight
        zero are left out.

    Returns
    -------
    ndarray, DataFrame or DataArray
        The centers, in the units of X.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_vsgp.inducing.placement import kmeans
    >>> X = np.array([0.0, 0.1, 5.0, 5.1, 5.2])[:, None]
    >>> np.sort(kmeans(X, 2, random_seed=1), axis=0).round(2)
    array([[0.05],
           [5.1 ]])
    """
    X, M = as_inputs(X), check_number("M", M)
    rng = generator_of(random_seed)
    rows, weight = _weighted_rows(X, weights)
    limit = max(_KMEANS_ROWS, 20 * M)
    available = len(X) if rows is None else len(rows)
    points = None
    if available > limit:
        drawn = np.sort(rng.choice(available, size=limit, replace=False, shuffle=False))
        drawn = drawn if rows is None else rows[drawn]
        points, mass = _merge(X[drawn], weight[drawn])
    if points is None or len(points) < M:
        # Also where a random choice held too many repeats: only all rows tell what is there.
        every = slice(None) if rows is None else rows
        points, mass = _merge(X[every], weight[every])
    positive = "distinct rows" if rows is None else "distinct rows with a positive weight"
    _check_distinct(len(points), M, positive)
    if len(points) == M:
        return points
    center = points.mean(axis=0)
    spread = points.std(axis=0)
    # A constant column has a spread of rounding error at most, and says nothing of distance.
    constant = points.min(axis=0) == points.max(axis=0)
    scaled = (points - center) / np.where(constant | (spread == 0), 1.0, spread)
    labels = _lloyd(scaled, mass, M, rng)
    # Averaging in the units of X keeps a constant column constant to the last bit or two.
    centers = _cluster_means(points - center, mass, labels, M) + center
    centers[:, constant] = points[0, constant]
    return _separate(centers, points)


def _weighted_rows(X: np.ndarray, weights: Any | None) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the rows that count, None for all of them, and the weight of every row of X."""
    if weights is None:
        return None, np.ones(len(X))
    weight = as_real(weights, "weights", "Pass one for each row of X.")
    if weight.shape != (len(X),):
        raise ValueError(
            f"weights has shape {weight.shape}, X has {len(X)} rows. Pass one weight for each row."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        wrong = weight[~np.isfinite(weight) | (weight < 0)][0]
        raise ValueError(f"weights holds {wrong}. Pass finite weights of at least 0.")
    return np.flatnonzero(weight), weight


def _merge(X: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of X, in a fixed order, each with its total weight."""
    points, inverse = np.unique(X, axis=0, return_inverse=True)
    return points, np.bincount(inverse.ravel(), weights=weight, minlength=len(points))


def _cluster_means(points: np.ndarray, mass: np.ndarray, labels: np.ndarray, M: int) -> np.ndarray:
    total = np.bincount(labels, weights=mass, minlength=M)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=M))
    shape = (M, len(points))
    sums = csr_array((mass[order], order, np.concatenate([[0], ends])), shape) @ points
    return sums / total[:, None]


def _seed_centers(
    points: np.ndarray, mass: np.ndarray, M: int, rng: np.random.Generator
) -> np.ndarray:
    """k-means++: each new center is drawn in proportion to the squared distance to the others."""
    chosen = np.empty(M, dtype=int)
    nearest = np.full(len(points), np.inf)
    chance = mass.copy()
    for m in range(M):
        chance[chosen[:m]] = 0.0
        cumulative = np.cumsum(chance)
        if cumulative[-1] > 0:
            pick = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
            # The draw can land on the total itself, one past the last row with a chance.
            chosen[m] = min(pick, np.flatnonzero(chance)[-1])
        else:
            # What is left lies within rounding of the centers: any unused row will do.
            chosen[m] = np.setdiff1d(np.arange(len(points)), chosen[:m])[0]
        new = cdist(points, points[chosen[m], None], "sqeuclidean")[:, 0]
        np.minimum(nearest, new, out=nearest)
        np.multiply(mass, nearest, out=chance)
    return points[chosen]


def _fill_empty(labels: np.ndarray, distance: np.ndarray, M: int) -> None:
    """Give each empty cluster, in place, the point farthest from its center."""
    size = np.bincount(labels, minlength=M)
    for cluster in np.flatnonzero(size == 0):
        # There are more points than clusters, so some cluster always has one to give.
        donor = np.where(size[labels] > 1, distance, -1.0).argmax()
        size[labels[donor]] -= 1
        labels[donor] = cluster
        size[cluster] = 1
        distance[donor] = 0.0


def _lloyd(points: np.ndarray, mass: np.ndarray, M: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cluster of each point; every one of the M clusters has at least one."""
    centers = _seed_centers(points, mass, M, rng)
    labels = np.full(len(points), -1)
    for _ in range(_KMEANS_ROUNDS):
        previous, (labels, distance) = labels, vq(points, centers)
        _fill_empty(labels, distance, M)
        # The last changes are a few points on the border of two clusters.
        if np.count_nonzero(labels != previous) <= 1e-3 * len(points):
            break
        centers = _cluster_means(points, mass, labels, M)
    return labels


def _separate(centers: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Replace centers that rounding made equal by rows of the data, the farthest first."""
    distinct = centers[_first_occurrences(centers)]
    missing = len(centers) - len(distinct)
    if not missing:
        return centers
    order = np.argsort(-vq(points, distinct)[1], kind="stable")
    taken = set(map(tuple, distinct))
    spare = [row for row in order if tuple(points[row]) not in taken]
    return np.vstack([distinct, points[spare[:missing]]])


@_labeled
def greedy_variance(
    X: Any,
    M: int,
    cov_func: Callable[..., Variable],
    *,
    point: Mapping[str, Any] | None = None,
    threshold: float = 1e-10,
    random_seed: RandomSeed = None,
) -> np.ndarray:
    """Choose M inputs of the data, each where the function is least known given those before.

    This is the pivoted Cholesky factorization of the kernel matrix, stopped after M steps [1]_. It
    never forms that matrix: time is O(N M^2) and memory O(N M). Choices are nested: the first m
    rows of the answer are the answer for m points.

    Parameters
    ----------
    X : array_like, DataFrame, DataArray or pm.Data
        Inputs of the observations.
    M : int
        The number of inducing points.
    cov_func : pymc.gp.cov.Covariance
        The kernel. Its parameters may be random variables of a model.
    point : dict, optional
        Values, by name, for variables that the kernel depends on, such as a draw or the result of
        `pymc.find_MAP`; other names are ignored. Random variables that are not in it take PyMC's
        initial values: `initval` where the current model has one, else a typical prior value.
    threshold : float
        Stop with an error where the largest variance left falls to this fraction of the largest
        prior variance: more points would only make the kernel matrix singular.
    random_seed : int or numpy.random.Generator, optional
        Seed of the choice between inputs of equal variance; the first point of a stationary kernel
        is one. Without it the first such input is taken.

    Returns
    -------
    ndarray, DataFrame or DataArray
        M distinct inputs, in the order of choice.

    References
    ----------
    .. [1] Burt, D. R., Rasmussen, C. E. and van der Wilk, M. (2020). Convergence of sparse
       variational inference in Gaussian processes regression. Journal of Machine Learning
       Research 21, 1-63.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from pymc_vsgp.inducing.placement import greedy_variance
    >>> X = np.linspace(0.0, 1.0, 5)[:, None]
    >>> greedy_variance(X, 3, pm.gp.cov.ExpQuad(1, ls=0.3)).ravel()
    array([0. , 1. , 0.5])
    """
    X, M = as_inputs(X), check_number("M", M)
    check_real("threshold", threshold)
    if random_seed is not None:
        X = X[generator_of(random_seed).permutation(len(X))]
    kernel_column, kernel_diagonal = compile_kernel(cov_func, X.shape[1], point)
    # PyMC's stationary kernels have a float32 diagonal, too coarse to subtract from.
    left = np.array(_finite(kernel_diagonal(X), "variance"), dtype="float64")
    floor = threshold * left.max()
    if left.max() <= 0:
        raise ValueError(
            f"The kernel's variance is at most {left.max():g} at every row of X. "
            "Give its parameters other values with `point`."
        )
    # More steps than rows cannot be taken, and the error below says so.
    factor = np.empty((min(M, len(X)), len(X)))
    chosen: list[int] = []
    while len(chosen) < M:
        step, most = len(chosen), left.max()
        if most == -np.inf:
            _check_distinct(step, M)
        if most <= floor:
            raise ValueError(
                f"{step} points leave at most {threshold:g} of the kernel's variance at any row of "
                f"X, {M} inducing points were asked for. Ask for at most {step}, or give a shorter "
                "lengthscale with `point`."
            )
        # The first of those that differ by rounding, so that the choice is the same everywhere.
        row = int(np.argmax(left >= most * (1 - 1e-12)))
        column = _finite(kernel_column(X, X[row : row + 1]), "covariance")
        new = factor[step]
        np.subtract(column, factor[:step, row] @ factor[:step], out=new)
        new /= np.sqrt(left[row])
        left -= new * new
        # Rounding, or white noise in the kernel, must not bring this place up again.
        left[(X == X[row]).all(axis=1)] = -np.inf
        chosen.append(row)
    return X[chosen]


def pivots(
    K: np.ndarray, most: int, floor: float, noise: np.ndarray | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield pivots of the Cholesky factorization of K, and the variances that are then left.

    Each is the row with the largest variance, while that is above `floor`. Rows may be known with
    `noise` of these variances.
    """
    left = np.diag(K).astype("float64")
    factor = np.empty((min(most, len(K)), len(K)))
    chosen = np.zeros(len(K), dtype=bool)
    for i in range(len(factor)):
        row = int(np.argmax(np.where(chosen, 0.0, left)))
        if left[row] <= floor:
            return
        chosen[row], beside = True, 0.0 if noise is None else noise[row]
        factor[i] = (K[row] - factor[:i, row] @ factor[:i]) / np.sqrt(left[row] + beside)
        left = np.maximum(left - factor[i] ** 2, 0.0)
        left[row] = 0.0 if beside == 0.0 else left[row]
        yield row, left


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(
            f"The kernel's {what} is {values[bad][0]} at {np.count_nonzero(bad)} rows of X. "
            "Give its parameters other values with `point`."
        )
    return values
