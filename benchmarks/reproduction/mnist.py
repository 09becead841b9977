"""MNIST: ten functions with one kernel and shared inducing images, robust-max, minibatches.

Hensman et al. (2015), section 4.5: 500 inducing images from k-means and the Gaussian stage on
minibatches, then free-form draws; published are an accuracy of 98.04 % and mean log densities of
-0.068 and -0.064. Their kernel has a lengthscale for each pixel, ours one for all, as in Matthews'
thesis. Only the order of the functions counts under robust-max, so the kernel's variance is fixed
and what white noise adds to it is free.

Free-form draws with all images take days on a core. Here they are compared with the Gaussian stage
on a random part of the images.
"""

import dataclasses
import functools
import json
import time

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import scipy.linalg

from common import QUIET, arguments, command, fit, free_form, write

import pymc_vsgp as vsgp

PUBLISHED = {"accuracy": 0.9804, "gaussian_log_density": -0.068, "free_form_log_density": -0.064}
# Inducing images, and steps of the Gaussian stage. Later legs continue from the earlier ones.
SIZES = {50: (400,), 100: (400,), 200: (150, 350), 500: (250, 650)}
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


def gaussian(X, y, Xtest, ytest, n_inducing, steps, options):
    """Minibatch steps with all images; yields the scores after each leg."""
    began = time.perf_counter()
    Z = vsgp.inducing.kmeans(X, n_inducing, random_seed=1)
    placed = time.perf_counter() - began
    model, stage, taken, seconds = model_of(X, y, Z), None, 0, 0.0
    for n in steps:
        with model:
            stage = vsgp.fit_gaussian(
                "minibatch",
                maxiter=n,
                batch_size=options.batch,
                start=stage,
                random_seed=1 + taken,
                **QUIET,
            )
        taken, seconds = taken + n, seconds + stage.seconds
        began = time.perf_counter()
        scores = closed_form(stage, Xtest, ytest)
        num_samples = 2 if options.smoke else 10
        some = slice(0, 500)  # enough to see that both ways agree
        draws = stage_draws(stage, num_samples)
        yield {
            "M": n_inducing,
            "steps": taken,
            "epochs": taken * min(options.batch, len(X)) / len(X),
            "seconds": seconds,
            "seconds_per_step": seconds / taken,
            "kmeans_seconds": placed,
            "theta": {k: float(v) for k, v in stage.theta.items()},
            "bound": stage.elbo,
            "history": stage.elbo_history[:: max(len(stage.elbo_history) // 20, 1)],
            **scores,
            "closed_form_of_first_500": closed_form(stage, Xtest[some], ytest[some]),
            "by_draws_of_first_500": by_draws(draws, Xtest[some], ytest[some], model, num_samples),
            "scoring_seconds": time.perf_counter() - began,
        }


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
    numbers = {"largest": 500, "batch": 1000, "rows": 3000, "free": 0}
    options = arguments(__doc__, argv, **numbers)
    began = time.perf_counter()
    X, y, Xtest, ytest = images()
    sizes = {M: steps for M, steps in SIZES.items() if M <= options.largest}
    if options.smoke:
        X, y, Xtest, ytest = X[:80], y[:80], Xtest[:20], ytest[:20]
        sizes, options.batch = {5: (2,)}, 20
    settings = {"train": len(X), "test": len(Xtest), "batch": options.batch, "epsilon": 1e-3}
    runs = []
    if options.free:
        shape = (60, 5) if options.smoke else (options.rows, options.free)
        save_part("subset", both(X, y, Xtest, ytest, *shape, options), settings, options, began)
    if not options.free:
        for n_inducing, steps in sizes.items():
            for run in gaussian(X, y, Xtest, ytest, n_inducing, steps, options):
                runs.append(run)
                print({k: v for k, v in run.items() if k != "history"}, flush=True)
                # A run that is stopped keeps what it has done.
                save_part("runs", runs, settings, options, began)
    return runs


def save_part(name, part, settings, options, began):
    """Put one part of the results into the file, beside those of other runs."""
    path = options.out / "mnist.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    part = {"command": command("mnist"), "seconds": time.perf_counter() - began, "results": part}
    write("mnist", options, settings, results | {"published": PUBLISHED, name: part}, began)


if __name__ == "__main__":
    main()
