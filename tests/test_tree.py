"""The tree of the package: what may import what."""

import ast

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "pymc_vsgp"

# From the ground up: a module imports from its own folder, and from what stands below it.
LAYERS = [
    "compile",
    "ops",
    "rvs",
    "checks",
    "labels",
    "progress",
    "fetch",
    "datasets",
    "likelihoods",
    "inducing",
    "engine",
    "model",
    "fit",
    "steps",
    "results",
    "point_processes",
    "__init__",
    "warm",
]

FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(f.relative_to(ROOT)) for f in FILES]


MOST_LINES = 450  # that are not blank


def imports(path):
    """Modules of the package that a file imports anywhere, the ones in functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pymc_vsgp"):
            for alias in node.names:
                inside = ROOT.parent / node.module.replace(".", "/") / f"{alias.name}.py"
                module = f"{node.module}.{alias.name}" if inside.exists() else node.module
                found.append(module.split(".")[1:])
        elif isinstance(node, ast.Import):
            found += [a.name.split(".")[1:] for a in node.names if a.name.startswith("pymc_vsgp")]
    return [parts for parts in found if parts and parts != ["_version"]]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_point_down(path):
    mine = path.relative_to(ROOT).with_suffix("").parts[0]
    if mine == "_version":
        return
    up = [p for p in imports(path) if LAYERS.index(p[0]) > LAYERS.index(mine)]
    assert not up, f"{path} imports from above: {['.'.join(p) for p in up]}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_are_short(path):
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES, f"{path} has {len(lines)} lines. Split what it does."


@pytest.mark.slow
def test_no_circles():
    graph = {}
    for path in FILES:
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        graph[name] = {".".join(p) for p in imports(path)} - {name}
    done, stack = set(), []

    def visit(name):
        assert name not in stack, " -> ".join([*stack[stack.index(name) :], name])
        if name in done or name not in graph:
            return
        stack.append(name)
        for other in sorted(graph[name]):
            visit(other)
        stack.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)
