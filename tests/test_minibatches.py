"""Minibatches of the Gaussian stage, and what makes their steps cheap."""

from importlib import import_module

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats

from marks import long
from modes import RAW

import pymc_vsgp as vsgp
import pymc_vsgp.fit.approximation
import pymc_vsgp.fit.minibatch

from pymc_vsgp.fit.blending import blend
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.held import Held, from_sites, stepped, stepped_on_jax
from pymc_vsgp.fit.minibatch import Batches, Minibatches
from pymc_vsgp.inducing.coordinates import Sites
from pymc_vsgp.ops.linalg import weighted_gram
from pymc_vsgp.progress import progress

N, M, K = 24, 5, 3


def of_classes(likelihood=None, mean=0.0, swap=False):
    rng = np.random.default_rng(1)
    y = np.arange(N) % K
    X = rng.normal(size=(K, 2))[y] + 0.5 * rng.normal(size=(N, 2))
    y = y[::-1] if swap else y
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 3, 2)
        gp = vsgp.VariationalSparse(
            cov_func=pm.gp.cov.ExpQuad(2, ls=lengthscale), mean_func=pm.gp.mean.Constant(mean)
        )
        gp.prior("u", Xu=X[:M] + 0.1, n_outputs=K)
        gp.likelihood("y", likelihood or vsgp.Softmax(K), X=X, y=y)
    return model


def some_sites():
    rng = np.random.default_rng(2)
    return Sites(rng.normal(size=(K, M)), 0.7 * rng.normal(size=(K, M, M)))


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [vsgp.Softmax(K), vsgp.RobustMax(K)], ids=str)
def test_a_density_that_is_held_has_the_same_elbo(likelihood):
    """On the mean over the batches of an epoch; so has its gradient in u, by one full step."""
    model, sites = of_classes(likelihood, mean=0.4), some_sites()
    tied = Bound(model, move_inducing=True, mode=RAW)
    theta, Xu = tied.start + 0.1, model["u_Xu"].get_value()
    wanted = tied(theta, [sites], [Xu])
    held = Bound(model, move_inducing=True, n_rows=8, mode=RAW, held=True)
    q = from_sites(sites, wanted.R[0], wanted.prior_mean[0])
    found = [held(theta, [q], [Xu], rows) for rows in np.split(np.arange(N)[::-1], 3)]
    np.testing.assert_allclose(np.mean([e.value for e in found]), wanted.value, rtol=1e-10)
    linear, precision = (np.mean([getattr(e, n)[0] for e in found], 0) for n in wanted._fields[2:4])
    np.testing.assert_allclose(precision, wanted.precision[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(linear, wanted.linear[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(q.linear, wanted.mean[0], rtol=1e-8, atol=1e-10)
    assert np.ptp([e.value for e in found]) > 0.1


def test_gradient_where_q_is_held():
    model = of_classes(mean=0.4)
    bound = Bound(model, move_inducing=True, n_rows=8, mode=RAW, held=True)
    theta, Xu, rows = bound.start + 0.1, model["u_Xu"].get_value(), np.arange(3, 11)
    start = bound(theta, [from_sites(some_sites(), np.eye(M), np.zeros(M))], [Xu], rows)
    q = from_sites(some_sites(), start.R[0], start.prior_mean[0])
    gradient = bound(theta, [q], [Xu], rows).gradient
    x = np.concatenate([theta, Xu.ravel()])

    def value(x):
        return bound(x[: theta.size], [q], [x[theta.size :].reshape(Xu.shape)], rows).value

    for i in range(x.size):
        h = 1e-5 * np.eye(x.size)[i]
        np.testing.assert_allclose(
            gradient[i], (value(x + h) - value(x - h)) / 2e-5, rtol=1e-6, atol=1e-6
        )


@pytest.mark.slow
def test_steps_are_those_of_the_sites():
    model, sites = of_classes(mean=0.4), some_sites()
    tied = Bound(model, mode=RAW)
    ev = tied(tied.start, [sites])
    R, mean = ev.R[0], ev.prior_mean[0]
    q = stepped(from_sites(sites, R, mean), ev.linear[0], ev.precision[0], 0.3)
    new = blend(sites, R, mean, ev.linear[0], ev.precision[0], ev.mean[0], 0.3)
    wanted = from_sites(new, R, mean)
    np.testing.assert_allclose(q.precision, wanted.precision, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(q.linear, wanted.linear, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(q.root @ q.root.mT, q.precision, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(q.covariance, np.linalg.inv(q.precision), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("curvature", [1.0, -3.0], ids=["positive", "not log-concave"])
def test_steps_on_jax_are_those_of_numpy(curvature, rng):
    """Also those of a function whose data curve the wrong way."""
    jnp = pytest.importorskip("jax.numpy")
    import_module("pytensor.link.jax.dispatch")  # it turns double precision on
    q = from_sites(some_sites(), np.eye(M), np.zeros(M))
    A = rng.normal(size=(K, M, 2))
    linear, precision = rng.normal(size=(K, M)), A @ A.mT
    precision[1] *= curvature
    wanted = stepped(q, linear, precision, 0.3)
    found = stepped_on_jax()(
        Held(*map(jnp.asarray, q)), *map(jnp.asarray, (linear, precision)), 0.3
    )
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_a_fit_on_jax_is_that_of_numpy(tmp_path):
    """Its q stays on the device, and what the user gets is numpy's."""
    pytest.importorskip("jax")
    settings = {"batch_size": 8, "random_seed": 3, "progressbar": False, "copy": True, "tol": 0.0}
    settings["model"] = of_classes(mean=0.4)
    for maxiter in (60, 80):  # the second goes on from the file of the first
        on_numpy, on_jax = (
            vsgp.fit_gaussian(maxiter=maxiter, checkpoint=path, compile_kwargs=mode, **settings)
            for path, mode in ((tmp_path / "a", None), (tmp_path / "b", {"mode": "jax"}))
        )
        assert on_numpy.n_steps == on_jax.n_steps == maxiter
        np.testing.assert_allclose(on_jax.elbo, on_numpy.elbo, rtol=1e-8)
        np.testing.assert_allclose(on_jax.mean["u"], on_numpy.mean["u"], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(*(s.theta["lengthscale"] for s in (on_jax, on_numpy)), rtol=1e-8)
    some = [on_jax.mean["u"], on_jax.covariance["u"], *on_jax.sites["u"][:2], *on_jax.state.q[0]]
    assert all(isinstance(x, np.ndarray) for x in some)


@pytest.mark.slow
def test_a_fit_goes_on_from_sites_and_gives_them_back(monkeypatch):
    monkeypatch.setattr("pymc_vsgp.fit.joint.FEW", 0)  # those of each function
    model, sites = of_classes(mean=0.4), some_sites()
    bound = Bound(model, n_rows=N, mode=RAW, held=True)
    rng = np.random.default_rng(1)
    fit = Minibatches(bound, bound.start, [sites], [], 1e-3, lambda *_: None, rng, N)
    (again,) = fit.in_model()
    np.testing.assert_allclose(again.linear, sites.linear, rtol=1e-6, atol=1e-8)
    gram = sites.root @ sites.root.mT
    np.testing.assert_allclose(again.root @ again.root.mT, gram, rtol=1e-6, atol=1e-8)


def of_weights(**kwargs):
    """Three sums of two functions, whose weights start at zero unless they are given a value."""
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(0.0, 6.0, 40))[:, None]
    parts = np.column_stack([np.sin(X[:, 0]), np.cos(2.0 * X[:, 0])])
    Y = parts @ [[1.0, 0.0, 1.0], [0.0, 1.0, -1.0]] + 0.2 * rng.normal(size=(40, 3))
    with pm.Model() as model:
        W = pm.Normal("W", shape=(3, 2), **kwargs)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.5))
        gp.prior("u", np.linspace(0.0, 6.0, 8)[:, None], n_outputs=2)
        vsgp.Coregionalized(W, gp).likelihood("y", vsgp.Gaussian(0.2), X=X, y=Y)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.0, *long(0.5)], ids=["zero", "alike"])
def test_weights_that_no_slope_tells_apart(value):
    """All of them zero, or two functions with the same: 900 nats, and 300, from the optimum."""
    settings = {"model": of_weights(mu=value), "random_seed": 1, "progressbar": False, "copy": True}
    best = vsgp.fit_gaussian(**settings, maxiter=20)
    few = vsgp.fit_gaussian(**settings, batch_size=10, maxiter=400)
    assert abs(few.elbo - best.elbo) < 20.0


@pytest.mark.slow
def test_natural_gradients_tell_functions_apart_that_are_alike():
    """Not by what rounding makes of them, which is 1e-9 by then."""
    stage = vsgp.fit_gaussian(model=of_weights(mu=0.5), maxiter=1, progressbar=False)
    assert np.ptp(stage.theta["W"], axis=1).min() > 1e-3


@pytest.mark.long
def test_a_fit_that_left_a_saddle_goes_on_the_same(tmp_path, monkeypatch):
    settings = {"batch_size": 10, "random_seed": 1, "progressbar": False, "maxiter": 40}
    whole = vsgp.fit_gaussian(model=of_weights(), **settings)
    settings["checkpoint"] = tmp_path / "fit"
    monkeypatch.setattr("pymc_vsgp.fit.checkpoint.SECONDS", -1.0)
    steps = Minibatches._step
    for stop in (20, 21, None):  # before it leaves, and after

        def killed(fit, cooling, stop=stop):
            if fit.taken == stop:
                raise MemoryError
            steps(fit, cooling)

        monkeypatch.setattr(Minibatches, "_step", killed)
        if stop is not None:
            with pytest.raises(MemoryError):
                vsgp.fit_gaussian(model=of_weights(), **settings)
    stage = vsgp.fit_gaussian(model=of_weights(), **settings)
    assert np.abs(stage.theta["W"]).min() > 0.0
    np.testing.assert_array_equal(stage.theta["W"], whole.theta["W"])
    np.testing.assert_array_equal(stage.elbo_history, whole.elbo_history)


def test_effects_that_a_batch_lacks_stay_where_they_are():
    """They have no slope in the first batch, and one in others."""
    group, t = np.arange(40) // 2, np.linspace(0.0, 1.0, 40)
    y = np.random.default_rng(1).normal(size=40)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0.0, 0.1, shape=20)
        pm.Normal("nowhere")
        mean = pm.gp.mean.Linear(coeffs=pt.concatenate([[0.0], effect]))
        cov = pm.gp.cov.ExpQuad(21, ls=0.3, active_dims=[0])
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
        X = np.column_stack([t, np.eye(20)[group]])
        gp.prior("u", X[::8])
        gp.likelihood("y", vsgp.Gaussian(0.5), X=X, y=y)
    bound = Bound(model, n_rows=4, mode=RAW, held=True)
    rng, quietly = np.random.default_rng(1), lambda *_: None
    fit = Minibatches(bound, bound.start, bound.no_sites(), [], 1e-3, quietly, rng, 4)
    gradient, rows = fit.evaluation.gradient, fit.rows
    assert (gradient[:20] == 0.0).sum() >= 16
    fit._leave_saddle(gradient)
    np.testing.assert_array_equal(fit.theta[:20], 0.0)
    assert fit.theta[20] != 0.0
    np.testing.assert_array_equal(fit.x[:21], fit.theta)
    assert fit.rows is rows


def test_each_row_has_its_turn():
    batches = Batches(10, 4, np.random.default_rng(1))
    rows = np.concatenate([next(batches) for _ in range(5)])
    np.testing.assert_array_equal(np.sort(rows.reshape(2, 10), axis=1), [np.arange(10)] * 2)


def of_a_line(n, noise=0.5):
    """Normal noise and no parameters: the model, and its exact log evidence."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    y = np.sin(x) + 0.4 * rng.standard_t(3, n)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.5))
        gp.prior("u", Xu=np.linspace(0.0, 10.0, 12)[:, None])
        gp.likelihood("y", vsgp.Gaussian(noise), X=x[:, None], y=y)
    cov = np.exp(-0.5 * ((x[:, None] - x) / 1.5) ** 2) + noise**2 * np.eye(n)
    return model, scipy.stats.multivariate_normal.logpdf(y, np.zeros(n), cov)


@pytest.mark.slow
@pytest.mark.parametrize("n", [160, 157])
@pytest.mark.parametrize("parts", ["whole", "in parts"])
def test_the_elbo_is_a_lower_bound(n, parts, monkeypatch):
    """Of all rows where it ended, also where batches don't divide them: it was 10 nats off."""
    if parts == "in parts":
        monkeypatch.setattr(pymc_vsgp.fit.minibatch, "BATCHES", 3)  # 60, 60, and what is left
    model, evidence = of_a_line(n)
    settings = {"batch_size": 20, "tol": 0.0, "maxiter": 400, "progressbar": False, "copy": True}
    stage = vsgp.fit_gaussian(model=model, random_seed=1, **settings)
    assert evidence - 0.3 < stage.elbo < evidence + 0.05
    assert stage.elbo == stage.elbo_history[-1]
    assert stage.elbo_error == 0.0
    assert f"ELBO {stage.elbo:.2f} after 400 steps" in repr(stage)


@pytest.mark.slow
def test_each_row_counts_once_in_the_end(monkeypatch):
    """Where that is too much, a random part of them does, and how far off it may be is known."""
    n, rows = 203, []
    bound = Bound(of_a_line(n)[0], n_rows=4, mode=RAW, held=True)
    rng, real = np.random.default_rng(1), bound.where_it_is
    fit = Minibatches(bound, bound.start, bound.no_sites(), [], 0.0, lambda *_: None, rng, 4)
    arguments = fit.theta, fit.sites, fit.moved
    each = np.array([bound(*arguments, np.array([i])).value for i in range(n)])

    def noted(*args):
        rows.append(args[-1])
        return real(*args)

    monkeypatch.setattr(bound, "where_it_is", noted)
    monkeypatch.setattr(pymc_vsgp.fit.minibatch, "BATCHES", 2)  # parts of 8, and one of 3
    fit.taken = 4 * 2 * 26
    elbo, error = fit._evaluate_the_end()
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(n))
    np.testing.assert_allclose(elbo, each.mean(), rtol=1e-10)
    assert (len(rows), error) == (26, 0.0)
    for fit.taken, number in ((4 * 2 * 24, 24), (3, 20)):
        rows.clear()
        elbo, error = fit._evaluate_the_end()
        known = np.concatenate(rows)
        assert len(np.unique(known)) == len(known) == 8 * number
        np.testing.assert_allclose(elbo, each[known].mean(), rtol=1e-10)
        wanted = each[known].std() * np.sqrt((1.0 - 8 * number / n) / (8 * number))
        assert 0.5 < error / wanted < 2.0


@pytest.mark.slow
def test_an_elbo_of_some_rows_is_shown_with_its_error(monkeypatch):
    monkeypatch.setattr(pymc_vsgp.fit.minibatch, "BATCHES", 1)
    stage = fitted(of_a_line(203)[0], maxiter=2)
    assert stage.elbo_error > 0.0
    assert f"ELBO {stage.elbo:.2f} ± {stage.elbo_error:.2f} after 2 steps" in repr(stage)


def test_an_interrupt_of_the_last_evaluation_keeps_the_fit(monkeypatch):
    monkeypatch.setattr(pymc_vsgp.fit.minibatch, "BATCHES", 1)
    calls, where_it_is, end = [], Bound.where_it_is, Minibatches._evaluate_the_end

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return where_it_is(self, *args)

    def of_the_end(self):
        monkeypatch.setattr(Bound, "where_it_is", interrupted)
        return end(self)

    monkeypatch.setattr(Minibatches, "_evaluate_the_end", of_the_end)
    stage = fitted(of_a_line(203)[0], maxiter=1)
    assert stage.interrupted
    assert np.isfinite(stage.elbo)
    assert stage.elbo_error > 0.0


@pytest.mark.long
@pytest.mark.slow
def test_small_sets_end_where_natural_gradients_do():
    model = of_classes()
    settings = {"progressbar": False, "model": model, "move_inducing": False, "random_seed": 1}
    best = vsgp.fit_gaussian(**settings, copy=True)
    few = vsgp.fit_gaussian(**settings, batch_size=12, copy=True)
    assert few.method == "minibatch"
    assert few.n_steps < 5000
    again = vsgp.fit_gaussian(**settings, copy=True, start=few, maxiter=1)
    assert abs(again.elbo - best.elbo) < 0.1
    np.testing.assert_allclose(few.mean["u"], best.mean["u"], atol=0.3)
    np.testing.assert_allclose(few.theta["lengthscale"], best.theta["lengthscale"], rtol=0.1)


@pytest.mark.long
def test_a_sum_of_points_and_many_features_ends_where_natural_gradients_do(monkeypatch):
    """The density of the points is held, and features are independent."""
    monkeypatch.setattr(pymc_vsgp.fit.approximation, "MOST_DENSE", 5)
    rng = np.random.default_rng(3)
    X = np.linspace(0.0, 6.0, N)[:, None]
    with pm.Model() as model:
        trend = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("slow", 9, 3)))
        trend.prior("a", X[::5])
        rest = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=pm.Gamma("fast", 4, 8)))
        rest.prior("b", inducing=vsgp.inducing.Fourier(9.0, 6))
        total = vsgp.Coregionalized([1.0, 1.0], [trend, rest])
        total.likelihood("y", vsgp.Poisson(), X=X, y=rng.poisson(np.exp(1.0 + np.sin(X[:, 0]))))
    settings = {"progressbar": False, "random_seed": 1, "copy": True, "model": model}
    best = vsgp.fit_gaussian(**settings)
    few = vsgp.fit_gaussian(**settings, batch_size=12, maxiter=200)
    again = vsgp.fit_gaussian(**settings, start=few, maxiter=1)
    assert abs(again.elbo - best.elbo) < 0.1
    for name in ("a", "b"):
        np.testing.assert_allclose(few.mean[name], best.mean[name], atol=0.3)


@pytest.mark.long
@pytest.mark.slow
def test_inducing_inputs_move_where_there_are_classes():
    model = of_classes()
    before = model["u_Xu"].get_value()
    quiet = {"progressbar": False, "copy": True, "model": model, "maxiter": 5}
    for more in ({}, {"batch_size": 8, "maxiter": 30}):
        stage = vsgp.fit_gaussian(**{**quiet, **more}, random_seed=1)
        assert np.abs(stage.Xu["u_Xu"] - before).max() > 1e-3
    kept = vsgp.fit_gaussian(**quiet, move_inducing=False)
    np.testing.assert_array_equal(kept.Xu["u_Xu"], before)
    with pytest.raises(ValueError, match="batch_size is for minibatches"):
        vsgp.fit_gaussian("natural", batch_size=8, model=model)


def test_weighted_products_of_both_signs(rng):
    A, w = rng.normal(size=(4, 9)), rng.normal(size=(3, 9))
    w[1] = -1.0
    found = weighted_gram(pt.as_tensor(A), pt.as_tensor(w)).eval(mode=RAW)
    np.testing.assert_allclose(found, np.einsum("ib,kb,jb->kij", A, w, A), atol=1e-12)


def test_progress_in_lines(capsys, monkeypatch):
    monkeypatch.setattr("pymc_vsgp.progress.SECONDS", 0.0)
    with progress("compiling", None, True) as advance:
        advance(1, "step 1, ELBO -3.00")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["compiling, 0 s", "step 1, ELBO -3.00, 0 s"]
    with progress("compiling", 2, False) as advance:
        advance(2)
    assert capsys.readouterr().err == ""


class Stops:
    """Batches that Ctrl-C meets after some."""

    def __init__(self, monkeypatch, *after):
        self.after, self.calls = after, 0
        real = Batches.__next__

        def some(batches):
            self.calls += 1
            if self.calls in self.after:
                raise KeyboardInterrupt
            return real(batches)

        monkeypatch.setattr(Batches, "__next__", some)


def fitted(model=None, **kwargs):
    settings = {"batch_size": 8, "maxiter": 60, "random_seed": 3, "progressbar": False}
    return vsgp.fit_gaussian(model=model or of_classes(mean=0.4), **(settings | kwargs))


def same(a, b):
    assert a.n_steps == b.n_steps
    np.testing.assert_array_equal(a.elbo_history, b.elbo_history)
    np.testing.assert_array_equal(a.theta["lengthscale"], b.theta["lengthscale"])
    np.testing.assert_array_equal(a.mean["u"], b.mean["u"])
    np.testing.assert_array_equal(a.Xu["u_Xu"], b.Xu["u_Xu"])


@pytest.mark.slow
def test_ctrl_c_keeps_what_minibatches_reached(monkeypatch):
    whole, model = fitted(), of_classes(mean=0.4)
    with monkeypatch.context() as patch:
        Stops(patch, 41)
        stage = fitted(model)
    assert (stage.interrupted, stage.converged, stage.n_steps) == (True, False, 39)
    assert "Continue with start=stage" in repr(stage)
    np.testing.assert_array_equal(model["u_Xu"].get_value(), stage.Xu["u_Xu"])
    assert whole.n_steps == 60
    more = fitted(model, start=stage, maxiter=21)
    assert (more.interrupted, more.n_steps) == (False, 60)
    # It goes on after 39 steps: with the batches, and the memory, that these left.
    np.testing.assert_array_equal(more.state.noisy[:45], whole.state.noisy[:45])
    assert more.elbo_history[-1] > stage.elbo_history[0]


@pytest.mark.slow
def test_ctrl_c_before_a_step_and_in_sample(monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Stops(patch, 2)
        fitted()
    Stops(monkeypatch, 5)
    kwargs = {"batch_size": 8, "maxiter": 30}
    with pytest.raises(KeyboardInterrupt):
        vsgp.sample(5, model=of_classes(), fit_kwargs=kwargs, progressbar=False)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_where_it_would_have(monkeypatch, tmp_path):
    path, whole = tmp_path / "fit", fitted()
    monkeypatch.setattr("pymc_vsgp.fit.checkpoint.SECONDS", -1.0)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        steps = Minibatches._step

        def killed(fit, cooling):
            if fit.taken == 37:
                raise MemoryError
            steps(fit, cooling)

        patch.setattr(Minibatches, "_step", killed)
        fitted(checkpoint=path)
    assert [p.name for p in tmp_path.iterdir()] == ["fit"]
    same(fitted(checkpoint=str(path), random_seed=99), whole)
    same(fitted(checkpoint=path), whole)  # nothing left to do


@pytest.mark.slow
def test_checkpoints_that_do_not_fit(tmp_path):
    path = tmp_path / "fit.npz"
    other = np.random.Generator(np.random.MT19937(1))
    fitted(checkpoint=path, maxiter=22, random_seed=other)
    with pytest.raises(ValueError, match="of another batch_size. Pass what that fit had"):
        fitted(checkpoint=path, batch_size=6)
    (tmp_path / "text").write_text("draws")
    with pytest.raises(ValueError, match="is not a checkpoint of fit_gaussian"):
        fitted(checkpoint=tmp_path / "text")
    (tmp_path / "part").write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="is not a checkpoint of fit_gaussian"):
        fitted(checkpoint=tmp_path / "part")
    for other in ({"likelihood": vsgp.RobustMax(K)}, {"swap": True}):
        with pytest.raises(ValueError, match="is of another model, of other data"):
            fitted(of_classes(**({"mean": 0.4} | other)), checkpoint=path)
    for wrong in (tmp_path, tmp_path / "no" / "fit"):
        with pytest.raises(ValueError, match="is no file in a folder that exists"):
            fitted(checkpoint=wrong)
    for more in ({"batch_size": None}, {"n_starts": 2}):
        with pytest.raises(ValueError, match="checkpoint is for one fit by minibatches"):
            fitted(checkpoint=path, **more)


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_at_the_end_leaves_a_checkpoint_that_fits(tmp_path, monkeypatch):
    """What is evaluated last is on other rows than the next batch."""
    path, whole = tmp_path / "fit.npz", fitted()
    real, calls = Minibatches.follow, []

    def follow(self):
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Minibatches, "follow", follow)
        same(fitted(checkpoint=path), whole)
    assert len(calls) == 2
    assert fitted(checkpoint=path).n_steps == whole.n_steps


@pytest.mark.long
def test_tol_is_what_a_pass_has_to_gain():
    """Windows are of 100 passes with 3 batches; steps are halved after each two that gain less."""
    stage = fitted(tol=1e9, maxiter=2500, move_inducing=False)
    assert (stage.converged, stage.n_steps) == (True, 4 * 2 * 300)
    counts = stage.state.again().counts
    assert (counts["part"], counts["since"], counts["begun"]) == (1 / 8, 0, 2400)
    more = fitted(start=stage, model=stage.model, tol=1e9, maxiter=1000, move_inducing=False)
    assert (more.converged, more.n_steps) == (True, 2400 + 600)
    whole = fitted(tol=0, maxiter=1300, move_inducing=False)
    assert (whole.n_steps, whole.state.counts["part"]) == (1300, 1.0)  # no window is judged
