"""Importance weights from the sparse posterior to the exact one, where that is affordable."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from pymc.model.core import Model

from pymc_vsgp.fit.weights import smooth_weights
from pymc_vsgp.model.observation import observations, unstreamed
from pymc_vsgp.progress import progress
from pymc_vsgp.results.draws import Fitted
from pymc_vsgp.results.predicted import Noise, draw_joint

LARGEST_EXACT = 2000
GOOD_K = 0.7


@dataclass(repr=False)
class ExactWeights:
    """Importance weights from the sparse posterior to the exact one.

    Attributes
    ----------
    khat : float
        Pareto shape of the weights. Above 0.7 they are not to be used. It takes 25 draws or more,
        and is nan for fewer.
    kl : float
        Estimate of the divergence to the exact posterior, in nats.
    log_weights : DataArray
        Smoothed and normalized, with the dimensions chain and draw.
    """

    khat: float
    kl: float
    log_weights: xr.DataArray
    posterior: xr.Dataset

    @property
    def usable(self) -> bool:
        """Whether the weights can be relied on."""
        return self.khat <= GOOD_K

    @property
    def n_effective(self) -> float:
        """Draws of the exact posterior that the weighted ones are worth."""
        return float(1.0 / np.sum(np.exp(2.0 * self.log_weights)))

    def __repr__(self):
        """Say if the weights are of use."""
        n = self.log_weights.size
        head = (
            f"Importance weights to the exact posterior: k-hat {self.khat:.2f}, {n} draws are "
            f"worth {self.n_effective:.0f}, divergence about {self.kl:.2g} nats"
        )
        if self.usable:
            return head + "\nThey can be used: see summary()."
        if np.isnan(self.khat):
            return head + "\nThey can't be used: k-hat is unknown. Weigh hundreds of draws."
        return head + "\nThey can't be used: k-hat is above 0.7. Use more inducing points."

    def summary(self) -> xr.Dataset:
        """Mean and standard deviation of each variable, sparse and reweighted."""
        if np.isnan(self.khat):
            raise ValueError("k-hat is unknown, as that of few draws. Weigh hundreds of them.")
        if not self.usable:
            raise ValueError(
                f"k-hat is {self.khat:.2f}, so a few draws have all the weight. "
                "Use more inducing points, until it is below 0.7."
            )
        over = ["chain", "draw"]
        w = np.exp(self.log_weights)
        mean = (self.posterior * w).sum(over)
        sd = np.sqrt((((self.posterior - mean) ** 2) * w).sum(over))
        plain = [self.posterior.mean(over), self.posterior.std(over)]
        return xr.concat(
            [*plain, mean, sd],
            xr.DataArray(["mean", "sd", "exact_mean", "exact_sd"], dims="summary", name="summary"),
        )


def exact_weights(
    idata: xr.DataTree,
    num_samples: int | None = 500,
    *,
    var_name: str | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
    model: Model | None = None,
) -> ExactWeights:
    r"""
    Weigh draws of the sparse posterior so that they are of the exact one.

    With f drawn jointly at all inputs given u, :math:`w = p(y | f) / \exp \sum_n \phi_n`. Takes a
    matrix of all inputs for each draw, so at most 2000 of them. It is of use where the sparse
    posterior is close already, and says so where it is not.

    Parameters
    ----------
    idata : DataTree
        Draws.
    num_samples : int, optional
        How many of them to weigh.
    var_name : str, optional
        Name of the observed variable. The model must have one only: the exact posterior is that
        of all.
    random_seed : int or Generator, optional
        Seed of the draws of f.
    progressbar : bool
        Whether to show progress.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    ExactWeights
    """
    fit = Fitted(idata, model, var_name, num_samples=num_samples)
    known = [*observations(fit.model), *unstreamed(fit.model)]
    if len(known) > 1:
        raise ValueError(
            f"The model has the likelihoods {known}, and weights of one alone don't lead to "
            "the exact posterior. Use check_inducing(idata, var_name=...) for each."
        )
    X, y = fit.X, fit.seen[1]
    if len(X) > LARGEST_EXACT:
        raise ValueError(
            f"There are {len(X)} observations, and exact weights take a matrix of all of them for "
            f"each draw. They are for at most {LARGEST_EXACT}; use check_inducing."
        )
    noise = Noise(random_seed, fit.draws.n)
    log_w = np.empty(fit.draws.n)
    with progress("Weighing", fit.draws.n, progressbar) as advance:
        for at in fit.slabs(len(X) ** 2):
            mu, gamma = fit.moments(at, X)
            f = draw_joint(fit, at, X, noise)
            each = fit.log_prob(at, f, y) - fit.expected_logp(at, mu, gamma, y)
            log_w[at] = each.reshape(len(each), -1).sum(axis=1)
            advance(len(each))
    smoothed, khat = smooth_weights(log_w)
    top = log_w.max()
    # The mean of the logarithms is zero but for chance where the potentials are expectations.
    kl = float(np.log(np.mean(np.exp(log_w - top))) + top - np.mean(log_w))
    weights = xr.DataArray(
        fit.draws.unstack(smoothed), dims=["chain", "draw"], coords=fit.draws.coords
    )
    keep = [rv.name for rv in fit.model.free_RVs if rv.name in fit.draws.posterior]
    return ExactWeights(khat, kl, weights, fit.draws.posterior[keep])
