"""Gaussian stages that start elsewhere, to see whether there is one optimum."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pymc as pm

from pymc_vsgp.compile import ONCE
from pymc_vsgp.fit.bound import Variables, unconstrained
from pymc_vsgp.fit.stage import GaussianStage

APART = 3.0  # standard deviations between optima that are different ones
SMALL = 0.01  # part of the posterior that is not worth a word


def best_of(
    first: GaussianStage, n: int, variables: Variables, fit: Callable, random_seed
) -> tuple[GaussianStage, str]:
    """Fit n - 1 times more, from draws of the prior, and return the best, and what to say of it.

    `fit` returns the stage that starts at a theta, and `first` is that of the initial point.
    """
    rng = np.random.default_rng(random_seed)
    try:
        graphs = unconstrained(variables.model, variables.others)
        drawn = pm.draw(graphs, n - 1, random_seed=int(rng.integers(2**31)), mode=ONCE)
    except NotImplementedError:
        raise ValueError(
            "Starts are drawn from the prior, and a parameter has an improper one. "
            "Give it a proper prior, or drop n_starts."
        ) from None
    flat = np.concatenate([np.reshape(x, (n - 1, -1)) for x in drawn], axis=1)
    stages = [first]
    for i, theta in enumerate(flat.astype("float64"), start=2):
        interrupted = False
        try:
            stages.append(fit(theta))
        except ValueError:  # where a prior reaches beyond what floating point does
            continue
        except KeyboardInterrupt:
            interrupted = True
        if interrupted or stages[-1].interrupted:
            best = max(stages, key=lambda s: s.log_mass)
            said = f"Interrupted in start {i} of {n}. The best of them so far is kept."
            return replace(best, interrupted=True, message=said), ""
    modes: list[GaussianStage] = []
    for stage in sorted(stages, key=lambda s: -s.log_mass):
        if all(_distance(stage, other) > APART for other in modes):
            modes.append(stage)
    share = np.exp([m.log_mass - modes[0].log_mass for m in modes])
    share /= share.sum()
    kept = [m for m, part in zip(modes, share, strict=True) if part > SMALL]
    best = replace(kept[0], elsewhere=tuple(kept[1:]))
    if len(kept) == 1:
        return best, ""
    name = max(best.theta, key=lambda k: _gap(best, kept[1], k))
    values = [np.array2string(np.asarray(m.theta[name]), precision=3) for m in kept[:2]]
    return best, (
        f"Starts disagree: they ended at {len(kept)} optima, at {name} = {values[0]} with about "
        f"{share[0]:.0%} of the posterior, and at {values[1]} with {share[1]:.0%}. "
        "sample() proposes from all of them; compare with method='nuts' and many chains."
    )


def _distance(a: GaussianStage, b: GaussianStage) -> float:
    """Distance of estimates, in standard deviations of the wider one."""
    away = a._theta_normal()[0] - b._theta_normal()[0]
    both = (away @ np.linalg.solve(s.theta_covariance, away) for s in (a, b))
    return float(np.sqrt(min(both)))


def _gap(a: GaussianStage, b: GaussianStage, name: str) -> float:
    value = a.model.rvs_to_values[a.model[name]].name
    return float(np.abs(a.theta_unconstrained[value] - b.theta_unconstrained[value]).max())
