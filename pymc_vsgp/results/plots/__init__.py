"""Pictures of a fit: the function, the inducing points, the bound, calibration.

Each takes the axes to draw on and returns them. matplotlib is imported when a picture is asked for.
"""

from pymc_vsgp.results.plots.bound import plot_bound
from pymc_vsgp.results.plots.calibration import plot_calibration
from pymc_vsgp.results.plots.function import plot_function
from pymc_vsgp.results.plots.inducing import plot_inducing

__all__ = ["plot_bound", "plot_calibration", "plot_function", "plot_inducing"]
