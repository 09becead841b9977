"""Table I of Filippone and Girolami (2014), its block n = 50, d = 2, isotropic, on shorter chains.

Data are simulated from the prior as there: n points in the unit square, a probit, balanced classes,
Gamma(1, rate 1/sqrt(d)) for the lengthscale and Gamma(1.2, rate 0.2) for the variance. Chains are
shorter than those of the paper, and ESS is given per 10,000 iterations.

    python benchmarks/reproduction/pseudo_marginal.py            # resumes; one JSON entry a method
"""

import json
import pathlib
import sys
import time

import arviz as az
import numpy as np
import pymc as pm

from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

from pymc_vsgp.steps import Interweaving, PseudoMarginal

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
N, D = 50, 2
TUNE, DRAWS, CHAINS = 1000, 5000, 4
# Interpreted: graphs are small, and numba would compile a dozen of them for each method.
MODE = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_run").excluding("fusion")
PUBLISHED = {
    "PM LA (1)": "749 (73)",
    "PM LA (16)": "778 (61)",
    "PM EP (1)": "747 (100)",
    "PM EP (16)": "736 (163)",
    "AA": "287 (58)",
    "SURR": "154 (11)",
    "SA": "",
    "AA + SURR": "",
}


def simulate(rng):
    """Draw data until the classes are balanced."""
    while True:
        X = rng.uniform(size=(N, D))
        distance = ((X[:, None] - X) ** 2).sum(axis=-1)
        K = 2.08 * np.exp(-0.5 * distance / 0.35**2) + 1e-6 * np.eye(N)
        f = np.linalg.cholesky(K) @ rng.normal(size=N)
        y = (f + rng.normal(size=N) > 0.0).astype(int)
        if abs(y.sum() - N / 2) <= 2:
            return X, y


def build():
    X, y = simulate(np.random.default_rng(50))
    with pm.Model() as model:
        tau = pm.Gamma("tau", 1.0, 1.0 / np.sqrt(D))
        sigma = pm.Gamma("sigma", 1.2, 0.2)
        f = pm.gp.Latent(cov_func=sigma * pm.gp.cov.ExpQuad(D, ls=tau)).prior("f", X)
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
    names = {"SA": "sufficient", "AA": "ancillary", "SURR": "surrogate"}
    return Interweaving(theta, schemes=[names[n] for n in name.split(" + ")], **settings)


def run(name):
    model = build()
    step = make_step(name, model)
    chains, accept, evaluated = [], [], 0
    began = time.perf_counter()
    for c in range(CHAINS):
        rng = np.random.default_rng(c)
        step.setup_chain(rng, TUNE, DRAWS)
        draws = []
        point = model.initial_point()
        point["tau_log__"], point["sigma_log__"] = (
            np.array(rng.normal(-1, 1)),
            np.array(rng.normal()),
        )
        for i in range(TUNE + DRAWS):
            if i == TUNE:
                step.stop_tuning()
            point, (stats,) = step.step(point)
            if i >= TUNE:
                draws.append([point["tau_log__"], point["sigma_log__"]])
                accept.append(stats["accept"])
                evaluated += stats.get("n_iterations", 0)
        chains.append(draws)
    x = np.array(chains).transpose(2, 0, 1)
    return {
        "ess": [float(az.ess(p)) for p in x],
        "mean": [float(p.mean()) for p in x],
        "mcse": [float(az.mcse(p)) for p in x],
        "rhat": [float(az.rhat(p)) for p in x],
        "accept": float(np.mean(accept)),
        "iterations": evaluated / (CHAINS * DRAWS),
        "seconds": time.perf_counter() - began,
        "chains": CHAINS,
        "draws": DRAWS,
    }


def page(found):
    rows = [
        "| scheme | min ESS per 10,000 iterations | published | acceptance, % | R-hat "
        "| mean log tau | mean log sigma |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in PUBLISHED:
        if (r := found.get(name)) is None:
            continue
        ess = min(r["ess"]) / (r["chains"] * r["draws"]) * 10_000
        means = [f"{m:.2f} ± {e:.2f}" for m, e in zip(r["mean"], r["mcse"], strict=True)]
        rows.append(
            f"| {name} | {ess:.0f} | {PUBLISHED[name]} | {100 * r['accept']:.0f} "
            f"| {max(r['rhat']):.2f} | {means[0]} | {means[1]} |"
        )
    return "\n".join(rows) + "\n"


def main(names):
    store = RESULTS / "pseudo_marginal.json"
    found = json.loads(store.read_text()) if store.exists() else {}
    for name in names or PUBLISHED:
        if name not in found:
            found[name] = run(name)
            store.write_text(json.dumps(found, indent=1) + "\n")
            print(name, found[name], flush=True)
    (RESULTS / "pseudo_marginal.md").write_text(page(found))


if __name__ == "__main__":
    main(sys.argv[1:])
