"""Records, positions and commits outside transactions, over every kind of broker."""

from __future__ import annotations

import threading

import pytest

from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.clients import Position
from carpool.kafka.librdkafka import LibrdkafkaConsumer, member_state
from tests.kafka.conformance.harness import PARTITIONS, Broker, Listener, poll_until, read


def test_records_arrive_in_order_with_key_headers_and_place(broker: Broker) -> None:
    assert broker.write(broker.record("a"), broker.record("b"), broker.record("c", 1)) == [
        None,
        None,
        None,
    ]
    consumer = broker.consumer()
    consumer.subscribe(broker.topic, Listener())
    records = read(consumer, 3)
    first = [message for message in records if message.source.partition == 0]
    assert [(message.value, message.source.offset) for message in first] == [(b"a", 0), (b"b", 1)]
    assert (first[0].key, first[0].headers) == (b"k", (("h", b"1"), ("null", None)))
    assert first[0].source.topic == broker.topic
    assert first[0].source.timestamp_ms > 0
    consumer.close()


def test_a_member_gets_committed_positions_and_continues_there(broker: Broker) -> None:
    broker.write(*map(broker.record, "abc"))
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener)
    read(consumer, 3)
    assert listener.positions == {
        broker.at(0): Position(None, ""),
        broker.at(1): Position(None, ""),
    }
    consumer.commit_now({broker.at(0): Position(1, "1;1+1")})
    consumer.close()
    assert listener.gone == set(listener.positions)

    again, later = broker.consumer(), Listener()
    again.subscribe(broker.topic, later)
    assert [message.value for message in read(again, 2)] == [b"b", b"c"]
    kept = (
        "" if broker.kind == "embedded" else "1;1+1"
    )  # the embedded broker does not keep commit metadata
    assert later.positions[broker.at(0)] == Position(1, kept)
    again.close()


def test_commits_of_another_thread_are_served_while_the_member_polls(broker: Broker) -> None:
    broker.write(*map(broker.record, "abc"))
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener)
    read(consumer, 3)
    results: list[CarpoolError | None] = []
    for offset in (1, 2, 3):
        asking = threading.Thread(
            target=consumer.commit, args=({broker.at(0): Position(offset, "")}, results.append)
        )
        asking.start()
        asking.join(5)
        assert not asking.is_alive(), "asking does not wait for the poll"
        poll_until(consumer, lambda count=offset: len(results) == count)  # type: ignore[misc]
    assert results == [None, None, None]
    consumer.close()

    again, later = broker.consumer(), Listener()
    again.subscribe(broker.topic, later)
    poll_until(again, lambda: broker.at(0) in later.positions)
    assert later.positions[broker.at(0)].offset == 3
    again.close()


def test_waiting_counts_from_the_position_and_is_zero_at_the_end(broker: Broker) -> None:
    broker.write(*map(broker.record, "abc"))
    consumer = broker.consumer()
    consumer.subscribe(broker.topic, Listener())
    read(consumer, 1)
    assert sum(consumer.waiting().values()) == 2
    read(consumer, 2)
    poll_until(consumer, lambda: sum(consumer.waiting().values()) == 0)
    consumer.close()


def test_records_that_arrive_in_a_paused_topic_are_counted(broker: Broker) -> None:
    if broker.kind == "embedded":
        pytest.skip("the embedded broker reports ends that are too low")
    broker.write(*map(broker.record, "abc"))
    consumer = broker.consumer()
    consumer.subscribe(broker.topic, Listener())
    read(consumer, 3)
    consumer.pause(frozenset({broker.topic}))
    broker.write(*map(broker.record, "de"))
    poll_until(consumer, lambda: sum(consumer.waiting().values()) == 2)
    consumer.pause(frozenset())
    read(consumer, 2)
    poll_until(consumer, lambda: sum(consumer.waiting().values()) == 0)
    consumer.close()


def test_records_that_a_client_does_not_fetch_are_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(consumer := broker.consumer(), LibrdkafkaConsumer):
        pytest.skip("the broker in memory has no client")
    if broker.kind == "embedded":
        pytest.skip("the embedded broker reports ends that are too low")
    monkeypatch.setattr(member_state, "QUIET_S", 0.5)
    broker.write(broker.record("a"))
    consumer.subscribe(broker.topic, Listener())
    read(consumer, 1)
    consumer._consumer.pause(consumer._consumer.assignment())
    broker.write(broker.record("b"))
    poll_until(consumer, lambda: sum(consumer.waiting().values()) == 1)
    consumer.close()


def test_topics_are_read_together_and_paused_one_by_one(broker: Broker) -> None:
    broker.write(broker.record("later"), broker.record("now", topic=broker.drafts))
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener, (broker.drafts,))
    consumer.pause(frozenset({broker.topic}))
    assert [message.value for message in read(consumer, 1)] == [b"now"]
    assert [consumer.poll(0.02) for _ in range(10)] == [None] * 10
    consumer.pause(frozenset({broker.topic, broker.drafts}))
    consumer.pause(frozenset({broker.topic}))
    broker.write(broker.record("now, too", topic=broker.drafts))
    assert [message.value for message in read(consumer, 1)] == [b"now, too"]
    consumer.pause(frozenset())
    assert [message.value for message in read(consumer, 1)] == [b"later"]
    assert len(listener.positions) == 2 * PARTITIONS
    assert not listener.gone
    consumer.close()


def test_a_missing_topic_is_refused_at_subscription(broker: Broker) -> None:
    if broker.kind == "embedded":
        pytest.skip("the embedded broker makes a topic when it is looked up")
    consumer = broker.consumer()
    with pytest.raises(ConfigError, match="no-such-topic"):
        consumer.subscribe("no-such-topic", Listener())
    with pytest.raises(ConfigError, match="no-such-topic"):
        consumer.subscribe(broker.topic, Listener(), ("no-such-topic",))


def test_paused_partitions_deliver_no_records_until_they_are_resumed_and_others_do(
    broker: Broker,
) -> None:
    consumer, listener = broker.consumer(), Listener()
    consumer.pause(frozenset(), frozenset({broker.at(1)}))  # before it is assigned
    consumer.subscribe(broker.topic, listener)
    poll_until(consumer, lambda: len(listener.positions) == PARTITIONS)
    broker.write(*map(broker.record, "ab"), broker.record("held", 1))
    assert [message.value for message in read(consumer, 2)] == [b"a", b"b"]
    assert consumer.poll(0.5) is None
    consumer.pause(frozenset({broker.topic}), frozenset({broker.at(0)}))
    assert consumer.poll(0.5) is None, "a paused topic pauses its partitions"
    broker.write(broker.record("c"))
    consumer.pause(frozenset(), frozenset({broker.at(0)}))
    assert [message.value for message in read(consumer, 1)] == [b"held"]
    assert consumer.poll(0.5) is None
    consumer.pause(frozenset())
    assert [message.value for message in read(consumer, 1)] == [b"c"]
    consumer.close()
