"""Opens what reads: io_uring where the kernel allows it, else threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import structlog

from carpool.clock import Clock
from carpool.errors import ConfigError
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)

EngineName = Literal["auto", "io_uring", "threads"]
OpenReads = Callable[[SegmentFiles, Waker], PageReads]
PAGE_READ_THREADS = 16


def open_page_reads(
    name: EngineName,
    files: SegmentFiles,
    waker: Waker,
    clock: Clock,
    threads: int = PAGE_READ_THREADS,
) -> PageReads:
    """Returns batches of reads of `files`, which wake `waker` when one ends.

    Containers often forbid io_uring (seccomp), and old kernels lack it. Then "auto" logs a warning,
    and takes so many threads; "io_uring" raises `ConfigError`.
    """
    if name != "threads":
        try:
            # It can be imported on Linux only.
            from searcher.store.ring_page_reads import RingPageReads

            return RingPageReads(files, waker, clock)
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
    return ThreadPageReads(files, waker, clock, threads)
