"""A bad disk for tests: reads are slow, fail, end early, are damaged or hang.

The inner reads are done first; `fault` says what happens to each on its way out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from carpool.errors import CorruptionError, ReadError, RetryableError
from searcher.store.page_reads import PageBatch, PageReads, cut_short
from searcher.store.waker import Waker

Fault = Literal["hang", "flip", "short"] | float | ReadError | None
"""What happens to a read. A number: it ends so many seconds late. `hang`: it ends when it is
released. `flip`: one bit in its middle is flipped. `short`: the file ends in its middle. An error:
the read fails with it; `RetryableError`: the first time it is done once more. None: nothing.
"""


class PageRead(NamedTuple):
    """A read of a batch: the number of its file, and the bytes of it."""

    file: int
    offset_bytes: int
    size_bytes: int


class SlowDisk:
    """The `fault` of a disk that delivers one read after another, `bytes_per_s` of them."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0  # when it has delivered all, by the monotonic clock

    def __call__(self, read: PageRead) -> float:
        """Returns how late this read ends, in seconds."""
        now_s = time.monotonic()
        self._free_s = max(now_s, self._free_s) + read.size_bytes / self._bytes_per_s
        return self._free_s - now_s


@dataclass
class FaultyDisk:
    """Implements `PageReads` around `inner`. `fault` is called for each read that has ended.

    `waker`: that of `inner`. `fault` may be replaced at any time. `seen`: every read that was
    submitted. A batch ends with the last of its reads. Release the reads that hang before the end
    of a test.
    """

    inner: PageReads
    waker: Waker
    fault: Callable[[PageRead], Fault] = lambda _: None
    seen: list[PageRead] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._late: list[tuple[float, PageBatch[Any]]] = []  # when they end, by the monotonic clock

    @property
    def hanging(self) -> int:
        """The number of batches with a read that hangs."""
        with self._lock:
            return sum(end_s == math.inf for end_s, _ in self._late)

    def release(self) -> None:
        """Ends all reads that hang, without an error."""
        with self._lock:
            self._late = [(0.0 if at_s == math.inf else at_s, batch) for at_s, batch in self._late]
        self.waker.wake()

    # ---- the reads

    def submit(self, batch: PageBatch[Any]) -> None:
        """Submits a batch."""
        self.seen += _reads_of(batch)
        self.inner.submit(batch)

    def poll(self) -> list[PageBatch[Any]]:
        """Returns the batches that have ended, also in the eyes of `fault`."""
        with self._lock:  # what `fault` lets hang must be there when `release` looks for it
            for batch in self.inner.poll():
                late_s = self._apply(batch)
                self._late.append((time.monotonic() + late_s, batch))
                if 0 < late_s < math.inf:
                    timer = threading.Timer(late_s, self.waker.wake)
                    timer.daemon = True
                    timer.start()
            now_s = time.monotonic()
            ended = [batch for end_s, batch in self._late if end_s <= now_s]
            self._late = [(end_s, batch) for end_s, batch in self._late if end_s > now_s]
        for batch in ended:
            hung = batch.read_bytes < 0
            batch.read_bytes[hung] = batch.sizes_bytes[hung]
        return ended

    def close(self, timeout_s: float) -> bool:
        """Closes the inner reads; False while reads hang."""
        return not self.hanging and self.inner.close(timeout_s)

    def _apply(self, batch: PageBatch[Any]) -> float:
        """Does what `fault` says; returns how late the batch ends, in seconds."""
        latest_s = 0.0
        for position, read in enumerate(_reads_of(batch)):
            fault = self.fault(read)
            if isinstance(fault, RetryableError):
                self.seen.append(read)
                fault = self.fault(read)
            match fault:
                case "hang" | float() | int():
                    batch.read_bytes[position] = -1
                    latest_s = max(latest_s, math.inf if fault == "hang" else fault)
                case "flip":
                    batch.buffer[int(batch.starts[position]) + read.size_bytes // 2] ^= 1
                case "short":
                    path = f"file {read.file} of the faulty disk"
                    batch.read_bytes[position] = read.size_bytes // 2
                    error = cut_short(path, batch, position, read.size_bytes // 2)
                    batch.errors[position] = error
                case CorruptionError() | RetryableError():
                    batch.read_bytes[position] = 0
                    batch.errors[position] = fault
        return latest_s


def _reads_of(batch: PageBatch[Any]) -> list[PageRead]:
    columns = (batch.files, batch.offsets_bytes, batch.sizes_bytes)
    return [PageRead(*read) for read in zip(*(each.tolist() for each in columns), strict=True)]
