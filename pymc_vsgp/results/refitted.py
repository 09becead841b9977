r"""What more inducing points would do to the function at the data, at the same parameters.

Given theta the best Gaussian of the whitened inducing values has the precision
:math:`\Lambda = I + A W A^\top` and the mean :math:`\Lambda^{-1} A (g + W (\mu - m))`, with g and
-W/2 the derivatives of the potentials in the mean and in the variance of f. More points are more
rows of A. Exact for normal noise; for other likelihoods the Gaussian stage at fixed parameters.
:func:`shift_of` says how far the parameters would move.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc.model.core import Model
from pytensor.graph.traversal import ancestors

from pymc_vsgp.fit.gaussian import fit_gaussian
from pymc_vsgp.fit.sites import sites_of_all
from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.fit.starts import ImproperPrior
from pymc_vsgp.model.copies import as_sampled, copy_of
from pymc_vsgp.model.observation import find_observation, processes
from pymc_vsgp.model.variable import inducing_variables
from pymc_vsgp.results.draws import ROWS, Fitted
from pymc_vsgp.results.nested import TINY, given_more, number_of, slopes_of
from pymc_vsgp.results.predicted import Mean, Spread

LARGEST = 50_000_000  # numbers in A; it is not looked at beyond
DRAWN = 400  # of a Gaussian stage
STEPS = 50
QUICK = 20_000_000  # operations of an evaluation, up to which there are several starts
STARTS = 6  # of a Gaussian stage: more points may gain at other parameters
SETTLED = 1e-3  # standard deviations
SEVERAL = 0.5  # of a step, where functions share a likelihood: a full one overshoots


class Moved(NamedTuple):
    """How f at the data changes, where it changes most."""

    mean: float
    """In its standard deviations."""
    sd: float
    """As a factor."""
    at: np.ndarray
    """The input where the mean moves most."""

    @property
    def shows(self) -> bool:
        """Whether a plot would show it."""
        return self.mean > 0.5 or abs(np.log(self.sd)) > np.log(1.25)

    def __str__(self) -> str:
        where = f" at {np.array2string(self.at, precision=4)}" if self.at.size else ""
        return f"by up to {self.mean:.2g} sd{where}, its sd by a factor of {self.sd:.2g}"


def moved_by(fit: Fitted, draws, X, y, Z) -> Moved | None:
    """Compare f at the data with and without the points Z, given theta of each of these draws.

    Its processes are those of one likelihood. None where that would take too much memory.
    """
    number = sum(number_of(fit, i) for i in range(len(fit.observation.parts)))
    if len(y) * (number + sum(len(z) for z in Z)) > LARGEST:
        return None
    means, spreads = (Mean(), Mean()), (Spread(), Spread())
    for s in draws:
        found = _refit(fit, slice(s, s + 1), X, y, Z)
        for (mu, gamma), mean, spread in zip(found, means, spreads, strict=True):
            mean.add(mu[None])
            spread.add((mu[None], gamma[None]))
    return _compare(X, [m.result() for m in means], [s.result() for s in spreads])


def others_of(fit: Fitted) -> list[str]:
    """Return the names of other terms that say something of its processes, such as likelihoods."""
    own = {p.u for p in fit.observation.parts}
    terms = [v for v in (*fit.model.observed_RVs, *fit.model.potentials) if v.name != fit.name]
    return [v.name for v in terms if not own.isdisjoint(ancestors([v]))]


def check_more(fit: Fitted, more: Model) -> None:
    """Raise ValueError unless a model has more inducing values, where these are of one kind."""
    parts, others = fit.observation.parts, find_observation(more, fit.name).parts
    if [type(p.conditional) for p in parts] != [type(p.conditional) for p in others]:
        return
    few, many = ([getattr(p.conditional, "m", 0) for p in each] for each in (parts, others))
    if sum(many) > sum(few):  # neighbors, of as many values
        return
    shapes = (fit.model.eval_rv_shapes(), more.root.eval_rv_shapes())
    now, then = (
        sum(int(np.prod(of[p.u.name])) for p in each if p.u.name in of)
        for of, each in zip(shapes, (parts, others), strict=True)
    )
    if 0 < then <= now:
        raise ValueError(
            f"refit has {then} inducing values, and the model of the draws {now}. "
            "Build it with more inducing points, or more neighbors of each."
        )


def compare_stages(fit: Fitted, more: Model) -> tuple[float, Moved]:
    """What Gaussian stages, on copies of both models, differ by: in ELBO, and in f at the data."""
    kept = [group for group in (fit.draws.constant, fit.draws.observed) if group is not None]
    model = copy_of(as_sampled(fit.model, *kept, but=sites_of_all(fit.model)))
    elbos, means, sds = [], [], []
    for m in (model, copy_of(as_sampled(more, *kept, but=_of_inducing(more)))):
        stage = _best_stage(m, len(fit.X))
        if stage.interrupted:
            raise KeyboardInterrupt
        drawn = Fitted(stage.to_datatree(DRAWN, random_seed=0), m, fit.name)
        mean, spread = Mean(), Spread()
        for at in drawn.slabs(len(fit.X) * drawn.n_functions):
            moments = drawn.moments(at, fit.X)
            mean.add(moments[0])
            spread.add(moments)
        elbos.append(stage.elbo)
        means.append(mean.result())
        sds.append(spread.result())
    return elbos[1] - elbos[0], _compare(fit.X, means, sds)


def _best_stage(model: Model, n_rows: int) -> GaussianStage:
    """Return the best of several, or the only one where they would take long."""
    sizes = model.eval_rv_shapes()
    M = sum(int(np.prod(sizes[u.name])) for u in inducing_variables(model))
    n_starts = STARTS if n_rows * M**2 <= QUICK else 1
    options = {"move_inducing": False, "model": model, "progressbar": False}
    try:
        return fit_gaussian(n_starts=n_starts, random_seed=1, **options)
    except ImproperPrior:
        return fit_gaussian(**options)


def _of_inducing(model: Model) -> set[str]:
    """Names of data that inducing variables are made of: with more of them they are others."""
    names = sites_of_all(model)
    for name, p in processes(model).items():
        names |= {str(p.points.name)} | {f"{name}_{what}" for what in p.conditional.kept}
    return names


def _compare(X, means, sds) -> Moved:
    # Where the prior variance is zero, both are: the factor is one.
    before, after = (np.maximum(sd, np.sqrt(TINY)) for sd in sds)
    by = (np.abs(means[1] - means[0]) / after).reshape(len(X), -1).max(axis=1)
    factor = np.log(after / before)
    most = float(np.exp(factor.flat[np.abs(factor).argmax()]))
    return Moved(float(by.max()), most, X[int(by.argmax())])


def _refit(fit: Fitted, draw: slice, X, y, Z):
    """Yield mean and variance of f at the data: without the points Z, then with them."""

    def build():
        x, found, inputs = fit.X_symbol, [], []
        for part in fit.observation.parts:
            inputs.append(z := x.type())
            A, C, left = given_more(part, x, z)
            found += [part.prior_mean(x), A, C, part.moments(x).gamma, left]
        return [], [x, *inputs], found

    blocks = [slice(a, a + ROWS) for a in range(0, len(y), ROWS)]
    each = [fit.call("refitted", draw, build, same=[X[at], *Z]) for at in blocks]
    means, As, Cs, alone, left = (
        [np.concatenate(p, axis=axis + 1)[0] for p in list(zip(*each, strict=True))[i::5]]
        for i, axis in enumerate((0, 1, 1, 0, 0))
    )
    start = [fit.moments(draw, X[at]) for at in blocks]
    mu, gamma = (np.concatenate(p, axis=1).reshape(len(y), -1) for p in zip(*start, strict=True))
    single = start[0][0].ndim == 2
    more = [np.concatenate(pair) for pair in zip(As, Cs, strict=True)]
    for A, residual in ((As, alone), (more, left)):
        parts = list(zip(means, A, residual, strict=True))
        mu, gamma = _best(fit, draw, y, mu, gamma, parts, single)
        yield mu, gamma


def _best(fit: Fitted, draw: slice, y, mu, gamma, parts, single: bool):
    """Take natural-gradient steps until the moments of f at the data stay where they are.

    `parts` has the prior mean of f, A, and the variance that u leaves, for each process. The
    likelihood takes vectors where there is a `single` function.
    """
    columns = [(m, A, left) for mean, A, left in parts for m in mean.reshape(len(y), -1).T]
    step = SEVERAL if len(columns) > 1 else 1.0
    natural: list = []
    for _ in range(STEPS):
        g, slope = _slopes(fit, draw, y, mu, gamma, single)
        w = np.maximum(-2.0 * slope, 0.0)
        target = [
            ((A * w[:, k]) @ A.T, A @ (g[:, k] + w[:, k] * (mu[:, k] - mean)))
            for k, (mean, A, _) in enumerate(columns)
        ]
        natural = [
            (step * P + (1.0 - step) * P_old, step * b + (1.0 - step) * b_old)
            for (P, b), (P_old, b_old) in zip(target, natural or target, strict=True)
        ]
        old, new = mu, []
        for (mean, A, left), (P, b) in zip(columns, natural, strict=True):
            L = scipy.linalg.cholesky(np.eye(len(P)) + P, lower=True)
            root = scipy.linalg.solve_triangular(L, A, lower=True)
            of_b = scipy.linalg.solve_triangular(L, b, lower=True)
            new.append((mean + root.T @ of_b, left + np.sum(root**2, axis=0)))
        mu, gamma = (np.stack(x, axis=1) for x in zip(*new, strict=True))
        if np.max(np.abs(mu - old) / np.sqrt(np.maximum(gamma, TINY))) < SETTLED:
            break
    return mu, gamma


def _slopes(fit: Fitted, draw: slice, y, mu, gamma, single: bool):
    """Derivatives of the potentials, with a column for each function."""
    found = []
    for a in range(0, len(y), ROWS):
        at = slice(a, a + ROWS)
        m, v = (x[at, 0] if single else x[at] for x in (mu, gamma))
        found.append(slopes_of(fit, draw, m[None], v[None], y[at], a))
    return (np.concatenate(x, axis=1).reshape(len(y), -1) for x in zip(*found, strict=True))


def shift_of(fit: Fitted, missing: np.ndarray) -> dict[str, tuple[float, float]]:
    """How far parameters move when each draw is given back what it lacks, with standard errors.

    The sparse posterior of theta is the exact one times exp(-KL), and T estimates that KL.
    """
    w = np.exp(missing - missing.max())
    w = w / w.sum()
    skip = {rv.name for rv in inducing_variables(fit.model)}
    out = {}
    for rv in fit.model.free_RVs:
        if rv.name in skip or rv.name not in fit.draws.posterior:
            continue
        array = fit.draws.posterior[rv.name].transpose("chain", "draw", ...)[0, 0]
        x = fit.draws.values(rv.name).reshape(fit.draws.n, array.size).astype("float64")
        if array.size > 50:
            continue
        dims = list(fit.model.named_vars_to_dims.get(rv.name) or array.dims)
        known = fit.coords_of(dims) | {d: x.values for d, x in array.coords.items()}
        for column, at in zip(x.T, np.ndindex(array.shape), strict=True):
            sd = column.std()
            # By the label of the dimension where it has one, else by number.
            inside = (str(known[d][i] if d in known else i) for d, i in zip(dims, at, strict=True))
            if sd > 0:
                label = f"{rv.name}[{', '.join(inside)}]" if at else rv.name
                moved, center = w @ column, column.mean()
                each = w * (column - moved) - (column - center) / len(w)
                out[label] = float(abs(moved - center) / sd), float(np.linalg.norm(each) / sd)
    return out
