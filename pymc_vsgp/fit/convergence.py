"""Whether chains have converged, said as PyMC says it."""

import logging

import numpy as np
import xarray as xr

from arviz_stats.base import array_stats
from pymc.model.core import Model

from pymc_vsgp.model.variable import inducing_variables

__all__ = ["largest_rhat", "warn_of_convergence"]

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

LARGEST_RHAT, LEAST_ESS = 1.01, 100  # those of PyMC, the latter for each chain
FEWEST = 100  # draws of a chain, for R-hat to say much


def warn_of_convergence(idata: xr.DataTree, model: Model, tuned: bool = True) -> None:
    """Log a warning where R-hat or ESS of the parameters say that there are too few draws.

    Of the inducing values where there are no parameters: of many numbers one is above by chance.
    """
    posterior = idata["posterior"].to_dataset()
    chains, draws = (posterior.sizes[dim] for dim in ("chain", "draw"))
    if chains < 2 or draws < FEWEST:
        return
    inducing = inducing_variables(model)
    names = [rv.name for rv in model.free_RVs if rv not in inducing] or [u.name for u in inducing]
    worst: list[tuple[float, float, str]] = []
    for name in names:
        if name not in posterior or posterior[name].dtype.kind != "f":
            continue
        x = posterior[name].transpose(..., "chain", "draw").values.reshape(-1, chains, draws)
        with np.errstate(invalid="ignore", divide="ignore"):
            ess = array_stats.ess(x, chain_axis=1, draw_axis=2)
        worst.append((largest_rhat(x), float(np.fmin.reduce(ess, initial=np.inf)), name))
    if not worst:
        return
    rhat, _, of_rhat = max(worst)
    _, ess, of_ess = min(worst, key=lambda w: w[1])
    if rhat > LARGEST_RHAT or ess < LEAST_ESS * chains:
        _log.warning(
            "R-hat is up to %.2f (%s), and ESS down to %.0f (%s). "
            "Pass more draws%s, and look at az.plot_trace.",
            *(rhat, of_rhat, ess, of_ess, ", or a larger tune" if tuned else ""),
        )


def largest_rhat(theta: np.ndarray) -> float:
    """Return that of several numbers, in the order number, chain, draw; nan where none tells."""
    if min(theta.shape[1:]) < 2 or not theta.size:
        return np.nan
    with np.errstate(invalid="ignore", divide="ignore"):  # parameters that never moved
        rhat = array_stats.rhat(theta, chain_axis=1, draw_axis=2)
    return float(np.fmax.reduce(rhat, initial=1.0))
