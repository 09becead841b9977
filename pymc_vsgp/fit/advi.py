"""The Gaussian stage by PyMC's ADVI, in whitened coordinates."""

import logging
import time

from collections.abc import Callable

import numpy as np
import pymc as pm

from pymc.model.core import Model

from pymc_vsgp.checks import generator_of
from pymc_vsgp.compile import at_points
from pymc_vsgp.fit.blending import blend
from pymc_vsgp.fit.bound import Variables, whitened_coordinates
from pymc_vsgp.fit.minibatch import judge
from pymc_vsgp.fit.stage import GaussianStage, inducing_inputs
from pymc_vsgp.fit.turns import for_model
from pymc_vsgp.inducing.coordinates import Sites

_log = logging.getLogger("pymc.vsgp")  # whose parent has a handler


def fit_advi(
    model: Model,
    method: str,
    n: int,
    random_seed,
    progressbar,
    began: float,
    kwargs,
) -> GaussianStage:
    """Fit, and return a stage."""
    times: list[float] = []  # of each iteration: the first one is over once all is compiled
    stopped: list[bool] = []  # by a callback
    callbacks = [
        lambda *_: times.append(time.perf_counter()),
        *(_noting(call, stopped) for call in kwargs.pop("callbacks", None) or ()),
    ]
    bound = Variables(model)
    if isinstance(random_seed, int | np.integer) and 0 <= random_seed < 2**32:
        random_seed = int(random_seed)
    elif random_seed is not None:
        random_seed = int(generator_of(random_seed).integers(2**31))  # `pm.fit` takes no others
    with model, whitened_coordinates(model):
        try:
            approx = pm.fit(
                n,
                method=method,
                random_seed=random_seed,
                progressbar=progressbar,
                callbacks=callbacks,
                **kwargs,
            )
        except FloatingPointError as error:
            raise ValueError(
                "ADVI ended in nan, as the log density of the data is not finite at some draws, or "
                "steps are too long. Leave method out, or pass obj_optimizer=pm.adam(...)."
            ) from error
        if not times:
            raise KeyboardInterrupt("Before the first step of ADVI.")
        mean, cov = approx.mean.eval(), approx.cov.eval()
        ordering = approx.ordering
        point = {v: mean[at].reshape(shape) for v, at, shape, _ in ordering.values()}
        priors = [x for p in bound.processes for x in p.u.owner.inputs[1:3]]
        (at_mean,) = at_points(model, priors, [point])
    theta_at = np.concatenate(
        [np.arange(len(mean))[ordering[name][1]] for name in bound.names] or [np.empty(0, int)]
    )
    nothing = bound.no_sites()
    sites, means, covariances = {}, {}, {}
    for i, p in enumerate(bound.processes):
        where = ordering[p.value.name][1]
        m = mean[where].reshape(p.n_functions, p.n_inducing)
        prior_mean, R = at_mean[2 * i : 2 * i + 2]
        means[p.u.name] = prior_mean + (m * R if R.ndim == 1 else m @ R.T)
        if p.diagonal:
            S = np.diag(cov[where, where]).reshape(m.shape)
            precision = np.clip(1.0 / S - 1.0, 0.0, None) / R**2
            linear = (1.0 + precision * R**2) * m / R + precision * prior_mean
            sites[p.u.name] = Sites(linear, np.sqrt(precision))
            covariances[p.u.name] = R**2 * S
            continue
        S = cov[where, where].reshape(p.n_functions, p.n_inducing, p.n_functions, p.n_inducing)
        S = np.stack([S[k, :, k] for k in range(p.n_functions)])
        R = np.diag(R) if R.ndim == 1 else R
        inverse = np.linalg.inv(S)
        linear = np.einsum("kij,kj->ki", inverse, m)
        precision = inverse - np.eye(p.n_inducing)
        sites[p.u.name] = blend(nothing[i], R, prior_mean, linear, precision, m, 1.0)
        covariances[p.u.name] = R @ S @ R.T
    hist = -np.asarray(approx.hist)
    converged, message = judge(hist)
    late = hist[-1000:]
    if interrupted := len(hist) < n and not stopped:
        converged, message = False, f"Interrupted after {len(hist)} steps of {n}."
    before = inducing_inputs(bound)
    in_model = for_model(bound, mean[theta_at], list(sites.values()))
    stage = GaussianStage(
        method=method,
        elbo=float(late.mean()),
        elbo_error=float(late.std() / np.sqrt(len(late))),
        elbo_history=hist[:: max(len(hist) // 200, 1)],
        n_steps=len(hist),
        converged=converged,
        message=message,
        seconds=time.perf_counter() - times[0],
        compile_seconds=times[0] - began,
        theta=bound.in_units(mean[theta_at]),
        theta_unconstrained=bound.unravel(mean[theta_at]),
        theta_covariance=cov[np.ix_(theta_at, theta_at)],
        marginal=method == "fullrank_advi",
        mean=means,
        covariance=covariances,
        sites=dict(zip(sites, in_model, strict=True)),
        Xu_before=before,
        Xu=before,
        model=model,
        interrupted=interrupted,
    )
    stage.apply()
    if interrupted:
        _log.warning("%s", message)
    return stage


def _noting(call: Callable, stopped: list[bool]) -> Callable:
    """Return a callback of PyMC that notes if it ends the fit, as Ctrl-C would."""

    def noting(*args):
        try:
            call(*args)
        except StopIteration:
            stopped.append(True)
            raise

    return noting
