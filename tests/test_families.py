"""Every family in one model: against plain numpy, in blocks of rows and in the ordinary graph."""

import operator

from functools import reduce

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import reference
import reference_gp

from families import (
    COUNTS,
    FAMILIES,
    D,
    M,
    N,
    families_model,
    linear_mean,
    random_point,
    unconstrained,
)
from modes import RAW
from scipy import stats

import pymc_vsgp as vsgp


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(20150612)
    return rng.normal(size=(N, D)), rng.normal(size=(M, D))


@pytest.fixture(scope="module")
def point():
    return random_point(np.random.default_rng(3))


def evaluated(names, inputs, point, mode, **kwargs):
    """The log density, its gradient in each variable, and the terms of each family."""
    model = families_model({name: name for name in names}, inputs, **kwargs)
    factors = model.logp(vars=[*model.observed_RVs, *model.free_RVs], sum=False)
    terms, variables = factors[: len(names)], model.continuous_value_vars
    # Two by two: numpy takes no more than 32 at once.
    logp = reduce(operator.add, (pt.sum(f) for f in factors))
    outputs = [logp, *pt.grad(logp, variables), *(terms if mode is RAW else ())]
    fn = model.compile_fn(outputs, mode=mode)
    at = unconstrained(point)
    s = at.pop("s_log__")
    value, *found = fn(at | {f"s_{name}_log__": s for name in names})
    slopes = dict(zip([v.name for v in variables], found[: len(variables)], strict=True))
    return value, slopes, dict(zip(names, found[len(variables) :], strict=False))


@pytest.fixture(scope="module")
def streamed(inputs, point):
    return evaluated(FAMILIES, inputs, point, RAW, block_size=7)


@pytest.fixture(scope="module")
def ordinary(inputs, point):
    return evaluated(FAMILIES, inputs, point, RAW, block_size=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_terms_equal_the_reference(family, streamed, inputs, point):
    X, Xu = inputs
    _, y, logpdf = FAMILIES[family]
    mu, gamma, _ = reference_gp.moments(
        X, Xu, point["lengthscales"], point["variance"], linear_mean, point["v"]
    )
    expected = [
        reference.expected_logp(lambda f, n=n: logpdf(f, y[n], n, point["s"]), mu[n], gamma[n])[0]
        for n in range(N)
    ]
    np.testing.assert_allclose(streamed[2][family], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_the_log_density_is_that_of_terms_and_priors(streamed, point):
    value, _, terms = streamed
    log_prior = (
        stats.gamma.logpdf(point["lengthscales"], 3, scale=1 / 2).sum()
        + stats.gamma.logpdf(point["variance"], 2)
        + len(FAMILIES) * stats.lognorm.logpdf(point["s"], 0.5)
        # PyMC's density is that of the logarithms
        + np.log(point["lengthscales"]).sum()
        + np.log(point["variance"])
        + len(FAMILIES) * np.log(point["s"])
    )
    expected = reference_gp.joint_log_density(
        np.concatenate([*terms.values()]), point["v"], log_prior
    )
    np.testing.assert_allclose(value, expected, rtol=1e-9)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_equal_the_ordinary_graph(family, streamed, ordinary):
    """Their terms, and the slope in the parameter that only this family has."""
    (_, slopes, terms), (_, wanted, of_terms) = streamed, ordinary
    np.testing.assert_allclose(terms[family], of_terms[family], rtol=1e-9, atol=1e-9)
    s = f"s_{family}_log__"
    np.testing.assert_allclose(slopes[s], wanted[s], rtol=1e-9, atol=1e-9)


def same(found, wanted, tolerance):
    """Values, gradients and terms; each array relative to its largest entry."""
    for a, b in zip(found, wanted, strict=True):
        for name in b if isinstance(b, dict) else [...]:
            x, y = (a[name], b[name]) if isinstance(b, dict) else (a, b)
            assert np.isfinite(y).all()
            scale = np.max(np.abs(y), initial=1e-3)
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=name)


@pytest.mark.long
@pytest.mark.slow
def test_gradients_of_blocks_are_those_of_the_ordinary_graph(streamed, ordinary):
    same(streamed, ordinary, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "names"),
    # `test_likelihoods.py` has the others, without the loop over the data.
    [
        pytest.param("NUMBA", ["student_t"], marks=pytest.mark.long),
        pytest.param("JAX", ["student_t"], marks=pytest.mark.long),
        ("JAX", ["weibull"]),
    ],
)
def test_backends_agree(mode, names, inputs, point):
    if mode == "JAX":
        pytest.importorskip("jax")
    found = evaluated(names, inputs, point, mode, block_size=7)
    same(found[:2], evaluated(names, inputs, point, RAW, block_size=False)[:2], 1e-9)


@pytest.mark.long
@pytest.mark.slow
def test_c_agrees(inputs, rng, c_compiler):
    """A kernel without parameters: each Op takes C a second, and its derivatives are PyTensor's."""
    (X, Xu), found = inputs, []
    for mode, block_size in (("CVM", 7), (RAW, False)):
        with pm.Model() as model:
            gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(D, ls=1.3))
            gp.prior("u", Xu=Xu)
            gp.likelihood("y", vsgp.Poisson(), X=X, y=COUNTS, block_size=block_size)
        logp = model.logp()
        found.append(model.compile_fn([logp, *pt.grad(logp, model.value_vars)], mode=mode))
    v = {"u_whitened__": rng.normal(size=M)}
    same(*(fn(v) for fn in found), 1e-9)


@pytest.mark.parametrize("size", [1e12, 1e15, 1e300])
@pytest.mark.parametrize(
    ("family", "limit", "y"),
    [
        (vsgp.NegativeBinomial, vsgp.Poisson(), [0.0, 2.0, 400.0]),
        (lambda nu: vsgp.StudentT(nu, 0.5), vsgp.Gaussian(0.5), [0.0, 2.0, 5.0]),
    ],
)
def test_limits_of_what_adds_variance(size, family, limit, y):
    """Constants of large numbers cancel, and what is left must not be their rounding."""
    mu, gamma, y = pt.constant([0.1, 0.6, 5.9]), pt.constant([0.3, 0.1, 0.05]), pt.constant(y)
    for name in ("expected_logp", "log_predictive"):
        found, expected = (
            getattr(lik, name)(mu, gamma, y).eval(mode=RAW) for lik in (family(size), limit)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    # Probabilities round to one, and draws must not follow them.
    draws = pm.draw(family(size).dist(np.full(4000, 2.0)), random_seed=1, mode=RAW)
    known = pm.draw(limit.dist(np.full(4000, 2.0)), random_seed=2, mode=RAW)
    np.testing.assert_allclose(draws.mean(), known.mean(), atol=5 * known.std() / np.sqrt(2000))
    np.testing.assert_allclose(draws.std(), known.std(), rtol=0.1)


@pytest.mark.parametrize("g", [-800.0, 40.0, 800.0])
@pytest.mark.parametrize(
    "family",
    [vsgp.HeteroskedasticNegativeBinomial(), vsgp.HeteroskedasticBetaBinomial(20)],
    ids=lambda family: type(family).__name__,
)
def test_draws_where_a_dispersion_leaves_the_floating_point_numbers(family, g):
    f = np.tile([0.3, g], (4000, 1))
    draws = pm.draw(family.dist(f), random_seed=1, mode=RAW)
    mean = float(family.conditional_mean(pt.constant(f[0])).eval(mode=RAW))
    assert np.isfinite(draws).all()
    if g > 0.0:  # there is none to speak of
        assert draws.std() < 1.1 * np.sqrt(mean)
    if g > 0.0 or isinstance(family, vsgp.HeteroskedasticBetaBinomial):
        assert abs(draws.mean() - mean) < 5.0 * draws.std() / np.sqrt(len(f))
    else:
        assert not draws.any()  # a count above zero is too rare to be drawn
