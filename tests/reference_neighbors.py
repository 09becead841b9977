"""The Vecchia approximation in plain numpy, one input after another."""

import numpy as np


def matern32(X, Z, ls, sd):
    r = np.sqrt(((X[:, None] / ls - Z[None] / ls) ** 2).sum(axis=-1))
    return sd**2 * (1.0 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r)


def nearest(Z, x, m):
    return np.argsort(((Z - x) ** 2).sum(axis=1), kind="stable")[:m]


def around(Z, x, m):
    """The nearest of each orthant in turn; just the nearest, where x is one of Z."""
    order = nearest(Z, x, len(Z))
    if (Z[order[0]] == x).all():
        return order[:m]
    seen, turns = {}, []
    for i in order:
        where = tuple(Z[i] >= x)
        seen[where] = seen.get(where, 0) + 1
        turns.append(seen[where])
    return order[np.argsort(turns, kind="stable")][:m]


def conditional(kernel, Z, x, jitter):
    """Weights of the values at Z, and what is left of the variance at x."""
    c = kernel(Z, x[None])[:, 0]
    b = np.linalg.solve(kernel(Z, Z) + jitter * np.eye(len(Z)), c)
    return b, kernel(x[None], x[None])[0, 0] - b @ c


def precision_root(kernel, Z, order, m, jitter):
    """R^-1 of the prior, dense: rows of weights over deviations."""
    out = np.zeros((len(Z), len(Z)))
    for rank, i in enumerate(order):
        before = order[:rank]
        near = before[nearest(Z[before], Z[i], m)]
        b, left = conditional(kernel, Z[near], Z[i], jitter)
        sd = np.sqrt(left + jitter)
        out[i, near], out[i, i] = -b / sd, 1.0 / sd
    return out


def moments(kernel, Z, w, X, m, jitter):
    """Mean and variance of f at the rows of X, given values less their means."""
    mu, gamma = np.empty((2, len(X)))
    for n, x in enumerate(X):
        near = around(Z, x, m)
        b, gamma[n] = conditional(kernel, Z[near], x, jitter)
        mu[n] = b @ w[near]
    return mu, gamma
