"""Record what the package computes for small models, to compare later code with.

``python tests/recorded/record.py`` writes ``recorded.npz`` beside this file. With ``--check`` it
compares instead, and with names of models it works on these alone. `KINDS` are what is recorded.

Nearly all of it is evaluated at fixed points and with fixed sites, where no optimiser has a part.
"stage" and "moved" depend on where L-BFGS goes. They are short enough for that: with other rewrites
of the graphs, and so other rounding, their numbers are the same to 1e-10 (``--check --mode
FAST_COMPILE`` shows it). "minibatch" searches along no line, and takes its rows from a seed.
"""

import argparse
import functools
import pathlib
import sys
import time
import zlib

import numpy as np
import pytensor
import xarray as xr

from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode

import pymc_vsgp as vsgp

HERE = pathlib.Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from recorded.models import MODELS  # noqa: E402  (after the path, when run as a script)

FILE = HERE / "recorded.npz"
N_POINTS = 3
RAW = Mode(linker="py", optimizer=None)  # rewriting would be most of the time

# Relative to the largest entry of an array, or to SMALLEST if that is larger.
ALLOWED, SMALLEST = 1e-10, 1e-3


# --- what is inside the package, in one place ----------------------------------------------------


def elbo_of(model, mode):
    """Return a function of a point and sites: the ELBO, its gradient, and natural gradients."""
    from pymc_vsgp.fit.bound import Bound

    bound = Bound(model, mode=mode)
    names = [p.u.name for p in bound.processes]

    def evaluate(point, sites):
        ev = bound(bound.ravel(point), [sites[name] for name in names], bound.no_offsets())
        steps = dict(zip(names, zip(ev.linear, ev.precision, strict=True), strict=True))
        return ev.value, bound.unravel(ev.gradient[: bound.start.size]), steps

    return evaluate


def some_sites(model):
    """Return sites of each process, of the kind that a stage gives them."""
    from pymc_vsgp.fit.approximation import MOST_DENSE
    from pymc_vsgp.inducing.coordinates import Sites
    from pymc_vsgp.model.variable import inducing_variables

    out = {}
    for u in inducing_variables(model):
        K, M = (1, *shapes(model)[model.rvs_to_values[u].name])[-2:]
        of_sites = (K, M), (K, M) if M > MOST_DENSE else (K, M, M)
        out[u.name] = Sites(*(numbers(u.name, 10 + i, s, 0.4) for i, s in enumerate(of_sites)))
    return out


def set_sites(model, sites):
    """Put coordinates into a model, as a Gaussian stage does."""
    from pymc_vsgp.fit.stage import hand_over

    hand_over(model, sites, {})


def integrated(model):
    """Return the model with the inducing values integrated out."""
    from pymc_vsgp.fit.collapsed import collapse

    return collapse(model).model


# --- where it is evaluated -----------------------------------------------------------------------


def numbers(name, seed, shape, scale):
    """Return normal numbers that depend on the name alone, whatever the order of variables is."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    return scale * rng.normal(size=shape)


def variables(model):
    """Return the free variables by name, in the order of names."""
    return dict(sorted((rv.name, rv) for rv in model.free_RVs))


@functools.lru_cache(maxsize=2)
def shapes(model):
    """Return the shape of each unconstrained variable, by the name of the value variable."""
    return {name: np.shape(x) for name, x in model.initial_point(0).items()}


def points(model):
    """Return unconstrained points, by the name of the value variable."""
    out = []
    for seed in range(N_POINTS):
        point = {}
        for name, rv in variables(model).items():
            value = model.rvs_to_values[rv].name
            scale = 0.7 if name.split("_")[0] == "u" else 0.3
            point[value] = numbers(name, seed, shapes(model)[value], scale)
        out.append(point)
    return out


def values_at(model, where, names):
    """Return variables in the user's units, one dictionary for each point."""
    outputs = model.replace_rvs_by_values([model[name] for name in names])
    fn = model.compile_fn(outputs, inputs=model.value_vars, mode=RAW, on_unused_input="ignore")
    return [dict(zip(names, map(np.asarray, fn(p)), strict=True)) for p in where]


def draws_of(model):
    """Return the points as draws of a posterior."""
    names = [*variables(model), *(d.name for d in model.deterministics)]
    values = values_at(model, points(model), names)
    arrays = {n: np.stack([v[n] for v in values])[None] for n in names}
    posterior = {
        n: (("chain", "draw", *(f"{n}_dim_{i}" for i in range(a.ndim - 2))), a)
        for n, a in arrays.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


# --- what is recorded ----------------------------------------------------------------------------


def log_density(model, mode):
    """Log density of the unconstrained variables, and its gradient."""
    rvs = variables(model)
    logp = rewrite_pregrad(model.logp())
    gradient = pytensor.grad(logp, [model.rvs_to_values[rv] for rv in rvs.values()])
    fn = model.compile_fn(
        [logp, *gradient], inputs=model.value_vars, mode=mode, on_unused_input="ignore"
    )
    logps, *slopes = (np.stack(x) for x in zip(*map(fn, points(model)), strict=True))
    return {"logp": logps} | {f"d {n}": g for n, g in zip(rvs, slopes, strict=True)}


def density(case, mode):
    """The model as it was built: in whitened coordinates."""
    return log_density(case.model, mode)


def elbo(case, mode):
    """The ELBO, its gradient, and where natural gradients point, with some sites."""
    model = case.model
    by_value = {model.rvs_to_values[rv].name: rv.name for rv in model.free_RVs}
    evaluate, given = elbo_of(model, mode), some_sites(model)
    values, gradients, steps = zip(*(evaluate(p, given) for p in points(model)), strict=True)
    out = {"elbo": np.stack(values)}
    out |= {f"d {by_value[n]}": np.stack([g[n] for g in gradients]) for n in gradients[0]}
    return out | {f"step {n} {i}": x for n, step in steps[0].items() for i, x in enumerate(step)}


def sites(case, mode):
    """The density in the coordinates that a stage makes of sites."""
    set_sites(case.model, some_sites(case.model))
    out = log_density(case.model, mode)
    vsgp.reset(case.model)
    return out


def collapsed(case, mode):
    """The density of the parameters alone, with the inducing values integrated out."""
    return log_density(integrated(case.model), mode)


def predictions(case, mode):
    """Moments, means and scores at new inputs, at once and in chunks."""
    model, idata = case.model, draws_of(case.model)
    both = {"model": model, "progressbar": False}
    out = {f"draw {n}": x.values[0] for n, x in idata["posterior"].data_vars.items()}
    for name in case.names:
        settings = both | {"var_name": name, "compile_kwargs": {"mode": mode}}
        lik = case.new.get(name)
        for what in ("moments", "mean")[: 1 + case.has_mean]:
            found = vsgp.predict(idata, case.X_new, what, likelihood=lik, **settings)
            found = found if isinstance(found, xr.Dataset) else found.to_dataset(name="")
            out |= {f"{name} {what} {n}": x.values for n, x in found.data_vars.items()}
        chunked = vsgp.predict(idata, case.X_new, "moments", chunk_size=2, **settings)
        out |= {f"{name} chunked {n}": x.values for n, x in chunked.data_vars.items()}
        if not case.is_scored:
            continue
        scored = vsgp.compute_pointwise(idata, var_name=name, extend_inferencedata=False, **both)
        for n, x in scored.items():
            out[f"{name} {n}"] = x.values[..., :: 37 if x.size > 999 else 1]
    if case.at_point:
        at = values_at(model, points(model)[:1], list(variables(model)))[0]
        for name, function in case.at_point.items():
            out |= {f"{name} {i}": x for i, x in enumerate(function(at))}
    return out


def stage(case, mode):
    """Two rounds of a Gaussian stage."""
    return fitted(case.model, mode, maxiter=2)


def moved(case, mode):
    """A Gaussian stage that moves the inducing inputs, once."""
    return fitted(case.model, mode, maxiter=4, move_inducing=True)


def minibatch(case, mode):
    """Steps with a few rows each."""
    return fitted(case.model, mode, method="minibatch", maxiter=30, batch_size=8, random_seed=1)


def fitted(model, mode, **settings):
    """Numbers of a Gaussian stage."""
    settings |= {"progressbar": False, "compile_kwargs": {"mode": mode}}
    found = vsgp.fit_gaussian(model=model, **settings)
    vsgp.reset(model)
    parts = {w: getattr(found, w) for w in ("theta", "mean", "covariance", "Xu")}
    named = {f"{w} {n}": x for w, part in parts.items() for n, x in part.items()}
    return {"elbo": found.elbo_history, "theta covariance": found.theta_covariance, **named}


FUNCTIONS = (density, elbo, predictions, collapsed, sites, stage, moved, minibatch)
KINDS = {f.__name__: f for f in FUNCTIONS}
ALL = ["density", "elbo", "predictions"]

# What is recorded of some models beside ALL: of each kind of inducing variables, alone and mixed.
SOME = {
    "collapsed": ["gaussian", "gaussian_dtc", "gaussian_fitc", "gaussian_tight"]
    + ["features_gaussian", "features_gaussian_2d", "features_gaussian_diagonal"],
    "stage": ["nothing_else", "poisson", "softmax", "points_and_features"]
    + [
        "features",
        "features_diagonal",
        "features_gaussian",
        "features_gaussian_diagonal",
    ],
    "moved": ["poisson"],
    "minibatch": ["poisson", "features"],
    "sites": ["poisson", "softmax", "points_and_features"]
    + ["features", "features_diagonal", "features_softmax"],
}


def kinds_of(name):
    """Return what is recorded of a model."""
    if name == "no_blocks":  # all else needs blocks
        return ["density"]
    return [*ALL, *(kind for kind, names in SOME.items() if name in names)]


def evaluate(name, kinds=None, mode=RAW):
    """Return what is recorded of a model, by kind and quantity."""
    with pytensor.config.change_flags(traceback__limit=0):
        case = MODELS[name]()
        return {
            f"{name}/{kind}/{quantity}": np.asarray(x, dtype="float64")
            for kind in (kinds or kinds_of(name))
            for quantity, x in KINDS[kind](case, mode).items()
        }


# --- the file ------------------------------------------------------------------------------------


def load():
    """Return what was recorded."""
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def differences(found, record):
    """Say where numbers differ by more than 1e-10, relative to the largest of their array."""
    said = []
    for name, now in found.items():
        if name not in record:
            said.append(f"{name}: not in the record. Make it again")
            continue
        then = record[name]
        if now.shape != then.shape:
            said.append(f"{name}: shape {now.shape}, and {then.shape} in the record")
            continue
        size = np.nanmax(np.abs(then), initial=SMALLEST)
        same = (now == then) | (np.isnan(now) & np.isnan(then))
        off = np.where(same, 0.0, np.abs(now - then))
        if not (off <= ALLOWED * size).all():  # also where one of them is nan
            at = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
            said.append(
                f"{name}: {now[at]:.17g} at {tuple(map(int, at))}, and {then[at]:.17g} in the "
                f"record; off by {off[at] / size:.1e} of the largest"
            )
    return said


def main():
    """Write the record, or compare with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--mode", help="compile like this, for example FAST_COMPILE or NUMBA")
    parser.add_argument("models", nargs="*", help="names of models; by default all")
    options = parser.parse_args()
    record = load() if FILE.exists() else {}
    n_off = 0
    for name in options.models or MODELS:
        began = time.perf_counter()
        found = evaluate(name, mode=options.mode or RAW)
        print(
            f"{name}: {len(found)} quantities, {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        old = {k: x for k, x in record.items() if k.split("/")[0] == name}
        said = differences(found, old) if old or options.check else []
        said += [f"{k}: in the record, and not found now" for k in old if k not in found]
        n_off += len(said)
        for line in said:
            print(f"  {line}", flush=True)
        if not options.check:
            others = {k: x for k, x in record.items() if k.split("/")[0] in set(MODELS) - {name}}
            record = others | found
            np.savez_compressed(FILE, **dict(sorted(record.items())))
    what = f"{n_off} quantities differ from the record"
    if options.check:
        sys.exit(what if n_off else 0)
    print(f"{what} before. {FILE.name}: {len(record)}, {FILE.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
