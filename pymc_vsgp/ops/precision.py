r"""Precision matrices of values that depend on a few others each, and are observed with noise.

.. math:: A = (I - B)^\top \mathrm{diag}(s)^{-2} (I - B) + \mathrm{diag}(\Lambda)

with the sparse triangle :math:`I - B` of `neighbors`. The factor of A has many more entries than B;
an incomplete one has the same, and makes the equations of A so well-conditioned that conjugate
gradients solve them in some twenty steps.

References
----------
Schäfer, F., Katzfuss, M. and Owhadi, H. (2021). Sparse Cholesky factorization by Kullback-Leibler
minimization. SIAM Journal on Scientific Computing 43.
"""

import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph import Apply

from pymc_vsgp.ops.loop import Loop
from pymc_vsgp.ops.neighbors import gather


def _arguments(floats, pattern) -> list:
    floats = [pt.as_tensor(x).astype("float64") for x in floats]
    return floats + [pt.as_tensor(x).astype("int64") for x in pattern]


class IncompleteFactor(Loop):
    r"""C and t such that :math:`A \approx (I - C)^\top \mathrm{diag}(t)^{-2} (I - C)`.

    Takes B, s, :math:`\Lambda`, neighbors and order. C has entries where B has: what elimination
    puts elsewhere is left out. That is nothing where :math:`\Lambda` is zero, or where each row has
    all before it as neighbors. t is never above s, as data only add to what is known.
    """

    module, loop = "precision", "eliminate"
    gufunc_signature = "(m,p),(m),(m),(m,p),(m)->(m,p),(m)"

    def make_node(self, weights, sd, precision, neighbors, order):
        inputs = _arguments([weights, sd, precision], [neighbors, order])
        return Apply(self, inputs, [inputs[0].type(), inputs[1].type()])

    def infer_shape(self, node, shapes):
        """As B and s."""
        return shapes[:2]

    def pullback(self, inputs, outputs, cotangents):
        """Go back through the rows."""
        given = [
            pt.zeros_like(x) if isinstance(c.type, DisconnectedType) else c
            for x, c in zip(outputs, cotangents, strict=True)
        ]
        found = _pull_factor(*inputs, *outputs, *given)
        return [*found, disconnected_type(), disconnected_type()]


class PullFactor(Loop):
    """What `IncompleteFactor` pulls back; takes its inputs, outputs and cotangents."""

    module, loop = "precision", "eliminate_back"
    gufunc_signature = "(m,p),(m),(m),(m,p),(m),(m,p),(m),(m,p),(m)->(m,p),(m),(m)"

    def make_node(self, *inputs):
        given = _arguments(inputs[:3], inputs[3:5]) + _arguments(inputs[5:], [])
        return Apply(self, given, [x.type() for x in given[:3]])

    def infer_shape(self, node, shapes):
        """As B, s and Lambda."""
        return shapes[:3]


class PrecisionSolve(Loop):
    """Solution w of ``A w = r``, by conjugate gradients.

    Takes r, then B, s and Lambda, C and t of `IncompleteFactor`, which only decide how fast, then
    neighbors and order.
    """

    module, loop = "precision", "conjugate"
    gufunc_signature = "(m),(m,p),(m),(m),(m,p),(m),(m,p),(m)->(m)"

    def make_node(self, *inputs):
        given = _arguments(inputs[:6], inputs[6:])
        return Apply(self, given, [given[0].type()])

    def infer_shape(self, node, shapes):
        """As r."""
        return shapes[:1]

    def connection_pattern(self, node):
        """Say that the factor decides nothing."""
        return [[i < 4] for i in range(8)]

    def pullback(self, inputs, outputs, cotangents):
        """Solve with the cotangent: A is symmetric."""
        _, weights, sd, _, _, _, neighbors, _ = inputs
        (w,), z = outputs, self(cotangents[0], *inputs[1:])
        of_w, of_z = gather(w, neighbors), gather(z, neighbors)
        e, d = w - pt.sum(weights * of_w, axis=1), z - pt.sum(weights * of_z, axis=1)
        of_weights = (d[:, None] * of_w + e[:, None] * of_z) / sd[:, None] ** 2
        return [
            z,
            of_weights,
            2.0 * e * d / sd**3,
            -z * w,
            *(disconnected_type() for _ in range(4)),
        ]


incomplete_factor = IncompleteFactor()
precision_solve = PrecisionSolve()
_pull_factor = PullFactor()
