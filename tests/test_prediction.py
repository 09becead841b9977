"""Predictions from draws: moments by identity, chunks, labels, files, and what they refuse."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_gp
import xarray as xr

from modes import RAW
from prior_draws import prior_draws
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.results.predicted import Smooth
from pymc_vsgp.results.prediction import log_predictive_density, predict

N, M = 40, 6
quiet = {"progressbar": False}


def build(likelihood, X, y, variance=1.3, number=M):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4, 2)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3), cov_func=variance * pm.gp.cov.ExpQuad(1, ls=ls)
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, number))
        gp.likelihood("y", likelihood, X=X, y=y)
    return model, gp


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    return X, rng.poisson(2 * np.exp(np.sin(X[:, 0])))


@pytest.fixture(scope="module")
def poisson(data):
    X, y = data
    model, gp = build(vsgp.Poisson(exposure=2.0), X, y)
    idata = vsgp.fit_gaussian(model=model, **quiet).to_datatree(60, random_seed=1)
    return model, gp, idata


XNEW = np.linspace(-2.0, 14.0, 23)[:, None]


def moments(idata, s, X=XNEW, variance=1.3, c=0.3):
    """Dense matrices, numpy only."""
    post = idata["posterior"].isel(chain=0, draw=s)
    Z, u, ls = idata["constant_data"]["u_Xu"].values, post["u"].values, post["ls"].values
    k = lambda a, b: reference_gp.ard_kernel(a, b, [ls], variance)  # noqa: E731  (short, and used once)
    W = np.linalg.solve(k(Z, Z) + reference_gp.JITTER * variance * np.eye(M), k(Z, X))
    return c + W.T @ (u - c), k(X, X) - k(X, Z) @ W


def test_moments_equal_dense_matrices(poisson):
    model, _, idata = poisson
    found = predict(idata, XNEW, "moments", model=model, **quiet)
    assert found["mean"].dims == ("chain", "draw", "point")
    for s in (0, 17):
        mu, cov = moments(idata, s)
        np.testing.assert_allclose(found["mean"][0, s], mu, atol=1e-6)
        np.testing.assert_allclose(found["variance"][0, s], np.diag(cov), atol=1e-6)


def test_at_a_point_of_python_numbers(poisson):
    model, gp, idata = poisson
    one = idata["posterior"].isel(chain=0, draw=3)
    point = {"u": one["u"].values.tolist(), "ls": float(one["ls"])}
    for found, wanted in zip(gp.predict(XNEW, point, model=model), moments(idata, 3), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_moments_equal_the_conditional_of_pm_gp_where_Xu_is_X():
    X = np.linspace(0.0, 5.0, 8)[:, None]
    cov = 1.4 * pm.gp.cov.Matern52(1, ls=1.1)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(0.5), cov_func=cov)
        gp.prior("u", Xu=X, jitter=1e-10)
        gp.likelihood("y", vsgp.Gaussian(0.3), X=X, y=np.sin(X[:, 0]))
    idata = prior_draws(model, 2)
    with pm.Model():
        latent = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.5), cov_func=cov)
        f = latent.prior("f", X, reparameterize=False, jitter=1e-10)
        mu, K = latent._build_conditional(XNEW, X, f, latent.cov_func, latent.mean_func, 1e-10)
        at = pytensor.function([f], [mu, K], mode=RAW, on_unused_input="ignore")
        for s in range(2):
            mean, covariance = at(idata["posterior"]["u"].values[0, s])
            found = predict(idata.isel(draw=[s]), XNEW, "moments", model=model, **quiet)
            np.testing.assert_allclose(found["mean"][0, 0], mean, atol=1e-5)
            np.testing.assert_allclose(found["variance"][0, 0], np.diag(covariance), atol=1e-5)


@pytest.mark.parametrize("what", ["moments", "f", "mean", "summary", "density"])
def test_chunks_change_nothing(what, poisson):
    model, _, idata = poisson
    options = {"model": model, "random_seed": 1, "num_samples": 8, "at": [0, 3], **quiet}
    whole = predict(idata, XNEW, what, **options)
    chunked = predict(idata, XNEW, what, chunk_size=7, **options)
    xr.testing.assert_allclose(whole, chunked, rtol=1e-12)
    if what == "f":
        assert not np.allclose(whole, predict(idata, XNEW, what, **options | {"random_seed": 2}))


def test_mean_and_density_equal_sums_over_the_normal(poisson):
    """Mean, probability and score of counts, against scipy at each draw."""
    model, _, idata = poisson
    few = {"model": model, "num_samples": 5, **quiet}
    at = np.arange(4)
    mean = predict(idata, XNEW, "mean", **few)
    density = predict(idata, XNEW, "density", at=at, **few)
    score = log_predictive_density(idata, XNEW, np.full(len(XNEW), 2), **few)
    t, w = np.polynomial.hermite_e.hermegauss(60)
    w = w / w.sum()
    p = np.zeros((len(XNEW), len(at)))
    which = np.unique(np.linspace(0, 59, 5).round().astype(int))
    for i, s in enumerate(which):
        mu, cov = moments(idata, s)
        sd = np.sqrt(np.clip(np.diag(cov), 1e-12, None))
        rate = 2.0 * np.exp(mu[:, None] + sd[:, None] * t)
        np.testing.assert_allclose(mean[0, i], rate @ w, rtol=1e-5)
        for j, y in enumerate(at):
            p[:, j] += stats.poisson.pmf(y, rate) @ w / len(which)
    np.testing.assert_allclose(density, p, rtol=1e-5)
    np.testing.assert_allclose(score, np.log(p[:, 2]), rtol=1e-5)
    assert density.dims == ("point", "value")


def test_draws_that_go_in_parts_say_the_same(poisson, monkeypatch):
    """Those of many rows do, and sums are over all of them: by hand from the moments of each."""
    model, _, idata = poisson
    monkeypatch.setattr("pymc_vsgp.results.draws.SLAB", 7 * len(XNEW))
    options = {"model": model, **quiet}
    parts, found = (predict(idata, XNEW, what, **options) for what in ("moments", "summary"))
    mu, gamma, over = parts["mean"], parts["variance"], ["chain", "draw"]
    np.testing.assert_allclose(found["mean"], mu.mean(over))
    np.testing.assert_allclose(found["sd"], np.sqrt(mu.var(over) + gamma.mean(over)))
    np.testing.assert_allclose(found["y_mean"], 2.0 * np.exp(mu + gamma / 2.0).mean(over))
    counts = np.arange(len(XNEW)) % 4
    score = log_predictive_density(idata, XNEW, counts, **options)
    t, w = np.polynomial.hermite_e.hermegauss(60)
    rate = 2.0 * np.exp(mu.values[..., None] + np.sqrt(gamma.values)[..., None] * t)
    p = stats.poisson.pmf(counts[:, None], rate) @ w / w.sum()
    np.testing.assert_allclose(score, np.log(p.mean(axis=(0, 1))), rtol=1e-5)


def test_some_of_the_draws_are_spread_over_all(poisson):
    """The first ones say less of a chain."""
    model, _, idata = poisson
    whole = predict(idata, XNEW, "mean", model=model, **quiet)
    some = predict(idata, XNEW, "mean", num_samples=7, model=model, **quiet)
    at = [0, 10, 20, 30, 39, 49, 59]
    assert list(some["draw"]) == at
    np.testing.assert_allclose(some, whole.sel(draw=at))


def test_draws_have_the_moments_of_the_summary(poisson):
    model, _, idata = poisson
    options = {"model": model, **quiet}
    long = predict(idata, np.tile([[3.0]], (400, 1)), "f", random_seed=2, **options)
    counts = predict(idata, np.tile([[3.0]], (400, 1)), "y", random_seed=2, **options)
    exact = predict(idata, [[3.0]], "summary", **options)
    se = float(exact["sd"][0]) / np.sqrt(400)
    # Over draws of u too: the same 60 are in both, so only the noise given them is left.
    assert abs(long.mean() - exact["mean"][0]) < 5 * se / np.sqrt(60)
    np.testing.assert_allclose(long.std(), exact["sd"][0], rtol=0.02)
    np.testing.assert_allclose(counts.mean(), exact["y_mean"][0], rtol=0.02)
    assert counts.dtype.kind == "i"


def test_quantiles(poisson):
    model, _, idata = poisson
    options = {"model": model, "random_seed": 2, **quiet}
    bands = predict(idata, XNEW, "quantiles", quantiles=[0.1, 0.9], of="f", **options)
    assert bands.dims == ("quantile", "point")
    np.testing.assert_allclose(bands["quantile"], [0.1, 0.9])
    draws = predict(idata, XNEW, "f", **options)
    np.testing.assert_allclose(bands, draws.quantile([0.1, 0.9], ["chain", "draw"]))
    counts = predict(idata, XNEW, "quantiles", **options)
    assert (counts.diff("quantile") >= 0).all()


def test_smooth_numbers_are_in_another_order_for_each_function():
    """Bands of a plot are of functions that are independent given u."""
    noise, n = Smooth(0, 400), 400
    z = noise(slice(None), (5, 2))[:, 0]
    wanted = special.ndtri((np.arange(n) + 0.5) / n)
    np.testing.assert_allclose(np.sort(z, axis=0), np.stack([wanted] * 2, axis=1))
    assert abs(np.corrcoef(z.T)[0, 1]) < 0.2
    noise.begin()  # of other rows, which have the same
    np.testing.assert_array_equal(noise(slice(3, 7), (9, 2))[:, 0], z[3:7])


CUTS = np.array([-0.5, 0.7])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "number", "weights", "mean"),
    [
        (vsgp.Poisson(exposure=2.0), 1, None, lambda f: 2.0 * np.exp(f)),
        (vsgp.Poisson(link="square"), 1, None, np.square),
        (vsgp.Bernoulli(), 1, None, special.expit),
        (vsgp.Softmax(3), 3, None, lambda f: special.softmax(f, axis=-1)),
        (
            vsgp.Ordinal(CUTS),
            1,
            None,
            lambda f: np.diff(special.expit(CUTS - f[..., None]), prepend=0.0, append=1.0),
        ),
        (vsgp.HeteroskedasticGaussian(), 2, None, lambda f: f[..., 0]),
        (vsgp.Poisson(), 2, [[1.0, 0.5], [0.3, -1.0]], np.exp),
        (vsgp.Bernoulli(), 2, [1.0, 1.0], special.expit),  # a sum of two
    ],
)
def test_quantiles_of_the_mean_are_those_given_the_function(family, number, weights, mean):
    """Of draws of f with the same seed; u alone says nothing of f far away."""
    X = np.linspace(0.0, 4.0, 9)[:, None]
    with pm.Model() as model:
        gps = []
        for name in "uv" if weights else "u":
            gps.append(vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0)))
            gps[-1].prior(name, Xu=X[::3], n_outputs=1 if weights else number)
        process = vsgp.Coregionalized(weights, gps) if weights else gps[0]
        y = np.zeros((9, 2) if np.ndim(weights) == 2 else 9, int)
        process.likelihood("y", family, X=X, y=y)
    idata, options = prior_draws(model, 300), {"model": model, "random_seed": 3, **quiet}
    new, q = [[1.1], [50.0]], [0.1, 0.5, 0.9]
    found = predict(idata, new, "quantiles", quantiles=q, of="mean", **options)
    f = predict(idata, new, "f", **options).values[0]
    wanted = mean(f @ np.transpose(weights) if weights else f)
    np.testing.assert_allclose(found, np.quantile(wanted, q, axis=0), rtol=1e-8)
    assert (np.ptp(found.values[:, 1], axis=0) > 0.1).all()


def test_quantiles_of_steps_are_of_the_probabilities_given_u():
    """Given the functions robust-max is sure of a class, whatever the inputs are."""
    X = np.linspace(0.0, 4.0, 9)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3], n_outputs=3)
        gp.likelihood("y", vsgp.RobustMax(3), X=X, y=np.zeros(9, int))
    idata, options = prior_draws(model, 20), {"model": model, **quiet}
    found = predict(idata, X, "quantiles", quantiles=[0.1, 0.9], of="mean", **options)
    p = predict(idata, X, "mean", **options).values[0]
    np.testing.assert_allclose(found, np.quantile(p, [0.1, 0.9], axis=0))


@pytest.mark.parametrize("family", [vsgp.Softmax(3), vsgp.RobustMax(3), vsgp.Ordinal(CUTS)])
def test_classes_without_an_order_have_no_quantiles(family):
    """A median of the codes of names would depend on how they were numbered."""
    X = np.linspace(0.0, 4.0, 9)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3], n_outputs=family.n_latent)
        gp.likelihood("y", family, X=X, y=np.zeros(9, int))
    idata, options = prior_draws(model, 20), {"model": model, **quiet}
    if family.n_latent == 1:
        assert (predict(idata, X, "quantiles", **options) <= 2).all()
    else:
        with pytest.raises(ValueError, match="of 'y' have no order.*Ask for.*of='mean'"):
            predict(idata, X, "quantiles", **options)


class MeanAlone(vsgp.Poisson):
    conditional_mean = vsgp.likelihoods.Likelihood.conditional_mean


def test_quantiles_of_a_mean_that_is_not_known_at_a_value_of_f(poisson):
    model, _, idata = poisson
    options = {"model": model, "likelihood": MeanAlone(), **quiet}
    with pytest.raises(ValueError, match="does not define the mean of y at a value of f. Give it"):
        predict(idata, [[1.0]], "quantiles", of="mean", **options)
    assert np.isfinite(predict(idata, [[1.0]], "quantiles", of="f", **options)).all()


def test_far_away_it_is_the_prior(poisson):
    model, _, idata = poisson
    far = predict(idata, [[200.0]], "moments", model=model, **quiet)
    np.testing.assert_allclose(far["mean"], 0.3, atol=1e-8)
    np.testing.assert_allclose(far["variance"], 1.3, rtol=1e-8)


def test_joint_draws_have_the_covariance(poisson):
    model, _, idata = poisson
    one = idata.copy()
    one["posterior"] = xr.DataTree(
        idata["posterior"].to_dataset().isel(draw=np.full(2500, 3)).assign_coords(draw=range(2500))
        if "draw" in idata["posterior"].coords
        else idata["posterior"].to_dataset().isel(draw=np.full(2500, 3))
    )
    X = np.array([[2.0], [2.5], [11.0], [12.0]])
    f = predict(one, X, "f", joint=True, random_seed=1, model=model, **quiet).values[0]
    mu, cov = moments(idata, 3, X)
    np.testing.assert_allclose(f.mean(0), mu, atol=5 * np.sqrt(cov.max() / 2500))
    np.testing.assert_allclose(np.cov(f.T), cov, atol=0.12)
    y = predict(idata, X, "y", joint=True, random_seed=1, model=model, **quiet)
    assert y.shape == (1, 60, 4)


def test_labels(poisson):
    model, _, idata = poisson
    options = {"model": model, "num_samples": 4, **quiet}
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="site"))
    assert list(predict(idata, frame, "mean", **options)["site"]) == ["a", "b"]
    array = xr.DataArray([[1.0], [2.0]], dims=["time", "k"], coords={"time": [10, 20]})
    found = predict(idata, array, "f", **options)
    assert found.dims == ("chain", "draw", "time")
    assert list(found["time"]) == [10, 20]
    again = predict(idata, None, "mean", **options)
    assert again.dims == ("chain", "draw", "y_obs")
    assert again.sizes["y_obs"] == N
    index = pd.MultiIndex.from_tuples([("a", 1), ("b", 1)], names=["site", None])
    found = predict(idata, frame.set_index(index), "f", **options)
    assert found.dims == ("chain", "draw", "point")
    assert list(found["site"].values) == ["a", "b"]
    assert found.set_index(point=["site", "level_1"]).unstack("point").sizes["site"] == 2
    found = predict(idata, frame.set_index(index.set_names(["q", "q"])), "f", **options)
    assert [list(found[name].values) for name in ("q", "q_1")] == [["a", "b"], [1, 1]]
    container = pm.Data("new", [[1.0], [2.0]], dims=("day", None), model=model)
    assert predict(idata, container, "f", **options).dims == ("chain", "draw", "day")
    # Other labels of rows stay as well: those of a stack, for example.
    grid = xr.DataArray(np.ones((2, 1, 1)), dims=["a", "b", "k"], coords={"a": [1, 2], "b": [3]})
    stacked = grid.stack(cell=("a", "b")).transpose("cell", "k")
    assert predict(idata, stacked, "f", **options).unstack("cell").sizes["a"] == 2
    with pytest.raises(ValueError, match="called 'draw'.*Rename"):
        predict(idata, frame.rename_axis("draw"), "f", **options)
    with pytest.raises(ValueError, match="called 'draw'.*Rename"):
        predict(idata, frame.set_index(index.set_names("draw", level=0)), "f", **options)


def test_dask(poisson):
    pytest.importorskip("dask", reason="dask is not installed")
    model, _, idata = poisson
    options = {"model": model, "num_samples": 4, "random_seed": 1, **quiet}
    X = xr.DataArray(XNEW, dims=["time", "k"], coords={"time": np.arange(23)})
    for what in ("mean", "f", "quantiles"):
        lazy = predict(idata, X.chunk(time=10), what, **options)
        assert lazy.chunks is not None
        plain = predict(idata, X, what, **options)
        assert lazy.dims == plain.dims
        if what == "mean":
            xr.testing.assert_allclose(lazy.compute(scheduler="threads"), plain)
    with pytest.raises(ValueError, match="several parts.*Ask for"):
        predict(idata, X.chunk(time=10), "summary", **options)


@pytest.mark.parametrize("what", ["y", "quantiles"])
def test_dask_draws_at_the_rows_that_were_asked_for(what):
    """Not at zero, say: an observation of the year 0 would have a mean that is too large."""
    pytest.importorskip("dask", reason="dask is not installed")
    year = np.arange(1990.0, 2000.0)[:, None]
    with pm.Model() as model:
        mean = pm.gp.mean.Linear(coeffs=-0.1 * np.ones(1), intercept=200.0)
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=pm.gp.cov.Matern52(1, ls=5.0))
        gp.prior("u", Xu=year[::4])
        gp.likelihood("y", vsgp.Poisson(), X=year, y=np.arange(10))
    options = {"model": model, "random_seed": 1, **quiet}
    X, idata = xr.DataArray(year, dims=["year", "k"]), prior_draws(model, 3)
    lazy, plain = (predict(idata, x, what, **options) for x in (X.chunk(year=5), X))
    assert (lazy.dtype, lazy.compute().shape) == (plain.dtype, plain.shape)


@pytest.mark.slow
def test_seeds_hold_for_any_backend(poisson):
    """JAX has random numbers of its own, which no seed from outside would reach."""
    pytest.importorskip("jax", reason="jax is not installed")
    model, _, idata = poisson
    options = {"model": model, "num_samples": 4, "random_seed": 1, **quiet}
    y, of_jax = (
        predict(idata, XNEW[:3], "y", compile_kwargs=kwargs, **options)
        for kwargs in (None, {"mode": "JAX"})
    )
    np.testing.assert_array_equal(y, of_jax)


def test_a_mode_that_cannot_take_parameters_with_rows(data):
    """JAX wants to know how many rows there are: numpy takes over, as it does on devices."""
    pytest.importorskip("jax", reason="jax is not installed")
    X, y = data
    model, _ = build(vsgp.Poisson(exposure=np.linspace(0.5, 2.0, N)), X, y)
    idata = prior_draws(model, 4)
    plain, of_jax = (
        predict(idata, None, "mean", model=model, compile_kwargs=kwargs, **quiet)
        for kwargs in (None, {"mode": "JAX"})
    )
    np.testing.assert_allclose(of_jax, plain, rtol=1e-12)


def test_draws_without_the_inducing_inputs_that_they_are_of(poisson, data):
    """A stage may have moved them, and a model that is built again has them where they were."""
    model, _, idata = poisson
    alone = idata["posterior"].to_dataset()
    whole = predict(idata, XNEW, "moments", model=model, **quiet)
    again, _ = build(vsgp.Poisson(exposure=2.0), *data)
    found = predict(alone, XNEW, "moments", model=again, **quiet)
    np.testing.assert_array_equal(found["mean"], whole["mean"])
    again["u_Xu"].set_value(again["u_Xu"].get_value() + 0.01)
    with pytest.raises(ValueError, match="other values of 'u_Xu'.*constant_data.*whole DataTree"):
        predict(alone, XNEW, "moments", model=again, **quiet)
    found = predict(idata, XNEW, "moments", model=again, **quiet)
    np.testing.assert_array_equal(found["mean"], whole["mean"])


def test_what_new_inputs_need_is_a_call_that_works(data):
    X, y = data
    lik = vsgp.NegativeBinomial(2.0, exposure=np.linspace(0.5, 2.0, N))
    model, _ = build(lik, X, y)
    call = r"likelihood=vsgp.NegativeBinomial\(alpha=..., exposure=...\)"
    with pytest.raises(ValueError, match=call):
        predict(prior_draws(model, 4), XNEW, "mean", model=model, **quiet)


def test_parameters_with_rows(data):
    X, y = data
    exposure = np.linspace(0.5, 2.0, N)
    model, _ = build(vsgp.Poisson(exposure=exposure), X, y)
    idata = prior_draws(model, 4)
    options = {"model": model, "chunk_size": 9, **quiet}
    with pytest.raises(ValueError, match=r"exposure .* likelihood=vsgp.Poisson\(exposure=...\)"):
        predict(idata, XNEW, "mean", **options)
    own = predict(idata, None, "mean", **options)
    unit = predict(idata, X, "mean", likelihood=vsgp.Poisson(), **options)
    np.testing.assert_allclose(own.values, exposure * unit.values, rtol=1e-10)
    new = np.linspace(1.0, 3.0, len(XNEW))
    rate = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(), **options)
    scaled = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(exposure=new), **options)
    np.testing.assert_allclose(scaled, new * rate, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["mean", "quantiles", "density"])
def test_parameters_with_rows_go_with_their_chunk(what, data):
    pytest.importorskip("dask", reason="dask is not installed")
    X, y = data
    model, _ = build(vsgp.Poisson(exposure=np.linspace(0.5, 2.0, N)), X, y)
    idata = prior_draws(model, 4)
    new = np.linspace(100.0, 400.0, len(XNEW))
    lik = vsgp.Poisson(exposure=new)
    options = {"model": model, "of": "mean", "at": [200], "random_seed": 1, **quiet}
    lazy = xr.DataArray(XNEW, dims=["point", "k"]).chunk(point=6)
    plain = predict(idata, XNEW, what, likelihood=lik, **options)
    if what == "quantiles":  # of draws of f, which chunks of dask have their own of
        plain = predict(idata, lazy, what, likelihood=vsgp.Poisson(), **options).compute() * new
    for chunk_size in (None, 4):  # of a chunk of dask
        found = predict(idata, lazy, what, likelihood=lik, chunk_size=chunk_size, **options)
        np.testing.assert_allclose(found.compute(scheduler="synchronous"), plain, rtol=1e-12)
    with pytest.raises(ValueError, match=r"exposure .* likelihood=vsgp.Poisson\(exposure=...\)"):
        predict(idata, lazy, what, **options)
    short = vsgp.Poisson(exposure=new[:6])
    for Xnew in (XNEW, lazy):
        with pytest.raises(ValueError, match="6 entries, but Xnew has 23 rows. Pass one value"):
            predict(idata, Xnew, what, likelihood=short, **options)


def test_scores_of_parameters_with_rows_go_with_their_chunk(data):
    model, _ = build(vsgp.Poisson(), *data)
    idata, rng = prior_draws(model, 3), np.random.default_rng(5)
    lik = vsgp.Poisson(exposure=np.linspace(0.5, 6.0, len(XNEW)))
    ynew = rng.poisson(3.0, len(XNEW))
    options = {"likelihood": lik, "model": model, **quiet}
    whole, some = (
        log_predictive_density(idata, XNEW, ynew, chunk_size=n, **options) for n in (None, 7)
    )
    np.testing.assert_allclose(some, whole, rtol=1e-10)


def test_joint_draws_of_several_processes_are_independent(data):
    X, _ = data
    with pm.Model() as model:
        both = [vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)) for _ in range(2)]
        for gp, name in zip(both, ("level", "log_scale"), strict=True):
            gp.prior(name, Xu=vsgp.inducing.grid(X, M))
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), both, X=X, y=X[:, 0])
    idata, options = prior_draws(model, 2000), {"model": model, **quiet}
    far = X[-1:] + [[20.0], [40.0]]  # where inducing values tell nothing
    f = predict(idata, far, "f", joint=True, random_seed=1, **options).values[0]
    correlation = np.corrcoef(f.reshape(len(f), -1).T)
    np.testing.assert_allclose(correlation, np.eye(4), atol=5.0 / np.sqrt(len(f)))


def test_rows_of_parameters_are_counted_everywhere(data):
    """Also where no type knows their number: data of the model, and functions of its parameters."""
    X, y = data
    with pm.Model() as model:
        exposure = pm.Data("exposure", np.linspace(0.5, 2.0, N))
        weight = pm.Gamma("weight", 5, 5)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(exposure=weight * exposure), X=X, y=y)
    idata = prior_draws(model, 3)
    options = {"model": model, **quiet}
    rate = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(), **options)
    # Data that are passed now are not those that were kept under the same name.
    new = np.linspace(1.0, 3.0, len(XNEW))
    model.set_data("exposure", new)
    lik = vsgp.Poisson(exposure=exposure)
    found = predict(idata, XNEW, "mean", likelihood=lik, chunk_size=7, **options)
    np.testing.assert_allclose(found, new * rate, rtol=1e-12)
    longer = vsgp.Poisson(exposure=weight * pm.math.concatenate([exposure, exposure]))
    score = {"ynew": np.ones(len(XNEW), int), **options}
    for lik in (longer, vsgp.Poisson(exposure=np.ones(50))):
        for function, extra in (
            (predict, {"what": "mean", **options}),
            (log_predictive_density, score),
        ):
            with pytest.raises(ValueError, match="exposure of Poisson has .* 23 rows"):
                function(idata, XNEW, likelihood=lik, **extra)
    # Draws without their data: the model has new exposures and old inputs.
    posterior = idata["posterior"].to_dataset()
    with pytest.raises(ValueError, match="23 entries, but X has 40 rows"):
        predict(posterior, None, "mean", **options)
    with pytest.raises(ValueError, match="23 entries, but X has 40 rows"):
        vsgp.compute_pointwise(posterior, extend_inferencedata=False, **options)


def test_weights_of_a_callable_that_differ_by_row(data):
    """A callable gets a few rows at a time, and an array that is no pm.Data has all of them."""
    X, y = data
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        psi = np.linspace(0.2, 0.9, 20)
        of_rows = pm.Data("of_rows", psi)
    idata = prior_draws(model, 200)
    Xnew = np.linspace(0.0, 5.0, 20)[:, None]
    options = {"model": model, "random_seed": 1, **quiet}

    def hurdle(psi):
        return lambda f: pm.HurdlePoisson.dist(psi=psi, mu=pm.math.exp(f))

    y = predict(idata, Xnew, "y", likelihood=hurdle(of_rows), chunk_size=7, **options)
    zeros = (y.values == 0).mean(axis=(0, 1))
    assert np.abs(zeros - (1.0 - psi)).max() < 5.0 * np.sqrt(0.25 / 200)
    for size in (7, 1):  # of one row there were as many draws as entries
        with pytest.raises(ValueError, match=r"entry for each row.* Make it a pm\.Data"):
            predict(idata, Xnew, "y", likelihood=hurdle(psi), chunk_size=size, **options)


def test_a_number_that_is_passed_now_holds_now(data):
    """Not what was kept with the draws under its name, which is for the model's own likelihood."""
    X, y = data
    with pm.Model() as model:
        exposure = pm.Data("exposure", 3.0)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(exposure=exposure), X=X, y=y)
    idata = prior_draws(model, 3)
    kept = idata["constant_data"].to_dataset().assign(exposure=3.0)
    idata["constant_data"] = xr.DataTree(kept)
    options = {"model": model, **quiet}
    rate = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(), **options)
    model.set_data("exposure", 2.0)
    found = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(exposure=exposure), **options)
    np.testing.assert_allclose(found, 2.0 * rate, rtol=1e-12)
    with pytest.warns(UserWarning, match="'exposure' of the model changed") as warned:
        own = predict(idata, XNEW, "mean", **options)
    assert [w.filename for w in warned] == [__file__]
    np.testing.assert_allclose(own, 3.0 * rate, rtol=1e-12)


def test_a_warning_of_other_inputs_names_the_line_of_the_caller(data):
    X, y = data
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(), X=inputs, y=y)
    idata = prior_draws(model, 3)
    kept = idata["constant_data"].to_dataset().assign(X=(("row", "column"), X + 1.0))
    idata["constant_data"] = xr.DataTree(kept)
    with pytest.warns(UserWarning, match="'X' of the model changed") as warned:
        predict(idata, None, "f", model=model, **quiet)
    assert [w.filename for w in warned] == [__file__]


def test_so_do_data_that_meet_a_coefficient(data):
    X, y = data
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        hours, forest = pm.Data("hours", np.ones(N)), pm.Data("forest", rng.normal(size=N))
        b = pm.Normal("b", pm.Data("center", 0.0))
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(exposure=hours * pm.math.exp(b * forest)), X=X, y=y)
    idata = prior_draws(model, 3)
    kept = {"hours": ("row", np.ones(N)), "forest": ("row", model["forest"].get_value())}
    idata["constant_data"] = xr.DataTree(xr.Dataset(kept))
    options = {"model": model, **quiet}
    rate = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(), **options)
    new = {"hours": rng.uniform(1.0, 2.0, len(XNEW)), "forest": rng.normal(size=len(XNEW))}
    model.set_data("hours", new["hours"])
    model.set_data("forest", new["forest"])
    now = vsgp.Poisson(exposure=model["hours"] * pm.math.exp(b * model["forest"]))
    found = predict(idata, XNEW, "mean", likelihood=now, **options)
    per_draw = np.exp(idata["posterior"]["b"].values[..., None] * new["forest"])
    np.testing.assert_allclose(found, rate * new["hours"] * per_draw, rtol=1e-12)


def test_parameters_of_what_is_observed_have_its_values(data, rng):
    """Draws of it would be those of no data."""
    (X, y), z = data, rng.normal(size=N)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        seen = pm.Normal("z", observed=z)
        gp.likelihood("y", vsgp.Poisson(pm.math.exp(seen)), X=X, y=y)
    idata, options = prior_draws(model, 3), {"model": model, **quiet}
    f = predict(idata, None, "moments", **options)
    wanted = np.exp(z + f["mean"] + f["variance"] / 2.0)
    np.testing.assert_allclose(predict(idata, None, "mean", **options), wanted)


@pytest.mark.slow
def test_parameters_of_the_rows_are_not_those_of_others(data):
    """Also where there are as many others."""
    X, y = data
    per_row = np.linspace(0.5, 2.0, N)
    family = vsgp.Poisson(exposure=per_row)
    own = vsgp.Custom(lambda f: pm.Poisson.dist(pt.constant(per_row) * pm.math.exp(f)))
    for likelihood, pass_it in (
        (family, r"likelihood=vsgp.Poisson\(exposure=...\)"),
        (own, "Pass a callable"),
        (vsgp.Weibull(1.4, censored=y > 2), r"likelihood=vsgp.Weibull\(alpha\), with censored of"),
    ):
        model, gp = build(likelihood, X, y + 0.5 * (likelihood not in (family, own)))
        idata = prior_draws(model, 2)
        said = f"has one entry for each row of the data, and Xnew has others. .*{pass_it}"
        with pytest.raises(ValueError, match=said):
            predict(idata, X + 0.1, "y", model=model, **quiet)
        with pytest.raises(ValueError, match=said), model:
            gp.predictive("y_new", X + 0.1)
        assert predict(idata, None, "y", model=model, **quiet).shape == (1, 2, N)


@pytest.mark.slow
def test_inputs_that_may_change_are_not_those_of_the_data(data):
    """A placeholder may hold the data now, and get others by ``pm.set_data``."""
    X, y = data
    with pm.Model() as model:
        seen, drawn = pm.Data("seen", X), pm.Normal("drawn", shape=X.shape)
        for name, inputs in (("a", X), ("b", seen), ("c", seen + 1.0), ("d", drawn)):
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
            gp.prior(f"u_{name}", Xu=vsgp.inducing.grid(X, M))
            gp.likelihood(name, vsgp.Poisson(np.linspace(0.5, 2.0, N)), X=inputs, y=y)
            same = [X, model["a_X"]] if name == "a" else [inputs]
            same += [seen + 1.0] if name == "c" else [X] if name == "b" else []
            for i, inputs in enumerate(same):
                gp.predictive(f"{name}{i}", inputs)
            others = [
                pm.Data(f"{name}_new", X + (name == "c")),
                pm.Normal(f"{name}_z", shape=(3, 1)),
            ]
            for inputs in others:
                with pytest.raises(ValueError, match="exposure of Poisson has one entry for each"):
                    gp.predictive("new", inputs)


@pytest.mark.slow
def test_density_of_counts_out_of_as_many_trials(data):
    """Of each row: where they are fewer than a value, its probability is 0."""
    X, _ = data
    trials, at, none = np.tile([2, 0, 5, 3], N // 4), np.arange(6), np.zeros(N, int)
    own = vsgp.Custom(lambda f: pm.Binomial.dist(n=pt.constant(trials), logit_p=f))
    (model, _), (other, _) = build(vsgp.Binomial(trials), X, none), build(own, X, none)
    idata, options = prior_draws(model, 2), {"at": at, **quiet}
    found = [predict(idata, None, "density", model=m, **options) for m in (model, other)]
    np.testing.assert_allclose(*found, rtol=1e-7)
    for p in found:
        np.testing.assert_array_equal(p == 0.0, at > trials[:, None])
        np.testing.assert_allclose(p.sum("value"), 1.0, atol=1e-6)
    options["model"] = model
    for n in (4, np.full(len(XNEW), 4)):
        with pytest.raises(ValueError, match="whole number from 0 to n, but row 5 is 5"):
            predict(idata, XNEW, "density", likelihood=vsgp.Binomial(n), **options)
    with pytest.raises(ValueError, match="n of Binomial has one entry for each row of the data"):
        predict(idata, XNEW, "density", **options)


@pytest.mark.slow
def test_density_of_times_is_that_of_events(data):
    """As draws are, whatever was censored of the data."""
    X, y = data
    model, _ = build(vsgp.Weibull(1.4, censored=np.arange(N) % 2), X, 0.5 + y)
    idata = prior_draws(model, 2)
    options = {"at": [0.3, 2.0], "model": model, **quiet}
    found = predict(idata, None, "density", **options)
    events = predict(idata, X, "density", likelihood=vsgp.Weibull(1.4), **options)
    np.testing.assert_allclose(found, events.values, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "new"), [("int64", 3_000_000_000), ("bool", 3)])
def test_scores_of_numbers_that_the_dtype_of_the_data_does_not_hold(dtype, new, data):
    """The data of a potential keep theirs, or one that PyMC makes smaller."""
    X, _ = data
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.potential("y", vsgp.Gaussian(new), X=X, y=np.ones(N, dtype))
    idata, options = prior_draws(model, 2), {"model": model, **quiet}
    score = log_predictive_density(idata, X, np.full(N, new), **options)
    density = predict(idata, X, "density", at=[new], **options)
    np.testing.assert_allclose(np.log(density[:, 0]), score)
    f = predict(idata, X, "moments", **options)
    p = stats.norm.pdf(new, f["mean"], np.sqrt(f["variance"] + float(new) ** 2))
    np.testing.assert_allclose(density[:, 0], p.mean(axis=(0, 1)), rtol=1e-10)


@pytest.mark.slow
def test_a_score_that_is_nan_is_named(data):
    """As where the logarithms of a truncated tail and of its mass are both minus infinity."""
    X, y = data
    lost = pt.constant([0.0, np.nan, 0.0])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    idata = prior_draws(model, 3)
    lik = vsgp.Custom(lambda f: pm.Normal.dist(f + lost, 1.0))
    with pytest.warns(UserWarning, match="predictive density of row 1 is nan") as warned:
        found = vsgp.log_predictive_density(
            idata, X[:3], [0.0, 1.0, 2.0], likelihood=lik, model=model, **quiet
        )
    assert [w.filename for w in warned] == [__file__]
    np.testing.assert_array_equal(np.isnan(found), [False, True, False])


def test_scores_between_the_observed_numbers(data):
    """The observations were whole numbers by chance; new ones need not be."""
    X, y = data
    model, _ = build(vsgp.Gaussian(0.5), X, y)
    idata = prior_draws(model, 2)
    new = np.linspace(0.1, 2.0, len(XNEW))
    score = log_predictive_density(idata, XNEW, new, model=model, **quiet)
    f = predict(idata, XNEW, "moments", model=model, **quiet)
    p = stats.norm.pdf(new, f["mean"], np.sqrt(f["variance"] + 0.25)).mean(axis=(0, 1))
    np.testing.assert_allclose(score, np.log(p), rtol=1e-10)
    density = predict(idata, XNEW[:1], "density", at=[0.1, 3.0], model=model, **quiet)
    np.testing.assert_allclose(density[0, 0], p[0], rtol=1e-10)
    counts, _ = build(vsgp.Poisson(), X, y)
    idata, options = prior_draws(counts, 2), {"model": counts, **quiet}
    xr.testing.assert_identical(
        log_predictive_density(idata, XNEW, np.full(23, 2.0), **options),
        log_predictive_density(idata, XNEW, np.full(23, 2), **options),
    )
    with pytest.raises(ValueError, match="whole number"):
        predict(idata, XNEW, "density", at=[0.5], **options)


@pytest.mark.slow
def test_likelihood_in_place_of_the_models_has_as_many_functions(data):
    X, y = data
    Y = np.column_stack([y, y])
    W = np.array([[1.0, 0.5], [0.2, -1.0]])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M), n_outputs=2)
        vsgp.Coregionalized(W, gp).likelihood("y", vsgp.Poisson(exposure=3.0), X=X, y=Y)
    idata = prior_draws(model, 3)
    three = predict(idata, XNEW, "mean", model=model, **quiet)
    one = predict(idata, XNEW, "mean", likelihood=vsgp.Poisson(), model=model, **quiet)
    np.testing.assert_allclose(three, 3.0 * one, rtol=1e-12)
    with pytest.raises(ValueError, match="each output has one"):
        predict(idata, XNEW, "mean", likelihood=vsgp.Softmax(3), model=model, **quiet)
    model, _ = build(vsgp.Poisson(), X, y)
    with pytest.raises(ValueError, match="as many functions"):
        predict(prior_draws(model, 2), XNEW, likelihood=vsgp.Softmax(3), model=model, **quiet)


@pytest.mark.slow
def test_a_likelihood_that_was_added_since_is_asked_for(data):
    """What was compiled for the only one is not of the first of two."""
    X, y = data
    model, gp = build(vsgp.Poisson(), X, y)
    idata = prior_draws(model, 3)
    predict(idata, XNEW, "mean", model=model, **quiet)
    with model:
        gp.likelihood("z", vsgp.Poisson(), X=X, y=y)
    with pytest.raises(ValueError, match="has 2 likelihoods"):
        predict(idata, XNEW, "mean", model=model, **quiet)


def test_chunks_of_equal_inputs_have_their_own_noise(poisson):
    pytest.importorskip("dask", reason="dask is not installed")
    model, _, idata = poisson
    X = xr.DataArray(np.full((8, 1), 3.0), dims=["point", "k"]).chunk(point=4)
    f = predict(idata, X, "f", model=model, num_samples=5, random_seed=1, **quiet).compute()
    assert len(np.unique(f[0, 0])) == 8
    bad = X.where(X["point"] != 5)
    with pytest.raises(ValueError, match="Xnew holds nan"):
        predict(idata, bad, "f", model=model, num_samples=5, **quiet).compute()


def test_inducing_inputs_are_those_of_the_draws(poisson):
    """A stage moved them since; the draws know where they were."""
    model, _, idata = poisson
    before = predict(idata, XNEW, "moments", model=model, **quiet)
    kept = model["u_Xu"].get_value()
    try:
        model["u_Xu"].set_value(kept + 0.3)
        after = predict(idata, XNEW, "moments", model=model, **quiet)
    finally:
        model["u_Xu"].set_value(kept)
    xr.testing.assert_identical(before, after)


def test_draws_of_another_number_of_inducing_values(poisson, data):
    model, _, idata = poisson
    few = build(vsgp.Poisson(exposure=2.0), data[0], data[1], number=3)[0]
    with pytest.raises(ValueError, match=r"'u_Xu' .* \(3, 1\), and that of the draws \(6, 1\)\. B"):
        predict(idata, XNEW, "mean", model=few, **quiet)
    alone = idata["posterior"].to_dataset()
    with pytest.raises(ValueError, match=r"'u' of the model has the shape \(3,\), and that of the"):
        predict(alone, XNEW, "mean", model=few, **quiet)


def test_a_conditional_in_another_model_takes_the_data_of_the_draws(poisson, data):
    """As the page on predicting says: a Gaussian stage may have moved the inducing inputs."""
    _, _, idata = poisson
    kept = idata["constant_data"]
    model, gp = build(vsgp.Poisson(exposure=2.0), *data)
    point = {n: idata["posterior"][n].values[0, 5] for n in ("u", "ls")}
    model["u_Xu"].set_value(kept["u_Xu"].values + 0.4)
    pm.set_data({name: kept[name] for name in kept.data_vars if name in model}, model=model)
    with model:
        f = gp.conditional("f_new", XNEW)
    fixed = {model[n]: x for n, x in point.items()}
    mean = f.owner.inputs[2].eval(fixed, mode=RAW)
    np.testing.assert_allclose(mean, moments(idata, 5)[0], atol=1e-5)


def test_saved_and_loaded(poisson, tmp_path):
    pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
    model, _, idata = poisson
    idata.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    loaded = xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf")
    xr.testing.assert_identical(
        predict(loaded, XNEW, "moments", model=model, **quiet),
        predict(idata, XNEW, "moments", model=model, **quiet),
    )


@pytest.mark.slow
def test_several_functions(data):
    X, _ = data
    y = np.array(["a", "b", "c"])[(np.arange(N) // 5) % 3]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M), n_outputs=3, output_dims="kind")
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=y)
    idata = prior_draws(model)
    options = {"model": model, "random_seed": 1, **quiet}
    p = predict(idata, XNEW, "mean", **options)
    assert p.dims == ("chain", "draw", "point", "kind")
    assert list(p["kind"]) == ["a", "b", "c"]
    np.testing.assert_allclose(p.sum("kind"), 1.0, atol=1e-4)
    f = predict(idata, XNEW, "f", joint=True, **options)
    assert f.dims == ("chain", "draw", "point", "kind")
    assert predict(idata, XNEW, "y", **options).dims == ("chain", "draw", "point")
    density = predict(idata, XNEW, "density", at=["b", "a"], **options)
    np.testing.assert_allclose(density.sel(value="a"), p.mean(["chain", "draw"]).sel(kind="a"))
    score = log_predictive_density(idata, X[:3], np.array(["a", "b", "c"]), **options_of(options))
    np.testing.assert_allclose(
        score[0], np.log(predict(idata, X[:1], "mean", **options).mean(["chain", "draw"])[0, 0])
    )


def options_of(options):
    return {k: v for k, v in options.items() if k != "random_seed"}


def test_several_processes(data):
    X, _ = data
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        a = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        a.prior("level", Xu=vsgp.inducing.grid(X, M))
        b = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=4.0))
        b.prior("log_scale", Xu=vsgp.inducing.grid(X, 4))
        from pymc_vsgp.model.latents import likelihood

        likelihood("y", vsgp.HeteroskedasticGaussian(), [a, b], X=X, y=rng.normal(size=N))
    idata = prior_draws(model, 4)
    f = predict(idata, XNEW, "f", model=model, **quiet)
    assert list(f["function"]) == ["level", "log_scale"]
    mean = predict(idata, XNEW, "mean", model=model, **quiet)
    moments = predict(idata, XNEW, "moments", model=model, **quiet)
    np.testing.assert_allclose(mean, moments["mean"].sel(function="level"), atol=1e-9)
    assert predict(idata, XNEW, "y", joint=True, model=model, **quiet).shape == (1, 4, 23)


def test_the_posterior_alone(poisson):
    """As a Dataset, as a group of its tree, and as a group that was taken out of it."""
    model, _, idata = poisson
    group = idata["posterior"]
    expected = predict(idata, XNEW, "summary", model=model, **quiet)
    for posterior in (group.to_dataset(), group, group.copy()):
        xr.testing.assert_identical(
            predict(posterior, XNEW, "summary", model=model, **quiet), expected
        )
    thinned = predict(group.isel(draw=slice(0, None, 2)), XNEW, "moments", model=model, **quiet)
    assert thinned.sizes["draw"] == group.sizes["draw"] // 2


def test_refusals(poisson, data):
    model, _, idata = poisson
    options = {"model": model, **quiet}
    with pytest.raises(ValueError, match="what is 'rate'. Choose one of"):
        predict(idata, XNEW, "rate", **options)
    with pytest.raises(ValueError, match="no posterior.*Pass what"):
        predict(xr.DataTree(), XNEW, **options)
    with pytest.raises(ValueError, match="no likelihood named 'z'"):
        predict(idata, XNEW, var_name="z", **options)
    with pytest.raises(ValueError, match="2 columns.*Pass the same inputs"):
        predict(idata, np.ones((3, 2)), **options)
    with pytest.raises(ValueError, match="at most 4000 rows"):
        predict(idata, np.zeros((5000, 1)), joint=True, **options)
    with pytest.raises(ValueError, match="values of y, one number each"):
        predict(idata, XNEW, "density", **options)
    with pytest.raises(ValueError, match="probabilities between 0 and 1"):
        predict(idata, XNEW, "quantiles", quantiles=[5, 95], **options)
    with pytest.raises(ValueError, match="no draws of 'u'"):
        bad = idata.copy()
        bad["posterior"] = xr.DataTree(idata["posterior"].to_dataset().drop_vars("u"))
        predict(bad, XNEW, **options)
    with pytest.raises(ValueError, match="1 of 60 numbers in the draws of 'ls' are NaN.*isel"):
        post = idata["posterior"].to_dataset()
        bad["posterior"] = xr.DataTree(post.assign(ls=post["ls"].where(post["draw"] > 0)))
        predict(bad, XNEW, "summary", **options)
    with pytest.raises(ValueError, match="no draws. Pass some"):
        bad["posterior"] = xr.DataTree(post.isel(draw=slice(0)))
        predict(bad, XNEW, **options)
    with pytest.raises(ValueError, match="values of y, one number each"):
        predict(idata, XNEW, "density", at=[], **options)
    old = np.random.RandomState(1)  # makes no generators of its own
    assert np.isfinite(predict(idata, XNEW, random_seed=old, **options)).all()
    with pytest.raises(TypeError, match="var_name is of type list"):
        predict(idata, XNEW, var_name=["y"], **options)
    with pytest.raises(TypeError, match="quantiles is of type str"):
        predict(idata, XNEW, "quantiles", quantiles="half", **options)
    with pytest.raises(TypeError, match="ynew is a masked array"):
        masked = np.ma.MaskedArray(np.ones(len(XNEW)), np.arange(len(XNEW)) == 0)
        log_predictive_density(idata, XNEW, masked, **options)
    with pytest.raises(ValueError, match="one observation for each row"):
        log_predictive_density(idata, XNEW, [1, 2], **options)
    with pm.Model() as empty:
        pm.Normal("x")
    with pytest.raises(ValueError, match="no variationally sparse process"):
        predict(idata, XNEW, model=empty, **quiet)


@pytest.mark.parametrize("family", [vsgp.Poisson(), vsgp.NegativeBinomial(2.0)], ids=repr)
def test_a_mean_that_is_too_large_to_draw_from(family):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(coeffs=np.ones(1)), cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)
        )
        gp.prior("u", np.array([[0.0], [1.0]]))
        gp.likelihood("y", family, X=np.array([[0.0], [0.5]]), y=np.array([1, 2]))
    idata = prior_draws(model)
    with pytest.raises(ValueError, match="has a mean that is too large to draw it.*Ask for 'mean'"):
        vsgp.predict(idata, np.array([[800.0]]), "y", model=model, progressbar=False)


@pytest.fixture(scope="module")
def warped(data):
    """A model whose inputs depend on its random variables, and those of each of its draws."""
    X, y = data
    with pm.Model() as model:
        x = X ** pm.Uniform("power", 0.5, 1.0) + pm.Normal("shift", 0.0, 0.3, shape=X.shape)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 4, 2)))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Poisson(), X=x, y=y)
    idata = prior_draws(model, draws=3)
    post = idata["posterior"].isel(chain=0)
    at = [X ** post["power"].values[s] + post["shift"].values[s] for s in range(3)]
    return model, idata, at


def test_random_inputs_are_those_of_each_draw(warped):
    model, idata, at = warped
    found = predict(idata, None, "moments", chunk_size=7, model=model, **quiet)
    assert found["mean"].dims == ("chain", "draw", "y_obs")
    for s, X in enumerate(at):
        alone = predict(idata.isel(draw=[s]), X, "moments", model=model, **quiet)
        for name in ("mean", "variance"):
            np.testing.assert_allclose(found[name][0, s], alone[name][0, 0], rtol=1e-8, atol=1e-10)
    joint = predict(idata, None, "f", joint=True, random_seed=1, model=model, **quiet)
    assert joint.shape == (1, 3, N)


def test_random_inputs_have_scores(warped, data):
    model, idata, at = warped
    each = vsgp.compute_pointwise(idata, extend_inferencedata=False, model=model, **quiet)
    for s, X in enumerate(at):
        one = idata.isel(draw=[s])
        alone = log_predictive_density(one, X, data[1], model=model, **quiet)
        np.testing.assert_allclose(each["log_predictive"][0, s], alone, rtol=1e-8)


@pytest.mark.parametrize("ask", [vsgp.check_inducing, vsgp.exact_weights, vsgp.plot_function])
def test_random_inputs_are_refused_where_one_set_is_needed(warped, ask):
    model, idata, _ = warped
    with pytest.raises(ValueError, match="random variables.*each draw has its own. Use predict"):
        ask(idata, model=model)


@pytest.mark.parametrize(
    "values", [np.array([["2020-01-01"]], "M8[ns]"), np.array([["3.5"]]), np.array([[1.0 + 2.0j]])]
)
def test_dask_inputs_are_numbers(values, poisson):
    pytest.importorskip("dask", reason="dask is not installed")
    model, _, idata = poisson
    lazy = xr.DataArray(values, dims=["point", "k"]).chunk()
    with pytest.raises(TypeError, match="Xnew"):
        predict(idata, lazy, "f", model=model, **quiet)


@pytest.mark.parametrize(
    "at", [np.ma.masked_equal([0.0, 1.0], 0.0), np.array(["2020"], "M8[D]"), ["a"], [1.0 + 2.0j]]
)
def test_a_density_is_at_numbers(at, poisson):
    model, _, idata = poisson
    with pytest.raises(TypeError, match="^at is "):
        predict(idata, XNEW[:2], "density", at=at, model=model, **quiet)


def test_infinite_draws_are_refused(poisson):
    model, _, idata = poisson
    posterior = idata["posterior"].to_dataset().copy(deep=True)
    posterior["u"][0, 0, 0] = np.inf
    with pytest.raises(ValueError, match="1 of .* are NaN or infinite"):
        predict(posterior, XNEW, "mean", model=model, **quiet)
