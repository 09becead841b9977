"""The progress bar of what takes time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich.progress as rich

from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console

__all__ = ["progress"]


@contextmanager
def progress(what: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
    """Show how far it is; without a `total`, that it goes on.

    Yields a function of the number of steps that were taken, and of a text if it has changed.
    """
    columns: list[Any] = [rich.TextColumn("{task.description}"), rich.TimeElapsedColumn()]
    if total is None:
        columns = [rich.SpinnerColumn(), *columns]
    else:
        columns[1:1] = [rich.BarColumn(), rich.MofNCompleteColumn()]
        columns.append(rich.TimeRemainingColumn())
    bar = CustomProgress(*columns, disable=not show, console=Console(theme=default_progress_theme))
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda n, text=what: bar.update(task, advance=n, description=text)
