r"""The Gaussian stage of values that depend on their nearest neighbors.

Their q is what sites t make of the prior, so that

.. math:: -KL(q \| p) = \log \int p(u) t(u)\, du - E_q \log t(u)

with a sparse precision matrix; see `ops.precision`. Means of the values solve its equations, the
determinant is that of the incomplete factor, and variances are those of draws from the latter. The
gradient in theta at a fixed q of u is that of the ELBO once natural gradients have converged, so
theta moves with q and the sites held.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.gradient import grad
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_vsgp.compile import function, simplify
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.fit.bound import Evaluation, Variables
from pymc_vsgp.fit.collapsed import loops
from pymc_vsgp.fit.exact import moments_of, standard_normals
from pymc_vsgp.fit.natural import SMALLEST_STEP, Natural
from pymc_vsgp.fit.stage import sites_put_in
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import processes
from pymc_vsgp.model.variable import inducing_variables, is_sparse

__all__ = ["GivenNeighbors", "NeighborsBound", "has_neighbors"]


TOO_WIDE = 4.0  # for variances that are found from draws, over those of the prior
STEEP = 1.0  # slope of the ELBO, in nats for a unit of an unconstrained parameter: no optimum
ERROR = 1e-4  # of the ELBO, for each value, as variances are those of draws


def has_neighbors(model: Model) -> bool:
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


class NeighborsBound(Variables):
    """The ELBO of one process given neighbors, compiled; as `Bound`."""

    def __init__(self, model: Model, mode: Any = None):
        super().__init__(model)
        (p,) = self.processes
        if p.u.name not in processes(model):
            raise ValueError(f"No likelihood is of {p.u.name!r}. Add one with gp.likelihood.")
        self.draws = standard_normals(p.n_inducing)
        of = processes(model)[p.u.name]
        with sites_put_in(model, {p.u.name: self.no_sites()[0]}):
            inputs = p.u.owner.inputs
            self.shared, pattern = inputs[3:5], inputs[5:7]
            places = of.conditional.points(of.args)
            _, prior = of.conditional.cross(places, places, of.args)
            mean, columns, prior = model.replace_rvs_by_values([inputs[1], inputs[7], prior])
        self.pattern = [x.get_value() for x in pattern]
        self._maps = function(self.values, simplify([mean, columns, prior]), mode)

        u, sd = (pt.tensor(dtype="float64", shape=(p.n_inducing,)) for _ in range(2))
        logp, nodes = loops(model, p.u)
        if not nodes:
            raise ValueError(
                "No likelihood of the model streams over its data. "
                "Add it with gp.likelihood, without block_size=False."
            )
        new = [stream_gaussian(node, [(u - mean)[None]], [sd[None]]) for node in nodes]
        swaps: dict[Any, Any] = {}
        for node, found in zip(nodes, new, strict=True):
            swaps |= {node.outputs[0]: found.value, node.outputs[node.op.n_sums]: found.terms}
        (elbo,) = graph_replace([logp], swaps, strict=False)
        if p.value in ancestors([elbo]):
            raise ValueError(
                "The model uses inducing values outside of a likelihood of their process, so the "
                "Gaussian stage has no ELBO for them. Sample the model with pm.sample."
            )
        linear, root = self.shared[0][0], self.shared[1][0, :, 0]
        args = model.replace_rvs_by_values(of.args)
        conditional: Any = of.conditional
        evidence = conditional.posterior(args, mean, linear, root).evidence
        # An incomplete factor may be unstable. Sites integrate to their maximum at most.
        most = pt.sum(pt.switch(pt.gt(root, 0.0), (linear / root) ** 2 / 2.0, np.inf))
        elbo += pt.switch(pt.le(evidence, most + 1.0), evidence, np.float64(np.nan))
        elbo += pt.sum(root**2 * (u**2 + sd**2) / 2.0 - linear * u)
        slopes = [sum(x.slopes[0][0] for x in new), sum(x.grams[0][0] for x in new)]
        elbo, *slopes = simplify([elbo, *slopes])
        slopes += grad(elbo, self.values, disconnected_inputs="ignore")
        self._elbo = function([*self.values, u, sd], [elbo, *slopes], mode)

    @np.errstate(over="ignore", invalid="ignore")  # of an unstable factor
    def __call__(self, theta, sites: list[Sites]) -> Evaluation:
        """Return the ELBO at theta, and what improves it."""
        self.shared[0].set_value(sites[0].linear)
        self.shared[1].set_value(sites[0].root[:, :, None])
        mean, columns, prior = self._maps(*self.unravel(theta).values())
        w, sd = moments_of(columns, self.pattern, self.draws)
        found = self._evaluate(theta, mean, w, sd)
        # Data narrow what is known, unless an incomplete factor is unstable.
        unstable = not np.all(sd**2 <= TOO_WIDE * prior)
        return found._replace(value=np.nan) if unstable else found

    @np.errstate(over="ignore", invalid="ignore")
    def held(self, theta, q: Evaluation) -> Evaluation:
        """Return the same for the q of u that there is, and the sites of the last call."""
        (mean,), (w,), (factor,) = q.prior_mean, q.mean[0], q.factor[0]
        return self._evaluate(theta, mean, w, 1.0 / factor)

    def _evaluate(self, theta, mean, w, sd) -> Evaluation:
        found = self._elbo(*self.unravel(theta).values(), mean + w, sd)
        value, linear, gram, *slopes = (np.asarray(x) for x in found)
        precision = np.maximum(-gram, 0.0)
        toward = linear + precision * (mean + w)
        gradient = self.ravel(dict(zip(self.names, slopes, strict=True)))
        q = [w[None]], [1.0 / sd[None]], [np.ones_like(w)], [mean]
        return Evaluation(float(value), gradient, [toward[None]], [precision[None]], *q)


class GivenNeighbors(Natural):
    """As `Natural`; theta moves with q held."""

    bound: Any
    to_follow = (1.0,)
    stuck = False
    """Whether the last step of theta went nowhere, though the ELBO has a slope."""

    def __init__(self, bound, *args):
        self.slack = ERROR * len(bound.draws[0])
        super().__init__(bound, *args)

    def evaluate(self, theta, sites, moved) -> Evaluation:
        """Return the ELBO there, and what improves it."""
        return self.bound(theta, sites)

    def blended(self, ev: Evaluation, step: float, sites: list[Sites]) -> list[Sites]:
        """Return sites a part of the way to where natural gradients point."""
        (old,), (toward,), (precision,) = sites, ev.linear, ev.precision
        root = np.sqrt((1.0 - step) * old.root**2 + step * precision)
        return [Sites((1.0 - step) * old.linear + step * toward, root)]

    def run(self, maxiter: int) -> None:
        """As of the other stages; it did not converge where theta could not move."""
        super().run(maxiter)
        if self.converged and self.stuck:
            self.converged = False
            self.message = (
                "Parameters could not move, as the sparse factor is unstable at these inputs. Pass "
                "scale= to NearestNeighbors, or take points, or Kronecker for sites and times."
            )

    def _at(self, theta, moved) -> Evaluation:
        return self.bound.held(theta, self.evaluation)

    def _step_rest(self, moving: bool, n: int) -> None:
        old, before = self.theta, self.evaluation
        super()._step_rest(moving, n)
        steep = np.abs(self.evaluation.gradient).max(initial=0.0) > STEEP
        # With q held the ELBO is too large away from where it started, so less of a step may give
        # more.
        found, step = self.theta, 1.0
        self.stuck = steep and np.array_equal(found, old)
        while step >= SMALLEST_STEP:
            self.theta = old + step * (found - old)
            self.evaluation = self.evaluate(self.theta, self.sites, self.moved)
            if self.evaluation.value >= before.value - self.slack:
                return
            step /= 2.0
        self.theta, self.evaluation, self.stuck = old, before, True
