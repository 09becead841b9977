"""The function with its uncertainty."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arviz_base import rcParams
from pymc.model.core import Model

from pymc_vsgp.checks import check_number, check_real, known_value
from pymc_vsgp.likelihoods import as_likelihood
from pymc_vsgp.results.draws import Fitted
from pymc_vsgp.results.plots.style import (
    BLUE,
    GRAY,
    LEGEND,
    ORANGE,
    color_of,
    ink,
    input_label,
    legend,
    new_axes,
    plain,
    strokes,
)
from pymc_vsgp.results.predicted import (
    MEAN_AT_F,
    Noise,
    Smooth,
    check_classes_ordered,
    class_dim,
    function_dim,
    make_plan,
)
from pymc_vsgp.results.prediction import Rows, carry_out, predict, rows_of

DRAWS = ["chain", "draw"]


def plot_function(
    idata: Any,
    Xnew: Any = None,
    *,
    what: str | None = None,
    var_name: str | None = None,
    likelihood: Any = None,
    ci_prob: float | Sequence[float] | None = None,
    n_lines: int = 0,
    n_points: int | None = None,
    margin: float = 0.05,
    data: bool | None = None,
    inducing: bool = True,
    num_samples: int | None = 200,
    random_seed: int | np.random.Generator | None = None,
    ax: Any = None,
    model: Model | None = None,
) -> Any:
    """
    Plot the function with its uncertainty: bands over one input, maps over two.

    Parameters
    ----------
    idata : DataTree
        Draws.
    Xnew : array_like, optional
        Where to evaluate. By default a grid over the range of the data. With a function for each
        group, rows of one of them. Of several inputs, rows along one with the others held: the
        figure has no data then.
    what : {"mean", "f", "y"}, optional
        The mean of an observation, the latent function or an observation. By default the mean; for
        classes their probabilities. It is the function where the mean is not known, or where the
        likelihood of the model has a parameter by row, such as an exposure. If the likelihood has
        a function for the noise, a new figure shows that, too. Bands of the mean are quantiles of
        the mean given the function, as in :func:`predict` with ``of="mean"``, and the line is the
        mean of an observation. Classes without an order have no "y".
    var_name : str, optional
        Name of the observed variable, where the model has several.
    likelihood : Likelihood, optional
        As in :func:`predict`: for example a Poisson with an exposure of one.
    ci_prob : float or sequence of float, optional
        Probabilities of the bands. By default 0.5 and ``rcParams["stats.ci_prob"]`` of ArviZ.
    n_lines : int
        Number of draws to plot as lines, for one input: joint draws of f, or the mean given these.
    n_points : int, optional
        Points of the grid along each input. By default 200 for one input, 60 for two.
    margin : float
        How far the grid goes beyond the data, as a fraction of their range.
    data, inducing : bool
        Whether to plot the observations and the inducing inputs. By default both: observations not
        where `likelihood` has another exposure than the data, or another number of trials.
    num_samples : int, optional
        How many draws to use.
    random_seed : int or Generator, optional
        Seed of the draws.
    ax : Axes, optional
        By default of a new figure. For two inputs, one for the mean; a new figure has another one
        for the standard deviation, and a legend.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    Axes or ndarray of Axes
    """
    ci_probs = (0.5, rcParams["stats.ci_prob"]) if ci_prob is None else np.ravel(ci_prob).tolist()
    for p in ci_probs:
        check_real("ci_prob", p, 0.0, 1.0)
    check_number("n_lines", n_lines, 0)
    check_real("margin", margin)
    if n_points is not None:
        check_number("n_points", n_points)
    lik = None if likelihood is None else as_likelihood(likelihood)
    fit = Fitted(idata, model, var_name, lik, num_samples)
    data = _in_units_of_data(fit) if data is None else data
    X, y = fit.X, np.asarray(fit.y)
    if fit.by is not None:
        X, y, Xnew = _of_one_group(fit, X, y, Xnew, fit.by)
    along = _along(fit, X, Xnew)
    if along is None and X.shape[1] > 2:
        raise ValueError(
            f"The function has {X.shape[1]} inputs, and a figure has one or two. "
            "Pass Xnew with rows along one input, the others held."
        )
    fixed_rows = bool(fit.observation.row_params) and likelihood is None
    noise = fit.likelihood.of_noise if what is None and ax is None else None
    if what is None:
        of_mean = fit.likelihood.has_mean_at_f or fit.likelihood.of_output.n_classes is not None
        what = "mean" if of_mean and fit.likelihood.has_mean and not fixed_rows else "f"
    if what not in ("mean", "f", "y"):
        raise ValueError(f"what is {what!r}. Choose one of ['mean', 'f', 'y'].")
    if what == "y":
        check_classes_ordered(fit, "Plot their probabilities, with what='mean'.")
    options = {
        "var_name": var_name,
        "likelihood": likelihood,
        "num_samples": num_samples,
        "random_seed": random_seed,
        "progressbar": False,
        "model": fit.model,
    }
    Xu = fit.points(0)
    n_points = n_points or (200 if along is not None else 60)
    shows = what != "f" or fit.likelihood.in_units_of_f
    if along is not None:
        data, inducing = data and X.shape[1] == 1, inducing and X.shape[1] == 1
        line = _span(X[:, 0], margin, n_points)[:, None] if Xnew is None else None
        grid = rows_of(fit, Xnew).X if line is None else line
        order = np.argsort(grid[:, along])
        grid = grid[order]
        if lik is not None and what != "f":
            fit.check_rows(len(grid), "Xnew")
            options["likelihood"] = _at_rows(fit, fit.likelihood, order)
        if noise:
            import matplotlib.pyplot as plt

            _, every = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained")
            ax = every[0]
        ax = new_axes(ax)
        _bands(ax, idata, fit, grid, along, what, ci_probs, n_lines, options)
        classes = fit.likelihood.of_output.n_classes is not None
        if data and y.ndim == 1 and not classes and shows:
            _dots(ax, X[:, 0], y)
        elif data and y.ndim == 2 and not classes and what != "f":
            for k, column in enumerate(y.T):
                _dots(ax, X[:, 0], column, color_of(k), None)
        elif data and y.ndim == 1 and classes and what == "mean":
            _class_rug(ax, X[:, 0], y)
        if inducing and len(Xu):
            strokes(ax, Xu[:, 0], ORANGE, "inducing inputs")
        ax.set_xlabel(_feature(fit, along))
        ax.set_ylabel(_label(fit, what))
        _set_range(ax, grid[:, along])
        legend(ax, above=True)
        if noise is None:
            return ax
        _noise_bands(every[1], idata, fit, grid, along, noise, ci_probs, options)
        return every
    if Xnew is not None:
        raise ValueError(
            "Over two inputs the map is of a grid. Leave Xnew out, or pass rows along one input."
        )
    axes_of_grid = [_span(column, margin, n_points) for column in X.T]
    return _maps(ax, idata, fit, axes_of_grid, what, noise, data, inducing, Xu, options)


def _along(fit, X, Xnew):
    """Return the input that a figure of lines is along, or None for a map."""
    if X.shape[1] == 1:
        return 0
    if Xnew is None:
        return None
    varies = np.flatnonzero(np.ptp(rows_of(fit, Xnew).X, axis=0))
    return int(varies[0]) if len(varies) == 1 else None


def _of_one_group(fit, X, y, Xnew, by):
    """Return the input and the observations of the group of Xnew, and Xnew as numbers."""
    rows = None if Xnew is None else rows_of(fit, Xnew).X
    if rows is None or X.shape[1] != 2 or np.ptp(rows[:, 1]):
        raise ValueError(
            f"There is a function for each {by!r}, and a figure has one, of one input. "
            f"Pass Xnew with rows of one {by!r}."
        )
    seen = X[:, 1] == rows[0, 1]
    return X[seen, :1], y[seen], rows


def _bands(ax, idata, fit, grid, along, what, ci_probs, n_lines, options):
    x, q = grid[:, along], _levels(ci_probs)
    # Probabilities of classes have a sum of one, which medians of them have not.
    means = predict(idata, grid, "mean", **options).mean(DRAWS) if what == "mean" else None
    if what == "y":
        bands = predict(idata, grid, "quantiles", quantiles=q, of=what, **options)
    else:
        bands = _draws(idata, grid, what, options).quantile(q, DRAWS)
    series = _series(fit, what, bands)
    lines = series if means is None else _series(fit, what, means)
    for k, ((color, label, b), (*_, line)) in enumerate(zip(series, lines, strict=True)):
        line = None if means is None else line
        _fill(ax, x, b, line, ci_probs, color, label, k, len(series))
    if n_lines:
        what_line = "f" if what == "y" else what
        step = max(len(grid) // 200, 1)  # joint draws take a matrix of all rows
        few = options | {"num_samples": n_lines}
        if options["likelihood"] is not None and what_line == "mean":
            some = np.arange(0, len(grid), step)
            few["likelihood"] = _at_rows(fit, as_likelihood(options["likelihood"]), some)
        lines = _draws(idata, grid[::step], what_line, few, joint=True)
        lines = lines.stack(sample=DRAWS).transpose("sample", ...)
        for color, _, each in _series(fit, what_line, lines):
            values, marker = each.values[:n_lines].T, "" if x[0] < x[-1] else "_"
            style = {"color": color, "lw": 0.6, "alpha": 0.5, "zorder": 2, "marker": marker}
            ax.plot(x[::step], values, ms=14, **style)


def _noise_bands(ax, idata, fit, grid, along, noise, ci_probs, options):
    """What the second function says of the noise; its quantiles are those of the function."""
    name, of_g = noise
    g = _draws(idata, grid, "f", options).quantile(_levels(ci_probs), DRAWS)
    g = g.isel({function_dim(fit)[0][0]: 1})
    _fill(ax, grid[:, along], of_g(g), None, ci_probs, BLUE, "median")
    ax.set_xlabel(_feature(fit, along))
    ax.set_ylabel(name)
    _set_range(ax, grid[:, along])
    ax.set_ylim(0.0, None)
    plain(ax)


def _levels(ci_probs):
    """Quantiles that the bands take."""
    return sorted({0.5, *((1 - p) / 2 for p in ci_probs), *((1 + p) / 2 for p in ci_probs)})


def _fill(ax, x, quantiles, line, ci_probs, color, label, k=0, n_functions=1):
    """Bands and a line, by default the median; bars and dots where all inputs are the same.

    Only a function that is alone has its bands in the legend. Bars of others are side by side.
    """
    from matplotlib.transforms import ScaledTranslation

    single = x[0] == x[-1]
    inches = 0.1 * (k - (n_functions - 1) / 2)
    beside = ax.transData + ScaledTranslation(inches, 0.0, ax.figure.dpi_scale_trans)
    for i, p in enumerate(sorted(ci_probs, reverse=True)):
        low = quantiles.sel(quantile=(1 - p) / 2, method="nearest")
        high = quantiles.sel(quantile=(1 + p) / 2, method="nearest")
        style = {"color": color, "label": f"{p:.0%} interval" if n_functions == 1 else None}
        if single:
            ax.vlines(x, low, high, lw=1.4 + 2.2 * i, zorder=3, transform=beside, **style)
            # Nothing in coordinates of its own counts for the limits.
            ax.update_datalim([(x[0], np.min(low)), (x[0], np.max(high))])
            ax.autoscale_view()
        else:
            alpha = (0.18 if n_functions == 1 else 0.12) + 0.1 * i
            ax.fill_between(x, low, high, alpha=alpha, lw=0, zorder=1, **style)
    line = quantiles.sel(quantile=0.5, method="nearest") if line is None else line
    marks: dict[str, Any] = {"lw": 1.8, "zorder": 3}
    if single:
        marks = {"marker": "o", "ls": "", "mec": "white", "ms": 7, "zorder": 4, "transform": beside}
    ax.plot(x, line, color=color, label=label, **marks)


def _set_range(ax, x):
    """From the first input to the last; that of the data where all are the same."""
    if x[0] < x[-1]:
        ax.set_xlim(x[0], x[-1])


def _draws(idata, grid, what, options, joint=False):
    """Draws of f, or of the mean of an observation given f, that are smooth along the grid.

    Unless they are joint, quantiles of them are, as they lack the noise of draws at each input.
    """
    lik, names = options["likelihood"], ("model", "var_name", "num_samples")
    model, name, n = (options[k] for k in names)
    fit = Fitted(idata, model, name, None if lik is None else as_likelihood(lik), n)
    plan = make_plan(fit, MEAN_AT_F if what == "mean" else what, "", (), None, joint)
    noise = (Noise if joint else Smooth)(options["random_seed"], fit.draws.n)
    chunk = len(grid) if joint else None
    return carry_out(fit, plan, Rows(grid, "point", {}), noise, chunk)[0]


def _at_rows(fit, lik, some):
    """Return a likelihood of some of the rows."""
    return lik.replace(**{name: lik.params[name][some] for name in fit.observation.row_params})


def _series(fit, what, array):
    """Return color, label and values of each function, class or output."""
    classes = fit.likelihood.of_output.n_classes is not None and what == "mean"
    dims, coords = class_dim(fit) if classes else function_dim(fit)
    if what == "y" or not dims or dims[0] not in array.dims:
        dims, coords = [], {}
    if classes or not dims:  # of each output
        dims = [*(d for d in array.dims if d in fit.y_dims[1:]), *dims]
    if not dims:
        return [(BLUE, "mean" if what == "mean" else "median", array)]
    known = {d: c.values for d, c in array.coords.items()} | coords
    labels = [[str(c) for c in known.get(d, range(array.sizes[d]))] for d in dims]
    found = []
    for k, at in enumerate(np.ndindex(*(len(of) for of in labels))):
        label = ", ".join(of[i] for of, i in zip(labels, at, strict=True))
        values = array.isel(dict(zip(dims, at, strict=True)))
        found.append((color_of(k), label, values))
    return found


def _in_units_of_data(fit) -> bool:
    """Whether observations were collected over what the mean is shown for."""
    for name in ("exposure", "n"):
        params = [lik.of_output.params.get(name) for lik in (fit.of_model, fit.likelihood)]
        if params[0] is params[1]:
            continue
        old, new = (np.ones(1) if p is None else known_value(p) for p in params)
        if old is None or new is None:
            return False
        one_for_all = np.size(old) == 1 or np.size(new) == 1
        if not (np.all(old == new) if one_for_all else np.array_equal(old, new)):
            return False
    return True


def _maps(ax, idata, fit, axes_of_grid, what, noise, data, inducing, Xu, options):
    import matplotlib.pyplot as plt

    a, b = axes_of_grid
    mesh = np.stack([g.ravel() for g in np.meshgrid(a, b)], axis=1)
    classes = fit.likelihood.of_output.n_classes
    if what == "y":
        draws = of_mean = predict(idata, mesh, what, **options)
    else:
        draws = _draws(idata, mesh, what, options)
        of_mean = predict(idata, mesh, what, **options) if what == "mean" else draws
    mean, sd = of_mean.mean(DRAWS), draws.std(DRAWS)
    shape = (len(b), len(a))
    of_what = [_label(fit, what)]
    while mean.ndim > 1 + bool(classes and what == "mean"):  # the first function, or output
        dim = mean.dims[1]
        mean, sd = mean.isel({dim: 0}), sd.isel({dim: 0})
        label = mean.coords[dim].item() if dim in mean.coords else 0
        of_what.append(label if isinstance(label, str) else f"{dim} {label}")
    X, y = fit.X, np.asarray(fit.y)
    y = y[:, 0] if y.ndim > 1 else y
    if classes and what == "mean":
        ax = new_axes(ax, (5.2, 4.4))
        _class_map(ax, a, b, mean.values.reshape(*shape, -1))
        dims, coords = class_dim(fit)
        names = [str(c) for c in coords[dims[0]]]
        if data:
            for k in range(classes):
                at = y == k
                color, label = color_of(k), names[k]
                ax.scatter(*X[at].T, s=16, color=color, edgecolor="white", lw=0.6, label=label)
        every = [ax]
    else:
        single = ax is not None
        if not single:
            shared = {"sharex": True, "sharey": True, "layout": "constrained"}
            rows = 2 if noise else 1
            _, ax = plt.subplots(rows, 2, figsize=(10.5, 4.2 * rows), **shared)
        every = [ax] if single else list(ax.flat)
        label = ", ".join(of_what)
        panels = [(mean, "viridis", f"{label}, mean"), (sd, "magma", f"{label}, sd")]
        if noise:
            name, of_g = noise
            g = of_g(predict(idata, mesh, "f", **options).isel({function_dim(fit)[0][0]: 1}))
            panels.append((g.mean(DRAWS), "viridis", f"{name}, mean"))
            panels.append((g.std(DRAWS), "magma", f"{name}, sd"))
        for panel, (values, colors, title) in zip(every, panels, strict=False):
            # A corner without data may have most of the range.
            top = np.quantile(values, 0.99)
            image = panel.pcolormesh(
                a,
                b,
                values.values.reshape(shape),
                vmax=top,
                cmap=colors,
                shading="gouraud",
                rasterized=True,
            )
            bar = panel.figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02, extend="max")
            bar.outline.set_visible(False)
            panel.set_title(title, fontsize=10, loc="left")
            if fit.likelihood.binary and what == "mean":
                _two_classes(panel, a, b, mean.values.reshape(shape), X, y, data)
            elif data:
                style = {"s": 7, "color": "white", "edgecolor": "black", "lw": 0.4, "alpha": 0.8}
                panel.scatter(*X.T, label="data", **style)
    for panel in every:
        if inducing:
            color = ink() if classes and what == "mean" else ORANGE
            panel.scatter(*Xu.T, marker="+", s=42, color=color, lw=1.4, label="inducing inputs")
        panel.set_xlim(a[0], a[-1])
        panel.set_ylim(b[0], b[-1])
        panel.set_xlabel(_feature(fit, 0))
        plain(panel)
    for panel in every[::2]:  # the left ones
        panel.set_ylabel(_feature(fit, 1))
    if classes and what == "mean":
        legend(every[0], above=True)
    elif not single:  # above the titles of all panels
        shown = every[0].get_legend_handles_labels()
        if shown[0]:
            style = LEGEND | {"loc": "outside upper right", "ncols": len(shown[0])}
            every[0].figure.legend(*shown, **style)
    return ax


def _two_classes(panel, a, b, p, X, y, data):
    """Probabilities of 10, 50 and 90 %, and dots for both classes."""
    widths = {"linewidths": [0.8, 1.6, 0.8], "linestyles": [":", "-", ":"]}
    panel.contour(a, b, p, levels=[0.1, 0.5, 0.9], colors="white", **widths)
    if data:
        for k, color in enumerate(("black", "white")):
            style = {"s": 12, "color": color, "edgecolor": GRAY, "lw": 0.4, "alpha": 0.9}
            panel.scatter(*X[y == k].T, label=f"{k}", **style)


def _class_map(ax, a, b, p):
    """Color of the likeliest class, the paler the less sure, and lines between classes."""
    from matplotlib.colors import to_rgb

    K = p.shape[-1]
    colors = np.array([to_rgb(color_of(k)) for k in range(K)])
    best = p.max(axis=-1, keepdims=True)
    sure = np.clip((best - 1.0 / K) / (1.0 - 1.0 / K), 0.0, 1.0)
    image = np.concatenate([p @ colors, 0.45 * sure], axis=-1)
    extent = (a[0], a[-1], b[0], b[-1])
    ax.imshow(
        np.clip(image, 0, 1),
        origin="lower",
        extent=extent,
        aspect="auto",
        interpolation="bilinear",
        zorder=0,
    )
    for k in range(K if K > 2 else 1):
        others = np.delete(p, k, axis=-1).max(axis=-1)
        ax.contour(a, b, p[..., k] - others, levels=[0.0], colors=[ink()], linewidths=0.9)


def _dots(ax, x, y, color=None, label="data"):
    size = float(np.clip(900.0 / max(len(x), 1), 4.0, 22.0))
    ax.scatter(x, y, s=size, color=color or ink(), alpha=0.7, lw=0, label=label, zorder=2.5)


def _class_rug(ax, x, y):
    for k in np.unique(y):
        at = y == k
        level = 1.03 + 0.035 * int(k)
        color = color_of(k)
        ax.plot(x[at], np.full(at.sum(), level), "|", color=color, ms=5, alpha=0.7, mew=0.9)


def _span(column, margin, n_points):
    low, high = column.min(), column.max()
    room = margin * (high - low)
    return np.linspace(low - room, high + room, n_points)


def _label(fit, what):
    if what == "mean":
        classes = fit.likelihood.of_output.n_classes is not None
        return "probability" if classes else f"mean of {fit.name}"
    return fit.name if what == "y" else "latent function"


def _feature(fit, i):
    return input_label(fit.columns, i, fit.X.shape[1])
