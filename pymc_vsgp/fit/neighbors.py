r"""The Gaussian stage of values that depend on their nearest neighbors.

Their q is what sites t make of the prior, so that

.. math:: -KL(q \| p) = \log \int p(u) t(u)\, du - E_q \log t(u)

with a sparse precision matrix; see `ops.precision`. Means of the values solve its equations, the
determinant is that of the incomplete factor, and variances are those of draws from the latter. The
gradient in theta at a fixed q of u is that of the ELBO once natural gradients have converged, so
theta moves with q and the sites held. Other processes of the model are as in `bound`.
"""

from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model

from pymc_vsgp.checks import known_value
from pymc_vsgp.compile import function, simplify
from pymc_vsgp.fit.bound import Bound, Evaluation
from pymc_vsgp.fit.exact import moments_of, standard_normals
from pymc_vsgp.fit.natural import WithHeld
from pymc_vsgp.fit.sites import site_names, sites_put_in
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import parameters, processes
from pymc_vsgp.model.variable import inducing_variables, is_sparse, value_shapes

__all__ = ["GivenNeighbors", "NeighborsBound", "has_neighbors"]


TOO_WIDE = 4.0  # for variances that are found from draws, over those of the prior
ERROR = 1e-4  # of the ELBO, for each value, as variances are those of draws


def has_neighbors(model: Model) -> bool:
    """Whether some inducing variables depend on neighbors; raise where they are of several."""
    sparse = [u for u in inducing_variables(model) if is_sparse(u)]
    if any(u.type.ndim != 1 for u in sparse):
        raise NotImplementedError(
            "The Gaussian stage takes nearest neighbors of a single function, and there are more. "
            "Sample the model with pm.sample, or pass Xu or Fourier features to prior."
        )
    return bool(sparse)


class Given:
    """What q of values given neighbors is made from, compiled."""

    def __init__(self, bound: "NeighborsBound", i: int, mode: Any):
        model, p = bound.model, bound.processes[i]
        self.size, self.draws = p.n_inducing, standard_normals(p.n_inducing)
        of, inputs = processes(model)[p.u.name], p.u.owner.inputs
        self.shared = [model[name] for name in site_names(p.u) if name in model.named_vars]
        self.pattern = [np.asarray(known_value(x)) for x in inputs[5:7]]
        places = of.conditional.points(of.args)
        _, prior = of.conditional.cross(places, places, of.args)
        graphs = model.replace_rvs_by_values([inputs[1], inputs[7], prior])
        self._maps = function(bound.values, simplify(graphs), mode)

    def __call__(self, theta, sites: Sites) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return means and deviations of the values, and whether these are too wide."""
        self.put(sites)
        mean, columns, prior = self._maps(*theta)
        w, sd = moments_of(columns, self.pattern, self.draws)
        # Data narrow what is known, unless an incomplete factor is unstable.
        return mean + w, sd, not np.all(sd**2 <= TOO_WIDE * prior)

    def put(self, sites: Sites) -> None:
        """Let these be the sites."""
        slope = sites.slope
        if slope is None and len(self.shared) > 2:
            slope = np.zeros_like(self.shared[2].get_value())
        values = [sites.linear, sites.root[:, :, None], slope]
        for shared, value in zip(self.shared, values, strict=False):
            shared.set_value(value)

    def leads(self, theta, sites: Sites) -> np.ndarray | None:
        """Return how the means follow what the sites follow, 1 x M x d."""
        if sites.slope is None:
            return None
        mean, *_ = self(theta, sites)
        shifted = [
            self(theta, sites._replace(linear=sites.linear + sites.slope[..., j]))[0]
            for j in range(sites.slope.shape[2])
        ]
        return (np.stack(shifted, axis=-1) - mean[:, None])[None]


class NeighborsBound(Bound):
    """The ELBO of a model with processes given neighbors, compiled."""

    def __init__(self, model: Model, mode: Any = None):
        shapes = value_shapes(model)
        sites = {}
        for u in inducing_variables(model):
            if not is_sparse(u):
                continue
            if u.name not in processes(model):
                raise ValueError(f"No likelihood is of {u.name!r}. Add one with gp.likelihood.")
            zeros = np.zeros((1, prod(shapes[model.rvs_to_values[u].name])))
            above = [model.rvs_to_values[rv].name for rv in parameters(model, u)]
            n = sum(prod(shapes[name]) for name in above)
            sites[u.name] = Sites(zeros, zeros, np.zeros((*zeros.shape, n)) if n else None)
        with sites_put_in(model, sites):
            super().__init__(model, mode=mode)
            sparse = [i for i, p in enumerate(self.processes) if p.sparse]
            self.given = {i: Given(self, i, mode) for i in sparse}
        self.leads: dict[int, Any] = dict.fromkeys(sparse)
        """How the means of q follow parameters of likelihoods, while it is held."""

    def _divergence(self, p, q):
        if not p.sparse:
            return super()._divergence(p, q)
        of: Any = processes(self.model)[p.u.name]
        linear, root, *args = self.model.replace_rvs_by_values([*p.u.owner.inputs[3:5], *of.args])
        linear, root, mean, sd = linear[0], root[0, :, 0], q.prior_mean, p.root[0]
        u = mean + q.mean[0]
        evidence = of.conditional.posterior(args, mean, linear, root).evidence
        # An incomplete factor may be unstable. Sites integrate to their maximum at most.
        said = pt.gt(root, 0.0)
        # No division by zero, whose gradient would be nan though nothing comes of it.
        peaks = (linear / pt.switch(said, root, 1.0)) ** 2 / 2.0
        most = pt.sum(pt.switch(said, peaks, np.inf))
        evidence = pt.switch(pt.le(evidence, most + 1.0), evidence, np.float64(np.nan))
        return pt.sum(linear * u - root**2 * (u**2 + sd**2) / 2.0) - evidence

    @np.errstate(over="ignore", invalid="ignore")  # of an unstable factor
    def __call__(self, theta, sites: list[Sites], moved=(), rows=None) -> Evaluation:
        """Return the ELBO at theta, and what improves it."""
        arguments, unstable = list(sites), False
        for i, given in self.given.items():
            u, sd, too_wide = given(self.unravel(theta).values(), sites[i])
            arguments[i], unstable = Sites(u[None], sd[None]), unstable or too_wide
        found = super().__call__(theta, arguments, moved)
        return found._replace(value=np.nan) if unstable else found

    @np.errstate(over="ignore", invalid="ignore")
    def held(self, theta, sites: list[Sites], moved, q: Evaluation) -> Evaluation:
        """Return the same for the q of values given neighbors that there is.

        Their sites are those of the last call.
        """
        arguments = list(sites)
        for i in self.given:
            arguments[i] = Sites(q.prior_mean[i] + q.mean[i], 1.0 / q.factor[i])
            if (lead := self.leads[i]) is not None:
                arguments[i] = arguments[i].following(lead, q.theta[self.processes[i].at])
        return super().__call__(theta, arguments, moved)


class GivenNeighbors(WithHeld):
    """Natural-gradient steps of the sites, and L-BFGS steps of theta with q of the values held."""

    alone: np.ndarray | None = None
    """One for each of theta that a step may move, if it may not move all."""

    def __init__(self, bound, *args):
        self.slack = ERROR * sum(given.size for given in bound.given.values())
        if len(bound.processes) == 1:
            self.to_follow = (1.0,)
        super().__init__(bound, *args)

    def _at(self, theta, moved):
        ev = super()._at(theta, moved)
        return ev if self.alone is None else ev._replace(gradient=ev.gradient * self.alone)

    def _step_rest(self, moving, n):
        """Take steps of everything; then of parameters that q follows, while the prior stays."""
        bound, slopes, theta = self.bound, {}, self.theta
        for i, given in bound.given.items():
            slopes[i], at = self.sites[i].slope, bound.processes[i].at
            self.sites[i] = self.sites[i].at(theta[at])
            given.put(self.sites[i])
        super()._step_rest(moving, n)
        if not any(slope is not None for slope in slopes.values()):
            return
        stuck, self.alone = self.stuck, np.zeros(theta.size)
        for i, given in bound.given.items():
            at = bound.processes[i].at
            self.alone[at] = 1.0
            self.sites[i] = self.sites[i].following(slopes[i], self.theta[at])
            bound.leads[i] = given.leads(bound.unravel(self.theta).values(), self.sites[i])
            given.put(self.sites[i])
        try:
            super()._step_rest(False, n)
        finally:
            self.alone, self.stuck, bound.leads = None, stuck, dict.fromkeys(bound.given)

    def run(self, maxiter: int) -> None:
        """As of the other stages; it did not converge where theta could not move."""
        super().run(maxiter)
        if self.converged and self.stuck:
            self.converged = False
            self.message = (
                "Parameters could not move, as the sparse factor is unstable at these inputs. Pass "
                "scale= to NearestNeighbors, or take points, or Kronecker for sites and times."
            )
