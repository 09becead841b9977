"""Likelihoods of several latent functions, and processes with several outputs."""

import itertools

from functools import cache

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference
import reference_gp
import reference_latents

from marks import long
from modes import RAW
from scipy import integrate, special, stats

import pymc_vsgp as vsgp

from pymc_vsgp import likelihoods
from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.model.coregionalized import Coregionalized
from pymc_vsgp.model.latents import likelihood as observe_functions
from pymc_vsgp.model.latents import predictive as predict_observations
from pymc_vsgp.ops.log_sum_exp import expected_log_sum_exp

# name: (likelihood, reference log density of f, g and y, observations)
TWO = {
    "HeteroskedasticGaussian": (
        likelihoods.HeteroskedasticGaussian(),
        reference_latents.heteroskedastic_gaussian,
        [-1.2, 3.0],
    ),
    "HeteroskedasticStudentT": (
        likelihoods.HeteroskedasticStudentT(nu=4.0),
        lambda f, g, y: reference_latents.heteroskedastic_student_t(f, g, y, 4.0),
        [-0.7, 4.0],
    ),
    "HeteroskedasticNegativeBinomial": (
        likelihoods.HeteroskedasticNegativeBinomial(exposure=2.0),
        lambda f, g, y: reference_latents.heteroskedastic_negative_binomial(f, g, y, 2.0),
        [0.0, 2.0, 60.0],
    ),
    "HeteroskedasticBetaBinomial": (
        likelihoods.HeteroskedasticBetaBinomial(n=12),
        lambda f, g, y: reference_latents.heteroskedastic_beta_binomial(f, g, y, 12),
        [0.0, 3.0, 12.0],
    ),
    "HeteroskedasticZeroInflatedPoisson": (
        likelihoods.HeteroskedasticZeroInflatedPoisson(exposure=2.0),
        lambda f, g, y: reference_latents.heteroskedastic_zero_inflated_poisson(f, g, y, 2.0),
        [0.0, 4.0],
    ),
}


def moments_symbols():
    return pt.dmatrix("mu"), pt.dmatrix("gamma")


def evaluate(lik, mu, gamma, y, *methods):
    m, g = moments_symbols()
    outputs = [getattr(lik, k)(m, g, pt.as_tensor(y)) for k in methods or ("expected_logp",)]
    fn = pytensor.function([m, g], outputs if len(outputs) > 1 else outputs[0], mode=RAW)
    return fn(np.atleast_2d(mu), np.atleast_2d(gamma))


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
def test_two_functions_equal_the_reference(name):
    lik, logpdf, observations = TWO[name]
    grid = itertools.product([-0.5], [0.01, 4.0], [-1.0, 1.5], [0.01, 0.6], observations)
    rows = np.array(list(grid))
    mu, gamma, y = rows[:, [0, 2]], rows[:, [1, 3]], rows[:, 4]
    wanted = np.array(
        [
            reference_latents.two(lambda f, g, y=y_n: logpdf(f, g, y), m, g)
            for m, g, y_n in zip(mu, gamma, y, strict=True)
        ]
    )
    expected, predictive = evaluate(lik, mu, gamma, y, "expected_logp", "log_predictive")
    np.testing.assert_allclose(expected, wanted[:, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(predictive, wanted[:, 1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", TWO)
def test_two_functions_with_a_wide_log_scale(name):
    """Where the scale itself is uncertain by a factor of e^2."""
    lik, logpdf, observations = TWO[name]
    mu, gamma = [0.3, 0.5], [0.5, 4.0]
    wanted = [
        reference_latents.two(
            lambda f, g, y=y: logpdf(f, g, y), mu, gamma, n=(2001, 201), reach=12.0
        )[0]
        for y in observations
    ]
    n = len(observations)
    expected = evaluate(lik, np.tile(mu, (n, 1)), np.tile(gamma, (n, 1)), np.array(observations))
    np.testing.assert_allclose(expected, wanted, rtol=5e-6)


@pytest.mark.parametrize("name", TWO)
def test_log_prob_is_that_of_the_distribution(name, rng):
    lik, logpdf, observations = TWO[name]
    f = rng.normal(size=(len(observations), 2))
    y = np.array(observations)
    kept = pm.logp(lik.dist(pt.as_tensor(f)), pt.as_tensor(y)).eval(mode=RAW)
    np.testing.assert_allclose(lik.log_prob(pt.as_tensor(f), y).eval(mode=RAW), kept, rtol=1e-8)
    wanted = [logpdf(a, b, c) for (a, b), c in zip(f, y, strict=True)]
    np.testing.assert_allclose(kept, wanted, rtol=1e-8)


def test_heteroskedastic_predictive_density_by_quad():
    """Over g by scipy; over f the normal is in closed form."""
    mu, gamma, y = np.array([0.4, -1.0]), np.array([0.2, 4.0]), 3.0

    def density(g):
        at = stats.norm.pdf(y, mu[0], np.sqrt(gamma[0] + np.exp(2 * g)))
        return at * stats.norm.pdf(g, mu[1], np.sqrt(gamma[1]))

    wanted = np.log(integrate.quad(density, -15, 15, points=[-1, 0, 1, 2], epsabs=1e-14)[0])
    got = evaluate(likelihoods.HeteroskedasticGaussian(), mu, gamma, [y], "log_predictive")
    np.testing.assert_allclose(got[0], wanted, rtol=1e-9)


@pytest.mark.parametrize("nu", [1.5, 4.0])
def test_predictive_density_of_outliers_and_constants(nu):
    """The scale of a constant g is 0 at the farthest nodes, and was refused."""
    mu, gamma, y = np.array([1.0, 0.2]), np.array([1.0, 0.2]), 2.0
    f, g = np.linspace(-8.0, 10.0, 6001), np.linspace(-4.0, 5.0, 301)[:, None]
    density = stats.t.pdf(y, nu, loc=f, scale=np.exp(g))
    for at, m, v in zip((f, g), mu, gamma, strict=True):
        density = density * stats.norm.pdf(at, m, np.sqrt(v))
    wanted = np.log(np.trapezoid(np.trapezoid(density, f, axis=1), g[:, 0]))
    lik = likelihoods.HeteroskedasticStudentT(nu)
    found = lik.log_predictive(mu[None], gamma[None], np.array([y])).eval(mode=RAW)
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


def test_negative_binomial_with_a_large_dispersion_is_poisson():
    mu, gamma, y = np.array([[0.5, 30.0]] * 3), np.array([[0.3, 1.0]] * 3), np.array([0, 3, 9.0])
    got = evaluate(likelihoods.HeteroskedasticNegativeBinomial(), mu, gamma, y)
    wanted = y * 0.5 - np.exp(0.5 + 0.15) - special.gammaln(y + 1)
    np.testing.assert_allclose(got, wanted, rtol=1e-9)


# --- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [[0.01] * 3, [1.0] * 3, [9.0] * 3, [0.01, 1.0, 9.0]], ids=str)
def test_softmax_equals_the_reference(gamma, rng):
    mu = rng.normal(size=(6, 3)) * np.repeat([1.0, 4.0], 3)[:, None]
    gamma, y = np.tile(gamma, (6, 1)), np.arange(6) % 3
    wanted = np.array(
        [reference_latents.softmax(*row, n=141) for row in zip(mu, gamma, y, strict=True)]
    )
    lik = likelihoods.Softmax(3)
    np.testing.assert_allclose(evaluate(lik, mu, gamma, y), wanted[:, 0], rtol=0, atol=1e-7)
    predictive = evaluate(lik, mu, gamma, y, "log_predictive")
    np.testing.assert_allclose(predictive, wanted[:, 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 5, 10])
def test_softmax_by_monte_carlo(n_classes, rng):
    mu = rng.normal(size=n_classes)
    gamma = rng.uniform(0.1, 3.0, n_classes)
    f = rng.normal(mu, np.sqrt(gamma), size=(400_000, n_classes))
    logp = f[:, 0] - special.logsumexp(f, axis=1)
    p = np.exp(logp)
    lik = likelihoods.Softmax(n_classes)
    results = evaluate(lik, mu, gamma, [0], "expected_logp", "log_predictive")
    expected, predictive = (r[0] for r in results)
    assert abs(expected - logp.mean()) < 4 * logp.std() / np.sqrt(len(f)) + 1e-5
    assert abs(np.exp(predictive) - p.mean()) < 4 * p.std() / np.sqrt(len(f)) + 1e-5


def test_softmax_of_two_is_the_logit(rng):
    """The difference of two functions is normal, and the logit's expectation is in closed form."""
    mu, gamma = rng.normal(size=(5, 2)) * 2, rng.uniform(0.01, 20, size=(5, 2))
    y = np.array([0, 1, 1, 0, 1])
    got = evaluate(likelihoods.Softmax(2), mu, gamma, y)
    wanted = [
        reference.expected_logp(lambda f, k=k: reference.bernoulli(f, k, "logit"), m[1] - m[0], g)[
            0
        ]
        for m, g, k in zip(mu, gamma.sum(axis=1), y, strict=True)
    ]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("sd", [0.01, 0.5, 2.0, 5.0, 10.0])
def test_rare_class_of_two(sd, rng):
    mu, gamma = 2.0 * sd * rng.normal(size=(40, 2)), sd**2 * rng.uniform(0.2, 1.0, size=(40, 2))
    mu[:8, 1] -= 60.0
    y = np.ones(40, dtype=int)
    got = evaluate(likelihoods.Softmax(2), mu, gamma, y, "log_predictive")
    wanted = [
        reference.log_mean(special.log_expit, m[1] - m[0], g)
        for m, g in zip(mu, gamma.sum(axis=1), strict=True)
    ]
    # The error is relative to the class, or to the other one where the means are turned.
    scale = np.minimum(mu[:, 1] - mu[:, 0] + gamma.sum(axis=1) / 2.0, 0.0)
    error = np.abs(np.ravel(got) - wanted) * np.exp(np.array(wanted) - scale)
    assert error.max() < 3e-8
    np.testing.assert_allclose(np.ravel(got)[:8], wanted[:8], atol=1e-5 if sd < 10.0 else 1e-3)


def test_logsumexp_of_constants_and_shifts():
    mu = np.array([[0.3, -1.0, 2.0, 0.0]])
    m, g = moments_symbols()
    fn = pytensor.function([m, g], expected_log_sum_exp(m, g), mode=RAW)
    np.testing.assert_allclose(fn(mu, 0 * mu), special.logsumexp(mu), rtol=0, atol=1e-7)
    np.testing.assert_allclose(
        fn(mu + 300, 1 + 0 * mu), fn(mu, 1 + 0 * mu) + 300, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("epsilon", [1e-3, 0.2])
def test_robust_max_by_monte_carlo(epsilon, rng):
    mu, gamma, k = rng.normal(size=4), rng.uniform(0.01, 4.0, 4), 2
    f = rng.normal(mu, np.sqrt(gamma), size=(1_000_000, 4))
    p = (f.argmax(axis=1) == k).mean()
    lik = likelihoods.RobustMax(4, epsilon=epsilon)
    hit, miss = np.log1p(-epsilon), np.log(epsilon / 3)
    error = 4 * np.sqrt(p * (1 - p) / len(f))
    results = evaluate(lik, mu, gamma, [k], "expected_logp", "log_predictive")
    got, predictive = (r[0] for r in results)
    assert abs(got - (p * hit + (1 - p) * miss)) < error * (hit - miss)
    density = np.exp(predictive)
    assert abs(density - (p * (1 - epsilon) + (1 - p) * epsilon / 3)) < error
    every = evaluate(lik, np.tile(mu, (4, 1)), np.tile(gamma, (4, 1)), range(4), "log_predictive")
    np.testing.assert_allclose(np.exp(every).sum(), 1.0, rtol=1e-7)


def test_class_probabilities_are_those_of_the_distribution(rng):
    f = rng.normal(size=(3, 3))
    errors = 0.1, np.array([0.1, 0.2, 0.3])  # as many rows as classes
    for lik in (*(likelihoods.RobustMax(3, e) for e in errors), likelihoods.Softmax(3)):
        probabilities = lik.conditional_probabilities(pt.as_tensor(f)).eval(mode=RAW)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
        for k in range(3):
            y = np.full(3, k)
            logp = lik.log_prob(pt.as_tensor(f), y).eval(mode=RAW)
            np.testing.assert_allclose(logp, np.log(probabilities[:, k]), rtol=1e-10)
            kept = pm.logp(lik.dist(pt.as_tensor(f)), y).eval(mode=RAW)
            np.testing.assert_allclose(kept, logp, rtol=1e-10)


def test_categorical_chooses_between_the_two():
    assert isinstance(likelihoods.Categorical(3), likelihoods.Softmax)
    lik = likelihoods.Categorical(3, link="robustmax", epsilon=0.01)
    assert repr(lik) == "RobustMax(n_classes=3, epsilon=0.01)"
    with pytest.raises(ValueError, match="There is no link 'probit'"):
        likelihoods.Categorical(3, link="probit")


CUTS = np.array([-1.0, 0.2, 1.5])


def ordinal(f, y, link):
    cdf = special.log_expit if link == "logit" else special.log_ndtr
    if y == 0:
        return cdf(CUTS[0] - f)
    if y == 3:
        return cdf(f - CUTS[2])
    b, a = CUTS[y] - f, CUTS[y - 1] - f
    b, a = np.where(a + b > 0, -a, b), np.where(a + b > 0, -b, a)  # on the accurate side
    return cdf(b) + np.log(-np.expm1(cdf(a) - cdf(b)))


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_ordinal_equals_the_reference(link):
    lik = likelihoods.Ordinal(CUTS, link=link)
    rows = list(itertools.product([-6.0, -0.4, 2.0], [0.01, 1.0, 30.0], range(4)))
    mu, gamma, y = (np.array(c) for c in zip(*rows, strict=True))
    for method, wanted in (
        ("expected_logp", lambda *a: reference.expected_logp(*a)[0]),
        ("log_predictive", reference.log_predictive),
    ):
        m, g = pt.dvectors("mu", "gamma")
        got = pytensor.function([m, g], getattr(lik, method)(m, g, pt.as_tensor(y)), mode=RAW)
        expected = [wanted(lambda f, k=k: ordinal(f, k, link), a, b) for a, b, k in rows]
        np.testing.assert_allclose(got(mu, gamma), expected, rtol=1e-6, atol=1e-6)


def test_ordinal_far_from_its_cut_points():
    """In f-space: finite where both cumulative probabilities are one, or none."""
    f = pt.as_tensor(np.array([-60.0, 60.0]))
    for link in ("logit", "probit"):
        lik = likelihoods.Ordinal(CUTS, link=link)
        for y in range(4):
            got = lik.log_prob(f, np.full(2, y)).eval(mode=RAW)
            np.testing.assert_allclose(got, [ordinal(x, y, link) for x in (-60.0, 60.0)])


def test_ordinal_distribution(rng):
    f = rng.normal(size=4)
    y = np.arange(4)
    for link in ("logit", "probit"):
        lik = likelihoods.Ordinal(CUTS, link=link)
        kept = pm.logp(lik.dist(pt.as_tensor(f)), y).eval(mode=RAW)
        np.testing.assert_allclose(lik.log_prob(f, y).eval(mode=RAW), kept, rtol=1e-8)


# --- any distribution ----------------------------------------------------------------------------


@pytest.mark.slow
def test_custom_of_two_functions():
    lik = likelihoods.Custom(
        lambda f, g: pm.Gamma.dist(mu=pm.math.exp(f), sigma=pm.math.exp(g)), n_nodes=None
    )
    assert lik.n_latent == 2
    mu, gamma = np.array([[0.5, -0.6], [1.0, -0.2]]), np.array([[0.05, 0.1], [0.02, 0.05]])
    y = np.array([1.3, 4.0])
    wanted = np.array(
        [
            reference_latents.two(
                lambda f, g, y=k: reference_latents.custom_gamma(f, g, y), m, v, n=(401, 401)
            )
            for m, v, k in zip(mu, gamma, y, strict=True)
        ]
    )
    np.testing.assert_allclose(evaluate(lik, mu, gamma, y), wanted[:, 0], rtol=1e-6)
    predictive = evaluate(lik, mu, gamma, y, "log_predictive")
    np.testing.assert_allclose(predictive, wanted[:, 1], rtol=1e-6)


def test_custom_of_three_functions_in_order(rng):
    """A normal whose mean is a product and whose scale is the third: moments are known."""
    lik = likelihoods.Custom(lambda f, g, h: pm.Normal.dist(f * g, pm.math.exp(h)))
    mu, gamma, y = np.array([0.7, -0.4, 0.1]), np.array([0.3, 0.5, 0.2]), 0.9
    second = (mu[0] ** 2 + gamma[0]) * (mu[1] ** 2 + gamma[1])
    square = y**2 - 2 * y * mu[0] * mu[1] + second
    wanted = -np.log(2 * np.pi) / 2 - mu[2] - square * np.exp(2 * (gamma[2] - mu[2])) / 2
    np.testing.assert_allclose(evaluate(lik, mu, gamma, [y])[0], wanted, rtol=1e-8)
    f = rng.normal(mu, np.sqrt(gamma), size=(1_000_000, 3))
    density = stats.norm.pdf(y, f[:, 0] * f[:, 1], np.exp(f[:, 2]))
    got = np.exp(evaluate(lik, mu, gamma, [y], "log_predictive")[0])
    assert abs(got - density.mean()) < 4 * density.std() / 1e3


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, *long("NUMBA")])
def test_custom_of_three_functions_in_a_model(rng, mode):
    """In blocks as at once: what simplifies a block has to know the lengths of its arrays."""
    X, y = np.linspace(0.0, 3.0, 8)[:, None], rng.normal(size=8)
    W, v = rng.normal(size=(8, 2)), 0.3 * rng.normal(size=(4, 3))

    def mean(f, g, h):
        return f + g * W[:, 0] + h * W[:, 1]

    found = []
    for block_size, how in ((None, mode), (False, RAW)):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.5))
            gp.prior("u", Xu=X[::2], n_outputs=3)
            lik = likelihoods.Custom(lambda f, g, h: pm.Normal.dist(mean(f, g, h), 1.0), n_nodes=7)
            vsgp.likelihood("y", lik, [gp], X=X, y=y, block_size=block_size)
        (name,) = model.initial_point()
        point = {name: v.reshape(model.initial_point()[name].shape)}
        compiled = model.compile_logp(mode=how), model.compile_dlogp(mode=how)
        found.append([fn(point) for fn in compiled])
    for blocks, at_once in zip(*found, strict=True):
        np.testing.assert_allclose(blocks, at_once, rtol=1e-7, atol=1e-9)


def test_custom_with_too_many_functions():
    with pytest.raises(ValueError, match=r"takes 4 latent functions.*1 to 3"):
        likelihoods.Custom(lambda a, b, c, d: pm.Normal.dist(a + b, pm.math.exp(c + d)))
    with pytest.raises(TypeError, match="any number of arguments"):
        likelihoods.Custom(lambda *f: pm.Normal.dist(f[0], 1.0))
    with pytest.raises(TypeError, match=r"the class Poisson.*as in lambda f: pm.Poisson.dist"):
        likelihoods.Custom(pm.Poisson)
    with pytest.raises(ValueError, match="does not depend on f. Return one that does"):
        likelihoods.Custom(lambda f: pm.Poisson.dist(3.0))


# --- gradients -----------------------------------------------------------------------------------

GRADIENTS = {
    **{name: (case[0], case[2][-1], 2) for name, case in TWO.items()},
    "Softmax": (likelihoods.Softmax(3), 1, 3),
    "RobustMax": (likelihoods.RobustMax(3, epsilon=0.01), 1, 3),
    "Custom": (
        likelihoods.Custom(lambda f, g: pm.Laplace.dist(f, pm.math.exp(g)), n_nodes=15),
        0.3,
        2,
    ),
}


QUICK = ("HeteroskedasticGaussian", "Softmax", "RobustMax")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in GRADIENTS]
)
def test_gradients_in_the_moments(name, rng):
    lik, y, k = GRADIENTS[name]
    mu, gamma = rng.normal(size=(2, k)), rng.uniform(0.2, 1.0, size=(2, k))
    y = np.array([y, y])
    pytensor.gradient.verify_grad(
        lambda m, g: lik.expected_logp(m, g, y), [mu, gamma], rng=rng, mode=RAW, rel_tol=1e-4
    )


# Lengths are unknown here, and JAX leaves out the check that they are equal. Models know them.
@pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning")
@pytest.mark.long
@pytest.mark.slow
def test_jax_agrees(rng):
    """All of these in one function, with gradients."""
    pytest.importorskip("jax")
    inputs, outputs, at = [], [], []
    for lik, y, k in GRADIENTS.values():
        moments = moments_symbols()
        terms = lik.expected_logp(*moments, pt.as_tensor(np.array([y, y])))
        inputs += moments
        outputs += [terms, *pt.grad(terms.sum(), moments)]
        at += [rng.normal(size=(2, k)), rng.uniform(0.2, 1.0, size=(2, k))]
    cuts = pt.dvector("cuts")
    terms = likelihoods.Ordinal(cuts).expected_logp(inputs[0][:, 0], 0.4, np.array([0, 3]))
    outputs += [terms, *pt.grad(terms.sum(), [inputs[0], cuts])]
    found, wanted = (
        pytensor.function([*inputs, cuts], outputs, mode=m)(*at, CUTS) for m in ("JAX", RAW)
    )
    for a, b in zip(found, wanted, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_gradients_in_cut_points_and_epsilon(rng):
    y = np.arange(4)
    for link in ("logit", "probit"):
        pytensor.gradient.verify_grad(
            lambda m, c, link=link: likelihoods.Ordinal(c, link).expected_logp(m, 0.4, y),
            [rng.normal(size=4), CUTS],
            rng=rng,
            mode=RAW,
            rel_tol=1e-5,
        )
    m, g = rng.normal(size=(3, 3)), rng.uniform(0.1, 1, (3, 3))
    pytensor.gradient.verify_grad(
        lambda e: likelihoods.RobustMax(3, e).expected_logp(m, g, np.arange(3)),
        [np.array(0.1)],
        rng=rng,
        mode=RAW,
    )


# --- models --------------------------------------------------------------------------------------

N, M = 24, 6
X = np.random.default_rng(3).uniform(0, 4, size=(N, 2))
XU, XU_OTHER = X[::4], X[1::5]
LABELS = np.arange(N) % 3
REAL = np.linspace(-2, 2, N)
OUTPUTS = np.random.default_rng(4).normal(size=(N, 3))
OUTPUTS[3, 1] = OUTPUTS[7] = np.nan


def process(name, cov=pm.gp.cov.Matern52, Xu=XU, mean=0.4, **kwargs):
    ls = pm.Gamma(f"{name}_ls", 3, 2)
    gp = pm.gp.VariationalSparse(mean_func=pm.gp.mean.Constant(mean), cov_func=1.3 * cov(2, ls=ls))
    gp.prior(name, Xu=Xu, **kwargs)
    return gp


def different_processes():
    return [process("u"), process("w", pm.gp.cov.ExpQuad, XU_OTHER, mean=-0.7)]


def shared_kernel(**kwargs):
    epsilon = pm.Beta("epsilon", 1, 20)
    gp = process("u", n_outputs=3)
    gp.likelihood("y", likelihoods.RobustMax(3, epsilon), X=X, y=LABELS, **kwargs)


def softmax_of_shared_kernel(**kwargs):
    process("u", n_outputs=3).likelihood("y", likelihoods.Softmax(3), X=X, y=LABELS, **kwargs)


def list_of_processes(**kwargs):
    lik = likelihoods.HeteroskedasticGaussian()
    observe_functions("y", lik, different_processes(), X=X, y=REAL, **kwargs)


def list_with_row_parameters(**kwargs):
    lik = likelihoods.HeteroskedasticZeroInflatedPoisson(exposure=np.linspace(0.5, 2, N))
    observe_functions("y", lik, different_processes(), X=X, y=LABELS, **kwargs)


def list_of_mixed_sizes(**kwargs):
    gps = [process("u", n_outputs=2), process("w", pm.gp.cov.ExpQuad, XU_OTHER, mean=-0.7)]
    observe_functions("y", likelihoods.Softmax(3), gps, X=X, y=LABELS, **kwargs)


def custom_of_two(**kwargs):
    shift = pm.Normal("shift")

    def dist(f, g):
        return pm.Normal.dist(f + shift, pm.math.exp(g))

    lik = likelihoods.Custom(dist, n_nodes=15)
    observe_functions("y", lik, different_processes(), X=X, y=REAL, **kwargs)


def ordered_classes(**kwargs):
    ordered = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", 0, 2, shape=2, transform=ordered, initval=[-0.5, 0.8])
    process("u").likelihood("y", likelihoods.Ordinal(cuts), X=X, y=LABELS, **kwargs)


def several_outputs(**kwargs):
    W = pm.Normal("W", shape=(3, 2))
    sigma = pm.HalfNormal("sigma", shape=3)
    f = Coregionalized(W, different_processes())
    f.likelihood("y", vsgp.Gaussian(sigma), X=X, y=OUTPUTS, **kwargs)


MODELS = {
    build.__name__: build
    for build in (
        shared_kernel,
        softmax_of_shared_kernel,
        list_of_processes,
        list_with_row_parameters,
        list_of_mixed_sizes,
        custom_of_two,
        ordered_classes,
        several_outputs,
    )
}


LONG = ("list_of_processes", "softmax_of_shared_kernel", "several_outputs")


def built(build, **kwargs):
    with pm.Model() as model:
        build(**kwargs)
    return model


def random_point(model, rng):
    point = model.initial_point()
    return {k: v + 0.3 * rng.normal(size=np.shape(v)) for k, v in point.items()}


def evaluated(model, point, mode):
    logp = model.logp()
    outputs = [logp, *pt.grad(logp, model.continuous_value_vars)]
    return model.compile_fn(outputs, mode=mode)(point)


@cache
def ordinary(name):
    """A point, and what the ordinary graph has there."""
    model = built(MODELS[name], block_size=False)
    point = random_point(model, np.random.default_rng(20150612))
    return point, evaluated(model, point, RAW)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(n for n in MODELS if n not in LONG), *long(*LONG)])
def test_streamed_equals_the_ordinary_graph(name):
    streamed = built(MODELS[name], block_size=7)
    loops = [v.owner.op for v in pytensor.graph.traversal.ancestors([streamed.logp()]) if v.owner]
    assert any(isinstance(op, BlockSum) for op in loops)
    point, wanted = ordinary(name)
    for a, b in zip(evaluated(streamed, point, RAW), wanted, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


# All take long to compile: several processes, and several functions of one. Robust-max, which has
# loops of its own on each backend, is in `test_robust_max.py`; for other likelihoods see above.
COMPILED = [
    ("shared_kernel", "JAX"),
    *long(("list_of_processes", "JAX"), ("list_of_processes", "NUMBA")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), COMPILED)
def test_other_backends(name, mode):
    pytest.importorskip(mode.lower(), reason=f"{mode} is not installed")
    point, wanted = ordinary(name)
    # Robust-max is good to 2e-9 on the scale of the latent standard deviation, here 1e-3.
    tolerance = 1e-6 if name == "shared_kernel" else 1e-8
    for a, b in zip(evaluated(built(MODELS[name]), point, mode), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.slow
def test_several_outputs_are_separate_functions_with_one_kernel(rng):
    """The density of K functions is that of K processes."""
    one, many = built(softmax_of_shared_kernel), pm.Model()
    with many:
        ls = pm.Gamma("u_ls", 3, 2)
        gps = []
        for k in range(3):
            cov = 1.3 * pm.gp.cov.Matern52(2, ls=ls)
            gp = pm.gp.VariationalSparse(mean_func=pm.gp.mean.Constant(0.4), cov_func=cov)
            gp.prior(f"u{k}", Xu=XU)
            gps.append(gp)
        observe_functions("y", likelihoods.Softmax(3), gps, X=X, y=LABELS)
    point = random_point(one, rng)
    v = point["u_whitened__"]
    split = {"u_ls_log__": point["u_ls_log__"]} | {f"u{k}_whitened__": v[k] for k in range(3)}
    np.testing.assert_allclose(
        one.compile_logp(mode=RAW)(point), many.compile_logp(mode=RAW)(split), rtol=1e-10
    )


@pytest.mark.slow
def test_missing_outputs_carry_no_information(rng):
    """Rows that are left out, and entries that are nan, give the same density."""
    model = built(several_outputs)
    logp = model.compile_fn(model.logp(vars=model["y"], sum=False)[0], mode=RAW)
    point = random_point(model, rng)
    terms = logp({v.name: point[v.name] for v in model.value_vars})
    assert terms.shape == (N,)
    assert terms[7] == 0.0
    assert (terms[np.arange(N) != 7] != 0).all()


def test_coregionalized_moments(rng):
    """One output that sees one function is that function alone."""
    W = np.array([[2.0, 0.0], [0.5, -1.0]])
    y = np.c_[REAL, np.full(N, np.nan)]
    y[0, 1] = 0.3
    mu, gamma = rng.normal(size=(N, 2)), rng.uniform(0.1, 1, (N, 2))
    mixed = likelihoods.mixed.Mixed(vsgp.Gaussian(sigma=0.5), W)
    got = evaluate(mixed, mu, gamma, y)
    wanted = stats.norm.logpdf(REAL, 2 * mu[:, 0], 0.5) - 4 * gamma[:, 0] / (2 * 0.25)
    f, g = mu[0] @ W[1], gamma[0] @ W[1] ** 2
    wanted[0] += stats.norm.logpdf(0.3, f, 0.5) - g / (2 * 0.25)
    np.testing.assert_allclose(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_prior_predictive_draws(name, rng):
    model = built(MODELS[name])
    draws = pm.sample_prior_predictive(
        5, model=model, compile_kwargs={"mode": RAW}, random_seed=rng
    ).prior_predictive["y"]
    assert draws.shape == (1, 5, *model["y"].shape.eval())
    assert np.isfinite(draws).all()


@pytest.mark.slow
def test_conditionals_of_several_outputs(rng):
    Xnew = rng.uniform(0, 4, size=(5, 2))
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=1.1))
        u = gp.prior("u", Xu=XU, n_outputs=3, output_dims="class")
        gp.likelihood("y", likelihoods.Softmax(3), X=X, y=LABELS)
        joint = gp.conditional("f_joint", Xnew)
        model.add_coord("new", length=5)
        each = gp.conditional("f_each", Xnew, diag=True, dims=("class", "new"))
        gp.predictive("y_new", Xnew)
    assert model.named_vars_to_dims["u"] == ("class", "u_inducing")
    assert u.type.shape == (3, len(XU))
    value = rng.normal(size=(3, len(XU)))
    mean, cov = gp.predict(Xnew, point={"u": value}, model=model)
    assert mean.shape == (3, 5) and cov.shape == (5, 5)
    sd = np.sqrt(np.diag(cov))
    for rv, spread in ((joint, cov), (each, sd)):
        found = pytensor.function([u], rv.owner.op.dist_params(rv.owner), mode=RAW)(value)
        for ours, wanted in zip(found, (mean, spread), strict=True):
            # What is added to the covariance keeps its factor finite.
            np.testing.assert_allclose(*np.broadcast_arrays(ours, wanted), rtol=1e-9, atol=1e-5)
    draw = pm.compile([u], model["y_new"], mode=RAW, random_seed=3)(value)
    assert draw.shape == (5,) and set(draw) <= {0, 1, 2}


def test_posterior_predictive_of_two_processes(rng):
    with pm.Model() as model:
        gps = different_processes()
        lik = likelihoods.HeteroskedasticGaussian()
        observe_functions("y", lik, gps, X=X, y=REAL)
        u, w = rng.normal(size=(1, 20, len(XU))), rng.normal(size=(1, 20, len(XU_OTHER)))
        ls = np.ones((1, 20))
        predict_observations("y_new", gps, X[:4])
        draws = pm.sample_posterior_predictive(
            freeze_vars=["u", "w"],
            trace=az.from_dict({"posterior": {"u": u, "w": w, "u_ls": ls, "w_ls": ls}}),
            var_names=["y_new"],
            compile_kwargs={"mode": RAW},
            progressbar=False,
            random_seed=rng,
        )
    assert model["y_new"].type.ndim == 1
    assert draws.posterior_predictive["y_new"].shape == (1, 20, 4)


@pytest.mark.slow
def test_components_of_a_sum_add_up(rng):
    """Conditionals of the components sum to the total, in mean and in covariance."""
    Xnew = rng.uniform(0, 4, size=(6, 2))
    parts = [
        pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(m), cov_func=v * pm.gp.cov.ExpQuad(2, ls=ls)
        )
        for m, v, ls in ((0.5, 1.0, 0.7), (-0.2, 2.0, 2.5))
    ]
    total = parts[0] + parts[1]
    with pm.Model() as model:
        total.prior("u", Xu=XU)
        total.likelihood("y", vsgp.Gaussian(sigma=0.3), X=X, y=REAL)
    point = {"u": rng.normal(size=len(XU))}
    mean, cov = total.predict(Xnew, point=point, model=model)
    pieces = [p.predict(Xnew, point=point, given={"gp": total}, model=model) for p in parts]
    np.testing.assert_allclose(pieces[0][0] + pieces[1][0], mean, rtol=1e-9)
    # Given u the components are correlated: cov(f1, f2) = -K1 Kuu^-1 K2.
    K = [np.asarray(p.cov_func(Xnew, XU).eval()) for p in parts]
    Kuu = np.asarray(total.cov_func(XU).eval()) + 3.0 * reference_gp.JITTER * np.eye(len(XU))
    cross = -K[0] @ np.linalg.solve(Kuu, K[1].T)
    np.testing.assert_allclose(pieces[0][1] + pieces[1][1] + cross + cross.T, cov, atol=1e-8)


# --- labels --------------------------------------------------------------------------------------

NAMES = np.array(["blue", "green", "red"])


def test_labels_give_their_names_to_the_dimension():
    for y in (NAMES[LABELS], pd.Series(NAMES[LABELS], dtype="category"), list(NAMES[LABELS])):
        with pm.Model() as model:
            gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=1.0))
            gp.prior("u", Xu=XU, n_outputs=3, output_dims="class")
            gp.likelihood("y", likelihoods.Softmax(3), X=X, y=y)
        assert model.coords["class"] == tuple(NAMES)
        np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, LABELS)


def test_labels_follow_the_coords_of_the_model():
    with pm.Model(coords={"class": NAMES[::-1]}) as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=1.0))
        gp.prior("u", Xu=XU, n_outputs=3, output_dims="class")
        gp.likelihood("y", likelihoods.Softmax(3), X=X, y=NAMES[LABELS])
        with pytest.raises(ValueError, match=r"'pink', .* the classes, \['red', 'green', 'blue'\]"):
            gp.likelihood("z", likelihoods.Softmax(3), X=X, y=["pink"] * N)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, 2 - LABELS)


# --- mistakes ------------------------------------------------------------------------------------


def misuse(lik, y=LABELS, n_outputs=3, two=False):
    with pm.Model():
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=1.0))
        gp.prior("u", Xu=XU, n_outputs=n_outputs)
        observe_functions("y", lik, [gp, gp] if two else [gp], X=X, y=y)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: misuse(likelihoods.Softmax(4)), ValueError, "needs 4 latent functions, but there"),
        (lambda: misuse(vsgp.Poisson()), ValueError, "needs 1 latent function, but there are 3"),
        (lambda: misuse(lambda f, g: pm.Normal.dist(f, pm.math.exp(g))), ValueError, "needs 2"),
        (lambda: misuse(likelihoods.Softmax(6), two=True), ValueError, "the same process twice"),
        (lambda: misuse(likelihoods.Softmax(3), LABELS + 1), ValueError, "from 0 to 2"),
        (lambda: misuse(likelihoods.Softmax(3), LABELS + 0.5), ValueError, "whole number"),
        (lambda: misuse(likelihoods.Softmax(3), ["a", "b"] * 12), ValueError, "y has 2 classes"),
        (lambda: misuse(likelihoods.Softmax(3), n_outputs=0), ValueError, "n_outputs is 0"),
        (
            lambda: misuse(likelihoods.Softmax(3), n_outputs=2.0),
            ValueError,
            "n_outputs is 2.0. Pass a whole",
        ),
        (lambda: likelihoods.Softmax(1), ValueError, "n_classes is 1"),
        (lambda: likelihoods.RobustMax(3, epsilon=0.0), ValueError, "epsilon must be between"),
        (lambda: likelihoods.Ordinal([1.0, 0.0]), ValueError, "must be finite and increase"),
        (lambda: likelihoods.Ordinal(1.0), ValueError, "must be a vector"),
    ],
)
def test_mistakes(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert str(caught.value).count(". ") >= 1


def test_one_process_of_a_list_does_not_predict_alone():
    model = pm.Model()
    with model:
        gps = different_processes()
        observe_functions("y", likelihoods.HeteroskedasticGaussian(), gps, X=X, y=REAL)
        with pytest.raises(ValueError, match=r"is of 2 processes.*vsgp.predictive"):
            gps[0].predictive("y_new", X[:3])
