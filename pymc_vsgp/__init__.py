"""Variationally sparse Gaussian processes for PyMC.

Importing the package makes ``pm.gp.VariationalSparse`` exist.
"""

from typing import TYPE_CHECKING

import pymc as pm

from pymc_vsgp import datasets, inducing, likelihoods, steps
from pymc_vsgp._version import __version__
from pymc_vsgp.engine.sharded import local_rows
from pymc_vsgp.fit import GaussianStage, fit_gaussian, reset
from pymc_vsgp.fit.sampling import sample
from pymc_vsgp.fit.store import open_draws
from pymc_vsgp.inducing.advice import Suggestion, suggest_inducing
from pymc_vsgp.likelihoods import *  # noqa: F403  (the families are public names here too)
from pymc_vsgp.likelihoods import __all__ as _likelihoods
from pymc_vsgp.model.coregionalized import Coregionalized
from pymc_vsgp.model.diagnostics import check_model
from pymc_vsgp.model.gp import VariationalSparse
from pymc_vsgp.model.latents import likelihood, predictive
from pymc_vsgp.point_processes import PointProcess, compare_bins, plot_intensity, point_process
from pymc_vsgp.results.calibration import Calibration, calibrate
from pymc_vsgp.results.exactness import ExactWeights, exact_weights
from pymc_vsgp.results.folds import kfold
from pymc_vsgp.results.inducing_check import InducingCheck, check_inducing
from pymc_vsgp.results.loo import compute_log_likelihood, compute_pointwise, loo
from pymc_vsgp.results.plots import plot_calibration, plot_elbo, plot_function, plot_inducing
from pymc_vsgp.results.prediction import log_predictive_density, predict

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
    "compute_log_likelihood",
    "compute_pointwise",
    "datasets",
    "exact_weights",
    "fit_gaussian",
    "inducing",
    "kfold",
    "likelihood",
    "likelihoods",
    "local_rows",
    "log_predictive_density",
    "loo",
    "open_draws",
    "plot_elbo",
    "plot_calibration",
    "plot_function",
    "plot_inducing",
    "plot_intensity",
    "point_process",
    "predict",
    "predictive",
    "reset",
    "sample",
    "steps",
    "suggest_inducing",
    *_likelihoods,
]

if not TYPE_CHECKING:  # to which any name would exist

    def __getattr__(name):
        # Python would ask whether LogNormal is meant.
        if name == "Normal":
            said = "There is no vsgp.Normal. Use vsgp.Gaussian(sigma)."
            raise AttributeError(said, name=name, obj=None)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
