"""What a process is made of, checked."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.gp.cov import Covariance
from pymc.gp.mean import Add, Prod
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import (
    check_dim,
    check_distinct,
    kind,
    known_value,
)
from pymc_vsgp.inducing.base import InducingPrior, InducingVariables
from pymc_vsgp.inducing.covariates import Covariates
from pymc_vsgp.inducing.kernels import (
    check_codes,
    check_distinct_places,
    check_methods,
    codes_of,
)
from pymc_vsgp.inducing.spectrum import active_columns, distinct_columns
from pymc_vsgp.model.columns import name_columns
from pymc_vsgp.rvs import check_graphs


def check_points(gp: Any, model, Xu: np.ndarray, names: Any) -> None:
    """Raise unless values of a process at these inputs have a covariance with a factor."""
    check_distinct(Xu)
    check_functions(gp, model, Xu, "Xu")
    check_distinct_places(Xu, distinct_columns(gp.cov_func, Xu.shape[1]), names)


def check_functions(gp: Any, model, Xu: np.ndarray, what: str) -> None:
    """Raise unless the kernel and the mean can be evaluated at these inputs, in this model."""
    columns = Xu.shape[1]
    if isinstance(gp.cov_func, Covariance) and gp.cov_func.input_dim != columns:
        raise ValueError(
            f"The covariance function has input_dim {gp.cov_func.input_dim}, but {what} has "
            f"{columns} columns. Give it input_dim={columns}, with active_dims to use some of them "
            "only."
        )
    check_methods(gp.cov_func)
    check_codes(Xu, codes_of(gp.cov_func), what)
    diagonal = pt.as_tensor(gp.cov_func(pt.constant(Xu), diag=True))
    if (values := known_value(diagonal)) is not None:
        # Zero at some places is fine: a line is known where it crosses zero.
        bad = ~(np.isfinite(values) & (values >= 0.0)) | (not values.any())
        if bad.any():
            raise ValueError(
                f"The covariance function gives the variance {values[bad][0]:g}, so there is no "
                "function to learn. Pass a cov_func with positive variance."
            )
    # What the two raise, they raise here, before the model has new variables.
    for which, function in (("cov_func", gp.cov_func), ("mean_func", _mean_of(gp.mean_func))):
        try:
            value = function(pt.constant(Xu))
        except (IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"{which} cannot be evaluated at {what}, shape {Xu.shape}: {error}. "
                "Give its parameters one entry for each column that it uses."
            ) from error
        check_graphs([pt.as_tensor(value)], model)


def mean_at(mean_func: Any, X: TensorVariable) -> TensorVariable:
    """Return the mean at each row.

    Some of pm.gp.mean return a scalar, an int vector or, of data of any shape, a column. So parts
    of a sum or a product are made vectors before they meet.
    """
    if type(mean_func) in (Add, Prod):
        one, other = (mean_at(part, X) for part in (mean_func.m1, mean_func.m2))
        return one + other if type(mean_func) is Add else one * other
    mean = pt.as_tensor(mean_func(X))
    mean = mean.ravel() if mean.type.ndim > 1 else mean
    return pt.broadcast_to(mean, (X.shape[0],)).astype("float64")


def _mean_of(mean_func: Any) -> Callable[[TensorVariable], TensorVariable]:
    """Return the mean, which raises where it has several columns."""

    def mean(X):
        found = pt.as_tensor(mean_func(pt.concatenate([X, X])))  # a single row would hide them
        if found.type.shape[1:] not in ((), (1,)):
            raise ValueError(f"it has {found.type.shape[1]} columns")
        return found

    return mean


def check_one_kind(Xu: Any, inducing: Any) -> None:
    """Raise unless there is one kind of inducing variables."""
    if (Xu is None) == (inducing is None):
        raise TypeError(
            "A process has inducing points or inducing features. Pass one of Xu and inducing, for "
            "example Xu=vsgp.inducing.kmeans(X, 50) or inducing=vsgp.inducing.Fourier(...)."
        )
    if inducing is not None and not isinstance(inducing, InducingVariables):
        raise TypeError(
            f"inducing is {kind(inducing)}, not a type of inducing variables. "
            "Pass a vsgp.inducing.Fourier, say, and inducing points as Xu."
        )


def check_groups(model, by: Any, inducing: Any, n_outputs: int, output_dims: Any) -> int:
    """Return the number of groups, of which there are none without a dimension `by`."""
    if by is None:
        return 0
    if not isinstance(by, str) or by not in model.dim_lengths:
        raise ValueError(
            f"by is {by!r}, which is no dimension of the model. Name one whose entries are the "
            "groups: pm.Model(coords={'village': villages}), and by='village'."
        )
    if inducing is not None:
        raise ValueError(
            "by is for inducing points, which the functions of all groups share. Pass Xu in place "
            "of inducing."
        )
    if n_outputs != 1 or output_dims is not None:
        raise ValueError(
            "by makes one function for each group, and n_outputs several for each observation. "
            "Pass one of the two."
        )
    number = known_value(model.dim_lengths[by])
    if number is None or int(number) < 1:
        raise ValueError(f"Dimension {by!r} has no length yet. Pass coords with its labels.")
    return int(number)


def checked_kind(gp: Any, model, name: str, inducing: InducingVariables, inducing_dim: str):
    """Check inducing variables that are not points, and name their dimension."""
    inducing = inducing.of_kernel(gp.cov_func)
    check_functions(gp, model, inducing.example, "inducing")
    length = inducing.n_inducing
    check_dim(model, inducing_dim, length, "the vector of inducing variables")
    if inducing_dim not in model.dim_lengths:
        model.add_coord(inducing_dim, length=length)
    feature_dim = model.name_for(f"{name}_feature")
    if inducing.columns is not None:
        name_columns(model, feature_dim, inducing.n_columns, inducing.columns)
    return inducing


def covariates_of(gp: Any, model, name: str, kind: InducingPrior, Xu: Any) -> Covariates | None:
    """Return the columns of Xu that the mean uses and the kernel does not, if any.

    Data that the user made stay as they are.
    """
    own = model.named_vars.get(model.name_for(f"{name}_Xu"))
    if own is None or own is Xu or own not in kind.inputs or own not in ancestors([kind.mean]):
        return None
    return Covariates.of(own, active_columns(gp.cov_func, own.type.shape[1]))


def conditioning_process(gp: Any, given: dict[str, Any] | None) -> Any:
    """Return the process that has the inducing values: this one, or the sum that `given` names."""
    if not given:
        return gp
    todo = "Pass given={'gp': total}, where total is the sum that has the inducing values."
    if not isinstance(given, dict):
        raise TypeError(f"given is {kind(given)}, not a dict. {todo}")
    if unknown := set(given) - {"gp"}:
        raise ValueError(
            f"given has the entries {sorted(unknown)}, which are not used here. {todo}"
        )
    if not isinstance(given["gp"], type(gp)):
        raise TypeError(
            f"given['gp'] is {kind(given['gp'])}. "
            "Pass the VariationalSparse that has the inducing values."
        )
    return given["gp"]
