"""Albert and Chib's Gibbs sampler for probit and ordinal probit models."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.blocking import PointType, StatsType
from pymc.model.core import Model
from pymc.util import get_random_generator
from scipy.linalg import cholesky, solve_triangular
from scipy.special import log_ndtr, ndtri_exp

from pymc_vsgp.checks import check_number, model_of
from pymc_vsgp.compile import function
from pymc_vsgp.steps.latents import Latents, LatentStep
from pymc_vsgp.steps.predictor import At, Predictor

TRIED = np.array([-3.0, -0.5, 0.0, 1.0, 2.5])  # values of a function at which terms are compared


class ProbitAugmentation(LatentStep):
    r"""Gibbs updates of the latent values of a probit model, by data augmentation.

    A label says whether :math:`z_n \sim N(f_n, 1)` is positive, an ordered class between which
    cut-points it is. Given f, these are truncated normals; given these, f is normal:

    .. math:: z_n | f \sim N(f_n, 1)\ \text{between the bounds of}\ y_n, \qquad f | z \sim N

    For values of ``pm.gp.Latent`` or ``pm.MvNormal`` that see labels through a probit. It also
    takes inducing values with ``vsgp.Bernoulli("probit")`` or ``vsgp.Ordinal(c, link="probit")``.
    Their target has :math:`\mathbb{E} \log p(y_n | f_n)`, and updates for
    :math:`\log \mathbb{E}\, p(y_n | f_n)` are proposals, accepted by the ratio of the two. So the
    posterior is that of any other sampler.

    It needs neither tuning nor gradients. Chains move slowly where classes are far apart, for z and
    f hold each other in place.

    Parameters
    ----------
    vars : list of variables
        Values of one exact process, or inducing values.
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
    Albert, J. H. and Chib, S. (1993). Bayesian analysis of binary and polychotomous response data.
    *Journal of the American Statistical Association*, 88(422), 669-679.
    https://doi.org/10.1080/01621459.1993.10476321
    """

    name = "probit_augmentation"
    stats_dtypes_shapes: dict[str, Any] = {"accept": (np.float64, [])}
    shown = {"accept": ("Accept", "0.2f")}

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
        vars = vars if isinstance(vars, list | tuple) else [vars]
        self.n_updates = check_number("n_updates", n_updates)
        self.latents = Latents(vars, model_of(model), compile_kwargs)
        self.predictor = Predictor(self.latents, by_rows=True)
        if self.predictor.n_functions != 1:
            raise _not_probit()
        self.exact = self.predictor.of_loop is None
        self._rows = None if self.exact else self._of_rows(*self.predictor.of_loop)
        self._bounds(self.latents.model.initial_point())
        self.vars, self.blocked, self.rng = self.latents.values, blocked, get_random_generator(rng)

    def _of_rows(self, gamma, likelihood, y):
        """Return a function of the other variables: deviations of z given u, and bounds of z."""
        interval = likelihood.interval(y)
        if interval is None:
            raise _not_probit()
        outputs = [pt.sqrt(1.0 + gamma), *interval]
        return function(self.latents.inputs, outputs, **self.latents.compile_kwargs)

    def _bounds(self, point, at: At | None = None) -> tuple[np.ndarray, ...]:
        """Return deviations of z, and its bounds in these units."""
        if self._rows is not None:
            deviation, lower, upper = self._rows(*self.latents.at(point))
            return deviation, lower / deviation, upper / deviation
        at = at or self.predictor.at(point)
        tried = np.broadcast_to(TRIED[:, None, None], (len(TRIED), *at.c.shape))
        (terms,) = self.predictor.terms(tried, *at.known)
        positive = terms[-1] > terms[0]
        signs = np.where(positive, 1.0, -1.0)
        if not np.allclose(terms, log_ndtr(signs * TRIED[:, None]), atol=1e-6):
            raise _not_probit()
        bounds = np.where(positive, 0.0, -np.inf), np.where(positive, np.inf, 0.0)
        return np.ones(len(signs)), *bounds

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Update the variables."""
        at = self.predictor.at(point)
        deviation, *bounds = self._bounds(point, at)
        c, scaled = at.c[:, 0] / deviation, at.B[:, :, 0] / deviation
        L = cholesky(np.eye(len(scaled)) + scaled @ scaled.T, lower=True)
        nu, accept = at.nu, []
        tails = _tails(c + nu @ scaled, *bounds)
        weight = self._log_weight(at, nu, tails)
        for _ in range(self.n_updates):
            z = _truncated(c + nu @ scaled, tails, self.rng)
            half = solve_triangular(L, scaled @ (z - c), lower=True)
            new = solve_triangular(L.T, half + self.rng.normal(size=nu.shape), lower=False)
            new_tails = _tails(c + new @ scaled, *bounds)
            new_weight = self._log_weight(at, new, new_tails)
            accept.append(float(np.exp(min(new_weight - weight, 0.0))))
            if self.rng.random() < accept[-1]:
                nu, weight, tails = new, new_weight, new_tails
        return point | self.predictor.values_at(point, nu), [{"accept": float(np.mean(accept))}]

    def _log_weight(self, at: At, nu, tails) -> float:
        """Log density over that of the model that is augmented."""
        if self.exact:
            return 0.0
        (terms,) = self.predictor.terms(at.eta(nu)[None], *at.known)
        _, log_lower, log_upper = tails
        return float(terms.sum() - (log_upper + np.log(-np.expm1(log_lower - log_upper))).sum())


def _tails(mean, lower, upper):
    """Return log probabilities of N(mean, 1) below two bounds, after a flip of some signs.

    Those flipped have both bounds above the mean, where probabilities round to one.
    """
    lower, upper = lower - mean, upper - mean
    sign = np.where(lower > 0.0, -1.0, 1.0)
    below, above = np.minimum(sign * lower, sign * upper), np.maximum(sign * lower, sign * upper)
    return sign, log_ndtr(below), log_ndtr(above)


def _truncated(mean, tails, rng):
    """Draw from N(mean, 1) between the bounds of `_tails`, by the inverse of its logarithm."""
    sign, log_lower, log_upper = tails
    below = rng.random(mean.shape) * -np.expm1(log_lower - log_upper)
    return mean + sign * ndtri_exp(log_upper + np.log1p(-below))


def _not_probit() -> ValueError:
    return ValueError(
        "The likelihood is not the probit of one function, which augmentation is for. "
        "Use EllipticalSlice, which takes any likelihood."
    )
