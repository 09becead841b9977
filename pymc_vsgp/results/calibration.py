"""Simulation-based calibration: whether the sampler finds what the prior drew.

Draw parameters and data from the prior, sample the posterior of these data, and take the rank of
each parameter among its draws. Over many replicates the ranks are uniform if model, approximation
and sampler are right together (Talts et al., 2018).
"""

import bisect
import contextlib
import importlib.util
import logging

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytensor
import scipy.stats

from pymc.model.core import Model
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import (
    as_array,
    as_real,
    check_built,
    check_number,
    generator_of,
    known_value,
)
from pymc_vsgp.compile import function
from pymc_vsgp.engine.pointwise import ObservationRV
from pymc_vsgp.fit.bound import unconstrained
from pymc_vsgp.fit.collapsed import can_collapse, collapse
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.fit.importance import weigh
from pymc_vsgp.fit.proposals import REDRAWS
from pymc_vsgp.fit.sampling import sample
from pymc_vsgp.fit.sites import site_names
from pymc_vsgp.fit.starts import search
from pymc_vsgp.fit.walk import draws_of
from pymc_vsgp.fit.weigher import Weigher
from pymc_vsgp.model.copies import without_initial_values
from pymc_vsgp.progress import progress

# Of importance weights: for each draw that is kept, and in all.
PROPOSALS, FEWEST_PROPOSALS = 4, 500
Y = "calibration_y"  # what observations are called in a compiled function
FEWEST = 50  # replicates that say something of uniformity


@dataclass
class Calibration:
    """Ranks of the parameters among their posterior draws.

    Attributes
    ----------
    ranks : dict
        For each number that was checked, its rank in each replicate, from 0 to `n_ranks`.
    n_ranks : int
        Number of draws that a rank is taken among.
    n_nuts : int
        Number of replicates whose importance weights were refused, so that NUTS drew.
    p_values : dict
        Of the hypothesis that the ranks are uniform: how often their distribution function strays
        as far at any rank (Säilynoja et al., 2022), which is right for any number of ranks.
    """

    ranks: dict[str, np.ndarray]
    n_ranks: int
    n_nuts: int = 0
    p_values: dict[str, float] = field(init=False)

    def __post_init__(self):
        """Test each number for uniform ranks."""
        self.p_values = {name: self._p_value(name) for name in self.ranks}

    def below(self, name: str) -> np.ndarray:
        """Return how many replicates have a rank below 1, below 2, ..., below `n_ranks`."""
        return np.cumsum(np.bincount(self.ranks[name], minlength=self.n_ranks + 1))[:-1]

    def _p_value(self, name: str) -> float:
        tails = _tails(len(self.ranks[name]), self.n_ranks)
        furthest = tails[np.arange(self.n_ranks), self.below(name)].min()
        return max(1.0 - _chance_above(tails, furthest), 0.0)

    def band(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest of :meth:`below` that count as uniform."""
        tails = _tails(len(self.ranks[name]), self.n_ranks)
        level = 0.01 / len(self.ranks)
        # The widest band that uniform ranks leave as seldom as that.
        candidates = np.unique(tails)
        at = bisect.bisect_right(candidates, level, key=lambda t: 1.0 - _chance_above(tails, t))
        inside = _above(tails, candidates[at - 1] if at else -1.0)
        return inside.argmax(axis=1), inside.shape[1] - 1 - inside[:, ::-1].argmax(axis=1)

    @property
    def calibrated(self) -> bool:
        """Whether no number is off, at a level of 1 % for all of them together."""
        return min(self.p_values.values()) > 0.01 / len(self.p_values)

    def __repr__(self):
        """Say what was found."""
        n = len(next(iter(self.ranks.values())))
        worst = min(self.p_values, key=lambda name: self.p_values[name])
        found = "uniform ranks" if self.calibrated else "ranks that are NOT uniform"
        by_nuts = f" ({self.n_nuts} by NUTS)" if self.n_nuts else ""
        text = (
            f"Calibration: {n} replicates{by_nuts}, {len(self.ranks)} numbers, {found} "
            f"(smallest p {self.p_values[worst]:.2g}, {worst})"
        )
        if not self.calibrated:
            text += (
                "\n  The posterior is off, or its chains were too short. "
                "Look at vsgp.plot_calibration, sample longer, and try more inducing points."
            )
        return text


def calibrate(
    build: Callable[..., Model],
    y,
    n_replicates: int = 100,
    *,
    draws: int = 250,
    tune: int = 250,
    n_ranks: int = 49,
    n_inducing: int = 3,
    random_seed=None,
    progressbar: bool = True,
) -> Calibration:
    """
    Check a model by simulation-based calibration.

    Parameters
    ----------
    build : callable
        Takes observations, and returns a model with one likelihood that has them as its `y`. Times
        are drawn without limits, so it has to censor them itself.
    y : array_like
        Observations to build the model with, numbers; others are drawn from it.
    n_replicates : int
        Number of data sets to draw and to sample the posterior of: 50 or more.
    draws, tune : int
        As in :func:`sample`; there is one chain.
    n_ranks : int
        Number of draws, evenly spaced, that a rank is taken among.
    n_inducing : int
        How many of the inducing values to check beside the parameters.
    random_seed : int or Generator, optional
        Seed.
    progressbar : bool
        Whether to show the replicates.

    Returns
    -------
    Calibration

    Examples
    --------
    .. code-block:: python

        def build(y):
            with pm.Model() as model:
                lengthscale = pm.Gamma("lengthscale", 4, 4)
                gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale))
                gp.prior("u", Xu=Xu)
                gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
            return model


        result = vsgp.calibrate(build, y)
        vsgp.plot_calibration(result)
    """
    check_number("draws", draws)
    check_number("tune", tune)
    check_number("n_ranks", n_ranks, 0)
    check_number("n_inducing", n_inducing, 0)
    if check_number("n_replicates", n_replicates, 0) < FEWEST:
        raise ValueError(
            f"{n_replicates} replicates say little about the ranks. Take {FEWEST} or more."
        )
    if not 1 <= n_ranks <= draws:
        raise ValueError(
            f"n_ranks is {n_ranks}, but a rank is among 1 to {draws} draws. "
            "Raise draws, or pass another n_ranks."
        )
    rng = generator_of(random_seed)
    shared = _shared(y)
    model = build(shared)
    check_built(model)
    if len(model.observed_RVs) != 1:
        raise ValueError(
            f"The model has {len(model.observed_RVs)} observed variables, and calibration draws "
            "one. Let build return a model with a single likelihood."
        )
    _check_censored(model.observed_RVs[0], shared)
    # Data of the type of y may not hold what is drawn: as whole numbers, where noise is normal.
    if (dtype := np.result_type(shared.dtype, model.observed_RVs[0].dtype)) != shared.dtype:
        shared = _shared(shared.get_value().astype(dtype))
        model = build(shared)
    truth, data = _from_prior(model, n_replicates, rng)
    run = _Sampler(model, shared, draws, tune)
    ranks: dict[str, list[int]] = {}
    with progress("Calibrating", n_replicates, progressbar) as advance:
        for i in range(n_replicates):
            posterior = run(data[i].astype(shared.dtype), int(rng.integers(2**31)))
            for name, draws_of in posterior.items():
                flat = draws_of.reshape(len(draws_of), -1)
                true = np.ravel(truth[name][i])
                is_u = flat.shape[1] > 1 and name in run.inducing
                for j in _some(flat.shape[1], n_inducing) if is_u else range(flat.shape[1]):
                    label = name if flat.shape[1] == 1 else f"{name}[{j}]"
                    at = np.linspace(0, len(flat) - 1, n_ranks).astype(int)
                    ranks.setdefault(label, []).append(int((flat[at, j] < true[j]).sum()))
            advance(1)
    return Calibration({name: np.asarray(r) for name, r in ranks.items()}, n_ranks, run.n_nuts)


def _check_censored(rv, y):
    """Raise where the same rows stay censored: what is drawn are times of events."""
    op = rv.owner.op
    lik = op.likelihood_of(rv.owner).of_output if isinstance(op, ObservationRV) else None
    if lik is None or lik.of_draws is lik or y in ancestors([rv]):
        return
    censored = known_value(lik.params["censored"])
    if censored is None or np.any(censored):
        raise ValueError(
            f"Draws of {lik.title} are times of events, but censored says that some are not. "
            "Let build censor its argument: y=pt.minimum(y, limit), censored=pt.ge(y, limit)."
        )


def _shared(y):
    """Return observations that can be replaced, so that one compiled function serves them all.

    They have sizes, which JAX has to know.
    """
    array = as_array(y, "y")
    real = as_real(y, "y", "Pass numbers, such as the codes 0, 1, 2, ... of classes.")
    y = array if array.dtype.kind in "iub" else real
    return pytensor.shared(np.asarray(y), name=Y, shape=y.shape)


def _from_prior(model, n, rng) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw all free variables n times, and what is observed of them.

    PyMC draws ordered variables in any order, but their density is of those in order.
    """
    rvs, (y,) = model.free_RVs, model.observed_RVs
    inside = function(rvs, unconstrained(model, rvs), "FAST_COMPILE")
    truth: dict[str, list[np.ndarray]] = {rv.name: [] for rv in rvs}
    data: list[np.ndarray] = []
    for _ in range(REDRAWS):
        with model, _without_notes():
            prior = pm.sample_prior_predictive(
                n - len(data),
                random_seed=int(rng.integers(2**31)),
                compile_kwargs={"mode": "FAST_COMPILE"},
            )
        each = {rv.name: prior["prior"][rv.name].values[0] for rv in rvs}
        with np.errstate(all="ignore"):
            kept = [
                i
                for i in range(n - len(data))
                if all(np.isfinite(x).all() for x in inside(*(d[i] for d in each.values())))
            ]
        for name, drawn in each.items():
            truth[name] += [drawn[i] for i in kept]
        data += [prior["prior_predictive"][y.name].values[0, i] for i in kept]
        if len(data) == n:
            return {name: np.array(drawn) for name, drawn in truth.items()}, np.array(data)
    raise ValueError(
        "Hardly any draw of the prior is where the model has a density. "
        "Choose a prior whose draws are nearly always in order."
    )


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Context in which PyMC does not log which variables it draws from the prior."""
    log = logging.getLogger("pymc.sampling.forward")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _tails(n: int, n_ranks: int) -> np.ndarray:
    """Chance of so few or of so many of n uniform ranks below 1, ..., `n_ranks`; the smaller."""
    count, z = np.arange(n + 1), np.arange(1, n_ranks + 1)[:, None] / (n_ranks + 1)
    few, many = scipy.stats.binom.cdf(count, n, z), scipy.stats.binom.sf(count - 1, n, z)
    return np.minimum(few, many)


def _above(tails: np.ndarray, level: float) -> np.ndarray:
    return tails > level * (1.0 + 1e-9)  # equal but for rounding is not above


def _chance_above(tails: np.ndarray, level: float) -> float:
    """Chance that uniform ranks have counts with tails above a level, everywhere.

    Ranks are as if the number of each were Poisson, given that all of them add up to n.
    """
    n_ranks, n = len(tails), tails.shape[1] - 1
    each = scipy.stats.poisson.pmf(np.arange(n + 1), n / (n_ranks + 1))
    chance = np.eye(1, n + 1)[0]
    for inside in _above(tails, level):
        chance = np.convolve(chance, each)[: n + 1] * inside
    return float(chance @ each[::-1] / scipy.stats.poisson.pmf(n, n))


def _some(n: int, wanted: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(wanted, n)).astype(int))


class _Sampler:
    """Sample the posterior of one data set after the other, and compile once.

    By importance weights where they prove to be good, else by NUTS.
    """

    def __init__(self, model, shared, draws, tune):
        self.model, self.shared = model, shared
        self.draws, self.tune = draws, tune
        self.inducing: set[str] = set()
        self.n_nuts = 0
        self.compiled = None
        self.fitter = Fitter(model)
        self.whole = collapse(model, False) if can_collapse(model) else None
        self.target = model if self.whole is None else self.whole.model
        self.weigher: Weigher | None = None

    def __call__(self, y, seed) -> dict[str, np.ndarray]:
        self.shared.set_value(y)
        model = self.model
        if self.whole is not None:
            self.whole.refresh()
        stage = self.fitter()
        if stage.interrupted:
            raise KeyboardInterrupt
        stage.apply()
        if not self.inducing:
            self.inducing = set(stage.mean)
            # Not before: the first stage decides on the coordinates that proposals are in. A
            # density that takes one point at a time is left to NUTS.
            with contextlib.suppress(NotImplementedError):
                self.weigher = Weigher(self.target)
        names = [rv.name for rv in model.free_RVs]
        rng = np.random.default_rng(seed)
        each = max(PROPOSALS, FEWEST_PROPOSALS // self.draws)
        found = None
        if self.weigher is not None:
            found = weigh(stage, self.weigher, each * self.draws, rng, progressbar=False)
            if found.may_be_elsewhere:
                other = search(stage, found.highest, self.fitter, rng, False)
                if other is not None:
                    stage = other
                    stage.apply()
                    found = weigh(stage, self.weigher, each * self.draws, rng, progressbar=False)
        if found is not None and found.interrupted:
            raise KeyboardInterrupt
        if found is not None and not found.refused:
            tree = draws_of(found, model, self.whole, 1, rng)
            return {n: tree["posterior"][n].values[0, each - 1 :: each] for n in names}
        self.n_nuts += 1
        if importlib.util.find_spec("nutpie") is None:
            with model:
                tree = sample(
                    self.draws,
                    stage=stage,
                    method="nuts",
                    tune=self.tune,
                    chains=1,
                    random_seed=seed,
                    progressbar=False,
                    collapse=False,
                    compute_convergence_checks=False,
                )
            return {n: tree["posterior"][n].values[0] for n in names}
        import nutpie

        # As the model holds them, which has an axis more where they are diagonal.
        names_of_sites = {name for u in self.inducing for name in site_names(model[u])}
        sites = [v for v in model.data_vars if v.name in names_of_sites]
        if self.compiled is None:
            from pymc_vsgp.fit.callables import lean_callables

            # What does not change has sizes that JAX knows.
            still = [v.name for v in model.data_vars if v.name not in names_of_sites]
            backend = "jax" if importlib.util.find_spec("jax") else "numba"
            with without_initial_values(model):
                frozen = freeze_dims_and_data(model, data=still)
            with lean_callables():
                self.compiled = nutpie.compile_pymc_model(
                    frozen,
                    backend=backend,
                    gradient_backend="pytensor",
                    freeze_model=False,
                )
        values = {Y: y, **{v.name: v.get_value() for v in sites}}
        tree = nutpie.sample(
            self.compiled.with_data(**values),
            draws=self.draws,
            tune=self.tune,
            chains=1,
            seed=seed,
            progress_bar=False,
            target_accept=0.9,
        )
        return {n: tree["posterior"][n].values[0] for n in names}
