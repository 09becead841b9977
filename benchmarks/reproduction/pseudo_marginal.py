"""Tables I and III of Filippone and Girolami (2014), and two columns that they lack.

Data are simulated from the prior as there: n points in the unit cube of d dimensions, a probit,
balanced classes, Gamma(1, rate 1/sqrt(d)) for lengthscales and Gamma(1.2, rate 0.2) for the
variance. The lengthscale that data are drawn with is 0.35 sqrt(d / 2), which is theirs for d = 2.
Chains are shorter than those of the paper, and ESS is given per 10,000 iterations.

    python benchmarks/reproduction/pseudo_marginal.py                  # resumes, method by method
    python benchmarks/reproduction/pseudo_marginal.py 50,2,ARD         # one block
    python benchmarks/reproduction/pseudo_marginal.py 50,2,ARD AA      # one method of it
"""

import argparse
import json
import pathlib
import time

import arviz as az
import numpy as np
import pymc as pm

from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

import pymc_vsgp as vsgp

from pymc_vsgp.steps import Interweaving, PseudoMarginal

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
TUNE, DRAWS, CHAINS = 400, 1000, 4
REPEATS = 20  # of each update of Table III
# Interpreted: graphs are small, and numba would compile a dozen of them for each method.
MODE = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_run").excluding("fusion")
SCHEMES = {"SA": "sufficient", "AA": "ancillary", "SURR": "surrogate"}
# Cholesky factors of n x n for each proposal of theta: of the kernel, and of what is given data.
FACTORS = {"AA": 1.0, "SURR": 3.0, "SA": 1.0, "importance": 2.0, "NUTS": 2.0}
METHODS = [
    *(f"PM {which} ({n})" for which in ("LA", "EP") for n in (1, 16, 64)),
    "AA",
    "SURR",
    "AA 10",  # elliptical slices in each iteration, which have no factor of their own
    "SURR 10",
    "importance",
    "NUTS",
    "AA x20",
    "SURR x20",
]
BLOCKS = [f"{n},{d},{k}" for n in (50, 200) for d in (2, 10) for k in ("iso", "ARD")]
# Table I: minimum ESS over parameters of 10,000 iterations, for the methods in their order.
PUBLISHED = {
    "50,2,iso": [749, 778, 752, 747, 736, 793, 287, 154],
    "50,2,ARD": [131, 206, 212, 208, 246, 252, 20, 21],
    "50,10,iso": [237, 238, 348, 282, 507, 583, 71, 52],
    "50,10,ARD": [19, 62, 78, 63, 107, 108, 74, 45],
    "200,2,iso": [717, 739, 730, 736, 736, 721, 112, 54],
    "200,2,ARD": [318, 364, 355, 349, 365, 354, 41, 61],
    "200,10,iso": [115, 117, 145, 75, 137, 130, 26, 18],
    "200,10,ARD": [27, 53, 37, 26, 52, 45, 22, 10],
}
# Table III: ESS, and ESS over operations, of PM EP (64), AA and SURR.
PUBLISHED_20 = {
    "50,2,iso": [(9057, 556), (1571, 1571), (702, 234)],
    "50,2,ARD": [(4301, 243), (57, 57), (64, 21)],
    "50,10,iso": [(7478, 575), (211, 211), (133, 44)],
    "50,10,ARD": [(2207, 161), (464, 464), (207, 69)],
    "200,2,iso": [(8850, 571), (327, 327), (234, 78)],
    "200,2,ARD": [(5844, 338), (143, 143), (339, 113)],
    "200,10,iso": [(737, 55), (37, 37), (25, 8)],
    "200,10,ARD": [(363, 28), (42, 42), (22, 7)],
}


def simulate(n, d):
    """Draw data until the classes are balanced."""
    rng = np.random.default_rng([n, d])
    while True:
        X = rng.uniform(size=(n, d))
        distance = ((X[:, None] - X) ** 2).sum(axis=-1)
        K = 2.08 * np.exp(-0.5 * distance / (0.35**2 * d / 2)) + 1e-6 * np.eye(n)
        f = np.linalg.cholesky(K) @ rng.normal(size=n)
        y = (f + rng.normal(size=n) > 0.0).astype(int)
        if abs(y.sum() - n / 2) <= 0.04 * n:
            return X, y


def build(block, sparse=False):
    """Return the model: exact, or of inducing points at all inputs, which is the same posterior."""
    n, d, kernel = block.split(",")
    X, y = simulate(int(n), int(d))
    d = X.shape[1]
    with pm.Model() as model:
        tau = pm.Gamma("tau", 1.0, 1.0 / np.sqrt(d), shape=d if kernel == "ARD" else ())
        sigma = pm.Gamma("sigma", 1.2, 0.2)
        cov = sigma * pm.gp.cov.ExpQuad(d, ls=tau)
        if sparse:
            gp = vsgp.VariationalSparse(cov_func=cov)
            gp.prior("u", Xu=X, jitter=1e-6)
            gp.likelihood("y", vsgp.Bernoulli("probit"), X=X, y=y)
        else:
            f = pm.gp.Latent(cov_func=cov).prior("f", X)
            pm.Bernoulli("y", p=0.5 * pm.math.erfc(-f / np.sqrt(2.0)), observed=y)
    return model


def make_step(name, model):
    settings = {"model": model, "compile_kwargs": {"mode": MODE}}
    theta = [model["tau"], model["sigma"]]
    if name.startswith("PM"):
        _, which, n = name.split()
        approximation = {"LA": "laplace", "EP": "ep"}[which]
        number = int(n.strip("()"))
        return PseudoMarginal(theta, approximation=approximation, n_importance=number, **settings)
    repeats = REPEATS if name.endswith("x20") else 1
    schemes = [SCHEMES[name.split()[0]]] * repeats
    slices = 10 if name.endswith(" 10") else repeats
    return Interweaving(theta, schemes=schemes, n_updates=slices, **settings)


def walk(block, name):
    """Run a step method, each chain from a draw of the prior."""
    model = build(block)
    step = make_step(name, model)
    few = 4 if name.endswith("x20") else 1
    tune, draws = TUNE // few, DRAWS // few
    d, inputs = model["tau"].type.shape, int(block.split(",")[1])
    chains, accept, factors, seconds = [], [], 0.0, 0.0
    for c in range(CHAINS):
        rng = np.random.default_rng(c)
        step.setup_chain(rng, tune, draws)
        point = model.initial_point()
        # Not so near zero that no kernel has a factor.
        point["tau_log__"] = np.log(np.maximum(rng.gamma(1.0, np.sqrt(inputs), size=d), 0.05))
        point["sigma_log__"] = np.log(np.maximum(rng.gamma(1.2, 5.0), 0.05))
        kept = []
        for i in range(tune + draws):
            if i == tune:
                step.stop_tuning()
                began = time.process_time()
            point, (stats,) = step.step(point)
            if i >= tune:
                kept.append(np.r_[np.ravel(point["tau_log__"]), point["sigma_log__"]])
                accept.append(stats["accept"])
                factors += 2.0 + stats["n_iterations"] if "n_iterations" in stats else 0.0
        seconds += time.process_time() - began
        chains.append(kept)
    factors = factors / (CHAINS * draws) or FACTORS[name.split()[0]]
    x = np.array(chains).transpose(2, 0, 1)
    found = summary(x) | {"accept": float(np.mean(accept)), "factors": factors}
    found |= {"seconds": seconds, "draws": CHAINS * draws}
    if name == "PM EP (64)":
        found["thinned"] = summary(x[..., ::REPEATS])["ess"]  # of 10,000 thinned ones
    return found


def package(block, name):
    """Sample with the package."""
    with build(block, sparse=True):
        stage = vsgp.fit_gaussian(random_seed=1, progressbar=False)
        began = time.process_time()
        settings = {"stage": stage, "random_seed": 1, "progressbar": False}
        if name == "importance":
            idata = vsgp.sample(DRAWS // 4, method="importance", **settings)
        else:
            settings |= {"nuts_sampler": "pymc", "cores": 1, "chains": CHAINS}
            settings |= {"compute_convergence_checks": False}
            idata = vsgp.sample(DRAWS // 4, method="nuts", **settings)
        seconds = time.process_time() - began
    post, attrs = idata["posterior"], idata["posterior"].attrs
    log_tau = np.log(post["tau"].values)
    log_tau = log_tau[None] if log_tau.ndim == 2 else np.moveaxis(log_tau, -1, 0)
    x = np.concatenate([log_tau, np.log(post["sigma"].values)[None]])
    found = summary(x) | {"draws": x[0].size}
    if name == "importance":
        # Several of epsilon share the factors of a theta, so that this counts too many.
        factors = FACTORS[name] * attrs["n_evaluations"] / found["draws"]
        kept = {"refused": attrs["refused"], "khat": attrs["khat"]}
        return found | kept | {"seconds": seconds, "factors": factors}
    stats = idata["sample_stats"]
    found["seconds"] = float(stats["process_time_diff"].sum())
    found["factors"] = FACTORS[name] * float(stats["n_steps"].mean())
    return found | {"accept": float(stats["acceptance_rate"].mean())}


def summary(x):
    """Return what is kept of draws, by parameter; the smallest ESS is per 10,000 draws."""
    ess = min(float(az.ess(p)) for p in x)
    return {
        "ess": ess / x[0].size * 10_000,
        "mean": [float(p.mean()) for p in x],
        "mcse": [float(az.mcse(p)) for p in x],
        "rhat": max(float(az.rhat(p)) for p in x) if x.shape[1] > 1 else None,
    }


def page(found):
    """Return the tables."""
    lines = []
    for block in [b for b in BLOCKS if b in found]:
        rows = found[block]
        n, d, kernel = block.split(",")
        sizes = f"n = {n}, d = {d}, {'one lengthscale' if kernel == 'iso' else 'ARD'}"
        lines += [
            f"### {sizes}",
            "",
            "| scheme | min ESS | published | per CPU second | per 100 factors | acceptance, % "
            "| R-hat | mean log sigma |",
            "|---|---|---|---|---|---|---|---|",
        ]
        published = dict(zip(METHODS, PUBLISHED[block], strict=False))
        for name in [m for m in METHODS if m in rows and not m.endswith("x20")]:
            r = rows[name]
            rate = r["ess"] / 10_000  # of an effective draw in a draw
            accept = f"{100 * r['accept']:.0f}" if "accept" in r else ""
            rhat = f"{r['rhat']:.2f}" if r["rhat"] else ""
            label = name.replace(" 10", ", 10 slices")
            lines.append(
                f"| {label} | {r['ess']:.0f} | {published.get(name, '')} "
                f"| {rate * r['draws'] / r['seconds']:.3g} | {100 * rate / r['factors']:.2g} "
                f"| {accept} | {rhat} | {r['mean'][-1]:.2f} ± {r['mcse'][-1]:.2f} |"
            )
        lines.append("")
        thrice = ("PM EP (64)", "AA x20", "SURR x20")
        if not any(name in rows for name in thrice[1:]):
            continue
        lines += [
            "| each update 20 times | min ESS | published | per factor | published |",
            "|---|---|---|---|---|",
        ]
        for name, (ess, per) in zip(thrice, PUBLISHED_20[block], strict=True):
            if name in rows:
                mine = rows[name].get("thinned", rows[name]["ess"])
                factors = rows[name]["factors"]
                name = name.removesuffix(" x20")
                lines.append(f"| {name} | {mine:.0f} | {ess} | {mine / factors:.0f} | {per} |")
        lines.append("")
    return "\n".join(lines)


def main(blocks, methods):
    store = RESULTS / "pseudo_marginal.json"
    found = json.loads(store.read_text()) if store.exists() else {}
    for block in blocks:
        for name in methods:
            if name in found.setdefault(block, {}):
                continue
            run = package if name in ("importance", "NUTS") else walk
            found[block][name] = run(block, name)
            store.write_text(json.dumps(found, indent=1) + "\n")
            print(block, name, found[block][name], flush=True)
    (RESULTS / "pseudo_marginal.md").write_text(page(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("block", nargs="?", choices=BLOCKS)
    parser.add_argument("method", nargs="*", choices=[*METHODS, []])
    given = parser.parse_args()
    main([given.block] if given.block else BLOCKS, given.method or METHODS)
