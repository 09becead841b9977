"""One function for each group: the same as separate models with the same theta."""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from marks import long
from modes import REWRITTEN
from prior_draws import prior_draws
from pymc.model.fgraph import clone_model
from pymc.pytensorf import compile

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE
from pymc_vsgp.engine.pointwise import draw_latents
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.inducing.graphs import Moments
from pymc_vsgp.model.at_point import evaluate_at
from pymc_vsgp.model.data import check_data

G, N = 3, 30
NAMES = ["a", "b", "c"]
rng = np.random.default_rng(2)
GROUP = rng.integers(0, G, N)
TIMES = np.linspace(0.0, 4.0, 12)
T = TIMES[rng.integers(0, 12, N)]
X = np.column_stack([T, GROUP])
Y = rng.poisson(2.0, N)
XU = np.linspace(0.0, 4.0, 5)[:, None]
LS, LEVEL = 1.3, 0.4


def theta():
    return pm.Gamma("ls", 3, 2), pm.Normal("level")


def process(ls, level):
    cov = pm.gp.cov.Matern52(1, ls=ls)
    return vsgp.VariationalSparse(cov_func=cov, mean_func=pm.gp.mean.Constant(level))


def build(x=X, y=Y, Xu=XU, names=NAMES, **kwargs):
    with pm.Model(coords={"village": names}) as model:
        gp = process(*theta())
        gp.prior("u", Xu, by="village")
        gp.likelihood("y", vsgp.Poisson(), X=x, y=y, **kwargs)
    model.process = gp
    return model


def separate(Xu=XU):
    """One model with a process of its own for each group."""
    with pm.Model() as model:
        parameters = theta()
        model.processes = [process(*parameters) for _ in range(G)]
        for k, gp in enumerate(model.processes):
            gp.prior(f"u{k}", Xu)
            gp.likelihood(f"y{k}", vsgp.Poisson(), X=X[GROUP == k, :1], y=Y[GROUP == k])
    return model


V = np.random.default_rng(5).normal(size=(G, len(XU)))
AT = {"ls_log__": np.log(LS), "level": np.array(LEVEL)}


def log_density(model, v, mode=ONCE):
    """Log density and its gradient, in the order of the names of v."""
    names = ["ls_log__", "level", *v]
    wrt = [model[n] if n in model.named_vars else model["ls"] for n in ("ls", "level")]
    wrt += [model[n.removesuffix("_whitened__")] for n in v]
    fn = model.compile_fn([model.logp(), model.dlogp(wrt)], mode=mode)
    value, gradient = fn({n: (AT | v)[n] for n in names})
    return float(value), gradient


APART = {f"u{k}_whitened__": V[k] for k in range(G)}


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "block_size"),
    [
        (REWRITTEN, 7),
        *long((REWRITTEN, None), (REWRITTEN, False), ("JAX", 7), ("NUMBA", 7)),
    ],
)
def test_log_density_and_gradient_are_those_of_separate_models(mode, block_size):
    value, gradient = log_density(build(block_size=block_size), {"u_whitened__": V}, mode)
    wanted, slopes = log_density(separate(), APART)
    close(value, wanted)
    close(gradient, slopes)


@pytest.mark.slow
def test_inducing_inputs_that_are_all_inputs_make_it_exact():
    """With Z = X the log density is the prior of the values and the likelihood there."""
    at = np.searchsorted(TIMES, T)
    model = build(Xu=TIMES[:, None])
    v = np.random.default_rng(6).normal(size=(G, len(TIMES)))
    got, _ = log_density(model, {"u_whitened__": v})
    d = np.sqrt(5.0) * np.abs(TIMES[:, None] - TIMES) / LS
    K = (1.0 + d + d**2 / 3.0) * np.exp(-d) + 1e-8 * np.eye(12)
    f = LEVEL + v @ np.linalg.cholesky(K).T
    eta = f[GROUP, at]
    from scipy.special import gammaln
    from scipy.stats import gamma, norm

    likelihood = (Y * eta - np.exp(eta) - gammaln(Y + 1.0)).sum()
    prior = norm.logpdf(v).sum() + norm.logpdf(LEVEL)
    prior += gamma.logpdf(LS, 3, scale=1 / 2) + np.log(LS)
    np.testing.assert_allclose(got, likelihood + prior, rtol=1e-6)


@pytest.mark.slow
def test_gaussian_stage_is_that_of_separate_models():
    found = []
    for model in (build(), separate()):
        bound = Bound(model, mode=ONCE)
        sites = bound.no_sites()
        ev = bound(bound.ravel(model.initial_point()) + 0.2, sites)
        rows = [
            np.concatenate([np.atleast_1d(x) for x in getattr(ev, n)])
            for n in ("linear", "precision")
        ]
        found.append([ev.value, ev.gradient, *rows])
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_a_sum_over_rows_in_an_order_by_their_inputs():
    x = X[np.lexsort((X[:, 0], X[:, 1]))]  # a group after another
    (node,) = block_sums(build(x=x).logp())
    assert node.op.order.repeats == 2


NEW = np.array([[0.3, 0.0], [0.3, 1.0], [2.2, 1.0], [3.9, 2.0]])


@pytest.mark.slow
@pytest.mark.parametrize("diag", [True, False])
def test_predictions_are_those_of_separate_models(diag):
    model, apart = build(), separate()
    point = {"ls": LS, "level": LEVEL, "u": V}
    with model:
        mean, cov = model.process.predict(NEW, point, diag=diag)
    for k, gp in enumerate(apart.processes):
        rows = NEW[:, 1] == k
        with apart:
            m, c = gp.predict(NEW[rows, :1], point | {f"u{k}": V[k]}, diag=diag)
        close(mean[rows], m)
        close(cov[rows] if diag else cov[np.ix_(rows, rows)], c)
        if not diag:
            assert (cov[np.ix_(rows, ~rows)] == 0.0).all()


@pytest.fixture(scope="module")
def sampled():
    model = build()
    with model:
        idata = vsgp.sample(
            40, tune=30, chains=1, random_seed=1, progressbar=False, compile_kwargs={"mode": ONCE}
        )
    return model, idata


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # of forty draws
def test_what_follows_draws(sampled, tmp_path):
    model, idata = sampled
    assert idata["posterior"]["u"].dims == ("chain", "draw", "village", "u_inducing")
    assert list(idata["posterior"]["village"].values) == NAMES
    table = pd.DataFrame({"village": ["b", "a"], "u_feature": [0.3, 0.3]})
    idata.to_netcdf(tmp_path / "draws.nc")
    from xarray import open_datatree

    loaded = open_datatree(tmp_path / "draws.nc")
    other = build()
    got = []
    for m, draws in ((model, idata), (clone_model(model), idata), (other, loaded)):
        with m:
            got.append(
                [
                    vsgp.predict(draws, NEW, "moments", progressbar=False)["mean"].values,
                    vsgp.predict(draws, table, "mean", progressbar=False).values,
                    vsgp.loo(draws, pointwise=True, progressbar=False).elpd_i.values,
                ]
            )
    for a, b in zip(got[0] * 2, got[1] + got[2], strict=True):
        close(a, b)
    assert got[0][2].shape == (N,)
    u = idata["posterior"]["u"].isel(chain=0).values
    at = got[0][0][0] if got[0][0].ndim == 3 else got[0][0]
    assert at.shape == (len(u), len(NEW))
    with model:
        joint = vsgp.predict(idata, NEW, joint=True, progressbar=False, random_seed=1)
        pm.sample_posterior_predictive(idata, progressbar=False)
        assert vsgp.check_model() is not False
        ax = vsgp.plot_function(idata, pd.DataFrame({"u_feature": TIMES, "village": "b"}))
        with pytest.raises(ValueError, match="Pass Xnew with rows of one 'village'"):
            vsgp.plot_function(idata)
        table = vsgp.check_inducing(idata, random_seed=1, progressbar=False).to_dataset()
    assert table["u_Xu"].shape == XU.shape and table["X"].shape == X.shape
    (dots,) = [c for c in ax.collections if len(c.get_offsets()) == (GROUP == 1).sum()][:1]
    np.testing.assert_array_equal(dots.get_offsets()[:, 0], T[GROUP == 1])
    assert joint.shape == (1, 40, len(NEW))


@pytest.mark.slow
@pytest.mark.parametrize("family", [vsgp.Poisson, *long(lambda: vsgp.Gaussian(0.7))])
def test_check_of_inducing_points_is_that_of_one_process(family):
    """Of a process over inputs and groups, whose kernel is zero between groups."""
    all_places = np.column_stack([np.tile(XU, (G, 1)), np.repeat(np.arange(G), len(XU))])
    checks = []
    for together in (False, True):
        with pm.Model(coords={"village": NAMES}) as model:
            ls, level = theta()
            of_time = pm.gp.cov.Matern52(1 + together, ls=ls, active_dims=[0])
            apart = pm.gp.cov.Coregion(2, B=np.eye(G), active_dims=[1])
            gp = vsgp.VariationalSparse(
                cov_func=of_time * apart if together else of_time,
                mean_func=pm.gp.mean.Constant(level),
            )
            if together:
                gp.prior("u", all_places)
            else:
                gp.prior("u", XU, by="village")
            gp.likelihood("y", family(), X=X, y=Y)
            idata = prior_draws(model, 12)
            values = np.random.default_rng(3).normal(size=(1, 12, G * len(XU)))
            u = idata["posterior"]["u"]
            idata["posterior"]["u"] = u.copy(data=0.4 * values.reshape(u.shape))
            checks.append(vsgp.check_inducing(idata, random_seed=1, progressbar=False))
    one, other = checks
    np.testing.assert_array_equal(one.added["u"], other.added["u"])
    assert len(one.added["u"]) == G * len(XU)
    for name in ("missing", "unexplained", "nats", "log_weights", "missing_after"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.moved[:2], other.moved[:2], rtol=1e-6)
    np.testing.assert_array_equal(one.moved.at, other.moved.at)


@pytest.mark.slow
def test_labels_and_numbers_are_the_same_data():
    table = pd.DataFrame({"village": np.array(NAMES)[GROUP], "t": T})
    named = build(x=table)
    assert tuple(named.coords["u_feature"]) == ("t", "village")
    a, b = (log_density(m, {"u_whitened__": V}) for m in (named, build()))
    close(a[0], b[0])


@pytest.mark.slow
def test_a_common_process_pools_the_groups():
    with pm.Model(coords={"village": NAMES}) as model:
        own, everywhere = (
            process(*theta()),
            vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0])),
        )
        own.prior("own", XU, by="village")
        everywhere.prior("common", np.column_stack([XU, np.zeros(len(XU))]))
        f = vsgp.Coregionalized([[1.0, 1.0]], [everywhere, own])
        f.likelihood("y", vsgp.Poisson(), X=X, y=Y[:, None])
        point = {"ls": LS, "level": LEVEL, "own": V, "common": V[0]}
        mean, _ = f.predict(NEW, point, diag=True)
        a, b = (gp.predict(NEW, point, diag=True)[0] for gp in (own, everywhere))
    close(mean[0], a + b)
    assert np.isfinite(model.compile_logp(mode=ONCE)(model.initial_point()))


@pytest.mark.slow
def test_a_picture_of_one_group_with_a_common_process():
    """Whichever of the two comes first."""
    with pm.Model(coords={"village": NAMES}) as model:
        own, everywhere = (
            process(LS, LEVEL),
            vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0])),
        )
        own.prior("own", XU, by="village")
        everywhere.prior("common", np.column_stack([XU, np.zeros(len(XU))]))
        f = vsgp.Coregionalized([1.0, 1.0], [everywhere, own])
        f.likelihood("y", vsgp.Poisson(), X=X, y=Y)
    idata = prior_draws(model, 3)
    ax = vsgp.plot_function(idata, np.column_stack([TIMES, np.ones(12)]), model=model)
    (dots,) = [c for c in ax.collections if len(c.get_offsets()) == (GROUP == 1).sum()][:1]
    np.testing.assert_array_equal(dots.get_offsets()[:, 0], T[GROUP == 1])
    with pytest.raises(ValueError, match="Pass Xnew with rows of one 'village'"):
        vsgp.plot_function(idata, model=model)


@pytest.mark.slow
def test_a_table_with_labels_for_a_common_process():
    """Labels of groups are coded once, also for processes that know none."""
    labels = ["south", "north", "west"]
    table = pd.DataFrame({"village": np.array(labels)[GROUP], "t": T})
    new = pd.DataFrame({"village": np.array(labels)[NEW[:, 1].astype(int)], "t": NEW[:, 0]})
    point = {"own": V, "common": V[0]}
    with pm.Model(coords={"village": labels}) as model:
        own = process(LS, LEVEL)
        everywhere = vsgp.VariationalSparse(
            cov_func=pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0]),
            mean_func=pm.gp.mean.Linear(coeffs=[0.1, 0.4]),
        )
        own.prior("own", XU, by="village")
        everywhere.prior("common", np.column_stack([XU, np.zeros(len(XU))]))
        f = vsgp.Coregionalized([1.0, 1.0], [everywhere, own])
        f.likelihood("y", vsgp.Poisson(), X=table, y=Y)
        for diag in (True, False):
            found, wanted = (f.predict(x, point, diag=diag) for x in (new, NEW))
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        f.conditional("f", new, diag=True)
        f.conditional("same", NEW, diag=True)
        assert f.predictive("y_new", new).type.ndim == 1
    for k in range(2):
        nodes = [model[f"{name}_latent{k}"].owner for name in ("f", "same")]
        (mu, sd), wanted = (evaluate_at(node.op.dist_params(node), point, model) for node in nodes)
        close(mu, wanted[0])
        close(sd, wanted[1])


def test_processes_with_other_groups_are_refused():
    with pm.Model(coords={"village": NAMES, "year": [1, 2, 3]}):
        first, second = process(LS, LEVEL), process(LS, LEVEL)
        first.prior("u1", XU, by="village")
        second.prior("u2", XU, by="year")
        f = vsgp.Coregionalized([1.0, 1.0], [first, second])
        message = "groups by 'village' and by 'year'.* Pass processes with the same"
        with pytest.raises(ValueError, match=message):
            f.likelihood("y", vsgp.Poisson(), X=X, y=Y)
        with pytest.raises(ValueError, match=message):
            f.conditional("f", NEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (np.full(N, 3.0), "has 3 in row 0"),
        (np.full(N, -1.0), "has -1"),
        (GROUP + 0.5, "is the number"),
    ],
)
def test_rows_of_no_group(column, wanted):
    bad = np.column_stack([T, column])
    with pytest.raises(ValueError, match=wanted):
        build(x=bad)
    with pm.Model(coords={"village": NAMES}) as model:
        gp = process(*theta())
        gp.prior("u", XU, by="village")
        gp.likelihood("y", vsgp.Poisson(), X=pm.Data("x", X, dims=("row", "c")), y=Y, dims="row")
        with pytest.raises(ValueError, match=wanted):
            gp.conditional("f", bad)
        pm.set_data({"x": bad})
        with pytest.raises(ValueError, match=wanted):
            check_data(model)
        # Without that check it is no number, and not that of another group.
        assert np.isnan(model.compile_logp(mode=REWRITTEN)(model.initial_point()))


@pytest.mark.slow
def test_no_draws_of_rows_of_no_group():
    with pm.Model(coords={"village": NAMES}) as model:
        gp = process(*theta())
        gp.prior("u", XU, by="village")
        x = pm.Data("x", X, dims=("row", "c"))
        gp.likelihood("y", vsgp.Poisson(), X=x, y=Y, dims="row")
        assert pm.draw(model["y"], mode=ONCE).min() >= 0
        pm.set_data({"x": np.where(np.arange(N)[:, None] == 2, -1.0, X)})
        with pytest.raises(ValueError, match=r"function is nan at some.*let vsgp.check_model\(\)"):
            pm.draw(model["y"], mode=ONCE)
        with pytest.raises(ValueError, match="has -1 in row 2 of its last column"):
            vsgp.check_model()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The RandomType SharedVariables:UserWarning")
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_no_draws_where_the_function_is_nan(mode):
    """Counts given nan are 0 on numba, and a negative binomial looks for one for ever."""
    if mode == "JAX":
        pytest.importorskip("jax", reason="JAX is not installed")
    mu = pt.vector("mu")
    draw = vsgp.Poisson().dist(draw_latents([Moments(mu, pt.ones(2))], None))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Skipping")
        f = compile([mu], draw, mode=mode)
    assert min(f(np.zeros(2))) >= 0
    if mode == "JAX":  # which can't raise
        assert f(np.array([0.0, np.nan]))[1] < 0
        return
    with pytest.raises(ValueError, match="The function is nan at some inputs"):
        f(np.array([0.0, np.nan]))


def test_bad_arguments():
    with pm.Model(coords={"village": NAMES}):
        gp = process(1.0, 0.0)
        with pytest.raises(ValueError, match="no dimension of the model. Name one"):
            gp.prior("u", XU, by="town")
        with pytest.raises(ValueError, match="Pass one of the two"):
            gp.prior("u", XU, by="village", n_outputs=2)
        with pytest.raises(ValueError, match="Pass Xu in place"):
            features = vsgp.inducing.Fourier(n_frequencies=3, period=9.0)
            gp.prior("u", inducing=features, by="village")
        gp.prior("u", XU, by="village")
        with pytest.raises(ValueError, match="'d' in the column 'village'"):
            gp.conditional("f", pd.DataFrame({"t": [1.0], "village": ["d"]}))
        with pytest.raises(ValueError, match="Add the column 'village'"):
            gp.conditional("f", pd.DataFrame({"t": [1.0]}))


@pytest.mark.slow
def test_labels_mean_the_groups_of_the_draws():
    """Also where the model was built again with its groups in another order."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"day": rng.uniform(0.0, 10.0, 30), "site": list("nsw") * 10})

    def build(sites):
        with pm.Model(coords={"site": sites}) as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=3.0))
            gp.prior("u", Xu=np.linspace(0.0, 10.0, 4)[:, None], by="site")
            gp.likelihood("y", vsgp.Poisson(), X=table, y=np.ones(30))
        return model

    model = build(["n", "s", "w"])
    idata = vsgp.fit_gaussian(model=model, progressbar=False).to_datatree(5, random_seed=1)
    idata["posterior"]["u"] = idata["posterior"]["u"] + xr.DataArray([0.0, 9.0, 18.0], dims="site")
    new = pd.DataFrame({"day": 5.0, "site": ["w", "n", "s"]})
    wanted = vsgp.predict(idata, new, "moments", model=model, progressbar=False)["mean"]
    assert wanted[0, 0, 0] > wanted[0, 0, 2] > wanted[0, 0, 1]
    for sites in (["w", "n", "s"], ["s", "w", "n"]):
        other = build(sites)
        found = vsgp.predict(idata, new, "moments", model=other, progressbar=False)["mean"]
        np.testing.assert_allclose(found, wanted)
    with pytest.raises(ValueError, match="3 groups along 'site', and the model has 4. Build the"):
        vsgp.predict(idata, new, "f", model=build(list("nsew")), progressbar=False)


def test_a_process_beside_groups_has_their_column_last():
    table = pd.DataFrame({"site": ["n", "s", "n", "s"], "visit": [0.0, 1.0, 2.0, 0.0]})
    Xu = pd.DataFrame({"site": 0.0, "visit": [0.0, 1.0, 2.0]})

    def build(table, Xu):
        with pm.Model(coords={"site": ["n", "s"]}) as model:
            kernel = pm.gp.cov.Matern52(2, ls=2.0, active_dims=[list(Xu).index("visit")])
            common = vsgp.VariationalSparse(cov_func=kernel)
            own = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            common.prior("common", Xu=Xu)
            own.prior("own", Xu=np.array([[0.0], [1.0], [2.0]]), by="site")
            f = vsgp.Coregionalized([1.0, 1.0], [common, own])
            f.likelihood("y", vsgp.Gaussian(0.3), X=table, y=[0.1, -0.2, 0.4, 0.3])
        return model

    last = ["visit", "site"]
    known = build(table[last], Xu[last])
    with pytest.raises(ValueError, match="'common' has it before others"):
        build(table, Xu)
    again = build(table, Xu[last])  # columns of the table are in the order of Xu
    rng = np.random.default_rng(0)
    point = {k: rng.normal(size=np.shape(v)) for k, v in known.initial_point().items()}
    lp = [m.compile_logp(mode="FAST_COMPILE")(point) for m in (known, again)]
    np.testing.assert_allclose(*lp, rtol=1e-12)


def test_dask_rows_are_of_a_group_and_go_in_pieces(monkeypatch):
    pytest.importorskip("dask", reason="dask is not installed")
    from pymc_vsgp.results import prediction

    model = build()
    idata, whole, lengths = prior_draws(model), prediction.evaluate, []

    def evaluate(fit, plan, X, *args):
        lengths.append(len(X))
        return whole(fit, plan, X, *args)

    options = {"model": model, "progressbar": False}
    wanted = vsgp.predict(idata, X, "mean", **options)
    monkeypatch.setattr(prediction, "evaluate", evaluate)
    rows = xr.DataArray(X, dims=("row", "input"))
    lazy = vsgp.predict(idata, rows.chunk(row=20), "mean", chunk_size=8, **options)
    lengths.clear()  # a trial of one row
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), wanted, rtol=1e-12)
    assert sorted(lengths) == [2, 4, 8, 8, 8]
    rows[3, 1] = G
    lazy = vsgp.predict(idata, rows.chunk(row=20), "mean", **options)
    with pytest.raises(ValueError, match="Xnew .* 3 "):
        lazy.compute(scheduler="sync")
