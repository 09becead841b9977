"""Pareto-smoothed importance weights."""

import arviz_stats  # noqa: F401  (imported to register the accessor of DataArrays)
import numpy as np
import xarray as xr


def smooth_weights(log_w: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log weights, and the shape of their tail, where there are enough for one."""
    if len(log_w) < 25:
        return log_w - np.logaddexp.reduce(log_w), np.nan
    if np.ptp(log_w) < 1e-8:
        return np.full(len(log_w), -np.log(len(log_w))), -np.inf
    array = xr.DataArray(-log_w, dims=["sample"])
    smoothed, khat = array.azstats.psislw(dim=["sample"], r_eff=1.0)
    return smoothed.values, float(khat)
