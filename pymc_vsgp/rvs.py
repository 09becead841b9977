"""Random variables in a graph, and whose they are."""

from collections.abc import Iterable

import pymc as pm

from pymc.data import MinibatchOp
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType

__all__ = ["check_graphs", "check_own", "depends_on_random", "refuse_minibatches"]


def depends_on_random(variable: Variable) -> bool:
    """Whether a random variable is among the ancestors of `variable`."""
    return any(
        node.owner is not None and isinstance(node.owner.op, RNGConsumerOp)
        for node in ancestors([variable])
    )


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
        if v.owner is None or v in own or not isinstance(v.owner.op, RNGConsumerOp):
            continue
        if v.name:
            todo = todo or f"Take it from this one: model[{v.name!r}]."
            raise ValueError(f"{v.name!r} is a variable of another model. {todo}")
        if not isinstance(v.type, RandomType):
            raise ValueError(
                f"A distribution of type {v.owner.op.name} is not in the model, so it would be "
                'drawn anew in each evaluation. Give it a name, as in pm.HalfNormal("sigma").'
            )


def check_graphs[G: Iterable[Variable]](graphs: G, model: pm.Model) -> G:
    """Return graphs; raise where they have a random variable of neither the model nor its root."""
    root = model.root
    seen = list(ancestors(graphs, blockers=set(root.basic_RVs)))
    refuse_minibatches(seen, "A parameter")
    check_own(seen, root)
    return graphs
