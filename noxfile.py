"""Checks in fresh environments of their own. `nox -l` lists them; Makefile has the daily ones.

`nox -s tests-3.13 -- -k poisson` passes what follows the dashes to pytest.
"""

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests", "lowest"]

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
# One BLAS thread to each process: chains and test workers already fill the cores.
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
}


def run_tests(session: nox.Session) -> None:
    """Run pytest in two processes, with what the user passes on."""
    session.run("python", "-m", "pytest", "-n2", *session.posargs, env=ONE_THREAD)


@nox.session(python=["3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Run the tests with the newest versions of everything."""
    session.install("--editable", ".", "--group", "test")
    run_tests(session)


@nox.session(python="3.12")
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest versions that pyproject.toml allows, of dependencies proper."""
    floors = [requirement.replace(">=", "==") for requirement in PROJECT["dependencies"]]
    session.install("--editable", ".", "--group", "test", *floors)
    run_tests(session)


@nox.session(python="3.12")
def lint(session: nox.Session) -> None:
    """Run ruff and mypy."""
    session.install("--editable", ".", "--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python="3.12")
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install("--editable", ".[plots]", "--group", "docs")
    session.run("sphinx-build", "-W", "-b", "html", "docs", "docs/_build/html")


@nox.session(python="3.12")
def build(session: nox.Session) -> None:
    """Build wheel and sdist, and import the wheel where nothing else of the checkout is."""
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", "dist")
    session.run("twine", "check", "--strict", "dist/*")
