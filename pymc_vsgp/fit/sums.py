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
import pytensor
import pytensor.tensor as pt

from pytensor.gradient import grad
from pytensor.graph.basic import Apply
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.compile import function
from pymc_vsgp.engine.blocks import Expected
from pymc_vsgp.inducing.graphs import Kernel, inline

# Beyond this many coefficients M^3 operations cost more than a pass over the data.
MOST_COEFFICIENTS = 400

ROWS = 4096  # of the data, whose waves are held at once


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


class Sums:
    """A loop over the data with normal noise, from sums that are taken once.

    It is to `expected` what the loop is to `stream_gaussian`.
    """

    def __init__(self, node: Apply, values: list[TensorVariable]):
        recipe = node.op.recipe
        (part,) = recipe.parts
        self.basis, self.args = part.conditional.basis, part.args(node.inputs)
        self.sigma = node.inputs[recipe.params["sigma"]]
        self.likelihood = recipe.likelihood.replace(sigma=self.sigma)
        theta = self.args[self.basis.theta]
        self.varies = [_varies(t, values) for t in theta]
        data = [node.inputs[part.X], node.inputs[1], self.args[self.basis.valid]]
        self._data = function([], data)
        self._of_rows, self._functions = self._compile(part.conditional.n_columns, data[1].dtype)
        taken = self._take()
        names = (f"{part.conditional.process}_{what}" for what in taken._fields)
        self.shared = [pytensor.shared(x, name=n) for n, x in zip(names, taken, strict=True)]

    def refresh(self) -> None:
        """Take the sums of the data that there are now."""
        for shared, x in zip(self.shared, self._take(), strict=True):
            shared.set_value(x)

    def expected(self, means, roots) -> Expected:
        """Return what a pass over the data would."""
        n_rows, base, G, H, Q = self.shared
        theta = self.args[self.basis.theta]
        varying = [t for t, v in zip(theta, self.varies, strict=True) if v]
        beta = [pt.atleast_1d(t).ravel().astype("float64") for t in varying]
        r = pt.concatenate([np.ones(1), *beta]) - base
        r = pt.concatenate([r[:1], -r[1:]])
        mu = pt.dscalar()
        term = self.likelihood.expected_logp(mu, self.args[self.basis.residual], np.float64(0.0))
        top = graph_replace(term, {mu: np.float64(0.0)})
        W = -graph_replace(grad(term, mu), {mu: np.float64(1.0)})
        (m,), (C,) = means, roots
        m, C, linear = m[0], C[0], pt.dot(H, r)
        fit = pt.dot(r, pt.dot(Q, r)) - 2.0 * pt.dot(m, linear)
        fit += pt.sum(G * (pt.dot(C, C.T) + m[:, None] * m))
        slope = W * (linear - pt.dot(G, m))
        value = n_rows * top - W * fit / 2.0
        return Expected(value, None, [slope[None]], [(-W * G)[None]])

    def _compile(self, n_columns, dtype):
        """Return the design of the mean at rows with y, and the functions of the basis there."""
        x = pt.tensor(dtype="float64", shape=(None, n_columns))
        y = pt.vector(dtype=dtype)
        theta, varies = self.args[self.basis.theta], self.varies
        sizes = [int(np.prod(t.type.shape)) for t, v in zip(theta, varies, strict=True) if v]

        def mean(flat):
            parts = iter(np.split(flat, np.cumsum(sizes)[:-1]))
            at = [
                pt.constant(next(parts).reshape(t.type.shape), dtype=t.dtype) if v else t
                for t, v in zip(theta, varies, strict=True)
            ]
            return inline(self.basis.mean, x, *at)[0]

        zero = mean(np.zeros(sum(sizes)))
        columns = [y - zero, *(mean(e) - zero for e in np.eye(sum(sizes)))]
        design = pt.stack([pt.broadcast_to(c, y.shape).astype("float64") for c in columns], axis=1)
        return function([x, y], design), function([x], self.basis.functions(x))

    def _take(self) -> "_Sums":
        """Take the sums over the data, in blocks of rows."""
        X, Y, valid = self._data()
        if np.isnan(valid):
            raise ValueError(
                "The rows of X are no longer those that the model was made for: no such grid, or "
                "far beyond their range. Make a new model for them."
            )
        n = len(Y)
        blocks = [slice(i, i + ROWS) for i in range(0, n, ROWS)]
        # Deviations from the best mean: of data far from zero the sums would lose digits.
        Q = sum(d.T @ d for d in (self._of_rows(X[at], Y[at]) for at in blocks))
        best = np.linalg.lstsq(Q[1:, 1:], Q[1:, 0], rcond=None)[0]
        size, p = self.basis.number, len(Q)
        G, H, Q = np.zeros((size, size)), np.zeros((size, p)), np.zeros((p, p))
        for at in blocks:
            d, phi = self._of_rows(X[at], Y[at]), self._functions(X[at])
            d[:, 0] -= d[:, 1:] @ best
            G += phi.T @ phi
            H += phi.T @ d
            Q += d.T @ d
        return _Sums(np.float64(n), np.r_[0.0, best], G, H, Q)


class _Sums(NamedTuple):
    n_rows: np.float64
    base: np.ndarray
    """0, and the parameters of the mean that the data are deviations from."""
    G: np.ndarray
    H: np.ndarray
    Q: np.ndarray


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
