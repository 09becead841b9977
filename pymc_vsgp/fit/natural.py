"""Natural-gradient steps of q(u), and L-BFGS steps of the rest."""

from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize

from pymc.distributions.transforms import LogTransform
from pytensor.graph.traversal import ancestors

from pymc_vsgp.fit.blending import blend, blend_alone
from pymc_vsgp.fit.bound import Bound, Evaluation
from pymc_vsgp.fit.following import (
    TOO_LONG,
    a_step,
    following,
    in_the_end,
    resistance,
)
from pymc_vsgp.fit.proposals import prior_widths
from pymc_vsgp.fit.saddles import alike, without_slope
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import n_sharing

FIRST_STEP, SEVERAL = 0.25, 2  # of a natural gradient, where more functions share a likelihood
SHARED = 4  # times as many after theta, where functions have to find each other
SMALLEST_STEP = 1 / 32  # of a natural gradient, before it counts as converged
FAR = 200  # L-BFGS steps of many coefficients that are far from the data
NARROWER = 15.0, 250.0  # precision that q starts with, in that of the prior, which has no ELBO
NOTHING = 1e-12  # of the largest variance
OVERSHOT, TINY = 1.0, 2.0**-40  # what a step loses that is too long, and the smallest one then
AWAY = 0.1  # from where a parameter starts, if nothing tells it where to go
SLIGHTLY = 1e-3  # and where others are alike, which L-BFGS tells apart by next to nothing
FIRST_MOVES = 3  # rounds before the inducing inputs move
STEP = 1e-3  # of a parameter, in differences
SMALL = 1e-3  # standard deviation of a parameter that L-BFGS has to take in its own units
TOO_SHORT, OF_SD = 1e-4, 0.1  # in standard deviations; and what is tried where one is known
TRIES = 4  # of steps
LEAST = 0.25  # curvature of what no data say anything of: that of a weak prior
NARROWEST = 1e13  # curvature in units of the least one, before rounding takes it
LARGEST_SD = 1e5  # of a parameter, in standard deviations that it has where all others are held
PROMISED = 1.0  # nats that a converged fit may gain in one step more
WORTH = 0.05  # of them, to go on for: a third of a standard deviation
GONE = 1e-20  # a scale that went to zero, in units of the model
STEEP = 1.0  # slope of the ELBO, in nats for a unit of an unconstrained parameter: no optimum


class Natural:
    """Alternate natural-gradient steps of the sites with L-BFGS steps of the rest.

    The rest is theta, inducing inputs where they move, and the q of coefficients.
    """

    slack = 0.0
    """What a step of the sites may lose to the error of variances."""
    elbo_error = 0.0
    """Standard error of the ELBO that it ended with."""
    to_follow: tuple[float, ...] = (1.0, 0.5)
    """Steps that sites take after theta. The half one damps what a full one overshoots, as where
    classes share a likelihood."""

    def __init__(self, bound: Bound, theta, sites, Xu, tolerance, report, rows=None):
        self.bound, self.theta, self.sites = bound, theta, sites
        self.moved = [*Xu, *bound.no_offsets()]
        self.n_Xu, self.n_sharing = len(Xu), n_sharing(bound.model)
        self.tolerance, self.report, self.rows = tolerance, report, rows
        self.history: Any = []
        self.units: Any = np.ones(theta.size)
        """Of parameters, as L-BFGS takes them; or a root of their covariance."""
        self.converged, self.interrupted, self.message = False, False, ""
        self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
        for much in NARROWER:
            if np.isfinite(self.evaluation.value) and _has_slopes(self.evaluation):
                break
            self.sites = self._narrower(sites, much)
            self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
        if not np.isfinite(self.evaluation.value):
            raise ValueError(
                "The ELBO is not finite at the model's initial point. "
                "Call vsgp.check_model() to see why, or set initval of the parameters."
            )
        if not _has_slopes(self.evaluation):
            raise ValueError(
                "The log density of the data has no finite gradient where f is far from them. "
                "Write it as a pm.CustomDist without what is nan or infinite there."
            )

    def _narrower(self, sites: list[Sites], much: float) -> list[Sites]:
        """Return sites with that precision where there are none: less than most data say.

        Densities may underflow where f is as far from the data as the prior lets it be.
        """
        ev, out = self.evaluation, list(sites)
        for i, (p, given) in enumerate(zip(self.bound.processes, sites, strict=True)):
            if p.sparse or given.root.any():
                continue
            prior = ev.R[i] ** 2 if p.independent else (ev.R[i] ** 2).sum(axis=-1)
            # Coefficients of high frequencies may have next to no variance.
            precision = much / np.maximum(prior, NOTHING * prior.max())
            linear = np.broadcast_to(precision * ev.prior_mean[i], given.linear.shape)
            root = np.sqrt(precision)
            root = np.broadcast_to(root if p.diagonal else np.diag(root), given.root.shape)
            out[i] = Sites(linear.copy(), root.copy(), given.slope)
        return out

    def evaluate(self, theta, sites, moved) -> Evaluation:
        """Return the ELBO there, and what improves it."""
        found = self.bound(theta, sites, moved, self.rows)
        self.report(len(self.history), found.value)
        return found

    def run(self, maxiter: int) -> None:
        """Improve until a round gains too little, or until Ctrl-C after a round."""
        try:
            self._rounds(maxiter)
        except KeyboardInterrupt:
            if not self.history:
                raise
            # Of the steps of a round that had ended, whichever was the last one.
            self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
            self.interrupted = True
            self.message = (
                f"Interrupted in round {len(self.history) + 1}. Continue with start=stage."
            )
            self.history.append(self.evaluation.value)

    def _rounds(self, maxiter: int) -> None:
        if not self.turned:
            self._begin()
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

    def _begin(self) -> None:
        """Take steps of the sites alone, and leave saddles."""
        self._move_aside(without_slope(self.evaluation.gradient[: self.theta.size]), AWAY)
        # From the prior a whole step of ten classes at once puts some of them far below the others,
        # where robust-max has no gradient any more.
        self._step_sites(20, FIRST_STEP if self.n_sharing > SEVERAL else 1.0)
        slope = self.evaluation.gradient[: self.theta.size]
        self._move_aside(alike(self.bound.processes, self.theta, slope), SLIGHTLY)

    def _move_aside(self, some: np.ndarray, far: float) -> None:
        """Move some of theta, which would stay at a saddle otherwise."""
        if some.any():
            aside = far * np.random.default_rng(0).normal(size=self.theta.size)
            self.theta = np.where(some, self.theta + aside, self.theta)
            self.evaluation = self.evaluate(self.theta, self.sites, self.moved)

    def _step_sites(self, n: int, longest: float = 1.0) -> None:
        self.follow()
        if all(p.diagonal for p in self.bound.processes):
            return
        for _ in range(n):
            old, step, least = self.evaluation, longest, SMALLEST_STEP
            while step >= least:
                sites = self.blended(old, step, self.sites)
                new = self.evaluate(self.theta, sites, self.moved)
                good = np.isfinite(new.value) and _has_slopes(new)
                lost = old.value - new.value if good else np.inf
                if lost <= self.slack:
                    self.evaluation, self.sites = new, sites
                    break
                # Far from the data, such as counts of thousands, a step is far too long for exp.
                least = TINY if lost > OVERSHOT else SMALLEST_STEP
                step /= 2.0
            if self.evaluation.value - old.value < self.tolerance / 10.0:
                break
        self.sites = following(self, self.sites)

    def resistance(self, i: int, moved: np.ndarray) -> np.ndarray:
        """Return how the data pull u of a process back from there, K x M."""
        return resistance(self, i, moved)

    def blended(self, ev: Evaluation, step: float, sites: list[Sites]) -> list[Sites]:
        """Return sites a part of the way to where natural gradients point."""
        return [self._blended(i, ev, step, s) for i, s in enumerate(sites)]

    def _blended(self, i: int, ev: Evaluation, step: float, sites: Sites) -> Sites:
        p = self.bound.processes[i]
        if p.diagonal:
            return sites
        linear, precision, theta = ev.linear[i], ev.precision[i], ev.theta[p.at]
        here = sites.at(theta)
        if p.sparse:
            new = blend_alone(here, linear, precision, step)
        else:
            new = blend(here, ev.R[i], ev.prior_mean[i], linear, precision, ev.mean[i], step)
        return new.following(sites.slope, theta)

    @property
    def n_steps(self) -> int:
        """Rounds, or steps, that it took."""
        return len(self.history)

    def in_model(self) -> list[Sites]:
        """Return the sites that the model is given."""
        return in_the_end(self, self.sites)

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
        self._look_at_units()
        best = (self.evaluation.value, self.theta, self.moved, self.evaluation)

        def slope_of(ev):
            return np.concatenate([ev.gradient[:d], ev.gradient[d + skipped :]])

        def objective(x):
            nonlocal best
            at = self._from_units(x)
            theta, moved = self.split(at, active)
            ev = self._at(theta, moved)
            gradient = slope_of(ev)
            if not (np.isfinite(ev.value) and np.isfinite(gradient).all()):
                # A line search that interpolates to a huge number would not move at all.
                reached = np.concatenate([best[1], *(best[2][i].ravel() for i in active)])
                lost = np.abs(slope_of(best[3]) @ (at - reached))
                return OVERSHOT + lost - best[0], np.zeros_like(x)
            if ev.value > best[0]:
                best = (ev.value, theta.copy(), [m.copy() for m in moved], ev)
            return -ev.value, -self._from_units(gradient, transpose=True)

        start, steep = best[0], np.abs(self.evaluation.gradient).max() > STEEP

        def squeezed(x):
            value, slope = objective(x)
            away = value + start
            slope[:d] = 0.0  # q comes first: theta would make up for it
            return np.arcsinh(away), slope / np.hypot(1.0, away)

        # A first step of the size of the gradient may leave the region where theta makes sense.
        settings: Any = {"jac": True, "method": "L-BFGS-B"}
        settings["options"] = {"maxiter": n, "maxls": 10}
        x0[:d] = np.linalg.solve(self.units, x0[:d]) if self.turned else x0[:d] / self.units
        try:
            scipy.optimize.minimize(objective, x0, **settings)
            if steep and best[0] <= start:  # lost 1e90 nats, say, of which no line search gets back
                settings["options"]["maxiter"] = FAR
                scipy.optimize.minimize(squeezed, x0, **settings)
        finally:
            _, self.theta, self.moved, self.evaluation = best

    def _at(self, theta, moved) -> Evaluation:
        return self.evaluate(theta, self.sites, moved)

    @property
    def turned(self) -> bool:
        """Whether L-BFGS moves combinations of parameters."""
        return self.units.ndim == 2

    def _from_units(self, x: np.ndarray, transpose=False) -> np.ndarray:
        """Return what numbers of L-BFGS stand for, parameters first."""
        d, units = self.theta.size, self.units.T if transpose else self.units
        return np.concatenate([units @ x[:d] if self.turned else units * x[:d], x[d:]])

    def _look_at_units(self) -> None:
        """Find the units of parameters with slopes that L-BFGS would follow much too far.

        They are standard deviations where all else is held, as of coefficients of covariates in
        thousands.
        """
        if self.turned:
            return
        steep = np.abs(self.evaluation.gradient[: self.theta.size]) > 1.0 / SMALL
        some = np.flatnonzero(self.bound.has_units() & steep)
        if not some.size:
            return
        ev = self._at(self.theta, self.moved)
        for i in some.tolist():
            h, to = a_step(lambda theta: self._at(theta, self.moved), ev, self.theta, i, STEP)
            with np.errstate(over="ignore", invalid="ignore"):
                bend = np.abs(to.gradient[i] - ev.gradient[i]) / h
            # Where it overflows there are no units: of zero, L-BFGS could not move at all.
            sd = 1.0 / np.sqrt(bend) if 0.0 < bend < np.inf else np.inf
            self.units[i] = sd if sd < SMALL else 1.0

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
        if not (d := self.theta.size):
            return np.empty((0, 0))
        own = self.bound.has_units()
        H = np.stack([self._bend(i, own[i]) for i in range(d)])
        if not np.isfinite(H).all():
            raise ValueError(
                "The ELBO is not finite around the parameters at which the Gaussian stage stopped. "
                + self._why_not_finite()
            )
        H = (H + H.T) / 2.0
        bend = np.diagonal(H)
        alone = np.full(d, np.inf)  # deviations where all others are held
        alone[bend > 0.0] = 1.0 / np.sqrt(bend[bend > 0.0])
        units = np.where(own, np.minimum(LARGEST_SD * alone, 1.0), 1.0)
        w, V = np.linalg.eigh(units[:, None] * H * units)
        if w[0] < LEAST and own.any():
            wide = prior_widths(self.bound, own)
            # No narrower than it is for a logarithm.
            wide = np.where(wide > 1.0 / np.sqrt(LEAST), wide, 1.0)
            units = np.where(own, np.minimum(LARGEST_SD * alone, wide), 1.0)
            units[~np.isfinite(units)] = 1.0
            w, V = np.linalg.eigh(units[:, None] * H * units)
        # Directions that the bound does not curve in are as wide as a weak prior.
        # In no other is one so narrow that rounding would leave it no variance, or less.
        w, V = np.clip(w, LEAST, NARROWEST * max(w[0], LEAST)), units[:, None] * V
        return (V / w) @ V.T

    def _why_not_finite(self) -> str:
        """Say what to do: of a scale that went to zero, which its own effects draw it to."""
        values, others = self.bound.in_units(self.theta), self.bound.others
        for rv in others:
            logarithm = isinstance(self.bound.model.rvs_to_transforms[rv], LogTransform)
            of_effects = any(rv in ancestors([x]) for x in others if x is not rv)
            if logarithm and of_effects and (values[rv.name] < GONE).any():
                name = rv.name
                return (
                    f"{name!r} went to zero: effects and their own scale have no joint mode. "
                    f"Write {name} * pm.Normal('z', shape=...) in place of "
                    f"pm.Normal('effect', 0, {name}, shape=...)."
                )
        return (
            "Start it elsewhere: give the parameters initval=..., such as a lengthscale of a "
            "few distances between inputs, or tighter priors (docs/priors.md)."
        )

    def promised(self, covariance: np.ndarray) -> float:
        """Return the nats that the slope at the end of a fit promises, to first order."""
        slope = self.evaluation.gradient[: self.theta.size]
        return slope @ covariance @ slope / 2.0

    def go_on(self, covariance: np.ndarray, maxiter: int) -> bool:
        """Go on along the axes of this covariance, where the slope promises more.

        A combination of parameters that the data tell well hides from L-BFGS one that they don't,
        as of a scale and a long lengthscale.
        """
        if not (self.converged and self.promised(covariance) > WORTH):
            return False
        before, units = self.evaluation.value, self.units
        try:
            self.units = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:  # of parameters whose units rounding does not stand
            return False
        self.converged = False
        try:
            self.run(maxiter)
        finally:
            self.units = units
        return self.evaluation.value > before + WORTH / 10.0

    def look_back(self, covariance: np.ndarray) -> None:
        """Say that a fit did not converge, where the slope at its end promises more."""
        gain = self.promised(covariance)
        if self.converged and gain > PROMISED:
            self.converged = False
            self.message = (
                f"Parameters did not move, though the ELBO may rise by {gain:.1f}. Start them "
                "elsewhere, with initval=..., or take tighter priors."
            )

    def _bend(self, i: int, own: bool) -> np.ndarray:
        """Return minus the derivative of the slope in a parameter.

        One step suits all logarithms. What has its own units may be in thousands, or may multiply
        thousands, so its step is a part of a standard deviation.
        """
        found: Any = None
        h = STEP
        for _ in range(TRIES):
            step = np.zeros(self.theta.size)
            step[i] = h
            with np.errstate(over="ignore", invalid="ignore"):  # which the callers look for
                row = (self._slope(self.theta - step) - self._slope(self.theta + step)) / (2.0 * h)
            size = h * np.sqrt(np.abs(row[i])) if np.isfinite(row).all() else np.inf
            if found is None or np.isfinite(size):
                found = row
            if not own or TOO_SHORT < size < TOO_LONG:
                break
            h *= np.clip(OF_SD / max(size, 1e-300), 1e-3, 1e3)
        return found

    def _slope(self, theta) -> np.ndarray:
        """Gradient in theta, where the sites have followed it."""
        sites, ev, part = self.sites, self.evaluate(theta, self.sites, self.moved), 1.0
        lengths = self.to_follow * (SHARED if self.n_sharing > 1 else 1)
        for i, length in enumerate(lengths):
            if not _has_slopes(ev):
                return np.full(theta.size, np.nan)
            there = self.blended(ev, part * length, sites)
            to = self.evaluate(theta, there, self.moved)
            if i < len(self.to_follow) or to.value > ev.value:
                sites, ev = there, to
            else:  # steps of functions, and of what is not log-concave, lead past each other
                part /= 2.0
        return ev.gradient[: theta.size]


def _has_slopes(ev: Evaluation) -> bool:
    """Whether natural gradients are numbers."""
    return all(np.isfinite(x).all() for x in (*ev.linear, *ev.precision))


def _sites_and_offsets(ev: Evaluation, i: int) -> tuple[Sites, np.ndarray, np.ndarray]:
    """Return the sites that explain q of some coefficients, and what is left of q."""
    R = ev.R[i]
    precision = np.clip(ev.precision[i], 0.0, None)
    linear, root = ev.linear[i] - precision * ev.prior_mean[i], np.sqrt(precision)
    L = np.sqrt(1.0 + (R * root) ** 2)
    e = L * ev.mean[i] - R * linear / L
    return Sites(ev.linear[i].copy(), root), e, np.log(L / ev.factor[i])


class WithHeld(Natural):
    """As `Natural`; theta moves with the q of some processes held.

    The bound has the method `held` for that.
    """

    bound: Any
    stuck = False
    """Whether the last step of theta went nowhere, though the ELBO has a slope."""

    def _at(self, theta, moved) -> Evaluation:
        return self.bound.held(theta, self.sites, moved, self.evaluation)

    def _step_rest(self, moving: bool, n: int) -> None:
        old, before, moved = self.theta, self.evaluation, self.moved
        super()._step_rest(moving, n)
        steep = np.abs(self.evaluation.gradient).max(initial=0.0) > STEEP
        # With q held the ELBO is too large away from where it started, so less of a step may give
        # more.
        found, ends, step = self.theta, self.moved, 1.0
        self.stuck = steep and np.array_equal(found, old)
        while step >= SMALLEST_STEP:
            self.theta = old + step * (found - old)
            self.moved = [a + step * (b - a) for a, b in zip(moved, ends, strict=True)]
            self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
            if self.evaluation.value >= before.value - self.slack:
                return
            step /= 2.0
        self.theta, self.evaluation, self.moved, self.stuck = old, before, moved, True


class Exact(Natural):
    """L-BFGS steps of theta, where the best q of each theta is known."""

    bound: Any

    def evaluate(self, theta, sites, moved):
        """Return the ELBO at theta and the best q there."""
        return self.bound(theta)

    def _step_sites(self, n: int, longest: float = 1.0) -> None:
        return  # an evaluation has the best ones

    def _step_rest(self, moving: bool, n: int) -> None:
        super()._step_rest(moving, 100)

    def in_model(self):
        return self.bound.sites(self.evaluation)

    def _slope(self, theta) -> np.ndarray:
        return self.bound(theta).gradient
