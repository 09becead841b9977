"""Any PyMC distribution of the latent functions as a likelihood."""

import inspect

from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.shape_utils import (
    change_dist_size,
    implicit_size_from_params,
    rv_size_is_none,
)
from pymc.distributions.simulator import SimulatorRV
from pymc.logprob.utils import CheckParameterValue
from pymc.model.core import Model
from pymc.pytensorf import rvs_in_graph
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, alloc
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.shape import SpecifyShape, specify_shape
from pytensor.tensor.type import TensorType

from pymc_vsgp.checks import check_number
from pymc_vsgp.likelihoods.base import Likelihood, not_of_rows, require
from pymc_vsgp.likelihoods.captured import captured_variables, in_order_of
from pymc_vsgp.likelihoods.quadrature import N_PRODUCT, peaked_log_expectation
from pymc_vsgp.ops.tails import with_finite_slopes


class _Call(NamedTuple):
    """What a callable returned, of stand-ins for the functions and for what it captured."""

    f: list[Variable]
    captured: list[Variable]
    params: list[Variable]
    rv: Variable
    drawn: Variable
    """The same, with a draw of its own for each row."""


class Custom(Likelihood):
    """A likelihood from a callable that maps f to a PyMC distribution.

    Expectations are by quadrature, which resolves features of scale about 1 in f for a standard
    deviation of f up to 10: use more nodes for sharper densities. Of two or three functions they
    are products of such rules, for standard deviations up to 4 and 2; each observation then takes
    1,681 and 15,625 evaluations of the log density.

    A density that falls like ``exp(f)``, such as that of a count, has most of its expectation where
    f is large. Its relative error is 3e-5 at a standard deviation of 3, and 1e-3 at 4. Families
    with a closed form, such as :class:`Poisson`, have no such limit.

    Parameters
    ----------
    dist_fn : callable
        Takes f, or up to three latent functions, and returns an unregistered PyMC distribution
        (``pm.X.dist(...)``) of one number for each entry of f. It is called when the likelihood is
        made, and not later. The last axis of f has the rows, and there may be one of quadrature
        nodes before it: write ``f[..., None]`` for an axis of components, and leave out shape and
        size. Variables it captures become the parameters p0, p1, ..., and so do arrays and terms
        with an entry for each row, such as ``exposure``, ``W @ b`` or ``b[group]``. All rows share
        arrays along an axis of their own, such as cut-points or the weights of a mixture. Weights
        that differ by row have to be a ``pm.Data``.
    n_nodes : int, optional
        Number of quadrature nodes for each function; by default 101, 41 or 25.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_vsgp.likelihoods import Custom
    >>> with pm.Model():
    ...     alpha = pm.Gamma("alpha", 2, 1)
    >>> Custom(lambda f: pm.NegativeBinomial.dist(mu=pm.math.exp(f), alpha=alpha))
    Custom(p0=alpha)
    """

    ndim_more = 1  # of components
    of_spread = None

    def __init__(self, dist_fn, n_nodes=None):
        self.dist_fn = dist_fn
        n_latent = self.n_latent = count_latents(dist_fn)
        if n_nodes is not None:
            check_number("n_nodes", n_nodes, 2)
        self.n_nodes = n_nodes or N_PRODUCT[n_latent]
        # By the dimensions of f, now: what the callable takes from outside may change.
        self._calls: dict[int, _Call] = {}
        captured = self._call(1)
        for ndim in range(2, 2 + max(n_latent, 2)):
            with _of_nodes() if ndim <= 1 + n_latent else suppress(Exception):  # of outputs
                self._call(ndim)
        self.discrete = self._calls[1].rv.dtype.startswith(("int", "uint"))
        named = {f"p{i}": value for i, value in enumerate(captured)}
        self.shared_params = tuple(name for name, value in named.items() if captured[value])
        super().__init__(**named)

    def _call(self, ndim):
        """Call dist_fn and keep what it returned; return the variables it captured."""
        names = [f"f{i}" for i in range(int(self.n_latent or 1))]
        f = [pt.tensor(name, dtype="float64", shape=(None,) * ndim) for name in names]
        with _without_model():
            rv = self.dist_fn(*f)
        op = rv.owner.op if isinstance(rv, Variable) and rv.owner else None
        if not isinstance(op, RandomVariable | SymbolicRandomVariable):
            raise TypeError(
                "The likelihood's callable must return an unregistered PyMC distribution, "
                f"but returned {type(rv).__name__}. Return pm.X.dist(...) of f."
            )
        if op.ndim_supp > 0:
            raise TypeError(
                "The likelihood's callable must return a univariate distribution, "
                f"but {op} is multivariate. Return one that gives a number for each entry of f."
            )
        if not set(f) & set(ancestors([rv])):
            raise ValueError(
                "The distribution of the likelihood's callable does not depend on f. "
                "Return one that does, as in lambda f: pm.Poisson.dist(pm.math.exp(f))."
            )
        captured = captured_variables(rv, *f)
        if self._calls:
            captured = in_order_of(self._calls[1].captured, captured)
        inner = [var.type() for var in captured]
        # A graph that pm.CustomDist was given draws as many numbers as it is told.
        drawn = change_dist_size(rv, f[0].shape) if _custom([rv], [*f, *captured]) else rv
        both = [rv, drawn]
        if captured:
            both = graph_replace(both, dict(zip(captured, inner, strict=True)), strict=False)
        _check_draws(both[1], [*f, *inner])
        self._calls[ndim] = _Call(f, list(captured), inner, *both)
        return captured

    @cached_property
    def holds_arrays(self) -> bool:
        """Whether the callable may hold an array that has an entry for each row, or output."""
        shared = [name in self.shared_params for name in self.params]
        for call in self._calls.values():
            known = {*call.f, *(p for p, same in zip(call.params, shared, strict=True) if same)}
            found = list(ancestors([call.rv], blockers=known))
            for var in found:  # and those in the graphs of its nodes
                if var.owner and isinstance(var.owner.op, HasInnerGraph):
                    found += [v for v in var.owner.op.fgraph.variables if isinstance(v, Constant)]
            roots = [v for v in found if v.owner is None and v not in known]
            if any(isinstance(v.type, TensorType) and not all(v.type.broadcastable) for v in roots):
                return True
        return False

    def _ndim(self, *args):
        # An axis after that of the rows, such as one of components, is of the callable alone.
        by_row = [p for n, p in self._params.items() if n not in self.shared_params and p.ndim < 2]
        return max(pt.as_tensor(x).ndim for x in (*args, *by_row))

    def _functions(self, f):
        """Return each latent function of the last axis of f, where there are several."""
        f, number = pt.as_tensor(f).astype("float64"), int(self.n_latent or 1)
        return [f] if number == 1 else [f[..., k] for k in range(number)]

    def _called(self, f):
        """Return what the callable returned for functions with so many dimensions."""
        if f[0].type.ndim not in self._calls:
            self._call(f[0].type.ndim)
        return self._calls[f[0].type.ndim]

    def _params_of(self, call):
        """Return the current parameters, with the dtypes of their stand-ins."""
        return [p.astype(i.dtype) for p, i in zip(self._params.values(), call.params, strict=True)]

    def said(self, name):
        own = self.params[name].name  # what it is numbered by says nothing to a user
        return f"{repr(own) if own else 'An array'} of the likelihood's callable"

    def _call_for_others(self, name):
        return "Pass a callable with what it takes for Xnew: likelihood=lambda f: ..."

    def log_predictive(self, mu, gamma, y):
        """``log E[p(y | f)]`` for f ~ N(mu, gamma), elementwise: tails may be of any kind."""
        if self.n_latent != 1:
            return self.by_one_rule(mu, gamma, y)
        mu, gamma, y = (pt.as_tensor(x) for x in (mu, gamma, y))
        mu = mu + pt.zeros_like(gamma + y, dtype="float64")
        return peaked_log_expectation(lambda f: self.log_prob(f[..., 0], y)[..., None], mu, gamma)

    def by_one_rule(self, mu, gamma, y):
        """Return the same, less exact under heavy tails, by a graph a quarter as large."""
        return super().log_predictive(mu, gamma, y)

    def log_prob(self, f, y):
        """Log density or mass of y given f.

        PyMC's checks of the distribution's parameters are left out: an invalid parameter gives
        nan, or whatever the formula gives there, and no error.
        """
        f, y = self._functions(f), pt.as_tensor(y)
        call = self._called(f)
        # Of stand-ins first: pm.logp clones the random variables among the parameters, and
        # simplifies what it is given, which would take minutes where densities at quadrature nodes
        # are nested. Without lengths: those of the captured may be others than at first.
        *at, value = [_any_length(each)() for each in (*f, y)]
        (rv,) = _rebuilt([call.rv], call.f, at)
        try:
            density = pm.logp(rv, value, warn_rvs=False)
        except TypeError:  # of a transformed variable, which wants a value for each entry of f
            density = pm.logp(rv, pt.broadcast_arrays(value, at[0])[0], warn_rvs=False)
        if drawn := rvs_in_graph([density]):
            if any(v.owner and isinstance(v.owner.op, SimulatorRV) for v in ancestors([rv])):
                raise TypeError(
                    "The likelihood's callable returns a pm.Simulator, which has no density but "
                    "random draws to compare y with. Return a distribution with a density, such "
                    "as pm.CustomDist.dist(f, logp=...)."
                )
            # In the density alone: pm.CustomDist does not know what its `logp` takes by itself.
            if outside := sorted(v.name for v in drawn if v.name):
                raise TypeError(
                    "A density within the likelihood's callable takes a variable of the model from "
                    f"outside: {', '.join(map(repr, outside))}. Pass it to the distribution, as in "
                    "pm.CustomDist.dist(f, alpha, logp=...)."
                )
            raise TypeError(
                "A parameter of the likelihood's callable is a distribution that is not in the "
                'model. Give it a name there, as in pm.Gamma("alpha", 2, 1).'
            )
        old, new = (*at, *call.params, value), (*f, *self._params_of(call), y)
        return _rebuilt([with_finite_slopes(density)], old, new)[0]

    def dist(self, f, **kwargs):
        f = self._functions(f)
        call = self._called(f)
        # Each variable has generators of its own, or all of them would have the same draws.
        rngs = [v for v in graph_inputs([call.drawn]) if isinstance(v.type, RandomGeneratorType)]
        others = [pytensor.shared(np.random.default_rng()) for _ in rngs]
        old, new = (*call.f, *call.params, *rngs), (*f, *self._params_of(call), *others)
        return _rebuilt([call.drawn], old, new, sized=True)[0]

    def check_observed(self, y):
        """Raise ValueError if y has values that no observation has, or arrays other lengths."""
        shape = y.shape if self.n_latent == 1 else (*y.shape, self.n_latent)
        f = pt.tensor(dtype="float64", shape=shape)
        try:
            self.log_prob(f, pt.constant(np.asarray(y)))
        except ValueError as error:
            raise ValueError(
                f"The likelihood's callable does not go with {len(y)} observations. Arrays that it "
                "takes from outside need one entry, or one for each row of X."
            ) from error
        self.check_values(y)

    def check_values(self, y):
        """Raise ValueError if the distribution is discrete and y is not whole."""
        ok = np.isfinite(y)
        if self.discrete:
            require(self, y, ok & (y == np.floor(y)), "whole numbers")
        require(self, y, ok, "finite numbers")


def at_some_rows(likelihood: Likelihood, n: int, evaluate: Callable[[], list[np.ndarray]]):
    """Evaluate graphs of a likelihood at n of its rows, which a callable may hold an array of."""
    family = likelihood.of_output
    try:
        arrays = evaluate()
    except (IndexError, TypeError, ValueError) as error:  # by backend and Op
        if "broadcast" in str(error) and isinstance(family, Custom) and family.holds_arrays:
            raise not_of_rows(family) from error
        raise
    if any(a.shape[1] != n for a in arrays):  # of a single row all entries are taken
        raise not_of_rows(family)
    return arrays


@contextmanager
def _without_model():
    """Context in which a callable adds nothing to the model, as it is called with stand-ins."""
    around, own = Model.get_context(error_if_none=False), Model(model=None)
    known = {} if around is None else dict(around.named_vars)
    own.named_vars.update(known)  # that it may ask for
    with own:
        yield
    if added := [name for name in own.named_vars if name not in known]:
        raise TypeError(
            "The likelihood's callable must return an unregistered PyMC distribution, but it "
            f"names {added[0]!r}. Return pm.X.dist(...) of f, and make named variables before it."
        )


@contextmanager
def _of_nodes():
    """Context in which a callable takes f at quadrature nodes."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            "The likelihood's callable fails where f has an axis of quadrature nodes before that "
            "of the rows. Leave shape and size out, and write f[..., None] for an axis after it."
        ) from error


def _custom(outputs, given=()):
    """Graphs that ``pm.CustomDist`` was given as `dist`, in distributions of these variables.

    And those within them.
    """
    ops = [v.owner.op for v in ancestors(outputs, blockers=given) if v.owner]
    graphs = [op.fgraph for op in ops if isinstance(op, CustomSymbolicDistRV)]
    return graphs + [inner for graph in graphs for inner in _custom(graph.outputs)]


def _check_draws(rv, given):
    """Raise where such a graph has a draw that all rows share: its density is not that."""
    for graph in _custom([rv], given):
        for node in graph.apply_nodes:
            random = isinstance(node.op, RandomVariable | SymbolicRandomVariable)
            if random and _is_shared(node.default_output().type, rv.type):
                raise ValueError(
                    "The dist of the likelihood's pm.CustomDist draws a number that all rows "
                    "share. Pass its size to the distributions in it."
                )


def _is_shared(drawn, rows) -> bool:
    if drawn.ndim != rows.ndim:
        return drawn.ndim < rows.ndim
    pairs = zip(drawn.broadcastable, rows.broadcastable, strict=True)
    return any(one and not several for one, several in pairs)


def count_latents(dist_fn):
    """Return how many latent functions the callable takes: its arguments without a default."""
    if isinstance(dist_fn, type):
        raise TypeError(
            f"The likelihood is the class {dist_fn.__name__}, which does not say what f is of it. "
            f"Pass a callable of f, as in lambda f: pm.{dist_fn.__name__}.dist(...f...)."
        )
    try:
        arguments = inspect.signature(dist_fn).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(a.kind == a.VAR_POSITIONAL for a in arguments):
        raise TypeError(
            "The likelihood's callable takes any number of arguments. "
            "Name its latent functions one by one, as in lambda f, g: ..."
        )
    number = sum(
        a.default is a.empty and a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)
        for a in arguments
    )
    if number not in N_PRODUCT:
        raise ValueError(
            f"The likelihood's callable takes {number} latent functions, but quadrature works for "
            "1 to 3. Write a Likelihood with an expectation of its own, or fold some functions "
            "into a sum of processes."
        )
    return number


def _rebuilt(outs, old, new, sized=False):
    """Make `outs` again of other variables, with the types that these lead to, unchecked.

    Other ways to replace a variable assert that it keeps its length: a block has fewer rows.
    `sized` tells random variables their lengths: some of PyMC draw a number for a vector of one.
    """
    swap = dict(zip(old, new, strict=True))

    def made_of(variables):
        return [swap.get(x, x) for x in map(_without_checks, variables)]

    for node in io_toposort(old, outs):
        inputs = made_of(node.inputs)
        same = all(x.type.is_super(new.type) for x, new in zip(node.inputs, inputs, strict=True))
        if isinstance(node.op, Alloc):
            made = [_filled(*inputs)]
        elif inputs == node.inputs:
            continue
        elif isinstance(node.op, SpecifyShape):
            made = [specify_shape(inputs[0], _any_length(node.outputs[0]).shape)]
        elif sized and isinstance(node.op, RandomVariable) and rv_size_is_none(inputs[1]):
            size = implicit_size_from_params(*inputs[2:], ndims_params=node.op.ndims_params)
            made = node.op.make_node(inputs[0], size, *inputs[2:]).outputs
        elif isinstance(node.op, Scan) and not same:
            made = _scan(node.op).make_node(*inputs).outputs
        elif same or not isinstance(node.op, OpFromGraph):
            made = node.clone_with_new_inputs(inputs, strict=False).outputs
        elif isinstance(node.op, SymbolicOp):
            made = node.op(*inputs, return_list=True)
        else:  # its graph is of types that it asserts, too
            inner = node.op.fgraph.unfreeze()
            random = isinstance(node.op, SymbolicRandomVariable)
            at = [x.type() for x in inputs] if random else inputs
            made = _rebuilt(inner.outputs, inner.inputs, at)
            if random:  # stays one variable: it alone knows which state its generator has next
                op = node.op.clone_with_inner_graph(FunctionGraph(at, made, clone=False))
                op.output_types = [x.type for x in made]
                made = op.make_node(*inputs).outputs
        swap |= zip(node.outputs, made, strict=True)
    return made_of(outs)


def _scan(op):
    """Return a loop that takes arrays of other lengths."""
    inner = op.fgraph.unfreeze()
    at = [_any_length(x)() for x in inner.inputs]
    outs = _rebuilt(inner.outputs, inner.inputs, at)
    return Scan(at, outs, op.info, mode=op.mode, truncate_gradient=op.truncate_gradient)


def _filled(value, *shape):
    """Return ``alloc(value, *shape)``, with the lengths that the value has.

    pm.logp names the lengths that it knows. The type is made here: PyTensor would simplify the
    graphs of all lengths for it, which takes minutes where densities at quadrature nodes are nested
    in each other.
    """
    lengths = list(shape)
    known = [int(n.data) if isinstance(n, Constant) else None for n in lengths]
    for axis in range(-value.type.ndim, 0):
        if not value.type.broadcastable[axis]:
            lengths[axis], known[axis] = value.shape[axis], value.type.shape[axis]
    filled = TensorType(value.dtype, shape=known)()
    return Apply(alloc, [value, *lengths], [filled]).default_output()


def _without_checks(var):
    """Return what checks of parameters were put around.

    They would fail for all observations where one far quadrature node does.
    """
    while var.owner and isinstance(var.owner.op, CheckParameterValue):
        var = var.owner.inputs[0]
    return var


def _any_length(var):
    """Return the type of a variable without its lengths, except those that broadcast."""
    if not isinstance(var.type, TensorType):  # as of a generator
        return var.type
    return TensorType(var.dtype, shape=[1 if one else None for one in var.type.broadcastable])


def as_likelihood(obj):
    """
    Make a likelihood of a likelihood, or of a callable.

    ``gp.likelihood`` calls it. Call it to use the densities and moments of a callable yourself.

    Parameters
    ----------
    obj : Likelihood or callable
        A callable maps f to a PyMC distribution: ``lambda f: pm.Poisson.dist(pm.math.exp(f))``.

    Returns
    -------
    Likelihood
        `obj` itself, or a :class:`Custom` of the callable.
    """
    if isinstance(obj, Likelihood):
        return obj
    if isinstance(obj, type) and issubclass(obj, Likelihood):
        raise TypeError(
            f"{obj.__name__} is a class, not a likelihood. "
            f"Write {obj.__name__}(...) with parentheses."
        )
    if callable(obj):
        return Custom(obj)
    raise TypeError(
        f"A likelihood is needed, but got {type(obj).__name__} {obj!r}. "
        "Pass e.g. vsgp.Poisson(), or a callable such as lambda f: pm.Poisson.dist(pm.math.exp(f))."
    )
