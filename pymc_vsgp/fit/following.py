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

from pymc_vsgp.fit.bound import Evaluation
from pymc_vsgp.inducing.coordinates import Sites

__all__ = ["a_step", "coefficients_following", "following", "pulls", "resistance", "with_slopes"]

SHIFT = 1e-4  # of a parameter, and of coefficients in their deviations
TOO_LONG, SHORTER, SHORTEST = 1.0, 1e-3, 1e-12  # in standard deviations; what is tried then
SMALL = 1e-4  # of what is left in an equation
STEPS = 50  # at most, until that


def following(fit: Any, sites: list[Sites], folded: bool = False) -> list[Sites]:
    """Return sites that follow the parameters, and are the same at those of a `Natural` fit.

    Those of `folded` coefficients are left as they are, unless they are asked for.
    """
    processes, slopes = fit.bound.processes, {}
    here = [s.at(fit.theta[p.at]) for s, p in zip(sites, processes, strict=True)]
    some = [i for i, p in enumerate(processes) if not p.diagonal and (folded or not p.folded)]
    for i, (pulled, means) in pulls(fit, some, here).items():
        slopes[i] = pulled
        for j in np.flatnonzero(means.any(axis=(0, 1))):
            pulled[..., j] += fit.resistance(i, means[..., j])
    return with_slopes(fit, here, slopes)


def coefficients_following(fit: Any, sites: list[Sites]) -> list[Sites]:
    """Return the same for many coefficients, whose sites say something of each alone.

    Their best q has correlations, so it is found by conjugate gradients.
    """
    some, slopes = [i for i, p in enumerate(fit.bound.processes) if p.diagonal], {}
    for i, (pulled, means) in pulls(fit, some, sites).items():
        R, precision = fit.evaluation.R[i], sites[i].root ** 2
        square = 1.0 + R**2 * precision
        slopes[i] = np.empty_like(pulled)
        for j in range(pulled.shape[2]):
            v = _solved(fit, i, R * pulled[..., j], square)
            # What the diagonal makes of the center has to move like that.
            slopes[i][..., j] = square * v / R + precision * means[..., j]
    return with_slopes(fit, sites, slopes)


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
    held = [fit.sites[i] if p.held else sites[i] for i, p in enumerate(processes)]
    shifted = {}
    for j in {int(j) for i in some for j in processes[i].at}:
        shifted[j] = a_step(lambda to: fit.evaluate(to, held, fit.moved), ev, fit.theta, j, SHIFT)
    out = {}
    for i in some:
        p, pulled, means = processes[i], [], []
        for h, to in (shifted[j] for j in p.at):
            mean = np.zeros_like(ev.mean[i]) + to.prior_mean[i] - ev.prior_mean[i]
            moved = _mean(to, i, p) - _mean(ev, i, p) - mean
            pull = _pull(to, i, p) - _pull(ev, i, p)
            # Sites that stay hold v, too, but where the prior mean moves.
            pull = pull + fit.resistance(i, moved) if moved.any() else pull
            pulled.append(pull / h)
            means.append(mean / h)
        out[i] = tuple(np.stack(x, axis=-1) for x in (pulled, means))
    return out


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
        return scale * _pulled_back(fit, i, v)
    if p.sparse:
        return ev.precision[i] * moved
    if p.independent:
        return (ev.precision[i] @ moved[:, :, None])[:, :, 0]
    solve = partial(scipy.linalg.solve_triangular, ev.R[i], lower=True)
    return solve((ev.precision[i] @ solve(moved.T).T[:, :, None])[:, :, 0].T, trans=1).T


def _solved(fit: Any, i: int, b: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """Return x where its product with the precision of the best q(v) is `b`."""

    def times(x):
        x = x.reshape(b.shape)
        return (x + fit.evaluation.R[i] * _pulled_back(fit, i, x)).ravel()

    n = b.size
    A, M = (LinearOperator((n, n), f) for f in (times, lambda x: x / diagonal.ravel()))
    return cg(A, b.ravel(), rtol=SMALL, maxiter=STEPS, M=M)[0].reshape(b.shape)


def _pulled_back(fit: Any, i: int, v: np.ndarray) -> np.ndarray:
    """Return how the data pull many coefficients back from such a step of their v, K x M."""
    processes, ev = fit.bound.processes, fit.evaluation
    at = fit.n_Xu + 2 * sum(p.diagonal for p in processes[:i])
    h = SHIFT / max(float(np.abs(v).max()), 1e-300)
    moved = list(fit.moved)
    moved[at] = moved[at] + h * v * np.sqrt(1.0 + (ev.R[i] * fit.sites[i].root) ** 2)
    there = fit.evaluate(fit.theta, fit.sites, moved)
    return (_pull(ev, i, processes[i]) - _pull(there, i, processes[i])) / h


def _mean(ev: Evaluation, i: int, p: Any) -> np.ndarray:
    """Return the mean of u under q."""
    m, R = ev.mean[i], ev.R[i]
    alone = p.sparse or p.independent or p.folded
    return ev.prior_mean[i] + (R * m if alone else m @ R.T)


def _pull(ev: Evaluation, i: int, p: Any) -> np.ndarray:
    """Return the gradient in u of the expected log density of the data, at the mean of q."""
    m, R = ev.mean[i], ev.R[i]
    if p.folded:
        return ev.linear[i]
    if p.sparse or p.independent:
        m = ev.prior_mean[i] + R * m
    if p.sparse or p.diagonal:
        return ev.linear[i] - ev.precision[i] * m
    pull = ev.linear[i] - (ev.precision[i] @ m[:, :, None])[:, :, 0]
    if p.independent:
        return pull
    return scipy.linalg.solve_triangular(R, pull.T, lower=True, trans=1).T
