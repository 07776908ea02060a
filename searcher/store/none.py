"""An engine without data: every read fails, as on a disk that is gone."""

from __future__ import annotations

from carpool.clock import Clock
from carpool.errors import RetryableError
from searcher.store.engine import BlockRead
from searcher.store.threads import ThreadEngine


class NoEngine(ThreadEngine):
    """Fails every read with `RetryableError`."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(_refuse, depth=1, prefetch_depth=1, clock=clock)


def _refuse(read: BlockRead) -> None:
    raise RetryableError(
        f"segment {read.file} cannot be read at byte {read.offset_bytes}: this engine has no data"
    )
