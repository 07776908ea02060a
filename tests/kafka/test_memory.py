"""Faults of the broker in memory: failed calls, expelled members, time-outs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from carpool.errors import AbortedError, FencedError, RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.fencing import LIVING_WAIT_S
from carpool.kafka.memory import (
    MemoryBroker,
    MemoryConsumer,
    MemoryProducer,
    MemoryTransactionalProducer,
)
from carpool.kafka.memory.broker import TRANSACTION_TIMEOUT_US, Call
from carpool.kafka.records import Output, TopicPartition
from tests.clocks import HandClock

ZERO, ONE = TopicPartition("in", 0), TopicPartition("in", 1)


class Events:
    """The calls of a listener, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[int, ...]]] = []
        self.positions: dict[TopicPartition, Position] = {}

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        self.told.append(("assigned", tuple(sorted(at.partition for at in positions))))
        self.positions |= positions

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        self.told.append(
            ("lost" if lost else "revoked", tuple(sorted(at.partition for at in partitions)))
        )

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        raise AssertionError(error)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(step_us=1)


@pytest.fixture
def broker(clock: HandClock) -> MemoryBroker:
    return MemoryBroker(clock, {"in": 2, "out": 1})


def join(broker: MemoryBroker, instance_id: str) -> tuple[MemoryConsumer, Events]:
    events = Events()
    consumer = MemoryConsumer(broker, "g", own_instance_id=instance_id)
    consumer.subscribe("in", events)
    return consumer, events


def block_offsets(
    broker: MemoryBroker, consumer: MemoryConsumer, instance_id: str
) -> MemoryTransactionalProducer:
    """Leaves a transaction open that blocks the offsets of both partitions, at 5."""
    for number in range(10):
        broker.append("in", b"record", partition=number % 2)
    producer = MemoryTransactionalProducer(broker, f"g-{instance_id}")
    producer.start()
    producer.begin()
    producer.produce(Output(topic="out", key=None, value=b"late"))
    membership = consumer.membership()
    assert membership is not None
    producer.send_offsets({at: Position(5, f"2;{instance_id};") for at in (ZERO, ONE)}, membership)
    return producer


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(
    broker: MemoryBroker, clock: HandClock
) -> None:
    consumer, _ = join(broker, "a")
    consumer.poll(0)
    producer = block_offsets(broker, consumer, "a")
    broker.append("out", b"behind it")
    clock.sleep(TRANSACTION_TIMEOUT_US - 1_000)
    assert broker.records("out") == []
    clock.sleep(2_000)
    assert [message.value for message in broker.records("out")] == [b"behind it"]
    assert broker.committed("g")[ZERO] == Position(0, "2;a;")
    with pytest.raises(FencedError):
        producer.commit()


def transaction_calls(broker: MemoryBroker) -> dict[str, partial[None]]:
    """The calls of one transaction, in order."""
    consumer, _ = join(broker, "a")
    consumer.poll(0)
    membership = consumer.membership()
    assert membership is not None
    producer = MemoryTransactionalProducer(broker, "g-a")
    return {
        "start": partial(producer.start),
        "begin": partial(producer.begin),
        "produce_in_transaction": partial(
            producer.produce, Output(topic="out", key=None, value=b"one")
        ),
        "send_offsets": partial(producer.send_offsets, {ZERO: Position(1, "2;a;")}, membership),
        "commit": partial(producer.commit),
        "abort": partial(producer.abort),
    }


@pytest.mark.parametrize(
    "broken", ["start", "begin", "produce_in_transaction", "send_offsets", "commit"]
)
def test_an_unanswered_call_of_a_transaction_can_be_repeated(
    broker: MemoryBroker, broken: Call
) -> None:
    calls = transaction_calls(broker)
    broker.break_next(broken, RetryableError("the coordinator is away"))
    for name in ("start", "begin", "produce_in_transaction", "send_offsets", "commit"):
        if name == broken:
            with pytest.raises(RetryableError):
                calls[name]()
        calls[name]()
    assert [message.value for message in broker.records("out")] == [b"one"]
    assert broker.committed("g")[ZERO] == Position(1, "2;a;")


@pytest.mark.parametrize("broken", ["produce_in_transaction", "send_offsets", "commit"])
def test_after_a_failed_call_a_transaction_can_only_be_aborted(
    broker: MemoryBroker, broken: Call
) -> None:
    calls = transaction_calls(broker)
    broker.break_next(broken, AbortedError("the coordinator moved"))
    calls["start"]()
    calls["begin"]()
    for name in ("produce_in_transaction", "send_offsets", "commit"):
        if name == broken:
            break
        calls[name]()
    for name in (broken, "commit"):
        with pytest.raises(AbortedError):
            calls[name]()
    broker.break_next("abort", RetryableError("away"))
    with pytest.raises(RetryableError):
        calls["abort"]()
    calls["abort"]()
    assert broker.records("out") == []
    assert broker.committed("g")[ZERO] == Position(0, "2;a;")


def test_a_plain_producers_record_can_be_written_although_its_report_fails(
    broker: MemoryBroker,
) -> None:
    broker.break_next("produce", RetryableError("no reply"), took_effect=True)
    reports: list[object] = []
    producer = MemoryProducer(broker)
    producer.produce(Output(topic="out", key=None, value=b"one"), reports.append)
    producer.poll(0)
    assert isinstance(reports[0], RetryableError)
    assert len(broker.records("out")) == 1


def test_an_expelled_member_loses_its_partitions_and_joins_again(
    broker: MemoryBroker,
) -> None:
    consumer, events = join(broker, "a")
    consumer.poll(0)
    membership = consumer.membership()
    assert membership is not None
    broker.expel("g", consumer)
    assert consumer.membership() is None
    with pytest.raises(FencedError):
        consumer.commit_now({ZERO: Position(1, "")})
    producer = MemoryTransactionalProducer(broker, "g-a")
    producer.start()
    producer.begin()
    with pytest.raises(AbortedError):
        producer.send_offsets({ZERO: Position(1, "")}, membership)
    consumer.poll(0)
    assert events.told == [("assigned", (0, 1)), ("lost", (0, 1)), ("assigned", (0, 1))]


def test_a_living_member_whose_transaction_ends_soon_is_not_fenced(
    broker: MemoryBroker, clock: HandClock
) -> None:
    one, _ = join(broker, "a")
    one.poll(0)
    producer = block_offsets(broker, one, "a")
    two, events = join(broker, "b")
    one.poll(0)
    two.poll(0)
    assert events.told == [], "the offsets are blocked"
    clock.sleep(int(LIVING_WAIT_S * 900_000))
    two.poll(0)
    producer.commit()
    two.poll(0)
    assert list(events.positions.values()) == [Position(5, "2;b;")]


def test_offsets_that_stay_blocked_are_an_error_after_the_request_time_out(
    broker: MemoryBroker, clock: HandClock
) -> None:
    one, _ = join(broker, "a")
    one.poll(0)
    block_offsets(broker, one, "a")
    one.crash()
    two, events = join(broker, "b")
    for _ in range(3):
        broker.break_next("start", RetryableError("the coordinator is away"))
    two.poll(0)
    clock.sleep(5_000_000)
    two.poll(0)
    clock.sleep(6_000_000)
    with pytest.raises(RetryableError, match="coordinator is away"):
        two.poll(0)
    assert events.told == []


@pytest.mark.parametrize("broken", ["read_offsets", "commit_offsets"])
def test_a_listener_is_called_after_the_claim_is_committed(
    broker: MemoryBroker, broken: Call
) -> None:
    broker.break_next(broken, RetryableError("the coordinator moved"))
    consumer, events = join(broker, "a")
    consumer.poll(0)
    assert events.told == []
    consumer.poll(0)
    assert (
        events.positions == broker.committed("g") == {at: Position(0, "2;a;") for at in (ZERO, ONE)}
    )
