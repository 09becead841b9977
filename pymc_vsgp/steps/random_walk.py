"""A random walk whose steps are tuned, and what step methods of parameters have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc.model.core import Model
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import MvNormalRV

from pymc_vsgp.checks import check_real, model_of
from pymc_vsgp.fit.bound import split
from pymc_vsgp.model.variable import inducing_variables, value_shapes
from pymc_vsgp.steps.latents import Latents, LatentStep, listed


class RandomWalk:
    """Normal steps of d parameters, with the covariance of the chain so far.

    They are scaled to an acceptance rate.
    """

    def __init__(self, d: int, target: float):
        if not 0.0 < target < 1.0:
            raise ValueError(f"target_accept is {target}. Pass a rate between 0 and 1.")
        self.d, self.target = d, target
        self.restart()

    def restart(self) -> None:
        """Forget what was learned."""
        self.log_scale, self.n = np.log(2.4 / np.sqrt(self.d)), 0
        self.mean, self.scatter = np.zeros(self.d), np.zeros((self.d, self.d))

    @property
    def scale(self) -> float:
        """Of the covariance's root."""
        return float(np.exp(self.log_scale))

    def propose(self, theta: np.ndarray, rng) -> np.ndarray:
        """Return a proposal."""
        # As if a few draws of a small covariance had been seen before.
        prior = 2.0 * (self.d + 1)
        covariance = (self.scatter + prior * 0.1 * np.eye(self.d)) / (self.n + prior)
        return theta + self.scale * (np.linalg.cholesky(covariance) @ rng.normal(size=self.d))

    def learn(self, theta: np.ndarray, accept: float) -> None:
        """Note where the chain is, and how likely its last proposal was accepted."""
        self.n += 1
        away = theta - self.mean
        self.mean = self.mean + away / self.n
        self.scatter = self.scatter + np.outer(away, theta - self.mean)
        self.log_scale += (accept - self.target) * self.n**-0.6


class Parameters:
    """Variables of a model as one vector of what a sampler sees, none of them among `latents`."""

    def __init__(self, vars: Any, latents: Latents):
        model = latents.model
        vars = list(dict.fromkeys(listed(vars, "vars")))
        if unknown := [v for v in vars if v not in {*model.free_RVs, *model.value_vars}]:
            raise ValueError(
                f"{unknown[0].name} is not a free random variable of the model. "
                "Pass parameters of the model."
            )
        self.values: list[Variable] = get_value_vars_from_user_vars(vars, model)
        if discrete := [v.name for v in self.values if v in model.discrete_value_vars]:
            raise ValueError(
                f"{discrete} are discrete, and a random walk takes real numbers. "
                "Leave them to another step method."
            )
        if set(self.values) & set(latents.values):
            raise ValueError(
                "vars has latent values, which this step draws itself. Pass the parameters alone."
            )
        shapes = value_shapes(model)
        self.shapes = [shapes[v.name] for v in self.values]
        self.size = sum(int(np.prod(s)) for s in self.shapes)

    def of(self, point) -> np.ndarray:
        """Return them as a vector."""
        return np.concatenate([np.ravel(point[v.name]) for v in self.values])

    def put(self, point, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return a point with others."""
        parts = zip(self.values, split(theta, self.shapes), strict=True)
        return point | {v.name: x.astype(v.dtype) for v, x in parts}


def default_latents(model: Model) -> Sequence[Variable]:
    """Return the inducing values of a model, or its values of an exact process."""
    found = inducing_variables(model)
    found = found or [rv for rv in model.free_RVs if rv.name.endswith("_rotated_")]
    found = found or [rv for rv in model.free_RVs if isinstance(rv.owner.op, MvNormalRV)]
    if not found:
        raise ValueError(
            "The model has no inducing values, and no values of pm.gp.Latent or pm.MvNormal. "
            "Say which values are of a process: pass latents=[f]."
        )
    return found


def acceptance(ratio: float) -> float:
    """Return the chance to accept a proposal, whose log density may not be a number."""
    return float(np.exp(min(ratio, 0.0))) if np.isfinite(ratio) else 0.0


@dataclass_state
class WalkingState(StepMethodState):
    """What a step that is resumed needs to know."""

    tune: bool
    walks: list


class WalkingStep(LatentStep):
    """A step of parameters by random walks, and of the latent values with them."""

    shown = {"scaling": ("Scaling", "0.2f"), "accept": ("Accept", "0.2f")}
    _state_class = WalkingState

    def _walk(self, vars, latents, target, tune, model, rng, compile_kwargs, n_walks=1):
        """Set up what walks."""
        model = model_of(model)
        check_real("target_accept", target)
        self.tune, self._tunes, self.rng = tune, tune, get_random_generator(rng)
        self.latents = Latents(latents or default_latents(model), model, compile_kwargs)
        self.parameters = Parameters(vars, self.latents)
        self.vars = [*self.parameters.values, *self.latents.values]
        self.walks = [RandomWalk(self.parameters.size, target) for _ in range(n_walks)]
        self._left: dict | None = None

    @property
    def _tuning(self) -> bool:
        """Whether to tune now. PyMC sets `tune` for all steps, also for one that does not."""
        return self.tune and self._tunes

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        self._left = None
        self.tune = tune > 0
        for walk in self.walks:
            walk.restart()
        super().setup_chain(rng, tune, draws)

    def _leave(self, point) -> dict:
        """Keep a copy of a point: where chains run in processes, PyMC writes into its arrays."""
        self._left = kept = {name: np.array(x) for name, x in point.items()}
        return kept

    def _left_at(self, point) -> bool:
        """Whether other steps left the point where this one did."""
        left = self._left
        return left is not None and all(np.array_equal(point[k], x) for k, x in left.items())
