"""The progress bar of what takes time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["progress"]


@contextmanager
def progress(what: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Show how far it is."""
    columns = [
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    bar = CustomProgress(*columns, disable=not show, console=Console(theme=default_progress_theme))
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.update(task, advance=n)
