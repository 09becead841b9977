"""The experiments of `benchmarks/reproduction` run, and their page shows what they wrote."""

import importlib
import json
import pathlib
import re
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER, RESULTS = ROOT / "benchmarks" / "reproduction", ROOT / "docs" / "reproduction"
PAGE = ROOT / "docs" / "reproduction.md"


@pytest.fixture
def scripts(monkeypatch):
    """Import an experiment by name, as it imports its neighbours when it is run."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in (getattr(sys.modules[name], "__file__", None) or ""):
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


# --- the scripts ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects")
@pytest.mark.parametrize("name", ["coal", "snelson", "pines", "image", "raetsch"])
def test_smoke_run_writes_finite_numbers(name, scripts, tmp_path, request, monkeypatch):
    if name in ("pines", "image", "raetsch"):
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


def test_page_shows_the_committed_numbers(scripts):
    """The tables of the page are what `make_page.py` makes of the result files."""
    assert scripts("make_page").page() == PAGE.read_text(encoding="utf-8")
