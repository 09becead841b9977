"""Calls with inputs of every kind: what is done with draws of a posterior."""

import functools

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from fuzzing import (
    WRONG_NUMBERS,
    attempt,
    case,
    count,
    equal,
    finite,
    holds,
    inputs,
    number,
    one_of,
    option,
    plainly,
    seed_of,
    spelled,
    values,
    vector,
)
from hypothesis import strategies as st

import pymc_vsgp as vsgp

N, DRAWS = 12, 40
X1 = np.linspace(-1.0, 1.0, N)[:, None]
X2 = np.random.default_rng(0).uniform(-1.0, 1.0, size=(N, 2))
X4 = np.stack(np.meshgrid(X1[::4, 0], X1[::3, 0], indexing="ij"), axis=-1).reshape(-1, 2)[:N]
COUNTS = np.arange(N) % 3
EXPOSURE = np.linspace(0.5, 2.0, N)


def _gp(d=1):
    return vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(d, ls=pm.Gamma("ls", 9, 10)))


def counts():
    gp = _gp(2)
    gp.prior("u", pd.DataFrame(X2[::3], columns=["a", "b"]))
    gp.likelihood("y", vsgp.Poisson(), pd.DataFrame(X2, columns=["a", "b"]), COUNTS)


def exposed():
    gp = _gp()
    gp.prior("u", X1[::3])
    gp.likelihood("y", vsgp.Poisson(exposure=EXPOSURE), X1, COUNTS)


def normal():
    gp = _gp()
    gp.prior("u", X1[::3])
    gp.likelihood("y", vsgp.Gaussian(0.4), X1, np.sin(3.0 * X1[:, 0]))


def classes():
    gp = _gp()
    gp.prior("u", X1[::3], n_outputs=3)
    gp.likelihood("y", vsgp.Softmax(3), X1, np.array(list("abc"))[COUNTS])


def noise():
    f, g = _gp(), vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=1.0))
    f.prior("u", X1[::3])
    g.prior("v", X1[::4])
    vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [f, g], X1, np.sin(3.0 * X1[:, 0]))


def outputs():
    gp = _gp()
    gp.prior("u", X1[::3], n_outputs=2)
    y = np.sin(3.0 * X1) * [1.0, 2.0, 3.0]
    y[3, 1] = np.nan
    f = vsgp.Coregionalized(np.arange(1.0, 7.0).reshape(3, 2), gp)
    f.likelihood("y", vsgp.Gaussian(0.4), X1, y)


def groups():
    pm.modelcontext(None).add_coord("group", ["p", "q"])
    gp = _gp()
    gp.prior("u", X1[::3], by="group")
    gp.likelihood("y", vsgp.Poisson(), np.c_[X1, COUNTS % 2], COUNTS)


def waves():
    """So many coefficients that the stage of `benchmarks/fuzz.py` has them correlated."""
    gp = _gp()
    gp.prior("u", inducing=vsgp.inducing.Fourier(6.0, 5))
    gp.likelihood("y", vsgp.Poisson(), X1, COUNTS)


def neighbors():
    gp = _gp()
    gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(X1[::2], 3))
    gp.likelihood("y", vsgp.Poisson(), X1, COUNTS)


def pairs():
    """At all pairs of sites and times."""
    space, time = (
        pm.gp.cov.Matern52(2, ls=0.7, active_dims=[0]),
        pm.gp.cov.Matern32(2, ls=pm.Gamma("ls", 9, 10), active_dims=[1]),
    )
    gp = vsgp.VariationalSparse(cov_func=space * time)
    gp.prior("u", inducing=vsgp.inducing.Kronecker(X1[::4], X1[::3]))
    gp.likelihood("y", vsgp.Poisson(), X4, COUNTS)


def total():
    """A sum of two processes."""
    f, g = _gp(), vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern32(1, ls=0.2))
    f.prior("u", X1[::3])
    g.prior("v", inducing=vsgp.inducing.Fourier(6.0, 4))
    vsgp.Coregionalized([1.0, 1.0], [f, g]).likelihood("y", vsgp.Poisson(), X1, COUNTS)


MODELS = [counts, exposed, normal, classes, noise, outputs, groups, waves, neighbors, pairs, total]


@functools.cache
def fitted(recipe):
    """A model, its Gaussian stage, and draws of that."""
    with pm.Model() as model:
        recipe()
    stage = vsgp.fit_gaussian(maxiter=3, progressbar=False, random_seed=1, model=model)
    return model, stage, stage.to_datatree(DRAWS, random_seed=1)


NO_DRAWS = ["another", "nan", "no draws"]


def draws_of(draw, recipe):
    """Draws of a model: as they are, of two chains, few, or none."""
    _, _, idata = fitted(recipe)
    how = one_of(
        draw,
        ["", "", "two chains", "the posterior alone", "its group", "float32"],
        [
            "one draw",
            "None",
            "a word",
            "stacked",
            "no posterior",
            "another",
            "nan",
            "no draws",
            "{}",
        ],
    )
    post = idata["posterior"].to_dataset()
    if how == "two chains":
        half = DRAWS // 2
        parts = [post.isel(draw=slice(i, i + half)) for i in (0, half)]
        parts = [p.assign_coords(draw=range(half), chain=[i]) for i, p in enumerate(parts)]
        post = xr.concat(parts, "chain")
    elif how == "float32":
        post = post.astype("float32")
    elif how in ("one draw", "no draws"):
        post = post.isel(draw=slice(0, int(how == "one draw")))
    elif how == "stacked":
        post = post.stack(sample=("chain", "draw"))
    elif how == "another":
        post = post.drop_vars("u", errors="ignore")
    elif how == "nan":
        post = post.assign(ls=post["ls"] * np.nan)
    if how in ("None", "a word", "{}"):
        return {"None": None, "a word": "idata", "{}": {}}[how], how
    if how == "the posterior alone":
        return post, how
    if how == "its group":
        return idata["posterior"], "the posterior alone"
    tree = idata.copy()
    if how == "no posterior":
        del tree["posterior"]
    else:
        tree["posterior"] = xr.DataTree(post)
    return tree, how


RIGHT = [vsgp.Poisson()]
OTHER = [
    vsgp.Poisson(exposure=np.ones(3)),
    vsgp.Softmax(3),
    vsgp.Poisson,
    "Poisson",
    3,
]
WHAT = ["f", "mean", "y", "moments", "summary", "quantiles", "density"]


def columns_of(recipe):
    """Columns of X."""
    return 2 if recipe in (counts, groups, pairs) else 1


def drawn(draw):
    """Draw one of the models, and draws of it: the recipe, the model, columns of X, the draws."""
    recipe = draw(st.sampled_from(MODELS))
    model, _, _ = fitted(recipe)
    return recipe, model, columns_of(recipe), *draws_of(draw, recipe)


def _checked(array, what, lowest=None):
    finite(array, what)
    if lowest is not None:
        holds(float(array.min()) >= lowest - 1e-12, f"{what} is below {lowest}")


@case("predict")
def predict(draw):
    """As of the plain inputs; equal rows have equal moments; draws and inputs have their dims."""
    recipe, model, d, idata, how = drawn(draw)
    Xnew = values(draw, columns=(d,) * 9 + (3,), scales=(1e9, 1e99, 1e-170))
    if recipe is groups and draw(st.integers(0, 9)):
        Xnew[:, 1:] = np.arange(len(Xnew))[:, None] % 2
    given = inputs(draw, Xnew)
    if given.kind == "None":  # the inputs of the data
        given = spelled(Xnew, "lists")
    what = option(draw, WHAT)
    kwargs = {"what": what}
    if what == "density" or draw(st.integers(0, 19)) == 0:
        at = [0.0, 1.0] if recipe not in (classes,) else ["a", "b"]
        kwargs["at"] = one_of(
            draw, [at, np.array(at)], [None, 0, [], [np.nan], "a", [[1.0]], [-1.0], [0.5]]
        )
    if what == "quantiles" or draw(st.integers(0, 19)) == 0:
        kwargs["quantiles"] = one_of(draw, [(0.05, 0.5), 0.5, [0, 1]], [*WRONG_NUMBERS, [0.5, 2.0]])
        kwargs["of"] = option(draw, ["f", "mean", "y"])
    if draw(st.integers(0, 4)) == 0:
        kwargs["num_samples"] = count(draw, (1, 5, 40, 1000, None))
    if draw(st.integers(0, 4)) == 0:
        kwargs["chunk_size"] = count(draw, (1, 5, 40, None))
    if draw(st.integers(0, 9)) == 0:
        kwargs["joint"] = draw(st.booleans())
    if draw(st.integers(0, 9)) == 0:
        kwargs["var_name"] = option(draw, ["y"])
    if draw(st.integers(0, 9)) == 0 or recipe is exposed and draw(st.booleans()):
        kwargs["likelihood"] = one_of(draw, RIGHT, OTHER)
    if draw(st.integers(0, 9)) == 0:
        kwargs["extend_inferencedata"] = True
    seed, fixed = seed_of(draw)
    named = recipe is counts

    def act(X, **more):
        into = idata.copy() if isinstance(idata, xr.DataTree) else idata
        return vsgp.predict(
            into, X, random_seed=seed(), progressbar=False, model=model, **kwargs | more
        )

    def same(a, b, kind):
        if named and kind.startswith("a data frame with unicode") or not fixed:
            return
        if isinstance(a, xr.DataTree):
            a, b = (next(iter(t["predictions"].data_vars.values())) for t in (a, b))
        for name in a.data_vars if isinstance(a, xr.Dataset) else [None]:
            equal(*(x if name is None else x[name] for x in (a, b)), kind)

    documented = given.documented and not named and recipe is not groups
    outcome, found = plainly(given._replace(documented=documented), act, same)
    if outcome == "refused":
        return outcome
    if isinstance(found, xr.DataTree):
        found = next(iter(found["predictions"].data_vars.values()))
    arrays = dict(found.data_vars) if isinstance(found, xr.Dataset) else {what: found}
    for name, array in arrays.items():
        holds(how not in NO_DRAWS, f"predicts from draws: {how}")
        positive = name in ("variance", "sd", "density")
        lowest = 0.0 if positive or (recipe is classes and what == "mean") else None
        infinite = kwargs.get("likelihood") is not None or np.abs(given.plain).max() > 1e6
        if not (infinite and name in ("mean", "y_mean", "y", "quantiles")):
            _checked(array, name, lowest)
        holds(len(given.plain) in array.shape, "has no dimension of the inputs")
        if recipe is classes and what == "mean":
            equal(array.sum(array.dims[-1]), np.ones(array.shape[:-1]), "probabilities")
    if what in ("moments", "summary") and "joint" not in kwargs and recipe is not exposed:
        twice, _ = attempt(lambda: act(np.repeat(given.plain, 2, axis=0)))
        for name in arrays:
            order = [n for n in arrays[name].dims if arrays[name].sizes[n] == len(given.plain)]
            axis = arrays[name].dims.index(order[-1])
            if len(given.plain) not in (2, 3, DRAWS) and len(given.plain) > 1:
                equal(twice[name], np.repeat(arrays[name], 2, axis=axis), "repeated rows")
    return outcome


@case("log_predictive_density")
def log_predictive_density(draw):
    """A finite number for each observation."""
    recipe, model, d, idata, how = drawn(draw)
    Xnew = values(draw, rows=(N,), columns=(d,), scales=(1.0,), hard=False)
    if recipe is groups:
        Xnew[:, 1:] = np.arange(len(Xnew))[:, None] % 2
    given_y = vector(draw, COUNTS if recipe is not outputs else np.ones(N))
    given = inputs(draw, Xnew)
    if given.kind == "None":  # the inputs of the data
        given = spelled(Xnew, "lists")
    kwargs = {}
    if recipe is exposed:
        kwargs["likelihood"] = one_of(draw, RIGHT, OTHER)
    if draw(st.integers(0, 4)) == 0:
        kwargs["num_samples"] = count(draw, (1, 5, 40, 1000, None))
    if draw(st.integers(0, 4)) == 0:
        kwargs["chunk_size"] = count(draw, (1, 5, 40, None))
    y = given_y.thing
    if recipe is classes and given_y.plain is not None and draw(st.booleans()):
        y = np.array(list("abc"))[COUNTS]
    if recipe is outputs and given_y.plain is not None:
        y = np.stack([np.asarray(y, float)] * 3, axis=1)

    def act(X):
        return vsgp.log_predictive_density(idata, X, y, progressbar=False, model=model, **kwargs)

    documented = given.documented and recipe not in (counts, groups)
    outcome, found = plainly(given._replace(documented=documented), act)
    if outcome == "refused":
        return outcome
    holds(given_y.plain is not None, f"accepts y as {given_y.kind}")
    holds(how not in NO_DRAWS, f"scores draws: {how}")
    finite(found)
    return outcome


@case("loo", "compute_log_likelihood", "compute_pointwise", "check_inducing", "exact_weights")
def scores(draw):
    """Finite scores of draws of any form, or a reason."""
    recipe = draw(st.sampled_from(MODELS))
    model, _, _ = fitted(recipe)
    idata, how = draws_of(draw, recipe)
    var_name = option(draw, [None, "y"])
    which = draw(st.sampled_from(["loo", "likelihood", "pointwise", "check", "weights"]))
    kwargs = {"var_name": var_name, "progressbar": False, "model": model}
    if which == "loo":
        kwargs |= {"reff": number(draw, [None, 1.0, 0.5]), "pointwise": draw(st.booleans())}
        found, refused = attempt(lambda: vsgp.loo(idata, **kwargs))
        check = lambda: finite([found.elpd, found.se, found.p])  # noqa: E731
    elif which in ("likelihood", "pointwise"):
        f = {"likelihood": vsgp.compute_log_likelihood, "pointwise": vsgp.compute_pointwise}[which]
        found, refused = attempt(lambda: f(idata, extend_inferencedata=False, **kwargs))
        check = lambda: [finite(x) for x in found.data_vars.values()]  # noqa: E731
    else:
        kwargs |= {"num_samples": count(draw, (5, 40, 1000)), "random_seed": seed_of(draw)[0]()}
        if which == "check":
            kwargs["nested"] = draw(st.booleans())
            found, refused = attempt(lambda: vsgp.check_inducing(idata, **kwargs))

            def check():
                repr(found)
                finite(found.missing), finite(found.unexplained), finite(found.nats)
                found.to_dataset()
        else:
            found, refused = attempt(lambda: vsgp.exact_weights(idata, **kwargs))

            def check():
                repr(found)
                finite(found.log_weights), finite(found.kl)

    if refused:
        return "refused"
    holds(how not in NO_DRAWS, f"scores draws: {how}")
    check()
    return "right"


@case("plot_function", "plot_inducing", "plot_elbo", "plot_calibration", "plot_intensity")
def plots(draw):
    """A figure, or a reason."""
    import matplotlib.pyplot as plt

    recipe = draw(st.sampled_from(MODELS))
    model, stage, _ = fitted(recipe)
    which = draw(
        st.sampled_from(["function"] * 4 + ["inducing", "elbo", "calibration", "intensity"])
    )
    ax = one_of(draw, [None], [3, "ax", [], None])
    if which == "function":
        idata, _ = draws_of(draw, recipe)
        d = columns_of(recipe)
        kwargs = {"num_samples": count(draw, (5, 40, 1000)), "random_seed": seed_of(draw)[0]()}
        kwargs["what"] = option(draw, [None, "mean", "f", "y"])
        kwargs["n_points"] = count(draw, (None, 5, 20))
        kwargs["n_lines"] = count(draw, (0, 3))
        kwargs["margin"] = number(draw, [0.05, 0.0], [-1.0, np.nan, "a", None, np.inf])
        wrong = [0, 1, 2, -1, np.nan, "a", [], True, [0.5, 2.0], 95]
        kwargs["ci_prob"] = one_of(draw, [None, 0.9, [0.5, 0.9]], wrong)
        Xnew = None
        if draw(st.integers(0, 3)) == 0:
            Xnew = inputs(draw, values(draw, columns=(d,), scales=(1.0,))).thing
        _, refused = attempt(lambda: vsgp.plot_function(idata, Xnew, ax=ax, model=model, **kwargs))
    elif which == "inducing":
        thing = one_of(draw, [stage, draws_of(draw, recipe)[0]], [None, 3, "check"])
        n = count(draw, (5, 40))
        _, refused = attempt(lambda: vsgp.plot_inducing(thing, ax=ax, num_samples=n, model=model))
    elif which == "elbo":
        thing = one_of(draw, [stage], [None, 3, model])
        _, refused = attempt(lambda: vsgp.plot_elbo(thing, ax=ax))
    elif which == "calibration":
        result = vsgp.Calibration({"a": np.arange(60) % 10, "b": np.arange(60) % 5}, 9)
        thing = one_of(draw, [result], [None, 3, model])
        names = one_of(draw, [None, ["a"]], [[], "a", ["q"], 3])
        kind = option(draw, ["ecdf", "hist"])
        _, refused = attempt(
            lambda: vsgp.plot_calibration(thing, kind=kind, var_names=names, ax=ax)
        )
    else:
        pattern = vsgp.point_process(X1[:, 0], (-1.0, 1.0), bins=4)
        thing = one_of(
            draw, [np.ones((1, 9, 4)), np.ones((9, 4))], [np.ones(3), None, "a", np.ones(4)]
        )
        what, ci = option(draw, ["mean", "median", "sd"]), number(draw, [None, 0.9])
        _, refused = attempt(
            lambda: vsgp.plot_intensity(pattern, thing, what=what, ci_prob=ci, ax=ax)
        )
    plt.close("all")
    return "refused" if refused else "right"
