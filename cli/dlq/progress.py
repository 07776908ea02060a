"""Progress of a long command: one line, on a terminal only."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.console import people


class ProgressLine(Progress):
    """A context manager that shows the line; the dead letter box calls `read` and `done`."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=people(),
            transient=True,
        )
        self._marked = 0
        self._letters = self.add_task("reading letters", total=None)

    def read(self, read: int, of: int) -> None:
        """Shows how many records were read, of about how many."""
        self.update(self._letters, completed=read, total=of)

    def done(self, count: int) -> None:
        """Shows how many more letters were replayed or dropped."""
        self._marked += count
        self.update(self._letters, description=f"reading letters, {self._marked:,} done")
