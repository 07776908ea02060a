"""A header name that is not UTF-8 is refused with a reason, and its reader continues."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.raw_records import headers_of
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from schemas.codec import decode, decode_query
from schemas.errors import RecordError
from schemas.group import Group
from schemas.headers import UNREADABLE_HEADERS
from schemas.record import Source
from schemas.topics import QUERIES
from tests.kafka.raw_producer import write_with_header_name


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


@pytest.mark.kafka
def test_a_reader_continues_after_a_header_name_of_any_bytes(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap, partitions=1)
    topic = msgspec.structs.replace(QUERIES, name=f"t-{uuid.uuid4().hex[:8]}")
    create_topics(settings, (topic,))
    names = (b"\xff\xfe", b"", b"a\x00b", "é".encode())
    for name in names * 15:  # Python specialises what runs often
        write_with_header_name(kafka_bootstrap, topic.name, b"x", name)
    records = read_topic(settings, SystemClock(), topic.name, name="test")
    found = [message.headers for message in records]
    assert (
        found == [((UNREADABLE_HEADERS, None),), (("", b"v"),), (("a", b"v"),), (("é", b"v"),)] * 15
    )
