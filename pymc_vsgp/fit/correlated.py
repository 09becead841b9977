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
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

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
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import processes

__all__ = ["Correlated", "CorrelatedBound", "can_correlate", "knows_much", "q_of", "rotated"]

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
            self.products[i] = of[p.u.name].conditional.products
            shape = p.n_functions, p.n_inducing
            double = int(np.prod(self.products[i].double))
            p.offset, p.root = (), pt.tensor(dtype="float64", shape=(p.n_functions, double))
            p.moments = [pt.tensor(dtype="float64", shape=shape) for _ in range(2)]
        super()._build(move_inducing, n_rows, mode)
        priors = [self.processes[i].u.owner.inputs[1:3] for i in self.products]
        graphs = self.model.replace_rvs_by_values([x for prior in priors for x in prior])
        self._priors = function(self.values, simplify(graphs), ONCE)

    def _divergence(self, p, q):
        if not p.folded:
            return super()._divergence(p, q)
        mean, variances = p.moments
        return _cross_entropy(mean, variances, q.prior_mean, q.R, pt)

    def priors(self, theta) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return means and deviations of the coefficients under their prior."""
        found = self._priors(*self.unravel(theta).values())
        return dict(zip(self.products, zip(found[::2], found[1::2], strict=True), strict=True))

    def __call__(self, theta, sites, moved=(), rows=None) -> Evaluation:
        """Return the ELBO at theta, and what improves it."""
        return self._evaluate(theta, sites, moved, None)

    def held(self, theta, sites, moved, q: Evaluation) -> Evaluation:
        """Return the same for the q that there is, in the expectation of the likelihood."""
        return self._evaluate(theta, sites, moved, q)

    def _evaluate(self, theta, sites, moved, before) -> Evaluation:
        arguments: list[Any] = list(sites)
        whole: list[Any] = [()] * len(sites)
        rest = 0.0
        for i, (mean, sd) in self.priors(theta).items():
            products = self.products[i] if before is None else None
            linear, precision, _ = sites[i].at(np.asarray(theta)[self.processes[i].at])
            pairs = zip(linear, precision, strict=True)
            now = [q_of(a, B, mean, sd, products) for a, B in pairs]
            if not all(now):
                return Evaluation(np.nan, np.full(len(theta), np.nan), [], [], [], [], [], [])
            whole[i] = now if before is None else before.whole[i]
            moments = _stacked(now, "mean"), _stacked(now, "variances")
            arguments[i] = _stacked(whole[i], "mean"), _stacked(whole[i], "folded"), *moments
            rest += sum(q.evidence for q in now) - sum(q.of_sites for q in whole[i])
            rest += _cross_entropy(*moments, mean, sd, np)
        ev = super().__call__(theta, arguments, moved)
        for i in self.products:
            ev.mean[i], ev.factor[i] = _stacked(whole[i], "v"), _stacked(whole[i], "L")
        return ev._replace(value=ev.value + rest, whole=whole)


def _stacked(q, what: str) -> np.ndarray:
    return np.stack([getattr(of, what) for of in q])


def _cross_entropy(mean, variances, prior_mean, sd, xp) -> Any:
    """Return what q is off its prior, but for a constant."""
    squares = (variances + (mean - prior_mean) ** 2) / sd**2
    return xp.sum(squares) / 2.0 + xp.sum(xp.log(sd)) * mean.shape[0]


def q_of(linear, precision, prior_mean, sd, products: Any = None) -> Any:
    """Return the `Density` of one function, or None where the sites make no density.

    What its variance folds to takes the `Products` of features.
    """
    n = len(sd)
    P = sd[:, None] * precision * sd
    P[np.diag_indices(n)] += 1.0
    L, failed = dpotrf(P, lower=1, clean=1)
    if failed:
        return None
    inverse, _ = dpotri(L, lower=1)  # its lower triangle alone
    right = linear - precision @ prior_mean
    half = sd * right
    # The inverse would lose thousands of nats where the data say all.
    v = dpotrs(L, half, lower=1)[0]
    mean = prior_mean + sd * v
    shares = np.diagonal(inverse)
    variances = sd**2 * shares
    folded = np.empty(0)
    if products is not None:
        twice = 2.0 * np.tril(inverse) * sd * sd[:, None]
        twice[np.diag_indices(n)] = variances
        folded = products.fold(twice)
    evidence = prior_mean @ (linear + right) / 2.0 + half @ v / 2.0
    evidence -= np.log(np.diagonal(L)).sum()
    of_sites = linear @ mean - (mean @ (precision @ mean) + n - shares.sum()) / 2.0
    return Density(mean, variances, folded, L, v, evidence, of_sites)


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
        sites = list(fit.sites)
        for i in bound.products:
            linear, root, _ = sites[i]
            sites[i] = Sites(linear, np.stack([np.diag(r**2) for r in root]))
        more = cls(bound, fit.theta, sites, [], fit.tolerance, fit.report)
        if more.apart() < APART:
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
        pairs = zip(self.evaluation.precision[i], moved, strict=True)
        return np.stack([unfold(folded) @ step for folded, step in pairs])

    def apart(self) -> float:
        """Return the nats between independent coefficients and these, given theta."""
        sites, nats = self.blended(self.evaluation, 1.0, self.sites), 0.0
        for i, (mean, sd) in self.bound.priors(self.theta).items():
            for linear, precision in zip(*sites[i][:2], strict=True):
                q = q_of(linear, precision, mean, sd)
                if q is not None:
                    nats += np.log((q.L**2).sum(axis=1)).sum() / 2.0
                    nats -= np.log(np.diagonal(q.L)).sum()
        return nats

    def in_model(self) -> list[Sites]:
        """Return the sites that the model is given: those of `coordinates.Rotated`."""
        found, ev = list(self.sites), self.evaluation
        others, here = in_company(self), here_of(self, self.sites)
        shared = together(self, list(range(len(found))), here)
        if shared is not None:
            return shared
        pulled = joint_pulls(self, [*self.bound.products, *others], here)
        slopes = slopes_of(self, here, {i: pulled[i] for i in others if i in pulled})
        for i, (mean, sd) in self.bound.priors(self.theta).items():
            n = len(sd)
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
