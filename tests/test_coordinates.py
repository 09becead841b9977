"""The sampler's coordinates are a change of variables, whatever the sites are."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW

from pymc_vsgp.fit.stage import hand_over
from pymc_vsgp.inducing.coordinates import Sites, Tied, Whitened
from pymc_vsgp.model.variable import Inducing
from pymc_vsgp.ops.cholesky import factor

M = 5


def build(n_functions=None, mean=0.7):
    """A model of inducing values alone, with a lengthscale."""
    Xu = np.linspace(0.0, 1.0, M)[:, None]
    with pm.Model() as model:
        ls = pm.Gamma("ls", 3.0, 5.0)
        slope = pm.Normal("slope")
        R, _ = factor(pm.gp.cov.Matern52(1, ls=ls)(pt.constant(Xu)), 1e-6)
        shape = {} if n_functions is None else {"shape": (n_functions, M)}
        Inducing("u", mean + slope * pt.constant(Xu[:, 0]), R, **shape)
    return model


def random_sites(rng, n_functions):
    scale = rng.uniform(0.1, 10.0, size=(n_functions, 1, 1))
    return Sites(rng.normal(size=(n_functions, M)), scale * rng.normal(size=(n_functions, M, M)))


@pytest.mark.parametrize(
    ("n_functions", "mode"),
    [(None, RAW), (3, RAW), pytest.param(3, "NUMBA", marks=pytest.mark.long)],
)
def test_density_of_u_does_not_depend_on_the_sites(n_functions, mode, rng):
    model = build(n_functions)
    (u,) = (rv for rv in model.free_RVs if rv.name == "u")
    u_value = model.rvs_to_values[u]
    densities = []
    point = {"ls_log__": np.log(0.4), "slope": -0.3}
    # A value of u, and what it is in each system of coordinates.
    target = rng.normal(size=M if n_functions is None else (n_functions, M))
    given = (None, random_sites(rng, n_functions or 1), random_sites(rng, n_functions or 1))
    for sites in given:
        if sites is not None:
            hand_over(model, {"u": sites}, {})
        transform = model.rvs_to_transforms[u]
        inputs = model.replace_rvs_by_values(list(u.owner.inputs[1:]))
        inputs = [u.owner.inputs[0], *inputs]
        value = pt.constant(target)
        forward = transform.forward(value, *inputs)
        back = transform.backward(u_value, *inputs)
        jacobian = transform.log_jac_det(u_value, *inputs)
        others = [v for v in model.value_vars if v is not u_value]
        moved = pytensor.function(others, forward, mode=RAW, on_unused_input="ignore")
        at = point | {u_value.name: np.asarray(moved(*(point[v.name] for v in others)))}
        fn = model.compile_fn(
            [model.logp(), pt.sum(jacobian), back],
            inputs=model.value_vars,
            mode=mode if sites is given[-1] else RAW,  # compiling is all that takes time
            on_unused_input="ignore",
        )
        logp, jac, again = (np.asarray(r) for r in fn(at))
        np.testing.assert_allclose(again, target, rtol=1e-8, atol=1e-8)
        densities.append(logp - jac)
    np.testing.assert_allclose(densities[1:], densities[0], rtol=1e-8)


def test_the_jacobian_is_that_of_the_map(rng):
    model = build()
    (u,) = (rv for rv in model.free_RVs if rv.name == "u")
    hand_over(model, {"u": random_sites(rng, 1)}, {})
    transform = model.rvs_to_transforms[u]
    value = model.rvs_to_values[u]
    inputs = [u.owner.inputs[0], *model.replace_rvs_by_values(list(u.owner.inputs[1:]))]
    jacobian = transform.log_jac_det(value, *inputs)
    matrix = pytensor.gradient.jacobian(transform.backward(value, *inputs), value)
    fn = model.compile_fn(
        [jacobian, matrix], inputs=model.value_vars, mode=RAW, on_unused_input="ignore"
    )
    point = {"ls_log__": np.log(0.4), "slope": 0.1, value.name: rng.normal(size=M)}
    logdet, J = fn(point)
    np.testing.assert_allclose(logdet, np.linalg.slogdet(J)[1], rtol=1e-10)


def test_without_sites_it_is_whitening(rng):
    model = build()
    (u,) = (rv for rv in model.free_RVs if rv.name == "u")
    value = model.rvs_to_values[u]
    assert isinstance(model.rvs_to_transforms[u], Whitened)
    point = {"ls_log__": np.log(0.4), "slope": 0.1, value.name: rng.normal(size=M)}
    fns = [model.compile_fn([model.logp(), model.dlogp()], mode=RAW)]
    hand_over(model, {"u": Sites(np.zeros((1, M)), np.zeros((1, M, M)))}, {})
    assert isinstance(model.rvs_to_transforms[u], Tied)
    fns.append(model.compile_fn([model.logp(), model.dlogp()], mode=RAW))
    white, tied = (fn(point) for fn in fns)
    np.testing.assert_allclose(tied[0], white[0], rtol=1e-12)
    np.testing.assert_allclose(tied[1], white[1], rtol=1e-10, atol=1e-12)


def test_gaussian_sites_make_the_posterior_standard_normal(rng):
    """With the sites of a Gaussian likelihood on u itself: for every lengthscale."""
    noise = 0.2
    model = build()
    (u,) = (rv for rv in model.free_RVs if rv.name == "u")
    y = rng.normal(size=M)
    with model:
        pm.Normal("y", u, noise, observed=y)
    sites = Sites(y[None] / noise**2, np.eye(M)[None] / noise)
    hand_over(model, {"u": sites}, {})
    value = model.rvs_to_values[u]
    logp = model.compile_logp(mode=RAW)
    for ls in (0.1, 0.5, 3.0):
        point = {"ls_log__": np.log(ls), "slope": 0.3, value.name: np.zeros(M)}
        center = logp(point)
        for _ in range(3):
            eps = rng.normal(size=M)
            drop = center - logp(point | {value.name: eps})
            np.testing.assert_allclose(drop, eps @ eps / 2.0, rtol=1e-7)


@pytest.mark.slow
def test_draws_of_several_functions(rng):
    model = build(3)
    with model:
        prior = pm.sample_prior_predictive(4000, random_seed=1, compile_kwargs={"mode": RAW})
    u = prior["prior"]["u"].values.reshape(-1, 3, M)
    assert u.shape == (4000, 3, M)
    # Independent functions, with the same prior.
    between = np.corrcoef(u[:, 0, 0], u[:, 1, 0])[0, 1]
    within = np.corrcoef(u[:, 0, 0], u[:, 0, 1])[0, 1]
    assert abs(between - np.corrcoef(u[:, 0, 0], u[:, 2, 0])[0, 1]) < 0.1
    assert within > 0.2 + abs(between)
