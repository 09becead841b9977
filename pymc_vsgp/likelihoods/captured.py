"""What a likelihood's callable takes from outside, beside the latent functions."""

from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.traversal import io_toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.sort import SortOp
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType

__all__ = ["captured_variables", "in_order_of"]


def captured_variables(rv, *f):
    """Variables of the model that `rv` depends on beside `f`, in a fixed order.

    With each, whether it is an array that all rows share, such as cut-points. The variables are its
    roots, and whatever else has a name, or is made of more than one entry for each row; vectors
    whose entries depend on several rows; and arrays
    from outside that go with the rows. Other expressions between them and f
    are not: PyMC may build the same one twice, or broadcast it to the shape of f.
    """
    depends: set[Variable] = set(f)
    frontier: list[tuple[Variable, bool, bool]] = []
    for node in io_toposort([], [rv]):
        if depends & set(node.inputs) or rv in node.outputs:
            if f[0].type.ndim == 1:
                _check_entries(node, depends)
            depends.update(node.outputs)
            by_row, shared = _by_row(node, f[0].type.ndim), _shared(node, f[0].type.ndim)
            frontier.extend((x, x in by_row, x in shared) for x in node.inputs)
    captured: dict[Variable, bool] = {}
    while frontier:
        var, goes_with_rows, shared = frontier.pop(0)
        if var in captured:
            captured[var] &= shared
        if var in depends or var in captured:
            continue
        if isinstance(var, Constant):
            if goes_with_rows and var.type.ndim == 1 and var.type.shape != (1,):
                captured[var] = False
            continue
        op = var.owner.op if var.owner else None
        drawn = isinstance(op, RandomVariable | SymbolicRandomVariable)
        whole = op is not None and not drawn
        whole = whole and (_reduces(var) or (not shared and _crosses(var, goes_with_rows)))
        if op is None or var.name or whole:
            if isinstance(var.type, TensorType):  # not a random generator
                captured[var] = shared and var.type.ndim > 0
        elif drawn:
            # Without a name it is none of the model's, but a part of `rv`, such as a component.
            of_one = {x for x, n in _parameters(var.owner) if n == 0}
            frontier[:0] = [(x, goes_with_rows and x in of_one, shared) for x in var.owner.inputs]
        else:
            same = isinstance(op, Elemwise)
            same |= isinstance(op, DimShuffle) and op.new_order[-1:] == (0,)
            # Before the others: the order must not depend on how many axes were added on the way.
            frontier[:0] = [(x, goes_with_rows and same, shared) for x in var.owner.inputs]
    return captured


def in_order_of(known, found):
    """Return what one call captured in the order of another: PyMC may turn what it is given."""
    left, ordered = dict(found), {}
    for var in known:
        same = next((v for v in left if v is var or equal_computations([v], [var])), None)
        if same is None:
            return found
        ordered[same] = left.pop(same)
    return ordered | left


def _by_row(node, ndim):
    """Inputs of a node that go with its output entry by entry, where that has these dimensions."""
    if node.default_output().type.ndim != ndim:
        return set()
    if isinstance(node.op, Elemwise):
        return set(node.inputs)
    return {x for x, n in _parameters(node) if n == 0}


def _shared(node, ndim):
    """Inputs of a node that all entries of its output share, where rows have that many dimensions.

    Of a random variable those with no more dimensions than it takes for one number; of arrays with
    an axis more than the rows, which comes last, those that have no rows.
    """
    of_entries = {x for x, n in _parameters(node) if 0 < n == x.type.ndim}
    if node.default_output().type.ndim <= ndim:
        return of_entries
    by_axis = node.inputs if isinstance(node.op, Elemwise) else [x for x, _ in _parameters(node)]
    return of_entries | {x for x in by_axis if all(x.type.broadcastable[:1])}


def _parameters(node):
    """Parameters of a random variable, each with the dimensions that it takes for one number."""
    if not isinstance(node.op, RandomVariable | SymbolicRandomVariable):
        return []
    if isinstance(node.op, TruncatedRV):  # which does not tell, but what it truncates does
        *inputs, lower, upper = node.inputs
        return [*_parameters(node.op.base_rv_op.make_node(*inputs)), (lower, 0), (upper, 0)]
    ndims = node.op.ndims_params  # None of hurdles, which do not tell
    return list(zip(node.op.dist_params(node), ndims, strict=True)) if ndims else []


def _reduces(var):
    """Whether this is one number, or a vector, of more: ``W @ b``, ``b[0]``, ``b[group]``."""
    if not isinstance(var.type, TensorType) or var.type.ndim > 1 or "float" not in var.type.dtype:
        return False
    larger = any(getattr(x.type, "ndim", 0) > var.type.ndim for x in var.owner.inputs)
    return larger or isinstance(var.owner.op, AdvancedSubtensor)


def _crosses(var, goes_with_rows):
    """Whether this is a vector whose entries depend on several of another: ``pt.cumsum(z)``.

    Of a part of the rows it would be another one, so it is made of all of them. Whole numbers that
    do not go with the rows are lengths.
    """
    kept = (Elemwise, DimShuffle, Alloc, SpecifyShape, CheckAndRaise)
    if not isinstance(var.type, TensorType) or var.type.ndim != 1:
        return False
    return ("float" in var.type.dtype or goes_with_rows) and not isinstance(var.owner.op, kept)


def _check_entries(node, depends):
    """Raise ValueError where a callable makes its entries of several entries of f."""
    if not node.inputs:
        return
    x = node.inputs[0]
    mixes = CAReduce | CumOp | Subtensor | AdvancedSubtensor | SortOp
    # Whole numbers are its length.
    vector = x in depends and x.type.ndim == 1 and "float" in x.type.dtype
    if isinstance(node.op, mixes) and vector:
        raise ValueError(
            "The likelihood's callable takes several entries of f together, and it sees a part of "
            "the rows at a time. Let each observation depend on its own entry of f."
        )
