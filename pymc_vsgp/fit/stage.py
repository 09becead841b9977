"""What the Gaussian stage hands over."""

import logging
import weakref

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from arviz_base import dict_to_dataset
from pymc.backends.arviz import (
    coords_and_dims_for_inferencedata,
    find_constants,
    find_observations,
)
from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable

from pymc_vsgp.checks import check_number, generator_of, model_of
from pymc_vsgp.fit.approximation import MOST_DENSE
from pymc_vsgp.fit.bound import Variables, split
from pymc_vsgp.fit.checkpoint import State
from pymc_vsgp.fit.density import Points
from pymc_vsgp.fit.sites import put_sites, sites_of_all, sites_put_in, take_sites
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.copies import data_of, with_data, without_later
from pymc_vsgp.model.observation import has_random_weights
from pymc_vsgp.model.places import checksums
from pymc_vsgp.model.variable import (
    inducing_variables,
    is_independent,
    is_sparse,
)

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

LEAST = 1e-15  # eigenvalue of correlations that rounding leaves

# Inducing inputs of a model before a stage moved them.
_BEFORE: "weakref.WeakKeyDictionary[Model, dict[str, tuple]]" = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class GaussianStage:
    """A Gaussian fit of a model with variationally sparse processes.

    Attributes
    ----------
    elbo : float
        ELBO at a point estimate of the parameters, with their log prior density on the
        unconstrained scale: what the stage maximizes. For the evidence see :func:`sample`.
    elbo_error : float
        Its standard error, where it is of a random part of the data or from ADVI; 0 otherwise.
    elbo_history : ndarray
        The ELBO after each round, or every few steps. That of minibatches is the mean over the
        last passes, and at the end `elbo`.
    n_steps : int
        Rounds of "natural", steps of the other methods.
    converged : bool
        Whether the ELBO had stopped rising; of methods other than "natural", as far as its noise
        lets it show: see `message`.
    seconds, compile_seconds : float
        Time of fitting, and of building and compiling before the first step.
    theta : dict
        Estimate of every other random variable, in the user's units.
    theta_unconstrained : dict
        The same by value variable, as a sampler sees them.
    theta_covariance : ndarray
        Inverse curvature, in the unconstrained parameters raveled in that order, of the ELBO at
        the best q(u) of each. So it is marginal over u, as the normal approximation at the
        estimate.
    marginal : bool
        Whether `theta_covariance` is marginal over u. It is not if q has independent coefficients
        or is from ADVI; it is then too small, and printing leaves it out.
    mean, covariance : dict
        Of the inducing values of each process, at the estimate: K x M and K x M x M, or the
        variances, K x M, of Fourier coefficients and of values given neighbors.
    sites : dict
        Gaussian pseudo-observations of the inducing values; the sampler's coordinates.
    Xu_before, Xu : dict
        Inducing inputs before and after.
    elsewhere : tuple of GaussianStage
        Other optima that starts ended at, if several were asked for.
    interrupted : bool
        Whether Ctrl-C ended the fit.
    """

    method: str
    elbo: float
    elbo_history: np.ndarray
    n_steps: int
    converged: bool
    message: str
    seconds: float
    compile_seconds: float
    theta: dict[str, np.ndarray]
    theta_unconstrained: dict[str, np.ndarray]
    theta_covariance: np.ndarray
    marginal: bool
    mean: dict[str, np.ndarray]
    covariance: dict[str, np.ndarray]
    sites: dict[str, Sites]
    Xu_before: dict[str, np.ndarray]
    Xu: dict[str, np.ndarray]
    model: Model = field(repr=False)
    elsewhere: "tuple[GaussianStage, ...]" = ()
    interrupted: bool = False
    elbo_error: float = 0.0
    state: State | None = field(default=None, repr=False)  # where minibatches go on
    # Data and coords of the model that it was fitted to.
    data: tuple[dict[str, np.ndarray], dict[str, Any]] | None = field(default=None, repr=False)

    def __post_init__(self):
        if self.data is None:
            values, coords = data_of(self.model)
            own = {*self.Xu, *sites_of_all(self.model)}
            self.data = {n: v for n, v in values.items() if n not in own}, coords

    def __repr__(self):
        """Say what was reached, and what it changed."""
        number = f"{self.n_steps} {'rounds' if self.method == 'natural' else 'steps'}"
        lines = [
            f"GaussianStage ({self.method}): ELBO {self._shown()} after {number}, "
            f"{'converged' if self.converged else 'NOT converged'}, "
            f"{self.seconds:.1f} s and {self.compile_seconds:.1f} s to compile",
        ]
        sd = np.sqrt(np.clip(np.diag(self.theta_covariance), 0.0, None))
        for (name, value), of in zip(
            self.theta_unconstrained.items(), self._split_theta(sd).values(), strict=True
        ):
            shown = ", ".join(
                f"{v:.3g} ± {s:.2g}" if self.marginal else f"{v:.3g}"
                for v, s in zip(np.ravel(value), np.ravel(of), strict=True)
            )
            lines.append(f"  {name}: {shown}")
        for name, after in self.Xu.items():
            moved = np.abs(after - self.Xu_before[name]).max()
            what = f"moved by up to {moved:.3g}" if moved > 0.0 else "where they were"
            lines.append(f"  {name}: {len(after)} inducing inputs, {what}; coordinates set")
        for name, sites in self.sites.items():
            u, number = self.model[name], sites.linear.shape[-1]
            if is_independent(u) or is_sparse(u):
                what = "values given neighbors" if is_sparse(u) else "coefficients"
                lines.append(f"  {name}: {number} {what}; coordinates set")
        if not self.marginal:
            lines.append("  parameters have no ±: independent coefficients would narrow it")
        if not self.converged or self.method != "natural":
            lines.append(f"  {self.message}")
        for other in self.elsewhere:
            there = ", ".join(f"{k} {np.round(v, 3)}" for k, v in other.theta.items())
            lines.append(f"  another optimum, ELBO {other._shown()}: {there}")
        return "\n".join(lines)

    def _shown(self) -> str:
        error = f" ± {self.elbo_error:.2f}" if self.elbo_error else ""
        return f"{self.elbo:.2f}{error}"

    @property
    def log_mass(self) -> float:
        """Logarithm of the evidence around this optimum, but for a constant."""
        sd, w, _ = self._correlations()
        return self.elbo + float(np.log(sd).sum() + 0.5 * np.log(w).sum())

    def apply(self) -> None:
        """Put inducing inputs and coordinates of this stage into its model.

        :func:`fit_gaussian` does that by itself. Call it to return to this stage after another one,
        or after :func:`reset`. The model is changed in place: ``pm.sample`` then uses these
        coordinates.

        Returns
        -------
        None
        """
        hand_over(self.model, self.sites, self.Xu)

    def _draw_theta(self, n: int, rng: np.random.Generator, scale: float = 1.0) -> np.ndarray:
        """Draw unconstrained parameters from the normal approximation, n of them."""
        center, root = self._theta_normal()
        return center + scale * rng.normal(size=(n, center.size)) @ root.T

    def _theta_normal(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean of the unconstrained parameters, and a root of their covariance."""
        parts = [np.ravel(v) for v in self.theta_unconstrained.values()]
        center = np.concatenate([np.empty(0), *parts])
        if center.size == 0:
            return center, np.empty((0, 0))
        w, V = np.linalg.eigh(self.theta_covariance)
        return center, V * np.sqrt(np.clip(w, 0.0, None))

    def _correlations(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Standard deviations of theta, and eigenvalues and -vectors of its correlations.

        Rounding may take the variance of the narrowest ones, or leave them less than none.
        """
        sd = np.sqrt(np.diagonal(self.theta_covariance))
        w, V = np.linalg.eigh(self.theta_covariance / np.outer(sd, sd))
        return sd, np.maximum(w, LEAST), V

    def _deviations(self, away: np.ndarray) -> float:
        """Length of a step of theta, in standard deviations."""
        sd, w, V = self._correlations()
        return float(np.linalg.norm((away / sd) @ V / np.sqrt(w)))

    def _split_theta(self, theta) -> dict[str, Any]:
        """Return a vector of parameters, of numbers or a tensor, by value variable."""
        shapes = map(np.shape, self.theta_unconstrained.values())
        return dict(zip(self.theta_unconstrained, split(theta, shapes), strict=True))

    def _shape_of_epsilon(self, u) -> tuple[int, ...]:
        """Shape of the value of inducing values in the sampler's coordinates."""
        shape = self.mean[u.name].shape
        return shape[1:] if u.type.ndim == 1 else shape

    def _points(self, theta: np.ndarray, epsilon_scale: float, rng) -> list[dict[str, np.ndarray]]:
        """Unconstrained points of the model, one for each row of theta."""
        us = inducing_variables(self.model)
        out = []
        for row in theta:
            point = self._split_theta(row)
            for u in us:
                epsilon = epsilon_scale * rng.normal(size=self._shape_of_epsilon(u))
                point[self.model.rvs_to_values[u].name] = epsilon
            out.append(point)
        return out

    def to_datatree(self, draws: int = 1000, random_seed=None) -> xr.DataTree:
        """Draw from the Gaussian posterior, as if a sampler had.

        The draws, and the groups of data, are of the data that the stage was fitted to.

        Parameters
        ----------
        draws : int
            Number of draws, in one chain.
        random_seed : int or Generator, optional
            Seed.
        """
        check_number("draws", draws)
        rng = generator_of(random_seed)
        model = self.model if self.data is None else with_data(self.model, *self.data)
        model = without_later(model, {*self.theta, *self.mean})
        stage, tree = replace(self, model=model), xr.DataTree()
        if has_random_weights(model):
            _log.warning(
                "Draws of the stage spread outputs too widely where the mixing matrix is random. "
                "Use vsgp.sample."
            )
        with _applied(stage):
            variables = model.free_RVs + model.deterministics
            points = stage._points(self._draw_theta(draws, rng), 1.0, rng)
            found = Points(model).at(variables, points)
            posterior = {v.name: x[None] for v, x in zip(variables, found, strict=True)}
            tree["posterior"] = xr.DataTree(label(model, posterior))
            add_data(tree, model)
            attrs = {"inference_library": "pymc_vsgp", "method": self.method, "elbo": self.elbo}
            tree["posterior"].attrs.update(attrs | checksums(model))
        return tree


def label(model: Model, arrays: dict[str, Any], sample_dims=("chain", "draw")) -> xr.Dataset:
    """Label arrays with the dims and coords of the model."""
    coords, dims = coords_and_dims_for_inferencedata(model)
    return dict_to_dataset(arrays, coords=coords, dims=dims, sample_dims=list(sample_dims))


def add_data(tree: xr.DataTree, model: Model) -> None:
    """Add the groups of the data of a model."""
    tree["observed_data"] = xr.DataTree(label(model, find_observations(model), ()))
    tree["constant_data"] = xr.DataTree(label(model, find_constants(model), ()))


def dataset_of(stage: GaussianStage) -> xr.Dataset:
    """Label what a stage found."""
    variables: dict[str, Any] = {"elbo_history": (("round",), np.asarray(stage.elbo_history))}
    for name, value in stage.theta_unconstrained.items():
        value = np.asarray(value)
        variables[name] = ([f"{name}_dim_{i}" for i in range(value.ndim)], value)
    for name, value in stage.Xu.items():
        variables[name] = ((f"{name}_point", f"{name}_feature"), value)
    for name, sites in stage.sites.items():
        dims = (f"{name}_function", f"{name}_point", f"{name}_other")
        variables[f"{name}_sites_linear"] = (dims[:2], sites.linear)
        # Correlations of many coefficients are large, and among the data of the model.
        root = sites.root[:, 0] if sites.rotated else sites.root
        if sites.dense and not sites.shared and root.shape[-1] > MOST_DENSE:
            root = np.linalg.norm(root, axis=2)
        of_root = (*dims[:2], f"{name}_site") if sites.shared else dims[: root.ndim]
        variables[f"{name}_sites_root"] = (of_root, root)
        if sites.slope is not None:
            variables[f"{name}_sites_slope"] = ((*dims[:2], f"{name}_parameter"), sites.slope)
        variables[f"{name}_mean"] = (dims[:2], stage.mean[name])
        covariance = stage.covariance[name]
        variables[f"{name}_covariance"] = (dims[: covariance.ndim], covariance)
    attrs = {
        "method": stage.method,
        "elbo": stage.elbo,
        "elbo_error": stage.elbo_error,
        "converged": int(stage.converged),
        "seconds": stage.seconds,
    }
    return xr.Dataset(variables, attrs=attrs)


@contextmanager
def _applied(stage: GaussianStage) -> Iterator[None]:
    """Context in which a stage's inputs and coordinates are those of its model."""
    model = stage.model
    inputs = {name: model[name].get_value() for name in stage.Xu}
    before = dict(_BEFORE.get(model, {}))
    with sites_put_in(model, stage.sites):
        stage.apply()
        try:
            yield
        finally:
            for name, value in inputs.items():
                model[name].set_value(value)
            _BEFORE[model] = before


def insist(what: Callable, *args):
    """Call, and again if that is interrupted: what was found before is not to be lost."""
    try:
        return what(*args)
    except KeyboardInterrupt:
        return what(*args)


def hand_over(model: Model, sites: dict[str, Sites], Xu: dict[str, np.ndarray]) -> None:
    """Set coordinates and inducing inputs of a model."""
    put_sites(model, sites)
    before = _BEFORE.setdefault(model, {})
    for name, value in Xu.items():
        shared = model[name]
        if isinstance(shared, SharedVariable):  # those of a frozen model stay
            now = shared.get_value()
            first, ours = before.get(name, (now, now))
            # What the user set since is what a reset returns to.
            before[name] = (first if np.array_equal(now, ours) else now), value
            shared.set_value(value)


def reset(model: Model | None = None) -> None:
    """Put a model back: inducing inputs and coordinates are as before any Gaussian stage.

    Parameters
    ----------
    model : Model, optional
        By default the model on the context stack.
    """
    model = model_of(model)
    take_sites(model)
    for name, (first, ours) in _BEFORE.pop(model, {}).items():
        if np.array_equal(model[name].get_value(), ours):
            model[name].set_value(first)


def inducing_inputs(bound: Variables) -> dict[str, np.ndarray]:
    """Return the inducing inputs that a stage may move, by name."""
    shared = (p.Xu for p in bound.processes if p.Xu is not None)
    return {s.name: s.get_value() for s in shared}
