"""Several outputs that mix functions: evidence of the Gaussian stage, and parameters by row."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from modes import RAW
from prior_draws import prior_draws
from scipy import special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.likelihoods.mixed import Mixed
from pymc_vsgp.model.coregionalized import Coregionalized
from pymc_vsgp.model.data import check_data

N, P = 9, 3
rng = np.random.default_rng(20)
X = np.sort(rng.uniform(0, 3, (N, 1)), axis=0)
XU = X[::3]
W = rng.normal(size=(P, 1))
Y = rng.normal(size=(N, P))
Y[2, 1] = np.nan
EXPOSURE = rng.uniform(0.5, 4.0, (N, P))
COUNTS = rng.poisson(EXPOSURE)
NODES = np.polynomial.hermite_e.hermegauss(60)


def mixed_model(likelihood, y, block_size=None):
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.7))
        gp.prior("u", Xu=XU, jitter=1e-6)
        both = Coregionalized(W, [gp])
        both.likelihood("y", likelihood, X=X, y=y, block_size=block_size)
    return model


def explained(at=X):
    """Covariance of f that the inducing values explain, and what is left of its variance."""

    def kernel(a, b):
        return np.exp(-((a - b.T) ** 2) / (2 * 0.7**2))

    Kuf = kernel(XU, at)
    A = np.linalg.solve(kernel(XU, XU) + 1e-6 * np.eye(len(XU)), Kuf)
    Q = Kuf.T @ A
    return Q, 1 - np.diag(Q), A


def evidence(approx, sigma):
    """What inducing values integrate to, by the plain formulas of each approximation."""
    Q, gamma, _ = explained()
    seen = ~np.isnan(Y.ravel())
    noise, left = np.tile(sigma**2, N), np.kron(gamma, W[:, 0] ** 2)
    C = np.kron(Q, W @ W.T) + np.diag(noise + (left if approx == "FITC" else 0))
    value = stats.multivariate_normal.logpdf(Y.ravel()[seen], cov=C[np.ix_(seen, seen)])
    lost = {"VFE": left / noise, "tight": np.log1p(left / noise)}.get(approx, 0 * left)
    return value - lost[seen].sum() / 2


@pytest.mark.slow
@pytest.mark.parametrize("approx", ["tight", "FITC", "DTC"])
def test_stage_of_normal_outputs_is_exact(approx):
    """The posterior of u is normal, so the bound is the evidence and its mean the posterior's."""
    sigma = np.array([0.3, 0.5, 0.7])
    model = mixed_model(vsgp.Gaussian(sigma, approx=approx), Y)
    stage = vsgp.fit_gaussian(
        model=model, tol=1e-9, progressbar=False, compile_kwargs={"mode": RAW}
    )
    np.testing.assert_allclose(stage.elbo, evidence(approx, sigma), rtol=1e-9)
    Q, gamma, A = explained()
    seen = ~np.isnan(Y.ravel())
    D = np.tile(sigma**2, N) + (np.kron(gamma, W[:, 0] ** 2) if approx == "FITC" else 0)
    H = np.kron(A.T, W)[seen]  # from u to the outputs
    Kuu = np.exp(-((XU - XU.T) ** 2) / (2 * 0.7**2)) + 1e-6 * np.eye(len(XU))
    precision = np.linalg.inv(Kuu) + H.T @ (H / D[seen, None])
    mean = np.linalg.solve(precision, H.T @ (Y.ravel()[seen] / D[seen]))
    np.testing.assert_allclose(np.ravel(stage.mean["u"]), mean, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("exposure", [EXPOSURE, EXPOSURE[:, :1], EXPOSURE[:1], EXPOSURE[0], 2.0])
def test_parameters_by_row_and_by_output(exposure, rng):
    u = rng.normal(size=len(XU))
    _, gamma, A = explained()
    mu, gamma = np.outer(A.T @ u, W[:, 0]), np.outer(gamma, W[:, 0] ** 2)
    e = np.broadcast_to(exposure, (N, P))
    terms = COUNTS * (mu + np.log(e)) - e * np.exp(mu + gamma / 2) - special.gammaln(COUNTS + 1)
    for block_size in (4, False):
        model = mixed_model(vsgp.Poisson(exposure), COUNTS, block_size)
        logp = model.compile_fn(model.logp(vars=model["y"], sum=False)[0], mode=RAW)
        got = logp({"u_whitened__": _whitened(u)})
        np.testing.assert_allclose(got, terms.sum(axis=1), rtol=1e-7)
    draws = pm.draw(model["y"], draws=3, mode=RAW, random_seed=1)
    assert draws.shape == (3, N, P)
    posterior = xr.Dataset({"u": (["chain", "draw", "u_inducing"], u[None, None])})
    idata = xr.DataTree.from_dict({"posterior": posterior})
    model = mixed_model(vsgp.Poisson(exposure), COUNTS)
    mean = vsgp.predict(idata, None, "mean", model=model, progressbar=False)
    np.testing.assert_allclose(mean[0, 0], e * np.exp(mu + gamma / 2), rtol=1e-6)


def _whitened(u):
    Kuu = np.exp(-((XU - XU.T) ** 2) / (2 * 0.7**2)) + 1e-6 * np.eye(len(XU))
    return np.linalg.solve(np.linalg.cholesky(Kuu), u)


@pytest.mark.parametrize("shape", [(N - 1, P), (N, P - 1), (P - 1,), (N,), (2, N, P)])
def test_parameters_of_a_wrong_shape(shape):
    todo = "A vector has .* write exposure=" if shape in [(P - 1,), (N,)] else "Pass one"
    with pytest.raises(ValueError, match=f"exposure of Poisson has shape .* {todo}"):
        mixed_model(vsgp.Poisson(np.ones(shape)), COUNTS)


MISSING = np.isin(np.arange(N * P).reshape(N, P), [3, 10, 12, 13, 14])  # 12 to 14: a whole row
TRIALS = np.where(np.arange(N)[:, None] == 3, 0, 9) * np.ones((N, P))


@pytest.mark.parametrize(
    ("likelihood", "most"),
    [
        (vsgp.Poisson(EXPOSURE), 9),
        (vsgp.NegativeBinomial(2.0), 9),
        (vsgp.ZeroInflatedPoisson(0.5), 9),
        (vsgp.ZeroInflatedNegativeBinomial(0.5, 2.0), 9),
        (vsgp.Bernoulli(), 1),
        (vsgp.Bernoulli(link="cloglog"), 1),
        (vsgp.Binomial(TRIALS), TRIALS),  # no trial in a row where an entry is missing
        (vsgp.Ordinal([-0.5, 0.5]), 2),
        (vsgp.Custom(lambda f: pm.Poisson.dist(pm.math.exp(f)), n_nodes=9), 9),
    ],
    ids=str,
)
def test_missing_counts_and_classes(likelihood, most, rng):
    """PyMC casts what is observed to the dtype of draws, and as an integer nan is a number."""
    whole = np.minimum(COUNTS, most).astype("float64")
    y = np.where(MISSING, np.nan, whole)
    u = rng.normal(size=len(XU))
    _, gamma, A = explained()
    mu, gamma = np.outer(A.T @ u, W[:, 0]), np.outer(gamma, W[:, 0] ** 2)
    terms = likelihood.expected_logp(mu, gamma, whole.astype("int64")).eval(mode=RAW)
    model = mixed_model(likelihood, y, block_size=False)
    logp = model.compile_fn(model.logp(vars=model["y"], sum=False)[0], mode=RAW)
    got = logp({"u_whitened__": _whitened(u)})
    np.testing.assert_allclose(got, np.where(MISSING, 0.0, terms).sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].eval(mode=RAW), y)
    drawn = pm.draw(model["y"], mode=RAW, random_seed=1)
    np.testing.assert_array_equal(drawn, np.round(drawn))


def joint_density(log_p, mixing, mu, gamma):
    """Log of the integral over one or two functions, on a grid that closes in on the mass."""
    Q = len(mu)
    lo, hi = mu - 9.0 * np.sqrt(gamma), mu + 9.0 * np.sqrt(gamma)
    for _ in range(3):
        axes = np.linspace(lo, hi, 401 if Q == 2 else 4001).T
        g = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        height = log_p(g @ mixing.T) + stats.norm.logpdf(g, mu, np.sqrt(gamma)).sum(axis=-1)
        value = special.logsumexp(height) + np.log(np.prod(axes[:, 1] - axes[:, 0]))
        near = g[height > height.max() - 35.0]
        lo, hi = near.min(axis=0), near.max(axis=0)
    return value


CUTS = np.array([-0.5, 0.2, 0.7])  # as many as outputs, which share them


def classes_of(f):
    """Probabilities of ordered classes, on the last axis."""
    return np.diff(special.expit(CUTS - f[..., None]), prepend=0.0, append=1.0)


def exact_density(likelihood, y, mixing, mu, gamma):
    """Joint log density of the outputs of a row that are there."""
    seen = ~np.isnan(y)
    y, mixing = y[seen], mixing[seen]
    if isinstance(likelihood, vsgp.Gaussian):
        noise = np.broadcast_to(likelihood.sigma.data, len(seen))[seen]
        cov = (mixing * gamma) @ mixing.T + np.diag(noise**2)
        return stats.multivariate_normal.logpdf(y, mixing @ mu, cov)
    families = {
        "Poisson": lambda f: stats.poisson.logpmf(y, np.exp(f)),
        "Gamma": lambda f: stats.gamma.logpdf(y, 2.0, scale=np.exp(f) / 2.0),
        "Custom": lambda f: stats.poisson.logpmf(y, EXPOSURE[0, seen] * np.exp(f)),
        "Bernoulli": lambda f: np.where(y == 1, special.log_expit(f), special.log_expit(-f)),
        "Ordinal": lambda f: np.log(classes_of(f)[..., np.arange(len(y)), y.astype(int)]),
    }
    of_one = families[type(likelihood).__name__]
    return joint_density(lambda f: of_one(f).sum(axis=-1), mixing, mu, gamma)


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood", [vsgp.Gaussian(0.5), vsgp.Poisson(), vsgp.Gamma(2.0)], ids=str
)
def test_held_out_rows_may_lack_an_output(likelihood):
    """What a column needs, to be learned from, is no matter of those that are scored."""
    y = 1.0 + COUNTS
    model = mixed_model(likelihood, y)
    idata, options = prior_draws(model, 3), {"model": model, "progressbar": False}
    some = np.where([[False, True, False], [False, True, True]], np.nan, y[:2])
    new = np.array([[3.5], [4.5]])  # where much is left of the variance
    found = vsgp.log_predictive_density(idata, new, some, **options)
    _, gamma, A = explained(new)
    for row in range(2):
        mu = idata["posterior"]["u"].values[0] @ A[:, row]
        each = [exact_density(likelihood, some[row], W, [m], gamma[row : row + 1]) for m in mu]
        np.testing.assert_allclose(found[row], special.logsumexp(each) - np.log(3), rtol=1e-5)
    with pytest.raises(ValueError, match="but W has 3 rows"):
        vsgp.log_predictive_density(idata, X[:2], some[:, :2], **options)
    with pytest.raises(ValueError, match="'y' has several outputs.* Use log_predictive_density"):
        vsgp.predict(idata, new, "density", at=np.ones(3), **options)
    with pytest.raises(ValueError, match="Column 1 of y has no observation. Drop it, and that row"):
        mixed_model(likelihood, np.where([False, True, False], np.nan, y))
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.7))
        gp.prior("u", Xu=XU)
        data = pm.Data("data", y)
        Coregionalized(W, [gp]).likelihood("y", likelihood, X=X, y=data)
        pm.set_data({"data": np.where([False, True, False], np.nan, y)})
        with pytest.raises(ValueError, match="Column 1 of y has no observation"):
            check_data(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "number", "tol"),
    [
        (vsgp.Gaussian(np.array([0.1, 0.5, 2.0])), 1, 1e-9),
        (vsgp.Gaussian(0.3), 6, 1e-9),
        (vsgp.Custom(lambda f: pm.Poisson.dist(EXPOSURE[0] * pm.math.exp(f))), 1, 1e-8),
        (vsgp.Poisson(), 2, 1e-5),
        (vsgp.Ordinal(CUTS), 2, 1e-3),
        (vsgp.Custom(lambda f: pm.Poisson.dist(EXPOSURE[0] * pm.math.exp(f))), 2, 1e-5),
        (vsgp.Bernoulli(), 4, 1e-3),
        (vsgp.Bernoulli(), 6, 1e-3),
    ],
    ids=str,
)
def test_density_of_outputs_is_joint(likelihood, number, tol, rng):
    """They share functions, so they are not independent given the inducing values."""
    mixing = rng.normal(size=(P, number)) / np.sqrt(number)
    mu, gamma = 0.5 * rng.normal(size=(N, number)), rng.uniform(0.5, 1.0, (N, number))
    y = np.where(rng.random((N, P)) < 0.2, np.nan, rng.integers(0, 2, (N, P)))
    if number > 2:  # so that the density of two is an integral over two
        y[:, 2] = np.nan
    given = (mu[:, 0], gamma[:, 0]) if number == 1 else (mu, gamma)
    lik = Mixed(likelihood, mixing, number)
    found = lik.log_predictive(*given, y).eval(mode=RAW)
    wanted = []
    for i in range(N):
        L, m, v = mixing, mu[i], gamma[i]
        if number > 2:
            L = np.linalg.cholesky((mixing[:2] * v) @ mixing[:2].T)
            m, v, L = np.linalg.solve(L, mixing[:2] @ m), np.ones(2), np.vstack([L, [0.0, 0.0]])
        wanted.append(exact_density(likelihood, y[i], L, m, v))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tol)


def line_density(log_p, sd):
    """Log of the integral over one function, on a dense grid."""
    g = np.linspace(-12.0 * sd, 12.0 * sd, 1_000_001)
    height = log_p(g[:, None]) + stats.norm.logpdf(g, 0.0, sd)
    return special.logsumexp(height) + np.log(g[1] - g[0])


def test_joint_density_of_squares_has_two_peaks():
    """The square of a function is even in it; rows are counts of all outputs, and of one."""
    mixing = np.array([[1.0], [0.8]])
    y = np.array([[900.0, 580.0], [np.nan, 580.0]])
    lik = Mixed(vsgp.Poisson(link="square"), mixing, 1)
    found = lik.log_predictive(np.full(2, -1.0), np.full(2, 100.0), y).eval(mode=RAW)
    for row, value in zip(y, found, strict=True):
        seen = ~np.isnan(row)

        def log_p(g, row=row, seen=seen):
            rate = ((g - 1.0) * mixing[seen, 0]) ** 2
            return stats.poisson.logpmf(row[seen], rate).sum(axis=-1)

        np.testing.assert_allclose(value, line_density(log_p, 10.0), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.03, 0.005])
@pytest.mark.parametrize("custom", [False, True])
def test_joint_density_of_heavy_tails(custom, sigma):
    """Their peak is narrow in a wide region; the outputs of the last two rows disagree."""
    family = vsgp.StudentT(4.0, sigma)
    if custom:
        family = vsgp.Custom(lambda f: pm.StudentT.dist(nu=4.0, mu=f, sigma=sigma))
    mixing = np.array([[1.0], [0.5], [-0.8]])
    y = np.outer([1.0, 2.0, 3.0, 4.0, 2.0], mixing) + sigma * np.array([0.5, -0.7, 0.3])
    y[3, 2] = y[4, 1] = -2.0
    y[[0, 0, 1], [0, 2, 2]] = np.nan
    found = Mixed(family, mixing, 1).log_predictive(np.zeros(5), np.full(5, 9.0), y).eval(mode=RAW)
    for row, value in zip(y, found, strict=True):
        seen = ~np.isnan(row)

        def log_p(g, row=row, seen=seen):
            return stats.t.logpdf(row[seen], 4.0, g * mixing[seen, 0], sigma).sum(axis=-1)

        np.testing.assert_allclose(value, line_density(log_p, 3.0), atol=1e-4)


@pytest.mark.slow
def test_density_of_one_output_is_that_of_the_family():
    """Quadrature over the functions would be less exact than its own."""
    family, mixing = vsgp.StudentT(4.0, 0.1), np.array([[1.0, 0.4], [0.5, -1.0], [0.3, 0.3]])
    y = np.where(np.eye(3, dtype=bool), [2.0, -3.0, 4.0], np.nan)
    found = Mixed(family, mixing, 2).log_predictive(np.zeros((3, 2)), np.full((3, 2), 4.0), y)
    for p, value in enumerate(found.eval(mode=RAW)):
        sd = 2.0 * np.hypot(*mixing[p])
        wanted = line_density(lambda f, p=p: stats.t.logpdf(y[p, p], 4.0, f[:, 0], 0.1), sd)
        np.testing.assert_allclose(value, wanted, atol=1e-8)


def test_joint_density_of_little_noise():
    """Three functions and four outputs: the functions take whatever three outputs say."""
    sigma, mixing = 1e-7, np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.5], [0.5, 0.0, 1.0], [1, 1, 1]])
    y = np.array([0.3, -1.2, 0.7, 0.0])
    # Where three outputs are exact, the last one is theirs, with what noise they leave.
    of_three = mixing[3] @ np.linalg.inv(mixing[:3])
    y[3] = of_three @ y[:3] + 2.0 * sigma
    cov = mixing[:3] @ mixing[:3].T
    wanted = stats.multivariate_normal.logpdf(y[:3], cov=cov)
    scale = sigma * np.sqrt(1.0 + of_three @ of_three)
    wanted += stats.norm.logpdf(2.0 * sigma, scale=scale)
    lik = Mixed(vsgp.Gaussian(sigma), mixing, 3)
    found = lik.log_predictive(np.zeros((1, 3)), np.ones((1, 3)), y[None]).eval(mode=RAW)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [None, ["low", "mid", "high"]])
@pytest.mark.parametrize("mixing", [[1.0, 0.5], [[1.0, 0.5], [0.3, -2.0]]], ids=["sum", "outputs"])
def test_probabilities_of_ordered_classes(mixing, classes):
    """Of a sum of functions, and of several outputs: classes are on the last axis."""
    mixing = np.array(mixing)
    several = mixing.ndim > 1
    with pm.Model(coords={"output": ["a", "b"]}) as model:
        gps = [pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.7)) for _ in range(2)]
        for gp, name in zip(gps, "uv", strict=True):
            gp.prior(name, Xu=XU)
        y = np.minimum(COUNTS, 2)
        dims = ("row", "output") if several else "row"
        Coregionalized(mixing, gps).likelihood(
            "y",
            vsgp.Ordinal([-0.5, 0.7], classes=classes),
            X=X,
            y=y[:, :2] if several else y[:, 0],
            dims=dims,
        )
    idata, options = prior_draws(model, 3), {"model": model, "progressbar": False}
    f = vsgp.predict(idata, X, "moments", **options)
    mu, gamma = f["mean"].values @ mixing.T, f["variance"].values @ mixing.T**2
    below = special.expit(
        np.array([-0.5, 0.7])
        - (mu + np.sqrt(gamma) * NODES[0][:, None, None, None, *[None] * several])[..., None]
    )
    below = np.average(below, axis=0, weights=NODES[1])
    wanted = np.diff(below, axis=-1, prepend=0.0, append=1.0)
    p = vsgp.predict(idata, X, "mean", **options)
    assert p.dims == ("chain", "draw", "point", *(["output"] if several else []), "class")
    assert list(p["class"].values) == (classes or [0, 1, 2])
    np.testing.assert_allclose(p, wanted, atol=1e-5)
    summary = vsgp.predict(idata, X, "summary", **options)["y_mean"]
    np.testing.assert_allclose(summary, wanted.mean(axis=(0, 1)), atol=1e-5)
    at = {"quantiles": [0.5], "of": "mean", "random_seed": 1}
    q = vsgp.predict(idata, X, "quantiles", **at, **options)
    g = vsgp.predict(idata, X, "f", random_seed=1, **options).values[0] @ mixing.T
    below = special.expit(np.array([-0.5, 0.7]) - g[..., None])
    wanted = np.diff(below, axis=-1, prepend=0.0, append=1.0)
    np.testing.assert_allclose(q[0], np.median(wanted, axis=0), atol=1e-8)


@pytest.mark.slow
def test_entries_may_go_missing_later():
    """By `pm.set_data`, in a container of floats; what is complete keeps the dtype of counts."""
    y = np.where(MISSING, np.nan, COUNTS)
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.7))
        gp.prior("u", Xu=XU, jitter=1e-6)
        data = pm.Data("data", COUNTS.astype("float64"))
        Coregionalized(W, [gp]).likelihood("y", vsgp.Poisson(), X=X, y=data, block_size=False)
        pm.set_data({"data": y})
    logp = [
        m.compile_logp(vars=m.observed_RVs, mode=RAW)({"u_whitened__": np.ones(len(XU))})
        for m in (model, mixed_model(vsgp.Poisson(), y, block_size=False))
    ]
    np.testing.assert_allclose(*logp, rtol=1e-12)
    assert mixed_model(vsgp.Poisson(), COUNTS)["y"].dtype == "int64"
    assert mixed_model(vsgp.Poisson(), COUNTS.astype("float64"))["y"].dtype == "int64"
