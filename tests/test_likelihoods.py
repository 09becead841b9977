"""Likelihoods against an independent reference, on every backend."""

import itertools

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference

from marks import long
from modes import RAW
from scipy import integrate, special

import pymc_vsgp.likelihoods as likelihoods

from pymc_vsgp.likelihoods import Custom, as_likelihood
from pymc_vsgp.likelihoods.links import safe_exp

MU = [-8.0, -2.3, 0.0, 1.7, 8.0]
GAMMA = [1e-4, 1e-2, 1.0, 10.0, 100.0]


@dataclass(eq=False)  # each is itself, so that what is compiled for it is kept
class Case:
    """A family: what to build, its reference, and the grid of observations and parameters."""

    make: callable
    logpdf: callable
    y: list
    params: dict = field(default_factory=dict)
    center: callable = lambda y: 0.0
    width: float = 1.0
    reach: float = 30.0

    def grid(self, mu=MU, gamma=GAMMA):
        """Every combination, as columns mu, gamma, y and one for each parameter."""
        rows = itertools.product(mu, gamma, self.y, *self.params.values())
        return [np.array(column) for column in zip(*rows, strict=True)]

    def at(self, y, values):
        """Reference log density as a function of f."""
        return lambda f: self.logpdf(f, y, **dict(zip(self.params, values, strict=True)))

    def symbols(self):
        """Inputs mu, gamma, y, parameters, and the likelihood of them."""
        names = ["mu", "gamma", "y", *self.params]
        mu, gamma, y, *params = (pt.dvector(name) for name in names)
        return [mu, gamma, y, *params], self.make(**dict(zip(self.params, params, strict=True)))


def linked(family, link):
    """Likelihood and reference with a link."""
    make = getattr(likelihoods, family)
    logpdf = getattr(reference, family.lower())
    return (
        lambda **params: make(link=link, **params),
        lambda f, y, **params: logpdf(f, y, link=link, **params),
    )


EXPOSURE = {"exposure": [0.4, 25.0]}
CASES = {
    "Gaussian": Case(
        likelihoods.Gaussian, reference.gaussian, [-1.2, 3.0], {"sigma": [0.1, 2.0]}, reach=12.0
    ),
    "LogNormal": Case(
        likelihoods.LogNormal, reference.log_normal, [0.3, 40.0], {"sigma": [0.1, 2.0]}, reach=12.0
    ),
    "StudentT": Case(
        likelihoods.StudentT,
        reference.student_t,
        [-0.7, 4.0],
        {"nu": [1.0, 4.0, 30.0], "sigma": [0.1, 1.5]},
        center=lambda y: y,
        width=0.1,
    ),
    "Gumbel": Case(
        likelihoods.Gumbel,
        reference.gumbel,
        [-0.7, 4.0],
        {"beta": [0.6, 2.0]},
        center=lambda y: y,
    ),
    **{
        f"Bernoulli-{link}": Case(*linked("Bernoulli", link), [0.0, 1.0])
        for link in ("logit", "probit", "cloglog")
    },
    **{
        f"Binomial-{link}": Case(*linked("Binomial", link), [0.0, 3.0, 7.0], {"n": [7.0, 40.0]})
        for link in ("logit", "probit", "cloglog")
    },
    **{
        f"Poisson-{link}": Case(*linked("Poisson", link), [0.0, 1.0, 30.0], EXPOSURE)
        for link in ("log", "square", "softplus")
    },
    "NegativeBinomial": Case(
        likelihoods.NegativeBinomial,
        reference.negative_binomial,
        [0.0, 2.0, 60.0],
        {"alpha": [0.5, 12.0]} | EXPOSURE,
    ),
    "ZeroInflatedPoisson": Case(
        likelihoods.ZeroInflatedPoisson,
        reference.zero_inflated_poisson,
        [0.0, 4.0],
        {"psi": [0.05, 0.7, 0.999]} | EXPOSURE,
    ),
    "ZeroInflatedNegativeBinomial": Case(
        likelihoods.ZeroInflatedNegativeBinomial,
        reference.zero_inflated_negative_binomial,
        [0.0, 4.0],
        {"psi": [0.05, 0.999], "alpha": [0.3, 1.5, 12.0]} | EXPOSURE,
    ),
    "Exponential": Case(likelihoods.Exponential, reference.exponential, [0.02, 1.0, 70.0]),
    "Gamma": Case(likelihoods.Gamma, reference.gamma, [0.02, 70.0], {"alpha": [0.6, 5.0]}),
    "Weibull": Case(
        likelihoods.Weibull,
        reference.weibull,
        [0.1, 9.0],
        {"alpha": [0.7, 1.8], "censored": [0.0, 1.0]},
    ),
    "Beta": Case(
        likelihoods.Beta,
        reference.beta,
        [0.003, 0.4, 0.95],
        {"nu": [0.5, 10.0, 1000.0, 1e5]},
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_family_of_one_function_has_a_case():
    families = [getattr(likelihoods, name) for name in likelihoods.__all__]
    one = {c.__name__ for c in families if isinstance(c, type) and c.n_latent == 1}
    of_their_own = {"Custom", "Likelihood", "Ordinal", "PoissonProcess", "RobustMax", "Softmax"}
    assert one - of_their_own == {name.split("-")[0] for name in CASES}


def close(actual, wanted, tolerance):
    """Absolute error, or relative where the value is above 1."""
    error = np.abs(actual - wanted) / np.maximum(1.0, np.abs(wanted))
    assert np.all(np.isfinite(actual))
    assert error.max() < tolerance, f"{error.max():.1e} at row {error.argmax()}"


def graphs_of(case, predictive=True):
    """Inputs; value of expected_logp, log_predictive, and gradients of the former."""
    inputs, lik = case.symbols()
    wrt = [inputs[0], inputs[1], *inputs[3:]]
    value = lik.expected_logp(*inputs[:3])
    grads = pt.grad(value.sum(), wrt, disconnected_inputs="ignore")
    logs = [lik.log_predictive(*inputs[:3])] if predictive else []
    return inputs, [value, *logs, *grads]


@cache
def compiled(case):
    """All of it in one function."""
    inputs, outputs = graphs_of(case)
    return pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")


@pytest.mark.slow
@each_case
def test_against_reference(case):
    grid = case.grid()
    value, predictive, d_mu, d_gamma, *d_params = compiled(case)(*grid)
    expected, logs = [], []
    for mu, gamma, y, *params in zip(*grid, strict=True):
        around = {"center": case.center(y), "width": case.width}
        logp = case.at(y, params)
        expected.append(reference.expected_logp(logp, mu, gamma, reach=case.reach, **around))
        logs.append(reference.log_predictive(logp, mu, gamma, **around))
    expected = np.array(expected).T
    close(value, expected[0], 1e-6)
    close(d_mu, expected[1], 1e-6)
    close(d_gamma, expected[2], 1e-6)
    close(predictive, np.array(logs), 1e-6)


@each_case
def test_parameter_gradients(case):
    grid = case.grid(mu=[-2.3, 1.7], gamma=[1e-2, 10.0])
    function = compiled(case)
    gradients = function(*grid)[4:]
    for k, (name, gradient) in enumerate(zip(case.params, gradients, strict=True)):
        if name in ("n", "censored"):  # data
            continue
        step = 1e-6 * grid[3 + k]
        up, down = ([*grid[: 3 + k], grid[3 + k] + s, *grid[4 + k :]] for s in (step, -step))
        close(gradient, (function(*up)[0] - function(*down)[0]) / (2 * step), 1e-5)


@each_case
def test_finite_at_zero_variance(case):
    grid = case.grid(mu=[-2.3, 1.7], gamma=[0.0, 1e-12])
    value, predictive, *gradients = compiled(case)(*grid)
    point = [case.at(y, params)(mu) for mu, _, y, *params in zip(*grid, strict=True)]
    close(value, np.array(point), 1e-6)
    close(predictive, np.array(point), 1e-6)
    assert all(np.all(np.isfinite(g)) for g in gradients)


@each_case
def test_finite_at_huge_variance(case):
    # As an optimiser meets them before it has found a scale.
    grid = case.grid(mu=[-50.0, 0.0, 50.0], gamma=[1e3, 1e5])
    value, _, *gradients = compiled(case)(*grid)
    for output in (value, *gradients):
        assert np.all(np.isfinite(output))


@pytest.mark.parametrize(
    ("lik", "simpler"),
    [
        (
            likelihoods.ZeroInflatedNegativeBinomial(1.0, 1.3, 2.0),
            likelihoods.NegativeBinomial(1.3, 2.0),
        ),
        (
            likelihoods.ZeroInflatedNegativeBinomial(0.4, 1e12, 2.0),
            likelihoods.ZeroInflatedPoisson(0.4, 2.0),
        ),
    ],
    ids=["no more zeros", "no overdispersion"],
)
def test_a_zero_inflated_family_has_simpler_ones_as_limits(lik, simpler):
    mu, y = np.tile(np.linspace(-5.0, 5.0, 11), 2), np.repeat([0.0, 3.0], 11)
    gamma = pt.as_tensor(np.full(22, 2.0))
    for method in ("expected_logp", "log_predictive"):
        found, wanted = (getattr(each, method)(mu, gamma, y) for each in (lik, simpler))
        close(*(v.eval(mode="FAST_COMPILE") for v in (found, wanted)), 1e-6)


def laplace(f, y, b):
    return -np.abs(y - f) / b - np.log(2.0 * b)


# Families with the units of f: made for a unit, and the log density at 1. Of two functions the
# second is the log scale.
IN_UNITS = {
    "StudentT": (
        lambda s: likelihoods.StudentT(4.0, 0.3 * s),
        lambda f, y: reference.student_t(f, y, 4.0, 0.3),
    ),
    "Gumbel": (lambda s: likelihoods.Gumbel(0.3 * s), lambda f, y: reference.gumbel(f, y, 0.3)),
    "Laplace": (lambda s: Custom(lambda f: pm.Laplace.dist(f, s)), lambda f, y: laplace(f, y, 1.0)),
    "HeteroskedasticStudentT": (lambda s: likelihoods.HeteroskedasticStudentT(4.0), None),
    "Laplace of two": (lambda s: Custom(lambda f, g: pm.Laplace.dist(f, pm.math.exp(g))), None),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [*(f for f in IN_UNITS if f != "Laplace of two"), *long("Laplace of two")]
)
def test_units_move_the_log_density_and_nothing_else(family):
    """Variances of f had a floor of 1e-14, in whatever units."""
    make, logpdf = IN_UNITS[family]
    kind = pt.dvector if logpdf else pt.dmatrix
    unit, mu, gamma, y = pt.dscalar("unit"), kind("mu"), kind("gamma"), pt.dvector("y")
    lik = make(unit)
    values = lik.expected_logp(mu, gamma, y), lik.log_predictive(mu, gamma, y)
    slopes = [d for v in values for d in pt.grad(v.sum(), [mu, gamma])]
    function = pytensor.function(
        [unit, mu, gamma, y], [*values, *slopes], mode="FAST_COMPILE", on_unused_input="ignore"
    )
    center = np.array([1.0, 2.2, 3.1, 2.9, 4.0, 3.0])
    # The least that there is near inducing points; none, and a rounding error below it.
    spread = np.array([1e-12, 1e-4, 0.1, 1.0, 0.0, -1e-17])
    seen = center + np.array([0.5, -0.4, 0.3, 2.0, -0.2, 0.7])

    def at(s):
        m, v, units = s * center, s**2 * spread, s
        if logpdf is None:
            m, v = np.c_[m, np.log(s) - 0.1 * center], np.c_[v, spread[::-1]]
            units = np.array([s, 1.0])
        expected, predictive, *slopes = function(s, m, v, s * seen)
        powers = [units, units**2] * 2
        moved = [np.log(s) + expected, np.log(s) + predictive]
        return moved, [d * p for d, p in zip(slopes, powers, strict=True)]

    values, slopes = at(1.0)
    for s in (1e-10, 1e-6, 1e6, 1e10):
        found, found_slopes = at(s)
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-9)
        for d, wanted in zip(found_slopes, slopes, strict=True):
            np.testing.assert_allclose(d, wanted, rtol=2e-5, atol=1e-7)
    # A rule without a bend misses a kink.
    tolerance = 1e-3 if family == "Laplace" else 1e-6
    for i in np.flatnonzero(spread > 1e-12) if logpdf else []:
        given = center[i], np.sqrt(spread[i]), seen[i]
        assert abs(values[0][i] - integral(logpdf, *given)) < tolerance
        density = integral(lambda *at: np.exp(logpdf(*at)), *given)
        assert abs(values[1][i] - np.log(density)) < tolerance


def integral(fn, mu, sd, y):
    """Of a function of f and y, against N(mu, sd)."""
    bend = np.clip((y - mu) / sd, -8.9, 8.9)
    return integrate.quad(
        lambda t: fn(mu + sd * t, y) * np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi),
        *(-9.0, 9.0),
        points=[0.0, bend],
        epsabs=1e-10,
    )[0]


def test_safe_exp():
    x = pt.dvector("x")
    value = safe_exp(x)
    at = np.array([-1e4, 0.0, 199.0, 200.0, 210.0, 1e6])
    v, slope = pytensor.function([x], [value, pt.grad(value.sum(), x)], mode="FAST_COMPILE")(at)
    np.testing.assert_allclose(
        v[:5], np.exp([-np.inf, 0.0, 199.0, 200.0, 200.0]) * [1, 1, 1, 1, 11]
    )
    np.testing.assert_allclose(slope[[0, 1, 2, 4, 5]], np.exp([-np.inf, 0.0, 199.0, 200.0, 200.0]))
    assert value.dtype == "float64" and np.isfinite(v[5]) and 0 < slope[3] < np.inf


@each_case
def test_log_prob_and_draws(case):
    inputs, lik = case.symbols()
    f, _, y, *params = inputs
    grid = case.grid(mu=[-1.1, 0.6], gamma=[1.0])
    rv = lik.dist(f)
    outputs = [lik.log_prob(f, y), pm.logp(rv, y), rv]
    compiled = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    ours, theirs, draw = compiled(*grid)
    keep = grid[3 + list(case.params).index("censored")] == 0 if "censored" in case.params else ...
    close(ours[keep], theirs[keep], 1e-8)
    assert draw.shape == grid[0].shape


@pytest.mark.parametrize(
    "lik",
    [
        likelihoods.Gaussian(0.5),
        likelihoods.StudentT(10, 0.5),
        likelihoods.Gumbel(0.7),
        likelihoods.Bernoulli("cloglog"),
        likelihoods.Binomial(8, "probit"),
        likelihoods.Poisson(3.0, "square"),
        likelihoods.NegativeBinomial(4.0, exposure=2.0),
        likelihoods.ZeroInflatedPoisson(0.4),
        likelihoods.ZeroInflatedNegativeBinomial(0.4, 2.0),
        likelihoods.Exponential(),
        likelihoods.Gamma(3.0),
        likelihoods.LogNormal(0.3),
        likelihoods.Beta(5.0),
        likelihoods.Weibull(1.5),
    ],
    ids=repr,
)
def test_mean_of_draws(lik):
    f = np.full(20_000, 0.4)
    draws = pm.draw(lik.dist(f), random_seed=1)
    mean = float(lik.conditional_mean(pt.as_tensor(np.float64(0.4))).eval().mean())
    assert abs(draws.mean() - mean) < 5 * draws.std() / np.sqrt(f.size)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    at = lik.conditional_mean(pt.as_tensor(0.4 + 0.5 * nodes)).eval(mode="FAST_COMPILE")
    got = pt.as_tensor(lik.mean(np.float64(0.4), np.float64(0.25))).eval(mode="FAST_COMPILE")
    np.testing.assert_allclose(got, at @ weights / weights.sum(), rtol=1e-7)


@pytest.mark.parametrize(
    ("lik", "y", "match"),
    [
        (likelihoods.Gaussian(1), [0.0, np.nan], "row 1 is nan"),
        (likelihoods.Gumbel(1), [np.inf], "row 0 is inf"),
        (likelihoods.Bernoulli(), [0, 1, 2], "row 2 is 2"),
        (likelihoods.Binomial(3), [3, 4], "row 1 is 4"),
        (likelihoods.Poisson(), [1.0, 0.5], "row 1 is 0.5"),
        (likelihoods.NegativeBinomial(1), [-1], "row 0 is -1"),
        (likelihoods.ZeroInflatedPoisson(0.5), [np.inf], "row 0 is inf"),
        (likelihoods.ZeroInflatedNegativeBinomial(0.5, 1), [0, 1.5], "row 1 is 1.5"),
        (likelihoods.Exponential(), [-0.1], "0 or more"),
        (likelihoods.Gamma(1), [0.0], "positive"),
        (likelihoods.LogNormal(1), [0.0], "positive"),
        (likelihoods.Weibull(1), [-2.0], "positive"),
        (likelihoods.Beta(1), [1.0], "below 1"),
        (Custom(lambda f: pm.Poisson.dist(pm.math.exp(f))), [0.5], "whole"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_support(lik, y, match):
    with pytest.raises(ValueError, match=match):
        lik.check_observed(np.array(y))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: likelihoods.Gaussian(0.0), "sigma must be positive"),
        (lambda: likelihoods.Gumbel(-1.0), "beta must be positive"),
        (lambda: likelihoods.Poisson(exposure=[1.0, 0.0]), "exposure must be .*got 0 in row 1"),
        (lambda: likelihoods.Binomial(2.5), "whole number"),
        (lambda: likelihoods.ZeroInflatedPoisson(1.1), "at most 1"),
        (lambda: likelihoods.ZeroInflatedNegativeBinomial(0.0, 1.0), "at most 1"),
        (lambda: likelihoods.ZeroInflatedNegativeBinomial(0.5, 0.0), "alpha must be positive"),
        (lambda: likelihoods.Bernoulli("cauchit"), "cloglog"),
        (lambda: likelihoods.Poisson(link="identity"), "softplus"),
        (lambda: likelihoods.Gaussian(1.0).replace(nu=1.0), "no parameter 'nu'"),
    ],
)
def test_bad_parameters(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize(
    ("obj", "match"),
    [
        (likelihoods.Poisson, "parentheses"),
        ("poisson", "str"),
        (lambda f: 2.0, "returned float"),
        (lambda f: pm.MvNormal.dist(f, np.eye(2)), "multivariate"),
    ],
)
def test_not_a_likelihood(obj, match):
    with pytest.raises(TypeError, match=match):
        as_likelihood(obj)


@pytest.mark.slow
def test_custom_equals_family():
    with pm.Model():
        alpha = pm.Gamma("alpha", 2, 1)
        custom = as_likelihood(lambda f: pm.NegativeBinomial.dist(mu=pm.math.exp(f), alpha=alpha))
    assert list(custom.params.values()) == [alpha]  # once, however often PyMC uses it
    value = pt.dscalar("value")
    custom = custom.replace(**dict.fromkeys(custom.params, value))
    family = likelihoods.NegativeBinomial(value)
    f = np.array([-1.0, 0.3, 2.0])
    g, y = np.array([0.1, 1.0, 4.0]), np.array([0.0, 2.0, 9.0])
    pairs = [(lik.expected_logp(f, g, y), lik.log_predictive(f, g, y)) for lik in (custom, family)]
    flat = [out for pair in pairs for out in pair]
    flat += [pt.grad(pair[0].sum(), value) for pair in pairs]
    a, b, c, d, e, h = pytensor.function([value], flat, mode="FAST_COMPILE")(1.7)
    close(a, c, 1e-6)
    close(b, d, 1e-6)
    close(e, h, 1e-6)


def test_custom_sees_inside_censored():
    with pm.Model():
        sigma = pm.HalfNormal("sigma")
        lik = Custom(lambda f: pm.Censored.dist(pm.Normal.dist(f, sigma), lower=0.0, upper=None))
    s = pt.dscalar("s")
    lik = lik.replace(**dict.fromkeys(lik.params, s))
    slope = pt.grad(lik.log_prob(pt.as_tensor(np.zeros(1)), np.ones(1)).sum(), s)
    assert slope.eval({s: 2.0}) == pytest.approx(-1 / 2 + 1 / 8)


# numba and C compile loop by loop, some seconds a family: those that a quadrature of our own, a
# function of our own or a large series is part of. The others are Ops of PyTensor one by one.
BY_LOOPS = [
    "StudentT",
    "Bernoulli-probit",
    "Bernoulli-cloglog",
    "Poisson-softplus",
    "NegativeBinomial",
    "ZeroInflatedPoisson",
    "Beta",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "names"),
    [
        pytest.param("CVM", ["Bernoulli-probit"], marks=pytest.mark.long),
        ("NUMBA", BY_LOOPS),
        pytest.param(
            *("NUMBA", ["ZeroInflatedNegativeBinomial"]),
            marks=[
                pytest.mark.long,
                # Before any simplification, as no model has it.
                pytest.mark.filterwarnings("ignore:Loop fusion failed:UserWarning"),
            ],
        ),
        pytest.param("JAX", CASES, marks=pytest.mark.long),
    ],
    ids=["CVM", "NUMBA", "NUMBA, zero-inflated", "JAX"],
)
def test_backends_agree(mode, names, request):
    """Many families in one function of each backend."""
    if mode == "JAX":
        pytest.importorskip("jax")
    elif mode == "CVM":
        request.getfixturevalue("c_compiler")
    cases = [CASES[name] for name in names]
    # Compilers take longest for log_predictive.
    graphs = [graphs_of(case, predictive=mode == "JAX") for case in cases]
    inputs, outputs = ([v for each in graphs for v in each[i]] for i in (0, 1))
    grids = [[column[::7] for column in case.grid()] for case in cases]
    function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
    found = iter(function(*(column for grid in grids for column in grid)))
    for case, grid in zip(cases, grids, strict=True):
        ours = compiled(case)(*grid)
        if mode != "JAX":
            del ours[1]
        for each in ours:
            close(np.asarray(next(found)), each, 1e-8)


def test_large_dispersion_is_the_poisson_limit():
    alpha = np.array([1e4, 1e6, 1e8])
    for mu, gamma in ((-3.0, 1e-4), (0.0, 0.01), (2.0, 1.0)):
        got = likelihoods.NegativeBinomial(alpha).expected_logp(mu, gamma, 3.0)
        wanted = [
            reference.expected_logp(
                lambda f, a=a: reference.negative_binomial(f, 3.0, a, 1.0), mu, gamma
            )[0]
            for a in alpha
        ]
        np.testing.assert_allclose(got.eval(mode="FAST_COMPILE"), wanted, rtol=1e-6)


def test_predictive_density_of_outliers():
    """Far out the t's own tail takes over from the normal of f, whatever their scales are."""
    mu, gamma, y, nu, sigma = inputs = [pt.dvector() for _ in range(5)]
    logs = likelihoods.StudentT(nu, sigma).log_predictive(mu, gamma, y)
    grid = itertools.product([0.0], [0.01, 1.0, 1e4], [0.3, 20.0, 1e3], [1.0, 30.0, 1e3], [0.1])
    rows = [np.array(c) for c in zip(*grid, strict=True)]
    got = pytensor.function(inputs, logs, mode="FAST_COMPILE")(*rows)
    x, step = np.linspace(-60, 8, 200_001, retstep=True)  # log precision, of which t is a mixture
    for value, m, g, at, n, s in zip(got, *rows, strict=True):
        variance = g + s**2 * np.exp(-x)
        h = n / 2 * (np.log(n / 2) + x - np.exp(x)) - special.gammaln(n / 2)
        h -= (np.log(2 * np.pi * variance) + (at - m) ** 2 / variance) / 2
        np.testing.assert_allclose(value, special.logsumexp(h) + np.log(step), rtol=1e-8)


@pytest.mark.parametrize("gamma", [1.0, 1e4])
def test_predictive_probability_of_huge_counts(gamma):
    """The count says the rate, so that its probability is the density of the log rate over y."""
    y = np.array([1e6, 1e9])
    got = likelihoods.Poisson(2.0).log_predictive(6.0, gamma, y).eval(mode="FAST_COMPILE")
    f = np.log(y / 2.0)
    wanted = -(np.log(2 * np.pi * gamma) + (f - 6.0) ** 2 / gamma) / 2 - np.log(y)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("link", ["logit", "probit", "cloglog"])
def test_no_trials_say_nothing(link):
    n, y = np.array([0.0, 3.0]), np.array([0.0, 2.0])
    family = likelihoods.Binomial(n, link)
    family.check_params()
    family.check_observed(y)
    found = family.expected_logp(np.full(2, 0.4), np.full(2, 1.3), y).eval()
    alone = likelihoods.Binomial(3, link).expected_logp(0.4, 1.3, 2.0).eval()
    np.testing.assert_allclose(found, [0.0, alone], atol=1e-12)


@pytest.mark.parametrize(
    "mode", [RAW, pytest.param("NUMBA", marks=pytest.mark.slow)], ids=["python", "numba"]
)
@pytest.mark.parametrize("link", ["logit", "probit"])
def test_numbers_are_not_made_arrays(link, mode):
    """Constants too, which are a graph without inputs."""
    family = likelihoods.Bernoulli(link)
    for method in ("expected_logp", "log_predictive"):
        found = getattr(family, method)(0.4, 1.3, 1).eval(mode=mode)
        several = getattr(family, method)(np.full(2, 0.4), np.full(2, 1.3), np.ones(2)).eval()
        assert found.shape == ()
        np.testing.assert_allclose(np.full(2, found), several)
