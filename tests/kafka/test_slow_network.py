"""Real Kafka behind a slow network: members take over partitions and fence nobody who lives."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from carpool.errors import AbortedError
from carpool.kafka.clients import Position
from carpool.kafka.embedded import free_port
from carpool.kafka.settings import KafkaSettings
from carpool.testing.fault_proxy import FaultProxy
from carpool.testing.kafka import KafkaServer, free_ports
from tests.kafka.conformance.harness import (
    PARTITIONS,
    Listener,
    Member,
    Reached,
    insist,
    poll_until,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(180)]

ROUND_TRIPS_MAX = 25
"""From the assignment of a partition to its first commit."""
SCALING_S = 60.0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    ports = free_ports(advertised=free_port())
    with (
        KafkaServer(tmp_path_factory.mktemp("kafka") / "broker", ports=[ports]),
        FaultProxy(ports.advertised, ports.clients) as started,
    ):
        yield started


@pytest.fixture(params=["auto", "classic"])
def broker(request: pytest.FixtureRequest, proxy: FaultProxy) -> Iterator[Reached]:
    settings = KafkaSettings(
        bootstrap=proxy.bootstrap, partitions=PARTITIONS, group_protocol=request.param
    )
    reached = Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings)
    yield reached
    proxy.delay(0)


def commit_all(member: Member, offset: int) -> None:
    """Commits `offset` for every partition of a member, with a result."""
    own = set(member.listener.positions) - member.listener.gone
    assert own
    name = next(iter(member.listener.positions.values())).metadata.split(";")[1]
    member.transact([f"{name} {offset}"], {at: Position(offset, f"2;{name};") for at in own})


def test_a_lone_member_takes_its_partitions_and_commits(broker: Reached, proxy: FaultProxy) -> None:
    proxy.delay(0.065)
    member = Member(broker, "a").await_partitions()
    commit_all(member, 1)
    assert broker.seen(broker.results) == ["a 1"]
    member.close()


def test_members_that_come_and_go_fence_nobody(broker: Reached, proxy: FaultProxy) -> None:
    delay_s = 0.2
    one = Member(broker, "a").await_partitions()
    commit_all(one, 1)
    proxy.delay(delay_s)
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

    poll_until(one.consumer, shared, SCALING_S)
    commit_all(two, 2)
    commit_all(one, 3)
    two.close()
    one.listener = back = one.consumer._listener = Listener()  # type: ignore[attr-defined]
    poll_until(one.consumer, lambda: bool(back.positions), SCALING_S)
    assigned_s = time.monotonic()
    commit_all(one, 4)
    assert time.monotonic() - assigned_s < ROUND_TRIPS_MAX * 2 * delay_s
    assert sorted(broker.seen(broker.results))[-3:] == ["a 3", "a 4", "b 2"]
    one.close()
