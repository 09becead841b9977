"""Where importance weights are accepted, and whether the posterior is then that of NUTS.

Usage: ``python importance.py [--cases A B ...] [--no-nuts]``. Runs in the environment that it is
started in. Each case is sampled by ``vsgp.sample(method="importance")`` and by NUTS; what is in
`results/importance.json` already is kept, so that the table can be made in parts. A case is right
if means differ by less than 4 of their Monte Carlo errors, and deviations by less than 5 % or 4 of
theirs.
"""

import argparse
import json
import pathlib
import time

import arviz as az
import envs
import numpy as np
import pymc as pm
import sampling_cases

import pymc_vsgp as vsgp

RESULTS = pathlib.Path(__file__).parent / "results"
RNG = 20151207
MORE = {"effects": 4000, "effects25": 4000}  # draws where a scale has so long a tail, not 1000


def _inputs(n, low=0.0, high=10.0):
    rng = np.random.default_rng(RNG)
    X = np.sort(rng.uniform(low, high, size=n))[:, None]
    return rng, X, np.sin(X[:, 0]) + 0.5 * np.cos(2.3 * X[:, 0])


def _process(X, m=15, name="u", n_outputs=1, kernel=pm.gp.cov.Matern52, variance=None, **kwargs):
    ls = pm.LogNormal(f"lengthscale_{name}", 0.3, 0.7)
    if variance is None:
        variance = pm.HalfNormal(f"variance_{name}", 2.0)
    gp = pm.gp.VariationalSparse(cov_func=variance * kernel(X.shape[1], ls=ls), **kwargs)
    gp.prior(name, Xu=vsgp.inducing.grid(X, m), n_outputs=n_outputs)
    return gp


def gaussian():
    """Normal noise, the inducing values integrated out."""
    rng, X, f = _inputs(100)
    y = f + 0.3 * rng.normal(size=100)
    _process(X).likelihood("y", vsgp.Gaussian(pm.HalfNormal("sigma")), X=X, y=y)


def bernoulli():
    """Yes or no."""
    rng, X, f = _inputs(120)
    y = rng.random(120) < 1 / (1 + np.exp(-2 * f))
    _process(X).likelihood("y", vsgp.Bernoulli(), X=X, y=y.astype(int))


def poisson():
    """Counts of about 3."""
    rng, X, f = _inputs(120)
    _process(X).likelihood("y", vsgp.Poisson(exposure=3.0), X=X, y=rng.poisson(3 * np.exp(f)))


def student_t():
    """Student-t noise with an unknown scale."""
    rng, X, f = _inputs(120)
    y = f + 0.2 * rng.standard_t(4, size=120)
    _process(X).likelihood("y", vsgp.StudentT(4.0, pm.HalfNormal("sigma")), X=X, y=y)


def negative_binomial():
    """Counts with an unknown dispersion."""
    rng, X, f = _inputs(150)
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + 4.0 * np.exp(f)))
    lik = vsgp.NegativeBinomial(alpha=pm.Gamma("alpha", 2.0, 1.0), exposure=4.0)
    _process(X).likelihood("y", lik, X=X, y=y)


def gamma():
    """Positive values."""
    rng, X, f = _inputs(120)
    lik = vsgp.Gamma(alpha=pm.Gamma("alpha", 2.0, 1.0))
    _process(X).likelihood("y", lik, X=X, y=rng.gamma(3.0, np.exp(f) / 3.0))


def beta():
    """Shares."""
    rng, X, f = _inputs(120)
    p = 1 / (1 + np.exp(-f))
    lik = vsgp.Beta(pm.Gamma("phi", 2.0, 0.1))
    _process(X).likelihood("y", lik, X=X, y=rng.beta(20 * p, 20 * (1 - p)))


def heteroskedastic():
    """Two processes: the mean and the logarithm of the scale."""
    rng, X, f = _inputs(150)
    y = f + np.exp(-1.0 + 0.5 * np.sin(0.5 * X[:, 0])) * rng.normal(size=150)
    both = [_process(X, name="u"), _process(X, 8, "w", variance=1.0)]
    vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), both, X=X, y=y)


def softmax():
    """Three classes, a function for each."""
    rng, X, f = _inputs(150)
    logits = np.stack([1.5 * f, -f, np.zeros(150)], axis=1)
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    gp = _process(X, 12, n_outputs=3)
    gp.likelihood("y", vsgp.Softmax(3), X=X, y=y)


def ordinal():
    """Ordered classes with unknown cut-points."""
    rng, X, f = _inputs(150)
    y = np.digitize(1.5 * f + rng.logistic(size=150), [-1.0, 1.0])
    cut = pm.Normal(
        "cut", 0.0, 2.0, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1, 1]
    )
    _process(X).likelihood("y", vsgp.Ordinal(cut), X=X, y=y)


def fourier():
    """Counts, and Fourier features in place of inducing points."""
    rng, X, f = _inputs(150)
    ls, variance = pm.LogNormal("lengthscale", 0.3, 0.7), pm.HalfNormal("variance", 2.0)
    gp = pm.gp.VariationalSparse(cov_func=variance * pm.gp.cov.Matern52(1, ls=ls))
    gp.prior("u", inducing=vsgp.inducing.Fourier(period=20.0, n_frequencies=20))
    gp.likelihood("y", vsgp.Poisson(exposure=3.0), X=X, y=rng.poisson(3 * np.exp(f)))


def two_lengthscales():
    """Few normal data whose lengthscale may be short or long: two modes."""
    X = np.linspace(0.0, 6.0, 7)[:, None]
    y = np.array([1.0, -0.9, 1.1, -1.0, 0.9, -1.1, 1.0]) * 0.8
    ls = pm.LogNormal("lengthscale", 0.0, 1.5)
    sigma = pm.LogNormal("sigma", -1.0, 1.0)
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
    gp.prior("u", Xu=X)
    gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=y)


def outliers():
    """Student-t noise with two degrees of freedom, and gross outliers."""
    rng, X, f = _inputs(80)
    y = f + 0.1 * rng.standard_t(2, size=80)
    y[::9] += 8.0
    _process(X).likelihood("y", vsgp.StudentT(2.0, pm.HalfCauchy("sigma", 1.0)), X=X, y=y)


def separable():
    """Classes without any overlap, and a variance that nothing bounds but its prior."""
    X = np.linspace(-2.0, 2.0, 60)[:, None]
    variance = pm.HalfCauchy("variance", 5.0)
    gp = _process(X, 12, variance=variance, kernel=pm.gp.cov.ExpQuad)
    gp.likelihood("y", vsgp.Bernoulli(), X=X, y=(X[:, 0] > 0.0).astype(int))


def vague():
    """A scale with hardly a prior, and hardly any data."""
    X = np.linspace(0.0, 1.0, 6)[:, None]
    variance = pm.HalfCauchy("variance", 100.0)
    gp = _process(X, 5, variance=variance, kernel=pm.gp.cov.ExpQuad)
    gp.likelihood("y", vsgp.Poisson(), X=X, y=np.array([0, 1, 0, 0, 2, 0]))


def effects(n=10):
    """Counts of groups, whose effects have an unknown scale and are not centered."""
    rng, X, f = _inputs(200)
    group = np.arange(200) % n
    spread = pm.HalfNormal("spread")
    effect = pm.Normal("effect", shape=n) * spread
    y = rng.poisson(np.exp(f + 0.5 * rng.normal(size=n)[group]))
    _process(X).likelihood("y", vsgp.Poisson(exposure=pm.math.exp(effect[group])), X=X, y=y)


def effects25():
    """The same with more groups, of eight rows each."""
    effects(25)


SMALL = [
    gaussian, bernoulli, poisson, student_t, negative_binomial, gamma, beta, heteroskedastic,
    softmax, ordinal, fourier, two_lengthscales, outliers, separable, vague,
    effects, effects25,
]  # fmt: skip


def _published(name):
    def build():
        case = sampling_cases.CASES[name](False)
        D, ard = case["X"].shape[1], case["ard"]

        def prior(name, spec, shape=None):
            family, a, b = spec
            make = pm.Gamma if family == "gamma" else pm.LogNormal
            return make(name, a, b, shape=shape)

        ls = prior("lengthscale", case["prior_ls"], D if ard else None)
        variance = prior("variance", case["prior_variance"])
        gp = pm.gp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(D, ls=ls))
        gp.prior("u", Xu=case["Z"])
        exposure = case["exposure"]
        if case["lik"] == "poisson":
            lik = vsgp.Poisson(exposure=exposure)
        elif case["lik"] == "probit":
            lik = vsgp.Bernoulli(link="probit")
        else:
            lik = vsgp.NegativeBinomial(prior("alpha", case["prior_alpha"]), exposure=exposure)
        gp.likelihood("y", lik, X=case["X"], y=case["y"])

    return build


CASES = {f.__name__: f for f in SMALL} | {n: _published(n) for n in sampling_cases.CASES}


def summarize(idata):
    """Mean, deviation and their errors of each number of theta and of some inducing values."""
    posterior = idata["posterior"].to_dataset()
    out = {}
    for name, x in posterior.data_vars.items():
        flat = x.values.reshape(*x.shape[:2], -1)
        for j in np.unique(np.linspace(0, flat.shape[2] - 1, min(flat.shape[2], 20)).astype(int)):
            z = flat[:, :, j]
            out[f"{name}[{j}]"] = {
                "mean": float(z.mean()),
                "sd": float(z.std()),
                "mcse": float(az.mcse(z, method="mean")),
                "mcse_sd": float(az.mcse(z, method="sd")),
                "ess": float(az.ess(z)),
            }
    return out


def run(name, method):
    """Sample a case."""
    with pm.Model() as model:
        CASES[name]()
    wall, cpu = time.perf_counter(), time.process_time()
    with model:
        stage = vsgp.fit_gaussian(progressbar=False)
        at = time.process_time()
        draws = MORE.get(name, 1000)
        idata = vsgp.sample(draws, stage=stage, method=method, random_seed=1, progressbar=False)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    attrs = idata["posterior"].attrs
    stats = summarize(idata)
    out = {
        "N": int(sum(np.shape(rv.eval())[0] for rv in model.observed_RVs)),
        "M": int(sum(np.size(m) for m in stage.mean.values())),
        "d": len(stage.theta_covariance),
        "seconds": spent[0],
        "cpu_stage": at - cpu,
        "cpu": spent[1],
        "min_ess": min(s["ess"] for s in stats.values()),
        "summary": stats,
    }
    keep = ("khat", "importance_ess", "n_evaluations", "refused", "log_evidence")
    out |= {k: attrs[k] for k in keep if k in attrs}
    if method == "nuts":
        out["divergences"] = int(idata["sample_stats"]["diverging"].sum())
    return out


def compare(a, b):
    """Largest difference of means in Monte Carlo errors, and of deviations in per cent."""
    means, sds = [], []
    for k in set(a) & set(b):
        x, y = a[k], b[k]
        means.append(abs(x["mean"] - y["mean"]) / np.hypot(x["mcse"], y["mcse"]))
        error = np.hypot(x["mcse_sd"], y["mcse_sd"])
        off = abs(x["sd"] - y["sd"])
        sds.append(0.0 if off < 4.0 * error else off / y["sd"])
    return max(means), 100.0 * max(sds)


def table(results):
    """Write the table."""
    lines = [
        "| case | N | M | theta | k-hat | ESS of weights | accepted | CPU seconds: stage | and "
        "importance | smallest ESS | NUTS: CPU seconds | smallest ESS | means differ by, in MCSE | "
        "deviations by |",
        "|---" * 14 + "|",
    ]
    for name in CASES:
        if name not in results or "importance" not in results[name]:
            continue
        i, n = results[name]["importance"], results[name].get("nuts")
        row = [name, i["N"], i["M"], i["d"], f"{i['khat']:.2f}", f"{i['importance_ess']:.0f}"]
        row += [f"no: {i['refused']}" if i["refused"] else "yes", f"{i['cpu_stage']:.1f}"]
        row += [f"{i['cpu'] - i['cpu_stage']:.1f}", f"{i['min_ess']:.0f}"]
        if n:
            mean, sd = compare(i["summary"], n["summary"])
            row += [f"{n['cpu']:.0f}", f"{n['min_ess']:.0f}", f"{mean:.1f}", f"{sd:.0f} %"]
        else:
            row += [""] * 4
        lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines) + "\n"


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--no-nuts", action="store_true")
    parser.add_argument("--output", default="importance")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    arguments = parser.parse_args()
    path = RESULTS / f"{arguments.output}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in arguments.cases:
        for method in ["importance"] + ["nuts"] * (not arguments.no_nuts):
            if method in results.get(name, {}) and not arguments.again:
                continue
            found = run(name, method)
            # Other parts of the table may have been written meanwhile.
            results = json.loads(path.read_text()) if path.exists() else {}
            results.setdefault(name, {})[method] = found
            envs.save(path, json.dumps(results, indent=1) + "\n", kept=True)
            envs.save(path.with_suffix(".md"), table(results), kept=True)
            print(name, method, {k: v for k, v in found.items() if k != "summary"}, flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
