"""Colors and axes that the figures share."""

from typing import Any

import numpy as np

BLUE, INK, ORANGE, GREEN, GREY = "#20639b", "#2b2b2b", "#d9541e", "#2a9d6f", "#8a8f98"
SEVERAL = (BLUE, ORANGE, GREEN, "#8458b3", "#c79a00", "#c2417c", "#3aa6b9", "#6b6b6b")


def new_axes(ax, size=(7.0, 3.8)):
    """Return the axes, or those of a new figure."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
    plain(ax)
    return ax


def plain(ax):
    """Take off the frame that says nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=INK, labelsize=9)


def legend(ax, above=False):
    """Add a legend without a frame."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    place: dict[str, Any] = {"loc": "best"}
    if above:
        place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.99), "ncols": len(handles)}
        place |= {"columnspacing": 1.4, "handlelength": 1.4, "handletextpad": 0.5}
    ax.legend(frameon=False, fontsize=8.5, **place)


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
