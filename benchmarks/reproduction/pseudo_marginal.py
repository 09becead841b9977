"""Tables I and III of Filippone and Girolami (2014), their real data, and two columns they lack.

Data are simulated from the prior as there: n points in the unit cube of d dimensions, a probit,
balanced classes, Gamma(1, rate 1/sqrt(d)) for lengthscales and Gamma(1.2, rate 0.2) for the
variance. The lengthscale that data are drawn with is 0.35 sqrt(d / 2), which is theirs for d = 2.
Real data have standardised inputs, one lengthscale, and Gamma(1.1, rate 0.1) for the variance.
There are four chains in place of ten, which are shorter. ESS is given per 10,000 iterations. Rows
that are in the file already are kept; some are of shorter chains than LENGTHS has now.

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

from common import envs
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import gamma
from scipy.stats.qmc import Sobol

import pymc_vsgp as vsgp

from pymc_vsgp.steps import Interweaving, PseudoMarginal, predictor

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
CHAINS = 4
REPEATS = 20  # of each update of Table III
REAL = {"Breast": "breast_wisconsin", "Pima": "pima"}  # files of PYMC_VSGP_DATA
OF_REAL = ["PM LA (1)", "AA 10", "SURR 10", "importance", "NUTS"]
INDUCING = 100  # of real data, for the last two
# Iterations of a chain, to tune and after that: of a block, or by the number of observations.
LONGER = "50,10,iso", "50,10,ARD"  # which take it
LENGTHS = {
    "PM": {"50": (300, 750), "200": (300, 1500)} | dict.fromkeys(LONGER, (500, 3000)),
    "PM EP (64)": {"50": (500, 3000), "200": (300, 1000)},
    "AA": {"50": (3000, 8000), "200": (4000, 20_000)} | dict.fromkeys(LONGER, (3000, 20_000)),
    "SURR": {"50": (3000, 6000), "200": (2000, 8000)} | dict.fromkeys(LONGER, (3000, 12_000)),
    "AA 10": {"50": (600, 3000), "200": (2000, 10_000)},
    "SURR 10": {"50": (600, 2500), "200": (600, 2500)},
    "AA x20": {"50": (150, 600), "200": (300, 1000)},
    "SURR x20": {"50": (150, 500), "200": (100, 300)},
    "NUTS": {"50": (300, 300), "200": (200, 150)} | dict.fromkeys(LONGER, (400, 700)),
    "importance": {"50": (0, 1000), "200": (0, 1000)},
}
for _name, _length in {
    "PM": (60, 120),
    "AA 10": (200, 1000),
    "SURR 10": (60, 150),
    "importance": (0, 1000),
    "NUTS": (300, 300),
}.items():
    LENGTHS[_name] |= dict.fromkeys(REAL, _length)
SCHEMES = {"SA": "sufficient", "AA": "ancillary", "SURR": "surrogate"}
# Operations of n^3 for each proposal of theta: the kernel's factor, and those given data. Gradients
# of a factor and of the product that solves with it are three more.
OPERATIONS = {"AA": 1.0, "SURR": 3.0, "SA": 1.0, "importance": 2.0, "NUTS": 5.0}
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
    "quadrature",  # of one lengthscale and 50 data: its error grows with their number
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
# Table II: mean operations of n^3 in an iteration, of LA and EP.
PUBLISHED_OPERATIONS = {
    "50,2,iso": (8.2, 16.3),
    "50,2,ARD": (8.8, 17.7),
    "50,10,iso": (7.8, 13.0),
    "50,10,ARD": (8.3, 13.7),
    "200,2,iso": (8.7, 15.5),
    "200,2,ARD": (9.3, 17.3),
    "200,10,iso": (7.6, 13.3),
    "200,10,ARD": (7.9, 13.2),
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


def data_of(block):
    """Return inputs, labels, and shape and rate of the prior of the variance."""
    if block not in REAL:
        n, d, _ = block.split(",")
        return *simulate(int(n), int(d)), (1.2, 0.2)
    table = vsgp.datasets.load(REAL[block]).dropna().to_numpy(float)
    X, y = table[:, :-1], table[:, -1].astype(int)
    return (X - X.mean(axis=0)) / X.std(axis=0), y, (1.1, 0.1)


def build(block, sparse=False):
    """Return the model: exact, or of inducing points.

    These are at all inputs of simulated data, which is the same posterior.
    """
    X, y, of_sigma = data_of(block)
    d = X.shape[1]
    with pm.Model() as model:
        tau = pm.Gamma("tau", 1.0, 1.0 / np.sqrt(d), shape=d if block.endswith("ARD") else ())
        sigma = pm.Gamma("sigma", *of_sigma)
        cov = sigma * pm.gp.cov.ExpQuad(d, ls=tau)
        if sparse:
            Xu = vsgp.inducing.kmeans(X, INDUCING, random_seed=1) if block in REAL else X
            gp = vsgp.VariationalSparse(cov_func=cov)
            gp.prior("u", Xu=Xu, jitter=1e-6)
            gp.likelihood("y", vsgp.Bernoulli("probit"), X=X, y=y)
        else:
            f = pm.gp.Latent(cov_func=cov).prior("f", X)
            pm.Bernoulli("y", p=0.5 * pm.math.erfc(-f / np.sqrt(2.0)), observed=y)
    return model


def make_step(name, model):
    theta = [model["tau"], model["sigma"]]
    if name.startswith("PM"):
        _, which, n = name.split()
        approximation = {"LA": "laplace", "EP": "ep"}[which]
        number = int(n.strip("()"))
        return PseudoMarginal(theta, approximation=approximation, n_importance=number, model=model)
    repeats = REPEATS if name.endswith("x20") else 1
    schemes = [SCHEMES[name.split()[0]]] * repeats
    slices = 10 if name.endswith(" 10") else repeats
    return Interweaving(theta, schemes=schemes, n_updates=slices, model=model)


def length(block, name):
    """Return the iterations of a chain, to tune and after that."""
    lengths = LENGTHS.get(name) or LENGTHS["PM"]
    return lengths.get(block) or lengths[block.split(",")[0]]


def counted(calls):
    """Have the iterations of Newton's method, which EP begins with, counted."""
    newton = predictor._newton

    def wrapped(*args):
        found = newton(*args)
        calls.append(found[0].n_iterations)
        return found

    predictor._newton = wrapped
    return newton


def walk(block, name):
    """Run a step method, each chain from a draw of the prior."""
    model = build(block)
    step = make_step(name, model)
    tune, draws = length(block, name)
    d, inputs = model["tau"].type.shape, data_of(block)[0].shape[1]
    shape, rate = data_of(block)[2]
    chains, accept, operations, seconds, calls = [], [], 0.0, 0.0, []
    newton = counted(calls)
    for c in range(CHAINS):
        rng = np.random.default_rng(c)
        step.setup_chain(rng, tune, draws)
        point = model.initial_point()
        # Not so near zero that no kernel has a factor.
        point["tau_log__"] = np.log(np.maximum(rng.gamma(1.0, np.sqrt(inputs), size=d), 0.05))
        point["sigma_log__"] = np.log(np.maximum(rng.gamma(shape, 1.0 / rate), 0.05))
        point = {k: np.asarray(v) for k, v in point.items()}
        kept = []
        for i in range(tune + draws):
            if i == tune:
                step.stop_tuning()
                began = time.process_time()
            calls.clear()
            point, (stats,) = step.step(point)
            if i >= tune:
                kept.append(np.r_[np.ravel(point["tau_log__"]), point["sigma_log__"]])
                accept.append(stats["accept"])
                if "n_iterations" in stats:
                    # An iteration of EP has a factor, and marginal variances. Two are the kernel's.
                    n = calls[-1] if calls else 0
                    operations += 2.0 + n + 2.0 * (stats["n_iterations"] - n)
        seconds += time.process_time() - began
        chains.append(kept)
    predictor._newton = newton
    operations = operations / (CHAINS * draws) or OPERATIONS[name.split()[0]]
    x = np.array(chains).transpose(2, 0, 1)
    found = summary(x) | {"accept": float(np.mean(accept)), "operations": operations}
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
        tune, draws = length(block, name)
        if name == "importance":
            idata = vsgp.sample(draws, method="importance", **settings)
        else:
            settings |= {"nuts_sampler": "pymc", "cores": 1, "chains": CHAINS, "tune": tune}
            settings |= {"compute_convergence_checks": False}
            idata = vsgp.sample(draws, method="nuts", **settings)
        seconds = time.process_time() - began
    post, attrs = idata["posterior"], idata["posterior"].attrs
    log_tau = np.log(post["tau"].values)
    log_tau = log_tau[None] if log_tau.ndim == 2 else np.moveaxis(log_tau, -1, 0)
    x = np.concatenate([log_tau, np.log(post["sigma"].values)[None]])
    found = summary(x) | {"draws": x[0].size}
    if name == "importance":
        # Several of epsilon share the operations of a theta, so that this counts too many.
        operations = OPERATIONS[name] * attrs["n_evaluations"] / found["draws"]
        kept = {"refused": attrs["refused"], "khat": attrs["khat"]}
        return found | kept | {"seconds": seconds, "operations": operations}
    stats = idata["sample_stats"]
    found["seconds"] = float(stats["process_time_diff"].sum())
    found["operations"] = OPERATIONS[name] * float(stats["n_steps"].mean())
    return found | {"accept": float(stats["acceptance_rate"].mean())}


def orthant(K, signs, u):
    """Probability of labels by the algorithm of Geweke, Hajivassiliou and Keane, as a logarithm.

    The values are N(0, K), with standard normal noise. `u` has uniform numbers, S x N.
    """
    L = np.linalg.cholesky(signs[:, None] * (K + np.eye(len(K))) * signs)
    e, log_p = np.empty(u.T.shape), np.zeros(len(u))
    for i, column in enumerate(u.T):
        p = ndtr(L[i, :i] @ e[:i] / L[i, i])
        e[i] = -ndtri(np.clip(column * p, 1e-300, 1.0 - 1e-16))
        log_p += np.log(np.maximum(p, 1e-300))
    return logsumexp(log_p) - np.log(len(u))


def quadrature(block, _):
    """Means on a grid of log tau and log sigma; their errors are from two sets of numbers."""
    (X, y, of_sigma), means = data_of(block), []
    n, d = X.shape
    distance = ((X[:, None] - X) ** 2).sum(axis=-1)
    tau = np.linspace(np.log(0.02), np.log(30.0 * np.sqrt(d / 2)), 28)
    sigma = np.linspace(-6.0, 5.2, 29)
    prior = gamma(1.0, scale=np.sqrt(d)).logpdf(np.exp(tau))[:, None] + tau[:, None]
    prior = prior + gamma(of_sigma[0], scale=1.0 / of_sigma[1]).logpdf(np.exp(sigma)) + sigma
    for seed in (1, 2):
        u = Sobol(n, seed=seed).random(2048)
        log_p = np.empty(prior.shape)
        for i, j in np.ndindex(*prior.shape):
            K = np.exp(-0.5 * distance / np.exp(2.0 * tau[i])) + 1e-6 * np.eye(n)
            log_p[i, j] = orthant(np.exp(sigma[j]) * K, 2.0 * y - 1.0, u)
        w = np.exp(log_p + prior - (log_p + prior).max())
        w /= w.sum()
        means.append([w.sum(axis=1) @ tau, w.sum(axis=0) @ sigma])
    error = np.abs(np.diff(means, axis=0))[0] / 2.0
    return {"mean": np.mean(means, axis=0).tolist(), "mcse": error.tolist()}


def summary(x):
    """Return what is kept of draws, by parameter; the smallest ESS is per 10,000 draws."""
    ess = min(float(az.ess(p)) for p in x)
    return {
        "ess": ess / x[0].size * 10_000,
        "mean": [float(p.mean()) for p in x],
        "mcse": [float(az.mcse(p)) for p in x],
        "rhat": max(float(az.rhat(p)) for p in x) if x.shape[1] > 1 else None,
    }


def per_operation(block, name, row=None):
    """Effective draws in a hundred operations: ours of a row, otherwise the published ones."""
    if row is not None:
        return row["ess"] / row["operations"] / 100.0
    if name.startswith("PM"):
        operations = PUBLISHED_OPERATIONS[block]["EP" in name]
    else:
        operations = OPERATIONS[name]
    return PUBLISHED[block][METHODS.index(name)] / operations / 100.0


def per_second(row):
    """Effective draws in a second, after tuning."""
    return row["ess"] / 10_000 * row["draws"] / row["seconds"]


def title(block):
    if block in REAL:
        n, d = data_of(block)[0].shape
        return f"{block}, n = {n}, d = {d}, one lengthscale"
    n, d, kernel = block.split(",")
    return f"n = {n}, d = {d}, {'one lengthscale' if kernel == 'iso' else 'ARD'}"


def page(found):
    """Return the tables."""
    first = {"AA", "AA 10", "PM LA (1)", "PM EP (64)"}
    blocks = {block: found[block] for block in BLOCKS if first <= set(found.get(block, ()))}
    real = {block: found[block] for block in REAL if block in found}
    tables = [*ratios(blocks), *repeated(blocks), *one_by_one(blocks | real)]
    return "\n".join([*tables, "Not run:", "", *not_run(found), ""])


def methods_of(block):
    """Return the methods that a block is to have."""
    if block in REAL:
        return OF_REAL
    return [m for m in METHODS if m != "quadrature" or block in ("50,2,iso", "50,10,iso")]


def not_run(found):
    """Say which rows are missing."""
    missing = {b: [m for m in methods_of(b) if m not in found.get(b, ())] for b in [*BLOCKS, *REAL]}
    lines = [f"* {title(b)}: {', '.join(names)}." for b, names in missing.items() if names]
    return [*lines, "* Abalone, whose data are not shared."]


def ratios(found):
    """How many times as much pseudo-marginal steps give as AA, in each of the blocks."""
    lines = []
    for block, rows in found.items():
        line = [title(block)]
        for name in ("PM LA (1)", "PM EP (64)"):
            ours = [
                per_operation(block, name, rows[name]) / per_operation(block, aa, rows[aa])
                for aa in ("AA", "AA 10")
            ]
            line += [f"{x:.2g}" for x in ours]
            line += [f"{per_operation(block, name) / per_operation(block, 'AA'):.2g}"]
            line += [f"{per_second(rows[name]) / per_second(rows['AA']):.2g}"]
        lines.append(line)
    head = ["times that of AA"]
    for name in ("LA (1)", "EP (64)"):
        head += [f"{name}, per operation", "AA with 10 slices", "published", "per CPU second"]
    return table(head, lines)


def repeated(found):
    """Return Table III, and the ratio to AA."""
    lines = []
    thrice = ("PM EP (64)", "AA x20", "SURR x20")
    for block, rows in found.items():
        if not any(name in rows for name in thrice[1:]):
            continue
        for name, (ess, per) in zip(thrice, PUBLISHED_20[block], strict=True):
            if name in rows:
                r = rows[name]
                mine = r.get("thinned", r["ess"])
                scheme = name.removesuffix(" x20")
                each = f"{mine / r['operations']:.0f}"
                lines.append([title(block), scheme, f"{mine:.0f}", ess, each, per])
    head = ["each update 20 times", "scheme", "min ESS", "published", "per operation", "published"]
    return table(head, lines) if lines else []


def one_by_one(found):
    """Return a table for each block, without columns that are empty."""
    out = []
    for block, rows in found.items():
        lines = [one(block, m, rows[m]) for m in METHODS if m in rows and not m.endswith("x20")]
        kept = [name for name in lines[0] if any(line[name] != "" for line in lines)]
        head = [title(block), *(name.removeprefix("*") for name in kept[1:])]
        out += table(head, [[line[name] for name in kept] for line in lines])
    return out


def one(block, name, r):
    """Return a row, by column."""
    published, per = "", ""
    if METHODS.index(name) < len(PUBLISHED.get(block, ())):
        published = PUBLISHED[block][METHODS.index(name)]
        per = f"{per_operation(block, name):.2g}"
    refused = f", refused: {r['refused']}" if r.get("refused") else ""
    mean = [f"{m:.2f} ± {e:.2f}" for m, e in zip(r["mean"], r["mcse"], strict=True)]
    drawn = "draws" in r
    return {
        "name": name.replace(" 10", ", 10 slices") + refused,
        "min ESS": f"{r['ess']:.0f}" if drawn else "",
        "published": published,
        "per 100 operations": f"{per_operation(block, name, r):.2g}" if drawn else "",
        "*published": per,
        "per CPU second": f"{per_second(r):.3g}" if drawn else "",
        "draws": r.get("draws", ""),
        "acceptance, %": f"{100 * r['accept']:.0f}" if "accept" in r else "",
        "R-hat": f"{r['rhat']:.2f}" if r.get("rhat") else "",
        "mean log tau": mean[0] if len(mean) == 2 else "",
        "mean log sigma": mean[-1],
    }


def table(head, rows):
    """Return a table in markdown, and an empty line."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines] + [""]


RUN = {"importance": package, "NUTS": package, "quadrature": quadrature}


def main(blocks, methods):
    store = RESULTS / "pseudo_marginal.json"
    for block in blocks:
        for name in [m for m in methods_of(block) if m in methods]:
            if name in json.loads(store.read_text()).get(block, {}):
                continue
            row = RUN.get(name, walk)(block, name)
            found = json.loads(store.read_text())  # rows may have been added, or taken out
            found.setdefault(block, {})[name] = row
            store.write_text(json.dumps(found, indent=1) + "\n")
            print(block, name, row, flush=True)
    envs.save(RESULTS / "pseudo_marginal.md", page(json.loads(store.read_text())), kept=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("block", nargs="?", choices=[*BLOCKS, *REAL])
    parser.add_argument("method", nargs="*", choices=[*METHODS, []])
    given = parser.parse_args()
    main([given.block] if given.block else [*BLOCKS, *REAL], given.method or METHODS)
