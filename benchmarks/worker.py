"""One baseline on one case: builds and compiles value and gradient, then times them on request.

Usage: ``python worker.py PEER CASE [--tiny]``. Prints one line of JSON when the first gradient is
there, or when the baseline cannot do the case; then answers each line ``time K`` on standard
input with
another; ``quit`` ends it.
"""

import json
import os
import resource
import sys
import time

START = time.perf_counter()

import cases  # noqa: E402  (after the thread settings above)
import numpy as np  # noqa: E402  (after the thread settings above)

SQRT2 = np.sqrt(2.0)


class Unavailable(Exception):
    """The baseline cannot do this case; the message says why."""


class Clock:
    """Time and memory at the moment when a baseline has imported what it needs."""

    def __init__(self):
        self.imported = self.memory = None
        self.versions = {"numpy": np.__version__}

    def done_importing(self, *modules):
        """Note the moment, and the versions of the modules."""
        self.versions.update({m.__name__: m.__version__ for m in modules})
        self.imported = time.perf_counter() - START
        self.memory = memory("VmRSS")


def memory(key):
    """Resident memory in MB: VmRSS now, VmHWM at its peak."""
    try:
        with open("/proc/self/status") as lines:
            for line in lines:
                if line.startswith(key):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak():
    """Let VmHWM start anew, where the kernel allows it."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


# --------------------------------------------------------------------------------------- pymc_vsgp


def build_vsgp(case, clock, mode):
    """Compile pymc_vsgp through its public names, in a PyTensor mode."""
    import pymc as pm
    import pytensor
    import pytensor.tensor as pt

    import pymc_vsgp as vsgp

    clock.done_importing(pm, pytensor, vsgp)
    D, K, M, lik = case["D"], case["K"], case["M"], case["lik"]
    if lik == "robustmax" and not hasattr(vsgp, "RobustMax"):
        raise Unavailable("not available: this version of pymc_vsgp has no RobustMax")
    with pm.Model() as model:
        log_ls = pm.Normal("log_ls", 0, 1, shape=D)
        log_eta = pm.Normal("log_eta", 0, 1)
        cov = pt.exp(2 * log_eta) * pm.gp.cov.ExpQuad(D, ls=pt.exp(log_ls))
        if lik == "gaussian":
            likelihood = vsgp.Gaussian(sigma=pt.exp(pm.Normal("log_sigma", 0, 1)))
        elif lik == "probit":
            likelihood = vsgp.Bernoulli(link="probit")
        elif lik == "poisson":
            likelihood = vsgp.Poisson()
        else:
            likelihood = vsgp.RobustMax(K)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", case["Z"], jitter=cases.JITTER, **({"n_outputs": K} if K > 1 else {}))
        gp.likelihood("y", likelihood, X=case["X"], y=case["y"])
    return _pymc_function(model, mode, M, K)


def _pymc_function(model, mode, M, K):
    names = [v.name for v in model.continuous_value_vars]
    order = ["log_ls", "log_eta", "log_sigma"]
    if sorted(names[:-1], key=order.index) != names[:-1]:
        raise RuntimeError(f"unexpected order of variables: {names}")
    # v is M x K in the shared vector; pymc_vsgp may hold it the other way round.
    shape = model.initial_point()[names[-1]].shape
    transposed = K > 1 and shape == (K, M)
    function = model.logp_dlogp_function(ravel_inputs=True, mode=mode)

    def evaluate(theta):
        P = theta.size - M * K
        if transposed:
            theta = np.concatenate([theta[:P], theta[P:].reshape(M, K).T.ravel()])
        value, gradient = function(theta)
        # asarray waits for JAX, which returns before the work is done.
        value, gradient = float(value), np.asarray(gradient)
        if transposed:
            gradient = np.concatenate([gradient[:P], gradient[P:].reshape(K, M).T.ravel()])
        return value, gradient

    return evaluate


# ------------------------------------------------------------------------- ordinary PyTensor graph


def build_pymc(case, clock, mode):
    """Compile the same density written by hand in PyMC, with whole M x N matrices."""
    import pymc as pm
    import pytensor
    import pytensor.tensor as pt

    clock.done_importing(pm, pytensor)
    X, y, Z, M, D, K, lik = (case[k] for k in ("X", "y", "Z", "M", "D", "K", "lik"))
    nodes, weights = cases.gauss_hermite()
    with pm.Model() as model:
        log_ls = pm.Normal("log_ls", 0, 1, shape=D)
        log_eta = pm.Normal("log_eta", 0, 1)
        log_sigma = pm.Normal("log_sigma", 0, 1) if lik == "gaussian" else None
        v = pm.Normal("v", 0, 1, shape=(M, K))
        eta2 = pt.exp(2 * log_eta)
        cov = eta2 * pm.gp.cov.ExpQuad(D, ls=pt.exp(log_ls))
        R = pt.linalg.cholesky(cov(Z) + cases.JITTER * eta2 * np.eye(M))
        A = pt.linalg.solve_triangular(R, cov(Z, X), lower=True)
        mu = A.T @ v
        gamma = eta2 - pt.sum(A * A, axis=0)
        if lik == "poisson":
            mu = mu[:, 0]
            ell = pt.sum(y * mu - pt.exp(mu + 0.5 * gamma) - pt.gammaln(y + 1))
        elif lik == "gaussian":
            s2 = pt.exp(2 * log_sigma)
            residual = (y - mu[:, 0]) ** 2 + gamma
            ell = pt.sum(-0.5 * pt.log(2 * np.pi * s2) - 0.5 * residual / s2)
        elif lik == "probit":
            f = (2 * y - 1)[:, None] * (mu + pt.sqrt(gamma)[:, None] * nodes)
            left = pt.minimum(f, np.float64(0.0))
            right = pt.maximum(f, np.float64(0.0))
            tail = pt.log(pt.erfcx(-left / SQRT2) / 2) - left**2 / 2
            log_p = pt.switch(f < 0, tail, pt.log1p(-pt.erfc(right / SQRT2) / 2))
            ell = pt.sum(log_p * weights)
        else:
            one_hot = np.eye(K)[y]
            sd = pt.sqrt(pt.maximum(gamma, np.float64(1e-10)))
            own = pt.sum(mu * one_hot, axis=1)
            at = own[:, None] + sd[:, None] * nodes
            t = (at[:, None, :] - mu[:, :, None]) / sd[:, None, None]
            p = 0.5 * (1.0 + pt.erf(t / SQRT2))
            p = pt.switch(one_hot[:, :, None] > 0, np.float64(1.0), p)
            right = pt.prod(p, axis=1, no_zeros_in_input=False) @ weights
            good, bad = np.log(1 - cases.EPSILON), np.log(cases.EPSILON / (K - 1))
            ell = pt.sum(right * good + (1 - right) * bad)
        pm.Potential("ell", ell)
    return _pymc_function(model, mode, M, K)


# -------------------------------------------------------------------------------- JAX and numpyro


def build_numpyro(case, clock):
    """Compile the same density written by hand in JAX: a numpyro model, jitted value_and_grad."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from jax.scipy.linalg import solve_triangular
    from jax.scipy.special import gammaln, log_ndtr, ndtr
    from numpyro.infer.util import log_density

    jax.config.update("jax_enable_x64", True)
    clock.done_importing(jax, numpyro)
    M, D, K, P, lik = (case[k] for k in ("M", "D", "K", "P", "lik"))
    X, y, Z = (jnp.asarray(case[k]) for k in ("X", "y", "Z"))
    one_hot = np.eye(K)[case["y"]] if lik == "robustmax" else None
    nodes, weights = cases.gauss_hermite()

    def kernel(a, b, ls, eta2):
        a, b = a / ls, b / ls
        r = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
        return eta2 * jnp.exp(-0.5 * jnp.maximum(r, 0))

    def expected(ls, eta2, v, log_sigma):
        R = jnp.linalg.cholesky(kernel(Z, Z, ls, eta2) + cases.JITTER * eta2 * jnp.eye(M))
        A = solve_triangular(R, kernel(Z, X, ls, eta2), lower=True)
        mu, gamma = A.T @ v, eta2 - (A * A).sum(0)
        if lik == "poisson":
            m = mu[:, 0]
            return jnp.sum(y * m - jnp.exp(m + 0.5 * gamma) - gammaln(y + 1))
        if lik == "gaussian":
            s2 = jnp.exp(2 * log_sigma)
            residual = (y - mu[:, 0]) ** 2 + gamma
            return jnp.sum(-0.5 * jnp.log(2 * np.pi * s2) - 0.5 * residual / s2)
        if lik == "probit":
            f = mu + jnp.sqrt(gamma)[:, None] * nodes
            return jnp.sum(log_ndtr((2 * y - 1)[:, None] * f) @ weights)
        sd = jnp.sqrt(jnp.maximum(gamma, 1e-10))
        own = (mu * one_hot).sum(1)
        t = ((own[:, None] + sd[:, None] * nodes)[:, None, :] - mu[:, :, None]) / sd[:, None, None]
        p = jnp.prod(jnp.where(one_hot[:, :, None] > 0, 1.0, ndtr(t)), 1) @ weights
        good, bad = np.log(1 - cases.EPSILON), np.log(cases.EPSILON / (K - 1))
        return jnp.sum(p * good + (1 - p) * bad)

    def model():
        log_ls = numpyro.sample("log_ls", dist.Normal(0, 1).expand([D]).to_event(1))
        log_eta = numpyro.sample("log_eta", dist.Normal(0, 1))
        log_sigma = numpyro.sample("log_sigma", dist.Normal(0, 1)) if lik == "gaussian" else 0.0
        v = numpyro.sample("v", dist.Normal(0, 1).expand([M, K]).to_event(2))
        numpyro.factor("ell", expected(jnp.exp(log_ls), jnp.exp(2 * log_eta), v, log_sigma))

    def logp(theta):
        point = {"log_ls": theta[:D], "log_eta": theta[D], "v": theta[P:].reshape(M, K)}
        if lik == "gaussian":
            point["log_sigma"] = theta[D + 1]
        return log_density(model, (), {}, point)[0]

    function = jax.jit(jax.value_and_grad(logp))

    def evaluate(theta):
        value, gradient = function(jnp.asarray(theta))
        return float(value), np.asarray(gradient)

    return evaluate


# ------------------------------------------------------------------------------------------ GPflow


def build_gpflow(case, clock):
    """Compile GPflow's SGPMC, with priors and jitter made equal to the others'."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    clock.done_importing(gpflow, tf)
    gpflow.config.set_default_float(np.float64)
    gpflow.config.set_default_jitter(0.0)
    M, D, K, P, lik, theta0 = (case[k] for k in ("M", "D", "K", "P", "lik", "theta"))

    class Kernel(gpflow.kernels.SquaredExponential):
        """Jitter relative to the variance, on the only square covariance that SGPMC asks for."""

        def K(self, X, X2=None):
            K = super().K(X, X2)
            if X2 is not None:
                return K
            return K + cases.JITTER * self.variance * tf.eye(tf.shape(X)[0], dtype=K.dtype)

    def positive(value, scale):
        prior = tfp.distributions.Normal(np.float64(0), np.float64(scale))
        return gpflow.Parameter(
            value, transform=tfp.bijectors.Exp(), prior=prior, prior_on="unconstrained"
        )

    kernel = Kernel(lengthscales=np.ones(D))
    kernel.lengthscales = positive(np.exp(theta0[:D]), 1)
    kernel.variance = positive(np.exp(2 * theta0[D]), 2)  # log variance is 2 log_eta
    parameters = [kernel.lengthscales, kernel.variance]
    if lik == "poisson":
        likelihood = gpflow.likelihoods.Poisson()
    elif lik == "gaussian":
        likelihood = gpflow.likelihoods.Gaussian()
        likelihood.variance = positive(np.exp(2 * theta0[D + 1]), 2)
        parameters.append(likelihood.variance)
    elif lik == "probit":
        likelihood = gpflow.likelihoods.Bernoulli()
    else:
        link = gpflow.likelihoods.RobustMax(K, epsilon=cases.EPSILON)
        likelihood = gpflow.likelihoods.MultiClass(K, invlink=link)
        gpflow.set_trainable(likelihood.invlink, False)
    y = case["y"].astype(float)[:, None]
    model = gpflow.models.SGPMC(
        (case["X"], y), kernel, likelihood, num_latent_gps=K, inducing_variable=case["Z"].copy()
    )
    gpflow.set_trainable(model.inducing_variable, False)
    variables = [p.unconstrained_variable for p in (*parameters, model.V)]
    hyper = variables[:-1]

    @tf.function
    def function(values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            # GPflow's density is that of the constrained parameters; the Jacobian undoes this.
            density = model.log_posterior_density()
            density += tf.add_n([tf.reduce_sum(h) for h in hyper])
        return density, tape.gradient(density, variables)

    def evaluate(theta):
        values = [theta[:D], np.float64(2 * theta[D])]
        if lik == "gaussian":
            values.append(np.float64(2 * theta[D + 1]))
        values.append(theta[P:].reshape(M, K))
        density, gradients = function([tf.constant(v) for v in values])
        gradient = np.concatenate([np.ravel(g.numpy()) for g in gradients])
        gradient[D:P] *= 2
        # N(2 log_eta; 0, 2) is half of N(log_eta; 0, 1), and likewise for log_sigma.
        return float(density.numpy()) + (P - D) * np.log(2.0), gradient

    return evaluate


# ------------------------------------------------------------------------------------- numpy floor


def build_numpy(case, clock, block=1000):
    """Hand-derived adjoint in numpy and BLAS, one pass over blocks of the data: the floor."""
    import scipy

    from scipy.linalg import cholesky, solve_triangular
    from scipy.linalg.blas import dtrsm
    from scipy.special import gammaln, log_ndtr, ndtr

    clock.done_importing(scipy)
    X, y, Z, N, M, D, K, P, lik = (case[k] for k in ("X", "y", "Z", "N", "M", "D", "K", "P", "lik"))
    nodes, weights = cases.gauss_hermite()
    constant = -gammaln(y + 1).sum() if lik == "poisson" else 0.0

    def site(mu, gamma, y, theta):
        """Sum of the expectations; gradient in mu, in gamma, and in log_sigma."""
        if lik == "poisson":
            rate = np.exp(mu[:, 0] + 0.5 * gamma)
            return (y * mu[:, 0] - rate).sum(), (y - rate)[:, None], -0.5 * rate, 0.0
        if lik == "gaussian":
            s2 = np.exp(2 * theta[D + 1])
            r = y - mu[:, 0]
            q = r * r + gamma
            value = -0.5 * np.log(2 * np.pi * s2) * len(y) - 0.5 * q.sum() / s2
            return value, (r / s2)[:, None], np.full(len(y), -0.5 / s2), q.sum() / s2 - len(y)
        if lik == "probit":
            sign, sd = (2 * y - 1)[:, None], np.sqrt(gamma)
            t = sign * (mu + sd[:, None] * nodes)
            log_p = log_ndtr(t)
            d = np.exp(-0.5 * t * t - log_p) * (sign / np.sqrt(2 * np.pi))
            dgamma = (d @ (weights * nodes)) / (2 * sd)
            return (log_p @ weights).sum(), (d @ weights)[:, None], dgamma, 0.0
        gamma = np.maximum(gamma, 1e-10)
        sd, row = np.sqrt(gamma), np.arange(len(y))
        own = mu[row, y]
        t = (own[:, None] + sd[:, None] * nodes)[:, None, :] - mu[:, :, None]
        t /= sd[:, None, None]
        p = np.maximum(ndtr(t), 1e-300)
        p[row, y, :] = 1.0
        prod = p.prod(1)
        right = prod @ weights
        good, bad = np.log(1 - cases.EPSILON), np.log(cases.EPSILON / (K - 1))
        d = np.exp(-0.5 * t * t) / (np.sqrt(2 * np.pi) * p)
        d *= (prod * weights * (good - bad))[:, None, :]
        d[row, y, :] = 0
        dk = d.sum(2) / sd[:, None]
        dmu = -dk
        dmu[row, y] += dk.sum(1)
        dsd = -(dk * (own[:, None] - mu)).sum(1) / sd
        return (right * good + (1 - right) * bad).sum(), dmu, dsd / (2 * sd), 0.0

    def evaluate(theta):
        ls, eta2, v = np.exp(theta[:D]), np.exp(2 * theta[D]), theta[P:].reshape(M, K)
        Zs = Z / ls
        zz = (Zs * Zs).sum(1)
        r = np.maximum(zz[:, None] + zz - 2 * Zs @ Zs.T, 0)
        Kuu = eta2 * np.exp(-0.5 * r)
        Kuu[np.diag_indices(M)] = eta2 * (1 + cases.JITTER)
        R = np.asfortranarray(cholesky(Kuu, lower=True))
        AgA, dv, dls = np.zeros((M, M)), np.zeros((M, K)), np.zeros(D)
        deta = dsigma = 0.0
        value = constant
        for start in range(0, N, block):
            rows = slice(start, start + block)
            Xs = X[rows] / ls
            Kuf = Zs @ (-2 * Xs.T)
            Kuf += zz[:, None]
            Kuf += (Xs * Xs).sum(1)
            np.maximum(Kuf, 0, out=Kuf)
            Kuf *= -0.5
            np.exp(Kuf, out=Kuf)
            Kuf *= eta2
            # From the right on a row-major block: 1.7 times as fast as from the left.
            A = dtrsm(1.0, R, Kuf.T, side=1, lower=1, trans_a=1).T
            mu, gamma = A.T @ v, eta2 - np.einsum("mn,mn->n", A, A)
            ell, dmu, dgamma, ds = site(mu, gamma, y[rows], theta)
            value += ell
            dsigma += ds
            dv += A @ dmu
            W = A * dgamma
            AgA += W @ A.T
            W *= -2
            W += v @ dmu.T
            W = dtrsm(1.0, R, W.T, side=1, lower=1, overwrite_b=1).T
            W *= Kuf
            column, row = W.sum(0), W.sum(1)
            dls += column @ (Xs * Xs) - 2 * ((W @ Xs) * Zs).sum(0) + row @ (Zs * Zs)
            deta += 2 * column.sum() + 2 * eta2 * dgamma.sum()
        dR = -np.tril(solve_triangular(R, v @ dv.T - 2 * AgA, trans=1, lower=True))
        Phi = np.tril(R.T @ dR)
        Phi[np.diag_indices(M)] *= 0.5
        Q = solve_triangular(R, Phi, trans=1, lower=True)
        Q = solve_triangular(R, Q.T, trans=1, lower=True)
        W = 0.5 * (Q + Q.T) * Kuu  # the diagonal, jitter and all, is proportional to eta2
        dls += 2 * W.sum(1) @ (Zs * Zs) - 2 * ((W @ Zs) * Zs).sum(0)
        deta += 2 * W.sum()
        gradient = np.empty_like(theta)
        gradient[:D], gradient[D] = dls, deta
        if lik == "gaussian":
            gradient[D + 1] = dsigma
        gradient[P:] = dv.ravel()
        gradient -= theta
        value -= 0.5 * theta @ theta + 0.5 * np.log(2 * np.pi) * theta.size
        return value, gradient

    return evaluate


BUILDERS = {
    "vsgp_numba": lambda case, clock: build_vsgp(case, clock, "NUMBA"),
    "vsgp_jax": lambda case, clock: build_vsgp(case, clock, "JAX"),
    "vsgp_c": lambda case, clock: build_vsgp(case, clock, "CVM"),
    "pymc_numba": lambda case, clock: build_pymc(case, clock, "NUMBA"),
    "pymc_jax": lambda case, clock: build_pymc(case, clock, "JAX"),
    "numpyro": build_numpyro,
    "gpflow": build_gpflow,
    "numpy": build_numpy,
}


def limit_memory():
    """Fail with MemoryError, rather than push the machine out of memory."""
    limit = int(os.environ.get("BENCH_MEMORY_LIMIT", "0"))
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def say(**what):
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def main(baseline, name, tiny):
    """Build, evaluate once, then serve."""
    limit_memory()
    case, clock = cases.make(name, tiny), Clock()
    theta = case["theta"]
    try:
        evaluate = BUILDERS[baseline](case, clock)
        built = time.perf_counter() - START
        value, gradient = evaluate(theta)
    except Unavailable as reason:
        say(baseline=baseline, case=name, skipped=str(reason))
        return
    except MemoryError:
        say(baseline=baseline, case=name, skipped="not enough memory")
        return
    first = time.perf_counter() - START
    say(
        baseline=baseline,
        case=name,
        import_s=clock.imported,
        build_s=built - clock.imported,
        first_s=first - built,
        to_first_gradient_s=first,
        value=float(value),
        gradient=np.asarray(gradient, float).tolist(),
        peak_mb=memory("VmHWM") - clock.memory,
        versions=clock.versions,
    )
    evaluate(theta)
    resettable = reset_peak()
    count = 0
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        wall, cpu = [], []
        for _ in range(int(words[1])):
            count += 1
            point = theta + 1e-4 * np.sin(count + np.arange(theta.size))
            w, c = time.perf_counter(), time.process_time()
            evaluate(point)
            wall.append(time.perf_counter() - w)
            cpu.append(time.process_time() - c)
        peak = memory("VmHWM") - clock.memory
        say(wall=wall, cpu=cpu, **({"evaluation_mb": peak} if resettable else {"peak_mb": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--tiny" in sys.argv[3:])
