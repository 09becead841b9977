"""Which inducing variables are suggested, and that they are enough."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

from marks import long

import pymc_vsgp as vsgp

from pymc_vsgp.inducing.advice import _share_left


def kernel(n_columns):
    return 1.5 * pm.gp.cov.Matern52(n_columns, ls=pm.Uniform("ls", 1.0, 2.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_columns", "kind"), [(1, "Fourier"), *long((2, "Fourier")), (6, "points")]
)
def test_suggestions_explain_what_they_say(n_columns, kind, rng):
    # One input takes a few points only where the range is short.
    X = rng.uniform(0.0, {1: 30.0, 2: 5.0, 6: 1.0}[n_columns], size=(300, n_columns))
    with pm.Model():
        cov = kernel(n_columns)
        suggestion = vsgp.suggest_inducing(
            X, cov, residual=0.05, quantile=1.0, draws=20, random_seed=0
        )
        assert suggestion.best == kind
        assert suggestion.best in repr(suggestion)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        u = gp.prior("u", **suggestion.prior_kwargs)
        shortest = {"ls": 1.02, "u": np.zeros(suggestion.options[kind].n_inducing)}
        _, left = gp.predict(X, shortest, diag=True)
    assert u.eval().shape == (suggestion.options[kind].n_inducing,)
    # The draws may all be of longer lengthscales.
    assert left.mean() / 1.5 < 0.06


ExpQuad = pm.gp.cov.ExpQuad
UNEQUAL = {
    "two lengthscales": (pm.gp.cov.Matern52(2, ls=[0.08, 5.0]), "points"),
    "four lengthscales": (ExpQuad(4, ls=[0.1, 5.0, 5.0, 5.0]), "points"),
    "sum": (
        ExpQuad(4, ls=0.2, active_dims=[0])
        + ExpQuad(4, ls=0.5, active_dims=[1])
        + ExpQuad(4, ls=3.0, active_dims=[2]),
        "points",
    ),
    # Centers of clusters are better here.
    "equal": (ExpQuad(4, ls=1.0), "centers"),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_said_is_of_the_points_that_are_returned(name, rng):
    cov, expected = UNEQUAL[name]
    X = rng.uniform(size=(300, cov.input_dim))
    suggestion = vsgp.suggest_inducing(X, cov, draws=1, random_seed=0)
    option, Xu = suggestion.options["points"], suggestion.prior_kwargs["Xu"]
    K = cov(np.vstack([Xu, X])).eval()
    M = len(Xu)
    Kuu = K[:M, :M] + 1e-8 * np.eye(M) * np.mean(np.diag(K))
    Q = K[M:, :M] @ np.linalg.solve(Kuu, K[:M, M:])
    left = 1.0 - np.trace(Q) / np.trace(K[M:, M:])
    assert suggestion.best == "points" and option.enough and M == option.n_inducing
    np.testing.assert_allclose(option.left_out, left, rtol=1e-4)
    assert left <= 0.02
    used = [c for c in range(X.shape[1]) if name != "sum" or c < 3]
    are_inputs = (Xu[:, None, used] == X[:, used]).all(axis=2).any(axis=1).all()
    assert are_inputs == (expected == "points")


def test_all_points_are_measured_under_the_same_draws(rng):
    """The first of them leave the same, whichever follow."""
    X = rng.uniform(size=(60, 2))
    with pm.Model():
        ls = pm.Gamma("ls", 4.0, 4.0, shape=2)
        cov = pm.HalfNormal("eta") ** 2 * pm.gp.cov.Matern52(2, ls=ls) + pm.gp.cov.Constant(0.1)
        shares = [_share_left(X[:M], X, cov, 0.5, 5, 3) for M in (9, 12)]
    np.testing.assert_allclose(shares[0], shares[1][:9], rtol=1e-5)


def test_a_kernel_without_a_density_gets_points(rng):
    X = rng.uniform(0.0, 5.0, size=(50, 1))
    with pm.Model():
        cov = pm.gp.cov.Gibbs(1, lambda x: 1.0 + 0.1 * x)
        suggestion = vsgp.suggest_inducing(X, cov, draws=5, random_seed=0)
    assert suggestion.best == "points"
    assert "No Fourier features" in repr(suggestion)


@pytest.mark.slow
def test_neighbors_where_points_would_need_too_many(rng):
    X = rng.uniform(0.0, 100.0, size=(2000, 3))
    with pm.Model():
        cov = kernel(3)
        suggestion = vsgp.suggest_inducing(X, cov, draws=5, random_seed=0)
        assert suggestion.best == "neighbors"
        assert not any(suggestion.options[kind].enough for kind in ("points", "Fourier"))
        assert "each given the 30 nearest" in repr(suggestion)
        u = vsgp.VariationalSparse(cov_func=cov).prior("u", **suggestion.prior_kwargs)
    assert u.owner.inputs[5].type.shape == (2000, 30)


def test_a_range_of_next_to_nothing(rng):
    """The kernel does not vary over it, as over a constant column."""
    X = 1e-170 * rng.uniform(size=(9, 2))
    options = vsgp.suggest_inducing(X, pm.gp.cov.ExpQuad(2, ls=1.0), draws=2).options
    assert all(np.isfinite(o.left_out) for o in options.values())


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_white_noise_is_not_explained(noise):
    """Shares are of the rest, which values with noise tell less of."""
    X = np.linspace(0.0, 10.0, 200)[:, None]
    cov = pm.gp.cov.Matern52(1, ls=3.0) + pm.gp.cov.WhiteNoise(noise)
    suggestion = vsgp.suggest_inducing(X, cov, draws=1, residual=0.05)
    assert "white noise, which nothing explains" in repr(suggestion)
    option = suggestion.options["points"]
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", **suggestion.prior_kwargs)
        _, left = gp.predict(X, {"u": np.zeros(option.n_inducing)}, diag=True)
    assert option.n_inducing < 30 and option.left_out <= 0.05
    np.testing.assert_allclose(left.mean() - noise**2, option.left_out, rtol=1e-4)


def test_neighbors_keep_the_names_of_columns(rng):
    table = pd.DataFrame(rng.uniform(size=(900, 2)), columns=["east", "north"])
    with pm.Model():
        cov = pm.gp.cov.Matern12(2, ls=0.01)
        suggestion = vsgp.suggest_inducing(table, cov, draws=1)
        assert suggestion.best == "neighbors"
        assert suggestion.prior_kwargs["inducing"].columns == ("east", "north")


def test_a_prior_without_draws(rng):
    X = rng.uniform(size=(20, 1))
    with pm.Model():
        cov = pm.gp.cov.Matern52(1, ls=pm.HalfFlat("ls"))
        for suggest in (vsgp.suggest_inducing, vsgp.inducing.Fourier.for_data):
            with pytest.raises(ValueError, match="HalfFlat. Give it a proper prior"):
                suggest(X, cov)
        alpha = pm.gp.cov.RatQuad(1, ls=1.0, alpha=pm.HalfFlat("alpha"))
        gp = vsgp.VariationalSparse(cov_func=alpha)
        gp.prior("u", inducing=vsgp.inducing.Fourier(2.0, 3))
