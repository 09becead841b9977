"""What the inducing variables are, and where to put them."""

from pymc_vsgp.inducing.fourier import Fourier
from pymc_vsgp.inducing.placement import greedy_variance, grid, kmeans, subset

__all__ = ["Fourier", "greedy_variance", "grid", "kmeans", "subset"]
