"""The Gaussian stage."""

from pymc_vsgp.fit.gaussian import fit_gaussian
from pymc_vsgp.fit.stage import GaussianStage, reset

__all__ = ["GaussianStage", "fit_gaussian", "reset"]
