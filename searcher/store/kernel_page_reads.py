"""Batches of direct reads that the kernel does while the thread does other work (Linux AIO).

A batch costs one system call. A thread for each read would wait for the interpreter's lock after
it. io_uring does the same, in more code, and containers often forbid it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time
from collections import deque
from typing import Any

import numpy as np
import structlog

from carpool.clock import Clock
from carpool.errors import ReadError
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageBatch, PageReads, ThreadPageReads, cut_short, failed
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)

DEPTH = 256
"""Reads in the kernel at a time. The disk reaches its full rate with fewer."""
POSITION_BITS = 16
KERNEL_BUSY_PAUSE_S = 0.001

# Numbers of io_setup, io_destroy, io_getevents and io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_REQUEST = np.dtype(
    {
        "names": ["token", "file", "address", "size", "offset", "flags", "eventfd"],
        "formats": ["<u8", "<u4", "<u8", "<u8", "<i8", "<u4", "<u4"],
        "offsets": [0, 20, 24, 32, 40, 56, 60],
        "itemsize": 64,
    }
)
"""`struct iocb` of <linux/aio_abi.h>; its operation 0 is a read."""
_END = np.dtype([("token", "<u8"), ("request", "<u8"), ("result", "<i8"), ("result2", "<i8")])
"""`struct io_event`: the result is the bytes that were read or, below 0, an errno."""
_ADD_TO_EVENTFD = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = (ctypes.c_long,) * 6
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: int) -> int:
    result = int(_libc.syscall(number, *arguments, *([0] * (5 - len(arguments)))))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def open_page_reads(files: SegmentFiles, waker: Waker, clock: Clock) -> PageReads:
    """Returns batches of reads of `files`, which wake `waker` when one ends.

    By threads where reads go through the page cache, in which the kernel would block, and where
    the kernel refuses.
    """
    if files.is_direct:
        try:
            return KernelPageReads(files, waker, clock)
        except OSError as error:
            _log.warning(
                "no asynchronous reads",
                error=str(error),
                means="threads read instead, and fewer questions a second are searched",
            )
    return ThreadPageReads(files, waker, clock)


class KernelPageReads:
    """Implements `PageReads`, of files that are read directly."""

    def __init__(self, files: SegmentFiles, waker: Waker, clock: Clock) -> None:
        """Raises `OSError` where the kernel has no such reads, or too many are in use."""
        if platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, f"not used on {platform.machine()}")
        self._setup, self._destroy, self._get_ends, self._submit = _CALLS[platform.machine()]
        self._files = files
        self._waker = waker
        self._clock = clock
        context = ctypes.c_ulong(0)
        _call(self._setup, DEPTH, ctypes.addressof(context))
        self._context = context.value
        self._ends = np.zeros(DEPTH, _END)
        self._requests = np.zeros(DEPTH, _REQUEST)
        self._requests["flags"], self._requests["eventfd"] = _ADD_TO_EVENTFD, waker.descriptor
        self._pointers = self._requests.ctypes.data + np.arange(DEPTH) * _REQUEST.itemsize
        self._batches: dict[int, PageBatch[Any]] = {}
        self._waiting: deque[tuple[int, int]] = deque()  # batch number, first read to start
        self._done_bytes: dict[int, int] = {}  # of reads that the kernel ended early, by token
        self._ended: list[PageBatch[Any]] = []
        self._next_number = 1
        self._in_kernel = 0

    def submit(self, batch: PageBatch[Any]) -> None:
        """Starts all reads of a batch, or as many as fit."""
        batch.submitted_us = self._clock.now_us()
        number, self._next_number = self._next_number, self._next_number + 1
        self._batches[number] = batch
        self._waiting.append((number, 0))
        self._fill()

    def poll(self) -> list[PageBatch[Any]]:
        """Returns the batches that have ended, and starts reads that wait."""
        ends = self._take_ends()
        for token, _, result, _ in ends:
            number, position = token >> POSITION_BITS, token & ((1 << POSITION_BITS) - 1)
            batch = self._batches[number]
            if result == batch.sizes_bytes[position]:
                self._end(number, batch, position, result)
            else:
                self._judge(number, batch, position, result)
        if ends:
            self._fill()
        ended, self._ended = self._ended, []
        return ended

    def close(self, timeout_s: float) -> bool:
        """Waits for the reads in the kernel."""
        self._waiting.clear()
        until_s = time.monotonic() + timeout_s
        while self._in_kernel and time.monotonic() < until_s:
            self._take_ends()
            time.sleep(0.001)
        if not self._in_kernel and self._context:
            _call(self._destroy, self._context)
            self._context = 0
            self._batches.clear()
        return not self._in_kernel

    def _take_ends(self) -> list[tuple[int, int, int, int]]:
        """Returns what the kernel tells of reads that ended: token and result, as in `_END`."""
        if not self._in_kernel:
            return []
        no_wait = (ctypes.c_long * 2)(0, 0)
        count = _call(
            self._get_ends,
            self._context,
            0,
            DEPTH,
            self._ends.ctypes.data,
            ctypes.addressof(no_wait),
        )
        self._in_kernel -= count
        ends: list[tuple[int, int, int, int]] = self._ends[:count].tolist()
        return ends

    def _judge(self, number: int, batch: PageBatch[Any], position: int, result: int) -> None:
        """A read that the kernel ended with an error, or early: continues it, or ends it."""
        token = number << POSITION_BITS | position
        done_bytes = self._done_bytes.pop(token, 0)
        if result > 0:
            done_bytes += result
        is_early = result > 0 and done_bytes < int(batch.sizes_bytes[position])
        file, end_bytes = int(batch.files[position]), int(batch.offsets_bytes[position])
        end_bytes += done_bytes
        is_cut = result == 0 or (is_early and self._files.is_at_end(file, end_bytes))
        if result in (-errno.EAGAIN, -errno.EINTR) or (is_early and not is_cut):
            self._done_bytes[token] = done_bytes
            self._start(number, position, position + 1)
            return
        error: ReadError | None = None
        if result < 0:
            done_bytes = 0
            error = failed(self._files, batch, position, OSError(-result, os.strerror(-result)))
            if error is None:
                self._start(number, position, position + 1)
                return
        elif is_cut:
            error = cut_short(self._files.path(file), batch, position, done_bytes)
        self._end(number, batch, position, done_bytes, error)

    def _end(
        self,
        number: int,
        batch: PageBatch[Any],
        position: int,
        read_bytes: int,
        error: ReadError | None = None,
    ) -> None:
        batch.end(position, read_bytes, error)
        if not batch.unended:
            self._ended.append(self._batches.pop(number))

    def _fill(self) -> None:
        while self._waiting and self._in_kernel < DEPTH:
            number, first = self._waiting.popleft()
            count = len(self._batches[number].files)
            end = min(count, first + DEPTH - self._in_kernel)
            if end < count:
                self._waiting.appendleft((number, end))
            self._start(number, first, end)

    def _start(self, number: int, first: int, end: int) -> None:
        """Starts reads `first` to `end` of a batch; what the kernel does not take has failed."""
        batch = self._batches[number]
        taken = slice(first, end)
        token = number << POSITION_BITS | first
        done = self._done_bytes.get(token, 0) if end == first + 1 else 0
        requests = self._requests[: end - first]  # the kernel copies them
        requests["token"] = np.arange(token, token + len(requests))
        requests["file"] = [self._files.descriptor(file) for file in batch.files[taken].tolist()]
        address = np.frombuffer(batch.buffer, np.uint8).ctypes.data
        requests["address"] = address + batch.starts[taken] + done
        requests["size"] = batch.sizes_bytes[taken] - done
        requests["offset"] = batch.offsets_bytes[taken] + done
        at = 0
        while at < len(requests):
            try:
                count = _call(
                    self._submit,
                    self._context,
                    len(requests) - at,
                    self._pointers.ctypes.data + at * self._pointers.itemsize,
                )
                self._in_kernel += count
                at += count
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    time.sleep(KERNEL_BUSY_PAUSE_S)
                    continue
                failure = failed(self._files, batch, first + at, error)
                if failure is not None:
                    self._end(number, batch, first + at, 0, failure)
                    at += 1
                    self._waker.wake()
