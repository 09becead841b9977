"""The log density of the model, its gradient, and the conditionals."""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import reference_gp

from families import (
    COUNTS,
    REAL,
    D,
    M,
    N,
    ard_process,
    core_ops,
    family_model,
    linear_mean,
    pm_linear_mean,
    random_point,
    unconstrained,
)
from marks import long
from modes import RAW, REWRITTEN
from prior_draws import prior_draws
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import Clip
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from scipy import stats

import pymc_vsgp as vsgp

from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.ops.cholesky import SafeCholesky
from pymc_vsgp.ops.distance import NotNegative, pass_gradients
from pymc_vsgp.ops.linalg import WeightedGram


@pytest.fixture
def inputs(rng):
    X = rng.normal(size=(N, D))
    Xu = rng.normal(size=(M, D))
    return X, Xu


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_gradient_by_finite_differences(family, inputs, rng):
    model = family_model(family, inputs)
    point = unconstrained(random_point(rng))
    logp = model.logp()
    (logp,) = model.replace_rvs_by_values([logp])
    values = [pt.as_tensor(point[v.name]) for v in model.value_vars]

    def density(*args):
        return clone_replace(logp, dict(zip(model.value_vars, args, strict=True)))

    pytensor.gradient.verify_grad(
        density, [np.asarray(v.data) for v in values], rng=rng, mode=RAW, rel_tol=1e-5
    )


@pytest.mark.slow
def test_one_pass_over_the_data(inputs):
    """One Cholesky factor, one loop over the data, and three M^2 B products in each turn of it."""
    model = family_model("poisson", inputs)
    logp = model.compile_logp(mode=REWRITTEN)
    dlogp = model.compile_fn([model.logp(), model.dlogp()], mode=REWRITTEN)
    n_outputs = []
    # Outside of the loop only the adjoint of the factor solves: the whitened values need no solve,
    # because they are what a sampler moves.
    for fn, n_outside, n_inside, n_outer in ((logp, 0, 1, 0), (dlogp, 3, 2, 1)):
        fgraph = fn.f.maker.fgraph
        outside = core_ops(fgraph)
        (loop,) = (op for op in outside if isinstance(op, BlockSum))
        inside = core_ops(loop.fgraph)
        assert sum(isinstance(op, SafeCholesky) for op in outside) == 1
        assert sum(isinstance(op, SolveTriangular) for op in outside) == n_outside
        assert sum(isinstance(op, SolveTriangular) for op in inside) == n_inside
        assert sum(isinstance(op, WeightedGram) for op in inside) == n_outer
        # The rows' own outputs are not asked for, and not kept.
        n_outputs.append(len(loop.fgraph.outputs))
        assert loop.n_sums == n_outputs[-1]
        # Nothing of size N x M is kept: the loop returns sums and, if asked, one number a row.
        held = [v for node in fgraph.apply_nodes for v in node.outputs if v.type.ndim == 2]
        assert all(N not in v.type.shape for v in held)
    assert n_outputs[0] == 1 and n_outputs[1] > 5


def test_value_does_not_depend_on_the_coordinates(inputs, rng):
    """The density of u under the transform, less the Jacobian, is that of a multivariate normal."""
    X, Xu = inputs
    point = random_point(rng)
    with pm.Model() as model:
        gp = ard_process()
        u = gp.prior("u", Xu=Xu)
    _, _, u_value = reference_gp.moments(
        X, Xu, point["lengthscales"], point["variance"], linear_mean, point["v"]
    )
    K = reference_gp.ard_kernel(Xu, Xu, point["lengthscales"], point["variance"])
    K += reference_gp.JITTER * point["variance"] * np.eye(M)
    expected = stats.multivariate_normal.logpdf(u_value, linear_mean(Xu), K)
    given = {model["lengthscales"]: point["lengthscales"], model["variance"]: point["variance"]}
    value = pm.logp(u, u_value).eval({k: np.asarray(v) for k, v in given.items()})
    np.testing.assert_allclose(value, expected, rtol=1e-8)


@pytest.mark.slow
def test_inducing_points_at_the_data_give_the_exact_process(rng):
    """With Xu = X the density of (u, theta) is that of pm.gp.Latent."""
    X = rng.uniform(0, 10, size=(15, 1))
    y = rng.poisson(2, size=15)
    # The two differ by terms of the order of the root of the jitter
    jitter = 1e-14
    with pm.Model() as sparse:
        ls = pm.Gamma("ls", 3, 2)
        gp = pm.gp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=1.5 * pm.gp.cov.Matern52(1, ls=ls)
        )
        gp.prior("f", Xu=X, jitter=jitter)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    with pm.Model() as exact:
        ls = pm.Gamma("ls", 3, 2)
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(0.4), cov_func=1.5 * pm.gp.cov.Matern52(1, ls=ls)
        )
        f = gp.prior("f", X=X, jitter=1.5 * jitter)
        pm.Poisson("y", pm.math.exp(f), observed=y)
    for _ in range(3):
        v, log_ls = rng.normal(size=15), rng.normal()
        a = sparse.compile_logp(mode=RAW)({"ls_log__": log_ls, "f_whitened__": v})
        b = exact.compile_logp(mode=RAW)({"ls_log__": log_ls, "f_rotated_": v})
        np.testing.assert_allclose(a, b, rtol=1e-7)


def test_gaussian_likelihood_integrates_to_the_collapsed_bound(inputs, rng):
    """For a Gaussian likelihood log q is quadratic in v, and its integral is Titsias's bound."""
    X, Xu = inputs
    y = rng.normal(size=N)
    lengthscales, variance, sigma = np.array([0.9, 1.4, 2.0]), 1.3, 0.4
    with pm.Model() as model:
        cov = variance * pm.gp.cov.ExpQuad(D, ls=lengthscales)
        gp = pm.gp.VariationalSparse(mean_func=pm_linear_mean(), cov_func=cov)
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(sigma=sigma), X=X, y=y)
    fn = model.compile_fn([model.logp(), model.dlogp()], mode=RAW)

    def at(v):
        return fn({"u_whitened__": v})

    origin, gradient = at(np.zeros(M))
    # Exact, whatever the step, since the gradient is linear
    H = -np.array([at(e)[1] - gradient for e in np.eye(M)])
    np.testing.assert_allclose(H, H.T, atol=1e-9)
    log_integral = (
        origin
        + 0.5 * gradient @ np.linalg.solve(H, gradient)
        + 0.5 * M * np.log(2 * np.pi)
        - 0.5 * np.linalg.slogdet(H)[1]
    )
    bound = reference_gp.collapsed_bound(X, y, Xu, lengthscales, variance, linear_mean, sigma)
    np.testing.assert_allclose(log_integral, bound, rtol=1e-9)


@pytest.mark.slow
def test_potential_is_the_sum_of_the_likelihood(inputs, rng):
    X, Xu = inputs
    values = []
    for method in ("likelihood", "potential"):
        with pm.Model() as model:
            s = pm.LogNormal("s", 0, 0.5)
            gp = ard_process()
            gp.prior("u", Xu=Xu)
            getattr(gp, method)("y", vsgp.NegativeBinomial(alpha=s), X=X, y=COUNTS)
        values.append(model.compile_logp(mode=RAW))
    point = unconstrained(random_point(rng))
    np.testing.assert_allclose(values[0](point), values[1](point), rtol=1e-12)
    assert [p.name for p in model.potentials] == ["y"]


def test_a_potential_is_a_likelihood_for_new_observations(inputs):
    X, Xu = inputs
    with pm.Model() as model:
        gp = ard_process()
        gp.prior("u", Xu=Xu)
        gp.potential("y", vsgp.Poisson(exposure=2.0), X=X, y=COUNTS)
        new = gp.predictive("new", X[:3])
    assert isinstance(new.owner.op.likelihood, vsgp.Poisson)
    assert new in model.free_RVs


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float64"])
def test_a_potential_of_small_whole_numbers_is_in_double_precision(dtype, inputs):
    """PyTensor takes gammaln of them in single precision."""
    counts = (np.arange(N) * 37 % 120).astype(dtype)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(np.float64(3.0)),
            cov_func=pm.gp.cov.ExpQuad(1, ls=np.float64(1e-3)),
        )
        gp.prior("u", Xu=np.array([[0.0]]))
        # So far from the inducing input that f has the mean and the variance of the prior.
        gp.potential("y", vsgp.Poisson(), X=1.0 + np.arange(N)[:, None], y=counts)
    (potential,) = model.potentials
    found = model.compile_logp(vars=[potential], mode=RAW)(model.initial_point())
    log_mean = stats.poisson.logpmf(counts.astype(float), np.exp(3.0)) + np.exp(3.0)
    wanted = log_mean.sum() - N * np.exp(3.5)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.slow
def test_two_likelihoods_on_one_function(inputs, rng):
    """Counts and measurements of the same f add up."""
    X, Xu = inputs
    point = unconstrained(random_point(rng))

    def density(*which):
        with pm.Model() as model:
            pm.LogNormal("s", 0, 0.5)
            gp = ard_process()
            gp.prior("u", Xu=Xu)
            if "counts" in which:
                gp.likelihood("counts", vsgp.Poisson(), X=X, y=COUNTS)
            if "reals" in which:
                gp.likelihood("reals", vsgp.Gaussian(sigma=model["s"]), X=X, y=REAL)
        return model.compile_logp(mode=RAW)(point)

    both, counts, reals, none = (
        density("counts", "reals"),
        density("counts"),
        density("reals"),
        density(),
    )
    np.testing.assert_allclose(both, counts + reals - none, rtol=1e-10)


def test_new_observations_are_of_the_likelihood_that_was_named(inputs):
    """Counts of one, and real numbers of the other."""
    X, Xu = inputs
    with pm.Model():
        gp = ard_process()
        gp.prior("u", Xu=Xu)
        gp.likelihood("counts", vsgp.Poisson(), X=X, y=COUNTS)
        gp.likelihood("reals", vsgp.Gaussian(sigma=0.3), X=X, y=REAL)
        counts, reals = (gp.predictive(f"new_{n}", X[:3], n) for n in ("counts", "reals"))
    assert (counts.dtype, reals.dtype) == ("int64", "float64")


def fixed_process(X, Xu, y, cov, mean):
    with pm.Model() as model:
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", Xu=Xu)
        gp.likelihood("y", vsgp.Gaussian(sigma=0.3), X=X, y=y)
    return model, gp


def test_predict_equals_reference(inputs, rng):
    X, Xu = inputs
    ls, variance = np.array([0.9, 1.4, 2.0]), 1.3
    cov = variance * pm.gp.cov.ExpQuad(D, ls=ls)
    model, gp = fixed_process(X, Xu, REAL, cov, pm_linear_mean())
    Xnew = rng.normal(size=(6, D))
    v = rng.normal(size=M)
    mu, gamma, u = reference_gp.moments(Xnew, Xu, ls, variance, linear_mean, v)
    for diag in (True, False):
        mean, var = gp.predict(Xnew, point={"u": u}, diag=diag, model=model)
        np.testing.assert_allclose(mean, mu, rtol=1e-8)
        np.testing.assert_allclose(var if diag else np.diag(var), gamma, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_conditionals_have_the_moments_of_predict(inputs, rng):
    X, Xu = inputs
    cov = 1.3 * pm.gp.cov.ExpQuad(D, ls=1.2)
    model, gp = fixed_process(X, Xu, REAL, cov, pm_linear_mean())
    n = 20_000
    Xnew = rng.normal(size=(4, D))
    u = rng.normal(size=M)
    mean, covariance = gp.predict(Xnew, point={"u": u}, model=model)
    with model:
        joint = gp.conditional("f", Xnew)
        marginal = gp.conditional("f_diag", Xnew, diag=True)
        y_new = gp.predictive("y_new", np.repeat(Xnew, n, axis=0))
    # What is added to the covariance keeps its factor finite.
    for rv, spread in ((joint, covariance), (marginal, np.sqrt(np.diag(covariance)))):
        parameters = graph_replace([*rv.owner.op.dist_params(rv.owner)], {model["u"]: u})
        function = pytensor.function([], parameters, mode=RAW)
        for found, wanted in zip(function(), (mean, spread), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-5)
    # One draw for each of many rows: they are independent given u.
    (y_new,) = graph_replace([y_new], {model["u"]: u})
    draws = pm.draw(y_new, random_seed=3, mode="FAST_COMPILE").reshape(4, n)
    variance = np.diag(covariance) + 0.3**2
    np.testing.assert_allclose((draws.mean(1) - mean) / np.sqrt(variance), 0, atol=6 / np.sqrt(n))
    np.testing.assert_allclose(draws.var(1) / variance, 1, atol=0.06)


@pytest.mark.slow
def test_conditionals_of_the_components_sum_to_the_total(inputs, rng):
    X, Xu = inputs
    Xnew = rng.normal(size=(5, D))
    u = rng.normal(size=M)
    with pm.Model() as model:
        first = vsgp.VariationalSparse(
            mean_func=pm_linear_mean(), cov_func=1.1 * pm.gp.cov.ExpQuad(D, ls=1.5)
        )
        second = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.7), cov_func=0.6 * pm.gp.cov.Matern32(D, ls=0.8)
        )
        total = first + second
        total.prior("u", Xu=Xu)
        total.likelihood("y", vsgp.Gaussian(sigma=0.3), X=X, y=REAL)
        first.conditional("f_first", Xnew, given={"gp": total})
    at = dict(point={"u": u}, model=model)
    mean, _ = total.predict(Xnew, **at)
    mean_1, cov_1 = first.predict(Xnew, given={"gp": total}, **at)
    mean_2, _ = second.predict(Xnew, given={"gp": total}, **at)
    np.testing.assert_allclose(mean_1 + mean_2, mean, rtol=1e-10)

    # The textbook conditional of one component given the sum at Xu
    def kernel(A, B):
        return (1.1 * pm.gp.cov.ExpQuad(D, ls=1.5))(A, B).eval()

    def total_kernel(A):
        return total.cov_func(A).eval()

    K = total_kernel(Xu)
    K += reference_gp.JITTER * np.mean(np.diag(K)) * np.eye(M)
    W = np.linalg.solve(K, kernel(Xu, Xnew))
    np.testing.assert_allclose(
        mean_1, linear_mean(Xnew) + W.T @ (u - linear_mean(Xu) - 0.7), rtol=1e-7
    )
    np.testing.assert_allclose(
        cov_1, kernel(Xnew, Xnew) - kernel(Xu, Xnew).T @ W, rtol=1e-6, atol=1e-9
    )


def test_extrapolation_returns_to_the_prior(inputs):
    X, Xu = inputs
    cov = 1.3 * pm.gp.cov.ExpQuad(D, ls=1.2)
    model, gp = fixed_process(X, Xu, REAL, cov, pm_linear_mean())
    far = np.full((1, D), 50.0)
    mean, var = gp.predict(far, point={"u": np.ones(M)}, diag=True, model=model)
    np.testing.assert_allclose(mean, linear_mean(far))
    np.testing.assert_allclose(var, 1.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "block_size"), [(True, None), *long((True, False), (False, None), (False, False))]
)
@pytest.mark.parametrize("term", ["in a sum", *long("alone", "in a product")])
def test_a_slope_for_the_only_input(term, container, block_size, rng):
    """A number of it is that in a vector, wherever shapes are known."""
    x, y = rng.normal(size=(9, 1)), rng.poisson(2.0, 9)
    found = []
    for vector in (False, True):
        with pm.Model() as model:
            slope = pm.Normal("slope")
            mean = pm.gp.mean.Linear(coeffs=pt.stack([slope]) if vector else slope, intercept=0.3)
            if term == "in a sum":
                mean = pm.gp.mean.Constant(0.5) + mean * pm.gp.mean.Constant(2.0)
            elif term == "in a product":
                mean = mean * (pm.gp.mean.Constant(0.5) + mean)
            gp = vsgp.VariationalSparse(mean_func=mean, cov_func=pm.gp.cov.Matern52(1, ls=1.0))
            gp.prior("u", Xu=pm.Data("Z", x[:4]) if container else x[:4])
            X = pm.Data("X", x) if container else x
            gp.likelihood("y", vsgp.Poisson(), X=X, y=y, block_size=block_size)
        at = model.initial_point() | {"slope": np.array(0.7)}
        found.append(model.compile_fn([model.logp(), model.dlogp()], mode=RAW)(at))
        line = 0.7 * x[:, 0] + 0.3
        known = {"alone": line, "in a sum": 0.5 + 2.0 * line, "in a product": line * (0.5 + line)}
        # With u at its mean, all of f is.
        point = {"slope": 0.7, "u": known[term][:4]}
        np.testing.assert_allclose(gp.predict(x, point, model=model)[0], known[term], rtol=1e-6)
    for number, same in zip(*found, strict=True):
        np.testing.assert_allclose(number, same, rtol=1e-10)


@pytest.mark.parametrize("rows", [1, 5])
def test_a_slope_for_two_inputs_is_refused(rows, inputs):
    X, Xu = inputs
    with pm.Model() as model:
        mean = pm.gp.mean.Linear(coeffs=pm.Normal("slope"))
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=pm.gp.cov.Matern52(D, ls=1.0))
        with pytest.raises(ValueError, match=f"it has {D} columns. Give its parameters one entry"):
            gp.prior("u", Xu=Xu[:rows])
    assert list(model.named_vars) == ["slope"]


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("block_size", [None, False])
def test_a_function_that_is_known_at_one_place(block_size, fixed, rng):
    """A line through zero, with zero among the inducing inputs and the data."""
    x = np.linspace(-1.0, 1.0, 7)[:, None]
    y, v = rng.poisson(1.0, 7), rng.normal(size=3)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        variance = np.float64(0.64) if fixed else sd**2
        gp = vsgp.VariationalSparse(cov_func=variance * pm.gp.cov.Linear(1, c=0.0))
        gp.prior("u", Xu=x[::3])
        gp.likelihood("y", vsgp.Poisson(), X=x, y=y, block_size=block_size)
    fn = model.compile_fn([model.logp(), model.dlogp()], mode=RAW)
    found, gradient = fn({"sd_log__": np.log(0.8), "u_whitened__": v})
    Z, k = x[::3], 0.64 * x @ x.T
    L = np.linalg.cholesky(0.64 * Z @ Z.T + 1e-8 * 0.64 * np.mean(Z**2) * np.eye(3))
    A = np.linalg.solve(L, 0.64 * Z @ x.T)
    mu, gamma = A.T @ v, np.diag(k) - (A**2).sum(axis=0)
    expected = stats.poisson.logpmf(y, np.exp(mu)).sum() - (np.exp(mu) * np.expm1(gamma / 2)).sum()
    prior = stats.norm.logpdf(v).sum() + stats.halfnorm.logpdf(0.8) + np.log(0.8)
    np.testing.assert_allclose(found, expected + prior, rtol=1e-7)
    assert np.isfinite(gradient).all()


PLACES = np.c_[np.repeat(np.linspace(0.0, 5.0, 4), 2), np.tile([0.0, 1.0], 4)]


@pytest.mark.parametrize("code", [2.0, -1.0, 0.5])
@pytest.mark.parametrize(
    "given",
    [
        {"Xu": PLACES},
        {"inducing": vsgp.inducing.NearestNeighbors(PLACES, 3)},
        {"inducing": vsgp.inducing.Kronecker(PLACES[::2, :1], PLACES[:2, 1:])},
    ],
)
def test_codes_of_outputs_that_are_none(given, code, rng):
    """PyMC would take -1 for the last output and 0.5 for the first, without a word."""
    X = np.c_[rng.uniform(0.0, 5.0, 20), np.arange(20) % 2]
    wrong = X.copy()
    wrong[3, 1] = code
    with pm.Model() as model:
        outputs = pm.gp.cov.Coregion(2, W=np.ones((2, 1)), kappa=[1.0, 1.0], active_dims=[1])
        gp = vsgp.VariationalSparse(
            cov_func=pm.gp.cov.Matern52(2, ls=1.0, active_dims=[0]) * outputs
        )
        gp.prior("u", **given)
        x = pm.Data("x", X)
        with pytest.raises(ValueError, match=f"X has {code:g} in row 3 of column 1, which has the"):
            gp.likelihood("y", vsgp.Poisson(), X=wrong, y=np.ones(20, int))
        gp.likelihood("y", vsgp.Poisson(), X=x, y=np.ones(20, int))
    with pytest.raises(ValueError, match=f"Xnew has {code:g} in row 3 of column 1"):
        gp.predict(wrong, {"u": np.zeros(8)}, diag=True, model=model)
    with pytest.raises(ValueError, match=f"Xnew has {code:g} in row 3 of column 1"):
        vsgp.predict(prior_draws(model), wrong, "mean", model=model, progressbar=False)
    with model:
        pm.set_data({"x": wrong})
        with pytest.raises(ValueError, match=f"x has {code:g} in row 3 of column 1"):
            vsgp.fit_gaussian(progressbar=False)
    with pm.Model(), pytest.raises(ValueError, match=f"Xu has {code:g} in row 3 of column 1"):
        vsgp.VariationalSparse(cov_func=gp.cov_func).prior("u", Xu=wrong)


def test_what_marginal_has_says_what_to_call(inputs):
    X, Xu = inputs
    with pm.Model(), pytest.raises(TypeError, match="Call prior.* then likelihood"):
        ard_process().marginal_likelihood("y", X, y=REAL, sigma=0.1)


@pytest.mark.parametrize("variance", [0.0, -1.0, np.nan])
def test_a_variance_that_is_none(variance, inputs):
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Constant(variance))
    with pm.Model(), pytest.raises(ValueError, match="no function to learn"):
        gp.prior("u", Xu=inputs[1])


CLIPS = {
    "ExpQuad": lambda: pm.gp.cov.ExpQuad(2, ls=[1.0, 2.0]),
    "Matern32 of a column": lambda: 2.0 * pm.gp.cov.Matern32(2, ls=1.0, active_dims=[1]),
    "a sum": lambda: pm.gp.cov.RatQuad(2, 1.0, ls=1.0) + pm.gp.cov.Cosine(2, ls=1.0),
    "Gibbs": lambda: pm.gp.cov.Gibbs(2, lambda x: pt.exp(x[:, 0]), active_dims=[0]),
}


@pytest.mark.parametrize("name", CLIPS)
def test_gradients_pass_where_distances_are_clipped(name):
    kernel, x, z = CLIPS[name](), pt.dmatrix(), pt.dmatrix()
    for K in (kernel(x), kernel(x, z)):
        nodes = io_toposort([x, z], pass_gradients([K], [x, z]))
        found = {type(getattr(node.op, "scalar_op", None)) for node in nodes}
        assert NotNegative in found and Clip not in found


@pytest.mark.parametrize("inducing", ["points", "pairs"])
def test_inputs_far_from_zero_lose_no_digits(inducing):
    """UTM northings: a stationary kernel sees differences, and its gradients are of those."""
    of_rows, of_u = np.random.default_rng(1), np.random.default_rng(0)
    X = np.round(of_rows.uniform(0.0, 1000.0, (40, 2)) * 64.0) / 64.0  # exact wherever they are
    Xu = np.linspace(0.0, 1000.0, 9)[:, None]
    y, found = of_u.poisson(3.0, 40), []
    for far in (0.0, 9e6):
        with pm.Model() as model:
            ls = pm.Gamma("ls", 4.0, 4.0 / 250.0)
            if inducing == "points":
                cov, given = pm.gp.cov.ExpQuad(1, ls=ls), {"Xu": Xu + far}
            else:
                first, second = (pm.gp.cov.ExpQuad(2, ls=ls, active_dims=[d]) for d in (0, 1))
                pairs = vsgp.inducing.Kronecker(Xu + far, Xu[::2] + far)
                cov, given = first * second, {"inducing": pairs}
            gp = vsgp.VariationalSparse(mean_func=pm.gp.mean.Constant(0.4), cov_func=cov)
            gp.prior("u", **given)
            x = X[:, :1] if inducing == "points" else X
            gp.likelihood("y", vsgp.Poisson(), X=x + far, y=y)
        fn = model.compile_fn([model.logp(), model.dlogp()], mode=RAW)
        n = model["u"].type.shape[0]
        point = {"ls_log__": np.log(250.0), "u_whitened__": np.sin(np.arange(float(n)))}
        found.append(np.concatenate([np.ravel(x) for x in fn(point)]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "likelihood", "warned"),
    [
        (lambda: pm.HalfNormal("scale"), vsgp.Poisson(), True),
        (lambda: 0.3, vsgp.Gaussian(0.1), True),
        (lambda: 1e-4, vsgp.Gaussian(0.1), False),
        (lambda: pm.HalfNormal("scale"), vsgp.Gaussian(0.1, approx="FITC"), False),
    ],
)
def test_white_noise_explains_no_observation(noise, likelihood, warned, inputs):
    X, Xu = inputs
    with pm.Model():
        cov = pm.gp.cov.Matern52(3, ls=1.0) + pm.gp.cov.WhiteNoise(noise())
        gp = vsgp.VariationalSparse(cov_func=cov)
        gp.prior("u", Xu=Xu)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            gp.likelihood("y", likelihood, X=X, y=COUNTS)
    assert [w.category for w in said] == [UserWarning] * warned
    assert all("Leave it out, and give the likelihood" in str(w.message) for w in said)


def test_gradients_stop_where_users_clip(rng):
    """In a mean, such as a rate that starts at a threshold, and in a warp of the inputs."""
    X = np.linspace(-1.0, 1.0, 9)[:, None]
    slope = pt.dscalar()

    class Hinge(pm.gp.mean.Mean):
        def __call__(self, x):
            return pt.clip(slope * x - 0.3, 0.0, np.inf)[:, 0]

    def warp(x, a):
        return pt.clip(a * x - 0.3, 0.0, np.inf)

    kernel = pm.gp.cov.Matern52(1, ls=1.0)
    warped = pm.gp.cov.WarpedInput(1, kernel, warp, args=(slope,))
    x, z = pt.dmatrix(), pt.dmatrix()
    found = pass_gradients([Hinge()(x), warped(x, z)], [x, z])
    total = pt.dot(rng.normal(size=9), found[0]) + pt.sum(rng.normal(size=(9, 4)) * found[1])
    fn = pytensor.function([slope, x, z], [total, pt.grad(total, slope)], mode=RAW)
    _, gradient = fn(0.8, X, X[:4])
    step = (fn(0.8 + 1e-6, X, X[:4])[0] - fn(0.8 - 1e-6, X, X[:4])[0]) / 2e-6
    np.testing.assert_allclose(gradient, step, rtol=1e-6)
