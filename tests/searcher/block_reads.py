"""Reads of blocks and their ends, for the tests of the engines."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from carpool.clock import SystemClock
from searcher.store.engine import BlockEngine, BlockError, BlockRead
from searcher.store.factory import EngineName, open_engine
from searcher.store.files import SegmentFiles
from searcher.store.io_uring import Ring


def has_io_uring() -> bool:
    """Containers often forbid it."""
    wake = os.eventfd(0)
    try:
        Ring(1, wake).close()
    except OSError:
        return False
    finally:
        os.close(wake)
    return True


HAS_IO_URING = has_io_uring()
PAGE = 4096
SIZES = (96 * PAGE, 40 * PAGE)
ENGINE_NAMES: tuple[EngineName, ...] = ("io_uring", "threads") if HAS_IO_URING else ("threads",)


class Ends:
    """The ends that an engine reported, and on which threads."""

    def __init__(self) -> None:
        self.errors: dict[int, BlockError | None] = {}
        self.times: Counter[int] = Counter()
        self.threads: set[int] = set()
        self.latencies_us: list[int] = []
        self.changed = threading.Condition()

    def __call__(self, token: int, error: BlockError | None, latency_us: int) -> None:
        with self.changed:
            self.errors[token] = error
            self.times[token] += 1
            self.threads.add(threading.get_ident())
            self.latencies_us.append(latency_us)
            self.changed.notify_all()

    def wait(self, count: int) -> dict[int, BlockError | None]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.errors) >= count, timeout=30), self.errors
            assert set(self.times.values()) <= {1}, "a read was told twice"
            return dict(self.errors)


@contextmanager
def engine_at_work(
    kind: EngineName, paths: Sequence[Path], depth: int = 2
) -> Iterator[tuple[BlockEngine, Ends]]:
    """A started engine over `paths`, read with O_DIRECT; closed at the end."""
    files, ends = SegmentFiles(paths, "require"), Ends()
    engine = open_engine(kind, files, depth=depth, prefetch_depth=1, clock=SystemClock())
    engine.start(ends)
    yield engine, ends
    assert engine.close(30)
    files.close()


def refuse_direct(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Makes the file system refuse O_DIRECT when a file is opened, or when it is read, as some
    do.
    """
    real_open, real_preadv, direct = os.open, os.preadv, set()

    def fake_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        file = real_open(path, flags, *rest, **named)
        if flags & os.O_DIRECT:
            direct.add(file)
        else:
            direct.discard(file)
        return file

    def fake_preadv(file: int, *rest: Any) -> int:
        if file in direct and at == "read":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(file, *rest)

    monkeypatch.setattr(os, "open", fake_open)
    monkeypatch.setattr(os, "preadv", fake_preadv)


def buffer_of(size_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size_bytes))


def block(
    token: int, file: int, first_page: int, *pages: int, is_prefetch: bool = False
) -> BlockRead:
    """A read from `first_page` of `file` into buffers of so many pages."""
    return BlockRead(
        token=token,
        file=file,
        offset_bytes=first_page * PAGE,
        buffers=tuple(buffer_of(count * PAGE) for count in pages),
        is_prefetch=is_prefetch,
    )


def content(read: BlockRead) -> bytes:
    return b"".join(bytes(buffer) for buffer in read.buffers)


def expected(paths: Sequence[Path], read: BlockRead) -> bytes:
    return paths[read.file].read_bytes()[read.offset_bytes : read.offset_bytes + read.size_bytes]
