"""Sites follow parameters of likelihoods, such as coefficients of a regression and cut-points."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW

import pymc_vsgp as vsgp

from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.stage import hand_over
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.model.observation import parameters

N = 60
X = np.linspace(0.0, 10.0, N)[:, None]
W = np.random.default_rng(3).normal(size=(N, 2))
ETA = np.sin(X[:, 0]) + W @ [0.6, -0.4] + 0.5
COUNTS = np.random.default_rng(4).poisson(np.exp(ETA))
ORDERED = pm.distributions.transforms.ordered

KINDS = {
    "points": lambda: {"Xu": X[::5]},
    "few coefficients": lambda: {"inducing": vsgp.inducing.Fourier(30.0, 12, center=5.0)},
    "coefficients": lambda: {"inducing": vsgp.inducing.Fourier(30.0, 100, center=5.0)},
    "neighbors": lambda: {"inducing": vsgp.inducing.NearestNeighbors(X, 10)},
}


def regression(kind, likelihood, y, **kwargs):
    """A model with an intercept and coefficients in its likelihood, and a mean function."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.5, 0.3)
        level = pm.Normal("level", 0.0, 0.1)
        b = pm.Normal("b", 0.0, 2.0, shape=3)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.Matern52(1, ls=ls)
        )
        gp.prior("u", **KINDS[kind](), **kwargs)
        gp.likelihood("y", likelihood(b[0] + pm.Data("W", W) @ b[1:]), X=X, y=y)
    return model


def counts(eta):
    return vsgp.Poisson(exposure=pm.math.exp(eta))


def normal(eta):
    """Normal noise of a kind that no shortcut knows."""
    return lambda f: pm.Normal.dist(f + eta, 0.5)


def ordinal(kind):
    with pm.Model() as model:
        c = pm.Normal("c", 0.0, 2.0, shape=3, transform=ORDERED, initval=[-1.0, 0.0, 1.0])
        # PyTensor has 1.5 in single precision, which `RAW` leaves in a part of the graph.
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=np.float64(1.5)))
        gp.prior("u", **KINDS[kind]())
        gp.likelihood("y", vsgp.Ordinal(c), X=X, y=np.arange(N) % 4)
    return model


def random_sites(model, kind, rng):
    point = model.initial_point()
    m = point["u_whitened__"].size
    d = sum(point[model.rvs_to_values[rv].name].size for rv in parameters(model, model["u"]))
    dense = kind in ("points", "few coefficients")
    root = rng.normal(size=(1, m, m)) if dense else rng.uniform(0.1, 2.0, size=(1, m))
    return Sites(rng.normal(size=(1, m)), root, rng.normal(size=(1, m, d)))


@pytest.mark.parametrize("kind", ["points", "coefficients", *long("few coefficients", "neighbors")])
@pytest.mark.slow
def test_the_density_of_u_does_not_depend_on_it(kind, rng):
    model = ordinal(kind)
    u, densities = model["u"], []
    value = model.rvs_to_values[u]
    (other,) = (v for v in model.value_vars if v is not value)
    at, target = np.array([-0.4, 0.3, -0.2]), rng.normal(size=value.type.shape[0] or N)
    for sites in (None, random_sites(model, kind, rng), random_sites(model, kind, rng)):
        if sites is not None:
            hand_over(model, {"u": sites}, {})
            assert {"u_sites_slope"} < {v.name for v in model.data_vars}
        inputs = [u.owner.inputs[0], *model.replace_rvs_by_values(list(u.owner.inputs[1:]))]
        transform = model.rvs_to_transforms[u]
        forward = transform.forward(pt.constant(target), *inputs)
        moved = pytensor.function([other], forward, mode=RAW, on_unused_input="ignore")(at)
        jacobian = pt.sum(transform.log_jac_det(value, *inputs))
        fn = model.compile_fn(
            [model.logp(), jacobian, transform.backward(value, *inputs)],
            inputs=model.value_vars,
            mode=RAW,
            on_unused_input="ignore",
        )
        logp, jac, back = fn({other.name: at, value.name: moved})
        np.testing.assert_allclose(back, target, rtol=1e-7, atol=1e-8)
        densities.append(logp - jac)
    np.testing.assert_allclose(densities[1:], densities[0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["points", "few coefficients", *long("correlated", "coefficients", "neighbors")]
)
def test_normal_noise_is_followed_exactly(kind, monkeypatch):
    """The mean of u given the coefficients is linear in them, so it is where epsilon is zero."""
    correlated, kind = kind == "correlated", kind.replace("correlated", "coefficients")
    if correlated:
        monkeypatch.setattr("pymc_vsgp.fit.correlated.INFORMED", 0.0)
        monkeypatch.setattr("pymc_vsgp.fit.correlated.APART", 0.0)
    model = regression(kind, normal, ETA)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert stage.sites["u"].rotated == correlated
    assert stage.converged
    level = 0 if kind in ("points", "neighbors") else 1  # of the mean function
    assert stage.sites["u"].slope.shape[2] == 3 + level
    slope = model.compile_dlogp(vars=[model["u"]], mode=RAW)
    zero = np.zeros(model.initial_point()["u_whitened__"].shape)
    for b in ([4.0, 0.6, -0.4], [-3.0, 2.0, 5.0]):
        point = stage.theta_unconstrained | {"b": np.array(b), "u_whitened__": zero}
        assert np.abs(slope(point)).max() < 0.02
        point["u_whitened__"] = zero + 1.0  # of a standard normal it is minus one
        assert np.abs(slope(point)).max() > 0.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few coefficients", "coefficients", "correlated"])
def test_so_are_coefficients_of_the_mean_function(kind, monkeypatch):
    """That of Fourier features is a part of f, and not of u."""
    if kind == "correlated":
        monkeypatch.setattr("pymc_vsgp.fit.correlated.INFORMED", 0.0)
        monkeypatch.setattr("pymc_vsgp.fit.correlated.APART", 0.0)
    n = 12 if kind.startswith("few") else 100
    smooth = np.cos(0.4 * X[:, 0])
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.5, 0.3)
        b = pm.Normal("b", 0.0, 2.0, shape=2)
        mean = pm.gp.mean.Constant(b[0]) + pm.gp.mean.Linear(pt.stack([0.0, b[1]]))
        cov = pm.gp.cov.Matern52(2, ls=ls, active_dims=[0])
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
        features = vsgp.inducing.Fourier(30.0, n, center=5.0, covariates=(0.0,))
        gp.prior("u", inducing=features)
        y = np.sin(X[:, 0]) + 0.5 * smooth
        gp.likelihood("y", lambda f: pm.Normal.dist(f, 0.5), X=np.column_stack([X, smooth]), y=y)
    assert [rv.name for rv in parameters(model, model["u"])] == ["b"]
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    assert stage.sites["u"].rotated == (kind == "correlated")
    slope = model.compile_dlogp(vars=[model["u"]], mode=RAW)
    zero = np.zeros(model.initial_point()["u_whitened__"].shape)
    for at in ([3.0, 0.5], [0.0, -4.0]):
        point = stage.theta_unconstrained | {"b": np.array(at), "u_whitened__": zero}
        assert np.abs(slope(point)).max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*long("points"), "few coefficients"])
def test_gradient_of_the_bound(kind, rng):
    bound = Bound(regression(kind, counts, COUNTS), mode=RAW)
    sites = [random_sites(bound.model, kind, rng)]
    sites = [Sites(s.linear, 0.1 * s.root, 0.1 * s.slope) for s in sites]
    theta = bound.start + 0.1 * rng.normal(size=bound.start.size)
    found = bound(theta, sites).gradient
    for i, step in enumerate(1e-5 * np.eye(theta.size)):
        rise = bound(theta + step, sites).value - bound(theta - step, sites).value
        np.testing.assert_allclose(found[i], rise / 2e-5, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["points", "few coefficients", "coefficients", "neighbors"])
def test_an_intercept_does_not_hold_the_stage_up(kind):
    """Level of the function and intercept trade off: without a slope this took 100 rounds."""
    stage = vsgp.fit_gaussian(model=regression(kind, counts, COUNTS), progressbar=False)
    assert stage.converged
    assert stage.n_steps < 25
    if kind != "coefficients":  # whose sites are not all that moves
        dense = vsgp.fit_gaussian(model=regression("points", counts, COUNTS), progressbar=False)
        assert abs(stage.elbo - dense.elbo) < 1.5
        draws = stage.to_datatree(2000, random_seed=1)["posterior"]
        b = draws["b"].values[0]
        np.testing.assert_allclose(b.mean(axis=0)[1:], [0.6, -0.4], atol=0.3)
    if kind in ("points", "neighbors"):
        level = draws["u"].values[0].mean(axis=1)
        assert np.corrcoef(level, b[:, 0])[0, 1] < -0.7


@pytest.mark.long
@pytest.mark.slow
def test_weights_prove_a_regression_and_agree_with_nuts():
    model = regression("points", counts, COUNTS)
    settings = {"random_seed": 1, "progressbar": False, "cores": 1, "model": model}
    found = vsgp.sample(500, method="importance", **settings)["posterior"]
    assert found.attrs["refused"] == ""
    nuts = vsgp.sample(500, method="nuts", **settings)["posterior"]
    for name in ("b", "ls"):
        one, other = (x[name].values.reshape(2000, -1) for x in (found, nuts))
        error = 4.0 * np.hypot(one.std(axis=0), other.std(axis=0)) / np.sqrt(200.0)
        assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) < error).all()
        np.testing.assert_allclose(one.std(axis=0), other.std(axis=0), rtol=0.25)


@pytest.mark.long
@pytest.mark.slow
def test_minibatches_hand_the_slope_over():
    model = regression("points", counts, COUNTS)
    natural = vsgp.fit_gaussian(model=model, progressbar=False)
    kept = natural.sites["u"].slope
    found = vsgp.fit_gaussian(
        model=model, batch_size=20, start=natural, maxiter=100, random_seed=1, progressbar=False
    )
    slope = found.sites["u"].slope
    assert np.corrcoef(slope.ravel(), kept.ravel())[0, 1] > 0.9
    assert abs(found.elbo - natural.elbo) < 3.0


@pytest.mark.long
@pytest.mark.slow
def test_it_is_restarted_and_taken_back():
    model = regression("points", counts, COUNTS)
    before = model.compile_logp(mode=RAW)(model.initial_point())
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    again = vsgp.fit_gaussian(model=model, start=stage, progressbar=False)
    assert again.n_steps <= 2
    np.testing.assert_allclose(again.elbo, stage.elbo, atol=0.01)
    tree = stage.to_datatree(10, random_seed=1)
    assert "u_sites_slope" in tree["constant_data"]
    # Sites without a slope take the place of those with one, and these of none.
    plain = stage.sites["u"].at(stage.theta_unconstrained["b"])
    for sites in (plain, stage.sites["u"]):
        hand_over(model, {"u": sites}, {})
        assert ("u_sites_slope" in model.named_vars) == (sites.slope is not None)
        model.compile_logp(mode=RAW)(model.initial_point())
    vsgp.reset(model)
    assert not [v.name for v in model.data_vars if "sites" in v.name]
    after = model.compile_logp(mode=RAW)(model.initial_point())
    np.testing.assert_allclose(after, before, rtol=1e-12)


def test_which_parameters_are_followed():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.5, 0.3)
        top = pm.Normal("top")
        b = pm.Normal("b", top, 1.0, shape=2)
        many = pm.Normal("many", shape=N)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=X[::5])
        other = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        other.prior("w", Xu=X[::5])
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(W @ b)), X=X, y=COUNTS)
        other.likelihood("z", vsgp.Poisson(exposure=pm.math.exp(many)), X=X, y=COUNTS)
    assert [rv.name for rv in parameters(model, model["u"])] == ["b"]
    assert parameters(model, model["w"]) == []


def test_a_parameter_of_the_inducing_values_is_not_followed():
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        u = gp.prior("u", Xu=X[::5])
        b = pm.Normal("b", u[0], 1.0)
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(b)), X=X, y=COUNTS)
    assert parameters(model, model["u"]) == []


GROUP = np.arange(N) % 3
TERMS = {
    "a product": lambda b, W: W @ b,
    "of an array": lambda b, _: pt.dot(W, b),
    "columns": lambda b, W: b[0] * W[:, 0] + b[1] * W[:, 1],
    "a sum": lambda b, W: (W * b).sum(axis=1),
    "groups": lambda b, _: b[GROUP],
    "groups in data": lambda b, _: b[pm.Data("group", GROUP)],
    "two": lambda b, W: W @ b[:2] + b[GROUP],
}
FEW = [("a sum", True), ("groups in data", True), ("of an array", False), ("two", True)]
FEW += [("two", False)]


@pytest.mark.parametrize(
    ("term", "inside"), [*FEW, *long(*(c for c in product(TERMS, (True, False)) if c not in FEW))]
)
@pytest.mark.slow
def test_terms_of_any_distribution(term, inside):
    """A callable takes what it captures row by row, as a family takes its parameters."""
    found = []
    for family in (True, False):
        with pm.Model() as model:
            b = pm.Normal("b", shape=3 if term == "two" or "group" in term else 2)
            data = pm.Data("W", W)
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
            gp.prior("u", Xu=X[::5])
            eta = TERMS[term](b, data) if family or not inside or "data" in term else None

            def poisson(f, b=b, data=data, eta=eta):
                return pm.Poisson.dist(
                    pm.math.exp(f + (TERMS[term](b, data) if eta is None else eta))
                )

            likelihood = counts(eta) if family else lambda f: poisson(f)
            gp.likelihood("y", likelihood, X=X, y=COUNTS)
        point = {n: np.linspace(-0.5, 0.7, v.size) for n, v in model.initial_point().items()}
        found.append(model.compile_logp(mode=RAW)(point))
    np.testing.assert_allclose(*found, rtol=1e-8)


def test_new_rows_need_the_callable_anew():
    model = regression(
        "points", lambda eta: lambda f: pm.Poisson.dist(pm.math.exp(f + eta)), COUNTS
    )
    tree = pm.sample_prior_predictive(2, model=model, random_seed=1)
    tree["posterior"] = tree["prior"]
    with pytest.raises(ValueError, match=r"Pass a callable .* likelihood=lambda f"):
        vsgp.predict(tree, X[:5], "y", model=model, progressbar=False)
