"""One real fit through all that is done with draws, by weights and by NUTS: no warning anywhere."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

from marks import long
from modes import RAW, of_users

import pymc_vsgp as vsgp

pytestmark = pytest.mark.slow

quiet = {"progressbar": False}
compiled = {"compile_kwargs": {"mode": RAW}}
COUNTS = vsgp.datasets.coal_counts(bins=200)
X = COUNTS["year"].to_numpy()[:, None]
Y = COUNTS["count"].to_numpy()
XNEW = np.linspace(1851.0, 1962.0, 7)[:, None]
DRAWS = 500


def build(kernel, M=15):
    with pm.Model(coords={"bin": COUNTS["year"].to_numpy()}) as model:
        # Long, and bins are short: no single one decides much, and leave-one-out is sound.
        ls = pm.Gamma("ls", 20.0, 1.0)
        variance = pm.Gamma("variance", 2.0, 2.0)
        c = pm.Normal("c", 0.0, 2.0)
        gp = pm.gp.VariationalSparse(
            cov_func=variance * kernel(1, ls=ls), mean_func=pm.gp.mean.Constant(c)
        )
        inputs = pm.Data("X", X, dims=("bin", "feature"))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        width = float(COUNTS["width"].iloc[0])
        gp.likelihood("y", vsgp.Poisson(exposure=width), X=inputs, y=Y, dims="bin")
    return model, gp


def fit(method):
    model, gp = build(pm.gp.cov.ExpQuad)
    with model, of_users():
        idata = vsgp.sample(DRAWS, method=method, tune=300, chains=2, random_seed=1, **quiet)
        pm.sample_posterior_predictive(
            idata, extend_inferencedata=True, random_seed=1, **quiet, **compiled
        )
        pm.compute_log_likelihood(idata, **quiet, **compiled)
        vsgp.compute_pointwise(idata, **quiet)
    return model, gp, idata


@pytest.fixture(scope="module")
def run():
    return fit("auto")


@pytest.fixture(scope="module")
def nuts():
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    return fit("nuts")


@pytest.mark.long
@pytest.mark.parametrize("method", ["run", "nuts"])
def test_numbers(method, request):
    _, _, idata = request.getfixturevalue(method)
    summary = az.summary(idata, round_to="none")
    assert {"ls", "variance", "c", "u[0]", "u[14]"} <= set(summary.index)
    assert summary["r_hat"].max() < 1.03
    assert summary["ess_bulk"].min() > 100
    some = az.extract(idata, num_samples=10, random_seed=1)
    assert some["u"].dims == ("u_inducing", "sample")
    assert az.extract(idata, group="log_predictive").sizes["bin"] == len(Y)


def shown(collection):
    """Whether every panel of a figure shows numbers, or the labels of them."""
    figure = collection.viz["figure"].item()
    figure.canvas.draw()
    panels = [ax for ax in figure.axes if ax.get_visible() and ax.axison]
    lines = [[line.get_xydata() for line in ax.lines] for ax in panels]
    other = [len(ax.collections) + len(ax.patches) + len(ax.texts) for ax in panels]
    drawn = [
        n or any(np.isfinite(xy).all() and len(xy) for xy in of)
        for of, n in zip(lines, other, strict=True)
    ]
    return bool(drawn) and all(drawn)


PLOTS = ["plot_trace", "plot_rank", "plot_forest", "plot_ess", "plot_trace_dist"]


@pytest.mark.parametrize(
    ("plot", "method"), [*((p, "run") for p in PLOTS), *long(*((p, "nuts") for p in PLOTS))]
)
def test_plots_of_the_draws(plot, method, request):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    assert shown(getattr(az, plot)(request.getfixturevalue(method)[2]))
    plt.close("all")


@pytest.mark.long
def test_energy(nuts):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    assert shown(az.plot_energy(nuts[2]))
    plt.close("all")


@pytest.mark.parametrize("plot", ["plot_ppc_rootogram", "plot_loo_pit", "plot_ppc_pit"])
def test_plots_of_the_predictive(plot, run):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    assert shown(getattr(az, plot)(run[2]))
    plt.close("all")


def test_leave_one_out(run):
    model, _, idata = run
    result = vsgp.loo(idata)
    assert result.elpd_i.dims == ("bin",)
    np.testing.assert_array_equal(result.elpd_i["bin"], X[:, 0])
    assert float(result.pareto_k.max()) < result.good_k
    # Away from the data and at them, the probabilities of a fit that is right are uniform.
    pit = az.loo_pit(idata)["y"].values
    assert abs(pit.mean() - 0.5) < 4.0 / np.sqrt(12.0 * len(pit))
    # The group of PyMC is the potential: what the weights are made of.
    np.testing.assert_allclose(
        idata["log_likelihood"]["y"], idata["log_potential"]["y"], rtol=1e-5, atol=1e-6
    )
    assert shown(az.plot_khat(result))
    other_model, _ = build(pm.gp.cov.Matern52)
    other = vsgp.fit_gaussian(model=other_model, **quiet).to_datatree(1000, random_seed=1)
    scores = {"ExpQuad": result, "Matern": vsgp.loo(other, model=other_model, **quiet)}
    table = az.compare(scores)
    assert set(table.index) == set(scores)
    assert np.isfinite(table["elpd"]).all()


def test_predictions(run):
    model, gp, idata = run
    options = {"model": model, "random_seed": 1, "at": [0, 3], **quiet}
    for what in ("f", "mean", "y", "moments", "summary", "quantiles", "density"):
        found = vsgp.predict(idata, XNEW, what, **options)
        assert found.sizes["point"] == len(XNEW)
    check = vsgp.check_inducing(idata, 30, random_seed=0, model=model, **quiet)
    assert check.verdict == "enough"
    moments = vsgp.predict(idata, XNEW, "moments", **options)
    with model:
        gp.conditional("f_new", model["X"], dims="bin")
        before = model["X"].get_value()
        pm.set_data({"X": XNEW}, coords={"bin": XNEW[:, 0]})
        try:
            drawn = pm.sample_posterior_predictive(
                idata,
                var_names=["f_new", "y"],
                predictions=True,
                random_seed=1,
                **quiet,
                **compiled,
            )
        finally:
            pm.set_data({"X": before}, coords={"bin": X[:, 0]})
    drawn = drawn["predictions"]
    assert drawn["y"].dims == ("chain", "draw", "bin")
    np.testing.assert_array_equal(drawn["bin"], XNEW[:, 0])
    # Both are draws given the same draws of u: they differ by noise of known size.
    error = np.sqrt(moments["variance"].mean(["chain", "draw"]) / (2 * DRAWS)).values
    difference = (drawn["f_new"].values - moments["mean"].values).mean(axis=(0, 1))
    assert (np.abs(difference) < 5.0 * error + 1e-6).all()
    rate = vsgp.predict(idata, XNEW, "mean", **options)
    count = drawn["y"].values.mean(axis=(0, 1))
    np.testing.assert_allclose(
        count, rate.mean(["chain", "draw"]), atol=5.0 * np.sqrt(count.max() / (2 * DRAWS))
    )
