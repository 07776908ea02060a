"""On real Kafka, resumed and retained partitions are fetched immediately.

librdkafka alone waits for up to a second.
"""

from __future__ import annotations

import statistics
import time
import uuid
from typing import Any

import confluent_kafka
import pytest

from carpool.kafka.librdkafka import consumer as module
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from tests.kafka.conformance.harness import PARTITIONS, Member, Reached, read, share

pytestmark = pytest.mark.kafka

PAUSE_S = 0.6
"""Longer than a fetch in flight, which the broker may delay for 0.5 seconds."""


class Noting(confluent_kafka.Consumer):
    """Notes which partitions it requests and unassigns, in order."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.calls: list[tuple[str, list[int]]] = []

    def offsets_for_times(
        self, partitions: list[confluent_kafka.TopicPartition], *timeout: float
    ) -> Any:
        self.calls.append(("ask", [each.partition for each in partitions]))
        return super().offsets_for_times(partitions, *timeout)

    def incremental_unassign(self, partitions: list[confluent_kafka.TopicPartition]) -> None:
        super().incremental_unassign(partitions)
        self.calls.append(("let go", [each.partition for each in partitions]))


@pytest.fixture
def broker(
    request: pytest.FixtureRequest, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> Reached:
    monkeypatch.setattr(module, "Consumer", Noting)
    protocol = getattr(request, "param", "consumer")
    settings = KafkaSettings(
        bootstrap=kafka_server.bootstrap,
        partitions=PARTITIONS,
        librdkafka={"group.protocol": protocol},
    )
    return Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings, kafka_server)


@pytest.mark.parametrize("broker", ["consumer", "classic"], indirect=True)
def test_retained_partitions_are_requested_after_the_revocation(broker: Reached) -> None:
    one = Member(broker, "a").await_partitions()
    two = Member(broker, "b")
    share(one, two)
    (gone,) = (at.partition for at in one.listener.gone)
    assert isinstance(one.consumer, module.LibrdkafkaConsumer)
    noting = one.consumer._member
    assert isinstance(noting, Noting)
    after = noting.calls[noting.calls.index(("let go", [gone])) + 1 :]
    assert ("ask", [1 - gone]) in after
    one.close()
    two.close()


@pytest.mark.parametrize("how", ["pause", "hold"])
def test_after_a_pause_the_next_record_comes_sooner_than_from_librdkafka_alone(
    how: str, broker: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.write(*(broker.record("question", number % PARTITIONS) for number in range(40)))
    one = Member(broker, "a").await_partitions()
    times_s: dict[bool, list[float]] = {True: [], False: []}
    for is_woken in (True, False) * 5:
        if how == "pause":
            one.consumer.pause()
        else:
            one.consumer.pause_partitions(frozenset(map(broker.at, range(PARTITIONS))))
        paused_until_s = time.monotonic() + PAUSE_S
        while time.monotonic() < paused_until_s:
            assert one.consumer.poll(0.02) is None
        with monkeypatch.context() as patch:
            if not is_woken:
                patch.setattr(one.consumer, "_wake", lambda: None)
            began_s = time.monotonic()
            if how == "pause":
                one.consumer.resume()
            else:
                one.consumer.pause_partitions(frozenset())
            read(one.consumer, 1)
        times_s[is_woken].append(time.monotonic() - began_s)
    one.close()
    # librdkafka alone sleeps to the end of its second. If both are equally fast one day, `_wake`
    # is not needed any more.
    assert statistics.median(times_s[True]) < statistics.median(times_s[False]) / 2, times_s
