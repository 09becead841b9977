"""The same model under every sampler and backend, and against the exact process."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

from marks import long
from modes import RAW
from recorded import exact

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
        ("pymc", "numba", "pymc"),
        *long(("nutpie", "jax", "nutpie"), ("pymc", "jax", "jax")),
        *long(("numpyro", None, "numpyro"), ("blackjax", None, "blackjax")),
    ],
)
def test_every_sampler(sampler, backend, package, rng):
    pytest.importorskip(package, reason=f"{package} is not installed")
    if backend == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    options = {} if backend is None else {"backend": backend}
    if sampler in ("numpyro", "blackjax"):
        # In parallel they need one JAX device a chain, and a CPU is one device.
        options["nuts"] = {"chain_method": "vectorized"}
    with build(rng) as model:
        idata = pm.sample(
            draws=30,
            tune=60,
            chains=2,
            cores=1,
            nuts_sampler=sampler,
            random_seed=11,
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )
    posterior = idata["posterior"].to_dataset()
    assert dict(posterior["u"].sizes) == {"chain": 2, "draw": 30, "u_inducing": 6}
    assert np.isfinite(posterior["u"]).all()
    # That they draw from the same density is tested on the density: these chains are short.
    assert float(idata["sample_stats"]["diverging"].mean()) < 0.1
    assert (posterior["u"].std(("chain", "draw")) > 0).all()
    assert set(idata["constant_data"].data_vars) == {"u_Xu", "y_X"}
    assert model["u"].name == "u"


@pytest.mark.parametrize("method", ["advi", *long("fullrank_advi")])
def test_advi(method, rng):
    with build(rng):
        fit = pm.fit(500, method=method, random_seed=5, progressbar=False)
        draws = fit.sample(50, random_seed=6)["posterior"]
    assert np.isfinite(fit.hist).all()
    assert np.mean(fit.hist[-200:]) < np.mean(fit.hist[:200])
    assert np.isfinite(draws["u"]).all()


@pytest.mark.filterwarnings("ignore:`find_MAP`:FutureWarning")  # PyMC announces its next default
def test_find_map(rng):
    with build(rng) as model:
        point = pm.find_MAP(progressbar=False, jitter=False, random_seed=1)
    logp = model.compile_logp(mode=RAW)
    best = logp({name: point[name] for name in model.initial_point()})
    assert best > logp(model.initial_point())
    assert point["u"].shape == (6,)


@pytest.mark.long
def test_coal_agrees_with_the_exact_process(default_mode):
    """The published setting, with fewer bins: 30 inducing points on a grid."""
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    X, y, width = exact.coal_data()
    with pm.Model():
        lengthscale, variance = pm.Gamma("lengthscale", 1.1, 0.1), pm.Gamma("variance", 1.0, 0.3)
        gp = pm.gp.VariationalSparse(cov_func=variance * pm.gp.cov.ExpQuad(1, ls=lengthscale))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 30))
        gp.likelihood("y", vsgp.Poisson(exposure=width), X=X, y=y)
        settings = {"draws": 1500, "chains": 4, "random_seed": 8}
        idata = vsgp.sample(**settings, progressbar=False, fit_kwargs={"progressbar": False})
        moments = vsgp.predict(idata, X, "moments", progressbar=False)
    mean, variance = moments["mean"].to_numpy(), moments["variance"].to_numpy()
    rate = np.exp(mean + variance / 2.0).mean((0, 1))
    wanted = exact.load("coal")
    assert np.abs((rate - wanted["rate"]["mean"]) / wanted["rate"]["sd"]).max() < 0.1
    for name in ("lengthscale", "variance"):
        drawn = np.log(idata["posterior"][name])
        assert float(az.rhat(drawn)) <= 1.01
        shift = (float(drawn.mean()) - wanted[name]["mean"]) / wanted[name]["sd"]
        assert abs(shift) < 0.1, name


@pytest.mark.long
def test_classes_mix(rng):
    """Their differences alone are seen. With a diagonal metric R-hat was 1.2."""
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    X = np.linspace(0.0, 10.0, 120)[:, None]
    y = np.argmax(2.0 * np.sin(X + np.arange(3.0)) + rng.gumbel(size=(120, 3)), axis=1)
    with pm.Model():
        mean = pm.gp.mean.Constant(pm.Normal("mean"))
        cov = pm.gp.cov.ExpQuad(1, ls=pm.LogNormal("ls", 0.7, 0.25))
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6), n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=y)
        settings = {"draws": 300, "tune": 300, "random_seed": 1, "progressbar": False}
        idata = vsgp.sample(method="nuts", backend="numba", **settings)
    found = az.rhat(idata.posterior.dataset)
    assert max(float(x.max()) for x in found.data_vars.values()) < 1.05
    # What no datum tells has its prior.
    np.testing.assert_allclose(idata.posterior["mean"].std(), 1.0, atol=0.15)
