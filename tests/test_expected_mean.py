"""The mean of an observation whose latent function is uncertain, against log-space quadrature."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference
import xarray as xr

from marks import long
from scipy import special

import pymc_vsgp as vsgp

from pymc_vsgp import likelihoods
from pymc_vsgp.likelihoods.base import Likelihood
from pymc_vsgp.likelihoods.mixed import Mixed

FAST = "FAST_COMPILE"
MU, SD = (a.ravel() for a in np.meshgrid([-20.0, -3.0, 0.0, 1.7, 9.0], [1e-3, 0.03, 0.5, 2, 5, 10]))


class OfOne(Likelihood):
    """A family of a user's, which only knows its mean given f."""

    def __init__(self, mean):
        self.conditional_mean = mean
        super().__init__()


class OfTwo(OfOne):
    n_latent = 2


class OfThree(OfOne):
    n_latent = 3


def log_rate(link, exposure):
    zero = reference.poisson  # the rate from the log density of no event
    return lambda f: np.log(-zero(f, 0.0, exposure, link) + 1e-300)


ONE = {
    "Poisson": (likelihoods.Poisson(3.0), lambda f: np.log(3) + f),
    "Poisson-square": (likelihoods.Poisson(3.0, "square"), log_rate("square", 3)),
    "Poisson-softplus": (likelihoods.Poisson(3.0, "softplus"), log_rate("softplus", 3)),
    "PoissonProcess": (likelihoods.PoissonProcess(2.0), lambda f: np.log(2) + f),
    "NegativeBinomial": (likelihoods.NegativeBinomial(0.4, 3.0), lambda f: np.log(3) + f),
    "ZeroInflatedPoisson": (likelihoods.ZeroInflatedPoisson(0.3, 3.0), lambda f: np.log(0.9) + f),
    "ZeroInflatedNegativeBinomial": (
        likelihoods.ZeroInflatedNegativeBinomial(0.3, 0.4, 3.0),
        lambda f: np.log(0.9) + f,
    ),
    "Exponential": (likelihoods.Exponential(), lambda f: f),
    "Gamma": (likelihoods.Gamma(2.0), lambda f: f),
    "Weibull": (likelihoods.Weibull(0.7), lambda f: f + special.gammaln(1 + 1 / 0.7)),
    "LogNormal": (likelihoods.LogNormal(1.3), lambda f: f + 1.3**2 / 2),
    "Beta": (likelihoods.Beta(3.0), special.log_expit),
    **{
        f"Bernoulli-{link}": (
            likelihoods.Bernoulli(link),
            lambda f, link=link: reference.log_success(f, link),
        )
        for link in ("logit", "probit", "cloglog")
    },
    "Binomial": (likelihoods.Binomial(9), lambda f: np.log(9) + special.log_expit(f)),
    "Ordinal": (likelihoods.Ordinal([-1.0, 2.0]), lambda f: special.log_expit(-1 - f)),
    "exp of a user": (OfOne(pt.exp), lambda f: f),
    "logit of a user": (OfOne(pt.sigmoid), special.log_expit),
}


def evaluate(lik, mu, gamma):
    m, g = (pt.tensor(dtype="float64", shape=(None, *mu.shape[1:])) for _ in range(2))
    fn = pytensor.function([m, g], lik.mean(m, g), mode=FAST, on_unused_input="ignore")
    return fn(mu, gamma)


@pytest.mark.parametrize("name", ONE)
def test_one_function(name):
    lik, logm = ONE[name]
    got = evaluate(lik, MU, SD**2)
    got = got[:, 0] if name == "Ordinal" else got  # the lowest class
    wanted = [reference.log_mean(logm, m, s**2) for m, s in zip(MU, SD, strict=True)]
    np.testing.assert_allclose(np.log(got), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sd", [0.0, 1e-3, 1.0, 5.0, 100.0, 1e4])
def test_logit_far_out(sd):
    mu = np.array([-1e5, -800.0, -60.0, 60.0])
    lik, one, variance = likelihoods.Bernoulli(), np.ones(4), np.full(4, sd**2)
    m, g, y = pt.dvectors("m", "g", "y")
    log_p = lik.log_predictive(m, g, y)
    slopes = pytensor.function([m, g, y], [log_p, *pt.grad(log_p.sum(), [m, g])], mode=FAST)
    got, *slopes = slopes(mu, variance, one)
    wanted = [log_success_far_out(a, max(sd, 1e-9)) for a in mu]
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)
    assert np.isfinite(slopes).all()


def log_success_far_out(mu, sd):
    if mu + sd**2 < -40.0 - 10.0 * sd:
        return mu + sd**2 / 2.0  # exp(f) wherever it counts
    if sd < 50.0:
        return reference.log_mean(special.log_expit, mu, sd**2)
    # The logit is the chance of f above logistic noise, which is narrow here beside f.
    noise = np.linspace(-300.0, 300.0, 60_001)
    density = special.log_expit(noise) + special.log_expit(-noise)
    return special.logsumexp(density + special.log_ndtr((mu - noise) / sd)) + np.log(0.01)


def test_a_mean_of_both_signs():
    got = evaluate(OfOne(pt.sinh), MU, SD**2)
    scale = np.exp(np.abs(MU) + SD**2 / 2)
    np.testing.assert_allclose(got / scale, np.sinh(MU) * np.exp(SD**2 / 2) / scale, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lik", "log_of_f", "log_of_g"),
    [
        (likelihoods.HeteroskedasticNegativeBinomial(2.0), lambda f: f + np.log(2), np.zeros_like),
        (
            likelihoods.HeteroskedasticBetaBinomial(12),
            lambda f: special.log_expit(f) + np.log(12),
            np.zeros_like,
        ),
        (
            likelihoods.HeteroskedasticZeroInflatedPoisson(2.0),
            lambda f: f + np.log(2),
            lambda g: special.log_expit(-g),
        ),
        *long((OfTwo(lambda f: pt.exp(f[..., 0] - f[..., 1])), lambda f: f, lambda g: -g)),
    ],
)
def test_two_functions(lik, log_of_f, log_of_g):
    mu = np.c_[MU, MU[::-1] / 3][::4]
    sd = np.c_[SD, np.roll(SD, 7)][::4]
    got = np.log(evaluate(lik, mu, sd**2))
    wanted = [
        reference.log_mean(log_of_f, m[0], s[0] ** 2)
        + reference.log_mean(log_of_g, m[1], s[1] ** 2)
        for m, s in zip(mu, sd, strict=True)
    ]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-8)


def test_three_functions():
    mu, sd = np.array([[0.3, -1.0, 0.5]]), np.array([[2.0, 1.0, 2.0]])
    got = evaluate(OfThree(lambda f: pt.exp(f.sum(axis=-1))), mu, sd**2)
    np.testing.assert_allclose(np.log(got), mu.sum() + (sd**2).sum() / 2, atol=1e-9)


def test_location_families_and_mixed_outputs():
    W = np.array([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]])
    mu, gamma = np.array([[0.3, 1.0]]), np.array([[4.0, 25.0]])
    got = evaluate(Mixed(likelihoods.Exponential(), W), mu, gamma)
    np.testing.assert_allclose(np.log(got), mu @ W.T + gamma @ (W**2).T / 2)
    for lik in (likelihoods.HeteroskedasticGaussian(), likelihoods.HeteroskedasticStudentT(4.0)):
        np.testing.assert_allclose(evaluate(lik, mu, gamma), mu[:, 0])
    for lik in (likelihoods.Gaussian(1.0), likelihoods.StudentT(4.0, 1.0)):
        np.testing.assert_allclose(evaluate(lik, mu[0], gamma[0]), mu[0])


def test_predicted_means():
    """Far from the data, where the latent sd is 8: the log-normal mean, in every summary."""
    X = np.linspace(0, 1, 6)[:, None]
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=64.0 * pm.gp.cov.ExpQuad(1, ls=0.5))
        gp.prior("u", Xu=X[::2])
        gp.likelihood("y", vsgp.NegativeBinomial(2.0), X=X, y=np.arange(6))
    u = np.zeros((1, 2, 3))
    idata = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"u": (["chain", "draw", "u_inducing"], u)})}
    )
    far = np.array([[1e3]])
    mean = vsgp.predict(idata, far, "mean", model=model, progressbar=False)
    summary = vsgp.predict(idata, far, "summary", model=model, progressbar=False)
    np.testing.assert_allclose(mean, np.exp(32.0))
    np.testing.assert_allclose(summary["y_mean"], np.exp(32.0))
