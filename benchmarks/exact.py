"""Sparse posteriors by quadrature over the parameters, in numpy and scipy alone.

Given theta the inducing values are integrated out by importance sampling around their mode, from
draws of which there are as many as wanted, since each costs little; over theta itself goes a grid,
in the principal axes of the posterior. So this takes few parameters, and no chain. It shares no
code with the package: expectations are by Gauss-Hermite quadrature, derivatives by differences.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.interpolate
import scipy.linalg
import scipy.optimize

from scipy.special import gammaln, logsumexp

JITTER = 1e-6  # of the prior variance, as the package has it
NOWHERE = (-np.inf, None, None, 0.0)
DROP = 12.0  # nats below the mode at which the grid ends
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def matern52(r):
    """Matern-5/2 correlation at a scaled distance."""
    return (1.0 + np.sqrt(5.0) * r + 5.0 / 3.0 * r**2) * np.exp(-np.sqrt(5.0) * r)


def exp_quad(r):
    """Squared-exponential correlation at a scaled distance."""
    return np.exp(-0.5 * r**2)


def distances(a, b):
    """Return Euclidean distances of rows."""
    square = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T
    return np.sqrt(np.clip(square, 0.0, None))


def by_nodes(log_prob):
    """Return E log p(y | f) of a log density of one latent, by quadrature."""

    def phi(mu, gamma, t):
        f = mu[..., 0, None] + np.sqrt(gamma[:, 0, None]) * NODES
        return log_prob(f, t) @ WEIGHTS

    return phi


@dataclass
class Posterior:
    """A model in numpy.

    Attributes
    ----------
    names : list of str
        Of the parameters, all of them as logarithms.
    log_prior : callable
        Of the vector of logarithms, their Jacobian included.
    X : ndarray
        Inputs of the data.
    processes : list
        For each latent function: inducing inputs, correlation, and what gives the lengthscale and
        the variance from the parameters.
    phi : callable
        Expected log likelihood of each observation, from means and variances (the last axis has
        the latent functions) and the parameters.
    box : list, optional
        Ends of the grid, where there are several modes to cover; by default found around one.
    noise : callable, optional
        Of normal data: their standard deviation. The inducing values have a closed form then.
    """

    names: list[str]
    log_prior: Callable
    X: np.ndarray
    processes: list
    phi: Callable | None = None
    noise: Callable | None = None
    y: np.ndarray | None = None
    box: list | None = None
    n_grid: int = 11
    n_draws: int | None = None
    _r: list = field(default_factory=list)

    def __post_init__(self):
        """Keep the distances, which have no parameters."""
        self._r = [
            (distances(Z, Z), distances(Z, self.X)) if len(self.X) < 10_000 else None
            for Z, *_ in self.processes
        ]

    def _maps(self, theta):
        out = []
        for (Z, kernel, of_theta), known in zip(self.processes, self._r, strict=True):
            ls, variance = of_theta(theta)
            near, far = known or (distances(Z, Z), distances(Z, self.X))
            R = np.linalg.cholesky(variance * (kernel(near / ls) + JITTER * np.eye(len(Z))))
            A = scipy.linalg.solve_triangular(R, variance * kernel(far / ls), lower=True)
            out.append((R, A, np.clip(variance - (A**2).sum(axis=0), 1e-12, None)))
        return out

    def evaluate(self, theta, rng=None, n=0):
        """Log density of theta, moments of the inducing values, and from how many draws."""
        try:
            with np.errstate(all="ignore"):
                prior = self.log_prior(theta)
                found = self._normal(theta) if self.noise else self._general(theta, rng, n)
        except (np.linalg.LinAlgError, ValueError):  # far out, where nothing is finite
            return NOWHERE
        return (prior + found[0], *found[1:]) if np.isfinite(found[0]) else NOWHERE

    def _normal(self, theta):
        ((R, A, gamma),) = self._maps(theta)
        s2 = self.noise(theta) ** 2
        P = np.eye(len(A)) + A @ A.T / s2
        L = np.linalg.cholesky(P)
        b = scipy.linalg.solve_triangular(L, A @ self.y / s2, lower=True)
        N = len(self.y)
        value = -0.5 * (N * np.log(2 * np.pi * s2) + self.y @ self.y / s2 - b @ b)
        value -= np.log(np.diag(L)).sum() + gamma.sum() / (2.0 * s2)
        m = R @ scipy.linalg.solve_triangular(L, b, lower=True, trans=1)
        root = scipy.linalg.solve_triangular(L, R.T, lower=True)
        return value, m, (root**2).sum(axis=0), np.inf

    def _general(self, theta, rng, n):
        maps = self._maps(theta)
        sizes = [len(R) for R, _, _ in maps]
        starts = np.cumsum([0, *sizes])
        gamma = np.stack([g for _, _, g in maps], axis=1)
        L_ = len(maps)

        def mu_of(v):
            each = zip(starts[:-1], starts[1:], maps, strict=True)
            parts = [v[..., a:b] @ A for a, b, (_, A, _) in each]
            return np.stack(parts, axis=-1)

        def target(v):
            return self.phi(mu_of(v), gamma, theta).sum(axis=-1) - 0.5 * (v**2).sum(axis=-1)

        def curves(mu, h=1e-3):
            e = h * np.eye(L_)
            at = lambda d: self.phi(mu + d, gamma, theta)  # noqa: E731  (short, and used here alone)
            mid = at(0.0)
            up, down = [at(x) for x in e], [at(-x) for x in e]
            g = np.stack([(a - b) / (2 * h) for a, b in zip(up, down, strict=True)], axis=1)
            W = np.empty((len(mu), L_, L_))
            for i in range(L_):
                W[:, i, i] = (2 * mid - up[i] - down[i]) / h**2
                for j in range(i):
                    mixed = at(e[i] + e[j]) + at(-e[i] - e[j]) - up[i] - down[i] - up[j] - down[j]
                    W[:, i, j] = W[:, j, i] = -(mixed + 2 * mid) / (2 * h**2)
            w, V = np.linalg.eigh(W)
            return g, np.einsum("nik,nk,njk->nij", V, np.clip(w, 0.0, None), V)

        v = np.zeros(starts[-1])
        value = target(v)
        for _ in range(40):
            g, W = curves(mu_of(v))
            slope = np.concatenate([A @ g[:, i] for i, (_, A, _) in enumerate(maps)]) - v
            blocks = [
                [(A * W[:, i, j]) @ B.T for j, (_, B, _) in enumerate(maps)]
                for i, (_, A, _) in enumerate(maps)
            ]
            L = np.linalg.cholesky(np.eye(len(v)) + np.block(blocks))
            step = scipy.linalg.cho_solve((L, True), slope)
            length = 1.0
            while length > 1e-3 and not target(v + length * step) >= value:
                length /= 2.0
            if not target(v + length * step) >= value:
                break
            v = v + length * step
            gained, value = target(v) - value, target(v)
            if gained < 1e-6:
                break
        if not n:
            return value - np.log(np.diag(L)).sum(), None, None, 0.0
        dof = 20.0
        z = rng.normal(size=(n // 2, len(v)))
        z = np.concatenate([z, -z]) * np.sqrt(dof / rng.chisquare(dof, size=(n // 2 * 2, 1)))
        draws = v + scipy.linalg.solve_triangular(L, z.T, lower=True, trans=1).T
        d = len(v)
        log_q = gammaln((dof + d) / 2) - gammaln(dof / 2) - d / 2 * np.log(dof / 2.0)
        log_q = log_q - (dof + d) / 2 * np.log1p((z**2).sum(axis=1) / dof)
        log_w = target(draws) - log_q - np.log(np.diag(L)).sum()
        w = np.exp(log_w - logsumexp(log_w))
        each = zip(starts[:-1], starts[1:], maps, strict=True)
        u = np.concatenate([draws[:, a:b] @ R.T for a, b, (R, _, _) in each], axis=1)
        mean = w @ u
        return logsumexp(log_w) - np.log(len(log_w)), mean, w @ (u - mean) ** 2, 1.0 / (w @ w)

    def _region(self, start):
        """Return the mode, the principal axes in standard deviations, and how far to go on each."""
        d = len(self.names)
        best = scipy.optimize.minimize(
            lambda t: -max(self.evaluate(t)[0], -1e10), start, method="Nelder-Mead",
            options={"xatol": 1e-2, "fatol": 1e-2, "maxfev": 150 * d},
        )  # fmt: skip
        mode, top = best.x, -best.fun
        h = 0.1
        E = h * np.eye(d)
        at = lambda t: self.evaluate(t)[0]  # noqa: E731  (short, and used here alone)
        H = np.empty((d, d))
        for i in range(d):
            for j in range(i + 1):
                four = at(mode + E[i] + E[j]) + at(mode - E[i] - E[j])
                four -= at(mode + E[i] - E[j]) + at(mode - E[i] + E[j])
                H[i, j] = H[j, i] = -four / (4 * h**2)
        w, V = np.linalg.eigh(H)
        axes = V / np.sqrt(np.clip(w, 0.05, None))
        ends = np.zeros((d, 2))
        for i in range(d):
            for side, sign in enumerate((-1.0, 1.0)):
                k = 1.0
                while k < 12.0 and at(mode + sign * k * axes[:, i]) > top - DROP:
                    k += 0.5
                ends[i, side] = sign * k
        return mode, axes, ends

    def summary(self, start, seed=0):
        """Moments and quantiles of the parameters, and moments of the inducing values.

        ``noise`` is the error of a mean, in standard deviations, that the draws leave.
        """
        d = len(self.names)
        if self.box is None:
            mode, axes, ends = self._region(np.asarray(start, float))
        else:
            mode, axes, ends = np.zeros(d), np.eye(d), np.array(self.box, float)
        at = lambda t: self.evaluate(t)[0]  # noqa: E731  (short, and used here alone)
        sides = [np.linspace(a, b, self.n_grid) for a, b in ends]
        grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, d)
        rng = np.random.default_rng(seed)
        rough = None if self.noise else np.array([at(mode + axes @ g) for g in grid])
        found = []
        for i, g in enumerate(grid):
            if rough is not None and rough[i] < rough.max() - 2.0 * DROP:
                found.append(NOWHERE)
                continue
            n_draws = self.n_draws or {1: 2000, 2: 600, 3: 64}[d]
            found.append(self.evaluate(mode + axes @ g, rng, n_draws))
        logp = np.array([x[0] for x in found])
        w = np.exp(logp - logsumexp(logp))
        mean = sum(a * x[1] for a, x in zip(w, found, strict=True) if a > 0)
        second = sum(
            a * (x[2] + (x[1] - mean) ** 2) for a, x in zip(w, found, strict=True) if a > 0
        )
        edge = (np.abs(grid - ends[:, 0]) < 1e-9) | (np.abs(grid - ends[:, 1]) < 1e-9)
        values = np.clip(logp, logp.max() - 60.0, None).reshape((self.n_grid,) * d)
        # Splines of the log density make the grid a fine one.
        times = {1: 30, 2: 10, 3: 5}[d]
        fine = [np.linspace(s[0], s[-1], times * (len(s) - 1) + 1) for s in sides]
        spline = scipy.interpolate.RegularGridInterpolator(sides, values, method="cubic")
        at_fine = np.stack(np.meshgrid(*fine, indexing="ij"), axis=-1).reshape(-1, d)
        p = np.exp(spline(at_fine) - logp.max())
        p /= p.sum()
        theta = mode + at_fine @ axes.T
        out = {}
        for i, name in enumerate(self.names):
            order = np.argsort(theta[:, i])
            x, cdf = theta[order, i], np.cumsum(p[order]) - 0.5 * p[order]
            m = p @ theta[:, i]
            q05, q95 = np.interp([0.05, 0.95], cdf, x)
            sd = np.sqrt(p @ (theta[:, i] - m) ** 2)
            out[name] = {"mean": m, "sd": sd, "q05": q05, "q95": q95}
        noise = sum(a**2 / x[3] for a, x in zip(w, found, strict=True) if a > 0)
        return {
            "theta": out,
            "noise": float(np.sqrt(noise)),
            "u_mean": np.asarray(mean).tolist(),
            "u_sd": np.sqrt(second).tolist(),
            "edge": float(w[edge.any(axis=1)].sum()),
            "mode": mode.tolist(),
        }
