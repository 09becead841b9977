"""The kernel as numpy functions, with values for the variables that it depends on."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.initial_point import make_initial_point_expression
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, explicit_graph_inputs

from pymc_vsgp.checks import check_kernel, check_point
from pymc_vsgp.compile import ONCE, evaluate, function
from pymc_vsgp.inducing.kernels import check_methods
from pymc_vsgp.rvs import is_drawn


def draws_of(graphs: Any, draws: int, random_seed: Any) -> Any:
    """Return draws of what depends on the parameters of a kernel, from their prior."""
    try:
        return pm.draw(graphs, draws, random_seed=random_seed, mode=ONCE)
    except NotImplementedError:
        raise ValueError(
            "A parameter of the kernel has a prior that cannot be drawn from, such as pm.HalfFlat. "
            "Give it a proper prior, or choose the inducing variables yourself."
        ) from None


def draws_or_start(graphs: list[Variable], draws: int) -> list[np.ndarray]:
    """Return draws as `draws_of` does, or the initial values where there are none."""
    try:
        return pm.draw(graphs, draws, random_seed=0, mode=ONCE)
    except NotImplementedError:
        return [np.asarray(value)[None] for value in evaluate(_give_values(graphs, {}, set()))]


def compile_kernel(
    cov_func: Callable[..., Variable], columns: int, point: Mapping[str, Any] | None
) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]:
    """Return functions for one column of the kernel matrix, and for its diagonal."""
    check_kernel(cov_func)
    check_methods(cov_func)
    needed = getattr(cov_func, "input_dim", columns)
    if needed > columns:
        raise ValueError(
            f"cov_func takes {needed} columns, X has {columns}. "
            "Set `input_dim` of the kernel to the columns of X."
        )
    inputs = pt.tensor(dtype="float64", shape=(None, columns))
    pivot = pt.tensor(dtype="float64", shape=(1, columns))
    outputs = [cov_func(inputs, pivot)[:, 0], cov_func(inputs, diag=True)]
    column, diagonal = _give_values(outputs, check_point(point), {inputs, pivot})
    # M calls do not repay what compiling to machine code costs: on numba, half a minute at worst
    # against a few milliseconds a call for 20000 rows.
    return function([inputs, pivot], column), function([inputs], diagonal)


def _give_values(
    outputs: list[Variable], point: dict[str, Any], arguments: set[Variable]
) -> list[Variable]:
    """Replace the variables that `point` names, then the random ones by their initial values."""
    named = {
        variable: _as_constant(variable, point[variable.name])
        for variable in ancestors(outputs)
        if variable.name in point and variable not in arguments
    }
    if named:
        outputs = graph_replace(outputs, named, strict=False)
    # The generator that a random variable hands on is an output of it too, without dimensions.
    random = [v for v in ancestors(outputs) if is_drawn(v) and hasattr(v.type, "ndim")]
    if random:
        model = pm.Model.get_context(error_if_none=False)
        initvals = {} if model is None else model.rvs_to_initial_values
        values = make_initial_point_expression(
            free_rvs=random,
            rvs_to_transforms={},
            initval_strategies={v: _strategy(v, initvals) for v in random},
        )
        outputs = graph_replace(outputs, dict(zip(random, values, strict=True)), strict=False)
    for variable in explicit_graph_inputs(outputs):
        known = isinstance(variable, Constant | SharedVariable) or variable in arguments
        if not known:
            raise ValueError(
                f"cov_func depends on {variable.name!r}, which has no value. "
                f"Give it one with point={{{variable.name!r}: ...}}."
            )
    return outputs


def _strategy(variable: Variable, initvals: Mapping[Variable, Any]) -> Any:
    """Return the start the user set for a random variable, or a draw-free one."""
    strategy = initvals.get(variable)
    if isinstance(strategy, str) or strategy is None:
        # PyMC falls back on a draw where there is no support point, which no seed would repeat.
        try:
            pm.distributions.distribution.support_point(variable)
        except NotImplementedError:
            raise ValueError(
                f"The random variable {variable.name!r} of cov_func has no typical value. "
                f"Give it one with point={{{variable.name!r}: ...}}."
            ) from None
        return "support_point"
    return strategy


def _as_constant(variable: Variable, value: Any) -> Variable:
    array = np.asarray(value).astype(variable.type.dtype)
    if array.ndim != variable.type.ndim:
        raise ValueError(
            f"point[{variable.name!r}] has shape {array.shape}, but the variable has "
            f"{variable.type.ndim} dimensions. Pass a single value of it, not draws."
        )
    return pt.constant(array, dtype=variable.type.dtype)
