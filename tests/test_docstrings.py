"""The examples of docstrings run, and messages and docstrings keep to the words of the field."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re
import textwrap
import types

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest

import pymc_vsgp as vsgp

X = np.linspace(0.0, 9.0, 12)[:, None]
Y = np.random.default_rng(1).poisson(2.0, size=12)
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:    .*\n?|\n)+)", re.MULTILINE)


def members():
    """Every public object with its own docstring, by its name."""
    found = {}
    for name in vsgp.__all__:
        o = getattr(vsgp, name)
        inside = {k: getattr(o, k) for k in getattr(o, "__all__", ())}
        found |= {f"{name}.{k}": v for k, v in inside.items()} or {name: o}
    for name, o in list(found.items()):
        if inspect.isclass(o):
            own = {k: getattr(v, "__func__", v) for k, v in vars(o).items() if k[0] != "_"}
            found |= {f"{name}.{k}": v for k, v in own.items() if inspect.isfunction(v)}
    return found


DOCSTRINGS = {n: inspect.getdoc(o) or "" for n, o in members().items() if not isinstance(o, str)}
EXAMPLES = {
    f"{name}-{i}": textwrap.dedent(code)
    for name, text in DOCSTRINGS.items()
    for i, code in enumerate(BLOCK.findall(text))
}


def build(X, y):
    with pm.Model() as model:
        lengthscale = pm.Gamma("lengthscale", 2, 1)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale))
        gp.prior("u", Xu=X[::3])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=y)
    return model


@pytest.fixture(scope="module")
def fitted():
    model = build(X, Y)
    stage = vsgp.fit_gaussian(model=model, progressbar=False)
    return model, stage, stage.to_datatree(60, random_seed=1)


@pytest.fixture
def names(fitted, monkeypatch, tmp_path):
    """What the examples take for granted, and stand-ins for what takes minutes."""
    model, stage, idata = fitted
    monkeypatch.chdir(tmp_path)
    compare = vsgp.compare_bins

    def sample(*, stage=None, **kwargs):
        stage = stage or vsgp.fit_gaussian(progressbar=False)
        return stage.to_datatree(10, random_seed=1)

    def compare_bins(pattern, build, bins, quadrature):
        return compare(pattern, build, [b // 2 for b in bins[:1]], draws=5)

    monkeypatch.setattr(vsgp, "sample", sample)
    monkeypatch.setattr(vsgp, "compare_bins", compare_bins)
    ranks = {"lengthscale": np.arange(100) % 50}
    monkeypatch.setattr(vsgp, "calibrate", lambda build, y: vsgp.Calibration(ranks, 49))
    copy = idata.copy(deep=True)
    space = {"az": az, "np": np, "pm": pm, "vsgp": vsgp, "model": model, "stage": stage}
    space |= {"idata": copy, "a": copy, "b": copy, "model_a": model, "model_b": model}
    space |= {"X": X, "Xnew": X[:3], "Xu": X[::4], "y": Y, "counts": Y, "build": build}
    space["pattern"] = vsgp.point_process(X[:, 0], (0.0, 9.5), bins=12)
    with pm.Model():
        space["cov"] = pm.gp.cov.Matern52(1, ls=2.0)
        space["gp"] = vsgp.VariationalSparse(cov_func=space["cov"])
    space |= {"lengthscale": np.ones(2), "variance": 1.0}
    yield space
    plt.close("all")


def prepare(name, space):
    """What one example alone takes for granted."""
    planes = np.stack([X[:, 0], X[::-1, 0] ** 1.5], axis=1)
    if name.startswith("open_draws"):
        pytest.importorskip("zarr")
        space["idata"].to_zarr("draws.zarr", consolidated=False)
    if name.startswith("Coregionalized"):
        space |= {"X": planes, "Xu": planes[::4], "Y": np.ones((12, 3))}
    if name.startswith("inducing.Fourier"):
        space["X"] = planes
    if name.startswith("inducing.Kronecker"):
        space |= {"sites": planes[::4], "times": np.arange(4.0)[:, None]}
        space["X"] = np.column_stack(
            [np.repeat(planes[::4], 4, axis=0), np.tile(np.arange(4.0), 3)]
        )
    if name.startswith("suggest_inducing"):
        space["model"] = pm.Model()
    if name.startswith("VariationalSparse"):  # has 30 inducing points
        space |= {"X": np.linspace(0.0, 9.0, 32)[:, None], "counts": np.arange(32) % 3}
    if name.startswith("PointProcess.quadrature"):
        space["gp"].prior("u", Xu=X[::4])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.filterwarnings("ignore:The period")
def test_examples_run(name, names):
    with pm.Model():
        prepare(name, names)
        exec(compile(EXAMPLES[name], name, "exec"), names)


# What was settled before the first release: the word of the field, and not ours.
RETIRED = {
    r"waves?": "Fourier features, or frequencies",
    r"the (\w+ )?bound (rises|rose|gains|never)|bound of the Gaussian stage": "ELBO",
    r"plot_bound|stage\.bound|stage\.history": "plot_elbo, stage.elbo, stage.elbo_history",
    r"effective draws?": "effective samples",
    r"laws?": "distributions",
    r"peers?": "baselines, or packages",
    r"pictures?|make_pictures": "figures",
    r"trees? of draws": "DataTree, or idata",
    r"kinds? of (inducing|features)": "types of inducing variables",
    r"n_draws|max_rounds|row_params": "num_samples, maxiter, per_observation",
    r"random_seed=0,?$": "random_seed=None",
    r"sample\(stage[,)]": "sample(stage=stage)",
    r"level = pm": "intercept",
    r"(neighbour|colour|favour|behaviour|tumour|licence|centre|(kilo)?metre)\w*|grey": "American",
    r"(label|model|cancel)l(ed|ing)|analys(ed?|ing)": "American",
    r"(optim|standard|normal|maxim|minim|summar|recogn|general|marginal|parametr|random)"
    r"is(ed?|e[rs]|ing|ations?)": "American",
}
ROOT = pathlib.Path(__file__).resolve().parents[1]
TITLES = ("Kept are ", "Gone are ", "Not so ")  # openings of inverted sentences


def messages():
    """Every string of the package that is raised or warned with, by its place."""
    for path in sorted((ROOT / "pymc_vsgp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            warns = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn")
            if warns or isinstance(node, ast.Raise):
                strings = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                text = " ".join(s for s in strings if isinstance(s, str))
                yield f"{path.name}:{node.lineno}", text


def texts():
    """Everything that a user reads."""
    yield from DOCSTRINGS.items()
    yield from messages()
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.py")]
    for page in pages:
        yield page.name, page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_retired_words_stay_out():
    found = []
    for where, text in texts():
        for word, instead in RETIRED.items():
            for match in re.finditer(rf"(?<![\w.])({word})(?!\w)", text, re.M | re.I):
                found.append(f"{where}: {match.group()!r}. Write {instead}.")
        found += [f"{where}: {t!r} inverts a sentence." for t in TITLES if t in text]
    assert not found, "\n".join(found)


def test_retired_words_are_found():
    text = "The waves of this picture are drawn in grey, from two standardised laws."
    assert sum(bool(re.search(rf"\b({w})\b", text)) for w in RETIRED) == 5


def public_methods():
    """Methods and properties of the classes of the package, by their names."""
    for found in pkgutil.walk_packages(vsgp.__path__, "pymc_vsgp."):
        if ".backends" in found.name:
            continue
        module = importlib.import_module(found.name)
        for o in vars(module).values():
            if inspect.isclass(o) and o.__module__ == found.name and o.__name__[0] != "_":
                for name, member in vars(o).items():
                    if name[0] != "_" and isinstance(
                        getattr(member, "__func__", member), types.FunctionType | property
                    ):
                        yield f"{found.name}.{o.__name__}.{name}", getattr(o, name)


def test_methods_have_a_docstring_or_inherit_one():
    found = dict(public_methods())
    assert len(found) > 500
    assert [name for name, method in found.items() if not inspect.getdoc(method)] == []


def test_seeds_are_none_unless_given():
    for name, o in members().items():
        if callable(o) and not isinstance(o, str):
            parameters = inspect.signature(o).parameters
            if "random_seed" in parameters:
                assert parameters["random_seed"].default is None, name
            # PyMC's name for the generator of a step method is rng.
            ours = set(parameters) - ({"rng"} if name.startswith("steps.") else set())
            assert not {"n_draws", "seed", "rng", "names", "max_rounds"} & ours, name
