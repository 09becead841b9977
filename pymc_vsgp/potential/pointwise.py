"""The sum over the data, point by point.

Everything that the rest of the package knows of the data is behind two functions: :func:`observe`
gives the observed variable, whose log density is the vector of variational potentials, and
:func:`total` is their sum.
"""

from collections.abc import Sequence

import pymc as pm
import pytensor.tensor as pt

from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.potential.blocks import stack_latents, stream
from pymc_vsgp.potential.moments import Moments

__all__ = ["observe", "total"]


def terms(likelihood: Likelihood, moments: Sequence[Moments], y, block_size=None) -> TensorVariable:
    """Expected log density of each observation.

    As the output of a loop over blocks of the data that has their sum and its gradient too, and
    takes over where the sum is asked for; with ``block_size=False`` as an ordinary graph.
    """
    y = pt.as_tensor(y)
    streamed = None if block_size is False else stream(likelihood, moments, y, block_size)
    if streamed is None:
        return likelihood.expected_logp(*stack_latents(moments), y)
    return streamed[1]


def total(likelihood: Likelihood, moments: Sequence[Moments], y, block_size=None) -> TensorVariable:
    """Sum over the data of the expected log density of y."""
    return pt.sum(terms(likelihood, moments, y, block_size))


def observe(
    name: str, likelihood: Likelihood, moments: Sequence[Moments], block_size=None, **kwargs
) -> TensorVariable:
    r"""Register y in the model on the context stack.

    A draw of y takes :math:`f \sim N(\mu, \gamma)` and then y given f; the log density is the
    expectation of :math:`\log p(y \mid f)` under that normal. With both in one variable,
    predictive checks, ``observed_data``, the model graph and pointwise groups all work.

    Each process brings its moments, vectors for one function and a matrix mu for several. They
    are inputs of their own, so that the log density sees what they were made of.
    """
    names = list(likelihood.params)
    n_moments = 2 * len(moments)

    def split(args):
        pairs, params = args[:n_moments], args[n_moments:]
        groups = [Moments(*pairs[i : i + 2]) for i in range(0, n_moments, 2)]
        return groups, likelihood.replace(**dict(zip(names, params, strict=True)))

    def dist(*args):
        groups, lik = split(args[:-1])
        return lik.dist(draw_latents(groups, args[-1]))

    def logp(value, *args):
        groups, lik = split(args)
        return terms(lik, groups, value, block_size)

    # Core dimensions: the functions of a process, and parameters that all rows share.
    core = [part for m in moments for part in ("(k)" if m.mu.type.ndim == 2 else "()", "()")]
    core += [
        _core(n, p.type.ndim if n in likelihood.shared_params else max(p.type.ndim - 1, 0))
        for n, p in likelihood.params.items()
    ]
    out = "(out)" if likelihood.ndim_y == 1 else "()"
    return pm.CustomDist(
        name,
        *(part for m in moments for part in m),
        *likelihood.params.values(),
        dist=dist,
        logp=logp,
        signature=f"{','.join(_distinct(core))}->{out}",
        class_name=type(likelihood).__name__,
        **kwargs,
    )


def draw_latents(moments: Sequence[Moments], size) -> TensorVariable:
    """Draw the functions at each input on its own; several are on the last axis."""
    alone = len(moments) == 1 and moments[0].mu.type.ndim == 1
    columns = []
    for mu, gamma in moments:
        if alone:
            return pm.Normal.dist(mu, pt.sqrt(gamma), size=size)
        if mu.type.ndim == 1:
            mu = mu[:, None]
        shape = None if rv_size_is_none(size) else (*size, mu.shape[-1])
        columns.append(pm.Normal.dist(mu, pt.sqrt(gamma)[:, None], size=shape))
    return pt.concatenate(columns, axis=-1)


def _core(name: str, ndim: int) -> str:
    return f"({','.join(f'{name}{i}' for i in range(ndim))})"


def _distinct(core: list[str]) -> list[str]:
    """Give the functions of each process a name of their own: their numbers differ."""
    return [c.replace("(k)", f"(k{i})") for i, c in enumerate(core)]
