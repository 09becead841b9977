"""Likelihoods: what is known of p(y | f), one file a family."""

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.bernoulli import Bernoulli
from pymc_vsgp.likelihoods.beta import Beta
from pymc_vsgp.likelihoods.binomial import Binomial
from pymc_vsgp.likelihoods.custom import Custom, as_likelihood
from pymc_vsgp.likelihoods.exponential import Exponential
from pymc_vsgp.likelihoods.gamma import Gamma
from pymc_vsgp.likelihoods.gaussian import Gaussian
from pymc_vsgp.likelihoods.log_normal import LogNormal
from pymc_vsgp.likelihoods.negative_binomial import NegativeBinomial
from pymc_vsgp.likelihoods.poisson import Poisson
from pymc_vsgp.likelihoods.student_t import StudentT
from pymc_vsgp.likelihoods.weibull import Weibull
from pymc_vsgp.likelihoods.zero_inflated_poisson import ZeroInflatedPoisson

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Custom",
    "Exponential",
    "Gamma",
    "Gaussian",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
    "Weibull",
    "ZeroInflatedPoisson",
    "as_likelihood",
]
