"""How fast this machine is: BLAS and elementwise functions in float64, on one line of JSON.

Usage: ``python limits.py M [M ...]``. Blocks are M x 1000, as a pass over the data uses them. Each
number is the best of many, the median beside it. Threads follow the environment.
"""

import json
import os
import sys
import time

import numpy as np
import scipy.special as sp

from scipy.linalg.blas import dgemm, dsyrk, dtrsm

BLOCK = 1000


def seconds(function, repeat=40):
    """Best and median time of a call."""
    function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times), float(np.median(times))


def blas(M, rng):
    """GFLOP/s of the three products that an evaluation needs."""
    A = np.asfortranarray(rng.standard_normal((M, BLOCK)))
    W = np.asfortranarray(rng.standard_normal((M, M)))
    L = np.asfortranarray(np.tril(W) + 10 * np.eye(M))
    C = np.ascontiguousarray(A)
    flops = M * M * BLOCK
    timings = {
        "gemm": (2 * flops, seconds(lambda: dgemm(1.0, W, A))),
        "trsm": (flops, seconds(lambda: dtrsm(1.0, L, C.T, side=1, lower=1, trans_a=1))),
        "trsm_left": (flops, seconds(lambda: dtrsm(1.0, L, A, lower=1))),
        "syrk": (flops, seconds(lambda: dsyrk(1.0, A))),
    }
    return {
        name: {"best": n / t[0] / 1e9, "median": n / t[1] / 1e9} for name, (n, t) in timings.items()
    }


def elementwise(rng):
    """Nanoseconds an element of numpy's and scipy's functions, in cache and on one thread."""
    x = -np.abs(rng.standard_normal(100_000))
    out = np.empty_like(x)
    functions = {"exp": np.exp, "ndtr": sp.ndtr, "log_ndtr": sp.log_ndtr}
    return {
        name: seconds(lambda f=f: f(x, out=out))[0] / x.size * 1e9 for name, f in functions.items()
    }


def main():
    """Measure for every M on the command line."""
    rng = np.random.default_rng(0)
    result = {
        "blas": {M: blas(int(M), rng) for M in dict.fromkeys(sys.argv[1:] or ["200"])},
        "ns": elementwise(rng),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
