"""Parameters that no slope tells apart, where a fit would stay though it is no optimum."""

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["alike", "without_slope"]

NONE = 1e-12  # slope that is none


def without_slope(slope: np.ndarray) -> np.ndarray:
    """Whether each has no slope, as weights of functions that are all zero."""
    return np.abs(slope) < NONE


def alike(processes: Iterable[Any], theta: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Whether each has the value and the slope of another, as weights of functions that are alike.

    That is only for a q that has seen the data: given the prior many have the same slope, and
    coefficients do not step before theta does.
    """
    if all(p.diagonal for p in processes):
        return np.zeros(theta.size, bool)
    # In single precision, as sums of the same numbers need not be the same.
    both = np.stack([theta, slope], axis=1).astype("float32")
    _, which, number = np.unique(both, axis=0, return_inverse=True, return_counts=True)
    return number[which.ravel()] > 1
