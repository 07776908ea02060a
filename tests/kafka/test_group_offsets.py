"""An operator moves an offset, and what is complete after it stays complete."""

from __future__ import annotations

import uuid

import pytest

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import in_topic
from carpool.kafka.librdkafka import LibrdkafkaConsumer
from carpool.kafka.librdkafka.committed import GroupOffsets
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import reset_to, skipped, unprocessed_before
from schemas.topics import QUERIES
from tests.generator.dedup_support import make_topics
from tests.kafka.conformance.harness import Listener, poll_until

NOW = Position(10, "2;s-1;2+3,6:0-1")


@pytest.mark.parametrize(
    ("offset", "then"),
    [
        (10, Position(11, "2;s-1;1+3,5:0-1")),
        (11, Position(10, "2;s-1;1+4,6:0-1")),
        (16, Position(10, "2;s-1;2+3,6+1")),
    ],
)
def test_a_record_that_is_passed_over_counts_as_complete(offset: int, then: Position) -> None:
    assert skipped(NOW, offset) == then


def test_passing_over_the_first_record_passes_what_is_complete_after_it() -> None:
    assert skipped(Position(10, "1;1+3"), 10) == Position(14, "")
    with pytest.raises(ConfigError, match="12 is complete already"):
        skipped(NOW, 12)
    with pytest.raises(ConfigError, match="committed nothing"):
        skipped(Position(None, ""), 0)


@pytest.mark.parametrize(
    ("offset", "then"),
    [
        (5, Position(5, "2;s-1;7+3,11:0-1")),
        (13, Position(13, "2;s-1;0+2,3:0-1")),
        (100, Position(100, "2;s-1;")),
    ],
)
def test_after_a_reset_what_was_complete_is_not_repeated(offset: int, then: Position) -> None:
    assert reset_to(NOW, offset) == then
    assert reset_to(Position(NOW.offset, in_topic(NOW.metadata, "x" * 22) or ""), offset) == then
    assert reset_to(Position(None, ""), offset) == Position(offset, "")


def test_what_is_complete_is_not_counted_as_unprocessed() -> None:
    assert [unprocessed_before(NOW, offset) for offset in (10, 12, 14, 17)] == [0, 2, 2, 4]


@pytest.mark.kafka
@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.long)])
def test_a_position_is_written_only_while_the_group_has_no_members(
    kafka_bootstrap: str, protocol: str
) -> None:
    settings = KafkaSettings(
        bootstrap=kafka_bootstrap, prefix="moved", librdkafka={"group.protocol": protocol}
    )
    make_topics(settings)
    group, listener, at = f"g-{uuid.uuid4()}", Listener(), TopicPartition(QUERIES.name, 0)
    offsets = GroupOffsets(settings, group)
    assert offsets.read(at) == Position(None, "")
    member = LibrdkafkaConsumer(settings, group, SystemClock())
    member.subscribe(QUERIES.name, listener)
    poll_until(member, lambda: bool(listener.positions))
    member.commit_now({at: NOW})
    with pytest.raises(ConfigError, match="has members"):
        offsets.write(at, Position(11, ""))
    member.close()
    moved = skipped(offsets.read(at), 10)
    offsets.write(at, moved)
    assert offsets.read(at) == moved
