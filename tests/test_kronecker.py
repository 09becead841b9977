"""Values at pairs of places, against dense matrices and against points at all pairs."""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from marks import long
from modes import RAW
from prior_draws import prior_draws
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.traversal import ancestors
from scipy import special, stats

import pymc_vsgp as vsgp
import pymc_vsgp.fit.bound
import pymc_vsgp.fit.correlated
import pymc_vsgp.fit.turns

from pymc_vsgp.compile import ONCE
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.correlated import CorrelatedBound, can_correlate
from pymc_vsgp.fit.turns import back, for_nuts, forth
from pymc_vsgp.inducing.coordinates import Diagonal, Known, Sites
from pymc_vsgp.inducing.grids import Panel
from pymc_vsgp.model.copies import as_sampled

SITES, TIMES = 5, 7
# Not literals, which PyTensor would hold in single precision.
LS, LS_TIME, VARIANCE, LEVEL = 0.6, np.float64(0.3), 1.7, np.float64(0.3)


def places(n_sites=SITES, n_times=TIMES):
    rng = np.random.default_rng(0)
    return rng.uniform(size=(n_sites, 2)), np.sort(rng.uniform(size=(n_times, 1)), axis=0)


def pairs(sites, times):
    return np.column_stack([np.repeat(sites, len(times), axis=0), np.tile(times, (len(sites), 1))])


def matern52(x, z, ls):
    r = np.sqrt(5.0 * ((x[:, None] - z) ** 2).sum(axis=-1) / ls**2 + 5e-12)  # as in pm.gp
    return (1.0 + r + r**2 / 3.0) * np.exp(-r)


def kernel(x, z, ls=LS, ls_time=LS_TIME, variance=VARIANCE):
    """The product, in numpy."""
    return variance * matern52(x[:, :2], z[:, :2], ls) * matern52(x[:, 2:], z[:, 2:], ls_time)


def data(n=21, seed=1):
    """Some pairs in any order, one of them twice."""
    rng, cells = np.random.default_rng(seed), pairs(*places())
    X = np.vstack([rng.choice(cells, n - 1, replace=n > len(cells)), cells[:1]])
    return X, rng.poisson(2.0, size=n).astype(float)


def build(X, y, inducing, *, n_outputs=1, likelihood=None, jitter=None, **kwargs):
    """The model, with a linear mean."""
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3.0, 4.0)
        variance = pm.Gamma("variance", 2.0, 1.0)
        slope = pm.Normal("slope", 0.0, 1.0, shape=3)
        matern = pm.gp.cov.Matern52
        cov = variance * matern(3, ls=ls, active_dims=[0, 1])
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(coeffs=slope, intercept=LEVEL),
            cov_func=cov * matern(3, ls=LS_TIME, active_dims=[2]),
        )
        prior = {"inducing": inducing} if not isinstance(inducing, np.ndarray) else {"Xu": inducing}
        prior |= {} if jitter is None else {"jitter": jitter}
        gp.prior("u", n_outputs=n_outputs, **prior)
        gp.likelihood("y", likelihood or vsgp.Poisson(), X=X, y=y, **kwargs)
    return model, gp


def point_of(model, seed=3):
    rng = np.random.default_rng(seed)
    start = model.initial_point()
    return {k: v + 0.3 * rng.normal(size=np.shape(v)) for k, v in start.items()}


def value_and_gradient(model, mode=RAW):
    logp = model.logp()
    values = sorted(model.continuous_value_vars, key=lambda v: v.name)
    return model.compile_fn([logp, *pt.grad(logp, values)], mode=mode, on_unused_input="ignore")


def dense(model, point, X, kind):
    """Mean, variance and covariance of f at X, and the prior of u, by matrices of all pairs."""
    ls, variance = np.exp(point["ls_log__"]), np.exp(point["variance_log__"])
    slope, v = point["slope"], point[next(k for k in point if k.startswith("u"))]
    Q = [s.get_value() for s in shared_of(model)]
    K1 = variance * matern52(kind.places[0], kind.places[0], ls)
    K2 = matern52(kind.places[1], kind.places[1], LS_TIME)
    L = [
        np.linalg.cholesky(q.T @ k @ q + 1e-8 * np.trace(k) / len(k) * np.eye(len(k)))
        for q, k in zip(Q, (K1, K2), strict=True)
    ]
    R = np.kron(Q[0] @ L[0], Q[1] @ L[1])
    Z = pairs(*kind.places)
    Kzx = kernel(Z, X, ls, LS_TIME, variance)
    A = np.linalg.solve(R, Kzx)
    mean = X @ slope + LEVEL + A.T @ v
    cov = kernel(X, X, ls, LS_TIME, variance) - A.T @ A
    scale = np.outer(*(np.diag(x) for x in L)).ravel()
    return mean, cov, scale, R @ R.T, kernel(Z, Z, ls, LS_TIME, variance)


def shared_of(model):
    """The two rotations."""
    names = ("u_turns_0", "u_turns_1")
    found = {v.name: v for v in ancestors([model["u"]]) if v.name in names}
    return [found[name] for name in sorted(found)]


def test_log_density_equals_dense_matrices():
    X, y = data()
    kind = vsgp.inducing.Kronecker(*places(4, 6))
    model, _ = build(X, y, kind)
    point = point_of(model)
    mean, cov, scale, K, exact = dense(model, point, X, kind)
    np.testing.assert_allclose(K, exact, rtol=1e-6, atol=1e-6)
    gamma = np.diag(cov)
    total = np.sum(y * mean - np.exp(mean + gamma / 2.0) - special.gammaln(y + 1.0))
    ls, variance = np.exp(point["ls_log__"]), np.exp(point["variance_log__"])
    total += stats.gamma.logpdf(ls, 3, scale=1 / 4) + np.log(ls)
    total += stats.gamma.logpdf(variance, 2) + np.log(variance)
    total += stats.norm.logpdf(point["slope"]).sum()
    v = point[next(k for k in point if k.startswith("u"))]
    total += stats.norm.logpdf(v).sum()
    np.testing.assert_allclose(model.compile_logp(mode=RAW)(point), total, rtol=1e-9)


@pytest.mark.parametrize("n_outputs", [*long(1), 2])
@pytest.mark.slow
def test_a_panel_equals_its_rows_and_the_ordinary_graph(n_outputs):
    X, y = data()
    kind = vsgp.inducing.Kronecker(*places(4, 6))
    likelihood = None if n_outputs == 1 else vsgp.HeteroskedasticGaussian()
    results = []
    assert Panel(X, kind.parts).pays
    for block_size in (None, 4, False):
        model, _ = build(
            X, y, kind, n_outputs=n_outputs, likelihood=likelihood, block_size=block_size
        )
        results.append(value_and_gradient(model)(point_of(model)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.long
# Without a C compiler PyTensor joins no more than 32 operands, for numba, too.
@pytest.mark.filterwarnings("ignore:Loop fusion failed:UserWarning")
@pytest.mark.parametrize("block_size", [None, 4])
@pytest.mark.parametrize("mode", ["JAX", "NUMBA"])
def test_backends_agree(mode, block_size):
    """Of a panel, and by rows: then a block reads the factors that it solves with."""
    if mode == "JAX":
        pytest.importorskip("jax")
    X, y = data()
    for sites, times in (places(), places(4, 6))[: 1 if block_size else 2]:
        model, _ = build(X, y, vsgp.inducing.Kronecker(sites, times), block_size=block_size)
        point = point_of(model)
        for a, b in zip(
            value_and_gradient(freeze_dims_and_data(model), mode)(point),
            value_and_gradient(model)(point),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_the_stage_is_that_of_points_at_all_pairs(many, monkeypatch):
    """Under a full q the bound does not depend on how values are rotated; else it is below."""
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5 if many else 50)
    X, y = data(50)
    sites, times = places()
    model, _ = build(X, y, vsgp.inducing.Kronecker(sites, times))
    stage = vsgp.fit_gaussian(progressbar=False, model=model)
    other, _ = build(X, y, pairs(sites, times))
    exact = vsgp.fit_gaussian(progressbar=False, model=other)
    assert stage.converged
    if many:
        assert exact.elbo - 2.0 < stage.elbo < exact.elbo
    else:
        np.testing.assert_allclose(stage.elbo, exact.elbo, atol=2e-3)
        for name in ("ls", "variance", "slope"):
            np.testing.assert_allclose(stage.theta[name], exact.theta[name], rtol=0.02, atol=0.02)
        # Draws of the slopes move f at the data no more than they do with points.
        sds = []
        for s, m in ((stage, model), (exact, other)):
            draws = s.to_datatree(500, random_seed=1)
            moments = vsgp.predict(draws, None, "moments", model=m, progressbar=False)
            sds.append(moments["mean"].values[0].std(axis=0).mean())
        np.testing.assert_allclose(*sds, rtol=0.1)


def of_a_few(model, monkeypatch):
    """The bound of pairs that are correlated under q, and that of dense matrices."""
    assert can_correlate(Bound(model, mode=ONCE))
    correlated = CorrelatedBound(model, mode=ONCE)
    with monkeypatch.context() as patch:
        patch.setattr(pymc_vsgp.fit.approximation, "_turn", lambda process: False)
        return correlated, Bound(model, mode=ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panel", "rows", *long("classes")])
def test_correlations_are_those_of_dense_matrices(kind, monkeypatch, rng):
    X, y = data(30)
    n_outputs, kwargs = 1, {"block_size": 10} if kind == "rows" else {}
    if kind == "classes":
        n_outputs, y = 3, y.astype(int) % 3
        kwargs = {"n_outputs": 3, "likelihood": vsgp.Softmax(3)}
    # Variables that do not turn have a share of the jitter that u lacks.
    model, _ = build(X, y, vsgp.inducing.Kronecker(*places()), jitter=1e-13, **kwargs)
    correlated, dense = of_a_few(model, monkeypatch)
    theta = correlated.start + 0.2 * rng.normal(size=correlated.start.size)
    C = correlated.priors(theta)[0].turns
    linear, root = rng.normal(size=(n_outputs, 35)), 3.0 * rng.normal(size=(n_outputs, 35, 35))
    precision = root @ root.mT
    assert not np.allclose(C[0], np.eye(SITES), atol=1e-3)
    turned = forth(C, linear[:, :, None])[:, :, 0], forth(C, forth(C, precision).mT)
    found, expected = correlated(theta, [Sites(*turned)]), dense(theta, [Sites(linear, root)])
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    for k, q in enumerate(found.whole[0]):
        # What the data say of variables that do not turn is what they say of u.
        to = correlated.products[0].unfold(found.precision[0][k])
        toward = back(C, (found.linear[0][k] + to @ q.mean)[None, :, None])[0, :, 0]
        to = back(C, back(C, to[None]).mT)[0]
        for mine, usual in ((to, expected.precision[0][k]), (toward, expected.linear[0][k])):
            np.testing.assert_allclose(mine, usual, atol=1e-7 * np.abs(usual).max())
    # With q of what does not turn held in the likelihood, the gradient is that of the value.
    other = theta + 0.1 * rng.normal(size=theta.size)
    gradient = correlated.held(other, [Sites(*turned)], [], found).gradient
    for i, step in enumerate(1e-5 * np.eye(theta.size)):
        ends = (correlated.held(other + s, [Sites(*turned)], [], found) for s in (step, -step))
        a, b = (end.value for end in ends)
        np.testing.assert_allclose(gradient[i], (a - b) / 2e-5, rtol=2e-5, atol=1e-5)


@pytest.fixture(scope="module")
def correlated():
    """A stage of pairs that are correlated under q, and that of points at all pairs."""
    X, y = data(50)
    kinds = vsgp.inducing.Kronecker(*places()), pairs(*places())
    models = [build(X, 40.0 * y, kind, jitter=1e-10)[0] for kind in kinds]
    return [vsgp.fit_gaussian(progressbar=False, model=model, tol=1e-5) for model in models]


@pytest.mark.slow
def test_the_stage_of_correlated_pairs_is_that_of_points(correlated):
    stage, exact = correlated
    assert stage.converged and stage.marginal and stage.n_steps < 20
    np.testing.assert_allclose(stage.elbo, exact.elbo, atol=2e-4)
    (theta, sd), (other, of_other) = (
        (s._theta_normal()[0], np.sqrt(np.diag(s.theta_covariance))) for s in correlated
    )
    assert np.all(np.abs(theta - other) < 0.1 * sd)
    np.testing.assert_allclose(sd, of_other, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", *long("NUMBA", "JAX")])
def test_coordinates_of_correlated_pairs_turn_with_the_kernel(correlated, backend, rng):
    """Sites of one lengthscale would be off by more than ten nats at another."""
    stage, _ = correlated
    stage.apply()
    model, n = stage.model, SITES * TIMES
    assert isinstance(model.rvs_to_transforms[model["u"]], Known)
    outputs = [model.logp(), *model.replace_rvs_by_values([model["u"]])]
    mode = "FAST_COMPILE" if backend == "numpy" else backend
    compiled = pytensor.function(
        model.value_vars, outputs, mode=mode, on_unused_input="ignore", trust_input=False
    )
    for factor in (0.5, 1.0, 1.6):
        point = model.initial_point() | stage.theta_unconstrained
        point["ls_log__"] = np.asarray(stage.theta_unconstrained["ls_log__"] + np.log(factor))
        draws, weights = rng.normal(size=(60, n)), []
        for epsilon in draws:
            (name,) = (k for k in point if k.startswith("u"))
            point[name] = epsilon.reshape(np.shape(point[name]))
            weights.append(float(compiled(*(point[v.name] for v in model.value_vars))[0]))
        assert np.std(weights + (draws**2).sum(axis=1) / 2.0) < 0.5
        if factor == 1.0:
            point[name] = np.zeros_like(point[name])
            center = compiled(*(point[v.name] for v in model.value_vars))[1]
            np.testing.assert_allclose(center.ravel(), stage.mean["u"][0], atol=1e-6)


def test_nuts_has_sites_of_each_of_many_pairs(correlated, monkeypatch):
    stage, _ = correlated
    assert for_nuts(stage) is stage
    monkeypatch.setattr(pymc_vsgp.fit.turns, "MANY", 30)
    alone = for_nuts(stage)
    alone.apply()
    model, u = stage.model, stage.model["u"]
    assert type(model.rvs_to_transforms[u]) is Diagonal and alone.sites["u"].root.shape == (1, 35)
    point = model.initial_point() | stage.theta_unconstrained
    point[model.rvs_to_values[u].name] = np.zeros(35)
    inputs = model.value_vars
    (center,) = pytensor.function(
        inputs, model.replace_rvs_by_values([u]), mode="FAST_COMPILE", on_unused_input="ignore"
    )(*(point[v.name] for v in inputs))
    np.testing.assert_allclose(center, stage.mean["u"][0], atol=1e-6)
    stage.apply()


@pytest.mark.slow
def test_a_fit_of_correlated_pairs_goes_on(correlated):
    stage, _ = correlated
    again = vsgp.fit_gaussian(model=stage.model, start=stage, maxiter=3, progressbar=False)
    np.testing.assert_allclose(again.elbo, stage.elbo, atol=2e-3)
    draws = stage.to_datatree(400, random_seed=1)
    sd = draws["posterior"]["u"].values[0].std(axis=0)
    assert 0.9 < np.mean(sd / np.sqrt(stage.covariance["u"][0])) < 1.5  # of theta, too
    with stage.model:
        weighed = vsgp.sample(stage=stage, draws=300, chains=1, random_seed=1, progressbar=False)
    assert weighed["posterior"].attrs["method"] == "importance"
    vsgp.reset(stage.model)


@pytest.mark.slow
def test_predictions_are_those_of_dense_matrices():
    """At pairs, away from them, and jointly, given draws of everything."""
    X, y = data()
    kind = vsgp.inducing.Kronecker(*places(4, 6))
    model, gp = build(X, y, kind)
    rng = np.random.default_rng(4)
    Xnew = np.vstack([rng.uniform(size=(5, 3)), pairs(*kind.places)[[0, 9]], X[:2]])
    point = point_of(model)
    mean, cov, scale, *_ = dense(model, point, Xnew, kind)
    values = model.compile_fn(model.unobserved_value_vars, mode=RAW)(point)
    known = dict(zip([v.name for v in model.unobserved_value_vars], values, strict=True))
    known = {name: known[name] for name in ("u", "ls", "variance", "slope")}
    with model:
        found, variance = gp.predict(Xnew, known, diag=True)
        joint_mean, joint = gp.predict(Xnew, known)
    np.testing.assert_allclose(found, mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(variance, np.diag(cov), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(joint, cov, rtol=1e-6, atol=1e-7)


def zero_first(X):
    return X[:, 2] - places()[1][0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda cov: cov + pm.gp.cov.Matern32(3, ls=1.0), "no product"),
        (lambda cov: cov + pm.gp.cov.WhiteNoise(0.1), "no product"),
        (lambda cov: cov * pm.gp.cov.WhiteNoise(0.1), "no product"),
        (lambda cov: pm.gp.cov.ScaledCov(3, cov, zero_first), "variance 0 at the first"),
        (lambda cov: pm.gp.cov.Matern32(3, ls=1.0), "no product"),
        (lambda cov: pm.gp.cov.Matern32(3, ls=1.0, active_dims=[0, 1]), "uses the columns"),
        (lambda cov: cov * pm.gp.cov.Constant(2.0), None),
        (lambda cov: pm.gp.cov.ExpQuad(3, ls=1.0), None),
    ],
    ids=[
        "sum",
        "noise",
        "times noise",
        "zero first",
        "joint",
        "fewer columns",
        "constant",
        "separable by itself",
    ],
)
def test_kernels_that_are_no_product_are_refused(change, says):
    matern = pm.gp.cov.Matern52
    cov = matern(3, ls=1.0, active_dims=[0, 1]) * matern(3, ls=1.0, active_dims=[2])
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=change(cov))
        if says is None:
            gp.prior("u", inducing=vsgp.inducing.Kronecker(*places()))
            return
        with pytest.raises(ValueError, match=says):
            gp.prior("u", inducing=vsgp.inducing.Kronecker(*places()))


class Season(pm.gp.cov.BaseCovariance):
    """A kernel of the last column, which does not say so."""

    def full(self, X, Xs=None):
        other = X if Xs is None else Xs
        return pt.exp(-2.0 * pt.sin(np.pi * (X[:, -1][:, None] - other[:, -1][None, :])) ** 2)

    def diag(self, X):
        return pt.ones(X.shape[0])


@pytest.mark.slow
def test_a_factor_that_does_not_say_which_columns_it_uses():
    sites, times = places()
    X = pairs(sites, times)
    matern = pm.gp.cov.Matern52
    cov = matern(3, ls=1.0, active_dims=[0, 1]) * Season() * matern(3, ls=1.0, active_dims=[2])
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.Kronecker(sites, times))
        variables = gp._prior
        given, args = variables.kind.given(variables.u, cov, gp._mean_at, pt.constant(X))
        A = given.solve(pt.constant(X), args).eval(mode=RAW)
    np.testing.assert_allclose(A.T @ A, cov(X).eval(mode=RAW), atol=1e-7)


def test_bad_places_are_refused():
    sites, times = places()
    for columns in (([0, 1], [1]), ([0], [1]), ([0, 1], [-1]), 3, ([0, 1], 2), ("ab", "c"), ()):
        with pytest.raises(ValueError, match="Pass the different positions"):
            vsgp.inducing.Kronecker(sites, times, columns=columns)
    with pytest.raises(ValueError, match="twice|distinct|equal"):
        vsgp.inducing.Kronecker(np.vstack([sites, sites[:1]]), times)
    with pytest.raises(ValueError, match="nan|finite"):
        vsgp.inducing.Kronecker(sites * np.nan, times)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, *long(False)])
def test_other_rows_are_told_of(own):
    """Where rows are at the places of the variables, these can't be replaced either."""
    X, y = data()
    model, _ = build(X, y, vsgp.inducing.Kronecker(*(places() if own else places(4, 6))))
    logp, point = model.compile_logp(mode=RAW), point_of(model)
    before = logp(point)
    model["y_X"].set_value(X + [0.0, 0.0, 0.01])  # the same pairs of other places
    assert np.isnan(logp(point)) if own else logp(point) != before
    model["y_X"].set_value(X[::-1])
    assert np.isnan(logp(point))
    with pytest.raises(ValueError, match="other pairs of places"):
        vsgp.fit_gaussian(progressbar=False, model=model)
    model["y_X"].set_value(X)
    assert logp(point) == before


@pytest.mark.slow
def test_columns_may_be_in_any_order():
    """By `columns`, and by the kernel's; a covariate of the mean may be among them."""
    X, y = data()
    sites, times = places()
    swapped = X[:, [2, 0, 1]]
    values = []
    for x, space, time, columns in (
        (X, [0, 1], [2], None),
        (swapped, [1, 2], [0], ([1, 2], [0])),
        (np.insert(X, 1, 7.0, axis=1), [0, 2], [3], None),
    ):
        n = x.shape[1]
        with pm.Model() as model:
            matern = pm.gp.cov.Matern52
            cov = matern(n, ls=LS, active_dims=space) * matern(n, ls=LS_TIME, active_dims=time)
            gp = vsgp.VariationalSparse(cov_func=VARIANCE * cov)
            gp.prior("u", inducing=vsgp.inducing.Kronecker(sites, times, columns=columns))
            gp.likelihood("y", vsgp.Poisson(), X=x, y=y)
        values.append(model.compile_logp(mode=RAW)(point_of(model)))
    np.testing.assert_allclose(values, values[0], rtol=1e-9)


@pytest.mark.slow
def test_a_product_that_is_zero_at_the_first_places():
    """Lines through zero: the density is that of the pairs, dense."""
    times = np.array([[0.0], [1.0], [2.0]])
    sites = np.array([[0.0], [0.4], [1.0]])
    X = np.column_stack([np.repeat(sites, 3, axis=0), np.tile(times, (3, 1))])
    found = []
    for kind in ({"inducing": vsgp.inducing.Kronecker(sites, times)}, {"Xu": X}):
        with pm.Model():
            of_time = pm.gp.cov.Linear(2, c=0.0, active_dims=[1])
            gp = vsgp.VariationalSparse(
                cov_func=pm.gp.cov.Matern52(2, ls=0.7, active_dims=[0]) * of_time
            )
            gp.prior("u", jitter=1e-12, **kind)
            found.append(gp.predict(X, {"u": np.zeros(9)}))
    for pairs_, points in zip(*found, strict=True):
        np.testing.assert_allclose(pairs_, points, atol=1e-8)


@pytest.mark.slow
def test_a_prior_that_cannot_be_drawn_from():
    """Rotations are those of its initial value."""
    densities = []
    for ls in (lambda: pm.HalfFlat("ls"), lambda: 1.0):
        with pm.Model() as model:
            matern = pm.gp.cov.Matern52
            cov = matern(3, ls=ls(), active_dims=[0, 1]) * matern(3, ls=0.3, active_dims=[2])
            gp = vsgp.VariationalSparse(cov_func=cov)
            gp.prior("u", inducing=vsgp.inducing.Kronecker(*places()))
            gp.likelihood("y", vsgp.Poisson(), *data())
        densities.append(model.compile_logp(mode=RAW)(model.initial_point()))
    np.testing.assert_allclose(*densities, rtol=1e-9)


def with_covariate(inducing, n=21, seed=1):
    """A model whose mean has a column of its own, that column's values, and the process."""
    X, y = data(n)
    # The same at rows with one place, so that the average over these is the value at each.
    cover = np.random.default_rng(seed).normal(2.0, 1.0, len(X))
    X = np.column_stack([X, cover[np.unique(X, axis=0, return_inverse=True)[1]]])
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0.0, 1.0), pm.Normal("slope", 0.0, 1.0, shape=4)
        matern = pm.gp.cov.Matern52
        cov = VARIANCE * matern(4, ls=LS, active_dims=[0, 1])
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(coeffs=slope, intercept=intercept),
            cov_func=cov * matern(4, ls=LS_TIME, active_dims=[2]),
        )
        gp.prior("u", jitter=1e-12, **inducing)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model, gp, X


def all_pairs():
    """Values at all pairs, as products and as points."""
    points = np.column_stack([pairs(*places()), np.zeros(SITES * TIMES)])
    return {"inducing": vsgp.inducing.Kronecker(*places())}, {"Xu": points}


@pytest.mark.slow
def test_f_follows_the_data_and_not_the_mean():
    """At pairs of the data, f given u is one of u alone, as at points that are there."""
    theta = {"intercept": 0.3, "slope": np.array([0.5, -0.2, 0.4, 0.7])}
    for inducing in all_pairs():
        model, gp, X = with_covariate(inducing)
        u = np.random.default_rng(2).normal(size=SITES * TIMES)
        u = gp._prior.kind.factor.eval() @ u if "Xu" in inducing else u * known_scale(gp)
        with model:
            f = [
                gp.predict(X, {"u": u} | {k: t * x for k, x in theta.items()}, diag=True)[0]
                for t in (1.0, -1.0)
            ]
        np.testing.assert_allclose(*f, atol=1e-6)
        assert np.std(f[0]) > 0.1


def known_scale(gp):
    """Deviations of the variables."""
    return gp._prior.kind.factor.eval()


@pytest.mark.long
def test_the_density_with_a_covariate_is_that_of_points_at_all_pairs():
    """Of the same function: both priors are those of f at the pairs, times a rotation."""
    (product, gp, _), (points, other, _) = map(with_covariate, all_pairs())
    densities, functions = [], []
    for seed in range(2):
        point = point_of(product, seed)
        L = [x.eval() for x in gp._prior.kind.roots]
        Q = [x.get_value() for x in shared_of(product)]
        R = np.kron(Q[0] @ L[0], Q[1] @ L[1])
        whitened = next(k for k in point if k.startswith("u"))
        v = np.linalg.solve(other._prior.kind.factor.eval(), R @ point[whitened])
        at = point | {whitened: v}
        densities.append([m.compile_logp(mode=RAW)(x) for m, x in ((product, point), (points, at))])
        Xnew = np.random.default_rng(seed).uniform(size=(5, 4))
        for m, process, x in ((product, gp, point), (points, other, at)):
            u = m.compile_fn(m.unobserved_value_vars, mode=RAW)(x)
            named = dict(zip([w.name for w in m.unobserved_value_vars], u, strict=True))
            known = {name: named[name] for name in ("u", "intercept", "slope")}
            with m:
                functions.append(process.predict(Xnew, known))
    assert abs(densities[0][0] - densities[1][0]) > 1.0
    np.testing.assert_allclose(*np.transpose(densities), rtol=1e-8)
    for of_product, of_points in zip(functions[::2], functions[1::2], strict=True):
        for a, b in zip(of_product, of_points, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_draws_keep_the_covariates_of_their_data():
    """Another model, of other rows, gives the same function for them."""
    inducing, _ = all_pairs()
    (model, _, X), (other, *_) = (with_covariate(inducing, seed=seed) for seed in (1, 9))
    kept = model["u_pairs"].get_value()
    assert not np.array_equal(kept, other["u_pairs"].get_value())
    rows = (kept[:, None, :3] == X[:, :3]).all(axis=2)
    at, row = np.nonzero(rows)
    np.testing.assert_allclose(kept[at, 3], X[row, 3])
    rng = np.random.default_rng(3)
    draws = {
        "u": (("chain", "draw", "u_inducing"), rng.normal(size=(1, 3, len(kept)))),
        "slope": (("chain", "draw", "s"), rng.normal(size=(1, 3, 4))),
        "intercept": (("chain", "draw"), rng.normal(size=(1, 3))),
    }
    idata = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(draws),
            "constant_data": xr.Dataset({"u_pairs": (("u_inducing", "u_feature"), kept)}),
        }
    )
    Xnew = rng.uniform(size=(4, 4))
    means = [
        vsgp.predict(idata, Xnew, "moments", model=m, progressbar=False)["mean"].values
        for m in (model, other)
    ]
    np.testing.assert_allclose(*means, rtol=1e-9)


def on_a_grid(scale=1.0):
    """Sites on a grid, whose kernel has equal eigenvalues."""
    sites = np.array([[a, b] for a in range(4) for b in range(4)], dtype="float64") * scale
    times = np.arange(5.0)[:, None]
    X = pairs(sites, times)
    return build(X, np.ones(len(X)), vsgp.inducing.Kronecker(sites, times))


@pytest.mark.slow
def test_other_eigenvectors(monkeypatch):
    """Each BLAS has its own where eigenvalues are equal: draws keep theirs, and they hardly differ.

    Signs are the same, too.
    """
    model, _ = on_a_grid()
    idata = prior_draws(model, 3)
    rng, real = np.random.default_rng(1), np.linalg.eigh

    def others(K):
        E = 1e-14 * rng.normal(size=K.shape)
        values, vectors = real(K + E + E.T)
        return values, vectors * rng.choice([-1.0, 1.0], size=len(K))

    monkeypatch.setattr(np.linalg, "eigh", others)
    again, _ = on_a_grid()
    Q, other = ([q.get_value() for q in shared_of(m)] for m in (model, again))
    assert not np.array_equal(Q[0], other[0])
    np.testing.assert_allclose(Q[0], other[0], atol=1e-4)
    np.testing.assert_allclose(Q[0] @ Q[0].T, np.eye(16), atol=1e-12)
    new = rng.uniform(0.0, 3.0, size=(4, 3))
    for m in (again, on_a_grid(1.1)[0]):
        means = [
            vsgp.predict(idata, new, "moments", model=each, progressbar=False)["mean"].values
            for each in (model, m)
        ]
        np.testing.assert_allclose(*means, rtol=1e-12)
    fit = vsgp.results.draws.Fitted(idata, model)
    assert as_sampled(again, fit.draws.constant)["u_turns_0"].get_value().tolist() == Q[0].tolist()


def test_nothing_upstream_of_u_is_unknown_to_pymc():
    """PyMC warns that such variables may be about to be drawn anew."""
    model, gp = on_a_grid()
    idata = prior_draws(model, 2)
    with model, warnings.catch_warnings(action="error"):
        gp.conditional("f", model["y_X"].get_value()[:3])
        found = pm.sample_posterior_predictive(
            idata, var_names=["f"], progressbar=False, compile_kwargs={"mode": RAW}
        )
    assert found["posterior_predictive"]["f"].shape == (1, 2, 3)


def test_places_far_from_zero():
    """Users are told; a covariate of the mean alone is no place."""
    sites, times = places()
    with pm.Model():
        matern = pm.gp.cov.Matern52
        cov = matern(4, ls=LS, active_dims=[0, 1]) * matern(4, ls=LS_TIME, active_dims=[3])
        gp = vsgp.VariationalSparse(cov_func=cov)
        with pytest.warns(UserWarning, match="Column 3 of the places is about 1.7e.09 with a"):
            gp.prior("u", inducing=vsgp.inducing.Kronecker(sites, times + 1.7e9))


@pytest.mark.slow
def test_a_kernel_without_a_factor_is_rejected():
    X, y = data()
    with pm.Model() as model:
        a = pm.Normal("a", 1.0, 1.0)
        cov = a * pm.gp.cov.Matern52(3, ls=1.0, active_dims=[0, 1])
        gp = vsgp.VariationalSparse(cov_func=cov * pm.gp.cov.Matern52(3, ls=1.0, active_dims=[2]))
        gp.prior("u", inducing=vsgp.inducing.Kronecker(*places(4, 6)))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    density = value_and_gradient(model)
    point = model.initial_point()
    assert np.isfinite(density(point)[0])
    value, *gradient = density(point | {"a": np.array(-0.5)})
    assert value == -np.inf
    assert all(np.isfinite(g).all() for g in gradient)
