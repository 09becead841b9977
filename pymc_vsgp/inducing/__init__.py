"""What the inducing variables are, and where to put them."""

from pymc_vsgp.inducing.base import InducingVariables
from pymc_vsgp.inducing.fourier import Fourier
from pymc_vsgp.inducing.kronecker import Kronecker
from pymc_vsgp.inducing.neighbors import NearestNeighbors
from pymc_vsgp.inducing.placement import greedy_variance, grid, kmeans, subset
from pymc_vsgp.inducing.points import Dense

__all__ = [
    "Dense",
    "Fourier",
    "InducingVariables",
    "Kronecker",
    "NearestNeighbors",
    "greedy_variance",
    "grid",
    "kmeans",
    "subset",
]
