r"""The Gaussian stage of values that depend on their nearest neighbors.

Their q is what the coordinates of the sites make of a standard normal,
:math:`u = T_{\theta, s}(\epsilon)` with a sparse triangle for T, so its density is at hand but its
covariances are not. The ELBO is the mean of the log density in those coordinates, over a pair
:math:`\pm \epsilon` that stays the same, and the entropy of :math:`\epsilon`. Natural gradients
take the variance of each value from draws.
"""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.model.core import Model
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.replace import graph_replace

from pymc_vsgp.compile import function
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.bound import Evaluation, Variables
from pymc_vsgp.fit.exact import moments_of, standard_normals
from pymc_vsgp.fit.natural import SMALLEST_STEP, Natural
from pymc_vsgp.fit.stage import sites_put_in
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import processes
from pymc_vsgp.model.variable import inducing_variables, is_sparse

__all__ = ["Sampled", "SampledBound", "is_sampled"]

PAIRS = 16  # that the ELBO is the mean of, in the end and where values are few
VALUES = 48  # in all the pairs that are used all along


def is_sampled(model: Model) -> bool:
    """Whether the inducing variables depend on neighbors; raise where only some do."""
    us = inducing_variables(model)
    sparse = [u for u in us if is_sparse(u)]
    if not sparse:
        return False
    if len(us) > 1 or us[0].type.ndim != 1:
        raise NotImplementedError(
            "The Gaussian stage takes nearest neighbors of a single function, and there are more. "
            "Sample the model with pm.sample, or pass Xu or Fourier features to prior."
        )
    return True


class SampledBound(Variables):
    """The ELBO of one process given neighbors, compiled; as `Bound`."""

    def __init__(self, model: Model, mode: Any = None):
        super().__init__(model)
        (p,) = self.processes
        if p.u.name not in processes(model):
            raise ValueError(f"No likelihood is of {p.u.name!r}. Add one with gp.likelihood.")
        self.moving: list = []
        self.draws = standard_normals(p.n_inducing)
        self.n_pairs = int(np.clip(VALUES // p.n_inducing, 1, PAIRS))
        with sites_put_in(model, {p.u.name: self.no_sites()[0]}):
            u, value = p.u, p.value
            self.shared = u.owner.inputs[3:5]
            self.pattern = [x.get_value() for x in u.owner.inputs[5:7]]
            logp = rewrite_pregrad(model.logp())
            maps = model.replace_rvs_by_values([u.owner.inputs[1], u.owner.inputs[7]])
        theta, epsilon = pt.dvector("theta"), pt.dvector("epsilon")
        w, sd = (pt.tensor(dtype="float64", shape=(p.n_inducing,)) for _ in range(2))
        linear, gram = 0.0, 0.0
        nodes = block_sums(logp)
        for node in nodes:
            new = stream_gaussian(node, [w[None]], [sd[None]])
            linear, gram = linear + new.slopes[0][0], gram + new.grams[0][0]
        if not nodes:
            raise ValueError(
                "No likelihood of the model streams over its data. "
                "Add it with gp.likelihood, without block_size=False."
            )
        starts = np.cumsum([0, *(int(np.prod(s)) for s in self.shapes)])
        given = {
            v: theta[a:b].reshape(shape)
            for v, shape, a, b in zip(self.values, self.shapes, starts, starts[1:], strict=False)
        }
        pair = [
            graph_replace([logp], given | {value: e}, strict=False)[0] for e in (epsilon, -epsilon)
        ]
        # The entropy of epsilon, and its square for what that is on average.
        square = pt.sum(epsilon**2) + p.n_inducing * np.log(2.0 * np.pi)
        elbo = (pair[0] + pair[1] + square) / 2.0
        (elbo,) = rewrite_pregrad([elbo])
        gradient = pytensor.grad(elbo, theta, disconnected_inputs="ignore")
        self._elbo = function([theta, epsilon], [elbo, gradient], mode)
        maps = graph_replace(maps, given, strict=False)
        self._maps = function([theta], rewrite_pregrad(maps), mode)
        steps = graph_replace([linear, gram], given, strict=False)
        self._steps = function([theta, w, sd], rewrite_pregrad(steps), mode)

    def _put(self, sites: list[Sites]) -> None:
        self.shared[0].set_value(sites[0].linear)
        self.shared[1].set_value(sites[0].root[:, :, None])

    def value(self, theta, sites: list[Sites], n: int = 0) -> tuple[float, np.ndarray]:
        """Return the ELBO and its gradient, from n pairs."""
        self._put(sites)
        found = [self._elbo(theta, e) for e in self.draws[: n or self.n_pairs]]
        value, gradient = (np.mean(x, axis=0) for x in zip(*found, strict=True))
        return float(value), gradient

    def __call__(self, theta, sites: list[Sites]) -> Evaluation:
        """Return q at theta, and what improves it; of the ELBO and its gradient see `value`."""
        self._put(sites)
        mean, columns = (np.asarray(x) for x in self._maps(np.asarray(theta, dtype="float64")))
        w, spread = moments_of(columns, self.pattern, self.draws)
        linear, gram = (np.asarray(x) for x in self._steps(theta, w, spread))
        precision = np.maximum(-gram, 0.0)
        toward = linear + precision * (mean + w)
        q = [toward[None]], [precision[None]], [w[None]], [1.0 / spread[None]]
        return Evaluation(np.nan, np.empty(0), *q, R=[np.ones_like(w)], prior_mean=[mean])


class Sampled(Natural):
    """As `Natural`, for the ELBO of draws."""

    bound: Any

    def evaluate(self, theta, sites, moved) -> Evaluation:
        """Return the ELBO there and its gradient, and nothing that a step of sites needs."""
        value, gradient = self.bound.value(theta, sites)
        return Evaluation(value, gradient, [], [], [], [], [], [])

    def _step_sites(self, n: int) -> None:
        for _ in range(n):
            old, step = self.evaluation, 1.0
            there = self.bound(self.theta, self.sites)
            while step >= SMALLEST_STEP:
                sites = _between(self.sites, there, step)
                new = self.evaluate(self.theta, sites, self.moved)
                if np.isfinite(new.value) and new.value >= old.value:
                    self.evaluation, self.sites = new, sites
                    break
                step /= 2.0
            if self.evaluation.value - old.value < self.tolerance / 10.0:
                return

    def _slope(self, theta) -> np.ndarray:
        sites = self.sites
        for length in (1.0, 0.5):
            sites = _between(sites, self.bound(theta, sites), length)
        return self.bound.value(theta, sites)[1]


def _between(sites: list[Sites], there: Evaluation, step: float) -> list[Sites]:
    """Return sites a part of the way to where natural gradients point."""
    (old,), (toward,), (precision,) = sites, there.linear, there.precision
    root = np.sqrt((1.0 - step) * old.root**2 + step * precision)
    return [Sites((1.0 - step) * old.linear + step * toward, root)]
