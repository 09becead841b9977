"""The importance stage: its density, its proof, and its draws."""

import functools
import importlib.util
import logging
import re

from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.integrate
import scipy.linalg
import scipy.special
import scipy.stats
import xarray as xr

from marks import long
from pymc.exceptions import ImputationWarning
from pytensor.conditional.op import ifelse
from pytensor.graph.traversal import graph_inputs

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE, simplify
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.sharded import mesh_of
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit import density, importance, newton, walk, weights
from pymc_vsgp.fit.adaptation import (
    Near,
    adapt,
    mixture,
    moments,
    of_epsilon,
    of_moments,
    without_noise,
)
from pymc_vsgp.fit.batch import Batch
from pymc_vsgp.fit.bound import Variables
from pymc_vsgp.fit.chain import Chains
from pymc_vsgp.fit.collapsed import TOGETHER, collapse, recover
from pymc_vsgp.fit.compiled import Jax, Numba, compiler
from pymc_vsgp.fit.convergence import largest_rhat
from pymc_vsgp.fit.density import Points
from pymc_vsgp.fit.importance import weigh
from pymc_vsgp.fit.natural import prior_widths
from pymc_vsgp.fit.proposals import Along, Bent, Mixture, Prior, StudentT
from pymc_vsgp.fit.starts import _of_prior
from pymc_vsgp.fit.weigher import Weigher
from pymc_vsgp.likelihoods.quadrature import roughly
from pymc_vsgp.results.calibration import _from_prior

N = 40


def inputs():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0.0, 6.0, size=N))[:, None]
    return rng, X, np.sin(X[:, 0])


def process(X, name="u", m=6, **kwargs):
    ls = pm.LogNormal(f"ls_{name}", 0.0, 0.5)
    mean = pm.gp.mean.Constant(pm.Normal(f"c_{name}"))
    gp = pm.gp.VariationalSparse(cov_func=1.5 * pm.gp.cov.ExpQuad(1, ls=ls), mean_func=mean)
    gp.prior(name, Xu=vsgp.inducing.grid(X, m), **kwargs)
    return gp


def counts():
    rng, X, f = inputs()
    process(X).likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(f)))


def scales():
    """Rows in blocks, and a parameter of the likelihood."""
    rng, X, f = inputs()
    lik = vsgp.StudentT(4.0, pm.HalfNormal("sigma"))
    gp = process(X)
    gp.likelihood("y", lik, X=X, y=f + 0.2 * rng.standard_t(4, size=N), block_size=16)


def two():
    rng, X, f = inputs()
    both = [process(X), process(X, "w", 4)]
    vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), both, X=X, y=rng.normal(f, 0.3))


def nested():
    """One quadrature within another."""
    rng, X, f = inputs()
    lik = vsgp.HeteroskedasticStudentT(4.0)
    vsgp.likelihood("y", lik, [process(X), process(X, "w", 4)], X=X, y=rng.normal(f, 0.3))


def classes():
    rng, X, _ = inputs()
    y = rng.integers(3, size=N)
    process(X, n_outputs=3).likelihood("y", vsgp.Softmax(3), X=X, y=y)


def coefficients():
    rng, X, f = inputs()
    ls = pm.LogNormal("ls", 0.0, 0.5)
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
    gp.prior("u", inducing=vsgp.inducing.Fourier(period=12.0, n_frequencies=6))
    gp.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(f)))


def neighbors():
    rng, X, f = inputs()
    ls = pm.LogNormal("ls", 0.0, 0.5)
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=ls))
    gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, 4))
    gp.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(f)))


def normal():
    rng, X, f = inputs()
    lik = vsgp.Gaussian(pm.HalfNormal("sigma"))
    process(X).likelihood("y", lik, X=X, y=f + 0.3 * rng.normal(size=N))


def of_rows():
    """Parameters with an entry for each row, of the likelihood and of the exposure."""
    rng, X, f = inputs()
    group = np.arange(N) % 2
    lik = vsgp.StudentT(4.0, pm.HalfNormal("sigma", shape=2)[group])
    gp = process(X)
    gp.likelihood("y", lik, X=X, y=f + 0.2 * rng.standard_t(4, size=N), block_size=16)
    exposure = pm.math.exp(pm.Normal("effect", shape=2)[group])
    gp.likelihood("z", vsgp.Poisson(exposure=exposure), X=X, y=rng.poisson(np.exp(f)))


def normal_of_rows():
    rng, X, f = inputs()
    sigma = pm.HalfNormal("sigma", shape=2)[np.arange(N) % 2]
    process(X).likelihood("y", vsgp.Gaussian(sigma), X=X, y=f + 0.3 * rng.normal(size=N))


MODELS = [
    coefficients,
    *long(counts, two, classes, normal, normal_of_rows, scales, nested, of_rows),
]


@functools.cache
def fitted(build):
    """Pickled, since tests change the model: each gets a copy, and it is fitted once."""
    with pm.Model() as model:
        build()
        stage = vsgp.fit_gaussian(progressbar=False)
    return cloudpickle.dumps((model, stage))


def made(build):
    return cloudpickle.loads(fitted(build))


def points_of(model, rng, S=3, K=2):
    points = Points(model)
    theta = 0.3 * rng.normal(size=(S, points.n_theta))
    return points, theta, rng.normal(size=(S, K, points.n_epsilon))


def as_point(points, theta, epsilon):
    values = {}
    for flat, variables in ((theta, points.outer), (epsilon, points.inner)):
        at = 0
        for v in variables:
            shape = points.shapes[v]
            size = int(np.prod(shape))
            values[v.name] = flat[at : at + size].reshape(shape)
            at += size
    return values


@pytest.mark.slow
@pytest.mark.parametrize("build", MODELS)
def test_the_density_of_many_points_is_that_of_each(build, rng):
    model, _ = made(build)
    points, theta, epsilon = points_of(model, rng)
    (found,) = points.log_density()(theta, epsilon)
    logp = model.compile_logp(mode=ONCE)
    expected = [
        [logp(as_point(points, t, e)) for e in es] for t, es in zip(theta, epsilon, strict=False)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.slow
def test_effects_that_sum_to_zero_take_many_points(rng):
    """Their density divides by the size of their shape. Constants have all digits in both ways."""
    rows, X, f = inputs()
    with pm.Model() as model:
        effect = pm.ZeroSumNormal("effect", shape=5)[np.arange(N) % 5]
        cov = pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ls", 3, 0.7))
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=X[::8])
        lik = vsgp.Poisson(exposure=pm.math.exp(effect))
        gp.likelihood("y", lik, X=X, y=rows.poisson(np.exp(f)))
    points, theta, epsilon = points_of(model, rng)
    (found,) = points.log_density()(theta, epsilon)
    logp = model.compile_logp(mode=ONCE)
    expected = [
        [logp(as_point(points, t, e)) for e in es] for t, es in zip(theta, epsilon, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


CASES = [(coefficients, Jax), (normal, Numba)]
CASES += long((counts, Jax), (normal, Jax), (nested, Jax), (of_rows, Jax))
CASES += long((two, Numba), (neighbors, Numba))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "backend"), CASES)
def test_what_is_compiled_takes_over_from_numpy(build, backend, rng, monkeypatch):
    if backend is Jax:
        pytest.importorskip("jax")
    monkeypatch.setattr(backend, "pays", 0.0)
    monkeypatch.setattr(backend, "seconds", lambda self, *arrays: 0.0)
    monkeypatch.setattr("pymc_vsgp.fit.density.compiler", lambda *args: backend)
    monkeypatch.setattr("pymc_vsgp.fit.density.BATCH_BYTES", 20_000)
    model, _ = made(build)
    if build is normal:
        model = collapse(model, gradient=False).model
    points, theta, epsilon = points_of(model, rng, S=40)
    logp = simplify(model.logp())
    (expected,) = points.function([logp])(theta, epsilon)
    fn = points.log_density()
    told = []
    (found,) = fn(theta, epsilon, told.append)
    assert isinstance(fn.compiled, backend)
    # One, and one or two more, say what numpy takes.
    assert sum(told) == 40 and told[0] == 1 and told[1] <= 2
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # Data that change later are those that count.
    shared = max((v for v in graph_inputs([logp]) if hasattr(v, "get_value")), key=size_of)
    shared.set_value(1.01 * shared.get_value())
    (again,) = fn(theta, epsilon)
    (expected,) = points.function([logp])(theta, epsilon)
    assert not np.allclose(again, found, rtol=1e-6)
    np.testing.assert_allclose(again, expected, rtol=1e-9)


def test_points_that_waited_are_no_reason_to_compile(rng, monkeypatch):
    monkeypatch.setattr("pymc_vsgp.fit.density.BATCH_BYTES", 20_000)
    monkeypatch.setattr("pymc_vsgp.fit.density.adopted", lambda *args: pytest.fail("compiles"))
    points, theta, epsilon = points_of(made(counts)[0], rng, S=200)
    fn = points.log_density()
    # A millisecond each time; but some points, of which others follow, wait for a second.
    clock = iter(1e-3 * np.arange(10_000) + (np.arange(10_000) > 20))
    monkeypatch.setattr("pymc_vsgp.fit.density.perf_counter", lambda: next(clock))
    fn(theta, epsilon)
    assert next(clock) > 1.0


@pytest.mark.long
@pytest.mark.slow
def test_numpy_goes_on_where_jax_was_refused(rng, monkeypatch):
    """JAX makes the constants that it was given read-only, and numpy has the same."""
    pytest.importorskip("jax")
    model, _ = made(counts)
    points, theta, epsilon = points_of(model, rng, S=40)
    (expected,) = points.log_density()(theta, epsilon)
    monkeypatch.setattr(Jax, "pays", 0.0)
    refused = []
    monkeypatch.setattr(Jax, "seconds", lambda self, *arrays: refused.append(self) or np.inf)
    fn = points.log_density()
    (found,) = fn(theta, epsilon)
    assert refused and fn.compiled is None
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(fn(theta, epsilon)[0], expected, rtol=1e-12)


@pytest.mark.long
def test_numba_computes_what_is_of_theta_once(rng):
    model, _ = made(neighbors)
    points, theta, epsilon = points_of(model, rng, S=2)
    (expected,) = points.log_density()(theta, epsilon)
    compiled = Numba(points.outer, points.inner, [simplify(model.logp())])
    calls = []
    of_theta = compiled.of_theta
    compiled.of_theta = lambda *theta: calls.append(theta) or of_theta(*theta)
    (found,) = compiled(*points.split(theta, epsilon))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert len(calls) == 2 and found.shape == (2, 2)
    # The regressions on neighbors are among it.
    assert any(np.shape(x) == (N, 5) for x in of_theta(*calls[0]))


@pytest.mark.slow
def test_numpy_holds_rows_of_a_few_points():
    X = np.linspace(0.0, 1.0, N)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern12(1, ls=pm.Gamma("ls", 2, 4)))
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, 5))
        gp.likelihood("y", vsgp.Gaussian(0.3), X, X[:, 0])
    points = Points(collapse(model, gradient=False).model)
    assert points.n_epsilon == 0
    assert points.log_density()._rows >= 5 * N


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows"), [("waves", 1000), ("neighbors", 40), *long(("waves", 40))]
)
def test_numpy_takes_many_points_at_a_time(kind, rows, rng, monkeypatch):
    """As many as the cache holds, where no matrix of M x M is made: of waves that are sums too."""
    X = np.sort(rng.uniform(0.0, 1.0, size=(rows, 1)), axis=0)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=pm.Gamma("ls", 2, 4)))
        if kind == "waves":
            gp.prior("u", inducing=vsgp.inducing.Fourier(1.5, 100))
        else:
            gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, 5))
        gp.likelihood("y", vsgp.Poisson(), X, np.ones(rows))
    points, theta, epsilon = points_of(model, rng, S=64)
    fn = points.function([simplify(model.logp())])
    on_numpy, sizes = fn._on_numpy, []
    monkeypatch.setattr(fn, "_on_numpy", lambda *x: sizes.append(len(x[0])) or on_numpy(*x))
    (found,) = fn(theta, epsilon)
    assert max(sizes) > 20
    monkeypatch.setattr("pymc_vsgp.fit.density.BATCH_BYTES", 1)
    sizes.clear()
    np.testing.assert_allclose(fn(theta, epsilon)[0], found, rtol=1e-10)
    assert sizes == [1] * 64


@pytest.mark.slow
def test_devices_take_theta_alone(rng):
    """Where normal noise integrates out there is no epsilon."""
    jax = pytest.importorskip("jax")
    model, _ = made(normal)
    target = collapse(model, gradient=False).model
    points, theta, epsilon = points_of(target, rng, S=70, K=1)
    (expected,) = points.log_density()(theta, epsilon)
    # PyMC's samplers on JAX make 100 devices of a CPU, more than there are rows.
    (found,) = Points(target, mesh_of(jax.devices()[:2])).log_density()(theta, epsilon)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def size_of(v):
    value = v.get_value()
    return value.size if getattr(value, "dtype", None) == "float64" else 0


class Wrong(Numba):
    """A backend with an error."""

    def __init__(self, *args):
        pass

    def __call__(self, *arrays):
        return [np.zeros((len(arrays[0]), 2))]


class Broken(Numba):
    """A backend that lacks something."""

    def __init__(self, *args):
        raise NotImplementedError


@pytest.mark.parametrize("backend", [Wrong, Broken])
@pytest.mark.slow
def test_a_backend_that_is_wrong_is_not_taken(backend, rng, monkeypatch):
    monkeypatch.setattr(backend, "pays", 0.0)
    monkeypatch.setattr("pymc_vsgp.fit.density.compiler", lambda *args: backend)
    model, _ = made(counts)
    points, theta, epsilon = points_of(model, rng, S=40)
    fn = points.log_density()
    (expected,) = points.function([simplify(model.logp())])(theta, epsilon)
    np.testing.assert_array_equal(fn(theta, epsilon)[0], expected)
    assert fn.compiled is None


@pytest.mark.long
def test_what_may_compile(monkeypatch, tmp_path):
    model, _ = made(counts)
    logp = [simplify(model.logp())]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert compiler(model, logp) is Numba
    monkeypatch.undo()
    if importlib.util.find_spec("jax"):
        assert compiler(model, logp) is Jax
    # JAX has no loops for the small matrices of neighbors.
    model, _ = made(neighbors)
    assert compiler(model, [simplify(model.logp())]) is Numba
    # Integrals over classes are loops of numba in any case.
    model, _ = made(classes)
    assert compiler(model, [simplify(model.logp())]) is None


def summed():
    """A sum of two processes, at inputs that repeat, with a mean."""
    rng, X, f = inputs()
    common, own = process(X, "w", 4), process(X, "v", 3)
    X, y = np.repeat(X[::3], 3, axis=0)[:N], rng.poisson(np.exp(f))
    vsgp.Coregionalized([1.0, -0.5], [common, own]).likelihood("y", vsgp.Poisson(), X=X, y=y)


def by_group():
    """A function of all groups, and one of the row's group."""
    rng, X, f = inputs()
    pm.modelcontext(None).add_coord("site", ["a", "b", "c"])
    common = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=2.0, active_dims=[0]))
    common.prior("u", Xu=np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]))
    own = process(X, "w", 4, by="site")
    X = np.column_stack([X, np.arange(N) % 3])
    f = vsgp.Coregionalized([1.0, 1.0], [common, own])
    f.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(np.sin(X[:, 0]))))


def waves():
    """A function of Fourier features, beside one of points."""
    rng, X, f = inputs()
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 5.0, 5.0)))
    gp.prior("w", inducing=vsgp.inducing.Fourier(20.0, 5))
    total = vsgp.Coregionalized([1.0, -0.5], [gp, process(X, "v", 3)])
    total.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(f)))


@pytest.mark.slow
@pytest.mark.parametrize("build", [classes, *long(counts, two, of_rows, summed, waves, by_group)])
def test_refined_coordinates_are_a_change_of_variables(build, rng):
    """They are affine in epsilon, so a few points tell the map and its determinant."""
    model, _ = made(build)
    points, theta, epsilon = points_of(model, rng, S=2, K=1)
    m = points.n_epsilon
    refined = points.refined()
    corners = np.concatenate([np.zeros((1, m)), np.eye(m)])
    for t, e in zip(theta, epsilon, strict=False):
        logp, at = refined(t[None], e[None])
        _, images = refined(t[None], corners[None])
        jacobian = (images[0, 1:] - images[0, 0]).T
        np.testing.assert_allclose(images[0, 0] + jacobian @ e[0], at[0, 0], atol=1e-9)
        (plain,) = points.log_density()(t[None], at)
        expected = plain[0, 0] + np.linalg.slogdet(jacobian)[1]
        np.testing.assert_allclose(logp[0, 0], expected, rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(("build", "backend"), [(summed, Jax), (summed, Numba), (waves, Jax)])
def test_a_step_of_several_functions_is_compiled(build, backend, rng, monkeypatch):
    if backend is Jax:
        pytest.importorskip("jax")
    model, _ = made(build)
    points, theta, epsilon = points_of(model, rng, S=40)
    expected = points.refined()(theta, epsilon)
    monkeypatch.setattr(backend, "pays", 0.0)
    monkeypatch.setattr(backend, "seconds", lambda self, *arrays: 0.0)
    monkeypatch.setattr(density, "compiler", lambda *args: backend)
    monkeypatch.setattr(density, "BATCH_BYTES", 20_000)
    fn = Points(model).refined()
    found = fn(theta, epsilon)
    assert isinstance(fn.compiled, backend)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_weights_against_quadrature():
    """One inducing value and one parameter: the posterior from a grid, in numpy alone."""
    X, y = np.array([[0.0], [0.4], [-0.5], [1.0], [-1.2]]), np.array([3, 4, 2, 1, 0])
    with pm.Model():
        ls = pm.Gamma("ls", 3.0, 3.0)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=np.zeros((1, 1)), jitter=0.0)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        idata = vsgp.sample(method="importance", random_seed=1, progressbar=False)
    ls, u = np.meshgrid(np.linspace(0.02, 6.0, 400), np.linspace(-6.0, 6.0, 401), indexing="ij")
    logp = scipy.stats.gamma(3.0, scale=1 / 3.0).logpdf(ls) + scipy.stats.norm.logpdf(u)
    for x, n in zip(X[:, 0], y, strict=True):
        k = np.exp(-0.5 * (x / ls) ** 2)
        logp += n * k * u - np.exp(k * u + (1.0 - k**2) / 2.0)
    w = np.exp(logp - logp.max())
    w /= w.sum()
    posterior, ess = idata["posterior"], idata["posterior"].attrs["importance_ess"]
    for name, x in (("ls", ls), ("u", u)):
        drawn = posterior[name].values.ravel()
        mean = (w * x).sum()
        sd = np.sqrt((w * (x - mean) ** 2).sum())
        assert abs(drawn.mean() - mean) < 4.0 * sd * np.sqrt(2.0 / ess)
        np.testing.assert_allclose(drawn.std(), sd, rtol=0.08)
    # The evidence, too: the weights are of the density itself. log n! is part of it.
    cell = (ls[1, 0] - ls[0, 0]) * (u[0, 1] - u[0, 0])
    log_z = np.log(np.exp(logp - logp.max()).sum() * cell) + logp.max()
    log_z -= scipy.special.gammaln(y + 1.0).sum()
    assert abs(posterior.attrs["log_evidence"] - log_z) < 0.1


def log_probability(K, signs, u):
    """Of these signs of normal values with unit noise: importance draws in sequence (GHK)."""
    L = np.linalg.cholesky(signs[:, None] * (K + np.eye(len(K))) * signs)
    e, log_p = np.empty(u.T.shape), np.zeros(len(u))
    for i, column in enumerate(u.T):
        p = np.maximum(scipy.special.ndtr(L[i, :i] @ e[:i] / L[i, i]), 1e-300)
        e[i] = -scipy.special.ndtri(np.clip(column * p, 1e-300, 1.0 - 1e-16))
        log_p += np.log(p)
    return scipy.special.logsumexp(log_p) - np.log(len(u))


@pytest.mark.slow
def test_short_lengthscales_are_seen_where_the_stage_is_of_a_long_one():
    """Labels may be a smooth function or noise: the second had a hundredth of its mass."""
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(50, 2))
    square = ((X[:, None] - X) ** 2).sum(axis=-1)
    root = np.linalg.cholesky(2.0 * np.exp(-0.5 * square / 0.35**2) + 1e-8 * np.eye(50))
    y = (root @ rng.normal(size=50) + rng.normal(size=50) > 0.0).astype(int)
    with pm.Model():
        ls = pm.Gamma("ls", 1.0, 1.0 / np.sqrt(2.0))
        gp = pm.gp.VariationalSparse(cov_func=3.0 * pm.gp.cov.ExpQuad(2, ls=ls))
        gp.prior("u", Xu=X, jitter=1e-6)
        gp.likelihood("y", vsgp.Bernoulli("probit"), X=X, y=y)
        stage = vsgp.fit_gaussian(random_seed=1, progressbar=False)
        options = {"method": "importance", "random_seed": 1, "progressbar": False}
        post = vsgp.sample(500, stage=stage, **options)["posterior"]
    t = np.linspace(-6.0, 3.5, 39)
    log_p = t - np.exp(t) / np.sqrt(2.0)  # of the prior, with the Jacobian
    u = scipy.stats.qmc.Sobol(50, seed=1).random(2048)
    for i, of in enumerate(np.exp(t)):
        K = 3.0 * (np.exp(-0.5 * square / of**2) + 1e-6 * np.eye(50))
        log_p[i] += log_probability(K, 2.0 * y - 1.0, u)
    w = np.exp(log_p - scipy.special.logsumexp(log_p))
    drawn, mean = np.log(post["ls"].values), w @ t
    assert stage.theta["ls"] > 1.0
    assert w[t < -2.0].sum() > 0.03
    assert (drawn < -2.0).mean() > 0.02
    error = np.sqrt(w @ (t - mean) ** 2 / post.attrs["importance_ess"])
    assert abs(drawn.mean() - mean) < 5.0 * error


def apart(n=200):
    """Counts at inputs so far apart that their values are independent given the amplitude."""
    X = 10.0 * np.arange(n)[:, None]
    y = np.random.default_rng(1).poisson(np.exp(np.random.default_rng(0).normal(size=n)))
    with pm.Model() as model:
        cov = pm.LogNormal("s", 0.0, 1.0) ** 2 * pm.gp.cov.Matern32(1, ls=0.1)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X, m=2))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model, y


@pytest.fixture(scope="module")
def many():
    model, y = apart()
    with model:
        return model, y, vsgp.fit_gaussian(progressbar=False)


@pytest.mark.long
def test_chains_where_normal_proposals_tell_nothing(many):
    """Against quadrature, value by value."""
    model, y, stage = many
    with model:
        idata = vsgp.sample(250, method="importance", stage=stage, random_seed=3, progressbar=False)
    attrs = idata["posterior"].attrs
    assert np.isnan(attrs["log_evidence"]) and not attrs["refused"] and attrs["khat"] < 0.5
    s, f = np.exp(np.linspace(-1.5, 1.5, 200))[:, None], np.linspace(-9.0, 9.0, 1000)
    prior = scipy.stats.norm.pdf(f, scale=s)  # of the amplitude, and of the value
    log_s = np.log(s[:, 0])
    log_post, means = -0.5 * log_s**2, []
    for count in y:
        joint = prior * scipy.stats.poisson.pmf(count, np.exp(f))
        log_post += np.log(joint.sum(axis=1))
        means.append(joint @ f / joint.sum(axis=1))
    w = np.exp(log_post - log_post.max())
    w /= w.sum()
    mean = w @ log_s
    sd = np.sqrt(w @ (log_s - mean) ** 2)
    drawn = np.log(idata["posterior"]["s"].values.ravel())
    assert abs(drawn.mean() - mean) < 4.0 * sd * np.sqrt(2.0 / attrs["importance_ess"])
    np.testing.assert_allclose(drawn.std(), sd, rtol=0.12)
    u = idata["posterior"]["u"].values.reshape(-1, len(y))
    away = (u.mean(axis=0) - np.array(means) @ w) / u.std(axis=0)
    assert np.sqrt(np.mean(away**2)) < 0.08 and abs(away.mean()) < 0.02


@pytest.mark.long
def test_chains_are_not_built_where_nuts_is_as_fast(many, monkeypatch):
    model, _, stage = many
    monkeypatch.setattr("pymc_vsgp.fit.weigher.Chains", None)  # fails where it is called
    kwargs = {"stage": stage, "model": model, "random_seed": 1, "progressbar": False}
    monkeypatch.setattr(pm, "sample", lambda **kwargs: "nuts")
    monkeypatch.setattr("pymc_vsgp.fit.backend.LONG", np.inf)
    assert vsgp.sample(100, **kwargs) == "nuts"
    monkeypatch.setattr("pymc_vsgp.fit.backend.LONG", 0.0)
    with pytest.raises(TypeError, match="not callable"):
        vsgp.sample(100, **kwargs)


@pytest.mark.long
@pytest.mark.slow
def test_chains_that_stay_take_other_epsilon(monkeypatch):
    """By the weights: the mean over what a chain has at one theta is that of its epsilon."""
    model, stage = made(counts)
    found = weigh(stage, Weigher(model), 4000, np.random.default_rng(1), progressbar=False)
    kept = found.epsilon.shape[1]
    assert kept == TOGETHER and found.epsilon.shape == (4000, kept, 6)
    found.log_weight[:] = -1e9
    found.log_weight[::1000] = 1e9  # where each chain stays
    idata = walk.draws_of(found, model, None, 4, np.random.default_rng(2))
    u = idata["posterior"]["u"].values
    assert len(np.unique(u[:, :, 0])) > 4
    for chain in range(4):
        assert len(np.unique(idata["posterior"]["ls_u"].values[chain])) == 1
        np.testing.assert_array_equal(u[chain, kept:], u[chain, :-kept])


@pytest.mark.long
@pytest.mark.slow
def test_proposals_show_how_chains_mix(many, monkeypatch):
    """A chain that stays where it is gives draws of one chain, and these are refused."""
    model, _, stage = many
    move = Chains._move

    def stuck(self, k):
        return 0.0 if k == 2 and len(self._drawn[2]) > 20 else move(self, k)

    monkeypatch.setattr(Chains, "_move", stuck)
    kwargs = {"stage": stage, "model": model, "random_seed": 1, "progressbar": False}
    idata = vsgp.sample(100, method="importance", **kwargs)
    assert "R-hat" in idata["posterior"].attrs["refused"]
    spread = idata["posterior"]["u"].std("draw").mean("u_inducing").values
    assert spread[2] < 0.3 * spread[[0, 1, 3]].min()


@pytest.mark.slow
def test_chains_at_one_theta(many, rng):
    """Their log densities are those of the model, less a constant; R-hat sees where they differ."""
    model, _, stage = many
    stage.apply()
    points = Points(model)
    density, theta = points.log_density(), stage._theta_normal()[0]
    chains = Chains(points, density.outputs[0])
    chains.start(theta, rng)
    epsilon, logp = chains.draw(np.repeat(range(4), 3))
    (expected,) = density(theta[None], epsilon[None])
    away = expected[0] - logp
    np.testing.assert_allclose(away, away[0], atol=1e-9 * np.abs(logp).max())
    assert len(np.unique(epsilon, axis=0)) > 8 and chains.n_gradients > 12 + 4 * 40
    assert not chains.complaint()
    chains._drawn = [list(away + rng.normal(size=100)) for away in (0.0, 0.0, 0.0, 2.0)]
    assert "R-hat 1." in chains.complaint()


@pytest.mark.parametrize("step", [0.2, 0.7, 0.92, 1.06, 1.3, 1.5])
def test_chains_move_by_a_quarter_of_a_period(step, rng):
    """Whatever step they are tuned to: draws of a normal density are independent then."""
    chains = Chains.__new__(Chains)
    chains._known, chains._step = None, step
    chains._fixed = lambda *args: None
    chains._split = lambda *args: ()
    chains.points = SimpleNamespace(outer=())
    chains._at = lambda epsilon: (epsilon, 0.0, np.zeros_like(epsilon))  # all that is normal
    chains.rng = rng
    chains._settle(np.zeros(1), [np.full(1000, 1e3)] * 4, ())
    assert step / 2.0 < chains._step < 1.2 * step
    for k in range(4):
        assert chains._move(k) == pytest.approx(1.0)
        assert np.abs(chains._states[k][0]).max() < 6.0


@pytest.fixture(scope="module")
def labels():
    """Classes that are nearly separable, so that proposals are not close to their posterior."""
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(0.0, 10.0, size=(60, 1)), axis=0)
    y = np.argmax(np.sin(X + np.arange(3.0)) + 0.4 * rng.gumbel(size=(60, 3)), axis=1)
    with pm.Model():
        scale = pm.HalfNormal("scale")
        cov = scale**2 * pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", 0.7, 0.3))
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=vsgp.inducing.grid(X, 6), n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=y)
        return vsgp.fit_gaussian(progressbar=False)


def with_chains(monkeypatch):
    """Let chains draw epsilon in few dimensions, and in fitted coordinates."""
    settings = {"MANY": 1, "NORMAL": -1.0, "NEARLY": np.inf, "FINE": -1.0, "MUCH_LESS": np.inf}
    for name, value in settings.items():
        monkeypatch.setattr(importance, name, value)


@pytest.mark.long
def test_chains_in_fitted_coordinates(labels, monkeypatch, rng):
    """At their theta all weights are the same; at others they vary less than in the stage's."""
    # Sites of all functions together know already that classes share data.
    monkeypatch.setattr("pymc_vsgp.fit.joint.FEW", 0)
    monkeypatch.setattr("pymc_vsgp.fit.joint.FACTOR", np.inf)
    labels = vsgp.fit_gaussian(model=labels.model, copy=True, progressbar=False)
    weigher = Weigher(labels.model)
    weigher.begin(rng)
    assert weigher.walk(theta := labels._theta_normal()[0])
    away = theta + np.array([[0.0, 0.0], [0.4, 0.0], [0.0, 0.4], [-0.4, -0.4]])
    before = weigher.evaluate(np.repeat(away, 100, axis=0), 1).inner.reshape(4, 100)
    known, spent = weigher.chains, weigher.chains.n_gradients
    assert weigher.refine() and not weigher.refine()
    assert weigher.chains is not known and weigher.n_evaluations == 400 + spent
    np.testing.assert_array_equal(weigher.chains.theta, theta)
    after = weigher.evaluate(np.repeat(away, 100, axis=0), 1).inner.reshape(4, 100)
    for inner in (before, after):
        np.testing.assert_allclose(inner[0], inner[0, 0], atol=1e-8)
    assert (after[1:].var(axis=1) < 0.3 * before[1:].var(axis=1)).all()
    # They stay there where that pays, and only where there is something to gain.
    q = Near.one(theta, labels.theta_covariance).densities[0][1]
    for fine, much_less, fitted in ((0.0, 1.0, True), (0.0, 0.0, False), (np.inf, 1.0, False)):
        weigher.take(weigher.plain)
        assert weigher.chains is known
        monkeypatch.setattr(importance, "FINE", fine)
        monkeypatch.setattr(importance, "MUCH_LESS", much_less)
        batch = importance._probe_of_chains(weigher, q, 2)
        assert batch.inner.shape == (importance.PROBES, 2)
        assert (weigher.density is not weigher.plain) == fitted


@pytest.mark.slow
@pytest.mark.parametrize("few", [1, *long(2)])
def test_many_parameters_are_for_nuts(few, labels, monkeypatch):
    """Chains took longer than it for a lengthscale of each of 18 inputs, or drew less."""
    with_chains(monkeypatch)
    monkeypatch.setattr(importance, "FEW_OF_CHAINS", few)  # and theta has two numbers
    walked, asked = [], []
    monkeypatch.setattr(Weigher, "walk", lambda self, theta: walked.append(theta))
    weigher, rng = Weigher(labels.model), np.random.default_rng(1)
    how = {"walk": lambda model: asked.append(model) or True, "progressbar": False}
    found = weigh(labels, weigher, 100, rng, **how)
    assert len(asked) == 1 and len(walked) == few - 1
    assert found.refused.startswith("given the parameters") == (few == 1)
    weigh(labels, weigher, 100, rng, progressbar=False)  # there is no choice
    assert len(walked) == few
    assert weigher.limit == np.inf


@pytest.mark.slow
def test_rounds_end_where_chains_have_no_hope(labels, monkeypatch):
    """Nine rounds had the same weights, and were refused in the end."""
    with_chains(monkeypatch)
    rounds, adapt = [], importance.adapt
    monkeypatch.setattr(importance, "adapt", lambda *args: rounds.append(args) or adapt(*args))
    noisiest = property(lambda weigher: -1.0 if rounds else np.inf)
    monkeypatch.setattr(Weigher, "noisiest", noisiest)
    weigher, rng = Weigher(labels.model), np.random.default_rng(1)
    found = weigh(labels, weigher, 100, rng, progressbar=False)
    assert found.walked and len(rounds) == 1
    assert found.refused.startswith("given the parameters log weights vary by")


@pytest.mark.long
def test_chains_draw_what_normal_proposals_draw(labels, monkeypatch):
    weigher = Weigher(labels.model)
    expected = weigh(labels, weigher, 1000, np.random.default_rng(1), progressbar=False)
    with_chains(monkeypatch)
    found = weigh(labels, weigher, 1000, np.random.default_rng(2), progressbar=False)
    assert found.walked and not found.refused and not expected.refused
    each = (moments(of.theta, of.log_weight) for of in (found, expected))
    (n, a, cov, _), (m, b, other_cov, _) = each
    sd, other = (np.sqrt(np.diagonal(c)) for c in (cov, other_cov))
    assert (np.abs(a - b) < 4.0 * sd * np.sqrt(1.0 / n + 1.0 / m)).all()
    np.testing.assert_allclose(sd, other, rtol=4.0 * np.sqrt(1.0 / n + 1.0 / m))


@pytest.mark.long
def test_chains_move_to_the_mean_of_theta(labels, monkeypatch):
    """Where a stage ends beside it, and without mixing weights that have another constant."""
    with_chains(monkeypatch)
    sd = np.sqrt(np.diagonal(labels.theta_covariance))
    beside = labels._theta_normal()[0] - 1.5 * sd
    stage = replace(labels, theta_unconstrained=labels._split_theta(beside))
    weigher, moved, fitted = Weigher(labels.model), [], []
    go_on, adapt = Chains.go_on, importance.adapt

    def moving(self, theta):
        moved.append((self.theta, theta, len(fitted)))
        go_on(self, theta)

    def fitting(rounds, first):
        fitted.append(len(rounds))
        return adapt(rounds, first)

    monkeypatch.setattr(Chains, "go_on", moving)
    monkeypatch.setattr(importance, "adapt", fitting)
    found = weigh(stage, weigher, 1000, np.random.default_rng(3), progressbar=False)
    assert found.walked and not found.refused
    ((before, after, n),) = moved
    _, mean, cov, _ = moments(found.theta, found.log_weight)
    before, after = (np.abs(x - mean) / np.sqrt(np.diagonal(cov)) for x in (before, after))
    assert after.max() < 0.5 < 1.0 < before.max()
    assert fitted[n:][:1] in ([], [1])  # nothing from before they moved


@pytest.mark.long
@pytest.mark.parametrize("part", [np.inf, 0.0])
def test_chains_take_fitted_coordinates_where_their_weights_vary(part, labels, monkeypatch):
    """From where the mean of theta is, which a probe does not know; and leave them otherwise."""
    with_chains(monkeypatch)
    monkeypatch.setattr(importance, "FINE", np.inf)
    monkeypatch.setattr(importance, "MUCH_LESS", part)
    monkeypatch.setattr("pymc_vsgp.fit.weigher.NOISY_OF_CHAINS", 0.0)
    monkeypatch.setattr(importance, "_n_inner", lambda *args: 2)  # which show what they vary by
    weigher, rounds = Weigher(labels.model), []
    call = Weigher.__call__

    def watched(self, q, n, K):
        rounds.append((self.density is not self.plain, self.centered))
        return call(self, q, n, K)

    monkeypatch.setattr(Weigher, "__call__", watched)
    found = weigh(labels, weigher, 1000, np.random.default_rng(3), progressbar=False)
    assert found.walked and not found.refused
    fitted, centered = zip(*rounds, strict=True)
    first = fitted.index(True, 3)  # after both probes, and the round that moved the chains
    assert centered[first - 1] and not any(fitted[2:first])
    assert (weigher.density is not weigher.plain) == (part > 0.0)
    expected = weigh(
        labels, Weigher(labels.model), 1000, np.random.default_rng(1), progressbar=False
    )
    (n, a, cov, _), (m, b, other, _) = (moments(x.theta, x.log_weight) for x in (found, expected))
    error = np.sqrt(np.diagonal(cov) / n + np.diagonal(other) / m)
    assert (np.abs(a - b) < 4.0 * error).all()


@pytest.mark.long
@pytest.mark.parametrize("doubts", [2, 3])
def test_chains_propose_twice_more_before_nuts(doubts, labels, monkeypatch):
    """In fitted coordinates, as a tail may be one of epsilon."""
    weigher, fitted = Weigher(labels.model), []

    def some(*args):
        fitted.append(weigher.density is not weigher.plain)
        return DOUBT if len(fitted) <= doubts else weights.Doubt()

    monkeypatch.setattr(importance, "doubt_of", some)
    monkeypatch.setattr(importance, "refusal", lambda *args: "")  # for a tail: it is chance
    with_chains(monkeypatch)
    monkeypatch.setattr(importance, "FINE", np.inf)
    settings = {"rng": np.random.default_rng(1), "progressbar": False}
    found = weigh(labels, weigher, 1000, **settings)
    assert fitted == [False, True, True] and found.thin == 1 and found.walked
    assert found.refused == (DOUBT.what if doubts == 3 else "")


@pytest.mark.long
def test_chains_settle_a_doubt_where_nuts_is_no_choice(labels, monkeypatch):
    """Two fits and four times as many proposals: each chain has those of one after another."""
    asked, at = [], []

    def thrice(log_w, single, draws):
        asked.append(len(log_w))
        return DOUBT if len(asked) <= 3 else weights.Doubt()

    ordered = Batch.ordered
    monkeypatch.setattr(Batch, "ordered", lambda self, i: at.append(i) or ordered(self, i))
    monkeypatch.setattr(importance, "doubt_of", thrice)
    monkeypatch.setattr(importance, "refusal", lambda *args: "")  # for a tail: it is chance
    with_chains(monkeypatch)
    settings = {"rng": np.random.default_rng(1), "give_up": False, "progressbar": False}
    found = weigh(labels, Weigher(labels.model), 400, **settings)
    assert asked == [400, 400, 400, 1600] and found.thin == 4
    assert found.walked and not found.refused
    np.testing.assert_array_equal(at[0][:400], [*range(100), *range(400, 700)])


@pytest.mark.long
def test_ctrl_c_keeps_what_chains_have_drawn(labels, monkeypatch):
    """Also while coordinates of the next proposals are compiled."""
    more = Weigher.more

    def stopped(self):
        raise KeyboardInterrupt

    def and_stop(self, *args):
        monkeypatch.setattr(Weigher, "refine", stopped)
        return more(self, *args)

    monkeypatch.setattr(importance, "doubt_of", lambda *args: DOUBT)
    monkeypatch.setattr(Weigher, "more", and_stop)
    with_chains(monkeypatch)
    settings = {"rng": np.random.default_rng(1), "progressbar": False}
    found = weigh(labels, Weigher(labels.model), 400, **settings)
    assert found.interrupted and found.refused == DOUBT.what and len(found.theta) == 400


@pytest.mark.slow
def test_draws_are_those_of_a_sampler(caplog):
    model, stage = made(counts)
    with model:
        pm.Deterministic("rate", pm.math.exp(model["u"]))
        kwargs = {"random_seed": 5, "progressbar": False, "chains": 2}
        with caplog.at_level(logging.INFO, logger="pymc"):
            one, two = (vsgp.sample(300, stage=stage, method="auto", **kwargs) for _ in range(2))
    assert "importance: k-hat" in caplog.text and "600 proposals" in caplog.text
    for name, x in one["posterior"].data_vars.items():
        np.testing.assert_array_equal(x, two["posterior"][name], err_msg=name)
    posterior, stats = one["posterior"], one["sample_stats"]
    assert posterior["u"].dims == ("chain", "draw", "u_inducing")
    assert posterior["u"].shape == (2, 300, 6)
    np.testing.assert_allclose(posterior["rate"], np.exp(posterior["u"]))
    assert posterior.attrs["method"] == "importance"
    assert posterior.attrs["khat"] < 0.5
    assert stats["log_weight"].shape == stats["acceptance_rate"].shape == (2, 300)
    assert 0.3 < float(stats["acceptance_rate"].mean()) <= 1.0
    assert {"gaussian_stage", "observed_data", "constant_data"} <= set(one.children)


@pytest.mark.long
def test_normal_noise_proposes_parameters_alone():
    """And the inducing values come from their exact conditional: as from the whole model."""
    model, stage = made(normal)
    kwargs = {"stage": stage, "method": "importance", "model": model, "random_seed": 2}
    trees = [vsgp.sample(500, collapse=c, progressbar=False, **kwargs) for c in (None, False)]
    one, two = (t["posterior"].to_dataset() for t in trees)
    assert one.attrs["khat"] < 0.5
    assert abs(one.attrs["log_evidence"] - two.attrs["log_evidence"]) < 0.15
    for name in ("ls_u", "c_u", "sigma", "u"):
        a, b = one[name], two[name]
        error = a.std(("chain", "draw")) * np.sqrt(2.0 / 200.0)
        assert (abs(a.mean(("chain", "draw")) - b.mean(("chain", "draw"))) < 4.0 * error).all()


@pytest.mark.slow
def test_inducing_values_of_many_draws_are_those_of_each():
    """All at once, and one by one where the noise of rows is a parameter; against numpy."""
    rng, X, f = inputs()
    y = f + 0.3 * rng.normal(size=N)
    found = []
    for shape in ((), (2,)):
        with pm.Model() as model:
            ls, sigma = pm.LogNormal("ls"), pm.HalfNormal("sigma", shape=shape)
            gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
            gp.prior("u", Xu=(Z := vsgp.inducing.grid(X, 6)), jitter=1e-8)
            lik = vsgp.Gaussian(sigma[np.arange(N) % 2] if shape else sigma)
            gp.likelihood("y", lik, X=X, y=y)
        draws = {"ls": (("chain", "draw"), [[1.0] * 3, [2.0] * 3])}
        dims = ("chain", "draw", "k")[: 2 + len(shape)]
        draws["sigma"] = dims, np.full((2, 3, *shape), 0.4)
        found.append(recover(collapse(model), xr.Dataset(draws), random_seed=4)["u"])
    np.testing.assert_allclose(*found, rtol=1e-8)
    noise = np.random.default_rng(4).normal(size=(2, 3, 6))
    for c, ls in enumerate((1.0, 2.0)):
        K, Kx = (np.exp(-0.5 * ((Z - b.T) / ls) ** 2) for b in (Z, X))
        R = np.linalg.cholesky(K + 1e-8 * np.eye(6))
        A = np.linalg.solve(R, Kx)
        L = np.linalg.cholesky(np.eye(6) + A @ A.T / 0.16)
        half = np.linalg.solve(L, A @ y / 0.16)
        expected = np.linalg.solve(L.T, (half + noise[c]).T).T @ R.T
        np.testing.assert_allclose(found[0][c], expected, rtol=1e-6, atol=1e-8)


def with_sum():
    """Normal noise, and a variable that depends on inducing values."""
    normal()
    (u,) = [v for v in pm.modelcontext(None).free_RVs if v.name == "u"]
    pm.Deterministic("total", u.sum() * pm.modelcontext(None)["sigma"])


@pytest.mark.parametrize("drawn", [*long(0), 3_000_000], ids=["after", "while"])
@pytest.mark.slow
def test_inducing_values_are_drawn_from_their_conditional(drawn, monkeypatch):
    """Before or after weights are known, standardized by numpy they are standard normal."""
    monkeypatch.setattr("pymc_vsgp.fit.sampling.DRAWN", drawn)
    model, stage = made(with_sum)
    tree = vsgp.sample(
        500, stage=stage, method="importance", model=model, random_seed=5, progressbar=False
    )
    post = tree["posterior"].to_dataset().stack(at=("chain", "draw"))
    u = post["u"].values.T
    np.testing.assert_allclose(post["total"], u.sum(axis=1) * post["sigma"].values, rtol=1e-10)
    _, X, _ = inputs()
    (Z,), y = stage.Xu.values(), tree["observed_data"]["y"].values
    z = np.empty_like(u)
    for i, (ls, c, s) in enumerate(
        zip(*(post[n].values for n in ("ls_u", "c_u", "sigma")), strict=True)
    ):
        K, Kx = (1.5 * np.exp(-0.5 * ((Z - b.T) / ls) ** 2) for b in (Z, X))
        A = np.linalg.solve(K + 1e-6 * 1.5 * np.eye(len(Z)), Kx)
        precision = np.linalg.inv(K + 1e-6 * 1.5 * np.eye(len(Z))) + A @ A.T / s**2
        mean = c + np.linalg.solve(precision, A @ (y - c) / s**2)
        z[i] = np.linalg.cholesky(precision).T @ (u[i] - mean)
    theta = post["ls_u"].values.reshape(4, -1)
    stays = np.zeros((4, theta.shape[1]), bool)
    stays[:, 1:] = theta[:, 1:] == theta[:, :-1]
    same = (u.reshape(4, -1, 6)[:, 1:] == u.reshape(4, -1, 6)[:, :-1]).all(axis=2)
    assert 0.1 < stays.mean() < 0.9
    assert not same.any()
    n = len(np.unique(z[:, 0]))
    assert n > 1000
    assert (abs(z.mean(axis=0)) < 4.0 / np.sqrt(0.5 * n)).all()
    assert abs((z**2).mean() - 1.0) < 4.0 * np.sqrt(2.0 / (0.5 * n * 6))


@pytest.mark.long
@pytest.mark.slow
def test_two_modes_are_found_or_refused():
    """Few data that a short lengthscale explains without noise, and a long one with noise."""
    X = np.linspace(0.0, 6.0, 9)[:, None]
    y = 0.8 * np.array([1.0, -0.9, 1.1, -1.0, 0.9, -1.1, 1.0, -1.0, 1.0])
    Z = X

    def kernel(a, b, ls):
        return np.exp(-0.5 * ((a - b.T) / ls) ** 2)

    with pm.Model():
        ls = pm.LogNormal("ls", 0.0, 1.5)
        sigma = pm.LogNormal("sigma", -1.0, 1.0)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=Z)
        gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
        idata = vsgp.sample(stage=stage, method="importance", random_seed=1, progressbar=False)
        with pytest.warns(UserWarning, match=r"Starts disagree: they ended at 2 optima, at ls = "):
            starts = vsgp.fit_gaussian(n_starts=6, random_seed=1, progressbar=False)
        better = vsgp.sample(stage=starts, method="importance", random_seed=1, progressbar=False)
    # The sparse posterior itself, on a grid.
    grid = np.linspace(-5.0, 6.0, 111), np.linspace(-5.0, 2.0, 71)
    logp = np.empty((111, 71))
    for i, a in enumerate(grid[0]):
        R = np.linalg.cholesky(kernel(Z, Z, np.exp(a)) + 1e-6 * np.eye(9))
        A = np.linalg.solve(R, kernel(Z, X, np.exp(a)))
        for j, b in enumerate(grid[1]):
            var = np.exp(2.0 * b)
            cov = A.T @ A + var * np.eye(9)
            left_out = np.sum(1.0 - (A**2).sum(axis=0)) / (2.0 * var)
            logp[i, j] = scipy.stats.multivariate_normal.logpdf(y, cov=cov) - left_out
    logp += scipy.stats.norm.logpdf(grid[0], 0.0, 1.5)[:, None]
    logp += scipy.stats.norm.logpdf(grid[1], -1.0, 1.0)
    w = np.exp(logp - logp.max()).sum(axis=1)
    w /= w.sum()
    long = w[grid[0] > 0.5].sum()
    assert 0.02 < long < 0.98
    found = float((np.log(idata["posterior"]["ls"]) > 0.5).mean())
    assert idata["posterior"].attrs["refused"] or abs(found - long) < 0.05
    # Starts elsewhere find both, and their estimate of the parts is not far off.
    (other,) = starts.elsewhere
    assert starts.elbo >= max(stage.elbo, other.elbo)
    assert "another optimum, ELBO" in repr(starts)
    ends = [float(np.log(s.theta["ls"])) for s in (starts, other)]
    assert (min(ends) < 0.5) and (max(ends) > 0.5)
    parts = np.exp([starts.log_mass, other.log_mass])
    assert abs(parts[np.argmax(ends)] / parts.sum() - long) < 0.1
    assert not better["posterior"].attrs["refused"]
    error = np.sqrt(long * (1.0 - long) / better["posterior"].attrs["importance_ess"])
    assert abs(float((np.log(better["posterior"]["ls"]) > 0.5).mean()) - long) < 5.0 * error


@pytest.mark.long
def test_starts_that_agree_are_one_optimum():
    model, stage = made(counts)
    several = vsgp.fit_gaussian(n_starts=4, random_seed=3, model=model, progressbar=False)
    assert several.elsewhere == ()
    np.testing.assert_allclose(several.elbo, stage.elbo, atol=0.01)
    assert several.elbo >= stage.elbo
    with pytest.raises(ValueError, match="n_starts is 0. Pass a whole number, 1 or more"):
        vsgp.fit_gaussian(n_starts=0, model=model)
    with pytest.raises(ValueError, match="'natural' or 'minibatch' alone"):
        vsgp.fit_gaussian("advi", n_starts=2, model=model)
    with model:
        pm.Potential("of_flat", -(pm.Flat("flat") ** 2))
    with pytest.raises(ValueError, match="improper one. Give it a proper prior, or drop n_starts"):
        vsgp.fit_gaussian(n_starts=2, model=model, progressbar=False)


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_drawn(monkeypatch):
    model, stage = made(counts)
    weigher, rng = Weigher(model), np.random.default_rng(4)
    plain, calls = weigher.plain, []

    def interrupted(theta, epsilon, advance):
        calls.append(len(theta))
        found = plain(theta, epsilon, advance)
        return [x[:77] for x in found] if len(theta) == 400 else found

    interrupted.cost = plain.cost
    weigher.plain = interrupted
    found = weigh(stage, weigher, 400, rng, progressbar=False)
    assert calls[-1] == 400
    assert found.theta.shape == (77, 2)
    assert found.epsilon.shape == (77, weigher.n_kept, 6)
    assert len(found.log_weight) == 77
    # Before there is anything to keep it is an interrupt.
    weigher.plain = lambda theta, epsilon, advance: [x[:3] for x in plain(theta, epsilon, advance)]
    weigher.plain.cost = plain.cost
    with pytest.raises(KeyboardInterrupt):
        weigh(stage, weigher, 400, rng, progressbar=False)


def test_a_tail_that_looks_light_by_chance_is_not_believed(rng):
    """What 4000 weights say of a tail is off by a tenth, and by chance by more than that."""
    heavy = 0.8 * rng.exponential(size=(40, 16_000))  # logs of Pareto weights
    looks = [weights.tail(w[:4000])[0] for w in heavy]
    assert min(looks) < weights.LARGEST_K
    assert all(weights.refusal(w) or weights.doubt_of(w).what for w in heavy)
    light = 0.2 * rng.exponential(size=(10, 4000))
    assert not any(weights.refusal(w) or weights.doubt_of(w).what for w in light)


def test_draws_that_repeat_too_few_proposals_are_in_doubt(rng):
    """Weights may be light, and the sample still worth so little that R-hat shows it."""
    w = np.where(rng.random(1000) < 0.25, 0.0, -9.0) + 0.1 * rng.random(1000)
    assert weights.tail(w)[1] < 300 and not weights.refusal(w)
    what, of_tail, times = weights.doubt_of(w, (), 1000)
    assert what.startswith("ESS 2") and not of_tail and times == 2
    assert weights.doubt_of(w[:400], (), 1000).times == 4
    assert not weights.doubt_of(w, (), 400).what
    assert not weights.doubt_of(np.repeat(w, 2), (), 1000).what


@pytest.mark.parametrize("n", [1000, 1001])
def test_halves_of_the_weights_that_disagree(n, rng):
    log_w = 0.3 * rng.normal(size=n)
    assert not weights.refusal(log_w)
    log_w[::2] += 0.3  # some twelve standard errors of the mean
    assert weights.refusal(log_w) == "halves of the weights disagree"


def test_proposals_without_a_density_have_no_weight():
    log_w = np.r_[np.zeros(30), np.full(10, -np.inf)]
    assert weights.tail(log_w)[1] == pytest.approx(30.0)
    found, _ = weights.smooth_weights(np.arange(4.0))  # too few for a tail
    np.testing.assert_allclose(np.exp(found), np.exp(np.arange(4.0)) / np.exp(np.arange(4.0)).sum())


def weighed_normals(rng, mean, cov, n=4000):
    """Moments of proposals of epsilon, weighed for a normal target."""
    q = of_epsilon(np.zeros(len(mean)))
    epsilon = q.draw(n, rng)
    log_w = scipy.stats.multivariate_normal.logpdf(epsilon, mean, cov) - q.logpdf(epsilon)
    return moments(epsilon, log_w)


def test_moments_of_epsilon_are_found_where_they_differ(rng):
    m = 12
    direction = np.ones(m) / np.sqrt(m)
    cov = np.eye(m) + 2.0 * np.outer(direction, direction)
    mean = np.where(np.arange(m) == 3, 0.8, 0.0)
    found = of_moments([weighed_normals(rng, mean, cov) for _ in range(3)])
    widened = of_epsilon(np.zeros(m)).root
    np.testing.assert_allclose(found.center, mean, atol=0.12)
    np.testing.assert_allclose(found.root @ found.root.T / widened**2, cov, atol=0.25)
    # What is proposed has the density that is said.
    at = found.draw(5, rng)
    expected = scipy.stats.multivariate_t.logpdf(
        at, found.center, found.root @ found.root.T, found.dof
    )
    np.testing.assert_allclose(found.logpdf(at), expected, rtol=1e-10)


SAMPLES = [(1000, 120, 1.5), (300, 10, 1.0), (4000, 12, 0.0), (500, 2, 0.5)]


@pytest.mark.parametrize(("n", "m", "heavy"), SAMPLES)
def test_eigenvalues_are_freed_of_the_noise_of_weights(rng, n, m, heavy):
    """A large weight makes an eigenvalue by itself, which a count of equal draws does not tell."""
    variance, told = np.r_[0.04, 10.0, np.ones(m - 2)], []
    for _ in range(5):
        log_w = heavy * rng.normal(size=n)
        x = rng.normal(size=(n, m))
        noise, found = (moments(z, log_w) for z in (x, np.sqrt(variance) * x))
        assert (without_noise(np.linalg.eigvalsh(noise.covariance), noise.weights) == 1.0).all()
        values = np.linalg.eigvalsh(found.covariance)
        told.append(without_noise(values, found.weights))
        assert (told[-1] == 1.0).sum() >= m - 2
    np.testing.assert_allclose(np.mean(told, axis=0)[[0, -1]], [0.04, 10.0], rtol=0.35)


def test_noise_moves_no_proposals(rng):
    """Nor do weights that tell nothing."""
    for m in (2, 12, 60):
        assert of_moments([weighed_normals(rng, np.zeros(m), np.eye(m))]) is None
    assert of_moments([]) is None
    nothing = moments(rng.normal(size=(100, 3)), np.full(100, -np.inf))
    assert of_moments([nothing]) is None
    # One weight, and hardly any but one: these have no variance.
    for rest in [-np.inf, *10 * [-40.0]]:
        log_w = np.full(100, rest)
        log_w[7] = 0.0
        found = of_moments([moments(0.1 * rng.normal(size=(100, 3)), log_w)])
        assert found is None or np.isfinite(found.logpdf(np.zeros((1, 3)))).all()


@pytest.mark.slow
def test_draws_that_come_along_are_held_in_blocks(rng, monkeypatch):
    """Their noise is as large as they are, where there is no epsilon to propose."""
    with pm.Model() as model:
        normal()
    whole = collapse(model, gradient=False)
    weigher, sizes = Weigher(whole.model, integrated=whole), []
    weigher.begin(rng)
    density = weigher.density
    monkeypatch.setattr(
        weigher, "density", lambda *x: sizes.append(x[1].nbytes) or density(*x), raising=False
    )
    monkeypatch.setattr("pymc_vsgp.fit.weigher.EPSILON_BYTES", limit := 10 * 8 * TOGETHER * 6)
    batch = weigher.evaluate(rng.normal(size=(25, weigher.points.n_theta)), 1)
    assert sizes == [limit, limit, limit // 2]
    assert batch.epsilon.shape == (25, TOGETHER, 6)


@pytest.mark.slow
@pytest.mark.parametrize("build", [counts, *long(normal)])
def test_no_weight_is_refused(build):
    model, stage = made(build)
    weigher = Weigher(model)
    plain = weigher.plain

    def nowhere(theta, epsilon, advance=None):
        return [np.full_like(x, -np.inf) for x in plain(theta, epsilon)]

    nowhere.cost, weigher.plain = plain.cost, nowhere
    weigher.refine = lambda: False
    for give_up in (True, False):
        rng = np.random.default_rng(1)
        found = weigh(stage, weigher, 200, rng, give_up=give_up, progressbar=False)
        assert found.refused


@pytest.mark.long
@pytest.mark.parametrize("noise", [(0.5, 0.5, 2.0), (0.5, 0.5, 0.5, 2.0)])
def test_noise_that_shows_late_calls_for_other_coordinates(monkeypatch, noise):
    """The first round took the noise of some counts for small, by chance, and NUTS took minutes."""
    model, stage = made(counts)
    weigher, at, told = Weigher(model), [], []
    refine = weigher.refine

    def variance(batch, log_w):
        told.append(noise[len(told)] if len(told) < len(noise) else 0.5)
        return told[-1]

    def counted():
        at.append(len(told))
        return refine()

    monkeypatch.setattr(Batch, "inner_variance", variance)
    monkeypatch.setattr(weigher, "refine", counted)
    # After the rounds coordinates may change for another reason.
    monkeypatch.setattr(weigher, "change_coordinates", lambda *_: False)
    found = weigh(stage, weigher, 1000, np.random.default_rng(1), progressbar=False)
    assert at == ([] if len(noise) == 4 else [len(noise)])
    assert (weigher.density is weigher.plain) == (len(noise) == 4)
    assert not found.refused


@pytest.mark.long
def test_functions_that_share_data_are_proposed_together(monkeypatch):
    """By the moments of their proposals, where they take no step together."""
    monkeypatch.setattr(newton, "JOINT", 0)
    monkeypatch.setattr("pymc_vsgp.fit.joint.FEW", 0)  # nor have sites together
    monkeypatch.setattr(density, "INTEGRAL", 0.0)  # so that there are many of epsilon
    rng = np.random.default_rng(5)
    X = np.linspace(0.0, 10.0, 40)[:, None]
    y = np.argmax(np.sin(X + np.arange(3.0)) + rng.gumbel(size=(40, 3)), axis=1)
    with pm.Model() as model:
        cov = 0.6 * pm.gp.cov.ExpQuad(1, ls=pm.LogNormal("ls", 1.0, 0.25))
        gp = pm.gp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=vsgp.inducing.grid(X, 8), n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
    seeds, found = range(1, 4), {}
    for adapted in (True, False):
        if not adapted:
            for name in ("importance", "weigher"):
                monkeypatch.setattr(f"pymc_vsgp.fit.{name}.LARGEST", 0)
        weigher, found[adapted] = Weigher(model), []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            found[adapted].append(weigh(stage, weigher, 2000, rng, progressbar=False))
            assert weigher.adapted == adapted
    assert not any(w.refused for w in found[True])
    worth = {of: np.mean([w.ess / len(w.log_weight) for w in x]) for of, x in found.items()}
    assert worth[True] > 1.2 * worth[False]
    assert np.mean([w.khat for w in found[True]]) < np.mean([w.khat for w in found[False]])
    # With the same constant: proposals do not change the target.
    for one, other in zip(*found.values(), strict=True):
        if not other.refused:
            error = 4.0 * np.sqrt(1.0 / one.ess + 1.0 / other.ess)
            assert abs(one.log_evidence - other.log_evidence) < error


def noise_given_theta(stage, rng):
    """Variance of log weights of normal epsilon at typical theta."""
    points = Points(stage.model)
    theta = rng.multivariate_normal(*importance._estimate(points, stage), size=30)
    epsilon = rng.normal(size=(30, 12, points.n_epsilon))
    logp, _ = points.refined()(theta, epsilon)
    return np.median((logp + (epsilon**2).sum(axis=-1) / 2.0).var(axis=1, ddof=1))


@pytest.mark.long
@pytest.mark.parametrize("W", [[1.0, 1.0], [[1.0, 0.3], [-0.5, 1.2], [0.7, 0.7]]])
def test_a_step_of_several_functions_is_exact_where_noise_is_normal(W, monkeypatch, rng):
    """An observation of a sum says nothing of its parts: they are correlated."""
    _, X, f = inputs()
    n = np.shape(W)[:-1]
    with pm.Model():
        gps = [process(X), process(X, "w", 4)]
        lik, y = vsgp.Gaussian(pm.HalfNormal("sigma")), rng.normal(size=(N, *n))
        vsgp.Coregionalized(W, gps).likelihood("y", lik, X=X, y=y + f.reshape(N, *[1] * len(n)))
        stage = vsgp.fit_gaussian(progressbar=False)
    assert noise_given_theta(stage, rng) < 1e-12
    monkeypatch.setattr(newton, "JOINT", 0)
    assert noise_given_theta(stage, rng) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("build", [classes, summed, by_group])
def test_functions_that_share_data_take_a_step_together(build, monkeypatch, rng):
    _, stage = made(build)
    joint = noise_given_theta(stage, rng)
    monkeypatch.setattr(newton, "JOINT", 0)
    assert joint < 0.3 * noise_given_theta(stage, rng)


@pytest.mark.long
def test_location_and_scale_take_steps_alone(monkeypatch, rng):
    """Together they would take twice the time, and weights vary as much."""
    _, stage = made(two)
    points, theta, epsilon = points_of(stage.model, rng)
    found, _ = points.refined()(theta, epsilon)
    monkeypatch.setattr(newton, "JOINT", 0)
    alone, _ = Points(stage.model).refined()(theta, epsilon)
    np.testing.assert_array_equal(found, alone)


@pytest.mark.slow
def test_points_of_a_rough_expectation_are_no_rows():
    """There are ten of them for three functions: as many as rows of these data."""
    x = np.linspace(0.0, 1.0, 10)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=x[::5], n_outputs=3)
        gp.likelihood("y", vsgp.Softmax(3), X=x, y=np.arange(10) % 3)
    (node,) = block_sums(simplify(model.logp()))
    found = stream_gaussian(node, [pt.zeros((3, 2))], [pt.zeros((3, 2, 2))], joint=True)
    assert found.joint is not None and found.joint.type.ndim == 2


def test_classes_without_second_derivatives_take_steps_alone():
    """Robust-max says which function is the largest, and not by how much."""
    with pytest.raises(NotImplementedError, match="second derivatives"):
        roughly(lambda f: vsgp.RobustMax(3).log_prob(f, 1), pt.zeros((4, 3)), pt.ones((4, 3)))


def test_a_theta_without_weight_hides_no_tail(rng):
    """Its single weights were NaN, and so was their k-hat, which then did not count."""
    inner = rng.standard_exponential(size=(4000, 4)) * 0.8  # a Pareto tail of 0.8
    inner[:3] = -np.inf
    zeros = np.zeros((4000, 1))
    batch = Batch(zeros, inner, zeros, inner[:, 0])
    single = batch.single(batch.log_marginal)
    assert np.isneginf(single[:12]).all() and np.isfinite(single[12:]).all()
    assert weights.shape(batch.log_marginal, single)[0] > 0.65


def test_means_do_not_hide_the_tail_of_single_weights(rng):
    """A mean of 64 looks light where none of them is, and its tail is the same."""
    heavy = 0.75 * rng.exponential(size=(6, 4000, 64))
    means = scipy.special.logsumexp(heavy, axis=2) - np.log(64)
    assert not all(weights.refusal(w) or weights.doubt_of(w).what for w in means)
    for log_w, each in zip(means, heavy, strict=True):
        batch = Batch(np.zeros((4000, 1)), each - 3.0, np.zeros((4000, 1)), log_w)
        single = batch.single(log_w)
        np.testing.assert_allclose(single, each.ravel())
        assert weights.refusal(log_w, single) or weights.doubt_of(log_w, single).what
        assert weights.shape(log_w, single)[0] >= weights.tail(single)[0]
    light = 0.2 * rng.exponential(size=(4000, 64))
    log_w = scipy.special.logsumexp(light, axis=1) - np.log(64)
    assert not weights.refusal(log_w, light.ravel())
    assert not weights.doubt_of(log_w, light.ravel()).what
    assert weights.shape(log_w, log_w) == weights.shape(log_w, ())  # one for each theta


def test_where_no_epsilon_lands_is_told_by_those_nearby(rng):
    """A theta has ten of epsilon, whose weights may look alike by chance."""
    theta = rng.normal(size=(2000, 2))
    far = theta[:, 0] > 1.5
    inner = np.where(far, 6.0, 1.0)[:, None] * rng.normal(size=(2000, 10))
    inner[far] -= 18.0  # so that each has about a mean weight of one
    inner[5] = -np.inf
    batch = Batch(theta, inner, np.zeros((2000, 1)), inner[:, 0])
    found = batch.rough(batch.log_marginal)
    assert np.isin(np.flatnonzero(theta[:, 0] > 1.8), found).mean() > 0.95
    assert not np.isin(np.flatnonzero(theta[:, 0] < 0.5), found).any()
    assert np.isneginf(batch.log_marginal[5]) and 5 not in found
    few = Batch(theta[:50], inner[:50], inner[:50], inner[:50, 0])
    one = Batch(theta, inner[:, :1], inner, inner[:, 0])
    for batch in (few, one):
        assert not batch.rough(batch.log_marginal).size


class Stub(Weigher):
    """In coordinates in which the weights of some theta are rough, and in fitted ones."""

    def __init__(self, rng, found):
        self.rng, self.found, self.chains = rng, found, None
        self.plain = self.density = "plain"
        self.epsilon, self.moments = "adapted", ["found"]

    def take(self, density):
        self.density, self.epsilon, self.moments = density, "standard", []

    def refine(self):
        self.take("fitted")
        return True

    def more(self, theta, K, advance=None):
        if self.found is None:
            return None
        level = np.full((len(theta), K), -1e3)
        level[: self.found[0]] = self.found[1]
        return Batch(theta, level, level, level)


def rough_where_far(rng, level):
    theta = rng.normal(size=(6000, 2))
    far = theta[:, 0] > 1.5
    inner = np.where(far, 8.0, 1.0)[:, None] * rng.normal(size=(6000, 10))
    inner[far] += level
    return Batch(theta, inner, inner, inner)


@pytest.mark.parametrize(
    ("level", "n", "fitted", "changes"),
    [
        (-50.0, None, 0.0, True),  # as likely as others
        (-500.0, 2, 8.0, True),  # two have more than all others, which are without weight
        (-20.0, None, 800.0, True),  # exp overflows
        (-50.0, None, -20.0, False),  # there is next to nothing, as it seemed
        (-50.0, 0, 0.0, False),
    ],
)
def test_fitted_coordinates_take_over_where_they_find_more(level, n, fitted, changes, rng):
    batch, weigher = rough_where_far(rng, level), Stub(rng, (n, fitted))
    q = SimpleNamespace(logpdf=lambda theta: np.zeros(len(theta)))
    assert weigher.change_coordinates(q, batch, batch.log_marginal) == changes
    adapted = ("plain", "adapted", ["found"])
    kept = (weigher.density, weigher.epsilon, weigher.moments)
    assert kept == (("fitted", "standard", []) if changes else adapted)


def test_an_interrupt_leaves_the_coordinates_as_they_were(rng):
    batch, weigher = rough_where_far(rng, -50.0), Stub(rng, None)
    q = SimpleNamespace(logpdf=lambda theta: np.zeros(len(theta)))
    with pytest.raises(KeyboardInterrupt):
        weigher.change_coordinates(q, batch, batch.log_marginal)
    assert (weigher.density, weigher.epsilon, weigher.moments) == ("plain", "adapted", ["found"])


DOUBT = weights.Doubt("k-hat 0.45 ± 0.11", of_tail=True, times=4)


@pytest.mark.slow
def test_doubt_is_settled_by_more_proposals(monkeypatch, caplog):
    model, stage = made(counts)
    weigher = Weigher(model)
    asked = []

    def once(log_w, single, draws):
        asked.append(len(log_w))
        return DOUBT if len(log_w) == 400 else weights.Doubt()

    monkeypatch.setattr(importance, "doubt_of", once)
    settings = {"stage": stage, "model": model, "random_seed": 1, "progressbar": False}
    with caplog.at_level(logging.INFO, logger="pymc"):
        tree = vsgp.sample(100, method="importance", **settings)
    assert "k-hat 0.45 ± 0.11 of 400 proposals, so " in caplog.text
    assert max(asked) == 1600
    assert tree["posterior"].attrs["refused"] == ""
    assert tree["posterior"].sizes["draw"] == tree["sample_stats"].sizes["draw"] == 100
    # Interrupted while there is doubt: what was there is kept, and the doubt is said.
    monkeypatch.setattr(importance, "doubt_of", lambda *args: DOUBT)
    monkeypatch.setattr(Weigher, "more", lambda *args: None)
    found = weigh(stage, weigher, 400, np.random.default_rng(1), progressbar=False)
    assert found.interrupted
    assert len(found.theta) == 400
    assert found.refused == "k-hat 0.45 ± 0.11"


@pytest.mark.long
@pytest.mark.slow
def test_a_doubt_first_fits_the_proposal_again(monkeypatch):
    model, stage = made(counts)
    weigher, asked, used = Weigher(model), [], []

    def once(log_w, single, draws):
        asked.append(len(log_w))
        return DOUBT if len(asked) == 1 else weights.Doubt()

    judged = importance._judged
    monkeypatch.setattr(importance, "doubt_of", once)
    monkeypatch.setattr(importance, "_judged", lambda *args: used.append(args) or judged(*args))
    settings = {"rng": np.random.default_rng(1), "progressbar": False}
    found = weigh(stage, weigher, 4000, **settings)
    assert asked == [4000, 4000] and found.thin == 1 and not found.refused
    (_, before, first, _), (_, after, second, _) = used
    assert before is not after and not np.isin(first.theta, second.theta).any()
    # As good a proposal of the same posterior, from proposals of its own.
    np.testing.assert_array_equal(found.theta, second.theta)
    old, _, _ = judged(weigher, before, first, 4000)[:3]
    assert importance.tail(found.log_weight)[1] > 0.9 * importance.tail(old)[1]
    evidence = importance.logsumexp(old) - np.log(len(old))
    np.testing.assert_allclose(found.log_evidence, evidence, atol=4.0 * np.sqrt(2.0 / found.ess))


@pytest.mark.slow
def test_a_sample_that_is_worth_too_little_takes_more_of_the_same(monkeypatch):
    """And a refusal after that as many again, so that there are draws for every chain."""
    _, stage = made(counts)
    doubts = [weights.Doubt("ESS 150", times=2), weights.Doubt(), weights.Doubt()]
    refusals = ["", "k-hat 0.70", ""]
    asked = []
    monkeypatch.setattr(importance, "doubt_of", lambda *args: asked.append(args) or doubts.pop(0))
    judge = importance.refusal
    # The first look is of whether more of epsilon may help.
    monkeypatch.setattr(
        importance, "refusal", lambda *args: refusals.pop(0) if len(args) > 1 else judge(*args)
    )
    weigher = Weigher(stage.model)
    # A hundred take 400 proposals: one draw for every four of them, and then for every eight.
    found = weigh(stage, weigher, 100, np.random.default_rng(1), progressbar=False)
    first, second, third = (log_w for log_w, _, _ in asked)
    assert [len(first), len(second), len(third)] == [400, 800, 800]
    np.testing.assert_array_equal(second[:400], first)
    assert not np.isin(second, third).any()
    assert found.thin == 8 and len(found.theta) == 800 and not found.refused


@pytest.mark.slow
def test_few_draws_take_more_proposals(caplog):
    """A handful of weights has no tail: k-hat is not known, which says nothing against them."""
    model, stage = made(counts)
    with model, caplog.at_level(logging.INFO, logger="pymc"):
        tree = vsgp.sample(5, chains=2, stage=stage, random_seed=4, progressbar=False)
    assert "640 proposals" in caplog.text
    attrs = tree["posterior"].attrs
    assert attrs["method"] == "importance" and attrs["refused"] == ""
    assert attrs["khat"] <= weights.LARGEST_K
    assert dict(tree["posterior"].sizes)["chain"] == 2 and tree["posterior"].sizes["draw"] == 5
    # As many weights as tell it, and none of them of use, are refused.
    assert weights.refusal(np.r_[0.0, np.full(99, -np.inf)])
    assert weights.refusal(np.full(10, -np.inf))
    lost = np.full(400, -np.inf)
    points = Points(model)
    found = importance._better(stage, points, np.zeros((400, points.n_theta)), lost)
    assert found is stage


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"compute_convergence_checks": False}, {"quiet": True}])
def test_few_effective_draws_are_told(asked, caplog):
    """As PyMC tells it. A larger tune is no remedy: there is none."""
    model, stage = made(counts)
    kwargs = {"stage": stage, "model": model, "random_seed": 4, "progressbar": False, **asked}
    vsgp.sample(100, chains=2, **kwargs)
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == (not asked)
    assert all("Pass more draws, and look at az.plot_trace." in t for t in told)


@pytest.mark.slow
def test_settings_of_nuts_ask_for_it(monkeypatch):
    model, stage = made(counts)
    monkeypatch.setattr("pymc_vsgp.fit.sampling.Weigher", None)  # fails where it is called
    monkeypatch.setattr(pm, "sample", lambda **kwargs: "nuts")
    for asked in ({"target_accept": 0.95}, {"nuts_sampler": "pymc"}, {"initvals": {"ls_u": 1.0}}):
        assert vsgp.sample(3, stage=stage, method="auto", model=model, **asked) == "nuts"
    assert vsgp.sample(3, stage=stage, method="nuts", model=model, backend="jax") == "nuts"
    with pytest.raises(ValueError, match="'target_accept'. are settings of NUTS.*Drop one"):
        vsgp.sample(stage=stage, method="importance", model=model, target_accept=0.9)
    with pytest.raises(ValueError, match="no method 'gibbs'.*Choose one of"):
        vsgp.sample(stage=stage, method="gibbs", model=model)


@pytest.mark.long
def test_chains_that_disagree_are_refused(monkeypatch, rng):
    """Weights may look well where hardly any of them is what the others miss."""
    theta = rng.normal(size=(2, 4, 100))
    assert largest_rhat(theta) < 1.05
    theta[1, 2] += 1.0
    assert largest_rhat(theta) > 1.1
    np.testing.assert_allclose(largest_rhat(theta), az.rhat(theta[1]))
    theta[0] = 0.0  # has no R-hat
    assert largest_rhat(theta) > 1.1
    model, stage = made(counts)
    kwargs = {"stage": stage, "model": model, "random_seed": 1, "progressbar": False}
    tree = vsgp.sample(100, method="importance", **kwargs)
    assert tree["posterior"].attrs["refused"] == ""
    assert 1.0 < tree["sample_stats"].attrs["rhat"] < 1.1
    monkeypatch.setattr(walk, "APART", 0.0)
    tree = vsgp.sample(100, method="importance", **kwargs)
    assert tree["posterior"].attrs["refused"].startswith("R-hat 1.0")
    seen = {}
    monkeypatch.setattr(pm, "sample", lambda **kwargs: seen.update(kwargs))
    vsgp.sample(100, **kwargs)
    assert seen["draws"] == 100


@pytest.mark.parametrize(
    ("rhats", "expected"),
    [
        ({"rhat": 1.01}, ""),
        ({"rhat": 1.02}, "R-hat 1.02"),
        # Chains of hundreds of epsilon are not independent draws.
        ({"rhat": 1.01, "rhat_epsilon": 1.02}, ""),
        ({"rhat": 1.0, "rhat_epsilon": 1.06}, "R-hat 1.06 of epsilon"),
    ],
)
def test_which_rhat_is_refused(rhats, expected):
    draws = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(coords={"chain": np.arange(4), "draw": np.arange(1000)}),
            "sample_stats": xr.Dataset(attrs=rhats),
        }
    )
    found = SimpleNamespace(ess=2400.0)
    assert walk.disagreement(draws, found) == expected


@pytest.mark.long
@pytest.mark.slow
def test_nuts_takes_over_from_the_weights(monkeypatch, caplog):
    model, stage = made(counts)
    monkeypatch.setattr("pymc_vsgp.fit.weights.LARGEST_K", -9.0)
    seen = {}
    monkeypatch.setattr(pm, "sample", lambda **kwargs: seen.update(kwargs))
    with caplog.at_level(logging.INFO, logger="pymc"):
        vsgp.sample(100, stage=stage, method="auto", model=model, progressbar=False)
    assert "NUTS takes over" in caplog.text
    assert seen["draws"] == 100
    assert "importance" not in stage.method


@pytest.mark.long
def test_many_dimensions_are_given_up_at_once():
    """Independent coefficients under q, which strong data make dependent."""
    rng, X, f = inputs()
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 0.5)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=ls))
        gp.prior("u", inducing=vsgp.inducing.Fourier(period=24.0, n_frequencies=80))
        gp.likelihood("y", vsgp.Poisson(exposure=50.0), X=X, y=rng.poisson(50.0 * np.exp(f)))
        stage = vsgp.fit_gaussian(progressbar=False)
    weigher = Weigher(model)
    found = weigh(stage, weigher, 4000, rng, progressbar=False)
    assert re.match(r"given the parameters log weights vary by [\d.]+, in 161 dim", found.refused)
    assert found.n_evaluations <= 1000  # a first round
    assert not found.may_be_elsewhere
    assert "NUTS" not in repr(found)
    on = weigh(stage, weigher, 100, rng, give_up=False, progressbar=False)
    assert on.n_evaluations > found.n_evaluations
    assert len(on.theta) == 400 and on.thin == 4  # fewer do not tell k-hat
    assert on.refused and on.may_be_elsewhere
    assert not re.match("given", on.refused)


@pytest.mark.slow
def test_parameters_in_the_order_of_the_stage(monkeypatch):
    """A model may have them in another one: what the weights say of theta goes back to the stage's.

    And the evidence is of proposals that were kept.
    """
    model, stage = made(scales)
    names = list(stage.theta_unconstrained)
    order = np.array([1, 2, 0])  # which is not its own inverse
    turned = replace(
        stage,
        theta_unconstrained={names[i]: stage.theta_unconstrained[names[i]] for i in order},
        theta_covariance=stage.theta_covariance[np.ix_(order, order)],
    )
    judged = []
    real = importance._judged
    monkeypatch.setattr(importance, "_judged", lambda *args: judged.append(args) or real(*args))
    monkeypatch.setattr(Mixture, "kept", 0.5)
    a, b = (
        weigh(s, Weigher(model), 1000, np.random.default_rng(1), progressbar=False)
        for s in (stage, turned)
    )
    batch = judged[-1][2]
    np.testing.assert_allclose(b.log_weight, a.log_weight)
    np.testing.assert_allclose(b.highest, a.highest[order])
    (at,) = np.flatnonzero((a.theta == a.highest).all(axis=1))
    assert batch.log_marginal[at] == batch.log_marginal.max()
    w = np.exp(a.log_weight - a.log_weight.max())
    mean, cov = np.average(a.theta, axis=0, weights=w), np.cov(a.theta.T, aweights=w, ddof=0)
    for found, at in ((a.better, np.arange(3)), (b.better, order)):
        assert list(found.theta_unconstrained) == [names[i] for i in at]
        sd = np.sqrt(np.diagonal(cov))
        off = np.concatenate([np.ravel(v) for v in found.theta_unconstrained.values()]) - mean[at]
        assert np.abs(off / sd[at]).max() < 0.05  # weights are smoothed
        off = found.theta_covariance - cov[np.ix_(at, at)]
        assert np.abs(off / np.outer(sd[at], sd[at])).max() < 0.1
    plain = scipy.special.logsumexp(a.log_weight) - np.log(len(a.log_weight))
    np.testing.assert_allclose(a.log_evidence, plain + np.log(0.5))


def test_what_is_of_one_theta_stays_together(rng):
    """Proposals that are joined with others, or take another order."""
    theta, scores = rng.normal(size=(20, 2)), rng.normal(size=(2, 20, 3))
    first, second = (
        Batch(theta, theta[:, :1] + rng.normal(size=(20, K)), score[..., None], score)
        for K, score in zip((2, 6), scores, strict=True)
    )
    both = first.joined(second)
    np.testing.assert_array_equal(both.score, scores.max(axis=0))
    np.testing.assert_array_equal(both.epsilon[..., 0], both.score)
    mean = (2 * np.exp(first.log_marginal) + 6 * np.exp(second.log_marginal)) / 8
    np.testing.assert_allclose(np.exp(both.log_marginal), mean)
    at = rng.permutation(20)
    twice = Batch.concatenated([first, first])
    for batch, rows in ((first.ordered(at), at), (twice, np.tile(np.arange(20), 2))):
        np.testing.assert_array_equal(batch.theta, theta[rows])
        np.testing.assert_array_equal(batch.inner, first.inner[rows])
        np.testing.assert_array_equal(batch.epsilon[..., 0], batch.score)
        np.testing.assert_array_equal(batch.score, scores[0, rows])


def test_variance_of_log_weights(rng):
    for K in (2, 4, 16):
        inner = 1e3 + 2.5 * rng.normal(size=(4000, K))
        inner[:100] = -np.inf
        batch = Batch(np.zeros((4000, 1)), inner, np.zeros((4000, 1)), inner[:, 0])
        assert abs(batch.log_variance / 2.5**2 - 1.0) < 0.2
    assert replace(batch, inner=inner[:, :1]).log_variance == 0.0
    assert replace(batch, inner=np.full((9, 2), -np.inf)).log_variance == np.inf


def test_a_prior_that_draws_in_any_order():
    """What falls outside is drawn again, and the density stays that of what is kept."""

    class Half:
        """A normal density, whose negative draws have no unconstrained value."""

        def draw(self, n, rng):
            z = rng.normal(size=(n, 1))
            return np.where(z > 0.0, z, np.nan)

        def logpdf(self, theta):
            return scipy.stats.norm.logpdf(theta[:, 0])

    q = Mixture([(0.6, StudentT(np.full(1, 3.0), 1.0, 5.0)), (0.4, Half())])
    drawn = q.draw(200_000, np.random.default_rng(1))[:, 0]
    assert np.isfinite(drawn).all()
    drawn = drawn[drawn > 0.0]

    def mass(low, high):
        return scipy.integrate.quad(lambda x: np.exp(q.logpdf(np.array([[x]]))[0]), low, high)[0]

    for edge in (0.5, 1.0, 2.5):
        expected = mass(0.0, edge) / mass(0.0, 50.0)
        sd = np.sqrt(expected * (1.0 - expected) / len(drawn))
        assert abs((drawn < edge).mean() - expected) < 4.0 * sd


def missing():
    """PyMC puts the density of a vector that is observed in part on what is observed of it."""
    x = np.random.default_rng(1).normal(size=(12, 2))
    x[:6, 1] = np.nan
    with pytest.warns(ImputationWarning):
        pm.MvNormal("x", np.zeros(2), 9.0 * np.eye(2), observed=np.ma.masked_invalid(x))


def missing_numbers():
    x = np.ma.masked_invalid([0.5, np.nan, -1.0, np.nan])
    with pytest.warns(ImputationWarning):
        both = pm.Normal("x", 0.0, pm.HalfNormal("s"), observed=x)
    pm.Normal("b", both.sum(), 1.0)


def by_user(constant=0.0):
    def draw(rng=None, size=None):
        return 3.0 * rng.normal(size=size)

    pm.CustomDist("b", logp=lambda v: constant - (v / 3.0) ** 2 / 2.0, random=draw, shape=6)


def by_user_in_full():
    by_user(-np.log(3.0 * np.sqrt(2.0 * np.pi)))


def by_neighbors():
    W = np.roll(np.eye(5), 1, axis=0)
    pm.CAR("x", np.zeros(5), W + W.T, alpha=0.5, tau=pm.Gamma("tau", 2, 2))


def on_a_ring():
    """Few of the vectors that all values of tau draw are near any one of them."""
    W = np.roll(np.eye(40), 1, axis=0)
    alpha, tau = pm.Beta("alpha", 2.0, 2.0), pm.HalfNormal("tau")
    pm.CAR("x", np.zeros(40), W + W.T, alpha=alpha, tau=tau)
    pm.Normal("b", 0.0, pm.HalfNormal("s"))


def horseshoe():
    tau, each = pm.HalfCauchy("tau", 1.0), pm.HalfCauchy("each", 1.0, shape=50)
    pm.Normal("b", 0.0, tau * each, shape=50)


def in_order():
    """A sixth of the draws is in order, and what depends on others has no value."""
    ordered = pm.distributions.transforms.ordered
    at, sd = pm.Normal("at", 0.0, 3.0), pm.HalfNormal("sd")
    cuts = pm.Normal("cuts", at, sd, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
    pm.Normal("b", cuts.sum(), 1.0)
    pm.ZeroSumNormal("effect", shape=4)


@pytest.mark.slow
@pytest.mark.parametrize("build", [missing, by_user, by_neighbors, on_a_ring])
def test_a_prior_whose_draws_have_another_density_is_left_out(build):
    with pm.Model() as model:
        build()
    with pytest.raises(NotImplementedError, match="Draws of the prior have another density"):
        Prior(Points(model))


@pytest.mark.slow
@pytest.mark.parametrize("build", [missing_numbers, by_user_in_full, horseshoe, in_order])
def test_a_prior_whose_draws_have_its_density(build):
    with pm.Model() as model:
        build()
    prior = Prior(points := Points(model))
    theta = prior.draw(50, np.random.default_rng(1))
    theta = theta[np.isfinite(theta).all(axis=1)]
    (logp,) = points.function([model.logp(vars=model.free_RVs)])(theta, theta[:, None, :0])
    np.testing.assert_allclose(prior.logpdf(theta), logp[:, 0], rtol=1e-12)


def test_a_parameter_out_of_bounds_is_one_point():
    """A correlation rounds to 1, and PyMC's check of the covariance is of all points at once."""
    with pm.Model() as model:
        r = pm.Uniform("r", -1.0, 1.0)
        pm.MvNormal("b", np.zeros(2), pm.math.stack([[1.0, r], [r, 1.0]]))
    prior = Prior(points := Points(model))
    theta = np.array([[0.0, 0.3, 0.1], [60.0, 0.3, 0.1], [1.0, 0.3, 0.1]])
    found = prior.logpdf(theta)
    assert found[1] == -np.inf
    (logp,) = points.function([model.logp()])(theta[::2], theta[::2, None, :0])
    np.testing.assert_allclose(found[::2], logp[:, 0], rtol=1e-12)


@pytest.mark.slow
def test_a_prior_whose_draws_fail():
    """Numpy divides by a gamma variable that is zero: proposals are then of the stage alone."""
    rng, X, f = inputs()
    with pm.Model() as model:
        s2 = pm.InverseGamma("s2", 0.001, 0.001)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=X[::8])
        gp.likelihood("y", vsgp.StudentT(4.0, pm.math.sqrt(s2)), X=X, y=f)
    assert Weigher(model).prior is None
    with pytest.raises(ValueError, match="draws fail: .* Give parameters priors that are less"):
        vsgp.fit_gaussian(model=model, n_starts=20, progressbar=False)


def test_a_prior_below_what_is_observed():
    """What it depends on is not drawn again: for proposals, starts and widths."""
    rng, X, f = inputs()
    with pm.Model() as model:
        s = pm.HalfNormal("s", 0.3, observed=2.0)
        b = pm.Normal("b", 0.0, s, shape=3)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=X[::8])
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(b.sum())), X=X, y=rng.poisson(f**2))
    variables = Variables(model)
    drawn = Prior(Points(model)).draw(400, rng)
    np.testing.assert_allclose(drawn.std(), 2.0, rtol=0.1)
    np.testing.assert_allclose(_of_prior(variables, 400, rng).std(), 2.0, rtol=0.1)
    np.testing.assert_allclose(prior_widths(variables, np.full(3, True)), 2.0, rtol=0.3)


@pytest.mark.parametrize("chained", [False, True])
def test_angles_are_left_to_nuts(chained):
    """Their density repeats on the line, so that weights would be of all turns."""
    transforms = pm.distributions.transforms
    transform = transforms.Chain([transforms.circular]) if chained else transforms.circular
    with pm.Model() as model:
        pm.VonMises("phase", 0.0, 40.0, default_transform=transform)
        counts()
    with pytest.raises(NotImplementedError, match=r"density of \['phase'\] is periodic"):
        Weigher(model)


@pytest.mark.long
def test_ordered_cut_points():
    """As `likelihoods.md` has them: half of what the prior draws is not in order."""
    X, y = np.linspace(0.0, 4.0, 15)[:, None], np.repeat([0, 1, 2], 5)
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        cuts = pm.Normal("cuts", 0.0, 1.0, shape=2, transform=ordered, initval=[-0.5, 0.5])
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.5))
        gp.prior("u", Xu=vsgp.inducing.grid(X, 4))
        gp.likelihood("y", vsgp.Ordinal(cuts), X=X, y=y)
        idata = vsgp.sample(250, method="importance", random_seed=1, progressbar=False)
    drawn = idata["posterior"]["cuts"].values
    assert (np.diff(drawn, axis=-1) > 0.0).all()

    truth, data = _from_prior(model, 40, np.random.default_rng(1))
    assert (np.diff(truth["cuts"], axis=-1) > 0.0).all()
    assert len(truth["u"]) == len(data) == 40


def funnel(rng, d=5):
    """Draws of a normal scale and of what it scales, and their density."""
    target = scipy.stats.norm.logpdf

    def logpdf(x):
        scale = np.exp(0.8 * x[:, :1])
        rest = target(x[:, 1:], 0.0, scale).sum(axis=1)
        return target(x[:, 0]) + rest

    return logpdf


@pytest.mark.slow
def test_proposals_with_a_long_tail_along_each_axis(rng):
    center, root = np.array([0.5, -1.0]), np.array([[1.0, 0.0], [0.6, 0.5]])
    q = Along(center, root, 7.0)
    z = np.sinh(np.linspace(-9.0, 9.0, 1201))  # far out, as tails are long
    w = np.gradient(z)
    at = np.stack(np.meshgrid(z, z, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(q.logpdf(center + at @ root.T)) * np.linalg.det(root) * np.outer(w, w).ravel()
    assert mass.sum() == pytest.approx(1.0, abs=2e-3)
    drawn = scipy.linalg.solve_triangular(root, (q.draw(20_000, rng) - center).T, lower=True).T
    for inside in (
        lambda x: x[:, 0] < -6.0,
        lambda x: np.abs(x).max(axis=1) < 1.0,
        lambda x: np.abs(x).min(axis=1) > 4.0,  # along both at once, which is rare
        lambda x: (x[:, 1] > 3.0) & (np.abs(x[:, 0]) < 2.0),
    ):
        expected = mass[inside(at)].sum()
        error = np.sqrt(expected / len(drawn))
        assert abs(inside(drawn).mean() - expected) < 4.0 * error + 1e-3


@pytest.mark.long
def test_long_tails_of_weak_data_are_proposed():
    """Most of six inputs say nothing, and f may be constant: sd has a tail towards zero."""
    X = np.random.default_rng(6).uniform(0.0, 10.0, (60, 6))
    y = np.random.default_rng(117).poisson(np.exp(0.5 * np.sin(X[:, 0])))
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 1.5, 1.0, shape=6)
        sd = pm.HalfNormal("sd", 3.0)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.2), cov_func=sd**2 * pm.gp.cov.Matern52(6, ls=ls)
        )
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
    weigher = Weigher(model)
    found = [
        weigh(stage, weigher, 2000, np.random.default_rng(seed), progressbar=False)
        for seed in range(6)
    ]
    assert not any(f.refused for f in found)
    assert np.mean([f.khat for f in found]) < 0.3
    levels = np.array([f.log_evidence for f in found])
    assert np.ptp(levels) < 6.0 / np.sqrt(min(f.ess for f in found))
    small = [
        np.average(f.theta[:, -1] < -2.5, weights=np.exp(f.log_weight - f.log_weight.max()))
        for f in found
    ]
    assert min(small) > 0.02  # of the posterior is in that tail


def banana(rng, d=5):
    """Effects over their scale, whose products with it are known: not centered, and good data."""
    known = rng.normal(2.0, 0.5, size=d - 1)

    def logpdf(x):
        scale = np.exp(-0.3 * x[:, 1:2])
        rest = scipy.stats.norm.logpdf(np.delete(x, 1, axis=1), known * scale, 0.5 * scale)
        return scipy.stats.norm.logpdf(x[:, 1]) + rest.sum(axis=1)

    return logpdf


def lopsided(rng, d=5):
    """A long side and a short one, in a direction between the parameters."""
    sides = [(0.5, -0.6, 0.4), (0.5, 0.6, 1.5)]
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]

    def logpdf(x):
        z = x @ rotation
        one = [np.log(p) + scipy.stats.norm.logpdf(z[:, 0], m, sd) for p, m, sd in sides]
        return np.logaddexp(*one) + scipy.stats.norm.logpdf(z[:, 1:]).sum(axis=1)

    return logpdf


def isotropic(rng, d=5):
    return lambda x: scipy.stats.norm.logpdf(x).sum(axis=1)


@pytest.mark.parametrize("of", [funnel, lopsided, *long(banana, isotropic)])
def test_what_one_density_does_not_fit(of, rng):
    d = 5
    logpdf = of(rng, d)
    near, rounds, worth = Near.one(np.zeros(d), np.eye(d)), [], []
    for _ in range(6):
        q = mixture(near, None, [])
        theta = q.draw(2000, rng)
        batch = Batch(theta, logpdf(theta)[:, None], np.zeros((2000, 0)), np.zeros(2000))
        worth.append(weights.tail(batch.log_marginal - q.logpdf(theta))[1])
        rounds.append((q, batch))
        near = adapt(rounds, np.eye(d))
    assert near.shares.sum() == pytest.approx(1.0)
    if of is lopsided:
        assert len(near.shares) == 2 and near.bent is None
        # The one that is wide has the longer side.
        wide, narrow = sorted(zip(*near[:3], strict=True), key=lambda of: -np.linalg.det(of[2]))
        assert np.linalg.det(wide[2]) > 2.0 * np.linalg.det(narrow[2])
    else:
        assert len(near.shares) == 1 and (near.bent is None) == (of is isotropic)
    if near.bent is not None:
        k, slope = (0, 0.8) if of is funnel else (1, -0.3)
        assert near.bent.k == k
        np.testing.assert_allclose(near.bent.slopes / near.bent.scale[k], slope, rtol=0.35)
    if of is not isotropic:  # one alone is worth less
        q = mixture(Near.one(*near.moments), None, [])
        theta = q.draw(2000, rng)
        _, alone = weights.tail(logpdf(theta) - q.logpdf(theta))
        assert max(worth[3:]) > (1.1 if of is lopsided else 1.5) * alone


@pytest.mark.parametrize("k", [0, 1])
def test_bent_proposals(k, rng):
    curve, slopes = np.array([[0.4], [0.7], [-0.3]]), np.array([-0.6])
    q = Bent(np.array([0.5, -1.0]), np.array([2.0, 0.3]), k, curve, slopes, np.array([[0.8]]))
    z = np.sinh(np.linspace(-7.0, 7.0, 1401))
    w = np.gradient(z)
    at = np.stack(np.meshgrid(z, z, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(q.logpdf(q.center + q.scale * at)) * q.scale.prod() * np.outer(w, w).ravel()
    assert mass.sum() == pytest.approx(1.0, abs=2e-3)
    drawn = (q.draw(20_000, rng) - q.center) / q.scale
    for inside in (
        lambda x: x[:, k] < -1.0,
        lambda x: x[:, 1 - k] > 1.0,
        lambda x: (x[:, k] < -1.0) & (x[:, 1 - k] > 0.0),
        lambda x: x[:, k] > 3.5,  # as far as it bends, and beyond
        lambda x: (x[:, k] > 1.0) & (np.abs(x[:, 1 - k] - 0.5) < 0.3),
    ):
        expected = mass[inside(at)].sum()
        error = np.sqrt(expected / len(drawn))
        assert abs(inside(drawn).mean() - expected) < 4.0 * error + 1e-3


def test_a_handful_of_likely_draws_bend_nothing(rng):
    theta = rng.normal(size=(400, 3))
    logp = np.where(np.arange(400) < 2, 1e5, 0.0) - (theta**2).sum(axis=1)
    batch = Batch(theta, logp[:, None], np.zeros((400, 0)), np.zeros(400))
    near = adapt([(Near.one(np.zeros(3), np.eye(3)).densities[0][1], batch)], np.eye(3))
    assert near.bent is None and np.isfinite(near.moments[1]).all()


@pytest.fixture(scope="module")
def effects():
    """Counts of groups: the scale of their effects bends the effects, which move all counts."""
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0.0, 10.0, (150, 1)), axis=0)
    group = np.arange(150) % 10
    y = rng.poisson(np.exp(np.sin(X[:, 0]) + 0.5 * rng.normal(size=10)[group]))
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", mu=2, sigma=1)
        cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.Matern52(1, ls=ls)
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=np.linspace(0.0, 10.0, 15)[:, None])
        effect = pm.Normal("effect", 0, 1, shape=10) * pm.HalfNormal("spread", 1)
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(effect[group])), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
    return stage, Weigher(model)


@pytest.mark.long
@pytest.mark.slow
def test_effects_of_groups_are_weighed(effects):
    stage, weigher = effects
    found = [
        weigh(stage, weigher, 4000, np.random.default_rng(seed), progressbar=False)
        for seed in range(3)
    ]
    assert sum(bool(f.refused) for f in found) <= 1  # and 2 without what bends, 3 with one step
    assert np.mean([f.ess / len(f.theta) for f in found]) > 0.25
    levels = np.array([f.log_evidence for f in found])
    assert np.ptp(levels) < 8.0 / np.sqrt(min(f.ess for f in found))


def test_noise_of_a_few_likely_theta_does_not_choose_coordinates():
    """It is known as badly as they are few: of typical theta it is known well."""
    Noise, calmer = importance.Noise, importance._calmer
    assert calmer(Noise(1.6, 4.5, ess=22), Noise(1.6, 1.2, ess=4), 0.7)
    assert calmer(Noise(1.6, 4.5, ess=300), Noise(1.6, 1.2, ess=4), 0.7)
    assert not calmer(Noise(1.6, 4.5, ess=300), Noise(1.6, 1.2, ess=300), 0.7)
    assert calmer(Noise(1.6, 1.0, ess=300), Noise(0.8, 1.0, ess=300), 0.7)
    assert not calmer(Noise(1.6, 1.0, ess=300), Noise(0.8, 1.0, ess=300), 0.4)
    assert not calmer(Noise(1.6, 1.0, ess=4), Noise(0.2, 1.0, ess=4), 0.7)


@pytest.mark.long
def test_a_second_step_makes_weights_vary_less(effects, monkeypatch, rng):
    stage, weigher = effects
    points = weigher.points
    center, cov = importance._estimate(points, stage)
    theta = rng.multivariate_normal(center, cov, size=40)
    epsilon = rng.normal(size=(40, 8, points.n_epsilon))
    variance = {}
    for steps in ((1.0,), newton.STEPS):
        monkeypatch.setattr(newton, "STEPS", steps)
        logp, _ = Points(stage.model).refined()(theta, epsilon)
        each = logp - scipy.stats.norm.logpdf(epsilon).sum(axis=-1)
        variance[steps] = np.median(each.var(axis=1, ddof=1))
    assert variance[newton.STEPS] < 0.7 * variance[1.0,]


def test_weights_that_differ_too_much_for_a_shape():
    """PSIS smooths these to nan, which NUTS would have started at."""
    top = [0, 176, 192, 222, 303, 365, 450, 662, 667, 743, 769, 781, 782, 796, 952, 995]
    log_w = -np.r_[top, np.full(48, 5000.0)]
    found, khat = weights.smooth_weights(log_w)
    assert khat == np.inf
    np.testing.assert_allclose(np.exp(found), np.r_[1.0, np.zeros(63)], atol=1e-70)
    ess, mean, covariance, _ = moments(np.arange(128.0).reshape(64, 2), log_w)
    np.testing.assert_allclose(mean, [0.0, 1.0], atol=1e-70)
    assert ess == 1.0 and np.isfinite(covariance).all()
    assert weights.refusal(log_w)


@pytest.mark.parametrize(("same", "least"), [(500, -2.0), (500, -1e4)])
def test_weights_that_are_the_same_in_the_tail(same, least):
    log_w = np.r_[np.zeros(same), np.linspace(least, least / 2.0, 1000 - same)]
    found, khat = weights.smooth_weights(log_w)
    assert khat == 0.0
    np.testing.assert_allclose(np.exp(found), np.exp(log_w) / np.exp(log_w).sum())


@pytest.mark.slow
def test_chains_start_with_weights_of_the_density_that_they_walk_on(rng, monkeypatch):
    """Also where that is fitted again, since the first one was refused."""
    model, stage = made(counts)
    judged, first = [], []

    def doubtful(weigher, q, batch, draws):
        judged.append(q)
        found = real(weigher, q, batch, draws)
        return (*found[:2], "k-hat 0.90" if len(judged) == 1 else "", found[3])

    def noting(self, q, n, K):
        first.append(called(self, q, n, K))
        return first[-1]

    real, called = importance._judged, Weigher.__call__
    monkeypatch.setattr(importance, "_judged", doubtful)
    monkeypatch.setattr(Weigher, "__call__", noting)
    found = weigh(stage, Weigher(model), 500, rng, progressbar=False)
    old, new = judged[0], judged[-1]
    assert old is not new
    theta, _, log_w = found.start
    np.testing.assert_array_equal(theta, first[-1].theta)
    np.testing.assert_allclose(log_w, first[-1].log_marginal - new.logpdf(theta))
    assert not np.allclose(old.logpdf(theta), new.logpdf(theta))


@pytest.mark.long
def test_what_takes_one_point_at_a_time_is_drawn():
    """A graph that branches, as the density does not."""
    model, _ = made(counts)
    with model:
        ls = model["ls_u"]
        pm.Deterministic("larger", ifelse(pt.gt(ls, 1.0), 2.0 * ls, ls))
        idata = vsgp.sample(60, random_seed=1, progressbar=False)
    found = idata["posterior"]
    assert found.attrs["method"] == "importance"
    ls = found["ls_u"]
    assert 0.05 < float((ls > 1.0).mean()) < 0.95
    np.testing.assert_allclose(found["larger"], ls * np.where(ls > 1.0, 2.0, 1.0))


def test_mass_of_proposals_where_they_have_a_density(rng):
    """The evidence is the mean weight times that."""

    class Halved(StudentT):
        def draw(self, n, rng):
            theta = super().draw(n, rng)
            return np.where(theta > 0.0, theta, np.nan)

    whole, half = (kind(np.zeros(1), np.eye(1), 5.0) for kind in (StudentT, Halved))
    whole.center = np.array([20.0])
    q = Mixture([(0.6, whole), (0.4, half)])
    theta = q.draw(40_000, rng)
    assert q.kept == pytest.approx(0.8, abs=0.01)
    target = 0.5 * np.exp(whole.logpdf(theta)) + np.exp(half.logpdf(theta))
    mean = np.mean(target / np.exp(q.logpdf(theta)))
    assert mean * q.kept == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_rounds_that_pay(rng, monkeypatch, capsys):
    """A round that gains less than it costs is left out; each says what the one before gave."""
    X = rng.normal(size=(40, 5))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=40)
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=3, sigma=2, shape=5)
        scale, noise = pm.HalfNormal("scale", 1), pm.HalfNormal("noise", 1)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.5),
            cov_func=scale**2 * pm.gp.cov.Matern52(5, ls=lengthscale),
        )
        gp.prior("u", Xu=X[:10])
        gp.likelihood("y", vsgp.Gaussian(noise), X=X, y=y)
        stage = vsgp.fit_gaussian(progressbar=False)
    monkeypatch.setattr("pymc_vsgp.progress.SECONDS", 0.0)
    rounds, real = {}, importance.tail
    for draws in (100, 1500):
        worth = iter([0.35, 0.45, 0.5, 0.51])

        def of_rounds(log_w, worth=worth):
            return (0.3, part * len(log_w)) if (part := next(worth, None)) else real(log_w)

        monkeypatch.setattr(importance, "tail", of_rounds)
        vsgp.sample(draws, stage=stage, model=model, method="importance", random_seed=3)
        lines = capsys.readouterr().err.splitlines()
        rounds[draws] = [line.rpartition(",")[0] for line in lines if "round" in line]
    said = ["round 1", "round 2, ESS 35%", "round 3, ESS 45%", "round 4, ESS 50%"]
    assert rounds[100] == [f"Importance, {text}, 0 of 400" for text in said[:2]]
    assert rounds[1500] == [f"Importance, {text}, 0 of 6000" for text in said]
