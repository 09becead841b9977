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
# # A million observations and more: the calendar of Beijing's air
#
# Twelve stations measured four pollutants every hour from March 2013 to February 2017: 1.6 million
# readings. When is the air dirty? The model is a smooth function of the day of the year and of the
# hour of the day. You get the function's posterior mean. The check below says why its band and the
# hyperparameters are not to be reported.
#
# Both inputs are periodic: January follows December, and midnight follows 23 h. Fourier features
# live on such a torus, so the highest frequencies are all that they leave out. With normal noise
# the data enter by sums that are taken once. After that the cost does not depend on the number of
# observations.
#
# The data (Zhang et al. 2017) are "Beijing Multi-Site Air Quality" of the UCI repository,
# [doi:10.24432/C5RK5G](https://doi.org/10.24432/C5RK5G). `vsgp.datasets.load` downloads them once
# (8 MB).

# %%
import os
import resource
import time

from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 2013
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS, STATIONS, FREQUENCIES = (150, 1, (4, 3)) if SMOKE else (1000, 12, (9, 6))
POLLUTANTS = ["PM2.5", "PM10", "NO2", "CO"]
YEAR, DAY = 365.25, 24.0
began = time.perf_counter()

# %% [markdown]
# ## Data
#
# Logarithms to base two, less the mean of the station and the pollutant: one is twice what is usual
# there. Three readings of a hundred are missing.

# %%
air = vsgp.datasets.load("beijing_air")
columns = [list(air["columns"]).index(p) for p in POLLUTANTS]
series = np.log2(air["values"][:STATIONS, :, columns].astype(float))
series = series - np.nanmean(series, axis=1, keepdims=True)
hours = np.broadcast_to(np.arange(series.shape[1])[:, None], series.shape)
seen = np.isfinite(series)
y, hours = series[seen], hours[seen]
MARCH = 59  # the first hour is the first of March
X = np.column_stack([(hours / DAY + MARCH) % YEAR, hours % DAY])
print(f"{len(y):,} readings")

# %% [markdown]
# ## Model

# %%
with pm.Model() as model:
    days = pm.InverseGamma("days", mu=40, sigma=20)
    hours_ = pm.InverseGamma("hours", mu=5, sigma=3)
    scale = pm.HalfNormal("scale", 1)
    noise = pm.HalfNormal("noise", 2)
    cov = scale**2 * pm.gp.cov.Matern52(2, ls=[days, hours_])
    gp = vsgp.VariationalSparse(cov_func=cov)
    features = vsgp.inducing.Fourier((YEAR, DAY), FREQUENCIES, periodic=True)
    gp.prior("u", inducing=features)
    gp.likelihood("y", vsgp.Gaussian(noise), X=X, y=y)

    start = time.perf_counter()
    stage = vsgp.fit_gaussian(progressbar=False)
    fitted = time.perf_counter() - start
    print(stage, flush=True)
    idata = vsgp.sample(DRAWS, stage=stage, random_seed=SEED, progressbar=False)
    sampled = time.perf_counter() - start - fitted

# %%
names = ["days", "hours", "scale", "noise"]
print(az.summary(idata, var_names=names).to_string())
everything = az.summary(idata, kind="diagnostics", round_to="none")
print(
    f"Of all {len(everything)} variables: R-hat up to {everything['r_hat'].max():.3f}, "
    f"ESS from {everything['ess_bulk'].min():.0f}; drawn by {idata.posterior.attrs['method']}"
)
print(f"Gaussian stage {fitted:.0f} s, draws of parameters and coefficients {sampled:.0f} s")

# %% [markdown]
# Were the frequencies enough? What is left out has a variance that is known exactly, and the check
# weighs it against what the data say. With a million readings two parts in ten thousand count, so
# it asks for more: higher frequencies would follow the weather of these four years.

# %%
with model:
    print(vsgp.check_inducing(idata, 2, nested=False, progressbar=False))

# %% [markdown]
# ## The calendar

# %%
day, hour = np.arange(0.0, 366.0, 3.0), np.arange(0.0, 24.0, 0.5)
grid = np.stack(np.meshgrid(day, hour, indexing="ij"), axis=-1).reshape(-1, 2)
with model:
    f = vsgp.predict(idata, grid, "f", num_samples=200, random_seed=SEED, progressbar=False)
f = f.to_numpy().reshape(-1, len(day), len(hour))
middle, sd = f.mean(axis=0), f.std(axis=0)
worst = np.unravel_index(middle.argmax(), middle.shape)
print(
    f"Dirtiest on day {day[worst[0]]:.0f} at {hour[worst[1]]:.1f} h: "
    f"{2 ** middle[worst]:.2f} times what is usual; the function's sd is {sd.mean():.4f} on average"
)

# %% [markdown]
# ## What the bands do not hold
#
# A million readings make narrow bands, and they are about *these four years*. The model takes the
# noise for independent, but a dirty week is dirty at all stations and in all its hours. The check
# above says so, too: residuals of neighbors are alike. The years show how much that is: each month
# differs from year to year by far more than the curve's own sd. Judge next year's air by the dots,
# and not by the band.

# %%
month = np.floor(X[:, 0] / (YEAR / 12)).astype(int)
year = ((hours / DAY) // YEAR).astype(int)
n_years = year.max() + 1
of_years = np.full((n_years, 12), np.nan)
for k in range(n_years):
    for m in range(12):
        of_years[k, m] = y[(year == k) & (month == m)].mean()
daily = f.mean(axis=2)  # over the hours
center = (np.arange(12) + 0.5) * YEAR / 12
of_years_sd = np.nanstd(of_years, axis=0, ddof=1).mean()
of_curve = daily.std(axis=0).mean()
print(f"Months differ between years by an sd of {of_years_sd:.2f}; the curve's is {of_curve:.4f}")

# %%
ink, warm, gray = "C0", "C1", "gray"
fig, axes = plt.subplot_mosaic(
    [["calendar", "calendar"], ["year", "day"]], figsize=(11, 7), layout="constrained"
)
ax = axes["calendar"]
image = ax.pcolormesh(day, hour, middle.T, cmap="RdYlBu_r", vmin=-1, vmax=1, shading="gouraud")
bar = fig.colorbar(image, ax=ax, ticks=[-1, 0, 1])
bar.ax.set_yticklabels(["half", "usual", "twice"])
bar.outline.set_visible(False)
months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
for name in ("calendar", "year"):
    axes[name].set_xticks(center, months)
    axes[name].set_xlim(0, 365)
ax.set_yticks([0, 6, 12, 18, 23.5], ["0 h", "6 h", "12 h", "18 h", "24 h"])
ax.set_title(f"Dirt in Beijing's air, from {len(y):,} readings", loc="left")

ax = axes["year"]
low, high = np.quantile(daily, [0.05, 0.95], axis=0)
ax.fill_between(day, low, high, color=ink, alpha=0.5, lw=0)
ax.plot(day, daily.mean(axis=0), color=ink, lw=1.5, label="all hours, 90 % band")
for k, row in enumerate(of_years):
    ax.plot(center, row, "o", ms=4, color=warm, alpha=0.6, label="months of each year" * (k == 0))
ax.set_ylabel("doublings of what is usual")
ax.legend(frameon=False)

ax = axes["day"]
for name, at, color in (("mid-January", 15.0, ink), ("mid-July", 195.0, warm)):
    draws = f[:, np.abs(day - at).argmin()]
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    ax.fill_between(hour, low, high, color=color, alpha=0.35, lw=0)
    ax.plot(hour, draws.mean(axis=0), color=color, lw=1.5, label=name)
ax.set_xticks([0, 6, 12, 18, 24], ["0 h", "6 h", "12 h", "18 h", "24 h"])
ax.legend(frameon=False)
for name in ("year", "day"):
    axes[name].axhline(0, color=gray, lw=0.8, zorder=0)
    axes[name].spines[["top", "right"]].set_visible(False)
figure = Path.cwd() / "million_rows.png"
fig.savefig(figure, dpi=130)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
print(f"Saved {figure}; {time.perf_counter() - began:.0f} s in all, {peak:.1f} GB at most")

# %% [markdown]
# **Answer.** Evenings around New Year are worst: at eight the air is nearly twice as dirty as
# usual. Afternoons of late August are cleanest, with hardly more than half of the usual. That is
# what four years had in common.
