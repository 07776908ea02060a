"""Progress of a long command: one line, on a terminal only."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.console import people


class ProgressLine:
    """A context manager; the dead letter box calls its methods."""

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
        """Removes the line."""
        self._progress.stop()

    def read(self, read: int, of: int) -> None:
        """Shows how many records were read, of about how many."""
        self._progress.update(self._task, completed=read, total=of)

    def done(self, count: int) -> None:
        """Shows how many more letters were replayed or dropped."""
        self._marked += count
        self._progress.update(self._task, description=f"reading letters, {self._marked:,} done")
