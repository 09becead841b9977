"""Calls with inputs of every kind: what puts a process and its data into a model."""

import numpy as np
import pymc as pm

from fuzzing import (
    WRONG_COUNTS,
    attempt,
    case,
    equal,
    finite,
    holds,
    inputs,
    kernel,
    number,
    one_of,
    option,
    plainly,
    rng_of,
    values,
    vector,
)
from hypothesis import strategies as st
from modes import RAW

import pymc_vsgp as vsgp

COUNTS = np.arange(12) % 3


def _held(model, thing, how, name):
    """Return values as they are, or as data of the model."""
    if how == "":
        return thing
    dims = {"data": None, "data with dims": (f"{name}_row", f"{name}_column")[: np.ndim(thing)]}
    with model:
        return pm.Data(name, thing, dims=dims[how])


def _density(model, seed=0):
    """Log density where inducing values are random numbers."""
    rng = np.random.default_rng(seed)
    point = {k: rng.normal(size=np.shape(v)) for k, v in model.initial_point().items()}
    with np.errstate(all="ignore"):
        return float(model.compile_logp(mode=RAW)(point))


LIKELIHOODS = {
    "Poisson": vsgp.Poisson,
    "Gaussian": lambda: vsgp.Gaussian(0.5),
    "NegativeBinomial": lambda: vsgp.NegativeBinomial(2.0),
    "exposure": lambda: vsgp.Poisson(exposure=np.linspace(0.5, 2.0, 12)),
    "a callable": lambda: lambda f: pm.Poisson.dist(pm.math.exp(f)),
    "Softmax": lambda: vsgp.Softmax(3),
}
NO_LIKELIHOODS = [
    None,
    "poisson",
    vsgp.Poisson,
    3,
    lambda f: f,
    lambda f: 1.0,
    lambda f: pm.MvNormal.dist(f, np.eye(12)),
    lambda: 3,
    lambda f, g: pm.Normal.dist(f, pm.math.exp(g)),
    vsgp.Binomial(1),
    vsgp.Bernoulli(),
    vsgp.Beta(1.0),
]


@case("VariationalSparse", "VariationalSparse.prior", "VariationalSparse.likelihood")
def likelihood(draw):
    """The log density is that with plain arrays."""
    d = draw(st.sampled_from([1, 2]))
    X = values(draw, rows=(12,), columns=(d,))
    Xu = values(draw, rows=(4,), columns=(d,), scales=(1.0,), hard=False)
    cov = one_of(draw, [kernel(draw, d)], [kernel(draw, 4), None, 1.0, pm.gp.cov.ExpQuad, "cov"])
    name = one_of(draw, sorted(LIKELIHOODS), ["wrong"])
    lik = LIKELIHOODS[name]() if name in LIKELIHOODS else draw(st.sampled_from(NO_LIKELIHOODS))
    of_prior = {"n_outputs": 3 if name == "Softmax" else 1}
    if draw(st.integers(0, 5)) == 0:
        of_prior["n_outputs"] = one_of(draw, [1, 2, 3], WRONG_COUNTS)
    if draw(st.integers(0, 5)) == 0:
        of_prior["jitter"] = number(draw, [1e-8, 1e-3, 0.0])
    if draw(st.integers(0, 9)) == 0:
        of_prior["by"] = option(draw, ["group", "y_obs"])
    for dims in ("output_dims", "inducing_dims"):
        if draw(st.integers(0, 9)) == 0:
            of_prior[dims] = option(draw, ["z", "\N{SNOWMAN}", "obs"])
    of_likelihood = {}
    if draw(st.integers(0, 5)) == 0:
        of_likelihood["block_size"] = one_of(draw, [5, 12, 100, False, None], WRONG_COUNTS)
    if draw(st.integers(0, 5)) == 0:
        wrong = ["u_inducing", 3, (), ("a", "b"), ["a"], b"a", ""]
        of_likelihood["dims"] = one_of(draw, ["day", "\N{SNOWMAN}", ("day",)], wrong)
    u, y_name = option(draw, ["u", "\N{GREEK SMALL LETTER MU}"]), option(draw, ["y", "größe"])
    as_data = draw(st.sampled_from([("", "")] * 4 + [("data", ""), ("data with dims", "data")]))
    given = [inputs(draw, Xu), inputs(draw, X), vector(draw, COUNTS)]
    if given[1].kind == "big-endian":  # which pm.Data does not take
        as_data = ("", "")

    def build(*data, plain=False):
        with pm.Model(coords={"group": ["a", "b"], "obs": range(12)}) as model:
            Xu, X, y = data
            if not plain:
                X, y = (
                    _held(model, thing, how, f"{name}_data")
                    if how and g.plain is not None
                    else thing
                    for thing, how, g, name in zip((X, y), as_data, given[1:], "Xy", strict=True)
                )
            gp = vsgp.VariationalSparse(cov_func=cov)
            gp.prior(u, Xu, **of_prior)
            gp.likelihood(y_name, lik, X, y, **of_likelihood)
        return model

    found, refused = attempt(lambda: build(*(g.thing for g in given)))
    kinds = ", ".join(g.kind for g in given)
    if any(g.plain is None for g in given):
        holds(refused, f"accepts {kinds}")
        return "refused"
    expected, reason = attempt(lambda: build(*(g.plain for g in given), plain=True))
    named = [hasattr(g.thing, "columns") or hasattr(g.thing, "coords") for g in given[:2]]
    if refused:
        documented = all(g.documented for g in given) and not any(named) and not any(as_data)
        holds(reason or not documented, f"refuses {kinds}: {refused}")
        return "refused"
    holds(not reason, f"accepts {kinds}, but the plain arrays have: {reason}")
    a, b = _density(found), _density(expected)
    holds(not np.isnan(a), "the density is NaN")
    equal(a, b, kinds)
    return "right"


GP_COLUMNS = {1: ("a",), 2: ("a", "b")}


KINDS = ["points", "points", "waves", "neighbors", "pairs"]


def _inducing(kind, d, named):
    """Arguments of prior, and how many values there are."""
    import pandas as pd

    Xu = np.random.default_rng(d).uniform(-1.0, 1.0, size=(4, d))
    labelled = [pd.DataFrame(Xu[:, i : i + 1], columns=[GP_COLUMNS[d][i]]) for i in range(d)]
    Xu = pd.DataFrame(Xu, columns=GP_COLUMNS[d]) if named else Xu
    if kind == "pairs" and d == 2:
        sets = [x[:2] if named else x[:2].to_numpy() for x in labelled]
        return {"inducing": vsgp.inducing.Kronecker(*sets)}, 4
    if kind == "waves":
        names = {"columns": GP_COLUMNS[d]} if named else {}
        return {"inducing": vsgp.inducing.Fourier([6.0] * d, 1, **names)}, 3**d
    if kind == "neighbors":
        return {"inducing": vsgp.inducing.NearestNeighbors(Xu, 2)}, 4
    return {"Xu": Xu}, 4


def _process(draw, d, named):
    gp = vsgp.VariationalSparse(
        cov_func=pm.gp.cov.ExpQuad(d, ls=0.7), mean_func=pm.gp.mean.Linear(np.arange(1.0, d + 1))
    )
    n_outputs = draw(st.sampled_from([1, 1, 2]))
    of_prior, M = _inducing(draw(st.sampled_from(KINDS)), d, named)
    gp.prior("u", **of_prior, n_outputs=n_outputs)
    return gp, n_outputs, M


@case("VariationalSparse.predict")
def predict(draw):
    """Mean and variance at each row; rows that are equal have the same."""
    d, named = draw(st.sampled_from([1, 2])), draw(st.booleans())
    with pm.Model() as model:
        gp, n, M = _process(draw, d, named)
        Xnew = values(draw, columns=(d, d, d, d, d, 3))
        given = inputs(draw, Xnew)
        u = np.linspace(-1.0, 1.0, M * n).reshape((n, M) if n > 1 else M)
        wrong = [None, {}, {"u": u[..., :2]}, {"u": "a"}, {"v": u}, 3, {"u": u * np.nan}]
        point, diag = one_of(draw, [{"u": u}], wrong), draw(st.sampled_from([True, True, False]))

        def act(X):
            return gp.predict(X, point, diag=diag, model=model)

        def same(a, b, kind):
            if hasattr(given.thing, "columns") or hasattr(given.thing, "coords"):
                return
            equal(a[0], b[0], kind)
            equal(a[1], b[1], kind)

        outcome, found = plainly(
            given._replace(documented=given.documented and not named), act, same
        )
        if outcome == "right":
            finite(found[0], "the mean")
            finite(found[1], "the variance")
            if diag:
                holds((np.asarray(found[1]) >= 0.0).all(), "a variance is negative")
            holds(np.shape(found[0])[-1] == len(given.plain), "has another number of rows")
    return outcome


@case("VariationalSparse.conditional", "VariationalSparse.predictive")
def conditional(draw):
    """Draws of the function, and of observations, at new inputs."""
    d, named = draw(st.sampled_from([1, 2])), draw(st.booleans())
    kwargs = {}
    if draw(st.integers(0, 3)) == 0:
        kwargs["given"] = draw(st.sampled_from([None, {}, {"gp": 3}, {"X": 1}, 3, "gp"]))
    with pm.Model():
        gp, n, _ = _process(draw, d, named)
        given = inputs(draw, values(draw, columns=(d, d, d, d, d, 3), scales=(1e9,)))
        name = option(draw, ["f", "\N{GREEK SMALL LETTER PHI}"], [None, "u", 0, "", [], b"f"])
        if draw(st.booleans()):
            diag = draw(st.booleans())
            if draw(st.integers(0, 3)) == 0:
                kwargs["jitter"] = number(draw, [1e-6, 0.0])

            def act(X):
                return gp.conditional(name, X, diag=diag, **kwargs)
        else:
            lik = one_of(
                draw, [vsgp.Gaussian(0.1)] if n == 1 else [vsgp.Softmax(2)], NO_LIKELIHOODS
            )

            def act(X):
                return gp.predictive(name, X, lik, **kwargs)

        found, refused = attempt(lambda: act(given.thing))
        if given.plain is None:
            holds(refused, f"accepts {given.kind}")
        if refused:
            return "refused"
        drawn, refused = attempt(lambda: pm.draw(found, 2, random_seed=1, mode=RAW))
        if refused:
            return "refused"
        finite(drawn)
    return "right"


@case("Coregionalized", "likelihood", "predictive")
def coregionalized(draw):
    """Several outputs, nan where one is missing."""
    X = values(draw, rows=(12,), columns=(1,), scales=(1.0,))
    rng = rng_of(draw)
    W = np.arange(1.0, 7.0).reshape(3, 2)
    wrong = [
        W.T,
        W[0],
        W[:0],
        None,
        "W",
        1.0,
        W * np.nan,
        W[None],
        W.tolist(),
        W + 0j,
        [[1], [2, 3]],
    ]
    chosen = one_of(draw, [W, W.tolist()], wrong)
    y = rng.normal(size=(12, 3))
    y[rng.integers(12), rng.integers(3)] = np.nan
    given_y = inputs(draw, y)
    given = inputs(draw, X)
    dims = one_of(
        draw, [None, ("obs", "output")], [("output", "obs"), "obs", 3, (), ("obs", "obs")]
    )
    sigma = one_of(draw, [0.5, np.ones(3)], [np.ones(2), np.ones((12, 3)), -1.0, None])

    def build(X, y):
        with pm.Model(coords={"output": list("abc")}) as model:
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.7))
            gp.prior("u", np.linspace(-1.0, 1.0, 4)[:, None], n_outputs=2)
            f = vsgp.Coregionalized(chosen, gp)
            f.likelihood("y", vsgp.Gaussian(sigma), X, y, dims=dims)
        return model, f

    found, refused = attempt(lambda: build(given.thing, given_y.thing))
    if refused:
        return "refused"
    holds(given.plain is not None, f"accepts {given.kind} for X")
    a = _density(found[0])
    finite(a, f"the density of y as {given_y.kind}")
    if given_y.plain is not None:
        plain = build(given.plain, given_y.plain)[0]
        equal(a, _density(plain), f"{given.kind}, {given_y.kind}")
        u = np.linspace(-1.0, 1.0, 8).reshape(2, 4)
        mean, variance = found[1].predict(given.plain, {"u": u}, diag=True, model=found[0])
        finite(mean), finite(variance)
    return "right"


@case("check_model", "reset")
def check(draw):
    """A report for any point of the model."""
    with pm.Model() as model:
        ls = pm.Gamma("ls", 2, 1)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        gp.prior("u", np.linspace(-1.0, 1.0, 4)[:, None])
        gp.likelihood("y", vsgp.Poisson(), np.linspace(-1.0, 1.0, 12)[:, None], COUNTS)
    point = one_of(
        draw,
        [None, {}, {"ls": 1.0}, {"ls_log__": 0.0}, {"ls": 1e-9}, {"ls": 1e9}, {"u": np.zeros(4)}],
        [
            {"ls": -1.0},
            {"ls": np.nan},
            {"ls": "a"},
            {"u": np.zeros(3)},
            {"q": 1},
            3,
            "ls",
            [1.0],
            {"ls": np.ones(2)},
            {"ls": None},
            {3: 1.0},
        ],
    )
    which = one_of(draw, [model], [None, pm.Model()])
    found, refused = attempt(lambda: vsgp.check_model(point, model=which))
    if not refused:
        repr(found)
    again, refused_too = attempt(lambda: vsgp.reset(model=which))
    return "refused" if refused or refused_too else "right"
