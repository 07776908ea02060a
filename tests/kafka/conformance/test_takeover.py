"""Takeovers of partitions, and what happens to the work of the previous owner (ADR 0007)."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from carpool.errors import AbortedError, FencedError
from carpool.kafka import fencing
from carpool.kafka.clients import Position
from tests.kafka.conformance.harness import (
    PARTITIONS,
    Broker,
    Member,
    Reached,
    insist,
    poll_until,
    share,
)

SESSION_S = 2.0
"""Of a group whose members die."""
SLOW_COMMIT_S = 0.7
"""Longer than it takes to fence the dead."""


@pytest.fixture
def broker(group_broker: Broker) -> Broker:
    if isinstance(group_broker, Reached):  # a takeover waits for half of it
        settings = msgspec.structs.replace(group_broker.settings, request_timeout_ms=10_000)
        group_broker.settings = settings
    group_broker.write(
        *(group_broker.record("question", number % PARTITIONS) for number in range(10 * PARTITIONS))
    )
    return group_broker


@pytest.fixture
def mortal_broker(broker: Broker) -> Broker:
    """A broker that soon takes a silent member for dead."""
    if isinstance(broker, Reached):
        soon = {"consumer.session.timeout.ms": f"{SESSION_S * 1_000:.0f}"}
        admin = KafkaAdminClient(bootstrap_servers=broker.settings.bootstrap)
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, broker.group, soon)])
        admin.close()
    return broker


def test_a_new_owner_claims_its_partitions_before_its_listener_is_called(broker: Broker) -> None:
    member = Member(broker, "a").await_partitions()
    claimed = {broker.at(partition): Position(0, "2;a;") for partition in range(PARTITIONS)}
    assert member.listener.positions == claimed
    assert broker.committed() == claimed


def test_parts_committed_after_the_offset_are_passed_to_the_next_owner(broker: Broker) -> None:
    one = Member(broker, "a").await_partitions()
    one.transact(["a record's parts 0 and 2"], {broker.at(0): Position(4, "2;a;0:0.2,3+1")})
    one.close()
    two = Member(broker, "b").await_partitions()
    assert two.listener.positions[broker.at(0)] == Position(4, "3;1.6;b;0:0.2,3+1")
    assert broker.committed()[broker.at(0)] == Position(4, "3;1.6;b;0:0.2,3+1")


def test_what_a_living_member_gives_up_is_claimed_without_a_death(broker: Broker) -> None:
    one = Member(broker, "a").await_partitions()
    one.consumer.commit_now({broker.at(0): Position(4, "1;1+2"), broker.at(1): Position(3, "")})
    one.close()
    two = Member(broker, "b").await_partitions()
    claimed = {broker.at(0): Position(4, "2;b;1+2"), broker.at(1): Position(3, "2;b;")}
    assert two.listener.positions == claimed


def test_a_handover_in_order_fences_nobody(broker: Broker) -> None:
    one = Member(broker, "a").await_partitions()
    one.transact(["one"], {broker.at(0): Position(1, "2;a;"), broker.at(1): Position(1, "2;a;")})
    two = Member(broker, "b")
    share(one, two)
    (kept,) = set(one.listener.positions) - one.listener.gone
    (came,) = two.listener.positions
    one.transact(["two"], {kept: Position(2, "2;a;")})
    two.transact(["three"], {came: Position(2, "2;b;")})
    assert broker.seen(broker.results) == ["one", "two", "three"]


def test_a_partition_that_a_dead_members_transaction_blocks_is_taken_over(
    mortal_broker: Broker,
) -> None:
    broker = mortal_broker
    one = Member(broker, "a").await_partitions()
    one.transact(["one"], {broker.at(0): Position(1, "2;a;")})
    one.open(["two"], {broker.at(0): Position(2, "2;a;")})
    zombie = one.producer
    killed_s = time.monotonic()
    one.kill()
    two = Member(broker, "b").await_partitions()
    assert time.monotonic() - killed_s < SESSION_S + 8.0
    assert two.listener.positions[broker.at(0)] == Position(1, "3;1.9;b;")
    with pytest.raises(FencedError):
        insist(zombie.commit)
    two.transact(["two"], {broker.at(0): Position(2, "2;b;")})
    assert broker.seen(broker.results) == ["one", "two"]


def with_an_open_transaction(broker: Broker) -> Member:
    """A member whose transaction blocks the offsets of every partition, at 3."""
    member = Member(broker, "a").await_partitions()
    offsets = {broker.at(partition): Position(3, "2;a;") for partition in range(PARTITIONS)}
    member.open(["late"], offsets)
    return member


def test_a_living_member_whose_transaction_ends_late_is_waited_for(broker: Broker) -> None:
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
    assert position == Position(3, "3;1.7;b;")
    one.transact(["next"], {at: Position(4, "2;a;") for at in set(one.listener.positions) - {came}})
    assert broker.seen(broker.results) == ["late", "next"]


def test_a_living_member_whose_transaction_does_not_end_is_fenced(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "LIVING_WAIT_S", 1.0)
    one, two = with_an_open_transaction(broker), Member(broker, "b")
    share(one, two)
    assert list(two.listener.positions.values()) == [Position(0, "3;1.10;b;")]
    with pytest.raises(FencedError):
        insist(one.producer.commit)
    assert broker.seen(broker.results) == []


def test_a_member_that_restarts_with_its_instance_id_continues_at_its_commit(
    mortal_broker: Broker,
) -> None:
    broker = mortal_broker
    one = Member(broker, "a").await_partitions()
    one.transact(["one"], {broker.at(0): Position(1, "2;a;")})
    one.open(["two"], {broker.at(0): Position(2, "2;a;")})
    one.kill()
    again = Member(broker, "a").await_partitions()
    assert again.listener.positions[broker.at(0)] == Position(1, "3;1.9;a;")
    again.transact(["two"], {broker.at(0): Position(2, "2;a;")})
    assert broker.seen(broker.results) == ["one", "two"]


def test_brokers_accept_offsets_of_a_partition_that_moved_to_another_member(broker: Broker) -> None:
    """So a member must not commit for a revoked partition: brokers would accept it."""
    one = Member(broker, "a").await_partitions()
    two = Member(broker, "b")
    share(one, two)
    (lost,) = one.listener.gone
    one.transact(["late"], {lost: Position(5, "2;a;")})
    assert broker.committed()[lost] == Position(5, "2;a;")


def test_a_membership_from_before_a_rebalance_is_refused_and_the_next_is_valid(
    broker: Broker,
) -> None:
    one = Member(broker, "a").await_partitions()
    before = one.consumer.membership()
    assert before is not None
    two = Member(broker, "b")
    share(one, two)
    (lost,) = one.listener.gone
    one.producer.begin()
    one.producer.produce(broker.result("late"))
    with pytest.raises(AbortedError):
        insist(lambda: one.producer.send_offsets({lost: Position(7, "2;a;")}, before))
    insist(one.producer.abort)
    (kept,) = set(one.listener.positions) - one.listener.gone
    one.transact(["in time"], {kept: Position(7, "2;a;")})
    assert broker.seen(broker.results) == ["in time"]


def test_offsets_of_a_member_that_the_group_removed_are_refused(mortal_broker: Broker) -> None:
    broker = mortal_broker
    one = Member(broker, "a").await_partitions()
    membership = one.consumer.membership()
    assert membership is not None
    zombie = one.producer
    one.kill()
    Member(broker, "b").await_partitions()
    zombie.begin()
    zombie.produce(broker.result("late"))
    with pytest.raises(AbortedError):
        insist(lambda: zombie.send_offsets({broker.at(0): Position(7, "2;a;")}, membership))
    insist(zombie.abort)
    assert broker.seen(broker.results) == []
    assert broker.committed()[broker.at(0)] == Position(0, "3;1.10;b;")
