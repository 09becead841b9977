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
# # Noise that varies: two Gaussian processes in one likelihood
#
# The data, priors and inducing inputs are those of PyMC's example "Heteroskedastic Gaussian
# Processes", which reports two hours for 4000 iterations: one process for the mean, another for the
# logarithm of the noise. What the inducing values leave open of both functions, the likelihood
# integrates in closed form.

# %%
import os
import pathlib
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 2020
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
DRAWS = 50 if SMOKE else 1000

# %% [markdown]
# ## Data
#
# Forty inputs in two groups with a gap between, five measurements at each; the noise grows with the
# signal, and is not quite a smooth function of the input.


# %%
def signal(x):
    """Return the mean of the measurements."""
    return x / 2 + np.sin(2 * np.pi * x) / 5


def noise(x):
    """Return the typical standard deviation of a measurement."""
    return np.exp(signal(x)) / 20


rng = np.random.default_rng(SEED)
near = np.linspace(0.1, 1, 20)
inputs = np.concatenate([near, near + 2])
sd = rng.lognormal(mean=np.log(noise(inputs)), sigma=0.1)
measured = rng.normal(loc=signal(inputs), scale=sd, size=(5, len(inputs)))
x = np.repeat(inputs, 5)
y = measured.T.ravel()
X = x[:, None]

# %% [markdown]
# ## Model
#
# The prior of both lengthscales has three standard deviations between its mean and the smallest
# distance of two inputs, and between its mean and the largest.

# %%
spacing, extent = np.diff(inputs).min(), np.ptp(inputs)
ls_sigma = (extent - spacing) / 6
ls_mu = spacing + 3 * ls_sigma

with pm.Model() as model:
    ls = pm.InverseGamma("ls", mu=ls_mu, sigma=ls_sigma)
    eta = pm.Gamma("eta", alpha=2, beta=1)
    mean = vsgp.VariationalSparse(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    Xu = inputs[1::2, None]
    mean.prior("u", Xu)

    noise_ls = pm.InverseGamma("noise_ls", mu=ls_mu, sigma=ls_sigma)
    noise_eta = pm.Gamma("noise_eta", alpha=2, beta=1)
    log_sd = vsgp.VariationalSparse(cov_func=noise_eta**2 * pm.gp.cov.ExpQuad(1, ls=noise_ls))
    log_sd.prior("u_noise", Xu)
    vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [mean, log_sd], X=X, y=y)

    start = time.perf_counter()
    stage = vsgp.fit_gaussian(random_seed=SEED)
    idata = vsgp.sample(DRAWS, stage=stage, method="nuts", random_seed=SEED)
    print(f"Fitted and sampled in {time.perf_counter() - start:.0f} s")
print(az.summary(idata, var_names=["ls", "eta", "noise_ls", "noise_eta"]).to_string())
everything = az.summary(idata, round_to="none")
print(
    f"Of all {len(everything)} variables: R-hat up to {everything['r_hat'].max():.3f}, "
    f"ESS from {everything['ess_bulk'].min():.0f}; "
    f"{int(idata['sample_stats']['diverging'].sum())} divergences"
)

# %% [markdown]
# ## Mean, noise, and where a new measurement may fall

# %%
grid = np.linspace(-0.15, 3.25, 120)[:, None]
with model:
    mean.conditional("f", grid, diag=True)
    log_sd.conditional("g", grid, diag=True)
    vsgp.predictive("y_new", [mean, log_sd], grid)
    predictions = pm.sample_posterior_predictive(
        idata, var_names=["f", "g", "y_new"], predictions=True, random_seed=SEED
    ).predictions


def quantiles(draws, probabilities=(0.05, 0.5, 0.95)):
    """Return quantiles over chains and draws."""
    return np.asarray(draws.quantile(probabilities, dim=("chain", "draw")))


# %%
ink, warm = "#1f3a5f", "#c4572e"
fig, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
low, middle, high = quantiles(predictions["f"])
y_low, _, y_high = quantiles(predictions["y_new"])
axes[0].fill_between(grid[:, 0], y_low, y_high, color=ink, alpha=0.12, lw=0, label="new y, 90 %")
axes[0].fill_between(grid[:, 0], low, high, color=ink, alpha=0.35, lw=0, label="mean, 90 %")
axes[0].plot(grid[:, 0], signal(grid[:, 0]), "--", color=warm, lw=1.2, label="truth")
axes[0].plot(x, y, ".", color="black", ms=2.5, alpha=0.6)
axes[0].set(title="Mean", xlabel="x", ylabel="y")
axes[0].legend(frameon=False)
low, middle, high = np.exp(quantiles(predictions["g"]))
axes[1].fill_between(grid[:, 0], low, high, color=ink, alpha=0.3, lw=0, label="90 %")
axes[1].plot(grid[:, 0], middle, color=ink, label="median")
axes[1].plot(grid[:, 0], noise(grid[:, 0]), "--", color=warm, lw=1.2, label="truth")
axes[1].set(title="Standard deviation of the noise", xlabel="x", ylim=(0, None))
axes[1].legend(frameon=False)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
figure = pathlib.Path("heteroskedastic.png").resolve()
fig.savefig(figure, dpi=110)
print(f"Figure written to {figure}")
