"""Real Kafka behind a slow network: members take over partitions and fence nobody who lives."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from carpool.errors import AbortedError
from carpool.kafka.clients import Position
from carpool.kafka.librdkafka.partition_handover import PartitionHandover
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.testing.fault_proxy import FaultProxy
from tests.kafka.conformance.harness import (
    PARTITIONS,
    Member,
    Reached,
    insist,
    poll_until,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROUND_TRIPS_MAX = 25
"""From the assignment of a partition to its first commit."""


@pytest.fixture(params=["consumer", pytest.param("classic", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, fault_proxy: FaultProxy) -> Iterator[Reached]:
    settings = KafkaSettings(
        bootstrap=fault_proxy.bootstrap,
        partitions=PARTITIONS,
        librdkafka={"group.protocol": request.param},
    )
    reached = Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings)
    yield reached
    fault_proxy.delay(0)


def commit_all(member: Member, offset: int) -> None:
    """Commits `offset` for every partition of a member, with a result."""
    own = set(member.listener.positions) - member.listener.gone
    assert own
    name = member.instance_id
    member.transact([f"{name} {offset}"], {at: Position(offset, f"2;{name};") for at in own})


@pytest.fixture
def assigned_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each member was assigned partitions, before it asks where to begin them."""
    times_s: list[float] = []
    begin = PartitionHandover.begin

    def timed(self: PartitionHandover, *arguments: Any) -> dict[TopicPartition, Position]:
        times_s.append(time.monotonic())
        return begin(self, *arguments)

    monkeypatch.setattr(PartitionHandover, "begin", timed)
    return times_s


def test_members_that_come_and_go_fence_nobody(
    broker: Reached, fault_proxy: FaultProxy, assigned_s: list[float]
) -> None:
    delay_s = 0.2
    one = Member(broker, "a").await_partitions()
    commit_all(one, 1)
    fault_proxy.delay(delay_s)
    two = Member(broker, "b")

    def shared() -> bool:
        two.consumer.poll(0.01)
        if one.listener.gone:
            return bool(two.listener.positions)
        try:
            commit_all(one, 1)  # the first member works on meanwhile
        except AbortedError:  # the group has a new generation; the next poll brings it
            insist(one.producer.abort)
        return False

    poll_until(one.consumer, shared)
    commit_all(two, 2)
    commit_all(one, 3)
    two.close()
    one.listener.positions.clear()
    one.listener.gone.clear()
    assigned_s.clear()
    poll_until(one.consumer, lambda: bool(one.listener.positions))
    commit_all(one, 4)
    assert time.monotonic() - assigned_s[-1] < ROUND_TRIPS_MAX * 2 * delay_s
    assert sorted(broker.seen(broker.results))[-3:] == ["a 3", "a 4", "b 2"]
    one.close()
