"""Outputs that share functions: which axis is which, and predictions."""

from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import reference_gp
import xarray as xr

from marks import long
from modes import RAW
from prior_draws import prior_draws

import pymc_vsgp as vsgp

N, P = 9, 3
X = np.random.default_rng(3).uniform(0, 4, size=(N, 2))
XU, XU_OTHER = X[::3], X[1::4]
Y = np.random.default_rng(4).normal(size=(N, P))
Y[2, 1] = np.nan
W = np.array([[1.0, 0.3], [-0.5, 2.0], [0.0, 0.7]])
COORDS = {"output": ["Cd", "Ni", "Zn"], "obs": np.arange(N) + 100}


def mixed_process(weights=W):
    """Three outputs of two processes that differ in all they have."""
    first = pm.gp.VariationalSparse(
        mean_func=pm.gp.mean.Constant(0.4), cov_func=1.3 * pm.gp.cov.ExpQuad(2, ls=1.5)
    )
    second = pm.gp.VariationalSparse(
        mean_func=pm.gp.mean.Constant(-0.7), cov_func=0.8 * pm.gp.cov.ExpQuad(2, ls=0.9)
    )
    first.prior("u", Xu=XU)
    second.prior("w", Xu=XU_OTHER)
    return vsgp.Coregionalized(weights, [first, second])


def observed(y, dims, coords=None, X=X, weights=W):
    with pm.Model(coords=coords) as model:
        f = mixed_process(weights)
        f.likelihood("y", vsgp.Gaussian(sigma=0.5), X=X, y=y, dims=dims)
    return model


@pytest.mark.parametrize(
    ("y", "dims", "coords"),
    [
        (Y, ("obs", "output"), None),
        (Y, ("obs", "output"), COORDS),
        (Y.T, ("output", "obs"), COORDS),
        (Y.T, ("output", "obs"), {"output": COORDS["output"]}),
        (Y.T, ("output", "obs"), {"obs": COORDS["obs"]}),
        (Y, "obs", None),
        (Y, None, None),
    ],
)
def test_outputs_and_rows_are_as_dims_say(y, dims, coords):
    model = observed(y, dims, coords)
    rows, outputs = model.named_vars_to_dims["y"]
    assert rows == ("y_obs" if dims is None else "obs")
    assert outputs == ("output" if isinstance(dims, tuple) else "y_output")
    assert model.dim_lengths[rows].eval() == N and model.dim_lengths[outputs].eval() == P
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, Y)


@pytest.mark.parametrize(
    ("y", "dims", "coords"),
    [
        (Y, ("output", "obs"), COORDS),
        (Y.T, ("obs", "output"), COORDS),
        (Y.T, ("output", "obs"), None),
        (Y.T, "obs", None),
        (Y.T, None, None),
    ],
)
def test_axes_are_not_guessed(y, dims, coords):
    with pytest.raises(ValueError, match="but X has 9 rows and W has 3. Pass one row for"):
        observed(y, dims, coords)


def test_a_square_of_observations_is_as_its_dims_say():
    """With as many rows as outputs shapes do not tell, but names may."""
    few, square = X[:P], np.arange(9.0).reshape(P, P)
    for dims, wanted in (
        (None, square),
        (("obs", "output"), square),
        (("output", "obs"), square.T),
    ):
        with pm.Model(coords=COORDS | {"obs": range(P)}) as model:
            weights = pm.Normal("W", dims=("output", "latent"), shape=(P, 2))
            inputs = pm.Data("X", few, dims=("obs", "feature"))
            f = vsgp.Coregionalized(weights, mixed_process().processes)
            f.likelihood("y", vsgp.Gaussian(sigma=0.5), X=inputs, y=square, dims=dims)
        rows, outputs = model.named_vars_to_dims["y"]
        assert rows == "obs"
        assert outputs == ("y_output" if dims is None else "output")
        np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, wanted)


SQUARE = np.arange(9.0).reshape(P, P)
BY_OBS, BY_OUTPUT = (
    xr.DataArray(y, dims=d) for y, d in ((SQUARE, ("obs", "output")), (SQUARE.T, ("output", "obs")))
)


@pytest.mark.parametrize(
    ("y", "dims"),
    [
        (BY_OBS, None),
        (BY_OUTPUT, None),
        (BY_OUTPUT, ("obs", "output")),
        (BY_OUTPUT, ("output", "obs")),
        (BY_OUTPUT.rename(output="metal", obs="site"), ("output", "obs")),
        (BY_OUTPUT.rename(obs="site"), ("obs", "output")),
    ],
)
def test_a_square_that_names_its_dims_is_as_they_say(y, dims):
    weights = xr.DataArray(W, dims=("output", "latent"))
    model = observed(y, dims, COORDS | {"obs": range(P)}, X[:P], weights)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, SQUARE)
    assert model.named_vars_to_dims["y"] == (("obs", "output") if dims else ("y_obs", "y_output"))


@pytest.mark.parametrize("dims", [("output", "obs"), None])
def test_a_square_that_nothing_tells_apart_is_refused(dims):
    y = SQUARE if dims else BY_OUTPUT
    with pytest.raises(
        ValueError, match=r"\('output', 'obs'\) is that of the outputs. Give W dims"
    ):
        observed(y, dims, COORDS | {"obs": range(P)}, X[:P])


@pytest.mark.parametrize("own", [("output", "obs"), None])
def test_a_container_of_turned_data_is_refused(own):
    weights = xr.DataArray(W, dims=("output", "latent"))
    with pm.Model(coords=COORDS | {"obs": range(P)}) as model:
        y = pm.Data("measured", SQUARE.T, dims=own)
        f = mixed_process(weights)
        with pytest.raises(ValueError, match=r"Pass pm.Data with the dims \('obs', 'output'\)"):
            f.likelihood(
                "y", vsgp.Gaussian(0.5), X=X[:P], y=y, dims=None if own else ("output", "obs")
            )
    assert "y" not in model


def test_a_container_of_data_keeps_its_place():
    """It stays what is observed, so that `pm.set_data` reaches the model."""
    full = np.nan_to_num(Y)
    with pm.Model(coords=COORDS) as model:
        y = pm.Data("measured", full, dims=("obs", "output"))
        f = mixed_process()
        f.likelihood("y", vsgp.Gaussian(sigma=0.5), X=X, y=y, dims=("output", "obs"))
    assert model.named_vars_to_dims["y"] == ("obs", "output")
    assert model.rvs_to_values[model["y"]] is y


MISSING = np.isnan(Y)
MASKED = np.ma.MaskedArray(np.where(MISSING, 7, 1), MISSING)
TABLE = pd.DataFrame(np.where(MISSING, np.nan, 1.0)).astype("Int64")


@pytest.mark.parametrize("y", [MASKED, TABLE, xr.DataArray(TABLE.astype(float))], ids=type)
def test_missing_entries_of_every_kind_are_nan(y):
    for one, dims in ((y, ("obs", "output")), (y.T, ("output", "obs"))):
        model = observed(one, dims, COORDS)
        value = model.rvs_to_values[model["y"]].data
        np.testing.assert_array_equal(value, np.where(MISSING, np.nan, 1.0))


def test_objects_as_observations_say_what_to_do():
    with pytest.raises(TypeError, match=r"y has dtype object, .* with y.astype\('float64'\)."):
        observed(np.where(MISSING, None, 1), None)


EFFORT = np.random.default_rng(5).uniform(0.5, 3.0, size=(N, P))


@pytest.mark.parametrize(
    ("exposure", "same"),
    [
        (xr.DataArray(EFFORT.T, dims=("output", "obs")), EFFORT),
        (xr.DataArray(EFFORT, dims=("obs", "output")), EFFORT),
        (xr.DataArray(EFFORT[:, 0], dims="obs"), EFFORT[:, :1]),
        (xr.DataArray(EFFORT[0], dims="output"), EFFORT[:1]),
        (("output", "obs"), EFFORT),
        (("obs",), EFFORT[:, :1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [N, P], ids=["", "square"])
def test_labeled_parameters_are_taken_by_their_dims(exposure, same, n):
    """As y is; where rows are as many as outputs, shapes would not tell."""
    with pm.Model(coords={"output": COORDS["output"], "obs": np.arange(n)}):
        if isinstance(exposure, tuple):
            value = EFFORT[:n].T if len(exposure) == 2 else EFFORT[:n, 0]
            exposure = pm.Data("exposure", value, dims=exposure)
        elif "obs" in exposure.dims:
            exposure = exposure.isel(obs=slice(n))
        f = mixed_process(xr.DataArray(W, dims=("output", "latent")))
        f.likelihood(
            "y", vsgp.Poisson(exposure), X=X[:n], y=np.ones((n, P)), dims=("obs", "output")
        )
    got = f.processes[0]._prior.likelihoods["y"].likelihood.exposure.eval(mode=RAW)
    np.testing.assert_array_equal(np.broadcast_to(got, (n, P)), np.broadcast_to(same, (N, P))[:n])


@pytest.mark.slow
def test_predictions_take_labeled_parameters_by_their_dims(rng):
    with pm.Model(coords=COORDS) as model:
        f = mixed_process()
        f.likelihood("y", vsgp.Poisson(), X=X, y=np.ones((N, P)), dims=("obs", "output"))
    draws = {"u": rng.normal(size=(1, 2, len(XU))), "w": rng.normal(size=(1, 2, len(XU_OTHER)))}
    posterior = xr.Dataset({k: (("chain", "draw", f"{k}_i"), v) for k, v in draws.items()})
    means = [
        vsgp.predict(
            posterior, X, "mean", likelihood=vsgp.Poisson(e), model=model, progressbar=False
        )
        for e in (EFFORT, xr.DataArray(EFFORT.T, dims=("output", "new")))
    ]
    np.testing.assert_array_equal(*means)
    # As many rows as outputs: the name of the rows is that of the new ones.
    new, options = xr.DataArray(X[:P], dims=("cell", "k")), {"model": model, "progressbar": False}
    for by_row, dim in ((EFFORT[:P, :1], "cell"), (EFFORT[:P, 0], "dim_0")):
        means = [
            vsgp.predict(posterior, new, "mean", likelihood=vsgp.Poisson(e), **options)
            for e in (by_row, xr.DataArray(np.ravel(by_row), dims=dim))
        ]
        np.testing.assert_array_equal(*means)
    with pytest.raises(ValueError, match=r"exposure of Poisson has shape \(9,\), .* 3 outputs"):
        vsgp.predict(posterior, X, "mean", likelihood=vsgp.Poisson(EFFORT[:, 0]), model=model)


def test_a_wrong_shape_is_still_a_mistake():
    with pytest.raises(ValueError, match="columns, but W has 3 rows"):
        observed(Y[:, :2], None)
    with pytest.raises(ValueError, match="X has 9 rows but y has 8 entries"):
        observed(Y[:8], None)


def reference_predictions(Xnew, u, w):
    """Mean and covariance of the outputs, by dense inverses."""
    means, covs = [], []
    for Xu, values, mean, variance, ls in (
        (XU, u, 0.4, 1.3, 1.5),
        (XU_OTHER, w, -0.7, 0.8, 0.9),
    ):
        ls = np.full(2, ls)
        Kuu = reference_gp.ard_kernel(
            Xu, Xu, ls, variance
        ) + reference_gp.JITTER * variance * np.eye(len(Xu))
        Kuf = reference_gp.ard_kernel(Xu, Xnew, ls, variance)
        solved = np.linalg.solve(Kuu, Kuf)
        means.append(mean + solved.T @ (values - mean))
        covs.append(reference_gp.ard_kernel(Xnew, Xnew, ls, variance) - Kuf.T @ solved)
    mean = np.array([sum(W[p, q] * means[q] for q in range(2)) for p in range(P)])
    cov = np.array([sum(W[p, q] ** 2 * covs[q] for q in range(2)) for p in range(P)])
    return mean, cov


def test_predict_equals_the_reference(rng):
    Xnew = rng.uniform(0, 4, size=(5, 2))
    u, w = rng.normal(size=len(XU)), rng.normal(size=len(XU_OTHER))
    mean, cov = reference_predictions(Xnew, u, w)
    with pm.Model() as model:
        weights = pm.Normal("W", shape=W.shape)
        f = mixed_process(weights)
    point = {"u": u, "w": w, "W": W}
    got = f.predict(Xnew, point, model=model)
    np.testing.assert_allclose(got[0], mean, rtol=1e-8)
    np.testing.assert_allclose(got[1], cov, rtol=1e-8, atol=1e-9)
    got = f.predict(Xnew, point, diag=True, model=model)
    np.testing.assert_allclose(got[0], mean, rtol=1e-8)
    np.testing.assert_allclose(got[1], np.array([np.diag(c) for c in cov]), rtol=1e-8, atol=1e-9)
    with pytest.raises(ValueError, match=r"no value for \['W'\]"):
        f.predict(Xnew, {"u": u, "w": w}, model=model)


def test_predict_with_several_functions_of_a_process(rng):
    """K functions with one kernel are K processes."""
    Xnew, u = rng.uniform(0, 4, size=(4, 2)), rng.normal(size=(2, len(XU)))
    with pm.Model():
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.5))
        gp.prior("u", Xu=XU, n_outputs=2)
        mean, cov = vsgp.Coregionalized(W, gp).predict(Xnew, {"u": u})
        each, shared = gp.predict(Xnew, {"u": u})
    np.testing.assert_allclose(mean, W @ each)
    np.testing.assert_allclose(cov, (W**2).sum(axis=1)[:, None, None] * shared)


@pytest.mark.parametrize("diag", [False, True])
def test_functions_at_each_input_on_its_own(diag):
    """Normals then, as those of one process, and no matrix of all inputs."""
    with pm.Model() as model:
        mixed_process().conditional("f", X, diag=diag)
    kind = (pm.Normal if diag else pm.MvNormal).rv_type
    assert all(isinstance(model[f"f_latent{i}"].owner.op, kind) for i in range(2))


@pytest.mark.slow
def test_draws_of_a_posterior_predict_outputs(rng):
    """`vsgp.predict` gives means of the outputs, which are those at each draw."""
    model = observed(Y, ("obs", "output"), COORDS)
    Xnew = rng.uniform(0, 4, size=(5, 2))
    u, w = rng.normal(size=(1, 2, len(XU))), rng.normal(size=(1, 2, len(XU_OTHER)))
    dims = ("chain", "draw")
    posterior = xr.Dataset({"u": ((*dims, "i"), u), "w": ((*dims, "j"), w)})
    mean = vsgp.predict(posterior, Xnew, "mean", model=model, progressbar=False)
    assert mean.dims == ("chain", "draw", "point", "output")
    assert list(mean["output"].values) == COORDS["output"]
    for s in range(2):
        wanted = reference_predictions(Xnew, u[0, s], w[0, s])[0]
        np.testing.assert_allclose(mean[0, s].T, wanted, rtol=1e-8)


@pytest.mark.slow
def test_one_function_for_all_outputs(rng):
    """As a likelihood for each multiple of it; and the fit leaves the saddle at zero."""
    y = np.sin(2.0 * X[:, :1]) * np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=(N, P))
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.5))
        gp.prior("u", Xu=XU)
        weights = pm.Normal("weights", shape=(P, 1))
        f = vsgp.Coregionalized(weights, [gp])
        f.likelihood("y", vsgp.Gaussian(sigma=0.2), X=X, y=y)
        u = rng.normal(size=len(XU))
        mean, spread = f.predict(
            X, {"u": u, "weights": np.array([[1.0], [-2.0], [0.5]])}, diag=True
        )
    one, variance = gp.predict(X, {"u": u}, diag=True, model=model)
    w = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(mean, one * w[:, None], rtol=1e-10)
    np.testing.assert_allclose(spread, variance * w[:, None] ** 2, rtol=1e-10, atol=1e-12)
    point = {"u_whitened__": rng.normal(size=len(XU)), "weights": w[:, None]}
    with pm.Model() as separate:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.5))
        gp.prior("u", Xu=XU)
        for k in range(P):
            likelihood = vsgp.Custom(lambda f, a=w[k]: pm.Normal.dist(a * f, 0.2))
            gp.likelihood(f"y{k}", likelihood, X=X, y=y[:, k])
    together = model.compile_logp(vars=model.observed_RVs, mode=RAW)(point)
    del point["weights"]
    each = separate.compile_logp(vars=separate.observed_RVs, mode=RAW)(point)
    np.testing.assert_allclose(together, each, rtol=1e-6)
    stage = vsgp.fit_gaussian(progressbar=False, model=model)
    assert np.abs(stage.theta["weights"]).min() > 0.1


TRIALS = np.random.default_rng(6).integers(2, 9, size=(N, P))


@pytest.mark.parametrize("n", [N, P], ids=["", "square"])
def test_whole_numbers_with_dims_keep_them(n):
    """Parameters and weights are made real numbers, and the model knows dims by name."""
    with pm.Model(coords={"output": COORDS["output"], "obs": np.arange(n)}) as model:
        trials = pm.Data("trials", TRIALS[:n].T, dims=("output", "obs"))
        weights = pm.Data("W", np.array([[1, 0], [-1, 2], [0, 1]]), dims=("output", "latent"))
        f = mixed_process(weights)
        y = np.ones((P, n), int)
        f.likelihood("y", vsgp.Binomial(trials), X=X[:n], y=y, dims=("output", "obs"))
    assert model.named_vars_to_dims["y"] == ("obs", "output")
    got = f.processes[0]._prior.likelihoods["y"].likelihood.n.eval(mode=RAW)
    np.testing.assert_array_equal(got, TRIALS[:n])


ONE = np.array([[1.0], [-2.0], [3.0]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: pm.Normal("W", dims=("output", "latent")),
        lambda: pm.Flat("W", dims=("output", "latent")),
        lambda: pm.Data("W", ONE),
        lambda: pm.Data("W", ONE.astype(int), dims=("output", "latent")),
    ],
    ids=["normal", "flat", "data", "whole"],
)
def test_weights_of_one_function_whose_shape_no_type_says(make, rng):
    """Shapes of variables with dims are data of the model, as are those of ``pm.Data``."""
    gaussian = vsgp.Gaussian(0.5)
    with pm.Model(coords=COORDS | {"latent": ["one"]}) as model:
        gp, other = (vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.5)) for _ in "ab")
        gp.prior("u", Xu=XU)
        other.prior("w", Xu=XU)
        f = vsgp.Coregionalized(make(), gp)
        with pytest.raises(ValueError, match="y has 2 columns, but W has 3 rows"):
            f.likelihood("y", gaussian, X=X, y=Y[:, :2])
        with pytest.raises(ValueError, match="but X has 9 rows and W has 3. Pass one row"):
            f.likelihood("y", gaussian, X=X, y=Y.T)
        scale = pm.HalfNormal("scale", dims="latent")
        with pytest.raises(ValueError, match=r"sigma of Gaussian has shape \(1,\), .* 3 outputs"):
            f.likelihood("y", vsgp.Gaussian(scale), X=X, y=Y)
        with pytest.raises(ValueError, match=r"W has shape \(3, 1\), .* 2 latent functions"):
            vsgp.Coregionalized(model["W"], [gp, other])
        f.likelihood("y", gaussian, X=X, y=Y, dims=("obs", "output"))
    draws = {"u": rng.normal(size=(1, 2, len(XU))), "W": np.broadcast_to(ONE, (1, 2, P, 1))}
    dims = {"u": ("u_inducing",), "W": ("output", "latent")}
    posterior = xr.Dataset({k: (("chain", "draw", *dims[k]), v) for k, v in draws.items()})
    options = {"model": model, "progressbar": False}
    mean = vsgp.predict(posterior, X, "mean", **options)
    f = vsgp.predict(posterior, X, "moments", **options)["mean"]
    np.testing.assert_allclose(mean, f.values[..., None] * ONE[:, 0])
    again = vsgp.predict(posterior, X, "mean", likelihood=vsgp.Gaussian(1.0), **options)
    np.testing.assert_array_equal(again, mean)


@pytest.mark.slow
@pytest.mark.parametrize("random", [True, *long(False)])
def test_draws_of_a_stage_say_that_random_weights_widen_them(random, caplog):
    with pm.Model() as model:
        weights = pm.Normal("W", shape=W.shape) if random else W
        pm.Normal("other")
        mixed_process(weights).likelihood("y", vsgp.Gaussian(1.0), X=X, y=Y, dims=("obs", "output"))
    stage = vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    caplog.clear()
    stage.to_datatree(2, random_seed=1)
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == random
    assert not random or said[0].endswith("mixing matrix is random. Use vsgp.sample.")


def test_predictive_is_of_its_own_weights():
    """A component of a sum, and other outputs, follow the likelihood with these weights."""
    with pm.Model() as model:
        f = mixed_process([1.0, 1.0])
        sigma = 1e-6 * pm.Data("effort", EFFORT[:, 0])
        f.likelihood("y", vsgp.Gaussian(sigma), X=X, y=Y[:, 0])
        none = vsgp.Coregionalized([0.0, 0.0], f.processes)
        none.predictive("none", X)
        f.likelihood("z", vsgp.Poisson(), X=X, y=np.ones(N))
        none.predictive("again", X, "y")
        two = vsgp.Coregionalized(np.eye(2), f.processes)
        two.predictive("pair", X[:4], "z")
        with pytest.raises(ValueError, match="2 likelihoods. Say which one"):
            two.predictive("new", X)
        with pytest.raises(ValueError, match=r"exposure of Poisson has shape \(9,\), .* 2 outputs"):
            two.predictive("new", X, vsgp.Poisson(EFFORT[:, 0]))
    names = ["none", "again", "pair"]
    none, again, pair = pm.draw([model[n] for n in names], mode=RAW, random_seed=1)
    assert max(np.abs(none).max(), np.abs(again).max()) < 1e-4
    assert pair.shape == (4, 2)


def test_predictive_of_functions_that_no_weights_mix():
    with pm.Model():
        f = mixed_process()
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), f.processes, X=X, y=Y[:, 0])
        with pytest.raises(ValueError, match="needs 2 latent functions, but each output has one"):
            f.predictive("new", X)


def test_columns_of_data_are_not_repeated():
    """The length of an axis of ``pm.Data`` may change, so PyTensor would refuse it at a draw."""
    with pm.Model():
        f = mixed_process()
        for value, todo in (
            (EFFORT[:, :1], r"Keep a vector e .*=e\[:, N"),
            (np.ones(1), "Pass one n"),
        ):
            effort = pm.Data(f"effort{value.ndim}", value)
            with pytest.raises(ValueError, match=f"3 outputs. {todo}"):
                f.likelihood("y", vsgp.Poisson(effort), X=X, y=np.ones((N, P)))
        fixed = pm.Data("fixed", EFFORT[:, :1], shape=(None, 1))
        f.likelihood("y", vsgp.Poisson(fixed), X=X, y=np.ones((N, P)))


@pytest.mark.slow
def test_an_intercept_is_as_wide_as_functions_that_share_it_leave_it(rng):
    """Each function followed it as if the other stayed, and its ± was twice as large."""
    x = np.linspace(0.0, 4.0, 8)[:, None]
    K = sum(np.exp(-0.5 * (x - x.T) ** 2 / ls**2) for ls in (1.0, 3.0)) + 0.3**2 * np.eye(8)
    y = rng.multivariate_normal(np.ones(8), K)
    with pm.Model():
        b, gps = pm.Normal("b", 0.0, 3.0), []
        for name, ls in (("u", 1.0), ("w", 3.0)):
            gps.append(pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)))
            gps[-1].prior(name, Xu=x, jitter=1e-8)
        vsgp.likelihood("y", lambda f, g: pm.Normal.dist(f + g + b, 0.3), gps, X=x, y=y)
        stage = vsgp.fit_gaussian(random_seed=1, progressbar=False)
    exact = (1.0 / 9.0 + np.linalg.inv(K).sum()) ** -0.5
    np.testing.assert_allclose(np.sqrt(stage.theta_covariance[0, 0]), exact, rtol=0.1)
    # Together they make up for the intercept once, each for its part.
    draws = stage.to_datatree(1000, random_seed=2)["posterior"]
    level = draws["b"].values[0] - draws["b"].values.mean()
    for name, ls in (("u", 1.0), ("w", 3.0)):
        slope = level @ draws[name].values[0] / (level @ level)
        expected = -np.exp(-0.5 * (x - x.T) ** 2 / ls**2) @ np.linalg.solve(K, np.ones(8))
        np.testing.assert_allclose(slope, expected, atol=0.06)


TREES = ["oak", "elm"]


@pytest.mark.parametrize("what", ["y", "exposure", "exposure of each tree", "W", "DataArray"])
def test_labels_of_outputs_are_in_one_order(what):
    rng, other = np.random.default_rng(0), TREES[::-1]
    X = np.linspace(0, 3, 5)[:, None]
    y = pd.DataFrame(rng.poisson(2.0, (5, 2)), columns=TREES)
    exposure = pd.DataFrame(np.ones((5, 2)), columns=TREES)
    W = pd.DataFrame(np.eye(2), index=TREES)

    def add(y, exposure, W):
        with pm.Model(coords={"tree": TREES}):
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            gp.prior("u", Xu=X, n_outputs=2)
            outputs = vsgp.Coregionalized(W, gp)
            outputs.likelihood("y", vsgp.Poisson(exposure), X=X, y=y, dims=("plot", "tree"))

    add(y, exposure, W)
    wrong = {
        "y": (y[other], exposure, W),
        "exposure": (y, exposure[other], W),
        "exposure of each tree": (y, pd.Series([50.0, 1.0], index=other), W),
        "W": (y, exposure, W.loc[other]),
        "DataArray": (y, xr.DataArray([50.0, 1.0], {"tree": other}, ["tree"]), W),
    }
    with pytest.raises(ValueError, match="Outputs of .* in another order"):
        add(*wrong[what])


def test_names_of_outputs_are_kept_and_those_of_new_data_are_checked(rng):
    """A table names them, and new ones have these names in this order."""
    X = np.arange(9.0)[:, None]
    y = pd.DataFrame(rng.normal(size=(9, 2)) + [0.0, 3.0], columns=["oak", "elm"])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        f = vsgp.Coregionalized(np.array([[1.0], [2.0]]), [gp])
        f.likelihood("y", vsgp.Gaussian(1.0), X=X, y=y)
    assert model.coords["y_output"] == ("oak", "elm")
    draws = prior_draws(model)
    assert list(vsgp.predict(draws, X[:2], "mean", model=model)["y_output"]) == ["oak", "elm"]
    score = partial(vsgp.log_predictive_density, draws, X, model=model, progressbar=False)
    np.testing.assert_allclose(score(y), score(y.to_numpy()), rtol=1e-12)
    with pytest.raises(ValueError, match="Outputs of ynew have the labels of the model in another"):
        score(y[["elm", "oak"]])
    with pytest.raises(ValueError, match="Outputs of ynew are .'oak', 'ash'., but those of the mo"):
        score(y.rename(columns={"elm": "ash"}))
    with (
        pm.Model(coords={"tree": ["oak", "ash"]}),
        pytest.raises(ValueError, match="of coords are"),
    ):
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        f = vsgp.Coregionalized(np.array([[1.0], [2.0]]), [gp])
        f.likelihood("y", vsgp.Gaussian(1.0), X=X, y=y, dims=("row", "tree"))


def reordered(draws, dim, labels):
    """Draws as `sel` leaves them."""
    return draws.map_over_datasets(lambda d: d.sel({dim: labels}) if dim in d.dims else d)


def test_draws_have_outputs_in_the_order_of_the_model():
    X = np.linspace(0, 4, 8)[:, None]
    y = np.random.default_rng(1).normal(size=(8, 2))

    def build(names):
        with pm.Model(coords={"tree": names}) as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            gp.prior("u", Xu=X[::3], n_outputs=2)
            columns = [TREES.index(n) for n in names]
            outputs = vsgp.Coregionalized(np.eye(2)[columns], gp)
            outputs.likelihood("y", vsgp.Gaussian(0.5), X=X, y=y[:, columns], dims=("plot", "tree"))
        return model

    model = build(TREES)
    draws = vsgp.fit_gaussian(model=model, progressbar=False).to_datatree(10, random_seed=1)
    assert vsgp.predict(draws, X, "mean", model=model, progressbar=False).sizes["tree"] == 2
    other = build(TREES[::-1]), reordered(draws, "tree", TREES[::-1])
    for wrong in ((draws, other[0]), (other[1], model)):
        with pytest.raises(ValueError, match="'tree' in another order than the model"):
            vsgp.predict(wrong[0], X, "mean", model=wrong[1], progressbar=False)
        with pytest.raises(ValueError, match="'tree' in another order than the model"):
            vsgp.loo(wrong[0], model=wrong[1], progressbar=False)
    with pytest.raises(ValueError, match="have 1 labels along 'tree', and the model has 2"):
        vsgp.predict(reordered(draws, "tree", ["elm"]), X, model=model, progressbar=False)


# Codes of groups in another order are other inputs.
@pytest.mark.filterwarnings("ignore:'y_X' of the model changed")
@pytest.mark.parametrize("what", ["groups", "classes", "exposure"])
def test_draws_have_codes_and_parameters_in_the_order_of_their_labels(what):
    rng, names = np.random.default_rng(2), ["a", "b", "c"]
    X = pd.DataFrame({"x": np.linspace(0, 4, 12), "kind": names * 4})
    # Of each row, where an exposure goes with it.
    dim, labels = (
        ("row", [f"r{i:02d}" for i in range(12)]) if what == "exposure" else ("kind", names)
    )

    def build(labels):
        with pm.Model(coords={dim: labels}) as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            Xu, x = np.linspace(0, 4, 5)[:, None], X[["x"]]
            if what == "groups":
                gp.prior("u", Xu=Xu, by="kind")
                gp.likelihood("y", vsgp.Poisson(), X=X, y=np.arange(12) % 5)
            elif what == "classes":
                gp.prior("u", Xu=Xu, n_outputs=3, output_dims="kind")
                gp.likelihood("y", vsgp.Softmax(3), X=x.to_numpy(), y=X["kind"].to_numpy())
            else:
                gp.prior("u", Xu=Xu)
                exposure = vsgp.Poisson(rng.uniform(1.0, 2.0, 12))
                gp.likelihood("y", exposure, X=x.to_numpy(), y=np.arange(12) % 5, dims="row")
        return model

    model = build(labels)
    draws = vsgp.fit_gaussian(model=model, move_inducing=False, progressbar=False)
    draws = draws.to_datatree(10, random_seed=1)

    def score(draws, model):
        found = vsgp.compute_pointwise(
            draws, model=model, extend_inferencedata=False, progressbar=False
        )
        return found["log_potential"].values

    known = score(draws, model)
    with pytest.raises(ValueError, match=f"'{dim}' in another order than the model"):
        score(reordered(draws, dim, labels[::-1]), model)
    short = draws.map_over_datasets(lambda group: group.astype("float32"))
    with pytest.raises(ValueError, match=f"'{dim}' in another order than the model"):
        score(reordered(short, dim, labels[::-1]), model)
    if what != "exposure":  # their labels are known again
        np.testing.assert_allclose(score(draws, build(labels[::-1])), known, rtol=1e-9)
