"""Likelihoods: what is known of p(y | f), one file a family."""

from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.bernoulli import Bernoulli
from pymc_vsgp.likelihoods.beta import Beta
from pymc_vsgp.likelihoods.binomial import Binomial
from pymc_vsgp.likelihoods.categorical import Categorical
from pymc_vsgp.likelihoods.custom import Custom, as_likelihood
from pymc_vsgp.likelihoods.exponential import Exponential
from pymc_vsgp.likelihoods.gamma import Gamma
from pymc_vsgp.likelihoods.gaussian import Gaussian
from pymc_vsgp.likelihoods.gumbel import Gumbel
from pymc_vsgp.likelihoods.heteroskedastic import (
    HeteroskedasticGaussian,
    HeteroskedasticStudentT,
)
from pymc_vsgp.likelihoods.heteroskedastic_counts import (
    HeteroskedasticBetaBinomial,
    HeteroskedasticNegativeBinomial,
    HeteroskedasticZeroInflatedPoisson,
)
from pymc_vsgp.likelihoods.log_normal import LogNormal
from pymc_vsgp.likelihoods.negative_binomial import NegativeBinomial
from pymc_vsgp.likelihoods.ordinal import Ordinal
from pymc_vsgp.likelihoods.poisson import Poisson
from pymc_vsgp.likelihoods.poisson_process import PoissonProcess
from pymc_vsgp.likelihoods.robust_max import RobustMax
from pymc_vsgp.likelihoods.softmax import Softmax
from pymc_vsgp.likelihoods.student_t import StudentT
from pymc_vsgp.likelihoods.weibull import Weibull
from pymc_vsgp.likelihoods.zero_inflated import ZeroInflatedNegativeBinomial, ZeroInflatedPoisson

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Custom",
    "Exponential",
    "Gamma",
    "Gaussian",
    "Gumbel",
    "HeteroskedasticBetaBinomial",
    "HeteroskedasticGaussian",
    "HeteroskedasticNegativeBinomial",
    "HeteroskedasticStudentT",
    "HeteroskedasticZeroInflatedPoisson",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "PoissonProcess",
    "RobustMax",
    "Softmax",
    "StudentT",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "as_likelihood",
]
