"""The log of cancels, `rag.cancels.v1`, read as a table. Nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from carpool.errors import CarpoolError
from carpool.kafka.records import Message
from schemas.cancel import Cancel
from schemas.codec import decode
from schemas.errors import RecordError

log = structlog.get_logger()


class CancelsReader:
    """The listener of the table of cancels: passes each to `read`, with its timestamp (ms)."""

    def __init__(self, read: Callable[[Cancel, int], None]) -> None:
        self._read = read

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Passes on cancels. A record that is none is ignored: nobody waits for its effect."""
        for message in messages:
            try:
                cancel = decode(Cancel, message.value, message.headers)
            except RecordError as error:
                log.warning("a record is no cancel", place=message.source.place, error=str(error))
            else:
                self._read(cancel, message.source.timestamp_ms)

    def partition_read(self, partition: int) -> None:
        """Does nothing: no query waits for it."""

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """Is not called: nothing is fetched."""

    def table_failed(self, error: CarpoolError) -> None:
        """Goes on without cancels: queries are answered all the same."""
        log.error("cancels are not followed; withdrawn queries are generated", error=str(error))
