"""Opens the engine that reads: io_uring where the kernel allows it, else threads."""

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
