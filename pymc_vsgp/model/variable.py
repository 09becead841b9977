"""The inducing variables, values or coefficients of the function, as random variables."""

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.distribution import Distribution, SymbolicRandomVariable, _support_point
from pymc.distributions.shape_utils import implicit_size_from_params, rv_size_is_none
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import _logprob
from pymc.pytensorf import normalize_rng_param
from pytensor.tensor.random.utils import normalize_size_param

from pymc_vsgp.inducing.coordinates import Whitened, log_determinant, unwhiten, whiten
from pymc_vsgp.ops.cholesky import guarded

__all__ = ["Coefficients", "Inducing", "InducingRV", "is_independent"]

NO_SITES = (np.zeros((1, 0)), np.zeros((1, 0, 0)))
"""Sites of a variable until a Gaussian stage sets them; see `coordinates.Tied`."""


class InducingRV(SymbolicRandomVariable):
    """Multivariate normal given by its mean and the Cholesky factor of its covariance."""

    name = "inducing"
    extended_signature = "[rng],(m),(m,m),(k,s),(k,s,s)->[rng],(m)"
    _print_name = ("Inducing", "\\operatorname{Inducing}")

    @classmethod
    def rv_op(cls, mean, chol, linear, root, *, size=None, rng=None):
        """Build the graph of a draw."""
        mean, chol, linear, root = (pt.as_tensor(x) for x in (mean, chol, linear, root))
        rng = normalize_rng_param(rng)
        size = normalize_size_param(size)
        if rv_size_is_none(size):
            size = implicit_size_from_params(mean, chol, ndims_params=(1, chol.type.ndim))
        next_rng, v = pt.random.normal(size=(*size, mean.shape[-1]), rng=rng, return_next_rng=True)
        many = v.type.ndim > 1 and chol.type.ndim == 2
        draw = mean + v @ chol.T if many else unwhiten(v, mean, chol)
        # A draw does not depend on the sites, whose shape changes when they are set.
        unused = [pt.tensor(dtype="float64", shape=(None,) * n) for n in (2, 3)]
        op = cls(inputs=[rng, mean, chol, *unused], outputs=[next_rng, draw])
        return op(rng, mean, chol, linear, root)


class Inducing(Distribution):
    r"""Values of a Gaussian process at its inducing inputs.

    .. math:: u \sim N(m, R R^\top)

    The same density as ``pm.MvNormal(mu=m, chol=R)``. What it adds is the default transform: a
    sampler sees :math:`v = R^{-1}(u - m)`, and the trace has u in the units of the function.

    Parameters
    ----------
    mean : tensor_like of float
        Prior mean at the inducing inputs, shape (M,).
    chol : tensor_like of float
        Lower Cholesky factor of the prior covariance, shape (M, M).
    shape : tuple of int, optional
        (K, M) for the values of K independent functions with this prior.
    """

    rv_type = InducingRV
    rv_op = InducingRV.rv_op

    @classmethod
    def dist(cls, mean, chol, **kwargs):
        """Return the variable without registering it in a model."""
        # A transform sees the inputs of its variable and nothing else, so sites are among them.
        return super().dist([mean, chol, *NO_SITES], **kwargs)


class CoefficientsRV(InducingRV):
    """Independent normals given by their means and standard deviations."""

    name = "coefficients"
    extended_signature = "[rng],(m),(m),(k,s),(k,s,t)->[rng],(m)"
    _print_name = ("Coefficients", "\\operatorname{Coefficients}")


class Coefficients(Inducing):
    r"""Coefficients of a Gaussian process that are independent a priori.

    .. math:: u_j \sim N(m_j, s_j^2)

    As :class:`Inducing`: a sampler sees :math:`(u - m) / s`.

    Parameters
    ----------
    mean : tensor_like of float
        Prior means, shape (M,).
    chol : tensor_like of float
        Prior standard deviations, shape (M,).
    shape : tuple of int, optional
        (K, M) for the coefficients of K independent functions with this prior.
    """

    rv_type = CoefficientsRV
    rv_op = CoefficientsRV.rv_op


def is_independent(u) -> bool:
    """Whether inducing variables are independent a priori."""
    return isinstance(u.owner.op, CoefficientsRV)


@_default_transform.register(InducingRV)
def inducing_default_transform(op, rv):
    """Whiten."""
    return Whitened()


@_support_point.register(InducingRV)
def inducing_support_point(op, rv, rng, mean, chol, linear, root):
    """Start at the prior mean."""
    return pt.broadcast_to(mean, rv.shape)


@_logprob.register(InducingRV)
def inducing_logprob(op, values, rng, mean, chol, linear, root, **kwargs):
    """Log density, from the whitened values."""
    (u,) = values
    v = whiten(u, mean, chol)
    normalizer = log_determinant(chol) + v.shape[-1] * np.log(2 * np.pi) / 2
    return guarded(-0.5 * pt.sum(v**2, axis=-1) - normalizer, chol)
