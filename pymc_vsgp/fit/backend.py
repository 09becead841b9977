"""Which backend NUTS takes: the one that is done first, compiling included.

What compiling took is kept beside what was compiled, so that both go together.
"""

import importlib.util
import json
import os
import warnings

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from pymc.model.core import Model
from pytensor import config
from pytensor.graph.traversal import ancestors
from pytensor.scalar import math as scalar_math
from pytensor.scalar.basic import Log, Log1p
from scipy.spatial import cKDTree

from pymc_vsgp.checks import known_value
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.inducing.coordinates import Rotated, has_matrix
from pymc_vsgp.inducing.neighbors import PLACES
from pymc_vsgp.model.variable import (
    inducing_variables,
    is_independent,
    is_sparse,
    number_together,
    value_shapes,
)
from pymc_vsgp.ops.mapped import mapped_array
from pymc_vsgp.ops.row_integral import RowIntegral

LEAPFROGS, FLOPS = 9, 2e10  # of a draw; a second, of one core
MANY = 1000  # coefficients, above which a matrix of M^2 in each gradient has to pay
MANY_LEAPFROGS = 25  # of a draw of more, whose correlations are left as they are
FACTOR, ROW = 9.0, 1e3
"""Operations: of the coordinates, over M^3; of a row and function, less its integrals. Measured on
the models of `benchmarks/waiting.py`."""
NUMBER, SLOW = 2.5, 200.0
"""Operations of a number at a node of a callable's quadrature, and of its logarithm or the like."""
TURN = 150.0
"""Operations of a product with a matrix that no cache holds, and its transpose, over M^2."""
REGRESSION, KERNEL = 240.0, 60.0
"""Operations of a value given m others, over m (m + KERNEL); in one and two dimensions."""
LONG = 10.0  # seconds of NUTS, which chains of epsilon would take as well


class Costs(NamedTuple):
    """Seconds on two idle cores, measured for one small model; see `benchmarks/waiting.py`."""

    first: float  # to compile what is new
    again: float
    step: float  # of a sampler, less its operations
    factor: float  # of operations, over numba's
    sparse: float  # of those of values given neighbors, one after another
    integral: float  # of those of integrals with loops of their own
    at_once: int  # chains: JAX's wait for one another, and XLA takes all cores


def processors() -> int:
    """How many of them there are for this process: a cluster gives a job some of a machine's."""
    given = getattr(os, "sched_getaffinity", None)  # of Linux
    return len(given(0)) if given else os.cpu_count() or 1


def at_once(chains: int) -> int:
    """How many chains run at once on numba: one for each processor.

    Two of these share a core on many machines, and still do more than one. ``pm.sample`` counts
    half of them.
    """
    return min(processors(), chains)


NUMBA = Costs(18.0, 3.0, 1e-4, 1.0, 1.0, 1.0, at_once(4))
JAX = Costs(7.0, 7.0, 3e-4, 1.5, 5.0, 25.0, 1)


class Operations(NamedTuple):
    """About how many a log density with its gradient takes."""

    plain: float
    sparse: float  # of values given neighbors
    integral: float


@dataclass
class Choice:
    """A backend, and the seconds that it may take."""

    backend: str
    compiling: float
    sampling: float
    why: str
    model: str
    """What the cache of compiled code knows of the model: its Ops."""

    def __str__(self):
        """Say it in a line."""
        return (
            f"NUTS on {self.backend} ({self.why}): about {self.compiling:.0f} s to compile and "
            f"{max(self.sampling, 1.0):.0f} s to sample"
        )

    def remember(self, seconds: float) -> None:
        """Keep what compiling took: what a model of the same kind takes the next time."""
        if self.backend != "numba":
            return
        first, again = _known()
        if self.model in again:
            again[self.model] = seconds
        else:
            first, again[self.model] = seconds, NUMBA.again
        # A cache that can't be written is no reason to lose draws.
        with suppress(OSError):
            _path().write_text(json.dumps({"first": first, "again": again}))


def choose(model: Model, target: Model, collapsed: bool, nuts_sampler: str, draws: int) -> Choice:
    """Choose for `draws` of all chains together, those of tuning included."""
    name, (first, again) = _kind(target), _known()
    operations = _operations(model, collapsed)
    leapfrogs = draws * (MANY_LEAPFROGS if _are_many(model, collapsed) else LEAPFROGS)

    def candidate(backend, costs, compiling, why):
        return Choice(backend, compiling, _seconds(operations, leapfrogs, costs), why, name)

    why = "compiled before" if name in again else "no such model compiled before"
    if mapped := in_file(target):
        why = "data in a file, which JAX would copy"
    numba = candidate("numba", NUMBA, again.get(name, first), why)
    if mapped or nuts_sampler != "nutpie" or importlib.util.find_spec("jax") is None:
        return numba
    jax = candidate("jax", JAX, JAX.again, "few steps, and quick to compile")
    best, other = sorted([numba, jax], key=lambda c: c.compiling + c.sampling)
    best.why += f"; {other.backend} takes some {other.compiling + other.sampling:.0f} s in all"
    return best


def takes_long(model: Model, collapsed: bool, draws: int) -> bool:
    """Whether NUTS takes so long for these draws that chains of epsilon are worth a try.

    Without what compiling takes: a cache must not decide what a seed gives.
    """
    return _seconds(_operations(model, collapsed), LEAPFROGS * draws, NUMBA) > LONG


def _seconds(operations: Operations, leapfrogs: int, costs: Costs) -> float:
    each = zip(operations, (costs.factor, costs.sparse, costs.integral), strict=True)
    step = costs.step + sum(n * cost for n, cost in each) / FLOPS
    return leapfrogs * step / costs.at_once


def _are_many(model: Model, collapsed: bool) -> bool:
    """Whether there are coefficients that no matrix turns; see `fit.correlated`."""
    shapes = value_shapes(model)
    return not collapsed and any(
        is_independent(u)
        and not has_matrix(model.rvs_to_transforms[u])
        and shapes[model.rvs_to_values[u].name][-1] > MANY
        for u in inducing_variables(model)
    )


def in_file(model: Model) -> bool:
    """Whether a model reads inputs from a file."""
    return any(mapped_array(v) is not None for v in ancestors(model.basic_RVs))


def asked_for(kwargs: dict[str, Any]) -> Any:
    """Return the mode that arguments of ``pm.sample`` name."""
    return (kwargs.get("compile_kwargs") or {}).get("mode", kwargs.get("backend"))


def warn_of_file(model: Model, nuts_sampler: str, kwargs: dict[str, Any]) -> None:
    """Warn where JAX is to sample a model that reads inputs from a file."""
    jax = nuts_sampler in ("numpyro", "blackjax") or str(asked_for(kwargs)).lower() == "jax"
    if jax and in_file(model):
        warnings.warn(
            "X is in a file, and JAX copies it into memory several times. "
            "Use nutpie with backend='numba', which reads it from the file.",
            UserWarning,
            stacklevel=3,
        )


def _operations(model: Model, collapsed: bool) -> Operations:
    observed = (known_value(model.rvs_to_values[rv]) for rv in model.observed_RVs)
    n_data = sum(y.size for y in observed if y is not None)
    shapes = value_shapes(model)
    loops = block_sums(model.logp())
    inside = [a for node in loops for a in node.op.fgraph.apply_nodes]
    integrals = [a.op.operations for a in inside if isinstance(a.op, RowIntegral)]
    integral = max(integrals, default=0.0)
    # On a grid a row takes no more than the waves of one input.
    parts = [(node, p) for node in loops for p in node.op.recipe.parts]
    whole = {p.conditional.process: p.conditional for _, p in parts if p.conditional.whole}
    plain = sparse = 0.0
    for u in inducing_variables(model):
        *functions, m = shapes[model.rvs_to_values[u].name]
        several = float(np.prod(functions))
        independent = is_independent(u)
        rows = m**2 if collapsed and independent else n_data
        row, factor = 3.0 * m**2, FACTOR * m**3
        if independent:
            transform = model.rvs_to_transforms[u]
            turn = TURN * m**2 if isinstance(transform, Rotated) else FACTOR * m**3
            row, factor = 3.0 * m, turn * has_matrix(transform)
            if u.name in whole:
                row = 3.0 * whole[u.name].width
                factor += 6.0 * whole[u.name].beside_rows
        elif is_sparse(u):
            near = u.owner.inputs[5].type.shape[1]
            row, factor = 3.0 * near, 0.0
            away = sum(_away(node, p) for node, p in parts if p.conditional.process == u.name)
            sparse += (m + away) * REGRESSION * near * (near + KERNEL) * several
        plain += (rows * (row + ROW) + factor) * several
    plain += n_data * sum(map(_at_nodes, inside))
    sizes = {v: shapes[v.name] for v in model.value_vars}
    plain += FACTOR * number_together(model, sizes) ** 3
    return Operations(plain, sparse, n_data * integral)


def _at_nodes(node) -> float:
    """Operations of a row where it is evaluated at nodes, whose number its type says."""
    op = getattr(node.op, "scalar_op", None)
    many = [n for n in node.outputs[0].type.shape if n not in (None, 1)]
    if op is None or not many:
        return 0.0
    slow = isinstance(op, Log | Log1p) or type(op).__module__ == scalar_math.__name__
    return float(np.prod(many)) * (SLOW if slow else NUMBER)


def _away(node, part) -> int:
    """Return how many rows of a loop take a regression: those at values given neighbors do not."""
    X, Z = (known_value(x) for x in (node.inputs[part.X], part.args(node.inputs)[PLACES]))
    if X is None or Z is None:
        return 0
    return int((cKDTree(Z).query(X)[0] > 0.0).sum()) if part.conditional.looks_up else len(X)


def _kind(model: Model) -> str:
    """Return the same for models of the same Ops, whatever their data and names."""
    ops = [str(v.owner.op) for v in ancestors(model.basic_RVs) if v.owner is not None]
    return sha256(" ".join(sorted(ops)).encode()).hexdigest()[:16]


def _path():
    return config.base_compiledir / "pymc_vsgp.json"


def _known() -> tuple[float, dict[str, float]]:
    """Return what compiling took: something new, and kinds of models another time."""
    try:
        found = json.loads(_path().read_text())
        return float(found["first"]), dict(found["again"])
    except (OSError, ValueError, KeyError, TypeError):
        return NUMBA.first, {}
