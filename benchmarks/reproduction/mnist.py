"""MNIST: ten functions with one kernel and shared inducing images, robust-max, minibatches.

Hensman et al. (2015), section 4.5: 500 inducing images from k-means and the Gaussian stage on
minibatches, then free-form draws; published are an accuracy of 98.04 % and mean log densities of
-0.068 and -0.064. Their kernel has a lengthscale for each pixel, ours one for all, as in Matthews'
thesis. Only the order of the functions counts under robust-max, so the kernel's variance is fixed
and what white noise adds to it is free.

Free-form draws with all images take a minute each on a core: ``--chain 25`` takes a short chain of
them, from the stage that an earlier run ended with. ``--free 30`` compares both stages on a random
part of the images. On a GPU ``--gpu 100000 --minutes 6 --chain 130 --tune 60`` takes all steps that
fit into the minutes, then draws; ``--score 1`` scores these.
"""

import dataclasses
import functools
import json
import time

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import scipy.linalg

from common import QUIET, arguments, command, fit, free_form, summary_of, write
from scipy.cluster.vq import kmeans2

import pymc_vsgp as vsgp

PUBLISHED = {"accuracy": 0.9804, "gaussian_log_density": -0.068, "free_form_log_density": -0.064}
LEGS = (100, 100, 200, 400, 800, 1600, 3200, 6400)  # steps; each leg continues from the one before
FIRST_ON_GPU = (200, 1000)  # steps that say how many more fit into the minutes
N_CLASSES = 10


def images():
    """Return the images as rows with pixels from 0 to 1, and their digits."""
    data = vsgp.datasets.load("mnist")
    sets = []
    for part in ("train", "test"):
        X = data[f"X_{part}"]
        sets += [X.reshape(len(X), -1) / 255.0, data[f"y_{part}"].astype(int)]
    return sets


def model_of(X, y, Z):
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 4.0, 0.5)
        white = pm.Gamma("white", 3.0, 10.0)
        kernel = pm.gp.cov.ExpQuad(X.shape[1], ls=lengthscale) + pm.gp.cov.WhiteNoise(white)
        gp = pm.gp.VariationalSparse(cov_func=kernel)
        gp.prior("u", Xu=Z, n_outputs=N_CLASSES)
        gp.likelihood("y", vsgp.RobustMax(N_CLASSES), X=X, y=y)
    return model


def closed_form(stage, X, y):
    """Score the Gaussian stage: its functions are normal at each image, so nothing is drawn."""
    score = _log_predictive(N_CLASSES)
    each = np.concatenate(
        [_by_class(score, *_moments(stage, X[i : i + 1000])) for i in range(0, len(X), 1000)]
    )
    right = each.argmax(axis=1) == y
    return {
        "log_density": float(each[np.arange(len(y)), y].mean()),
        "accuracy": float(right.mean()),
    }


@functools.cache
def _log_predictive(n_classes):
    """Compile the log density of classes whose functions are normal."""
    mu, gamma, at = pt.dmatrix("mu"), pt.dmatrix("gamma"), pt.lvector("y")
    log_density = vsgp.RobustMax(n_classes).log_predictive(mu, gamma, at)
    return pytensor.function([mu, gamma, at], log_density, mode="FAST_COMPILE")


def _moments(stage, X):
    """Mean and variance of the functions at some images under the Gaussian stage."""
    lengthscale, noise = float(stage.theta["lengthscale"]), float(stage.theta["white"]) ** 2
    (Z,) = stage.Xu.values()  # where they moved to
    Kuu = _kernel(Z, Z, lengthscale) + noise * np.eye(len(Z))
    Kuf = _kernel(Z, X, lengthscale)
    A = scipy.linalg.cho_solve(scipy.linalg.cho_factor(Kuu), Kuf)
    prior = 1.0 + noise - np.sum(Kuf * A, axis=0)
    spread = [np.sum(A * (S @ A), axis=0) for S in stage.covariance["u"]]
    return (stage.mean["u"] @ A).T, (prior + np.stack(spread)).T


def _kernel(a, b, lengthscale):
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    return np.exp(-np.clip(square, 0.0, None) / (2.0 * lengthscale**2))


def _by_class(score, mu, gamma):
    n = len(mu)
    return np.stack([score(mu, gamma, np.full(n, k)) for k in range(N_CLASSES)], axis=1)


def by_draws(idata, X, y, model, num_samples):
    """Score from draws, as for any model; chunks of images keep memory small."""
    settings = {"model": model, "num_samples": num_samples, **QUIET}
    each = vsgp.log_predictive_density(idata, X, y, **settings)
    p = vsgp.predict(idata, X, "mean", **settings).mean(["chain", "draw"]).values
    return {
        "log_density": float(each.mean()),
        "accuracy": float((p.argmax(axis=1) == y).mean()),
        "draws": num_samples,
    }


def gaussian(X, y, Xtest, ytest, runs, options):
    """Minibatch steps with all images; yields the scores after each leg.

    A leg continues from the one before it. Legs that `runs` has are not run again.
    """
    began = time.process_time()
    Z = start_images(X, options.inducing)
    placed = time.process_time() - began
    model, stage, seconds = model_of(X, y, Z), None, placed
    folder = options.out / ".cache"
    folder.mkdir(parents=True, exist_ok=True)
    for leg, n in enumerate(LEGS if not options.smoke else (2, 2)):
        done = runs[leg] if leg < len(runs) else None
        path = folder / f"mnist_{options.inducing}_{leg}.npz"
        if done is None:
            path.unlink(missing_ok=True)
        elif leg + 1 < len(runs):
            seconds = 60.0 * done["cpu_minutes"]
            continue  # a later one has it all
        began = time.process_time()
        with model:
            stage = vsgp.fit_gaussian(
                maxiter=n,
                tol=0.0,  # as long as it is given
                batch_size=options.batch,
                start=stage,
                checkpoint=path,
                random_seed=1,
                progressbar=options.progress > 0,
            )
        if done is not None:
            seconds = 60.0 * done["cpu_minutes"]
            continue
        seconds += time.process_time() - began
        yield {
            "M": len(Z),
            "steps": stage.n_steps,
            "epochs": stage.n_steps * min(options.batch, len(X)) / len(X),
            "cpu_minutes": seconds / 60.0,
            "kmeans_seconds": placed,
            "theta": {k: float(v) for k, v in stage.theta.items()},
            "elbo": stage.elbo,
            **closed_form(stage, Xtest, ytest),
        }
        if options.minutes and seconds > 60.0 * options.minutes:
            break
    if stage is None:
        return
    num_samples = 2 if options.smoke else 10
    some = slice(0, 500)  # enough to see that both ways agree
    draws = stage_draws(stage, num_samples)
    yield {
        "closed_form_of_first_500": closed_form(stage, Xtest[some], ytest[some]),
        "by_draws_of_first_500": by_draws(draws, Xtest[some], ytest[some], model, num_samples),
    }


def gpu(X, y, Xtest, ytest, options):
    """Fit the stage and take draws of NUTS with all images, on the devices of JAX."""
    import jax

    model = model_of(X, y, start_images(X, options.inducing))
    began, stage, legs = time.perf_counter(), None, []
    while len(legs) < (3 if options.minutes else 1):
        leg = time.perf_counter()
        n = options.gpu
        if options.minutes:
            n = FIRST_ON_GPU[len(legs)] if len(legs) < 2 else _what_fits(legs[-1], began, options)
        with model:
            stage = vsgp.fit_gaussian(
                maxiter=n,
                tol=0.0,
                batch_size=options.batch,
                start=stage,
                random_seed=1,
                progressbar=False,
                compile_kwargs={"mode": "JAX"},
            )
        seconds = time.perf_counter() - leg
        scores = closed_form(stage, Xtest, ytest)
        legs.append({"steps": n, "seconds": seconds, "compiling": stage.compile_seconds, **scores})
        print(legs[-1], flush=True)
    results = {
        "device": jax.devices()[0].device_kind,
        "M": options.inducing,
        "steps": stage.n_steps,
        "epochs": stage.n_steps * options.batch / len(X),
        "seconds": time.perf_counter() - began,
        "theta_of_stage": {k: float(v) for k, v in stage.theta.items()},
        "elbo": stage.elbo,
        "gaussian": scores,
        "legs": legs,
    }
    print(results, flush=True)
    yield results
    began = time.perf_counter()
    with model:
        idata = vsgp.sample(
            options.chain,
            tune=options.tune,
            chains=1,
            method="nuts",
            stage=stage,
            devices=jax.devices(),
            nuts={"maxdepth": options.depth},
            random_seed=1,
            compute_convergence_checks=False,
            **QUIET,
        )
    results["chain"] = {
        "tune": options.tune,
        "draws": options.chain,
        "clock_seconds": time.perf_counter() - began,
        **of_chain(idata),
    }
    (moved,) = stage.Xu.values()
    draws = {name: idata["posterior"][name].values for name in ("lengthscale", "white", "u")}
    np.savez(options.out / "mnist_draws.npz", Z=moved, **draws)
    yield results


def _what_fits(leg, began, options):
    """Steps that take what is left of the minutes, at the speed of an earlier leg."""
    each = (leg["seconds"] - leg["compiling"]) / leg["steps"]
    left = 60.0 * options.minutes - (time.perf_counter() - began) - leg["compiling"]
    return min(max(int(left / each), 1), options.gpu)


def score_of(path, log_density, X, y, Xtest, ytest):
    """Score draws that a GPU left in a file, and say how many they are worth."""
    with np.load(path) as file:
        Z, draws = file["Z"], {k: file[k] for k in ("lengthscale", "white", "u")}
    idata = az.from_dict({"posterior": draws})
    model = model_of(X, y, Z)
    n = draws["white"].size
    halves = [idata.isel(draw=slice(at, at + n // 2)) for at in (0, n // 2)]
    return {
        "ess": ess_of(draws, log_density),
        "free_form": by_draws(idata, Xtest, ytest, model, n),
        "halves": [by_draws(half, Xtest, ytest, model, n // 2) for half in halves],
    }


def ess_of(draws, log_density):
    """Effective draws of parameters, of the log density, and of u: the median of its values."""
    everything = {**draws, "log_density": np.array([log_density])}
    ess = az.ess(az.from_dict({"posterior": everything}), relative=False)
    return {name: float(np.median(ess[name])) for name in everything}


def chain(X, y, Xtest, ytest, options):
    """Take a short chain of NUTS with all images, from the stage of an earlier run."""
    folder = options.out / ".cache"
    known = sorted(folder.glob(f"mnist_{options.inducing}_*.npz"), key=lambda p: p.stat().st_mtime)
    if not known:
        raise SystemExit("There is no fit to start from. Run this without --chain first.")
    model = model_of(X, y, start_images(X, options.inducing))
    with model:
        stage = vsgp.fit_gaussian(
            maxiter=1,  # no more than there are
            batch_size=options.batch,
            checkpoint=known[-1],
            random_seed=1,
            progressbar=False,
        )
        began, clock = time.process_time(), time.perf_counter()
        idata = vsgp.sample(
            options.chain,
            tune=options.chain,
            chains=1,
            method="nuts",
            stage=stage,
            backend="numba",
            nuts={"maxdepth": 4},
            random_seed=1,
            compute_convergence_checks=False,
            **QUIET,
        )
        seconds = time.process_time() - began
    return {
        "M": options.inducing,
        "steps_of_stage": stage.n_steps,
        "theta_of_stage": {k: float(v) for k, v in stage.theta.items()},
        "tune": options.chain,
        "cpu_seconds": seconds,
        "clock_seconds": time.perf_counter() - clock,
        **of_chain(idata),
        "gaussian": closed_form(stage, Xtest, ytest),
        "free_form": by_draws(idata, Xtest, ytest, model, options.chain),
    }


def of_chain(idata):
    """Return what the sampler took, and where it went."""
    stats, posterior = idata["sample_stats"], idata["posterior"]
    gradients = int(stats["n_steps"].sum())
    return {
        "gradients_of_draws": gradients,
        "gradients_per_draw": gradients / stats["n_steps"].size,
        "divergences": int(stats["diverging"].sum()),
        "step_size": float(stats["step_size"].mean()),
        "sampling_seconds": float(posterior.attrs["sampling_time"]),
        "log_density_of_draws": [float(x) for x in stats["logp"].values.ravel()],
        "theta": summary_of(idata, ["lengthscale", "white"]),
    }


def start_images(X, n):
    """Centres of n clusters of a sixth of the images: pixels share their unit."""
    images = X[np.random.default_rng(1).permutation(len(X))[: max(len(X) // 6, n)]]
    return kmeans2(images, images[:n], iter=12, minit="matrix")[0]


def stage_draws(stage, n):
    """Draw from the Gaussian stage at its estimate of theta."""
    fixed = dataclasses.replace(stage, theta_covariance=0.0 * stage.theta_covariance)
    return fixed.to_datatree(n, random_seed=1)


def both(X, y, Xtest, ytest, n_rows, n_inducing, options):
    """Gaussian and free-form on a part of the images."""
    rows = np.random.default_rng(1).permutation(len(X))[:n_rows]
    X, y = X[rows], y[rows]
    Z = vsgp.inducing.kmeans(X, n_inducing, random_seed=1)
    model = model_of(X, y, Z)
    with model:
        stage = fit(options)
        idata, how = free_form(stage, options)
    num_samples = 2 if options.smoke else 100
    return {
        "rows": n_rows,
        "M": n_inducing,
        "stage_seconds": stage.seconds,
        "theta": {k: float(v) for k, v in stage.theta.items()},
        "gaussian": closed_form(stage, Xtest, ytest),
        "free_form": by_draws(idata, Xtest, ytest, model, num_samples),
        **how,
    }


def main(argv=None):
    numbers = {"inducing": 500, "batch": 1000, "minutes": 0, "rows": 3000, "free": 0, "progress": 0}
    numbers |= {"chain": 0, "gpu": 0, "depth": 6, "score": 0}
    options = arguments(__doc__, argv, **numbers)
    began = time.perf_counter()
    X, y, Xtest, ytest = images()
    if options.smoke:
        X, y, Xtest, ytest = X[:80], y[:80], Xtest[:20], ytest[:20]
        options.inducing, options.batch = 5, 20
    settings = {"train": len(X), "test": len(Xtest), "batch": options.batch, "epsilon": 1e-3}
    if options.free:
        shape = (60, 5) if options.smoke else (options.rows, options.free)
        save_part("subset", both(X, y, Xtest, ytest, *shape, options), settings, options, began)
        return []
    if options.gpu:
        for part in gpu(X, y, Xtest, ytest, options):
            save_part("gpu", part, settings, options, began)
        return []
    if options.score:
        known = json.loads((options.out / "mnist.json").read_text())["results"]["gpu"]["results"]
        path = options.out / "mnist_draws.npz"
        density = known["chain"]["log_density_of_draws"]
        known["chain"] |= score_of(path, density, X, y, Xtest, ytest)
        save_part("gpu", known, settings, options, began)
        return []
    if options.chain:
        save_part("chain", chain(X, y, Xtest, ytest, options), settings, options, began)
        return []
    runs, path = [], options.out / "mnist.json"
    if path.exists():  # a run that was stopped goes on
        known = json.loads(path.read_text())["results"].get("curve", {"results": []})["results"]
        runs = [run for run in known if run.get("M") == options.inducing]
    for run in gaussian(X, y, Xtest, ytest, list(runs), options):
        runs.append(run)
        print(run, flush=True)
        save_part("curve", runs, settings, options, began)
    return runs


def save_part(name, part, settings, options, began):
    """Put one part of the results into the file, beside those of other runs."""
    path = options.out / "mnist.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    part = {"command": command("mnist"), "seconds": time.perf_counter() - began, "results": part}
    write("mnist", options, settings, results | {"published": PUBLISHED, name: part}, began)


if __name__ == "__main__":
    main()
