"""A kind of inducing variables from outside the package: averages of the function over bins."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_vsgp as vsgp

from pymc_vsgp.inducing import Dense


class BinAverages(Dense):
    """Averages of f over bins of its only input, by a rule of a few nodes in each."""

    def __init__(self, edges, n_nodes=6):
        self.edges = np.asarray(edges, dtype="float64")
        x, w = np.polynomial.legendre.leggauss(n_nodes)
        low, high = self.edges[:-1, None], self.edges[1:, None]
        self.nodes = (low + (high - low) * (x + 1.0) / 2.0).reshape(-1, 1)
        self.weights = np.kron(np.eye(self.n_inducing), w / 2.0)

    @property
    def n_columns(self):
        return 1

    @property
    def n_inducing(self):
        return len(self.edges) - 1

    def covariance(self, cov_func):
        K = cov_func(pt.constant(self.nodes))
        return pt.dot(pt.dot(self.weights, K), self.weights.T)

    def cross(self, cov_func, X):
        return pt.dot(self.weights, cov_func(pt.constant(self.nodes), X))

    def mean(self, mean_at):
        return pt.dot(self.weights, mean_at(pt.constant(self.nodes)))


X = np.linspace(0.0, 10.0, 41)[:, None]
Y = np.random.default_rng(3).poisson(6.0 + 3.0 * np.sin(X[:, 0] / 1.5))
BINS = BinAverages(np.linspace(-0.5, 10.5, 12))


def build(likelihood, y, bins=BINS):
    with pm.Model() as model:
        lengthscale = pm.LogNormal("lengthscale", np.log(np.float64(2.0)), np.float64(0.3))
        level = pm.Normal("level", np.float64(0.0), np.float64(2.0))
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(level),
            cov_func=pm.gp.cov.Matern52(1, ls=lengthscale),
        )
        gp.prior("u", inducing=bins)
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


def matern(x, z, ls):
    r = np.sqrt(5.0) * np.abs(x[:, None] - z[None, :]) / ls
    return (1.0 + r + r**2 / 3.0) * np.exp(-r)


def dense(ls, level, u):
    """Mean and variance of f given u, in plain numpy."""
    W, nodes, x = BINS.weights, BINS.nodes[:, 0], X[:, 0]
    Kuu = W @ matern(nodes, nodes, ls) @ W.T
    Kuu += 1e-8 * np.mean(np.diag(Kuu)) * np.eye(len(Kuu))
    Kuf = W @ matern(nodes, x, ls)
    weights = np.linalg.solve(Kuu, Kuf)
    mu = level + weights.T @ (u - level)
    return mu, 1.0 - np.sum(Kuf * weights, axis=0), Kuu


def test_columns_are_those_of_the_kind():
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=np.float64(2.0)))
    with pm.Model():
        gp.prior("u", inducing=BINS)
        with pytest.raises(ValueError, match="X has 2 columns, .* but inducing has 1"):
            gp.likelihood("y", vsgp.Poisson(), X=np.hstack([X, X]), y=Y)
        with pytest.raises(ValueError, match="Xnew has 2 columns, .* but inducing has 1"):
            gp.conditional("f", np.hstack([X, X]))


@pytest.fixture(scope="module")
def fitted():
    model = build(vsgp.Poisson(), Y)
    with model:
        stage = vsgp.fit_gaussian(progressbar=False)
    return model, stage, stage.to_datatree(draws=300, random_seed=1)


def test_log_density():
    model = build(vsgp.Poisson(), Y)
    v = np.random.default_rng(0).normal(size=BINS.n_inducing)
    point = {"lengthscale_log__": np.array(0.4), "level": np.array(0.7), "u_whitened__": v}
    logp = model.compile_logp(vars=[model["y"]], mode="FAST_COMPILE")(point)
    _, _, Kuu = dense(np.exp(0.4), 0.7, np.zeros(len(v)))
    u = 0.7 + np.linalg.cholesky(Kuu) @ v
    mu, gamma, _ = dense(np.exp(0.4), 0.7, u)
    log_factorials = np.cumsum(np.log(np.r_[1.0, np.arange(1.0, 20.0)]))[Y]
    expected = np.sum(Y * mu - np.exp(mu + gamma / 2.0) - log_factorials)
    np.testing.assert_allclose(logp, expected, rtol=1e-9)


@pytest.mark.slow
def test_the_stage_and_predictions(fitted):
    model, stage, idata = fitted
    assert stage.converged
    with model:
        found = vsgp.predict(idata, X, "moments", progressbar=False)
    draw = idata["posterior"].isel(chain=0, draw=7)
    mu, gamma, _ = dense(*(draw[n].values for n in ("lengthscale", "level", "u")))
    at = found.isel(chain=0, draw=7)
    np.testing.assert_allclose(at["mean"], mu, rtol=1e-7)
    np.testing.assert_allclose(at["variance"], gamma, atol=1e-9)


@pytest.mark.slow
# The draws are those of a Gaussian approximation, of which some observations weigh much.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
def test_what_one_does_with_draws(fitted):
    model, _, idata = fitted
    with model:
        joint = vsgp.predict(idata, X[:6], "f", joint=True, random_seed=1, progressbar=False)
        assert np.isfinite(joint).all()
        assert np.isfinite(vsgp.loo(idata, progressbar=False).elpd)
        check = vsgp.check_inducing(idata, 5, random_seed=1, progressbar=False)
    assert "11 inducing variables" in str(check)


@pytest.mark.slow
def test_normal_noise_integrates_out():
    y = np.sin(X[:, 0]) + 0.5
    model = build(vsgp.Gaussian(0.3), y)
    with model:
        stage = vsgp.fit_gaussian(progressbar=False)
    # At the estimate the ELBO is Titsias's bound, in plain numpy.
    ls, level = (float(stage.theta[n]) for n in ("lengthscale", "level"))
    _, gamma, Kuu = dense(ls, level, np.zeros(BINS.n_inducing))
    Kuf = BINS.weights @ matern(BINS.nodes[:, 0], X[:, 0], ls)
    C = Kuf.T @ np.linalg.solve(Kuu, Kuf) + 0.3**2 * np.eye(len(y))
    r = y - level
    evidence = -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2.0 * np.pi * C)[1])
    evidence -= gamma.sum() / (2.0 * 0.3**2)
    prior = model.compile_logp(vars=[model["lengthscale"], model["level"]], mode="FAST_COMPILE")
    theta = {n: np.asarray(v) for n, v in stage.theta_unconstrained.items()}
    point = model.initial_point() | theta
    np.testing.assert_allclose(stage.elbo, evidence + prior(point), rtol=1e-6)
