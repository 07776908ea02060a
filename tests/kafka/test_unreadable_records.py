"""What cannot be unpacked, or has an unreadable header name, is refused; the rest is read."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.clients import Position
from carpool.kafka.librdkafka import LibrdkafkaConsumer
from carpool.kafka.raw_records import headers_of
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from carpool.kafka.unreadable import UnreadableBatches, end_of_batch
from schemas.codec import decode, decode_query
from schemas.errors import RecordError
from schemas.group import Group
from schemas.headers import UNREADABLE_HEADERS
from schemas.record import Source
from schemas.topics import QUERIES, QUERIES_DEAD
from tests.e2e.support import read_to_end
from tests.kafka.conformance.harness import Listener, read
from tests.kafka.test_states_that_pass import Deployment
from tests.waiting import WAIT_S, wait_until

BOMB = b" " * 90_000_000
"""Is 2.8 KB with zstd, 350 KB with lz4."""


class TroubledListener(Listener):
    """Notes the errors of fetches too."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        self.errors.append(error)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write(settings: KafkaSettings, at: TopicPartition, *values: bytes, codec: str = "none") -> None:
    """Writes these values in one batch."""
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap,
            "compression.type": codec,
            "message.max.bytes": 300_000_000,
            "batch.size": 300_000_000,
            "linger.ms": 60_000,  # until the flush: one batch, however slow the machine is
        }
    )
    for value in values:
        producer.produce(settings.broker_topic(at.topic), value, partition=at.partition)
    assert producer.flush(WAIT_S) == 0


@pytest.fixture(scope="module")
def bombed(kafka_bootstrap: str) -> Iterator[tuple[KafkaSettings, TopicPartition]]:
    """A partition with a bomb at its offsets 1 to 5 of a batch, one at 7, and good records."""
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix="bombs")
    at = TopicPartition(f"bombed-{uuid.uuid4()}", 0)
    create_topics(settings, [msgspec.structs.replace(QUERIES, name=at.topic)])
    write(settings, at, b"zero")
    write(settings, at, b"one", b"two", BOMB, b"four", b"five", codec="zstd")
    write(settings, at, b"six")
    write(settings, at, BOMB, codec="zstd")
    write(settings, at, b"eight")
    yield settings, at


@pytest.mark.kafka
def test_a_member_passes_over_bombs_and_a_restart_does_not_read_them_again(
    bombed: tuple[KafkaSettings, TopicPartition],
) -> None:
    settings, at = bombed
    listener, group = TroubledListener(), f"bombed-{uuid.uuid4()}"
    consumer = LibrdkafkaConsumer(settings, group, SystemClock())
    consumer.subscribe(at.topic, listener)
    try:
        found = read(consumer, 5)
        assert [(each.source.offset, each.value) for each in found] == [
            (0, b"zero"),
            (5, None),
            (6, b"six"),
            (7, None),
            (8, b"eight"),
        ]
        assert "offsets 1 to 5" in found[1].unreadable
        assert f"{at.topic}[0]" in found[1].unreadable
        assert len(listener.errors) >= 8, "each is tried several times"
        consumer.commit_now({at: Position(6, "")})
    finally:
        consumer.close()
    again = LibrdkafkaConsumer(settings, group, SystemClock())
    again.subscribe(at.topic, TroubledListener())
    try:
        assert read(again, 1)[0].value == b"six"
    finally:
        again.close()


@pytest.mark.kafka
def test_a_reader_without_a_group_passes_over_bombs(
    bombed: tuple[KafkaSettings, TopicPartition],
) -> None:
    settings, at = bombed
    found = read_topic(settings, SystemClock(), at.topic, name="test")
    assert [message.value for message in found] == [b"zero", b"six", b"eight"]


@pytest.mark.kafka
def test_bombs_of_codecs_that_unpack_to_any_size_end_as_cut_letters_and_leave_no_memory(
    kafka_bootstrap: str,
) -> None:
    deployment = Deployment(kafka_bootstrap, "exactly_once")
    settings, at = deployment.settings, TopicPartition(QUERIES.name, 0)
    with deployment.running():
        deployment.publish("before", partition=0)
        wait_until(lambda: deployment.results() == ["before/0"])
        before = resident_bytes()
        for codec in ("gzip", "lz4"):
            write(settings, at, BOMB, codec=codec)
        deployment.publish("after", partition=0)
        wait_until(lambda: deployment.results() == ["after/0", "before/0"])
        wait_until(lambda: resident_bytes() - before < len(BOMB) // 2, resident_bytes)
    letters = read_to_end(settings.bootstrap, settings.broker_topic(QUERIES_DEAD.name))
    assert [letter.text("rag.errors.truncated.from.bytes") for letter in letters] == [
        str(len(BOMB))
    ] * 2


def test_one_error_passes_over_nothing_and_neither_do_many_within_a_moment() -> None:
    batches, at = UnreadableBatches(), TopicPartition("t", 0)
    assert not any(batches.failed(at, 7, now_us=1_000 * number) for number in range(100))
    assert batches.failed(at, 7, now_us=3_000_000)
    assert not batches.failed(at, 8, now_us=9_000_000), "another batch begins anew"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 100, 1_000])
@pytest.mark.parametrize("first", [10, 11])
def test_the_end_of_a_batch_is_found_in_few_reads(size: int, first: int) -> None:
    end, reads = 10 + size, list[int]()

    def is_inside(offset: int) -> bool:
        reads.append(offset)
        return offset < end

    if first < end:
        assert end_of_batch(first, 2_000, is_inside) == end
        assert len(reads) <= 2 * size.bit_length() + 1
        assert end_of_batch(first, end, is_inside) == end, "nothing is read beyond the log"
        assert max(reads) < 2_000


# ---- a header name that is not UTF-8 is refused with a reason


class Raw:
    """A record of confluent-kafka with such a header name."""

    def headers(self) -> None:
        raise SystemError("<method 'headers'> returned a result with an exception set")


def test_unreadable_headers_become_one_header_that_says_so() -> None:
    assert headers_of(Raw()) == ((UNREADABLE_HEADERS, None),)  # type: ignore[arg-type]


def test_a_record_whose_headers_cannot_be_read_is_refused() -> None:
    unreadable = ((UNREADABLE_HEADERS, None),)
    with pytest.raises(RecordError, match="not UTF-8") as caught:
        decode_query(
            b'{"query_id": "q", "text": "x"}', unreadable, Source(topic="t", partition=0, offset=0)
        )
    assert (caught.value.reason, caught.value.query_id) == ("bad_envelope", "q")
    with pytest.raises(RecordError, match="not UTF-8"):
        decode(Group, b"{}", unreadable)
