"""The progress bar of what takes time."""

import sys
import time

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich.progress as rich

from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console

SECONDS = 2.0  # between lines where there is no terminal


@contextmanager
def progress(what: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
    """Show how far it is; without a `total`, that it goes on.

    Yields a function of the number of steps that were taken, and of a text if it has changed.
    Where no bar can be drawn, as in a file, there are lines.
    """
    console = Console(theme=default_progress_theme)
    if show and not (console.is_terminal or console.is_jupyter):
        yield _lines(what, total)
        return
    columns: list[Any] = [rich.TextColumn("{task.description}"), rich.TimeElapsedColumn()]
    if total is None:
        columns = [rich.SpinnerColumn(), *columns]
    else:
        columns[1:1] = [rich.BarColumn(), rich.MofNCompleteColumn()]
        columns.append(rich.TimeRemainingColumn())
    bar = CustomProgress(*columns, disable=not show, console=console)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda n, text=what: bar.update(task, advance=n, description=text)


def _lines(what: str, total: int | None) -> Callable[..., None]:
    """Return what writes how far it is, the first time at once."""
    began = time.monotonic()
    done, said = 0, began

    def say(text):
        of = "" if total is None else f", {done} of {total}"
        print(f"{text}{of}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def advance(n, text=what):
        nonlocal done, said
        done += n
        if time.monotonic() - said >= SECONDS or done == total:
            said = time.monotonic()
            say(text)

    say(what)
    return advance
