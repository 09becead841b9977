"""Gaussian stages that start elsewhere, to see whether there is one optimum."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pymc.logprob.transforms import IntervalTransform, LogTransform
from pytensor.graph.traversal import ancestors
from scipy.special import softmax

from pymc_vsgp.fit.bound import Variables, of_prior
from pymc_vsgp.fit.proposals import drawing
from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.model.observation import observations

APART = 3.0  # standard deviations between optima that are different ones
STARTS = 4  # where weights are refused: NUTS takes longer than all of them
BETTER = 1.0  # nats, from where another optimum is worth new proposals
MORE = 200  # times as many draws of the prior, where some of them have no density
EACH = 4  # lengthscales that are shortened one by one
LESS = np.log(5.0)  # of noise, and of a lengthscale, where a stage starts again
SMALL = 0.01  # part of the posterior that is not worth a word


def best_of(
    first: GaussianStage, n: int, variables: Variables, fit: Callable, random_seed
) -> tuple[GaussianStage, str]:
    """Fit n - 1 times more, from draws of the prior, and return the best, and what to say of it.

    `fit` returns the stage that starts at a theta, and `first` is that of the initial point.
    """
    rng = np.random.default_rng(random_seed)
    try:
        flat = _of_prior(variables, n - 1, rng)
    except NotImplementedError:
        raise ValueError(
            "Starts are drawn from the prior, and a parameter has an improper one. "
            "Give it a proper prior, or drop n_starts."
        ) from None
    except ArithmeticError as error:  # numpy divides by a gamma that underflows
        raise ValueError(
            f"Starts are drawn from the prior, and draws fail: {error}. "
            "Give parameters priors that are less wide, or drop n_starts."
        ) from error
    stages = all_of(first)
    for i, theta in enumerate(flat, start=2):
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
    best, share = _best(stages)
    if not best.elsewhere:
        return best, ""
    other = best.elsewhere[0]
    name = max(best.theta, key=lambda k: _gap(best, other, k))
    values = [np.array2string(np.asarray(m.theta[name]), precision=3) for m in (best, other)]
    return best, (
        f"Starts disagree: they ended at {1 + len(best.elsewhere)} optima, at {name} = "
        f"{values[0]} with about {share[0]:.0%} of the posterior, and at {values[1]} with "
        f"{share[1]:.0%}. "
        "sample() proposes from all of them; compare with method='nuts' and many chains."
    )


def where_noise_is_less(first: GaussianStage, bound: Any, fit: Callable) -> GaussianStage:
    """Fit again from less noise, a shorter lengthscale and a larger variance; return the best.

    What is noise at one optimum may be the function at another. Hardly any draw of the prior may be
    there, and no weight would tell.
    """
    stages = [first]
    for theta in _less_noise(first, bound):
        try:
            stages.append(fit(theta))
        except (ValueError, ArithmeticError):  # no number there
            continue
        if stages[-1].interrupted:
            said = "Interrupted in another start. What the first one found is kept."
            return replace(first, interrupted=True, message=said)
    return _best(stages)[0]


def _less_noise(stage: GaussianStage, bound: Any) -> list[np.ndarray]:
    """Return a theta for each lengthscale: what the prior variance does not depend on."""
    model, at = bound.model, stage.theta_unconstrained
    seen = observations(model).values()
    of_noise = set(ancestors([o.likelihood.of_output.params["sigma"] for o in seen]))
    of_kernel = set(ancestors([p.u.owner.inputs[2] for p in bound.processes]))
    positive = [
        (rv, model.rvs_to_values[rv].name)
        for rv in bound.others
        if isinstance(model.rvs_to_transforms[rv], LogTransform | IntervalTransform)
    ]
    noise = {name: at[name] - LESS for rv, name in positive if rv in of_noise}
    if not noise:
        return []

    def size(moved):
        return np.linalg.norm(bound(bound.ravel(at | moved)).R[0])

    kernel = {name: np.asarray(at[name]) for rv, name in positive if rv in of_kernel - of_noise}
    now = size({})
    scales = {name for name, x in kernel.items() if size({name: x - LESS}) < 0.5 * now}
    lengths = {name: x for name, x in kernel.items() if name not in scales}
    moved = at | noise | {name: kernel[name] + LESS for name in scales}
    # One input at a time where they are few: the function may be of it alone.
    few, found = sum(x.size for x in lengths.values()) <= EACH, []
    for name, x in lengths.items():
        for which in np.eye(x.size) if few else np.ones((1, x.size)):
            found.append(bound.ravel(moved | {name: x - LESS * which.reshape(x.shape)}))
    return found


def _of_prior(variables: Variables, n: int, rng) -> np.ndarray:
    """Draw n of theta from the prior, fewer where hardly any draw is where it has a density.

    PyMC draws ordered variables in any order, but their density is of those in order.
    """
    draw = drawing(of_prior(variables.model, variables.others))
    kept = np.empty((0, 0))
    for wanted in (n, n * MORE):
        theta = draw(wanted, rng)
        kept = theta[np.isfinite(theta).all(axis=1)][:n]
        if len(kept) == n:
            break
    return kept


def search(stage: GaussianStage, theta: np.ndarray, fitter: Any, random_seed, progressbar):
    """Look for other optima; return the stage with what is new, or None where nothing is.

    From a theta that proposals found, and from draws of the prior. Sites are of the same sizes, so
    that what is compiled for one stage is valid for another.
    """

    def fit(theta):
        return fitter(theta=theta, progressbar=progressbar)

    found: list[GaussianStage] = []
    try:
        found.append(fit(theta))
        if not found[0].interrupted:
            found += all_of(best_of(found[0], STARTS, fitter.bound, fit, random_seed)[0])
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):  # no number, or an improper prior
        pass
    if any(other.interrupted for other in found):
        raise KeyboardInterrupt("In the search for other optima.")
    sizes = {name: x.root.shape for name, x in stage.sites.items()}
    found = [s for s in found if sizes == {name: x.root.shape for name, x in s.sites.items()}]
    best = replace(_best([*all_of(stage), *found])[0], Xu_before=stage.Xu_before)
    higher = best.log_mass > stage.log_mass + BETTER
    return best if higher or len(best.elsewhere) > len(stage.elsewhere) else None


def all_of(stage: GaussianStage) -> list[GaussianStage]:
    """Return a stage, and those that ended elsewhere."""
    return [replace(stage, elsewhere=()), *stage.elsewhere]


def shares(stages: list[GaussianStage]) -> np.ndarray:
    """Return about which part of the posterior is at each optimum."""
    return softmax([s.log_mass for s in stages])


def _best(stages: list[GaussianStage]) -> tuple[GaussianStage, np.ndarray]:
    """Return the best stage, with what others found elsewhere, and the share of each optimum."""
    modes: list[GaussianStage] = []
    for stage in sorted(stages, key=lambda s: -s.log_mass):
        if all(_distance(stage, other) > APART for other in modes):
            modes.append(stage)
    share = shares(modes)
    kept = [m for m, part in zip(modes, share, strict=True) if part > SMALL]
    return replace(kept[0], elsewhere=tuple(kept[1:])), share


def _distance(a: GaussianStage, b: GaussianStage) -> float:
    """Distance of estimates, in standard deviations of the wider one."""
    away = a._theta_normal()[0] - b._theta_normal()[0]
    return min(s._deviations(away) for s in (a, b))


def _gap(a: GaussianStage, b: GaussianStage, name: str) -> float:
    value = a.model.rvs_to_values[a.model[name]].name
    return float(np.abs(a.theta_unconstrained[value] - b.theta_unconstrained[value]).max())
