"""Events as they are, and a quadrature rule for the integral of their intensity."""

import math

from typing import Any, NamedTuple

import numpy as np

from pymc_vsgp.checks import check_number

__all__ = ["Quadrature", "quadrature_of"]

DEFAULT_NODES = {1: 100, 2: 40, 3: 16}
IN_CELL = 2  # nodes along a side of a cell, where the window is cut into cells


class Quadrature(NamedTuple):
    """Rows for :class:`PoissonProcess`: the events, and then the nodes of a quadrature rule."""

    X: np.ndarray
    """Positions, shape (N, D), and the covariates after them where there are any."""
    y: np.ndarray
    """1 for an event, 0 for a node."""
    weights: np.ndarray
    """0 for an event; for a node the volume that it stands for, times the exposure there."""
    n_events: int

    @property
    def nodes(self) -> np.ndarray:
        """Rows of X that are nodes."""
        return self.X[self.n_events :]


def quadrature_of(pattern: Any, n: int | None) -> Quadrature:
    """Rows of a pattern, with n nodes along each dimension."""
    n = DEFAULT_NODES[len(pattern.dims)] if n is None else n
    nodes = pattern.window.rule(*_cells(pattern, check_number("n", n)))
    keep = nodes.weights > 0.0
    if pattern._mask is not None:
        keep &= pattern._mask.ravel()[nodes.cell]
    X, weights = nodes.X[keep], nodes.weights[keep]
    if pattern._effort is not None:
        weights = weights * pattern._effort.at(X, pattern.cell_of(X))
    X = np.concatenate([pattern.events, X])
    cell = pattern.cell_of(X)
    columns = [f.at(X, cell) for f in pattern._fields]
    n_events = len(pattern.events)
    return Quadrature(
        np.column_stack([X, *columns]),
        np.repeat([1.0, 0.0], [n_events, len(weights)]),
        np.concatenate([np.zeros(n_events), weights]),
        n_events,
    )


def _cells(pattern: Any, n: int) -> tuple[list[np.ndarray], list[int]]:
    """Cells for the quadrature, and the nodes along each of their sides."""
    edges, per_cell = [], []
    fields = [*pattern._fields, *([] if pattern._effort is None else [pattern._effort])]
    jumps = any(f.jumps for f in fields)  # at the borders of cells, so that a rule is in one
    for d, (low, high) in enumerate(pattern.window.bounds):
        own, number = pattern.edges[d], pattern.shape[d]
        cut = pattern.window.polygon is not None and d < 2
        if cut and jumps and pattern._mask is None:
            parts = math.ceil(n / IN_CELL / number)
            at = np.arange(number * parts + 1) / parts
            edges.append(np.interp(at, np.arange(number + 1), own))
            per_cell.append(IN_CELL)
        elif jumps or pattern._mask is not None:  # its border is that of cells, too
            edges.append(own)
            per_cell.append(max(IN_CELL, round(n / number)))
        elif cut:
            edges.append(np.linspace(low, high, math.ceil(n / IN_CELL) + 1))
            per_cell.append(IN_CELL)
        else:
            edges.append(np.array([low, high]))
            per_cell.append(n)
    return edges, per_cell
