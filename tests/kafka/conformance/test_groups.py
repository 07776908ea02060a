"""Members that come and go, by either protocol for consumer groups."""

from __future__ import annotations

from carpool.kafka.clients import Position
from tests.kafka.conformance.harness import PARTITIONS, Broker, Listener, joined, poll_until, read


def test_a_second_member_gets_a_paused_partition_and_returns_it_when_it_leaves(
    broker: Broker,
) -> None:
    one, listener_one = joined(broker)
    one.pause(frozenset({broker.topic}))
    two, listener_two = broker.consumer(), Listener()
    two.subscribe(broker.topic, listener_two)

    def both() -> bool:
        two.poll(0.01)
        return len(listener_two.positions) == 1 and len(listener_one.gone) == 1

    poll_until(one, both)
    assert set(listener_two.positions) == listener_one.gone
    one.pause(frozenset())
    listener_one.positions.clear()
    two.close()
    poll_until(one, lambda: set(listener_one.positions) == listener_one.gone)
    (back,) = listener_one.gone
    broker.write(broker.record("a", back.partition))
    assert [message.value for message in read(one, 1)] == [b"a"]
    one.close()


def test_a_member_that_left_joins_again_and_continues_at_its_commit(broker: Broker) -> None:
    one, listener = joined(broker)
    broker.write(broker.record("a"), broker.record("b"))
    assert read(one, 1)[0].value == b"a"
    one.commit_now({broker.at(0): Position(1, "")})
    one.leave()
    assert listener.gone == set(listener.positions)
    assert (one.waiting(), one.membership()) == ({}, None)
    again = Listener()
    one.subscribe(broker.topic, again)
    assert read(one, 1)[0].value == b"b"
    assert set(again.positions) == set(listener.positions)
    one.close()


def test_retained_partitions_deliver_records_during_a_rebalance(group_broker: Broker) -> None:
    broker = group_broker
    one, listener_one = joined(broker)
    two, listener_two = broker.consumer(), Listener()
    two.subscribe(broker.topic, listener_two)

    written = 0
    records = []
    while not listener_two.positions:
        assert written < 2_000, "the second member gets no partition"
        broker.write(broker.record(str(written), 0), broker.record(str(written), 1))
        written += 1
        two.poll(0.005)
        records += [message for _ in range(4) if (message := one.poll(0.005)) is not None]
    (kept,) = set(listener_one.positions) - listener_one.gone
    while (
        len([message for message in records if message.source.partition == kept.partition])
        < written
    ):
        records += read(one, 1)
    texts = [
        (message.value or b"").decode()
        for message in records
        if message.source.partition == kept.partition
    ]
    assert texts == [str(number) for number in range(written)], "none is missing, none comes twice"
    one.close()
    two.close()


def test_a_member_has_a_membership_from_when_it_joined_until_it_left(group_broker: Broker) -> None:
    consumer, listener = group_broker.consumer(), Listener()
    assert consumer.membership() is None
    consumer.subscribe(group_broker.topic, listener)
    poll_until(consumer, lambda: len(listener.positions) == PARTITIONS)
    assert consumer.membership() is not None
    assert consumer.membership() == consumer.membership()
    consumer.close()


def test_positions_of_a_member_that_has_no_instance_id_are_not_claimed(
    group_broker: Broker,
) -> None:
    consumer, listener = joined(group_broker)
    assert set(listener.positions.values()) == {Position(None, "")}
    assert group_broker.committed() == {}
    consumer.close()
