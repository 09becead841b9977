"""Which inducing variables, and how many."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytensor.tensor as pt

from pymc.gp.cov import WhiteNoise

from pymc_vsgp.checks import (
    LARGEST,
    as_inputs,
    check_kernel,
    check_number,
    check_real,
    column_names,
    generator_of,
)
from pymc_vsgp.inducing.fourier import MOST_FEATURES, Fourier, left_out
from pymc_vsgp.inducing.graphs import JITTER
from pymc_vsgp.inducing.grids import Cells, Grid, Product, find_grid
from pymc_vsgp.inducing.kernel_values import draws_of
from pymc_vsgp.inducing.kernels import check_methods, is_free_of_noise, parts_of
from pymc_vsgp.inducing.neighbors import NearestNeighbors
from pymc_vsgp.inducing.placement import kmeans, pivots
from pymc_vsgp.inducing.scattered import Scattered
from pymc_vsgp.inducing.spectrum import active_columns, check_even, of_columns, spectral_density
from pymc_vsgp.ops.cholesky import factor
from pymc_vsgp.ops.window import WIDTH

# Share of a variance beyond which a difference is white noise.
ROUNDING = 1e-6
TINY = np.finfo("float64").tiny
# Rows that points are chosen from, the most points, and rows where what they leave is measured.
SOME_ROWS, MOST_POINTS, MEASURED = 800, 400, 400

# Of one core: operations a second in products of large and of small matrices, seconds that a row
# takes besides, and those of an evaluation however small. Fitted to `benchmarks/features_cost.py`,
# where they are wrong by a factor of two at most.
LARGE, SMALL, ROW, LEAST = 2.3e10, 4.8e9, 1.6e-8, 2.2e-4
# Of the kernel at two of the neighbors of a row, with all that follows.
PAIR = 3e-7
# Of a row and of each place in its window, where waves are interpolated.
INTERPOLATED, IN_WINDOW = 5e-8, 2.4e-9


@dataclass(frozen=True)
class Option:
    """One way to choose inducing variables."""

    kind: str
    n_inducing: int
    left_out: float
    """Share of the prior variance that they don't explain, white noise of the kernel aside."""
    seconds: float
    """A guess at those of one evaluation of the density with its gradient."""
    enough: bool


@dataclass(frozen=True)
class Suggestion:
    """What :func:`suggest_inducing` found.

    Attributes
    ----------
    best : str
        Type of the cheapest option that explains enough.
    options : dict
        All types that were looked at.
    prior_kwargs : dict
        Arguments for ``gp.prior``: inducing points, or features. Points are inputs that the kernel
        chooses, or centers of k-means, whichever leave less.
    """

    best: str
    options: dict[str, Option]
    prior_kwargs: dict[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __repr__(self):
        """Show a table, and a sentence."""
        lines = ["inducing       number  unexplained  ms an evaluation"]
        for option in self.options.values():
            mark = "*" if option.kind == self.best else " "
            lines.append(
                f"{mark} {option.kind:<10} {option.n_inducing:>8} {option.left_out:>12.1%}"
                f" {1e3 * option.seconds:>17.2f}"
            )
        call = "Xu=..." if self.best == "points" else "inducing=..."
        lines.append(f"Pass gp.prior(name, **suggestion.prior_kwargs), which is {call}")
        return "\n".join([*lines, *self.notes])


def suggest_inducing(
    X: Any,
    cov_func: Any,
    *,
    residual: float = 0.02,
    quantile: float = 0.9,
    draws: int = 40,
    random_seed=None,
) -> Suggestion:
    """
    Say which inducing variables a process needs, how many, and what they cost.

    Parameters
    ----------
    X : array_like, shape (N, D)
        Inputs of the data.
    cov_func : Covariance
        The kernel. Its parameters may be random variables: what is suggested is enough for most of
        their prior. :func:`check_inducing` says whether it is enough for the posterior.
    residual : float
        Share of the prior variance that may stay unexplained, at the distinct inputs of the data.
        Where neither points nor features leave so little, nearest neighbors are suggested.
    quantile : float
        Part of the prior for which that holds.
    draws : int
        Draws from the prior.
    random_seed : int or Generator, optional
        Of the draws and of the inducing inputs. By default a fixed one.

    Returns
    -------
    Suggestion
        It shows itself as a table; ``prior_kwargs`` are arguments for ``gp.prior``.

    Examples
    --------
    .. code-block:: python

        with model:
            suggestion = vsgp.suggest_inducing(X, cov)
            print(suggestion)
            gp.prior("u", **suggestion.prior_kwargs)
    """
    check_real("residual", residual, 0.0, 1.0)
    check_real("quantile", quantile, 0.0, 1.0)
    check_number("draws", draws)
    table, X = X, as_inputs(X, "X")
    check_kernel(cov_func, X)
    check_methods(cov_func)
    active = active_columns(cov_func, X.shape[1])
    own = X[:, active]
    n, n_columns = own.shape
    rng = generator_of(0 if random_seed is None else random_seed)
    options: dict[str, Option] = {}
    kwargs: dict[str, dict[str, Any]] = {}
    notes = []
    if any(isinstance(part, WhiteNoise) for part in parts_of(cov_func)):
        notes.append(
            "Shares are of the function without the kernel's white noise, which nothing explains. "
            "If the likelihood has noise, leave it out of the kernel: it takes more points."
        )

    distinct = X[np.unique(own, axis=0, return_index=True)[1]]
    Xu, left = _points(X, distinct, active, cov_func, residual, quantile, draws, rng)
    points = len(Xu)
    # Three products with M^2 entries a row, and what is done to M x M matrices.
    seconds = 6.0 * n * points**2 / LARGE + 10.0 * points**3 / LARGE + n * ROW + LEAST
    options["points"] = Option("points", points, left, seconds, left <= 1.05 * residual)
    kwargs["points"] = {"Xu": _with_names(table, Xu)}

    try:
        if n_columns > 3:
            raise ValueError("Fourier features are for one to three inputs.")
        spectral_density(of_columns(cov_func, active), pt.ones((1, n_columns)))
        width = np.ptp(own, axis=0)
        check_even(of_columns(cov_func, active), np.where(width > 1.0 / LARGEST, width, 1.0))
    except (ValueError, NotImplementedError) as error:
        notes.append(f"No Fourier features: {error}")
    else:
        features = Fourier.for_data(
            table,
            cov_func,
            residual=residual,
            quantile=quantile,
            max_features=None,
            draws=draws,
            random_seed=rng,
        ).at_most(MOST_FEATURES)
        left = left_out(features, of_columns(cov_func, active), quantile, draws, rng)
        M = features.n_features
        grid = find_grid(own)
        whole = grid.grid if isinstance(grid, Cells) else grid
        rows = whole.shape[0] if isinstance(whole, Grid) else n
        if isinstance(grid, Product):
            rows = grid.panel.shape[0]
        seconds = 6.0 * rows * M / (SMALL if grid is None else LARGE) + n * ROW + LEAST
        if Scattered.pays(features, n, grid):
            seconds = n * (INTERPOLATED + IN_WINDOW * WIDTH**n_columns) + LEAST
        options["Fourier"] = Option("Fourier", M, left, seconds, left <= 2.0 * residual)
        kwargs["Fourier"] = {"inducing": features}
        if isinstance(whole, Grid):
            some = "a grid" if whole is grid else "cells of a grid"
            notes.append(f"The data are {some} of {' x '.join(map(str, whole.shape))}.")
        if isinstance(grid, Product):
            sites, times = grid.panel.shape
            notes.append(f"The data are {sites} sites in two inputs, at {times} places of a third.")

    if not any(o.enough for o in options.values()):
        neighbors = NearestNeighbors(_with_names(table, distinct))
        m = neighbors.number(cov_func)
        seconds = (n + len(distinct)) * ((m + 1) ** 2 * PAIR + ROW) + LEAST
        options["neighbors"] = Option("neighbors", len(distinct), 0.0, seconds, True)
        kwargs["neighbors"] = {"inducing": neighbors}
        notes.append(
            f"Neighbors are all distinct inputs, each given the {m} nearest. They take one process "
            "with one function."
        )
    fine = [o for o in options.values() if o.enough]
    best = min(fine, key=lambda o: o.seconds)
    return Suggestion(best.kind, options, kwargs[best.kind], tuple(notes))


def _in_columns(X, active, places):
    """Return inputs with these values in the columns of the kernel, and means in the others."""
    Xu = np.tile(X.mean(axis=0), (len(places), 1))
    Xu[:, active] = places
    return Xu


def _with_names(table, Xu):
    """Return inputs with the names of the columns of the data."""
    names = column_names(table, "X")
    return Xu if names is None else pd.DataFrame(Xu, columns=list(names))


def _points(X, distinct, active, cov_func, residual, quantile, draws, rng):
    """Return points that explain enough of most of the prior, and the share that they leave.

    The kernel chooses inputs, until these are enough. As many centers of k-means, which know no
    kernel, take their place if they leave less.
    """
    order = rng.permutation(len(distinct))
    rows = distinct[order[:SOME_ROWS]]
    # Of many inputs, others than those that are chosen from: points explain themselves.
    others, seed = distinct[order[-MEASURED:]], int(rng.integers(2**31))
    chosen = _in_columns(X, active, rows[_best_rows(rows, cov_func, draws, rng)][:, active])
    left = _share_left(chosen, others, cov_func, quantile, draws, seed)
    enough = left <= residual
    number = int(np.argmax(enough)) + 1 if enough.any() else len(chosen)
    centers = _in_columns(X, active, kmeans(X[:, active], number, random_seed=rng))
    centers_left = _share_left(centers, others, cov_func, quantile, draws, seed)[-1]
    if centers_left < left[number - 1]:
        return centers, float(centers_left)
    return chosen[:number], float(left[number - 1])


def _best_rows(rows, cov_func, draws, rng) -> list[int]:
    """Return rows in the order of a pivoted Cholesky of the mean of the kernel's matrices.

    Each counts alike. Values at points have the kernel's white noise, which nothing explains.
    """
    x = pt.constant(rows)
    noisy = cov_func(x)
    K = noisy if is_free_of_noise(cov_func) else cov_func(x, x)
    total = pt.maximum(pt.sum(pt.diagonal(K)), TINY)
    graphs = [K / total, pt.diagonal(noisy) / total]
    mean, beside = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    for seed in rng.integers(2**31, size=draws):
        matrix, diagonal = draws_of(graphs, 1, int(seed))
        mean += matrix / draws
        beside += diagonal / draws
    noise = beside - np.diag(mean)
    noise = np.where(noise > ROUNDING * beside, noise, 0.0)
    floor = 1e-12 * np.trace(mean)
    return [row for row, _ in pivots(mean, MOST_POINTS, floor, noise)] or [0]


def _share_left(Xu, rows, cov_func, quantile, draws, seed) -> np.ndarray:
    """Return the share of the variance at rows that the first 1, 2, ... points leave.

    The same seed gives the same draws of the kernel for all points.
    """
    z, x = pt.constant(Xu), pt.constant(rows)
    free = is_free_of_noise(cov_func)
    variance = cov_func(x, diag=True) if free else pt.diagonal(cov_func(x, x))
    total = pt.sum(variance.astype("float64"))
    A = pt.linalg.solve_triangular(factor(cov_func(z), JITTER)[0], cov_func(z, x), lower=True)
    left = (total - pt.cumsum(pt.sum(A**2, axis=1))) / pt.maximum(total, TINY)
    # A single draw comes without an axis of draws.
    found = np.reshape(draws_of(left, draws, seed), (draws, len(Xu)))
    return np.quantile(np.maximum(found, 0.0), quantile, axis=0)
