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
# # Was this fragment a window? Classification with its uncertainty
#
# Somebody finds a fragment of glass and measures its refractive index and its oxides. Did it come
# from a window? The log odds are a Gaussian process of two of the oxides. The data ship with the
# package: 214 fragments (Evett and Spiehler 1987).

# %%
import os
import pathlib

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import pymc_vsgp as vsgp

SEED = 1987
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS = 100 if SMOKE else 1000

# %% [markdown]
# ## Data
#
# A fifth of the fragments is held out. Inputs are divided by their standard deviation, so that one
# prior does for both lengthscales.

# %%
glass = vsgp.datasets.load_glass()
oxides = ["Mg", "Al"]
X = glass[oxides] / glass[oxides].std()
held_out = np.random.default_rng(SEED).permutation(len(glass)) < len(glass) // 5
train, test = ~held_out, held_out
print(f"{train.sum()} fragments, of which {glass['window'][train].sum()} are of windows")

# %% [markdown]
# ## Model
#
# Labels of two classes say little about the size of the function, so its scale has an informative
# prior. The intercept stands for the share of windows.

# %%
with pm.Model(coords={"oxide": oxides}) as model:
    lengthscale = pm.InverseGamma("lengthscale", mu=2, sigma=1, dims="oxide")
    scale = pm.HalfNormal("scale", 2)
    intercept = pm.Normal("intercept", 0, 2)
    gp = vsgp.VariationalSparse(
        mean_func=pm.gp.mean.Constant(intercept),
        cov_func=scale**2 * pm.gp.cov.Matern52(2, ls=lengthscale),
    )
    gp.prior("u", Xu=vsgp.inducing.kmeans(X[train], 20 if SMOKE else 40, random_seed=SEED))
    gp.likelihood("window", vsgp.Bernoulli(), X=X[train], y=glass["window"][train])
    idata = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)
    check = vsgp.check_inducing(idata, 30, random_seed=SEED, nested=False, progressbar=False)

print(az.summary(idata, var_names=["lengthscale", "scale", "intercept"]).to_string())
print(check)

# %% [markdown]
# ## How good are the probabilities?
#
# The table has three scores on the fragments held out. They are the accuracy, the log density, of
# which zero is best, and the Brier score, the mean squared error of the probability. Compare them
# with those of a constant, the share of windows. The second table has the mean probability beside
# the share seen, in three groups.

# %%
y_test = glass["window"][test].to_numpy()
with model:
    p = vsgp.predict(idata, X[test], "mean", progressbar=False).mean(["chain", "draw"]).to_numpy()
    log_density = vsgp.log_predictive_density(idata, X[test], y_test, progressbar=False)
share = np.full(len(y_test), glass["window"][train].mean())
metrics = {
    name: {
        "accuracy": np.mean((q > 0.5) == y_test),
        "log density": np.mean(each),
        "Brier score": np.mean((q - y_test) ** 2),
    }
    for name, q, each in (
        ("model", p, log_density.to_numpy()),
        ("constant share", share, np.log(np.where(y_test == 1, share, 1 - share))),
    )
}
print(pd.DataFrame(metrics).round(3).to_string())

# %%
groups = pd.cut(p, [0, 0.5, 0.9, 1])
table = pd.DataFrame({"predicted": p, "seen": y_test}).groupby(groups, observed=True)
table.agg(["mean"]).droplevel(1, axis=1).assign(fragments=table.size()).round(2)

# %% [markdown]
# ArviZ draws the calibration curve, with the band that a calibrated model would keep to. Here each
# fragment is predicted by the others (leave-one-out).

# %%
with model:
    vsgp.compute_log_likelihood(idata, progressbar=False)
    vsgp.predict(idata, what="y", extend_inferencedata=True, random_seed=SEED, progressbar=False)
curve = az.plot_loo_pava(idata)

# %% [markdown]
# ## Map
#
# The left map is the probability of a window, and the right one says how uncertain it is. Far from
# all fragments the probability is very uncertain, and that is the answer to give there.

# %%
ticks = [np.linspace(X[o].min() - 0.5, X[o].max() + 0.5, 20 if SMOKE else 40) for o in oxides]
grid = pd.DataFrame(np.stack(np.meshgrid(*ticks), axis=-1).reshape(-1, 2), columns=oxides)
with model:
    mean = vsgp.predict(idata, grid, "mean", num_samples=100, progressbar=False)
    of_mean = {"of": "mean", "quantiles": [0.05, 0.95], "random_seed": SEED}
    low, high = vsgp.predict(idata, grid, "quantiles", progressbar=False, **of_mean)
fig, axes = plt.subplots(1, 2, figsize=(9.6, 4), layout="constrained", sharey=True)
for ax, title, values, cmap in (
    (axes[0], "P(window)", mean.mean(["chain", "draw"]), "cividis"),
    (axes[1], "width of its 90 % interval", high - low, "magma"),
):
    image = ax.pcolormesh(*ticks, values.to_numpy().reshape(len(ticks[1]), -1), cmap=cmap)
    fig.colorbar(image, ax=ax, shrink=0.85)
    for value, marker, label in ((1, "o", "window"), (0, "X", "something else")):
        at = X[glass["window"] == value]
        ax.plot(*at.to_numpy().T, marker, mfc="white", mec="black", ms=4, lw=0, label=label)
    ax.set(title=title, xlabel="magnesium, in standard deviations")
axes[0].set_ylabel("aluminium, in standard deviations")
axes[0].legend(loc="upper left", fontsize=8, facecolor="white", labelcolor="black")
figure = pathlib.Path("glass.png").resolve()
fig.savefig(figure, dpi=100)
print(f"Figure written to {figure}")

# %% [markdown]
# **Answer.** For most fragments one can tell: nine in ten of the fragments held out are classified
# right, by two oxides alone. The probabilities can be taken at their word, and between the two
# groups they say that the oxides do not tell.
