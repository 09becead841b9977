"""Leave-one-out against refits, pointwise groups, and folds."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import reference_gp
import xarray as xr

from prior_draws import prior_draws
from scipy import integrate, stats

import pymc_vsgp as vsgp

from pymc_vsgp.results.folds import kfold
from pymc_vsgp.results.loo import compute_pointwise, loo
from pymc_vsgp.results.prediction import predict

N, M, LS, SIGMA = 25, 6, 1.2, 1.0
quiet = {"progressbar": False}


def make_data():
    rng = np.random.default_rng(7)
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    return X, np.sin(X[:, 0]) + SIGMA * rng.normal(size=N)


def build(X, y, ls=LS):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
        gp.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=y)
    return model


def draw(model, n=2000):
    return vsgp.fit_gaussian(model=model, **quiet).to_datatree(n, random_seed=1)


@pytest.fixture(scope="module")
def fitted():
    X, y = make_data()
    model = build(X, y)
    return model, draw(model), X, y


def posterior(X, y):
    """Of the inducing values: for a normal likelihood, the posterior that is sampled is normal."""
    Z = np.linspace(0.0, 10.0, M)[:, None]
    k = lambda a, b: reference_gp.ard_kernel(a, b, [LS], 1.0)  # noqa: E731  (short, and used once)
    R = np.linalg.cholesky(k(Z, Z) + reference_gp.JITTER * np.eye(M))
    A = np.linalg.solve(R, k(Z, X))
    P = np.eye(M) + A @ A.T / SIGMA**2
    return R, np.linalg.solve(P, A @ y) / SIGMA**2, np.linalg.inv(P), lambda x: k(Z, x)


def exact_scores(X, y, folds):
    """Fit again without each fold, and predict each of its observations."""
    out = np.empty(N)
    for fold in np.unique(folds):
        at = folds == fold
        R, mean, cov, cross = posterior(X[~at], y[~at])
        A = np.linalg.solve(R, cross(X[at]))
        variance = 1.0 - np.sum(A**2, axis=0) + np.sum(A * (cov @ A), axis=0) + SIGMA**2
        out[at] = stats.norm.logpdf(y[at], A.T @ mean, np.sqrt(variance))
    return out


def test_equals_refits(fitted):
    model, idata, X, y = fitted
    exact = exact_scores(X, y, np.arange(N))
    result = loo(idata, model=model, **quiet)
    assert result.kind == "loo"
    assert float(result.pareto_k.max()) < 0.7
    np.testing.assert_allclose(result.elpd_i, exact, atol=0.06)
    np.testing.assert_allclose(result.elpd, exact.sum(), atol=0.15)
    # What ArviZ makes of the log likelihood group is pessimistic, as gamma is not small here.
    tree = idata.copy()
    found = compute_pointwise(idata, model=model, extend_inferencedata=False, **quiet)
    tree["log_likelihood"] = xr.DataTree(found["log_potential"].rename("y").to_dataset())
    plain = az.loo(tree, pointwise=True)
    assert plain.elpd < exact.sum() - 0.3


def test_pointwise_groups(fitted):
    model, idata, X, y = fitted
    few = idata.copy()
    few["posterior"] = idata["posterior"].isel(draw=slice(0, 5))
    found = compute_pointwise(few, model=model, extend_inferencedata=False, **quiet)
    moments = predict(few, None, "moments", model=model, **quiet)
    mu, gamma = moments["mean"].values, moments["variance"].values
    np.testing.assert_allclose(
        found["log_predictive"], stats.norm.logpdf(y, mu, np.sqrt(gamma + SIGMA**2)), rtol=1e-8
    )
    expected = stats.norm.logpdf(y, mu, SIGMA) - gamma / (2 * SIGMA**2)
    np.testing.assert_allclose(found["log_potential"], expected, rtol=1e-8)
    assert found["log_potential"].dims == ("chain", "draw", "y_obs")
    extended = compute_pointwise(few, model=model, **quiet)
    assert extended["log_predictive"]["y"].dims == ("chain", "draw", "y_obs")
    assert "log_likelihood" not in extended.children  # which of the two would it be?


def test_groups_are_used_without_the_model(fitted):
    model, idata, _, _ = fitted
    tree = idata.copy()
    compute_pointwise(tree, model=model, **quiet)
    there = loo(tree)
    assert there.elpd == loo(idata, model=model, **quiet).elpd


def test_groups_of_two_likelihoods_are_told_apart_by_name(fitted):
    model, idata, _, _ = fitted
    tree = idata.copy()
    compute_pointwise(tree, model=model, **quiet)
    for group in ("log_potential", "log_predictive"):
        both = tree[group].to_dataset()
        tree[group] = xr.DataTree(both.assign(lab_y=both["y"]))
    with pytest.raises(ValueError, match=r"2 likelihoods. Say which one: .* \['y', 'lab_y'\]"):
        loo(tree)
    assert loo(tree, var_name="lab_y").elpd == loo(tree, var_name="y").elpd


def test_several_chains(fitted):
    """The relative efficiency comes from all chains; independent draws have one of about 1."""
    model, idata, _, _ = fitted
    posterior = idata["posterior"].to_dataset().isel(chain=0)
    halves = [
        posterior.isel(draw=slice(i * 1000, (i + 1) * 1000)).assign_coords(draw=np.arange(1000))
        for i in range(2)
    ]
    tree = idata.copy()
    tree["posterior"] = xr.DataTree(xr.concat(halves, "chain", join="exact"))
    two, one = (loo(t, model=model, **quiet) for t in (tree, idata))
    np.testing.assert_allclose(two.elpd, one.elpd, atol=0.02)
    assert two.log_weights.sizes["chain"] == 2


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_relative_efficiency_is_the_mean_of_all_numbers(fitted):
    """The mean over variables would count a vector as much as one number."""
    model, idata, *_ = fitted
    rng, tree = np.random.default_rng(2), idata.isel(draw=slice(400))
    compute_pointwise(tree, model=model, **quiet)
    for group in ("log_potential", "log_predictive"):
        halves = tree[group]["y"].values.reshape(2, 200, N)
        tree[group] = xr.DataTree(xr.Dataset({"y": (("chain", "draw", "y_obs"), halves)}))
    walk = np.cumsum(rng.normal(size=(2, 200)), axis=1)  # worth a few draws
    u = rng.normal(size=(2, 200, 9))
    draws = xr.Dataset({"walk": (("chain", "draw"), walk), "u": (("chain", "draw", "k"), u)})
    tree["posterior"] = xr.DataTree(draws)
    ess = draws.azstats.ess(method="mean")
    wanted = (float(ess["walk"]) + ess["u"].values.sum()) / 10 / 400
    np.testing.assert_allclose(loo(tree).pareto_k, loo(tree, reff=wanted).pareto_k, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_draws_of_dask_score_the_same(fitted):
    pytest.importorskip("dask", reason="dask is not installed")
    model, idata, _, _ = fitted
    few = idata.isel(draw=slice(40))
    compute_pointwise(few, model=model, **quiet)
    lazy = few.chunk()
    assert loo(lazy).elpd == loo(few).elpd
    found, wanted = (
        vsgp.compute_log_likelihood(t, **quiet)["log_likelihood"]["y"] for t in (lazy, few)
    )
    np.testing.assert_array_equal(found, wanted)
    assert lazy["posterior"]["u"].chunks is not None  # draws that may not fit stay where they are


# Of ArviZ, where an observation has much influence, as one on its own here has.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_compare(fitted):
    model, idata, X, y = fitted
    rough = build(X, y, ls=0.6)
    table = az.compare(
        {
            "smooth": loo(idata, model=model, **quiet),
            "rough": loo(draw(rough, 500), model=rough, **quiet),
        }
    )
    assert table.index[0] == "smooth"


@pytest.mark.slow
def test_folds(fitted):
    model, idata, X, y = fitted
    folds = np.arange(N) % 3
    result = kfold(build, X, y, folds=folds, fit=lambda m: draw(m, 600), **quiet)
    np.testing.assert_allclose(result.elpd_i, exact_scores(X, y, folds), atol=0.2)
    np.testing.assert_allclose(result.elpd, exact_scores(X, y, folds).sum(), atol=0.5)
    assert result.n_folds == 3
    assert "kfold" in repr(result)
    again = kfold(build, X, y, 2, fit=lambda m: draw(m, 20), random_seed=1, **quiet)
    assert again.n_folds == 2
    assert np.isfinite(again.elpd)


@pytest.mark.parametrize("what", ["y", "exposure", "folds"])
def test_folds_are_of_rows_in_one_order(what):
    """Whatever `build` makes of labels."""
    X, y = make_data()
    table = pd.DataFrame(X, index=[f"row {i}" for i in range(N)])
    of_rows = {"y": y, "exposure": np.ones(N), "folds": np.arange(N) // (N // 2)}
    of_rows = {name: pd.Series(values, table.index) for name, values in of_rows.items()}
    of_rows[what] = of_rows[what].iloc[::-1]
    exposure = {"exposure": of_rows["exposure"]}
    with pytest.raises(ValueError, match=f"Rows of {what} have the labels of X in another order"):
        kfold(None, table, of_rows["y"], folds=of_rows["folds"], per_observation=exposure, **quiet)


def test_folds_of_a_fit_that_returns_a_posterior_alone():
    X, y = make_data()
    found = kfold(build, X, y, 2, fit=lambda m: draw(m, 50)["posterior"].to_dataset(), **quiet)
    assert np.isfinite(found.elpd)
    assert found.n_samples == 50


@pytest.mark.slow
def test_folds_are_sampled_by_importance(monkeypatch):
    """Without NUTS, which takes a compiler for each of them."""
    monkeypatch.setattr(pm, "sample", None)  # fails where it is called
    X, y = make_data()
    folds = np.arange(N) % 2
    result = kfold(build, X, y, folds=folds, random_seed=1, **quiet)
    np.testing.assert_allclose(result.elpd_i, exact_scores(X, y, folds), atol=0.1)


@pytest.mark.slow
def test_folds_of_a_table_with_an_exposure():
    """Rows keep their labels and their exposures; the score is that of scipy."""
    X, _ = make_data()
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"x": X[:, 0]}, index=rng.permutation(N))
    exposure = pd.Series(np.linspace(0.5, 3.0, N), index=table.index)
    counts = pd.Series(rng.poisson(exposure), index=table.index)
    seen = []

    def build(X, y, exposure):
        seen.append((X.index.equals(y.index), X.index.equals(exposure.index)))
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
            gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
            gp.likelihood("y", vsgp.Poisson(exposure=exposure), X=X, y=y)
        return model

    def fit(model):
        """u = 0: then f ~ N(0, gamma), with gamma that of the prior given u."""
        u = xr.Dataset({"u": (("chain", "draw", "u_inducing"), np.zeros((1, 1, M)))})
        return xr.DataTree.from_dict({"posterior": u})

    folds = np.arange(N) % 2
    options = {"fit": fit, "folds": folds, "per_observation": {"exposure": exposure}, **quiet}
    result = kfold(build, table, counts, **options)
    assert seen == [(True, True)] * 3  # also with all rows, once
    Z = np.linspace(0.0, 10.0, M)[:, None]
    k = lambda a, b: reference_gp.ard_kernel(a, b, [LS], 1.0)  # noqa: E731
    A = np.linalg.solve(np.linalg.cholesky(k(Z, Z) + reference_gp.JITTER * np.eye(M)), k(Z, X))
    for n, gamma in enumerate(1.0 - np.sum(A**2, axis=0)):
        at = np.array([counts.iloc[n], exposure.iloc[n], gamma])
        density, _ = integrate.quad(
            lambda f, y, e, g: stats.poisson.pmf(y, e * np.exp(f)) * stats.norm.pdf(f, 0, g**0.5),
            -8.0,
            8.0,
            args=tuple(at),
        )
        np.testing.assert_allclose(result.elpd_i[n], np.log(density), rtol=1e-6)
    with pytest.raises(ValueError, match="exposure has 3 entries, but X has 25 rows"):
        kfold(build, table, counts, **options | {"per_observation": {"exposure": exposure[:3]}})


def of_expressions(X, y, error, W):
    """A model whose noise is an expression of what there is for each row, and of parameters."""
    with pm.Model() as model:
        jitter, b = pm.HalfNormal("jitter", 1.0), pm.Normal("b", 0.0, 1.0, shape=2)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=pm.gp.cov.ExpQuad(1, ls=LS)
        )
        gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
        sigma = pm.math.sqrt(error**2 + jitter**2) * pm.math.exp(W @ b) * (1.0 + X[:, 0])
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=y)
    return model


JITTER_OF_DRAW, B_OF_DRAW = 0.7, np.array([0.3, -0.5])


def at_one_draw(model):
    values = {"u": np.full(M, 0.4), "jitter": np.array(JITTER_OF_DRAW), "b": B_OF_DRAW}
    dims = {"u": ["u_inducing"], "jitter": [], "b": ["b_dim"]}
    draws = {n: (("chain", "draw", *dims[n]), v[None, None]) for n, v in values.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})


@pytest.mark.slow
def test_folds_of_parameters_that_are_expressions():
    """Covariates of the likelihood, and a noise with a known part, keep what is around them."""
    X, y = make_data()
    rng = np.random.default_rng(2)
    rows = {"error": rng.uniform(0.1, 0.5, N), "W": rng.normal(size=(N, 2))}
    options = {"fit": at_one_draw, "per_observation": rows, **quiet}
    found = kfold(of_expressions, X, y, folds=np.arange(N) % 3, **options)
    k = lambda a, b: reference_gp.ard_kernel(a, b, [LS], 1.0)  # noqa: E731
    Z = np.linspace(0.0, 10.0, M)[:, None]
    A = np.linalg.solve(np.linalg.cholesky(k(Z, Z) + reference_gp.JITTER * np.eye(M)), k(Z, X))
    sigma = (
        np.sqrt(rows["error"] ** 2 + JITTER_OF_DRAW**2)
        * np.exp(rows["W"] @ B_OF_DRAW)
        * (1.0 + X[:, 0])
    )
    sd = np.sqrt(1.0 - np.sum(A**2, axis=0) + sigma**2)
    np.testing.assert_allclose(found.elpd_i, stats.norm.logpdf(y, 0.4, sd), rtol=1e-8)
    # One row, one entry.
    alone = kfold(of_expressions, X[:2], y[:2], 2, **options | {"per_observation": _first(rows, 2)})
    np.testing.assert_allclose(alone.elpd_i, found.elpd_i[:2], rtol=1e-8)


@pytest.mark.slow
def test_folds_of_what_build_writes_to():
    """Lists come as arrays, and what build does to its rows is done to copies, also to all rows."""
    X, y = make_data()
    table, error = pd.DataFrame({"x": X[:, 0]}), np.linspace(0.1, 0.5, N)

    def build(X, y, error):
        X["half"] = X["x"] / 2.0
        y -= 5.0
        return of_expressions(X[["x"]].to_numpy(), y + 5.0, error * 1.0, np.zeros((len(y), 2)))

    options = {"folds": np.arange(N) % 2, "fit": at_one_draw, **quiet}
    plain = kfold(
        lambda X, y, error: of_expressions(X, y, error, np.zeros((len(y), 2))),
        X,
        y,
        per_observation={"error": error},
        **options,
    )
    before = y.copy()
    found = kfold(build, table, y, per_observation={"error": error.tolist()}, **options)
    np.testing.assert_allclose(found.elpd_i, plain.elpd_i)
    np.testing.assert_array_equal(y, before)
    assert list(table) == ["x"]


@pytest.mark.slow
def test_folds_given_what_is_observed():
    """A parameter may depend on an observed variable, and on one of a model around."""
    X, y = make_data()
    error = np.linspace(0.1, 0.5, N)

    def build(X, y, error):
        with pm.Model() as outer:
            jitter = pm.HalfNormal("jitter", 1.0)
            seen = pm.Normal("seen", 0.3, 1.0, observed=error)
            with pm.Model("inner") as model:
                gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
                gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
                gp.likelihood("y", vsgp.Gaussian(seen + jitter), X=X, y=y)
        assert outer is model.root
        return model

    def fit(model):
        draws = {"inner::u": np.zeros(M), "jitter": np.array(0.2)}
        dims = {"inner::u": ["u_inducing"], "jitter": []}
        draws = {n: (("chain", "draw", *dims[n]), v[None, None]) for n, v in draws.items()}
        return xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})

    options = {"per_observation": {"error": error}, "folds": np.arange(N) % 2, **quiet}
    found = kfold(build, X, y, fit=fit, **options)
    k = lambda a, b: reference_gp.ard_kernel(a, b, [LS], 1.0)  # noqa: E731
    Z = np.linspace(0.0, 10.0, M)[:, None]
    A = np.linalg.solve(np.linalg.cholesky(k(Z, Z) + reference_gp.JITTER * np.eye(M)), k(Z, X))
    sd = np.sqrt(1.0 - np.sum(A**2, axis=0) + (error + 0.2) ** 2)
    np.testing.assert_allclose(found.elpd_i, stats.norm.logpdf(y, 0.0, sd), rtol=1e-8)
    with pytest.raises(ValueError, match="The draws lack 'jitter'. Let fit return all"):
        kfold(build, X, y, fit=lambda m: fit(m).map_over_datasets(_without_jitter), **options)


def _without_jitter(dataset):
    return dataset.drop_vars("jitter", errors="ignore")


def _first(rows, n):
    return {name: values[:n] for name, values in rows.items()}


@pytest.mark.slow
def test_folds_in_which_parameters_are_others():
    """What a model of all rows would score is not what the model of a fold was fitted with."""
    X, y = make_data()
    error, W = np.full(N, 0.3), np.random.default_rng(2).normal(size=(N, 2))
    W[: N // 2] += 1.0
    options = {"folds": np.arange(N) // 13, "fit": at_zero, **quiet}

    def standardized(X, y, W):
        return of_expressions(X, y, error[: len(X)], (W - W.mean(axis=0)) / W.std(axis=0))

    with pytest.raises(ValueError, match="sigma of Gaussian changes where build has fewer rows"):
        kfold(standardized, X, y, per_observation={"W": W}, **options | {"fit": at_one_draw})

    def grouped(X, y, group):
        labels, codes = np.unique(group, return_inverse=True)
        with pm.Model() as model:
            noise = pm.HalfNormal("noise", 1.0, shape=len(labels))
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
            gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
            gp.likelihood("y", vsgp.Gaussian(0.1 + noise[codes]), X=X, y=y)
        return model

    with pytest.raises(ValueError, match="depends on 'noise', which is not the same variable"):
        kfold(grouped, X, y, per_observation={"group": np.arange(N) // 13}, **options)


def test_folds_by_set_data_of_one_model(rng):
    """Its exposures are those of the fold: there was an IndexError."""
    X, e = np.linspace(0.0, 10.0, N)[:, None], rng.uniform(0.5, 2.0, N)
    options = {"folds": np.arange(N) % 2, "per_observation": {"e": e}, "fit": at_zero, **quiet}
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
        gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
        rows = {"X": X, "counts": rng.poisson(e), "e": e}
        data = {name: pm.Data(name, values) for name, values in rows.items()}
        gp.likelihood("y", vsgp.Poisson(exposure=data["e"]), X=data["X"], y=data["counts"])

    def by_set_data(X, y, e):
        pm.set_data({"X": X, "counts": y, "e": e}, model=model)
        return model

    with pytest.raises(ValueError, match="one model for all folds, so that exposure of Poisson at"):
        kfold(by_set_data, X, rows["counts"], **options)


def at_zero(model):
    """A draw in which all inducing values are zero, for what does not depend on the fit."""
    sizes = {rv.name: model.eval_rv_shapes()[rv.name] for rv in model.free_RVs}
    draws = {
        name: (
            ("chain", "draw", *(f"{name}_{i}" for i in range(len(shape)))),
            np.zeros((1, 1, *shape)),
        )
        for name, shape in sizes.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})


@pytest.mark.slow
def test_folds_of_masked_observations():
    """A mask is what nan is: a missing entry, not the number under it."""
    X, y = make_data()
    table = np.column_stack([y, y, y])
    table[4:8, 1] = table[20, :2] = -999.0
    seen = []

    def build(X, y):
        seen.append(y)
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
            gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
            f = vsgp.Coregionalized([[1.0], [0.5], [2.0]], gp)
            f.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=y)
        return model

    masked, folds = np.ma.masked_equal(table, -999.0), np.arange(N) // 13
    found, wanted = (
        kfold(build, X, y, folds=folds, fit=at_zero, **quiet).elpd_i
        for y in (masked, np.where(masked.mask, np.nan, table))
    )
    np.testing.assert_array_equal(found, wanted)
    assert [int(np.ma.getmaskarray(y).sum()) for y in seen[:3]] == [6, 2, 4]
    with pytest.raises(TypeError, match="y is a masked array.*Drop the masked rows"):
        kfold(globals()["build"], X, np.ma.masked_less(y, 0.0), folds=folds, fit=at_zero, **quiet)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [lambda y: y, pd.CategoricalIndex], ids=["array", "index"])
def test_folds_of_classes_that_need_not_occur(kind):
    """The categories say their order, and are those of all folds."""
    X, _ = make_data()
    y = pd.Categorical(np.array(["low", "high"])[np.arange(N) // 13], ["low", "mid", "high"], True)

    def build(X, y):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
            gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
            gp.likelihood("y", vsgp.Ordinal([-1.0, 1.0]), X=X, y=y)
        return model

    options = {"folds": np.arange(N) // 13, "fit": at_zero, **quiet}
    found = kfold(build, X, kind(y), **options).elpd_i
    np.testing.assert_array_equal(found, kfold(build, X, pd.Series(y), **options).elpd_i)


def test_folds_of_outputs_with_an_effort_for_each_row(monkeypatch):
    """A vector has an entry for each row, also of folds of as many rows as there are outputs."""
    X, _ = make_data()
    effort, folds, seen = np.linspace(0.5, 3.0, N), (np.arange(N) >= 3).astype(int), []

    def build(X, y, exposure):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
            gp.prior("u", Xu=np.linspace(0.0, 10.0, M)[:, None])
            f = vsgp.Coregionalized(np.ones((3, 1)), gp)
            wide = np.asarray(exposure).reshape(len(X), -1)
            f.likelihood("y", vsgp.Poisson(wide), X=X, y=y)
        return model

    def score(idata, X, y, likelihood, **options):
        seen.append(likelihood.exposure.eval(mode="FAST_COMPILE"))
        return xr.DataArray(np.zeros(len(y)))

    monkeypatch.setattr("pymc_vsgp.results.folds.log_predictive_density", score)
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(coords={"chain": [0], "draw": [0]})})
    options = {"fit": lambda model: idata, "folds": folds, **quiet}
    per_row = {"exposure": pd.Series(effort)}
    kfold(build, X, np.ones((N, 3), int), per_observation=per_row, **options)
    np.testing.assert_array_equal(seen[0], effort[:3, None])
    np.testing.assert_array_equal(seen[1], effort[3:, None])


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_few_draws(fitted):
    model, idata = fitted[:2]
    few = idata.isel(draw=slice(0, 29))
    with pytest.raises(ValueError, match="There are 29 draws, too few.*Pass 30 or more"):
        loo(few, model=model, **quiet)
    found = loo(idata.isel(draw=slice(0, 30)), model=model, **quiet)
    assert np.isfinite(found.pareto_k).all()


@pytest.mark.slow
def test_a_generator_seeds_folds_and_draws(monkeypatch):
    """Each fold its own draws, and all of them again with the same seed."""
    seen = []

    def sample(model, random_seed, **_):
        seen.append(int(np.random.default_rng(random_seed).integers(2**31)))
        return prior_draws(model)

    monkeypatch.setattr("pymc_vsgp.fit.sampling.sample", sample)
    X, y = make_data()
    scores = [
        kfold(build, X, y, 2, random_seed=np.random.default_rng(seed), **quiet).elpd_i.values
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert seen[:2] == seen[2:4] != seen[4:]
    assert len(set(seen)) == 4


def test_refusals():
    X, y = make_data()
    with pytest.raises(ValueError, match="k is 1.*from 2 to 25"):
        kfold(build, X, y, 1)
    with pytest.raises(ValueError, match="one fold for each row"):
        kfold(build, X, y, folds=[0, 1])
    with pytest.raises(TypeError, match="X is of type NoneType. Pass one row"):
        kfold(build, None, y, 2)
    with pytest.raises(TypeError, match="folds holds None"):
        kfold(build, X, y, folds=[None] * len(y))
    with pytest.raises(TypeError, match="per_observation is of type int. Pass a dict"):
        kfold(build, X, y, 2, per_observation=3)
    for value in (2.0, np.array(2.0), "many"):
        with pytest.raises(TypeError, match="exposure is of type .*. Pass one entry for each row"):
            kfold(build, X, y, 2, per_observation={"exposure": value})
    with pytest.raises(ValueError, match="folds holds nan"):
        kfold(build, X, y, folds=np.where(np.arange(N) == 3, np.nan, np.arange(N) % 2))
    with pytest.raises(ValueError, match="folds .*is masked. Pass a fold for each row"):
        kfold(build, X, y, folds=np.ma.array(np.arange(N) % 2, mask=np.arange(N) == 3))

    with pytest.raises(TypeError, match="returned int, not a model"):
        kfold(lambda X, y: 3, X, y, 2, **quiet)


def test_a_tail_of_equal_weights(fitted):
    """As of a few draws that a chain repeats, or of a class that is certain: nothing to smooth."""
    model, idata, *_ = fitted
    found = compute_pointwise(idata.copy(), model=model, **quiet)
    plain = loo(found)
    phi = found["log_potential"]["y"]
    at = {"y_obs": 3}
    assert phi.dims[-1] == "y_obs"
    low = np.sort(phi[at].values.ravel())[len(phi["draw"]) // 2]
    phi[at] = phi[at].clip(min=low)  # the largest weights are those of the lowest potential
    equal = loo(found)
    assert equal.pareto_k[3] == 0.0
    others = np.arange(N) != 3
    np.testing.assert_allclose(equal.elpd_i[others], plain.elpd_i[others], rtol=1e-10)
    np.testing.assert_allclose(equal.pareto_k[others], plain.pareto_k[others], rtol=1e-10)
    w = np.exp(-phi[at].values - np.max(-phi[at].values))
    density = np.exp(found["log_predictive"]["y"][at].values)
    wanted = np.log(np.sum(w * density) / w.sum())
    np.testing.assert_allclose(equal.elpd_i[3], wanted, rtol=1e-10)


@pytest.mark.parametrize("scale", [200.0, 1e3, 1e6])
def test_weights_that_underflow_have_no_shape(scale, fitted, recwarn):
    """As of an outlier: ArviZ makes nan of it. The largest few make the score."""
    model, idata, *_ = fitted
    found = compute_pointwise(idata.copy(), model=model, **quiet)
    plain = loo(found)
    phi = found["log_potential"]["y"]
    at = {"y_obs": 3}
    phi[at] = -scale * np.random.default_rng(0).exponential(size=phi[at].shape)
    wild = loo(found)
    assert wild.pareto_k[3] == np.inf
    assert wild.warning
    density = found["log_predictive"]["y"][at].values.ravel()
    w = np.exp(phi[at].values.min() - phi[at].values.ravel())
    wanted = np.log(np.sum(w * np.exp(density)) / w.sum())
    np.testing.assert_allclose(wild.elpd_i[3], wanted, rtol=1e-10)
    others = np.arange(N) != 3
    np.testing.assert_allclose(wild.elpd_i[others], plain.elpd_i[others], rtol=1e-10)
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_a_tail_that_is_too_short_is_not_one_of_equal_weights(fitted):
    model, idata, *_ = fitted
    found = compute_pointwise(idata.copy(), model=model, **quiet)
    with pytest.raises(ValueError, match="at least 5"):
        loo(found, reff=2000.0)


def test_scores_beside_those_of_other_draws_take_their_place():
    X = np.linspace(0, 5, 12)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("a", vsgp.Gaussian(0.5), X=X, y=np.sin(X[:, 0]))
        gp.likelihood("b", vsgp.Gaussian(0.5), X=X[:6], y=np.cos(X[:6, 0]))
    draws = vsgp.fit_gaussian(progressbar=False, model=model).to_datatree(20, random_seed=1)
    vsgp.compute_pointwise(draws, var_name="a", model=model, progressbar=False)
    draws["posterior"] = xr.DataTree(
        draws["posterior"].to_dataset().isel(draw=slice(None, None, 2))
    )
    with pytest.warns(UserWarning, match="for other draws or data, and is overwritten"):
        vsgp.compute_pointwise(draws, var_name="b", model=model, progressbar=False)
    assert list(draws["log_potential"].data_vars) == ["b"]
    assert draws["log_potential"]["b"].sizes["draw"] == 10
    assert not np.isnan(draws["log_potential"]["b"]).any()
