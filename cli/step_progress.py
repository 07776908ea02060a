"""Shows the steps of a long command: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from carpool.clock import SystemClock

if TYPE_CHECKING:
    from indexer.progress import ProgressReport


@contextmanager
def step_progress(console: Console) -> Iterator[ProgressReport]:
    """Yields the report that a command tells of its steps. It ends with the context."""
    from indexer.progress import BarProgress, PlainProgress

    if console.is_terminal:
        with BarProgress(console) as bar:
            yield bar
    else:
        yield PlainProgress(console, SystemClock())
