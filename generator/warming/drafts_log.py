"""The log of drafts, `rag.retrievals.draft.v1`, followed from its end. Nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from carpool.errors import CarpoolError
from carpool.kafka.records import Message
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.retrieval import Retrieval

log = structlog.get_logger()

HORIZON_MS = 2_000
"""Age of the oldest drafts that are read at a start: older ones are of searches that have ended."""
READ_MAX = 1_000


class DraftsReader:
    """The listener of the table of drafts: passes each to `read`."""

    def __init__(self, read: Callable[[Retrieval], None]) -> None:
        self._read = read

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Passes on drafts. A record that is no draft is ignored: its prompt is not warmed."""
        for message in messages:
            try:
                draft = decode(Retrieval, message.value, message.headers)
            except RecordError as error:
                log.warning(
                    "ignores a record: no draft", place=message.source.place, error=str(error)
                )
                continue
            if not draft.is_final:
                self._read(draft)

    def partition_read(self, partition: int) -> None:
        """Does nothing: no query waits for it."""

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """Is not called: nothing is fetched."""

    def table_failed(self, error: CarpoolError) -> None:
        """Goes on without drafts: prompts are computed when they are sent."""
        log.error("cannot read drafts, so no prompt is warmed", error=str(error))
