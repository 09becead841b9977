r"""Bounds of the log evidence where noise is normal: how far the exact posterior is at most.

With rows scaled by the noise, :math:`Q = A^\top A` and :math:`t = \sum_n \gamma_n / \sigma_n^2`,
:math:`I + Q \preceq I + K \preceq (1 + t) I + Q`. Titsias (2009, 2014):

.. math::
    L &= -\tfrac12 \log |I + Q| - \tfrac12 y^\top (I + Q)^{-1} y - \tfrac12 t + c \\
    U &= -\tfrac12 \log |I + Q| - \tfrac12 y^\top ((1 + t) I + Q)^{-1} y + c

and the divergence to the exact posterior given theta is at most :math:`U - L`. No estimate, but
often far above the divergence itself.
"""

import numpy as np
import pytensor.tensor as pt

from pymc_vsgp.fit.collapsed import can_collapse
from pymc_vsgp.likelihoods import Gaussian
from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.model.variable import inducing_variables, is_sparse
from pymc_vsgp.results.draws import Fitted

AT_ONCE = 2**22  # entries of A: whatever depends on theta alone is computed for each block


def check_bound(fit: Fitted) -> None:
    """Raise ValueError where the density of the data is no lower bound of the evidence."""
    lik = fit.likelihood.family if isinstance(fit.likelihood, Mixed) else fit.likelihood
    if isinstance(lik, Gaussian) and not lik.is_bound:
        raise ValueError(
            f"check_inducing measures what a bound leaves out, and approx={lik.approx!r} is none. "
            "Fit with approx='VFE' to check the points."
        )


def has_bounds(fit: Fitted) -> bool:
    """Whether the model has one process, seen by normal noise alone, and its target is a bound."""
    lik = fit.likelihood
    if not (isinstance(lik, Gaussian) and lik.is_bound and can_collapse(fit.model)):
        return False
    # Neighbors approximate the density of the data, from either side.
    return not any(map(is_sparse, inducing_variables(fit.model)))


def evidence_bounds(fit: Fitted, at: slice, X, y) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound of the log evidence given theta of some draws."""

    def build():
        lik, (y,), _, inputs = fit._of_rows("y")
        x, process = fit.X_symbol, fit.observation.parts[0]
        sigma = pt.ones_like(y, dtype="float64") * lik.sigma
        A = process.solve(x) / sigma
        r = (y - process.prior_mean(x)) / sigma
        gamma = process.moments(x).gamma / sigma**2
        left = lik.left_out(gamma)
        sums = [pt.dot(A, A.T), pt.dot(A, r), pt.dot(r, r), gamma.sum(), left.sum()]
        return [], [x, *inputs], [*sums, pt.log(sigma).sum()]

    sums: list[np.ndarray] = []
    step = max(AT_ONCE // fit.draws.values(fit.observation.parts[0].u.name).shape[-1], 1)
    for rows in (slice(a, a + step) for a in range(0, len(y), step)):
        same = [X[rows], y[rows], rows.start, rows.start + len(y[rows])]
        found = fit.call("bounds", at, build, same=same)
        sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
    gram, b, square, trace, left, log_sigma = sums
    w, V = np.linalg.eigh(gram)
    w, c = np.clip(w, 0.0, None), (V.mT @ b[..., None])[..., 0] ** 2
    common = -0.5 * (len(y) * np.log(2.0 * np.pi) + np.log1p(w).sum(axis=-1)) - log_sigma
    lower = common - 0.5 * (square - (c / (1.0 + w)).sum(axis=-1) + left)
    inside = square - (c / (1.0 + trace[:, None] + w)).sum(axis=-1)
    upper = common - 0.5 * inside / (1.0 + trace)
    n = at.stop - at.start  # which have the same where theta is fixed
    return np.broadcast_to(lower, n), np.broadcast_to(upper, n)
