"""Importance weights: how they are smoothed, and whether they are good enough."""

from typing import NamedTuple

import numpy as np

from arviz_stats.base import array_stats
from scipy.special import logsumexp

LARGEST_K = 0.6  # up to which errors of means are what weights say: see benchmarks/khat.py
FEW = 100  # proposals, below which k-hat may not be known
ENOUGH = 16_000  # proposals that tell k-hat well
ENOUGH_ESS = 400  # for R-hat and quantiles: 100 for each of four chains (Vehtari et al., 2021)
SMALLEST_SHARE = 0.1  # of the proposals: what their sample is worth
UNDERFLOWS = 700.0  # below the largest: no number is left of such a weight


def smooth_weights(log_w: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log weights, and the shape of their tail, where there are enough for one."""
    if np.isnan(log_w).any():
        return log_w, np.nan
    if len(log_w) < 25:
        return log_w - np.logaddexp.reduce(log_w), np.nan
    if np.ptp(log_w) < 1e-8:
        return np.full(len(log_w), -np.log(len(log_w))), -np.inf
    return psis(log_w)


def psis(log_w: np.ndarray, r_eff: float = 1.0) -> tuple[np.ndarray, float]:
    """Return smoothed log weights and the shape of their tail; where it has none, plain ones."""
    plain = log_w - logsumexp(log_w)
    try:
        with np.errstate(all="ignore"):
            smoothed, khat = array_stats.psislw(-log_w, r_eff=r_eff)
    except ValueError as error:
        if "the same" not in str(error):
            raise
        # Those in the tail are, or have all underflowed.
        largest = np.sort(log_w)[-(len(log_w) // 5) :]
        return plain, np.inf if np.ptp(largest) > UNDERFLOWS else 0.0
    if not np.isfinite(smoothed).all():  # they differ by too much for a shape
        return plain, np.inf
    return smoothed, float(khat)


def finite(log_w):
    """Return log weights less the largest; hardly any weight where they are not finite."""
    top = log_w.max()
    if not np.isfinite(top):
        return np.full_like(log_w, np.nan)
    return np.where(np.isfinite(log_w), log_w - top, -1e4)


def tail(log_w) -> tuple[float, float]:
    """Pareto k-hat of weights, and what their sample is worth."""
    log_w = finite(log_w)
    w = np.exp(log_w - logsumexp(log_w))
    return smooth_weights(log_w)[1], float(1.0 / (w**2).sum())


def shape(log_w, single) -> tuple[float, float]:
    """Pareto k-hat and its standard error, of the heavier tail.

    A mean of a few single weights has their tail, but hides it: it begins where no mean has been.
    """
    found = []
    for x in (log_w, single)[: 1 + (len(single) > len(log_w))]:
        khat, _ = tail(x)
        found.append((khat, (1.0 + khat) / np.sqrt(min(0.2 * len(x), 3.0 * np.sqrt(len(x))))))
    return max(found, key=lambda x: x[0])


def refusal(log_w, single=()) -> str:
    """Why weights are not good enough, or nothing."""
    if not np.isfinite(log_w).any():
        return "no finite weight"
    khat, ess = shape(log_w, single)[0], tail(log_w)[1]
    if np.isnan(khat) and len(log_w) < FEW:
        return ""  # but a doubt
    if not khat <= LARGEST_K:
        return f"k-hat {khat:.2f}"
    if ess < SMALLEST_SHARE * len(log_w):
        return f"ESS {ess:.0f} of {len(log_w)} proposals"
    halves = [log_w[::2], log_w[1::2]]
    levels = [logsumexp(h) - np.log(len(h)) for h in halves]
    error = np.sqrt(sum(1.0 / tail(h)[1] for h in halves))
    if abs(levels[0] - levels[1]) > 4.0 * error:
        return "halves of the weights disagree"
    return ""


class Doubt(NamedTuple):
    """What leaves a doubt, if anything does, and what may settle it."""

    what: str = ""
    of_tail: bool = False  # so that a better proposal density may settle it
    times: int = 1  # as many proposals, of the same one


def doubt_of(log_w, single=(), draws: int = 0) -> Doubt:
    """Whether k-hat may be small by chance, or the sample is worth too little for its draws.

    Few weights of a heavy tail may look light. What is worth less than half of the draws shows in
    R-hat, unless it is enough for that anyway.
    """
    khat, error = shape(log_w, single)
    if len(log_w) >= ENOUGH:
        return Doubt()
    if not khat + error <= LARGEST_K:
        what = "unknown k-hat" if np.isnan(khat) else f"k-hat {khat:.2f} ± {error:.2f}"
        return Doubt(what, of_tail=True, times=4)
    ess, needed = tail(log_w)[1], min(draws / 2, ENOUGH_ESS)
    return Doubt(f"ESS {ess:.0f}", times=2 if 2 * ess > needed else 4) if ess < needed else Doubt()
