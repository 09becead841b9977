"""What the sections of the page share."""

import json

from common import PAGES, envs


def load(name):
    path = PAGES / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def result(name):
    return json.loads((envs.HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(head, rows):
    """Return a table in markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def made_by(record):
    """Say what made a result, and of what package."""
    minutes, versions = round(record["seconds"] / 60), record["versions"]
    took = "a minute" if minutes <= 1 else f"{minutes} minutes"
    packages = ", ".join(f"{name} {versions[name]}" for name in ("pymc", "pytensor", "nutpie"))
    commit = record.get("commit", "not recorded")
    return f"`{record['command']}`, {took}; commit {commit}, {packages}.\n"


def sampling(how):
    """R-hat, effective samples and divergences, in words."""
    return (
        f"R-hat at most {how['rhat_max']:.3f}, at least {how['ess_min']:.0f} effective samples, "
        f"{how['divergences']} divergences"
    )
