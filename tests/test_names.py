"""Processes, what observes them and their inducing inputs, told apart by name."""

import subprocess
import sys

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest

from prior_draws import prior_draws
from pymc.model.fgraph import clone_model

import pymc_vsgp as vsgp

from pymc_vsgp.fit.collapsed import can_collapse, collapse
from pymc_vsgp.model.copies import copy_of
from pymc_vsgp.model.observation import observations

X = np.random.default_rng(0).uniform(0.0, 5.0, (40, 1))
Y = np.random.default_rng(1).poisson(2.0, 40)
XU = np.linspace(0.0, 5.0, 6)[:, None]


def process(name, Xu=XU, mean=None, ls=1.0, variance=1.0):
    mean = pm.gp.mean.Zero() if mean is None else mean
    kernel = variance * pm.gp.cov.Matern52(1, ls=ls)
    gp = vsgp.VariationalSparse(mean_func=mean, cov_func=kernel)
    return gp, gp.prior(name, Xu=Xu)


def nested(name=""):
    """One process whose mean and lengthscale are values of another."""
    with pm.Model(name=name) as model:
        _, g = process("g")
        f, _ = process("f", mean=pm.gp.mean.Constant(g[0]), ls=pm.math.exp(g[1]))
        f.likelihood("y", vsgp.Poisson(), X=X, y=Y)
    return model


def counts():
    with pm.Model() as model:
        ls = pm.Gamma("ls", 2.0, 1.0)
        gp, _ = process("u", ls=ls)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
    return model


def part_of_a_model(name, n_points, n_data, **dims):
    with pm.Model(name=name):
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 2.0, 1.0)))
        gp.prior("u", Xu=np.linspace(0.0, 5.0, n_points)[:, None], n_outputs=2)
        f = vsgp.Coregionalized(np.ones((n_points, 2)), gp)
        y = np.ones((n_data, n_points))
        f.likelihood("y", vsgp.Gaussian(sigma=1.0), X=X[:n_data], y=y, **dims)


def logp_at(model, point):
    return model.compile_logp(mode="FAST_COMPILE")(point)


@pytest.mark.parametrize(
    "copy",
    [
        lambda m: m,
        clone_model,
        pm.model.transform.optimization.freeze_dims_and_data,
        lambda m: cloudpickle.loads(cloudpickle.dumps(m)),
    ],
    ids=["model", "clone_model", "freeze_dims_and_data", "cloudpickle"],
)
@pytest.mark.parametrize("name", ["", "inner"])
def test_a_process_that_parametrises_another_is_not_taken_for_it(copy, name):
    prefix = f"{name}::" if name else ""
    (found,) = observations(copy(nested(name))).values()
    assert [part.u.name for part in found.parts] == [f"{prefix}f"]


@pytest.mark.slow
def test_nested_models_have_dimensions_of_their_own():
    with pm.Model() as model:
        part_of_a_model("a", 6, 40)
        part_of_a_model("b", 3, 20)
    for name, n_points, n_data in (("a", 6, 40), ("b", 3, 20)):
        dims = model.named_vars_to_dims
        assert dims[f"{name}::u"] == (f"{name}::u_output", f"{name}::u_inducing")
        assert dims[f"{name}::y"] == (f"{name}::y_obs", f"{name}::y_output")
        idata = prior_draws(model, draws=2)
        y = vsgp.predict(idata, None, "mean", var_name=f"{name}::y", model=model, progressbar=False)
        assert dict(y.sizes) == {
            "chain": 1,
            "draw": 2,
            f"{name}::y_obs": n_data,
            f"{name}::y_output": n_points,
        }


def test_dimensions_that_the_user_names_have_no_prefix():
    with pm.Model() as model:
        part_of_a_model("a", 6, 40, dims=("time", "output"))
        part_of_a_model("b", 6, 40, dims=("time", "output"))
    assert model.named_vars_to_dims["a::y"] == model.named_vars_to_dims["b::y"]
    assert model.named_vars_to_dims["a::y"] == ("time", "output")


def test_likelihoods_of_one_process_in_nested_models():
    with pm.Model() as model:
        gp, _ = process("u")
        for name in ("a", "b"):
            with pm.Model(name=name):
                family = vsgp.Poisson() if name == "a" else vsgp.Gaussian(sigma=1.0)
                gp.likelihood("y", family, X=X, y=Y)
        with pytest.raises(ValueError, match=r"2 likelihoods.*\['a::y', 'b::y'\]"):
            gp.predictive("y_new", XU)
        counts = gp.predictive("counts", XU, "a::y")
    with model, pm.Model(name="b"):
        numbers = gp.predictive("numbers", XU, "y")
    assert (counts.dtype, numbers.dtype) == ("int64", "float64")


@pytest.mark.slow
def test_predictions_of_a_nested_model_are_those_of_the_whole():
    """Its process has a parameter of the outer one, and the inner one is on the context stack."""
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4.0, 2.0)
        with pm.Model(name="sub") as sub:
            gp, _ = process("u", ls=ls)
            gp.likelihood("y", vsgp.Gaussian(0.3), X=X, y=Y)
    idata = prior_draws(model, 3)
    point = {v.name: idata["posterior"][v.name].values[0, 0] for v in model.free_RVs}
    found = [
        [
            vsgp.predict(idata, XU, "moments", model=m, progressbar=False)["variance"].values,
            vsgp.predict(idata, None, "mean", model=m, progressbar=False).values,
            vsgp.log_predictive_density(idata, X, Y, model=m, progressbar=False).values,
            gp.predict(XU + 0.1, point, model=m)[1],
        ]
        for m in (model, sub)
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_variables_of_another_model_are_refused():
    """They would be drawn from their prior, for each call anew."""
    with pm.Model() as model:
        b = pm.Normal("b")
        gp, _ = process("u", ls=pm.Gamma("ls", 4.0, 2.0))
        gp.likelihood("y", vsgp.Poisson(exposure=pm.math.exp(b * X[:, 0])), X=X, y=Y)
    idata, copy = prior_draws(model, 3), clone_model(model)
    for m, of in ((model, b), (copy, copy["b"])):
        lik = vsgp.Poisson(exposure=pm.math.exp(of * XU[:, 0]))
        vsgp.predict(idata, XU, "mean", likelihood=lik, model=m, progressbar=False)
    lik = vsgp.Poisson(exposure=pm.math.exp(b * XU[:, 0]))
    with pytest.raises(ValueError, match=r"'b' is .* another model. .* this one: model\['b'\]"):
        vsgp.predict(idata, XU, "mean", likelihood=lik, model=copy, progressbar=False)
    point = {v.name: idata["posterior"][v.name].values[0, 0] for v in model.free_RVs}
    gp.predict(XU, point, model=model)
    with pytest.raises(ValueError, match=r"'(u|ls)' is .* another model. .* made in"):
        gp.predict(XU, point, model=copy)


@pytest.mark.parametrize(
    "copied",
    [copy_of, lambda model: pm.do(model, {"ls": 2.0})],
    ids=["copy", "do"],
)
def test_a_process_is_refused_in_a_copy_of_its_model(copied):
    """Its u is none of the copy's, where PyMC would draw it from the prior, without a word."""
    with pm.Model() as model:
        gp, _ = process("u", ls=pm.Gamma("ls", 4.0, 2.0))
        gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
        mixed = vsgp.Coregionalized([2.0], gp)
        both = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
        both += vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=5.0))
        both.prior("both", Xu=XU)
    copy = copied(model)
    before = set(copy.named_vars), set(copy.coords)
    counts = vsgp.Poisson()
    calls = [
        lambda: gp.conditional("f", XU),
        lambda: gp.predictive("f", XU),
        lambda: vsgp.predictive("f", [gp], XU),
        lambda: gp.likelihood("f", counts, X=X, y=Y),
        lambda: gp.potential("f", counts, X=X, y=Y),
        lambda: vsgp.likelihood("f", counts, [gp], X=X, y=Y),
        lambda: mixed.conditional("f", XU),
        lambda: mixed.predictive("f", XU, counts),
        lambda: mixed.likelihood("f", counts, X=X, y=Y),
        lambda: both.conditional("f", XU),
        lambda: gp.conditional("f", XU, given={"gp": both}),
    ]
    with copy:
        for call in calls:
            with pytest.raises(ValueError, match=r"'(u|both)' is .* another model. .* made in"):
                call()
        again = vsgp.VariationalSparse(cov_func=gp.cov_func)
        if copied is copy_of:
            with pytest.raises(ValueError, match=r"'ls' is .* another .* this one: model\['ls'\]"):
                again.prior("v", Xu=XU)
    assert (set(copy.named_vars), set(copy.coords)) == before


def test_parameters_of_another_model_are_refused():
    with pm.Model():
        sigma = pm.HalfNormal("sigma")
    with pm.Model() as model:
        gp, _ = process("u")
        before = set(model.named_vars)
        mixed = vsgp.Coregionalized(sigma * np.ones(1), gp)
        calls = [
            lambda: gp.likelihood("y", vsgp.Gaussian(sigma), X=X, y=Y),
            lambda: gp.likelihood("y", lambda f: pm.Normal.dist(f, sigma), X=X, y=Y),
            lambda: gp.predictive("y", XU, vsgp.Gaussian(sigma)),
            lambda: gp.conditional("y", XU * sigma),
            lambda: mixed.conditional("y", XU),
            lambda: process("v", variance=sigma),
            lambda: process("v", mean=pm.gp.mean.Constant(sigma)),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="'sigma' is a variable of another model"):
                call()
        assert set(model.named_vars) == before
        gp.conditional("f", XU * pm.HalfNormal.dist())  # without a name it is of no model


@pytest.mark.parametrize("at", ["outer", "sub", "beside"])
def test_a_process_is_of_all_models_around_it(at):
    with pm.Model() as model:
        with pm.Model(name="sub") as sub:
            gp, u = process("u", ls=pm.Gamma("ls", 4.0, 2.0))
        beside = pm.Model(name="beside")
    with {"outer": model, "sub": sub, "beside": beside}[at]:
        f = gp.conditional("f", XU)
        y = gp.predictive("y", XU, vsgp.Gaussian(1e-4))
    values, *found = pm.draw([u, f, y], random_seed=1)
    for drawn in found:
        np.testing.assert_allclose(drawn, values, atol=0.02)  # a draw of the prior has sd 1


def test_at_a_point_observed_variables_have_the_values_observed():
    with pm.Model() as model:
        size = pm.Normal("size", observed=3.0)
        gp, _ = process("u", variance=size**2)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=Y)
    _, variance = gp.predict(XU + 100.0, {"u": np.zeros(6)}, model=model, diag=True)
    np.testing.assert_allclose(variance, 9.0)


@pytest.mark.slow
def test_nested_processes_have_a_stage_by_advi_alone():
    model = nested()
    with pytest.raises(ValueError, match=r"outside.*method='advi'.*fit_kwargs=.*pm.sample\(\)"):
        vsgp.fit_gaussian(progressbar=False, model=model)
    with model, pytensor.config.change_flags(mode="FAST_COMPILE"):
        stage = vsgp.fit_gaussian("advi", maxiter=5, progressbar=False, random_seed=1)
    assert set(stage.sites) == {"g", "f"}


@pytest.mark.slow
def test_a_collapsed_potential_is_gone():
    with pm.Model() as model:
        gp, _ = process("u")
        sigma = pm.HalfNormal("sigma")
        gp.potential("term", vsgp.Gaussian(sigma=sigma), X=X, y=Y * 1.0)
    with pm.Model() as same:
        gp, _ = process("u")
        sigma = pm.HalfNormal("sigma")
        gp.likelihood("y", vsgp.Gaussian(sigma=sigma), X=X, y=Y * 1.0)
    assert can_collapse(model)
    point = {"sigma_log__": np.array(0.3)}
    values = [logp_at(collapse(m).model, point) for m in (model, same)]
    assert values[0] == pytest.approx(values[1], abs=1e-9)


def test_a_tempered_likelihood_is_not_collapsed():
    with pm.Model() as model:
        gp, _ = process("u")
        term = gp.potential("term", vsgp.Gaussian(sigma=1.0), X=X, y=Y * 1.0)
        pm.Potential("half_of_it", -0.5 * term)
    assert not can_collapse(model)


@pytest.mark.slow
def test_inducing_inputs_are_counted_when_the_model_is_complete():
    Xu = np.linspace(0.0, 5.0, 30)[:, None]
    for sizes in ((20, 100), (100, 20), (12, 12)):
        with pm.Model() as model:
            gp, _ = process("u", Xu=Xu)
            for i, n in enumerate(sizes):
                x = np.linspace(0.0, 5.0, n)[:, None]
                gp.likelihood(f"y{i}", vsgp.Poisson(), X=x, y=np.ones(n, int))
            if sum(sizes) > 30:
                assert vsgp.fit_gaussian(maxiter=1, progressbar=False).sites["u"] is not None
            else:
                with pytest.raises(ValueError, match="30 inducing points, but .* only 24"):
                    vsgp.fit_gaussian(progressbar=False)
    assert model is not None


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 8])
def test_inducing_inputs_made_of_data_leave_the_data_alone(step):
    with pm.Model() as model:
        data = pm.Data("X", X)
        gp, _ = process("u", Xu=data[::step], ls=pm.Gamma("ls", 2.0, 1.0))
        gp.likelihood("y", vsgp.Poisson(), X=data, y=Y)
        stage = vsgp.fit_gaussian(move_inducing=True, maxiter=5, progressbar=False)
        np.testing.assert_array_equal(data.get_value(), X)
        assert list(stage.Xu) == ["u_Xu"]
        if step > 1:  # with all of the data nothing is to be gained
            assert np.abs(stage.Xu["u_Xu"] - X[::step]).max() > 1e-3
        pm.set_data({"X": X + 1.0})
        stage.apply()
    np.testing.assert_array_equal(model["X"].get_value(), X + 1.0)


@pytest.mark.parametrize("first", ["Xu", "X"])
def test_data_are_not_inducing_inputs_at_once(first):
    with pm.Model():
        data = pm.Data("X", X)
        gp, _ = process("u", Xu=data if first == "Xu" else XU)
        with pytest.raises(ValueError, match=r"Pass Xu=X.get_value\(\) to prior"):
            gp.likelihood("y", vsgp.Poisson(), X=1.0 * data, y=Y)
            process("other", Xu=data)


@pytest.mark.slow
def test_one_container_for_the_inducing_inputs_of_two_processes():
    with pm.Model():
        Xu = pm.Data("Xu", XU)
        pair = [process(name, Xu=Xu)[0] for name in ("f", "g")]
        lik = vsgp.HeteroskedasticGaussian()
        vsgp.likelihood("y", lik, pair, X=X, y=np.sin(X[:, 0]))
        stage = vsgp.fit_gaussian(move_inducing=True, maxiter=5, progressbar=False)
        assert list(stage.Xu) == ["Xu"]
        np.testing.assert_array_equal(Xu.get_value(), stage.Xu["Xu"])


def test_joint_draws_of_a_tiny_function_are_not_white_noise():
    grid = np.linspace(0.0, 5.0, 60)[:, None]
    with pm.Model():
        gp, u = process("u", Xu=np.linspace(0.0, 5.0, 12)[:, None], variance=1e-6)
        f = gp.conditional("f", grid)
        values, at = pm.draw([f, u], draws=50, random_seed=1, mode="FAST_COMPILE")
    # Second differences of what is smooth are small; those of white noise are larger than it.
    rough = np.diff(values, 2, axis=1).std() / np.sqrt(6.0)
    assert values.std() == pytest.approx(at.std(), rel=0.3)
    assert rough < 0.05 * values.std()


SAME = """
import sys, cloudpickle, numpy as np
with open(sys.argv[1], "rb") as file:
    for model, stage, point, expected in cloudpickle.load(file):
        value = model.compile_logp(mode="FAST_COMPILE")(point)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        assert stage is None or stage.model is model
"""


@pytest.mark.slow
def test_models_survive_a_process_boundary(tmp_path):
    """With and without a stage."""
    # By cloudpickle, as PyMC sends models: plain pickle refuses an empty pm.Model already.
    models, rng = [counts(), counts()], np.random.default_rng(2)
    stages = [None, vsgp.fit_gaussian(maxiter=2, progressbar=False, model=models[1])]
    sent = []
    for model, stage in zip(models, stages, strict=True):
        start = model.initial_point()
        point = {n: x + 0.1 * rng.normal(size=np.shape(x)) for n, x in start.items()}
        sent.append((model, stage, point, logp_at(model, point)))
    path = tmp_path / "model.pkl"
    path.write_bytes(cloudpickle.dumps(sent))
    subprocess.run([sys.executable, "-c", SAME, str(path)], check=True)


@pytest.mark.parametrize("wrong", [0.0, 5.0])
def test_covariates_in_inducing_inputs_do_not_matter(wrong):
    rng = np.random.default_rng(0)
    place = rng.uniform(0.0, 5.0, 80)
    covariates = rng.normal(size=(80, 2)) + np.sin(place)[:, None]
    x = np.column_stack([place, covariates])
    y = rng.poisson(np.exp(0.5 * np.sin(2.0 * place) + covariates @ [0.5, -0.3]))
    Xu = np.column_stack([np.linspace(0.0, 5.0, 8), wrong * rng.normal(size=(8, 2))])
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        mean = pm.gp.mean.Linear(coeffs=pm.math.concatenate([np.zeros(1), b]))
        kernel = pm.gp.cov.Matern52(3, ls=1.0, active_dims=[0])
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=kernel)
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Poisson(), X=x[:50], y=y[:50])
        gp.likelihood("z", vsgp.Poisson(), X=x[50:], y=y[50:])
    # What is kept are averages over the rows nearest in place, of all likelihoods.
    nearest = np.abs(place[:, None] - Xu[:, 0]).argmin(axis=1)
    kept = model["u_Xu"].get_value()
    for j in range(8):
        np.testing.assert_allclose(kept[j, 1:], covariates[nearest == j].mean(axis=0))
    np.testing.assert_array_equal(kept[:, 0], Xu[:, 0])


def test_data_of_a_potential_are_no_inducing_inputs():
    """Inputs are found in a potential as in a likelihood, whichever process came first."""
    x = np.linspace(0.0, 3.0, 8)[:, None]
    with pm.Model():
        X = pm.Data("X", x, dims=("obs", "feature"))
        first = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        first.prior("u", Xu=x[::2])
        first.potential("y", vsgp.Poisson(), X=X, y=np.arange(8))
        second = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        with pytest.raises(ValueError, match="inputs of observations and inducing inputs at once"):
            second.prior("w", Xu=X)
