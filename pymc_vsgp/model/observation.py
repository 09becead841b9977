"""The likelihoods of a model, as graphs of its random variables: which process, kernel and data."""

import weakref

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_vsgp.compile import at_points
from pymc_vsgp.engine.streaming import BlockSum, block_sums
from pymc_vsgp.inducing.base import Conditional, ConditionalMoments, Process
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.model.variable import inducing_variables, is_inducing

MOST_PARAMETERS = 30
"""Numbers in those of likelihoods that sites follow: each takes an evaluation of the ELBO."""

# Of observed variables, their values, shapes of data, and log densities.
_TERMS: "weakref.WeakKeyDictionary[Variable, tuple]" = weakref.WeakKeyDictionary()


class Observation(NamedTuple):
    """One likelihood of a model, as graphs of the model's random variables."""

    name: str
    likelihood: Likelihood
    parts: tuple[Process, ...]
    X: Variable
    y: Variable
    row_params: tuple[str, ...]
    order: Variable | None = None
    """What puts rows with equal inputs next to each other; see `inducing.repeats`."""


def processes(model: Model) -> dict[str, Process]:
    """Return the processes that observations of a model are of, by the name of u."""
    found: dict[str, Process] = {}
    for conditional, _, args in _observed_parts(model):
        name = conditional.process
        if name not in found:
            found[name] = Process(model[name], conditional, conditional.user_args(args))
    return found


def fixed_inducing(model: Model) -> list[str]:
    """Return the names of inducing values that observations have, and that are not free."""
    names = dict.fromkeys(conditional.process for conditional, *_ in _observed_parts(model))
    free = {rv.name for rv in model.root.free_RVs}
    return [name for name in names if name not in free]


def require_inducing(model: Model) -> list[Variable]:
    """Return the inducing values of the model's processes; raise where there are none."""
    found = inducing_variables(model)
    if not found:
        if names := fixed_inducing(model):
            raise ValueError(
                f"The inducing values {names[0]!r} are fixed, as by pm.do or pm.observe, and there "
                "are no others. Use functions of PyMC with this model, such as pm.sample()."
            )
        raise ValueError(
            "The model has no variationally sparse process. "
            "Add one with vsgp.VariationalSparse and call its prior and likelihood."
        )
    return found


def data_inputs(model: Model) -> list[Variable]:
    """Return the inputs of every likelihood of the model's processes."""
    return [X for _, X, _ in _observed_parts(model)]


def _observed_parts(model: Model) -> Iterator[tuple[Conditional, Variable, list[Variable]]]:
    """Yield p(f | u), the inputs and the args of each process at each likelihood."""
    terms = [*model.observed_RVs, *model.potentials]
    for node in dict.fromkeys(v.owner for v in ancestors(terms) if v.owner is not None):
        if isinstance(node.op, ConditionalMoments):
            X, *args = node.inputs
            yield node.op.conditional, X, args
        elif isinstance(node.op, BlockSum):
            for p in node.op.recipe.parts:
                yield p.conditional, node.inputs[p.X], p.args(node.inputs)


def observations(model: Model) -> dict[str, Observation]:
    """Return the likelihoods of a model's sparse processes, by name."""
    found = {}
    for rv in model.observed_RVs:
        if any(is_inducing(a) for a in ancestors([rv])):
            found[rv.name] = _observation(model.root, rv.name, _terms_of(model, rv))
    for potential in model.potentials:
        found[potential.name] = _observation(model.root, potential.name, potential)
    return {name: o for name, o in found.items() if o is not None}


def _terms_of(model: Model, rv: Variable) -> Variable:
    """Return the log densities of observations, which are built once for data of one length."""
    value, data = model.rvs_to_values[rv], model.root.data_vars
    shapes = [v.get_value(borrow=True).shape for v in data if isinstance(v, SharedVariable)]
    known = _TERMS.get(rv)
    if known is None or known[0] is not value or known[1] != shapes:
        known = _TERMS[rv] = value, shapes, pm.logp(rv, value, warn_rvs=False)
    return known[2]


def unstreamed(model: Model) -> list[str]:
    """Return the names of other likelihoods of its sparse processes, which `observations` lacks."""
    terms = [rv.name for rv in model.observed_RVs if any(is_inducing(a) for a in ancestors([rv]))]
    for potential in model.potentials:  # not those of the inducing values alone
        ops = (v.owner.op for v in ancestors([potential]) if v.owner is not None)
        terms += [potential.name] if any(isinstance(op, ConditionalMoments) for op in ops) else []
    known = observations(model)
    return [name for name in terms if name not in known]


def parameters(model: Model, u: Variable) -> list[Variable]:
    """Return the random variables that likelihoods of a process depend on, if they are few.

    They are those that stand between the likelihood and all others, such as coefficients of a
    regression, and none that depends on the inducing values itself. For Fourier coefficients,
    which are not in the units of the function, they include those of the mean function; and so
    they do for other functions that share data with such ones.
    """
    given: list[Variable] = []
    for of in observations(model).values():
        if all(p.u is not u for p in of.parts):
            continue
        given += of.likelihood.params.values()
        for p in of.parts:
            basis = p.conditional.basis
            given += [] if basis is None else p.args[basis.theta]
    free = set(model.free_RVs)
    found = set(ancestors(given, blockers=free)) & free
    some = [rv for rv in model.free_RVs if rv in found]
    some = [rv for rv in some if not any(map(is_inducing, ancestors([rv])))]
    sizes = model.eval_rv_shapes() if some else {}
    return some if sum(int(np.prod(sizes[rv.name])) for rv in some) <= MOST_PARAMETERS else []


def n_sharing(model: Model) -> int:
    """Return how many functions share a likelihood, at most."""
    return max((o.likelihood.n_latent or 1 for o in observations(model).values()), default=1)


def has_random_weights(model: Model) -> bool:
    """Whether outputs are mixtures of functions whose weights are random variables."""
    of = (o.likelihood for o in observations(model).values())
    weights = [m.params["W"] for m in of if isinstance(m, Mixed) and m.ndim_y]
    return not set(model.root.free_RVs).isdisjoint(ancestors(weights))


def find_observation(model: Model, name: str | None) -> Observation:
    """Return the likelihood with that name, or the only one."""
    require_inducing(model.root)
    known = observations(model)
    if not known:
        raise ValueError(
            "The model has no likelihood that streams over its data. "
            "Add one with gp.likelihood, and without block_size=False."
        )
    if name is None:
        if len(known) > 1:
            raise ValueError(
                f"The model has {len(known)} likelihoods. Say which one: pass var_name, one of "
                f"{list(known)}."
            )
        return next(iter(known.values()))
    if name not in known:
        raise ValueError(f"The model has no likelihood named {name!r}. Pass one of {list(known)}.")
    return known[name]


def warnings_at(model: Model, at: dict[str, Any]) -> list[str]:
    """Say what the kinds of inducing variables find wrong at these values of the variables."""
    parts = [p for o in observations(model).values() for p in o.parts]
    pairs = [pair for p in parts for pair in p.conditional.warnings(p.args)]
    if not pairs:
        return []
    (found,) = at_points(model, [number for number, _ in pairs], [at])
    texts = (say(n) for (_, say), n in zip(pairs, found, strict=True))
    return list(dict.fromkeys(text for text in texts if text))


def _observation(model: Model, name: str, terms: Variable) -> Observation | None:
    nodes = block_sums(terms)
    if not nodes:
        return None
    recipe, inputs = nodes[0].op.recipe, nodes[0].inputs
    parts = []
    for p in recipe.parts:
        args = p.conditional.user_args(p.args(inputs))
        parts.append(Process(model[p.conditional.process], p.conditional, args))
    likelihood = recipe.likelihood.replace(**{n: inputs[i] for n, i in recipe.params.items()})
    rows = tuple(n for n, i in recipe.params.items() if i < recipe.n_rows)
    X = inputs[recipe.parts[0].X]
    order = None if recipe.order is None else inputs[recipe.order.input]
    return Observation(name, likelihood, tuple(parts), X, inputs[1], rows, order)
