"""Raetsch's image data: held-out log probability against the number and place of inducing inputs.

Hensman et al. (2015), section 4.1: 1000 rows to train on, M inducing inputs from k-means that stay
or are moved by the bound of the Gaussian stage, one lengthscale or one for each input. The rows
are those of the published code without its order, so its splits can't be the same. Each row has
the commit of the package that made it. Started again, it goes on with the first row that is not of
today's package: what takes hours can be done in parts.
"""

import json
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from common import (
    BY_DEFAULT,
    arguments,
    classification_scores,
    envs,
    fit,
    free_form,
    original_permutation,
    probit_scores,
    save,
    standardised,
    write,
)

import pymc_vsgp as vsgp

N_TRAIN = 1000
KERNELS, INDUCING = ("isotropic", "ARD"), ("k-means", "moved")
ROW = ("seed", "M", "kernel", "inducing")  # what a row of the results is of


def model_of(X, y, Z, ard):
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 1.1, 1.0, shape=X.shape[1] if ard else ())
        variance = pm.Gamma("variance", 1.1, 1.0)
        gp = pm.gp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(X.shape[1], lengthscale))
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Bernoulli(link="probit"), X=X, y=y)
    return model


def one(data, seed, n_inducing, ard, moved, options, sampled):
    """The Gaussian stage on one split, and the free-form one if it is `sampled`."""
    began = time.perf_counter()
    rows = original_permutation(len(data["unique_idx"]), seed)
    rows = data["unique_idx"][rows]
    n = 60 if options.smoke else N_TRAIN
    train, test = rows[:n], rows[n : n + 40] if options.smoke else rows[n:]
    X, Xtest = standardised(data["X"][train].astype(float), data["X"][test].astype(float))
    y, ytest = data["y"][train], data["y"][test]
    Z = vsgp.inducing.kmeans(X, n_inducing, random_seed=seed)
    model = model_of(X, y, Z, ard)
    with model:
        stage = fit(options, move_inducing=moved, maxiter=options.rounds, random_seed=seed)
        idata, how = free_form(stage, options, seed + 1, {}) if sampled else (None, {})
    theta = (stage.theta["lengthscale"], stage.theta["variance"])
    scores = {"gaussian": probit_scores(stage, *theta, Xtest, ytest)}
    if sampled:
        scores["free_form"] = classification_scores(idata, Xtest, ytest, model)
    return {
        "seed": seed,
        "M": n_inducing,
        "kernel": KERNELS[ard],
        "inducing": INDUCING[moved],
        **scores,
        "theta": stage.theta,
        "bound": stage.elbo,
        "rounds": len(stage.elbo_history),
        "converged": bool(stage.converged),
        "stage_seconds": stage.seconds,
        **how,
        "commit": envs.commit(),
        "seconds": time.perf_counter() - began,
    }


def draw(rows, options):
    """Box plots over splits, as in figure 1 of the paper."""
    n_rows = 2 if any("free_form" in r for r in rows) else 1
    layout = {"sharex": True, "sharey": "row", "squeeze": False, "constrained_layout": True}
    figure, axes = plt.subplots(n_rows, 2, figsize=(9, 2.5 * n_rows), **layout)
    sizes = sorted({row["M"] for row in rows})
    for column, kernel in enumerate(("isotropic", "ARD")):
        for shift, (inducing, color) in enumerate((("k-means", "C1"), ("moved", "C0"))):
            chosen = [
                [r for r in rows if (r["M"], r["kernel"], r["inducing"]) == (M, kernel, inducing)]
                for M in sizes
            ]
            gaussian = [[r["gaussian"]["log_density"] for r in c] for c in chosen]
            gain = [
                [
                    r["free_form"]["log_density"] - r["gaussian"]["log_density"]
                    for r in c
                    if "free_form" in r
                ]
                for c in chosen
            ]
            at = np.arange(len(sizes)) + 0.3 * shift - 0.15
            for ax, values in zip(axes[:, column], (gaussian, gain), strict=False):
                boxes = ax.boxplot(values, positions=at, widths=0.22, patch_artist=True)
                for x, each in zip(at, values, strict=True):
                    ax.plot([x] * len(each), each, "o", color=color, ms=4)
                for box in boxes["boxes"]:
                    box.set(facecolor=color, alpha=0.6)
            axes[0, column].plot([], [], "s", color=color, alpha=0.6, label=inducing)
        axes[0, column].set(title=kernel)
        axes[-1, column].set(xlabel="inducing inputs")
        axes[-1, column].set_xticks(range(len(sizes)), [str(M) for M in sizes])
    axes[0, 0].set(ylabel="held-out log p, Gaussian")
    if n_rows == 2:
        for ax in axes[1]:
            ax.axhline(0.0, color="0.5", lw=0.8)
        axes[1, 0].set(ylabel="free-form - Gaussian")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(figure, options, "image")
    plt.close(figure)


def main(argv=None):
    numbers = {"splits": 10, "largest": 100, "rounds": 100, "free": 3, "free_largest": 50}
    options = arguments(__doc__, argv, **numbers)
    data = vsgp.datasets.load("raetsch_image")
    sizes = [4] if options.smoke else [M for M in (5, 10, 20, 50, 100) if M <= options.largest]
    settings = {"sizes": sizes, "train_rows": N_TRAIN, "rounds": options.rounds}
    settings |= {"test_rows": len(data["unique_idx"]) - N_TRAIN} | BY_DEFAULT
    rows = earlier(options, settings)
    for seed in range(1 if options.smoke else options.splits):
        for n_inducing in sizes:
            sampled = seed < options.free and n_inducing <= options.free_largest
            for ard in (True,) if options.smoke else (False, True):
                for moved in (True,) if options.smoke else (False, True):
                    key = seed, n_inducing, KERNELS[ard], INDUCING[moved]
                    same = [row for row in rows if tuple(row[k] for k in ROW) == key]
                    if any(_is_done(row, sampled) for row in same):
                        continue
                    rows = [row for row in rows if row not in same]
                    rows.append(one(data, seed, n_inducing, ard, moved, options, sampled))
                    keys = ("M", "kernel", "inducing", "gaussian", "free_form", "rhat_max")
                    print({k: rows[-1].get(k) for k in keys}, flush=True)
                # A long run that is stopped keeps what it has done.
                results = {"mean": table(rows), "runs": rows}
                began = time.perf_counter() - sum(row["seconds"] for row in rows)
                write("image", options, settings, results, began)
                draw(rows, options)
    return rows


def _is_done(row, sampled):
    return row["commit"] == envs.commit() and (not sampled or "free_form" in row)


def earlier(options, settings):
    """Return the rows of earlier runs, if those had these settings."""
    path = options.out / "image.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    same = record.get("smoke") == options.smoke
    for key in ("rounds", "draws", "tune", "chains"):
        ours = settings.get(key, getattr(options, key))
        same = same and record["settings"][key] == ours
    return record["results"]["runs"] if same else []


def table(rows):
    """Mean over splits of each setting, and of the gain where free-form was sampled."""
    out = []
    for key in sorted({(r["M"], r["kernel"], r["inducing"]) for r in rows}):
        same = [r for r in rows if (r["M"], r["kernel"], r["inducing"]) == key]
        entry = dict(zip(("M", "kernel", "inducing"), key, strict=True)) | {"splits": len(same)}
        entry["converged"] = sum(r["converged"] for r in same)
        for what in ("log_density", "error"):
            entry[f"gaussian_{what}"] = float(np.mean([r["gaussian"][what] for r in same]))
        sampled = [r for r in same if "free_form" in r]
        entry["sampled"] = len(sampled)
        if sampled:
            free = [r["free_form"]["log_density"] for r in sampled]
            gain = [f - r["gaussian"]["log_density"] for f, r in zip(free, sampled, strict=True)]
            entry |= {"free_form_log_density": float(np.mean(free)), "gain": float(np.mean(gain))}
            entry["rhat_max"] = max(r["rhat_max"] for r in sampled)
            entry["ess_min"] = min(r["ess_min"] for r in sampled)
            entry["divergences"] = sum(r["divergences"] for r in sampled)
        out.append(entry)
    return out


if __name__ == "__main__":
    main()
