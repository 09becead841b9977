"""Chains that walk along weighed proposals, as the draws of a sampler."""

import numpy as np
import xarray as xr

from pymc.model.core import Model
from scipy.special import logsumexp

from pymc_vsgp.fit.chain import LARGEST_RHAT
from pymc_vsgp.fit.collapsed import Collapsed
from pymc_vsgp.fit.convergence import largest_rhat
from pymc_vsgp.fit.importance import Weighed
from pymc_vsgp.fit.stage import add_data, label
from pymc_vsgp.fit.store import complete
from pymc_vsgp.fit.weights import finite

__all__ = ["disagreement", "draws_of"]

APART = 15.0  # variance of the means of chains, over that by chance, that is too much


def draws_of(
    found: Weighed, model: Model, whole: Collapsed | None, chains: int, rng
) -> xr.DataTree:
    """Return draws of the posterior, by independence Metropolis-Hastings.

    Parameters
    ----------
    found : Weighed
        Proposals; each chain takes its part of them.
    model : Model
        The whole model.
    whole : Collapsed, optional
        The model that was weighed, where it lacks the inducing values.
    chains : int
        Number of chains.
    rng : Generator
        Source of the decisions.
    """
    state, stay, stats = _walk(found, chains, rng)
    # Chains stay where they are at times, and take one draw there after another: each of these is
    # looked at once.
    n_kept = found.epsilon.shape[1]
    which, inverse = np.unique(state * n_kept + stay % n_kept, return_inverse=True)
    inverse = inverse.reshape(state.shape)
    place, draw = np.divmod(which, n_kept)
    theta = np.concatenate([found.theta, found.start[0]])[place]
    epsilon = np.concatenate([found.epsilon, found.start[1]])[place, draw]
    target = model if whole is None else whole.model
    variables = [*target.free_RVs, *target.deterministics]
    values = found.points.drawn(variables, theta, epsilon)
    posterior = {v.name: x[inverse] for v, x in zip(variables, values, strict=True)}
    tree = xr.DataTree()
    data = label(model, posterior)
    tree["posterior"] = xr.DataTree(data.assign_coords(_counted(state.shape)))
    if whole is not None:
        complete(tree, model, whole, rng, epsilon[inverse] if epsilon.size else None)
    names = {d: (("chain", "draw"), x) for d, x in stats.items()}
    stats = xr.Dataset(names, coords=_counted(state.shape))
    # Chains that draw epsilon mix, or do not; other proposals of it are independent.
    both = {"rhat": (found.theta, found.start[0])}
    if found.walked:
        both["rhat_epsilon"] = (found.epsilon[:, 0], found.start[1][:, 0])
    for name, proposals in both.items():
        along = np.moveaxis(np.concatenate(proposals)[state], -1, 0)
        stats.attrs[name] = largest_rhat(along)
    tree["sample_stats"] = xr.DataTree(stats)
    add_data(tree, model)
    return tree


def disagreement(draws: xr.DataTree, found: Weighed) -> str:
    """Why chains are not of one distribution, or nothing: few proposals may say so, and no tail."""
    stats = draws["sample_stats"].attrs
    rhat, of_epsilon = stats["rhat"], stats.get("rhat_epsilon", 1.0)
    if of_epsilon > LARGEST_RHAT:
        return f"R-hat {of_epsilon:.2f} of epsilon"
    each = min(found.ess / draws["posterior"].sizes["chain"], draws["posterior"].sizes["draw"])
    return f"R-hat {rhat:.2f}" if rhat**2 > 1.0 + APART / each else ""


def _counted(shape):
    return {d: np.arange(n) for d, n in zip(("chain", "draw"), shape, strict=True)}


def _walk(found: Weighed, chains: int, rng):
    """Return where each chain is after each step, for how long, and what happened in it.

    Places after the proposals are those of the starts.
    """
    start_w = found.start[2]
    w = np.exp(finite(start_w) - logsumexp(finite(start_w)))
    state = rng.choice(len(w), size=chains, p=w)
    current = start_w[state]
    at = len(found.theta) + state
    draws = len(found.log_weight) // chains
    log_w = found.log_weight[: draws * chains].reshape(chains, draws)
    numbers = np.arange(log_w.size).reshape(log_w.shape)
    uniform = np.log(rng.random(log_w.shape))
    places, stay = np.empty((2, *log_w.shape), int)
    since = np.zeros(chains, int)
    chance, weight = np.empty((2, *log_w.shape))
    for t in range(draws):
        step = np.minimum(log_w[:, t] - current, 0.0)
        move = uniform[:, t] < step
        at, since = np.where(move, numbers[:, t], at), np.where(move, 0, since + 1)
        current = np.where(move, log_w[:, t], current)
        places[:, t], stay[:, t] = at, since
        chance[:, t], weight[:, t] = np.exp(step), current
    kept = slice(found.thin - 1, None, found.thin)
    stats = {"acceptance_rate": chance, "log_weight": weight}
    return places[:, kept], stay[:, kept], {name: x[:, kept] for name, x in stats.items()}
