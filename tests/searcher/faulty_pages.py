"""A bad disk for page reads: reads fail, end early, are damaged, slow or hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from carpool.errors import RetryableError
from searcher.store.page_reads import PageBatch, PageReads, cut_short
from searcher.store.waker import Waker

PageFault = Literal["fail", "short", "flip", "slow", "hang"]


class FaultyPages:
    """Implements `PageReads` around another one. `fault(file, offset_bytes)` says what happens.

    A batch with a read that hangs ends when `release` is called; its other reads have ended.
    """

    def __init__(
        self,
        inner: PageReads,
        waker: Waker,
        fault: Callable[[int, int], PageFault | None] = lambda file, offset: None,
    ) -> None:
        self.inner, self.fault, self._waker = inner, fault, waker
        self.seen: list[tuple[int, int, int]] = []  # file, offset and size of every read
        self.hanging: list[PageBatch] = []
        self._released: list[PageBatch] = []

    def submit(self, batch: PageBatch) -> None:
        self.seen += zip(
            batch.files.tolist(),
            batch.offsets_bytes.tolist(),
            batch.sizes_bytes.tolist(),
            strict=True,
        )
        self.inner.submit(batch)

    def poll(self) -> list[PageBatch]:
        ended, self._released = self._released, []
        return ended + [batch for batch in self.inner.poll() if self._judge(batch)]

    def release(self) -> None:
        self._released, self.hanging = self.hanging, []
        for batch in self._released:
            batch.ended[:] = True
        self._waker.wake()

    def close(self, timeout_s: float) -> bool:
        return self.inner.close(timeout_s)

    def _judge(self, batch: PageBatch) -> bool:
        """Applies the faults to a batch that was read; returns whether it ends now."""
        starts = np.cumsum(batch.sizes_bytes) - batch.sizes_bytes
        hangs = False
        for position, (file, offset) in enumerate(
            zip(batch.files.tolist(), batch.offsets_bytes.tolist(), strict=True)
        ):
            match self.fault(file, offset):
                case "fail":
                    batch.errors[position] = RetryableError("the disk said no")
                case "short":
                    batch.errors[position] = cut_short(_Named(), batch, position, 0)
                case "flip":
                    batch.buffer[int(starts[position]) + 100] ^= 1
                case "slow":
                    time.sleep(0.002)
                case "hang":
                    batch.ended[position] = False
                    hangs = True
        if hangs:
            self.hanging.append(batch)
        return not hangs


class _Named:
    def descriptor(self, file: int) -> int:
        raise AssertionError(file)

    def path(self, file: int) -> str:
        return f"file {file}"
