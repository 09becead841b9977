"""Pseudo-marginal Metropolis-Hastings over the parameters of a Gaussian process."""

from typing import Any, NamedTuple

import numpy as np

from pymc.blocking import PointType, StatsType
from pymc.model.core import Model
from scipy.special import logsumexp

from pymc_vsgp.checks import check_number
from pymc_vsgp.steps.predictor import (
    Approximation,
    At,
    Predictor,
    expectation_propagation,
    laplace,
    not_by_rows,
)
from pymc_vsgp.steps.random_walk import WalkingState, WalkingStep, acceptance

APPROXIMATIONS = {"laplace": laplace, "ep": expectation_propagation}


class Estimate(NamedTuple):
    """An importance-sampling estimate of the evidence, and its samples."""

    log_evidence: float
    n_iterations: int
    nu: np.ndarray
    weights: np.ndarray
    """They sum to one."""

    @property
    def ess(self) -> float:
        """Return how many samples of equal weight they are worth."""
        return float(1.0 / (self.weights**2).sum()) if len(self.weights) else 0.0


NO_EVIDENCE = Estimate(-np.inf, 0, np.empty(0), np.empty(0))


class PseudoMarginal(WalkingStep):
    r"""Metropolis-Hastings over parameters, with the latent values integrated out.

    The evidence of a proposal is estimated without bias, by importance sampling from a Laplace or
    an EP approximation of the latent values:

    .. math:: \tilde p(y | \theta) = \frac{1}{N} \sum_{i=1}^N
              \frac{p(y | f_i)\, p(f_i | \theta)}{q(f_i | y, \theta)}

    The chain keeps the estimate of where it is, and so has the exact posterior as its stationary
    distribution, for any number of importance samples. A draw of the latent values by their weights
    comes with the parameters. Between parameters and latent values there is no correlation left to
    slow it down. The price is an approximation for each proposal, of cost :math:`M^3` per iteration
    for M latent values.

    It takes one likelihood that is log-concave and a product over observations: of exact values
    (``pm.gp.Latent``, ``pm.MvNormal``), or of inducing values. EP takes likelihoods of one
    function. Other step methods may update what is left; then the estimate is made again, with the
    current latent values among the samples.

    The statistic ``log_evidence`` is the estimate at the current parameters, plus the log density
    of all parameters as the sampler sees them. It is no estimate of the evidence of the model: a
    chain stays longer where an estimate is too high.

    Parameters
    ----------
    vars : list of variables
        Parameters. A random walk moves them as the sampler sees them, for example as logarithms.
    latents : list of variables, optional
        The latent values. By default the model's inducing values, or those of ``pm.gp.Latent``.
    approximation : {"laplace", "ep"}
        EP takes longer, and its estimates vary less. Take it for labels whose function may have a
        large variance: there weights from Laplace's have so heavy a tail that chains rarely get
        there, and neither R-hat nor ESS shows it. Where EP diverges, the step takes Laplace's.
    n_importance : int, default 16
        Number of importance samples. More make estimates vary less. A chain that sticks needs more.
    target_accept : float, default 0.25
        Acceptance rate that tuning aims at.
    tune : bool, default True
        Whether to tune while ``pm.sample`` does.
    model : Model, optional
        By default the model on the context stack.
    rng : RandomGenerator, optional
        Source of randomness; ``pm.sample(random_seed=...)`` sets it.
    compile_kwargs : dict, optional
        How to compile, for example ``{"mode": "JAX"}``.

    References
    ----------
    Filippone, M. and Girolami, M. (2014). Pseudo-marginal Bayesian inference for Gaussian
    processes. *IEEE Transactions on Pattern Analysis and Machine Intelligence*, 36(11), 2214-2226.
    https://doi.org/10.1109/TPAMI.2014.2316530
    """

    name = "pseudo_marginal"
    stats_dtypes_shapes: dict[str, Any] = {
        "accept": (np.float64, []),
        "accepted": (np.float64, []),  # as of pm.Metropolis: PyMC wants one type of a name
        "scaling": (np.float64, []),
        "log_evidence": (np.float64, []),
        "importance_ess": (np.float64, []),
        "n_iterations": (np.int64, []),
    }
    _state_class = WalkingState

    def __init__(
        self,
        vars,
        *,
        latents=None,
        approximation: str = "laplace",
        n_importance: int = 16,
        target_accept: float = 0.25,
        tune: bool = True,
        model: Model | None = None,
        rng=None,
        initial_point=None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        if approximation not in APPROXIMATIONS:
            raise ValueError(
                f"approximation is {approximation!r}. Pass one of {list(APPROXIMATIONS)}."
            )
        self.approximate = APPROXIMATIONS[approximation]
        self.n_importance = check_number("n_importance", n_importance)
        self.blocked = blocked
        self._walk(vars, latents, target_accept, tune, model, rng, compile_kwargs)
        self.predictor = Predictor(self.latents, by_rows=approximation == "ep")
        if approximation == "ep" and self.predictor.n_functions != 1:
            raise not_by_rows()
        self.current = NO_EVIDENCE

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Update parameters and latent values."""
        self._refresh(point)
        (walk,) = self.walks
        theta = self.parameters.of(point)
        proposed = self.parameters.put(point, walk.propose(theta, self.rng))
        found = self._try(proposed)
        accept = acceptance(found.log_evidence - self.current.log_evidence)
        accepted = self.rng.random() < accept
        if accepted:
            self.current, point = found, proposed
        # Whatever happened: at new values only where something moved, those at which little does
        # would be missing from the posterior.
        weights = self.current.weights
        nu = self.current.nu[self.rng.choice(len(weights), p=weights)]
        point = point | self.predictor.values_at(point, nu)
        if self._tuning:
            walk.learn(self.parameters.of(point), accept)
        self._leave(point)
        stats = {
            "accept": accept,
            "accepted": float(accepted),
            "scaling": walk.scale,
            "log_evidence": self.current.log_evidence,
            "importance_ess": self.current.ess,
            "n_iterations": found.n_iterations,
        }
        return point, [stats]

    def _refresh(self, point) -> None:
        """Estimate anew where others moved the point, current values being one of the samples.

        But where a chain begins: there they are arbitrary, and one unlikely sample of a large
        weight would hold the chain.
        """
        if self._left_at(point):
            return
        self.current = self._try(point, keep=self._left is not None)
        if not np.isfinite(self.current.log_evidence):
            raise ValueError(
                "The log density is not finite at the current values. Pass initvals where it is."
            )

    def _try(self, point, keep: bool = False) -> Estimate:
        """Estimate the evidence, which may be zero; `keep` the latent values as a sample."""
        try:
            with np.errstate(all="ignore"):
                at = self.predictor.at(point)
                q = self.approximate(self.predictor, at)
                return self._estimate(at, q, at.nu if keep else None)
        except (FloatingPointError, np.linalg.LinAlgError):
            # A density that is not finite, or a kernel without a factor: PyMC rejects these, too.
            return NO_EVIDENCE

    def _estimate(self, at: At, q: Approximation, kept: np.ndarray | None = None) -> Estimate:
        """Draw from the approximation, and weigh the draws."""
        nu, log_q = q.draw(self.n_importance, self.rng)
        if kept is not None:
            nu[0] = kept
            log_q[0] = q.log_density(kept[None])[0]
        log_w = self.predictor.log_density(at, nu) - log_q
        log_w = np.where(np.isnan(log_w), -np.inf, log_w)
        total = logsumexp(log_w)
        if not np.isfinite(total):
            return Estimate(-np.inf, q.n_iterations, nu, np.zeros(len(nu)))
        w = np.exp(log_w - total)
        # Tuning on estimates would take sticking for steps that are too long.
        log_evidence = q.log_evidence if self._tuning else float(total) - np.log(len(w))
        return Estimate(log_evidence, q.n_iterations, nu, w / w.sum())

    def stop_tuning(self) -> None:
        """Go on with unbiased estimates."""
        super().stop_tuning()
        self._left = None
