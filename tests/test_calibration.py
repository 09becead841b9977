"""Simulation-based calibration."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from marks import long
from pytensor.conditional import ifelse
from scipy import stats

import pymc_vsgp as vsgp

from pymc_vsgp.results import calibration
from pymc_vsgp.results.calibration import Calibration, _Sampler, _shared
from pymc_vsgp.results.plots import plot_calibration

X = np.linspace(0.0, 4.0, 30)[:, None]


def build(y, n_inducing=12, likelihood=None, inducing=None):
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.3, 0.3, initval=1.2)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        Xu = vsgp.inducing.grid(X, n_inducing) if inducing is None else None
        gp.prior("u", Xu=Xu, inducing=inducing)
        gp.likelihood("y", likelihood or vsgp.Poisson(exposure=3.0), X=X, y=y)
    return model


def test_verdict(rng):
    uniform = Calibration({"a": rng.integers(0, 50, size=300)}, 49)
    assert uniform.calibrated
    assert "uniform ranks" in repr(uniform)
    narrow = Calibration({"a": np.where(rng.random(300) < 0.5, 0, 49)}, 49)
    assert not narrow.calibrated
    assert "NOT uniform" in repr(narrow)
    assert "300 replicates (7 by NUTS)" in repr(Calibration(narrow.ranks, 49, n_nuts=7))


@pytest.mark.slow
@pytest.mark.parametrize("n_ranks", [20, 24, 50, 200])
def test_uniform_ranks_are_rejected_as_often_as_said(n_ranks):
    """By simulation, with any number of ranks; and ranks of a posterior too wide are rejected."""
    rng = np.random.default_rng(3)
    draw = lambda: rng.integers(0, n_ranks + 1, size=60)  # noqa: E731  (short, and used once)
    p = np.array([Calibration({"a": draw()}, n_ranks).p_values["a"] for _ in range(300)])
    for level in (0.01, 0.05, 0.2, 0.5):
        # The test is of whole numbers, so it may be a little shy; 3.3 sd of 300 binary outcomes.
        error = 3.3 * np.sqrt(level * (1.0 - level) / 300)
        assert level * 0.6 - error < (p <= level).mean() < level + error
    wide = np.clip(rng.normal(0.5, 0.15, size=60), 0.0, 1.0) * n_ranks
    assert Calibration({"a": wide.round().astype(int)}, n_ranks).p_values["a"] < 1e-3


def test_p_value_is_that_of_simulated_ranks():
    n, n_ranks = 50, 11
    rng = np.random.default_rng(4)
    draw = rng.integers(0, n_ranks + 1, size=(20_001, n))
    below = np.stack([(draw < z).sum(axis=1) for z in range(1, n_ranks + 1)], axis=1)
    z = np.arange(1, n_ranks + 1) / (n_ranks + 1)
    tails = np.minimum(stats.binom.cdf(below, n, z), stats.binom.sf(below - 1, n, z)).min(axis=1)
    for i in np.argsort(tails)[[200, 1000, 4000]]:
        wanted = (tails <= tails[i] + 1e-12).mean()
        p = Calibration({"a": draw[i]}, n_ranks).p_values["a"]
        assert abs(p - wanted) < 4.0 * np.sqrt(wanted / 20_000)


def test_band_holds_the_curves_that_are_not_rejected():
    rng = np.random.default_rng(5)
    found = []
    for _ in range(200):
        ranks = {"a": (25 * rng.beta(1.0, 1.5, size=50)).astype(int), "b": np.arange(50) % 25}
        result = Calibration(ranks, 24)
        low, high = result.band("a")
        inside = (low <= result.below("a")) & (result.below("a") <= high)
        assert inside.all() == (result.p_values["a"] > 0.005)
        found.append(inside.all())
    assert 10 < sum(found) < 190


@pytest.mark.parametrize("kind", ["ecdf", "hist"])
def test_plot(kind, rng):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    low = rng.integers(0, 25, size=100)
    result = Calibration({"a": rng.integers(0, 50, size=100), "b": low}, 49)
    axes = plot_calibration(result, kind=kind)
    assert [ax.get_title(loc="left") for ax in axes] == ["a", "b: not uniform"]
    assert "99% of uniform" in axes[0].get_legend_handles_labels()[1][0]
    assert not any(ax.get_legend() for ax in axes) and len(axes[0].figure.legends) == 1
    if kind == "ecdf":
        # Half of the range has all ranks, so that the curve is half a unit above.
        curve = axes[1].lines[-1]
        np.testing.assert_allclose(max(curve.get_ydata()), 0.5, atol=0.06)
        band = axes[0].collections[0].get_paths()[0].vertices
        assert 0.1 < band[:, 1].max() < 0.25  # 99.5 % of 100: 1.73 / sqrt(100), more or less
    _, given = plt.subplots()
    (same,) = plot_calibration(result, var_names=["a"], kind=kind, ax=given)
    assert same is given
    same.figure.canvas.draw()
    plt.close("all")


def test_refusals_of_the_plot(rng):
    result = Calibration({"a": rng.integers(0, 50, size=100)}, 49)
    with pytest.raises(TypeError, match="not a Calibration. Pass the result"):
        plot_calibration(result.ranks)
    with pytest.raises(ValueError, match="kind is 'bars'"):
        plot_calibration(result, kind="bars")
    with pytest.raises(ValueError, match=r"no ranks of \['z'\]. Choose from"):
        plot_calibration(result, var_names=["z"])
    with pytest.raises(ValueError, match="Choose from"):
        plot_calibration(result, var_names=[])


def test_bad_input():
    with pytest.raises(ValueError, match="20 replicates say little.*Take 50 or more"):
        vsgp.calibrate(build, np.ones(30), 20)
    with pytest.raises(ValueError, match="tune is 0. Pass a whole number, 1 or more"):
        vsgp.calibrate(build, np.ones(30), 50, tune=0)
    with pytest.raises(ValueError, match="n_ranks is 'a'. Pass a whole number"):
        vsgp.calibrate(build, np.ones(30), 50, n_ranks="a")
    for y in (list("abc" * 10), pd.Categorical(list("abc" * 10)), None):
        with pytest.raises(TypeError, match="numbers are needed. Pass numbers, such as the codes"):
            vsgp.calibrate(build, y, 50)
    with pytest.raises(TypeError, match="y is a masked array.*Drop the masked rows"):
        vsgp.calibrate(build, np.ma.masked_array(np.ones(30, int), np.arange(30) == 2), 50)
    with pytest.raises(TypeError, match="build returned NoneType, not a model"):
        vsgp.calibrate(lambda y: None, np.ones(30), 50)
    with pytest.raises(ValueError, match="a rank is among 1 to 20 draws.*Raise draws"):
        vsgp.calibrate(build, np.ones(30), 50, draws=20)


def test_times_that_stay_censored(monkeypatch):
    """Draws are times of events, so censoring has to be of them."""

    def censored(y):
        return build(pt.minimum(y, 2.0), likelihood=vsgp.Weibull(1.5, censored=pt.ge(y, 2.0)))

    first = vsgp.Weibull(1.5, censored=np.arange(30) == 0)
    with pytest.raises(ValueError, match=r"Draws of Weibull are times .* Let build censor its"):
        vsgp.calibrate(lambda y: build(y, likelihood=first), np.ones(30), 50)
    monkeypatch.setattr(calibration, "_from_prior", lambda *args: 1 / 0)
    none = vsgp.Weibull(1.5, censored=np.zeros(30))
    for right in (censored, lambda y: build(y, likelihood=none)):
        with pytest.raises(ZeroDivisionError):
            vsgp.calibrate(right, np.ones(30), 50)


def conjugate(y):
    """Normal noise and inducing inputs at the data: the posterior of u is known."""
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=1.0))
        gp.prior("u", Xu=X[::3], jitter=1e-10)
        gp.likelihood("y", vsgp.Gaussian(0.5), X=X[::3], y=y)
    return model


def posterior_of(y):
    r = np.sqrt(3.0) * np.abs(X[::3] - X[::3].T)
    K = (1.0 + r) * np.exp(-r)
    gain = K @ np.linalg.inv(K + 0.25 * np.eye(len(K)))
    return gain @ y, K - gain @ K


def bright(y):
    """Counts beyond those of a byte."""
    return build(y, likelihood=vsgp.Poisson(exposure=1000.0))


@pytest.mark.parametrize(
    ("make", "y", "dtype"),
    [
        (conjugate, np.zeros(10, int), "float64"),
        (bright, np.ones(30, "int8"), "int64"),
        (bright, np.ones(30, int), "int64"),
        (bright, np.ones(30), "int64"),
    ],
)
def test_data_are_as_they_were_drawn(make, y, dtype, monkeypatch, caplog):
    """Not cast to the type of the observations that the model was built with."""
    seen = []

    class Seen(_Sampler):
        def __init__(self, model, shared, draws, tune):
            self.model, self.shared, self.n_nuts, self.inducing = model, shared, 0, {"u"}

        def __call__(self, y, seed):
            self.shared.set_value(y)
            seen.append(self.model.rvs_to_values[self.model["y"]].eval())
            return {"u": np.zeros((49, 3))}

    monkeypatch.setattr("pymc_vsgp.results.calibration._Sampler", Seen)
    with caplog.at_level("INFO"):
        vsgp.calibrate(make, y, 50, draws=49, random_seed=3, progressbar=False)
    assert "Sampling: [" not in caplog.text  # of PyMC, where nothing is sampled yet
    seen = np.array(seen)
    assert seen.dtype == dtype
    if make is conjugate:
        assert (seen % 1 != 0).all()
    else:
        assert 1000 < seen.max() and 0 <= seen.min()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "shift"), [(1.0, 0.0), (0.3, 0.0), (1.0, 0.7)])
def test_ranks_of_known_draws(width, shift, monkeypatch):
    """Of the posterior, of what is too narrow, and of what is beside it."""

    class Known(_Sampler):
        def __call__(self, y, seed):
            self.inducing = {"u"}
            mean, covariance = posterior_of(y)
            rng, sd = np.random.default_rng(seed), np.sqrt(np.diag(covariance))
            draws = rng.multivariate_normal(mean, width**2 * covariance, size=self.draws)
            return {"u": draws + shift * sd}

    monkeypatch.setattr("pymc_vsgp.results.calibration._Sampler", Known)
    result = vsgp.calibrate(conjugate, np.ones(10), 60, draws=98, random_seed=3, progressbar=False)
    assert set(result.ranks) == {"u[0]", "u[4]", "u[9]"}
    assert result.calibrated == (width == 1.0 and shift == 0.0), result


@pytest.mark.slow
def test_what_is_compiled_once_serves_all_data():
    shared = pytensor.shared(np.ones(10), name="calibration_y")
    run = _Sampler(conjugate(shared), shared, 300, 0)
    for seed, y in enumerate((np.sin(2.0 * X[::3, 0]), 3.0 - X[::3, 0])):
        mean, covariance = posterior_of(y)
        stage, u = run.fitter(), run(y, seed)["u"]
        # By independent draws: normal noise leaves nothing to weigh.
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose((u.mean(axis=0) - mean) / sd, 0.0, atol=4.0 / np.sqrt(300))
        np.testing.assert_allclose(u.std(axis=0), sd, rtol=4.0 / np.sqrt(600))
        np.testing.assert_allclose(run.fitter().mean["u"][0], mean, atol=1e-6)
        assert seed == 0 or abs(stage.mean["u"][0] - mean).max() > 0.1  # of the data before
    assert run.n_nuts == 0


@pytest.mark.parametrize(
    "inducing",
    [vsgp.inducing.Fourier(8.0, 8), *long(None, vsgp.inducing.NearestNeighbors(X, m=9))],
)
@pytest.mark.slow
def test_weights_are_in_the_coordinates_of_each_stage(inducing):
    """Proposals in others would be refused, and NUTS draw for all data sets."""
    shared = pytensor.shared(np.ones(30, dtype=int), name="calibration_y")
    run = _Sampler(build(shared, inducing=inducing), shared, 100, 0)
    for seed, mean in enumerate((np.exp(np.sin(2.0 * X[:, 0])), 3.0 + X[:, 0])):
        run(np.random.default_rng(seed).poisson(3.0 * mean), seed)
    assert run.n_nuts == 0


@pytest.mark.slow
def test_a_density_that_takes_one_point_at_a_time_is_left_to_nuts():
    shared = pytensor.shared(np.ones(30), name="calibration_y")
    with pm.Model():
        sigma = pm.HalfNormal("sigma")
        # Points may differ in which graph they take.
        lik = vsgp.StudentT(4.0, ifelse(pt.gt(sigma, 1.0), sigma, 0.5 + sigma / 2.0))
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=X[::6])
        gp.likelihood("y", lik, X=X, y=shared)
        run = _Sampler(pm.modelcontext(None), shared, 8, 8)
    assert run.weigher is None


@pytest.mark.slow
def test_sampler_draws_from_the_posterior_of_each_data_set():
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    shared = pytensor.shared(np.ones(10), name="calibration_y")
    run = _Sampler(conjugate(shared), shared, 400, 100)
    for seed, y in enumerate((np.sin(2.0 * X[::3, 0]), 3.0 - X[::3, 0])):
        mean, covariance = posterior_of(y)
        sd = np.sqrt(np.diag(covariance))
        u = run(y, seed)["u"]
        # As many draws as a quarter of them, at the least, would be if they were independent.
        np.testing.assert_allclose((u.mean(axis=0) - mean) / sd, 0.0, atol=4.0 / np.sqrt(100))
        np.testing.assert_allclose(u.std(axis=0), sd, rtol=4.0 / np.sqrt(200))


def trend(shared):
    """Many Fourier coefficients, and a covariate in the mean function."""
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        mean = pm.gp.mean.Linear(coeffs=pt.stack([0.0, b[1]]), intercept=b[0])
        ls = pm.LogNormal("ls", 0.3, 0.3)
        cov = pm.gp.cov.ExpQuad(2, ls=ls, active_dims=[0])
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.Fourier(9.0, 76, covariates=(0.0,)))
        gp.likelihood("y", vsgp.Poisson(exposure=3.0), X=np.column_stack([X, X**2]), y=shared)
    return model


@pytest.mark.parametrize(
    ("make", "level", "n_inducing"),
    [
        pytest.param(
            partial(build, inducing=vsgp.inducing.NearestNeighbors(X, m=9)),
            "u",
            30,
            marks=pytest.mark.long,
        ),
        (partial(build, inducing=vsgp.inducing.Fourier(9.0, 76)), "u", 153),
        pytest.param(trend, "b", 153, marks=pytest.mark.long),
    ],
    ids=["neighbors", "coefficients", "covariate"],
)
@pytest.mark.slow
def test_nuts_takes_what_weights_refuse(make, level, n_inducing, monkeypatch):
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    refuse = SimpleNamespace(interrupted=False, refused="for the test", may_be_elsewhere=False)
    monkeypatch.setattr("pymc_vsgp.results.calibration.weigh", lambda *_, **__: refuse)
    shared = _shared(np.ones(30, dtype=int))
    run = _Sampler(make(shared), shared, 20, 50)
    means = []
    for seed, rate in enumerate((1.0, 20.0)):
        counts = np.random.default_rng(seed).poisson(rate, size=30)
        posterior = run(counts, seed)
        assert posterior["u"].shape == (20, n_inducing)
        assert all(np.isfinite(x).all() for x in posterior.values())
        means.append(posterior[level][:, 0].mean())
    assert run.n_nuts == 2
    assert means[1] > means[0] + 1.0


def test_nuts_of_pymc_takes_what_weights_refuse_where_there_is_no_nutpie(monkeypatch):
    """Asked for by name: left to choose, it would try the weights again."""
    refuse = SimpleNamespace(interrupted=False, refused="for the test", may_be_elsewhere=False)
    shared, asked = _shared(np.ones(10)), {}

    def sample(draws, **kwargs):
        asked.update(kwargs, draws=draws)
        names = [rv.name for rv in run.model.free_RVs]
        of_each = {n: (("chain", "draw"), np.zeros((1, draws))) for n in names}
        return {"posterior": xr.Dataset(of_each)}

    monkeypatch.setattr("pymc_vsgp.results.calibration.weigh", lambda *_, **__: refuse)
    monkeypatch.setattr("pymc_vsgp.results.calibration.sample", sample)
    run = _Sampler(conjugate(shared), shared, 8, 5)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    assert run(np.ones(10), 3)["u"].shape == (8,)
    assert (asked["method"], asked["draws"], asked["tune"]) == ("nuts", 8, 5)
    assert run.n_nuts == 1
