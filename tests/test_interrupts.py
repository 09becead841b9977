"""Ctrl-C: what was drawn is kept, whichever stage it meets."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr

from marks import long

import pymc_vsgp as vsgp

from pymc_vsgp.fit import sampling
from pymc_vsgp.fit.density import Points
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.fit.importance import weigh
from pymc_vsgp.fit.natural import Natural
from pymc_vsgp.fit.store import keep_written
from pymc_vsgp.fit.weigher import Weigher
from pymc_vsgp.results.calibration import _Sampler

N = 40
X = np.linspace(0.0, 6.0, N)[:, None]
Y = np.random.default_rng(1).poisson(np.exp(np.sin(X[:, 0])))
QUICK = {"progressbar": False, "random_seed": 1}


def build(X, y, likelihood=vsgp.Poisson):
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.LogNormal("ls")))
        gp.prior("u", Xu=np.linspace(0.0, 6.0, 5)[:, None])
        gp.likelihood("y", likelihood(), X=X, y=y)
    return model


@pytest.fixture(scope="module")
def stage():
    return vsgp.fit_gaussian(model=build(X, Y), progressbar=False)


@pytest.mark.slow
@pytest.mark.parametrize("when", [3, *long(1)])
def test_a_stage_that_goes_on_keeps_what_it_had(when, monkeypatch):
    """In a step of the parameters, and where they have moved."""
    step, calls = Natural._step_rest, []

    def interrupted(fit, *args):
        if fit.turned:
            calls.append(fit.evaluation.value)
            if len(calls) == when:
                raise KeyboardInterrupt
            step(fit, False, 1)  # one at a time

    monkeypatch.setattr(Natural, "_step_rest", interrupted)
    stage = vsgp.fit_gaussian(model=build(X, Y * (np.arange(N) // 8 % 2)), progressbar=False)
    assert stage.interrupted and not stage.converged
    assert "Continue with start=stage" in stage.message
    assert stage.elbo == pytest.approx(calls[-1], abs=1e-6)
    assert stage.elbo >= calls[0]
    assert np.isfinite(stage.theta_covariance).all()


@pytest.fixture
def second_call_interrupted(monkeypatch):
    """Let a batch of more than 300 proposals end after a part of them."""

    def stop(after):
        whole = Weigher._evaluate

        def part(self, theta, *args):
            return whole(self, theta[:after] if len(theta) > 300 else theta, *args)

        monkeypatch.setattr(Weigher, "_evaluate", part)

    return stop


def once(f):
    """Raise KeyboardInterrupt where f is called the first time."""
    calls = []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return f(*args, **kwargs)

    return interrupted


@pytest.mark.slow
def test_the_gaussian_stage_leaves_the_model_alone(monkeypatch):
    model = build(X, Y)
    before = model.compile_logp(mode="FAST_COMPILE")(point := model.initial_point())
    monkeypatch.setattr(Natural, "_step_rest", once(None))
    with pytest.raises(KeyboardInterrupt):
        vsgp.sample(model=model, **QUICK)
    assert model.compile_logp(mode="FAST_COMPILE")(point) == before
    assert not [name for name in model.named_vars if "sites" in name]


def stop_at(monkeypatch, k, real=Natural.evaluate):
    """Let Ctrl-C meet evaluation k of the ELBO; return a list with the arguments of all."""
    found = []

    def evaluate(self, *args):
        found.append(args)
        if len(found) == k:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(Natural, "evaluate", evaluate)
    return found


@pytest.mark.slow
def test_some_rounds(stage, monkeypatch):
    """Wherever in a round it comes, q and the parameters are what the ELBO is of."""
    fitter = Fitter(build(X, Y))
    for k in (15, 16, 18, 19):  # the second round, which is the last
        with monkeypatch.context() as patch:
            stop_at(patch, k)
            some = fitter()
        assert some.interrupted and not some.converged
        assert stage.elbo >= some.elbo >= some.elbo_history[0]
        theta, sites = fitter.bound.ravel(some.theta_unconstrained), list(some.sites.values())
        assert fitter.bound(theta, sites).value == pytest.approx(some.elbo, rel=1e-12)
        more = fitter(some)
        assert more.converged and more.elbo == pytest.approx(stage.elbo, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "said"),
    [
        (1, "Interrupted in round 2. Continue with start=stage."),
        *long((9, "Interrupted in start 2 of 9. The best of them so far is kept.")),
    ],
    ids=["one", "one of several"],
)
def test_an_interrupted_fit_says_so_and_sets_coordinates(n, said, stage, monkeypatch, caplog):
    """Also one of several: those that had ended are not lost."""
    k, model = 15, build(X, Y)
    if n > 1:
        found = stop_at(monkeypatch, None)
        vsgp.fit_gaussian(model=build(X, Y), progressbar=False)
        k = len(found) + 3
    stop_at(monkeypatch, k)
    some = vsgp.fit_gaussian(n_starts=n, model=model, **QUICK)
    assert some.interrupted and some.elbo == pytest.approx(stage.elbo, abs=2e-3)
    assert caplog.records[-1].message == some.message == said
    np.testing.assert_array_equal(model["u_sites_root"].get_value(), some.sites["u"].root)


@pytest.mark.slow
def test_some_proposals(stage, second_call_interrupted, caplog):
    second_call_interrupted(after=203)
    idata = vsgp.sample(200, stage=stage, model=stage.model, **QUICK)
    posterior = idata["posterior"]
    assert dict(posterior.sizes) == {"chain": 4, "draw": 50, "u_inducing": 5}
    assert posterior.attrs["interrupted"] == 1
    assert "Interrupted: 50 draws of each chain are kept" in caplog.text
    assert np.isfinite(posterior["u"]).all()


@pytest.mark.slow
def test_no_nuts_after_an_interrupt(stage, second_call_interrupted, monkeypatch, caplog):
    """What was drawn comes with a warning where there is too little of it for a proof."""
    monkeypatch.setattr(pm, "sample", None)
    second_call_interrupted(after=20)
    idata = vsgp.sample(200, stage=stage, model=stage.model, **QUICK)
    assert idata["posterior"].sizes["draw"] == 5
    assert idata["posterior"].attrs["refused"] == "unknown k-hat"
    assert "not to be trusted: unknown k-hat" in caplog.text
    second_call_interrupted(after=3)
    with pytest.raises(KeyboardInterrupt, match="Before each chain had a draw"):
        vsgp.sample(200, stage=stage, model=stage.model, **QUICK)


@pytest.mark.slow
def test_more_of_epsilon(stage, monkeypatch):
    """The proposals stay as they were before more was to be added to each."""
    monkeypatch.setattr("pymc_vsgp.fit.weights.LARGEST_K", -9.0)
    monkeypatch.setattr("pymc_vsgp.fit.importance.SOME", -1.0)
    weigher, whole, asked = Weigher(stage.model), Weigher.evaluate, []

    def part(self, theta, K, advance=lambda n: None):
        asked.append((len(theta), K))
        last = len(asked) > 1 and asked[-2][0] == asked[-1][0] == 400
        return whole(self, theta[:9] if last else theta, K, advance)

    monkeypatch.setattr(Weigher, "evaluate", part)
    found = weigh(stage, weigher, 400, np.random.default_rng(1), progressbar=False)
    assert found.interrupted
    assert asked[-1] == (400, 3 * found.n_inner)
    assert len(found.log_weight) == len(found.theta) == 400


@pytest.mark.parametrize("stop_at", ["whole", "part"])
def test_points_that_are_needed_whole(stop_at, stage, monkeypatch):
    """Priors and variables of points are not cut short: half of them would not fit the rest."""
    points = Points(stage.model)
    calls = []
    fn = points.function([stage.model.logp()])
    split = points.split

    def interrupted(*args):
        calls.append(args)
        if len(calls) == (2 if stop_at == "part" else 1):
            raise KeyboardInterrupt
        return split(*args)

    monkeypatch.setattr(points, "split", interrupted)
    monkeypatch.setattr("pymc_vsgp.fit.density.BATCH_BYTES", 1)
    at = np.zeros((3, 1)), np.zeros((3, 2, 5))
    with pytest.raises(KeyboardInterrupt):
        fn(*at)
    if stop_at == "part":
        calls.clear()
        assert [len(x) for x in fn(*at, lambda n: None)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [vsgp.Poisson, *long(vsgp.Gaussian)])
def test_draws_of_proposals(likelihood, monkeypatch):
    if likelihood is vsgp.Gaussian:
        monkeypatch.setattr("pymc_vsgp.fit.walk.complete", once(sampling.disk.complete))
    else:
        monkeypatch.setattr(Points, "variables", once(Points.variables))
    make = likelihood if likelihood is vsgp.Poisson else lambda: vsgp.Gaussian(0.5)
    model = build(X, Y, make)
    idata = vsgp.sample(100, model=model, **QUICK)
    assert idata["posterior"]["u"].shape == (4, 100, 5)
    assert idata["posterior"].attrs["interrupted"] == 0


def of_nutpie(lengths, total, warmup=False):
    """What nutpie returns of chains that end where they are."""
    written = np.arange(total) < np.asarray(lengths)[:, None]
    dims = ("chain", "draw")
    ls = np.where(written, 1.0 + 0.1 * np.arange(total), np.nan)
    posterior = xr.Dataset({"ls": (dims, ls)})
    stats = xr.Dataset({"step_size": (dims, ls), "n_steps": (dims, written.astype(int))})
    groups = {"posterior": posterior, "sample_stats": stats}
    if warmup:
        groups["warmup_posterior"] = posterior
    data = xr.Dataset({"y": ("obs", np.zeros(3))})
    return xr.DataTree.from_dict({**groups, "observed_data": data})


def test_chains_of_different_lengths():
    """Nutpie fills them with nan. As many draws are kept as a rectangle can hold."""
    idata = of_nutpie([0, 5, 9, 8], 9, warmup=True)
    keep_written(idata)
    assert dict(idata["posterior"].sizes) == {"chain": 2, "draw": 8}
    assert np.isfinite(idata["posterior"]["ls"]).all()
    assert idata["sample_stats"]["n_steps"].values.all()
    assert idata["warmup_posterior"].sizes == {"chain": 2, "draw": 9}
    assert idata["observed_data"].sizes == {"obs": 3}
    whole = of_nutpie([4, 4], 4)
    keep_written(whole)
    assert dict(whole["posterior"].sizes) == {"chain": 2, "draw": 4}
    for empty in (of_nutpie([0, 0], 3), of_nutpie([0, 0], 0)):
        with pytest.raises(KeyboardInterrupt, match="Before there was a draw"):
            keep_written(empty)


@pytest.mark.slow
def test_inducing_values_of_interrupted_chains(monkeypatch, caplog):
    """Also where a second interrupt meets the drawing of what was integrated out."""
    model = build(X, np.sin(X[:, 0]), lambda: vsgp.Gaussian(0.5))
    monkeypatch.setattr(pm, "sample", lambda **kwargs: of_nutpie([7, 0, 6], 7))
    monkeypatch.setattr(sampling.disk, "complete", once(sampling.disk.complete))
    settings = {"nuts_sampler": "nutpie", "backend": "jax", "tune": 5}
    idata = vsgp.sample(50, model=model, **settings, **QUICK)
    assert idata["posterior"]["u"].shape == (2, 6, 5)
    assert np.isfinite(idata["posterior"]["u"]).all()
    assert idata["posterior"].attrs["interrupted"] == 1
    assert "Interrupted: 6 draws of each chain are kept" in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_replicates_and_folds_end(stage, second_call_interrupted):
    """They don't go on with fewer draws than their numbers are computed for."""
    shared = pytensor.shared(Y, name="calibration_y")
    second_call_interrupted(after=203)
    with pytest.raises(KeyboardInterrupt):
        _Sampler(build(X, shared), shared, 100, 5)(Y, 1)
    with pytest.raises(KeyboardInterrupt, match="too few draws"):
        vsgp.kfold(build, X, Y, 2, **QUICK)


@pytest.mark.slow
def test_curvature_is_finished(stage, monkeypatch):
    """It is the last thing that a fit does: a second Ctrl-C does not take the rounds with it."""
    monkeypatch.setattr(Natural, "curvature", once(Natural.curvature))
    again = vsgp.fit_gaussian(model=build(X, Y), progressbar=False)
    np.testing.assert_array_equal(again.theta_covariance, stage.theta_covariance)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, StopIteration])
def test_advi(error, caplog):
    """Ctrl-C is no end that a callback decides on."""

    def stop(approx, losses, i):
        if i == 4:
            raise error

    settings = {"callbacks": [stop], "maxiter": 20, "model": build(X, Y)}
    some = vsgp.fit_gaussian("advi", **settings, **QUICK)
    assert len(some.elbo_history) == some.n_steps < 20
    assert some.interrupted == (error is KeyboardInterrupt)
    assert ("Interrupted after" in caplog.text) == some.interrupted


@pytest.mark.slow
def test_fewer_proposals_than_chains_are_no_interrupt(stage, monkeypatch):
    """A few that were refused lead to NUTS, however many chains there are to be."""
    few = SimpleNamespace(
        log_weight=np.zeros(3), interrupted=False, refused="k-hat 2.00", may_be_elsewhere=False
    )
    monkeypatch.setattr(sampling, "weigh", lambda *args, **kwargs: few)
    rng, how = np.random.default_rng(1), {"give_up": True, "progressbar": False}
    assert sampling._by_importance(stage, 10, 4, None, None, rng, None, how) is few
    few.interrupted, few.thin = True, 1
    with pytest.raises(KeyboardInterrupt, match="Before each chain had a draw"):
        sampling._by_importance(stage, 10, 4, None, None, rng, None, how)


def test_a_handful_of_draws(stage, second_call_interrupted):
    """More proposals than were asked for, of which an interrupt leaves less than one a draw."""
    second_call_interrupted(after=9)
    with pytest.raises(KeyboardInterrupt, match="Before each chain had a draw"):
        vsgp.sample(10, stage=stage, model=stage.model, **QUICK)
