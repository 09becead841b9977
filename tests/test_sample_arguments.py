"""What `vsgp.sample` passes to `pm.sample`, and what it refuses."""

import os

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from marks import long
from modes import RAW

import pymc_vsgp as vsgp

from pymc_vsgp.fit.backend import processors
from pymc_vsgp.model.copies import copy_of

X = np.linspace(0.0, 4.0, 12)[:, None]
QUICK = {"draws": 3, "tune": 3, "chains": 1, "progressbar": False, "nuts_sampler": "pymc"}
QUICK |= {"compile_kwargs": {"mode": RAW}, "compute_convergence_checks": False, "random_seed": 1}


@pytest.fixture(scope="module")
def stage():
    with pm.Model():
        s = pm.HalfNormal("s")
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Gaussian(s), X=X, y=np.sin(X[:, 0]))
        pm.Deterministic("twice", 2.0 * s)
        return vsgp.fit_gaussian(progressbar=False)


@pytest.fixture
def passed(stage, monkeypatch):
    """Call sample, and return what reached pm.sample."""
    seen = {}
    monkeypatch.setattr(pm, "sample", lambda **kwargs: seen.update(kwargs))

    def call(**kwargs):
        vsgp.sample(stage=stage, model=stage.model, **{**QUICK, **kwargs})
        return seen

    return call


@pytest.mark.parametrize(
    "asked",
    [
        {"init": "adapt_full"},
        {"initvals": {"s": 0.5}},
        {"cores": 1},
        {"nuts": {"max_treedepth": 3, "target_accept": 0.7}},
        {"max_treedepth": 3},
        {"idata_kwargs": {"include_transformed": True}},
        {"discard_tuned_samples": False},
        {"quiet": True},
    ],
)
def test_arguments_are_passed_on(asked, passed):
    found = passed(**{"collapse": False, "initvals": {"s": 1.0}, **asked})
    assert {name: found[name] for name in asked} == asked


@pytest.mark.parametrize(
    "name", ["step", "idata_kwargs", *long("init", "trace", "callback", "initvals")]
)
def test_none_is_a_default(name, passed):
    assert {**passed(**{name: None}), name: None} == {**passed(), name: None}


def test_a_stage_and_settings_of_another(stage):
    with pytest.raises(ValueError, match="fit_kwargs is for a Gaussian stage that is run here"):
        vsgp.sample(stage=stage, model=stage.model, fit_kwargs={"maxiter": 3}, **QUICK)


def test_what_is_not_asked_for_is_set(passed):
    found = passed()
    assert found["init"] == "adapt_diag"
    assert found["nuts"] == {"target_accept": 0.9}
    assert set(found["initvals"][0]) == {"s"}


@pytest.mark.parametrize(
    ("asked", "metric"),
    [
        ({}, {"adaptation": "low_rank"}),
        ({"adaptation": "diag"}, {"adaptation": "diag"}),
        ({"use_grad_based_mass_matrix": False}, {"use_grad_based_mass_matrix": False}),
    ],
)
def test_metric_of_nutpie(asked, metric, passed):
    pytest.importorskip("nutpie")
    nuts = passed(collapse=False, nuts_sampler="nutpie", nuts=asked)["nuts"]
    assert nuts == {"target_accept": 0.9} | metric


@pytest.mark.parametrize(("size", "rate"), [(24, 0.9), (25, 0.8)])
def test_acceptance_follows_how_many_numbers_are_sampled(size, rate, stage, passed, monkeypatch):
    """With s, which is all that is left where inducing values are integrated out."""
    monkeypatch.setattr(stage, "mean", {"u": np.zeros((1, size))})
    monkeypatch.setattr("pymc_vsgp.fit.sampling.fits", lambda *_: True)
    initvals = {"s": 1.0}
    assert passed(collapse=False, initvals=initvals)["nuts"] == {"target_accept": rate}
    assert passed()["nuts"] == {"target_accept": 0.9}
    asked = {"target_accept": 0.7}
    assert passed(collapse=False, initvals=initvals, **asked)["nuts"] == asked


@pytest.mark.slow
def test_chains_at_once(passed):
    """As many as there are processors, of which pm.sample counts half."""
    pytest.importorskip("nutpie")
    nutpie = {"collapse": False, "nuts_sampler": "nutpie", "backend": "numba", "chains": 3}
    assert passed(**nutpie)["cores"] == min(processors(), 3)
    assert passed(**nutpie, cores=1)["cores"] == 1


@pytest.mark.parametrize(("devices", "method"), [(1, "vectorized"), (2, "vectorized"), (3, None)])
def test_blackjax_has_more_chains_than_devices(devices, method, passed, monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    nuts = passed(collapse=False, nuts_sampler="blackjax", chains=3)["nuts"]
    assert nuts.get("chain_method") == method


def test_processors_of_a_job(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert processors() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors() == 64


def test_values_of_what_is_integrated_out_are_left_out(passed):
    assert passed(initvals=[{"s": 0.5, "u": np.zeros(4)}])["initvals"] == [{"s": 0.5}]


@pytest.mark.slow
@pytest.mark.parametrize("collapse", [None, False])
def test_initial_values_are_of_variables_of_the_model(collapse, passed, stage):
    """Also where those of inducing values are left out, and an unknown one would be, too."""
    for known in ({"s": 0.5}, {"s_log__": 0.5}, {stage.model["s"]: 0.5}, {"s": 0.5, "twice": 1.0}):
        assert passed(initvals=known, collapse=False)["initvals"] == known
    for unknown in ({"nope": 1.0}, [{"s": 0.5}, {"nope": 1.0}], {"s_log": 0.0}):
        with pytest.raises(ValueError, match=r"initvals has '.*'. Pass values .* of \['s', 'u'\]"):
            passed(initvals=unknown, collapse=collapse)
    with pytest.raises(TypeError, match="initvals is of type int. Pass a dict of values by name"):
        passed(initvals=[3], collapse=collapse)
    for wrong, match in (
        ({"s": [0.5, 0.5]}, r"'s' has shape \(2,\), and the variable \(\)"),
        ([{"s": 0.5}, {"u": np.zeros(3)}], r"'u' has shape \(3,\), and the variable \(4,\)"),
        ({"s": -1.0}, "'s' is -1.0, which it can't have"),
        ({"s": "mode"}, "Pass numbers, or one of"),
    ):
        with pytest.raises(ValueError, match=match):
            passed(initvals=wrong, collapse=collapse)


@pytest.mark.slow
def test_the_whole_model_is_sampled_where_arguments_are_about_it(passed):
    assert set(passed(callback=print)["initvals"][0]) == {"s", "u"}
    for asked in ({"return_inferencedata": False}, {"idata_kwargs": {}}, {"callback": print}):
        with pytest.raises(ValueError, match="are of the whole model. Drop collapse=True."):
            passed(collapse=True, **asked)


def test_warning_of_a_log_likelihood_that_is_no_score(passed):
    with pytest.warns(UserWarning, match=r"az.loo of this .* is pessimistic.*Use vsgp.compute_log"):
        passed(idata_kwargs={"log_likelihood": True}, initvals={"s": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "Generator", *long("RandomState")])
def test_seeds(kind, passed):
    make = {
        "list": lambda k: [k, 7],
        "Generator": np.random.default_rng,
        "RandomState": np.random.RandomState,
    }[kind]

    def seen(k):
        return passed(random_seed=make(k), initvals={"s": 0.5}, collapse=False)["random_seed"]

    assert seen(1) == seen(1) != seen(2)


@pytest.mark.slow
def test_names_are_picked_after_the_inducing_values_are_drawn(stage):
    idata = vsgp.sample(stage=stage, model=stage.model, var_names=["u", "twice"], **QUICK)
    assert set(idata["posterior"].data_vars) == {"u", "twice"}
    assert idata["posterior"]["u"].shape == (1, 3, 4)


@pytest.mark.slow
def test_names_are_picked_of_draws_by_importance(stage):
    """They are no setting of NUTS."""
    quick = {"random_seed": 1, "progressbar": False, "model": stage.model}
    idata = vsgp.sample(50, stage=stage, var_names=["u", "twice"], **quick)
    assert idata["posterior"].attrs["method"] == "importance"
    assert set(idata["posterior"].data_vars) == {"u", "twice"}
    whole = vsgp.sample(50, stage=stage, **quick)
    np.testing.assert_array_equal(whole["posterior"]["u"], idata["posterior"]["u"])


def test_a_line_says_which_argument_is_of_nuts(passed, caplog):
    caplog.set_level("INFO", "pymc.vsgp")
    passed(initvals={"s": 0.5})
    assert "NUTS draws, as you passed nuts_sampler, compile_kwargs, initvals" in caplog.text


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"drawz": 3}, TypeError, r"takes \['drawz'\]. Check the spelling"),
        ({"nuts_sampler_kwargs": {}}, TypeError, r"Pass nuts=\{...\} instead"),
        ({"target_accept": 0.9, "nuts": {"target_accept": 0.8}}, ValueError, "given twice"),
        (
            {"var_names": ["s", "z"]},
            ValueError,
            r"var_names is \['s', 'z'\]. Pass .* of \['s', 'u'",
        ),
        ({"var_names": "s"}, ValueError, "var_names is 's'. Pass a list of names"),
        ({"draws": 0}, ValueError, "draws is 0. Pass a whole number, 1 or more"),
        ({"chains": 1.5}, ValueError, "chains is 1.5. Pass a whole number"),
        ({"tune": -1}, ValueError, "tune is -1. Pass a whole number, 0 or more"),
        ({"tune": 0, "nuts_sampler": "nutpie"}, ValueError, "tune is 0. .* 1 or more"),
        ({"tune": 0, "nuts_sampler": "blackjax"}, ValueError, "tune is 0. .* 1 or more"),
        ({"cores": 0}, ValueError, "cores is 0. Pass a whole number, 1 or more"),
        ({"store": "x", "idata_kwargs": {}}, TypeError, r"\['idata_kwargs'\] together with store"),
    ],
)
def test_refusals(asked, error, words, stage):
    quick = {k: v for k, v in QUICK.items() if k != "compute_convergence_checks"}
    with pytest.raises(error, match=words):
        vsgp.sample(stage=stage, model=stage.model, **{**quick, **asked})


def test_a_step_needs_the_stage_before_it(stage):
    with pytest.raises(ValueError, match="Run fit_gaussian first, then build the step"):
        vsgp.sample(model=stage.model, step=object())


def test_the_number_of_draws_comes_first(stage, passed):
    assert passed(initvals={"s": 0.5})["draws"] == 3
    with pytest.raises(TypeError, match=r"sample\(stage=...\)"):
        vsgp.sample(stage, model=stage.model)


@pytest.mark.parametrize("name", ["compile_kwargs", "fit_kwargs", "idata_kwargs", "nuts"])
def test_what_is_no_dict(name, stage):
    with pytest.raises(TypeError, match=f"{name} is of type int. Pass a dict, or drop it."):
        vsgp.sample(stage=stage, model=stage.model, **{name: 3})


@pytest.mark.parametrize("sampler", ["no such", True, "", 0, []])
def test_samplers_that_there_are_none_of(sampler, stage):
    with pytest.raises(ValueError, match="There is no sampler .*Choose one of .*'nutpie', 'pymc'"):
        vsgp.sample(stage=stage, model=stage.model, nuts_sampler=sampler)


def test_backend_that_there_is_none_of(stage):
    with pytest.raises(ValueError, match="PyTensor has no mode 'no such'. Pass 'numba', 'jax', "):
        vsgp.sample(stage=stage, model=stage.model, backend="no such")


@pytest.mark.parametrize("asked", [{"copy": True}, {"model": None}])
def test_the_stage_is_of_the_model_that_is_sampled(asked, stage):
    with pytest.raises(ValueError, match="the stage is of the model that is sampled. Drop them"):
        vsgp.sample(model=stage.model, fit_kwargs=asked)


def test_a_path_is_looked_at_before_anything_is_fitted(stage, monkeypatch, tmp_path):
    monkeypatch.setattr("pymc_vsgp.fit.sampling.fit_gaussian", None)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y").touch()
    with pytest.raises(FileExistsError, match="Pass a new path"):
        vsgp.sample(model=stage.model, store=tmp_path / "x")
    with pytest.raises(ValueError, match="Only nutpie writes draws"):
        vsgp.sample(model=stage.model, store=tmp_path / "z", nuts_sampler="pymc")


@pytest.mark.slow
def test_without_parameters_the_inducing_values_are_sampled():
    """There would be nothing left, were they integrated out."""
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Gaussian(0.5), X=X, y=np.sin(X[:, 0]))
    idata = vsgp.sample(model=model, method="nuts", **QUICK)
    assert idata["posterior"]["u"].shape == (1, 3, 4)
    with pytest.raises(ValueError, match="parameters beside it.*Drop collapse=True"):
        vsgp.sample(model=model, method="nuts", collapse=True, **QUICK)


def test_a_variable_that_is_added_after_the_stage(stage):
    """The stage has no estimate of it."""
    model = copy_of(stage.model)
    with model:
        pm.Normal("b")
        for method in ("importance", "nuts"):
            with pytest.raises(ValueError, match="than the model has now.* Run fit_gaussian again"):
                vsgp.sample(2, stage=replace(stage, model=model), method=method, progressbar=False)
