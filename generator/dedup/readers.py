"""The listeners of tables: of the answers, which queries wait for, and of cancels and drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import structlog

from carpool.errors import CarpoolError
from carpool.kafka.records import Message
from carpool.kafka.topic_table import TableListener
from carpool.telemetry.metrics import Metrics
from generator.dedup.units import answer_in
from generator.plan.answer_dedup import AnswerDedup
from generator.plan.dedup_actions import DedupAction
from schemas.answer import Answer
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.record import Record

log = structlog.get_logger()
R = TypeVar("R", bound=Record)


class AnswersReader(TableListener):
    """Tells the plan, by `decide`, what the log of answers shows."""

    def __init__(
        self,
        decide: Callable[[Callable[[AnswerDedup], Iterable[DedupAction]]], None],
        fetched: Callable[[int, int, Message | None], None],
        failed: Callable[[CarpoolError], None],
        metrics: Metrics,
    ) -> None:
        """`fetched`: gets a stored answer, and for which unit; `failed`: ends the service."""
        self._decide = decide
        self._fetched = fetched
        self._failed = failed
        self._decisions = metrics.generator.dedup_decisions

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Notes answers. A record that is no readable answer is counted and ignored."""
        rows = [(message, answer_in(message)) for message in messages]
        self._decide(lambda plan: self._seen(plan, rows))

    def _seen(
        self, plan: AnswerDedup, rows: Sequence[tuple[Message, Answer | None]]
    ) -> Iterator[DedupAction]:
        for message, answer in rows:
            if answer is not None:
                yield from plan.seen(answer, message.source.partition, message.source.offset)
            elif message.value is None and message.key is not None:
                plan.deleted(message.key.decode("utf-8", "replace"))
            else:
                self._decisions.labels(result="unreadable").inc()

    def partition_read(self, partition: int) -> None:
        """Decides the units that waited for this partition."""
        self._decide(lambda plan: plan.read(partition))

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """Passes on the stored answer to the id or the prompt of a unit."""
        self._fetched(request_id, offset, message)

    def table_failed(self, error: CarpoolError) -> None:
        """Ends the service: without the log, queries would be answered twice."""
        self._failed(error)


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
