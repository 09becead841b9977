r"""The importance stage: independent proposals, weighed by the exact target.

In the coordinates of the Gaussian stage the posterior is close to

.. math:: q(\theta)\, N(\epsilon; 0, I),

so draws of that, with somewhat heavier tails, weighed by the target, are draws of the posterior,
with no gradient, no warm-up, and nothing sequential. Each theta gets K draws of epsilon, and the
mean of their weights, which estimates the weight of theta without bias: a pseudo-marginal method. A
few rounds of some hundred proposals fit q to the target: a mixture of Student-t densities, which
may be bent, of some that have a long tail along an axis, and of the prior. The last batch is drawn
from a q that is fixed by then, so a Metropolis-Hastings chain that walks along it, and accepts by
the ratio of weights, has the posterior as its stationary distribution.

Where epsilon has too many dimensions for normal proposals, chains at one theta draw it; see
`chain`.

Weights of theta are too small where epsilon hardly ever lands near its posterior. So in the end
coordinates that are fitted at each theta tell how much is there, and may take over; see `weigher`.

The weights also prove the result, or refuse it: by the shape of their tail (Pareto k-hat), by what
their sample is worth, and by whether halves of them agree.
"""

import logging
import time

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pymc.model.core import Model
from scipy.special import logsumexp

from pymc_vsgp.fit.adaptation import (
    Near,
    adapt,
    mixture,
    moments,
    of_theta,
)
from pymc_vsgp.fit.batch import Batch
from pymc_vsgp.fit.chain import parts
from pymc_vsgp.fit.density import Points
from pymc_vsgp.fit.proposals import StudentT
from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.fit.weigher import LARGEST, Weigher
from pymc_vsgp.fit.weights import FEW, doubt_of, refusal, shape, tail
from pymc_vsgp.progress import progress

__all__ = ["Weighed", "weigh"]

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

FEWEST = 400  # proposals
ROUNDS, PATIENCE = 12, 4  # at most, and after the best one
GOOD = 0.6  # of the proposals: where their sample is worth that, another round gains little
GAIN = 1.1  # of the best ESS, below which it is chance
MOST = 16  # of epsilon for a theta
SOME = 0.2  # of what weights vary by, from where it pays to have more of epsilon for a theta
UNFIT = "coordinates of the stage do not fit all hyperparameters"
NORMAL = 1.6  # variance of log weights given theta, above which chains draw epsilon, ...
NEARLY = 0.05  # ... if it is less than this for each of them: chains can take large steps
# Numbers in theta: to fit a proposal of more, with so noisy weights, takes half as long as NUTS.
FEW_OF_CHAINS = 12
MANY, PROBES = 60, 64  # of epsilon, from where a few proposals first tell whether there is hope
FINE = 0.3  # variance of log weights given theta, below which chains need no better coordinates
# Part of what weights vary by that better coordinates have to leave at most; and where chains draw
# epsilon, as densities in these take a multiple of the time.
LESS, MUCH_LESS = 0.7, 0.25
LIKELY = 30  # ESS of theta, from where weights tell its mean, and what those of epsilon vary by
NOISY_ROUNDS = 3  # that tell it: the first has a few weights of each theta, and no long tails yet


@dataclass
class Weighed:
    """Proposals and their weights.

    Attributes
    ----------
    theta, epsilon : ndarray
        Proposals, n x d, and some draws at each, n x R x m, by their weights. In place of epsilon
        that is integrated out these are draws of the inducing values: see `Weigher`.
    log_weight : ndarray
        Logarithms of the target over the proposal density.
    khat, ess : float
        Shape of the tail of the weights, single or of theta, and what the sample is worth.
    log_evidence : float
        Logarithm of the mean weight; nan where chains drew epsilon, whose density lacks a constant.
    n_evaluations : int
        How often the log density was evaluated, in all rounds and by chains.
    refused : str
        Why the proposals do not prove to be good enough; empty where they do.
    interrupted : bool
        Whether they are fewer than were asked for.
    thin : int
        How many times as many as were asked for they are.
    walked : bool
        Whether chains drew epsilon, one after another.
    stage_is_fine : bool
        Whether they are refused for what tells nothing against the stage: what weights vary by
        given theta, or a doubt.
    """

    theta: np.ndarray
    epsilon: np.ndarray
    log_weight: np.ndarray
    khat: float
    ess: float
    log_evidence: float
    n_evaluations: int
    n_inner: int
    thin: int
    walked: bool
    stage_is_fine: bool
    seconds: float
    refused: str
    interrupted: bool
    start: tuple[np.ndarray, np.ndarray, np.ndarray] = field(repr=False)
    """Theta, epsilon and log weights of draws that chains can start at."""
    points: Points = field(repr=False)
    """The variables that theta and epsilon stand for."""
    stage: GaussianStage = field(repr=False)
    """That the proposals are of."""
    highest: np.ndarray = field(repr=False)
    """Theta of the largest density, in the order of the stage."""
    better: GaussianStage = field(repr=False)
    """The stage, with what the weights say of theta: where NUTS may start."""

    @property
    def attrs(self) -> dict[str, Any]:
        """What is kept with the draws."""
        return {
            "inference_library": "pymc_vsgp",
            "method": "importance",
            "khat": self.khat,
            "importance_ess": self.ess,
            "log_evidence": self.log_evidence,
            "n_evaluations": self.n_evaluations,
            "refused": self.refused,
            "interrupted": int(self.interrupted),
            "sampling_time": self.seconds,
        }

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether the stage may have ended at an optimum of little of the posterior."""
        refused = bool(self.refused and self.theta.size)
        return refused and not (self.stage_is_fine or self.interrupted)

    def __repr__(self):
        """Say it in a line."""
        if self.refused:
            return f"importance: {self.refused}"
        return (
            f"importance: k-hat {self.khat:.2f}, {len(self.theta)} proposals, "
            f"ESS {self.ess:.0f}, {self.seconds:.1f} s"
        )


def weigh(
    stage: GaussianStage,
    weigher: Weigher,
    n: int,
    rng,
    *,
    give_up: bool = True,
    walk: Callable[[Model], bool] | None = None,
    progressbar: Any = True,
) -> Weighed:
    """Draw n proposals of a model and weigh them.

    Parameters
    ----------
    stage : GaussianStage
        Whose coordinates the model has.
    weigher : Weigher
        Of the model of the stage, or of the same with the inducing values integrated out.
    n : int
        Number of draws. There are at least as many proposals, after those that the proposal density
        is fitted to.
    rng : Generator
        Source of the proposals.
    give_up : bool
        Whether to stop early where there is no hope.
    walk : callable, optional
        Whether chains may draw epsilon of a model where normal proposals tell nothing. By default
        they may.
    progressbar : bool
        Whether to show progress.
    """
    began = time.perf_counter()
    draws, thin = n, 1
    while n < FEWEST:  # of a handful of weights k-hat is not known
        n, thin = 4 * n, 4 * thin
    with progress("Importance", n, progressbar) as advance:
        weigher.begin(rng)
        q, K, batch, refit = _fit_proposal(weigher, stage, n, advance, walk)
        # Where chains draw epsilon, several times as many may take as long as NUTS does.
        for_nuts = give_up and weigher.chains is not None
        log_w = batch.log_marginal - q.logpdf(batch.theta)
        first = batch
        khat, ess = tail(log_w)
        hopeless = give_up and (ess < max(0.02 * len(log_w), 2.0) or khat > 1.0)
        interrupted, refused = False, ""
        noise = batch.log_variance
        if noisy := give_up and not weigher.adapted and noise > weigher.noisiest:
            refused = (
                f"given the parameters log weights vary by {np.sqrt(noise):.1f}, "
                f"in {weigher.points.n_epsilon} dimensions"
            )
        elif not hopeless:
            batch = weigher.evaluate(q.draw(n, rng), K, advance)
            interrupted = len(batch.theta) < n
            log_w = batch.log_marginal - q.logpdf(batch.theta)
            # What is left of the noise given theta is all that more of epsilon can take away.
            noisy_part = batch.inner_variance(log_w) / K > SOME * (len(log_w) / tail(log_w)[1] - 1)
            more_inner = noisy_part and K <= MOST and refusal(log_w)
            if more_inner and not (interrupted or for_nuts):
                more = weigher.more(batch.theta, 3 * K)
                interrupted = more is None
                batch = batch if more is None else batch.joined(more)
    K = batch.inner.shape[1]
    log_w, single, found, doubt = _judged(weigher, q, batch, draws)
    refused = refused or found
    told = len(log_w) >= FEW and np.isfinite(log_w).any()
    fits, may_refit = 0, told and batch.theta.shape[1] > 0 and not noisy
    may_go_on = may_refit and not (interrupted or hopeless)
    try:
        unseen = UNFIT if may_go_on and weigher.change_coordinates(q, batch, log_w) else ""
    except KeyboardInterrupt:
        unseen, interrupted = "", True
    while (refused or doubt.what or unseen) and not (interrupted or hopeless):
        again = may_refit and fits == 0 and bool(refused or doubt.of_tail or unseen)
        if may_refit and fits == 1:
            # One more fit to all so far costs less than several times as many from the last one.
            again = doubt.of_tail and not refused
        if not again and (refused or for_nuts):
            break
        why = refused or unseen
        if doubt.what and not refused:
            why = f"{doubt.what} of {len(log_w)} proposals"
        todo = "the proposals are fitted again" if again else "more are drawn"
        _log.info("importance: %s, so %s", why, todo)
        if again:
            fits += 1
            proposal, size = refit(q, batch), len(log_w)
        else:
            proposal, size = q, (doubt.times - 1) * len(log_w)
        with progress("Importance", size, progressbar) as advance:
            # Weights of what chains draw have a tail, too.
            fitted = again and weigher.chains is not None
            more = weigher.more(proposal.draw(size, rng), K, advance, fitted)
        interrupted = more is None
        if more is None:
            refused = refused or unseen
            break
        unseen = ""
        if again:
            q, batch = proposal, more
        else:
            thin *= doubt.times
            batch = Batch.concatenated([batch, more])
            if weigher.chains is not None:  # those of one chain one after another
                of = np.concatenate([parts(len(log_w)), parts(len(more.theta))])
                batch = batch.ordered(np.argsort(of, kind="stable"))
        log_w, single, refused, doubt = _judged(weigher, q, batch, draws)
    khat, ess = shape(log_w, single)[0], tail(log_w)[1]
    # A chain compares weights under one density, also where that was fitted anew.
    start = first.theta, first.epsilon, first.log_marginal - q.logpdf(first.theta)
    order = _order(weigher.points, stage)
    log_z = np.nan
    if weigher.chains is None:
        log_z = logsumexp(log_w) - np.log(len(log_w)) + np.log(q.kept)
    return Weighed(
        theta=batch.theta,
        epsilon=batch.epsilon,
        log_weight=log_w,
        khat=khat,
        ess=ess,
        log_evidence=float(log_z),
        n_evaluations=weigher.n_evaluations + (weigher.chains.n_gradients if weigher.chains else 0),
        n_inner=K,
        thin=thin,
        walked=weigher.chains is not None,
        stage_is_fine=bool(noisy or (doubt.what and not refused)),
        seconds=time.perf_counter() - began,
        refused=refused or doubt.what,
        interrupted=interrupted,
        start=start,
        points=weigher.points,
        stage=stage,
        highest=batch.theta[np.argmax(batch.log_marginal)][np.argsort(order)],
        better=_better(stage, weigher.points, batch.theta, log_w),
    )


def _judged(weigher: Weigher, q, batch: Batch, draws: int):
    """Return weights of theta and of each epsilon, why to refuse them, and what leaves a doubt."""
    log_w = batch.log_marginal - q.logpdf(batch.theta)
    single = batch.single(log_w)
    unmixed = "" if weigher.chains is None else weigher.chains.complaint()
    return log_w, single, unmixed or refusal(log_w, single), doubt_of(log_w, single, draws)


def _fit_proposal(weigher: Weigher, stage: GaussianStage, wanted: int, advance, walk=None):
    """Fit the density of the wanted proposals in a few rounds; return it, and what fits it anew."""
    points = weigher.points
    center, first = _estimate(points, stage)
    near, d = Near.one(center, first), len(center)
    n, K = int(np.clip(5 * d * (d + 3), 250, 2000)), 1
    if points.n_epsilon:
        of_theta, of_epsilon = weigher.cost
        K = 4 if of_epsilon < of_theta else 2
    # A round pays where it saves as many of the wanted proposals.
    best, pays = 0.0, max(GAIN, 1.0 + n / wanted)
    elsewhere = [_student(points, other) for other in stage.elsewhere]
    rounds: list[tuple[Any, Batch]] = []

    def refit(q, batch):
        rounds.append((q, batch))
        return mixture(adapt(rounds, first), weigher.prior, elsewhere)

    if points.n_epsilon >= MANY:
        q = mixture(near, weigher.prior, elsewhere)
        batch = _probe(weigher, q, K)
        nearly = NEARLY * points.n_epsilon
        if NORMAL < batch.log_variance < nearly and (walk is None or walk(points.model)):
            if walk is not None and points.n_theta > FEW_OF_CHAINS:
                weigher.limit = NORMAL
            elif weigher.walk(center):
                K = 2
                batch = _probe_of_chains(weigher, q, K)
        if batch.log_variance > weigher.noisiest:
            return q, K, batch, refit
    noise: list[Noise] = []
    best_at, refined_at = 0, ROUNDS
    for i in range(ROUNDS):
        advance(0, f"Importance, round {i + 1}" + (f", ESS {best / n:.0%}" if i else ""))
        q = mixture(near, weigher.prior, elsewhere)
        batch = weigher(q, n, K)
        rounds.append((q, batch))
        log_w = batch.log_marginal - q.logpdf(batch.theta)
        weigher.adapt(batch, log_w)
        _, ess = tail(log_w)
        noise.append(Noise(batch.inner_variance(log_w), batch.log_variance, ess))
        if not np.isfinite(ess):  # nor is any weight
            break
        elif (
            i < min(NOISY_ROUNDS, refined_at)
            and noise[i].likely > weigher.noisy
            and weigher.refine()
        ):
            refined_at = i
        elif noise[i].typical > weigher.noisiest and (
            points.n_epsilon > LARGEST or (weigher.chains is not None and i > 0)
        ):  # epsilon has no proposal that could learn
            break
        elif K > 1 and (i < 2 or i == refined_at + 1):
            part = LESS if weigher.chains is None else MUCH_LESS
            if i == refined_at + 1 and not _calmer(noise[-2], noise[-1], part):
                weigher.take(weigher.plain)
            K = _n_inner(min(x.likely for x in noise), *weigher.cost)
        elif ess > GOOD * n or (ess < pays * best and best > 0.3 * n) or i - best_at >= PATIENCE:
            break
        elif weigher.adapted:
            K = _n_inner(noise[i].likely, *weigher.cost)
        if ess > best:
            best, best_at = ess, i
        near = adapt(rounds, first)
        # Weights of chains elsewhere have another constant: a round has to follow.
        if ess >= LIKELY and i + 1 < ROUNDS and weigher.center_chains(near.moments[0]):
            rounds.clear()
    return q, K, batch, refit


class Noise(NamedTuple):
    """What the weights of epsilon vary by given theta, and how many theta are likely."""

    likely: float
    typical: float
    ess: float


def _calmer(before: Noise, after: Noise, part: float) -> bool:
    """Whether at most that part is left: of likely theta, or of typical ones if few are likely."""
    told = min(before.ess, after.ess) >= LIKELY
    a, b = (x.likely if told else x.typical for x in (before, after))
    return b <= part * a


def _probe(weigher: Weigher, q, K) -> Batch:
    """Return a few proposals, in the coordinates where their log weights vary less."""
    batch = weigher(q, PROBES, K)
    if batch.log_variance > NORMAL and weigher.refine():
        other = weigher(q, PROBES, K)
        weigher.take(weigher.plain)
        batch = min(batch, other, key=lambda b: b.log_variance)
    return batch


def _probe_of_chains(weigher: Weigher, q, K) -> Batch:
    """Let them draw in fitted coordinates, where log weights vary much less in these."""
    batch = weigher(q, PROBES, K)
    if batch.log_variance > FINE and weigher.refine():
        other = weigher(q, PROBES, K)
        if other.log_variance < MUCH_LESS * batch.log_variance:
            return other
        weigher.take(weigher.plain)
    return batch


def _n_inner(variance: float, of_theta: float, of_epsilon: float) -> int:
    """How many of epsilon for each theta give the most for what they cost."""
    best = 4.0 * np.sqrt(variance * of_theta / of_epsilon)
    return int(np.clip(np.ceil(np.clip(best, variance, 16.0 * variance)), 1, MOST))


def _student(points: Points, stage: GaussianStage) -> StudentT:
    """Return a proposal around the estimate of a stage."""
    center, cov = _estimate(points, stage)
    return of_theta(center, np.linalg.cholesky(cov))


def _estimate(points: Points, stage: GaussianStage) -> tuple[np.ndarray, np.ndarray]:
    """Return the estimate of a stage, and its covariance, in the order of `points`."""
    order = _order(points, stage)
    return stage._theta_normal()[0][order], stage.theta_covariance[np.ix_(order, order)]


def _order(points: Points, stage: GaussianStage) -> np.ndarray:
    """Where the entries of theta of `points` are in that of the stage."""
    at = np.arange(sum(np.size(v) for v in stage.theta_unconstrained.values()))
    return points.ravel(stage._split_theta(at)).astype(int)


def _better(stage, points, theta, log_w) -> GaussianStage:
    """Return the stage with the moments of theta under the weights, where these tell them."""
    if not theta.size:
        return stage
    ess, mean, found, _ = moments(theta, log_w)
    if ess < 10.0 * (theta.shape[1] + 5):
        return stage
    order = _order(points, stage)
    center, cov = np.empty(len(order)), np.empty((len(order),) * 2)
    center[order], cov[np.ix_(order, order)] = mean, found
    found = stage._split_theta(center)
    return replace(stage, theta_unconstrained=found, theta_covariance=cov, elsewhere=())
