"""Events in a window, as counts in bins or as they are."""

from pymc_vsgp.point_process.build import point_process
from pymc_vsgp.point_process.compare import compare_bins
from pymc_vsgp.point_process.plot import plot_intensity
from pymc_vsgp.point_process.process import PointProcess
from pymc_vsgp.point_process.quadrature import Quadrature

__all__ = ["PointProcess", "Quadrature", "compare_bins", "plot_intensity", "point_process"]
