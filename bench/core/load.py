"""The load generator: sends questions at given times, whether or not earlier ones were answered.

The times are *intended* ones, in microseconds after the start. The load is open: a slow system does
not slow its own load.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from carpool.clock import Clock
from carpool.errors import CarpoolError, RecordError
from producers.build_query import Priority, QueryRecord, QuestionArgs, build_record
from producers.publish_queries import Placed
from producers.read_questions import Question


class QuestionSender(Protocol):
    """The part of a publisher that a load needs."""

    def send(self, record: QueryRecord, on_placed: Placed) -> None:
        """Queues a record; raises `PublishError` when it cannot."""

    def flush(self, timeout_s: float) -> int:
        """Waits for acknowledgements; returns how many are missing."""


class SentQuestion(msgspec.Struct, frozen=True):
    """One question that was sent. Times are epoch microseconds; latency is from `intended_us`."""

    query_id: str
    row: int
    intended_us: int
    sent_us: int


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of questions besides text and vector.

    `keep_ids` publishes the ids of the questions; otherwise each gets a new id.
    """

    embedding_model: str | None = None
    top_k: int | None = None
    priority: Priority = 0
    tenant: str | None = None
    keep_ids: bool = False


def run_load(
    sender: QuestionSender,
    questions: Sequence[Question],
    times_us: Iterable[int],
    *,
    plan: LoadPlan,
    clock: Clock,
    on_sent: Callable[[SentQuestion], None],
    sleep: Callable[[float], None] = time.sleep,
    flush_timeout_s: float = 30.0,
) -> list[str]:
    """Sends each question at its time; returns what went wrong: nothing if all are acknowledged.

    Blocks. `times_us`: see `bench.core.load`. A question that cannot be sent is not
    retried.
    """
    run_id = uuid.uuid4().hex[:8]
    start_us = clock.now_us()
    problems: list[str] = []  # also from the sender's thread
    for row, (question, at_us) in enumerate(zip(questions, times_us, strict=False)):
        intended_us = start_us + at_us
        if (wait_us := intended_us - clock.now_us()) > 0:
            sleep(wait_us / 1_000_000)
        sent_us = clock.now_us()
        try:
            record = _record(question, plan, f"{run_id}-{row}", intended_us)
            sender.send(record, lambda _, error: problems.append(str(error)) if error else None)
        except (CarpoolError, RecordError) as error:
            problems.append(str(error))
        else:
            on_sent(SentQuestion(record.query_id, row, intended_us, sent_us))
    if unacknowledged := sender.flush(flush_timeout_s):
        problems.append(f"{unacknowledged} were not acknowledged")
    return problems


def _record(question: Question, plan: LoadPlan, query_id: str, intended_us: int) -> QueryRecord:
    arguments: QuestionArgs = {
        "query_id": str(question.id) if plan.keep_ids and question.id is not None else query_id,
        "top_k": plan.top_k,
        "priority": plan.priority,
        "tenant": plan.tenant,
        "workflow": question.workflow,
    }
    if question.vector is not None:
        arguments |= {"vector": question.vector, "embedding_model": plan.embedding_model}
    return build_record(question.text, now_us=intended_us, **arguments)


US_PER_S = 1_000_000


def poisson(rate_per_s: float, seed: int) -> Iterator[int]:
    """Yields the arrival times of a Poisson process without end, the same for one seed."""
    # Intervals of a Poisson process are exponential: seconds = -ln(U) / rate.
    generator = random.Random(seed)
    at_us = 0.0
    while True:
        at_us += generator.expovariate(rate_per_s) * US_PER_S
        yield int(at_us)


def even(rate_per_s: float) -> Iterator[int]:
    """Yields arrival times at equal distances without end, the first at 0."""
    index = 0
    while True:
        yield int(index * US_PER_S / rate_per_s)  # multiplied, not added up: no drift
        index += 1
