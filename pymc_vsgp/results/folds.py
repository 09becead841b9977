"""K-fold cross-validation."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from arviz_stats.utils import ELPDData, ELPDDataLOOKFold
from pymc.model.core import Model
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import as_array, check_built, generator_of, kind
from pymc_vsgp.compile import evaluate
from pymc_vsgp.labels import check_order, row_labels
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.model.observation import find_observation
from pymc_vsgp.progress import progress
from pymc_vsgp.results.posterior import Draws
from pymc_vsgp.results.prediction import log_predictive_density


def kfold(
    build: Callable[[Any, Any], Model],
    X: Any,
    y: Any,
    k: int = 10,
    *,
    fit: Callable[[Model], xr.DataTree] | None = None,
    var_name: str | None = None,
    folds: Any = None,
    per_observation: dict[str, Any] | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> ELPDData:
    """
    K-fold cross-validation: fit again without each fold, and predict it.

    With several outputs a row is scored by the joint density of its outputs: see
    :func:`log_predictive_density`.

    Parameters
    ----------
    build : callable
        Takes `X` and `y` of the observations to learn from, and returns a model of them.
    X : array_like, shape (N, D)
        Inputs of all observations.
    y : array_like, shape (N,)
        All observations.
    k : int
        Number of folds.
    fit : callable, optional
        Takes a model and returns draws. By default :func:`sample` with its settings.
    var_name : str, optional
        Name of the observed variable, where the model has several.
    folds : array_like of int, shape (N,), optional
        Fold of each observation. By default folds of equal size at random; give them where
        neighbors should be left out together.
    per_observation : dict, optional
        What else has an entry for each observation, such as an exposure or a covariate of the
        likelihood. `build` takes those of its observations by that name:
        ``build(X, y, exposure=...)``. It is also given all rows, once: parameters of the rows that
        are left out come from there.
    random_seed : int or Generator, optional
        Seed of the folds, and of the draws where `fit` is not given.
    progressbar : bool
        Whether to show progress.

    Returns
    -------
    ELPDData
        Accepted by ``az.compare``. The effective number of parameters is not computed: nan.
    """
    for what, rows in (("X", X), ("y", y)):
        if not hasattr(rows, "__len__") or not as_array(rows, what).ndim:
            raise TypeError(f"{what} is {kind(rows)}. Pass one row for each observation.")
    if not isinstance(per_observation, dict | None):
        raise TypeError(f"per_observation is {kind(per_observation)}. Pass a dict of arrays.")
    n, rng = len(X), generator_of(random_seed)
    if len(y) != n:
        raise ValueError(
            f"X has {n} rows but y has {len(y)} entries. Pass one observation for each row of X."
        )
    params = per_observation or {}
    for param, values in params.items():
        if not as_array(values, param).ndim:
            raise TypeError(f"{param} is {kind(values)}. Pass one entry for each row of X.")
        if len(values) != n:
            raise ValueError(
                f"{param} has {len(values)} entries, but X has {n} rows. Pass one for each row."
            )
    rows = {"X": X, "y": y, **params} | ({} if folds is None else {"folds": folds})
    check_order((what, row_labels(x)) for what, x in rows.items())
    if folds is None:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 2 <= k <= n:
            raise ValueError(
                f"k is {k!r}, but it is the number of folds. Pass a whole number from 2 to {n}."
            )
        folds = rng.permutation(np.arange(n) % k)
    folds = as_array(folds, "folds")
    if np.ma.is_masked(folds) or (folds.dtype.kind == "f" and np.isnan(folds).any()):
        raise ValueError("folds holds nan, or is masked. Pass a fold for each row, or drop rows.")
    if folds.shape != (n,):
        raise ValueError(
            f"folds has shape {folds.shape}, but X has {n} rows. Pass one fold for each row."
        )
    try:
        labels = np.unique(folds)
    except TypeError:  # of what has no order
        raise TypeError("folds holds None, or things of several types. Pass numbers.") from None
    if len(labels) < 2:
        raise ValueError("There is one fold, so nothing to learn from. Pass at least two.")
    elpd, n_samples = np.empty(n), 0
    with progress("Folds", len(labels), progressbar) as advance:
        every = _built(build, X, y, params, np.ones(n, dtype=bool))
        for label in labels:
            out = folds == label
            model = _built(build, X, y, params, ~out)
            _check_new(every, model, var_name)
            idata = _sample(model, rng) if fit is None else fit(model)
            n_samples = Draws(idata).n
            likelihood = _of_left_out(every, model, var_name, idata, out)
            score = log_predictive_density(
                idata,
                _take(X, out),
                _take(y, out),
                var_name=var_name,
                likelihood=likelihood,
                model=model,
                progressbar=False,
            )
            elpd[out] = score.values
            advance(1)
    return ELPDDataLOOKFold(
        elpd=float(elpd.sum()),
        se=float(np.sqrt(n * elpd.var())),
        p=np.nan,
        n_samples=n_samples,
        n_data_points=n,
        scale="log",
        warning=False,
        good_k=np.nan,
        elpd_i=xr.DataArray(elpd, dims=["obs"]),
        n_folds=len(labels),
    )


def _built(build, X, y, params: dict[str, Any], rows: np.ndarray) -> Model:
    """Return a model of some of the rows: copies, which build may write to."""
    some = {param: _take(values, rows) for param, values in params.items()}
    model = build(_take(X, rows), _take(y, rows), **some)
    check_built(model)
    return model


def _take(array: Any, rows: np.ndarray) -> Any:
    """Return some of the rows, with their labels where they have labels."""
    if isinstance(array, xr.DataArray | pd.Index | pd.api.extensions.ExtensionArray):
        return array[rows]
    return array.iloc[rows] if hasattr(array, "iloc") else as_array(array)[rows]


def _check_new(every: Model, model: Model, name: str | None) -> None:
    """Raise ValueError if `build` put the rows of a fold where parameters of all rows were."""
    whole = find_observation(every, name)
    if every is model and whole.row_params:
        param = whole.likelihood.said(whole.row_params[0])
        raise ValueError(
            f"build returns one model for all folds, so that {param} at other rows is lost. "
            "Let build make a new model each time."
        )


def _of_left_out(
    every: Model, model: Model, name: str | None, idata: xr.DataTree, out: np.ndarray
) -> Likelihood | None:
    """Return the likelihood of a fold's model with the parameters of the rows that it lacks.

    They may be expressions of those rows and of variables of the model, so they are taken from a
    model of all rows.
    """
    here, whole = find_observation(model, name), find_observation(every, name)
    if not whole.row_params:
        return None
    every, model, posterior = every.root, model.root, Draws(idata).posterior
    params, free = whole.likelihood.params, set(every.free_RVs)
    above = list(ancestors(params.values(), blockers=free))
    needed = [v for v in above if v in free]
    if lost := [rv.name for rv in needed if rv.name not in posterior]:
        raise ValueError(f"The draws lack {lost[0]!r}. Let fit return all parameters.")
    draw, swaps = {}, _observed(every, above)
    shapes = every.eval_rv_shapes() if needed else {}
    for rv in needed:
        if posterior[rv.name].shape[2:] != tuple(shapes[rv.name]):
            raise ValueError(
                f"A parameter of {whole.likelihood.title} depends on {rv.name!r}, which is not the "
                "same variable without a fold. Let build give it one shape, whatever the rows."
            )
        swaps[rv] = model[rv.name]
        draw[swaps[rv]] = posterior[rv.name].values[0, 0]
    found = dict(zip(params, graph_replace([*params.values()], swaps, strict=False), strict=True))
    rows = {n: found[n][np.flatnonzero(out)] for n in whole.row_params}
    kept = {n: found[n][np.flatnonzero(~out)] for n in whole.row_params}
    of_fold = [here.likelihood.params[n] for n in kept]
    of_fold = graph_replace(of_fold, _observed(model, ancestors(of_fold)), strict=False)
    a, b = (evaluate(graphs, draw) for graphs in ([*kept.values()], of_fold))
    for n, of_all, of_rest in zip(kept, a, b, strict=True):
        if not np.allclose(of_all, of_rest, rtol=1e-6, atol=0.0, equal_nan=True):
            raise ValueError(
                f"{whole.likelihood.said(n)} changes where build has fewer rows, as if it "
                "standardized them. Pass numbers that do not depend on the fold."
            )
    return whole.likelihood.replace(**found | rows)


def _observed(model: Model, variables: Iterable[Any]) -> dict[Any, Any]:
    """Return the values of observed variables among these."""
    observed = set(model.observed_RVs)
    return {v: model.rvs_to_values[v].astype(v.dtype) for v in variables if v in observed}


def _sample(model: Model, rng: np.random.Generator) -> xr.DataTree:
    from pymc_vsgp.fit.sampling import sample

    idata = sample(model=model, method="auto", progressbar=False, random_seed=rng)
    if idata["posterior"].attrs.get("interrupted"):
        raise KeyboardInterrupt("A fold has too few draws.")
    return idata
