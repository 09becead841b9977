"""The same model under every sampler and backend, and against the exact process."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

from modes import RAW

import pymc_vsgp as vsgp

pytestmark = pytest.mark.slow


def build(rng):
    X = np.sort(rng.uniform(0, 10, 30))[:, None]
    y = rng.poisson(np.exp(0.5 + np.sin(X[:, 0])))
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 4, 2)
        scale = pm.HalfNormal("scale", 1)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3),
            cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=lengthscale),
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model


@pytest.mark.parametrize(
    ("sampler", "backend", "package"),
    [
        ("nutpie", "numba", "nutpie"),
        ("nutpie", "jax", "nutpie"),
        ("pymc", "numba", "pymc"),
        ("pymc", "c", "pymc"),
        ("pymc", "jax", "jax"),
        ("numpyro", None, "numpyro"),
        ("blackjax", None, "blackjax"),
    ],
)
def test_every_sampler(sampler, backend, package, rng, request):
    if backend == "c":
        request.getfixturevalue("c_compiler")
    pytest.importorskip(package, reason=f"{package} is not installed")
    if backend == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    options = {} if backend is None else {"backend": backend}
    if sampler in ("numpyro", "blackjax"):
        # In parallel they need one JAX device a chain, and a CPU is one device.
        options["nuts"] = {"chain_method": "vectorized"}
    with build(rng) as model:
        idata = pm.sample(
            draws=50,
            tune=100,
            chains=2,
            cores=1,
            nuts_sampler=sampler,
            random_seed=11,
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )
    posterior = idata["posterior"].to_dataset()
    assert dict(posterior["u"].sizes) == {"chain": 2, "draw": 50, "u_inducing": 6}
    assert np.isfinite(posterior["u"]).all()
    # That they draw from the same density is tested on the density: these chains are short.
    assert float(idata["sample_stats"]["diverging"].mean()) < 0.1
    assert (posterior["u"].std(("chain", "draw")) > 0).all()
    assert set(idata["constant_data"].data_vars) == {"u_Xu", "y_X"}
    assert model["u"].name == "u"


@pytest.mark.parametrize("method", ["advi", "fullrank_advi"])
def test_advi(method, rng):
    with build(rng):
        fit = pm.fit(3000, method=method, random_seed=5, progressbar=False)
        draws = fit.sample(50, random_seed=6)["posterior"]
    assert np.isfinite(fit.hist).all()
    assert np.mean(fit.hist[-300:]) < np.mean(fit.hist[:300])
    assert np.isfinite(draws["u"]).all()


@pytest.mark.filterwarnings("ignore:`find_MAP`:FutureWarning")  # PyMC announces its next default
def test_find_map(rng):
    with build(rng) as model:
        point = pm.find_MAP(progressbar=False, jitter=False, random_seed=1)
    logp = model.compile_logp(mode=RAW)
    best = logp({name: point[name] for name in model.initial_point()})
    assert best > logp(model.initial_point())
    assert point["u"].shape == (6,)


def coal_model(counts, sparse):
    X = counts["year"].to_numpy()[:, None]
    width = counts["width"].to_numpy()
    with pm.Model(coords={"bin": counts["year"]}) as model:
        lengthscale = pm.Gamma("lengthscale", 1.1, 0.1)
        variance = pm.Gamma("variance", 1.0, 0.3)
        cov = variance * pm.gp.cov.ExpQuad(1, ls=lengthscale)
        if sparse:
            gp = pm.gp.VariationalSparse(cov_func=cov)
            gp.prior("u", Xu=vsgp.inducing.grid(X, 30))
            gp.likelihood("y", vsgp.Poisson(exposure=width), X=X, y=counts["count"], dims="bin")
        else:
            gp = pm.gp.Latent(cov_func=cov)
            f = gp.prior("f", X=X, dims="bin")
            pm.Poisson("y", width * pm.math.exp(f), observed=counts["count"], dims="bin")
    return model, gp, X


def sample_rate(counts, sparse):
    """Draws of log rate and of the kernel's parameters."""
    model, gp, X = coal_model(counts, sparse)
    with model:
        settings = {"chains": 4, "cores": 2, "random_seed": 8, "progressbar": False}
        if sparse:
            idata = vsgp.sample(draws=1500, fit_kwargs={"progressbar": False}, **settings)
        else:
            idata = pm.sample(draws=2600, tune=1000, target_accept=0.95, **settings)
        posterior = idata["posterior"].to_dataset()
        if sparse:
            gp.conditional("f", X, diag=True)
            f = pm.sample_posterior_predictive(
                idata,
                var_names=["f"],
                predictions=True,
                random_seed=9,
                progressbar=False,
                compile_kwargs={"mode": RAW},
            )["predictions"]["f"].to_numpy()
        else:
            f = posterior["f"].to_numpy()
    theta = posterior[["lengthscale", "variance"]]
    rhat = az.rhat(theta)
    assert max(float(rhat[name]) for name in rhat.data_vars) <= 1.01
    return np.exp(f).reshape(-1, len(counts)), {k: theta[k].to_numpy().ravel() for k in theta}


def test_coal_agrees_with_the_exact_process():
    """The published setting, with fewer bins: 30 inducing points on a grid."""
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    counts = vsgp.datasets.coal_counts(bins=60)
    rate, theta = sample_rate(counts, sparse=True)
    exact_rate, exact_theta = sample_rate(counts, sparse=False)
    difference = (rate.mean(0) - exact_rate.mean(0)) / exact_rate.std(0)
    assert np.abs(difference).max() < 0.1
    for name in theta:
        shift = (theta[name].mean() - exact_theta[name].mean()) / exact_theta[name].std()
        assert abs(shift) < 0.1, name
