"""A report that names the cause."""

import re

import numpy as np
import pymc as pm
import pytest

from modes import RAW

import pymc_vsgp as vsgp

from pymc_vsgp.model.diagnostics import ROWS, check_model

M = 6


def build(Xu, jitter=1e-6, exponent=1.0):
    X = np.linspace(0, 5, 12)[:, None]
    with pm.Model() as model:
        lengthscale = pm.LogNormal("lengthscale", 0.0, 1.0)
        variance = pm.Gamma("variance", 2, 1)
        gp = vsgp.VariationalSparse(
            cov_func=variance**exponent * pm.gp.cov.ExpQuad(1, ls=lengthscale)
        )
        gp.prior("u", Xu=Xu, jitter=jitter)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.arange(12.0) % 3)
    return model


@pytest.fixture
def Xu():
    return np.linspace(0.0, 5.0, M)[:, None]


@pytest.mark.slow
def test_nothing_wrong(Xu):
    model = build(Xu)
    check = check_model({"variance": 4.0}, model=model)
    assert check.ok
    (prior,) = check.priors
    assert prior.name == "u"
    assert prior.added == prior.jitter == 1e-6
    assert not prior.failed
    np.testing.assert_allclose(prior.sd, 2.0)
    assert list(check.logp) == ["lengthscale", "variance", "u", "y"]
    assert "Nothing wrong was found." in repr(check)
    assert "condition number" in repr(check)
    # The parts are those of the model.
    total = model.compile_logp(mode=RAW)
    at = model.initial_point() | {"variance_log__": np.log(4.0)}
    np.testing.assert_allclose(sum(check.logp.values()), total(at))


@pytest.mark.slow
def test_points_of_either_kind(Xu):
    model = build(Xu)
    rng = np.random.default_rng(1)
    v = rng.normal(size=M)
    with model:
        first = check_model(
            {"variance_log__": np.log(2.0), "lengthscale_log__": 0.0, "u_whitened__": v}
        )
    K = 2.0 * np.exp(-0.5 * (Xu - Xu.T) ** 2)
    u = np.linalg.cholesky(K + 2e-6 * np.eye(M)) @ v
    second = check_model({"variance": 2.0, "lengthscale": 1.0, "u": u}, model=model)
    third = check_model({"variance": 2.0, "lengthscale_log__": 0.0, "u": u}, model=model)
    for name, value in first.logp.items():
        np.testing.assert_allclose(second.logp[name], value, rtol=1e-8)
        np.testing.assert_allclose(third.logp[name], value, rtol=1e-8)
    np.testing.assert_allclose(first.priors[0].condition, np.linalg.cond(K), rtol=1e-6)
    with pytest.raises(ValueError, match=r"'scale', which is no variable of the model\. Use"):
        check_model({"scale": 1.0}, model=model)
    for name, value, shape in (
        ("u", np.zeros(M + 1), rf"\({M},\)"),
        ("variance_log__", [1.0], r"\(\)"),
    ):
        with pytest.raises(ValueError, match=f"has shape .* has shape {shape}. Pass values of"):
            check_model({name: value}, model=model)


def test_rows_that_nearly_coincide(Xu):
    Xu[4] = Xu[1] + 1e-9
    check = check_model(model=build(Xu, jitter=0.0))
    (prior,) = check.priors
    assert prior.closest[:2] == (1, 4)
    assert not check.ok
    assert any("Rows 1 and 4 of Xu nearly coincide" in a for a in prior.advice)
    assert "Drop one of them" in repr(check)


def test_long_lengthscale(Xu):
    check = check_model({"lengthscale": 1e6}, model=build(Xu, jitter=1e-18))
    (prior,) = check.priors
    assert 0.0 < prior.jitter < prior.added <= 1e-8
    assert prior.condition > 1e12
    assert "lengthscales are far beyond the range of Xu" in prior.advice[0]
    assert "The jitter had to rise" in prior.advice[1]
    assert all(np.isfinite(v) for v in check.logp.values())


@pytest.mark.slow
@pytest.mark.parametrize("variance", [1e200, np.nan])
def test_failure(Xu, variance):
    check = check_model({"variance_log__": np.log(variance)}, model=build(Xu, exponent=2.0))
    (prior,) = check.priors
    assert prior.failed
    assert not np.isfinite(check.logp["u"])
    assert "lengthscale, variance" in prior.advice[0] or "variance" in prior.advice[0]
    assert "not finite" in prior.advice[0]
    assert any("'u'" in a for a in check.advice)
    assert "no factor found" in repr(check)


@pytest.mark.slow
def test_advice_is_two_sentences(Xu):
    Xu[4] = Xu[1] + 1e-9
    for point in ({}, {"lengthscale": 1e6}, {"variance_log__": np.inf}):
        check = check_model(point, model=build(Xu, jitter=0.0, exponent=2.0))
        for text in (*check.advice, *(a for p in check.priors for a in p.advice)):
            assert text.endswith(".")
            assert len(text.split(". ")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_an_observation_that_the_likelihood_leaves_out(several, Xu):
    """A measurement above the limit that it was censored at, among thousands."""
    y = np.full(5000, 0.1)
    y[4000] = 0.3
    X = np.linspace(0.0, 5.0, 5000)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=Xu)
        upper = np.full(5000, 0.2)  # an entry for each row
        upper[4000 % ROWS] = 0.4  # of another row, which has that place in its block
        lik = lambda f: pm.Censored.dist(pm.Normal.dist(f, 0.3), lower=None, upper=upper)  # noqa: E731  (short, and used once)
        if several:
            lik = lambda f: pm.Censored.dist(pm.Normal.dist(f, 0.3), lower=None, upper=0.2)  # noqa: E731  (short, and used once)
            gp = vsgp.Coregionalized([[1.0], [0.5]], gp)
            y = np.column_stack([np.full(5000, 0.1), y])
        gp.likelihood("y", lik, X=X, y=y)
    (advice,) = check_model(model=model).advice
    value = r"\[0.1 0.3\]" if several else "0.3"
    assert re.match(f"The log density of 'y' is .*, first in row 4000, where it is {value}", advice)
    assert "Correct or drop that row, or limits" in advice


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:total_size not provided:UserWarning")
def test_several_inducing_inputs_and_one(Xu):
    check = check_model(model=build(Xu[:1]))
    assert check.priors[0].closest == ()
    assert check.ok
