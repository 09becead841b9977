"""The page of `features.py`: what each kind took, and how far from the reference it is."""

import json

import envs
import numpy as np

HEADER = """# Fourier features, inducing points, HSGP and exact processes

Written by `benchmarks/features.py`. Each run is a process of its own, from its start to its last
draw, with imports, Gaussian stage and compilation; NUTS of nutpie on JAX, two chains, the same data
and priors; as many draws as tuning steps. Of the cases with *long* chains, 1000 draws of each,
features are on numba, which `vsgp.sample` takes there. One machine with two cores, busy with other
work: CPU seconds say more than those on the clock.

* The number after a kind is its rung: the share of the prior variance that `Fourier.for_data` may
  leave out; the factor on the number of functions to a side that `approx_hsgp_hyperparams`
  recommends for the same part of the prior (from its 10 % to its 90 % quantile); points to a side.
* *min ESS* is the smallest of lengthscale, variance and, where there is one, level.
* *mean off* is the root mean square, over at most 1024 places of the data, of the difference of the
  posterior means of the function to the reference's, in posterior standard deviations of the
  reference; *sd ratio* is the mean ratio of the standard deviations. Some 0.03 to 0.08 of *mean
  off* is Monte Carlo error.
* **Bold**, and first of all by themselves: of the rungs of a kind with *mean off* at most 0.1, the
  one with least CPU time an ESS; where no rung is so close, the closest.

Medians, and ranges, of three runs of Fourier features with seeds of their own on coal,
pines32, pines64 and pines128; one run of everything else. The references are `LatentKron` and
`Latent` of PyMC where there are any, else the finest features; that of beijing_air has not
converged, and more features still change it: nothing is settled there.
rows1e5 and rows1e6 were not run to the end.
"""

CLOSE = 0.1  # of the reference's standard deviations, for the mean of the function
ORDER = ["coal", "pines32", "pines64", "pines64_long", "pines128", "pines128_long"]
ORDER += ["beijing_air", "rows1e5", "rows1e6"]
FOUND = {"kron": "LatentKron", "latent": "Latent", "hsgp": "HSGP"}
HEAD = {
    "case": "case",
    "kind": "kind",
    "M": "M",
    "seconds": "seconds",
    "cpu": "CPU s",
    "sampling": "of seconds, sampling",
    "ess": "min ESS",
    "each": "CPU ms an ESS",
    "steps": "steps",
    "rhat": "R-hat",
    "divergences": "divergences",
    "mean": "mean off",
    "sd": "sd ratio",
    "ls": "lengthscale",
    "missing": "missing nats",
}


def _groups(rows):
    """Put the repeats of a run together."""
    out = {}
    for row in rows:
        out.setdefault((row["case"], row["kind"], row["rung"]), []).append(row)
    return out


def _spread(values, digits):
    values = sorted(values)
    middle = f"{np.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({values[0]:.{digits}f}–{values[-1]:.{digits}f})"


def _function(row, folder):
    with np.load(folder / row["function"]) as found:
        return found["mean"], found["sd"]


def add_gaps(rows, references, folder):
    """Add to each run how far its function and lengthscale are from the reference's."""
    for case, (kind, rung, _) in references.items():
        of_case = [r for r in rows if r["case"] == case and "function" in r]
        found = [r for r in of_case if (r["kind"], r["rung"], r["seed"]) == (kind, rung, 0)]
        if not found or not (folder / found[0]["function"]).exists():
            continue  # numbers of an earlier run stay
        mean, sd = _function(found[0], folder)
        ls, ls_sd = found[0]["theta"]["ls"]
        for row in of_case:
            if not (folder / row["function"]).exists():
                continue
            m, s = _function(row, folder)
            row["mean_gap"] = float(np.sqrt((((m - mean) / sd) ** 2).mean()))
            row["sd_ratio"] = float((s / sd).mean())
            row["ls_gap"] = (row["theta"]["ls"][0] - ls) / ls_sd


def cells(runs):
    """Return the cells of a line, from the repeats of a run."""
    first = runs[0]
    done = [r for r in runs if "min_ess" in r]
    name = FOUND.get(first["kind"], first["kind"])
    name += f" {first['rung']:g}" if first["rung"] else ""
    if not done:
        why = (
            f"not done after {first['not_done_after']} s" if "not_done_after" in first else "failed"
        )
        return {"kind": name, "seconds": why}

    def median(key):
        return float(np.median([r.get(key, np.nan) for r in done]))

    out = {
        "kind": name,
        "M": str(done[0].get("M", "")),
        "seconds": _spread([r["seconds"] for r in done], 0),
        "cpu": _spread([r["cpu_seconds"] for r in done], 0),
        "sampling": f"{median('sampling_seconds'):.0f}",
        "ess": _spread([r["min_ess"] for r in done], 0),
        "each": _spread([1e3 * r["cpu_seconds"] / r["min_ess"] for r in done], 0),
        "steps": f"{median('steps'):.0f}",
        "rhat": f"{max(r['max_rhat'] for r in done):.3f}",
        "divergences": str(sum(r["divergences"] for r in done)),
        "mean": f"{median('mean_gap'):.2f}",
        "sd": f"{median('sd_ratio'):.2f}",
        "ls": "{:.3g} ± {:.2g}".format(*np.median([r["theta"]["ls"] for r in done], axis=0)),
        "missing": f"{median('missing_nats'):.2f}" if "missing_nats" in done[0] else "",
    }
    return out


def _table(lines, columns):
    head = [HEAD[c] for c in columns]
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield "| " + " | ".join(line.get(c, "") for c in columns) + " |"


def page(rows):
    """Return the results as a page: the best of each kind, then everything."""
    groups, exact = (
        _groups([r for r in rows if r["seed"]]),
        _groups([r for r in rows if not r["seed"]]),
    )
    cases = sorted({k[0] for k in groups}, key=ORDER.index)
    best, lines = [], []
    for case in cases:
        of_case = {k: v for k, v in groups.items() if k[0] == case}
        of_case |= {k: v for k, v in exact.items() if k[0] == case and k[1] in FOUND}
        of_case = dict(sorted(of_case.items(), key=lambda kv: (kv[0][1], kv[1][0].get("M", 0))))
        chosen = cheapest(of_case)
        lines += [
            f"## {case}, {max(r.get('n_rows', 0) for v in of_case.values() for r in v)} rows",
            "",
        ]
        for (_, kind, rung), (r, *_) in ((k, v) for k, v in exact.items() if k[0] == case):
            lines += [
                f"Reference: {FOUND.get(kind, kind)}{f' {rung:g}' if rung else ''}, smallest ESS "
                f"{r['min_ess']:.0f}, R-hat {r['max_rhat']:.3f}, lengthscale "
                + "{:.3g} ± {:.2g}.".format(*r["theta"]["ls"]),
                "",
            ]
        shown = []
        for key, runs in of_case.items():
            line = cells(runs)
            if key in chosen:
                best.append({"case": case} | line)
                line = line | {"kind": f"**{line['kind']}**"}
            shown.append(line)
        lines += [*_table(shown, [c for c in HEAD if c != "case"]), ""]
    short = [
        "case",
        "kind",
        "M",
        "seconds",
        "sampling",
        "cpu",
        "ess",
        "each",
        "rhat",
        "mean",
        "sd",
        "ls",
    ]
    return "\n".join([HEADER, *_table(best, short), "", *lines])


def cheapest(of_case):
    """Return the rung of each kind that is close enough and costs least an effective sample.

    Where none of a kind is, the closest.
    """
    best = {}
    for key, runs in of_case.items():
        gaps = [r["mean_gap"] for r in runs if "mean_gap" in r]
        if gaps:
            gap = float(np.median(gaps))
            each = float(np.median([r["cpu_seconds"] / r["min_ess"] for r in runs]))
            order = (0.0, each) if gap <= CLOSE else (gap, each)
            best[key[1]] = min(best.get(key[1], (order, key)), (order, key))
    return {key for _, key in best.values()}


def write(rows, references, folder, path):
    """Write the numbers, and the page beside them."""
    add_gaps(rows, references, folder)
    lacking = sorted({r["case"] for r in rows if "function" in r and "mean_gap" not in r})
    if lacking:
        print(f"{', '.join(lacking)}: no function of the reference here, so 'mean off' is nan.")
    envs.save(path, json.dumps(rows, indent=1) + "\n", kept=True)
    envs.save(path.with_suffix(".md"), page(rows), kept=True)
