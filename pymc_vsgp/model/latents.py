"""Observations of one or several latent functions.

A likelihood may depend on several functions at each input: those of one process with
``n_outputs``, those of several processes, or both. Everything here takes a list of processes; a
process alone is a list of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import (
    as_matrix,
    as_target,
    check_columns,
    check_dim,
    check_dim_name,
    check_names,
    check_new_name,
    check_number,
    column_names,
    is_symbolic,
    kind,
    known_value,
    model_of,
)
from pymc_vsgp.engine import observe, total
from pymc_vsgp.inducing.base import InducingPrior
from pymc_vsgp.inducing.covariates import Covariates
from pymc_vsgp.inducing.graphs import Moments
from pymc_vsgp.inducing.kernels import warn_of_white_noise
from pymc_vsgp.inducing.repeats import ByValue
from pymc_vsgp.inducing.spectrum import active_columns
from pymc_vsgp.labels import coord_labels, dims_of, output_coords
from pymc_vsgp.likelihoods import Likelihood, as_likelihood
from pymc_vsgp.likelihoods.base import check_param_shapes, check_row_order
from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.model.columns import (
    check_own_data,
    coded_for_all,
    coded_with,
    in_order,
    keep_names,
)
from pymc_vsgp.ops.mapped import mapped_array
from pymc_vsgp.rvs import check_graphs, check_own


class Observed(NamedTuple):
    """A likelihood of some processes, and its inputs."""

    likelihood: Likelihood
    X: TensorVariable
    processes: tuple


@dataclass
class Prior:
    """What `prior` of a process leaves behind for everything that conditions on u."""

    u: TensorVariable
    kind: InducingPrior
    n_columns: int
    n_inducing: int
    feature_dim: str
    n_outputs: int = 1
    output_dim: str | None = None
    covariates: Covariates | None = None
    likelihoods: dict[str, Observed] = field(default_factory=dict)


def likelihood(
    name: str,
    likelihood: Any,
    processes: Any,
    X: Any,
    y: Any,
    *,
    dims: str | Sequence[str] | None = None,
    block_size: int | bool | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""
    Put observations of several latent functions into the model.

    As :meth:`VariationalSparse.likelihood`, for a likelihood that depends on more than one function
    at each input. The log density of the observed variable at each point is the expectation of
    :math:`\log p(y_n \mid f_n, g_n, \ldots)` over the functions given the inducing values.

    Parameters
    ----------
    name : str
        Name of the observed variable.
    likelihood : Likelihood or callable
        One of :mod:`pymc_vsgp.likelihoods` with as many latent functions, or a function of them
        that returns a PyMC distribution.
    processes : list of VariationalSparse
        The processes, in the order in which the likelihood takes their functions. One with
        ``n_outputs=K`` stands for K functions. Kernels, means and inducing inputs may all differ.
    X : array_like or pm.Data, shape (N, D)
        Inputs of all of them; a kernel with ``active_dims`` sees some of the columns only. Columns
        are matched by name where these and those of Xu have names.
    y : array_like or pm.Data, shape (N,) or (N, P)
        Observations, in the order of the rows of X. Labels in another order are an error.
    dims : str or sequence of str, optional
        Dimension of the observations. By default that of `X` where `X` is a ``pm.Data`` with
        dims, else ``{name}_obs``.
    block_size : int or False, optional
        As in :meth:`VariationalSparse.likelihood`.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    y : TensorVariable, shape (N,) or (N, P)

    Examples
    --------
    .. code-block:: python

        with pm.Model():
            mean = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            mean.prior("u_mean", Xu=Xu)
            scale = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=3.0))
            scale.prior("u_scale", Xu=Xu)
            vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [mean, scale], X=X, y=y)
    """
    gps = check_processes(processes, "likelihood")
    model = model_with(gps, model)
    lik, X_tensor, y, y_value, dims = _place(model, gps, name, likelihood, X, y, dims, block_size)
    at_X = moments(gps, X_tensor, *_layouts(gps, model.name_for(name), X_tensor, block_size))
    with model:
        observed = observe(name, lik, at_X, block_size=block_size, observed=y, dims=dims)
    _remember(gps, model.name_for(name), lik, X if is_symbolic(X) else X_tensor)
    return observed


def potential(name, likelihood, processes, X, y, *, block_size=None, model=None):
    """Add the same term as `likelihood` as a bare ``pm.Potential``."""
    gps = check_processes(processes, "potential")
    model = model_with(gps, model)
    if not is_symbolic(y):
        check_new_name(model, f"{name}_y")
    lik, X_tensor, y, y_value, dims = _place(model, gps, name, likelihood, X, y, None, block_size)
    with model:
        if not is_symbolic(y):
            y = pm.Data(f"{name}_y", y_value, dims=dims)
        at_X = moments(gps, X_tensor, *_layouts(gps, model.name_for(name), X_tensor, block_size))
        term = pm.Potential(name, total(lik, at_X, y, block_size))
    _remember(gps, model.name_for(name), lik, X if is_symbolic(X) else X_tensor)
    return term


def _remember(gps: Sequence, name: str, lik: Likelihood, X: TensorVariable) -> None:
    """Let each process know the likelihood that new observations follow."""
    known = Observed(lik, X, tuple(gps))
    for gp in gps:
        gp._prior.likelihoods[name] = known


def predictive(
    name: str,
    processes: Any,
    Xnew: Any,
    likelihood: Any = None,
    *,
    given: dict[str, Any] | None = None,
    **kwargs,
) -> TensorVariable:
    """
    Put new observations of several latent functions at new inputs into the model.

    It is to :func:`likelihood` what :meth:`VariationalSparse.predictive` is for one process.

    Parameters
    ----------
    name : str
        Name of the variable.
    processes : list of VariationalSparse
        The processes, as in :func:`likelihood`.
    Xnew : array_like or pm.Data, shape (N, D)
        New inputs.
    likelihood : Likelihood, callable or str, optional
        The distribution of an observation: by default that of the only `likelihood` of these
        processes. With several, the name of one.
    given : dict, optional
        As in :meth:`VariationalSparse.conditional`, for one process.
    **kwargs
        Passed to the distribution's constructor, for example ``dims``.

    Returns
    -------
    y : TensorVariable
    """
    gps = check_processes(processes, "predictive", need_prior=given is None)
    if given is None:
        Xnew = coded_for_all(model_of(None), gps, Xnew)
    at_new = [gp._conditional(Xnew, given, True, "predictive") for gp in gps]
    lik = _predictive_likelihood(gps, likelihood, Xnew, given)
    _check_number(lik, gps, given)
    check_new_name(model_of(None), name)
    check_graphs(lik.params.values(), model_of(None), anew=True)
    return observe(name, lik, at_new, **kwargs)


def moments(
    gps: Sequence, X: TensorVariable, layouts: Sequence, order: ByValue | None
) -> list[Moments]:
    """Moments of the functions of each process at the rows of X."""
    pairs = zip(gps, layouts, strict=True)
    return [gp._moments(gp._prior, X, layout=layout, order=order) for gp, layout in pairs]


def _layouts(
    gps: Sequence, name: str, X: TensorVariable, block_size: int | bool | None
) -> tuple[list, ByValue | None]:
    """Return how the data lie, and which rows are equal, where that makes all sums faster."""
    none = [None] * len(gps)
    value = None if block_size is False or mapped_array(X) is not None else known_value(X)
    if value is None:
        return none, None
    value = np.asarray(value, dtype="float64")
    found = [gp._prior.kind.layout(value) for gp in gps] if block_size is None else none
    if any(layout is None for layout in found):
        columns: set[int] = set()
        for gp in gps:
            n = value.shape[1] - (gp._prior.kind.by is not None)
            columns.update(active_columns(gp.cov_func, n))
        return none, ByValue.of(value, f"{name}_order", sorted(columns))
    return found, None


def check_processes(processes: Any, method: str, need_prior: bool = True) -> list:
    """Return a list of processes, each with its inducing values."""
    gps = list(processes) if isinstance(processes, list | tuple) else [processes]
    if not gps:
        raise ValueError("The list of processes is empty. Pass at least one VariationalSparse.")
    for gp in gps:
        if not hasattr(gp, "_require_prior"):
            raise TypeError(
                f"The processes hold one {kind(gp)}. "
                "Pass a VariationalSparse, or a list of them: [gp1, gp2]."
            )
        if need_prior:
            gp._require_prior(method)
    if len({id(gp) for gp in gps}) < len(gps):
        raise ValueError(
            "The list holds the same process twice, and so the same function. "
            "Make another VariationalSparse, or use prior(..., n_outputs=2) for two functions."
        )
    return gps


def model_with(gps: Sequence, model: Any) -> pm.Model:
    """Return the model, or that on the context stack; raise unless it has these processes."""
    model = model_of(model)
    todo = (
        "Use the model that this process was made in, or build it again by a function; "
        "vsgp.predict takes copies."
    )
    check_own([gp._prior.u for gp in gps], model.root, todo)
    return model


def _place(model, gps, name, likelihood, X, y, dims, block_size):
    """Check the data and put them into the model."""
    check_new_name(model, name)
    if block_size is not None and block_size is not False:
        check_number("block_size", block_size)
    lik = as_likelihood(likelihood)
    check_row_order(lik, ("coords", coord_labels(model.coords, dims)), ("X", X), ("y", y))
    X = coded_with(model, gps, X)
    X_tensor, X_value = as_matrix(X, "X")
    check_graphs([X_tensor, *lik.params.values()], model)
    for gp in gps:
        if X_value is not None:
            what = "Xu" if gp._prior.kind.inputs else "inducing"
            what += "" if len(gps) == 1 else f" of {gp._prior.u.name!r}"
            check_columns(X_value, gp._prior.n_columns, "X", what)
    names = column_names(X, "X", model, numbers=True)
    X_tensor, X_value = in_order(model, gps, names, X_tensor, X_value, "X")
    is_array = not is_symbolic(X)
    check_own_data([Xu for gp in gps for Xu in gp._prior.kind.inputs], [X_tensor])
    _check_number(lik, gps)
    if not lik.of_output.takes_white_noise:
        warn_of_white_noise([gp.cov_func for gp in gps])
    given = y
    lik, y, named = _encode(gps, lik, y, model.coords)
    n_rows = None if X_value is None else len(X_value)
    y_value = _as_observed(as_target(y, n_rows, ndim=1 + lik.ndim_y))
    n_data = len(y_value)
    check_param_shapes(lik, n_data)
    lik.check_data(y_value)
    check_names("dims", dims)
    first, *rest = [dims] if isinstance(dims, str) else list(dims or [None])
    if len(rest) > lik.ndim_y:
        raise ValueError(
            f"dims names {1 + len(rest)} dimensions, but an observation has {1 + lik.ndim_y}. "
            "Name one for the rows of X" + (", then one for the outputs." if lik.ndim_y else ".")
        )
    if first is None:
        known = dims_of(model, X) or (None,)
        first = known[0] or model.name_for(f"{name}_obs")
    if lik.ndim_y and not rest:
        rest = [model.name_for(f"{name}_output")]
    if is_array:
        check_new_name(model, f"{name}_X")
    if X_value is not None:
        check_dim(model, first, n_data, "X")
    for dim, length in zip(rest, y_value.shape[1:], strict=True):
        check_dim(model, dim, length, "y.T")
    for gp in gps:  # last of the checks: a process would remember data that are refused
        if X_value is None and block_size is not False:
            _check_follows(gp, X_tensor)
        gp._prior.kind.cover(X_value)
    for gp in gps:
        if gp._prior.covariates is not None and X_value is not None:
            gp._prior.covariates.fill(X_value)
    for dim, classes in named.items():
        model.set_dim(dim, len(classes), coord_values=classes)
    if first not in model.dim_lengths:
        model.add_coord(first, length=n_data if is_array else X_tensor.shape[0])
    for dim, length in zip(rest, y_value.shape[1:], strict=True):
        if dim not in model.dim_lengths:
            model.add_coord(dim, output_coords(given, dim), length=length)
    keep_names(model, gps, names)
    if mapped_array(X_tensor) is not None:
        # pm.Data would copy it into memory, and a trace into a file.
        X_tensor.name = model.name_for(f"{name}_X")
    elif is_array:
        with model:
            X_tensor = pm.Data(f"{name}_X", X_value, dims=(first, gps[0]._prior.feature_dim))
    if not is_symbolic(y):
        y = y_value
        if lik.ndim_y:  # a variable: PyMC would impute the missing entries of an array
            y = pt.constant(y_value)
    return lik, X_tensor, y, y_value, (first, *rest)


def _as_observed(y: np.ndarray) -> np.ndarray:
    """Return whole numbers as real ones where PyMC, which makes them int32, would wrap around."""
    held = np.iinfo("int32")
    large = y.dtype.kind == "i" and y.size and (y.min() < held.min or y.max() > held.max)
    return y.astype("float64") if large else y


def _check_follows(gp, X: TensorVariable) -> None:
    """Raise unless sums over the data have a gradient in X, which depends on random variables."""
    prior = gp._prior
    given, _ = prior.kind.given(prior.u, gp.cov_func, gp._mean_at, X)
    if not given.follows_X:
        todo = "Leave by out of prior." if given.by else "Pass Xu=... to prior."
        raise ValueError(f"Inputs that are random variables take inducing points. {todo}")


def _check_number(lik: Likelihood, gps: Sequence, given: dict | None = None) -> None:
    gps = [given["gp"]] if given else gps
    number = sum(gp._prior.n_outputs for gp in gps)
    if lik.n_latent == number == 1 and (dim := gps[0]._prior.output_dim):
        raise ValueError(
            f"The function has the dimension {dim!r}, which {type(lik).__name__} does not take. "
            "Leave output_dims out of prior."
        )
    if lik.n_latent is None or lik.n_latent == number:
        return
    functions = "function" if lik.n_latent == 1 else "functions"
    have = "there is one" if number == 1 else f"there are {number}"
    if lik.n_latent == 1:
        todo = "Pass a single process, without n_outputs."
    else:
        todo = (
            f"Use gp.prior(..., n_outputs={lik.n_latent}), or pass {lik.n_latent} processes as in "
            "vsgp.likelihood(name, likelihood, [gp1, gp2], X=X, y=y)."
        )
    raise ValueError(
        f"{type(lik).__name__} needs {lik.n_latent} latent {functions}, but {have}. {todo}"
    )


def _encode(gps: Sequence, lik: Likelihood, y: Any, coords: Any) -> tuple[Likelihood, Any, dict]:
    """Code labels as numbers; name the classes in lik, or say what coords functions get."""
    if is_symbolic(y):
        return lik, y, {}
    dim = gps[0]._prior.output_dim if len(gps) == 1 else None
    y, classes = lik.encode(y, coords.get(dim))
    if dim is not None and coords.get(dim) is None and classes is not None:
        return lik, y, {dim: tuple(classes)}
    if dim is None and classes is not None:
        lik = lik.replace()
        lik.classes = tuple(classes)
    return lik, y, {}


def known_likelihood(gps: Sequence, name: str | None, given: dict | None = None) -> Observed:
    """Return the likelihood of these processes with that name, or the only one."""
    gp = given["gp"] if given else gps[0]
    known = gp._require_prior("predictive").likelihoods
    if not known:
        raise ValueError(
            "This process has no likelihood that an observation could follow. "
            "Pass one, for example likelihood=vsgp.Poisson()."
        )
    if name is None and len(known) > 1:
        raise ValueError(
            f"This process has {len(known)} likelihoods. "
            f"Say which one an observation follows: pass one of {list(known)}."
        )
    full = next(iter(known)) if name is None else name
    full = full if full in known else model_of(None).name_for(full)
    if full not in known:
        raise ValueError(
            f"This process has no likelihood named {name!r}. Pass one of {list(known)}."
        )
    processes = known[full].processes
    if not given and [id(p) for p in processes] != [id(p) for p in gps]:
        number = "one process" if len(processes) == 1 else f"{len(processes)} processes"
        raise ValueError(
            f"The likelihood {full!r} is of {number}, and these are not the same. Pass the "
            "list that was passed to vsgp.likelihood to vsgp.predictive(name, [gp1, gp2], ...)."
        )
    return known[full]


def _predictive_likelihood(gps, likelihood, Xnew, given) -> Likelihood:
    X = None
    if likelihood is None or isinstance(likelihood, str):
        likelihood = known_likelihood(gps, likelihood, given)
    if isinstance(likelihood, Observed):
        likelihood, X, _ = likelihood
    lik = as_likelihood(likelihood)
    if isinstance(lik, Mixed) and (n_outputs := lik.n_outputs) is not None:
        lik.check_widths(n_outputs)
    if X is not None and _are_same(Xnew, X):
        return lik
    if (value := known_value(Xnew)) is not None:
        try:
            check_param_shapes(lik, len(value), "Xnew")
        except ValueError as error:
            raise ValueError(f"{error} For example likelihood=vsgp.{lik.title}(...).") from None
    if X is not None and (rows := [n for n in lik.params if lik._goes_with_rows(n)]):
        raise ValueError(lik.anew(rows[0]))
    return lik


def _are_same(Xnew: Any, X: TensorVariable) -> bool:
    """Whether new inputs are those of a likelihood, and stay so where ``pm.set_data`` is used."""
    if isinstance(Xnew, Variable) and not isinstance(Xnew, Constant):
        return equal_computations([Xnew], [X])
    old, new = known_value(X), known_value(Xnew)
    return old is not None and new is not None and np.array_equal(new, old)


def output_coord(model: pm.Model, name: str, n_outputs: Any, output_dims: str | None) -> str | None:
    """Check the number of functions of a process, and return the name of their dimension."""
    check_number("n_outputs", n_outputs)
    check_dim_name("output_dims", output_dims)
    if n_outputs == 1 and output_dims is None:
        return None
    dim = output_dims if output_dims is not None else model.name_for(f"{name}_output")
    known = known_value(model.dim_lengths[dim]) if dim in model.dim_lengths else None
    if known is not None and int(known) != n_outputs:
        raise ValueError(
            f"Dimension {dim!r} has length {known}, but n_outputs is {n_outputs}. "
            "Choose another name for the dimension, or as many functions."
        )
    return dim


def inducing_coord(
    model: pm.Model, name: str, inducing_dims: str | None, others: Sequence[str | None]
) -> str:
    """Return the name of the dimension of inducing values, which is none of the others."""
    check_dim_name("inducing_dims", inducing_dims)
    dim = inducing_dims if inducing_dims is not None else model.name_for(f"{name}_inducing")
    if dim in others:
        raise ValueError(
            f"{dim!r} is the dimension of the functions, and that of their inducing values. "
            "Pass another name as inducing_dims."
        )
    return dim
