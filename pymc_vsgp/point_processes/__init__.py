"""Events in a window, as counts in bins or as they are."""

from pymc_vsgp.point_processes.build import point_process
from pymc_vsgp.point_processes.compare import compare_bins
from pymc_vsgp.point_processes.plot import plot_intensity
from pymc_vsgp.point_processes.process import PointProcess
from pymc_vsgp.point_processes.quadrature import Quadrature

__all__ = ["PointProcess", "Quadrature", "compare_bins", "plot_intensity", "point_process"]
