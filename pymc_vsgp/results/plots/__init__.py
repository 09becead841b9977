"""Figures of a fit: the function, the inducing points, the ELBO, calibration.

Each takes the axes to draw on and returns them. matplotlib is imported when a figure is asked for.
"""

from pymc_vsgp.results.plots.calibration import plot_calibration
from pymc_vsgp.results.plots.elbo import plot_elbo
from pymc_vsgp.results.plots.function import plot_function
from pymc_vsgp.results.plots.inducing import plot_inducing

__all__ = ["plot_elbo", "plot_calibration", "plot_function", "plot_inducing"]
