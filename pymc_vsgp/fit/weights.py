"""Pareto-smoothed importance weights."""

import arviz_stats  # noqa: F401  (imported to register the accessor of DataArrays)
import numpy as np
import xarray as xr


def logsumexp(x: np.ndarray, axis: int | None = None):
    """Return what SciPy's function of this name does, which imports JAX where that is installed."""
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total.item() if axis is None else np.squeeze(total, axis)


def smooth_weights(log_w: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log weights, and the shape of their tail, where there are enough for one."""
    if len(log_w) < 25:
        return log_w - np.logaddexp.reduce(log_w), np.nan
    if np.ptp(log_w) < 1e-8:
        return np.full(len(log_w), -np.log(len(log_w))), -np.inf
    array = xr.DataArray(-log_w, dims=["sample"])
    smoothed, khat = array.azstats.psislw(dim=["sample"], r_eff=1.0)
    return smoothed.values, float(khat)
