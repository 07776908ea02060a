"""Transactions: what is seen when, what is refused, what a call that failed leaves behind."""

from __future__ import annotations

import pytest

from carpool.errors import AbortedError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX
from tests.kafka.conformance.harness import Broker, Member, insist, poll_until, read
from tests.waiting import wait_until


@pytest.fixture
def broker(transactional_broker: Broker) -> Broker:
    return transactional_broker


def test_records_and_offsets_of_a_transaction_are_visible_when_it_commits(broker: Broker) -> None:
    member = Member(broker, "a").await_partitions()
    member.open(["one", "two"], {broker.at(0): Position(7, "2;a;1+2")})
    assert broker.seen(broker.results) == []
    insist(member.producer.commit)
    assert broker.seen(broker.results) == ["one", "two"]
    assert broker.committed()[broker.at(0)] == Position(7, "2;a;1+2")


def test_aborted_records_are_invisible_and_the_same_work_commits_in_the_next_transaction(
    broker: Broker,
) -> None:
    member = Member(broker, "a").await_partitions()
    member.open(["one"], {broker.at(0): Position(7, "2;a;")})
    insist(member.producer.abort)
    assert broker.committed()[broker.at(0)] == Position(0, "2;a;"), "offsets go with the records"
    member.transact(["one"], {broker.at(0): Position(7, "2;a;")})
    assert broker.seen(broker.results) == ["one"]
    assert broker.committed()[broker.at(0)] == Position(7, "2;a;")


def test_offsets_may_commit_without_records_and_an_empty_transaction_ends_too(
    broker: Broker,
) -> None:
    member = Member(broker, "a").await_partitions()
    member.transact([], {broker.at(1): Position(3, "2;a;")})
    assert broker.committed()[broker.at(1)] == Position(3, "2;a;")
    for end in (member.producer.commit, member.producer.abort):
        member.producer.begin()
        insist(end)


def test_an_open_transaction_hides_later_records_of_its_topic_and_no_other_instance_ends_it(
    broker: Broker,
) -> None:
    member, other = Member(broker, "a").await_partitions(), broker.transactional("b")
    member.open(["final"], {})
    insist(other.start)
    broker.write(broker.record("hidden", topic=broker.results))
    broker.write(broker.record("draft", topic=broker.drafts))
    assert (broker.seen(broker.results), broker.seen(broker.drafts)) == ([], ["draft"])
    insist(member.producer.abort)
    wait_until(lambda: broker.seen(broker.results) == ["hidden"])
    other.close()


def test_a_consumer_reads_past_aborted_records_and_markers_to_the_end(broker: Broker) -> None:
    member = Member(broker, "a")
    for text, end in (("gone", member.producer.abort), ("kept", member.producer.commit)):
        before = broker.written(broker.topic)
        member.producer.begin()
        member.producer.produce(broker.record(text))
        wait_until(lambda before=before: broker.written(broker.topic) > before)
        insist(end)
    records = read(member.consumer, 1)
    records += poll_until(member.consumer, lambda: not any(member.consumer.waiting().values()))
    while (message := member.consumer.poll(0.2)) is not None:
        records.append(message)
    assert [message.value for message in records] == [b"kept"]
    assert broker.written(broker.topic) == 4, "two records, two markers"


def test_a_commit_whose_reply_is_lost_takes_effect_once_when_it_is_repeated(broker: Broker) -> None:
    member = Member(broker, "a").await_partitions()
    member.open(["one"], {broker.at(0): Position(7, "2;a;")})
    with broker.no_reply_to_commit(), pytest.raises(RetryableError):
        member.producer.commit()
    insist(member.producer.commit)
    assert broker.seen(broker.results) == ["one"]
    assert broker.committed()[broker.at(0)] == Position(7, "2;a;")
    member.transact(["two"], {broker.at(0): Position(8, "2;a;")})
    assert broker.seen(broker.results) == ["one", "two"]


def test_a_restarted_producer_aborts_the_transaction_of_its_predecessor_and_fences_it(
    broker: Broker,
) -> None:
    member = Member(broker, "a").await_partitions()
    member.open(["one"], {broker.at(0): Position(7, "2;a;")})
    again = broker.transactional("a")
    insist(again.start)
    with pytest.raises(FencedError):
        member.producer.commit()
    for call in (member.producer.commit, member.producer.abort, member.producer.abort):
        with pytest.raises(FencedError):
            insist(call)
    assert broker.seen(broker.results) == []
    assert broker.committed()[broker.at(0)] == Position(0, "2;a;")
    again.begin()
    again.produce(broker.result("two"))
    insist(again.commit)
    assert broker.seen(broker.results) == ["two"]
    again.close()


def test_commit_metadata_may_have_4095_bytes_and_after_one_more_only_an_abort_succeeds(
    broker: Broker,
) -> None:
    member = Member(broker, "a").await_partitions()
    longest = "2;a;".ljust(METADATA_BYTES_MAX, "1")
    member.transact(["one"], {broker.at(0): Position(1, longest)})
    assert broker.committed()[broker.at(0)] == Position(1, longest)
    with pytest.raises(AbortedError):
        member.open(["two"], {broker.at(0): Position(2, longest + "1")})
    with pytest.raises(AbortedError):
        member.producer.produce(broker.result("two"))
    with pytest.raises(AbortedError):
        member.producer.commit()
    insist(member.producer.abort)
    assert broker.seen(broker.results) == ["one"]
    member.transact(["three"], {broker.at(0): Position(3, "2;a;")})
    assert broker.seen(broker.results) == ["one", "three"]


def test_a_record_that_its_topic_refuses_is_a_deployment_error_and_the_others_are_invisible(
    broker: Broker,
) -> None:
    member = Member(broker, "a").await_partitions()
    member.producer.begin()
    with pytest.raises(DeploymentError, match=broker.results):
        member.producer.produce(broker.result("one"))
        member.producer.produce(broker.record("two", partition=99, topic=broker.results))
        insist(member.producer.commit)
    insist(member.producer.abort)
    member.transact(["three"], {})
    assert broker.seen(broker.results) == ["three"]


def test_a_producer_is_usable_after_aborts_right_after_a_record(broker: Broker) -> None:
    producer = broker.transactional("a")
    insist(producer.start)
    for text in map(str, range(10)):
        producer.begin()
        producer.produce(broker.result(f"gone {text}"))
        insist(producer.abort)
    producer.begin()
    producer.produce(broker.result("kept"))
    insist(producer.commit)
    assert broker.seen(broker.results) == ["kept"]
    producer.close()


def test_offsets_of_a_member_that_has_left_are_refused_and_the_transaction_aborts(
    broker: Broker,
) -> None:
    member = Member(broker, "a").await_partitions()
    membership = member.consumer.membership()
    assert membership is not None
    broker.members.remove(member)
    member.consumer.close()
    member.producer.begin()
    offsets = {broker.at(0): Position(7, "2;a;")}
    with pytest.raises(AbortedError):
        insist(lambda: member.producer.send_offsets(offsets, membership))
    insist(member.producer.abort)
    assert broker.committed()[broker.at(0)] == Position(0, "2;a;")
    member.producer.close()


def test_a_plain_commit_after_the_offsets_of_a_transaction_is_kept(broker: Broker) -> None:
    member = Member(broker, "a").await_partitions()
    member.open([], {broker.at(0): Position(7, "2;a;")})
    member.consumer.commit_now({broker.at(0): Position(9, "2;a;")})
    insist(member.producer.commit)
    assert broker.committed()[broker.at(0)] == Position(9, "2;a;")
