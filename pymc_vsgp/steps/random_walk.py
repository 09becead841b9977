"""A random walk whose steps are tuned, and what step methods of parameters have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc.model.core import Model
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import MvNormalRV
from rich.progress import TextColumn
from rich.table import Column

from pymc_vsgp.fit.bound import split
from pymc_vsgp.model.variable import inducing_variables
from pymc_vsgp.steps.latents import Latents

__all__ = ["Parameters", "RandomWalk", "acceptance_bar", "default_latents"]


@dataclass_state
class RandomWalkState(DataClassState):
    log_scale: float
    mean: np.ndarray
    scatter: np.ndarray
    n: int


class RandomWalk(WithSamplingState):
    """Normal steps, with the covariance of the chain so far, scaled to an acceptance rate.

    Parameters
    ----------
    d : int
        Number of parameters.
    target : float
        Acceptance rate.
    """

    _state_class = RandomWalkState

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


@dataclass_state
class WalkingState(StepMethodState):
    tune: bool
    walk: RandomWalkState


class Parameters:
    """Value variables as one vector.

    Parameters
    ----------
    vars : list of variables
        Random variables, or their values.
    latents : Latents
        Other variables of the model, which are none of these.
    """

    def __init__(self, vars: Any, latents: Latents):
        model = latents.model
        vars = vars if isinstance(vars, list | tuple) else [vars]
        self.values: list[Variable] = get_value_vars_from_user_vars(
            list(dict.fromkeys(vars)), model
        )
        if discrete := [v.name for v in self.values if v in model.discrete_value_vars]:
            raise ValueError(
                f"{discrete} are discrete, and a random walk takes real numbers. "
                "Leave them to another step method."
            )
        if set(self.values) & set(latents.values):
            raise ValueError(
                "vars has latent values, which this step draws itself. Pass the parameters alone."
            )
        start = model.initial_point()
        self.shapes = [np.shape(start[v.name]) for v in self.values]
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


def acceptance_bar(n_chains: int) -> tuple[list, dict]:
    """Return the columns of a progress bar."""
    columns = [
        TextColumn("{task.fields[scaling]:0.2f}", table_column=Column("Scaling", ratio=1)),
        TextColumn("{task.fields[accept]:0.2f}", table_column=Column("Accept", ratio=1)),
    ]
    return columns, {"scaling": [0.0] * n_chains, "accept": [0.0] * n_chains}
