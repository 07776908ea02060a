"""Real Kafka: the end of a transaction that arrives late does not end the next one (KIP-890)."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from carpool.kafka.clients import Position
from carpool.kafka.settings import KafkaSettings
from carpool.testing.fault_proxy import END_TXN, FaultProxy, HeldRequest
from tests.kafka.conformance.harness import PARTITIONS, Member, Reached, insist
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SETTLE_S = 1.0
"""For a broker that ends a transaction although it should not."""


def hold_end(proxy: FaultProxy, commit: threading.Thread) -> HeldRequest:
    """Starts `commit`, keeps back its request, and cuts the connection, so it is sent again."""
    late = proxy.hold(END_TXN)
    commit.start()
    assert late.wait(WAIT_S)
    proxy.cut()
    commit.join(WAIT_S)
    assert not commit.is_alive()
    return late


def test_a_delayed_end_of_a_transaction_does_not_end_the_next_one(fault_proxy: FaultProxy) -> None:
    settings = KafkaSettings(bootstrap=fault_proxy.bootstrap, partitions=PARTITIONS)
    broker = Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings)
    member = Member(broker, "a").await_partitions()
    expected = []
    for number in range(3):  # librdkafka reports a broken connection once in 30 seconds
        offset, one, two = 2 * number, f"one {number}", f"two {number}"
        committing = threading.Thread(
            target=member.transact, args=([one], {broker.at(0): Position(offset + 1, "2;a;")})
        )
        late = hold_end(fault_proxy, committing)
        expected.append(one)
        before = broker.written(broker.results)
        insist(member.producer.begin)
        member.producer.produce(broker.result(two))
        wait_until(lambda before=before: broker.written(broker.results) > before)
        late.release()
        time.sleep(SETTLE_S)
        assert broker.seen(broker.results) == expected, "the second transaction is still open"
        member.send({broker.at(0): Position(offset + 2, "2;a;")})
        insist(member.producer.commit)
        expected.append(two)
        assert broker.seen(broker.results) == expected
        assert broker.committed()[broker.at(0)] == Position(offset + 2, "2;a;")
    member.close()
