"""What moving inducing points by draws of the posterior gains (Hensman et al. 2015, equation 11).

Usage: ``python improve_inducing.py [--cases A B ...] [--starts ...]``. Runs in the environment that
it is started in; what is in `results/improve_inducing.json` already is kept.

With C(Z) the normalizer of the free-form posterior, the divergence from the exact posterior is
log p(y) - log C(Z). At fixed coordinates x of the draws, its gradient is estimated by that of

    log C(Z') - log C(Z) = log mean_s exp(H(x_s; Z') - H(x_s; Z)),

with H the log density of the model: equation 11 at Z' = Z, and the same with importance weights
beyond. Points move by L-BFGS while the weights of the draws are worth half of these, then draws are
made anew. log C(Z) itself is the log evidence of the package's importance weights, which need no
estimate of this script. Coordinates x are those of the Gaussian stage; for normal noise the
inducing values are integrated out, and x is theta alone.
"""

import argparse
import json
import pathlib
import time

import envs
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pytensor.graph.replace import graph_replace
from scipy.optimize import minimize
from scipy.special import logsumexp

import pymc_vsgp as vsgp

from pymc_vsgp.compile import function, simplify
from pymc_vsgp.fit.collapsed import can_collapse, collapse

RESULTS = pathlib.Path(__file__).parent / "results"
DRAWS, WEIGHED = 200, 500  # that the gradient is estimated from, and that log C is
WORTH = 0.5
QUIET = {"progressbar": False}
STARTS = ("k-means", "greedy variance", "Gaussian stage")


def snelson():
    """Normal noise, one input, 200 rows."""
    data = vsgp.datasets.load_snelson1d()
    x, y = (data[c].to_numpy() for c in data.columns)
    return x[:, None], y, 8, lambda: vsgp.Gaussian(pm.HalfNormal("sigma"))


def banana():
    """Two classes by probit, two inputs, 400 rows."""
    data = vsgp.datasets.load("raetsch_banana")
    rows = data["train_idx"][0]
    return data["X"][rows], data["y"][rows] > 0, 10, lambda: vsgp.Bernoulli("probit")


def image():
    """Two classes by probit, 18 inputs, 500 rows: the image data of the paper."""
    data = vsgp.datasets.load("raetsch_image")
    rows = np.random.default_rng(1).permutation(data["unique_idx"])[:500]
    X = data["X"][rows].astype(float)
    X = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 1e-6, X.std(axis=0), 1.0)
    return X, data["y"][rows] > 0, 10, lambda: vsgp.Bernoulli("probit")


CASES = {f.__name__: f for f in (snelson, banana, image)}


def build(case, Z):
    X, y, _, likelihood = CASES[case]()
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", 3.0, 3.0 * np.sqrt(X.shape[1]))
        variance = pm.Gamma("variance", 1.1, 0.5)
        gp = vsgp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(X.shape[1], lengthscale))
        gp.prior("u", Xu=Z)
        gp.likelihood("y", likelihood(), X=X, y=y if case == "snelson" else y.astype(int))
    return model


class Evidence:
    """log C and its gradient, as draws of a model tell them."""

    def __init__(self, model, stage, seed):
        self.model, began = model, time.process_time()
        with model:
            self.idata = vsgp.sample(
                WEIGHED, stage=stage, method="importance", random_seed=seed, **QUIET
            )
        attrs = self.idata["posterior"].attrs
        self.log_c, self.refused = attrs["log_evidence"], attrs["refused"]
        self.error = 1.0 / np.sqrt(attrs["importance_ess"])
        self.seconds = time.process_time() - began

    def prepare(self):
        """Compile the log density of draws and its gradient in Z."""
        model = self.model
        if can_collapse(model):
            model = collapse(model).model
        values = [
            rv if (t := model.rvs_to_transforms[rv]) is None else t.forward(rv, *rv.owner.inputs)
            for rv in model.free_RVs
        ]
        to_values = function(model.free_RVs, values)
        post = self.idata["posterior"].isel(chain=0)
        draws = post.isel(draw=slice(None, None, post.sizes["draw"] // DRAWS))
        arrays = [draws[rv.name].values for rv in model.free_RVs]
        self.points = [to_values(*row) for row in zip(*arrays, strict=True)]
        inputs = [model.rvs_to_values[rv] for rv in model.free_RVs]
        Z = pt.dmatrix("Z")
        (logp,) = graph_replace([simplify(model.logp())], {model["u_Xu"]: Z}, strict=False)
        self.fn = function([Z, *inputs], [logp, pytensor.grad(logp, Z)])
        return self

    def __call__(self, Z):
        """Log densities of the draws, and their gradients."""
        each = [self.fn(Z, *p) for p in self.points]
        return np.array([e[0] for e in each]), np.stack([e[1] for e in each])


def moved(evidence, Z):
    """Move points while the draws' weights are worth enough."""
    base, _ = evidence(Z)
    n, best, evaluations = len(base), (0.0, Z), 0

    def objective(z):
        nonlocal best, evaluations
        evaluations += 1
        logp, slopes = evidence(z.reshape(Z.shape))
        log_w = np.where(np.isfinite(logp), logp - base, -np.inf)
        gain = logsumexp(log_w) - np.log(n)
        w = np.exp(log_w - logsumexp(log_w))
        worth = 1.0 / (n * (w**2).sum())
        if worth < WORTH or not np.isfinite(gain):  # a wall, that the line search comes back from
            return 1e3, np.zeros_like(z)
        if gain > best[0]:
            best = gain, z.reshape(Z.shape).copy()
        return -gain, -np.tensordot(w, slopes, axes=1).ravel()

    minimize(objective, Z.ravel(), jac=True, method="L-BFGS-B", options={"maxfun": 12})
    return *best, evaluations


def signal(slopes):
    """Return the length of the mean gradient over that of its Monte Carlo error."""
    error = slopes.std(axis=0) / np.sqrt(len(slopes))
    return float(np.linalg.norm(slopes.mean(axis=0)) / np.linalg.norm(error))


def place(case, how):
    X, _, M, _ = CASES[case]()
    if how == "greedy variance":
        scale = np.sqrt(X.shape[1]) if X.shape[1] > 2 else 1.0
        return vsgp.inducing.greedy_variance(X, M, pm.gp.cov.ExpQuad(X.shape[1], scale))
    return vsgp.inducing.kmeans(X, M, random_seed=1)


def run(case, how, rounds):
    Z = place(case, how)
    model = build(case, Z)
    with model:
        began = time.process_time()
        stage = vsgp.fit_gaussian(move_inducing=how == "Gaussian stage", random_seed=1, **QUIET)
        out = {"stage_seconds": time.process_time() - began, "elbo": stage.elbo, "rounds": []}
    Z = stage.Xu["u_Xu"]
    for i in range(rounds + 1):
        evidence = Evidence(model, stage, seed=i)
        known = {"log_c": evidence.log_c, "error": evidence.error, "refused": evidence.refused}
        out["rounds"].append(known | {"draw_seconds": evidence.seconds})
        if i == rounds:
            break
        began = time.process_time()
        evidence.prepare()
        if i == 0:
            out["signal"] = signal(evidence(Z)[1])
        gain, Z, n = moved(evidence, Z)
        out["rounds"][-1] |= {
            "promised": float(gain),
            "evaluations": n,
            "move_seconds": time.process_time() - began,
        }
        model = build(case, Z)
        with model:
            stage = vsgp.fit_gaussian(random_seed=1, **QUIET)
    return out


def table(found):
    rows = [
        "| data | start | log C of the start | moved by draws | rounds | gain, nats "
        "| gain that draws promised | first gradient over its error | CPU s of the stage "
        "| of draws and moves |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in [c for c in CASES if c in found]:
        for how in [s for s in STARTS if s in found[case]]:
            r = found[case][how]
            first, last = r["rounds"][0], r["rounds"][-1]
            error = np.hypot(first["error"], last["error"])
            spent = sum(x["draw_seconds"] + x.get("move_seconds", 0.0) for x in r["rounds"][:-1])
            promised = sum(x.get("promised", 0.0) for x in r["rounds"])
            rows.append(
                f"| {case} | {how} | {first['log_c']:.2f} | {last['log_c']:.2f} "
                f"| {len(r['rounds']) - 1} | {last['log_c'] - first['log_c']:.2f} ± {error:.2f} "
                f"| {promised:.2f} | {r['signal']:.1f} | {r['stage_seconds']:.0f} | {spent:.0f} |"
            )
    return "\n".join(rows) + "\n"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--starts", nargs="+", default=STARTS, choices=STARTS)
    parser.add_argument("--rounds", type=int, default=2, help="of moving points, and new draws")
    options = parser.parse_args(argv)
    store = RESULTS / "improve_inducing.json"
    found = json.loads(store.read_text()) if store.exists() else {}
    for case in options.cases:
        for how in options.starts:
            if how in found.setdefault(case, {}):
                continue
            found[case][how] = run(case, how, options.rounds)
            envs.save(store, json.dumps(found, indent=1) + "\n", kept=True)
            print(case, how, json.dumps(found[case][how]), flush=True)
    envs.save(RESULTS / "improve_inducing.md", table(found), kept=True)


if __name__ == "__main__":
    main()
