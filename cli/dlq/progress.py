"""How far a long look through the letters is: one line for people, on a terminal only."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.console import people


class ProgressLine:
    """A context manager. Its methods are given to the box, which calls them now and then."""

    def __init__(self) -> None:
        self._marked = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=people(),
            transient=True,
        )
        self._task = self._progress.add_task("reading letters", total=None)

    def __enter__(self) -> Self:
        """Shows the line."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes it away."""
        self._progress.stop()

    def read(self, read: int, of: int) -> None:
        """Says how many records were read, of about how many."""
        self._progress.update(self._task, completed=read, total=of)

    def done(self, count: int) -> None:
        """Says how many letters more were replayed or dropped."""
        self._marked += count
        self._progress.update(self._task, description=f"reading letters, {self._marked:,} done")
