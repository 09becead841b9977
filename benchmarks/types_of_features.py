"""Which inducing features of one input are worth having: waves on a torus or an interval, splines.

    python benchmarks/types_of_features.py            # all: checks, numbers, times
    python benchmarks/types_of_features.py --parts check,numbers --output NAME

Matern kernels of variance 1 and rows on [0, 1]. Kinds of inducing variables:

* torus: Fourier coefficients of the process on a torus, as `vsgp.inducing.Fourier`;
* interval: variational Fourier features (Hensman, Durrande, Solin 2018), waves on an interval
  somewhat longer than the data, with the published inner products;
* splines: B-splines as members of the kernel's Hilbert space on [0, 1], of the lowest degree that
  lies in it (linear, quadratic, cubic for Matern 1/2, 3/2, 5/2), and of the lowest degree with
  which the residual falls as fast as with the best functions (linear, cubic, quintic);
* points: f at a regular grid.

Plain numpy, scipy and numba, one thread; it shares no code with the package. What is timed is the
value and gradient of sum_n E log Poisson(y_n | exp f_n) in whitened coefficients, lengthscale and
scale. Compiling and what does not depend on parameters are not counted.
"""

import argparse
import json
import pathlib
import time

import envs
import numpy as np

from feature_types.bases import (
    KINDS,
    NAMES,
    PADDINGS,
    Torus,
    band_factor,
    band_of_inverse,
    decay_of,
    gap_of,
    matern,
    spline_gram,
)
from feature_types.checks import check
from feature_types.report import report
from feature_types.rows import plane_rows
from feature_types.times import Dense, Gridded, makers, spline_table, window_polynomials
from scipy.linalg import cholesky
from scipy.linalg.lapack import dpotri

RESULTS = pathlib.Path(__file__).parent / "results"
LENGTHSCALES = (0.01, 0.03, 0.1, 0.3, 1.0)
SHARES = (0.01, 0.005, 0.001)


def residual(kind, p, lengthscale, n, x):
    """Mean share of the variance that is left out; NaN where float64 cannot factor the matrix."""
    try:
        return float(KINDS[kind](p, lengthscale, n, x))
    except np.linalg.LinAlgError:
        return np.nan


def number_for(kind, p, lengthscale, x, target, most=8192):
    """The least number with a residual of at most `target`; None if `most` are too few."""
    step = 2 if kind.startswith(("torus", "interval")) else 1  # waves come in pairs
    low, high = 4, 8
    while not residual(kind, p, lengthscale, high + 1, x) <= target:
        low, high = high, 2 * high
        if high > (2048 if kind == "points" else most):
            return None
    while high - low > step:
        middle = (low + high) // 2 // step * step
        if residual(kind, p, lengthscale, middle + 1, x) <= target:
            high = middle
        else:
            low = middle
    return high + 1


def number_table(shares):
    x = np.random.default_rng(0).uniform(size=2000)
    rows = []
    for p in NAMES:
        for lengthscale in LENGTHSCALES:
            row = {"p": p, "lengthscale": lengthscale, "residuals": {}, "needed": {}}
            for kind in KINDS:
                waves = kind.startswith(("torus", "interval"))  # an odd number of them
                numbers = [2**k for k in range(4, 11 if kind == "points" else 13)]
                row["residuals"][kind] = {
                    n: residual(kind, p, lengthscale, n - waves, x) for n in numbers
                }
                for share in shares:
                    found = number_for(kind, p, lengthscale, x, share)
                    row["needed"].setdefault(str(share), {})[kind] = found
            rows.append(row)
            print(NAMES[p], lengthscale, row["needed"], flush=True)
    return rows


def plane_number(p, lengthscale, share=0.01, most=700):
    """Waves of a square torus for the isotropic kernel: all of a box, and those of a disc."""
    decay = decay_of(p, lengthscale)
    period = 1.0 + max(gap_of(p, decay), 0.05)
    copies = period * np.arange(-30, 31)
    total = matern(p, decay, np.hypot(copies[:, None], copies)).sum()
    k = np.arange(-most, most + 1)
    squared = np.add.outer(k**2, k**2)
    nu = p - 0.5
    S = 4.0 * np.pi * nu * decay ** (2 * nu)
    S = S / (decay**2 + (2.0 * np.pi / period) ** 2 * squared) ** (nu + 1.0) / period**2
    box = np.maximum(np.abs(k[:, None]), np.abs(k))
    by_box = np.cumsum(np.bincount(box.ravel(), S.ravel()))
    far = np.sqrt(squared).astype(int)
    by_disc = np.cumsum(np.bincount(far.ravel(), S.ravel())[: most + 1])
    in_disc = np.cumsum(np.bincount(far.ravel())[: most + 1])
    out = []
    for kept, count in ((by_box, (2 * np.arange(most + 1) + 1) ** 2), (by_disc, in_disc)):
        enough = kept >= (1.0 - share) * total
        out.append(int(count[np.argmax(enough)]) if enough.any() else None)
    return out


def cpu_ms(call, *args, seconds=0.3, most=20):
    """Least CPU milliseconds of several calls, the first two not counted."""
    call(*args)
    call(*args)
    times, began = [], time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - began < seconds and len(times) < most):
        start = time.process_time()
        call(*args)
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def time_table(rows, sizes, share=0.01):
    """CPU milliseconds of value and gradient, and what interpolation costs in accuracy."""
    rng = np.random.default_rng(5)
    largest = rng.uniform(size=max(sizes))
    counts = rng.poisson(np.exp(np.sin(18.0 * largest))).astype(float)
    out = []
    for row in rows:
        needed = dict(row["needed"][str(share)])
        best, padding = min(
            (needed[kind] or np.inf, q)
            for kind, q in zip(("interval, short", "interval, long"), PADDINGS, strict=True)
        )
        needed["interval"] = best if np.isfinite(best) else None
        ways = makers(row["p"], row["lengthscale"], needed, padding)
        for size in sizes:
            x, y = largest[:size], counts[:size]
            found = {"p": row["p"], "lengthscale": row["lengthscale"], "rows": size, "ms": {}}
            dense = {}
            for name, make in ways.items():
                if make is None:
                    continue
                f = make(x, y)
                v = np.random.default_rng(6).normal(size=f.n)
                dense[name] = f(v, row["lengthscale"], 1.0)
                found["ms"][name] = cpu_ms(f, v, row["lengthscale"], 1.0)
            a, b = dense["torus, dense"], dense["torus, cells"]
            found["error of value, a row"] = float(abs(a[0] - b[0])) / size
            found["error of gradient"] = float(np.abs(a[1] - b[1]).max() / np.abs(a[1]).max())
            found["number"] = needed
            out.append(found)
            print(found, flush=True)
    return out


def window_table(sizes=(6, 8, 10), n_rows=100_000):
    """Width of the interpolation against its time and its error."""
    rng = np.random.default_rng(7)
    x, n, lengthscale = rng.uniform(size=n_rows), 401, 0.02
    y = rng.poisson(np.exp(np.sin(18.0 * x))).astype(float)
    kind, v = Torus(2, lengthscale, n), rng.normal(size=n)
    exact = Dense(kind, x, y)(v, lengthscale, 1.0)
    C, S, _ = Dense(kind, x, y).weights(v, lengthscale)
    t = np.outer(x[:2000], kind.omega)
    f = np.cos(t) @ C[0] + np.sin(t) @ S[0]
    out = []
    for width in sizes:
        row = {"width": width, "degree": width + 3, "ms": {}}
        for form in ("cells", "window", "stored"):
            call = Gridded(kind, x, y, form, width, width + 3)
            row["ms"][form] = cpu_ms(call, v, lengthscale, 1.0)
            found = call(v, lengthscale, 1.0)
        row["error of f"] = float(np.abs(call.mean(C[0], S[0])[:2000] - f).max())
        error = np.abs(found[1] - exact[1]).max() / np.abs(exact[1]).max()
        row["error of gradient"] = float(error)
        out.append(row)
        print(row, flush=True)
    return out


def normal_table(rows, share=0.01):
    """CPU ms of factor and inverse of what normal noise leaves: a dense matrix, or two bands."""

    def dense(A):
        return dpotri(cholesky(A, lower=True, check_finite=False), lower=1)

    def bands(K, dK, A):
        return [band_of_inverse(*band_factor(band, dK)) for band in (K, A)]

    out = []
    for row in rows:
        p, lengthscale, needed = row["p"], row["lengthscale"], row["needed"][str(share)]
        rng, n, m = np.random.default_rng(9), needed["torus"], needed["splines"]
        waves = rng.normal(size=(n, 2 * n)) / np.sqrt(2 * n)
        K, dK = spline_gram(p, p, decay_of(p, lengthscale) / (m - p), m - p)
        out.append({"p": p, "lengthscale": lengthscale})
        out[-1]["torus"] = {"n": n, "ms": cpu_ms(dense, np.eye(n) + waves @ waves.T)}
        out[-1]["splines"] = {"n": m, "ms": cpu_ms(bands, K, dK, 2.0 * K)}
        print(out[-1], flush=True)
    return out


def plane_table(n_rows=1_000_000, side=64):
    """CPU milliseconds of the rows alone with products of two inputs, and numbers needed."""
    rng = np.random.default_rng(8)
    X = rng.uniform(size=(n_rows, 2)) * side
    y = rng.poisson(2.0, n_rows).astype(float)
    ms = {}
    for name, T, variance in (
        ("splines, linear", spline_table(1), 3),
        ("splines, quadratic", spline_table(2), 5),
        ("splines, cubic", spline_table(3), 7),
        ("splines, quintic", spline_table(5), 11),
        ("window of 6", window_polynomials(6, 9)[1].T, 0),
        ("window of 8", window_polynomials(8, 11)[1].T, 0),
    ):
        T = np.ascontiguousarray(T)
        # The fine grid of the waves has two places for each that splines have.
        fine = side if variance else 2 * side
        grid = rng.normal(size=(fine + 12, fine + 12)) / 10.0
        G = np.full((2, side + 1, variance), 0.1)
        stored = np.zeros((0, 2, T.shape[1]))
        rows, at = plane_rows(*T.T.shape, variance), X * (fine / side)
        ms[name] = {"computed": cpu_ms(rows, at, y, grid, T, G, 0.1, stored)}
        t = at - np.floor(at) - 0.5
        stored = (t[:, :, None] ** np.arange(len(T))) @ T
        ms[name]["stored"] = cpu_ms(rows, at, y, grid, T, G, 0.1, stored)
        print(name, ms[name], flush=True)
    needed = [
        {"p": p, "lengthscale": s, "isotropic": plane_number(p, s)}
        for p in NAMES
        for s in (0.03, 0.1, 0.3)
    ]
    return {"ms": ms, "needed": needed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="check,numbers,times,normal,window,plane")
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--output", default="types_of_features")
    args = parser.parse_args()

    file = RESULTS / f"{args.output}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for part in filter(None, args.parts.split(",")):
        if part == "check":
            found[part] = check()
        elif part == "numbers":
            found[part] = number_table(SHARES)
        elif part == "times":
            found[part] = time_table(found["numbers"], [int(n) for n in args.rows.split(",")])
        elif part == "normal":
            found[part] = normal_table(found["numbers"])
        elif part == "window":
            found[part] = window_table()
        else:
            found["plane"] = plane_table()
        envs.save(file, json.dumps(found, indent=1) + "\n", kept=True)
    # As it is read again: numbers that are keys become strings.
    envs.save(file.with_suffix(".md"), report(json.loads(file.read_text())), kept=True)


if __name__ == "__main__":
    main()
