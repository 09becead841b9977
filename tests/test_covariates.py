"""Covariates beside a function of space: features of some inputs, and a mean of the others."""

import operator

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_gp
import reference_torus

from marks import long
from modes import RAW
from prior_draws import prior_draws
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE
from pymc_vsgp.inducing.spectrum import active_columns

PERIOD, COUNTS, CENTER = (2.5, 3.0), (4, 3), (0.4, 0.1)
LS, VARIANCE = np.array([0.3, 0.5]), 1.3
NAMES = ["rain", "east", "slope", "road", "north"]
SPACE, OTHERS = [1, 4], [0, 2, 3]
quiet = {"progressbar": False}


def table_of(n, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.uniform(0.0, 1.0, (n, 5)), columns=NAMES)
    table["rain"] += 7.0
    return table, rng.poisson(2.0, n).astype(float)


def on_a_grid(n):
    table, y = table_of(n)
    east, north = np.meshgrid(np.linspace(0, 1, 4), np.linspace(0, 1, 5), indexing="ij")
    return table.assign(east=east.ravel(), north=north.ravel()), y


def cov_of(active=SPACE, ls=LS):
    return np.float64(VARIANCE) * pm.gp.cov.Matern52(5, ls=ls, active_dims=active)


def build(table, y, features=None, cov=None, **options):
    features = features or vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER)
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        coeffs = pm.math.stack([b[0], 0.0, b[1], b[2], 0.0])
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Linear(coeffs=coeffs, intercept=0.3), cov_func=cov or cov_of()
        )
        gp.prior("u", inducing=features)
        gp.likelihood("y", vsgp.Poisson(), X=table, y=y, **options)
    return model, gp


def dense(table, v, b):
    """Mean and variance of f by plain numpy."""
    f, gamma, *_ = reference_torus.moments(
        table[["east", "north"]].to_numpy(), LS, VARIANCE, np.array(PERIOD), COUNTS, CENTER, v
    )
    return 0.3 + table[["rain", "slope", "road"]].to_numpy() @ b + f, gamma


AT = {"u_whitened__": np.linspace(-0.3, 0.4, 63), "b": np.array([0.1, -0.2, 0.05])}


def log_density(table, y, point):
    """The model's, by plain numpy."""
    mu, gamma = dense(table, point["u_whitened__"], point["b"])
    expected = np.sum(y * mu - np.exp(mu + gamma / 2.0) - special.gammaln(y + 1.0))
    return expected + sum(stats.norm.logpdf(p).sum() for p in point.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "block_size"), [(table_of, 7), (on_a_grid, None), *long((table_of, False))]
)
def test_log_density(make, block_size):
    table, y = make(20)
    model, _ = build(table, y, block_size=block_size)
    assert model.coords["u_feature"] == tuple(NAMES)
    values = model.value_vars
    logp = model.logp()
    fn = pytensor.function(values, [logp, *pytensor.grad(logp, values)], mode=RAW)
    found, *gradient = fn(*(AT[v.name] for v in values))
    np.testing.assert_allclose(found, log_density(table, y, AT), rtol=1e-9)
    for v, slope in zip(values, gradient, strict=True):
        for j in (0, 2):
            step = 1e-6 * np.eye(len(AT[v.name]))[j]
            up, down = (
                log_density(table, y, AT | {v.name: AT[v.name] + s * step}) for s in (1, -1)
            )
            np.testing.assert_allclose(slope[j], (up - down) / 2e-6, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_kernels_name_columns_in_any_order():
    """Lengthscales go with active_dims as given, periods with the columns of X."""
    table, y = table_of(23)
    model, _ = build(table, y, cov=cov_of(SPACE[::-1], LS[::-1]))
    np.testing.assert_allclose(model.compile_logp(mode=RAW)(AT), log_density(table, y, AT))
    apart = np.float64(VARIANCE) * pm.gp.cov.Matern52(5, ls=LS[1], active_dims=[4])
    with pytest.raises(ValueError, match="columns .4. of 5"):
        build(table, y, cov=apart)


@pytest.fixture(scope="module")
def fitted():
    table, y = table_of(23)
    model, gp = build(table, y)
    return model, gp, prior_draws(model, 40)


@pytest.mark.slow
def test_new_places_with_covariates(fitted):
    """Rows of a table by the names of its columns, which may come in any order."""
    model, gp, idata = fitted
    new = table_of(6, seed=3)[0]
    swapped = new[["north", "road", "rain", "east", "slope"]]
    found = vsgp.predict(idata, swapped, "moments", model=model, **quiet)
    S = reference_torus.moments(
        new[["east", "north"]].to_numpy(), LS, VARIANCE, np.array(PERIOD), COUNTS, CENTER, 0.0
    )[-1]
    # The constant coefficient has the mean, where covariates are zero.
    at_center = 0.3 * np.eye(1, 63)[0]
    post = idata.posterior.isel(chain=0, draw=7)
    v = (post["u"].values - at_center) / np.sqrt(S)
    mu, gamma = dense(new, v, post["b"].values)
    np.testing.assert_allclose(found["mean"][0, 7], mu, rtol=1e-9, atol=1e-9)
    point = {"u": post["u"].values, "b": post["b"].values}
    mean, covariance = gp.predict(swapped, point, model=model)
    np.testing.assert_allclose(mean, mu, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.diag(covariance), gamma, rtol=1e-6)
    with pytest.raises(
        ValueError, match="Xnew has the columns .*, but those of the model are .*'slope'"
    ):
        vsgp.predict(idata, new.drop(columns="slope"), "mean", model=model, **quiet)
    with pytest.raises(ValueError, match="4 columns"):
        vsgp.predict(idata, new.to_numpy()[:, :4], "mean", model=model, **quiet)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")  # few draws
def test_what_one_does_with_draws(fitted):
    model, _, idata = fitted
    with model:
        assert np.isfinite(vsgp.loo(idata, **quiet).elpd)
        assert "63 Fourier coefficients" in repr(vsgp.check_inducing(idata, nested=False, **quiet))


def test_far_away_the_covariates_stay(fitted):
    """Beyond the window the process returns to its prior, and the mean function does not."""
    model, gp, idata = fitted
    new = table_of(2)[0].assign(east=50.0)
    post = idata.posterior.isel(chain=0, draw=0)
    point = {"u": post["u"].values, "b": post["b"].values}
    mean, variance = gp.predict(new, point, diag=True, model=model)
    b = post["b"].values
    np.testing.assert_allclose(mean, 0.3 + new[["rain", "slope", "road"]].to_numpy() @ b, rtol=1e-9)
    np.testing.assert_allclose(variance, VARIANCE, rtol=1e-9)


@pytest.mark.slow
def test_data_may_be_replaced_within_the_window():
    table, y = table_of(23)
    model, _ = build(pd.DataFrame(table), y)
    other = table.assign(rain=5.0, east=table["east"][::-1].to_numpy())
    logp = model.compile_logp(mode=RAW)
    with model:
        pm.set_data({"y_X": other.to_numpy()})
    np.testing.assert_allclose(logp(AT), log_density(other, y, AT), rtol=1e-9)
    with model:  # covariates have no window
        pm.set_data({"y_X": other.assign(rain=1e6).to_numpy()})
    assert np.isfinite(logp(AT | {"b": np.zeros(3)}))
    with model:
        pm.set_data({"y_X": other.assign(north=3.0).to_numpy()})
    assert np.isnan(logp(AT))


def test_for_data_looks_at_the_columns_of_the_kernel():
    table, _ = table_of(40)
    plain = vsgp.inducing.Fourier.for_data(
        table[["east", "north"]], np.float64(VARIANCE) * pm.gp.cov.Matern52(2, ls=LS), random_seed=1
    )
    found = vsgp.inducing.Fourier.for_data(table, cov_of(), random_seed=1)
    for name in ("period", "n_frequencies", "center"):
        assert getattr(found, name) == getattr(plain, name)
    assert found.columns == tuple(NAMES)
    np.testing.assert_allclose(found.covariates, table.to_numpy()[:, OTHERS].mean(axis=0))
    repeats = vsgp.inducing.Fourier.for_data(table, cov_of(), periodic={"north": 1.0})
    assert repeats.periodic == (False, True) and repeats.period[1] == 1.0
    with pytest.raises(ValueError, match="inputs of the kernel are .'east', 'north'"):
        vsgp.inducing.Fourier.for_data(table, cov_of(), periodic={"rain": 1.0})
    with pytest.raises(ValueError, match="2 columns"):
        vsgp.inducing.Fourier.for_data(table[["east", "north"]], cov_of())
    with pytest.raises(ValueError, match="leave covariates to the mean"):
        vsgp.inducing.Fourier.for_data(table, pm.gp.cov.ExpQuad(5, ls=1.0))


@pytest.mark.slow
def test_the_first_coefficient_follows_the_mean_of_the_covariates():
    """So coordinates that the data gave stay right while effects move."""
    table, y = table_of(23)
    features = vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER, covariates=(7.5, 0.5, 0.5))
    model, gp = build(table, y, features)
    b = np.array([1.0, -2.0, 0.3])
    mean = gp._prior.kind.mean.eval({model["b"]: b}, mode=ONCE)
    np.testing.assert_allclose(mean, (0.3 + b @ [7.5, 0.5, 0.5]) * np.eye(1, 63)[0])
    # ... and the log density is that of any other place.
    np.testing.assert_allclose(model.compile_logp(mode=RAW)(AT), log_density(table, y, AT))
    for given in ((1.0,), (1.0,) * 5):
        wrong = vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER, covariates=given)
        with pytest.raises(ValueError, match="Pass 3"):
            build(table, y, wrong)


# --- smooth effects, by a process for each -------------------------------------------------------


def sum_of(table, y, family, W=(1.0, 1.0)):
    """Features of space and points along a covariate."""
    Xu = np.zeros((6, 5))
    Xu[:, 2] = np.linspace(0.0, 1.0, 6)
    with pm.Model() as model:
        space = vsgp.VariationalSparse(cov_func=cov_of())
        space.prior("space", inducing=vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER))
        cov = pm.gp.cov.ExpQuad(5, ls=np.float64(0.4), active_dims=[2])
        slope = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(0.2), cov_func=cov)
        slope.prior("slope", Xu=Xu)
        total = vsgp.Coregionalized(np.array(W), [space, slope])
        total.likelihood("y", family, X=table, y=y)
    return model, total


def dense_sum(table, point):
    f, gamma, *_ = reference_torus.moments(
        table[["east", "north"]].to_numpy(), LS, VARIANCE, np.array(PERIOD), COUNTS, CENTER,
        point["space_whitened__"],
    )  # fmt: skip
    g, left, *_ = reference_gp.moments(
        table[["slope"]].to_numpy(), np.linspace(0.0, 1.0, 6)[:, None], [0.4], 1.0,
        lambda X: np.full(len(X), 0.2),
        point["slope_whitened__"],
    )  # fmt: skip
    return f, g, gamma, left


@pytest.mark.slow
@pytest.mark.parametrize("W", [pytest.param((1.0, 1.0), marks=pytest.mark.long), (0.5, -2.0)])
def test_a_sum_of_processes_is_one_output(W):
    table, y = table_of(20)
    exposure = np.linspace(0.5, 2.0, 20)
    model, total = sum_of(table, y, vsgp.Poisson(exposure=exposure), W)
    rng = np.random.default_rng(1)
    point = {"space_whitened__": 0.4 * rng.normal(size=63), "slope_whitened__": rng.normal(size=6)}
    f, g, gamma, left = dense_sum(table, point)
    mu, spread = W[0] * f + W[1] * g, W[0] ** 2 * gamma + W[1] ** 2 * left
    expected = np.sum(y * (mu + np.log(exposure)) - exposure * np.exp(mu + spread / 2.0))
    expected -= special.gammaln(y + 1.0).sum()
    expected += sum(stats.norm.logpdf(p).sum() for p in point.values())
    np.testing.assert_allclose(model.compile_logp(mode=RAW)(point), expected, rtol=1e-9)
    assert model["y"].type.ndim == 1 and model.named_vars_to_dims["y"] == ("y_obs",)


@pytest.mark.long
@pytest.mark.slow
def test_draws_of_a_sum():
    table, y = table_of(20)
    model, total = sum_of(table, y, vsgp.Poisson())
    with model:
        idata = prior_draws(model, 30)
        rate = vsgp.predict(idata, table[NAMES[::-1]], "mean", **quiet)
    assert rate.shape == (1, 30, 20)
    point = {n: idata.posterior[n].values[0, 3] for n in ("space", "slope")}
    mean, variance = total.predict(table, point, diag=True, model=model)
    np.testing.assert_allclose(rate[0, 3], np.exp(mean + variance / 2.0), rtol=1e-9)
    with model:
        assert total.conditional("f", table[:3], diag=True).type.ndim == 1
        assert total.predictive("y_new", table[:3]).type.ndim == 1


# --- other types of inducing variables -----------------------------------------------------------


@pytest.mark.slow
def test_neighbors_are_near_in_what_the_kernel_sees():
    table, y = table_of(30)
    plain = table[["east", "north"]].to_numpy()
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=cov_of())
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(table, m=3))
        gp.likelihood("y", vsgp.Poisson(), X=table, y=y)
    with pm.Model() as of_space:
        cov = np.float64(VARIANCE) * pm.gp.cov.Matern52(2, ls=LS)
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(plain, m=3))
        gp.likelihood("y", vsgp.Poisson(), X=plain, y=y)
    v = np.linspace(-0.5, 0.5, 30)
    values = [m.compile_logp(mode=RAW)({"u_whitened__": v}) for m in (model, of_space)]
    np.testing.assert_allclose(*values, rtol=1e-9)


def test_neighbors_with_covariates_are_those_without():
    """In a gap too, where they lie all around; a single input is sorted."""
    t = np.r_[np.linspace(0.0, 1.0, 12), np.linspace(3.0, 3.5, 8)]
    rng = np.random.default_rng(4)
    order = rng.permutation(20)
    table = np.column_stack([rng.normal(size=(20, 4)), t[order]])
    gap = np.column_stack([rng.normal(size=(5, 4)), np.linspace(1.4, 2.6, 5)])
    found = []
    for inputs, new, cov in (
        (table, gap, pm.gp.cov.Matern32(5, ls=0.7, active_dims=[4])),
        (table[:, 4:], gap[:, 4:], pm.gp.cov.Matern32(1, ls=0.7)),
    ):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=cov)
            u = gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(inputs, m=4))
            prior = gp._prior.kind
            at = {"u": np.sin(3.0 * t[order])}
            found.append([*gp.predict(new, at, diag=True), *(p.get_value() for p in prior.pattern)])
            assert model.compile_logp(mode=RAW)({"u_whitened__": t}) and u.type.ndim == 1
    for with_covariates, without in zip(*found, strict=True):
        np.testing.assert_allclose(with_covariates, without, rtol=1e-9)
    np.testing.assert_array_equal(found[0][3], np.argsort(table[:, 4]))


@pytest.mark.parametrize("labelled", [True, False])
def test_neighbors_are_distinct_places(labelled):
    """Children of one village are no neighbors of one another."""
    table, _ = table_of(12)
    table = table.assign(east=np.repeat([0.1, 0.5, 0.9], 4), north=np.repeat([0.3, 0.2, 0.7], 4))
    todo = r"Xu.drop_duplicates\(\['east', 'north'\]\)"
    Xu, few = table, table.drop_duplicates(["east", "north"])
    if not labelled:
        todo = r"Xu\[np.unique\(Xu\[:, \[1, 4\]\], axis=0, return_index=True\)\[1\]\]"
        Xu, few = Xu.to_numpy(), few.to_numpy()
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=cov_of())
        with pytest.raises(ValueError, match=f"12 rows of Xu are 3 places .*: {todo}"):
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(Xu))
        assert not model.coords and not model.named_vars
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(few))


def test_points_are_distinct_places():
    """Once they have the covariates of the data nearby, points at one place would be equal."""
    table, _ = table_of(12)
    table = table.assign(east=np.repeat([0.1, 0.5, 0.9], 4), north=np.repeat([0.3, 0.2, 0.7], 4))
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=cov_of())
        with pytest.raises(ValueError, match="12 rows of Xu are 3 places .*: Xu.drop_duplicates"):
            gp.prior("u", Xu=table)
        assert not model.coords and not model.named_vars
        gp.prior("u", Xu=table.drop_duplicates(["east", "north"]))


def test_a_point_without_rows_has_the_average_of_the_nearest_that_has_some():
    """The row that is nearest to the second point is one of the third."""
    X = np.column_stack([[4.0, 5.1, 8.9, 9.3], [1.0, 3.0, 10.0, 20.0]])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(
            cov_func=pm.gp.cov.Matern52(2, ls=1.0, active_dims=[0]),
            mean_func=pm.gp.mean.Linear(coeffs=np.array([0.0, 0.5])),
        )
        gp.prior("u", Xu=np.array([[9.0, 0.0], [0.0, 0.0], [5.0, 0.0]]))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.ones(4, int))
    np.testing.assert_allclose(model["u_Xu"].get_value()[:, 1], [15.0, 2.0, 2.0])


class Site(pm.gp.cov.BaseCovariance):
    """A kernel of somebody's own, which does not say that it uses the last column."""

    def full(self, X, Xs=None):
        other = X if Xs is None else Xs
        return pt.exp(-pt.abs(X[:, -1][:, None] - other[:, -1][None, :]))

    def diag(self, X):
        return pt.ones(X.shape[0])


@pytest.mark.slow
@pytest.mark.parametrize("put", [operator.add, operator.mul])
def test_a_kernel_that_does_not_say_which_columns_it_uses(put):
    """It may use all: none of them is a covariate of the mean, and rows differ in all."""
    X = np.column_stack([np.repeat([0.0, 1.0, 2.0], 4), np.tile([0.5, 1.0, 2.0, 3.0], 3)])
    y, at = np.sin(np.arange(12.0)), np.cos(np.arange(6.0))
    kernel = put(pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0]), Site())
    found = []
    for block_size in (None, False, 5):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=kernel)
            gp.prior("u", Xu=X[::2])
            gp.likelihood("y", vsgp.Gaussian(0.5), X=X, y=y, block_size=block_size)
        np.testing.assert_array_equal(model["u_Xu"].get_value(), X[::2])
        found.append(model.compile_logp(vars=model.observed_RVs, mode=RAW)({"u_whitened__": at}))
    K = kernel(X).eval(mode=RAW)
    Kzz = K[::2, ::2]
    R = np.linalg.cholesky(Kzz + 1e-8 * np.trace(Kzz) / 6 * np.eye(6))
    A = np.linalg.solve(R, K[::2])
    expected = stats.norm.logpdf(y, A.T @ at, 0.5) - 2.0 * (np.diag(K) - np.sum(A**2, axis=0))
    np.testing.assert_allclose(found, expected.sum(), rtol=1e-9)


def test_columns_of_kernels():
    of = active_columns
    space = pm.gp.cov.ExpQuad(3, ls=1.0, active_dims=[0])
    time = pm.gp.cov.Matern32(3, ls=1.0, active_dims=[-1])
    noise, constant = pm.gp.cov.WhiteNoise(0.1), pm.gp.cov.Constant(2.0)
    assert of(2.0 * space + noise + constant, 3) == of(space**2.0, 3) == [0]
    assert of(space * time + noise, 3) == of(constant + (space + time) ** 2.0, 3) == [0, 2]
    assert of(constant, 3) == of(space + Site(), 3) == of(2.0 * (space * Site()), 3) == [0, 1, 2]


KINDS = {
    "points": lambda table: {"Xu": table[:6].to_numpy()},
    "neighbors": lambda table: {"inducing": vsgp.inducing.NearestNeighbors(table.to_numpy(), m=3)},
    "waves": lambda table: {"inducing": vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER)},
    "pairs": lambda table: {
        "inducing": vsgp.inducing.Kronecker(table[["east"]][:4], table[["north"]][:3])
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", *long("points", "neighbors", "waves")])
def test_columns_that_are_counted_from_the_last(kind):
    """As pm.gp takes them."""
    table, y = table_of(15)
    found = []
    for east, north in ((1, 4), (-4, -1)):
        with pm.Model() as model:
            b = pm.Normal("b", shape=5)
            of_east = pm.gp.cov.ExpQuad(5, ls=LS[:1], active_dims=[east])
            cov = of_east * pm.gp.cov.ExpQuad(5, ls=LS[1:], active_dims=[north])
            gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Linear(coeffs=b), cov_func=cov)
            gp.prior("u", **KINDS[kind](table))
            gp.likelihood("y", vsgp.Poisson(), X=table.to_numpy(), y=y)
        n = len(model.initial_point()["u_whitened__"])
        point = {"u_whitened__": np.linspace(-0.3, 0.4, n), "b": np.linspace(-0.1, 0.2, 5)}
        found.append(model.compile_logp(mode=RAW)(point))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_for_data_counts_columns_from_the_last_too():
    table, _ = table_of(15)
    first, last = (
        vsgp.inducing.Fourier.for_data(table, cov_of(active), draws=2)
        for active in (SPACE, [-4, -1])
    )
    assert first == last


def test_data_that_the_user_made_stay_as_they_are():
    table, y = table_of(15)
    with pm.Model() as model:
        mine = pm.Data("u_Xu", table[:6].to_numpy())
        mean = pm.gp.mean.Linear(coeffs=pm.Normal("b", shape=5))
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov_of())
        gp.prior("u", Xu=mine)
        gp.likelihood("y", vsgp.Poisson(), X=table.to_numpy(), y=y)
    np.testing.assert_array_equal(mine.get_value(), table[:6])
    assert np.isfinite(model.compile_logp(mode=RAW)(model.initial_point()))


@pytest.mark.slow
@pytest.mark.parametrize("make", [pd.Series, list, *long(np.array, tuple)])
def test_covariates_are_numbers_in_any_container(make):
    table, y = table_of(20)
    features = vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER, covariates=make([7.5, 0.5, 0.4]))
    assert features.covariates == (7.5, 0.5, 0.4)
    model, _ = build(table, y, features)
    assert np.isfinite(model.compile_logp(mode=RAW)(AT))
    for bad, error in (([7.5, np.nan, 0.4], ValueError), (["a", "b", "c"], TypeError)):
        with pytest.raises(error, match="covariates is"):
            vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER, covariates=make(bad))
    with pytest.raises(ValueError, match="covariates of the Fourier features has 1 entries"):
        build(table, y, vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER, covariates=7.5))


@pytest.mark.slow
def test_suggestions_are_of_the_columns_of_the_kernel():
    table, _ = table_of(60)
    found = vsgp.suggest_inducing(table, cov_of(), residual=0.05, draws=20, random_seed=1)
    plain = vsgp.suggest_inducing(
        table[["east", "north"]],
        np.float64(VARIANCE) * pm.gp.cov.Matern52(2, ls=LS),
        residual=0.05,
        draws=20,
        random_seed=1,
    )
    for kind in ("points", "Fourier"):
        assert found.options[kind].n_inducing == plain.options[kind].n_inducing
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=cov_of())
        gp.prior("u", **found.prior_kwargs)


def test_a_refused_likelihood_leaves_nothing_behind():
    """No averages of covariates, no window, no names of classes, no coords, of data refused."""
    table, y = table_of(12)
    other = table * 3.0 + 1.0

    def model_of(mistake):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(
                mean_func=pm.gp.mean.Linear(coeffs=np.ones(5)), cov_func=cov_of()
            )
            gp.prior(
                "u",
                inducing=vsgp.inducing.Fourier(PERIOD, COUNTS, CENTER),
                n_outputs=2,
                output_dims="kind",
            )
            if mistake:
                names = set(model.named_vars)
                with pytest.raises(ValueError, match="dims names 2 dimensions"):
                    seen = np.where(y > 2, "oak", "elm")
                    gp.likelihood("y", vsgp.Softmax(2), X=other, y=seen, dims=("site", "k"))
                assert set(model.named_vars) == names
                assert model.coords.get("kind") is None
            seen = np.where(y > 2, "fir", "ash")
            gp.likelihood("y", vsgp.Softmax(2), X=table, y=seen, dims="site")
        return model

    found, wanted = model_of(True), model_of(False)
    assert list(found.coords["kind"]) == ["ash", "fir"]
    assert found.coords == wanted.coords
    point = wanted.initial_point()
    point = {n: np.random.default_rng(1).normal(size=v.shape) for n, v in point.items()}
    logps = [m.compile_logp(mode=RAW)(point) for m in (found, wanted)]
    np.testing.assert_allclose(*logps, rtol=1e-12)
