r"""The Gaussian stage of many Fourier coefficients that are correlated under their posterior.

Where data say much, and not the same everywhere, independent coefficients are too sure of
themselves. Here their q is what sites with a dense precision :math:`\Lambda` make of the prior,
with standard deviations s,

.. math:: P = I + s \Lambda s, \quad q(u) = N(m + s P^{-1} s (\lambda - \Lambda m),\; s P^{-1} s).

The variance of f under q, and :math:`\Lambda`, are sums of features of twice the frequency (see
`products`), so that an evaluation takes the :math:`M^3` of a Cholesky factor and its inverse, and
nothing that grows with both N and M. It is found with numpy: the graph of the bound is of the means
and these sums. By

.. math:: -KL(q \| p) = \log \int p(u) t(u)\, du - E_q \log t(u)

with sites t, theta moves with q held in the expectation of the likelihood, as in `neighbors`; the
gradient of the integral is that of :math:`E_q \log p(u)`.

Where u turns with theta, as at pairs of places, sites and the q that is held are of variables C u
that do not; see `turns`. With :math:`u = m + s v`, what C adds to that gradient is

.. math:: E_q\left[ v^\top s^{-1} C^{-1} \dot C u \right].
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
import scipy.linalg

from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtri

from pymc_vsgp.compile import ONCE, function, simplify
from pymc_vsgp.fit.backend import MANY
from pymc_vsgp.fit.bound import Bound, Evaluation
from pymc_vsgp.fit.following import (
    following,
    here_of,
    in_company,
    joint_pulls,
    slopes_of,
    together,
    with_slopes,
)
from pymc_vsgp.fit.natural import Natural, WithHeld
from pymc_vsgp.fit.turns import along, back, forth
from pymc_vsgp.inducing.coordinates import Sites, root_of
from pymc_vsgp.model.observation import processes

__all__ = [
    "Correlated",
    "CorrelatedBound",
    "Prior",
    "can_correlate",
    "knows_much",
    "q_of",
    "rotated",
]

LARGEST = 5000  # coefficients, whose matrices take 200 MB each
INFORMED = 20.0  # nats that independent coefficients say they know, below which none are looked at
APART = 20.0  # nats between many independent coefficients and correlated ones, given theta


def can_correlate(bound: Bound) -> bool:
    """Whether the many coefficients of a model may be correlated under q."""
    of = processes(bound.model)
    many = [p for p in bound.processes if p.diagonal]
    return bool(many) and all(
        p.n_inducing <= LARGEST and of[p.u.name].conditional.products is not None for p in many
    )


def knows_much(fit: Natural) -> bool:
    """Whether many coefficients that are independent under q know much, for their number."""
    of = processes(fit.bound.model)
    if any(p.diagonal and of[p.u.name].turns is not None for p in fit.bound.processes):
        return True  # and would say it of one theta alone
    pairs = zip(fit.bound.processes, fit.evaluation.factor, strict=True)
    many = [(p.n_inducing, np.log(L).sum()) for p, L in pairs if p.diagonal]
    largest = max(n for n, _ in many)
    return sum(nats for _, nats in many) > INFORMED * max(1.0, largest / MANY) ** 2


class Density(NamedTuple):
    """The density q(u) of one function, of what its sites make of the prior."""

    mean: np.ndarray
    variances: np.ndarray
    folded: np.ndarray
    """Weights of features of twice the frequency that the variance of f is a sum of."""
    L: np.ndarray
    """Cholesky factor of P."""
    v: np.ndarray
    """Mean of whitened coefficients."""
    evidence: float
    """Logarithm of the integral of the sites under the prior."""
    of_sites: float
    """Expectation of the logarithm of the sites."""
    pulls: Sequence[np.ndarray] = ()
    """Gradient of the expected log density of the prior in what turns the coefficients."""


class Prior(NamedTuple):
    """The prior of one function at theta."""

    mean: np.ndarray
    sd: np.ndarray
    turns: Sequence[np.ndarray] = ()
    """What takes u to the variables of the sites, where these are others."""

    def of_u(self, linear, precision) -> tuple[np.ndarray, np.ndarray]:
        """Return sites of u, of one function."""
        if not self.turns:
            return linear, precision
        half = back(self.turns, precision[None])[0]
        return back(self.turns, linear[None, :, None])[0, :, 0], back(self.turns, half.T[None])[0]

    def turned(self, u: np.ndarray) -> np.ndarray:
        """Return the variables of the sites for each row of u."""
        if not self.turns:
            return u
        return along(self.turns, u[:, :, None], np.matmul)[:, :, 0]


class CorrelatedBound(Bound):
    """The ELBO of a model with many coefficients that are correlated under q, compiled.

    The root of their sites is their precision.
    """

    def _build(self, move_inducing, n_rows, mode):
        of = processes(self.model)
        self.products = {}
        for i, p in enumerate(self.processes):
            if not p.diagonal:
                continue
            process = of[p.u.name]
            self.products[i] = process.conditional.products
            if (turns := process.turns) is not None:
                p.turns = self.model.replace_rvs_by_values(turns)
            shape = p.n_functions, p.n_inducing
            double = int(np.prod(self.products[i].double))
            p.offset, p.root = (), pt.tensor(dtype="float64", shape=(p.n_functions, double))
            p.moments = [pt.tensor(dtype="float64", shape=shape) for _ in range(2)]
            p.moments += [C.type() for C in p.turns]
        super()._build(move_inducing, n_rows, mode)
        graphs = []
        for i in self.products:
            p = self.processes[i]
            graphs += [*self.model.replace_rvs_by_values(p.u.owner.inputs[1:3]), *p.turns]
        self._priors = function(self.values, simplify(graphs), ONCE)

    def _divergence(self, p, q):
        if not p.folded:
            return super()._divergence(p, q)
        mean, variances, *pulls = p.moments
        found = _cross_entropy(mean, variances, q.prior_mean, q.R, pt)
        return found - sum(pt.sum(pull * C) for pull, C in zip(pulls, p.turns, strict=True))

    def priors(self, theta) -> dict[int, Prior]:
        """Return the prior of the coefficients at theta."""
        found = iter(self._priors(*self.unravel(theta).values()))
        out = {}
        for i in self.products:
            mean, sd = next(found), next(found)
            out[i] = Prior(mean, sd, [next(found) for _ in self.processes[i].turns])
        return out

    def __call__(self, theta, sites, moved=(), rows=None) -> Evaluation:
        """Return the ELBO at theta, and what improves it."""
        return self._evaluate(theta, sites, moved, None)

    def held(self, theta, sites, moved, q: Evaluation) -> Evaluation:
        """Return the same for the q that there is, in the expectation of the likelihood."""
        return self._evaluate(theta, sites, moved, q)

    def _evaluate(self, theta, sites, moved, before) -> Evaluation:
        arguments: list[Any] = list(sites)
        whole: list[Any] = [()] * len(sites)
        rest, priors = 0.0, self.priors(theta)
        for i, prior in priors.items():
            products = self.products[i] if before is None else None
            linear, precision, _ = sites[i].at(np.asarray(theta)[self.processes[i].at])
            pairs = zip(linear, precision, strict=True)
            now = [q_of(a, B, prior, products) for a, B in pairs]
            if not all(now):
                return Evaluation(np.nan, np.full(len(theta), np.nan), [], [], [], [], [], [])
            whole[i] = now if before is None else before.whole[i]
            moments = prior.mean + prior.sd * _stacked(now, "v"), _stacked(now, "variances")
            pulls = [sum(each) for each in zip(*(q.pulls for q in now), strict=True)]
            held = _stacked(whole[i], "mean"), _stacked(whole[i], "folded")
            arguments[i] = *held, *moments, *pulls
            rest += sum(q.evidence for q in now) - sum(q.of_sites for q in whole[i])
            # Of these the graph has the gradient alone.
            rest += _cross_entropy(*moments, *prior[:2], np)
            rest -= sum((pull * C).sum() for pull, C in zip(pulls, prior.turns, strict=True))
        ev = super().__call__(theta, arguments, moved)
        for i, prior in priors.items():
            ev.mean[i], ev.factor[i] = _stacked(whole[i], "v"), _stacked(whole[i], "L")
            if prior.turns:
                ev.linear[i] = forth(prior.turns, ev.linear[i][:, :, None])[:, :, 0]
        return ev._replace(value=ev.value + rest, whole=whole)


def _stacked(q, what: str) -> np.ndarray:
    return np.stack([getattr(of, what) for of in q])


def _cross_entropy(mean, variances, prior_mean, sd, xp) -> Any:
    """Return what q is off its prior, but for a constant."""
    squares = (variances + (mean - prior_mean) ** 2) / sd**2
    return xp.sum(squares) / 2.0 + xp.sum(xp.log(sd)) * mean.shape[0]


def q_of(linear, precision, prior: Prior, products: Any = None) -> Any:
    """Return the `Density` of one function, or None where the sites make no density.

    What its variance folds to takes the `Products` of features.
    """
    prior_mean, sd, turns = prior
    n = len(sd)
    linear, precision = prior.of_u(linear, precision)
    P = sd[:, None] * precision * sd
    P[np.diag_indices(n)] += 1.0
    L, failed = dpotrf(P, lower=1, clean=1)
    if failed:
        return None
    right = linear - precision @ prior_mean
    half = sd * right
    # The inverse would lose thousands of nats where the data say all.
    v = dpotrs(L, half, lower=1)[0]
    mean = prior_mean + sd * v
    folded, pulls = np.empty(0), []
    if products is None and not turns:
        shares = (dtrtri(L, lower=1)[0] ** 2).sum(axis=0)  # half as much as all of the inverse
    else:
        inverse, _ = dpotri(L, lower=1)  # its lower triangle alone
        shares = np.diagonal(inverse)
    variances = sd**2 * shares
    if products is not None:
        twice = 2.0 * np.tril(inverse) * sd * sd[:, None]
        twice[np.diag_indices(n)] = variances
        if turns:
            turned_once = along(turns, twice[None], np.matmul)[0]
            twice = along(turns, turned_once.T[None], np.matmul)[0]
        folded = products.fold(twice)
    if turns:
        pulls = _pulls(inverse, v, mean, sd, turns)
    evidence = prior_mean @ (linear + right) / 2.0 + half @ v / 2.0
    evidence -= np.log(np.diagonal(L)).sum()
    of_sites = linear @ mean - (mean @ (precision @ mean) + n - shares.sum()) / 2.0
    mean = prior.turned(mean[None])[0]
    return Density(mean, variances, folded, L, v, evidence, of_sites, pulls)


def _pulls(inverse, v, u, sd, turns) -> list[np.ndarray]:
    """Return the gradient of ``E log p`` in two matrices that turn u; of the inverse a triangle."""
    n, m = map(len, turns)
    blocks = inverse.reshape(n, m, n, m)
    v, u, sd = (x.reshape(n, m) for x in (v, u, sd))
    found = []
    for C, s, a, b, of in (
        (turns[0], sd, u, v / sd, np.einsum("abcb->bac", blocks)),
        (turns[1], sd.T, u.T, (v / sd).T, np.einsum("abad->abd", blocks)),
    ):
        lower = np.tril(of)
        whole = lower + np.tril(of, -1).transpose(0, 2, 1)
        T = np.einsum("ab,bac,cb->ac", s, whole, 1.0 / s) + a @ b.T
        found.append(scipy.linalg.solve_triangular(C, T.T, lower=True, trans=1))
    return found


def rotated(linear, precision, q: Density, prior_mean, sd) -> tuple[np.ndarray, np.ndarray]:
    """Return these sites of one function, and a root of them, as `coordinates.Rotated` has them."""
    diagonal = np.clip(np.diagonal(precision), 0.0, None)
    square = 1.0 + sd**2 * diagonal
    # What the diagonal makes of the center is the mean of q.
    center = square * (linear - precision @ q.mean) + diagonal * prior_mean
    inverse, _ = dpotri(q.L, lower=1)
    scale = np.sqrt(square)
    turned = dpotrf(scale[:, None] * inverse * scale, lower=1, clean=1)[0]
    return center, np.vstack([np.sqrt(diagonal), turned])


class Correlated(WithHeld):
    """Natural-gradient steps of the sites, and L-BFGS steps of theta with q held."""

    def __init__(self, bound: CorrelatedBound, *args):
        if [p.n_functions for p in bound.processes] == [1]:
            self.to_follow = (1.0,)
        super().__init__(bound, *args)

    @classmethod
    def after(cls, fit: Natural, bound: CorrelatedBound) -> "Correlated | None":
        """Go on from a fit of independent coefficients, if correlations matter."""
        sites, priors = list(fit.sites), bound.priors(fit.theta)
        for i in bound.products:
            linear, precision = sites[i].linear, np.stack([np.diag(r**2) for r in sites[i].root])
            if turns := priors[i].turns:
                linear = forth(turns, linear[:, :, None])[:, :, 0]
                precision = forth(turns, forth(turns, precision).mT)
            sites[i] = Sites(linear, precision)
        more = cls(bound, fit.theta, sites, [], fit.tolerance, fit.report)
        turning = any(prior.turns for prior in priors.values())
        if not turning and more.apart() < APART:
            return None
        more.history = fit.history
        return more

    def _blended(self, i, ev, step, sites):
        if i not in self.bound.products:
            return super()._blended(i, ev, step, sites)
        theta = ev.theta[self.bound.processes[i].at]
        linear, precision = (x.copy() for x in sites.at(theta)[:2])
        for k, q in enumerate(ev.whole[i]):
            to = self.bound.products[i].unfold(ev.precision[i][k])
            toward = ev.linear[i][k] + to @ q.mean
            linear[k] += step * (toward - linear[k])
            precision[k] += step * (to - precision[k])
        return Sites(linear, precision).following(sites.slope, theta)

    def curvature(self):
        """As of the other stages; sites follow for it, as few steps do not take q along."""
        kept = self.sites
        self.sites = following(self, kept, folded=True)
        try:
            return super().curvature()
        finally:
            self.sites = kept

    def resistance(self, i, moved):
        if i not in self.bound.products:
            return super().resistance(i, moved)
        unfold = self.bound.products[i].unfold
        moved = self.bound.priors(self.theta)[i].turned(moved)
        pairs = zip(self.evaluation.precision[i], moved, strict=True)
        return np.stack([unfold(folded) @ step for folded, step in pairs])

    def apart(self) -> float:
        """Return the nats between independent coefficients and these, given theta."""
        sites, nats = self.blended(self.evaluation, 1.0, self.sites), 0.0
        for i, prior in self.bound.priors(self.theta).items():
            for linear, precision in zip(*sites[i][:2], strict=True):
                q = q_of(linear, precision, prior)
                if q is not None:
                    nats += np.log((q.L**2).sum(axis=1)).sum() / 2.0
                    nats -= np.log(np.diagonal(q.L)).sum()
        return nats

    def in_model(self) -> list[Sites]:
        """Return the sites that the model is given: those of `coordinates.Rotated`.

        Of coefficients that turn with theta correlations change with it, so they get all.
        """
        found, ev = list(self.sites), self.evaluation
        others, here = in_company(self), here_of(self, self.sites)
        shared = together(self, list(range(len(found))), here)
        if shared is not None:
            return shared
        pulled = joint_pulls(self, [*self.bound.products, *others], here)
        slopes = slopes_of(self, here, {i: pulled[i] for i in others if i in pulled})
        for i, prior in self.bound.priors(self.theta).items():
            mean, sd, turns = prior
            n = len(sd)
            if turns:
                of_u = [prior.of_u(*x) for x in zip(here[i].linear, here[i].root, strict=True)]
                linear, precision = map(np.stack, zip(*of_u, strict=True))
                found[i] = Sites(linear, np.stack([root_of(P) for P in precision]))
                if i in pulled:
                    pull, means = pulled[i]
                    slopes[i] = back(turns, pull) + precision @ means
                continue
            linear, root = np.empty((len(ev.whole[i]), n)), np.empty((len(ev.whole[i]), n + 1, n))
            for k, q in enumerate(ev.whole[i]):
                linear[k], root[k] = rotated(
                    self.sites[i].linear[k], self.sites[i].root[k], q, mean, sd
                )
                if i in pulled:
                    pull, means = (x[k] for x in pulled[i])
                    v = dpotrs(q.L, sd[:, None] * pull, lower=1)[0]
                    precision = root[k, 0] ** 2
                    moved = (1.0 / sd + sd * precision)[:, None] * v + precision[:, None] * means
                    slopes.setdefault(i, np.empty_like(pulled[i][0]))[k] = moved
            found[i] = Sites(linear, root)
        return with_slopes(self, found, slopes)
