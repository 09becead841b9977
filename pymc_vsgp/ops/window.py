"""The window that values between the places of a grid are interpolated with."""

from functools import cache

import numpy as np

WIDTH = 8  # places of the grid in a window
DEGREE = 11  # of the polynomials that the window is made of
FALL = 2.3 * WIDTH  # of the window, from its center to its ends


@cache
def window_coefficients() -> np.ndarray:
    """Polynomials of the window between places of the grid, from the highest power.

    Column a is the window at ``a - WIDTH / 2 + (z + 1) / 2`` for z in [-1, 1].
    """
    z = np.cos(np.pi * (np.arange(2 * DEGREE) + 0.5) / (2 * DEGREE))
    at = 2.0 * (np.arange(WIDTH) - WIDTH / 2 + (z[:, None] + 1.0) / 2.0) / WIDTH
    values = np.exp(FALL * (np.sqrt(np.clip(1.0 - at**2, 0.0, None)) - 1.0))
    return np.polynomial.polynomial.polyfit(z, values, DEGREE)[::-1].copy()


def transform(s: np.ndarray) -> np.ndarray:
    """Fourier transform of the window at these angular frequencies a step of the grid."""
    z, weights = np.polynomial.legendre.leggauss(24)
    values = np.polynomial.polynomial.polyval(z, window_coefficients()[::-1])  # window, z
    t = np.arange(WIDTH)[:, None] - WIDTH / 2 + (z + 1.0) / 2.0
    weighted = (values * weights / 2.0).ravel()
    return np.cos(np.multiply.outer(s, t.ravel())) @ weighted
