"""Sees in the folder of bases who saves one, and when one was saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.core.stack import Stack
from carpool.disk.manifest import MANIFEST_NAME

SWAP_S = 1.0
"""After a base was saved, searchers open it within this time."""


@dataclass(frozen=True, slots=True)
class BaseWatch:
    """`folder`: of the bases."""

    folder: Path
    stack: Stack

    def saver(self) -> str | None:
        """Returns the indexer that saves a base now: its process id is in the name of the base."""
        pids = {str(self.stack[name].pid): name for name in self.stack.instances("indexer")}
        names = [name.rpartition("-")[2] for name, saved_s in self._bases() if saved_s is None]
        return next((pids[name] for name in names if name in pids), None)

    def are_swapping(self) -> bool:
        """Whether a base was saved a moment ago."""
        times = [time.time() - saved_s for _, saved_s in self._bases() if saved_s is not None]
        return min(times, default=SWAP_S) < SWAP_S

    def _bases(self) -> Iterator[tuple[str, float | None]]:
        """Yields when each base was saved; None: it is not yet."""
        for each in self.folder.iterdir() if self.folder.is_dir() else ():
            saved_s = None
            with suppress(FileNotFoundError):
                saved_s = (each / MANIFEST_NAME).stat().st_mtime
            yield each.name, saved_s
