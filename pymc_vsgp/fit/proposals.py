"""What parameters are proposed from."""

from collections.abc import Callable

import numpy as np

from pymc.pytensorf import compile as compile_pymc
from pymc.pytensorf import reseed_rngs
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import as_tensor
from scipy import stats
from scipy.linalg import solve_triangular
from scipy.special import expit, gammaln, logsumexp

from pymc_vsgp.compile import ONCE, simplify
from pymc_vsgp.fit.bound import Variables, of_prior, split
from pymc_vsgp.fit.density import Points
from pymc_vsgp.model.variable import inducing_variables

PRIOR_DRAWS, MIDDLE = 400, (0.1587, 0.8413)  # that say how wide a prior is, and which of them
LONG, LONG_DOF = 2.0, 2.0  # scale and degrees of freedom of a long tail
FAR = 3.0  # standard deviations of a parameter, up to where it bends the others
REDRAWS = 100  # at most; hardly any proposals come from the prior
MANY = 300  # entries of theta, whose prior is far from any posterior
PROOF = 800  # draws of a prior that show whether its density is theirs, after as many others ...
FEWEST = 20  # ... of which these at least have an unconstrained value
SURE, RARE = 6.0, 14.0  # standard errors, and draws that may all happen to be missing
CENTRAL, WIDEST = (0.16, 0.5, 0.84), 4.0  # quantiles, and half widths beyond which draws are cut


class StudentT:
    """A multivariate Student-t; a root that is a number is that multiple of the identity."""

    def __init__(self, center, root, dof):
        self.center, self.root, self.dof = center, root, dof

    def draw(self, n, rng):
        """Draw n vectors."""
        z = rng.normal(size=(n, self.center.size))
        scale = np.sqrt(self.dof / rng.chisquare(self.dof, size=n))
        return self.center + scale[:, None] * (
            z * self.root if np.ndim(self.root) == 0 else z @ self.root.T
        )

    def logpdf(self, theta):
        """Log density of each vector."""
        d, nu = self.center.size, self.dof
        if d == 0:
            return np.zeros(len(theta))
        z = (theta - self.center).T
        if np.ndim(self.root) == 0:
            z, log_det = z / self.root, d * np.log(self.root)
        else:
            z = solve_triangular(self.root, z, lower=True)
            log_det = np.log(np.diagonal(self.root)).sum()
        constant = gammaln((nu + d) / 2) - gammaln(nu / 2) - d / 2 * np.log(nu * np.pi)
        return constant - log_det - (nu + d) / 2 * np.log1p((z**2).sum(axis=0) / nu)


class Along:
    """Proposals with a long tail along one axis at a time, and of Student-t beside it.

    Axes are those of a triangular root: one parameter after another, each with what it tells of
    those after it.
    """

    def __init__(self, center, root, dof):
        self.center, self.root, self.dof = center, root, dof

    def draw(self, n, rng):
        """Draw n vectors."""
        d = len(self.center)
        z = StudentT(np.zeros(d), 1.0, self.dof).draw(n, rng)
        z[np.arange(n), rng.integers(d, size=n)] = LONG * rng.standard_t(LONG_DOF, size=n)
        return self.center + z @ self.root.T

    def logpdf(self, theta):
        """Log density of each vector."""
        d, nu = len(self.center), self.dof
        z = solve_triangular(self.root, (theta - self.center).T, lower=True)
        squares = z**2
        beside = squares.sum(axis=0) - squares
        long = stats.t.logpdf(z, LONG_DOF, scale=LONG)
        log_t = -(nu + d - 1) / 2 * np.log1p(beside / nu) + long
        constant = gammaln((nu + d - 1) / 2) - gammaln(nu / 2) - (d - 1) / 2 * np.log(nu * np.pi)
        log_det = np.log(np.diagonal(self.root)).sum()
        return constant - log_det - np.log(d) + logsumexp(log_t, axis=0)


class Bent:
    """Student-t proposals that are bent along one of the parameters.

    Where the others are is quadratic in it, and their scales are log-linear. The scale of effects
    does that to the effects of a hierarchical model, in either of its parameterizations.
    """

    def __init__(self, center, scale, k, curve, slopes, root):
        self.center, self.scale, self.k = center, scale, k
        self.curve, self.slopes, self.root = curve, slopes, root
        d = len(center)
        self.others = np.delete(np.arange(d), k)
        self.log_scale = np.log(scale).sum() + np.log(np.diagonal(root)).sum()
        self.straight = StudentT(np.zeros(d), 1.0, 5.0 + d)

    @staticmethod
    def basis(t):
        """What the others are linear in, and their log scales: no further out than is known."""
        t = np.clip(t, -FAR, FAR)
        return np.stack([np.ones_like(t), t, t**2], axis=1), t[:, None]

    def draw(self, n, rng):
        """Draw n vectors."""
        z = self.straight.draw(n, rng)
        basis, t = self.basis(z[:, 0])
        out = np.empty_like(z)
        out[:, self.k] = z[:, 0]
        out[:, self.others] = basis @ self.curve + np.exp(t * self.slopes) * (
            z[:, 1:] @ self.root.T
        )
        return self.center + self.scale * out

    def logpdf(self, theta):
        """Log density of each vector."""
        x = (theta - self.center) / self.scale
        basis, t = self.basis(x[:, self.k])
        away = (x[:, self.others] - basis @ self.curve) * np.exp(-t * self.slopes)
        z = np.column_stack([x[:, self.k], solve_triangular(self.root, away.T, lower=True).T])
        return self.straight.logpdf(z) - self.log_scale - t[:, 0] * self.slopes.sum()


def drawing(graphs: list[Variable]) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Compile what draws graphs of random variables n times, each as a vector, as `pm.draw`."""
    fn, updates = compile_pymc([], graphs, random_seed=False, mode=ONCE, return_updates=True)

    def draw(n, rng):
        reseed_rngs(list(updates), int(rng.integers(2**31)))
        found = zip(*(fn() for _ in range(n)), strict=True)
        return np.concatenate([np.reshape(x, (n, -1)) for x in found], axis=1).astype("float64")

    return draw


def prior_widths(variables: Variables, some: np.ndarray) -> np.ndarray:
    """Return how wide the prior of some of theta is: about a standard deviation, of the middle.

    Infinite where it has no draws, as an improper prior.
    """
    wide, rng, at = np.full(len(some), np.inf), np.random.default_rng(0), 0
    graphs = of_prior(variables.model, variables.others)
    for graph, shape in zip(graphs, variables.shapes, strict=True):
        here = slice(at, at := at + int(np.prod(shape)))
        if not some[here].any():
            continue
        try:
            draws = drawing([graph])(PRIOR_DRAWS, rng)
        except (NotImplementedError, ValueError, ArithmeticError):
            continue
        low, high = np.nanquantile(draws, MIDDLE, axis=0)
        wide[here] = (high - low) / 2.0
    return wide


class Prior:
    """The prior of theta, where it can be drawn from, and draws have its density."""

    def __init__(self, points: Points):
        if points.n_theta > MANY:
            raise NotImplementedError("Theta has too many entries for a prior to be near it.")
        model = points.model
        inner = set(inducing_variables(model))
        rvs = [model.values_to_rvs[v] for v in points.outer]
        terms = model.logp(vars=rvs, sum=False) if rvs else []
        factors = [as_tensor(x, allow_xtensor_conversion=True).sum() for x in terms]
        values = {model.rvs_to_values[u] for u in inner}
        if not rvs or values & set(ancestors(factors)):
            raise NotImplementedError("Theta has no prior of its own.")
        self._factors = points.function(simplify(factors))
        self._m = points.n_epsilon
        self._draw, rng = drawing(of_prior(model, rvs)), np.random.default_rng(0)
        self.draw(1, rng)  # an improper prior has no draws
        where = split(np.arange(points.n_theta), (points.shapes[v] for v in points.outer))
        with np.errstate(all="ignore"):
            if not self._proves([at.ravel() for at in where], rng):
                raise NotImplementedError("Draws of the prior have another density.")

    def draw(self, n, rng):
        """Draw n of theta."""
        return self._draw(n, rng)

    def logpdf(self, theta):
        """Log density of each theta."""
        return self._log_factors(theta).sum(axis=1)

    def _log_factors(self, theta) -> np.ndarray:
        """Log density of each variable, given those that it depends on: one column for each."""
        found = self._factors(theta, np.zeros((len(theta), 1, self._m)))
        return np.column_stack([x[:, 0] for x in found])

    def _proves(self, where, rng) -> bool:
        """Whether draws of each variable have its density, given those that it depends on.

        PyMC puts the density of a vector that is observed in part on that part. Densities of users,
        and of CAR, may lack a constant. So each is compared with a Student-t, as in bridge
        sampling: as many draws of either have to be taken for draws of the other.
        """
        first, theta = np.split(self.draw(2 * PROOF, rng), 2)
        known, inside = self._log_factors(theta), np.isfinite(theta).all(axis=1)
        for i, at in enumerate(where):
            near, ok = (np.isfinite(x[:, at]).all(axis=1) for x in (first, theta))
            if not len(at) or near.sum() < FEWEST:  # nor are many proposed
                continue
            q, moved = _like(first[near][:, at]), theta.copy()
            moved[:, at] = q.draw(PROOF, rng)
            taken = expit(self._log_factors(moved)[:, i] - q.logpdf(moved[:, at]))
            missed = np.zeros(PROOF)
            missed[ok] = expit(q.logpdf(theta[ok][:, at]) - known[ok, i])
            # Not a number: outside of the support, or given a variable without a value.
            off = np.nan_to_num(taken) - np.where(np.isnan(missed), inside, missed)
            if abs(off.mean()) > SURE * off.std() / np.sqrt(PROOF) + RARE / PROOF:
                return False
        return True


def _like(draws) -> StudentT:
    """Return a Student-t where most of these draws are."""
    n, d = draws.shape
    low, center, high = np.quantile(draws, CENTRAL, axis=0)
    scale = (high - low) / 2.0
    cov = np.cov(np.clip((draws - center) / scale, -WIDEST, WIDEST).T).reshape(d, d)
    prior = 2.0 * (d + 1)
    cov = (n * cov + prior * np.diag(np.diagonal(cov))) / (n + prior)
    return StudentT(center, scale[:, None] * np.linalg.cholesky(cov), 5.0 + d)


class Mixture:
    """What theta is proposed from."""

    def __init__(self, parts):
        self.parts = [(share, q) for share, q in parts if share > 0.0]
        self.n_drawn = self.n_again = 0

    def draw(self, n, rng):
        """Draw, in random order, as nearly as many from each part as its share.

        A prior draws ordered variables in any order: what has no unconstrained value has no
        density, and is drawn again.
        """
        shares = np.array([share for share, _ in self.parts])
        counts = np.floor(n * shares).astype(int)
        counts[0] += n - counts.sum()
        theta = self._of_each(counts, rng)
        self.n_drawn += n
        for _ in range(REDRAWS):
            if (ok := np.isfinite(theta).all(axis=1)).all():
                break
            missing = n - int(ok.sum())
            again = self._of_each(rng.multinomial(missing, shares / shares.sum()), rng)
            theta = np.concatenate([theta[ok], again])
            self.n_drawn, self.n_again = self.n_drawn + missing, self.n_again + missing
        return rng.permutation(theta)

    @property
    def kept(self) -> float:
        """Mass of this density where theta has one: the part of the draws that were kept."""
        return 1.0 - self.n_again / max(self.n_drawn, 1)

    def _of_each(self, counts, rng):
        """Draw these numbers of the parts."""
        parts = zip(counts, self.parts, strict=True)
        return np.concatenate([q.draw(int(c), rng) for c, (_, q) in parts if c])

    def logpdf(self, theta):
        """Log density of each theta."""
        each = [np.log(share) + q.logpdf(theta) for share, q in self.parts]
        return logsumexp(np.where(np.isnan(each), -np.inf, each), axis=0)
