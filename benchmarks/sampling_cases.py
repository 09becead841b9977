"""The problems of the sampling benchmark, written to a file that every baseline reads.

Usage: ``python sampling_cases.py CASE FILE.npz [--tiny]``. Larger data sets are read from the
folder that PYMC_VSGP_DATA names. A case has inputs X, observations y, inducing inputs Z, exposure,
a likelihood, and priors of the lengthscales, the variance and the dispersion: each ``gamma``
(shape, rate) or ``lognormal`` (mean, standard deviation of the logarithm).
"""

import sys

import numpy as np
import pandas as pd

import pymc_vsgp as vsgp

GAMMA_IMAGE = ("gamma", 1.1, 1.0)
STANDARD = ("lognormal", 0.0, 1.0)


def _case(X, y, Z, lik, ls, variance, ard=False, exposure=1.0, alpha=None):
    return {
        "X": np.asarray(X, float),
        "y": np.asarray(y, float),
        "Z": np.asarray(Z, float),
        "lik": lik,
        "prior_ls": ls,
        "prior_variance": variance,
        "prior_alpha": alpha or ("none", 0.0, 0.0),
        "ard": ard,
        "exposure": float(exposure),
    }


def coal(tiny):
    """191 explosions in 100 bins, 30 inducing points on a grid, as in Hensman et al. (2015)."""
    table = vsgp.datasets.coal_counts(bins=40 if tiny else 100)
    X = table["year"].to_numpy()[:, None]
    Z = vsgp.inducing.grid(X, 12 if tiny else 30)
    width = table["width"].mean()
    ls, variance = ("gamma", 1.1, 0.1), ("gamma", 1.0, 0.3)
    return _case(X, table["count"], Z, "poisson", ls, variance, exposure=width)


def pines(tiny):
    """126 saplings in 32 x 32 cells, 15 x 15 inducing points, as in Hensman et al. (2015)."""
    cells, side = (8, 4) if tiny else (32, 15)
    table = vsgp.datasets.load("finpines")
    window = [(-5.0, 5.0), (-8.0, 2.0)]  # metres
    counts, *edges = np.histogram2d(table["x"], table["y"], bins=cells, range=window)
    centres = [0.5 * (e[:-1] + e[1:]) for e in edges]
    X = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)
    area = np.prod([e[1] - e[0] for e in edges])
    Z = vsgp.inducing.grid(X, side)
    ls, variance = ("gamma", 1.75, 1.0), ("gamma", 1.2, 1.0)
    return _case(X, counts.ravel(), Z, "poisson", ls, variance, exposure=area)


def banana(tiny):
    """400 rows of Raetsch's banana, 50 inducing points, probit."""
    data = vsgp.datasets.load("raetsch_banana")
    rows = data["gpflow400_idx"][: 100 if tiny else None]
    X, y = data["X"][rows], data["y"][rows]
    Z = vsgp.inducing.kmeans(X, 10 if tiny else 50, random_seed=1)
    return _case(X, y, Z, "probit", GAMMA_IMAGE, GAMMA_IMAGE)


def image(tiny, ard=False):
    """1000 rows of Raetsch's image without duplicates, 100 inducing points, probit."""
    data = vsgp.datasets.load("raetsch_image")
    rows = np.random.default_rng(0).permutation(data["unique_idx"])[: 100 if tiny else 1000]
    X, y = data["X"][rows].astype(float), data["y"][rows]
    scale = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    Z = vsgp.inducing.kmeans(X, 10 if tiny else 100, random_seed=1)
    return _case(X, y, Z, "probit", GAMMA_IMAGE, GAMMA_IMAGE, ard=ard)


def nmes(tiny):
    """Visits of 4406 patients, eight inputs, 100 inducing points, negative binomial."""
    table = vsgp.datasets.load("nmes1988")
    codes = {"poor": -1.0, "average": 0.0, "excellent": 1.0}
    columns = {"health": table["health"].map(codes), "adl": table["adl"] == "limited"}
    columns |= {k: table[k] for k in ("chronic", "age", "school", "income")}
    columns |= {"gender": table["gender"] == "male", "insurance": table["insurance"] == "yes"}
    X = pd.DataFrame(columns).astype(float).to_numpy()
    y = table["visits"].to_numpy(float)
    if tiny:
        X, y = X[:150], y[:150]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    Z = vsgp.inducing.kmeans(X, 10 if tiny else 100, random_seed=1)
    alpha = ("gamma", 2.0, 1.0)
    ls = ("gamma", 3.0, 1.0)
    return _case(
        X, y, Z, "negbin", ls, GAMMA_IMAGE, ard=True, exposure=float(y.mean()), alpha=alpha
    )


def simulated(tiny, mean):
    """Poisson counts with a given typical mean, two inputs, 50 inducing points."""
    rng = np.random.default_rng(20151207)
    N, M = (100, 10) if tiny else (1000, 50)
    X = rng.standard_normal((N, 2))
    f = np.sin(X @ rng.standard_normal(2) * np.sqrt(2.0))
    y = rng.poisson(mean * np.exp(f))
    Z = vsgp.inducing.kmeans(X, M, random_seed=1)
    return _case(X, y, Z, "poisson", STANDARD, STANDARD, ard=True, exposure=mean)


def weak(tiny):
    """Probit with 18 inputs and data that say little: case (a) of the gradient benchmark."""
    import cases

    case = cases.make("a", tiny)
    return _case(case["X"], case["y"], case["Z"], "probit", STANDARD, STANDARD, ard=True)


CASES = {
    "coal": coal,
    "pines": pines,
    "banana": banana,
    "image_iso": image,
    "image_ard": lambda tiny: image(tiny, ard=True),
    "nmes": nmes,
    "poisson1": lambda tiny: simulated(tiny, 1.0),
    "poisson50": lambda tiny: simulated(tiny, 50.0),
    "probit18": weak,
}


def main(name, path, tiny):
    """Write a case to a file, or say why it cannot be had."""
    try:
        case = CASES[name](tiny)
    except FileNotFoundError as error:
        print(error)
        raise SystemExit(3) from None
    rows = np.linspace(0, len(case["X"]) - 1, 20).astype(int)
    np.savez(path, rows=rows, **case)
    sizes = {"N": len(case["X"]), "M": len(case["Z"]), "D": case["X"].shape[1]}
    print(", ".join(f"{k}={v}" for k, v in sizes.items()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--tiny" in sys.argv[3:])
