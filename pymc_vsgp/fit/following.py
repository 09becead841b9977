r"""Sites that follow parameters of likelihoods, as the best q of each of them does.

Where a parameter of a likelihood moves, such as an intercept, so does the mean of u under q. Sites
of one theta would hold it, and the two would wait for each other. So their linear part is
:math:`\lambda_0 + D \theta_y`, with a slope D of what the data pull,

.. math:: D = \frac{\partial}{\partial \theta_y} \nabla_u E_q \log p(y | f, \theta_y),

where q stays: to first order, and so far as its precision stays, that is what the best q does. D is
taken from differences. Fourier coefficients have the parameters of the mean function in
:math:`\theta_y`, too, for that is a part of f and not of u.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from scipy.sparse.linalg import LinearOperator, cg

from pymc_vsgp.fit.bound import Evaluation, slope_in_v
from pymc_vsgp.fit.joint import shared_sites
from pymc_vsgp.inducing.coordinates import Sites

__all__ = [
    "a_step",
    "following",
    "here_of",
    "in_company",
    "in_the_end",
    "joint_pulls",
    "resistance",
    "slopes_of",
    "together",
    "with_slopes",
]

SHIFT = 1e-4  # of a parameter, and of coefficients in their deviations
TOO_LONG, SHORTER, SHORTEST = 1.0, 1e-3, 1e-12  # in standard deviations; what is tried then
SMALL = 1e-4  # of what is left in an equation
STEPS = 50  # at most, until that


def following(fit: Any, sites: list[Sites], folded: bool = False) -> list[Sites]:
    """Return sites that follow the parameters, and are the same at those of a `Natural` fit.

    Those of `folded` coefficients are left as they are, unless they are asked for.
    """
    processes, slopes = fit.bound.processes, {}
    here = here_of(fit, sites)
    some = [i for i, p in enumerate(processes) if not p.diagonal and (folded or not p.folded)]
    for i, (pulled, means) in pulls(fit, some, here).items():
        slopes[i] = pulled
        for j in np.flatnonzero(means.any(axis=(0, 1))):
            pulled[..., j] += fit.resistance(i, means[..., j])
    return with_slopes(fit, here, slopes)


def in_the_end(fit: Any, sites: list[Sites]) -> list[Sites]:
    """Return the same for the model, with what rounds of a fit do without.

    Sites of many coefficients say something of each alone, and their best q has correlations.
    Functions that share a likelihood make up for each other: each would follow an intercept as if
    the others stayed, and their sum would be far from it.
    """
    here, some = here_of(fit, sites), in_company(fit)
    shared = together(fit, some, here)
    if shared is not None:
        return shared
    return with_slopes(fit, sites, slopes_of(fit, here, joint_pulls(fit, some, here)))


def together(fit: Any, some: list[int], here: list[Sites]) -> list[Sites] | None:
    """Return sites of functions together, if they have them, that follow the parameters."""
    shared = shared_sites(fit, partial(pulls, fit, some, here))
    return None if shared is None else with_slopes(fit, *shared)


def here_of(fit: Any, sites: list[Sites]) -> list[Sites]:
    """Return what sites are at the parameters of a fit."""
    return [s.at(fit.theta[p.at]) for s, p in zip(sites, fit.bound.processes, strict=True)]


def in_company(fit: Any) -> list[int]:
    """Return the processes whose sites do not say all that pulls them back.

    Sites of sparse and of folded values are no precision that makes a center of the prior.
    """
    return [
        i
        for i, p in enumerate(fit.bound.processes)
        if p.diagonal or (fit.n_sharing > 1 and not p.sparse and not p.folded)
    ]


def slopes_of(fit: Any, sites: list[Sites], found: dict[int, tuple]) -> dict[int, np.ndarray]:
    """Return how the linear part of sites moves, where u is pulled and its prior mean moves."""
    slopes = {}
    for i, (pulled, means) in found.items():
        moved = [_curved(fit, i, sites, means[..., j]) for j in range(means.shape[-1])]
        slopes[i] = pulled + np.stack(moved, axis=-1)
    return slopes


def joint_pulls(fit: Any, some: list[int], sites: list[Sites]) -> dict[int, tuple]:
    """Return `pulls`, less what others pull back and sites of a process do not say.

    These are other functions that share its likelihood, and other coefficients.
    """
    pulled = pulls(fit, some, sites)
    where = {i: fit.bound.processes[i].at.tolist() for i in pulled}
    for j in sorted({j for at in where.values() for j in at}):
        pull = {i: pulled[i][0][..., at.index(j)] for i, at in where.items() if j in at}
        for group in [pull] if fit.n_sharing > 1 else [{i: x} for i, x in pull.items()]:
            if fit.n_sharing == 1 and not fit.bound.processes[next(iter(group))].diagonal:
                continue  # its sites say all of it
            v = _response(fit, sites, group)
            back = _pulled_back(fit, sites, v)
            for i, x in group.items():
                said = _curved(fit, i, sites, _unwhitened(fit.evaluation.R[i], v[i]))
                # Through data, not through the inverse of R: that suits one theta alone.
                pulled[i][0][..., where[i].index(j)] = x - back[i] + said
    return pulled


def with_slopes(fit: Any, sites: list[Sites], slopes: dict[int, np.ndarray]) -> list[Sites]:
    """Return sites with these slopes."""
    out = list(sites)
    for i, slope in slopes.items():
        # Zeros in place of None: what is compiled for a model takes a slope, or does not.
        slope = slope if np.isfinite(slope).all() else np.zeros_like(slope)
        out[i] = sites[i].following(slope, fit.theta[fit.bound.processes[i].at])
    return out


def pulls(fit: Any, some: list[int], sites: list[Sites]) -> dict[int, tuple]:
    """Return how parameters of some processes pull u where v stays, and move its prior mean.

    Both are K x M x d.
    """
    processes, ev = fit.bound.processes, fit.evaluation
    some = [i for i in some if len(processes[i].at)]
    q, shifted = _as_q(fit, sites), {}
    for j in {int(j) for i in some for j in processes[i].at}:
        h, to = a_step(lambda to: fit.evaluate(to, q, fit.moved), ev, fit.theta, j, SHIFT)
        shifted[j] = h, (_where_v_stays(fit, q, j, h, to) if fit.n_sharing > 1 else to)
    out = {}
    for i in some:
        p, pulled, means = processes[i], [], []
        for h, to in (shifted[j] for j in p.at):
            mean = np.zeros_like(ev.mean[i]) + to.prior_mean[i] - ev.prior_mean[i]
            moved = _mean(to, i, p) - _mean(ev, i, p) - mean
            pull = to.pull(i, p) - ev.pull(i, p)
            # Sites that stay hold v, too, but where the prior mean moves.
            pull = pull + fit.resistance(i, moved) if moved.any() else pull
            pulled.append(pull / h)
            means.append(mean / h)
        out[i] = tuple(np.stack(x, axis=-1) for x in (pulled, means))
    return out


def _where_v_stays(fit: Any, q: list[Any], j: int, h: float, to: Evaluation) -> Evaluation:
    """Return what is found after a step of a parameter where v of all functions stays.

    Sites that stay hold u where its prior mean moves, and others that share the data would see it.
    """
    there = list(q)
    for i, p in enumerate(fit.bound.processes):
        mean = to.prior_mean[i] - fit.evaluation.prior_mean[i]
        if mean.any() and not (p.held or p.sparse):
            means = np.broadcast_to(mean, q[i].linear.shape)
            there[i] = q[i]._replace(linear=q[i].linear + _curved(fit, i, q, means))
    theta = fit.theta.copy()
    theta[j] += h
    same = all(a is b for a, b in zip(there, q, strict=True))
    return to if same else fit.evaluate(theta, there, fit.moved)


def a_step(
    evaluate: Callable[[np.ndarray], Evaluation],
    ev: Evaluation,
    theta: np.ndarray,
    j: int,
    h: float,
) -> tuple[float, Evaluation]:
    """Return a step of a parameter, of h at most, and what is found there.

    It is shorter where that would take f far, as a coefficient of a covariate in thousands does.
    """
    there = theta.copy()
    while True:
        there[j] = theta[j] + h
        found = evaluate(there)
        size = np.sqrt(h * np.abs(found.gradient[j] - ev.gradient[j]))
        if size < TOO_LONG or h < SHORTEST:
            return h, found
        h *= SHORTER


def resistance(fit: Any, i: int, moved: np.ndarray) -> np.ndarray:
    """Return how the data pull u of a process back from there, K x M."""
    ev, p = fit.evaluation, fit.bound.processes[i]
    if p.diagonal:
        scale = float(np.abs(moved).max())
        v = np.divide(moved, scale * ev.R[i], out=np.zeros_like(moved), where=moved != 0.0)
        return scale * _pulled_back(fit, fit.sites, {i: v})[i]
    if p.sparse:
        return ev.precision[i] * moved
    if p.independent:
        return (ev.precision[i] @ moved[:, :, None])[:, :, 0]
    solve = partial(scipy.linalg.solve_triangular, ev.R[i], lower=True)
    return solve((ev.precision[i] @ solve(moved.T).T[:, :, None])[:, :, 0].T, trans=1).T


def _response(fit: Any, sites: list[Sites], pull: dict[int, np.ndarray]) -> dict:
    """Return how v of the best q of some processes moves where u is pulled like that."""
    processes, ev = fit.bound.processes, fit.evaluation
    square = {i: 1.0 + (ev.R[i] * sites[i].root) ** 2 for i in pull if processes[i].diagonal}
    ends = np.cumsum([x.size for x in pull.values()])

    def split(x):
        parts = np.split(x, ends[:-1])
        return {i: a.reshape(b.shape) for a, (i, b) in zip(parts, pull.items(), strict=True)}

    def joined(parts):
        return np.concatenate([parts[i].ravel() for i in pull])

    def alone(x):
        found = split(x)
        for i, b in found.items():
            if i in square:
                found[i] = b / square[i]
            else:
                pairs = zip(np.asarray(ev.factor[i]), b, strict=True)
                found[i] = np.stack([scipy.linalg.cho_solve((L, True), row) for L, row in pairs])
        return joined(found)

    def times(x):
        back = _pulled_back(fit, sites, split(x))
        return x + joined({i: slope_in_v(ev.R[i], b) for i, b in back.items()})

    b = joined({i: slope_in_v(ev.R[i], x) for i, x in pull.items()})
    A, M = (LinearOperator((b.size, b.size), f, dtype=float) for f in (times, alone))
    return split(cg(A, b, rtol=SMALL, maxiter=STEPS, M=M)[0])


def _pulled_back(fit: Any, sites: list[Sites], v: dict[int, np.ndarray]) -> dict:
    """Return how the data pull u of some processes back from such a step of their v."""
    processes, ev = fit.bound.processes, fit.evaluation
    h = SHIFT / max(*(float(np.abs(x).max()) for x in v.values()), 1e-300)
    there = _as_q(fit, sites)
    for i, x in v.items():
        far = x if processes[i].held else _linear_of(fit, i, sites, x)
        there[i] = there[i]._replace(linear=there[i].linear + h * far)
    to = fit.evaluate(fit.theta, there, fit.moved)
    return {i: (ev.pull(i, processes[i]) - to.pull(i, processes[i])) / h for i in v}


def _as_q(fit: Any, sites: list[Sites]) -> list[Any]:
    """Return what evaluations take for sites: of q(v) that is held, itself."""
    return [fit.sites[i] if p.held else sites[i] for i, p in enumerate(fit.bound.processes)]


def _linear_of(fit: Any, i: int, sites: list[Sites], v: np.ndarray) -> np.ndarray:
    """Return how far the linear part of sites moves v so far, K x M."""
    R = fit.evaluation.R[i]
    if R.ndim == 1:
        # Coefficients of high frequencies may have no variance.
        far = np.divide(v, R, out=np.zeros_like(v), where=R > 0.0)
    else:
        far = scipy.linalg.solve_triangular(R, v.T, lower=True, trans=1).T
    return far + _curved(fit, i, sites, _unwhitened(R, v))


def _unwhitened(R: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return how far u moves where v moves so far."""
    return R * v if R.ndim == 1 else v @ R.T


def _curved(fit: Any, i: int, sites: list[Sites], u: np.ndarray) -> np.ndarray:
    """Return the product of the precision of sites with each row of u."""
    p, root = fit.bound.processes[i], sites[i].root
    if p.diagonal:
        return root**2 * u
    if p.folded:
        return np.einsum("kij,kj->ki", root, u)
    return np.einsum("kij,klj,kl->ki", root, root, u, optimize=True)


def _mean(ev: Evaluation, i: int, p: Any) -> np.ndarray:
    """Return the mean of u under q."""
    m, R = ev.mean[i], ev.R[i]
    alone = p.sparse or p.independent or p.folded
    return ev.prior_mean[i] + (R * m if alone else m @ R.T)
