# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   language_info:
#     name: python
#     pygments_lexer: ipython3
# ---

# %% [markdown]
# # Counts on a map: hickories, maples, and what a spatial term does to a coefficient
#
# Every tree of 19.6 acres of Lansing Woods, Michigan, was mapped (Gerrard 1969; `lansing` in R's
# spatstat). Are hickories rarer where maples are dense? A Poisson regression of counts in cells
# says so with a very narrow interval. It takes trees of neighboring cells for independent, which
# they are not. A Gaussian process over the map takes up what the covariate leaves, and the
# coefficient changes: in its interval, and in its size.
#
# The data are under the GPL, so they do not ship: `vsgp.datasets.load` downloads them once (10 kB).

# %%
import os
import pathlib
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 1969
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS, TUNE, CHAINS, BINS = (50, 100, 2, 16) if SMOKE else (1000, 500, 4, 32)
SIDE = 281.6  # meters: 924 feet

# %% [markdown]
# ## Data
#
# The response is the number of hickories in each square cell, 703 in all. The covariate is the
# logarithm of the density of maples around the cell: a Gaussian kernel of 20 m, divided by its
# share inside the plot, and standardized. It is an estimate, and is used as if it were known.

# %%
trees = vsgp.datasets.load("lansing")
positions = {name: SIDE * t[["x", "y"]].to_numpy() for name, t in trees.groupby("species")}


def log_density(points, bandwidth=20.0):
    """Return a function that gives the log of the smoothed density of points, standardized."""
    lattice = (np.arange(64) + 0.5) * SIDE / 64
    inside = np.stack(np.meshgrid(lattice, lattice), axis=-1).reshape(-1, 2)

    def smooth(X, at, weight):
        squared = ((X[:, None] - at) ** 2).sum(axis=-1)
        return weight * np.exp(-squared / (2 * bandwidth**2)).sum(axis=1)

    def raw(X):
        share = smooth(X, inside, (SIDE / 64) ** 2)
        return np.log(smooth(X, points, 1.0) / share)

    values = raw(inside)
    return lambda X: (raw(X) - values.mean()) / values.std()


pattern = vsgp.point_process(
    positions["hickory"],
    window={"x": (0, SIDE), "y": (0, SIDE)},
    bins=BINS,
    covariates={"maple": log_density(positions["maple"])},
    unit="m",
    repeated="keep",
)
print(pattern)
hectares = pattern.exposure / 1e4
maple = pattern.covariates["maple"].to_numpy()
y = pattern.counts

# %% [markdown]
# ## Two models
#
# The covariate goes into the exposure, which may be any expression of random variables. So the
# process has the two inputs of the map alone. On a grid its Fourier coefficients cost next to
# nothing. The first model is the same without the process.

# %%
with pm.Model(coords=pattern.coords) as regression:
    intercept = pm.Normal("intercept", 4.5, 1)  # log of hickories per hectare
    beta = pm.Normal("beta", 0, 1)
    pm.Poisson("y", hectares * pm.math.exp(intercept + beta * maple), observed=y, dims="bin")
    plain = pm.sample(DRAWS, tune=500, chains=CHAINS, random_seed=SEED, progressbar=False)
    pm.sample_posterior_predictive(
        plain, extend_inferencedata=True, random_seed=SEED, progressbar=False
    )

with pm.Model(coords=pattern.coords) as spatial:
    lengthscale = pm.InverseGamma("lengthscale", mu=40, sigma=20)  # meters
    scale = pm.HalfNormal("scale", 1)
    intercept = pm.Normal("intercept", 4.5, 1)
    beta = pm.Normal("beta", 0, 1)
    cov = scale**2 * pm.gp.cov.ExpQuad(2, ls=lengthscale)
    gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(intercept), cov_func=cov)
    features = vsgp.inducing.Fourier.for_data(
        pattern.X, cov, residual=0.001, max_features=200 if SMOKE else 1600
    )
    gp.prior("u", inducing=features)
    at_risk = hectares * pm.math.exp(beta * maple)
    gp.likelihood("y", vsgp.Poisson(exposure=at_risk), X=pattern.X, y=y, dims="bin")

    start = time.perf_counter()
    stage = vsgp.fit_gaussian(progressbar=False)
    idata = vsgp.sample(
        DRAWS,
        stage=stage,
        tune=TUNE,
        chains=CHAINS,
        random_seed=SEED,
        progressbar=False,
        method="nuts",
    )
    seconds = time.perf_counter() - start
    replicated = vsgp.predict(idata, None, "y", random_seed=SEED, progressbar=False)
    check = vsgp.check_inducing(idata, 30, nested=False, progressbar=False)

# %%
print(
    f"{features.n_features} Fourier coefficients; fitted, compiled and sampled in {seconds:.0f} s"
)
print(az.summary(plain, var_names=["intercept", "beta"]).to_string())
print(az.summary(idata, var_names=["lengthscale", "scale", "intercept", "beta"]).to_string())
everything = az.summary(idata, round_to="none")
print(
    f"Of all {len(everything)} variables: R-hat up to {everything['r_hat'].max():.3f}, "
    f"ESS from {everything['ess_bulk'].min():.0f}; "
    f"{int(idata.sample_stats['diverging'].sum())} divergences"
)
print(check)

# %% [markdown]
# ## Do the models make data like these?
#
# Count the trees in squares of 35 m, sixty-four in all, and take the variance of these numbers over
# their mean. Trees that come in patches give a large one.

# %%
square = sum(np.minimum(pattern.X[:, d] * 8 // SIDE, 7) * 8**d for d in (0, 1))


def patchiness(counts):
    """Variance over mean of the counts of the squares."""
    sums = np.stack([counts[..., square == s].sum(axis=-1) for s in range(64)], axis=-1)
    return sums.var(axis=-1) / sums.mean(axis=-1)


seen = patchiness(y)
simulated = {
    "regression": patchiness(plain.posterior_predictive["y"].to_numpy()).ravel(),
    "spatial model": patchiness(replicated.to_numpy()).ravel(),
}
for name, values in simulated.items():
    low, high = np.quantile(values, [0.05, 0.95])
    print(
        f"Variance over mean of 64 squares: {seen:.1f} seen, {low:.1f} to {high:.1f} simulated by "
        f"the {name} (90 %), {(values >= seen).mean():.1%} of them as large"
    )

# %% [markdown]
# ## What the spatial term does to the coefficient
#
# The first interval is too narrow: its model takes cells for independent, given the maples. The
# second model knows that neighbors are alike. The estimate may move as well. The density of maples
# is a smooth map, and so is the process. The prior divides between them what both could explain.
# This is spatial confounding.
#
# * The first coefficient answers: how do hickories and maples differ over the plot?
# * The second answers: among patches that are alike otherwise, are there fewer hickories where
#   there are more maples?
#
# Neither tells if maples keep hickories out, or if both follow the soil.

# %%
coefficient = {
    "regression": plain.posterior["beta"].to_numpy().ravel(),
    "spatial model": idata.posterior["beta"].to_numpy().ravel(),
}
for name, draws in coefficient.items():
    low, high = np.quantile(np.exp(draws), [0.05, 0.95])
    print(
        f"One sd more maples: {low:.2f} to {high:.2f} times as many hickories (90 %), {name}; "
        f"beta {draws.mean():.2f} ± {draws.std():.2f}"
    )
with spatial:
    effect = pattern.intensity(
        idata, pattern.X
    )  # hickories per hectare at the mean density of maples
beta_draws = idata.posterior["beta"]
covariate = effect.isel(chain=0, draw=0, drop=True).copy(data=maple)
intensity = effect * np.exp(beta_draws * covariate)
log_effect = np.log(effect) - np.log(effect).mean("point")
common = np.corrcoef(log_effect.mean(["chain", "draw"]).to_numpy(), maple)[0, 1]
print(f"Correlation of the spatial effect with the covariate, over the map: {common:.2f}")

# %% [markdown]
# ## Expected numbers in a region
#
# Draws of the intensity, summed over bins, are draws of the expected number of trees anywhere; for
# a number that could be counted, draw a Poisson number with each as its mean.

# %%
half = SIDE / 2
quarters = {
    f"{ns}{ew}": {"x": (half * (ew == "E"), half * (1 + (ew == "E"))), "y": (low, low + half)}
    for ns, low in (("N", half), ("S", 0.0))
    for ew in "WE"
}
expected = pattern.expected_count(intensity / 1e4, quarters)
rng = np.random.default_rng(SEED)
for name, region in quarters.items():
    means = expected.sel(region=name).to_numpy().ravel()
    low, high = np.quantile(means, [0.05, 0.95])
    count_low, count_high = np.quantile(rng.poisson(means), [0.05, 0.95])
    print(
        f"{name} quarter: {pattern.count(region)} counted, {low:.0f} to {high:.0f} expected, "
        f"{count_low:.0f} to {count_high:.0f} in a new count (90 %)"
    )

# %%
ink, warm, gray = "C0", "C1", "gray"
fig, axes = plt.subplot_mosaic(
    [["maple", "effect", "mean"], ["sd", "beta", "check"]], figsize=(12, 7.2), layout="constrained"
)


def draw_map(name, values, title, label, **style):
    """Draw a map of one number for each bin."""
    grid = pattern.to_grid(values)
    ax = axes[name]
    image = ax.pcolormesh(*pattern.edges, grid.to_numpy().T, rasterized=True, **style)
    bar = fig.colorbar(image, ax=ax, shrink=0.85)
    bar.set_label(label)
    bar.outline.set_visible(False)
    ax.set(title=title, xlabel="m", xticks=[0, 100, 200], yticks=[0, 100, 200])
    ax.set_aspect("equal")


draws = ["chain", "draw"]
draw_map("maple", maple, "Covariate, with the maples", "log density of maples, sd", cmap="PuOr_r")
axes["maple"].plot(*positions["maple"].T, ".", ms=2, color="black", alpha=0.5)
ratio = np.exp(log_effect).mean(draws)
top = float(np.abs(np.log2(ratio)).max())
draw_map(
    "effect",
    np.log2(ratio),
    "Spatial effect: what maples leave",
    "doublings of the intensity",
    cmap="RdBu_r",
    vmin=-top,
    vmax=top,
)
mean = intensity.mean(draws)
draw_map("mean", mean, "Intensity, with the hickories", "hickories per hectare", cmap="viridis")
axes["mean"].plot(*pattern.events.T, ".", ms=3, color="white", mec="black", mew=0.25)
draw_map(
    "sd",
    100 * intensity.std(draws) / mean,
    "How uncertain it is",
    "sd of the intensity, % of its mean",
    cmap="magma",
)
bins = np.linspace(*np.quantile(np.concatenate(list(coefficient.values())), [0, 1]), 60)
for (name, values), color in zip(coefficient.items(), (warm, ink), strict=True):
    axes["beta"].hist(values, bins, density=True, color=color, alpha=0.6, label=name)
axes["beta"].axvline(0, color=gray, lw=0.8)
axes["beta"].set(title="Coefficient of the maples", xlabel="beta", yticks=[])
axes["beta"].legend(frameon=False)
bins = np.linspace(0, 1.7 * max(seen, *(np.quantile(v, 0.99) for v in simulated.values())), 60)
for (name, values), color in zip(simulated.items(), (warm, ink), strict=True):
    axes["check"].hist(values, bins, density=True, color=color, alpha=0.6, label=name)
axes["check"].axvline(seen, color=gray, lw=1.5, label="seen")
axes["check"].set(title="Patchiness of simulated counts", xlabel="variance over mean", yticks=[])
axes["check"].legend(frameon=False)
for ax in axes.values():
    ax.spines[["top", "right"]].set_visible(False)
figure = pathlib.Path("spatial_counts.png").resolve()
fig.savefig(figure, dpi=110)
print(f"Figure written to {figure}")

# %% [markdown]
# **Answer.** Hickories are rarer where maples are dense, by either model. But the interval of the
# spatial model is three times as wide. One standard deviation more of maples goes with a sixth to
# two fifths fewer hickories.
