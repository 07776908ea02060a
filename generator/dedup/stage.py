"""The generator's stage behind the ledger of answers: what has an answer already never reaches it.

The polling thread offers; the stage within hands over from threads of its own; the thread of the
table delivers stored answers. All three move the same state machine under one lock; what it
decides is carried out by the polling thread, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.kafka.topic_table import TableLog, TopicTable
from carpool.loop.stage import Credit, Done, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from generator.answers import Timings, bounded_answer_output, failed, replayed
from generator.plan.answer_dedup import (
    AnswerDedup,
    DedupAction,
    DedupQuery,
    GenerateAnswer,
    LoggedAnswer,
    RefuseConflict,
    ReplayAnswer,
    SkipAnswered,
)
from generator.plan.query_digest import query_digest
from generator.query_in_progress import deadline_us_of
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.record import Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS

log = structlog.get_logger()

UNSEEN_MAX = 10_000
"""Answers handed over that the log does not show yet; beyond, nothing more is taken in."""
HELD_WAKE_US = 10_000
"""Longest wait between two ticks while something is held: what ends the wait happens on other
threads.
"""


class DedupStage:
    """Implements `Stage[Retrieval]` around another one; see `carpool.loop.stage` for what each
    method promises.

    It holds, within the credit of the stage within: units whose id is at work already, units whose
    stored answer is being fetched, and units whose partition's answers are not read yet. Of such a
    partition no more come, or they would leave no room for those of partitions that are ready.
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
        self._assigned: set[TopicPartition] = (
            set()
        )  # at any time: what was revoked since does no harm
        self._held: dict[int, tuple[Unit[Retrieval], int]] = {}  # with when it arrived
        self._held_bytes = 0
        self._decided: deque[DedupAction] = deque()
        self._sink: Sink | None = None
        self.table = TopicTable(answers, self, clock, horizon_ms=settings.dedup_horizon_ms)
        metrics.generator.dedup_ids.set_function(lambda: self._dedup.ids)

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the stage within, and the thread that reads the answers."""
        self._sink = sink
        self._within.start(_Overheard(sink, self))
        self.table.start()

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Begins to read the answers of these partitions; their units are held until that is
        done.
        """
        numbers = sorted(at.partition for at in partitions)
        self._assigned |= partitions
        with self._lock:
            self._dedup.assigned(numbers)
        self.table.read(numbers)
        self._within.assigned(partitions)

    def credit(self) -> Credit:
        """Returns what the stage within takes, less what is held; none while too many answers are
        not in the log yet.
        """
        credit = self._within.credit()
        with self._lock:
            unread = self._dedup.unread
            is_behind = self._dedup.handed_over >= UNSEEN_MAX
            return Credit(
                records=0 if is_behind else max(0, credit.records - len(self._held)),
                size_bytes=0 if is_behind else max(0, credit.size_bytes - self._held_bytes),
                paused_partitions=frozenset(at for at in self._assigned if at.partition in unread)
                if unread
                else frozenset(),
            )

    def offer(self, unit: Unit[Retrieval], now_us: int) -> None:
        """Takes a unit, and passes it on unless it has an answer, or must wait to know."""
        with self._lock:
            self._held[unit.id] = (unit, now_us)
            self._held_bytes += unit.message.size_bytes
            self._decided.extend(self._dedup.arrived(_asked(unit)))
        self._carry_out(now_us)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Does what was decided meanwhile, lets go of what is late, ticks the stage within."""
        with self._lock:
            self._decided.extend(self._dedup.expired(now_us))
        self._carry_out(now_us)
        wake_us = self._within.tick(now_us, waiting, next_commit_at_us)
        with self._lock:
            if not self._held:
                return wake_us
        soon_us = now_us + HELD_WAKE_US
        return soon_us if wake_us is None else min(wake_us, soon_us)

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets units, here and within."""
        with self._lock:
            for unit_id in unit_ids:
                self._release(unit_id)
            self._decided.extend(self._dedup.revoked(unit_ids))
        self._within.revoke(unit_ids)

    def drain(self, until_us: int) -> None:
        """Says so to the stage within, which takes what is held here while it comes free."""
        self._within.drain(until_us)

    def not_ready(self) -> Sequence[str]:
        """Returns what is read and how far, what stands in the way, and what the stage within
        lacks.
        """
        with self._lock:
            unread, unseen = self._dedup.unread, self._dedup.handed_over
        reasons = []
        if (trouble := self.table.trouble) is not None:
            reasons.append(f"the answers cannot be read, which is tried again: {trouble}")
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
                unit, arrived_us = self._held.get(action.unit_id, (None, 0))
                if unit is None:
                    continue  # revoked meanwhile
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
                    self._answer(
                        unit,
                        _conflict(unit.record, Timings(arrived_us=arrived_us, ended_us=now_us)),
                    )
                case ReplayAnswer(partition=partition, offset=offset):
                    self.table.fetch(unit.id, partition, offset)

    # ---- any thread

    def _release(self, unit_id: int) -> None:
        """Holds a unit no longer. The lock is held."""
        unit, _ = self._held.pop(unit_id, (None, 0))
        if unit is not None:
            self._held_bytes -= unit.message.size_bytes

    def _answer(self, unit: Unit[Retrieval], answer: Answer) -> None:
        self._metrics.loop.answers.labels(stage="generator", status=answer.status).inc()
        self._hand_over(
            unit, (bounded_answer_output(answer, unit.record.headers, self._clock.now_us()),)
        )

    def _hand_over(self, unit: Unit[Retrieval], outputs: tuple[Output, ...]) -> None:
        assert self._sink is not None, "a stage is started before it is offered anything"
        done = Done(parts=((unit.id, 0),), outputs=outputs)
        self.ended(done)
        self._sink.done(done)

    def ended(self, done: Done) -> None:
        """Takes note of work before it is handed over: from then on its answer may be seen in the
        log.

        A failure counts as none: the query may go round again, and its `failed` answer would change
        nothing.
        """
        has_answer = done.failure is None and any(
            output.topic == ANSWERS.name for output in done.outputs
        )
        with self._lock:
            for unit_id, _ in done.parts:
                self._decided.extend(self._dedup.ended(unit_id, has_answer=has_answer))

    def check_integrity(self) -> None:
        """Asserts what must hold between two calls."""
        with self._lock:
            self._dedup.check_integrity()
            assert self._held_bytes == sum(
                unit.message.size_bytes for unit, _ in self._held.values()
            ), "bytes add up"

    # ---- the thread of the table

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Takes note of answers. A record that is no answer that this build can read is passed
        over, and counted.
        """
        said = [(message, _decoded(message)) for message in messages]
        with self._lock:
            for message, answer in said:
                if answer is not None:
                    self._decided.extend(self._dedup.seen(_seen(answer, message.source)))
                elif message.value is None and message.key is not None:
                    self._dedup.deleted(message.key.decode("utf-8", "replace"))
                else:
                    self._metrics.generator.dedup_decisions.labels(result="unreadable").inc()

    def partition_read(self, partition: int) -> None:
        """Lets go of what waited for this partition."""
        with self._lock:
            self._decided.extend(self._dedup.read(partition))

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """Answers a unit again, as its id was answered before."""
        stored = None if message is None else _decoded(message)
        now_us = self._clock.now_us()
        with self._lock:
            unit, arrived_us = self._held.get(request_id, (None, 0))
            if unit is None:
                return
            deadline_us = deadline_us_of(unit.record)
            if deadline_us is not None and deadline_us <= now_us:
                return  # the next tick lets it expire
            if (
                stored is None
                or stored.status != "ok"
                or stored.query_id != unit.record.query.query_id
            ):
                self._decided.extend(self._dedup.gone(request_id, offset))
                return
            self._release(request_id)
        self._metrics.generator.dedup_decisions.labels(result="replayed").inc()
        self._answer(
            unit, replayed(stored, unit.record, Timings(arrived_us=arrived_us, ended_us=now_us))
        )

    def table_failed(self, error: CarpoolError) -> None:
        """Ends the service: without the ledger, answers would be given twice."""
        assert self._sink is not None
        self._sink.fail(error)


class _Overheard:
    """The sink of the stage within: every word goes on, and what ends a unit is noted first."""

    def __init__(self, sink: Sink, stage: DedupStage) -> None:
        self._stage = stage
        self._sink = sink
        self.hint = sink.hint
        self.fail = sink.fail

    def done(self, done: Done) -> None:
        """See `carpool.loop.stage.Sink`."""
        self._stage.ended(done)
        self._sink.done(done)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """See `carpool.loop.stage.Sink`."""
        self._stage.ended(Done(parts=((unit.id, 0),), outputs=()))
        self._sink.refuse(unit, error)


def _asked(unit: Unit[Retrieval]) -> DedupQuery:
    retrieval = unit.record
    return DedupQuery(
        unit_id=unit.id,
        query_id=retrieval.query.query_id,
        source=retrieval.source,
        digest=query_digest(retrieval.query),
        partition=unit.source.partition,
        deadline_us=deadline_us_of(retrieval),
    )


def _seen(answer: Answer, place: Source) -> LoggedAnswer:
    return LoggedAnswer(
        query_id=answer.query_id,
        source=answer.source,
        status=answer.status,
        digest=answer.query_digest,
        partition=place.partition,
        offset=place.offset,
    )


def _conflict(retrieval: Retrieval, timings: Timings) -> Answer:
    message = (
        "query_id: this id has an answer to another question already, and an id belongs to one "
        "question; publish this one under an id of its own"
    )
    return failed(retrieval, timings, "conflict", message)


def _decoded(message: Message) -> Answer | None:
    try:
        return decode(Answer, message.value, message.headers)
    except RecordError:
        return None
