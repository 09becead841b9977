#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.5"]
# ///
"""Checks in fresh environments of their own. `nox -l` lists them; the Makefile has the daily ones.

`nox -s tests-3.13 -- -k poisson` passes what follows the dashes to pytest.
"""

from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
# What tests of a file share is built once.
PYTEST = ("python", "-m", "pytest", "-n2", "--dist", "loadfile")


@nox.session(python=["3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Run the tests with the newest versions of everything."""
    session.install("--editable", ".", "--group", "test")
    session.run(*PYTEST, *session.posargs)


@nox.session(python="3.12")
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest versions that pyproject.toml allows, of dependencies proper."""
    floors = [requirement.replace(">=", "==") for requirement in PROJECT["dependencies"]]
    session.install("--editable", ".", "--group", "test", *floors)
    session.run(*PYTEST, *session.posargs)


@nox.session(python="3.12")
def lint(session: nox.Session) -> None:
    """Run ruff and mypy."""
    session.install("--editable", ".", "--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python="3.12", default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install("--editable", ".", "--group", "docs")
    session.run("sphinx-build", "-W", "-j8", "-b", "html", "docs", "docs/_build/html")
    session.run("python", "docs/check_pages.py")


@nox.session(python="3.12", default=False)
def linkcheck(session: nox.Session) -> None:
    """Ask every address that the documentation names whether it is there; no page is run."""
    session.install("--editable", ".", "--group", "docs")
    session.run(
        *("sphinx-build", "-b", "linkcheck", "-D", "nb_execution_mode=off"),
        *("docs", "docs/_build/linkcheck"),
    )


@nox.session(python="3.12", default=False)
def build(session: nox.Session) -> None:
    """Build sdist and wheel into dist/."""
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", "dist")
    session.run("twine", "check", "--strict", *(str(file) for file in Path("dist").iterdir()))


FIT = """
import pymc as pm, pymc_vsgp as vsgp
coal = vsgp.datasets.coal_counts()
with pm.Model():
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 4, 0.2)))
    gp.prior("u", Xu=vsgp.inducing.grid(coal[["year"]], 15))
    gp.likelihood("y", vsgp.Poisson(coal["width"]), X=coal[["year"]], y=coal["count"])
    print(vsgp.__file__, vsgp.sample(random_seed=1).posterior.attrs["method"])
"""


@nox.session(python=["3.12", "3.13", "3.14"], default=False)
def wheel(session: nox.Session) -> None:
    """Install the wheel of dist/ alone, and sample with it from outside of the checkout."""
    session.install(*(str(file) for file in Path("dist").glob("*.whl")))
    session.chdir(session.create_tmp())
    session.run("python", "-c", FIT)


if __name__ == "__main__":
    nox.main()
