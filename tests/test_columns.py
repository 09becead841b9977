"""Columns with names are matched by name, wherever inputs come in."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
import reference_gp
import xarray as xr

from marks import long
from prior_draws import prior_draws
from pymc.model.fgraph import clone_model

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE

rng = np.random.default_rng(3)
N, M, LS, VARIANCE = 14, 5, [0.6, 4.0], 1.7
X = pd.DataFrame(rng.uniform(0, 3, (N, 2)), columns=["east", "north"])
Y = rng.poisson(2.0, N)
NEW = pd.DataFrame(rng.uniform(0, 3, (4, 2)), columns=["east", "north"])
SWAPPED = NEW[["north", "east"]]
LABELLED = xr.DataArray(
    SWAPPED.to_numpy(), dims=["site", "k"], coords={"k": ["north", "east"], "site": list("abcd")}
)
quiet = {"progressbar": False}


def build(X=X, Xu=X.iloc[:M], **options):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=VARIANCE * pm.gp.cov.ExpQuad(2, ls=LS)
        )
        gp.prior("u", Xu=Xu, **options)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
    return model, gp


def dense_mean(u, Xnew, Xu=X.iloc[:M]):
    k = lambda a, b: reference_gp.ard_kernel(a, b, LS, VARIANCE)  # noqa: E731
    Z = Xu.to_numpy()
    K = k(Z, Z) + reference_gp.JITTER * VARIANCE * np.eye(M)
    return 0.4 + k(Xnew.to_numpy(), Z) @ np.linalg.solve(K, u - 0.4)


@pytest.fixture(scope="module")
def fitted():
    model, gp = build()
    return model, gp, prior_draws(model, 2)


@pytest.mark.parametrize("Xnew", [NEW, SWAPPED, LABELLED, LABELLED.chunk(site=3)])
def test_predict(Xnew, fitted):
    model, _, idata = fitted
    what = "mean" if isinstance(Xnew, xr.DataArray) and Xnew.chunks else "moments"
    found = vsgp.predict(idata, Xnew, what, model=model, **quiet)
    plain = vsgp.predict(idata, NEW.to_numpy(), what, model=model, **quiet)
    if what == "mean":
        np.testing.assert_allclose(found.compute(), plain, rtol=1e-12)
        return
    for s in range(2):
        u = idata["posterior"]["u"].values[0, s]
        np.testing.assert_allclose(found["mean"][0, s], dense_mean(u, NEW), atol=1e-5)


def test_at_a_point_and_in_the_model(fitted):
    _, _, idata = fitted
    model, gp = build()
    u = idata["posterior"]["u"].values[0, 0]
    names = {"coords": {"input": ["north", "east"]}, "dims": ("row", "input")}
    with model:
        data = pm.Data("Xnew", SWAPPED, **names)
        f = gp.conditional("f", data, diag=True)
        y = gp.predictive("y_new", SWAPPED)
    for Xnew in (SWAPPED, LABELLED):
        np.testing.assert_allclose(
            gp.predict(Xnew, {"u": u}, model=model)[0], dense_mean(u, NEW), atol=1e-5
        )
    mean = f.owner.inputs[2]
    found = mean.eval({model["u"]: u}, mode=ONCE)
    np.testing.assert_allclose(found, dense_mean(u, NEW), atol=1e-5)
    assert y.type.ndim == 1
    with model:  # other values, in the order of the container
        pm.set_data({"Xnew": SWAPPED.iloc[::-1].to_numpy()})
    found = mean.eval({model["u"]: u}, mode=ONCE)
    np.testing.assert_allclose(found, dense_mean(u, NEW.iloc[::-1]), atol=1e-5)


def test_score(fitted):
    model, _, idata = fitted
    y = [0, 1, 2, 3]
    a, b = (
        vsgp.log_predictive_density(idata, Z, y, model=model, **quiet)
        for Z in (NEW.to_numpy(), SWAPPED)
    )
    np.testing.assert_allclose(a, b, rtol=1e-12)


def in_a_container(frame):
    """Columns named by a dimension of the model."""

    def make():
        return pm.Data("X", frame, dims=("row", "input"), coords={"input": list(frame.columns)})

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frame", "array", "container", "waves"])
def test_data_in_another_order_than_Xu(kind):
    """The log density is that of the columns in the order of Xu, or of the first X."""
    u = np.linspace(-0.5, 0.8, M)
    swapped = X[["north", "east"]]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=[0.5, 1.0]))
        if kind == "waves":
            waves = vsgp.inducing.Fourier([7.0, 7.0], [2, 2], [1.5, 1.5])
            gp.prior("u", inducing=waves)
            u = np.linspace(-0.5, 0.8, waves.n_features)
            gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
            gp.likelihood("z", vsgp.Poisson(), X=swapped, y=Y)
        else:
            gp.prior("u", Xu=X.iloc[:M])
            gp.likelihood("y", vsgp.Poisson(), X=X.to_numpy(), y=Y)
            array = xr.DataArray(swapped, dims=["row", "k"], coords={"k": ["north", "east"]})
            Z = {"frame": swapped, "array": array}.get(kind)
            gp.likelihood("z", vsgp.Poisson(), X=in_a_container(swapped)() if Z is None else Z, y=Y)
    assert model.coords["u_feature"] == ("east", "north")
    terms = [pm.logp(model[name], Y, warn_rvs=False) for name in ("y", "z")]
    y, z = pytensor.function([model["u"]], terms, mode=ONCE)(u)
    np.testing.assert_allclose(y, z, rtol=1e-12)


def test_names_come_from_X_where_Xu_has_none(fitted):
    _, _, idata = fitted
    model, gp = build(Xu=X.iloc[:M].to_numpy())
    assert model.coords["u_feature"] == ("east", "north")
    u = idata["posterior"]["u"].values[0, 0]
    found = gp.predict(SWAPPED, {"u": u}, model=model)[0]
    np.testing.assert_allclose(found, dense_mean(u, NEW), atol=1e-5)


def test_names_survive_a_copy_and_a_file(fitted, tmp_path):
    pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
    model, _, idata = fitted
    idata.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    loaded = xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf")
    plain = vsgp.predict(idata, NEW.to_numpy(), "mean", model=model, **quiet)
    for tree, m in ((loaded, model), (idata, clone_model(model)), (idata, model.copy())):
        found = vsgp.predict(tree, SWAPPED, "mean", model=m, **quiet)
        np.testing.assert_allclose(found, plain, rtol=1e-12)
    other, _ = build(X[["north", "east"]], X[["north", "east"]].iloc[:M])
    idata = idata.copy()
    idata["constant_data"] = xr.DataTree(
        idata["constant_data"].to_dataset().assign_coords(u_feature=["east", "north"])
    )
    with pytest.raises(ValueError, match="draws are of a model with the columns.*Build it"):
        vsgp.predict(idata, SWAPPED, "mean", model=other, **quiet)


def test_nested_models_keep_their_own_names():
    with pm.Model():
        with pm.Model(name="a"):
            a = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=LS))
            a.prior("u", Xu=X.iloc[:M], inducing_dims="one")
        with pm.Model(name="b") as b:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=LS))
            gp.prior("u", Xu=X.iloc[:M].set_axis(["p", "q"], axis=1), inducing_dims="two")
            assert b.coords["b::u_feature"] == ("p", "q")
            assert b.coords["a::u_feature"] == ("east", "north")


WRONG = NEW.rename(columns={"north": "nord"})
TWICE = NEW.set_axis(["east", "east"], axis=1)


@pytest.mark.parametrize(
    ("frame", "message"),
    [(WRONG, r"columns \['east', 'nord'\].*Pass a table"), (TWICE, "several columns named 'east'")],
)
def test_refusals(frame, message, fitted):
    model, gp, idata = fitted
    with pytest.raises(ValueError, match=message):
        vsgp.predict(idata, frame, model=model, **quiet)
    with pytest.raises(ValueError, match=message):
        gp.predict(frame, {}, model=model)
    with pytest.raises(ValueError, match=message):
        build(X.set_axis(frame.columns, axis=1))
    n = len(model.named_vars)
    with model, pytest.raises(ValueError, match=message):
        gp.conditional("f", frame)
    assert len(model.named_vars) == n


def test_processes_with_other_orders():
    with pm.Model():
        gps = []
        for name, columns in (("a", ["east", "north"]), ("b", ["north", "east"])):
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=LS))
            gp.prior(name, Xu=X[columns].iloc[:M])
            gps.append(gp)
        with pytest.raises(ValueError, match="different orders"):
            vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), gps, X=X, y=Y * 1.0)


def test_numbers_are_not_names(fitted):
    model, _, idata = fitted
    plain = vsgp.predict(idata, NEW.to_numpy(), "mean", model=model, **quiet)
    numbered = NEW.set_axis(range(2), axis=1)
    np.testing.assert_allclose(
        vsgp.predict(idata, numbered, "mean", model=model, **quiet), plain, rtol=1e-12
    )


@pytest.mark.slow
def test_numbers_in_another_order_say_where_columns_are():
    """Those of a table that was made of an array: by `frame[[1, 0]]`, say."""
    numbered = NEW.set_axis(range(2), axis=1)
    for columns in ([0, 1], [1, 0]):
        data = X.set_axis(range(2), axis=1)[columns]
        for Xu in (data.iloc[:M], data.iloc[:M].to_numpy()):
            model, gp = build(data, Xu)
            idata = prior_draws(model, 2)
            point = {"u": idata["posterior"]["u"].values[0, 0]}
            plain = numbered[columns].to_numpy()  # arrays are in the order of the model
            wanted = vsgp.predict(idata, plain, "mean", model=model, **quiet)
            at_point, _ = gp.predict(plain, point, model=model)
            for new in (numbered, numbered[[1, 0]]):
                found = vsgp.predict(idata, new, "mean", model=model, **quiet)
                np.testing.assert_allclose(found, wanted, rtol=1e-12)
                np.testing.assert_allclose(
                    gp.predict(new, point, model=model)[0], at_point, rtol=1e-12
                )


@pytest.mark.parametrize("extra", ["hours", "habitat"])
def test_columns_that_the_model_lacks_are_named(extra, fitted):
    """Also where they are no numbers."""
    model, gp, idata = fitted
    point = {"u": idata["posterior"]["u"].values[0, 0]}
    kinds = {"habitat": pd.Categorical(["a", "b", "a", "b"]), "hours": np.ones(4)}
    table = SWAPPED.assign(**{extra: kinds[extra]})
    for call in (
        lambda: vsgp.predict(idata, table, "f", model=model, **quiet),
        lambda: gp.predict(table, point, model=model),
        lambda: build(X.assign(**{extra: kinds[extra][0]})),
    ):
        with pytest.raises(ValueError, match=f"has the columns .*'{extra}'.* those of the model"):
            call()


INDUCING = {
    "points": lambda Z: {"Xu": Z.iloc[:M]},
    "waves": lambda Z: {
        "inducing": vsgp.inducing.Fourier.for_data(
            Z, pm.gp.cov.ExpQuad(2, ls=[LS[c] for c in Z.columns]), max_features=60
        )
    },
    "neighbors": lambda Z: {"inducing": vsgp.inducing.NearestNeighbors(Z.iloc[:M], 3)},
}


@pytest.mark.parametrize("kind", INDUCING)
@pytest.mark.parametrize("of_Xu", [[1, 0], *long([0, 1])])
def test_numbers_of_tables_are_matched_where_inducing_inputs_have_them(of_Xu, kind):
    numbered, new = (table.set_axis(range(2), axis=1) for table in (X, NEW))
    for of_X in ([0, 1], [1, 0]):
        with pm.Model() as model:
            kernel = pm.gp.cov.ExpQuad(2, ls=[LS[c] for c in of_Xu])
            gp = vsgp.VariationalSparse(cov_func=kernel)
            gp.prior("u", **INDUCING[kind](numbered[of_Xu]))
            gp.likelihood("y", vsgp.Poisson(), X=numbered[of_X], y=Y)
        np.testing.assert_array_equal(model["y_X"].get_value(), numbered[of_Xu])
    point = {"u": np.random.default_rng(1).normal(size=model.eval_rv_shapes()["u"])}
    found, wanted = (gp.predict(t, point, model=model)[0] for t in (new, new[of_Xu].to_numpy()))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_numbers_of_tables_of_two_processes_are_in_one_order():
    numbered, gps = X.set_axis(range(2), axis=1), []
    with pm.Model():
        for name, of_Xu in {"a": [0, 1], "b": [1, 0]}.items():
            gps.append(vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=LS)))
            gps[-1].prior(name, numbered[of_Xu].iloc[:M])
        with pytest.raises(ValueError, match="columns in different orders"):
            vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), gps, X=numbered, y=Y * 1.0)
        # Names of data take the place of numbers, as before.
        vsgp.likelihood("z", vsgp.Poisson(), gps[0], X=X, y=Y)


def test_intensity_of_a_pattern():
    covariate = lambda p: p[:, 0] - p[:, 1]  # noqa: E731
    pattern = vsgp.point_process(
        rng.uniform(0, 1, (30, 2)), [(0, 1), (0, 1)], bins=4, covariates={"depth": covariate}
    )
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(3, ls=[0.3, 1.0, 3.0]))
        gp.prior("u", Xu=pattern.inputs[::4])
        exposure = vsgp.Poisson(exposure=pattern.exposure)
        gp.likelihood("y", exposure, X=pattern.inputs, y=pattern.counts)
    idata = prior_draws(model, 2)
    names = [*pattern.dims, "depth"]
    frame = pd.DataFrame(pattern.inputs[:3], columns=names)
    plain = pattern.intensity(idata, frame.to_numpy(), model=model)
    found = pattern.intensity(idata, frame[names[::-1]], model=model)
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    with pytest.raises(ValueError, match="Pass a table with these names"):
        pattern.intensity(idata, frame.rename(columns={"depth": "hoehe"}), model=model)


PLACES = {
    "kmeans": lambda X: vsgp.inducing.kmeans(X, M, random_seed=1),
    "subset": lambda X: vsgp.inducing.subset(X, M, random_seed=1),
    "grid": lambda X: vsgp.inducing.grid(X, [2, 3]),
    "greedy": lambda X: vsgp.inducing.greedy_variance(X, M, pm.gp.cov.ExpQuad(2, ls=LS)),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_places_keep_the_names(place):
    Xu = place(X)
    assert list(Xu.columns) == ["east", "north"]
    np.testing.assert_array_equal(Xu, place(X.to_numpy()))
    labelled = place(xr.DataArray(X, dims=["site", "k"], coords={"k": ["a", "b"]}))
    assert list(labelled.k) == ["a", "b"] and labelled.dims == ("inducing", "k")


def test_inputs_are_matched_with_placed_points():
    Xu = vsgp.inducing.kmeans(X, M, random_seed=1)
    swapped, _ = build(X[["north", "east"]], Xu)
    straight, _ = build(X, Xu.to_numpy())
    at = straight.initial_point(random_seed=1)
    logps = [m.compile_logp(mode=ONCE)(at) for m in (swapped, straight)]
    np.testing.assert_allclose(*logps, rtol=1e-12)


def test_suggested_places_keep_the_names():
    found = vsgp.suggest_inducing(X, pm.gp.cov.Linear(2, c=0.0), residual=0.2, draws=2)
    assert list(found.prior_kwargs["Xu"].columns) == ["east", "north"]


PLACES = pd.DataFrame({"year": 1990 + np.arange(N), "week": rng.integers(1, 53, N)})
Z = pd.DataFrame({"year": [1990, 1997, 2004], "week": [1, 1, 50]})
INTEGERS = {
    "table": PLACES,
    "short": PLACES.astype("uint16"),
    "nullable": PLACES.astype("Int64"),
    "array": PLACES.to_numpy(),
    "list": PLACES.to_numpy().tolist(),
    "swapped": PLACES[["week", "year"]],
    "DataArray": xr.DataArray(PLACES, dims=["row", "k"]),
    "yes and no": PLACES > [1995, 20],
}


def as_real_numbers(table):
    """The log density of a table of real numbers, at the initial point, and that point."""
    wanted, _ = build(table.astype("float64"), Z.astype("float64"))
    point = wanted.initial_point()
    return point, wanted.compile_logp(mode=ONCE)(point)


@pytest.fixture(scope="module")
def of_real_places():
    return as_real_numbers(PLACES)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_whole_numbers(name, of_real_places):
    inputs = INTEGERS[name]
    point, value = of_real_places if name != "yes and no" else as_real_numbers(inputs)
    model, _ = build(inputs, Z if name != "list" else Z.to_numpy().tolist())
    np.testing.assert_allclose(model.compile_logp(mode=ONCE)(point), value, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "uint16"])
def test_data_of_whole_numbers(dtype):
    with pm.Model(coords={"k": list(PLACES)}) as model:
        data = pm.Data("data", PLACES.to_numpy(dtype), dims=("row", "k"))
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=VARIANCE * pm.gp.cov.ExpQuad(2, ls=LS)
        )
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Poisson(), X=data, y=Y)
    for table in (PLACES, PLACES[::-1]):
        with model:
            pm.set_data({"data": table.to_numpy(dtype)})
        point, value = as_real_numbers(table)
        np.testing.assert_allclose(model.compile_logp(mode=ONCE)(point), value, rtol=1e-13)
    idata = prior_draws(model, 2)
    found = vsgp.predict(idata, PLACES[["week", "year"]], "moments", model=model, **quiet)
    plain = vsgp.predict(idata, PLACES.to_numpy("float64"), "moments", model=model, **quiet)
    for k in ("mean", "variance"):
        np.testing.assert_allclose(found[k], plain[k], rtol=1e-12)


ROWS = [f"row {i}" for i in range(N)]
AT = X.set_axis(ROWS)
SEEN, HOURS = pd.Series(Y, ROWS), pd.Series(np.arange(1.0, N + 1.0), ROWS)
ORDER = rng.permutation(N)


def of_rows(X=AT, y=SEEN, exposure=HOURS, coords=None, **options):
    with pm.Model(coords=coords) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=LS))
        gp.prior("u", Xu=NEW)
        gp.likelihood("y", vsgp.Poisson(exposure=exposure), X=X, y=y, **options)
    return model


def turned(rows):
    return rows.iloc[ORDER]


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("y have the labels of X", {"y": turned(SEEN)}),
        ("y have the labels of X", {"y": turned(SEEN).to_xarray()}),
        ("y have the labels of X", {"X": turned(AT)}),
        ("exposure of Poisson have the labels of X", {"exposure": turned(HOURS)}),
        ("exposure of Poisson have the labels of y", {"exposure": turned(HOURS), "X": AT.values}),
        ("X have the labels of coords", {"coords": {"row": turned(SEEN).index}, "dims": "row"}),
        # Sorted by a column, and others not.
        ("y have the labels of X", {"X": X.sort_values("east"), "y": pd.Series(Y)}),
    ],
)
def test_rows_in_another_order_are_refused(what, options):
    with pytest.raises(ValueError, match=f"Rows of {what} in another order. Sort both alike"):
        of_rows(**options)


def test_rows_that_go_together_are_taken():
    wanted = of_rows(*(rows.to_numpy() for rows in (AT, SEEN, HOURS))).point_logps()
    numbers = {"coords": {"row": range(N)}, "dims": "row"}
    for options in ({}, {"y": Y}, {"X": AT.set_axis(["a", *ROWS[:-1]])}, numbers):
        assert of_rows(**options).point_logps() == wanted
    alike = of_rows(turned(AT), turned(SEEN), turned(HOURS), coords={"row": ROWS[::-1]})
    assert alike.point_logps() == wanted
    sorted_ = X.sort_values("east")
    of_rows(sorted_, SEEN.set_axis(sorted_.index), **numbers)  # of positions, not labels


def test_new_rows_in_another_order_are_refused():
    model = of_rows()
    idata = prior_draws(model, 2)
    given = {"likelihood": vsgp.Poisson(exposure=turned(HOURS)), "model": model, **quiet}
    with pytest.raises(ValueError, match="exposure of Poisson have the labels of Xnew"):
        vsgp.predict(idata, AT, "mean", **given)
    with pytest.raises(ValueError, match="ynew have the labels of Xnew"):
        vsgp.log_predictive_density(idata, AT, turned(SEEN), model=model, **quiet)
    with pytest.raises(ValueError, match="exposure of Poisson have the labels of Xnew"):
        vsgp.log_predictive_density(idata, AT, SEEN, **given)
    found = vsgp.predict(idata, turned(AT), "mean", **given)
    given["likelihood"] = vsgp.Poisson(exposure=HOURS)
    np.testing.assert_allclose(found, vsgp.predict(idata, AT, "mean", **given)[:, :, ORDER])


@pytest.mark.parametrize("several", [False, True], ids=["one", "coregionalized"])
def test_a_column_may_be_called_name(several):
    """A table has its columns as attributes, and `name` is no attribute of its own."""
    table, new = (t.rename(columns={"east": "name"}) for t in (X, NEW))
    with pm.Model(coords={"site": range(N)}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=LS))
        gp.prior("u", Xu=table.iloc[:M])
        if several:
            f = vsgp.Coregionalized(pm.Normal("W", shape=(2, 1)), [gp])
            f.likelihood("y", vsgp.Poisson(), X=table, y=np.column_stack([Y, Y]))
        else:
            gp.likelihood("y", vsgp.Poisson(), X=table, y=Y)
        draws = prior_draws(model, 3)
        found = [vsgp.predict(draws, t, "mean", **quiet) for t in (new, new[["north", "name"]])]
    np.testing.assert_allclose(*found, rtol=1e-8)
