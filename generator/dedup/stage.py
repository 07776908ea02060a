"""The stage in front of the generator's: queries that have an answer never reach the model.

Three threads use one state machine under a lock: the polling thread offers units, the stage within
hands over results, and the thread of the table delivers stored answers. The polling thread carries
out the actions, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.kafka.topic_table import TableLog, TopicTable
from carpool.loop.stage import Credit, Done, QueryFailure, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from generator.answers import bounded_answer_output, failed, replayed
from generator.plan.answer_dedup import (
    AnswerDedup,
    DedupAction,
    DedupQuery,
    GenerateAnswer,
    RefuseConflict,
    ReplayAnswer,
    SkipAnswered,
)
from generator.plan.query_digest import query_digest
from generator.query_in_progress import QueryProgress, deadline_us_of, query_failure
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS

UNSEEN_MAX = 10_000
"""Most answers handed over that the log does not show yet; above it, `credit` is zero."""
CONFLICT = (
    "query_id: this id has an answer to another question already, and an id belongs to one "
    "question; publish this one under an id of its own"
)
WAITING_WAKE_US = 10_000
"""Longest wait between two ticks while units wait: other threads end their wait."""


class DedupStage:
    """Implements `Stage[Retrieval]` around another stage; `carpool.loop.stage` has the contract.

    Units wait here while another unit has their id, while their stored answer is fetched, and until
    the answers of their partition are read. They count towards the credit of the stage within, so a
    partition whose answers are not read is paused: its units would take the room of others.
    """

    def __init__(
        self,
        within: Stage[Retrieval],
        answers: TableLog,
        settings: GeneratorSettings,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._within = within
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._dedup = AnswerDedup(ids_max=settings.dedup_ids_max)
        self._assigned: set[TopicPartition] = set()
        self._waiting: dict[int, tuple[Unit[Retrieval], int]] = {}  # with the arrival
        self._waiting_bytes = 0
        self._decided: deque[DedupAction] = deque()
        self._sink: Sink | None = None
        self.table = TopicTable(
            answers,
            self,
            clock,
            horizon_ms=settings.dedup_horizon_ms,
            rows_max=settings.dedup_ids_max,
        )
        metrics.generator.dedup_ids.set_function(lambda: self._dedup.ids)

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the stage within, and the thread that reads the answers."""
        self._sink = sink
        self._within.start(_NotingSink(sink, self))
        self.table.start()

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Begins to read the answers of these partitions; their units wait for the end of that."""
        numbers = sorted(at.partition for at in partitions)
        self._assigned |= partitions
        with self._lock:
            self._dedup.assigned(numbers)
        self.table.read(numbers)
        self._within.assigned(partitions)

    def credit(self) -> Credit:
        """Returns the credit of the stage within, less the units that wait here.

        Zero while the log shows too few of the answers handed over.
        """
        credit = self._within.credit()
        with self._lock:
            unread = self._dedup.unread
            is_behind = self._dedup.handed_over >= UNSEEN_MAX
            return Credit(
                records=0 if is_behind else max(0, credit.records - len(self._waiting)),
                size_bytes=0 if is_behind else max(0, credit.size_bytes - self._waiting_bytes),
                paused_partitions=frozenset(at for at in self._assigned if at.partition in unread)
                if unread
                else frozenset(),
            )

    def offer(self, unit: Unit[Retrieval], now_us: int) -> None:
        """Takes a unit, and passes it on unless it has an answer or must wait."""
        with self._lock:
            self._waiting[unit.id] = (unit, now_us)
            self._waiting_bytes += unit.message.size_bytes
            self._decided.extend(self._dedup.arrived(_dedup_query(unit)))
        self._carry_out(now_us)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Carries out actions, passes on late units, and ticks the stage within."""
        with self._lock:
            self._decided.extend(self._dedup.expired(now_us))
        self._carry_out(now_us)
        wake_us = self._within.tick(now_us, waiting, next_commit_at_us)
        with self._lock:
            if not self._waiting:
                return wake_us
        soon_us = now_us + WAITING_WAKE_US
        return soon_us if wake_us is None else min(wake_us, soon_us)

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets units, here and within, and ends the reading of answers that are not needed."""
        self._assigned -= partitions
        still = {at.partition for at in self._assigned}
        gone = {at.partition for at in partitions} - still
        self.table.forget(gone)
        with self._lock:
            self._dedup.given_away(gone)
            for unit_id in unit_ids:
                self._release(unit_id)
            self._decided.extend(self._dedup.revoked(unit_ids))
        self._within.revoke(unit_ids, partitions)

    def drain(self, until_us: int) -> None:
        """Drains the stage within; units that wait here still reach it."""
        self._within.drain(until_us)

    def not_ready(self) -> Sequence[str]:
        """Returns which answers are still read, why not, and what the stage within reports."""
        with self._lock:
            unread, unseen = self._dedup.unread, self._dedup.handed_over
        reasons = []
        if (trouble := self.table.trouble) is not None:
            reasons.append(f"the answers cannot be read; retrying: {trouble}")
        if unread:
            numbers = ", ".join(map(str, unread))
            reasons.append(f"reading the answers of partitions {numbers}: {self.table.share:.0%}")
        if unseen >= UNSEEN_MAX:
            reasons.append(
                f"{unseen} answers were handed over that {ANSWERS.name} does not show yet"
            )
        return (*reasons, *self._within.not_ready())

    def close(self) -> None:
        """Ends the reading, then the stage within."""
        self.table.close()
        self._within.close()

    def _carry_out(self, now_us: int) -> None:
        while True:
            with self._lock:
                if not self._decided:
                    return
                action = self._decided.popleft()
                unit, arrived_us = self._waiting.get(action.unit_id, (None, 0))
                if unit is None:
                    continue  # revoked since
                if not isinstance(action, ReplayAnswer):
                    self._release(unit.id)
            match action:
                case GenerateAnswer():
                    self._within.offer(unit, now_us)
                case SkipAnswered():
                    self._metrics.generator.dedup_decisions.labels(result="skipped").inc()
                    self._hand_over(unit, ())
                case RefuseConflict():
                    self._metrics.generator.dedup_decisions.labels(result="conflict").inc()
                    progress = QueryProgress(arrived_us=arrived_us)
                    answer = failed(unit.record, progress, now_us, "conflict", CONFLICT)
                    failure = query_failure(unit.record, "conflict", CONFLICT, is_refusal=True)
                    output = bounded_answer_output(answer, unit.record.headers, now_us)
                    self._hand_over(unit, (output,), failure)
                case ReplayAnswer(partition=partition, offset=offset):
                    self.table.fetch(unit.id, partition, offset)

    # ---- any thread

    def _release(self, unit_id: int) -> None:
        """Removes a unit that waits. The caller has the lock."""
        unit, _ = self._waiting.pop(unit_id, (None, 0))
        if unit is not None:
            self._waiting_bytes -= unit.message.size_bytes

    def _answer(self, unit: Unit[Retrieval], answer: Answer) -> None:
        self._metrics.loop.answers.labels(stage="generator", status=answer.status).inc()
        now_us = self._clock.now_us()
        self._hand_over(unit, (bounded_answer_output(answer, unit.record.headers, now_us),))

    def _hand_over(
        self,
        unit: Unit[Retrieval],
        outputs: tuple[Output, ...],
        failure: QueryFailure | None = None,
    ) -> None:
        assert self._sink is not None, "a stage is started before it is offered anything"
        done = Done(parts=((unit.id, 0),), outputs=outputs, failure=failure)
        self.ended(done)
        self._sink.done(done)

    def ended(self, done: Done) -> None:
        """Notes a result before it is handed over; after that the log may show its answer.

        A failure that is no refusal counts as no answer, because the query may be retried.
        """
        may_retry = done.failure is not None and not done.failure.is_refusal
        has_answer = not may_retry and any(output.topic == ANSWERS.name for output in done.outputs)
        with self._lock:
            for unit_id, _ in done.parts:
                self._decided.extend(self._dedup.ended(unit_id, has_answer=has_answer))

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        with self._lock:
            self._dedup.check_integrity()
            assert self._waiting_bytes == sum(
                unit.message.size_bytes for unit, _ in self._waiting.values()
            ), "bytes add up"

    # ---- the thread of the table

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Notes answers. A record that is no readable answer is counted and ignored."""
        decoded = [(message, _decoded(message)) for message in messages]
        with self._lock:
            for message, answer in decoded:
                if answer is not None:
                    place = message.source
                    seen = self._dedup.seen(answer, place.partition, place.offset)
                    self._decided.extend(seen)
                elif message.value is None and message.key is not None:
                    self._dedup.deleted(message.key.decode("utf-8", "replace"))
                else:
                    self._metrics.generator.dedup_decisions.labels(result="unreadable").inc()

    def partition_read(self, partition: int) -> None:
        """Decides the units that waited for this partition."""
        with self._lock:
            self._decided.extend(self._dedup.read(partition))

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """Answers a unit with the stored answer to its id."""
        stored = None if message is None else _decoded(message)
        now_us = self._clock.now_us()
        with self._lock:
            unit, arrived_us = self._waiting.get(request_id, (None, 0))
            if unit is None:
                return
            deadline_us = deadline_us_of(unit.record)
            if deadline_us is not None and deadline_us <= now_us:
                return  # the next tick expires it
            if (
                stored is None
                or stored.status != "ok"
                or stored.query_id != unit.record.query.query_id
            ):
                self._decided.extend(self._dedup.gone(request_id, offset))
                return
            self._release(request_id)
        self._metrics.generator.dedup_decisions.labels(result="replayed").inc()
        progress = QueryProgress(arrived_us=arrived_us)
        self._answer(unit, replayed(stored, unit.record, progress, now_us))

    def table_failed(self, error: CarpoolError) -> None:
        """Ends the service: without the log, queries would be answered twice."""
        assert self._sink is not None
        self._sink.fail(error)


class _NotingSink:
    """The sink of the stage within: notes the end of each unit, then passes it on."""

    def __init__(self, sink: Sink, stage: DedupStage) -> None:
        self._stage = stage
        self._sink = sink
        self.hint = sink.hint
        self.leave_group = sink.leave_group
        self.fail = sink.fail

    def done(self, done: Done) -> None:
        """See `carpool.loop.stage.Sink`."""
        self._stage.ended(done)
        self._sink.done(done)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """See `carpool.loop.stage.Sink`."""
        self._stage.ended(Done(parts=((unit.id, 0),), outputs=()))
        self._sink.refuse(unit, error)


def _dedup_query(unit: Unit[Retrieval]) -> DedupQuery:
    retrieval = unit.record
    return DedupQuery(
        unit_id=unit.id,
        query_id=retrieval.query.query_id,
        source=retrieval.source,
        digest=query_digest(retrieval.query),
        partition=unit.source.partition,
        deadline_us=deadline_us_of(retrieval),
    )


def _decoded(message: Message) -> Answer | None:
    try:
        return decode(Answer, message.value, message.headers)
    except RecordError:
        return None
