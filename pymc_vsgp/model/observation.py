"""The likelihoods of a model, as graphs of its random variables: which process, kernel and data."""

from typing import Any, NamedTuple

import pymc as pm
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg import solve_triangular

from pymc_vsgp.compile import at_points
from pymc_vsgp.engine.features import (
    Nearest,
    correlated_ends,
    plane_of,
    short_period,
)
from pymc_vsgp.engine.groups import FeatureGroup, unchecked
from pymc_vsgp.engine.moments import Kernel, Moments, inline, moments_of
from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.model.variable import InducingRV, of_waves

__all__ = [
    "Observation",
    "Process",
    "Waves",
    "expected_mean",
    "find_observation",
    "joint_moments",
    "n_classes",
    "observations",
    "short_periods",
]


class Process(NamedTuple):
    """One process with inducing points, as graphs of the model's random variables."""

    u: Variable
    kernel: Kernel
    Xu: Variable
    R: Variable
    v: Variable
    theta: list[Variable]

    @property
    def places(self) -> Variable:
        """Inducing inputs."""
        return self.Xu

    def moments(self, X: Variable) -> Moments:
        """Moments of f at each row of X on its own."""
        return moments_of(self.kernel, X, self.Xu, self.R, self.v, *self.theta)[1]

    def prior_mean(self, X: Variable) -> Variable:
        """Prior mean of f at the rows of X."""
        nothing = pt.zeros_like(self.v)
        return moments_of(self.kernel, X, self.Xu, self.R, nothing, *self.theta)[1].mu

    def cross(self, X: Variable, Z: Variable) -> tuple[Variable, Variable]:
        """Covariance of f between the rows of Z and of X, and its variance at X."""
        K, prior, _ = inline(self.kernel, X, Z, *self.theta)
        return K, prior

    def prior_covariance(self, X: Variable) -> Variable:
        """Prior covariance of f at the rows of X, white noise included."""
        K, prior = self.cross(X, X)
        return K - pt.diag(pt.diagonal(K)) + pt.diag(prior)

    def solve(self, X: Variable) -> Variable:
        """``A = R^-1 Kuf``."""
        return solve_triangular(self.R, self.cross(X, self.Xu)[0], lower=True, b_ndim=2)


class Waves(NamedTuple):
    """One process with Fourier coefficients, as graphs of the model's random variables."""

    u: Variable
    group: FeatureGroup
    v: Variable
    residual: Variable
    window: Variable
    theta: list[Variable]
    prior: list[Variable]

    @property
    def places(self) -> Variable:
        """Inducing inputs: none."""
        return pt.zeros((0, self.group.features.n_columns))

    @property
    def scale(self) -> Variable:
        """Prior standard deviations of the coefficients."""
        return self.u.owner.inputs[2]

    def prior_mean(self, X: Variable) -> Variable:
        """Prior mean of f at the rows of X."""
        mean = inline(self.group.mean, X, *self.theta)[0]
        return mean if self.v.type.ndim == 1 else mean[:, None] + pt.zeros((1, self.v.shape[1]))

    def moments(self, X: Variable) -> Moments:
        """Moments of f at each row of X on its own."""
        mean = inline(self.group.mean, X, *self.theta)[0]
        nearest = Nearest.to(self.group.features, X, self.window, self._plane)
        return nearest.moments(self.group.features, self.v, mean, self.residual)

    def covariance(self, X: Variable) -> Variable:
        """Covariance of f at the rows of X, given the coefficients."""
        nearest = Nearest.to(self.group.features, X, self.window, self._plane)
        A = self.solve(nearest.places)
        within = self.prior_covariance(nearest.places) - pt.dot(A.T, A)
        return nearest.covariance(X, self._plane, within)

    def correlated_ends(self) -> Variable:
        """Correlation of opposite ends of the data around the torus."""
        return correlated_ends(self.group.features, self.window, self._plane)

    @property
    def _plane(self):
        return plane_of(self.group.covariance, self.prior)

    def cross(self, X: Variable, Z: Variable) -> tuple[Variable, Variable]:
        """Covariance of f between the rows of Z and of X, and its variance at X."""
        K = inline(self.group.covariance, Z, X, *self.prior)[0]
        return K, pt.ones_like(X[:, 0]) * (self.residual + pt.sum(self.scale**2))

    def wrap(self, X: Variable) -> Variable:
        """Correlation of the first row of X with the others that is due to the torus alone."""
        torus, plane = inline(self.group.covariance, X[:1], X, *self.prior)
        return pt.max(pt.abs(torus - plane)[0, 1:]) / (self.residual + pt.sum(self.scale**2))

    def prior_covariance(self, X: Variable) -> Variable:
        """Prior covariance of f at the rows of X."""
        return self.cross(X, X)[0]

    def solve(self, X: Variable) -> Variable:
        """What the coefficients explain: ``A`` such that the covariance explained is ``A^T A``."""
        features = self.group.features
        return (features.matrix(features.waves(X)) * self.scale).T


def joint_moments(process: Process | Waves, X: Variable) -> Moments:
    """Mean and covariance of f at the rows of X."""
    if isinstance(process, Waves):
        return Moments(process.moments(X).mu, process.covariance(X))
    A = process.solve(X)
    return Moments(process.moments(X).mu, process.prior_covariance(X) - pt.dot(A.T, A))


class Observation(NamedTuple):
    """One likelihood of a model, as graphs of the model's random variables."""

    name: str
    likelihood: Likelihood
    parts: tuple[Process | Waves, ...]
    X: Variable
    y: Variable
    row_params: tuple[str, ...]


def observations(model: Model) -> dict[str, Observation]:
    """Return the likelihoods of a model's sparse processes, by name."""
    found = {}
    for rv in model.observed_RVs:
        if any(_is_inducing(a) for a in ancestors([rv])):
            terms = pm.logp(rv, model.rvs_to_values[rv], warn_rvs=False)
            found[rv.name] = _observation(model, rv.name, terms)
    for potential in model.potentials:
        found[potential.name] = _observation(model, potential.name, potential)
    return {name: o for name, o in found.items() if o is not None}


def find_observation(model: Model, name: str | None) -> Observation:
    """Return the likelihood with that name, or the only one."""
    if not any(_is_inducing(rv) for rv in model.free_RVs):
        raise ValueError(
            "The model has no variationally sparse process. "
            "Add one with pm.gp.VariationalSparse and call its prior and likelihood."
        )
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


def short_periods(model: Model, at: dict[str, Any]) -> list[str]:
    """Say which Fourier features have a short period at these values of the model's variables."""
    if not any(_is_inducing(u) and of_waves(u) for u in model.free_RVs):
        return []
    parts = [p for o in observations(model).values() for p in o.parts if isinstance(p, Waves)]
    (found,) = at_points(model, [p.correlated_ends() for p in parts], [at])
    texts = (short_period(p.u.name, float(r)) for p, r in zip(parts, found, strict=True))
    return list(dict.fromkeys(t for t in texts if t))


def _is_inducing(variable: Variable) -> bool:
    return variable.owner is not None and isinstance(variable.owner.op, InducingRV)


def _observation(model: Model, name: str, terms: Variable) -> Observation | None:
    nodes = [
        v.owner
        for v in ancestors([terms])
        if v.owner is not None and isinstance(v.owner.op, BlockSum)
    ]
    if not nodes:
        return None
    node = nodes[0]
    recipe, inputs = node.op.recipe, node.inputs
    parts: list[Process | Waves] = []
    for g in recipe.groups:
        v, u = inputs[g.v], model[g.process]
        theta = [inputs[i] for i in g.theta]
        if isinstance(g, FeatureGroup):
            prior = [inputs[i] for i in g.prior]
            residual, _ = unchecked(inputs[g.residual], g)
            parts.append(Waves(u, g, v, residual, inputs[g.window], theta, prior))
            continue
        parts.append(Process(u, g.kernel, inputs[g.Xu], inputs[g.R], v, theta))
    likelihood = recipe.likelihood.replace(**{n: inputs[i] for n, i in recipe.params.items()})
    rows = tuple(n for n, i in recipe.params.items() if i < recipe.n_rows)
    X = inputs[recipe.groups[0].X]
    return Observation(name, likelihood, tuple(parts), X, inputs[1], rows)


def n_classes(likelihood: Likelihood) -> int | None:
    """Return the number of classes of a likelihood of classes, else None."""
    if not hasattr(likelihood, "conditional_probabilities"):
        return None
    number = getattr(likelihood, "n_classes", None)
    return None if number is None else int(number)


def expected_mean(lik: Any, mu: Variable, gamma: Variable) -> Variable:
    """``E[y]`` for f ~ N(mu, gamma): of numbers their mean, of classes their probabilities."""
    return lik.mean(mu, gamma)
