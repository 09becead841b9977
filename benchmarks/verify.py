"""Run the cheapest case of each table again, and compare with what is committed.

    python benchmarks/verify.py                   # all, in some minutes
    python benchmarks/verify.py evidence image    # some

Numbers without chance must agree to the digits that a change of rounding leaves, those of draws
within four Monte Carlo errors. Ratios of times are shown beside what is committed, and never fail:
a factor above 2 says more of the machine than of the code. Nothing is written.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
import traceback

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm

HERE = Path(__file__).resolve().parent
RESULTS, PAGES = HERE / "results", HERE.parent / "docs" / "reproduction"
sys.path[:0] = [str(HERE), str(HERE / "reproduction")]
os.environ.setdefault("PYMC_VSGP_BENCH_PYMC", sys.executable)

# What has no case of a few minutes, or nothing but times of another machine.
LEFT = {
    "check": "make bench-check compares it",
    "classes": "sampled for minutes; classes_accuracy has its Gaussian stage",
    "gradient_million": "a million rows; gradient has the same code",
    "mnist": "an hour",
    "three_classes": "minutes; classes_accuracy has the same model",
    "rough_map": "four CPU minutes; rough_counts has the same code",
    "after_sampling": "no committed result",
    "gpu": "no committed result",
}
CHECKS = {}


def check(f):
    """Register a check, which yields what, found, committed, and how far they may be apart."""
    CHECKS[f.__name__] = f
    return f


def committed(name, folder=RESULTS):
    return json.loads((folder / f"{name}.json").read_text())


def published(name):
    return committed(name, PAGES)["results"]


def errors(a, b):
    """Four Monte Carlo errors of a difference."""
    return 4.0 * float(np.hypot(a, b))


def times(what, found, known):
    """Seconds, which are only shown."""
    return f"{what}, s", found, known, None


@check
def evidence():
    import evidence

    found, known = evidence.one(50, 2, 1.0), committed("evidence")[0]
    error = errors(found["reference_se"], known["reference_se"])
    yield "log evidence", found["reference"], known["reference"], error
    for name, a, b in zip(("Laplace", "EP", "ELBO"), found["error"], known["error"], strict=True):
        yield f"error of {name}", a, b, error + 1e-4


@check
def reliability():
    import reliability

    known = next(r for r in committed("reliability") if r["kernel"] == "Matern12")
    found = reliability.one("Matern12", known["likelihood"], "JAX", 500)
    for name in ("NaN", "gradient", "plus infinity", "minus infinity"):
        yield name, found[name], known[name], 0


@check
def fuzz(examples=200):
    import fuzz

    known = committed("fuzz")
    for name in ("inducing.kmeans", "inducing.grid", "point_process PointProcess"):
        counts, _ = fuzz.one(name, examples)
        yield f"faults, {name}", counts["faults"], known[name]["faults"], 0


@check
def importance():
    import importance

    known = committed("importance")["vague"]["importance"]
    found = importance.run("vague", "importance")
    for name, b in known["summary"].items():
        a = found["summary"][name]
        yield f"mean of {name}", a["mean"], b["mean"], errors(a["mcse"], b["mcse"])
    sizes = [x["importance_ess"] for x in (found, known)]
    yield (
        "log evidence",
        found["log_evidence"],
        known["log_evidence"],
        errors(*np.power(sizes, -0.5)),
    )
    yield "accepted", not found["refused"], not known["refused"], 0
    yield "k-hat", found["khat"], known["khat"], errors(*(khat_error(x) for x in (found, known)))
    yield times("stage", found["cpu_stage"], known["cpu_stage"])


def khat_error(found, draws=4000):
    """Of the fit to the 3 sqrt(draws) largest weights."""
    return (1.0 + found["khat"]) / np.sqrt(3.0 * np.sqrt(draws))


@check
def importance_exact():
    import importance_exact

    known = committed("importance_exact")["bernoulli"]
    with pm.Model() as model:
        importance_exact.CASES["bernoulli"][0]()
    found = importance_exact.of_importance(model)
    for name, a in found["theta"].items():
        b = known["importance"]["theta"][name]
        yield f"mean of log {name}", a["mean"], b["mean"], errors(a["mcse"], b["mcse"])
        yield f"± of log {name}", a["reported"], b["reported"], 1e-2
    yield "agrees with quadrature", importance_exact.right(known | {"importance": found}), True, 0


@check
def following():
    import following

    name = "counts, 64 points"
    known, found = committed("following")[f"{name}; 1; 1"], following.run(name, 1)
    yield "ELBO", found["elbo"], known["elbo"], 0.01
    yield "rounds", found["rounds"], known["rounds"], 1
    yield "by weights", found["method"] == known["method"] == "importance", True, 0


@check
def sums():
    import sums

    key = "counts: trend and season; together; 1"
    known, found = committed("sums")[key], sums.run("counts: trend and season", 1, "together")
    for what in ("sd[0]", "sd[1]", "ls", "ls_season"):
        a, b = (np.log(x["means"][what]) for x in (found, known))
        yield f"mean of log {what}", a, b, 0.1
    yield "mixes", found["rhat"] < 1.01 and not found["divergences"], True, 0


@check
def khat():
    import khat

    known, found = committed("khat")["readme"], khat.measure(khat.CASES["readme"](), 4)
    for what in ("mean", "variance"):
        a, b = (np.sqrt(np.mean([x[what] ** 2 for x in of])) for of in (found, known))
        yield f"error of a {what} in standard errors", a, b, 0.4
    a, b = (np.mean([x["khat"] for x in of]) for of in (found, known))
    yield "k-hat", a, b, errors(0.1, 0.1)


@check
def optima():
    import optima

    known, found = committed("optima")["normal noise"][:6], optima.run("normal noise", 6)
    for seed, (a, b) in enumerate(zip(found, known, strict=True)):
        yield f"ELBO of data set {seed}", a["one"]["elbo"], b["one"]["elbo"], 0.05
        sizes = [x["one"]["importance_ess"] for x in (a, b)]
        levels = [x["one"]["log_evidence"] for x in (a, b)]
        yield f"log evidence of data set {seed}", *levels, errors(*np.sqrt(1.0 / np.array(sizes)))


@check
def improve_inducing():
    import improve_inducing

    known = committed("improve_inducing")["snelson"]["k-means"]
    found = improve_inducing.run("snelson", "k-means", 0)
    yield "ELBO", found["elbo"], known["elbo"], 1e-2
    a, b = found["rounds"][0], known["rounds"][0]
    yield "log C", a["log_c"], b["log_c"], errors(a["error"], b["error"])


@check
def inducing_check():
    import inducing_check

    case, n = "coal, 100 counts", 15
    known = _first(committed("inducing_check")[case], M=n)
    (found,) = inducing_check.run(case, seeds=(1,), numbers=(n,))
    yield "true shift", found["shift"], known["shift"], 2e-3
    yield "predicted shift", found["checks"][0]["shift"], known["checks"][0]["shift"], 0.02


@check
def bins():
    import bins

    (found,), known = bins.run(bins=(16,), nodes=()), committed("bins")[0]
    yield "ELBO", found[2], known[2], 1e-3
    yield "lengthscale", found[3], known[3], 1e-2


@check
def softmax_expectation():
    import softmax_expectation

    known = committed("softmax_expectation")
    for name, errors_found in softmax_expectation.run().items():
        for gamma, a, b in zip(softmax_expectation.GAMMAS, errors_found, known[name], strict=True):
            yield f"{name}, gamma {gamma:g}", a, b, 1e-6


@check
def soft_borders():
    import soft_borders

    m, noise = soft_borders.CASES[1]
    known = _first(committed("soft_borders"), M=m, noise=noise)
    found = soft_borders.run(m, noise)
    yield "steps a draw", found["steps"], known["steps"], 0.3 * known["steps"]
    yield "divergences", found["divergences"], known["divergences"], 0
    yield times("NUTS", found["seconds"], known["seconds"])


@check
def compiling():
    import compiling

    for found, known in zip(compiling.run(), committed("compiling"), strict=True):
        a, b = (sum(n for n, _ in row["numba"].values()) for row in (found, known))
        yield f"functions, {known['what']}", a, b, 10
        yield times("all", found["all"], known["all"])


@check
def neighbors_divergence():
    import neighbors_divergence

    known = committed("neighbors_divergence")[0]
    found = neighbors_divergence.one(*known[:2], numbers=(5, 10))[0]
    for m, a, b in zip((5, 10), found[3:], known[3:5], strict=True):
        yield f"nats, m = {m}", a, b, 2e-3


@check
def calibration(n=50):
    import calibration

    found, known = calibration.run("Gaussian", n), committed("calibration")["Gaussian"]
    spread = known["n_ranks"] / np.sqrt(6.0)  # of a rank about its mean, at most
    for name, ranks in found["ranks"].items():
        a, b = (np.ravel(x[:n]).mean() for x in (ranks, known["ranks"][name]))
        yield f"mean rank of {name}", a, b, 4.0 * spread / np.sqrt(n)
    yield times("a replicate", found["cpu"] / n, known["cpu"] / 200)


@check
def rough_counts():
    import rough_counts

    X, y, f = rough_counts.simulate(2000)
    name, mean, sd, seconds = rough_counts.vsgp(X, y, rough_counts.arguments(["vsgp"]))
    known = committed("rough_counts")[f"{name}, 2000 rows"]
    for what, a in rough_counts.scores(f, mean, sd).items():
        yield what, a, known[what], 0.01
    yield times("stage", seconds["stage"], known["seconds"]["stage"])


@check
def long_series():
    import long_series

    name, found = long_series.run(3000, 100, "stage")
    known = committed("long_series")[name]
    for what in ("RMSE", "coverage", "sigma, truly 0.5"):
        yield what, found[what], known[what], 0.02
    yield times("stage", found["seconds"]["stage"], known["seconds"]["stage"])


@check
def space_time():
    import space_time

    *case, f = space_time.simulate(15, 30)
    name, _, draws, seconds = space_time.RUNS["kronecker"](*case, 1000)
    known = committed("space_time")[f"{name}, 15 sites, 30 times"]
    draws = draws.reshape(-1, f.size)
    for what, a in space_time.scores(f, draws.mean(axis=0), draws.std(axis=0)).items():
        yield what, a, known[what], 0.03
    yield times("sample", seconds["sample"], known["seconds"]["sample"])


@check
def gambia():
    import gambia

    post, seconds = gambia.sample(*gambia.read(), True)
    text = (RESULTS / "gambia.md").read_text()
    for name in ("lengthscale", "scale", "intercept"):
        row = re.search(rf"\| {name} \| ([-\d.]+) ± ([\d.]+) \|.*\| ([\d.]+) \|", text).groups()
        mean, sd, error = map(float, row)
        yield f"mean of {name}", float(post[name].mean()), mean, 4.0 * sd * error
    yield times("exact", seconds, float(re.search(r"exact (\d+) CPU s", text)[1]))


@check
def repeated_inputs():
    import repeated_inputs

    X, y, likelihood = repeated_inputs.gambia()
    values = []
    for model in repeated_inputs.models(X, y, likelihood, np.unique(X, axis=0)).values():
        point = {k: np.asarray(v) + 0.1 for k, v in model.initial_point().items()}
        values.append(float(model.compile_logp(mode="FAST_COMPILE")(point)))
    yield "by distinct inputs and by rows", values[0] / values[1] - 1.0, 0.0, 1e-10


@check
def neighbors_rows():
    from queue import SimpleQueue

    import neighbors_rows

    queue = SimpleQueue()
    neighbors_rows.measure(10_000, 10, queue)
    row = re.search(r"10,000 \|(.*)\|", (RESULTS / "neighbors_rows.md").read_text())[1]
    found, known = queue.get(), [float(x) for x in row.split("|")]
    for what, b in zip(neighbors_rows.COLUMNS[1:3], known, strict=False):
        yield times(what.removesuffix(", s"), found[what], b)


@check
def prediction():
    import prediction

    text = (RESULTS / "prediction.md").read_text()
    known = float(re.search(r"summary \| 100,000 \| ([\d.]+)", text)[1])
    found = prediction.run("summary", 100_000, 100, 600)
    yield times("100,000 inputs", found["seconds"], known)


@check
def features():
    import features

    job = {"case": "coal", "kind": "points", "rung": 15, "seed": 1}
    known = next(r for r in committed("features") if job.items() <= r.items())
    options = SimpleNamespace(chains=2, timeout=900)
    found = features.run(*list(job.values())[:3], known["draws"], 1, options)
    for name in known["theta"]:
        (a, a_sd), (b, b_sd) = found["theta"][name], known["theta"][name]
        sizes = [np.sqrt(r["ess"][name]) for r in (found, known)]
        yield f"mean of {name}", a, b, errors(a_sd / sizes[0], b_sd / sizes[1])
    yield times("all", found["cpu_seconds"], known["cpu_seconds"])


@check
def features_cost():
    import features_cost

    known = committed("features_cost")[0]
    model, _, _ = features_cost.model_of(*known["setting"])
    found, _ = features_cost.milliseconds(model, known["mode"])
    yield times("a gradient", found / 1e3, known["ms"] / 1e3)


@check
def types_of_features():
    import types_of_features as types

    known = committed("types_of_features")["plane"]["needed"][2]
    found = types.plane_number(known["p"], known["lengthscale"])
    for what, a, b in zip(("box", "disc"), found, known["isotropic"], strict=True):
        yield f"waves of a {what}", a, b, 0


@check
def classes_accuracy():
    import classes_accuracy

    results = committed("classes_accuracy")["results"]
    name = min(results, key=lambda n: results[n][0]["cpu_s"])
    found, known = next(classes_accuracy.run(name)), results[name][0]
    error = np.sqrt(known["accuracy"] * (1.0 - known["accuracy"]) / known["test"])
    yield f"accuracy, {name}", found["accuracy"], known["accuracy"], error
    yield "log density", found["log_density"], known["log_density"], 0.01
    yield times("all", found["cpu_s"], known["cpu_s"])


@check
def gradient():
    import gradient

    few = {"rounds": 3, "evaluations": 5, "once": True, "threads": 1, "tiny": False}
    found = gradient.run_case("a", ["vsgp_numba", "numpy"], SimpleNamespace(**few))["results"]
    known = {r["baseline"]: r for r in committed("gradient")["cases"]["a"]["results"].values()}
    a, b = (
        np.median(r["vsgp_numba"]["cpu"]) / np.median(r["numpy"]["cpu"]) for r in (found, known)
    )
    yield "times of numpy", float(a), float(b), None


@check
def sampling():
    import sampling

    known = committed("sampling")
    options = SimpleNamespace(**known["options"])
    (HERE / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HERE / ".cache") as folder:
        case, _ = sampling.write_case("coal", Path(folder), False)
        found = sampling.run("vsgp", case, Path(folder), options)
    known = known["cases"]["coal"]["results"]
    for i, name in enumerate(("lengthscale", "variance")):
        a, b = (r["sd_theta"][i] / np.sqrt(r["ess_theta"]) for r in (found, known["vsgp"]))
        yield (
            f"mean of {name}",
            found["mean_theta"][i],
            known["vsgp"]["mean_theta"][i],
            errors(a, b),
        )
    yield times("all", found["cpu_s"], known["vsgp"]["cpu_s"])


@check
def scaling():
    import scaling

    known = committed("scaling")["alone"][0]
    found = scaling.run([(known["n"], known["m"])], seconds=0.1)[0][0]
    yield "value", found["value"], known["value"], 1e-9 * abs(known["value"])
    yield "norm of the gradient", found["norm"], known["norm"], 1e-9 * known["norm"]
    yield times("a gradient", found["cpu"], known["cpu"])


@check
def waiting():
    import shutil

    import envs
    import waiting

    known = [r for r in committed("waiting")["runs"] if r["state"] == "warm"]
    known = min((r for r in known if "plot" in r.get("seen", ())), key=lambda r: r["seen"]["plot"])
    cache = envs.fresh_cache()
    waiting.run(known["model"], known["sampler"], cache, 600, 10)  # Python compiles its modules
    found = waiting.run(known["model"], known["sampler"], cache, 600)
    shutil.rmtree(cache, ignore_errors=True)
    yield f"{known['model']} by {known['method']}", found["method"] == known["method"], True, 0
    yield times("a plot", found["seen"]["plot"][1], known["seen"]["plot"][1])


@check
def pseudo_marginal(block="50,2,iso", method="PM LA (1)"):
    import pseudo_marginal

    known = committed("pseudo_marginal")[block]
    method = min((m for m in known if "draws" in known[m]), key=lambda m: known[m]["seconds"])
    found, known = (
        pseudo_marginal.RUN.get(method, pseudo_marginal.walk)(block, method),
        known[method],
    )
    rows = zip(found["mean"], known["mean"], found["mcse"], known["mcse"], strict=True)
    for i, (a, b, a_error, b_error) in enumerate(rows):
        yield f"{method}: mean {i}", a, b, errors(a_error, b_error)


@check
def hmc_gibbs():
    import hmc_gibbs

    known = committed("hmc_gibbs")["isotropic,5,HMC"]
    found = hmc_gibbs.one(*hmc_gibbs.fit("isotropic", 5), 5, "HMC")
    yield "acceptance", found["accept"][0], known["accept"][0], 0.05
    yield "mean of the first parameter", found["mean_theta"][0], known["mean_theta"][0], 0.1
    yield times("all", found["seconds"], known["seconds"])


@check
def coal():
    import coal

    from common import original_permutation

    import pymc_vsgp as vsgp

    known = published("coal")["splits"][0]
    dates = vsgp.datasets.load_coal()["date"].to_numpy()
    bins = np.linspace(dates.min(), dates.max(), 101)
    options = SimpleNamespace(smoke=False)
    order = original_permutation(len(dates), 0)
    train, test = (np.histogram(dates[r], bins)[0] for r in np.split(order, [coal.N_TRAIN]))
    X, width = (0.5 * (bins[:-1] + bins[1:]))[:, None], float(bins[1] - bins[0])
    model = coal.sparse(X, train, width, 30)
    with model:
        stage = coal.fit(options, random_seed=0)
    for name, b in known["theta_estimate"].items():
        yield name, float(stage.theta[name]), b, 1e-2 * b
    found = coal.score(coal.gaussian_draws(stage, options), X, test, model)
    yield "held-out score, Gaussian", found, known["gaussian"], 1e-2


@check
def snelson():
    import snelson

    import pymc_vsgp as vsgp

    known = published("snelson")
    x, y = (vsgp.datasets.load_snelson1d()[c].to_numpy()[::2] for c in "xy")
    theta = [known["theta"][k] for k in ("sd", "lengthscale", "noise_sd")]
    yield "log evidence", snelson.log_evidence(np.log(theta), x, y), known["log_evidence"], 1e-6
    bound = known["rows"][0]["bounds_of_all_starts"][0]
    yield "bound, M = 2", snelson.fit(2, 0, x, y, *theta).elbo, bound, 1e-2


@check
def pines():
    import pines

    X, counts, area = pines.cells(32)
    known = published("pines")["32"]["fourier"]
    with pines.sparse(X, counts, area, residual=0.02):
        stage = pines.fit(SimpleNamespace(smoke=False))
    yield "features", int(np.size(stage.mean["u"])), known["M"], 0
    yield "bound", stage.elbo, known["bound"], 0.05


def _first(rows, **of):
    return next(r for r in rows if of.items() <= r.items())


@check
def image():
    import image

    import pymc_vsgp as vsgp

    known = committed("image", PAGES)
    options = SimpleNamespace(smoke=False, rounds=known["settings"]["rounds"])
    found = image.one(vsgp.datasets.load("raetsch_image"), 0, 5, False, False, options, False)
    row = _first(known["results"]["runs"], seed=0, M=5, kernel="isotropic", inducing="k-means")
    yield "bound", found["bound"], row["bound"], 0.05
    a, b = (r["gaussian"]["log_density"] for r in (found, row))
    yield "held-out log density", a, b, 1e-3


@check
def raetsch():
    import raetsch

    import pymc_vsgp as vsgp

    known = published("raetsch")["thyroid"]["30%"]["maximum"]["runs"][0]
    file, n_train = raetsch.SETS["thyroid"]
    options = SimpleNamespace(smoke=False, gamma=0)
    found = raetsch.one(vsgp.datasets.load(file), 0, n_train, "30%", options, False)
    yield "bound", found["bound"], known["bound"], 0.05
    a, b = (r["gaussian"]["log_density"] for r in (found, known))
    yield "held-out log density", a, b, 5e-3


@check
def dense():
    import dense

    import pymc_vsgp as vsgp

    file, n_train = dense.SETS["thyroid"]
    data = vsgp.datasets.load(file)
    train, test = dense.split_of(data, 0, n_train)
    X, Xtest = dense.standardised(*(data["X"][rows].astype(float) for rows in (train, test)))
    sign = np.where(data["y"] > 0, 1.0, -1.0)
    kind, known = next(iter(published("dense")["thyroid"]["kinds"].items()))
    theta, parts = dense.fit(X, sign[train], *dense.KINDS[kind])
    yield f"score, {kind}", dense.score(theta, parts, X, Xtest, sign[test]), known["each"][0], 1e-4


def compare(what, found, known, allowed):
    """Print a comparison, and return whether it fails."""
    if allowed is None:
        print(f"  {what}: {found:.3g}, committed {known:.3g}, {found / known:.2f} times")
        return False
    off = abs(float(found) - float(known))
    wrong = not off <= allowed  # NaN, too
    note = f"  OFF by {off:.3g}, allowed {allowed:.3g}" if wrong else ""
    print(f"  {what}: {found:.6g}, committed {known:.6g}{note}")
    return wrong


def main():
    """Compare what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CHECKS), metavar="NAME")
    names = parser.parse_args().names
    unknown = set(names) - set(CHECKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    failed = []
    for i, name in enumerate(names, start=1):
        began = time.perf_counter()
        print(f"[{i}/{len(names)}] {name}", flush=True)
        try:
            wrong = [compare(*row) for row in CHECKS[name]()]
        except Exception:  # the others are still of use
            traceback.print_exc()
            wrong = [True]
        failed += [name] * any(wrong)
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)
    for name, why in LEFT.items() if len(names) == len(CHECKS) else ():
        print(f"not compared: {name}, {why}")
    print(f"{len(names)} compared, off: {', '.join(failed) or 'none'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
