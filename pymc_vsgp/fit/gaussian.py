"""Fit the Gaussian stage: natural gradients for q(u), L-BFGS for the rest."""

import time
import warnings

from typing import Any

import numpy as np
import pymc as pm
import scipy.linalg
import scipy.optimize

from pymc.model.core import Model
from pymc.model.fgraph import clone_model

from pymc_vsgp.compile import ONCE
from pymc_vsgp.fit.advi import fit_advi
from pymc_vsgp.fit.bound import Bound, Evaluation, inducing_variables
from pymc_vsgp.fit.exact import ExactBound, is_exact
from pymc_vsgp.fit.minibatch import take_steps
from pymc_vsgp.fit.stage import GaussianStage, hand_over, inducing_inputs
from pymc_vsgp.inducing.coordinates import Sites, root_of
from pymc_vsgp.model.data import check_data
from pymc_vsgp.model.observation import warnings_at
from pymc_vsgp.progress import progress

__all__ = ["fit_gaussian"]

METHODS = ("natural", "minibatch", "advi", "fullrank_advi")
ITERATIONS = {"natural": 100, "minibatch": 2000, "advi": 20_000}  # by default
SMALLEST_STEP = 1 / 32  # of a natural gradient, before it counts as converged
AWAY = 0.1  # from where a parameter starts, if nothing tells it where to go
FIRST_MOVES = 3  # rounds before the inducing inputs move


def fit_gaussian(
    method: str = "natural",
    *,
    move_inducing: bool = False,
    start: GaussianStage | None = None,
    copy: bool = False,
    maxiter: int | None = None,
    tol: float = 1e-3,
    batch_size: int = 256,
    random_seed=None,
    progressbar: bool = True,
    compile_kwargs: dict[str, Any] | None = None,
    model: Model | None = None,
    **kwargs,
) -> GaussianStage:
    r"""
    Fit a Gaussian posterior, and set the sampler's coordinates in the model (or in a copy of it).

    The fit is a Gaussian posterior of the inducing values and a point estimate of everything else.
    It is fast and approximate, and :func:`sample` starts from it. The coordinates make the
    posterior look like a standard normal for every value of the parameters. The posterior that is
    sampled stays the same.

    Parameters
    ----------
    method : {"natural", "minibatch", "advi", "fullrank_advi"}
        "natural" takes natural-gradient steps for the inducing values and L-BFGS steps for the
        rest, with all data; the ELBO never decreases. "minibatch" takes `maxiter` steps with
        `batch_size` observations each. The others are PyMC's own.
    move_inducing : bool
        Whether to optimise the inducing inputs, too, after the first rounds.
    start : GaussianStage, optional
        A previous result to continue from, of this model or of a copy.
    copy : bool
        Whether to fit a copy of the model and leave the model alone. The copy is ``stage.model``.
    maxiter : int, optional
        Most iterations. By default 100 rounds of "natural", 2000 steps of "minibatch", and 20000
        iterations of ADVI.
    tol : float
        "natural" stops when a round gains less than this, in nats.
    batch_size : int
        Observations in a minibatch.
    random_seed : int or Generator, optional
        Of the minibatches and of ADVI.
    progressbar : bool
        Whether to show the ELBO.
    compile_kwargs : dict, optional
        Passed to the compilation of the ELBO; ``mode`` is its backend.
    model : Model, optional
        By default the model on the context stack.
    **kwargs
        Passed to ``pm.fit``.

    Returns
    -------
    GaussianStage
        Unless `copy`, the model has changed: its inducing inputs and the sampler's coordinates.
        :func:`reset` undoes that.

    Examples
    --------
    .. code-block:: python

        with model:
            stage = vsgp.fit_gaussian()
            idata = vsgp.sample(stage=stage)
    """
    model = pm.modelcontext(model)
    if method not in METHODS:
        raise ValueError(f"There is no method {method!r}. Choose one of {list(METHODS)}.")
    if not inducing_variables(model):
        raise ValueError(
            "The model has no variationally sparse process. "
            "Add one with vsgp.VariationalSparse and call its prior and likelihood."
        )
    if "n" in kwargs:
        raise TypeError("The number of iterations is maxiter here. Pass it in place of n.")
    if kwargs and method not in ("advi", "fullrank_advi"):
        raise TypeError(
            f"fit_gaussian got {sorted(kwargs)}, which only ADVI takes. "
            "Drop them, or pass method='advi'."
        )
    if maxiter is None:
        maxiter = ITERATIONS.get(method, ITERATIONS["advi"])
    elif maxiter < 1:
        raise ValueError(f"maxiter is {maxiter}, but it is a number of iterations. Pass 1 or more.")
    check_data(model)
    began = time.perf_counter()
    if copy:
        model = clone_model(model)
    if method in ("advi", "fullrank_advi"):
        if move_inducing:
            raise ValueError(
                "ADVI does not move inducing inputs. Use method='natural', or move_inducing=False."
            )
        return fit_advi(model, method, maxiter, random_seed, progressbar, began, _blend, kwargs)
    if start is not None:
        hand_over(model, start.sites, start.Xu)
    mode = (compile_kwargs or {}).get("mode", ONCE)
    bound = Bound(model, move_inducing, batch_size if method == "minibatch" else None, mode)
    theta, sites = bound.start, bound.no_sites()
    if start is not None:
        theta = bound.ravel(start.theta_unconstrained)
        sites = [start.sites[p.u.name] for p in bound.processes]
    before = inducing_inputs(bound)
    Xu = [x.get_value() for x in bound.moving]
    rows = np.arange(min(batch_size, bound.n_data())) if method == "minibatch" else None
    what = "Gaussian stage, round {}, ELBO {}"
    fit: _Natural
    with progress(what.format(0, "..."), None, progressbar) as advance:

        def report(i, value):
            advance(1, what.format(i, f"{value:.2f}"))

        if method == "natural" and is_exact(model):
            fit = _Exact(bound, theta, sites, Xu, tol, report, model)
        else:
            fit = _Natural(bound, theta, sites, Xu, tol, report, rows)
        compiled = time.perf_counter()
        if method == "minibatch":
            take_steps(fit, maxiter, np.random.default_rng(random_seed))
        else:
            fit.run(maxiter)
    theta_covariance = fit.curvature()
    ev = fit.evaluation
    after = dict(before)
    for shared, x in zip(bound.moving, fit.moved, strict=False):
        after[shared.name] = x
    names = [p.u.name for p in bound.processes]
    stage = GaussianStage(
        method=method,
        elbo=fit.history[-1],
        elbo_history=np.asarray(fit.history),
        n_steps=maxiter if method == "minibatch" else len(fit.history),
        converged=fit.converged,
        message=fit.message,
        seconds=time.perf_counter() - compiled,
        compile_seconds=compiled - began,
        theta=bound.in_units(fit.theta),
        theta_unconstrained=bound.unravel(fit.theta),
        theta_covariance=theta_covariance,
        marginal=isinstance(fit, _Exact) or not any(p.diagonal for p in bound.processes),
        mean={
            name: _unwhiten(ms, R, pm_)
            for name, ms, R, pm_ in zip(names, ev.mean, ev.R, ev.prior_mean, strict=True)
        },
        covariance={
            name: (R / Ls) ** 2 if Ls.ndim == 2 else np.stack([_spread(R, L) for L in Ls])
            for name, Ls, R in zip(names, ev.factor, ev.R, strict=True)
        },
        sites=dict(zip(names, fit.sites, strict=True)),
        Xu_before=before,
        Xu=after,
        model=model,
    )
    stage.apply()
    for text in warnings_at(model, stage.theta_unconstrained):
        warnings.warn(text, stacklevel=2)
    return stage


def _unwhiten(m, R, mean):
    return mean + (m * R if R.ndim == 1 else m @ R.T)


def _spread(R, L):
    R = np.diag(R) if R.ndim == 1 else R
    root = scipy.linalg.solve_triangular(L, R.T, lower=True)
    return root.T @ root


class _Natural:
    """Alternate natural-gradient steps of the sites with L-BFGS steps of the rest.

    The rest is theta, inducing inputs where they move, and the q of coefficients.
    """

    def __init__(self, bound: Bound, theta, sites, Xu, tolerance, report, rows=None):
        self.bound, self.theta, self.sites = bound, theta, sites
        self.moved = [*Xu, *bound.no_offsets()]
        self.n_Xu = len(Xu)
        self.tolerance, self.report, self.rows = tolerance, report, rows
        self.history: list[float] = []
        self.converged, self.message = False, ""
        self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
        if not np.isfinite(self.evaluation.value):
            raise ValueError(
                "The ELBO is not finite at the model's initial point. "
                "Call vsgp.check_model() to see why, or set initval of the parameters."
            )

    def evaluate(self, theta, sites, moved) -> Evaluation:
        return self.bound(theta, sites, moved, self.rows)

    def run(self, maxiter: int) -> None:
        """Improve until a round gains too little."""
        # Weights of functions that are all zero are as flat as a saddle, and the fit would stay.
        flat = np.abs(self.evaluation.gradient[: self.theta.size]) < 1e-12
        if flat.any():
            aside = AWAY * np.random.default_rng(0).normal(size=self.theta.size)
            self.theta = np.where(flat, self.theta + aside, self.theta)
            self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
        self._step_sites(20)
        for i in range(maxiter):
            last = self.evaluation.value
            moving = self.n_Xu > 0 and i >= FIRST_MOVES
            self._step_rest(moving, 10 if i < FIRST_MOVES else 25)
            self._step_sites(5)
            self.history.append(self.evaluation.value)
            self.report(i + 1, self.evaluation.value)
            if self.evaluation.value - last < self.tolerance and (moving or not self.n_Xu):
                self.converged = True
                self.message = f"A round gained less than {self.tolerance:g}."
                return
        self.message = f"Stopped after {maxiter} rounds. Raise maxiter, or restart from this."

    def _step_sites(self, n: int) -> None:
        self.follow()
        if all(p.diagonal for p in self.bound.processes):
            return
        for _ in range(n):
            old, step = self.evaluation, 1.0
            while step >= SMALLEST_STEP:
                sites = self.blended(old, step, self.sites)
                new = self.evaluate(self.theta, sites, self.moved)
                if np.isfinite(new.value) and new.value >= old.value:
                    self.evaluation, self.sites = new, sites
                    break
                step /= 2.0
            if self.evaluation.value - old.value < self.tolerance / 10.0:
                return

    def blended(self, ev: Evaluation, step: float, sites: list[Sites]) -> list[Sites]:
        """Return sites a part of the way to where natural gradients point."""
        return [
            s
            if p.diagonal
            else _blend(
                s,
                ev.R[i],
                ev.prior_mean[i],
                ev.linear[i],
                ev.precision[i],
                ev.mean[i],
                step,
            )
            for i, (s, p) in enumerate(zip(sites, self.bound.processes, strict=True))
        ]

    def follow(self) -> None:
        """Let the sites of coefficients say what q is now, so that it follows theta.

        What they don't say stays in the offsets: q is the same as before.
        """
        at = self.n_Xu
        for i, p in enumerate(self.bound.processes):
            if not p.diagonal:
                continue
            ev = self.evaluation
            self.sites[i], *self.moved[at : at + 2] = _sites_and_offsets(ev, i)
            at += 2

    def _step_rest(self, moving: bool, n: int) -> None:
        """Take L-BFGS steps of everything but sites."""
        active = range(0 if moving else self.n_Xu, len(self.moved))
        if self.theta.size == 0 and not active:
            return
        x0 = np.concatenate([self.theta, *(self.moved[i].ravel() for i in active)])
        skipped = sum(self.moved[i].size for i in range(len(self.moved)) if i not in active)
        d = self.theta.size
        best = (self.evaluation.value, self.theta, self.moved, self.evaluation)

        def objective(x):
            nonlocal best
            theta, moved = self.split(x, active)
            ev = self.evaluate(theta, self.sites, moved)
            gradient = np.concatenate([ev.gradient[:d], ev.gradient[d + skipped :]])
            if not (np.isfinite(ev.value) and np.isfinite(gradient).all()):
                return 1e50, np.zeros_like(x)
            if ev.value > best[0]:
                best = (ev.value, theta.copy(), [m.copy() for m in moved], ev)
            return -ev.value, -gradient

        # A first step of the size of the gradient may leave the region where theta makes sense.
        scipy.optimize.minimize(
            objective, x0, jac=True, method="L-BFGS-B", options={"maxiter": n, "maxls": 10}
        )
        _, self.theta, self.moved, self.evaluation = best

    def split(self, x, active) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return theta and all that moves, with the numbers of `x` for what is active."""
        at, moved = self.theta.size, list(self.moved)
        for i in active:
            size = moved[i].size
            moved[i] = x[at : at + size].reshape(moved[i].shape)
            at += size
        return x[: self.theta.size], moved

    def curvature(self) -> np.ndarray:
        """Inverse of minus the second derivative, in theta, of the bound at the best q of each.

        That is how the bound curves once q is integrated out. Sites that are held make too little
        of it, so they take natural-gradient steps first.
        """
        d = self.theta.size
        if d == 0:
            return np.empty((0, 0))
        H = np.empty((d, d))
        h = 1e-3
        for i in range(d):
            step = np.zeros(d)
            step[i] = h
            H[i] = (self._slope(self.theta - step) - self._slope(self.theta + step)) / (2.0 * h)
        w, V = np.linalg.eigh((H + H.T) / 2.0)
        # Directions that the bound does not curve in are as wide as a weak prior.
        w = np.clip(w, 0.25, None) if np.isfinite(w).all() else np.ones(d)
        return (V / w) @ V.T

    def _slope(self, theta) -> np.ndarray:
        """Gradient in theta, where the sites have followed it."""
        sites = self.sites
        # The half step damps what a full one overshoots, as where classes share a likelihood.
        for length in (1.0, 0.5):
            sites = self.blended(self.evaluate(theta, sites, self.moved), length, sites)
        return self.evaluate(theta, sites, self.moved).gradient[: theta.size]


def _blend(sites: Sites, R, mean, new_linear, new_precision, m, step: float) -> Sites:
    """Return sites a part of the way to where the natural gradient points.

    The gradient is that in v; where R is a vector, the variables are independent a priori, and it
    is that in u itself, for their deviations may be too small to divide by.
    """
    independent = R.ndim == 1
    linear, root = [], []
    for k in range(len(sites.linear)):
        B, old = sites.root[k], sites.linear[k]
        if independent:
            to, toward = _definite(new_precision[k], new_linear[k], mean + R * m[k])
            root.append(root_of((1.0 - step) * (B @ B.T) + step * to))
            linear.append((1.0 - step) * old + step * toward)
            continue
        G = R.T @ B
        to, toward = _definite(new_precision[k], new_linear[k], m[k])
        precision = (1.0 - step) * (G @ G.T) + step * to
        h = (1.0 - step) * (R.T @ (old - B @ (B.T @ mean))) + step * toward
        new = scipy.linalg.solve_triangular(R, root_of(precision), lower=True, trans=1)
        linear.append(
            scipy.linalg.solve_triangular(R, h, lower=True, trans=1) + new @ (new.T @ mean)
        )
        root.append(new)
    return Sites(np.stack(linear), np.stack(root))


def _definite(precision, linear, mean) -> tuple[np.ndarray, np.ndarray]:
    """Return sites with the same gradient in the mean, and curvature that is nowhere negative.

    Likelihoods that are not log-concave, such as robust-max far from the truth, have directions of
    negative curvature. As long a step is safe there as for positive curvature of that size.
    Without any curvature the mean would be thrown so far that no gradient brings it back.
    """
    w, V = np.linalg.eigh((precision + precision.T) / 2.0)
    absolute = (V * np.abs(w)) @ V.T
    return absolute, linear + (absolute - precision) @ mean


def _sites_and_offsets(ev: Evaluation, i: int) -> tuple[Sites, np.ndarray, np.ndarray]:
    """Return the sites that explain q of some coefficients, and what is left of q."""
    R = ev.R[i]
    precision = np.clip(ev.precision[i], 0.0, None)
    linear, root = ev.linear[i] - precision * ev.prior_mean[i], np.sqrt(precision)
    L = np.sqrt(1.0 + (R * root) ** 2)
    e = L * ev.mean[i] - R * linear / L
    return Sites(ev.linear[i].copy(), root), e, np.log(L / ev.factor[i])


class _Exact(_Natural):
    """L-BFGS steps of theta, where the best q of each theta is known."""

    def __init__(self, bound, theta, sites, Xu, tolerance, report, model):
        self.exact = ExactBound(bound, model)
        super().__init__(bound, theta, sites, Xu, tolerance, report)
        self.moved = []

    def evaluate(self, theta, sites, moved):
        return self.exact(theta)

    def _step_sites(self, n: int) -> None:
        self.sites = self.exact.sites(self.evaluation)

    def _slope(self, theta) -> np.ndarray:
        return self.exact(theta).gradient
