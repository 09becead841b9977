"""The Gaussian stage."""

from pymc_vsgp.gaussian.fit import fit_gaussian
from pymc_vsgp.gaussian.result import GaussianStage, reset

__all__ = ["GaussianStage", "fit_gaussian", "reset"]
