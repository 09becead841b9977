"""`vsgp.sample`: the free-form stage, and normal noise with the inducing values integrated out."""

import re

import arviz as az
import numpy as np
import pymc as pm
import pytest
import reference_gp
import xarray as xr

from differences import slopes
from marks import long
from modes import RAW
from pymc.initial_point import make_initial_point_fn
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_vsgp as vsgp

from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.collapsed import can_collapse, collapse
from pymc_vsgp.fit.convergence import warn_of_convergence
from pymc_vsgp.fit.initial import random_start

N, M, D, SIGMA = 60, 8, 2, 0.3


@pytest.fixture
def data(rng):
    X = rng.uniform(-2.0, 2.0, size=(N, D))
    return X, X[:M], np.sin(2.0 * X[:, 0]) + SIGMA * rng.normal(size=N)


def build(X, Xu, y, likelihood=None, **kwargs):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4.0, 2.0, shape=X.shape[1])
        variance = pm.Gamma("variance", 2.0, 1.0)
        c = pm.Normal("c", 0.0, 3.0)
        s = pm.HalfNormal("s") if likelihood is None else None
        cov = variance * pm.gp.cov.ExpQuad(X.shape[1], ls=ls)
        gp = pm.gp.VariationalSparse(cov_func=cov, mean_func=pm.gp.mean.Constant(c))
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", likelihood or vsgp.Gaussian(s, **kwargs), X=X, y=y)
    return model


@pytest.mark.parametrize(
    ("shift", "draws", "said"),
    [
        (0.0, 400, None),
        (2.0, 400, r"R-hat is up to 1\.[1-9]\d \(variance\), and ESS down to \d+ \(variance\)"),
        (2.0, 50, None),  # too few to tell
    ],
)
def test_chains_that_disagree_are_told(shift, draws, said, data, rng, caplog):
    """PyMC looks at those of other samplers, and not at those of nutpie."""
    model = build(*data)
    theta = {"ls": (4, draws, 2), "variance": (4, draws), "c": (4, draws), "s": (4, draws)}
    post = {name: rng.normal(size=shape) for name, shape in theta.items()}
    post["variance"][0] += shift
    post["ls"][:] = 1.0  # what never moved hides none of the others
    post["u"] = np.cumsum(rng.normal(size=(4, draws, M)), axis=1)  # not looked at
    idata = xr.DataTree.from_dict({"posterior": az.convert_to_dataset(post)})
    warn_of_convergence(idata, model)
    assert (said is None) == (not caplog.records)
    assert said is None or re.search(said, caplog.text)


def dense(X, y, Xu, ls, variance, c, s):
    """Moments of y without its noise, and what the sparse process leaves out."""
    Kuu = reference_gp.ard_kernel(Xu, Xu, ls, variance) + reference_gp.JITTER * variance * np.eye(
        len(Xu)
    )
    Kuf = reference_gp.ard_kernel(Xu, X, ls, variance)
    Q = Kuf.T @ np.linalg.solve(Kuu, Kuf)
    return Q, variance - np.diag(Q), y - c


def log_normal(residual, cov):
    return -0.5 * (
        residual @ np.linalg.solve(cov, residual)
        + np.linalg.slogdet(cov)[1]
        + len(residual) * np.log(2.0 * np.pi)
    )


REFERENCES = {
    "VFE": lambda r, Q, g, v: log_normal(r, Q + v * np.eye(len(r))) - g.sum() / (2.0 * v),
    "tight": lambda r, Q, g, v: log_normal(r, Q + v * np.eye(len(r))) - np.log1p(g / v).sum() / 2.0,
    "FITC": lambda r, Q, g, v: log_normal(r, Q + np.diag(v + g)),
    "DTC": lambda r, Q, g, v: log_normal(r, Q + v * np.eye(len(r))),
}
POINT = {
    "ls_log__": np.log([1.1, 1.4]),
    "variance_log__": np.log(1.3),
    "c": np.array(0.2),
    "s_log__": np.log(0.35),
}


@pytest.mark.slow
@pytest.mark.parametrize("approx", ["tight", *long("VFE", "FITC", "DTC")])
def test_collapsed_density_and_gradient(approx, data):
    X, Xu, y = data
    model = build(X, Xu, y, approx=approx)
    assert can_collapse(model)
    whole = collapse(model)
    new = whole.model
    assert [rv.name for rv in new.free_RVs] == ["ls", "variance", "c", "s"]
    logp = new.compile_logp(mode=RAW)
    prior = new.compile_logp(vars=new.free_RVs, mode=RAW)
    Q, gamma, residual = dense(X, y, Xu, np.array([1.1, 1.4]), 1.3, 0.2, 0.35)
    expected = REFERENCES[approx](residual, Q, gamma, 0.35**2)
    np.testing.assert_allclose(logp(POINT) - prior(POINT), expected, rtol=1e-8)
    alone = collapse(model, gradient=False).model.logp()
    assert len(block_sums(alone)) == 1  # in place of two
    found = alone.eval({v.name: POINT[v.name] for v in new.value_vars}, mode=RAW)
    np.testing.assert_allclose(found - prior(POINT), expected, rtol=1e-8)

    gradient = new.compile_dlogp(mode=RAW)(POINT)
    found = slopes(logp, POINT, [v.name for v in new.value_vars])
    np.testing.assert_allclose(gradient, found, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_jax_has_the_values_of_what_a_density_takes_for_gradients(data):
    """Where the kernel has no parameter, a gradient of the first loop is a value of the second."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from pymc.sampling.jax import get_jaxified_logp

    X, Xu, y = data
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(D, ls=1.0))
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(s), X=X, y=y)
    new = collapse(model).model
    point = {"s_log__": np.array(-0.7)}
    value, (slope,) = jax.jit(jax.value_and_grad(get_jaxified_logp(new)))([point["s_log__"]])
    np.testing.assert_allclose(value, new.compile_logp(mode=RAW)(point), rtol=1e-8)
    np.testing.assert_allclose(slope, new.compile_dlogp(mode=RAW)(point)[0], rtol=1e-7)


@pytest.mark.slow
def test_what_does_not_collapse(data):
    X, Xu, y = data
    assert not can_collapse(build(X, Xu, y, likelihood=vsgp.StudentT(4.0, SIGMA)))
    model = build(X, Xu, y)
    with model:
        pm.Normal("z", model["u"][0], 1.0, observed=0.1)
    assert not can_collapse(model)
    model = build(X, Xu, y, vsgp.StudentT(4.0, SIGMA))
    stage = vsgp.fit_gaussian(model=model, maxiter=1, progressbar=False)
    with pytest.raises(ValueError, match="don't integrate out.*Drop collapse=True"):
        vsgp.sample(stage=stage, collapse=True, model=model)


@pytest.mark.long
@pytest.mark.slow
def test_with_and_without_the_inducing_values_the_posterior_is_the_same(data, default_mode):
    X, Xu, y = data
    model = build(X, Xu, y)
    with model:
        pm.Deterministic("largest", model["u"].max())
        stage = vsgp.fit_gaussian(progressbar=False)
        kwargs = {"chains": 2, "random_seed": 1, "progressbar": False, "method": "nuts"}
        trees = [vsgp.sample(500, stage=stage, collapse=flag, **kwargs) for flag in (None, False)]
        drawn = pm.sample_posterior_predictive(
            trees[0], progressbar=False, random_seed=1, compile_kwargs={"mode": RAW}
        )
    assert drawn["posterior_predictive"]["y"].shape == (2, 500, N)
    summaries = [az.summary(t, round_to="none") for t in trees]
    assert set(summaries[0].index) == set(summaries[1].index)
    for summary, tree in zip(summaries, trees, strict=True):
        assert summary["r_hat"].max() < 1.03
        assert int(tree["sample_stats"]["diverging"].sum()) == 0
        assert {"gaussian_stage", "observed_data", "constant_data"} <= set(tree.children)
        assert tree["posterior"]["u"].dims == ("chain", "draw", "u_inducing")
    a, b = (s.loc[summaries[0].index] for s in summaries)
    error = np.sqrt(a["mcse_mean"] ** 2 + b["mcse_mean"] ** 2)
    assert (np.abs(a["mean"] - b["mean"]) < 5.0 * error).all()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("nuts_sampler", ["nutpie", "pymc"])
def test_coordinates_mix_where_whitening_does_not(nuts_sampler, rng, default_mode):
    """Informative counts: a few steps a draw, and the posterior of plain pm.sample."""
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    X = np.sort(rng.uniform(0.0, 4.0, size=150))[:, None]
    y = rng.poisson(np.exp(3.0 + np.sin(3.0 * X[:, 0])))
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4.0, 4.0)
        variance = pm.Gamma("variance", 2.0, 1.0)
        mean = pm.gp.mean.Constant(pm.Normal("c", 0.0, 3.0))
        gp = pm.gp.VariationalSparse(
            cov_func=variance * pm.gp.cov.ExpQuad(1, ls=ls), mean_func=mean
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, 12))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        idata = vsgp.sample(
            draws=500,
            chains=2,
            random_seed=1,
            nuts_sampler=nuts_sampler,
            progressbar=False,
            fit_kwargs={"progressbar": False},
        )
    stats = idata["sample_stats"]
    steps = stats["n_steps"] if "n_steps" in stats else stats["tree_size"]
    assert float(steps.mean()) < 40.0
    assert int(stats["diverging"].sum()) <= 2
    summary = az.summary(idata, round_to="none")
    assert summary["r_hat"].max() < 1.04
    assert summary.loc[["ls", "variance", "c"], "ess_bulk"].min() > 100
    assert model["u_sites_root"].get_value().shape == (1, 12, 12)
    vsgp.reset(model)
    assert "u_sites_root" not in model.named_vars


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_chains_start_at_draws_of_the_stage(frozen, data):
    """nutpie compiles a copy of the model for JAX, whose variables are others."""
    X, Xu, y = data
    model = build(X, Xu, y, likelihood=vsgp.StudentT(4.0, SIGMA))
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    target = freeze_dims_and_data(model) if frozen else model
    start = make_initial_point_fn(
        model=target, overrides=random_start(model, stage), jitter_rvs=set()
    )
    points = [start(seed) for seed in range(300)]
    for name, center in stage.theta_unconstrained.items():
        drawn = np.array([p[name] for p in points])
        assert (drawn.std(axis=0) > 0).all()
        assert np.all(np.abs(drawn.mean(axis=0) - center) < 5 * drawn.std(axis=0) / np.sqrt(300))
    eps = np.array([p["u_whitened__"] for p in points])
    assert np.abs(eps.mean(axis=0)).max() < 5 * 1.5 / np.sqrt(300)
    np.testing.assert_allclose(eps.std(axis=0), 1.5, rtol=0.25)
