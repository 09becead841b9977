"""Variationally sparse Gaussian processes for PyMC.

Importing the package makes ``pm.gp.VariationalSparse`` exist.
"""

import pymc as pm

from pymc_vsgp import datasets, inducing, likelihoods
from pymc_vsgp._version import __version__
from pymc_vsgp.coregionalized import Coregionalized
from pymc_vsgp.diagnostics import check_model
from pymc_vsgp.gaussian import GaussianStage, fit_gaussian, reset
from pymc_vsgp.gp import VariationalSparse
from pymc_vsgp.latents import likelihood, predictive
from pymc_vsgp.likelihoods import *  # noqa: F403  (the families are public names here too)
from pymc_vsgp.likelihoods import __all__ as _likelihoods
from pymc_vsgp.sampling import sample

pm.gp.VariationalSparse = VariationalSparse

__all__ = [
    "Coregionalized",
    "GaussianStage",
    "VariationalSparse",
    "__version__",
    "check_model",
    "datasets",
    "fit_gaussian",
    "inducing",
    "likelihood",
    "likelihoods",
    "predictive",
    "reset",
    "sample",
    *_likelihoods,
]
