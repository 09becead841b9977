"""The sum over the data, point by point.

Everything that the rest of the package knows of the data is behind two functions: :func:`observe`
gives the observed variable, whose log density is the vector of variational potentials, and
:func:`total` is their sum.
"""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.distributions.distribution import Distribution, SymbolicRandomVariable
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.logprob.abstract import _logprob
from pymc.pytensorf import collect_default_updates
from pytensor.graph.basic import Constant
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.engine.blocks import stack_latents, stream
from pymc_vsgp.inducing.graphs import Moments
from pymc_vsgp.likelihoods.base import Likelihood

SMALL = "int8", "uint8", "int16", "uint16"


def terms(likelihood: Likelihood, moments: Sequence[Moments], y, block_size=None) -> TensorVariable:
    """Expected log density of each observation.

    As the output of a loop over blocks of the data that has their sum and its gradient too, and
    takes over where the sum is asked for; with ``block_size=False`` as an ordinary graph.
    """
    y = pt.as_tensor(y)
    if y.dtype in SMALL:  # of which functions are computed in single precision
        y = pt.cast(y, "int64")
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
    arguments = [part for m in moments for part in m] + list(likelihood.params.values())
    return Observed(
        name,
        *arguments,
        likelihood=likelihood,
        n_processes=len(moments),
        block_size=block_size,
        floats=likelihood.ndim_y > 0 and _may_miss(kwargs.get("observed")),
        **kwargs,
    )


def _may_miss(y) -> bool:
    """Whether observations have nan for those that are missing, or may have after a set_data."""
    if y is None or not y.dtype.startswith("float"):
        return False
    return not isinstance(y, Constant) or bool(np.isnan(y.data).any())


class Drawable(CheckAndRaise):
    """Raise before observations are drawn where the function is nan; JAX can't.

    Counts given nan are 0 on numba, and draws of some other families never end.
    """

    def __init__(self):
        super().__init__(
            ValueError,
            "The function is nan at some inputs, so no observations can be drawn. If pm.set_data "
            "changed data, let vsgp.check_model() name the row; else narrow the kernel's priors.",
        )

    def __str__(self):
        """Name it in printed graphs."""
        return type(self).__name__


class ObservationRV(SymbolicRandomVariable):
    """Observations given the moments of each process, then the parameters of the likelihood.

    A class of this module, and not one that ``pm.CustomDist`` makes up: only so a model knows its
    log density in another process. Where it draws `floats`, so do counts: PyMC casts what is
    observed to the dtype of draws, and no integer is nan.
    """

    default_output = 0

    def __init__(
        self, *args, likelihood: Likelihood, n_processes: int, block_size, floats: bool, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.likelihood, self.n_processes, self.block_size = likelihood, n_processes, block_size
        self.floats = floats
        self.name = type(likelihood).__name__  # in graphs that PyMC draws of models
        self._print_name = (self.name, f"\\operatorname{{{self.name}}}")

    def rv_op(self, *params, size=None, rng=None):
        """Return the variable with other parameters or another size."""
        own = self.likelihood, self.n_processes, self.block_size, self.floats
        return _observation(params, size, rng, *own)

    def likelihood_of(self, node) -> Likelihood:
        """Return the likelihood with the parameters of one variable."""
        return _split(self.dist_params(node), self.likelihood, self.n_processes)[1]


class Observed(Distribution):
    """The distribution of `ObservationRV`."""

    rv_type = ObservationRV

    @classmethod
    def dist(cls, *arguments, **kwargs):
        """Return the variable without registering it in a model."""
        return super().dist(arguments, **kwargs)

    @classmethod
    def rv_op(cls, *params, likelihood, n_processes, block_size, floats, size=None, rng=None):
        """Build the graph of a draw."""
        return _observation(params, size, rng, likelihood, n_processes, block_size, floats)


def _observation(params, size, rng, likelihood, n_processes, block_size, floats):
    size = normalize_size_param(size)
    # A size of None is a constant, of which there are no others.
    size_in = size.type() if isinstance(size, TensorVariable) else size
    inner = [p.type() for p in params]
    groups, lik = _split(inner, likelihood, n_processes)
    draw = lik.dist(draw_latents(groups, size_in))
    draw = draw.astype("float64") if floats else draw
    updates = collect_default_updates(inputs=[size_in, *inner], outputs=(draw,))
    # Core dimensions: the functions of a process, and parameters that all rows share.
    core = [part for m in groups for part in ("(k)" if m.mu.type.ndim == 2 else "()", "()")]
    core += [
        _core(n, p.type.ndim if n in lik.shared_params else max(p.type.ndim - 1, 0))
        for n, p in lik.params.items()
    ]
    rngs = ["[rng]"] * len(updates)
    takes = ",".join(["[size]", *_distinct(core), *rngs])
    gives = ",".join(["(out)" if lik.ndim_y == 1 else "()", *rngs])
    op = ObservationRV(
        [size_in, *inner, *updates.keys()],
        [draw, *updates.values()],
        extended_signature=f"{takes}->{gives}",
        likelihood=lik,
        n_processes=n_processes,
        block_size=block_size,
        floats=floats,
    )
    given = list(updates) if rng is None or len(updates) != 1 else [rng]
    return op(size, *params, *given)


def _split(arguments, likelihood: Likelihood, n_processes: int):
    """Return the moments of each process, and the likelihood with its parameters."""
    n = 2 * n_processes
    groups = [Moments(*arguments[i : i + 2]) for i in range(0, n, 2)]
    # After the parameters there may be generators.
    return groups, likelihood.replace(**dict(zip(likelihood.params, arguments[n:], strict=False)))


@_logprob.register(ObservationRV)
def observation_logprob(op, values, size, *arguments, **kwargs):
    """Return the variational potential of each observation."""
    (y,) = values
    groups, lik = _split(arguments, op.likelihood, op.n_processes)
    return terms(lik, groups, y, op.block_size)


def draw_latents(moments: Sequence[Moments], size) -> TensorVariable:
    """Draw the functions at each input on its own; several are on the last axis."""
    alone = len(moments) == 1 and moments[0].mu.type.ndim == 1
    columns = []
    for mu, gamma in moments:
        mu = Drawable()(mu, ~pt.any(pt.isnan(mu)), ~pt.any(pt.isnan(gamma)))
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
