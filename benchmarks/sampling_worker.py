"""One sampler on one case: from a cold start to the last draw.

Usage: ``python sampling_worker.py PEER CASE.npz OUT.npz --draws 500 --tune 500 --chains 4`` writes
theta (chain, draw, parameter) and f at 20 inputs (chain, draw, 20) to OUT.npz and prints one
line of JSON. ``python sampling_worker.py summary OUT.npz`` prints effective sample sizes and R-hat.
"""

import argparse
import importlib
import json
import sys
import time

START = time.perf_counter()

import numpy as np  # noqa: E402  (after the thread settings above)

JITTER = 1e-6  # times the prior variance
LEAPFROGS = 10  # of GPflow's HMC


class Unavailable(Exception):
    """The baseline cannot do this case; the message says why."""


def spent():
    """Seconds from the start of the process, and of processors: all threads of it."""
    return {"total_s": time.perf_counter() - START, "cpu_s": time.process_time()}


def read(path):
    """Read a case from its file."""
    with np.load(path, allow_pickle=False) as arrays:
        case = dict(arrays)
    for key in ("prior_ls", "prior_variance", "prior_alpha"):
        family, a, b = case[key]
        case[key] = (str(family), float(a), float(b))
    case["lik"], case["ard"] = str(case["lik"]), bool(case["ard"])
    case["exposure"] = float(case["exposure"])
    case["D"] = case["X"].shape[1]
    case["n_ls"] = case["D"] if case["ard"] else 1
    return case


def conditional_mean(case, ls, variance, white):
    """Return E[f | u] at the 20 inputs for every draw, from whitened values (chain, draw, M)."""
    Z, X = case["Z"], case["X"][case["rows"]]
    out = np.empty((*white.shape[:2], len(X)))
    for index in np.ndindex(white.shape[:2]):
        a, b = Z / ls[index], X / ls[index]
        s = variance[index]

        def kernel(p, q, s=s):
            r = (p * p).sum(1)[:, None] + (q * q).sum(1) - 2 * p @ q.T
            return s * np.exp(-0.5 * np.maximum(r, 0))

        R = np.linalg.cholesky(kernel(a, a) + JITTER * s * np.eye(len(Z)))
        out[index] = np.linalg.solve(R, kernel(a, b)).T @ white[index]
    return out


def whiten(case, ls, variance, u):
    """Return R^-1 u for every draw."""
    out = np.empty_like(u)
    for index in np.ndindex(u.shape[:2]):
        a = case["Z"] / ls[index]
        r = (a * a).sum(1)[:, None] + (a * a).sum(1) - 2 * a @ a.T
        K = variance[index] * (np.exp(-0.5 * np.maximum(r, 0)) + JITTER * np.eye(len(a)))
        out[index] = np.linalg.solve(np.linalg.cholesky(K), u[index])
    return out


# -------------------------------------------------------------------------------------------- PyMC


def _pymc_priors(case):
    import pymc as pm

    def prior(name, what, **kwargs):
        family, a, b = case[what]
        if family == "gamma":
            return pm.Gamma(name, a, b, **kwargs)
        return pm.LogNormal(name, a, b, **kwargs)

    ls = prior("ls", "prior_ls", shape=case["n_ls"])
    variance = prior("variance", "prior_variance")
    alpha = prior("alpha", "prior_alpha") if case["lik"] == "negbin" else None
    return variance * pm.gp.cov.ExpQuad(case["D"], ls=ls), alpha


def _nutpie(options, **nuts):
    import pymc as pm

    return pm.sample(
        options.draws,
        tune=options.tune,
        chains=options.chains,
        cores=options.cores,
        random_seed=options.seed,
        backend=options.backend,
        nuts_sampler="nutpie",
        progressbar=False,
        discard_tuned_samples=False,
        compute_convergence_checks=False,
        **({"nuts": nuts} if nuts else {}),
    )


def _timed(tree, case):
    """Draws of a tree that has just been sampled, and what it took."""
    times = spent()
    theta, f, info = _from_tree(tree, case)
    return theta, f, {**info, **times}


def _from_tree(tree, case, f=None):
    """Gradients, divergences and the draws of a tree that PyMC returned; f where it is known."""
    stats = tree["sample_stats"]
    names = ("n_steps", "tree_size", "num_steps")

    def steps(group):
        found = [n for n in names if group in tree.children and n in tree[group]]
        return int(tree[group][found[0]].values.sum()) if found else None

    posterior = tree["posterior"]
    ls, variance = posterior["ls"].values, posterior["variance"].values
    theta = [ls, variance[..., None]]
    if "alpha" in posterior:
        theta.append(posterior["alpha"].values[..., None])
    if f is None and "u" in posterior:
        white = whiten(case, ls, variance, posterior["u"].values)
        f = conditional_mean(case, ls, variance, white)
    elif f is None:
        f = posterior["f"].values[..., case["rows"]]
    info = {
        "gradients_draws": steps("sample_stats"),
        "gradients_warmup": steps("warmup_sample_stats"),
        "divergences": int(stats["diverging"].values.sum()) if "diverging" in stats else None,
        "sampling_s": float(posterior.attrs["sampling_time"])
        if "sampling_time" in posterior.attrs
        else None,
    }
    return np.concatenate(theta, axis=-1), f, info


def _vsgp_model(case, features=False):
    import pymc as pm

    import pymc_vsgp as vsgp

    with pm.Model() as model:
        cov, alpha = _pymc_priors(case)
        if case["lik"] == "poisson":
            likelihood = vsgp.Poisson(exposure=case["exposure"])
        elif case["lik"] == "negbin":
            likelihood = vsgp.NegativeBinomial(alpha=alpha, exposure=case["exposure"])
        else:
            likelihood = vsgp.Bernoulli(link="probit")
        gp = pm.gp.VariationalSparse(cov_func=cov)
        if features:
            gp.prior("u", inducing=vsgp.inducing.Fourier.for_data(case["X"], cov))
        else:
            gp.prior("u", Xu=case["Z"])
        gp.likelihood("y", likelihood, X=case["X"], y=case["y"])
    return model


def run_vsgp(case, options, features=False, **nuts):
    """Gaussian stage, then importance weights where these prove to be good, else NUTS."""
    import pymc_vsgp as vsgp

    with _vsgp_model(case, features) as model:
        start = time.perf_counter()
        stage = vsgp.fit_gaussian(random_seed=options.seed, progressbar=False)
        stage_s = time.perf_counter() - start
        tree = vsgp.sample(
            options.draws,
            stage=stage,
            tune=options.tune,
            chains=options.chains,
            cores=options.cores,
            random_seed=options.seed,
            progressbar=False,
            compute_convergence_checks=False,
            **nuts,
        )
    times, f = spent(), None
    if features:
        at = case["X"][case["rows"]]
        f = vsgp.predict(tree, at, "moments", model=model, progressbar=False)["mean"].values
    theta, f, info = _from_tree(tree, case, f)
    attrs = tree["posterior"].attrs
    known = {k: attrs[k] for k in ("method", "khat", "n_evaluations", "refused") if k in attrs}
    return theta, f, {**info, **known, "stage_s": stage_s, **times}


def run_features(case, options):
    """The same with Fourier features in place of inducing inputs, for one or two inputs."""
    if case["D"] > 2:
        raise Unavailable(f"not run: {case['D']} inputs are too many for Fourier features")
    return run_vsgp(case, options, features=True)


def run_vsgp_nuts(case, options):
    """Gaussian stage, then NUTS in the coordinates that it sets, whatever weights say."""
    asked = {"backend": options.backend, "discard_tuned_samples": False}
    return run_vsgp(case, options, method="nuts", **asked)


def run_whitened(case, options, **nuts):
    """Plain pm.sample on the same model: whitened coordinates."""
    with _vsgp_model(case):
        tree = _nutpie(options, **nuts)
    return _timed(tree, case)


def run_function(case, options, kind):
    """pm.gp.Latent, the exact posterior, or pm.gp.HSGP."""
    import pymc as pm
    import pytensor.tensor as pt

    X, y, D = case["X"], case["y"], case["D"]
    if kind == "latent" and len(X) > 1500:
        raise Unavailable(f"not run: N = {len(X)} is too many for the exact posterior")
    if kind == "hsgp" and D > 2:
        raise Unavailable(f"not run: {D} inputs are too many for a basis on a grid")
    with pm.Model():
        cov, alpha = _pymc_priors(case)
        if kind == "latent":
            f = pm.gp.Latent(cov_func=cov).prior("f", X=X)
        else:
            size = []
            for column in X.T:
                ends = [float(column.min()), float(column.max())]
                span = ends[1] - ends[0]
                scales = [span / 15, span / 2]
                size.append(pm.gp.hsgp_approx.approx_hsgp_hyperparams(ends, scales, "expquad"))
            m = [min(int(s[0]), 60 if D == 1 else 25) for s in size]
            c = max(float(s[1]) for s in size)
            # HSGP centres by X; its basis functions must not depend on random variables.
            f = pm.gp.HSGP(m=m, c=c, cov_func=cov).prior("f", X=X)
        if case["lik"] == "poisson":
            pm.Poisson("y", case["exposure"] * pt.exp(f), observed=y)
        elif case["lik"] == "negbin":
            pm.NegativeBinomial("y", mu=case["exposure"] * pt.exp(f), alpha=alpha, observed=y)
        else:
            s = (2 * y - 1) * f
            left, right = pt.minimum(s, np.float64(0.0)), pt.maximum(s, np.float64(0.0))
            root = np.sqrt(2.0)
            tail = pt.log(pt.erfcx(-left / root) / 2) - left**2 / 2
            log_p = pt.switch(s < 0, tail, pt.log1p(-pt.erfc(right / root) / 2))
            pm.Potential("y", log_p.sum())
        tree = _nutpie(options)
    return _timed(tree, case)


# ----------------------------------------------------------------------------------------- numpyro


def run_numpyro(case, options):
    """The same model written by hand in JAX; numpyro's NUTS."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from jax.scipy.linalg import solve_triangular
    from jax.scipy.special import gammaln, log_ndtr
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    parts = []

    def listen(name, seconds, **_):
        if "backend_compile" in name or "jaxpr_to_mlir" in name:
            parts.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    X, y, Z = (jnp.asarray(case[k]) for k in "XyZ")
    M, exposure, lik = len(case["Z"]), case["exposure"], case["lik"]
    nodes, weights = np.polynomial.hermite.hermgauss(20)
    nodes, weights = np.sqrt(2.0) * nodes, weights / np.sqrt(np.pi)

    def prior(what):
        family, a, b = case[what]
        return dist.Gamma(a, b) if family == "gamma" else dist.LogNormal(a, b)

    def kernel(a, b, variance):
        r = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
        return variance * jnp.exp(-0.5 * jnp.maximum(r, 0))

    def model():
        ls = numpyro.sample("ls", prior("prior_ls").expand([case["n_ls"]]).to_event(1))
        variance = numpyro.sample("variance", prior("prior_variance"))
        v = numpyro.sample("v", dist.Normal(0, 1).expand([M]).to_event(1))
        a, b = Z / ls, X / ls
        R = jnp.linalg.cholesky(kernel(a, a, variance) + JITTER * variance * jnp.eye(M))
        A = solve_triangular(R, kernel(a, b, variance), lower=True)
        mu, gamma = A.T @ v, jnp.maximum(variance - (A * A).sum(0), 1e-12 * variance)
        f = mu[:, None] + jnp.sqrt(gamma)[:, None] * nodes
        if lik == "poisson":
            rate = exposure * jnp.exp(mu + 0.5 * gamma)
            ell = jnp.sum(y * (mu + jnp.log(exposure)) - rate - gammaln(y + 1))
        elif lik == "negbin":
            alpha = numpyro.sample("alpha", prior("prior_alpha"))
            shift = jnp.log(exposure) - jnp.log(alpha)
            soft = jax.nn.softplus(f + shift) @ weights
            ell = jnp.sum(
                gammaln(y + alpha) - gammaln(alpha) + y * (mu + shift) - (y + alpha) * soft
            )
        else:
            ell = jnp.sum(log_ndtr((2 * y - 1)[:, None] * f) @ weights)
        numpyro.factor("ell", ell)

    def sampler():
        return MCMC(
            NUTS(model),
            num_warmup=options.tune,
            num_samples=options.draws,
            num_chains=options.chains,
            chain_method="sequential",
            progress_bar=False,
        )

    fields = ("num_steps", "diverging")
    key = jax.random.PRNGKey(options.seed)
    mcmc = sampler()
    mcmc.run(key, extra_fields=fields)
    draws = {k: np.asarray(x) for k, x in mcmc.get_samples(group_by_chain=True).items()}
    extra = mcmc.get_extra_fields()
    times, compile_s = spent(), sum(parts)
    # The steps of the warm-up are only kept if asked for, which costs a second compilation. The
    # same key takes the same path, so they are counted again, after the clock has stopped.
    again = sampler()
    again.warmup(key, extra_fields=fields, collect_warmup=True)
    warmup = int(np.sum(again.get_extra_fields()["num_steps"]))
    theta = [draws["ls"], draws["variance"][..., None]]
    if "alpha" in draws:
        theta.append(draws["alpha"][..., None])
    info = {
        "gradients_draws": int(np.sum(extra["num_steps"])),
        "gradients_warmup": warmup,
        "divergences": int(np.sum(extra["diverging"])),
        "compile_s": compile_s,
        **times,
    }
    f = conditional_mean(case, draws["ls"], draws["variance"], draws["v"])
    return np.concatenate(theta, axis=-1), f, info


# ------------------------------------------------------------------------------------------ GPflow


def run_gpflow(case, options):
    """GPflow's SGPMC with HMC of TensorFlow Probability, as in GPflow's own examples."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    if case["lik"] == "negbin":
        raise Unavailable("not available: GPflow has no negative binomial likelihood")
    gpflow.config.set_default_float(np.float64)
    gpflow.config.set_default_jitter(0.0)
    tfd = tfp.distributions

    class Kernel(gpflow.kernels.SquaredExponential):
        """Jitter relative to the variance, as in the other baselines."""

        def K(self, X, X2=None):
            K = super().K(X, X2)
            if X2 is not None:
                return K
            return K + JITTER * self.variance * tf.eye(tf.shape(X)[0], dtype=K.dtype)

    def parameter(what, shape):
        family, a, b = case[what]
        a, b = np.float64(a), np.float64(b)
        prior = tfd.Gamma(a, b) if family == "gamma" else tfd.LogNormal(a, b)
        mean = a / b if family == "gamma" else np.exp(a)
        return gpflow.Parameter(np.full(shape, mean), transform=tfp.bijectors.Exp(), prior=prior)

    kernel = Kernel(lengthscales=np.ones(case["n_ls"]) if case["ard"] else 1.0)
    kernel.lengthscales = parameter("prior_ls", (case["n_ls"],) if case["ard"] else ())
    kernel.variance = parameter("prior_variance", ())
    if case["lik"] == "poisson":
        likelihood = gpflow.likelihoods.Poisson(binsize=case["exposure"])
    else:
        likelihood = gpflow.likelihoods.Bernoulli()
    data = (case["X"], case["y"][:, None])
    model = gpflow.models.SGPMC(data, kernel, likelihood, inducing_variable=case["Z"].copy())
    gpflow.set_trainable(model.inducing_variable, False)
    parameters = [kernel.lengthscales, kernel.variance, model.V]
    helper = gpflow.optimizers.SamplingHelper(model.log_posterior_density, parameters)
    hmc = tfp.mcmc.HamiltonianMonteCarlo(
        helper.target_log_prob_fn, num_leapfrog_steps=LEAPFROGS, step_size=np.float64(0.01)
    )
    adaptive = tfp.mcmc.SimpleStepSizeAdaptation(
        hmc,
        num_adaptation_steps=int(0.8 * options.tune),
        target_accept_prob=np.float64(0.75),
        adaptation_rate=0.1,
    )

    @tf.function
    def chain(state, seed):
        return tfp.mcmc.sample_chain(
            options.draws,
            state,
            kernel=adaptive,
            num_burnin_steps=options.tune,
            seed=seed,
            trace_fn=lambda _, r: r.inner_results.is_accepted,
        )

    rng = np.random.default_rng(options.seed)
    start = [tf.identity(x) for x in helper.current_state]
    before = time.perf_counter()
    chain.get_concrete_function(start, tf.constant([options.seed, 0]))
    compile_s = time.perf_counter() - before
    chains, accepted = [], []
    for number in range(options.chains):
        state = [x + 0.1 * rng.standard_normal(x.shape) for x in start]
        samples, ok = chain(state, tf.constant([options.seed, number]))
        values = helper.convert_to_constrained_values(samples)
        chains.append([np.asarray(v) for v in values])
        accepted.append(float(np.mean(ok)))
    times = spent()
    ls, variance, v = (np.stack([c[i] for c in chains]) for i in range(3))
    ls = ls.reshape(*ls.shape[:2], -1)
    info = {
        "gradients_draws": LEAPFROGS * options.draws * options.chains,
        "gradients_warmup": LEAPFROGS * options.tune * options.chains,
        "divergences": None,
        "acceptance": accepted,
        "compile_s": compile_s,
        **times,
    }
    theta = np.concatenate([ls, variance[..., None]], axis=-1)
    return theta, conditional_mean(case, ls, variance, v[..., 0]), info


def modern(name):
    """Return one of `sampling_modern`, which finds this module here, with its clock."""
    sys.modules.setdefault("sampling_worker", sys.modules[__name__])
    return getattr(importlib.import_module("sampling_modern"), name)


RUNNERS = {
    "vsgp": run_vsgp,
    "vsgp_nuts": run_vsgp_nuts,
    "vsgp_features": run_features,
    "vsgp_whitened": run_whitened,
    "vsgp_whitened_lowrank": lambda c, o: run_whitened(c, o, adaptation="low_rank"),
    "numpyro": run_numpyro,
    "gpflow": run_gpflow,
    "latent": lambda c, o: run_function(c, o, "latent"),
    "hsgp": lambda c, o: run_function(c, o, "hsgp"),
    "nutpie_flow": lambda c, o: modern("run_flow")(c, o),
    "blackjax_laplace": lambda c, o: modern("run_laplace")(c, o),
}


def summary(path):
    """Smallest bulk ESS of theta and of f, largest R-hat, and means for comparison."""
    import arviz as az

    with np.load(path) as arrays:
        draws = {k: arrays[k] for k in ("theta", "f")}
    out, rhat = {}, []
    for name, x in draws.items():
        if not np.isfinite(x).all():
            return {"skipped": f"draws of {name} are not finite"}
        columns = [x[..., i] for i in range(x.shape[-1])]
        out[f"ess_{name}"] = min(float(az.ess(c)) for c in columns)
        if x.shape[0] > 1:
            rhat += [float(az.rhat(c)) for c in columns]
        out[f"mean_{name}"] = x.mean((0, 1)).tolist()
        out[f"sd_{name}"] = x.std((0, 1)).tolist()
    return {**out, "rhat": max(rhat, default=None)}


def main():
    """Run one sampler, or sum up what one wrote."""
    if sys.argv[1] == "summary":
        print(json.dumps(summary(sys.argv[2])))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("baseline", choices=RUNNERS)
    parser.add_argument("case")
    parser.add_argument("out")
    parser.add_argument("--backend", default="numba")
    for name, default in (("draws", 500), ("tune", 500), ("chains", 4), ("cores", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    case = read(options.case)
    try:
        theta, f, info = RUNNERS[options.baseline](case, options)
    except Unavailable as reason:
        print(json.dumps({"skipped": str(reason)}))
        return
    np.savez(options.out, theta=theta, f=f)
    if info.get("compile_s") is None:
        # Imports, graph, compilation: all that is neither the Gaussian stage nor sampling.
        if info.get("sampling_s") is not None:
            info["compile_s"] = info["total_s"] - info["sampling_s"] - info.get("stage_s", 0.0)
    print(json.dumps(info))


if __name__ == "__main__":
    main()
