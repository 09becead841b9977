r"""Are there enough inducing points, and what to do where there are not.

What a sparse posterior lacks is the Kullback-Leibler divergence to the exact one, in nats. To
leading order it is

.. math:: T = -\sum_n \frac{\partial \phi_n}{\partial \gamma_n} \gamma_n,

which costs nothing. Adding inducing points, at least twice as many, gains
:math:`\log E_q\, \exp(\sum_n \phi'_n - \sum_n \phi_n)` of the bound, exactly.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import xarray as xr

from pymc.model.core import Model

from pymc_vsgp.checks import kind
from pymc_vsgp.fit.weights import smooth_weights
from pymc_vsgp.progress import progress
from pymc_vsgp.results.certificate import check_bound, evidence_bounds, has_bounds
from pymc_vsgp.results.draws import ROWS, Fitted
from pymc_vsgp.results.exactness import GOOD_K
from pymc_vsgp.results.nested import columns_of, more_points, nested_moments, slopes_of
from pymc_vsgp.results.predicted import Noise
from pymc_vsgp.results.refitted import (
    Moved,
    check_more,
    compare_stages,
    moved_by,
    others_of,
    shift_of,
)
from pymc_vsgp.results.residuals import look, points_are_exact, structure_of, wrap_of

STRUCTURED = 4.0  # standard deviations
WRAPPED = 0.1  # correlation


@dataclass(repr=False)
class InducingCheck:
    """What the inducing points leave out.

    Attributes
    ----------
    verdict : {"enough", "borderline", "too few"}
        The page "What the posterior means" says what to report with each.
    missing : ndarray, one for each draw that was looked at
        T, the estimate of the divergence to the exact posterior in nats, for each draw.
    unexplained : ndarray, shape (N,)
        Variance of the function given u, over its prior variance: mean over draws. With several
        functions in a likelihood it is the largest share, without their weights.
    nats : ndarray, shape (N,)
        What each observation adds to T: mean over draws.
    gain, gain_error : float
        Nats that the ELBO gains from the added points, and their standard error, or nan.
    khat : float
        Pareto shape of the weights behind `gain`. Above 0.7 it is a rough number, and large.
    shift, shift_error : dict
        How far the mean of each parameter may move with more points, in standard deviations, and
        standard errors of that.
    structure : float
        How alike the residuals of neighbors are, in standard deviations: around zero or below
        where the function follows the data, above 4 where it can't.
    weakest : str
        Which of several processes most of `nats` is of.
    wrap : float
        Correlation of opposite ends of the data around the torus of Fourier coefficients: the 90 %
        quantile over draws.
    at_most : ndarray, one for each draw that was looked at, optional
        Certain bound of the divergence given the parameters of each draw, in nats: where noise is
        normal. Often far above the divergence itself.
    refit_gain : float
        What the ELBO of the Gaussian stage gains in the model that was passed as `refit`, in nats.
    refit_mean, refit_sd : float
        How far the mean of f moves in that model, in its standard deviations, and by what factor
        these change; each where it is most. Of 400 draws, so that 0.2 and 10 % may be chance.
    moved : Moved, optional
        How f at the data would change with the points that the nested test adds, at the parameters
        of three draws: its mean in standard deviations, its standard deviation as a factor, each
        where it changes most, and the input where the mean does. None without the nested test,
        where N times M is beyond 50 million, and where there are `others`.
    others : list of str
        Other observed variables of these processes. Numbers are of one alone, but those of `refit`.
    added : dict
        Inputs that the nested test added, by process: where to put more points.
    """

    name: str
    X: np.ndarray
    Xu: dict[str, np.ndarray]
    numbers: dict[str, int]
    added: dict[str, np.ndarray]
    missing: np.ndarray
    unexplained: np.ndarray
    nats: np.ndarray
    shift: dict[str, float]
    shift_error: dict[str, float] = field(default_factory=dict)
    structure: float = 0.0
    wrap: float = 0.0
    at_most: np.ndarray | None = None
    refit_gain: float = np.nan
    refit_mean: float = np.nan
    refit_sd: float = np.nan
    moved: Moved | None = None
    log_weights: np.ndarray | None = None
    missing_after: np.ndarray | None = None
    gain: float = np.nan
    gain_error: float = np.nan
    khat: float = np.nan
    weakest: str = ""
    others: list[str] = field(default_factory=list)
    nouns: dict[str, str] = field(default_factory=dict)
    points_are_exact: bool = False
    obs_dim: str = "obs"
    coords: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None

    @property
    def inducing(self) -> str:
        """How many inducing variables there are, in words."""
        points = sum(len(z) for z in self.Xu.values())
        waves = sum(self.numbers.values()) - points
        words = [f"{points} inducing points"] if points else []
        others = [noun for noun in self.nouns.values() if noun != "points"]
        return " and ".join([*words, *([f"{waves} {others[0]}"] if waves else [])])

    @property
    def certain(self) -> bool:
        """Whether half a nat is all that can be missing, by a bound and not by an estimate."""
        return self.at_most is not None and bool(np.quantile(self.at_most, 0.95) < 0.5)

    @property
    def _refit(self) -> Moved:
        return Moved(self.refit_mean, self.refit_sd, np.empty(0))

    @property
    def verdict(self) -> str:
        """One of "enough", "borderline" and "too few": "Checking a fit" has what each takes.

        Half a nat can't be seen. Beyond that what counts is if it differs between draws, because
        that moves the posterior of the parameters, and if more points would gain it back.
        """
        middle, high = np.quantile(self.missing, [0.5, 0.95])
        if self.wrap > WRAPPED or abs(self.refit_gain) > 2.0:
            return "too few"
        refitted = abs(self.refit_gain) > 0.5 or self._refit.shows
        if self.certain:  # given the parameters, which may be others with more points
            return "borderline" if refitted else "enough"
        gain = 0.0 if np.isnan(self.gain) else self.gain
        error = 0.0 if np.isnan(self.gain_error) else self.gain_error
        shift = max(self.shift.values(), default=0.0)
        if self.structure > STRUCTURED:
            return "too few"
        moved = refitted or (self.moved is not None and self.moved.shows)
        if high < 0.5 and gain - 2.0 * error < 0.1 and shift < 0.25 and not moved:
            return "enough"
        if middle > 5.0 or gain - 2.0 * error > 2.0 or (high > 1.0 and shift > 0.7):
            return "too few"
        return "borderline"

    @property
    def _largest_shift(self) -> tuple[str, float, float]:
        """Of the parameter that moves by most standard errors more than none."""
        errors = {name: self.shift_error.get(name, 0.0) for name in self.shift}
        name = max(errors, key=lambda n: self.shift[n] - errors[n], default="")
        return name, self.shift.get(name, 0.0), errors.get(name, 0.0)

    @property
    def advice(self) -> str:
        """In a sentence."""
        n = self.inducing
        more = sum(len(z) for z in self.added.values())
        if self.verdict == "enough":
            return f"{n} are enough: the exact posterior is hardly different."
        waves = sum(self.numbers.values()) > sum(len(z) for z in self.Xu.values())
        exact = "Xu = X (exact)" if self.points_are_exact else ""
        where = "; check.added says where" if more else "; spread them over the data"
        if waves:
            fourier = "Fourier coefficients" in self.nouns.values()
            where = "; raise n_frequencies" if fourier else ""
        if exact:
            where = "; if that is too slow, raise n_frequencies"
        if self.wrap > WRAPPED:
            return (
                f"The period is short: opposite ends of the data are correlated by {self.wrap:.2f} "
                "around the torus. Use a longer one, with more frequencies in proportion."
            )
        if self.verdict == "borderline":
            name, shift, error = self._largest_shift
            moved = f"; {name} may move by {shift:.2f} ± {error:.2f} sd" if shift > 0.1 else ""
            return (
                f"{n} leave something out{moved}. "
                f"For final results use {exact or 'more'}, and see if they change{where}."
            )
        if self.structure > STRUCTURED:
            return (
                f"{n} are too few, or the kernel is too smooth: observations close "
                "to each other miss the function on the same side. "
                f"Use {exact or 'twice as many'}, and if that is still so, a prior that allows "
                "shorter lengthscales."
            )
        given = "nearest-neighbor inputs" in self.nouns.values()
        other = "" if given else " For a rough function see vsgp.inducing.NearestNeighbors."
        return (
            f"{n} are too few: the posterior of the parameters and of the function "
            f"is not to be relied on. Use {exact or 'twice as many'} and check again{where}.{other}"
        )

    def __repr__(self):
        """Say what is missing, and what to do."""
        low, middle, high = np.quantile(self.missing, [0.05, 0.5, 0.95])
        rows = [f"Inducing points of {self.name!r}: {self.verdict}"]
        for name, number in self.numbers.items():
            rows.append(f"  {name}: {number} {self.nouns[name]} for {len(self.X)} observations")
        rows.append(
            f"  missing to the exact posterior    about {_nats(middle)} nats, "
            f"{_nats(low)} to {_nats(high)} over draws"
        )
        if self.weakest:
            rows.append("  most of it is missing to".ljust(36) + repr(self.weakest))
        if not np.isnan(self.gain):
            number = sum(len(z) for z in self.added.values())
            # Of few draws k-hat is nan.
            rough = " (rough)" if not self.khat <= GOOD_K and self.gain > 0.1 else ""
            rows.append(
                f"  gained by {number} more points".ljust(36)
                + f"{_nats(self.gain)} ± {_nats(self.gain_error)} nats{rough}"
            )
        if self.moved is not None:
            rows.append("  f at the data then moves".ljust(36) + str(self.moved))
        if self.at_most is not None:
            low, middle, high = np.quantile(self.at_most, [0.05, 0.5, 0.95])
            rows.append(
                "  certainly at most".ljust(36)
                + f"{_nats(middle)} nats, {_nats(low)} to {_nats(high)} over draws"
            )
        if not np.isnan(self.refit_gain):
            rows.append(
                "  gained by the model with more".ljust(36) + f"{_nats(self.refit_gain)} nats"
            )
            rows.append("  f at the data then moves".ljust(36) + str(self._refit))
        rows.append(
            "  unexplained share of the variance".ljust(36)
            + f"{np.mean(self.unexplained):.2g} on average, {np.max(self.unexplained):.2g} at most"
        )
        if self.shift:
            name, shift, error = self._largest_shift
            how_far = f"{name}, by {shift:.2f} ± {error:.2f} sd"
            rows.append("  parameter that may move most".ljust(36) + how_far)
        rows.append("  residuals of neighbors alike".ljust(36) + f"{self.structure:.1f} sd")
        rows.append(self.advice)
        if self.others:
            rows.append(
                f"All of this is of {self.name!r} alone, and {self.others} see the same function. "
                "Check them, too: what is missing adds up."
            )
        return "\n".join(rows)

    def to_dataset(self) -> xr.Dataset:
        """Return all numbers with labels, to save or to plot them.

        Returns
        -------
        Dataset
            Arrays by observation, draw (``sample``) and parameter; single numbers are attributes.
        """
        d = self.obs_dim
        variables: dict[str, Any] = {
            "missing": ("sample", self.missing),
            "unexplained": (d, self.unexplained),
            "nats": (d, self.nats),
            "X": ((d, "feature"), self.X),
        }
        if self.log_weights is not None:
            variables["log_weight"] = ("sample", self.log_weights)
            variables["missing_after"] = ("sample", self.missing_after)
        for name, Z in self.Xu.items():
            variables[f"{name}_Xu"] = ((f"{name}_inducing", self._columns(name, Z)), Z)
        for name, Z in self.added.items():
            variables[f"{name}_added"] = ((f"{name}_new", self._columns(name, Z)), Z)
        if self.at_most is not None:
            variables["at_most"] = ("sample", self.at_most)
        if self.shift:
            variables["parameter"] = ("parameter", list(self.shift))
            variables["shift"] = ("parameter", list(self.shift.values()))
            variables["shift_error"] = ("parameter", list(self.shift_error.values()))
        attrs: dict[str, Any] = {"verdict": self.verdict, "weakest": self.weakest}
        attrs |= {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), float)}
        if self.moved is not None:
            attrs |= {f"moved_{name}": value for name, value in self.moved._asdict().items()}
        return xr.Dataset(variables, coords=self.coords, attrs=attrs)

    def _columns(self, name: str, Z: np.ndarray) -> str:
        """Name the columns of inducing inputs: those of groups have one less than X."""
        return "feature" if Z.shape[1] == self.X.shape[1] else f"{name}_feature"


def _nats(x: float) -> str:
    return f"{x:.2f}" if abs(x) < 10 else f"{x:.0f}"


def check_inducing(
    idata: xr.DataTree,
    num_samples: int = 50,
    *,
    nested: bool = True,
    refit: Model | None = None,
    var_name: str | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
    model: Model | None = None,
) -> InducingCheck:
    r"""
    Check if there are enough inducing points.

    For each of a few draws it computes the variance that the inducing values leave unexplained. It
    says what that means for the distance to the exact posterior, and what twice as many points
    would gain. Below half a nat you will see no difference. It uses several draws, because those
    with a short lengthscale need the most points.

    Models with ``Gaussian(approx="FITC")`` or ``"DTC"`` are refused, as these are no bounds.

    Parameters
    ----------
    idata : DataTree
        Draws.
    num_samples : int
        How many of them to look at.
    nested : bool
        Whether to add points and see what they gain. Costs a few evaluations of the log density
        for each draw.
    refit : Model, optional
        The same model with more inducing points. Both get a Gaussian stage. The gain of its ELBO
        is reported, and how far predictions at the data move. Neither model is changed.
    var_name : str, optional
        Name of the observed variable, where the model has several.
    random_seed : int or Generator, optional
        Seed of the nested test.
    progressbar : bool
        Whether to show progress.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    InducingCheck
        Print it to read the verdict.

    Examples
    --------
    .. code-block:: python

        check = vsgp.check_inducing(idata, model=model)
        print(check)
        vsgp.plot_inducing(check)
    """
    if refit is not None and not isinstance(refit, Model):
        raise TypeError(
            f"refit is {kind(refit)}, but it is the same model with more inducing points. "
            "Build that model, and pass it as refit=model."
        )
    fit = Fitted(idata, model, var_name, num_samples=num_samples)
    check_bound(fit)
    if refit is not None:
        check_more(fit, refit)
    X, y, n = fit.X, fit.seen[1], fit.draws.n
    noise = Noise(random_seed, n)
    blocks = [slice(a, a + ROWS) for a in range(0, len(y), ROWS)]
    of_process = np.zeros(len(fit.observation.parts))
    missing, fraction, nats = np.zeros(n), np.zeros(len(y)), np.zeros(len(y))
    phi, residual = np.zeros(n), np.zeros((len(y), fit.n_functions))
    slabs = list(fit.slabs(len(X[:ROWS]) * fit.n_functions))
    with progress("Checking", n * (2 if nested else 1), progressbar) as advance:
        for some in slabs:
            for at in blocks:
                seen = look(fit, some, X[at], y[at], at.start)
                fraction[at] += seen.fraction.sum(axis=0) / n
                nats[at] += seen.nats.sum(axis=0) / n
                missing[some] += seen.nats.sum(axis=1)
                of_process += seen.of_process
                phi[some] += seen.phi.sum(axis=1)
                residual[at] += seen.residual.sum(axis=0) / n
            advance(some.stop - some.start)
        parts = fit.observation.parts
        Xu = {p.u.name: fit.points(i) for i, p in enumerate(parts)}
        shifts = shift_of(fit, missing)
        check = InducingCheck(
            name=fit.name,
            X=X,
            Xu=Xu,
            nouns={p.u.name: p.conditional.noun for p in parts},
            numbers={p.u.name: fit.draws.values(p.u.name).shape[-1] for p in parts},
            added={},
            missing=missing,
            unexplained=fraction,
            nats=nats,
            shift={name: shift for name, (shift, _) in shifts.items()},
            shift_error={name: error for name, (_, error) in shifts.items()},
            structure=structure_of(X, residual, any(p.conditional.by is not None for p in parts)),
            weakest=parts[int(of_process.argmax())].u.name if len(parts) > 1 else "",
            wrap=wrap_of(fit, X),
            obs_dim=fit.y_dims[0],
            coords=fit.coords_of(fit.y_dims[:1]),
            others=others_of(fit),
            columns=fit.columns,
        )
        check.points_are_exact = points_are_exact(check.numbers, parts, X)
        if has_bounds(fit):
            M = sum(check.numbers.values())
            bounds = [evidence_bounds(fit, some, X, y) for some in fit.slabs(M**2)]
            check.at_most = np.concatenate([upper - lower for lower, upper in bounds])
        if refit is not None:
            check.refit_gain, (check.refit_mean, check.refit_sd, _) = compare_stages(fit, refit)
        if not nested:
            return check
        order = np.argsort(missing)
        hard = int(order[min(int(0.9 * n), n - 1)])
        check.added = more_points(fit, slice(hard, hard + 1), X, y, noise.rng)
        Z = list(check.added.values())
        looked_at = np.unique(order[((n - 1) * np.array([0.1, 0.5, 0.9])).astype(int)])
        check.moved = None if check.others else moved_by(fit, looked_at, X, y, Z)
        log_w, after = -phi, np.zeros(n)
        for some in slabs:
            eps = [noise(some, (len(z), *columns_of(fit, i)), i) for i, z in enumerate(Z)]
            for at in blocks:
                mu, gamma = nested_moments(fit, some, X[at], Z, eps)
                slope = slopes_of(fit, some, mu, gamma, y[at], at.start)[1]
                log_w[some] += fit.expected_logp(some, mu, gamma, y[at], at.start).sum(axis=1)
                after[some] -= (slope * gamma).reshape(len(mu), -1).sum(axis=1)
            advance(some.stop - some.start)
    check.log_weights, check.missing_after = log_w, after
    w = np.exp(log_w - log_w.max())
    check.gain = float(np.log(w.mean()) + log_w.max())
    check.gain_error = float(w.std() / w.mean() / np.sqrt(n))
    check.khat = smooth_weights(log_w)[1]
    return check
