r"""Minibatches: stochastic natural gradients for q(u), Adam for theta and the inducing inputs.

Here q(v) of inducing points stays where it is while theta moves, as in SVGP. Its gradient in theta
costs a third of one in which q follows theta, which many small steps do without.

Rows are drawn without replacement until all had their turn. So the mean of the ELBO over an epoch
has hardly any noise of sampling, and says when to stop.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from pymc_vsgp.fit.bound import Evaluation
from pymc_vsgp.fit.natural import Natural, definite, sites_of
from pymc_vsgp.inducing.coordinates import Sites

__all__ = ["Minibatches", "judge"]

RATE = 0.03  # of Adam, in the unconstrained theta
RATE_OF_INPUTS = 0.01  # in deviations of the inducing inputs
EPOCHS = 4  # that q remembers
LONGEST = 0.2  # step of a natural gradient
FIRST = 20  # steps of q alone
WINDOW = 100  # steps at least, or a fourth, whose mean is compared with that of those before
GAIN = 5e-4  # nats an observation in a window: with less, the steps are halved, ...
SMALLEST = 1 / 8  # ... and at this part of the first ones they end
COOLING = 0.25  # of all steps: where they run out, their size falls to zero
FAILURES = 20  # in a row, each with half the rate


class Held(NamedTuple):
    """A density q(v) that does not follow theta."""

    linear: np.ndarray
    """Its mean, K x M, in the place of the sites' linear part, ..."""
    root: np.ndarray
    """... the Cholesky factor of its precision in that of their root, ..."""
    precision: np.ndarray
    """... and the precision."""


class Minibatches(Natural):
    """Alternate steps of q with those of everything else, each for a few rows of the data."""

    def __init__(self, bound, theta, sites, Xu, tolerance, report, rng, n_rows):
        self.rng, self.n_data = rng, bound.n_data()
        self.taken = 0
        self.n_rows = min(n_rows, self.n_data)
        batches = _batches(self.n_data, self.n_rows, rng)
        self.batches: Iterator[np.ndarray] = batches
        start = [_prior(s) if p.held else s for s, p in zip(sites, bound.processes, strict=True)]
        super().__init__(bound, theta, start, Xu, tolerance, report, next(batches))
        ev = self.evaluation
        self.sites = [
            _from_sites(sites[i], ev.R[i], ev.prior_mean[i]) if p.held else s
            for i, (s, p) in enumerate(zip(self.sites, bound.processes, strict=True))
        ]

    @property
    def n_steps(self) -> int:
        """Steps that it took."""
        return self.taken

    def evaluate(self, theta, sites, moved) -> Evaluation:
        """Return an estimate of the ELBO there, and of what improves it."""
        return self.bound(theta, sites, moved, self.rows)

    def blended(self, ev: Evaluation, step: float, sites: list[Any]) -> list[Any]:
        """Return q a part of the way to where natural gradients point."""
        held = [p.held for p in self.bound.processes]
        # What is held is left out of the sites that the parent blends.
        if not any(held):
            return super().blended(ev, step, sites)
        others = sites if all(held) else super().blended(ev, step, sites)
        return [
            _stepped(s, ev.linear[i], ev.precision[i], step) if held[i] else others[i]
            for i, s in enumerate(sites)
        ]

    def run(self, maxiter: int) -> None:
        """Take up to so many steps, fewer where the ELBO stops rising."""
        n_data, epoch = self.n_data, -(-self.n_data // self.n_rows)
        window = epoch * -(-WINDOW // epoch)
        rates = [np.full(self.theta.size, RATE)]
        rates += [RATE_OF_INPUTS * _scale(x) for x in self.moved[: self.n_Xu]]
        rates += [np.full(x.size, RATE) for x in self.moved[self.n_Xu :]]
        rate = np.concatenate(rates)
        least = min(self.n_rows / (EPOCHS * n_data), LONGEST)
        x = np.concatenate([self.theta, *(x.ravel() for x in self.moved)])
        first, second, taken = np.zeros_like(x), np.zeros_like(x), 0
        noisy: list[float] = []
        last = (x, self.sites)
        part, since, failures = 1.0, 0, 0
        for i in range(maxiter):
            ev = self.evaluate(self.theta, self.sites, self.moved)
            if not (np.isfinite(ev.value) and np.isfinite(ev.gradient).all()):
                failures, rate = failures + 1, rate / 2.0
                if failures > FAILURES:
                    raise ValueError(
                        "The ELBO is not finite where minibatches lead to. "
                        "Give the parameters priors that keep away from there, or use 'natural'."
                    )
                x, self.sites = last
                self.theta, self.moved = self.split(x, range(len(self.moved)))
                continue
            failures, last = 0, (x, self.sites)
            noisy.append(ev.value)
            size = part * min((maxiter - i) / (COOLING * maxiter), 1.0)
            # A running mean over rows, of a few at first.
            step = max(least, min(LONGEST, 2.0 / (10.0 + i**0.7)))
            self.sites = self.blended(ev, max(size, SMALLEST) * step, self.sites)
            if i >= FIRST:
                taken += 1
                first = 0.9 * first + 0.1 * ev.gradient
                second = 0.999 * second + 0.001 * ev.gradient**2
                unbiased = first / (1 - 0.9**taken)
                scale = np.sqrt(second / (1 - 0.999**taken))
                x = x + size * rate * unbiased / np.where(scale > 0.0, scale, 1.0)
                self.theta, self.moved = self.split(x, range(len(self.moved)))
            self.rows, self.taken = next(self.batches), i + 1
            mean = float(np.mean(noisy[-max(epoch, 20) :]))
            self.report(i + 1, mean)
            if (i + 1) % 20 == 0:
                self.history.append(mean)
            since += 1
            if since % window == 0 and since >= 2 * window:
                n = max(since // 4 // epoch * epoch, window)
                rise, error = _rise(np.asarray(noisy[-2 * n :]), epoch)
                if rise < max(2.0 * error, self.tolerance, GAIN * n_data):
                    part, since = part / 2.0, 0
                    if part < SMALLEST:
                        self.converged = True
                        break
        self._finish(noisy, epoch)

    def _finish(self, noisy, epoch):
        flat, self.message = judge(np.asarray(noisy), self.tolerance, epoch)
        if self.converged:
            self.message = f"Stopped after {len(noisy)} steps: the ELBO no longer rose."
        self.converged = self.converged or flat
        n = min(self.n_data, 20 * self.n_rows)
        self.rows = self.rng.choice(self.n_data, n, replace=False)
        self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
        self.follow()
        self.history.append(float(np.mean(noisy[-max(epoch, 20) :])))

    def in_model(self) -> list[Sites]:
        """Return the sites of u that make this q."""
        ev = self.evaluation
        out = []
        for i, (s, p) in enumerate(zip(self.sites, self.bound.processes, strict=True)):
            if not p.held:
                out.append(s)
                continue
            R, mean = ev.R[i], ev.prior_mean[i]
            eye = np.eye(len(R))
            found = [
                sites_of(R, mean, P @ m, P - eye)
                for m, P in zip(s.linear, s.precision, strict=True)
            ]
            out.append(Sites(*map(np.stack, zip(*found, strict=True))))
        return out


def _batches(n_data: int, n_rows: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield rows, none of them again before all had their turn."""
    left = np.empty(0, dtype="int64")
    while True:
        while len(left) < n_rows:
            left = np.concatenate([left, rng.permutation(n_data)])
        yield left[:n_rows]
        left = left[n_rows:]


def _scale(Xu: np.ndarray) -> np.ndarray:
    """Standard deviation of the column of each entry."""
    sd = Xu.std(axis=0)
    return np.broadcast_to(np.where(sd > 0.0, sd, 1.0), Xu.shape).ravel()


def _prior(sites: Sites) -> Held:
    eye = np.broadcast_to(np.eye(sites.root.shape[1]), sites.root.shape).copy()
    return Held(np.zeros_like(sites.linear), eye, eye)


def _from_sites(sites: Sites, R, mean) -> Held:
    """Return q(v) that sites of u make at a theta."""
    G = R.T @ sites.root
    precision = G @ G.mT + np.eye(len(R))
    rest = sites.linear - np.einsum("kij,klj,l->ki", sites.root, sites.root, mean, optimize=True)
    return _held(rest @ R, precision)


def _held(h, precision) -> Held:
    L = np.linalg.cholesky(precision)
    means = [scipy.linalg.cho_solve((a, True), b) for a, b in zip(L, h, strict=True)]
    return Held(np.stack(means), L, precision)


def _stepped(q: Held, linear, precision, step: float) -> Held:
    """Return q a part of the way to the density that the data and the prior make."""
    eye = np.eye(linear.shape[1])
    means, factors, precisions = [], [], []
    for m, P, toward, to in zip(q.linear, q.precision, linear, precision, strict=True):
        new = (1.0 - step) * P + step * (to + eye)
        try:
            # Likelihoods that are not log-concave may take precision away, but not most of it.
            np.linalg.cholesky(new - 0.5 * (1.0 - step) * P)
        except np.linalg.LinAlgError:
            to, toward = definite(to, toward, m)
            new = (1.0 - step) * P + step * (to + eye)
        L = np.linalg.cholesky(new)
        h = (1.0 - step) * (P @ m) + step * toward
        means.append(scipy.linalg.cho_solve((L, True), h, check_finite=False))
        factors.append(L)
        precisions.append(new)
    return Held(np.stack(means), np.stack(factors), np.stack(precisions))


def _rise(noisy: np.ndarray, epoch: int) -> tuple[float, float]:
    """Return by how much the mean rose from the first half to the second, and its error.

    The values of an epoch go together: each has rows that the others lack.
    """
    n = len(noisy) // epoch
    x = noisy if n < 4 else np.array([part.mean() for part in np.array_split(noisy, n)])
    before, last = np.array_split(x, 2)
    # From what follows one another within each: a rise is no noise.
    jumps = np.concatenate([np.diff(before), np.diff(last)])
    error = np.sqrt(2.0 * np.mean(jumps**2) / len(x))
    return float(last.mean() - before.mean()), float(error)


def judge(noisy: np.ndarray, tolerance: float = 0.0, epoch: int = 1) -> tuple[bool, str]:
    """Whether a noisy bound still rose in the last quarter of the steps, and by how much."""
    late = noisy[len(noisy) // 2 :]
    if len(late) < 4:
        return False, "These steps are too few. Raise maxiter."
    rise, error = _rise(late, epoch)
    found = f"In the last quarter of the steps the ELBO rose by {rise:.2g} ± {error:.2g} nats."
    flat = bool(rise < max(2.0 * error, tolerance))
    return flat, found if flat else f"{found} Raise maxiter."
