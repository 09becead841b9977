"""Minibatches: stochastic natural gradients for the sites, Adam for theta."""

from typing import Any

import numpy as np

__all__ = ["judge", "take_steps"]


def take_steps(fit: Any, n: int, rng: np.random.Generator) -> None:
    """Take n steps of a fit, each with as many rows of the data as it has."""
    n_data, n_rows = fit.bound.n_data(), len(fit.rows)
    x = np.concatenate([fit.theta, *(x.ravel() for x in fit.moved)])
    first, second = np.zeros_like(x), np.zeros_like(x)
    noisy: list[float] = []
    for i in range(n):
        fit.rows = rng.choice(n_data, n_rows, replace=False)
        ev = fit.evaluate(fit.theta, fit.sites, fit.moved)
        if np.isfinite(ev.value):
            fit.sites = fit.blended(ev, min(0.2, 2.0 / (10.0 + i**0.7)), fit.sites)
            first = 0.9 * first + 0.1 * ev.gradient
            second = 0.999 * second + 0.001 * ev.gradient**2
            rate = 0.03 if i < n / 2 else 0.03 * 2.0 * (1.0 - i / n)
            if i > 20:
                unbiased = first / (1 - 0.9 ** (i + 1))
                scale = np.sqrt(second / (1 - 0.999 ** (i + 1))) + 1e-8
                x = x + rate * unbiased / scale
                fit.theta, fit.moved = fit.split(x, range(len(fit.moved)))
            noisy.append(ev.value)
        if (i + 1) % 20 == 0:
            fit.history.append(float(np.mean(noisy[-200:])))
            fit.report(i + 1, fit.history[-1])
    fit.converged, fit.message = judge(np.asarray(noisy), fit.tolerance)
    fit.rows = rng.choice(n_data, min(n_data, 20 * n_rows), replace=False)
    fit.evaluation = fit.evaluate(fit.theta, fit.sites, fit.moved)
    fit.follow()
    fit.history.append(float(np.mean(noisy[-200:])))


def judge(noisy: np.ndarray, tolerance: float = 0.0) -> tuple[bool, str]:
    """Whether a noisy bound still rose in the last quarter of the steps, and by how much."""
    before, last = np.array_split(noisy[len(noisy) // 2 :], 2)
    if min(len(before), len(last)) < 2:
        return False, "These steps are too few. Raise maxiter."
    rise = last.mean() - before.mean()
    error = np.sqrt(last.var() / len(last) + before.var() / len(before))
    found = f"In the last quarter of the steps the ELBO rose by {rise:.2g} ± {error:.2g} nats."
    flat = bool(rise < max(2.0 * error, tolerance))
    return flat, found if flat else f"{found} Raise maxiter."
