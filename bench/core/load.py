"""The load generator: sends questions at given times, whether or not earlier ones were answered.

The times are *intended* ones, in microseconds after the start. The load is open: a slow system does
not slow its own load.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Unpack

from carpool.clock import Clock
from carpool.errors import CarpoolError, RecordError
from producers.build_query import QueryRecord, QuestionArgs, build_record
from producers.publish_queries import Publisher
from producers.read_questions import Question


def run_load(
    sender: Publisher,
    questions: Sequence[Question],
    times_us: Iterable[int],
    *,
    record_of: Callable[[Question, int], QueryRecord],
    clock: Clock,
    on_sent: Callable[[str, int], object],
    sleep: Callable[[float], None] = time.sleep,
    flush_timeout_s: float = 30.0,
) -> list[str]:
    """Sends each question at its time; returns what went wrong: nothing if all are acknowledged.

    Blocks. A question that cannot be sent is not retried. `record_of`: see `record_of`. `on_sent`:
    gets the id of a question, and when it was due, epoch microseconds.
    """
    start_us = clock.now_us()
    problems: list[str] = []  # also from the sender's thread
    for question, at_us in zip(questions, times_us, strict=False):
        due_us = start_us + at_us
        if (wait_us := due_us - clock.now_us()) > 0:
            sleep(wait_us / 1_000_000)
        try:
            record = record_of(question, due_us)
            sender.send(record, lambda _, error: problems.append(str(error)) if error else None)
        except (CarpoolError, RecordError) as error:
            problems.append(str(error))
        else:
            on_sent(record.query_id, due_us)
    if unacknowledged := sender.flush(flush_timeout_s):
        problems.append(f"{unacknowledged} were not acknowledged")
    return problems


def record_of(question: Question, due_us: int, **asked: Unpack[QuestionArgs]) -> QueryRecord:
    """Returns the record of a question, with a new id if it has none. `asked`: further fields."""
    asked["vector"], asked["workflow"] = question.vector, question.workflow
    if question.id is not None:
        asked["query_id"] = str(question.id)
    return build_record(question.text, now_us=due_us, **asked)


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
