"""A consumer of two topics returns records in turns, in any order of fetches."""

from __future__ import annotations

from collections import Counter

import pytest

from carpool.kafka.clients import RebalanceListener
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.priority.intake_queues import PriorityClass
from carpool.loop.priority.priority_consumer import LOOK_S, REST_OF_REPLY_S, PriorityConsumer
from tests.clocks import HandClock
from tests.records import a_message

URGENT, BATCH = "rag.queries.v1", "rag.queries.batch.v1"
CLASSES = (PriorityClass(topic=URGENT, weight=16), PriorityClass(topic=BATCH, unfinished_max=9_000))


class FetchedConsumer:
    """A client with one queue, in the order of its fetches; it skips records of paused topics."""

    def __init__(self) -> None:
        self.fetched: list[Message] = []
        self.paused: frozenset[str] = frozenset()
        self.listener: RebalanceListener | None = None
        self.waits: list[float] = []
        self.polled_paused: list[frozenset[str]] = []

    def subscribe(
        self, topic: str, listener: RebalanceListener, extra_topics: tuple[str, ...] = ()
    ) -> None:
        self.listener = listener

    def poll(self, timeout_s: float) -> Message | None:
        self.waits.append(timeout_s)
        self.polled_paused.append(self.paused)
        found = next((each for each in self.fetched if each.source.topic not in self.paused), None)
        if found is not None:
            self.fetched.remove(found)
        return found

    def pause(
        self, topics: frozenset[str], partitions: frozenset[TopicPartition] = frozenset()
    ) -> None:
        self.paused = topics

    def waiting(self) -> dict[TopicPartition, int]:
        counts = Counter(
            TopicPartition(each.source.topic, each.source.partition) for each in self.fetched
        )
        return {at: counts[at] for at in (TopicPartition(URGENT, 0), TopicPartition(BATCH, 0))}

    def fetch(self, topic: str, count: int, partition: int = 0) -> None:
        begin = sum(each.source.topic == topic for each in self.fetched)
        for offset in range(begin, begin + count):
            self.fetched.append(a_message(topic, offset, partition=partition, value=b""))


class TwoTopics:
    cpu_wait_us = 0.0

    def __init__(
        self, classes: tuple[PriorityClass, ...] = CLASSES, *, rests: bool = False
    ) -> None:
        self.inner = FetchedConsumer()
        self.parts: Counter[str] = Counter()
        self.clock = HandClock(step_us=1)
        self.consumer = PriorityConsumer(
            self.inner,
            classes,
            unfinished_parts=self.parts,
            clock=self.clock,
            cpu_wait_us=lambda: self.cpu_wait_us,
            rests=rests,
        )
        self.lost: list[frozenset[TopicPartition]] = []
        self.inner.subscribe(URGENT, self, (BATCH,))

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        self.consumer.forget(partitions)
        self.lost.append(partitions)

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        raise AssertionError(error)

    def take(self, timeout_s: float = 0.0) -> str | None:
        message = self.consumer.poll(timeout_s)
        if message is None:
            return None
        self.parts[message.source.topic] += 1
        return message.source.topic


def test_a_paused_consumer_returns_no_record_and_loses_none() -> None:
    rig = TwoTopics()
    rig.inner.fetch(BATCH, 3)
    assert rig.take() == BATCH
    rig.consumer.pause(frozenset({URGENT, BATCH}))
    assert rig.inner.paused == {URGENT, BATCH}
    assert rig.take() is None
    rig.consumer.pause(frozenset())
    assert [rig.take(), rig.take(), rig.take()] == [BATCH, BATCH, None]


@pytest.mark.parametrize("rests", [False, True])
def test_after_a_minute_without_a_record_most_of_a_wait_is_without_fetches(rests: bool) -> None:
    rig, all_topics = TwoTopics(rests=rests), frozenset({URGENT, BATCH})
    rig.consumer.pause(frozenset({BATCH}))
    looks = [LOOK_S, REST_OF_REPLY_S] if rests else []
    for seconds, waits in ((59, [0.25]), (1, [0.25, *looks]), (1, [0.02])):
        rig.clock.time_us += seconds * 1_000_000
        rig.inner.waits.clear()
        assert rig.take(waits[0]) is None
        assert rig.inner.waits == waits, "a member with work in hand never rests"
        assert rig.inner.paused == {BATCH}
    assert (all_topics in rig.inner.polled_paused) == rests
    rig.inner.fetch(URGENT, 1)
    assert rig.take(0.25) == URGENT, "found in the same poll"
    rig.inner.polled_paused.clear()
    assert rig.take(0.25) is None
    assert rig.inner.polled_paused == [{BATCH}], "awake again"


def test_blocked_records_do_not_cause_busy_polling() -> None:
    rig = TwoTopics()
    rig.parts[BATCH] = 8_999
    rig.inner.fetch(BATCH, 3)
    assert rig.take() == BATCH
    rig.inner.waits.clear()
    assert rig.take(0.05) is None
    assert rig.inner.waits[-1] == 0.05
    rig.inner.fetch(URGENT, 1)
    assert rig.take(0.05) == URGENT


def test_queued_records_of_a_revoked_partition_are_dropped_when_its_listener_says_so() -> None:
    rig = TwoTopics()
    rig.inner.fetch(URGENT, 2)
    rig.inner.fetch(BATCH, 2)
    assert rig.take() == URGENT
    assert rig.consumer.waiting()[TopicPartition(BATCH, 0)] == 2, "sorted here, and still waiting"
    assert rig.inner.listener is not None
    rig.inner.listener.revoked(frozenset({TopicPartition(BATCH, 0)}), lost=False)
    assert rig.lost == [{TopicPartition(BATCH, 0)}]
    assert [rig.take(), rig.take()] == [URGENT, None]


def test_batch_records_are_limited_while_threads_wait_for_cpus() -> None:
    rig = TwoTopics(
        (PriorityClass(topic=URGENT, weight=16), PriorityClass(topic=BATCH, cpu_wait_us_max=300))
    )
    rig.cpu_wait_us = 5_000.0
    rig.inner.fetch(BATCH, 900)
    taken: Counter[str | None] = Counter()
    for _ in range(200):
        rig.clock.sleep(10_000)
        rig.inner.fetch(URGENT, 1)
        taken.update(rig.take() for _ in range(5))
    assert taken[URGENT] == 200
    assert 100 < taken[BATCH] < 300, "64 a second, at the least, of two seconds"
    rig.clock.sleep(2_000_000)
    assert {rig.take() for _ in range(500)} == {BATCH}
