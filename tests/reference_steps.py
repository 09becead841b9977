"""Small posteriors by quadrature, in plain numpy, and the same models for step methods.

Over the parameters on a grid, and over whitened values by Gauss-Hermite quadrature in every
dimension: nothing is sampled, and nothing comes from the library.
"""

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm

from scipy import special, stats

import pymc_vsgp as vsgp

X = np.array([[0.0], [0.7], [2.0]])
LABELS = np.array([1, 0, 1])
JITTER = 1e-6

XU = np.array([[0.3], [1.5], [2.8]])
X_COUNTS = np.linspace(0.0, 3.0, 9)[:, None]
COUNTS = np.array([2, 1, 0, 3, 1, 2, 4, 1, 0])

# Normal priors of the logarithms of lengthscale and deviation: mean, sd.
PRIORS = (0.0, 0.4), (0.0, 0.4)


def parameters(fixed):
    ls = 1.0 if fixed else pm.LogNormal("ls", *PRIORS[0])
    sd = 1.0 if fixed else pm.LogNormal("sd", *PRIORS[1])
    return sd**2 * pm.gp.cov.ExpQuad(1, ls=ls)


def latent(reparameterize=False, likelihood="probit", fixed=False):
    """Values of a pm.gp.Latent, and labels."""
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=parameters(fixed))
        f = gp.prior("f", X, reparameterize=reparameterize, jitter=JITTER)
        if likelihood == "probit":
            pm.Bernoulli("y", p=0.5 * pm.math.erfc(-f / np.sqrt(2.0)), observed=LABELS)
        else:
            pm.Bernoulli("y", logit_p=f, observed=LABELS)
    return model


def sparse(fixed=False):
    """Inducing values, and counts."""
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=parameters(fixed))
        gp.prior("u", Xu=XU, jitter=JITTER)
        gp.likelihood("y", vsgp.Poisson(), X=X_COUNTS, y=COUNTS)
    return model


def kernel(A, B, ls, sd):
    return sd**2 * np.exp(-0.5 * (A - B.T) ** 2 / ls**2)


def terms_of_latent(link):
    """Return log p(y | v, theta) and f as functions of theta."""
    log_p = special.log_ndtr if link == "probit" else special.log_expit
    signs = 2.0 * LABELS - 1.0

    def at(ls, sd, v):
        R = np.linalg.cholesky(kernel(X, X, ls, sd) + JITTER * np.eye(len(X)))
        f = v @ R.T
        return log_p(signs * f).sum(axis=1), f

    return at


def terms_of_sparse(ls, sd, v):
    """Return the variational potential and u."""
    jitter = JITTER * sd**2 * np.eye(len(XU))
    R = np.linalg.cholesky(kernel(XU, XU, ls, sd) + jitter)
    A = np.linalg.solve(R, kernel(XU, X_COUNTS, ls, sd))
    mu, gamma = v @ A, sd**2 - (A**2).sum(axis=0)
    potential = COUNTS * mu - np.exp(mu + gamma / 2) - special.gammaln(COUNTS + 1)
    return potential.sum(axis=1), v @ R.T


def nodes(dims=3, n=24):
    t, w = np.polynomial.hermite_e.hermegauss(n)
    grid = np.stack([g.ravel() for g in np.meshgrid(*[t] * dims)], axis=1)
    weights = np.prod([g.ravel() for g in np.meshgrid(*[w] * dims)], axis=0)
    return grid, weights / weights.sum()


def evidence(terms, ls, sd, n=24):
    """p(y | theta), and the mean of f or u given theta."""
    v, w = nodes(n=n)
    log_p, f = terms(ls, sd, v)
    p = w * np.exp(log_p - log_p.max())
    return p.sum() * np.exp(log_p.max()), p @ f / p.sum()


def posterior(terms, n=21, nodes=24):
    """Mean of log ls, log sd and of f or u."""
    axes = [np.linspace(m - 4 * s, m + 4 * s, n) for m, s in PRIORS]
    total, sums = 0.0, 0.0
    for a in axes[0]:
        for b in axes[1]:
            prior = stats.norm.pdf(a, *PRIORS[0]) * stats.norm.pdf(b, *PRIORS[1])
            p, f = evidence(terms, np.exp(a), np.exp(b), nodes)
            total += prior * p
            sums = sums + prior * p * np.r_[a, b, f]
    return sums / total


# `posterior` of each, with 31 values of each parameter and 40 nodes.
POSTERIOR = {
    "probit": [-0.04396, -0.0703, 0.23805, -0.0709, 0.42378],
    "logit": [-0.02004, -0.04462, 0.18945, -0.00159, 0.33886],
    "sparse": [0.11973, -0.26117, 0.13925, 0.47962, 0.20373],
}


def check(idata, which, **limits):
    """Assert that draws are of the posterior."""
    found = idata["posterior"]
    u = found["u" if which == "sparse" else "f"]
    columns = [np.log(found["ls"]), np.log(found["sd"]), *(u[..., i] for i in range(3))]
    for column, mean in zip(columns, POSTERIOR[which], strict=True):
        check_mean(np.asarray(column), mean, **limits)


def check_mean(x, mean, largest=0.04, rhat=1.01):
    """Assert that chains agree with each other, and with a mean."""
    assert float(az.rhat(x)) <= rhat
    error = float(az.mcse(x))
    assert abs(x.mean() - mean) < 4.0 * error, (x.mean(), mean, error)
    assert error < largest, (error, x.std(axis=1))


def same_chain(step, model, name="f", tune=5):
    """Compare where a short chain ends: of a step, of its pickled copy, and of it again."""
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    copy.sampling_state = step.sampling_state
    draws = []
    for one in (step, copy, step):
        one.setup_chain(np.random.default_rng(3), tune, 5)
        point = model.initial_point()
        for _ in range(tune + 3):
            point, _ = one.step(point)
        draws.append(point[name])
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])
    assert (draws[0] != model.initial_point()[name]).any()
