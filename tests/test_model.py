"""What PyMC does with a model that has a sparse process in it, without a warning of ours."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from modes import RAW

import pymc_vsgp as vsgp

from pymc_vsgp.model.copies import copy_of
from pymc_vsgp.model.data import check_data
from pymc_vsgp.model.variable import value_shapes

N, M = 40, 6


@pytest.fixture
def data(rng):
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    return X, rng.poisson(2 * np.exp(np.sin(X[:, 0])))


@pytest.fixture
def model(data):
    X, y = data
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 4, 2)
        scale = pm.HalfNormal("scale", 1)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3),
            cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=lengthscale),
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(exposure=2.0), X=X, y=y)
    model.gp = gp
    return model


@pytest.fixture
def idata(model):
    """Ten draws, from the prior: enough for everything that only needs the groups."""
    prior = pm.sample_prior_predictive(10, model=model, random_seed=1, compile_kwargs={"mode": RAW})
    prior["posterior"] = xr.DataTree(prior["prior"].to_dataset())
    return prior


fast = {"compile_kwargs": {"mode": RAW}, "progressbar": False}


def test_it_lives_in_pm_gp():
    assert pm.gp.VariationalSparse is vsgp.VariationalSparse
    assert issubclass(vsgp.VariationalSparse, pm.gp.gp.Base)


def test_the_family_that_pymc_calls_normal():
    with pytest.raises(AttributeError, match=r"no vsgp.Normal. Use vsgp.Gaussian\(sigma\)"):
        vsgp.Normal  # noqa: B018  (it raises)
    with pytest.raises(AttributeError, match="has no attribute 'Poison'"):
        vsgp.Poison  # noqa: B018  (it raises)


def test_names_and_dims(model):
    assert {v.name for v in model.free_RVs} == {"lengthscale", "scale", "u"}
    assert {v.name for v in model.value_vars} == {
        "lengthscale_log__",
        "scale_log__",
        "u_whitened__",
    }
    assert model.named_vars_to_dims == {
        "u": ("u_inducing",),
        "u_Xu": ("u_inducing", "u_feature"),
        "y": ("y_obs",),
        "y_X": ("y_obs", "u_feature"),
    }
    assert not any("_rotated_" in name for name in model.named_vars)  # PyMC warns about those
    assert not model.rvs_to_initial_values[model["u"]]  # it would break compute_log_likelihood


def test_labels_of_a_data_frame(data):
    _, y = data
    frame = pd.DataFrame({"east": np.linspace(0, 1, N), "north": np.linspace(1, 2, N)})
    with pm.Model(coords={"site": [f"s{i}" for i in range(N)]}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(2, ls=[0.5, 1.0]))
        gp.prior("u", Xu=frame.iloc[::8], inducing_dims="knot")
        gp.likelihood("y", vsgp.Poisson(), X=frame, y=y, dims="site")
    assert model.coords["u_feature"] == ("east", "north")
    assert model.named_vars_to_dims["u"] == ("knot",)
    assert model.named_vars_to_dims["y"] == ("site",)


@pytest.mark.long
@pytest.mark.slow
def test_prior_predictive_draws_have_the_prior_moments(data):
    X, y = data
    with pm.Model():
        cov = 1.5 * pm.gp.cov.ExpQuad(1, ls=2.0)
        gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(0.7), cov_func=cov)
        Xu = np.linspace(0, 10, M)[:, None]
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(sigma=0.4), X=X, y=y.astype(float))
        prior = pm.sample_prior_predictive(
            20_000, random_seed=2, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    u = prior["prior"]["u"].values.reshape(-1, M)
    np.testing.assert_allclose(u.mean(0), 0.7, atol=5 * np.sqrt(1.5 / 20_000))
    np.testing.assert_allclose(np.cov(u.T), cov(Xu).eval(), atol=0.07)
    # y has the variance of the whole process, whatever u is: E var(f|u) + var E(f|u) + noise
    simulated = prior["prior_predictive"]["y"].values.reshape(-1, N)
    np.testing.assert_allclose(simulated.var(0), 1.5 + 0.4**2, rtol=0.06)


def test_posterior_predictive_and_pointwise_groups(model, idata):
    with model:
        predictive = pm.sample_posterior_predictive(idata, random_seed=3, **fast)
        pm.compute_log_likelihood(idata, progressbar=False, compile_kwargs={"mode": RAW})
    assert dict(predictive["posterior_predictive"]["y"].sizes) == {
        "chain": 1,
        "draw": 10,
        "y_obs": N,
    }
    assert idata["log_likelihood"]["y"].dims == ("chain", "draw", "y_obs")
    assert np.isfinite(idata["log_likelihood"]["y"]).all()
    np.testing.assert_array_equal(idata["constant_data"]["u_Xu"], model["u_Xu"].get_value())


def test_new_inputs_by_conditional_and_predictive(model, idata):
    Xnew = np.linspace(0, 12, 5)[:, None]
    with model:
        model.gp.conditional("f_new", Xnew)
        model.gp.conditional("f_diag", Xnew, diag=True)
        model.gp.predictive("y_new", Xnew)
        draws = pm.sample_posterior_predictive(
            idata,
            var_names=["f_new", "f_diag", "y_new"],
            predictions=True,
            random_seed=3,
            **fast,
        )["predictions"]
    assert draws["f_new"].shape == draws["f_diag"].shape == draws["y_new"].shape == (1, 10, 5)
    assert (draws["y_new"] >= 0).all()


def test_new_inputs_by_set_data(data):
    X, y = data
    with pm.Model() as model:
        inputs = pm.Data("X", X, dims=("obs", "feature"))
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=X[::8])
        gp.likelihood("y", vsgp.Poisson(), X=inputs, y=y)
        assert model.named_vars_to_dims["y"] == ("obs",)
        idata = pm.sample_prior_predictive(4, compile_kwargs={"mode": RAW})
        idata["posterior"] = xr.DataTree(idata["prior"].to_dataset())
        pm.set_data({"X": np.linspace(0, 1, 3)[:, None]}, coords={"obs": np.arange(3)})
        draws = pm.sample_posterior_predictive(idata, predictions=True, random_seed=1, **fast)
    assert draws["predictions"]["y"].shape == (1, 4, 3)


def test_new_data_without_their_coordinates_are_refused_before_sampling(data):
    """Draws would have no labels in the end."""
    X, y = data
    with pm.Model(coords={"obs": np.arange(len(X))}):
        inputs, counts = pm.Data("X", X), pm.Data("counts", y)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=X[::8])
        gp.likelihood("y", vsgp.Poisson(), X=inputs, y=counts, dims="obs")
        pm.set_data({"X": X[:9], "counts": y[:9]})
        with pytest.raises(ValueError, match="'y' has 9 entries along 'obs'.*pass coords to"):
            vsgp.sample(5, progressbar=False)
    with pm.Model(coords={"obs": np.arange(len(X))}) as model:
        inputs, counts = pm.Data("X", X, dims=("obs", "x")), pm.Data("counts", y, dims="obs")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=X[::8])
        gp.likelihood("y", vsgp.Poisson(), X=inputs, y=counts, dims="obs")
        pm.set_data({"X": X[:9], "counts": y[:9]}, coords={"obs": np.arange(9)})
        check_data(model)


def test_graph_and_text(model):
    graphviz = pytest.importorskip("graphviz", reason="graphviz is not installed")
    del graphviz
    source = pm.model_to_graphviz(model).source
    assert "Inducing" in source
    assert "Poisson" in source
    assert "Inducing" in model.str_repr()


def test_do_and_observe(model):
    fixed = pm.do(model, {"lengthscale": 1.3})
    draws = pm.sample_prior_predictive(5, model=fixed, random_seed=1, compile_kwargs={"mode": RAW})
    assert np.isfinite(draws["prior_predictive"]["y"]).all()
    observed = pm.observe(model, {"scale": 1.1})
    point = observed.initial_point()
    assert "scale_log__" not in point
    assert np.isfinite(observed.compile_logp(mode=RAW)(point))


def test_saved_and_loaded(model, idata, tmp_path):
    pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
    idata.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    loaded = xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf")
    np.testing.assert_array_equal(loaded["posterior"]["u"], idata["posterior"]["u"])
    assert "u_Xu" in loaded["constant_data"]


def test_copies_keep_initial_values(data):
    """PyMC copies no model that has one."""
    X, y = data
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0, initval="prior")
        ls = pm.LogNormal("ls", level, 0.1, initval=pm.math.exp(2.5))
        gp = pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.ExpQuad(1, ls=ls)
        )
        gp.prior("u", Xu=X[:3])
        gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("s", 1.0, initval=0.3)), X=X, y=y)
    known = dict(model.rvs_to_initial_values)
    copy = copy_of(model)
    assert model.rvs_to_initial_values == known
    for seed in (1, 2):
        ours, theirs = (m.initial_point(random_seed=seed) for m in (copy, model))
        np.testing.assert_equal(ours, theirs)
        assert ours["ls_log__"] == pytest.approx(2.5)
    assert ours["s_log__"] == pytest.approx(np.log(0.3))
    del copy.rvs_to_initial_values[copy["s"]]
    assert model.rvs_to_initial_values == known


class Laplace(vsgp.likelihoods.Likelihood):
    """A family from outside the package."""

    def __init__(self, b):
        super().__init__(b=b)

    def log_prob(self, f, y):
        return -pm.math.abs(y - f) / self.b - pm.math.log(2 * self.b)

    def dist(self, f, **kwargs):
        return pm.Laplace.dist(f, self.b, **kwargs)


def test_a_family_from_outside_the_package(data, rng):
    X, y = data
    with pm.Model() as model:
        b = pm.HalfNormal("b", 1)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=X[::8])
        gp.likelihood("y", Laplace(b), X=X, y=y.astype(float))
    assert np.isfinite(model.compile_logp(mode=RAW)(model.initial_point()))
    draws = pm.sample_prior_predictive(
        3, model=model, compile_kwargs={"mode": RAW}, random_seed=rng
    )
    assert draws["prior_predictive"]["y"].shape == (1, 3, N)


def shapes_at_the_start(model):
    return {name: np.shape(x) for name, x in model.initial_point().items()}


def test_shapes_of_values_are_those_of_the_start():
    """Where the types know them, and where they follow data and coordinates that change."""
    with pm.Model() as fixed:
        pm.Flat("level")
        pm.Dirichlet("shares", np.ones(3))
        pm.Normal("cuts", np.arange(2.0), transform=pm.distributions.transforms.ordered)
        pm.LKJCholeskyCov("cov", eta=1.0, n=3, sd_dist=pm.Exponential.dist(1.0))
        ls = pm.Gamma("ls", 3.0, 1.0)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=np.arange(4.0)[:, None], n_outputs=2)
    assert value_shapes(fixed) == shapes_at_the_start(fixed)
    with pm.Model(coords={"site": ["a", "b", "c"]}) as changing:
        pm.ZeroSumNormal("effects", dims="site")
        pm.Normal("slopes", pm.Data("means", np.zeros(2)))
        pm.Normal("level")
    assert value_shapes(changing) == shapes_at_the_start(changing)
    pm.set_data({"means": np.zeros(5)}, model=changing)
    assert value_shapes(changing) == {"effects_zerosum__": (2,), "slopes": (5,), "level": ()}


def test_the_start_is_compiled_once_for_a_fit(model, monkeypatch):
    """It took a twentieth of the processor time of a fit with its weights, for its shapes alone."""
    calls, start = [], pm.Model.initial_point
    monkeypatch.setattr(
        pm.Model, "initial_point", lambda *args, **kwargs: calls.append(1) or start(*args, **kwargs)
    )
    with model:
        stage = vsgp.fit_gaussian(maxiter=1, progressbar=False)
        vsgp.sample(10, chains=1, stage=stage, method="importance", progressbar=False)
    assert len(calls) == 1
