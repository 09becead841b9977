"""Gaussian stages that start elsewhere, to see whether there is one optimum."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.logprob.transforms import LogTransform
from pytensor.gradient import grad
from pytensor.graph.traversal import ancestors
from scipy.special import softmax

from pymc_vsgp.compile import function
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
AT_ONCE, PER_ROW = 30.0, 5.0  # nats below the best optimum at such a start, and of little noise
HOPELESS = 10.0  # nats below it after the first steps, which take most of the way
SMALL = 0.01  # part of the posterior that is not worth a word


class ImproperPrior(ValueError):
    """Of a prior that can't be drawn from."""


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
        raise ImproperPrior(
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


def with_shorter_lengthscales(first: GaussianStage, bound: Any, fit: Callable) -> GaussianStage:
    """Fit again from shorter lengthscales, less noise and a larger variance; return the best.

    What is noise, or next to constant, at one optimum may be the function at another. Hardly any
    draw of the prior may be there, and no weight would tell.
    """
    stages = [first]
    try:
        noise, thetas = _shorter(first, bound)
        lost = PER_ROW * bound.n_rows if noise else AT_ONCE

        def promising(elbo, theta, rounds):
            gain = elbo - max(s.elbo for s in stages)
            if not rounds:
                return gain > -lost
            away = min(s._deviations(theta - bound.ravel(s.theta_unconstrained)) for s in stages)
            return gain > BETTER or (gain > -HOPELESS and away > APART)

        for theta in thetas:
            try:
                found = fit(theta, promising=promising)
            except (ValueError, ArithmeticError):  # no number there
                continue
            if found is not None and found.interrupted:
                raise KeyboardInterrupt
            stages += [] if found is None else [found]
    except KeyboardInterrupt:
        said = "Interrupted in another start. What earlier ones found is kept."
        return replace(_best(stages)[0], interrupted=True, message=said)
    return _best(stages)[0]


def _shorter(stage: GaussianStage, bound: Any) -> tuple[bool, list[np.ndarray]]:
    """Return thetas with shorter lengthscales: each alone, where they are few, and all of them.

    Before them comes whether these have less noise, too. What the prior variance does not depend
    on counts as a lengthscale, if correlations do.
    """
    model, at = bound.model, stage.theta_unconstrained
    above = set(ancestors([p.u.owner.inputs[2] for p in bound.processes]))
    of_kernel = [rv for rv in bound.others if rv in above]
    if not of_kernel:
        return False, []
    noise = _less_noise(model, at, bound, of_kernel)
    moved, steps = at | noise, {}
    now = _prior_spread(bound, at)
    for rv in of_kernel:
        name = model.rvs_to_values[rv].name
        ratios = np.array(
            [_prior_spread(bound, at | {name: at[name] + step}) / now for step in (-LESS, LESS)]
        )
        if not np.isfinite(ratios).all():
            continue
        size, correlated = ratios[:, :, 0].max(axis=1), ratios[:, :, 1].min(axis=1)
        if size.max() > 2.0:
            moved[name] = at[name] + (np.argmax(size) - 0.5) * LESS
        elif correlated.min() < 0.9:
            steps[name] = (2 * np.argmin(correlated) - 1) * LESS
    axes = [(name, i) for name in steps for i in np.ndindex(np.shape(at[name]))]
    some = [axes] if axes else []
    if 1 < len(axes) <= EACH:
        some += [[axis] for axis in axes]
    found = []
    for each in some:
        theta = {name: np.array(x, dtype="float64") for name, x in moved.items()}
        for name, i in each:
            theta[name][i] += steps[name]
        found.append(bound.ravel(theta))
    return bool(noise), found


def _prior_spread(bound: Any, at) -> np.ndarray:
    """Return the prior variance of each process, and how correlated its values are."""
    found = []
    for R in bound.prior_roots(bound.ravel(at)):
        K = R @ R.T if R.ndim == 2 else np.diag(R**2)
        found.append([np.trace(K), (K**2).sum() / np.trace(K) ** 2])
    return np.array(found)


def _less_noise(model, at, bound, of_kernel) -> dict[str, np.ndarray]:
    """Return what parameters of the noise are where there is a fifth of it, at most."""
    logs: list[Any] = []
    for of in observations(model).values():
        family = of.likelihood.of_output
        if (powers := family.of_spread) is None:  # what is positive is a scale, mostly
            seen = set(ancestors(family.params.values())) & set(bound.others)
            positive = {rv: model.rvs_to_transforms[rv] for rv in seen}
            found = [rv for rv, t in positive.items() if isinstance(t, LogTransform)]
            logs += [pt.log(rv).mean() for rv in found]
        else:
            logs += [power * pt.log(family.params[n]).mean() for n, power in powers.items()]
    above = set(ancestors(logs))
    rvs = [rv for rv in bound.others if rv in above and rv not in of_kernel]
    if not rvs:
        return {}
    values = [model.rvs_to_values[rv] for rv in rvs]
    (graph,) = model.replace_rvs_by_values([sum(logs)])
    given = [model.rvs_to_values[rv] for rv in bound.others]
    slopes = function(given, grad(graph, values, disconnected_inputs="ignore"))(
        *(at[v.name] for v in given)
    )
    square = sum((slope**2).sum() for slope in slopes)
    largest = max(np.abs(slope).max() for slope in slopes)
    if not (np.isfinite(square) and square > 0.0):
        return {}
    step = min(LESS / square, 2.0 * LESS / largest)
    return {v.name: at[v.name] - step * s for v, s in zip(values, slopes, strict=True)}


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
