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
# # Coal-mining disasters: a Poisson process whose rate is a sparse Gaussian process
#
# From 1851 to 1962, 191 explosions in British coal mines killed ten people or more. Here they are
# counted in 100 equal bins. The log rate is a Gaussian process with 30 inducing points, and the
# function is sampled together with the kernel's hyperparameters. The bins, the kernel, its priors
# and the inducing grid are those of Hensman, Matthews, Filippone and Ghahramani (2015).

# %%
import os
import pathlib
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 1851
# A quick run for automatic checks: too few draws to conclude anything from.
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS, CHAINS = (50, 2) if SMOKE else (500, 4)

# %% [markdown]
# ## Data

# %%
counts = vsgp.datasets.coal_counts(bins=100)
years = counts["year"].to_numpy()
X = years[:, None]
y = counts["count"].to_numpy()
width = counts["width"].to_numpy()
print(f"{y.sum()} explosions in {len(y)} bins of {width[0]:.2f} years")

# %% [markdown]
# ## Model
#
# With `exposure=width` the latent function is the log of the rate *per year*, whatever the bins.

# %%
with pm.Model(coords={"bin": years}) as model:
    lengthscale = pm.Gamma("lengthscale", 1.1, 0.1)
    variance = pm.Gamma("variance", 1.0, 0.3)
    gp = vsgp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(1, ls=lengthscale))
    Xu = vsgp.inducing.grid(X, 30)
    gp.prior("u", Xu=Xu)
    gp.likelihood("y", vsgp.Poisson(exposure=width), X=X, y=y, dims="bin")

# %% [markdown]
# ## Sampling
#
# A Gaussian stage comes first: it takes seconds, finds a start, and gives the sampler coordinates
# in which the posterior is close to a standard normal. `sample` then draws by importance weights,
# and by NUTS where these are not good enough.

# %%
start = time.perf_counter()
with model:
    stage = vsgp.fit_gaussian(random_seed=SEED)
print(stage)
print(f"Sampling {CHAINS} chains of {DRAWS} draws.")
with model:
    idata = vsgp.sample(DRAWS, stage=stage, chains=CHAINS, cores=2, random_seed=SEED)
print(f"Fitted and sampled in {time.perf_counter() - start:.0f} s")
print(az.summary(idata, var_names=["lengthscale", "variance"]).to_string())
worst = az.summary(idata, var_names=["u"], round_to="none")
print(
    f"{len(worst)} inducing values: R-hat at most {worst['r_hat'].max():.3f}, "
    f"bulk ESS at least {worst['ess_bulk'].min():.0f}"
)
attrs = idata.posterior.attrs
print(f"Drawn by {attrs['method']}, Pareto k-hat {attrs.get('khat', float('nan')):.2f}")

# %% [markdown]
# ## The rate over time
#
# The bands show one year at a time, so draws of the function at each year on its own will do. For
# joint draws of the whole curve pass `joint=True`, which takes longer.

# %%
grid = np.linspace(years[0] - width[0] / 2, years[-1] + width[-1] / 2, 300)
with model:
    f = vsgp.predict(idata, grid[:, None], "f", random_seed=SEED, progressbar=False)
rate = np.exp(f)
low90, low50, middle, high50, high90 = rate.quantile(
    [0.05, 0.25, 0.5, 0.75, 0.95], dim=("chain", "draw")
).to_numpy()

# %%
fig, ax = plt.subplots(figsize=(9, 4.8), layout="constrained")
ax.bar(years, y / width, width=width, color="gray", alpha=0.2, label="counts per bin", zorder=0)
ax.fill_between(grid, low90, high90, color="C0", alpha=0.18, lw=0, label="90 % interval")
ax.fill_between(grid, low50, high50, color="C0", alpha=0.35, lw=0, label="50 % interval")
ax.plot(grid, middle, color="C0", lw=1.8, label="posterior median")

events = vsgp.datasets.load_coal()["date"]
ax.plot(events, np.full(len(events), -0.18), "|", color="gray", ms=7, mew=0.7, label="event")
ax.plot(np.ravel(Xu), np.full(len(Xu), -0.42), "^", color="C1", ms=4.5, label="inducing point")

ax.set(
    title="British coal-mining disasters: posterior rate",
    xlabel="year",
    ylabel="explosions per year",
    xlim=(grid[0], grid[-1]),
    ylim=(-0.6, None),
)
ax.axhline(0, color="gray", lw=0.8)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, ncols=2, loc="upper right")

figure = pathlib.Path("coal_mining.png").resolve()
fig.savefig(figure, dpi=150)
print(f"Figure written to {figure}")

# %% [markdown]
# **Answer.** There were about three explosions a year until the 1880s, and about one after 1900.
# The rate fell within twenty years. The rise in the 1930s is less sure, as its bands overlap with
# those of the years before.
