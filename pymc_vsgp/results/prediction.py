"""Predictions at new inputs, from draws."""

import warnings

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pymc.model.core import Model
from pytensor.graph.basic import Variable
from scipy.special import logsumexp

from pymc_vsgp.checks import (
    PACKAGE,
    as_inputs,
    as_target,
    check_columns,
    check_number,
    coded,
    column_names,
    generator_of,
    match_columns,
    mode_of,
)
from pymc_vsgp.engine.sharded import mesh_of
from pymc_vsgp.inducing.kernels import check_codes
from pymc_vsgp.labels import coord_labels
from pymc_vsgp.likelihoods import Likelihood, as_likelihood
from pymc_vsgp.likelihoods.base import check_output_order, check_row_order
from pymc_vsgp.progress import progress
from pymc_vsgp.results.draws import FIRST, DrawnRows, Fitted
from pymc_vsgp.results.posterior import require_tree, write_beside
from pymc_vsgp.results.predicted import Noise, Part, class_names, evaluate, make_plan

WHAT = ("f", "mean", "y", "moments", "summary", "quantiles", "density")
# Rows of Xnew that are held at a time, for all draws: at most 64 MB of float64 numbers.
NUMBERS, SMALLEST_CHUNK, LARGEST_CHUNK = 8_000_000, 256, 4096
LARGEST_JOINT = 4000


def predict(
    idata: Any,
    Xnew: Any = None,
    what: str = "f",
    *,
    var_name: str | None = None,
    likelihood: Any = None,
    quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    of: str = "y",
    at: Any = None,
    joint: bool = False,
    num_samples: int | None = None,
    chunk_size: int | None = None,
    random_seed: int | np.random.Generator | None = None,
    extend_inferencedata: bool = False,
    predictions: bool | None = None,
    progressbar: bool = True,
    compile_kwargs: dict[str, Any] | None = None,
    devices: Sequence[Any] | None = None,
    model: Model | None = None,
) -> xr.DataArray | xr.Dataset | xr.DataTree:
    r"""
    Predict at new inputs, from draws of the posterior.

    Given a draw of the inducing values and of the parameters, the function at each new input is
    normal with a known mean and variance. So no matrix of all new inputs is formed, and time is
    linear in their number. They are worked on in chunks. Nothing is sampled again.

    Parameters
    ----------
    idata : DataTree
        Draws, as :func:`sample` or ``pm.sample`` returned them, or as they were loaded from a file.
    Xnew : array_like, DataFrame, DataArray or pm.Data, shape (N, D), optional
        New inputs, by default those of the data. Where its columns and those of the data have
        names, they are matched by name, in any order. Their labels are kept, each level of a
        MultiIndex as a coordinate. A DataArray that is backed by dask is worked on chunk by chunk,
        when the result is computed.
    what : str
        * "f": draws of the latent function. At each input on its own, unless `joint`.
        * "mean": mean of an observation given the inducing values, for each draw; for classes
          their probabilities. It is an average over the function, so its spread is not how
          uncertain the mean is.
        * "y": draws of observations.
        * "moments": mean and variance of the function given each draw, exact.
        * "summary": mean and standard deviation of the function over all draws, exact, and the
          mean of an observation.
        * "quantiles": `quantiles` over draws, of what `of` says.
        * "density": predictive density, or probability, of the values `at`.
    var_name : str, optional
        Name of the observed variable, where the model has several.
    likelihood : Likelihood, optional
        Takes the place of the model's. Needed where that has a parameter with an entry for each
        observation, such as an exposure: ``likelihood=vsgp.Poisson(exposure=new)``, with an entry
        for each new input.
    quantiles : sequence of float
        Probabilities, for "quantiles".
    of : {"y", "f", "mean"}
        What quantiles are of: an observation, the function or the mean of an observation given
        the function. Classes without an order have quantiles of their probabilities alone. For
        :class:`RobustMax`, whose probabilities given the function are steps, the mean is that
        given the inducing values.
    at : array_like of shape (G,)
        Values of y, for "density".
    joint : bool
        Whether "f" and "y" are joint draws over the new inputs, which takes a matrix of all of
        them for each draw.
    num_samples : int, optional
        How many draws to use, spread evenly, and as many of each chain: more where they do not
        divide. By default all.
    chunk_size : int, optional
        New inputs that are worked on at a time. By default as many as keep memory small.
    random_seed : int or Generator, optional
        Seed of the draws. The draws of "f" do not depend on `chunk_size`; each chunk of dask has
        its own.
    extend_inferencedata : bool
        Whether to write the result into `idata` and return that. It is for draws: "f", "mean" or
        "y". Observations have the name of the observed variable, the others that name with the
        ending ``_f`` or ``_mean``.
    predictions : bool, optional
        Whether they go into the group ``predictions``, and not into ``posterior_predictive``. By
        default those at an `Xnew` do.
    progressbar : bool
        Whether to show progress. For dask use a progress bar of dask.
    compile_kwargs : dict, optional
        ``mode`` is the backend. By default numpy, which starts at once. Random numbers are drawn
        by numpy in any case.
    devices : sequence of jax.Device, array of them, or jax.sharding.Mesh, optional
        Devices of JAX to spread the draws over, such as ``jax.local_devices()``.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    DataArray, Dataset or DataTree
        Dimensions ``chain`` and ``draw`` where there are draws, then that of the inputs. It has the
        name that these have: the dimension of a DataArray or ``pm.Data``, the name of a
        DataFrame's index, ``point`` for those without; without `Xnew` the dimension of the
        observations, as in ``observed_data``. "moments" and "summary" are a Dataset. For "summary",
        "quantiles" and "density" memory does not grow with the number of draws times that of
        inputs.

    Examples
    --------
    .. code-block:: python

        with model:
            bands = vsgp.predict(idata, Xnew, "quantiles", quantiles=[0.05, 0.5, 0.95])
            rate = vsgp.predict(idata, Xnew, "mean").mean(["chain", "draw"])
    """
    if what not in WHAT:
        raise ValueError(f"what is {what!r}. Choose one of {list(WHAT)}.")
    if extend_inferencedata:
        _check_extended(idata, what)
    if of not in ("y", "f", "mean"):
        raise ValueError(f"of is {of!r}. Choose one of ['y', 'f', 'mean'].")
    mode = mode_of(compile_kwargs)
    lik = _likelihood_at(Xnew, likelihood)
    mesh, new = _mesh(devices, mode), _row_dim(Xnew)
    fit = Fitted(idata, model, var_name, lik, num_samples, mode, mesh, new)
    plan = make_plan(fit, what, of, quantiles, at, joint)
    wants_mean = what == "mean" or (what == "quantiles" and of == "mean")
    if wants_mean and not fit.likelihood.has_mean:
        raise ValueError(
            f"{fit.likelihood.title} does not define the mean of y given f. "
            "Ask for 'y', and take the mean of the draws."
        )
    _check_chunk_size(chunk_size)
    # The function itself does not depend on what goes with the rows.
    of_function = what in ("f", "moments") or (what == "quantiles" and of == "f")
    if not joint and isinstance(Xnew, xr.DataArray) and Xnew.chunks is not None:
        if len(plan) > 1:
            raise ValueError(
                f"what={what!r} has several parts, which do not go into one dask array. "
                "Ask for 'f', 'mean', 'y', 'quantiles' or 'density'."
            )
        if not of_function:
            _check_rows(fit, Xnew, len(Xnew))
        found = _lazily(fit, Xnew, plan[0], random_seed, chunk_size)
        if not extend_inferencedata:
            return found
        return _extend(idata, fit, found, Xnew.data.name, predictions is not False)
    rows = rows_of(fit, Xnew)
    if not of_function:
        _check_rows(fit, Xnew, len(rows.X))
    if joint:
        if what not in ("f", "y"):
            raise ValueError(f"joint=True is for draws, not for {what!r}. Ask for 'f' or 'y'.")
        check_joint(rows)
        chunk_size = len(rows.X)
    noise = Noise(random_seed, fit.draws.n)
    arrays = carry_out(fit, plan, rows, noise, chunk_size, progressbar)
    if extend_inferencedata:
        inputs = _word_for(rows.X)
        elsewhere = Xnew is not None if predictions is None else predictions
        return _extend(idata, fit, arrays[0], inputs, elsewhere)
    if len(arrays) == 1:
        return arrays[0]
    return xr.Dataset({a.name: a for a in arrays})


def carry_out(
    fit: Fitted,
    plan: list[Part],
    rows: "Rows",
    noise: Noise,
    chunk_size: int | None = None,
    progressbar: bool = False,
) -> list[xr.DataArray]:
    """Work on the rows in chunks, and label what comes out."""
    step = chunk_size or _chunk(fit)
    pieces: list[list[np.ndarray]] = [[] for _ in plan]
    with progress("Predicting", len(rows.X), progressbar) as advance:
        for start in range(0, len(rows.X), step):
            X = rows.X[start : start + step]
            for into, block in zip(pieces, evaluate(fit, plan, X, start, noise), strict=True):
                into.append(block)
            advance(len(X))
    arrays = []
    for p, parts in zip(plan, pieces, strict=True):
        values = np.concatenate(parts, axis=len(p.lead))
        dims = [*p.lead, rows.dim, *p.tail]
        if taken := [n for n in (rows.dim, *rows.coords) if n in (*p.lead, *p.tail)]:
            raise ValueError(
                f"The rows of Xnew are called {taken[0]!r}, as another dimension of the result. "
                "Rename them."
            )
        coords = {d: c for d, c in p.coords.items() if d in dims} | rows.coords
        # Of classes the draws are numbers: here are their names, in that order.
        names = class_names(fit, None) if p.name == "y" else None
        attrs = {} if names is None else {"classes": np.asarray(names).tolist()}
        arrays.append(xr.DataArray(values, dims=dims, coords=coords, name=p.name, attrs=attrs))
    return arrays


def log_predictive_density(
    idata: Any,
    Xnew: Any,
    ynew: Any,
    *,
    var_name: str | None = None,
    likelihood: Any = None,
    num_samples: int | None = None,
    chunk_size: int | None = None,
    progressbar: bool = True,
    compile_kwargs: dict[str, Any] | None = None,
    model: Model | None = None,
) -> xr.DataArray:
    r"""
    Log predictive density of observations that the model has not seen.

    .. math:: \log \frac{1}{S} \sum_s \int p(y_* \mid f_*)\, p(f_* \mid u_s, \theta_s)\, df_*

    the logarithm of the mean over draws, not the mean of logarithms.

    With several outputs (:class:`Coregionalized`) a row has one density, the joint one of the
    outputs that it has: they share functions. The integral is exact with normal noise. For other
    families it is by quadrature over up to five functions. With more, and for
    ``Poisson(link="square")``, it is approximate (assumed density filtering).

    Parameters
    ----------
    idata : DataTree
        Draws.
    Xnew : array_like, shape (N, D), or None
        Inputs; None are those of the data.
    ynew : array_like, shape (N,) or (N, P)
        Observations; of P outputs, with nan where there is none.
    var_name, likelihood, num_samples, chunk_size, progressbar, compile_kwargs, model
        As in :func:`predict`.

    Returns
    -------
    DataArray, shape (N,)
        Its sum is a score of the model: higher is better.
    """
    mode = mode_of(compile_kwargs)
    lik = _likelihood_at(Xnew, likelihood, ynew)
    fit = Fitted(idata, model, var_name, lik, num_samples, mode, new=_row_dim(Xnew))
    rows = rows_of(fit, Xnew)
    _check_rows(fit, Xnew, len(rows.X))
    _check_chunk_size(chunk_size)
    y, _ = fit.likelihood.encode(ynew, class_names(fit, ynew))
    y = as_target(y, len(rows.X), "ynew", 1 + fit.likelihood.ndim_y, "Xnew")
    for dim in fit.y_dims[1:]:
        of_model = coord_labels(fit.coords_of([dim]), dim)
        check_output_order(fit.likelihood, dim, ("the model", of_model), ("ynew", ynew))
    fit.likelihood.check_observed(y)
    out = np.full(len(y), -np.inf)
    step = chunk_size or _chunk(fit)
    with progress("Scoring", len(y), progressbar) as advance:
        for start in range(0, len(y), step):
            at = slice(start, start + step)
            for some in fit.slabs(len(y[at]) * fit.n_functions):
                mu, gamma = fit.moments(some, rows.X[at])
                each = fit.log_predictive(some, mu, gamma, y[at], start)
                with np.errstate(invalid="ignore"):
                    out[at] = np.logaddexp(out[at], logsumexp(each, axis=0))
            advance(len(y[at]))
    if np.isnan(out).any():
        warnings.warn(
            f"The log predictive density of row {int(np.isnan(out).argmax())} is nan: parts of "
            "the likelihood's density underflow there. Check that row of Xnew and ynew.",
            skip_file_prefixes=PACKAGE,
        )
    out -= np.log(fit.draws.n)
    return xr.DataArray(out, dims=[rows.dim], coords=rows.coords, name="log_predictive_density")


def _mesh(devices: Any, mode: Any) -> Any:
    if devices is None:
        return None
    if mode is not None:
        raise ValueError("Devices take JAX, and compile_kwargs has a mode. Drop one of them.")
    mesh = mesh_of(devices)
    if mesh.is_multi_process:
        raise ValueError(
            "devices are of several processes, and each of these predicts at its own Xnew. "
            "Pass devices=jax.local_devices()."
        )
    return mesh


def _word_for(X: np.ndarray | DrawnRows) -> str:
    """Return a word that tells inputs from others."""
    if isinstance(X, DrawnRows):
        return "those of each draw"
    return sha256(np.ascontiguousarray(X)).hexdigest()


def _check_extended(idata: Any, what: str) -> None:
    if what not in ("f", "mean", "y"):
        raise ValueError(
            f"what={what!r} does not go into idata, whose groups are draws of one variable each. "
            "Ask for 'f', 'mean' or 'y', or leave extend_inferencedata out."
        )
    require_tree(idata)


def _extend(
    idata: xr.DataTree, fit: Fitted, found: xr.DataArray, inputs: str, predictions: bool
) -> xr.DataTree:
    """Write draws into a group, beside what is there for the same inputs.

    `inputs` is a word that tells them from others, as their rows may have no labels.
    """
    name = fit.name if found.name == "y" else f"{fit.name}_{found.name}"
    new = found.rename(name).assign_attrs(inputs=inputs).to_dataset()
    group = "predictions" if predictions else "posterior_predictive"
    write_beside(idata, group, new, "other inputs or draws")
    return idata


class Rows(NamedTuple):
    """New inputs, and what their rows are called."""

    X: Any  # an array, or DrawnRows where the model's inputs are random
    dim: str
    coords: dict[str, Any]


def rows_of(fit: Fitted, Xnew: Any) -> Rows:
    """Check new inputs, and take their labels off."""
    if Xnew is None:
        dim = fit.y_dims[0]
        return Rows(fit.rows, dim, fit.coords_of([dim]))
    dim = _row_dim(Xnew) or "point"
    coords: dict[str, Any] = {}
    if isinstance(Xnew, xr.DataArray):
        coords = {k: v for k, v in Xnew.coords.items() if v.dims == (dim,)}
    elif isinstance(Xnew, pd.DataFrame) and isinstance(Xnew.index, pd.MultiIndex):
        # One by one, as files take no MultiIndex.
        for i, name in enumerate(Xnew.index.names):
            level = np.asarray(Xnew.index.get_level_values(i))
            own = f"level_{i}" if name is None else str(name)
            coords[f"{own}_{i}" if own in coords else own] = (dim, level)
    elif isinstance(Xnew, pd.DataFrame):
        coords = {dim: np.asarray(Xnew.index)}
    elif isinstance(Xnew, Variable):
        dims = fit.model.named_vars_to_dims.get(Xnew.name) or (None,)
        dim = dims[0] or dim
        coords = {dim: list(c)} if (c := fit.model.coords.get(dim)) is not None else {}
    Xnew = coded(Xnew, fit.by, {} if fit.by is None else fit.groups(fit.by), "Xnew")
    order = _order(fit, Xnew)  # before values of columns that the model lacks
    X = as_inputs(Xnew, "Xnew")
    check_columns(X, fit.n_columns, "Xnew", "X")
    X = X[:, order]
    _check_groups(fit, X)
    return Rows(X, dim, coords)


def _check_groups(fit: Fitted, X: np.ndarray) -> None:
    """Raise where rows are of no group, or of no output."""
    for p in fit.observation.parts:
        if p.conditional.by is not None and (wrong := p.conditional.complaint(X, p.args)):
            raise ValueError(f"Xnew {wrong}")
        check_codes(X, p.conditional.codes, "Xnew")


def _row_dim(Xnew: Any) -> str | None:
    """Return the name that new inputs have for their rows."""
    if isinstance(Xnew, xr.DataArray) and Xnew.ndim:
        return str(Xnew.dims[0])
    if isinstance(Xnew, pd.DataFrame) and not isinstance(Xnew.index, pd.MultiIndex):
        return str(Xnew.index.name) if Xnew.index.name else None
    return None


def _order(fit: Fitted, Xnew: Any) -> list[int]:
    """Where in Xnew the columns of the data are."""
    names = column_names(Xnew, "Xnew", fit.model, numbers=True)
    order = match_columns(names, fit.columns, "Xnew", numbers=True)
    return order or list(range(fit.n_columns))


def _likelihood_at(Xnew: Any, likelihood: Any, ynew: Any = None) -> Likelihood | None:
    """Return what was passed as the likelihood, whose rows have to be in the order of Xnew."""
    lik = None if likelihood is None else as_likelihood(likelihood)
    check_row_order(lik, ("Xnew", Xnew), ("ynew", ynew))
    return lik


def _check_rows(fit: Fitted, Xnew: Any, n_rows: int) -> None:
    """Raise where a parameter has an entry for each row of the data, but not of Xnew."""
    rows = fit.observation.row_params
    if rows and Xnew is not None and fit.likelihood is fit.of_model:
        raise ValueError(fit.likelihood.anew(rows[0]))
    fit.check_rows(n_rows, "X" if Xnew is None else "Xnew")


def check_joint(rows: Rows) -> None:
    """Raise where a matrix of all rows would be too large."""
    if len(rows.X) > LARGEST_JOINT:
        raise ValueError(
            f"Xnew has {len(rows.X)} rows, and joint draws take a matrix of all of them. "
            f"Pass at most {LARGEST_JOINT} rows, or joint=False."
        )


def _check_chunk_size(size: int | None) -> None:
    if size is not None:
        check_number("chunk_size", size)


def _chunk(fit: Fitted) -> int:
    return int(np.clip(NUMBERS // max(fit.draws.n, 1), SMALLEST_CHUNK, LARGEST_CHUNK))


def _lazily(
    fit: Fitted, Xnew: xr.DataArray, part: Part, random_seed, chunk_size: int | None
) -> xr.DataArray:
    """Predict when the result is computed, for each chunk of a dask array."""
    if Xnew.ndim != 2:
        raise ValueError(
            f"Xnew has the dimensions {list(Xnew.dims)}, but two are needed. "
            "Put one point in a row and one input in a column."
        )
    dim, feature = Xnew.dims
    as_inputs(np.zeros((1, Xnew.sizes[feature]), Xnew.dtype), "Xnew")  # now, and not when computed
    check_columns(np.empty((1, Xnew.sizes[feature])), fit.n_columns, "Xnew", "X")
    Xnew = Xnew.isel({feature: _order(fit, Xnew)})
    seed = int(generator_of(random_seed).integers(2**63))
    # Where each chunk starts: what goes with the rows is cut there.
    number = xr.DataArray(np.arange(len(Xnew)), dims=[dim]).chunk({dim: Xnew.chunksizes[dim]})

    def block(X: np.ndarray, number: np.ndarray) -> np.ndarray:
        if not len(X):
            return np.empty((0, *trial.shape[1:]), trial.dtype)
        X = as_inputs(X, "Xnew")
        _check_groups(fit, X)
        noise = Noise([seed, int(number[0])], fit.draws.n)
        step, pieces = chunk_size or _chunk(fit), []
        for i in range(0, len(X), step):
            pieces += evaluate(fit, [part], X[i : i + step], int(number[i]), noise)
        return np.moveaxis(np.concatenate(pieces, axis=len(part.lead)), len(part.lead), 0)

    # A trial of one row gives the type and the sizes of what comes out. It is one of the data, as
    # elsewhere observations may be too large to draw.
    (row,) = fit.call("row", FIRST, lambda: ([], [], [fit.observation.X[:1]]))
    trial = block(row[0], np.zeros(1, int))
    core = [*part.lead, *part.tail]
    out = xr.apply_ufunc(
        block,
        Xnew.chunk({feature: -1}),
        number,
        input_core_dims=[[feature], []],
        output_core_dims=[core],
        dask="parallelized",
        output_dtypes=[trial.dtype],
        dask_gufunc_kwargs={"output_sizes": dict(zip(core, trial.shape[1:], strict=True))},
    )
    out = out.transpose(*part.lead, dim, *part.tail)
    coords = {d: c for d, c in part.coords.items() if d in core}
    return out.assign_coords(coords).rename(part.name)
