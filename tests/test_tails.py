"""Distribution functions in the tails: what callables say of censored and truncated data."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW
from scipy import integrate, special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE
from pymc_vsgp.ops.tails import log_betainc, log_gammainc, log_gammaincc

MODES = {"RAW": RAW, "ONCE": ONCE, "NUMBA": "NUMBA", "JAX": "JAX"}
AT = np.array([-30.0, -15.0, -5.0, -1.0, 0.0, 1.0, 5.0, 10.0, 15.0])


def log_between(f, sd, low, high):
    """Log of the probability of a normal between two limits."""
    a, b = (low - f) / sd, (high - f) / sd
    a, b = np.where(a + b > 0.0, -b, a), np.where(a + b > 0.0, -a, b)  # the left tail has digits
    return special.log_ndtr(b) + np.log(-np.expm1(special.log_ndtr(a) - special.log_ndtr(b)))


def log_normal(f, sd, y):
    return -(((y - f) / sd) ** 2) / 2.0 - np.log(sd * np.sqrt(2.0 * np.pi))


UPPER = np.where(np.arange(9) % 2, 2.0, np.inf)
# Callables of f and a standard deviation, observations, and the log density.
OF_NORMALS = {
    "positive": (
        lambda f, sd: pm.TruncatedNormal.dist(f, sd, lower=0.0),
        lambda f, sd: log_normal(f, sd, 1.5) - log_between(f, sd, 0.0, np.inf),
    ),
    "below": (
        lambda f, sd: pm.Truncated.dist(pm.Normal.dist(f, sd), upper=2.0),
        lambda f, sd: log_normal(f, sd, 1.5) - log_between(f, sd, -np.inf, 2.0),
    ),
    "between": (
        lambda f, sd: pm.TruncatedNormal.dist(f, sd, lower=0.0, upper=2.0),
        lambda f, sd: log_normal(f, sd, 1.5) - log_between(f, sd, 0.0, 2.0),
    ),
    "between, by row": (
        lambda f, sd: pm.TruncatedNormal.dist(f, sd, lower=0.0, upper=UPPER),
        lambda f, sd: log_normal(f, sd, 1.5) - log_between(f, sd, 0.0, UPPER),
    ),
    "of a logarithm": (
        lambda f, sd: pm.Truncated.dist(pm.LogNormal.dist(f, sd), lower=1.0),
        lambda f, sd: (
            log_normal(f, sd, np.log(1.5)) - np.log(1.5) - log_between(f, sd, 0.0, np.inf)
        ),
    ),
    "right-censored": (
        lambda f, sd: pm.Censored.dist(pm.LogNormal.dist(f, sd), None, 1.5),
        lambda f, sd: log_between(f, sd, np.log(1.5), np.inf),
    ),
    "left-censored": (
        lambda f, sd: pm.Censored.dist(pm.Normal.dist(f, sd), 1.5, None),
        lambda f, sd: log_between(f, sd, -np.inf, 1.5),
    ),
    "skewed": (
        lambda f, sd: pm.ExGaussian.dist(f, sd, nu=np.float64(1.5)),
        lambda f, sd: (
            (f - 1.5) / 1.5
            + (sd / 1.5) ** 2 / 2.0
            - np.log(1.5)
            + log_between(f + sd**2 / 1.5, sd, -np.inf, 1.5)
        ),
    ),
    "in a mixture": (
        lambda f, sd: pm.Mixture.dist(
            [0.3, 0.7], [pm.TruncatedNormal.dist(f, sd, lower=0.0), pm.Normal.dist(f, sd)]
        ),
        lambda f, sd: (
            log_normal(f, sd, 1.5)
            + np.logaddexp(np.log(0.3) - log_between(f, sd, 0.0, np.inf), np.log(0.7))
        ),
    ),
}


@pytest.mark.parametrize("mode", ["RAW", "FAST_COMPILE", *long("NUMBA", "JAX")])
@pytest.mark.parametrize("name", OF_NORMALS)
def test_slopes_of_normal_tails(name, mode):
    """Those of PyMC were nan far away: the stage of what is truncated or censored had none."""
    if mode == "JAX":
        pytest.importorskip("jax")
    make, known = OF_NORMALS[name]
    f, sd = pt.vector("f"), pt.scalar("sd")
    lik = vsgp.Custom(lambda f: make(f, sd))
    logp = lik.log_prob(f, pt.constant(np.full(9, 1.5)))
    slopes = pt.grad(logp.sum(), [f, sd])
    evaluate = pytensor.function([f, sd], [logp, *slopes], mode=RAW if mode == "RAW" else mode)
    at, width, e = np.append(AT[:-1], 30.0), 0.7, 1e-5
    found, by_f, by_width = evaluate(at, width)
    np.testing.assert_allclose(found, known(at, width), rtol=1e-9, atol=1e-12)
    numeric = (known(at + e, width) - known(at - e, width)) / (2.0 * e)
    np.testing.assert_allclose(by_f, numeric, rtol=1e-6, atol=1e-7)
    numeric = (known(at, width + e) - known(at, width - e)).sum() / (2.0 * e)
    np.testing.assert_allclose(by_width, numeric, rtol=1e-6)


def upper_gamma(a, x):
    """Log of the regularized incomplete gamma function, by quadrature of what is left of e^-x."""
    if x < 1.0:
        return np.log1p(-np.exp(lower_gamma(a, x)))
    rest = integrate.quad(
        lambda s: (1.0 + s / x) ** (a - 1.0) * np.exp(-s), 0.0, 100.0, epsrel=1e-13
    )
    return (a - 1.0) * np.log(x) - x - special.gammaln(a) + np.log(rest[0])


def lower_gamma(a, x):
    if x >= 1.0:
        return np.log1p(-np.exp(upper_gamma(a, x)))
    # Of s**a, as that of s may have a pole at 0.
    rest = integrate.quad(lambda v: np.exp(-x * v ** (1.0 / a)), 0.0, 1.0, epsrel=1e-13)
    return a * np.log(x) - special.gammaln(a + 1.0) + np.log(rest[0])


def lower_beta(a, b, x, rest):
    """Log of the regularized incomplete beta function. ``rest`` is ``1 - x``."""
    if x > 0.5:
        return np.log1p(-np.exp(lower_beta(b, a, rest, x)))
    part = integrate.quad(lambda v: (1.0 - x * v ** (1.0 / a)) ** (b - 1.0), 0.0, 1.0, epsrel=1e-13)
    return a * np.log(x) - np.log(a) - special.betaln(a, b) + np.log(part[0])


FUNCTIONS = {
    "gammainc": (log_gammainc, lower_gamma, 1e3),
    "gammaincc": (log_gammaincc, upper_gamma, 1e13),
    "betainc": (
        lambda a, x: log_betainc(a, np.float64(2.5), x),
        lambda a, x: lower_beta(a, 2.5, x, 1.0 - x),
        0.45,
    ),
}


@pytest.mark.parametrize("mode", ["RAW", *long("ONCE", "NUMBA", "JAX")])
@pytest.mark.parametrize("a", [0.3, 1.0, 4.0, 80.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_logarithms_of_incomplete_functions(name, a, mode):
    """And their slopes, for arguments of 280 decades."""
    if mode == "JAX":
        pytest.importorskip("jax")
    make, known, most = FUNCTIONS[name]
    x = np.geomspace(1e-280, most, 57)
    v = pt.vector("x")
    out = make(np.float64(a), v)
    found, slopes = pytensor.function([v], [out, pt.grad(out.sum(), v)], mode=MODES[mode])(x)
    expected = np.array([known(a, x) for x in x])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    numeric = slope(lambda d: np.array([known(a, x) for x in x * np.exp(d)]))
    np.testing.assert_allclose(slopes * x, numeric, rtol=1e-6, atol=1e-6)


def poisson(k, f, s):
    return k * (f + np.log(s)) - s * np.exp(f) - special.gammaln(k + 1.0)


def negative_binomial(k, f, alpha):
    choose = special.gammaln(k + alpha) - special.gammaln(k + 1.0) - special.gammaln(alpha)
    return choose - alpha * np.log1p(np.exp(f) / alpha) + k * (f - np.log(alpha + np.exp(f)))


def binomial(k, f, s):
    f = f * s
    choose = special.gammaln(21.0) - special.gammaln(k + 1.0) - special.gammaln(21.0 - k)
    return choose + k * special.log_expit(f) + (20.0 - k) * special.log_expit(-f)


def log_sum(pmf, f, s, first, last):
    return special.logsumexp(pmf(np.arange(first, last + 1.0)[:, None], f, s), axis=0)


def at_most(pmf, f, s, k):
    return log_sum(pmf, f, s, 0, k)


def at_least(pmf, f, s, k):
    """Log of the probability of k or more, of whichever sum is short."""
    most = 20 if pmf is binomial else k + 700
    below = at_most(pmf, f, s, k - 1)
    return np.where(below > -0.5, log_sum(pmf, f, s, k, most), np.log1p(-np.exp(below)))


def by_row(of):
    return lambda v, f, s: np.array([of(v, x, s) for x in f])


def upper_weibull(v, f, s):
    return -((v * np.exp(-f)) ** s)


def lower_beta_of(v, f, s):
    return lower_beta(s * special.expit(f), s * special.expit(-f), v, 1.0 - v)


def upper_beta_of(v, f, s):
    return lower_beta(s * special.expit(-f), s * special.expit(f), 1.0 - v, v)


def lower_t(v, f, s):
    z = (v - f) ** 2
    half = np.log(0.5) + lower_beta(s / 2.0, 0.5, s / (s + z), z / (s + z))
    return half if v < f else np.log1p(-np.exp(half))


def gamma_density(v, f, s):
    rate = s * np.exp(-f)
    return s * np.log(rate) + (s - 1.0) * np.log(v) - v * rate - special.gammaln(s)


def inverse_density(v, f, s):
    return s * f - (s + 1.0) * np.log(v) - np.exp(f) / v - special.gammaln(s)


def beta_density(v, f, s):
    a, b = s * special.expit(f), s * special.expit(-f)
    return (a - 1.0) * np.log(v) + (b - 1.0) * np.log1p(-v) - special.betaln(a, b)


def weibull_density(v, f, s):
    return np.log(s) - f + (s - 1.0) * (np.log(v) - f) + upper_weibull(v, f, s)


def logistic_density(v, f, s):
    return special.log_expit((v - f) / s) + special.log_expit((f - v) / s) - np.log(s)


exp = pm.math.exp
# A distribution of f and a second parameter; the logs of its density and of both tails.
CONTINUOUS = {
    "gamma": (
        lambda f, s: pm.Gamma.dist(s, s / exp(f)),
        gamma_density,
        by_row(lambda v, f, s: lower_gamma(s, v * s * np.exp(-f))),
        by_row(lambda v, f, s: upper_gamma(s, v * s * np.exp(-f))),
    ),
    "inverse gamma": (
        lambda f, s: pm.InverseGamma.dist(s, exp(f)),
        inverse_density,
        by_row(lambda v, f, s: upper_gamma(s, np.exp(f) / v)),
        by_row(lambda v, f, s: lower_gamma(s, np.exp(f) / v)),
    ),
    "weibull": (
        lambda f, s: pm.Weibull.dist(s, exp(f)),
        weibull_density,
        lambda v, f, s: np.log(-np.expm1(upper_weibull(v, f, s))),
        upper_weibull,
    ),
    "exponential": (
        lambda f, s: pm.Exponential.dist(scale=exp(f) * s),
        lambda v, f, s: weibull_density(v, f + np.log(s), 1.0),
        lambda v, f, s: np.log(-np.expm1(upper_weibull(v, f + np.log(s), 1.0))),
        lambda v, f, s: upper_weibull(v, f + np.log(s), 1.0),
    ),
    "beta": (
        lambda f, s: pm.Beta.dist(mu=pm.math.sigmoid(f), nu=s),
        beta_density,
        by_row(lower_beta_of),
        by_row(upper_beta_of),
    ),
    "logistic": (
        lambda f, s: pm.Logistic.dist(f, s),
        logistic_density,
        lambda v, f, s: special.log_expit((v - f) / s),
        lambda v, f, s: special.log_expit((f - v) / s),
    ),
    "student": (
        lambda f, s: pm.StudentT.dist(s, mu=f, sigma=1.0),
        lambda v, f, s: stats.t.logpdf(v, s, f),
        by_row(lower_t),
        by_row(lambda v, f, s: lower_t(-v, -f, s)),
    ),
    "log-normal": (
        lambda f, s: pm.LogNormal.dist(f, s),
        lambda v, f, s: log_normal(f, s, np.log(v)) - np.log(v),
        lambda v, f, s: special.log_ndtr((np.log(v) - f) / s),
        lambda v, f, s: special.log_ndtr((f - np.log(v)) / s),
    ),
}
COUNTS = {
    "poisson": (lambda f, s: pm.Poisson.dist(exp(f) * s), poisson),
    "negative binomial": (
        lambda f, s: pm.NegativeBinomial.dist(mu=exp(f), alpha=s),
        negative_binomial,
    ),
    "binomial": (lambda f, s: pm.Binomial.dist(n=20, logit_p=f * s), binomial),
}


def difference(larger, smaller):
    return larger + np.log(-np.expm1(smaller - larger))


def between(below, above, f, s):
    """Log of the probability of 0.3 to 0.8, of the tail that has the digits."""
    left = difference(below(0.8, f, s), below(0.3, f, s))
    return np.where(
        below(0.3, f, s) < np.log(0.5), left, difference(above(0.3, f, s), above(0.8, f, s))
    )


WAYS = {
    "at the upper limit": lambda d, low, high: pm.Censored.dist(d, None, high),
    "at the lower limit": lambda d, low, high: pm.Censored.dist(d, low, None),
    "above": lambda d, low, high: pm.Truncated.dist(d, lower=low),
    "below": lambda d, low, high: pm.Truncated.dist(d, upper=high),
    "between": lambda d, low, high: pm.Truncated.dist(d, lower=low, upper=high),
}
# Makes a distribution of f and a second parameter; an observation, and its log density.
CASES: dict = {}
for name, (make, pmf) in COUNTS.items():
    known = {
        "at the upper limit": (8, lambda f, s, pmf=pmf: at_least(pmf, f, s, 8)),
        "at the lower limit": (3, lambda f, s, pmf=pmf: at_most(pmf, f, s, 3)),
        "above": (5, lambda f, s, pmf=pmf: pmf(5.0, f, s) - at_least(pmf, f, s, 3)),
        "below": (5, lambda f, s, pmf=pmf: pmf(5.0, f, s) - at_most(pmf, f, s, 8)),
        "between": (5, lambda f, s, pmf=pmf: pmf(5.0, f, s) - log_sum(pmf, f, s, 3, 8)),
    }
    for way, of in known.items():
        CASES[f"{name}, {way}"] = (
            partial(lambda make, way, f, s: WAYS[way](make(f, s), 3, 8), make, way),
            *of,
        )
for name, (make, pdf, below, above) in CONTINUOUS.items():
    known = {
        "at the upper limit": (0.8, lambda f, s, above=above: above(0.8, f, s)),
        "at the lower limit": (0.3, lambda f, s, below=below: below(0.3, f, s)),
        "above": (0.6, lambda f, s, p=pdf, a=above: p(0.6, f, s) - a(0.3, f, s)),
        "below": (0.6, lambda f, s, p=pdf, b=below: p(0.6, f, s) - b(0.8, f, s)),
        "between": (
            0.6,
            lambda f, s, p=pdf, b=below, a=above: p(0.6, f, s) - between(b, a, f, s),
        ),
    }
    for way, of in known.items():
        CASES[f"{name}, {way}"] = (
            partial(lambda make, way, f, s: WAYS[way](make(f, s), 0.3, 0.8), make, way),
            *of,
        )


CASES["binomial, at most n"] = (
    lambda f, s: pm.Censored.dist(pm.Binomial.dist(n=20, logit_p=f * s), None, 20),
    20,
    lambda f, s: binomial(20.0, f, s),
)
CASES["negative binomial, at least 0"] = (
    lambda f, s: pm.Truncated.dist(pm.NegativeBinomial.dist(mu=exp(f), alpha=s), lower=0),
    5,
    lambda f, s: negative_binomial(5.0, f, s),
)
# Beyond these PyMC's own density, or the quadrature of the reference, loses digits.
RANGES = {
    "poisson": (-30.0, 10.0),
    "negative binomial": (-15.0, 15.0),
    "binomial": (-30.0, 5.0),
    "beta": (-5.0, 5.0),
}
FIRST = [
    "poisson, at the upper limit",
    "poisson, above",
    "negative binomial, above",
    "binomial, at most n",
    "gamma, between",
    "weibull, at the upper limit",
    "logistic, at the upper limit",
    "log-normal, between",
]


@pytest.mark.filterwarnings("ignore:RandomVariables")  # of PyMC, of truncated inverse gammas
@pytest.mark.filterwarnings("ignore:Loop fusion")  # without a C compiler, of more than 32 operands
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "RAW") for name in FIRST),
        *long(*((name, "RAW") for name in CASES if name not in FIRST)),
        *long(*((name, "ONCE") for name in CASES)),
        *long(*((name, mode) for name in CASES for mode in ("NUMBA", "JAX"))),
    ],
)
def test_slopes_of_tails(name, mode):
    """PyMC's log density is infinite, or its slope nan, a few scales from the data."""
    make, y, known = CASES[name]
    family = name.split(",")[0]
    least, most = RANGES.get(family, (-30.0, 15.0))
    at = AT[(AT >= least) & (AT <= most)]
    f, s = pt.vector("f"), pt.scalar("s")
    logp = vsgp.Custom(lambda f: make(f, s)).log_prob(f, pt.constant(np.full(len(at), y)))
    if mode == "JAX":
        pytest.importorskip("jax")
    slopes = pt.grad(logp.sum(), [f, s])
    found, *slopes = pytensor.function([f, s], [logp, *slopes], mode=MODES[mode])(at, 2.5)
    with np.errstate(divide="ignore"):  # of tails that are not the ones with the digits
        expected, by_f = known(at, 2.5), slope(lambda d: known(at + d, 2.5))
        by_s = slope(lambda d: known(at, 2.5 + d)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    for given, numeric in zip(slopes, [by_f, by_s], strict=True):
        np.testing.assert_allclose(given, numeric, rtol=1e-6, atol=1e-7)


def slope(of, e=1e-3):
    return (8.0 * (of(e) - of(-e)) - of(2.0 * e) + of(-2.0 * e)) / (12.0 * e)
