"""Every picture, without looking at it: what is on the axes."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

from marks import long
from prior_draws import prior_draws

import pymc_vsgp as vsgp

from pymc_vsgp.results.inducing_check import check_inducing
from pymc_vsgp.results.plots import plot_elbo, plot_function, plot_inducing
from pymc_vsgp.results.plots.style import color_of, legend

plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
N = 30


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def build(X, y, likelihood, M=6, n_outputs=1):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4, 2)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(X.shape[1], ls=ls))
        Xu = vsgp.inducing.kmeans(X, M, random_seed=1)
        gp.prior("u", Xu=Xu, n_outputs=n_outputs)
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


def fit(X, y, likelihood, **kwargs):
    model = build(X, y, likelihood)
    stage = vsgp.fit_gaussian(model=model, progressbar=False, maxiter=3, **kwargs)
    return model, stage, stage.to_datatree(20, random_seed=1)


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    return fit(X, np.sin(X[:, 0]) + 0.2 * rng.normal(size=N), vsgp.Gaussian(0.2))


@pytest.fixture(scope="module")
def plane():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (N, 2))
    return fit(X, rng.poisson(np.exp(X[:, 0])), vsgp.Poisson(), move_inducing=True)


@pytest.mark.parametrize("what", [None, "f", "y"])
def test_a_function_of_one_input(what, line):
    model, _, idata = line
    _, given = plt.subplots()
    ax = plot_function(idata, what=what, n_lines=3, ax=given, model=model)
    assert ax is given
    labels = ax.get_legend_handles_labels()[1]
    center = "mean" if what is None else "median"
    assert {"50% interval", "89% interval", center, "inducing inputs"} <= set(labels)
    assert "data" in labels
    assert len(ax.lines) == 1 + 3 + 1  # the center, draws, inducing inputs
    ax.figure.canvas.draw()


def test_bands_hold_the_data(line):
    model, _, idata = line
    ax = plot_function(idata, what="y", ci_prob=0.99, model=model, inducing=False)
    low, high = ax.dataLim.intervaly
    assert low < -0.9
    assert high > 0.9
    bare = plot_function(idata, data=False, inducing=False, model=model)
    assert not bare.get_title()
    assert bare.get_ylabel() == "mean of y"


def test_data_are_in_the_units_of_the_mean(line):
    """Counts over hours are not shown beside a mean per hour."""
    X, hours = line[0]["y_X"].get_value(), np.linspace(1.0, 20.0, N)
    counts = np.arange(N)
    for own, other, shown in (
        (hours, None, False),  # f: its mean has no hours at new inputs
        (hours, 1.0, False),
        (hours, hours, True),
        (2.0, None, True),
        (2.0, np.full(N, 2.0), True),
        (2.0, 1.0, False),
        (1.0, 1.0, True),
    ):
        model = build(X, counts, vsgp.Poisson(exposure=own))
        idata = prior_draws(model, 4)
        options = {"model": model, "n_points": N}
        if other is not None:
            options["likelihood"] = vsgp.Poisson(exposure=other)
        ax = plot_function(idata, **options)
        assert ("data" in ax.get_legend_handles_labels()[1]) == shown, (own, other)
    ax = plot_function(idata, data=False, **options)
    assert "data" not in ax.get_legend_handles_labels()[1]


@pytest.mark.parametrize("Xnew", [[[2.0]], [[2.0], [2.0]]])
def test_a_single_input_has_bars(Xnew, line):
    """The panel has a width, so that they can be seen."""
    model, _, idata = line
    options = {"model": model, "random_seed": 1}
    ax = plot_function(idata, Xnew, what="y", n_lines=3, ci_prob=[0.5, 0.9], **options)
    wide, narrow = (np.array(c.get_segments())[:, :, 1].T for c in ax.collections[:2])
    found = [wide[0], narrow[0], ax.lines[0].get_ydata(), narrow[1], wide[1]]
    q = [0.05, 0.25, 0.5, 0.75, 0.95]
    wanted = vsgp.predict(idata, Xnew, "quantiles", quantiles=q, of="y", **options)
    np.testing.assert_allclose(found, wanted)
    assert np.ptp(ax.get_xlim()) > 5.0  # that of the data
    bare = plot_function(idata, Xnew, what="y", data=False, inducing=False, model=model)
    for some in (ax, bare):
        some.figure.canvas.draw()
        (low, high), (left, right) = some.get_ylim(), some.get_xlim()
        at = np.concatenate([s for c in some.collections[:2] for s in c.get_segments()])
        assert low < at[:, 1].min() and at[:, 1].max() < high
        assert left < 2.0 < right


@pytest.mark.parametrize("big", [False, True])
def test_a_legend_is_within_its_figure_and_above_a_power_of_ten(big):
    _, ax = plt.subplots(figsize=(4.0, 3.0), layout="constrained")
    for k in range(9):
        ax.plot([0, 1], [0, 1e6 if big else 1.0], label=f"class {k}")
    legend(ax, above=True)
    ax.figure.canvas.draw()
    box, offset = ax.get_legend().get_window_extent(), ax.yaxis.get_offset_text()
    assert ax.figure.bbox.x0 <= box.x0 and box.x1 <= ax.figure.bbox.x1
    assert box.y1 <= ax.figure.bbox.y1
    assert bool(offset.get_text()) == big
    assert not (big and box.overlaps(offset.get_window_extent()))


@pytest.mark.slow
@pytest.mark.parametrize("family", [vsgp.Gaussian(0.2), vsgp.Poisson()])
def test_bands_of_the_mean_are_those_of_the_exact_process(family):
    """They go back to the prior far from the inducing inputs, where u says nothing of f."""
    counts = isinstance(family, vsgp.Poisson)
    rng = np.random.default_rng(1)
    X, Xnew = np.linspace(0, 5, 12)[:, None], np.array([[2.2], [7.0], [60.0]])
    f = np.sin(X[:, 0])
    y = rng.poisson(np.exp(f)) if counts else f + 0.2 * rng.normal(size=12)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.5))
        gp.prior("u", Xu=X)
        gp.likelihood("y", family, X=X, y=y)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    options = {"num_samples": None, "data": False, "inducing": False, "random_seed": 1}
    tree = stage.to_datatree(2000, random_seed=1)
    ax = plot_function(tree, Xnew, ci_prob=0.9, model=model, **options)
    vertices = ax.collections[0].get_paths()[0].vertices
    found = [np.sort(np.unique(vertices[np.isclose(vertices[:, 0], x), 1])) for x in Xnew[:, 0]]
    k = lambda a, b: np.exp(-((a - b.T) ** 2) / 2 / 1.5**2)  # noqa: E731  (short, and used thrice)
    K, cross = k(X, X), k(Xnew, X)
    if counts:  # the Gaussian that is closest to the posterior, whose u are the function
        mu, S = np.squeeze(stage.mean["u"]), np.squeeze(stage.covariance["u"])
    else:
        S = np.linalg.inv(np.linalg.inv(K + 1e-8 * np.eye(12)) + np.eye(12) / 0.2**2)
        mu = S @ y / 0.2**2
    A = np.linalg.solve(K + 1e-6 * np.eye(12), cross.T).T
    sd = np.sqrt(1.0 - (A * cross).sum(axis=1) + np.einsum("ij,jk,ik->i", A, S, A))
    wanted = (A @ mu)[:, None] + 1.645 * sd[:, None] * [-1.0, 1.0]
    wanted = np.exp(wanted) if counts else wanted
    np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.04)
    assert np.ptp(found[2]) > 3.0


def test_a_map_says_how_uncertain_the_mean_is():
    """Its standard deviation is that of the mean given f: far from inducing inputs as a priori."""
    X = np.random.default_rng(1).uniform(0, 1, (8, 2))
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=0.2))
        gp.prior("u", Xu=X)
        gp.likelihood("y", vsgp.Gaussian(0.1), X=X, y=X[:, 0])
    options = {"margin": 5.0, "n_points": 4, "num_samples": None, "model": model, "random_seed": 1}
    axes = plot_function(prior_draws(model, 400), **options)
    shown = axes[1].collections[0].get_array()
    np.testing.assert_allclose(
        np.reshape(shown, (4, 4))[[0, 0, 3, 3], [0, 3, 0, 3]], 1.0, rtol=0.02
    )


@pytest.mark.parametrize("columns", [1, 2])
def test_outputs_are_told_apart_by_their_labels(columns):
    rng = np.random.default_rng(1)
    X, metals = rng.uniform(0, 1, (8, columns)), ["Cd", "Ni", "Zn"]
    with pm.Model(coords={"metal": metals}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(columns, ls=0.2))
        gp.prior("u", Xu=X)
        f = vsgp.Coregionalized(np.array([[1.0], [-1.0], [0.5]]), gp)
        y = rng.normal(size=(8, 3))
        f.likelihood("y", vsgp.Gaussian(0.1), X=X, y=y, dims=("site", "metal"))
    ax = plot_function(prior_draws(model, 20), n_points=5, model=model, random_seed=1)
    if columns == 2:
        assert [a.get_title(loc="left") for a in ax] == [
            "mean of y, Cd, mean",
            "mean of y, Cd, sd",
        ]
        return
    lines = dict(
        zip(ax.get_legend_handles_labels()[1], ax.get_legend_handles_labels()[0], strict=True)
    )
    dots = [c for c in ax.collections if len(c.get_offsets()) == 8]
    for metal, of_metal, column in zip(metals, dots, y.T, strict=True):
        np.testing.assert_array_equal(of_metal.get_offsets()[:, 1], column)
        assert plt.matplotlib.colors.to_hex(
            of_metal.get_facecolor()[0]
        ) == plt.matplotlib.colors.to_hex(lines[metal].get_color())


@pytest.mark.parametrize("what", ["mean", "f"])
def test_a_map_of_f_is_smooth(what):
    """Noise of draws at each input would show as a texture."""
    X = np.random.default_rng(1).uniform(0, 1, (8, 2))
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=0.5))
        gp.prior("u", Xu=X[:2])
        gp.likelihood("y", vsgp.Gaussian(0.1), X=X, y=X[:, 0])
    options = {"n_points": 40, "model": model, "random_seed": 1, "what": what}
    axes = plot_function(prior_draws(model, 20), **options)
    shown = np.reshape(axes[0].collections[0].get_array(), (40, 40))
    assert np.abs(np.diff(shown, axis=0)).max() < 0.1


def test_a_function_of_more_inputs_along_one(rng):
    """The others are held, at values that the data do not have: so there are no dots."""
    X = pd.DataFrame(rng.uniform(0.0, 4.0, (30, 3)), columns=["x", "depth", "time"])
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(3, ls=2.0))
        gp.prior("u", Xu=X[::4])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(2.0, 30))
    draws = vsgp.fit_gaussian(model=model, progressbar=False).to_datatree(200, random_seed=1)
    line = pd.DataFrame({"x": 1.0, "depth": np.linspace(3.0, 0.0, 9), "time": 2.0})
    ax = vsgp.plot_function(draws, line, model=model)
    assert ax.get_xlabel() == "depth" and ax.get_xlim() == (0.0, 3.0)
    assert not any(len(c.get_offsets()) == 30 for c in ax.collections)
    (drawn,) = [x for x in ax.lines if len(x.get_xdata()) == 9]
    mean = vsgp.predict(draws, line, "mean", model=model, progressbar=False).mean(["chain", "draw"])
    np.testing.assert_allclose(drawn.get_ydata(), mean[::-1], rtol=1e-6)
    with pytest.raises(ValueError, match="has 3 inputs"):
        vsgp.plot_function(draws, X, model=model)


@pytest.mark.slow
def test_a_function_of_two_inputs(plane):
    model, stage, idata = plane
    axes = plot_function(idata, n_points=8, model=model)
    assert len(axes) == 2
    labels = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert labels == ["data", "inducing inputs"]
    assert plot_function(idata, n_points=8, what="f", ax=axes[0], model=model) is axes[0]
    moved = plot_inducing(stage)
    assert "before" in moved.get_legend_handles_labels()[1]
    check = plot_inducing(check_inducing(idata, 5, model=model, progressbar=False))
    assert len(check) == 2
    check[0].figure.canvas.draw()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 2])
def test_classes(columns):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (N, columns))
    y = (X[:, 0] > 0).astype(int) + (X[:, 0] > 1)
    model = build(X, y, vsgp.Softmax(3), n_outputs=3)
    idata = prior_draws(model)
    ax = plot_function(idata, n_points=8, model=model)
    if columns == 1:
        assert {"0", "1", "2"} <= set(ax.get_legend_handles_labels()[1])
        assert ax.get_ylabel() == "probability"
    ax.figure.canvas.draw()
    with pytest.raises(ValueError, match="of 'y' have no order.*Plot their prob.*what='mean'"):
        plot_function(idata, n_points=8, what="y", model=model)


ONE, SEVERAL = [1.0, 0.5], [[1.0, 0.5], [0.3, -2.0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "columns"), [(ONE, 1), (SEVERAL, 2), *long((ONE, 2), (SEVERAL, 1))]
)
def test_ordered_classes_of_mixtures(weights, columns):
    """A line for each class, of each output; a map is of the first."""
    rng = np.random.default_rng(1)
    X, y = rng.uniform(-2, 2, (N, columns)), rng.integers(0, 3, (N, 2))
    with pm.Model() as model:
        gps = [vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(columns, ls=1)) for _ in "uv"]
        for gp, name in zip(gps, "uv", strict=True):
            gp.prior(name, Xu=X[:4])
        f = vsgp.Coregionalized(weights, gps)
        lik = vsgp.Ordinal([-0.5, 0.5], classes=["low", "mid", "high"])
        f.likelihood("y", lik, X=X, y=y if np.ndim(weights) == 2 else y[:, 0])
    ax = plot_function(prior_draws(model), n_points=8, model=model)
    labels = ax.get_legend_handles_labels()[1]
    if columns == 1:
        assert ax.get_ylabel() == "probability"
        several = ["0, low", "0, mid", "0, high", "1, low", "1, mid", "1, high"]
        wanted = several if np.ndim(weights) == 2 else ["low", "mid", "high"]
        assert [label for label in labels if label != "inducing inputs"] == wanted
    else:
        assert {"low", "mid", "high"} <= set(labels)
    ax.figure.canvas.draw()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, *long(2)])
def test_noise_that_varies_is_plotted_beside_the_mean(columns):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (N, columns))
    model = build(X, rng.normal(X[:, 0], 0.3), vsgp.HeteroskedasticGaussian(), n_outputs=2)
    idata = prior_draws(model)
    axes = plot_function(idata, n_points=8, num_samples=20, random_seed=1, model=model)
    ticks = np.linspace(
        *(
            end + 0.05 * np.ptp(X, axis=0) * s
            for end, s in ((X.min(axis=0), -1), (X.max(axis=0), 1))
        ),
        8,
    )
    grid = np.stack([g.ravel() for g in np.meshgrid(*ticks.T)], axis=1)
    if columns == 1:
        assert axes.shape == (2,) and axes[1].get_ylabel() == "standard deviation"
        moments = vsgp.predict(idata, grid, "moments", num_samples=20, model=model)
        g = moments.isel({moments["mean"].dims[-1]: 1})
        # The median of the noise is that of exp(g), within the range of its means.
        shown = np.log(axes[1].lines[0].get_ydata())
        low, high = (getattr(g["mean"], m)(["chain", "draw"]).to_numpy() for m in ("min", "max"))
        assert np.all((low < shown) & (shown < high))
    else:
        assert axes.shape == (2, 2)
        assert axes[1, 0].get_title(loc="left") == "standard deviation, mean"
        assert [panel.get_ylabel() for panel in axes.flat] == ["input 1", "", "input 1", ""]
        f = vsgp.predict(idata, grid, "f", num_samples=20, random_seed=1, model=model)
        expected = np.exp(f.isel({f.dims[-1]: 1})).mean(["chain", "draw"]).to_numpy()
        shown = axes[1, 0].collections[0].get_array().ravel()
        np.testing.assert_allclose(shown, expected, rtol=1e-6)
    axes.flat[0].figure.canvas.draw()
    # Whoever asks for the mean, or gives axes, gets one panel.
    if columns == 1:
        alone = plot_function(idata, n_points=8, num_samples=20, what="mean", model=model)
        assert alone.get_ylabel() == "mean of y"


ESTIMATES = {
    "standard deviation": np.std,
    "scale": lambda y: np.median(np.abs(y - 0.3)) / 0.7407,  # of Student's t with 4 d.f.
    "alpha": lambda y: y.mean() ** 2 / (y.var() - y.mean()),
    "concentration": lambda y: (
        (y.mean() * (10 - y.mean()) - y.var()) / (y.var() - y.mean() * (10 - y.mean()) / 10)
    ),
    # A Poisson count of mean exp(0.3) may be zero, too.
    "probability of a structural zero": lambda y: 1 - np.mean(y > 0) / -np.expm1(-np.exp(0.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        vsgp.HeteroskedasticGaussian(),
        vsgp.HeteroskedasticStudentT(4.0),
        vsgp.HeteroskedasticNegativeBinomial(),
        vsgp.HeteroskedasticBetaBinomial(10),
        vsgp.HeteroskedasticZeroInflatedPoisson(),
    ],
    ids=lambda family: type(family).__name__,
)
def test_what_the_noise_function_means(family):
    """A parameter of the distribution, as it can be estimated from draws of it."""
    name, of_g = family.of_noise
    for g in (-1.0, 0.5):
        drawn = pm.draw(family.dist(np.tile([[0.3, g]], (20_000, 1))), random_seed=1)
        np.testing.assert_allclose(ESTIMATES[name](drawn), of_g(g), rtol=0.1)


def test_two_classes_have_contours():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (N, 2))
    model = build(X, (X[:, 0] > 0).astype(int), vsgp.Bernoulli())
    axes = plot_function(prior_draws(model), n_points=8, model=model)
    contours = [c for c in axes[0].collections if hasattr(c, "levels")]
    np.testing.assert_allclose(contours[0].levels, [0.1, 0.5, 0.9])
    (legend_of_both,) = axes[0].figure.legends
    labels = [text.get_text() for text in legend_of_both.get_texts()]
    assert labels == ["0", "1", "inducing inputs"]
    axes[0].figure.canvas.draw()
    # Axes of a figure of one's own have the labels, and what is not plotted has none.
    _, own = plt.subplots()
    plot_function(prior_draws(model), n_points=8, ax=own, model=model)
    assert not own.figure.legends and own.get_legend_handles_labels()[1] == labels
    none = plot_function(prior_draws(model), n_points=8, data=False, inducing=False, model=model)
    assert not none[0].figure.legends


@pytest.mark.slow
def test_inducing_points_of_one_input(line):
    model, stage, idata = line
    _, ax = plt.subplots()
    assert plot_inducing(idata, num_samples=5, ax=ax, model=model) is ax
    moved = plot_inducing(stage)
    assert [t.get_text() for t in moved.get_yticklabels()] == ["u_Xu, before", "u_Xu, after"]


@pytest.mark.parametrize("check", [3, None])
def test_what_is_no_check_says_so(check):
    with pytest.raises(TypeError, match="check is .* Pass a Gaussian stage"):
        plot_inducing(check)


def test_a_check_of_draws_takes_a_seed(line, monkeypatch):
    """Which chooses among many rows where more points would help."""
    model, _, idata = line
    monkeypatch.setattr("pymc_vsgp.results.nested.CANDIDATES", 8)

    def green(seed):
        ax = plot_inducing(idata, num_samples=3, random_seed=seed, model=model)[0]
        (drawn,) = [x for x in ax.lines if x.get_label() == "where more would help"]
        return list(drawn.get_xdata())

    assert green(1) == green(1)
    assert green(1) != green(2)


@pytest.mark.parametrize("n_inputs", [1, 2])
def test_inducing_points_have_the_names_of_their_inputs(n_inputs):
    names = ["day", "depth"][:n_inputs]
    places = np.linspace(0, 3, N)
    places[N // 2 :] += 20.0  # a second season
    table = pd.DataFrame({"day": places, "depth": np.cos(places)})[names]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(n_inputs, ls=1.0))
        gp.prior("u", Xu=table.iloc[::5])
        gp.likelihood("y", vsgp.Poisson(), X=table, y=np.arange(N))
    check = check_inducing(prior_draws(model, 3), model=model, nested=False, progressbar=False)
    stage = vsgp.fit_gaussian(model=model, maxiter=1, move_inducing=True, progressbar=False)
    for shown in (check, stage):
        ax = np.ravel(plot_inducing(shown))[0]
        assert [ax.get_xlabel(), ax.get_ylabel()][:n_inputs] == names
    if n_inputs == 1:  # nothing was looked at between the seasons
        x = plot_inducing(check)[0].lines[0].get_xdata()
        assert len(x) == N + 1 and np.isnan(x[N // 2])


def test_bound(line):
    _, stage, _ = line
    ax = plot_elbo(stage)
    assert len(ax.lines[0].get_xdata()) == len(stage.elbo_history)
    assert "nats" in ax.get_title(loc="left")


def test_refusals(line):
    model, _, idata = line
    with pytest.raises(TypeError, match="not a GaussianStage.*Pass the result"):
        plot_elbo(idata)
    with pytest.raises(ValueError, match="what is 'rate'"):
        plot_function(idata, what="rate", model=model)
    for name, value in {"ci_prob": 95, "margin": "a", "n_points": 2.5, "n_lines": -1}.items():
        with pytest.raises(ValueError, match=f"{name} is {value!r}. Pass a"):
            plot_function(idata, model=model, **{name: value})
    with pytest.raises(TypeError, match="ax is of type int. Pass the axes"):
        plot_function(idata, ax=3, model=model)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(12, 3))
    model = build(X, X[:, 0], vsgp.Gaussian(0.2), M=4)
    idata = prior_draws(model)
    with pytest.raises(ValueError, match="one or two. Pass Xnew with rows along one input"):
        plot_function(idata, model=model)


def test_text_axes_and_data_take_the_colors_of_a_style(line):
    model, stage, idata = line
    with plt.style.context("dark_background"):
        ax = plot_function(idata, what="y", n_points=20, num_samples=5, model=model)
        (dots,) = (c for c in ax.collections if c.get_label() == "data")
        assert np.all(dots.get_facecolor()[:, :3] == 1.0)
        other = plot_elbo(stage)
        for text in (*ax.get_xticklabels(), *other.get_yticklabels(), ax.xaxis.label):
            assert text.get_color() == "white"


@pytest.mark.slow
def test_inducing_points_of_groups():
    """X has a column for the groups, and Xu has none."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        X = np.linspace(0.0, 4.0, 12)[:, None]
        gp.prior("u", X[::4], by="group")
        gp.likelihood("y", vsgp.Poisson(), X=np.c_[X, np.arange(12) % 2], y=np.ones(12, int))
    axes = plot_inducing(prior_draws(model), num_samples=5, model=model)
    assert axes[0].get_xlabel() == "input"
    assert "inducing inputs" in axes[0].get_legend_handles_labels()[1]
    axes[0].figure.canvas.draw()


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_rows_of_a_likelihood_stay_with_their_inputs(mixed):
    """Inputs are sorted for the figure, and thinned for joint draws alone."""
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 5, (N, 1))
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 5))
        process = vsgp.Coregionalized([1.0], gp) if mixed else gp
        process.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.ones(N)))
    idata = prior_draws(model)
    Xnew, e = np.linspace(0, 5, 401)[:, None], np.linspace(1, 100, 401)
    at = rng.permutation(401)
    options = {"model": model, "n_lines": 2, "inducing": False, "data": False, "random_seed": 1}
    shown = plot_function(idata, Xnew[at], likelihood=vsgp.Poisson(e[at]), **options).lines
    mean = vsgp.predict(idata, Xnew, "mean", likelihood=vsgp.Poisson(e), model=model)
    np.testing.assert_allclose(shown[0].get_ydata(), mean.mean(["chain", "draw"]), rtol=1e-10)
    assert len(shown) == 3
    joint = {"joint": True, "num_samples": 2, "random_seed": 1, "model": model}
    f = vsgp.predict(idata, Xnew[::2], "f", progressbar=False, **joint).values.reshape(2, -1)
    if mixed:  # whose weight is 1
        assert f.shape == (2, 201)
    for of_draw, each in zip(shown[1:], f, strict=True):
        np.testing.assert_allclose(of_draw.get_ydata(), e[::2] * np.exp(each), rtol=1e-6)
    with pytest.raises(ValueError, match="exposure of .* has 400 entries, but Xnew has 401 rows"):
        plot_function(idata, Xnew, likelihood=vsgp.Poisson(e[1:]), **options)


def test_each_of_many_has_a_color():
    assert len({color_of(k) for k in range(24)}) == 24
