"""The problems of the gradient benchmark: seeded data, a point, and what an evaluation costs.

Every baseline takes one flat vector, in this order:
``log_ls`` (D), ``log_eta`` (1), ``log_sigma`` (1, Gaussian case only), ``v`` (M x K, row-major).
The kernel is ``eta^2 exp(-0.5 sum_d (x_d - z_d)^2 / ls_d^2)``, its jitter ``1e-6 eta^2``; each
parameter and each whitened inducing value has the prior N(0, 1). Needs numpy only.
"""

JITTER = 1e-6  # times the prior variance, as in pymc_vsgp
EPSILON = 1e-3  # robust-max
N_NODES = 20  # Gauss-Hermite, in the baselines that need it

CASES = {
    "a": {"N": 1000, "M": 50, "D": 18, "K": 1, "lik": "probit"},
    "b": {"N": 10_000, "M": 100, "D": 2, "K": 1, "lik": "poisson"},
    "c": {"N": 20_000, "M": 200, "D": 8, "K": 1, "lik": "gaussian"},
    "d": {"N": 10_000, "M": 200, "D": 50, "K": 10, "lik": "robustmax"},
    "e": {"N": 1_000_000, "M": 200, "D": 4, "K": 1, "lik": "poisson"},
}
TITLES = {
    "a": "Bernoulli, probit",
    "b": "Poisson, log link",
    "c": "Gaussian, inducing values sampled",
    "d": "robust-max, 10 classes, one kernel",
    "e": "Poisson, log link, a million points",
}
# The same models, small: for a smoke test of the whole benchmark.
TINY = {
    "a": {"N": 200, "M": 20, "D": 3},
    "b": {"N": 300, "M": 20, "D": 2},
    "c": {"N": 300, "M": 20, "D": 3},
    "d": {"N": 200, "M": 20, "D": 5, "K": 4},
    "e": {"N": 3000, "M": 20, "D": 4},
}
# Largest relative difference from the numpy baseline, of the value and of the gradient. Where the
# expectation has no closed form the baselines differ by their quadrature.
TOLERANCE = {"probit": 1e-3, "poisson": 1e-8, "gaussian": 1e-8, "robustmax": 2e-2}


def settings(name, tiny=False):
    """Sizes and likelihood of a case."""
    return {**CASES[name], **(TINY[name] if tiny else {})}


def make(name, tiny=False):
    """Settings, data (X, y, Z) and a point (theta) of a case."""
    import numpy as np

    case = settings(name, tiny)
    rng = np.random.default_rng(20151207)
    N, M, D, K, lik = (case[k] for k in ("N", "M", "D", "K", "lik"))
    X = rng.standard_normal((N, D))
    Z = X[rng.choice(N, M, replace=False)].copy()
    weights = rng.standard_normal((D, K)) * (0.9 ** np.arange(D))[:, None]
    F = np.sin(X @ weights / np.sqrt(D) * 2.0)
    if lik == "probit":
        y = (F[:, 0] + rng.standard_normal(N) > 0).astype(float)
    elif lik == "poisson":
        y = rng.poisson(np.exp(F[:, 0])).astype(float)
    elif lik == "gaussian":
        y = F[:, 0] + 0.3 * rng.standard_normal(N)
    else:
        y = np.argmax(F + 0.1 * rng.standard_normal((N, K)), axis=1)
    P = D + 1 + (lik == "gaussian")
    theta = np.zeros(P + M * K)
    theta[:D] = np.log(np.sqrt(D) * (1 + 0.2 * rng.standard_normal(D).clip(-2, 2)))
    theta[D] = 0.1
    if lik == "gaussian":
        theta[D + 1] = np.log(0.4)
    theta[P:] = 0.3 * rng.standard_normal(M * K)
    return {**case, "X": X, "y": y, "Z": Z, "P": P, "theta": theta}


def gauss_hermite():
    """Nodes and weights for the expectation under N(0, 1)."""
    import numpy as np

    x, w = np.polynomial.hermite.hermgauss(N_NODES)
    return np.sqrt(2.0) * x, w / np.sqrt(np.pi)


def work(case):
    """Least work of one value and gradient by the hand-derived adjoint, in flops and elements.

    Two triangular solves and one symmetric product of N M^2 flops each, the distances and their
    adjoint, the mean and its adjoint; one exponential an entry of Kuf; the likelihood's functions.
    """
    N, M, D, K, lik = (case[k] for k in ("N", "M", "D", "K", "lik"))
    functions = {"exp": N * M, "ndtr": 0, "log_ndtr": 0}
    if lik == "poisson":
        functions["exp"] += N
    elif lik == "probit":
        functions["log_ndtr"] = N * N_NODES
        functions["exp"] += N * N_NODES
    elif lik == "robustmax":
        functions["ndtr"] = N * N_NODES * K
        functions["exp"] += N * N_NODES * K
    flops = {"trsm": 2 * N * M * M, "syrk": N * M * M, "gemm": 4 * N * M * D + 6 * N * M * K}
    return {"flops": flops, "functions": functions}


def dense_bytes(case):
    """Memory of a baseline that keeps whole M x N matrices: about ten of them at its peak."""
    return 10 * 8 * case["N"] * (case["M"] + case["K"] * (case["lik"] == "robustmax") * N_NODES)
