"""What goes into the DataTree: predictions, and a log likelihood for `az.loo`."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from prior_draws import prior_draws

import pymc_vsgp as vsgp

N = 30
quiet = {"progressbar": False}


def build(X, y, lengthscale=1.0):
    with pm.Model(coords={"site": list(range(100, 100 + N))}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y, dims="site")
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(0.0, 5.0, N))[:, None]
    return X, rng.poisson(np.exp(np.sin(X[:, 0])))


@pytest.fixture(scope="module")
def fitted(data):
    model = build(*data)
    return model, vsgp.fit_gaussian(model=model, **quiet).to_datatree(300, random_seed=1)


@pytest.fixture
def run(data):
    model = build(*data)
    return model, prior_draws(model, 40)


@pytest.mark.slow
def test_predictions_go_into_their_group(run):
    model, idata = run
    Xnew = pd.DataFrame({"x": [0.5, 1.5, 9.0]}, index=pd.Index(["a", "b", "c"], name="place"))
    options = {"model": model, "random_seed": 3, **quiet}
    for what, name in (("y", "y"), ("f", "y_f"), ("mean", "y_mean")):
        expected = vsgp.predict(idata, Xnew, what, **options)
        same = vsgp.predict(idata, Xnew, what, extend_inferencedata=True, **options)
        assert same is idata
        found = idata["predictions"][name]
        xr.testing.assert_equal(found.drop_attrs(), expected.rename(name))
        assert list(found["place"].values) == ["a", "b", "c"]
    assert set(idata["predictions"].data_vars) == {"y", "y_f", "y_mean"}
    assert az.summary(idata, group="predictions", kind="stats", round_to="none").shape[0] == 9


def test_predictions_at_the_data_go_into_the_posterior_predictive(run, data):
    model, idata = run
    options = {"extend_inferencedata": True, "model": model, **quiet}
    vsgp.predict(idata, what="y", **options)
    assert "predictions" not in idata.children
    vsgp.predict(idata, what="f", predictions=True, **options)
    assert set(idata["predictions"].data_vars) == {"y_f"}
    assert idata["posterior_predictive"]["y"].dims == ("chain", "draw", "site")
    np.testing.assert_array_equal(idata["posterior_predictive"]["site"], np.arange(100, 100 + N))


def test_a_group_for_other_inputs_is_overwritten(run):
    model, idata = run
    options = {"extend_inferencedata": True, "model": model, **quiet}
    vsgp.predict(idata, [[1.0], [2.0]], "f", **options)
    with pytest.warns(UserWarning, match="predictions was for other inputs"):
        vsgp.predict(idata, [[1.0], [2.0], [3.0]], "mean", **options)
    assert set(idata["predictions"].data_vars) == {"y_mean"}


def test_what_does_not_go_into_a_group(run):
    model, idata = run
    options = {"extend_inferencedata": True, "model": model, **quiet}
    with pytest.raises(ValueError, match="'quantiles' does not go into idata.*Ask for"):
        vsgp.predict(idata, [[1.0]], "quantiles", **options)
    with pytest.raises(TypeError, match="type Dataset, and the groups of a DataTree are needed"):
        vsgp.predict(idata["posterior"].to_dataset(), [[1.0]], "f", **options)
    with pytest.raises(TypeError, match="the posterior alone, and the groups of a DataTree"):
        vsgp.predict(idata["posterior"], [[1.0]], "f", **options)


def two_chains(tree):
    """As if two chains had been drawn."""
    d = tree["posterior"].to_dataset().drop_vars(["chain", "draw"], errors="ignore")
    half = d.sizes["draw"] // 2
    parts = [d.isel(draw=slice(0, half)), d.isel(draw=slice(half, 2 * half))]
    tree["posterior"] = xr.DataTree(xr.concat(parts, dim="chain"))
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_plain_az_loo_is_right(chains, fitted):
    model, idata = fitted[0], fitted[1].copy()
    if chains == 2:
        idata = two_chains(idata)
    ours = vsgp.loo(idata, model=model, **quiet)
    both = vsgp.compute_pointwise(idata, model=model, extend_inferencedata=False, **quiet)
    assert vsgp.compute_log_likelihood(idata, model=model, **quiet) is idata
    plain = az.loo(idata, pointwise=True)
    np.testing.assert_allclose(plain.elpd, ours.elpd, atol=1e-10)
    np.testing.assert_allclose(plain.se, ours.se, atol=1e-10)
    np.testing.assert_allclose(plain.elpd_i, ours.elpd_i, atol=1e-10)
    np.testing.assert_allclose(plain.pareto_k, ours.pareto_k, atol=1e-10)
    assert idata["log_likelihood"]["y"].dims == ("chain", "draw", "site")
    # The effective number of parameters is that of the potential.
    idata["log_likelihood"] = xr.DataTree(both["log_potential"].rename("y").to_dataset())
    of_phi = az.loo(idata, pointwise=True)
    np.testing.assert_allclose(plain.p, of_phi.p, atol=1e-9)
    assert plain.elpd - of_phi.elpd > 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_az_compare_needs_nothing_else(fitted, data):
    scores, trees = {}, {}
    other = build(*data, lengthscale=0.2)
    runs = {"good": (fitted[0], fitted[1].copy()), "prior": (other, prior_draws(other, 60))}
    for name, (model, idata) in runs.items():
        scores[name] = vsgp.loo(idata, model=model, **quiet)
        trees[name] = vsgp.compute_log_likelihood(idata, model=model, **quiet)
    got, expected = az.compare(trees, round_to="none"), az.compare(scores, round_to="none")
    assert list(got.index) == list(expected.index)
    np.testing.assert_allclose(got["elpd"], expected["elpd"], atol=1e-10)


@pytest.mark.slow
def test_a_log_likelihood_of_all_that_is_observed(data):
    X, y = data
    with build(X, y) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("v", Xu=X[::5])
        gp.likelihood("z", vsgp.Bernoulli(), X=X, y=(y > 1).astype(int))
    idata = prior_draws(model, 40)
    found = vsgp.compute_log_likelihood(idata, model=model, extend_inferencedata=False, **quiet)
    assert set(found.data_vars) == {"y", "z"}
    assert "log_likelihood" not in idata.children
    vsgp.compute_log_likelihood(idata, var_name="z", model=model, **quiet)
    vsgp.compute_log_likelihood(idata, var_name="y", model=model, **quiet)
    xr.testing.assert_allclose(idata["log_likelihood"].to_dataset(), found)
    few = prior_draws(model, 5)
    with pytest.raises(ValueError, match="5 draws, too few.*Pass 30 or more"):
        vsgp.compute_log_likelihood(few, model=model, **quiet)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["likelihood", "of the function"])
def test_a_likelihood_that_does_not_stream_is_told_of(kind, data):
    X, y = data
    with build(X, y) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("v", Xu=X[::5])
        if kind == "likelihood":
            gp.likelihood("z", vsgp.Gaussian(1.0), X=X, y=np.sin(X[:, 0]), block_size=False)
        else:
            pm.Normal("z", gp.conditional("f", X[:3]), 1.0, observed=np.zeros(3))
    idata = prior_draws(model, 40)
    with pytest.warns(UserWarning, match="'z' sees a .* is left out. Use gp.likelihood"):
        found = vsgp.compute_log_likelihood(idata, model=model, **quiet)["log_likelihood"]
    assert set(found.data_vars) == {"y"}


@pytest.fixture
def two(data):
    """Two observed variables, and draws that one of them was scored at."""
    X, y = data
    with build(X, y) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("v", Xu=X[::5])
        gp.likelihood("z", vsgp.Gaussian(1.0), X=X, y=np.sin(X[:, 0]))
    idata = prior_draws(model, 40)
    return model, vsgp.compute_pointwise(idata, var_name="y", model=model, **quiet)


def test_what_was_computed_before_leaves_nothing_out(two):
    model, idata = two
    found = vsgp.compute_log_likelihood(idata, model=model, extend_inferencedata=False, **quiet)
    assert set(found.data_vars) == {"y", "z"}
    with model:
        found = vsgp.compute_log_likelihood(idata, **quiet)["log_likelihood"]
    assert set(found.data_vars) == {"y", "z"}
    with pytest.raises(ValueError, match=r"2 likelihoods.*pass var_name, one of \['y', 'z'\]"):
        vsgp.loo(idata, model=model, **quiet)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_without_a_model_there_is_what_was_computed(two):
    model, idata = two
    found = vsgp.compute_log_likelihood(idata, extend_inferencedata=False, **quiet)
    assert set(found.data_vars) == {"y"}
    assert vsgp.loo(idata, **quiet).elpd == vsgp.loo(idata, var_name="y", **quiet).elpd
    for function in (vsgp.loo, vsgp.compute_log_likelihood):
        with pytest.raises(TypeError, match="type Dataset, and the groups of a DataTree"):
            function(idata["posterior"].to_dataset(), **quiet)
        with pytest.raises(TypeError, match="the posterior alone, and the groups of a DataTree"):
            function(idata["posterior"], **quiet)
        bare = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset()})
        with pm.Model(), pytest.raises(ValueError, match="no variationally sparse process"):
            function(bare, **quiet)
    with pm.Model():  # another one
        again = vsgp.compute_log_likelihood(idata, extend_inferencedata=False, **quiet)
    xr.testing.assert_identical(again, found)


def test_inputs_without_labels_are_told_apart(run):
    """As many of them would go on one axis with those of before."""
    model, idata = run
    options = {"extend_inferencedata": True, "model": model, **quiet}
    vsgp.predict(idata, [[1.0], [2.0]], "f", **options)
    vsgp.predict(idata, [[1.0], [2.0]], "mean", **options)
    assert set(idata["predictions"].data_vars) == {"y_f", "y_mean"}
    with pytest.warns(UserWarning, match="predictions was for other inputs"):
        vsgp.predict(idata, [[3.0], [4.0]], "mean", **options)
    assert set(idata["predictions"].data_vars) == {"y_mean"}
    # What is asked for again takes the place of what was there.
    vsgp.predict(idata, [[5.0], [6.0], [7.0]], "mean", **options)
    assert idata["predictions"].sizes["point"] == 3


def test_inputs_of_dask_are_told_apart(run):
    pytest.importorskip("dask", reason="dask is not installed")
    model, idata = run
    options = {"extend_inferencedata": True, "model": model, **quiet}
    lazy = xr.DataArray([[1.0], [2.0]], dims=["point", "k"]).chunk(point=1)
    vsgp.predict(idata, lazy, "f", **options)
    vsgp.predict(idata, lazy, "mean", **options)
    assert set(idata["predictions"].data_vars) == {"y_f", "y_mean"}
    with pytest.warns(UserWarning, match="predictions was for other inputs"):
        vsgp.predict(idata, lazy + 1.0, "mean", **options)


def test_draws_of_pymc_stay_beside_ours(run, data):
    """Their group says nothing of its inputs, and has the labels of the data."""
    model, idata = run
    y = np.ones((1, 40, N))
    coords = {"site": np.arange(100, 100 + N)}
    of_pymc = xr.Dataset({"y": (("chain", "draw", "site"), y)}, coords, attrs={"by": "PyMC"})
    idata["posterior_predictive"] = xr.DataTree(of_pymc)
    options = {"extend_inferencedata": True, "model": model, **quiet}
    vsgp.predict(idata, what="f", **options)
    found = idata["posterior_predictive"]
    assert set(found.data_vars) == {"y", "y_f"}
    assert found.attrs["by"] == "PyMC"


def test_likelihoods_with_rows_of_their_own_stay_beside_each_other():
    X = np.linspace(0.0, 3.0, 8)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y1", vsgp.Gaussian(0.3), X=X, y=X[:, 0])
        gp.likelihood("y2", vsgp.Gaussian(0.3), X=X[:5], y=X[:5, 0])
    idata, options = prior_draws(model), {"extend_inferencedata": True, "model": model, **quiet}
    for name in ("y1", "y2"):
        vsgp.predict(idata, None, "y", var_name=name, **options)
    assert {n: v.sizes[f"{n}_obs"] for n, v in idata["posterior_predictive"].items()} == {
        "y1": 8,
        "y2": 5,
    }
    vsgp.predict(idata, X[:4], "y", var_name="y1", **options)
    vsgp.predict(idata, X[:4], "y", var_name="y2", **options)
    assert set(idata["predictions"].data_vars) == {"y1", "y2"}
    with pytest.warns(UserWarning, match="predictions was for other inputs"):
        vsgp.predict(idata, X[1:5], "y", var_name="y2", **options)
    assert set(idata["predictions"].data_vars) == {"y2"}
