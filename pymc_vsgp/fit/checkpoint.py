"""A fit by minibatches on disk, so that one that is stopped goes on."""

import json
import os
import time

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

__all__ = ["Checkpoint", "State"]

SECONDS = 60.0  # between two times that it is written


@dataclass
class State:
    """All that the next steps of minibatches depend on."""

    x: np.ndarray
    """theta, and what moves with it."""
    q: list[tuple[np.ndarray, np.ndarray]]
    """Mean and precision of q(v) of each process, or its sites where they follow theta."""
    first: np.ndarray
    second: np.ndarray
    rate: np.ndarray
    rows: np.ndarray
    """Of the next batch, ..."""
    left: np.ndarray
    """... and of those after it."""
    noisy: np.ndarray
    history: np.ndarray
    counts: dict[str, Any]
    rng: Any
    data: list[int]
    """Numbers of rows, and of those in a batch."""
    value: float = np.nan
    """ELBO of the next batch, of a state that is written: another model has another one."""

    def again(self) -> "State":
        """Return the same for another run, which counts its steps anew.

        Its larger steps fall behind what small ones reached, so it is judged by itself.
        """
        counts = self.counts | {"begun": self.counts["taken"], "since": 0, "converged": False}
        if self.counts["converged"]:
            counts["part"] *= 2.0  # the smallest steps, once more
        return replace(self, counts=counts)


PLAIN = ("counts", "rng", "data", "value")


def as_path(path: Any, name: str = "path") -> Path:
    """Return a path, or raise TypeError where it is none."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise TypeError(f"{name} is {path!r}. Pass the path of a file or a folder.")
    return Path(path)


class Checkpoint:
    """A file with the state of a fit."""

    def __init__(self, path: str | os.PathLike):
        self.path = as_path(path, "checkpoint")
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ValueError(f"{path} is no file in a folder that exists. Pass the path of a file.")
        self.written = time.monotonic()

    def read(self) -> State | None:
        """Return the state in the file, if there is one."""
        if not self.path.exists():
            return None
        try:
            with self.path.open("rb") as opened, np.load(opened) as file:
                plain = json.loads(str(file["plain"]))
                names = [f.name for f in fields(State) if f.name not in (*PLAIN, "q")]
                q = [(file[f"q{i}"], file[f"r{i}"]) for i in range(plain.pop("processes"))]
                return State(q=q, **{name: file[name] for name in names}, **plain)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"{self.path} is not a checkpoint of fit_gaussian. Pass a path of its own."
            ) from error

    @property
    def due(self) -> bool:
        """Whether it was a while ago that the state was written."""
        return time.monotonic() - self.written > SECONDS

    def write(self, state: State, value: float) -> None:
        """Write the state. A run that is killed meanwhile leaves the one before."""
        state = replace(state, value=value)
        arrays = {f.name: getattr(state, f.name) for f in fields(State) if f.name not in PLAIN}
        for i, (a, b) in enumerate(q := arrays.pop("q")):
            arrays |= {f"q{i}": a, f"r{i}": b}
        plain = {name: getattr(state, name) for name in PLAIN} | {"processes": len(q)}
        part = self.path.with_name(self.path.name + ".part")
        with part.open("wb") as file:
            np.savez(file, plain=np.array(json.dumps(plain)), **arrays)
        os.replace(part, self.path)
        self.written = time.monotonic()
