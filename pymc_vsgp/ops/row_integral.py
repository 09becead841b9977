"""Integrals over normal functions, for each row of the data, that come with their gradients."""

import pytensor.tensor as pt

from pytensor.gradient import DisconnectedType, disconnected_type

from pymc_vsgp.ops.loop import Loop


class RowIntegral(Loop):
    """A number for each row of mu and gamma (both N x K), with its gradients in both.

    The value and the gradients share nearly all of the work, so they are the three outputs.
    """

    operations = 7e4
    """Of a row and function, about: what NUTS will take is said before it starts."""

    def outputs_of(self, mu):
        """Return variables of the types of the outputs."""
        p = pt.tensor(dtype="float64", shape=mu.type.shape[:1])
        return [p, *(pt.tensor(dtype="float64", shape=mu.type.shape) for _ in range(2))]

    def infer_shape(self, node, shapes):
        """One number a row, and gradients as large as the inputs."""
        return [shapes[0][:1], shapes[0], shapes[0]]

    def pullback(self, inputs, outputs, cotangents):
        """Scale the gradients that were computed with the value."""
        _, dmu, dgamma = outputs
        g, *rest = cotangents
        if not all(isinstance(c.type, DisconnectedType) for c in rest):
            raise NotImplementedError(
                f"{self} has no second derivatives. Use a sampler that needs gradients only."
            )
        if isinstance(g.type, DisconnectedType):
            return [disconnected_type() for _ in inputs]
        others = [disconnected_type() for _ in inputs[2:]]
        return [g[:, None] * dmu, g[:, None] * dgamma, *others]
