"""Simulation-based calibration of each likelihood of the gallery, and each kind of process.

Usage: ``python calibration.py [--cases A B ...] [--replicates 200] [--again]``. Runs in the
environment that it is started in. Each case draws parameters and data from its prior, samples the
posterior as ``vsgp.sample(method="auto")`` does, and takes ranks: see ``vsgp.calibrate``. What is
in `results/calibration.json` already is kept, so that the table can be made in parts.

The inducing inputs are dense for the lengthscales that the priors allow, so that the sparse
posterior is the exact one of what the data are drawn from. Without that no ranks are uniform.
"""

import argparse
import json
import pathlib
import time

import envs
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_vsgp as vsgp

from pymc_vsgp.results.calibration import Calibration

RESULTS = pathlib.Path(__file__).parent / "results"
SEED = 20151207
N, M = 40, 10
X = np.linspace(0.0, 10.0, N)[:, None]
EDGE = 2.0  # where times are cut off
LIMIT = -0.5  # below which nothing is measured
ORDERED = pm.distributions.transforms.ordered


def process(name="u", m=M, n_outputs=1, kernel=pm.gp.cov.ExpQuad, **kwargs):
    """Return a process of unknown lengthscale and variance."""
    ls = pm.LogNormal(f"lengthscale_{name}", 1.0, 0.25)
    variance = pm.LogNormal(f"variance_{name}", -0.5, 0.5)
    cov = variance * kernel(1, ls=ls)
    gp = vsgp.VariationalSparse(cov_func=cov)
    if "inducing" not in kwargs:
        kwargs["Xu"] = vsgp.inducing.grid(X, m)
    gp.prior(name, n_outputs=n_outputs, **kwargs)
    return gp


def one(y, likelihood, **kwargs):
    """Observe one process, or several outputs of it."""
    process(**kwargs).likelihood("y", likelihood, X=X, y=y)


def two(y, likelihood):
    """Observe two processes."""
    vsgp.likelihood("y", likelihood, [process("u"), process("w", 8)], X=X, y=y)


def scale():
    """Return a noise of about 0.4."""
    return pm.LogNormal("sigma", -1.0, 0.4)


def ordinal(y):
    """Observe ordered classes."""
    cuts = pm.Normal("cuts", [-0.7, 0.7], 0.5, transform=ORDERED, initval=[-0.7, 0.7])
    one(y, vsgp.Ordinal(cuts))


def censored(y):
    """Observe times, and of those after `EDGE` that they come after it."""
    lik = vsgp.Weibull(pm.LogNormal("alpha", 0.4, 0.3), censored=pt.ge(y, EDGE))
    one(pt.minimum(y, EDGE), lik)


def limited(y):
    """Observe measurements, of which the lower ones are known to be below `LIMIT`."""
    sigma = scale()
    one(pt.maximum(y, LIMIT), lambda f: pm.Censored.dist(pm.Normal.dist(f, sigma), LIMIT, None))


def censored_log_normal(y):
    """Observe log-normal times, and of those after an `EDGE` of each row that they come after."""
    sigma, end = scale(), EDGE * HOURS / 2.0
    one(pt.minimum(y, end), lambda f: pm.Censored.dist(pm.LogNormal.dist(f, sigma), None, end))


def hurdle(y):
    """Observe counts whose zeros have a probability of their own."""
    psi = pm.Beta("psi", 4.0, 2.0)
    one(y, lambda f: pm.HurdlePoisson.dist(psi, 2.0 * pm.math.exp(f)))


def truncated(y):
    """Observe the positive ones of normal measurements."""
    sigma = scale()
    one(y, lambda f: pm.TruncatedNormal.dist(f, sigma, lower=0.0))


def outliers(y):
    """Observe measurements, a tenth of which are far off."""
    sigma = scale()
    one(y, lambda f: pm.Mixture.dist([0.9, 0.1], [pm.Normal.dist(f, s * sigma) for s in (1, 5)]))


def sites_and_times(y):
    """Observe every site at every time, by a product of two kernels."""
    ls = pm.LogNormal("lengthscale", [1.0, 0.5], 0.25)
    space = pm.gp.cov.Matern52(2, ls=ls[0], active_dims=[0])
    time_ = pm.gp.cov.Matern32(2, ls=ls[1], active_dims=[1])
    gp = vsgp.VariationalSparse(cov_func=pm.LogNormal("variance", -0.5, 0.5) * space * time_)
    gp.prior("u", inducing=vsgp.inducing.Kronecker(SITES, WEEKS))
    gp.likelihood("y", vsgp.Poisson(exposure=HOURS), X=PAIRS, y=y)


class BinAverages(vsgp.inducing.Dense):
    """Averages over bins of the only input, by a rule of a few nodes in each."""

    n_columns = 1

    def __init__(self, edges):
        x, w = np.polynomial.legendre.leggauss(5)
        low, high = edges[:-1, None], edges[1:, None]
        self.nodes = (low + (high - low) * (x + 1.0) / 2.0).reshape(-1, 1)
        self.weights = np.kron(np.eye(len(edges) - 1), w / 2.0)

    @property
    def n_inducing(self):
        return len(self.weights)

    def covariance(self, cov_func):
        return pt.dot(pt.dot(self.weights, cov_func(pt.constant(self.nodes))), self.weights.T)

    def cross(self, cov_func, X):
        return pt.dot(self.weights, cov_func(pt.constant(self.nodes), X))

    def mean(self, mean_at):
        return pt.dot(self.weights, mean_at(pt.constant(self.nodes)))


def trend(y):
    """Observe a process about a line."""
    slope, level = pm.Normal("slope", 0.1, 0.05), pm.Normal("level", 0.0, 0.5)
    mean = pm.gp.mean.Linear(coeffs=pt.stack([slope]), intercept=level)
    cov = pm.LogNormal("variance", -0.5, 0.5) * pm.gp.cov.ExpQuad(1, ls=2.5)
    gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
    gp.prior("u", Xu=vsgp.inducing.grid(X, M))
    gp.likelihood("y", vsgp.Poisson(exposure=HOURS), X=X, y=y)


def regression(y, **kwargs):
    """Observe a process in a regression: an intercept, and a covariate as smooth as it is."""
    b = pm.Normal("b", 0.0, 0.5, shape=3)
    exposure = HOURS * pm.math.exp(pt.dot(COVARIATES, b))
    one(y, vsgp.Poisson(exposure=exposure), kernel=pm.gp.cov.Matern32, **kwargs)


def effects(y):
    """Observe a process with the effects of eight groups, whose scale is unknown."""
    effect = pm.Normal("effect", shape=8) * pm.HalfNormal("spread", 0.5)
    one(y, vsgp.Poisson(exposure=HOURS * pm.math.exp(effect[np.arange(N) % 8])))


def covariate(y):
    """Observe many Fourier coefficients, with a covariate in the mean function."""
    b = pm.Normal("b", 0.0, 0.5, shape=2)
    mean = pm.gp.mean.Linear(coeffs=pt.stack([0.0, b[1]]), intercept=b[0])
    ls = pm.LogNormal("lengthscale_u", 1.0, 0.25)
    cov = pm.LogNormal("variance_u", -0.5, 0.5) * pm.gp.cov.Matern52(2, ls=ls, active_dims=[0])
    gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
    features = vsgp.inducing.Fourier(period=26.0, n_frequencies=80, covariates=(0.0,))
    gp.prior("u", inducing=features)
    data = np.column_stack([X, COVARIATES[:, 1]])
    gp.likelihood("y", vsgp.Poisson(exposure=HOURS), X=data, y=y)


def by_group(y):
    """Observe a function for each of two groups, of one kernel."""
    pm.modelcontext(None).add_coord("group", ["a", "b"])
    groups = np.column_stack([X[:, 0], np.arange(N) % 2])
    process(by="group").likelihood("y", vsgp.Poisson(exposure=HOURS), X=groups, y=y)


def summed(y, inducing=None):
    """Observe the sum of two functions, each with inducing variables of its own."""
    slow = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=6.0))
    ls, variance = pm.LogNormal("lengthscale", 0.3, 0.25), pm.LogNormal("variance", -0.5, 0.5)
    fast = vsgp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(1, ls=ls))
    slow.prior("slow", None if inducing else vsgp.inducing.grid(X, 6), inducing=inducing)
    fast.prior("fast", Xu=vsgp.inducing.grid(X, 20))
    both = vsgp.Coregionalized([1.0, 1.0], [slow, fast])
    both.likelihood("y", vsgp.Poisson(exposure=HOURS), X=X, y=y)


def coregionalized(y):
    """Observe three outputs of two functions, whose weights are unknown."""
    W = pm.Normal("W", [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], 0.2)
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=2.5))
    gp.prior("u", Xu=vsgp.inducing.grid(X, M), n_outputs=2)
    vsgp.Coregionalized(W, gp).likelihood("y", vsgp.Gaussian(scale()), X=X, y=y)


SITES, WEEKS = np.linspace(0.0, 10.0, 8)[:, None], np.linspace(0.0, 4.0, 5)[:, None]
PAIRS = np.column_stack([np.repeat(SITES, 5, axis=0), np.tile(WEEKS, (8, 1))])
BINS = np.linspace(-0.25, 10.25, 16)
TRIALS = np.arange(N) % 10 + 5
HOURS = 1.0 + np.arange(N) % 3
COVARIATES = np.column_stack([np.ones(N), np.cos(0.5 * X[:, 0]), np.arange(N) % 5 - 2.0])
COUNTS, SHARES, TIMES = np.arange(N) % 3, np.linspace(0.1, 0.9, N), np.linspace(0.2, 3.0, N)
BINARY, CLASSES, REALS = np.arange(N) % 2, np.arange(N) % 3, np.linspace(-1.0, 1.0, N)

# Those that are used most come first.
CASES = {
    "Gaussian": (REALS, lambda y: one(y, vsgp.Gaussian(scale()))),
    "Poisson": (COUNTS, lambda y: one(y, vsgp.Poisson(exposure=HOURS))),
    "Bernoulli": (BINARY, lambda y: one(y, vsgp.Bernoulli())),
    "Bernoulli, probit": (BINARY, lambda y: one(y, vsgp.Bernoulli(link="probit"))),
    "StudentT": (REALS, lambda y: one(y, vsgp.StudentT(4.0, scale()))),
    "NegativeBinomial": (
        COUNTS,
        lambda y: one(y, vsgp.NegativeBinomial(pm.Gamma("alpha", 4.0, 2.0), exposure=HOURS)),
    ),
    "Binomial": (COUNTS, lambda y: one(y, vsgp.Binomial(TRIALS))),
    "HeteroskedasticGaussian": (REALS, lambda y: two(y, vsgp.HeteroskedasticGaussian())),
    "Softmax": (CLASSES, lambda y: one(y, vsgp.Softmax(3), n_outputs=3)),
    "Ordinal": (CLASSES, ordinal),
    "Gamma": (TIMES, lambda y: one(y, vsgp.Gamma(pm.Gamma("alpha", 4.0, 1.5)))),
    "Weibull, censored": (TIMES, censored),
    "LogNormal": (TIMES, lambda y: one(y, vsgp.LogNormal(scale()))),
    "Exponential": (TIMES, lambda y: one(y, vsgp.Exponential())),
    "Beta": (SHARES, lambda y: one(y, vsgp.Beta(pm.Gamma("phi", 4.0, 0.3)))),
    "ZeroInflatedPoisson": (
        COUNTS,
        lambda y: one(y, vsgp.ZeroInflatedPoisson(pm.Beta("psi", 4.0, 2.0), exposure=2.0 * HOURS)),
    ),
    "ZeroInflatedNegativeBinomial": (
        COUNTS,
        lambda y: one(
            y,
            vsgp.ZeroInflatedNegativeBinomial(
                pm.Beta("psi", 4.0, 2.0), pm.Gamma("alpha", 4.0, 2.0), exposure=4.0 * HOURS
            ),
        ),
    ),
    "HeteroskedasticStudentT": (REALS, lambda y: two(y, vsgp.HeteroskedasticStudentT(4.0))),
    "HeteroskedasticNegativeBinomial": (
        COUNTS,
        lambda y: two(y, vsgp.HeteroskedasticNegativeBinomial(exposure=3.0)),
    ),
    "HeteroskedasticBetaBinomial": (
        COUNTS,
        lambda y: two(y, vsgp.HeteroskedasticBetaBinomial(TRIALS)),
    ),
    "HeteroskedasticZeroInflatedPoisson": (
        COUNTS,
        lambda y: two(y, vsgp.HeteroskedasticZeroInflatedPoisson(exposure=3.0)),
    ),
    # Events at the nodes of the rule: a draw has them there.
    "PoissonProcess": (COUNTS, lambda y: one(y, vsgp.PoissonProcess(np.full(N, 10.0 / N) * 4.0))),
    "Gumbel": (REALS, lambda y: one(y, vsgp.Gumbel(scale()))),
    "Custom, Laplace": (REALS, lambda y: one(y, lambda f: pm.Laplace.dist(mu=f, b=0.4))),
    "Custom, detection limit": (REALS, limited),
    "Custom, censored LogNormal": (TIMES, censored_log_normal),
    "Custom, hurdle": (COUNTS, hurdle),
    "Custom, truncated": (TIMES, truncated),
    "Custom, outliers": (REALS, outliers),
    "Poisson, Fourier features": (
        COUNTS,
        lambda y: one(
            y,
            vsgp.Poisson(exposure=HOURS),
            inducing=vsgp.inducing.Fourier(period=26.0, n_frequencies=12),
        ),
    ),
    "Poisson, nearest neighbors": (
        COUNTS,
        lambda y: one(
            y,
            vsgp.Poisson(exposure=HOURS),
            kernel=pm.gp.cov.Matern32,
            inducing=vsgp.inducing.NearestNeighbors(X, m=10),
        ),
    ),
    "Poisson, Kronecker": (COUNTS, sites_and_times),
    "Poisson, averages over bins": (
        COUNTS,
        lambda y: one(y, vsgp.Poisson(exposure=HOURS), inducing=BinAverages(BINS)),
    ),
    "Poisson, linear mean": (COUNTS, trend),
    "Poisson, regression": (COUNTS, lambda y: regression(y, m=20)),
    "Poisson, regression and nearest neighbors": (
        COUNTS,
        lambda y: regression(y, inducing=vsgp.inducing.NearestNeighbors(X, m=10)),
    ),
    "Poisson, group effects": (COUNTS, effects),
    "Poisson, covariate and many Fourier features": (COUNTS, covariate),
    "Poisson, a function by group": (COUNTS, by_group),
    "Poisson, sum of two functions": (COUNTS, summed),
    "Poisson, sum of features and points": (
        COUNTS,
        lambda y: summed(y, vsgp.inducing.Fourier(40.0, 10, center=5.0)),
    ),
    "Gaussian, coregionalized": (np.stack([REALS, -REALS, REALS**2], axis=1), coregionalized),
}
# Why some have no row.
LEFT_OUT = """\
`RobustMax`, and `Categorical` with its link, have no row. Where inducing inputs are so dense that u
tells f, their density is piecewise constant, and NUTS draws nothing. With fewer of them, or with
white noise, the ELBO's posterior is not that of the data that are drawn."""


def build(name):
    """Return what `vsgp.calibrate` takes."""

    def make(y):
        with pm.Model() as model:
            CASES[name][1](y)
        return model

    return make


def run(name, n):
    """Calibrate a case."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = vsgp.calibrate(
        build(name), CASES[name][0], n, draws=100, tune=250, random_seed=SEED, progressbar=False
    )
    return {
        "commit": envs.commit(),
        "n_ranks": found.n_ranks,
        "nuts": found.n_nuts,
        "cpu": time.process_time() - cpu,
        "seconds": time.perf_counter() - wall,
        "ranks": {k: r.tolist() for k, r in found.ranks.items()},
    }


def power(n, n_ranks, level):
    """How often ranks of a posterior that is off in a known way are rejected, by simulation."""
    rng = np.random.default_rng(SEED)
    out = {}
    for what, shift, width in (
        ("right", 0.0, 1.0),
        ("mean off by 0.2 sd", 0.2, 1.0),
        ("mean off by 0.3 sd", 0.3, 1.0),
        ("sd 20 % too small", 0.0, 0.8),
        ("sd 30 % too small", 0.0, 0.7),
        ("sd 40 % too large", 0.0, 1.4),
    ):
        truth = rng.normal(size=(400, n, 1))
        draws = shift + width * rng.normal(size=(400, n, n_ranks))
        ranks = (draws < truth).sum(axis=2)
        p = [Calibration({"a": r}, n_ranks).p_values["a"] for r in ranks]
        out[what] = float(np.mean(np.array(p) <= level))
    return out


def table(results):
    """Write the table."""
    known = {n: results[n] for n in CASES if n in results}
    lines = [
        "| model | replicates | by NUTS | CPU seconds | numbers | smallest p | of | uniform "
        "| commit |",
        "|---" * 9 + "|",
    ]
    smallest, n_numbers = 1.0, 0
    for name, found in known.items():
        ranks = {k: np.asarray(r) for k, r in found["ranks"].items()}
        result = Calibration(ranks, found["n_ranks"])
        worst = min(result.p_values, key=result.p_values.__getitem__)
        smallest = min(smallest, result.p_values[worst])
        n_numbers += len(ranks)
        row = [name, len(ranks[worst]), found["nuts"], f"{found['cpu']:.0f}", len(ranks)]
        row += [f"{result.p_values[worst]:.2g}", worst, "yes" if result.calibrated else "NO"]
        row += [found["commit"]]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    each = next(iter(known.values()))
    n = len(next(iter(each["ranks"].values())))
    lines += [
        "",
        f"The test: how far the distribution function of the {n} ranks (0 to {each['n_ranks']}) "
        "strays from that of uniform ones at any rank (Säilynoja et al., 2022), at 1 % for all "
        f"numbers of a model together. Of all {n_numbers} numbers the smallest p is "
        f"{smallest:.2g}; at 5 % for all of them together, those below {0.05 / n_numbers:.2g} "
        "are off.",
        "",
        "Its power, for one of six numbers of a posterior that is off in a known way:",
        "",
        "| the posterior's | rejected |",
        "|---|---|",
    ]
    lines += [f"| {k} | {v:.0%} |" for k, v in power(n, each["n_ranks"], 0.01 / 6).items()]
    if missing := [name for name in CASES if name not in known]:
        lines += ["", f"Not run: {'; '.join(missing)}."]
    lines += ["", LEFT_OUT]
    return "\n".join(lines) + "\n"


def commits(results):
    """Return the commits of the package that results are of."""
    return {found["commit"] for found in results.values()}


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--output", default="calibration")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    arguments = parser.parse_args()
    path = RESULTS / f"{arguments.output}.json"
    for name in arguments.cases:
        results = json.loads(path.read_text()) if path.exists() else {}
        if name in results and not arguments.again:
            continue
        found = run(name, arguments.replicates)
        # Other parts of the table may have been written meanwhile.
        results = json.loads(path.read_text()) if path.exists() else {}
        results[name] = found
        envs.save(path, json.dumps(results) + "\n", kept=commits(results))
        print(name, {k: v for k, v in found.items() if k != "ranks"}, flush=True)
    results = json.loads(path.read_text())
    envs.save(path.with_suffix(".md"), table(results), kept=commits(results))
    print(table(results))


if __name__ == "__main__":
    main()
