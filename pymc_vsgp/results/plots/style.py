"""Colors and axes that the figures share.

Text, axes and dots of data take the colors of matplotlib's style, dark ones included. The others
have three times the contrast of a white ground and of a nearly black one, and differ for the color
blind as well.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_vsgp.checks import kind

BLUE, ORANGE, GREEN, GRAY = "#2878b5", "#d9541e", "#2a9d6f", "#8a8f98"
SEVERAL = (BLUE, ORANGE, GREEN, "#8458b3", "#b38a00", "#c2417c", "#2f97aa", "#787c84")
LEGEND = {"frameon": False, "fontsize": 8.5}
DARKER = 0.6  # each time the colors begin again


def color_of(k):
    """Return the color of the k-th of several, which no other has."""
    from matplotlib.colors import to_hex, to_rgb

    again, k = divmod(int(k), len(SEVERAL))
    return to_hex(DARKER**again * np.array(to_rgb(SEVERAL[k])))


def ink():
    """Color of text in the style of the user."""
    import matplotlib.pyplot as plt

    return plt.rcParams["text.color"]


def new_axes(ax, size=(7.0, 3.8)):
    """Return the axes, or those of a new figure."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
    if not hasattr(ax, "plot"):
        raise TypeError(f"ax is {kind(ax)}. Pass the axes of a figure, one for each panel.")
    plain(ax)
    return ax


def plain(ax):
    """Take off the frame that says nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)


def input_label(columns: Sequence[str] | None, i: int, of: int) -> str:
    """What an axis of inputs is called."""
    if columns is not None:
        return columns[i]
    return "input" if of == 1 else f"input {i}"


def legend(ax, above=False):
    """Add a legend without a frame."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    style: dict[str, Any] = dict(LEGEND)
    if not above:
        ax.legend(loc="best", **style)
        return
    style |= {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.99), "bbox_transform": _above(ax)}
    style |= {"columnspacing": 1.4, "handlelength": 1.4, "handletextpad": 0.5}
    # A layout has not widened the axes yet.
    room = ax.bbox.width * (1.0 if ax.figure.get_layout_engine() is None else 1.15)
    for ncols in range(len(handles), 0, -1):
        if ax.legend(ncols=ncols, **style).get_window_extent().width <= room:
            break


def _above(ax):
    """Coordinates of the axes, above a power of ten that its labels may share."""
    from matplotlib.transforms import ScaledTranslation

    formatter = ax.yaxis.get_major_formatter()
    formatter.format_ticks(ax.get_yticks())
    points = 12.0 if formatter.get_offset() else 0.0
    return ax.transAxes + ScaledTranslation(0.0, points / 72.0, ax.figure.dpi_scale_trans)


def strokes(ax, x, color, label, height=0.0):
    """Short strokes that stand on the lower edge."""
    ax.plot(
        x,
        np.full(len(x), height + 0.022),
        "|",
        color=color,
        ms=8,
        mew=1.5,
        transform=ax.get_xaxis_transform(),
        label=label,
        zorder=4,
    )
