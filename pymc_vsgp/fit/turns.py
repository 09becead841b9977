"""Sites of variables that turn with theta.

A fit has sites of u at its theta. Where u turns with theta, as at pairs of places, the model is
given those of C u in their place, which does not; see `Conditional.turns`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg

from pymc_vsgp.compile import ONCE, function, simplify
from pymc_vsgp.fit.bound import Variables
from pymc_vsgp.fit.joint import own_sites
from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import processes

__all__ = ["along", "back", "for_model", "for_nuts", "forth", "of_model"]

MANY = 300  # variables that turn, above which NUTS has sites of each alone


def for_model(bound: Any, theta: np.ndarray, sites: list[Sites]) -> list[Sites]:
    """Return what a model is given for the sites of a fit that ended at theta."""
    return _changed(bound, theta, sites, forth)


def of_model(bound: Any, theta: np.ndarray, stage: GaussianStage) -> list[Sites]:
    """Return the sites of each process alone that a fit takes for those of a stage."""
    names = [p.u.name for p in bound.processes]
    sites = _changed(bound, theta, [stage.sites[name] for name in names], back)
    means = [stage.mean[name] for name in names]
    diagonal = [p.diagonal for p in bound.processes]
    if any(s.shared for s in sites):
        here = [s.at(theta[p.at]) for s, p in zip(sites, bound.processes, strict=True)]
        return own_sites(here, means, diagonal)
    out = []
    for s, alone, mean in zip(sites, diagonal, means, strict=True):
        if s.rotated:
            s = Sites(s.linear, s.root[:, 0], s.slope)
        elif alone and s.dense:
            (own,) = own_sites([s._replace(slope=None)], [mean], [True])
            s = own._replace(slope=s.slope)
        out.append(s)
    return out


def _changed(bound: Any, theta, sites: list[Sites], change) -> list[Sites]:
    known, out = processes(bound.model), list(sites)
    for i, (s, p) in enumerate(zip(sites, bound.processes, strict=True)):
        turns = known[p.u.name].turns if s.dense and p.u.name in known else None
        if turns is None:
            continue
        graphs = simplify(bound.model.replace_rvs_by_values(turns))
        C = function(bound.values, graphs, ONCE)(*bound.unravel(theta).values())
        slope = None if s.slope is None else change(C, s.slope)
        out[i] = Sites(change(C, s.linear[..., None])[..., 0], change(C, s.root), slope)
    return out


def for_nuts(stage: GaussianStage) -> GaussianStage:
    """Return a stage whose coordinates cost a gradient little.

    Where there are many variables that turn, a matrix for all of them would take all the time.
    """
    names = [name for name, s in stage.sites.items() if s.dense and s.root.shape[1] > MANY]
    known = processes(stage.model)
    names = [name for name in names if name in known and known[name].turns is not None]
    if not names:
        return stage
    bound = Variables(stage.model, whole=True)
    alone = of_model(bound, bound.ravel(stage.theta_unconstrained), stage)
    found = {p.u.name: s for p, s in zip(bound.processes, alone, strict=True)}
    return replace(stage, sites=stage.sites | {name: found[name] for name in names})


def back(C, x: np.ndarray) -> np.ndarray:
    """Return ``C^T x``, for each function: what is of sites of C u, for those of u."""
    return along(C, x, lambda c, x: c.T @ x)


def forth(C, x: np.ndarray) -> np.ndarray:
    """Return ``C^-T x``: the other way round."""
    return along(C, x, lambda c, x: scipy.linalg.solve_triangular(c, x, lower=True, trans=1))


def along(C, x: np.ndarray, call: Callable) -> np.ndarray:
    """Call something with each of two matrices and x, K x M x n, for their Kronecker product."""
    n, m = map(len, C)
    K, _, columns = x.shape
    x = np.stack([call(C[0], each) for each in x.reshape(K, n, m * columns)])
    x = np.stack([call(C[1], each) for each in x.reshape(K * n, m, columns)])
    return x.reshape(K, n * m, columns)
