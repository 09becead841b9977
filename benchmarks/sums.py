"""NUTS of sums of functions: coordinates of all of them, of each alone, and HSGP.

Usage: ``python sums.py [--cases A B ...] [--seeds 3] [--limit 600] [--again]``. Monthly counts, or
numbers, have a trend and a season, and in one case rough changes besides; in one the trend is of
Fourier features. "together" is the package as it is, "alone" with sites of each function. HSGP has
as many basis functions as Riutort-Mayol et al. (2023) advise. Each run is a process of its own on
one thread, with nutpie.
What is in `results/sums.json` is kept, so that the table can be made in parts.
"""

import argparse
import json
import time

import following
import numpy as np

HOW = "together", "alone", "HSGP"
FEATURES = "counts: trend of Fourier features, and season"
CASES = {
    "counts: trend and season": ("counts", 2),
    FEATURES: ("counts", 2),
    "counts: trend, season and changes": ("counts", 3),
    "normal noise: trend and season": ("normal", 2),
}


def data(kind):
    """Twenty years of months: a trend, and a season with two harmonics."""
    rng = np.random.default_rng(7)
    t = np.arange(240) / 12.0
    f = 0.5 * np.sin(2.0 * np.pi * t) + 0.3 * np.cos(4.0 * np.pi * t) + np.sin(t / 4.0) + 2.0
    return t[:, None], rng.poisson(np.exp(f)) if kind == "counts" else rng.normal(f, 0.3)


def build(kind, n_functions, hsgp, features=False):
    """Build the model, with the same priors for both."""
    import pymc as pm

    import pymc_vsgp as vsgp

    X, y = data(kind)
    with pm.Model() as model:
        level = pm.Normal("level", 2.0, 2.0)
        sd = pm.HalfNormal("sd", 1.0, shape=n_functions)
        of_trend, of_season = pm.InverseGamma("ls", 4, 15), pm.InverseGamma("ls_season", 4, 4)
        trend = pm.gp.cov.Matern52(1, ls=of_trend)
        season = pm.gp.cov.Periodic(1, period=1.0, ls=of_season)
        covs = [sd[0] ** 2 * trend, season]
        points = [np.linspace(0.0, 20.0, 25), np.linspace(0.0, 1.0, 12, endpoint=False)]
        if n_functions > 2:
            covs.append(sd[2] ** 2 * pm.gp.cov.Matern32(1, ls=pm.InverseGamma("ls_changes", 4, 2)))
            points.append(np.linspace(0.0, 20.0, 40))
        if hsgp:
            gps = [pm.gp.HSGP(m=[40], L=[40.0], cov_func=covs[0])]
            gps.append(pm.gp.HSGPPeriodic(m=6, scale=sd[1], cov_func=season))
            gps += [pm.gp.HSGP(m=[80], L=[13.0], cov_func=cov) for cov in covs[2:]]
            f = level + sum(gp.prior(f"f{i}", X) for i, gp in enumerate(gps))
            if kind == "counts":
                pm.Poisson("y", pm.math.exp(f), observed=y)
            else:
                pm.Normal("y", f, pm.HalfNormal("noise", 1.0), observed=y)
            return model
        covs[1] = sd[1] ** 2 * season
        means = [pm.gp.mean.Constant(level), *[pm.gp.mean.Zero()] * (n_functions - 1)]
        pairs = zip(means, covs, strict=True)
        gps = [vsgp.VariationalSparse(mean_func=mean, cov_func=cov) for mean, cov in pairs]
        for i, (gp, Xu) in enumerate(zip(gps, points, strict=True)):
            if features and i == 0:
                gp.prior("u0", inducing=vsgp.inducing.Fourier.for_data(X, gp.cov_func))
            else:
                gp.prior(f"u{i}", Xu[:, None])
        total = vsgp.Coregionalized([1.0] * n_functions, gps)
        if kind == "counts":
            total.likelihood("y", vsgp.Poisson(), X=X, y=y)
        else:
            total.likelihood("y", vsgp.Gaussian(pm.HalfNormal("noise", 1.0)), X=X, y=y)
    return model


def run(name, seed, how):
    """Sample a model, and return what the draws are worth."""
    import arviz as az
    import pymc as pm

    import pymc_vsgp as vsgp

    from pymc_vsgp.fit import joint

    if how == "alone":
        joint.FEW, joint.FACTOR = 0, np.inf
    model = build(*CASES[name], how == "HSGP", name == FEATURES)
    settings = {"tune": 500, "chains": 4, "random_seed": seed, "progressbar": False, "cores": 1}
    began = time.process_time()
    with model:
        if how == "HSGP":
            idata = pm.sample(500, nuts_sampler="nutpie", nuts={"target_accept": 0.9}, **settings)
        else:
            idata = vsgp.sample(500, method="nuts", target_accept=0.9, **settings)
    cpu = time.process_time() - began
    names = [rv.name for rv in model.free_RVs if rv.name[:2] in ("sd", "ls", "no")]
    posterior, stats = idata["posterior"], idata["sample_stats"]
    found = az.summary(posterior.to_dataset()[names], kind="all", round_to="none")
    ess = float(found["ess_bulk"].min())
    return {
        "ess": ess,
        "per_gradients": 1000.0 * ess / float(stats["n_steps"].sum()),
        "divergences": int(stats["diverging"].sum()),
        "rhat": float(found["r_hat"].max()),
        "cpu": cpu,
        "means": found["mean"].round(3).to_dict(),
    }


def table(results):
    """Write the table."""
    lines = [
        "| model | coordinates | ESS for 1000 gradients | largest R-hat | divergences "
        "| CPU seconds | ESS a CPU second |",
        "|---" * 7 + "|",
    ]
    for name in CASES:
        for how in HOW:
            runs = [r for k, r in results.items() if k.startswith(f"{name}; {how};")]
            ended = [r for r in runs if "stopped" not in r]
            if not ended:
                continue
            cells = [name, how if len(ended) == len(runs) else f"{how}, {len(ended)} ended"]
            columns = (("per_gradients", 1), ("rhat", 2), ("divergences", 0), ("cpu", 0))
            cells += [following.spread([r[key] for r in ended], n) for key, n in columns]
            cells += [following.spread([r["ess"] / r["cpu"] for r in ended], 1)]
            lines.append("| " + " | ".join(cells) + " |")
    text = "One thread, four chains of 500 draws after 500 to tune. ESS is the smallest of a "
    text += "scale, a lengthscale or the noise. CPU seconds have the stage, and compiling. "
    lines += ["", f"{text}Ranges are of seeds."]
    return "\n".join(lines) + "\n"


def main():
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, seed, how = arguments.worker
        print(json.dumps(run(name, int(seed), how)))
        return
    seeds = range(1, arguments.seeds + 1)

    def one(name, how, seed):
        return following.stopped_after(name, seed, how, arguments.limit, script=__file__)

    work = [(name, how, seed) for seed in seeds for name in arguments.cases for how in HOW]
    # With HSGP it would be the same model again.
    work = [one for one in work if one[:2] != (FEATURES, "HSGP")]
    following.in_parts("sums", work, one, table, arguments.again)


if __name__ == "__main__":
    main()
