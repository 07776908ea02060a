"""The read rate of a disk: O_DIRECT reads in random order at several depths, not verified."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np

from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.errors import ConfigError

DEPTHS = (1, 2, 4, 8, 16)
DURATION_S = 0.8


class DiskRead(msgspec.Struct, frozen=True, kw_only=True):
    """One read: both numbers are multiples of 4096."""

    path: Path
    offset_bytes: int
    size_bytes: int


class DiskRate(msgspec.Struct, frozen=True, kw_only=True):
    """What was read with `depth` reads in flight."""

    depth: int
    reads: int
    bytes_read: int
    duration_us: int

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second."""
        return self.bytes_read / max(self.duration_us, 1) * 1e6


def measure_disk(
    reads: Sequence[DiskRead],
    *,
    seed: int,
    depths: Sequence[int] = DEPTHS,
    duration_s: float = DURATION_S,
) -> tuple[DiskRate, ...]:
    """Returns the rate of `reads` in random order, repeated, for `duration_s` at each depth.

    One thread and one buffer for each read in flight. Blocks. Raises `ConfigError` where the file
    system has no O_DIRECT.
    """
    if not reads:
        raise ValueError("no reads to measure with")
    buffer_bytes = max(read.size_bytes for read in reads)
    order = np.random.default_rng(seed).permutation(len(reads))
    with ExitStack() as stack:
        files = {path: _opened(path, stack) for path in sorted({read.path for read in reads})}
        jobs = [
            (files[reads[at].path], reads[at].offset_bytes, reads[at].size_bytes) for at in order
        ]
        memory = _memory(max(depths) * buffer_bytes)
        stack.callback(memory.close)
        whole = stack.enter_context(memoryview(memory))
        buffers = [
            stack.enter_context(whole[at * buffer_bytes : (at + 1) * buffer_bytes])
            for at in range(max(depths))
        ]
        return tuple(_rate(jobs, buffers[:depth], duration_s) for depth in depths)


def _memory(size_bytes: int) -> mmap.mmap:
    """Returns memory in large pages where there are any, touched once, as the searcher's arena."""
    buffer = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size_bytes, mmap.PAGESIZE):
        buffer[at] = 1
    return buffer


def _opened(path: Path, stack: ExitStack) -> int:
    try:
        file = open_direct(path)
    except (NoDirectReadError, OSError) as error:
        why = f"its file system {error}" if isinstance(error, NoDirectReadError) else error.strerror
        raise ConfigError(
            f"cannot measure the disk by {path}: {why}; put the index on a local disk (ext4, xfs)"
        ) from error
    stack.callback(os.close, file)
    return file


def _rate(
    jobs: Sequence[tuple[int, int, int]], buffers: Sequence[memoryview], duration_s: float
) -> DiskRate:
    lock = threading.Lock()
    done = [0, 0, 0]  # the next job, reads, bytes
    failures: list[OSError] = []
    deadline_s = time.monotonic() + duration_s

    def work(buffer: memoryview) -> None:
        is_late = False
        while not is_late and not failures:  # one read at least, however busy the machine is
            with lock:
                file, offset, size = jobs[done[0] % len(jobs)]
                done[0] += 1
            try:
                with buffer[:size] as view:
                    read = _read_all(file, view, offset)
            except OSError as error:
                failures.append(error)
                return
            with lock:
                done[1] += 1
                done[2] += read
            is_late = time.monotonic() >= deadline_s

    threads = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
    start_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    duration_us = int((time.monotonic() - start_s) * 1e6)
    if failures:
        raise ConfigError(f"cannot measure the disk: {failures[0].strerror}") from failures[0]
    return DiskRate(depth=len(buffers), reads=done[1], bytes_read=done[2], duration_us=duration_us)


def _read_all(file: int, view: memoryview, offset_bytes: int) -> int:
    """Fills `view`, returns the bytes read: fewer at the end of the file."""
    at = 0
    while at < len(view):
        with view[at:] as rest:
            read = os.preadv(file, [rest], offset_bytes + at)
        if not read:
            break
        at += read
    return at
