"""Whether chains of NUTS have converged, said as PyMC says it."""

import logging

import numpy as np
import xarray as xr

from arviz_stats.base import array_stats
from pymc.model.core import Model

from pymc_vsgp.model.variable import inducing_variables

__all__ = ["warn_of_convergence"]

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

LARGEST_RHAT, LEAST_ESS = 1.01, 100  # those of PyMC, the latter for each chain
FEWEST = 100  # draws of a chain, for R-hat to say much


def warn_of_convergence(idata: xr.DataTree, model: Model) -> None:
    """Log a warning where R-hat or ESS of the parameters say that there are too few draws.

    Of the inducing values where there are no parameters: of many numbers one is above by chance.
    """
    posterior = idata["posterior"].to_dataset()
    if posterior.sizes["chain"] < 2 or posterior.sizes["draw"] < FEWEST:
        return
    inducing = inducing_variables(model)
    names = [rv.name for rv in model.free_RVs if rv not in inducing] or [u.name for u in inducing]
    worst: list[tuple[float, float, str]] = []
    for name in names:
        if name not in posterior or posterior[name].dtype.kind != "f":
            continue
        x = posterior[name].transpose(..., "chain", "draw").values
        with np.errstate(invalid="ignore", divide="ignore"):  # what never moved
            rhat = array_stats.rhat(x, chain_axis=-2, draw_axis=-1)
            ess = array_stats.ess(x, chain_axis=-2, draw_axis=-1)
        worst.append((np.fmax.reduce(rhat, None), np.fmin.reduce(ess, None), name))
    if not worst:
        return
    rhat, _, of_rhat = max(worst)
    _, ess, of_ess = min(worst, key=lambda w: w[1])
    if rhat > LARGEST_RHAT or ess < LEAST_ESS * posterior.sizes["chain"]:
        _log.warning(
            "R-hat is up to %.2f (%s), and ESS down to %.0f (%s). "
            "Pass more draws, or a larger tune, and look at az.plot_trace.",
            *(rhat, of_rhat, ess, of_ess),
        )
