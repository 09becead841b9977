"""Are there enough inducing points: against exact evidence, and no false alarm."""

import dataclasses

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import reference_gp
import xarray as xr

from marks import long
from prior_draws import prior_draws
from scipy import stats

import pymc_vsgp as vsgp

from pymc_vsgp.model.data import check_data
from pymc_vsgp.results import certificate, refitted
from pymc_vsgp.results.certificate import evidence_bounds, has_bounds
from pymc_vsgp.results.draws import Fitted
from pymc_vsgp.results.exactness import exact_weights
from pymc_vsgp.results.inducing_check import check_inducing
from pymc_vsgp.results.nested import more_points
from pymc_vsgp.results.prediction import predict
from pymc_vsgp.results.refitted import compare_stages, others_of, shift_of

N, SIGMA = 80, 0.3
GRID = np.exp(np.linspace(-2.0, 1.5, 71))
quiet = {"progressbar": False}


@pytest.fixture
def data():
    """Of each test the same, whichever ran before it."""
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 10, N))[:, None]
    return X, np.sin(2 * X[:, 0]), rng


def build(X, y, M, likelihood, inducing=None):
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0, 1)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M) if inducing is None else None, inducing=inducing)
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


def fit(model, n=200):
    return vsgp.fit_gaussian(model=model, **quiet).to_datatree(n, random_seed=1)


def evidence(X, y, M=None):
    """Log evidence at each lengthscale: of the exact process, or its bound for M points."""
    if M is None:
        return np.array(
            [
                stats.multivariate_normal.logpdf(
                    y,
                    np.zeros(N),
                    reference_gp.ard_kernel(X, X, [ls], 1.0) + SIGMA**2 * np.eye(N),
                )
                for ls in GRID
            ]
        )
    Z = vsgp.inducing.grid(X, M)
    zero = lambda x: np.zeros(len(x))  # noqa: E731  (short, and used once)
    return np.array([reference_gp.collapsed_bound(X, y, Z, [ls], 1.0, zero, SIGMA) for ls in GRID])


def mean_and_sd(log_evidence):
    log_p = log_evidence + stats.norm.logpdf(np.log(GRID))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ np.log(GRID)
    return mean, np.sqrt(p @ np.log(GRID) ** 2 - mean**2)


@pytest.mark.slow
def test_verdicts_agree_with_the_exact_posterior(data):
    X, f, rng = data
    y = f + SIGMA * rng.normal(size=N)
    exact = mean_and_sd(evidence(X, y))
    for M, verdict in ((7, "too few"), (22, "enough")):
        bound = evidence(X, y, M)
        mean, sd = mean_and_sd(bound)
        off = abs(mean - exact[0]) / sd
        assert (off > 1.0) if verdict == "too few" else (off < 0.1)  # the case is what it says
        model = build(X, y, M, vsgp.Gaussian(SIGMA))
        check = check_inducing(fit(model), model=model, **quiet, random_seed=0)
        assert check.verdict == verdict
        assert verdict in repr(check).splitlines()[0]
        if verdict == "enough":
            assert abs(check.shift["ls"]) < 0.1


@pytest.mark.slow
def test_missing_and_gain_are_those_of_the_evidence(data):
    """With theta held: T is close to the divergence, and the gain is that of the bound."""
    X, f, rng = data
    y = f + SIGMA * rng.normal(size=N)
    M, ls = 11, 0.9
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        gp.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=y)
    idata = fit(model, 200)
    check = check_inducing(idata, 200, model=model, **quiet, random_seed=0)
    zero = lambda x: np.zeros(len(x))  # noqa: E731  (short, and used once)
    bound = [
        reference_gp.collapsed_bound(X, y, Z, [ls], 1.0, zero, SIGMA)
        for Z in (check.Xu["u"], np.vstack([check.Xu["u"], check.added["u"]]))
    ]
    gain = bound[1] - bound[0]
    assert 0.1 < gain < 3.0
    assert abs(check.gain - gain) < 4 * check.gain_error + 0.02
    exact = stats.multivariate_normal.logpdf(
        y, np.zeros(N), reference_gp.ard_kernel(X, X, [ls], 1.0) + SIGMA**2 * np.eye(N)
    )
    np.testing.assert_allclose(check.missing, check.missing[0])  # a normal likelihood: no y in T
    assert 0.4 < check.missing[0] / (exact - bound[0]) < 2.5
    assert check.missing_after.mean() < 0.1 * check.missing[0]
    np.testing.assert_allclose(check.nats.sum(), check.missing.mean())
    # T of a normal likelihood in closed form, from the moments that predict gives.
    gamma = predict(idata, None, "moments", model=model, num_samples=1, **quiet)["variance"].values
    np.testing.assert_allclose(check.missing[0], gamma.sum() / (2 * SIGMA**2), rtol=1e-8)
    np.testing.assert_allclose(check.unexplained, gamma[0, 0], rtol=1e-8)


@pytest.mark.parametrize("approx", ["VFE", "tight"])
@pytest.mark.parametrize("rows", [False, True])
def test_bounds_of_the_evidence(approx, rows, data, monkeypatch):
    """Around the exact evidence, and the numbers of dense matrices."""
    X, f, rng = data
    c, ls, M = 0.4, 0.8, 13
    sigma = np.linspace(0.2, 0.5, N) if rows else np.full(N, SIGMA)
    y = c + f + sigma * rng.normal(size=N)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(c), cov_func=pm.gp.cov.ExpQuad(1, ls=ls)
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, M))
        noise = vsgp.Gaussian(sigma if rows else SIGMA, approx=approx)
        gp.likelihood("y", noise, X=X, y=y)
    fit = Fitted(prior_draws(model, 2), model)
    assert has_bounds(fit)
    monkeypatch.setattr(certificate, "AT_ONCE", 50 * M)  # two blocks
    (lower,), (upper,) = evidence_bounds(fit, slice(1, 2), X, y)
    Z = vsgp.inducing.grid(X, M)
    Kuu = reference_gp.ard_kernel(Z, Z, [ls], 1.0) + reference_gp.JITTER * np.eye(M)
    Kuf = reference_gp.ard_kernel(Z, X, [ls], 1.0)
    Q = Kuf.T @ np.linalg.solve(Kuu, Kuf)
    K = reference_gp.ard_kernel(X, X, [ls], 1.0)
    S = np.diag(sigma**2)
    gamma = (1.0 - np.diag(Q)) / sigma**2
    log_n = lambda C: stats.multivariate_normal.logpdf(y, np.full(N, c), C)  # noqa: E731  (short)
    left = gamma if approx == "VFE" else np.log1p(gamma)
    np.testing.assert_allclose(lower, log_n(Q + S) - left.sum() / 2.0, rtol=1e-6)
    quadratic = [(y - c) @ np.linalg.solve(Q + S * a, y - c) for a in (1.0, 1.0 + gamma.sum())]
    np.testing.assert_allclose(upper, log_n(Q + S) + (quadratic[0] - quadratic[1]) / 2.0, rtol=1e-6)
    assert lower < log_n(K + S) < upper


def test_where_there_are_no_bounds(data):
    X, f, _ = data
    poisson = build(X, np.round(f + 1), 5, vsgp.Poisson())
    assert not has_bounds(Fitted(prior_draws(poisson, 2), poisson))
    fitc = build(X, f, 5, vsgp.Gaussian(SIGMA, approx="FITC"))
    assert not has_bounds(Fitted(prior_draws(fitc, 2), fitc))


@pytest.mark.long
@pytest.mark.slow
def test_a_bound_is_above_the_estimate_and_may_settle_it(data):
    X, f, rng = data
    y = f + SIGMA * rng.normal(size=N)
    model, more = (build(X, y, M, vsgp.Gaussian(SIGMA)) for M in (12, 36))
    before = model["u_Xu"].get_value()
    poor = check_inducing(fit(model), nested=False, refit=more, model=model, **quiet, random_seed=0)
    assert (poor.at_most > 0.8 * poor.missing).all()
    assert not poor.certain
    assert "certainly at most" in repr(poor)
    # The gain at the best parameters, from numpy.
    best = [(evidence(X, y, M) + stats.norm.logpdf(np.log(GRID))).max() for M in (12, 36)]
    np.testing.assert_allclose(poor.refit_gain, best[1] - best[0], atol=0.2)
    np.testing.assert_array_equal(model["u_Xu"].get_value(), before)
    rich = check_inducing(fit(more), nested=False, model=more, **quiet, random_seed=0)
    assert rich.certain
    assert rich.verdict == "enough"
    assert "refit" not in repr(rich)
    # What more points would gain counts by itself, as far as it is sure.
    rich = dataclasses.replace(rich, at_most=None, khat=0.5)
    for gain, error, verdict in ((0.2, 0.1, "enough"), (3, 0.4, "too few"), (3, 0.6, "borderline")):
        assert dataclasses.replace(rich, gain=gain, gain_error=error).verdict == verdict


@pytest.mark.long
@pytest.mark.slow
def test_counts_and_several_functions(data):
    X, f, rng = data
    y = rng.poisson(np.exp(1.0 + f))
    for M, wanted in ((6, {"too few"}), (25, {"enough"})):
        model = build(X, y, M, vsgp.Poisson())
        check = check_inducing(fit(model), 30, model=model, **quiet, random_seed=0)
        assert check.verdict in wanted
    labels = (np.arange(N) // 12) % 3
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6), n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=labels)
    check = check_inducing(prior_draws(model), 5, model=model, **quiet, random_seed=0)
    assert check.unexplained.shape == (N,)
    assert np.isfinite(check.gain)


@pytest.mark.slow
def test_labels(data):
    X, f, rng = data
    model = build(X, f, 8, vsgp.Gaussian(SIGMA))
    check = check_inducing(prior_draws(model), 5, nested=False, model=model, **quiet, random_seed=0)
    assert "gained" not in repr(check)
    found = check.to_dataset()
    assert found["nats"].dims == ("y_obs",)
    assert found.attrs["verdict"] == check.verdict
    np.testing.assert_array_equal(found["at_most"], check.at_most)
    assert found["shift"].sel(parameter="ls") == check.shift["ls"]
    assert found["shift_error"].sel(parameter="ls") == check.shift_error["ls"]
    for name in ("gain_error", "wrap", "refit_gain", "refit_mean", "refit_sd"):
        np.testing.assert_equal(found.attrs[name], getattr(check, name))


def test_the_parameter_that_may_move_most_is_not_one_by_chance(data):
    """Few draws weigh most, so that a parameter of no likelihood may seem to move."""
    X, f, rng = data
    n = 200
    with build(X, f, 8, vsgp.Gaussian(SIGMA)) as model:
        pm.Normal("chance")
    fit = SimpleNamespace(
        model=model,
        coords_of=lambda dims: {},
        draws=SimpleNamespace(n=n, posterior=xr.Dataset()),
    )
    drawn = {"ls": rng.normal(size=n), "chance": rng.normal(size=n)}
    missing = 1.5 * drawn["ls"] + 1.5 * rng.normal(size=n)
    fit.draws.posterior = xr.Dataset({k: (("chain", "draw"), x[None]) for k, x in drawn.items()})
    fit.draws.values = lambda name: drawn[name]
    found = shift_of(fit, missing)
    w = np.exp(missing) / np.exp(missing).sum()
    for name, x in drawn.items():
        assert found[name][0] == pytest.approx(abs(w @ x - x.mean()) / x.std())
    again = np.random.default_rng(0).integers(n, size=(4000, n))
    for name, x in drawn.items():
        e = np.exp(missing[again])
        moved = (e * x[again]).sum(axis=1) / e.sum(axis=1) - x[again].mean(axis=1)
        assert found[name][1] == pytest.approx(moved.std() / x.std(), rel=0.4)
    shift, error = ({k: v[i] for k, v in found.items()} for i in (0, 1))
    check = check_inducing(prior_draws(model), 5, nested=False, model=model, **quiet, random_seed=0)
    check.shift, check.shift_error = shift | {"chance": shift["ls"]}, error | {"chance": 2.0}
    assert f"ls, by {shift['ls']:.2f} ± {error['ls']:.2f} sd" in repr(check)


def test_two_processes_and_dims(data):
    """Parameters go by their labels, and the process that needs points by its name."""
    X, f, rng = data
    with pm.Model(coords={"effect": ["age", "size"], "site": ["north", "south"]}) as model:
        beta = pm.Normal("beta", dims=("site", "effect"))
        pm.Normal("plain", beta[0, 0], 1.0, shape=2)
        rough = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        smooth = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=3.0))
        rough.prior("rough", Xu=vsgp.inducing.grid(X, 6))
        smooth.prior("smooth", Xu=vsgp.inducing.grid(X, 6))
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [smooth, rough], X=X, y=f)
    check = check_inducing(prior_draws(model), 4, nested=False, model=model, **quiet, random_seed=0)
    labels = {
        f"beta[{site}, {effect}]" for site in ("north", "south") for effect in ("age", "size")
    }
    assert set(check.shift) == {*labels, "plain[0]", "plain[1]"}
    assert check.weakest == "rough"
    assert "most of it is missing to          'rough'" in repr(check)


@pytest.mark.slow
def test_each_process_gets_points_where_its_own_slope_is_large(data):
    """The mean where noise is small, and the noise where residuals are large."""
    X, f, rng = data
    y = f + np.exp(np.sin(X[:, 0])) * rng.normal(size=N)
    with pm.Model() as model:
        gps = []
        for name in ("level", "scale"):
            gps.append(vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=0.5)))
            gps[-1].prior(name, Xu=vsgp.inducing.grid(X, 4))
        vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), gps, X=X, y=y)
    fit, at = Fitted(prior_draws(model, 2), model), slice(0, 1)
    (m, mu_g), (v, gamma_g) = (x[0].T for x in fit.moments(at, X))
    precision = np.exp(2.0 * (gamma_g - mu_g))
    slopes = {"level": precision / 2.0, "scale": ((y - m) ** 2 + v) * precision}
    added = more_points(fit, at, X, y, rng)
    for (name, w), (_, C) in zip(slopes.items(), fit.joint_moments(at, X), strict=True):
        w = np.sqrt(np.maximum(w, 1e-3 * w.max()))
        left, chosen = C[0] * w[:, None] * w, []
        for _ in range(4):
            chosen.append(int(np.argmax(np.diag(left))))
            column = left[:, chosen[-1]]
            left = left - np.outer(column, column) / column[chosen[-1]]
        np.testing.assert_array_equal(np.sort(added[name], axis=0), np.sort(X[chosen], axis=0))


@pytest.mark.slow
def test_parameters_of_rows_go_with_their_block(data, monkeypatch):
    """Scores and checks of many rows are of some of them after the other."""
    X, f, rng = data
    exposure = np.linspace(0.5, 4.0, N)
    model = build(X, rng.poisson(exposure * np.exp(f)), 6, vsgp.Poisson(exposure))
    idata, options, checks, scores = prior_draws(model, 4), {"model": model, **quiet}, [], []
    for rows in (N, 30):
        for name in ("inducing_check", "loo", "nested", "refitted"):
            monkeypatch.setattr(f"pymc_vsgp.results.{name}.ROWS", rows)
        checks.append(check_inducing(idata, 4, random_seed=0, **options))
        scores.append(vsgp.compute_pointwise(idata, extend_inferencedata=False, **options))
    xr.testing.assert_allclose(*scores)
    one, other = checks
    np.testing.assert_array_equal(one.added["u"], other.added["u"])
    for name in ("missing", "nats", "missing_after"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.moved[:2], other.moved[:2], rtol=1e-6)


@pytest.mark.slow
def test_predictions_of_a_model_with_more_points(data):
    X, f, rng = data
    y = f + SIGMA * rng.normal(size=N)
    means, sds, models = [], [], []
    for M in (6, 14):
        with pm.Model() as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
            Z = vsgp.inducing.grid(X, M)
            gp.prior("u", Xu=Z)
            gp.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=y)
        K = lambda a, b: reference_gp.ard_kernel(a, b, [0.8], 1.0)  # noqa: E731  (short, and used often)
        Kuu, Kuf = K(Z, Z) + reference_gp.JITTER * np.eye(M), K(Z, X)
        S = np.linalg.inv(Kuu + Kuf @ Kuf.T / SIGMA**2)
        means.append(Kuf.T @ S @ Kuf @ y / SIGMA**2)
        explained = np.sum(Kuf * np.linalg.solve(Kuu, Kuf), axis=0)
        sds.append(np.sqrt(1.0 - explained + np.sum(Kuf * (S @ Kuf), axis=0)))
        models.append(model)
    check = check_inducing(
        fit(models[0], 9), 9, nested=False, refit=models[1], model=models[0], **quiet
    )
    assert check.verdict == "too few"
    ratio = np.log(sds[1] / sds[0])
    np.testing.assert_allclose(
        check.refit_mean, (np.abs(means[1] - means[0]) / sds[1]).max(), rtol=0.15
    )
    np.testing.assert_allclose(np.log(check.refit_sd), ratio[np.abs(ratio).argmax()], rtol=0.15)
    assert "f at the data then moves" in repr(check)


@pytest.mark.slow
def test_how_predictions_would_move(data):
    """At the same parameters, against plain numpy: normal noise, where one step is exact."""
    X, f, rng = data
    y = 0.5 + f + SIGMA * rng.normal(size=N)
    mean = pm.gp.mean.Constant(0.5)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8), mean_func=mean)
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6))
        gp.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=y)
    check = check_inducing(prior_draws(model), 4, model=model, **quiet, random_seed=0)
    K = lambda a, b: reference_gp.ard_kernel(a, b, [0.8], 1.0)  # noqa: E731  (short, and used often)
    means, sds = [], []
    for Z in (check.Xu["u"], np.vstack([check.Xu["u"], check.added["u"]])):
        Kuu, Kuf = K(Z, Z) + reference_gp.JITTER * np.eye(len(Z)), K(Z, X)
        S = np.linalg.inv(Kuu + Kuf @ Kuf.T / SIGMA**2)
        means.append(Kuf.T @ S @ Kuf @ (y - 0.5) / SIGMA**2)
        explained = np.sum(Kuf * np.linalg.solve(Kuu, Kuf), axis=0)
        sds.append(np.sqrt(1.0 - explained + np.sum(Kuf * (S @ Kuf), axis=0)))
    by, factor = np.abs(means[1] - means[0]) / sds[1], np.log(sds[1] / sds[0])
    np.testing.assert_allclose(check.moved.mean, by.max(), rtol=1e-4)
    np.testing.assert_allclose(np.log(check.moved.sd), factor[abs(factor).argmax()], rtol=1e-4)
    np.testing.assert_array_equal(check.moved.at, X[by.argmax()])
    found = check.to_dataset().attrs
    assert (found["moved_mean"], found["moved_sd"]) == check.moved[:2]
    assert "f at the data then moves" in repr(check)


@pytest.mark.slow
def test_several_likelihoods_of_a_process(data):
    """The posterior of u is that of all data, and the numbers are those of one likelihood."""
    X, f, rng = data
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6))
        gp.likelihood("y", vsgp.Gaussian(SIGMA), X=X, y=f)
        gp.likelihood("counts", vsgp.Poisson(), X=X, y=np.ones(N, dtype=int), block_size=False)
        other = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        other.prior("w", Xu=vsgp.inducing.grid(X, 3))
        other.likelihood("z", vsgp.Gaussian(SIGMA), X=X, y=f)
    idata = prior_draws(model)
    options = {"model": model, "random_seed": 0, **quiet}
    check = check_inducing(idata, 1, var_name="y", **options)
    assert check.moved is None and check.others == ["counts"]
    assert "then moves" not in repr(check)
    assert "of 'y' alone, and ['counts'] see the same function. Check them" in repr(check)
    assert "alone" not in repr(dataclasses.replace(check, others=[]))
    assert others_of(Fitted(idata, model, "z")) == []


@pytest.mark.slow
def test_an_input_where_the_prior_has_no_variance():
    X = np.linspace(0.0, 10.0, 50)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Linear(1, c=0.0))
        gp.prior("u", Xu=np.array([[3.0], [8.0]]))
        gp.likelihood("y", vsgp.Gaussian(1.0), X=X, y=0.5 * X[:, 0] + np.cos(9.0 * X[:, 0]))
    check = check_inducing(prior_draws(model), 4, model=model, **quiet, random_seed=0)
    assert check.unexplained[0] == 0.0 and np.isfinite(check.unexplained).all()
    assert "nan" not in repr(check)
    # Of a line all is known from one value of it.
    assert not check.moved.shows and check.moved.sd == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("n", [N, N - 9])
def test_refit_is_of_the_data_of_the_draws(n, data, monkeypatch):
    """Whatever ``pm.set_data`` put in their place since."""
    X, f, rng = data
    y = rng.poisson(np.exp(f))

    def build(M):
        with pm.Model(coords={"row": np.arange(N) + 100}) as model:
            x, seen = pm.Data("x", X, dims=("row", "column")), pm.Data("seen", 1.0 * y, dims="row")
            effort = pm.Data("effort", np.full(N, 2.0), dims="row")
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
            gp.prior("u", Xu=vsgp.inducing.grid(X, M))
            gp.likelihood("y", vsgp.Poisson(effort), X=x, y=seen)
        return model

    model, more = build(4), build(8)
    idata = prior_draws(model, 2)
    observed = xr.Dataset({"y": ("row", y)}, coords={"row": np.arange(N) + 100})
    idata["observed_data"] = xr.DataTree(observed)
    idata["constant_data"] = xr.DataTree(
        idata["constant_data"].to_dataset().drop_vars("seen").assign_coords(observed.coords)
    )
    new = {"x": X[:n] + 1.0, "seen": np.zeros(n), "effort": np.ones(n)}
    for each in (model, more):
        pm.set_data(new, coords={"row": np.arange(n)}, model=each)
    before = {name: model[name].get_value() for name in new}
    fitted = []

    def fit_gaussian(model, **_):
        fitted.append(model)
        if len(fitted) == 2:
            raise KeyboardInterrupt  # before the fit
        return SimpleNamespace(interrupted=False, elbo=0.0, to_datatree=lambda *_, **__: idata)

    monkeypatch.setattr("pymc_vsgp.results.refitted.fit_gaussian", fit_gaussian)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="changed since"):
        compare_stages(Fitted(idata, model), more)
    for copy, of in zip(fitted, (model, more), strict=True):
        for name, wanted in {"x": X, "seen": y, "effort": np.full(N, 2.0)}.items():
            np.testing.assert_array_equal(copy[name].get_value(), wanted)
            np.testing.assert_array_equal(of[name].get_value(), before[name])
        assert list(copy.coords["row"]) == list(np.arange(N) + 100)
        np.testing.assert_array_equal(copy["u_Xu"].get_value(), of["u_Xu"].get_value())
        check_data(copy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["counts", *long("classes", "noise")])
def test_how_predictions_would_move_is_what_a_stage_finds(kind, data):
    """With the added points in the model, and all parameters fixed."""
    X, f, rng = data
    grid = vsgp.inducing.grid(X, 5)

    def build(*points):
        cov = pm.gp.cov.ExpQuad(1, ls=0.8)
        mean = pm.gp.mean.Constant(0.3)
        with pm.Model() as model:
            gps = [vsgp.VariationalSparse(cov_func=cov, mean_func=mean) for _ in points]
            if kind == "classes":
                gps[0].prior("u", Xu=points[0], n_outputs=3)
                gps[0].likelihood("y", vsgp.Softmax(3), X=X, y=(np.arange(N) // 12) % 3)
                return model
            for i, Z in enumerate(points):
                gps[i].prior("uv"[i], Xu=Z)
            if kind == "counts":
                gps[0].likelihood("y", vsgp.Poisson(), X=X, y=np.round(np.exp(1.0 + f)))
            else:
                vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), gps, X=X, y=f + 0.1 * X[:, 0])
        return model

    points = [grid, grid] if kind == "noise" else [grid]
    model = build(*points)
    check = check_inducing(prior_draws(model), 2, model=model, **quiet, random_seed=0)
    more = build(*(np.vstack([check.Xu[n], check.added[n]]) for n in check.Xu))
    K = lambda a, b: reference_gp.ard_kernel(a, b, [0.8], 1.0)  # noqa: E731  (short, and used often)
    found = []
    for m in (model, more):
        stage = vsgp.fit_gaussian(model=m, tol=1e-8, move_inducing=False, **quiet)
        means, variances = [], []
        for name in check.Xu:
            Z = stage.Xu[f"{name}_Xu"]
            A = np.linalg.solve(K(Z, Z) + reference_gp.JITTER * np.eye(len(Z)), K(Z, X))
            for u, S in zip(np.atleast_2d(stage.mean[name]), stage.covariance[name], strict=True):
                means.append(0.3 + A.T @ (u - 0.3))
                variances.append(1.0 + np.sum(A * (S @ A - K(Z, X)), axis=0))
        found.append((np.array(means), np.sqrt(variances)))
    (mean, sd), (new_mean, new_sd) = found
    by, factor = np.abs(new_mean - mean) / new_sd, np.log(new_sd / sd)
    np.testing.assert_allclose(check.moved.mean, by.max(), rtol=0.02)
    np.testing.assert_allclose(np.log(check.moved.sd), factor.flat[abs(factor).argmax()], rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("approx", ["VFE", "DTC", *long("tight", "FITC")])
def test_divergence_to_the_exact_posterior(approx, data):
    """Of a normal posterior from another one, by dense matrices: for bounds and for others."""
    X, f, rng = data
    y = f + SIGMA * rng.normal(size=N)
    Z, v = vsgp.inducing.grid(X, 12), SIGMA**2
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Gaussian(SIGMA, approx=approx), X=X, y=y)
    found = exact_weights(fit(model, 400), 400, model=model, **quiet, random_seed=0)
    k = lambda a, b: reference_gp.ard_kernel(a, b, [0.8], 1.0)  # noqa: E731  (short, and used often)
    Kuf = k(Z, X)
    Q = Kuf.T @ np.linalg.solve(k(Z, Z) + reference_gp.JITTER * np.eye(12), Kuf)
    gamma = 1.0 - np.diag(Q)
    D = v + gamma * (approx == "FITC")
    left = {"VFE": gamma / v, "tight": np.log1p(gamma / v)}.get(approx, 0.0 * gamma)
    log_n = lambda C: stats.multivariate_normal.logpdf(y, np.zeros(N), C)  # noqa: E731  (short)
    C = Q + np.diag(D)
    log_ratio = log_n(k(X, X) + v * np.eye(N)) - (log_n(C) - left.sum() / 2)
    # And the mean of the logarithm of a weight, over u of the posterior, and f given u.
    G = np.linalg.solve(C, Q).T
    square = (y - G @ y) ** 2 + np.diag(Q - G @ Q)
    log_p = -0.5 * (np.log(v) + (square + gamma) / v)
    phi = -0.5 * (np.log(D) + square / D + left)
    np.testing.assert_allclose(found.kl, log_ratio - (log_p - phi).sum(), rtol=0.1)


def test_few_weights_have_no_khat(data):
    X, f, _ = data
    model = build(X, f, 20, vsgp.Gaussian(SIGMA))
    weights = exact_weights(prior_draws(model, 24), model=model, **quiet, random_seed=0)
    assert np.isnan(weights.khat)
    assert repr(weights).endswith("can't be used: k-hat is unknown. Weigh hundreds of draws.")
    with pytest.raises(ValueError, match="k-hat is unknown, as that of few draws. Weigh hundreds"):
        weights.summary()


@pytest.mark.parametrize("approx", ["FITC", "DTC"])
@pytest.mark.parametrize("mixed", [False, True])
def test_what_is_no_bound_leaves_nothing_out(approx, mixed, data):
    X, f, _ = data
    noise = vsgp.Gaussian(SIGMA, approx=approx)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 5))
        process, y = (vsgp.Coregionalized([[1.0]], gp), f[:, None]) if mixed else (gp, f)
        process.likelihood("y", noise, X=X, y=y)
    with pytest.raises(ValueError, match=f"approx='{approx}' is none. Fit with approx='VFE'"):
        check_inducing(prior_draws(model), 5, model=model, **quiet, random_seed=0)


@pytest.mark.parametrize("block_size", [None, False])
def test_exact_weights_are_of_all_likelihoods(block_size, data):
    X, f, _ = data
    model = build(X, f, 8, vsgp.Gaussian(SIGMA))
    with model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("other", Xu=vsgp.inducing.grid(X, 8))
        counts = np.ones(N, dtype=int)
        gp.likelihood("counts", vsgp.Poisson(), X=X, y=counts, block_size=block_size)
    idata = prior_draws(model)
    with pytest.raises(ValueError, match=r"\['y', 'counts'\], and weights of one alone don't"):
        exact_weights(idata, 5, var_name="y", model=model, **quiet, random_seed=0)


@pytest.mark.slow
def test_exact_weights(data):
    """Weights turn draws of the sparse posterior into draws of the exact one, or refuse."""
    X, f, rng = data
    y = f + SIGMA * rng.normal(size=N)
    exact = mean_and_sd(evidence(X, y))
    model = build(X, y, 20, vsgp.Gaussian(SIGMA))
    idata = fit(model, 300)
    weights = exact_weights(idata, 300, model=model, **quiet, random_seed=0)
    assert weights.usable
    assert 0.0 <= weights.kl < 1.0
    np.testing.assert_allclose(np.exp(weights.log_weights).sum(), 1.0)
    found = weights.summary()
    log_ls = np.log(found["ls"].sel(summary="exact_mean"))
    assert abs(log_ls - exact[0]) < exact[1]
    poor = build(X, y, 7, vsgp.Gaussian(SIGMA))
    weights = exact_weights(fit(poor), 100, model=poor, **quiet, random_seed=0)
    assert not weights.usable
    assert "can't be used" in repr(weights)
    with pytest.raises(ValueError, match="k-hat is .* Use more inducing points"):
        weights.summary()


def test_refusals(data):
    X, f, _ = data
    big = np.linspace(0, 1, 2500)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=big[::500])
        gp.likelihood("y", vsgp.Gaussian(SIGMA), X=big, y=np.sin(big[:, 0]))
    idata = prior_draws(model)
    with pytest.raises(ValueError, match="2500 observations.*at most 2000"):
        exact_weights(idata, model=model, **quiet, random_seed=0)
    with pytest.raises(ValueError, match="num_samples is 0"):
        check_inducing(idata, 0, model=model, **quiet, random_seed=0)


def test_refit_takes_a_model():
    with pm.Model(), pytest.raises(TypeError, match="refit is of type int.*Build that model"):
        check_inducing(None, refit=40)


def test_the_verdict_reads_what_more_points_gained(data):
    X, f, rng = data
    model = build(X, f + SIGMA * rng.normal(size=N), 30, vsgp.Gaussian(SIGMA))
    check = check_inducing(fit(model), nested=False, model=model, **quiet, random_seed=0)
    assert check.verdict == "enough" and check.certain
    for found, verdict in (
        ({"refit_gain": 0.1, "refit_mean": 0.2, "refit_sd": 1.1}, "enough"),
        ({"refit_gain": 0.1, "refit_mean": 0.7, "refit_sd": 1.1}, "borderline"),
        ({"refit_gain": 0.1, "refit_mean": 0.1, "refit_sd": 0.7}, "borderline"),
        ({"refit_gain": 0.9, "refit_mean": 0.1, "refit_sd": 1.0}, "borderline"),
        ({"refit_gain": 24.0, "refit_mean": 5.0, "refit_sd": 0.3}, "too few"),
        ({"refit_gain": -24.0, "refit_mean": 5.0, "refit_sd": 0.3}, "too few"),
    ):
        for at_most in (check.at_most, None):
            assert dataclasses.replace(check, at_most=at_most, **found).verdict == verdict


def test_only_an_improper_prior_takes_one_start(monkeypatch):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.5))
        gp.prior("u", Xu=np.linspace(0.0, 1.0, 4)[:, None])
        X = np.linspace(0.0, 1.0, 9)[:, None]
        gp.likelihood("y", vsgp.Gaussian(pm.HalfFlat("s")), X=X, y=np.sin(9 * X[:, 0]))
    assert np.isfinite(refitted._best_stage(model, 9).elbo)

    def fails(**kwargs):
        raise ValueError("a defect")

    monkeypatch.setattr(refitted, "fit_gaussian", fails)
    with pytest.raises(ValueError, match="a defect"):
        refitted._best_stage(model, 9)


@pytest.mark.long
@pytest.mark.slow
def test_refit_looks_for_other_parameters():
    """Few points see noise; with more there is a function, at other parameters."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (40, 1))
    y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=40)
    few, more = [], []
    for M, models in ((6, few), (25, more)):
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", mu=2.5, sigma=2)
            kernel = pm.HalfNormal("sc", 1) ** 2 * pm.gp.cov.ExpQuad(1, ls=ls)
            gp = vsgp.VariationalSparse(cov_func=kernel)
            gp.prior("u", np.linspace(0, 10, M)[:, None])
            gp.likelihood("y", vsgp.Gaussian(pm.HalfNormal("sig", 1)), X=X, y=y)
        models.append(model)
    draws = fit(few[0], 9)
    check = check_inducing(draws, 9, nested=False, refit=more[0], model=few[0], **quiet)
    best = [vsgp.fit_gaussian(model=models[0], **quiet) for models in (few, more)]
    gain = best[1].elbo - best[0].elbo
    assert gain > 20.0
    np.testing.assert_allclose(check.refit_gain, gain, atol=0.1)
    assert check.verdict == "too few"


def test_a_refit_may_have_more_neighbors(data, monkeypatch):
    monkeypatch.setattr("pymc_vsgp.results.refitted.STARTS", 1)
    X, y, _ = data
    few, more = (
        build(X, y, M, vsgp.Gaussian(SIGMA), vsgp.inducing.NearestNeighbors(X, M)) for M in (2, 9)
    )
    options = {"nested": False, "random_seed": 0, **quiet}
    check = check_inducing(fit(few), refit=more, model=few, **options)
    assert np.isfinite(check.refit_gain)
    with pytest.raises(ValueError, match="or more neighbors of each"):
        check_inducing(fit(more), refit=few, model=more, **options)


@pytest.mark.parametrize("M", [4, 6])
def test_a_model_without_more_points_is_not_compared(M, data):
    X, y, _ = data
    model = build(X, y, 6, vsgp.Gaussian(SIGMA))
    with pytest.raises(ValueError, match=f"refit has {M} inducing values, and .* draws 6"):
        check_inducing(
            prior_draws(model), refit=build(X, y, M, vsgp.Gaussian(SIGMA)), model=model, **quiet
        )
