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
# # How far ahead can one forecast? Trend, season and a residual process
#
# Carbon dioxide at Mauna Loa, month by month. Fit it up to 1990 and forecast eleven years that are
# known by now. Does the uncertainty grow as fast as the errors do? The data ship with the package
# (Keeling and Whorf 2004).

# %%
import os
import pathlib

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import pymc_vsgp as vsgp

SEED = 1958
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS, M, FIRST = (100, 40, 1982) if SMOKE else (500, 84, 1974)

# %% [markdown]
# ## Data

# %%
co2 = vsgp.datasets.load_co2()
co2 = co2[co2["year"] > FIRST].set_index("year", drop=False)
past = co2["year"] < 1991
X, y = co2.loc[past, ["year"]], co2.loc[past, "co2"]
print(f"{past.sum()} months to learn from, {(~past).sum()} to forecast")

# %% [markdown]
# ## Model
#
# The data are the sum of three processes, plus noise. The trend is smooth over decades, and the
# season repeats every year. What is left has a memory of a year or so: the El Niños. The sum is
# a process of its own, with one set of inducing points. They have to be close enough for the
# shortest lengthscale. The season needs few, because it is the same each year.

# %%
with pm.Model() as model:
    trend_years = pm.LogNormal("trend_years", np.log(30), 0.4)
    trend_scale = pm.HalfNormal("trend_scale", 20)  # parts per million
    season_scale = pm.HalfNormal("season_scale", 3)
    rest_years = pm.LogNormal("rest_years", 0, 0.5)
    rest_scale = pm.HalfNormal("rest_scale", 1)
    sigma = pm.HalfNormal("sigma", 1)

    trend = vsgp.VariationalSparse(
        mean_func=pm.gp.mean.Constant(y.mean()),
        cov_func=trend_scale**2 * pm.gp.cov.Matern52(1, ls=trend_years),
    )
    season = vsgp.VariationalSparse(
        cov_func=season_scale**2 * pm.gp.cov.Periodic(1, period=1, ls=1)
    )
    rest = vsgp.VariationalSparse(cov_func=rest_scale**2 * pm.gp.cov.Matern52(1, ls=rest_years))
    total = trend + season + rest
    total.prior("u", vsgp.inducing.grid(X, M))
    total.likelihood("co2", vsgp.Gaussian(sigma), X=X, y=y)

    idata = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)
    check = vsgp.check_inducing(idata, 30, random_seed=SEED, nested=False, progressbar=False)
print(check)

# %%
az.summary(idata, var_names=["~u"])

# %%
worst = az.summary(idata, var_names=["u"], round_to="none")
print(
    f"{len(worst)} inducing values: R-hat at most {worst['r_hat'].max():.3f}, "
    f"ESS at least {worst['ess_bulk'].min():.0f}; drawn by {idata.posterior.attrs['method']}"
)

# %% [markdown]
# ## Forecast
#
# `what="y"` is a new month, noise included.

# %%
with model:
    ax = vsgp.plot_function(idata, co2[["year"]], what="y", random_seed=SEED, inducing=False)
ax.plot(co2.loc[~past, "year"], co2.loc[~past, "co2"], ".", ms=3, color="C1", label="later")
ax.axvline(1991, color="gray", lw=0.8)
ax.set_ylabel("parts per million")
ax.legend(frameon=False, loc="upper left")
figure = pathlib.Path("carbon_dioxide.png").resolve()
ax.figure.savefig(figure, dpi=100)

# %% [markdown]
# ## Trend, season and the rest
#
# A component of the sum is a conditional that is `given` the sum. A constant may belong to the
# trend or to the season, so that both have wide bands around their level; their sum has not.

# %%
shown = np.linspace(X["year"].min(), 2002, 150 if SMOKE else 300)[:, None]
components = {"trend": trend, "season": season, "rest": rest}
with model:
    for name, gp in components.items():
        gp.conditional(name, shown, diag=True, given={"gp": total})
    drawn = pm.sample_posterior_predictive(
        idata.isel(draw=slice(None, None, 5)),
        var_names=list(components),
        predictions=True,
        random_seed=SEED,
        progressbar=False,
        compile_kwargs={"mode": "FAST_COMPILE"},
    ).predictions

fig, axes = plt.subplots(3, 1, figsize=(8, 6), layout="constrained", sharex=True)
for ax, name in zip(axes, components, strict=True):
    low, middle, high = np.quantile(drawn[name], [0.05, 0.5, 0.95], axis=(0, 1))
    ax.fill_between(shown[:, 0], low, high, color="C0", alpha=0.3, lw=0)
    ax.plot(shown[:, 0], middle, color="C0", lw=1)
    ax.axvline(1991, color="gray", lw=0.8)
    ax.set_title(f"{name}, with 90 %", loc="left", fontsize=10)
    ax.set_ylabel("ppm")
    ax.spines[["top", "right"]].set_visible(False)
label = axes[-1].set_xlabel("year")

# %% [markdown]
# ## Is the growth of the uncertainty honest?
#
# Compare the process with what many would do: fit a quadratic trend and two harmonics by least
# squares, with 90 % prediction intervals. Their formula takes the residuals for independent.


# %%
def terms(year):
    """Return the regressors: a quadratic trend, and two harmonics of the season."""
    t, angle = (year - 1980) / 10, 2 * np.pi * year
    harmonics = [f(k * angle) for k in (1, 2) for f in (np.sin, np.cos)]
    return np.column_stack([np.ones_like(t), t, t**2, *harmonics])


A, later = terms(X["year"].to_numpy()), co2.loc[~past]
coefficients, squares, rank, _ = np.linalg.lstsq(A, y.to_numpy())
new = terms(later["year"].to_numpy())
variance = squares[0] / (len(y) - rank) * (1 + np.sum(new @ np.linalg.inv(A.T @ A) * new, axis=1))
centers, half = new @ coefficients, 1.645 * np.sqrt(variance)

with model:
    drawn = vsgp.predict(idata, later[["year"]], "y", random_seed=SEED, progressbar=False)
low, high = np.quantile(drawn, [0.05, 0.95], axis=(0, 1))
intervals = {"process": (low, high), "least squares": (centers - half, centers + half)}
seen = later["co2"].to_numpy()
table = {}
for name, (low, high) in intervals.items():
    inside = (low < seen) & (seen < high)
    for first in (1991, 1995, 1999):
        at = (later["year"] >= first) & (later["year"] < first + (3 if first == 1999 else 4))
        years = f"{first} to {first + (2 if first == 1999 else 3)}"
        table[name, "width"] = table.get((name, "width"), {}) | {years: (high - low)[at].mean()}
        table[name, "inside"] = table.get((name, "inside"), {}) | {years: inside[at].mean()}
pd.DataFrame(table).round(2)

# %% [markdown]
# **Answer.** Forecasts for next year are good to a part per million or so, and those ten years
# ahead to about ten. The intervals of least squares hardly grow, and most of what came lies
# outside of them. The process says less, and the truth is in its intervals. Months of one future
# are alike, so the share inside is not a precise measure: this is one forecast, not 132.
