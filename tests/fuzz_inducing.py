"""Calls with inputs of every kind: where to put inducing variables, data sets, point processes."""

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from fuzzing import (
    WRONG_COUNTS,
    WRONG_NUMBERS,
    Fault,
    attempt,
    case,
    count,
    equal,
    finite,
    holds,
    inputs,
    kernel,
    number,
    one_of,
    option,
    plainly,
    seed_of,
    values,
    vector,
)
from hypothesis import strategies as st

import pymc_vsgp as vsgp

from pymc_vsgp.checks import column_names


def _placed(Xu, X, M=None):
    """Inducing inputs are finite, distinct, within the data, and as many as were asked for."""
    Xu = np.asarray(Xu, dtype="float64")
    finite(Xu)
    holds(M is None or len(Xu) == M, f"{len(Xu)} points in place of {M}")
    holds(len(np.unique(Xu, axis=0)) == len(Xu), "repeats a point")


@case("inducing.subset")
def subset(draw):
    X, M, (seed, fixed) = values(draw), count(draw), seed_of(draw)
    given = inputs(draw, X)
    same = equal if fixed else lambda *_: None
    outcome, Xu = plainly(given, lambda X: vsgp.inducing.subset(X, M, random_seed=seed()), same)
    if outcome == "right":
        _placed(Xu, given.plain, M)
    return outcome


@case("inducing.kmeans")
def kmeans(draw):
    X, M, (seed, fixed) = values(draw), count(draw), seed_of(draw)
    given = inputs(draw, X)
    weights = None
    if draw(st.booleans()):
        weights = vector(draw, np.arange(len(X)) % 3 + draw(st.sampled_from([0.0, 1.0]))).thing
    same = equal if fixed else lambda *_: None
    outcome, Xu = plainly(
        given,
        lambda X: vsgp.inducing.kmeans(X, M, random_seed=seed(), weights=weights),
        same,
    )
    if outcome == "right":
        _placed(Xu, given.plain, M)
        low, high = given.plain.min(axis=0), given.plain.max(axis=0)
        inside = (np.asarray(Xu) >= low) & (np.asarray(Xu) <= high)
        near = np.isclose(Xu, low) | np.isclose(Xu, high)
        holds((inside | near).all(), "has a centre outside of the data")
    return outcome


@case("inducing.grid")
def grid(draw):
    X = values(draw)
    n = one_of(draw, [1, 2, 4, [2] * X.shape[1]], [(3,), np.array([2, 3]), *WRONG_COUNTS])
    margin = number(draw, [0.0, 0.1, 1])
    given = inputs(draw, X)
    outcome, Xu = plainly(given, lambda X: vsgp.inducing.grid(X, n, margin=margin))
    if outcome == "right":
        _placed(Xu, given.plain)
    return outcome


@case("inducing.greedy_variance")
def greedy_variance(draw):
    X, M, (seed, fixed) = values(draw), count(draw), seed_of(draw)
    cov = one_of(draw, [kernel(draw, X.shape[1])], [kernel(draw, 4), None, len, 1.0])
    threshold = number(draw, [1e-10, 0.0])
    point = one_of(draw, [None], [{}, {"ls": 1.0}, {"ls": np.nan}, 3, "ls"])
    given = inputs(draw, X)
    same = equal if fixed else lambda *_: None
    outcome, Xu = plainly(
        given,
        lambda X: vsgp.inducing.greedy_variance(
            X, M, cov, point=point, threshold=threshold, random_seed=seed()
        ),
        same,
    )
    if outcome == "right":
        _placed(Xu, given.plain, M)
    return outcome


def _of_fourier(found, expected, kind):
    for name in ("period", "center", "n_frequencies"):
        equal(getattr(found, name), getattr(expected, name), f"{name} by {kind}")


@case("inducing.Fourier.for_data")
def for_data(draw):
    X, (seed, fixed) = values(draw, columns=(1, 1, 2)), seed_of(draw)
    given = inputs(draw, X)
    cov = kernel(draw, X.shape[1])
    periodic = one_of(
        draw, [None, {0: 2.0}], [{"a": 2.0}, {0: 0.0}, {0: "a"}, {0: None}, {9: 1.0}, 3, [1.0]]
    )
    kwargs = {
        "residual": number(draw, [0.005, 0.1, 0.5]),
        "wrap": number(draw, [0.02, 0.5]),
        "quantile": number(draw, [0.9, 0.5, 1.0]),
        "max_features": count(draw, (5, 50, 500)),
        "draws": count(draw, (2, 5), [0, -1, True, 2.0, "3", None]),
    }

    def act(X):
        # A plain array has no names, and what stands for it may have them.
        names, _ = attempt(lambda: column_names(given.thing, "X"))
        by_place = "a" in (names or ()) and periodic == {"a": 2.0} and X is given.plain
        place = {0: 2.0} if by_place else periodic
        return vsgp.inducing.Fourier.for_data(X, cov, periodic=place, random_seed=seed(), **kwargs)

    outcome, found = plainly(
        given,
        act,
        _of_fourier if fixed and not isinstance(periodic, dict) else lambda *_: None,
    )
    if outcome == "right":
        finite(found.period)
        holds(min(found.period) > 0.0, "has a period of 0")
        holds(found.n_features <= max(kwargs["max_features"], 3**2), "has more features than asked")
    return outcome


@case("inducing.Fourier")
def fourier(draw):
    pair = [1.0, 2, (1.0, 2.0), [3.0], np.array([1.0, 2.0]), 0.0, -1.0, np.nan, "a", None, [], {}]
    kwargs = {
        "period": one_of(draw, pair[:5], pair[5:]),
        "n_frequencies": one_of(draw, [1, 3, (2, 3), [4], np.int64(2)], WRONG_COUNTS),
    }
    if draw(st.booleans()):
        kwargs["center"] = draw(st.sampled_from([*pair, 0.5]))
    if draw(st.booleans()):
        kwargs["periodic"] = draw(st.sampled_from([True, False, (True, False), 1, "a", None, []]))
    if draw(st.booleans()):
        kwargs["columns"] = draw(st.sampled_from([None, ("a",), ["a", "b"], "a", 3, ()]))
    found, refused = attempt(lambda: vsgp.inducing.Fourier(**kwargs))
    if refused:
        return "refused"
    holds(found.n_features == np.prod(2 * np.array(found.n_frequencies) + 1), "wrong number")
    finite(found.period)
    finite(found.center)
    return "right"


def _of_suggestion(found, expected, kind):
    holds(found.best == expected.best, f"{kind} gives {found.best}, not {expected.best}")
    for name, o in expected.options.items():
        equal(found.options[name].n_inducing, o.n_inducing, kind)


@case("suggest_inducing")
def suggest(draw):
    X, (seed, fixed) = values(draw, columns=(1, 1, 2)), seed_of(draw)
    given = inputs(draw, X)
    cov = one_of(draw, [kernel(draw, X.shape[1])], [kernel(draw, 5), None, "cov"])
    kwargs = {
        "residual": number(draw, [0.02, 0.5]),
        "quantile": number(draw, [0.9, 0.5]),
        "draws": count(draw, (2, 3), [0, -1, True, 2.0, "3", None]),
    }
    outcome, found = plainly(
        given,
        lambda X: vsgp.suggest_inducing(X, cov, random_seed=seed(), **kwargs),
        _of_suggestion if fixed else lambda *_: None,
    )
    if outcome == "right":
        repr(found)
        for o in found.options.values():
            finite([o.left_out, o.seconds, o.n_inducing])
        if "Xu" in found.prior_kwargs:
            _placed(found.prior_kwargs["Xu"], given.plain)
    return outcome


@case("inducing.NearestNeighbors")
def neighbors(draw):
    X = values(draw)
    given = inputs(draw, X)
    m = one_of(draw, [None, 1, 3, 30], WRONG_COUNTS)
    scale = one_of(
        draw, [None, 1.0, np.ones(X.shape[1])], [[1.0], 0.0, -1.0, np.nan, "a", [], [1.0] * 9]
    )
    same = lambda a, b, kind: equal(a.Xu, b.Xu, kind)  # noqa: E731
    outcome, found = plainly(
        given, lambda X: vsgp.inducing.NearestNeighbors(X, m, scale=scale), same
    )
    if outcome == "right":
        _placed(found.Xu, given.plain)
    return outcome


@case("inducing.Kronecker")
def kronecker(draw):
    """Pairs of distinct places, and columns that are theirs."""
    first = values(draw, rows=(3, 4, 1), columns=(1, 2))
    second = values(draw, rows=(3, 1), columns=(1,))
    given, other = inputs(draw, first), inputs(draw, second)
    own = list(range(first.shape[1]))
    wrong = [
        ([0], [0]),
        ([0, 1, 2], [3]),
        ([-1], [0]),
        ("a", "b"),
        3,
        [],
        [[0]],
        "01",
        ([0.5], [1]),
    ]
    columns = one_of(draw, [None, None, (own, [len(own)]), ([d + 1 for d in own], [0])], wrong)

    def same(a, b, kind):
        equal(a.places[0], b.places[0], kind)
        holds(a.parts == b.parts, f"{kind} has other columns")

    outcome, found = plainly(
        given, lambda X: vsgp.inducing.Kronecker(X, other.thing, columns=columns), same
    )
    if outcome == "right":
        holds(other.plain is not None, f"accepts {other.kind}")
        finite(found.pairs())
        holds(found.n_inducing == len(first) * len(second), "has another number of pairs")
        for places in found.places:
            holds(len(np.unique(places, axis=0)) == len(places), "repeats a place")
    return outcome


@case("datasets.coal_counts", "datasets.load")
def data_sets(draw):
    if draw(st.booleans()):
        bins = count(draw, (1, 7, 100))
        found, refused = attempt(lambda: vsgp.datasets.coal_counts(bins))
        if not refused:
            holds(found["count"].sum() == 191 and len(found) == bins, "loses events")
    else:
        name = draw(st.sampled_from(["", "../coal", None, 3, [], "\N{SNOWMAN}", b"coal"]))
        found, refused = attempt(lambda: vsgp.datasets.load(name))
        holds(refused, f"loads {name!r}")
    return "refused" if refused else "right"


# Point processes

WINDOWS = {
    1: [(-2.0, 2.0), [(-2.0, 2.0)], {"x": (-2, 2)}, np.array([-2.0, 2.0])],
    2: [[(-2, 2), (-2, 2)], {"x": (-2, 2), "y": (-2, 2)}, np.array([[-2.0, 2.0]] * 2)],
    3: [[(-2, 2)] * 3, ([(-2, 2), (-2, 2)], (-2, 2))],
}
NO_WINDOWS = [
    None,
    (1.0, 0.0),
    (0.0, 0.0),
    (0.0, np.inf),
    "a",
    3,
    [],
    {},
    (0, np.nan),
    [(0, 1)] * 4,
]


@case("point_process", "PointProcess")
def events(draw):
    d = draw(st.sampled_from([1, 2, 3]))
    X = values(draw, columns=(d,), scales=(1.0, 1.0, 1e-9))
    given = inputs(draw, X)
    if given.kind in (
        "whole numbers",
        "booleans",
        "a vector",
        "a series",
        "no rows",
        "float32",
        "float16",
        "an empty list",
        "a vector with dims",
    ):
        given = given._replace(plain=None, kind="either")
    window = one_of(draw, WINDOWS[d], NO_WINDOWS)
    bins = one_of(draw, [4, (4,) * d], [np.linspace(-2, 2, 5), *WRONG_COUNTS])
    kwargs = {}
    if draw(st.integers(0, 3)) == 0:
        bins = None
        kwargs["resolution"] = number(draw, [1.0, 0.7])
    if draw(st.integers(0, 3)) == 0:
        kwargs["exposure"] = number(
            draw,
            [2.0, lambda X: np.ones(len(X))],
            [lambda X: 1.0, np.ones((4,) * d), np.ones(3), -1.0],
        )
    if draw(st.integers(0, 3)) == 0:
        kwargs["covariates"] = number(
            draw,
            [lambda X: X[:, 0], {"covariate": lambda X: X[:, 0]}],
            [{"covariate": np.ones(3)}, pd.DataFrame({"covariate": np.ones(4**d)}), *WRONG_NUMBERS],
        )
    if draw(st.integers(0, 3)) == 0:
        kwargs["mask"] = number(draw, [np.ones((4,) * d, bool)], [np.zeros((4,) * d, bool), "a", 3])
    if draw(st.integers(0, 3)) == 0:
        kwargs["dims"] = one_of(draw, [list("xyz")[:d]], ["xyz"[:d], [], 3, ["a"] * d, ["x"] * d])
    if draw(st.integers(0, 3)) == 0:
        kwargs["unit"] = one_of(draw, ["km", ("km",) * d], [(), 3, None, [1.0]])
    kwargs["outside"] = option(draw, ["warn", "drop"])
    kwargs["repeated"] = option(draw, ["warn", "keep", "drop"])

    def same(a, b, kind):
        equal(a.counts, b.counts, kind)
        equal(a.exposure, b.exposure, kind)

    def make(events):
        return vsgp.point_process(events, window, bins=bins, **kwargs)

    if given.kind == "either":
        found, refused = attempt(lambda: make(given.thing))
        outcome = "refused" if refused else "right"
    else:
        outcome, found = plainly(given, make, same)
    if outcome == "refused":
        return outcome
    holds(found.counts.sum() == len(found.events) == found.count(), "loses events")
    finite(found.exposure)
    finite(found.X)
    holds((found.exposure > 0).all(), "has exposure of 0")
    repr(found), found._repr_html_()
    grid = found.to_grid(found.counts)
    holds(np.nansum(grid) == found.counts.sum(), "loses events on the grid")
    n = count(draw, (1, 3))
    rule, _ = attempt(lambda: found.quadrature(n))
    if rule is not None:
        finite(rule.X)
        total = float(rule.weights.sum())
        if "exposure" not in kwargs and "mask" not in kwargs:
            holds(np.isclose(total, found.window.volume), "weights are not the volume")
    again = draw(st.sampled_from([2, 8, *WRONG_COUNTS]))
    other, _ = attempt(lambda: found.rebin(again))
    if other is not None:
        holds(other.counts.sum() == found.counts.sum(), "loses events in other bins")
    region = draw(
        st.sampled_from([*WINDOWS[d], *NO_WINDOWS, {"x": (0, 1)}, {"q": (0, 1)}, found.counts > 0])
    )
    inside, _ = attempt(lambda: found.count(region))
    if inside is not None:
        holds(0 <= inside <= len(found.events), "counts more events than there are")
    draws = draw(
        st.sampled_from(
            [
                np.ones(len(found.X)),
                np.ones((2, 3, len(found.X))),
                np.ones(1 + len(found.X)),
                "a",
                xr.DataArray(np.ones((2, len(found.X))), dims=("draw", "bin")),
                None,
                3.0,
            ]
        )
    )
    expected, _ = attempt(lambda: found.expected_count(draws, region))
    if expected is not None:
        finite(expected)
        holds((expected >= 0).all(), "expects less than no events")
    return outcome


@case("likelihoods")
def families(draw):
    """Construct a family with any parameters, and evaluate it where the data allow."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    make, y = FAMILIES[name]
    given = vector(draw, np.linspace(0.5, 2.0, 12))
    if draw(st.booleans()):
        thing = number(draw, [1.0, 2, np.float32(0.5), [1.0], np.ones(1), np.ones((1, 12))])
        given = given._replace(thing=thing, plain=None, kind="a number")
    lik, refused = attempt(lambda: make(given.thing))
    if refused:
        if (
            given.plain is not None
            and given.documented
            and not attempt(lambda: make(given.plain))[1]
        ):
            raise Fault(f"refuses {given.kind}: {refused}")
        return "refused"
    repr(lik)
    X = np.linspace(0.0, 1.0, 12)[:, None]

    def logp(lik):
        with pm.Model():
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=0.5))
            gp.prior("u", X[::4], n_outputs=lik.n_latent or 2)
            gp.likelihood("y", lik, X=X, y=y)
        return lik

    _, refused = attempt(lambda: logp(lik))
    if refused:
        return "refused"
    from pymc_vsgp.compile import evaluate

    several = lik.n_latent != 1
    shape = (12, lik.n_latent or 2) if several else (12,)
    mu, gamma = (
        np.linspace(-2.0, 2.0, 12 * (shape[1] if several else 1)).reshape(shape),
        np.ones(shape),
    )
    found = evaluate(lik.expected_logp(mu, gamma, y))
    finite(found, "expected_logp")
    if given.plain is not None:
        equal(found, evaluate(make(given.plain).expected_logp(mu, gamma, y)), given.kind)
    return "right"


COUNTS, SHARES = np.arange(12) % 3, np.linspace(0.1, 0.9, 12)
FAMILIES = {
    "Poisson": (vsgp.Poisson, COUNTS),
    "NegativeBinomial": (vsgp.NegativeBinomial, COUNTS),
    "NegativeBinomial exposure": (lambda a: vsgp.NegativeBinomial(2.0, a), COUNTS),
    "ZeroInflatedPoisson": (lambda a: vsgp.ZeroInflatedPoisson(0.5, a), COUNTS),
    "psi": (vsgp.ZeroInflatedPoisson, COUNTS),
    "ZeroInflatedNegativeBinomial": (lambda a: vsgp.ZeroInflatedNegativeBinomial(0.5, a), COUNTS),
    "Binomial": (vsgp.Binomial, COUNTS % 2),
    "Beta": (vsgp.Beta, SHARES),
    "Gamma": (vsgp.Gamma, SHARES),
    "Weibull": (vsgp.Weibull, SHARES),
    "LogNormal": (vsgp.LogNormal, SHARES),
    "Gumbel": (vsgp.Gumbel, SHARES),
    "Gaussian": (vsgp.Gaussian, SHARES),
    "StudentT": (lambda a: vsgp.StudentT(4.0, a), SHARES),
    "nu": (lambda a: vsgp.StudentT(a, 1.0), SHARES),
    "PoissonProcess": (vsgp.PoissonProcess, COUNTS % 2),
    "Ordinal": (vsgp.Ordinal, COUNTS),
    "censored": (lambda a: vsgp.Weibull(2.0, a), SHARES),
    "Softmax": (vsgp.Softmax, COUNTS),
    "RobustMax": (vsgp.RobustMax, COUNTS),
    "epsilon": (lambda a: vsgp.RobustMax(3, a), COUNTS),
    "Categorical": (vsgp.Categorical, COUNTS),
    "HeteroskedasticStudentT": (vsgp.HeteroskedasticStudentT, SHARES),
    "HeteroskedasticBetaBinomial": (vsgp.HeteroskedasticBetaBinomial, COUNTS % 2),
    "HeteroskedasticNegativeBinomial": (vsgp.HeteroskedasticNegativeBinomial, COUNTS),
    "HeteroskedasticZeroInflatedPoisson": (vsgp.HeteroskedasticZeroInflatedPoisson, COUNTS),
}
