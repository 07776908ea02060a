"""The stage in front of the generator's: queries that have an answer never reach the model.

Three threads use one state machine under a lock: the polling thread offers units, the stage within
hands over results, and the thread of the table delivers stored answers. The polling thread carries
out the actions, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

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
from generator.dedup.readers import AnswersReader, RecordsReader
from generator.dedup.units import answer_in, dedup_query, fits
from generator.plan.answer_dedup import AnswerDedup
from generator.plan.dedup_actions import DedupAction, EndWait, Hasten, ReplayAnswer
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.cancel import Cancel
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, CANCELS

IDS_MAX = 1_000_000
"""Ids with an answer, prompts, and cancels that are remembered: about 400, 320 and 100 bytes each.
The oldest is forgotten first, and generated again if it is published again."""
DRAFTS_HORIZON_MS, DRAFTS_MAX = 2_000, 1_000
"""Older drafts, at a start, are of searches that have ended."""
UNSEEN_MAX = 10_000
"""Most answers handed over that the log does not show yet; above it, `credit` is zero."""
WAITING_WAKE_US = 10_000
"""Longest wait between two ticks while units wait: other threads end their wait."""


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
        self._clock = clock
        self._lock = threading.Lock()
        self._plan = AnswerDedup(ids_max=IDS_MAX)
        self._horizon_us = settings.dedup_horizon_ms * 1_000
        self._assigned: set[TopicPartition] = set()
        self._waiting: dict[int, tuple[Unit[Any], int]] = {}  # with the arrival
        self._waiting_bytes = 0
        self._decided: deque[DedupAction] = deque()
        self._given = GivenAnswers(metrics, clock)
        self._tables: list[TopicTable] = []
        reader = AnswersReader(self._decide, self._row_fetched, self._table_failed, metrics)
        self.table = self._follow(answers, reader, settings.dedup_horizon_ms, IDS_MAX)
        self.table.reads_older = True  # an answer that is not read is paid again
        if cancels is not None:
            reads = RecordsReader(Cancel, self._cancel_read, without="all queries are generated")
            self._follow(cancels, reads, CANCELS.retention_ms, IDS_MAX)
        if drafts is not None:
            warms = RecordsReader(Retrieval, self._draft_read, without="no prompt is warmed")
            self._follow(drafts, warms, DRAFTS_HORIZON_MS, DRAFTS_MAX)
        metrics.generator.followers.set_function(lambda: self._plan.states["following"])

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
            self._plan.assigned(numbers, self._clock.now_us())
        for table in self._tables:
            table.read(numbers)
        self._within.assigned(partitions)

    def credit(self) -> Credit:
        """Returns the credit of the stage within, less the units that wait here.

        Zero while the log shows too few of the answers handed over.
        """
        credit = self._within.credit()
        with self._lock:
            unread = self._plan.unread
            is_behind = self._plan.states["handed_over"] >= UNSEEN_MAX
            return Credit(
                records=0 if is_behind else max(0, credit.records - len(self._waiting)),
                size_bytes=0 if is_behind else max(0, credit.size_bytes - self._waiting_bytes),
                paused_partitions=frozenset(at for at in self._assigned if at.partition in unread),
            )

    def offer(self, unit: Unit[Retrieval | Answer], now_us: int) -> None:
        """Takes a unit, and passes it on unless it has an answer or must wait."""
        record = unit.record
        key = None if isinstance(record, Answer) else self._within.prompt_key(record)
        query = dedup_query(unit, key)
        with self._lock:
            self._waiting[unit.id] = (unit, now_us)
            self._waiting_bytes += unit.message.size_bytes
            self._decided.extend(self._plan.arrived(query))
        self._carry_out(now_us)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Carries out actions, passes on late units, and ticks the stage within."""
        self._decide(lambda plan: plan.expired(now_us))
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
        gone = {at.partition for at in partitions} - {at.partition for at in self._assigned}
        for table in self._tables:
            table.forget(gone)
        self._forget(unit_ids, gone)
        self._within.revoke(unit_ids, partitions)

    def drain(self, until_us: int) -> None:
        """Drains the stage within; units that wait here still reach it."""
        self._within.drain(until_us)

    def not_ready(self) -> Sequence[str]:
        """Returns which answers are still read, why not, and what the stage within reports."""
        with self._lock:
            unread, unseen = sorted(self._plan.unread), self._plan.states["handed_over"]
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
                if isinstance(action, EndWait):
                    self._release(action.unit_id)
            if isinstance(action, Hasten):  # its unit is in the stage within
                self._within.hasten(action.unit_id, action.priority, action.deadline_us)
            elif unit is not None:
                self._try(unit, partial(self._do, action, unit, arrived_us, now_us))
            elif isinstance(action, EndWait) and action.what == "cancel":
                self._within.cancel(action.unit_id)  # else it was revoked since

    def _do(
        self, action: EndWait | ReplayAnswer, unit: Unit[Any], arrived_us: int, now_us: int
    ) -> None:
        if isinstance(action, ReplayAnswer):
            self.table.fetch(unit.id, action.partition, action.offset)
        elif action.what == "generate" and isinstance(unit.record, Retrieval):
            self._within.offer(unit, now_us)
        else:
            self._hand_over(self._given.ended(action.what, unit, arrived_us, now_us))

    # ---- any thread

    def _decide(self, tell: Callable[[AnswerDedup], Iterable[DedupAction]]) -> None:
        """Tells the plan something; what it decides waits for the polling thread."""
        with self._lock:
            self._decided.extend(tell(self._plan))

    def _try(self, unit: Unit[Retrieval], act: Callable[[], None]) -> None:
        """Acts on a unit; an exception ends its try, here and within."""
        one_by_one((unit,), lambda _: act(), self._charge)

    def _charge(self, unit: Unit[Retrieval], error: Exception) -> None:
        self._forget((unit.id,))
        self._within.revoke(frozenset({unit.id}), frozenset())
        self._sink.charge(unit.owed, error)

    def _forget(self, unit_ids: Collection[int], partitions: Collection[int] = ()) -> None:
        with self._lock:
            for unit_id in unit_ids:
                self._release(unit_id)
            self._decided.extend(self._plan.revoked(unit_ids, partitions))

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
                if has_answer:
                    self._plan.handed_over(unit_id)
                else:
                    self._decided.extend(self._plan.revoked((unit_id,)))

    def check_integrity(self) -> None:
        """Asserts what must be true between two calls."""
        with self._lock:
            self._plan.check_integrity()
            assert self._waiting_bytes == sum(
                unit.message.size_bytes for unit, _ in self._waiting.values()
            ), "bytes add up"

    # ---- the threads of the tables

    def _draft_read(self, draft: Retrieval, written_ms: int) -> None:
        if not draft.is_final:
            self._within.draft(draft)

    def _cancel_read(self, cancel: Cancel, written_ms: int) -> None:
        self._decide(lambda plan: plan.cancelled(cancel, written_ms))

    def _row_fetched(self, unit_id: int, offset: int, message: Message | None) -> None:
        """Answers a unit with the stored answer to its id or its prompt."""
        stored = answer_in(message)
        now_us = self._clock.now_us()
        oldest_us = now_us + self._clock.host_lead_us() - self._horizon_us
        is_recent = message is not None and message.source.timestamp_ms * 1_000 >= oldest_us
        with self._lock:
            unit, arrived_us = self._waiting.get(unit_id, (None, 0))
            entry = self._plan.fetching(unit_id)
            if unit is None or entry is None:
                return
            deadline_us, key = entry.query.deadline_us, entry.key
            if deadline_us is not None and deadline_us <= now_us:
                return  # the next tick expires it
            if stored is None or not fits(stored, unit, key, is_recent=is_recent):
                self._decided.extend(self._plan.gone(unit_id, offset))
                return
            self._release(unit_id)
        self._try(
            unit,
            lambda: self._hand_over(self._given.stored(unit, stored, key, arrived_us, now_us)),
        )

    def _table_failed(self, error: CarpoolError) -> None:
        """Ends the service: without the log, queries would be answered twice."""
        self._sink.fail(error)
