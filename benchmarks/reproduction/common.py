"""What the experiments share: arguments, the two stages with their diagnostics, the result file."""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import sys
import time

from importlib.metadata import version

import numpy as np
import pymc as pm
import xarray as xr

from PIL import Image
from scipy.special import log_ndtr

import pymc_vsgp as vsgp

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import envs

PAGES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reproduction"
PACKAGES = ("pymc", "pytensor", "nutpie", "jax", "numpy", "scipy", "arviz")
JITTER = 1e-6  # of the package by default, relative to the variance
QUIET = {"progressbar": False}
SAMPLER = {"nuts_sampler": "nutpie", "backend": "jax"}  # JAX compiles in seconds
BY_DEFAULT = {"nuts_sampler": "by default", "backend": "by default"}  # after weights
# A smoke run checks the scripts. Samplers have tests of their own, and are left out of it.
SMOKE = {"draws": 4, "tune": 1, "chains": 1}
NO_DIAGNOSTICS = {
    "rhat_max": None,
    "ess_min": None,
    "divergences": 0,
    "steps_per_draw": None,
    "sampling_seconds": None,
    "seconds_per_effective_sample": None,
}


def arguments(description, argv=None, **numbers):
    """Read the command line: what every experiment takes, and `numbers` with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="tiny data, seconds, no numbers")
    parser.add_argument("--out", type=pathlib.Path, default=PAGES, help="folder of the results")
    numbers = {"draws": 500, "tune": 500, "chains": 2, **numbers}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(argv)
    if options.smoke:
        for name, value in SMOKE.items():
            setattr(options, name, value)
    return options


def original_permutation(n, seed):
    """Return the permutation that the published code drew: numpy's old generator, by its seed."""
    return np.random.RandomState(seed).permutation(n)


def gaussian_draws(stage, options, at_estimate=True):
    """Draw from the Gaussian stage, its parameters held at the estimate as in the paper."""
    if at_estimate:
        stage = dataclasses.replace(stage, theta_covariance=0.0 * stage.theta_covariance)
    return stage.to_datatree(10 if options.smoke else 1000, random_seed=1)


def fit(options, **kwargs):
    """Run the Gaussian stage of the model on the context stack."""
    rounds = {"maxiter": 1} if options.smoke else {}
    return vsgp.fit_gaussian(**{"random_seed": 1, **kwargs, **rounds, **QUIET})


def free_form(stage, options, seed=1, sampler=SAMPLER):
    """Sample the posterior from a Gaussian stage, and sum up how that went.

    Without settings of a sampler, weights are tried before NUTS.
    """
    if options.smoke:
        return gaussian_draws(stage, options, at_estimate=False), NO_DIAGNOSTICS
    began = time.perf_counter()
    idata = vsgp.sample(
        options.draws,
        stage=stage,
        tune=options.tune,
        chains=options.chains,
        random_seed=seed,
        compute_convergence_checks=False,
        **QUIET,
        **sampler,
    )
    return idata, diagnostics(idata, time.perf_counter() - began)


def diagnostics(idata, seconds):
    """Return R-hat, effective sample sizes, divergences, steps, and seconds by effective sample."""
    stats, attrs = idata["sample_stats"], idata["posterior"].attrs
    ess, rhat = {}, []
    for name, draws in idata["posterior"].to_dataset().items():
        if name.endswith("_rotated_"):  # whitened values of f, which is there itself
            continue
        flat = draws.values.reshape(*draws.shape[:2], -1)
        sizes, ratios = _ess(flat), _rhat(flat)
        ess[name] = float(sizes.min())
        rhat.append(float(ratios.max()))
    sampling = float(attrs.get("sampling_time", seconds))
    known = [stats[name] for name in ("n_steps", "tree_size") if name in stats]
    smallest = min(ess.values())
    return {
        "rhat_max": max(rhat),
        "ess_min": smallest,
        "ess_min_by_variable": ess,
        "divergences": int(stats["diverging"].sum()) if "diverging" in stats else 0,
        "steps_per_draw": float(known[0].mean()) if known else None,
        "method": attrs.get("method", "nuts"),
        "sampling_seconds": sampling,
        "total_seconds": seconds,
        "seconds_per_effective_sample": sampling / smallest,
    }


def _ess(flat):
    import arviz as az

    return np.array([float(az.ess(flat[..., i])) for i in range(flat.shape[-1])])


def _rhat(flat):
    import arviz as az

    if min(flat.shape[:2]) < 2:
        return np.full(flat.shape[-1], np.nan)
    return np.array([float(az.rhat(flat[..., i])) for i in range(flat.shape[-1])])


def summary_of(idata, names):
    """Mean, standard deviation and quantiles of parameters."""
    out = {}
    for name in names:
        draws = idata["posterior"][name].values.reshape(-1, *idata["posterior"][name].shape[2:])
        quantiles = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
        out[name] = {"mean": draws.mean(0), "sd": draws.std(0), "q05_q50_q95": quantiles}
    return out


def score(idata, X, y, model, likelihood=None):
    """Mean log predictive density of held-out observations."""
    each = vsgp.log_predictive_density(idata, X, y, likelihood=likelihood, model=model, **QUIET)
    return float(each.mean())


def classification_scores(idata, X, y, model):
    """Mean log probability of held-out classes, and the share that is wrong."""
    each = vsgp.log_predictive_density(idata, X, y, model=model, **QUIET)
    return {"log_density": float(each.mean()), "error": float((each < np.log(0.5)).mean())}


def probit_scores(stage, lengthscale, variance, X, y):
    """Return the same scores of a Gaussian stage under a probit link, in closed form.

    The function is normal at each input; its kernel is ExpQuad, its mean zero.
    """
    ((Z,), (mean,), (S,)) = stage.Xu.values(), stage.mean["u"], stage.covariance["u"]

    def kernel(a):
        square = (((a[:, None] - Z) / lengthscale) ** 2).sum(axis=-1)
        return variance * np.exp(-square / 2.0)

    K = kernel(X).T
    A = np.linalg.solve(kernel(Z) + JITTER * variance * np.eye(len(Z)), K)
    spread = variance - np.sum(K * A, axis=0) + np.sum(A * (S @ A), axis=0)
    z = (2 * y - 1) * (mean @ A) / np.sqrt(1.0 + spread)
    return {"log_density": float(log_ndtr(z).mean()), "error": float((z < 0.0).mean())}


def standardised(train, test):
    """Scale inputs by mean and standard deviation of the training rows."""
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0)
    return (train - mean) / scale, (test - mean) / scale


def latent_exact(model, options, seed=1, times=1):
    """Sample a model without any approximation, whitened, with that many times the draws."""
    if options.smoke:
        with model:
            prior = pm.sample_prior_predictive(
                options.draws, random_seed=seed, compile_kwargs={"mode": "FAST_COMPILE"}
            )
        return {"posterior": prior["prior"]}, NO_DIAGNOSTICS
    began = time.perf_counter()
    with model:
        idata = pm.sample(
            times * options.draws,
            tune=times * options.tune,
            chains=options.chains,
            random_seed=seed,
            compute_convergence_checks=False,
            **QUIET,
            **SAMPLER,
        )
    return idata, diagnostics(idata, time.perf_counter() - began)


def command(name):
    """Return the line that started this script, None if something else did."""
    if pathlib.Path(sys.argv[0]).stem != name:
        return None
    return " ".join(["python", f"benchmarks/reproduction/{name}.py", *sys.argv[1:]])


MADE_BY = "command", "seconds", "commit", "versions"


def write(name, options, settings, results, began, earlier=()):
    """Write numbers, settings and versions to a file, replacing what an earlier run left.

    A part of the numbers may be of earlier runs.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "command": command(name),
        "smoke": options.smoke,
        "settings": SAMPLER
        | {key: getattr(options, key) for key in ("draws", "tune", "chains")}
        | settings,
        "results": results,
        "seconds": time.perf_counter() - began,
        "machine": {
            "processor": envs.machine()["processor"],
            "cores": os.cpu_count(),
            "load_average_at_the_end": os.getloadavg(),
        },
        "commit": envs.commit(),
        "versions": {
            "python": platform.python_version(),
            "pymc_vsgp": vsgp.__version__,
            **{package: version(package) for package in PACKAGES},
        },
    }
    if earlier:
        record["earlier"] = [{k: run[k] for k in MADE_BY} for run in earlier]
    path = options.out / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
    return path


def _plain(x):
    """Return numpy's numbers and xarray's as Python's, with six digits: nobody reads more."""
    if isinstance(x, xr.DataArray):
        x = x.values
    return np.asarray(np.vectorize(lambda v: float(f"{v:.6g}"))(x)).tolist()


def save(figure, options, name):
    """Save a figure small enough to keep."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}.png"
    figure.savefig(path, dpi=80, bbox_inches="tight")
    with Image.open(path) as picture:  # matplotlib needs pillow in any case
        # Rare colors, too: a scale beside a map has all of them.
        rare = Image.Quantize.MAXCOVERAGE
        small = picture.convert("RGB").quantize(256, method=rare)
    small.save(path, optimize=True)
