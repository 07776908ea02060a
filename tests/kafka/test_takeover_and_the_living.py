"""On real Kafka: whose transaction may be ended by a takeover, and whose may not."""

from __future__ import annotations

import threading
import uuid

import pytest

from carpool.errors import FencedError
from carpool.kafka.clients import Position
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from tests.kafka.conformance.harness import PARTITIONS, Member, Reached, insist, poll_until, share

pytestmark = pytest.mark.kafka

SLOW_COMMIT_S = 2.0
"""Longer than it takes to fence the dead."""


@pytest.fixture(params=["consumer", pytest.param("classic", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, kafka_server: KafkaServer) -> Reached:
    settings = KafkaSettings(
        bootstrap=kafka_server.bootstrap,
        partitions=PARTITIONS,
        librdkafka={"group.protocol": request.param},
    )
    broker = Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings, kafka_server)
    broker.write(
        *(broker.record("question", number % PARTITIONS) for number in range(10 * PARTITIONS))
    )
    return broker


def with_an_open_transaction(broker: Reached) -> Member:
    """A member whose transaction blocks the offsets of every partition, at 3."""
    member = Member(broker, "a").await_partitions()
    offsets = {broker.at(partition): Position(3, "2;a;") for partition in range(PARTITIONS)}
    member.open(["late"], offsets)
    return member


def test_a_living_member_whose_transaction_ends_late_is_waited_for(broker: Reached) -> None:
    one, two = with_an_open_transaction(broker), Member(broker, "b")
    commit = threading.Timer(SLOW_COMMIT_S, lambda: insist(one.producer.commit))

    def shared() -> bool:
        if one.listener.gone and commit.ident is None:
            commit.start()
        two.consumer.poll(0.01)
        return bool(two.listener.positions)

    poll_until(one.consumer, shared)
    commit.join()
    ((came, position),) = two.listener.positions.items()
    assert position == Position(3, "2;b;")
    one.transact(
        ["on it goes"], {at: Position(4, "2;a;") for at in set(one.listener.positions) - {came}}
    )
    assert broker.seen(broker.results) == ["late", "on it goes"]
    one.close()
    two.close()


def test_a_living_member_whose_transaction_does_not_end_is_fenced(broker: Reached) -> None:
    one, two = with_an_open_transaction(broker), Member(broker, "b")
    share(one, two)
    assert list(two.listener.positions.values()) == [Position(0, "2;b;")]
    with pytest.raises(FencedError):
        insist(one.producer.commit)
    assert broker.seen(broker.results) == []
    one.close()
    two.close()
