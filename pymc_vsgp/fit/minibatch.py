r"""Minibatches: stochastic natural gradients for q(u), Adam for theta and the inducing inputs.

Here q(v) of inducing points stays where it is while theta moves, as in SVGP. Its gradient in theta
costs a third of one in which q follows theta, which many small steps do without.

Rows are drawn without replacement until all had their turn. So the mean of the ELBO over an epoch
has little noise of sampling, and says when to stop. It is of parameters that moved meanwhile, so
the ELBO of the result is evaluated in the end, on all rows where that takes a part of the fit.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from pymc_vsgp.fit.bound import Evaluation
from pymc_vsgp.fit.checkpoint import Checkpoint, State
from pymc_vsgp.fit.following import following, in_the_end
from pymc_vsgp.fit.held import at_prior, from_sites, held, stepped, stepped_on_jax
from pymc_vsgp.fit.natural import AWAY, Natural
from pymc_vsgp.fit.saddles import alike, without_slope
from pymc_vsgp.fit.stage import insist
from pymc_vsgp.inducing.coordinates import Sites, sites_of

__all__ = ["Minibatches", "judge"]

RATE = 0.03  # of Adam, in the unconstrained theta
RATE_OF_INPUTS = 0.03  # in deviations of the inducing inputs
EPOCHS = 4  # that q remembers
LONGEST = 0.2  # step of a natural gradient
FIRST = 20  # steps of q alone
WINDOW = 300  # steps at least, or a fourth, whose mean is compared with that of those before
SMALLEST = 1 / 8  # part of the first steps: below it they end
COOLING = 0.25  # of all steps: where they run out, their size falls to zero
ROWS, BATCHES = 5000, 20  # at most, that say how the ELBO curves in the end
FEWEST = 20  # parts of them, at least, that say how large it is, ...
COSTLY = 1 / 4  # ... or all, where these are at most that part of the rows that steps took
FAILURES = 20  # in a row, each with half the rate
COUNTS = ("taken", "begun", "updates", "since", "failures", "part", "converged")


class Minibatches(Natural):
    """Alternate steps of q with those of everything else, each for a few rows of the data."""

    def __init__(self, bound, theta, sites, Xu, tolerance, report, rng, n_rows):
        bound.bring_data()
        self.n_data = bound.n_data()
        self.n_rows = min(n_rows, self.n_data)
        self.batches = Batches(self.n_data, self.n_rows, rng)
        self.stepped = stepped_on_jax() if bound.on_jax else stepped
        self.bound, rows = bound, next(self.batches)
        self.given = [s.at(theta[p.at]) for s, p in zip(sites, bound.processes, strict=True)]
        # A density of v takes the prior of u, which an evaluation finds.
        first = [
            at_prior(s) if p.held else s for s, p in zip(self.given, bound.processes, strict=True)
        ]
        start = self._held(self.given, bound(theta, first, [*Xu, *bound.no_offsets()], rows))
        super().__init__(bound, theta, start, Xu, tolerance, report, rows)
        rates = [np.full(self.theta.size, RATE)]
        rates += [RATE_OF_INPUTS * _scale(x) for x in self.moved[: self.n_Xu]]
        rates += [np.full(x.size, RATE) for x in self.moved[self.n_Xu :]]
        x = np.concatenate([self.theta, *(x.ravel() for x in self.moved)])
        zeros = np.zeros_like(x)
        self.x, self.rate, self.first, self.second = x, np.concatenate(rates), zeros, zeros
        self.taken = self.begun = self.updates = self.since = self.failures = 0
        self.part = 1.0
        # Arrays that are made anew, so that a state of each step costs nothing to keep.
        self.noisy, self.history = np.empty(0), np.empty(0)
        self.last: Any = (x, self.sites)

    def _held(self, sites: list[Sites], ev: Evaluation) -> list[Any]:
        """Return q of processes that sites make where q is held, and the sites of others."""
        return [
            from_sites(s, ev.R[i], ev.prior_mean[i]) if p.held else s
            for i, (s, p) in enumerate(zip(sites, self.bound.processes, strict=True))
        ]

    def _narrower(self, sites, much):
        return self._held(super()._narrower(self.given, much), self.evaluation)

    def state(self) -> State:
        """Return all that the next steps depend on."""
        return State(
            x=self.x,
            q=[(s.linear, s.precision) if p.held else s[:2] for s, p in self._owned()],
            first=self.first,
            second=self.second,
            rate=self.rate,
            rows=self.rows,
            left=self.batches.left,
            noisy=self.noisy,
            history=self.history,
            counts={name: getattr(self, name) for name in COUNTS},
            rng=self.batches.rng.bit_generator.state,
            data=[self.n_data, self.n_rows],
        )

    def takes(self, state: State) -> bool:
        """Whether a state is of such a model, with as many data and rows of a batch."""
        fits = state.data == [self.n_data, self.n_rows] and state.x.shape == self.x.shape
        mine = [(s.linear.shape, s.root.shape) for s in self.sites]
        return fits and [(a.shape, b.shape) for a, b in state.q] == mine

    def resume(self, state: State) -> None:
        """Go on from there, exactly."""
        for name in ("x", "first", "second", "rate", "rows", "noisy", "history"):
            setattr(self, name, getattr(state, name))
        for name, value in state.counts.items():
            setattr(self, name, value)
        self.sites = [
            held(a, b) if p.held else Sites(a, b)
            for (a, b), p in zip(state.q, self.bound.processes, strict=True)
        ]
        self.last = (self.x, self.sites)
        self.theta, self.moved = self.split(self.x, range(len(self.moved)))
        self.batches.left = state.left
        self.batches.rng = np.random.default_rng()  # not that of the user
        self.batches.rng.bit_generator.state = state.rng

    def _owned(self):
        return zip(self.sites, self.bound.processes, strict=True)

    @property
    def n_steps(self) -> int:
        """Steps that it took."""
        return self.taken

    def evaluate(self, theta, sites, moved) -> Evaluation:
        """Return an estimate of the ELBO there, and of what improves it."""
        return self.bound(theta, sites, moved, self.rows)

    def _blended(self, i: int, ev: Evaluation, step: float, sites: Any) -> Any:
        if self.bound.processes[i].held:
            return self.stepped(sites, ev.linear[i], ev.precision[i], step)
        return super()._blended(i, ev, step, sites)

    def next_value(self) -> float:
        """Return the ELBO of the next batch, by which a model and its data are known again."""
        return float(self.evaluate(self.theta, self.sites, self.moved).value)

    def run(self, maxiter: int, checkpoint: Checkpoint | None = None) -> None:
        """Take up to so many steps since it began, fewer where the ELBO stops rising."""
        end = self.begun + maxiter
        known = self.state()
        try:
            while self.taken < end and not self.converged:
                self._step((end - self.taken) / (COOLING * maxiter))
                known = self.state()
                if checkpoint is not None and checkpoint.due:
                    checkpoint.write(known, self.next_value())
        except KeyboardInterrupt:
            if not known.counts["taken"]:
                raise
            self.resume(known)
            self.interrupted = True
        # A step may have left it on a device of JAX.
        known = replace(known, q=[(np.asarray(a), np.asarray(b)) for a, b in known.q])
        self.reached = known
        if checkpoint is not None:
            # Before anything is evaluated on other rows than those of the next batch.
            insist(checkpoint.write, known, insist(self.next_value))
        insist(self._finish)

    def _leave_saddle(self, gradient: np.ndarray) -> None:
        some, rows = self._at_saddle(gradient), self.rows
        if not some.any():
            return
        # Effects of groups may only be that of which the batch has no row.
        self.rows = self._parts()[0]
        some &= self._at_saddle(self.evaluate(self.theta, self.sites, self.moved).gradient)
        self.rows = rows
        self._move_aside(some, AWAY)
        self.x = np.concatenate([self.theta, *(x.ravel() for x in self.moved)])

    def _at_saddle(self, gradient: np.ndarray) -> np.ndarray:
        slope = gradient[: self.theta.size]
        return without_slope(slope) | alike(self.bound.processes, self.theta, slope)

    def _parts(self) -> list[np.ndarray]:
        """Return all rows once, in parts of more than a batch.

        Batches go on as they would, and fits to the same data get the same parts: what differs
        between their ELBOs has less noise.
        """
        n = max(self.n_rows, min(ROWS, BATCHES * self.n_rows))
        rows = np.random.default_rng(0).permutation(self.n_data)
        return np.split(rows, range(n, self.n_data, n))

    def _step(self, cooling: float) -> None:
        evaluate = self.bound.where_it_is if self.bound.on_jax else self.bound
        ev = evaluate(self.theta, self.sites, self.moved, self.rows)
        i, self.taken = self.taken, self.taken + 1
        if not (np.isfinite(ev.value) and np.isfinite(ev.gradient).all()):
            self.failures, self.rate = self.failures + 1, self.rate / 2.0
            if self.failures > FAILURES:
                raise ValueError(
                    "The ELBO is not finite where minibatches lead to. "
                    "Give the parameters priors that keep away from there (docs/priors.md), or use "
                    "'natural'."
                )
            self.x, self.sites = self.last
            self.theta, self.moved = self.split(self.x, range(len(self.moved)))
            return
        self.failures, self.last = 0, (self.x, self.sites)
        self.noisy = np.append(self.noisy, ev.value)
        size = self.part * min(cooling, 1.0)
        # A running mean over rows, of a few at first.
        least = min(self.n_rows / (EPOCHS * self.n_data), LONGEST)
        step = max(least, min(LONGEST, 2.0 / (10.0 + i**0.7)))
        self.sites = self.blended(ev, max(size, SMALLEST) * step, self.sites)
        if i >= FIRST:
            if not self.updates:
                self._leave_saddle(ev.gradient)
            self.updates += 1
            self.first = 0.9 * self.first + 0.1 * ev.gradient
            self.second = 0.999 * self.second + 0.001 * ev.gradient**2
            unbiased = self.first / (1 - 0.9**self.updates)
            scale = np.sqrt(self.second / (1 - 0.999**self.updates))
            self.x = self.x + size * self.rate * unbiased / np.where(scale > 0.0, scale, 1.0)
            self.theta, self.moved = self.split(self.x, range(len(self.moved)))
        self.rows = next(self.batches)
        mean = self._mean()
        self.report(self.taken, mean)
        if self.taken % 20 == 0:
            self.history = np.append(self.history, mean)
        self.since += 1
        self._judge()

    def _judge(self) -> None:
        """Halve the steps, or end, where the mean of the ELBO no longer rises."""
        if not self.tolerance:
            return
        epoch, since = self.epoch, self.since
        window = epoch * -(-WINDOW // epoch)
        if since % window or since < 2 * window:
            return
        n = max(since // 4 // epoch * epoch, window)
        rise, error = _rise(self.noisy[-2 * n :], epoch)
        if rise < max(2.0 * error, self.tolerance):
            self.part, self.since = self.part / 2.0, 0
            self.converged = self.part < SMALLEST

    @property
    def epoch(self) -> int:
        """Batches in a pass over the data."""
        return -(-self.n_data // self.n_rows)

    def _mean(self) -> float:
        passes = -(-20 // self.epoch)
        return float(np.mean(self.noisy[-passes * self.epoch :]))

    def _finish(self) -> None:
        flat, self.message = judge(self.noisy, 0.0, self.epoch)
        if self.converged:
            self.message = f"Stopped after {self.taken} steps: the ELBO no longer rose."
        elif self.interrupted:
            self.message = f"Interrupted after {self.taken} steps. Continue with start=stage."
        self.converged = self.converged or (flat and not self.interrupted)
        elbo, self.elbo_error = self._evaluate_the_end()
        self.follow()
        self.history = np.append(self.history, elbo)

    def _evaluate_the_end(self) -> tuple[float, float]:
        """Evaluate where it ended; return the ELBO, and its error where that is of some rows."""
        parts = self._parts()
        most = 0 if self.interrupted else int(COSTLY * self.taken * self.n_rows) // len(parts[0])
        self.rows, at = parts[0], (self.theta, self.sites, self.moved)
        self.evaluation = self.evaluate(*at)
        values = [self.evaluation.value]
        try:
            for rows in parts[1 : max(most, FEWEST)]:
                values.append(self.bound.where_it_is(*at, rows).value)
        except KeyboardInterrupt:  # the fit has ended, and has an estimate
            self.interrupted = True
        # As in steps, rows that are far from q may have no ELBO.
        some = np.isfinite(values) if np.isfinite(values).any() else np.ones(len(values), bool)
        sizes = np.array([len(rows) for rows in parts[: len(values)]])[some]
        found = np.array(values)[some]
        elbo = float(np.average(found, weights=sizes))  # each is scaled to all rows
        left = 1.0 - sizes.sum() / self.n_data
        if not left or len(found) == 1:
            return elbo, np.inf if left else 0.0
        return elbo, float(np.sqrt(left * np.var(found, ddof=1) / len(found)))

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
            linear, root, _ = zip(*found, strict=True)
            out.append(Sites(np.stack(linear), np.stack(root)))
        return in_the_end(self, following(self, out))


class Batches:
    """Rows without end, none of them again before all had their turn."""

    def __init__(self, n_data: int, n_rows: int, rng: np.random.Generator):
        self.n_data, self.n_rows, self.rng = n_data, n_rows, rng
        self.left = np.empty(0, dtype="int64")

    def __next__(self) -> np.ndarray:
        """Return the rows of the next batch."""
        while len(self.left) < self.n_rows:
            self.left = np.concatenate([self.left, self.rng.permutation(self.n_data)])
        rows, self.left = self.left[: self.n_rows], self.left[self.n_rows :]
        return rows


def _scale(Xu: np.ndarray) -> np.ndarray:
    """Standard deviation of the column of each entry."""
    sd = Xu.std(axis=0)
    return np.broadcast_to(np.where(sd > 0.0, sd, 1.0), Xu.shape).ravel()


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
