"""Partitions are fetched immediately after a pause and after a rebalance.

librdkafka alone waits for up to a second.
"""

from __future__ import annotations

import statistics
import time
import uuid
from typing import Any

import confluent_kafka
import pytest

from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS
from carpool.kafka.librdkafka import consumer as module
from carpool.kafka.settings import KafkaSettings
from tests.kafka.conformance.harness import PARTITIONS, Listener, Reached, joined, poll_until, read

PAUSE_S = 0.3
ROUNDS = 5


@pytest.fixture
def broker(embedded_bootstrap: str) -> Reached:
    settings = KafkaSettings(
        bootstrap=embedded_bootstrap,
        partitions=PARTITIONS,
        # A reply to a fetch in flight would wake librdkafka.
        librdkafka={"session.timeout.ms": 2_000, "fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS},
    )
    return Reached(f"t-{uuid.uuid4().hex[:8]}", "embedded", settings)


def test_after_a_pause_the_next_record_comes_immediately(broker: Reached) -> None:
    broker.write(*(broker.record("question", number % PARTITIONS) for number in range(40)))
    one, _ = joined(broker)
    times_s = []
    for _ in range(ROUNDS):
        one.pause(frozenset({broker.topic}))
        until_s = time.monotonic() + PAUSE_S
        while time.monotonic() < until_s:
            assert one.poll(0.02) is None
        resumed_s = time.monotonic()
        one.pause(frozenset())
        read(one, 1)
        times_s.append(time.monotonic() - resumed_s)
    assert statistics.median(times_s) < (1 - PAUSE_S) / 2, times_s  # alone: to the end of a second
    one.close()


def test_partitions_that_stay_are_asked_for_after_a_revocation(
    broker: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    class Noting(confluent_kafka.Consumer):
        def offsets_for_times(
            self, partitions: list[confluent_kafka.TopicPartition], *timeout: float
        ) -> Any:
            asked.append([each.partition for each in partitions])
            return super().offsets_for_times(partitions, *timeout)

    with monkeypatch.context() as patch:
        patch.setattr(module, "Consumer", Noting)
        one, mine = joined(broker)
    asked.clear()
    two, others = broker.consumer(), Listener()
    two.subscribe(broker.topic, others)
    poll_until(one, lambda: two.poll(0.01) is None and len(others.positions) == 1)
    (gone,) = mine.gone
    assert [1 - gone.partition] in asked
    one.close()
    two.close()
