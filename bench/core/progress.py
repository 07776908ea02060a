"""Progress of a benchmark on standard error: one bar for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from carpool.terminal import TerminalConsole

Tell = Callable[[str, int, int], None]
"""Takes the name of a step, how much of the step is done, and how much there is in total."""


def silent(step: str, done: int, total: int) -> None:
    """Shows nothing."""


@contextmanager
def progress_bars(console: Console | None = None) -> Iterator[Tell]:
    """Yields a `Tell` that draws a bar for each step on a terminal, and nothing elsewhere.

    `console`: standard error where none is given.
    """
    shown = console or TerminalConsole(stderr=True)
    with Progress(console=shown, disable=not shown.is_terminal, refresh_per_second=2) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done, total=total)

        yield tell
