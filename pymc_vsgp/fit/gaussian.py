"""Fit the Gaussian stage."""

import logging
import os
import time
import warnings

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.linalg

from pymc.model.core import Model
from pytensor.tensor.sharedvar import TensorSharedVariable

from pymc_vsgp.checks import check_number, check_real, kind, mode_of, model_of
from pymc_vsgp.compile import ONCE, building
from pymc_vsgp.engine.sharded import generator, mesh_of, together
from pymc_vsgp.fit.advi import fit_advi
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.checkpoint import Checkpoint
from pymc_vsgp.fit.collapsed import integrable
from pymc_vsgp.fit.correlated import Correlated, CorrelatedBound, can_correlate, knows_much
from pymc_vsgp.fit.exact import ExactBound, ResponseBound
from pymc_vsgp.fit.minibatch import Minibatches
from pymc_vsgp.fit.natural import Exact, Natural
from pymc_vsgp.fit.neighbors import GivenNeighbors, NeighborsBound, has_neighbors
from pymc_vsgp.fit.stage import GaussianStage, hand_over, inducing_inputs, insist
from pymc_vsgp.fit.starts import best_of, with_shorter_lengthscales
from pymc_vsgp.fit.turns import for_model, of_model
from pymc_vsgp.model.copies import copy_of
from pymc_vsgp.model.data import check_data
from pymc_vsgp.model.observation import observations, require_inducing, warnings_at
from pymc_vsgp.model.variable import inducing_variables, value_shapes
from pymc_vsgp.progress import progress

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler

METHODS = ("natural", "minibatch", "advi", "fullrank_advi")
BATCH = 256
CHEAP = 2_000_000  # operations of an evaluation, up to which a fit takes a fraction of a second
ITERATIONS = {"natural": 100, "minibatch": 5000, "advi": 20_000}  # by default
GAIN = 5e-4  # nats an observation of minibatches by default: with less, the steps are halved
AGAIN = 2  # times that a fit goes on after its curvature is known
FIRST = 5  # rounds of many coefficients that are independent under q, before others are tried
EPOCHS, FEWEST = 300, 1000  # of minibatches by default: passes over the data, and steps at least


def fit_gaussian(
    method: str | None = None,
    *,
    move_inducing: bool | None = None,
    start: GaussianStage | None = None,
    n_starts: int = 1,
    copy: bool = False,
    maxiter: int | None = None,
    tol: float | None = None,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    random_seed=None,
    progressbar: bool = True,
    compile_kwargs: dict[str, Any] | None = None,
    devices: Sequence[Any] | None = None,
    model: Model | None = None,
    **kwargs,
) -> GaussianStage:
    r"""
    Fit a Gaussian posterior, and set the sampler's coordinates in the model (or in a copy of it).

    The fit is a Gaussian posterior of the inducing values and a point estimate of everything else.
    It is fast and approximate, and :func:`sample` starts from it. The coordinates make the
    posterior look like a standard normal for every value of the parameters. The posterior that is
    sampled stays the same. Ctrl-C ends a fit with what it has reached, after
    a round or a step.

    Parameters
    ----------
    method : {"natural", "minibatch", "advi", "fullrank_advi"}, optional
        "natural" takes natural-gradient steps for the inducing values and L-BFGS steps for the
        rest, with all data; the ELBO never decreases. "minibatch" takes natural-gradient and Adam
        steps with `batch_size` observations each, until the ELBO stops rising. The others are
        PyMC's own. By default "natural", and "minibatch" where `batch_size` is given.
    move_inducing : bool, optional
        Whether to optimize the inducing inputs, too. By default they move where a likelihood has
        classes with a function each: functions that share inducing inputs need them at the
        borders of classes. With "natural" they move after the first rounds.
    start : GaussianStage, optional
        A previous result to continue from, of this model or of a copy. Minibatches of the same
        size go on as if they had not stopped, for up to `maxiter` more steps.
    n_starts : int
        Number of fits. The first starts at the model's initial point (or `start`), the others at
        draws from the prior. The best is kept. A warning says where others ended elsewhere, if that
        may hold more than 1 % of the posterior; :func:`sample` then proposes from all of them.

        With "natural" and few data there are also fits from shorter lengthscales and less noise.
    copy : bool
        Whether to fit a copy of the model and leave the model alone. The copy is ``stage.model``.
    maxiter : int, optional
        Most iterations. By default 100 rounds of "natural" and 20000 iterations of ADVI; of
        "minibatch" 300 passes over the data, but 1000 to 5000 steps.
    tol : float, optional
        "natural" stops when a round gains less than this, in nats. By default 0.001, and 0.0002
        an observation where inducing inputs move. Minibatches halve their steps when 300 of them,
        or a pass over the data if that is more, gain less; by default 0.0005 an observation. With
        0 they take all of `maxiter`, and their steps get smaller in the last fourth alone.
    batch_size : int, optional
        Observations in a minibatch, by default 256.
    checkpoint : str or path-like, optional
        File for minibatches that take long. It is written every minute, and a fit that finds it
        continues from it: so a script that was killed can be run again, and ends where it would
        have ended. It holds no data and no model, and its own random seed: use a file for each.
    random_seed : int or Generator, optional
        Of the minibatches, of ADVI, and of the starts that `n_starts` draws from the prior.
    progressbar : bool
        Whether to show the ELBO.
    compile_kwargs : dict, optional
        ``mode`` is the backend of the ELBO, such as ``"jax"``.
    devices : sequence of jax.Device, array of them, or jax.sharding.Mesh, optional
        Devices of JAX to spread the rows of the data over, such as ``jax.devices()``; for the
        method "natural". They stay there, and an evaluation adds up what the devices find. Data
        that are changed later need another fit. In several processes each model has its own rows:
        see :func:`local_rows`.
    model : Model, optional
        By default the model on the context stack.
    **kwargs
        Passed to ``pm.fit``.

    Returns
    -------
    GaussianStage
        Unless `copy`, the model has changed: its inducing inputs and the sampler's coordinates.
        :func:`reset` undoes that.

    Examples
    --------
    .. code-block:: python

        with model:
            stage = vsgp.fit_gaussian()
            idata = vsgp.sample(stage=stage)
    """
    model = model_of(model)
    if method is None:
        method = "natural" if batch_size is None else "minibatch"
    elif batch_size is not None and method != "minibatch":
        raise ValueError(
            f"batch_size is for minibatches, and the method is {method!r}. Drop one of them."
        )
    if method not in METHODS:
        raise ValueError(f"There is no method {method!r}. Choose one of {list(METHODS)}.")
    require_inducing(model)
    if "n" in kwargs:
        raise TypeError("The number of iterations is maxiter here. Pass it in place of n.")
    if kwargs and method not in ("advi", "fullrank_advi"):
        raise TypeError(
            f"fit_gaussian got {sorted(kwargs)}, which only ADVI takes. "
            "Drop them, or pass method='advi'."
        )
    for name, number in (("maxiter", maxiter), ("batch_size", batch_size)):
        if number is not None:
            check_number(name, number)
    if tol is not None:
        check_real("tol", tol)
    if not isinstance(start, GaussianStage | None):
        raise TypeError(f"start is {kind(start)}, not a GaussianStage. Pass an earlier result.")
    mode = mode_of(compile_kwargs, ONCE)
    if check_number("n_starts", n_starts) > 1 and method not in ("natural", "minibatch"):
        raise ValueError(
            f"n_starts is {n_starts} and the method {method!r}. "
            "Pass more than one start with 'natural' or 'minibatch' alone."
        )
    if devices is not None and (method != "natural" or compile_kwargs or has_neighbors(model)):
        raise ValueError(
            "Data spread over devices with method='natural' alone, on JAX, and not with nearest "
            "neighbors. Drop devices, or the other arguments."
        )
    if checkpoint is not None:
        if method != "minibatch" or n_starts > 1:
            raise ValueError(
                "checkpoint is for one fit by minibatches. Pass batch_size, and drop n_starts."
            )
    file = None if checkpoint is None else Checkpoint(checkpoint)
    mesh = None if devices is None else mesh_of(devices)
    check_data(model)
    began = time.perf_counter()
    if copy:
        model = copy_of(model)
    if method in ("advi", "fullrank_advi"):
        if has_neighbors(model):
            raise NotImplementedError(
                "ADVI makes no coordinates of nearest neighbors. Use method='natural'."
            )
        if move_inducing:
            raise ValueError(
                "ADVI does not move inducing inputs. Use method='natural', or move_inducing=False."
            )
        n = ITERATIONS["advi"] if maxiter is None else maxiter
        if start is not None or tol is not None:
            raise ValueError(
                "ADVI takes neither start= nor tol=. Drop them, or use another method."
            )
        if compile_kwargs:
            kwargs["compile_kwargs"] = compile_kwargs
        return fit_advi(model, method, n, random_seed, progressbar, began, kwargs)
    if start is not None:
        _check_start(start, model)
        hand_over(model, start.sites, start.Xu)
    if move_inducing is None:
        move_inducing = _has_borders(model)
    settings = {"move_inducing": move_inducing, "batch_size": batch_size or BATCH, "mode": mode}
    with together(mesh):
        with progress("Gaussian stage: compiling the ELBO", None, progressbar):
            fitter = Fitter(model, method, mesh=mesh, **settings)
        compiled = time.perf_counter() - began
        rng = generator(mesh, random_seed)

        def fit(**kwargs):
            kwargs |= {"maxiter": maxiter, "tol": tol, "random_seed": rng}
            return fitter(progressbar=progressbar, **kwargs)

        stage, said = fit(start=start, checkpoint=file), ""
        bound, again = fitter.bound, lambda theta, **kwargs: fit(theta=theta, **kwargs)
        new = maxiter is None and start is None and not stage.interrupted
        if new and method == "natural" and mesh is None and fitter.is_cheap:
            stage = with_shorter_lengthscales(stage, bound, again)
        if n_starts > 1 and stage.theta and not stage.interrupted:
            stage, said = best_of(stage, n_starts, bound, again, rng.spawn(1)[0])
    stage.compile_seconds = compiled
    stage.apply()
    if stage.interrupted:
        _log.warning("%s", stage.message)
    for text in [said, *warnings_at(model, stage.theta_unconstrained)]:
        if text:
            warnings.warn(text, stacklevel=2)
    return stage


def fits(stage: GaussianStage, model: Model) -> bool:
    """Whether a stage has the variables of a model, in their sizes."""
    of_u = {model.rvs_to_values[u].name: u for u in inducing_variables(model)}
    known = {n: np.shape(v) for n, v in stage.theta_unconstrained.items()}
    known |= {n: stage._shape_of_epsilon(u) for n, u in of_u.items() if u.name in stage.mean}
    return known == value_shapes(model)


def _check_start(start: GaussianStage, model: Model) -> None:
    """Raise unless a stage has the variables of a model."""
    if not fits(start, model):
        raise ValueError(
            "start is of a model with other variables, or with others of their sizes. "
            "Pass a stage of this model, or of a copy of it."
        )


def _has_borders(model: Model) -> bool:
    """Whether there are classes with functions that share inducing points."""
    for of in observations(model).values():
        points = any(isinstance(p.points, TensorSharedVariable) for p in of.parts)
        several = of.likelihood.n_classes is not None and (of.likelihood.n_latent or 1) > 1
        if points and several and not has_neighbors(model):
            return True
    return False


class Fitter:
    """Fits the Gaussian stage of a model by "natural" or "minibatch", and leaves the model alone.

    What it compiles stays valid where data change, so one serves many data sets.
    """

    @building
    def __init__(
        self,
        model: Model,
        method="natural",
        *,
        move_inducing=False,
        batch_size=BATCH,
        mode=ONCE,
        mesh=None,
    ):
        self.model, self.method = model, method
        self.batch_size = batch_size if method == "minibatch" else None
        self.bound: Any
        self.correlated: Any = None
        """Returns the bound of coefficients that are correlated under q, where there is one."""
        if has_neighbors(model):
            if method != "natural" or move_inducing:
                raise NotImplementedError(
                    "Nearest neighbors take method='natural', and stay where they are. "
                    "Drop method=, batch_size= and move_inducing=."
                )
            if (loop := integrable(model)) is not None:
                self.bound = ResponseBound(model, loop, mode)
            else:
                self.bound = NeighborsBound(model, mode)
            return
        if method == "natural" and mesh is None and not move_inducing:
            if (loop := integrable(model)) is not None:
                self.bound = ExactBound(model, loop, mode)
                return
        held = self.batch_size is not None
        self.bound = Bound(model, move_inducing, self.batch_size, mode, mesh, held)
        if method == "natural" and mesh is None and not move_inducing and can_correlate(self.bound):
            self.correlated = cache(partial(CorrelatedBound, model, mode=mode))

    @property
    def is_cheap(self) -> bool:
        """Whether one fit more takes a fraction of a second."""
        given_neighbors = isinstance(self.bound, NeighborsBound | ResponseBound)
        return not given_neighbors and self.bound.work <= CHEAP

    def _run(self, fit: Natural, maxiter: int, first: int = FIRST) -> Natural:
        """Run a fit; where many coefficients say much, go on with their correlations."""
        fit.run(maxiter if self.correlated is None else min(first, maxiter))
        left = maxiter - fit.n_steps
        if self.correlated is None or fit.interrupted or not left:
            return fit
        if knows_much(fit):
            try:
                more = Correlated.after(fit, self.correlated())
            except KeyboardInterrupt:
                fit.interrupted = True
                return fit
            if more is not None:
                more.run(left)
                return more
        if not fit.converged:
            fit.run(left)
        return fit

    def _curvature(self, fit: Any, maxiter: int, advance: Any) -> np.ndarray:
        """Return the covariance of theta at the end of a fit, which goes on if it promises more."""
        again = AGAIN if self.batch_size is None else 0
        for left in reversed(range(again + 1)):
            report = fit.report
            fit.report = lambda *_: advance(0, "Gaussian stage, curvature of the ELBO")
            covariance = insist(fit.curvature)
            fit.report = report
            rounds = maxiter - fit.n_steps
            if not (left and rounds > 0 and fit.go_on(covariance, rounds)):
                break
        return covariance

    def __call__(
        self,
        start: GaussianStage | None = None,
        *,
        theta: np.ndarray | None = None,
        promising: Callable[[float, np.ndarray, int], bool] | None = None,
        checkpoint: Checkpoint | None = None,
        maxiter: int | None = None,
        tol: float | None = None,
        random_seed=None,
        progressbar: bool = False,
    ) -> Any:
        """Fit to the data that the model has now.

        None is returned where ELBO and theta are not `promising` after no round, or after one.
        """
        bound, began = self.bound, time.perf_counter()
        exact = isinstance(bound, ExactBound | ResponseBound)
        theta, sites = bound.start if theta is None else theta, bound.no_sites()
        first = FIRST
        if start is not None:
            theta = bound.ravel(start.theta_unconstrained)
            sites = of_model(bound, theta, start)
            many = [p.u.name for p in bound.processes if p.diagonal]
            first = 0 if any(start.sites[name].root.ndim > 2 for name in many) else first
        if tol is None:
            tol = 1e-3
            if self.batch_size is not None:
                tol = max(tol, GAIN * bound.n_data())
            elif bound.moving:
                tol = max(tol, 2e-4 * sum(bound.sizes()))
        before = inducing_inputs(bound)
        Xu = [x.get_value() for x in bound.moving]
        unit = "round" if self.batch_size is None else "step"
        what = f"Gaussian stage, {unit} {{}}, ELBO {{}}"
        with progress("Gaussian stage", None, progressbar) as advance:

            def report(i, value):
                advance(1, what.format(i, f"{value:.2f}"))

            fit: Any
            arguments = (bound, theta, sites, Xu, tol, report)
            if self.batch_size is not None:
                rng = np.random.default_rng(random_seed)
                if not isinstance(rng.bit_generator, np.random.PCG64):  # whose state is of integers
                    rng = np.random.default_rng(rng.integers(2**63))
                fit = Minibatches(*arguments, rng, self.batch_size)
                if maxiter is None:
                    steps = EPOCHS * fit.n_data // fit.n_rows
                    maxiter = min(max(steps, FEWEST), ITERATIONS["minibatch"])
                _resume(fit, start, checkpoint)
                fit.run(maxiter, checkpoint)
            else:
                if hasattr(bound, "refresh"):
                    bound.refresh()
                make = GivenNeighbors if isinstance(bound, NeighborsBound) else Natural
                fit = Exact(*arguments) if exact else make(*arguments)
                maxiter = ITERATIONS["natural"] if maxiter is None else maxiter
                if promising is not None:
                    for rounds in (0, 1):
                        fit.run(rounds)
                        if fit.interrupted:
                            raise KeyboardInterrupt
                        if not promising(fit.evaluation.value, fit.theta, rounds):
                            return None
                fit = self._run(fit, maxiter, first)
                bound = fit.bound
            theta_covariance = self._curvature(fit, maxiter, advance)
            if exact:
                fit.evaluation = bound.with_q(fit.theta)
            in_model = for_model(bound, fit.theta, insist(fit.in_model))
        if self.batch_size is None:
            fit.look_back(theta_covariance)
        ev = fit.evaluation
        after = dict(before)
        for shared, x in zip(bound.moving, fit.moved, strict=False):
            after[shared.name] = x
        names = [p.u.name for p in bound.processes]
        return GaussianStage(
            method=self.method,
            elbo=float(fit.history[-1]),
            elbo_error=fit.elbo_error,
            elbo_history=np.asarray(fit.history),
            n_steps=fit.n_steps,
            converged=fit.converged,
            message=fit.message,
            seconds=time.perf_counter() - began,
            compile_seconds=0.0,
            theta=bound.in_units(fit.theta),
            theta_unconstrained=bound.unravel(fit.theta),
            theta_covariance=theta_covariance,
            marginal=exact or not any(p.diagonal for p in bound.processes),
            mean={
                name: _unwhiten(ms, R, pm_)
                for name, ms, R, pm_ in zip(names, ev.mean, ev.R, ev.prior_mean, strict=True)
            },
            covariance={p.u.name: _covariance(ev, i) for i, p in enumerate(bound.processes)},
            sites=dict(zip(names, in_model, strict=True)),
            Xu_before=before,
            Xu=after,
            model=self.model,
            interrupted=fit.interrupted,
            state=getattr(fit, "reached", None),
        )


def _resume(fit: Minibatches, start: GaussianStage | None, checkpoint: Checkpoint | None) -> None:
    """Let a fit go on from a file, or from an earlier one of the same kind."""
    if checkpoint is not None and (state := checkpoint.read()) is not None:
        known = fit.takes(state)
        if known:
            fit.resume(state)
            known = bool(np.isclose(fit.next_value(), state.value, rtol=1e-6, equal_nan=True))
        if not known:
            raise ValueError(
                f"{checkpoint.path} is of another model, of other data or of another batch_size. "
                "Pass what that fit had, or another path."
            )
    elif start is not None and start.state is not None and fit.takes(start.state):
        fit.resume(start.state.again())


def _unwhiten(m, R, mean):
    return mean + (m * R if R.ndim == 1 else m @ R.T)


def _covariance(ev, i):
    R, Ls = ev.R[i], ev.factor[i]
    if ev.whole and ev.whole[i]:
        return np.stack([q.variances for q in ev.whole[i]])
    return (R / Ls) ** 2 if Ls.ndim == 2 else np.stack([_spread(R, L) for L in Ls])


def _spread(R, L):
    R = np.diag(R) if R.ndim == 1 else R
    root = scipy.linalg.solve_triangular(L, R.T, lower=True)
    return root.T @ root
