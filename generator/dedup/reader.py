"""The seam to the log of answers: partitions of `rag.answers.v1`, read from an offset, without a
consumer group.

Two implementations, held to one conformance suite: `librdkafka` (real brokers) and `memory`
(tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carpool.kafka.records import Message


class AnswersReader(Protocol):
    """Reads committed answers. All calls come from one thread, may block for a request's time-out,
    and may raise `RetryableError`, after which the same call may be made again.
    """

    def open(self) -> None:
        """Connects. Raises `ConfigError` when the topic is missing, or partitioned otherwise than
        `rag.retrievals.v1`.
        """
        ...

    def begin(self, partition: int, since_ms: int) -> int:
        """Begins to read a partition, beside those that are read already; returns the offset of the
        first record.

        That is the first one of `since_ms` (epoch milliseconds) or later. Where there is none it is
        the end; or the beginning, as the embedded broker has it.
        """
        ...

    def end(self, partition: int) -> int:
        """Returns the offset that the next record of this partition gets, whether or not all before
        it are committed.
        """
        ...

    def poll(self, timeout_s: float, records_max: int) -> Sequence[Message]:
        """Returns the next committed records of all partitions, those of each in order; fewer than
        `records_max` after `timeout_s`, and then none are left that had been fetched.
        """
        ...

    def position(self, partition: int) -> int:
        """Returns the offset that a partition was read to: of records, transaction markers and what
        was aborted.
        """
        ...

    def fetch(self, partition: int, offset: int) -> Message | None:
        """Returns the one record at this offset, or None when it is there no more (retention,
        compaction).
        """
        ...

    def close(self) -> None:
        """Disconnects."""
        ...
