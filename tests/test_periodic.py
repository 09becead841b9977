"""Fourier features of inputs that do repeat: no ends, no return to the prior."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import reference_gp

from marks import long
from modes import RAW
from prior_draws import prior_draws
from pytensor.graph.traversal import ancestors

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE, evaluate
from pymc_vsgp.ops.rows import Rows

DAY, LS = 24.0, 3.0
HOURS = np.linspace(0.0, 23.5, 20)[:, None]
Y = np.arange(20.0) % 3


def build(X, features, ls=LS):
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        gp.prior("u", inducing=features)
        gp.likelihood("y", vsgp.Gaussian(0.5), X=X, y=Y)
    return model


def torus_kernel(A, B, ls, periods):
    """Sum over copies a period apart, of the inputs that have a period."""
    copies = [np.arange(-4, 5) * p if p else np.zeros(1) for p in periods]
    return sum(
        reference_gp.ard_kernel(A, B + np.array(s), ls, 1.0) for s in itertools.product(*copies)
    )


@pytest.mark.slow
def test_no_end_of_the_day():
    model = build(HOURS, vsgp.inducing.Fourier(DAY, 12, periodic=True))
    idata = prior_draws(model, 2)
    near, far = (
        vsgp.predict(idata, x, "moments", model=model, progressbar=False)
        for x in (HOURS[:5], HOURS[:5] + 10 * DAY)
    )
    np.testing.assert_allclose(near["mean"], far["mean"], atol=1e-10)
    np.testing.assert_allclose(near["variance"], far["variance"], rtol=1e-8)
    assert vsgp.check_model(model=model).ok


@pytest.mark.slow
def test_prior_is_that_of_the_circle():
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
        gp.prior("u", inducing=vsgp.inducing.Fourier(DAY, 12, periodic=True))
        X = np.array([[0.5], [23.5], [30.0]])
        left = gp.predict(X, {"u": np.zeros(25)})[1]
    cosines = np.arange(13) * 2 * np.pi / DAY
    S = LS * np.sqrt(2 * np.pi) / DAY * np.exp(-((cosines * LS) ** 2) / 2)
    S[1:] *= 2.0
    waves = np.cos(cosines * (X - X.T)[..., None])
    exact = torus_kernel(X, X, [LS], [DAY])
    np.testing.assert_allclose(waves @ S + left, exact, atol=2e-6)


@pytest.mark.slow
def test_one_input_of_two_repeats():
    X = np.column_stack([np.linspace(0.0, 5.0, 20), HOURS[:, 0]])
    ls = [1.0, LS]
    features = vsgp.inducing.Fourier((15.0, DAY), (12, 8), (2.5, 0.0), periodic=(False, True))
    model = build(X, features, ls)
    idata = prior_draws(model, 2)
    new = np.array([[2.0, 1.0], [2.0, 1.0 + DAY], [100.0, 1.0]])
    found = vsgp.predict(idata, new, "moments", model=model, progressbar=False)
    mean = found["mean"].values.reshape(2, 3)
    np.testing.assert_allclose(mean[:, 0], mean[:, 1], atol=1e-10)
    np.testing.assert_allclose(mean[:, 2], 0.0, atol=1e-12)
    prior = torus_kernel(new, new, ls, [0.0, DAY])[2, 2]
    np.testing.assert_allclose(found["variance"].values[..., 2], prior, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n_others", [*long(1), 2])
def test_a_lengthscale_as_long_as_the_period(n_others):
    """No warning of a short period, and far from the data the variance of the whole circle."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0.0, 5.0, (20, n_others)), HOURS[:, 0]])
    no = (False,) * n_others
    features = vsgp.inducing.Fourier((25.0,) * n_others + (DAY,), 2, 2.5, (*no, True))
    ls = [1.0] * n_others + [DAY]
    model = build(X, features, ls)  # warnings are errors
    far = np.array([[1e3] * n_others + [1.0]])
    idata = prior_draws(model, 2)
    found = vsgp.predict(idata, far, "moments", model=model, progressbar=False)
    exact = np.exp(-0.5 * np.arange(-30, 31) ** 2).sum()
    np.testing.assert_allclose(found["variance"].values, exact, rtol=1e-6)


@pytest.mark.parametrize("ls", [0.3, 5.0, 10.0])
def test_sum_over_many_copies(ls):
    """Far from the data, of a kernel whose tails reach over many periods."""
    features = vsgp.inducing.Fourier((25.0, 1.0), 2, periodic=(False, True))
    x = pt.constant([[0.0, 0.0], [3.0, 0.3], [3.0, 40.3]])
    copies = np.stack([np.zeros(2001), np.arange(-1000.0, 1001.0)], axis=1)
    cov = pm.gp.cov.Matern32(2, ls=[1.0, ls])
    exact = cov(x, copies).sum(axis=1)
    found = features.on_plane(cov, x, pt.zeros((1, 2)))[:, 0]
    np.testing.assert_allclose(*evaluate([found, exact]), rtol=1e-6)


def test_two_inputs_repeat():
    """The same, and a covariance of many rows holds one of the copies at a time."""
    features = vsgp.inducing.Fourier((25.0, 1.0, 2.0), 2, periodic=(False, True, True))
    x = pt.constant([[0.0, 0.0, 0.0], [1.0, 0.3, 7.7]])
    each = np.meshgrid(np.arange(-40.0, 41.0), 2.0 * np.arange(-40.0, 41.0), [0.0])
    copies = np.stack([g.ravel() for g in each], axis=1)[:, [2, 0, 1]]
    cov = pm.gp.cov.Matern52(3, ls=[1.0, 2.0, 3.0])
    exact = cov(x, copies).sum(axis=1)
    found = features.on_plane(cov, x, pt.zeros((1, 3)))
    np.testing.assert_allclose(*evaluate([found[:, 0], exact]), rtol=2e-6)
    loops = [v for v in ancestors([found]) if v.owner and isinstance(v.owner.op, Rows)]
    assert [v.owner.op.block_size for v in loops] == [1]


@pytest.mark.slow
def test_covariances_of_several_days():
    """Inputs whole periods apart are one place, with all of the variance in common."""
    features = vsgp.inducing.Fourier((15.0, DAY), 2, periodic=(False, True))
    cov = pm.gp.cov.ExpQuad(2, ls=LS)
    x = np.array([[1.0, 0.5], [1.0, 0.5 + 40 * DAY], [1.0, 6.5], [2.0, 6.5 - 9 * DAY]])
    for found in evaluate([f(cov, x, x) for f in (features.on_plane, features.covariance)]):
        np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
        assert np.linalg.eigvalsh(found).min() > -1e-12
    circle = vsgp.inducing.Fourier(DAY, 2, periodic=True)
    x, cov = x[:, 1:], pm.gp.cov.ExpQuad(1, ls=LS)
    exact = torus_kernel(x % DAY, x % DAY, [LS], [DAY])
    np.testing.assert_allclose(evaluate(circle.covariance(cov, x, x)), exact, rtol=1e-6)


@pytest.mark.slow
def test_same_density_as_without_an_end():
    features = [vsgp.inducing.Fourier(60.0, 20, 12.0, periodic=p) for p in (False, True)]
    models = [build(HOURS, f) for f in features]
    at = models[0].initial_point(random_seed=1)
    np.testing.assert_allclose(*(m.compile_logp(mode=ONCE)(at) for m in models), rtol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_features_of_a_table_keep_the_names():
    X = pd.DataFrame({"a": np.arange(9.0) % 5, "b": np.arange(9.0) % 4})
    cov = pm.gp.cov.ExpQuad(2, ls=[1.0, 3.0])
    features = vsgp.inducing.Fourier.for_data(X, cov, max_features=30)
    assert features.columns == ("a", "b")
    logps = []
    for data in (X, X[["b", "a"]]):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=cov)
            gp.prior("u", inducing=features)
            gp.likelihood("y", vsgp.Gaussian(0.5), X=data, y=Y[:9])
        logps.append(model.compile_logp(mode=ONCE)(model.initial_point(random_seed=1)))
    np.testing.assert_allclose(*logps, rtol=1e-12)


def test_periods_by_name():
    """Inputs with a period get frequencies for it; the others are as without."""
    X = pd.DataFrame({"year": np.arange(20.0), "hour": HOURS[:, 0]})
    cov = pm.gp.cov.ExpQuad(2, ls=[4.0, LS])
    features = vsgp.inducing.Fourier.for_data(X, cov, periodic={"hour": DAY})
    plain = vsgp.inducing.Fourier.for_data(X, cov)
    assert features.periodic == (False, True)
    assert features.period == (plain.period[0], DAY)
    assert features.n_frequencies[0] == plain.n_frequencies[0]
    by_number = vsgp.inducing.Fourier.for_data(X.to_numpy(), cov, periodic={1: DAY})
    assert by_number.n_frequencies == features.n_frequencies
    # They leave out a share of 0.0025 of the kernel on the circle.
    points = HOURS[:1] + DAY * np.arange(256)[:, None] / 256
    circle = torus_kernel(points, points[:1], [LS], [DAY])[:, 0]
    mass = np.fft.rfft(circle).real * np.where(np.arange(129) > 0, 2.0, 1.0)
    left = 1.0 - np.cumsum(mass) / mass.sum()
    assert features.n_frequencies[1] == np.argmax(left <= 0.0025)
    for wrong in ({"day": DAY}, {2: DAY}, [DAY]):
        with pytest.raises(ValueError, match=r"Pass the period of each input"):
            vsgp.inducing.Fourier.for_data(X, cov, periodic=wrong)
    with pytest.raises(ValueError, match="Pass a number above 0"):
        vsgp.inducing.Fourier.for_data(X, cov, periodic={"hour": 0.0})


def test_wrong_number_of_flags():
    with pytest.raises(ValueError, match="entries, but there are 3 inputs"):
        vsgp.inducing.Fourier((5.0, DAY), 8, periodic=(True, False, True))


@pytest.mark.slow
def test_random_inputs_of_an_ordinary_graph():
    """They have no end here either; sums over the data would lack their gradient."""
    with pm.Model() as model:
        shift = pm.Normal("shift")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
        gp.prior("u", inducing=vsgp.inducing.Fourier(DAY, 3, periodic=True))
        gp.likelihood("y", vsgp.Gaussian(0.5), X=HOURS + shift, y=Y, block_size=False)
    logp, slope = model.compile_logp(mode=RAW), model.compile_dlogp(vars=[shift], mode=RAW)
    point = model.initial_point() | {"u_whitened__": np.linspace(-1.0, 1.0, 7)}
    ends = [logp(point | {"shift": np.array(s)}) for s in (1e-5, -1e-5)]
    np.testing.assert_allclose(slope(point), (ends[0] - ends[1]) / 2e-5, rtol=1e-6)
