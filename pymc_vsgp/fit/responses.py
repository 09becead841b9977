r"""Values that depend on their neighbors integrated out, where noise is normal.

Observations at the same value are one, their mean with a noise of :math:`\sigma^2 / c_i`. Given
theta each depends on those of the m nearest inputs before it, in the maximin order,

.. math::

   \bar y_i \mid \bar y_{N(i)} \sim N(m_i + b_i^\top (\bar y_{N(i)} - m_{N(i)}),\;
   k_{ii} + \sigma^2 / c_i - b_i^\top k_{N(i), i}), \qquad
   b_i = (K_{N(i)} + \mathrm{diag}(\sigma^2 / c_{N(i)}))^{-1} k_{N(i), i},

the Vecchia approximation of y, as that of u is one of u: both are of the same exact process, and
equal it where each has all neighbors. The values given theta and y are drawn in the coordinates of
:class:`~pymc_vsgp.inducing.coordinates.SparseTied`, with the observations as sites.
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import known_value
from pymc_vsgp.compile import evaluate, function
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.inducing.neighbors import PLACES, SCALE
from pymc_vsgp.ops.neighbors import Nearest, in_units, maximin, predecessors

ELSEWHERE = (
    "The rows of X are no longer among the inputs that neighbors are of. "
    "Make a new model for them, with Xu of all distinct rows."
)


def has_responses(node: Apply, model: Model) -> bool:
    """Whether this loop over the data has normal noise on values given neighbors, and no other."""
    sigma = node.inputs[node.op.recipe.params["sigma"]]
    return not sigma.type.ndim and sees_values(node, model)


def sees_values(node: Apply, model: Model) -> bool:
    """Whether each row of this loop over the data looks up one of the values."""
    (part,) = node.op.recipe.parts
    args, values = part.args(node.inputs), set(model.value_vars)
    if not part.conditional.looks_up:
        return False  # white noise of the kernel is another one for each row of the data
    if values & set(ancestors([node.inputs[part.X], node.inputs[1]])):
        return False
    X, Z, scale = evaluate([node.inputs[part.X], args[PLACES], args[SCALE]])
    return _places_of(X, Z, scale) is not None


class Responses:
    """A loop over data with normal noise on values given neighbors, without the values."""

    def __init__(self, node: Apply):
        recipe = node.op.recipe
        (part,) = recipe.parts
        self.conditional, self.args = part.conditional, part.args(node.inputs)
        self.variance = node.inputs[recipe.params["sigma"]] ** 2
        self.places, self.scale = (np.asarray(known_value(self.args[i])) for i in (PLACES, SCALE))
        self._data = function([], [node.inputs[part.X], node.inputs[1]])
        taken, u = self._take(), self.conditional.process
        # Rows come and go with data.
        self.shared = _Taken(
            *(
                pytensor.shared(x, name=f"{u}_{n}", shape=(None,) * min(x.ndim, 1) + x.shape[1:])
                for n, x in zip(taken._fields, taken, strict=True)
            )
        )

    def refresh(self) -> None:
        """Take the data that there are now."""
        for shared, x in zip(self.shared, self._take(), strict=True):
            shared.set_value(x)

    def logp(self) -> TensorVariable:
        """Return the log density of the data given theta."""
        of, v = self.shared, self.variance
        y = of.total / pt.maximum(of.number, 1.0)
        noise = v / pt.maximum(of.number, 1.0)
        terms = self.conditional.regressions(self.args, of.seen, of.neighbors, y, noise)
        n = of.number.sum() - of.seen.shape[0]
        within = n * pt.log(2.0 * np.pi * v) + of.squares / v + pt.log(of.number[of.seen]).sum()
        return pt.sum(terms) - within / 2.0

    def sites(self) -> Sites:
        """Return what the data say of the values, one by one."""
        return Sites(self.shared.total / self.variance, pt.sqrt(self.shared.number / self.variance))

    def mean(self) -> TensorVariable:
        """Return the prior mean of the values."""
        return self.conditional.prior_mean(self.args[PLACES], self.args)

    def coordinates(self) -> TensorVariable:
        """Return what `SparseTied` takes, for the data as sites."""
        return self.conditional.coordinates(self.args, self.mean(), *self.sites()[:2])

    def _take(self) -> "_Taken":
        X, y = self._data()
        at = _places_of(X, self.places, self.scale)
        if at is None:
            raise ValueError(ELSEWHERE)
        count, total = (np.bincount(at, w, len(self.places)) for w in (None, y))
        squares = np.asarray(np.sum((y - (total / np.maximum(count, 1))[at]) ** 2))
        seen = np.flatnonzero(count)
        Z = in_units(self.places[seen], self.scale)
        near = np.full((len(seen), self.conditional.m), -1)
        found = predecessors(Z, maximin(Z), self.conditional.m)
        near[:, : found.shape[1]] = np.where(found >= 0, seen[found], -1)
        return _Taken(count.astype("float64"), total, squares, seen, near)


class _Taken(NamedTuple):
    """What is taken from the data."""

    number: Any
    """Of observations of each value, ..."""
    total: Any
    """... their sum, ..."""
    squares: Any
    """... and the sum of all squares around their means."""
    seen: Any
    """Which values have any."""
    neighbors: Any
    """Of each of these, those that come before it; -1 for none."""


def _places_of(X, Z, scale) -> np.ndarray | None:
    """Return which row of Z each row of X is, or None where one is not among them."""
    if not np.isfinite(X).all():
        return None
    at = Nearest(1).search(X, Z, scale)[:, 0]
    return at if (Z[at] == X).all() else None
