"""For tests of the answer dedup: a stage within that a test ends by hand, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from carpool.clock import Clock, SystemClock
from carpool.endings import answer_output
from carpool.kafka.admin import create_topics
from carpool.kafka.records import Output, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_log import TopicLog
from carpool.loop.stage import Credit, Done, Sink, Unit
from generator.plan.query_digest import query_digest
from schemas.answer import Status
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS
from tests.clocks import NOW_US
from tests.generator.stage import unit
from tests.kafka.conformance.harness import insist
from tests.records import an_answer


class Within:
    """The generator's stage as the dedup sees it: a test ends its units by hand.

    `key_of`: the keys of its prompts; none by default.
    """

    def __init__(self, key_of: Callable[[Retrieval], str | None] = lambda _: None) -> None:
        self.units: dict[int, Unit[Retrieval]] = {}
        self.hastened: list[tuple[int, int, int | None]] = []
        self.cancelled: list[int] = []
        self.prompt_key = key_of
        self.sink: Sink | None = None

    def start(self, sink: Sink) -> None:
        self.sink = sink

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing."""

    def credit(self) -> Credit:
        return Credit(records=1_000 - len(self.units), size_bytes=10**9)

    def offer(self, unit: Unit[Retrieval], now_us: int) -> None:
        self.units[unit.id] = unit

    def hasten(self, unit_id: int, priority: int, deadline_us: int | None) -> None:
        self.hastened.append((unit_id, priority, deadline_us))

    def cancel(self, unit_id: int) -> None:
        self.cancelled.append(unit_id)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        return None

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        for unit_id in unit_ids:
            self.units.pop(unit_id, None)

    def drain(self, until_us: int) -> None:
        """Nothing."""

    def not_ready(self) -> Sequence[str]:
        return ()

    def notes(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing."""

    def finish(self, unit_id: int, output: Output) -> None:
        del self.units[unit_id]
        assert self.sink is not None
        self.sink.done(Done(parts=((unit_id, 0),), outputs=(output,)))


def made(
    retrieval: Retrieval, status: Status = "ok", text: str | None = None, **more: Any
) -> Output:
    """The record of an answer to this retrieval; `more` are fields of the answer."""
    answer = an_answer(
        retrieval.query.query_id,
        status,
        source=retrieval.source,
        query_digest=query_digest(retrieval.query),
        answer=f"made for {retrieval.source.offset}" if text is None else text,
        **more,
    )
    return answer_output(answer, stage="generator", now_us=NOW_US, passed_on=retrieval.headers)


def again(first: Unit[Retrieval], **query: Any) -> Unit[Retrieval]:
    """Another record with the id of `first`, and other headers."""
    query = {"query_id": first.record.query.query_id, **query}
    another = unit(query.pop("text", first.record.query.text), query=query)
    headers = (("correlation_id", str(another.id).encode()), ("traceparent", b"00-2"))
    record = msgspec.structs.replace(another.record, headers=headers)
    return Unit(id=another.id, record=record, message=another.message)


def answers_log(settings: KafkaSettings, clock: Clock) -> TopicLog:
    return TopicLog(settings, clock, ANSWERS, is_urgent=False)


def make_topics(settings: KafkaSettings) -> None:
    """Makes the topics of a broker, and waits until their partitions have leaders."""
    create_topics(settings)
    reader = answers_log(settings, SystemClock())
    reader.open()
    for partition in range(settings.partitions):
        insist(partial(reader.end, partition))
    reader.close()
