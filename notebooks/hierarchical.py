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
# # A Gaussian process inside a hierarchical model
#
# Eight regions count cases of a disease every two weeks. All share an epidemic curve of unknown
# shape: a Gaussian process. Each has its own intercept, and the intercepts are pooled. The process
# is one part of an ordinary PyMC model: the intercepts are random variables, and go into its mean
# function.

# %%
import os
import pathlib
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 7
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS = 50 if SMOKE else 500

# %% [markdown]
# ## Data
#
# The data are simulated, so that the truth is known. In two years there is an outbreak each winter,
# and the second one is sharper. Some regions are large and some are small, and a small one says
# little by itself.

# %%
rng = np.random.default_rng(SEED)
regions = [f"region {i}" for i in range(1, 9)]
weeks = np.arange(1.0, 104.0, 2.0)  # the middle of two weeks
population = np.round(
    np.exp(rng.uniform(np.log(5), np.log(200), size=len(regions))), 1
)  # thousands


def curve(week):
    """Logarithm of cases a week and thousand inhabitants."""
    first = 2.0 * np.exp(-0.5 * ((week - 22) / 7) ** 2)
    second = 2.6 * np.exp(-0.5 * ((week - 75) / 4) ** 2)
    return -2.5 + first + second


true_intercept = rng.normal(0.0, 0.5, size=len(regions))
region, week = (a.ravel() for a in np.meshgrid(np.arange(len(regions)), weeks, indexing="ij"))
cases = rng.poisson(2 * population[region] * np.exp(curve(week) + true_intercept[region]))

# %% [markdown]
# ## Model
#
# The first column of X is the week, and the others indicate the region. The kernel sees the week
# alone (`active_dims`). The mean function sees the indicators, with the intercepts as coefficients.

# %%
X = np.column_stack([week, region[:, None] == np.arange(len(regions))])
Xu = np.zeros((45, X.shape[1]))
Xu[:, 0] = np.linspace(0, 104, 45)
with pm.Model(coords={"region": regions}) as model:
    lengthscale = pm.LogNormal("lengthscale", np.log(10), 0.5)
    scale = pm.HalfNormal("scale", 1.5)
    overall = pm.Normal("overall", -2, 1)
    sigma = pm.HalfNormal("sigma", 1)
    intercept = pm.ZeroSumNormal("intercept", sigma=sigma, dims="region")
    coefficients = pm.math.concatenate([np.zeros(1), intercept])
    gp = vsgp.VariationalSparse(
        mean_func=pm.gp.mean.Linear(coeffs=coefficients, intercept=overall),
        cov_func=scale**2 * pm.gp.cov.Matern52(X.shape[1], ls=lengthscale, active_dims=[0]),
    )
    gp.prior("u", Xu=Xu)
    gp.likelihood("cases", vsgp.Poisson(exposure=2 * population[region]), X=X, y=cases)

    start = time.perf_counter()
    idata = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)
    seconds = time.perf_counter() - start
    check = vsgp.check_inducing(idata, 30, nested=False, progressbar=False)
    # Indicators of zero: the curve of a region whose intercept is the mean.
    shared = np.column_stack([weeks, np.zeros((len(weeks), len(regions)))])
    f = vsgp.predict(idata, shared, "f", random_seed=SEED, progressbar=False)

# %%
names = ["lengthscale", "scale", "overall", "sigma", "intercept"]
summary = az.summary(idata, var_names=names, round_to=3)
print(summary[["mean", "sd", "ess_bulk", "ess_tail", "r_hat"]])
print(check)
print(
    f"{seconds:.0f} s, R-hat at most {summary['r_hat'].astype(float).max():.3f}, "
    f"ESS at least {summary['ess_bulk'].astype(float).min():.0f}; "
    f"drawn by {idata.posterior.attrs['method']}"
)

# %% [markdown]
# ## The curve, and the intercepts
#
# The curve follows both winters. Intercepts of small regions are pulled toward the others and have
# wide intervals; large regions speak for themselves. Only the sum of curve and intercept is seen,
# so the intercepts are relative to their mean.

# %%
fig, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.6), width_ratios=[3, 2], layout="constrained"
)
rate = np.exp(f).stack(sample=("chain", "draw"))
low, middle, high = np.quantile(rate.values, [0.05, 0.5, 0.95], axis=rate.get_axis_num("sample"))
left.fill_between(weeks, low, high, color="C0", alpha=0.25, lw=0, label="90 %")
left.plot(weeks, middle, color="C0", lw=1.5, label="median")
truth = np.exp(curve(weeks) + true_intercept.mean())
left.plot(weeks, truth, "--", color="C1", lw=1, label="truth")
left.set(xlabel="week", ylabel="cases a week and thousand", ylim=(0, None), title="Shared curve")
left.legend(frameon=False)

order = np.argsort(population)
intercepts = idata.posterior["intercept"].stack(sample=("chain", "draw")).values[order]
low, middle, high = np.quantile(intercepts, [0.05, 0.5, 0.95], axis=1)
at = np.arange(len(regions))
right.hlines(at, low, high, color="gray", lw=3, label="90 %")
right.plot(middle, at, "o", color="C0", ms=5, label="median")
right.plot((true_intercept - true_intercept.mean())[order], at, "x", color="C1", label="truth")
right.set(xlabel="intercept", title="Intercepts, by population (thousands)")
right.set_yticks(at, [f"{population[i]:g}" for i in order])
right.legend(frameon=False)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
figure = pathlib.Path("hierarchical.png").resolve()
fig.savefig(figure, dpi=110)
print(f"Figure written to {figure}")

# %% [markdown]
# **Answer.** The regions share two outbreaks, one in each winter, and the second is sharper. The
# truth lies inside of the bands. Large regions have intercepts that are known to a few percent, and
# small ones borrow from the rest.
