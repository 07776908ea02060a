"""The listener of a table that nothing waits for: cancels, drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

from carpool.errors import CarpoolError
from carpool.kafka.records import Message
from carpool.kafka.topic_table import TableListener
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.record import Record

log = structlog.get_logger()
R = TypeVar("R", bound=Record)


class RecordsReader(TableListener, Generic[R]):
    """Passes each record to `read`, with its timestamp (ms)."""

    def __init__(self, kind: type[R], read: Callable[[R, int], None], *, without: str) -> None:
        """`without`: what happens if the topic cannot be read, for the log."""
        self._kind = kind
        self._read = read
        self._without = without

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Passes on records. One of another kind is ignored: nobody waits for its effect."""
        for message in messages:
            try:
                record = decode(self._kind, message.value, message.headers)
            except RecordError as error:
                log.warning("ignores a record", place=message.source.place, error=str(error))
            else:
                self._read(record, message.source.timestamp_ms)

    def table_failed(self, error: CarpoolError) -> None:
        """Goes on without the records."""
        log.error(f"a topic cannot be read, so {self._without}", error=str(error))
