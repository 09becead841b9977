"""Albert and Chib's Gibbs sampler for probit classification."""

from typing import Any

import numpy as np

from pymc.blocking import PointType, StatsType
from pymc.model.core import Model, modelcontext
from pymc.util import get_random_generator
from scipy.linalg import cholesky, solve_triangular
from scipy.special import log_ndtr, ndtri_exp

from pymc_vsgp.checks import check_number
from pymc_vsgp.steps.latents import Latents, LatentStep
from pymc_vsgp.steps.predictor import At, Predictor

TRIED = np.array([-3.0, -0.5, 0.0, 1.0, 2.5])  # values of a function at which terms are compared


class ProbitAugmentation(LatentStep):
    r"""Gibbs updates of the latent values of a probit model, by data augmentation.

    A label says whether :math:`z_n \sim N(f_n, 1)` is positive. Given f, these are truncated
    normals; given these, f is normal:

    .. math:: z_n | f \sim N(f_n, 1)\ \text{with the sign of}\ y_n, \qquad f | z \sim N

    For values of ``pm.gp.Latent`` or ``pm.MvNormal`` that see labels through a probit. It also
    takes inducing values with ``vsgp.Bernoulli("probit")``. Their target has
    :math:`\mathbb{E} \log \Phi(f_n)`, and updates for :math:`\Phi(\mu_n / \sqrt{1 + \gamma_n})` are
    proposals, accepted by the ratio of the two. So the posterior is that of any other sampler.

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
        self.latents = Latents(vars, modelcontext(model), compile_kwargs)
        self.predictor = Predictor(self.latents, by_rows=True)
        if self.predictor.n_functions != 1:
            raise _not_probit()
        self.exact = not any(m.is_inducing for m in self.latents.members)
        name = getattr(getattr(self.predictor.likelihood, "link", None), "name", None)
        if not self.exact and not (self.predictor.likelihood.binary and name == "probit"):
            raise _not_probit()
        self._signs(self.predictor.at(self.latents.model.initial_point()))
        self.vars, self.blocked, self.rng = self.latents.values, blocked, get_random_generator(rng)

    def _signs(self, at: At) -> np.ndarray:
        """Return which sign of f each label speaks for."""
        tried = np.broadcast_to(TRIED[:, None, None], (len(TRIED), *at.c.shape))
        (terms,) = self.predictor.terms(tried, *at.known)
        signs = np.where(terms[-1] > terms[0], 1.0, -1.0)
        if self.exact and not np.allclose(terms, log_ndtr(signs * TRIED[:, None]), atol=1e-6):
            raise _not_probit()
        return signs

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Update the variables."""
        at = self.predictor.at(point)
        signs, B = self._signs(at), at.B[:, :, 0]
        deviation = np.sqrt(1.0 + self.predictor.variance(point))
        scaled = B / deviation
        L = cholesky(np.eye(len(B)) + scaled @ scaled.T, lower=True)
        nu, accept = at.nu, []
        weight = self._log_weight(at, nu, signs, deviation)
        for _ in range(self.n_updates):
            mean = at.eta(nu)[:, 0] / deviation
            # Of the standard normal tail beyond -signs * mean, by the inverse of its logarithm.
            tail = log_ndtr(signs * mean) - self.rng.exponential(size=mean.shape)
            z = mean - signs * ndtri_exp(tail)
            half = solve_triangular(L, scaled @ (z - at.c[:, 0] / deviation), lower=True)
            new = solve_triangular(L.T, half + self.rng.normal(size=nu.shape), lower=False)
            new_weight = self._log_weight(at, new, signs, deviation)
            accept.append(float(np.exp(min(new_weight - weight, 0.0))))
            if self.rng.random() < accept[-1]:
                nu, weight = new, new_weight
        return point | self.predictor.values_at(point, nu), [{"accept": float(np.mean(accept))}]

    def _log_weight(self, at: At, nu, signs, deviation) -> float:
        """Log density over that of the model that is augmented."""
        if self.exact:
            return 0.0
        eta = at.eta(nu)
        (terms,) = self.predictor.terms(eta[None], *at.known)
        return float(terms.sum() - log_ndtr(signs * eta[:, 0] / deviation).sum())


def _not_probit() -> ValueError:
    return ValueError(
        "The likelihood is not the probit of one function, which augmentation is for. "
        "Use EllipticalSlice, which takes any likelihood."
    )
