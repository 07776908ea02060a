"""Opens what reads: io_uring where the kernel allows it, else threads."""

from __future__ import annotations

from typing import Literal

import structlog

from carpool.clock import Clock
from carpool.errors import ConfigError
from searcher.store.engine import BlockEngine
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.threads import ThreadEngine
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)

EngineName = Literal["auto", "io_uring", "threads"]
PAGE_READ_THREADS = 16


def open_engine(
    name: EngineName, files: SegmentFiles, *, depth: int, prefetch_depth: int, clock: Clock
) -> BlockEngine:
    """Returns an engine over `files`, not started.

    Containers often forbid io_uring (seccomp), and old kernels lack it. Then "auto" logs a warning,
    and "io_uring" raises `ConfigError`.
    """
    if name != "threads":
        try:
            # It can be imported on Linux only.
            from searcher.store.io_uring_engine import IoUringEngine

            return IoUringEngine(files, depth=depth, prefetch_depth=prefetch_depth, clock=clock)
        except (ImportError, OSError) as error:
            if name == "io_uring":
                raise ConfigError(
                    f'[searcher] engine is "io_uring", which does not work here: {error}; '
                    "containers often forbid it. Allow the "
                    'io_uring system calls, or set engine = "auto" (threads then)'
                ) from error
            _log.warning(
                "no io_uring", error=str(error), means="threads read instead, at a little more CPU"
            )
    return ThreadEngine(files.read_block, depth=depth, prefetch_depth=prefetch_depth, clock=clock)


def open_page_reads(name: EngineName, files: SegmentFiles, waker: Waker, clock: Clock) -> PageReads:
    """Returns batches of small reads of `files`, which wake `waker` when one ends.

    Where the kernel refuses io_uring, threads read, and a warning is logged.
    """
    if name != "threads":
        try:
            # It can be imported on Linux only.
            from searcher.store.ring_page_reads import RingPageReads

            return RingPageReads(files, waker, clock)
        except (ImportError, OSError) as error:
            _log.warning("no io_uring", error=str(error), means="threads read instead")
    return ThreadPageReads(files, waker, clock, PAGE_READ_THREADS)
