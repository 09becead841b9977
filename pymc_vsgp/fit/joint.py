r"""Sites of functions that share data, together.

The stage has these independent. Data of a sum, however, tell the sum: one function may be higher
where the other is lower, and a sampler in coordinates from the sites of each would have to move one
a little, then the other. With the gradient a of the expected log density at the mean m of q, and
its second derivatives G in all v,

.. math:: \exp(h^\top v + v^\top G v / 2), \quad h = a - G m

are sites that know how functions correlate. They are exact where noise is normal.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.linalg

from pytensor.graph.replace import graph_replace

from pymc_vsgp.compile import ONCE, function, simplify
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.approximation import of_coefficients
from pymc_vsgp.fit.bound import slope_in_v, split, whitened_coordinates
from pymc_vsgp.inducing.coordinates import Sites, inverse_transpose, root_of

__all__ = ["own_sites", "shared_sites"]

FEW = 400  # inducing values in all, for which factors take little time
OFF = 2.0  # times as much as a function knows alone, or as little, is not of its density
LONGEST = 3.0  # standard deviations that a step is right for, where data are not normal
FACTOR = 3.0  # operations of a gradient for n^3, in those for M^2 of a row


def shared_sites(
    fit: Any, pulls: Callable[[], dict[int, tuple]]
) -> tuple[list[Sites], dict] | None:
    """Return sites of the functions of a `Natural` fit together, where they share data.

    And slopes of them in parameters, of which `pulls` returns how they pull u and its prior mean;
    see `following`. None where there are no such functions, or too many values.
    """
    processes, ev = fit.bound.processes, fit.evaluation
    shapes = [(p.n_functions, p.n_inducing) for p in processes]
    n = sum(K * M for K, M in shapes)
    if fit.n_sharing < 2 or fit.bound.mesh is not None or any(p.sparse for p in processes):
        return None
    of_rows = max(fit.bound.sizes()) * sum(M**2 for _, M in shapes)
    if n > FEW and FACTOR * n**3 > of_rows:
        return None
    try:
        bend = _second_derivatives(fit, shapes, n)
    except NotImplementedError:
        return None
    if bend is None or not _says_as_much(fit, bend, shapes):
        return None
    root, m = root_of(-bend), np.concatenate([x.ravel() for x in ev.mean])
    pairs = zip(processes, ev.R, ev.mean, strict=True)
    # Derivatives of coefficients are in u, all others in v.
    wide = [np.broadcast_to(R if p.independent else 1.0, x.shape) for p, R, x in pairs]
    units = np.concatenate([x.ravel() for x in wide])
    whitened = units[:, None] * root
    h = split(m + whitened @ (whitened.T @ m) + _step(fit, whitened, m), shapes)
    roots = []
    for p, R, B in zip(processes, ev.R, split(root.T, shapes), strict=True):
        rows = B.transpose(1, 2, 0)
        roots.append(rows if p.independent else np.stack([_back(R, b) for b in rows]))
    known = sum(_projected(B, m).sum(axis=0) for B, m in zip(roots, ev.prior_mean, strict=True))
    pairs = zip(ev.R, roots, h, strict=True)
    sites, slopes = [Sites(_back(R, x.T).T + B @ known, B) for R, B, x in pairs], {}
    found = pulls()
    moved: dict[int, Any] = {}
    for i, (_, means) in found.items():
        for j, mean in zip(processes[i].at.tolist(), np.moveaxis(means, -1, 0), strict=True):
            moved[j] = moved.get(j, 0.0) + _projected(roots[i], mean).sum(axis=0)
    for i, (pulled, _) in found.items():
        together = [roots[i] @ moved[j] for j in processes[i].at.tolist()]
        slopes[i] = pulled + np.stack(together, axis=-1)
    return sites, slopes


def _back(R: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return ``R^-T x``; a vector R stands for a diagonal matrix."""
    if R.ndim == 1:  # and may have no variance, of high frequencies
        return np.divide(x, R[:, None], out=np.zeros_like(x), where=R[:, None] > 0.0)
    return scipy.linalg.solve_triangular(R, x, lower=True, trans=1)


def _step(fit: Any, root: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Return what leads from the mean of q to where all functions move at once.

    One after the other they come near to that slowly. A few rows of a minibatch do not tell it.
    """
    if fit.rows is not None:
        return np.zeros_like(m)
    ev = fit.evaluation
    pairs = enumerate(fit.bound.processes)
    step = np.concatenate([slope_in_v(ev.R[i], ev.pull(i, p)).ravel() for i, p in pairs]) - m
    far = np.sqrt(step @ np.linalg.solve(np.eye(len(m)) + root @ root.T, step))
    return step * min(1.0, LONGEST / far) if far > 0.0 else step


def _says_as_much(fit: Any, bend: np.ndarray, shapes: list[tuple[int, int]]) -> bool:
    """Whether second derivatives are those of each function, whose expectations are not rough.

    Those of a density with kinks are zero almost everywhere.
    """
    parts = zip(fit.bound.processes, split(-np.diagonal(bend), shapes), strict=True)
    for i, (p, rough) in enumerate(parts):
        known = fit.evaluation.precision[i]
        if p.folded:
            known = np.stack([fit.bound.products[i].unfold(x) for x in known])
        own = known.sum() if p.diagonal else np.trace(known, axis1=1, axis2=2).sum()
        if own > OFF * rough.sum() or rough.sum() > OFF * own:
            return False
    return True


def _in_loop(p: Any, R: np.ndarray, mean, factor):
    """Return mean and root of what a loop takes; the precision has a factor, or its diagonal."""
    root = 1.0 / factor if factor.type.ndim == 2 else inverse_transpose(factor)
    return of_coefficients(pt.constant(R), mean, root) if p.independent else (mean, root)


def own_sites(sites: list[Sites], mean: list[np.ndarray], diagonal: list[bool]) -> list[Sites]:
    """Return sites of each function alone, where u of all others are at their means.

    Those with a diagonal root are of as many coefficients as are independent under q.
    """
    said = [_projected(x.root, u) for x, u in zip(sites, mean, strict=True)]
    known = sum(x.sum(axis=0) for x in said)
    out = []
    for x, own, alone, u in zip(sites, said, diagonal, mean, strict=True):
        linear = x.linear - (x.root @ (known - own)[..., None])[..., 0]
        if alone:
            root = np.linalg.norm(x.root, axis=2)
            linear += root**2 * u - (x.root @ own[..., None])[..., 0]
        else:
            root = np.stack([root_of(B @ B.T) for B in x.root])
        out.append(Sites(linear, root))
    return out


def _projected(root: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return ``B^T u`` of each function, from the rows of B for it; u may be the same of all."""
    return np.einsum("kmn,km->kn", root, np.broadcast_to(u, root.shape[:2]))


def _second_derivatives(fit: Any, shapes: list[tuple[int, int]], n: int) -> np.ndarray | None:
    """Return those of the expected log density, or None where no data are of several.

    They are in all v; of coefficients in u.
    """
    bound, ev = fit.bound, fit.evaluation
    with whitened_coordinates(bound.model):
        loops = block_sums(simplify(bound.model.logp()))
    names = [p.u.name for p in bound.processes]
    parts = (loop.op.recipe.parts for loop in loops)
    of_loops = [[names.index(p.conditional.process) for p in some] for some in parts]
    several = [sum(shapes[i][0] for i in of) > 1 for of in of_loops]
    pairs = zip(loops, several, strict=True)
    if not any(more and loop.op.recipe.likelihood.coupled for loop, more in pairs):
        return None
    means = [pt.tensor(dtype="float64", shape=shape) for shape in shapes]
    factors = [pt.tensor(dtype="float64", shape=x.shape) for x in ev.factor]
    where = split(np.arange(n), shapes)
    outputs, at = [], []
    for loop, of, more in zip(loops, of_loops, several, strict=True):
        q = (_in_loop(bound.processes[i], ev.R[i], means[i], factors[i]) for i in of)
        m, roots = zip(*q, strict=True)
        new = stream_gaussian(loop, m, roots, joint=more)
        if more:
            outputs.append(new.joint)
            at.append(np.concatenate([where[i].ravel() for i in of]))
            continue
        gram = new.grams[0][0]
        outputs.append(pt.diag(gram) if gram.type.ndim == 1 else gram)
        at.append(where[of[0]][0])
    moved = dict(zip(bound.moving, fit.moved, strict=False))
    outputs = graph_replace(outputs, {x: pt.constant(v) for x, v in moved.items()}, strict=False)
    values = bound.unravel(fit.theta).values()
    compiled = function([*bound.values, *means, *factors], simplify(outputs), ONCE)
    total = np.zeros((n, n))
    for x, i in zip(compiled(*values, *ev.mean, *ev.factor), at, strict=True):
        total[np.ix_(i, i)] += x
    return (total + total.T) / 2.0
