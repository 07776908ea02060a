"""Real Kafka behind a bad network: the end of a transaction that arrives late does not end the next
one (KIP-890), and members that are slow fence nobody.
"""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from bench.reliability.fault_proxy import END_TXN, Caught, FaultProxy
from carpool.kafka.clients import Position
from carpool.kafka.settings import KafkaSettings
from tests.kafka.conformance.harness import PARTITIONS, Member, Reached, insist, poll_until, share
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SETTLE_S = 1.0
"""For a broker that ends a transaction although it should not."""


DELAY_S = 0.2


@pytest.fixture
def broker(fault_proxy: FaultProxy) -> Reached:
    settings = KafkaSettings(bootstrap=fault_proxy.bootstrap, partitions=PARTITIONS)
    return Reached(f"t-{uuid.uuid4().hex[:8]}", "kafka", settings)


def hold_end(proxy: FaultProxy, commit: threading.Thread) -> Caught:
    """Starts `commit`, keeps back its request, and cuts the connection, so it is sent again."""
    late = proxy.hold(END_TXN)
    commit.start()
    assert late.wait(WAIT_S)
    proxy.cut()
    commit.join(WAIT_S)
    assert not commit.is_alive()
    return late


def test_members_that_come_and_go_over_a_slow_network_fence_nobody(
    broker: Reached, fault_proxy: FaultProxy
) -> None:
    one = Member(broker, "a").await_partitions()
    one.transact(["one"], {broker.at(0): Position(1, "2;a;"), broker.at(1): Position(1, "2;a;")})
    fault_proxy.delay(DELAY_S)
    try:
        two = Member(broker, "b")
        share(one, two)
        (came,) = two.listener.positions
        two.transact(["two"], {came: Position(2, "2;b;")})
        one.transact(
            ["three"], {at: Position(2, "2;a;") for at in one.listener.positions if at != came}
        )
        two.close()
        one.listener.positions.clear()
        poll_until(one.consumer, lambda: came in one.listener.positions)
        assert one.listener.positions[came] == Position(2, "2;a;")
        one.transact(["four"], {came: Position(3, "2;a;")})
    finally:
        fault_proxy.delay(0)
    assert sorted(broker.seen(broker.results)) == ["four", "one", "three", "two"]
    one.close()


def test_a_delayed_end_of_a_transaction_does_not_end_the_next_one(
    broker: Reached, fault_proxy: FaultProxy
) -> None:
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
