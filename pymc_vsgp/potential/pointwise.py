"""The sum over the data, point by point.

Everything that the rest of the package knows of the data is behind two functions: :func:`observe`
gives the observed variable, whose log density is the vector of variational potentials, and
:func:`total` is their sum.
"""

import pymc as pm
import pytensor.tensor as pt

from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.potential.blocks import stream
from pymc_vsgp.potential.moments import Moments

__all__ = ["observe", "total"]


def terms(likelihood: Likelihood, moments: Moments, y, block_size=None) -> TensorVariable:
    """Expected log density of each observation.

    As the output of a loop over blocks of the data that has their sum and its gradient too, and
    takes over where the sum is asked for; with ``block_size=False`` as an ordinary graph.
    """
    y = pt.as_tensor(y)
    streamed = None if block_size is False else stream(likelihood, [moments], y, block_size)
    if streamed is None:
        return likelihood.expected_logp(moments.mu, moments.gamma, y)
    return streamed[1]


def total(likelihood: Likelihood, moments: Moments, y, block_size=None) -> TensorVariable:
    """Sum over the data of the expected log density of y."""
    return pt.sum(terms(likelihood, moments, y, block_size))


def observe(
    name: str, likelihood: Likelihood, moments: Moments, block_size=None, **kwargs
) -> TensorVariable:
    r"""Register y in the model on the context stack.

    A draw of y takes :math:`f \sim N(\mu, \gamma)` and then y given f; the log density is the
    expectation of :math:`\log p(y \mid f)` under that normal. With both in one variable,
    predictive checks, ``observed_data``, the model graph and pointwise groups all work.
    """
    names = list(likelihood.params)

    def dist(mu, gamma, *args):
        *params, size = args
        lik = likelihood.replace(**dict(zip(names, params, strict=True)))
        return lik.dist(pm.Normal.dist(mu, pt.sqrt(gamma), size=size))

    def logp(value, mu, gamma, *params):
        lik = likelihood.replace(**dict(zip(names, params, strict=True)))
        return terms(lik, Moments(mu, gamma), value, block_size)

    return pm.CustomDist(
        name,
        *moments,
        *likelihood.params.values(),
        dist=dist,
        logp=logp,
        class_name=type(likelihood).__name__,
        **kwargs,
    )
