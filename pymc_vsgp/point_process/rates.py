"""Draws of an intensity, from draws of a posterior."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_vsgp.checks import as_inputs, check_columns, column_names, match_columns
from pymc_vsgp.likelihoods import Likelihood, Poisson
from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.results.draws import Fitted
from pymc_vsgp.results.prediction import predict

__all__ = ["draw_intensity"]

RATES: dict[str, Callable] = {
    "log": np.exp,
    "square": np.square,
    "softplus": lambda f: np.logaddexp(0.0, f),
}


def draw_intensity(
    idata: Any,
    X: Any,
    columns: Sequence[str],
    *,
    joint: bool = False,
    var_name: str | None = None,
    likelihood: Any = None,
    num_samples: int | None = None,
    random_seed: Any = None,
    progressbar: bool = False,
    model: Any = None,
) -> xr.DataArray:
    """Draw the mean of a count that is collected over an exposure of one.

    Where the model has no names of its inputs, they have those of `columns`. So has an array.
    """
    options = {
        "var_name": var_name,
        "num_samples": num_samples,
        "model": model,
        "progressbar": progressbar,
    }
    fit = Fitted(idata, model, var_name)
    unit = likelihood or of_unit_exposure(fit.likelihood)
    names, columns = column_names(X, "Xnew", fit.model), tuple(map(str, columns))
    if fit.by is not None and fit.by not in columns:  # the pattern is of one group
        columns = (*columns, fit.by)
    order = None
    if fit.columns is None:
        order = match_columns(names, columns, "Xnew")
    elif names is None and set(columns) == set(fit.columns):
        order = match_columns(columns, fit.columns, "Xnew")
    if order:
        X = _in_order(X, order)
    if not joint:
        return predict(idata, X, "mean", likelihood=unit, **options).rename("intensity")
    family = fit.likelihood if isinstance(fit.likelihood, Mixed) else unit
    rate = RATES.get(family.link.name) if isinstance(family, Poisson) else None
    if rate is None:
        raise ValueError(
            f"joint=True is for a Poisson likelihood, not for {type(family).__name__}. "
            "Draw f by vsgp.predict(idata, pattern.inputs, 'f', joint=True), and take the "
            "intensity of that, which is np.exp(f) where the link is log."
        )
    f = predict(idata, X, "f", likelihood=unit, joint=True, random_seed=random_seed, **options)
    return rate(f).rename("intensity")


def _in_order(X: Any, order: list[int]) -> Any:
    """Return columns in that order, with the labels of rows where there are any."""
    if isinstance(X, pd.DataFrame):
        return X.iloc[:, order]
    if isinstance(X, xr.DataArray):
        return X[:, order]
    X = as_inputs(X, "Xnew")
    check_columns(X, len(order), "Xnew", "X")
    return X[:, order]


def of_unit_exposure(likelihood: Likelihood) -> Likelihood:
    """Return the same family with an exposure of one."""
    if isinstance(likelihood, Poisson):  # counts, or the process itself
        return Poisson(link=likelihood.link.name)
    if "exposure" in likelihood.params:
        return likelihood.replace(exposure=1.0)
    raise TypeError(
        f"{type(likelihood).__name__} has no exposure, so its mean is not an intensity. "
        "Use vsgp.Poisson(exposure=pattern.exposure), or pass a likelihood with an exposure of one."
    )
