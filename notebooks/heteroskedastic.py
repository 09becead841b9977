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
# logarithm of the noise. The likelihood integrates what the inducing values leave open of both
# functions, in closed form.

# %%
import os
import pathlib
import time

import arviz as az
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
# Both lengthscales have the same prior. The smallest and the largest distance of two inputs lie
# three standard deviations from its mean.

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
    idata = vsgp.sample(DRAWS, random_seed=SEED, progressbar=False)
    print(f"Fitted and sampled in {time.perf_counter() - start:.0f} s")
print(az.summary(idata, var_names=["ls", "eta", "noise_ls", "noise_eta"]).to_string())
everything = az.summary(idata, round_to="none")
print(
    f"Of all {len(everything)} variables: R-hat up to {everything['r_hat'].max():.3f}, "
    f"ESS from {everything['ess_bulk'].min():.0f}; drawn by {idata.posterior.attrs['method']}"
)

# %% [markdown]
# ## Mean and noise
#
# `plot_function` has both panels by default, as the likelihood has a function for the noise.
# Between the groups of inputs both are uncertain. The true curves are dashed. Forty inputs do not
# tell that the noise has ripples.

# %%
with model:
    axes = vsgp.plot_function(idata, random_seed=SEED)
grid = np.linspace(*axes[0].get_xlim(), 200)
for ax, truth in zip(axes, (signal, noise), strict=True):
    ax.plot(grid, truth(grid), "--", color="C1", lw=1.2)
    ax.set_xlabel("x")
figure = pathlib.Path("heteroskedastic.png").resolve()
axes[0].figure.savefig(figure, dpi=110)
print(f"Figure written to {figure}")

# %% [markdown]
# **Answer.** The noise grows with the input, to about three times what it is at zero. Where no
# inputs are, in the gap, the bands of the mean are wide. Those of the noise are less so: it varies
# slowly.
