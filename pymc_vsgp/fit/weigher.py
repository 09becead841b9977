"""What draws proposals of a model, and evaluates its density; see `importance`."""

import logging

from typing import Any

import numpy as np

from pymc.logprob.transforms import CircularTransform
from pymc.model.core import Model
from scipy.special import logsumexp

from pymc_vsgp.compile import building
from pymc_vsgp.fit.adaptation import Moments, moments, of_epsilon, of_moments
from pymc_vsgp.fit.batch import MANY, Batch
from pymc_vsgp.fit.chain import Chains, parts
from pymc_vsgp.fit.collapsed import TOGETHER, Collapsed
from pymc_vsgp.fit.density import Points
from pymc_vsgp.fit.proposals import Prior

__all__ = ["LARGEST", "Weigher"]

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

EPSILON_BYTES = 32_000_000  # that are held at once
KEPT = 1000  # numbers in the draws of epsilon at a theta, where these are more than one
LARGEST = 300  # numbers of epsilon that their moments are estimated of
NOISIEST = 4.6  # variance of log weights given theta that no number of epsilon makes up for, ...
NOISIEST_OF_CHAINS = 2.8  # ... and where chains draw epsilon, so that it grows with theta
# Relative variance of weights given theta, above which better coordinates may pay; and where chains
# draw epsilon: one more of it takes a multiple of the time there, and weights of theta that are far
# from the chains vary by much more.
NOISY, NOISY_OF_CHAINS = 0.9, 0.25
ROUGH, PROBED = 25, 200  # theta whose weights tell little, and of these at most
LEAST_ESS = 10  # of these, below which their weight is chance
SURELY = 0.0  # logarithm of a part of the posterior that a single one does not have by chance
UNSEEN = 0.005  # of the posterior: more moves means by more than their error
OF_CHAINS = 4.0  # what they take for an epsilon, over the density at a theta


class Weigher:
    """Draws proposals of a model, and evaluates its density.

    What it compiles stays valid where data and coordinates change, so one serves many data sets.
    With what is `integrated` out, some inducing values are drawn at each theta, while it is
    weighed: to draw them afterwards takes another pass over the data.
    """

    @building
    def __init__(self, model: Model, mesh: Any = None, integrated: Collapsed | None = None):
        self.points = Points(model, mesh)
        rvs = [model.values_to_rvs[v] for v in self.points.outer]
        if circular := [rv.name for rv in rvs if _is_circular(model.rvs_to_transforms[rv])]:
            # A chain may be in any period, as its draws are angles. Weights add all periods up.
            raise NotImplementedError(f"The unconstrained density of {circular} is periodic.")
        self.known: dict[Any, Chains] = {}
        self.n_noise = 0
        try:
            theta = np.zeros((2, self.points.n_theta))
            if integrated is None:
                self.plain = self.points.log_density()
            else:
                draw, noise = integrated.inducing, integrated.noise
                (self.n_noise,) = noise.type.shape
                self.plain = self.points.with_draws(draw, noise)
            with np.errstate(all="ignore"):
                self.plain(theta, np.zeros((2, 3, self.points.n_epsilon + self.n_noise)))
        except (TypeError, ValueError) as error:
            if mesh is not None:
                raise
            # Ops of others may take one point at a time.
            raise NotImplementedError(
                "The density of the model takes one point at a time."
            ) from error
        self.prior: Prior | None = None
        try:
            self.prior = Prior(self.points)
        except Exception as error:  # improper, or its draws are not of it, or fail in any way
            if self.points.n_theta:
                why = str(error).partition("\n")[0].rstrip(".")
                _log.info("importance: no proposals from the prior (%.200s)", why)

    def begin(self, rng) -> None:
        """Start anew, with this source of proposals."""
        self.rng, self.n_evaluations = rng, 0
        self.chains: Chains | None = None
        self.centered = False
        self.limit = np.inf
        """Variance of log weights given theta, above which it is left to NUTS."""
        self.take(self.plain)

    def take(self, density) -> None:
        """Let epsilon be in the coordinates of this density."""
        self.density, self.epsilon = density, of_epsilon(np.zeros(self.points.n_epsilon))
        self.moments: list[Moments] = []
        if self.chains is not None:
            self.n_evaluations += self.chains.n_gradients
            self._start_chains(self.chains.theta)

    @property
    def cost(self) -> tuple[float, float]:
        """Of a theta, and of an epsilon, in about the same unit."""
        of_theta, of_epsilon = self.density.cost
        moves = 0.0 if self.chains is None else OF_CHAINS * self.plain.cost[0]
        return of_theta, of_epsilon + moves

    def adapt(self, batch: Batch, log_w) -> None:
        """Propose epsilon with the moments that proposals in these coordinates found."""
        epsilon, batch.proposed = batch.proposed, None  # they are large
        m = self.points.n_epsilon
        if epsilon is not None and self.chains is None and 0 < m <= LARGEST:
            self.moments.append(moments(epsilon.reshape(-1, m), batch.single(log_w)))
            self.epsilon = of_moments(self.moments) or self.epsilon

    @property
    def noisiest(self) -> float:
        """Variance of log weights given theta, above which there is no hope."""
        return min(self.limit, NOISIEST if self.chains is None else NOISIEST_OF_CHAINS)

    @property
    def noisy(self) -> float:
        """Relative variance of weights given theta, above which better coordinates may pay."""
        if self.chains is None:
            return NOISY
        return NOISY_OF_CHAINS if self.centered else np.inf

    @property
    def n_kept(self) -> int:
        """How many draws there are at each theta: a chain that stays takes one after another."""
        if self.n_noise:
            return TOGETHER
        if self.chains is not None or not self.points.n_epsilon:
            return 1
        return int(np.clip(KEPT // self.points.n_epsilon, 1, TOGETHER))

    @property
    def adapted(self) -> bool:
        """Whether epsilon is proposed with moments other than those of the stage."""
        return np.ndim(self.epsilon.root) > 0

    def refine(self) -> bool:
        """Let epsilon be in coordinates that are fitted to the data at each theta."""
        if self.density is not self.plain:
            return False
        try:
            self.take(self.points.refined())
        except (NotImplementedError, TypeError, ValueError):  # as of ops of others
            return False
        return True

    def change_coordinates(self, q, batch: Batch, log_w) -> bool:
        """Take fitted coordinates where those of the stage miss a part of the posterior.

        Fitted ones tell how much of it is where weights of epsilon are rough. Returns whether
        coordinates have changed; raises KeyboardInterrupt with those that there were.
        """
        if self.chains is not None or self.density is not self.plain:
            return False
        if len(at := batch.rough(log_w)) < ROUGH:
            return False
        before, misses = (self.epsilon, self.moments), False
        some = self.rng.permutation(at)[:PROBED]
        try:
            if not self.refine():
                return False
            if (fitted := self.more(batch.theta[some], batch.inner.shape[1])) is None:
                raise KeyboardInterrupt
            plain, there = log_w[some], fitted.log_marginal - q.logpdf(fitted.theta)
            misses = _misses(plain, there, logsumexp(log_w[:MANY]), len(at) / len(some))
        finally:
            if not misses:
                self.take(self.plain)
                self.epsilon, self.moments = before
        return misses

    def walk(self, theta) -> bool:
        """Let chains at this theta draw epsilon."""
        if self.points.mesh is not None:
            return False
        self._start_chains(theta)
        return True

    def center_chains(self, theta) -> bool:
        """Let chains draw epsilon at the mean of theta, once it is known; whether they do so now.

        The estimate of a stage is beside it. What weights vary by given theta grows away from
        where chains are.
        """
        if self.chains is None or self.centered:
            return False
        self.chains.go_on(theta)
        self.centered = True
        return True

    def _start_chains(self, theta) -> None:
        """Start them in the coordinates of the density."""
        if self.density not in self.known:
            self.known[self.density] = Chains(self.points, self.density.outputs[0])
        self.chains = self.known[self.density]
        self.chains.start(theta, self.rng)

    def __call__(self, q, n, K) -> Batch:
        """Propose n of theta, with K of epsilon each."""
        theta = q.draw(n, self.rng)
        batch = self.evaluate(theta, K)
        if len(batch.theta) < n:
            raise KeyboardInterrupt
        return batch

    def evaluate(self, theta, K, advance=lambda n: None) -> Batch:
        """Draw K of epsilon for each theta; fewer of them, if it is interrupted."""
        held = max(K * self.points.n_epsilon, self.n_kept * self.n_noise, K)
        step = max(1, EPSILON_BYTES // (8 * held))
        found: list[Batch] = []
        chains = parts(len(theta))
        for i in range(0, len(theta), step):
            asked = theta[i : i + step]
            try:
                found.append(self._evaluate(asked, K, advance, chains[i : i + step]))
            except KeyboardInterrupt:
                if not found:
                    raise
                break
            if len(found[-1].theta) < len(asked):
                break
        return Batch.concatenated(found)

    def more(self, theta, K, advance=lambda n: None, fitted: bool = False) -> Batch | None:
        """Evaluate more where a batch is there already; nothing, if it is interrupted.

        Where it is to be in `fitted` coordinates, these are taken first.
        """
        try:
            if fitted:
                self.refine()
            batch = self.evaluate(theta, K, advance)
        except KeyboardInterrupt:
            return None
        return batch if len(batch.theta) == len(theta) else None

    def _evaluate(self, theta, K, advance, chains) -> Batch:
        m = self.points.n_epsilon
        if self.chains is None:
            flat = self.epsilon.draw(len(theta) * K, self.rng)
            log_q = self.epsilon.logpdf(flat)
        else:
            flat, log_q = self.chains.draw(np.repeat(chains, K))
        log_q = log_q.reshape(len(theta), K)
        noise = self.rng.gumbel(size=(len(theta), self.n_kept, K))
        with np.errstate(all="ignore"):
            proposed = draws = flat.reshape(len(theta), K, m)
            if self.n_noise:
                normal = self.rng.normal(size=(len(theta), self.n_kept, self.n_noise))
                logp, draws = self.density(theta, normal, advance)
                logp = logp[:, :K]
            else:
                logp, *coordinates = self.density(theta, proposed, advance)
                (draws,) = coordinates or [proposed]
        n = len(logp)
        inner = logp - log_q[:n]
        inner = np.where(np.isfinite(inner), inner, -np.inf)
        self.n_evaluations += inner.size
        score = inner[:, None] + noise[:n]
        if not self.n_noise:
            draws = draws[np.arange(n)[:, None], np.argmax(score, axis=2)]
        return Batch(theta[:n], inner, draws, score.max(axis=2), proposed[:n])


def _misses(plain, fitted, log_total: float, times: float) -> bool:
    """Whether some weights are less than fitted ones say, or too few to tell, and are many."""
    if not np.isfinite(fitted).any():
        return False
    if np.fmax.reduce(fitted) - log_total > SURELY:
        return True
    before, there = (
        np.exp(np.where(np.isfinite(x), x, -np.inf) - log_total) * times for x in (plain, fitted)
    )
    few = any(x.sum() ** 2 <= LEAST_ESS * (x**2).sum() for x in (before, there))
    error = np.sqrt((before**2 + there**2).sum())
    differs = abs(there.sum() - before.sum()) > max(UNSEEN, 2.0 * error)
    return bool(there.sum() > UNSEEN and (few or differs))


def _is_circular(transform: Any) -> bool:
    """Whether the unconstrained density of a variable is periodic."""
    each = getattr(transform, "transform_list", [transform])
    return any(isinstance(t, CircularTransform) for t in each)
