"""What is known of p(y | f), and the interface every family fills in."""

import copy
import inspect

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import explicit_graph_inputs, graph_inputs

from pymc_vsgp.checks import as_real, known_value
from pymc_vsgp.compile import evaluate
from pymc_vsgp.labels import check_order, check_outputs, labels_of, output_labels, row_labels
from pymc_vsgp.likelihoods import quadrature


class Rule(NamedTuple):
    """What a parameter or an observation may be, besides finite."""

    ok: Callable[[np.ndarray], np.ndarray]
    wanted: str
    hint: str = "Correct or drop that row."  # for observations


def is_count(y):
    """Whether each entry is 0, 1, 2, ..."""
    y = np.asarray(y)
    return np.isfinite(y) & (y >= 0) & (y == np.floor(y))


POSITIVE = Rule(lambda x: x > 0, "positive and finite")
WHOLE = Rule(is_count, "a whole number, 0 or more")


class Likelihood:
    r"""The distribution of one observation given the latent function's value there.

    A family must define `log_prob` and `dist`. The expectations below are then computed by
    quadrature; override them where a closed form exists.

    A family of several latent functions says how many in `n_latent`. Moments then are matrices,
    with a column for each function; in `log_prob` and `dist` they are on the last axis of f.

    Parameters
    ----------
    **params : tensor_like
        The family's parameters: numbers, arrays that broadcast against f (one entry per
        observation), or PyMC variables. Each becomes an attribute.
    """

    n_nodes: int | None = None  # of the quadrature in expected_logp; None is the rule's own choice
    sizes: tuple | None = None  # the same of log_predictive: see quadrature.log_expectation
    n_latent: int | None = 1  # functions that an observation depends on; None for any number
    coupled: bool = True  # whether data correlate its functions, where there are several
    ndim_y: int = 0  # dimensions of one observation
    ndim_more: int = 0  # dimensions that a parameter of one observation may have beside those
    shared_params: tuple[str, ...] = ()  # arrays that all observations share, such as cut-points
    rules: dict[str, Rule] = {}  # what parameters may be
    support: Rule = Rule(np.isfinite, "finite numbers")  # what observations may be
    n_classes: Any = None  # where an observation is a class
    classes: tuple | None = None  # their names, where the family knows them
    binary: bool = False  # whether an observation is 0 or 1
    in_units_of_f: bool = False  # whether an observation has the units of the function
    # What the second of two functions says of the noise, and of that function what says it.
    of_noise: tuple[str, Callable] | None = None
    takes_white_noise: bool = False  # whether that of a kernel is more than a loss
    # About which power of each parameter the standard deviation of an observation goes with; None
    # where that is not known.
    of_spread: dict[str, float] | None = {}

    def __init__(self, **params):
        self._set({name: as_float(value, name) for name, value in params.items()})
        self.check_params()

    def _set(self, params):
        self._params = params
        self.__dict__.update(params)

    @property
    def params(self):
        """Parameters by name, as tensors."""
        return dict(self._params)

    def replace(self, **params):
        """Copy with some parameters replaced.

        Whatever a family derives from its parameters must be a property for this to work.
        """
        if unknown := set(params) - set(self._params):
            raise ValueError(
                f"{type(self).__name__} has no parameter {sorted(unknown)[0]!r}. "
                f"Its parameters are {list(self._params)}."
            )
        new = copy.copy(self)
        new._set(self._params | {name: as_float(value) for name, value in params.items()})
        return new

    @property
    def title(self) -> str:
        """Name of the family, for messages."""
        return type(self).__name__

    def said(self, name: str) -> str:
        """Name of a parameter, for messages."""
        return f"{name} of {self.title}"

    def log_prob(self, f, y):
        """Log density or mass of y given f, elementwise."""
        raise NotImplementedError

    def dist(self, f, **kwargs):
        """PyMC distribution of y given f (an unregistered variable, for random draws)."""
        raise NotImplementedError

    def conditional_mean(self, f):
        """Mean of y given f."""
        raise NotImplementedError(f"{type(self).__name__} does not define the mean of y given f.")

    def mean(self, mu, gamma):
        """``E[y]`` for f ~ N(mu, gamma): of numbers their mean, of classes their probabilities."""
        mu, gamma = pt.as_tensor(mu), pt.as_tensor(gamma)
        if self.n_latent != 1:
            fn, mu, gamma = self._of_columns(self.conditional_mean, mu, gamma)
            return quadrature.product_mean(fn, mu, gamma, self._ndim(mu[..., 0]))
        return quadrature.mean(self.conditional_mean, mu, gamma, self._ndim(mu, gamma))

    @property
    def has_mean(self):
        """Whether the family defines the mean of y given f."""
        kind = type(self)
        return (kind.conditional_mean, kind.mean) != (Likelihood.conditional_mean, Likelihood.mean)

    @property
    def has_mean_at_f(self):
        """Whether it defines that mean at a value of f, and not only its expectation."""
        return type(self.of_output).conditional_mean is not Likelihood.conditional_mean

    def bend(self, y):
        """Where in f the log density bends, and on what scale: (center, width), or None.

        Best: ``center +- i width`` are its singularities nearest to the real axis. It places the
        nodes of the quadrature, nothing else.
        """
        return None

    def interval(self, y):
        """Bounds between which y says that N(f, 1) is, or None: probits have them."""
        return None

    def expected_logp(self, mu, gamma, y):
        """``E[log p(y | f)]`` for f ~ N(mu, gamma), elementwise."""
        if self.n_latent != 1:
            fn, mu, gamma = self._of_columns(lambda f: self.log_prob(f, y), mu, gamma)
            ndim = self._ndim(mu[..., 0], y)
            return quadrature.product_expectation(fn, mu, gamma, ndim, self.n_nodes)
        return self._expect(lambda f: self.log_prob(f, y), mu, gamma, y, self.bend(y))

    def _expected_over_means(self, mu, gamma, spread, y):
        """`expected_logp` averaged over ``N(mu, spread)`` in place of mu, elementwise."""
        return self.expected_logp(mu, gamma + spread, y)

    def log_predictive(self, mu, gamma, y):
        """``log E[p(y | f)]`` for f ~ N(mu, gamma), elementwise."""
        if self.n_latent != 1:
            fn, mu, gamma = self._of_columns(lambda f: self.log_prob(f, y), mu, gamma)
            ndim = self._ndim(mu[..., 0], y)
            return quadrature.product_log_expectation(fn, mu, gamma, ndim)
        mu, gamma, y = (pt.as_tensor(x) for x in (mu, gamma, y))
        ndim = self._ndim(mu, gamma, y)
        return quadrature.log_expectation(
            lambda f: self.log_prob(f, y), mu, gamma, ndim, self.bend(y), sizes=self.sizes
        )

    def check_params(self):
        """Raise ValueError if a parameter breaks its rule; what depends on random variables passes.

        Those in ``pm.Data`` have values, which may have changed since.
        """
        for name, rule in self.rules.items():
            value = known_value(self._params[name]) if name in self._params else None
            if value is None:
                continue
            value = np.asarray(value, dtype="float64")
            bad = ~(np.isfinite(value) & rule.ok(value))
            if bad.any():
                row = f" in row {np.argwhere(bad)[0, 0]}" if value.ndim else ""
                raise ValueError(
                    f"{name} must be {rule.wanted}, but got {value[bad].flat[0]:g}{row}. "
                    f"Pass a value that is {rule.wanted}, or a variable whose prior ensures it."
                )

    def check_observed(self, y):
        """Raise ValueError if an entry of y is outside the support."""
        ok = np.isfinite(y) & self.support.ok(np.asarray(y))
        require(self, y, ok, self.support.wanted, self.support.hint)

    def check_values(self, y):
        """Raise ValueError if an entry of y is a value that no observation can have."""
        self.check_observed(y)

    @property
    def of_output(self) -> "Likelihood":
        """The family of one output, where there are several or a sum of functions."""
        return self

    @property
    def of_draws(self) -> "Likelihood":
        """The family whose density is that of random draws, where observations may be censored."""
        return self

    def check_data(self, y):
        """Raise ValueError if y can't be the observations that a model learns from."""
        self.check_observed(y)

    def encode(self, y, classes=None):
        """Return y as numbers, and the names of its classes where it has names.

        With `classes`, their names are known already.
        """
        return y, classes

    def anew(self, name):
        """Say that a parameter goes with the rows of the data, and how to give it for others."""
        return (
            f"{self.said(name)} has one entry for each row of the data, and Xnew has others. "
            f"{self._call_for_others(name)}"
        )

    def _call_for_others(self, name):
        arguments = inspect.signature(type(self)).parameters.values()
        needed = [a.name for a in arguments if a.default is a.empty or a.name == name]
        call = ", ".join(f"{n}=..." for n in needed)
        return f"Pass it for Xnew: likelihood=vsgp.{type(self).__name__}({call})."

    def _goes_with_rows(self, name):
        """Whether that parameter has one entry for each observation, by its type."""
        if name in self.shared_params:
            return False
        kind = self._params[name].type
        return kind.ndim > 0 and kind.shape[0] != 1

    def _ndim(self, *args):
        by_row = [p for name, p in self._params.items() if name not in self.shared_params]
        return max(pt.as_tensor(x).ndim for x in (*args, *by_row))

    def _of_columns(self, fn, mu, gamma):
        """Return fn as a function of each latent function, and moments of so many."""
        mu, gamma = (pt.as_tensor(x) for x in (mu, gamma))
        mu, gamma = (pt.specify_shape(m, (*m.type.shape[:-1], self.n_latent)) for m in (mu, gamma))

        def stacked(*f):
            # Not `broadcast_arrays`, which broadcasts to one after the other: of three PyTensor
            # then asserts that lengths are equal where one of them is 1.
            whole = reduce(pt.add, f)
            return fn(pt.stack([pt.second(whole, each) for each in f], axis=-1))

        return stacked, mu, gamma

    def _expect(self, fn, mu, gamma, y, bend=None):
        mu, gamma, y = (pt.as_tensor(x) for x in (mu, gamma, y))
        ndim = self._ndim(mu, gamma, y)
        return quadrature.expectation(fn, mu, gamma, ndim, bend, self.n_nodes)

    def __repr__(self):
        """Show the constructor call, with variables by name."""
        parts = [f"{name}={describe(value)}" for name, value in self._params.items()]
        if link := getattr(self, "link", None):
            parts.append(f"link={link.name!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


class Located(Likelihood):
    """A family of one function f whose mean is f."""

    in_units_of_f = True

    def conditional_mean(self, f):
        return f

    def mean(self, mu, gamma):
        return mu


class LogLink(Likelihood):
    """A family of one function f whose mean is proportional to ``exp(f)``."""

    def mean(self, mu, gamma):
        """``E[y]`` for f ~ N(mu, gamma): that of a log-normal variable."""
        return self.conditional_mean(mu + gamma / 2.0)


def as_float(value: Any, name: str = "A parameter"):
    """Float64 tensor of a number, array or variable."""
    if isinstance(value, Variable):
        if value.dtype == "float64":
            return value
        tensor = pt.cast(value, "float64")
        tensor.name = value.name  # by which the model knows its dims
        return tensor
    todo = "Pass one number, one for each row of X, or a variable of the model."
    tensor = pt.as_tensor(as_real(value, name, todo))
    tensor.tag.labels = labels_of(value)
    return tensor


def known_shape(variable: Variable) -> tuple[int | None, ...]:
    """Lengths of a variable of the model, whatever its values are; None of a stand-in."""
    shape = variable.type.shape
    if None not in shape:
        return shape
    lengths = variable.shape
    if not all(isinstance(i, Constant | SharedVariable) for i in explicit_graph_inputs([lengths])):
        return shape
    return tuple(int(n) for n in evaluate(lengths))


def check_param_shapes(lik: Likelihood, n_data: int, rows_of: str = "X") -> None:
    """Raise unless parameters are one number, or one for each row of the data."""
    for name, param in lik.params.items():
        if param.type.ndim == 0 or name in lik.shared_params:
            continue
        value = known_value(param)
        shape = known_shape(param) if value is None else value.shape
        lengths = (n_data, None) if lik._goes_with_rows(name) else (1,)
        if len(shape) > 1 + lik.ndim_y + lik.ndim_more or shape[0] not in lengths:
            many = ", one for each output, or a matrix with a row" if lik.ndim_y else ", or one"
            raise ValueError(
                f"{lik.said(name)} has shape {tuple(shape)}, but {rows_of} has {n_data} rows. "
                f"Pass one value{many} for each row of {rows_of}."
            )


def check_row_order(lik: Likelihood | None, *rows: tuple[str, Any]) -> None:
    """Raise where labels of rows, or of parameters that go with them, are in different orders."""
    check_order((what, row_labels(x)) for what, x in (*rows, *_named(lik)))


def check_output_order(lik: Likelihood, dim: str | None, *outputs: tuple[str, Any]) -> None:
    """Raise where outputs, or parameters along `dim`, have other labels or another order."""
    check_outputs((what, output_labels(x, dim)) for what, x in (*outputs, *_named(lik)))


def _named(lik: Likelihood | None) -> list[tuple[str, Any]]:
    return [] if lik is None else [(lik.said(n), p) for n, p in lik.params.items()]


def check_lengths(lik: Likelihood, rows_of: str) -> None:
    """Raise where a parameter is made of data that no longer go together."""
    for name, param in lik.params.items():
        try:
            known_shape(param)
        except (AssertionError, ValueError) as error:
            data = [v for v in graph_inputs([param]) if isinstance(v, SharedVariable)]
            found = {v.name: len(v.get_value()) for v in data if v.name and v.type.ndim}
            parts = ", ".join(f"{n!r} with {found[n]}" for n in sorted(found))
            raise ValueError(
                f"{lik.said(name)} is made of parts with different lengths: {parts}. "
                f"Pass all of them to pm.set_data, with a value for each row of {rows_of}."
            ) from error


def describe(value):
    """Short text for a parameter."""
    if isinstance(value, Constant):
        return repr(value.data.item()) if value.data.size == 1 else f"<array {value.data.shape}>"
    return value.name or "<expression>"


def not_of_rows(likelihood: Likelihood) -> ValueError:
    """Return the error of a likelihood that is asked for some rows, and holds an array of all."""
    return ValueError(
        f"{likelihood.title} takes an array from outside that may have one entry for each row of "
        "the data. Make it a pm.Data of the model."
    )


def require(likelihood, y, ok, wanted, hint="Correct or drop that row."):
    """Raise ValueError naming the first row of y that is not ok."""
    y, ok = np.asarray(y), np.asarray(ok)
    if not ok.all():
        index = tuple(int(i) for i in np.argwhere(~ok)[0])
        row = index[0] if len(index) == 1 else (index or 0)
        raise ValueError(
            f"{type(likelihood).__name__} needs y to be {wanted}, "
            f"but row {row} is {y[~ok].flat[0]!s}. {hint}"
        )
