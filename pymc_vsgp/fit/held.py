"""A density q(v) that stays where it is while theta moves, and its natural-gradient steps.

With the backend JAX a step is made where the ELBO is evaluated. Matrices of some functions would
take longer to and from a GPU than the rest of a step.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from scipy.linalg.lapack import dpotrf, dtrtri

from pymc_vsgp.fit.blending import definite
from pymc_vsgp.inducing.coordinates import Sites

__all__ = ["Held", "at_prior", "from_sites", "held", "stepped", "stepped_on_jax"]

KEPT = 0.5  # of the precision, in one step: likelihoods that are not log-concave may take more away


class Held(NamedTuple):
    """A density q(v) that does not follow theta."""

    linear: np.ndarray
    """Its mean, K x M, in the place of the sites' linear part, ..."""
    root: np.ndarray
    """... the Cholesky factor of its precision in that of their root, ..."""
    covariance: np.ndarray
    precision: np.ndarray


def at_prior(sites: Sites) -> Held:
    """Return the prior, of the size of these sites."""
    eye = np.broadcast_to(np.eye(sites.root.shape[1]), sites.root.shape).copy()
    return Held(np.zeros_like(sites.linear), eye, eye, eye)


def from_sites(sites: Sites, R, mean) -> Held:
    """Return q(v) that sites of u make at a theta."""
    G = R.T @ sites.root
    precision = G @ G.mT + np.eye(len(R))
    rest = sites.linear - np.einsum("kij,klj,l->ki", sites.root, sites.root, mean, optimize=True)
    found = held(rest @ R, precision)
    return found._replace(linear=(found.covariance @ found.linear[:, :, None])[:, :, 0])


def held(mean, precision) -> Held:
    """Return the density with this mean and precision."""
    L = [_factor(P) for P in precision]
    return Held(mean, np.stack(L), np.stack([_inverse(a) for a in L]), precision)


def _factor(precision) -> np.ndarray:
    """Return the lower Cholesky factor."""
    U, info = dpotrf(precision.T, lower=False, clean=True)  # in the order that LAPACK has
    if info:
        raise np.linalg.LinAlgError("A precision is not positive definite.")
    return U.T


def _inverse(L) -> np.ndarray:
    """Return the inverse of ``L L^T``."""
    inverse, _ = dtrtri(L.T, lower=False)
    return inverse @ inverse.T


def _moved(kept, to, step: float) -> np.ndarray:
    """Return a precision with a part of that of the data and of the prior."""
    found = kept + step * to
    found[np.diag_indices(len(found))] += step
    return found


def stepped(q: Held, linear, precision, step: float) -> Held:
    """Return q a part of the way to the density that the data and the prior make."""
    new = Held(*(np.empty_like(x) for x in q))
    for k, (m, P) in enumerate(zip(q.linear, q.precision, strict=True)):
        toward, kept = linear[k], (1.0 - step) * P
        found = _moved(kept, precision[k], step)
        try:
            _factor(found - KEPT * kept)
        except np.linalg.LinAlgError:
            to, toward = definite(precision[k], toward, m)
            found = _moved(kept, to, step)
        L = _factor(found)
        new.root[k], new.precision[k], new.covariance[k] = L, found, _inverse(L)
        new.linear[k] = new.covariance[k] @ (kept @ m + step * toward)
    return new


@cache
def stepped_on_jax() -> Callable[..., Held]:
    """Return `stepped` for arrays of JAX, which stay on their device."""
    import jax
    import jax.numpy as jnp

    def factors(precision):
        return jnp.linalg.cholesky(precision, symmetrize_input=False)

    def absolute(precision, linear, mean):
        """Of `definite`."""
        w, V = jnp.linalg.eigh((precision + precision.T) / 2.0)
        keep = w[0] > -1e-13 * jnp.trace(precision)
        found = (V * jnp.abs(w)) @ V.T
        toward = linear + (found - precision) @ mean
        return jnp.where(keep, precision, found), jnp.where(keep, linear, toward)

    @jax.jit
    def step_of(q, linear, precision, step):
        kept = (1.0 - step) * q.precision
        eye = jnp.broadcast_to(jnp.eye(kept.shape[-1]), kept.shape)

        def moved(to):
            return kept + step * (to + eye)

        enough = jnp.isfinite(factors(moved(precision) - KEPT * kept)).all(axis=(1, 2))

        def one(arguments):
            enough, *some = arguments
            return jax.lax.cond(enough, lambda P, h, m: (P, h), absolute, *some)

        to, toward = jax.lax.map(one, (enough, precision, linear, q.linear))
        found = moved(to)
        L = factors(found)
        inverse = jax.scipy.linalg.solve_triangular(L, eye, lower=True)
        covariance = inverse.mT @ inverse
        h = jnp.matvec(kept, q.linear) + step * toward
        return Held(jnp.matvec(covariance, h), L, covariance, found), jnp.isfinite(L).all()

    def on_device(q: Any, linear, precision, step: float) -> Held:
        new, has_factors = step_of(q, linear, precision, step)
        if not has_factors:
            raise np.linalg.LinAlgError("A precision is not positive definite.")
        return new

    return on_device
