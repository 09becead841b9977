"""Accuracy of classes against CPU seconds, by the calls that the documentation has.

For each set the Gaussian stage is fitted by ``fit_gaussian()`` with robust-max, and by
``fit_gaussian(batch_size=1000)`` with softmax: no setting is tuned. Of many columns both take
minibatches. Inducing inputs are those of ``kmeans``. ``python benchmarks/classes_accuracy.py``
writes results/classes_accuracy.md and .json; sets that are in the file are not run again.
"""

import argparse
import json
import time

from pathlib import Path

import envs
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = {  # rows, inducing inputs
    "usps, six digits, 64 pixels": (4000, 100),
    "MNIST, six digits, 196 pixels": (6000, 100),
    "glass": (171, 50),
    "banknote": (1000, 50),
}
TEST = 2000
WIDE = 100  # columns, beyond which rounds with all rows, which move all inducing inputs, take long


def digits(name, n_digits, pooled):
    """Images of some digits, with the mean of so many pixels on a side."""
    found = vsgp.datasets.load(name)
    for part in ("train", "test"):
        X, y = found[f"X_{part}"].astype(float), found[f"y_{part}"].astype(int)
        side = int(np.sqrt(X[0].size))
        X = X.reshape(len(X), side // pooled, pooled, side // pooled, pooled).mean(axis=(2, 4))
        keep = y < n_digits
        yield X[keep].reshape(keep.sum(), -1), y[keep]


def data(name):
    """Inputs and classes for training and test; a table's columns have a variance of one."""
    n, _ = SHAPES[name]
    rng = np.random.default_rng(1)
    if "digits" in name:
        source, pooled = ("mnist", 2) if "MNIST" in name else ("usps", 2 if "64" in name else 1)
        sets = list(digits(source, 6 if "six" in name else 10, pooled))
    else:
        table = vsgp.datasets.load_glass() if name == "glass" else vsgp.datasets.load(name)
        label = "type" if name == "glass" else table.columns[-1]
        X = table.drop(columns=[label, *({"window"} & set(table))]).to_numpy(float)
        y = np.unique(table[label], return_inverse=True)[1]
        order = rng.permutation(len(y))
        X = X / X[order[:n]].std(axis=0)
        sets = [(X[some], y[some]) for some in (order[:n], order[n:])]
    (X, y), (X_test, y_test) = sets
    rows, test = rng.permutation(len(y))[:n], rng.permutation(len(y_test))[:TEST]
    return X[rows], y[rows], X_test[test], y_test[test]


def build(X, y, likelihood, n_inducing):
    """Functions with one kernel, of a lengthscale and a scale."""
    some = X[:300]
    distances = np.sqrt(((some[:, None] - some) ** 2).sum(axis=-1))
    typical = np.median(distances[np.triu_indices(len(some), 1)])
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", mu=typical, sigma=typical / 2)
        scale = pm.HalfNormal("scale", 3)
        cov = scale**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=lengthscale)
        if isinstance(likelihood, vsgp.RobustMax):
            cov += pm.gp.cov.WhiteNoise(1.0)  # how soft the borders are
        gp = vsgp.VariationalSparse(cov_func=cov)
        Xu = vsgp.inducing.kmeans(X, n_inducing, random_seed=1)
        gp.prior("u", Xu=Xu, n_outputs=likelihood.n_classes)
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


def run(name):
    """Fit a set in both ways, and score each."""
    X, y, X_test, y_test = data(name)
    K, M = int(y.max()) + 1, SHAPES[name][1]
    few = {"batch_size": 1000}
    first = few if X.shape[1] > WIDE else {}
    for likelihood, more in (vsgp.RobustMax(K), first), (vsgp.Softmax(K), few):
        began = time.process_time()
        model = build(X, y, likelihood, M)
        placed = time.process_time() - began
        quiet = {"model": model, "progressbar": False, "random_seed": 1}
        stage = vsgp.fit_gaussian(**more, **quiet)
        seconds = time.process_time() - began
        p = vsgp.predict(stage.to_datatree(20, random_seed=1), X_test, "mean", **quiet)
        p = p.mean(["chain", "draw"]).to_numpy()
        yield {
            "rows": len(y),
            "columns": X.shape[1],
            "classes": K,
            "M": M,
            "likelihood": type(likelihood).__name__,
            "call": f"fit_gaussian({', '.join(f'{k}={v}' for k, v in more.items())})",
            "placing_s": placed,
            "cpu_s": seconds,
            "steps": stage.n_steps,
            "converged": bool(stage.converged),
            "accuracy": float((p.argmax(axis=1) == y_test).mean()),
            "log_density": float(np.log(p[np.arange(len(y_test)), y_test]).mean()),
            "test": len(y_test),
        }


def table(results, date):
    """Return the result file."""
    machine = envs.machine()
    lines = [
        f"{date}; {machine['processor']}, one thread. CPU seconds include k-means and "
        "what is built; accuracy and mean log density are of the mean of 20 draws from the "
        "Gaussian stage, on rows that were held out. `python benchmarks/classes_accuracy.py`.",
        "",
        "| set | N × D | classes | M | likelihood | call | rounds or steps | CPU s | accuracy "
        "| log density |",
        "|---" * 10 + "|",
    ]
    for name, runs in results.items():
        lines += [
            f"| {name} | {r['rows']} × {r['columns']} | {r['classes']} | {r['M']} "
            f"| {r['likelihood']} | `{r['call']}` | {r['steps']}"
            f"{'' if r['converged'] else ', not converged'} | {r['cpu_s']:.0f} "
            f"| {r['accuracy']:.3f} | {r['log_density']:.3f} |"
            for r in runs
        ]
    return "\n".join([*lines, ""])


def main():
    """Run what is not in the result file yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tiny", action="store_true", help="a smoke test, which writes nothing")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    options = parser.parse_args()
    path = RESULTS / "classes_accuracy.json"
    if options.tiny:
        SHAPES.update({name: (100, 10) for name in SHAPES})
    known = path.exists() and not options.tiny
    results = json.loads(path.read_text()).get("results", {}) if known else {}
    for name in options.sets:
        if not options.again and len(results.setdefault(name, [])) == 2:
            continue
        results[name] = []
        for outcome in run(name):
            print(name, outcome, flush=True)
            results[name].append(outcome)
        if not options.tiny:
            date = time.strftime("%Y-%m-%d")
            envs.save(path, json.dumps({"date": date, "results": results}, indent=1), kept=True)
            envs.save(path.with_suffix(".md"), table(results, date), kept=True)


if __name__ == "__main__":
    main()
