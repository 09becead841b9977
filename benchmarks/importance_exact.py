"""The importance stage, and the spread that the Gaussian stage reports, against quadrature.

Usage: ``python importance_exact.py [--cases A B ...] [--again]``. Runs in the environment that it
is started in, and reads larger data sets from the folder that PYMC_VSGP_DATA names. Each case is
sampled by ``vsgp.sample(method="importance")``. The exact sparse posterior comes from `exact.py`,
which shares no code with the package, and is kept in `results/importance_exact.json`, so that the
comparison can be made again without it: ``--importance`` repeats the other side alone.
"""

import argparse
import json
import pathlib
import time

import arviz as az
import envs
import exact
import importance
import numpy as np
import pymc as pm

from exact import Posterior, by_nodes
from scipy.special import betaln, gammaln, log_ndtr, logsumexp

import pymc_vsgp as vsgp

PATH = pathlib.Path(__file__).parent / "results" / "importance_exact.json"

# Log priors of a logarithm t, the Jacobian included.
PRIORS = {
    "lognormal": lambda t, m, s: -0.5 * ((t - m) / s) ** 2,
    "gamma": lambda t, a, b: a * t - b * np.exp(t),
    "halfnormal": lambda t, s: t - 0.5 * (np.exp(t) / s) ** 2,
    "halfcauchy": lambda t, s: t - np.log1p((np.exp(t) / s) ** 2),
}
STANDARD = {"lengthscale": ("lognormal", 0.3, 0.7), "variance": ("halfnormal", 2.0)}


def _log_prior(priors):
    def log_prior(t):
        each = zip(t, priors.values(), strict=True)
        return sum(PRIORS[name](x, *args) for x, (name, *args) in each)

    return log_prior


def _rise(x):
    """log(1 + exp(x))."""
    return np.logaddexp(0.0, x)


def _poisson(y, exposure):
    constant = y * np.log(exposure) - gammaln(y + 1.0)
    return lambda mu, gamma, t: (
        y * mu[..., 0] - exposure * np.exp(mu[..., 0] + gamma[:, 0] / 2.0) + constant
    )


def _logit(y):
    return by_nodes(lambda f, t: -_rise(np.where(y > 0, -1.0, 1.0)[:, None] * f))


def _probit(y):
    return by_nodes(lambda f, t: log_ndtr(np.where(y > 0, 1.0, -1.0)[:, None] * f))


def _student_t(y, nu):
    def log_prob(f, t):
        z = (y[:, None] - f) / np.exp(t[-1])
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi) - t[-1]
        return constant - (nu + 1) / 2 * np.log1p(z**2 / nu)

    return by_nodes(log_prob)


def _negative_binomial(y, exposure):
    y = y[:, None]

    def log_prob(f, t):
        a = np.exp(t[-1])
        eta = f + np.log(exposure)
        constant = gammaln(y + a) - gammaln(a) - gammaln(y + 1.0) + a * t[-1]
        return constant + y * eta - (y + a) * np.logaddexp(t[-1], eta)

    return by_nodes(log_prob)


def _gamma(y):
    def phi(mu, gamma, t):
        a, m = np.exp(t[-1]), mu[..., 0]
        rate = np.exp(-m + gamma[:, 0] / 2.0)
        return a * t[-1] - gammaln(a) + (a - 1.0) * np.log(y) - a * m - a * y * rate

    return phi


def _weibull(y, censored):
    def phi(mu, gamma, t):
        a = np.exp(t[-1])
        h = a * (np.log(y) - mu[..., 0])
        event = t[-1] - np.log(y) + h
        return np.where(censored, 0.0, event) - np.exp(h + a**2 * gamma[:, 0] / 2.0)

    return phi


def _beta(y):
    y = y[:, None]

    def log_prob(f, t):
        p, phi = 1.0 / (1.0 + np.exp(-f)), np.exp(t[-1])
        a, b = np.clip(phi * p, 1e-9, None), np.clip(phi * (1.0 - p), 1e-9, None)
        return (a - 1.0) * np.log(y) + (b - 1.0) * np.log1p(-y) - betaln(a, b)

    return by_nodes(log_prob)


def _two_normal(y):
    def phi(mu, gamma, t):
        m, s = mu[..., 0], mu[..., 1]
        square = (y - m) ** 2 + gamma[:, 0]
        return -0.5 * np.log(2 * np.pi) - s - 0.5 * square * np.exp(-2 * s + 2 * gamma[:, 1])

    return phi


def _softmax(y):
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    grid = np.stack(np.meshgrid(*[nodes] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    w = np.prod(np.stack(np.meshgrid(*[weights] * 3, indexing="ij"), -1).reshape(-1, 3), axis=1)
    w /= w.sum()

    def phi(mu, gamma, t):
        f = mu[..., None, :] + np.sqrt(gamma)[:, None, :] * grid
        total = logsumexp(f, axis=-1) @ w
        return (
            np.take_along_axis(mu, np.broadcast_to(y, mu.shape[:-1])[..., None], -1)[..., 0] - total
        )

    return phi


def _one(model, phi, priors=STANDARD, kernel=exact.matern52, u="u", **kwargs):
    """Return the posterior of one process, whose data come from the model."""
    names = list(priors)
    at = {n: i for i, n in enumerate(names)}

    def of_theta(t):
        return tuple(np.exp(t[at[n]]) if n in at else 1.0 for n in ("lengthscale", "variance"))

    X = _inputs_of(model)
    outputs = kwargs.pop("n_outputs", 1)
    part = (model[f"{u}_Xu"].get_value(), kernel, of_theta)
    return Posterior(names, _log_prior(priors), X, [part] * outputs, phi, **kwargs)


def _inputs_of(model):
    from pymc_vsgp.model.observation import observations

    (o,) = observations(model).values()
    return np.asarray(o.X.eval())


def _normal(model, priors, **kwargs):
    at = list(priors).index("sigma")
    noise = lambda t: np.exp(t[at])  # noqa: E731  (short, and used once)
    return _one(model, None, priors, noise=noise, y=_y(model), **kwargs)


def _y(model):
    return model.rvs_to_values[model["y"]].eval().astype(float)


def _with(**kwargs):
    return STANDARD | kwargs


def _heteroskedastic(model):
    priors = {
        "lengthscale_u": ("lognormal", 0.3, 0.7),
        "variance_u": ("halfnormal", 2.0),
        "lengthscale_w": ("lognormal", 0.3, 0.7),
    }
    parts = [
        (model["u_Xu"].get_value(), exact.matern52, lambda t: (np.exp(t[0]), np.exp(t[1]))),
        (model["w_Xu"].get_value(), exact.matern52, lambda t: (np.exp(t[2]), 1.0)),
    ]
    X = _inputs_of(model)
    return Posterior(list(priors), _log_prior(priors), X, parts, _two_normal(_y(model)))


def _real(name, likelihood, m, n=None, kernel=pm.gp.cov.ExpQuad, **extra):
    """Return a case of real data: a function that builds its model."""

    def build():
        X, y = DATA[name]()
        rows = np.random.default_rng(0).permutation(len(X))[: n or len(X)]
        X, y = X[rows], y[rows]
        ls = pm.LogNormal("lengthscale", 0.5, 0.7)
        variance = pm.HalfNormal("variance", 2.0) if extra.get("variance", True) else 1.0
        gp = pm.gp.VariationalSparse(cov_func=variance * kernel(X.shape[1], ls=ls))
        Xu = vsgp.inducing.kmeans(X, m, random_seed=1) if X.shape[1] > 1 else None
        gp.prior("u", Xu=vsgp.inducing.grid(X, m) if Xu is None else Xu)
        gp.likelihood("y", likelihood(), X=X, y=y)

    return build


def _standard(x):
    x = np.asarray(x, float)
    x = x[:, x.std(axis=0) > 0] if x.ndim == 2 else x
    return (x - x.mean(axis=0)) / x.std(axis=0)


def _uci(name):
    def load():
        data = vsgp.datasets.load(name)
        return _standard(data["X"]), _standard(data["y"])

    return load


def _slots():
    """Departures from Houston in 2011, counted in each ten minutes of each day."""
    data = vsgp.datasets.load("flights_houston2011")
    month, day, minute = data["X"][:, 0], data["X"][:, 1], data["X"][:, 7]
    days = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30]).cumsum()
    d = (days[month.astype(int) - 1] + day.astype(int) - 1).clip(0, 364)
    counts = np.zeros((365, 144))
    np.add.at(counts, (d, (minute // 10).astype(int) % 144), 1)
    hours = np.broadcast_to(np.arange(144) / 6.0, (365, 144))
    return hours.reshape(-1, 1).copy(), counts.ravel()


def _snelson():
    table = vsgp.datasets.load("snelson1d")
    return table[["x"]].to_numpy(), _standard(table["y"])


def _banana():
    data = vsgp.datasets.load("raetsch_banana")
    return data["X"][data["gpflow400_idx"]].astype(float), data["y"][data["gpflow400_idx"]]


def _table(name, target, columns=None):
    def load():
        table = vsgp.datasets.load(name).dropna()
        X = table[columns] if columns else table.drop(columns=[target])
        return _standard(X.to_numpy()), table[target].to_numpy()

    return load


DATA = {
    "snelson": _snelson,
    "banana": _banana,
    "pima": _table("pima", "diabetes"),
    "breast": _table("breast_wisconsin", "malignant"),
    "gambia": _table("gambia", "pos", ["x", "y"]),
    "nmes": _table("nmes1988", "visits", ["age", "chronic", "school"]),
    "boston": _uci("uci_boston"),
    "concrete": _uci("uci_concrete"),
    "kin40k": _uci("uci_kin40k"),
    "departures": _slots,
}
LS, VAR, SIGMA = ("lognormal", 0.5, 0.7), ("halfnormal", 2.0), ("halfnormal", 1.0)
BOTH = {"lengthscale": LS, "variance": VAR}
SE = {"kernel": exact.exp_quad}


def _survival():
    rng, X, f = importance._inputs(150)
    times = np.exp(f) * rng.weibull(1.5, size=150)
    lik = vsgp.Weibull(pm.LogNormal("alpha", 0.0, 0.5), censored=times > 2.0)
    importance._process(X).likelihood("y", lik, X=X, y=np.minimum(times, 2.0))


SMALL = importance.CASES
# name: what builds the model, its posterior in numpy, and where to look for the mode
CASES = {
    "gaussian": (SMALL["gaussian"], lambda m: _normal(m, _with(sigma=SIGMA)), [0, 0, -1]),
    "bernoulli": (SMALL["bernoulli"], lambda m: _one(m, _logit(_y(m))), [0, 0]),
    "poisson": (SMALL["poisson"], lambda m: _one(m, _poisson(_y(m), 3.0)), [0, 0]),
    "student_t": (
        SMALL["student_t"],
        lambda m: _one(m, _student_t(_y(m), 4.0), _with(sigma=SIGMA)),
        [0, 0, -1],
    ),
    "negative_binomial": (
        SMALL["negative_binomial"],
        lambda m: _one(m, _negative_binomial(_y(m), 4.0), _with(alpha=("gamma", 2.0, 1.0))),
        [0, 0, 0.5],
    ),
    "gamma": (
        SMALL["gamma"],
        lambda m: _one(m, _gamma(_y(m)), _with(alpha=("gamma", 2.0, 1.0))),
        [0, 0, 1],
    ),
    "beta": (
        SMALL["beta"],
        lambda m: _one(m, _beta(_y(m)), _with(phi=("gamma", 2.0, 0.1))),
        [0, 0, 3],
    ),
    "weibull, censored": (
        _survival,
        lambda m: _one(
            m,
            _weibull(_y(m), _y(m) >= 2.0),
            _with(alpha=("lognormal", 0.0, 0.5)),
        ),
        [0, 0, 0.4],
    ),
    "heteroskedastic": (SMALL["heteroskedastic"], _heteroskedastic, [0, 0, 0.5]),
    "softmax": (
        SMALL["softmax"],
        lambda m: _one(m, _softmax(_y(m).astype(int)), n_outputs=3, n_draws=60, n_grid=9),
        [0, 0],
    ),
    "outliers": (
        SMALL["outliers"],
        lambda m: _one(m, _student_t(_y(m), 2.0), _with(sigma=("halfcauchy", 1.0))),
        [0, 0, -1],
    ),
    "separable": (
        SMALL["separable"],
        lambda m: _one(m, _logit(_y(m)), _with(variance=("halfcauchy", 5.0)), n_grid=41, **SE),
        [0.5, 2],
    ),
    "vague": (
        SMALL["vague"],
        lambda m: _one(
            m,
            _poisson(_y(m), 1.0),
            _with(variance=("halfcauchy", 100.0)),
            n_grid=41,
            n_draws=1500,
            **SE,
        ),
        [0, 0],
    ),
    "two lengthscales": (
        SMALL["two_lengthscales"],
        lambda m: _normal(
            m,
            {"lengthscale": ("lognormal", 0.0, 1.5), "sigma": ("lognormal", -1.0, 1.0)},
            n_grid=81,
            box=[(-6.0, 6.5), (-6.0, 2.5)],
            **SE,
        ),
        [0, -1],
    ),
    "coal": (
        SMALL["coal"],
        lambda m: _one(
            m,
            _poisson(_y(m), importance.sampling_cases.CASES["coal"](False)["exposure"]),
            {"lengthscale": ("gamma", 1.1, 0.1), "variance": ("gamma", 1.0, 0.3)},
            **SE,
        ),
        [3, 0],
    ),
    "snelson": (
        _real("snelson", lambda: vsgp.Gaussian(pm.HalfNormal("sigma", 1.0)), 20),
        lambda m: _normal(m, BOTH | {"sigma": SIGMA}, **SE),
        [0, 0, -1],
    ),
    "banana": (
        _real("banana", lambda: vsgp.Bernoulli(link="probit"), 40),
        lambda m: _one(m, _probit(_y(m)), BOTH, n_draws=100, **SE),
        [0, 1],
    ),
    "pima": (
        _real("pima", vsgp.Bernoulli, 30),
        lambda m: _one(m, _logit(_y(m)), BOTH, **SE),
        [1.5, 0],
    ),
    "breast": (
        _real("breast", vsgp.Bernoulli, 30),
        lambda m: _one(m, _logit(_y(m)), BOTH, **SE),
        [1.5, 1.5],
    ),
    "gambia": (
        _real("gambia", vsgp.Bernoulli, 25),
        lambda m: _one(m, _logit(_y(m)), BOTH, **SE),
        [-1, 0],
    ),
    "nmes": (
        _real(
            "nmes",
            lambda: vsgp.NegativeBinomial(pm.Gamma("alpha", 2.0, 1.0), exposure=5.0),
            20,
            1000,
        ),
        lambda m: _one(
            m, _negative_binomial(_y(m), 5.0), BOTH | {"alpha": ("gamma", 2.0, 1.0)}, n_draws=64,
            n_grid=13, **SE,
        ),
        [1, 0, 0],
    ),
    "boston": (
        _real("boston", lambda: vsgp.StudentT(4.0, pm.HalfNormal("sigma", 1.0)), 40),
        lambda m: _one(
            m, _student_t(_y(m), 4.0), BOTH | {"sigma": SIGMA}, n_draws=64, n_grid=9, **SE
        ),
        [1.5, 0.5, -1.5],
    ),
    "concrete": (
        _real("concrete", lambda: vsgp.Gaussian(pm.HalfNormal("sigma", 1.0)), 400),
        lambda m: _normal(m, BOTH | {"sigma": SIGMA}, n_grid=9, **SE),
        [1, 0.5, -1.5],
    ),
    "kin40k": (
        _real("kin40k", lambda: vsgp.Gaussian(pm.HalfNormal("sigma", 1.0)), 60, variance=False),
        lambda m: _normal(m, {"lengthscale": LS, "sigma": SIGMA}, **SE),
        [1, -0.7],
    ),
    "departures": (
        _real("departures", lambda: vsgp.Poisson(), 24),
        lambda m: _one(m, _poisson(_y(m), 1.0), BOTH, n_draws=64, n_grid=9, **SE),
        [0.5, 1],
    ),
}  # fmt: skip


def of_importance(model):
    """Sample a case, and summarize it as `exact` does."""
    cpu = time.process_time()
    with model:
        stage = vsgp.fit_gaussian(progressbar=False)
        at = time.process_time()
        idata = vsgp.sample(stage=stage, method="importance", random_seed=1, progressbar=False)
    total = time.process_time()
    posterior = idata["posterior"].to_dataset()
    us = list(stage.mean)
    cov = stage.theta_covariance
    reported = dict(zip(stage.theta, np.sqrt(np.diag(cov)), strict=True))
    theta, means, errors, sds, errors_sd = {}, [], [], [], []
    for name in posterior.data_vars:
        if name in us:
            flat = posterior[name].values.reshape(*posterior[name].shape[:2], -1)
            for j in range(flat.shape[2]):
                means.append(float(flat[:, :, j].mean()))
                errors.append(float(az.mcse(flat[:, :, j], method="mean")))
                sds.append(float(flat[:, :, j].std()))
                errors_sd.append(float(az.mcse(flat[:, :, j], method="sd")))
            continue
        if name not in stage.theta:
            continue
        x = np.log(posterior[name].values)
        theta[name] = {
            "mean": float(x.mean()),
            "sd": float(x.std()),
            "q05": float(np.quantile(x, 0.05)),
            "q95": float(np.quantile(x, 0.95)),
            "mcse": float(az.mcse(x, method="mean")),
            "mcse_sd": float(az.mcse(x, method="sd")),
            "mcse_q": [float(az.mcse(x, method="quantile", prob=p)) for p in (0.05, 0.95)],
            "stage": float(np.ravel(stage.theta_unconstrained[_value(stage, name)])[0]),
            "reported": float(reported[name]),
        }
    attrs = posterior.attrs
    return {
        "N": int(_y(model).shape[0]),
        "M": int(sum(np.size(m) for m in stage.mean.values())),
        "theta": theta,
        "u": {"mean": means, "mcse": errors, "sd": sds, "mcse_sd": errors_sd},
        "khat": attrs["khat"],
        "ess": attrs["importance_ess"],
        "refused": attrs["refused"],
        "n_evaluations": attrs["n_evaluations"],
        "cpu_stage": at - cpu,
        "cpu": total - at,
    }


def _value(stage, name):
    return stage.model.rvs_to_values[stage.model[name]].name


def _pairs(case):
    """Return parameters of both sides, in the order of the case."""
    found, known = case["importance"]["theta"], case["exact"]["theta"]
    short = {k.removesuffix("_u") if k not in known else k: v for k, v in found.items()}
    return [(name, short[name], known[name]) for name in known]


def compare(case):
    """Differences of means, in errors, and of deviations and quantiles, in sd and in errors."""
    means, sds, quantiles = [], [], []
    noise = case["exact"]["noise"]
    for _, a, b in _pairs(case):
        sd = b["sd"]
        means.append(abs(a["mean"] - b["mean"]) / np.hypot(a["mcse"], noise * sd))
        off = abs(a["sd"] - sd)
        sds.append((off / sd, off / np.hypot(a["mcse_sd"], noise * sd)))
        for q, error in zip(("q05", "q95"), a["mcse_q"], strict=True):
            off = abs(a[q] - b[q])
            quantiles.append((off / sd, off / np.hypot(error, noise * sd)))
    u, sd = case["importance"]["u"], np.array(case["exact"]["u_sd"])
    off = abs(np.array(u["mean"]) - case["exact"]["u_mean"])
    means_u = off / np.hypot(u["mcse"], noise * sd)
    off = abs(np.array(u["sd"]) - sd)
    sds_u = list(zip(off / sd, off / np.hypot(u["mcse_sd"], noise * sd), strict=True))
    return means, sds, quantiles, means_u, sds_u


def right(case):
    """Whether everything agrees: within 4 errors, or within 5 %."""
    means, sds, quantiles, means_u, sds_u = compare(case)
    good = max(means) < 4.0 and max(means_u) < 4.0
    return good and all(a < 0.05 or errors < 4.0 for a, errors in [*sds, *quantiles, *sds_u])


def table(results):
    """Write the tables."""
    lines = [
        "| case | N | M | k-hat | ESS of weights | accepted | CPU s: stage | weights | quadrature "
        "| means of theta: MCSE | sd | 5 and 95 % quantiles, in sd | means of u: MCSE | sd | "
        "within 4 errors or 5 % |",
        "|---" * 15 + "|",
    ]
    known = {n: results[n] for n in CASES if n in results and "exact" in results[n]}
    for name, case in known.items():
        i = case["importance"]
        means, sds, quantiles, means_u, sds_u = compare(case)
        row = [name, i["N"], i["M"], f"{i['khat']:.2f}", f"{i['ess']:.0f}"]
        row += [f"no: {i['refused']}" if i["refused"] else "yes", f"{i['cpu_stage']:.0f}"]
        row += [f"{i['cpu']:.0f}", f"{case['exact']['cpu']:.0f}", f"{max(means):.1f}"]
        row += [f"{max(a for a, _ in sds):.1%}", f"{max(a for a, _ in quantiles):.2f}"]
        row += [f"{max(means_u):.1f}", f"{max(a for a, _ in sds_u):.1%}"]
        row += ["yes" if right(case) else "NO"]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    lines += [
        "",
        "What `print(stage)` says of the logarithm of a parameter, and the posterior:",
        "",
        "| case | parameter | stage | ± | posterior mean | sd | ± over sd | mean off by, in sd |",
        "|---" * 8 + "|",
    ]
    for name, case in known.items():
        for parameter, a, b in _pairs(case):
            row = [name, parameter, f"{a['stage']:.2f}", f"{a['reported']:.2f}", f"{b['mean']:.2f}"]
            row += [f"{b['sd']:.2f}", f"{a['reported'] / b['sd']:.2f}"]
            row += [f"{(a['stage'] - b['mean']) / b['sd']:.1f}"]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--importance", action="store_true", help="of that, importance alone")
    arguments = parser.parse_args()
    for name in arguments.cases:
        results = json.loads(PATH.read_text()) if PATH.exists() else {}
        case = results.get(name, {})
        if case and not (arguments.again or arguments.importance):
            continue
        build, twin, start = CASES[name]
        with pm.Model() as model:
            build()
        if "exact" not in case or not arguments.importance:
            cpu = time.process_time()
            case["exact"] = twin(model).summary(start)
            case["exact"]["cpu"] = time.process_time() - cpu
        case["importance"] = of_importance(model)
        # Other parts of the table may have been written meanwhile.
        results = json.loads(PATH.read_text()) if PATH.exists() else {}
        results[name] = case
        envs.save(PATH, json.dumps(results) + "\n", kept=True)
        envs.save(PATH.with_suffix(".md"), table(results), kept=True)
        print(table({name: case}), case["exact"]["edge"], flush=True)


if __name__ == "__main__":
    main()
