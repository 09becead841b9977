r"""Normal variables of a model as one vector of standard normals, given everything else.

A step of inducing values, or of the values of a ``pm.gp.Latent``, is easiest in coordinates where
their prior is :math:`N(0, I)` for any kernel. Much of the log density doesn't depend on them: the
kernel, its factor, and what else the moments of f are made of. With the parameters held, all that
is computed once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import DataClassState, dataclass_state
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.linalg import cholesky, solve_triangular
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from rich.progress import TextColumn
from rich.table import Column

from pymc_vsgp.compile import function, simplify
from pymc_vsgp.engine.blocks import stack_latents
from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.fit.bound import split, whitened_coordinates
from pymc_vsgp.inducing.base import ConditionalMoments
from pymc_vsgp.inducing.graphs import Moments, frontier, inline
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.model.variable import (
    InducingRV,
    inducing_variables,
    is_inducing,
    value_shapes,
    whitened,
)
from pymc_vsgp.ops.cholesky import guarded

HELD_BYTES = 1_000_000_000
"""A matrix of rows by inducing values larger than this is not held: each evaluation makes it."""


class _Normal:
    """A variable that is normal given the others."""

    def __init__(self, model: Model, rv: Variable):
        op, parameters = rv.owner.op, rv.owner.inputs
        transform = model.rvs_to_transforms[rv]
        if isinstance(op, InducingRV):
            mean, root = parameters[1:3]
        elif isinstance(op, MvNormalRV | NormalRV) and transform is None:
            mean, root = op.dist_params(rv.owner)
        else:
            raise ValueError(
                f"{rv.name} is not normal given the other variables. Pass inducing values, or "
                "values of pm.gp.Latent, pm.MvNormal or pm.Normal without a transform."
            )
        self.rv, self.value, self.transform = rv, model.rvs_to_values[rv], transform
        self.kind = InducingRV if isinstance(op, InducingRV) else type(op)
        self.mean, self.root = model.replace_rvs_by_values([mean, root])
        self.is_inducing = self.kind is InducingRV
        if self.kind is MvNormalRV:
            self.root = cholesky(self.root, lower=True)
        (self.of_values,) = model.replace_rvs_by_values([rv])
        # The first input is a generator, which no transform looks at.
        first, *others = parameters
        self.inputs = [first, *model.replace_rvs_by_values(others)]

    def whitened(self) -> Variable:
        """Return the standard normals that the value variables stand for."""
        u, mean, root = self.of_values, self.mean, self.root
        if self.is_inducing:
            return whitened(self.rv).forward(u, *self.inputs)
        if self.kind is NormalRV:
            return (u - mean) / root
        return solve_triangular(root, (u - mean)[..., None], lower=True, b_ndim=2)[..., 0]

    def unwhitened(self, nu) -> Variable:
        """Return the variable that standard normals stand for."""
        if self.is_inducing:
            return whitened(self.rv).backward(nu, *self.inputs)
        if self.kind is NormalRV:
            return self.mean + self.root * nu
        return self.mean + pt.matmul(self.root, nu[..., None])[..., 0]

    def forward(self, u) -> Variable:
        """Return the value variable of u."""
        return u if self.transform is None else self.transform.forward(u, *self.inputs)


class Latents:
    """Variables of a model that are normal given the others, and what the others say of them.

    `vars` are inducing values, values of ``pm.gp.Latent``, or other normal variables.
    """

    def __init__(self, vars: Sequence[Variable], model: Model, compile_kwargs=None):
        self.model, self.compile_kwargs = model, {"mode": None} | dict(compile_kwargs or {})
        rvs = list(dict.fromkeys(_random_variable(v, model) for v in listed(vars, "vars")))
        self.members = [_Normal(model, rv) for rv in rvs]
        self.values = [m.value for m in self.members]
        for m in self.members:
            if set(self.values) & set(ancestors([m.mean, m.root])):
                raise ValueError(
                    f"The prior of {m.rv.name} depends on another of the variables, so that they "
                    "are not normal together. Use one step for each."
                )
        self.kinds = self._kinds()
        self.inputs = list(model.value_vars)
        known = value_shapes(model)
        shapes = [known[v.name] for v in self.values]
        self.shapes = dict(zip((v.name for v in self.values), shapes, strict=True))
        self.size = sum(int(np.prod(s)) for s in shapes)
        self.nu = pt.dvector("nu")
        parts = split(self.nu, shapes)
        self.u = [m.unwhitened(x) for m, x in zip(self.members, parts, strict=True)]
        self.whitened = pt.concatenate([m.whitened().ravel() for m in self.members])
        self.log_likelihood = self._log_likelihood(parts)
        self.new_values = [m.forward(u) for m, u in zip(self.members, self.u, strict=True)]

    def _log_likelihood(self, parts) -> Variable:
        """Return the log density of all other variables, potentials included, as a graph of nu."""
        model, rvs = self.model, {m.rv for m in self.members}
        terms = [rv for rv in model.basic_RVs if rv not in rvs]
        with whitened_coordinates(model, [m.rv for m in self.members if m.is_inducing]):
            logp = model.logp(vars=[*terms, *model.potentials])
        # The density of the members, which is left out, says where a kernel has no factor.
        logp = simplify(guarded(logp, logp))
        inducing = [m.is_inducing for m in self.members]
        swaps = {
            m.value: x if whitened else u
            for m, x, u, whitened in zip(self.members, parts, self.u, inducing, strict=True)
        }
        (logp,) = graph_replace([logp], swaps, strict=False)
        if self.nu not in ancestors([logp]):
            names = [m.rv.name for m in self.members]
            raise ValueError(
                f"Nothing in the model depends on {names}. Add a likelihood, or leave it to "
                "pm.sample_prior_predictive."
            )
        return logp

    def given_others(self, *groups: Sequence[Variable]) -> list[Any]:
        """Compile graphs of nu and the values of the model in two steps.

        The first function takes a point of the model. It returns nu there, and what is needed
        besides nu, which each of the other functions takes after nu: one for each group of outputs.
        """
        outputs = simplify([self.whitened, *(v for group in groups for v in group)])
        nu, outputs = outputs[0], hold(outputs[1:], self.nu, self.size)
        known = frontier(outputs, [self.nu])
        stand_ins = [v.type() for v in known]
        after = graph_replace(outputs, dict(zip(known, stand_ins, strict=True)), strict=False)
        rest = iter(after)
        functions = [
            function([self.nu, *stand_ins], [next(rest) for _ in group], **self.compile_kwargs)
            for group in groups
        ]
        prepare = function(self.inputs, [nu, *known], **self.compile_kwargs)
        for fn in (prepare, *functions):
            fn.trust_input = True
        return [lambda point: prepare(*self.at(point)), *functions]

    def at(self, point) -> list[np.ndarray]:
        """Return the values of the model, in the order of `inputs`."""
        for name, shape in self.shapes.items():
            if np.shape(point[name]) != shape:
                raise ValueError(
                    f"{name} has shape {np.shape(point[name])}, and had {shape} when the step was "
                    "built. Build the step after the data are set."
                )
        return [np.asarray(point[v.name], dtype=v.dtype) for v in self.inputs]

    def check_coordinates(self) -> None:
        """Raise if the sampler's coordinates have changed."""
        if self._kinds() != self.kinds:
            raise ValueError(
                "The step was built before a Gaussian stage changed the sampler's coordinates. "
                "Build the step after fit_gaussian or reset."
            )

    def _kinds(self):
        """Of the members, and of processes beside them, which the log density has as they are."""
        rvs = dict.fromkeys([*(m.rv for m in self.members), *inducing_variables(self.model)])
        return [(type(self.model.rvs_to_transforms[rv]), *_sites(rv)) for rv in rvs]


@dataclass_state
class UpdatingState(StepMethodState):
    """What a step that is resumed needs to know: how many updates it makes."""

    n_updates: int


class LatentStep(BlockedStep):
    """A step of latent values, in coordinates that must be those that it was built in."""

    latents: Latents
    shown: dict[str, tuple[str, str]] = {}
    """Statistics in the progress bar, with their titles and formats."""
    _state_class: type[DataClassState] = UpdatingState

    def __new__(cls, *args, **kwargs):
        """Say what is wrong with an empty list of variables: PyMC says that a model has none."""
        vars = kwargs.get("vars", args[0] if args else None)
        if isinstance(vars, list | tuple):
            listed(vars, "vars")
        return super().__new__(cls, *args, **kwargs)

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Begin a chain."""
        self.latents.check_coordinates()
        super().setup_chain(rng, tune, draws)

    @classmethod
    def _progressbar_config(cls, n_chains=1):
        columns = [
            TextColumn(f"{{task.fields[{name}]:{form}}}", table_column=Column(title, ratio=1))
            for name, (title, form) in cls.shown.items()
        ]
        return columns, {name: [0] * n_chains for name in cls.shown}

    @classmethod
    def _make_progressbar_update_functions(cls):
        return (lambda stats: {name: stats[name] for name in cls.shown},)


def listed(vars: Any, what: str) -> list[Variable]:
    """Return a list of variables, or raise TypeError where there are none."""
    found = list(vars) if isinstance(vars, list | tuple) else [vars]
    if not found or not all(isinstance(v, Variable) for v in found):
        raise TypeError(f"{what} is {vars!r}. Pass a list of random variables of the model.")
    return found


def _random_variable(var: Variable, model: Model) -> Variable:
    """Return the free random variable that is meant."""
    rv = model.values_to_rvs.get(var, var)
    if rv in model.deterministics:
        # pm.gp.Latent makes its values of standard normals with this name.
        rv = model.named_vars.get(f"{rv.name}_rotated_", rv)
    if rv not in model.free_RVs:
        raise ValueError(
            f"{getattr(var, 'name', None) or var} is not a free random variable of the model. "
            "Pass inducing values, or values of pm.gp.Latent."
        )
    return rv


def hold(outputs: Sequence[Variable], nu: Variable, size: int) -> list[Variable]:
    """Write loops over the data that depend on nu as ordinary graphs, where memory allows."""
    swaps: dict[Variable, Variable] = {}
    for node in nodes_after(outputs, nu):
        if isinstance(node.op, ConditionalMoments):
            swaps |= dict(zip(node.outputs, inline(node.op, *node.inputs), strict=True))
        elif isinstance(node.op, BlockSum):
            rows = int(function([], node.inputs[0].shape[0])())
            if 8 * rows * size <= HELD_BYTES:
                terms = terms_of(node)[1]
                swaps[node.outputs[0]] = pt.sum(node.inputs[0] * terms)
                swaps[node.outputs[node.op.n_sums]] = terms
    return list(graph_replace(list(outputs), swaps, strict=False)) if swaps else list(outputs)


def terms_of(node: Apply, at: Variable | None = None) -> tuple[Moments, Variable]:
    """Return the moments of f, and the terms of a loop over the data there or at another mean."""
    recipe, inputs = node.op.recipe, node.inputs
    moments = [p.conditional.moments(inputs[p.X], p.args(inputs))[1] for p in recipe.parts]
    mu, gamma = stack_latents(moments)
    if at is not None and at.type.ndim == 2:
        # Variances take the shape of the means, and nothing else of them.
        swaps, i = {}, 0
        for m in moments:
            alone = m.mu.type.ndim == 1
            width = 1 if alone else (m.mu.type.shape[1] or at.shape[1])
            swaps[m.mu] = pt.specify_shape(
                at[:, i] if alone else at[:, i : i + width], m.mu.type.shape
            )
            i = i + width
        (gamma,) = graph_replace([gamma], swaps, strict=False)
    lik, y = seen_by(node)
    return Moments(mu, gamma), lik.expected_logp(mu if at is None else at, gamma, y)


def seen_by(node: Apply) -> tuple[Likelihood, Variable]:
    """Return the likelihood of a loop over the data, at its parameters, and the observations."""
    recipe, inputs = node.op.recipe, node.inputs
    lik = recipe.likelihood.replace(**{n: inputs[i] for n, i in recipe.params.items()})
    return lik, inputs[1]


def _sites(rv: Variable) -> list[Variable]:
    """Return the variables that the sites of inducing values are in: after a reset, others."""
    inputs = rv.owner.inputs[3:] if is_inducing(rv) else []
    return [x for x in inputs if not isinstance(x, Constant)]


def nodes_after(outputs, of: Variable) -> list[Apply]:
    """Return the nodes of a graph that depend on a variable."""
    depends, found = {of}, []
    for node in io_toposort([], list(outputs)):
        if depends & set(node.inputs):
            depends.update(node.outputs)
            found.append(node)
    return found
