"""Records of confluent-kafka, converted to `Message`."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE
from confluent_kafka import Message as RawMessage

from carpool.kafka.records import Message
from schemas.headers import UNREADABLE_HEADERS
from schemas.record import Headers, Source

_ask = methodcaller("headers")
"""confluent-kafka returns a broken list *and* sets an error for a header name that is not UTF-8.
Specialised call instructions of the interpreter do not check for the error, and it is raised later
at an unrelated line. This way of calling always checks.
"""


def message_of(raw: RawMessage, received_us: int) -> Message:
    """Returns a record; `raw` must not be an event (`raw.error()` is None)."""
    topic, partition, offset = raw.topic(), raw.partition(), raw.offset()
    assert topic is not None and partition is not None and offset is not None
    kind, timestamp_ms = raw.timestamp()
    source = Source(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )
    return Message(
        source=source,
        key=_bytes(raw.key()),
        value=_bytes(raw.value()),
        headers=headers_of(raw),
        received_us=received_us,
    )


def headers_of(raw: RawMessage) -> Headers:
    """Returns the headers of a record.

    Kafka's header names are bytes and confluent-kafka's are text: for a name that is not UTF-8 it
    raises and returns no header at all. The result then is one `UNREADABLE_HEADERS` header, and
    readers refuse the record.
    """
    try:
        found: Any = _ask(raw) or ()
    except (SystemError, UnicodeDecodeError):
        return ((UNREADABLE_HEADERS, None),)
    return tuple(
        (name, value.encode() if isinstance(value, str) else value) for name, value in found
    )


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
