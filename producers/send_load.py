"""The load generator: sends questions at given times, whether or not earlier ones were answered."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from carpool.clock import Clock
from carpool.errors import CarpoolError, RecordError
from producers.build_query import Priority, QueryRecord, QuestionArgs, build_record
from producers.errors import PublishError
from producers.match_answers import Place
from producers.publish_queries import Placed
from producers.read_questions import Question

SLEEP_S_MAX = 0.1
"""Longest sleep, so that a stop is noticed and progress reported."""


class QuestionSender(Protocol):
    """The part of a publisher that a load needs."""

    def send(self, record: QueryRecord, on_placed: Placed) -> None:
        """Queues a record; raises `PublishError` when it cannot."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Waits for acknowledgements; returns how many are missing."""
        ...


class SentQuestion(msgspec.Struct, frozen=True):
    """One question that was sent. Times are epoch microseconds; latency is from `intended_us`."""

    query_id: str
    row: int
    intended_us: int
    sent_us: int


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A load so far. `behind_us`: how late the last question was sent."""

    sent: int
    acknowledged: int
    errors: int
    elapsed_us: int
    behind_us: int


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load. `run_id` begins the id of each question.

    `behind_ms_max`: the largest delay of a question. If it is large, this machine was too slow for
    the rate.
    """

    run_id: str
    sent: int
    acknowledged: int
    errors: int
    unacknowledged: int
    duration_s: float
    rate_per_s: float
    behind_ms_max: float
    first_error: str | None


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of questions besides text and vector.

    `deadline_s` counts from the intended time. `keep_ids` publishes the ids of the file; otherwise
    each question gets a new id, so rows that are sent again differ.
    """

    embedding_model: str | None = None
    top_k: int | None = None
    nprobe: int | None = None
    priority: Priority = 0
    tenant: str | None = None
    deadline_s: float | None = None
    keep_ids: bool = False
    run_id: str | None = None


class _Acknowledgements:
    """The acknowledgements so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged = 0
        self.errors = 0
        self.first_error: str | None = None

    def placed(self, place: Place | None, error: PublishError | None) -> None:
        with self._lock:
            if error is None:
                self.acknowledged += 1
        if error is not None:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        with self._lock:
            self.errors += 1
            self.first_error = self.first_error or str(error)


def run_load(
    sender: QuestionSender,
    questions: Sequence[Question],
    times_us: Iterator[int],
    *,
    plan: LoadPlan,
    clock: Clock,
    on_sent: Callable[[SentQuestion], None] | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    flush_timeout_s: float = 30.0,
) -> LoadSummary:
    """Sends `questions`, over and over, at `times_us`; returns when all are acknowledged.

    Blocks. `times_us`: see `producers.arrival_times`. A question that cannot be sent is counted and
    not retried. Callbacks come from the calling thread.
    """
    run_id = plan.run_id or uuid.uuid4().hex[:8]
    acknowledgements = _Acknowledgements()
    start_us = clock.now_us()
    sent = behind_us = behind_us_max = 0

    def progress() -> LoadProgress:
        return LoadProgress(
            sent=sent,
            acknowledged=acknowledgements.acknowledged,
            errors=acknowledgements.errors,
            elapsed_us=clock.now_us() - start_us,
            behind_us=behind_us,
        )

    for number, at_us in enumerate(times_us):
        intended_us = start_us + at_us
        while (wait_us := intended_us - clock.now_us()) > 0 and not is_stopped():
            sleep(min(wait_us / 1_000_000, SLEEP_S_MAX))
            if on_progress is not None and wait_us / 1_000_000 > SLEEP_S_MAX:
                on_progress(progress())
        if is_stopped():
            break
        row = number % len(questions)
        sent_us = clock.now_us()
        behind_us = max(0, sent_us - intended_us)
        behind_us_max = max(behind_us_max, behind_us)
        try:
            record = _record(questions[row], plan, f"{run_id}-{number}", intended_us)
            sender.send(record, acknowledgements.placed)
        except (CarpoolError, RecordError) as error:
            acknowledgements.failed(error)
        else:
            sent += 1
            if on_sent is not None:
                on_sent(SentQuestion(record.query_id, row, intended_us, sent_us))
        if on_progress is not None:
            on_progress(progress())
    unacknowledged = sender.flush(flush_timeout_s)
    duration_s = max(clock.now_us() - start_us, 1) / 1_000_000
    return LoadSummary(
        run_id=run_id,
        sent=sent,
        acknowledged=acknowledgements.acknowledged,
        errors=acknowledgements.errors,
        unacknowledged=unacknowledged,
        duration_s=duration_s,
        rate_per_s=sent / duration_s,
        behind_ms_max=behind_us_max / 1_000,
        first_error=acknowledgements.first_error,
    )


def _record(question: Question, plan: LoadPlan, query_id: str, intended_us: int) -> QueryRecord:
    arguments: QuestionArgs = {
        "query_id": str(question.id) if plan.keep_ids and question.id is not None else query_id,
        "top_k": plan.top_k,
        "nprobe": plan.nprobe,
        "priority": plan.priority,
        "tenant": plan.tenant,
    }
    if question.vector is not None:
        arguments |= {"vector": question.vector, "embedding_model": plan.embedding_model}
    deadline_ms = (
        None if plan.deadline_s is None else intended_us // 1_000 + int(plan.deadline_s * 1_000)
    )
    return build_record(question.text, deadline_ms=deadline_ms, now_us=intended_us, **arguments)
