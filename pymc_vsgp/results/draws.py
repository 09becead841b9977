"""Functions of a model's latent functions, evaluated at draws of its posterior.

Everything is found in the model and in the draws, so draws that were saved and loaded work, given
the model. Data that were kept with the draws (``constant_data``) take precedence over the model's:
inducing inputs that a Gaussian stage moved are where they were when the draws were made.
"""

import threading
import warnings
import weakref

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import PACKAGE, kind, known_value, model_of, names_of
from pymc_vsgp.compile import building, simplify
from pymc_vsgp.engine.blocks import stack_latents
from pymc_vsgp.engine.vectorized import BATCH_BYTES, Batched
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.custom import Custom, at_some_rows
from pymc_vsgp.likelihoods.mixed import Mixed, by_dims
from pymc_vsgp.model.copies import same_data
from pymc_vsgp.model.observation import Observation, find_observation
from pymc_vsgp.model.places import kept_data
from pymc_vsgp.results.matching import check_inducing, check_labels
from pymc_vsgp.results.posterior import Draws
from pymc_vsgp.rvs import check_own

SLAB = 250_000  # numbers that are passed from one function of draws to the next
ROWS = 2048  # of the data that scores and checks work on at a time
FEW = 16  # rows that show how large the arrays of a function are
FIRST = slice(0, 1)  # where all draws say the same


class _Function(NamedTuple):
    """A function of draws and of what each of them has, then of other inputs and of data."""

    fn: Batched
    rvs: tuple[str, ...]
    data: tuple[SharedVariable, ...]


class DrawnRows:
    """Rows of inputs that depend on random variables, so that each draw has its own."""

    def __init__(self, start: int, stop: int):
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start

    def __getitem__(self, some: slice) -> "DrawnRows":
        """Return some of the rows."""
        start, stop, _ = some.indices(len(self))
        return DrawnRows(self.start + start, self.start + stop)


class Compiled:
    """Functions of one likelihood of a model, each compiled when it is first used."""

    def __init__(self, model: Model, observation: Observation, mode=None, mesh=None):
        self.model = weakref.proxy(model)
        self.observation = observation
        self.mode, self.mesh = mode, mesh
        self._known: dict[str, _Function] = {}

    def __call__(self, key: str, build: Callable[[], tuple[list, list, list]]) -> _Function:
        """Return the function named `key`, which `build` gives inputs and outputs for.

        First the inputs that each draw has its own of, then those that are the same for all.
        """
        with _COMPILING, building:
            if key not in self._known:
                self._known[key] = self._prepare(*build())
            return self._known[key]

    def _prepare(self, each, same, outputs):
        model = self.model
        # Ancestors of random variables do not matter: these have values.
        stop = set(model.basic_RVs) - set(outputs)
        seen = list(ancestors(outputs, blockers=stop))
        check_own(seen, model)
        rvs = [v for v in model.free_RVs if v in set(seen)]
        fixed = [v for v in model.observed_RVs if v in set(seen)]
        data = [v for v in _data_among(seen, model) if v not in same]
        swaps = {v: v.type() for v in (*rvs, *data)}
        for v in fixed:
            swaps[v] = model.rvs_to_values[v].astype(v.dtype)
        outputs = graph_replace(list(outputs), swaps, strict=False) if swaps else outputs
        each, same = [*(swaps[v] for v in rvs), *each], [*same, *(swaps[v] for v in data)]
        fn = Batched(each, same, outputs, self.mode, _COMPILING, self.mesh)
        return _Function(fn, tuple(v.name for v in rvs), tuple(data))


def _data_among(variables: Iterable[Variable], model: Model) -> list[SharedVariable]:
    return [v for v in variables if isinstance(v, SharedVariable) and v.name in model.named_vars]


# PyTensor changes settings of the whole process while it compiles.
_COMPILING = threading.RLock()
_CACHE: "weakref.WeakKeyDictionary[Model, dict[Any, Compiled]]" = weakref.WeakKeyDictionary()


class Fitted:
    """One likelihood of a model at draws of its posterior.

    Arguments are those of :func:`pymc_vsgp.predict`. Without a `mode` numpy does the work, or
    the devices of a `mesh`.
    """

    def __init__(
        self,
        idata,
        model=None,
        name=None,
        likelihood=None,
        num_samples=None,
        mode=None,
        mesh=None,
        new=None,
    ):
        given = model_of(model)
        self.model = given.root  # a model within another has parameters of that
        if not isinstance(name, str | None):
            raise TypeError(f"var_name is {kind(name)}. Pass the name of an observed variable.")
        self.draws = Draws(idata, num_samples)
        self._compared: set[str] = set()
        terms = tuple(v.name for v in (*given.observed_RVs, *given.potentials))
        key = (name, mode, mesh, terms)
        with _COMPILING:
            cache = _CACHE.setdefault(given, {})
            if key not in cache:
                cache[key] = Compiled(self.model, find_observation(given, name), mode, mesh)
            self.compiled = cache[key]
        self.of_model = self.compiled.observation.likelihood
        if likelihood is not None:
            o = self._observed_as(likelihood, new)
            self.compiled = Compiled(self.model, o, mode, mesh)
        self.observation = self.compiled.observation
        self.likelihood = self.observation.likelihood
        for part in self.observation.parts:
            check_inducing(part, self.model, self.draws)
        check_labels(self)

    def _observed_as(self, lik: Likelihood, new: str | None) -> Observation:
        """Return the observation with another likelihood, on the same functions.

        The dimension of new inputs is that of rows in its parameters, too.
        """
        if isinstance(self.of_model, Mixed) and not isinstance(lik, Mixed):
            dims = self.model.named_vars_to_dims.get(self.compiled.observation.name)
            rows, outputs = dims if dims and self.of_model.ndim_y else (None, None)
            W, number = self.of_model.params["W"], self.of_model.n_latent
            lik = Mixed(by_dims(lik, rows, outputs, self.model, new), W, number)
            if lik.ndim_y:
                lik.check_widths(np.asarray(known_value(self.compiled.observation.y)).shape[1])
        if lik.n_latent not in (None, self.of_model.n_latent):
            raise ValueError(
                f"{type(lik).__name__} has {lik.n_latent} latent functions, but "
                f"{type(self.of_model).__name__} of the model has {self.of_model.n_latent}. "
                "Pass a likelihood of as many functions."
            )
        # What is passed now holds now, whatever was kept with the draws under its name. The mixing
        # matrix is the model's.
        lik = lik.replace(**{n: self._as_of_now(p) for n, p in lik.params.items() if n != "W"})
        rows = tuple(n for n in lik.params if lik._goes_with_rows(n))
        return self.compiled.observation._replace(likelihood=lik, row_params=rows)

    def _as_of_now(self, parameter):
        """Return a parameter of a likelihood with the values that data of the model have now."""
        value = known_value(parameter)
        if value is not None:
            return value
        data = _data_among(ancestors([parameter], blockers=self.model.basic_RVs), self.model)
        now = {v: pt.constant(v.get_value(), dtype=v.dtype) for v in data}
        return graph_replace([parameter], now, strict=False)[0] if now else parameter

    def check_rows(self, n: int, what: str) -> None:
        """Raise unless parameters with an entry for each row have `n` of them."""
        lik, names = self.likelihood, self.observation.row_params
        if not names:
            return
        lengths = self.call(
            "rows", FIRST, lambda: ([], [], [lik.params[p].shape[0] for p in names])
        )
        for name, (length,) in zip(names, lengths, strict=True):
            if length != n:
                raise ValueError(
                    f"{lik.said(name)} has {length} entries, but {what} has {n} "
                    f"rows. Pass one value, or one for each row of {what}."
                )

    @cached_property
    def seen(self) -> tuple[np.ndarray | DrawnRows, np.ndarray]:
        """The inputs as `moments` takes them and the observations, of which there are as many."""
        X, y = self.rows, np.asarray(self.y)
        if len(X) != len(y):
            raise ValueError(
                f"The inputs of {self.name!r} have {len(X)} rows, but there are {len(y)} "
                "observations. Set the model's data back to those of the draws."
            )
        self.check_rows(len(y), "X")
        return X, y

    @property
    def name(self) -> str:
        """Name of the likelihood."""
        return self.observation.name

    @cached_property
    def X_symbol(self) -> Variable:
        """A few rows of the inputs."""
        return pt.tensor("X", dtype="float64", shape=(None, self.n_columns))

    @property
    def n_columns(self) -> int:
        """Number of inputs."""
        return self.observation.parts[0].conditional.n_columns

    @property
    def by(self) -> str | None:
        """Dimension of the groups, where a process has a function for each."""
        dims = (p.conditional.by for p in self.observation.parts)
        return next((by for by in dims if by is not None), None)

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the inputs, where they have names."""
        for p in self.observation.parts:
            dim = f"{p.u.name}_feature"
            names, kept = names_of(self.model.coords.get(dim)), None
            if self.draws.constant is not None and dim in self.draws.constant.coords:
                kept = names_of(self.draws.constant[dim].values)
            if names and kept and names != kept:
                raise ValueError(
                    f"The draws are of a model with the columns {list(kept)}, and this one has "
                    f"{list(names)}. Build it with the columns in that order."
                )
            if names or kept:
                return names or kept
        return None

    def points(self, i: int) -> np.ndarray:
        """Inducing inputs of a process: no rows where it has none."""
        part = self.observation.parts[i]
        return self.call(f"points{i}", FIRST, lambda: ([], [], [part.points]))[0][0]

    def slabs(self, n: int, at: slice | None = None) -> Iterator[slice]:
        """Yield draws, so many at a time that n numbers of each are held with ease."""
        first, last = (0, self.draws.n) if at is None else (at.start, at.stop)
        step = max(1, SLAB // max(n, 1))
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))

    def call(
        self, key: str, at: slice, build: Callable, each=(), same=(), rng=None
    ) -> list[np.ndarray]:
        """Evaluate at some draws, which are on the first axis of what it returns.

        `build` gives inputs and outputs where it is not compiled yet; `each` has an entry for each
        of the draws, and `same` is the same for all.
        """
        f = self.compiled(key, build)
        draws = [self.draws.values(name)[at] for name in f.rvs]
        return f.fn([*draws, *each], [*same, *self._data(f.data)], rng)

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """Data of the model that were kept with the draws."""
        constant, observed, y = self.draws.constant, self.draws.observed, self.observation.y
        kept = {} if constant is None else dict(constant.variables)
        # What is observed as it is, is not among the constant data.
        if isinstance(y, SharedVariable) and observed is not None and self.name in observed:
            kept[y.name] = observed[self.name]
        return kept

    def _data(self, data: Sequence[SharedVariable]) -> list[np.ndarray]:
        kept, changed, out = self._kept, [], []
        for shared in data:
            name, value = str(shared.name), shared.get_value(borrow=True)
            if name in kept:
                now, value = value, kept[name].values
                if name not in self._compared:  # once: functions of draws are called for each chunk
                    self._compared.add(name)
                    if shared not in self._moved and not same_data(now, value):
                        changed.append(name)
            out.append(np.asarray(value, dtype=shared.type.dtype))
        if changed:
            warnings.warn(
                f"{', '.join(map(repr, sorted(changed)))} of the model changed since it was "
                "sampled, and the values kept with the draws are used. For others, predict or use "
                "log_predictive_density, and pass Xnew and a likelihood of other data.",
                skip_file_prefixes=PACKAGE,
            )
        return out

    @cached_property
    def _moved(self) -> set[Any]:
        """Data that are of the fit, such as inducing inputs, and may differ in another model."""
        return {v for p in self.observation.parts for v in kept_data(p, self.model)}

    @cached_property
    def X(self) -> np.ndarray:
        """The inputs that the model was fitted to, which have to be the same for all draws."""
        o = self.observation
        if self.has_random_inputs:
            raise ValueError(
                f"The inputs of {o.name!r} depend on random variables of the model, so each draw "
                "has its own. Use predict, with Xnew or without, and loo: they take such inputs."
            )
        return self.call("X", FIRST, lambda: ([], [], [o.X]))[0][0]

    @cached_property
    def has_random_inputs(self) -> bool:
        """Whether the inputs depend on random variables of the model."""
        free = set(self.model.free_RVs)
        return any(a in free for a in ancestors([self.observation.X]))

    @cached_property
    def rows(self) -> np.ndarray | DrawnRows:
        """The inputs that the model was fitted to, as `moments` takes them."""
        if not self.has_random_inputs:
            return self.X
        n = self.call("n_rows", FIRST, lambda: ([], [], [self.observation.X.shape[0]]))[0][0]
        return DrawnRows(0, int(n))

    def _inputs(self, X: np.ndarray | DrawnRows) -> tuple[str, Variable, list, list]:
        """Return a key, the symbol of these rows, and what it is made of: symbols and values."""
        if not isinstance(X, DrawnRows):
            return "", self.X_symbol, [self.X_symbol], [X]
        start, stop = pt.lscalar(), pt.lscalar()
        return "_drawn", self.observation.X[start:stop], [start, stop], [X.start, X.stop]

    @cached_property
    def y(self) -> np.ndarray:
        """The observations that the model was fitted to."""
        kept = self.draws.observed
        if kept is not None and self.name in kept:
            # Which warns where they have changed.
            self._data(_data_among(ancestors([self.observation.y]), self.model))
            return kept[self.name].values
        return self.call("y", FIRST, lambda: ([], [], [self.observation.y]))[0][0]

    @cached_property
    def y_dims(self) -> tuple[str, ...]:
        """Dimensions of the observations."""
        dims = self.model.named_vars_to_dims.get(self.name)
        ndim = 1 + self.likelihood.ndim_y
        default = [f"{self.name}_obs", f"{self.name}_output"][:ndim]
        dims = list(dims or default)
        return tuple(d or e for d, e in zip(dims, default, strict=True))

    def coords_of(self, dims: Sequence[str]) -> dict[str, Any]:
        """Labels of the model's dimensions, where it has labels: those that the draws have."""
        known = self.model.coords
        of_draws = [g for g in (self.draws.observed, self.draws.posterior) if g is not None]
        out = {}
        for d in dims:
            kept = [group.coords[d].values for group in of_draws if d in group.coords]
            if kept:
                out[d] = kept[0]
            elif d in known and known[d] is not None:
                out[d] = np.asarray(known[d])
        return out

    def groups(self, by: str) -> dict[str, Any]:
        """Labels of the groups of a process, in the order that the draws have them in."""
        labels, now = self.coords_of([by]), self.model.coords.get(by)
        if now is not None and by in labels and len(labels[by]) != len(now):
            raise ValueError(
                f"The draws have {len(labels[by])} groups along {by!r}, and the model has "
                f"{len(now)}. Build the model with the coords that it was sampled with."
            )
        return labels

    def moments(self, at: slice, X: np.ndarray | DrawnRows) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each row of X given some draws, as the likelihood takes them.

        Here and below the draws are on the first axis.
        """
        key, rows, symbols, values = self._inputs(X)

        def build():
            mu, gamma = stack_latents([p.moments(rows) for p in self.observation.parts])
            return [], symbols, [mu, gamma]

        mu, gamma = self.call(f"moments{key}", at, build, same=values)
        return mu, gamma

    def joint_moments(
        self, at: slice, X: np.ndarray | DrawnRows
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and covariance of f at the rows of X given some draws, for each process."""
        key, rows, symbols, values = self._inputs(X)

        def build():
            return [], symbols, [m for p in self.observation.parts for m in p.joint(rows)]

        flat = self.call(f"joint{key}", at, build, same=values)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def _of_rows(self, *extra: str, y_dtype: str | None = None, n_outputs: Sequence[int] = ()):
        """Symbols for rows: those asked for, where they start and stop, the likelihood."""
        o = self.observation
        lik = o.likelihood
        single = lik.n_latent == 1 and len(o.parts) == 1 and not o.parts[0].several
        number = None if single else self.n_functions
        symbols = {
            "mu": pt.tensor(dtype="float64", shape=(None,) if single else (None, number)),
            "y": o.y.type.clone(dtype=y_dtype, shape=(None, *n_outputs))(),
        }
        symbols["gamma"], symbols["f"] = symbols["mu"].type(), symbols["mu"].type()
        start, stop = pt.lscalar(), pt.lscalar()
        if o.row_params:
            lik = lik.replace(**{n: lik.params[n][start:stop] for n in o.row_params})
        chosen = [symbols[e] for e in extra]
        each, same = ([symbols[e] for e in extra if (e == "y") is y] for y in (False, True))
        return lik, chosen, each, [*same, start, stop]

    @cached_property
    def n_functions(self) -> int:
        """Number of functions that the likelihood takes."""
        total = 0
        for p in self.observation.parts:
            total += self.draws.values(p.u.name).shape[1] if p.several else 1
        return total

    def rowwise(self, key, graph, at, each, y=None, start=0, *, rng=None) -> list[np.ndarray]:
        """Evaluate graphs of the likelihood at rows from `start`, and some draws of them.

        `each` has "mu" and "gamma", or "f"; `graph` takes the likelihood, these, and y if there
        is one.
        """
        names, arrays = [*each, *(["y"] if y is not None else [])], list(each.values())
        dtype = None if y is None else self._dtype_of_y(y)
        rows = [] if y is None else [np.asarray(y, dtype)]
        # A joint density is a graph of each output.
        n_outputs = () if y is None else rows[0].shape[1:]

        def build():
            of_rows = self._of_rows(*names, y_dtype=dtype, n_outputs=n_outputs)
            lik, symbols, each, same = of_rows
            outputs = graph(lik, *symbols)
            # To vectorize densities of PyMC may take for ever: PyTensor simplifies each shape in
            # them, and for that those of what is under it.
            if rng is None and isinstance(getattr(lik, "family", lik), Custom):
                outputs = simplify(outputs)
            return each, same, outputs

        key = "_".join(map(str, (key, dtype, *n_outputs)))
        fn = self.compiled(key, build).fn
        i, n = 0, arrays[0].shape[1]
        parts: list[list[np.ndarray]] = []
        while not parts or i < n:
            # A few rows say how many go at a time. Where numbers are drawn, and on devices, all do.
            known, all_of_them = fn.bytes.get(key), rng is not None or fn.mesh is not None
            step = n if all_of_them else FEW if known is None else BATCH_BYTES // known
            to = slice(i, min(i + max(step, 1), n))
            same = [*(r[to] for r in rows), start + i, start + to.stop]
            at_rows = [a[:, to] for a in arrays]
            call = partial(self.call, key, at, build, at_rows, same, rng)
            parts.append(at_some_rows(self.likelihood, to.stop - i, call))
            fn.bytes.setdefault(key, 1 + max(fn.bytes.values(), default=0) // (to.stop - i))
            i = to.stop
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(column, axis=1) for column in zip(*parts, strict=True)]

    def _method(self, name, at, each, y=None, start=0, *, rng=None) -> np.ndarray:
        def graph(lik, *symbols):
            return [getattr(lik, name)(*symbols)]

        return self.rowwise(name, graph, at, each, y, start, rng=rng)[0]

    def _dtype_of_y(self, y) -> str:
        """Dtype of the model's observations, unless these are none that it holds."""
        own = self.observation.y.dtype
        with np.errstate(invalid="ignore"):
            kept = np.array_equal(np.asarray(y).astype(own), y)
        return own if kept or own.startswith("float") else "float64"

    def expected_logp(self, at, mu, gamma, y, start=0) -> np.ndarray:
        """``E[log p(y | f)]`` at rows from `start`."""
        return self._method("expected_logp", at, {"mu": mu, "gamma": gamma}, y, start)

    def log_predictive(self, at, mu, gamma, y, start=0) -> np.ndarray:
        """``log E[p(y | f)]`` at rows from `start`."""
        return self._method("log_predictive", at, {"mu": mu, "gamma": gamma}, y, start)

    def log_density(self, at, mu, gamma, y, start=0) -> np.ndarray:
        """Return `log_predictive` of random draws, which are never censored."""

        def graph(lik, *symbols):
            return [lik.of_draws.log_predictive(*symbols)]

        return self.rowwise("log_density", graph, at, {"mu": mu, "gamma": gamma}, y, start)[0]

    def log_prob(self, at, f, y, start=0) -> np.ndarray:
        """``log p(y | f)`` at rows from `start`."""
        return self._method("log_prob", at, {"f": f}, y, start)

    def mean(self, at, mu, gamma, start=0) -> np.ndarray:
        """``E[y]`` at rows from `start`: for classes, the probability of each."""
        return self._method("mean", at, {"mu": mu, "gamma": gamma}, None, start)

    def draw_y(self, at, f, start=0, *, rng: np.random.Generator) -> np.ndarray:
        """Draw observations given f at rows from `start`."""
        try:
            return self._method("dist", at, {"f": f}, None, start, rng=rng)
        except ValueError as error:
            # What numpy says of a Poisson's mean, and scipy of that of a negative binomial.
            if not any(word in str(error) for word in ("too large", "`scale`")):
                raise
            raise ValueError(
                f"An observation has a mean that is too large to draw it: {error}. "
                "Ask for 'mean' or 'f', or leave out rows that are far from the data."
            ) from None
