"""Which inducing variables are suggested, and that they are enough."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_vsgp as vsgp


def kernel(n_columns):
    return 1.5 * pm.gp.cov.Matern52(n_columns, ls=pm.Uniform("ls", 1.0, 2.0))


@pytest.mark.slow
@pytest.mark.parametrize(("n_columns", "kind"), [(1, "Fourier"), (2, "Fourier"), (6, "points")])
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
    # k-means puts points elsewhere than where their number was found, and knows no kernel.
    assert left.mean() / 1.5 < (0.06 if kind == "Fourier" else 0.15)


def test_a_kernel_without_a_density_gets_points(rng):
    X = rng.uniform(0.0, 5.0, size=(50, 1))
    with pm.Model():
        cov = pm.gp.cov.Gibbs(1, lambda x: 1.0 + 0.1 * x)
        suggestion = vsgp.suggest_inducing(X, cov, draws=5, random_seed=0)
    assert suggestion.best == "points"
    assert "No Fourier features" in repr(suggestion)


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
    # k-means puts them elsewhere, with less at the ends.
    np.testing.assert_allclose(left.mean() - noise**2, option.left_out, rtol=0.5)


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
