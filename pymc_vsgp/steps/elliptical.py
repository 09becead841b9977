"""Elliptical slice sampling."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc.blocking import PointType, StatsType
from pymc.model.core import Model
from pymc.util import get_random_generator

from pymc_vsgp.checks import check_number, model_of
from pymc_vsgp.steps.latents import Latents, LatentStep

SMALLEST_ANGLE = 1e-12


class EllipticalSlice(LatentStep):
    r"""Elliptical slice sampling of variables that are normal given all others.

    For inducing values, and for values of ``pm.gp.Latent``, ``pm.MvNormal`` or ``pm.Normal``. It
    draws :math:`\nu` from the prior and moves along the ellipse

    .. math:: u' = m + (u - m) \cos \alpha + (\nu - m) \sin \alpha

    with an angle from a bracket that shrinks until the likelihood is high enough. There is nothing
    to tune, no gradient, and any likelihood will do. It is the step for a likelihood without
    gradients, and cheap: the kernel and its Cholesky factor are computed once for all updates
    of a step. Where data say much about many values it moves slowly, and NUTS is the better choice.

    Parameters
    ----------
    vars : list of variables
        Random variables to update, together.
    n_updates : int, default 1
        Updates in a step, with all other variables held.
    model : Model, optional
        By default the model on the context stack.
    rng : RandomGenerator, optional
        Source of randomness; ``pm.sample(random_seed=...)`` sets it.
    compile_kwargs : dict, optional
        How to compile, for example ``{"mode": "JAX"}``.

    References
    ----------
    Murray, I., Adams, R. P. and MacKay, D. J. C. (2010). Elliptical slice sampling. *Proceedings of
    AISTATS*, PMLR 9, 541-548. https://doi.org/10.48550/arXiv.1001.0175
    """

    name = "elliptical_slice"
    stats_dtypes_shapes: dict[str, Any] = {
        "n_evaluations": (np.int64, []),
        "angle": (np.float64, []),
    }
    shown = {"n_evaluations": ("Evaluations", "d")}

    def __init__(
        self,
        vars,
        *,
        n_updates: int = 1,
        model: Model | None = None,
        rng=None,
        initial_point=None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        self.n_updates = check_number("n_updates", n_updates)
        self.latents = Latents(vars, model_of(model), compile_kwargs)
        self.vars, self.blocked, self.rng = self.latents.values, blocked, get_random_generator(rng)
        self._prepare, self._log_likelihood, self._values = self.latents.given_others(
            [self.latents.log_likelihood], self.latents.new_values
        )

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Update the variables."""
        nu, *known = self._prepare(point)

        def log_likelihood(at):
            return self._log_likelihood(at, *known)[0]

        level, n = log_likelihood(nu), 1
        for _ in range(self.n_updates):
            nu, level, angle, more = slice_once(nu, level, log_likelihood, self.rng)
            n += more
        new = zip(self.vars, self._values(nu, *known), strict=True)
        return point | {v.name: x for v, x in new}, [{"n_evaluations": n, "angle": angle}]


def slice_once(
    nu: np.ndarray, level: float, log_likelihood: Callable, rng: np.random.Generator
) -> tuple[np.ndarray, float, float, int]:
    """Make one update of standard normals.

    Returns where it leads, the log likelihood there, the angle, and the number of evaluations.
    `level` is the log likelihood at `nu`.
    """
    if not np.isfinite(level):
        raise ValueError(
            "The log likelihood is not finite at the current values. Pass initvals where it is."
        )
    height = level - rng.exponential()
    other = rng.normal(size=nu.shape)
    angle = rng.uniform(0.0, 2.0 * np.pi)
    low, high, n = angle - 2.0 * np.pi, angle, 0
    while abs(angle) > SMALLEST_ANGLE:
        proposal = nu * np.cos(angle) + other * np.sin(angle)
        found, n = float(log_likelihood(proposal)), n + 1
        if found > height:
            return proposal, found, angle, n
        low, high = (angle, high) if angle < 0.0 else (low, angle)
        angle = rng.uniform(low, high)
    return nu, level, 0.0, n  # rounding of the likelihood
