"""The searcher on a slow disk: `python -m bench.reliability.slow_searcher BYTES_PER_S`.

Settings come from the environment, as for `carpool searcher`. The disk of clusters delivers one
read after another; reads of passages are not slowed down.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from carpool.__main__ import main as carpool
from carpool.clock import SystemClock
from searcher import open_exact
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageBatch, PageReads, ThreadPageReads
from searcher.store.reader import Reader
from searcher.store.waker import Waker


class _SlowReads:
    """Implements `PageReads`: a disk that delivers one batch after another."""

    def __init__(self, inner: PageReads, waker: Waker, bytes_per_s: float) -> None:
        self._inner, self._waker, self._bytes_per_s = inner, waker, bytes_per_s
        self._free_s = 0.0  # when it has delivered all, by the monotonic clock
        self._late: list[tuple[float, PageBatch[Any]]] = []
        self.submit, self.close = inner.submit, inner.close

    def poll(self) -> list[PageBatch[Any]]:
        """Returns the batches that have ended and are due."""
        now_s = time.monotonic()
        for batch in self._inner.poll():
            took_s = int(batch.sizes_bytes.sum()) / self._bytes_per_s
            self._free_s = max(now_s, self._free_s) + took_s
            self._late.append((self._free_s, batch))
            timer = threading.Timer(self._free_s - now_s, self._waker.wake)
            timer.daemon = True
            timer.start()
        due = [batch for at_s, batch in self._late if at_s <= now_s]
        self._late = [(at_s, batch) for at_s, batch in self._late if at_s > now_s]
        return due


def command(bytes_per_s: float) -> tuple[str, ...]:
    return (sys.executable, "-m", __name__, str(bytes_per_s))


def main(bytes_per_s: float) -> None:
    """Runs the searcher until a stop signal."""

    def slow(files: SegmentFiles, waker: Waker) -> PageReads:
        return _SlowReads(ThreadPageReads(files, waker, SystemClock(), 1), waker, bytes_per_s)

    def open_slow(*given: Any, **named: Any) -> Reader[Any]:
        return Reader(*given, **{**named, "open_reads": slow})

    vars(open_exact)["Reader"] = open_slow
    sys.argv[1:] = ["searcher"]
    carpool()


if __name__ == "__main__":
    main(float(sys.argv[1]))
