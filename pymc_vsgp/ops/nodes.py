"""Nodes of quadrature against a normal density."""

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import disconnected_grad

REACH = 7.0  # standard deviations on either side of the mean; 3e-12 of the mass is beyond
TINY = 1e-14  # variances below this are treated as this: the square root needs a finite slope
N_BEND = 48


def stack(nodes, ndim):
    """Put constant nodes on a new leading axis in front of `ndim` others."""
    return np.asarray(nodes).reshape((-1,) + (1,) * ndim)


def standard_deviation(gamma):
    """Square root of a variance that may be zero, or a rounding error below it."""
    return pt.sqrt(pt.maximum(gamma, np.float64(TINY)))


def bend_nodes(mu, sd, center, width, n_nodes, ndim):
    """Nodes t and weights for N(0, 1), dense where ``mu + sd * t`` is near `center`.

    Gauss-Legendre in z, where ``mu + sd * t = center + width * sinh(z)``: for a large sd the
    Gaussian drops from one to nothing close to the ends, where Legendre's nodes are dense.
    Everything is written as a difference from ``z0``, the z of the mean, so that nothing cancels
    when sd is far below ``|mu - center|``.
    """
    a, b = (mu - center) / width, sd / width
    z0 = pt.arcsinh(a)
    lo = pt.arcsinh(a - REACH * b) - z0
    hi = pt.arcsinh(a + REACH * b) - z0
    x, w = np.polynomial.legendre.leggauss(n_nodes)
    # Both hyperbolic functions from one exponential: they are most of the work.
    step = pt.expm1((lo + hi + (hi - lo) * stack(x, ndim)) / 4.0)  # of half of z - z0
    growth = pt.exp(z0) * (1.0 + step)
    t = (growth + 1.0 / growth) * (step + step / (1.0 + step)) / (2.0 * b)
    growth = growth * (1.0 + step)
    w = stack(w, ndim) * (growth + 1.0 / growth) * pt.exp(-(t**2) / 2.0)
    w = w / w.sum(axis=0)
    # Make the first two moments exact: the gradient in gamma divides by sd, and would magnify
    # what is left of them.
    t = t - (w * t).sum(axis=0)
    t = t / pt.sqrt((w * t**2).sum(axis=0))
    return disconnected_grad(t), disconnected_grad(w)
