"""The package as it is installed, the scripts that install it, and the examples in its pages."""

import ast
import importlib.metadata
import importlib.resources
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import warnings

import matplotlib.pyplot as plt
import pymc as pm
import pytest

from modes import RAW

import pymc_vsgp as vsgp

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The shell itself, so that a PATH can be made of nothing but fakes.
SH = shutil.which("sh") or "/bin/sh"

pages_with_code = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if "```python" in page.read_text(encoding="utf-8")
)


# --- the installed package -----------------------------------------------------------------------


def test_version_is_the_installed_one():
    assert vsgp.__version__ == importlib.metadata.version("pymc-vsgp")


def test_version_is_the_one_to_cite():
    assert f"version: {vsgp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version: "{vsgp.__version__}"\n' in (ROOT / "conda" / "recipe.yaml").read_text()


def test_conda_recipe_has_the_requirements_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {re.sub(r"\[.*?\]", "", r) for r in project["dependencies"]}
    recipe = (ROOT / "conda" / "recipe.yaml").read_text().split("  run:\n")[1].split("  run_con")[0]
    listed = re.findall(r"- ([\w-]+) (>=[\d.]+)$", recipe, re.M)
    # PyMC and PyTensor without a compiler are packages of their own there.
    assert {
        re.sub("-base$", "", n) + v if n != "arviz-base" else n + v for n, v in listed
    } == wanted


def test_ships_its_types():
    assert importlib.resources.files("pymc_vsgp").joinpath("py.typed").is_file()


def normalised(name):
    """The name of a distribution, as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imports_of(tree, everywhere):
    """Packages that a module imports: at its top, or everywhere."""
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def imported(everywhere):
    """Distributions, other than this and Python's own, that the package imports."""
    names = set()
    for file in (ROOT / "pymc_vsgp").rglob("*.py"):
        names |= set(imports_of(ast.parse(file.read_text(encoding="utf-8")), everywhere))
    return {normalised(name) for name in names - sys.stdlib_module_names - {"pymc_vsgp"}}


def declared():
    """Distributions that pyproject.toml names: those always installed, and those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [r for group in project["optional-dependencies"].values() for r in group]
    return tuple(
        {normalised(re.match(r"[\w.-]+", r).group()) for r in requirements}
        for requirements in (project["dependencies"], extras)
    )


@pytest.mark.slow
def test_what_is_imported_is_declared():
    always, extras = declared()
    # PyTensor loads the modules of its JAX backend, and nothing else, where JAX is there.
    assert imported(everywhere=False) - always == {"jax"}
    assert imported(everywhere=True) - always - extras == set()
    assert always <= imported(everywhere=True) | {"arviz"}


# --- .ci/find-python -----------------------------------------------------------------------------


def fake_python(folder, name, version, works=True):
    """Write a program that answers like a Python of `version`, or like a shim that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    good = works and (3, 12) <= version < (3, 15)
    answer = f'echo "{program}"' if good else "echo 'command not found' >&2; exit 127"
    program.write_text(f"#!{SH}\n{answer}\n")
    program.chmod(0o755)
    return program


def find_python(tmp_path, **variables):
    """Run the script with a PATH of one folder and an empty home."""
    path = tmp_path / "bin"
    path.mkdir(exist_ok=True)
    if (cat := shutil.which("cat")) and not (path / "cat").exists():
        (path / "cat").symlink_to(cat)
    environment = {
        "PATH": str(path),
        "HOME": str(tmp_path / "home"),
        "FIND_PYTHON_FOLDERS": "",
        **{name: str(value) for name, value in variables.items()},
    }
    return subprocess.run(
        [SH, str(ROOT / ".ci" / "find-python")],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def test_finder_takes_a_new_enough_python_from_the_path(tmp_path):
    fake_python(tmp_path / "bin", "python3", (3, 11))
    expected = fake_python(tmp_path / "bin", "python3.12", (3, 12))
    assert find_python(tmp_path).stdout == f"{expected}\n"


def test_finder_skips_shims_that_fail_and_looks_into_pyenv(tmp_path):
    fake_python(tmp_path / "bin", "python3.13", (3, 13), works=False)
    fake_python(tmp_path / "bin", "python3", (3, 11))
    versions = tmp_path / "home" / ".pyenv" / "versions"
    fake_python(versions / "3.11.7" / "bin", "python", (3, 11))
    expected = fake_python(versions / "3.12.1" / "bin", "python", (3, 12))
    assert find_python(tmp_path).stdout == f"{expected}\n"


def test_finder_asks_uv(tmp_path):
    managed = fake_python(tmp_path / "uv", "python3.13", (3, 13))
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!{SH}\n[ "$1 $2" = "python find" ] && echo "{managed}"\n')
    uv.chmod(0o755)
    assert find_python(tmp_path).stdout == f"{managed}\n"


def test_finder_looks_into_conda_environments(tmp_path):
    conda = tmp_path / "home" / "miniforge3"
    fake_python(conda / "bin", "python", (3, 11))
    expected = fake_python(conda / "envs" / "new" / "bin", "python", (3, 12))
    assert find_python(tmp_path).stdout == f"{expected}\n"


def test_finder_prefers_the_named_python(tmp_path):
    fake_python(tmp_path / "bin", "python3.13", (3, 13))
    named = fake_python(tmp_path / "else where", "my-python", (3, 12))
    assert find_python(tmp_path, PYTHON=named).stdout == f"{named}\n"


def test_finder_says_so_when_the_named_python_does_not_do(tmp_path):
    named = fake_python(tmp_path / "bin", "python3", (3, 11))
    expected = fake_python(tmp_path / "bin", "python3.12", (3, 12))
    result = find_python(tmp_path, PYTHON=named)
    assert result.stdout == f"{expected}\n"
    assert "is not a working Python" in result.stderr


def test_finder_says_what_to_do_when_there_is_none(tmp_path):
    fake_python(tmp_path / "bin", "python3", (3, 11))
    fake_python(tmp_path / "bin", "python3.14", (3, 15))
    result = find_python(tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    problem, fix = result.stderr.strip().splitlines()
    assert problem.startswith("No Python 3.12, 3.13 or 3.14")
    assert fix.startswith("Install one") and "make PYTHON=" in fix


def test_finder_runs_this_python_for_real(tmp_path):
    found = pathlib.Path(find_python(tmp_path, PYTHON=sys.executable).stdout.strip())
    # The interpreter behind the environment, so that rebuilding .venv never removes its own base.
    assert found.resolve() == pathlib.Path(sys.executable).resolve()
    assert sys.prefix == sys.base_prefix or not found.is_relative_to(sys.prefix)


# --- .ci/env -------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path):
    """A copy of the build scripts, with a Python that only pretends to make environments."""
    project = tmp_path / "a project"
    (project / ".ci").mkdir(parents=True)
    (project / "pymc_vsgp").mkdir()
    for name in ("pyproject.toml", ".ci/env", "pymc_vsgp/_version.py"):
        shutil.copy(ROOT / name, project / name)
    log = tmp_path / "log"
    # `-m venv --clear .venv` copies the fake into .venv; `-m pip` fails while a file says so.
    fake = project / "python"
    fake.write_text(
        f"""#!{SH}
case "$*" in
-V) echo "Python 3.12.0" ;;
*"-m venv"*) echo venv >>"{log}"; rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*"-m pip"*) echo pip >>"{log}"; [ ! -f fail ] ;;
esac
"""
    )
    fake.chmod(0o755)
    finder = project / ".ci" / "find-python"
    finder.write_text(f'#!{SH}\necho "{fake}"\n')
    finder.chmod(0o755)
    return project


def build(project):
    """Run .ci/env and return its exit status and the steps it took."""
    log = project.parent / "log"
    log.write_text("")
    result = subprocess.run(
        [SH, str(project / ".ci" / "env")],
        env={"PATH": os.environ["PATH"], "HOME": str(project)},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return result.returncode, log.read_text().split()


def test_env_is_built_once(project):
    assert build(project) == (0, ["venv", "pip", "pip"])
    assert build(project) == (0, [])


def test_env_is_brought_up_to_date_when_the_requirements_change(project):
    build(project)
    with (project / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert build(project) == (0, ["pip", "pip"])
    assert build(project) == (0, [])


def test_env_is_built_afresh_after_a_failed_build(project):
    (project / "fail").touch()
    status, steps = build(project)
    assert status != 0 and steps == ["venv", "pip"]
    (project / "fail").unlink()
    assert build(project) == (0, ["venv", "pip", "pip"])


def test_env_is_built_afresh_when_the_folder_has_moved(project):
    build(project)
    moved = project.rename(project.with_name("moved"))
    finder = moved / ".ci" / "find-python"
    finder.write_text(finder.read_text().replace(str(project), str(moved)))
    assert build(moved) == (0, ["venv", "pip", "pip"])


# --- the examples in the pages -------------------------------------------------------------------

# Blocks marked python run here, with few draws. Those marked {code-cell} run when the documentation
# is built, which fails if one of them does.


def code_blocks(page):
    """All python code blocks of a page, as one program that keeps the page's line numbers."""
    text = page.read_text(encoding="utf-8")
    program = ""
    for block in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        first_line = text[: block.start(1)].count("\n")
        program += "\n" * (first_line - program.count("\n")) + block.group(1)
    return compile(program, str(page), "exec")


# One page runs on the backend that users have; compiling for it takes most of its time.
COMPILED = "README.md"
SHORT = {"draws": 20, "tune": 5, "chains": 2, "cores": 1, "progressbar": False}
UNCOMPILED = {
    "nuts_sampler": "pymc",
    "compile_kwargs": {"mode": RAW},
    "nuts": {"max_treedepth": 3},
}


def quick(page):
    """`vsgp.sample` with settings that win over those of the page."""
    sample = vsgp.sample

    def shorter(*args, **kwargs):
        # Only nutpie writes to disk.
        other = {"nuts_sampler": "nutpie"} if "store" in kwargs else UNCOMPILED
        other = {} if page == COMPILED else other
        return sample(*args, **kwargs | SHORT | other)

    return shorter


LONG_PAGES = {"docs/coming_from.md", "docs/faq.md"}


@pytest.mark.slow
# Twenty draws are enough to run, and too few for the importance weights of leave-one-out.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page in LONG_PAGES else [])
        for page in pages_with_code
    ],
)
def test_examples_of_a_page_run(page, tmp_path, monkeypatch, request):
    if page == COMPILED:
        request.getfixturevalue("default_mode")
    monkeypatch.chdir(tmp_path)
    sample = pm.sample
    monkeypatch.setattr(vsgp, "sample", quick(page))
    monkeypatch.setattr(pm, "sample", lambda **kwargs: sample(**kwargs | SHORT))
    exec(code_blocks(ROOT / page), {"__name__": "__main__"})


def run_script(name, folder, **variables):
    """Run the reduced form of a notebook in a process of its own."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / f"{name}.py")],
        cwd=folder,
        env={**os.environ, "PYMC_VSGP_SMOKE": "1", "MPLBACKEND": "Agg", **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    assert (folder / f"{name}.png").stat().st_size > 10_000
    return result.stdout


@pytest.mark.long
@pytest.mark.slow
def test_readme_shows_what_its_example_prints(tmp_path):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```.*?```text\n(.*?)```", page, re.S).groups()
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    printed, shown = result.stdout.splitlines(), shown.splitlines()
    assert printed[0].split() == shown[0].split() and printed[-1] == shown[-1] == "enough"
    assert len(printed) == len(shown) == 5
    for line, told in zip(printed[1:-1], shown[1:-1], strict=True):
        (name, mean, *_, error, _), (name_told, mean_told, *_) = line.split(), told.split()
        assert name == name_told
        # Rounding may turn a proposal down that was shown as taken.
        assert abs(float(mean) - float(mean_told)) < 3 * float(error)


@pytest.mark.long
@pytest.mark.slow
def test_demo_runs_and_draws_its_picture(tmp_path):
    out = run_script("coal_mining", tmp_path)
    assert "r_hat" in out
    assert str(tmp_path / "coal_mining.png") in out


@pytest.fixture
def run_notebook(tmp_path, monkeypatch, capsys):
    """Run the reduced form of a notebook in this process, and return what it prints."""

    def run(name, data=""):
        monkeypatch.setenv("PYMC_VSGP_SMOKE", "1")
        monkeypatch.setenv("PYMC_VSGP_DATA", str(data))
        monkeypatch.chdir(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # few draws, of which some functions warn
            runpy.run_path(str(ROOT / "notebooks" / f"{name}.py"), run_name="__main__")
        plt.close("all")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        return capsys.readouterr().out

    return run


def numbers(pattern, text):
    """The numbers of the only place that matches a pattern."""
    (found,) = re.findall(pattern, text)
    return [float(x.replace(",", "")) for x in ([found] if isinstance(found, str) else found)]


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_glass_predicts_better_than_the_share_of_windows(run_notebook):
    out = run_notebook("glass")
    accuracy, _ = numbers(r"accuracy +([\d.]+) +([\d.]+)", out)
    score, constant = numbers(r"log density +(-[\d.]+) +(-[\d.]+)", out)
    assert accuracy > 0.85 and score > constant + 0.3


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_survival_agrees_with_kaplan_and_meier(run_notebook):
    out = run_notebook("survival")
    assert numbers(r"(\d+) patients, (\d+) deaths", out) == [137, 128]
    # Of the 58 with a score of 70 and more 4 had died by day 30, and one was out of sight before.
    model, estimate, error = numbers(
        r"log-normal, score 70 and more \(58\).* 30 days ([\d.]+), ([\d.]+) ± ([\d.]+);",
        out,
    )
    assert estimate == pytest.approx(54 / 58, abs=0.006)
    assert abs(model - estimate) < 3 * error


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_spatial_counts_widens_the_coefficient(run_notebook, shared_data):
    out = run_notebook("spatial_counts", shared_data)
    assert "events: 703 in x, y" in out
    _, plain = numbers(r"(?:, )regression; beta (-?[\d.]+) ± ([\d.]+)", out)
    _, spatial = numbers(r"spatial model; beta (-?[\d.]+) ± ([\d.]+)", out)
    assert spatial > 1.5 * plain
    counted, low, high = numbers(r"NW quarter: (\d+) counted, (\d+) to (\d+) expected", out)
    assert low < counted < high


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_a_disease_map_has_the_sign_of_the_covariate(run_notebook):
    out = run_notebook("disease_map")
    assert "1503 deaths" in out
    low, high = numbers(r"not white: ([\d.]+) to ([\d.]+) times", out)
    assert 1 < low < high < 1.6


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_carbon_dioxide_runs(run_notebook):
    assert "months to learn from, 132 to forecast" in run_notebook("carbon_dioxide")


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_a_broken_instrument_gains_by_the_other_outputs(run_notebook):
    out = run_notebook("broken_instrument")
    (together,) = numbers(r"with PM2.5 and CO: root mean squared error ([\d.]+)", out)
    (alone,) = numbers(r"by itself: root mean squared error ([\d.]+)", out)
    assert together < 0.6 * alone


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_late_flights_runs(run_notebook):
    assert "163,759 flights, 33,043 of them late" in run_notebook("late_flights")


@pytest.mark.long
@pytest.mark.slow
def test_notebook_of_a_million_rows(tmp_path, shared_data):
    out = run_script("million_rows", tmp_path, PYMC_VSGP_DATA=str(shared_data))
    assert numbers(r"([\d,]+) readings\n", out) == [135_814]
    # One station's air is dirtiest in a winter night, by the means of its months and hours.
    day, hour, times = numbers(r"Dirtiest on day (\d+) at ([\d.]+) h: ([\d.]+) times", out)
    assert (day > 330 or day < 30) and (hour > 20 or hour < 3)
    assert 1.5 < times < 2.0
