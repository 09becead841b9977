"""Sites a part of the way to where natural gradients point."""

import numpy as np

from pymc_vsgp.inducing.coordinates import Sites, root_of, sites_of

__all__ = ["blend", "blend_alone", "definite"]


def blend(sites: Sites, R, mean, new_linear, new_precision, m, step: float) -> Sites:
    """Return sites a part of the way to where the natural gradient points.

    The gradient is that in v; where R is a vector, the variables are independent a priori, and it
    is that in u itself, for their deviations may be too small to divide by.
    """
    independent = R.ndim == 1
    linear, root = [], []
    for k in range(len(sites.linear)):
        B, old = sites.root[k], sites.linear[k]
        if independent:
            to, toward = definite(new_precision[k], new_linear[k], mean + R * m[k])
            root.append(root_of((1.0 - step) * (B @ B.T) + step * to))
            linear.append((1.0 - step) * old + step * toward)
            continue
        G = R.T @ B
        to, toward = definite(new_precision[k], new_linear[k], m[k])
        precision = (1.0 - step) * (G @ G.T) + step * to
        h = (1.0 - step) * (R.T @ (old - B @ (B.T @ mean))) + step * toward
        for part, new in zip((linear, root), sites_of(R, mean, h, precision)[:2], strict=True):
            part.append(new)
    return Sites(np.stack(linear), np.stack(root))


def blend_alone(sites: Sites, linear, precision, step: float) -> Sites:
    """Return the same for sites of each variable alone, whose precision is not negative."""
    root = np.sqrt((1.0 - step) * sites.root**2 + step * precision)
    return Sites((1.0 - step) * sites.linear + step * linear, root)


def definite(precision, linear, mean) -> tuple[np.ndarray, np.ndarray]:
    """Return sites with the same gradient in the mean, and curvature that is nowhere negative.

    Likelihoods that are not log-concave, such as robust-max far from the truth, have directions of
    negative curvature. As long a step is safe there as for positive curvature of that size.
    Without any curvature the mean would be thrown so far that no gradient brings it back.
    """
    try:
        np.linalg.cholesky(precision + 1e-13 * np.trace(precision) * np.eye(len(precision)))
        return precision, linear
    except np.linalg.LinAlgError:
        w, V = np.linalg.eigh((precision + precision.T) / 2.0)
    absolute = (V * np.abs(w)) @ V.T
    return absolute, linear + (absolute - precision) @ mean
