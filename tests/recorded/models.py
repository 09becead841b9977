"""Small models for the record: every likelihood, every kind of process and of data.

They are written with public names only. Inputs and observations are formulas, not random numbers,
so they are the same everywhere. `MODELS` has a function for each that returns a `Case`.

Inducing variables are called u or u_something, and nothing else begins with u.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

F = np.float64  # PyTensor makes float32 of Python's numbers, and functions of them lose digits
cov, mean = pm.gp.cov, pm.gp.mean


class Case(NamedTuple):
    """A model, and what is asked of it beside its log density."""

    model: pm.Model
    X_new: np.ndarray
    names: tuple[str, ...] = ("y",)
    """Its likelihoods, for predictions."""
    new: dict[str, Any] = {}
    """Likelihoods for X_new, where those of the model have a parameter for each row."""
    at_point: dict[str, Callable] = {}
    """Functions of values of the random variables, to record as well."""
    has_mean: bool = True
    """Whether its likelihoods define the mean of y given f."""
    is_scored: bool = True
    """Whether entries of y are observations, which have a score."""


MODELS: dict[str, Callable[[], Case]] = {}


def recorded(build):
    MODELS[build.__name__] = build
    return build


# --- data and processes --------------------------------------------------------------------------

STEPS = {1: [0.6180339887], 2: [0.7548776662, 0.5698402910]}
N, M = 24, 6


def inputs(n, d=2, shift=0.0):
    """Points that fill [0, 4]^d evenly, and are never the same for two shifts."""
    return 4.0 * ((np.arange(1, n + 1)[:, None] * STEPS[d] + shift) % 1.0)


def curve(X):
    return np.sin(1.5 * X[:, 0]) + 0.5 * np.cos(X.sum(axis=1))


def noise(n, step=0.4142135624):
    """Numbers between -0.5 and 0.5 that look like noise."""
    return (np.arange(1, n + 1) * step) % 1.0 - 0.5


X, X1 = inputs(N), inputs(N, 1)
CURVE = curve(X)
NORMAL = CURVE + noise(N)
POSITIVE = np.exp(NORMAL)
UNIT = 1.0 / (1.0 + np.exp(-NORMAL))
COUNTS = np.round(2.0 * POSITIVE).astype(int)
YES = (NORMAL > 0.0).astype(int)
CLASSES = np.digitize(NORMAL, [-0.5, 0.5])
PER_ROW = 1.0 + 0.5 * noise(N, 0.7320508)
X_NEW = inputs(5, shift=0.37)


def positive(name, **kwargs):
    """Return a parameter that is 1 where its unconstrained value is 0."""
    return pm.LogNormal(name, F(0.0), F(0.7), **kwargs)


def process(name="u", d=2, kernel=cov.Matern52, mean_func=None, size=1.0, m=M, **prior):
    """Return a process with inducing points, or what `prior` says, and a kernel with parameters."""
    ls = F(size) * positive(f"ls_{name}", shape=d)
    k = positive(f"variance_{name}") * kernel(d, ls=ls)
    gp = vsgp.VariationalSparse(mean_func=mean_func or constant(name), cov_func=k)
    if "inducing" not in prior:
        prior.setdefault("Xu", inputs(m, d, shift=0.21))
    gp.prior(name, **prior)
    return gp


def constant(name="u"):
    return mean.Constant(pm.Normal(f"level_{name}", F(0.0), F(1.0)))


def linear(d=2):
    slope = pm.Normal("slope", F(0.0), F(1.0), shape=d)
    return mean.Linear(coeffs=slope, intercept=pm.Normal("intercept", F(0.0), F(1.0)))


# --- likelihoods of one function -----------------------------------------------------------------


def rational(d, ls):
    return cov.RatQuad(d, alpha=F(1.5), ls=ls)


def custom():
    alpha = positive("alpha")
    return lambda f: pm.NegativeBinomial.dist(mu=pm.math.exp(f), alpha=alpha)


def cutpoints():
    steps = positive("steps", shape=2)
    return pm.math.concatenate([[F(-1.0)], F(-1.0) + pm.math.cumsum(steps)])


# name: (the likelihood, observations, kernel, the likelihood for new rows)
ONE = {
    "bernoulli": (lambda: vsgp.Bernoulli("logit"), YES, cov.ExpQuad),
    "beta": (lambda: vsgp.Beta(nu=positive("phi")), UNIT, cov.Matern52),
    "binomial": (
        lambda: vsgp.Binomial(n=COUNTS + 3, link="probit"),
        np.minimum(COUNTS, 3),
        cov.Matern32,
        lambda: vsgp.Binomial(n=4, link="probit"),
    ),
    "custom": (custom, COUNTS, rational),
    "gamma": (lambda: vsgp.Gamma(alpha=positive("alpha")), POSITIVE, cov.Matern32),
    "gaussian_dtc": (lambda: vsgp.Gaussian(positive("s"), "DTC"), NORMAL, cov.ExpQuad),
    "gaussian_fitc": (
        lambda: vsgp.Gaussian(positive("s") * PER_ROW, "FITC"),
        NORMAL,
        cov.Matern52,
        lambda: vsgp.Gaussian(F(0.5)),
    ),
    "gaussian_tight": (lambda: vsgp.Gaussian(positive("s"), "tight"), NORMAL, cov.Matern32),
    "negative_binomial": (
        lambda: vsgp.NegativeBinomial(positive("alpha"), exposure=PER_ROW),
        COUNTS,
        cov.Matern52,
        lambda: vsgp.NegativeBinomial(F(2.0), exposure=np.full(len(X_NEW), 0.7)),
    ),
    "poisson": (lambda: vsgp.Poisson(exposure=F(0.8)), COUNTS, cov.ExpQuad),
    "weibull": (
        lambda: vsgp.Weibull(alpha=positive("alpha"), censored=YES),
        POSITIVE,
        cov.Matern52,
        lambda: vsgp.Weibull(alpha=F(1.2)),
    ),
    "zero_inflated_poisson": (
        lambda: vsgp.ZeroInflatedPoisson(psi=pm.Beta("psi", F(2.0), F(2.0)), exposure=F(1.5)),
        COUNTS * YES,
        cov.Matern32,
    ),
}


def of_one(make, y, kernel, for_new=None):
    with pm.Model() as model:
        gp = process(kernel=kernel)
        gp.likelihood("y", make(), X=X, y=y)
    new = {} if for_new is None else {"y": for_new()}
    return Case(model, X_NEW, new=new, has_mean=make is not custom)


MODELS |= {name: partial(of_one, *how) for name, how in ONE.items()}


@recorded
def gaussian():
    """Normal noise with a linear mean, which also integrates out."""
    with pm.Model() as model:
        gp = process(mean_func=linear())
        gp.likelihood("y", vsgp.Gaussian(positive("s")), X=X, y=NORMAL)
    at_point = {"predict": lambda p: gp.predict(X_NEW, p, model=model)}
    return Case(model, X_NEW, at_point=at_point)


# --- likelihoods of several functions ------------------------------------------------------------


def custom_of_two():
    return lambda f, g: pm.Normal.dist(f, pm.math.exp(g))


# name: (the likelihood, observations)
TWO = {
    "heteroskedastic_gaussian": (vsgp.HeteroskedasticGaussian, NORMAL),
    "heteroskedastic_student_t": (
        lambda: vsgp.HeteroskedasticStudentT(nu=F(2.0) + positive("nu")),
        NORMAL,
    ),
    "heteroskedastic_beta_binomial": (lambda: vsgp.HeteroskedasticBetaBinomial(n=20), COUNTS),
    "heteroskedastic_negative_binomial": (vsgp.HeteroskedasticNegativeBinomial, COUNTS),
    "custom_of_two": (custom_of_two, NORMAL),
}


def of_two(make, y):
    with pm.Model() as model:
        f = process("u_f")
        g = process("u_g", kernel=cov.ExpQuad, size=2.0, m=4)
        vsgp.likelihood("y", make(), [f, g], X=X, y=y)
    return Case(model, X_NEW, has_mean=make is not custom_of_two)


MODELS |= {name: partial(of_two, *how) for name, how in TWO.items()}


@recorded
def points_and_features():
    """Two processes of different kinds in one likelihood."""
    with pm.Model() as model:
        f = process("u_f", 1)
        g = process("u_g", 1, inducing=vsgp.inducing.Fourier(9.0, 3, 2.0))
        lik = vsgp.HeteroskedasticZeroInflatedPoisson(exposure=PER_ROW)
        vsgp.likelihood("y", lik, [f, g], X=X1, y=COUNTS)
    new = {"y": vsgp.HeteroskedasticZeroInflatedPoisson(exposure=F(0.7))}
    return Case(model, X_NEW[:, :1], new=new)


def of_classes(make):
    with pm.Model() as model:
        gp = process(n_outputs=3)
        gp.likelihood("y", make(), X=X, y=CLASSES)
    return Case(model, X_NEW)


MODELS["softmax"] = partial(of_classes, lambda: vsgp.Categorical(3))
MODELS["robust_max"] = partial(of_classes, lambda: vsgp.RobustMax(3, epsilon=0.05))


@recorded
def coregionalized():
    """Three outputs with missing entries, two processes, one of them of two functions."""
    Y = CURVE[:, None] * [1.0, -0.5, 0.3] + noise(3 * N).reshape(N, 3)
    Y[::5, 1] = np.nan
    with pm.Model() as model:
        W = pm.Normal("W", F(0.0), F(1.0), shape=(3, 3))
        f = vsgp.Coregionalized(W, [process("u_f", n_outputs=2), process("u_g", m=4)])
        f.likelihood("y", vsgp.Gaussian(positive("s", shape=3)), X=X, y=Y)
    at_point = {"predict": lambda p: f.predict(X_NEW, p, model=model)}
    return Case(model, X_NEW, at_point=at_point)


@recorded
def coregionalized_counts():
    with pm.Model() as model:
        f = vsgp.Coregionalized(np.array([[1.0], [0.5]]), process())
        f.likelihood("y", vsgp.Poisson(), X=X, y=np.column_stack([COUNTS, COUNTS[::-1]]))
    return Case(model, X_NEW)


# --- ways to build a model -----------------------------------------------------------------------


@recorded
def sum_of_two():
    """A sum has the inducing values, and its parts are predicted given it."""
    with pm.Model() as model:
        slow = vsgp.VariationalSparse(
            mean_func=constant(), cov_func=cov.ExpQuad(2, ls=F(2.0) * positive("slow"))
        )
        fast = vsgp.VariationalSparse(cov_func=cov.Matern32(2, ls=positive("fast")))
        total = slow + fast
        total.prior("u", Xu=inputs(M, shift=0.21))
        total.likelihood("y", vsgp.Ordinal(cutpoints()), X=X, y=np.digitize(NORMAL, [-1, 0, 1]))

    def at(gp):
        return lambda p: gp.predict(X_NEW, p, given={"gp": total}, model=model)

    return Case(model, X_NEW, at_point={"slow": at(slow), "fast": at(fast)})


@recorded
def two_likelihoods():
    """One process seen by two kinds of data, at different inputs."""
    with pm.Model() as model:
        gp = process()
        gp.likelihood("y", vsgp.Poisson(link="square"), X=X, y=COUNTS)
        gp.likelihood("z", vsgp.Gaussian(positive("s")), X=inputs(15, shift=0.5), y=NORMAL[:15])
    return Case(model, X_NEW, ("y", "z"))


@recorded
def potential():
    """A term without an observed variable, beside another potential."""
    with pm.Model() as model:
        gp = process()
        gp.potential("y", vsgp.LogNormal(positive("s")), X=X, y=POSITIVE)
        pm.Potential("short", -F(0.1) * model["ls_u"].sum())
    return Case(model, X_NEW)


@recorded
def hierarchical():
    """Parameters with priors of their own, robust noise, and something derived."""
    with pm.Model() as model:
        level, spread = pm.Normal("level", F(0.0), F(1.0)), positive("spread")
        ls = pm.math.exp(pm.Normal("log_ls", level, spread, shape=2))
        gp = vsgp.VariationalSparse(cov_func=spread * cov.Matern52(2, ls=ls))
        u = gp.prior("u", Xu=inputs(M, shift=0.21))
        lik = vsgp.StudentT(nu=F(2.0) + positive("nu"), sigma=positive("s"))
        gp.likelihood("y", lik, X=X, y=NORMAL)
        pm.Deterministic("contrast", u[0] - u[1])
    return Case(model, X_NEW)


@recorded
def blocks():
    """Several blocks of rows, with a parameter that goes with the rows."""
    with pm.Model() as model:
        gp = process()
        lik = vsgp.Poisson(exposure=positive("rate") * PER_ROW, link="softplus")
        gp.likelihood("y", lik, X=X, y=COUNTS, block_size=7)
    return Case(model, X_NEW, new={"y": vsgp.Poisson(link="softplus")})


@recorded
def no_blocks():
    """An ordinary graph that holds all rows."""
    with pm.Model() as model:
        gp = process()
        gp.likelihood("y", vsgp.Bernoulli("cloglog"), X=X, y=YES, block_size=False)
    return Case(model, X_NEW, names=())


@recorded
def containers():
    """Data that the user put into the model, with names of dimensions."""
    coords = {"row": np.arange(N), "column": ["a", "b"], "place": np.arange(M)}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", X, dims=("row", "column"))
        z = pm.Data("z", inputs(M, shift=0.21), dims=("place", "column"))
        gp = process(Xu=z, inducing_dims="place")
        gp.likelihood("y", vsgp.Bernoulli("probit"), X=x, y=YES)
    return Case(model, X_NEW)


@recorded
def kernels():
    """A sum and product of kernels of some columns, white noise, and no mean parameter."""
    with pm.Model() as model:
        first = positive("a") * cov.Periodic(2, period=F(3.0), ls=positive("b"), active_dims=[0])
        second = cov.Linear(2, c=F(0.5), active_dims=[1]) * cov.ExpQuad(2, ls=positive("c"))
        k = first + second + cov.WhiteNoise(F(0.3))
        gp = vsgp.VariationalSparse(cov_func=k)
        gp.prior("u", Xu=inputs(M, shift=0.21))
        gp.likelihood("y", vsgp.Exponential(), X=X, y=POSITIVE)
    return Case(model, X_NEW)


@recorded
def nothing_else():
    """No parameter: the inducing values are all there is."""
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=cov.Matern52(1, ls=F(0.8)))
        gp.prior("u", Xu=np.linspace(0.0, 4.0, M)[:, None])
        gp.likelihood("y", vsgp.Poisson(), X=X1, y=COUNTS)
    return Case(model, X_NEW[:, :1])


# --- Fourier features ----------------------------------------------------------------------------


def of_features(features, X, y, lik, kernel=cov.Matern52, mean_func=None, size=1.0, **prior):
    d = X.shape[1]
    with pm.Model() as model:
        m = linear(d) if mean_func == "linear" else None
        gp = process("u", d, kernel, m, size, inducing=features, **prior)
        gp.likelihood("y", lik(), X=X, y=y)
    return Case(model, inputs(5, d, shift=0.37))


def grid():
    a, b = np.linspace(0.0, 4.0, 6), np.linspace(0.5, 3.5, 5)
    return np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1).reshape(-1, 2)


def counts_at(X):
    return np.round(2.0 * np.exp(curve(X) + noise(len(X)))).astype(int)


def normal_noise(approx):
    return lambda: vsgp.Gaussian(positive("s"), approx)


SERIES, MANY, MANY_2D = np.arange(256)[:, None] / 64.0, inputs(2000, 1), inputs(2000, 2)
Fourier = vsgp.inducing.Fourier
FEW, PLANE, LARGE = Fourier(8.0, 5, 2.0), Fourier((8.0, 7.0), (2, 3), 2.0), Fourier(8.0, 76, 2.0)

# name: arguments of `of_features`
FEATURES = {
    "features": (FEW, X1, COUNTS, vsgp.Poisson, cov.Matern32, "linear"),
    "features_2d": (PLANE, X, YES, lambda: vsgp.Bernoulli("probit"), cov.ExpQuad),
    "features_grid": (PLANE, grid(), counts_at(grid()), vsgp.Poisson),
    "features_series": (FEW, SERIES, counts_at(SERIES), vsgp.Poisson),
    "features_scattered": (Fourier(8.0, 9, 2.0), MANY, counts_at(MANY), vsgp.Poisson),
    "features_scattered_2d": (
        Fourier((8.0, 7.0), (4, 5), 2.0),
        MANY_2D,
        counts_at(MANY_2D),
        lambda: vsgp.NegativeBinomial(positive("alpha")),
    ),
    "features_diagonal": (LARGE, X1, COUNTS, vsgp.Poisson, cov.Matern52, None, 0.3),
    "features_gaussian": (FEW, X1, NORMAL, normal_noise("VFE"), cov.Matern32, "linear"),
    "features_gaussian_2d": (PLANE, X, NORMAL, normal_noise("tight"), cov.ExpQuad),
    "features_gaussian_diagonal": (LARGE, X1, NORMAL, normal_noise("FITC"), cov.Matern32),
}
MODELS |= {name: partial(of_features, *how) for name, how in FEATURES.items()}
MODELS["features_softmax"] = partial(
    of_features, FEW, X1, CLASSES, lambda: vsgp.Softmax(3), n_outputs=3
)


# --- point processes -----------------------------------------------------------------------------


@recorded
def events_by_quadrature():
    pattern = vsgp.point_process(X1[:, 0], (0.0, 4.0), bins=8)
    q = pattern.quadrature(12)
    with pm.Model() as model:
        gp = process("u", 1)
        gp.likelihood("y", vsgp.PoissonProcess(q.weights), X=q.X, y=q.y)
    new = {"y": vsgp.PoissonProcess(np.full(5, 0.1))}
    return Case(model, X_NEW[:, :1], new=new, is_scored=False)


@recorded
def events_in_bins():
    pattern = vsgp.point_process(
        X, {"x": (0.0, 4.0), "y": (0.0, 4.0)}, bins=(6, 5), exposure=lambda p: 1.0 + 0.1 * p[:, 0]
    )
    with pm.Model(coords=pattern.coords) as model:
        gp = process(mean_func=mean.Constant(np.log(1.5)))
        lik = vsgp.Poisson(exposure=pattern.exposure)
        gp.likelihood("y", lik, X=pattern.X, y=pattern.counts, dims="bin")
    return Case(model, X_NEW, new={"y": vsgp.Poisson()})
