"""Functions of a model's latent functions, evaluated at draws of its posterior.

Everything is found in the model and in the draws, so draws that were saved and loaded work, given
the model. Data that were kept with the draws (``constant_data``) take precedence over the model's:
inducing inputs that a Gaussian stage moved are where they were when the draws were made.
"""

import threading
import weakref

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import known_value, names_of
from pymc_vsgp.compile import ONCE, function
from pymc_vsgp.engine.blocks import stack_latents
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.model.observation import Observation, find_observation
from pymc_vsgp.ops.numpy_only import numpy_only

__all__ = ["Draws", "Fitted"]


class Draws:
    """Draws of a posterior, and the data that were kept with them.

    Parameters
    ----------
    idata : DataTree or Dataset
        With the group ``posterior``, or that group itself.
    num_samples : int, optional
        How many draws to use, spread evenly over each chain. By default all.
    """

    def __init__(self, idata: Any, num_samples: int | None = None):
        posterior, self.constant, self.observed = idata, None, None
        if isinstance(idata, xr.DataTree):
            if "posterior" not in idata.children:
                raise ValueError(
                    f"The draws have the groups {list(idata.children)}, but no posterior. "
                    "Pass what vsgp.sample or pm.sample returned."
                )
            posterior = idata["posterior"].to_dataset()
            self.constant = _group(idata, "constant_data")
            self.observed = _group(idata, "observed_data")
        if not isinstance(posterior, xr.Dataset):
            raise TypeError(
                f"The draws are of type {type(idata).__name__}, not a DataTree. "
                "Pass what vsgp.sample or pm.sample returned."
            )
        if "draw" not in posterior.dims or "chain" not in posterior.dims:
            raise ValueError(
                f"The draws have the dimensions {list(posterior.dims)}, but chain and draw are "
                "needed. Pass the posterior as it came from the sampler, not stacked."
            )
        if num_samples is not None:
            posterior = _thin(posterior, num_samples)
        self.posterior = posterior
        self.shape = (posterior.sizes["chain"], posterior.sizes["draw"])
        self.n = self.shape[0] * self.shape[1]
        self._flat: dict[str, np.ndarray] = {}

    def values(self, name: str) -> np.ndarray:
        """Draws of a variable, chains one after the other."""
        if name not in self._flat:
            if name not in self.posterior:
                raise ValueError(
                    f"The posterior has no draws of {name!r}, which the model needs. "
                    "Sample it too, or fix it with pm.do before you pass the model."
                )
            array = self.posterior[name].transpose("chain", "draw", ...).values
            self._flat[name] = array.reshape(self.n, *array.shape[2:])
        return self._flat[name]

    def unstack(self, array: np.ndarray) -> np.ndarray:
        """Split the first axis into chains and draws."""
        return array.reshape(*self.shape, *array.shape[1:])

    @property
    def coords(self) -> dict[str, Any]:
        """Labels of chains and draws."""
        return {d: self.posterior[d].values for d in ("chain", "draw") if d in self.posterior}


def _group(idata: xr.DataTree, name: str) -> xr.Dataset | None:
    return idata[name].to_dataset() if name in idata.children else None


def _thin(posterior: xr.Dataset, num_samples: int) -> xr.Dataset:
    if (
        isinstance(num_samples, bool)
        or not isinstance(num_samples, int | np.integer)
        or num_samples < 1
    ):
        raise ValueError(
            f"num_samples is {num_samples!r}, but it is a number of draws. "
            "Pass a whole number, 1 or more, or None for all of them."
        )
    n = posterior.sizes["draw"]
    wanted = min(-(-int(num_samples) // posterior.sizes["chain"]), n)
    return posterior.isel(draw=np.unique(np.linspace(0, n - 1, wanted).round().astype(int)))


class _Function(NamedTuple):
    """A compiled function of extra inputs, then of draws, then of data."""

    fn: Any
    rvs: tuple[str, ...]
    data: tuple[str, ...]
    current: tuple[SharedVariable, ...]
    lock: Any
    """A compiled function keeps its arguments in itself, so one thread at a time may call it."""

    def __call__(self, *arguments, rng: np.random.Generator | None = None) -> list[np.ndarray]:
        """Evaluate; `rng` seeds what is random in it."""
        with self.lock:
            for shared in self.fn.get_shared():
                if rng is not None and isinstance(
                    shared.get_value(borrow=True), np.random.Generator
                ):
                    shared.set_value(np.random.default_rng(rng.integers(2**63)), borrow=True)
            return [np.asarray(x) for x in self.fn(*arguments)]


class Compiled:
    """Functions of one likelihood of a model, each compiled when it is first used."""

    def __init__(self, model: Model, observation: Observation, mode=None):
        self.model = weakref.proxy(model)
        self.observation = observation
        self.mode = ONCE if mode is None else mode
        self._known: dict[str, _Function] = {}

    def __call__(self, key: str, build: Callable[[], tuple[list, list]]) -> _Function:
        """Return the function named `key`, which `build` gives inputs and outputs for."""
        with _COMPILING:
            if key not in self._known:
                self._known[key] = self._compile(*build())
            return self._known[key]

    def _compile(self, inputs, outputs):
        model = self.model
        # Ancestors of random variables do not matter: these have values.
        stop = set(model.basic_RVs) - set(outputs)
        seen = list(ancestors(outputs, blockers=stop))
        rvs = [v for v in model.free_RVs if v in set(seen)]
        fixed = [v for v in model.observed_RVs if v in set(seen)]
        data = [
            v
            for v in seen
            if isinstance(v, SharedVariable) and v.name in model.named_vars and v not in inputs
        ]
        swaps = {v: v.type() for v in (*rvs, *data)}
        for v in fixed:
            swaps[v] = model.rvs_to_values[v].astype(v.dtype)
        outputs = graph_replace(list(outputs), swaps, strict=False) if swaps else outputs
        if self.mode is ONCE:
            outputs = numpy_only(outputs)
        all_inputs = [*inputs, *(swaps[v] for v in (*rvs, *data))]
        fn = function(all_inputs, outputs, self.mode)
        fn.trust_input = False
        of_rvs, of_data = (tuple(v.name for v in vs) for vs in (rvs, data))
        return _Function(fn, of_rvs, of_data, tuple(data), threading.Lock())


# PyTensor changes settings of the whole process while it compiles.
_COMPILING = threading.RLock()
_CACHE: "weakref.WeakKeyDictionary[Model, dict[Any, Compiled]]" = weakref.WeakKeyDictionary()


class Fitted:
    """One likelihood of a model at draws of its posterior.

    Parameters
    ----------
    idata : DataTree
        Draws.
    model : Model, optional
        By default the model on the context stack.
    name : str, optional
        Name of the likelihood, where there are several.
    likelihood : Likelihood, optional
        Takes the place of that of the model, on the same functions.
    num_samples : int, optional
        How many draws to use.
    mode : str or Mode, optional
        How to compile. By default numpy does the work.
    """

    def __init__(self, idata, model=None, name=None, likelihood=None, num_samples=None, mode=None):
        self.model = pm.modelcontext(model)
        self.draws = Draws(idata, num_samples)
        terms = tuple(v.name for v in (*self.model.observed_RVs, *self.model.potentials))
        key = (name, mode, terms)
        with _COMPILING:
            cache = _CACHE.setdefault(self.model, {})
            if key not in cache:
                cache[key] = Compiled(self.model, find_observation(self.model, name), mode)
            self.compiled = cache[key]
        self.of_model = self.compiled.observation.likelihood
        if likelihood is not None:
            o = self._observed_as(likelihood)
            self.compiled = Compiled(self.model, o, mode)
        self.observation = self.compiled.observation
        self.likelihood = self.observation.likelihood

    def _observed_as(self, lik: Likelihood) -> Observation:
        """Return the observation with another likelihood, on the same functions."""
        if isinstance(self.of_model, Mixed) and not isinstance(lik, Mixed):
            lik = Mixed(lik, self.of_model.params["W"])
        if lik.n_latent not in (None, self.of_model.n_latent):
            raise ValueError(
                f"{type(lik).__name__} has {lik.n_latent} latent functions, but "
                f"{type(self.of_model).__name__} of the model has {self.of_model.n_latent}. "
                "Pass a likelihood of as many functions."
            )
        # What is passed now holds now, whatever was kept with the draws under its name.
        values = {n: known_value(p) for n, p in lik.params.items() if lik._goes_with_rows(n)}
        lik = lik.replace(**{n: v for n, v in values.items() if v is not None})
        rows = tuple(n for n in lik.params if lik._goes_with_rows(n))
        return self.compiled.observation._replace(likelihood=lik, row_params=rows)

    def check_rows(self, n: int, what: str) -> None:
        """Raise unless parameters with an entry for each row have `n` of them."""
        lik, names = self.likelihood, self.observation.row_params
        if not names:
            return
        lengths = self.call("rows", 0, lambda: ([], [lik.params[p].shape[0] for p in names]))
        for name, length in zip(names, lengths, strict=True):
            if length != n:
                raise ValueError(
                    f"{name} of {type(lik).__name__} has {length} entries, but {what} has {n} "
                    f"rows. Pass one value, or one for each row of {what}."
                )

    @cached_property
    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """The inputs and the observations, of which there are as many."""
        X, y = self.X, np.asarray(self.y)
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
        return self.points(0).shape[1]

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
        return self.call(f"points{i}", 0, lambda: ([], [self.observation.parts[i].points]))[0]

    def call(self, key: str, s: int, build: Callable, *arguments, rng=None) -> list[np.ndarray]:
        """Evaluate at draw s; `build` gives inputs and outputs where it is not compiled yet."""
        f = self.compiled(key, build)
        draws = [self.draws.values(n)[s] for n in f.rvs]
        return f(*arguments, *draws, *self._data(f), rng=rng)

    def _data(self, f: _Function) -> list[np.ndarray]:
        kept = self.draws.constant
        out = []
        for name, shared in zip(f.data, f.current, strict=True):
            if kept is not None and name in kept:
                value = kept[name].values
            else:
                value = shared.get_value(borrow=True)
            out.append(np.asarray(value, dtype=shared.type.dtype))
        return out

    @cached_property
    def X(self) -> np.ndarray:
        """The inputs that the model was fitted to."""
        o = self.observation
        if any(a in set(self.model.free_RVs) for a in ancestors([o.X])):
            raise ValueError(
                f"The inputs of {o.name!r} depend on random variables of the model. "
                "Use gp.conditional and pm.sample_posterior_predictive."
            )
        f = self.compiled("X", lambda: ([], [o.X]))
        return f(*self._data(f))[0]

    @cached_property
    def y(self) -> np.ndarray:
        """The observations that the model was fitted to."""
        kept = self.draws.observed
        if kept is not None and self.name in kept:
            return kept[self.name].values
        f = self.compiled("y", lambda: ([], [self.observation.y]))
        return f(*self._data(f))[0]

    @cached_property
    def y_dims(self) -> tuple[str, ...]:
        """Dimensions of the observations."""
        dims = self.model.named_vars_to_dims.get(self.name)
        ndim = 1 + self.likelihood.ndim_y
        default = [f"{self.name}_obs", f"{self.name}_output"][:ndim]
        dims = list(dims or default)
        return tuple(d or e for d, e in zip(dims, default, strict=True))

    def coords_of(self, dims: Sequence[str]) -> dict[str, Any]:
        """Labels of the model's dimensions, where it has labels."""
        known = self.model.coords
        kept = self.draws.observed
        out = {}
        for d in dims:
            if kept is not None and d in kept.coords:
                out[d] = kept.coords[d].values
            elif d in known and known[d] is not None:
                out[d] = np.asarray(known[d])
        return out

    def moments(self, s: int, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each row of X given draw s, as the likelihood takes them."""

        def build():
            X = self.X_symbol
            mu, gamma = stack_latents([p.moments(X) for p in self.observation.parts])
            return [X], [mu, gamma]

        mu, gamma = self.call("moments", s, build, X)
        return mu, gamma

    def joint_moments(self, s: int, X: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and covariance of f at the rows of X given draw s, for each process."""

        def build():
            X = self.X_symbol
            return [X], [m for p in self.observation.parts for m in p.joint(X)]

        flat = self.call("joint", s, build, X)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def _of_rows(self, *extra: str, y_dtype: str | None = None):
        """Symbols for rows: mu, gamma or f or y, where they start and stop, the likelihood."""
        o = self.observation
        lik = o.likelihood
        single = lik.n_latent == 1 and len(o.parts) == 1 and not o.parts[0].several
        number = None if single else self._n_functions
        symbols = {
            "mu": pt.tensor(dtype="float64", shape=(None,) if single else (None, number)),
            "y": o.y.type.clone(dtype=y_dtype, shape=(None,) * o.y.type.ndim)(),
        }
        symbols["gamma"], symbols["f"] = symbols["mu"].type(), symbols["mu"].type()
        start, stop = pt.lscalar(), pt.lscalar()
        if o.row_params:
            lik = lik.replace(**{n: lik.params[n][start:stop] for n in o.row_params})
        chosen = [symbols[e] for e in extra]
        return lik, chosen, [*chosen, start, stop]

    @cached_property
    def _n_functions(self) -> int:
        total = 0
        for p in self.observation.parts:
            total += self.draws.values(p.u.name).shape[1] if p.several else 1
        return total

    def _rowwise(self, method, extra, s, arguments, start, *, rng=None):
        """Evaluate a method of the likelihood at rows from `start`."""
        key, dtype = method, None
        if "y" in extra:
            *others, y = arguments
            dtype = self._dtype_of_y(y)
            arguments, key = (*others, np.asarray(y, dtype)), f"{method}_{dtype}"

        def build():
            lik, symbols, inputs = self._of_rows(*extra, y_dtype=dtype)
            return inputs, [getattr(lik, method)(*symbols)]

        stop = start + len(arguments[0])
        return self.call(key, s, build, *arguments, start, stop, rng=rng)[0]

    def _dtype_of_y(self, y) -> str:
        """Dtype of the model's observations, unless they are whole and these are not."""
        own = self.observation.y.dtype
        whole = np.asarray(y).dtype.kind != "f" or (np.mod(y, 1) == 0).all()
        return own if whole or own.startswith("float") else "float64"

    def expected_logp(self, s, mu, gamma, y, start=0) -> np.ndarray:
        """``E[log p(y | f)]`` at rows from `start`."""
        return self._rowwise("expected_logp", ("mu", "gamma", "y"), s, (mu, gamma, y), start)

    def log_predictive(self, s, mu, gamma, y, start=0) -> np.ndarray:
        """``log E[p(y | f)]`` at rows from `start`."""
        return self._rowwise("log_predictive", ("mu", "gamma", "y"), s, (mu, gamma, y), start)

    def log_prob(self, s, f, y, start=0) -> np.ndarray:
        """``log p(y | f)`` at rows from `start`."""
        return self._rowwise("log_prob", ("f", "y"), s, (f, y), start)

    def mean(self, s, mu, gamma, start=0) -> np.ndarray:
        """``E[y]`` at rows from `start`: for classes, the probability of each."""
        return self._rowwise("mean", ("mu", "gamma"), s, (mu, gamma), start)

    def draw_y(self, s, f, start=0, *, rng: np.random.Generator) -> np.ndarray:
        """Draw observations given f at rows from `start`."""
        return self._rowwise("dist", ("f",), s, (f,), start, rng=rng)
