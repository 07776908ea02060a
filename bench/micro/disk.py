"""What the disk can do: O_DIRECT reads of given sizes in random order at several depths, as fio
would, without verifying.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np

from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.errors import ConfigError

DEPTHS = (1, 2, 4, 8, 16)
DURATION_S = 0.8


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """One read: both numbers multiples of 4096."""

    path: Path
    offset_bytes: int
    size_bytes: int


class DiskRate(msgspec.Struct, frozen=True, kw_only=True):
    """What a depth (reads outstanding at once) reached."""

    depth: int
    reads: int
    bytes_read: int
    duration_us: int

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second."""
        return self.bytes_read / max(self.duration_us, 1) * 1e6


class DiskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of every depth."""

    rates: tuple[DiskRate, ...]


def measure_disk(
    reads: Sequence[Read],
    *,
    seed: int,
    depths: Sequence[int] = DEPTHS,
    duration_s: float = DURATION_S,
    into_bytes: int = 0,
) -> DiskFigures:
    """Returns what these reads reach in random order, `duration_s` for each depth, again from the
    start when all were made.

    A thread for each outstanding read. They read into `into_bytes` of memory in turn, at least a
    buffer for each thread: few buffers stay in the processor's caches, where a disk may write
    sooner than to memory, and a cache that keeps what it reads has none such. Blocks. Raises
    `ConfigError` where the file system has no O_DIRECT or no disk: memory would be measured.
    """
    if not reads:
        raise ValueError("no reads to measure with")
    buffer_bytes = max(read.size_bytes for read in reads)
    count = max(*depths, into_bytes // buffer_bytes)
    order = np.random.default_rng(seed).permutation(len(reads))
    with ExitStack() as stack:
        files = {path: _opened(path, stack) for path in sorted({read.path for read in reads})}
        jobs = [
            (files[reads[at].path], reads[at].offset_bytes, reads[at].size_bytes) for at in order
        ]
        memory = _memory(count * buffer_bytes)
        stack.callback(memory.close)
        whole = stack.enter_context(memoryview(memory))
        buffers = [
            stack.enter_context(whole[at * buffer_bytes : (at + 1) * buffer_bytes])
            for at in range(count)
        ]
        return DiskFigures(
            rates=tuple(
                _rate(jobs, buffers if into_bytes else buffers[:depth], depth, duration_s)
                for depth in depths
            )
        )


def _memory(size_bytes: int) -> mmap.mmap:
    """Returns memory in large pages where there are any, as the arena's: requests to the disk are
    larger then. Used once before, so that the system's giving it is not measured.
    """
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
    jobs: Sequence[tuple[int, int, int]],
    buffers: Sequence[memoryview],
    depth: int,
    duration_s: float,
) -> DiskRate:
    """Buffers are used in turn, at least `depth` of them: one is free again when its turn comes."""
    lock = threading.Lock()
    free = deque(buffers)
    done = [0, 0, 0]  # the next job, reads, bytes
    failures: list[OSError] = []
    deadline_s = time.monotonic() + duration_s

    def work() -> None:
        while time.monotonic() < deadline_s and not failures:
            with lock:
                file, offset, size = jobs[done[0] % len(jobs)]
                done[0] += 1
                buffer = free.popleft()
            try:
                with buffer[:size] as view:
                    read = _read_all(file, view, offset)
            except OSError as error:
                failures.append(error)
                return
            with lock:
                free.append(buffer)
                done[1] += 1
                done[2] += read

    threads = [threading.Thread(target=work, name="disk-figure") for _ in range(depth)]
    start_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    duration_us = int((time.monotonic() - start_s) * 1e6)
    if failures:
        raise ConfigError(f"cannot measure the disk: {failures[0].strerror}") from failures[0]
    return DiskRate(depth=depth, reads=done[1], bytes_read=done[2], duration_us=duration_us)


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
