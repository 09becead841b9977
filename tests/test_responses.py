"""Normal noise on values given neighbors, which integrate out."""

import numpy as np
import pymc as pm
import pytensor
import pytest
import reference_neighbors as reference

from modes import RAW

import pymc_vsgp as vsgp

from pymc_vsgp.fit.collapsed import can_collapse, collapse

RNG = np.random.default_rng(0)
Z = RNG.uniform(0.0, 3.0, size=(12, 2))
ROWS = np.r_[np.arange(12), 3, 3, 7]  # some inputs more than once
Y = RNG.normal(1.0, 1.0, size=len(ROWS))
POINT = {"ls_log__": np.log(0.8), "sigma_log__": np.log(0.3), "level": np.array(0.7)}
JITTER = 1e-8


def build(m=12, rows=ROWS, y=Y, Z=Z, white=0.0, jitter=JITTER):
    """A model of values at all distinct inputs."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 0.3)
        sigma = pm.LogNormal("sigma", -1.0, 0.5)
        level = pm.Normal("level")
        cov = pm.gp.cov.Matern32(2, ls=ls)
        white = white() if callable(white) else white
        if white != 0.0:
            cov += pm.gp.cov.WhiteNoise(white)
        gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(level), cov_func=cov)
        kind = vsgp.inducing.NearestNeighbors(Z, m)
        gp.prior("u", inducing=kind, jitter=jitter)
        gp.likelihood("y", vsgp.Gaussian(sigma), X=Z[rows], y=pm.Data("values", y))
    return model


def exact(rows=ROWS, y=Y, jitter=JITTER):
    """Log density of the data, and mean and covariance of the values given them."""
    S, noise = np.eye(12)[rows], 0.3**2
    K = reference.matern32(Z, Z, 0.8, 1.0) + jitter * np.eye(12)
    C = S @ K @ S.T + noise * np.eye(len(y))
    r = y - 0.7
    logp = -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2.0 * np.pi * C)[1])
    gain = K @ S.T @ np.linalg.inv(C)
    return logp, 0.7 + gain @ r, K - gain @ S @ K


def of_data(model, point=POINT):
    """Log density of the data given theta."""
    new = collapse(model).model
    return new.compile_logp(vars=new.potentials, mode=RAW)(point)


@pytest.mark.slow
def test_all_neighbors_are_the_exact_marginal_likelihood():
    for jitter in (JITTER, 0.0):
        expected = exact(jitter=jitter)[0]
        np.testing.assert_allclose(of_data(build(11, jitter=jitter)), expected, rtol=1e-9)


@pytest.mark.slow
def test_values_without_an_observation_are_no_neighbors():
    """Also where they are between those that have some."""
    rows = np.array([1, 3, 3, 4, 7, 8, 10, 11])
    y = Y[: len(rows)]
    np.testing.assert_allclose(of_data(build(11, rows, y)), exact(rows, y)[0], rtol=1e-9)


@pytest.mark.slow
def test_gradient(rng):
    new = collapse(build(4)).model
    logp, slopes = new.compile_logp(mode=RAW), new.compile_dlogp(mode=RAW)(POINT)
    names = [v.name for v in new.value_vars]
    for name, slope in zip(names, slopes, strict=True):
        ends = [logp(POINT | {name: POINT[name] + h}) for h in (1e-5, -1e-5)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_few_neighbors_are_those_of_numpy():
    """Row after row, with the order of the prior."""
    model = build(3, np.arange(12), Y[:12])
    order = model["u"].owner.inputs[6].get_value()
    noise, expected = 0.3**2 + JITTER, 0.0

    def kernel(A, B):
        return reference.matern32(A, B, 0.8, 1.0)

    for rank, i in enumerate(order):
        before = order[:rank]
        near = before[reference.nearest(Z[before], Z[i], 3)]
        b, left = reference.conditional(kernel, Z[near], Z[i], noise)
        rest = Y[i] - 0.7 - b @ (Y[near] - 0.7)
        expected -= 0.5 * (rest**2 / (left + noise) + np.log(2.0 * np.pi * (left + noise)))
    np.testing.assert_allclose(of_data(model), expected, rtol=1e-9)


def test_values_given_the_data(rng):
    """Their map is that of the exact conditional, for any theta and any noise."""
    whole = collapse(build())
    new = whole.model
    given = {new[n]: np.exp(POINT[f"{n}_log__"]) for n in ("ls", "sigma")}
    inputs = [*given, new["level"], whole.noise]
    fn = pytensor.function(inputs, whole.draws["u"], mode=RAW)
    at = [fn(*given.values(), 0.7, e) for e in np.r_[np.zeros((1, 12)), np.eye(12)]]
    root = np.stack(at[1:]) - at[0]
    _, mean, covariance = exact()
    np.testing.assert_allclose(at[0], mean, rtol=1e-8)
    np.testing.assert_allclose(root.T @ root, covariance, rtol=1e-6, atol=1e-9)


@pytest.mark.long
@pytest.mark.slow
def test_sampling_is_that_of_points():
    """Theta and the values, against inducing points, which are exact here."""
    found = []
    with build():
        stage = vsgp.fit_gaussian(progressbar=False)
        settings = {"chains": 2, "method": "importance", "random_seed": 1, "progressbar": False}
        idata = vsgp.sample(500, stage=stage, **settings)
    assert not idata["posterior"].attrs["refused"]
    assert stage.sites["u"].root.shape == (1, 12)
    found.append(idata["posterior"])
    with pm.Model():
        ls, sigma = pm.LogNormal("ls", 0.0, 0.3), pm.LogNormal("sigma", -1.0, 0.5)
        level = pm.Normal("level")
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.Matern32(2, ls=ls)
        )
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Gaussian(sigma), X=Z[ROWS], y=Y)
        points = vsgp.fit_gaussian(progressbar=False)
        found.append(vsgp.sample(500, stage=points, **settings)["posterior"])
    np.testing.assert_allclose(stage.elbo, points.elbo, atol=1e-4)  # jitter
    cov = points.theta_covariance
    np.testing.assert_allclose(stage.theta_covariance, cov, rtol=1e-3, atol=1e-3 * cov.max())
    np.testing.assert_allclose(stage.mean["u"], points.mean["u"], atol=1e-3)
    sd = np.sqrt(np.diagonal(points.covariance["u"][0]))
    np.testing.assert_allclose(np.sqrt(stage.covariance["u"][0]), sd, rtol=0.15)
    near, those = ({n: p[n].stack(s=("chain", "draw")) for n in p} for p in found)
    for name in ("level", "sigma", "ls", "u"):
        a, b = near[name], those[name]
        away = np.abs(a.mean("s") - b.mean("s")) / b.std("s")
        assert float(away.max()) < 0.25, name
        np.testing.assert_allclose(a.std("s") / b.std("s"), 1.0, atol=0.2)


@pytest.mark.slow
def test_new_data():
    """Counts and neighbors are those of the data that there are."""
    model = build(12, np.arange(12), Y[:12])
    whole = collapse(model)
    with whole.model:
        pm.set_data({"y_X": Z[:9], "values": Y[:9]})
    whole.refresh()
    fn = whole.model.compile_logp(vars=whole.model.potentials, mode=RAW)
    np.testing.assert_allclose(fn(POINT), exact(np.arange(9), Y[:9])[0], rtol=1e-9)
    with whole.model:
        pm.set_data({"y_X": Z[:9] + 0.1})
    with pytest.raises(ValueError, match="no longer among the inputs"):
        whole.refresh()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:White noise in the kernel:UserWarning")
def test_what_does_not_integrate_out():
    """Rows elsewhere, and white noise of each row."""
    assert can_collapse(build())
    assert not can_collapse(build(white=0.3))
    with build(4) as model:
        model["y_X"].set_value(Z[ROWS] + 1e-9)
    assert not can_collapse(model)


@pytest.mark.filterwarnings("ignore:White noise in the kernel:UserWarning")
def test_white_noise_of_any_size_does_not_integrate_out():
    """Each row has its own, and the initial point says nothing of how much there is."""
    assert not can_collapse(build(white=lambda: pm.HalfNormal("tau", 0.005)))
