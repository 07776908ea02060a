"""Batches of reads by io_uring, on the thread that wants them.

The kernel reads while the thread does other work. A batch costs one system call, and 4 us of CPU a
read: the entries of the submission queue are filled as one array.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque

import numpy as np

from carpool.clock import Clock
from searcher.store.io_uring import Ring
from searcher.store.page_reads import PageBatch, PageFiles, cut_short, failed, is_at_end
from searcher.store.waker import Waker

DEPTH = 1024
"""Reads in the kernel at a time. The disk reaches its full rate with fewer."""
TRY_AGAIN = (-errno.EAGAIN, -errno.EINTR)
POSITION_BITS = 16
KERNEL_BUSY_PAUSE_S = 0.001


class RingPageReads:
    """Implements `PageReads`."""

    def __init__(self, files: PageFiles, waker: Waker, clock: Clock) -> None:
        """Makes the ring. Raises `OSError` where the kernel has no io_uring or forbids it."""
        self._files = files
        self._waker = waker
        self._clock = clock
        self._ring = Ring(DEPTH, waker.descriptor)
        self._batches: dict[int, PageBatch] = {}
        self._waiting: deque[tuple[int, int]] = deque()  # batch number, first read to start
        self._done_bytes: dict[int, int] = {}  # of reads that the kernel ended early, by token
        self._next_number = 1
        self._in_kernel = 0
        self._is_closed = False

    def submit(self, batch: PageBatch) -> None:
        """Starts all reads of a batch, or as many as fit the ring."""
        batch.submitted_us = self._clock.now_us()
        number, self._next_number = self._next_number, self._next_number + 1
        self._batches[number] = batch
        self._waiting.append((number, 0))
        self._fill()

    def poll(self) -> list[PageBatch]:
        """Returns the batches that have ended, and starts reads that wait."""
        tokens, results = self._ring.completed()
        if not len(tokens):
            return []
        self._in_kernel -= len(tokens)
        ended = []
        numbers = tokens >> POSITION_BITS
        for number in np.unique(numbers).tolist():
            batch = self._batches[number]
            of_batch = numbers == number
            positions = (tokens[of_batch] & ((1 << POSITION_BITS) - 1)).astype(np.int64)
            whole = results[of_batch] == batch.sizes_bytes[positions]
            batch.ended[positions[whole]] = True
            batch.unended -= int(np.count_nonzero(whole))
            for position, result in zip(
                positions[~whole].tolist(), results[of_batch][~whole].tolist(), strict=True
            ):
                self._judge(number, batch, position, result)
            if not batch.unended:
                del self._batches[number]
                self._files.forget(batch)
                ended.append(batch)
        self._fill()
        return ended

    def close(self, timeout_s: float) -> bool:
        """Waits for the reads in the kernel."""
        if self._is_closed:
            return True
        self._waiting.clear()
        until_s = time.monotonic() + timeout_s
        while self._in_kernel and time.monotonic() < until_s:
            self._in_kernel -= len(self._ring.completed()[0])
            time.sleep(0.001)
        if self._in_kernel:
            return False
        self._ring.close()
        self._is_closed = True
        self._batches.clear()
        return True

    def _judge(self, number: int, batch: PageBatch, position: int, result: int) -> None:
        """A read that the kernel ended with an error, or early: continues it, or ends it."""
        token = number << POSITION_BITS | position
        done_bytes = self._done_bytes.pop(token, 0)
        if result > 0:
            done_bytes += result
        is_early = result > 0 and done_bytes < int(batch.sizes_bytes[position])
        is_cut = result == 0 or (is_early and is_at_end(self._files, batch, position, done_bytes))
        if result in TRY_AGAIN or (is_early and not is_cut):
            self._done_bytes[token] = done_bytes
            self._start(number, position, position + 1)
            return
        if result < 0:
            error = OSError(-result, os.strerror(-result))
            batch.errors.setdefault(position, failed(self._files, batch, position, error))
        elif is_cut:
            path = self._files.path(int(batch.files[position]))
            batch.errors.setdefault(position, cut_short(path, batch, position, done_bytes))
        batch.ended[position] = True
        batch.unended -= 1

    def _fill(self) -> None:
        while self._waiting and self._in_kernel < DEPTH:
            number, first = self._waiting.popleft()
            count = len(self._batches[number].files)
            end = min(count, first + DEPTH - self._in_kernel)
            self._start(number, first, end)
            if end < count:
                self._waiting.appendleft((number, end))

    def _start(self, number: int, first: int, end: int) -> None:
        batch = self._batches[number]
        taken = slice(first, end)
        positions = np.arange(first, end, dtype=np.uint64)
        tokens = np.uint64(number << POSITION_BITS) | positions
        address = np.frombuffer(batch.buffer, np.uint8).__array_interface__["data"][0]
        done = self._done_bytes.get(int(tokens[0]), 0) if end == first + 1 else 0
        numbers = np.unique(batch.files[taken])
        descriptors = np.zeros(int(numbers[-1]) + 1, np.int32)
        for file in numbers.tolist():
            descriptors[file] = self._files.descriptor(file)
        self._ring.prepare_reads(
            tokens,
            descriptors[batch.files[taken]],
            batch.offsets_bytes[taken] + done,
            address + batch.starts[taken] + done,
            batch.sizes_bytes[taken] - done,
        )
        self._in_kernel += end - first
        while not self._ring.submit():
            time.sleep(KERNEL_BUSY_PAUSE_S)
