"""Fourier features: against plain numpy, by identity, and on each backend."""

from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_torus

from marks import long
from modes import RAW
from prior_draws import prior_draws
from pymc.model.transform.optimization import freeze_dims_and_data
from recorded import exact
from scipy import special, stats

import pymc_vsgp as vsgp
import pymc_vsgp.fit.bound

from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.natural import _sites_and_offsets
from pymc_vsgp.fit.stage import hand_over
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.inducing.grids import Cells, Product, Series, find_grid
from pymc_vsgp.model.copies import as_sampled

COUNTS = {1: (5,), 2: (4, 3), 3: (2, 1, 2)}
PERIOD = {1: (2.5,), 2: (2.5, 3.0), 3: (2.5, 3.0, 2.0)}
CENTER = {1: (0.4,), 2: (0.4, 0.1), 3: (0.4, 0.1, 0.7)}


def features_of(D, counts=None):
    return vsgp.inducing.Fourier(PERIOD[D], counts or COUNTS[D], CENTER[D])


def build(X, y, features, likelihood=None, n_outputs=1, **kwargs):
    D = X.shape[1]
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3, 8, shape=D)
        variance = pm.Gamma("variance", 2, 1)
        cov = variance * pm.gp.cov.Matern52(D, ls=ls)
        mean = pm.gp.mean.Linear(coeffs=pm.Normal("slope", shape=D), intercept=0.3)
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", inducing=features, n_outputs=n_outputs)
        gp.likelihood("y", likelihood or vsgp.Poisson(), X=X, y=y, **kwargs)
    return model, gp


def point_of(model, seed=0):
    rng = np.random.default_rng(seed)
    start = model.initial_point()
    point = {name: 0.4 * rng.normal(size=np.shape(start[name])) for name in sorted(start)}
    return point | {"ls_log__": point["ls_log__"] - 1.5}


def log_density(X, y, features, point):
    """The model's log density, from dense matrices."""
    ls, variance = np.exp(point["ls_log__"]), np.exp(point["variance_log__"])
    v = point["u_whitened__"]
    f, gamma, *_ = reference_torus.moments(
        X, ls, variance, np.array(features.period), features.n_frequencies, features.center, v
    )
    mu = X @ point["slope"] + 0.3 + f
    total = np.sum(y * mu - np.exp(mu + gamma / 2.0) - special.gammaln(y + 1.0))
    total += stats.norm.logpdf(v).sum() + stats.norm.logpdf(point["slope"]).sum()
    total += np.sum(stats.gamma.logpdf(ls, 3, scale=1 / 8) + np.log(ls))
    return total + stats.gamma.logpdf(variance, 2) + np.log(variance)


def data_of(D, n=23):
    rng = np.random.default_rng(D)
    X = rng.uniform(0.0, 1.0, size=(n, D))
    return X, rng.poisson(2.0, size=n).astype(float)


def grid_of(shape, order):
    axes = [np.sort(np.random.default_rng(d).uniform(0, 1, n)) for d, n in enumerate(shape)]
    places = np.meshgrid(*(axes[c] for c in order), indexing="ij")
    X = np.empty((int(np.prod(shape)), len(shape)))
    for place, c in zip(places, order, strict=True):
        X[:, c] = place.ravel()
    return X


@pytest.mark.slow
@pytest.mark.parametrize(
    ("D", "block_size"),
    [
        *((1, None), (1, 7), (1, False), (2, False), (3, 7)),
        *long((2, None), (2, 7), (3, None), (3, False)),
    ],
)
def test_log_density_equals_plain_numpy(D, block_size):
    X, y = data_of(D)
    model, _ = build(X, y, features_of(D), block_size=block_size)
    point = point_of(model)
    value = model.compile_logp(mode=RAW)(point)
    np.testing.assert_allclose(value, log_density(X, y, features_of(D), point), rtol=1e-9)


# An order that is not its own inverse tells the two apart.
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "order"), [((4, 5), (0, 1)), ((3, 4, 2), (1, 2, 0))])
def test_a_grid_equals_its_rows(shape, order):
    X = grid_of(shape, order)
    y = np.random.default_rng(0).poisson(2.0, size=len(X)).astype(float)
    assert find_grid(X).shape == shape
    assert find_grid(X[::-1]) is not None  # axes may run either way
    features = features_of(len(shape))
    results = []
    for block_size in (None, 7):
        model, _ = build(X, y, features, block_size=block_size)
        fn = value_and_gradient(model, RAW)
        results.append(fn(point_of(model)))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        results[0][0], log_density(X, y, features, point_of(model)), rtol=1e-7
    )


def sites_and_times(n_sites, n_times, time):
    """Sites anywhere in two inputs, each at the same times, which are in the column `time`."""
    rng = np.random.default_rng(1)
    sites, times = rng.uniform(0, 1, (n_sites, 2)), np.sort(rng.uniform(0, 1, n_times))
    X = np.repeat(sites, n_times, axis=0)
    return np.insert(X, time, np.tile(times, n_sites), axis=1)


@pytest.mark.parametrize(
    ("X", "kind"),
    [
        (grid_of((3, 4, 2), (0, 1, 2)), Cells),
        (sites_and_times(6, 5, 1), Product),
        *long(
            (grid_of((4, 5), (0, 1)), Cells),
            *((sites_and_times(6, 5, time), Product) for time in (0, 2)),
        ),
    ],
    ids=["3x4x2", "time between", "4x5", "time first", "time last"],
)
@pytest.mark.slow
def test_some_cells_of_a_grid_equal_their_rows(X, kind):
    """Cells are missing, one is there twice, and they are in any order."""
    rng, features = np.random.default_rng(0), features_of(X.shape[1])
    X = rng.permutation(X)[: int(0.7 * len(X))]
    X = np.vstack([X, X[:1]])
    y = rng.poisson(2.0, size=len(X)).astype(float)
    layout = find_grid(X)
    assert isinstance(layout, kind)
    Phi, _ = reference_torus.waves(X, features.period, features.n_frequencies, features.center)
    w, g = rng.normal(size=Phi.shape[1]), rng.normal(size=len(X))
    v = pt.vector(shape=w.shape)
    waves = layout.waves(features, layout.axes(pt.constant(X)))
    outputs = [layout.combine(features, waves, v), layout.combine_squares(features, waves, v**2)]
    outputs.append(pt.grad(pt.dot(g, outputs[0]), v))
    f, squares, slope = pytensor.function([v], outputs, mode=RAW)(w)
    np.testing.assert_allclose(f, Phi @ w, rtol=1e-9)
    np.testing.assert_allclose(squares, Phi**2 @ w**2, rtol=1e-9)
    np.testing.assert_allclose(slope, Phi.T @ g, rtol=1e-9)
    if X.shape[1] == 2 or kind is Product:
        model, _ = build(X, y, features)
        logp, point = model.compile_logp(mode=RAW), point_of(model)
        np.testing.assert_allclose(logp(point), log_density(X, y, features, point), rtol=1e-9)
        model["y_X"].set_value(X[::-1])
        assert np.isnan(logp(point))


@pytest.mark.long
@pytest.mark.slow
def test_the_function_returns_to_its_prior_beyond_the_window():
    """Never to its other end: numbers of each way to ask, and draws."""
    X, Xnew = np.linspace(3.0, 7.0, 12)[:, None], np.array([[5.0], [8.2], [11.0], [15.0], [-60.0]])
    # Not a literal, which PyTensor would hold in single precision.
    ls, variance, period = (
        np.float64(1.5),
        np.float64(9.0),
        10.0,
    )  # the window: 1.5 beyond the data on either side
    with pm.Model() as model:
        X_ = pm.Data("X", X)
        gp = pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(2.0), cov_func=variance * pm.gp.cov.Matern52(1, ls=ls)
        )
        u = gp.prior("u", inducing=vsgp.inducing.Fourier(period, 9, 5.0))
        gp.likelihood("y", vsgp.Gaussian(0.1), X=X_, y=pm.Data("seen", 4.0 + np.sin(X[:, 0])))
        u = np.random.default_rng(0).normal(size=19)
        mean, spread = gp.predict(Xnew, {"u": u}, diag=True)
        joint_mean, covariance = gp.predict(Xnew, {"u": u})
        gp.conditional("f", pm.Data("Xnew", Xnew), diag=True)
    place = np.clip(Xnew, 1.5, 8.5)
    Phi, omega = reference_torus.waves(place, [period], [9], [5.0])
    S = variance * reference_torus.matern52_density(omega, np.array([ls])) / period
    origin = np.zeros((1, 1))
    total = reference_torus.torus_kernel(origin, origin, np.array([ls]), variance, [period])
    residual = total[0, 0] - S.sum()
    rho = reference_torus.matern52(np.abs(Xnew - place)[:, 0] / ls)
    f = Phi @ (u - np.eye(1, 19)[0] * 2.0)
    np.testing.assert_allclose(mean, 2.0 + rho * f, rtol=1e-9)
    np.testing.assert_allclose(
        spread, rho**2 * residual + (1 - rho**2) * variance, rtol=1e-7, atol=1e-7
    )
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-12)
    np.testing.assert_allclose(np.diag(covariance), spread, rtol=1e-5, atol=1e-6)
    assert np.linalg.eigvalsh(covariance).min() > -1e-6 * variance
    assert (np.abs(mean - 2.0) < 1e-12)[-1] and abs(spread[-1] - variance) < 1e-9
    # Two places on one side are as on the plane, far from each other's side independent.
    k = variance * reference_torus.matern52(4.0 / ls)
    near = rho[2] * rho[3]
    np.testing.assert_allclose(covariance[2, 3], k + near * (residual - variance), rtol=1e-5)
    idata = az.from_dict({"posterior": {"u": u[None, None]}})
    with model:
        moments = vsgp.predict(idata, Xnew, "moments", progressbar=False)
        np.testing.assert_allclose(moments["mean"].values[0, 0], mean, rtol=1e-12)
        # What is left of the prior's variance is a difference.
        np.testing.assert_allclose(moments["variance"].values[0, 0], spread, rtol=1e-12, atol=1e-14)
        many = az.from_dict({"posterior": {"u": np.tile(u, (1, 600, 1))}})
        joint = vsgp.predict(many, Xnew, "f", joint=True, random_seed=1, progressbar=False)
        error = np.cov(joint.values[0].T) - covariance
        assert np.abs(error).max() < 0.2 * variance
        # What users do: replace the data, and draw.
        pm.set_data({"X": np.full((12, 1), 17.0)})
        drawn = pm.sample_posterior_predictive(
            many,
            var_names=["y", "f"],
            freeze_vars=["u"],  # these draws come without the data that they are of
            predictions=True,
            random_seed=1,
            progressbar=False,
            compile_kwargs={"mode": RAW},
        )["predictions"]
    np.testing.assert_allclose(drawn["y"].values.mean(), 2.0, atol=0.1)
    np.testing.assert_allclose(drawn["y"].values.std(), 3.0, rtol=0.05)
    np.testing.assert_allclose(drawn["f"].values[0].std(axis=0), np.sqrt(spread), rtol=0.12)
    # Data there are not what the coefficients can tell: no number at all.
    assert np.isnan(model.compile_logp(mode=RAW)(model.initial_point()))


def test_data_longer_than_the_period_are_refused():
    X, y = data_of(2)
    with pytest.raises(ValueError, match="Column 1 of X has the range.*period="):
        build(X, y, vsgp.inducing.Fourier((2.0, 0.5), 3))
    with pm.Model():  # of two likelihoods together
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.3))
        gp.prior("u", inducing=vsgp.inducing.Fourier(2.0, 3))
        gp.likelihood("y", vsgp.Poisson(), X=X[:, :1], y=y)
        with pytest.raises(ValueError, match="period="):
            gp.likelihood("z", vsgp.Poisson(), X=X[:, :1] + 1.5, y=y)


@pytest.mark.slow
@pytest.mark.parametrize("change", [*long("shuffled"), "moved"])
def test_a_grid_whose_rows_are_replaced_is_never_wrong(change):
    X = grid_of((4, 5), (0, 1))
    y = np.ones(20)
    model, _ = build(X, y, features_of(2))
    logp, point = model.compile_logp(mode=RAW), point_of(model)
    if change == "moved":  # another grid of that shape
        X = X + 0.05
        model["y_X"].set_value(X)
        np.testing.assert_allclose(logp(point), log_density(X, y, features_of(2), point), rtol=1e-7)
    else:
        model["y_X"].set_value(np.random.default_rng(0).permutation(X))
        assert np.isnan(logp(point))


def value_and_gradient(model, mode):
    logp = model.logp()
    gradient = pt.grad(logp, sorted(model.continuous_value_vars, key=lambda v: v.name))
    return model.compile_fn([logp, *gradient], mode=mode, on_unused_input="ignore")


@pytest.mark.long
@pytest.mark.slow
# Without a C compiler PyTensor joins no more than 32 operands, for numba, too.
@pytest.mark.filterwarnings("ignore:Loop fusion failed:UserWarning")
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *(("JAX", "grid"), ("JAX", "rows"), ("JAX", "sites")),
        *(("NUMBA", "rows"), ("NUMBA", "sites")),
    ],
)
def test_backends_agree(mode, kind):
    if kind == "rows":
        X, y = data_of(2)
    else:
        X = grid_of((4, 5), (1, 0)) if kind == "grid" else sites_and_times(4, 5, 1)
        y = np.arange(20.0) % 4
    if mode == "JAX":
        pytest.importorskip("jax")
    features = features_of(X.shape[1])
    model, _ = build(X, y, features, block_size=7 if kind == "rows" else None)
    point = point_of(model)
    ordinary = value_and_gradient(build(X, y, features, block_size=False)[0], RAW)(point)
    streamed = value_and_gradient(freeze_dims_and_data(model), mode)(point)
    for a, b in zip(streamed, ordinary, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("D", [1, 2])
def test_residual_is_that_of_dense_matrices(D, rng):
    """diag(Kff - Qff) on the torus, and Qff tends to Kff with all frequencies."""
    X = rng.uniform(size=(6, D))
    ls, variance = np.full(D, 0.4), 1.7
    cov = variance * pm.gp.cov.Matern52(D, ls=ls)
    K = reference_torus.torus_kernel(X, X, ls, variance, np.array(PERIOD[D]))
    for n in (3, 12):
        features = features_of(D, (n,) * D)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        with pm.Model():
            gp.prior("u", inducing=features)
            _, gamma = gp.predict(X, {"u": np.zeros(features.n_features)}, diag=True)
            _, covariance = gp.predict(X, {"u": np.zeros(features.n_features)})
        Phi, _ = reference_torus.waves(X, PERIOD[D], features.n_frequencies, CENTER[D])
        S = features.variances(cov).eval()
        expected = K - Phi @ np.diag(S) @ Phi.T
        np.testing.assert_allclose(gamma, np.diag(expected), rtol=1e-5)
        np.testing.assert_allclose(covariance, expected, atol=1e-6 * variance)
    assert gamma.max() < 0.01 * variance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "scale"), [(80, "inferred"), *long((80, "known"), (4, "inferred"), (4, "known"))]
)
def test_a_stage_of_several_functions(n, scale, rng):
    X = rng.uniform(0.0, 10.0, size=(30, 1))
    labels = (X[:, 0] // 4).astype(int)
    with pm.Model():
        scale = pm.HalfNormal("scale") if scale == "inferred" else 1.2
        gp = pm.gp.VariationalSparse(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=2.0))
        gp.prior("u", inducing=vsgp.inducing.Fourier(16.0, n, 5.0), n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=labels)
        stage = vsgp.fit_gaussian(progressbar=False)
    assert stage.converged
    features = vsgp.inducing.Fourier(16.0, n, 5.0)
    Phi, _ = reference_torus.waves(X, features.period, features.n_frequencies, features.center)
    assert (np.argmax(Phi @ stage.mean["u"].T, axis=1) == labels).mean() > 0.8


@pytest.mark.slow
def test_gradient_where_nothing_is_left_out():
    """A smooth kernel and a likelihood by quadrature, which takes the root of the variance."""
    X, y = data_of(1)
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3, 8)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", inducing=vsgp.inducing.Fourier(2.5, 12, 0.5))
        gp.likelihood("y", vsgp.StudentT(nu=4.0, sigma=0.5), X=X, y=y)
    point = model.initial_point() | {"ls_log__": np.log(2.0)}
    assert np.isfinite(model.compile_dlogp(mode=RAW)(point)).all()


def test_long_period_gives_the_process_on_the_line():
    """Mean and variance of the prediction of the exact process with normal noise."""
    rng = np.random.default_rng(3)
    X, Xnew = np.sort(rng.uniform(0, 1, (20, 1)), axis=0), np.linspace(-0.2, 1.2, 15)[:, None]
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=20)
    cov = 1.3 * pm.gp.cov.Matern52(1, ls=0.3)
    mean = pm.gp.mean.Constant(0.7)
    features = vsgp.inducing.Fourier(5.0, 60, 0.5)
    # The coefficients' posterior with normal noise, from dense matrices.
    (Phi, omega), (Phi_new, _) = (
        reference_torus.waves(x, features.period, features.n_frequencies, features.center)
        for x in (X, Xnew)
    )
    S = 1.3 * reference_torus.matern52_density(omega, np.array([0.3])) / features.period[0]
    covariance = np.linalg.inv(np.diag(1.0 / S) + Phi.T @ Phi / 0.01)
    u = covariance @ Phi.T @ (y - 0.7) / 0.01
    u[0] += 0.7
    with pm.Model():
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", inducing=features)
        found, gamma = gp.predict(Xnew, {"u": u}, diag=True)
    with pm.Model():
        exact = pm.gp.Marginal(mean_func=mean, cov_func=cov)
        exact.marginal_likelihood("y", X=X, y=y, sigma=0.1)
        expected, variance = exact.predict(Xnew, {}, diag=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    spread = gamma + np.sum((Phi_new @ covariance) * Phi_new, axis=1)
    np.testing.assert_allclose(spread, variance, atol=1e-3)


@pytest.fixture(scope="module", params=["few", "many"])
def fitted(request):
    """A model with random sites and offsets, and its bound; with many waves q is independent."""
    X, y = data_of(1)
    features = features_of(1)
    model, _ = build(X, y, features)
    rng = np.random.default_rng(4)
    shape = (1, features.n_features)
    many = request.param == "many"
    root = rng.uniform(0.0, 3.0, size=shape if many else (*shape, shape[1]))
    sites = [Sites(rng.normal(size=shape), root)]
    offsets = [0.3 * rng.normal(size=shape) for _ in range(2)] if many else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5 if many else 50)
        bound = Bound(model, mode=RAW)
    theta = 0.3 * rng.normal(size=bound.start.size)
    theta[bound.names.index("ls_log__")] -= 1.5
    return X, y, features, bound, theta, sites, offsets


@pytest.mark.slow
def test_bound_equals_an_independent_one(fitted):
    X, y, features, bound, theta, sites, offsets = fitted
    point = {name: np.asarray(x) for name, x in bound.unravel(theta).items()}
    ls, variance = np.exp(point["ls_log__"]), np.exp(point["variance_log__"])
    nothing = np.zeros(features.n_features)
    _, residual, Phi, S = reference_torus.moments(
        X, ls, variance, np.array(features.period), features.n_frequencies, features.center, nothing
    )
    scale, root = np.diag(np.sqrt(S)), sites[0].root[0]
    root = root if root.ndim == 2 else np.diag(root)
    # The mean at the center is that of the first coefficient, which the sites are of.
    mean = np.eye(1, len(S))[0] * (point["slope"][0] * features.center[0] + 0.3)
    P = np.eye(len(S)) + scale @ root @ root.T @ scale
    m = np.linalg.solve(P, scale @ (sites[0].linear[0] - root @ root.T @ mean))
    covariance = np.linalg.inv(P)
    if offsets:
        m = m + offsets[0][0] / np.sqrt(np.diag(P))
        covariance = np.diag(np.exp(2.0 * offsets[1][0]) / np.diag(P))
    mu = X @ point["slope"] + 0.3 + Phi @ scale @ m
    spread = residual + np.sum((Phi @ scale @ covariance @ scale) * Phi, axis=1)
    value = np.sum(y * mu - np.exp(mu + spread / 2.0) - special.gammaln(y + 1.0))
    value -= 0.5 * (np.trace(covariance) + m @ m - len(S) - np.linalg.slogdet(covariance)[1])
    value += stats.norm.logpdf(point["slope"]).sum()
    value += np.sum(stats.gamma.logpdf(ls, 3, scale=1 / 8) + np.log(ls))
    value += stats.gamma.logpdf(variance, 2) + np.log(variance)
    np.testing.assert_allclose(bound(theta, sites, offsets).value, value, rtol=1e-9)


@pytest.mark.slow
def test_gradient_of_the_bound(fitted):
    *_, bound, theta, sites, offsets = fitted
    x = np.concatenate([theta, *(o.ravel() for o in offsets)])
    d = theta.size

    def at(x):
        return bound(x[:d], sites, [part[None] for part in np.split(x[d:], 2) if part.size])

    gradient = at(x).gradient
    for i, step in enumerate(1e-5 * np.eye(x.size)):
        slope = (at(x + step).value - at(x - step).value) / 2e-5
        np.testing.assert_allclose(gradient[i], slope, rtol=1e-5, atol=1e-6)


def test_sites_that_follow_leave_q_as_it_is(fitted):
    *_, bound, theta, sites, offsets = fitted
    if not offsets:
        pytest.skip("few coefficients have natural gradients in place of offsets")
    before = bound(theta, sites, offsets)
    new, *left = _sites_and_offsets(before, 0)
    after = bound(theta, [new], left)
    np.testing.assert_allclose(after.value, before.value, rtol=1e-10)
    np.testing.assert_allclose(after.mean[0], before.mean[0], rtol=1e-8)
    np.testing.assert_allclose(after.factor[0], before.factor[0], rtol=1e-8)


def test_the_constant_alone_has_a_stage():
    """A root of its variance has as many columns as the variance; the bound is that by hand."""
    X, y = data_of(1)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.7))
        gp.prior("u", inducing=vsgp.inducing.Fourier(3.0, 0, 0.5))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    prior = gp._prior.kind
    (S,), residual = (x.eval(mode=RAW) for x in (prior.variances, prior.residual))
    bound, linear, root = Bound(model, mode=RAW), 0.7, 2.0
    sites = [Sites(np.array([[linear]]), np.array([[[root]]]))]
    v = 1.0 / (1.0 + S * root**2)
    m = np.sqrt(S) * linear * v
    mu, spread = np.sqrt(S) * m, residual + S * v
    value = np.sum(y * mu - np.exp(mu + spread / 2.0) - special.gammaln(y + 1.0))
    value -= 0.5 * (v + m**2 - 1.0 - np.log(v))
    np.testing.assert_allclose(bound(bound.start, sites).value, value, rtol=1e-9)


def test_single_numbers_are_those_of_every_input():
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=1.0))
    with pm.Model():
        u = gp.prior("u", inducing=vsgp.inducing.Fourier(4.0, 3))
    assert u.eval().shape == (49,)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("most_dense", [0, 1000])
def test_nested_features_raise_the_bound(most_dense, monkeypatch):
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", most_dense)
    X, y = data_of(2, n=60)
    bounds = []
    for n in (1, 3):
        model, _ = build(X, y, features_of(2, (n, n)))
        stage = vsgp.fit_gaussian(progressbar=False, model=model)
        assert stage.converged
        bounds.append(stage.elbo)
    assert np.all(np.diff(bounds) > -1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_outputs", "dense"), [(3, True), *long((3, False), (1, True), (1, False))]
)
def test_density_in_the_users_variables_does_not_depend_on_sites(n_outputs, dense, rng):
    X, y = data_of(1)
    likelihood = vsgp.Poisson() if n_outputs == 1 else vsgp.Softmax(3)
    labels = y if n_outputs == 1 else y % 3
    model, _ = build(X, labels, features_of(1), likelihood, n_outputs)
    u = model["u"]
    M = features_of(1).n_features
    theta = point_of(model)
    theta.pop("u_whitened__")
    value = 0.4 * rng.normal(size=(M,) if n_outputs == 1 else (n_outputs, M))
    results = []
    shape = (n_outputs, M, M) if dense else (n_outputs, M)
    for sites in (None, Sites(rng.normal(size=(n_outputs, M)), rng.normal(size=shape))):
        if sites is not None:
            hand_over(model, {"u": sites}, {})
        transform = model.rvs_to_transforms[u]
        inputs = model.replace_rvs_by_values(list(u.owner.inputs))
        epsilon = transform.forward(pt.constant(value), *inputs)
        jacobian = transform.log_jac_det(epsilon, *inputs).sum()
        back = transform.backward(epsilon, *inputs)
        names = [v.name for v in model.value_vars if v.name in theta]
        fn = model.compile_fn(
            [epsilon, jacobian, back],
            inputs=[v for v in model.value_vars if v.name in names],
            mode=RAW,
            on_unused_input="ignore",
        )
        eps, jac, again = fn({name: theta[name] for name in names})
        np.testing.assert_allclose(again, value, rtol=1e-8, atol=1e-12)
        where = model.rvs_to_values[u].name
        results.append(model.compile_logp(mode=RAW)({**theta, where: eps}) - jac)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-8)
    vsgp.reset(model)
    assert type(model.rvs_to_transforms[u]).__name__ == "Whitened"


@pytest.mark.slow
def test_components_of_a_sum_add_up(rng):
    X = rng.uniform(size=(5, 1))
    parts = [
        pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=1.2 * pm.gp.cov.Matern52(1, ls=0.3)
        ),
        pm.gp.VariationalSparse(cov_func=0.5 * pm.gp.cov.ExpQuad(1, ls=0.9)),
    ]
    total = parts[0] + parts[1]
    features = features_of(1, (30,))
    with pm.Model():
        total.prior("u", inducing=features)
        point = {"u": rng.normal(size=features.n_features) * 0.1}
        mean, covariance = total.predict(X, point)
        each = [gp.predict(X, point, given={"gp": total}) for gp in parts]
    np.testing.assert_allclose(sum(m for m, _ in each), mean, rtol=1e-9)
    # Each explains its part of what the sum explains; what is left over correlates them.
    for _, c in each:
        assert np.all(np.linalg.eigvalsh(c) > -1e-9)
    assert np.all(np.diag(each[0][1]) + np.diag(each[1][1]) >= np.diag(covariance) - 1e-9)


def test_for_data_keeps_what_it_promises(rng):
    X = rng.uniform(0.0, 10.0, size=(40, 1))
    with pm.Model():
        cov = pm.gp.cov.Matern52(1, ls=pm.Uniform("ls", 1.0, 3.0))
        features = vsgp.inducing.Fourier.for_data(
            X, cov, residual=0.01, wrap=0.01, quantile=1.0, random_seed=0
        )
    gap = features.period[0] - np.ptp(X)
    assert reference_torus.matern52(gap / 3.0) <= 0.02
    S = reference_torus.matern52_density(features.omega, np.array([1.0])) / features.period[0]
    assert 1.0 - S.sum() <= 0.012
    assert features.at_most(9).n_features <= 9


@pytest.mark.long
@pytest.mark.slow
def test_for_data_says_what_it_leaves_out_for_lack_of_features(rng):
    X = rng.uniform(size=(60, 3))
    with pm.Model():
        cov = pm.gp.cov.Matern32(3, ls=pm.LogNormal("ls", -2.0, 0.5))
        with pytest.warns(UserWarning, match="leave out [5-9].% of the variance"):
            features = vsgp.inducing.Fourier.for_data(X, cov, max_features=500)
        assert features.n_features <= 500
        every = vsgp.inducing.Fourier.for_data(X, cov, max_features=None)
        assert every.n_features > 4000


@pytest.mark.slow
@pytest.mark.parametrize("scale", [*long(0.0005), 0.01, 0.1, 1.0])
@pytest.mark.parametrize("residual", [0.02, 1e-3, 1e-5])
def test_for_data_leaves_out_what_is_asked(scale, residual):
    """Not much less either: more waves than that would be wasted."""
    X = np.array([[0.0], [3.0]])
    ls = 3.0 * scale
    features = vsgp.inducing.Fourier.for_data(
        X, pm.gp.cov.Matern52(1, ls=ls), residual=residual, max_features=10**6
    )
    (k,), w = features.n_frequencies, 2.0 * np.pi / features.period[0]
    n = np.arange(1, 2_000_000)
    mass = np.r_[1.0, 2.0 * (1.0 + (n * w * ls) ** 2 / 5.0) ** -3]
    left = mass[k + 1 :].sum() / mass.sum()
    assert left <= 1.05 * residual
    assert left + mass[k] / mass.sum() > 0.5 * residual


@pytest.mark.parametrize("ls", [20.0, 100.0])
def test_for_data_takes_few_waves_of_long_lengthscales(ls):
    """Long ones get a torus to match; on one that is given they leave nothing to the waves."""
    X, cov = np.array([[0.0], [1.0]]), pm.gp.cov.Matern52(1, ls=ls)
    features = vsgp.inducing.Fourier.for_data(X, cov, draws=2)
    (period,), (k,) = features.period, features.n_frequencies
    assert reference_torus.matern52((period - 1.0) / ls) <= 0.021
    mass = (1.0 + (np.arange(200_000) * 2.0 * np.pi * ls / period) ** 2 / 5.0) ** -3
    mass[1:] *= 2.0
    left = 1.0 - np.cumsum(mass) / mass.sum()
    assert k == np.argmax(left <= 0.005)
    assert vsgp.inducing.Fourier.for_data(X, cov, draws=2, periodic={0: 1.0}).n_features == 1


@pytest.mark.slow
@pytest.mark.parametrize("ls", [100.0, 1e5])
def test_for_data_of_a_short_and_a_long_part(ls):
    """A torus that is long enough for the long part would take thousands of waves of the other."""
    cov = pm.gp.cov.Matern52(1, ls=0.2) + pm.gp.cov.Matern52(1, ls=ls)
    found = vsgp.inducing.Fourier.for_data(np.array([[0.0], [1.0]]), cov)
    assert found.n_features < 50
    total, left = (x.eval() for x in found.spectrum(cov))
    assert left / total < 0.005


def test_for_data_needs_a_spectral_density(monkeypatch):
    """It is asked for first: without it, thousands of waves may not be enough."""
    monkeypatch.setattr("pymc_vsgp.inducing.fourier._draws_along", None)
    first, second = (pm.gp.cov.Matern52(2, ls=0.3, active_dims=[i]) for i in range(2))
    third = pm.gp.cov.Matern52(3, ls=0.3, active_dims=[2]) ** 2
    for cov, X in ((first + second, np.eye(2)), (third, np.eye(3))):
        with pytest.raises((ValueError, NotImplementedError), match="spectral density"):
            vsgp.inducing.Fourier.for_data(X, cov)


def test_for_data_of_a_wide_prior_counts_no_kinks():
    """The number is that of short lengthscales, and the torus no longer than they allow."""
    with pm.Model():
        ls = pm.math.switch(pm.Bernoulli("short", 0.5), 0.5, 20.0)
        cov = pm.gp.cov.ExpQuad(1, ls=ls)
        features = vsgp.inducing.Fourier.for_data(np.array([[0.0], [1.0]]), cov, draws=50)
    mass = np.exp(-0.5 * (2.0 * np.pi * 0.5 / 5.0 * np.arange(500)) ** 2)
    mass[1:] *= 2.0
    assert features.period == (5.0,)
    assert features.n_frequencies[0] == np.argmax(1.0 - np.cumsum(mass) / mass.sum() <= 0.005)


BAD = {
    "both": (
        lambda gp, X: gp.prior("u", Xu=X, inducing=features_of(1)),
        TypeError,
        "Pass one of Xu and inducing",
    ),
    "neither": (lambda gp, X: gp.prior("u"), TypeError, "Pass one of Xu and inducing"),
    "not features": (lambda gp, X: gp.prior("u", inducing=X), TypeError, "not a type of inducing"),
    "period": (lambda gp, X: vsgp.inducing.Fourier(-1.0, 3), ValueError, "positive numbers"),
    "period is a word": (lambda gp, X: vsgp.inducing.Fourier("a", 3), TypeError, "period is of"),
    "center": (lambda gp, X: vsgp.inducing.Fourier(1.0, 3, np.nan), ValueError, "center is nan"),
    "periodic": (
        lambda gp, X: vsgp.inducing.Fourier(1.0, 3, periodic="no"),
        TypeError,
        "periodic is of type str",
    ),
    "residual": (
        lambda gp, X: vsgp.inducing.Fourier.for_data(X, gp.cov_func, residual=np.nan),
        ValueError,
        "residual is nan. Pass a number from 0 to 1",
    ),
    "no kernel": (
        lambda gp, X: vsgp.suggest_inducing(X, None),
        TypeError,
        "cov_func is of type NoneType",
    ),
    "count": (lambda gp, X: vsgp.inducing.Fourier(1.0, 2.5), ValueError, "whole numbers"),
    "columns": (lambda gp, X: vsgp.inducing.Fourier((1.0,) * 4, 3), ValueError, "inducing points"),
    "entries": (lambda gp, X: vsgp.inducing.Fourier((1.0, 2.0), (3, 3, 3)), ValueError, "entries"),
    "kernel's columns": (
        lambda gp, X: gp.prior("u", inducing=features_of(2)),
        ValueError,
        "columns .0. of 1. Pass 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case, rng):
    act, error, message = BAD[case]
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
    with pm.Model(), pytest.raises(error, match=message):
        act(gp, rng.normal(size=(5, 1)))


@pytest.mark.parametrize(
    ("cov", "message"),
    [
        (pm.gp.cov.Linear(1, c=0.0), "no spectral density"),
        (
            pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0])
            + pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[1]),
            "no spectral density|one for each term",
        ),
        (pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0]), "columns .0. of 2. Pass 1"),
    ],
)
def test_kernels_without_a_density(cov, message):
    gp = pm.gp.VariationalSparse(cov_func=cov)
    with pm.Model(), pytest.raises(ValueError, match=message):
        gp.prior("u", inducing=features_of(cov.input_dim))


@pytest.mark.slow
def test_the_same_data_have_the_same_features(rng):
    """So that models of them have the same graph, and what was compiled serves again."""
    X = rng.uniform(size=(20, 1))

    def features(**kwargs):
        ls = pm.InverseGamma.dist(mu=1.0, sigma=0.3)
        cov = pm.gp.cov.ExpQuad(1, ls=ls)
        return vsgp.inducing.Fourier.for_data(X, cov, draws=20, **kwargs)

    assert features() == features()
    assert features() != features(random_seed=2)


@pytest.mark.slow
def test_product_of_kernels_of_separate_columns(rng):
    X = rng.uniform(size=(6, 2))
    cov = (
        2.0
        * pm.gp.cov.Matern52(2, ls=0.4, active_dims=[0])
        * pm.gp.cov.ExpQuad(2, ls=0.5, active_dims=[1])
    )
    gp = pm.gp.VariationalSparse(cov_func=cov)
    features = vsgp.inducing.Fourier(4.0, (25, 12))
    with pm.Model():
        gp.prior("u", inducing=features)
        _, covariance = gp.predict(X, {"u": np.zeros(features.n_features)})
    assert np.abs(covariance).max() < 0.02  # all but all of the variance is in the waves


@pytest.mark.long
@pytest.mark.slow
def test_posterior_agrees_with_the_exact_process():
    """Short data, a long period and many waves: the exact sampler's posterior."""
    X, y = exact.short_data()
    with pm.Model():
        ls, variance = pm.Gamma("ls", 6, 20), pm.Gamma("variance", 3, 3)
        gp = pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.8), cov_func=variance * pm.gp.cov.Matern52(1, ls=ls)
        )
        gp.prior("u", inducing=vsgp.inducing.Fourier(3.5, 40, 0.5))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        ours = vsgp.sample(1000, random_seed=5, progressbar=False)
    for name in ("ls", "variance"):
        drawn, wanted = np.log(ours.posterior[name]), exact.load("short")[name]
        error = np.hypot(float(az.mcse(drawn)), wanted["mcse"])
        assert abs(float(drawn.mean()) - wanted["mean"]) < 4.0 * error + 0.02
        assert float(az.rhat(drawn)) < 1.02


@pytest.fixture(scope="module")
def drawn():
    """Draws of the Gaussian stage of a model with waves over a grid, exposure on each row."""
    X = grid_of((4, 5), (0, 1))
    y = np.random.default_rng(0).poisson(2.0, size=20)
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3, 8)
        gp = pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=1.3 * pm.gp.cov.Matern52(2, ls=ls)
        )
        gp.prior("u", inducing=features_of(2))
        gp.likelihood("y", vsgp.Poisson(exposure=np.linspace(0.5, 1.5, 20)), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
    assert "35 coefficients" not in repr(stage)
    assert "63 coefficients" in repr(stage)
    return model, gp, X, stage.to_datatree(draws=60, random_seed=1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")  # few draws
def test_what_one_does_with_draws(drawn):
    """Each of them once, and moments against those of the model itself."""
    model, gp, X, idata = drawn
    Xnew = np.random.default_rng(2).uniform(size=(6, 2))
    with model:
        moments = vsgp.predict(idata, Xnew, "moments", progressbar=False)
        point = {n: idata.posterior[n].values[0, 3] for n in ("ls", "u")}
        mean, variance = gp.predict(Xnew, point, diag=True)
        _, covariance = gp.predict(Xnew, point)
        joint = vsgp.predict(idata, Xnew, "f", joint=True, random_seed=1, progressbar=False)
        check = vsgp.check_inducing(idata, random_seed=0, progressbar=False)
        assert vsgp.check_model().ok
        assert np.isfinite(vsgp.loo(idata, progressbar=False).elpd)
        assert vsgp.exact_weights(idata, random_seed=0, progressbar=False).log_weights.size == 60
    np.testing.assert_allclose(moments["mean"][0, 3], mean, rtol=1e-8)
    np.testing.assert_allclose(moments["variance"][0, 3], variance, rtol=1e-8)
    np.testing.assert_allclose(np.diag(covariance), variance, rtol=1e-5)
    assert joint.shape == (1, 60, 6)
    assert check.numbers == {"u": 63}
    assert "63 Fourier coefficients" in repr(check)


@pytest.mark.long
@pytest.mark.slow
def test_a_short_period_is_told():
    X, y = data_of(1)
    with pm.Model():
        ls = pm.Gamma("ls", 30, 40)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", inducing=vsgp.inducing.Fourier(1.1, 8, 0.5))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        with pytest.warns(UserWarning, match="period of 'u' leaves too little room"):
            stage = vsgp.fit_gaussian(progressbar=False)
        idata = stage.to_datatree(draws=10, random_seed=1)
        check = vsgp.check_inducing(idata, nested=False, random_seed=0, progressbar=False)
        assert any("Fourier(period=...)" in a for a in vsgp.check_model().advice)
        assert vsgp.check_model({"ls": 0.02}).ok
    with pm.Model():
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.8))
        gp.prior("u", inducing=vsgp.inducing.Fourier(1.1, 8, 0.5))
        with pytest.warns(UserWarning, match="ends are correlated by 0.9"):
            gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    assert check.wrap > 0.5
    assert check.verdict == "too few"
    assert "The period is short" in check.advice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_frequencies", "periodic", "advised"),
    [(10, False, False), (11, False, True), (11, True, False)],
)
def test_points_are_advised_where_there_are_as_few(n_frequencies, periodic, advised):
    X, y = data_of(1)
    X[1] = X[0]  # 22 inputs of 23 rows; coefficients are 21 and 23
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.1))
        gp.prior("u", inducing=vsgp.inducing.Fourier(2.0, n_frequencies, 0.5, periodic))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    options = {"nested": False, "progressbar": False, "model": model}
    check = vsgp.check_inducing(prior_draws(model, 2), **options)
    for structure, missing in ((0.0, 1.0), (0.0, 99.0), (9.0, 0.0)):
        missed = np.full(2, missing)
        found = replace(check, structure=structure, missing=missed, wrap=0.0).advice
        assert ("se Xu = X (exact)" in found) == advised
        assert ("twice as many" in found) == (not advised and missing != 1.0)
        assert ("raise n_frequencies" in found) == (structure == 0.0)


@pytest.mark.long
@pytest.mark.parametrize("most_dense", [0, 1000])
def test_minibatches(most_dense, monkeypatch):
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", most_dense)
    X, y = data_of(1, n=60)
    full = vsgp.fit_gaussian(progressbar=False, model=build(X, y, features_of(1))[0])
    model, _ = build(X, y, features_of(1))
    some = vsgp.fit_gaussian(
        "minibatch", maxiter=700, batch_size=30, random_seed=1, progressbar=False, model=model
    )
    covariance = full.covariance["u"][0]
    spread = np.sqrt(np.diag(covariance) if covariance.ndim == 2 else covariance)
    assert np.abs((some.mean["u"] - full.mean["u"]) / spread).max() < 1.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("n", [301])
def test_a_series_equals_its_rows(n, many, monkeypatch):
    """Value, gradient, and the bound with its gradient."""
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5 if many else 50)
    X = np.linspace(-0.3, 1.2, n)[:, None]
    assert find_grid(X) == Series(n)
    assert find_grid(X**3) is None
    y = np.random.default_rng(0).poisson(2.0, size=n).astype(float)
    features = features_of(1)
    results, bounds = [], []
    for block_size in (None, 100):
        model, _ = build(X, y, features, block_size=block_size)
        results.append(value_and_gradient(model, RAW)(point_of(model)))
        bound = Bound(model, mode=RAW)
        rng = np.random.default_rng(1)
        sites = [Sites(*(rng.normal(size=x.shape) for x in s[:2])) for s in bound.no_sites()]
        offsets = [0.3 * rng.normal(size=x.shape) for x in bound.no_offsets()]
        evaluation = bound(bound.start, sites, offsets)
        bounds.append([evaluation.value, evaluation.gradient, *evaluation.precision])
    for a, b in [*zip(*results, strict=True), *zip(*bounds, strict=True)]:
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        results[0][0], log_density(X, y, features, point_of(model)), rtol=1e-8
    )
    model, _ = build(X, y, features)
    model["y_X"].set_value(np.sort(X + 0.01 * np.sin(40 * X), axis=0))
    assert np.isnan(model.compile_logp(mode=RAW)(point_of(model)))


@pytest.mark.long
@pytest.mark.slow
def test_minibatches_of_a_grid():
    X = grid_of((4, 5), (0, 1))
    model, _ = build(X, np.ones(20), features_of(2))
    stage = vsgp.fit_gaussian("minibatch", maxiter=40, batch_size=8, progressbar=False, model=model)
    assert np.isfinite(stage.elbo_history).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"period": (2.6,)}, r"have period=2\.6, and the draws are of period=2\.5\. Build the"),
        ({"n_frequencies": (6,)}, "have n_frequencies=6, and the draws are of n_frequencies=5"),
        ({"center": (0.5,)}, r"have center=0\.5, and the draws are of center=0\.4"),
    ],
)
def test_draws_of_other_waves(changed, message):
    """Their coefficients mean something else."""
    X, y = data_of(1)
    idata = prior_draws(build(X, y, features_of(1))[0])
    other = build(X, y, replace(features_of(1), **changed))[0]
    with pytest.raises(ValueError, match=message):
        vsgp.predict(idata, X, "moments", model=other, progressbar=False)
    with pytest.raises(ValueError, match=message):
        as_sampled(other, idata["constant_data"].to_dataset())


@pytest.mark.slow
def test_draws_keep_the_window_of_their_data():
    """Functions at all of these data are sums of waves, whatever rows the model has now."""
    X, y = data_of(1)
    model, few = (build(x, y[: len(x)], features_of(1))[0] for x in (X, 0.5 + 0.01 * X[:5]))
    idata = prior_draws(model)
    assert np.ptp(X) > 0.9
    Xnew = np.linspace(-0.3, 1.3, 9)[:, None]
    means = []
    for m in (model, few):
        found = vsgp.predict(idata, Xnew, "moments", model=m, progressbar=False)
        means.append(found["mean"].values[0])
    np.testing.assert_allclose(*means, rtol=1e-12)
    Phi, _ = reference_torus.waves(Xnew, PERIOD[1], COUNTS[1], CENTER[1])
    slope, u = (idata["posterior"][name].values[0] for name in ("slope", "u"))
    w = u - np.eye(1, u.shape[1]) * (0.3 + CENTER[1][0] * slope)
    np.testing.assert_allclose(means[0], 0.3 + slope * Xnew[:, 0] + w @ Phi.T, rtol=1e-9)
    del idata["constant_data"]  # as of a version that did not keep it
    found = vsgp.predict(idata, Xnew, "moments", model=model, progressbar=False)
    np.testing.assert_allclose(found["mean"].values[0], means[0], rtol=1e-12)
