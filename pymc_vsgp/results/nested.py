"""More inducing points for a fit, and moments of the function given them too."""

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.tensor.linalg import solve_triangular

from pymc_vsgp.engine.blocks import stack_latents
from pymc_vsgp.inducing.graphs import FLOOR, JITTER, Moments
from pymc_vsgp.inducing.placement import pivots
from pymc_vsgp.ops.cholesky import factor
from pymc_vsgp.results.draws import ROWS, Fitted

BESIDE_WAVES = 50  # points that are added to Fourier coefficients
TINY = np.finfo(float).tiny  # in place of a variance of zero, as a kernel may have it at an input
CANDIDATES = 1500  # rows of the data among which more points are chosen


def columns_of(fit: Fitted, i: int) -> tuple[int, ...]:
    """Number of functions of a process, () for a vector."""
    part = fit.observation.parts[i]
    return (fit.draws.values(part.u.name).shape[1],) if part.several else ()


def number_of(fit: Fitted, i: int) -> int:
    """Number of inducing variables that a function of a process has, or those of all groups."""
    part = fit.observation.parts[i]
    shape = fit.draws.values(part.u.name).shape
    return shape[-1] if part.several else int(np.prod(shape[1:]))


def prior_of(fit: Fitted, at: slice, X) -> np.ndarray:
    """Prior variance of f, as the likelihood takes moments; above zero, to divide by it."""

    def build():
        X, parts = fit.X_symbol, fit.observation.parts
        both = [Moments(p.moments(X).mu, p.cross(X, X[:1])[1]) for p in parts]
        return [], [X], [stack_latents(both).gamma]

    return np.maximum(fit.call("prior", at, build, same=[X])[0], TINY)


def nested_moments(fit: Fitted, at: slice, X, Z, eps) -> tuple[np.ndarray, np.ndarray]:
    """Moments of f given u and the values at more points, which `eps` draws."""

    def build():
        x, both = fit.X_symbol, []
        drawn: list[Variable] = []
        inputs: list[Variable] = []
        for part in fit.observation.parts:
            z, e = x.type(), pt.tensor(dtype="float64", shape=(None,) * (1 + part.several))
            drawn.append(e)
            inputs.append(z)
            _, C, left = given_more(part, x, z)
            both.append(Moments(part.moments(x).mu + pt.dot(C.T, e), left))
        return drawn, [x, *inputs], list(stack_latents(both))

    mu, gamma = fit.call("nested", at, build, eps, [X, *Z])
    return mu, gamma


def given_more(part, x, z):
    """Whitened covariances of f with u, and with what u leaves of the values at z; what is left."""
    jitter = JITTER * pt.mean(part.cross(z, z)[1])
    left = part.joint(z).gamma + jitter * pt.eye(z.shape[0], dtype="float64")
    L, _ = factor(left, 0.0)
    C = solve_triangular(L, part.residual(x, z), lower=True, b_ndim=2)
    left = part.moments(x).gamma - pt.sum(C**2, axis=0)
    return part.solve(x), C, pt.maximum(left, FLOOR * part.cross(x, z)[1])


def more_points(fit: Fitted, at: slice, X, y, rng) -> dict[str, np.ndarray]:
    """Choose as many points again for each process, where they gain most at a draw."""
    _, rows = np.unique(X, axis=0, return_index=True)
    if len(rows) > CANDIDATES:
        rows = rng.choice(rows, CANDIDATES, replace=False)
    rows = np.sort(rows)
    # Slopes of the rows, all at once or by block: they may go with parameters of the rows.
    slopes = np.concatenate(
        [
            slopes_of(fit, at, *fit.moments(at, X[a : a + ROWS]), y[a : a + ROWS], a)[1][0]
            for a in range(0, len(X), ROWS)
        ]
    )
    weights = np.clip(-slopes[rows].reshape(len(rows), -1), 0.0, None)
    added, column = {}, 0
    covariances = fit.joint_moments(at, X[rows])
    for i, part in enumerate(fit.observation.parts):
        number = (columns_of(fit, i) or (1,))[0]
        w = weights[:, column : column + number].mean(axis=1)
        column += number
        w = np.sqrt(np.maximum(w, 1e-3 * max(w.max(), 1e-300)))
        C = covariances[i][1][0] * w[:, None] * w
        left = np.diag(C)
        found = [row for row, _ in pivots(C, _how_many(fit, i), 1e-6 * left.max())]
        chosen = found or [int(np.argmax(left))]
        added[part.u.name] = X[rows[chosen]]
    return added


def _how_many(fit: Fitted, i: int) -> int:
    """As many again as a process has inducing inputs; for coefficients enough to see a gain."""
    return number_of(fit, i) if len(fit.points(i)) else BESIDE_WAVES


def slopes_of(fit: Fitted, at: slice, mu, gamma, y, start) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of each potential in the mean and in the variance of f."""

    def graph(lik, m, g, y):
        return pytensor.grad(lik.expected_logp(m, g, y).sum(), [m, g])

    of_mu, of_gamma = fit.rowwise("slopes", graph, at, {"mu": mu, "gamma": gamma}, y, start)
    return of_mu, of_gamma
