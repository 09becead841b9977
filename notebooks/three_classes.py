# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Three classes: 750 points, one function for each class
#
# A toy problem as in Hensman, Matthews, Filippone and Ghahramani (2015): points in the plane whose
# class is that of the largest of three random functions, but for rare errors. The posterior of the
# functions is sampled free-form, and compared with the Gaussian approximation: where data are few,
# the Gaussian is too sure.

# %%
import os
import pathlib
import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

SEED = 750
SMOKE = os.environ.get("PYMC_VSGP_SMOKE") == "1"
N, M, DRAWS = (150, 12, 50) if SMOKE else (750, 35, 500)
CLASSES = ["blue", "green", "red"]

# %% [markdown]
# ## Data

# %%
rng = np.random.default_rng(SEED)
X = rng.normal(size=(N, 2))
squares = ((X[:, None] - X) ** 2).sum(axis=-1)
K = np.exp(-squares / (2 * 0.7**2)) + 1e-8 * np.eye(N)
functions = np.linalg.cholesky(K) @ rng.normal(size=(N, 3))
labels = functions.argmax(axis=1)
wrong = rng.uniform(size=N) < 0.01
labels[wrong] = rng.integers(0, 3, size=wrong.sum())
y = np.array(CLASSES)[labels]

# %% [markdown]
# ## Model
#
# One kernel and three functions: `n_outputs=3`. The rate of errors, epsilon, is learnt too.

# %%
with pm.Model(coords={"class": CLASSES}) as model:
    lengthscale = pm.Gamma("lengthscale", 3.0, 3.0)
    epsilon = pm.Beta("epsilon", 1.0, 50.0)
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=lengthscale))
    Xu = vsgp.inducing.kmeans(X, M, random_seed=SEED)
    gp.prior("u", Xu, n_outputs=3, output_dims="class")
    gp.likelihood("y", vsgp.RobustMax(3, epsilon), X=X, y=y)

    start = time.perf_counter()
    stage = vsgp.fit_gaussian(random_seed=SEED)
    idata = vsgp.sample(stage, draws=DRAWS, random_seed=SEED)
    print(f"Fitted and sampled in {time.perf_counter() - start:.0f} s")
print(az.summary(idata, var_names=["lengthscale", "epsilon"]).to_string())

# %% [markdown]
# ## Probability of each class over the plane
#
# A draw of the functions at a point has a largest one; how often it is that of each class is the
# probability of the class.

# %%
ticks = np.linspace(-3, 3, 25 if SMOKE else 60)
grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
with model:
    gp.conditional("f_grid", grid, diag=True)
    predictions = pm.sample_posterior_predictive(
        idata, var_names=["f_grid"], predictions=True, random_seed=SEED
    ).predictions
f = predictions["f_grid"].to_numpy().reshape(-1, 3, len(grid))
probability = (f.argmax(axis=1)[:, None] == np.arange(3)[:, None]).mean(axis=0)

# %%
colours = ["#1f5fa8", "#2f8f4e", "#c4372e"]
fig, ax = plt.subplots(figsize=(6.4, 6), layout="constrained")
shape = (len(ticks), len(ticks))
for k, colour in enumerate(colours):
    ax.plot(*X[labels == k].T, ".", color=colour, ms=3.5, alpha=0.6, label=CLASSES[k])
    ax.contour(
        ticks,
        ticks,
        probability[k].reshape(shape),
        levels=[0.3, 0.95, 0.99],
        colors=colour,
        linewidths=[0.7, 1.2, 1.9],
    )
ax.plot(*Xu.T, "^", color="black", ms=4, label="inducing point")
ax.set(title="Contours at probability 0.3, 0.95 and 0.99", xlim=(-3, 3), ylim=(-3, 3))
ax.set_aspect("equal")
ax.legend(frameon=False, loc="upper right")
picture = pathlib.Path("three_classes.png").resolve()
fig.savefig(picture, dpi=150)
print(f"Picture written to {picture}")

# %% [markdown]
# ## The functions are correlated across classes
#
# Only their order counts, so that a class whose function is large makes those of the others small:
# a factorised approximation has no such correlation.

# %%
u = idata.posterior["u"].to_numpy().reshape(-1, 3, M)
pairs = [(0, 1), (0, 2), (1, 2)]
correlation = np.array(
    [[np.corrcoef(u[:, i, m], u[:, j, m])[0, 1] for m in range(M)] for i, j in pairs]
)
for (i, j), row in zip(pairs, correlation, strict=True):
    print(
        f"{CLASSES[i]} and {CLASSES[j]}: correlation at the inducing points "
        f"from {row.min():.2f} to {row.max():.2f}"
    )
busiest = int(np.abs(correlation).max(axis=0).argmax())
fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for ax, (i, j) in zip(axes, pairs, strict=True):
    ax.plot(u[:, i, busiest], u[:, j, busiest], ".", ms=2, alpha=0.5, color="#1f3a5f")
    ax.set(xlabel=f"function of {CLASSES[i]}", ylabel=f"function of {CLASSES[j]}")
fig.suptitle("Draws at one inducing point")
picture = pathlib.Path("three_classes_correlation.png").resolve()
fig.savefig(picture, dpi=150)
print(f"Picture written to {picture}")
