"""The models of waiting.py by NumPyro and by GPflow: from the start of Python to a plot.

Usage: ``python waiting_peers.py numpyro CASE.npz --draws 1000``; waiting.py calls it. Both have the
target of vsgp.VariationalSparse, in whitened inducing values: NumPyro by hand, with its NUTS, and
GPflow as SGPMC with the HMC of its documentation, ten leapfrog steps a draw.
"""

import argparse
import json
import os
import resource
import time

from pathlib import Path

import numpy as np

LEAPFROGS = 10
TUNE, CHAINS, PLOTTED = 1000, 4, 200
JITTER = 1e-6


def started():
    """Return when this process began, in seconds of the clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks


class Clock:
    """What happened when, in seconds of the clock and of processors."""

    def __init__(self):
        self.began, self.seen = started(), {}

    def tick(self, event):
        """Keep the time of an event."""
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(u.ru_utime + u.ru_stime for u in used)
        self.seen[event] = [time.time() - self.began, cpu]


def plot(X, low, middle, high):
    """Draw the function and its intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    if X.shape[1] == 2:
        ax.scatter(*X.T, c=middle)
    else:
        ax.fill_between(X[:, 0], low, high, alpha=0.3)
        ax.plot(X[:, 0], middle)


def run_numpyro(case, draws, clock):
    """Sample the model, written by hand in JAX."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from jax.scipy.linalg import solve_triangular
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    clock.tick("import")
    name, X, y, Z = str(case["name"]), *(jnp.asarray(case[k]) for k in ("X", "y", "Z"))
    coal, M = name in ("readme", "negative"), len(Z)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    squared = str(case["kernel"]) == "ExpQuad"
    root = {"Matern32": 3.0, "Matern52": 5.0}.get(str(case["kernel"]))

    def kernel(a, b):
        r2 = jnp.maximum(((a[:, None] - b) ** 2).sum(-1), 1e-30)
        if squared:
            return jnp.exp(-0.5 * r2)
        d = jnp.sqrt(root * r2)
        return (1.0 + d + (d**2 / 3.0 if root == 5.0 else 0.0)) * jnp.exp(-d)

    def moments(ls, scale, mean, v):
        R = jnp.linalg.cholesky(kernel(Z / ls, Z / ls) + JITTER * jnp.eye(M))
        A = solve_triangular(R, kernel(Z / ls, X / ls), lower=True)
        gamma = scale**2 * jnp.maximum(1.0 - (A * A).sum(0), 1e-12)
        return mean + scale * (A.T @ v), gamma

    def model():
        mu_ls, sd_ls = (20.0, 10.0) if coal else (2.0, 1.0)
        alpha = (mu_ls / sd_ls) ** 2 + 2.0
        ls = numpyro.sample("ls", dist.InverseGamma(alpha, mu_ls * (alpha - 1.0)))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([M]).to_event(1))
        mu, gamma = moments(ls, scale, mean, v)
        if name == "normal":
            sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
            terms = dist.Normal(mu, sigma).log_prob(y) - 0.5 * gamma / sigma**2
        else:
            f = mu[:, None] + jnp.sqrt(gamma)[:, None] * nodes
            if name == "groups":
                spread = numpyro.sample("spread", dist.HalfNormal(1.0))
                effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
                f = f + (spread * effect)[np.arange(len(X)) % 10, None]
            if name == "student":
                sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
                of_y = dist.StudentT(4.0, f, sigma)
            elif name == "bernoulli":
                of_y = dist.Bernoulli(logits=f)
            elif name == "negative":
                alpha = numpyro.sample("alpha", dist.Exponential(1.0))
                of_y = dist.NegativeBinomial2(jnp.exp(f) * case["exposure"], alpha)
            else:
                of_y = dist.Poisson(jnp.exp(f) * case["exposure"])
            terms = of_y.log_prob(y[:, None]) @ weights
        numpyro.factor("terms", terms.sum())

    mcmc = MCMC(
        NUTS(model),
        num_warmup=TUNE,
        num_samples=draws,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.PRNGKey(1))
    found = mcmc.get_samples()
    jax.block_until_ready(found)
    clock.tick("draws")
    at = [found[k][:: max(1, CHAINS * draws // PLOTTED)] for k in ("ls", "scale", "mean", "v")]
    f = np.asarray(jax.lax.map(lambda p: moments(*p)[0], tuple(at)))
    plot(np.asarray(X), *np.quantile(f, [0.05, 0.5, 0.95], axis=0))
    clock.tick("plot")


def run_gpflow(case, draws, clock):
    """Sample SGPMC by HMC."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    tfd, name = tfp.distributions, str(case["name"])
    gpflow.config.set_default_float(np.float64)
    gpflow.config.set_default_jitter(JITTER)
    clock.tick("import")
    kernels = gpflow.kernels
    kinds = {"ExpQuad": kernels.SquaredExponential, "Matern32": kernels.Matern32}
    kernel = kinds.get(str(case["kernel"]), kernels.Matern52)()
    one, zero = np.float64(1.0), np.float64(0.0)
    # The prior mean and sd of the lengthscale are those of the other models.
    mu, sd = (20.0, 10.0) if name == "readme" else (2.0, 1.0)
    alpha = np.float64((mu / sd) ** 2 + 2.0)
    positive = {"transform": tfp.bijectors.Exp(), "dtype": np.float64}
    prior = tfd.InverseGamma(alpha, np.float64(mu * (alpha - 1.0)))
    kernel.lengthscales = gpflow.Parameter(mu, prior=prior, **positive)
    kernel.variance = gpflow.Parameter(1.0, prior=tfd.Gamma(one, one), **positive)
    mean = gpflow.mean_functions.Constant()
    mean.c = gpflow.Parameter(np.zeros(1), prior=tfd.Normal(zero, one), dtype=np.float64)
    noise = gpflow.Parameter(0.5, prior=tfd.HalfNormal(one), **positive)
    parameters = [kernel.lengthscales, kernel.variance, mean.c]
    if name == "normal":
        likelihood = gpflow.likelihoods.Gaussian(scale=noise)
    elif name == "student":
        likelihood = gpflow.likelihoods.StudentT(df=4.0)
        likelihood.scale = noise
    elif name == "bernoulli":
        likelihood = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid)
    else:
        likelihood = gpflow.likelihoods.Poisson(binsize=float(case["exposure"]))
    parameters += [noise] if name in ("normal", "student") else []
    data = (case["X"], case["y"][:, None].astype(float))
    model = gpflow.models.SGPMC(
        data, kernel, likelihood, mean_function=mean, inducing_variable=case["Z"].copy()
    )
    gpflow.set_trainable(model.inducing_variable, False)
    # As in its documentation: HMC starts from the posterior mode.
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": 100}
    )
    helper = gpflow.optimizers.SamplingHelper(model.log_posterior_density, [*parameters, model.V])
    hmc = tfp.mcmc.HamiltonianMonteCarlo(
        helper.target_log_prob_fn, num_leapfrog_steps=LEAPFROGS, step_size=np.float64(0.01)
    )
    adaptive = tfp.mcmc.SimpleStepSizeAdaptation(
        hmc,
        num_adaptation_steps=int(0.8 * TUNE),
        target_accept_prob=np.float64(0.75),
        adaptation_rate=0.1,
    )

    @tf.function
    def chain(seed):
        return tfp.mcmc.sample_chain(
            draws,
            helper.current_state,
            kernel=adaptive,
            num_burnin_steps=TUNE,
            seed=seed,
            trace_fn=None,
        )

    chains = [chain(tf.constant([1, number])) for number in range(CHAINS)]
    samples = [np.concatenate([np.asarray(c[i]) for c in chains]) for i in range(len(chains[0]))]
    clock.tick("draws")
    f = []
    for i in range(0, CHAINS * draws, max(1, CHAINS * draws // PLOTTED)):
        for variable, x in zip(helper.current_state, samples, strict=True):
            variable.assign(x[i])
        f.append(np.asarray(model.predict_f(case["X"])[0])[:, 0])
    plot(case["X"], *np.quantile(f, [0.05, 0.5, 0.95], axis=0))
    clock.tick("plot")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=["numpyro", "gpflow"])
    parser.add_argument("case")
    parser.add_argument("--draws", type=int, default=1000)
    given, clock = parser.parse_args(), Clock()
    with np.load(given.case, allow_pickle=False) as arrays:
        (run_numpyro if given.peer == "numpyro" else run_gpflow)(dict(arrays), given.draws, clock)
    clock.seen["draw"] = clock.seen["draws"]
    print("RESULT " + json.dumps({"seen": clock.seen, "method": ""}), flush=True)
