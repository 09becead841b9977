"""Updates of parameters under one or more parametrizations of the latent values."""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc.blocking import PointType, StatsType
from pymc.model.core import Model
from pymc.pytensorf import rewrite_pregrad
from pymc.step_methods.state import dataclass_state
from pytensor.graph.replace import graph_replace, vectorize_graph
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from pymc_vsgp.checks import check_names, check_number
from pymc_vsgp.steps.elliptical import slice_once
from pymc_vsgp.steps.random_walk import RandomWalk, WalkingState, WalkingStep, acceptance

SCHEMES = ("sufficient", "ancillary", "surrogate")
LARGEST_SHARE = 0.99  # of the prior variance, that surrogate data take the posterior's to be


@dataclass_state
class InterweavingState(WalkingState):
    """The same, and what was seen of the function."""

    n_seen: int
    mean_seen: np.ndarray
    scatter_seen: np.ndarray
    prior_seen: np.ndarray


class _Place(NamedTuple):
    """A point, with its whitened values and log likelihood."""

    point: dict
    nu: np.ndarray
    log_likelihood: float
    known: list[np.ndarray]
    c: np.ndarray
    B: np.ndarray
    """Values of the function are ``c + B nu``."""

    @property
    def f(self) -> np.ndarray:
        return self.c + self.B @ self.nu

    @property
    def prior_variance(self) -> np.ndarray:
        """Of f."""
        return (self.B**2).sum(axis=1)


class Interweaving(WalkingStep):
    r"""Metropolis updates of parameters given the latent values, in turns with elliptical slices.

    Parameters of a kernel move slowly given the values f of the function that they describe. How
    slowly depends on what is held:

    * ``"sufficient"`` holds f itself. Good where data determine f.
    * ``"ancillary"`` holds the standard normals :math:`\nu` of :math:`f = m + R \nu`. Good where
      they don't.
    * ``"surrogate"`` draws noisy observations of f, and holds the standard normals of f given
      these (Murray and Adams 2010). It is in between. The noise is such that f has about its
      posterior variance given one of these observations, as seen during tuning.

    With several schemes each step makes an update under each of them, as interweaving does (Yu and
    Meng 2011). Any likelihood will do, and no gradient is needed.

    Parameters
    ----------
    vars : list of variables
        Parameters. A random walk moves them as the sampler sees them, for example as logarithms.
    latents : list of variables, optional
        The latent values. By default the model's inducing values, or those of ``pm.gp.Latent``.
    schemes : tuple of {"sufficient", "ancillary", "surrogate"}
        What is held.
    n_updates : int, default 10
        Elliptical slices of the latent values in each step.
    target_accept : float, default 0.25
        Acceptance rate that tuning aims at.
    tune : bool, default True
        Whether to tune while ``pm.sample`` does.
    model : Model, optional
        By default the model on the context stack.
    rng : RandomGenerator, optional
        Source of randomness; ``pm.sample(random_seed=...)`` sets it.
    compile_kwargs : dict, optional
        How to compile, for example ``{"mode": "JAX"}``.

    References
    ----------
    Murray, I. and Adams, R. P. (2010). Slice sampling covariance hyperparameters of latent Gaussian
    models. *Advances in Neural Information Processing Systems*, 23.
    https://doi.org/10.48550/arXiv.1006.0868

    Yu, Y. and Meng, X.-L. (2011). To center or not to center: that is not the question. *Journal of
    Computational and Graphical Statistics*, 20(3), 531-570.
    https://doi.org/10.1198/jcgs.2011.203main
    """

    name = "interweaving"
    stats_dtypes_shapes: dict[str, Any] = {
        "accept": (np.float64, []),
        **{f"accept_{scheme}": (np.float64, []) for scheme in SCHEMES},
        "scaling": (np.float64, []),
        "n_evaluations": (np.int64, []),
    }
    _state_class = InterweavingState
    _here: _Place

    def __init__(
        self,
        vars,
        *,
        latents=None,
        schemes=("surrogate",),
        n_updates: int = 10,
        target_accept: float = 0.25,
        tune: bool = True,
        model: Model | None = None,
        rng=None,
        initial_point=None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        check_names("schemes", schemes)
        self.schemes = (schemes,) if isinstance(schemes, str) else tuple(schemes or ())
        if not self.schemes or set(self.schemes) - set(SCHEMES):
            raise ValueError(f"schemes is {schemes!r}. Pass one or more of {list(SCHEMES)}.")
        self.n_updates = check_number("n_updates", n_updates)
        self.blocked, n_walks = blocked, len(self.schemes)
        self._walk(vars, latents, target_accept, tune, model, rng, compile_kwargs, n_walks)
        # The function is known once the parameters are, and its kernel is that of the rest.
        affine = [] if set(self.schemes) == {"ancillary"} else [self._affine()]
        self._prepare, self._log_likelihood, self._values, self._function = (
            self.latents.given_others(
                [self.latents.log_likelihood], self.latents.new_values, affine
            )
        )
        self._sees = bool(affine)
        self._forget()

    def _affine(self):
        """Return the values of the function at no and at unit standard normals."""
        latents = self.latents
        rvs = [m.rv for m in latents.members]
        named = [latents.model.named_vars.get(rv.name.removesuffix("_rotated_"), rv) for rv in rvs]
        fs = latents.model.replace_rvs_by_values(named)
        swaps = {m.value: v for m, v in zip(latents.members, latents.new_values, strict=True)}
        fs = graph_replace(fs, swaps, strict=False)
        f = rewrite_pregrad([pt.concatenate([x.ravel() for x in fs])])
        probe = pt.concatenate([pt.zeros((1, latents.size)), pt.eye(latents.size)])
        return vectorize_graph(f, {latents.nu: probe})[0]

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        self._forget()
        super().setup_chain(rng, tune, draws)

    def _forget(self):
        self.n_seen = 0
        self.mean_seen, self.scatter_seen, self.prior_seen = np.zeros((3, self.latents.size))

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Update parameters and latent values."""
        here = self._here if self._left_at(point) else self._place(point)
        if here is None:
            raise ValueError(
                "The log density is not finite at the current values. Pass initvals where it is."
            )
        stats = {f"accept_{scheme}": np.nan for scheme in SCHEMES}
        for scheme, walk in zip(self.schemes, self.walks, strict=True):
            here, accept = self._update(here, scheme, walk)
            stats[f"accept_{scheme}"] = accept
            if self._tuning:
                walk.learn(self.parameters.of(here.point), accept)
        nu, level, n = here.nu, here.log_likelihood, 0
        for _ in range(self.n_updates):
            nu, level, _, more = slice_once(nu, level, self._at(here), self.rng)
            n += more
        values = zip(self.latents.values, self._values(nu, *here.known), strict=True)
        new = here.point | {v.name: x for v, x in values}
        self._here = here._replace(point=self._leave(new), nu=nu, log_likelihood=level)
        if self._tuning and self._sees:
            self._see(self._here)
        stats["accept"] = float(np.mean([stats[f"accept_{s}"] for s in self.schemes]))
        return new, [stats | {"scaling": self.walks[-1].scale, "n_evaluations": n}]

    def _at(self, place: _Place):
        return lambda nu: float(self._log_likelihood(nu, *place.known)[0])

    def _place(self, point, nu=None) -> _Place | None:
        """Evaluate a point, where its log density is finite; `nu` may be left open."""
        found, *known = self._prepare(point)
        nu = found if nu is None else nu
        level = float(self._log_likelihood(nu, *known)[0])
        c, B = np.empty(0), np.empty((0, 0))
        if self._sees:
            (many,) = self._function(nu, *known)
            c, B = many[0], (many[1:] - many[0]).T
        if not (np.isfinite(level) and np.isfinite(B).all()):
            return None
        return _Place(point, nu, level, known, c, B)

    def _update(self, here: _Place, scheme: str, walk: RandomWalk) -> tuple[_Place, float]:
        """Make a Metropolis step of the parameters."""
        theta = walk.propose(self.parameters.of(here.point), self.rng)
        data = self._surrogate(here) if scheme == "surrogate" else None
        with np.errstate(all="ignore"):
            there = self._place(self.parameters.put(here.point, theta), here.nu)
            ratio = -np.inf
            if there is not None:
                try:
                    there, change = self._carry(here, there, scheme, data)
                    ratio = there.log_likelihood - here.log_likelihood + change
                except LinAlgError:  # a kernel without a factor
                    pass
        accept = acceptance(ratio)
        if there is None or self.rng.random() >= accept:
            return here, accept
        return there, accept

    def _carry(self, here: _Place, there: _Place, scheme: str, data) -> tuple[_Place, float]:
        """Take along what the scheme holds; return the log ratio of what is not the likelihood."""
        if scheme == "ancillary":
            return there, 0.0
        if scheme == "sufficient":
            nu = np.linalg.solve(there.B, here.f - there.c)
            dets = [np.linalg.slogdet(place.B)[1] for place in (there, here)]
            change = (here.nu @ here.nu - nu @ nu) / 2.0 - dets[0] + dets[1]
        else:
            g, deviation = data
            center, L, evidence = _given(here, g, deviation)
            eta = L.T @ (here.nu - center)
            center, L, new_evidence = _given(there, g, deviation)
            nu = center + solve_triangular(L.T, eta, lower=False)
            change = new_evidence - evidence
        return there._replace(nu=nu, log_likelihood=self._at(there)(nu)), change

    def _surrogate(self, here: _Place) -> tuple[np.ndarray, np.ndarray]:
        """Draw surrogate data of the values of the function."""
        if not self.prior_seen.any():
            self.prior_seen = here.prior_variance
        # Not that at these parameters: the noise must be the same for the way back.
        prior = self.prior_seen / (self.n_seen + 1)
        # Half the prior variance is left until there is something to go by.
        n = self.n_seen + 20.0
        posterior = (self.scatter_seen + 20.0 * prior / 2.0) / n
        share = np.minimum(posterior / prior, LARGEST_SHARE)
        deviation = np.sqrt(prior * share / (1.0 - share))
        return here.f + deviation * self.rng.normal(size=prior.shape), deviation

    def _see(self, here: _Place) -> None:
        """Note values of the function, for the noise of surrogate data."""
        self.n_seen += 1
        away = here.f - self.mean_seen
        self.mean_seen = self.mean_seen + away / self.n_seen
        self.scatter_seen = self.scatter_seen + away * (here.f - self.mean_seen)
        self.prior_seen = self.prior_seen + here.prior_variance


def _given(place: _Place, g, deviation) -> tuple[np.ndarray, np.ndarray, float]:
    """Return, given surrogate data, mean and factor of the precision of nu; the data's density."""
    scaled, d = place.B / deviation[:, None], (g - place.c) / deviation
    L = cholesky(np.eye(len(g)) + scaled.T @ scaled, lower=True)
    half = solve_triangular(L, scaled.T @ d, lower=True)
    evidence = -(d @ d - half @ half) / 2.0 - np.log(np.diagonal(L)).sum()
    return solve_triangular(L.T, half, lower=False), L, evidence
