"""Samplers of recent years on the cases of `sampling.py`, each in an environment of its own."""

import numpy as np

from sampling_worker import JITTER, Unavailable, _timed, _vsgp_model, spent

LEAPFROGS = 10  # of blackjax, as in its documentation


def run_flow(case, options):
    """Our model in whitened coordinates; nutpie adapts to it by normalizing flows, on JAX."""
    import nutpie

    model = _vsgp_model(case)
    compiled = nutpie.compile_pymc_model(model, backend="jax", gradient_backend="jax")
    tree = nutpie.sample(
        compiled.with_transform_adapt(),
        draws=options.draws,
        tune=options.tune,
        chains=options.chains,
        cores=options.cores,
        seed=options.seed,
        adaptation="flow",
        save_warmup=True,
        progress_bar=False,
    )
    return _timed(tree, case)


def run_laplace(case, options):
    """blackjax: HMC of the parameters; f of all rows goes out by a Laplace approximation."""
    import blackjax
    import jax
    import jax.numpy as jnp

    from blackjax.mcmc.laplace_marginal import laplace_marginal_factory
    from jax.scipy.special import gammaln, log_ndtr

    if len(case["X"]) > 1500:
        raise Unavailable(f"not run: N = {len(case['X'])} is too many for the exact posterior")
    jax.config.update("jax_enable_x64", True)
    X, y, n_ls = jnp.asarray(case["X"]), jnp.asarray(case["y"]), case["n_ls"]
    priors = [case["prior_ls"]] * n_ls + [case["prior_variance"]]
    priors += [case["prior_alpha"]] if case["lik"] == "negbin" else []

    def log_prior(z, prior):
        """Return the density of the logarithm, but for a constant."""
        family, a, b = prior
        return a * z - b * jnp.exp(z) if family == "gamma" else -0.5 * ((z - a) / b) ** 2

    def root(z):
        scaled = X / jnp.exp(z[:n_ls])
        r = (scaled**2).sum(1)[:, None] + (scaled**2).sum(1) - 2 * scaled @ scaled.T
        K = jnp.exp(-0.5 * jnp.maximum(r, 0)) + JITTER * jnp.eye(len(X))
        return jnp.exp(0.5 * z[n_ls]) * jnp.linalg.cholesky(K)

    def log_likelihood(f, z):
        mu = f + jnp.log(case["exposure"])
        if case["lik"] == "poisson":
            return jnp.sum(y * mu - jnp.exp(mu))
        if case["lik"] == "negbin":
            alpha = jnp.exp(z[-1])
            soft = jnp.logaddexp(mu, z[-1])
            constant = gammaln(y + alpha) - gammaln(alpha)
            return jnp.sum(constant + y * (mu - soft) + alpha * (z[-1] - soft))
        return jnp.sum(log_ndtr((2 * y - 1) * f))

    def log_joint(v, z):
        """Of whitened values: the approximation is the same, and its optimum found sooner."""
        prior = sum(log_prior(z[i], p) for i, p in enumerate(priors))
        return prior - 0.5 * v @ v + log_likelihood(root(z) @ v, z)

    laplace = laplace_marginal_factory(log_joint, jnp.zeros(len(X)), maxiter=100)
    settings = {"num_integration_steps": LEAPFROGS}
    adaptation = blackjax.window_adaptation(blackjax.laplace_mhmc, laplace, **settings)
    kernel = blackjax.laplace_mhmc.build_kernel()

    def chain(key, start):
        tuning, drawing, function = jax.random.split(key, 3)
        (state, tuned), _ = adaptation.run(tuning, start, num_steps=options.tune)

        def step(state, key):
            new, info = kernel(key, state, laplace, **tuned)
            return new, (new.position, new.theta_star, info.is_divergent)

        keys = jax.random.split(drawing, options.draws)
        _, (z, v, divergent) = jax.lax.scan(step, state, keys)

        def function_of(given):
            key, z, v = given
            return (root(z) @ laplace.sample_theta(key, z, v))[case["rows"]]

        keys = jax.random.split(function, options.draws)
        return z, jax.lax.map(function_of, (keys, z, v)), divergent.sum()

    keys = jax.random.split(jax.random.PRNGKey(options.seed), options.chains)
    middle = [np.log(a / b) if family == "gamma" else a for family, a, b in priors]
    rng = np.random.default_rng(options.seed)
    compiled = jax.jit(chain)
    found = [
        compiled(key, np.array(middle) + 0.1 * rng.standard_normal(len(middle))) for key in keys
    ]
    z, f, divergent = (np.stack([np.asarray(x) for x in part]) for part in zip(*found, strict=True))
    times = spent()
    info = {
        "gradients_draws": LEAPFROGS * options.draws * options.chains,
        "gradients_warmup": LEAPFROGS * options.tune * options.chains,
        "divergences": int(divergent.sum()),
        **times,
    }
    return np.exp(z), f, info
