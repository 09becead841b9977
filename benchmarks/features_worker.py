"""One way to approximate one process: from the start of this process to its last draw.

``python features_worker.py CASE KIND RUNG OUT.npz --draws 500 --tune 500 --chains 2`` prints one
line of JSON and writes mean and standard deviation of the function at the places of the case.
The exact kinds take the same data and priors.
"""

import time

START = time.perf_counter()  # before the imports, which count

import argparse
import json
import os
import pathlib
import resource
import sys

from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy import stats

import pymc_vsgp as vsgp

PLACES = 1024  # rows at which functions are compared, at most
SIDE = 10.0  # of the square of the pines
DATA = pathlib.Path(os.environ.get("PYMC_VSGP_DATA", "."))


class Case(NamedTuple):
    """Data, kernel and priors of one problem."""

    X: np.ndarray
    y: np.ndarray
    exposure: float  # of counts; 0 for yes and no
    kernel: str
    lengthscale: tuple[float, ...]  # shape and rate, or the middle 90 % of a log-normal
    variance: tuple[float, float] = (2.0, 1.5)  # shape and rate
    level: bool = True  # whether there is a mean to infer

    @property
    def places(self):
        return np.unique(np.linspace(0, len(self.X) - 1, PLACES).astype(int))

    def prior(self):
        """Return the prior of the lengthscale."""
        if self.level:
            low, high = self.lengthscale
            return stats.lognorm(np.log(high / low) / 3.29, scale=np.sqrt(low * high))
        shape, rate = self.lengthscale
        return stats.gamma(shape, scale=1 / rate)


def pines(n):
    """Saplings in n x n cells, kernel and priors of Hensman et al. (2015)."""
    table = vsgp.datasets.load("pines_nips2015")
    counts = np.histogram2d(table["x"], table["y"], bins=n, range=[(0.0, 1.0)] * 2)[0].ravel()
    x = centres(n)
    X = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    area = (SIDE / n) ** 2
    return Case(X, counts, area, "expquad", (1.75, 1.0), (1.2, 1.0), level=False)


def centres(n):
    return SIDE * (np.arange(n) + 0.5) / n


def coal():
    """Explosions in 100 bins of somewhat more than a year."""
    table = vsgp.datasets.coal_counts(bins=100)
    X = table["year"].to_numpy()[:, None]
    return Case(X, table["count"].to_numpy(), float(table["width"].mean()), "matern52", (5.0, 40.0))


def beijing():
    """Hours of a year with more than 75 micrograms of fine particles in a cubic metre of air."""
    with np.load(DATA / "beijing_air.npz", allow_pickle=False) as arrays:
        hours = slice(24 * 1036, 24 * 1036 + 8784)  # 2016, a leap year
        pm25 = arrays["values"][0, hours, 0]
    seen = np.isfinite(pm25)
    # Missing hours take the last reading, so that the series stays one.
    last = np.maximum.accumulate(np.where(seen, np.arange(len(pm25)), 0))
    X = np.arange(len(pm25), dtype=float)[:, None]
    return Case(X, (pm25[last] > 75).astype(float), 0.0, "matern52", (10.0, 100.0))


def scattered(n):
    """Simulated counts at random places of a square."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, SIDE, size=(n, 2))
    f = np.sin(X[:, 0]) * np.cos(0.7 * X[:, 1]) + 0.5 * np.sin(1.3 * X[:, 1])
    return Case(X, rng.poisson(np.exp(f - 1.0)), 1.0, "matern52", (1.0, 5.0))


CASES = {
    "coal": coal,
    "pines32": lambda: pines(32),
    "pines64": lambda: pines(64),
    "pines128": lambda: pines(128),
    "pines64_long": lambda: pines(64),
    "pines128_long": lambda: pines(128),
    "beijing_air": beijing,
    "rows1e5": lambda: scattered(100_000),
    "rows1e6": lambda: scattered(1_000_000),
}
KERNELS = {"expquad": pm.gp.cov.ExpQuad, "matern52": pm.gp.cov.Matern52}


def priors(case):
    """Return level, variance and lengthscale: random variables of the model."""
    level = pm.Normal("level", 0.0, 2.0) if case.level else 0.0
    variance = pm.Gamma("variance", *case.variance)
    if case.level:
        low, high = case.lengthscale
        ls = pm.LogNormal("ls", np.log(low * high) / 2, np.log(high / low) / 3.29)
    else:
        ls = pm.Gamma("ls", *case.lengthscale)
    return level, variance, ls


def observe(case, f):
    """Observe the data through an ordinary PyMC distribution of the function."""
    if case.exposure:
        pm.Poisson("y", case.exposure * pt.exp(f), observed=case.y)
    else:
        pm.Bernoulli("y", logit_p=f, observed=case.y)


def pymc_model(case, kind, rung):
    """Write the model with HSGP, Latent or LatentKron of PyMC."""
    info: dict[str, Any] = {}
    with pm.Model() as model:
        level, variance, ls = priors(case)
        kernel = KERNELS[case.kernel]
        D = case.X.shape[1]
        cov = variance * kernel(D, ls=ls)
        if kind == "hsgp":
            low_high = [float(q) for q in case.prior().ppf([0.1, 0.9])]
            ranges = np.stack([case.X.min(axis=0), case.X.max(axis=0)], axis=1).tolist()
            each = [
                pm.gp.hsgp_approx.approx_hsgp_hyperparams(r, low_high, case.kernel) for r in ranges
            ]
            m = [int(np.ceil(rung * e[0])) for e in each]
            gp = pm.gp.HSGP(m=m, c=max(e[1] for e in each), cov_func=cov)
            phi, root = gp.prior_linearized(X=case.X)
            beta = pm.Normal("beta", size=int(np.prod(m)))
            f = phi @ (beta * root)
            info["M"] = int(np.prod(m))
        elif kind == "kron":
            n = round(len(case.X) ** 0.5)
            kernels = [variance * kernel(1, ls=ls), kernel(1, ls=ls)]
            x = centres(n)[:, None]
            f = pm.gp.LatentKron(cov_funcs=kernels).prior("g", Xs=[x, x])
        else:
            f = pm.gp.Latent(cov_func=cov).prior("g", X=case.X)
        f = f + level
        observe(case, f)
        pm.Deterministic("f", f[case.places])
    return model, info


def sparse_model(case, kind, rung):
    """Write the model of this package."""
    with pm.Model() as model:
        level, variance, ls = priors(case)
        cov = variance * KERNELS[case.kernel](case.X.shape[1], ls=ls)
        mean = pm.gp.mean.Constant(level)
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        if kind == "points":
            gp.prior("u", Xu=vsgp.inducing.grid(case.X, int(rung)))
        else:
            features = vsgp.inducing.Fourier.for_data(
                case.X, cov, residual=rung, max_features=20_000, random_seed=1
            )
            gp.prior("u", inducing=features)
        likelihood = (
            vsgp.Poisson(exposure=case.exposure) if case.exposure else vsgp.Bernoulli(link="logit")
        )
        gp.likelihood("y", likelihood, X=case.X, y=case.y)
    return model, {"M": int(model["u"].shape.eval()[-1])}


def clocks():
    """Return seconds since the start, on the clock and of the processor."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter() - START, usage.ru_utime + usage.ru_stime


def sample(case, kind, rung, options):
    """Return draws, the function's mean and standard deviation at the places, and times."""
    settings = {
        "draws": options.draws,
        "tune": options.tune,
        "chains": options.chains,
        "random_seed": options.seed,
        "nuts_sampler": "nutpie",
        "progressbar": False,
        "backend": options.backend,
        "compute_convergence_checks": False,
        "discard_tuned_samples": False,
    }
    if kind in ("Fourier", "points"):
        model, info = sparse_model(case, kind, rung)
        with model:
            stage = vsgp.fit_gaussian(progressbar=False, random_seed=options.seed)
            info["stage_seconds"], info["stage_cpu_seconds"] = clocks()
            info["bound"] = float(stage.elbo)
            idata = vsgp.sample(stage=stage, **settings)
    else:
        model, info = pymc_model(case, kind, rung)
        with model:
            idata = pm.sample(**settings)
    info["seconds"], info["cpu_seconds"] = clocks()
    if kind in ("Fourier", "points"):
        some = {"model": model, "progressbar": False}
        m = vsgp.predict(idata, case.X[case.places], "moments", **some)
        over = ["chain", "draw"]
        mean = m["mean"].mean(over).values
        sd = np.sqrt(m["mean"].var(over) + m["variance"].mean(over)).values
        check = vsgp.check_inducing(idata, 20, nested=False, progressbar=False, model=model)
        info["missing_nats"] = float(np.median(check.missing))
    else:
        f = idata["posterior"]["f"].values.reshape(-1, len(case.places))
        mean, sd = f.mean(axis=0), f.std(axis=0)
    return idata, mean, sd, info


def run(case_name, kind, rung, options):
    """Sample once, write the function to a file, and return the numbers."""
    case = CASES[case_name]()
    idata, mean, sd, info = sample(case, kind, rung, options)
    np.savez(options.out, mean=mean, sd=sd)
    posterior, stats_ = idata["posterior"], idata["sample_stats"]
    names = [n for n in ("ls", "variance", "level") if n in posterior]
    ess = {n: float(az.ess(posterior[n].values)) for n in names}
    steps = [
        float(idata[g]["n_steps"].values.sum())
        for g in ("sample_stats", "warmup_sample_stats")
        if g in idata.children
    ]
    return {
        "case": case_name,
        "kind": kind,
        "rung": rung,
        "n_rows": len(case.X),
        **info,
        "draws": options.draws,
        "tune": options.tune,
        "chains": options.chains,
        "seed": options.seed,
        "backend": options.backend,
        "sampling_seconds": float(posterior.attrs.get("sampling_time", np.nan)),
        "min_ess": min(ess.values()),
        "ess": ess,
        "max_rhat": max(float(az.rhat(posterior[n].values)) for n in names),
        "steps": float(stats_["n_steps"].mean()),
        "gradients": sum(steps),
        "divergences": int(stats_["diverging"].sum()),
        "theta": {n: [float(posterior[n].mean()), float(posterior[n].std())] for n in names},
        "load_average": os.getloadavg()[0],
    }


def main():
    """Run one, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("kind", choices=["Fourier", "points", "hsgp", "latent", "kron"])
    parser.add_argument("rung", type=float)
    parser.add_argument("out")
    parser.add_argument("--backend", default="jax")
    for name, default in (("draws", 500), ("tune", 500), ("chains", 2), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(json.dumps(run(options.case, options.kind, options.rung, options)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
