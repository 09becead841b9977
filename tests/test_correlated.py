"""Many Fourier coefficients that are correlated under their posterior."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW
from scipy import stats

import pymc_vsgp as vsgp
import pymc_vsgp.fit.bound
import pymc_vsgp.fit.correlated
import pymc_vsgp.fit.joint

from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.correlated import CorrelatedBound, can_correlate
from pymc_vsgp.fit.natural import Natural
from pymc_vsgp.inducing.coordinates import Rotated, Sites
from pymc_vsgp.inducing.features import Features
from pymc_vsgp.inducing.grids import Cells, Grid, Product, Series, find_grid
from pymc_vsgp.inducing.products import PairProducts, Products
from pymc_vsgp.inducing.scattered import Scattered

pytestmark = pytest.mark.filterwarnings("ignore:The period of 'u'")


@pytest.mark.parametrize("frequencies", [(0,), (3,), (2, 3), (2, 1, 3)])
def test_products_of_features_are_sums_of_others(frequencies, rng):
    D = len(frequencies)
    features = Features((1.3,) * D, frequencies, (0.2,) * D)
    X = rng.uniform(size=(9, D))
    x = pt.constant(X)
    phi, psi = (f.matrix(f.waves(x)).eval() for f in (features, features.doubled))
    products = Products(frequencies)
    C = rng.normal(size=(phi.shape[1],) * 2)
    np.testing.assert_allclose(
        psi @ products.fold(C), np.einsum("ni,ij,nj->n", phi, C, phi), atol=1e-11
    )
    s = rng.normal(size=9)
    np.testing.assert_allclose(products.unfold(psi.T @ s), (phi.T * s) @ phi, atol=1e-11)


@pytest.mark.parametrize("sizes", [(3, 4), (1, 3), (2, 1)])
def test_products_of_sites_and_times(sizes, rng):
    products, C = PairProducts(*sizes), rng.normal(size=(np.prod(sizes),) * 2)
    phi, psi = [], []
    for _ in range(9):
        of = [rng.normal(size=n) for n in sizes]
        phi.append(np.kron(*of))
        psi.append(np.kron(*(a[i] * a[j] for a, (i, j) in zip(of, products.pairs, strict=True))))
    phi, psi, s = np.array(phi), np.array(psi), rng.normal(size=9)
    squares = np.einsum("ni,ij,nj->n", phi, C, phi)
    np.testing.assert_allclose(psi @ products.fold(C), squares, atol=1e-12)
    np.testing.assert_allclose(products.unfold(psi.T @ s), (phi.T * s) @ phi, atol=1e-12)


def grid(n, m):
    return np.stack(np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, m)), -1).reshape(-1, 2)


def places(kind):
    """Inputs that lie in a way that sums of features make use of, and the numbers of features."""
    rng = np.random.default_rng(5)
    X = {
        "rows": lambda: rng.uniform(size=(60, 2)),
        "grid": lambda: grid(8, 9),
        "cells": lambda: grid(8, 9)[rng.permutation(72)[:60]],
        "scattered": lambda: rng.uniform(size=(2100, 2)),
        "series": lambda: np.linspace(0, 1, 300)[:, None],
        "product": lambda: np.column_stack(
            [np.repeat(rng.uniform(size=(12, 2)), 10, axis=0), np.tile(np.arange(10.0) / 9, 12)]
        ),
        "repeats": lambda: rng.uniform(size=(20, 2))[rng.integers(20, size=300)],
    }[kind]()
    frequencies = {"series": (9,), "scattered": (5, 5), "product": (1, 2, 1)}.get(kind, (2, 3))
    layout = {"grid": Grid, "cells": Cells, "series": Series, "product": Product}.get(kind)
    assert layout is None or isinstance(find_grid(X), layout)
    features = vsgp.inducing.Fourier((1.4,) * X.shape[1], frequencies, (0.4,) * X.shape[1])
    assert Scattered.pays(features, len(X), find_grid(X)) == (kind == "scattered")
    return X, features


def model_of(X, features, n_outputs=None, second=None):
    """Counts of a function with a slope, or classes of several functions."""
    rng = np.random.default_rng(6)
    D = X.shape[1]
    with pm.Model() as model:
        ls, sd = pm.Gamma("ls", 3.0, 8.0), pm.HalfNormal("sd", 1.0)
        slope = pm.Normal("slope", 0.0, 1.0, shape=D)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(slope, 0.3), cov_func=sd**2 * pm.gp.cov.Matern32(D, ls=ls)
        )
        several = {} if n_outputs is None else {"n_outputs": n_outputs}
        gp.prior("u", inducing=features, **several)
        if second is not None:
            other = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(D, ls=0.5))
            other.prior("w", **second)
            y = np.sin(9 * X[:, 0]) + 0.3 * rng.normal(size=len(X))
            vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [gp, other], X=X, y=y)
        elif n_outputs is None:
            gp.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(3.0 + 2.0 * np.sin(9 * X[:, 0])))
        else:
            gp.likelihood("y", vsgp.Softmax(n_outputs), X=X, y=rng.integers(n_outputs, size=len(X)))
    return model


def bounds_of(model, monkeypatch):
    """The bound of correlated coefficients, and the one that a few coefficients have."""
    with monkeypatch.context() as patch:
        patch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5)
        assert can_correlate(Bound(model, mode=RAW))
        correlated = CorrelatedBound(model, mode=RAW)
    return correlated, Bound(model, mode=RAW)


def sites_of(bound, rng, scale=1.0):
    """Some sites, with the precision and with a root of it."""
    by_precision, by_root = [], []
    for p in bound.processes:
        linear = rng.normal(size=(p.n_functions, p.n_inducing))
        root = scale * rng.normal(size=(*linear.shape, p.n_inducing))
        by_root.append(Sites(linear, root))
        folded = bound.products.keys()
        at = len(by_precision)
        by_precision.append(Sites(linear, root @ root.mT) if at in folded else by_root[-1])
    return by_precision, by_root


FEW, MORE = ["rows", "grid", "scattered", "series"], ["cells", "product", "repeats"]
CASES = FEW + MORE


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["rows", *long("grid", "scattered", "series", "two", *MORE, "classes")]
)
def test_the_bound_is_that_of_a_few_coefficients(kind, monkeypatch, rng):
    X, features = places(kind if kind in CASES else "rows")
    n_outputs = 3 if kind == "classes" else None
    second = {"inducing": vsgp.inducing.Fourier(4.0, 1)} if kind == "two" else None
    model = model_of(X, features, n_outputs, second)
    correlated, dense = bounds_of(model, monkeypatch)
    theta = correlated.start + 0.2 * rng.normal(size=correlated.start.size)
    mine, usual = sites_of(correlated, rng)
    found, expected = correlated(theta, mine), dense(theta, usual)
    accuracy = 1e-6 if kind == "scattered" else 1e-9
    np.testing.assert_allclose(found.value, expected.value, rtol=accuracy)
    for i, products in correlated.products.items():
        for k, q in enumerate(found.whole[i]):
            to = products.unfold(found.precision[i][k])
            scale = np.abs(expected.precision[i][k]).max()
            np.testing.assert_allclose(to, expected.precision[i][k], atol=accuracy * scale)
            toward = found.linear[i][k] + to @ q.mean
            scale = np.abs(expected.linear[i][k]).max()
            np.testing.assert_allclose(toward, expected.linear[i][k], atol=accuracy * scale)
    # With q held in the likelihood the gradient is that of the value. At once it is a part.
    other = theta + 0.05 * rng.normal(size=theta.size)
    gradient = correlated.held(other, mine, [], found).gradient
    for i, step in enumerate(1e-5 * np.eye(theta.size)):
        a, b = (correlated.held(other + s, mine, [], found).value for s in (step, -step))
        np.testing.assert_allclose(gradient[i], (a - b) / 2e-5, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
def test_sites_of_no_density_are_refused(monkeypatch, rng):
    correlated, _ = bounds_of(model_of(*places("rows")), monkeypatch)
    mine, _ = sites_of(correlated, rng)
    negative = [Sites(s.linear, -s.root) for s in mine]
    assert np.isnan(correlated(correlated.start, negative).value)


@pytest.fixture(scope="module", autouse=True)
def functions_have_sites_of_their_own():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pymc_vsgp.fit.joint, "FEW", 0)
        patch.setattr(pymc_vsgp.fit.joint, "FACTOR", np.inf)
        yield


@pytest.fixture(scope="module", params=["counts", *long("classes", "two")])
def stages(request):
    """Stages of correlated coefficients, by sums of twice the frequency and by dense matrices."""
    kind = request.param
    X, features = places("rows")
    n_outputs = 3 if kind == "classes" else None
    second = {"Xu": X[::6]} if kind == "two" else None
    model = model_of(X, features, n_outputs, second)
    found = []
    for most_dense in (5, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", most_dense)
            patch.setattr(pymc_vsgp.fit.correlated, "INFORMED", 0.0)
            patch.setattr(pymc_vsgp.fit.correlated, "APART", 0.0)
            fit = vsgp.fit_gaussian(model=model, tol=1e-5, progressbar=False, copy=True)
            found.append(fit)
    return found


@pytest.mark.slow
def test_the_stage_is_that_of_dense_matrices(stages):
    correlated, dense = stages
    assert correlated.converged and correlated.marginal
    np.testing.assert_allclose(correlated.elbo, dense.elbo, atol=0.02)
    theta, other = (s._theta_normal()[0] for s in stages)
    sd, of_other = (np.sqrt(np.diag(s.theta_covariance)) for s in stages)
    assert np.all(np.abs(theta - other) < 0.1 * sd)
    np.testing.assert_allclose(sd, of_other, rtol=0.1)
    variances = np.diagonal(dense.covariance["u"], axis1=1, axis2=2)
    np.testing.assert_allclose(correlated.covariance["u"], variances, rtol=0.1)


@pytest.mark.slow
def test_the_coordinates_have_the_moments_of_the_stage(stages):
    """At the estimate of theta, the image of a standard normal is q."""
    for stage in stages[:1]:
        model, u = stage.model, stage.model["u"]
        stage.apply()
        assert isinstance(model.rvs_to_transforms[u], Rotated)
        point = model.initial_point() | stage.theta_unconstrained
        epsilon = model.rvs_to_values[u]
        zero = np.zeros_like(point[epsilon.name])
        (value,) = model.replace_rvs_by_values([u])
        inputs = [v for v in model.value_vars if v is not epsilon]
        at = pytensor.function(
            [epsilon, *inputs], value, mode="FAST_COMPILE", on_unused_input="ignore"
        )
        others = [point[v.name] for v in inputs]
        center = at(zero, *others)
        np.testing.assert_allclose(center, stage.mean["u"].reshape(center.shape), atol=1e-8)
        steps = np.eye(zero.shape[-1])
        J = np.stack([at(zero + e, *others) - center for e in steps])
        np.testing.assert_allclose(
            (J**2).sum(axis=0), stage.covariance["u"].reshape(center.shape), rtol=1e-7
        )


@pytest.mark.slow
def test_it_goes_on_and_is_taken_back(stages):
    stage = stages[0]
    model = stage.model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5)
        patch.setattr(pymc_vsgp.fit.correlated, "INFORMED", 0.0)
        patch.setattr(pymc_vsgp.fit.correlated, "APART", 0.0)
        again = vsgp.fit_gaussian(model=model, start=stage, maxiter=3, progressbar=False)
    assert again.elbo > stage.elbo - 0.05
    draws = stage.to_datatree(400, random_seed=1)["posterior"]["u"].values
    sd = np.sqrt(stage.covariance["u"])
    # Of draws of theta, too.
    assert np.mean(draws.reshape(-1, *sd.shape).std(axis=0) / sd) > 0.9
    vsgp.reset(model)
    assert type(model.rvs_to_transforms[model["u"]]).__name__ == "Whitened"


@pytest.mark.slow
def test_a_start_has_the_mean_of_the_stage(stages, monkeypatch):
    """Sites follow the mean function, and those without correlations have to follow it, too."""
    stage, begun = stages[0], []

    def run(fit, maxiter):
        begun.append(fit)
        raise KeyboardInterrupt

    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5)
    monkeypatch.setattr(Natural, "run", run)
    assert stage.sites["u"].rotated and stage.sites["u"].slope is not None
    with pytest.raises(KeyboardInterrupt):
        vsgp.fit_gaussian(model=stage.model, start=stage, progressbar=False)
    ev, names = begun[0].evaluation, [p.u.name for p in begun[0].bound.processes]
    i = names.index("u")
    np.testing.assert_allclose(ev.prior_mean[i] + ev.R[i] * ev.mean[i], stage.mean["u"], atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("free", [False, True])
def test_with_normal_noise_q_is_that_of_the_bound(free, rng):
    """Of coefficients that are too many for dense coordinates."""
    X = np.sort(rng.uniform(0, 10, size=200))[:, None]
    y = np.sin(3.0 * X[:, 0]) + rng.normal(size=200) / 10.0
    level = 0.3
    with pm.Model():
        ls = pm.InverseGamma("ls", 3, 2) if free else 0.6
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.Matern12(1, ls=ls)
        )
        gp.prior("u", inducing=vsgp.inducing.Fourier(period=30.0, n_frequencies=90))
        gp.likelihood("y", vsgp.Gaussian(0.1), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
        draws = stage.to_datatree(4000, random_seed=1)
    assert stage.converged
    ls = 0.6 if not free else float(stage.theta["ls"])
    with pm.Model():
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.Matern12(1, ls=ls)
        )
        u = gp.prior("u", inducing=vsgp.inducing.Fourier(period=30.0, n_frequencies=90))
        gp.likelihood("y", vsgp.Gaussian(0.1), X=X, y=y)
        logp = pm.modelcontext(None).compile_logp(mode="FAST_COMPILE")
        grad = pm.modelcontext(None).compile_dlogp(mode="FAST_COMPILE")
        zero, n = np.zeros(u.type.shape), u.type.shape[-1]
        (name,) = pm.modelcontext(None).initial_point()
        at = [grad({name: x.reshape(zero.shape)}) for x in (np.zeros(n), *np.eye(n))]
    # The log density is a quadratic function of epsilon, with u = mean + sd * epsilon.
    precision = -np.array([g - at[0] for g in at[1:]])
    epsilon = np.linalg.solve(precision, at[0])
    value = float(logp({name: epsilon.reshape(zero.shape)}))
    value += n / 2 * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1] / 2
    if not free:
        np.testing.assert_allclose(stage.elbo, value, rtol=1e-8)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    scale = u.owner.inputs[2].eval()
    np.testing.assert_allclose(np.sqrt(stage.covariance["u"][0]), sd * scale, rtol=1e-3)
    drawn = draws["posterior"]["u"].std(["chain", "draw"])
    if not free:
        np.testing.assert_allclose(drawn, sd * scale, rtol=0.06)


@pytest.mark.long
@pytest.mark.slow
def test_little_information_needs_no_correlations(monkeypatch):
    """Independent coefficients stay where they are as good."""
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5)
    stage = vsgp.fit_gaussian(model=model_of(*places("rows")), progressbar=False)
    assert not stage.sites["u"].rotated and not stage.marginal


@pytest.mark.long
def test_few_data_on_many_frequencies(rng, monkeypatch):
    """Independent coefficients said that they know 70 nats, and lost 40."""
    X = np.sort(rng.uniform(0.0, 30.0, 60))[:, None]
    r = np.abs(X - X.T) / 2.5 * np.sqrt(5.0)
    K = (1.0 + r + r**2 / 3.0) * np.exp(-r)
    y = rng.multivariate_normal(0.3 * np.ones(60), K + 0.03 * np.eye(60))
    exact = stats.multivariate_normal(0.3 * np.ones(60), K + 0.03 * np.eye(60)).logpdf(y)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3), cov_func=pm.gp.cov.Matern52(1, ls=2.5)
        )
        gp.prior("u", inducing=vsgp.inducing.Fourier(60.0, 100))
        gp.likelihood("y", vsgp.Gaussian(np.full(60, np.sqrt(0.03))), X=X, y=y)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert stage.sites["u"].rotated and exact - 0.5 < stage.elbo <= exact + 1e-6
    # As if there were thousands, whose matrix has to pay.
    monkeypatch.setattr(pymc_vsgp.fit.correlated, "MANY", 100)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert not stage.sites["u"].rotated and stage.elbo < exact - 10.0
