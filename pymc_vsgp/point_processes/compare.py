"""What the size of the bins changes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pymc.model.core import Model
from scipy.special import gammaln

from pymc_vsgp.checks import check_built, check_number, generator_of
from pymc_vsgp.fit import fit_gaussian
from pymc_vsgp.likelihoods import Likelihood, Poisson, PoissonProcess
from pymc_vsgp.point_processes.process import PointProcess
from pymc_vsgp.results.prediction import predict

__all__ = ["compare_bins"]


def compare_bins(
    pattern: PointProcess,
    build: Callable[[np.ndarray, np.ndarray, Likelihood], Model],
    bins: Sequence[Any],
    *,
    quadrature: Sequence[int] = (),
    link: str = "log",
    draws: int = 200,
    random_seed: int | np.random.Generator | None = None,
    **kwargs,
) -> pd.DataFrame:
    """
    Compare sizes of bins, and the likelihood without bins, by the Gaussian stage of a model.

    Bins are small enough when the next smaller ones change nothing.

    Parameters
    ----------
    pattern : PointProcess
        The events.
    build : callable
        ``build(X, y, likelihood)`` returns the model. Inducing inputs should not depend on X, so
        that the models differ in nothing but the bins.
    bins : sequence
        What `bins` of :func:`point_process` can be.
    quadrature : sequence of int
        Numbers of nodes along each dimension, for :class:`PoissonProcess`, which has no bins.
    link : {"log", "square", "softplus"}
        Link of the likelihood.
    draws : int
        Draws from the Gaussian posterior.
    random_seed : int or Generator, optional
        Seed of the draws, which is the same for each fit.
    **kwargs
        Passed to :func:`fit_gaussian`.

    Returns
    -------
    DataFrame
        A row for each fit, with the number of its observations and the ELBO of the log density of
        the pattern, in the same units for all. Mean and standard deviation of the expected number
        of events follow, and those of each parameter that is a single number.

    Examples
    --------
    .. code-block:: python

        def build(X, y, likelihood):
            with pm.Model() as model:
                ls = pm.Gamma("ls", 2, 0.1)
                gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
                gp.prior("u", Xu=Xu)
                gp.likelihood("y", likelihood, X=X, y=y)
            return model


        vsgp.compare_bins(pattern, build, [10, 20, 40, 80], quadrature=[100])
    """
    seed = int(generator_of(random_seed).integers(2**63))
    check_number("draws", draws)
    if "model" in kwargs:
        raise TypeError("A model has bins of its own. Pass build, which makes one for each fit.")
    for name, several in (("bins", bins), ("quadrature", quadrature)):
        if not isinstance(several, Sequence | np.ndarray) or isinstance(several, str):
            raise TypeError(f"{name} is {several!r}. Pass a list, with an entry for each fit.")
    if not len(bins) + len(quadrature):
        raise ValueError("bins is empty. Pass at least one entry, or quadrature.")
    cases = []
    for b in bins:
        p = pattern.rebin(b)
        # From probabilities of counts to a density of points: comparable between sizes.
        offset = np.sum(p.counts * np.log(p.exposure) - gammaln(p.counts + 1.0))
        likelihood = Poisson(p.exposure, link)
        cases.append((_label(b, len(p.dims)), p.inputs, p.counts, likelihood, p.exposure, offset))
    for n in quadrature:
        q = pattern.quadrature(n)
        likelihood = PoissonProcess(q.weights, link)
        cases.append((f"no bins, {n} nodes", q.X, q.y, likelihood, q.weights, 0.0))
    rows = []
    for label, X, y, likelihood, weights, offset in cases:
        model = build(X, y, likelihood)
        check_built(model)
        stage = fit_gaussian(model=model, **({"progressbar": False} | kwargs))
        if stage.interrupted:
            raise KeyboardInterrupt
        tree = stage.to_datatree(draws, seed)
        rate = predict(
            tree, X, "mean", likelihood=Poisson(link=link), model=model, progressbar=False
        )
        total = rate.to_numpy() @ weights
        row = {
            "": label,
            "observations": len(y),
            "elbo": stage.elbo - offset,
            "expected count": total.mean(),
            "expected count sd": total.std(),
        }
        names = [v.name for v in model.free_RVs if v.name in stage.theta and v.type.ndim == 0]
        for name in names:
            values = tree["posterior"][name]
            row |= {name: float(values.mean()), f"{name} sd": float(values.std())}
        rows.append(row)
    return pd.DataFrame(rows).set_index("")


def _label(bins: Any, ndim: int) -> str:
    sides = list(bins) if hasattr(bins, "__len__") else [bins]
    # In one dimension several numbers are edges.
    if len(sides) in (1, ndim) and all(np.ndim(s) == 0 for s in sides):
        return " x ".join(str(s) for s in sides) + " bins"
    return "bins with edges"
