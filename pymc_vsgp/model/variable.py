"""The inducing variables, values or coefficients of the function, as random variables."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.distribution import Distribution, SymbolicRandomVariable, _support_point
from pymc.distributions.shape_utils import implicit_size_from_params, rv_size_is_none
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import _logprob
from pymc.model.core import Model
from pymc.pytensorf import normalize_rng_param
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.inducing.base import InducingPrior
from pymc_vsgp.inducing.coordinates import (
    Sparse,
    Together,
    Whitened,
    log_determinant,
    sparse_unwhiten,
    sparse_whiten,
    unwhiten,
    whiten,
)
from pymc_vsgp.ops.cholesky import guarded

NO_SITES = (np.zeros((1, 0)), np.zeros((1, 0, 0)))
"""Sites of a variable until a Gaussian stage sets them; see `coordinates.Tied`."""

NO_COLUMNS = np.zeros((0, 2))
"""What `coordinates.SparseTied` takes, until then."""


class InducingRV(SymbolicRandomVariable):
    """Multivariate normal given by its mean and the Cholesky factor of its covariance."""

    name = "inducing"
    extended_signature = "[rng],(m),(m,m),(k,s),(k,s,s)->[rng],(m)"
    _print_name = ("Inducing", "\\operatorname{Inducing}")

    @classmethod
    def rv_op(cls, mean, chol, linear, root, *pattern, size=None, rng=None):
        """Build the graph of a draw."""
        mean, chol, linear, root = (pt.as_tensor(x) for x in (mean, chol, linear, root))
        pattern = tuple(pt.as_tensor(x) for x in pattern)
        rng = normalize_rng_param(rng)
        size = normalize_size_param(size)
        if rv_size_is_none(size):
            size = implicit_size_from_params(mean, chol, ndims_params=(1, chol.type.ndim))
        next_rng, v = pt.random.normal(size=(*size, mean.shape[-1]), rng=rng, return_next_rng=True)
        if pattern:
            draw = sparse_unwhiten(v, mean, chol, *pattern[:2])
        else:
            many = v.type.ndim > 1 and chol.type.ndim == 2
            draw = mean + v @ chol.T if many else unwhiten(v, mean, chol)
        # A draw does not depend on the sites, whose shape changes when they are set.
        unused = [pt.tensor(dtype="float64", shape=(None,) * n) for n in (2, 3)]
        used = [*pattern[:2], *(pt.dmatrix() for _ in pattern[2:])]
        op = cls(inputs=[rng, mean, chol, *unused, *used], outputs=[next_rng, draw])
        return op(rng, mean, chol, linear, root, *pattern)


class Inducing(Distribution):
    r"""Values of a Gaussian process at its inducing inputs.

    .. math:: u \sim N(m, R R^\top)

    The same density as ``pm.MvNormal(mu=m, chol=R)``. What it adds is the default transform: a
    sampler sees :math:`v = R^{-1}(u - m)`, and the trace has u in the units of the function. A
    `shape` of (K, M) is that of K independent functions with this prior.
    """

    rv_type = InducingRV
    rv_op = InducingRV.rv_op

    @classmethod
    def dist(cls, mean, chol, *pattern, **kwargs):
        """Return the variable without registering it in a model."""
        # A transform sees the inputs of its variable and nothing else, so sites are among them.
        last = (*pattern, NO_COLUMNS) if pattern else ()
        return super().dist([mean, chol, *NO_SITES, *last], **kwargs)


class CoefficientsRV(InducingRV):
    """Independent normals given by their means and standard deviations."""

    name = "coefficients"
    extended_signature = "[rng],(m),(m),(k,s),(k,t,w)->[rng],(m)"
    _print_name = ("Coefficients", "\\operatorname{Coefficients}")


class Coefficients(Inducing):
    r"""Coefficients of a Gaussian process that are independent a priori.

    .. math:: u_j \sim N(m_j, s_j^2)

    As :class:`Inducing`, with a vector s in place of the factor.
    """

    rv_type = CoefficientsRV
    rv_op = CoefficientsRV.rv_op


class NeighborsRV(InducingRV):
    """Normals of which each depends on a few others."""

    name = "neighbors"
    extended_signature = "[rng],(m),(m,p),(k,s),(k,s,t),(m,q),(m),(n,c)->[rng],(m)"
    _print_name = ("Neighbors", "\\operatorname{Neighbors}")


class Neighbors(Inducing):
    r"""Values of a Gaussian process that depend on those of a few neighbors each.

    .. math:: u_i \sim N(m_i + b_i^\top (u_{N(i)} - m_{N(i)}),\; s_i^2)

    As :class:`Inducing`, with a factor that has the weights b and, in the last column, s; who the
    neighbors are, M x m, and -1 for none; and an order in which each comes after its neighbors.
    """

    rv_type = NeighborsRV
    rv_op = NeighborsRV.rv_op


def inducing_variable(name: str, prior: InducingPrior, **kwargs):
    """Put inducing variables with this prior into the model on the context stack."""
    if prior.pattern:
        return Neighbors(name, prior.mean, prior.factor, *prior.pattern, **kwargs)
    make = Inducing if prior.factor.type.ndim == 2 else Coefficients
    return make(name, prior.mean, prior.factor, **kwargs)


def inducing_variables(model: Model) -> list[TensorVariable]:
    """Return the inducing values of the model's processes."""
    return [rv for rv in model.free_RVs if is_inducing(rv)]


def value_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the unconstrained values of a model, by name.

    Most types know them. PyMC would compile the point that it starts at, which takes far longer
    than all else that is asked of the shapes.
    """
    shapes = {v.name: tuple(v.type.shape) for v in model.value_vars}
    if any(None in shape for shape in shapes.values()):
        return {name: np.shape(x) for name, x in model.initial_point().items()}
    return shapes


def number_together(model: Model, shapes: Mapping[TensorVariable, Any]) -> int:
    """Return how many inducing values, of these shapes, share their coordinates."""
    transforms = model.rvs_to_transforms
    us = [u for u in inducing_variables(model) if isinstance(transforms[u], Together)]
    return sum(int(np.prod(shapes[model.rvs_to_values[u]])) for u in us)


def is_inducing(variable) -> bool:
    """Whether these are inducing values."""
    return variable.owner is not None and isinstance(variable.owner.op, InducingRV)


def is_sparse(u) -> bool:
    """Whether each inducing variable depends on a few others."""
    return isinstance(u.owner.op, NeighborsRV)


def is_independent(u) -> bool:
    """Whether inducing variables are independent a priori."""
    return isinstance(u.owner.op, CoefficientsRV)


def whitened(u) -> Whitened:
    """Return the whitened coordinates of inducing variables."""
    return Sparse() if is_sparse(u) else Whitened()


@_default_transform.register(InducingRV)
def inducing_default_transform(op, rv):
    """Whiten."""
    return whitened(rv)


@_support_point.register(InducingRV)
def inducing_support_point(op, rv, rng, mean, *others):
    """Start at the prior mean."""
    return pt.broadcast_to(mean, rv.shape)


@_logprob.register(InducingRV)
def inducing_logprob(op, values, rng, mean, chol, linear, root, *pattern, **kwargs):
    """Log density, from the whitened values."""
    (u,) = values
    if pattern:
        v, scale = sparse_whiten(u, mean, chol, pattern[0]), chol[:, -1]
    else:
        v, scale = whiten(u, mean, chol), chol
    normalizer = log_determinant(scale) + v.shape[-1] * np.log(2 * np.pi) / 2
    return guarded(-0.5 * pt.sum(v**2, axis=-1) - normalizer, chol)
