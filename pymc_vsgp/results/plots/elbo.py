"""The ELBO of a Gaussian stage."""

from typing import Any

import numpy as np

from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.results.plots.style import BLUE, GRAY, ORANGE, ink, new_axes, plain


def plot_elbo(stage: GaussianStage, *, ax: Any = None) -> Any:
    """
    Plot how the ELBO of a Gaussian stage rose.

    Parameters
    ----------
    stage : GaussianStage
        What :func:`fit_gaussian` returned.
    ax : Axes, optional
        By default of a new figure.

    Returns
    -------
    Axes
    """
    if not isinstance(stage, GaussianStage):
        raise TypeError(
            f"stage is of type {type(stage).__name__}, not a GaussianStage. "
            "Pass the result of fit_gaussian."
        )
    ax = new_axes(ax, (6.0, 3.2))
    history = np.asarray(stage.elbo_history, dtype="float64")
    natural = stage.method == "natural"
    at = np.arange(1, len(history) + 1) * (1 if natural else stage.n_steps / len(history))
    ax.plot(at, history, color=BLUE, lw=1.6, marker="o", ms=3.5 if len(history) < 60 else 0)
    ax.axhline(stage.elbo, color=GRAY, lw=0.8, ls=":")
    # The first rounds may be far below everything of interest.
    if len(history) > 4:
        low, high = np.quantile(history, 0.15), history.max()
        room = max(high - low, 1.0)
        if history.min() < low - 3.0 * room:
            ax.set_ylim(low - 0.6 * room, high + 0.12 * room)
    state = "converged" if stage.converged else "not converged"
    ax.set_title(
        f"ELBO {stage.elbo:.2f} nats, {state}",
        loc="left",
        fontsize=10,
        color=ink() if stage.converged else ORANGE,
    )
    ax.set_xlabel("round" if natural else "step")
    ax.set_ylabel("ELBO, nats")
    if natural and len(history) < 15:
        ax.set_xticks(at)
    plain(ax)
    return ax
