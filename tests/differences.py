"""Slopes by central differences."""

import numpy as np


def slopes(function, point, names, h=1e-5):
    """Of a function of a point, in each entry of these variables, in their order."""
    found = []
    for name in names:
        for i in range(np.size(point[name])):
            step = np.zeros(np.size(point[name]))
            step[i] = h
            step = step.reshape(np.shape(point[name]))
            up, down = (function(point | {name: point[name] + sign * step}) for sign in (1, -1))
            found.append((up - down) / (2.0 * h))
    return found
