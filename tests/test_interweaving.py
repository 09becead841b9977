"""Updates of parameters with the function, its standard normals or surrogate data held."""

import numpy as np
import pymc as pm
import pytest
import reference_steps as reference

from modes import RAW, REWRITTEN

from pymc_vsgp.steps import Interweaving

FAST = {"compile_kwargs": {"mode": REWRITTEN}}
MODELS = {
    "probit": reference.latent,
    "logit": lambda: reference.latent(True, "logit"),
    "sparse": reference.sparse,
}


def a_step(model, **kwargs):
    return Interweaving([model["ls"], model["sd"]], model=model, **FAST, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("which", MODELS)
def test_what_is_held(which, rng):
    """Ratios are those of the log density in coordinates of which some are held."""
    model = MODELS[which]()
    step = a_step(model, schemes=("sufficient", "ancillary", "surrogate"))
    logp = model.compile_logp(mode=RAW)
    name = step.latents.values[0].name
    here = step._place(model.initial_point() | {name: rng.normal(size=3)})
    moved = here.point | {"ls_log__": np.array(0.4), "sd_log__": np.array(-0.2)}
    there = step._place(moved, here.nu)

    def density(place):
        """Log density of parameters and whitened values."""
        (value,) = step._values(place.nu, *place.known)
        point = place.point | {name: value}
        np.testing.assert_allclose(step._place(point).nu, place.nu, atol=1e-8)
        # Of the value variable: whitened already, or of f.
        det = np.linalg.slogdet(place.B)[1] if which == "probit" else 0.0
        return logp(point) + det

    def ratio(scheme, data=None):
        new, change = step._carry(here, there, scheme, data)
        return new, new.log_likelihood - here.log_likelihood + change

    new, found = ratio("ancillary")
    np.testing.assert_array_equal(new.nu, here.nu)
    np.testing.assert_allclose(found, density(new) - density(here), rtol=1e-7)

    new, found = ratio("sufficient")
    np.testing.assert_allclose(new.f, here.f, atol=1e-9)
    jacobian = np.linalg.slogdet(here.B)[1] - np.linalg.slogdet(new.B)[1]
    np.testing.assert_allclose(found, density(new) - density(here) + jacobian, rtol=1e-7)

    # Normal given surrogate data: by dense covariances, with data held.
    g, noise = step._surrogate(here)
    new, found = ratio("surrogate", (g, noise))
    factors, normals = [], []
    for place in (here, new):
        K = place.B @ place.B.T
        gain = K @ np.linalg.inv(K + np.diag(noise**2))
        mean, cov = place.c + gain @ (g - place.c), K - gain @ K
        normals.append((place.f - mean) @ np.linalg.solve(cov, place.f - mean))
        factors.append(np.linalg.slogdet(cov)[1] / 2 - np.linalg.slogdet(place.B)[1])
    np.testing.assert_allclose(*normals, rtol=1e-5)
    seen = [-0.5 * (((g - p.f) / noise) ** 2).sum() for p in (new, here)]
    exact = density(new) + seen[0] - density(here) - seen[1] + factors[1] - factors[0]
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_noise_of_surrogate_data_is_that_of_the_way_back(rng):
    """Without tuning, too: else a move and its reverse have other data."""
    model = reference.latent()
    step = a_step(model, schemes=("surrogate",), tune=False)
    point, _ = step.step(model.initial_point())
    theta = step.parameters.of(point)
    here, there = (step._place(step.parameters.put(point, theta + x)) for x in (0.0, 0.7))
    assert not np.allclose(here.prior_variance, there.prior_variance)
    np.testing.assert_array_equal(step._surrogate(here)[1], step._surrogate(there)[1])


@pytest.mark.long
@pytest.mark.slow
def test_posterior():
    """Of parameters and function, by quadrature."""
    model = reference.latent()
    step = a_step(model, schemes=("sufficient", "ancillary", "surrogate"), n_updates=2)
    chains = []
    for seed in (1, 2):
        step.setup_chain(np.random.default_rng(seed), 200, 600)
        point, draws = model.initial_point(), []
        for i in range(800):
            if i == 200:
                step.stop_tuning()
            point, _ = step.step(point)
            draws.append([point["ls_log__"], point["sd_log__"], *point["f"]])
        chains.append(draws[200:])
    draws = np.array(chains).transpose(2, 0, 1)
    for x, mean in zip(draws, reference.POSTERIOR["probit"], strict=True):
        reference.check_mean(x, mean, largest=0.2, rhat=1.1)


@pytest.mark.long
@pytest.mark.slow
def test_chains_in_processes():
    model = reference.sparse()
    with model:
        idata = pm.sample(
            20,
            tune=20,
            chains=2,
            cores=2,
            step=a_step(model, schemes=("ancillary", "surrogate")),
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
            **FAST,
        )
    found = idata["sample_stats"]
    assert np.isnan(found["accept_sufficient"]).all()
    assert ((found["accept_surrogate"] >= 0.0) & (found["accept_surrogate"] <= 1.0)).all()
    assert len(np.unique(idata["posterior"]["u"].values.reshape(-1, 3), axis=0)) == 40


def test_seed_and_pickle():
    model = reference.latent()
    step = a_step(model)
    reference.same_chain(step, model)


@pytest.mark.slow
def test_errors():
    model = reference.latent()
    with model:
        with pytest.raises(ValueError, match="schemes is 'centered'. Pass one or more of"):
            Interweaving([model["ls"]], schemes="centered")
        with pytest.raises(TypeError, match="schemes is 3, but names are needed"):
            Interweaving([model["ls"]], schemes=3)
        with pytest.raises(ValueError, match="n_updates is 0. Pass a whole"):
            Interweaving([model["ls"]], n_updates=0)
        with pytest.raises(ValueError, match="vars has latent values"):
            Interweaving([model["f"]], **FAST)
        step = a_step(model)
    with pytest.raises(ValueError, match="not finite at the current values"):
        step.step(model.initial_point() | {"sd_log__": np.array(np.nan)})
