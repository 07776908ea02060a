"""Which engine reads: io_uring where the kernel has it and allows it, threads elsewhere."""

from __future__ import annotations

from typing import Literal

import structlog

from carpool.clock import Clock
from carpool.errors import ConfigError
from searcher.store.engine import BlockEngine
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine

_log = structlog.get_logger(__name__)

EngineName = Literal["auto", "io_uring", "threads"]


def open_engine(
    name: EngineName, files: SegmentFiles, *, depth: int, prefetch_depth: int, clock: Clock
) -> BlockEngine:
    """Returns an engine over `files`, not started. Raises `ConfigError` where io_uring is asked for
    and cannot be had.

    Containers often forbid io_uring (seccomp), and old kernels lack it: with "auto" that is a line
    in the log.
    """
    if name != "threads":
        try:
            from searcher.store.io_uring_engine import (
                IoUringEngine,  # outside Linux it cannot be imported
            )

            return IoUringEngine(files, depth=depth, prefetch_depth=prefetch_depth, clock=clock)
        except (ImportError, OSError) as error:
            if name == "io_uring":
                raise ConfigError(
                    f'[searcher] engine is "io_uring", which cannot be had here: {error}; '
                    "containers often forbid it. Allow the "
                    'io_uring system calls, or set engine = "auto" (threads then)'
                ) from error
            _log.warning(
                "no io_uring", error=str(error), means="threads read instead, at a little more CPU"
            )
    return ThreadEngine(files.read_block, depth=depth, prefetch_depth=prefetch_depth, clock=clock)
