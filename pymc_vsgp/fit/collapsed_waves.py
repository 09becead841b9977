r"""Fourier coefficients integrated out, where noise is normal.

Waves do not depend on theta, and the residual variance is the same for every row. So the data enter
the collapsed density by few sums that are taken once,

.. math:: G = \Phi^\top \Phi, \quad H = \Phi^\top E, \quad Q = E^\top E, \quad E = [y - m_0, J],

for a mean :math:`m_0 + J \beta` that is linear in its parameters. With :math:`r = (1, -\beta)`, D
the prior standard deviations and W the precision of the noise,

.. math:: P = I + W D G D, \qquad v \sim N(W P^{-1} D H r,\; P^{-1}),

and an evaluation costs :math:`M^3`, whatever the number of rows. As for points, the integral is the
bound at the optimum, so the covariance needs no gradient.
"""

from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import grad
from pytensor.graph.basic import Apply
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg import cholesky, solve_triangular
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.compile import function
from pymc_vsgp.engine.blocks import Part
from pymc_vsgp.engine.streaming import held
from pymc_vsgp.inducing.graphs import Kernel, inline

__all__ = ["Integrated", "has_sums", "integrate"]

# Beyond this many coefficients M^3 operations cost more than a pass over the data.
MOST_COEFFICIENTS = 400

ROWS = 4096  # of the data, whose waves are held at once


class Integrated(NamedTuple):
    """The log density of the data given theta, and the coefficients' density given both."""

    logp: TensorVariable
    half: TensorVariable
    """``L^-1`` times the linear term, with ``L L^T`` the precision of the whitened coefficients."""
    L: TensorVariable
    sites: tuple[TensorVariable, TensorVariable] | None = None
    """Linear term and precision that the data give coefficients less their prior means."""


def has_sums(node: Apply, values: list[TensorVariable]) -> bool:
    """Whether the data enter this loop over them by sums that do not depend on theta.

    `values` are what the log density is a function of.
    """
    recipe = node.op.recipe
    (part,) = recipe.parts
    basis = part.conditional.basis
    if basis is None:
        return False
    sigma = node.inputs[recipe.params["sigma"]]
    theta = part.args(node.inputs)[basis.theta]
    return (
        basis.number <= MOST_COEFFICIENTS
        and sigma.type.ndim == 0
        and not any(_varies(node.inputs[i], values) for i in (1, part.X))
        and _is_linear(basis.mean, [_varies(t, values) for t in theta])
    )


def integrate(node: Apply, value: TensorVariable, values: list[TensorVariable]) -> Integrated:
    """Integrate the coefficients out of a loop over the data, given their whitened `value`."""
    recipe = node.op.recipe
    (part,) = recipe.parts
    basis, args = part.conditional.basis, part.args(node.inputs)
    sums = _sums(node, part, values)
    G, H, Q = (pt.constant(x) for x in (sums.G, sums.H, sums.Q))

    varying = [t for t in args[basis.theta] if _varies(t, values)]
    beta = [pt.atleast_1d(t).ravel().astype("float64") for t in varying]
    r = pt.concatenate([np.ones(1), *beta]) - sums.base
    r = pt.concatenate([r[:1], -r[1:]])
    n = basis.number
    (D,) = graph_replace([args[0]], {value: pt.ones(n)})

    lik = recipe.likelihood.replace(sigma=node.inputs[recipe.params["sigma"]])
    gamma, mu = args[basis.residual], pt.dscalar()
    term = lik.expected_logp(mu, gamma, np.float64(0.0))
    top = graph_replace(term, {mu: np.float64(0.0)})
    W = -graph_replace(grad(term, mu), {mu: np.float64(1.0)})

    P = pt.eye(n, dtype="float64") + W * D[:, None] * G * D
    L = cholesky(P, lower=True)
    linear = pt.dot(H, r)
    half = solve_triangular(L, W * D * linear, lower=True, b_ndim=1)
    C = solve_triangular(L, pt.eye(n, dtype="float64"), lower=True, b_ndim=2)
    m, S, L_ = (held(x) for x in (pt.dot(C.T, half), pt.dot(C.T, C), L))
    second = S + m[:, None] * m
    fit = pt.dot(r, pt.dot(Q, r)) - 2.0 * pt.dot(m * D, linear)
    fit = fit + pt.sum(G * (D[:, None] * second * D))
    divergence = (pt.trace(second) - n) / 2.0 + pt.log(pt.diagonal(L_)).sum()
    logp = sums.n_rows * top - W * fit / 2.0 - divergence
    return Integrated(logp, half, L, (W * linear, W * G))


class _Sums(NamedTuple):
    n_rows: int
    base: np.ndarray
    """0, and the parameters of the mean that the data are deviations from."""
    G: np.ndarray
    H: np.ndarray
    Q: np.ndarray


def _sums(node: Apply, part: Part, values) -> _Sums:
    """Take the sums over the data, in blocks of rows."""
    basis, args = part.conditional.basis, part.args(node.inputs)
    x = pt.tensor(dtype="float64", shape=(None, part.conditional.n_columns))
    y = pt.vector(dtype=node.inputs[1].dtype)
    theta = args[basis.theta]
    varies = [_varies(t, values) for t in theta]
    sizes = [int(np.prod(t.type.shape)) for t, v in zip(theta, varies, strict=True) if v]

    def mean(flat):
        parts = iter(np.split(flat, np.cumsum(sizes)[:-1]))
        at = [
            pt.constant(next(parts).reshape(t.type.shape), dtype=t.dtype) if v else t
            for t, v in zip(theta, varies, strict=True)
        ]
        return inline(basis.mean, x, *at)[0]

    zero = mean(np.zeros(sum(sizes)))
    columns = [y - zero, *(mean(e) - zero for e in np.eye(sum(sizes)))]
    design = pt.stack([pt.broadcast_to(c, y.shape).astype("float64") for c in columns], axis=1)
    of_rows, functions = function([x, y], design), function([x], basis.functions(x))
    data = [node.inputs[part.X], node.inputs[1], args[basis.valid]]
    X, Y, valid = function([], data)()
    if np.isnan(valid):
        raise ValueError(
            "The rows of X are no longer those that the model was made for: no such grid, or far "
            "beyond their range. Make a new model for them."
        )
    n = len(Y)
    blocks = [slice(i, i + ROWS) for i in range(0, n, ROWS)]

    # Deviations from the best mean: of data far from zero the sums would lose digits.
    Q = sum(d.T @ d for d in (of_rows(X[at], Y[at]) for at in blocks))
    best = np.linalg.lstsq(Q[1:, 1:], Q[1:, 0], rcond=None)[0]
    base = np.r_[0.0, best]
    size, p = basis.number, len(base)
    G, H, Q = np.zeros((size, size)), np.zeros((size, p)), np.zeros((p, p))
    for at in blocks:
        d, phi = of_rows(X[at], Y[at]), functions(X[at])
        d[:, 0] -= d[:, 1:] @ best
        G += phi.T @ phi
        H += phi.T @ d
        Q += d.T @ d
    return _Sums(n, base, G, H, Q)


def _varies(variable, values) -> bool:
    return not set(values).isdisjoint(ancestors([variable]))


def _is_linear(mean: Kernel, varies: list[bool]) -> bool:
    """Whether a mean is linear in those of its parameters, and these have fixed shapes."""
    inner = mean.fgraph.unfreeze()
    theta = [t for t, v in zip(inner.inputs[1:], varies, strict=True) if v]
    if any(None in t.type.shape or not t.dtype.startswith("float") for t in theta):
        return False
    if not theta:
        return True
    (m,) = inner.outputs
    slopes = grad(pt.sum(m * m.type()), theta, disconnected_inputs="ignore")
    slopes = rewrite_graph(slopes, include=("canonicalize",))
    return set(theta).isdisjoint(ancestors(slopes))
