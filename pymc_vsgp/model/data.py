"""The data of a model, checked again before use: ``pm.set_data`` may have changed them."""

import pymc as pm

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise

from pymc_vsgp.checks import (
    as_inputs,
    as_matrix,
    as_target,
    check_distinct,
    column_names,
    known_value,
    match_columns,
    names_of,
)
from pymc_vsgp.engine.pointwise import ObservationRV
from pymc_vsgp.inducing.kernels import check_distinct_places
from pymc_vsgp.likelihoods.base import check_lengths, check_param_shapes
from pymc_vsgp.model.observation import Observation, observations
from pymc_vsgp.ops.runs import by_value
from pymc_vsgp.rvs import refuse_minibatches


def check_data(model: pm.Model) -> None:
    """Raise where data of a sparse process are not what its likelihood takes.

    Rows with equal inputs are found again.
    """
    refuse_minibatches(ancestors([*model.rvs_to_values.values(), *model.potentials]), "The model")
    for rv in model.free_RVs:
        if isinstance(rv.owner.op, ObservationRV):
            raise ValueError(
                f"{rv.name!r} is a new observation, and would be sampled as a parameter. "
                "Call predictive after sampling."
            )
    for o in observations(model).values():
        _check_dims(model, o, _check_observation(o))
        _check_columns(model, o)


def _check_dims(model: pm.Model, o: Observation, shape: tuple[int, ...]) -> None:
    """Raise where there are more or fewer coordinates than rows: draws couldn't be labeled."""
    for dim, n in zip(model.named_vars_to_dims.get(o.name, ()), shape, strict=False):
        known = model.coords.get(dim)
        if known is not None and len(known) != n:
            raise ValueError(
                f"{o.name!r} has {n} entries along {dim!r}, which has {len(known)} coordinates. "
                f"Build the data with pm.Data(..., dims={dim!r}), and pass coords to pm.set_data."
            )


def _check_columns(model: pm.Model, o: Observation) -> None:
    """Raise where coordinates that came with new data say that the columns are in another order."""
    for part in o.parts:
        known = names_of(model.coords.get(f"{part.u.name}_feature"))
        if match_columns(column_names(o.X, o.X.name, model), known, o.X.name):
            raise ValueError(
                f"The columns of {o.X.name} are in another order than those of the model, "
                f"{list(known or ())}. Pass them to pm.set_data in that order: it takes no names."
            )


def _check_observation(o: Observation) -> tuple[int, ...]:
    """Return the shape of y.

    Raises where inputs, observations or parameters of a likelihood are not what it takes.
    """
    what = getattr(o.X, "name", None) or f"X of {o.name!r}"
    X = as_matrix(o.X, what)[1]
    n, ndim = None if X is None else len(X), 1 + o.likelihood.ndim_y
    y = as_target(_as_given(o.y), n, o.name, ndim, what)
    try:
        o.likelihood.check_params()
        check_param_shapes(o.likelihood, len(y), what)
    except (AssertionError, ValueError):
        check_lengths(o.likelihood, what)
        raise
    o.likelihood.check_data(y)
    if X is not None and isinstance(o.order, SharedVariable):
        columns = sorted({d for part in o.parts for d in part.conditional.active})
        o.order.set_value(by_value(X, columns)[0])
    for part in o.parts:
        if X is not None and (wrong := part.conditional.complaint(X, part.args)):
            raise ValueError(f"{what} {wrong}")
        Xu = known_value(part.points)
        if Xu is not None and Xu.size:
            check_distinct(as_inputs(Xu, getattr(part.points, "name", None) or "Xu"))
            check_distinct_places(Xu, part.conditional.distinct, None)
    return y.shape


def _as_given(y: Variable) -> Variable:
    """Return observations as they were set: PyMC cuts those of counts to whole numbers."""
    cast = y.owner and isinstance(y.owner.op, Elemwise) and isinstance(y.owner.op.scalar_op, Cast)
    return y.owner.inputs[0] if cast else y
