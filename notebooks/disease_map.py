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
# # Where were sudden infant deaths more frequent? A disease map with repeated locations
#
# Sudden infant deaths in the 100 counties of North Carolina, in two periods: every location has two
# counts. A share of the differences between counties goes with a covariate, the share of births
# that were not white. Is anything left on the map? The data ship with the package (Cressie 1993).

# %%
import os
import pathlib

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import pymc_vsgp as vsgp

SEED = 1993
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS = 100 if SMOKE else 1000

# %% [markdown]
# ## Data

# %%
sids = vsgp.datasets.load_sids()
share = sids["nonwhite"] / sids["births"]
X = pd.DataFrame(
    {
        "x": sids["x"],  # kilometers
        "y": sids["y"],
        "nonwhite": (share - share.mean()) / share.std(),
        "later": (sids["period"] == "1979-84").astype(float),
    }
)
print(f"{sids['deaths'].sum()} deaths in {sids['births'].sum() / 1e6:.2f} million births")
sids.head(4)

# %% [markdown]
# ## Model
#
# Deaths are Poisson, with a mean proportional to the births. The log rate has three parts: an
# intercept, the covariates with their coefficients, and a spatial process. This is how covariates
# go into a map:
#
# * `active_dims=[0, 1]`: the kernel sees the location alone, so that both counts of a county share
#   the value of the process there;
# * `pm.gp.mean.Linear`: the mean function takes the covariates, and its coefficients are zero for
#   the location;
# * inducing inputs have a column for each covariate, too. Put any numbers there: `gp.likelihood`
#   fills these columns with averages of X nearby. So `u` holds the effect of the covariates.


# %%
def build(points):
    """Build the model with inducing points at these locations."""
    Xu = pd.DataFrame(points, columns=["x", "y"]).assign(nonwhite=0.0, later=0.0)
    with pm.Model(coords={"covariate": ["nonwhite", "later"]}) as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=100, sigma=60)  # kilometers
        scale = pm.HalfNormal("scale", 0.5)
        intercept = pm.Normal("intercept", np.log(2), 1)  # log of deaths in a thousand births
        beta = pm.Normal("beta", 0, 1, dims="covariate")
        coefficients = pm.math.concatenate([np.zeros(2), beta])
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(coeffs=coefficients, intercept=intercept),
            cov_func=scale**2 * pm.gp.cov.Matern32(4, ls=lengthscale, active_dims=[0, 1]),
        )
        gp.prior("u", Xu)
        poisson = vsgp.Poisson(exposure=sids["births"] / 1000)
        gp.likelihood("deaths", poisson, X=X, y=sids["deaths"])
    return model


# %% [markdown]
# ## How many points?
#
# Repeated locations need one point for both. There are 100 locations, so at most 100 points are
# needed: with one at each, nothing is approximated but for a jitter. Forty would be faster. Are
# they enough?

# %%
counties = sids[["x", "y"]].drop_duplicates()
few = build(vsgp.inducing.kmeans(counties, 40, random_seed=SEED))
with few:
    rough = vsgp.sample(DRAWS // 2, random_seed=SEED, progressbar=False)
    check = vsgp.check_inducing(rough, 30, random_seed=SEED, nested=False, progressbar=False)
panels = vsgp.plot_inducing(check)

# %% [markdown]
# They are not: single counties differ from their neighbors by more than 40 points can follow.
# Take all.

# %%
model = build(counties)
with model:
    idata = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)
    check = vsgp.check_inducing(idata, 30, random_seed=SEED, nested=False, progressbar=False)
print(check)

# %%
names = ["lengthscale", "scale", "intercept", "beta"]
az.summary(idata, var_names=names)

# %%
worst = az.summary(idata, var_names=["u"], round_to="none")
print(
    f"{len(worst)} inducing values: R-hat at most {worst['r_hat'].max():.3f}, "
    f"ESS at least {worst['ess_bulk'].min():.0f}; drawn by {idata.posterior.attrs['method']}"
)
for name, drawn in (("40 points", rough), ("100 points", idata)):
    kilometers = drawn.posterior["lengthscale"]
    print(f"{name}: lengthscale {float(kilometers.mean()):.0f} ± {float(kilometers.std()):.0f} km")

# %% [markdown]
# ## Would the model make such counts?

# %%
with model:
    vsgp.predict(idata, what="y", extend_inferencedata=True, random_seed=SEED, progressbar=False)
rootogram = az.plot_ppc_rootogram(idata)

# %% [markdown]
# ## What is left on the map
#
# The relative risk of a county is the exponential of the process, less the intercept: 1.5 means
# one and a half times the deaths that births and the covariates account for. Predict the function
# at each county with covariates of zero, which leaves the intercept and the process. The values `u`
# won't do: they hold the effect of the covariates. The lower map has the *exceedance probability*:
# the probability that the relative risk is above one.

# %%
county = sids.drop_duplicates("county").set_index("county")
no_effect = county[["x", "y"]].assign(nonwhite=0.0, later=0.0)
f = vsgp.predict(
    idata, no_effect, "f", joint=True, model=model, random_seed=SEED, progressbar=False
)
risk = np.exp(f - idata.posterior["intercept"])
mean, above = (r.mean(["chain", "draw"]).to_numpy() for r in (risk, risk > 1))
births = sids.groupby("county", sort=False)["births"].sum().to_numpy()
names = county.index.to_numpy()
places = county[["x", "y"]].to_numpy()
named: list[int] = []  # those that stand out most, where their names don't overlap
for i in np.argsort(-np.abs(above - 0.5)):
    if len(named) < 5 and (np.hypot(*(places[named] - places[i]).T) > 60).all():
        named.append(i)

fig, axes = plt.subplots(2, 1, figsize=(8, 6.6), layout="constrained", sharex=True)
for ax, title, values, style in (
    (axes[0], "Relative risk, posterior mean", mean, {"cmap": "viridis"}),
    (axes[1], "P(relative risk above one)", above, {"cmap": "PuOr_r", "vmin": 0, "vmax": 1}),
):
    dots = ax.scatter(*places.T, c=values, s=15 + births / 60, lw=0.4, edgecolor="black", **style)
    fig.colorbar(dots, ax=ax, shrink=0.85).outline.set_visible(False)
    for i in named:
        legible = {"color": "black", "bbox": {"fc": "white", "alpha": 0.7, "lw": 0.0, "pad": 1.0}}
        ax.annotate(names[i], places[i], xytext=(7, 5), textcoords="offset points", **legible)
    ax.set(title=f"{title}; size: births", ylabel="km")
    ax.set_aspect("equal")
    ax.spines[["top", "right"]].set_visible(False)
axes[1].set_xlabel("km")
figure = pathlib.Path("disease_map.png").resolve()
fig.savefig(figure, dpi=100)

# %%
table = pd.DataFrame({"county": names, "relative risk": mean, "above one": above})
low, high = risk.quantile([0.05, 0.95], ["chain", "draw"]).to_numpy()
table["90 %"] = [f"{a:.2f} to {b:.2f}" for a, b in zip(low, high, strict=True)]
table.sort_values("above one", ascending=False).head(6).round(2)

# %%
ratio = np.exp(idata.posterior["beta"])
for name, text in (("nonwhite", "One sd more births that were not white"), ("later", "Later")):
    low, high = np.quantile(ratio.sel(covariate=name), [0.05, 0.95])
    print(f"{text}: {low:.2f} to {high:.2f} times as many deaths (90 %)")

# %% [markdown]
# **Answer.** The covariates do not explain the map. Rutherford and its neighbor Cleveland in the
# west, and Columbus in the south, have 1.4 to 1.5 times the deaths. Forsyth and its neighbor Davie
# have two thirds, and Wake and Mecklenburg three to four fifths. For most counties the data do not
# tell whether the relative risk is above one. The lengthscale is about the distance of two
# counties, so neighbors are alike only in part. The process has one value for both periods by
# assumption, and the data show no change of the rate between them. A covariate that is a smooth map
# itself competes with the process: see
# [spatial confounding](../troubleshooting.md#a-coefficient-moves-confounding).
