"""Leave-one-out cross-validation."""

import warnings

from contextlib import suppress
from typing import Any

import numpy as np
import xarray as xr

from arviz_stats import loo as arviz_loo
from arviz_stats.utils import ELPDData
from pymc.model.core import Model
from scipy.special import logsumexp

from pymc_vsgp.checks import PACKAGE, check_real, model_of
from pymc_vsgp.fit.weights import psis
from pymc_vsgp.likelihoods import PoissonProcess
from pymc_vsgp.model.observation import observations, unstreamed
from pymc_vsgp.progress import progress
from pymc_vsgp.results.draws import ROWS, Fitted
from pymc_vsgp.results.posterior import require_tree, write_beside

OTHERS = "other draws or data"  # that a group is of
FEWEST = 30  # draws that ArviZ fits a tail to


def compute_log_likelihood(
    idata: xr.DataTree,
    *,
    var_name: str | None = None,
    extend_inferencedata: bool = True,
    progressbar: bool = True,
    model: Model | None = None,
) -> xr.DataTree | xr.Dataset:
    r"""
    Compute a log likelihood that ``az.loo`` and ``az.compare`` are right with.

    It is :math:`\phi_n = E \log p(y_n | f_n)` of each draw, plus a constant for each observation.
    The constant leaves the weights and the Pareto shapes as they are, and moves the score
    from that of :math:`\phi_n` to that of :func:`loo`. Likelihoods that do not stream over their
    data are left out, with a warning.

    Parameters
    ----------
    idata : DataTree
        Draws. Where they have the groups of :func:`compute_pointwise`, these are used.
    var_name : str, optional
        Name of an observed variable. By default all that see a variationally sparse process.
    extend_inferencedata : bool
        Whether to add the group ``log_likelihood`` to `idata`, and return that.
    progressbar : bool
        Whether to show progress.
    model : Model, optional
        By default the model on the context stack. Not needed where the groups are there.

    Returns
    -------
    DataTree or Dataset
        With ``extend_inferencedata=False``, the Dataset alone.

    Examples
    --------
    .. code-block:: python

        with model:
            vsgp.compute_log_likelihood(idata)
        az.loo(idata)
    """
    require_tree(idata)
    columns, posterior = {}, idata["posterior"].to_dataset().compute()
    if var_name is None:
        _warn_of_others(model)
    for name in [var_name] if var_name is not None else _observed(idata, model) or [None]:
        found, name = _pointwise_of(idata, model, name, progressbar)
        phi, density = found["log_potential"], found["log_predictive"]
        log_weights, _ = _weights(phi, posterior, None)
        over = ["chain", "draw"]
        score, score_of_phi = (_logsumexp(log_weights + x, over) for x in (density, phi))
        columns[name] = phi + (score - score_of_phi)
    new = xr.Dataset(columns)
    if not extend_inferencedata:
        return new
    write_beside(idata, "log_likelihood", new, OTHERS)
    return idata


def compute_pointwise(
    idata: xr.DataTree,
    *,
    var_name: str | None = None,
    extend_inferencedata: bool = True,
    progressbar: bool = True,
    model: Model | None = None,
) -> xr.DataTree | xr.Dataset:
    r"""
    Compute two log densities of each observation under each draw.

    ``log_potential`` is :math:`\phi_n = E \log p(y_n | f_n)`, which is what the posterior was
    sampled with. ``log_predictive`` is :math:`\log E\, p(y_n | f_n)`, how well the draw predicts.
    Neither one alone gives a leave-one-out score; :func:`loo` takes both. With several outputs
    both are of a row, the second of its outputs jointly: see :func:`log_predictive_density`.

    Parameters
    ----------
    idata : DataTree
        Draws.
    var_name : str, optional
        Name of the observed variable, where the model has several.
    extend_inferencedata : bool
        Whether to add both to `idata`, as groups of that name, and return it.
    progressbar : bool
        Whether to show progress.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    DataTree or Dataset
        With ``extend_inferencedata=False``, a Dataset with the variables ``log_potential`` and
        ``log_predictive``.
    """
    if extend_inferencedata:
        require_tree(idata)
    fit = Fitted(idata, model, var_name)
    found = _pointwise(fit, progressbar)
    if not extend_inferencedata:
        return found
    for group in ("log_potential", "log_predictive"):
        new = found[group].rename(fit.name).to_dataset()
        write_beside(idata, group, new, OTHERS)
    return idata


def loo(
    idata: xr.DataTree,
    *,
    var_name: str | None = None,
    pointwise: bool = True,
    reff: float | None = None,
    progressbar: bool = True,
    model: Model | None = None,
) -> ELPDData:
    r"""
    Leave-one-out cross-validation by Pareto-smoothed importance sampling.

    A draw is weighted by what taking out an observation does to the posterior that was sampled,
    :math:`\exp(-\phi_n)`. It is scored by how well it predicts, :math:`E\, p(y_n | f_n)`. With
    :math:`\phi_n` for both, as in ``az.loo`` after ``pm.compute_log_likelihood``, scores are too
    low.

    With several outputs a row is left out as a whole, and scored by the joint density of its
    outputs: see :func:`log_predictive_density`.

    Parameters
    ----------
    idata : DataTree
        Draws. Where they have the groups of :func:`compute_pointwise`, these are used.
    var_name : str, optional
        Name of the observed variable, where the model has several.
    pointwise : bool
        Whether to keep the score and the Pareto shape of each observation.
    reff : float, optional
        Relative efficiency of the draws, by default from the posterior.
    progressbar : bool
        Whether to show progress.
    model : Model, optional
        By default the model on the context stack. Not needed where the groups are there.

    Returns
    -------
    ELPDData
        As ``az.loo`` returns, and ``az.compare`` takes. Where the Pareto shape of a few
        observations is above the threshold, :func:`kfold` is the way.

    Examples
    --------
    .. code-block:: python

        az.compare({"matern": vsgp.loo(a, model=model_a), "smooth": vsgp.loo(b, model=model_b)})
    """
    require_tree(idata)
    found, name = _pointwise_of(idata, model, var_name, progressbar)
    phi, density = found["log_potential"], found["log_predictive"]
    tree = xr.DataTree()
    posterior = idata["posterior"].to_dataset().compute()
    tree["posterior"] = xr.DataTree(posterior)
    tree["log_likelihood"] = xr.DataTree(density.rename(name).to_dataset())
    log_weights, pareto_k = _weights(phi, posterior, reff)
    return arviz_loo(
        tree,
        pointwise=pointwise,
        var_name=name,
        reff=reff,
        log_weights=log_weights,
        pareto_k=pareto_k,
    )


def _pointwise(fit: Fitted, progressbar: bool) -> xr.Dataset:
    if isinstance(fit.likelihood.of_output, PoissonProcess):
        raise TypeError(
            "Entries of a PoissonProcess are no observations, so none can be left out. "
            "Count events in bins, with vsgp.Poisson(exposure=pattern.exposure)."
        )
    X, y = fit.seen
    phi, density = np.empty((2, fit.draws.n, len(y)))
    with progress("Scoring", len(y), progressbar) as advance:
        for start in range(0, len(y), ROWS):
            at = slice(start, start + ROWS)
            for some in fit.slabs(len(y[at]) * fit.n_functions):
                mu, gamma = fit.moments(some, X[at])
                phi[some, at] = fit.expected_logp(some, mu, gamma, y[at], start)
                density[some, at] = fit.log_predictive(some, mu, gamma, y[at], start)
            advance(len(y[at]))
    dim = fit.y_dims[0]
    dims = ("chain", "draw", dim)
    coords = fit.draws.coords | fit.coords_of([dim])
    arrays = {"log_potential": phi, "log_predictive": density}
    return xr.Dataset({n: (dims, fit.draws.unstack(a)) for n, a in arrays.items()}, coords=coords)


def _observed(idata: xr.DataTree, model: Model | None) -> list[Any]:
    """Names of what the model observes; of what was computed, where no model is at hand that does.

    What was computed of one of several likelihoods is not all.
    """
    computed = list(_known_pointwise(idata))
    if computed and model is None and Model.get_context(error_if_none=False) is None:
        return computed
    observed = list(observations(model_of(model)))
    return observed if set(computed) <= set(observed) else computed


def _warn_of_others(model: Model | None) -> None:
    """Say which likelihoods are left out, where a model is at hand."""
    model = Model.get_context(error_if_none=False) if model is None else model_of(model)
    others = [] if model is None else unstreamed(model)
    if others:
        warnings.warn(
            f"{', '.join(map(repr, others))} sees a variationally sparse process, but does not "
            "stream over its data, and is left out. Use gp.likelihood without block_size=False.",
            skip_file_prefixes=PACKAGE,
        )


def _pointwise_of(idata, model, name, progressbar) -> tuple[xr.Dataset, str]:
    """Both densities of each observation, and the name of the observed variable."""
    if name is None and (names := _observed(idata, model)):
        if len(names) > 1:
            raise ValueError(
                f"There are {len(names)} likelihoods. Say which one: pass var_name, one of {names}."
            )
        name = names[0]
    known = _known_pointwise(idata)
    if isinstance(name, str) and name in known:
        return known[name], name
    fit = Fitted(idata, model, name)
    return _pointwise(fit, progressbar), fit.name


def _weights(
    phi: xr.DataArray, posterior: xr.Dataset, reff: float | None
) -> tuple[xr.DataArray, xr.DataArray]:
    """Leave-one-out weights, normalized, and their Pareto shapes."""
    num_samples = phi.sizes["chain"] * phi.sizes["draw"]
    if num_samples < FEWEST:
        raise ValueError(
            f"There are {num_samples} draws, too few to smooth the tail of their weights. "
            f"Pass {FEWEST} or more; hundreds for a score to rely on."
        )
    if reff is not None:
        check_real("reff", reff, above=True)
    else:
        reff = _relative_efficiency(posterior)
    dims = ["chain", "draw"]
    with np.errstate(over="ignore", invalid="ignore"):
        # One that fails, as where all weights in its tail are the same, would fail all of them.
        with suppress(ValueError):
            log_weights, pareto_k = phi.azstats.psislw(r_eff=reff, dim=dims)
            if not (np.isnan(pareto_k).any() or np.isnan(log_weights).any()):
                return log_weights, pareto_k
        return xr.apply_ufunc(
            _smoothed,
            phi,
            input_core_dims=[dims],
            output_core_dims=[dims, []],
            kwargs={"reff": reff},
            vectorize=True,
        )


def _smoothed(phi: np.ndarray, reff: float) -> tuple[np.ndarray, float]:
    """Return the same for one observation: where the tail has no shape, nothing is smoothed.

    It has none where all weights in it are the same, and none where they underflow.
    """
    log_w, khat = psis(-phi.ravel(), reff)
    if np.isnan(khat):
        return -phi - logsumexp(-phi), np.inf
    return log_w.reshape(phi.shape), khat


def _logsumexp(array: xr.DataArray, dims: list[str]) -> xr.DataArray:
    return xr.apply_ufunc(logsumexp, array, input_core_dims=[dims], kwargs={"axis": (-2, -1)})


def _known_pointwise(idata: xr.DataTree) -> dict[str, xr.Dataset]:
    """Return what :func:`compute_pointwise` left, if it did, by the name of the observed."""
    groups = ("log_potential", "log_predictive")
    if not set(groups) <= set(idata.children):
        return {}
    both = {g: idata[g].to_dataset().compute() for g in groups}
    names = [n for n in both[groups[0]].data_vars if n in both[groups[1]]]
    return {str(n): xr.Dataset({g: d[n] for g, d in both.items()}) for n in names}


def _relative_efficiency(posterior: xr.Dataset) -> float:
    """Mean relative efficiency of the parameters; of one chain, 1, as ArviZ has it."""
    if posterior.sizes["chain"] == 1:
        return 1.0
    ess = posterior.azstats.ess(method="mean")
    n = posterior.sizes["chain"] * posterior.sizes["draw"]
    return float(np.mean(np.concatenate([np.ravel(v) for v in ess.data_vars.values()])) / n)
