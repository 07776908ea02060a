"""The stage in front of the generator's: queries that have an answer never reach the model.

Three threads use one state machine under a lock: the polling thread offers units, the stage within
hands over results, and the thread of the table delivers stored answers. The polling thread carries
out the actions, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeAlias

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.topic_log import TopicLog
from carpool.kafka.topic_table import TableListener, TopicTable
from carpool.loop.ends import one_by_one
from carpool.loop.stage import Credit, Done, Sink, Unit
from carpool.telemetry.metrics import Metrics
from generator.dedup.given_answers import GivenAnswers
from generator.dedup.prompt_stage import NotingSink, PromptStage
from generator.dedup.records_reader import RecordsReader
from generator.dedup.units import answer_in, dedup_query, fits
from generator.plan.answer_dedup import (
    AnswerBeside,
    AnswerDedup,
    DedupAction,
    GenerateAnswer,
    ReplayAnswer,
    SkipAnswered,
)
from generator.plan.cancels import CancelQuery, Cancels
from generator.plan.reuse import Hasten, PassOn, PromptReuse, ReuseAction
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.cancel import Cancel
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, CANCELS

StageAction: TypeAlias = DedupAction | ReuseAction | CancelQuery
IDS_MAX = 1_000_000
"""Ids with an answer, prompts, and cancels that are remembered: about 400, 320 and 100 bytes each.
The oldest is forgotten first, and generated again if it is published again."""
DRAFTS_HORIZON_MS, DRAFTS_MAX = 2_000, 1_000
"""Older drafts, at a start, are of searches that have ended."""
UNSEEN_MAX = 10_000
"""Most answers handed over that the log does not show yet; above it, `credit` is zero."""
WAITING_WAKE_US = 10_000
"""Longest wait between two ticks while units wait: other threads end their wait."""
OTHERS_READ_US_MAX = 2_000_000
"""Longest wait of a prompt for the answers of this member's other partitions to be read.

After it, a prompt that has its answer in a partition with many of them is generated again.
"""


class DedupStage:
    """Implements `Stage` around another stage; `carpool.loop.stage` has the contract.

    A unit is a retrieval, or the answer that an earlier service gave to a query (ADR 0021).

    Units wait here while another unit has their id or their prompt, while their stored answer is
    fetched, and until the answers of their partition are read. They count towards the credit of the
    stage within, so a partition whose answers are not read is paused: its units would take the room
    of others.
    """

    _sink: Sink

    def __init__(
        self,
        within: PromptStage,
        answers: TopicLog,
        settings: GeneratorSettings,
        metrics: Metrics,
        clock: Clock,
        cancels: TopicLog | None = None,
        drafts: TopicLog | None = None,
    ) -> None:
        """`cancels`: the log of withdrawn queries; None: none is withdrawn. `drafts`: the log of
        drafts; None: nothing is computed before a search ends.
        """
        self._within = within
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._dedup = AnswerDedup(ids_max=IDS_MAX)
        self._reuse = PromptReuse(keys_max=IDS_MAX)
        self._reuse_held_until_us = 0
        self._horizon_us = settings.dedup_horizon_ms * 1_000
        self._assigned: set[TopicPartition] = set()
        self._waiting: dict[int, tuple[Unit[Any], int]] = {}  # with the arrival
        self._waiting_bytes = 0
        self._decided: deque[StageAction] = deque()
        self._cancels = Cancels(cancels_max=IDS_MAX)
        self._given = GivenAnswers(metrics, clock)
        self._tables: list[TopicTable] = []
        self.table = self._follow(answers, self, settings.dedup_horizon_ms, IDS_MAX)
        self.table.reads_older = True  # an answer that is not read is paid again
        if cancels is not None:
            reader = RecordsReader(Cancel, self._cancel_read, without="all queries are generated")
            self._follow(cancels, reader, CANCELS.retention_ms, IDS_MAX)
        if drafts is not None:
            reads = RecordsReader(Retrieval, self._draft_read, without="no prompt is warmed")
            self._follow(drafts, reads, DRAFTS_HORIZON_MS, DRAFTS_MAX)
        metrics.generator.followers.set_function(lambda: self._reuse.followers)

    def _follow(
        self, log: TopicLog, reader: TableListener, horizon_ms: int, rows_max: int
    ) -> TopicTable:
        table = TopicTable(log, reader, self._clock, horizon_ms=horizon_ms, rows_max=rows_max)
        self._tables.append(table)
        return table

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the stage within, and the threads that read answers and cancels."""
        self._sink = NotingSink(sink, self._ended)
        self._within.start(self._sink)
        for table in self._tables:
            table.start()

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Begins to read the answers of these partitions; their units wait for the end of that."""
        numbers = sorted(at.partition for at in partitions)
        self._assigned |= partitions
        with self._lock:
            self._dedup.assigned(numbers)
            self._reuse.hold()
            self._reuse_held_until_us = self._clock.now_us() + OTHERS_READ_US_MAX
        for table in self._tables:
            table.read(numbers)
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

    def offer(self, unit: Unit[Retrieval | Answer], now_us: int) -> None:
        """Takes a unit, and passes it on unless it has an answer or must wait."""
        with self._lock:
            self._waiting[unit.id] = (unit, now_us)
            self._waiting_bytes += unit.message.size_bytes
            self._decided.extend(self._reuse.revoked((unit.id,)))  # its result was discarded
            self._decided.extend(self._dedup.arrived(dedup_query(unit)))
        self._carry_out(now_us)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Carries out actions, passes on late units, and ticks the stage within."""
        with self._lock:
            self._decided.extend(self._dedup.expired(now_us))
            if not self._dedup.unread or now_us >= self._reuse_held_until_us:
                self._decided.extend(self._reuse.release())
            self._decided.extend(self._reuse.expired(now_us))
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
        for table in self._tables:
            table.forget(gone)
        with self._lock:
            self._dedup.given_away(gone)
            self._decided.extend(self._reuse.given_away(gone))
        self._forget(unit_ids)
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

    def notes(self) -> Sequence[str]:
        """Returns what the stage within notes."""
        return self._within.notes()

    def close(self) -> None:
        """Ends the reading, then the stage within."""
        for table in self._tables:
            table.close()
        self._within.close()

    def _carry_out(self, now_us: int) -> None:
        while True:
            with self._lock:
                if not self._decided:
                    return
                action = self._decided.popleft()
                unit, arrived_us = self._waiting.get(action.unit_id, (None, 0))
                if self._ends_wait(action, unit):
                    self._release(action.unit_id)
            if isinstance(action, Hasten):  # its unit is in the stage within
                self._within.hasten(action.unit_id, action.priority, action.deadline_us)
            elif unit is not None:
                self._try(unit, partial(self._do, action, unit, arrived_us, now_us))
            elif isinstance(action, CancelQuery):
                self._within.cancel(action.unit_id)  # else it was revoked since

    def _ends_wait(self, action: StageAction, unit: Unit[Any] | None) -> bool:
        """Returns whether a unit does not wait here any more. The caller has the lock."""
        if isinstance(action, CancelQuery):
            return self._reuse.waits(action.unit_id)
        is_given = unit is not None and isinstance(unit.record, Answer)
        return is_given or isinstance(action, PassOn | SkipAnswered | AnswerBeside)

    def _answer_cancelled(self, unit: Unit[Retrieval], arrived_us: int, now_us: int) -> None:
        self._hand_over(self._given.cancelled(unit, arrived_us, now_us))

    def _do(self, action: StageAction, unit: Unit[Any], arrived_us: int, now_us: int) -> None:
        match action:
            case GenerateAnswer() if isinstance(unit.record, Answer):
                self._hand_over(self._given.of_earlier_service(unit))
            case GenerateAnswer():
                self._generate(unit, arrived_us, now_us)
            case PassOn():
                self._pass_on(unit, arrived_us, now_us)
            case SkipAnswered():
                self._hand_over(self._given.skipped(unit))
            case AnswerBeside():
                self._hand_over(self._given.beside(unit, arrived_us, now_us))
            case CancelQuery() if unit.id not in self._waiting:
                self._answer_cancelled(unit, arrived_us, now_us)
            case ReplayAnswer():
                self.table.fetch(unit.id, action.partition, action.offset)

    def _generate(self, unit: Unit[Retrieval], arrived_us: int, now_us: int) -> None:
        """Passes a unit on, unless its prompt has an answer or is in progress."""
        key = self._within.prompt_key(unit.record)
        if key is None or self._is_withdrawn(unit):
            with self._lock:
                self._release(unit.id)
            self._pass_on(unit, arrived_us, now_us)
            return
        with self._lock:
            self._decided.extend(self._reuse.arrived(dedup_query(unit), key))

    def _pass_on(self, unit: Unit[Retrieval], arrived_us: int, now_us: int) -> None:
        if self._is_withdrawn(unit):
            self._answer_cancelled(unit, arrived_us, now_us)
        else:
            self._within.offer(unit, now_us)

    def _is_withdrawn(self, unit: Unit[Retrieval]) -> bool:
        with self._lock:
            return self._cancels.is_withdrawn(unit.record.query.query_id, unit.record.source)

    # ---- any thread

    def _try(self, unit: Unit[Retrieval], act: Callable[[], None]) -> None:
        """Acts on a unit; an exception ends its try, here and within."""
        one_by_one((unit,), lambda _: act(), self._charge)

    def _charge(self, unit: Unit[Retrieval], error: Exception) -> None:
        self._forget((unit.id,))
        self._within.revoke(frozenset({unit.id}), frozenset())
        self._sink.charge(unit.owed, error)

    def _forget(self, unit_ids: Collection[int]) -> None:
        with self._lock:
            for unit_id in unit_ids:
                self._release(unit_id)
            self._decided.extend(self._dedup.revoked(unit_ids))
            self._decided.extend(self._reuse.revoked(unit_ids))

    def _release(self, unit_id: int) -> None:
        """Removes a unit that waits. The caller has the lock."""
        unit, _ = self._waiting.pop(unit_id, (None, 0))
        if unit is not None:
            self._waiting_bytes -= unit.message.size_bytes

    def _hand_over(self, done: Done) -> None:
        self._sink.done(done)

    def _ended(self, done: Done) -> None:
        """Notes a result before it is handed over; after that the log may show its answer.

        A failure that is no refusal counts as no answer, because the query may be retried.
        """
        may_retry = done.failure is not None and not done.failure.is_refusal
        has_answer = not may_retry and any(output.topic == ANSWERS.name for output in done.outputs)
        with self._lock:
            for unit_id, _ in done.parts:
                self._decided.extend(self._dedup.ended(unit_id, has_answer=has_answer))
                self._decided.extend(self._reuse.ended(unit_id, has_answer=has_answer))

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        with self._lock:
            self._dedup.check_integrity()
            self._reuse.check_integrity()
            assert self._waiting_bytes == sum(
                unit.message.size_bytes for unit, _ in self._waiting.values()
            ), "bytes add up"

    # ---- the threads of the tables

    def _draft_read(self, draft: Retrieval, written_ms: int) -> None:
        if not draft.is_final:
            self._within.draft(draft)

    def _cancel_read(self, cancel: Cancel, written_ms: int) -> None:
        with self._lock:
            self._cancels.read(cancel, written_ms)
            self._decided.extend(
                CancelQuery(unit_id=query.unit_id)
                for query in self._dedup.unanswered(cancel.query_id)
                if self._cancels.is_withdrawn(query.query_id, query.source)
            )

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Notes answers. A record that is no readable answer is counted and ignored."""
        decoded = [(message, answer_in(message)) for message in messages]
        with self._lock:
            for message, answer in decoded:
                if answer is not None:
                    place = message.source
                    for machine in (self._dedup, self._reuse):
                        self._decided.extend(machine.seen(answer, place.partition, place.offset))
                elif message.value is None and message.key is not None:
                    for machine in (self._dedup, self._reuse):
                        machine.deleted(message.key.decode("utf-8", "replace"))
                else:
                    self._metrics.generator.dedup_decisions.labels(result="unreadable").inc()

    def partition_read(self, partition: int) -> None:
        """Decides the units that waited for this partition."""
        with self._lock:
            self._decided.extend(self._dedup.read(partition))

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """Answers a unit with the stored answer to its id or its prompt."""
        stored = answer_in(message)
        now_us = self._clock.now_us()
        oldest_us = now_us + self._clock.host_lead_us() - self._horizon_us
        is_recent = message is not None and message.source.timestamp_ms * 1_000 >= oldest_us
        with self._lock:
            unit, arrived_us = self._waiting.get(request_id, (None, 0))
            if unit is None:
                return
            deadline_us = unit.record.deadline_us
            if deadline_us is not None and deadline_us <= now_us:
                return  # the next tick expires it
            key = self._reuse.fetched_key(unit.id)
            if stored is None or not fits(stored, unit, key, is_recent=is_recent):
                machine = self._dedup if key is None else self._reuse
                self._decided.extend(machine.gone(request_id, offset))
                return
            self._release(request_id)
        self._try(
            unit,
            lambda: self._hand_over(self._given.stored(unit, stored, key, arrived_us, now_us)),
        )

    def table_failed(self, error: CarpoolError) -> None:
        """Ends the service: without the log, queries would be answered twice."""
        self._sink.fail(error)
