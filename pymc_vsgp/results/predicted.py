"""What each kind of prediction takes from a draw, and makes of all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_vsgp.results.draws import Fitted

__all__ = [
    "Noise",
    "Part",
    "class_dim",
    "class_names",
    "draw_joint",
    "evaluate",
    "function_dim",
    "make_plan",
]


class Part(NamedTuple):
    """One result: how it is made of what each draw gives, and its labels."""

    name: str
    each: Callable  # (fit, draw, mu, gamma, X, start, noise) -> array with rows first
    gather: Callable  # makes what takes the draws one by one; Stack keeps them
    lead: list[str]
    tail: list[str]
    coords: dict[str, Any]


class Noise:
    """Standard normal numbers, the same for a draw however its rows are split into chunks."""

    def __init__(self, random_seed, num_samples: int):
        self.rng = np.random.default_rng(random_seed)
        self.generators = self.rng.spawn(num_samples)

    def __call__(self, s: int, shape) -> np.ndarray:
        """Next numbers of draw s."""
        return self.generators[s].standard_normal(shape)


def make_plan(fit: Fitted, what: str, of: str, quantiles, at, joint: bool) -> list[Part]:
    """Say what to take from each draw, and what to make of it."""
    f_dims, f_coords = function_dim(fit)
    y_dims, y_coords = list(fit.y_dims[1:]), fit.coords_of(fit.y_dims[1:])
    m_dims, m_coords = (y_dims, y_coords) if fit.likelihood.n_classes is None else class_dim(fit)
    draws = ["chain", "draw"]
    kinds = {
        "f": (_joint_f if joint else _f, f_dims, f_coords),
        "y": (_joint_y if joint else _y, y_dims, y_coords),
        "mean": (_mean, m_dims, m_coords),
    }
    if what in kinds:
        each, tail, coords = kinds[what]
        return [Part(what, each, Stack, draws, tail, coords | fit.draws.coords)]
    if what == "moments":
        return [
            Part(n, each, Stack, draws, f_dims, f_coords | fit.draws.coords)
            for n, each in (("mean", _mu), ("variance", _gamma))
        ]
    if what == "summary":
        parts = [
            Part("mean", _mu, Mean, [], f_dims, f_coords),
            Part("sd", _both, Spread, [], f_dims, f_coords),
        ]
        if fit.likelihood.has_mean:
            parts.append(Part("y_mean", _mean, Mean, [], m_dims, m_coords))
        return parts
    if what == "quantiles":
        each, tail, coords = kinds[of]
        q = np.atleast_1d(np.asarray(quantiles, dtype="float64"))
        if not ((q >= 0) & (q <= 1)).all():
            raise ValueError(f"quantiles are {quantiles}. Pass probabilities between 0 and 1.")
        return [Part(of, each, lambda: Quantiles(q), ["quantile"], tail, coords | {"quantile": q})]
    if at is None or np.ndim(at) != 1 or fit.likelihood.ndim_y:
        raise ValueError(
            "A density is that of values of y, one number each. Pass them as a vector, as in "
            "predict(idata, Xnew, 'density', at=np.linspace(0, 10, 50))."
        )
    at, _ = fit.likelihood.encode(at, class_names(fit))
    at = np.asarray(at)
    fit.likelihood.check_observed(at)

    def density(fit, s, mu, gamma, X, start, noise):
        def each(v):
            return fit.log_predictive(s, mu, gamma, np.full(len(X), v), start)

        return np.exp(np.stack([each(v) for v in at], axis=1))

    return [Part("density", density, Mean, [], ["value"], {"value": at})]


def evaluate(fit: Fitted, plan: list[Part], X, start, noise) -> list[np.ndarray]:
    """Results for a few rows, from all draws."""
    gathered = [part.gather() for part in plan]
    for s in range(fit.draws.n):
        mu, gamma = fit.moments(s, X)
        for part, into in zip(plan, gathered, strict=True):
            into.add(part.each(fit, s, mu, gamma, X, start, noise))
    return [
        fit.draws.unstack(g.result()) if part.gather is Stack else g.result()
        for part, g in zip(plan, gathered, strict=True)
    ]


class Stack:
    """All draws."""

    def __init__(self):
        self.draws: list[np.ndarray] = []

    def add(self, x: np.ndarray) -> None:
        """Take the next draw."""
        self.draws.append(x)

    def result(self) -> np.ndarray:
        """Draws on the first axis."""
        return np.stack(self.draws)


class Quantiles(Stack):
    """Quantiles over draws."""

    def __init__(self, q: np.ndarray):
        super().__init__()
        self.q = q

    def result(self) -> np.ndarray:
        """Quantiles on the first axis."""
        return np.quantile(super().result(), self.q, axis=0)


class Mean:
    """Mean over draws, of which nothing but the sum is kept."""

    def __init__(self):
        self.total: Any = 0.0
        self.n = 0

    def add(self, x: np.ndarray) -> None:
        """Take the next draw."""
        self.total, self.n = self.total + x, self.n + 1

    def result(self) -> np.ndarray:
        """Mean."""
        return np.asarray(self.total) / self.n


class Spread:
    """Standard deviation of the mixture of normal distributions with these moments."""

    def __init__(self):
        self.origin: np.ndarray | None = None
        self.total: Any = 0.0
        self.square: Any = 0.0
        self.n = 0

    def add(self, x: tuple[np.ndarray, np.ndarray]) -> None:
        """Take the moments of the next draw."""
        mu, gamma = x
        self.origin = mu if self.origin is None else self.origin
        self.total = self.total + (mu - self.origin)
        self.square = self.square + (mu - self.origin) ** 2 + gamma
        self.n += 1

    def result(self) -> np.ndarray:
        """Standard deviation."""
        return np.sqrt(np.maximum(self.square / self.n - (self.total / self.n) ** 2, 0.0))


def _mu(fit, s, mu, gamma, X, start, noise):
    return mu


def _gamma(fit, s, mu, gamma, X, start, noise):
    return gamma


def _both(fit, s, mu, gamma, X, start, noise):
    return mu, gamma


def _f(fit, s, mu, gamma, X, start, noise):
    return mu + np.sqrt(gamma) * noise(s, mu.shape)


def _y(fit, s, mu, gamma, X, start, noise):
    """Draw observations, at each input on its own."""
    return fit.draw_y(s, _f(fit, s, mu, gamma, X, start, noise), start, rng=noise.rng)


def _mean(fit, s, mu, gamma, X, start, noise):
    return fit.mean(s, mu, gamma, start)


def draw_joint(fit: Fitted, s: int, X: np.ndarray, noise: Noise) -> np.ndarray:
    """Draw f at the rows of X jointly, as the likelihood takes it."""
    columns = []
    for mean, cov in fit.joint_moments(s, X):
        w, V = np.linalg.eigh(cov)
        columns.append(mean + (V * np.sqrt(np.clip(w, 0.0, None))) @ noise(s, mean.shape))
    if len(columns) == 1:
        return columns[0]
    return np.concatenate([c if c.ndim == 2 else c[:, None] for c in columns], axis=1)


def _joint_f(fit, s, mu, gamma, X, start, noise):
    return draw_joint(fit, s, X, noise)


def _joint_y(fit, s, mu, gamma, X, start, noise):
    return fit.draw_y(s, draw_joint(fit, s, X, noise), start, rng=noise.rng)


def function_dim(fit: Fitted) -> tuple[list[str], dict[str, Any]]:
    """Dimension of several functions, with its labels."""
    parts = fit.observation.parts
    if len(parts) == 1 and not parts[0].several:
        return [], {}
    if len(parts) == 1:
        dims = fit.model.named_vars_to_dims.get(parts[0].u.name)
        dim = dims[0] if dims and dims[0] else "function"
        return [dim], _labels(fit, dim)
    labels = []
    for p in parts:
        if not p.several:
            labels.append(p.u.name)
        else:
            K = fit.draws.values(p.u.name).shape[1]
            labels += [f"{p.u.name}[{k}]" for k in range(K)]
    return ["function"], {"function": labels}


def _labels(fit: Fitted, dim: str) -> dict[str, Any]:
    if dim in fit.draws.posterior.coords:
        return {dim: fit.draws.posterior[dim].values}
    return fit.coords_of([dim])


def class_dim(fit: Fitted) -> tuple[list[str], dict[str, Any]]:
    """Dimension of classes, with its labels."""
    dims, coords = function_dim(fit)
    number = fit.likelihood.n_classes
    if dims and len(coords.get(dims[0], ())) == number:
        return dims, coords
    names = fit.likelihood.classes
    return ["class"], {"class": np.arange(number or 0) if names is None else np.asarray(names)}


def class_names(fit: Fitted) -> Any:
    """Return the names of the classes, where they have names."""
    if fit.likelihood.n_classes is None:
        return None
    dims, coords = class_dim(fit)
    labels = np.asarray(coords[dims[0]])
    return None if labels.dtype.kind in "iu" else list(labels)
