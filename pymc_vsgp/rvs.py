"""Random variables in a graph, and whose they are."""

from collections.abc import Iterable

import pymc as pm

from pymc.data import MinibatchOp
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType

__all__ = ["check_graphs", "check_own", "depends_on_random", "is_drawn", "refuse_minibatches"]


def depends_on_random(variable: Variable) -> bool:
    """Whether a random variable is among the ancestors of `variable`."""
    return any(map(is_drawn, ancestors([variable])))


def is_drawn(variable: Variable) -> bool:
    """Whether a variable is a random variable, or the state of the generator that drew it."""
    return variable.owner is not None and isinstance(variable.owner.op, RNGConsumerOp)


def refuse_minibatches(variables: Iterable[Variable], what: str) -> None:
    """Raise where rows are drawn anew in each evaluation."""
    if any(v.owner is not None and isinstance(v.owner.op, MinibatchOp) for v in variables):
        raise TypeError(
            f"{what} is made of pm.Minibatch, which has other rows in each evaluation. "
            "Pass all rows; vsgp.fit_gaussian(batch_size=...) takes batches of them."
        )


def check_own(variables: Iterable[Variable], model: pm.Model, todo: str = "") -> None:
    """Raise where a random variable is none of the model's: it would be drawn from its prior."""
    own = set(model.basic_RVs)
    for v in variables:
        if v.name and is_drawn(v) and v not in own:
            todo = todo or f"Take it from this one: model[{v.name!r}]."
            raise ValueError(f"{v.name!r} is a variable of another model. {todo}")


def check_graphs[G: Iterable[Variable]](graphs: G, model: pm.Model, *, anew: bool = False) -> G:
    """Return graphs; raise where they have a random variable of neither the model nor its root.

    One without a name may be drawn `anew`, as in what is predicted. A density has to be the same in
    each evaluation.
    """
    root = model.root
    own = set(root.basic_RVs)
    seen = list(ancestors(graphs, blockers=own))
    refuse_minibatches(seen, "A parameter")
    check_own(seen, root)
    for v in () if anew else seen:
        if is_drawn(v) and v not in own and not isinstance(v.type, RandomType):
            raise ValueError(
                f"A distribution of type {v.owner.op.name} is not in the model, so it would be "
                'drawn anew in each evaluation. Give it a name, as in pm.HalfNormal("sigma").'
            )
    return graphs
