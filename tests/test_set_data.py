"""Data and parameters that live in ``pm.Data``, and what ``pm.set_data`` makes of them."""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from modes import RAW
from prior_draws import prior_draws

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE
from pymc_vsgp.model.data import check_data

N = 12
X = np.linspace(0.0, 3.0, 2 * N).reshape(N, 2)
XU = X[::3] + 0.01
COUNTS = np.arange(N) % 4


def model_of(likelihood, y=COUNTS, **data):
    """Return a model whose inputs, observations and parameters are ``pm.Data``."""
    with pm.Model() as model:
        params = {name: pm.Data(name, np.asarray(value)) for name, value in data.items()}
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=XU)
        x, seen = pm.Data("x", X, dims=("row", "column")), pm.Data("seen", np.asarray(y))
        gp.likelihood("y", likelihood(**params), X=x, y=seen, dims="row")
    return model


@pytest.mark.parametrize(
    ("likelihood", "data", "wanted"),
    [
        (vsgp.Poisson, {"exposure": np.arange(N)}, "exposure must be positive"),
        (lambda half: vsgp.Poisson(exposure=half / 2), {"half": np.zeros(N)}, "exposure must be"),
        (vsgp.Binomial, {"n": np.full(N, 2.5)}, "n must be a whole number"),
        (vsgp.Binomial, {"n": np.full(N, 2)}, "from 0 to n, but row 3 is 3"),
        (vsgp.HeteroskedasticBetaBinomial, {"n": np.full(N, -1)}, "n must be a whole number"),
        (vsgp.Gaussian, {"sigma": -1.0}, "sigma must be positive"),
        (vsgp.StudentT, {"nu": 3.0, "sigma": 0.0}, "sigma must be positive"),
        (vsgp.Ordinal, {"cutpoints": [2.0, 1.0, 3.0]}, "cut-points must be finite and increase"),
        (vsgp.PoissonProcess, {"weights": -np.ones(N)}, "weights must be 0 or positive"),
    ],
)
def test_parameters_in_data_are_checked(likelihood, data, wanted):
    with pytest.raises(ValueError, match=wanted):
        model_of(likelihood, **data)


REPLACED = {
    "nan in X": ({"x": np.where(X == X[2, 1], np.nan, X)}, "x holds nan in row 2"),
    "y outside": ({"seen": COUNTS - 1}, "row 0 is -1"),
    "y above n": ({"seen": COUNTS + 5}, "row 2 is 7"),
    "n below y": ({"n": np.full(N, 2)}, "row 3 is 3"),
    "n fractional": ({"n": np.full(N, 4.5)}, "n must be a whole number"),
    "fewer y": ({"seen": COUNTS[:5]}, "x has 12 rows but y has 5"),
    "fewer n": ({"n": np.full(7, 6)}, r"\(7,\), but x has 12 rows"),
    "Xu twice": ({"u_Xu": np.ones_like(XU)}, "Rows 0 and 1 of Xu are equal"),
    "Xu nan": ({"u_Xu": np.full_like(XU, np.nan)}, "u_Xu holds nan"),
}


@pytest.fixture(scope="module")
def binomial():
    return model_of(vsgp.Binomial, n=np.full(N, 6.0))


@pytest.mark.parametrize("case", REPLACED)
def test_replaced_data_are_checked_again(binomial, case):
    replaced, wanted = REPLACED[case]
    before = {name: binomial[name].get_value() for name in replaced}
    with binomial:
        pm.set_data(replaced)
        with pytest.raises(ValueError, match=wanted):
            check_data(binomial)
        pm.set_data(before)


@pytest.mark.parametrize("random", [False, True])
def test_a_parameter_of_data_one_of_which_was_forgotten(random):
    with pm.Model() as model:
        effort, depth = pm.Data("effort", np.ones(N)), pm.Data("depth", np.ones(N))
        slope = pm.Normal("slope") if random else 2.0
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=XU)
        lik = vsgp.Poisson(exposure=effort * pm.math.exp(slope * depth))
        gp.likelihood("y", lik, X=pm.Data("x", X), y=pm.Data("seen", COUNTS))
        pm.set_data({"x": X[:5], "seen": COUNTS[:5], "depth": np.ones(5)})
    wanted = "exposure of Poisson .* different lengths: 'depth' with 5, 'effort' with 12. Pass all"
    with pytest.raises(ValueError, match=wanted):
        check_data(model)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.filterwarnings("ignore:White noise in the kernel:UserWarning")
def test_replaced_points_at_one_place_of_the_kernel(noise):
    """They differ in the column that only the mean uses; white noise is another at each."""
    cov, twice = pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0]), XU.copy()
    twice[1, 0] = twice[0, 0]
    if noise:
        cov += pm.gp.cov.WhiteNoise(0.5)
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(mean_func=pm.gp.mean.Linear([0.0, 1.0]), cov_func=cov)
        gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=COUNTS)
        pm.set_data({"u_Xu": twice})
        if noise:
            check_data(model)
            pm.gp.VariationalSparse(cov_func=cov).prior("v", Xu=twice)
        else:
            with pytest.raises(ValueError, match=r"are 3 places in the columns \[0\]"):
                check_data(model)


@pytest.mark.parametrize(
    ("value", "wanted"), [(1.7, "needs y to be .*but row 2 is 1.7"), (np.nan, "holds nan in row 2")]
)
def test_counts_are_whole_before_they_are_cut(value, wanted):
    """PyMC casts observations of counts to integers."""
    model = model_of(vsgp.Poisson, COUNTS.astype("float64"))
    model.set_data("seen", np.where(np.arange(N) == 2, value, COUNTS))
    with pytest.raises(ValueError, match=wanted):
        check_data(model)


def test_before_they_are_used(binomial):
    with binomial:
        stage = vsgp.fit_gaussian(maxiter=1, progressbar=False)
        vsgp.check_model()
        pm.set_data({"seen": COUNTS - 1})
        for use in (vsgp.check_model, vsgp.fit_gaussian, lambda: vsgp.sample(stage=stage)):
            with pytest.raises(ValueError, match="row 0 is -1"):
                use()


def test_what_depends_on_random_variables_passes():
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=XU)
        sigma = pm.HalfNormal("sigma") * pm.Data("factor", np.ones(N))
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=COUNTS)
    assert vsgp.check_model(model=model).ok


GRID = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0), indexing="ij"), axis=-1).reshape(-1, 2)
MISSING = np.delete(GRID, 5, axis=0)
SERIES = np.arange(300.0)[:, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("X", "new", "wanted"),
    [
        (GRID, GRID[:8], "other rows"),
        (GRID, np.vstack([GRID, GRID]), "other rows"),
        (GRID, np.roll(GRID, 1, axis=0), "other rows"),
        (MISSING, MISSING[:8], "other rows"),
        (MISSING, GRID, "other rows"),
        (SERIES, SERIES[:200], "other rows"),
        (SERIES, SERIES[::-1], None),
        (SERIES, SERIES + 1e4, "beyond the window"),
        (GRID, GRID / 2, None),
    ],
)
def test_rows_of_features(X, new, wanted):
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(X.shape[1], ls=1.0))
        features = vsgp.inducing.Fourier((2 * np.ptp(X, axis=0) + 1).tolist(), 2)
        gp.prior("u", inducing=features)
        x, y = pm.Data("x", X), pm.Data("seen", np.zeros(len(X)))
        gp.likelihood("y", vsgp.Poisson(), X=x, y=y)
        pm.set_data({"x": new, "seen": np.zeros(len(new))})
    if wanted is None:
        check_data(model)
        assert np.isfinite(model.compile_logp(mode=ONCE)(model.initial_point()))
        return
    with pytest.raises(ValueError, match=wanted):
        check_data(model)


def test_columns_in_another_order():
    table = pd.DataFrame(X, columns=["a", "b"])
    with pm.Model(coords={"column": ["a", "b"]}) as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=table.iloc[::3])
        gp.likelihood("y", vsgp.Poisson(), X=pm.Data("x", table, dims=("row", "column")), y=COUNTS)
        check_data(model)
        pm.set_data({"x": table[["b", "a"]]}, coords={"column": ["b", "a"]})
        with pytest.raises(ValueError, match=r"x are in another order.*\['a', 'b'\]"):
            check_data(model)


def test_results_count_observations():
    model = model_of(vsgp.Poisson, exposure=np.ones(N))
    idata = prior_draws(model, 2)
    del idata["constant_data"]
    uses = (vsgp.check_inducing, vsgp.exact_weights, vsgp.loo)
    with model:
        for data, wanted in (
            ({"x": X[:5]}, "have 5 rows, but there are 12"),
            ({"x": X[:5], "seen": COUNTS[:5]}, "exposure of Poisson has 12 entries"),
        ):
            pm.set_data(data)
            for use in uses:
                with pytest.raises(ValueError, match=wanted):
                    use(idata)


@pytest.mark.slow
def test_scores_say_that_observations_changed():
    """They score those kept with the draws; predictions make no use of any."""
    model = model_of(vsgp.Poisson, exposure=np.ones(N))
    stage = vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    idata = stage.to_datatree(40, random_seed=1)
    options = {"model": model, "progressbar": False}

    def uses():
        yield vsgp.loo(idata, **options).elpd
        yield vsgp.exact_weights(idata, random_seed=1, **options).n_effective
        yield float(vsgp.predict(idata, None, "mean", **options).sum())

    def noted():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for value in uses():
                said = [w for w in caught if "changed since" in str(w.message)]
                assert {w.filename for w in said} <= {__file__}
                yield value, sorted(str(w.message).split()[0] for w in said)
                caught.clear()

    before, silent = zip(*noted(), strict=True)
    assert silent == ([], [], [])
    for data, named in (
        ({"seen": COUNTS + 1}, (["'seen'"], ["'seen'"], [])),
        ({"exposure": np.full(N, 2.0)}, (["'exposure'", "'seen'"],) * 2 + (["'exposure'"],)),
    ):
        pm.set_data(data, model=model)
        after, found = zip(*noted(), strict=True)
        assert found == named
        np.testing.assert_allclose(after, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [pytest.param("NUMBA", marks=pytest.mark.slow), "JAX", RAW],
    ids=["numba", "jax", "python"],
)
def test_inputs_and_observations_of_different_lengths(mode):
    """Numba would take the rows that both have, and JAX those of whole blocks."""
    if mode == "JAX":
        pytest.importorskip("jax", reason="JAX is not installed")
    with pm.Model(coords={"row": range(N)}) as model:
        x, seen = pm.Data("x", X, dims=("row", "column")), pm.Data("seen", COUNTS, dims="row")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(X.shape[1], ls=1.0))
        gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=x, y=seen, dims="row", block_size=6)
    logp, point = model.compile_logp(mode=mode), model.initial_point()
    assert np.isfinite(logp(point))
    model["x"].set_value(np.concatenate([X, X + 0.1]))
    with pytest.raises(ValueError, match="have different lengths. Set all of them anew"):
        logp(point)


def test_data_of_one_number_are_no_rows():
    """One number has no length; the block of rows would look for more of them."""
    with pytest.raises(
        ValueError, match=r"exposure of Poisson has shape \(1,\), but X has 12 rows"
    ):
        model_of(vsgp.Poisson, exposure=np.array([2.0]))


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, N])
def test_draws_of_a_stage_have_its_labels(n):
    """Also where rows had none, or only labels have changed."""
    with pm.Model() as model:
        x, seen = pm.Data("x", X, dims=("row", "column")), pm.Data("seen", COUNTS, dims="row")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=x, y=seen, dims="row")
        stage = vsgp.fit_gaussian(maxiter=1, progressbar=False)
        wanted = stage.to_datatree(3, random_seed=1)
        pm.set_data({"x": X[:n], "seen": COUNTS[:n]}, coords={"row": np.arange(n) + 5})
        found = stage.to_datatree(3, random_seed=1)
    for group in wanted.children:
        xr.testing.assert_equal(found[group].to_dataset(), wanted[group].to_dataset())
    assert model.coords["row"][0] == 5


def test_data_of_a_nested_model_that_are_replaced():
    with pm.Model():
        with pm.Model(name="sub") as sub:
            x = pm.Data("x", X)
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
            gp.prior("u", Xu=XU)
            gp.likelihood("y", vsgp.Poisson(), X=x, y=COUNTS)
        stage = vsgp.fit_gaussian(model=sub, maxiter=1, progressbar=False)
    sub.set_data("x", X + 1.0)
    with pytest.raises(ValueError, match="'sub' is nested in another.* Set its data to what they"):
        stage.to_datatree(3)


@pytest.mark.slow
def test_draws_of_a_stage_are_of_its_data():
    """Not of what `pm.set_data`, or a later stage, put in their place."""
    with pm.Model(coords={"row": np.arange(N) + 100}) as model:
        x, seen = pm.Data("x", X, dims=("row", "column")), pm.Data("seen", COUNTS, dims="row")
        pm.Deterministic("last", x[-1])
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=x, y=seen, dims="row")
        first = vsgp.fit_gaussian(move_inducing=True, maxiter=2, progressbar=False)
        wanted = first.to_datatree(3, random_seed=1)
        pm.set_data({"x": X[:8] + 1.0, "seen": COUNTS[:8] + 1}, coords={"row": np.arange(8)})
        second = vsgp.fit_gaussian(move_inducing=True, maxiter=2, progressbar=False)
        after = {v.name: v.get_value() for v in model.data_vars}
        found, new = (s.to_datatree(3, random_seed=1) for s in (first, second))
    for group in wanted.children:
        xr.testing.assert_equal(found[group].to_dataset(), wanted[group].to_dataset())
    np.testing.assert_array_equal(found["constant_data"]["u_Xu"], first.Xu["u_Xu"])
    np.testing.assert_array_equal(found["posterior"]["last"][0, 0], X[-1])
    np.testing.assert_array_equal(new["observed_data"]["y"], COUNTS[:8] + 1)
    np.testing.assert_array_equal(new["posterior"]["last"][0, 0], X[7] + 1.0)
    for name, value in after.items():
        np.testing.assert_array_equal(model[name].get_value(), value)


def test_scores_warn_of_new_observations_that_are_the_data_themselves():
    rng = np.random.default_rng(0)
    X = np.linspace(0, 5, 12)[:, None]
    with pm.Model() as model:
        y = pm.Data("values", rng.normal(size=12))
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("sigma")), X=X, y=y)
        draws = vsgp.fit_gaussian(progressbar=False).to_datatree(20, random_seed=1)
        before = vsgp.compute_pointwise(draws, extend_inferencedata=False, progressbar=False)
        pm.set_data({"values": y.get_value() + 5.0})
    with pytest.warns(UserWarning, match="'values' of the model changed"):
        after = vsgp.compute_pointwise(
            draws, extend_inferencedata=False, progressbar=False, model=model
        )
    np.testing.assert_allclose(after["log_potential"], before["log_potential"], rtol=1e-12)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_joined_runs_have_the_data_of_one():
    """`xr.concat` gives each of them the data."""
    model = model_of(vsgp.Poisson, exposure=np.ones(N))
    stage = vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    runs = [stage.to_datatree(20, random_seed=seed) for seed in (1, 2)]
    joined = xr.concat(runs, "chain", data_vars="all", join="exact")
    assert joined["constant_data"].sizes["chain"] == 2
    options = {"model": model, "progressbar": False}
    each = [vsgp.predict(run, None, "mean", **options) for run in runs]
    found = vsgp.predict(joined, None, "mean", **options)
    np.testing.assert_allclose(found, xr.concat(each, "chain"), rtol=1e-12)
    assert np.isfinite(vsgp.loo(joined, **options).elpd)
    runs[1]["constant_data"]["exposure"][4] = 2.0
    joined = xr.concat(runs, "chain", data_vars="all", join="exact")
    with pytest.raises(ValueError, match="runs that differ in 'exposure'. Join runs of the same"):
        vsgp.predict(joined, None, "mean", **options)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_data_that_were_rounded_with_the_draws_did_not_change(recwarn):
    model = model_of(vsgp.Poisson, exposure=np.ones(N))
    stage = vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    idata = stage.to_datatree(40, random_seed=1)
    short = idata.map_over_datasets(lambda group: group.astype("float32"))
    scores = [vsgp.loo(t, model=model, progressbar=False).elpd for t in (idata, short)]
    np.testing.assert_allclose(*scores, rtol=1e-4)
    assert not [w for w in recwarn if "changed since" in str(w.message)]


@pytest.mark.parametrize("how", ["sel", "rebuilt", "fewer"])
@pytest.mark.parametrize("what", ["effect", "lengthscale"])
def test_draws_of_parameters_have_the_labels_of_the_model_in_order(what, how):
    """Numbers, such as the group of each row or the column of an input, pick their entries."""
    names = ["a", "b"]
    group = np.repeat([0, 1], N // 2)

    def build(names):
        with pm.Model(coords={"group": names}) as model:
            sizes = pm.LogNormal("sizes", dims="group")
            ls = sizes if what == "lengthscale" else 1.0
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=ls))
            gp.prior("u", Xu=XU)
            code = np.array([names.index("ab"[g]) for g in group])
            exposure = sizes[code] if what == "effect" else 1.0
            gp.likelihood("y", vsgp.Poisson(exposure), X=X, y=COUNTS)
        return model

    model = build(names)
    draws = prior_draws(model)
    draws["posterior"] = draws["posterior"].to_dataset().assign_coords(group=names)
    options = {"progressbar": False}
    vsgp.predict(draws, None, "mean", model=model, **options)
    if how == "sel":
        draws = draws.sel(group=names[::-1])
    elif how == "fewer":
        draws = draws.sel(group=["b"])
    else:
        model = build(names[::-1])
    match = "labels of 'group' in another order than the model"
    if how == "fewer":
        match = r"'sizes' of the model has the shape \(2,\), and that of the draws \(1,\)"
    with pytest.raises(ValueError, match=match):
        vsgp.predict(draws, None, "mean", model=model, **options)
