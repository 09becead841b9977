"""Calls with arguments of every kind: fits, samplers, what fits again, and draws on disk."""

import pathlib
import tempfile

import jax
import numpy as np
import pymc as pm

from fuzz_results import (
    COUNTS,
    EXPOSURE,
    X1,
    counts,
    draws_of,
    fitted,
    neighbors,
    normal,
    pairs,
    total,
    waves,
)
from fuzzing import (
    WRONG_COUNTS,
    WRONG_NUMBERS,
    attempt,
    case,
    count,
    finite,
    holds,
    inputs,
    number,
    one_of,
    option,
    seed_of,
    values,
    vector,
)
from hypothesis import strategies as st

import pymc_vsgp as vsgp

FEW = [counts, normal, waves, neighbors, pairs, total]
NO_MODELS = [None, 3, "model", lambda: None, pm.Model()]


@case("fit_gaussian", "GaussianStage")
def fit_gaussian(draw):
    """A stage with finite numbers, whose draws are finite."""
    recipe = draw(st.sampled_from(FEW))
    model, stage, _ = fitted(recipe)
    kwargs = {"maxiter": count(draw, (1, 2)), "random_seed": seed_of(draw)[0]()}
    options = {
        "method": lambda: option(draw, ["natural", None, "minibatch", "advi", "fullrank_advi"]),
        "move_inducing": lambda: one_of(draw, [True, False, None], [1, "yes"]),
        "start": lambda: one_of(draw, [None, stage], [fitted(waves)[1], 3, "stage"]),
        "n_starts": lambda: one_of(draw, [1, 2], WRONG_COUNTS),
        "tol": lambda: number(draw, [1e-3, 1.0]),
        "batch_size": lambda: one_of(draw, [4, 12, None], [100, *WRONG_COUNTS]),
        "checkpoint": lambda: one_of(draw, [None], ["/no/such/folder/x", 3, ""]),
        "compile_kwargs": lambda: one_of(draw, [None, {}], [{"mode": "no such"}, 3, {"q": 1}]),
        "devices": lambda: one_of(draw, [None, jax.devices()], [3, "cpu", [], [1]]),
        "model": lambda: one_of(draw, [model], NO_MODELS),
        "q": lambda: 1,
    }
    for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=2, unique=True)):
        kwargs[name] = options[name]()
    found, refused = attempt(
        lambda: vsgp.fit_gaussian(**{"model": model, "copy": True, "progressbar": False} | kwargs)
    )
    if refused:
        return "refused"
    repr(found)
    finite(found.elbo), finite(found.elbo_history)
    for x in (*found.theta.values(), *found.mean.values(), *found.covariance.values()):
        finite(x)
    n = count(draw, (1, 3))
    tree, refused = attempt(lambda: found.to_datatree(n, random_seed=seed_of(draw)[0]()))
    if not refused:
        for x in tree["posterior"].data_vars.values():
            finite(x)
            holds(x.sizes["draw"] == n, "has another number of draws")
    return "right"


@case("sample")
def sample(draw):
    """Draws by importance weights, as many as were asked for."""
    recipe = draw(st.sampled_from(FEW))
    model, stage, _ = fitted(recipe)
    kwargs = {
        "draws": count(draw, (20, 40)),
        "chains": count(draw, (1, 2)),
        "random_seed": seed_of(draw)[0](),
        "method": option(draw, ["importance"], [None, "", "no such", 3]),
        "stage": one_of(draw, [stage], [fitted(normal)[1], 3, "stage"]),
    }
    options = {
        "tune": lambda: count(draw, (0, 100)),
        "nuts_sampler": lambda: option(draw, [None], ["no such", 3]),
        "target_accept": lambda: number(draw, [None], WRONG_NUMBERS),
        "collapse": lambda: one_of(draw, [True, False, None], ["yes", 3]),
        "fit_kwargs": lambda: one_of(draw, [None, {}], [3, {"q": 1}]),
        "store": lambda: one_of(draw, [None], [3, "/no/such/folder/x", ""]),
        "devices": lambda: one_of(draw, [None, jax.devices()], [3, "cpu", []]),
        "model": lambda: one_of(draw, [model], NO_MODELS),
        "cores": lambda: one_of(draw, [1], ["a", 0]),
        "no_such": lambda: 3,
    }
    for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=2, unique=True)):
        kwargs[name] = options[name]()
    return _sampled(model, kwargs)


def _sampled(model, kwargs):
    found, refused = attempt(lambda: vsgp.sample(**{"progressbar": False, "model": model} | kwargs))
    if refused:
        return "refused"
    post = found["posterior"].to_dataset()
    holds(dict(post.sizes)["draw"] == kwargs["draws"], "has another number of draws")
    chains = 4 if kwargs["chains"] is None else kwargs["chains"]
    holds(dict(post.sizes)["chain"] == chains, "has another number of chains")
    for x in post.data_vars.values():
        finite(x)
    return "right"


@case("sample(method='nuts')")
def nuts(draw):
    """Draws by PyMC's samplers of a model of any kind, as many as were asked for."""
    model, stage, _ = fitted(draw(st.sampled_from(FEW)))
    kwargs = {
        "draws": count(draw, (3, 5)),
        "tune": count(draw, (0, 5), (0, 5, -1, "a")),
        "chains": count(draw, (1, 2)),
        "cores": one_of(draw, [1], [2, "a", 0, None]),
        "random_seed": seed_of(draw)[0](),
        "method": "nuts",
        "stage": one_of(draw, [stage], [fitted(normal)[1], 3, None]),
        "nuts_sampler": option(draw, ["pymc", "nutpie", "numpyro", "blackjax", None]),
    }
    return _sampled(model, kwargs)


def _build(X, y, **params):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 9, 10)))
        gp.prior("u", X1[::3])
        gp.likelihood("y", vsgp.Poisson(**params), X=X, y=y)
    return model


def _fit(model):
    stage = vsgp.fit_gaussian(maxiter=1, progressbar=False, random_seed=1, model=model)
    return stage.to_datatree(5, random_seed=1)


@case("kfold")
def kfold(draw):
    """A score of each observation, which is the sum of the folds' predictive densities."""
    X = inputs(draw, values(draw, rows=(12,), columns=(1,), scales=(1.0,), hard=False))
    y = vector(draw, COUNTS)
    params = one_of(draw, [None, {"exposure": EXPOSURE}], [{"q": EXPOSURE}, {"exposure": [1.0]}, 3])
    wrong = [np.zeros(12), np.arange(3), "a", [None] * 12, 3, np.arange(24).reshape(12, 2)]
    kwargs = {
        "folds": one_of(draw, [None, np.arange(12) % 2, list("ab") * 6], wrong),
        "per_observation": params,
        "random_seed": seed_of(draw)[0](),
        "fit": one_of(draw, [_fit], [3, lambda model: None, lambda: 3]),
        "var_name": option(draw, [None, "y"]),
    }
    build = one_of(draw, [_build], [lambda X, y: None, 3, lambda X: X])
    k = count(draw, (2, 3), (1, 13, *WRONG_COUNTS))
    own = build is _build and kwargs["fit"] is _fit  # what a user's function raises is theirs
    own = own and not (isinstance(params, dict) and "q" in params)
    act = lambda: vsgp.kfold(build, X.thing, y.thing, k, progressbar=False, **kwargs)  # noqa: E731
    if not own:
        try:
            act()
        except Exception:
            return "refused"
        holds(False, "takes what builds or fits nothing")
    found, refused = attempt(act)
    if refused:
        return "refused"
    holds(X.plain is not None and y.plain is not None, f"accepts {X.kind}, {y.kind}")
    finite(found.elpd), finite(found.se), finite(found.elpd_i)
    return "right"


@case("calibrate", "compare_bins", "local_rows")
def others(draw):
    """What is refused before anything is sampled; the rest is too long for many examples."""
    which = draw(st.sampled_from(["calibrate", "compare_bins", "local_rows"]))
    if which == "calibrate":
        wrong = {
            "n_replicates": [*WRONG_COUNTS, 3],
            "draws": WRONG_COUNTS,
            "n_ranks": [300, 0, "a"],
        }
        wrong |= {
            "tune": [-1, "a", None],
            "n_inducing": [-1, "a", None, 2.5],
            "random_seed": [-1, "a"],
        }
        name = draw(st.sampled_from(sorted(wrong)))
        kwargs = {name: draw(st.sampled_from(wrong[name]))}
        kwargs = {k: v for k, v in kwargs.items() if v is not True}
        _, refused = attempt(
            lambda: vsgp.calibrate(lambda y: None, COUNTS, progressbar=False, **kwargs)
        )
        holds(refused, f"calibrates with {kwargs}")
    elif which == "compare_bins":
        pattern = vsgp.point_process(X1[:, 0], (-1.0, 1.0), bins=4)
        bins = one_of(draw, [[2]], [[], 2, [0], ["a"], None, [2.5], [None]])
        kwargs = {"draws": count(draw, (2, 5)), "random_seed": seed_of(draw)[0]()}
        kwargs["link"] = option(draw, ["log", "square"])
        kwargs["quadrature"] = one_of(draw, [(), [4]], [3, [0], ["a"], None])
        build = lambda X, y, lik: _build_of(X, y, lik)  # noqa: E731
        found, refused = attempt(
            lambda: vsgp.compare_bins(pattern, build, bins, maxiter=1, **kwargs)
        )
        if not refused:
            finite(found.to_numpy())
    else:
        n = count(draw, (1, 12))
        found, refused = attempt(lambda: vsgp.local_rows(n))
        holds(refused or found == slice(0, n), "has not all rows of one process")
    return "refused" if refused else "right"


def _build_of(X, y, likelihood):
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 9, 10)))
        gp.prior("u", X1[::3])
        gp.likelihood("y", likelihood, X=X, y=y)
    return model


@case("open_draws")
def open_draws(draw):
    """What was saved, or a reason."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        paths = [
            folder / "draws.nc",
            folder / "none",
            folder,
            folder / "x.nc",
            "",
            None,
            3,
            "\0",
            [],
        ]
        path = draw(st.sampled_from(paths))
        bytes_ = draw(st.binary(max_size=64))
        (folder / "x.nc").write_bytes(bytes_)
        tree, how = draws_of(draw, counts)
        saved = False
        if hasattr(tree, "to_netcdf") and how not in ("stacked",):
            tree.to_netcdf(folder / "draws.nc")
            saved = hasattr(tree, "children") and "posterior" in tree.children
        seed = seed_of(draw)[0]()
        found, refused = attempt(lambda: vsgp.open_draws(path, random_seed=seed))
        if refused:
            return "refused"
        holds(path == folder / "draws.nc" and saved, f"opens {path}")
        for name, x in tree["posterior"].data_vars.items():
            holds(np.array_equal(found["posterior"][name], x, equal_nan=True), "has other draws")
        found.close()
    return "right"


STEPS = [
    lambda m, **k: vsgp.steps.EllipticalSlice(m, **k),
    lambda m, **k: vsgp.steps.Interweaving(m, **k),
    lambda m, **k: vsgp.steps.PseudoMarginal(m, **k),
    lambda m, **k: vsgp.steps.ProbitAugmentation(m, **k),
]


@case("steps")
def steps(draw):
    """A step from a point to another, or a reason."""
    model, _, _ = fitted(draw(st.sampled_from([counts, normal])))
    which = draw(st.integers(0, 3))
    u, ls = model["u"], model["ls"]
    right = [[u], u] if which in (0, 3) else [[ls], ls]
    wrong = [[], None, "u", 3, [u, u], [ls, u], ["u"], [model["y"]], pm.Normal.dist()]
    chosen = one_of(draw, right, wrong)
    kwargs = {}
    if which != 2:
        kwargs["n_updates"] = count(draw, (1, 2))
    if which == 1:
        kwargs["schemes"] = one_of(
            draw, [("surrogate",), ("whitened",)], [(), "a", 3, ("a",), None]
        )
    if which == 2:
        kwargs["approximation"] = option(draw, ["laplace"])
        kwargs["n_importance"] = count(draw, (2, 16))
    if which in (1, 2):
        kwargs["target_accept"] = number(draw, [0.25, 0.5])
        kwargs["latents"] = one_of(draw, [None, [u]], [[], 3, [ls], "u"])
    found, refused = attempt(lambda: STEPS[which](chosen, model=model, **kwargs))
    if refused:
        return "refused"
    with model:
        found.set_rng(np.random.default_rng(1)) if hasattr(found, "set_rng") else None
    return "right"
