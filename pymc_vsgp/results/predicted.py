"""What each kind of prediction takes from a draw, and makes of all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scipy.linalg.lapack import dpstrf
from scipy.special import ndtri

from pymc_vsgp.checks import as_array, as_real, generator_of
from pymc_vsgp.results.draws import Fitted

# Draws of the mean of y given f, or given u where a family says nothing of it at a value of f.
MEAN_AT_F = "mean at f"


class Part(NamedTuple):
    """One result: how it is made of what draws give, and its labels."""

    name: str
    each: Callable  # (fit, at, mu, gamma, X, start, noise) -> array of draws and rows
    gather: Callable  # makes what takes some draws after the other; Stack keeps them
    lead: list[str]
    tail: list[str]
    coords: dict[str, Any]


class Noise:
    """Standard normal numbers for all draws, the same however rows are split into chunks."""

    def __init__(self, random_seed, num_samples: int):
        self.rng = generator_of(random_seed)
        self.normal, self.n = self.rng.spawn(1)[0], num_samples

        self._chunk: dict[Any, np.ndarray] = {}

    def begin(self) -> None:
        """Go on to another chunk of rows."""
        self._chunk = {}

    def __call__(self, at: slice, shape, which: int = 0) -> np.ndarray:
        """Numbers of some draws, in this shape for each; `which` tells those who ask apart."""
        if (which, shape) not in self._chunk:
            # Rows first.
            found = self.normal.standard_normal((*shape, self.n))
            self._chunk[which, shape] = np.moveaxis(found, -1, 0)
        return self._chunk[which, shape][at]


class Smooth(Noise):
    """Numbers that all rows share, so that quantiles over draws are smooth along the rows."""

    def begin(self) -> None:
        """Keep them for all chunks."""

    def __call__(self, at: slice, shape, which: int = 0) -> np.ndarray:
        """Quantiles of a normal variable in random order, another one for each function."""
        functions = shape[1:]
        if functions not in self._chunk:
            z = np.broadcast_to(ndtri((np.arange(self.n) + 0.5) / self.n), (*functions, self.n))
            self._chunk[functions] = np.moveaxis(self.normal.permuted(z, axis=-1), -1, 0)[:, None]
        return self._chunk[functions][at]


def make_plan(fit: Fitted, what: str, of: str, quantiles, at, joint: bool) -> list[Part]:
    """Say what to take from each draw, and what to make of it."""
    f_dims, f_coords = function_dim(fit)
    y_dims, y_coords = list(fit.y_dims[1:]), fit.coords_of(fit.y_dims[1:])
    m_dims, m_coords = y_dims, y_coords
    if fit.likelihood.of_output.n_classes is not None:
        c_dims, c_coords = class_dim(fit)
        m_dims, m_coords = [*y_dims, *c_dims], y_coords | c_coords
    draws = ["chain", "draw"]
    kinds = {
        "f": (_joint_f if joint else _f, f_dims, f_coords),
        "y": (_joint_y if joint else _y, y_dims, y_coords),
        "mean": (_mean, m_dims, m_coords),
        MEAN_AT_F: (_mean, m_dims, m_coords),
    }
    if fit.likelihood.has_mean_at_f:
        kinds[MEAN_AT_F] = (_joint_mean_at_f if joint else _mean_at_f, m_dims, m_coords)
    elif fit.likelihood.has_mean and fit.likelihood.of_output.n_classes is None:
        if what == MEAN_AT_F or (what == "quantiles" and of == "mean"):
            raise ValueError(
                f"{fit.likelihood.title} does not define the mean of y at a value of f. "
                "Give it a conditional_mean, or ask for 'y' or 'f'."
            )
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
        if of == "y":
            check_classes_ordered(
                fit, "Ask for those of the probabilities of classes, with of='mean'."
            )
        # Given u alone the mean is an average over f, which leaves out how uncertain f is.
        each, tail, coords = kinds[MEAN_AT_F if of == "mean" else of]
        q = np.ravel(as_real(quantiles, "quantiles", "Pass probabilities."))
        if not (q.size and (q >= 0).all() and (q <= 1).all()):
            raise ValueError(f"quantiles are {quantiles}. Pass probabilities between 0 and 1.")
        return [Part(of, each, lambda: Quantiles(q), ["quantile"], tail, coords | {"quantile": q})]
    numbers = as_array(at, "at")
    if np.ma.is_masked(numbers):
        raise TypeError("at is a masked array, which has values that are none. Drop these first.")
    if fit.likelihood.ndim_y:
        raise ValueError(
            f"{fit.name!r} has several outputs, and 'density' is for a likelihood of one. Use "
            "log_predictive_density, with nan in ynew for outputs to leave out."
        )
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(
            "A density is that of values of y, one number each. Pass them as a vector, as in "
            "predict(idata, Xnew, 'density', at=np.linspace(0, 10, 50))."
        )
    at, _ = fit.likelihood.encode(at, class_names(fit, at))
    at = np.asarray(at)
    if at.dtype.kind not in "fiub":
        at = as_real(at, "at", "Pass numbers, or names of the classes.")
    fit.likelihood.check_values(at)

    def density(fit, draws, mu, gamma, X, start, noise):
        def each(v):
            return fit.log_density(draws, mu, gamma, np.full(len(X), v), start)

        return np.exp(np.stack([each(v) for v in at], axis=2))

    return [Part("density", density, Mean, [], ["value"], {"value": numbers})]


def evaluate(fit: Fitted, plan: list[Part], X, start, noise: Noise) -> list[np.ndarray]:
    """Results for a few rows, from all draws."""
    gathered = [part.gather() for part in plan]
    noise.begin()
    for at in fit.slabs(len(X) * fit.n_functions):
        mu, gamma = fit.moments(at, X)
        for part, into in zip(plan, gathered, strict=True):
            into.add(part.each(fit, at, mu, gamma, X, start, noise))
    return [
        fit.draws.unstack(g.result()) if part.gather is Stack else g.result()
        for part, g in zip(plan, gathered, strict=True)
    ]


class Stack:
    """All draws."""

    def __init__(self):
        self.draws: list[np.ndarray] = []

    def add(self, x: np.ndarray) -> None:
        """Take the next draws."""
        self.draws.append(x)

    def result(self) -> np.ndarray:
        """Draws on the first axis."""
        return np.concatenate(self.draws)


class Quantiles(Stack):
    """Quantiles over draws."""

    def __init__(self, q: np.ndarray):
        super().__init__()
        self.q = q

    def result(self) -> np.ndarray:
        return np.quantile(super().result(), self.q, axis=0)


class Mean:
    """Mean over draws, of which nothing but the sum is kept."""

    def __init__(self):
        self.total: Any = 0.0
        self.n = 0

    def add(self, x: np.ndarray) -> None:
        """Take the next draws."""
        self.total, self.n = self.total + x.sum(axis=0), self.n + len(x)

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
        """Take the moments of the next draws."""
        mu, gamma = x
        self.origin = mu[0] if self.origin is None else self.origin
        away = mu - self.origin
        self.total = self.total + away.sum(axis=0)
        self.square = self.square + (away**2 + gamma).sum(axis=0)
        self.n += len(mu)

    def result(self) -> np.ndarray:
        """Standard deviation."""
        return np.sqrt(np.maximum(self.square / self.n - (self.total / self.n) ** 2, 0.0))


def _mu(fit, at, mu, gamma, X, start, noise):
    return mu


def _gamma(fit, at, mu, gamma, X, start, noise):
    return gamma


def _both(fit, at, mu, gamma, X, start, noise):
    return mu, gamma


def _f(fit, at, mu, gamma, X, start, noise):
    return mu + np.sqrt(gamma) * noise(at, mu.shape[1:])


def _y(fit, at, mu, gamma, X, start, noise):
    """Draw observations, at each input on its own."""
    return fit.draw_y(at, _f(fit, at, mu, gamma, X, start, noise), start, rng=noise.rng)


def _mean(fit, at, mu, gamma, X, start, noise):
    return fit.mean(at, mu, gamma, start)


def _mean_at_f(fit, at, mu, gamma, X, start, noise):
    return _conditional_mean(fit, at, _f(fit, at, mu, gamma, X, start, noise), start)


def _conditional_mean(fit, at, f, start):
    def graph(lik, f):
        return [lik.conditional_mean(f)]

    return fit.rowwise("conditional_mean", graph, at, {"f": f}, start=start)[0]


def draw_joint(fit: Fitted, at: slice, X: np.ndarray, noise: Noise) -> np.ndarray:
    """Draw f at the rows of X jointly, as the likelihood takes it."""
    found = []
    for few in fit.slabs(len(X) ** 2, at):
        columns = []
        for i, (mean, cov) in enumerate(fit.joint_moments(few, X)):
            z = noise(few, mean.shape[1:], i)
            columns.append(mean + np.stack([_drawn(K, e) for K, e in zip(cov, z, strict=True)]))
        if len(columns) > 1:
            columns = [c if c.ndim == 3 else c[:, :, None] for c in columns]
            columns = [np.concatenate(columns, axis=2)]
        found += columns
    return np.concatenate(found)


def _drawn(K: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Make normal numbers of covariance K, which may be singular but for rounding, of z."""
    L, order, rank, _ = dpstrf(K, lower=True)
    x = np.empty_like(z)
    x[order - 1] = np.tril(L[:, :rank]) @ z[:rank]
    return x


def _joint_f(fit, at, mu, gamma, X, start, noise):
    return draw_joint(fit, at, X, noise)


def _joint_y(fit, at, mu, gamma, X, start, noise):
    return fit.draw_y(at, draw_joint(fit, at, X, noise), start, rng=noise.rng)


def _joint_mean_at_f(fit, at, mu, gamma, X, start, noise):
    return _conditional_mean(fit, at, draw_joint(fit, at, X, noise), start)


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
    lik = fit.likelihood.of_output
    # Ordered classes are of one function, or of mixtures of several.
    dims, coords = ([], {}) if lik.n_latent == 1 else function_dim(fit)
    number, names = lik.n_classes, lik.classes or fit.of_model.of_output.classes
    if names is not None and number in (None, len(names)):
        return ["class"], {"class": np.asarray(names)}
    if dims and len(coords.get(dims[0], ())) == number:
        return dims, coords
    return ["class"], {"class": np.arange(number or 0)}


def check_classes_ordered(fit: Fitted, advice: str) -> None:
    """Raise ValueError for classes without an order: quantiles of codes say nothing."""
    lik = fit.likelihood.of_output
    if lik.n_classes is not None and lik.n_latent != 1:  # ordered classes are of one function
        raise ValueError(
            f"The classes of {fit.name!r} have no order, so they have no quantiles. {advice}"
        )


def class_names(fit: Fitted, y: Any) -> Any:
    """Return the names of the classes, where they have names that those in y can be among."""
    if fit.likelihood.n_classes is None:
        return None
    dims, coords = class_dim(fit)
    labels = np.asarray(coords[dims[0]])
    if labels.dtype.kind not in "iu" or not np.array_equal(labels, np.arange(len(labels))):
        return list(labels)
    # Numbers from 0 may be all that there is: they are names of numbers, and not of words.
    kind = getattr(y, "dtype", None)
    numbers = isinstance(kind, pd.CategoricalDtype) and kind.categories.dtype.kind in "iu"
    return list(labels) if numbers else None
