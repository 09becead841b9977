"""Nearest neighbors as inducing variables: exact with all of them, and plain numpy with a few."""

import warnings

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_neighbors as reference

from marks import long
from modes import RAW
from prior_draws import prior_draws
from pymc.blocking import DictToArrayBijection
from pymc.exceptions import ImplicitFreezeWarning
from pymc.model.fgraph import clone_model
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Evaluation
from pymc_vsgp.fit.neighbors import NeighborsBound
from pymc_vsgp.fit.stage import hand_over
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.inducing.kernels import is_free_of_noise, is_stationary
from pymc_vsgp.inducing.neighbors import NeighborsPrior
from pymc_vsgp.model.at_point import evaluate_at
from pymc_vsgp.model.observation import processes
from pymc_vsgp.ops.neighbors import apart, maximin

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 3.0, size=(40, 2))
Z = RNG.uniform(0.0, 3.0, size=(12, 2))
Y = RNG.poisson(3.0, size=40)
U = RNG.normal(size=12)
POINT = {"ls": np.array([0.7, 1.2]), "sd": np.array(1.3), "level": np.array(0.4), "u": U}


def build(m=None, n_outputs=1, scale=None):
    """A model with neighbors, or with points."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 0.3, shape=2)
        sd = pm.LogNormal("sd", 0.0, 0.5)
        level = pm.Normal("level")
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level),
            cov_func=sd**2 * pm.gp.cov.Matern32(2, ls=ls),
        )
        if m is None:
            gp.prior("u", Xu=Z, n_outputs=n_outputs)
        else:
            kind = vsgp.inducing.NearestNeighbors(Z, m, scale=scale)
            gp.prior("u", inducing=kind, n_outputs=n_outputs)
        if n_outputs == 1:
            gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
        else:
            gp.likelihood("y", vsgp.HeteroskedasticGaussian(), X=X, y=Y.astype(float))
    return model


def in_units(model):
    """Log densities, of u itself."""
    terms = remove_value_transforms(model).compile_logp(sum=False, mode=RAW)(POINT)
    return dict(zip([rv.name for rv in model.basic_RVs], map(np.sum, terms), strict=True))


def slopes_in_units(model):
    return remove_value_transforms(model).compile_dlogp(mode=RAW)(POINT)


def kernel(A, B):
    return reference.matern32(A, B, POINT["ls"], POINT["sd"])


# Prior and moments.


@pytest.mark.slow
def test_all_neighbors_are_the_exact_process():
    """With every neighbor: the log density and gradients of inducing points."""
    models = [build(), build(12)]
    exact, near = map(in_units, models)
    slopes, adjoints = map(slopes_in_units, models)
    for name, value in exact.items():
        np.testing.assert_allclose(near[name], value, rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(adjoints, slopes, rtol=1e-9, atol=1e-9)


def test_a_few_neighbors_are_those_of_numpy():
    found = in_units(build(4))
    jitter = 1e-8 * POINT["sd"] ** 2
    root = reference.precision_root(kernel, Z, maximin(Z), 4, jitter)
    v = root @ (U - POINT["level"])
    logp = -0.5 * v @ v + np.log(np.diag(root)).sum() - 6.0 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(found["u"], logp, rtol=1e-7)
    mu, gamma = reference.moments(kernel, Z, U - POINT["level"], X, 4, jitter)
    mu = mu + POINT["level"]
    log_factorials = np.cumsum(np.log(np.r_[1.0, np.arange(1.0, 20.0)]))[Y]
    expected = np.sum(Y * mu - np.exp(mu + gamma / 2.0) - log_factorials)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_gradients(n_outputs, rng):
    model = build(4, n_outputs)
    fn = model.logp_dlogp_function(mode=RAW, ravel_inputs=True)
    fn.set_extra_values({})
    start = DictToArrayBijection.map(model.initial_point())
    x = start.data + 0.3 * rng.normal(size=start.data.size)

    def at(x):
        return fn(start._replace(data=x))

    _, slopes = at(x)
    for i in rng.choice(x.size, 8, replace=False):
        h = 1e-5 * np.eye(x.size)[i]
        expected = (at(x + h)[0] - at(x - h)[0]) / 2e-5
        np.testing.assert_allclose(slopes[i], expected, rtol=1e-5, atol=1e-6)


def test_whitened_values(rng):
    """Whitened values have the standard normal density, and go back to where they came from."""
    model = build(4)
    u = model["u"]
    transform, inputs = model.rvs_to_transforms[u], u.owner.inputs
    value = pt.dvector()
    back = transform.backward(value, *inputs)
    again, jacobian = transform.forward(back, *inputs), transform.log_jac_det(value, *inputs)
    given = [model[n] for n in ("ls", "sd", "level")]
    v = rng.normal(size=12)
    logp = pm.logp(u, back) + jacobian
    fn = pytensor.function([value, *given], [again, logp], mode=RAW)
    again, logp = fn(v, *(POINT[n.name] for n in given))
    np.testing.assert_allclose(again, v, rtol=1e-9)
    np.testing.assert_allclose(logp, -0.5 * v @ v - 6.0 * np.log(2.0 * np.pi), rtol=1e-10)


@pytest.mark.slow
def test_prior_draws():
    cov = POINT["sd"] ** 2 * pm.gp.cov.Matern32(2, ls=POINT["ls"])
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=cov, mean_func=pm.gp.mean.Constant(0.4))
        u = gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(Z, 3), n_outputs=4000)
    draws = pm.draw(u, random_seed=1, mode=RAW)
    root = reference.precision_root(kernel, Z, maximin(Z), 3, 1e-8 * POINT["sd"] ** 2)
    v = (draws - 0.4) @ root.T
    np.testing.assert_allclose(v.mean(axis=0), 0.0, atol=0.08)
    np.testing.assert_allclose(np.cov(v.T), np.eye(12), atol=0.12)


def test_one_neighbor_is_exact_for_a_markov_process(rng):
    """A Matern-1/2 function of one input."""
    x = rng.permutation(np.linspace(0.0, 4.0, 9))[:, None]
    u = rng.normal(size=9)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Exponential(1, ls=2.0))
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(x, 1), jitter=0.0)
    K = np.exp(-np.abs(x - x.T) / 4.0)  # pm.gp.cov has a half in the exponent
    expected = -0.5 * (u @ np.linalg.solve(K, u) + np.linalg.slogdet(2.0 * np.pi * K)[1])
    found = pm.logp(model["u"], u).eval(mode=RAW)
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # 1e-6 is added to distances


@pytest.mark.slow
def test_a_component_of_a_sum():
    """With all neighbors that of points: the values are of the sum."""
    found, new = [], np.concatenate([X[:3], Z[:2]])
    for kind in ({"Xu": Z}, {"inducing": vsgp.inducing.NearestNeighbors(Z, 12)}):
        with pm.Model():
            parts = [
                vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(2, ls=1.0)),
                vsgp.VariationalSparse(
                    cov_func=0.5 * pm.gp.cov.Matern52(2, ls=2.0),
                    mean_func=pm.gp.mean.Constant(0.3),
                ),
            ]
            whole = parts[0] + parts[1]
            whole.prior("u", **kind)
            point, given = {"u": U}, {"gp": whole}
            found.append([gp.predict(new, point, given, diag=True) for gp in (*parts, whole)])
            found[-1] += [parts[0].predict(new, point, given)]
    for exact, near in zip(*(sum(x, ()) for x in found), strict=True):
        np.testing.assert_allclose(near, exact, rtol=1e-6, atol=1e-6)  # of the jitter


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.filterwarnings("ignore:White noise in the kernel:UserWarning")
def test_rows_at_inputs_of_the_values(noise):
    """They look these up, unless white noise is another at each row; covariates may differ."""
    own = 3.0 + np.arange(12.0)
    rows = np.concatenate([np.c_[Z, own][::-1], np.c_[X, np.ones(40)][:5]])
    cov = POINT["sd"] ** 2 * pm.gp.cov.Matern32(3, ls=POINT["ls"], active_dims=[0, 1])
    if noise:
        cov = cov + pm.gp.cov.WhiteNoise(noise)
    with pm.Model():
        gp = vsgp.VariationalSparse(
            cov_func=cov, mean_func=pm.gp.mean.Linear(coeffs=[0.0, 0.0, 0.1])
        )
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(np.c_[Z, np.zeros(12)], 4))
        gp.likelihood("y", vsgp.Poisson(), X=rows, y=np.ones(17, int))
        mu, gamma = gp.predict(rows, {"u": U}, diag=True)
    K = noise**2 + 1e-8 * (POINT["sd"] ** 2 + noise**2)
    wanted = reference.moments(kernel, Z, U, rows[:, :2], 4, K)
    if not noise:
        wanted[0][:12], wanted[1][:12] = U[::-1], 0.0
    np.testing.assert_allclose(mu, wanted[0] + 0.1 * rows[:, 2], rtol=1e-7)
    np.testing.assert_allclose(gamma, wanted[1] + noise**2, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", [RAW, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_apart(mode):
    here = pt.bvector().astype(bool)
    fn = pytensor.function([here.owner.inputs[0]], apart(here), mode=mode)
    for given in ([0, 1, 1, 0], [1, 1], [0], []):
        rows, at = fn(np.array(given, dtype="int8"))
        away = np.flatnonzero(1 - np.array(given, dtype=int)).tolist()
        assert rows.tolist() == away + ([0] if given else [])
        assert at.tolist() == [len(away) if g else away.index(i) for i, g in enumerate(given)]


# What one does with draws.


@pytest.fixture(scope="module")
def draws():
    with build():
        return vsgp.fit_gaussian(progressbar=False).to_datatree(draws=40, random_seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
def test_all_downstream_is_that_of_the_exact_process(draws):
    Xnew = np.random.default_rng(5).uniform(0.0, 3.0, size=(6, 2))
    found = []
    for model in (build(), build(12)):
        with model:
            kwargs = {"progressbar": False}
            at = vsgp.predict(draws, Xnew, "moments", **kwargs)
            joint = vsgp.predict(draws, Xnew, "f", joint=True, random_seed=1, **kwargs)
            loo = vsgp.loo(draws, **kwargs)
            check = vsgp.check_inducing(draws, 3, random_seed=1, **kwargs)
        found.append([at["mean"], at["variance"], joint, loo.elpd, check.gain, check.missing])
    for exact, near in zip(*found, strict=True):
        np.testing.assert_allclose(near, exact, rtol=1e-6, atol=1e-8)
    assert "12 nearest-neighbor inputs" in str(check)


@pytest.mark.slow
def test_joint_draws_of_a_few_neighbors(draws):
    """Their covariance is one, with the variances that single draws have."""
    model = build(3)
    Xnew = np.concatenate([X[:5], X[:1] + 1e-4])
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(2, ls=[0.7, 1.2]))
    with model:
        gp.prior("w", inducing=vsgp.inducing.NearestNeighbors(Z, 3))
        _, cov = gp.predict(Xnew, point={"w": U})
        _, variance = gp.predict(Xnew, point={"w": U}, diag=True)
    np.testing.assert_allclose(np.diag(cov), variance, rtol=1e-9)
    assert np.linalg.eigvalsh(cov).min() > -1e-9
    assert cov[0, 5] > 0.99 * variance[0]


@pytest.mark.slow
def test_joint_draws_at_inputs_of_the_values():
    """Rows that look a value up are that, however many: what is added to its variance is no f."""
    rows, cov = np.concatenate([Z[[3, 3, 7]], X[:2], Z[[3]]]), pm.gp.cov.Matern32(2, ls=[0.7, 1.2])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=cov)
        u = gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(Z, 3), jitter=1e-4)
        _, K = gp.predict(rows, {"u": U})
        _, variance = gp.predict(rows, {"u": U}, diag=True)
    given, args = gp._prior.kind.given(u, cov, gp._mean_at, pt.constant(rows))
    graph = given.residual(pt.constant(rows), pt.constant(X[:2]), args)
    (across,) = evaluate_at([graph], {"u": U}, model)
    np.testing.assert_allclose(np.diag(K), variance, rtol=1e-9)
    assert np.linalg.eigvalsh(K).min() > -1e-14
    np.testing.assert_array_equal((K - np.diag(variance))[[0, 1, 2, 5]], 0.0)
    np.testing.assert_allclose(across, K[3:5], atol=1e-12)


@pytest.mark.slow
def test_joint_draws_far_from_zero():
    """Squares of such places lose all digits of distances."""
    found, inputs = [], np.linspace(0.0, 32.0, 33)[:, None]
    for shift in (0.0, 1e9):
        with pm.Model():
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=5.0))
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(inputs + shift, 8))
            found.append(gp.predict(inputs[:9] + shift + 0.25, {"u": np.zeros(33)})[1])
    np.testing.assert_allclose(*found, atol=1e-9)


@pytest.mark.slow
def test_joint_draws_far_from_the_first_value():
    """Their covariance is one, however far the others are."""
    found, rows = [], np.array([[0.2], [0.25], [0.3], [3.1]])
    for far in (100.0, 1e6):
        inputs = np.r_[np.arange(10) / 2 - far, np.arange(10) / 2][:, None]
        with pm.Model():
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(inputs, 10))
            found.append(gp.predict(rows, {"u": np.zeros(20)})[1])
    np.testing.assert_allclose(*found, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("far", [-4.02892225e8, *long(3e3, 1e6, 1e12)])
def test_far_from_all_values_is_the_prior(far):
    """Their own distances are not those of large numbers."""
    inputs = np.linspace(-1.0, 1.0, 6)[:, None]
    with pm.Model():
        ls = pm.Gamma("ls", 9, 10)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3), cov_func=2.0 * pm.gp.cov.Matern52(1, ls=ls)
        )
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(inputs, 3))
        for x in np.linspace(0.5, 1.5, 11):
            point = {"u": np.linspace(-1.0, 2.0, 6), "ls": x}
            moments = np.ravel(gp.predict([[far]], point, diag=True))
            np.testing.assert_allclose(moments, (0.3, 2.0), rtol=1e-12)


def test_places_that_are_not_centered_are_told_of():
    """Kernels of others may depend on more than differences; columns of the mean do not count."""

    class Own(pm.gp.cov.Matern32):
        pass

    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=Own(2, ls=1.0, active_dims=[1]))
        with pytest.warns(UserWarning, match="Column 1 of Xu is about 1e.08 with a range"):
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(Z + [1e9, 1e8], 3))


def test_covariance_that_the_values_explain():
    model = pm.do(build(3), {n: POINT[n] for n in ("ls", "sd", "level")})
    (process,) = processes(model).values()
    A = pytensor.function([], process.solve(pt.constant(X[:7])), mode=RAW)()
    jitter = 1e-8 * POINT["sd"] ** 2
    root = reference.precision_root(kernel, Z, maximin(Z), 3, jitter)
    # Each unit vector of whitened values at a time.
    for v, row in zip(np.eye(12), A, strict=True):
        mu, _ = reference.moments(kernel, Z, np.linalg.solve(root, v), X[:7], 3, jitter)
        np.testing.assert_allclose(row, mu, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_new_data():
    """Neighbors are those of the rows that there are, after a change of them, too."""
    model = build(3)
    before = in_units(model)
    with model:
        pm.set_data({"y_X": X[::-1]})
    after = in_units(model)
    with model:
        pm.set_data({"y_X": X + 0.3})
    moved = in_units(model)
    assert abs(after["y"] - before["y"]) > 0.1
    mu, gamma = reference.moments(
        kernel, Z, U - POINT["level"], X + 0.3, 3, 1e-8 * POINT["sd"] ** 2
    )
    mu = mu + POINT["level"]
    log_factorials = np.cumsum(np.log(np.r_[1.0, np.arange(1.0, 20.0)]))[Y]
    expected = np.sum(Y * mu - np.exp(mu + gamma / 2.0) - log_factorials)
    np.testing.assert_allclose(moved["y"], expected, rtol=1e-7)


@pytest.mark.slow
def test_pm_sample():
    with build(3):
        settings = {"chains": 1, "progressbar": False, "compile_kwargs": {"mode": RAW}}
        idata = pm.sample(2, tune=2, nuts_sampler="pymc", random_seed=1, **settings)
    assert np.isfinite(idata["posterior"]["u"]).all()


def test_scale_decides_who_is_near():
    kind = vsgp.inducing.NearestNeighbors(Z, 2, scale=[1.0, 100.0])
    with pm.Model():
        prior = NeighborsPrior(
            kind, "u", pm.gp.cov.Matern32(2, ls=1.0), lambda x: pt.zeros(x.shape[0]), 1e-8
        )
    order = np.argsort(Z[:, 0])  # the other input hardly counts
    near = prior.neighbors.get_value()[prior.order.get_value()[-1]]
    at = list(order).index(prior.order.get_value()[-1])
    assert set(near) <= set(order[max(at - 2, 0) : at + 3])


@pytest.mark.parametrize(
    ("kernel", "m"),
    [
        (2.0 * pm.gp.cov.Exponential(2, ls=1.0), 15),
        (pm.gp.cov.Matern32(2, ls=1.0) + pm.gp.cov.Constant(1.0), 20),
        (pm.gp.cov.ExpQuad(2, ls=1.0) * (pm.gp.cov.Matern52(2, ls=1.0) * 2.0), 30),
        (pm.gp.cov.ExpQuad(2, ls=1.0) + pm.gp.cov.Matern12(2, ls=1.0), 15),
        (pm.gp.cov.Matern12(2, ls=1.0) ** 2, 15),
    ],
)
def test_the_roughest_part_of_a_kernel_says_how_many(kernel, m):
    assert vsgp.inducing.NearestNeighbors(X).number(kernel) == m
    assert vsgp.inducing.NearestNeighbors(X, 3).number(kernel) == 3
    assert vsgp.inducing.NearestNeighbors(Z).number(kernel) == 12


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"m": 0}, "m is 0. Pass a whole number"),
        ({"m": 2.5}, "m is 2.5. Pass a whole number"),
        ({"scale": -1.0}, "scale has to be positive"),
        ({"scale": [1.0, 2.0, 3.0]}, "scale has to be positive"),
        ({"Xu": np.zeros((3, 2))}, "Xu"),
        ({"Xu": [[np.nan, 1.0]]}, "Xu"),
    ],
)
def test_bad_input(kwargs, message):
    with pytest.raises(ValueError, match=message):
        vsgp.inducing.NearestNeighbors(**{"Xu": Z} | kwargs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Column 0 of")
@pytest.mark.parametrize("away", [1e5, 1e8])
def test_places_far_from_zero(away):
    """Squares of such places lose all digits of distances: the density was off, or nan."""
    densities = []
    for shift in (0.0, away):
        inputs = np.linspace(0.0, 32.0, 33)[:, None] + shift
        with pm.Model() as model:
            cov = pm.gp.cov.Matern32(1, ls=5.0) + 0.5 * pm.gp.cov.Periodic(1, period=8.0, ls=1.0)
            gp = vsgp.VariationalSparse(cov_func=2.0 * cov)
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(inputs, 8))
            gp.likelihood("y", vsgp.Poisson(), X=inputs[:-1] + 0.5, y=np.arange(32) % 3)
        point = {"u_whitened__": np.sin(np.arange(33.0))}
        densities.append(model.compile_logp(mode=RAW)(point))
    np.testing.assert_allclose(*densities, rtol=1e-7)


def test_kernels_of_differences_alone():
    Scaled, Stationary = pm.gp.cov.ScaledCov, pm.gp.cov.Matern52(1, ls=1.0)
    assert is_stationary(2.0 * Stationary + pm.gp.cov.WhiteNoise(0.1))
    assert not is_stationary(Stationary + pm.gp.cov.Linear(1, c=0.0))
    assert not is_stationary(Scaled(1, Stationary, lambda x, a: a * x, (2.0,)))


def test_noise_within_a_kernel():
    """Values are f at their inputs unless each row has noise of its own."""
    noisy = pm.gp.cov.Matern32(1, ls=1.0) + pm.gp.cov.WhiteNoise(0.1)
    smooth = 2.0 * pm.gp.cov.Matern32(1, ls=1.0) ** 2

    class Own(pm.gp.cov.Covariance):
        kernel = noisy

    assert is_free_of_noise(smooth)
    assert not any(map(is_free_of_noise, (noisy, noisy**2, 2.0 * noisy, Own(1), smooth + Own(1))))


# The Gaussian stage, and the coordinates that it sets.


def at_data(m=None, likelihood=None, y=None, places=Z):
    """A model of values at the inputs of the data, with neighbors or with points."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 0.3)
        level = pm.Normal("level")
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.Matern32(2, ls=ls)
        )
        if m is None:
            gp.prior("u", Xu=places)
        else:
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(places, m))
        y = np.arange(12) % 5 if y is None else y
        gp.likelihood("y", likelihood or vsgp.Poisson(), X=Z, y=y)
    return model


def sites(rng):
    return Sites(rng.normal(size=(1, 12)), rng.uniform(0.1, 3.0, size=(1, 12)))


@pytest.mark.slow
def test_coordinates_are_exact_with_all_neighbors(rng):
    """With normal noise and its sites: a standard normal times the evidence, for any theta."""
    noise, y = 0.4, rng.normal(size=12)
    model = at_data(12, vsgp.Gaussian(noise), y)
    hand_over(model, {"u": Sites((y / noise**2)[None], np.full((1, 12), 1.0 / noise))}, {})
    logp = model.compile_logp(vars=[model["u"], model["y"]], mode=RAW)
    for ls in (0.5, 1.5):
        K = reference.matern32(Z, Z, ls, 1.0) + noise**2 * np.eye(12)
        r = y - 0.7
        evidence = -0.5 * (r @ np.linalg.solve(K, r) + np.linalg.slogdet(2.0 * np.pi * K)[1])
        epsilon = rng.normal(size=12)
        point = {"ls_log__": np.log(ls), "level": np.array(0.7), "u_whitened__": epsilon}
        expected = evidence - 0.5 * epsilon @ epsilon - 6.0 * np.log(2.0 * np.pi)
        np.testing.assert_allclose(logp(point), expected, atol=1e-5)


@pytest.mark.slow
def test_density_does_not_depend_on_sites(rng):
    model = at_data(4)
    u = model["u"]
    densities, target = [], rng.normal(size=12)
    for given in (None, sites(rng), sites(rng)):
        if given is not None:
            hand_over(model, {"u": given}, {})
        transform = model.rvs_to_transforms[u]
        others = model.replace_rvs_by_values(list(u.owner.inputs[1:]))
        inputs = [u.owner.inputs[0], *others]
        forward = transform.forward(pt.constant(target), *inputs)
        values = [model.rvs_to_values[model[n]] for n in ("ls", "level")]
        at = dict(zip(["ls_log__", "level"], (np.array(0.2), np.array(-0.3)), strict=True))
        fn = pytensor.function(values, forward, mode=RAW, on_unused_input="ignore")
        point = at | {"u_whitened__": fn(*at.values())}
        value = model.rvs_to_values[u]
        outputs = [model.logp() - transform.log_jac_det(value, *inputs)]
        outputs.append(transform.backward(value, *inputs))
        fn = model.compile_fn(outputs, inputs=model.value_vars, mode=RAW, on_unused_input="ignore")
        density, again = fn(point)
        np.testing.assert_allclose(again, target, rtol=1e-8)
        densities.append(density)
    np.testing.assert_allclose(densities[1:], densities[0], rtol=1e-9)


def with_sites(mode):
    """Density and gradient in the coordinates of some sites, and a point."""
    model, rng = at_data(4), np.random.default_rng(3)
    hand_over(model, {"u": sites(rng)}, {})
    fn = model.logp_dlogp_function(mode=mode, ravel_inputs=True)
    fn.set_extra_values({})
    start = DictToArrayBijection.map(model.initial_point())
    return fn, start, start.data + 0.3 * rng.normal(size=start.data.size)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_backends_agree(mode):
    pytest.importorskip(mode.lower(), reason=f"{mode} is not installed")
    (value, slopes), (expected, of_numpy) = (
        fn(start._replace(data=x)) for fn, start, x in map(with_sites, (mode, RAW))
    )
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(slopes, of_numpy, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("at_rows", [True, pytest.param(False, marks=pytest.mark.long)])
def test_gradients_of_jax_itself(at_rows, rng):
    """Those that numpyro and blackjax take."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from pymc.sampling.jax import get_jaxified_logp

    model = at_data(3) if at_rows else build(4)
    hand_over(model, {"u": sites(rng)}, {})
    point = {k: v + 0.2 * rng.normal(size=v.shape) for k, v in model.initial_point().items()}
    value, slopes = jax.jit(jax.value_and_grad(get_jaxified_logp(model)))(
        [point[v.name] for v in model.value_vars]
    )
    np.testing.assert_allclose(value, model.compile_logp(mode=RAW)(point), rtol=1e-10)
    flat = np.concatenate([np.ravel(x) for x in slopes])
    expected = model.compile_dlogp(mode=RAW)(point)
    np.testing.assert_allclose(flat, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_gradients_in_these_coordinates():
    fn, start, x = with_sites(RAW)
    _, slopes = fn(start._replace(data=x))
    for i in (0, 1, 4, 9):
        h = 1e-5 * np.eye(x.size)[i]
        ends = [float(fn(start._replace(data=x + s))[0]) for s in (h, -h)]
        expected = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(slopes[i], expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def stages():
    found = []
    for model in (at_data(), at_data(12)):
        with model:
            found.append(vsgp.fit_gaussian(progressbar=False))
    return found


@pytest.mark.slow
def test_the_stage_is_that_of_points(stages):
    exact, near = stages
    assert near.converged
    np.testing.assert_allclose(near.elbo, exact.elbo, atol=2e-3)  # variances of draws
    sd = np.sqrt(np.diag(exact.theta_covariance))
    away = [
        exact.theta_unconstrained[n] - near.theta_unconstrained[n]
        for n in exact.theta_unconstrained
    ]
    assert (np.abs(away) < 0.15 * sd).all()
    np.testing.assert_allclose(np.sqrt(np.diag(near.theta_covariance)), sd, rtol=0.1)
    of_u = np.sqrt(np.diagonal(exact.covariance["u"][0]))
    above = [s.mean["u"] - s.theta["level"] for s in (near, exact)]  # each at its own estimate
    assert (np.abs(above[0] - above[1]) < 0.15 * of_u).all()
    np.testing.assert_allclose(np.sqrt(near.covariance["u"][0]), of_u, rtol=0.25)
    assert "12 values given neighbors" in str(near)


@pytest.mark.slow
def test_parameters_move_where_an_observation_says_nothing_of_its_value():
    """A site without precision made the gradient nan, and a fit could not move from its start."""
    x, noise = np.linspace(0.0, 6.0, 20)[:, None], np.random.default_rng(1).normal(size=20)
    y, elbos = np.sin(x[:, 0]) + 0.2 * noise, []
    for how in ({"Xu": x}, {"inducing": vsgp.inducing.NearestNeighbors(x, 19)}):
        with pm.Model():
            sigma = pm.HalfNormal("sigma", 0.5)
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
            gp.prior("u", **how)
            gp.likelihood("y", vsgp.StudentT(4.0, sigma), X=x, y=y)
            stage = vsgp.fit_gaussian(progressbar=False)
        assert stage.converged
        elbos.append(stage.elbo)
    np.testing.assert_allclose(*elbos, atol=0.05)


@pytest.mark.long
@pytest.mark.slow
def test_importance(stages):
    """Proposals from the stage are good: theta is that of points."""
    means = []
    for stage in stages:
        with stage.model:
            idata = vsgp.sample(
                250, chains=2, stage=stage, method="importance", random_seed=1, progressbar=False
            )
        assert not idata["posterior"].attrs["refused"]
        means.append([np.log(idata["posterior"]["ls"]), idata["posterior"]["level"]])
    for exact, near in zip(*means, strict=True):
        np.testing.assert_allclose(near.mean(), exact.mean(), atol=0.25 * float(exact.std()))
        np.testing.assert_allclose(near.std(), exact.std(), rtol=0.25)


@pytest.mark.slow
def test_reset(rng):
    model = at_data(4)
    point = model.initial_point() | {"u_whitened__": rng.normal(size=12)}
    before = model.compile_logp(mode=RAW)(point)
    hand_over(model, {"u": sites(rng)}, {})
    assert abs(model.compile_logp(mode=RAW)(point) - before) > 1e-3
    vsgp.reset(model)
    np.testing.assert_allclose(model.compile_logp(mode=RAW)(point), before, rtol=1e-12)


def mean_at_places(idata, model):
    return vsgp.predict(idata, Z, "moments", model=model, progressbar=False)["mean"]


@pytest.mark.slow
def test_a_frozen_model_has_the_same_stage():
    models = [at_data(4), freeze_dims_and_data(at_data(4))]
    elbos = [vsgp.fit_gaussian(model=m, maxiter=2, progressbar=False).elbo for m in models]
    np.testing.assert_allclose(*elbos, rtol=1e-10)


@pytest.mark.slow
def test_draws_keep_their_places():
    """A model that has them in another order gives, at each, the value that was drawn there."""
    model, other = at_data(4), at_data(4, places=Z[::-1])
    idata = prior_draws(model)
    u = idata["posterior"]["u"].values
    copies = [clone_model(other), cloudpickle.loads(cloudpickle.dumps(other))]
    for m in (model, freeze_dims_and_data(model), other, *copies):
        np.testing.assert_allclose(mean_at_places(idata, m), u, rtol=1e-12)
    with pytest.raises(ValueError, match="'u_places' of the frozen model has other.*Build the"):
        mean_at_places(idata, freeze_dims_and_data(other))
    del idata["constant_data"]  # as of a version that did not keep them
    np.testing.assert_allclose(mean_at_places(idata, model), u, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"m": 5}, r"'u_neighbors' of the model has the shape \(12, 5\), and.* \(12, 4\)\. Build"),
        ({"m": 4, "places": Z[:9]}, r"'u_places' of the model has the shape \(9, 2\), and"),
    ],
)
def test_draws_of_other_numbers_of_neighbors(settings, message):
    with pytest.raises(ValueError, match=message):
        mean_at_places(prior_draws(at_data(4)), at_data(**settings))


def test_pymc_predicts_without_a_warning():
    """It takes what it does not find among the draws' data for something that changed."""
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(2, ls=pm.LogNormal("ls")))
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(Z, 4))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
        idata = prior_draws(model)
        gp.conditional("f", Z)
        settings = {"var_names": ["f"], "progressbar": False, "compile_kwargs": {"mode": RAW}}
        with warnings.catch_warnings(action="error", category=ImplicitFreezeWarning):
            found = pm.sample_posterior_predictive(idata, random_seed=1, **settings)
    f, u = found["posterior_predictive"]["f"], idata["posterior"]["u"]
    np.testing.assert_allclose(f.values, u.values, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "advi"}, "ADVI makes no coordinates"),
        ({"method": "minibatch"}, "take method='natural'"),
        ({"move_inducing": True}, "stay where they are"),
    ],
)
def test_what_the_stage_does_not_take(settings, message):
    with at_data(3), pytest.raises(NotImplementedError, match=message):
        vsgp.fit_gaussian(progressbar=False, **settings)


def test_the_stage_takes_a_single_function():
    with build(3, n_outputs=2), pytest.raises(NotImplementedError, match="a single function"):
        vsgp.fit_gaussian(progressbar=False)


@pytest.mark.slow
@pytest.mark.parametrize("at_inputs", [True, False])
def test_elbo_of_the_stage(at_inputs, rng):
    """With all neighbors that of dense matrices, and its gradient in theta."""
    model = at_data(12) if at_inputs else build(12)
    bound, s = NeighborsBound(model, RAW), sites(rng)
    theta = bound.start + 0.1 * rng.normal(size=bound.start.size)
    bound(theta, [s])
    u, sd = rng.normal(size=12), rng.uniform(0.2, 0.5, size=12)
    q = Evaluation(0.0, None, [], [], [np.zeros((1, 12))], [1.0 / sd[None]], [], [u])
    found = bound.held(theta, [s], (), q)
    names = ("ls", "level") if at_inputs else ("ls", "sd", "level")
    assert bound.names == [n if n == "level" else f"{n}_log__" for n in names]
    level, scale = theta[-1], 1.0 if at_inputs else np.exp(theta[-2])
    ls = np.exp(theta[0] if at_inputs else theta[:2])

    def kernel(A, B):
        return reference.matern32(A, B, ls, scale)

    K = kernel(Z, Z) + 1e-8 * scale**2 * np.eye(12)
    linear, precision = s.linear[0], s.root[0] ** 2
    A, right = np.linalg.inv(K) + np.diag(precision), linear - precision * level
    evidence = np.sum(level * (linear + right)) / 2.0 + right @ np.linalg.solve(A, right) / 2.0
    evidence -= np.linalg.slogdet(A)[1] / 2.0 + np.linalg.slogdet(K)[1] / 2.0
    of_sites = linear @ u - precision @ (u**2 + sd**2) / 2.0
    if at_inputs:
        mu, variance, y = u, sd**2, np.arange(12) % 5
    else:
        b = np.linalg.solve(K, kernel(Z, X))
        mu, y = level + b.T @ (u - level), Y
        explained = (b * kernel(Z, X)).sum(axis=0)
        share = (sd**2 @ b**2) / (scale**2 * b**2).sum(axis=0)
        variance = scale**2 - explained + share * explained
    factorials = np.cumsum(np.log(np.r_[1.0, np.arange(1.0, 20.0)]))[y]
    expected = np.sum(y * mu - np.exp(mu + variance / 2.0) - factorials)
    others = [rv for rv in model.free_RVs if rv.name != "u"]
    point = bound.unravel(theta)
    prior = model.compile_fn(model.logp(vars=others), inputs=bound.values, mode=RAW)(point)
    expected += prior + evidence - of_sites
    np.testing.assert_allclose(found.value, expected, rtol=1e-7)
    for i, h in enumerate(1e-5 * np.eye(theta.size)):
        ends = [bound.held(theta + step, [s], (), q).value for step in (h, -h)]
        np.testing.assert_allclose(found.gradient[i], (ends[0] - ends[1]) / 2e-5, rtol=1e-4)


@pytest.mark.slow
def test_values_outside_of_a_likelihood():
    with at_data(3) as model:
        pm.Potential("more", -pt.sum(model["u"] ** 2))
        with pytest.raises(ValueError, match="outside of a likelihood"):
            vsgp.fit_gaussian(progressbar=False)


@pytest.mark.long
def test_counts_closer_than_the_function_varies(rng):
    """From a start at a lengthscale of four times the right one, where orders matter most."""
    n, ls = 600, 0.05
    X = rng.uniform(size=(n, 2)) * np.sqrt(n / 1e4)
    r = np.sqrt(3.0) * np.sqrt(((X[:, None] - X) ** 2).sum(axis=-1)) / ls
    K = 0.5 * (1.0 + r) * np.exp(-r) + 1e-8 * np.eye(n)
    f = 1.0 + np.linalg.cholesky(K) @ rng.normal(size=n)
    with pm.Model() as model:
        scale = pm.LogNormal("lengthscale", -2.0, 1.0, initval=4.0 * ls)
        cov = pm.HalfNormal("sd", 2.0) ** 2 * pm.gp.cov.Matern32(2, ls=scale)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(pm.Normal("level", 0.0, 3.0)), cov_func=cov
        )
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, 10))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(f)))
        stage = vsgp.fit_gaussian(progressbar=False)
    u = stage.to_datatree(200, random_seed=1)["posterior"]["u"].values[0]
    assert stage.converged
    assert 0.9 < np.mean(np.abs(u.mean(axis=0) - f) < 1.96 * u.std(axis=0)) < 0.98
    # Variances beyond those of the prior are no ELBO's.
    bound = NeighborsBound(model)
    theta = np.concatenate([np.ravel(x) for x in stage.theta_unconstrained.values()])
    assert np.isfinite(bound(theta, [stage.sites["u"]]).value)
    (given,) = bound.given.values()
    given.draws = 1e3 * given.draws
    assert np.isnan(bound(theta, [stage.sites["u"]]).value)


@pytest.mark.long
def test_smooth_functions_between_their_inputs():
    """Weights of neighbors are then large and of both signs, and their equations nearly singular.

    The stage reported an ELBO of 3e33, and that it had converged.
    """
    inputs = np.linspace(0.0, 4.0, 30)[:, None]
    y = np.random.default_rng(0).poisson(3.0 * np.exp(np.sin(2.0 * inputs[:, 0])))
    found = []
    for kind in (None, *(vsgp.inducing.NearestNeighbors(inputs[::3], m=m) for m in (4, 7, 9))):
        with pm.Model():
            ls = pm.LogNormal("ls", 0.3, 0.3)
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
            gp.prior("u", Xu=inputs[::3] if kind is None else None, inducing=kind)
            gp.likelihood("y", vsgp.Poisson(exposure=3.0), X=inputs, y=y)
            stage = vsgp.fit_gaussian(progressbar=False)
        found.append((stage.elbo, stage.theta_unconstrained["ls_log__"].item(), stage.mean["u"][0]))
    points, *others = found
    for elbo, log_ls, mean in others:
        assert abs(elbo - points[0]) < 0.8  # spreads between the inputs are approximate
        assert abs(log_ls - points[1]) < 0.15  # of a deviation of 0.19
        np.testing.assert_allclose(mean, points[2], atol=0.15)


@pytest.mark.long
def test_the_stage_says_where_parameters_cannot_move():
    """Sites at many times that are close: the incomplete factor is unstable, and was for long."""
    rng = np.random.default_rng(1)
    sites, times = rng.uniform(size=(15, 2)), np.linspace(0.0, 1.0, 30)
    X = np.column_stack([np.repeat(sites, 30, axis=0), np.tile(times, 15)])
    y = rng.poisson(np.exp(1.0 + np.sin(6.0 * X[:, 2]) + np.cos(3.0 * X[:, 0])))
    with pm.Model():
        ls, time = pm.LogNormal("ls", -1.0, 1.0), pm.LogNormal("time", -1.5, 1.0)
        matern = pm.gp.cov.Matern32
        cov = matern(3, ls=ls, active_dims=[0, 1]) * matern(3, ls=time, active_dims=[2])
        gp = vsgp.VariationalSparse(cov_func=pm.HalfNormal("sd", 2.0) ** 2 * cov)
        kind = vsgp.inducing.NearestNeighbors(X, 20, scale=(0.3, 0.3, 0.05))
        gp.prior("u", inducing=kind)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
    assert not stage.converged
    assert "could not move" in stage.message
