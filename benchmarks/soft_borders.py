"""Robust-max with and without white noise in the kernel: steps a draw of NUTS.

Usage: ``python soft_borders.py``. Three clouds in the plane, one class each. Takes minutes.
"""

import json
import pathlib
import time

import arviz as az
import envs
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

RESULTS = pathlib.Path(__file__).parent / "results"
CASES = [(m, noise) for m in (12, 25, 50) for noise in (0.0, 0.3)]
CHAINS, TUNE, DRAWS = 2, 300, 300


def model_of(m, noise, rows=300):
    """Return a model with one lengthscale, and functions of a fixed scale."""
    rng = np.random.default_rng(1)
    y = np.arange(rows) % 3
    angle = 2.0 * np.pi * y / 3.0
    X = 1.35 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.5 * rng.normal(size=(rows, 2))
    with pm.Model() as model:
        ls = pm.InverseGamma("lengthscale", mu=1.5, sigma=0.7)
        cov = 4.0 * pm.gp.cov.ExpQuad(2, ls=ls)
        if noise:
            cov = cov + pm.gp.cov.WhiteNoise(noise)
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", vsgp.inducing.kmeans(X, m, random_seed=1), n_outputs=3)
        gp.likelihood("y", vsgp.RobustMax(3), X=X, y=y)
    return model


def run(m, noise):
    """Return what NUTS took."""
    with model_of(m, noise):
        stage = vsgp.fit_gaussian(random_seed=1, progressbar=False)
        began = time.process_time()
        settings = {"tune": TUNE, "chains": CHAINS, "cores": 1, "progressbar": False}
        idata = vsgp.sample(DRAWS, stage=stage, method="nuts", random_seed=1, **settings)
    seconds, stats = time.process_time() - began, idata["sample_stats"]
    found = az.summary(idata, var_names=["u", "lengthscale"], kind="diagnostics", round_to="none")
    return {
        "steps": float(stats["n_steps"].mean()),
        "divergences": int(stats["diverging"].sum()),
        "ESS": float(found["ess_bulk"].min()),
        "R-hat": float(found["r_hat"].max()),
        "seconds": seconds,
    }


def main():
    lines = [
        "| points | white noise | steps a draw | divergences | least ESS | largest R-hat | CPU s |",
        "|---" * 7 + "|",
    ]
    results = []
    for m, noise in CASES:
        row = run(m, noise)
        results.append({"M": m, "noise": noise, **row})
        lines.append(
            f"| {m} | {noise:g} | {row['steps']:.0f} | {row['divergences']} | {row['ESS']:.0f} | "
            f"{row['R-hat']:.2f} | {row['seconds']:.0f} |"
        )
        print(lines[-1], flush=True)
    said = f"\n{CHAINS} chains of {DRAWS} draws after {TUNE} of tuning.\n"
    envs.save(RESULTS / "soft_borders.json", json.dumps(results, indent=1) + "\n")
    envs.save(RESULTS / "soft_borders.md", "\n".join(lines) + "\n" + said)


if __name__ == "__main__":
    main()
