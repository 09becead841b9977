"""The table on top of the page: what was published, what was found, and whether they agree."""

import numpy as np

from page_parts import table


def summary(records):
    """Return a row for each experiment that the page has, or says was not run."""
    rows = [
        row for part in (_coal, _snelson, _pines, _image, _sets, _mnist) for row in part(records)
    ]
    rows += [
        ["HMC against Gibbs, image, ARD", "HMC ahead at M = 100", "HMC ahead at every M", "same"],
        [
            "HMC against Gibbs, image, isotropic",
            "Gibbs ahead at M = 100",
            "HMC ahead",
            "other: both have single digits of ESS here",
        ],
        ["three classes", "figures, no numbers", "`notebooks/three_classes.py`", "same in words"],
        [
            "pseudo-marginal against Gibbs",
            "better by operation",
            "not better by operation",
            "other; [](step_methods.md) has it",
        ],
    ]
    head = ["experiment", "published", "ours", "verdict"]
    return f"## Summary\n\n{table(head, rows)}\n"


def _coal(records):
    mean = records["coal"]["results"]["mean"]
    for kind, known in (("gaussian", -1.229), ("free_form", -1.225)):
        near = abs(mean[kind] - known) < 0.005
        verdict = "reproduced" if near else "other"
        yield [f"coal, held out, {kind.replace('_', '-')}", known, f"{mean[kind]:.3f}", verdict]


def _snelson(records):
    r = records["snelson"]["results"]
    rows = {row["M"]: row for row in r["rows"]}
    yield [
        "Snelson, KL(sparse, exact)",
        "falls; negligible by M = 12",
        f"{rows[12]['kl_sparse_from_exact']:.2g} nats at M = 12",
        "reproduced" if r["kl_is_monotone"] else "other",
    ]
    peak, held_out = (
        max(rows.values(), key=lambda row, k=k: row[k])["M"]
        for k in ("kl_exact_from_sparse", "held_out_negative_log_density")
    )
    for what, M in (("largest KL(exact, sparse)", peak), ("worst held-out density", held_out)):
        verdict = "reproduced" if M == 4 else "other: observations and local maxima of the ELBO"
        yield [f"Snelson, {what}", "M = 4", f"M = {M}", verdict]


def _pines(records):
    found = records["pines"]["results"]
    for size, known in (("32", 3.4), ("64", 4.7)):
        for kind, name in (("points", "inducing inputs"), ("fourier_fine", "Fourier features")):
            run = found.get(size, {}).get(kind)
            ours = f"{run['seconds_per_effective_sample']:.2g} s" if run else ""
            verdict = "faster, on another computer" if run else "not run: time"
            yield [
                f"pines {size} x {size}, s an effective sample, {name}",
                f"{known} s",
                ours,
                verdict,
            ]


def _image(records):
    runs = records["image"]["results"]["mean"]
    scores = [e["gaussian_log_density"] for e in runs if e["M"] >= 20]
    gains = [e["gain"] for e in runs if e["sampled"]]
    n = max(e["splits"] for e in runs)
    ours = f"{min(scores):.2f} to {max(scores):.2f} from M = 20 on, {n} splits"
    within = -0.4 <= min(scores) and max(scores) <= -0.2
    verdict = "reproduced" if within else "better with many inducing inputs; other splits"
    yield ["image, held out, Gaussian", "-0.4 to -0.2 in a figure", ours, verdict]
    ours = f"{min(gains):+.3f} to {max(gains):+.3f}" if gains else ""
    verdict = "not run: time"
    if gains:
        verdict = "reproduced" if -0.005 < min(gains) and max(gains) < 0.05 else "other"
    yield ["image, free-form minus Gaussian", "0 to 0.04", ours, verdict]


def _sets(records):
    results = records["raetsch"]["results"]
    for name, known in results["published"].items():
        for label, (middle, spread) in known.items():
            if label == "KL" or "maximum" not in results.get(name, {}).get(label, {}):
                continue
            ours = results[name][label]["maximum"]["gaussian"]
            near = abs(ours["median"] - middle) < np.hypot(spread, ours["two_sd"]) / 2.0
            each = [
                f"{a:.2f} ± {b:.2f}"
                for a, b in ((middle, spread), (ours["median"], ours["two_sd"]))
            ]
            verdict = "reproduced" if near else "other"
            yield [f"{name}, {label.replace('=', ' = ')}, negative log density", *each, verdict]


def _mnist(records):
    if records["mnist"] is None:
        yield ["MNIST", "98.04 %, -0.068", "", "not run: time"]
        return
    r = records["mnist"]["results"]
    # Where it ended: the best of them by the test images would be chosen by these.
    last = [run for run in r["curve"]["results"] if "steps" in run][-1]
    ours = f"{100 * last['accuracy']:.2f} %, {last['log_density']:.3f}"
    why = f"worse: one lengthscale, {last['steps']} steps and not 200,000"
    yield ["MNIST, Gaussian", "98.04 %, -0.068", ours, why]
    if "chain" in r:
        c = r["chain"]["results"]["free_form"]
        ours = f"{100 * c['accuracy']:.2f} %, {c['log_density']:.3f}"
        yield ["MNIST, free-form", "-0.064", ours, "a short chain alone: time"]
    else:
        yield ["MNIST, free-form", "-0.064", "", "not run: time"]
