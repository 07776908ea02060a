"""Files, and the reads of them: opened together, and closed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from carpool.clock import Clock
from searcher.store.files import SegmentFiles
from searcher.store.kernel_page_reads import open_page_reads
from searcher.store.page_reads import PageReads
from searcher.store.waker import Waker

CLOSE_TIMEOUT_S = 0.5

OpenReads = Callable[[SegmentFiles, Waker], PageReads]


class FileReads:
    """`files`, and `reads` of them, which wake a thread that waits."""

    def __init__(
        self,
        paths: Sequence[Path],
        direct_io: Literal["require", "auto"],
        waker: Waker,
        clock: Clock,
        *,
        open_reads: OpenReads | None = None,
    ) -> None:
        """`open_reads` is for tests and benchmarks. Raises `ConfigError` as `SegmentFiles`."""
        self.files = SegmentFiles(paths, direct_io)
        self.reads = (
            open_reads(self.files, waker)
            if open_reads is not None
            else open_page_reads(self.files, waker, clock)
        )

    def close(self) -> bool:
        """Ends the reads and closes the files; blocks up to half a second.

        Returns whether the kernel has ended all reads; if not, the files stay open.
        """
        has_ended = self.reads.close(CLOSE_TIMEOUT_S)
        if has_ended:
            self.files.close()
        return has_ended


def close_all(reads: Sequence[FileReads], waker: Waker) -> None:
    """Closes reads, and their waker if no thread can wake it any more."""
    have_ended = [one.close() for one in reads]
    if all(have_ended):
        waker.close()
