"""The tables of `types_of_features.py`."""

from feature_types.bases import KINDS, NAMES, PADDINGS

WAYS = ("torus, dense", "torus, cells", "torus, window", "torus, stored", "interval, dense")
WAYS += ("splines", "splines, high")


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c) for c in line) + " |" for line in lines) + "\n"


def number(n, limit):
    return f"> {limit}" if n is None else str(n)


def share(value):
    if value is None or value != value:
        return "singular"
    return "< 1e-9" if abs(value) < 1e-9 else f"{value:.1e}"


def number_tables(rows):
    out = ["## Numbers needed\n"]
    for left in ("0.01", "0.001"):
        out.append(
            f"For a mean residual of {100 * float(left):g} % of the variance (6 points or splines "
            "and 7 frequencies are the fewest that were tried):\n"
        )
        lines = [
            [
                NAMES[r["p"]],
                r["lengthscale"],
                *(number(r["needed"][left][k], 2048 if k == "points" else 8192) for k in KINDS),
            ]
            for r in rows
        ]
        out.append(table(["kernel", "lengthscale", *KINDS], lines))
    out.append(
        "## Residual against number\n\nNegative ones, and those that rise with the "
        "number, are rounding. Other lengthscales and numbers: the `.json` file.\n"
    )
    numbers = [str(2**k) for k in (4, 5, 6, 7, 8, 10, 12)]
    lines = [
        [NAMES[r["p"]], r["lengthscale"], k]
        + [share(r["residuals"][k][n]) if n in r["residuals"][k] else "" for n in numbers]
        for r in rows
        if r["lengthscale"] in (0.03, 0.3)
        for k in KINDS
    ]
    out.append(table(["kernel", "lengthscale", "kind", *numbers], lines))
    return out


def time_tables(rows):
    out = ["## Value and gradient\n\nCPU ms, with the numbers of each kind for 1 %.\n"]
    lines = [
        [f"{r['rows']:,}", NAMES[r["p"]], r["lengthscale"], r["number"]["torus"]]
        + [f"{r['ms'][w]:.2f}" if w in r["ms"] else "" for w in WAYS]
        + [f"{r['error of gradient']:.0e}", f"{r['error of value, a row']:.0e}"]
        for r in sorted(rows, key=lambda r: (r["rows"], r["p"], r["lengthscale"]))
    ]
    head = [
        "rows",
        "kernel",
        "lengthscale",
        "frequencies",
        *WAYS,
        "error of gradient",
        "of value, a row",
    ]
    out.append(table(head, lines))
    out.append(
        "The errors are those of interpolation beside dense frequencies: of the gradient "
        "relative to its largest entry, of the value in nats a row.\n"
    )
    return out


def plane_tables(found, rows):
    half = {(r["p"], r["lengthscale"]): r["needed"]["0.005"] for r in rows}
    out = ["## Two inputs\n\nRows alone, a million of them, CPU ms:\n"]
    head = ["per row", "weights computed", "weights stored"]
    lines = [[k, f"{v['computed']:.0f}", f"{v['stored']:.0f}"] for k, v in found["ms"].items()]
    out.append(table(head, lines))
    out.append(
        "Numbers for 1 %. Splines (and columns marked product) are for the product of two Matern "
        "kernels; the isotropic kernel is no such product, and only frequencies (and points) "
        "have it.\n"
    )
    lines = []
    for r in found["needed"]:
        squares = [half[r["p"], r["lengthscale"]][k] for k in ("torus", "splines", "splines, high")]
        cells = [n and n**2 for n in squares] + r["isotropic"]
        lines.append([NAMES[r["p"]], r["lengthscale"], *(number(c, "counted") for c in cells)])
    head = ["kernel", "lengthscale", "torus, product", "splines, product", "splines, high, product"]
    out.append(table([*head, "torus, isotropic", "the same, frequencies of a disc"], lines))
    return out


def report(found):
    out = [
        "# Kinds of inducing features\n",
        "`python benchmarks/types_of_features.py`; what the types are is said there. Rows on "
        "[0, 1], variance 1. *torus, wide prior*: the period has room for ten times that "
        f"lengthscale. *interval*: {PADDINGS[0]:g} (short) or {PADDINGS[1]:g} (long) lengthscales "
        "of padding a side. *splines, high*: linear, cubic, quintic. Times are the least CPU "
        "times of several calls, one thread, on a machine with other work.\n",
        "Ways to sum the frequencies: *dense*, by rotation; on a fine grid by FFT and then "
        "*cells*, a polynomial of degree 11 of the function in each of its cells; *window*, 8 "
        "weights a row, computed; *stored*, the same weights, kept (64 bytes a row).\n",
    ]
    if "numbers" in found:
        out += number_tables(found["numbers"])
    if "times" in found:
        out += time_tables(found["times"])
    if "normal" in found:
        out.append(
            "## Normal noise\n\nWith the coefficients integrated out the rows enter once, by the "
            "products of features, which have no parameter: linear algebra alone, CPU ms.\n"
        )
        head = ["kernel", "lengthscale", "frequencies, dense matrix", "ms", "splines, band", "ms"]
        lines = [
            [NAMES[r["p"]], r["lengthscale"]]
            + [c for k in ("torus", "splines") for c in (r[k]["n"], f"{r[k]['ms']:.2f}")]
            for r in found["normal"]
        ]
        out.append(table(head, lines))
    if "window" in found:
        out.append("## Width of the interpolation\n\n100,000 rows, 401 frequencies, CPU ms.\n")
        lines = [
            [r["width"], r["degree"], *(f"{t:.1f}" for t in r["ms"].values())]
            + [f"{r['error of f']:.0e}", f"{r['error of gradient']:.0e}"]
            for r in found["window"]
        ]
        head = ["width", "degree", "cells", "window", "stored", "error of f", "of the gradient"]
        out.append(table(head, lines))
    if "plane" in found and "numbers" in found:
        out += plane_tables(found["plane"], found["numbers"])
    if "check" in found:
        out.append("## Checks\n\nLargest errors beside references computed in other ways.\n")
        lines = [[k, f"{v:.0e}"] for k, v in found["check"].items()]
        out.append(table(["what", "error"], lines))
    return "\n".join(out)
