"""The experiments of `benchmarks/reproduction` run, and their page shows what they wrote."""

import importlib
import json
import pathlib
import re
import sys
import types

import numpy as np
import pytest
import scipy.stats

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER, RESULTS = ROOT / "benchmarks" / "reproduction", ROOT / "docs" / "reproduction"
PAGE = ROOT / "docs" / "reproduction.md"
WITH_DATA = ("pines", "image", "raetsch", "mnist", "dense")  # of data that are not shipped


@pytest.fixture
def scripts(monkeypatch):
    """Import an experiment by name, as it imports its neighbours when it is run."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER.parent) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


# --- the arithmetic that is written for the experiments ------------------------------------------


def test_splits_are_those_of_the_old_generator(scripts):
    """The first numbers that numpy's documentation of the legacy generator freezes for ever."""
    order = scripts("common").original_permutation(10, 0)
    np.testing.assert_array_equal(order, [2, 8, 4, 9, 1, 6, 7, 3, 0, 5])


def joint(x, z, theta, jitter):
    """Prior covariance of f at x and of u, written with loops."""
    at, (sd, lengthscale, _) = np.concatenate([x, z]), theta
    K = np.array([[sd**2 * np.exp(-((a - b) ** 2) / (2 * lengthscale**2)) for b in at] for a in at])
    return K + np.diag([*np.zeros(len(x)), *np.full(len(z), jitter * sd**2)])


def divergence(m0, S0, m1, S1):
    """KL of two normals."""
    solved = np.linalg.solve(S1, S0)
    square = (m1 - m0) @ np.linalg.solve(S1, m1 - m0)
    return 0.5 * (np.trace(solved) - len(m0) + square - np.linalg.slogdet(solved)[1])


def test_divergences_are_those_of_the_joint_normals(scripts, rng, monkeypatch):
    """Both ways, from the joint distribution of f and u, which the script never forms."""
    snelson = scripts("snelson")
    # Inputs far apart, so that dense covariances are regular; jitter that can't be overlooked.
    monkeypatch.setattr(snelson, "JITTER", 1e-10)
    x, z, theta = np.array([0.0, 1.0, 2.2, 3.1]), np.array([0.4, 2.7]), (1.3, 0.7, 0.5)
    y = rng.normal(size=4)
    K, noise = joint(x, z, theta, 1e-10), theta[2]
    gain = K[:, :4] @ np.linalg.inv(K[:4, :4] + noise**2 * np.eye(4))
    exact = gain @ y, K - gain @ K[:4]
    A = K[:4, 4:] @ np.linalg.inv(K[4:, 4:])
    P = np.linalg.inv(np.linalg.inv(K[4:, 4:]) + A.T @ A / noise**2)
    m = P @ A.T @ y / noise**2
    cross = A @ P
    f = K[:4, :4] - A @ K[4:, :4] + cross @ A.T
    sparse = np.concatenate([A @ m, m]), np.block([[f, cross], [cross.T, P]])
    evidence = snelson.log_evidence(np.log(theta), x, y)
    bound = snelson.titsias_bound(z, x, y, *theta)
    assert evidence - bound == pytest.approx(divergence(*sparse, *exact), rel=1e-6)
    reverse = snelson.reverse_divergence(m, P, z, x, y, *theta, evidence)
    assert reverse == pytest.approx(divergence(*exact, *sparse), rel=1e-6)


def stage_like(Z, mean, S, **theta):
    """What the closed forms read of a Gaussian stage."""
    return types.SimpleNamespace(
        Xu={"u_Xu": Z}, mean={"u": mean}, covariance={"u": S}, theta=theta, model=None
    )


def stage_pieces(rng, n_functions):
    """Inducing inputs, moments of inducing values, and new inputs."""
    Z, X = rng.normal(size=(3, 2)), rng.normal(size=(5, 2))
    root = rng.normal(size=(n_functions, 3, 3))
    return Z, X, rng.normal(size=(n_functions, 3)), root @ root.transpose(0, 2, 1)


def moments_with_loops(Z, X, mean, S, lengthscale, variance, white, jitter):
    """Mean and variance of f at each input, one at a time, by conditioning on u."""

    def k(a, b):
        return variance * np.exp(-0.5 * sum(((a - b) / lengthscale) ** 2))

    Kuu = np.array([[k(a, b) for b in Z] for a in Z]) + (jitter + white**2) * np.eye(len(Z))
    out = []
    for x in X:
        weights = np.array([k(x, z) for z in Z]) @ np.linalg.inv(Kuu)
        prior = k(x, x) + white**2 - weights @ Kuu @ weights
        out.append((weights @ mean, prior + weights @ S @ weights))
    return np.array(out).T


@pytest.mark.parametrize("lengthscale", [0.8, np.array([0.5, 1.7])], ids=["isotropic", "ARD"])
def test_probit_scores_are_those_of_the_marginals(lengthscale, scripts, rng):
    Z, X, mean, S = stage_pieces(rng, 1)
    y = np.array([0, 1, 1, 0, 1])
    m, v = moments_with_loops(Z, X, mean[0], S[0], lengthscale, 1.7, 0.0, 1.7e-6)
    # P(f + noise > 0) with standard normal noise is what a probit link means.
    right = scipy.stats.norm.cdf(np.where(y == 1, m, -m) / np.sqrt(v + 1.0))
    scores = scripts("common").probit_scores(stage_like(Z, mean, S), lengthscale, 1.7, X, y)
    assert scores["log_density"] == pytest.approx(np.log(right).mean(), rel=1e-9)
    assert scores["error"] == (right < 0.5).mean()


def test_mnist_scores_are_those_of_the_marginals(scripts, rng, monkeypatch):
    mnist = scripts("mnist")
    monkeypatch.setattr(mnist, "N_CLASSES", 2)
    Z, X, mean, S = stage_pieces(rng, 2)
    y = np.array([0, 1, 1, 0, 1])
    pairs = [moments_with_loops(Z, X, mean[k], S[k], 0.8, 1.0, 0.4, 0.0) for k in range(2)]
    (m0, v0), (m1, v1) = pairs
    first = scipy.stats.norm.cdf((m0 - m1) / np.sqrt(v0 + v1))  # P(f_0 > f_1)
    largest = np.where(y == 0, first, 1.0 - first)
    stage = stage_like(Z, mean, S, lengthscale=0.8, white=0.4)
    scores = mnist.closed_form(stage, X, y)
    # With two classes the other one has the probability epsilon.
    expected = np.log(1e-3 + (1.0 - 2e-3) * largest).mean()
    assert scores["log_density"] == pytest.approx(expected, abs=1e-7)
    assert scores["accuracy"] == (largest > 0.5).mean()


# --- the scripts ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects")
@pytest.mark.parametrize("name", [*WITH_DATA, "coal", "snelson", "three_classes"])
def test_smoke_run_writes_finite_numbers(name, scripts, tmp_path, request, monkeypatch):
    if name in WITH_DATA:
        monkeypatch.setenv("PYMC_VSGP_DATA", str(request.getfixturevalue("shared_data")))
    module = scripts(name)
    module.main(["--smoke", "--out", str(tmp_path)])
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert record["smoke"] is True
    assert {"settings", "results", "versions", "machine"} <= set(record)
    assert all(np.isfinite(x) for x in numbers(record["results"]))


def numbers(tree):
    """Every number in a result file."""
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from numbers(part)
    elif isinstance(tree, int | float):
        yield tree


# --- what is committed ---------------------------------------------------------------------------

recorded = sorted(RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", recorded, ids=lambda p: p.stem)
def test_committed_results_are_of_a_full_run(path):
    record = json.loads(path.read_text())
    assert record["smoke"] is False
    assert record["command"].startswith(f"python benchmarks/reproduction/{path.stem}.py")
    assert all(np.isfinite(x) for x in numbers(record["results"]))


def test_committed_pictures_are_small_and_shown():
    page = PAGE.read_text(encoding="utf-8")
    pictures = sorted(RESULTS.glob("*.png"))
    assert {f"reproduction/{p.name}" for p in pictures} == set(
        re.findall(r"\]\((.*?\.png)\)", page)
    )
    assert all(p.stat().st_size < 100_000 for p in pictures)


def test_page_is_the_one_that_is_made(scripts):
    """Nobody has written into it by hand."""
    assert scripts("make_page").page() == PAGE.read_text(encoding="utf-8")


def table_row(first, n_cells):
    """The first row of the page's tables that begins like this."""
    lines = [x for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith("| ")]
    rows = [[cell.strip() for cell in x.strip("|").split("|")] for x in lines]
    return next(row for row in rows if row[0] == first and len(row) == n_cells)


def test_page_shows_what_the_splits_say():
    """From the single splits, and not from what the scripts say of all of them."""
    splits = json.loads((RESULTS / "coal.json").read_text())["results"]["splits"]
    for label, key in (("Gaussian", "gaussian"), ("free-form", "free_form")):
        values = [split[key] for split in splits]
        shown = [f"{np.mean(values):.3f}", f"{np.std(values):.3f}"]
        assert table_row(label, 4)[2:] == shown


def test_page_shows_what_the_bounds_say():
    """How far a bound is below the evidence is the divergence that it leaves."""
    results = json.loads((RESULTS / "snelson.json").read_text())["results"]
    for row in results["rows"]:
        shown = float(table_row(str(row["M"]), 4)[1])
        missing = results["log_evidence"] - row["bound_in_numpy"]
        assert shown == pytest.approx(missing, rel=6e-3, abs=1e-6)


# --- all of them, and again -----------------------------------------------------------------------


def test_every_script_is_run_and_every_result_verified(scripts):
    """Or it is said why not."""
    verify, run_all = scripts("verify"), scripts("run_all")
    results = {p.stem for f in (FOLDER.parent / "results", RESULTS) for p in f.glob("*.json")}
    results |= {p.stem for p in (FOLDER.parent / "results").glob("*.md")} - {"runs"}
    assert results - {"runs"} <= set(verify.CHECKS) | set(verify.LEFT)
    own = {p for p in FOLDER.parent.rglob("*.py") if ".envs" not in p.parts}  # of peers
    begun = {p for p in own if "__main__" in p.read_text()}
    names = {p.relative_to(FOLDER.parent).with_suffix("").as_posix() for p in begun}
    of_others = {"sampling_cases", "limits", "waiting_peers"}
    left = {n for n in names if "worker" in n} | of_others
    assert names - left - {"run_all", "verify", "check", "gpu"} == set(run_all.SCRIPTS)
    assert run_all.CONTINUE <= set(run_all.SCRIPTS)


def test_a_number_that_is_off_is_told(scripts, capsys):
    compare = scripts("verify").compare
    assert not compare("same", 1.0, 1.0, 0) and not compare("near", 1.0, 1.05, 0.1)
    assert compare("off", 1.0, 1.2, 0.1) and "OFF by 0.2" in capsys.readouterr().out
    assert compare("lost", np.nan, 1.0, 0.1)
    assert not compare("slow", 9.0, 1.0, None)


def test_all_goes_on_after_an_interruption(scripts, tmp_path, monkeypatch):
    """With what was begun; what has finished runs again with another commit alone."""
    envs, run_all = scripts("envs"), scripts("run_all")
    commit = ["one"]
    monkeypatch.setattr(envs, "commit", lambda: commit[0])
    monkeypatch.setattr(envs, "HERE", tmp_path)
    monkeypatch.setattr(envs, "RUNS", tmp_path / "runs.json")
    monkeypatch.setattr(run_all, "STATE", tmp_path / "state" / "run_all.json")
    monkeypatch.setattr(run_all, "SCRIPTS", {"first": [""], "second": ["--a 1"]})
    monkeypatch.setattr(run_all, "CONTINUE", {"second"})
    (tmp_path / "results").mkdir()
    result = tmp_path / "results" / "second.json"
    result.write_text("[1]")
    (tmp_path / "first.py").write_text("print('first', file=open('log', 'a'))")
    (tmp_path / "second.py").write_text("raise SystemExit('stopped')")
    monkeypatch.setattr(envs, "ROOT", tmp_path)

    def left():
        monkeypatch.setattr(sys, "argv", ["run_all.py"])
        with pytest.raises(SystemExit) as end:
            run_all.main()
        return end.value.code

    assert left() == 1 and result.read_text() == "[]\n"
    result.write_text("[2]")  # what the second run had found
    (tmp_path / "second.py").write_text("import sys; print(sys.argv[1:], file=open('log', 'a'))")
    assert left() == 0 and left() == 0
    assert (tmp_path / "log").read_text() == "first\n['--a', '1']\n"
    assert result.read_text() == "[2]"
    commit[0] = "two"
    assert left() == 0 and result.read_text() == "[]\n"
    assert (tmp_path / "log").read_text().count("first") == 2


def test_a_result_says_what_made_it(scripts, tmp_path, monkeypatch):
    envs = scripts("envs")
    monkeypatch.setattr(envs, "RUNS", tmp_path / "runs.json")
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks" / "a.py"), "--cases", "b c"])
    (tmp_path / "runs.json").write_text('{"a": [{}]}')
    envs.save(tmp_path / "a.md", "| 1 |\n", kept=True)
    text = (tmp_path / "a.md").read_text()
    assert text.startswith("| 1 |\n\n*Made by* runs whose commit and versions were not recorded.\n")
    assert "`python benchmarks/a.py --cases 'b c'`" in text and "pytensor" in text
    envs.save(tmp_path / "a.md", "| 2 |\n")
    assert (tmp_path / "a.md").read_text().count("Made by") == 1
    (run,) = json.loads((tmp_path / "runs.json").read_text())["a"]
    assert {"command", "commit", "date", "versions", "processor", "cores"} <= set(run)
