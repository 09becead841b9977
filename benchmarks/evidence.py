"""Evidence at fixed parameters: Laplace, EP and the ELBO against importance sampling.

Labels with a probit, drawn as in `reproduction/pseudo_marginal.py`. The reference has 200,000
draws from EP's approximation. Times are CPU milliseconds once everything is compiled; the Gaussian
stage compiles in its own.

    python benchmarks/evidence.py
"""

import json
import pathlib
import sys
import time

import envs
import numpy as np
import pymc as pm

from scipy.special import logsumexp

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE
from pymc_vsgp.steps.latents import Latents
from pymc_vsgp.steps.predictor import Predictor, expectation_propagation, laplace

sys.path.insert(0, str(pathlib.Path(__file__).parent / "reproduction"))

from pseudo_marginal import simulate

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
DRAWS, BATCHES = 4000, 50


def timed(call, *args):
    began = time.process_time()
    found = call(*args)
    return found, 1e3 * (time.process_time() - began)


def one(n, d, scale):
    """Errors in nats, and milliseconds, where the kernel's deviation is `scale`."""
    X, y = simulate(n, d)
    cov = scale**2 * pm.gp.cov.ExpQuad(d, ls=0.35 * np.sqrt(d / 2))
    with pm.Model() as exact:
        f = pm.gp.Latent(cov_func=cov).prior("f", X)
        pm.Bernoulli("y", p=0.5 * pm.math.erfc(-f / np.sqrt(2.0)), observed=y)
    predictor = Predictor(Latents([f], exact, {"mode": ONCE}), by_rows=True)
    at = predictor.at(exact.initial_point())
    la, la_ms = timed(laplace, predictor, at)
    ep, ep_ms = timed(expectation_propagation, predictor, at)
    rng, log_w = np.random.default_rng(1), []
    for _ in range(BATCHES):
        nu, log_q = ep.draw(DRAWS, rng)
        log_w.append(predictor.log_density(at, nu) - log_q)
    log_w = np.concatenate(log_w)
    reference = logsumexp(log_w) - np.log(log_w.size)
    w = np.exp(log_w - reference)
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=X, jitter=1e-6)
        gp.likelihood("y", vsgp.Bernoulli("probit"), X=X, y=y)
        stage, stage_ms = timed(lambda: vsgp.fit_gaussian(progressbar=False, tol=1e-6))
    return {
        "n": n,
        "d": d,
        "scale": scale,
        "reference": float(reference),
        "reference_se": float(w.std() / np.sqrt(w.size)),
        "error": [float(e - reference) for e in (la.log_evidence, ep.log_evidence, stage.elbo)],
        "milliseconds": [la_ms, ep_ms, stage_ms],
    }


def page(rows):
    head = ["n", "d", "scale", "log evidence", "Laplace", "EP", "ELBO"]
    head += ["ms, Laplace", "ms, EP", "ms, Gaussian stage"]
    lines = [head, ["---"] * len(head)]
    for r in rows:
        lines.append(
            [r["n"], r["d"], r["scale"], f"{r['reference']:.3f} ± {r['reference_se']:.3f}"]
        )
        lines[-1] += [f"{e:+.3f}" for e in r["error"]]
        lines[-1] += [f"{t:.0f}" for t in r["milliseconds"]]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def main():
    rows = [one(n, d, scale) for n in (50,) for d in (2, 10) for scale in (1.0, 3.0)]
    envs.save(RESULTS / "evidence.json", json.dumps(rows, indent=1) + "\n")
    envs.save(RESULTS / "evidence.md", page(rows))


if __name__ == "__main__":
    main()
