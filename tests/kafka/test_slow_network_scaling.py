"""Real Kafka, 200 ms away: members come and go under a load, and nobody who lives is fenced."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from bench.core.copy_loop import CopyLoop, copy_of, make_topics
from carpool.clock import SystemClock
from carpool.kafka.client_config import producer_config
from carpool.kafka.librdkafka.partition_handover import PartitionHandover
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from carpool.loop.delivery.commit_planner import CommitPlan
from carpool.loop.delivery.exactly_once import ExactlyOnceDelivery
from carpool.testing.fault_proxy import FaultProxy
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PARTITIONS = 6
DELAY_S = 0.2
ROUND_TRIPS_MAX = {"consumer": 25, "classic": 30}
"""From an assignment to the first commit of one of its partitions, by protocol.

With the classic protocol, every rebalance aborts the transactions that are open, also of members
that keep their partitions.
"""
RATE_PER_S = 60


class Takeovers:
    """How long it took from each assignment of partitions to the first commit of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waiting: list[tuple[frozenset[TopicPartition], float]] = []
        self.took_s: list[float] = []
        begin, complete = PartitionHandover.begin, ExactlyOnceDelivery._complete

        def timed_begin(handover: PartitionHandover, consumer: Any, partitions: Any) -> Any:
            places = frozenset(TopicPartition(raw.topic, raw.partition) for raw in partitions)
            self._waiting.append((places, time.monotonic()))
            return begin(handover, consumer, partitions)

        def timed_complete(delivery: ExactlyOnceDelivery, plan: CommitPlan) -> None:
            complete(delivery, plan)
            for places, assigned_s in tuple(self._waiting):
                if places & plan.positions.keys():
                    self._waiting.remove((places, assigned_s))
                    self.took_s.append(time.monotonic() - assigned_s)

        monkeypatch.setattr(PartitionHandover, "begin", timed_begin)
        monkeypatch.setattr(ExactlyOnceDelivery, "_complete", timed_complete)


class Load(threading.Thread):
    """Publishes numbered records to all partitions until it is ended."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer, self._topic = Producer(producer_config(settings)), topic
        self._ending = threading.Event()
        self.published = 0

    def run(self) -> None:
        while not self._ending.wait(1 / RATE_PER_S):
            at, key = self.published % PARTITIONS, str(self.published).encode()
            self._producer.produce(self._topic, b"v", key, partition=at)
            self._producer.poll(0)
            self.published += 1

    def end(self) -> None:
        self._ending.set()
        self.join()
        assert self._producer.flush(WAIT_S) == 0


@pytest.fixture(params=["consumer", "classic"])
def settings(request: pytest.FixtureRequest, fault_proxy: FaultProxy) -> Iterator[KafkaSettings]:
    yield KafkaSettings(
        bootstrap=fault_proxy.bootstrap,
        librdkafka={"group.protocol": request.param},
    )
    fault_proxy.delay(0)


def test_from_one_member_to_three_and_back_nobody_is_fenced_and_each_commits_soon(
    settings: KafkaSettings, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    takeovers, source = Takeovers(monkeypatch), f"slow-{uuid.uuid4().hex[:8]}"
    make_topics(settings, source, PARTITIONS)
    load = Load(settings, source)
    load.start()
    members: dict[str, CopyLoop] = {}

    def join(name: str) -> None:
        members[name] = CopyLoop(
            msgspec.structs.replace(settings, instance_id=name),
            delivery="exactly_once",
            group=f"g-{source}",
            source=source,
            in_flight=2_000,
        )
        members[name].start()

    def await_share(most: int) -> None:
        """Waits until every member has partitions and all of them have written something."""

        def shared() -> bool:
            shares = [len(each.loop.in_flight.committed_offsets()) for each in members.values()]
            return sum(shares) == PARTITIONS and max(shares) <= most

        wait_for(shared)
        for each in members.values():
            before = each.written()
            wait_for(lambda each=each, before=before: each.written() > before)  # type: ignore[misc]

    def wait_for(condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            for each in members.values():
                assert each.loop.failure is None
            return condition()

        wait_until(holds, every_s=0.05)

    join("a")
    await_share(6)
    fault_proxy.delay(DELAY_S)
    for name, most in (("b", 3), ("c", 2)):
        join(name)
        await_share(most)
    for name, most in (("c", 3), ("b", 6)):
        members.pop(name).stop()
        await_share(most)
    load.end()
    wait_for(lambda: sum(copies(settings, source).values()) >= load.published)
    found = copies(settings, source)
    assert len(found) == load.published, "none is lost"
    assert set(found.values()) == {1}, "none comes twice"
    assert len(takeovers.took_s) >= 5, "the first, two that join, two that take over"
    round_trips = max(takeovers.took_s) / (2 * DELAY_S)
    assert round_trips < ROUND_TRIPS_MAX[settings.librdkafka["group.protocol"]]
    members["a"].stop()


def copies(settings: KafkaSettings, source: str) -> Counter[bytes]:
    """Returns how often each record was copied, for readers of committed records."""
    with TopicReader(settings, SystemClock(), name="audit") as reader:
        places = reader.partitions(copy_of(source))
        return Counter(message.key or b"" for message in reader.read_to_end(places))
