"""What inducing points leave out, and how a Gaussian stage moved them."""

from typing import Any

import numpy as np
import xarray as xr

from pymc.model.core import Model

from pymc_vsgp.checks import kind, names_of
from pymc_vsgp.fit.stage import GaussianStage
from pymc_vsgp.results.inducing_check import InducingCheck, check_inducing
from pymc_vsgp.results.plots.style import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    color_of,
    ink,
    input_label,
    legend,
    new_axes,
    plain,
    strokes,
)

FAR = 5.0  # times the mean distance of neighbors


def plot_inducing(
    check: Any,
    *,
    ax: Any = None,
    num_samples: int = 50,
    var_name: str | None = None,
    random_seed: int | np.random.Generator | None = None,
    model: Model | None = None,
) -> Any:
    """
    Plot what inducing points leave out and where, or how a Gaussian stage moved them.

    Parameters
    ----------
    check : InducingCheck, GaussianStage or DataTree
        What :func:`check_inducing` returned, or draws to check. Of a stage, the inducing inputs
        before and after.
    ax : Axes, optional
        By default of a new figure, which for a check has another one for the estimates of what is
        missing, over draws.
    num_samples : int
        How many draws to check.
    var_name : str, optional
        Name of the observed variable, where the model has several.
    random_seed : int or Generator, optional
        Seed of a check of draws.
    model : Model, optional
        By default the model on the context stack, where there are draws to check.

    Returns
    -------
    Axes or ndarray of Axes
    """
    if isinstance(check, GaussianStage):
        return _moves(check, ax)
    if not isinstance(check, InducingCheck | xr.DataTree | xr.Dataset):
        raise TypeError(
            f"check is {kind(check)}. Pass a Gaussian stage, what vsgp.check_inducing returned, or "
            "draws to check."
        )
    if not isinstance(check, InducingCheck):
        check = check_inducing(
            check,
            num_samples,
            var_name=var_name,
            random_seed=random_seed,
            progressbar=False,
            model=model,
        )
    import matplotlib.pyplot as plt

    axes = ax
    if ax is None:
        _, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), width_ratios=[2, 1], layout="constrained")
    where = new_axes(ax) if ax is not None else axes[0]
    _where(where, check)
    if ax is None:
        _missing(axes[1], check)
        color = {"enough": GREEN, "too few": ORANGE}.get(check.verdict, "#b58900")
        text = f"{check.inducing}: {check.verdict}"
        axes[0].figure.suptitle(text, color=color, fontsize=12, x=0.01, ha="left", weight="bold")
    return axes


def _where(ax, check):
    n_inputs = min((Z.shape[1] for Z in check.Xu.values() if len(Z)), default=check.X.shape[1])
    X, left = check.X[:, :n_inputs], 100.0 * check.unexplained  # without the column of groups
    if X.shape[1] == 1:
        order = np.argsort(X[:, 0])
        x, values = _apart(X[order, 0], left[order])
        ax.fill_between(x, 0.0, values, color=BLUE, alpha=0.25, lw=0)
        # Where data are apart, some may be alone.
        ax.plot(x, values, color=BLUE, lw=1.2, marker="." if len(x) > len(X) else None, ms=3)
        top = max(float(left.max()) * 1.1, 1e-12)
        ax.set_ylim(-0.12 * top, top)
        ax.set_ylabel("unexplained share of the variance, %")
        ax.set_xlabel(input_label(check.columns, 0, 1))
        for i, Z in enumerate(z for z in check.Xu.values() if len(z)):
            strokes(ax, Z[:, 0], ORANGE, "inducing inputs" if i == 0 else None, 0.0)
        if check.verdict != "enough":
            for i, Z in enumerate(check.added.values()):
                strokes(ax, Z[:, 0], GREEN, "where more would help" if i == 0 else None, 0.05)
    else:
        style = {"s": 14, "cmap": "magma_r", "lw": 0.4, "edgecolors": GRAY, "vmin": 0}
        dots = ax.scatter(*X[:, :2].T, c=left, **style)
        bar = ax.figure.colorbar(dots, ax=ax, shrink=0.9, pad=0.02)
        bar.set_label("unexplained share of the variance, %")
        bar.outline.set_visible(False)
        for i, Z in enumerate(z for z in check.Xu.values() if len(z)):
            named = "inducing inputs" if i == 0 else None
            ax.scatter(*Z[:, :2].T, marker="+", s=45, color=BLUE, lw=1.5, label=named)
        if check.verdict != "enough":
            for i, Z in enumerate(check.added.values()):
                named = "where more would help" if i == 0 else None
                ax.scatter(*Z[:, :2].T, s=38, facecolor="none", edgecolor=GREEN, label=named)
        ax.set_xlabel(input_label(check.columns, 0, 2))
        ax.set_ylabel(input_label(check.columns, 1, 2))
    plain(ax)
    legend(ax, above=True)


def _apart(x: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted data with nan between those that are far apart, such as seasons."""
    step = np.diff(x)
    at = 1 + np.flatnonzero(step * len(step) > FAR * step.sum())
    return np.insert(x, at, np.nan), np.insert(values, at, np.nan)


def _missing(ax, check):
    values = np.clip(check.missing, 1e-6, None)
    low, high = np.log10(values.min()) - 0.15, np.log10(values.max()) + 0.15
    low, high = min(low, -1.2), max(high, 0.7)
    bins = np.logspace(low, high, max(int((high - low) * 8), 12))
    ax.axvspan(10**low, 0.5, color=GREEN, alpha=0.08, lw=0)
    ax.axvspan(5.0, max(10**high, 5.0), color=ORANGE, alpha=0.08, lw=0)
    ax.hist(values, bins=bins, color=BLUE, alpha=0.85)
    if np.isfinite(check.gain) and check.gain > 10**low:
        ax.axvline(check.gain, color=ink(), lw=1.2, ls="--", label="gained by more points")
    ax.set_xscale("log")
    ax.set_xlim(10**low, 10**high)
    ax.set_xlabel("missing to the exact posterior, nats")
    ax.set_ylabel("draws")
    plain(ax)
    legend(ax, above=True)


def _moves(stage: GaussianStage, ax):
    names = list(stage.Xu)
    if not names:
        raise ValueError(
            "The inducing inputs of this stage are expressions, so there is nothing to compare. "
            "Pass arrays or pm.Data to prior."
        )
    ax = new_axes(ax)
    dims = stage.model.named_vars_to_dims.get(names[0]) or (None,)
    columns = names_of(stage.model.coords.get(dims[-1]))
    for i, name in enumerate(names):
        before, after = stage.Xu_before[name], stage.Xu[name]
        color = color_of(i)
        if before.shape[1] == 1:
            y0, y1 = 2.0 * i + 1.0, 2.0 * i
            ax.plot(
                np.stack([before[:, 0], after[:, 0]]),
                np.array([[y0], [y1]]) * np.ones(len(before)),
                color=color,
                alpha=0.35,
                lw=1,
            )
            ax.scatter(before[:, 0], np.full(len(before), y0), s=22, color=GRAY, zorder=3)
            ax.scatter(after[:, 0], np.full(len(after), y1), s=26, color=color, zorder=3)
        else:
            p, q = before[:, :2], after[:, :2]
            ax.plot(*np.stack([p, q]).transpose(2, 0, 1), color=color, alpha=0.45, lw=1)
            ax.scatter(*p.T, s=20, color=GRAY, label="before" if i == 0 else None, zorder=3)
            ax.scatter(*q.T, s=26, color=color, label=f"after: {name}", zorder=3)
    if stage.Xu_before[names[0]].shape[1] == 1:
        at = [y for i in range(len(names)) for y in (2.0 * i + 1.0, 2.0 * i)]
        labels = [t for n in names for t in (f"{n}, before", f"{n}, after")]
        ax.set_yticks(at, labels)
        ax.set_ylim(min(at) - 0.5, max(at) + 0.5)
        ax.set_xlabel(input_label(columns, 0, 1))
        ax.tick_params(axis="y", length=0)
        plain(ax)
        ax.spines["left"].set_visible(False)
    else:
        ax.set_xlabel(input_label(columns, 0, 2))
        ax.set_ylabel(input_label(columns, 1, 2))
        plain(ax)
        legend(ax, above=True)
    return ax
