"""Real Kafka: the end of a transaction that arrives late does not end the next one (KIP-890)."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from carpool.kafka.clients import Position
from carpool.kafka.settings import KafkaSettings
from carpool.testing.fault_proxy import END_TXN, FaultProxy
from tests.kafka.conformance.harness import PARTITIONS, WAIT_S, Member, Reached, insist, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(180)]

SETTLE_S = 1.0
"""For a broker that ends a transaction although it should not."""


def test_a_delayed_end_of_a_transaction_does_not_end_the_next_one(fault_proxy: FaultProxy) -> None:
    settings = KafkaSettings(bootstrap=fault_proxy.bootstrap, partitions=PARTITIONS)
    broker = Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings)
    member = Member(broker, "a").await_partitions()
    held = fault_proxy.hold(END_TXN)
    committing = threading.Thread(
        target=member.transact, args=(["one"], {broker.at(0): Position(1, "2;a;")})
    )
    committing.start()
    assert held.wait(WAIT_S)
    fault_proxy.cut()  # the client sends the end of the transaction again, and that one arrives
    committing.join(WAIT_S)
    assert not committing.is_alive()
    before = broker.written(broker.results)
    insist(member.producer.begin)
    member.producer.produce(broker.result("two"))
    wait_until(lambda: broker.written(broker.results) > before)
    held.release()
    time.sleep(SETTLE_S)
    assert broker.seen(broker.results) == ["one"], "the second transaction is still open"
    member.send({broker.at(0): Position(2, "2;a;")})
    insist(member.producer.commit)
    assert broker.seen(broker.results) == ["one", "two"]
    assert broker.committed()[broker.at(0)] == Position(2, "2;a;")
    member.close()
