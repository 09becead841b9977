"""Ranks of simulation-based calibration."""

from typing import Any

import numpy as np
import scipy.stats

from pymc_vsgp.checks import check_names
from pymc_vsgp.results.calibration import Calibration
from pymc_vsgp.results.plots.style import BLUE, GRAY, LEGEND, ORANGE, legend, new_axes

KINDS = ("ecdf", "hist")
PROBABILITY = 0.99
N_BINS = 10


def plot_calibration(
    result: Calibration,
    *,
    kind: str = "ecdf",
    var_names: str | list[str] | None = None,
    ax: Any = None,
) -> Any:
    """
    Plot the ranks of :func:`calibrate`, with what uniform ones would give.

    Parameters
    ----------
    result : Calibration
        What :func:`calibrate` returned.
    kind : {"ecdf", "hist"}
        The difference of the ranks' distribution function to the uniform one, with a band that
        holds all panels' curves with a probability of 99 % if all ranks are uniform; or a
        histogram. A curve leaves its band just where the test behind `calibrated` fails. One like
        a bow says that the posterior is too high or too low, one like an S that it is too wide or
        too narrow.
    var_names : str or list of str, optional
        What to show, by default everything.
    ax : Axes or array of Axes, optional
        One for each of `var_names`. By default of a new figure.

    Returns
    -------
    ndarray of Axes

    Examples
    --------
    ArviZ draws such curves on any of its backends, with a band for each panel on its own:

    .. code-block:: python

        result = vsgp.calibrate(build, y)
        vsgp.plot_calibration(result)
        pit = {k: (ranks + 0.5) / (result.n_ranks + 1) for k, ranks in result.ranks.items()}
        fractions = az.from_dict({"prior_sbc": pit}, sample_dims=["sample"])
        az.plot_ecdf_pit(fractions, sample_dims=["sample"])
    """
    if not isinstance(result, Calibration):
        raise TypeError(
            f"result is of type {type(result).__name__}, not a Calibration. "
            "Pass the result of calibrate."
        )
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}. Choose one of {list(KINDS)}.")
    check_names("var_names", var_names)
    if var_names is None:
        var_names = list(result.ranks)
    var_names = [var_names] if isinstance(var_names, str) else list(var_names)
    unknown = sorted(set(var_names) - set(result.ranks))
    if unknown or not var_names:
        raise ValueError(f"There are no ranks of {unknown}. Choose from {list(result.ranks)}.")
    axes = _grid(len(var_names)) if ax is None else np.ravel(np.asarray(ax, dtype=object))
    if len(axes) < len(var_names):
        raise ValueError(f"{len(axes)} axes are too few for {len(var_names)}. Pass one for each.")
    for panel, name in zip(axes, var_names, strict=False):
        # Alarm is for what the test behind `calibrated` calls one.
        new_axes(panel)
        off = result.p_values[name] <= 0.01 / len(result.p_values)
        color = ORANGE if off else BLUE
        if kind == "ecdf":
            _ecdf(panel, result, name, color)
        else:
            _histogram(panel, result, name, color)
        panel.set_title(f"{name}: not uniform" if off else name, fontsize=10, loc="left")
        panel.set_xlim(0.0, 1.0)
        panel.set_xticks([0.0, 0.5, 1.0])
    axes[0].set_ylabel("ECDF - uniform" if kind == "ecdf" else "replicates")
    if ax is None:  # above the panels, each of which has a title
        axes[0].figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside upper right", **LEGEND
        )
    else:
        legend(axes[0])
    return axes[: len(var_names)]


def _grid(n: int):
    import matplotlib.pyplot as plt

    rows = -(-n // 4)
    columns = -(-n // rows)
    _, axes = plt.subplots(
        rows,
        columns,
        figsize=(2.7 * columns + 0.4, 2.1 * rows + 0.3),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    axes = np.ravel(axes)
    for panel in axes[n:]:
        panel.remove()
    for panel in axes[max(n - columns, 0) : n]:
        panel.tick_params(labelbottom=True)
    return axes[:n]


def _ecdf(panel, result, name, color):
    n, x = len(result.ranks[name]), np.arange(result.n_ranks + 2) / (result.n_ranks + 1)
    counts = (result.below(name), *result.band(name))
    curve, low, high = (np.concatenate([[0], c, [n]]) / n - x for c in counts)
    label = f"{PROBABILITY:.0%} of uniform ranks, all panels"
    panel.fill_between(x, low, high, color=GRAY, alpha=0.22, lw=0, label=label)
    panel.axhline(0.0, color=GRAY, lw=0.7)
    panel.plot(x, curve, color=color, lw=1.6)


def _histogram(panel, result, name, color):
    ranks, every = result.ranks[name], np.arange(result.n_ranks + 1)
    n_bins = min(N_BINS, len(every))
    cells = every * n_bins // len(every)  # of about as many ranks each
    share = np.bincount(cells) / len(every)
    low, high = scipy.stats.binom.interval(PROBABILITY, len(ranks), share)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    label = f"{PROBABILITY:.0%} of uniform ranks, each bar"
    panel.stairs(high, edges, baseline=low, fill=True, color=GRAY, alpha=0.22, label=label)
    panel.stairs(
        np.bincount(cells[ranks], minlength=n_bins), edges, fill=True, color=color, alpha=0.8
    )
