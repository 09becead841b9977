"""A small model of each family, its density in numpy, and what compiled graphs hold."""

import numpy as np
import pymc as pm
import reference

import pymc_vsgp as vsgp

N, M, D = 25, 7, 3


def linear_mean(X):
    return 0.3 + X @ np.array([0.2, -0.1, 0.05])


def pm_linear_mean():
    return pm.gp.mean.Linear(coeffs=np.array([0.2, -0.1, 0.05]), intercept=0.3)


def ard_process():
    lengthscales = pm.Gamma("lengthscales", 3, 2, shape=D)
    variance = pm.Gamma("variance", 2, 1)
    cov = variance * pm.gp.cov.ExpQuad(D, ls=lengthscales)
    return pm.gp.VariationalSparse(mean_func=pm_linear_mean(), cov_func=cov)


EXPOSURE = np.linspace(0.5, 2.0, N)
CENSORED = np.arange(N) % 3 == 0
COUNTS = np.arange(N) % 5
BINARY = np.arange(N) % 2
REAL = np.linspace(-2, 2, N)
TIMES = np.linspace(0.1, 3, N)
SHARES = np.linspace(0.05, 0.95, N)

# name: (likelihood given the random parameter, observations, reference log density, quad hints)
FAMILIES = {
    "gaussian": (
        lambda s: vsgp.Gaussian(sigma=s),
        REAL,
        lambda f, y, n, s: reference.gaussian(f, y, s),
    ),
    "student_t": (
        lambda s: vsgp.StudentT(nu=4.0, sigma=s),
        REAL,
        lambda f, y, n, s: reference.student_t(f, y, 4.0, s),
    ),
    "bernoulli_probit": (
        lambda s: vsgp.Bernoulli(link="probit"),
        BINARY,
        lambda f, y, n, s: reference.bernoulli(f, y, "probit"),
    ),
    "bernoulli_logit": (
        lambda s: vsgp.Bernoulli(link="logit"),
        BINARY,
        lambda f, y, n, s: reference.bernoulli(f, y, "logit"),
    ),
    "bernoulli_cloglog": (
        lambda s: vsgp.Bernoulli(link="cloglog"),
        BINARY,
        lambda f, y, n, s: reference.bernoulli(f, y, "cloglog"),
    ),
    "binomial": (
        lambda s: vsgp.Binomial(n=6),
        COUNTS,
        lambda f, y, n, s: reference.binomial(f, y, 6, "logit"),
    ),
    "poisson": (
        lambda s: vsgp.Poisson(exposure=EXPOSURE),
        COUNTS,
        lambda f, y, n, s: reference.poisson(f, y, EXPOSURE[n], "log"),
    ),
    "poisson_square": (
        lambda s: vsgp.Poisson(exposure=EXPOSURE, link="square"),
        COUNTS,
        lambda f, y, n, s: reference.poisson(f, y, EXPOSURE[n], "square"),
    ),
    "poisson_softplus": (
        lambda s: vsgp.Poisson(exposure=EXPOSURE, link="softplus"),
        COUNTS,
        lambda f, y, n, s: reference.poisson(f, y, EXPOSURE[n], "softplus"),
    ),
    "negative_binomial": (
        lambda s: vsgp.NegativeBinomial(alpha=s, exposure=EXPOSURE),
        COUNTS,
        lambda f, y, n, s: reference.negative_binomial(f, y, s, EXPOSURE[n]),
    ),
    "zero_inflated_poisson": (
        lambda s: vsgp.ZeroInflatedPoisson(psi=s / (1 + s), exposure=EXPOSURE),
        COUNTS,
        lambda f, y, n, s: reference.zero_inflated_poisson(f, y, s / (1 + s), EXPOSURE[n]),
    ),
    "zero_inflated_negative_binomial": (
        lambda s: vsgp.ZeroInflatedNegativeBinomial(s / (1 + s), 2 * s, exposure=EXPOSURE),
        COUNTS,
        lambda f, y, n, s: reference.zero_inflated_negative_binomial(
            f, y, s / (1 + s), 2 * s, EXPOSURE[n]
        ),
    ),
    "exponential": (
        lambda s: vsgp.Exponential(),
        TIMES,
        lambda f, y, n, s: reference.exponential(f, y),
    ),
    "gamma": (
        lambda s: vsgp.Gamma(alpha=s),
        TIMES,
        lambda f, y, n, s: reference.gamma(f, y, s),
    ),
    "log_normal": (
        lambda s: vsgp.LogNormal(sigma=s),
        TIMES,
        lambda f, y, n, s: reference.log_normal(f, y, s),
    ),
    "beta": (
        lambda s: vsgp.Beta(nu=10 * s),
        SHARES,
        lambda f, y, n, s: reference.beta(f, y, 10 * s),
    ),
    "weibull": (
        lambda s: vsgp.Weibull(alpha=s, censored=CENSORED),
        TIMES,
        lambda f, y, n, s: reference.weibull(f, y, s, float(CENSORED[n])),
    ),
    "any_distribution": (
        lambda s: lambda f: pm.NegativeBinomial.dist(mu=pm.math.exp(f), alpha=s),
        COUNTS,
        lambda f, y, n, s: reference.negative_binomial(f, y, s, 1.0),
    ),
}


def family_model(family, inputs, **kwargs):
    return families_model({"y": family}, inputs, **kwargs)


def families_model(families, inputs, **kwargs):
    """Observations of each of these families, of one function; a parameter for each."""
    X, Xu = inputs
    with pm.Model() as model:
        gp = ard_process()
        gp.prior("u", Xu=Xu)
        for name, family in families.items():
            make, y, _ = FAMILIES[family]
            s = pm.LogNormal("s" if name == "y" else f"s_{name}", 0, 0.5)
            gp.likelihood(name, make(s), X=X, y=y, **kwargs)
    return model


def random_point(rng):
    return {
        "lengthscales": rng.uniform(0.7, 2.0, D),
        "variance": rng.uniform(0.5, 2.0),
        "s": rng.uniform(0.6, 1.5),
        "v": rng.normal(size=M),
    }


def unconstrained(point):
    return {
        "s_log__": np.log(point["s"]),
        "lengthscales_log__": np.log(point["lengthscales"]),
        "variance_log__": np.log(point["variance"]),
        "u_whitened__": point["v"],
    }


def core_ops(fgraph):
    return [getattr(node.op, "core_op", node.op) for node in fgraph.apply_nodes]
