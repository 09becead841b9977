"""Callables as likelihoods that take arrays from outside, one entry for each row or not."""

from functools import partial

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from marks import long
from modes import RAW
from pymc.distributions.transforms import ordered
from pytensor.graph.replace import graph_replace
from scipy import integrate, special, stats

import pymc_vsgp as vsgp

from pymc_vsgp.engine.vectorized import Batched
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.held import at_prior
from pymc_vsgp.fit.minibatch import Minibatches
from pymc_vsgp.fit.natural import Natural, _has_slopes

N = 20
X = np.linspace(0.0, 1.0, N)[:, None]
RNG = np.random.default_rng(1)
E = np.linspace(0.5, 2.0, N)
TRIALS = RNG.integers(3, 9, N)
REAL = np.sin(6.0 * X[:, 0]) + E * RNG.normal(size=N)
COUNTS = RNG.poisson(E * np.exp(np.sin(6.0 * X[:, 0])))
exp, CUTS = pm.math.exp, np.array([-1.0, 0.0, 1.5])


def two_widths(f):
    parts = [pm.Normal.dist(f, E), pm.Normal.dist(f, 2.0 * E)]
    return pm.Mixture.dist(w=[0.3, 0.7], comp_dists=parts)


# Callable, observations, and how many of the arrays go with the rows.
CASES = {
    "exposure": (lambda f: pm.Poisson.dist(E * exp(f)), COUNTS, 1),
    "sd": (lambda f: pm.Normal.dist(f, E), REAL, 1),
    "twice": (lambda f: pm.StudentT.dist(4, mu=E * f, sigma=E), REAL, 2),
    "two": (lambda f: pm.Normal.dist(f + np.cos(E), E), REAL, 2),
    "trials": (lambda f: pm.Binomial.dist(n=TRIALS, logit_p=f), COUNTS % 3, 1),
    "symbolic": (lambda f: pm.Poisson.dist(exp(f + pt.log(pt.as_tensor(E)))), COUNTS, 1),
    "condition": (lambda f: pm.Poisson.dist(pm.math.switch(E > 1, 2.0, 1.0) * exp(f)), COUNTS, 1),
    "limit": (
        lambda f: pm.Censored.dist(pm.Normal.dist(f, 1.0), lower=None, upper=E),
        np.minimum(REAL, E),
        1,
    ),
    "deductible": (
        lambda f: pm.Truncated.dist(pm.LogNormal.dist(f, E), lower=E / 2),
        E + np.abs(REAL),
        2,
    ),
    "cut points": (
        lambda f: pm.OrderedLogistic.dist(eta=f, cutpoints=CUTS),
        np.minimum(COUNTS, 3),
        0,
    ),
    "weights": (
        lambda f: pm.Mixture.dist(
            w=[0.3, 0.7], comp_dists=[pm.Normal.dist(f, 1.0), pm.Normal.dist(f, 2.0)]
        ),
        REAL,
        0,
    ),
    "sds of a mixture": (two_widths, REAL, 2),
    "many zeros": (lambda f: pm.ZeroInflatedPoisson.dist(psi=0.7, mu=E * exp(f)), COUNTS, 1),
    "skewed": (lambda f: pm.AsymmetricLaplace.dist(kappa=2.0, mu=f, b=E), REAL, 1),
    "hurdle": (lambda f: pm.HurdlePoisson.dist(psi=0.7, mu=exp(f)), COUNTS, 0),
}
LONG = ["limit", "weights", "cut points", "sds of a mixture", "many zeros", "skewed", "hurdle"]


def build(likelihood, y, rows=N, **kwargs):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        gp.prior("u", Xu=X[::4])
        gp.likelihood("y", likelihood(model), X=X[:rows], y=y[:rows], **kwargs)
    return model


@pytest.mark.parametrize("name", [*(name for name in CASES if name not in LONG), *long(*LONG)])
@pytest.mark.slow
def test_arrays_in_blocks(name):
    """As in the ordinary graph, which has all rows at once; and as many are taken row by row."""
    fn, y, n = CASES[name]
    values = []
    for block_size in (7, False):
        model = build(lambda model: fn, y, block_size=block_size)
        point = {"u_whitened__": np.linspace(-1.0, 1.0, 5)}
        values.append(
            [np.asarray(f(mode=RAW)(point)) for f in (model.compile_logp, model.compile_dlogp)]
        )
    for a, b in zip(*values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    likelihood = vsgp.Custom(fn)
    assert [likelihood._goes_with_rows(p) for p in likelihood.params] == [True] * n


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family", "y"),
    [
        ("exposure", vsgp.Poisson(exposure=E), COUNTS),
        *long(
            ("trials", vsgp.Binomial(TRIALS), COUNTS % 3),
            ("cut points", vsgp.Ordinal(CUTS), np.minimum(COUNTS, 3)),
        ),
    ],
    ids=["exposure", "trials", "cut points"],
)
def test_a_stage_is_that_of_the_family(name, family, y):
    elbos = []
    for likelihood in (CASES[name][0], family):
        with build(lambda model, lik=likelihood: lik, y):
            elbos.append(vsgp.fit_gaussian(progressbar=False).elbo)
    np.testing.assert_allclose(*elbos, atol=1e-5)


def inflated(e):
    return lambda f: pm.ZeroInflatedPoisson.dist(psi=e / 3.0, mu=exp(f))


@pytest.mark.slow
def test_weights_of_a_mixture_that_differ_by_row():
    """PyMC stacks them, so they can't be told from weights that all rows share."""
    with pytest.raises(ValueError, match=r"Custom takes .* Make it a pm\.Data of the model\."):
        build(lambda model: inflated(E), COUNTS).compile_logp(mode=RAW)
    values = []
    for make, kwargs in (
        (lambda model: inflated(pm.Data("E", E)), {"block_size": 7}),
        (lambda model: inflated(E), {"block_size": False}),
    ):
        model = build(make, COUNTS, **kwargs)
        values.append(model.compile_logp(mode=RAW)({"u_whitened__": np.linspace(-1.0, 1.0, 5)}))
    np.testing.assert_allclose(*values, rtol=1e-9)


def test_arrays_of_another_length():
    with pytest.raises(ValueError, match=r"callable has shape \(20,\), but X has 12 rows"):
        build(lambda model: CASES["exposure"][0], COUNTS, rows=12)


@pytest.mark.slow
def test_vectors_of_the_model_in_blocks():
    """Their type has a length, which a block of the rows has not."""
    W = np.column_stack([E, E**2])
    values = []
    for block_size in (7, False):
        with pm.Model() as model:
            b, z = pm.Normal("b", shape=2), pm.Normal("z", shape=N)
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
            gp.prior("u", Xu=X[::4])
            gp.likelihood(
                "y",
                lambda f, eta=W @ b + z: pm.Poisson.dist(exp(f + eta)),
                X=X,
                y=COUNTS,
                block_size=block_size,
            )
        point = {k: v + 0.3 for k, v in model.initial_point().items()}
        values.append([model.compile_logp(mode=RAW)(point), model.compile_dlogp(mode=RAW)(point)])
        draws = pm.draw(model["y"], 3, random_seed=1, mode=RAW)
        assert draws.shape == (3, N)
    for a, b in zip(*values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def truncated(f):
    return pm.Truncated.dist(pm.Normal.dist(f, 1.0), upper=5.0)


def truncated_by_hand(f):
    """With two branches, of which the one that is not taken has slopes that are nan far away."""

    def logp(y, f):
        z = (5.0 - f) / np.sqrt(2.0)
        left, right = pt.log(pt.erfcx(-z) / 2.0) - z**2, pt.log1p(-pt.erfc(z) / 2.0)
        return pm.logp(pm.Normal.dist(f, 1.0), y) - pt.switch(z <= -1.0, left, right)

    return pm.CustomDist.dist(f, logp=logp)


def without_slopes(f):
    """With a root of 0, whose slope is nan, wherever the data are."""

    def logp(y, f):
        return -((y - f) ** 2) / 2.0 - pt.sqrt(pt.maximum(-50.0 - f, 0.0))

    return pm.CustomDist.dist(f, logp=logp)


@pytest.mark.long
def test_a_gradient_that_is_nan_far_from_the_data():
    """The stage starts nearer, and ends where a stable tail leads."""
    elbos = []
    for likelihood in (truncated, truncated_by_hand):
        with build(lambda model, lik=likelihood: lik, REAL):
            elbos.append(vsgp.fit_gaussian(progressbar=False).elbo)
    np.testing.assert_allclose(*elbos, atol=1e-4)


@pytest.mark.slow
def test_a_gradient_that_is_nan_near_the_data():
    """The stage says so before any step."""
    with (
        build(lambda model: without_slopes, REAL),
        pytest.raises(ValueError, match="no finite gradient where f is far .* as a pm.CustomDist"),
    ):
        vsgp.fit_gaussian(progressbar=False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["advi", *long("natural")])
def test_a_density_that_is_infinite_far_from_the_data(method):
    """As where a probability that it is divided by rounds to 0."""

    def logp(y, mu):
        return pm.logp(pm.Poisson.dist(mu), y) - pt.log(pt.maximum(mu - 20.0, 0.0))

    with (
        many_counts(lambda f: pm.CustomDist.dist(pm.math.exp(f), logp=logp, dtype="int64")),
        pytest.raises(ValueError, match="is not finite a"),
    ):
        vsgp.fit_gaussian(method=method, progressbar=False, random_seed=1)


@pytest.mark.slow
def test_the_stage_of_truncated_counts():
    """It is that of a density that is written by hand, with a tail that does not round."""

    def logp(y, mu):
        return pm.logp(pm.Poisson.dist(mu), y) - pt.log(-pt.expm1(-mu))

    elbos = []
    for likelihood in (
        lambda f: pm.Truncated.dist(pm.Poisson.dist(pm.math.exp(f)), lower=1),
        lambda f: pm.CustomDist.dist(pm.math.exp(f), logp=logp, dtype="int64"),
    ):
        with many_counts(likelihood):
            elbos.append(vsgp.fit_gaussian(progressbar=False, random_seed=1).elbo)
    np.testing.assert_allclose(*elbos, atol=1e-4)


def many_counts(likelihood):
    X = np.linspace(0.0, 10.0, 60)[:, None]
    y = np.random.default_rng(1).poisson(np.exp(6.0 + 2.0 * np.sin(X[:, 0])))
    with pm.Model() as model:
        ls, sd = pm.InverseGamma("ls", mu=3, sigma=1), pm.HalfNormal("sd", 2)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(pm.Normal("b", 3, 2)),
            cov_func=sd**2 * pm.gp.cov.Matern52(1, ls=ls),
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, 12))
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "size"),
    [
        (2, {"shape": 2}),
        *long((N, {"shape": 2}), (N, {"dims": "cut"}), (2, {"dims": "cut"})),
    ],
    ids=str,
)
def test_a_vector_that_all_rows_share(rows, size):
    """Also where it is as long as there are rows. Cut-points of the model have a family, too."""
    y, found = np.minimum(COUNTS, 2), []
    for make in (
        vsgp.Ordinal,
        lambda c: lambda f: pm.OrderedLogistic.dist(eta=f, cutpoints=c),
    ):

        def likelihood(model, make=make):
            model.add_coord("cut", ["a", "b"])
            cuts = pm.Normal("c", 0.0, 2.0, transform=ordered, initval=[-1.0, 0.5], **size)
            return make(cuts)

        model = build(likelihood, y, rows, block_size=7)
        point = model.initial_point() | {"u_whitened__": np.linspace(-1.0, 1.0, 5)}
        found.append([model.compile_logp(mode=RAW)(point), model.compile_dlogp(mode=RAW)(point)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.slow
def test_weights_of_the_model_that_all_rows_share():
    """As with these weights from outside."""
    found = []
    for given in (True, False):

        def likelihood(model, given=given):
            w = pm.Dirichlet("w", np.ones(2))
            w = np.array([0.5, 0.5]) if given else w
            sds = (1.0, 3.0)
            return lambda f: pm.Mixture.dist(w=w, comp_dists=[pm.Normal.dist(f, s) for s in sds])

        model = build(likelihood, REAL, block_size=7)
        assert model.initial_point()["w_simplex__"] == pytest.approx(0.0)
        found.append(model.compile_logp(mode=RAW)(model.initial_point()))
    np.testing.assert_allclose(*found, rtol=1e-9)


INSIDE = 1.0 / (1.0 + np.exp(-REAL))  # of the unit interval


@pytest.mark.long
@pytest.mark.parametrize(
    ("likelihood", "known", "y", "seen", "scale"),
    [
        (CASES["cut points"][0], vsgp.Ordinal(CUTS), *[np.minimum(COUNTS, 3)] * 2, 1.0),
        (
            lambda f: pm.LogitNormal.dist(f, 0.8),
            vsgp.Gaussian(0.8),
            INSIDE,
            REAL,
            INSIDE * (1.0 - INSIDE),
        ),
    ],
    ids=["cut points", "transformed"],
)
@pytest.mark.slow
def test_densities_of_pymc_are_scored(likelihood, known, y, seen, scale):
    """PyTensor looked at shapes within shapes for minutes, or for ever."""
    model, other = build(lambda model: likelihood, y), build(lambda model: known, seen)
    with model:
        idata = vsgp.fit_gaussian(progressbar=False).to_datatree(40, random_seed=1)
    idata = idata.filter(lambda group: group.name == "posterior")  # the data are the models' own
    a, b = (
        vsgp.compute_pointwise(idata, model=m, extend_inferencedata=False, progressbar=False)
        for m in (model, other)
    )
    for group in ("log_potential", "log_predictive"):
        np.testing.assert_allclose(a[group], b[group] - np.log(scale), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (1, 1)])
def test_draws_of_scipy_have_all_axes(shape):
    """SciPy drops those of length one."""
    f = pt.dvector("f")
    skewed = vsgp.Custom(lambda f: pm.SkewNormal.dist(mu=f, sigma=1.0, alpha=2.0))
    draw = Batched([f], [], [skewed.dist(f)])
    (drawn,) = draw([np.zeros(shape)], [], np.random.default_rng(1))
    assert drawn.shape == shape
    assert len(np.unique(drawn)) == drawn.size


def test_a_callable_is_not_called_again():
    """A loop or a notebook gives its names another meaning."""
    b = 0.1
    made = vsgp.Custom(lambda f: pm.Laplace.dist(f, b))
    b = 100.0
    for ndim in (1, 2, 3):  # of rows, nodes of quadrature, and outputs
        found = made.log_prob(np.zeros((1,) * ndim), 0.0).eval(mode="FAST_COMPILE")
        np.testing.assert_allclose(found, np.log(5.0))
    f = np.zeros(1000)
    drawn = pm.draw([made.dist(f), made.dist(f)], random_seed=1, mode="FAST_COMPILE")
    np.testing.assert_allclose(np.std(drawn, axis=1), 0.1 * np.sqrt(2.0), rtol=0.1)
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.1


def test_rows_have_draws_of_their_own():
    """PyMC's own likelihood tells the graph how many there are, by its observations."""

    def shifted(f, scale, size):
        return f + pm.Laplace.dist(0.0, scale, size=size)

    with pm.Model():
        scale = pm.HalfNormal("scale")
    made = vsgp.Custom(lambda f: pm.CustomDist.dist(f, scale, dist=shifted))
    drawn = pm.draw(made.dist(np.zeros(5)), random_seed=1, mode="FAST_COMPILE")
    assert len(np.unique(drawn)) == 5


def shared(f, size):
    return f + pm.Laplace.dist(0.0, 1.0)


def nested(f, size):
    return pm.CustomDist.dist(f, dist=shared)


def half_normal(f, size):
    """PyMC's Truncated loses the size of what it is of."""
    return f + pm.Truncated.dist(pm.Normal.dist(0.0, 1.0, size=size), lower=0.0)


@pytest.mark.parametrize("dist", [shared, nested, half_normal])
def test_a_draw_that_all_rows_share(dist):
    with pytest.raises(ValueError, match=r"number that all rows share\. Pass its size to"):
        vsgp.Custom(lambda f: pm.CustomDist.dist(f, dist=dist))


@pytest.mark.parametrize("size", [{"shape": N}, {"size": (N,)}], ids=str)
def test_a_size_that_is_fixed(size):
    with pytest.raises(ValueError, match=r"axis of quadrature nodes .* Leave shape and size out"):
        vsgp.Custom(lambda f: pm.Laplace.dist(f, 1.0, **size))
    vsgp.Custom(lambda f: pm.Laplace.dist(f, 1.0, shape=f.shape))


def weights(f):
    p = pm.math.invlogit(f)
    return pm.math.stack([1.0 - p, p], axis=-1)


def poisson(mu):
    return stats.poisson.pmf(COUNTS, mu)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (
            lambda b: lambda f: pm.ZeroInflatedPoisson.dist(pm.math.invlogit(f), mu=E * exp(b)),
            lambda b: (COUNTS == 0, poisson(E * np.exp(b))),
        ),
        (
            lambda b: (
                lambda f: pm.Mixture.dist(
                    weights(f), [pm.Poisson.dist(E), pm.Poisson.dist(5.0 * exp(b))]
                )
            ),
            lambda b: (poisson(E), poisson(5.0 * np.exp(b))),
        ),
        (
            lambda b: (
                lambda f: pm.Mixture.dist(
                    weights(f), pm.Poisson.dist(exp(b) * np.array([1.0, 5.0]))
                )
            ),
            lambda b: (poisson(np.exp(b)), poisson(5.0 * np.exp(b))),
        ),
    ],
    ids=["occupancy", "components", "vector"],
)
def test_components_that_do_not_depend_on_the_function(make, parts):
    with pm.Model() as model:
        b = pm.Normal("b")
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        gp.prior("u", Xu=X[::4])
        gp.likelihood("y", make(b), X=X, y=COUNTS, block_size=7)
    assert all(np.isfinite(v) for v in model.point_logps().values())
    made, f = vsgp.Custom(make(b)), np.stack([np.linspace(-1.0, 1.0, N), np.linspace(0.0, 0.5, N)])
    found = made.log_prob(f, COUNTS).eval({b: 0.3})
    p, (first, second) = 1.0 / (1.0 + np.exp(-f)), parts(0.3)
    np.testing.assert_allclose(found, np.log((1.0 - p) * first + p * second), rtol=1e-9)
    drawn = pm.draw(made.dist(np.zeros((500, N))), random_seed=1, mode="FAST_COMPILE")
    assert np.abs(np.triu(np.corrcoef(drawn.T), 1)).max() < 0.3  # rows have draws of their own


NORMAL = stats.norm.pdf
POSITIVE = np.where(RNG.uniform(size=N) < 0.4, 0.0, RNG.gamma(2.0, 1.0, N))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "y", "parts"),
    [
        (
            lambda b: (
                lambda f: pm.Mixture.dist(
                    weights(f), [pm.Normal.dist(b, 1.0), pm.Normal.dist(3.0, 1.0)]
                )
            ),
            REAL,
            lambda y, b: (NORMAL(y, b), NORMAL(y, 3.0)),
        ),
        (
            lambda b: lambda f: pm.HurdleGamma.dist(psi=pm.math.invlogit(f), alpha=2.0, beta=b),
            POSITIVE,
            lambda y, b: (y == 0.0, np.where(y > 0.0, stats.gamma.pdf(y, 2.0, scale=1.0 / b), 0.0)),
        ),
    ],
    ids=["mixture", "hurdle"],
)
def test_continuous_components_that_do_not_depend_on_the_function(make, y, parts):
    """PyMC resizes a component of one number, which is no vector that the callable takes."""
    with pm.Model() as model:
        b = pm.HalfNormal("b")
        kernel, mean = pm.gp.cov.ExpQuad(1, ls=0.3), pm.gp.mean.Linear(coeffs=0.5, intercept=0.7)
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=kernel)
        gp.prior("u", Xu=X[::4])
        gp.likelihood("y", make(b), X=X, y=y)
    made, first = vsgp.Custom(make(b)), np.linspace(-1.0, 1.0, 5)
    assert list(made.params.values()) == [b]

    def expected(mu, gamma):
        nodes, w = np.polynomial.hermite_e.hermegauss(80)
        p = 1.0 / (1.0 + np.exp(-(mu + np.sqrt(gamma) * nodes[:, None])))
        zero, one = parts(y, 0.7)
        return (w / w.sum()) @ np.log((1.0 - p) * zero + p * one)

    mu, gamma = RNG.normal(size=N), RNG.uniform(0.1, 4.0, N)
    found = made.expected_logp(mu, gamma, y).eval({b: 0.7}, mode=RAW)
    np.testing.assert_allclose(found, expected(mu, gamma), rtol=1e-9)

    def cov(A, B):
        return np.exp(-0.5 * ((A - B.T) / 0.3) ** 2)

    point = {"u_whitened__": first, "b_log__": np.log(0.7)}
    whiten = np.linalg.solve(np.linalg.cholesky(cov(X[::4], X[::4])), cov(X[::4], X))
    rest = np.maximum(1.0 - (whiten**2).sum(axis=0), 0.0)
    total = expected(0.7 + 0.5 * X[:, 0] + first @ whiten, rest).sum()
    total += stats.norm.logpdf(first).sum() + stats.halfnorm.logpdf(0.7) + np.log(0.7)
    assert model.compile_logp(mode=RAW)(point) == pytest.approx(total, abs=1e-3)  # for the jitter
    drawn = pm.draw(made.replace(p0=0.7).dist(np.full(20_000, 0.4)), random_seed=1, mode=RAW)
    p = 1.0 / (1.0 + np.exp(-0.4))
    means = (0.7, 3.0) if y is REAL else (0.0, 2.0 / 0.7)
    assert drawn.mean() == pytest.approx((1.0 - p) * means[0] + p * means[1], abs=0.05)


@pytest.mark.slow
def test_rows_of_another_number():
    """A parameter may be replaced for new rows, whatever stood there when the callable ran."""
    new, point = X[3:15] + 0.02, np.linspace(-1.0, 1.0, 5)
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        gp.prior("u", Xu=X[::4])
        made = vsgp.Custom(CASES["exposure"][0])
        gp.likelihood("y", made, X=X, y=COUNTS)
    posterior = az.from_dict({"posterior": {"u": point[None, None]}})
    found = vsgp.log_predictive_density(
        posterior,
        new,
        COUNTS[:12],
        likelihood=made.replace(p0=2.0 * E[:12]),
        model=model,
        progressbar=False,
    )

    def cov(A, B):
        return np.exp(-0.5 * ((A - B.T) / 0.3) ** 2)

    weigh = np.linalg.solve(cov(X[::4], X[::4]), cov(X[::4], new))
    mu, gamma = point @ weigh, 1.0 - (weigh * cov(X[::4], new)).sum(axis=0)
    nodes, w = np.polynomial.hermite_e.hermegauss(80)
    f = mu + np.sqrt(gamma) * nodes[:, None]
    scored = np.log((w / w.sum()) @ stats.poisson.pmf(COUNTS[:12], 2.0 * E[:12] * np.exp(f)))
    np.testing.assert_allclose(np.ravel(found), scored, atol=1e-4)  # for the jitter


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two", "limit", "sds of a mixture", "many zeros", "skewed"])
def test_a_density_of_rows_of_another_number(name):
    fn, y, _ = CASES[name]
    made, f = vsgp.Custom(fn), np.stack([np.linspace(-1.0, 1.0, N), np.linspace(0.0, 0.5, N)])
    some = made.replace(**{k: v[:12] for k, v in made.params.items() if v.type.ndim})
    found = some.log_prob(f[:, :12], y[:12]).eval(mode="FAST_COMPILE")
    if name == "limit":  # PyMC's own is right to 1e-8: its root of 2 has single precision
        whole = np.where(y >= E, special.log_ndtr(f - E), stats.norm.logpdf(y, f))
    else:
        whole = [pm.logp(fn(pt.constant(g)), y, warn_rvs=False).eval(mode=RAW) for g in f]
    np.testing.assert_allclose(found, np.asarray(whole)[:, :12], rtol=1e-9)


def simulated(f):
    return pm.Simulator.dist(lambda rng, mu, size: rng.normal(mu, 1.0, size=size), f)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyMC's Simulator
@pytest.mark.parametrize(
    ("dist_fn", "message"),
    [
        (
            lambda f: pm.Normal("z", f, 1.0),
            r"unregistered PyMC .* Return pm\.X\.dist\(\.\.\.\) of f",
        ),
        (
            lambda f: pm.Normal.dist(pm.Deterministic("z", 2.0 * f), 1.0),
            r"unregistered PyMC distribution, but it names 'z'\. .* make named variables before it",
        ),
        (simulated, r"pm\.Simulator, which has no density .* Return a distribution with a density"),
    ],
    ids=["registered", "named", "simulator"],
)
def test_no_distribution_that_a_callable_may_return(dist_fn, message):
    """And the model is as it was."""
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        gp.prior("u", Xu=X[::4])
        before = [*model.named_vars, *model.basic_RVs, *model.deterministics]
        with pytest.raises(TypeError, match=message):
            gp.likelihood("y", dist_fn, X=X, y=REAL)
    assert [*model.named_vars, *model.basic_RVs, *model.deterministics] == before


def test_what_else_a_callable_may_do_with_pymc():
    """It may draw, have a model of its own, and look variables up; the model stays as it is."""
    with pm.Model() as model:
        pm.HalfNormal("noise", 1.0)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=0.3))
        gp.prior("u", Xu=X[::4])

        def looked_up(f):
            one = float(pm.draw(pm.Normal.dist(0.7, 0.0), random_seed=1))
            return pm.Normal.dist(one * f, pm.modelcontext(None)["noise"])

        before = list(model.named_vars)
        made = vsgp.Custom(looked_up)
    assert list(model.named_vars) == before
    f = np.linspace(-1.0, 1.0, N)
    found = made.log_prob(f, REAL).eval({model["noise"]: 1.3}, mode="FAST_COMPILE")
    np.testing.assert_allclose(found, stats.norm.logpdf(REAL, 0.7 * f, 1.3))


def test_a_variable_within_a_density():
    """Which pm.CustomDist does not know of, though it has a name in the model."""
    with pm.Model():
        alpha = pm.Gamma("alpha", 2, 1)

    def within(f):
        def logp(y, f):
            return pm.logp(pm.Gamma.dist(alpha, alpha * exp(-f)), y)

        return pm.CustomDist.dist(f, logp=logp)

    message = r"from outside: 'alpha'\. Pass it .* pm\.CustomDist\.dist\(f, alpha, logp=\.\.\.\)"
    with pytest.raises(TypeError, match=message):
        vsgp.Custom(within).log_prob(pt.vector(), E)


def test_a_distribution_as_a_parameter():
    made = vsgp.Custom(lambda f: pm.NegativeBinomial.dist(exp(f), alpha=pm.Gamma.dist(2, 1)))
    with pytest.raises(TypeError, match=r"is a distribution that is not in the model\. Give it a"):
        made.log_prob(np.zeros(N), COUNTS)


@pytest.mark.parametrize("n", [1, 2.5, 0])
def test_number_of_nodes(n):
    with pytest.raises(ValueError, match=f"n_nodes is {n}. Pass a whole number, 2 or more"):
        vsgp.Custom(lambda f: pm.Normal.dist(f, 1.0), n_nodes=n)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        *long(
            lambda c: lambda f: pm.Binomial.dist(p=pm.math.invlogit(c * f), n=TRIALS),
            lambda c: lambda f: pm.NegativeBinomial.dist(mu=c * exp(f) * E, alpha=2.0 + TRIALS),
            lambda c: lambda f: pm.ZeroInflatedPoisson.dist(psi=c / (1.0 + c), mu=E * exp(f) + c),
        ),
        lambda c: lambda f: pm.BetaBinomial.dist(n=TRIALS, alpha=c * exp(f), beta=E),
        lambda c: lambda f: pm.Normal.dist(E * (f + c * TRIALS) + c**2, c + E),
    ],
)
def test_parameters_have_one_order(make):
    """Quadrature adds an axis to f, and what goes with rows then has one more, too."""
    values = []
    for block_size in (7, False):
        y = np.minimum(COUNTS, 2)
        model = build(lambda model: make(pm.HalfNormal("c")), y, block_size=block_size)
        point = {"u_whitened__": np.linspace(-1.0, 1.0, 5), "c_log__": 0.3}
        values.append(model.compile_logp(mode=RAW)(point))
    np.testing.assert_allclose(*values, rtol=1e-9)
    f, c = np.stack([np.linspace(-1.0, 1.0, N), np.linspace(0.0, 0.5, N)]), np.float64(0.7)
    found = vsgp.Custom(make(c)).log_prob(f, y).eval()
    expected = [pm.logp(make(c)(pt.constant(each)), y, warn_rvs=False).eval() for each in f]
    np.testing.assert_allclose(found, expected)


@pytest.mark.slow
def test_a_density_that_overflows_far_away():
    """That of PyMC's Weibull is infinite from exp(710) on, where f has no mass."""
    made = vsgp.Custom(lambda f: pm.Weibull.dist(alpha=0.8, beta=exp(f)))
    far = made.log_prob(np.array([800.0]), 1.3).eval(mode="FAST_COMPILE")
    assert np.isposinf(far).all()
    args = np.array([0.0, 0.4]), np.array([1.0, 2.3]), np.array([1.3, 0.2])
    known = vsgp.Weibull(0.8).log_predictive(*args).eval()
    found = made.log_predictive(*args).eval(mode="FAST_COMPILE")
    np.testing.assert_allclose(found, known, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "y"),
    [
        (lambda f: pm.Exponential.dist(scale=exp(f)), -1.0),
        (lambda f: pm.Censored.dist(pm.Normal.dist(f, 0.5), lower=0.0, upper=None), -0.1),
        (lambda f: pm.Binomial.dist(n=4, logit_p=f), 5),
    ],
)
def test_no_density_outside_the_support(make, y):
    args = np.array([0.4]), np.array([1.3]), np.array([y])
    found = vsgp.Custom(make).log_predictive(*args).eval(mode="FAST_COMPILE")
    np.testing.assert_array_equal(found, [-np.inf])


def test_a_transformed_variable():
    """PyMC wants as many values as there are entries of f, quadrature nodes included."""
    y, mu, gamma = np.array([0.2, 0.7]), np.array([0.1, -0.4]), np.array([0.5, 1.5])
    logit = np.log(y / (1.0 - y))
    found = vsgp.Custom(lambda f: pm.LogitNormal.dist(f, 0.7)).expected_logp(mu, gamma, y).eval()
    normal = vsgp.Gaussian(0.7).expected_logp(mu, gamma, logit).eval()
    np.testing.assert_allclose(found, normal - np.log(y * (1.0 - y)), rtol=1e-6)


def that_underflow(f, shape, end):
    """Censored Weibull times, with the logarithm of a probability that underflows."""

    def logp(y, f, shape, end):
        z = (y / exp(f)) ** shape
        left = pt.log(-pt.expm1(pt.log1mexp(-z)))
        return pt.switch(y < end, pt.log(shape / y) + shape * (pt.log(y) - f) - z, left)

    return pm.CustomDist.dist(f, shape, end, logp=logp)


def censored_times(known=False, kernel=pm.gp.cov.Matern52, **prior):
    rng = np.random.default_rng(3)
    times, limits = rng.exponential(np.exp(np.sin(6.0 * X[:, 0]))), rng.uniform(1.0, 3.0, N)
    with pm.Model() as model:
        end = pm.Data("end", limits)
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3), cov_func=4.0 * kernel(1, ls=0.3)
        )
        gp.prior("u", **prior)
        by_hand = partial(that_underflow, shape=np.float64(1.0), end=end)
        lik = vsgp.Weibull(1.0, censored=times >= limits) if known else by_hand
        gp.likelihood("y", lik, X=X, y=np.minimum(times, limits))
    return model


@pytest.mark.long
@pytest.mark.slow
def test_a_prior_that_reaches_where_the_density_underflows():
    models = [censored_times(known, Xu=X[::2]) for known in (True, False)]
    elbos = [vsgp.fit_gaussian(model=m, progressbar=False).elbo for m in models]
    np.testing.assert_allclose(*elbos, atol=2e-3)


@pytest.mark.long
@pytest.mark.slow
def test_a_step_to_where_the_density_underflows_is_made_shorter():
    """A shape of 1, where it starts, is far from those of times that all end soon after one."""
    rng = np.random.default_rng(1)
    times = rng.lognormal(np.sin(6.0 * X[:, 0]), 0.4)
    ended = rng.uniform(size=N) < 0.7
    limits = np.where(ended, 1e6, 0.7 * times)
    elbos = []
    for known in (False, True):
        with pm.Model():
            shape = pm.HalfNormal("shape", 1.0)
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.3))
            gp.prior("u", Xu=X[::2])
            by_hand = partial(that_underflow, shape=shape, end=limits)
            lik = vsgp.Weibull(shape, censored=~ended) if known else by_hand
            gp.likelihood("y", lik, X=X, y=np.minimum(times, limits))
            elbos.append(vsgp.fit_gaussian(progressbar=False).elbo)
    np.testing.assert_allclose(*elbos, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", *long("many", "vanishing", "minibatches")])
def test_a_fit_begins_where_the_density_does_not_underflow(kind):
    """Coefficients, of which some have next to no variance, and a q that stays."""
    kernel = pm.gp.cov.ExpQuad if kind == "vanishing" else pm.gp.cov.Matern52
    prior = {"inducing": vsgp.inducing.Fourier(3.0, 100 if kind == "many" else 20)}
    if kind == "minibatches":
        prior = {"Xu": X[::2]}
    model = censored_times(kernel=kernel, **prior)
    batch = {"n_rows": N, "held": True} if kind == "minibatches" else {}
    bound = Bound(model, mode=RAW, **batch)
    assert bound.processes[0].diagonal == (kind == "many")
    arguments = [bound, bound.start, bound.no_sites(), [], 1e-3, lambda *args: None]
    if kind == "minibatches":
        fit = Minibatches(*arguments, np.random.default_rng(0), N)
        ev = bound(bound.start, [at_prior(s) for s in bound.no_sites()], [], fit.rows)
    else:
        fit, ev = Natural(*arguments), bound(bound.start, *arguments[2:3], bound.no_offsets())
    assert not (np.isfinite(ev.value) and _has_slopes(ev))
    assert np.isfinite(fit.evaluation.value) and _has_slopes(fit.evaluation)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.03, 0.1])
def test_density_under_heavy_tails(sigma):
    """They keep the region wide that carries the integral, however narrow the peak."""
    found = vsgp.Custom(lambda f: pm.StudentT.dist(nu=4.0, mu=f, sigma=sigma))
    y, mu, sd = np.array([0.0, 1.3, 9.0]), np.array([0.0, 0.5, 0.0]), np.array([3.0, 1.0, 1.0])
    scored = found.log_predictive(mu, sd**2, y).eval(mode="FAST_COMPILE")
    f = np.linspace(-12.0, 12.0, 2_000_001)[:, None]
    density = stats.t.pdf((y - f) / sigma, 4.0) / sigma * stats.norm.pdf(f, mu, sd)
    np.testing.assert_allclose(scored, np.log(np.trapezoid(density, f, axis=0)), atol=1e-6)


def across(model, make):
    """A callable whose mean has a term of all rows of a random variable, and of whole numbers."""
    z, code = pm.Normal("z", shape=N), pm.Data("code", np.arange(N) % 3)
    return lambda f: pm.Normal.dist(f + make(z, code), 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda z, code: pt.cumsum(z),
        lambda z, code: pt.concatenate([[0.0], z[:-1]]),
        lambda z, code: z[::-1] + pt.sort(z),
        lambda z, code: pt.set_subtensor(z[0], 0.0),
        lambda z, code: pt.special.softmax(z) - z.mean(),
        lambda z, code: 0.1 * pt.cumsum(code) + pt.roll(z, 1),
    ],
    ids=["cumsum", "lag", "reverse", "set", "softmax", "whole numbers"],
)
def test_terms_of_several_rows_are_made_of_all_of_them(make):
    """And not of the rows of a block, which would be other sums and neighbors."""
    values = []
    for block_size in (False, None, 7):
        model = build(lambda m: across(m, make), REAL, block_size=block_size)
        point = model.initial_point()
        point["z"] = np.arange(N) / 10.0
        values.append(model.compile_logp(vars=model.observed_RVs, mode=RAW)(point))
    np.testing.assert_allclose(values, values[0], rtol=1e-9)


@pytest.mark.parametrize(
    "make",
    [lambda f: f - f.mean(axis=-1), lambda f: f[..., ::-1], lambda f: pt.cumsum(f, axis=-1)],
    ids=["mean", "reverse", "cumsum"],
)
def test_several_entries_of_the_function_are_refused(make):
    with pytest.raises(ValueError, match="takes several entries of f together"):
        vsgp.Custom(lambda f: pm.Normal.dist(make(f), 1.0))


WEIGHTS = np.random.default_rng(3).dirichlet(np.ones(2), N)


@pytest.mark.parametrize(
    "make",
    [
        lambda f, w: pm.Mixture.dist(w=w, comp_dists=[pm.Normal.dist(f, s) for s in (1.0, 3.0)]),
        lambda f, w: pm.NormalMixture.dist(w=w, mu=f[..., None], sigma=np.array([1.0, 3.0])),
    ],
    ids=["list", "axis"],
)
def test_weights_with_a_row_for_each_observation(make):
    """Their second axis is that of components."""
    values = []
    for block_size in (False, None, 7):
        model = build(lambda m: partial(make, w=pm.Data("w", WEIGHTS)), REAL, block_size=block_size)
        point = {"u_whitened__": np.zeros(5)}
        values.append(model.compile_logp(vars=model.observed_RVs, mode=RAW)(point))
    k = lambda a, b: np.exp(-((a - b.T) ** 2) / 2.0 / 0.3**2)  # noqa: E731  (short, used twice)
    cross, Kuu = k(X[::4], X), k(X[::4], X[::4]) + 1e-6 * np.eye(5)
    sd = np.sqrt(1.0 - np.sum(cross * np.linalg.solve(Kuu, cross), axis=0))
    at = np.linspace(-8.0, 8.0, 4001)
    wanted = 0.0
    for y, w, s in zip(REAL, WEIGHTS, sd, strict=True):
        log_p = np.log(w @ stats.norm.pdf(y, s * at, np.array([[1.0], [3.0]])))
        wanted += integrate.simpson(log_p * stats.norm.pdf(at), at)
    np.testing.assert_allclose(values, wanted, rtol=1e-5)


TRUNCATED = {
    "inverse": (
        lambda f: pm.Truncated.dist(pm.Gamma.dist(alpha=E, beta=exp(-f)), upper=E + 1.0),
        lambda e: stats.gamma(e).expect(ub=e + 1.0, conditional=True),
    ),
    "lengths": (
        lambda f: pm.Truncated.dist(pm.LogNormal.dist(f, E / 2), lower=E / 2),
        lambda e: stats.lognorm(e / 2).expect(lb=e / 2, conditional=True),
    ),
    "loop": (
        lambda f: pm.Truncated.dist(pm.Poisson.dist(E * exp(f)), lower=2),
        lambda e: stats.poisson(e).expect(lb=2, conditional=True),
    ),
    "hurdle": (
        lambda f: pm.HurdleNegativeBinomial.dist(psi=0.7, mu=E * exp(f), alpha=2.0),
        lambda e: 0.7 * stats.nbinom(2, 2 / (2 + e)).expect(lb=1, conditional=True),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["inverse", "lengths", "loop", *long("hurdle")])
def test_draws_of_what_is_truncated_at_some_rows(case):
    """All draws had the same random number, and chunks had an AssertionError of PyTensor."""
    make, mean = TRUNCATED[case]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=np.linspace(0.0, 1.0, 5)[:, None])
        gp.likelihood("y", make, X=X, y=np.full(N, 2))
    zeros = {"u": (("chain", "draw", "u_inducing"), np.zeros((1, 400, 5)))}
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(zeros)})  # f = 0
    for chunk_size in (N, 7):
        y = vsgp.predict(
            idata, None, "y", model=model, chunk_size=chunk_size, progressbar=False, random_seed=1
        )[0].to_numpy()
        error = y.std(axis=0) / 20.0
        assert (error > 0.0).all()
        z = (y.mean(axis=0) - [mean(e) for e in E]) / error
        assert np.abs(z).max() < 4.5
        assert 0.6 < z.std() < 1.5  # rows have random numbers of their own


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, *long(True)], ids=["alone", "in a mixture"])
def test_draws_at_one_row(nested):
    """PyMC draws a number for a vector of one: draws had no rows, or ended in an IndexError."""

    def make(f):
        y = pm.TruncatedNormal.dist(f, 1.0, lower=0.0)
        return (
            pm.Mixture.dist(w=[0.5, 0.5], comp_dists=[y, pm.HalfNormal.dist(exp(f))])
            if nested
            else y
        )

    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        gp.prior("u", Xu=np.linspace(0.0, 1.0, 5)[:, None])
        gp.likelihood("y", make, X=X[:1], y=np.ones(1))
    zeros = {"u": (("chain", "draw", "u_inducing"), np.zeros((1, 400, 5)))}
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(zeros)})  # f = 0
    drawn = vsgp.predict(idata, None, "y", model=model, progressbar=False, random_seed=1)
    at_zero = graph_replace(model["y"], {model["u"]: pt.zeros(5)})
    for y in (drawn[0].to_numpy(), pm.draw(at_zero, 400, random_seed=1)):
        assert y.shape == (400, 1)
        assert stats.kstest(y[:, 0], stats.halfnorm.cdf).pvalue > 1e-3
