"""The size of a record as brokers compare it with `max.message.bytes` of its topic."""

from __future__ import annotations

from carpool.kafka.records import Output
from schemas.record import Headers
from schemas.topics import Topic

BATCH_BYTES = 61
"""The header of a record batch (Kafka protocol, record batch version 2)."""
ROOM_BYTES = 1024
"""For what is added to a record after it was made: a trace header, its place in the key."""


def fits(output: Output, topic: Topic) -> bool:
    """Returns whether a record is small enough for `topic`, with `ROOM_BYTES` to spare."""
    size_bytes = record_bytes(output.key, output.value, output.headers)
    return size_bytes + ROOM_BYTES <= topic.max_message_bytes


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns the size of an uncompressed batch with this one record, exact for our producers.

    Record batch version 2: lengths are zig-zag varints; attributes, time and offset are one byte
    each in a batch of one record.
    """
    body = 3 + _field(key) + _field(value) + _varint(len(headers))
    for name, content in headers:
        body += _field(name.encode(errors="surrogatepass")) + _field(content)
    return BATCH_BYTES + _varint(body) + body


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    return max(1, -(-(2 * number).bit_length() // 7))
