"""Which inducing variables are suggested, and that they are enough."""

import numpy as np
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
