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
# # What did the broken instrument miss? Several outputs that share a function
#
# Three pollutants were measured every day at Dongsi, Beijing. From 20 January 2014 the instrument
# for nitrogen dioxide failed for five weeks. The others went on, and they rise and fall together:
# when there is no wind, everything stays. How much do they tell about what was missed? The data
# ship with the package (Zhang et al. 2017).

# %%
import os
import pathlib

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 2014
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS, FIRST = (100, "2014-02-15") if SMOKE else (1000, "2014-01-01")

# %% [markdown]
# ## Data
#
# Take logarithms, and standardize them. Three weeks of March, when the instrument worked again, are
# held out to judge the predictions.

# %%
pollutants = ["PM2.5", "CO", "NO2"]
air = vsgp.datasets.load_air()
air = air[(air["date"] >= FIRST) & (air["date"] < "2014-04-01")].reset_index(drop=True)
Y = np.log(air[pollutants])
Y = ((Y - Y.mean()) / Y.std()).to_numpy()
held_out = ((air["date"] >= "2014-03-05") & (air["date"] < "2014-03-26")).to_numpy()
given = Y.copy()
given[held_out, 2] = np.nan
days = np.arange(float(len(air)))
X = days[:, None]
missing = np.isnan(Y[:, 2])
print(f"{len(air)} days; NO2 missing on {missing.sum()} of them, held out on {held_out.sum()}")

# %% [markdown]
# ## Model
#
# There is one function of the day, and each pollutant is a multiple of it plus noise of its own.
# `W` has the multiples. They and the scale of the function say the same thing twice, so the kernel
# has a variance of one. `Coregionalized` takes several functions as well. nan stands for what was
# not measured. Days differ so much that each has an inducing point.

# %%
with pm.Model(coords={"pollutant": pollutants, "day": days}) as model:
    lengthscale = pm.LogNormal("lengthscale", np.log(3), 0.5)  # days
    W = pm.LogNormal("W", -0.2, 0.4, dims="pollutant")
    sigma = pm.LogNormal("sigma", -1.2, 0.3, dims="pollutant")
    g = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=lengthscale))
    g.prior("u", Xu=X)
    f = vsgp.Coregionalized(W[:, None], g)
    f.likelihood("y", vsgp.Gaussian(sigma), X=X, y=given, dims=("day", "pollutant"))

    idata = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)
az.summary(idata, var_names=["~u"])

# %%
worst = az.summary(idata, var_names=["u"], round_to="none")
print(
    f"{len(worst)} inducing values: R-hat at most {worst['r_hat'].max():.3f}, "
    f"ESS at least {worst['ess_bulk'].min():.0f}; drawn by {idata.posterior.attrs['method']}"
)

# %% [markdown]
# ## Nitrogen dioxide, with and without the others
#
# The same model of nitrogen dioxide alone serves as a comparison. After a few days without data it
# knows no more than the average.

# %%
seen = ~np.isnan(given[:, 2])
with pm.Model() as alone:
    lengthscale = pm.LogNormal("lengthscale", np.log(3), 0.5)
    scale = pm.LogNormal("scale", -0.2, 0.4)
    sigma = pm.LogNormal("sigma", -1.2, 0.3)
    gp = vsgp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.Matern32(1, ls=lengthscale))
    gp.prior("u", Xu=X[seen])
    gp.likelihood("no2", vsgp.Gaussian(sigma), X=X[seen], y=given[seen, 2])
    by_itself = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)

together = vsgp.predict(idata, X, "y", model=model, random_seed=SEED, progressbar=False)
draws = {
    "with PM2.5 and CO": together.isel(pollutant=2),
    "by itself": vsgp.predict(by_itself, X, "y", model=alone, random_seed=SEED, progressbar=False),
}

# %%
ink, warm = "C0", "C1"
fig, axes = plt.subplots(2, 1, figsize=(9, 5.6), layout="constrained", sharex=True, sharey=True)
for ax, (name, y) in zip(axes, draws.items(), strict=True):
    low, middle, high = np.quantile(y, [0.05, 0.5, 0.95], axis=(0, 1))
    ax.fill_between(air["date"], low, high, color=ink, alpha=0.2, lw=0, label="90 %, a new day")
    ax.plot(air["date"], middle, color=ink, lw=1.5, label="median")
    ax.plot(air["date"], given[:, 2], ".", color="gray", label="measured")
    ax.plot(air["date"][held_out], Y[held_out, 2], ".", color=warm, label="held out")
    ax.set_title(f"NO2 {name}", loc="left")
    ax.set_ylabel("log, standardized")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].legend(frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
figure = pathlib.Path("broken_instrument.png").resolve()
fig.savefig(figure, dpi=100)

# %%
for name, y in draws.items():
    y = y.to_numpy()[..., held_out]
    low, high = np.quantile(y, [0.05, 0.95], axis=(0, 1))
    error = np.sqrt(np.mean((y.mean(axis=(0, 1)) - Y[held_out, 2]) ** 2))
    inside = np.mean((low < Y[held_out, 2]) & (Y[held_out, 2] < high))
    print(
        f"Held out, NO2 {name}: root mean squared error {error:.2f}, "
        f"{inside:.0%} inside of 90 % intervals of mean width {np.mean(high - low):.2f}"
    )

# %% [markdown]
# **Answer.** They tell a good deal. With the other two, the error on the days held out is a
# fraction of what it is without, and the intervals are narrower. They can't be narrower than
# `sigma` of nitrogen dioxide, which holds what the others do not share.
