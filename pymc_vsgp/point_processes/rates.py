"""Draws of an intensity, from draws of a posterior."""

import warnings

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import as_inputs, column_names, known_value, match_columns
from pymc_vsgp.likelihoods import Likelihood, Poisson, as_likelihood
from pymc_vsgp.results.draws import Fitted
from pymc_vsgp.results.predicted import MEAN_AT_F, Noise, make_plan
from pymc_vsgp.results.prediction import carry_out, check_joint, predict, rows_of

__all__ = ["draw_intensity"]


def draw_intensity(
    idata: Any,
    X: Any,
    columns: Sequence[str],
    n_space: int,
    exposure: np.ndarray,
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

    Where the model has no names of its inputs, they have those of `columns`, of which the first
    `n_space` are no covariates. So has an array. What the model does not have is left out. The
    `exposure` of a pattern is what the intensity will be multiplied by.
    """
    options = {
        "var_name": var_name,
        "num_samples": num_samples,
        "random_seed": random_seed,
        "model": model,
        "progressbar": progressbar,
    }
    fit = Fitted(idata, model, var_name)
    if likelihood is None:
        _check_exposure(fit, exposure)
        unit = of_unit_exposure(fit.likelihood)
    else:
        unit = as_likelihood(likelihood)
    names, columns = column_names(X, "Xnew", fit.model), tuple(map(str, columns))
    if fit.by is not None and fit.by not in columns:  # the pattern is of one group
        columns = (*columns, fit.by)
    used = fit.columns
    if used is None:
        used = columns if fit.n_columns == len(columns) else columns[:n_space]
    if names is None:  # an array has the columns of the pattern, or those that the model has
        of_model = tuple(c for c in columns if c in used)
        value: Any = known_value(X) if isinstance(X, Variable) else X
        shape = np.shape(value)
        width = 1 if len(shape) < 2 else shape[1]
        names = {len(columns): columns, len(of_model): of_model}.get(width)
    order = None
    if names is not None and set(used) < set(names) <= set(columns):
        order = [names.index(c) for c in used]
    elif set(used) <= set(columns):
        order = match_columns(names, used, "Xnew")
    if order:
        X = _in_order(X, order)
    if not joint:
        return predict(idata, X, "mean", likelihood=unit, **options).rename("intensity")
    rows = rows_of(fit, X)
    check_joint(rows)
    fit = Fitted(idata, model, var_name, unit, num_samples, new=rows.dim)
    if not fit.likelihood.has_mean_at_f:
        raise ValueError(
            f"{fit.likelihood.title} does not define the mean of y given f. "
            "Pass a likelihood that does, such as vsgp.Poisson()."
        )
    fit.check_rows(len(rows.X), "Xnew")
    # Not of draws of "f", which are the functions before they are mixed.
    plan = make_plan(fit, MEAN_AT_F, "", (), None, joint=True)
    noise = Noise(random_seed, fit.draws.n)
    return carry_out(fit, plan, rows, noise, len(rows.X), progressbar)[0].rename("intensity")


def _in_order(X: Any, order: list[int]) -> Any:
    """Return columns in that order, with the labels of rows where there are any."""
    if isinstance(X, pd.DataFrame):
        return X.iloc[:, order]
    if isinstance(X, xr.DataArray):
        return X[:, order]
    X = as_inputs(X, "Xnew")
    return X[:, order]


def _check_exposure(fit: Fitted, of_pattern: np.ndarray) -> None:
    """Raise ValueError if an exposure has parameters; warn if it is not that of the pattern."""
    exposure = getattr(fit.likelihood.of_output, "exposure", None)
    seen = set(ancestors([exposure])) if isinstance(exposure, Variable) else set()
    if names := [rv.name for rv in fit.model.free_RVs if rv in seen]:
        raise ValueError(
            f"The exposure depends on {', '.join(map(repr, names))}, and an intensity per unit of "
            "exposure would leave that out. Pass likelihood=vsgp.Poisson(exposure=...) with the "
            "factors that belong to the intensity, or vsgp.Poisson() if none do."
        )
    known = None if exposure is None else known_value(exposure)
    if known is not None and not np.ndim(known) and len(fit.X) == len(of_pattern):
        known = np.full(len(of_pattern), known)  # one for all bins, as where it was left out
    if known is None or np.shape(known)[:1] != of_pattern.shape or np.size(known) != len(known):
        return  # of other rows, or of each output
    if not np.isclose(known.sum(), of_pattern.sum(), rtol=1e-6):
        warnings.warn(
            f"The exposures of the likelihood sum to {known.sum():.4g}, and those of the pattern "
            f"to {of_pattern.sum():.4g}, so expected counts are wrong. Pass exposure= to "
            "point_process, and its exposure to the likelihood.",
            stacklevel=4,
        )


def of_unit_exposure(likelihood: Likelihood) -> Likelihood:
    """Return the same family with an exposure of one."""
    family = likelihood.of_output
    if isinstance(family, Poisson):  # counts, or the process itself
        return Poisson(link=family.link.name)  # of mixed functions where the model mixes them
    if "exposure" in likelihood.params:
        return likelihood.replace(exposure=1.0)
    raise TypeError(
        f"{likelihood.title} has no exposure, so its mean is not an intensity. "
        "Use vsgp.Poisson(exposure=pattern.exposure), or pass a likelihood with an exposure of one."
    )
