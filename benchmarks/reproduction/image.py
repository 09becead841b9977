"""Raetsch's image data: held-out log probability against the number and place of inducing inputs.

Hensman et al. (2015), section 4.1: 1000 rows to train on, M inducing inputs from k-means that stay
or are moved by the bound of the Gaussian stage, one lengthscale or one for each input. The rows
are those of the published code without its order, so its splits can't be the same.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from common import (
    arguments,
    classification_scores,
    fit,
    free_form,
    gaussian_draws,
    original_permutation,
    save,
    standardised,
    write,
)

import pymc_vsgp as vsgp

N_TRAIN = 1000


def model_of(X, y, Z, ard):
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 1.1, 1.0, shape=X.shape[1] if ard else ())
        variance = pm.Gamma("variance", 1.1, 1.0)
        gp = pm.gp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(X.shape[1], lengthscale))
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Bernoulli(link="probit"), X=X, y=y)
    return model


def one(data, seed, n_inducing, ard, moved, options):
    """Both stages on one split."""
    rows = original_permutation(len(data["unique_idx"]), seed)
    rows = data["unique_idx"][rows]
    n = 60 if options.smoke else N_TRAIN
    train, test = rows[:n], rows[n : n + 40] if options.smoke else rows[n:]
    X, Xtest = standardised(data["X"][train].astype(float), data["X"][test].astype(float))
    y, ytest = data["y"][train], data["y"][test]
    Z = vsgp.inducing.kmeans(X, n_inducing, random_seed=seed)
    model = model_of(X, y, Z, ard)
    with model:
        stage = fit(options, move_inducing=moved, max_rounds=options.rounds, random_seed=seed)
        idata, how = free_form(stage, options, seed=seed + 1)
    scores = {
        name: classification_scores(tree, Xtest, ytest, model)
        for name, tree in (("gaussian", gaussian_draws(stage, options)), ("free_form", idata))
    }
    return {
        "seed": seed,
        "M": n_inducing,
        "kernel": "ARD" if ard else "isotropic",
        "inducing": "moved" if moved else "k-means",
        **scores,
        "bound": stage.bound,
        "rounds": len(stage.history),
        "converged": bool(stage.converged),
        "stage_seconds": stage.seconds,
        **how,
    }


def draw(rows, options):
    """Box plots over splits, as in figure 1 of the paper."""
    figure, axes = plt.subplots(
        2, 2, figsize=(9, 5), sharex=True, sharey="row", constrained_layout=True
    )
    sizes = sorted({row["M"] for row in rows})
    for column, kernel in enumerate(("isotropic", "ARD")):
        for shift, (inducing, color) in enumerate((("k-means", "C1"), ("moved", "C0"))):
            chosen = [
                [r for r in rows if (r["M"], r["kernel"], r["inducing"]) == (M, kernel, inducing)]
                for M in sizes
            ]
            free = [[r["free_form"]["log_density"] for r in c] for c in chosen]
            gain = [
                [r["free_form"]["log_density"] - r["gaussian"]["log_density"] for r in c]
                for c in chosen
            ]
            at = np.arange(len(sizes)) + 0.3 * shift - 0.15
            for ax, values in ((axes[0, column], free), (axes[1, column], gain)):
                boxes = ax.boxplot(values, positions=at, widths=0.22, patch_artist=True)
                for box in boxes["boxes"]:
                    box.set(facecolor=color, alpha=0.6)
            axes[0, column].plot([], [], "s", color=color, alpha=0.6, label=inducing)
        axes[1, column].axhline(0.0, color="0.5", lw=0.8)
        axes[0, column].set(title=kernel)
        axes[1, column].set(xlabel="inducing inputs")
        axes[1, column].set_xticks(range(len(sizes)), [str(M) for M in sizes])
    axes[0, 0].set(ylabel="held-out log p, free-form")
    axes[1, 0].set(ylabel="free-form - Gaussian")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(figure, options, "image")
    plt.close(figure)


def main(argv=None):
    options = arguments(__doc__, argv, splits=10, largest=100, rounds=100, ard=1)
    began = time.perf_counter()
    data = vsgp.datasets.load("raetsch_image")
    sizes = [4] if options.smoke else [M for M in (5, 10, 20, 50, 100) if M <= options.largest]
    kernels = (True,) if options.smoke else (False, True)[: 1 + options.ard]
    rows = []
    for seed in range(1 if options.smoke else options.splits):
        for n_inducing in sizes:
            for ard in kernels:
                for moved in (True,) if options.smoke else (False, True):
                    rows.append(one(data, seed, n_inducing, ard, moved, options))
                    keys = ("M", "kernel", "inducing", "gaussian", "free_form", "rhat_max")
                    print({k: rows[-1][k] for k in keys}, flush=True)
                # A long run that is stopped keeps what it has done.
                settings = {"sizes": sizes, "train_rows": N_TRAIN, "rounds": options.rounds}
                settings |= {"test_rows": len(data["unique_idx"]) - N_TRAIN}
                path = write("image", options, settings, {"mean": table(rows), "runs": rows}, began)
                draw(rows, options)
    print(path)
    return rows


def table(rows):
    """Mean over splits of each setting."""
    out = []
    for key in sorted({(r["M"], r["kernel"], r["inducing"]) for r in rows}):
        same = [r for r in rows if (r["M"], r["kernel"], r["inducing"]) == key]
        entry = dict(zip(("M", "kernel", "inducing"), key, strict=True)) | {"splits": len(same)}
        for name in ("gaussian", "free_form"):
            for what in ("log_density", "error"):
                entry[f"{name}_{what}"] = float(np.mean([r[name][what] for r in same]))
        entry["rhat_max"] = max(r["rhat_max"] for r in same)
        entry["ess_min"] = min(r["ess_min"] for r in same)
        entry["divergences"] = sum(r["divergences"] for r in same)
        out.append(entry)
    return out


if __name__ == "__main__":
    main()
