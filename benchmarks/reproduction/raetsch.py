"""Small binary classification sets: held-out negative log probability over splits.

Matthews' thesis, table 4.3: median over ten splits, two standard deviations beside it; sparse KL
(our Gaussian stage) with M = 8 and with M = 30 % of the rows. The thesis' kernel and priors are not
at hand, nor whether its 30 % were moved: ours stay once and move once. Our kernel is isotropic, on
standardised inputs, and its parameters maximise the bound as good as without priors; `--gamma 1`
takes the Gamma(1.1, 1) priors of the image experiment, with which the free-form posterior of
`--free` splits is sampled, too. Sets without published splits get random ones of the published
size. Twonorm and ringnorm are Breiman's (1996), and waveform is of Breiman et al. (1984): simulated
data, which are simulated here anew.
"""

import json
import time

import numpy as np
import pymc as pm

from common import (
    BY_DEFAULT,
    arguments,
    classification_scores,
    command,
    fit,
    free_form,
    probit_scores,
    standardised,
    write,
)

import pymc_vsgp as vsgp


def of_normals(mean, other_mean, other_sd, n=7400, d=20):
    """Simulate two classes that are as many, each normal with the same mean in each column."""
    rng = np.random.default_rng(1)
    y = rng.permutation(np.arange(n) % 2)
    noise = rng.standard_normal((n, d))
    return {"X": np.where(y[:, None], mean + noise, other_mean + other_sd * noise), "y": y}


def of_waves(n=5000):
    """Simulate random convex combinations of two of three triangular waves, with noise.

    Those of the first and of the third wave are against the others: a third of the rows. It is not
    said which class was; this one, or its mirror image, gives the errors that others found.
    """
    rng = np.random.default_rng(1)
    waves = np.stack([np.maximum(6.0 - np.abs(np.arange(1, 22) - c), 0.0) for c in (7, 15, 11)])
    kind, share = rng.integers(3, size=n), rng.uniform(size=(n, 1))
    first, second = waves[np.array([0, 0, 1])[kind]], waves[np.array([1, 2, 2])[kind]]
    X = share * first + (1.0 - share) * second + rng.standard_normal((n, 21))
    return {"X": X, "y": (kind == 1).astype(int)}


SIMULATED = {
    "twonorm": of_normals(2.0 / np.sqrt(20.0), -2.0 / np.sqrt(20.0), 1.0),
    "ringnorm": of_normals(2.0 / np.sqrt(20.0), 0.0, 2.0),
    "waveform": of_waves(),
}
# Training rows of the thesis where the data come without splits.
SETS = {
    "thyroid": ("raetsch_thyroid", 140),
    "heart": ("heart_statlog", 170),
    "cancer": ("raetsch_breast_cancer", None),
    "titanic": ("raetsch_titanic", None),
    "banana": ("raetsch_banana", None),
    "twonorm": ("twonorm", 400),
    "ringnorm": ("ringnorm", 400),
    "diabetes": ("pima", 468),
    "waveform": ("waveform", 400),
}
ROUNDS = 150  # at most: 120 inducing inputs in 20 dimensions move for some 60
# Inducing inputs: a share of the rows, or 8, and whether they move.
INDUCING = {"30%": (0.3, False), "M=8": (None, True), "30%, moved": (0.3, True)}
# Median and two standard deviations: sparse KL with M = 8 and 30 %; KL without inducing inputs.
PUBLISHED = {
    "thyroid": {"M=8": (0.13, 0.06), "30%": (0.09, 0.05), "KL": (0.11, 0.05)},
    "heart": {"M=8": (0.42, 0.11), "30%": (0.47, 0.18), "KL": (0.46, 0.14)},
    "cancer": {"M=8": (0.56, 0.07), "30%": (0.58, 0.13), "KL": (0.56, 0.09)},
    "twonorm": {"M=8": (0.08, 0.01), "30%": (0.09, 0.02), "KL": (0.17, 0.43)},
    "ringnorm": {"M=8": (0.41, 0.09), "30%": (0.15, 0.03), "KL": (0.21, 0.22)},
    "diabetes": {"M=8": (0.47, 0.02), "30%": (0.51, 0.04), "KL": (0.48, 0.04)},
    "waveform": {"M=8": (0.23, 0.01), "30%": (0.25, 0.04), "KL": (0.23, 0.09)},
}


def load(file):
    """Return inputs `X` and classes `y` of a set, with its splits where it has some."""
    if file in SIMULATED:
        return SIMULATED[file]
    data = vsgp.datasets.load(file)
    if file == "pima":
        return {"X": data.iloc[:, :-1].to_numpy(), "y": data.iloc[:, -1].to_numpy()}
    return data


def split_of(data, seed, n_train):
    """Return the rows to train on and to test on."""
    if n_train is None:
        return data["train_idx"][seed], data["test_idx"][seed]
    rows = np.random.default_rng(seed).permutation(len(data["y"]))
    return rows[:n_train], rows[n_train:]


def one(data, seed, n_train, label, options, sampled):
    """Both stages on one split, with 8 inducing inputs or a share of the rows."""
    train, test = split_of(data, seed, n_train)
    X, Xtest = standardised(data["X"][train].astype(float), data["X"][test].astype(float))
    y, ytest = data["y"][train], data["y"][test]
    share, moved = INDUCING[label]
    distinct = len(np.unique(X, axis=0))
    n_inducing = min(8 if share is None else round(share * len(X)), distinct)
    Z = vsgp.inducing.kmeans(X, n_inducing, random_seed=seed)
    with pm.Model() as model:
        lengthscale, variance = priors(options.gamma, X.shape[1])
        gp = pm.gp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(X.shape[1], lengthscale))
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Bernoulli(link="probit"), X=X, y=y)
        stage = fit(options, move_inducing=moved, maxiter=ROUNDS, tol=1e-2)
        idata, how = free_form(stage, options, seed + 1, {}) if sampled else (None, {})
    scores = {"gaussian": probit_scores(stage, *estimates(stage), Xtest, ytest)}
    if sampled:
        scores["free_form"] = classification_scores(idata, Xtest, ytest, model)
    return {
        "seed": seed,
        "M": n_inducing,
        **scores,
        "theta": stage.theta,
        "bound": stage.elbo,
        "converged": bool(stage.converged),
        "stage_seconds": stage.seconds,
        **how,
    }


def priors(gamma, n_columns):
    """Return lengthscale and variance; without `gamma`, so wide that the bound alone counts."""
    if gamma:
        return pm.Gamma("lengthscale", 1.1, 1.0), pm.Gamma("variance", 1.1, 1.0)
    log_lengthscale = pm.Normal("log_lengthscale", np.log(n_columns) / 2.0, 10.0)
    log_variance = pm.Normal("log_variance", 1.0, 10.0)
    return pm.math.exp(log_lengthscale), pm.math.exp(log_variance)


def estimates(stage):
    """Return lengthscale and variance of a Gaussian stage with either priors."""
    names = ("lengthscale", "variance")
    if "variance" in stage.theta:
        return [stage.theta[name] for name in names]
    return [np.exp(stage.theta[f"log_{name}"]) for name in names]


def summary(rows):
    """Median, spread and mean error over splits."""
    entry = {"M": rows[0]["M"], "splits": len(rows), "command": command("raetsch")}
    for stage in ("gaussian", "free_form"):
        some = [r[stage] for r in rows if stage in r]
        if not some:
            continue
        x = np.array([-r["log_density"] for r in some])
        entry[stage] = {"splits": len(x), "median": float(np.median(x))}
        entry[stage] |= {"two_sd": float(2 * x.std())}
        entry[stage]["error"] = float(np.mean([r["error"] for r in some]))
    sampled = [r for r in rows if "rhat_max" in r]
    if sampled:
        entry["rhat_max"] = max(r["rhat_max"] for r in sampled)
        entry["ess_min"] = min(r["ess_min"] for r in sampled)
        entry["divergences"] = sum(r["divergences"] for r in sampled)
    return entry


def main(argv=None):
    options = arguments(__doc__, argv, splits=10, free=0, gamma=0, sets=len(SETS), first=0)
    began = time.perf_counter()
    path = options.out / "raetsch.json"
    known = json.loads(path.read_text()) if path.exists() else {"results": {}}
    results, earlier = known["results"], known.get("earlier", [])
    earlier = [*earlier, known] if "command" in known else earlier
    results["published"] = PUBLISHED
    splits = 1 if options.smoke else options.splits
    prior = "gamma" if options.gamma else "maximum"
    last = options.first + (1 if options.smoke else options.sets)
    for name, (file, n_train) in list(SETS.items())[options.first : last]:
        data = load(file)
        for label in list(INDUCING)[: 1 if options.smoke else 2 if options.gamma else None]:
            rows = []
            entry = results.setdefault(name, {}).setdefault(label, {})
            for seed in range(splits):
                rows.append(one(data, seed, n_train, label, options, seed < options.free))
                # A run that is stopped keeps its splits; those with other priors stay in any case.
                entry[prior] = summary(rows) | {"runs": rows}
                print(name, label, summary(rows), flush=True)
                settings = {"sets": list(SETS)} | BY_DEFAULT
                write("raetsch", options, settings, results, began, earlier)
    return results


if __name__ == "__main__":
    main()
