"""Coal-mining explosions: held-out log density, and the posterior beside exact MCMC.

Hensman et al. (2015), section 4.2: 100 bins, 30 inducing inputs on a grid, half of the events held
out. Splits and score follow the published code: the mean over bins of the log predictive
probability of the held-out count.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from common import (
    QUIET,
    arguments,
    fit,
    free_form,
    gaussian_draws,
    latent_exact,
    original_permutation,
    save,
    score,
    summary_of,
    write,
)

import pymc_vsgp as vsgp

THETA = ("lengthscale", "variance")
N_TRAIN = 95


def kernel():
    lengthscale = pm.Gamma("lengthscale", 1.1, 0.1)
    variance = pm.Gamma("variance", 1.0, 0.3)
    return variance * pm.gp.cov.ExpQuad(1, ls=lengthscale)


def sparse(X, counts, width, n_inducing):
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=kernel())
        gp.prior("u", Xu=vsgp.inducing.grid(X, n_inducing))
        gp.likelihood("y", vsgp.Poisson(exposure=width), X=X, y=counts)
    return model


def exact(X, counts, width):
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=kernel()).prior("f", X=X)
        pm.Poisson("y", width * pm.math.exp(f), observed=counts)
    return model


def held_out(dates, bins, seed, n_inducing, options):
    """One split: both stages on one half of the events, scored on the other."""
    order = original_permutation(len(dates), seed)
    train, test = (
        np.histogram(dates[rows], bins)[0] for rows in (order[:N_TRAIN], order[N_TRAIN:])
    )
    X, width = (0.5 * (bins[:-1] + bins[1:]))[:, None], float(bins[1] - bins[0])
    model = sparse(X, train, width, n_inducing)
    with model:
        stage = fit(options, random_seed=seed)
        idata, how = free_form(stage, options, seed=seed + 1)
    return {
        "seed": seed,
        "gaussian": score(gaussian_draws(stage, options), X, test, model),
        "gaussian_theta_normal": score(gaussian_draws(stage, options, False), X, test, model),
        "free_form": score(idata, X, test, model),
        "theta_estimate": stage.theta,
        "stage_seconds": stage.seconds,
        **how,
    }


def posterior(dates, bins, n_inducing, options):
    """All events: rates and parameters of both stages and of exact MCMC."""
    counts = np.histogram(dates, bins)[0]
    X, width = (0.5 * (bins[:-1] + bins[1:]))[:, None], float(bins[1] - bins[0])
    model = sparse(X, counts, width, n_inducing)
    with model:
        stage = fit(options)
        idata, how = free_form(stage, options)
        kwargs = {"of": "f", "random_seed": 1, **QUIET}
        quantiles, mean = {}, {}
        trees = {"gaussian": gaussian_draws(stage, options), "free_form": idata}
        for name, tree in trees.items():
            q = vsgp.predict(tree, X, "quantiles", quantiles=[0.05, 0.5, 0.95], **kwargs)
            quantiles[name] = np.exp(q.transpose("quantile", ...).values)
            moments = vsgp.predict(tree, X, "moments", **QUIET)
            mean[name] = np.exp(moments["mean"] + moments["variance"] / 2).mean(["chain", "draw"])
    whole, how_exact = latent_exact(exact(X, counts, width), options)
    f = whole["posterior"]["f"].values.reshape(-1, len(X))
    quantiles["exact"] = np.exp(np.quantile(f, [0.05, 0.5, 0.95], axis=0))
    mean["exact"] = np.exp(f).mean(axis=0)
    draw(X[:, 0], quantiles, dates, {"sparse": idata, "exact": whole}, options)
    sd = np.exp(f).std(axis=0)
    gap = {
        name: float(np.max(np.abs(np.asarray(mean[name]) - mean["exact"]) / sd))
        for name in ("gaussian", "free_form")
    }
    return {
        "theta_estimate": stage.theta,
        "theta": {
            "free_form": summary_of(idata, THETA),
            "exact": summary_of(whole, THETA),
        },
        "rate_mean": mean,
        "largest_gap_of_rate_mean_in_posterior_sd": gap,
        "free_form": how,
        "exact": how_exact,
        "stage_seconds": stage.seconds,
    }


def draw(years, quantiles, dates, trees, options):
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.4), width_ratios=(1.6, 1), constrained_layout=True
    )
    styles = {"exact": ("0.6", "-"), "free_form": ("C0", "-"), "gaussian": ("C1", "--")}
    for name, (color, line) in styles.items():
        low, middle, high = quantiles[name]
        if name == "exact":
            left.fill_between(years, low, high, color="0.85", label="exact, 90 %")
        else:
            left.plot(years, low, line, color=color, lw=1)
            left.plot(years, high, line, color=color, lw=1)
        left.plot(years, middle, line, color=color, label=name.replace("_", "-"))
    left.plot(dates, np.zeros(len(dates)), "k|", ms=8)
    left.set(xlabel="year", ylabel="explosions a year", ylim=(-0.1, None))
    left.legend(frameon=False, fontsize=8)
    for (name, tree), color in zip(trees.items(), ("C0", "0.5"), strict=True):
        draws = tree["posterior"]
        x, y = (draws[n].values.ravel() for n in THETA)
        right.plot(x, y, ".", ms=3, alpha=0.5, color=color, label=name)
    right.set(xlabel="lengthscale, years", ylabel="variance", yscale="log")
    right.legend(frameon=False, fontsize=8)
    save(figure, options, "coal")
    plt.close(figure)


def main(argv=None):
    options = arguments(__doc__, argv, splits=10)
    began = time.perf_counter()
    n_bins, n_inducing = (20, 5) if options.smoke else (100, 30)
    dates = vsgp.datasets.load_coal()["date"].to_numpy()
    bins = np.linspace(dates.min(), dates.max(), n_bins + 1)
    splits = 1 if options.smoke else options.splits
    rows = []
    for seed in range(splits):
        rows.append(held_out(dates, bins, seed, n_inducing, options))
        print({k: rows[-1][k] for k in ("gaussian", "free_form", "rhat_max")}, flush=True)
    columns = ("gaussian", "gaussian_theta_normal", "free_form")
    scores = {name: np.array([row[name] for row in rows]) for name in columns}
    results = {
        "mean": {name: float(x.mean()) for name, x in scores.items()},
        "sd_over_splits": {name: float(x.std()) for name, x in scores.items()},
        "difference_mean": float((scores["free_form"] - scores["gaussian"]).mean()),
        "splits_where_free_form_is_better": int((scores["free_form"] > scores["gaussian"]).sum()),
        "splits": rows,
        "all_events": posterior(dates, bins, n_inducing, options),
    }
    settings = {"bins": n_bins, "inducing": n_inducing, "splits": splits, "train_events": N_TRAIN}
    print(write("coal", options, settings, results, began))
    return results


if __name__ == "__main__":
    main()
