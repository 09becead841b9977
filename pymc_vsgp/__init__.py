"""Variationally sparse Gaussian processes for PyMC.

Importing the package makes ``pm.gp.VariationalSparse`` exist.
"""

import pymc as pm

from pymc_vsgp import datasets, inducing, likelihoods
from pymc_vsgp._version import __version__
from pymc_vsgp.calibration import Calibration, calibrate
from pymc_vsgp.coregionalized import Coregionalized
from pymc_vsgp.diagnostics import check_model
from pymc_vsgp.exactness import ExactWeights, exact_weights
from pymc_vsgp.gaussian import GaussianStage, fit_gaussian, reset
from pymc_vsgp.gp import VariationalSparse
from pymc_vsgp.inducing.advice import Suggestion, suggest_inducing
from pymc_vsgp.inducing_check import InducingCheck, check_inducing
from pymc_vsgp.keeping import open_draws
from pymc_vsgp.latents import likelihood, predictive
from pymc_vsgp.likelihoods import *  # noqa: F403  (the families are public names here too)
from pymc_vsgp.likelihoods import __all__ as _likelihoods
from pymc_vsgp.loo import compute_pointwise, kfold, loo
from pymc_vsgp.plots import plot_bound, plot_calibration, plot_function, plot_inducing
from pymc_vsgp.point_process import PointProcess, compare_bins, plot_intensity, point_process
from pymc_vsgp.prediction import log_predictive_density, predict
from pymc_vsgp.sampling import sample

pm.gp.VariationalSparse = VariationalSparse

__all__ = [
    "Calibration",
    "Coregionalized",
    "ExactWeights",
    "GaussianStage",
    "InducingCheck",
    "PointProcess",
    "Suggestion",
    "VariationalSparse",
    "__version__",
    "calibrate",
    "check_inducing",
    "check_model",
    "compare_bins",
    "compute_pointwise",
    "datasets",
    "exact_weights",
    "fit_gaussian",
    "inducing",
    "kfold",
    "likelihood",
    "likelihoods",
    "log_predictive_density",
    "loo",
    "open_draws",
    "plot_bound",
    "plot_calibration",
    "plot_function",
    "plot_inducing",
    "plot_intensity",
    "point_process",
    "predict",
    "predictive",
    "reset",
    "sample",
    "suggest_inducing",
    *_likelihoods,
]
